// SPDX-License-Identifier: Apache-2.0
// The collage through active pointers, after ActivePointers (ISCA'16), section VI: what it reads of the library it reads as if the
// file were an array, and whether a histogram straddles pages is not its business. Finds what match_kernel finds; an access that
// fails reads zeros here, and shows in the mount's counters.
#pragma once
#include "apps/collage/match_kernel.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// Each function has one pointer, so a lane pins one page at most, or the few of a key's weights or a histogram where the cache has
// room for them. As many pages as threads are always enough; far fewer do where the lanes of a warp go together. Values that
// branches depend on come from one lane: an access may fail in some lanes only.
template <class Mount>
struct pointer_match_kernel : apps::collage::match_kernel<Mount> {
  using base = apps::collage::match_kernel<Mount>;
  using typename base::library_file;
  using step = apps::collage::step;
  using match_shared = apps::collage::match_shared;

  GPUFS_DEVICE void operator()() const { this->run(*this); }

  GPUFS_DEVICE int make_keys(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    using namespace apps::collage;
    const auto warp = simt::this_warp();
    auto weights = gpufs::map<const std::int8_t>(warp, library, static_cast<std::int64_t>(this->projections));
    if (!weights) return failed(photo_block, step::projections, weights.error());
    weights += simt::lane_id();
    for (std::uint32_t t = simt::warp_rank(); t < ntables; t += simt::this_block().nwarps()) {
      std::int32_t sum = 0;
      const std::int32_t* centred = s.centred;
      const std::int64_t begin = std::int64_t{t} * projection_nbytes;
      weights += begin;
      gpufs::for_each_n(
          nfolded, max_key_nbits, [&](std::int8_t weight) { sum += weight * *centred++; }, weights);
      weights -= begin + projection_nbytes;
      const std::uint32_t key = warp.ballot(sum > 0) & ((1u << this->key_nbits) - 1);
      if (warp.leader()) s.keys[t] = key;
    }
    return 0;
  }

  GPUFS_DEVICE int look_up(match_shared& s, const library_file& library, std::uint32_t photo_block, std::uint32_t first) const {
    const auto words = gpufs::map<const std::uint32_t>(simt::this_warp(), library);
    if (!words) return failed(photo_block, step::directory, words.error());
    simt::this_block().sync();  // keys are there; the buckets before have been taken over
    int error = 0;
    for (std::uint32_t p = simt::warp_rank(); p < 32 && error == 0; p += simt::this_block().nwarps()) {
      const bool own = first == base::own_buckets;
      const std::uint32_t t = own ? p : (first + p) / this->key_nbits;
      error = read_bucket(s, words, photo_block, p, t, own ? s.keys[t] : s.keys[t] ^ 1u << (first + p) % this->key_nbits);
    }
    return error;
  }

  GPUFS_DEVICE int compare(match_shared& s, const library_file& library, std::uint32_t photo_block) const {
    using namespace apps::collage;
    const auto warp = simt::this_warp();
    auto counts = gpufs::map<const simt::vec16>(warp, library, static_cast<std::int64_t>(this->histograms));
    if (!counts) return failed(photo_block, step::histogram, counts.error());
    counts += simt::lane_id();
    std::uint64_t best = ~std::uint64_t{0};
    for (std::uint32_t c = simt::warp_rank(); c < s.nshortlist; c += simt::this_block().nwarps()) {
      const std::uint32_t id = s.shortlist[c];
      const auto begin = static_cast<std::int64_t>(std::uint64_t{id} * (this->histogram_stride / sizeof(simt::vec16)));
      const float* query = s.histogram + 4 * simt::lane_id();
      float sum = 0;
      counts += begin;
      gpufs::for_each_n(
          nbins / 4 / simt::warp_lanes, simt::warp_lanes,
          [&](const simt::vec16& four) {
            sum += base::squared_distance(reinterpret_cast<const std::byte*>(&four), query);
            query += 4 * simt::warp_lanes;
          },
          counts);
      counts -= begin + nbins / 4;
      const bool sound = sum >= 0 && sum <= static_cast<float>(max_distance);  // false when it is not a number
      const std::uint32_t distance = warp.reduce_add(sound ? static_cast<std::uint32_t>(sum) : max_distance + 1);
      if (distance > max_distance) return failed(photo_block, step::histogram, damaged);
      const std::uint64_t found = std::uint64_t{distance} << 32 | id;
      best = found < best ? found : best;
    }
    if (warp.leader()) s.best[simt::warp_rank()] = best;
    return 0;
  }

 private:
  GPUFS_DEVICE int failed(std::uint32_t photo_block, step at, int error) const {
    this->note(simt::this_warp(), photo_block, at, error);
    return error;
  }

  // `words`: the whole library.
  GPUFS_DEVICE int read_bucket(match_shared& s, const ptr<const std::uint32_t>& words, std::uint32_t photo_block,
                               std::uint32_t slot, std::uint32_t table, std::uint32_t key) const {
    using namespace apps::collage;
    const auto warp = simt::this_warp();
    const std::uint32_t hashed = base::hash(key);
    const std::uint32_t cell = this->cell_nbits == 0 ? 0 : hashed >> (32 - this->cell_nbits);
    const std::uint64_t directory = this->tables[table] / sizeof(std::uint32_t);
    const std::uint32_t bound = words[directory + cell + simt::lane_id() % 2];
    const std::uint32_t begin = warp.shfl(bound, 0);
    const std::uint32_t end = warp.shfl(bound, 1);
    if (begin > end || end > this->table_nentries[table]) return failed(photo_block, step::directory, damaged);
    const std::uint64_t entries =
        directory +
        base::align_up_to_page((sizeof(std::uint32_t) << this->cell_nbits) + sizeof(std::uint32_t)) / sizeof(std::uint32_t);
    std::uint32_t nfound = 0;
    bool passed = false;
    for (std::uint32_t i = begin; i < end && nfound < bucket_limit && !passed; i += bucket_limit) {
      // All lanes read: a full warp faults together, lanes of a part of one each for itself.
      const std::uint32_t at = i + simt::lane_id();
      const bool valid = at < end;
      const auto entry = words.template load<table_entry>(entries + std::uint64_t{valid ? at : end - 1} * 2);
      const std::uint32_t equal = warp.ballot(valid && entry.hashed_key == hashed);
      passed = warp.any(valid && entry.hashed_key > hashed);
      const bool mine = (equal >> simt::lane_id() & 1) != 0;
      if (warp.any(mine && entry.id >= this->nimages)) return failed(photo_block, step::entries, damaged);
      const std::uint32_t rank = nfound + base::popcount(equal & base::lanes_below());
      if (mine && rank < bucket_limit) s.bucket_ids[slot][rank] = entry.id;
      nfound += base::popcount(equal);
    }
    if (warp.leader()) s.bucket_sizes[slot] = nfound < bucket_limit ? nfound : bucket_limit;
    return 0;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
