// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_radix_sort.cuh>

#include "apps/par/engine_device.hpp"

namespace gpufs::apps::par {

static void check(cudaError_t error) {
  if (error != cudaSuccess) throw simt::launch_error(std::string("a sort on the GPU: ") + cudaGetErrorString(error));
}

// CUB's radix sort.
template <class Bits>
class cub_sorter {
 public:
  cub_sorter(std::span<std::byte> space, simt::platform& device) : device_(device), space_(space) {}

  // Asks the current device.
  static std::uint64_t nbytes_for(std::uint64_t n, bool with_numbers) {
    cub::DoubleBuffer<Bits> keys(nullptr, nullptr);
    cub::DoubleBuffer<std::uint32_t> numbers(nullptr, nullptr);
    std::size_t nbytes = 0;
    check(with_numbers ? cub::DeviceRadixSort::SortPairs(nullptr, nbytes, keys, numbers, n)
                       : cub::DeviceRadixSort::SortKeys(nullptr, nbytes, keys, n));
    return nbytes;
  }

  bool sort(Bits* keys, Bits* room, std::uint64_t n, const simt::stream& on) const {
    const simt::on_device here(device_);
    cub::DoubleBuffer<Bits> both(keys, room);
    std::size_t nbytes = space_.size();
    check(cub::DeviceRadixSort::SortKeys(space_.data(), nbytes, both, n, 0, 8 * sizeof(Bits), on.get()));
    return both.selector != 0;
  }
  bool sort(Bits* keys, Bits* room, std::uint32_t* numbers, std::uint32_t* numbers_room, std::uint64_t n,
            const simt::stream& on) const {
    const simt::on_device here(device_);
    cub::DoubleBuffer<Bits> both(keys, room);
    cub::DoubleBuffer<std::uint32_t> both_numbers(numbers, numbers_room);
    std::size_t nbytes = space_.size();
    check(cub::DeviceRadixSort::SortPairs(space_.data(), nbytes, both, both_numbers, n, 0, 8 * sizeof(Bits), on.get()));
    // Both go to and fro together.
    return both.selector != 0;
  }

 private:
  simt::platform& device_;
  std::span<std::byte> space_;
};

std::unique_ptr<engine> make_engine_cuda(int device) { return std::make_unique<device_engine<cub_sorter>>(simt::device(device)); }

}  // namespace gpufs::apps::par
