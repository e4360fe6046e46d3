// SPDX-License-Identifier: Apache-2.0
// Pointers into files that are open for writing: what they write reaches the file, and nothing else of it; what others have written
// they see.
#include <filesystem>

#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// In a directory on disk the host writes; in memory (parameter: true) the device stores to the file's mapping.
struct ptr_write : pointer_fixture, ::testing::WithParamInterface<bool> {
  ptr_write() : pointer_fixture(GetParam() ? memory_directory() : std::filesystem::temp_directory_path()) {
    options.writable = true;
    options.store = GetParam() ? store_kind::mapped : store_kind::posix;
  }
  void SetUp() override {
    if (GetParam() && memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }

  // The file and the mount anew.
  void start_again() {
    end_mount();
    dir.add("f", npages * page, file_seed);
    let_file_times_pass();
  }
  static std::vector<std::uint32_t> original() {
    std::vector<std::uint32_t> words(nwords);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_at(static_cast<std::int64_t>(i));
    return words;
  }
  void expect_in_file(const std::vector<std::uint32_t>& wanted) const {
    const std::vector<std::byte> bytes = dir.read("f");
    ASSERT_EQ(bytes.size(), 4 * wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes.data() + 4 * i, 4);
      ASSERT_EQ(word, wanted[i]) << "word " << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(on_disk_and_in_memory, ptr_write, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "in_memory" : "on_disk"); });

// Each lane its words, over all pages; what reads see meanwhile.
struct stores_kernel : pointer_job {
  std::byte* scratch;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    std::int64_t* r = mine();
    {
      auto p = map<std::uint32_t>(warp, f);
      r[0] = p.error();
      for (std::int64_t i = thread(); i < nwords; i += 3 * simt::grid_size() * simt::block_size()) {
        p[i] = static_cast<std::uint32_t>(i);
        r[1] += p[i] != static_cast<std::uint32_t>(i);
        p[i] += 5;
      }
      auto q = map<const std::uint32_t>(this_thread(), f);
      r[2] = q[thread()];
      r[3] = pread(this_thread(), f, scratch + 4 * thread(), 4, 4 * thread());
    }
    warp.sync();
    r[4] = close(warp, f);
  }
};

TEST_P(ptr_write, stores_reach_the_file_and_nothing_else_does) {
  for (const std::uint64_t frames : {400, 150}) {  // the second: fewer than 128 lanes' pages and twins
    options.cache_nbytes = frames * page;
    start_again();
    const device_buffer<std::byte> scratch(4 * 128);
    run<stores_kernel>(2, 64, scratch.get());
    const auto read = scratch.read();
    std::vector<std::uint32_t> wanted = original();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (i % 384 < 128) wanted[i] = static_cast<std::uint32_t>(i) + 5;
    }
    for (unsigned t = 0; t < 128; ++t) {
      EXPECT_EQ(result(t, 0), 0);
      EXPECT_EQ(result(t, 1), 0);
      EXPECT_EQ(result(t, 2), wanted[t]);
      EXPECT_EQ(result(t, 3), 4);
      std::uint32_t word = 0;
      std::memcpy(&word, read.data() + std::size_t{4} * t, 4);
      EXPECT_EQ(word, wanted[t]);
      EXPECT_EQ(result(t, 4), 0);
    }
    expect_in_file(wanted);
    const mount_counters c = fs().counters();
    EXPECT_EQ(c.fault_errors, 0u);
    EXPECT_EQ(c.unwritten_pages, 0u);
    EXPECT_EQ(c.pins, 0u);
  }
}

// Between its map and its first access others write; while a pointer is linked, too.
struct meets_pwrite_kernel : pointer_job {
  std::uint32_t* values;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path, O_RDWR);
    std::int64_t* r = mine();
    {
      auto p = map<std::uint32_t>(me, f);
      auto own = map<std::uint32_t>(me, f, 0, to_the_end, map_flags::private_changes);
      auto read = map<const std::uint32_t>(me, f);
      r[0] = pwrite(me, f, values, 4, 40);
      r[1] = p[10];
      r[2] = own[10];  // written before it was first looked at, and not written back
      r[3] = read[10];
      p[11] = 1111;
      own[12] = 1212;
      r[4] = pwrite(me, f, values + 1, 4, 52);
      r[5] = read[11];
      r[6] = p[13];
      r[7] = read[12];
      // What is linked is not yet written; what the pointer has left is.
      r[8] = fsync(me, f);
      p.unlink();
      r[9] = discard(me, read);
      r[10] = discard(me, p);
      r[11] = discard(me, own);
      r[12] = own[11];
    }
    r[13] = close(me, f);
  }
};

TEST_P(ptr_write, pointers_and_pwrite_see_each_other) {
  const device_buffer<std::uint32_t> values(std::vector<std::uint32_t>{1010, 1313});
  const auto r = run<meets_pwrite_kernel>(1, 32, values.get());
  const std::vector<std::int64_t> expected = {4, 1010, 1010, 1010, 4, 1111, 1313, word_at(12), 0, -EINVAL, -EINVAL, 0, 1111, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 14), expected);
  std::vector<std::uint32_t> wanted = original();
  wanted[10] = 1010;
  wanted[11] = 1111;
  wanted[13] = 1313;
  expect_in_file(wanted);
}

// All lanes add to a few counters, spread over pages that hardly fit.
struct count_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto words = map<std::uint32_t>(warp, f);
      std::int64_t done = 0;
      for (std::int64_t i = 0; i < 8; ++i) {
        const auto at = static_cast<std::int64_t>(content_word(thread(), static_cast<std::uint64_t>(i)) % 5);
        const auto p = words + at * per_page;
        if (p.fetch_add(1, std::memory_order_relaxed) != 0) done |= std::int64_t{1} << (8 * i) | at << (8 * i + 1);
      }
      mine()[0] = done;
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(ptr_write, an_add_is_in_the_file_or_an_error) {
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 6 : 30); ++seed) {
    // The second has fewer frames than lanes could pin, with twins.
    options.cache_nbytes = (seed % 2 == 0 ? 30 : 7) * page;
    options.frame_timeout = std::chrono::microseconds(100);
    start_again();
    schedule.seed = seed;
    run<count_kernel>(2, 32);
    std::vector<std::uint32_t> wanted = original();
    std::uint64_t failed = 0;
    bool told = false;
    for (unsigned t = 0; t < 64; ++t) {
      EXPECT_TRUE(result(t, 1) == 0 || result(t, 1) == -ENOMEM) << result(t, 1);
      told |= result(t, 1) != 0;
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::int64_t what = result(t, 0) >> (8 * i) & 255;
        if ((what & 1) != 0) ++wanted[static_cast<std::size_t>((what >> 1) * per_page)];
        failed += (what & 1) == 0;
      }
    }
    EXPECT_EQ(fs().counters().fault_errors, failed);
    EXPECT_EQ(told, failed != 0) << "a close tells of it";
    expect_in_file(wanted);
  }
}

// Elements that straddle pages, and such that do not.
struct record_kernel : pointer_job {
  struct record {
    std::uint32_t words[3];
  };
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<record>(warp, f, 4);
      const std::int64_t n = (npages * page - 4) / 12;
      for (std::int64_t i = thread(); i < n; i += 64)
        p[i] = record{{static_cast<std::uint32_t>(i), 7, ~static_cast<std::uint32_t>(i)}};
      std::int64_t wrong = 0;
      for (std::int64_t i = thread(); i < n; i += 64) {
        const record got = p[i];
        wrong +=
            got.words[0] != static_cast<std::uint32_t>(i) || got.words[1] != 7 || got.words[2] != ~static_cast<std::uint32_t>(i);
      }
      mine()[0] = wrong;
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(ptr_write, elements_that_straddle_pages_are_written) {
  options.cache_nbytes = 150 * page;
  run<record_kernel>(2, 32);
  std::vector<std::uint32_t> wanted = original();
  for (std::size_t i = 0; i < (npages * page - 4) / 12; ++i) {
    wanted[1 + 3 * i] = static_cast<std::uint32_t>(i);
    wanted[2 + 3 * i] = 7;
    wanted[3 + 3 * i] = ~static_cast<std::uint32_t>(i);
  }
  for (unsigned t = 0; t < 64; ++t) {
    EXPECT_EQ(result(t, 0), 0);
    EXPECT_EQ(result(t, 1), 0);
  }
  expect_in_file(wanted);
}

// Errors: no permission, closed too early, cut underneath.
struct refused_kernel : pointer_job {
  std::byte* scratch;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file reader = open(me, fs, path), writer = open(me, fs, path, O_RDWR), joins = open(me, fs, path);
    r[0] = map<std::uint32_t>(me, reader).error();
    r[1] = map<std::uint32_t>(me, joins).error();
    r[2] = map<std::uint32_t>(me, writer).error();
    {
      // A pointer that may write, made from a mapping that must not be written.
      const auto constant = map<const std::uint32_t>(me, joins);
      const ptr<std::uint32_t> forged(constant.mapped(), constant.within(), {});
      r[3] = forged[1];
      forged[1] = 0;
      r[4] = forged[1];
    }
    {
      auto p = map<std::uint32_t>(me, writer);
      p[0] = 77;
      p[39 * per_page] = 78;
      p[per_page] = 79;
      r[5] = ftruncate(me, writer, static_cast<std::int64_t>(page));
      p[per_page + 1] = 80;  // linked still, and beyond the end
      p.unlink();
      r[6] = p[0];
      p[5 * per_page] = 81;  // beyond the end, and not in the cache: recorded, and close tells of no error
      r[10] = p[6 * per_page];
      r[7] = ftruncate(me, writer, static_cast<std::int64_t>(2 * page));
      r[8] = p[per_page];  // (Whether the 80 can be read is not said; the file never gets it.)
    }
    r[9] = close(me, writer);
    close(me, joins);
    close(me, reader);
  }
};

TEST_P(ptr_write, what_must_not_or_cannot_be_written_is_refused_or_recorded) {
  const device_buffer<std::byte> scratch(4);
  const auto r = run<refused_kernel>(1, 32, scratch.get());
  const std::vector<std::int64_t> expected = {-EACCES, -EACCES, 0, word_at(1), word_at(1), 0, 77, 0, 0, 0, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 11), expected);
  const auto c = fs().counters();
  EXPECT_EQ(c.fault_errors, 3u);
  std::string log;
  for (const std::string& line : fs().log()) log += line + '\n';
  EXPECT_NE(log.find("Permission denied"), std::string::npos) << log;
  EXPECT_NE(log.find("at offset 20480: the file has been cut, and ends before"), std::string::npos) << log;
  std::vector<std::uint32_t> wanted = original();
  wanted.resize(2 * per_page);
  wanted[0] = 77;
  for (std::size_t i = per_page; i < wanted.size(); ++i) wanted[i] = 0;
  expect_in_file(wanted);
}

// Pointers that give up what they have written to after close: by unlink, by an access elsewhere, by their end. One lane of some.
struct too_late_kernel : pointer_job {
  std::int64_t how;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      auto p = map<std::uint32_t>(warp, f);
      const bool writes = thread() == 13;
      if (writes) p[5] = 5;
      if (!writes) mine()[0] = p[5 + per_page];
      warp.sync();
      mine()[1] = close(warp, f);
      if (writes && how == 0) p.unlink();
      if (writes && how == 1) mine()[0] = p[5 + per_page];
      mine()[2] = p.error();
    }
    mine()[3] = 1;
  }
};

TEST_P(ptr_write, pointers_that_end_after_close_have_lost_what_they_wrote) {
  expect_leftovers("the kernel is stopped, and a lane that is stopped in a destructor leaves its pin");
  pins_may_leak = true;
  for (std::int64_t how = 0; how < 3; ++how) {
    end_mount();
    if (on_cuda) {
      run<too_late_kernel>(1, 32, how);
      EXPECT_EQ(result(13, 2), how == 2 ? 0 : -EBADF);
      EXPECT_EQ(result(13, 3), 1);
    } else {
      try {
        run<too_late_kernel>(1, 32, how);
        ADD_FAILURE() << "the CPU machine did not notice, way " << how;
      } catch (const simt::launch_error& e) {
        EXPECT_NE(
            std::string(e.what()).find("block 0 warp 0 lane 13 gives up a page that it has written to through a pointer after "
                                       "the file was closed"),
            std::string::npos)
            << e.what();
      }
    }
    EXPECT_EQ(fs().counters().fault_errors, 1u);
    const auto log = fs().log();
    ASSERT_EQ(log.size(), 1u);
    EXPECT_EQ(log[0].rfind("lost, what was written through a pointer to ", 0), 0u) << log[0];
    EXPECT_NE(log[0].find(": Bad file descriptor (block 0, warp 0, lane 13)"), std::string::npos) << log[0];
  }
  end_mount();
  expect_in_file(original());
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
