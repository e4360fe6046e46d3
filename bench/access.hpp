// SPDX-License-Identifier: Apache-2.0
// The kernels that several benches run, and how they are launched and checked: random pages and chunks of a file.
#pragma once
#include <algorithm>
#include <cstdio>

#include "device.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

GPUFS_DEVICE std::uint64_t global_warp() {
  return std::uint64_t{gpufs::simt::block_rank()} * (gpufs::simt::block_size() / 32) + gpufs::simt::warp_rank();
}

// --- Chunks of 8 KiB, added up -------------------------------------------------------------------------------------------------

inline constexpr std::uint32_t chunk_nbytes = 8192;

enum class pattern { uniform, skewed, one_page };

// Which chunk the i-th read takes. skewed: nine in ten go to the first hundredth of the file.
template <pattern How>
struct chunk_access {
  std::uint64_t nchunks, seed;

  GPUFS_HOST_DEVICE std::uint64_t chunk(std::uint64_t i) const {
    if (How == pattern::one_page) return 0;
    const std::uint64_t x = word_of(i ^ seed);
    return scaled(x, How == pattern::skewed && (x & 1023) < 922 ? nchunks / 100 + 1 : nchunks);
  }
};

template <pattern How>
struct read_chunks {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  chunk_access<How> access;
  std::uint32_t per_warp;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * (gpufs::simt::block_size() / 32) + gpufs::simt::warp_rank();
    std::uint64_t mine = 0;
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t begin = access.chunk(me * per_warp + i) * chunk_nbytes;
      for (std::uint32_t done = 0; done < chunk_nbytes;) {
        gpufs::page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(begin + (How == pattern::one_page ? 0 : done)));
        if (page.error() != 0) {
          if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
          break;
        }
        const std::uint32_t left = chunk_nbytes - done;
        const std::uint32_t n = page.nbytes() < left ? page.nbytes() : left;
        mine += sum_of(page.data(), n, warp.rank(), warp.size());
        gpufs::unmap_page(warp, page);
        done += n;
      }
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// Reads the file once, in order, so that it is in the cache.
struct read_all {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t npages;
  std::uint32_t page_nbytes;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    std::uint64_t mine = 0;
    for (std::uint64_t p = global_warp(); p < npages; p += warps) {
      gpufs::page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(p * page_nbytes));
      if (page.error() != 0) {
        if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
        continue;
      }
      mine += sum_of(page.data(), page.nbytes(), warp.rank(), warp.size());
      gpufs::unmap_page(warp, page);
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

struct checked_run {
  double seconds;
  bool right;
};

// Launches make(sum, failed) and compares its sum.
template <class Make, class Launch>
checked_run run_checked(const shape& how, std::uint64_t expected, const Make& make, Launch&& launch) {
  const device_array<std::uint64_t> found(2);
  const double seconds = launch(how, make(found.get(), found.get() + 1));
  const auto values = found.values();
  if (values[0] != expected || values[1] != 0) {
    std::printf("WRONG: sum %llu, expected %llu; %llu failed\n", static_cast<unsigned long long>(values[0]),
                static_cast<unsigned long long>(expected), static_cast<unsigned long long>(values[1]));
  }
  return {seconds, values[0] == expected && values[1] == 0};
}

template <class Make>
checked_run run_checked(const shape& how, std::uint64_t expected, const Make& make) {
  return run_checked(how, expected, make, [](const shape& s, const auto& kernel) { return run(s, kernel); });
}

// What a launch that reads the chunks of accesses 0 .. total-1 must add up to.
template <pattern How>
std::uint64_t expected_sum(const chunk_access<How>& access, std::uint64_t total, const std::vector<std::uint64_t>& chunk_sums) {
  return sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = begin; i < end; ++i) sum += chunk_sums[access.chunk(i)];
    return sum;
  });
}

// --- Random pages, compared ---------------------------------------------------------------------------------------------------

struct page_access {
  std::uint64_t npages, seed;
  GPUFS_HOST_DEVICE std::uint64_t page(std::uint64_t i) const { return scaled(word_of(i ^ seed), npages); }
};

struct wrong_or_failed {
  std::uint64_t wrong, failed;
};

// Compares the first nwords 8-byte words at `offset` of the file; the lanes share them.
template <class Group>
GPUFS_DEVICE void compare(Group group, const std::byte* data, std::uint64_t offset, std::uint32_t nwords, wrong_or_failed* counts) {
  for (std::uint32_t w = group.rank(); w < nwords; w += group.size()) {
    if (reinterpret_cast<const std::uint64_t*>(data)[w] != word_of(offset / 8 + w)) {
      atomic_ref<std::uint64_t>(counts->wrong).add_relaxed(1);
    }
  }
}

// Each warp brings in per_warp random pages, by map_page (Map) or by pread of the whole page into its own page of `scratch`.
template <bool Map>
struct read_random {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t page_nbytes, per_warp;
  std::uint32_t nwords;  // of each page that are compared: 32 while it is timed, else all
  std::byte* scratch;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t me = global_warp();
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t offset = access.page(me * per_warp + i) * page_nbytes;
      bool right = false;
      if constexpr (Map) {
        gpufs::page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(offset));
        right = page.error() == 0 && page.nbytes() == page_nbytes;
        if (right) compare(warp, page.data(), offset, nwords, counts);
        if (page.error() == 0) gpufs::unmap_page(warp, page);
      } else {
        std::byte* mine = scratch + me * page_nbytes;
        right = gpufs::pread(warp, file, mine, page_nbytes, static_cast<std::int64_t>(offset)) == page_nbytes;
        if (right) compare(warp, mine, offset, nwords, counts);
        warp.sync();
      }
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
    }
  }
};

// How launches of one kind went.
struct random_reads {
  std::vector<double> missed, read;  // pages a second, a launch each
  bool right = true;
  gpufs::mount_counters counters{};  // of all timed launches: hits, faults, allocations, evictions
};

inline gpufs::mount_counters difference(const gpufs::mount_counters& after, const gpufs::mount_counters& before) {
  gpufs::mount_counters d = after;
  d.hits -= before.hits;
  d.faults -= before.faults;
  d.waits -= before.waits;
  d.errors -= before.errors;
  d.allocations -= before.allocations;
  d.evictions -= before.evictions;
  return d;
}

inline bool told(const wrong_or_failed& counts) {
  if (counts.wrong == 0 && counts.failed == 0) return true;
  std::printf("WRONG: %llu words, %llu calls\n", static_cast<unsigned long long>(counts.wrong),
              static_cast<unsigned long long>(counts.failed));
  return false;
}

// Reads about `reads` random pages a launch: one launch that fills the cache, `repeats` timed ones, and one that compares every
// byte. launch(shape, kernel) gives the seconds. No two launches read the same pages in the same order, nor do two salts.
template <bool Map, class Launch>
random_reads measure_random(const gpufs::mount& fs, gpufs::file_number number, const shape& how, std::uint64_t npages, double reads,
                            int repeats, Launch&& launch, std::uint64_t salt = 0) {
  const std::uint32_t page_nbytes = fs.options().page_nbytes;
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(reads / static_cast<double>(how.warps())));
  const double total = static_cast<double>(how.warps()) * per_warp;
  const device_array<std::byte> scratch(Map ? 1 : how.warps() * page_nbytes);
  random_reads result;
  for (int r = 0; r <= repeats + 1; ++r) {
    const device_array<wrong_or_failed> counts(1);
    const bool verify = r == repeats + 1;
    const page_access access{npages, word_of(salt * 1000 + static_cast<std::uint64_t>(r) * 2 + Map + 1)};
    const gpufs::mount_counters before = fs.counters();
    const double seconds =
        launch(how, read_random<Map>{fs.ref(), number, access, page_nbytes, verify ? (per_warp + 3) / 4 : per_warp,
                                     verify ? page_nbytes / 8 : std::min(page_nbytes / 8, 32u), scratch.get(), counts.get()});
    const gpufs::mount_counters d = difference(fs.counters(), before);
    result.right = told(counts.value()) && result.right;
    if (r == 0 || verify) continue;
    result.missed.push_back(static_cast<double>(d.faults) / seconds);
    result.read.push_back(total / seconds);
    result.counters += d;
    result.counters.allocations += d.allocations;
    result.counters.evictions += d.evictions;
  }
  return result;
}

inline std::vector<double> times(std::vector<double> values, double factor) {
  for (double& v : values) v *= factor;
  return values;
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
