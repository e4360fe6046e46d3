// SPDX-License-Identifier: Apache-2.0
// Where sorted runs are cut, so that before the cut lie exactly as many records as wanted: the first ones of their stable merge.
// Host code.
#pragma once
#include <cstdint>
#include <vector>

#include "apps/par/file_jobs.hpp"

namespace gpufs::apps::par {

// Of `all`, where the runs lie one behind the other, each of run_nrecords records but the last one.
class run_cuts {
 public:
  run_cuts(const std::byte* all, std::uint64_t nrecords, std::uint64_t run_nrecords, const sort_options& options);

  // Moves the cut on, from where it was, at first before all records, so that n more records lie before it (or all that there are).
  // Source: Varman, Scheufler, Iyer, Ricard, "Merging multiple lists on hierarchical-memory multiprocessors", JPDC 1991; here by
  // bisection of the key's bits, which is exact for equal keys, too. Allocates nothing, so that it may be left by a jump.
  void move_on(std::uint64_t n);

  std::uint64_t nruns() const { return runs_.size(); }
  // Of run i, the records that the last move has passed: their numbers among all records.
  std::uint64_t begin(std::uint64_t i) const { return runs_[i].before; }
  std::uint64_t end(std::uint64_t i) const { return runs_[i].cut; }

 private:
  struct run {
    std::uint64_t end;          // of its records
    std::uint64_t before, cut;  // the last cut, and this one
    std::uint64_t low, high;    // this cut is not before low, nor behind high
    std::uint64_t middle;       // behind the records of the window that are at most the candidate
  };
  std::uint64_t ordered_key(std::uint64_t record) const;
  std::uint64_t first_above(std::uint64_t key, std::uint64_t begin, std::uint64_t end) const;

  const std::byte* all_;
  key_order order_;
  std::uint64_t record_nbytes_, key_offset_, ncut_ = 0, nrecords_;
  std::vector<run> runs_;
};

}  // namespace gpufs::apps::par
