// SPDX-License-Identifier: Apache-2.0
// Memory for device tests: an array that kernels reach and the host copies in and out.
#pragma once
#include <cstddef>
#include <type_traits>
#include <vector>

#include "gpufs/simt/platform.hpp"

namespace gpufs::simt::test {
inline namespace GPUFS_MACHINE {

#if defined(__SANITIZE_THREAD__)
inline constexpr unsigned effort = 1;  // ThreadSanitizer makes a switch a hundred times slower
#else
inline constexpr unsigned effort = 20;
#endif

template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit device_array(std::size_t count)
      : count_(count), data_(static_cast<T*>(this_platform().allocate_device(count * sizeof(T)))) {
    this_platform().zero_device(data_, count * sizeof(T));
  }
  explicit device_array(const std::vector<T>& values) : device_array(values.size()) {
    this_platform().copy_to_device(data_, values.data(), count_ * sizeof(T));
  }
  ~device_array() { this_platform().deallocate_device(data_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    this_platform().copy_from_device(out.data(), data_, count_ * sizeof(T));
    return out;
  }
  T value(std::size_t i = 0) const {
    T out;
    this_platform().copy_from_device(&out, data_ + i, sizeof(T));
    return out;
  }

 private:
  std::size_t count_;
  T* data_;
};

// The same in pinned host memory, which both sides address alike.
template <class T>
class pinned_array {
 public:
  explicit pinned_array(std::size_t count) : data_(static_cast<T*>(this_platform().allocate_pinned(count * sizeof(T)))) {}
  ~pinned_array() { this_platform().deallocate_pinned(data_); }
  pinned_array(const pinned_array&) = delete;
  pinned_array& operator=(const pinned_array&) = delete;
  T* get() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_;
};

// Test data that looks like nothing in particular.
GPUFS_HOST_DEVICE std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt::test
