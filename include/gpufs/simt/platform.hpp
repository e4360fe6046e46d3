// SPDX-License-Identifier: Apache-2.0
// The memory of a machine, for host code.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {

// Members may be called from several host threads, and while kernels run, unless said otherwise. Copies are synchronous.
// Failures throw std::bad_alloc (allocations, with the reason in what()) or std::runtime_error, and name the CUDA error.
class platform {
 public:
  virtual ~platform() = default;
  platform(const platform&) = delete;
  platform& operator=(const platform&) = delete;

  // Memory that kernels reach, aligned to 256 bytes or more; not initialised. deallocate_device waits for running kernels.
  virtual void* allocate_device(std::size_t nbytes) = 0;
  virtual void deallocate_device(void* ptr) noexcept = 0;
  // Host memory that kernels reach at the same address, aligned to a page; zeroed. deallocate_pinned waits like
  // deallocate_device.
  virtual void* allocate_pinned(std::size_t nbytes) = 0;
  virtual void deallocate_pinned(void* ptr) noexcept = 0;

  // Makes the host range (whole pages) readable by kernels until unregister(ptr); the device's address of it, or nullptr with
  // the reason in *why (which may be nullptr).
  virtual const void* register_readonly(const void* ptr, std::size_t nbytes, std::string* why) = 0;
  // The same, and kernels may write it. Of a mapped file with holes it allocates what is missing.
  virtual void* register_writable(void* ptr, std::size_t nbytes, std::string* why) = 0;
  // Whether kernels see what is registered where the host does.
  virtual bool registers_in_place() const = 0;
  // `ptr` is what one of them was given. Waits until running kernels have ended: never call it to serve one.
  virtual void unregister(const void* ptr) noexcept = 0;

  // Kernels may run meanwhile, and use the same bytes: aligned words of 4 and 8 bytes move whole, and the CPU machine moves them
  // in the order of their addresses.
  virtual void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) = 0;
  virtual void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) = 0;
  virtual void zero_device(void* device_dst, std::size_t nbytes) = 0;

  virtual std::string_view name() const = 0;  // "cpu" or "cuda"
  virtual bool is_cuda() const = 0;
  virtual std::size_t memory_nbytes() const = 0;  // of the device, all of it
  // What `gpufs doctor` prints: lines of "key: value", each ended by a newline.
  virtual std::string describe() const = 0;

 protected:
  platform() = default;
};

platform& cpu_platform();
// The device that was current when this was first called, or nullptr (then cuda_unavailable_reason() says why). In library
// gpufs_cuda.
platform* cuda_platform();
std::string cuda_unavailable_reason();

namespace runtime {
platform& require_cuda_platform();
}

inline namespace GPUFS_MACHINE {

// The platform of the machine that this translation unit is compiled for. Throws std::runtime_error without a CUDA device.
inline platform& this_platform() {
#if GPUFS_ON_CUDA
  return simt::runtime::require_cuda_platform();
#else
  return cpu_platform();
#endif
}

}  // namespace GPUFS_MACHINE

}  // namespace gpufs::simt
