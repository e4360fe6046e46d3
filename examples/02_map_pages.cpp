// SPDX-License-Identifier: Apache-2.0
// Mapping instead of copying: warps look at a file's pages where they lie in the page cache. The file is sixteen times larger
// than the cache; pages come and go, but a mapped page stays where it is until it is unmapped.
#include "example.hpp"

struct sum_file {
  gpufs::mount_ref fs;
  std::uint64_t* sum;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto nwarps = static_cast<std::int64_t>(gpufs::simt::global_warp_count());
    const auto my_warp = static_cast<std::int64_t>(gpufs::simt::global_warp_rank());
    const gpufs::file f = gpufs::open(warp, fs, "numbers");
    const gpufs::file_status status = gpufs::fstat(warp, f);

    std::uint64_t mine = 0;
    for (std::int64_t offset = my_warp * 4096; offset < status.nbytes; offset += nwarps * 4096) {
      gpufs::mapped_page p = gpufs::map_page(warp, f, offset);
      if (p.error() != 0) {
        *error = p.error();
        break;
      }
      const auto* numbers = reinterpret_cast<const std::uint32_t*>(p.data());
      for (std::uint32_t i = warp.rank(); i < p.nbytes() / 4; i += 32) mine += numbers[i];
      gpufs::unmap_page(warp, std::move(p));
    }
    gpufs::close(warp, f);
    gpufs::simt::atomic_ref<std::uint64_t>(*sum).fetch_add(mine, std::memory_order_relaxed);
  }
};

int main() {
  const example::folder folder;
  std::uint64_t expected = 0;
  std::string bytes;
  for (std::uint32_t i = 0; i < 1u << 18; ++i) {
    const std::uint32_t number = i * 2654435761u;
    bytes.append(reinterpret_cast<const char*>(&number), 4);
    expected += number;
  }
  folder.write("numbers", bytes);

  gpufs::mount fs(folder.path(), {.cache_nbytes = bytes.size() / 16, .page_nbytes = 4096});
  fs.prepare("numbers");  // registered before the kernel runs, so it pulls from the first miss on
  const example::device_array<std::uint64_t> sum(1);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = 4, .block = 64}, sum_file{fs.ref(), sum.get(), error.get()});

  example::check(error.read_one() == 0, "every page could be mapped");
  example::check(sum.read_one() == expected, "the sum of 1 MiB of numbers, through a cache of 64 KiB");
}
