// SPDX-License-Identifier: Apache-2.0
// Groups of vectors compared with queries by a kernel. docs/design/vectors.md, "The kernel".
#pragma once
#include <cerrno>
#include <cmath>
#include <cstdint>

#include "apps/element_runs.hpp"
#include "apps/vectors/plan.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::apps::vectors {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned tile_queries = GPUFS_ON_CUDA ? 32 : 8;  // that a block has at once
inline constexpr unsigned nwarps_a_block = GPUFS_ON_CUDA ? 8 : 2, block_threads = 32 * nwarps_a_block;
inline constexpr unsigned slice_dims = GPUFS_ON_CUDA ? 256 : 16;  // elements of each query that a block has at once
inline constexpr unsigned tile_stride = tile_queries + 4;         // else the stores of a query meet in one bank
static_assert(tile_queries <= 32 && tile_queries % 4 == 0);

struct alignas(16) four_floats {
  float of[4];
};

// What a block works with, in shared memory.
struct scan_space {
  alignas(16) float queries[slice_dims * tile_stride];  // element d of query t at d * tile_stride + t
  std::uint32_t bounds[tile_queries];                   // bits of a distance; what is farther is not among the k nearest
  probe probes[tile_queries];
};
static_assert(sizeof(scan_space) <= 48 << 10);

// What a kernel leaves to the host, and the host to it.
struct scan_state {
  std::uint32_t next;  // unit that nobody has taken
  std::uint32_t stop;  // not 0: take no more
  std::int64_t error;  // of any warp, a negative errno; or 0
};

// The k nearest keys so far, ascending; no_key behind them. In memory of the device that a warp has alone.
//
// Puts in the keys of the lanes that have one, where they belong; what comes after k falls off the end. All lanes call. The bits of
// the k-th one's distance.
GPUFS_DEVICE std::uint32_t put_in(simt::warp warp, std::uint64_t* nearest, std::uint32_t k, bool has, std::uint64_t key) {
  const std::uint32_t candidates = warp.ballot(has);
  std::uint32_t at = 0;  // where the lane's key goes: how many are less
  for (std::uint32_t first = (k - 1) / 32 * 32;; first -= 32) {
    const std::uint32_t i = first + warp.rank();
    const std::uint64_t old = i < k ? nearest[i] : no_key;
    std::uint32_t shift = 0;  // how many candidates are less
    for (std::uint32_t left = candidates; left != 0; left &= left - 1) {
      const unsigned lane = simt::lowest_lane(left);
      const std::uint64_t other = warp.shfl(key, lane);
      const unsigned less = warp.count(old < other);
      if (warp.rank() == lane) at += less;
      if (first == 0 && other < key) ++at;
      if (other < old) ++shift;
    }
    // All of these 32 are in registers, and those behind have moved already.
    if (shift != 0 && i + shift < k) nearest[i + shift] = old;
    if (first == 0) break;
  }
  warp.sync();
  if (has && at < k) nearest[at] = key;
  warp.sync();
  return distance_bits(nearest[k - 1]);
}

// Puts in those of n keys, in ascending order, that are not too far. The bits of the k-th one's distance.
GPUFS_DEVICE std::uint32_t put_in_sorted(simt::warp warp, std::uint64_t* nearest, std::uint32_t k, const std::uint64_t* keys,
                                         std::uint32_t bound) {
  for (std::uint32_t first = 0; first < k; first += 32) {
    const std::uint32_t i = first + warp.rank();
    const std::uint64_t key = i < k ? keys[i] : no_key;
    const bool has = key != no_key && distance_bits(key) <= bound;
    if (!warp.any(has)) break;
    const std::uint32_t last = put_in(warp, nearest, k, has, key);
    bound = last < bound ? last : bound;
  }
  return bound;
}

// Elements: in_memory or by_page, of 4 bytes.
template <class Elements>
struct scan_kernel {
  Elements elements;
  const unit* units;
  std::uint32_t nunits;
  const probe* probes;
  const float* queries;  // dim elements each
  std::uint32_t dim, k;
  std::uint64_t* lists;   // k keys for each query of a tile, for each warp of the launch
  std::uint64_t* found;   // k keys for each slot
  std::uint32_t* bounds;  // of each query
  scan_state* state;

  GPUFS_DEVICE void operator()() const {
    const simt::block block = this_block();
    scan_space& mine = simt::shared<scan_space>();
    typename Elements::cursor cursor(elements);
    for (;;) {
      std::uint32_t taken = nunits;
      if (block.leader() && simt::atomic_ref<std::uint32_t>(state->stop).load(std::memory_order_relaxed) == 0)
        taken = simt::atomic_ref<std::uint32_t>(state->next).fetch_add(1, std::memory_order_relaxed);
      taken = block.broadcast(taken);
      if (taken >= nunits) break;
      const unit of = units[taken];
      begin(block, mine, of);
      const int error = scan(block, mine, of, cursor);
      if (error != 0 && this_warp().leader()) {
        simt::atomic_ref<std::int64_t>(state->error).store(error, std::memory_order_relaxed);
        simt::atomic_ref<std::uint32_t>(state->stop).store(1, std::memory_order_relaxed);
      }
      block.sync();
      end(mine, of);
      block.sync();  // all have done with what the block shares
    }
    cursor.leave(this_warp());
  }

 private:
  GPUFS_DEVICE std::uint64_t* list_of(unsigned warp_of_block, unsigned t) const {
    const std::uint64_t warp = std::uint64_t{simt::block_rank()} * nwarps_a_block + warp_of_block;
    return lists + (warp * tile_queries + t) * k;
  }

  GPUFS_DEVICE void begin(simt::block block, scan_space& mine, const unit& of) const {
    if (const unsigned t = block.rank(); t < of.nprobes) {
      const probe each = probes[of.first_probe + t];
      mine.probes[t] = each;
      mine.bounds[t] = simt::atomic_ref<std::uint32_t>(bounds[each.query]).load(std::memory_order_relaxed);
    }
    const std::uint64_t n = std::uint64_t{of.nprobes} * k;
    std::uint64_t* const nearest = list_of(simt::warp_rank(), 0);
    for (std::uint64_t i = simt::lane_id(); i < n; i += 32) nearest[i] = no_key;
    block.sync();
    if (dim <= slice_dims) load_queries(mine, of, 0);
    block.sync();
  }
  GPUFS_DEVICE void load_queries(scan_space& mine, const unit& of, std::uint32_t first) const {
    const std::uint32_t ndims = dim - first < slice_dims ? dim - first : slice_dims;
    for (unsigned t = simt::warp_rank(); t < (of.nprobes + 3) / 4 * 4; t += nwarps_a_block) {
      const bool is_there = t < of.nprobes;
      const float* const query = queries + std::uint64_t{mine.probes[is_there ? t : 0].query} * dim + first;
      for (std::uint32_t d = simt::lane_id(); d < ndims; d += 32) mine.queries[d * tile_stride + t] = is_there ? query[d] : 0.f;
    }
  }

  // 0 or a negative errno. Each warp has groups side by side, so that it maps most pages alone.
  GPUFS_DEVICE int scan(simt::block block, scan_space& mine, const unit& of, typename Elements::cursor& cursor) const {
    const simt::warp warp = this_warp();
    const std::uint32_t nturns = (of.ngroups + nwarps_a_block - 1) / nwarps_a_block;
    const std::uint32_t first = simt::warp_rank() * nturns;
    int error = 0;
    for (std::uint32_t i = 0; i < nturns; ++i) {
      const bool is_there = first + i < of.ngroups;
      const std::uint64_t row = of.begin / row_nbytes + (first + i) * rows_a_group(dim);
      float sums[tile_queries];
      GPUFS_UNROLL
      for (float& sum : sums) sum = 0;
      for (std::uint32_t d = 0; d < dim; d += slice_dims) {
        if (dim > slice_dims) {  // all warps together
          block.sync();
          load_queries(mine, of, d);
          block.sync();
        }
        if (is_there && error == 0)
          error = add_rows(warp, mine, of, cursor, row + d, dim - d < slice_dims ? dim - d : slice_dims, sums);
      }
      if (!is_there || error != 0) continue;
      const run ids = cursor.at(warp, (row + dim) * group_vectors, group_vectors);
      if (ids.n == 0) {
        error = ids.error;
        continue;
      }
      offer(warp, mine, of.nprobes, sums, reinterpret_cast<const std::uint32_t*>(ids.data)[warp.rank()]);
    }
    return error;
  }

  // Of n rows from `row` on, which are elements of 32 vectors, one for each lane.
  GPUFS_DEVICE static int add_rows(simt::warp warp, const scan_space& mine, const unit& of, typename Elements::cursor& cursor,
                                   std::uint64_t row, std::uint32_t n, float (&sums)[tile_queries]) {
    const std::uint32_t nquads = (of.nprobes + 3) / 4;
    const float* queries = mine.queries;
    while (n != 0) {
      const run here = cursor.at(warp, row * group_vectors, std::uint64_t{n} * group_vectors);
      if (here.n == 0) return here.error;
      const auto nrows = static_cast<std::uint32_t>(here.n / group_vectors);
      if (nrows == 0) return -ESTALE;  // the file ends within a row
      const float* elements = reinterpret_cast<const float*>(here.data) + warp.rank();
      std::uint32_t i = 0;
      for (; i + 4 <= nrows; i += 4, elements += 4 * group_vectors, queries += 4 * tile_stride)
        add<4>(elements, queries, nquads, sums);
      for (; i < nrows; ++i, elements += group_vectors, queries += tile_stride) add<1>(elements, queries, nquads, sums);
      row += nrows;
      n -= nrows;
    }
    return 0;
  }
  // In the order of the elements, by a subtraction and a fused multiplication and addition: all engines get the same bits.
  template <unsigned Rows>
  GPUFS_DEVICE static void add(const float* elements, const float* queries, std::uint32_t nquads, float (&sums)[tile_queries]) {
    float x[Rows];
    GPUFS_UNROLL
    for (unsigned r = 0; r < Rows; ++r) x[r] = elements[r * group_vectors];
    GPUFS_UNROLL
    for (unsigned quad = 0; quad < tile_queries / 4; ++quad) {
      if (quad >= nquads) break;
      GPUFS_UNROLL
      for (unsigned r = 0; r < Rows; ++r) {
        const auto q = *reinterpret_cast<const four_floats*>(queries + r * tile_stride + 4 * quad);
        GPUFS_UNROLL
        for (unsigned j = 0; j < 4; ++j) {
          const float off = q.of[j] - x[r];
          sums[4 * quad + j] = fmaf(off, off, sums[4 * quad + j]);
        }
      }
    }
  }

  GPUFS_DEVICE static simt::atomic_ref<std::uint32_t, simt::scope::block> bound(scan_space& mine, unsigned t) {
    return simt::atomic_ref<std::uint32_t, simt::scope::block>(mine.bounds[t]);
  }
  // The lane's vector to the queries of the tile.
  GPUFS_DEVICE void offer(simt::warp warp, scan_space& mine, std::uint32_t nqueries, const float (&sums)[tile_queries],
                          std::uint32_t id) const {
    std::uint32_t near = 0;  // queries whose bound it is within
    GPUFS_UNROLL
    for (unsigned t = 0; t < tile_queries; ++t) {
      if (t < nqueries && bits_of(sums[t]) <= bound(mine, t).load(std::memory_order_relaxed)) near |= 1u << t;
    }
    if (id == no_id) near = 0;
    for (;;) {
      const std::uint32_t lanes = warp.ballot(near != 0);
      if (lanes == 0) return;
      const unsigned t = simt::trailing_zeros(warp.shfl(near, simt::lowest_lane(lanes)));
      float distance = 0;
      GPUFS_UNROLL
      for (unsigned j = 0; j < tile_queries; ++j) {
        if (j == t) distance = sums[j];  // an index would have the sums lie on the stack
      }
      const bool has = (near >> t & 1) != 0;
      near &= ~(1u << t);
      const std::uint32_t last = put_in(warp, list_of(simt::warp_rank(), t), k, has, key_of(distance, id));
      if (warp.leader()) bound(mine, t).fetch_min(last, std::memory_order_relaxed);
    }
  }

  // Makes one list of those that the block's warps have for a query.
  GPUFS_DEVICE void end(scan_space& mine, const unit& of) const {
    const simt::warp warp = this_warp();
    for (unsigned t = simt::warp_rank(); t < of.nprobes; t += nwarps_a_block) {
      std::uint64_t* const nearest = list_of(simt::warp_rank(), t);
      std::uint32_t limit = bound(mine, t).load(std::memory_order_relaxed);
      for (unsigned other = 0; other < nwarps_a_block; ++other) {
        if (other != simt::warp_rank()) limit = put_in_sorted(warp, nearest, k, list_of(other, t), limit);
      }
      const probe each = mine.probes[t];
      std::uint64_t* const to = found + (std::uint64_t{each.slot} + of.piece) * k;
      for (std::uint32_t i = warp.rank(); i < k; i += 32) to[i] = nearest[i];
      if (warp.leader()) simt::atomic_ref<std::uint32_t>(bounds[each.query]).fetch_min(limit, std::memory_order_relaxed);
    }
  }
};

// Makes one list of those in a query's slots.
struct merge_kernel {
  const std::uint32_t* slots;
  std::uint32_t nqueries, k;
  const std::uint64_t* found;
  const std::uint32_t* bounds;
  std::uint64_t* nearest;  // k keys for each query

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = this_warp();
    for (std::uint64_t q = simt::global_warp_rank(); q < nqueries; q += simt::global_warp_count()) {
      std::uint64_t* const mine = nearest + q * k;
      for (std::uint32_t i = warp.rank(); i < k; i += 32) mine[i] = no_key;
      warp.sync();
      std::uint32_t bound = bounds[q];
      for (std::uint64_t slot = slots[q]; slot < slots[q + 1]; ++slot)
        bound = put_in_sorted(warp, mine, k, found + slot * k, bound);
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::vectors
