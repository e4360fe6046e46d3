// SPDX-License-Identifier: Apache-2.0
#include "gpufs/service/detail/service.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "clock.hpp"
#include "copier.hpp"
#include "core.hpp"
#include "extender.hpp"
#include "file_size_signal.hpp"
#include "teller.hpp"
#include "watch.hpp"
#include "worker.hpp"

namespace gpufs::service {
namespace {

service_options filled_in(service_options o) {
  const auto require = [](bool met, const char* what) {
    if (!met) throw std::invalid_argument(std::string("gpufs::service: ") + what);
  };
  require(o.nrings > 0, "nrings is 0");
  require(std::has_single_bit(o.nslots), "nslots is not a power of two");
  require(std::uint64_t{o.nrings} * o.nslots < 1u << 31, "nrings * nslots is 2^31 or more");
  require(o.payload_nbytes > max_path_nbytes && o.payload_nbytes % 512 == 0,
          "payload_nbytes is less than 4096 or not a multiple of 512");
  require(o.max_open_files > 0 && o.max_open_files <= 1u << 20, "max_open_files is not in 1 .. 2^20");
  require(o.max_batch > 0 && o.max_batch <= 64, "max_batch is not in 1 .. 64");
  require(o.watch_interval.count() > 0, "watch_interval is not positive");
  if (o.nworkers == 0) o.nworkers = std::clamp(std::thread::hardware_concurrency(), 2u, 16u);
  return o;
}

// Raises the soft limit of descriptors to what the open files need, as far as the hard limit allows.
void raise_descriptor_limit(std::uint32_t max_open_files, error_log& log) {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  constexpr rlim_t others = 1024;  // for the rest of the process
  const rlim_t wanted = max_open_files + others;
  if (limit.rlim_cur >= wanted) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  std::string text = "RLIMIT_NOFILE stays at " + std::to_string(before);
  if (limit.rlim_cur > before && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text = "raised RLIMIT_NOFILE from " + std::to_string(before) + " to " + std::to_string(limit.rlim_cur);
  }
  if (limit.rlim_max < wanted) {
    text += "; " + std::to_string(max_open_files) + " open files need " + std::to_string(wanted) + ", but the hard limit is " +
            std::to_string(limit.rlim_max) + ": files past it are opened again for every access";
  }
  log.add("service", "", 0, text);
}

// "a write of 'path'", "an open of 'path'".
std::string call_of(std::string_view operation, const std::string& path) {
  const bool vowel = std::string_view("aeio").find(operation.front()) != std::string_view::npos;
  return std::string(vowel ? "an " : "a ").append(operation).append(" of '").append(path).append("'");
}

}  // namespace

// Says what hangs. It outlives the service.
struct service::hang_report {
  std::mutex lock;
  core* of;
  std::string in_callers_thread;  // "a write of 'path'" and the like, while a thread that is not the service's does that

  std::string text() {
    const std::scoped_lock hold(lock);
    if (of == nullptr) return "";
    std::uint64_t n = of->blocked.nhung();
    std::string one = in_callers_thread;
    n += !one.empty();
    of->blocked.any_hung([&](const blocked_call& call) {
      // The file's entry stays, but the call itself may have closed it.
      if (one.empty()) one = call_of(call.operation, call.file != nullptr ? of->open.path_of(*call.file) : call.path);
      return true;
    });
    std::size_t nfiles = 0;
    const std::string late = of->open.late_path(&nfiles);
    if (one.empty() && nfiles != 0) one = call_of("read", late);
    if (one.empty() && of->ncopying.load(std::memory_order_relaxed) != 0) return "copies to the device";
    return one.empty() ? "" : n <= 1 ? one : std::to_string(n) + " calls, one of them " + one;
  }
};

struct service::impl {
  core shared;
  const std::shared_ptr<hang_report> report = std::make_shared<hang_report>();
  std::vector<std::thread> threads;
  watch watching{shared};
  extender extending{shared};
  teller telling{shared};
  copier copying{shared};
  std::thread guard;
  std::mutex stop_lock;  // one stop() at a time
  std::mutex lock;       // of what follows
  std::condition_variable wake_guard;
  bool end_guard = false;

  impl(simt::platform& machine, std::shared_ptr<store::store> files, const service_options& o)
      : shared(machine, std::move(files), filled_in(o)) {
    if (!shared.files) throw std::invalid_argument("gpufs::service: no store");
    raise_descriptor_limit(shared.options.max_open_files, shared.log);
    report->of = &shared;
    shared.extend_later = [this](const taken_request& taken) { extending.ask(taken); };
    shared.tell_later = [this](std::uint32_t handle) { telling.ask(handle); };
    shared.copy_later = [this](work&& w) { copying.ask(std::move(w)); };
    shared.look_soon = [this](open_files::entry& file) { watching.look_soon(file); };
    try {
      for (std::uint32_t i = 0; i < shared.options.nworkers; ++i) add_worker();
      guard = std::thread([this] { look_for_hung(); });
      watching.start();
    } catch (...) {
      end_threads();
      throw;
    }
  }

  ~impl() {
    stop();
    end_threads();
    const caller_noted noted(*report);
    shared.open.clear([&](const open_files::entry& file) { noted.set("close", file.path); });  // may hang, too
    const std::scoped_lock hold(report->lock);
    report->of = nullptr;
  }

  // While it lives, what_hangs() reports the work of the thread that made it.
  struct caller_noted {
    hang_report& in;
    explicit caller_noted(hang_report& r) : in(r) {}
    caller_noted(const caller_noted&) = delete;
    caller_noted& operator=(const caller_noted&) = delete;
    ~caller_noted() { set({}); }
    void set(const char* operation, const std::string& path) const { set(call_of(operation, path)); }

   private:
    void set(std::string text) const {
      const std::scoped_lock hold(in.lock);
      in.in_callers_thread = std::move(text);
    }
  };

  // Calls what(file) -> 0 or a negative errno, for an open file that may be written.
  template <class What>
  int call(std::uint32_t handle, const char* name, What what) {
    const caller_noted noted(*report);  // until `file` is released, which closes it if this is the last reference
    const open_files::ref file = shared.open.acquire(handle);
    if (!file || !file->file->info().live) return -EBADF;
    const file_size_signal_held held;
    noted.set(name, file->path);
    int error = -EIO;
    std::string why;
    try {
      error = what(*file->file);
    } catch (const std::exception& e) {
      why = e.what();
    }
    if (error != 0) shared.log.add(name, file->path, -error, why);
    return error;
  }

  void add_worker() {
    const std::uint32_t n = shared.nworkers.load(std::memory_order_relaxed);  // only one thread adds workers
    shared.workers[n] = std::make_unique<worker>(shared, n);
    threads.emplace_back([one = shared.workers[n].get()] { one->run(); });
    shared.nworkers.store(n + 1, std::memory_order_release);  // meets all_workers()
  }

  // Notes which calls hang, and starts threads in place of those in hanging calls.
  void look_for_hung() {
    ::prctl(PR_SET_NAME, "gpufs-guard");
    std::unique_lock hold(lock);
    while (!wake_guard.wait_for(hold, std::chrono::nanoseconds(hangs_after_ns), [this] { return end_guard; })) {
      for (const auto& one : shared.all_workers()) shared.blocked.look_at(one->blocked(), clock_ns());
      watching.look_for_hung();
      const auto are_few = [this] {
        return shared.nworkers.load() - shared.blocked.nhung_threads() < shared.options.nworkers || shared.ncallers() < 1;
      };
      while (are_few() && shared.can_add_worker()) {
        try {
          add_worker();
        } catch (const std::exception& e) {  // the next round tries again
          shared.log.add("service", "", 0, std::string("no thread can be started in place of one that hangs: ") + e.what());
          break;
        }
        shared.blocked.add_thread();
        shared.parked.add_worker();
      }
    }
  }

  void end_threads() {
    watching.end();
    {
      const std::scoped_lock hold(lock);
      end_guard = true;
    }
    wake_guard.notify_all();
    if (guard.joinable()) guard.join();
    shared.exiting.store(true, std::memory_order_release);
    shared.parked.open_all();
    for (std::thread& t : threads) t.join();
    copying.end();
    telling.end();
    extending.end();
  }

  void stop() {
    const std::scoped_lock hold(stop_lock);
    watching.end();
    shared.stopping.store(true);  // see worker::admit
    {
      const std::scoped_lock told(shared.told_lock);  // a thread that waits for it has checked `stopping` before, or will check it
                                                      // after
    }
    shared.told_one.notify_all();
    telling.end();
    while (!drained()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  bool finish(std::chrono::nanoseconds limit) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (shared.requests.any_pending() || !drained()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

  // Sums the answers first: then equal sums mean that all requests which had been taken by then were answered.
  bool drained() const {
    std::uint64_t answers = 0, requests = 0;
    for (const tally& t : shared.tallies) answers += t.answers.load(std::memory_order_acquire);
    for (const tally& t : shared.tallies) requests += t.requests.load();
    return answers == requests;
  }
};

service::service(simt::platform& machine, std::shared_ptr<store::store> files, const service_options& options)
    : impl_(std::make_unique<impl>(machine, std::move(files), options)) {}
service::~service() = default;

transport::transport_layout service::transport() const { return impl_->shared.requests.layout(); }
const transport::row_buffers& service::row_buffers() { return impl_->shared.make_row_buffers(); }
const std::atomic<bool>& service::has_opened_staged() const { return impl_->shared.has_opened_staged; }
const service_options& service::options() const { return impl_->shared.options; }
void service::stop() { impl_->stop(); }
bool service::finish(std::chrono::nanoseconds limit) { return impl_->finish(limit); }

std::function<std::string()> service::what_hangs() const {
  return [report = impl_->report] { return report->text(); };
}

void service::on_stale(std::function<void(std::uint32_t, std::uint32_t)> changed) {
  const std::scoped_lock hold(impl_->shared.on_stale_lock);
  impl_->shared.on_stale = std::move(changed);
}

void service::on_windows(windows_teller registered) {
  const std::scoped_lock hold(impl_->shared.on_windows_lock);
  impl_->shared.on_windows = std::move(registered);
}
void service::on_extend(std::function<std::uint64_t(std::uint32_t)> make) { impl_->extending.on_extend(std::move(make)); }
bool service::copy_to_frames(std::byte* begin, std::uint32_t nframes, std::uint32_t nbytes) {
  impl_->shared.frames = {begin, nframes, nbytes};
  try {
    impl_->copying.start();
    return true;
  } catch (const std::exception& e) {
    impl_->shared.frames = {};
    impl_->shared.log.add("service", "", 0, std::string("the copy engine is not used: ") + e.what());
    return false;
  }
}
std::vector<service::reads_by_windows> service::by_windows() const {
  std::vector<reads_by_windows> found;
  std::size_t cursor = 0;
  for (const std::uint32_t handle : impl_->shared.open.pull_handles(~std::size_t{0}, &cursor)) {
    open_files::ref file = impl_->shared.open.acquire(handle);
    if (!file) continue;
    if (file->file->info().kind == source_kind::windows && file->file->windows().registered != 0)
      found.push_back({file->device_number, handle});
    impl_->shared.all_workers().front()->let_go(std::move(file));
  }
  return found;
}
void service::give_up_windows(std::span<const std::uint32_t> handles) {
  // Whoever is telling the device has begun before, and does not come through; whoever tells it later sees what is left.
  const std::scoped_lock hold(impl_->shared.on_windows_lock);
  for (const std::uint32_t handle : handles) {
    open_files::ref file = impl_->shared.open.acquire(handle);
    if (file) file->file->give_up_windows();
    impl_->shared.all_workers().front()->let_go(std::move(file));
  }
}
void service::tell_windows_again() { impl_->shared.told_rounds.fetch_add(1, std::memory_order_relaxed); }

service_counters service::counters() const {
  const core& shared = impl_->shared;
  service_counters sum;
  const auto get = [](const tally::word& w) { return w.load(std::memory_order_relaxed); };
  for (const tally& t : shared.tallies) {
    sum.opens_nil += get(t.opens[0]);
    sum.opens_pull += get(t.opens[1]);
    sum.opens_staged += get(t.opens[2]);
    sum.opens_with_bytes += get(t.opens_with_bytes);
    sum.closes += get(t.closes);
    sum.reads += get(t.reads);
    sum.bytes_read += get(t.bytes_read);
    sum.cold_reads += get(t.cold_reads);
    sum.copies += get(t.copies);
    sum.writes += get(t.writes);
    sum.bytes_written += get(t.bytes_written);
    sum.syncs += get(t.syncs);
    sum.errors += get(t.errors);
    sum.batches += get(t.batches);
    sum.requests += get(t.requests);
    sum.max_batch = std::max(sum.max_batch, get(t.max_batch));
  }
  sum.opens = sum.opens_nil + sum.opens_pull + sum.opens_staged;
  sum.stale_files = shared.nstale.load(std::memory_order_relaxed);
  sum.open_files = shared.open.size();
  return sum;
}

std::map<int, std::uint64_t> service::errors() const { return impl_->shared.log.counts(); }
std::vector<log_entry> service::log_entries() const { return impl_->shared.log.entries(); }

std::vector<std::string> service::log() const {
  std::vector<std::string> lines;
  for (const log_entry& entry : log_entries()) lines.push_back(to_line(entry));
  return lines;
}

std::string service::last_error() const {
  const std::vector<log_entry> entries = log_entries();
  const auto last = std::find_if(entries.rbegin(), entries.rend(), [](const log_entry& entry) { return entry.error != 0; });
  return last == entries.rend() ? std::string() : to_line(*last);
}

int service::write(std::uint32_t handle, std::span<const std::byte> bytes, std::int64_t offset) {
  return impl_->call(handle, "write", [&](store::open_file& file) { return file.pwrite(bytes, offset); });
}
int service::note_written_in_place(std::uint32_t handle, std::int64_t nbytes) {
  return impl_->call(handle, "close", [&](store::open_file& file) { return file.note_written_in_place(nbytes, true); });
}

std::optional<file_description> service::describe(std::uint32_t handle) const {
  const open_files::ref file = impl_->shared.open.acquire(handle);
  if (!file) return std::nullopt;
  const store::file_info& info = file->file->info();
  return file_description{file->path, info.kind, file->file->reason(), info.nbytes};
}
std::optional<std::string> service::path_of(std::uint32_t handle) const { return impl_->shared.open.path_of(handle); }

}  // namespace gpufs::service
