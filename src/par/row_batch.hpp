// SPDX-License-Identifier: Apache-2.0
// row_batch for the machine that the including source is compiled for, which has defined sort_space_nbytes and sort_rows.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "gpufs/par/read_row.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/par/store_rows.hpp"
#include "gpufs/simt/launch.hpp"
#include "rows_by_host.hpp"
#include "sort_rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

struct number_rows {
  row_part_of_batch part;
  std::uint64_t* rows;
  std::uint32_t* places;

  GPUFS_DEVICE void operator()() const {
    part.each(this_thread(), [&](auto, std::uint32_t i) {
      rows[i] = row_of(part.numbers, i, part.layout);
      places[i] = i;
    });
  }
};

// Each row once. The lanes of a warp look for a row each, and then its groups copy what is at hand, a row each; the rest the warp
// reads row by row, when it has no page pinned.
template <class Group>
struct gather_rows {
  row_part_of_batch part;
  file from;
  std::byte* to;
  touched_pages touched;
  rows_for_host left;

  GPUFS_DEVICE void operator()() const {
    using place = row_at_hand::place;
    const simt::warp warp = simt::this_warp();
    const file_pages of(from);
    const std::uint32_t nwarps = simt::block_size() / simt::warp_lanes, at_once = part.rows_a_warp;
    const std::uint64_t begin = std::uint64_t{simt::block_rank()} * part.rows_a_block;
    const std::uint64_t end = begin + part.rows_a_block < part.n ? begin + part.rows_a_block : part.n;
    for (std::uint64_t first = begin + std::uint64_t{simt::warp_rank()} * at_once; first < end;
         first += std::uint64_t{nwarps} * at_once) {
      const auto mine = static_cast<std::uint32_t>(first) + warp.rank();
      const bool is_mine = warp.rank() < at_once && mine < end && !(part.is_row(part.row(mine)) && part.repeats(mine));
      row_at_hand at{};
      if (is_mine && from.error() == 0 && part.is_row(part.row(mine))) {
        const open_entry entry = of.look();
        const cache::frames frames(cache::unpack(entry.frames));
        at = look_for_row(of, entry.view, frames, part.offset(part.row(mine)), part.layout.row_nbytes, touched,
                          {part.is_repeated(mine), left.may_be()});
      }
      const std::uint32_t cut = copy(warp, static_cast<std::uint32_t>(first), at);
      if (at.where == place::frame) cache::frames(of.frames()).unpin(at.frame);
      const std::uint32_t hits = warp.ballot(at.where == place::frame), asked = warp.ballot(at.where == place::host);
      const std::uint32_t wanted = warp.ballot(is_mine) & ~asked;
      if (asked != 0) simt::call_cold(&add_rows_for_host, left, mine, asked);
      const std::uint32_t seen = warp.ballot(at.seen);
      std::uint32_t pulled = warp.ballot(at.where == place::mapping) & ~cut, lost = 0, nhits = simt::count_lanes(hits);
      std::uint32_t slow = warp.ballot(is_mine && at.where == place::nowhere) | cut;
      for (; slow != 0; slow &= slow - 1) {
        const std::uint32_t bit = slow & (0 - slow), i = static_cast<std::uint32_t>(first) + simt::count_lanes(bit - 1);
        const row_read got = read(warp, of, i, (seen & bit) != 0);
        if (got.error != 0) {
          lose_row(warp, part, of, from, to, i, got.error);
          lost |= bit;
        }
        if (got.pulled) pulled |= bit;
        nhits += got.nhits;
      }
      // One look at the version for all that were pulled.
      if (pulled != 0) {
        warp.sync();
        const int error = by_leader(warp, [&] { return simt::call_cold(&end_of_version, of); });
        if (error != 0) lost |= pulled;
        for (; error != 0 && pulled != 0; pulled &= pulled - 1) {
          lose_row(warp, part, of, from, to, static_cast<std::uint32_t>(first) + simt::count_lanes((pulled & (0 - pulled)) - 1),
                   error);
        }
      }
      if (warp.leader() && wanted != lost) {
        count(of.hits().bytes_read, simt::count_lanes(wanted & ~lost) * part.layout.row_nbytes);
        if (nhits != 0) count(of.hits().hits, nhits);
      }
    }
  }

 private:
  // Copies the rows that the lanes have at hand, from `first` on: from the device's memory by groups that keep it busiest. Which of
  // them were cut from their mapping meanwhile. All lanes call.
  GPUFS_DEVICE std::uint32_t copy(simt::warp warp, std::uint32_t first, const row_at_hand& at) const {
    using place = row_at_hand::place;
    copy_by(simt::tile<8>{}, warp, first, at, warp.ballot(at.where == place::frame || at.where == place::device), false);
    const std::uint32_t cut = copy_by(Group{}, warp, first, at, warp.ballot(at.where == place::mapping), true);
    finish_reads(warp);
    return cut;
  }
  template <class By>
  GPUFS_DEVICE std::uint32_t copy_by(By group, simt::warp warp, std::uint32_t first, const row_at_hand& at, std::uint32_t wanted,
                                     bool from_mapping) const {
    constexpr unsigned side_by_side = simt::warp_lanes / By::lanes;
    std::uint32_t cut = 0;
    for (unsigned next = 0; next < part.rows_a_warp && (wanted >> next) != 0; next += side_by_side) {
      const unsigned i = next + warp.rank() / By::lanes;
      const std::uint64_t address = warp.shfl(at.address, i);
      if ((wanted >> i & 1) == 0) continue;
      const auto* const there = reinterpret_cast<const std::byte*>(address);
      std::byte* const here = to + part.in_memory(first + i);
      if (!from_mapping) {
        simt::copy_bytes(group, here, there, part.layout.row_nbytes);
      } else if (simt::copy_from_host(group, here, there, part.layout.row_nbytes) != 0) {
        cut |= 1u << i;
      }
    }
    if (!warp.any(cut != 0)) return 0;
    for (unsigned distance = simt::warp_lanes / 2; distance != 0; distance /= 2) cut |= warp.shfl_xor(cut, distance);
    return cut;
  }
  GPUFS_DEVICE row_read read(simt::warp warp, const file_pages& of, std::uint32_t i, bool seen) const {
    if (from.error() != 0) return {from.error(), false, 0};
    const std::uint64_t row = part.row(i);
    if (!part.is_row(row)) return {-EDOM, false, 0};
    return read_row(warp, of, to + part.in_memory(i), part.layout.row_nbytes, part.offset(row), touched,
                    seen || part.is_repeated(i));
  }
};

// And the others from where the first one is now.
template <class Group>
struct repeat_rows {
  row_part_of_batch part;
  std::byte* to;

  GPUFS_DEVICE void operator()() const {
    part.each(Group{}, [&](Group group, std::uint32_t i) {
      const std::uint64_t row = part.rows[i];
      if (!part.is_row(row) || !part.repeats(i)) return;
      std::uint32_t low = 0, high = i;  // the first of equal rows is in [low, high]
      while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (part.rows[middle] < row) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      simt::copy_bytes(group, to + part.in_memory(i), to + part.in_memory(low), part.layout.row_nbytes);
    });
  }
};

// Of equal rows the one that comes last in the batch. The lanes of a warp look for a row each, and what may go past the cache its
// groups store, a row each; the rest the warp writes row by row.
template <class Group>
struct scatter_rows {
  row_part_of_batch part;
  file to;
  const std::byte* from;

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    const std::uint32_t at_once = part.rows_a_warp, step = simt::block_size() / simt::warp_lanes * at_once;
    const std::uint64_t begin = std::uint64_t{simt::block_rank()} * part.rows_a_block;
    const std::uint64_t end = begin + part.rows_a_block < part.n ? begin + part.rows_a_block : part.n;
    for (std::uint64_t first = begin + std::uint64_t{simt::warp_rank()} * at_once; first < end; first += step) {
      const auto mine = static_cast<std::uint32_t>(first) + warp.rank();
      const bool is_mine = warp.rank() < at_once && mine < end;
      const bool is_row = is_mine && part.is_row(part.row(mine));
      if (is_mine && !is_row) part.fail(mine, -EDOM);
      row_to_write row{};
      row.wanted = is_row && !part.is_repeated(mine);
      if (row.wanted) {
        row.from = from + part.in_memory(mine);
        row.offset = part.offset(part.row(mine));
      }
      write_rows<Group>(warp, to, row, part.layout.row_nbytes,
                        [&](unsigned lane, int error) { part.fail(static_cast<std::uint32_t>(first) + lane, error); });
    }
  }
};

constexpr std::uint64_t most_by_eight = 256;  // bytes: of the rows that 8 lanes copy from a mapping; larger ones a warp does

// How many of n rows a warp's lanes look for at once: as leaves all multiprocessors warps.
constexpr std::uint32_t least_at_once = 4;
inline std::uint32_t fair_at_once(std::uint32_t n) {
  constexpr std::uint32_t nwarps = GPUFS_ON_CUDA ? 8192 : 8;
  return std::clamp<std::uint32_t>(std::bit_floor(n / nwarps), least_at_once, simt::warp_lanes);
}
// The same where they are stored, and a fence waits until they are: as many as keep the bus busy meanwhile.
inline std::uint32_t rows_at_once(const row_part_of_batch& part) {
  constexpr std::uint64_t most_nbytes = 16384;
  const auto most = static_cast<std::uint32_t>(std::min<std::uint64_t>(most_nbytes / part.layout.row_nbytes, simt::warp_lanes));
  return std::clamp(most, least_at_once, fair_at_once(part.n));
}

inline std::size_t sort_space_on(simt::platform& device, std::uint32_t most) {
  const simt::on_device here(device);
  return par::sort_space_nbytes(most);
}

[[noreturn]] inline void refuse(const char* why) { throw std::invalid_argument(std::string("gpufs::row_batch: ") + why); }

inline void check_rows(const row_layout& layout, std::uint64_t n) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (layout.nrows >= most || layout.begin > most || layout.row_nbytes > most) refuse("the rows end beyond 2^63 bytes");
  if (layout.nrows != 0) {
    const std::uint64_t room = most - layout.begin, stride = std::max<std::uint64_t>(1, layout.stride_nbytes);
    if (layout.row_nbytes > room || layout.nrows - 1 > (room - layout.row_nbytes) / stride)
      refuse("the rows end beyond 2^63 bytes");
  }
  if (n >= std::uint64_t{1} << 52 || (layout.row_nbytes != 0 && n > most / layout.row_nbytes)) refuse("n is too large");
}

}  // namespace detail

row_batch::row_batch(const host_mount& fs, std::uint32_t max_nrows, std::uint32_t unsorted)
    : device_(&fs.device()),
      max_nrows_(max_nrows != 0 ? max_nrows : throw std::invalid_argument("gpufs::row_batch: max_nrows is 0")),
      unsorted_(unsorted),
      rows_(2 * std::size_t{max_nrows}, *device_),
      places_(2 * std::size_t{max_nrows}, *device_),
      space_(detail::sort_space_on(*device_, max_nrows), *device_),
      touched_(std::bit_ceil(fs.layout().cache.frames.nframes), *device_),
      failed_(1, *device_),
      has_opened_staged_(&fs.has_opened_staged()),
      buffers_(fs.row_buffers()),
      for_host_(2, *device_) {
  failed_.write_one(row_failure::none);
  load();
}

// What batches launch, so that none of it is loaded while a kernel of another stream, or of this one, waits for the host.
void row_batch::load() {
  const simt::on_device here(*device_);
  const auto each = [](auto group) {
    using group_type = decltype(group);
    detail::load_row_kernel<detail::gather_rows<group_type>>();
    detail::load_row_kernel<detail::repeat_rows<group_type>>();
    detail::load_row_kernel<detail::scatter_rows<group_type>>();
  };
  each(simt::tile<8>{});
  each(simt::warp{});
  detail::load_rows_by_host();
  detail::load_row_kernel<detail::number_rows>();
  if (!GPUFS_ON_CUDA) return;
  // The sort's kernels have no names for us, and are others for few rows.
  const simt::stream turns(*device_);
  for (const std::uint32_t n : {1u, std::min(max_nrows_, 2 * usually_unsorted)}) {
    par::sort_rows({rows_.get(), places_.get(), rows_.get() + max_nrows_, places_.get() + max_nrows_, n, 8}, space_.get(),
                   space_.size(), queue_of(turns));
  }
  turns.wait();
}

void row_batch::gather_in(const file& from, const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n,
                          void* dst, queue on) {
  auto* const to = static_cast<std::byte*>(dst);
  each_part(layout, numbers, n, [&](detail::row_part_of_batch part) {
    if (++piece_ > 255) piece_ = 1;
    const detail::touched_pages touched(touched_.get(), static_cast<std::uint32_t>(touched_.size() - 1), piece_);
    if (n > unsorted_) sort(part, on);
    const detail::rows_for_host left = take_rows_for_host(layout);
    const auto by = [&](auto group) {
      using group_type = decltype(group);
      start(detail::gather_rows<group_type>{part, from, to, touched, left},
            part.rows_a_warp * detail::rows_block / simt::warp_lanes, on);
      if (left.may_be()) detail::start_rows_by_host({part, from, to, left}, *device_, on);
      if (n > unsorted_) start_for<group_type>(detail::repeat_rows<group_type>{part, to}, on);
    };
    // 8 lanes take two rows of 128 bytes as a warp takes one of 512: with 16-byte loads, four in flight a lane at most.
    if (layout.row_nbytes <= detail::most_by_eight) {
      by(simt::tile<8>{});
    } else {
      by(simt::warp{});
    }
  });
}

void row_batch::scatter_in(const file& to, const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n,
                           const void* src, queue on) {
  if (layout.stride_nbytes != 0 && layout.stride_nbytes < layout.row_nbytes)
    detail::refuse("stride_nbytes is less than row_nbytes: rows that are written may not overlap");
  each_part(layout, numbers, n, [&](detail::row_part_of_batch part) {
    if (part.n > 1) sort(part, on);  // else of two equal rows any may come last
    part.rows_a_warp = detail::rows_at_once(part);
    const auto by = [&](auto group) {
      start(detail::scatter_rows<decltype(group)>{part, to, static_cast<const std::byte*>(src)},
            part.rows_a_warp * detail::rows_block / simt::warp_lanes, on);
    };
    if (layout.row_nbytes <= detail::most_by_eight) {
      by(simt::tile<8>{});
    } else {
      by(simt::warp{});
    }
  });
}

// What host threads are to gather of a piece is listed where its rows were before they were sorted.
detail::rows_for_host row_batch::take_rows_for_host(const row_layout& layout) {
  if (buffers_.fitting(layout.row_nbytes) == 0 || !has_opened_staged_->load(std::memory_order_relaxed)) return {};
  turn_ ^= 1;
  return {buffers_, places_.get(), for_host_.get() + turn_, for_host_.get() + (turn_ ^ 1)};
}

row_failure row_batch::failure() {
  const row_failure failed = row_failure::of(failed_.read_one());
  if (failed.error != 0) failed_.write_one(row_failure::none);
  return failed;
}

// Calls work(part) for the pieces of the batch.
template <class Work>
void row_batch::each_part(const row_layout& asked, const detail::numbers_of_rows& numbers, std::uint64_t n, Work work) {
  row_layout layout = asked;
  if (layout.stride_nbytes == 0) layout.stride_nbytes = layout.row_nbytes;
  detail::check_rows(layout, n);
  if (layout.row_nbytes == 0) return;
  for (std::uint64_t first = 0; first < n; first += max_nrows_) {
    detail::row_part_of_batch part{};
    part.layout = layout;
    part.numbers = numbers;
    part.numbers.of = static_cast<const std::byte*>(numbers.of) + first * (numbers.wide ? 8 : 4);
    part.first = first;
    part.n = static_cast<std::uint32_t>(std::min<std::uint64_t>(n - first, max_nrows_));
    // Of larger rows few, so that those which are read at one time lie close together; there a look is little beside the bytes.
    part.rows_a_warp = layout.row_nbytes > detail::most_by_eight ? detail::least_at_once : detail::fair_at_once(part.n);
    part.failed = failed_elsewhere_ != nullptr ? failed_elsewhere_ : failed_.get();
    work(part);
  }
}

template <class Part>
void row_batch::sort(Part& part, queue on) {
  start_for<simt::tile<1>>(detail::number_rows{part, rows_.get(), places_.get()}, on);
  par::row_order order{rows_.get(), places_.get(), rows_.get() + max_nrows_, places_.get() + max_nrows_, part.n, 0};
  order.number_nbits = std::max(1u, static_cast<unsigned>(std::bit_width(part.layout.nrows)));
  const simt::on_device here(*device_);
  par::sort_rows(order, space_.get(), space_.size(), on);
  part.rows = order.sorted_numbers;
  part.places = order.sorted_places;
}

// A block's groups have four rows each.
template <class Group, class Kernel>
void row_batch::start_for(const Kernel& kernel, queue on) const {
  start(kernel, 4 * detail::rows_block / Group::lanes, on);
}

// A block has least_rows, and more where the grid would be too large. Blocks begin in the order of their numbers, and so the device
// is at one place of the sorted rows at a time.
template <class Kernel>
void row_batch::start(Kernel kernel, std::uint64_t least_rows, queue on) const {
  constexpr std::uint64_t most_blocks = GPUFS_ON_CUDA ? 1u << 20 : 4;
  const std::uint64_t n = kernel.part.n, rows_a_block = std::max<std::uint64_t>(least_rows, (n + most_blocks - 1) / most_blocks);
  kernel.part.rows_a_block = static_cast<std::uint32_t>(rows_a_block);
  simt::launch_config config{.grid = static_cast<unsigned>((n + rows_a_block - 1) / rows_a_block), .block = detail::rows_block};
  config.schedule.timeout_ns = 0;  // many rows may take long; what waits inside has its own deadline
  const simt::on_device here(*device_);
  simt::launch<detail::rows_block, detail::least_row_blocks>(config, kernel, on);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
