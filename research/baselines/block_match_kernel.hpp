// SPDX-License-Identifier: Apache-2.0
// The collage as the original API had it: every file call is made by the whole block, and a block compares one candidate at a time.
// After SYSTOR'16, sections 2.4 and 4.3.2; finds what match_kernel finds.
#pragma once
#include "apps/collage/match_kernel.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

struct block_match_shared {
  std::int32_t sums[apps::collage::ntables][simt::warp_lanes];  // of a table's projections, by bit
  std::uint32_t distance[2];                                    // of the candidate, by turns
};

template <class Mount>
struct block_match_kernel : apps::collage::match_kernel<Mount> {
  using base = apps::collage::match_kernel<Mount>;
  using typename base::library_file;
  using step = apps::collage::step;
  using match_shared = apps::collage::match_shared;

  GPUFS_DEVICE void operator()() const { this->run(*this); }

  // The block maps a piece of a table's projections, its warps share the rows.
  GPUFS_DEVICE int make_keys(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    using namespace apps::collage;
    const auto block = simt::this_block();
    block_match_shared& mine = simt::shared<block_match_shared>();
    for (std::uint32_t i = block.rank(); i < ntables * simt::warp_lanes; i += block.size()) {
      mine.sums[i / simt::warp_lanes][i % simt::warp_lanes] = 0;
    }
    block.sync();
    for (std::uint32_t t = 0; t < ntables; ++t) {
      std::int32_t sum = 0;
      for (std::uint32_t done = 0; done < projection_nbytes;) {
        mapped_page p = map_page(block, library, static_cast<std::int64_t>(this->projections + t * projection_nbytes + done));
        if (p.error() != 0) return failed(photo_block, step::projections, p.error());
        const std::uint32_t left = projection_nbytes - done;
        const std::uint32_t nrows = (p.nbytes() < left ? p.nbytes() : left) / max_key_nbits;
        const auto* weights = reinterpret_cast<const std::int8_t*>(p.data()) + simt::lane_id();
        const std::int32_t* centred = s.centred + done / max_key_nbits;
        for (std::uint32_t i = simt::warp_rank(); i < nrows; i += block.nwarps()) sum += weights[i * max_key_nbits] * centred[i];
        done += nrows * max_key_nbits;
        const int error = gpufs::unmap_page(block, std::move(p));
        if (error != 0) return failed(photo_block, step::projections, error);
      }
      simt::atomic_ref<std::int32_t, simt::scope::block>(mine.sums[t][simt::lane_id()]).add_relaxed(sum);
    }
    block.sync();
    for (std::uint32_t t = simt::warp_rank(); t < ntables; t += block.nwarps()) {
      const std::uint32_t key = simt::this_warp().ballot(mine.sums[t][simt::lane_id()] > 0) & ((1u << this->key_nbits) - 1);
      if (simt::this_warp().leader()) s.keys[t] = key;
    }
    return 0;
  }

  GPUFS_DEVICE int look_up(match_shared& s, const library_file& library, std::uint32_t photo_block, std::uint32_t first) const {
    simt::this_block().sync();  // keys are there; the buckets before have been taken over
    int error = 0;
    for (std::uint32_t p = 0; p < 32 && error == 0; ++p) {
      if (first == base::own_buckets) {
        error = read_bucket(s, library, photo_block, p, p, s.keys[p]);
      } else {
        const std::uint32_t probe = first + p;
        const std::uint32_t t = probe / this->key_nbits;
        error = read_bucket(s, library, photo_block, p, t, s.keys[t] ^ 1u << probe % this->key_nbits);
      }
    }
    return error;
  }

  // One candidate after another; a thread compares four counts at a time.
  GPUFS_DEVICE int compare(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    using namespace apps::collage;
    const auto block = simt::this_block();
    const auto warp = simt::this_warp();
    block_match_shared& mine = simt::shared<block_match_shared>();
    if (block.leader()) mine.distance[0] = 0;
    std::uint64_t best = ~std::uint64_t{0};
    for (std::uint32_t c = 0; c < s.nshortlist; ++c) {
      const std::uint32_t id = s.shortlist[c];
      const std::uint64_t offset = this->histograms + std::uint64_t{id} * this->histogram_stride;
      float sum = 0;
      for (std::uint32_t done = 0; done < histogram_nbytes;) {
        mapped_page p = map_page(block, library, static_cast<std::int64_t>(offset + done));
        if (p.error() != 0) return failed(photo_block, step::histogram, p.error());
        const std::uint32_t left = histogram_nbytes - done;
        const std::uint32_t nbytes = p.nbytes() < left ? p.nbytes() : left;
        for (std::uint32_t at = block.rank() * 16; at < nbytes; at += block.size() * 16) {
          sum += base::squared_distance(p.data() + at, s.histogram + (done + at) / sizeof(float));
        }
        done += nbytes;
        const int error = gpufs::unmap_page(block, std::move(p));
        if (error != 0) return failed(photo_block, step::histogram, error);
      }
      const bool sound = sum >= 0 && sum <= static_cast<float>(max_distance);  // false when it is not a number
      const std::uint32_t partial = warp.reduce_add(sound ? static_cast<std::uint32_t>(sum) : max_distance + 1);
      if (warp.leader()) {
        simt::atomic_ref<std::uint32_t, simt::scope::block>(mine.distance[c % 2])
            .add_relaxed(partial < max_distance + 1 ? partial : max_distance + 1);
      }
      block.sync();
      const std::uint32_t distance = mine.distance[c % 2];
      if (block.leader()) mine.distance[(c + 1) % 2] = 0;  // all have read it: they have added to this one
      block.sync();
      if (distance > max_distance) return failed(photo_block, step::histogram, damaged);
      const std::uint64_t found = std::uint64_t{distance} << 32 | id;
      best = found < best ? found : best;
    }
    if (warp.leader()) s.best[simt::warp_rank()] = best;
    return 0;
  }

 private:
  // All threads of the block, with equal arguments.
  GPUFS_DEVICE int failed(std::uint32_t photo_block, step at, int error) const {
    this->note(simt::this_block(), photo_block, at, error);
    return error;
  }

  // All warps look at the same entries and come to the same end; the first writes it down.
  GPUFS_DEVICE int read_bucket(match_shared& s, const library_file& library, std::uint32_t photo_block, std::uint32_t slot,
                               std::uint32_t table, std::uint32_t key) const {
    using namespace apps::collage;
    const auto block = simt::this_block();
    const auto warp = simt::this_warp();
    auto& staging = s.staging[0];
    const std::uint32_t hashed = base::hash(key);
    const std::uint32_t cell = this->cell_nbits == 0 ? 0 : hashed >> (32 - this->cell_nbits);
    block.sync();  // the bucket before has been read
    int error = base::read_all(block, library, staging.cell, sizeof staging.cell,
                               this->tables[table] + sizeof(std::uint32_t) * std::uint64_t{cell});
    const std::uint32_t begin = staging.cell[0];
    const std::uint32_t end = staging.cell[1];
    if (error == 0 && (begin > end || end > this->table_nentries[table])) error = damaged;
    if (error != 0) return failed(photo_block, step::directory, error);
    const std::uint64_t entries =
        this->tables[table] + base::align_up_to_page((sizeof(std::uint32_t) << this->cell_nbits) + sizeof(std::uint32_t));
    std::uint32_t nfound = 0;
    bool passed = false;
    for (std::uint32_t i = begin; i < end && nfound < bucket_limit && !passed; i += bucket_limit) {
      const std::uint32_t n = end - i < bucket_limit ? end - i : bucket_limit;
      block.sync();  // the entries before have been read
      error = base::read_all(block, library, staging.entries, n * sizeof(table_entry),
                             entries + std::uint64_t{i} * sizeof(table_entry));
      const bool valid = simt::lane_id() < n && error == 0;
      const table_entry entry = valid ? staging.entries[simt::lane_id()] : table_entry{0, 0};
      const std::uint32_t equal = warp.ballot(valid && entry.hashed_key == hashed);
      passed = warp.any(valid && entry.hashed_key > hashed);
      const bool taken = (equal >> simt::lane_id() & 1) != 0;
      if (error == 0 && warp.any(taken && entry.id >= this->nimages)) error = damaged;
      if (error != 0) return failed(photo_block, step::entries, error);
      const std::uint32_t rank = nfound + base::popcount(equal & base::lanes_below());
      if (taken && rank < bucket_limit && simt::warp_rank() == 0) s.bucket_ids[slot][rank] = entry.id;
      nfound += base::popcount(equal);
    }
    if (block.leader()) s.bucket_sizes[slot] = nfound < bucket_limit ? nfound : bucket_limit;
    return 0;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
