// SPDX-License-Identifier: Apache-2.0
// Work of Python modules beside others that run Python, also when the interpreter ends. Included by one source of each module.
#pragma once
#include <Python.h>
#include <unistd.h>

#include <stdexcept>

namespace gpufs::python {

// Makes a call of Python that may ask for its lock, and throws nothing. Where the interpreter ends meanwhile, the thread stays in
// here: Python ends a thread that asks for its lock then by unwinding it (pthread_exit), which nanobind's functions do not let
// pass.
template <class Call>
auto or_stay(const Call& call) {
  try {
    return call();
  } catch (...) {
    for (;;) ::pause();
  }
}

// Others may run Python while it lives.
class unlocked {
 public:
  unlocked() : outer_(innermost_), state_(PyEval_SaveThread()) { innermost_ = this; }
  ~unlocked() {
    or_stay([this] { PyEval_RestoreThread(state_); });
    innermost_ = outer_;
  }
  unlocked(const unlocked&) = delete;
  unlocked& operator=(const unlocked&) = delete;

 private:
  friend class locked;
  static inline thread_local unlocked* innermost_ = nullptr;

  unlocked* outer_;
  PyThreadState* state_;
};

// Meanwhile its thread, which is unlocked, may run Python. (nanobind's gil_scoped_acquire would look for the thread's state, which
// an interpreter that has ended knows no more, and crash.)
class locked {
 public:
  locked() : of_(unlocked::innermost_) {
    if (of_ == nullptr) throw std::logic_error("a thread calls Python for another one");
    or_stay([this] { PyEval_RestoreThread(of_->state_); });
  }
  ~locked() { of_->state_ = PyEval_SaveThread(); }
  locked(const locked&) = delete;
  locked& operator=(const locked&) = delete;

 private:
  unlocked* of_;
};

}  // namespace gpufs::python
