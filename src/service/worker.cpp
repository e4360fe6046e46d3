// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <thread>

#include "../store/read_loop.hpp"

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

}  // namespace

void worker::run() {
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
  const std::uint32_t nslow = nslow_.load(std::memory_order_relaxed);
  // A blocking request waits until our asynchronous reads are done, so that it does not hold up their answers; then we must
  // not start new ones.
  if (nslow != 0 && nin_flight_ != 0) return false;
  // Slow requests do not count: nobody may be allowed to run them, and the request slots bound how many there are.
  const std::uint32_t queued = nquick_.load(std::memory_order_relaxed);
  if (queued >= core_.options.max_batch) return false;
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
  switch (ask.op) {
    case opcode::open:
      if (ask.nbytes == 0) return fail(w, ENOENT, "the path is empty");
      if (ask.nbytes > max_path_nbytes) return fail(w, ENAMETOOLONG, "the path has " + std::to_string(ask.nbytes) + " bytes");
      w.flags = ask.flags;
      w.nbytes = ask.nbytes;
      w.number = static_cast<std::uint32_t>(ask.offset);
      slow_taken_.push_back(std::move(w));
      return;
    case opcode::read: {
      w.file = core_.open.acquire(ask.handle);
      if (!w.file) return fail(w, EBADF, "no open file has this handle");
      if (ask.offset < 0 || ask.nbytes > core_.requests.payload_nbytes() ||
          ask.offset > std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(ask.nbytes)) {
        return fail(w, EINVAL, std::to_string(ask.nbytes) + " bytes at " + std::to_string(ask.offset));
      }
      w.offset = ask.offset;
      w.nbytes = static_cast<std::uint32_t>(store::clip(ask.nbytes, ask.offset, w.file->file->info().nbytes));
      (w.file->how.load(std::memory_order_relaxed) == read_path::call ? slow_taken_ : quick_taken_).push_back(std::move(w));
      return;
    }
    case opcode::close:
      if (core_.open.close(ask.handle) != 0) return fail(w, EBADF, "no open file has this handle");
      tally::add(counts_.closes);
      answer(w, reply{});
      return;
    case opcode::none:
      break;
  }
  fail(w, ENOSYS, "operation " + std::to_string(static_cast<std::uint32_t>(ask.op)));
}

bool worker::queue_admitted() {
  std::size_t queued = 0;
  {
    const std::scoped_lock hold(lock_);
    for (work& w : quick_taken_) quick_.push_back(std::move(w));
    for (work& w : slow_taken_) slow_.push_back(std::move(w));
    nquick_.store(static_cast<std::uint32_t>(quick_.size()), std::memory_order_relaxed);
    nslow_.store(static_cast<std::uint32_t>(slow_.size()), std::memory_order_relaxed);
    queued = quick_.size() + 2 * slow_.size();
  }
  quick_taken_.clear();
  slow_taken_.clear();
  if (queued > group_size) core_.parked.wake_one();
  return true;
}

bool worker::pop_quick(worker& from) {
  if (from.nquick_.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  const std::size_t n = std::min(group_size, from.quick_.size());
  std::move(from.quick_.begin(), from.quick_.begin() + static_cast<std::ptrdiff_t>(n), std::back_inserter(group_));
  from.quick_.erase(from.quick_.begin(), from.quick_.begin() + static_cast<std::ptrdiff_t>(n));
  from.nquick_.store(static_cast<std::uint32_t>(from.quick_.size()), std::memory_order_relaxed);
  return n != 0;
}

// The first request in the queue whose file (or opening) has a thread left to block.
bool worker::pop_slow(worker& from, work* out) {
  if (from.nslow_.load(std::memory_order_relaxed) == 0) return false;
  const std::scoped_lock hold(from.lock_);
  const auto found = std::find_if(from.slow_.begin(), from.slow_.end(), [this](const work& w) {
    auto& nblocked = w.op == opcode::open ? core_.nopening : w.file->nblocked;
    // Taken here, given back by run_slow. Once the service stops, run_slow refuses what it gets, and that blocks nobody.
    if (nblocked.fetch_add(1, std::memory_order_relaxed) < core_.blocking_limit() || core_.stopping.load()) return true;
    nblocked.fetch_sub(1, std::memory_order_relaxed);
    return false;
  });
  if (found == from.slow_.end()) return false;
  *out = std::move(*found);
  from.slow_.erase(found);
  from.nslow_.store(static_cast<std::uint32_t>(from.slow_.size()), std::memory_order_relaxed);
  return true;
}

void worker::push_slow(work w) {
  {
    const std::scoped_lock hold(lock_);
    slow_.push_back(std::move(w));
    nslow_.store(static_cast<std::uint32_t>(slow_.size()), std::memory_order_relaxed);
  }
  core_.parked.wake_one();
}

bool worker::run_quick() {
  // Every read of a group may have to become asynchronous.
  if (have_ring_ && free_tags_.size() < group_size) return false;
  bool found = pop_quick(*this);
  for (std::size_t i = 1; !found && i < core_.workers.size(); ++i) {
    found = pop_quick(*core_.workers[(id_ + i) % core_.workers.size()]);
  }
  if (found) read_group();
  return found;
}

bool worker::run_slow() {
  if (nin_flight_ != 0) return false;
  work w;
  bool found = pop_slow(*this, &w);
  for (std::size_t i = 1; !found && i < core_.workers.size(); ++i) {
    found = pop_slow(*core_.workers[(id_ + i) % core_.workers.size()], &w);
  }
  if (!found) return false;
  core_.parked.begin_blocking();
  if (core_.stopping.load()) {
    fail(w, ESHUTDOWN);
  } else if (w.op == opcode::open) {
    open_file(w);
  } else {
    read_blocking(w);
  }
  (w.op == opcode::open ? core_.nopening : w.file->nblocked).fetch_sub(1, std::memory_order_relaxed);
  w.file.reset();  // may close the file, which may block
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
  constexpr std::uint64_t least_ns = 1'000'000, most_ns = 5'000'000;
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
  tally::add(counts_.errors);
  core_.log.count(error);
  if (error != ESHUTDOWN) {
    const char* operation = w.op == opcode::read ? "read" : w.op == opcode::close ? "close" : w.op == opcode::open ? "open" : "?";
    core_.log.add(operation, w.file ? std::string_view(w.file->path) : std::string_view(), error, text);
  }
  reply out{};
  out.result = -error;
  answer(w, out);
}

void worker::answer(const work& w, const reply& out) {
  core_.requests.complete(w.index, w.sequence, out);
  counts_.answers.fetch_add(1, std::memory_order_release);  // meets stop()'s acquire
}

}  // namespace gpufs::service
