// SPDX-License-Identifier: Apache-2.0
// What an NVMe controller reads and writes: entries of its queues, for lanes and the host. Names and places are those of the NVM
// Express Base Specification 2.0: section 3.3.3 (entries of queues, and their status), and of the NVM Command Set
// Specification 1.0.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::nvme {

// A command, as it lies in a submission queue.
struct alignas(64) submission {
  std::uint32_t cdw0;  // opcode, bits 0 to 7; fused and PRP or SGL: 0, so single commands by PRPs; the identifier, bits 16 to 31
  std::uint32_t nsid;  // the namespace
  std::uint32_t cdw2, cdw3;
  std::uint64_t metadata;
  std::uint64_t prp1, prp2;  // addresses on the bus: prp.hpp
  std::uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};
static_assert(sizeof(submission) == 64 && offsetof(submission, cdw0) == 0);
static_assert(offsetof(submission, nsid) == 4 && offsetof(submission, cdw2) == 8 && offsetof(submission, cdw3) == 12);
static_assert(offsetof(submission, metadata) == 16 && offsetof(submission, prp1) == 24 && offsetof(submission, prp2) == 32);
static_assert(offsetof(submission, cdw10) == 40 && offsetof(submission, cdw11) == 44 && offsetof(submission, cdw12) == 48);
static_assert(offsetof(submission, cdw13) == 52 && offsetof(submission, cdw14) == 56 && offsetof(submission, cdw15) == 60);

// An entry of a completion queue: one write of the controller's, its last word last.
struct alignas(16) completion {
  std::uint32_t result;  // of the command: dword 0
  std::uint32_t reserved;
  std::uint32_t submission_queue;  // bits 0 to 15: SQHD, the slot behind the last that was fetched; 16 to 31: which queue
  std::uint32_t status;            // bits 0 to 15: the command's identifier; 16: the phase; 17 to 31: its status
};
static_assert(sizeof(completion) == 16 && offsetof(completion, result) == 0 && offsetof(completion, reserved) == 4);
static_assert(offsetof(completion, submission_queue) == 8 && offsetof(completion, status) == 12);

// Commands for a queue of blocks (NVM Command Set, section 3).
enum class opcode : std::uint8_t { flush = 0, write = 1, read = 2 };

// Of a write, in its cdw12: the blocks are on the medium before it is done.
inline constexpr std::uint32_t force_unit_access = 1u << 30;

// A status without its phase: SC in bits 0 to 7, SCT in bits 8 to 10, then CRD, M, and DNR as bit 14. 0: it was done.
using status_word = std::uint32_t;
inline constexpr status_word do_not_retry = 1u << 14;
inline constexpr status_word status_mask = 0x7fffu;
// Both parts of its code: SCT, SC.
GPUFS_HOST_DEVICE constexpr std::uint32_t code_of(status_word status) { return status & 0x7ffu; }
namespace code {
inline constexpr std::uint32_t success = 0x000, invalid_opcode = 0x001, invalid_field = 0x002, id_conflict = 0x003,
                               data_transfer = 0x004, power_loss = 0x005, internal = 0x006, abort_requested = 0x007,
                               queue_deleted = 0x008, invalid_namespace = 0x00b, prp_offset = 0x013, lba_out_of_range = 0x080,
                               capacity_exceeded = 0x081, namespace_not_ready = 0x082, reservation_conflict = 0x083,
                               format_in_progress = 0x084, write_protected = 0x020, command_interrupted = 0x021,
                               transient_transport = 0x022, read_only_range = 0x182, write_fault = 0x280, unrecovered_read = 0x281,
                               guard_check = 0x282, application_tag_check = 0x283, reference_tag_check = 0x284,
                               compare_failure = 0x285, access_denied = 0x286, unwritten_block = 0x287;
}  // namespace code

}  // namespace gpufs::nvme
