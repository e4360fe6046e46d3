// SPDX-License-Identifier: Apache-2.0
// What a name space must have. `file` asks for no more (mount_names, in file/detail/late_answers.hpp, says of which one), and
// tests/names/conformance_test.cpp plays on whatever has it. docs/design/names.md
#pragma once
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "gpufs/names/answers.hpp"
#include "gpufs/names/words.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::names {
inline namespace GPUFS_MACHINE {

// What an open is asked, beside its path.
struct open_call {
  std::uint32_t nbytes;        // of the path
  std::uint32_t flags;         // O_*, and open_write_once
  std::uint32_t number;        // the caller's for the file: others' opens of it, and what makes it stale, are told so
  std::uint32_t first_nbytes;  // of its beginning are wanted along with it, if they are at hand
  std::uint32_t closed;        // an id that `elsewhere` had, and that is closed: not to be given again; or 0
};

// The least that the path of an open is: as many bytes as open_call says, by []. Other calls have theirs as a string.
struct path_bytes {
  const char* of;
  GPUFS_DEVICE char operator[](std::uint32_t i) const { return of[i]; }
};

// One lane makes each call, and each waits for one answer at most, for a time that the name space knows (open: `until`), and then
// gives -ETIMEDOUT.
//   open: looks a path up (of any type that is as path_bytes), makes the file where the flags say so, and opens it.
//   close, sync, set_size: of an open file, by its id. in_place: the end of what was stored to the file's mapping, or 0; sync has
//   flags (names::sync_*). 0 or a negative errno; close also says whether it was asked.
//   remove (flags: unlink_directory), rename, make_directory, stat: by path. rename only where the mount may write.
//   list, extents: at most so many bytes of directory_entry or extent records, from a position on (0, or what the last listing
//   gave). extents: -EOPNOTSUPP where the file has none.
//   bytes_of: where the bytes lie that an answer has kept; give_back ends that, once, after all lanes have read them. Only for
//   answers without an error; of an open only if nbytes is not 0. Where they lie they are aligned to 8, and the device reads them.
template <class Names>
concept name_space = requires(const Names& names, const char* path, path_bytes bytes, const open_call& how,
                              const simt::deadline& until, std::uint32_t id, std::uint32_t word, std::int64_t position,
                              std::uint64_t in_place, kept_bytes kept) {
  { names.open(bytes, how, until) } -> std::same_as<opened>;
  { names.close(id, in_place) } -> std::same_as<closed>;
  { names.sync(id, in_place, word) } -> std::same_as<int>;
  { names.set_size(id, position) } -> std::same_as<int>;
  { names.remove(path, word) } -> std::same_as<lost_names>;
  { names.rename(path, path) } -> std::same_as<lost_names>;
  { names.make_directory(path, word) } -> std::same_as<int>;
  { names.stat(path) } -> std::same_as<status>;
  { names.list(path, position, word) } -> std::same_as<listing>;
  { names.extents(id, position, word) } -> std::same_as<listing>;
  { names.bytes_of(kept) } -> std::same_as<const std::byte*>;
  { names.give_back(kept) } -> std::same_as<void>;
};

// A path's length, or a negative errno.
GPUFS_DEVICE std::int32_t length_of(const char* path) {
  if (path == nullptr) return -EFAULT;
  std::int32_t n = 0;
  while (path[n] != '\0') {
    if (static_cast<std::uint32_t>(++n) > max_path_nbytes) return -ENAMETOOLONG;
  }
  return n;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::names
