// SPDX-License-Identifier: Apache-2.0
// A platform that does what another does, for tests and benches that change or watch a part of that.
#pragma once
#include <map>
#include <mutex>

#include "gpufs/simt/platform.hpp"

namespace gpufs::test {

class forwarding_platform : public simt::platform {
 public:
  explicit forwarding_platform(simt::platform& real) : real_(real) {}

  void* allocate_device(std::size_t nbytes) override { return real_.allocate_device(nbytes); }
  void deallocate_device(void* ptr) noexcept override { real_.deallocate_device(ptr); }
  bool may_be_memory(const void* ptr, std::size_t nbytes) const override { return real_.may_be_memory(ptr, nbytes); }
  void* allocate_pinned(std::size_t nbytes) override { return real_.allocate_pinned(nbytes); }
  void deallocate_pinned(void* ptr) noexcept override { real_.deallocate_pinned(ptr); }
  const void* register_readonly(const void* ptr, std::size_t nbytes, std::string* why) override {
    return real_.register_readonly(ptr, nbytes, why);
  }
  void* register_writable(void* ptr, std::size_t nbytes, std::string* why) override {
    return real_.register_writable(ptr, nbytes, why);
  }
  bool registers_in_place() const override { return real_.registers_in_place(); }
  void unregister(const void* ptr) noexcept override { real_.unregister(ptr); }
  void copy_to_device(void* dst, const void* src, std::size_t nbytes) override { real_.copy_to_device(dst, src, nbytes); }
  void copy_from_device(void* dst, const void* src, std::size_t nbytes) override { real_.copy_from_device(dst, src, nbytes); }
  void zero_device(void* dst, std::size_t nbytes) override { real_.zero_device(dst, nbytes); }
  std::size_t reachable_nbytes(const void* ptr, std::size_t nbytes) override { return real_.reachable_nbytes(ptr, nbytes); }
  std::unique_ptr<simt::copy_batch> make_copy_batch() override { return real_.make_copy_batch(); }
  bool is_idle() const override { return real_.is_idle(); }
  std::string_view name() const override { return real_.name(); }
  bool is_cuda() const override { return real_.is_cuda(); }
  int index() const override { return real_.index(); }
  std::size_t memory_nbytes() const override { return real_.memory_nbytes(); }
  std::size_t free_nbytes() const override { return real_.free_nbytes(); }
  std::string describe() const override { return real_.describe(); }
  int exchange_current(int index) noexcept override { return real_.exchange_current(index); }
  void stay_current() noexcept override { real_.stay_current(); }

 protected:
  simt::platform& real_;
};

// Adds up the device's memory.
class measured_platform : public forwarding_platform {
 public:
  using forwarding_platform::forwarding_platform;

  void* allocate_device(std::size_t nbytes) override {
    void* const ptr = real_.allocate_device(nbytes);
    const std::scoped_lock hold(lock_);
    sizes_[ptr] = nbytes;
    in_use_ += nbytes;
    return ptr;
  }
  void deallocate_device(void* ptr) noexcept override {
    {
      const std::scoped_lock hold(lock_);
      in_use_ -= sizes_[ptr];
      sizes_.erase(ptr);
    }
    real_.deallocate_device(ptr);
  }
  // What the CPU machine's large pieces are made of is zeros already.
  void zero_device(void* dst, std::size_t nbytes) override {
    if (is_cuda() || nbytes < std::size_t{64} << 20) real_.zero_device(dst, nbytes);
  }

  std::size_t in_use() const {
    const std::scoped_lock hold(lock_);
    return in_use_;
  }
  std::size_t npieces() const {
    const std::scoped_lock hold(lock_);
    return sizes_.size();
  }

 private:
  mutable std::mutex lock_;
  std::map<void*, std::size_t> sizes_;
  std::size_t in_use_ = 0;
};

}  // namespace gpufs::test
