// SPDX-License-Identifier: Apache-2.0
// The host's end of the request rings by itself, and what it reads beside them: masks of written bytes, buffers of rows.
#include "../../src/transport/rings.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "../../src/transport/mask_runs.hpp"
#include "file/harness.hpp"

namespace gpufs::test {
namespace {

// Each slot of a ring is used for one request at a time, whatever the device writes.
TEST(rings, take_nothing_before_its_slot_is_answered) {
  transport::rings rings(simt::cpu_platform(), 1, 2, 4096, false);
  const transport::ring_layout ring = rings.layout().rings;
  std::vector<transport::taken_request> taken;
  const auto take = [&](std::uint32_t most) { return rings.take(0, most, [&](const auto& t) { taken.push_back(t); }); };
  EXPECT_FALSE(rings.pending(0));
  EXPECT_EQ(take(8), 0u);
  ring.requests[1].sequence = 2;
  EXPECT_EQ(take(8), 0u) << "in the order of tickets";
  ring.requests[0].sequence = 1;
  EXPECT_TRUE(rings.pending(0));
  EXPECT_EQ(take(8), 2u);
  EXPECT_EQ(taken[1].sequence, 2u);
  ring.requests[0].sequence = 3;  // the next lap, although nobody has answered the first
  EXPECT_EQ(take(8), 0u);
  rings.complete(0, 1, {});
  EXPECT_EQ(ring.replies[0].sequence, 1u);
  EXPECT_EQ(take(8), 1u);
  ring.requests[1].sequence = 4;
  EXPECT_EQ(take(8), 0u) << "the other slot is still in use";
  rings.complete(1, 2, {});
  EXPECT_EQ(take(8), 1u);
}

TEST(masks, have_runs_of_the_bits_that_are_set) {
  random_source draw(7);
  for (int round = 0; round < 2000; ++round) {
    std::uint32_t mask[4];
    for (std::uint32_t& word : mask) {
      const std::uint64_t kind = draw.between(0, 3);
      word = kind == 0 ? 0 : kind == 1 ? ~0u : static_cast<std::uint32_t>(draw.between(0, ~0u));
    }
    const auto begin = static_cast<std::uint32_t>(draw.between(0, 128)), end = static_cast<std::uint32_t>(draw.between(begin, 128));
    std::uint32_t at = begin;  // all below is accounted for
    const auto is_set = [&](std::uint32_t bit) { return (mask[bit / 32] >> bit % 32 & 1) != 0; };
    const int error = transport::each_run(mask, begin, end, [&](std::uint32_t first, std::uint32_t last) {
      EXPECT_LT(first, last);
      EXPECT_LE(last, end);
      EXPECT_TRUE(first == begin || first > at || at == begin) << "two runs side by side are one";
      for (; at < first; ++at) EXPECT_FALSE(is_set(at));
      for (; at < last; ++at) EXPECT_TRUE(is_set(at));
      return 0;
    });
    EXPECT_EQ(error, 0);
    for (; at < end; ++at) EXPECT_FALSE(is_set(at));
  }
}

TEST(masks, end_with_the_first_error) {
  const std::uint32_t mask[] = {0b1011};
  int nruns = 0;
  EXPECT_EQ(transport::each_run(mask, 0, 32, [&](std::uint32_t, std::uint32_t) { return ++nruns == 1 ? -EIO : 0; }), -EIO);
  EXPECT_EQ(nruns, 1);
}

// Each has room of its own, in rings that no write uses.
TEST(row_buffers, belong_to_some_slots) {
  for (const auto& [nrings, nslots] : {std::pair{1u, 4u}, {2u, 16u}, {4u, 8u}, {8u, 64u}, {64u, 16u}, {16u, 2048u}}) {
    transport::row_buffers buffers = transport::row_buffers_for(nrings, nslots);
    ASSERT_NE(buffers.nbytes, 0u);
    EXPECT_LE(buffers.count() * buffers.nbytes, 8u << 20);
    std::vector<std::byte> memory(transport::nbytes_of(buffers));
    EXPECT_FALSE(buffers.has(buffers.ring_begin * nslots)) << "without memory there are none";
    EXPECT_EQ(buffers.fitting(8), 0u);
    buffers.memory = memory.data();
    const std::byte* end = memory.data();
    std::uint32_t n = 0;
    for (std::uint32_t index = 0; index < nrings * nslots; ++index) {
      if (!buffers.has(index)) continue;
      ++n;
      EXPECT_TRUE(nrings < 4 || index / nslots % 2 == 1) << "writes use every second ring";
      EXPECT_EQ(reinterpret_cast<std::byte*>(buffers.list(index)), end) << "one behind the other";
      EXPECT_EQ(buffers.rows(index), end + transport::row_buffers::list_nbytes);
      end = buffers.rows(index) + buffers.nbytes;
    }
    EXPECT_EQ(n, buffers.count());
    EXPECT_EQ(end, memory.data() + memory.size());
    EXPECT_EQ(buffers.fitting(0), 0u);
    EXPECT_EQ(buffers.fitting(1), std::min(buffers.nbytes, transport::row_buffers::most_rows));
    EXPECT_EQ(buffers.fitting(buffers.nbytes), 1u);
    EXPECT_EQ(buffers.fitting(buffers.nbytes + 1), 0u);
  }
  EXPECT_EQ(transport::row_buffers_for(4, 4096).count(), 0u) << "rings of too many slots";
}

}  // namespace
}  // namespace gpufs::test
