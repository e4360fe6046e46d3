// SPDX-License-Identifier: Apache-2.0
// Updates without a link where all frames are pinned, or being filled: they wait for as long as the mount says, and then fail.
#include <chrono>
#include <cstring>

#include "file/faulty_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr unsigned nframes = 8;

// Warp 0's pointers hold all frames, first for 20 ms and then for as long as warp 1 works, which updates a page a lane.
struct held_frames : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::int64_t* r = mine();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const bool holds = simt::warp_rank() == 0;
      auto held = map<const std::uint32_t>(warp, f) + simt::lane_id() * per_page;
      const auto hold = [&] {
        if (holds && simt::lane_id() < nframes) r[0] = held.fault_in();
        this_block().sync();
      };
      const auto w = map<std::uint32_t>(warp, f);
      const std::int64_t i = (8 + simt::lane_id()) * per_page + simt::lane_id();
      hold();
      if (holds) {
        simt::backoff pause;
        for (const simt::deadline kept(20'000'000); warp.broadcast(!kept.expired());) pause();
        held.unlink();
      } else {
        r[0] = fetch_add_at(w, i, 1u);
        r[1] = w.error();
        fsync(warp, f);  // pages that are dirty keep their frames
      }
      this_block().sync();
      hold();
      if (!holds) {
        r[2] = fetch_add_at(w, i, 1u);
        r[3] = w.error();
      }
      this_block().sync();
    }
    warp.sync();
    r[4] = close(warp, f);
  }
};

struct starved_updates : pointer_fixture {
  starved_updates() {
    options.cache_nbytes = nframes * page;
    options.writable = true;
  }
};

void add_to_word(std::vector<std::byte>& bytes, std::int64_t i, std::uint32_t more) {
  const std::uint32_t now = word_at(i) + more;
  std::memcpy(&bytes[static_cast<std::size_t>(i) * sizeof now], &now, sizeof now);
}

TEST_F(starved_updates, wait_for_a_frame_and_fail_when_none_comes) {
  options.frame_timeout = std::chrono::seconds(2);
  run<held_frames>(1, 64);
  bool told = false;
  auto wanted = content(file_seed, 0, npages * page);
  for (unsigned t = 0; t < 8; ++t) EXPECT_EQ(result(t, 0), 0) << t;
  for (unsigned t = 32; t < 64; ++t) {
    const std::int64_t i = (8 + t - 32) * per_page + t - 32;
    EXPECT_EQ(result(t, 0), word_at(i)) << t;
    EXPECT_EQ(result(t, 1), 0) << t << ": frames are there after 20 ms";
    EXPECT_EQ(result(t, 2), 0) << t;
    EXPECT_EQ(result(t, 3), -ENOMEM) << t;
    add_to_word(wanted, i, 1);
  }
  for (unsigned t = 0; t < 64; ++t) told |= result(t, 4) == -ENOMEM;
  EXPECT_TRUE(told) << "one of the two closes tells";
  EXPECT_EQ(dir.read("f"), wanted) << "what failed changes nothing";
  EXPECT_EQ(fs().counters().fault_errors, 32u);
}

// Each warp updates its page, one of more than there are frames, and then all the same few, which the host brings in slowly.
struct slow_updates : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto w = map<std::uint32_t>(warp, f);
      fetch_add_at(w, (8 + thread() / 32) * per_page + simt::lane_id(), 1u);
      for (std::int64_t n = 0; n < 2; ++n) fetch_add_at(w, n * per_page + simt::lane_id(), 1u);
      mine()[0] = w.error();
    }
    warp.sync();
    mine()[1] = close(warp, f);
  }
};

TEST_F(starved_updates, wait_for_pages_that_others_bring_in_slowly) {
  const auto store =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path(), store::posix_options{.writable = true}));
  store->wrong().delay_ns = 700'000'000;
  options.custom_store = store;
  options.frame_timeout = std::chrono::milliseconds(300);  // less than all frames are being filled
  options.nworkers = 8;
  constexpr std::int64_t nwarps = 16;
  run<slow_updates>(nwarps / 2, 64);
  for (unsigned t = 0; t < 32 * nwarps; ++t) EXPECT_EQ(result(t, 0) + result(t, 1), 0) << t;
  auto wanted = content(file_seed, 0, npages * page);
  for (std::int64_t lane = 0; lane < 32; ++lane) {
    for (std::int64_t n = 0; n < 2; ++n) add_to_word(wanted, n * per_page + lane, nwarps);
    for (std::int64_t n = 8; n < 8 + nwarps; ++n) add_to_word(wanted, n * per_page + lane, 1);
  }
  EXPECT_EQ(dir.read("f"), wanted);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
  EXPECT_EQ(fs().counters().errors, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
