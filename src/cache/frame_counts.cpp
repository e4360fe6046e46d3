// SPDX-License-Identifier: Apache-2.0
#include "frame_counts.hpp"

namespace gpufs::cache {

frame_counts count_frames(const simt::device_memory& memory, const cache_layout& cache) {
  frame_counts sum{};
  for (const std::uint64_t state : memory.read(cache.frames.states, cache.frames.nframes)) {
    sum.pinned += (state & frame_state::pin_mask) != 0;
    sum.free += (state & frame_state::free) != 0;
    sum.dirty += (state & frame_state::dirty) != 0;
    sum.pins += state / frame_state::one_pin;
  }
  return sum;
}

}  // namespace gpufs::cache
