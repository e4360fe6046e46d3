// SPDX-License-Identifier: Apache-2.0
// The kernel of a query, over columns of any kind: in files (engine_device.hpp), or in memory, as its rivals have them. Each warp
// scans chunks of the one column, lists the rows that pass, and fetches what other columns have of them, a lane a row.
// docs/design/query.md, "The kernel".
#pragma once
#include <algorithm>
#include <cstdint>

#include "apps/arrays/row_pieces.hpp"
#include "apps/query/engine.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::apps::query {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned nwarps_a_block = GPUFS_ON_CUDA ? 8 : 2, block_threads = 32 * nwarps_a_block, least_blocks = 4;
inline constexpr std::uint32_t chunk_nbytes = GPUFS_ON_CUDA ? 4096 : 512;  // of the scanned column, that a warp reads at once
inline constexpr std::uint32_t rows_at_once = simt::warp_lanes;            // that are fetched

// What a warp works with, in shared memory.
struct warp_space {
  alignas(16) std::byte chunk[chunk_nbytes + 16];
  alignas(8) std::byte values[rows_at_once * 8];
  std::uint64_t places[rows_at_once];
  std::uint64_t rows[2 * rows_at_once];  // that have passed
};
struct block_space {
  warp_space of[nwarps_a_block];
  column_sums sums[most_columns];
};
static_assert(sizeof(block_space) <= 48 << 10);

// Words that the threads of a block, or all of a device, add to.
template <simt::scope Scope>
struct shared_words {
  GPUFS_DEVICE void add(std::uint64_t& word, std::uint64_t n) const {
    if (n != 0) simt::atomic_ref<std::uint64_t, Scope>(word).add_relaxed(n);
  }
  GPUFS_DEVICE void lower(std::uint64_t& word, std::uint64_t key) const {
    const simt::atomic_ref<std::uint64_t, Scope> least(word);
    if (key < least.load_relaxed()) least.fetch_min(key, std::memory_order_relaxed);
  }
  GPUFS_DEVICE void raise(std::uint64_t& word, std::uint64_t key) const {
    const simt::atomic_ref<std::uint64_t, Scope> greatest(word);
    if (key > greatest.load_relaxed()) greatest.fetch_max(key, std::memory_order_relaxed);
  }
};

// What kernels have found, in device memory.
struct query_state {
  std::uint64_t npassed;
  std::uint64_t failure;  // of the column of the least number: number << 12 | errno; else no_failure
  static constexpr std::uint64_t no_failure = ~std::uint64_t{0};
};

// Bytes side by side of the scanned column; none: error, a negative errno.
struct scanned_run {
  const std::byte* data;
  std::uint32_t nbytes;
  int error;
};

// A column that is summed.
struct summed_column {
  value_type type;
  bool is_scanned;  // its values are those that were looked at
};

// Columns: scan(warp, space, byte, most) -> scanned_run, from that byte of the column on, whole values; and fetch(warp, space,
// column, rows, n), after which space.values has the values of n rows, one after the other: 0, or a negative errno. All lanes call.
template <class Columns>
struct query_kernel {
  Columns from;
  value_type where_type;
  condition wanted;
  const summed_column* columns;
  std::uint32_t ncolumns;
  std::uint64_t begin, end;  // bytes of the scanned column, of which `begin` begins a chunk
  column_sums* sums;
  query_state* state;

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = this_warp();
    const simt::block block = this_block();
    block_space& all = simt::shared<block_space>();
    for (unsigned c = simt::thread_rank(); c < ncolumns; c += block.size()) {
      all.sums[c] = {};
      all.sums[c].least = ~std::uint64_t{0};
    }
    block.sync();
    scan(warp, all.of[simt::warp_rank()], all.sums);
    block.sync();
    for (unsigned c = simt::thread_rank(); c < ncolumns; c += block.size())
      add_sums(sums[c], all.sums[c], shared_words<simt::scope::device>());
  }

 private:
  struct found {
    std::uint32_t nlisted = 0;
    std::uint64_t npassed = 0;
    int error = 0;
  };

  GPUFS_DEVICE void scan(simt::warp warp, warp_space& mine, column_sums* to) const {
    found have;
    const std::uint64_t step = std::uint64_t{simt::grid_size()} * nwarps_a_block * chunk_nbytes;
    for (std::uint64_t chunk = begin + simt::global_warp_rank() * chunk_nbytes; chunk < end && !has_failed(warp); chunk += step) {
      const std::uint64_t chunk_end = chunk + chunk_nbytes < end ? chunk + chunk_nbytes : end;
      for (std::uint64_t at = chunk; at < chunk_end && have.error == 0;) {
        const scanned_run run = from.scan(warp, mine, at, static_cast<std::uint32_t>(chunk_end - at));
        if (run.error != 0) {
          note_failure(warp, 0, run.error);
          have.error = run.error;
          break;
        }
        look_at(warp, mine, to, at / nbytes_of(where_type), run, have);
        at += run.nbytes;
        warp.sync();  // all have looked, and the chunk's room is free
      }
      if (have.error != 0) break;
    }
    if (have.error == 0 && have.nlisted != 0) take(warp, have.nlisted, have);
    if (warp.leader() && have.npassed != 0) simt::atomic_ref<std::uint64_t>(state->npassed).add_relaxed(have.npassed);
  }

  // A value a lane.
  GPUFS_DEVICE void look_at(simt::warp warp, warp_space& mine, column_sums* to, std::uint64_t first_row, const scanned_run& run,
                            found& have) const {
    const std::uint32_t nbytes = nbytes_of(where_type), n = run.nbytes / nbytes;
    for (std::uint32_t i = warp.rank(); i - warp.rank() < n && have.error == 0; i += warp.size()) {
      const std::uint64_t bits = i < n ? bits_at(run.data + i * nbytes, nbytes) : 0;
      const bool passes = i < n && wanted.holds(key_of(where_type, bits));
      const std::uint32_t lanes = warp.ballot(passes);
      if (lanes == 0) continue;
      for (unsigned c = 0; c < ncolumns; ++c) {
        if (columns[c].is_scanned && passes) add_value(to[c], where_type, bits, shared_words<simt::scope::block>());
      }
      const std::uint32_t before = lanes & ((1u << warp.rank()) - 1);
      if (passes) mine.rows[have.nlisted + simt::count_lanes(before)] = first_row + i;
      const unsigned npassed = simt::count_lanes(lanes);
      have.nlisted += npassed;
      have.npassed += npassed;
      warp.sync();
      if (have.nlisted >= rows_at_once) take(warp, rows_at_once, have);
    }
  }

  // Adds what columns have of the first n rows that are listed, and takes these off the list. Out of line: few rows pass, and the
  // scan is to have its registers.
  GPUFS_DEVICE void take(simt::warp warp, std::uint32_t n, found& have) const {
    have.error = simt::call_cold(&take_listed, this, warp, n, have.nlisted);
    have.nlisted -= n;
  }
  static GPUFS_DEVICE_COLD int take_listed(const query_kernel* of, simt::warp warp, std::uint32_t n, std::uint32_t nlisted) {
    block_space& all = simt::shared<block_space>();
    warp_space& mine = all.of[simt::warp_rank()];
    for (unsigned c = 0; c < of->ncolumns; ++c) {
      const summed_column column = of->columns[c];
      if (column.is_scanned) continue;
      const std::uint32_t nbytes = nbytes_of(column.type);
      if (const int error = of->from.fetch(warp, mine, c, mine.rows, n); error != 0) {
        of->note_failure(warp, c + 1, error);
        return error;
      }
      warp.sync();  // all values are there
      if (warp.rank() < n) {
        const std::uint64_t bits = bits_at(mine.values + warp.rank() * nbytes, nbytes);
        add_value(all.sums[c], column.type, bits, shared_words<simt::scope::block>());
      }
      warp.sync();  // all have their values
    }
    if (warp.rank() < nlisted - n) mine.rows[warp.rank()] = mine.rows[n + warp.rank()];  // n: of all lanes, where any are left
    warp.sync();
    return 0;
  }

  // number: 0, the column that is scanned, or that of a sum's and 1.
  GPUFS_DEVICE void note_failure(simt::warp warp, unsigned number, int error) const {
    const std::uint64_t word = std::uint64_t{number} << 12 | (static_cast<std::uint32_t>(-error) & 0xfff);
    if (warp.leader()) simt::atomic_ref<std::uint64_t>(state->failure).fetch_min(word, std::memory_order_relaxed);
  }
  // Whether it is no use to go on.
  GPUFS_DEVICE bool has_failed(simt::warp warp) const {
    std::uint64_t word = 0;
    if (warp.leader()) word = simt::atomic_ref<std::uint64_t>(state->failure).load(std::memory_order_relaxed);
    return warp.broadcast(word) != query_state::no_failure;
  }
};

// A query's columns on a device, and what is found: runs the kernel on a part of the rows after the other.
class kernel_runs {
 public:
  static constexpr std::uint64_t rows_a_launch = GPUFS_ON_CUDA ? 1 << 28 : 1 << 14;

  // most_warps: that a launch may have.
  kernel_runs(const query& of, simt::platform& device, std::uint64_t most_warps = ~std::uint64_t{0})
      : type_(of.where.type),
        wanted_(of.wanted),
        nrows_(of.where.place.nrows),
        most_blocks_(std::max<std::uint64_t>(1, most_warps / nwarps_a_block)),
        columns_(summed(of), device),
        sums_(of.sums.size(), device),
        state_(1, device) {}

  // All of it. The result lacks what was read, and the time. Throws read_failure, and what progress does.
  template <class Columns>
  query_result run(const Columns& from, const progress_function& progress) const {
    query_result all{.nrows = nrows_, .sums = std::vector<column_sums>(columns_.size())};
    for (column_sums& each : all.sums) each.least = ~std::uint64_t{0};
    progress(0, nrows_);
    for (std::uint64_t first = 0; first < nrows_; first += rows_a_launch) {
      const std::uint64_t end = std::min(first + rows_a_launch, nrows_);
      run_part(from, first, end, all);
      progress(end, nrows_);
    }
    return all;
  }

  // Thrown where a column could not be read.
  struct read_failure {
    std::size_t column;  // 0: the one that is scanned; else of the sums' and 1
    int error;           // an errno
  };

 private:
  static std::vector<summed_column> summed(const query& of) {
    std::vector<summed_column> all;
    for (const column& each : of.sums) all.push_back({each.type, is_same(each, of.where)});
    return all;
  }

  template <class Columns>
  void run_part(const Columns& from, std::uint64_t first, std::uint64_t end, query_result& all) const {
    const std::uint64_t nbytes = nbytes_of(type_);
    sums_.write(all.sums);
    state_.write_one({all.npassed, query_state::no_failure});
    const query_kernel<Columns> kernel{
        from,           type_,        wanted_,     columns_.get(), static_cast<std::uint32_t>(columns_.size()),
        first * nbytes, end * nbytes, sums_.get(), state_.get()};
    const std::uint64_t nchunks = ((end - first) * nbytes + chunk_nbytes - 1) / chunk_nbytes;
    simt::launch_config config{.grid = 1, .block = block_threads};
    config.schedule.timeout_ns = 0;  // what waits inside has its own deadline
    config.schedule.switch_percent = GPUFS_ON_CUDA ? 0 : 5;
    const unsigned room = simt::max_cooperative_grid<block_threads, least_blocks>(config, kernel);
    const std::uint64_t most = std::min<std::uint64_t>(most_blocks_, GPUFS_ON_CUDA ? std::max(room, 1u) : 3);
    config.grid = static_cast<unsigned>(std::clamp<std::uint64_t>((nchunks + nwarps_a_block - 1) / nwarps_a_block, 1, most));
    simt::launch<block_threads, least_blocks>(config, kernel);
    const query_state got = state_.read_one();
    if (got.failure != query_state::no_failure)
      throw read_failure{static_cast<std::size_t>(got.failure >> 12), static_cast<int>(got.failure & 0xfff)};
    all.npassed = got.npassed;
    all.sums = sums_.read();
    for (column_sums& each : all.sums) carry(each);
  }

  value_type type_;
  condition wanted_;
  std::uint64_t nrows_, most_blocks_;
  simt::device_array<summed_column> columns_;
  simt::device_array<column_sums> sums_;
  simt::device_array<query_state> state_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::query
