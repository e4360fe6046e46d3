// What the workers of a service share.
#pragma once
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cache_ids.hpp"
#include "error_log.hpp"
#include "gpufs/service/service.hpp"
#include "open_files.hpp"
#include "parking.hpp"
#include "rings.hpp"

namespace gpufs::service {

// Counted by one worker, read by anybody.
struct alignas(64) tally {
  using word = std::atomic<std::uint64_t>;
  std::array<word, 3> opens{};  // by source_kind
  word opens_with_bytes{0}, closes{0}, reads{0}, bytes_read{0}, cold_reads{0}, errors{0}, batches{0}, max_batch{0};
  word writes{0}, bytes_written{0}, syncs{0};
  word requests{0}, answers{0};  // stop() compares their sums: see worker::admit

  static void add(word& w, std::uint64_t n = 1) {
    w.store(w.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);  // one writer
  }
};

class worker;

struct core {
  core(simt::platform& machine, std::shared_ptr<store::store> store, const service_options& o)
      : options(o),
        files(std::move(store)),
        requests(machine, o.nrings, o.nslots, o.payload_nbytes, o.writable),
        open(o.max_open_files),
        ids(o.first_cache_id),
        parked(static_cast<int>(o.nworkers)),
        tallies(o.nworkers) {}

  // How many workers one file's blocking reads, all writes, or all other calls may occupy: one stays for the others.
  std::uint32_t blocking_limit() const { return options.nworkers > 1 ? options.nworkers - 1 : 1; }

  // Whether one more worker may block, counted by `nblocked`; the caller takes itself out again. Once the service stops everybody
  // may: what is left is refused, and that blocks nobody.
  bool may_block(std::atomic<std::uint32_t>& nblocked) const {
    // Looked at first: workers that find all places taken do so again and again.
    const bool stops = stopping.load();
    if (nblocked.load(std::memory_order_relaxed) >= blocking_limit() && !stops) return false;
    if (nblocked.fetch_add(1, std::memory_order_relaxed) < blocking_limit() || stops) return true;
    nblocked.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }

  // A file's version has gone: from now on what the cache does not have of it is -ESTALE. Once for each open.
  void end_version(open_files::entry& file, const char* who, const char* why) {
    // Release: meets the acquire of who has read from the file, so that bytes written after this are not taken for the version's.
    if (file.stale.exchange(true, std::memory_order_acq_rel)) return;
    nstale.fetch_add(1, std::memory_order_relaxed);
    log.add(who, file.path, ESTALE, why);
    const std::scoped_lock hold(on_stale_lock);
    try {
      if (on_stale) on_stale(file.device_number, open.handle_of(file));
    } catch (const std::exception& e) {  // a device that is lost: its kernels report it
      log.add(who, file.path, EIO, e.what());
    }
  }

  const service_options options;
  const std::shared_ptr<store::store> files;
  rings requests;
  open_files open;
  cache_ids ids;
  error_log log;
  parking parked;
  std::atomic<bool> stopping{false};  // answer -ESHUTDOWN
  std::atomic<bool> exiting{false};   // end the threads
  std::vector<tally> tallies;
  std::vector<std::unique_ptr<worker>> workers;  // set before the threads start
  std::atomic<std::uint64_t> nstale{0};
  std::mutex on_stale_lock;
  std::function<void(std::uint32_t, std::uint32_t)> on_stale;  // device's number, handle: tells the device
  alignas(64) std::atomic<std::uint32_t> ncalling{0};          // written by all; what is above is read by all
  std::atomic<std::uint32_t> nwriting{0};
};

}  // namespace gpufs::service
