// SPDX-License-Identifier: Apache-2.0
// The host's open-file table: handles that a device may forge, references that keep a file open while it is read, and which opens
// are of one file. A file is its identity (device and inode); a path only leads to it.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/store/store.hpp"
#include "own_descriptors.hpp"
#include "unmapper.hpp"

namespace gpufs::service {

// The best way to read the bytes of a file.
enum class read_path : std::uint8_t {
  nowait,  // preadv2(RWF_NOWAIT); bytes that are not in the page cache, asynchronously
  memory,  // pread: a file system in memory, which does not block (and has no RWF_NOWAIT)
  async,   // always asynchronously: the file system has no RWF_NOWAIT, or the file is read with O_DIRECT
  call,    // open_file::pread, which may block: the store has no descriptor, or a FUSE server has the file. There, if a read past
           // the page cache is short, the io_uring of Linux (6.18) reads the missing bytes from where the read began, and reports
           // success
};

class open_files {
 public:
  struct entry {
    // Generation (upper half; 0: not open) and references (lower half; one is the table's while open). At 0 the entry is free.
    std::atomic<std::uint64_t> state{0};
    std::uint32_t index = 0;  // constant once the entry was used
    std::uint32_t generation = 0;
    std::uint32_t pull_place = 0;  // in the list of open pull files
    // Used while the entry is in a chain; under the lock of the identity's part.
    std::uint32_t next = 0;  // in the chain, index + 1; 0 ends it
    bool chained = false;
    bool once = false;           // open_write_once
    entry* next_free = nullptr;  // while the entry is free; under its part's lock
    std::unique_ptr<store::open_file> file;
    std::string path;  // kept after the close. It and `generation` change under the lock of the entry's part
    std::uint32_t device_number = 0;
    std::atomic<read_path> how{read_path::call};
    std::atomic<bool> remote{false};         // its file system may hang (store/file_system.hpp), in any call
    std::atomic<std::uint32_t> nblocked{0};  // workers inside a blocking read or write of it
    // How many reads and writes of the file (nhung_io), and how many calls and looks (nhung_calls), occupy threads and hang
    // (blocking.hpp). While there are any, no more of that kind begin. nlate: asynchronous reads that hang.
    std::atomic<std::uint32_t> nhung_io{0}, nhung_calls{0}, nlate{0};
    // The windows that the device was told of, and the round in which it was told (core::told_rounds).
    std::atomic<std::uint64_t> told{0}, told_in{0};
    std::atomic<bool> awaits_look{false};  // has asked for a look, at which the device is told of more windows
    std::atomic<bool> stale{false};        // its version has ended: the file was seen to change, or this mount writes it
    // Whether the version had ended when the caller's reads of the file, which come before, had their bytes: meets mark_ended.
    bool has_ended() const {
      std::atomic_thread_fence(std::memory_order_acquire);
      return stale.load(std::memory_order_relaxed);
    }
    std::atomic<bool> awaits_telling{false};  // has asked the teller
    std::atomic<bool> stale_told{false};      // the device has been told, if there is one that can be
    // How many reads of pages there were, up to some that say that it is read often.
    std::atomic<std::uint32_t> nreads{0};
    // The workers' descriptors, once it is read often.
    std::atomic<own_descriptors*> descriptors{nullptr};
    // A mapping of a file in memory, from the first request for its rows, or once it is read often, until the file closes.
    // has_no_mapping: it cannot be mapped.
    std::atomic<store::readable_mapping*> mapping{nullptr};
    std::atomic<bool> has_no_mapping{false};
    // Whether its close may take long, as its file system may hang.
    bool closes_slowly() const { return remote.load(std::memory_order_relaxed); }
  };

  // Keeps an entry's file open; empty when default-constructed.
  class ref {
   public:
    ref() = default;
    ref(open_files* table, entry* e) : table_(table), entry_(e) {}
    ref(ref&& other) noexcept : table_(other.table_), entry_(std::exchange(other.entry_, nullptr)) {}
    ref& operator=(ref&& other) noexcept {
      if (this != &other) {
        reset();
        table_ = other.table_;
        entry_ = std::exchange(other.entry_, nullptr);
      }
      return *this;
    }
    ~ref() { reset(); }
    explicit operator bool() const { return entry_ != nullptr; }
    entry* operator->() const { return entry_; }
    entry* get() const { return entry_; }
    void reset() {
      if (entry_ != nullptr) table_->release(*std::exchange(entry_, nullptr));
    }
    // Gives the reference back, unless it is the last one, whose end closes the file. Returns whether it was given back.
    bool reset_unless_last() {
      if (entry_ != nullptr && !release_unless_last(*entry_)) return false;
      entry_ = nullptr;
      return true;
    }

   private:
    open_files* table_ = nullptr;
    entry* entry_ = nullptr;
  };

  explicit open_files(std::uint32_t max_open_files);
  ~open_files() { clear(); }

  // The acquire meets free's release: the index of an open that has ended can be had.
  bool full() const { return nopen_.load(std::memory_order_acquire) >= max_; }
  std::uint32_t size() const { return nopen_.load(std::memory_order_relaxed); }

  // The fields of a new entry.
  struct entering {
    std::string path;
    std::uint32_t device_number = 0;
    read_path how = read_path::call;
    bool once = false;             // open_write_once
    bool remote = false;           // its file system may hang
    std::uint32_t not_handle = 0;  // not to be joined: see request::skip
  };
  // The result of insert().
  struct entered {
    int error = 0;             // 0, -EMFILE, or -EBUSY: see insert()
    std::uint32_t handle = 0;  // not 0 unless there is an error
    // Set if the file is open for writing already: the device's number for that open, which `handle` names. `file` was closed then.
    std::optional<std::uint32_t> joined{};
    // This mount is renaming the file: the caller must call its begin_rename(); `renaming` calls end_rename().
    bool renamed = false;
  };
  // A rename of a file by this mount; it lives from before the store's rename until after it. Opens of the file for reading, also
  // those made meanwhile, keep their version: a rename changes ctime, but no byte.
  class renaming {
   public:
    renaming(open_files& table, std::uint64_t device, std::uint64_t inode);
    renaming(const renaming&) = delete;
    renaming& operator=(const renaming&) = delete;
    ~renaming();

   private:
    friend open_files;
    open_files& table_;
    const std::uint64_t device_, inode_;
    std::vector<ref> before_;  // the opens that existed when the rename began
    std::vector<ref> since_;   // under the lock of the identity's part
  };
  // Enters an open file. A file has at most one entry that is open for writing, and one that is open with open_write_once. A
  // further open of the file, to write or to read, joins that entry (except an open to read beside open_write_once); one that
  // begins elsewhere in the file (file_info::begin) gives -EBUSY. May throw std::bad_alloc; then `file` has been closed.
  entered insert(std::unique_ptr<store::open_file> file, entering how);
  // The open file; an empty ref if no open file has this handle. Lock-free.
  ref acquire(std::uint32_t handle);
  // The entry; null if no open file has this handle. The file may close meanwhile, so only atomic members may be read.
  entry* peek(std::uint32_t handle) const;
  // One more reference to a file that the caller keeps open.
  ref share(entry& e) {
    e.state.fetch_add(1, std::memory_order_relaxed);
    return {this, &e};
  }
  // The file's opens for reading, which have versions of their own. May throw std::bad_alloc.
  std::vector<ref> readers_of(std::uint64_t device, std::uint64_t inode);
  // A file's open for writing: its handle and the device's number for it.
  struct written_file {
    std::uint32_t handle, device_number;
  };
  std::optional<written_file> written(std::uint64_t device, std::uint64_t inode, bool once);
  // Whether the handle is that of an open file that closes slowly.
  bool closes_slowly(std::uint32_t handle) const {
    const entry* e = peek(handle);
    return e != nullptr && e->closes_slowly();
  }
  // The path of a handle; also of a closed file, until its entry is used again.
  std::optional<std::string> path_of(std::uint32_t handle);
  std::string path_of(const entry& e);  // also of one that is free, or is being used again
  // 0 or -EBADF. The file closes with the last reference.
  int close(std::uint32_t handle);
  // Closes all files; calls closes(entry) before each close.
  void clear(const std::function<void(const entry&)>& closes = {});
  // Up to `most` handles of open pull files, from *cursor on and around.
  std::vector<std::uint32_t> pull_handles(std::size_t most, std::size_t* cursor) const;
  // How many files this mount has renamed. If a thread finds the same number before it opens a file and after insert(), then no
  // rename has ended in between.
  std::uint64_t nrenamed() const { return nrenamed_.load(std::memory_order_acquire); }
  // How many files are open for writing.
  std::uint32_t nwritten() const { return nwritten_.load(std::memory_order_relaxed); }
  // How often opens for writing have been closed, or could no longer be joined. If a thread has found no open for writing of a
  // file, and this number has not changed meanwhile, then it has seen the file with all that was written to it, but for what an
  // open may still write that can no longer be joined.
  std::uint64_t nwritten_closed() const { return nwritten_closed_.load(std::memory_order_acquire); }
  // How many files have an asynchronous read that hangs, and the path of one of them.
  std::string late_path(std::size_t* nfiles);
  std::size_t npull() const { return npull_.load(std::memory_order_relaxed); }
  std::uint32_t handle_of(const entry& e) const { return e.generation << index_bits_ | e.index; }

 private:
  static constexpr std::uint32_t chunk_size = 1024;
  // An entry is used again only after this many others were freed, so that a stale handle meets its generation late.
  static constexpr std::size_t reuse_distance = 256;
  // Free entries lie in parts with locks of their own, so that threads that open and close many files seldom meet: index i in
  // part i mod nparts.
  static constexpr std::uint32_t none = ~0u;
  static constexpr std::uint32_t nparts = 16;
  struct alignas(64) free_part {
    std::mutex lock;
    // The list of free entries; the entry that was freed first is in front. Destructors free entries, so this must not allocate.
    entry *first = nullptr, *last = nullptr;
    std::uint32_t n = 0;
  };
  using chunk = std::array<entry, chunk_size>;
  // Chains of open files by identity. They lie in parts with locks of their own: chain c in part c mod nparts.
  struct alignas(64) identity_part {
    std::mutex lock;
    std::vector<renaming*> renamings;  // of this part's files, under way
  };
  std::size_t chain_of(std::uint64_t device, std::uint64_t inode) const;
  template <class Each>
  void each_of(std::size_t chain, std::uint64_t device, std::uint64_t inode, Each each) const;
  void unchain(std::size_t chain, entry& e);
  void enter(entry& e, std::uint32_t not_handle, entered& result);
  void add_readers(std::size_t chain, std::uint64_t device, std::uint64_t inode, std::vector<ref>& to);
  void free(entry& e);

  std::uint32_t take_free();
  std::uint32_t take_unused();
  entry* find(std::uint32_t index) const;
  void release(entry& e);
  static bool release_unless_last(entry& e);
  void drop_from_pulls(entry& e);

  const std::uint32_t max_;
  const unsigned index_bits_;
  std::unique_ptr<std::atomic<chunk*>[]> chunks_;
  alignas(64) std::atomic<std::uint32_t> nopen_{0};  // all threads write it, and only read the members above
  std::atomic<std::size_t> npull_{0};
  std::atomic<std::uint32_t> nwritten_{0};
  std::atomic<std::uint64_t> nwritten_closed_{0}, nrenamed_{0};
  std::array<free_part, nparts> free_;
  std::array<identity_part, nparts> identities_;
  std::vector<std::uint32_t> chains_;  // the first entry of each chain, index + 1; under its part's lock
  mutable std::mutex lock_;            // of what follows
  std::vector<std::unique_ptr<chunk>> owned_;
  std::atomic<std::uint32_t> nused_{0};  // entries that were ever used; grows under the lock
  std::vector<std::uint32_t> pulls_;     // indices of open pull files
  unmapper unmapper_;
};

}  // namespace gpufs::service
