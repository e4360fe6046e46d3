// SPDX-License-Identifier: Apache-2.0
// Several devices in one process: each has a mount of the folder, which is its own cache of it, and a stream; all work at once,
// each on its share of the files. One GPU does all of it alone. The CPU machine has two devices.
#include <memory>

#include "example.hpp"

constexpr int nparts = 24;
constexpr int numbers_a_part = 5000;
constexpr unsigned grid = 2, block = 64;

struct block_paths {
  char of_warp[block / 32][16];
};

struct add_up {
  gpufs::mount_ref fs;
  int first, nth;  // of the parts: every nth from the first on
  std::uint64_t* sum;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    auto& path = gpufs::simt::shared<block_paths>().of_warp[gpufs::simt::warp_rank()];
    const int step = nth * static_cast<int>(gpufs::simt::global_warp_count());
    for (int part = first + nth * static_cast<int>(gpufs::simt::global_warp_rank()); part < nparts; part += step) {
      if (warp.leader()) gpufs::format_path(path, "part-", gpufs::padded(part, 3));
      warp.sync();
      const gpufs::file f = gpufs::open(warp, fs, path);
      const auto numbers = gpufs::map<const std::uint32_t>(warp, f);
      std::uint64_t mine = 0;
      for (unsigned i = warp.rank(); i < numbers_a_part; i += warp.size()) mine += numbers[i];
      mine = warp.reduce_add(mine);
      if (warp.leader()) {
        if (numbers.error() != 0) *error = numbers.error();
        gpufs::simt::atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
      }
      gpufs::close(warp, f);
    }
  }
};

// What a device has: all of it is the device's, whichever is current.
struct share {
  gpufs::mount fs;
  gpufs::simt::stream turns;
  example::device_array<std::uint64_t> sum;
  example::device_array<int> error;

  share(const std::string& folder, int device)
      : fs(folder, {.device = device, .cache_nbytes = 1 << 20}), turns(fs.device()), sum(1, fs.device()), error(1, fs.device()) {}
};

int main() {
  const example::folder folder;
  std::uint64_t expected = 0;
  for (int part = 0; part < nparts; ++part) {
    std::vector<std::uint32_t> numbers(numbers_a_part);
    for (std::size_t i = 0; i < numbers.size(); ++i) expected += numbers[i] = static_cast<std::uint32_t>(i) * 2654435761u + part;
    char name[16];
    gpufs::format_path(name, "part-", gpufs::padded(part, 3));
    folder.write(name, std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]));
  }

  const int ndevices = gpufs::simt::device_count();
  std::vector<std::unique_ptr<share>> shares;
  for (int i = 0; i < ndevices; ++i) shares.push_back(std::make_unique<share>(folder.path(), i));
  for (int i = 0; i < ndevices; ++i) {  // begins all of them, and waits for none
    const share& s = *shares[static_cast<std::size_t>(i)];
    gpufs::simt::launch({.grid = grid, .block = block}, add_up{s.fs.ref(), i, ndevices, s.sum.get(), s.error.get()}, s.turns);
  }
  std::uint64_t sum = 0;
  for (const auto& s : shares) {
    s->turns.wait();
    example::check(s->error.read_one() == 0, "device " + std::to_string(s->fs.device().index()) + " has read its files");
    if (s->fs.device().index() < nparts) example::check(s->fs.counters().faults != 0, "into its own cache");
    sum += s->sum.read_one();
  }
  example::check(sum == expected, "the devices' sums are the sum of all files");
}
