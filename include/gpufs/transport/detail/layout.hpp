// SPDX-License-Identifier: Apache-2.0
// The memory of the rings between kernels and the host's threads. The host lays it out (src/transport/), and both sides use it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/transport/detail/wire.hpp"

namespace gpufs::transport {

// The rings of one mount, as both sides see them (addresses valid on host and device). Ring r, slot s is element r * nslots + s;
// its payload begins at payload + (r * nslots + s) * payload_stride. nslots is a power of two. If the mount may write, a mask
// follows the payload: bit i % 32 of word i / 32 says whether byte i of the payload is to be written.
struct ring_layout {
  request* requests;
  reply* replies;
  std::byte* payload;
  std::uint32_t nrings;
  std::uint32_t nslots;
  std::uint32_t payload_nbytes;  // max(page size, 4096)
  std::uint32_t payload_stride;  // the same; if the mount may write, with room for a mask or a second path
};
static_assert(sizeof(ring_layout) == 40 && offsetof(ring_layout, requests) == 0 && offsetof(ring_layout, replies) == 8);
static_assert(offsetof(ring_layout, payload) == 16 && offsetof(ring_layout, nrings) == 24 && offsetof(ring_layout, nslots) == 28);
static_assert(offsetof(ring_layout, payload_nbytes) == 32 && offsetof(ring_layout, payload_stride) == 36);

// The kernels' part: the rings, and in device memory the words that say which slots are in use.
struct transport_layout {
  ring_layout rings;
  std::uint32_t* tails;  // per ring: the next ticket
  std::uint32_t* turns;  // per slot: how often it was used; see requests.hpp
};
static_assert(sizeof(transport_layout) == 56 && offsetof(transport_layout, rings) == 0);
static_assert(offsetof(transport_layout, tails) == 40 && offsetof(transport_layout, turns) == 48);

}  // namespace gpufs::transport
