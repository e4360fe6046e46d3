// SPDX-License-Identifier: Apache-2.0
// Launch geometry, waiting, and the platform's memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <thread>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

struct identity {
  std::uint32_t lane, warp, thread, nthreads, block, nblocks, processor, visits;
  std::uint64_t global_warp, nwarps;
};

struct identity_kernel {
  identity* out;
  GPUFS_DEVICE void operator()() const {
    identity& me = out[block_rank() * block_size() + thread_rank()];
    me = {lane_id(),   warp_rank(),    thread_rank(), block_size(),       block_rank(),
          grid_size(), processor_id(), me.visits + 1, global_warp_rank(), global_warp_count()};
  }
};

TEST(launch, runs_every_thread_once) {
  for (const unsigned grid : {1u, 3u, 37u}) {
    for (const unsigned threads : {32u, 160u, 1024u}) {
      if (effort == 1 && grid * threads > 2000) continue;
      device_array<identity> out(grid * threads);
      launch({.grid = grid, .block = threads}, identity_kernel{out.get()});
      const auto found = out.read();
      for (unsigned b = 0; b < grid; ++b) {
        for (unsigned t = 0; t < threads; ++t) {
          const identity& i = found[b * threads + t];
          ASSERT_EQ(i.lane, t % 32);
          ASSERT_EQ(i.warp, t / 32);
          ASSERT_EQ(i.thread, t);
          ASSERT_EQ(i.nthreads, threads);
          ASSERT_EQ(i.block, b);
          ASSERT_EQ(i.nblocks, grid);
          ASSERT_LT(i.processor, 4096u);
          ASSERT_EQ(i.visits, 1u);
          ASSERT_EQ(i.global_warp, (b * threads + t) / 32);
          ASSERT_EQ(i.nwarps, grid * threads / 32);
        }
      }
    }
  }
}

struct nothing_kernel {
  GPUFS_DEVICE void operator()() const {}
};

TEST(launch, refuses_what_no_machine_runs) {
  for (const unsigned threads : {0u, 1u, 31u, 33u, 48u, 1025u, 1056u}) {
    EXPECT_THROW(launch({.grid = 1, .block = threads}, nothing_kernel{}), launch_error) << threads;
  }
  EXPECT_THROW(launch({.grid = 0, .block = 32}, nothing_kernel{}), launch_error);
  EXPECT_NO_THROW(launch({.grid = 1, .block = 32}, nothing_kernel{}));
}

struct count_kernel {
  unsigned* count;
  GPUFS_DEVICE void operator()() const { atomic_ref<unsigned>(*count).add_relaxed(1); }
};

TEST(launch, with_bounds) {
  device_array<unsigned> count(1);
  launch<128>({.grid = 2, .block = 128}, count_kernel{count.get()});
  launch<128, 4>({.grid = 1, .block = 32}, count_kernel{count.get()});
  EXPECT_EQ(count.read_one(), 288u);
  const stream on;
  launch<64, 1>({.grid = 1, .block = 64}, count_kernel{count.get()}, on);
  on.wait();
  EXPECT_EQ(count.read_one(), 352u);
  for (const bool waits : {true, false}) {
    try {
      if (waits) {
        launch<128>({.grid = 1, .block = 160}, count_kernel{count.get()});
      } else {
        launch<128>({.grid = 1, .block = 160}, count_kernel{count.get()}, on);
      }
      ADD_FAILURE() << "a block larger than the bounds ran";
    } catch (const launch_error& e) {
      EXPECT_STREQ(e.what(), "the kernel is compiled for blocks of at most 128 threads, not 160");
    }
  }
  on.wait();
  EXPECT_EQ(count.read_one(), 352u);
}

// Waits for the host's word (0: for none), then notes which launch it was.
struct turn_kernel {
  std::uint32_t* go;
  std::uint32_t* log;  // how many, then which
  std::uint32_t which;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    backoff wait;
    const deadline end(20'000'000'000);
    while (atomic_ref<std::uint32_t, scope::system>(*go).load(std::memory_order_acquire) < which && !end.expired()) wait();
    const std::uint32_t n = log[0];  // nobody else's: one launch runs after another
    log[1 + n] = end.expired() ? ~0u : which;
    log[0] = n + 1;
  }
};

TEST(stream, runs_launches_in_order_while_the_host_goes_on) {
  constexpr std::uint32_t nlaunches = 20;
  pinned_array<std::uint32_t> go(1);
  device_array<std::uint32_t> log(nlaunches + 1), other_log(2);
  {
    const stream on, other;
    for (std::uint32_t i = 1; i <= nlaunches; ++i) {
      launch({.grid = 1, .block = 32}, turn_kernel{go.get(), log.get(), i}, on);  // returns, though no launch may end yet
    }
    // Another stream waits for none of these.
    launch({.grid = 1, .block = 32}, turn_kernel{go.get(), other_log.get(), 0}, other);
    other.wait();
    EXPECT_EQ(other_log.read(), (std::vector<std::uint32_t>{1, 0}));
    // On the CPU machine the first one may not have begun.
    EXPECT_FALSE(this_platform().is_cuda() && this_platform().is_idle());
    for (std::uint32_t i = 1; i <= nlaunches; ++i) {
      atomic_ref<std::uint32_t, scope::system>(go[0]).store(i, std::memory_order_release);
      if (i == 1) std::this_thread::yield();
    }
    on.wait();
    on.wait();  // nothing more to wait for
    EXPECT_TRUE(this_platform().is_idle());
    const std::vector<std::uint32_t> found = log.read();
    EXPECT_EQ(found[0], nlaunches);
    for (std::uint32_t i = 1; i <= nlaunches; ++i) EXPECT_EQ(found[i], i);
    launch({.grid = 1, .block = 32}, turn_kernel{go.get(), other_log.get(), 7}, on);
  }  // the end of a stream waits
  EXPECT_EQ(other_log.read_one(), 2u);
  EXPECT_THROW(launch({.grid = 0, .block = 32}, nothing_kernel{}, stream()), launch_error);
}

#if GPUFS_ON_CUDA
__global__ void plain_kernel(unsigned* count) { atomicAdd(count, 1); }

TEST(stream, with_cuda_s_own_calls) {
  device_array<unsigned> count(1);
  const stream on;
  plain_kernel<<<1, 32, 0, on.get()>>>(count.get());
  launch({.grid = 1, .block = 32}, count_kernel{count.get()}, on.get());
  ASSERT_EQ(cudaStreamSynchronize(on.get()), cudaSuccess);
  EXPECT_EQ(count.read_one(), 64u);
}
#endif

struct rendezvous_kernel {
  std::uint32_t* mine;
  std::uint32_t* other;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    atomic_ref<std::uint32_t>(*mine).store(1, std::memory_order_release);
    backoff wait;
    const deadline end(20'000'000'000);
    while (atomic_ref<std::uint32_t>(*other).load(std::memory_order_acquire) == 0) {
      if (end.expired()) {
        atomic_ref<unsigned>(*errors).add_relaxed(1);
        return;
      }
      wait();
    }
  }
};

TEST(launch, host_threads_launch_at_once) {
  device_array<std::uint32_t> flags(2);
  device_array<unsigned> errors(1);
  const auto run = [&](unsigned i) {
    launch({.grid = 1, .block = 32}, rendezvous_kernel{flags.get() + i, flags.get() + 1 - i, errors.get()});
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(errors.read_one(), 0u);
}

struct clock_kernel {
  std::uint64_t* waited_ns;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t start = clock_ns();
    const deadline soon(2'000'000), never(~std::uint64_t{0});
    backoff wait;
    while (!soon.expired()) wait();
    wait.reset();
    const std::uint64_t end = clock_ns();
    waited_ns[thread_rank()] = never.expired() || end < start ? 0 : end - start;
  }
};

TEST(wait, a_deadline_expires) {
  device_array<std::uint64_t> waited(64);
  launch({.grid = 1, .block = 64}, clock_kernel{waited.get()});
  for (const std::uint64_t ns : waited.read()) {
    EXPECT_GE(ns, 2'000'000u);
    EXPECT_LT(ns, 10'000'000'000u);
  }
}

struct sum_kernel {
  const unsigned char* bytes;
  std::size_t nbytes;
  std::uint32_t* sum;
  GPUFS_DEVICE void operator()() const {
    std::uint32_t s = 0;
    for (std::size_t i = thread_rank(); i < nbytes; i += block_size()) s += bytes[i];
    s = this_warp().reduce_add(s);
    if (this_warp().leader()) atomic_ref<std::uint32_t>(*sum).add_relaxed(s);
  }
};

TEST(platform, memory) {
  platform& p = this_platform();
  EXPECT_EQ(p.is_cuda(), GPUFS_ON_CUDA == 1);
  EXPECT_EQ(p.name(), GPUFS_ON_CUDA == 1 ? "cuda" : "cpu");
  EXPECT_GT(p.memory_nbytes(), std::size_t{1} << 28);
  EXPECT_NE(p.describe().find("machine: "), std::string::npos);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{1} << 20}) {
    void* device = p.allocate_device(n);
    void* pinned = p.allocate_pinned(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned) % 4096, 0u);
    const auto* bytes = static_cast<const unsigned char*>(pinned);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(bytes[i], 0);
    std::vector<unsigned char> in(n, 0x5c), out(n);
    p.copy_to_device(device, in.data(), n);
    p.copy_from_device(out.data(), device, n);
    EXPECT_EQ(in, out);
    p.zero_device(device, n);
    p.copy_from_device(out.data(), device, n);
    EXPECT_EQ(out, std::vector<unsigned char>(n, 0));
    p.deallocate_device(device);
    p.deallocate_pinned(pinned);
  }
  EXPECT_THROW(p.deallocate_device(p.allocate_device(std::size_t{1} << 60)), std::bad_alloc);
}

TEST(platform, registers_a_mapping) {
  constexpr std::size_t nbytes = 256 * 1024;
  const int fd = static_cast<int>(::memfd_create("simt", 0));
  ASSERT_GE(fd, 0);
  std::vector<unsigned char> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<unsigned char>(scramble(i));
  ASSERT_EQ(::pwrite(fd, bytes.data(), nbytes, 0), static_cast<ssize_t>(nbytes));
  void* map = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  std::string why;
  const void* address = this_platform().register_readonly(map, nbytes, &why);
  ASSERT_NE(address, nullptr) << why;
  device_array<std::uint32_t> sum(1);
  launch({.grid = 1, .block = 256}, sum_kernel{static_cast<const unsigned char*>(address), nbytes, sum.get()});
  std::uint32_t expected = 0;
  for (const unsigned char b : bytes) expected += b;
  EXPECT_EQ(sum.read_one(), expected);
  this_platform().unregister(map);
  ::munmap(map, nbytes);
  ::close(fd);
#if GPUFS_ON_CUDA
  EXPECT_EQ(this_platform().register_readonly(map, nbytes, &why), nullptr);  // no longer there
  EXPECT_NE(why.find("cudaError"), std::string::npos) << why;
  EXPECT_EQ(this_platform().register_readonly(map, nbytes, nullptr), nullptr);
  EXPECT_NO_THROW(launch({.grid = 1, .block = 32}, nothing_kernel{}));  // the failure has left nothing behind
#endif
}

struct echo_kernel {
  std::uint32_t* device_word;
  std::uint32_t* answer;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    atomic_ref<std::uint32_t, scope::system>(*answer).store(1, std::memory_order_release);
    backoff wait;
    const deadline end(20'000'000'000);
    while (atomic_ref<std::uint32_t, scope::system>(*device_word).load(std::memory_order_acquire) != 77 && !end.expired()) wait();
    atomic_ref<std::uint32_t, scope::system>(*answer).store(end.expired() ? 3 : 2, std::memory_order_release);
  }
};

TEST(platform, copies_while_a_kernel_runs) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the copy is a plain write beside the kernel's atomic load";
#endif
  device_array<std::uint32_t> word(1);
  pinned_array<std::uint32_t> answer(1);
  std::thread kernel([&] { launch({.grid = 1, .block = 32}, echo_kernel{word.get(), answer.get()}); });
  const auto seen = [&] { return atomic_ref<std::uint32_t, scope::system>(answer[0]).load(std::memory_order_acquire); };
  while (seen() == 0) std::this_thread::yield();
  const std::uint32_t value = 77;
  this_platform().copy_to_device(word.get(), &value, sizeof value);
  EXPECT_EQ(word.read_one(), 77u);
  kernel.join();
  EXPECT_EQ(seen(), 2u);
}

struct deadlines_kernel {
  std::uint32_t* seen;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    constexpr std::uint64_t second = 1'000'000'000, forever = ~std::uint64_t{0};
    const deadline never(forever), late(1000 * second), past(0);
    seen[0] = never.expired() || late.expired() || !past.expired();
    seen[1] = never.nearer_than(forever) || late.nearer_than(second);
    seen[2] = !past.nearer_than(0) || !past.nearer_than(forever) || !late.nearer_than(2000 * second) || !late.nearer_than(forever);
  }
};

TEST(deadlines, tell_what_is_left) {
  device_array<std::uint32_t> seen(3);
  launch({.grid = 1, .block = 32}, deadlines_kernel{seen.get()});
  EXPECT_EQ(seen.read(), (std::vector<std::uint32_t>{0, 0, 0}));
}

}  // namespace
}  // namespace gpufs::simt::test
