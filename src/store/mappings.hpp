// Registered mappings of files, shared between opens and kept after close.
#pragma once
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "gpufs/store/mapped_store.hpp"
#include "posix_file.hpp"
#include "unique_mmap.hpp"

namespace gpufs::store {

class mappings {
 public:
  // (device, inode, nbytes, mtime, ctime), and a number that tells apart versions which were not settled: the file may have been
  // truncated and written again under the same stamps, and then the old mapping holds pages that are no longer the file's.
  using version_key = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

  // One registered mapping. `users` and the rest belong to mappings' lock, the addresses are constant once it is ready.
  struct mapping {
    version_key version;
    bool writable = false;
    unique_mmap memory;
    std::size_t nbytes = 0;  // whole pages
    const std::byte* device_address = nullptr;
    std::chrono::steady_clock::time_point due;  // when it is registered by
    bool ready = false, failed = false;
    bool is_locked = false;                                 // in memory
    std::string failure;                                    // why it has failed
    std::size_t users = 0;                                  // those that wait for it, too
    std::list<std::shared_ptr<mapping>>::iterator place{};  // in the list that it is in
  };
  struct giver_back {
    mappings* owner = nullptr;
    void operator()(mapping* used) const noexcept { owner->release(*used); }
  };
  // An acquire() that gives itself back; the mapping stays registered. Waits for nothing.
  using use = std::unique_ptr<mapping, giver_back>;

  mappings(simt::platform& machine, std::uint64_t budget_nbytes);
  ~mappings();
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;

  // The mapping of the open file's version, registered now or before; nullptr and a sentence in *why. Waits until it is registered,
  // but not for ever: a CUDA call of another thread that waits for the kernel which opens the file (cudaFree, say) keeps CUDA from
  // registering, and so the kernel from ending. While one takes too long nobody waits for another. Never unregisters. When it
  // throws (there is no memory), nothing is left of it.
  use acquire(const file_info& info, int fd, std::string* why);
  // The same, for the device to write: of the file's pages, which it must have all, whatever version they are.
  use acquire_to_write(const file_info& info, int fd, std::string* why);
  // Up to where, at most nbytes, all of the mapping still is the file's pages: who cuts the file or punches a hole takes them out
  // of the mapping, and as the host does not touch it they do not come back. Reads a word a page. Where we were not
  // allowed to lock them the kernel takes pages out to reclaim them, too: there those that the file still has count, unless
  // somebody has `changed` the file since it was whole.
  std::size_t whole_nbytes(const mapping& m, std::size_t nbytes, bool changed) const;
  // Unregisters the least recently used idle mappings until at most keep_nbytes of idle ones are left. Waits for kernels.
  void trim(std::uint64_t keep_nbytes);
  pin_usage usage() const;

 private:
  using mapping_list = std::list<std::shared_ptr<mapping>>;
  use acquire(const file_info& info, int fd, bool writable, std::string* why);
  void release(mapping& used) noexcept;
  std::shared_ptr<mapping> join(const version_key& version);
  std::shared_ptr<mapping> begin_registration(const version_key& version, unique_mmap memory, std::size_t nbytes, bool writable);
  void register_mapping(const std::shared_ptr<mapping>& m) noexcept;
  void end_registration(mapping& m, const void* device, std::string why) noexcept;
  void unmap(mapping& m) noexcept;

  simt::platform& machine_;
  const std::uint64_t budget_nbytes_;
  const unique_fd pagemap_;  // of this process, or none
  mutable std::mutex lock_;
  std::condition_variable registered_;
  std::map<version_key, std::shared_ptr<mapping>> by_version_;
  // Each mapping is in one of these, and goes from one to the other without a need of memory.
  mapping_list registering_;  // by a thread each
  mapping_list used_;
  mapping_list idle_;  // least recently used first
  std::uint64_t pinned_nbytes_ = 0, idle_nbytes_ = 0;
  std::uint64_t unsettled_ = 0;  // versions so far
};

// A posix_file whose pages the device pulls.
class mapped_file final : public open_file {
 public:
  mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, mappings::use mapping, std::string reason);
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  int check_version() const override { return file_->check_version(); }
  void begin_rename() override { file_->begin_rename(); }
  void end_rename() override { file_->end_rename(); }

 private:
  std::unique_ptr<posix_file> file_;
  std::shared_ptr<mappings> owner_;  // outlives the use
  mappings::use mapping_;
  file_info info_;
};

// A file open for writing into whose mapping the device stores.
class stored_file final : public open_file {
 public:
  stored_file(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner, mappings::use mapping);
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override { return file_->pwrite(src, offset); }
  int sync(bool data_only) override { return file_->sync(data_only); }
  int truncate(std::int64_t nbytes) override;
  int note_stores(std::int64_t nbytes, bool last) override;

 private:
  std::unique_ptr<open_file> file_;
  std::shared_ptr<mappings> owner_;  // outlives the use
  mappings::use mapping_;
  file_info info_;
  std::mutex lock_;           // of what follows
  std::size_t own_nbytes_;    // not cut by us
  std::size_t whole_nbytes_;  // nor by others, when we looked last
  std::uint64_t ctime_ns_;    // then
};

}  // namespace gpufs::store
