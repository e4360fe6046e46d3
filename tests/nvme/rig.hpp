// SPDX-License-Identifier: Apache-2.0
// What tests of queues share: a controller in software with its driver, and lanes that read and write blocks as a list says.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../src/nvme/controller.hpp"
#include "gpufs/nvme/detail/blocks.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

using nvme::soft_controller;
using nvme::soft_fault;
using nvme::soft_options;

inline constexpr std::uint64_t patient_ns = 30'000'000'000;

struct rig {
  explicit rig(const soft_options& soft_as = {}, nvme::controller_options driver_as = {},
               simt::platform& machine = simt::this_platform())
      : soft(machine, soft_as), block_nbytes(1u << soft_as.block_shift) {
    driver = std::make_unique<nvme::controller>(soft, machine, driver_as);
    space = driver->open(1);
  }
  // The driver has done nothing that it must not, and has left nothing.
  ~rig() {
    for (std::uint32_t i = 0; i < driver->nqueues(); ++i) {
      EXPECT_EQ(driver->queue(i).words().nunexpected, nunexpected) << "in queue " << i + 1;
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
  std::uint64_t nunexpected = 0;  // of a controller that was told to break the rules
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

  GPUFS_DEVICE void operator()() const { (*this)(simt::block_rank()); }
  GPUFS_DEVICE void operator()(std::uint32_t block) const {
    const std::uint32_t lane = block * simt::block_size() + simt::thread_rank();
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

// The same while lane 0 of one more block is the controller, on the CPU machine: between the lanes' steps, as the schedule has it.
// Where there is a driver, lane 1 there resets it again and again.
struct lanes_beside {
  soft_controller* soft = nullptr;
  nvme::controller* driver = nullptr;
};
template <class Group>
struct play_beside_controller {
  play_calls<Group> play;
  lanes_beside beside;
  void (*step)(soft_controller*);
  void (*reset)(nvme::controller*);
  std::uint32_t* nended;

  GPUFS_DEVICE void operator()() const {
    const simt::atomic_ref<std::uint32_t> ended(*nended);
    const std::uint32_t nplayers = (simt::grid_size() - 1) * simt::block_size();
    const simt::deadline until(patient_ns);
    simt::backoff pause;
    if (simt::block_rank() != 0) {
      play(simt::block_rank() - 1);
      ended.fetch_add(1, std::memory_order_relaxed);
    } else if (simt::thread_rank() == 0) {
      const std::uint32_t all = nplayers + (beside.driver != nullptr ? 1 : 0);
      for (; ended.load_relaxed() != all && !until.expired(); pause()) step(beside.soft);
    } else if (simt::thread_rank() == 1 && beside.driver != nullptr) {
      for (std::uint32_t n = 1; ended.load_relaxed() != nplayers && !until.expired(); ++n) {
        if (n % 16 == 0) reset(beside.driver);
        pause();
      }
      ended.fetch_add(1, std::memory_order_relaxed);
    }
  }
};

// What the calls answered, `beside` a controller that steps between them or with its own thread; `bytes` is what they read and
// write, and has then what they read. nlanes: a multiple of 32.
template <class Group = simt::thread>
std::vector<std::int64_t> play(const nvme::namespace_layout* space, const std::vector<block_call>& calls, std::uint32_t nlanes,
                               std::vector<std::byte>& bytes, const simt::cpu_schedule& schedule = {},
                               const lanes_beside& beside = {}) {
  const simt::device_array<block_call> list{std::span<const block_call>(calls)};
  const simt::device_array<std::byte> memory{std::span<const std::byte>(bytes)};
  const simt::device_array<std::int64_t> answers(calls.size());
  const auto ncalls = static_cast<std::uint32_t>(calls.size() / nlanes);
  const unsigned block = nlanes < 128 ? nlanes : 128;
  const play_calls<Group> all{space, list.get(), ncalls, nlanes, memory.get(), answers.get()};
  if (beside.soft == nullptr) {
    simt::launch({.grid = nlanes / block, .block = block, .schedule = schedule}, all);
  } else {
    const simt::device_array<std::uint32_t> nended(1);
    beside.soft->let_others_step(true);
    simt::launch({.grid = nlanes / block + 1, .block = block, .schedule = schedule},
                 play_beside_controller<Group>{all, beside, [](soft_controller* soft) { soft->step(); },
                                               [](nvme::controller* driver) { driver->reset(); }, nended.get()});
    beside.soft->let_others_step(false);
  }
  bytes = memory.read();
  return answers.read();
}

inline std::vector<std::byte> random_bytes(std::size_t nbytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(nbytes);
  for (std::byte& each : made) each = static_cast<std::byte>(random());
  return made;
}

// Random calls of each lane in a part of the namespace of its own, and what they must give: a model in memory plays the same.
struct program {
  program(std::uint64_t seed, std::uint32_t nlanes, std::uint32_t ncalls, std::uint64_t nblocks, std::uint32_t block_nbytes,
          std::uint32_t most_blocks)
      : image(random_bytes(nblocks * block_nbytes, seed)), calls(nlanes * ncalls), expected(nlanes * ncalls) {
    std::mt19937_64 random(seed);
    bytes = random_bytes(calls.size() * most_blocks * block_nbytes, seed + 1);
    wanted = bytes;
    before = image;
    const std::uint64_t share = nblocks / nlanes;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      block_call& call = calls[i];
      const auto n = static_cast<std::uint32_t>(1 + random() % std::min<std::uint64_t>(most_blocks, share));
      call.lba = i / ncalls * share + random() % (share - n + 1);
      call.nblocks = n;
      call.data = i * most_blocks * block_nbytes;
      const std::uint64_t drawn = random() % 8;
      call.what = drawn == 0 ? block_op::nothing : drawn < 5 ? block_op::read : block_op::write;
      call.flags = drawn == 7 ? nvme::force_unit_access : 0;
      if (call.what == block_op::nothing) continue;
      expected[i] = static_cast<std::int64_t>(n) * block_nbytes;
      std::byte* const in_image = image.data() + call.lba * block_nbytes;
      std::byte* const in_bytes = wanted.data() + call.data;
      if (call.what == block_op::read) {
        std::memcpy(in_bytes, in_image, n * block_nbytes);
      } else {
        std::memcpy(in_image, in_bytes, n * block_nbytes);
      }
    }
  }

  std::vector<std::byte> before, image, bytes, wanted;
  std::vector<block_call> calls;
  std::vector<std::int64_t> expected;
};

template <class Group>
void play_program(rig& on, std::uint64_t seed, std::uint32_t nlanes, std::uint32_t ncalls, std::uint32_t most_blocks,
                  const simt::cpu_schedule& schedule = {}, const lanes_beside& beside = {}) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  program what(seed, nlanes, ncalls, on.soft.bytes().size() / on.block_nbytes, on.block_nbytes, most_blocks);
  on.soft.write_image(0, what.before);
  std::vector<std::byte> bytes = what.bytes;
  EXPECT_EQ(play<Group>(on.space, what.calls, nlanes, bytes, schedule, beside), what.expected);
  EXPECT_TRUE(bytes == what.wanted) << "a read gave other bytes";
  EXPECT_TRUE(on.soft.bytes() == what.image) << "the image has other bytes";
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
