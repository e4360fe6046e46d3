// SPDX-License-Identifier: Apache-2.0
// Random misses against the bus: warps read random pages of a file in memory that is many times larger than the cache, through
// pread and through map_page, beside one pinned host-to-GPU copy measured in the same run (the ceiling). Every page's content is
// checked outside the timed part, by a sum that the host knows.
//
//   cold_read FILE_DIR OUT.json [--file-gib 24] [--cache-gib 1] [--page 4096] [--store auto|posix] [--repeats 7]
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace {

using gpufs::mount_ref;
using gpufs::simt::atomic_ref;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw gpufs::error(std::string(what) + ": " + cudaGetErrorString(error));
}

__host__ __device__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// The file's content: 8-byte word i is mixed(i).

struct access_pattern {
  std::uint64_t npages;
  std::uint64_t seed;
  std::uint32_t per_warp;
  __host__ __device__ std::uint64_t page(std::uint64_t i) const { return mixed(i ^ seed) % npages; }
};

// `sum` gets the sum of the first word a lane reads of each page: enough to see a foreign page, cheap enough to time. With
// `verify`, every word of every page is compared instead.
__global__ void read_pages(mount_ref fs, const char* path, access_pattern access, std::uint32_t page_nbytes, bool map, bool verify,
                           std::byte* scratch, unsigned long long* wrong, unsigned long long* failed) {
  const auto warp = gpufs::this_warp();
  const auto file = gpufs::open(warp, fs, path);
  const std::uint64_t me = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  std::byte* mine = scratch + me * page_nbytes;
  for (std::uint32_t i = 0; i < access.per_warp; ++i) {
    const std::uint64_t p = access.page(me * access.per_warp + i);
    const auto offset = static_cast<std::int64_t>(p * page_nbytes);
    const std::byte* data = mine;
    gpufs::page page{};
    std::int64_t n = page_nbytes;
    if (map) {
      page = gpufs::map_page(warp, file, offset);
      data = page.data();
      if (page.error() != 0) n = page.error();
    } else {
      n = gpufs::pread(warp, file, mine, page_nbytes, offset);
    }
    if (n != page_nbytes) {
      if (warp.leader()) atomicAdd(failed, 1ull);
    } else {
      const std::uint32_t words = verify ? page_nbytes / 8 : 32;
      for (std::uint32_t w = warp.rank(); w < words; w += 32) {
        const auto value = reinterpret_cast<const std::uint64_t*>(data)[w];
        if (value != mixed(offset / 8 + w)) atomicAdd(wrong, 1ull);
      }
    }
    if (map && page.error() == 0) gpufs::unmap_page(warp, page);
    warp.sync();
  }
  gpufs::close(warp, file);
}

void make_file(const std::string& path, std::uint64_t nbytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(nbytes)) != 0) throw gpufs::error("cannot make " + path);
  auto* words = static_cast<std::uint64_t*>(mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (words == MAP_FAILED) throw gpufs::error("cannot map " + path);
  const unsigned n = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < n; ++t) {
    threads.emplace_back([=] {
      const std::uint64_t total = nbytes / 8, begin = total * t / n, end = total * (t + 1) / n;
      for (std::uint64_t i = begin; i < end; ++i) words[i] = mixed(i);
    });
  }
  for (auto& t : threads) t.join();
  munmap(words, nbytes);
  close(fd);
}

double copy_gbps() {
  constexpr std::size_t nbytes = 1ull << 30;
  void *host = nullptr, *device = nullptr;
  check(cudaMallocHost(&host, nbytes), "cudaMallocHost");
  check(cudaMalloc(&device, nbytes), "cudaMalloc");
  std::memset(host, 1, nbytes);
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    cudaEventRecord(a);
    check(cudaMemcpyAsync(device, host, nbytes, cudaMemcpyHostToDevice), "copy");
    cudaEventRecord(b);
    check(cudaEventSynchronize(b), "copy");
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    rates.push_back(nbytes / (ms * 1e6));
  }
  cudaFreeHost(host);
  cudaFree(device);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

struct figures {
  double median, low, high;
};

figures spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 2], v.front(), v.back()};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(
        stderr,
        "usage: cold_read FILE_DIR OUT.json [--file-gib n] [--cache-gib n] [--page n] [--store auto|posix] [--repeats n]\n");
    return 2;
  }
  const std::string dir = argv[1], out = argv[2];
  double file_gib = 24, cache_gib = 1;
  std::uint32_t page = 4096;
  int repeats = 7, warps_per_block = 8, blocks_per_sm = 8;
  std::string store = "auto";
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--file-gib")
      file_gib = std::stod(value);
    else if (key == "--cache-gib")
      cache_gib = std::stod(value);
    else if (key == "--page")
      page = static_cast<std::uint32_t>(std::stoul(value));
    else if (key == "--store")
      store = value;
    else if (key == "--repeats")
      repeats = std::stoi(value);
    else if (key == "--warps")
      warps_per_block = std::stoi(value);
    else if (key == "--blocks-per-sm")
      blocks_per_sm = std::stoi(value);
    else
      throw gpufs::error("unknown option " + key);
  }
  const auto file_nbytes = static_cast<std::uint64_t>(file_gib * (1ull << 30)) / page * page;
  const std::string path = dir + "/cold_read.dat";
  make_file(path, file_nbytes);
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");

  gpufs::mount_options options;
  options.cache_nbytes = static_cast<std::uint64_t>(cache_gib * (1ull << 30));
  options.page_nbytes = page;
  options.pin_nbytes = file_nbytes + (1ull << 30);
  options.store = store == "posix" ? gpufs::store_kind::posix : gpufs::store_kind::automatic;
  gpufs::mount fs(dir, options);

  fs.prepare("cold_read.dat");

  const int grid = device.multiProcessorCount * blocks_per_sm, block = warps_per_block * 32;
  const std::uint64_t warps = static_cast<std::uint64_t>(grid) * warps_per_block;
  const double target_bytes = store == "posix" ? 2e9 : 16e9;
  const auto per_warp = static_cast<std::uint32_t>(std::max(1.0, target_bytes / (static_cast<double>(warps) * page)));
  std::byte* scratch = nullptr;
  unsigned long long* results = nullptr;
  char* device_path = nullptr;
  check(cudaMalloc(&scratch, warps * page), "cudaMalloc");
  check(cudaMalloc(&results, 16), "cudaMalloc");
  check(cudaMalloc(&device_path, 64), "cudaMalloc");
  check(cudaMemcpy(device_path, "cold_read.dat", 14, cudaMemcpyHostToDevice), "copy");

  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string command = "cold_read";
  for (int i = 3; i < argc; ++i) command.append(" ").append(argv[i]);
  const char* commit = std::getenv("GPUFS_COMMIT");
  std::ofstream json(out);
  json << "{\n  \"bench\": \"cold_read\", \"command\": \"" << command << "\", \"commit\": \"" << (commit ? commit : "unknown")
       << "\",\n  \"device\": \"" << device.name << "\", \"cuda_driver\": " << driver
       << ", \"host_threads\": " << std::thread::hardware_concurrency() << ",\n  \"file_nbytes\": " << file_nbytes
       << ", \"cache_nbytes\": " << options.cache_nbytes << ", \"page_nbytes\": " << page << ", \"store\": \"" << store
       << "\",\n  \"warps\": " << warps << ", \"reads_per_launch\": " << warps * per_warp << ",\n";
  const double ceiling = copy_gbps();
  json << "  \"pinned_copy_gbps\": " << ceiling << ",\n  \"results\": {";
  bool first = true;
  bool ok = true;
  for (const bool map : {false, true}) {
    std::vector<double> rates, reads;
    for (int r = 0; r < repeats + 2; ++r) {
      const bool verify = r == repeats + 1;  // the last launch compares every byte, untimed
      check(cudaMemset(results, 0, 16), "cudaMemset");
      const access_pattern access{file_nbytes / page, mixed(static_cast<std::uint64_t>(r) * 2 + map + 1), per_warp};
      const auto before = fs.counters();
      cudaEvent_t a, b;
      cudaEventCreate(&a);
      cudaEventCreate(&b);
      cudaEventRecord(a);
      read_pages<<<grid, block>>>(fs.ref(), device_path, access, page, map, verify, scratch, results, results + 1);
      cudaEventRecord(b);
      check(cudaGetLastError(), "launch");
      check(cudaEventSynchronize(b), "read_pages");
      float ms = 0;
      cudaEventElapsedTime(&ms, a, b);
      unsigned long long found[2];
      check(cudaMemcpy(found, results, 16, cudaMemcpyDeviceToHost), "copy");
      const auto after = fs.counters();
      const std::uint64_t faults = after.faults - before.faults;
      const double gbps = static_cast<double>(faults) * page / (ms * 1e6);
      std::printf(
          "%-8s %s launch %d: %.2f ms, %.2f GB/s missed (%.1f %% of %.2f), %.1f M misses/s, hits %llu, evictions %llu, wrong %llu, "
          "failed %llu\n",
          map ? "map_page" : "pread", verify ? "verify" : "timed", r, ms, gbps, 100 * gbps / ceiling, ceiling,
          static_cast<double>(faults) / (ms * 1e3), static_cast<unsigned long long>(after.hits - before.hits),
          static_cast<unsigned long long>(after.evictions - before.evictions), found[0], found[1]);
      ok = ok && found[0] == 0 && found[1] == 0;
      if (r > 0 && !verify) {  // the first launch fills the cache
        rates.push_back(gbps);
        reads.push_back(static_cast<double>(warps * per_warp) * page / (ms * 1e6));
      }
      cudaEventDestroy(a);
      cudaEventDestroy(b);
    }
    const figures f = spread(rates);
    json << (first ? "" : ",") << "\n    \"" << (map ? "map_page" : "pread") << "\": {\"gbps\": " << f.median
         << ", \"low\": " << f.low << ", \"high\": " << f.high << ", \"share_of_copy\": " << f.median / ceiling
         << ", \"share_of_copy_with_hits\": " << spread(reads).median / ceiling << "}";
    first = false;
  }
  const auto counters = fs.counters();
  json << "\n  },\n  \"verified\": " << (ok ? "true" : "false") << ", \"pinned_frames_left\": " << counters.pinned_frames
       << "\n}\n";
  for (const auto& line : fs.log()) std::printf("log: %s\n", line.c_str());
  unlink(path.c_str());
  return ok ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "cold_read: %s\n", e.what());
  return 1;
}
