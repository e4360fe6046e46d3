// SPDX-License-Identifier: Apache-2.0
// The wire format: the requests and replies that host and device share in pinned memory. Each word has one writer, because there
// are no PCIe atomics between host and GPU here: only the device writes requests, and only the host writes replies.
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
  extend = 12,     // more memory on the device, for more open files
  read_rows = 13,  // rows of a file, at the offsets in the slot's row buffer, one behind the other into that buffer
  extents = 14,    // where a file's bytes lie, from an offset on
};

// `request::flags` of some operations.
inline constexpr std::uint32_t read_ahead = 1;     // read: if the file is no longer open, that is no error
inline constexpr std::uint32_t read_to_frame = 2;  // read: one page, by the copy engine, to a frame in place of the payload
inline constexpr std::uint32_t write_masked = 1;   // write: only bytes whose bits in the mask are set

// `reply::mode` of an open, above st_mode: the file keeps its size (store::file_info::fixed_size).
inline constexpr std::uint32_t fixed_size_bit = 1u << 31;

// A request slot. The device writes every field, then `sequence` with a system-scope release; the host's acquire load of `sequence`
// meets it. `sequence` is t + 1 for ticket t of a ring, so in slot t % nslots a value comes again only after a long time.
struct alignas(64) request {
  opcode op;
  std::uint32_t handle;  // host file handle; open: how many bytes of the file's beginning the answer is to bring along; rename:
                         // length of the new path, which lies at payload_nbytes in the payload, without a NUL; read_dir: how many
                         // bytes of entries at most (never more than payload_nbytes)
  std::int64_t offset;   // read, write: where in the file; open: the device's number for the file, which the host uses to say that
                         // the version has ended (a hint); truncate: the new size; read_dir: 0, or the position from the last
                         // answer; sync, close: the end of the bytes that the device has stored into the file's mapping, or 0;
                         // extend: the number of the block; extents: from where on in the file
  std::uint32_t nbytes;  // bytes to read or write, skip + nbytes at most payload_nbytes; calls with a path: its length in the
                         // payload, without a NUL; read_rows: size of a row; extents: how many bytes of them at most (never more
                         // than payload_nbytes)
  std::uint32_t flags;   // open: O_* flags and open_write_once; others: see above
  std::uint32_t skip;    // write: where in the payload the bytes begin; read, with read_to_frame: the frame; open: 0, or the handle
                         // of an open for writing that this open must not join: an earlier answer gave it, but the device has
                         // closed it; read_rows: how many rows
  std::uint32_t mode;    // mkdir: permissions, less the process's umask (a file that open makes gets 0666 less the umask)
  std::uint64_t token;   // the device's own: what it must know about the request if the answer comes too late
  std::uint32_t reserved[5];
  std::uint32_t sequence;
};

// The answer to the request in the same slot. The host writes every field (and the payload), then `sequence` (equal to the
// request's) with a release; the device's system-scope acquire load meets it.
struct alignas(64) reply {
  std::int64_t result;  // -errno, or >= 0. read: bytes read (of a file open for writing: how many there are); write: bytes written
                        // (with a mask: how many of its bits are set); open: bytes brought along (all that were asked for and are
                        // in the file, or 0); read_dir, extents: bytes of entries or extents (0: no more); read_rows: how many
                        // rows failed (if any, the list says which)
  std::int64_t file_nbytes;  // open: size at open; stat: size; read_dir: the position of the next entry; extents: the next offset
  std::uint64_t pull_base;   // open: device-visible address of byte 0 of the file (pull, mem; or a file open for writing, into
                             // which the device may store there, up to file_nbytes), else 0; stat: place of the file's open with
                             // open_write_once; extend: where the block lies
  std::uint32_t handle;      // open: host file handle for read and close; open, stat: with `number`, the handle of that open for
                             // writing
  std::uint32_t cache_id;    // open: the name of this version of this file, 1 .. 2^28 - 1
  source_kind kind;          // open
  std::uint32_t mode;   // open, stat: st_mode, of an open perhaps with fixed_size_bit; rename: the renamed file's, or 0: both paths
                        // name one file, nothing is done
  std::uint64_t inode;  // open, stat: st_ino
  std::uint64_t mtime_ns;  // open, stat
  // In a mount, a file has one open for writing, and besides it one with open_write_once, whatever paths led to the file. `number`
  // names the open for writing: it is the device's number for that open, plus 1, or 0 for none. open: the caller joins that open,
  // and no other was made. stat: the file's open for writing.
  // unlink, rename: number is 1 if other paths, too, may lead elsewhere now, because a symbolic link was removed, renamed or
  // replaced, or a directory was renamed. file_nbytes and pull_base are the places of the opens, for writing and with
  // open_write_once, of the file that loses a name; rename: inode and mtime_ns are those of the file that it replaces. A place is
  // number << 32 | handle, with the device's number, or 0 for no open.
  // read, with read_to_frame: 1, the bytes are in the frame; 0, they are in the payload.
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
