// SPDX-License-Identifier: Apache-2.0
// Where the bytes of files come from. A store is a small table of host operations; `nil` and `mem` exist beside the real ones
// so that cache and service can be measured and tested alone, and tests derive slow and failing stores from them.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gpufs/names/words.hpp"
#include "gpufs/source/kind.hpp"

namespace gpufs::store {

// What a store says of a file it has opened.
struct file_info {
  std::int64_t nbytes = 0;
  std::uint64_t device = 0, inode = 0;       // identity; (device, inode) of the file system
  std::uint64_t mtime_ns = 0, ctime_ns = 0;  // version; an equal (nbytes, mtime, ctime) is the same version
  bool settled = true;                       // false: changed so recently that an equal version proves nothing
  std::uint32_t mode = 0;
  source_kind kind = source_kind::staged;
  // Device-visible address of byte 0 (kind == pull or mem; windows, where they are registered; or live: and kernels may write
  // there).
  const std::byte* pull_base = nullptr;
  std::string reason;  // why this kind: one sentence for `gpufs doctor` and fstat users
  bool live = false;   // open for writing: no version of the file, but whatever it has when it is read; nbytes is the size at open
  // Where in the file behind descriptor() offset 0 lies, a multiple of 16: all other offsets, nbytes and pull_base count from
  // there. 0 of one that is live.
  std::int64_t begin = 0;
};

// Of a file of kind windows: which windows of 2^shift bytes the device may read at pull_base, a bit each. Bits are added while the
// file is open, and never taken.
struct window_view {
  std::uint64_t registered = 0;
  std::uint32_t shift = 0;
};

// One open file of a store. Destroying it closes it; must not wait for running kernels. May outlive its store.
class open_file {
 public:
  virtual ~open_file() = default;
  virtual const file_info& info() const = 0;
  // Reads up to dst.size() bytes at offset (>= 0) into pinned staging memory. Bytes read (short only at the end of the file)
  // or -errno; -ESTALE when the file is no longer the version that was opened. Called by several workers at once; may block.
  virtual std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) = 0;
  // The descriptor to read from directly (batched submission), at info().begin and on, or -1 when only pread() serves. It may be
  // O_NONBLOCK.
  virtual int descriptor() const { return -1; }
  // What address, offset and length of a read from descriptor() must be multiples of; a power of two. Other reads go
  // through pread().
  virtual std::uint32_t alignment() const { return 1; }
  // 0 while the file still is the version that was opened, else -ESTALE. Called after direct reads, once per file and batch,
  // and by the slow watch over pull files; cheap. What was read before a call that gives 0 is of the opened version, if that
  // was settled.
  virtual int check_version() const { return 0; }

  // Of files opened for writing; as pread, they may block, and several workers call at once.
  // Writes all of src at offset (>= 0): 0 or -errno, and then any part of it may have been written.
  virtual int pwrite(std::span<const std::byte> /*src*/, std::int64_t /*offset*/) { return -EBADF; }
  // To stable storage: bytes and size, and unless data_only all else. 0 or -errno.
  virtual int sync(bool /*data_only*/) { return -EBADF; }
  // 0 or -errno.
  virtual int truncate(std::int64_t /*nbytes*/) { return -EBADF; }
  // Called after the device has written to the mapping of the file at pull_base, below nbytes. Moves mtime, which writes to a
  // mapping do not. Returns 0, or -EIO if pages there are no longer the file's, because somebody else has truncated it or punched a
  // hole: the device's writes may be lost. If `last`, it looks at each page; otherwise only if ctime says that others have changed
  // the file.
  virtual int note_written_in_place(std::int64_t /*nbytes*/, bool /*last*/) { return -EBADF; }

  // Where its bytes lie from *offset (>= 0) on, in order, as many extents as fit; sets *offset to where to go on. How many, 0:
  // there are no more, or -errno; -EOPNOTSUPP where the file system has no such places. May block.
  virtual std::int64_t extents(std::int64_t* /*offset*/, std::span<extent> /*out*/) { return -EOPNOTSUPP; }

  // Of kind windows. Any thread; neither waits.
  virtual window_view windows() const { return {}; }
  // So many bytes at offset (>= 0) were read by the host, as the device may not read them itself (yet).
  virtual void note_missed(std::int64_t /*offset*/, std::uint32_t /*nbytes*/) noexcept {}

  // Of files opened for reading: around a rename of the file by this mount, which changes its ctime and not its bytes. They throw
  // nothing. Renames may be under way together; and of a file that is opened beside one, the end may come before the beginning.
  virtual void begin_rename() {}
  virtual void end_rename() {}
};

// What a store says of a path.
struct path_status {
  std::int64_t nbytes = 0;
  std::uint64_t device = 0, inode = 0, mtime_ns = 0;
  std::uint32_t mode = 0;
};

class store {
 public:
  virtual ~store() = default;
  // Opens a path relative to the store's root. On failure returns nullptr and sets *error to a negative errno. Called by
  // several workers at once; may block.
  virtual std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) = 0;
  // The same, and a sentence in *why where the errno alone does not say it. What the service calls.
  virtual std::unique_ptr<open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) {
    why->clear();
    return open(path, flags, error);
  }
  // Calls on paths, relative to the root; 0 or -errno. By several workers at once; may block. -EROFS where the store may not write.
  // rename gives the mode of what it renamed, or 0 where both paths named one file, and nothing was done.
  virtual int unlink(std::string_view /*path*/, bool /*directory*/) { return -EROFS; }
  virtual int rename(std::string_view /*from*/, std::string_view /*to*/, std::uint32_t* /*mode*/) { return -EROFS; }
  virtual int make_directory(std::string_view /*path*/, std::uint32_t /*mode*/) { return -EROFS; }
  virtual int status(std::string_view /*path*/, bool /*link*/, path_status* /*out*/) { return -ENOSYS; }
  // Entries from *position on (0: the first) as directory_entry, as many as fit; sets *position to where to go on. Without
  // "." and "..". The bytes, 0: no more, or -errno; -EINVAL when not even one fits.
  virtual std::int64_t read_directory(std::string_view /*path*/, std::int64_t* /*position*/, std::span<std::byte> /*out*/) {
    return -ENOSYS;
  }
  // The device of its root, whose number no other file system gets while the store is there; 0: it has none.
  virtual std::uint64_t device() const { return 0; }
  virtual std::string_view name() const = 0;
  // Gives back what closed files still hold (registered mappings): waits for running kernels, so only the host calls it.
  virtual void trim() {}
};

}  // namespace gpufs::store
