// SPDX-License-Identifier: Apache-2.0
// What a file's pages show of its readers: whether they want whole pages, or a little of each. docs/design/part-pages.md, "What is
// learnt"
#pragma once
#include "gpufs/cache/detail/sectors.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

// The word of a file's version: its tag (half of the word), whether its pages come in part, and a score. It is a hint, relaxed
// throughout: versions that share a word forget what was learnt of each other.
class page_uses {
 public:
  GPUFS_DEVICE page_uses(const table_storage& table, std::uint32_t cache_id)
      : word_(table.headers[table.bucket_mask + 1 + cache_id % nuses]), tag_(cache_id / nuses << tag_shift) {}

  // How a page should come that is not there, and of which its reader wants a little.
  enum class way : std::uint32_t {
    whole,
    part,
    tried,  // whole, but for what can be learnt from it: in part
  };
  GPUFS_DEVICE way of(page_key key, bool wants_begin) const {
    const std::uint32_t now = known(word_.load(std::memory_order_relaxed));
    if ((now & in_part) != 0) return way::part;
    return is_tried(key, now, wants_begin) ? way::tried : way::whole;
  }

  // A page leaves the cache, of which these sectors were there. The caller has claimed its frame.
  GPUFS_DEVICE void note_evicted(page_key key, std::uint32_t there, std::uint32_t page_shift) const {
    const std::uint32_t now = known(word_.load(std::memory_order_relaxed));
    // While pages come whole, only those that are tried tell: others may be left from when pages came in part.
    const bool tells = (now & in_part) != 0 || is_tried(key, now, false);
    if (tells && there != 0 && sectors::is_little(there, page_shift)) add(1);
  }
  // All sectors of a page have come. By sectors that takes as long as some whole pages; so this counts twice.
  GPUFS_DEVICE void note_whole() const { add(-2); }
  // A pointer has found sectors: if the page were whole, the pointer would be linked to it, and would not have asked.
  GPUFS_DEVICE void note_unlinked() const { add(-1); }
  GPUFS_DEVICE void forget() const { word_.store(tag_, std::memory_order_relaxed); }

 private:
  static constexpr unsigned tag_shift = 16;
  static constexpr std::uint32_t in_part = 1u << 8, score_mask = in_part - 1;
  static constexpr int least = -2, most = 8;  // at which pages come whole, and in part

  GPUFS_DEVICE std::uint32_t known(std::uint32_t word) const { return word >> tag_shift == tag_ >> tag_shift ? word : tag_; }
  GPUFS_DEVICE static int score_of(std::uint32_t word) { return static_cast<std::int8_t>(word & score_mask); }

  // One of 32 pages; one of 1,024 where little can be expected: whole pages were right so far, or the reader begins with the page's
  // begin, as one does that reads on. The pages of the second kind are among those of the first.
  GPUFS_DEVICE static bool is_tried(page_key key, std::uint32_t now, bool wants_begin) {
    const auto hash = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15u >> 32);
    return hash >> (score_of(now) == least || wants_begin ? 32 - 10 : 32 - 5) == 0;
  }

  // Where the score is at its end already, this is one load. One try: callers hold a bucket's lock, and evidence that is lost to
  // another's is lost by chance.
  GPUFS_DEVICE void add(int n) const {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    const std::uint32_t now = known(seen);
    const int sum = score_of(now) + n, score = sum < least ? least : sum > most ? most : sum;
    const std::uint32_t ways = score == most ? in_part : score == least ? 0 : now & in_part;
    const std::uint32_t next = tag_ | ways | (static_cast<std::uint32_t>(score) & score_mask);
    if (next != seen) word_.compare_exchange(seen, next, std::memory_order_relaxed);
  }

  word_ref<std::uint32_t> word_;
  std::uint32_t tag_;
};

// Takes an evicted page out of the table. The caller has claimed its frame, whose state was `state`.
template <class Table>
GPUFS_DEVICE void end_evicted(const cache_layout& cache, const Table& table, frame_index victim, std::uint64_t state) {
  const frames pages(cache.frames);
  const page_key key = pages.load_key(victim, state);
  if ((state & frame_state::partial) != 0) [[unlikely]]
    page_uses(cache.table, cache_id_of(key)).note_evicted(key, sectors(pages, victim).left(), pages.page_shift());
  table.erase(key, victim);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
