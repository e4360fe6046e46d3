// SPDX-License-Identifier: Apache-2.0
// Blocks that kernels read and write through queues of their own, against a controller in software: what comes, what it costs the
// queues, what errors mean.
#include "nvme/rig.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

template <class Group>
class blocks_of_each_group : public testing::Test {};
using groups = testing::Types<simt::thread, simt::tile<8>, simt::warp>;
TYPED_TEST_SUITE(blocks_of_each_group, groups);

TYPED_TEST(blocks_of_each_group, are_those_of_a_model_in_memory) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    rig on({.seed = seed}, {.nqueues = 2, .depth = 32, .writable = true});
    play_program<TypeParam>(on, seed, 64, 6, 5, {.seed = seed});
  }
}

TYPED_TEST(blocks_of_each_group, come_through_queues_of_a_few_slots_that_wrap_many_times) {
  // The slow controller gives lanes time to send what they may: it ends a command each 200 us.
  for (const std::uint64_t most_per_second : {0u, 5'000u}) {
    for (const std::uint32_t depth : {2u, 3u, 7u}) {
      rig on({.most_per_second = most_per_second, .seed = depth}, {.nqueues = 1, .depth = depth, .writable = true});
      play_program<TypeParam>(on, depth, 64, 6, 2);
      EXPECT_GT(on.driver->queue(0).words().tail, 30 * depth);
      EXPECT_EQ(on.driver->queue(0).words().tail, on.driver->queue(0).words().taken);
      EXPECT_LT(on.soft.done().most_under_way, depth);
      if (most_per_second != 0) {
        EXPECT_EQ(on.soft.done().most_under_way, depth - 1) << "a queue is used in full";
      }
    }
  }
}

TYPED_TEST(blocks_of_each_group, come_from_a_controller_of_several_threads) {
  for (const std::uint32_t depth : {3u, 32u}) {
    rig on({.nthreads = 2}, {.nqueues = 3, .depth = depth, .writable = true});
    play_program<TypeParam>(on, depth, 64, 6, 5);
    std::uint64_t ncommands = 0;
    for (std::uint32_t i = 0; i < 3; ++i) ncommands += on.driver->queue(i).words().ncommands;
    EXPECT_EQ(on.soft.done().commands, ncommands);
  }
}

TEST(nvme_blocks, commands_of_a_warp_take_few_doorbells) {
  rig on({.lazy = false}, {.nqueues = 1, .depth = 256, .writable = true});
  play_program<simt::warp>(on, 5, 128, 10, 1);
  const nvme::queue_words words = on.driver->queue(0).words();
  EXPECT_EQ(words.ncommands, words.tail);
  EXPECT_LT(words.ndoorbells * 3, words.ncommands);
}

// One fetched command fewer than was said before is a slot that the controller has given back already.
TEST(nvme_blocks, a_head_that_goes_back_is_counted_and_ignored) {
  rig on({.nblocks = 64, .lazy = false}, {.nqueues = 1, .depth = 8, .writable = true});
  std::vector<std::byte> bytes(512);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  on.soft.add({.does = soft_fault::what::back, .opcode = 2});
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(on.driver->queue(0).words().head, 3u);
  on.nunexpected = 1;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(on.driver->queue(0).words().head, 24u);
}

TEST(nvme_blocks, limits_of_the_device_are_kept) {
  struct {
    const char* what;
    soft_options soft;
    nvme::controller_options driver;
    std::uint32_t depth, nqueues;
  } const cases[] = {
      {"doorbells that lie far apart", {.doorbell_stride_shift = 4}, {.nqueues = 3, .depth = 16, .writable = true}, 16, 3},
      {"shallow queues", {.most_entries = 5}, {.nqueues = 2, .depth = 256, .writable = true}, 5, 2},
      {"few queues", {.nqueues = 3}, {.nqueues = 8, .depth = 8, .writable = true}, 8, 3},
      {"queues in one piece",
       {.contiguous_queues = true, .scattered = false},
       {.nqueues = 2, .depth = 256, .writable = true},
       256,
       2},
      {"queues in pieces", {}, {.nqueues = 2, .depth = 300, .writable = true}, 300, 2},
      {"blocks of 4 KiB",
       {.nblocks = 512, .block_shift = 12},
       {.nqueues = 2, .depth = 16, .buffer_nbytes = 8192, .writable = true},
       16,
       2},
      {"commands of 4 KiB", {.mdts = 0 + 1}, {.nqueues = 2, .depth = 16, .buffer_nbytes = 65536, .writable = true}, 16, 2},
      {"commands of any length", {.mdts = 0}, {.nqueues = 2, .depth = 16, .buffer_nbytes = 65536, .writable = true}, 16, 2},
      {"one in flight after the other",
       {.latency_ns = 50'000, .most_per_second = 20'000},
       {.nqueues = 1, .writable = true},
       256,
       1},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    rig on(each.soft, each.driver);
    EXPECT_EQ(on.driver->limits().depth, each.depth);
    EXPECT_EQ(on.driver->limits().nqueues, each.nqueues);
    play_program<simt::tile<8>>(on, 11, 32, 4, each.soft.block_shift == 12 ? 3 : 60);
  }
}

// More than 4 MiB, whose lists take several pages.
TEST(nvme_blocks, come_by_commands_as_large_as_a_buffer) {
  constexpr std::uint32_t nbytes = 8 << 20;
  rig on({.nblocks = nbytes / 512, .mdts = 0}, {.nqueues = 1, .depth = 4, .buffer_nbytes = nbytes, .writable = true});
  std::vector<std::byte> bytes = random_bytes(nbytes, 9);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = nbytes / 512}, bytes), nbytes);
  EXPECT_TRUE(on.soft.bytes() == bytes);
  std::vector<std::byte> again(nbytes);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = nbytes / 512}, again), nbytes);
  EXPECT_TRUE(again == bytes);
}

TEST(nvme_blocks, have_numbers_of_64_bits) {
  constexpr std::uint64_t hole = (std::uint64_t{5} << 32) + 100;
  rig on({.nblocks = 64, .hole = hole}, {.nqueues = 1, .writable = true});
  on.soft.write_image(0, random_bytes(64 * 512, 8));
  std::vector<std::byte> bytes(1024);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 2, .lba = hole + 40}, bytes), 1024);
  EXPECT_EQ(std::memcmp(bytes.data(), random_bytes(64 * 512, 8).data() + 40 * 512, 1024), 0);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 2, .lba = hole + 62}, bytes), 1024);
  EXPECT_EQ(std::memcmp(on.soft.bytes().data() + 62 * 512, bytes.data(), 1024), 0);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 2, .lba = hole + 63}, bytes), -ENXIO);
}

TEST(nvme_blocks, of_several_namespaces_stay_apart) {
  rig on({.nblocks = 64, .nnamespaces = 3}, {.nqueues = 2, .depth = 8, .writable = true});
  const std::vector<nvme::namespace_facts> all = on.driver->namespaces();
  ASSERT_EQ(all.size(), 3u);
  for (std::uint32_t nsid = 1; nsid <= 3; ++nsid) {
    EXPECT_EQ(all[nsid - 1].nsid, nsid);
    EXPECT_EQ(all[nsid - 1].nblocks, 64u);
    std::vector<block_call> calls(32);
    for (std::uint32_t i = 0; i < 32; ++i) calls[i] = {.what = block_op::write, .nblocks = 2, .lba = 2 * i, .data = i * 1024u};
    std::vector<std::byte> bytes = random_bytes(32 * 1024, nsid);
    play<simt::warp>(on.driver->open(nsid), calls, 32, bytes);
  }
  for (std::uint32_t nsid = 1; nsid <= 3; ++nsid) EXPECT_TRUE(on.soft.bytes(nsid) == random_bytes(32 * 1024, nsid));
}

TEST(nvme_blocks, that_are_flushed_or_forced_outlive_the_power) {
  rig on({.nblocks = 64}, {.nqueues = 1, .writable = true});
  std::vector<std::byte> bytes = random_bytes(512, 3);
  const std::vector<std::byte> written = bytes, nothing(512);
  const auto on_medium = [&](std::uint64_t lba) {
    const std::vector<std::byte> all = on.soft.medium();
    return std::vector<std::byte>(all.begin() + static_cast<std::ptrdiff_t>(512 * lba),
                                  all.begin() + static_cast<std::ptrdiff_t>(512 * lba + 512));
  };
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 1, .lba = 1}, bytes), 512);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 1, .lba = 2, .flags = nvme::force_unit_access}, bytes), 512);
  EXPECT_TRUE(on_medium(1) == nothing);
  EXPECT_TRUE(on_medium(2) == written);
  std::vector<block_call> flushes(32, block_call{.what = block_op::flush});
  EXPECT_EQ(play<simt::warp>(on.space, flushes, 32, bytes), std::vector<std::int64_t>(32));
  EXPECT_EQ(on.soft.done().flushes, 1u);
  on.soft.lose_power();
  EXPECT_TRUE(on_medium(1) == written);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 1}, bytes), 512);
  EXPECT_TRUE(bytes == written);
}

TEST(nvme_blocks, each_status_is_an_errno_and_comes_again_only_where_it_may_pass) {
  constexpr std::uint32_t dnr = nvme::do_not_retry;
  struct {
    std::uint32_t status, times;
    std::int64_t answer;
    std::uint64_t ncommands;
  } const cases[] = {
      {0x006, 3, 512, 4},        {0x006, 4, -EIO, 4},         {0x006 | dnr, 4, -EIO, 1},  {0x007, 1, 512, 2},
      {0x082, 2, 512, 3},        {0x082 | dnr, 1, -EBUSY, 1}, {0x001, 1, -EOPNOTSUPP, 1}, {0x002, 1, -EINVAL, 1},
      {0x00b, 1, -ENODEV, 1},    {0x013, 1, -EINVAL, 1},      {0x020, 1, -EROFS, 1},      {0x080, 1, -ENXIO, 1},
      {0x081, 1, -ENOSPC, 1},    {0x083, 1, -EBADE, 1},       {0x182, 1, -EROFS, 1},      {0x280, 1, 512, 2},
      {0x280 | dnr, 1, -EIO, 1}, {0x281, 4, -EIO, 4},         {0x282, 1, -EILSEQ, 1},     {0x285, 1, -EILSEQ, 1},
      {0x286, 1, -EACCES, 1},    {0x287, 1, -ENODATA, 1},     {0x371 | dnr, 1, -EIO, 1},  {0x7ff | dnr, 1, -EIO, 1},
      {0x100, 1, 512, 2},
  };
  rig on({.nblocks = 64}, {.nqueues = 1, .writable = true});
  for (const auto& each : cases) {
    SCOPED_TRACE(each.status);
    const std::vector<std::byte> marks(512, std::byte{0x5a});
    std::vector<std::byte> bytes = marks;
    on.soft.write_image(7, random_bytes(512, each.status));
    on.soft.add({.opcode = 2, .times = each.times, .status = each.status});
    const std::uint64_t before = on.soft.done().commands;
    EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 7}, bytes), each.answer);
    EXPECT_EQ(on.soft.done().commands - before, each.ncommands);
    EXPECT_TRUE(bytes == (each.answer > 0 ? random_bytes(512, each.status) : marks)) << "a failed read brings nothing";
    // What is left of a fault, the next test must not meet.
    while (call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 7}, bytes) < 0) {
    }
  }
}

TEST(nvme_blocks, errors_of_some_lanes_are_no_errors_of_others) {
  rig on({.nblocks = 64}, {.nqueues = 1, .depth = 16, .writable = true});
  on.soft.add({.opcode = 2, .first_lba = 10, .last_lba = 12, .times = 100, .status = 0x281 | nvme::do_not_retry});
  std::vector<block_call> calls(32);
  for (std::uint32_t i = 0; i < 32; ++i) calls[i] = {.what = block_op::read, .nblocks = 1, .lba = i, .data = i * 512u};
  std::vector<std::byte> bytes(32 * 512);
  const std::vector<std::int64_t> answers = play<simt::warp>(on.space, calls, 32, bytes);
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(answers[i], i >= 10 && i <= 12 ? -EIO : 512) << i;
}

TEST(nvme_blocks, what_was_done_before_an_error_is_counted) {
  rig on({.nblocks = 64}, {.nqueues = 1, .writable = true});  // commands of 4 KiB: eight blocks
  on.soft.add({.opcode = 2, .first_lba = 16, .last_lba = 16, .times = 100, .status = 0x281 | nvme::do_not_retry});
  std::vector<std::byte> bytes(24 * 512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 24, .lba = 0}, bytes), 16 * 512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 8, .lba = 16}, bytes), -EIO);
}

TEST(nvme_blocks, beyond_the_end_are_refused_without_a_command) {
  rig on({.nblocks = 64}, {.nqueues = 1, .writable = true});
  std::vector<std::byte> bytes(1024);
  for (const std::uint64_t lba : {std::uint64_t{63}, std::uint64_t{64}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 2, .lba = lba}, bytes), -ENXIO) << lba;
    EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 2, .lba = lba}, bytes), -ENXIO) << lba;
  }
  EXPECT_EQ(on.soft.done().commands, 0u);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 2, .lba = 62}, bytes), 1024);
}

TEST(nvme_blocks, are_written_only_where_the_driver_was_told_so) {
  rig on({.nblocks = 64}, {.nqueues = 1});
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 1, .lba = 1}, bytes), -EROFS);
  EXPECT_EQ(on.soft.done().commands, 0u);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 1}, bytes), 512);
}

// What a driver may not drive, it refuses by name, and leaves disabled.
double seconds_of_reads(const soft_options& as, std::uint32_t nlanes) {
  rig on(as, {.nqueues = 2, .depth = 64});
  std::vector<std::byte> bytes(nlanes * 512);
  std::vector<block_call> calls(nlanes);
  for (std::uint32_t i = 0; i < nlanes; ++i) calls[i] = {.what = block_op::read, .nblocks = 1, .lba = i, .data = i * 512};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(play<simt::warp>(on.space, calls, nlanes, bytes), std::vector<std::int64_t>(nlanes, 512));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
TEST(nvme_threads, answer_as_late_and_as_often_as_they_are_told) {
  for (const std::uint32_t nthreads : {0u, 2u}) {
    EXPECT_GE(seconds_of_reads({.latency_ns = 30'000'000, .nthreads = nthreads}, 32), 0.03);
    // The first one at once.
    EXPECT_GE(seconds_of_reads({.most_per_second = 1000, .nthreads = nthreads}, 64), 0.063);
  }
}
TEST(nvme_threads, that_move_nothing_move_nothing) {
  rig on({.nblocks = 64, .nthreads = 1, .moves_nothing = true}, {.nqueues = 1, .depth = 8, .writable = true});
  const auto image = random_bytes(64 * 512, 3), written = random_bytes(512, 4);
  on.soft.write_image(0, image);
  std::vector<std::byte> bytes = written;
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 1, .lba = 5}, bytes), 512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 7}, bytes), 512);
  EXPECT_TRUE(bytes == written) << "the buffer of the one record that both had";
  EXPECT_TRUE(on.soft.bytes() == image);
}
// Every other command is not due for 100 ms.
TEST(nvme_threads, end_their_commands_when_a_queue_is_deleted_or_the_controller_reset) {
  rig on({.nblocks = 64, .most_per_second = 10, .nthreads = 2},
         {.nqueues = 1, .depth = 8, .admin_timeout_ns = patient_ns, .abort_wait_ns = 1'000'000, .look_every_ns = 0});
  std::vector<std::byte> bytes(512);
  const block_call in_time{.what = block_op::read, .nblocks = 1};
  const block_call too_late{.what = block_op::read, .nblocks = 1, .timeout_ns = 10'000'000};
  EXPECT_EQ(call_one(on, in_time, bytes), 512);
  EXPECT_EQ(call_one(on, too_late, bytes), -ETIMEDOUT);
  EXPECT_EQ(on.driver->recover(), 1u);
  EXPECT_EQ(on.driver->done().deletions, 1u);
  EXPECT_EQ(call_one(on, in_time, bytes), 512);
  EXPECT_EQ(call_one(on, too_late, bytes), -ETIMEDOUT);
  on.driver->reset();
  EXPECT_EQ(call_one(on, in_time, bytes), 512);
  EXPECT_EQ(on.soft.done().commands, 3u);
}
TEST(nvme_threads, take_no_faults_and_moves_nothing_takes_threads) {
  soft_controller soft(simt::this_platform(), {.nthreads = 1});
  EXPECT_THROW(soft.add({.opcode = 2}), std::invalid_argument);
  soft.add({.opcode = 0x108});
  EXPECT_THROW(soft_controller(simt::this_platform(), {.moves_nothing = true}), std::invalid_argument);
}

TEST(nvme_controller, that_cannot_be_used_is_refused_by_name) {
  struct {
    const char* says;
    int error;
    soft_options soft;
    nvme::controller_options driver;
  } const cases[] = {
      {"no NVM command set", EOPNOTSUPP, {.nvm_commands = false}, {}},
      {"larger than 4,096", EOPNOTSUPP, {.least_page_shift = 14}, {}},
      {"does not get ready", ETIMEDOUT, {.gets_ready = false, .ready_halves = 1}, {}},
      {"in one piece", EINVAL, {.contiguous_queues = true}, {.depth = 256}},
      {"has metadata", EOPNOTSUPP, {.metadata = true}, {}},
      {"more than buffer_nbytes", EOPNOTSUPP, {.nblocks = 16, .block_shift = 13}, {}},
      {"moves at most 8192 (MDTS)", EOPNOTSUPP, {.nblocks = 16, .block_shift = 14, .mdts = 1}, {.buffer_nbytes = 16384}},
      {"2 to 16,384 slots", EINVAL, {}, {.depth = 1}},
      {"pairs of queues", EINVAL, {}, {.nqueues = 0}},
      {"multiple of 4,096", EINVAL, {}, {.buffer_nbytes = 512}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.says);
    soft_controller soft(simt::this_platform(), each.soft);
    try {
      nvme::controller driver(soft, simt::this_platform(), each.driver);
      driver.open(1);
      ADD_FAILURE() << "it was taken";
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code().value(), each.error);
      EXPECT_NE(std::string(error.what()).find(each.says), std::string::npos) << error.what();
    }
    EXPECT_EQ(soft.done().nmapped, 0u);
    EXPECT_EQ(soft.read32(0x14) & 1, 0u) << "it is enabled still";
    EXPECT_EQ(soft.violations(), std::vector<std::string>{});
  }
}

TEST(nvme_controller, that_is_gone_or_has_no_such_namespace_says_so) {
  soft_controller soft(simt::this_platform(), {});
  {
    nvme::controller driver(soft, simt::this_platform(), {.nqueues = 1});
    EXPECT_THROW(driver.open(2), std::system_error);
    EXPECT_THROW(driver.open(0), std::system_error);
  }
  soft.unplug();
  try {
    const nvme::controller driver(soft, simt::this_platform(), {});
    ADD_FAILURE() << "it was taken";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENODEV);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
