// SPDX-License-Identifier: Apache-2.0
// Files over 4 GiB, sparse files, files larger than the cache, offsets at the end of what a page key can name.
#include "file/reader.hpp"
#include "gpufs/store/nil_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

mount_options cached(std::uint32_t page_nbytes, std::uint32_t nframes, store_kind kind) {
  mount_options o;
  o.page_nbytes = page_nbytes;
  o.cache_nbytes = std::uint64_t{nframes} * page_nbytes;
  o.store = kind;
  o.max_open_files = 64;
  o.internals.request_rings = 4;
  o.frame_timeout = std::chrono::seconds(60);  // many groups wait for few frames, under compute-sanitizer for long
  return o;
}

class large : public ::testing::TestWithParam<std::tuple<store_kind, std::uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(stores_and_pages, large,
                         ::testing::Combine(::testing::Values(store_kind::posix, store_kind::automatic),
                                            ::testing::Values(512u, 4096u, 65536u, 2u << 20)),
                         [](const auto& tested) {
                           return (std::get<0>(tested.param) == store_kind::posix ? "posix_" : "automatic_") +
                                  std::to_string(std::get<1>(tested.param));
                         });

TEST_P(large, sparse_file_over_4_gib_with_data_at_the_far_end) {
  const auto [kind, page_nbytes] = GetParam();
  temp_dir dir;
  constexpr std::uint64_t hole = 9 * gib + 12345, nbytes = hole + (3u << 20) + 77;
  dir.add_sparse("sparse", hole, nbytes - hole, 21);
  mount_options options = cached(page_nbytes, 8, kind);
  options.pin_nbytes = 64 << 20;  // automatic: too large to be pinned
  const mount m(dir.path(), options);
  players warp(m.ref(), {});
  script s;
  s.open(0, "sparse");
  const auto status = s.fstat(0);
  const auto start = s.pread(0, 1000, 0);
  const auto before_4g = s.pread(0, 1000, 4 * gib - 500);  // across 2^32
  const auto edge = s.pread(0, 200, hole - 100);
  const auto tail = s.pread(0, 5000, nbytes - 3000);
  const auto beyond = s.pread(0, 10, nbytes);
  const auto map = s.map(0, 0, nbytes - 10, 10);
  s.unmap(0);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[status].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(got[status].status().source, kind == store_kind::automatic ? source_kind::windows : source_kind::staged);
  for (const auto i : {start, before_4g}) {
    EXPECT_EQ(got[i].value, 1000);
    EXPECT_EQ(std::count(got[i].bytes.begin(), got[i].bytes.end(), std::byte{0}), 1000);
  }
  EXPECT_EQ(got[edge].value, 200);
  EXPECT_EQ(std::count(got[edge].bytes.begin(), got[edge].bytes.begin() + 100, std::byte{0}), 100);
  for (std::uint64_t i = 100; i < 200; ++i) EXPECT_EQ(got[edge].bytes[i], content_byte(21, hole - 100 + i));
  EXPECT_EQ(got[tail].value, 3000);
  EXPECT_EQ(wrong_bytes(got[tail], 3000, 21, nbytes - 3000), 0u);
  EXPECT_EQ(got[beyond].value, 0);
  EXPECT_EQ(got[map].value, 10);
  EXPECT_EQ(wrong_bytes(got[map], 10, 21, nbytes - 10), 0u);

  // Random reads around the far end, by all, on a cache far smaller than what they read.
  for (const group_kind groups : {group_kind::thread, group_kind::warp, group_kind::block}) {
    reading_run run({.path = "sparse",
                     .file_nbytes = nbytes,
                     .hole = hole,
                     .seed = 21,
                     .first = hole - (1u << 20),
                     .calls = groups == group_kind::thread ? 3u : 15u,
                     .max_nbytes = 4000,
                     .kind = groups,
                     .config = {.grid = on_cuda && !under_compute_sanitizer() ? 32u : 2u, .block = 64, .schedule = {}}});
    run(m.ref());
    run.expect_good();
  }
  EXPECT_EQ(m.counters().pinned_frames, 0u);
}

TEST_P(large, file_larger_than_the_cache) {
  const auto [kind, page_nbytes] = GetParam();
  temp_dir dir;
  const std::uint64_t nbytes = std::max<std::uint64_t>(1 << 20, 20 * std::uint64_t{page_nbytes}) + 5;
  dir.add("file", nbytes, 22);
  const mount m(dir.path(), cached(page_nbytes, 6, kind));
  if (kind == store_kind::automatic) prepare_for_memcheck(m, "file");
  reading_run run({.path = "file", .file_nbytes = nbytes, .seed = 22, .calls = 40, .max_nbytes = 3000});
  run(m.ref());
  run.expect_good();
  EXPECT_GT(m.counters().evictions, 0u);
  EXPECT_EQ(m.counters().pinned_frames, 0u);
}

TEST(large_file, automatic_says_why) {
  temp_dir dir;
  dir.add("small", 1000, 1);
  dir.add("medium", 1 << 20, 2);
  dir.add("big", 8 << 20, 3);
  let_file_times_pass();
  mount_options options = cached(4096, 64, store_kind::automatic);
  options.pin_nbytes = 2 << 20;
  const mount m(dir.path(), options);
  m.prepare("medium");
  m.prepare("big");
  players warp(m.ref(), {});
  script s, end;
  s.open(0, "small");
  s.open(1, "medium");
  s.open(2, "big");
  for (unsigned f = 0; f < 3; ++f) s.pread(f, 1000, 0);
  for (unsigned f = 0; f < 3; ++f) end.close(f);
  const auto got = warp.run(s);
  for (unsigned f = 0; f < 3; ++f) EXPECT_EQ(wrong_bytes(got[3 + f], 1000, f + 1, 0), 0u);
  std::map<std::string, file_report> reports;
  for (const file_report& r : m.open_files()) reports[r.path] = r;
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports["small"].source, source_kind::staged);
  EXPECT_EQ(reports["medium"].source, source_kind::pull);
  EXPECT_EQ(reports["big"].source, source_kind::windows) << "over the pin budget";
  for (const auto& [path, report] : reports) EXPECT_GT(report.reason.size(), 10u) << path;
  EXPECT_NE(reports["small"].reason, reports["big"].reason);
  warp.run(end);
}

TEST(large_file, last_page_that_a_key_can_name) {
  // 2^32 - 1 pages of 512 B; the store costs nothing.
  mount_options options = cached(512, 16, store_kind::posix);
  constexpr std::int64_t most = (std::int64_t{1} << 41) - 512;
  options.custom_store = std::make_shared<store::nil_store>(most);
  const mount m("", options);
  players warp(m.ref(), {});
  script s;
  s.open(0, "a");
  s.open(1, "b");
  for (unsigned f = 0; f < 2; ++f) {
    for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{1} << 32, (std::int64_t{1} << 40) - 512, most - 512})
      s.pread(f, 512, offset);
  }
  const auto end = s.pread(0, 512, most - 100);
  s.close(0);
  s.close(1);
  const auto got = warp.run(s);
  for (std::size_t i = 2; i < end; ++i) EXPECT_EQ(got[i].value, 512);
  EXPECT_EQ(got[end].value, 100);
  EXPECT_EQ(m.counters().faults, 8u) << "no page of one is taken for a page of the other";
}

TEST(large_file, file_beyond_what_a_key_can_name_does_not_open) {
  for (const std::int64_t nbytes : {(std::int64_t{1} << 41) - 511, std::int64_t{INT64_MAX}}) {
    mount_options options = cached(512, 16, store_kind::posix);
    options.custom_store = std::make_shared<store::nil_store>(nbytes);
    const mount m("", options);
    players warp(m.ref(), {});
    script s;
    s.open(0, "a");
    EXPECT_EQ(warp.run(s)[0].value, -EFBIG);
    EXPECT_TRUE(m.open_files().empty());
    EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
    EXPECT_EQ(m.counters().open_errors, 1u);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
