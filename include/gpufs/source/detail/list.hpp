// SPDX-License-Identifier: Apache-2.0
// The device half of all sources, and the one switch over them. A source is a struct of static functions, which one lane calls:
//   find(file, offset, nbytes) -> piece            where the bytes are that a page is to have. They lie within one page.
//   find_to_write(file, offset, nbytes) -> piece   where bytes of a page go back to: mapping or host. Only where the file has no
//                                                  version (kind.hpp).
// tests/source/ runs one suite over each.
#pragma once
#include "gpufs/source/detail/live.hpp"
#include "gpufs/source/detail/mem.hpp"
#include "gpufs/source/detail/nil.hpp"
#include "gpufs/source/detail/nvme.hpp"
#include "gpufs/source/detail/pull.hpp"
#include "gpufs/source/detail/staged.hpp"
#include "gpufs/source/detail/windows.hpp"
#include "gpufs/source/detail/zero.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

template <class Source>
concept can_be_written = requires(const opened_file& of) {
  Source::find_to_write(of, 0, 0);
};

// Calls work(source) for the source of this kind, or returns `otherwise` if there is no such source.
template <class Work>
GPUFS_DEVICE piece visit(source_kind kind, const piece& otherwise, Work work) {
  switch (kind) {  // NOLINTBEGIN(bugprone-macro-parentheses): the name is a type
#define GPUFS_SOURCE(name, reader, of_version)                                         \
  static_assert(can_be_written<name> != of_version, "what is written has no version"); \
  case source_kind::name:                                                              \
    return work(name{});
    GPUFS_SOURCES(GPUFS_SOURCE)
#undef GPUFS_SOURCE
  }  // NOLINTEND(bugprone-macro-parentheses)
  return otherwise;
}

GPUFS_DEVICE piece find(source_kind kind, const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
  return visit(kind, {place::zeros, 0, 0}, [&](auto from) { return decltype(from)::find(of, offset, nbytes); });
}

// The same for sources that have a version: less code.
GPUFS_DEVICE piece find_version(source_kind kind, const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
  return visit(kind, {place::zeros, 0, 0}, [&](auto from) -> piece {
    if constexpr (can_be_written<decltype(from)>) {
      return {place::zeros, 0, 0};
    } else {
      return decltype(from)::find(of, offset, nbytes);
    }
  });
}

GPUFS_DEVICE piece find_to_write(source_kind kind, const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
  return visit(kind, {place::host, nbytes, 0}, [&](auto to) -> piece {
    if constexpr (can_be_written<decltype(to)>) {
      return decltype(to)::find_to_write(of, offset, nbytes);
    } else {
      return {place::host, nbytes, 0};
    }
  });
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
