// SPDX-License-Identifier: Apache-2.0
// Groups of all sizes at one page cache, whatever its policies: each sees the bytes of the pages that it asks for, and no others.
#pragma once
#include "file/harness.hpp"
#include "gpufs/cache/detail/page_cache.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// How long a call may wait in tests where it need not.
inline constexpr std::uint64_t patient_ns = 20'000'000'000;

// Every group acquires random pages; a fill writes the page's number into the frame, a hit must read it there.
template <class Pages>
struct stress {
  const cache::cache_layout* layout;
  std::uint64_t seed;
  std::uint32_t npages;
  std::uint32_t rounds;
  std::uint32_t fail_every;  // every n-th fill fails; 0: none
  std::uint32_t* wrong;      // bytes of another page
  std::uint32_t* refused;    // unexpected errors
  std::uint32_t* failed;     // fills that were made to fail
  std::uint32_t* fills;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t warp = simt::block_rank() * simt::this_block().nwarps() + simt::warp_rank();
    if (warp % 2 == 0) {
      work(simt::this_warp(), warp * 32);
    } else {
      work(simt::this_tile<8>(), warp * 32 + simt::lane_id() / 8);
    }
  }

  template <class Group>
  GPUFS_DEVICE void work(Group group, std::uint32_t me) const {
    using role = typename Pages::role;
    const Pages pages(*layout);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::uint64_t draw = content_word(seed, me * 1000003ull + i);
      const std::uint64_t number = draw % npages;
      const cache::page_key key = cache::make_key(1, number);
      const bool fails = fail_every != 0 && (draw >> 32) % fail_every == 0;
      typename Pages::acquired got{};
      if (group.leader()) got = acquire(pages, key, me, static_cast<std::uint32_t>(draw >> 40) % 3);
      got = group.broadcast(got);
      if (got.what == role::error) {
        if (group.leader() && got.error != -EIO) add(refused);
        continue;
      }
      auto* words = reinterpret_cast<std::uint32_t*>(pages.pages().data(got.frame));
      if (got.what == role::fill) {
        for (std::uint32_t k = group.rank(); k < 128; k += group.size()) {
          simt::preempt();
          words[k] = static_cast<std::uint32_t>(number) * 128 + k;
        }
        group.sync();
        if (group.leader()) {
          add(fills);
          if (fails) add(failed);
          pages.end_fill(key, got.frame, fails ? -EIO : 0);
        }
        group.sync();
        if (fails) continue;
      }
      bool good = true;
      for (std::uint32_t k = group.rank(); k < 128; k += group.size()) {
        if (k % 16 == 0) simt::preempt();
        good = good && words[k] == static_cast<std::uint32_t>(number) * 128 + k;
      }
      if (!good) add(wrong);
      group.sync();
      if (group.leader() && !pages.unpin_checked(got.frame)) add(refused);
    }
  }

  // The ways to a page: a call that looks everywhere, and calls after a look at the frame of its choice, or in the table.
  GPUFS_DEVICE static typename Pages::acquired acquire(const Pages& pages, cache::page_key key, std::uint32_t start,
                                                       std::uint32_t way) {
    const typename Pages::timeouts limits{patient_ns, patient_ns};
    if (way == 0) return pages.acquire(key, start, limits);
    cache::frame_index at{};
    if (Pages::pin_in_choice(pages.pages(), key, at)) return {at, Pages::role::hit, 0};
    return pages.acquire_elsewhere(key, start, limits, way == 2 && !pages.has(key));
  }

  GPUFS_DEVICE static void add(std::uint32_t* counter) {
    simt::atomic_ref<std::uint32_t>(*counter).fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
