// SPDX-License-Identifier: Apache-2.0
// The host's mappings of files (by mmap), registered with the device, shared between opens and kept after close. Mappings of
// pointers are something else: gpufs/pointer/detail/mapping.hpp.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
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

  enum class window_state : std::uint32_t {
    none,
    wanted,      // waits to be registered, or is
    registered,  // for as long as the mapping lives
    refused,     // the platform said no, or the budget, until trim()
  };
  // A part of a mapping that is registered by itself. A line each, as many threads count in them.
  struct alignas(64) window {
    std::atomic<std::uint64_t> missed_nbytes{0};          // what host threads have read of it for the device
    std::atomic<window_state> state{window_state::none};  // changes under mappings' lock
  };

  // A file's mapping, registered or not. `users` and the rest belong to mappings' lock, what comes before is constant.
  struct mapping {
    version_key version;
    bool writable = false;
    unique_mmap memory;
    std::size_t nbytes = 0;  // whole pages
    unsigned window_shift = 0;
    std::size_t nwindows = 0;
    std::unique_ptr<window[]> windows;
    std::atomic<std::uint64_t> registered{0};               // a bit a window; release: after the next two
    const std::byte* device_address = nullptr;              // of byte 0
    bool is_locked = false;                                 // in memory
    std::size_t nwanted = 0;                                // windows
    std::size_t nqueued = 0;                                // those of them in wanted_, each of which is a user
    std::chrono::steady_clock::time_point due{};            // when what somebody waits for should be registered
    std::string failure;                                    // why the last registration that failed did
    std::size_t users = 0;                                  // users that wait for it, and threads that register a part of it
    std::list<std::shared_ptr<mapping>>::iterator place{};  // in the list that it is in

    std::uint64_t all_windows() const { return nwindows == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << nwindows) - 1; }
    bool is_whole() const { return registered.load(std::memory_order_acquire) == all_windows(); }
    bool is_registered(std::size_t i) const { return (registered.load(std::memory_order_acquire) >> i & 1) != 0; }
    std::uint64_t registered_nbytes() const {
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < nwindows; ++i) sum += is_registered(i) ? nbytes_of(i) : 0;
      return sum;
    }
    std::size_t begin_of(std::size_t i) const { return i << window_shift; }
    std::size_t nbytes_of(std::size_t i) const { return std::min(nbytes - begin_of(i), std::size_t{1} << window_shift); }
  };
  struct giver_back {
    mappings* owner = nullptr;
    void operator()(mapping* used) const noexcept { owner->release(*used); }
  };
  // An acquire() that gives itself back; the mapping stays registered. Waits for nothing.
  using use = std::unique_ptr<mapping, giver_back>;

  mappings(simt::platform& machine, std::uint64_t budget_nbytes, std::uint64_t least_window_nbytes);
  ~mappings();
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;

  // The mapping of the open file's version, all of it registered now or before; nullptr and a sentence in *why. Waits until it is
  // registered, but not for ever: a CUDA call of another thread that waits for the kernel which opens the file (cudaFree, say)
  // keeps CUDA from registering, and so the kernel from ending. While one takes too long nobody waits for another. Never
  // unregisters. When it throws (there is no memory), nothing is left of it.
  use acquire(const file_info& info, int fd, std::string* why);
  // The same, but nothing of the mapping need be registered yet. A window is registered once host threads have read as many bytes
  // of it as it has (note_missed). A pulled miss saves some 0.08 us for 4 KiB, and to register 4 KiB of a window costs 0.22 us. So
  // registering pays after some three passes, and to wait for one pass loses little in any case. The call waits for no
  // registration, but for the system's mmap, which waits while CUDA pins a window of another file.
  use acquire_windows(const file_info& info, int fd, std::string* why);
  // As acquire(), for a mapping that the device writes. The mapping must have all of the file's own pages, of whatever version.
  use acquire_to_write(const file_info& info, int fd, std::string* why);
  // Host threads have read this much of the file, at `offset`, for the device. Any thread; waits for nothing.
  void note_missed(mapping& used, std::uint64_t offset, std::uint64_t nbytes) noexcept;
  // The offset, at most nbytes, up to which the mapping still consists of the file's pages. If somebody truncates the file or
  // punches a hole, the kernel takes those pages out of the mapping; they do not come back, because the host does not touch the
  // mapping. The call reads a word a page. If we were not allowed to lock the pages, the kernel also takes pages out to reclaim
  // memory. Then pages that the file still has count as present, unless somebody has `changed` the file since it was whole.
  std::size_t whole_nbytes(const mapping& m, std::size_t nbytes, bool changed) const;
  // Unregisters the least recently used idle mappings until at most keep_nbytes of idle ones are left. Waits for kernels.
  void trim(std::uint64_t keep_nbytes);
  pin_usage usage() const;

 private:
  using mapping_list = std::list<std::shared_ptr<mapping>>;
  using time_point = std::chrono::steady_clock::time_point;
  enum class how { whole, windows, writable };
  use acquire(const file_info& info, int fd, how wanted, std::string* why);
  void release(mapping& used) noexcept;
  std::shared_ptr<mapping> let_go(mapping& used) noexcept;
  std::shared_ptr<mapping> join(const version_key& version);
  std::shared_ptr<mapping> enter(const version_key& version, unique_mmap memory, std::size_t nbytes, how wanted);
  bool begin_whole(const std::shared_ptr<mapping>& m, time_point* due, std::string* why);
  std::string over_budget(std::uint64_t nbytes) const;
  template <class Work>
  void start_thread(time_point due, Work work);
  void register_whole(const std::shared_ptr<mapping>& m, const std::vector<std::size_t>& missing) noexcept;
  void register_wanted(time_point& due) noexcept;
  bool register_window(mapping& m, std::size_t i, std::unique_lock<std::mutex>& hold) noexcept;
  void end_window(mapping& m, std::size_t i, window_state became) noexcept;
  void unmap(mapping& m) noexcept;

  simt::platform& machine_;
  const std::uint64_t budget_nbytes_;
  const std::uint64_t least_window_nbytes_;
  const unique_fd pagemap_;  // of this process, or none
  mutable std::mutex lock_;
  std::condition_variable registered_;
  std::map<version_key, std::shared_ptr<mapping>> by_version_;
  // Each mapping is in one of these, and goes from one to the other without a need of memory.
  mapping_list used_;
  mapping_list idle_;                  // least recently used first
  std::list<time_point> registering_;  // by when each thread that registers should have done what it does
  std::deque<std::pair<std::shared_ptr<mapping>, std::size_t>> wanted_;  // windows, in the order in which they were missed enough
  bool registers_wanted_ = false;                                        // a thread does
  std::uint64_t pinned_nbytes_ = 0, idle_nbytes_ = 0;
  std::uint64_t unsettled_ = 0;  // versions so far
};

// A posix_file whose pages the device pulls: all of them, or those of the windows that are registered.
class mapped_file final : public open_file {
 public:
  mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, mappings::use mapping);
  const file_info& info() const override { return info_; }
  window_view windows() const override;
  void note_missed(std::int64_t offset, std::uint32_t nbytes) noexcept override {
    owner_->note_missed(*mapping_, static_cast<std::uint64_t>(offset), nbytes);
  }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override { return file_->extents(offset, out); }
  int check_version() const override { return file_->check_version(); }
  void begin_rename() override { file_->begin_rename(); }
  void end_rename() override { file_->end_rename(); }

 private:
  std::unique_ptr<posix_file> file_;
  std::shared_ptr<mappings> owner_;  // outlives the use
  mappings::use mapping_;
  file_info info_;
};

// A file that is open for writing, and whose mapping the device writes to by plain stores.
class file_written_in_place final : public open_file {
 public:
  file_written_in_place(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner, mappings::use mapping);
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override { return file_->extents(offset, out); }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override { return file_->pwrite(src, offset); }
  int sync(bool data_only) override { return file_->sync(data_only); }
  int truncate(std::int64_t nbytes) override;
  int note_written_in_place(std::int64_t nbytes, bool last) override;

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
