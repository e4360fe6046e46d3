// SPDX-License-Identifier: Apache-2.0
// Owners of memory that kernels reach, for host code.
#pragma once
#include <cstddef>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpufs/simt/platform.hpp"
#include "gpufs/simt/stream.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

namespace detail {

// The memory of n elements; an owner that was moved from is empty. Freeing waits for running kernels.
template <class T, void* (platform::*Allocate)(std::size_t), void (platform::*Deallocate)(void*) noexcept>
class owned_elements {
  static_assert(std::is_trivially_copyable_v<T>, "kernels and host exchange bytes");
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no bytes to copy; use char");

 public:
  owned_elements(owned_elements&& from) noexcept
      : machine_(from.machine_), n_(std::exchange(from.n_, 0)), data_(std::exchange(from.data_, nullptr)) {}
  owned_elements& operator=(owned_elements&& from) noexcept {
    std::swap(machine_, from.machine_);
    std::swap(n_, from.n_);
    std::swap(data_, from.data_);
    return *this;
  }

  std::size_t size() const { return n_; }
  platform& device() const { return *machine_; }

 protected:
  owned_elements(std::size_t n, platform& machine) : machine_(&machine), n_(n) {
    if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    data_ = static_cast<T*>((machine.*Allocate)((n == 0 ? 1 : n) * sizeof(T)));
  }
  ~owned_elements() {
    if (data_ != nullptr) (machine_->*Deallocate)(data_);
  }

  platform* machine_;
  std::size_t n_;
  T* data_ = nullptr;
};

}  // namespace detail

// n elements in the memory of a device, by default of the current one; zeroed, or a copy of the host's values. Host code reads and
// writes copies, at any time; a kernel that runs may change the elements meanwhile, as platform::copy_from_device says. Throws as
// the platform does, and std::out_of_range.
template <class T>
class device_array : public detail::owned_elements<T, &platform::allocate_device, &platform::deallocate_device> {
  using base = detail::owned_elements<T, &platform::allocate_device, &platform::deallocate_device>;

 public:
  explicit device_array(std::size_t n, platform& machine = this_platform()) : base(n, machine) {
    if (n != 0) machine.zero_device(get(), n * sizeof(T));
  }
  explicit device_array(std::span<const T> values, platform& machine = this_platform()) : base(values.size(), machine) {
    write(values);
  }

  T* get() const { return this->data_; }  // for kernels; host code cannot follow it

  std::vector<T> read() const {
    std::vector<T> values(this->n_);
    if (this->n_ != 0) this->machine_->copy_from_device(values.data(), get(), this->n_ * sizeof(T));
    return values;
  }
  T read_one(std::size_t i = 0) const {
    if (i >= this->n_) throw std::out_of_range("gpufs::simt::device_array::read_one: there are fewer elements");
    T value;
    this->machine_->copy_from_device(&value, get() + i, sizeof(T));
    return value;
  }
  // Writes the first values.size() elements.
  void write(std::span<const T> values) const {
    check(values.size(), "write");
    if (!values.empty()) this->machine_->copy_to_device(get(), values.data(), values.size_bytes());
  }
  // The same, and a read of the first values.size() elements, in a stream of the array's device, after the stream's earlier work:
  // see there.
  void write(std::span<const T> values, const stream& on) const {
    check(values.size(), "write");
    if (!values.empty()) on.copy_to_device(get(), values.data(), values.size_bytes());
  }
  void read(std::span<T> values, const stream& on) const {
    check(values.size(), "read");
    if (!values.empty()) on.copy_from_device(values.data(), get(), values.size_bytes());
  }
  void write_one(const T& value, std::size_t i = 0) const {
    if (i >= this->n_) throw std::out_of_range("gpufs::simt::device_array::write_one: there are fewer elements");
    this->machine_->copy_to_device(get() + i, &value, sizeof(T));
  }

 private:
  void check(std::size_t n, const char* call) const {
    if (n > this->n_) throw std::out_of_range(std::string("gpufs::simt::device_array::") + call + ": there are fewer elements");
  }
};

// A string for kernels, such as a path: a copy with a NUL at its end.
inline device_array<char> device_string(std::string_view text, platform& machine = this_platform()) {
  device_array<char> copy(text.size() + 1, machine);
  copy.write(text);
  return copy;
}

// n zeroed elements in pinned host memory, at the same address for host and kernels. While a kernel runs, host and kernel share
// only words that they access by simt::atomic_ref of system scope, and bytes that the copies of platform move.
template <class T>
class pinned_array : public detail::owned_elements<T, &platform::allocate_pinned, &platform::deallocate_pinned> {
  using base = detail::owned_elements<T, &platform::allocate_pinned, &platform::deallocate_pinned>;

 public:
  explicit pinned_array(std::size_t n, platform& machine = this_platform()) : base(n, machine) {}

  T* get() const { return this->data_; }
  std::span<T> span() const { return {this->data_, this->n_}; }
  T& operator[](std::size_t i) const { return this->data_[i]; }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
