// SPDX-License-Identifier: Apache-2.0
// Registers and admin commands (NVM Express Base Specification 2.0, sections 3.1.3 and 5).
#pragma once
#include <cstdint>

namespace gpufs::nvme {

// Offsets in BAR0.
namespace at {
inline constexpr std::uint32_t cap = 0x00, version = 0x08, configuration = 0x14, status = 0x1c, admin_sizes = 0x24,
                               admin_submissions = 0x28, admin_completions = 0x30, doorbells = 0x1000;
}  // namespace at

// CAP, the controller's capabilities.
struct capabilities {
  std::uint64_t word;
  std::uint32_t most_entries() const { return static_cast<std::uint32_t>(word & 0xffff) + 1; }
  bool wants_contiguous_queues() const { return (word >> 16 & 1) != 0; }
  std::uint64_t ready_ns() const { return (word >> 24 & 0xff) * 500'000'000; }
  std::uint32_t doorbell_stride() const { return 4u << (word >> 32 & 15); }
  bool has_nvm_commands() const { return (word >> 37 & 1) != 0; }
  std::uint32_t least_page_shift() const { return 12 + static_cast<std::uint32_t>(word >> 48 & 15); }
};

// CC, its configuration, and CSTS, its status.
namespace configuration {
inline constexpr std::uint32_t enable = 1, normal_shutdown = 1u << 14;
inline constexpr std::uint32_t entry_sizes = 6u << 16 | 4u << 20;  // 64 and 16 bytes; pages of 4 KiB and round robin are 0
}  // namespace configuration
namespace state {
inline constexpr std::uint32_t ready = 1, fatal = 2, shutdown_mask = 3u << 2, shut_down = 2u << 2, gone = ~0u;
}  // namespace state

namespace admin {
inline constexpr std::uint32_t delete_submissions = 0x00, create_submissions = 0x01, delete_completions = 0x04,
                               create_completions = 0x05, identify = 0x06, abort = 0x08, set_features = 0x09;
inline constexpr std::uint32_t of_namespace = 0, of_controller = 1, active_namespaces = 2;  // identify, CNS
inline constexpr std::uint32_t number_of_queues = 7;                                        // set features, FID
}  // namespace admin

}  // namespace gpufs::nvme
