// SPDX-License-Identifier: Apache-2.0
#include "copier.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "clock.hpp"

namespace gpufs::service {

copier::copier(core& shared) : core_(shared) {
  for (std::size_t i = 0; i < ncopiers; ++i) threads_[i].counts = &shared.tallies[shared.most_workers() + i];
}

void copier::start() {
  for (copying_thread& one : threads_) {
    for (batch& each : one.batches) {
      each.engine = core_.machine.make_copy_batch();
      each.works.reserve(most);
      each.copies.reserve(most);
    }
  }
  // A trial copy, as if for a page: if the driver cannot do it, it says so now, and it loads its code for copies before kernels
  // run.
  simt::host_copy first[] = {{core_.frames.begin, core_.requests.payload(0), std::min<std::size_t>(core_.frames.nbytes, 4096)}};
  simt::copy_batch& engine = *threads_[0].batches[0].engine;
  engine.begin(first);
  while (!engine.has_ended()) std::this_thread::sleep_for(std::chrono::microseconds(2));
  for (copying_thread& one : threads_) one.thread = std::thread([this, &one] { run(one); });
}

void copier::ask(work&& w) {
  bool sleeps = false;
  {
    const std::scoped_lock hold(lock_);
    asked_.push_back(std::move(w));
    nasked_.store(asked_.size(), std::memory_order_relaxed);
    core_.ncopying.fetch_add(1, std::memory_order_relaxed);
    sleeps = nsleeping_ != 0;
  }
  if (sleeps) wake_.notify_one();
}

void copier::end() {
  {
    const std::scoped_lock hold(lock_);
    end_ = true;
  }
  wake_.notify_all();
  for (copying_thread& one : threads_) {
    if (one.thread.joinable()) one.thread.join();
  }
}

// While copies are under way, the thread polls them, and does nothing else that could make it wait.
void copier::run(copying_thread& self) {
  ::prctl(PR_SET_NAME, "gpufs-copy");
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns: else a nap of 2 us takes 50
  core_.machine.stay_current();
  std::size_t oldest = 0;
  for (;;) {
    batch& first = self.batches[oldest];
    batch& second = self.batches[1 - oldest];
    if (!first.is_under_way()) {
      if (!wait_for_work()) return;
      begin(first);
      continue;
    }
    if (!second.is_under_way() && nasked_.load(std::memory_order_relaxed) != 0) begin(second);
    if (has_ended(first)) {
      finish(first, *self.counts);
      oldest = 1 - oldest;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(2));
    }
  }
}

// Waits for work. False: there is none, and there will be none.
bool copier::wait_for_work() {
  constexpr std::uint64_t awake_ns = 200'000;  // so that a kernel that reads page after page does not wake a thread for each
  for (const std::uint64_t until = clock_ns() + awake_ns; clock_ns() < until;) {
    if (nasked_.load(std::memory_order_relaxed) != 0) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(2));
  }
  std::unique_lock hold(lock_);
  ++nsleeping_;
  wake_.wait(hold, [this] { return end_ || !asked_.empty(); });
  --nsleeping_;
  return !asked_.empty();
}

void copier::begin(batch& next) {
  {
    const std::scoped_lock hold(lock_);
    const auto end = asked_.begin() + static_cast<std::ptrdiff_t>(std::min(asked_.size(), most));
    std::move(asked_.begin(), end, std::back_inserter(next.works));
    asked_.erase(asked_.begin(), end);
    nasked_.store(asked_.size(), std::memory_order_relaxed);
  }
  for (const work& w : next.works) {
    std::byte* const frame = core_.frames.begin + std::size_t{w.skip} * core_.frames.nbytes;
    next.copies.push_back({frame, w.file->file->info().pull_base + w.offset, w.nbytes});
  }
  try {
    if (!next.engine) next.engine = core_.machine.make_copy_batch();
    next.engine->begin(next.copies);
  } catch (const std::exception& e) {
    give_up(next, e.what());
  }
}

bool copier::has_ended(batch& oldest) {
  try {
    return oldest.engine->has_ended();
  } catch (const std::exception& e) {
    give_up(oldest, e.what());
    return true;
  }
}

// The engine fails: the device is lost, or the driver has no memory. Host threads read the pages instead.
void copier::give_up(batch& broken, const char* why) {
  core_.log.add("service", "", EIO, std::string("pages could not be copied to the device's cache: ") + why);
  broken.engine.reset();  // waits for its copies: then nothing writes to the frames any more
  core_.ncopying.fetch_sub(broken.works.size(), std::memory_order_relaxed);
  for (work& w : broken.works) {
    w.flags &= ~read_to_frame;
    pass_on(std::move(w));
  }
  broken.works.clear();
  broken.copies.clear();
}

void copier::pass_on(work&& w) { core_.all_workers().front()->push_slow(std::move(w)); }

// Does the part of worker::finish that takes no time; a worker does the rest. The watch asks a remote file's server whether the
// file has changed, as it does for files that kernels pull.
void copier::finish(batch& ended, tally& counts) {
  core_.ncopying.fetch_sub(ended.works.size(), std::memory_order_relaxed);
  for (std::size_t first = 0, end = 0; first < ended.works.size(); first = end) {
    open_files::entry& from = *ended.works[first].file;
    while (end < ended.works.size() && ended.works[end].file == &from) ++end;
    const bool is_remote = from.remote.load(std::memory_order_relaxed);
    // Meets end_version's release: bytes that a writer of this mount has written come after that.
    const bool is_good = !from.has_ended() && (is_remote || from.file->check_version() == 0);
    for (std::size_t i = first; i < end; ++i) {
      work w = std::move(ended.works[i]);
      if (ended.copies[i].failed || !is_good) {
        if (ended.copies[i].failed) w.flags &= ~read_to_frame;
        w.read = !ended.copies[i].failed;
        pass_on(std::move(w));
        continue;
      }
      tally::add(counts.copies);
      reply out{};
      out.result = w.nbytes;
      out.number = 1;
      core_.answer(counts, w.index, w.sequence, out);
      // A worker closes a file that closes slowly.
      if (!w.hold.reset_unless_last() && from.closes_slowly()) {
        w.op = opcode::none;
        pass_on(std::move(w));
      }
    }
  }
  ended.works.clear();
  ended.copies.clear();
}

}  // namespace gpufs::service
