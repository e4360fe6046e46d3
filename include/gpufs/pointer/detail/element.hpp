// SPDX-License-Identifier: Apache-2.0
// Elements of files as kernels write them: what a pointer that writes gives for *p.
#pragma once
#include "gpufs/pointer/detail/access.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

template <class T, class Access = plain_access>
class ptr;

// What *p and p[i] of a writable pointer are: reads when converted, writes when assigned to. Lives no longer than its pointer.
template <class T, class Access>
class element {
 public:
  GPUFS_DEVICE_IN_TEMPLATES operator T() const { return owner_.read(distance_); }
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const T& value) const {
    owner_.write(distance_, value);
    return *this;
  }
  // If reading the element fails, nothing is written, and the failure is told as that of a write.
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const element& other) const {
    T value{};
    const int error = other.owner_.try_read(other.distance_, value);
    owner_.write_unless(error == 0 ? 0 : other.why_not_read(error), distance_, value);
    owner_.keep(error);
    return *this;
  }
  GPUFS_DEVICE const element& operator+=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now + value); });
  }
  GPUFS_DEVICE const element& operator-=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now - value); });
  }
  GPUFS_DEVICE const element& operator*=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now * value); });
  }
  GPUFS_DEVICE const element& operator/=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now / value); });
  }

 private:
  friend class ptr<T, Access>;
  GPUFS_DEVICE element(const ptr<T, Access>& owner, std::uint64_t distance) : owner_(owner), distance_(distance) {}
  // The error of a failed read, as the file that would have been written is to report it: -ENXIO only where this pointer was out of
  // its bounds; -EIO where its file has lost the page.
  GPUFS_DEVICE int why_not_read(int error) const {
    if (!owner_) return -ENXIO;
    return error == -ENXIO && owner_.within().have(owner_.position() + distance_, sizeof(T)) ? -EIO : error;
  }
  template <class Do>
  GPUFS_DEVICE const element& change(Do what) const {
    T value{};
    const int error = owner_.try_read(distance_, value);
    owner_.write_unless(error, distance_, error == 0 ? what(value) : value);
    return *this;
  }

  const ptr<T, Access>& owner_;
  std::uint64_t distance_;  // bytes from where the owner points
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
