// SPDX-License-Identifier: Apache-2.0
// Pinned host memory that a controller reaches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpufs/nvme/controller_access.hpp"
#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs::nvme {

// So many zeroed bytes of pinned host memory, which begin a page: CUDA aligns it to 512 bytes only. (simt::pinned_array is another
// type in each machine's sources.)
class pinned_memory {
 public:
  pinned_memory(simt::platform& machine, std::size_t nbytes)
      : machine_(machine), nbytes_(nbytes), all_(machine.allocate_pinned(nbytes + bus_page_nbytes - 1)) {
    const auto begin = reinterpret_cast<std::uintptr_t>(all_);
    data_ = static_cast<std::byte*>(all_) + (bus_page_nbytes - begin % bus_page_nbytes) % bus_page_nbytes;
  }
  ~pinned_memory() { machine_.deallocate_pinned(all_); }
  pinned_memory(const pinned_memory&) = delete;
  pinned_memory& operator=(const pinned_memory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  simt::platform& machine_;
  std::size_t nbytes_;
  void* all_;
  std::byte* data_;
};

// Zeroed; whole pages. Unmapped at its end: the controller must have ended with it.
class dma_region {
 public:
  dma_region(controller_access& access, simt::platform& machine, std::size_t nbytes)
      : access_(access), memory_(machine, pages(nbytes) * bus_page_nbytes), known_(machine) {
    page_ = access.map(memory_.data(), memory_.nbytes());
    try {
      for_kernels_ = {memory_.data(), memory_.nbytes(), known_.allocate(page_)};
    } catch (...) {
      access_.unmap(memory_.data());
      throw;
    }
  }
  ~dma_region() { access_.unmap(memory_.data()); }
  dma_region(const dma_region&) = delete;
  dma_region& operator=(const dma_region&) = delete;

  std::byte* data() const { return memory_.data(); }
  std::size_t nbytes() const { return memory_.nbytes(); }
  // The address on the bus of the page that byte `offset` is in.
  std::uint64_t page_at(std::size_t offset) const { return page_[offset / bus_page_nbytes]; }
  std::size_t npages() const { return page_.size(); }
  // Whether the pages lie side by side on the bus.
  bool is_contiguous() const {
    for (std::size_t i = 1; i < page_.size(); ++i) {
      if (page_[i] != page_[0] + i * bus_page_nbytes) return false;
    }
    return true;
  }
  const dma_memory& layout() const { return for_kernels_; }

 private:
  static std::size_t pages(std::size_t nbytes) { return nbytes == 0 ? 1 : (nbytes + bus_page_nbytes - 1) / bus_page_nbytes; }

  controller_access& access_;
  pinned_memory memory_;
  simt::device_memory known_;
  std::vector<std::uint64_t> page_;
  dma_memory for_kernels_{};
};

}  // namespace gpufs::nvme
