// SPDX-License-Identifier: Apache-2.0
// Devices, and the memory of each, for host code. docs/design/devices.md says how code finds its device.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {

// One copy of a batch: from host memory that kernels reach (pinned, or registered) to this device's memory.
struct host_copy {
  void* to;
  const void* from;
  std::size_t nbytes;
  bool failed = false;  // CPU machine only: the source (a mapping of a file) is gone, or its disk fails; `to` contains anything
};

// Copies that the device's copy engine makes while kernels run, a batch at a time. One thread calls. CUDA may hold a batch back
// until running kernels have ended: see docs/guide/getting-started.md, "Kernels beside kernels".
class copy_batch {
 public:
  virtual ~copy_batch() = default;  // waits for the copies that were begun
  copy_batch(const copy_batch&) = delete;
  copy_batch& operator=(const copy_batch&) = delete;

  // Begins the copies, once the previous batch has ended; `copies` must stay until this batch has ended. Throws std::runtime_error.
  virtual void begin(std::span<host_copy> copies) = 0;
  // Whether the whole batch has ended: then the bytes are there for kernels that the host tells so. Throws std::runtime_error,
  // because a device may be lost.
  virtual bool has_ended() = 0;

 protected:
  copy_batch() = default;
};

// A device of a machine. Members may be called from several host threads, whichever device is current there, and while kernels run,
// unless said otherwise. Copies are synchronous. Failures throw std::bad_alloc (allocations, with the reason in what()) or
// std::runtime_error, and name the CUDA error; on the CPU machine std::invalid_argument for memory of another device.
class platform {
 public:
  virtual ~platform() = default;
  platform(const platform&) = delete;
  platform& operator=(const platform&) = delete;

  // Memory that kernels reach, aligned to 256 bytes or more; not initialised. deallocate_device waits for running kernels.
  virtual void* allocate_device(std::size_t nbytes) = 0;
  virtual void deallocate_device(void* ptr) noexcept = 0;
  // Whether these bytes, one at least, can be kernels' like those of allocate_device: on CUDA, whether the first and the last are
  // memory of this device, by whomever it was allocated; on the CPU machine, whether none is another device's.
  virtual bool may_be_memory(const void* ptr, std::size_t nbytes) const = 0;
  // Host memory that kernels of all devices reach at the same address, zeroed; aligned to 256 bytes at least, as CUDA gives small
  // pieces of a page. deallocate_pinned waits like deallocate_device.
  virtual void* allocate_pinned(std::size_t nbytes) = 0;
  virtual void deallocate_pinned(void* ptr) noexcept = 0;

  // Makes the host range (whole pages) readable by kernels until unregister(ptr). Returns the device's address of the range, or
  // nullptr with the reason in *why (which may be nullptr).
  virtual const void* register_readonly(const void* ptr, std::size_t nbytes, std::string* why) = 0;
  // The same, and kernels may write the range. In a mapped file with holes, it allocates the missing blocks.
  virtual void* register_writable(void* ptr, std::size_t nbytes, std::string* why) = 0;
  // Whether kernels see registered memory at the host's address.
  virtual bool registers_in_place() const = 0;
  // `ptr` is the address that was given to register_readonly or register_writable. Waits until running kernels have ended: never
  // call it to serve one.
  virtual void unregister(const void* ptr) noexcept = 0;

  // Kernels may run meanwhile, and use the same bytes: aligned words of 4 and 8 bytes move whole, and the CPU machine moves them
  // in the order of their addresses.
  virtual void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) = 0;
  virtual void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) = 0;
  virtual void zero_device(void* device_dst, std::size_t nbytes) = 0;

  // Of the nbytes from ptr on, how many kernels of this device reach before the first that they do not; what ptr names must not be
  // freed meanwhile. Of memory whose end nobody knows, all of them: on the CPU machine of what is no device's, on CUDA of the
  // host's pageable memory where the device reads that. None of nullptr. Takes some 0.3 us.
  virtual std::size_t reachable_nbytes(const void* ptr, std::size_t nbytes) = 0;

  // Each copy_batch has an order of its own: batches of two of them may be under way side by side. The device outlives it.
  virtual std::unique_ptr<copy_batch> make_copy_batch() = 0;

  // Whether nothing is under way of what this process has launched by simt::launch and on simt::streams, on any device of the
  // machine. Of other launches it knows nothing. Waits for nothing.
  virtual bool is_idle() const = 0;

  virtual std::string_view name() const = 0;  // "cpu" or "cuda"
  virtual bool is_cuda() const = 0;
  virtual int index() const = 0;                  // its number among the machine's devices
  virtual std::size_t memory_nbytes() const = 0;  // of the device: total
  virtual std::size_t free_nbytes() const = 0;    // of it, free now (CPU machine: not allocated as memory of this device)
  // What `gpufs doctor` prints: lines of "key: value", each ended by a newline.
  virtual std::string describe() const = 0;

  // Makes device `index` of its machine the calling thread's current one; returns the one before. Use on_device.
  virtual int exchange_current(int index) noexcept = 0;
  // Makes this device current for the rest of the calling thread's life. For threads of the library's own. On CUDA such a thread
  // may take memory and register files also while a thread of the program captures a graph.
  virtual void stay_current() noexcept { exchange_current(index()); }

 protected:
  platform() = default;
};

// While it lives, the device is the calling thread's current one: on CUDA as by cudaSetDevice. Threads begin with device 0.
class on_device {
 public:
  explicit on_device(platform& device) noexcept : device_(device), before_(device.exchange_current(device.index())) {}
  ~on_device() { device_.exchange_current(before_); }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;

 private:
  platform& device_;
  int before_;
};

platform& cpu_platform();  // the CPU machine's device 0
// The calling thread's current device, or nullptr (then cuda_unavailable_reason() says why). In library gpufs_cuda.
platform* cuda_platform();
std::string cuda_unavailable_reason();

namespace runtime {
int cpu_device_count();
platform& cpu_device(int i);
platform& cpu_current_device();
int cuda_device_count();
platform& cuda_device(int i);
platform& cuda_current_device();
// Throws device()'s error. whence: what sets the number of devices.
[[noreturn]] void refuse_device(int i, std::string_view machine, int count, std::string_view whence);
}  // namespace runtime

inline namespace GPUFS_MACHINE {

// The devices of the machine that this translation unit is compiled for: how many there are (CPU machine: GPUFS_SIMT_DEVICES, else
// 2), and number i, from 0 on, which lives as long as the process. device() throws std::out_of_range if there is no device i, and
// what this_platform() throws.
inline int device_count() {
#if GPUFS_ON_CUDA
  return runtime::cuda_device_count();
#else
  return runtime::cpu_device_count();
#endif
}
inline platform& device(int i) {
#if GPUFS_ON_CUDA
  return runtime::cuda_device(i);
#else
  return runtime::cpu_device(i);
#endif
}
// The calling thread's current device. Throws std::runtime_error without a CUDA device.
inline platform& this_platform() {
#if GPUFS_ON_CUDA
  return runtime::cuda_current_device();
#else
  return runtime::cpu_current_device();
#endif
}

}  // namespace GPUFS_MACHINE

}  // namespace gpufs::simt
