// SPDX-License-Identifier: Apache-2.0
// The collage's kernel, for both machines: a block of threads takes a block of the photograph from its pixels to its nearest
// library image, and reads all it needs of the library through gpufs. After SYSTOR'16, section 2.4 and algorithm 1.
//
// What it computes is written down in docs/reference/collage-library-format.md; match_cpu.cpp computes the same with plain code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "apps/collage/format.hpp"
#include "apps/collage/match.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::apps::collage {
inline namespace GPUFS_MACHINE {

// Of one photo block at a time. 32 probes (a table and a key) are looked up together, then taken over in their order.
struct match_shared {
  std::uint32_t counts[nbins];
  float histogram[nbins];
  std::int32_t reference[nfolded];
  std::int32_t centred[nfolded];
  std::uint32_t keys[ntables];
  std::uint32_t bucket_ids[32][bucket_limit];
  std::uint32_t bucket_sizes[32];
  std::uint32_t seen[512];  // hash set of the shortlist, open addressing
  std::uint32_t shortlist[shortlist_limit];
  std::uint32_t nshortlist;
  std::uint64_t best[32];  // by warp: distance, id
  struct {
    std::uint32_t cell[2];
    table_entry entries[bucket_limit];
  } staging[32];  // by warp
};

// Opens the library and keeps it open, so that the blocks' own opens ask nothing of the host.
template <class Mount>
struct open_kernel {
  Mount fs;
  const char* name;
  file_status* out;

  GPUFS_DEVICE void operator()() const {
    const auto warp = simt::this_warp();
    const auto library = open(warp, fs, name);
    const file_status got = fstat(warp, library);
    if (warp.leader()) *out = got;
  }
};

// Mount: a mount_ref, or what bench/ has in its place. A kernel that makes its calls otherwise derives from this one, has
// make_keys, look_up and compare of its own, and calls run.
template <class Mount>
struct match_kernel {
  using library_file = decltype(open(simt::this_warp(), Mount(), ""));

  Mount fs;
  const char* name;            // of the library, below the mount's root; device memory, as are the next three
  const std::uint8_t* pixels;  // as photo's
  match* matches;              // by block
  std::uint64_t* fault;        // no_fault, or what went wrong first
  std::uint32_t nblocks_x;     // photo blocks in a row
  std::uint32_t first_block;
  std::uint32_t end_block;
  std::uint32_t nimages;
  std::uint32_t histogram_stride;
  std::uint32_t key_nbits;
  std::uint32_t cell_nbits;
  std::uint32_t shortlist_goal;
  std::uint64_t histograms;  // offsets in the library
  std::uint64_t projections;
  std::uint64_t reference;
  std::uint64_t tables[ntables];
  std::uint32_t table_nentries[ntables];

  GPUFS_DEVICE void operator()() const { run(*this); }

 protected:
  template <class Self>
  GPUFS_DEVICE void run(const Self& self) const {
    match_shared& s = simt::shared<match_shared>();
    const auto block = simt::this_block();
    if (first_block + simt::block_rank() >= end_block) return;
    const library_file library = open(block, fs, name);
    if (library.error() != 0) {
      note(block, first_block + simt::block_rank(), step::opening, library.error());
      return;
    }
    const std::int64_t n = pread(block, library, s.reference, sizeof s.reference, static_cast<std::int64_t>(reference));
    int error = n == static_cast<std::int64_t>(sizeof s.reference) ? 0 : n < 0 ? static_cast<int>(n) : damaged;
    if (error != 0) note(block, first_block + simt::block_rank(), step::reference, error);
    for (std::uint32_t b = first_block + simt::block_rank(); b < end_block && error == 0; b += simt::grid_size()) {
      error = search(self, s, library, b);
    }
    error = close(block, library);
    if (error != 0) note(block, first_block + simt::block_rank(), step::closing, error);
  }

  // Not a collective.
  template <class Group>
  GPUFS_DEVICE void note(Group group, std::uint32_t block, step at, int error) const {
    if (!group.leader()) return;
    const simt::atomic_ref<std::uint64_t> word(*fault);
    const std::uint64_t mine = fault_word_of(block, at, error);
    std::uint64_t seen = word.load(std::memory_order_relaxed);
    while (mine < seen && !word.compare_exchange(seen, mine, std::memory_order_relaxed)) {
    }
  }
  GPUFS_DEVICE static std::uint64_t fault_word_of(std::uint32_t block, step at, int error) {
    return static_cast<std::uint64_t>(block) << 32 | static_cast<std::uint32_t>(at) << 16 | static_cast<std::uint32_t>(-error);
  }
  GPUFS_DEVICE static std::uint32_t popcount(std::uint32_t bits) {
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    return ((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
  }
  GPUFS_DEVICE static std::uint32_t lanes_below() { return (1u << simt::lane_id()) - 1; }
  GPUFS_DEVICE static std::uint32_t hash(std::uint32_t key) { return key * hash_multiplier; }

  // One photo block; all threads. 0, or the error that was noted (by then all threads know).
  template <class Self>
  GPUFS_DEVICE int search(const Self& self, match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    const auto block = simt::this_block();
    // Somebody failed: the picture is lost, and an error may have taken its time.
    if (block.broadcast(simt::atomic_ref<std::uint64_t>(*fault).load(std::memory_order_relaxed)) != no_fault) return -ECANCELED;

    make_histogram(s, photo_block);
    int error = self.make_keys(s, library, photo_block);
    if (block.any(error != 0)) return -ECANCELED;

    for (std::uint32_t i = simt::thread_rank(); i < 512; i += simt::block_size()) s.seen[i] = no_id;
    if (block.leader()) s.nshortlist = 0;
    error = self.look_up(s, library, photo_block, own_buckets);
    if (block.any(error != 0)) return -ECANCELED;
    merge(s, shortlist_limit);
    const std::uint32_t nbuckets = s.nshortlist;
    const std::uint32_t nprobes = ntables * key_nbits;
    for (std::uint32_t probe = 0; probe < nprobes && s.nshortlist < shortlist_goal; probe += 32) {
      error = self.look_up(s, library, photo_block, probe);
      if (block.any(error != 0)) return -ECANCELED;
      merge(s, shortlist_goal);
    }
    if (s.nshortlist < shortlist_goal) add_stride_sample(s);

    error = self.compare(s, library, photo_block);
    if (block.any(error != 0)) return -ECANCELED;
    if (block.leader()) {
      std::uint64_t best = s.best[0];
      for (std::uint32_t w = 1; w < block.nwarps(); ++w) best = s.best[w] < best ? s.best[w] : best;
      matches[photo_block] = {static_cast<std::uint32_t>(best), static_cast<std::uint32_t>(best >> 32), nbuckets, s.nshortlist};
    }
    return 0;
  }

  GPUFS_DEVICE void make_histogram(match_shared& s, std::uint32_t photo_block) const {
    const auto block = simt::this_block();
    block.sync();  // the photo block before has been read
    for (std::uint32_t i = simt::thread_rank(); i < nbins; i += simt::block_size()) s.counts[i] = 0;
    block.sync();
    const std::size_t row_nbytes = static_cast<std::size_t>(nblocks_x) * tile_side * 3;
    const std::uint8_t* corner =
        pixels + photo_block / nblocks_x * tile_side * row_nbytes + photo_block % nblocks_x * tile_side * 3;
    for (std::uint32_t i = simt::thread_rank(); i < tile_npixels; i += simt::block_size()) {
      const std::uint8_t* pixel = corner + i / tile_side * row_nbytes + i % tile_side * 3;
      for (std::uint32_t c = 0; c < 3; ++c) {
        simt::atomic_ref<std::uint32_t, simt::scope::block>(s.counts[256 * c + pixel[c]]).add_relaxed(1);
      }
    }
    block.sync();
    for (std::uint32_t i = simt::thread_rank(); i < nbins; i += simt::block_size())
      s.histogram[i] = static_cast<float>(s.counts[i]);
    for (std::uint32_t i = simt::thread_rank(); i < nfolded; i += simt::block_size()) {
      const std::uint32_t* four = s.counts + 4 * i;
      s.centred[i] = static_cast<std::int32_t>(four[0] + four[1] + four[2] + four[3]) - s.reference[i];
    }
    block.sync();
  }

  // A warp makes a table's key: lane b adds up bit b's products, a ballot of the signs is the key.
  GPUFS_DEVICE int make_keys(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    const auto warp = simt::this_warp();
    for (std::uint32_t t = simt::warp_rank(); t < ntables; t += simt::this_block().nwarps()) {
      std::int32_t sum = 0;
      for (std::uint32_t done = 0; done < projection_nbytes;) {
        mapped_page p = map_page(warp, library, static_cast<std::int64_t>(projections + t * projection_nbytes + done));
        if (p.error() != 0) {
          note(warp, photo_block, step::projections, p.error());
          return p.error();
        }
        // Pages and the section begin at multiples of 512, so a piece is whole rows of 32 weights.
        const std::uint32_t left = projection_nbytes - done;
        const std::uint32_t nrows = (p.nbytes() < left ? p.nbytes() : left) / max_key_nbits;
        const auto* weights = reinterpret_cast<const std::int8_t*>(p.data()) + simt::lane_id();
        const std::int32_t* centred = s.centred + done / max_key_nbits;
        for (std::uint32_t i = 0; i < nrows; ++i) sum += weights[i * max_key_nbits] * centred[i];
        done += nrows * max_key_nbits;
        const int error = gpufs::unmap_page(warp, std::move(p));
        if (error != 0) {
          note(warp, photo_block, step::projections, error);
          return error;
        }
      }
      const std::uint32_t key = warp.ballot(sum > 0) & ((1u << key_nbits) - 1);
      if (warp.leader()) s.keys[t] = key;
    }
    return 0;
  }

  static constexpr std::uint32_t own_buckets = ~0u;
  static constexpr std::uint32_t no_id = ~0u;

  // Looks up 32 probes from `first`: probe t * key_nbits + b is table t's bucket beside the block's own across bit b; or the
  // block's own 32 buckets.
  GPUFS_DEVICE int look_up(match_shared& s, const library_file& library, std::uint32_t photo_block, std::uint32_t first) const {
    simt::this_block().sync();  // keys are there; the buckets before have been taken over
    int error = 0;
    for (std::uint32_t p = simt::warp_rank(); p < 32 && error == 0; p += simt::this_block().nwarps()) {
      if (first == own_buckets) {
        error = read_bucket(s, library, photo_block, p, p, s.keys[p]);
      } else {
        const std::uint32_t probe = first + p;  // there are 32 * key_nbits, a multiple of 32
        const std::uint32_t t = probe / key_nbits;
        error = read_bucket(s, library, photo_block, p, t, s.keys[t] ^ 1u << probe % key_nbits);
      }
    }
    return error;
  }

  GPUFS_DEVICE int read_bucket(match_shared& s, const library_file& library, std::uint32_t photo_block, std::uint32_t slot,
                               std::uint32_t table, std::uint32_t key) const {
    const auto warp = simt::this_warp();
    auto& staging = s.staging[simt::warp_rank()];
    const std::uint32_t hashed = hash(key);
    const std::uint32_t cell = cell_nbits == 0 ? 0 : hashed >> (32 - cell_nbits);
    int error =
        read_all(warp, library, staging.cell, sizeof staging.cell, tables[table] + sizeof(std::uint32_t) * std::uint64_t{cell});
    const std::uint32_t begin = staging.cell[0];
    const std::uint32_t end = staging.cell[1];
    if (error == 0 && (begin > end || end > table_nentries[table])) error = damaged;
    if (error != 0) {
      note(warp, photo_block, step::directory, error);
      return error;
    }
    const std::uint64_t entries = tables[table] + align_up_to_page((sizeof(std::uint32_t) << cell_nbits) + sizeof(std::uint32_t));
    std::uint32_t nfound = 0;
    bool passed = false;
    for (std::uint32_t i = begin; i < end && nfound < bucket_limit && !passed; i += bucket_limit) {
      const std::uint32_t n = end - i < bucket_limit ? end - i : bucket_limit;
      warp.sync();  // the entries before have been read
      error = read_all(warp, library, staging.entries, n * sizeof(table_entry), entries + std::uint64_t{i} * sizeof(table_entry));
      const bool valid = simt::lane_id() < n && error == 0;
      const table_entry entry = valid ? staging.entries[simt::lane_id()] : table_entry{0, 0};
      const std::uint32_t equal = warp.ballot(valid && entry.hashed_key == hashed);
      passed = warp.any(valid && entry.hashed_key > hashed);
      const bool mine = (equal >> simt::lane_id() & 1) != 0;
      if (error == 0 && warp.any(mine && entry.id >= nimages)) error = damaged;
      if (error != 0) {
        note(warp, photo_block, step::entries, error);
        return error;
      }
      const std::uint32_t rank = nfound + popcount(equal & lanes_below());
      if (mine && rank < bucket_limit) s.bucket_ids[slot][rank] = entry.id;
      nfound += popcount(equal);
    }
    if (warp.leader()) s.bucket_sizes[slot] = nfound < bucket_limit ? nfound : bucket_limit;
    return 0;
  }

  GPUFS_DEVICE static constexpr std::uint64_t align_up_to_page(std::uint64_t nbytes) {
    return (nbytes + section_alignment - 1) / section_alignment * section_alignment;
  }

  template <class Group>
  GPUFS_DEVICE static int read_all(Group group, const library_file& library, void* dst, std::size_t nbytes, std::uint64_t offset) {
    const std::int64_t n = pread(group, library, dst, nbytes, static_cast<std::int64_t>(offset));
    return n == static_cast<std::int64_t>(nbytes) ? 0 : n < 0 ? static_cast<int>(n) : damaged;
  }

  // Takes over the 32 buckets that were looked up, in order, and stops before one when the shortlist has `goal` images.
  GPUFS_DEVICE static void merge(match_shared& s, std::uint32_t goal) {
    const auto block = simt::this_block();
    block.sync();
    if (simt::warp_rank() == 0) {
      const auto warp = simt::this_warp();
      std::uint32_t n = s.nshortlist;
      for (std::uint32_t p = 0; p < 32 && n < goal; ++p) {
        const bool valid = simt::lane_id() < s.bucket_sizes[p];
        n = append(s, n, valid ? s.bucket_ids[p][simt::lane_id()] : no_id);
      }
      warp.sync();  // all lanes have read nshortlist
      if (warp.leader()) s.nshortlist = n;
    }
    block.sync();
  }

  GPUFS_DEVICE void add_stride_sample(match_shared& s) const {
    simt::this_block().sync();  // all threads have seen that the shortlist is too short
    if (simt::warp_rank() == 0) {
      const auto warp = simt::this_warp();
      std::uint32_t n = s.nshortlist;
      for (std::uint32_t i = simt::lane_id(); i < stride_sample; i += 32) {
        n = append(s, n, static_cast<std::uint32_t>(std::uint64_t{i} * nimages / stride_sample));
      }
      warp.sync();
      if (warp.leader()) s.nshortlist = n;
    }
    simt::this_block().sync();
  }

  // Appends each lane's id (no_id: none) in lane order unless the shortlist of n images has it; the new length. A warp.
  GPUFS_DEVICE static std::uint32_t append(match_shared& s, std::uint32_t n, std::uint32_t id) {
    const auto warp = simt::this_warp();
    const bool first = (warp.match_any(id) & lanes_below()) == 0;
    std::uint32_t at = hash(id) >> 23;
    bool fresh = id != no_id && first;
    for (; fresh && s.seen[at] != no_id; at = (at + 1) % 512) fresh = s.seen[at] != id;
    const std::uint32_t all = warp.ballot(fresh);  // nobody writes before all have looked
    const std::uint32_t position = n + popcount(all & lanes_below());
    if (fresh && position < shortlist_limit) {
      s.shortlist[position] = id;
      std::uint32_t empty = no_id;
      while (
          !simt::atomic_ref<std::uint32_t, simt::scope::block>(s.seen[at]).compare_exchange(empty, id, std::memory_order_relaxed)) {
        empty = no_id;
        at = (at + 1) % 512;
      }
    }
    warp.sync();
    n += popcount(all);
    return n < shortlist_limit ? n : shortlist_limit;
  }

  // Each warp takes one candidate at a time, 512 bytes of its histogram at a time (pages and histograms begin at multiples of
  // 512), and keeps the nearest.
  GPUFS_DEVICE int compare(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    const auto warp = simt::this_warp();
    std::uint64_t best = ~std::uint64_t{0};
    for (std::uint32_t c = simt::warp_rank(); c < s.nshortlist; c += simt::this_block().nwarps()) {
      const std::uint32_t id = s.shortlist[c];
      const std::uint64_t offset = histograms + std::uint64_t{id} * histogram_stride;
      float sum = 0;
      for (std::uint32_t done = 0; done < histogram_nbytes;) {
        mapped_page p = map_page(warp, library, static_cast<std::int64_t>(offset + done));
        if (p.error() != 0) {
          note(warp, photo_block, step::histogram, p.error());
          return p.error();
        }
        const std::uint32_t left = histogram_nbytes - done;
        const std::uint32_t nbytes = p.nbytes() < left ? p.nbytes() : left;
        for (std::uint32_t at = simt::lane_id() * 16; at < nbytes; at += 512) {
          sum += squared_distance(p.data() + at, s.histogram + (done + at) / sizeof(float));
        }
        done += nbytes;
        const int error = gpufs::unmap_page(warp, std::move(p));
        if (error != 0) {
          note(warp, photo_block, step::histogram, error);
          return error;
        }
      }
      const bool sound = sum >= 0 && sum <= static_cast<float>(max_distance);  // false when it is not a number
      const std::uint32_t distance = warp.reduce_add(sound ? static_cast<std::uint32_t>(sum) : max_distance + 1);
      if (distance > max_distance) {
        note(warp, photo_block, step::histogram, damaged);
        return damaged;
      }
      const std::uint64_t found = std::uint64_t{distance} << 32 | id;
      best = found < best ? found : best;
    }
    if (warp.leader()) s.best[simt::warp_rank()] = best;
    return 0;
  }

  // Of four counts: exact, as all sums of these squares are whole numbers below 2^24.
  GPUFS_DEVICE static float squared_distance(const std::byte* counts, const float* query) {
    const simt::vec16 words = *reinterpret_cast<const simt::vec16*>(counts);
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      float count;
      std::memcpy(&count, &words.word[i], sizeof count);
      const float difference = count - query[i];
      sum += difference * difference;
    }
    return sum;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::collage
