// SPDX-License-Identifier: Apache-2.0
// How often a miss walks through the page table: once without a bucket's lock, and once with it. No code counts that: the walks are
// made longer, by headers which say that each bucket has passed an entry on. The CPU machine counts the steps of a launch, and each
// walk takes five more for each bucket more.
#include "file/device_file.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t page_nbytes = 4096, npages = 256, nframes = 512;
constexpr std::uint32_t apart = 8;  // pages that lie nearer have one tag in the table, and a longer walk looks at their frames, too
constexpr std::uint64_t steps_of_bucket = 5;  // loads: the header, and the slots as four words

enum class miss : std::uint8_t { by_pread, by_lane, by_warp, by_lanes_apart, of_sectors, of_sectors_by_warp, by_update };

struct make_walks_longer {
  mount_ref fs;
  std::uint32_t* nbuckets;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const cache::table_storage& table = fs.get()->cache.table;
    *nbuckets = table.bucket_mask + 1;
    for (std::uint32_t i = 0; i <= table.bucket_mask; ++i) table.headers[i] = 1;
  }
};

struct read_in_part {
  file from;
  std::int64_t* out;

  GPUFS_DEVICE void operator()() const { *out = advise(this_warp(), from, 0, 0, advice::random); }
};

struct miss_once {
  file from;
  miss what;
  std::int64_t* out;  // how many lanes got something else than the file's bytes

  GPUFS_DEVICE std::int64_t read(std::uint32_t page_number) const {
    const auto p = map<const std::uint64_t>(this_thread(), from);
    const std::int64_t i = std::int64_t{page_number} * (page_nbytes / 8);
    return p[i] != content_word(device_file_seed, static_cast<std::uint64_t>(i));
  }
  GPUFS_DEVICE void operator()() const {
    std::int64_t wrong = 0;
    if (what == miss::by_warp || what == miss::by_lanes_apart || what == miss::of_sectors_by_warp) {
      wrong = read(what == miss::by_lanes_apart ? apart * simt::lane_id() : 7);
    } else if (simt::lane_id() != 0) {
      return;
    } else if (what == miss::by_pread) {
      std::uint64_t word = 0;
      wrong = pread(this_thread(), from, &word, sizeof word, 3 * page_nbytes) != sizeof word ||
              word != content_word(device_file_seed, 3 * page_nbytes / 8);
    } else if (what == miss::by_update) {
      const auto p = map<std::uint64_t>(this_thread(), from);
      wrong = fetch_add_at(p, 9, std::uint64_t{1}) != content_word(device_file_seed, 9);
    } else {
      wrong = read(5);
    }
    if (wrong != 0) simt::atomic_ref<std::int64_t>(*out).fetch_add(1, std::memory_order_relaxed);
  }
};

class table_walks : public ::testing::TestWithParam<source_kind> {
 protected:
  void SetUp() override {
    if (on_cuda) GTEST_SKIP() << "a GPU counts no steps";
  }

  std::uint64_t steps_of(miss what, bool longer, std::uint64_t& more_buckets) const {
    mount_options options = device_file(GetParam(), npages * page_nbytes, page_nbytes, nframes);
    const temp_dir dir(memory_directory());
    if (what == miss::by_update) {  // files in memory are not written
      dir.add("f", npages * page_nbytes, device_file_seed);
      options.custom_store = nullptr;
      options.store = store_kind::mapped;
      options.writable = true;
    }
    const mount m(dir.path(), options);
    const host_file f(m, "f", options.writable ? O_RDWR : O_RDONLY);
    const device_buffer<std::int64_t> out(1);
    if (longer) {
      const device_buffer<std::uint32_t> nbuckets(1);
      simt::launch({}, make_walks_longer{m.ref(), nbuckets.get()});
      more_buckets = nbuckets.read()[0] - 1;
    }
    if (what == miss::of_sectors || what == miss::of_sectors_by_warp) {
      simt::launch({}, read_in_part{f.ref(), out.get()});
      EXPECT_EQ(out.read()[0], 0);
    }
    simt::schedule_trace trace;
    trace.given = true;
    simt::cpu_schedule alone{.seed = 1, .nthreads = 1, .whole_warps = true};
    alone.policy = simt::schedule_policy::priorities;
    alone.trace = &trace;
    simt::launch({.schedule = alone}, miss_once{f.ref(), what, out.get()});
    EXPECT_EQ(out.read()[0], 0);
    EXPECT_EQ(m.counters().hits, 0u);
    EXPECT_EQ(m.counters().bytes_filled, expected_nbytes(what));
    return trace.nsteps;
  }
  static std::uint64_t expected_nbytes(miss what) {
    if (what == miss::of_sectors || what == miss::of_sectors_by_warp) return 128;
    return page_nbytes * (what == miss::by_lanes_apart ? std::uint64_t{simt::warp_lanes} : 1);
  }
  void expect_two_walks(miss what) const {
    std::uint64_t more = 0;
    const std::uint64_t short_ones = steps_of(what, false, more), again = steps_of(what, false, more);
    EXPECT_EQ(short_ones, again) << "the schedule is not the same";
    const std::uint64_t long_ones = steps_of(what, true, more);
    ASSERT_GE(more, 127u);
    const std::uint64_t nmissed = what == miss::by_lanes_apart ? simt::warp_lanes : 1;
    EXPECT_EQ(long_ones - short_ones, 2 * nmissed * more * steps_of_bucket);
  }
};

TEST_P(table_walks, of_a_miss_by_pread_are_two) { expect_two_walks(miss::by_pread); }
TEST_P(table_walks, of_a_pointers_miss_are_two) { expect_two_walks(miss::by_lane); }
TEST_P(table_walks, of_a_page_that_a_warp_misses_are_two) { expect_two_walks(miss::by_warp); }
TEST_P(table_walks, of_pages_that_lanes_miss_are_two_each) { expect_two_walks(miss::by_lanes_apart); }
TEST_P(table_walks, of_sectors_that_a_pointer_misses_are_two) { expect_two_walks(miss::of_sectors); }
TEST_P(table_walks, of_sectors_that_a_warp_misses_are_two) { expect_two_walks(miss::of_sectors_by_warp); }
TEST_P(table_walks, of_an_updates_miss_are_two) { expect_two_walks(miss::by_update); }

INSTANTIATE_TEST_SUITE_P(each_source, table_walks, ::testing::Values(source_kind::pull, source_kind::mem),
                         [](const auto& tested) { return std::string(tested.param == source_kind::pull ? "pull" : "mem"); });

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
