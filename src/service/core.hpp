// SPDX-License-Identifier: Apache-2.0
// The state that the workers of a service share.
#pragma once
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "../transport/rings.hpp"
#include "blocking.hpp"
#include "cache_ids.hpp"
#include "error_log.hpp"
#include "for_tests.hpp"
#include "gpufs/service/detail/service.hpp"
#include "open_files.hpp"
#include "parking.hpp"

namespace gpufs::service {

using names::max_path_nbytes;
using names::open_prepared;
using names::open_unmapped;
using names::open_write_once;
using names::unlink_directory;
using transport::opcode;
using transport::read_ahead;
using transport::read_to_frame;
using transport::reply;
using transport::request;
using transport::rings;
using transport::taken_request;
using transport::write_masked;

// One thread counts; any thread reads.
struct alignas(64) tally {
  using word = std::atomic<std::uint64_t>;
  std::array<word, 3> opens{};  // by page_reader; `either` counts as `host`
  word opens_with_bytes{0}, closes{0}, reads{0}, bytes_read{0}, cold_reads{0}, errors{0}, batches{0}, max_batch{0};
  word copies{0}, writes{0}, bytes_written{0}, syncs{0};
  word requests{0}, answers{0};  // stop() compares their sums: see worker::admit

  static void add(word& w, std::uint64_t n = 1) {
    w.store(w.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);  // one writer
  }
};

class worker;
struct work;

inline constexpr std::size_t ncopiers = 3;  // threads

// The frames of the device's cache, as the copy engine fills them.
struct frame_memory {
  std::byte* begin = nullptr;
  std::uint32_t nframes = 0, nbytes = 0;  // nbytes: of one frame
};

struct core {
  core(simt::platform& device, std::shared_ptr<store::store> store, const service_options& o)
      : machine(device),
        options(o),
        files(std::move(store)),
        requests(device, o.nrings, o.nslots, o.payload_nbytes, o.writable),
        open(o.max_open_files),
        ids(for_tests::first_cache_id),
        parked(static_cast<int>(o.nworkers)),
        blocked(o.nworkers, o.nspare_workers),
        tallies(most_workers() + ncopiers + 1),
        workers(new std::unique_ptr<worker>[most_workers()]) {}

  bool may_block(blocking_kind kind, std::atomic<std::uint32_t>& nblocked) {
    return blocked.may_block(kind, nblocked, stopping.load());
  }
  std::uint32_t most_workers() const { return options.nworkers + options.nspare_workers; }
  bool can_add_worker() const { return nworkers.load(std::memory_order_relaxed) < most_workers(); }
  // The number of workers that can go into blocking calls, or are in blocking calls that do not hang.
  std::int64_t ncallers() const {
    return std::int64_t{nworkers.load(std::memory_order_relaxed)} - blocked.nhung_threads() - blocked.nkeepers();
  }
  // The present workers, at most most_workers(). The acquire meets the release of the thread that adds a worker.
  std::span<const std::unique_ptr<worker>> all_workers() const { return {workers.get(), nworkers.load(std::memory_order_acquire)}; }

  void answer(tally& counts, std::uint32_t index, std::uint32_t sequence, const reply& out) {
    requests.complete(index, sequence, out);
    counts.answers.fetch_add(1, std::memory_order_release);  // meets stop()'s acquire
  }

  // Counts a failed request. Logs it, too, unless stop() made it fail.
  void note_error(tally& counts, const char* operation, std::string_view path, int error, std::string_view text) {
    tally::add(counts.errors);
    log.count(error);
    if (error != ESHUTDOWN) log.add(operation, path, error, text);
  }
  void refuse(tally& counts, std::uint32_t index, std::uint32_t sequence, int error) {
    reply out{};
    out.result = -error;
    answer(counts, index, sequence, out);
  }

  // Ends a file's version, because the file has changed. From now on a page that is not in the cache gives -ESTALE, and a new open
  // of the file gets a new version. True for the first call for this version. On return the device has been told, by this call or
  // an earlier one.
  bool end_version(open_files::entry& file) {
    const std::scoped_lock hold(on_stale_lock);
    const bool first = mark_ended(file);
    if (file.stale_told.load(std::memory_order_relaxed)) return first;
    try {
      if (on_stale) on_stale(file.device_number, open.handle_of(file));
    } catch (const std::exception& e) {  // the device is lost: its kernels report it
      log.add("service", file.path, EIO, e.what());
    }
    {
      const std::scoped_lock told(told_lock);
      file.stale_told.store(true, std::memory_order_release);  // meets is_told's acquire
      is_held_up = false;
    }
    told_one.notify_all();
    return first;
  }
  // The same, but the teller tells the device, and the call does not wait for that.
  bool end_version_later(open_files::entry& file) {
    const bool first = mark_ended(file);
    if (is_told(file) || file.awaits_telling.exchange(true, std::memory_order_relaxed)) return first;
    try {
      tell_later(open.handle_of(file));
    } catch (const std::exception&) {  // no memory, or no thread
      end_version(file);
    }
    return first;
  }
  // The same for a thread whose answer a kernel waits for. Telling the device may itself have to wait for that kernel. So the call
  // waits for the teller, but only for a short time. After a wait in vain, no call waits until the device has been told of some
  // file again.
  void end_version_soon(open_files::entry& file) {
    constexpr std::chrono::milliseconds most{500};
    end_version_later(file);
    std::unique_lock hold(told_lock);
    const auto is_over = [&] { return is_told(file) || is_held_up || stopping.load(); };
    if (!told_one.wait_for(hold, most, is_over)) is_held_up = true;
  }
  static bool is_told(const open_files::entry& file) { return file.stale_told.load(std::memory_order_acquire); }
  bool mark_ended(open_files::entry& file) {
    // The release meets the acquire of threads that have read from the file: they do not take bytes that were written after this
    // for bytes of the version.
    if (file.stale.exchange(true, std::memory_order_acq_rel)) return false;
    nstale.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  // Whether more windows of a file of kind windows are registered than the device has been told of.
  bool has_new_windows(const open_files::entry& file) const {
    const bool known = file.told_in.load(std::memory_order_relaxed) == told_rounds.load(std::memory_order_relaxed);
    return file.file->windows().registered != (known ? file.told.load(std::memory_order_relaxed) : 0);
  }
  // Tells the device of new windows. If the device cannot be told now, the next tick of the watch tries again; until then look_soon
  // does nothing for the file.
  void tell_windows(open_files::entry& file) {
    const std::scoped_lock hold(on_windows_lock);
    if (!on_windows) return;
    file.awaits_look.store(false, std::memory_order_relaxed);  // before we read `windows`: later registrations ask for another look
    if (!has_new_windows(file)) return;
    const store::registered_windows windows = file.file->windows();
    const std::uint64_t round = told_rounds.load(std::memory_order_relaxed);
    try {
      if (!on_windows(file.device_number, open.handle_of(file), file.file->info().pull_base, windows)) {
        file.awaits_look.store(true, std::memory_order_relaxed);
        return;
      }
      file.told.store(windows.registered, std::memory_order_relaxed);
      file.told_in.store(round, std::memory_order_relaxed);
    } catch (const std::exception& e) {  // as in end_version
      log.add("service", file.path, EIO, e.what());
    }
  }

  // Returns the row buffers; the first call makes them. May throw std::bad_alloc.
  const transport::row_buffers& make_row_buffers() {
    const std::scoped_lock hold(row_lock);
    if (rows.load(std::memory_order_relaxed) == nullptr) {
      row_layout = transport::row_buffers_for(options.nrings, options.nslots);
      if (const std::size_t nbytes = transport::nbytes_of(row_layout); nbytes != 0) {
        row_memory = std::make_unique<simt::pinned_array<std::byte>>(nbytes, machine);
        row_layout.memory = row_memory->get();
      }
      rows.store(&row_layout, std::memory_order_release);  // meets begin_rows' acquire
    }
    return row_layout;
  }

  simt::platform& machine;  // the current device in each thread of the service, so that no call has to change it
  const service_options options;
  const std::shared_ptr<store::store> files;
  rings requests;
  open_files open;
  cache_ids ids;
  error_log log;
  parking parked;
  std::atomic<bool> stopping{false};  // requests get -ESHUTDOWN
  std::atomic<bool> exiting{false};   // the threads end
  blocked_calls blocked;
  std::vector<tally> tallies;                                // each worker's, the copier's threads', and the extender's
  const std::unique_ptr<std::unique_ptr<worker>[]> workers;  // never moved, because workers look into each other's queues
  std::atomic<std::uint32_t> nworkers{0};
  std::atomic<std::uint64_t> nstale{0};
  std::mutex on_stale_lock;
  std::function<void(std::uint32_t, std::uint32_t)> on_stale;  // device's number, handle: tells the device
  std::function<void(std::uint32_t)> tell_later;  // has the teller tell the device, by a handle; constant like look_soon
  std::mutex told_lock;                           // of the next two members
  std::condition_variable told_one;
  bool is_held_up = false;
  std::function<void(open_files::entry&)> look_soon;  // has the watch look at a file with new windows; constant while workers run
  std::mutex on_windows_lock;
  std::function<bool(std::uint32_t, std::uint32_t, const std::byte*, const store::registered_windows&)> on_windows;
  std::function<void(const taken_request&)> extend_later;  // has the extender answer; constant while workers run
  // Has the copier bring a checked read to its frame of `frames`. If frames.nframes is 0, no request asks for that. Both are set
  // before kernels ask.
  std::function<void(work&&)> copy_later;
  frame_memory frames;
  std::atomic<std::size_t> ncopying{0};        // pages
  std::atomic<bool> has_opened_staged{false};  // a file was opened whose rows kernels may ask the host for: staged, or by windows
  std::mutex row_lock;
  std::unique_ptr<simt::pinned_array<std::byte>> row_memory;
  transport::row_buffers row_layout;  // constant once `rows` is set
  std::atomic<const transport::row_buffers*> rows{nullptr};
  std::atomic<std::uint64_t> told_rounds{1};           // 1 + how often the device has forgotten all windows
  alignas(64) std::atomic<std::uint32_t> ncalling{0};  // all threads write it, and only read the members above
};

}  // namespace gpufs::service
