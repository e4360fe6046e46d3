// SPDX-License-Identifier: Apache-2.0
// Which pages were read past the cache not long ago: a page that is wanted again is worth a frame (docs/design/batches.md).
#pragma once
#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Which pages batches have read past the cache: a word for each of as many as the cache has frames, by hash. It forgets a page when
// another one takes its word, so it knows those of about as many reads as the cache has frames.
class touched_pages {
 public:
  GPUFS_HOST_DEVICE touched_pages(const cache::touched_storage& of, std::uint32_t piece)
      : words_(of.words), mask_(of.mask), piece_(number_of(piece)) {}

  // The number of a call that a kernel makes, which is a piece. One lane calls. hint: differs between groups, so that the calls
  // that they make at one time have different numbers. Nothing waits for what it counts.
  GPUFS_DEVICE static std::uint32_t begin_call(const cache::touched_storage& of, std::uint32_t hint) {
    const simt::atomic_ref<std::uint32_t> ncalls(of.words[of.mask + 32]);
    const std::uint32_t before = ncalls.load(std::memory_order_relaxed);
    ncalls.add_relaxed(1);
    return before + hint;
  }

  // Any number as a piece's, 1 to 255: 0 is of a word that is nobody's. Numbers side by side differ, and those of calls that come
  // in turns repeat in no short time.
  GPUFS_HOST_DEVICE static constexpr std::uint32_t number_of(std::uint32_t piece) { return 1 + (piece * 0x9e3779b1u >> 24) % 255; }

  // Notes that this piece of a batch reads the page. Whether an earlier one did: rows of this one that share a page prove no second
  // use of it. One lane calls.
  GPUFS_DEVICE bool note(cache::page_key key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    const std::uint32_t tag = static_cast<std::uint32_t>(hash >> 24) << 8;
    const simt::atomic_ref<std::uint32_t> word(words_[hash & mask_]);
    const std::uint32_t before = word.load(std::memory_order_relaxed);
    if (before != (tag | piece_)) word.store(tag | piece_, std::memory_order_relaxed);
    return before != 0 && (before & ~0xffu) == tag && (before & 0xff) != piece_;
  }

 private:
  std::uint32_t* words_;
  std::uint32_t mask_;   // how many words there are, a power of two, - 1
  std::uint32_t piece_;  // number_of the piece
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
