// SPDX-License-Identifier: Apache-2.0
// The host's mmaps of files, registered with the device, shared between opens and kept after close.
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

#include "../simt/unique_fd.hpp"
#include "gpufs/store/mapped_store.hpp"
#include "unique_mmap.hpp"

namespace gpufs::store {

class mappings {
 public:
  // (device, inode, nbytes, mtime, ctime), and a number. The number differs between versions that were not settled: the file may
  // have been truncated and written again under the same stamps, and then the old mapping has pages that are no longer the file's.
  using version_key = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

  enum class window_state : std::uint32_t {
    none,
    wanted,      // waits to be registered, or is being registered or unregistered
    registered,  // for as long as the mapping lives, or until it is given up
    refused,     // by the platform, or by the budget, until trim() or make_room()
  };
  // A part of a mapping that is registered by itself. Each has a cache line of its own, because many threads count in them.
  struct alignas(64) window {
    std::atomic<std::uint64_t> missed_nbytes{0};          // how many bytes of it host threads have read for the device
    std::atomic<window_state> state{window_state::none};  // changes under the lock of mappings
  };

  // A file's mapping, registered or not. The lock of mappings guards `version` and all that follows `windows`; the other members
  // are constant.
  struct mapping {
    version_key version;
    bool writable = false;
    unique_mmap memory;
    std::size_t nbytes = 0;  // whole pages
    unsigned window_shift = 0;
    std::size_t nwindows = 0;
    std::unique_ptr<window[]> windows;
    std::atomic<std::uint64_t> registered{0};   // a bit for each window; release: after device_address and is_locked
    const std::byte* device_address = nullptr;  // of byte 0
    bool is_locked = false;                     // in memory, by mlock2
    std::size_t nwanted = 0;                    // windows that wait to be registered, or are being registered
    std::size_t nqueued = 0;                    // how many of these are in wanted_; each is a user
    std::size_t nwhole = 0;                     // users that need all of it registered
    std::size_t nunread = 0;  // users that have called give_up since one came or went, and since the last make_room
    std::chrono::steady_clock::time_point due{};            // when the windows for which a thread waits should be registered
    std::string failure;                                    // why the last failed registration failed
    std::size_t users = 0;                                  // files that use it, threads that wait for it, threads that register a
                                                            // part of it, and nqueued
    std::list<std::shared_ptr<mapping>>::iterator place{};  // in used_ or idle_

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
    bool holds_whole = false;
    void operator()(mapping* used) const noexcept { owner->release(*used, holds_whole); }
  };
  // The result of acquire(). It releases the mapping when it ends; the mapping stays registered. Waits for nothing.
  using use = std::unique_ptr<mapping, giver_back>;

  mappings(simt::platform& machine, std::uint64_t budget_nbytes, std::uint64_t least_window_nbytes);
  ~mappings();
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;

  // Returns the mapping of the open file's version, with all of it registered now or before; or nullptr and a sentence in *why.
  // Waits until it is registered, but not for ever: if another thread's CUDA call (cudaFree, say) waits for the kernel that opens
  // the file, CUDA does not register until the kernel ends, and the kernel waits for us. While one registration takes too long, no
  // call waits for another. Never unregisters. If it throws (there is no memory), it leaves nothing behind.
  use acquire(const file_info& info, int fd, std::string* why);
  // The same, but windows of the mapping may be unregistered yet. A window is registered once host threads have read as many bytes
  // of it as it has (note_missed). A pulled miss saves some 0.08 us for 4 KiB, and to register 4 KiB of a window costs 0.22 us. So
  // registering pays after some three passes, and to wait for one pass loses little in any case. The call waits for no
  // registration, but for the system's mmap, which waits while CUDA pins a window of another file.
  use acquire_windows(const file_info& info, int fd, std::string* why);
  // Like acquire(), for a mapping that the device writes. The mapping must have all of the file's own pages, of whatever version.
  use acquire_to_write(const file_info& info, int fd, std::string* why);
  // Whether all of the mapping is registered; then it stays so until `of` ends.
  bool hold_whole(use& of);
  // Counts nbytes at `offset` that host threads have read for the device. Any thread; waits for nothing.
  void note_missed(mapping& used, std::uint64_t offset, std::uint64_t nbytes) noexcept;
  // How much of a mapping is registered, as one sentence: how many of its windows, and why some were refused. Any thread.
  std::string progress_of(const mapping& used) const;
  // The offset, at most nbytes, up to which the mapping still consists of the file's pages. If somebody truncates the file or
  // punches a hole, the kernel takes those pages out of the mapping; they do not come back, because the host does not touch the
  // mapping. The call reads a word a page. If we were not allowed to lock the pages, the kernel also takes pages out to reclaim
  // memory. Then pages that the file still has count as present, unless somebody has `changed` the file since it was whole.
  std::size_t whole_nbytes(const mapping& m, std::size_t nbytes, bool changed) const;
  // Unregisters the least recently used idle mappings until at most keep_nbytes of idle ones are left. Waits for kernels.
  void trim(std::uint64_t keep_nbytes);
  // Whether something found no room in the budget since the last trim, and whether idle mappings take some of it.
  bool lacks_room() const;
  bool has_idle_room() const;
  // Once all users of a mapping have called it, all of them files of the mount that calls make_room then: has that unregister as
  // many of its windows as idle mappings leave lacking. From then on they are registered for nobody. Until its caller's make_room
  // has returned, no kernel of the caller's may be told of any window. Does nothing if a user needs the whole mapping, or windows
  // of it are wanted.
  void give_up(mapping& used) noexcept;
  // Unregisters what was given up, and as many idle mappings as it takes to have the room that is lacking, least recently used
  // first. Waits for kernels.
  void make_room();
  pin_usage usage() const;

 private:
  using mapping_list = std::list<std::shared_ptr<mapping>>;
  using time_point = std::chrono::steady_clock::time_point;
  enum class how { whole, windows, writable };
  use acquire(const file_info& info, int fd, how wanted, std::string* why);
  void release(mapping& used, bool held_whole) noexcept;
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
  void unregister_window(mapping& m, std::size_t i) noexcept;
  void unmap(mapping& m) noexcept;

  simt::platform& machine_;
  const std::uint64_t budget_nbytes_;
  const std::uint64_t least_window_nbytes_;
  const unique_fd pagemap_;  // of this process, or none
  mutable std::mutex lock_;
  std::condition_variable registered_;
  std::map<version_key, std::shared_ptr<mapping>> by_version_;
  // Each mapping is in one of these two lists. It moves between them without allocating memory.
  mapping_list used_;
  mapping_list idle_;                  // least recently used first
  std::list<time_point> registering_;  // when each thread that registers should have done its work
  std::deque<std::pair<std::shared_ptr<mapping>, std::size_t>> wanted_;  // windows, in the order in which they had enough missed
                                                                         // bytes
  bool registers_wanted_ = false;                                        // whether a thread runs register_wanted
  std::uint64_t pinned_nbytes_ = 0, idle_nbytes_ = 0;
  std::uint64_t lacking_nbytes_ = 0;                                        // what found no room since the last trim
  std::vector<std::pair<std::shared_ptr<mapping>, std::size_t>> given_up_;  // windows; each is a user
  std::uint64_t given_up_nbytes_ = 0;
  std::uint64_t unsettled_ = 0;  // how many unsettled versions there were so far
};

}  // namespace gpufs::store
