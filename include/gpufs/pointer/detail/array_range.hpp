// SPDX-License-Identifier: Apache-2.0
// Loops over arrays: `for (const T x : a.every(stride, first))`. The iterator is a pointer that reads, with a count.
#pragma once
#include "gpufs/pointer/ptr.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

struct array_end {};

// Of one lane. A copy is not linked, so it goes by reference or is moved, as a range loop does.
template <class T>
class array_iterator {
 public:
  using value_type = T;
  using difference_type = std::ptrdiff_t;

  GPUFS_DEVICE array_iterator(ptr<const T> first, std::int64_t stride, std::int64_t count)
      : at_(std::move(first)), stride_(stride), left_(count) {}
  GPUFS_DEVICE T operator*() const { return *at_; }
  GPUFS_DEVICE array_iterator& operator++() {
    at_ += stride_;
    --left_;
    return *this;
  }
  // 0, or why the first element could not be had that was not: the loop goes on with zeros.
  GPUFS_DEVICE int error() const { return at_.error(); }
  GPUFS_DEVICE friend bool operator==(const array_iterator& it, array_end) { return it.left_ == 0; }

 private:
  ptr<const T> at_;
  std::int64_t stride_, left_;
};

template <class T>
class array_range {
 public:
  GPUFS_DEVICE array_range(ptr<const T> first, std::int64_t stride, std::int64_t count)
      : first_(std::move(first)), stride_(stride), count_(count) {}
  GPUFS_DEVICE array_iterator<T> begin() const { return {first_, stride_, count_}; }
  GPUFS_DEVICE array_end end() const { return {}; }
  GPUFS_DEVICE std::int64_t size() const { return count_; }

 private:
  ptr<const T> first_;  // never linked: begin() gives copies
  std::int64_t stride_, count_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
