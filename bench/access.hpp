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

// Whether the first n of these are numbers below `end`, no two of them the same.
template <class Number>
bool are_distinct(std::vector<Number> all, std::uint64_t n, std::uint64_t end) {
  all.resize(n);
  std::sort(all.begin(), all.end());
  return static_cast<std::int64_t>(all.front()) >= 0 && static_cast<std::uint64_t>(all.back()) < end &&
         std::adjacent_find(all.begin(), all.end()) == all.end();
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
        gpufs::mapped_page page =
            gpufs::map_page(warp, file, static_cast<std::int64_t>(begin + (How == pattern::one_page ? 0 : done)));
        if (page.error() != 0) {
          if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
          break;
        }
        const std::uint32_t left = chunk_nbytes - done;
        const std::uint32_t n = page.nbytes() < left ? page.nbytes() : left;
        mine += sum_of(page.data(), n, warp.rank(), warp.size());
        gpufs::unmap_page(warp, std::move(page));
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
      gpufs::mapped_page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(p * page_nbytes));
      if (page.error() != 0) {
        if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
        continue;
      }
      mine += sum_of(page.data(), page.nbytes(), warp.rank(), warp.size());
      gpufs::unmap_page(warp, std::move(page));
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
  const auto values = found.read();
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

// Brings a file that fits into the cache, until a round finds everything there. total: the sum of its words.
inline void fill_cache(const gpufs::mount& fs, gpufs::file_number number, const shape& how, std::uint64_t nbytes,
                       std::uint64_t total) {
  const std::uint32_t page_nbytes = fs.options().page_nbytes;
  for (int round = 0; round < 4; ++round) {
    const std::uint64_t before = fs.counters().faults;
    const checked_run r = run_checked(how, total, [&](std::uint64_t* sum, std::uint64_t* failed) {
      return read_all{fs.ref(), number, nbytes / page_nbytes, page_nbytes, sum, failed};
    });
    if (!r.right) throw gpufs::error("the file does not read as it was written");
    if (fs.counters().faults == before) return;
  }
}

// Which of n elements the i-th access takes.
GPUFS_HOST_DEVICE std::uint64_t element_of(std::uint64_t i, std::uint64_t seed, std::uint64_t n) {
  return scaled(word_of(i ^ seed), n);
}

// Every thread maps the page of a random 4-byte element, reads the element and unmaps.
struct read_elements {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto thread = gpufs::this_thread();
    const gpufs::file file(fs, number);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    std::uint64_t mine = 0;
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      const std::uint64_t e = element_of(me * per_thread + i, seed, nelements);
      gpufs::mapped_page page = gpufs::map_page(thread, file, static_cast<std::int64_t>(e * 4));
      if (page.error() != 0) {
        atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
        continue;
      }
      mine += *reinterpret_cast<const std::uint32_t*>(page.data());
      gpufs::unmap_page(thread, std::move(page));
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// What a launch of read_elements that makes the accesses 0 .. total-1 must add up to.
inline std::uint64_t sum_of_elements(std::uint64_t total, std::uint64_t seed, std::uint64_t nelements) {
  return sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t e = element_of(i, seed, nelements);
      sum += static_cast<std::uint32_t>(word_of(e / 2) >> (e % 2 * 32));
    }
    return sum;
  });
}

// Says how a file's pages will be read, once; 1 warp.
struct advise_all {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  gpufs::advice what;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const int error = gpufs::advise(warp, gpufs::file(fs, number), 0, 0, what);
    if (error != 0 && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

// For a case that reads what is in the cache.
inline void add_hits(measurement& m, const gpufs::mount_counters& before, const gpufs::mount_counters& after) {
  const std::uint64_t hits = after.hits - before.hits, faults = after.faults - before.faults;
  m.details.insert(m.details.end(), {{"hits", static_cast<double>(hits)}, {"faults", static_cast<double>(faults)}});
  if (faults * 1000 > hits) m.cause = "not all were hits: some rings of the cache had fewer frames than pages fell to them";
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

// Compares the first nwords 8-byte words at `offset` of the file, which are words[0] and on; the lanes share them.
template <class Group, class Words>
GPUFS_DEVICE void compare_words(Group group, const Words& words, std::uint64_t offset, std::uint32_t nwords,
                                wrong_or_failed* counts) {
  for (std::uint32_t w = group.rank(); w < nwords; w += group.size()) {
    if (words[w] != word_of(offset / 8 + w)) atomic_ref<std::uint64_t>(counts->wrong).add_relaxed(1);
  }
}
template <class Group>
GPUFS_DEVICE void compare(Group group, const std::byte* data, std::uint64_t offset, std::uint32_t nwords, wrong_or_failed* counts) {
  compare_words(group, reinterpret_cast<const std::uint64_t*>(data), offset, nwords, counts);
}

enum class way { pread, map_page, pointer, array };

// A page of an array, as compare_words wants it.
struct words_from {
  gpufs::array<const std::uint64_t> of;
  std::int64_t first;
  GPUFS_DEVICE std::uint64_t operator[](std::uint32_t w) const { return of[first + w]; }
};

// Each warp brings in per_warp random pages: by map_page, by pread of the whole page into its own page of `scratch`, by moving an
// active pointer there, which it reads through, or by the elements of an array.
template <way How>
struct read_random {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t page_nbytes, per_warp;
  std::uint32_t nwords;  // of each page that are compared
  std::byte* scratch;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t me = global_warp();
    [[maybe_unused]] auto p = [&] {
      if constexpr (How == way::pointer) {
        return gpufs::map<const std::uint64_t>(warp, file);
      } else if constexpr (How == way::array) {
        return gpufs::map_array<const std::uint64_t>(warp, file);
      } else {
        return 0;  // no pointer, nor anything of one in these kernels
      }
    }();
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t offset = access.page(me * per_warp + i) * page_nbytes;
      bool right = false;
      if constexpr (How == way::pointer) {
        p += (static_cast<std::int64_t>(offset) - p.offset()) / 8;
        compare_words(warp, p, offset, nwords, counts);  // what is not to be had reads as zeros
        right = p.error() == 0;
      } else if constexpr (How == way::array) {
        compare_words(warp, words_from{p, static_cast<std::int64_t>(offset / 8)}, offset, nwords, counts);
        right = p.error() == 0;
      } else if constexpr (How == way::map_page) {
        gpufs::mapped_page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(offset));
        right = page.error() == 0 && page.nbytes() == page_nbytes;
        if (right) compare(warp, page.data(), offset, nwords, counts);
        if (page.error() == 0) gpufs::unmap_page(warp, std::move(page));
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
  d.host_reads -= before.host_reads;
  return d;
}

inline bool told(const wrong_or_failed& counts) {
  if (counts.wrong == 0 && counts.failed == 0) return true;
  std::printf("WRONG: %llu words, %llu calls\n", static_cast<unsigned long long>(counts.wrong),
              static_cast<unsigned long long>(counts.failed));
  return false;
}

// Reads about `reads` random pages a launch: one launch that fills the cache, `repeats` timed ones, and one that compares every
// byte. Of a page, 32 words are compared while it is timed, and all where it is read in place by a pointer or an array.
// launch(shape, kernel) gives the seconds. No two launches read the same pages in the same order, nor do two salts.
template <way How, class Launch>
random_reads measure_random(const gpufs::mount& fs, gpufs::file_number number, const shape& how, std::uint64_t npages, double reads,
                            int repeats, Launch&& launch, std::uint64_t salt = 0) {
  const std::uint32_t page_nbytes = fs.options().page_nbytes;
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(reads / static_cast<double>(how.warps())));
  const double total = static_cast<double>(how.warps()) * per_warp;
  const device_array<std::byte> scratch(How == way::pread ? how.warps() * page_nbytes : 1);
  random_reads result;
  for (int r = 0; r <= repeats + 1; ++r) {
    const device_array<wrong_or_failed> counts(1);
    const bool verify = r == repeats + 1;
    const bool in_place = How == way::pointer || How == way::array;
    const std::uint32_t nwords = verify || in_place ? page_nbytes / 8 : std::min(page_nbytes / 8, 32u);
    const page_access access{npages,
                             word_of(salt * 1000 + static_cast<std::uint64_t>(r) * 4 + static_cast<std::uint64_t>(How) + 1)};
    const gpufs::mount_counters before = fs.counters();
    const double seconds =
        launch(how, read_random<How>{fs.ref(), number, access, page_nbytes, verify ? (per_warp + 3) / 4 : per_warp, nwords,
                                     scratch.get(), counts.get()});
    const gpufs::mount_counters d = difference(fs.counters(), before);
    result.right = told(counts.read_one()) && result.right;
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

// Why the copy is out of reach of misses, where it is: pull_pages a second are what a kernel without a file system pulls (0: not
// known).
inline std::string bus_cause(std::uint32_t page_nbytes, double copy_gbps, double pull_pages) {
  const double share = pull_pages * page_nbytes * 1e-9 / copy_gbps;
  if (share >= 0.96 || share == 0) return "";
  return "the bus: a kernel that does nothing but copy such pages of the same mapping reaches " +
         std::to_string(static_cast<int>(std::lround(share * 1000)) / 10.).substr(0, 4) + " % of the copy";
}

// Adds the result of measure_random, where only what missed counts: as a share of the copy, and of what a kernel pulls.
struct names_of_misses {
  const char *of_copy, *of_pull;
};
inline void tell_random(const names_of_misses& names, const char* call, const std::string& where, std::uint32_t page_nbytes,
                        double copy_gbps, double pull_pages, const random_reads& r, results& out) {
  const bool in_pages = page_nbytes == 512;  // what the target of small pages counts
  measurement m{names.of_copy, std::string(call) + ", " + where, times(r.missed, in_pages ? 1e-6 : page_nbytes * 1e-9)};
  m.unit = in_pages ? "M pages/s" : "GB/s";
  m.ceiling = in_pages ? pull_pages * 1e-6 : copy_gbps;  // 0: none
  m.ceiling_is = in_pages ? "a kernel that only pulls pages" : "pinned copy";
  if (in_pages) m.figure = measurement::kind::itself;
  m.verified = r.right;
  const double missed = spread_of(r.missed).median;
  if (missed > 0.9 * pull_pages) m.cause = bus_cause(page_nbytes, copy_gbps, pull_pages);
  m.details = {{"delivered_share_of_copy", spread_of(r.read).median * page_nbytes * 1e-9 / copy_gbps},
               {"missed_share_of_pull_alone", pull_pages > 0 ? missed / pull_pages : 0},
               {"pages_per_second", missed},
               {"hits", static_cast<double>(r.counters.hits)},
               {"faults", static_cast<double>(r.counters.faults)},
               {"evictions", static_cast<double>(r.counters.evictions)}};
  out.add(m);
  if (pull_pages == 0) return;
  m.name = names.of_pull;
  m.figure = measurement::kind::share_of_ceiling;
  m.ceiling = pull_pages * (in_pages ? 1e-6 : page_nbytes * 1e-9);
  m.ceiling_is = "a kernel that only pulls pages";
  m.cause.clear();
  out.add(m);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
