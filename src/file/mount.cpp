// SPDX-License-Identifier: Apache-2.0
// The host side of a mount: lays out the cache, the file table and the request rings, and owns the service.
#include "gpufs/mount.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "../cache/make_layout.hpp"
#include "../pointer/make_layout.hpp"
#include "gpufs/cache/frames.hpp"
#include "gpufs/service/service.hpp"
#include "gpufs/simt/launch_end.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

namespace gpufs {
namespace {

constexpr std::uint32_t min_page_nbytes = least_page_nbytes, max_page_nbytes = 2u << 20;
constexpr std::uint64_t staging_budget_nbytes = 256u << 20;

[[noreturn]] void refuse(const std::string& what) { throw error("gpufs::mount: " + what); }

std::uint32_t frames_of(const mount_options& options) {
  const std::uint64_t n = options.cache_nbytes / options.page_nbytes;
  if (n < 1) refuse("cache_nbytes is smaller than one page");
  if (n > (1u << 28)) refuse("cache_nbytes / page_nbytes is over 2^28 frames; use larger pages");
  return static_cast<std::uint32_t>(n);
}

mount_options filled_in(mount_options o, const simt::platform& machine) {
  if (!std::has_single_bit(o.page_nbytes) || o.page_nbytes < min_page_nbytes || o.page_nbytes > max_page_nbytes) {
    refuse("page_nbytes is " + std::to_string(o.page_nbytes) + "; it must be a power of two from 512 to 2 MiB");
  }
  if (o.cache_nbytes == 0) {
    o.cache_nbytes = machine.is_cuda() ? std::min<std::uint64_t>(machine.memory_nbytes() / 4, 16ull << 30) : 64u << 20;
  }
  if (o.max_open_files == 0 || o.max_open_files > (1u << slot_bits)) {
    refuse("max_open_files is " + std::to_string(o.max_open_files) + "; it must be from 1 to 2^20");
  }
  if (o.max_mappings == 0 || o.max_mappings > (1u << 24)) refuse("max_mappings must be from 1 to 2^24");
  o.max_mappings = std::bit_ceil(o.max_mappings);
  if (o.pin_nbytes == 0) o.pin_nbytes = store::default_pin_nbytes();
  const std::uint32_t nframes = frames_of(o);
  if (o.dirty_nbytes == 0) o.dirty_nbytes = o.cache_nbytes / 4;
  o.dirty_nbytes = std::min(o.dirty_nbytes, o.cache_nbytes / 2);
  if (o.nrings == 0) o.nrings = std::clamp(nframes / 64, 1u, 256u);
  o.nrings = std::min(o.nrings, nframes);
  // Short rings, and many: a slow request holds up its own ring only.
  const std::uint64_t payload = std::max<std::uint64_t>(o.page_nbytes, service::max_path_nbytes + 1);
  const auto fit = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(staging_budget_nbytes / payload, 128, 2048));
  if (o.request_slots == 0) o.request_slots = 8;
  if (o.request_rings == 0) o.request_rings = std::max(fit / o.request_slots, 1u);
  if (!std::has_single_bit(o.request_slots) || o.request_slots < 2) refuse("request_slots must be a power of two, at least 2");
  if (std::uint64_t{o.request_rings} * o.request_slots > 1u << 16) refuse("request_rings x request_slots must be at most 2^16");
  if (o.nworkers > 1024) refuse("nworkers must be at most 1024");
  if (o.store > store_kind::mapped) refuse("store is none of store_kind");
  if (o.on_failed_accesses > failed_accesses::abort) refuse("on_failed_accesses is none of failed_accesses");
  if (o.request_batch == 0 || o.request_batch > 64) refuse("request_batch must be from 1 to 64");
  if (o.io_timeout.count() <= 0 || o.frame_timeout.count() < 0 || o.end_timeout.count() <= 0) {
    refuse("io_timeout and end_timeout must be positive, and frame_timeout not negative");
  }
  return o;
}

std::shared_ptr<store::store> make_store(simt::platform& machine, const std::string& root, const mount_options& o) {
  if (o.custom_store) return o.custom_store;
  if (root.find('\0') != std::string::npos) refuse("root has a NUL inside");
  std::error_code status;
  if (!std::filesystem::is_directory(root, status)) {
    refuse("root '" + root + "' is not a directory" + (status ? ": " + status.message() : std::string()));
  }
  const store::posix_options how{.writable = o.writable};
  switch (o.store) {
    case store_kind::posix:
      return std::make_shared<store::posix_store>(root, how);
    case store_kind::mapped:
      return std::make_shared<store::mapped_store>(machine, root, o.pin_nbytes, how);
    case store_kind::automatic:
      break;
  }
  return std::make_shared<store::auto_store>(machine, root, o.pin_nbytes, store::auto_options{.posix = how});
}

std::uint64_t secret_point() {
  std::uint64_t x = 0;
  if (getrandom(&x, sizeof x, 0) != sizeof x) refuse("getrandom failed");
  return x % ((std::uint64_t{1} << 61) - 2) + 1;
}

}  // namespace

struct host_mount::impl {
  const pid_t process = ::getpid();
  simt::platform& machine;
  mount_options options;
  std::shared_ptr<store::store> files;
  simt::device_memory memory;  // outlives the service, whose watch marks stale files in it
  service::service host;
  fault_log faults;
  mount_layout layout{};
  std::atomic<std::uint32_t> nviews{0};
  mutable std::atomic<bool> told_faults{false};
  std::optional<simt::launch_watch> launches;  // last, as it may call us until it ends

  impl(simt::platform& m, const std::string& root, const mount_options& asked)
      : machine(m),
        options(filled_in(asked, m)),
        files(make_store(m, root, options)),
        memory(m),
        host(m, files,
             {.nrings = options.request_rings,
              .nslots = options.request_slots,
              .payload_nbytes = std::max(options.page_nbytes, service::max_path_nbytes + 1),
              .writable = options.writable,
              .nworkers = options.nworkers,
              // More than the device has slots: a file that is being read or looked at counts until that is done.
              .max_open_files = std::min(options.max_open_files + 1024, 1u << 20),
              .max_batch = options.request_batch}),
        faults(memory) {
    options.nworkers = host.options().nworkers;
    layout.cache = cache::make_layout(memory, {.nframes = frames_of(options),
                                               .page_nbytes = options.page_nbytes,
                                               .nrings = options.nrings,
                                               .writable = options.writable});
    if (options.writable) {
      layout.dirty_lists = memory.allocate<cache::dirty_list>(std::size_t{options.max_open_files} * lists_per_slot);
      layout.dirty_limit = options.dirty_nbytes / options.page_nbytes;
    }

    std::vector<file_slot> slots(options.max_open_files);
    std::vector<free_list> lists(free_lists);
    for (std::uint32_t i = options.max_open_files; i-- > 0;) {
      std::uint64_t& top = lists[i % free_lists].top;
      slots[i].next = static_cast<std::uint32_t>(top);
      top = i + 1;
    }
    layout.slots = memory.allocate(slots);
    layout.free_slots = memory.allocate(lists);
    layout.nslots = options.max_open_files;
    layout.entries = memory.allocate<file_entry>(std::size_t{file_shards} * options.max_open_files);
    layout.counters = memory.allocate<call_counters>(std::size_t{file_shards} * options.max_open_files);
    layout.hits = memory.allocate<hit_counters>(std::size_t{hit_shards} * options.max_open_files);
    const std::uint32_t npaths = std::bit_ceil(options.max_open_files);
    layout.paths = memory.allocate<path_bucket>(npaths);
    layout.path_mask = npaths - 1;

    layout.transport = host.transport();
    layout.words = memory.allocate<mount_words>(1);
    layout.pointers = make_layout(memory, faults, {.max_mappings = options.max_mappings, .page_nbytes = options.page_nbytes});
    for (std::uint64_t& point : layout.hash_points) point = secret_point();
    layout.io_timeout_ns = static_cast<std::uint64_t>(options.io_timeout.count());
    layout.frame_timeout_ns = static_cast<std::uint64_t>(options.frame_timeout.count());

    auto* resident_mount = memory.allocate<mount_layout>(1);
    layout.resident = resident_mount;
    machine.copy_to_device(resident_mount, &layout, sizeof layout);

    host.on_stale([this](std::uint32_t slot, std::uint32_t handle) { mark_stale(slot, handle); });
    launches.emplace([this] { tell_faults(); });
  }

  ~impl() {
    launches.reset();
    tell_faults();
    try {
      tell_leftovers();
      end_writing();
      check_pins();
    } catch (const std::exception& e) {  // the device is lost, and its pages and pins with it
      if (options.writable) {
        std::fprintf(
            stderr,
            "gpufs: a mount ends whose device is lost, and with it all that was written and neither synced nor closed: %s\n",
            e.what());
      }
    }
  }

  // The file has changed underneath: the next page that a kernel wants to pull from it gives -ESTALE. The slot number came
  // from the device, so it is only a hint; the word says which handle is meant.
  void mark_stale(std::uint32_t slot, std::uint32_t handle) {
    if (slot >= layout.nslots) return;
    machine.copy_to_device(&layout.slots[slot].stale, &handle, sizeof handle);
  }

  // A copy of device memory; kernels may run. A slot's fields are read after its state, which comes first in it.
  template <class T>
  std::vector<T> read(const T* device, std::size_t n) const {
    return memory.read(device, n);
  }

  static bool is_open(const file_slot& slot) { return slot_state{slot.word & 7u} == slot_state::open; }

  // Files with an error of a write-back that the next sync or close would tell.
  std::uint64_t untold_errors() const {
    std::uint64_t n = 0;
    if (!options.writable) return n;
    for (const file_slot& slot : used_slots()) n += is_open(slot) && slot.write_error != 0;
    return n;
  }

  // Pages that are mapped for writing, or that pointers which were left in memory have written to: what was stored there since was
  // not noted.
  std::uint64_t still_mapped() const {
    std::uint64_t n = 0;
    for (const cache::twin_state& twin : read(layout.cache.dirty.twins, layout.cache.frames.nframes)) n += twin.count != 0;
    return n;
  }

  // What kernels left unwritten; and says what was lost, as no sync and no close will tell, nor the log, which ends with the mount.
  void end_writing() {
    if (!options.writable) return;
    std::uint64_t lost = write_back(false).lost;
    // What the host works on late comes before what is newer; after stop() it begins nothing any more.
    const bool finished = host.finish(options.io_timeout);
    host.stop();
    lost += write_back(true, finished).lost;
    lost += untold_errors() + still_mapped();
    if (lost == 0) return;
    const std::vector<std::string> lines = host.log();
    std::fprintf(stderr,
                 "gpufs: a mount ends, and of what was written and neither synced nor closed %llu pages or files are lost%s%s\n",
                 static_cast<unsigned long long>(lost),
                 lines.empty() ? "" : "; the last error: ", lines.empty() ? "" : lines.back().c_str());
  }

  // Pages that are pinned when nobody can hold them any more.
  void tell_leftovers() const {
    if (detail::leftovers_watcher == nullptr) return;
    detail::leftovers left{.host_files = host.counters().open_files, .unwritten_pages = read(layout.words, 1)[0].dirty_pages};
    for (const file_slot& slot : used_slots()) left.open_slots += is_open(slot);
    for (const std::uint64_t state : read(layout.cache.frames.states, layout.cache.frames.nframes)) {
      left.pins += state / cache::frame_state::one_pin;
      left.changed_frames += (state & cache::frame_state::dirty) != 0;
    }
    detail::leftovers_watcher.load()(left);
  }

  void check_pins() const {
    if (!options.abort_on_leaked_pins) return;
    std::uint64_t pins = 0, frames = 0;
    for (const std::uint64_t state : read(layout.cache.frames.states, layout.cache.frames.nframes)) {
      pins += state / cache::frame_state::one_pin;
      frames += (state & cache::frame_state::pin_mask) != 0;
    }
    if (pins == 0) return;
    std::fprintf(stderr, "gpufs: a mount ends with %llu leaked pins of %llu pages\n", static_cast<unsigned long long>(pins),
                 static_cast<unsigned long long>(frames));
    std::abort();
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

  // How many requests of kernels found no slot or no answer in time: kernels know, the host need not.
  void add_timeouts(std::vector<std::string>& lines) const {
    const std::uint64_t n = memory.read_or_zeros(layout.words, 1)[0].io_timeouts;
    if (n != 0)
      lines.push_back(std::to_string(n) +
                      " requests of kernels found no slot or no answer within io_timeout: " + std::strerror(ETIMEDOUT));
  }

  struct unwritten {
    std::uint64_t lost = 0, left = 0;  // pages (and files, of stores in place); left: dirty still
  };
  // What kernels left dirty, page by page through the host. No kernel runs. Nothing is left if the host has `stopped`; else pages
  // whose list is lost are, as the host may yet write something older there. finished: it has answered all before it stopped.
  unwritten write_back(bool stopped, bool finished = true) {
    if (!options.writable) return {};
    const auto slots = used_slots();
    unwritten result = write_back_pages(slots, stopped);
    result.lost += note_stores(slots);
    if (finished) return result;
    for (const cache::dirty_list& list : read(layout.dirty_lists, std::size_t{layout.nslots} * lists_per_slot)) {
      result.lost += list.lock > 1;  // refused when it stopped, or not
    }
    return result;
  }

  // What the device's words say is not believed beyond what there is.
  std::uint64_t nused_slots() const { return std::min<std::uint64_t>(read(layout.words, 1)[0].slots_used, layout.nslots); }
  std::vector<file_slot> used_slots() const { return read(layout.slots, nused_slots()); }

  // Of files that kernels have not closed.
  std::uint64_t note_stores(const std::vector<file_slot>& slots) {
    std::uint64_t lost = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const file_slot& slot = slots[i];
      if (!is_open(slot) || slot.stored_nbytes == 0) continue;
      if (host.note_stores(slot.handle, static_cast<std::int64_t>(slot.stored_nbytes)) == 0) continue;
      ++lost;  // as in a kernel's sync (sync_on_host): the mapping is not used any more
      const std::uint64_t none = 0;
      machine.copy_to_device(&layout.slots[i].mapped_nbytes, &none, sizeof none);
      machine.copy_to_device(&layout.slots[i].stored_nbytes, &none, sizeof none);
    }
    return lost;
  }

  unwritten write_back_pages(const std::vector<file_slot>& slots, bool stopped) {
    std::uint64_t dirty = read(layout.words, 1)[0].dirty_pages;
    unwritten result;
    if (dirty == 0) return result;
    const cache::frame_storage& frames = layout.cache.frames;
    auto states = read(frames.states, frames.nframes);
    const auto keys = read(frames.keys, frames.nframes);
    std::unordered_map<std::uint32_t, std::size_t> open_slots;  // by cache id
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (is_open(slots[i])) open_slots[slots[i].cache_id] = i;
    }
    auto lists = read(layout.dirty_lists, std::size_t{layout.nslots} * lists_per_slot);
    const auto stays = [&](const cache::dirty_list& list) { return !stopped && list.lock > 1; };  // dirty_pages::is_lost
    const std::size_t mask_nwords = options.page_nbytes / 64;
    auto* masks = reinterpret_cast<std::uint64_t*>(layout.cache.dirty.masks);
    for (std::uint32_t f = 0; f < frames.nframes; ++f) {
      if ((states[f] & cache::frame_state::listed) == 0) continue;
      const cache::page_key key{cache::sealed(keys[f], states[f])};
      const auto mask = read(masks + f * mask_nwords, mask_nwords);
      const auto bytes =
          read(reinterpret_cast<const std::uint64_t*>(frames.data + std::size_t{f} * options.page_nbytes), options.page_nbytes / 8);
      const auto slot = open_slots.find(cache::cache_id_of(key));
      if (slot != open_slots.end() && stays(lists[slot->second * lists_per_slot + f % lists_per_slot])) {
        ++result.left;
        continue;
      }
      const std::uint64_t offset = cache::page_number_of(key) << frames.page_shift;
      result.lost +=
          slot == open_slots.end() || write_runs(slots[slot->second].handle, std::as_bytes(std::span(bytes)), mask, offset) != 0;
      if (!stopped) keep_twin(f, bytes, mask);
      machine.zero_device(masks + f * mask_nwords, mask_nwords * sizeof(std::uint64_t));
      states[f] &= ~(cache::frame_state::dirty | cache::frame_state::listed);
      machine.copy_to_device(frames.states + f, &states[f], sizeof states[f]);
      --dirty;
    }
    // What is left is where the host has not answered a kernel: those pages stay as they are, and their lists lost.
    for (cache::dirty_list& list : lists) {
      if (!stays(list)) list.head = 0;
    }
    machine.copy_to_device(layout.dirty_lists, lists.data(), lists.size() * sizeof lists[0]);
    machine.copy_to_device(&layout.words->dirty_pages, &dirty, sizeof dirty);
    return result;
  }

  // A page may be mapped for writing over several kernels: as a write-back of theirs (hold_twin), this one leaves in the twin what
  // it has sent.
  void keep_twin(std::uint32_t f, const std::vector<std::uint64_t>& bytes, const std::vector<std::uint64_t>& mask) const {
    static_assert(sizeof(cache::twin_state) == 2 * sizeof(std::uint64_t));
    const auto twin = read(layout.cache.dirty.twins + f, 1)[0];
    if (twin.count == 0 || twin.twin >= layout.cache.frames.nframes) return;
    auto* at = reinterpret_cast<std::uint64_t*>(layout.cache.frames.data + std::size_t{twin.twin} * options.page_nbytes);
    auto kept = read(at, bytes.size());
    const auto sent = std::as_bytes(std::span(bytes));
    const auto to = std::as_writable_bytes(std::span(kept));
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if ((mask[i / 64] >> i % 64 & 1) != 0) to[i] = sent[i];
    }
    machine.copy_to_device(at, kept.data(), kept.size() * sizeof kept[0]);
  }

  int write_runs(std::uint32_t handle, std::span<const std::byte> bytes, const std::vector<std::uint64_t>& mask,
                 std::uint64_t offset) {
    const auto is_set = [&](std::size_t i) { return (mask[i / 64] >> i % 64 & 1) != 0; };
    int error = 0;
    for (std::size_t begin = 0; begin < bytes.size();) {
      std::size_t end = begin;
      while (end < bytes.size() && is_set(end)) ++end;
      if (end != begin) {
        const int failed = host.write(handle, bytes.subspan(begin, end - begin), static_cast<std::int64_t>(offset + begin));
        error = error != 0 ? error : failed;
      }
      begin = end + 1;
    }
    return error;
  }

  // By slot, for those that were ever used.
  std::vector<file_counters> file_counts() const {
    std::vector<file_counters> sums(nused_slots());
    const auto add = [&](const auto* counters, std::uint32_t nshards) {
      for (std::uint32_t shard = 0; shard < nshards && !sums.empty(); ++shard) {
        const auto part = read(counters + std::size_t{shard} * layout.nslots, sums.size());
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
      }
    };
    add(layout.hits, hit_shards);
    add(layout.counters, file_shards);
    return sums;
  }
};

host_mount::host_mount(simt::platform& machine, const std::string& root, const mount_options& options) try
    : impl_(new impl(machine, root, options)) {
} catch (const error&) {
  throw;
} catch (const std::exception& cause) {
  refuse("cannot mount '" + root + "': " + cause.what());
}

// In a thread of its own, which may go on alone: what calls that hang still use is freed when they come back, and not before.
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

const mount_layout& host_mount::layout() const { return impl_->layout; }
const mount_options& host_mount::options() const { return impl_->options; }

mount_counters host_mount::counters() const {
  impl_->tell_faults();
  mount_counters sum{};
  const mount_layout& l = impl_->layout;
  for (const file_counters& c : impl_->file_counts()) sum += c;
  for (const cache::clock_ring& r : impl_->read(l.cache.rings.rings, l.cache.rings.nrings)) {
    sum.allocations += r.allocations;
    sum.evictions += r.evictions;
  }
  for (const std::uint64_t state : impl_->read(l.cache.frames.states, l.cache.frames.nframes)) {
    sum.pinned_frames += (state & cache::frame_state::pin_mask) != 0;
    sum.free_frames += (state & cache::frame_state::free) != 0;
    sum.dirty_frames += (state & cache::frame_state::dirty) != 0;
    sum.pins += state / cache::frame_state::one_pin;
  }
  const mount_words words = impl_->read(l.words, 1)[0];
  sum.open_errors = words.open_errors;
  sum.bad_file_numbers = words.bad_numbers;
  sum.io_timeouts = words.io_timeouts;
  sum.unpin_errors = words.unpin_errors;
  const pointer_words pointers = impl_->read(l.pointers.words, 1)[0];
  sum.fault_errors = pointers.fault_errors;
  sum.past_cache = pointers.past_cache;
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
  return sum;
}

std::vector<file_report> host_mount::open_files() const {
  impl_->tell_faults();
  const mount_layout& l = impl_->layout;
  const auto counters = impl_->file_counts();
  const auto slots = impl_->read(l.slots, counters.size());
  std::vector<file_report> reports;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!impl::is_open(slots[i])) continue;
    file_report report;
    const auto known = impl_->host.describe(slots[i].handle);
    if (!known) continue;  // closed since we read the slot
    report.path = known->path;
    report.reason = known->reason;
    report.nbytes = slots[i].file_nbytes;
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
  const auto [lost, left] = impl_->write_back(false);
  return lost + left + impl_->untold_errors();
}

std::uint32_t host_mount::new_view() {
  const std::uint32_t view = impl_->nviews.fetch_add(1, std::memory_order_relaxed) + 1;
  if (view >= cache::private_view_number) throw error("gpufs::mount: at most 14 fault handlers in the life of a mount");
  return view;
}

void host_mount::prepare(const std::string& path, int flags) const {
  const bool writes = flags == O_RDWR;
  bool again = true;
  for (int tries = 0; again && tries < 100; ++tries) {  // stamps settle within 2 s even where they are whole seconds
    int failure = !writes && flags != O_RDONLY ? -EINVAL : writes && !impl_->options.writable ? -EROFS : 0;
    std::string why;
    const auto opened = failure == 0 ? impl_->files->open_explained(path, flags, &failure, &why) : nullptr;
    if (!opened) {
      std::string text = "gpufs: cannot prepare '";
      text.append(path).append("': ").append(std::strerror(-failure));
      if (!why.empty()) text.append(": ").append(why);
      throw error(text);
    }
    again = !writes && !opened->info().settled;  // what is written in place is no version
    if (again) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
}

void host_mount::trim() {
  impl_->tell_faults();
  impl_->files->trim();
}

}  // namespace gpufs
