// SPDX-License-Identifier: Apache-2.0
// The host side of a mount: has each part make its layout, and owns the service.
#include "gpufs/mount.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "../cache/frame_counts.hpp"
#include "../cache/make_layout.hpp"
#include "../file/file_memory.hpp"
#include "../file/left_pages.hpp"
#include "../file/slot_reader.hpp"
#include "../file/window_words.hpp"
#include "../pointer/make_layout.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/simt/detail/launch_end.hpp"
#include "leftovers.hpp"
#include "options.hpp"
#include "unread_files.hpp"

namespace gpufs {

// A copy waits for those before it, which take 3 ms at most, and for copies of others; the CPU machine's for a core.
constexpr std::uint64_t longest_copy_ns = 20'000'000, longest_cpu_copy_ns = 100'000'000;

struct host_mount::impl {
  const pid_t process = ::getpid();
  simt::platform& machine;
  mount_options options;
  std::shared_ptr<store::store> files;
  const std::shared_ptr<void> admission = files->admit_mount();  // outlives the service, which may still write
  simt::device_memory memory;  // this and the next outlive the service, whose watch marks stale files in them
  file_memory open_files;
  mount_layout layout{};
  const mount_layout* resident = nullptr;
  slot_reader slots{memory, open_files, layout};
  window_words windows{memory, open_files, layout};
  service::service host;
  fault_log faults;
  left_pages left{memory, open_files, layout, host};
  std::atomic<std::uint32_t> nforms{0};
  std::mutex unread_lock;  // of the next member
  unread_files unread;
  mutable std::atomic<bool> told_faults{false};
  std::optional<simt::launch_watch> launches;  // last, as it may call us until it ends

  impl(simt::platform& m, const std::string& root, const mount_options& asked)
      : machine(m),
        options(filled_in(asked, m)),
        files(make_store(m, root, options)),
        memory(m),
        open_files(m, {.max_open_files = options.max_open_files,
                       .reserved = options.reserved_open_files,
                       .writable = options.writable,
                       .dirty_limit = options.dirty_nbytes / options.page_nbytes}),
        host(m, files,
             {.nrings = options.internals.request_rings,
              .nslots = options.internals.request_slots,
              .payload_nbytes = std::max(options.page_nbytes, names::max_path_nbytes + 1),
              .writable = options.writable,
              .nworkers = options.nworkers,
              // More than the device has slots: a file that is being read or looked at counts until that is done.
              .max_open_files = std::min(options.max_open_files + 1024, 1u << 20),
              .max_batch = options.internals.request_batch}),
        faults(memory) {
    options.nworkers = host.options().nworkers;
    layout.cache = cache::make_layout(memory, {.nframes = frames_of(options),
                                               .page_nbytes = options.page_nbytes,
                                               .nrings = options.internals.nrings,
                                               .writable = options.writable,
                                               .frames = options.cache_memory});
    layout.touched = cache::make_touched(memory, layout.cache.frames.nframes);
    layout.transport = host.transport();
    layout.files = open_files.layout();
    layout.pointers = make_layout(memory, faults, {.max_mappings = options.max_mappings, .page_nbytes = options.page_nbytes});
    mount_words words{};
    words.more_blocks = static_cast<std::uint32_t>(open_files.blocks().size()) - 1;
    layout.words = memory.allocate(std::vector{words});
    layout.io_timeout_ns = static_cast<std::uint64_t>(options.io_timeout.count());
    layout.frame_timeout_ns = static_cast<std::uint64_t>(options.frame_timeout.count());
    // A quarter of the rings is the engine's.
    if (options.copy_engine && options.page_nbytes >= least_copied_nbytes && options.internals.request_rings >= 4 &&
        host.copy_to_frames(layout.cache.frames.data, layout.cache.frames.nframes, options.page_nbytes)) {
      layout.copy_timeout_ns = std::min(machine.is_cuda() ? longest_copy_ns : longest_cpu_copy_ns, layout.io_timeout_ns / 2);
    }

    auto* in_memory = memory.allocate<mount_layout>(1);
    memory.write_one(in_memory, layout);
    resident = in_memory;
    open_files.set_home({.cache = layout.cache,
                         .mount = reinterpret_cast<std::uint64_t>(static_cast<const file_mount*>(resident)),
                         .fill_ns = 2 * layout.io_timeout_ns,
                         .frame_ns = layout.frame_timeout_ns});

    host.on_stale([this](std::uint32_t slot, std::uint32_t handle) { slots.mark_stale(slot, handle); });
    host.on_windows(
        [this](std::uint32_t slot, std::uint32_t handle, const std::byte* pull_base, const store::registered_windows& told) {
          return windows.tell(slot, {reinterpret_cast<std::uint64_t>(pull_base), told.registered, told.shift, handle});
        });
    host.on_extend([this](std::uint32_t n) { return reinterpret_cast<std::uint64_t>(open_files.extend(n)); });
    launches.emplace([this] {
      tell_faults();
      make_room();
    });
  }

  ~impl() {
    launches.reset();
    tell_faults();
    try {
      tell_leftovers();
      end_writing();
    } catch (const std::exception& e) {  // the device is lost, and its pages and pins with it
      if (options.writable) {
        std::fprintf(
            stderr,
            "gpufs: a mount ends whose device is lost, and with it all that was written and neither synced nor closed: %s\n",
            e.what());
      }
    }
  }

  // Writes the pages that kernels left unwritten, and prints what was lost. Nothing else would say so: no sync and no close comes
  // any more, and the log ends with the mount.
  void end_writing() {
    if (!options.writable) return;
    std::uint64_t lost = left.write_back(false).lost;
    // Late requests, which the host still works on, must be done before newer bytes are written. After stop() it begins no request.
    const bool finished = host.finish(options.io_timeout);
    host.stop();
    lost += left.write_back(true, finished).lost;
    lost += left.untold_errors() + left.still_mapped();
    if (lost == 0) return;
    const std::string last = host.last_error();
    std::fprintf(stderr,
                 "gpufs: a mount ends, and of what was written and neither synced nor closed %llu pages or files are lost%s%s\n",
                 static_cast<unsigned long long>(lost), last.empty() ? "" : "; the last error: ", last.c_str());
  }

  // A frame that waits for a copy which nobody waits for counts as under way.
  cache::frame_counts count_frames() const {
    cache::frame_counts sum = cache::count_frames(memory, layout.cache);
    const std::uint64_t held = std::min<std::uint64_t>(slots.words().held_copies, sum.pins);
    sum.pins -= held;
    sum.pinned -= std::min(held, sum.pinned);
    sum.under_way += held;
    return sum;
  }

  // What the mount still holds, for a watcher. A file that kernels have closed stays open on the host until that has done what it
  // was asked before: it gets 5 s.
  void tell_leftovers() const {
    if (leftovers_watcher == nullptr) return;
    leftovers found{.unwritten_pages = slots.words().dirty_pages};
    for (const file_slot& slot : slots.used()) found.open_slots += slot_reader::is_open(slot);
    const cache::frame_counts frames = count_frames();
    found.pins = frames.pins;
    found.changed_frames = frames.dirty;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while ((found.host_files = host.counters().open_files) > found.open_slots && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    leftovers_watcher.load()(found);
  }

  // A line for each record of accesses through pointers that failed.
  std::vector<std::string> fault_lines() const {
    return faults.lines([this](std::uint32_t handle) { return host.path_of(handle); }, layout.cache.frames.nframes);
  }

  // What the mount does, once, when accesses through pointers have failed.
  void tell_faults() const noexcept {
    if (options.on_failed_accesses == failed_accesses::quiet || told_faults.load()) return;  // before a look at all records
    if (faults.empty() || told_faults.exchange(true)) return;
    try {
      const std::vector<std::string> lines = fault_lines();
      const std::uint64_t n = memory.read_or_zeros(layout.pointers.words, 1)[0].fault_errors;
      std::fprintf(
          stderr,
          "gpufs: accesses through pointers have failed (%s so far): they read zeros, or wrote nothing. The first: %s. More is "
          "in mount::log()\n",
          n == 0 ? "?" : std::to_string(n).c_str(), lines.empty() ? "?" : lines.front().c_str());
    } catch (const std::exception&) {
      std::fprintf(stderr, "gpufs: accesses through pointers have failed: they read zeros, or wrote nothing\n");
    }
    if (options.on_failed_accesses == failed_accesses::abort) std::abort();
  }

  // Between kernels: gives back registered mappings of closed files, and windows of open ones that are not read, if something else
  // found no room.
  void make_room() noexcept {
    if (!files->lacks_room() || !machine.is_idle()) return;
    try {
      const std::scoped_lock hold(unread_lock);
      std::vector<std::uint32_t> handles;
      // The copy engine may still read windows for operations that nobody has ended.
      if (!options.copy_engine && unread.is_due()) {
        const auto open = host.by_windows();
        if (!open.empty())
          handles = unread.look(open, slots.counts(), memory.read_or_zeros(layout.pointers.words, 1)[0].past_cache);
      }
      if (handles.empty() && !files->has_idle_room()) return;
      windows.while_none_is_told([&] {
        host.tell_windows_again();
        host.give_up_windows(handles);
        files->make_room();
      });
    } catch (const std::exception&) {  // the device is lost, or there is no memory: what was staged stays so
    }
  }

  // How many requests of kernels found no slot or no answer in time: kernels know, the host need not.
  void add_timeouts(std::vector<std::string>& lines) const {
    const std::uint64_t n = memory.read_or_zeros(layout.words, 1)[0].io_timeouts;
    if (n != 0)
      lines.push_back(std::to_string(n) +
                      " requests of kernels found no slot or no answer within io_timeout: " + std::strerror(ETIMEDOUT));
  }
};

namespace {

int errno_of(const std::exception& cause) {
  if (dynamic_cast<const std::bad_alloc*>(&cause) != nullptr) return ENOMEM;
  if (const auto* const system = dynamic_cast<const std::system_error*>(&cause)) return system->code().value();
  return dynamic_cast<const std::invalid_argument*>(&cause) != nullptr ? EINVAL : EIO;
}

}  // namespace

host_mount::host_mount(simt::platform& device, const std::string& root, const mount_options& options) try
    : impl_(new impl(device, root, options)) {
} catch (const error&) {
  throw;
} catch (const std::exception& cause) {
  refuse("cannot mount '" + root + "': " + cause.what(), errno_of(cause));
}

// Ends the mount in a thread of its own, which may outlive the caller's wait: memory that hung calls still use is freed only when
// they come back.
void host_mount::ender::operator()(impl* mount) const noexcept {
  if (mount->process != ::getpid()) return;  // a child of fork(): the threads are the parent's, and so is what they use
  struct progress {
    std::mutex lock;
    std::condition_variable ended;
    bool done = false;
  };
  const auto state = std::make_shared<progress>();
  const auto what_hangs = mount->host.what_hangs();
  const std::chrono::nanoseconds limit = mount->options.end_timeout;
  std::thread ending;
  try {
    ending = std::thread([mount, state] {
      mount->machine.stay_current();
      delete mount;
      const std::scoped_lock hold(state->lock);
      state->done = true;
      state->ended.notify_all();
    });
  } catch (const std::system_error&) {
    delete mount;
    return;
  }
  const auto ends_within = [&](std::chrono::nanoseconds time) {
    std::unique_lock hold(state->lock);
    return state->ended.wait_for(hold, time, [&] { return state->done; });
  };
  // Once it is known what hangs: that an end takes long on a busy machine is not worth a word.
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds silent = std::min<std::chrono::nanoseconds>(std::chrono::seconds(3), limit / 2);
  std::chrono::nanoseconds waited{0};
  std::string what;
  for (auto step = silent; !ends_within(step); step = std::min<std::chrono::nanoseconds>(silent, limit - waited)) {
    waited = std::chrono::steady_clock::now() - begin;
    const bool told = !what.empty();
    what = told ? what : what_hangs();
    if (waited >= limit) {
      std::fprintf(
          stderr,
          "gpufs: a mount's end waits no longer for %s; its memory and threads stay until the store answers, and what was not "
          "written yet is written then or lost\n",
          what.empty() ? "the store" : what.c_str());
      ending.detach();
      return;
    }
    if (told || what.empty()) continue;
    std::fprintf(stderr, "gpufs: a mount's end waits, for up to %lld s more, for %s\n",
                 static_cast<long long>(std::chrono::ceil<std::chrono::seconds>(limit - waited).count()), what.c_str());
  }
  ending.join();
}

host_mount::~host_mount() = default;
host_mount::host_mount(host_mount&&) noexcept = default;
host_mount& host_mount::operator=(host_mount&&) noexcept = default;

const mount_layout& mount_inside::layout() const { return mount_.layout; }
const mount_layout* mount_inside::resident() const { return mount_.resident; }
transport::row_buffers mount_inside::row_buffers() const { return mount_.host.row_buffers(); }
const std::atomic<bool>& mount_inside::has_opened_staged() const { return mount_.host.has_opened_staged(); }
const mount_options& host_mount::options() const { return impl_->options; }
simt::platform& host_mount::device() const { return impl_->machine; }

mount_counters host_mount::counters() const {
  impl_->tell_faults();
  mount_counters sum{};
  const mount_layout& l = impl_->layout;
  for (const file_counters& c : impl_->slots.counts()) sum += c;
  const simt::device_memory& memory = impl_->memory;
  for (const cache::clock_ring& r : memory.read(l.cache.rings.rings, l.cache.rings.nrings)) {
    sum.allocations += r.allocations;
    sum.evictions += r.evictions;
  }
  const cache::frame_counts frames = impl_->count_frames();
  sum.pinned_frames = frames.pinned;
  sum.free_frames = frames.free;
  sum.dirty_frames = frames.dirty;
  sum.pins = frames.pins;
  sum.under_way = frames.under_way;
  const mount_words words = impl_->slots.words();
  sum.open_errors = words.open_errors;
  sum.bad_file_numbers = words.bad_numbers;
  sum.io_timeouts = words.io_timeouts;
  sum.unpin_errors = words.unpin_errors;
  const pointer_words pointers = memory.read_one(l.pointers.words);
  sum.fault_errors = pointers.fault_errors;
  sum.past_cache = pointers.past_cache;
  sum.held_copies = words.held_copies;
  sum.unwritten_pages = words.dirty_pages;
  sum.write_backs = words.write_backs;
  sum.bytes_written_back = words.bytes_written_back;
  sum.write_errors = words.write_errors;
  const service::service_counters host = impl_->host.counters();
  sum.host_opens = host.opens;
  sum.host_closes = host.closes;
  sum.host_reads = host.reads;
  sum.host_batches = host.batches;
  sum.host_errors = host.errors;
  sum.host_copies = host.copies;
  return sum;
}

std::vector<file_report> host_mount::open_files() const {
  impl_->tell_faults();
  const auto counters = impl_->slots.counts();
  const auto slots = impl_->slots.used();  // of more, if files were opened since
  std::vector<file_report> reports;
  for (std::size_t i = 0; i < std::min(slots.size(), counters.size()); ++i) {
    if (!slot_reader::is_open(slots[i])) continue;
    file_report report;
    const auto known = impl_->host.describe(slots[i].handle);
    if (!known) continue;  // closed since we read the slot
    report.path = known->path;
    report.reason = known->reason;
    report.nbytes = slots[i].bytes.nbytes;
    report.source = known->kind;
    report.counters = counters[i];
    reports.push_back(std::move(report));
  }
  return reports;
}

std::vector<std::string> host_mount::log() const {
  auto lines = impl_->host.log();
  const auto faults = impl_->fault_lines();
  lines.insert(lines.end(), faults.begin(), faults.end());
  if (!faults.empty() && impl_->options.on_failed_accesses == failed_accesses::say) impl_->told_faults = true;
  impl_->add_timeouts(lines);
  return lines;
}

std::uint64_t host_mount::sync() {
  impl_->tell_faults();
  if (!impl_->options.writable) return 0;
  const auto [lost, left] = impl_->left.write_back(false);
  return lost + left + impl_->left.untold_errors();
}

std::uint32_t host_mount::new_form() {
  const std::uint32_t form = impl_->nforms.fetch_add(1, std::memory_order_relaxed) + 1;
  if (form >= cache::private_form) throw error("gpufs::mount: at most 14 fault handlers in the life of a mount");
  return form;
}

void host_mount::prepare(const std::string& path, int flags) const {
  const bool writes = flags == O_RDWR;
  bool again = true;
  for (int tries = 0; again && tries < 100; ++tries) {  // stamps settle within 2 s even where they are whole seconds
    int failure = !writes && flags != O_RDONLY ? -EINVAL : writes && !impl_->options.writable ? -EROFS : 0;
    std::string why;
    const int how = flags | static_cast<int>(names::open_prepared);
    const auto opened = failure == 0 ? impl_->files->open_explained(path, how, &failure, &why) : nullptr;
    if (!opened) {
      std::string text = "gpufs: cannot prepare '";
      text.append(path).append("': ").append(std::strerror(-failure));
      if (!why.empty()) text.append(": ").append(why);
      throw error(text, -failure);
    }
    again = !writes && !opened->info().settled;  // what is written in place is no version
    if (again) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
}

void host_mount::trim() {
  impl_->tell_faults();
  impl_->windows.while_none_is_told([this] {
    impl_->host.tell_windows_again();
    impl_->files->trim();
  });
}

}  // namespace gpufs
