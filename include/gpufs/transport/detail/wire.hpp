// SPDX-License-Identifier: Apache-2.0
// The wire format: requests and replies, as host and device share them in pinned memory. One writer per word (there are no PCIe
// atomics between host and GPU here), so requests are written by the device only and replies by the host only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/source/kind.hpp"

namespace gpufs::transport {

enum class opcode : std::uint32_t {
  none = 0,
  open = 1,
  read = 2,
  close = 3,
  write = 4,       // bytes of the payload to a file
  sync = 5,        // a file to stable storage
  truncate = 6,    // a file to another size
  unlink = 7,      // a path: a file, or an empty directory
  rename = 8,      // a path
  mkdir = 9,       // a path
  stat = 10,       // a path
  read_dir = 11,   // a path: entries of a directory, from a position on
  extend = 12,     // memory of the device for more open files, made when it is first asked for
  read_rows = 13,  // rows of a file, as the list in the slot's row buffer has them, one behind the other into that buffer
  extents = 14,    // where a file's bytes lie, from an offset on
};

// `request::flags` of some operations.
inline constexpr std::uint32_t read_ahead = 1;       // read: that the file is not open any more is no error
inline constexpr std::uint32_t read_to_frame = 2;    // read: one page, by the copy engine, to a frame in place of the payload
inline constexpr std::uint32_t write_masked = 1;     // write: only bytes whose bit in the mask is set
inline constexpr std::uint32_t sync_data_only = 1;   // sync: fdatasync(2) in place of fsync(2)
inline constexpr std::uint32_t sync_page_cache = 2;  // sync: neither

// One request slot. The device writes every field, then `sequence` with a system-scope release; the host's acquire load of
// `sequence` meets it. `sequence` of the n-th use (ticket t) of a ring is t + 1, so slot t % nslots never repeats a value soon.
struct alignas(64) request {
  opcode op;
  std::uint32_t handle;  // host file handle; open: how many bytes of the file's beginning to bring along; rename: length of the new
                         // path, which lies at payload_nbytes in the payload, without a NUL; read_dir: how many bytes of entries
                         // at most, besides the payload's size
  std::int64_t offset;   // read, write: where in the file; open: the device's number for the file, handed back when it turns stale
                         // (a hint); truncate: the new size; read_dir: 0, or the position that the last answer gave; sync, close:
                         // the end of what the device has stored into the file's mapping, or 0; extend: which piece; extents:
                         // from where on in the file
  std::uint32_t nbytes;  // bytes to read or write, skip + nbytes at most payload_nbytes; calls with a path: its length in the
                         // payload, without a NUL; read_rows: of a row; extents: how many bytes of them at most, besides the
                         // payload's size
  std::uint32_t flags;   // open: O_* flags and open_write_once; others: see above
  std::uint32_t skip;    // write: where in the payload the bytes begin; read, with read_to_frame: the frame; open: a handle that an
                         // answer gave as the file's open for writing, and that is closed on the device: not to be given again; or
                         // 0; read_rows: how many
  std::uint32_t mode;    // mkdir: permissions, less the process's umask (a file that open makes gets 0666 less the umask)
  std::uint64_t token;   // the device's own: what it is to know of the request when the answer comes too late
  std::uint32_t reserved[5];
  std::uint32_t sequence;
};

// The answer to the request in the same slot. The host writes every field (and the payload), then `sequence` (equal to the
// request's) with a release; the device's system-scope acquire load meets it.
struct alignas(64) reply {
  std::int64_t result;  // >= 0 bytes read (of a file open for writing: that there are), or written (of a mask: its bits), for open
                        // bytes brought along (all that were asked for and are in the file, or 0), for read_dir bytes of
                        // entries and for extents of extents (0: no more), for read_rows rows that failed (then the list says
                        // which), or -errno
  std::int64_t file_nbytes;  // open: size at open; stat: size; read_dir: the position of the next entry; extents: the next offset
  std::uint64_t pull_base;   // open: device-visible address of byte 0 of the file (pull, mem; or a file open for writing, which the
                             // device may then write there, up to file_nbytes), else 0; stat: number << 32 | handle of its open
                             // with open_write_once, or 0; extend: where the piece lies
  std::uint32_t handle;      // open: host file handle for read and close; with `number`, that one's
  std::uint32_t cache_id;    // open: names this version of this file, 1 .. 2^28 - 1
  source_kind kind;          // open
  std::uint32_t mode;      // open, stat: st_mode; rename: of what was renamed, or 0: both paths name one file, and nothing is done
  std::uint64_t inode;     // open, stat: st_ino
  std::uint64_t mtime_ns;  // open, stat
  // Whatever paths led to it, a file has one open for writing in a mount, besides one with open_write_once. open: the file is open
  // for writing under this number of the device's, plus 1: join that one, nothing was opened; else 0. stat: the same number, of
  // the file's open for writing. unlink, rename: file_nbytes and pull_base are number << 32 | handle of the opens for writing, and
  // with open_write_once, of the file that loses a name, or 0; rename: inode and mtime_ns those of the file that it replaces; and
  // number is 1 if it was a directory or a symbolic link, so that other paths may lead elsewhere now, too. read, with
  // read_to_frame: 1, the bytes are in the frame; 0, they are in the payload.
  std::uint32_t number;
  std::uint32_t sequence;
};

static_assert(sizeof(request) == 64 && alignof(request) == 64);
static_assert(offsetof(request, op) == 0 && offsetof(request, handle) == 4 && offsetof(request, offset) == 8);
static_assert(offsetof(request, nbytes) == 16 && offsetof(request, flags) == 20 && offsetof(request, skip) == 24);
static_assert(offsetof(request, mode) == 28 && offsetof(request, token) == 32 && offsetof(request, sequence) == 60);
static_assert(sizeof(reply) == 64 && alignof(reply) == 64);
static_assert(offsetof(reply, result) == 0 && offsetof(reply, file_nbytes) == 8 && offsetof(reply, pull_base) == 16);
static_assert(offsetof(reply, handle) == 24 && offsetof(reply, cache_id) == 28 && offsetof(reply, kind) == 32);
static_assert(offsetof(reply, mode) == 36 && offsetof(reply, inode) == 40 && offsetof(reply, mtime_ns) == 48);
static_assert(offsetof(reply, number) == 56 && offsetof(reply, sequence) == 60);

}  // namespace gpufs::transport
