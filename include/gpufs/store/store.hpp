// SPDX-License-Identifier: Apache-2.0
// The source of the bytes of files. A store is a small table of host operations; `nil` and `mem` exist beside the real ones so that
// cache and service can be measured and tested alone, and tests derive slow and failing stores from them.
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

// What a store knows about a file that it has opened.
struct file_info {
  std::int64_t nbytes = 0;
  std::uint64_t device = 0, inode = 0;       // identity; (device, inode) of the file system
  std::uint64_t mtime_ns = 0, ctime_ns = 0;  // version; versions with equal (nbytes, mtime, ctime) are the same
  bool settled = true;                       // false: changed so recently that an equal version proves nothing
  std::uint32_t mode = 0;
  source_kind kind = source_kind::staged;
  // Device-visible address of byte 0; of kind nvme, of an nvme::file_layout. Kinds pull and mem; windows, of which the device may
  // read registered ones; live files into which kernels may store.
  const std::byte* pull_base = nullptr;
  std::string reason;       // why this kind, as of the open: one sentence for `gpufs doctor` (open_file::reason: as of now)
  bool live = false;        // open for writing: no version of the file, but its bytes at each read; nbytes is the size at open
  bool fixed_size = false;  // of a live file: it keeps its size, and kernels are told so before anything is cut or written
  // The offset in the file behind descriptor() at which offset 0 lies, a multiple of 16: all other offsets, nbytes and pull_base
  // count from there. 0 if the file is live.
  std::int64_t begin = 0;
};

// For a file of kind windows: a bit for each window of 2^shift bytes that the device may read at pull_base. Bits are added while
// the file is open, and never removed.
struct registered_windows {
  std::uint64_t registered = 0;
  std::uint32_t shift = 0;
};

// How a store answers a read that open_file::begin_pread has begun. A small value, which the mount's threads make, and a store
// copies and keeps as it likes.
class read_answer {
 public:
  // Whom it is given to. Stores need not know.
  class taker {
   public:
    virtual void take(std::uint64_t tag, std::int64_t result) noexcept = 0;

   protected:
    ~taker() = default;
  };

  read_answer(taker& to, std::uint64_t tag) : to_(&to), tag_(tag) {}
  // Answers with what pread would return: how many bytes, which are in dst by then, or -errno. Any thread calls it, exactly once
  // for a read; it waits for nobody. The file may close at once, by another thread: who answers touches neither file nor dst from
  // then on.
  void operator()(std::int64_t result) const noexcept { to_->take(tag_, result); }

 private:
  taker* to_;
  std::uint64_t tag_;
};

// An open file of a store. Its destructor closes it, and must not wait for running kernels. It may outlive its store.
class open_file {
 public:
  virtual ~open_file() = default;
  virtual const file_info& info() const = 0;
  // Reads up to dst.size() bytes at offset (>= 0) into pinned staging memory. Returns how many bytes (fewer only at the end of the
  // file) or -errno; -ESTALE if the file is no longer the version that was opened. Several workers call at once; may block.
  virtual std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) = 0;
  // Begins such a read, for a store that answers later: no thread of the mount's waits for it, however many are under way. True:
  // `answer` is called exactly once, by any thread, in this call or after it; like pread's, the answer may be short. False: the
  // read is not begun, `answer` must not be called, and a thread that may block calls pread instead, as it does after the answer
  // -EAGAIN. Several workers call at once; must not block, as the thread serves other requests too. dst stays valid, and the file
  // open, until the answer. A read without an answer hangs: others go on, and the mount's end waits for it as for any call that
  // hangs. Rows of batches are read so, too, each by a read of its own. Not called for a file that has a descriptor.
  virtual bool begin_pread(std::span<std::byte> /*dst*/, std::int64_t /*offset*/, read_answer /*answer*/) { return false; }
  // The descriptor for direct reads (batched submission), from info().begin on; -1: only the calls above read the file. It may be
  // O_NONBLOCK.
  virtual int descriptor() const { return -1; }
  // Address, offset and length of a read from descriptor() must be multiples of this; a power of two. Other reads go through
  // pread().
  virtual std::uint32_t alignment() const { return 1; }
  // 0 while the file still is the version that was opened, else -ESTALE. Called after direct reads and those that begin_pread has
  // begun, once per file and batch, and by the slow watch over pull files; cheap. Bytes that were read before a call that returns 0
  // are the opened version's, if that was settled.
  virtual int check_version() const { return 0; }

  // For files that are open for writing. Like pread, these calls may block, and several workers call at once.
  // Writes all of src at offset (>= 0). 0 or -errno; after an error, any part of src may have been written.
  virtual int pwrite(std::span<const std::byte> /*src*/, std::int64_t /*offset*/) { return -EBADF; }
  // Writes bytes and size to stable storage; unless data_only, all else too. 0 or -errno.
  virtual int sync(bool /*data_only*/) { return -EBADF; }
  // Sets the size. 0 or -errno.
  virtual int truncate(std::int64_t /*nbytes*/) { return -EBADF; }
  // Called after the device has written to the mapping of the file at pull_base, below nbytes. Sets mtime, because writes to a
  // mapping do not. Returns 0, or -EIO if pages there are no longer the file's, because another program has truncated it or punched
  // a hole: the device's writes may be lost. If `last`, it checks each page; otherwise only if ctime says that others have changed
  // the file.
  virtual int note_written_in_place(std::int64_t /*nbytes*/, bool /*last*/) { return -EBADF; }

  // Where its bytes lie from *offset (>= 0) on, in order, as many extents as fit; sets *offset to where to go on. How many, 0:
  // there are no more, or -errno; -EOPNOTSUPP where the file system has no such places. May block.
  virtual std::int64_t extents(std::int64_t* /*offset*/, std::span<extent> /*out*/) { return -EOPNOTSUPP; }

  // Why its bytes come this way, now: one sentence for whoever watches. What does not change since the open need not derive it. Any
  // thread; it waits for nothing but short locks.
  virtual std::string reason() const { return info().reason; }
  // For kind windows. Any thread; neither call waits.
  virtual registered_windows windows() const { return {}; }
  // The host has read nbytes at offset (>= 0) for the device, which may not read them itself (yet).
  virtual void note_missed(std::int64_t /*offset*/, std::uint32_t /*nbytes*/) noexcept {}
  // No kernel has read the file for a while: as many of its registered windows as something found no room for are windows() no
  // more, and the store's next make_room unregisters them. The device is told of none meanwhile.
  virtual void give_up_windows() noexcept {}

  // Of a file that is open for writing: the inodes of other files of the store that have bytes of it, while it is open. When it is
  // opened, their opens for reading end: check_version of those that were made before gives -ESTALE, and the device is told.
  virtual std::span<const std::uint64_t> others_with_its_bytes() const { return {}; }

  // For files that are open for reading: called around a rename of the file by this mount, which changes its ctime but no byte.
  // They throw nothing. Several renames may be under way at once. If a file is opened during a rename, end_rename may come before
  // begin_rename.
  virtual void begin_rename() {}
  virtual void end_rename() {}
};

// What a store knows about a path.
struct path_status {
  std::int64_t nbytes = 0;
  std::uint64_t device = 0, inode = 0, mtime_ns = 0;
  std::uint32_t mode = 0;
};

class store {
 public:
  virtual ~store() = default;
  // A mount calls it before it opens anything, and keeps what it gets until it has ended. Throws std::system_error (EBUSY), with
  // what to do, where the store cannot have this mount beside those that it has. Stores may have any number of mounts, if they do
  // not say otherwise here.
  virtual std::shared_ptr<void> admit_mount() { return nullptr; }
  // Opens a path relative to the store's root. On failure returns nullptr and sets *error to a negative errno. Several workers call
  // at once; may block.
  virtual std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) = 0;
  // The same, with a sentence in *why if the errno alone does not say it. The service calls this one.
  virtual std::unique_ptr<open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) {
    why->clear();
    return open(path, flags, error);
  }
  // Calls on paths, relative to the root; 0 or -errno. Several workers call at once; may block. -EROFS if the store may not write.
  // rename gives the mode of the renamed file, or 0 if both paths name one file and nothing is done.
  virtual int unlink(std::string_view /*path*/, bool /*directory*/) { return -EROFS; }
  virtual int rename(std::string_view /*from*/, std::string_view /*to*/, std::uint32_t* /*mode*/) { return -EROFS; }
  virtual int make_directory(std::string_view /*path*/, std::uint32_t /*mode*/) { return -EROFS; }
  virtual int status(std::string_view /*path*/, bool /*link*/, path_status* /*out*/) { return -ENOSYS; }
  // Fills `out` with as many entries (directory_entry) as fit, without "." and "..", from *position on (0: the first). Sets
  // *position to the place for the next call. Returns how many bytes, 0: no more entries, or -errno; -EINVAL if not even one entry
  // fits.
  virtual std::int64_t read_directory(std::string_view /*path*/, std::int64_t* /*position*/, std::span<std::byte> /*out*/) {
    return -ENOSYS;
  }
  // The device number of the root, which no other file system gets while the store exists; 0: it has none.
  virtual std::uint64_t device() const { return 0; }
  virtual std::string_view name() const = 0;
  // Frees what closed files still hold (registered mappings). Waits for running kernels, so only the host calls it.
  virtual void trim() {}
  // Whether something found no room in the pin budget, and whether mappings of closed files take some of it. Neither call waits.
  virtual bool lacks_room() const { return false; }
  virtual bool has_idle_room() const { return lacks_room(); }
  // As trim, but frees only as much as was lacking, least recently used first, and windows that were given up. The mount calls it
  // between kernels.
  virtual void make_room() {}
};

}  // namespace gpufs::store
