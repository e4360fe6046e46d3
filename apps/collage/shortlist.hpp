// SPDX-License-Identifier: Apache-2.0
// The images that a block of a photograph is compared with, from its keys. Host code.
#pragma once
#include <array>
#include <cstdint>

#include "apps/collage/library.hpp"
#include "apps/collage/lsh.hpp"

namespace gpufs::apps::collage {

// Ids in the order they came, each once.
class shortlist {
 public:
  void clear() {
    size_ = 0;
    slots_.fill(none);
  }
  bool full() const { return size_ == shortlist_limit; }
  std::uint32_t size() const { return size_; }
  const std::uint32_t* begin() const { return ids_.data(); }
  const std::uint32_t* end() const { return ids_.data() + size_; }
  void add(std::uint32_t id) {
    if (full()) return;
    std::uint32_t i = hash_key(id) >> 22;
    for (; slots_[i] != none; i = (i + 1) % slots_.size()) {
      if (slots_[i] == id) return;
    }
    slots_[i] = id;
    ids_[size_++] = id;
  }

 private:
  static constexpr std::uint32_t none = ~0u;
  std::array<std::uint32_t, 1024> slots_;
  std::array<std::uint32_t, shortlist_limit> ids_;
  std::uint32_t size_ = 0;
};

// Over the mapped file: reads beyond the end of one that was truncated meanwhile raise SIGBUS.
class shortlist_maker {
 public:
  explicit shortlist_maker(const library& lib) : lib_(lib) {
    for (std::uint32_t t = 0; t < ntables; ++t) tables_[t] = lib.map_table(t);
  }

  // False when a table is damaged; docs/reference/collage-library-format.md, "The shortlist".
  bool make(const std::uint32_t* keys, shortlist& list, std::uint32_t& nbuckets) const {
    const header& head = lib_.head();
    list.clear();
    for (std::uint32_t t = 0; t < ntables && !list.full(); ++t) {
      if (!add_bucket(t, keys[t], list)) return false;
    }
    nbuckets = list.size();
    for (std::uint32_t probe = 0; probe < ntables * head.key_nbits && list.size() < head.shortlist_goal; ++probe) {
      const std::uint32_t t = probe / head.key_nbits;
      if (!add_bucket(t, keys[t] ^ (1u << probe % head.key_nbits), list)) return false;
    }
    if (list.size() < head.shortlist_goal) {
      for (std::uint64_t i = 0; i < stride_sample; ++i) list.add(static_cast<std::uint32_t>(i * lib_.nimages() / stride_sample));
    }
    return true;
  }

 private:
  // Adds a bucket's images; false when the table is damaged.
  bool add_bucket(std::uint32_t table, std::uint32_t key, shortlist& list) const {
    const std::uint32_t hashed = hash_key(key);
    const mapped_table& from = tables_[table];
    const std::uint32_t cell = cell_of(hashed, lib_.head().cell_nbits);
    const std::uint32_t begin = from.directory[cell];
    const std::uint32_t end = from.directory[cell + 1];
    if (begin > end || end > from.nentries) return false;
    std::uint32_t n = 0;
    for (std::uint32_t i = begin; i < end && n < bucket_limit; ++i) {
      const table_entry e = from.entries[i];
      if (e.hashed_key != hashed) continue;
      if (e.id >= lib_.nimages()) return false;
      list.add(e.id);
      ++n;
    }
    return true;
  }

  const library& lib_;
  std::array<mapped_table, ntables> tables_;
};

}  // namespace gpufs::apps::collage
