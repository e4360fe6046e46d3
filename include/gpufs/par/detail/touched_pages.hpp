// SPDX-License-Identifier: Apache-2.0
// Which pages were read past the cache not long ago: a page that is wanted again is worth a frame (docs/design/batches.md).
#pragma once
#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Which pages batches have read past the cache: as many words as the cache has frames; a page's hash selects its word. A page is
// forgotten when another page takes its word, so the words know the pages of about as many reads as the cache has frames. A piece
// takes a word once. If it gave the word to one page after the other, none of those that share it would ever be known to a batch
// that comes again: each would find the last one's name.
class touched_pages {
 public:
  GPUFS_HOST_DEVICE touched_pages(const cache::touched_storage& of, std::uint32_t piece)
      : words_(of.words), mask_(of.mask), piece_(number_of(piece)) {}

  // Gives a number to a kernel's call, which counts as a piece. One lane calls. hint: differs between groups, so that the calls
  // that they make at one time have different numbers. Nothing waits for the counter.
  GPUFS_DEVICE static std::uint32_t begin_call(const cache::touched_storage& of, std::uint32_t hint) {
    const simt::atomic_ref<std::uint32_t> ncalls(of.words[of.mask + 32]);
    const std::uint32_t before = ncalls.load(std::memory_order_relaxed);
    ncalls.add_relaxed(1);
    return before + hint;
  }

  // Makes a piece's number, 1 to 255, of any number; 0 is in a word that no page has. Numbers side by side give different ones, and
  // the numbers of calls that come in turns do not repeat soon.
  GPUFS_HOST_DEVICE static constexpr std::uint32_t number_of(std::uint32_t piece) { return 1 + (piece * 0x9e3779b1u >> 24) % 255; }

  // Notes that this piece of a batch reads the page. Returns whether an earlier piece did: if rows of one piece share a page, that
  // proves no second use of it. Without words (src/par/measured.hpp) each page passes for one that an earlier piece read. One lane
  // calls.
  GPUFS_DEVICE bool note(cache::page_key key) const {
    if (words_ == nullptr) return true;
    std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    const std::uint32_t tag = static_cast<std::uint32_t>(hash >> 24) << 8;
    const simt::atomic_ref<std::uint32_t> word(words_[hash & mask_]);
    const std::uint32_t before = word.load(std::memory_order_relaxed);
    if ((before & 0xff) != piece_) word.store(tag | piece_, std::memory_order_relaxed);
    return before != 0 && (before & ~0xffu) == tag && (before & 0xff) != piece_;
  }

 private:
  std::uint32_t* words_;
  std::uint32_t mask_;   // how many words there are, a power of two, - 1
  std::uint32_t piece_;  // number_of the piece
};
static_assert(sizeof(touched_pages) == 16 && alignof(touched_pages) == 8);  // in arguments of kernels

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
