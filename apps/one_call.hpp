// SPDX-License-Identifier: Apache-2.0
// Calls of threads of Python, which take turns. Host code.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "gpufs/mount.hpp"

namespace gpufs::apps {

// An engine takes one call at a time. It is locked when the interpreter's lock is not held, which progress() needs meanwhile; a
// progress() that calls the same object would wait for itself, and is told so.
class one_call {
 public:
  class taken {
   public:
    taken(one_call& of, const char* what) : of_(of) {
      if (of.caller_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        throw gpufs::error(std::string(what) + " is called by its own progress function: let that return first");
      of.lock_.lock();
      of.caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~taken() {
      of_.caller_.store({}, std::memory_order_relaxed);
      of_.lock_.unlock();
    }
    taken(const taken&) = delete;
    taken& operator=(const taken&) = delete;

   private:
    one_call& of_;
  };

 private:
  std::mutex lock_;
  std::atomic<std::thread::id> caller_{};  // only a thread itself stores its own number
};

}  // namespace gpufs::apps
