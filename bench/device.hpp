// SPDX-License-Identifier: Apache-2.0
// The device's side of the benches: timed launches and the measured ceilings. The benches are one source for both machines: on
// the CPU machine they check their answers, and their figures mean nothing.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/simt/unroll.hpp"
#include "harness.hpp"
#include "simt/harness.hpp"

#if GPUFS_ON_CUDA
#include <cuda_runtime.h>

#include <fstream>
#endif

namespace bench {
inline namespace GPUFS_MACHINE {

using gpufs::host_file;
using gpufs::simt::atomic_ref;
using gpufs::simt::device_array;
using gpufs::simt::pinned_array;

// The content of every file: its 8-byte word i.
GPUFS_HOST_DEVICE std::uint64_t word_of(std::uint64_t i) { return gpufs::simt::test::scramble(i); }
// x spread evenly over 0 .. n-1, by its high bits.
GPUFS_HOST_DEVICE std::uint64_t scaled(std::uint64_t x, std::uint64_t n) {
  __extension__ using wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<wide>(x) * n >> 64);
}

struct shape {
  unsigned grid, block;
  std::uint64_t warps() const { return std::uint64_t{grid} * (block / 32); }
  std::uint64_t threads() const { return std::uint64_t{grid} * block; }
};

inline constexpr bool on_gpu = GPUFS_ON_CUDA != 0;

#if GPUFS_ON_CUDA

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw gpufs::error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Waits that block, so that the host's CPU time is the file system's.
inline machine_facts this_machine() {
  check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "no GPU");
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  int cuda = 0;
  check(cudaDriverGetVersion(&cuda), "cudaDriverGetVersion");
  std::string driver;
  std::getline(std::ifstream("/sys/module/nvidia/version"), driver);
  driver += (driver.empty() ? "CUDA " : ", CUDA ") + std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
  return {device.name, driver, static_cast<unsigned>(device.multiProcessorCount)};
}

// As a user who wants occupancy would launch: 40 warps an SM, 48 registers a thread, unless said otherwise.
inline constexpr unsigned small_block = 256, small_blocks_per_sm = 5;
template <class Kernel, unsigned BlocksPerSm>
__global__ void __launch_bounds__(small_block, BlocksPerSm) entry(const __grid_constant__ Kernel kernel) {
  kernel();
}
// For blocks that fill an SM alone: as many threads as have the registers (80) that these kernels want.
inline constexpr unsigned large_block = 768;
template <class Kernel>
__global__ void __launch_bounds__(large_block) entry_of_large_blocks(const __grid_constant__ Kernel kernel) {
  kernel();
}
// As many threads as an SM takes, in large blocks: 32 registers a thread.
inline constexpr unsigned full_block = 1024, full_blocks_per_sm = 2;
template <class Kernel>
__global__ void __launch_bounds__(full_block, full_blocks_per_sm) entry_of_full_blocks(const __grid_constant__ Kernel kernel) {
  kernel();
}

// One that waits for no other, as gpufs's own launches do.
inline cudaStream_t bench_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made{};
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return made;
  }();
  return stream;
}

// The seconds on the device between two moments of bench_stream(), with `work` between them.
template <class Work>
double device_seconds(const Work& work) {
  struct event {
    event() { check(cudaEventCreateWithFlags(&handle, cudaEventBlockingSync), "cudaEventCreate"); }
    ~event() { cudaEventDestroy(handle); }
    cudaEvent_t handle{};
  };
  const event begin, end;
  check(cudaEventRecord(begin.handle, bench_stream()), "cudaEventRecord");
  work();
  check(cudaEventRecord(end.handle, bench_stream()), "cudaEventRecord");
  check(cudaEventSynchronize(end.handle), "the kernel or copy failed");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.handle, end.handle), "cudaEventElapsedTime");
  return ms * 1e-3;
}

// Runs the kernel with blocks of up to small_block threads; its seconds.
template <unsigned BlocksPerSm = small_blocks_per_sm, class Kernel>
double run(const shape& how, const Kernel& kernel) {
  return device_seconds([&] {
    entry<Kernel, BlocksPerSm><<<how.grid, how.block, 0, bench_stream()>>>(kernel);
    check(cudaGetLastError(), "the kernel was not launched");
  });
}
// The same for blocks of up to large_block threads.
template <class Kernel>
double run_large_blocks(const shape& how, const Kernel& kernel) {
  return device_seconds([&] {
    entry_of_large_blocks<<<how.grid, how.block, 0, bench_stream()>>>(kernel);
    check(cudaGetLastError(), "the kernel was not launched");
  });
}
// The same for blocks of up to full_block threads.
template <class Kernel>
double run_full_blocks(const shape& how, const Kernel& kernel) {
  return device_seconds([&] {
    entry_of_full_blocks<<<how.grid, how.block, 0, bench_stream()>>>(kernel);
    check(cudaGetLastError(), "the kernel was not launched");
  });
}
// What the compiler gave the kernel there.
struct thread_resources {
  int registers = 0, local_nbytes = 0;  // local: spills, and the stack of calls
};
template <class Kernel>
thread_resources resources_in_full_blocks() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, entry_of_full_blocks<Kernel>), "cudaFuncGetAttributes");
  return {attributes.numRegs, static_cast<int>(attributes.localSizeBytes)};
}

// Seconds of a DMA copy of pinned memory, or of a registered file from its begin on, to the device, or back; of the driver's copy
// from device memory to device memory. In pieces of a window's least size: a file's windows are registered one by one, and CUDA
// copies from one registration at a time.
inline double copy_seconds(void* device, const void* pinned, std::size_t nbytes) {
  constexpr std::size_t most = 64 << 20;
  return device_seconds([&] {
    for (std::size_t at = 0; at < nbytes; at += most) {
      check(cudaMemcpyAsync(static_cast<std::byte*>(device) + at, static_cast<const std::byte*>(pinned) + at,
                            std::min(most, nbytes - at), cudaMemcpyHostToDevice, bench_stream()),
            "cudaMemcpyAsync");
    }
  });
}
inline double copy_back_seconds(void* pinned, const void* device, std::size_t nbytes) {
  return device_seconds(
      [&] { check(cudaMemcpyAsync(pinned, device, nbytes, cudaMemcpyDeviceToHost, bench_stream()), "cudaMemcpyAsync"); });
}
inline double device_copy_seconds(void* to, const void* from, std::size_t nbytes) {
  return device_seconds(
      [&] { check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToDevice, bench_stream()), "cudaMemcpyAsync"); });
}

#else

inline machine_facts this_machine() { return {"", "none: the CPU machine", 2}; }

inline constexpr unsigned small_blocks_per_sm = 1, large_block = 64, full_block = 64, full_blocks_per_sm = 1;

template <unsigned BlocksPerSm = small_blocks_per_sm, class Kernel>
double run(const shape& how, const Kernel& kernel) {
  const stopwatch watch;
  gpufs::simt::launch({.grid = how.grid, .block = how.block, .schedule = {.switch_percent = 0}}, kernel);
  return watch.seconds();
}
template <class Kernel>
double run_large_blocks(const shape& how, const Kernel& kernel) {
  return run(how, kernel);
}
template <class Kernel>
double run_full_blocks(const shape& how, const Kernel& kernel) {
  return run(how, kernel);
}

inline double copy_seconds(void* device, const void* pinned, std::size_t nbytes) {
  const stopwatch watch;
  gpufs::simt::this_platform().copy_to_device(device, pinned, nbytes);
  return watch.seconds();
}
inline double copy_back_seconds(void* pinned, const void* device, std::size_t nbytes) {
  return copy_seconds(pinned, device, nbytes);
}
inline double device_copy_seconds(void* to, const void* from, std::size_t nbytes) { return copy_seconds(to, from, nbytes); }

#endif

// What follows launches kernels whose blocks wait for each other: blocks of up to Threads threads, of which Blocks fit on a
// multiprocessor.
inline gpufs::simt::launch_config cooperative(const shape& how) {
  return {.grid = how.grid, .block = how.block, .schedule = {.switch_percent = 0}, .cooperative = true};
}
// As many blocks of Threads threads as run at once; three on the CPU machine.
template <unsigned Threads, unsigned Blocks, class Kernel>
unsigned most_together(const Kernel& kernel) {
  return on_gpu ? gpufs::simt::max_cooperative_grid<Threads, Blocks>(cooperative({1, Threads}), kernel) : 3;
}
template <unsigned Threads, unsigned Blocks, class Kernel>
void launch_together(const shape& how, const Kernel& kernel) {
#if GPUFS_ON_CUDA
  gpufs::simt::launch<Threads, Blocks>(cooperative(how), kernel, bench_stream());
#else
  gpufs::simt::launch<Threads, Blocks>(cooperative(how), kernel);
#endif
}
// Its seconds.
template <unsigned Threads, unsigned Blocks, class Kernel>
double run_together(const shape& how, const Kernel& kernel) {
#if GPUFS_ON_CUDA
  return device_seconds([&] { launch_together<Threads, Blocks>(how, kernel); });
#else
  const stopwatch watch;
  launch_together<Threads, Blocks>(how, kernel);
  return watch.seconds();
#endif
}

// The grid that most benches use: as many blocks of 8 warps as run at once (two blocks in all on the CPU machine).
inline shape grid_of(const machine_facts& machine, arguments& args) {
  const auto warps = static_cast<unsigned>(args.number("warps", {8, 8, 2}));
  const auto blocks = static_cast<unsigned>(args.number("blocks-per-sm", {small_blocks_per_sm, small_blocks_per_sm, 1}));
  return {machine.nprocessors * std::max(blocks, 1u), std::max(warps, 1u) * 32};
}

inline int repeats_of(arguments& args) { return std::max(1, static_cast<int>(args.number("repeats", {5, 3, 1}))); }

// --- Ceilings, measured in the same run --------------------------------------------------------------------------------------

// Pinned host memory for the two ceilings below.
struct pinned_memory {
  static constexpr std::size_t nbytes = on_gpu ? 1u << 30 : 1u << 20;
  pinned_array<std::byte> bytes{nbytes};
};

// Its copy to the device, in pieces one behind the other, GB/s: what no file system can pass.
inline spread measure_copy(results& out, const pinned_memory& host) {
  constexpr std::size_t nbytes = pinned_memory::nbytes;
  const device_array<std::byte> device(nbytes);
  copy_seconds(device.get(), host.bytes.get(), nbytes);
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i)
    rates.push_back(static_cast<double>(nbytes) / copy_seconds(device.get(), host.bytes.get(), nbytes) * 1e-9);
  const spread copy = spread_of(rates);
  out.ceiling("pinned host-to-device copy, 1 GiB", "GB/s", copy);
  return copy;
}

// The same from the device.
inline spread measure_copy_back(results& out, const pinned_memory& host) {
  constexpr std::size_t nbytes = pinned_memory::nbytes;
  const device_array<std::byte> device(nbytes);
  std::vector<double> rates;
  for (int i = 0; i < 8; ++i) {
    const double seconds = copy_back_seconds(host.bytes.get(), device.get(), nbytes);
    if (i > 0) rates.push_back(static_cast<double>(nbytes) / seconds * 1e-9);
  }
  const spread copy = spread_of(rates);
  out.ceiling("pinned device-to-host copy, 1 GiB", "GB/s", copy);
  return copy;
}

struct alignas(16) two_words {
  std::uint64_t a, b;
};

// A streaming load: of what is read once, nothing need stay in the second-level cache.
GPUFS_DEVICE two_words load_once(const two_words* p) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  const ulonglong2 v = __ldcs(reinterpret_cast<const ulonglong2*>(p));
  return {v.x, v.y};
#else
  return *p;
#endif
}

// nvcc unrolls loops until their loads no longer fit the registers.
#if GPUFS_ON_CUDA
#define BENCH_NOT_UNROLLED _Pragma("unroll 1")
#else
#define BENCH_NOT_UNROLLED
#endif

// The sum of nbytes / 16 words' 8-byte halves, read in place: eight loads in flight a lane.
GPUFS_DEVICE std::uint64_t sum_of(const std::byte* data, std::size_t nbytes, std::uint32_t rank, std::uint32_t size) {
  const auto* words = reinterpret_cast<const two_words*>(data) + rank;
  const auto n = static_cast<std::uint32_t>(nbytes / sizeof(two_words));
  std::uint64_t sum = 0;
  std::uint32_t i = rank;
  BENCH_NOT_UNROLLED
  for (; i + 7 * size < n; i += 8 * size, words += 8 * size) {
    two_words w[8];
    for (std::uint32_t k = 0; k < 8; ++k) w[k] = load_once(words + k * size);
    for (const two_words& x : w) sum += x.a + x.b;
  }
  BENCH_NOT_UNROLLED
  for (; i < n; i += size, words += size) sum += words->a + words->b;
  return sum;
}

// n vectors of 16 bytes, of any memory that kernels reach.
struct copy_vectors {
  const gpufs::simt::vec16* from;
  gpufs::simt::vec16* to;
  std::uint64_t n;

  // A piece of 16 KiB a block at a time: four vectors a thread are under way.
  GPUFS_DEVICE void operator()() const {
    constexpr unsigned per_thread = 4;
    const std::uint64_t size = std::uint64_t{gpufs::simt::block_size()} * per_thread;
    for (std::uint64_t begin = gpufs::simt::block_rank() * size; begin < n; begin += gpufs::simt::grid_size() * size) {
      gpufs::simt::vec16 words[per_thread];
      const std::uint64_t mine = begin + gpufs::simt::thread_rank();
      GPUFS_UNROLL
      for (unsigned k = 0; k < per_thread; ++k) {
        const std::uint64_t i = mine + std::uint64_t{k} * gpufs::simt::block_size();
        if (i < n) words[k] = from[i];
      }
      GPUFS_UNROLL
      for (unsigned k = 0; k < per_thread; ++k) {
        const std::uint64_t i = mine + std::uint64_t{k} * gpufs::simt::block_size();
        if (i < n) to[i] = words[k];
      }
    }
  }
};

struct read_device_memory {
  const std::byte* data;
  std::size_t nbytes;
  unsigned times;
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const unsigned rank = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    std::uint64_t mine = 0;
    for (unsigned t = 0; t < times; ++t) {
      const unsigned size = gpufs::simt::grid_size() * gpufs::simt::block_size();
      mine += sum_of(data, nbytes, (rank + 32 * t) % size, size);  // no two rounds alike: else one could stand for all
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// Sequential reads of nbytes of device memory, GB/s, again and again so that a launch takes as long as what is held against it.
inline spread measure_memory_read(results& out, const machine_facts& machine, std::size_t nbytes) {
  const device_array<std::byte> data(nbytes);
  const device_array<std::uint64_t> sum(1);
  const unsigned times = on_gpu ? static_cast<unsigned>(std::max<double>(1, 100e9 / static_cast<double>(nbytes))) : 1;
  const shape how = on_gpu ? shape{machine.nprocessors * 8, 256} : shape{2, 32};
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    const double seconds = run(how, read_device_memory{data.get(), nbytes, times, sum.get()});
    if (i > 0) rates.push_back(static_cast<double>(nbytes) * times / seconds * 1e-9);
  }
  const spread read = spread_of(rates);
  out.ceiling("sequential read of device memory", "GB/s", read);
  return read;
}

// Copies random pages of host memory to random frames and does nothing else: what a kernel that pulls pages into a cache can reach
// at best. (To one frame a warp it reads a third more pages of 512 B: the device looks up fewer addresses.)
struct pull_alone {
  const std::byte* host;
  std::uint64_t npages;
  std::uint32_t page_nbytes, per_warp;
  std::byte* frames;
  std::uint64_t nframes;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * (gpufs::simt::block_size() / 32) + gpufs::simt::warp_rank();
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t any = word_of(me * per_warp + i + 1);
      const std::uint64_t page = scaled(any, npages), frame = scaled(word_of(any), nframes);
      gpufs::simt::copy_from_host(warp, frames + frame * page_nbytes, host + page * page_nbytes, page_nbytes);
    }
  }
};

// In pages a second, from the nbytes at `host`: the more memory, the fewer small pages, as the device looks up more addresses.
template <unsigned BlocksPerSm = small_blocks_per_sm>
spread measure_pull(results& out, const shape& how, std::uint32_t page_nbytes, const std::byte* host, std::uint64_t nbytes,
                    std::uint64_t cache_nbytes) {
  const device_array<std::byte> frames(cache_nbytes);
  const double wanted = on_gpu ? std::min(4e9 / page_nbytes, 4e6) : 256;
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(wanted / static_cast<double>(how.warps())));
  const pull_alone kernel{host, nbytes / page_nbytes, page_nbytes, per_warp, frames.get(), cache_nbytes / page_nbytes};
  std::vector<double> rates;
  for (int i = 0; i < 4; ++i) {
    const double seconds = run<BlocksPerSm>(how, kernel);
    if (i > 0) rates.push_back(static_cast<double>(how.warps()) * per_warp / seconds);
  }
  const spread pages = spread_of(rates);
  const double gb = page_nbytes * 1e-9;
  char sizes[64];
  std::snprintf(sizes, sizeof sizes, "%.3g GiB into frames of %.3g GiB", static_cast<double>(nbytes) / (1u << 30),
                static_cast<double>(cache_nbytes) / (1u << 30));
  out.ceiling("a kernel that only pulls pages of " + std::to_string(page_nbytes) + " B of " + sizes, "GB/s",
              {pages.median * gb, pages.low * gb, pages.high * gb, pages.samples});
  return pages;
}

// Every wait of a kernel ends after 20 s at most.
inline gpufs::mount_options short_waits() {
  gpufs::mount_options options;
  options.io_timeout = std::chrono::seconds(20);
  return options;
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
