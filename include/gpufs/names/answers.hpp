// SPDX-License-Identifier: Apache-2.0
// What a name space answers to the calls of one lane (name_space.hpp has them, and what they are asked).
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"
#include "gpufs/source/kind.hpp"

namespace gpufs::names {
inline namespace GPUFS_MACHINE {

// A file that was opened.
struct object {
  std::uint32_t id;        // the name space's own, for calls on the open file
  std::uint32_t cache_id;  // names this version of the file within the mount
  std::int64_t nbytes;
  std::uint64_t base;  // where the device finds its bytes, or 0 (source/detail/layout.hpp)
  std::uint64_t inode, mtime_ns;
  std::uint32_t mode;  // st_mode
  source_kind kind;
  bool fixed_size;  // open for writing: writes behind its end, and other sizes, are refused before anything is done
};

// Bytes that come with an answer, and stay where they are until the caller gives them back: two words of the name space's own,
// which says where they lie. They are no address, so that an answer that goes from lane to lane has no more words than it needs.
struct kept_bytes {
  std::uint32_t low, high;
};

struct opened {
  int error;
  // Not 0: nothing was opened. The file is open for writing already, under this number of the caller's, plus 1, with the id that
  // `file` has: join that one.
  std::uint32_t elsewhere;
  object file;
  // When not 0: so many bytes of the file's beginning are kept, and the caller gives them back.
  std::uint32_t nbytes;
  kept_bytes kept;
};

struct closed {
  bool asked;  // else the file is open as it was: no request could be made in time
  int error;
};

// Where a file is open for writing: number << 32 | id, as the caller and the name space gave them; 0: it is not.
using written_place = std::uint64_t;

// After unlink, rmdir or rename.
struct lost_names {
  int error;
  bool nothing;     // both paths name one file: nothing was done
  bool others_too;  // a directory was renamed, or a symbolic link lost: other paths may lead elsewhere now, too. (Of a link that
                    // is removed or replaced, only where some file is open for writing.)
  written_place places[4];  // of the files that have lost a name: open for writing, or with open_write_once
};

struct status {
  int error;
  std::uint32_t mode;
  std::int64_t nbytes;  // as the file has it: a group that has it open for writing may know better
  std::uint64_t inode, mtime_ns;
  written_place written, written_once;
};

// Entries of a directory, or extents of a file.
struct listing {
  int error;  // else the rest holds, and the caller gives the bytes back
  kept_bytes kept;
  std::int64_t nbytes;    // of directory_entry or extent records; 0: there are no more
  std::int64_t position;  // of the next ones
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::names
