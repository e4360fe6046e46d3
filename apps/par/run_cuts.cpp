// SPDX-License-Identifier: Apache-2.0
#include "apps/par/run_cuts.hpp"

#include <algorithm>
#include <cstring>

namespace gpufs::apps::par {

run_cuts::run_cuts(const std::byte* all, std::uint64_t nrecords, std::uint64_t run_nrecords, const sort_options& options)
    : all_(all),
      order_{options.type, options.descending},
      record_nbytes_(options.record_nbytes),
      key_offset_(options.key_offset),
      nrecords_(nrecords) {
  for (std::uint64_t begin = 0; begin < nrecords; begin += run_nrecords) {
    runs_.push_back({std::min(nrecords, begin + run_nrecords), begin, begin, 0, 0, 0});
  }
}

void run_cuts::move_on(std::uint64_t n) {
  const std::uint64_t wanted = std::min(nrecords_, ncut_ + n);
  // All records with keys below `least` are before the cut; those with keys up to `most` are enough. In each run the cut is in
  // [low, high], and the windows' ends are where `least` begins and `most` ends.
  std::uint64_t least = 0, most = nbytes_of(order_.type) == 4 ? 0xffffffffu : ~std::uint64_t{0};
  std::uint64_t below = 0;  // records before all windows
  for (run& each : runs_) {
    each.before = each.low = each.cut;
    each.high = each.end;
  }
  below = ncut_;
  while (least != most) {
    const std::uint64_t candidate = least + (most - least) / 2;
    std::uint64_t up_to_it = below;
    for (run& each : runs_) {
      each.middle = first_above(candidate, each.low, each.high);
      up_to_it += each.middle - each.low;
    }
    const bool is_enough = up_to_it >= wanted;
    for (run& each : runs_) (is_enough ? each.high : each.low) = each.middle;
    if (is_enough) {
      most = candidate;
    } else {
      least = candidate + 1;
      below = up_to_it;
    }
  }
  // What is in the windows now is equal: from the first runs as many as are missing.
  std::uint64_t missing = wanted - below;
  for (run& each : runs_) {
    const std::uint64_t taken = std::min(missing, each.high - each.low);
    each.cut = each.low + taken;
    missing -= taken;
  }
  ncut_ = wanted;
}

std::uint64_t run_cuts::ordered_key(std::uint64_t record) const {
  const std::byte* const at = all_ + record * record_nbytes_ + key_offset_;
  if (nbytes_of(order_.type) == 4) {
    std::uint32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return order_.ordered(bits);
  }
  std::uint64_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return order_.ordered(bits);
}

std::uint64_t run_cuts::first_above(std::uint64_t key, std::uint64_t begin, std::uint64_t end) const {
  while (begin != end) {
    const std::uint64_t middle = begin + (end - begin) / 2;
    if (ordered_key(middle) <= key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace gpufs::apps::par
