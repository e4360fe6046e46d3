// SPDX-License-Identifier: Apache-2.0
#include "apps/helper_threads.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <system_error>
#include <utility>

namespace gpufs::apps {

helper_threads& helper_threads::of_process() {
  static helper_threads& all = *new helper_threads;
  return all;
}

helper_threads::helper_threads() {
  pthread_atfork([] { of_process().end_before_fork(); }, [] { of_process().go_on_after_fork(false); },
                 [] { of_process().go_on_after_fork(true); });
}

void helper_threads::spread(std::size_t n, function work, const void* of) {
  if (n == 0) return work(of);
  job mine{work, of, n, 0, {}};
  {
    const std::lock_guard lock(mutex_);
    if (!ending_) start(n);
    jobs_.push_back(&mine);
    wake();
  }
  work(of);
  std::unique_lock lock(mutex_);
  if (mine.wanted != 0) std::erase(jobs_, &mine);
  mine.done.wait(lock, [&] { return mine.running == 0; });
}

std::size_t helper_threads::count() {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

// So that there are n. Signals are for the program's threads, but those that a thread's own access raises.
void helper_threads::start(std::size_t n) {
  if (threads_.size() >= n) return;
  sigset_t others, before;
  sigfillset(&others);
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&others, own);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  try {
    while (threads_.size() < n) threads_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {  // the others do
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void helper_threads::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    job& next = *jobs_.front();
    ++next.running;
    if (--next.wanted == 0) jobs_.pop_front();
    if (!jobs_.empty()) wake();
    lock.unlock();
    next.work(next.of);
    lock.lock();
    if (--next.running == 0) next.done.notify_one();  // under the lock: its owner ends it then
  }
}

// Each who wakes up wakes two others, while helpers are wanted. Under the lock: a child of fork() would have the variable as a
// thread left it that was waking others.
void helper_threads::wake() {
  changed_.notify_one();
  changed_.notify_one();
}

void helper_threads::end_before_fork() {
  fork_mutex_.lock();
  std::vector<std::thread> last;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    last = std::exchange(threads_, {});
    changed_.notify_all();
  }
  for (std::thread& thread : last) thread.join();
  mutex_.lock();
  ending_ = false;
}

void helper_threads::go_on_after_fork(bool in_child) {
  if (in_child) jobs_.clear();  // of threads that the child has not
  mutex_.unlock();
  fork_mutex_.unlock();
}

}  // namespace gpufs::apps
