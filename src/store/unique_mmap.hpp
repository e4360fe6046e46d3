// SPDX-License-Identifier: Apache-2.0
// A shared mapping of a file that unmaps itself.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace gpufs::store {

class unique_mmap {
 public:
  unique_mmap() = default;
  // If mmap(2) fails, get() is nullptr and errno says why.
  unique_mmap(int fd, std::size_t nbytes, bool writable, std::size_t begin = 0)
      : address_(::mmap(nullptr, nbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin))),
        nbytes_(nbytes) {
    if (address_ == MAP_FAILED) address_ = nullptr;
  }
  ~unique_mmap() { reset(); }
  unique_mmap(unique_mmap&& other) noexcept : address_(std::exchange(other.address_, nullptr)), nbytes_(other.nbytes_) {}
  unique_mmap& operator=(unique_mmap&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      nbytes_ = other.nbytes_;
    }
    return *this;
  }
  void* get() const { return address_; }
  void reset() {
    if (address_ != nullptr) ::munmap(address_, nbytes_);
    address_ = nullptr;
  }

 private:
  void* address_ = nullptr;
  std::size_t nbytes_ = 0;
};

}  // namespace gpufs::store
