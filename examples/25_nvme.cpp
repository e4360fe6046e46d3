// SPDX-License-Identifier: Apache-2.0
// An NVMe controller as a file system: a file for each namespace. Kernels that miss a page send the controller commands for its
// blocks, and no thread of the host is on the way. Here it is a controller in software over an image; what reaches a device derives
// nvme::controller_access as that does.
#include <memory>

#include "example.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"

constexpr std::uint32_t nnumbers = 256 << 10;

struct add_up {
  gpufs::mount_ref fs;
  std::uint64_t* sum;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file f = gpufs::open(warp, fs, "n1");
    const auto numbers = gpufs::map<const std::uint32_t>(warp, f);
    std::uint64_t mine = 0;
    const auto step = static_cast<std::uint32_t>(gpufs::simt::global_warp_count()) * warp.size();
    for (auto i = static_cast<std::uint32_t>(gpufs::simt::global_warp_rank()) * warp.size() + warp.rank(); i < nnumbers;
         i += step) {
      mine += numbers[i];
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) {
      if (numbers.error() != 0) *error = numbers.error();
      gpufs::simt::atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
    }
    gpufs::close(warp, f);
  }
};

int main() {
  const example::folder folder;
  std::vector<std::uint32_t> numbers(nnumbers);
  std::uint64_t expected = 0;
  for (std::uint32_t i = 0; i < nnumbers; ++i) expected += numbers[i] = i * 2654435761u;
  folder.write("image", std::string(reinterpret_cast<const char*>(numbers.data()), nnumbers * sizeof numbers[0]));

  auto& device = gpufs::simt::this_platform();
  const auto controller = std::make_shared<gpufs::nvme::soft_controller>(
      device, gpufs::nvme::soft_options{.image = folder.path() + "/image", .latency_ns = 20'000});
  const auto store = std::make_shared<gpufs::store::nvme_store>(device, controller);
  const gpufs::mount fs("", {.cache_nbytes = 256 << 10, .custom_store = store});
  const example::device_array<std::uint64_t> sum(1);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = 4, .block = 64}, add_up{fs.ref(), sum.get(), error.get()});
  example::check(error.read_one() == 0, "all numbers were read");
  example::check(sum.read_one() == expected, "their sum is the image's");
  example::check(fs.counters().host_reads == 0, "the host has read none of them");
}
