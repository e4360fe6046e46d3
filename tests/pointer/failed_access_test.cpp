// SPDX-License-Identifier: Apache-2.0
// How a failed access is told: by the pointer, by the launch, by the mount.
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct failed_access : pointer_fixture {};

struct three_words {
  std::uint32_t a, b, c;
};

struct sticky_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t* r = mine();
    {
      auto p = map<const std::uint32_t>(warp, f, 0, 10);
      r[0] = p[3] == word_at(3) ? p.error() : 1;
      const std::int64_t end = p.left();
      r[1] = p[10];
      r[2] = p.error();
      r[3] = p[3] == word_at(3) && p.left() == end && p.linked() ? p.error() : 1;  // it works on
      const auto copy = p;
      r[4] = copy.error();
      auto moved = static_cast<ptr<const std::uint32_t>&&>(p);
      r[5] = moved.error() != -ENXIO || moved[9] != word_at(9) || moved.within().end != 40;
      p = map<const std::uint32_t>(warp, f, 0, 10);
      r[6] = p.error();
      r[7] = p.read_tile<4>(3)[3] == word_at(9) ? p.error() : 1;
      r[8] = (p + 1).read_tile<4>(3)[3];
      const auto q = p + 1;
      (void)q.read_tile<4>(3);
      r[9] = q.error();
      const auto v = p;
      (void)v.load<simt::vec16>(8);
      r[10] = v.error();
      const std::ptrdiff_t at[2] = {0, 10};
      const auto g = p;
      r[11] = g.gather<2>(at)[0] == word_at(0) ? g.error() : 1;
      auto walks = p;
      std::int64_t n = 0;
      for_each_n(
          11, 1, [&](std::uint32_t) { ++n; }, walks);
      r[12] = n == 11 ? walks.error() : 1;
      auto w = map<std::uint32_t>(warp, f, 0, 32, map_flags::private_changes);
      w[thread()] = 1;
      r[13] = w.error();
      w[-1] = 1;
      r[14] = w.error();
      const auto x = map<std::uint32_t>(warp, f, 0, 10, map_flags::private_changes) + 10;
      (void)x.fetch_add(1, std::memory_order_relaxed);
      r[15] = x.error();
      const auto y = map<std::uint32_t>(warp, f, 0, 10, map_flags::private_changes);
      y[0] = x[0];
      r[16] = y.error();
      const auto straddling = map<const three_words>(warp, f, 4, 2);
      (void)straddling->a;
      r[17] = straddling.error();
      const three_words beyond = straddling[2];
      r[18] = straddling.error() + static_cast<std::int64_t>(beyond.a);
      const auto constant = map<const std::uint32_t>(warp, f, 0, 10);
      const ptr<std::uint32_t> forged(constant.mapped(), constant.within(), {});
      forged[0] = 1;
      r[19] = forged.error();
      (void)static_cast<std::uint32_t>(forged[10]);
      r[20] = forged.error();  // the first one's
    }
    close(warp, f);
  }
};

TEST_F(failed_access, stays_in_the_pointer) {
  expect_leftovers_but_pins("a page changed through a private mapping");
  run<sticky_kernel>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    const std::vector<std::int64_t> expected = {0, 0,      -ENXIO, -ENXIO, -ENXIO, 0,      0, 0,      0,       -ENXIO, -ENXIO,
                                                0, -ENXIO, 0,      -ENXIO, -ENXIO, -ENXIO, 0, -ENXIO, -EACCES, -EACCES};
    std::vector<std::int64_t> got;
    for (unsigned i = 0; i < expected.size(); ++i) got.push_back(result(t, i));
    ASSERT_EQ(got, expected) << "lane " << t;
  }
}

struct beyond_kernel : pointer_job {
  std::int64_t at;
  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path);
    {
      const auto p = map<const std::uint32_t>(this_warp(), f, 8, 4);
      mine()[0] = p[at];
    }
    close(this_warp(), f);
  }
};

TEST_F(failed_access, is_told_by_the_launch_once) {
  ::testing::internal::CaptureStderr();
  run<beyond_kernel>(1, 64, std::int64_t{3});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  run<beyond_kernel>(1, 64, std::int64_t{-3});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      said.find(
          "gpufs: accesses through pointers have failed (64 so far): they read zeros, or wrote nothing. The first: pointer to "
          "'f' at offset -4: beyond the mapping of 16 bytes (block 0, warp "),
      std::string::npos)
      << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const auto log = fs().log();
  ASSERT_EQ(log.size(), 2u) << "a line a warp";
  for (const std::string& line : log) EXPECT_NE(line.find(" first; 32 accesses of 32 lanes)"), std::string::npos) << line;
  ::testing::internal::CaptureStderr();
  run<beyond_kernel>(1, 64, std::int64_t{4});
  fs().counters();
  end_mount();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(failed_access, is_told_by_the_launch_though_a_record_before_it_was_never_written) {
  // As if a lane had been stopped after it took the first record.
  const std::uint64_t taken = 1;
  simt::this_platform().copy_to_device(&mount_inside(fs()).layout().pointers.words->fault_records, &taken, sizeof taken);
  ::testing::internal::CaptureStderr();
  run<beyond_kernel>(1, 32, std::int64_t{4});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("gpufs: accesses through pointers have failed (32 so far)"), std::string::npos) << said;
  EXPECT_NE(said.find("The first: pointer to 'f' at offset 24: beyond"), std::string::npos) << said;
}

TEST_F(failed_access, is_not_told_by_a_mount_that_is_quiet) {
  options.on_failed_accesses = failed_accesses::quiet;
  ::testing::internal::CaptureStderr();
  run<beyond_kernel>(1, 64, std::int64_t{4});
  EXPECT_EQ(fs().counters().fault_errors, 64u);
  end_mount();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

#if !GPUFS_ON_CUDA
TEST_F(failed_access, can_end_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  options.on_failed_accesses = failed_accesses::abort;
  EXPECT_DEATH(run<beyond_kernel>(1, 32, std::int64_t{4}),
               "accesses through pointers have failed .32 so far.*offset 24: beyond the mapping");
}
#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
