// SPDX-License-Identifier: Apache-2.0
// Which threads are inside a call that may block, and which of these calls hang.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "open_files.hpp"

namespace gpufs::service {

// A call that takes this long hangs, until it comes back. While it hangs, another thread takes the place of its thread, and no
// further call of its kind begins for its file or path.
inline constexpr std::uint64_t hangs_after_ns = 100'000'000;

// The kinds of blocking calls. The calls of a kind (for file_io: those of one file) may occupy all threads but one. As many calls
// of a kind may hang as half of the spare threads, but at least one. `looks` ask whether pulled files have changed; they occupy
// threads of their own (watch.hpp).
enum class blocking_kind : std::uint8_t { file_io, calls, looks };
inline constexpr std::size_t nblocking_kinds = 3;

// The call that a thread is inside.
struct blocked_call {
  std::atomic<std::uint64_t> since{0};  // ns; lowest bit: the call hangs; 0: in no call. The thread writes it, except for that bit
  // The fields below change only while `since` is 0, or, if the call hangs, by its thread under the lock of blocked_calls.
  blocking_kind kind{};
  std::atomic<std::uint32_t>* nblocked = nullptr;  // counts the call until it hangs; null: nothing counts it
  open_files::entry* file = nullptr;               // the file of the call; null: `path` names it
  std::string path;
  const char* operation = "";
};

// One thread is always left: no set of calls that hang can take the last one, as long as there are spare threads.
class blocked_calls {
 public:
  blocked_calls(std::uint32_t nworkers, std::uint32_t nspare)
      : nworkers_(nworkers), most_hung_(std::max(1u, nspare / 2)), nfree_(static_cast<int>(nworkers)) {
    hung_calls_.reserve(nworkers + nspare + most_hung_ + 1);
  }

  // How many workers the reads and writes of one file, or all other calls, may occupy; hanging ones do not count. While any read or
  // write hangs, one for each file: then the next file that hangs takes one thread and no more.
  std::uint32_t limit(blocking_kind kind) const {
    const bool careful = kind == blocking_kind::file_io && nhung_io_.load(std::memory_order_relaxed) != 0;
    return nworkers_ > 2 && !careful ? nworkers_ - 1 : 1;
  }

  // Whether the caller may go into a call of this kind; `nblocked` counts it too. If true, the caller must call end() at last, and
  // may call enter() and leave() before. `stops`: the service stops, and every caller may, since the remaining requests are
  // refused, which blocks nobody.
  bool may_block(blocking_kind kind, std::atomic<std::uint32_t>& nblocked, bool stops) {
    if (stops) {
      nblocked.fetch_add(1, std::memory_order_relaxed);
      nfree_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    }
    // Checked first without a write, because workers that find all places taken try again and again.
    if (nblocked.load(std::memory_order_relaxed) >= limit(kind) || !may_hang(kind)) return false;
    int nfree = nfree_.load(std::memory_order_relaxed);
    const int least = nworkers_ > 1 ? 2 : 1;
    do {
      if (nfree < least) return false;
    } while (!nfree_.compare_exchange_weak(nfree, nfree - 1, std::memory_order_relaxed));
    if (nblocked.fetch_add(1, std::memory_order_relaxed) < limit(kind)) return true;
    end(nblocked, true);
    return false;
  }

  // enter and leave stand before and after one call. The caller has set all fields of `call` but `since`.
  static void enter(blocked_call& call, std::uint64_t now_ns) { call.since.store(now_ns << 1, std::memory_order_release); }
  // True: the call did not hang. Only then does `nblocked` still count it.
  bool leave(blocked_call& call) {
    std::uint64_t since = call.since.load(std::memory_order_relaxed);
    if ((since & 1) == 0 && call.since.compare_exchange_strong(since, 0, std::memory_order_acq_rel)) return true;
    const std::scoped_lock hold(lock_);
    add(call, -1);
    std::erase(hung_calls_, &call);
    call.since.store(0, std::memory_order_relaxed);
    return false;
  }
  // Ends the caller's time in calls: its thread is free again. counts: the result of leave().
  void end(std::atomic<std::uint32_t>& nblocked, bool counts) {
    if (counts) nblocked.fetch_sub(1, std::memory_order_relaxed);
    nfree_.fetch_add(1, std::memory_order_relaxed);
  }

  // Marks the call as hanging if it has taken so long. Returns whether it hangs.
  bool look_at(blocked_call& call, std::uint64_t now_ns) {
    std::uint64_t since = call.since.load(std::memory_order_acquire);  // meets enter()'s release: we see the call's fields
    if ((since & 1) != 0) return true;
    if (since == 0 || (since >> 1) + hangs_after_ns > now_ns) return false;
    const std::scoped_lock hold(lock_);  // a thread that comes back from its call waits here until we have counted the call
    if (!call.since.compare_exchange_strong(since, since | 1, std::memory_order_acq_rel)) return false;
    if (call.nblocked != nullptr) call.nblocked->fetch_sub(1, std::memory_order_relaxed);
    hung_calls_.push_back(&call);
    add(call, 1);
    return true;
  }

  // An asynchronous read of the file hangs (1), or has come back (-1). A read of a local file occupies no thread, so others may
  // begin.
  void note_read(open_files::entry& file, int n) {
    const auto by = static_cast<std::uint32_t>(n);
    const std::scoped_lock hold(lock_);
    nhung_.fetch_add(by, std::memory_order_relaxed);
    file.nlate.fetch_add(by, std::memory_order_relaxed);
    if (!file.remote) return;
    nhung_io_.fetch_add(by, std::memory_order_relaxed);
    file.nhung_io.fetch_add(by, std::memory_order_relaxed);
  }

  // One thread more (1), or less (-1), has asynchronous reads in flight that hang. It enters no call, because it must take their
  // answers.
  void note_keeper(int n) { nkeepers_.fetch_add(static_cast<std::uint32_t>(n), std::memory_order_relaxed); }
  std::uint32_t nkeepers() const { return nkeepers_.load(std::memory_order_relaxed); }

  std::uint32_t nhung() const { return nhung_.load(std::memory_order_relaxed); }  // calls, and asynchronous reads
  bool any_hang() const { return nhung() != 0; }
  bool may_hang(blocking_kind kind) const { return hung(kind) < most_hung_; }  // whether one more call of this kind may hang
  // The number of workers that are in calls that hang.
  std::uint32_t nhung_threads() const { return hung(blocking_kind::file_io) + hung(blocking_kind::calls); }
  void add_thread() { nfree_.fetch_add(1, std::memory_order_relaxed); }

  // Calls ask(call) for the calls that hang, until one returns true. Returns whether one did. A thread that comes back from such a
  // call waits meanwhile.
  template <class Ask>
  bool any_hung(Ask ask) {
    const std::scoped_lock hold(lock_);
    return std::any_of(hung_calls_.begin(), hung_calls_.end(), [&](const blocked_call* call) { return ask(*call); });
  }

 private:
  std::uint32_t hung(blocking_kind kind) const {
    return nhung_threads_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  void add(const blocked_call& call, int n) {
    const auto by = static_cast<std::uint32_t>(n);
    nhung_threads_[static_cast<std::size_t>(call.kind)].fetch_add(by, std::memory_order_relaxed);
    nhung_.fetch_add(by, std::memory_order_relaxed);
    if (call.kind == blocking_kind::file_io) nhung_io_.fetch_add(by, std::memory_order_relaxed);
    if (call.file != nullptr) {
      (call.kind == blocking_kind::file_io ? call.file->nhung_io : call.file->nhung_calls).fetch_add(by, std::memory_order_relaxed);
    }
  }

  const std::uint32_t nworkers_, most_hung_;
  alignas(64) std::atomic<int> nfree_;  // threads that are in no such call; all threads write it
  alignas(64) std::atomic<std::uint32_t> nhung_{0}, nhung_io_{0}, nkeepers_{0};
  std::array<std::atomic<std::uint32_t>, nblocking_kinds> nhung_threads_{};
  std::mutex lock_;
  std::vector<const blocked_call*> hung_calls_;  // under the lock
};

}  // namespace gpufs::service
