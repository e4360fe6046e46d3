// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>

#include "file_size_signal.hpp"

namespace gpufs::service {
namespace {

std::uint64_t clock_ns(clockid_t which) {
  timespec t;
  ::clock_gettime(which, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

const char* name_of(opcode op) {
  constexpr const char* names[] = {"?",        "open",   "read",   "close", "write", "sync",
                                   "truncate", "unlink", "rename", "mkdir", "stat",  "read_dir"};
  const auto i = static_cast<std::size_t>(op);
  return i < std::size(names) ? names[i] : names[0];
}

}  // namespace

void worker::run() {
  const file_size_signal_held held;
  ::prctl(PR_SET_NAME, "gpufs-worker");
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns: short naps that are not 50 us longer
  if (core_.options.io_uring) {
    std::string why;
    have_ring_ = ring_.start(&why);
    if (!have_ring_) core_.log.add("service", "", 0, "reads that miss the page cache block a worker each: " + why);
  }
  if (have_ring_) {
    in_flight_.resize(uring::depth);
    for (std::uint32_t tag = uring::depth; tag-- > 0;) free_tags_.push_back(tag);
  }
  for (;;) {
    const bool leaving = core_.exiting.load(std::memory_order_acquire);
    bool busy = nin_flight_ != 0 && reap();
    busy |= take_batch();
    busy |= run_quick();
    busy |= run_writes();
    busy |= run_calls();
    busy |= run_slow();
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

// Requests that are there, from all rings, starting at our own.
bool worker::take_batch() {
  const auto waits = [](const queue& q) { return q.size.load(std::memory_order_relaxed) != 0; };
  const bool blocking = waits(writes_) || waits(calls_) || waits(slow_);
  // A blocking request waits until our asynchronous reads are done, so that it does not hold up their answers; then we must
  // not start new ones.
  if (blocking && nin_flight_ != 0) return false;
  // Blocking requests do not count: nobody may be allowed to run them, and the request slots bound how many there are. While
  // there is a group to read, looking at the rings would cost more than it brings.
  const std::uint32_t queued = quick_.size.load(std::memory_order_relaxed);
  if (queued >= std::min<std::uint32_t>(group_size, core_.options.max_batch)) return false;
  const std::uint32_t room = core_.options.max_batch - queued;
  const std::uint32_t nrings = core_.requests.nrings();
  const std::uint32_t first = static_cast<std::uint32_t>(std::uint64_t{id_} * nrings / core_.options.nworkers);
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

// Checks a request and answers it, or notes it for queue_admitted(). Nothing in it is trusted.
void worker::admit(const taken_request& taken) {
  // Counted before `stopping` is read, both in the one order of sequential consistency: either stop() sees the count and waits
  // for the answer, or we see that it stops.
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
    case opcode::read:  // what it says is checked in begin_read, where reads of one file are together
      quick_taken_.push_back(std::move(w));
      return;
    case opcode::write:  // in begin_write
      writes_taken_.push_back(std::move(w));
      return;
    case opcode::close:
      if (ask.offset == 0) return close_file(w);
      calls_taken_.push_back(std::move(w));  // it looks at every page of the file
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
      calls_taken_.push_back(std::move(w));
      return;
    case opcode::none:
    default:
      break;
  }
  fail(w, ENOSYS, "operation " + std::to_string(static_cast<std::uint32_t>(ask.op)));
}

bool worker::queue_admitted() {
  std::size_t queued = 0;
  {
    const std::scoped_lock hold(lock_);
    for (work& w : quick_taken_) quick_.waiting.push_back(std::move(w));
    for (work& w : writes_taken_) writes_.waiting.push_back(std::move(w));
    for (work& w : calls_taken_) calls_.waiting.push_back(std::move(w));
    quick_.note_size();
    writes_.note_size();
    calls_.note_size();
    queued = quick_.waiting.size() + 2 * (writes_.waiting.size() + calls_.waiting.size());
  }
  quick_taken_.clear();
  writes_taken_.clear();
  calls_taken_.clear();
  if (queued > group_size) core_.parked.wake_one();
  return true;
}

// Asks our own queue first, then the other workers', until one says true.
template <class Ask>
bool worker::any_worker(Ask ask) {
  for (std::size_t i = 0; i < core_.workers.size(); ++i) {
    if (ask(*core_.workers[(id_ + i) % core_.workers.size()])) return true;
  }
  return false;
}

// Up to a group of what waits in `q` of `from`, to group_.
bool worker::pop_group(worker& from, queue& q) {
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  const auto end = q.waiting.begin() + static_cast<std::ptrdiff_t>(std::min(group_size, q.waiting.size()));
  std::move(q.waiting.begin(), end, std::back_inserter(group_));
  q.waiting.erase(q.waiting.begin(), end);
  q.note_size();
  return !group_.empty();
}

bool worker::pop_call(worker& from, work* out) {
  queue& q = from.calls_;
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  if (q.waiting.empty()) return false;
  *out = std::move(q.waiting.front());
  q.waiting.pop_front();
  q.note_size();
  return true;
}

// The first read or write in the queue whose file has a thread left to block.
bool worker::pop_slow(worker& from, work* out) {
  queue& q = from.slow_;
  if (q.size.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  const auto found = std::find_if(q.waiting.begin(), q.waiting.end(), [this](const work& w) {
    return core_.may_block(w.file->nblocked);  // given back by run_slow
  });
  if (found == q.waiting.end()) return false;
  *out = std::move(*found);
  q.waiting.erase(found);
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
}

bool worker::run_quick() {
  // Every read of a group may have to become asynchronous.
  if (have_ring_ && free_tags_.size() < group_size) return false;
  const bool found = any_worker([this](worker& from) { return pop_group(from, from.quick_); });
  if (found) read_group();
  return found;
}

// Writes to the page cache seldom block, but may: where memory is full of what is not yet on the disk, or on a network.
bool worker::run_writes() {
  const auto waits = [](const worker& at) { return at.writes_.size.load(std::memory_order_relaxed) != 0; };
  if (nin_flight_ != 0 || !any_worker(waits) || !core_.may_block(core_.nwriting)) return false;
  const bool found = any_worker([this](worker& from) { return pop_group(from, from.writes_); });
  if (found) {
    core_.parked.begin_blocking();
    write_group();
    core_.parked.end_blocking();
  }
  core_.nwriting.fetch_sub(1, std::memory_order_relaxed);
  return found;
}

// Opens and other calls that wait, one after another until it is time to look at the rings again: what is shared by all workers is
// touched once for them all.
bool worker::run_calls() {
  constexpr std::uint64_t enough_ns = 50'000;
  const auto waits = [](const worker& at) { return at.calls_.size.load(std::memory_order_relaxed) != 0; };
  if (nin_flight_ != 0 || !any_worker(waits) || !core_.may_block(core_.ncalling)) return false;
  work w;
  const auto pop = [&](worker& from) { return pop_call(from, &w); };
  bool found = any_worker(pop);
  if (found) {
    core_.parked.begin_blocking();
    const std::uint64_t until = clock_ns(CLOCK_MONOTONIC) + enough_ns;
    for (std::size_t n = 1;; ++n) {
      core_.stopping.load() ? fail(w, ESHUTDOWN) : run_call(w);
      if (n == group_size || clock_ns(CLOCK_MONOTONIC) > until || !any_worker(pop)) break;
    }
    core_.parked.end_blocking();
  }
  core_.ncalling.fetch_sub(1, std::memory_order_relaxed);
  return found;
}

bool worker::run_slow() {
  if (nin_flight_ != 0) return false;
  work w;
  if (!any_worker([&](worker& from) { return pop_slow(from, &w); })) return false;
  core_.parked.begin_blocking();
  if (core_.stopping.load()) {
    fail(w, ESHUTDOWN);
  } else {
    w.op == opcode::write ? write_each(w) : read_blocking(w);
  }
  w.file->nblocked.fetch_sub(1, std::memory_order_relaxed);
  w.hold.reset();  // may close the file, which may block
  core_.parked.end_blocking();
  return true;
}

void worker::idle() {
  // Looking at the rings costs about 0.3 us; a group's next request comes some 5 us after its answer.
  constexpr std::uint64_t spin_ns = 50'000, last_spin_ns = 200'000, short_ns = 5'000'000, middle_ns = 50'000'000;
  ++nidle_;
  if (nin_flight_ != 0) {
    if (nidle_ > 64) {
      ring_.wait(50'000);
    } else {
      relax();
    }
    return;
  }
  if (nidle_ % 16 != 0) {
    for (int i = 0; i < 4; ++i) relax();
    return;
  }
  const std::uint64_t now = clock_ns(CLOCK_MONOTONIC);
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
  // The last one that polls.
  if (idle_ns < last_spin_ns) {
    std::this_thread::yield();
    return;
  }
  const std::uint64_t nap_ns = idle_ns < short_ns ? 20'000 : idle_ns < middle_ns ? 100'000 : deep_nap_ns();
  const timespec nap{0, static_cast<long>(nap_ns)};
  ::nanosleep(&nap, nullptr);
  nidle_ = 15;  // look once, then nap again
}

// 1 ms, and longer where a nap costs so much (20 us in some virtual machines) that idling would take over 1 % of a core.
std::uint64_t worker::deep_nap_ns() {
  constexpr std::uint64_t least_ns = 1'000'000, most_ns = 10'000'000;
  constexpr std::uint32_t nmeasured = 64;
  if (nnaps_++ % nmeasured == 0) {
    const std::uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    // 1/200 of a core leaves as much of the one percent for the watch over open files.
    deep_nap_ns_ = nnaps_ == 1 ? least_ns : std::clamp((cpu_ns - nap_cpu_ns_) / nmeasured * 200, least_ns, most_ns);
    nap_cpu_ns_ = cpu_ns;
  }
  return deep_nap_ns_;
}

void worker::fail(const work& w, int error, std::string_view text) {
  fail(w, w.file != nullptr ? std::string_view(w.file->path) : std::string_view(), error, text);
}

void worker::fail(const work& w, std::string_view path, int error, std::string_view text) {
  tally::add(counts_.errors);
  core_.log.count(error);
  if (error != ESHUTDOWN) core_.log.add(name_of(w.op), path, error, text);
  reply out{};
  out.result = -error;
  answer(w, out);
}

void worker::answer(const work& w, const reply& out) {
  core_.requests.complete(w.index, w.sequence, out);
  counts_.answers.fetch_add(1, std::memory_order_release);  // meets stop()'s acquire
}

}  // namespace gpufs::service
