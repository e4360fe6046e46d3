// SPDX-License-Identifier: Apache-2.0
// Files of which the device reads itself what is registered, and the host the rest.
#include <thread>

#include "file/pinned_words.hpp"
#include "file/reader.hpp"
#include "file/script.hpp"
#include "file/watch.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t page = 4096, window = 64 << 10;

std::shared_ptr<store::auto_store> by_windows(const std::string& root, std::uint64_t pin_nbytes = 0) {
  return std::make_shared<store::auto_store>(simt::this_platform(), root, pin_nbytes,
                                             store::auto_options{.small_file_nbytes = 1, .window_nbytes = window});
}

constexpr std::uint64_t nbytes = 6 * window + 100, whole = 6 * window + page;  // 7 windows

class windows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (under_memcheck()) GTEST_SKIP() << "memcheck takes memory that is registered while a kernel runs for out of bounds";
    dir.add("f", nbytes, 1);
    dir.add("g", nbytes, 2);
    let_file_times_pass();
  }
  mount make(const std::shared_ptr<store::auto_store>& files, std::uint32_t page_nbytes = page, std::uint32_t nframes = 8) const {
    mount_options o;
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = std::uint64_t{nframes} * page_nbytes;
    o.max_open_files = 16;
    o.custom_store = files;
    return mount(dir.path(), o);
  }
  // Two blocks read all over the file, several times what it has. How many reads came by the host.
  static std::uint64_t pass(const mount& m, const std::string& path, std::uint64_t seed) {
    const std::uint64_t before = m.counters().host_reads;
    reading_run run({.path = path, .file_nbytes = nbytes, .seed = seed, .calls = 40, .max_nbytes = 9000});
    run(m.ref(), ++passes);
    run.expect_good(path);
    return m.counters().host_reads - before;
  }
  static inline std::uint64_t passes = 0;
  temp_dir dir{memory_directory()};
};

TEST_F(windows, what_is_missed_often_is_pulled_from_then_on) {
  const auto files = by_windows(dir.path());
  const mount m = make(files);
  const host_file held(m, "f");
  EXPECT_EQ(m.open_files().at(0).source, source_kind::windows);
  EXPECT_EQ(files->usage().pinned_nbytes, 0u) << "opening registers nothing";
  EXPECT_EQ(m.open_files().at(0).reason.rfind("windows: 0 of 7 windows", 0), 0u) << m.open_files().at(0).reason;
  EXPECT_GT(pass(m, "f", 1), 0u);
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
  EXPECT_EQ(m.open_files().at(0).reason.rfind("windows: 7 of 7 windows", 0), 0u) << m.open_files().at(0).reason;
  for (const std::string& line : m.log()) ADD_FAILURE() << line;
}

TEST_F(windows, what_does_not_fit_the_budget_stays_staged) {
  const auto files = by_windows(dir.path(), 2 * window);
  const mount m = make(files);
  const host_file held(m, "f");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) != 0 && files->usage().pinned_nbytes >= window; }));
  for (int i = 0; i < 5; ++i) EXPECT_GT(pass(m, "f", 1), 0u);
  EXPECT_LE(files->usage().pinned_nbytes, 2 * window);
  EXPECT_TRUE(wait_until([&] {
    return m.open_files().at(0).reason.find(" refused: its 1 MiB do not fit the pin budget") != std::string::npos;
  })) << m.open_files().at(0).reason;
}

// Nobody calls trim(): what closed files hold is given back at a launch's end, once others have found no room.
TEST_F(windows, closed_files_make_room_between_kernels) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  m.prepare("f");
  EXPECT_EQ(files->usage().idle_nbytes, whole);
  EXPECT_EQ(pass(m, "f", 1), 0u) << "while it finds room, it stays";
  const host_file held(m, "g");
  EXPECT_TRUE(wait_until([&] { return pass(m, "g", 2) == 0 && files->usage().pinned_nbytes == whole; }));
  EXPECT_EQ(files->usage().idle_nbytes, 0u);
  EXPECT_GT(pass(m, "f", 1), 0u);
}

TEST_F(windows, open_files_keep_what_others_find_no_room_for) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  m.prepare("f");
  const host_file held(m, "f"), other(m, "g");
  for (int i = 0; i < 8; ++i) EXPECT_GT(pass(m, "g", 2), 0u);
  EXPECT_EQ(pass(m, "f", 1), 0u);
}

TEST_F(windows, open_files_that_are_not_read_make_room) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  const host_file held(m, "f"), other(m, "g");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
  EXPECT_TRUE(wait_until([&] { return pass(m, "g", 2) == 0 && files->usage().pinned_nbytes == whole; }));
  EXPECT_GT(pass(m, "f", 1), 0u);
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0; })) << "and back";
  EXPECT_EQ(files->usage().pinned_nbytes, whole);
  for (const std::string& line : m.log()) ADD_FAILURE() << line;
}

TEST_F(windows, open_files_give_up_no_more_than_is_lacking) {
  dir.add("small", window, 3);
  let_file_times_pass();
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  const host_file held(m, "f"), other(m, "small");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
  const auto pass_small = [&] {
    const std::uint64_t before = m.counters().host_reads;
    reading_run run({.path = "small", .file_nbytes = window, .seed = 3, .calls = 40, .max_nbytes = 9000});
    run(m.ref(), ++passes);
    run.expect_good("small");
    return m.counters().host_reads - before;
  };
  EXPECT_TRUE(wait_until([&] { return pass_small() == 0; }));
  EXPECT_EQ(files->usage().pinned_nbytes, whole) << "a window of the one for the other's";
}

TEST_F(windows, files_that_are_read_by_turns_keep_theirs) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  const host_file held(m, "f"), other(m, "g");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
  for (int i = 0; i < 12; ++i) {
    EXPECT_GT(pass(m, "g", 2), 0u);
    EXPECT_EQ(pass(m, "f", 1), 0u);
  }
}

// Another mount's kernels have been told of them.
TEST_F(windows, what_another_mount_has_open_it_keeps) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files), n = make(files);
  const host_file in_m(m, "f"), in_n(n, "f"), other(n, "g");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
  for (int i = 0; i < 12; ++i) {
    EXPECT_GT(pass(n, "g", 2), 0u);
    EXPECT_EQ(files->usage().pinned_nbytes, whole);
  }
  for (const mount* each : {&m, &n}) EXPECT_TRUE(wait_until([&] { return pass(*each, "f", 1) == 0; }));
}

// A mount that had a file open was told of windows that another one has given up since. The slot, and the mapping, are the same.
TEST_F(windows, what_was_told_of_an_open_holds_for_no_later_one) {
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files), n = make(files);
  const host_file in_m(m, "f"), other(m, "g");
  {
    const host_file in_n(n, "f");  // before it is registered: an open of what is registered whole would keep it so
    EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) == 0 && files->usage().pinned_nbytes == whole; }));
    EXPECT_TRUE(wait_until([&] { return pass(n, "f", 1) == 0; }));
  }
  EXPECT_TRUE(wait_until([&] { return pass(m, "g", 2) == 0; }));
  const host_file again(n, "f");
  EXPECT_GT(pass(n, "f", 1), 0u) << "no window of it is registered";
}

// All lanes wait for the host, which is told that they run.
struct stay {
  std::uint32_t* words;  // of cache lines of their own
  GPUFS_DEVICE void operator()() const {
    tell(words);
    wait_until_set(words + 16);
  }
};

// A launch that ends beside another one gives nothing back, since CUDA would wait for the other.
TEST_F(windows, closed_files_make_no_room_beside_a_kernel) {
  if (simt::this_platform().is_cuda()) GTEST_SKIP() << "the reading kernel's buffers would wait for the other kernel";
  const auto files = by_windows(dir.path(), whole);
  const mount m = make(files);
  m.prepare("f");
  const pinned_buffer<std::uint32_t> words(32);
  std::thread kernel([&] { simt::launch({.grid = 1, .block = 32}, stay{words.get()}); });
  EXPECT_TRUE(wait_until([&] { return is_set(words.get()); }));
  EXPECT_FALSE(simt::this_platform().is_idle());
  for (int i = 0; i < 8; ++i) EXPECT_GT(pass(m, "g", 2), 0u);
  EXPECT_EQ(files->usage().idle_nbytes, whole);
  tell_kernels(words.get() + 16);
  kernel.join();
  EXPECT_EQ(files->usage().idle_nbytes, 0u) << "the end of the other one made room";
}

// Else the device would read what is not registered. Two frames, so that the file does not fit.
TEST_F(windows, pages_that_are_larger_stay_staged) {
  const auto files = by_windows(dir.path());
  const mount m = make(files, 2 * window, 2);
  const host_file held(m, "f");
  EXPECT_TRUE(wait_until([&] { return pass(m, "f", 1) != 0 && files->usage().pinned_nbytes >= 3 * window; }));
  for (int i = 0; i < 5; ++i) EXPECT_GT(pass(m, "f", 1), 0u);
}

TEST_F(windows, what_is_prepared_is_pulled_at_once) {
  const auto files = by_windows(dir.path());
  const mount m = make(files);
  m.prepare("f");
  EXPECT_EQ(files->usage().pinned_nbytes, whole);
  EXPECT_EQ(pass(m, "f", 1), 0u);
}

// Another file may come to lie where one was, in the same slot of the table.
TEST_F(windows, trim_gives_back_what_nobody_has_open_and_others_go_on) {
  const auto files = by_windows(dir.path());
  mount m = make(files);
  for (int round = 0; round < 4; ++round) {
    const std::string path = round % 2 == 0 ? "f" : "g", other = round % 2 == 0 ? "g" : "f";
    const std::uint64_t seed = round % 2 == 0 ? 1 : 2;
    {
      const host_file held(m, path);
      EXPECT_TRUE(wait_until([&] { return pass(m, path, seed) == 0 && files->usage().pinned_nbytes == whole; }));
      m.trim();
      EXPECT_EQ(files->usage().pinned_nbytes, whole) << "it is open";
      EXPECT_TRUE(wait_until([&] { return pass(m, path, seed) == 0; })) << "the device is told again";
    }
    m.trim();
    EXPECT_EQ(files->usage().nmappings, 0u);
    const host_file held(m, other);
    EXPECT_GT(pass(m, other, 3 - seed), 0u) << "nothing of it is registered";
  }
}

TEST_F(windows, a_version_that_ends_ends_for_both_ways) {
  const auto files = by_windows(dir.path(), window);  // one can be pulled
  const mount m = make(files);
  players group(m.ref(), {});
  script begin;
  begin.open(0, "f");
  for (int i = 0; i < 3; ++i) {
    for (std::uint64_t at = 0; at < window; at += page) begin.pread(0, page, static_cast<std::int64_t>(at));
  }
  for (const auto& result : group.run(begin)) EXPECT_GE(result.value, 0);
  EXPECT_TRUE(wait_until([&] {
    const std::uint64_t before = m.counters().host_reads;
    script again;
    for (std::uint64_t at = 0; at < window; at += page) again.pread(0, page, static_cast<std::int64_t>(at));
    for (const auto& result : group.run(again)) EXPECT_EQ(result.value, page);
    return m.counters().host_reads == before;
  }));
  dir.overwrite("f", 0, nbytes, 2);
  expect_the_watch_has_told(m);
  script late;
  for (std::uint64_t at = 0; at < window; at += page) late.pread(0, page, static_cast<std::int64_t>(at));
  late.pread(0, page, 3 * window);
  late.close(0);
  const auto got = group.run(late);
  EXPECT_EQ(got[window / page].value, -ESTALE);
  EXPECT_EQ(got[window / page + 1].value, 0);
  std::uint64_t nstale = 0;
  for (std::uint64_t i = 0; i < window / page; ++i) {
    nstale += got[i].value == -ESTALE;
    EXPECT_TRUE(got[i].value == -ESTALE || wrong_bytes(got[i], page, 1, i * page) == 0) << i;
  }
  EXPECT_GE(nstale, window / page - 8) << "the cache has 8 pages of the version";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
