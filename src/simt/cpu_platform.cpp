// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <type_traits>

#include "gpufs/simt/platform.hpp"

namespace gpufs::simt {
namespace {

constexpr std::size_t alignment = 4096;

// Calls copy(i, std::type_identity<Word>) for each word of the `nbytes` at `device`: the largest that is aligned and fits.
template <class Copy>
void each_word(const void* device, std::size_t nbytes, Copy copy) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  for (std::size_t i = 0; i < nbytes;) {
    const auto fits = [&](std::size_t word) { return (address + i) % word == 0 && nbytes - i >= word; };
    if (fits(8)) {
      do copy(i, std::type_identity<std::uint64_t>()), i += 8;
      while (nbytes - i >= 8);
    } else if (fits(4)) {
      copy(i, std::type_identity<std::uint32_t>()), i += 4;
    } else {
      copy(i, std::type_identity<std::uint8_t>()), i += 1;
    }
  }
}

class cpu_memory final : public platform {
 public:
  void* allocate_device(std::size_t nbytes) override { return allocate(nbytes); }
  void deallocate_device(void* ptr) noexcept override { std::free(ptr); }
  void* allocate_pinned(std::size_t nbytes) override { return std::memset(allocate(nbytes), 0, nbytes); }
  void deallocate_pinned(void* ptr) noexcept override { std::free(ptr); }

  const void* register_readonly(const void* ptr, std::size_t, std::string*) override { return ptr; }
  // The pages are there from now on, as on a GPU.
  void* register_writable(void* ptr, std::size_t nbytes, std::string* why) override {
    if (::madvise(ptr, nbytes, MADV_POPULATE_WRITE) == 0) return ptr;
    if (why != nullptr) *why = std::string("madvise: ") + std::strerror(errno);
    return nullptr;
  }
  bool registers_in_place() const override { return true; }
  void unregister(const void*) noexcept override {}

  // Kernels may be at work on the same words.
  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) override {
    each_word(device_dst, nbytes, [&]<class Word>(std::size_t i, std::type_identity<Word>) {
      Word word;
      std::memcpy(&word, static_cast<const std::byte*>(src) + i, sizeof word);
      std::atomic_ref(*reinterpret_cast<Word*>(static_cast<std::byte*>(device_dst) + i)).store(word, std::memory_order_relaxed);
    });
  }
  // The acquire meets the releases of the kernels' words.
  void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) override {
    auto* from = static_cast<std::byte*>(const_cast<void*>(device_src));
    each_word(device_src, nbytes, [&]<class Word>(std::size_t i, std::type_identity<Word>) {
      const Word word = std::atomic_ref(*reinterpret_cast<Word*>(from + i)).load(std::memory_order_acquire);
      std::memcpy(static_cast<std::byte*>(dst) + i, &word, sizeof word);
    });
  }
  void zero_device(void* device_dst, std::size_t nbytes) override {
    if (nbytes != 0) std::memset(device_dst, 0, nbytes);
  }

  std::string_view name() const override { return "cpu"; }
  bool is_cuda() const override { return false; }
  std::size_t memory_nbytes() const override {
    return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }
  std::string describe() const override {
    return "machine: cpu (every GPU thread is a fiber)\nos threads: " +
           std::to_string(std::max(1u, std::thread::hardware_concurrency())) +
           "\nmemory: " + std::to_string(memory_nbytes() >> 20) + " MiB\n";
  }

 private:
  void* allocate(std::size_t nbytes) const {
    const std::size_t rounded = (std::max<std::size_t>(nbytes, 1) + alignment - 1) & ~(alignment - 1);
    void* p = nbytes > memory_nbytes() ? nullptr : std::aligned_alloc(alignment, rounded);
    if (p == nullptr) throw std::bad_alloc();
    return p;
  }
};

}  // namespace

platform& cpu_platform() {
  static cpu_memory* memory = new cpu_memory;  // outlives all static objects
  return *memory;
}

}  // namespace gpufs::simt
