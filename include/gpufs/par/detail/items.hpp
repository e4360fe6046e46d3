// SPDX-License-Identifier: Apache-2.0
// What a thread has of an array while a group goes through it: rows of some elements side by side.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/memory.hpp"
#include "gpufs/simt/prefetch.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Which memory a call's arrays are in: of a grid it is global.
enum class memory { any, global };

// Elements of an array in memory. A thread's N side by side go by accesses of 16 bytes, or of 8, where they lie so. (Left to
// itself, nvcc makes of some accesses of 16 bytes four: the same addresses are accessed by elements elsewhere.)
template <class T, memory In = memory::any, unsigned N = scan_space::items_a_row(sizeof(T))>
struct array_items {
  using element = std::remove_const_t<T>;  // of the array
  using value = element;                   // of the scan
  static constexpr unsigned n = N, nrows = scan_space::rows_a_thread(sizeof(T));
  static constexpr unsigned width = n * sizeof(T) % 16 == 0 ? 16 : n * sizeof(T) % 8 == 0 ? 8 : 1;  // 1: never
  T* all;

  // What a thread has of a row.
  struct row {
    value items[n];
    GPUFS_DEVICE const value& operator[](unsigned k) const { return items[k]; }
  };

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const {
    return width != 1 && reinterpret_cast<std::uintptr_t>(all + first) % width == 0;
  }
  // items[k] = all[first + k]; wide: is_wide(first).
  GPUFS_DEVICE void load_wide(std::uint64_t first, value (&items)[n]) const {
    if constexpr (width == 16 && In == memory::global) {
      GPUFS_UNROLL
      for (unsigned i = 0; i < sizeof items / 16; ++i) {
        const auto piece = simt::load_once_16(reinterpret_cast<const simt::vec16*>(all + first) + i);
        std::memcpy(reinterpret_cast<std::byte*>(items) + 16 * i, &piece, 16);
      }
    } else {
      std::memcpy(static_cast<void*>(items), __builtin_assume_aligned(all + first, width), sizeof items);
    }
  }
  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, value (&items)[n]) const {
    if (valid == n && is_wide(first)) {
      load_wide(first, items);
      return;
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) items[k] = all[first + k];
    }
  }
  GPUFS_DEVICE void store_wide(std::uint64_t first, const value (&items)[n]) const {
    if constexpr (width == 16 && In == memory::global) {
      GPUFS_UNROLL
      for (unsigned i = 0; i < sizeof items / 16; ++i) {
        simt::vec16 piece;
        std::memcpy(&piece, reinterpret_cast<const std::byte*>(items) + 16 * i, 16);
        simt::store_once_16(reinterpret_cast<simt::vec16*>(all + first) + i, piece);
      }
    } else {
      std::memcpy(__builtin_assume_aligned(static_cast<void*>(all + first), width), items, sizeof items);
    }
  }
  GPUFS_DEVICE void store_some(std::uint64_t first, unsigned valid, const value (&items)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) all[first + k] = items[k];
    }
  }

  // By one thread: the elements from `begin` to `end` are wanted soon.
  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    simt::prefetch(all + begin, static_cast<std::uint32_t>((end - begin) * sizeof(T)));
  }
  // Rows of a scan, of which all n elements are there, and is_wide(first); or `valid` of them, and others are `nothing`.
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const { load_wide(first, to.items); }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value& nothing, row& to) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) to.items[k] = k < valid ? all[first + k] : nothing;
  }
};

// The elements of a segmented scan. heads(i): whether a segment begins at element i.
template <class T, class Heads, memory In = memory::any>
struct segmented_items {
  using element = T;
  using value = with_head<T>;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T)), nrows = scan_space::rows_by_segments(sizeof(T));
  array_items<const T, In> all;
  Heads heads;

  struct row {
    typename array_items<const T, In>::row values;
    std::uint32_t heads;  // bit k of element k: a register for all of them
    GPUFS_DEVICE value operator[](unsigned k) const { return {values.items[k], (heads >> k & 1) != 0}; }
  };

  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    all.prefetch(begin, end);
    if constexpr (requires { heads.prefetch(begin, end); }) heads.prefetch(begin, end);
  }
  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return all.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    all.load_row(first, to.values);
    if constexpr (requires { heads.template several<n>(first); }) {
      to.heads = heads.template several<n>(first);
    } else {
      to.heads = some_heads(first, n);
    }
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value& nothing, row& to) const {
    all.load_row(first, valid, nothing.of, to.values);
    to.heads = some_heads(first, valid);
  }

 private:
  GPUFS_DEVICE std::uint32_t some_heads(std::uint64_t first, unsigned valid) const {
    std::uint32_t bits = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid && static_cast<bool>(heads(first + k))) bits |= 1u << k;
    }
    return bits;
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
