// SPDX-License-Identifier: Apache-2.0
// Counts the newlines of this project's own CMakeLists.txt in a kernel, and compares with the host's count.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <gpufs/gpufs.hpp>
#include <gpufs/version.hpp>
#include <iterator>
#include <string>

struct count_newlines {
  gpufs::mount_ref fs;
  std::uint32_t* count;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file f = gpufs::open(warp, fs, "CMakeLists.txt");
    char chunk[100];
    std::int64_t offset = 0;
    for (std::int64_t n; (n = gpufs::pread(gpufs::this_thread(), f, chunk, sizeof chunk, offset)) > 0; offset += n) {
      std::uint32_t here = 0;
      for (std::int64_t i = warp.rank(); i < n; i += warp.size()) here += chunk[i] == '\n';
      here = warp.reduce_add(here);
      if (warp.leader()) *count += here;
    }
    gpufs::close(warp, f);
  }
};

int main(int argc, char** argv) try {
  const std::string root = argc > 1 ? argv[1] : ".";
  std::ifstream in(root + "/CMakeLists.txt");
  const std::string text{std::istreambuf_iterator<char>(in), {}};

  gpufs::mount fs(root, {.cache_nbytes = 1 << 20});
  const gpufs::simt::device_array<std::uint32_t> count(1);
  gpufs::simt::launch({.grid = 1, .block = 32}, count_newlines{fs.ref(), count.get()});
  const auto expected = static_cast<std::uint32_t>(std::count(text.begin(), text.end(), '\n'));
  std::printf("gpufs %s on %s: %u newlines, expected %u\n", gpufs::version(),
              std::string(gpufs::simt::this_platform().name()).c_str(), count.read_one(), expected);
  return count.read_one() == expected && expected > 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return std::string(error.what()).find("CUDA") != std::string::npos ? 77 : 1;
}
