// SPDX-License-Identifier: Apache-2.0
// What a[i] of an array that may be written is: reads when it is converted, writes when it is assigned to.
#pragma once
#include "gpufs/pointer/detail/record.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

template <class T>
class array;

template <class T>
class array_element {
 public:
  GPUFS_DEVICE_IN_TEMPLATES operator T() const { return of_.value(i_); }
  GPUFS_DEVICE_IN_TEMPLATES const array_element& operator=(const T& value) const {
    of_.set(i_, value);
    return *this;
  }
  // If reading the other element fails, nothing is written, and this file's next fsync or close tells of it (but of an index that
  // is out of range the mount alone).
  GPUFS_DEVICE_IN_TEMPLATES const array_element& operator=(const array_element& other) const {
    T value;
    return set_unless(other.of_.get(other.i_, value), value);
  }
  GPUFS_DEVICE const array_element& operator+=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now + value); });
  }
  GPUFS_DEVICE const array_element& operator-=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now - value); });
  }
  GPUFS_DEVICE const array_element& operator*=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now * value); });
  }
  GPUFS_DEVICE const array_element& operator/=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now / value); });
  }

 private:
  friend class array<T>;
  GPUFS_DEVICE array_element(const array<T>& of, std::int64_t i) : of_(of), i_(i) {}
  GPUFS_DEVICE const array_element& set_unless(int error, const T& value) const {
    if (error == 0) [[likely]] {
      of_.set(i_, value);
    } else {  // of another file it is that one's number that is bad
      simt::call_cold(&detail::keep_write_error, of_.mapped(), error == -EBADF ? -EIO : error);
    }
    return *this;
  }
  template <class Do>
  GPUFS_DEVICE const array_element& change(Do what) const {
    T value;
    const int error = of_.get(i_, value);
    return set_unless(error, error == 0 ? what(value) : value);
  }

  array<T> of_;
  std::int64_t i_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
