// Registered read-only mappings of files, shared between opens and kept after close.
#pragma once
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
    void* address = nullptr;
    std::size_t nbytes = 0;  // whole pages
    const std::byte* device_address = nullptr;
    bool ready = false;
    std::string failure;
    std::size_t users = 0;
    std::list<std::shared_ptr<mapping>>::iterator idle_place{};
  };

  mappings(simt::platform& machine, std::uint64_t budget_nbytes) : machine_(machine), budget_nbytes_(budget_nbytes) {}
  ~mappings();
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;

  // The mapping of the open file's version, registered now or before; nullptr and a sentence in *why. Waits while another
  // open registers the same one; never unregisters.
  std::shared_ptr<mapping> acquire(const file_info& info, int fd, std::string* why);
  // Gives one acquire() back; the mapping stays registered. Waits for nothing.
  void release(const std::shared_ptr<mapping>& used) noexcept;
  // Unregisters the least recently used idle mappings until at most keep_nbytes of idle ones are left. Waits for kernels.
  void trim(std::uint64_t keep_nbytes);
  pin_usage usage() const;

 private:
  bool map_and_register(mapping& m, std::size_t file_nbytes, int fd);
  void unmap(const mapping& m) noexcept;

  simt::platform& machine_;
  const std::uint64_t budget_nbytes_;
  mutable std::mutex lock_;
  std::condition_variable registered_;
  std::map<version_key, std::shared_ptr<mapping>> by_version_;
  std::list<std::shared_ptr<mapping>> idle_;  // least recently used first
  std::uint64_t pinned_nbytes_ = 0, idle_nbytes_ = 0;
  std::uint64_t unsettled_ = 0;  // versions so far
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

}  // namespace gpufs::store
