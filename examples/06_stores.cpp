// SPDX-License-Identifier: Apache-2.0
// Where bytes come from is a store, and a mount takes any: files in memory (for tests), or files that are nothing at all (to
// see what the page cache costs by itself). The kernel does not change.
#include <chrono>
#include <vector>

#include "example.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"

struct checksum {
  gpufs::mount_ref fs;
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const auto warp = gpufs::this_warp();
    const gpufs::file f = gpufs::open(block, fs, "folder/data");
    const gpufs::file_status status = gpufs::fstat(block, f);
    std::uint64_t mine = 0;
    for (std::int64_t at = 4096 * gpufs::simt::warp_rank(); at < status.nbytes; at += 4096 * block.nwarps()) {
      gpufs::mapped_page p = gpufs::map_page(warp, f, at);
      for (std::uint32_t i = warp.rank(); i < p.nbytes(); i += 32) mine += static_cast<std::uint64_t>(p.data()[i]) * (at + i + 1);
      gpufs::unmap_page(warp, std::move(p));
    }
    gpufs::close(block, f);
    gpufs::simt::atomic_ref<std::uint64_t>(*sum).fetch_add(mine, std::memory_order_relaxed);
  }
};

std::uint64_t run(const char* name, const gpufs::mount& fs) {
  const example::device_array<std::uint64_t> sum(1);
  const auto begin = std::chrono::steady_clock::now();
  gpufs::simt::launch({.grid = 1, .block = 128}, checksum{fs.ref(), sum.get()});
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::printf("%-8s %8.2f ms, sum %llu\n", name, took.count(), static_cast<unsigned long long>(sum.read_one()));
  return sum.read_one();
}

int main() {
  std::vector<std::byte> bytes(1 << 20);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 1000);
    expected += static_cast<std::uint64_t>(bytes[i]) * (i + 1);
  }

  const example::folder folder;
  std::filesystem::create_directory(folder.path() + "/folder");
  folder.write("folder/data", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  auto memory = std::make_shared<gpufs::store::mem_store>(gpufs::simt::this_platform());
  memory->put("folder/data", bytes);
  auto nothing = std::make_shared<gpufs::store::nil_store>(static_cast<std::int64_t>(bytes.size()));

  constexpr std::uint64_t cache_nbytes = 1 << 19;
  const gpufs::mount automatic(folder.path(), {.cache_nbytes = cache_nbytes});
  const gpufs::mount staged(folder.path(), {.cache_nbytes = cache_nbytes, .store = gpufs::store_kind::posix});
  const gpufs::mount in_memory("", {.cache_nbytes = cache_nbytes, .custom_store = memory});
  const gpufs::mount empty("", {.cache_nbytes = cache_nbytes, .custom_store = nothing});
  automatic.prepare("folder/data");

  example::check(run("auto", automatic) == expected, "a file on disk, the way that auto chose");
  example::check(run("posix", staged) == expected, "a file on disk, read by host threads");
  example::check(run("mem", in_memory) == expected, "a file in memory");
  run("nil", empty);
}
