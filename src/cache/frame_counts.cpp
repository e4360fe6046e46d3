// SPDX-License-Identifier: Apache-2.0
#include "frame_counts.hpp"

#include <cstddef>

namespace gpufs::cache {

frame_counts count_frames(const simt::device_memory& memory, const cache_layout& cache) {
  frame_counts sum{};
  // First what is gone first: an operation's word is 0 before its pin is given back.
  const auto operations = memory.read(operations_of(cache.frames), cache.frames.nframes);
  const auto states = memory.read(cache.frames.states, cache.frames.nframes);
  for (std::size_t f = 0; f < states.size(); ++f) {
    const bool under_way = operations[f] != 0 && (states[f] & frame_state::filling) != 0 && states[f] >= frame_state::one_pin;
    const std::uint64_t pins = states[f] / frame_state::one_pin - (under_way ? 1 : 0);
    sum.pinned += pins != 0;
    sum.free += (states[f] & frame_state::free) != 0;
    sum.dirty += (states[f] & frame_state::dirty) != 0;
    sum.pins += pins;
    sum.under_way += under_way;
  }
  return sum;
}

}  // namespace gpufs::cache
