// SPDX-License-Identifier: Apache-2.0
// Two NVMe controllers as one file: a stripe over a namespace of each, and a mirror of two others. A kernel writes numbers to both
// files; then one controller goes, and the mirror is read still.
#include <memory>

#include "example.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"

constexpr std::uint32_t nnumbers = 64 << 10, numbers_a_warp = 4096;

struct write_numbers {
  gpufs::mount_ref fs;
  const char* path;
  std::uint32_t* numbers;  // those that the file gets
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto begin = static_cast<std::uint32_t>(gpufs::simt::global_warp_rank()) * numbers_a_warp;
    for (auto i = begin + warp.rank(); i < begin + numbers_a_warp; i += warp.size()) numbers[i] = i * 2654435761u;
    warp.sync();
    const gpufs::file f = gpufs::open(warp, fs, path, O_RDWR);
    const std::uint64_t nbytes = numbers_a_warp * sizeof numbers[0];
    const auto written = gpufs::pwrite(warp, f, numbers + begin, nbytes, static_cast<std::int64_t>(begin * sizeof numbers[0]));
    const int synced = gpufs::fsync(warp, f);
    if (warp.leader() && (written != static_cast<std::int64_t>(nbytes) || synced != 0)) *error = synced != 0 ? synced : -EIO;
    gpufs::close(warp, f);
  }
};

struct add_up {
  gpufs::mount_ref fs;
  const char* path;
  std::uint64_t* sum;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file f = gpufs::open(warp, fs, path);
    const auto numbers = gpufs::map<const std::uint32_t>(warp, f);
    std::uint64_t mine = 0;
    const auto begin = static_cast<std::uint32_t>(gpufs::simt::global_warp_rank()) * numbers_a_warp;
    for (auto i = begin + warp.rank(); i < begin + numbers_a_warp; i += warp.size()) mine += numbers[i];
    mine = warp.reduce_add(mine);
    if (warp.leader()) {
      if (numbers.error() != 0) *error = numbers.error();
      gpufs::simt::atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
    }
    gpufs::close(warp, f);
  }
};

int main() {
  std::uint64_t expected = 0;
  for (std::uint32_t i = 0; i < nnumbers; ++i) expected += i * 2654435761u;

  auto& device = gpufs::simt::this_platform();
  const gpufs::nvme::soft_options as{.nblocks = 1024, .nnamespaces = 2, .latency_ns = 20'000};
  const auto first = std::make_shared<gpufs::nvme::soft_controller>(device, as);
  const auto second = std::make_shared<gpufs::nvme::soft_controller>(device, as);
  using gpufs::store::nvme_store;
  using gpufs::store::nvme_volume_kind;
  const auto store = std::make_shared<nvme_store>(
      device, nvme_store::controllers{first, second}, gpufs::nvme::controller_options{.writable = true},
      std::vector<gpufs::store::nvme_volume>{
          {.name = "fast", .kind = nvme_volume_kind::stripe, .parts = {"c0n1", "c1n1"}, .unit_nbytes = 64 << 10},
          {.name = "safe", .kind = nvme_volume_kind::mirror, .parts = {"c0n2", "c1n2"}}});
  const gpufs::mount fs("", {.cache_nbytes = 128 << 10, .custom_store = store, .writable = true});

  const example::device_array<std::uint32_t> numbers(nnumbers);
  const example::device_array<std::uint64_t> sums(2);
  const example::device_array<int> error(1);
  const std::string names("fast\0safe", 10);  // with both ends
  const example::device_array<char> paths{std::span<const char>(names)};
  const char* const fast = paths.get();
  const char* const safe = fast + 5;
  const gpufs::simt::launch_config all{.grid = 4, .block = 128};
  gpufs::simt::launch(all, write_numbers{fs.ref(), fast, numbers.get(), error.get()});
  gpufs::simt::launch(all, write_numbers{fs.ref(), safe, numbers.get(), error.get()});
  gpufs::simt::launch(all, add_up{fs.ref(), fast, sums.get(), error.get()});
  second->unplug();
  gpufs::simt::launch(all, add_up{fs.ref(), safe, sums.get() + 1, error.get()});
  example::check(error.read_one() == 0, "all numbers were written and read");
  const std::vector<std::uint64_t> got = sums.read();
  example::check(got[0] == expected, "the stripe has them");
  example::check(got[1] == expected, "so has the mirror, of which one controller is gone");
}
