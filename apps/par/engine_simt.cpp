// SPDX-License-Identifier: Apache-2.0
#include "apps/par/engine_device.hpp"
#include "gpufs/par/sort.hpp"

namespace gpufs::apps::par {

template <class Bits, bool WithNumbers>
struct sort_kernel {
  Bits *keys, *keys_room;
  std::uint32_t *numbers, *numbers_room;
  std::uint64_t n;
  gpufs::par::scan_space space;

  GPUFS_DEVICE void operator()() const {
    if constexpr (WithNumbers) {
      gpufs::par::sort(simt::this_grid(), keys, numbers, n, keys_room, numbers_room, space);
    } else {
      gpufs::par::sort(simt::this_grid(), keys, n, keys_room, space);
    }
  }
};

// par's own sort.
template <class Bits>
class own_sorter {
  static constexpr unsigned nblocks = 2;

 public:
  own_sorter(std::span<std::byte> space, simt::platform&) : space_(space) {}
  static std::uint64_t nbytes_for(std::uint64_t, bool) { return gpufs::par::scan_space::nbytes_to_sort(nblocks); }

  bool sort(Bits* keys, Bits* room, std::uint64_t n, const simt::stream& on) const {
    return run(sort_kernel<Bits, false>{keys, room, nullptr, nullptr, n, space()}, on);
  }
  bool sort(Bits* keys, Bits* room, std::uint32_t* numbers, std::uint32_t* numbers_room, std::uint64_t n,
            const simt::stream& on) const {
    return run(sort_kernel<Bits, true>{keys, room, numbers, numbers_room, n, space()}, on);
  }

 private:
  gpufs::par::scan_space space() const { return {space_.data(), space_.size()}; }
  template <class Kernel>
  static bool run(const Kernel& kernel, const simt::stream& on) {
    simt::launch<nthreads>(config_of(nblocks, true), kernel, on);
    return false;
  }

  std::span<std::byte> space_;
};

std::unique_ptr<engine> make_engine_simt(int device) { return std::make_unique<device_engine<own_sorter>>(simt::device(device)); }

}  // namespace gpufs::apps::par
