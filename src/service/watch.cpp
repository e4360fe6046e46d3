// SPDX-License-Identifier: Apache-2.0
#include "watch.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "clock.hpp"
#include "worker.hpp"  // core destroys workers

namespace gpufs::service {

void watch::start() {
  const std::scoped_lock hold(lock_);
  add_looker();
}

void watch::end() {
  {
    const std::scoped_lock hold(lock_);
    end_ = true;
  }
  wake_.notify_all();
  for (const auto& one : lookers_) {  // no other thread changes them any more
    if (one->thread.joinable()) one->thread.join();
  }
}

void watch::look_soon(open_files::entry& file) noexcept {
  if (file.awaits_look.exchange(true, std::memory_order_relaxed)) return;
  {
    const std::scoped_lock hold(lock_);
    try {
      soon_.push_back(core_.open.handle_of(file));
    } catch (const std::bad_alloc&) {  // the next tick looks at the file, too
      return;
    }
  }
  wake_.notify_all();
}

void watch::look_for_hung() {
  const std::scoped_lock hold(lock_);
  if (lookers_.empty()) return;
  const bool hangs = core_.blocked.look_at(lookers_.back()->look, clock_ns());
  if (end_) return;
  std::erase_if(lookers_, [](const std::unique_ptr<looker>& one) {
    if (!one->ended.load(std::memory_order_acquire)) return false;  // meets run()'s release
    one->thread.join();
    return true;
  });
  if (!hangs || !core_.blocked.may_hang(blocking_kind::looks)) return;
  try {
    add_looker();
  } catch (const std::exception& e) {  // the guard tries again soon
    core_.log.add("service", "", 0, std::string("no thread can be started in place of one that hangs: ") + e.what());
  }
}

// Starts a thread, which waits for the lock. The caller holds the lock.
void watch::add_looker() {
  lookers_.push_back(std::make_unique<looker>());
  try {
    lookers_.back()->thread = std::thread([this, self = lookers_.back().get()] { run(*self); });
  } catch (...) {
    lookers_.pop_back();
    throw;
  }
}

void watch::run(looker& self) {
  ::prctl(PR_SET_NAME, "gpufs-watch");
  core_.machine.stay_current();
  constexpr std::size_t most = 1000;
  constexpr std::uint64_t budget_ns = 200'000;  // a tick; 0.2 % of a core at ten a second
  std::vector<std::uint32_t> handles;
  std::unique_lock hold(lock_);
  const auto over = [&] { return end_ || lookers_.back().get() != &self; };
  auto next = std::chrono::steady_clock::now() + core_.options.watch_interval;
  for (;;) {
    wake_.wait_until(hold, next, [&] { return over() || !soon_.empty(); });
    if (over()) break;
    const bool soon = !soon_.empty();
    const std::size_t first = cursor_;
    if (soon) {
      handles = std::exchange(soon_, {});
    } else {
      next = std::chrono::steady_clock::now() + core_.options.watch_interval;
      if (core_.open.npull() == 0) continue;
      handles = core_.open.pull_handles(most, &cursor_);
    }
    hold.unlock();
    std::uint64_t now = clock_ns();
    const std::uint64_t until = now + budget_ns;
    std::size_t n = 0;
    for (bool goes_on = true; goes_on && n < handles.size();) {
      goes_on = look_at(self, handles[n++], now);
      goes_on &= (now = clock_ns()) <= until;
    }
    hold.lock();
    if (!soon && n < handles.size() && !over()) cursor_ = first + n;  // wraps in pull_handles; ticks look at files of soon_, too
  }
  hold.unlock();
  self.ended.store(true, std::memory_order_release);  // meets look_for_hung()'s acquire
}

// Looks at one file. Returns whether the look did not hang.
bool watch::look_at(looker& self, std::uint32_t handle, std::uint64_t now_ns) {
  open_files::ref file = core_.open.acquire(handle);
  if (!file || file->stale.load(std::memory_order_relaxed) || file->nhung_calls.load(std::memory_order_relaxed) != 0) return true;
  self.look.kind = blocking_kind::looks;
  self.look.file = file.get();
  self.look.operation = "look at the version";
  blocked_calls::enter(self.look, now_ns);
  // If the look fails otherwise (no descriptor is left), a later look tries again.
  if (file->file->check_version() == -ESTALE && core_.end_version_later(*file.get())) {
    core_.log.add("watch", file->path, ESTALE, "the file has changed since it was opened");
  } else if (file->file->info().kind == source_kind::windows) {
    core_.tell_windows(*file.get());
  }
  file.reset();  // may close it, which may block
  return core_.blocked.leave(self.look);
}

}  // namespace gpufs::service
