// SPDX-License-Identifier: Apache-2.0
// row_batch for the machine that the including source is compiled for, which has defined sort_space_nbytes and sort_rows.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/par/detail/store_rows.hpp"
#include "gpufs/par/detail/take_rows.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/simt/launch.hpp"
#include "measured.hpp"
#include "rows_by_host.hpp"
#include "sort_rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

struct number_rows {
  row_part_of_batch part;
  std::uint64_t* words;
  std::uint32_t* places;  // null: in the words

  GPUFS_DEVICE void operator()() const {
    part.each(this_thread(), [&](auto, std::uint32_t i) {
      const std::uint64_t row = row_of(part.numbers, i, part.layout);
      words[i] = places != nullptr ? row : row << 32 | i;
      if (places != nullptr) places[i] = i;
    });
  }
};
static_assert(sizeof(number_rows) == sizeof(row_part_of_batch) + 16);

// Each row once. Parts: as row_reader's.
template <class Group, unsigned Parts>
struct gather_rows : row_reader<Group, row_part_of_batch, rows_for_host, Parts> {
  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    const file_pages of(this->from);
    this->part.each_some(this->part.rows_a_warp, [&](std::uint64_t first, std::uint64_t end) {
      this->read_some(warp, of, first, end, this->part.rows_a_warp);
    });
  }
};
static_assert(sizeof(gather_rows<by_size, 1>) == sizeof(row_part_of_batch) + 96 && sizeof(gather_rows<by_size, 2>) == 200);

// Of few rows, which are not sorted, each by a warp of its own.
struct gather_few_rows : row_reader<by_size, row_part_of_batch, rows_for_host> {
  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    const file_pages of(from);
    part.each(warp, [&](auto, std::uint32_t i) {
      const row_read got = read(warp, of, i, false);
      int error = got.error;
      if (error == 0 && got.pulled) {
        warp.sync();
        error = by_leader(warp, [&] { return simt::call_cold(&end_of_version, of); });
      }
      if (error != 0) {
        lose_row(warp, part, of, from, to, i, error);
      } else if (warp.leader()) {
        count(of.hits().bytes_read, part.layout.row_nbytes);
        if (got.nhits != 0) count(of.hits().hits, got.nhits);
      }
    });
  }
};
static_assert(sizeof(gather_few_rows) == sizeof(gather_rows<by_size, 1>));

// And the others from where the first one is now. Each lane looks at a row, as most batches have few that repeat others; the first
// one of equal rows is looked for once a warp, as it is one of the warp's own but for those that the last warp's rows go on in.
struct repeat_rows {
  row_part_of_batch part;
  std::byte* to;

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    part.each_some(simt::warp_lanes, [&](std::uint64_t begin, std::uint64_t end) {
      const auto i = static_cast<std::uint32_t>(begin) + warp.rank();
      const bool repeats = i < end && part.is_row(part.sorted_row(i)) && part.repeats(i);
      std::uint32_t left = warp.ballot(repeats);
      if (left == 0) return;
      const std::uint32_t firsts = warp.ballot(!repeats) & ((2u << warp.rank()) - 1);  // up to the lane's own
      std::uint32_t first = static_cast<std::uint32_t>(begin);
      if ((left & 1) != 0) first = by_leader(warp, [&] { return first_of_equal(part, first); });
      if (firsts != 0) first = static_cast<std::uint32_t>(begin) + simt::highest_lane(firsts);
      const auto from = repeats ? part.in_memory(first) : 0, here = repeats ? part.in_memory(i) : 0;
      constexpr unsigned side_by_side = simt::warp_lanes / copier::lanes;
      while (left != 0) {
        const unsigned next = simt::lowest_lane(left) / side_by_side * side_by_side, k = next + warp.rank() / copier::lanes;
        const auto source = warp.shfl(from, k), target = warp.shfl(here, k);
        if ((left >> k & 1) != 0) simt::copy_bytes(copier{}, to + target, to + source, part.layout.row_nbytes);
        left &= ~(((1u << side_by_side) - 1) << next);
      }
    });
  }

 private:
  using copier = up_to_eight<simt::warp>;
};

template <class Group>
struct scatter_rows : row_writer<Group, row_part_of_batch> {
  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    this->part.each_some(this->part.rows_a_warp, [&](std::uint64_t first, std::uint64_t end) {
      this->write_some(warp, first, end, this->part.rows_a_warp);
    });
  }
};
static_assert(sizeof(scatter_rows<by_size>) == sizeof(row_part_of_batch) + 24);

// In how many pages, of one or two, each of these rows lies; 1 also where some lie in more.
inline unsigned parts_of_rows(const row_layout& layout, std::uint64_t page_nbytes) {
  const std::uint64_t row = layout.row_nbytes, stride = layout.stride_nbytes;
  const auto lies_within = [&](std::uint64_t cell) { return layout.begin % cell + row <= cell; };
  const bool is_in_one =
      (page_nbytes % stride == 0 && lies_within(stride)) || (stride % page_nbytes == 0 && lies_within(page_nbytes));
  return is_in_one || row > page_nbytes ? 1 : 2;
}

// So that all multiprocessors have warps.
constexpr std::uint32_t fair_nwarps = GPUFS_ON_CUDA ? 8192 : 8;

// Batches of so many rows take a warp for each, so that rows that are not cached do not wait for each other.
constexpr std::uint32_t few_rows = GPUFS_ON_CUDA ? 1024 : 4;

// How many rows a warp looks for at once, of n that lie anywhere in the file. Large ones are few where all that are read at one
// time would lie further apart than address translation reaches ("From inside a kernel" in docs/design/batches.md).
inline std::uint32_t looked_for(const row_layout& layout, std::uint32_t n) {
  constexpr double most_apart = 512 << 20;  // bytes
  const std::uint32_t looked = looked_for_at_once(layout.row_nbytes, n, fair_nwarps);
  const double step = static_cast<double>(layout.nrows) * static_cast<double>(layout.stride_nbytes) / n;
  const bool is_far = layout.row_nbytes > most_by_eight && step * (fair_nwarps / 2) * looked > most_apart;
  return is_far && looked > least_at_once ? least_at_once : looked;
}

// What is where in a workspace, in bytes from its begin.
struct workspace_layout {
  struct words {
    std::uint64_t failed = row_failure::none;
    row_counts for_host[2]{};
  };
  static_assert(sizeof(words) == 24 && offsetof(words, failed) == 0 && offsetof(words, for_host) == 8);
  std::size_t words_of_rows, places, space, space_nbytes;

  static workspace_layout of(simt::platform& device, std::uint32_t max_nrows) {
    const simt::on_device here(device);
    std::size_t end = 0;
    const auto take = [&](std::size_t nbytes) {
      const std::size_t begin = end;
      constexpr std::size_t unit = row_batch::workspace_alignment;
      end += (nbytes + unit - 1) / unit * unit;
      return begin;
    };
    take(sizeof(words));
    const std::size_t words = take(2 * sizeof(std::uint64_t) * max_nrows), places = take(2 * sizeof(std::uint32_t) * max_nrows);
    return {words, places, end, par::sort_space_nbytes(max_nrows)};
  }
  std::size_t nbytes() const { return space + space_nbytes; }
};

// Of all mounts: where a batch begins to count its pieces, so that those of two batches of a mount differ.
inline std::atomic<std::uint32_t> begun_batches{0};

[[noreturn]] inline void refuse(const std::string& why) { throw std::invalid_argument("gpufs::row_batch: " + why); }

inline void check_rows(const row_layout& layout, std::uint64_t n) {
  const char* const why = why_not_rows(layout, n);
  if (why != nullptr) refuse(why);
}

// A kernel that goes there all the same would be the end of the process's work on a GPU. nbytes: what is needed; most: what the
// caller says is there.
inline void check_memory(simt::platform& device, const char* argument, const void* ptr, std::uint64_t nbytes, std::size_t alignment,
                         std::uint64_t most = ~std::uint64_t{0}) {
  if (reinterpret_cast<std::uintptr_t>(ptr) % alignment != 0) {
    refuse(std::string(argument) + " is not aligned to " + std::to_string(alignment) + " bytes");
  }
  const std::uint64_t there = device.reachable_nbytes(ptr, std::min(nbytes, most));
  if (there >= nbytes) return;
  refuse(std::string(argument) + " must have " + std::to_string(nbytes) + " bytes that kernels of device " +
         std::to_string(device.index()) + " reach; " + std::to_string(there) + " are there");
}

inline std::byte* checked_workspace(const host_mount& fs, std::span<std::byte> workspace, std::uint32_t max_nrows) {
  const std::size_t needed = row_batch::workspace_nbytes(fs, max_nrows);
  check_memory(fs.device(), "workspace", workspace.data(), needed, row_batch::workspace_alignment, workspace.size());
  return workspace.data();
}

}  // namespace detail

std::size_t row_batch::workspace_nbytes(const host_mount& fs, std::uint32_t max_nrows) {
  if (max_nrows == 0) detail::refuse("max_nrows is 0");
  return detail::workspace_layout::of(fs.device(), max_nrows).nbytes();
}

row_batch::row_batch(const host_mount& fs, std::uint32_t max_nrows, std::uint32_t unsorted)
    : row_batch(fs, simt::device_array<std::byte>(workspace_nbytes(fs, max_nrows), fs.device()), nullptr, max_nrows, unsorted) {}

row_batch::row_batch(const host_mount& fs, std::span<std::byte> workspace, std::uint32_t max_nrows, std::uint32_t unsorted)
    : row_batch(fs, std::nullopt, detail::checked_workspace(fs, workspace, max_nrows), max_nrows, unsorted) {}

row_batch::row_batch(const host_mount& fs, std::optional<simt::device_array<std::byte>> own, std::byte* workspace,
                     std::uint32_t max_nrows, std::uint32_t unsorted)
    : device_(&fs.device()),
      max_nrows_(max_nrows),
      unsorted_(unsorted),
      page_nbytes_(fs.options().page_nbytes),
      piece_(detail::begun_batches.fetch_add(1, std::memory_order_relaxed) << 20),
      own_(std::move(own)),
      touched_(par::forms.admits_all ? cache::touched_storage{} : mount_inside(fs).layout().touched),
      has_opened_staged_(&mount_inside(fs).has_opened_staged()),
      buffers_(mount_inside(fs).row_buffers()) {
  std::byte* const begin = own_ ? own_->get() : workspace;
  const auto parts = detail::workspace_layout::of(*device_, max_nrows);
  auto* const words = reinterpret_cast<detail::workspace_layout::words*>(begin);  // not to be followed here
  failed_ = &words->failed;
  for_host_ = words->for_host;
  words_ = reinterpret_cast<std::uint64_t*>(begin + parts.words_of_rows);
  places_ = reinterpret_cast<std::uint32_t*>(begin + parts.places);
  space_ = begin + parts.space;
  space_nbytes_ = parts.space_nbytes;
  constexpr detail::workspace_layout::words at_first;
  device_->copy_to_device(begin, &at_first, sizeof at_first);
  load();
}

// What batches launch, so that none of it is loaded while a kernel of another stream, or of this one, waits for the host.
void row_batch::load() {
  const simt::on_device here(*device_);
  const auto each = [](auto group) {
    using group_type = decltype(group);
    detail::load_row_kernel<detail::gather_rows<group_type, 1>>();
    detail::load_row_kernel<detail::gather_rows<group_type, 2>>();
    detail::load_row_kernel<detail::scatter_rows<group_type>>();
  };
  each(simt::tile<8>{});
  each(simt::warp{});
  detail::load_row_kernel<detail::gather_few_rows>();
  detail::load_rows_by_host();
  detail::load_row_kernel<detail::number_rows>();
  detail::load_row_kernel<detail::repeat_rows>();
  if (!GPUFS_ON_CUDA) return;
  // The sort's kernels have no names for us, and are others for few rows.
  const simt::stream turns(*device_);
  for (const std::uint32_t n : {1u, std::min(max_nrows_, 2 * usually_unsorted)}) {
    par::sort_rows({words_, places_, words_ + max_nrows_, places_ + max_nrows_, n, 0, 8}, space_, space_nbytes_, queue_of(turns));
    par::sort_rows({words_, nullptr, words_ + max_nrows_, nullptr, n, 0, 8}, space_, space_nbytes_, queue_of(turns));
  }
  turns.wait();
}

void row_batch::gather_in(const file& from, const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n,
                          void* dst, queue on) {
  auto* const to = static_cast<std::byte*>(dst);
  each_part(layout, numbers, n, "dst", dst, [&](detail::row_part_of_batch part) {
    const detail::touched_pages touched(touched_, piece_++);
    if (n > unsorted_) sort(part, on);
    const detail::rows_for_host left = take_rows_for_host(layout);
    if (n <= std::min(unsorted_, detail::few_rows) && !left.may_be()) {
      return start(detail::gather_few_rows{{part, from, to, touched, left}}, detail::rows_block / simt::warp_lanes, on);
    }
    const auto by = [&](auto group) {
      using group_type = decltype(group);
      if (detail::parts_of_rows(part.layout, page_nbytes_) == 1) {
        start(detail::gather_rows<group_type, 1>{{part, from, to, touched, left}},
              part.rows_a_warp * detail::rows_block / simt::warp_lanes, on);
      } else {
        part.rows_a_warp = std::min(part.rows_a_warp, simt::warp_lanes / 2);
        start(detail::gather_rows<group_type, 2>{{part, from, to, touched, left}},
              part.rows_a_warp * detail::rows_block / simt::warp_lanes, on);
      }
      if (left.may_be()) detail::start_rows_by_host({part, from, to, left}, *device_, on);
      if (n > unsorted_) start(detail::repeat_rows{part, to}, detail::rows_block, on);
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
  each_part(layout, numbers, n, "src", src, [&](detail::row_part_of_batch part) {
    if (part.n > 1) sort(part, on);  // else of two equal rows any may come last
    part.rows_a_warp = detail::stored_at_once(layout.row_nbytes, detail::fair_at_once(part.n, detail::fair_nwarps));
    const auto by = [&](auto group) {
      start(detail::scatter_rows<decltype(group)>{{part, to, static_cast<const std::byte*>(src)}},
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
  return {buffers_, places_, for_host_ + turn_, for_host_ + (turn_ ^ 1)};
}

row_failure row_batch::failure() {
  std::uint64_t word = 0;
  device_->copy_from_device(&word, failed_, sizeof word);
  if (word != row_failure::none) device_->copy_to_device(failed_, &row_failure::none, sizeof row_failure::none);
  return row_failure::of(word);
}

// Calls work(part) for the pieces of the batch, whose rows lie one behind the other in `memory`, the caller's `argument`.
template <class Work>
void row_batch::each_part(const row_layout& asked, const detail::numbers_of_rows& numbers, std::uint64_t n, const char* argument,
                          const void* memory, Work work) {
  const row_layout layout = detail::rows_of_file::with_stride(asked);
  detail::check_rows(layout, n);
  if (layout.row_nbytes == 0 || n == 0) return;
  const std::size_t number_nbytes = numbers.wide ? 8 : 4;
  const auto check = [&](reached& last, const char* what, const void* ptr, std::uint64_t nbytes, std::size_t alignment) {
    const auto begin = reinterpret_cast<std::uintptr_t>(ptr);
    const bool is_known = begin >= last.begin && begin - last.begin <= last.nbytes && nbytes <= last.nbytes - (begin - last.begin);
    if (!is_known || begin % alignment != 0) detail::check_memory(*device_, what, ptr, nbytes, alignment);
    last = {begin, nbytes};
  };
  check(numbers_reached_, "numbers", numbers.of, n * number_nbytes, number_nbytes);
  check(rows_reached_, argument, memory, n * layout.row_nbytes, 1);
  for (std::uint64_t first = 0; first < n; first += max_nrows_) {
    detail::row_part_of_batch part{};
    part.layout = layout;
    part.numbers = numbers;
    part.numbers.of = static_cast<const std::byte*>(numbers.of) + first * number_nbytes;
    part.first = first;
    part.n = static_cast<std::uint32_t>(std::min<std::uint64_t>(n - first, max_nrows_));
    part.rows_a_warp = detail::looked_for(layout, part.n);
    part.failed = failed_elsewhere_ != nullptr ? failed_elsewhere_ : failed_;
    work(part);
  }
}

template <class Part>
void row_batch::sort(Part& part, queue on) {
  const bool has_places = part.layout.nrows > ~std::uint32_t{0};  // a number of nrows is no row's
  par::row_order order{words_, nullptr, words_ + max_nrows_, nullptr, part.n, 0, 0};
  if (has_places) {
    order.places = places_;
    order.sorted_places = places_ + max_nrows_;
  }
  start(detail::number_rows{part, words_, has_places ? places_ : nullptr}, 4 * detail::rows_block, on);
  const unsigned of_number = has_places ? 0 : 32;
  if (par::forms.window_nbits != 0) {
    const auto last_nbits = static_cast<unsigned>(std::bit_width(part.layout.nrows - (part.layout.nrows != 0 ? 1 : 0)));
    order.first_bit = last_nbits - std::min(last_nbits, par::forms.window_nbits);
  }
  order.first_bit += of_number;
  order.end_bit = of_number + std::max(1u, static_cast<unsigned>(std::bit_width(part.layout.nrows)));
  const simt::on_device here(*device_);
  par::sort_rows(order, space_, space_nbytes_, on);
  part.sorted = order.sorted_words;
  part.places = order.sorted_places;
}

// A block has least_rows, and more where the grid would be too large. Blocks begin in the order of their numbers, and so the device
// is at one place of the sorted rows at a time.
template <class Kernel>
void row_batch::start(Kernel kernel, std::uint64_t least_rows, queue on) const {
  constexpr std::uint64_t most_blocks = GPUFS_ON_CUDA ? 1u << 20 : 4;
  const std::uint64_t n = kernel.part.n, rows_a_block = std::max<std::uint64_t>(least_rows, (n + most_blocks - 1) / most_blocks);
  kernel.part.rows_a_block = static_cast<std::uint32_t>(rows_a_block);
  simt::launch_config config{.grid = static_cast<unsigned>((n + rows_a_block - 1) / rows_a_block), .block = detail::rows_block};
  if (n == 1) config.block = simt::warp_lanes;
  config.schedule.timeout_ns = 0;  // many rows may take long; what waits inside has its own deadline
  const simt::on_device here(*device_);
  simt::launch<detail::rows_block, detail::least_row_blocks>(config, kernel, on);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
