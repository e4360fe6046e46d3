// SPDX-License-Identifier: Apache-2.0
#include "make_layout.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpufs::cache {
namespace {

constexpr std::uint64_t frame_words_nbytes = words_of_frame * sizeof(std::uint64_t);

// Large caches begin where a large page of the device's memory does.
std::uint64_t alignment_of(std::uint64_t nframes, std::uint32_t page_nbytes) {
  constexpr std::uint64_t large = 2u << 20;
  return nframes * page_nbytes >= 32 * large ? large : std::max<std::uint64_t>(packed_alignment, page_nbytes);
}

frame_storage make_frames(simt::device_memory& memory, const cache_options& o) {
  const std::uint64_t nbytes = frames_nbytes(o.nframes, o.page_nbytes);
  const std::uint64_t states_and_keys_nbytes = 2 * sizeof(std::uint64_t) * o.nframes;
  const std::uint64_t words_nbytes = frame_words_nbytes * o.nframes;
  const std::uint64_t alignment = alignment_of(o.nframes, o.page_nbytes);
  std::byte* all = o.frames.data();
  if (o.frames.empty()) {
    all = memory.allocate<std::byte>(nbytes);
  } else {
    memory.zero(all, nbytes);
  }
  const auto end_of_words = reinterpret_cast<std::uintptr_t>(all) + words_nbytes;
  std::byte* const data = all + words_nbytes + (alignment - end_of_words % alignment) % alignment;
  auto* const states = reinterpret_cast<std::uint64_t*>(data - states_and_keys_nbytes);
  const std::vector<std::uint64_t> initial(o.nframes, frame_state::claimed | frame_state::free);
  memory.write(states, std::span(initial));
  return {states,
          states + o.nframes,
          data,
          o.nframes,
          static_cast<std::uint32_t>(std::countr_zero(o.page_nbytes)),
          reciprocal_of(o.nframes)};
}

table_storage make_table(simt::device_memory& memory, std::uint32_t nframes) {
  const std::uint32_t nbuckets = buckets_for(nframes);
  return {memory.allocate<bucket>(nbuckets), memory.allocate<std::uint32_t>(nbuckets + nuses), nbuckets - 1,
          static_cast<std::uint32_t>(std::bit_width(nframes))};
}

ring_storage make_rings(simt::device_memory& memory, std::uint32_t nframes, std::uint32_t nrings) {
  std::vector<clock_ring> rings(nrings);
  for (std::uint32_t i = 0; i < nrings; ++i) {
    const std::uint32_t n = nframes / nrings + (i < nframes % nrings ? 1 : 0);
    rings[i] = {.hand = 0, .nframes = n, .ahead = std::min(n / 8, 32u), .used = 0, .evictions = 0, .allocations = 0};
  }
  return {memory.allocate(rings), nrings};
}

dirty_storage make_dirty_storage(simt::device_memory& memory, const cache_options& o) {
  return {memory.allocate<std::uint32_t>(std::size_t{o.nframes} * (o.page_nbytes / 32)), memory.allocate<std::uint32_t>(o.nframes),
          memory.allocate<twin_state>(o.nframes)};
}

}  // namespace

std::uint64_t frames_nbytes(std::uint32_t nframes, std::uint32_t page_nbytes) {
  return alignment_of(nframes, page_nbytes) + std::uint64_t{nframes} * (frame_words_nbytes + page_nbytes);
}

std::uint32_t frames_within(std::uint64_t nbytes, std::uint32_t page_nbytes) {
  constexpr std::uint64_t most = 1u << 28;
  auto n = static_cast<std::uint32_t>(std::min(nbytes / (frame_words_nbytes + page_nbytes), most));
  while (n > 0 && frames_nbytes(n, page_nbytes) > nbytes) --n;  // for the alignment, at most 2 MiB
  return n;
}

cache_layout make_layout(simt::device_memory& memory, const cache_options& options) {
  cache_layout layout{};
  layout.frames = make_frames(memory, options);
  layout.table = make_table(memory, options.nframes);
  layout.rings = make_rings(memory, options.nframes, options.nrings);
  if (options.writable) layout.dirty = make_dirty_storage(memory, options);
  return layout;
}

touched_storage make_touched(simt::device_memory& memory, std::uint32_t nframes) {
  touched_storage made{nullptr, std::bit_ceil(nframes) - 1};
  made.words = memory.allocate<std::uint32_t>(std::size_t{made.mask} + 33);
  return made;
}

}  // namespace gpufs::cache
