// SPDX-License-Identifier: Apache-2.0
// The kernels of ActivePointers (ISCA'16, section VI), each one template over where its pointers come from: a file, or device
// memory with the same content.
#pragma once
#include <cstring>

#include "access.hpp"
#include "workloads.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

using gpufs::simt::lane_id;

// --- Where a kernel's data is ------------------------------------------------------------------------------------------------

struct raw_memory {
  const std::byte* data;

  template <class T>
  GPUFS_DEVICE const T* at(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(data + offset);
  }
};

// The same for kernels whose loop reads once a round: the compiler unrolls it for raw_memory, and has several reads in flight.
struct untiled_raw_memory : raw_memory {};

// A source for kernels that walk through it by for_each_n.
template <class Source>
struct by_walks : Source {};
template <class Source>
inline constexpr bool walks = false;
template <class Source>
inline constexpr bool walks<by_walks<Source>> = true;

// The same, and what copies it is not a kernel but the driver.
struct copied_memory : raw_memory {};

// All lanes of the warp call at() together.
struct mapped_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;

  template <class T>
  GPUFS_DEVICE auto at(std::uint64_t offset) const {
    return gpufs::map<const T>(gpufs::this_warp(), gpufs::file(fs, number), static_cast<std::int64_t>(offset));
  }
};

// No pointers: pages are had by map_page, one after the other, and read in place (in the paper, by gmmap).
struct called_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint32_t page_nbytes;
};

// --- Latency -----------------------------------------------------------------------------------------------------------------

// Cycles of the SM's clock (CPU machine: ns). No access to memory is moved across it.
GPUFS_DEVICE std::uint64_t ticks() {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t) : : "memory");
  return t;
#else
  return gpufs::simt::clock_ns();
#endif
}

// What a step does: reads where the next element is (p[i]); moves by a distance that the compiler does not know, and that is 0; or
// reads how far away the next one is, and moves there.
enum class step { read, increment, read_and_increment };

// The lanes of one warp follow the file, line by line of 128 bytes.
template <step Step, class Source>
struct chase {
  Source from;
  std::uint64_t offset;
  std::uint32_t nsteps;  // in each of two rounds, of which the second counts
  std::uint64_t* cycles;
  std::uint32_t* ends;  // an element a lane

  GPUFS_DEVICE void operator()() const {
    auto p = from.template at<std::int32_t>(offset);
    const auto begin = p;
    std::int32_t at = static_cast<std::int32_t>(lane_id());
    if constexpr (Step != step::read) p += at;
    std::uint64_t elapsed = 0;
    BENCH_NOT_UNROLLED
    for (int round = 0; round < 2; ++round) {
      const std::uint64_t start = ticks();
      for (std::uint32_t s = 0; s < nsteps; ++s) {
        if constexpr (Step == step::read) {
          at = p[at];
        } else if constexpr (Step == step::increment) {
          p += static_cast<std::ptrdiff_t>(gpufs::simt::only_here(0));
        } else {
          p += *p;
        }
      }
      elapsed = ticks() - start;
    }
    cycles[lane_id()] = elapsed;
    ends[lane_id()] = static_cast<std::uint32_t>(Step == step::read ? at : p - begin);
  }
};

// --- Copy --------------------------------------------------------------------------------------------------------------------

// Four loads, a warp's width apart, before anything is done with them: for an active pointer, one check.
template <class T>
GPUFS_DEVICE gpufs::elements<T, 4> read_tile(const T* p) {
  return {{p[0], p[32], p[64], p[96]}};
}
template <class Pointer>
requires(!std::is_pointer_v<Pointer>) GPUFS_DEVICE auto read_tile(const Pointer& p) { return p.template read_tile<4>(32); }

template <class T, class Source>
struct copy_parts {
  static constexpr unsigned step = 4 * gpufs::simt::warp_lanes;  // elements
  Source from;
  T* to;
  std::uint32_t nsteps;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t first = global_warp() * nsteps * step;
    auto p = from.template at<T>(first * sizeof(T));
    p += lane_id();
    T* q = to + first + lane_id();
    for (std::uint32_t i = 0; i < nsteps; ++i) {
      const auto tile = read_tile(p);
      for (unsigned k = 0; k < 4; ++k) q[k * 32] = tile[k];
      p += step;
      q += step;
    }
  }
};

// Device memory with the content of a file; or counts where it differs.
struct fill_words {
  std::uint64_t* words;
  std::uint64_t nwords;
  std::uint64_t* wrong;  // nullptr: write

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::uint64_t n = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    for (std::uint64_t i = me; i < nwords; i += n) {
      if (wrong == nullptr) {
        words[i] = word_of(i);
      } else if (words[i] != word_of(i)) {
        atomic_ref<std::uint64_t>(*wrong).add_relaxed(1);
      }
    }
  }
};

// --- Workloads ---------------------------------------------------------------------------------------------------------------

template <class T, class Work, class Source>
struct work_on_parts {
  static constexpr unsigned nwords = sizeof(T) / 4;
  Source from;
  std::uint64_t begin, begin_of_second;  // bytes
  std::uint32_t nsteps;
  typename Work::value* sums;  // an element a thread

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t mine = global_warp() * nsteps * (32 * sizeof(T));
    typename Work::value sum{};
    if constexpr (std::is_same_v<Source, called_file>) {
      const std::uint64_t part = std::uint64_t{nsteps} * (32 * sizeof(T));  // whole pages
      for (std::uint64_t done = 0; done < part; done += from.page_nbytes) add_pages(sum, mine + done);
    } else {
      add_parts(sum, mine);
    }
    sums[std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank()] = sum;
  }
  GPUFS_DEVICE void add_parts(typename Work::value& sum, std::uint64_t mine) const {
    auto p = from.template at<T>(begin + mine);
    p += lane_id();
    if constexpr (Work::of_two) {
      auto q = from.template at<T>(begin_of_second + mine);
      q += lane_id();
      if constexpr (walks<Source>) {
        gpufs::for_each_n(
            nsteps, 32, [&](const T& x, const T& y) { add_to(sum, x, y); }, p, q);
      } else {
        repeat([&] {
          add_to(sum, *p, *q);
          p += 32;
          q += 32;
        });
      }
    } else if constexpr (walks<Source>) {
      gpufs::for_each_n(
          nsteps, 32, [&](const T& x) { add_to(sum, x, x); }, p);
    } else {
      repeat([&] {
        const T x = *p;
        add_to(sum, x, x);
        p += 32;
      });
    }
  }
  GPUFS_DEVICE void add_pages(typename Work::value& sum, std::uint64_t offset) const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(from.fs, from.number);
    gpufs::mapped_page first = gpufs::map_page(warp, file, static_cast<std::int64_t>(begin + offset));
    gpufs::mapped_page<> second;
    if constexpr (Work::of_two) second = gpufs::map_page(warp, file, static_cast<std::int64_t>(begin_of_second + offset));
    if (first.error() == 0 && (!Work::of_two || second.error() == 0)) {
      const auto* p = reinterpret_cast<const T*>(first.data()) + lane_id();
      const auto* q = Work::of_two ? reinterpret_cast<const T*>(second.data()) + lane_id() : p;
      for (std::uint32_t i = 0; i < from.page_nbytes / (32 * sizeof(T)); ++i) add_to(sum, p[i * 32], q[i * 32]);
    }
    if (first.error() == 0) gpufs::unmap_page(warp, std::move(first));
    if (Work::of_two && second.error() == 0) gpufs::unmap_page(warp, std::move(second));
  }
  template <class Step>
  GPUFS_DEVICE void repeat(const Step& step) const {
    if constexpr (std::is_same_v<Source, untiled_raw_memory>) {
      BENCH_NOT_UNROLLED
      for (std::uint32_t i = 0; i < nsteps; ++i) step();
    } else {
      for (std::uint32_t i = 0; i < nsteps; ++i) step();
    }
  }
  GPUFS_DEVICE static void add_to(typename Work::value& sum, const T& x, const T& y) {
    std::uint32_t xs[nwords], ys[nwords];
    std::memcpy(xs, &x, sizeof x);
    std::memcpy(ys, &y, sizeof y);
    for (unsigned w = 0; w < nwords; ++w) sum += Work::apply(xs[w], ys[w]);
  }
};

// --- Faults ------------------------------------------------------------------------------------------------------------------

// Each warp reads an element a lane of each of per_warp pages, one after the other.
template <class Source>
struct touch_pages {
  Source from;
  std::uint64_t nranges;  // of per_warp pages, in the file
  std::uint32_t page_nbytes, per_warp;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    std::uint64_t offset = global_warp() % nranges * per_warp * page_nbytes;
    std::uint64_t mine = 0;
    if constexpr (std::is_same_v<Source, called_file>) {
      const gpufs::file file(from.fs, from.number);
      for (std::uint32_t i = 0; i < per_warp; ++i, offset += page_nbytes) {
        gpufs::mapped_page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(offset));
        if (page.error() != 0) {
          if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
          continue;
        }
        mine += reinterpret_cast<const std::uint32_t*>(page.data())[warp.rank()];
        gpufs::unmap_page(warp, std::move(page));
      }
    } else {
      auto p = from.template at<std::uint32_t>(offset);
      p += lane_id();
      for (std::uint32_t i = 0; i < per_warp; ++i, p += page_nbytes / 4) mine += *p;
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// Which pages the warps of a block read: one after the other, that all lanes of the block read; one a lane, the same in each warp;
// or one a lane of each warp.
enum class pages_of_block { one, one_a_lane, own };

// What a lane reads: at each step an element of a page that nobody has read before, and no two warps the same element.
template <pages_of_block Which>
struct block_steps {
  std::uint64_t first, npages;  // how many pages were read before; of the file
  std::uint32_t nsteps;

  // Pages a step, by a block of so many warps.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t pages_a_step(std::uint32_t nwarps) {
    return Which == pages_of_block::one ? 1 : Which == pages_of_block::one_a_lane ? 32 : 32 * std::uint64_t{nwarps};
  }
  // The element's number, of 8 bytes. nwarps: of a block.
  GPUFS_HOST_DEVICE std::uint64_t element(std::uint64_t block, std::uint32_t step, std::uint32_t warp, std::uint32_t lane,
                                          std::uint32_t nwarps) const {
    constexpr std::uint64_t spread = 2654435761, elements = 4096 / 8;  // a prime: all pages come before one comes again
    const std::uint64_t in_step = Which == pages_of_block::one ? 0 : Which == pages_of_block::own ? warp * 32 + lane : lane;
    const std::uint64_t i = first + (block * nsteps + step) * pages_a_step(nwarps) + in_step;
    return i % npages * spread % npages * elements + (warp * 32 + lane) % elements;
  }
};

// Together: the block's first warp reads a page, then all warps meet, and the others read it. Else each warp goes its own way.
template <pages_of_block Which, bool Together>
struct fault_by_block {
  mapped_file from;
  block_steps<Which> steps;
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const std::uint32_t me = gpufs::simt::warp_rank(), nwarps = gpufs::simt::block_size() / 32;
    auto p = from.template at<std::uint64_t>(0);
    std::uint64_t mine = 0;
    for (std::uint32_t s = 0; s < steps.nsteps; ++s) {
      p += static_cast<std::int64_t>(steps.element(gpufs::simt::block_rank(), s, me, lane_id(), nwarps)) - p.offset() / 8;
      if (!Together || me == 0) mine += *p;
      if constexpr (Together) {
        block.sync();
        if (me != 0) mine += *p;
      }
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
