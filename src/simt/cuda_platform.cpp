// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_error.hpp"
#include "gpufs/simt/detail/cuda_stream.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::simt {
namespace {

using runtime::cuda_error_text;

class cuda_bad_alloc final : public std::bad_alloc {
 public:
  explicit cuda_bad_alloc(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cuda_error_text(error));
}

int attribute(int device, cudaDeviceAttr which) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) cudaGetLastError();
  return value;
}

// The driver's, without linking to it; null where it has none.
decltype(&cuPointerGetAttributes) driver_pointer_attributes() {
  static const auto found = [] {
    constexpr const char* name = "cuPointerGetAttributes";
    void* call = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    constexpr unsigned version = 7000;  // which brought it
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &call, version, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    const bool is_there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return is_there ? reinterpret_cast<decltype(&cuPointerGetAttributes)>(call) : nullptr;
  }();
  return found;
}

// What CUDA knows of an address, for kernels of the current device.
struct known_memory {
  bool is_reached = false, is_host = false, is_pageable = false;
  std::size_t nbytes = 0;         // from there on, of the allocation, registration or reservation
  std::size_t mapped_nbytes = 0;  // of a reservation: of what was mapped by one call

  static known_memory at(const void* ptr) {
    cudaPointerAttributes runtime{};
    if (cudaPointerGetAttributes(&runtime, ptr) != cudaSuccess) cudaGetLastError();
    if (runtime.devicePointer == nullptr || runtime.devicePointer != ptr)
      return {.is_pageable = runtime.type == cudaMemoryTypeUnregistered};
    constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
    known_memory found{.is_reached = true, .is_host = runtime.type == cudaMemoryTypeHost, .nbytes = any, .mapped_nbytes = any};
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
    CUdeviceptr begin = 0, mapped = 0;
    std::size_t nbytes = 0, mapped_nbytes = 0;
    void* values[] = {&begin, &nbytes, &mapped, &mapped_nbytes};
    const auto address = reinterpret_cast<CUdeviceptr>(ptr);
    const auto ask = driver_pointer_attributes();
    if (ask == nullptr || ask(4, which, values, address) != CUDA_SUCCESS) return found;
    if (nbytes != 0) found.nbytes = begin + nbytes - address;
    if (mapped_nbytes != 0) found.mapped_nbytes = mapped + mapped_nbytes - address;
    return found;
  }
};

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// It has a stream of its own, so that it waits for no copy of other parts.
class cuda_copy_batch final : public copy_batch {
 public:
  explicit cuda_copy_batch(platform& device) : device_(device), turns_(device) {
    const on_device here(device_);
    check(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming), "cannot make an event for copies");
  }
  ~cuda_copy_batch() override {
    const on_device here(device_);
    if (cudaStreamSynchronize(turns_.stream()) != cudaSuccess) cudaGetLastError();
    if (cudaEventDestroy(ended_) != cudaSuccess) cudaGetLastError();
  }

  void begin(std::span<host_copy> copies) override {
    if (copies.empty()) return;
    const on_device here(device_);
#if CUDART_VERSION >= 13000
    // One call for all copies: the engine goes from one to the next without the driver.
    to_.clear(), from_.clear(), nbytes_.clear();
    for (const host_copy& each : copies) {
      to_.push_back(each.to);
      from_.push_back(each.from);
      nbytes_.push_back(each.nbytes);
    }
    cudaMemcpyAttributes how{};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    check(cudaMemcpyBatchAsync(to_.data(), from_.data(), nbytes_.data(), copies.size(), &how, &first, 1, turns_.stream()),
          "copies to the device");
#else
    for (const host_copy& each : copies) turns_.copy_to_device(each.to, each.from, each.nbytes);
#endif
    check(cudaEventRecord(ended_, turns_.stream()), "copies to the device");
  }

  bool has_ended() override {
    const cudaError_t error = cudaEventQuery(ended_);
    if (error == cudaErrorNotReady) return false;
    check(error, "copies to the device");
    return true;
  }

 private:
  platform& device_;
  runtime::cuda_stream_lease turns_;
  cudaEvent_t ended_ = nullptr;
#if CUDART_VERSION >= 13000
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> nbytes_;
#endif
};

class cuda_memory final : public platform {
 public:
  explicit cuda_memory(int device) : device_(device) {
    const on_device here(*this);
    check(cudaSetDevice(device_), "cudaSetDevice");  // on_device cannot report that it failed, and another device would do the work
    check(cudaGetDeviceProperties(&properties_, device_), "cudaGetDeviceProperties");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cannot make a stream for copies");
  }

  void* allocate_device(std::size_t nbytes) override {
    const on_device here(*this);
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, nbytes == 0 ? 1 : nbytes);
    if (error != cudaSuccess) throw_no_memory("device", nbytes, error);
    return p;
  }
  void deallocate_device(void* ptr) noexcept override {
    const on_device here(*this);
    if (cudaFree(ptr) != cudaSuccess) cudaGetLastError();
  }
  bool may_be_memory(const void* ptr, std::size_t nbytes) const override {
    const auto is_ours = [this](const std::byte* at) {
      cudaPointerAttributes found{};
      if (cudaPointerGetAttributes(&found, at) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      return found.type == cudaMemoryTypeDevice && found.device == device_;
    };
    const auto* const begin = static_cast<const std::byte*>(ptr);
    return begin != nullptr && nbytes != 0 && is_ours(begin) && is_ours(begin + nbytes - 1);
  }
  void* allocate_pinned(std::size_t nbytes) override {
    const on_device here(*this);
    void* p = nullptr;
    const std::size_t n = nbytes == 0 ? 1 : nbytes;
    const cudaError_t error = cudaHostAlloc(&p, n, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error != cudaSuccess) throw_no_memory("pinned host", nbytes, error);
    __builtin_memset(p, 0, n);
    return p;
  }
  void deallocate_pinned(void* ptr) noexcept override {
    const on_device here(*this);
    if (ptr != nullptr && cudaFreeHost(ptr) != cudaSuccess) cudaGetLastError();
  }

  const void* register_readonly(const void* ptr, std::size_t nbytes, std::string* why) override {
    const on_device here(*this);
    void* host = const_cast<void*>(ptr);
    constexpr unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
    // Read-only first: it is the only way to register a read-only mapping of a file on disk.
    const cudaError_t first = cudaHostRegister(host, nbytes, flags | cudaHostRegisterReadOnly);
    if (first != cudaSuccess) {
      const std::string first_text = cuda_error_text(first);
      const cudaError_t second = cudaHostRegister(host, nbytes, flags);
      if (second != cudaSuccess) {
        if (why != nullptr) {
          *why = "cudaHostRegister: " + first_text + " read-only, " + cuda_error_text(second) + " otherwise";
        } else {
          cudaGetLastError();
        }
        return nullptr;
      }
    }
    return device_address_of(host, why);
  }
  void* register_writable(void* ptr, std::size_t nbytes, std::string* why) override {
    const on_device here(*this);
    constexpr unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
    const cudaError_t error = cudaHostRegister(ptr, nbytes, flags);
    // Registers of another device that are mapped here are no memory, and take a flag of their own.
    const bool registered = error == cudaSuccess || cudaHostRegister(ptr, nbytes, flags | cudaHostRegisterIoMemory) == cudaSuccess;
    if (error != cudaSuccess) cudaGetLastError();
    if (!registered) {
      const std::string text = "cudaHostRegister: " + cuda_error_text(error);
      if (why != nullptr) *why = text;
      return nullptr;
    }
    return device_address_of(ptr, why);
  }
  bool registers_in_place() const override { return attribute(device_, cudaDevAttrCanUseHostPointerForRegisteredMem) != 0; }
  void unregister(const void* ptr) noexcept override {
    const on_device here(*this);
    if (cudaHostUnregister(const_cast<void*>(ptr)) != cudaSuccess) cudaGetLastError();
  }

  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) override {
    copy(device_dst, src, nbytes, cudaMemcpyHostToDevice, "copy to the device");
  }
  void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) override {
    copy(dst, device_src, nbytes, cudaMemcpyDeviceToHost, "copy from the device");
  }
  void zero_device(void* device_dst, std::size_t nbytes) override {
    const on_device here(*this);
    const std::lock_guard lock(mutex_);
    check(cudaMemsetAsync(device_dst, 0, nbytes, stream_), "zero device memory");
    check(cudaStreamSynchronize(stream_), "zero device memory");
  }

  std::size_t reachable_nbytes(const void* ptr, std::size_t nbytes) override {
    if (ptr == nullptr) return 0;
    const on_device here(*this);
    check(cudaSetDevice(device_), "set the device");  // also where it is set: to a thread without a context no memory is known
    const auto* const first = static_cast<const std::byte*>(ptr);
    bool is_host = true;
    std::size_t there = 0;
    while (there < nbytes && is_host) {  // host memory may have been registered by parts
      const known_memory at = known_memory::at(first + there);
      if (!at.is_reached) return at.is_pageable && properties_.pageableMemoryAccess != 0 ? nbytes : there;
      const std::size_t here_nbytes = std::min(nbytes - there, at.nbytes);
      // Of a reservation of addresses, as PyTorch's expandable segments are, the end may have no memory yet.
      if (at.mapped_nbytes < here_nbytes && !known_memory::at(first + there + here_nbytes - 1).is_reached) {
        return there + at.mapped_nbytes;
      }
      there += here_nbytes;
      is_host = at.is_host;
    }
    return there;
  }

  std::unique_ptr<copy_batch> make_copy_batch() override { return std::make_unique<cuda_copy_batch>(*this); }
  bool is_idle() const override { return runtime::cuda_is_idle(); }

  std::string_view name() const override { return "cuda"; }
  bool is_cuda() const override { return true; }
  int index() const override { return device_; }
  std::size_t memory_nbytes() const override { return properties_.totalGlobalMem; }
  std::size_t free_nbytes() const override {
    const on_device here(const_cast<cuda_memory&>(*this));
    std::size_t now = 0, all = 0;
    check(cudaMemGetInfo(&now, &all), "cudaMemGetInfo");
    return now;
  }

  std::string describe() const override {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    char bus[32] = "unknown";
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, device_) != cudaSuccess) cudaGetLastError();
    const auto yes_no = [this](cudaDeviceAttr which) { return attribute(device_, which) != 0 ? "yes\n" : "no\n"; };
    return std::string("machine: cuda\n") + "device: " + properties_.name + " (number " + std::to_string(device_) + " of " +
           std::to_string(runtime::cuda_device_count()) + ")\n" + "driver supports cuda: " + version_text(driver) +
           "\ncuda runtime: " + version_text(runtime) + "\ncompute capability: " + std::to_string(properties_.major) + "." +
           std::to_string(properties_.minor) + "\nmultiprocessors: " + std::to_string(properties_.multiProcessorCount) +
           "\nmemory: " + std::to_string(properties_.totalGlobalMem >> 20) + " MiB\n" + "pci address: " + bus +
           "\nregisters host memory: " + yes_no(cudaDevAttrHostRegisterSupported) +
           "registers it read-only: " + yes_no(cudaDevAttrHostRegisterReadOnlySupported) +
           "host atomics over the bus: " + yes_no(cudaDevAttrHostNativeAtomicSupported) +
           "reads pageable memory: " + yes_no(cudaDevAttrPageableMemoryAccess);
  }

  // cudaSetDevice makes a context on the device, so it is not called if the device is current already. Each thread of the library's
  // own stays with its device (stay_current), and makes no context on device 0 when it ends.
  int exchange_current(int index) noexcept override {
    int before = 0;
    if (cudaGetDevice(&before) != cudaSuccess) cudaGetLastError();
    if (before != index && cudaSetDevice(index) != cudaSuccess) cudaGetLastError();
    return before;
  }
  // No thread of the library's launches into a stream that is captured. In the mode that threads begin with, CUDA would keep it
  // from what it calls unsafe while any thread captures.
  void stay_current() noexcept override {
    exchange_current(device_);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) cudaGetLastError();
  }

 private:
  // The device's address of memory that was just registered. If it has none, unregisters the memory.
  static void* device_address_of(void* host, std::string* why) {
    void* device_address = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&device_address, host, 0);
    if (error == cudaSuccess) return device_address;
    const std::string text = "cudaHostGetDevicePointer: " + cuda_error_text(error);
    if (why != nullptr) *why = text;
    if (cudaHostUnregister(host) != cudaSuccess) cudaGetLastError();
    return nullptr;
  }

  [[noreturn]] static void throw_no_memory(const char* kind, std::size_t nbytes, cudaError_t error) {
    throw cuda_bad_alloc("cannot allocate " + std::to_string(nbytes) + " bytes of " + kind + " memory: " + cuda_error_text(error));
  }

  void copy(void* dst, const void* src, std::size_t nbytes, cudaMemcpyKind kind, const char* what) {
    if (nbytes == 0) return;
    const on_device here(*this);
    const std::lock_guard lock(mutex_);
    check(cudaMemcpyAsync(dst, src, nbytes, kind, stream_), what);
    check(cudaStreamSynchronize(stream_), what);
  }

  int device_;
  cudaDeviceProp properties_{};
  std::mutex mutex_;  // of the stream: a caller waits for its own copy only
  cudaStream_t stream_ = nullptr;
};

// A device. It is made on first use, because that makes a context on it.
struct attempt {
  std::once_flag once;
  platform* found = nullptr;
  std::string why_not;

  void make(int device) {
    const int major = attribute(device, cudaDevAttrComputeCapabilityMajor);
    if (major < 8) {
      why_not =
          "CUDA device " + std::to_string(device) + " has compute capability " + std::to_string(major) + ".x; gpufs needs 8.0";
      return;
    }
    try {
      found = new cuda_memory(device);
    } catch (const std::exception& e) {
      why_not = e.what();
    }
  }
};

std::string cuda_version_text(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

// Without a driver, the CUDA runtime says that the driver is too old.
std::string why_no_device(cudaError_t error) {
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess) {
    if (driver == 0) return "no CUDA device: no NVIDIA driver here (libcuda.so.1 not found)";
    return "no CUDA device: the NVIDIA driver is for CUDA " + cuda_version_text(driver) + ", and gpufs was built with CUDA " +
           cuda_version_text(CUDART_VERSION) + ": install a newer driver";
  }
  return error == cudaSuccess ? "no CUDA device" : "no CUDA device: " + cuda_error_text(error);
}

struct devices {
  int count = 0;
  std::string why_not;
  std::unique_ptr<attempt[]> each;

  // Outlive all static objects.
  static devices& get() {
    static devices* all = [] {
      auto* d = new devices;
      const cudaError_t error = cudaGetDeviceCount(&d->count);
      if (error != cudaSuccess) d->count = 0;
      if (d->count == 0) d->why_not = why_no_device(error);
      d->each = std::make_unique<attempt[]>(static_cast<std::size_t>(d->count));
      return d;
    }();
    return *all;
  }
  attempt& at(int i) {
    attempt& one = each[static_cast<std::size_t>(i)];
    std::call_once(one.once, [&] { one.make(i); });
    return one;
  }
  // The calling thread's current device; nullptr if it has none.
  attempt* current() {
    int device = 0;
    if (count == 0 || cudaGetDevice(&device) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    return &at(device);
  }
};

platform& usable(const attempt* one) {
  if (one == nullptr) throw std::runtime_error(cuda_unavailable_reason());
  if (one->found == nullptr) throw std::runtime_error(one->why_not);
  return *one->found;
}

}  // namespace

platform* cuda_platform() {
  const attempt* one = devices::get().current();
  return one == nullptr ? nullptr : one->found;
}
std::string cuda_unavailable_reason() {
  const devices& all = devices::get();
  if (all.count == 0) return all.why_not;
  const attempt* one = devices::get().current();
  return one == nullptr ? "no CUDA device is current" : one->why_not;
}

namespace runtime {
int cuda_device_count() { return devices::get().count; }
platform& cuda_device(int i) {
  devices& all = devices::get();
  if (all.count == 0) throw std::runtime_error(all.why_not);
  if (i < 0 || i >= all.count) refuse_device(i, "cuda", all.count, "CUDA_VISIBLE_DEVICES");
  return usable(&all.at(i));
}
platform& cuda_current_device() { return usable(devices::get().current()); }
}  // namespace runtime

}  // namespace gpufs::simt
