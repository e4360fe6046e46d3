// SPDX-License-Identifier: Apache-2.0
// The owner of many pieces of device memory that go together, for host code that lays out the memory of kernels.
#pragma once
#include <cstddef>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "gpufs/simt/platform.hpp"

namespace gpufs::simt {

// Pieces of device memory that are freed together. For structs of pointers that kernels get: a device_array (device_array.hpp) for
// each pointer would name each twice. Throws as the platform does. Kernels that use a piece must have ended before the owner ends.
class device_memory {
 public:
  explicit device_memory(platform& machine) : machine_(machine) {}
  ~device_memory() {
    for (void* ptr : owned_) machine_.deallocate_device(ptr);
  }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  platform& machine() const { return machine_; }

  // n elements, zeroed.
  template <class T>
  T* allocate(std::size_t n) {
    T* ptr = allocate_uninitialised<T>(n);
    machine_.zero_device(ptr, n * sizeof(T));
    return ptr;
  }
  // A copy of the host's elements.
  template <class T>
  T* allocate(const std::vector<T>& initial) {
    T* ptr = allocate_uninitialised<T>(initial.size());
    write(ptr, std::span(initial));
    return ptr;
  }

  // Copies from and to pieces, at any time; a kernel that runs may change them meanwhile, as platform says.
  template <class T>
  std::vector<T> read(const T* device, std::size_t n) const {
    std::vector<T> out(n);
    machine_.copy_from_device(out.data(), device, n * sizeof(T));
    return out;
  }
  // The same; zeros if a kernel was stopped, and the device's memory is lost with it.
  template <class T>
  std::vector<T> read_or_zeros(const T* device, std::size_t n) const {
    try {
      return read(device, n);
    } catch (const std::exception&) {
      return std::vector<T>(n);
    }
  }
  template <class T>
  T read_one(const T* device) const {
    T out;
    machine_.copy_from_device(&out, device, sizeof out);
    return out;
  }
  template <class T>
  void write(T* device, std::span<const T> values) const {
    machine_.copy_to_device(device, values.data(), values.size_bytes());
  }
  template <class T>
  void write_one(T* device, const T& value) const {
    machine_.copy_to_device(device, &value, sizeof value);
  }
  template <class T>
  void zero(T* device, std::size_t n) const {
    machine_.zero_device(device, n * sizeof(T));
  }

 private:
  template <class T>
  T* allocate_uninitialised(std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>, "kernels and host exchange bytes");
    if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    owned_.reserve(owned_.size() + 1);
    void* ptr = machine_.allocate_device((n == 0 ? 1 : n) * sizeof(T));
    owned_.push_back(ptr);
    return static_cast<T*>(ptr);
  }

  platform& machine_;
  std::vector<void*> owned_;
};

}  // namespace gpufs::simt
