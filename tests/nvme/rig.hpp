// SPDX-License-Identifier: Apache-2.0
// What tests of queues share: a controller in software with its driver, and lanes that read and write blocks as a list says.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../src/nvme/controller.hpp"
#include "gpufs/nvme/detail/blocks.hpp"
#include "gpufs/simt/device_array.hpp"
#include "nvme/soft_controller.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t patient_ns = 30'000'000'000;

struct rig {
  explicit rig(const soft_options& soft_as = {}, nvme::controller_options driver_as = {})
      : soft(simt::this_platform(), soft_as), block_nbytes(1u << soft_as.block_shift) {
    driver = std::make_unique<nvme::controller>(soft, simt::this_platform(), driver_as);
    space = driver->open(1);
  }
  // The driver has done nothing that it must not, and has left nothing.
  ~rig() {
    for (std::uint32_t i = 0; i < driver->nqueues(); ++i) {
      EXPECT_EQ(driver->queue(i).words().nunexpected, 0u) << "in queue " << i + 1;
      EXPECT_EQ(driver->queue(i).words().users, 0u);
    }
    EXPECT_LT(soft.done().most_under_way, driver->limits().depth);
    driver.reset();
    EXPECT_EQ(soft.violations(), std::vector<std::string>{});
    EXPECT_EQ(soft.done().nmapped, 0u);
  }

  soft_controller soft;
  std::uint32_t block_nbytes;
  std::unique_ptr<nvme::controller> driver;
  const nvme::namespace_layout* space;
};

enum class block_op : std::uint32_t { nothing, read, write, flush };
struct block_call {
  block_op what = block_op::nothing;
  std::uint32_t nblocks = 0;
  std::uint64_t lba = 0;
  std::uint32_t flags = 0;
  std::uint64_t data = 0;  // where its bytes begin in `bytes`
  std::uint64_t timeout_ns = patient_ns;
};

// Lane t makes calls t * ncalls up to (t + 1) * ncalls, in order, each together with its group's other lanes. A flush is the
// group's.
template <class Group>
struct play_calls {
  const nvme::namespace_layout* space;
  const block_call* calls;
  std::uint32_t ncalls, nlanes;
  std::byte* bytes;
  std::int64_t* answers;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t lane = simt::block_rank() * simt::block_size() + simt::thread_rank();
    if (lane >= nlanes) return;
    const Group group{};
    for (std::uint32_t i = 0; i < ncalls; ++i) {
      const block_call& call = calls[lane * ncalls + i];
      std::int64_t& answer = answers[lane * ncalls + i];
      std::byte* const mine = bytes + call.data;
      if (group.any(call.what == block_op::flush)) {
        answer = nvme::flush(group, *space, call.timeout_ns);
        continue;
      }
      const std::uint32_t reads = call.what == block_op::read ? call.nblocks : 0;
      const std::uint32_t writes = call.what == block_op::write ? call.nblocks : 0;
      const std::int64_t read = nvme::read_each(group, *space, call.lba, reads, mine, call.timeout_ns);
      const std::int64_t written = nvme::write_each(group, *space, call.lba, writes, mine, call.flags, call.timeout_ns);
      answer = call.what == block_op::read ? read : written;
    }
  }
};

// What the calls answered; `bytes` is what they read and write, and has then what they read. nlanes: a multiple of 32.
template <class Group = simt::thread>
std::vector<std::int64_t> play(const nvme::namespace_layout* space, const std::vector<block_call>& calls, std::uint32_t nlanes,
                               std::vector<std::byte>& bytes, const simt::cpu_schedule& schedule = {}) {
  const simt::device_array<block_call> list{std::span<const block_call>(calls)};
  const simt::device_array<std::byte> memory{std::span<const std::byte>(bytes)};
  const simt::device_array<std::int64_t> answers(calls.size());
  const auto ncalls = static_cast<std::uint32_t>(calls.size() / nlanes);
  const unsigned block = nlanes < 128 ? nlanes : 128;
  simt::launch({.grid = nlanes / block, .block = block, .schedule = schedule},
               play_calls<Group>{space, list.get(), ncalls, nlanes, memory.get(), answers.get()});
  bytes = memory.read();
  return answers.read();
}

inline std::vector<std::byte> random_bytes(std::size_t nbytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(nbytes);
  for (std::byte& each : made) each = static_cast<std::byte>(random());
  return made;
}

// One call of one lane.
inline std::int64_t call_one(const rig& on, block_call call, std::vector<std::byte>& bytes) {
  std::vector<block_call> calls(32);
  call.data = 0;
  calls[0] = call;
  return play(on.space, calls, 32, bytes)[0];
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
