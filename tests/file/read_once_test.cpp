// SPDX-License-Identifier: Apache-2.0
// Files whose readers have said that they read each byte once (advise(noreuse)): what is not cached is read past the cache where
// the device can read it, and leaves no trace there.
#include "file/device_file.hpp"
#include "file/notes.hpp"
#include "file/watch.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = device_file_seed, npages = 96, file_nbytes = npages * page - 77;
constexpr std::uint32_t nframes = 32;

mount_options options_of(source_kind kind) { return device_file(kind, file_nbytes, page, nframes); }

void expect_no_trace(const mount& m, const std::string& where) {
  const mount_counters c = m.counters();
  EXPECT_EQ(c.faults, 0u) << where;
  EXPECT_EQ(c.evictions, 0u) << where;
  EXPECT_EQ(c.free_frames, nframes) << where;
  EXPECT_EQ(c.pins, 0u) << where;
  EXPECT_EQ(c.fault_errors, 0u) << where;
}

class read_once : public ::testing::TestWithParam<source_kind> {};
INSTANTIATE_TEST_SUITE_P(sources, read_once, ::testing::Values(source_kind::pull, source_kind::mem),
                         [](const auto& tested) { return std::string(tested.param == source_kind::pull ? "pull" : "mem"); });

TEST_P(read_once, preads_of_any_part_leave_no_trace) {
  for (const group_kind kind : all_kinds) {
    const mount m("/", options_of(GetParam()));
    players groups(m.ref(), {.grid = 2, .block = 64, .all = kind});
    random_source draw(static_cast<std::uint64_t>(kind) + 1);
    struct wanted {
      std::size_t call;
      std::uint64_t nbytes, offset;
    };
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<wanted>> reads(groups.size());
    std::uint64_t nbytes = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      scripts[g].open(0, "f");
      scripts[g].advise(0, 0, 0, advice::noreuse);
      for (int i = 0; i < 12; ++i) {
        const std::uint64_t offset = draw.below(file_nbytes), asked = draw.percent(20) ? draw.below(8 * page) : draw.below(70);
        const std::uint64_t there = std::min(asked, file_nbytes - offset);
        reads[g].push_back({scripts[g].pread(0, asked, static_cast<std::int64_t>(offset)), there, offset});
        nbytes += there;
      }
      scripts[g].close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const wanted& w : reads[g]) {
        ASSERT_EQ(got[g][w.call].value, static_cast<std::int64_t>(w.nbytes)) << "group " << g;
        EXPECT_EQ(wrong_bytes(got[g][w.call], w.nbytes, seed, w.offset), 0u) << "group " << g << " at " << w.offset;
      }
    }
    expect_no_trace(m, "group kind " + std::to_string(static_cast<int>(kind)));
    EXPECT_EQ(m.counters().bytes_read, nbytes);
    EXPECT_EQ(m.counters().hits, 0u);
  }
}

TEST_P(read_once, a_page_that_is_cached_is_read_from_there) {
  const mount m("/", options_of(GetParam()));
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "f");
  s.pread(0, 3 * page, 0);
  s.advise(0, 0, 0, advice::noreuse);
  const auto read = s.pread(0, 6 * page, 0);
  s.map(0, 0, 8 * page, 1);  // what is mapped has a frame
  s.unmap(0);
  const auto mapped = s.pread(0, 10, 8 * page);
  s.advise(0, 0, 0, advice::normal);
  const auto after = s.pread(0, 2 * page, 10 * page);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(wrong_bytes(got[read], 6 * page, seed, 0), 0u);
  EXPECT_EQ(wrong_bytes(got[mapped], 10, seed, 8 * page), 0u);
  EXPECT_EQ(wrong_bytes(got[after], 2 * page, seed, 10 * page), 0u);
  const mount_counters c = m.counters();
  EXPECT_EQ(c.faults, 3u + 1 + 2);
  EXPECT_EQ(c.hits, 3u + 1);
}

// What a warp reads through pointers, each lane an element of another page: by dereferencing, by gather and by read_tile.
struct read_by_pointers {
  mount_ref fs;
  const char* path;
  std::int64_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    const int told = advise(warp, f, 0, 0, advice::noreuse);
    const auto p = map<const std::uint8_t>(warp, f);
    const std::int64_t lane = simt::lane_id();
    std::int64_t nwrong = told != 0;
    for (std::int64_t round = 0; round < 3; ++round) {
      const std::int64_t at = (lane * 3 + round) * static_cast<std::int64_t>(page) + lane;
      const std::uint64_t here = static_cast<std::uint64_t>(at);
      nwrong += p[at] != static_cast<std::uint8_t>(content_byte(seed, here));
      const std::int64_t places[] = {at + 1, at + static_cast<std::int64_t>(page) / 2};
      const auto two = p.gather(places);
      for (int k = 0; k < 2; ++k)
        nwrong += two[k] != static_cast<std::uint8_t>(content_byte(seed, static_cast<std::uint64_t>(places[k])));
      const auto tile = (p + at).template read_tile<4>(1);
      for (unsigned k = 0; k < 4; ++k) nwrong += tile[k] != static_cast<std::uint8_t>(content_byte(seed, here + k));
      nwrong += (p + at).error() != 0;
    }
    p.unlink();
    simt::atomic_ref<std::int64_t>(*wrong).fetch_add(nwrong, std::memory_order_relaxed);
    warp.sync();
    close(warp, f);
  }
};
TEST_P(read_once, pointers_leave_no_trace) {
  const mount m("/", options_of(GetParam()));
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::int64_t> wrong(std::vector<std::int64_t>{0});
  simt::launch({.grid = 1, .block = 32}, read_by_pointers{m.ref(), path.get(), wrong.get()});
  EXPECT_EQ(wrong.read()[0], 0);
  expect_no_trace(m, "pointers");
  EXPECT_GE(m.counters().past_cache, 3u * 32 * (1 + 2 + 1));
}

struct advise_once {
  mount_ref fs;
  const char* path;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    const std::int64_t told = advise(warp, f, 0, 0, advice::noreuse);
    if (warp.leader()) *result = told;
    close(warp, f);
  }
};
// Rows that a second batch reads again would be admitted, had nothing been said.
TEST_P(read_once, batches_of_rows_leave_no_trace) {
  const mount m("/", options_of(GetParam()));
  const host_file f(m, "f");
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::int64_t> told(std::vector<std::int64_t>{1});
  simt::launch({.grid = 1, .block = 32}, advise_once{m.ref(), path.get(), told.get()});
  ASSERT_EQ(told.read()[0], 0);
  expect_batches_of_rows(m, f, file_nbytes, 40, 7);
  expect_no_trace(m, "a batch");
}

// Bytes that the host's threads must read come by pages, whatever was said.
TEST(read_once_of_staged_files, goes_through_the_cache) {
  temp_dir dir;
  dir.add("f", npages * page, seed);
  mount_options o = writing(nframes);
  o.store = store_kind::posix;
  const mount m(dir.path(), o);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "f");
  s.advise(0, 0, 0, advice::noreuse);
  const auto read = s.pread(0, 10, 5 * page);
  const auto again = s.pread(0, 4 * page, 5 * page);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(wrong_bytes(got[read], 10, seed, 5 * page), 0u);
  EXPECT_EQ(wrong_bytes(got[again], 4 * page, seed, 5 * page), 0u);
  EXPECT_EQ(m.counters().faults, 1u + 4) << "the first page comes along with the open";
}

// A version that has ended is not read past the cache, either; and what the mount writes is read from its pages.
TEST(read_once_of_changing_files, gives_no_bytes_of_another_version) {
  temp_dir dir{memory_directory()};
  dir.add("f", npages * page, seed);
  let_file_times_pass();
  mount_options o = writing(nframes);
  o.store = store_kind::mapped;
  const mount m(dir.path(), o);
  prepare_for_memcheck(m, "f");
  players groups(m.ref(), {.grid = 1, .block = 32});
  script before;
  before.open(0, "f");
  before.advise(0, 0, 0, advice::noreuse);
  const auto read = before.pread(0, page, 0);
  auto got = groups.run(before);
  EXPECT_EQ(got[read].value, page);
  EXPECT_EQ(m.counters().faults, 0u);
  script write;
  write.open(1, "f", O_RDWR);
  write.pwrite(1, std::vector<std::byte>(10, std::byte{7}), 3 * page);
  const auto old = write.pread(0, page, 3 * page);
  write.advise(1, 0, 0, advice::noreuse);
  const auto now = write.pread(1, 10, 3 * page);
  write.close(0);
  write.close(1);
  got = groups.run(write);
  EXPECT_EQ(got[old].value, -ESTALE);
  EXPECT_EQ(got[now].bytes, std::vector<std::byte>(10, std::byte{7}));
}

// Advice ends with the last close, and with other advice.
TEST(read_once_ends, with_the_last_close) {
  const mount m("/", options_of(source_kind::pull));
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "f");
  s.advise(0, 0, 0, advice::noreuse);
  s.pread(0, page, 0);
  s.close(0);
  s.open(0, "f");
  s.pread(0, page, 0);
  s.close(0);
  groups.run(s);
  EXPECT_EQ(m.counters().faults, 1u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
