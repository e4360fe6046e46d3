// SPDX-License-Identifier: Apache-2.0
// Copies at all alignments and sizes, wide loads, shared memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

struct job {
  std::uint32_t dst_offset, src_offset, nbytes;
};
constexpr std::uint32_t room = 4608;  // bytes of dst for each job; what a job does not write stays zero

std::vector<job> all_jobs() {
  std::vector<job> jobs;
  constexpr std::uint32_t sizes[] = {0, 1, 3, 4, 7, 15, 16, 17, 31, 64, 100, 511, 512, 2055, 4096};
  const unsigned step = effort == 1 ? 3 : 1;
  for (std::uint32_t to = 0; to < 17; to += step) {
    for (std::uint32_t from = 0; from < 17; from += step) {
      for (const std::uint32_t n : sizes) jobs.push_back({to, from, n});
    }
  }
  return jobs;
}

GPUFS_DEVICE unsigned group_index(thread) { return thread_rank(); }
template <unsigned N>
GPUFS_DEVICE unsigned group_index(tile<N>) {
  return thread_rank() / N;
}
GPUFS_DEVICE unsigned group_index(block) { return 0; }

template <class Group>
struct copy_kernel {
  const job* jobs;
  unsigned njobs;
  unsigned char* dst;
  const unsigned char* src;
  bool from_host;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const unsigned per_block = block_size() / group.size();
    for (unsigned i = block_rank() * per_block + group_index(group); i < njobs; i += grid_size() * per_block) {
      unsigned char* to = dst + std::size_t{i} * room + jobs[i].dst_offset;
      const unsigned char* from = src + jobs[i].src_offset;
      if (from_host) {
        if (copy_from_host(group, to, from, jobs[i].nbytes) != 0) atomic_ref<unsigned>(*errors).add_relaxed(1);
      } else {
        copy_bytes(group, to, from, jobs[i].nbytes);
      }
      // Every member sees the whole copy.
      for (unsigned b = (group.rank() * 37) % 64; b < jobs[i].nbytes; b += 997) {
        if (to[b] != from[b]) atomic_ref<unsigned>(*errors).add_relaxed(1);
      }
    }
  }
};

template <class Group>
void check_copies() {
  const std::vector<job> host_jobs = all_jobs();
  const device_array<job> jobs(host_jobs);
  pinned_array<unsigned char> pinned(8192);
  std::vector<unsigned char> pattern(8192);
  for (unsigned i = 0; i < 8192; ++i) pinned[i] = pattern[i] = static_cast<unsigned char>(scramble(i) | 1);
  const device_array<unsigned char> device_source(pattern);
  for (const bool from_host : {true, false}) {
    device_array<unsigned char> dst(host_jobs.size() * room);
    device_array<unsigned> errors(1);
    launch({.grid = 4, .block = 64}, copy_kernel<Group>{jobs.get(), static_cast<unsigned>(host_jobs.size()), dst.get(),
                                                        from_host ? pinned.get() : device_source.get(), from_host, errors.get()});
    EXPECT_EQ(errors.read_one(), 0u);
    const auto found = dst.read();
    for (std::size_t i = 0; i < host_jobs.size(); ++i) {
      const job& j = host_jobs[i];
      for (std::uint32_t b = 0; b < room; ++b) {
        const bool inside = b >= j.dst_offset && b < j.dst_offset + j.nbytes;
        const unsigned char expected = inside ? pattern[b - j.dst_offset + j.src_offset] : 0;
        ASSERT_EQ(found[i * room + b], expected)
            << "byte " << b << " of dst+" << j.dst_offset << " src+" << j.src_offset << " nbytes " << j.nbytes;
      }
    }
  }
}

TEST(copies, by_a_thread) { check_copies<thread>(); }
TEST(copies, by_a_tile) { check_copies<tile<4>>(); }
TEST(copies, by_a_warp) { check_copies<warp>(); }
TEST(copies, by_a_block) { check_copies<block>(); }

template <class Group>
struct zero_kernel {
  const job* jobs;
  unsigned njobs;
  unsigned char* dst;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const unsigned per_block = block_size() / group.size();
    for (unsigned i = block_rank() * per_block + group_index(group); i < njobs; i += grid_size() * per_block) {
      zero_bytes(group, dst + std::size_t{i} * room + jobs[i].dst_offset, jobs[i].nbytes);
    }
  }
};
template <class Group>
void check_zeros() {
  const std::vector<job> host_jobs = all_jobs();
  const device_array<job> jobs(host_jobs);
  const device_array<unsigned char> dst(std::vector<unsigned char>(host_jobs.size() * room, 1));
  launch({.grid = 4, .block = 64}, zero_kernel<Group>{jobs.get(), static_cast<unsigned>(host_jobs.size()), dst.get()});
  const auto found = dst.read();
  for (std::size_t i = 0; i < host_jobs.size(); ++i) {
    const job& j = host_jobs[i];
    for (std::uint32_t b = 0; b < room; ++b) {
      const bool inside = b >= j.dst_offset && b < j.dst_offset + j.nbytes;
      ASSERT_EQ(found[i * room + b], inside ? 0 : 1) << "byte " << b << " of " << j.nbytes << " from " << j.dst_offset << " on";
    }
  }
}
TEST(zeros, are_set_by_a_thread) { check_zeros<thread>(); }
TEST(zeros, are_set_by_a_tile) { check_zeros<tile<4>>(); }
TEST(zeros, are_set_by_a_block) { check_zeros<block>(); }

// Every group copies pages of several sizes to one place, or to two.
constexpr unsigned nsizes = 4;
GPUFS_HOST_DEVICE constexpr std::uint32_t size_of_page(std::size_t i) { return i == 0 ? 16 : i == 1 ? 512 : i == 2 ? 1040 : 4096; }
template <class Group>
struct copy_page_kernel {
  unsigned char *to, *also;  // a page of 4096 bytes for each group and size
  const unsigned char* src;
  bool twice;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const std::size_t ngroups = block_size() / group.size(), me = block_rank() * ngroups + group_index(group);
    for (std::size_t i = me * nsizes; i < (me + 1) * nsizes; ++i) {
      const int error = copy_page_from_host(group, to + i * 4096, twice ? also + i * 4096 : nullptr, src, size_of_page(i % nsizes));
      if (error != 0) atomic_ref<unsigned>(*errors).add_relaxed(1);
    }
  }
};

template <class Group>
void check_page_copies() {
  constexpr unsigned nblocks = 2, nthreads = 64;
  const std::size_t npages = nblocks * nthreads * nsizes;  // enough for groups of one thread
  pinned_array<unsigned char> pinned(4096);
  for (unsigned i = 0; i < 4096; ++i) pinned[i] = static_cast<unsigned char>(scramble(i) | 1);
  for (const bool twice : {false, true}) {
    device_array<unsigned char> to(npages * 4096), also(npages * 4096);
    device_array<unsigned> errors(1);
    launch({.grid = nblocks, .block = nthreads}, copy_page_kernel<Group>{to.get(), also.get(), pinned.get(), twice, errors.get()});
    EXPECT_EQ(errors.read_one(), 0u);
    const auto one = to.read(), other = also.read();
    const std::size_t written = nblocks * nthreads / Group::size() * nsizes;
    for (std::size_t i = 0; i < npages * 4096; ++i) {
      const std::size_t copy = i / 4096, b = i % 4096;
      const bool inside = copy < written && b < size_of_page(copy % nsizes);
      ASSERT_EQ(one[i], inside ? pinned[b] : 0) << "byte " << b << " of copy " << copy;
      ASSERT_EQ(other[i], inside && twice ? pinned[b] : 0) << "byte " << b << " of the second place of copy " << copy;
    }
  }
}

TEST(page_copies, by_a_thread) { check_page_copies<thread>(); }
TEST(page_copies, by_a_tile) { check_page_copies<tile<4>>(); }
TEST(page_copies, by_a_warp) { check_page_copies<warp>(); }

struct wide_kernel {
  const unsigned char* device;
  const unsigned char* host;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const vec16 a = load_relaxed_16(device + 16 * thread_rank());
    const vec16 b = load_host_16(host + 16 * thread_rank());
    const vec16 kept = load_kept_16(device + 16 * thread_rank());
    const vec16 wider = load_kept_16<scope::system>(device + 16 * thread_rank());
    unsigned bad = 0;
    for (unsigned i = 0; i < 4; ++i) {
      bad += a.word[i] != (4 * thread_rank() + i) * 0x01010101u;
      bad += b.word[i] != a.word[i];
      bad += kept.word[i] != a.word[i] || wider.word[i] != a.word[i];
    }
    if (bad != 0) atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(memory, wide_loads) {
  std::vector<unsigned char> bytes(16 * 32);
  pinned_array<unsigned char> pinned(16 * 32);
  for (unsigned i = 0; i < bytes.size(); ++i) pinned[i] = bytes[i] = static_cast<unsigned char>(i / 4);
  const device_array<unsigned char> device(bytes);
  device_array<unsigned> errors(1);
  launch({.grid = 1, .block = 32}, wide_kernel{device.get(), pinned.get(), errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

// One warp writes entries whose last word tells of the others; another looks at them.
struct publish_entries {
  std::uint32_t* entry;
  std::uint32_t last;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    using word = atomic_ref<std::uint32_t, scope::system>;
    if (thread_rank() == 0) {
      unsigned bad = 0;
      const deadline until(60'000'000'000);
      for (std::uint32_t seen = 0; seen != last && !until.expired();) {
        const vec16 v = load_published_16(entry);
        seen = v.word[3];
        for (int i = 0; i < 3; ++i) bad += v.word[i] < seen;
      }
      *errors = bad;
    } else if (thread_rank() == 32) {
      for (std::uint32_t n = 1; n <= last; ++n) {
        for (int i = 0; i < 3; ++i) word(entry[i]).store(n, std::memory_order_relaxed);
        word(entry[3]).store(n, std::memory_order_release);
      }
    }
  }
};

TEST(memory, words_of_a_published_entry_are_no_older_than_its_last) {
  const pinned_array<std::uint32_t> entry(4);
  const device_array<unsigned> errors(std::vector<unsigned>{~0u});
  launch({.grid = 1, .block = 64}, publish_entries{entry.get(), 500 * effort, errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

// A device behind a register: a host thread, which reads what it is told of.
struct ring_registers {
  std::uint32_t* memory;
  std::uint32_t* bell;
  std::uint32_t n;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    for (std::uint32_t i = 1; i <= n; ++i) {
      atomic_ref<std::uint32_t, scope::system>(*memory).store(i, std::memory_order_relaxed);
      fence(std::memory_order_acq_rel, scope::system);
      store_register(bell, i);
    }
  }
};

TEST(memory, a_register_is_stored_after_what_a_fence_puts_before_it) {
  constexpr std::uint32_t n = 100'000 / 20 * effort;
  const pinned_array<std::uint32_t> words(64);
  bool right = true;
  std::thread rung([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (std::uint32_t seen = 0; seen != n && std::chrono::steady_clock::now() < end;) {
      seen = std::atomic_ref(words[32]).load(std::memory_order_acquire);
      right = right && std::atomic_ref(words[0]).load(std::memory_order_relaxed) >= seen;
    }
  });
  launch({.grid = 1, .block = 32}, ring_registers{words.get(), words.get() + 32, n});
  rung.join();
  EXPECT_TRUE(right);
  EXPECT_EQ(words[32], n);
}

struct wide_stores {
  unsigned char* device;
  GPUFS_DEVICE void operator()() const {
    vec16 value;
    for (unsigned i = 0; i < 4; ++i) value.word[i] = (4 * thread_rank() + i) * 0x01010101u;
    if (thread_rank() % 2 == 0) {
      store_relaxed_16(device + 32 * thread_rank(), value);
    } else {
      store_device_16(device + 32 * thread_rank(), value);
    }
  }
};

TEST(memory, wide_stores_write_16_bytes) {
  const device_array<unsigned char> device(std::vector<unsigned char>(32 * 32, 0xee));
  launch({.grid = 1, .block = 32}, wide_stores{device.get()});
  const std::vector<unsigned char> bytes = device.read();
  for (unsigned i = 0; i < bytes.size(); ++i)
    EXPECT_EQ(bytes[i], i % 32 < 16 ? static_cast<unsigned char>(i / 32 * 4 + i % 32 / 4) : 0xee) << i;
}

struct first_shared {
  std::uint32_t word[64];
};
struct alignas(32) second_shared {
  std::uint32_t word[64];
};

struct shared_kernel {
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    first_shared& a = shared<first_shared>();
    second_shared& b = shared<second_shared>();
    unsigned bad = reinterpret_cast<std::uintptr_t>(&b) % 32 != 0;
    for (unsigned round = 0; round < 3; ++round) {
      a.word[thread_rank()] = block_rank() * 1000 + thread_rank() + round;
      b.word[thread_rank()] = ~(block_rank() * 1000 + thread_rank() + round);
      this_block().sync();
      const unsigned other = (thread_rank() + 7) % block_size();
      bad += a.word[other] != block_rank() * 1000 + other + round;
      bad += shared<second_shared>().word[other] != ~(block_rank() * 1000 + other + round);
      this_block().sync();
    }
    if (bad != 0) atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(memory, shared_objects_belong_to_a_block_and_a_type) {
  device_array<unsigned> errors(1);
  launch({.grid = 40, .block = 64}, shared_kernel{errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

}  // namespace
}  // namespace gpufs::simt::test
