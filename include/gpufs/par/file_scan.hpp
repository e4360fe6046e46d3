// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of files of any size at the host's call, with any operator. docs/design/scans.md, "At the host's call"
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "gpufs/par/array_scan.hpp"
#include "gpufs/par/file_pieces.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

struct file_scan_options {
  bool exclusive = false;
  // Elements are brought so many bytes at a time, rounded down to whole elements; the device's memory has room for three times
  // that, and as much of the mount's cache as writes take.
  std::uint64_t piece_nbytes = file_pieces::usual_piece_nbytes;
};

template <class T>
struct file_scan_result {
  T all;  // elements, combined
  std::uint64_t n;
};

namespace detail {
template <scan_order Order, scan_operator Op>
file_scan_result<typename Op::value> scan_pieces(const host_mount& fs, const std::string& from,
                                                 const std::optional<std::string>& to, const Op& op,
                                                 const file_scan_options& options) {
  using T = typename Op::value;
  const std::uint64_t piece_nbytes = std::max<std::uint64_t>(options.piece_nbytes / sizeof(T), 1) * sizeof(T);
  file_pieces pieces(fs, from, to, piece_nbytes);
  array_scan<Op, Order> scan(std::min(piece_nbytes, pieces.nbytes()) / sizeof(T), fs.device(), op);
  const simt::stream work(fs.device());
  if (pieces.nbytes() % sizeof(T) != 0) {
    throw error(from + ": has " + std::to_string(pieces.nbytes()) + " bytes, which is no multiple of the " +
                std::to_string(sizeof(T)) + " of an element");
  }
  for (auto bytes = pieces.next(); !bytes.empty(); bytes = pieces.next()) {
    auto* const elements = reinterpret_cast<T*>(bytes.data());
    const std::uint64_t n = bytes.size() / sizeof(T);
    if (!to) {
      scan.reduce(elements, n, work);
    } else if (options.exclusive) {
      scan.exclusive(elements, elements, n, work);
    } else {
      scan.inclusive(elements, elements, n, work);
    }
    work.wait();
  }
  const T all = scan.all(work);
  pieces.finish();
  return {all, pieces.nbytes() / sizeof(T)};
}
}  // namespace detail

// Scans a file of elements (Op::value, as they lie in memory) below the root of the mount (a gpufs::mount is one), and makes the
// file `to` of as many: all elements up to each place, or before it, combined. `to` appears when it is complete and on the disk,
// and replaces what had that name, which may be `from`; the mount must be writable. Waits. The same bytes on each run for exact
// operators; of sums of real numbers with scan_order::fixed, by devices of one kind and pieces of one size. Throws gpufs::error,
// with the path: the file has no whole number of elements, cannot be read, or changes meanwhile, or `to` cannot be written;
// std::system_error: they do not open; what the platform throws. Then no file `to` is made, and what had the name is as before.
template <scan_order Order = scan_order::any, scan_operator Op>
file_scan_result<typename Op::value> scan_file(const host_mount& fs, const std::string& from, const std::string& to,
                                               const Op& op = {}, const file_scan_options& options = {}) {
  return detail::scan_pieces<Order>(fs, from, to, op, options);
}

// All elements of the file combined, in their order; op.identity() of an empty one. Waits, and throws, as scan_file.
template <scan_order Order = scan_order::any, scan_operator Op>
file_scan_result<typename Op::value> reduce_file(const host_mount& fs, const std::string& path, const Op& op = {},
                                                 const file_scan_options& options = {}) {
  return detail::scan_pieces<Order>(fs, path, std::nullopt, op, options);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
