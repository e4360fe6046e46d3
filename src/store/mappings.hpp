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
    void* address = nullptr;
    std::size_t nbytes = 0;  // whole pages
    const std::byte* device_address = nullptr;
    std::chrono::steady_clock::time_point due;  // when it is registered by
    bool ready = false;                         // or, when it has failed, why
    std::string failure;
    std::size_t users = 0;  // those that wait for it, too
    std::list<std::shared_ptr<mapping>>::iterator idle_place{};
  };

  mappings(simt::platform& machine, std::uint64_t budget_nbytes);
  ~mappings();
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;

  // The mapping of the open file's version, registered now or before; nullptr and a sentence in *why. Waits until it is registered,
  // but not for ever: a CUDA call of another thread that waits for the kernel which opens the file (cudaFree, say) keeps CUDA from
  // registering, and so the kernel from ending. While one takes too long nobody waits for another. Never unregisters.
  std::shared_ptr<mapping> acquire(const file_info& info, int fd, std::string* why);
  // The same, for the device to write: of the file's pages, which it must have all, whatever version they are.
  std::shared_ptr<mapping> acquire_to_write(const file_info& info, int fd, std::string* why);
  // Up to where, at most nbytes, all of the mapping still is the file's pages: who cuts the file or punches a hole takes them out
  // of the mapping, and as the host does not touch it they do not come back. Reads a word a page.
  std::size_t whole_nbytes(const mapping& m, std::size_t nbytes) const;
  // Gives one acquire() back; the mapping stays registered. Waits for nothing.
  void release(const std::shared_ptr<mapping>& used) noexcept;
  // Unregisters the least recently used idle mappings until at most keep_nbytes of idle ones are left. Waits for kernels.
  void trim(std::uint64_t keep_nbytes);
  pin_usage usage() const;

 private:
  std::shared_ptr<mapping> acquire(const file_info& info, int fd, bool writable, std::string* why);
  std::shared_ptr<mapping> join(const version_key& version);
  void begin_registration(const std::shared_ptr<mapping>& m);
  void register_mapping(std::list<std::shared_ptr<mapping>>::iterator place);
  void end_registration(std::list<std::shared_ptr<mapping>>::iterator place, const void* device, const std::string& why);
  void put_to_idle(const std::shared_ptr<mapping>& m);
  void unmap(const mapping& m) noexcept;

  simt::platform& machine_;
  const std::uint64_t budget_nbytes_;
  const unique_fd pagemap_;  // of this process, or none
  mutable std::mutex lock_;
  std::condition_variable registered_;
  std::map<version_key, std::shared_ptr<mapping>> by_version_;
  std::list<std::shared_ptr<mapping>> idle_;  // least recently used first
  std::uint64_t pinned_nbytes_ = 0, idle_nbytes_ = 0;
  std::uint64_t unsettled_ = 0;                      // versions so far
  std::list<std::shared_ptr<mapping>> registering_;  // by a thread each
};

// A posix_file whose pages the device pulls.
class mapped_file final : public open_file {
 public:
  mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, std::shared_ptr<mappings::mapping> mapping,
              std::string reason);
  ~mapped_file() override { owner_->release(mapping_); }
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  int check_version() const override { return file_->check_version(); }

 private:
  std::unique_ptr<posix_file> file_;
  std::shared_ptr<mappings> owner_;
  std::shared_ptr<mappings::mapping> mapping_;
  file_info info_;
};

// A file open for writing into whose mapping the device stores.
class stored_file final : public open_file {
 public:
  stored_file(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner, std::shared_ptr<mappings::mapping> mapping);
  ~stored_file() override { owner_->release(mapping_); }
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override { return file_->pwrite(src, offset); }
  int sync(bool data_only) override { return file_->sync(data_only); }
  int truncate(std::int64_t nbytes) override;
  int note_stores(std::int64_t nbytes, bool last) override;

 private:
  std::unique_ptr<open_file> file_;
  std::shared_ptr<mappings> owner_;
  std::shared_ptr<mappings::mapping> mapping_;
  file_info info_;
  std::mutex lock_;           // of what follows
  std::size_t own_nbytes_;    // not cut by us
  std::size_t whole_nbytes_;  // nor by others, when we looked last
  std::uint64_t ctime_ns_;    // then
};

}  // namespace gpufs::store
