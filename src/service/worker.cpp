// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>

#include "clock.hpp"
#include "file_size_signal.hpp"

namespace gpufs::service {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

const char* name_of(opcode op) {
  constexpr const char* names[] = {"?",      "open",  "read", "close",    "write",  "sync",      "truncate", "unlink",
                                   "rename", "mkdir", "stat", "read_dir", "extend", "read_rows", "extents"};
  const auto i = static_cast<std::size_t>(op);
  return i < std::size(names) ? names[i] : names[0];
}

// Calls on an open file that may wait, and leave it open.
bool is_on_file(opcode op) { return op == opcode::sync || op == opcode::truncate || op == opcode::extents; }

// A request of rows takes as long as so many reads of a page.
std::size_t weight_of(const work& w) { return w.op == opcode::read_rows ? 8 : 1; }

}  // namespace

void worker::run() {
  const file_size_signal_held held;
  ::prctl(PR_SET_NAME, "gpufs-worker");
  core_.machine.stay_current();
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns: else short naps take 50 us longer
  if (for_tests::io_uring) {
    std::string why;
    have_ring_ = ring_.start(&why);
    if (!have_ring_) core_.log.add("service", "", 0, "reads that miss the page cache block a worker each: " + why);
  }
  static_assert(uring::depth == read_answers::depth);
  in_flight_.resize(uring::depth);
  for (std::uint32_t tag = uring::depth; tag-- > 0;) free_tags_.push_back(tag);
  for (;;) {
    const bool leaving = core_.exiting.load(std::memory_order_acquire);
    if (nin_flight_ != 0) look_for_overdue();
    bool busy = nin_flight_ != 0 && reap();
    busy |= take_batch();
    busy |= run_quick();
    busy |= run_io(&worker::writes_);
    busy |= run_calls();
    busy |= run_io(&worker::slow_);
    if (busy) {
      nidle_ = 0;
      idle_since_ns_ = 0;
    } else if (leaving && nin_flight_ == 0) {
      return;
    } else {
      idle();
    }
  }
}

// Whether requests that may block wait in our queues.
bool worker::has_blocking() const {
  const auto waits = [](const queue& q) { return q.size.load(std::memory_order_relaxed) != 0; };
  return waits(writes_) || waits(calls_) || waits(slow_);
}

// Takes requests from all rings, starting at our own.
bool worker::take_batch() {
  // A blocking request waits until our asynchronous reads are done, except hanging ones, so that it does not hold up their answers;
  // until then we must not start new reads.
  if (nfresh() != 0 && has_blocking()) return false;
  // Blocking requests do not count: it may be that no worker may run them, and the request slots bound their number. While there is
  // a group to read, looking at the rings would cost more than it brings.
  const std::uint32_t queued = quick_.size.load(std::memory_order_relaxed);
  if (queued >= std::min<std::uint32_t>(group_size, core_.options.max_batch)) return false;
  const std::uint32_t room = core_.options.max_batch - queued;
  const std::uint32_t nrings = core_.requests.nrings();
  const std::uint32_t nworkers = core_.options.nworkers;
  const auto first = static_cast<std::uint32_t>(std::uint64_t{id_ % nworkers} * nrings / nworkers);
  std::uint32_t n = 0;
  for (std::uint32_t i = 0; i < nrings && n < room; ++i) {
    const std::uint32_t r = first + i < nrings ? first + i : first + i - nrings;
    if (core_.requests.pending(r)) {
      n += core_.requests.take(r, room - n, [this](const taken_request& taken) { admit(taken); });
    }
  }
  if (n == 0) return false;
  tally::add(counts_.batches);
  if (n > counts_.max_batch.load(std::memory_order_relaxed)) counts_.max_batch.store(n, std::memory_order_relaxed);
  return queue_admitted();
}

// Checks a request and answers it, or keeps it for queue_admitted(). Trusts nothing in it.
void worker::admit(const taken_request& taken) {
  // Counted before `stopping` is read, both in the one order of sequential consistency: either stop() sees the count and waits for
  // the answer, or we see that it stops.
  counts_.requests.fetch_add(1);
  const request& ask = taken.what;
  work w;
  w.op = ask.op;
  w.index = taken.index;
  w.sequence = taken.sequence;
  if (core_.stopping.load()) return fail(w, ESHUTDOWN);
  w.handle = ask.handle;
  w.offset = ask.offset;
  w.nbytes = ask.nbytes;
  w.flags = ask.flags;
  w.skip = ask.skip;
  w.mode = ask.mode;
  switch (ask.op) {
    case opcode::read:  // begin_read checks the fields, with other reads of the file
    case opcode::read_rows:
      quick_taken_.push_back(std::move(w));
      return;
    case opcode::write:  // begin_write checks the fields
      writes_taken_.push_back(std::move(w));
      return;
    case opcode::close:
      // A close is slow if the device has stored into the file's mapping, because it looks at every page; and if the file is
      // remote, because close(2) asks the server.
      if (ask.offset == 0 && !core_.open.closes_slowly(w.handle)) return close_file(w);
      calls_taken_.push_back(std::move(w));
      return;
    case opcode::open:
    case opcode::unlink:
    case opcode::rename:
    case opcode::mkdir:
    case opcode::stat:
    case opcode::read_dir: {
      const bool root_too = ask.op == opcode::stat || ask.op == opcode::read_dir;
      const std::uint32_t longest = ask.op == opcode::rename ? std::max(ask.nbytes, ask.handle) : ask.nbytes;
      const std::uint32_t shortest = ask.op == opcode::rename ? std::min(ask.nbytes, ask.handle) : ask.nbytes;
      if (shortest == 0 && !root_too) return fail(w, ENOENT, "the path is empty");
      if (longest > max_path_nbytes) return fail(w, ENAMETOOLONG, "the path has " + std::to_string(longest) + " bytes");
      w.number = static_cast<std::uint32_t>(ask.offset);
      w.nbytes_along = std::min(ask.handle, core_.requests.payload_nbytes());
      calls_taken_.push_back(std::move(w));
      return;
    }
    case opcode::sync:
    case opcode::truncate:
    case opcode::extents:
      calls_taken_.push_back(std::move(w));
      return;
    case opcode::extend:
      try {
        return core_.extend_later(taken);
      } catch (const std::exception& e) {  // no thread, or no memory
        return fail(w, ENOMEM, e.what());
      }
    case opcode::none:
    default:
      break;
  }
  fail(w, ENOSYS, "operation " + std::to_string(static_cast<std::uint32_t>(ask.op)));
}

bool worker::queue_admitted() {
  std::size_t queued = 0, quick_weight = 0;
  for (const work& w : quick_taken_) quick_weight += weight_of(w);
  {
    const std::scoped_lock hold(lock_);
    quick_weight += quick_.waiting.size();
    for (work& w : quick_taken_) quick_.waiting.push_back(std::move(w));
    for (work& w : writes_taken_) writes_.waiting.push_back(std::move(w));
    for (work& w : calls_taken_) calls_.waiting.push_back(std::move(w));
    quick_.note_size();
    writes_.note_size();
    calls_.note_size();
    queued = quick_weight + 2 * (writes_.waiting.size() + calls_.waiting.size());
  }
  quick_taken_.clear();
  writes_taken_.clear();
  calls_taken_.clear();
  if (queued > group_size || (may_keep_long() && has_blocking())) core_.parked.wake_one();
  return true;
}

// Asks our own queue first, then the other workers', until one call returns true.
template <class Ask>
bool worker::any_worker(Ask ask) {
  const auto workers = core_.all_workers();
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (ask(*workers[(id_ + i) % workers.size()])) return true;
  }
  return false;
}

// Moves up to a group of requests from `q` of worker `from` to group_.
bool worker::pop_group(worker& from, queue& q) {
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  auto end = q.waiting.begin();
  for (std::size_t n = 0; end != q.waiting.end() && n < group_size; ++end) n += weight_of(*end);
  std::move(q.waiting.begin(), end, std::back_inserter(group_));
  q.waiting.erase(q.waiting.begin(), end);
  q.note_size();
  return !group_.empty();
}

// Takes the first call in the queue for whose file and path no call hangs.
bool worker::pop_call(worker& from, work* out) {
  queue& q = from.calls_;
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  const auto found = std::find_if(q.waiting.begin(), q.waiting.end(), [this](const work& w) { return !waits_for_hung(w); });
  if (found == q.waiting.end()) return false;
  *out = std::move(*found);
  q.waiting.erase(found);
  q.note_size();
  return true;
}

bool worker::waits_for_hung(const work& w) {
  if (!core_.blocked.any_hang() || core_.stopping.load()) return false;
  if (is_on_file(w.op) || w.op == opcode::close) {
    const open_files::entry* file = core_.open.peek(w.handle);
    return file != nullptr && file->nhung_calls.load(std::memory_order_relaxed) != 0;
  }
  const auto* path = reinterpret_cast<const char*>(payload_of(w));
  return core_.blocked.any_hung([&](const blocked_call& call) { return call.path == std::string_view(path, w.nbytes); });
}

// Takes the first read or write in the queue whose file may have one more thread in a blocking call, and all requests that can be
// done with it. Moves them to group_. *counted is the file, which counts the thread from then on; or null, for writes that are of
// no open file. only_unused: the file must have no thread in a call.
bool worker::pop_io(worker& from, queue& q, bool only_unused, open_files::entry** counted) {
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const bool stops = core_.stopping.load();
  const std::scoped_lock hold(from.lock_);
  const open_files::entry* refused = nullptr;
  const auto found = std::find_if(q.waiting.begin(), q.waiting.end(), [&](const work& w) {
    open_files::entry* const file = w.file != nullptr ? w.file : core_.open.peek(w.handle);
    *counted = file;
    if (file == nullptr) return true;
    if (file == refused) return false;
    refused = file;
    if (!stops && file->nhung_io.load(std::memory_order_relaxed) != 0) return false;
    if (only_unused && file->nblocked.load(std::memory_order_relaxed) != 0) return false;
    return core_.may_block(blocking_kind::file_io, file->nblocked);  // run_io gives it back
  });
  if (found == q.waiting.end()) return false;
  const std::uint32_t handle = found->handle;
  const open_files::entry* const file = found->file;
  const bool read = found->read, joins = file == nullptr || can_join(*found);
  const auto along = [&](const work& w) {
    return file == nullptr ? w.handle == handle : w.file == file && can_join(w) && w.read == read;
  };
  auto kept = found, w = found;
  for (; w != q.waiting.end() && (group_.empty() || (joins && group_.size() < group_size)); ++w) {
    if (group_.empty() || along(*w)) {
      group_.push_back(std::move(*w));
    } else {
      if (kept != w) *kept = std::move(*w);
      ++kept;
    }
  }
  q.waiting.erase(kept, w);
  q.note_size();
  return true;
}

void worker::push_slow(work w) {
  {
    const std::scoped_lock hold(lock_);
    slow_.waiting.push_back(std::move(w));
    slow_.note_size();
  }
  core_.parked.wake_one();
  // While more requests wait, each thread that wakes wakes three: if each woke one, the last of 64 reads that were asked for
  // together would begin when a disk would have answered the first.
  if (!core_.requests.any_pending()) return;
  core_.parked.wake_one();
  core_.parked.wake_one();
}

void worker::let_go(open_files::ref file) {
  if (!file || !file->closes_slowly() || file.reset_unless_last()) return;
  work w;
  w.file = file.get();
  w.hold = std::move(file);
  push_slow(std::move(w));
}

// Makes call(), for `file` or for blocked_.path. False: it has hung, and `nblocked` no longer counts it.
template <class Call>
bool worker::in_blocking(blocking_kind kind, std::atomic<std::uint32_t>& nblocked, const char* operation, open_files::entry* file,
                         Call call) {
  blocked_.kind = kind;
  blocked_.nblocked = &nblocked;
  blocked_.file = file;
  blocked_.operation = operation;
  blocked_calls::enter(blocked_, clock_ns());
  call();
  return core_.blocked.leave(blocked_);
}

bool worker::run_quick() {
  if (nfresh() != 0 && has_blocking()) return false;  // as in take_batch
  // Every read of a group may have to become asynchronous. While reads hang, reads without a tag wait for a thread instead.
  if (free_tags_.size() < group_size && noverdue_ == 0) return false;
  // Nor may requests of rows pile up here and wait for tags, while other workers could read them.
  if (rows_.size() >= most_rows_waiting && noverdue_ == 0) return false;
  // While reads hang, the last thread that can enter calls leaves all other reads to the threads that already have hanging ones:
  // else it would become one of these.
  if (noverdue_ == 0 && core_.blocked.nkeepers() != 0 && core_.ncallers() <= 1 && core_.can_add_worker()) return false;
  const bool found = any_worker([this](worker& from) { return pop_group(from, from.quick_); });
  if (found) read_group();
  return found;
}

// Runs waiting opens and other calls, one after another, until it is time to look at the rings again: so the words that all workers
// share are touched once for several calls.
bool worker::run_calls() {
  constexpr std::uint64_t enough_ns = 50'000;
  const auto waits = [](const worker& at) { return at.calls_.size.load(std::memory_order_relaxed) != 0; };
  if (keeps_reads() || !any_worker(waits) || !core_.may_block(blocking_kind::calls, core_.ncalling)) return false;
  work w;
  const auto pop = [&](worker& from) { return pop_call(from, &w); };
  const bool found = any_worker(pop);
  bool counts = true;
  if (found) {
    core_.parked.begin_blocking();
    const std::uint64_t until = clock_ns() + enough_ns;
    for (std::size_t n = 1;; ++n) {
      if (core_.stopping.load()) {
        fail(w, ESHUTDOWN);
      } else {
        counts = run_call(w);
      }
      if (!counts || n == group_size || clock_ns() > until || !any_worker(pop)) break;
    }
    core_.parked.end_blocking();
  }
  core_.blocked.end(core_.ncalling, counts);
  return found;
}

// Runs one call. Result as in_blocking().
bool worker::run_call(work& w) {
  const bool on_file = is_on_file(w.op);
  open_files::ref file = on_file ? core_.open.acquire(w.handle) : open_files::ref();
  if (on_file) {
    blocked_.path.clear();
  } else if (w.op == opcode::close) {
    blocked_.path = core_.open.path_of(w.handle).value_or("");
  } else {
    // Copies the path out of the shared memory once.
    blocked_.path.assign(reinterpret_cast<const char*>(payload_of(w)), w.nbytes);
  }
  return in_blocking(blocking_kind::calls, core_.ncalling, name_of(w.op), file.get(), [&] {
    if (on_file) {
      w.op == opcode::extents ? list_extents(w, file.get()) : call_on_file(w, file.get());
      return file.reset();  // may close it, which may block
    }
    if (w.op == opcode::close) return close_file(w);
    w.op == opcode::open ? open_file(w, blocked_.path) : call_on_path(w, blocked_.path);
  });
}

// Runs reads and writes that block, and writes to the page cache, which seldom block, but may if memory is full of bytes that are
// not on the disk yet. Runs one, or several of one file that can be done together.
bool worker::run_io(queue worker::*which) {
  if (keeps_reads()) return false;
  const auto waits = [which](const worker& at) { return (at.*which).size.load(std::memory_order_relaxed) != 0; };
  if (!any_worker(waits)) return false;
  open_files::entry* file = nullptr;
  const auto pop = [&](bool only_unused) {
    return any_worker([&](worker& from) { return pop_io(from, from.*which, only_unused, &file); });
  };
  // First files that no thread is in: if such a file hangs, it takes one thread, and not all of them.
  if (!pop(true) && !pop(false)) return false;
  if (file == nullptr) {
    for (work& w : group_) begin_write(w, nullptr);
    group_.clear();
    return true;
  }
  core_.parked.begin_blocking();
  blocked_.path.clear();
  const opcode op = group_.front().op;
  const char* const operation = op == opcode::none ? "close" : name_of(op);
  const bool counts = in_blocking(blocking_kind::file_io, file->nblocked, operation, file, [this] {
    group_.front().file == nullptr ? write_group() : run_slow_group();
    group_.clear();  // may close the file
  });
  core_.blocked.end(file->nblocked, counts);
  core_.parked.end_blocking();
  return true;
}

void worker::run_slow_group() {
  work& first = group_.front();
  if (first.op == opcode::none) return;
  if (core_.stopping.load()) {
    for (const work& w : group_) fail(w, ESHUTDOWN);
  } else if (first.read) {
    finish(group_);
  } else if (first.op == opcode::read) {
    read_blocking(first);
  } else if (first.op == opcode::read_rows) {
    read_rows_blocking(std::move(first));
  } else if (can_join(first)) {
    sort_writes(group_);
    write_joined(group_);
  } else {
    write_each(first);
  }
}

// Notes which reads in flight hang, from time to time.
void worker::look_for_overdue() {
  const std::uint64_t now = clock_ns();
  if (now < looked_ns_ + hangs_after_ns / 4) return;
  looked_ns_ = now;
  bool has_new = false;
  for (flight& f : in_flight_) {
    if (f.what.file == nullptr || f.overdue || f.since_ns + hangs_after_ns > now) continue;
    f.overdue = true;
    if (noverdue_++ == 0) core_.blocked.note_keeper(1);
    core_.blocked.note_read(*f.what.file, 1);
    has_new = true;
  }
  if (has_new && !rows_.empty()) begin_left();  // what waited for reads that hang goes to a thread that may block
  // Other workers must run the requests that may block. We wake one each time, because the last one woken may just have been
  // falling asleep.
  if (may_keep_long() && has_blocking()) core_.parked.wake_one();
}

void worker::idle() {
  // Looking at the rings costs about 0.3 us; a group's next request comes some 5 us after its answer.
  constexpr std::uint64_t spin_ns = 50'000, by_store_spin_ns = 150'000, last_spin_ns = 200'000, short_ns = 5'000'000,
                          middle_ns = 50'000'000;
  ++nidle_;
  if (nin_flight_ != 0) {
    if (nidle_ <= 64) return relax();
    const std::uint64_t most_ns = nfresh() != 0 ? 50'000 : 500'000;
    if (nby_store_ == 0) return ring_.wait(most_ns);
    // A thread that sleeps takes an answer some 10 us later than one that looks; a fast store answers within 100 us. A read of
    // the ring's beside it is seen at the next look.
    const std::uint64_t now = clock_ns();
    if (idle_since_ns_ == 0) idle_since_ns_ = now;
    const std::uint64_t waited_ns = now - idle_since_ns_;
    if (waited_ns < by_store_spin_ns) return std::this_thread::yield();
    // Of a store that takes so long, looks each 50 us would cost a fifth of a core.
    return answers_.wait(waited_ns < short_ns ? most_ns : std::max<std::uint64_t>(most_ns, 200'000));
  }
  if (nidle_ % 16 != 0) {
    for (int i = 0; i < 4; ++i) relax();
    return;
  }
  const std::uint64_t now = clock_ns();
  if (idle_since_ns_ == 0) {
    idle_since_ns_ = now;
    nnaps_ = 0;
  }
  const std::uint64_t idle_ns = now - idle_since_ns_;
  if (idle_ns < spin_ns) {
    std::this_thread::yield();
    return;
  }
  if (core_.parked.try_sleep()) {
    idle_since_ns_ = 0;
    return;
  }
  // This is the last worker that polls.
  if (idle_ns < last_spin_ns) {
    std::this_thread::yield();
    return;
  }
  const std::uint64_t nap_ns = idle_ns < short_ns ? 20'000 : idle_ns < middle_ns ? 100'000 : deep_nap_ns();
  const timespec nap{0, static_cast<long>(nap_ns)};
  ::nanosleep(&nap, nullptr);
  nidle_ = 15;  // look once, then nap again
}

// 1 ms, and longer if a nap costs so much (20 us in some virtual machines) that idling would take over 1 % of a core.
std::uint64_t worker::deep_nap_ns() {
  constexpr std::uint64_t least_ns = 1'000'000, most_ns = 25'000'000;
  constexpr std::uint32_t nmeasured = 64;
  if (nnaps_++ % nmeasured == 0) {
    const std::uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    // Naps may take 1/250 of a core: the watch over open files takes 1/500, and the cost of a nap changes from one second to the
    // next.
    deep_nap_ns_ = nnaps_ == 1 ? least_ns : std::clamp((cpu_ns - nap_cpu_ns_) / nmeasured * 250, least_ns, most_ns);
    nap_cpu_ns_ = cpu_ns;
  }
  return deep_nap_ns_;
}

void worker::fail(const work& w, int error, std::string_view text) {
  fail(w, w.file != nullptr ? std::string_view(w.file->path) : std::string_view(), error, text);
}

void worker::fail(const work& w, std::string_view path, int error, std::string_view text) {
  core_.note_error(counts_, name_of(w.op), path, error, text);
  refuse(w, error);
}

void worker::refuse(const work& w, int error) { core_.refuse(counts_, w.index, w.sequence, error); }

void worker::answer(const work& w, const reply& out) { core_.answer(counts_, w.index, w.sequence, out); }

}  // namespace gpufs::service
