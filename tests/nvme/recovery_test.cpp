// SPDX-License-Identifier: Apache-2.0
// Commands that do not end: who waits answers in time, the host aborts them, deletes queues or resets the controller, and memory is
// used again only then. Memory of a caller's own, too, and how its addresses are told.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "nvme/rig.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t short_ns = 30'000'000;

// A driver that looks at nothing by itself: tests say when.
nvme::controller_options quiet(std::uint32_t depth = 16) {
  return {.nqueues = 1,
          .depth = depth,
          .writable = true,
          .admin_timeout_ns = patient_ns,
          .abort_wait_ns = 5'000'000,
          .look_every_ns = 0};
}
nvme::controller_options watchful(std::uint32_t nqueues = 2, std::uint32_t depth = 16) {
  nvme::controller_options made = quiet(depth);
  made.nqueues = nqueues;
  made.look_every_ns = 500'000;
  made.inside_wait_ns = 20'000'000'000;
  return made;
}

// One lane, which has a block, or more, of memory of its own moved.
struct own_command {
  std::uint64_t lba = 0;
  std::uint32_t nblocks = 1;
  std::uint64_t offset = 0, nbytes = 512;
  std::uint64_t timeout_ns = patient_ns;
  nvme::opcode what = nvme::opcode::read;
};
struct own_answer {
  std::int32_t submitted, status;
  nvme::ticket ticket;
};
struct run_own {
  const nvme::queue_layout* queue;
  nvme::dma_memory memory;
  own_command ask;
  own_answer* answer;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const simt::thread me{};
    const nvme::queue_pair pair(*queue);
    const nvme::command what{ask.what, 1, ask.lba, ask.nblocks, 0, ask.nbytes, &memory, ask.offset};
    answer->submitted = pair.submit(me, true, what, answer->ticket, [](std::byte*) {});
    if (answer->submitted != 1) return;
    answer->status = pair.wait(me, true, answer->ticket, simt::deadline(ask.timeout_ns));
    if (answer->status >= 0) pair.finish(answer->ticket);
  }
};
struct look_ended {
  const nvme::queue_layout* queue;
  nvme::ticket ticket;
  std::uint32_t* ended;
  GPUFS_DEVICE void operator()() const {
    const nvme::queue_pair pair(*queue);
    pair.poll(simt::this_warp());
    if (simt::thread_rank() == 0) *ended = pair.has_ended(ticket) ? 1 : 0;
  }
};

const nvme::queue_layout* queue_of(const rig& on) {
  nvme::namespace_layout space;
  simt::this_platform().copy_from_device(&space, on.space, sizeof space);
  return space.queues;
}
own_answer run_own_command(const rig& on, const nvme::dma_region& memory, const own_command& ask) {
  const simt::device_array<own_answer> answer(1);
  simt::launch({.grid = 1, .block = 32}, run_own{queue_of(on), memory.layout(), ask, answer.get()});
  return answer.read_one();
}
bool has_ended(const rig& on, const nvme::ticket& ticket) {
  const simt::device_array<std::uint32_t> ended(1);
  simt::launch({.grid = 1, .block = 32}, look_ended{queue_of(on), ticket, ended.get()});
  return ended.read_one() == 1;
}
std::uint32_t free_records(const rig& on) {
  const nvme::queue_layout& layout = on.driver->queue(0).layout();
  std::vector<std::uint64_t> words((layout.nrecords + 63) / 64);
  simt::this_platform().copy_from_device(words.data(), layout.free_records, words.size() * 8);
  std::uint32_t n = 0;
  for (const std::uint64_t word : words) n += static_cast<std::uint32_t>(__builtin_popcountll(word));
  return n;
}
template <class Condition>
bool soon(Condition holds) {
  for (int i = 0; i < 15'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(nvme_recovery, a_command_that_is_late_is_given_up_and_its_record_comes_back_with_its_completion) {
  rig on({.nblocks = 64}, quiet());
  on.soft.add({.does = soft_fault::what::delay, .opcode = 2, .delay_ns = 20 * short_ns});
  std::vector<std::byte> bytes(512);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .timeout_ns = short_ns}, bytes), -ETIMEDOUT);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(free_records(on), 14u);
  const std::uint64_t completions = on.soft.done().completions;
  EXPECT_TRUE(soon([&] { return on.soft.done().completions > completions; }));
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(free_records(on), 15u);
  EXPECT_EQ(on.driver->recover(), 0u);
}

TEST(nvme_recovery, a_command_that_the_controller_has_still_is_aborted) {
  rig on({.nblocks = 64}, watchful(1));
  on.soft.add({.does = soft_fault::what::delay, .opcode = 2, .delay_ns = patient_ns});
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .timeout_ns = short_ns}, bytes), -ETIMEDOUT);
  EXPECT_TRUE(soon([&] {
    EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
    return free_records(on) == 15;
  }));
  EXPECT_EQ(on.driver->done().aborts, 1u);
  EXPECT_EQ(on.driver->done().resets, 0u);
}

TEST(nvme_recovery, a_completion_that_is_lost_takes_its_queue_with_it) {
  rig on({.nblocks = 64}, quiet());
  on.soft.add({.does = soft_fault::what::lose, .opcode = 1});
  std::vector<std::byte> bytes = random_bytes(512, 9);
  EXPECT_EQ(call_one(on, {.what = block_op::write, .nblocks = 1, .lba = 3, .timeout_ns = short_ns}, bytes), -ETIMEDOUT);
  EXPECT_EQ(on.driver->recover(), 1u);
  EXPECT_EQ(on.driver->recover(), 0u);
  EXPECT_EQ(on.driver->done().deletions, 1u);
  EXPECT_EQ(on.driver->done().resets, 0u);
  std::vector<std::byte> read(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 3}, read), 512);
  EXPECT_TRUE(read == bytes);
  EXPECT_EQ(free_records(on), 15u);
}

TEST(nvme_recovery, a_controller_that_deletes_no_queue_is_reset) {
  nvme::controller_options impatient = quiet();
  impatient.admin_timeout_ns = 1'000'000'000;
  rig on({.nblocks = 64}, impatient);
  on.soft.add({.does = soft_fault::what::lose, .opcode = 2});
  on.soft.add({.does = soft_fault::what::lose, .opcode = 0x100});
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .timeout_ns = short_ns}, bytes), -ETIMEDOUT);
  EXPECT_EQ(on.driver->recover(), 1u);
  EXPECT_EQ(on.driver->done().resets, 1u);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(free_records(on), 15u);
}

// Else the next answer would be taken for the one that never came.
TEST(nvme_recovery, an_admin_command_that_is_lost_resets_the_controller) {
  nvme::controller_options impatient = quiet();
  impatient.admin_timeout_ns = 300'000'000;
  rig on({.nblocks = 64, .nnamespaces = 2}, impatient);
  on.soft.add({.does = soft_fault::what::lose, .opcode = 0x106});
  EXPECT_THROW((void)on.driver->namespaces(), std::system_error);
  EXPECT_EQ(on.driver->done().resets, 1u);
  const std::vector<nvme::namespace_facts> all = on.driver->namespaces();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].nblocks, 64u);
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
}

TEST(nvme_recovery, a_controller_that_has_failed_is_reset) {
  rig on({.nblocks = 64}, watchful(1));
  on.soft.fail();
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(on.driver->done().resets, 1u);
}

// As the system does by a function's reset. No command of it waits for an abort.
TEST(nvme_recovery, a_controller_that_others_reset_is_made_ready_again) {
  rig on({.nblocks = 64}, watchful(1));
  on.soft.write32(0x14, 0);  // CC.EN
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (on.driver->done().resets == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(on.driver->done().resets, 1u);
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
  EXPECT_EQ(on.driver->done().resets, 1u);
  EXPECT_EQ(on.driver->done().aborts, 0u);
}

TEST(nvme_recovery, a_controller_that_is_gone_or_does_not_stop_is_an_error_at_once) {
  for (const bool gone : {true, false}) {
    rig on({.nblocks = 64, .ready_halves = 1}, watchful(1));
    if (gone) {
      on.soft.unplug();
    } else {
      on.soft.never_disable();
      on.soft.fail();
    }
    std::vector<std::byte> bytes(512);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), -ENODEV);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_TRUE(on.driver->done().dead);
    EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), -ENODEV);
    EXPECT_EQ(on.driver->recover(), 0u);
  }
}

// What is stuck moves its bytes as late as it may: right before the reset. Nothing of it comes afterwards, when the memory is used
// again.
TEST(nvme_recovery, memory_of_a_command_is_used_again_only_when_its_queue_has_ended) {
  rig on({.nblocks = 64}, quiet(4));
  on.soft.write_image(0, random_bytes(64 * 512, 1));
  const auto memory = on.driver->make_memory(4096);
  on.soft.add({.does = soft_fault::what::stick, .opcode = 2, .times = 2});
  const own_answer first = run_own_command(on, *memory, {.lba = 5, .timeout_ns = short_ns});
  EXPECT_EQ(first.status, -ETIMEDOUT);
  EXPECT_FALSE(has_ended(on, first.ticket));
  // Its record is nobody else's: of the buffers, too.
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 6, .timeout_ns = short_ns}, bytes), -ETIMEDOUT);
  EXPECT_EQ(free_records(on), 1u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 7}, bytes), 512);
  EXPECT_EQ(free_records(on), 1u);
  on.soft.move_stuck();
  EXPECT_EQ(std::memcmp(memory->data(), random_bytes(64 * 512, 1).data() + 5 * 512, 512), 0);
  EXPECT_FALSE(has_ended(on, first.ticket));
  EXPECT_EQ(on.driver->recover(), 2u);
  EXPECT_TRUE(has_ended(on, first.ticket));
  EXPECT_EQ(free_records(on), 3u);
  const std::vector<std::byte> marks(4096, std::byte{0xaa});
  std::memcpy(memory->data(), marks.data(), 4096);
  on.soft.move_stuck();
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1, .lba = 7}, bytes), 512);
  EXPECT_EQ(std::memcmp(memory->data(), marks.data(), 4096), 0);
}

TEST(nvme_recovery, a_record_that_was_used_again_has_ended_for_who_gave_it_up) {
  rig on({.nblocks = 64}, quiet(2));  // one record
  const auto memory = on.driver->make_memory(4096);
  on.soft.add({.does = soft_fault::what::stick, .opcode = 2});
  const own_answer first = run_own_command(on, *memory, {.timeout_ns = short_ns});
  EXPECT_EQ(first.status, -ETIMEDOUT);
  const own_answer none = run_own_command(on, *memory, {.timeout_ns = short_ns});
  EXPECT_EQ(none.submitted, 0) << "there is no record";
  on.driver->reset();
  EXPECT_TRUE(has_ended(on, first.ticket));
  on.soft.add({.does = soft_fault::what::stick, .opcode = 2});
  const own_answer second = run_own_command(on, *memory, {.timeout_ns = short_ns});
  EXPECT_EQ(second.ticket.record, first.ticket.record);
  EXPECT_TRUE(has_ended(on, first.ticket));
  EXPECT_FALSE(has_ended(on, second.ticket));
}

// Fills the device until the host says so.
struct fill_device {
  std::uint32_t* go;
  std::uint32_t* nblocks;

  GPUFS_DEVICE void operator()() const {
    const auto warp = simt::this_warp();
    if (simt::thread_rank() == 0) simt::atomic_ref<std::uint32_t>(*nblocks).fetch_add(1, std::memory_order_relaxed);
    simt::backoff pause;
    const simt::deadline until(20'000'000'000);
    while (warp.leader() && simt::atomic_ref<std::uint32_t>(*go).load_relaxed() == 0 && !until.expired()) pause();
    warp.sync();  // none leaves before
  }
};

// Whoever waits inside a kernel for queues that are made again needs them while there is room for no other kernel.
TEST(nvme_recovery, queues_are_made_again_while_kernels_fill_the_device) {
  rig on({.nblocks = 64}, quiet());
  const simt::device_array<std::uint32_t> words(2);
  const fill_device kernel{words.get(), words.get() + 1};
  simt::launch_config all{.grid = 1, .block = 1024, .cooperative = true};
  all.grid = simt::max_cooperative_grid(all, kernel);
  std::thread filler([&] { simt::launch(all, kernel); });
  EXPECT_TRUE(soon([&] { return words.read_one(1) == all.grid; }));
  const auto begin = std::chrono::steady_clock::now();
  on.driver->reset();
  const auto took = std::chrono::steady_clock::now() - begin;
  words.write_one(1);
  filler.join();
  EXPECT_LT(took, std::chrono::seconds(10));
  EXPECT_EQ(on.driver->done().resets, 1u);
  std::vector<std::byte> bytes(512);
  EXPECT_EQ(call_one(on, {.what = block_op::read, .nblocks = 1}, bytes), 512);
}

// Each of several threads writes bytes of its own, of the same blocks; the controller fails once meanwhile.
TEST(nvme_host, threads_that_write_parts_of_the_same_blocks_lose_nothing) {
  constexpr std::size_t nthreads = 4, nbytes = 16 * 512;
  for (const bool fails : {false, true}) {
    rig on(
        {.nblocks = 64, .latency_ns = 50'000, .reorders = true},
        {.nqueues = 1, .depth = 8, .writable = true, .nhost_queues = 3, .admin_timeout_ns = patient_ns, .look_every_ns = 500'000});
    const nvme::namespace_facts space = on.driver->namespaces().at(0);
    const auto wanted = random_bytes(nbytes, 8);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < nthreads; ++t) {
      threads.emplace_back([&, t] {
        const std::size_t piece = 96;  // no whole number of pieces is a block
        for (std::size_t at = t * piece; at < nbytes; at += nthreads * piece) {
          const auto part = std::span(wanted).subspan(at, std::min(piece, nbytes - at));
          EXPECT_EQ(on.driver->write(space, at, part), 0);
          std::vector<std::byte> back(part.size());
          EXPECT_EQ(on.driver->read(space, at, back), 0);
          EXPECT_TRUE(std::equal(part.begin(), part.end(), back.begin())) << at;
        }
      });
    }
    if (fails) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      on.soft.fail();
    }
    for (std::thread& each : threads) each.join();
    std::vector<std::byte> image(nbytes);
    EXPECT_EQ(on.driver->read(space, 0, image), 0);
    EXPECT_TRUE(image == wanted);
    EXPECT_EQ(on.driver->done().resets, fails ? 1u : 0u);
  }
}

// Offsets, two pages, lists, and lists of lists, of memory whose pages lie anywhere; the controller reads what it is told by rules
// of its own.
TEST(nvme_prps, tell_of_all_bytes_and_no_others) {
  rig on({.nblocks = 10240, .mdts = 10}, quiet());
  const std::vector<std::byte> image = random_bytes(10240 * 512, 4);
  on.soft.write_image(0, image);
  const auto memory = on.driver->make_memory(5 << 20);
  const std::vector<std::byte> marks(memory->nbytes(), std::byte{0xee});
  std::mt19937_64 random(4);
  for (const std::uint32_t nblocks : {1u, 7u, 8u, 9u, 16u, 17u, 100u, 4088u, 4096u, 4097u, 4104u, 4105u, 8184u, 8192u}) {
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{3584}, std::uint64_t{4092}}) {
      SCOPED_TRACE(std::to_string(nblocks) + " blocks at " + std::to_string(at));
      const std::uint64_t offset = random() % 16 * 4096 + at, lba = random() % (10240 - nblocks), nbytes = nblocks * 512ull;
      std::memcpy(memory->data(), marks.data(), marks.size());
      const own_answer got = run_own_command(on, *memory, {lba, nblocks, offset, nbytes});
      ASSERT_EQ(got.submitted, 1);
      ASSERT_EQ(got.status, 0);
      EXPECT_EQ(std::memcmp(memory->data() + offset, image.data() + lba * 512, nbytes), 0);
      EXPECT_EQ(std::memcmp(memory->data(), marks.data(), offset), 0);
      EXPECT_EQ(std::memcmp(memory->data() + offset + nbytes, marks.data(), memory->nbytes() - offset - nbytes), 0);
    }
  }
}

TEST(nvme_prps, of_memory_that_is_not_the_regions_or_odd_are_never_sent) {
  rig on({.nblocks = 64, .mdts = 0}, quiet());
  const auto memory = on.driver->make_memory(8192);
  EXPECT_EQ(run_own_command(on, *memory, {.offset = 8192}).submitted, -EFAULT);
  EXPECT_EQ(run_own_command(on, *memory, {.offset = 7684}).submitted, -EFAULT);
  EXPECT_EQ(run_own_command(on, *memory, {.offset = ~std::uint64_t{0} - 3}).submitted, -EFAULT);
  EXPECT_EQ(run_own_command(on, *memory, {.nbytes = 0}).submitted, -EFAULT);
  EXPECT_EQ(run_own_command(on, *memory, {.offset = 2}).submitted, -EINVAL);
  EXPECT_EQ(on.soft.done().commands, 0u);
  EXPECT_EQ(free_records(on), 15u);
  EXPECT_EQ(run_own_command(on, *memory, {.offset = 7680}).submitted, 1);
}

// Lanes read and write while the controller loses completions, keeps commands, fails some, and is reset at any moment. All answer
// with the right bytes, or that time is up; a write that timed out may have come or not.
TEST(nvme_recovery, lanes_get_their_bytes_while_completions_are_lost_and_the_controller_is_reset) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr std::uint32_t nlanes = 64, ncalls = 20, share = 4;
    rig on({.nblocks = nlanes * share, .latency_ns = 200'000, .seed = seed}, watchful(2, 24));
    std::mt19937_64 random(seed);
    std::vector<std::byte> image = random_bytes(nlanes * share * 512, seed);
    on.soft.write_image(0, image);
    for (int i = 0; i < 6; ++i) {
      on.soft.add({.does = i % 3 == 0   ? soft_fault::what::lose
                           : i % 3 == 1 ? soft_fault::what::stick
                                        : soft_fault::what::fail,
                   .skip = static_cast<std::uint32_t>(random() % 100),
                   .status = 0x006});
    }
    std::vector<block_call> calls(nlanes * ncalls);
    std::vector<std::byte> bytes = random_bytes(calls.size() * 512, seed + 100);
    const std::vector<std::byte> given = bytes;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i] = {.what = random() % 2 == 0 ? block_op::read : block_op::write,
                  .nblocks = 1,
                  .lba = i / ncalls * share + random() % share,
                  .data = i * 512,
                  .timeout_ns = 1'000'000'000};
    }
    std::atomic<bool> ended{false};
    std::thread resetter([&] {
      for (int i = 0; i < 5 && !ended; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 3000));
        on.driver->reset();
      }
    });
    const std::vector<std::int64_t> answers = play<simt::tile<8>>(on.space, calls, nlanes, bytes, {.seed = seed});
    ended = true;
    resetter.join();
    EXPECT_FALSE(on.driver->done().dead);
    EXPECT_GT(on.driver->done().resets + on.driver->done().deletions, 0u);
    std::uint32_t ntimeouts = 0;
    for (std::uint32_t lane = 0; lane < nlanes; ++lane) {
      // What each block may hold: one, or after a write that timed out, two.
      std::vector<std::vector<std::vector<std::byte>>> may(share);
      for (std::uint32_t b = 0; b < share; ++b) {
        const auto begin = image.begin() + (lane * share + b) * 512;
        may[b] = {{begin, begin + 512}};
      }
      for (std::uint32_t i = lane * ncalls; i < (lane + 1) * ncalls; ++i) {
        auto& block = may[calls[i].lba % share];
        const std::vector<std::byte> now(bytes.begin() + i * 512, bytes.begin() + i * 512 + 512);
        if (answers[i] == -ETIMEDOUT) {
          ++ntimeouts;
          if (calls[i].what == block_op::write) block.push_back(now);
        } else if (calls[i].what == block_op::write) {
          ASSERT_EQ(answers[i], 512) << i;
          block = {now};
        } else {
          ASSERT_EQ(answers[i], 512) << i;
          ASSERT_TRUE(std::find(block.begin(), block.end(), now) != block.end()) << "call " << i << " reads other bytes";
        }
      }
    }
    EXPECT_LE(ntimeouts, calls.size() / 10);
    std::vector<block_call> polls(32, block_call{.what = block_op::flush});
    EXPECT_EQ(play<simt::warp>(on.space, polls, 32, bytes)[0], 0);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
