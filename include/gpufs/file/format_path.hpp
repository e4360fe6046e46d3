// SPDX-License-Identifier: Apache-2.0
// Paths that are made of texts and numbers, in kernels and on the host alike.
#pragma once
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

struct padded_number {
  std::uint64_t magnitude;
  bool negative;
  unsigned ndigits;
};

// A number for format_path, with zeros in front until it has that many digits (the sign does not count). At most 64 are put.
template <std::integral T>
GPUFS_HOST_DEVICE padded_number padded(T number, unsigned ndigits) {
  bool negative = false;
  if constexpr (std::is_signed_v<T>) negative = number < 0;
  const auto wide = static_cast<std::uint64_t>(number);  // a negative one's two's complement
  return {negative ? 0 - wide : wide, negative, ndigits < 64 ? ndigits : 64};
}

namespace detail {

// Characters that find no room are counted only.
struct path_writer {
  char* out;
  std::size_t room, n;
  int error;

  GPUFS_HOST_DEVICE void put(char c) {
    if (n < room) out[n] = c;
    ++n;
  }
  GPUFS_HOST_DEVICE void put(const char* text) {
    if (text == nullptr) {
      error = -EFAULT;
      return;
    }
    for (; *text != '\0' && n < room; ++text) put(*text);
    n += *text != '\0';
  }
  GPUFS_HOST_DEVICE void put(const padded_number& number) {
    if (number.negative) put('-');
    char digits[64];  // the last first
    unsigned ndigits = 0;
    for (std::uint64_t rest = number.magnitude; rest != 0 || ndigits < number.ndigits; rest /= 10)
      digits[ndigits++] = static_cast<char>('0' + rest % 10);
    while (ndigits > 0) put(digits[--ndigits]);
  }
  template <std::integral T>
  GPUFS_HOST_DEVICE void put(T number) {
    put(padded(number, 1));
  }
};

}  // namespace detail

// Writes the parts one behind the other, and a NUL: texts (NUL-terminated), single chars, integers in decimal, and padded ones. The
// path's length, without the NUL; or -ENAMETOOLONG, or -EFAULT (a null text), and then the path is empty, which opens nothing.
//
//   char path[32];
//   gpufs::format_path(path, "run-", run, "/part-", gpufs::padded(part, 5), ".bin");  // run-7/part-00042.bin
//
// One thread calls it. For a group's open that is one lane, with `path` in memory that all lanes see, shared or global, and the
// group syncs before the call; a local variable serves calls of this_thread() alone.
template <std::size_t N, class... Parts>
GPUFS_HOST_DEVICE int format_path(char (&out)[N], const Parts&... parts) {
  detail::path_writer path{out, N - 1, 0, 0};
  (path.put(parts), ...);
  const int error = path.error != 0 ? path.error : path.n > N - 1 ? -ENAMETOOLONG : 0;
  out[error != 0 ? 0 : path.n] = '\0';
  return error != 0 ? error : static_cast<int>(path.n);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
