// SPDX-License-Identifier: Apache-2.0
// Watching a kernel work: the mount's counters can be read while it runs. And what errors look like.
#include <atomic>
#include <chrono>
#include <thread>

#include "example.hpp"

struct read_and_stumble {
  gpufs::mount_ref fs;
  int* errors;  // of the four mistakes below

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file f = gpufs::open(warp, fs, "data");
    std::uint64_t word = 0;
    for (int i = 0; i < 200; ++i) {
      const std::int64_t page_number = (i * 37 + gpufs::simt::block_rank() * 11) % 256;
      gpufs::pread(gpufs::this_thread(), f, &word, sizeof word, page_number * 4096 + warp.rank() * 8);
    }

    const gpufs::file missing = gpufs::open(warp, fs, "no such file");
    const gpufs::file outside = gpufs::open(warp, fs, "../../etc/passwd");
    const std::int64_t negative = gpufs::pread(warp, f, errors, sizeof *errors, -1);
    const std::int64_t beyond = gpufs::pread(warp, f, errors, sizeof *errors, 1 << 30);
    if (gpufs::simt::block_rank() == 0 && warp.leader()) {
      errors[0] = missing.error();
      errors[1] = outside.error();
      errors[2] = static_cast<int>(negative);
      errors[3] = static_cast<int>(beyond);
    }
    gpufs::close(warp, f);
  }
};

int main() {
  const example::folder folder;
  folder.write("data", std::string(1 << 20, 'x'));
  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 18});
  fs.prepare("data");
  const example::device_array<int> errors(4);

  std::atomic<bool> running = true;
  std::thread watcher([&] {
    while (running) {
      const gpufs::mount_counters now = fs.counters();
      std::printf("  now: %llu hits, %llu faults, %llu evictions\n", static_cast<unsigned long long>(now.hits),
                  static_cast<unsigned long long>(now.faults), static_cast<unsigned long long>(now.evictions));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  gpufs::simt::launch({.grid = 16, .block = 32}, read_and_stumble{fs.ref(), errors.get()});
  running = false;
  watcher.join();

  for (const gpufs::file_report& file : fs.open_files()) {
    std::printf("  %s: %s\n", file.path.c_str(), file.reason.c_str());
  }
  for (const std::string& line : fs.log()) std::printf("  log: %s\n", line.c_str());

  const std::vector<int> got = errors.read();
  example::check(got[0] == -ENOENT, "a missing file is -ENOENT");
  example::check(got[1] == -EXDEV, "a path out of the root is -EXDEV");
  example::check(got[2] == -EINVAL, "a negative offset is -EINVAL");
  example::check(got[3] == 0, "a read beyond the end gives 0 bytes");
  const gpufs::mount_counters counters = fs.counters();
  example::check(counters.bytes_read == 16u * 32 * 200 * 8, "the counters know every byte that was read");
  example::check(counters.faults >= 256 && counters.evictions > 0, "1 MiB went through a cache of 256 KiB");
}
