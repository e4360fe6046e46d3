// SPDX-License-Identifier: Apache-2.0
// Many rows of a file at once, for host code: gather reads them into device memory, scatter writes them from there.
// docs/design/batches.md
#pragma once
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>

#include "gpufs/file/handles.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/par/rows.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs {

inline namespace GPUFS_MACHINE {

namespace detail {

// Of the rows of a piece that host threads gather.
struct row_counts {
  std::uint32_t n, begun;
};
static_assert(sizeof(row_counts) == 8 && offsetof(row_counts, n) == 0 && offsetof(row_counts, begun) == 4);
struct rows_for_host;

}  // namespace detail

// What batches of rows of a mount's files need besides: a workspace in the device's memory of 24 bytes a row of the largest piece
// (on CUDA some 40), its own or the caller's; all batches of a mount together, 9 MiB of pinned memory. One thread at a time calls,
// and one batch is under way at a time: a stream's order sees to that, or the caller. The streams of its batches must have been
// waited for when it ends. Move-only. Its kernels are the library's.
class row_batch {
 public:
  static constexpr std::uint32_t usually_at_once = 1u << 20;
  static constexpr std::uint32_t usually_unsorted = GPUFS_ON_CUDA ? 4096 : 16;

  // max_nrows: of what is sorted at once; larger batches go by pieces of it. unsorted: batches of up to so many rows are read as
  // they come, as the launches of a sort take longer than they. Throws std::invalid_argument (max_nrows is 0), and what the
  // platform does, where there is no memory.
  explicit row_batch(const host_mount& fs, std::uint32_t max_nrows = usually_at_once, std::uint32_t unsorted = usually_unsorted);

  // The same with a workspace of the caller's, of at least workspace_nbytes(fs, max_nrows) bytes that the mount's device reaches,
  // aligned to workspace_alignment, whatever is in it; else std::invalid_argument. Until the row_batch ends it is nobody else's.
  // The row_batch allocates no device memory then, and frees none, for which CUDA waits until kernels have ended.
  row_batch(const host_mount& fs, std::span<std::byte> workspace, std::uint32_t max_nrows = usually_at_once,
            std::uint32_t unsorted = usually_unsorted);
  static constexpr std::size_t workspace_alignment = 256;
  static std::size_t workspace_nbytes(const host_mount& fs, std::uint32_t max_nrows = usually_at_once);

  // Reads row numbers[i] to dst + i * row_nbytes, for i below n, in the stream's turn; returns before that is done. numbers, dst:
  // in the device's memory, until the stream has done it. A row that cannot be read becomes zeros, and failure() tells. Of a sorted
  // piece repeated rows come over once. Rows that are cached come from there; of the others those that the device may read where
  // they lie (a file that is pulled) do so in the order of their addresses, which is what the bus likes (docs/design/batches.md).
  // Throws, before anything is launched, std::invalid_argument: a layout that no file can have; numbers that are not aligned;
  // numbers or dst of which kernels of the mount's device do not reach all that is needed, as platform::reachable_nbytes says (so
  // pinned and managed memory will do, and the CPU machine takes all memory that is not another device's; what
  // the last batch used is not looked at again). simt::launch_error.
  template <row_number Number>
  void gather(const file& from, const row_layout& layout, const Number* numbers, std::uint64_t n, void* dst,
              const simt::stream& on) {
    gather_in(from, layout, detail::numbers_of_rows::make(numbers), n, dst, queue_of(on));
  }

  // Writes row numbers[i] of a file that is open for writing from src + i * row_nbytes, for i below n. Of a row that comes
  // repeatedly the last one is written. As gather otherwise. The file has what was written after fsync, close or the mount's end,
  // or earlier: rows of a file in memory whose pages are not cached go straight there.
  template <row_number Number>
  void scatter(const file& to, const row_layout& layout, const Number* numbers, std::uint64_t n, const void* src,
               const simt::stream& on) {
    scatter_in(to, layout, detail::numbers_of_rows::make(numbers), n, src, queue_of(on));
  }

#if GPUFS_ON_CUDA
  // The same in any stream of the mount's device.
  template <row_number Number>
  void gather(const file& from, const row_layout& layout, const Number* numbers, std::uint64_t n, void* dst, CUstream_st* on) {
    gather_in(from, layout, detail::numbers_of_rows::make(numbers), n, dst, on);
  }
  template <row_number Number>
  void scatter(const file& to, const row_layout& layout, const Number* numbers, std::uint64_t n, const void* src, CUstream_st* on) {
    scatter_in(to, layout, detail::numbers_of_rows::make(numbers), n, src, on);
  }
#endif

  // Of the rows that failed since it was last asked, in the batches whose stream the caller has waited for: the one of the least
  // place.
  row_failure failure();
  // Later batches tell here instead, in a word of the caller's that kernels reach (of pinned_array or device_array) and that holds
  // row_failure::none before; only kernels of the mount's device write it meanwhile. Whoever sets it so again does that while no
  // batch is under way, or by an exchange in a kernel. nullptr: by failure() again.
  void report_to(std::uint64_t* pinned) { failed_elsewhere_ = pinned; }

 private:
  row_batch(const host_mount& fs, std::optional<simt::device_array<std::byte>> own, std::byte* workspace, std::uint32_t max_nrows,
            std::uint32_t unsorted);

#if GPUFS_ON_CUDA
  using queue = CUstream_st*;
  static queue queue_of(const simt::stream& on) { return on.get(); }
#else
  using queue = const simt::stream&;
  static queue queue_of(const simt::stream& on) { return on; }
#endif

  void gather_in(const file& from, const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n, void* dst,
                 queue on);
  void scatter_in(const file& to, const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n,
                  const void* src, queue on);
  void load();
  template <class Work>
  void each_part(const row_layout& layout, const detail::numbers_of_rows& numbers, std::uint64_t n, const char* argument,
                 const void* memory, Work work);
  template <class Part>
  void sort(Part& part, queue on);
  detail::rows_for_host take_rows_for_host(const row_layout& layout);
  template <class Kernel>
  void start(Kernel kernel, std::uint64_t least_rows, queue on) const;

  simt::platform* device_;
  // Of the last batch: memory that the device reaches, of the numbers and of the rows. To ask takes a batch of few rows a fifth of
  // its time.
  struct reached {
    std::uintptr_t begin = 0;
    std::uint64_t nbytes = 0;
  } numbers_reached_, rows_reached_;
  std::uint32_t max_nrows_, unsorted_, page_nbytes_;
  std::uint32_t piece_;                               // 1 to 255, by turns
  std::optional<simt::device_array<std::byte>> own_;  // the workspace, if it is not the caller's
  // In the workspace; words and places twice: as the batch has them, and sorted.
  std::uint64_t* failed_;
  detail::row_counts* for_host_;  // two, by turns: a piece empties the next one's
  std::uint64_t* words_;
  std::uint32_t* places_;
  std::byte* space_;  // of the sort
  std::size_t space_nbytes_;
  cache::touched_storage touched_;  // the mount's
  std::uint64_t* failed_elsewhere_ = nullptr;
  const std::atomic<bool>* has_opened_staged_;  // the mount's
  transport::row_buffers buffers_;
  std::uint32_t turn_ = 0;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
