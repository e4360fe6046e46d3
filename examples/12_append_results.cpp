// SPDX-License-Identifier: Apache-2.0
// Writing: warps look for numbers in a file and append those they find to another one, which nobody has sized before. The host
// reads the results as it reads any file.
#include <fstream>

#include "example.hpp"

struct find_multiples {
  gpufs::mount_ref fs;
  std::int64_t* result;  // of each warp: how many, or a negative errno

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto nwarps = static_cast<std::int64_t>(gpufs::simt::global_warp_count());
    const auto me = static_cast<std::int64_t>(gpufs::simt::global_warp_rank());

    const gpufs::file in = gpufs::open(warp, fs, "numbers");
    const gpufs::file out = gpufs::open(warp, fs, "multiples", O_WRONLY | O_CREAT);
    const gpufs::file_status status = gpufs::fstat(warp, in);
    int error = status.error;
    std::int64_t total = 0;
    for (std::int64_t offset = me * 4096; offset < status.nbytes && error == 0; offset += nwarps * 4096) {
      gpufs::mapped_page p = gpufs::map_page(warp, in, offset);
      error = p.error();
      if (error != 0) break;
      const auto* numbers = reinterpret_cast<const std::uint32_t*>(p.data());
      std::uint32_t found[32], n = 0;  // each lane's own
      for (std::uint32_t i = warp.rank(); i < p.nbytes() / 4; i += 32) {
        if (numbers[i] % 1000 == 0) found[n++] = numbers[i];
      }
      gpufs::unmap_page(warp, std::move(p));
      // What each lane has found, one behind the other, wherever the end of the file is now: nobody else's bytes lie there.
      const std::int64_t at = gpufs::append_each(warp, out, found, n * 4);
      error = static_cast<int>(warp.reduce_min(at < 0 ? at : 0));
      total += warp.reduce_add(n);
    }
    gpufs::close(warp, in);
    const int closed = gpufs::close(warp, out);  // what was written is in the file, or this says why not
    if (warp.leader()) result[me] = error != 0 ? error : closed != 0 ? closed : total;
  }
};

int main() {
  const example::folder folder;
  std::uint64_t expected = 0, nexpected = 0;
  std::string bytes;
  for (std::uint32_t i = 0; i < 1u << 17; ++i) {
    const std::uint32_t number = i * 2654435761u;
    bytes.append(reinterpret_cast<const char*>(&number), 4);
    expected += number % 1000 == 0 ? number : 0;
    nexpected += number % 1000 == 0;
  }
  folder.write("numbers", bytes);

  constexpr unsigned nwarps = 8;
  std::int64_t total = 0;
  {
    gpufs::mount fs(folder.path(), {.cache_nbytes = 16 * 4096, .writable = true});
    const example::device_array<std::int64_t> result(nwarps);
    gpufs::simt::launch({.grid = 4, .block = 64}, find_multiples{fs.ref(), result.get()});
    for (const std::int64_t n : result.read()) {
      example::check(n >= 0, "a warp read, appended and closed");
      total += n;
    }
  }
  std::ifstream file(folder.path() + "/multiples", std::ios::binary);
  std::uint64_t sum = 0, n = 0;
  for (std::uint32_t number = 0; file.read(reinterpret_cast<char*>(&number), 4); ++n) sum += number;
  example::check(n == nexpected && total == static_cast<std::int64_t>(nexpected), "as many as there are");
  example::check(sum == expected, "each of them once");
}
