// SPDX-License-Identifier: Apache-2.0
// Private mappings: what is written, who sees it, what is dropped. And lanes that meet while others open, close, and let go.
#include <filesystem>

#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using reader = ptr<const std::uint32_t>;
using writer = ptr<std::uint32_t>;

struct ptr_private : pointer_fixture {};

struct forms_kernel : pointer_job {
  std::byte* scratch;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path);
    std::int64_t* r = mine();
    {
      auto p = map<std::uint32_t>(me, f, 0, to_the_end, map_flags::private_changes);
      p[5] = 55;
      *(p + 6) = p[5];
      p[7] = 70;
      p[7] += 7;
      p[7] -= 4;
      p[7] *= 10;
      p[7] /= 2;
      auto again = map<const std::uint32_t>(me, f, 16, to_the_end, map_flags::private_changes);
      r[0] = again[1];
      r[1] = again[2];
      r[2] = again[3];
      const auto plain = map<const std::uint32_t>(me, f);
      r[3] = plain[5];
      r[4] = pread(me, f, scratch, 4, 20);
      r[5] = discard(me, p);  // `again` is linked
      r[6] = p.linked();
      r[7] = again[1];
      again.unlink();
      r[8] = discard(me, p);
      r[9] = p[5];
      r[10] = discard(me, p);
      // Only the mapping's own pages.
      p[0] = 1;
      p[per_page] = 2;
      auto second = map<std::uint32_t>(me, f, page, per_page, map_flags::private_changes);
      p.unlink();
      r[11] = discard(me, second);
      r[12] = p[0];
      r[13] = p[per_page];
    }
    close(me, f);
  }
};

TEST_F(ptr_private, changes_are_seen_by_private_mappings_only_until_discard) {
  expect_leftovers_but_pins("pages changed through private mappings");
  const device_buffer<std::byte> scratch(4);
  const auto r = run<forms_kernel>(1, 32, scratch.get());
  const std::int64_t five = word_at(5);
  const std::vector<std::int64_t> expected = {55, 55, 365, five, 4, -EBUSY, 0, 55, 0, five, 0, 0, 1, word_at(per_page)};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 14), expected);
  std::uint32_t read = 0;
  const auto bytes = scratch.read();
  std::memcpy(&read, bytes.data(), 4);
  EXPECT_EQ(read, word_at(5));
  EXPECT_EQ(fs().counters().dirty_frames, 1u);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// Two files after each other in one entry of the mount's table.
struct stale_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    auto stale = map<std::uint32_t>(warp, f, 0, per_page, map_flags::private_changes);
    if (warp.rank() == 0) stale[3] = 1;
    stale.unlink();
    warp.sync();
    close(warp, f);
    const file g = open(warp, fs, "g");
    const auto p = map<std::uint32_t>(warp, g, 0, per_page, map_flags::private_changes);
    mine()[0] = p.error();
    if (warp.rank() == 0) p[3] = 1;
    p.unlink();
    warp.sync();
    mine()[1] = discard(warp, stale);
    mine()[2] = p[3];
    p.unlink();
    ptr<std::uint32_t> null;
    mine()[3] = discard(warp, null);
    close(warp, g);
  }
};

TEST_F(ptr_private, discard_by_a_pointer_that_outlived_its_file_leaves_others_alone) {
  expect_leftovers_but_pins("pages changed through private mappings");
  dir.add("g", page, file_seed + 1);
  let_file_times_pass();
  options.max_mappings = 1;
  if (under_compute_sanitizer()) fs().prepare("g");
  run<stale_kernel>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), 0);
    EXPECT_EQ(result(t, 1), -EBADF);
    EXPECT_EQ(result(t, 2), 1);
    EXPECT_EQ(result(t, 3), 0);
  }
  EXPECT_EQ(fs().counters().dirty_frames, 2u);
}

// Changed pages are not evicted, whatever else is read.
struct stays_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      if (warp.rank() < 3) p[warp.rank() * per_page] = warp.rank() + 100;
      p.unlink();
      const auto q = map<const std::uint32_t>(warp, f);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < 120; ++i) wrong += warp.rank() == 0 && q[i % 40 * per_page] == 0;
      q.unlink();
      warp.sync();
      mine()[0] = wrong;
      mine()[1] = p[warp.rank() % 3 * per_page];
    }
    close(warp, f);
  }
};

TEST_F(ptr_private, changed_pages_stay) {
  expect_leftovers_but_pins("pages changed through private mappings");
  options.cache_nbytes = 8 * page;
  run<stays_kernel>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), 0);
    EXPECT_EQ(result(t, 1), t % 3 + 100);
  }
  EXPECT_GT(fs().counters().evictions, 0u);
  EXPECT_EQ(fs().counters().dirty_frames, 3u);
}

struct change_all_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path);
    {
      const auto p = map<std::uint32_t>(this_warp(), f, 0, to_the_end, map_flags::private_changes);
      for (std::int64_t i = thread(); i < nwords; i += per_page / 2) p[i] = 1;
    }
    close(this_warp(), f);
  }
};
struct discard_all_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto group = this_tile<8>();
    const file f = open(group, fs, path);
    {
      auto p = map<const std::uint32_t>(group, f, 0, to_the_end, map_flags::private_changes);
      mine()[0] = discard(group, p);
    }
    close(group, f);
  }
};

TEST_F(ptr_private, groups_that_discard_together_are_in_nobodys_way) {
  for (std::uint64_t seed = 1; seed <= fewer(20); ++seed) {
    schedule.seed = seed;
    schedule.switch_percent = 100;
    run<change_all_kernel>(1, 32);
    ASSERT_EQ(fs().counters().dirty_frames, npages);
    run<discard_all_kernel>(2, 64);
    for (unsigned t = 0; t < 128; ++t) EXPECT_EQ(result(t, 0), 0) << "thread " << t << " of seed " << seed;
    ASSERT_EQ(fs().counters().dirty_frames, 0u);
  }
}

// All lanes add to words of a few pages, while readers of many others take the frames away.
struct add_kernel : pointer_job {
  std::int64_t rounds;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto words = map<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      const auto others = map<const std::uint32_t>(warp, f);
      std::int64_t done = 0;
      for (std::int64_t i = 0; i < rounds; ++i) {
        const std::uint64_t drawn = content_word(thread(), static_cast<std::uint64_t>(i));
        if (drawn % 2 == 0) {
          (void)others[static_cast<std::int64_t>(drawn >> 8) % nwords];
        } else {
          others.unlink();
          const auto p = words + static_cast<std::int64_t>(drawn >> 8) % 3 * per_page;
          // The mount counts those that fail; none of these words is 0 in the file or becomes so.
          if (p.fetch_add(1, std::memory_order_relaxed) != 0) ++done;
        }
      }
      mine()[0] = done;
    }
    close(warp, f);
  }
};
struct sum_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    {
      auto p = map<const std::uint32_t>(this_thread(), f, 0, to_the_end, map_flags::private_changes);
      for (std::int64_t i = 0; i < 3; ++i) mine()[0] += p[i * per_page] - std::int64_t{word_at(i * per_page)};
      mine()[1] = discard(this_thread(), p);
    }
    close(this_thread(), f);
  }
};

TEST_F(ptr_private, an_add_is_done_or_an_error) {
  options.cache_nbytes = 5 * page;
  options.frame_timeout = std::chrono::nanoseconds(1000);
  const std::int64_t rounds = 6;
  std::uint64_t failed_before = 0;
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 10 : 40); ++seed) {
    schedule.seed = seed;
    run<add_kernel>(2, 32, rounds);
    std::int64_t done = 0, tried = 0;
    for (unsigned t = 0; t < 64; ++t) {
      done += result(t, 0);
      for (std::int64_t i = 0; i < rounds; ++i) tried += content_word(t, static_cast<std::uint64_t>(i)) % 2;
    }
    const auto r = run<sum_kernel>(1, 32);
    ASSERT_EQ(r[0], done) << "seed " << seed << ": adds of " << tried << " that gave what was there before";
    ASSERT_EQ(r[1], 0);
    const std::uint64_t failed = fs().counters().fault_errors;
    // Readers may fail as well.
    ASSERT_GE(failed - failed_before, static_cast<std::uint64_t>(tried - done)) << "seed " << seed << ": some were lost in silence";
    failed_before = failed;
  }
}

// Warp 0 holds all frames for a while; warp 1 wants one meanwhile, for longer than one frame_timeout and shorter than two.
struct late_frame_kernel : pointer_job {
  std::uint32_t* held;

  GPUFS_DEVICE void operator()() const {
    if (simt::lane_id() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path);
    simt::atomic_ref<std::uint32_t> flag(*held);
    if (simt::warp_rank() == 0) {
      const auto p = map<const std::uint32_t>(me, f), q = map<const std::uint32_t>(me, f, page);
      mine()[0] = p.fault_in() + q.fault_in();
      flag.store(1, std::memory_order_release);
      simt::backoff pause;
      for (const simt::deadline until(60'000'000); !until.expired();) pause();
    } else {
      const auto w = map<std::uint32_t>(me, f, 2 * page, to_the_end, map_flags::private_changes);
      simt::backoff pause;
      while (flag.load(std::memory_order_acquire) == 0) pause();
      mine()[0] = w.fetch_add(1, std::memory_order_relaxed);
      mine()[1] = (w + per_page).fault_in();
      mine()[2] = w[per_page + 1];
      w.unlink();
      mine()[3] = *w;
    }
    close(me, f);
  }
};

TEST_F(ptr_private, an_add_that_finds_no_frame_says_so) {
  options.cache_nbytes = 2 * page;
  options.frame_timeout = std::chrono::milliseconds(40);
  const device_buffer<std::uint32_t> held(1);
  run<late_frame_kernel>(1, 64, held.get());
  EXPECT_EQ(result(0, 0), 0);
  const std::int64_t word = word_at(2 * per_page);
  const bool done = result(32, 0) == word;
  if (done) expect_leftovers_but_pins("a changed page of a private mapping stays as long as the mount");
  EXPECT_EQ(result(32, 3), word + done) << "the add gave " << result(32, 0);
  EXPECT_EQ(fs().counters().fault_errors, done ? 0u : 1u);
}

// Half of the lanes come by a name of the file that is closed then; the others' is open.
struct two_names_kernel : pointer_job {
  const char* other;
  std::int64_t wanted;  // page

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path), g = open(warp, fs, other);
    {
      auto p = map<const std::uint32_t>(warp, f);
      const auto q = map<const std::uint32_t>(warp, g);
      close(warp, f);
      const bool open_still = warp.rank() >= 16;
      if (open_still) p = q;
      mine()[0] = p[wanted * per_page];
      mine()[1] = fstat(warp, f).error == -EBADF && fstat(warp, g).error == 0;
    }
    close(warp, g);
  }
};

TEST_F(ptr_private, a_closed_name_of_a_file_does_not_close_another) {
  std::filesystem::create_hard_link(dir / "f", dir / "g");
  let_file_times_pass();
  const device_buffer<char> other(std::vector<char>{'g', 0});
  for (std::int64_t wanted = 1; wanted < 30; ++wanted) {
    schedule.seed = static_cast<std::uint64_t>(wanted);
    run<two_names_kernel>(1, 32, static_cast<const char*>(other.get()), wanted);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 1), 1);
      // By the closed name a page that is in the cache is found, else zeros.
      const bool closed = t < 16 && result(t, 0) == 0;
      EXPECT_EQ(result(t, 0), closed ? 0 : word_at(wanted * per_page)) << "lane " << t << " of page " << wanted;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
