// SPDX-License-Identifier: Apache-2.0
// A small file whose pages host threads read, by a store that is slow, fails or stops where a test says.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

class staged_file : public ::testing::Test {
 protected:
  static constexpr std::uint32_t page = 512;
  static constexpr std::uint64_t seed = 5;

  // A mount of the file, `npages` long.
  mount make(std::uint32_t npages, std::uint32_t nframes, std::chrono::nanoseconds io_timeout = std::chrono::seconds(60)) {
    mount_options o = options_of(npages, nframes);
    o.io_timeout = io_timeout;
    return mount(dir_.path(), o);
  }
  mount_options options_of(std::uint32_t npages, std::uint32_t nframes) {
    dir_.add("file", std::uint64_t{npages} * page, seed);
    store_ =
        std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
    mount_options o;
    o.cache_nbytes = std::uint64_t{nframes} * page;
    o.page_nbytes = page;
    o.custom_store = store_;
    o.nworkers = 8;
    o.internals.request_batch = 1;
    o.frame_timeout = std::chrono::seconds(20);
    return o;
  }
  faults& wrong() { return store_->wrong(); }

  // What a call of a group shall have read.
  struct wanted {
    std::size_t call, bytes;  // whose value, and whose bytes
    std::uint64_t nbytes, offset;
  };
  // Lets groups of one kind, with hardly a frame or request slot for each of them, call what `write` makes of their scripts (in
  // between an open and a close of the file 0): write(draw, script) gives the reads. All get what they want, or an error that the
  // store has given.
  template <class Write>
  void let_many_groups(std::uint64_t trial, bool with_errors, Write write) {
    random_source draw(trial);
    const std::string repeat = "GPUFS_TEST_SEED=" + std::to_string(trial);
    mount_options o = options_of(96, static_cast<std::uint32_t>(draw.between(8, 60)));
    wrong().delay_ns = draw.percent(50) ? 20'000 : 0;
    wrong().fail_every = with_errors && draw.percent(30) ? 7 : 0;
    o.nworkers = static_cast<std::uint32_t>(draw.between(2, 4));
    o.internals.request_rings = static_cast<std::uint32_t>(draw.between(1, 3));
    o.internals.request_slots = 2;
    const mount m(dir_.path(), o);
    const group_kind kind = draw.pick(std::vector<group_kind>{group_kind::tile8, group_kind::warp, group_kind::block});
    players groups(m.ref(), {.grid = 3,
                             .block = 64,
                             .schedule = {.seed = trial, .resident_blocks = 3, .switch_percent = draw.percent(50) ? 20u : 100u},
                             .all = kind});
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<wanted>> reads;
    for (script& s : scripts) {
      s.open(0, "file");
      reads.push_back(write(draw, s));
      s.close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const wanted& w : reads[g]) {
        if (wrong().fail_every != 0 && got[g][w.call].value == -EIO) continue;
        ASSERT_EQ(got[g][w.call].value, static_cast<std::int64_t>(w.nbytes)) << repeat << " group " << g;
        EXPECT_EQ(wrong_bytes(got[g][w.bytes], w.nbytes, seed, w.offset), 0u) << repeat << " group " << g;
      }
    }
    EXPECT_EQ(m.counters().pins, 0u) << repeat;
    EXPECT_EQ(m.counters().io_timeouts, 0u) << repeat;
  }

  temp_dir dir_;
  std::shared_ptr<faulty_store> store_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
