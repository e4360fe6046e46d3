// SPDX-License-Identifier: Apache-2.0
// A switch that the library has for its tests (service/for_tests.hpp, store/beneath.hpp), set for as long as this lives.
#pragma once
#include <atomic>

namespace gpufs::test {

template <class Value>
class set_meanwhile {
 public:
  set_meanwhile(std::atomic<Value>& what, Value value) : what_(what), before_(what.exchange(value)) {}
  ~set_meanwhile() { what_ = before_; }
  set_meanwhile(const set_meanwhile&) = delete;
  set_meanwhile& operator=(const set_meanwhile&) = delete;

 private:
  std::atomic<Value>& what_;
  const Value before_;
};

}  // namespace gpufs::test
