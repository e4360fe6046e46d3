// SPDX-License-Identifier: Apache-2.0
// A page cache of chosen dimensions, laid out by the host as a mount does it, for tests that use the cache without files.
#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/cache/detail/page_cache.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

struct box_shape {
  std::uint32_t nframes = 8;
  std::uint32_t nbuckets = 4;
  std::uint32_t nrings = 1;
  std::uint32_t ahead = 0;
  std::uint32_t page_shift = 9;
};

struct frame_facts {
  cache::page_key key;
  std::uint64_t state;
};

class cache_box {
 public:
  explicit cache_box(const box_shape& shape)
      : shape_(shape),
        operations_and_states_(states_of(shape)),
        keys_(shape.nframes),
        data_(static_cast<std::size_t>(shape.nframes) << shape.page_shift),
        buckets_(shape.nbuckets),
        headers_(shape.nbuckets + cache::nuses),
        rings_(rings_of(shape)),
        resident_(1) {
    layout_.frames = {operations_and_states_.get() + shape.nframes, keys_.get(), data_.get(), shape.nframes, shape.page_shift,
                      cache::reciprocal_of(shape.nframes)};
    layout_.table = {buckets_.get(), headers_.get(), shape.nbuckets - 1, static_cast<std::uint32_t>(std::bit_width(shape.nframes))};
    layout_.rings = {rings_.get(), shape.nrings};
    resident_.write_one(layout_);
  }

  const cache::cache_layout& layout() const { return layout_; }
  const cache::cache_layout* resident() const { return resident_.get(); }
  std::vector<frame_facts> meta() const {
    const std::vector<std::uint64_t> words = operations_and_states_.read(), keys = keys_.read();
    std::vector<frame_facts> facts;
    for (std::size_t f = 0; f < keys.size(); ++f) {
      const std::uint64_t state = words[keys.size() + f];
      facts.push_back({cache::page_key{cache::sealed(keys[f], state)}, state});
    }
    return facts;
  }
  std::vector<cache::bucket> buckets() const { return buckets_.read(); }
  std::vector<std::uint32_t> headers() const { return headers_.read(); }
  std::vector<cache::clock_ring> rings() const { return rings_.read(); }
  const box_shape& shape() const { return shape_; }

  std::uint32_t free_frames() const {
    std::uint32_t n = 0;
    for (const frame_facts& f : meta()) n += (f.state & cache::frame_state::free) != 0;
    return n;
  }
  std::uint32_t pins() const {
    std::uint32_t n = 0;
    for (const frame_facts& f : meta()) n += f.state / cache::frame_state::one_pin;
    return n;
  }
  std::uint64_t evictions() const {
    std::uint64_t n = 0;
    for (const cache::clock_ring& r : rings()) n += r.evictions;
    return n;
  }
  // Which key each frame holds, as the page table says: frame -> how many entries name it.
  std::map<std::uint32_t, int> entries() const {
    std::map<std::uint32_t, int> named;
    for (const cache::bucket& b : buckets()) {
      for (const std::uint32_t slot : b.slots) {
        if (slot != 0) ++named[(slot & ((1u << layout_.table.frame_bits) - 1)) - 1];
      }
    }
    return named;
  }

 private:
  static std::vector<std::uint64_t> states_of(const box_shape& shape) {
    std::vector<std::uint64_t> words(2 * std::size_t{shape.nframes});
    std::fill(words.begin() + shape.nframes, words.end(), cache::frame_state::claimed | cache::frame_state::free);
    return words;
  }
  static std::vector<cache::clock_ring> rings_of(const box_shape& shape) {
    std::vector<cache::clock_ring> rings;
    for (std::uint32_t i = 0; i < shape.nrings; ++i) {
      const std::uint32_t n = shape.nframes / shape.nrings + (i < shape.nframes % shape.nrings ? 1 : 0);
      rings.push_back({.hand = 0, .nframes = n, .ahead = shape.ahead, .used = 0, .evictions = 0, .allocations = 0});
    }
    return rings;
  }

  box_shape shape_;
  device_buffer<std::uint64_t> operations_and_states_, keys_;
  device_buffer<std::byte> data_;
  device_buffer<cache::bucket> buckets_;
  device_buffer<std::uint32_t> headers_;
  device_buffer<cache::clock_ring> rings_;
  device_buffer<cache::cache_layout> resident_;
  cache::cache_layout layout_{};
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
