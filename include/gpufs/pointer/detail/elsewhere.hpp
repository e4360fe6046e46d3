// SPDX-License-Identifier: Apache-2.0
// Accesses through pointers that are linked to no page: element by element, with a pin for no longer than that, or past the cache.
#pragma once
#include "gpufs/pointer/detail/fault.hpp"
#include "gpufs/pointer/detail/stores.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Copies nbytes at `position` of the file to or from `bytes` (the lane's own), page by page, with a pin for no longer than that;
// what is read and cannot be pinned, past the cache. error: why it was not linked to, if that was tried. An access that fails is
// recorded: 0 or its errno. Then a read gives zeros, and a write has changed what lies before the page that failed.
template <class Handler, bool Write>
GPUFS_DEVICE_COLD int access_elsewhere(mapping_name name, Handler handler, bounds within, std::uint64_t position, std::byte* bytes,
                                       std::uint32_t nbytes, int error) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  if (!Write && is_unpinnable(error) && !within.have(position, nbytes)) error = -ENXIO;  // a part of it may lie within
  if (error == 0 && nbytes != 0) {                                                       // else there is nothing to do, but to help
    error = check_name(name);
    if (error == 0 && !within.have(position, nbytes)) error = -ENXIO;
  }
  const mapping_entry* from = entry_of(name);
  const std::uint32_t shift = error == 0 && nbytes != 0 ? from->hit.frames.page_shift : 0;
  std::uint32_t done = 0;
  if constexpr (Write) {
    if (error == 0 && !is_private(from->cache_id)) {
      error = simt::call_cold(&store_elsewhere, name, position, bytes, nbytes);
      done = nbytes;
    }
  }
  for (;;) {
    const bool wanted = error == 0 && done < nbytes;
    if (lanes.ballot_lanes(wanted) == 0) break;
    const std::uint64_t at = position + done;
    const auto page = wanted ? static_cast<std::uint32_t>(at >> shift) : no_page;
    const std::uint32_t in_page = static_cast<std::uint32_t>(at) & ((1u << shift) - 1), left = (1u << shift) - in_page;
    std::uint32_t sectors = whole_page;
    if constexpr (!Write && std::is_same_v<Handler, no_handler>) {
      if (wanted) sectors = cache::sectors::of_bytes(shift, in_page, in_page + (nbytes - done < left ? nbytes - done : left));
    }
    const std::int64_t got = simt::call_cold(&pin_rest<Handler, Write>, name, handler, page, sectors, pin_again, held_pages{});
    const std::uint32_t served = lanes.ballot_lanes(wanted && got > 0);
    std::uint64_t address = 0;
    if (wanted && got > 0) {
      const auto pinned = static_cast<std::uint64_t>(got);
      const std::uint32_t in_unit = in_page & ((1u << unit_shift(pinned, shift)) - 1);
      std::byte* data = reinterpret_cast<std::byte*>(address_in(pinned)) + in_unit;
      address = reinterpret_cast<std::uint64_t>(data);
      if constexpr (Write) keep_private_copy(from, address);
      for (std::uint32_t i = 0; i < left && done < nbytes; ++i, ++done) {
        if constexpr (Write) {
          data[i] = bytes[done];
        } else {
          bytes[done] = data[i];
        }
      }
    } else if (wanted && (!Write || got != -ENOMEM || served == 0)) {
      error = static_cast<int>(got);  // else, while others get on, frames come free: try again
    }
    unpin_pages<Write>(lanes, from, {address, address != 0 ? 1u : 0u});
  }
  if (!Write && is_unpinnable(error)) {
    error =
        simt::call_cold(&read_past_cache<Handler>, name, handler, error == -EMFILE, position + done, bytes + done, nbytes - done);
  }
  if (error != 0) {
    if constexpr (Write) {
      note_failed_write(name, {within, position, nbytes}, error);
    } else {
      for (std::uint32_t i = 0; i < nbytes; ++i) bytes[i] = std::byte{0};
      note_failed_read(name, {within, position, nbytes}, error);
    }
  }
  return error;
}

// Reads `count` elements at these positions, each as access_elsewhere does (error: of the first), but for those whose bit in `done`
// is set: 0 or the first errno. Lanes that are together should all call, as they help each other.
template <class Handler>
GPUFS_DEVICE_COLD int gather_elsewhere(mapping_name name, Handler handler, bounds within, const std::uint64_t* positions,
                                       std::byte* bytes, std::uint32_t nbytes, std::uint32_t count, std::uint32_t done, int error) {
  int first = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    const int failed = access_elsewhere<Handler, false>(name, handler, within, positions[k], bytes + std::size_t{k} * nbytes,
                                                        (done >> k & 1) != 0 ? 0 : nbytes, k == 0 ? error : 0);
    if (first == 0) first = failed;
  }
  return first;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
