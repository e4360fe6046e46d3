// SPDX-License-Identifier: Apache-2.0
// Pages that the copy engine brings straight into frames: what readers get, and what becomes of copies that come late, fail, or are
// of a file that has changed meanwhile.
#include <deque>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/store/mapped_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t page = 64 << 10, npages = 24, nbytes = npages * page - 1000, seed = 7;

// The machine, but copies begin late: when a gate is open, after some looks, or never.
class late_platform final : public forwarding_platform {
 public:
  late_platform() : forwarding_platform(simt::this_platform()) {}
  std::unique_ptr<simt::copy_batch> make_copy_batch() override {
    return std::make_unique<late_batch>(*this, real_.make_copy_batch());
  }

  std::atomic<bool> held{false};
  std::atomic<std::uint32_t> looks{0};       // of each batch, up to so many, another number each time
  std::atomic<std::uint32_t> fail_every{0};  // every n-th batch fails; 0: none
  std::atomic<std::uint32_t> nbegun{0}, nended{0};

 private:
  class late_batch final : public simt::copy_batch {
   public:
    late_batch(late_platform& by, std::unique_ptr<simt::copy_batch> real) : by_(by), real_(std::move(real)) {}

    void begin(std::span<simt::host_copy> copies) override {
      const std::uint32_t n = ++by_.nbegun, most = by_.looks, every = by_.fail_every;
      if (every != 0 && n % every == 0) throw std::runtime_error("the test's engine fails");
      copies_ = copies;
      begun_ = false;
      left_ = most == 0 ? 0 : n * 0x9e3779b9u % most;
    }
    bool has_ended() override {
      if (by_.held) return false;
      if (left_ != 0) {
        --left_;
        return false;
      }
      if (!begun_) real_->begin(copies_);
      begun_ = true;
      if (!real_->has_ended()) return false;
      ++by_.nended;
      return true;
    }

   private:
    late_platform& by_;
    std::unique_ptr<simt::copy_batch> real_;
    std::span<simt::host_copy> copies_;
    bool begun_ = false;
    std::uint32_t left_ = 0;
  };
};

class copied_pages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (under_memcheck()) GTEST_SKIP() << "memcheck takes memory that is registered while a kernel runs for out of bounds";
    dir_.add("file", nbytes, seed);
    let_file_times_pass();
  }
  mount_options options(std::uint32_t nframes, std::uint64_t page_nbytes = page) {
    mount_options o;
    o.cache_nbytes = nframes * page_nbytes;
    o.page_nbytes = static_cast<std::uint32_t>(page_nbytes);
    o.max_open_files = 16;
    o.store = store_kind::mapped;
    o.copy_engine = true;
    o.frame_timeout = std::chrono::seconds(20);
    return o;
  }
  static mount_ref ref(const host_mount& m) { return mount_ref(mount_inside(m).resident()); }

  // Reads all of the file with each group, from another place each.
  static void read_all(mount_ref fs, group_kind kind, std::uint64_t trial = 0) {
    players groups(fs, {.grid = 2, .block = 64, .schedule = {.seed = trial}, .all = kind});
    std::vector<script> scripts(std::min<std::size_t>(groups.size(), 6));
    for (std::size_t g = 0; g < scripts.size(); ++g) {
      scripts[g].open(0, "file");
      const std::uint64_t first = (g * 5 + trial) % npages * page;
      scripts[g].pread(0, nbytes - first, static_cast<std::int64_t>(first));
      scripts[g].pread(0, first, 0);
      scripts[g].close(0);
    }
    scripts.resize(groups.size());
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < std::min<std::size_t>(groups.size(), 6); ++g) {
      const std::uint64_t first = (g * 5 + trial) % npages * page;
      ASSERT_EQ(got[g][1].value, static_cast<std::int64_t>(nbytes - first)) << "group " << g << " of trial " << trial;
      EXPECT_EQ(wrong_bytes(got[g][1], nbytes - first, seed, first), 0u) << "group " << g << " of trial " << trial;
      EXPECT_EQ(wrong_bytes(got[g][2], first, seed, 0), 0u) << "group " << g << " of trial " << trial;
    }
  }

  temp_dir dir_{memory_directory()};
  late_platform machine_;
};

constexpr group_kind all_kinds[] = {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block};

TEST_F(copied_pages, come_by_the_engine) {
  for (const group_kind kind : all_kinds) {
    const host_mount m(machine_, dir_.path(), options(128));
    read_all(ref(m), kind);
    const mount_counters c = m.counters();
    EXPECT_GT(c.host_copies, npages / 2) << "group kind " << static_cast<int>(kind);
    EXPECT_EQ(c.faults, npages);
    EXPECT_EQ(c.pins, 0u);
    EXPECT_EQ(c.under_way, 0u);
    for (const std::string& line : m.log()) ADD_FAILURE() << line;
  }
}

TEST_F(copied_pages, are_pulled_where_that_is_wanted_or_pages_are_small) {
  mount_options o = options(128);
  o.copy_engine = mount_options{}.copy_engine;
  const host_mount without(machine_, dir_.path(), o);
  read_all(ref(without), group_kind::warp);
  EXPECT_EQ(without.counters().host_copies, 0u);
  const host_mount small(machine_, dir_.path(), options(256, page / 2));
  read_all(ref(small), group_kind::warp);
  EXPECT_EQ(small.counters().host_copies, 0u);
  EXPECT_EQ(machine_.nbegun, 0u);
}

TEST_F(copied_pages, may_be_mapped_prefetched_and_read_through_pointers) {
  const host_mount m(machine_, dir_.path(), options(128));
  players groups(ref(m), {.grid = 1, .block = 32});
  script s;
  s.open(0, "file");
  const auto mapped = s.map(0, 0, static_cast<std::int64_t>(5 * page + 10), 100);
  s.unmap(0);
  for (int i = 0; i < 8; ++i) s.prefetch(0, static_cast<std::int64_t>(8 * page), 4 * page);
  s.read_async(0, 0, 3 * page, static_cast<std::int64_t>(12 * page));
  const auto waited = s.wait(0);
  const auto read = s.pread(0, 8 * page, static_cast<std::int64_t>(8 * page));
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[mapped].value, static_cast<std::int64_t>(page - 10));
  EXPECT_EQ(wrong_bytes(got[mapped], 100, seed, 5 * page + 10), 0u);
  EXPECT_EQ(got[waited].value, static_cast<std::int64_t>(3 * page));
  EXPECT_EQ(wrong_bytes(got[read], 8 * page, seed, 8 * page), 0u);
  EXPECT_GT(m.counters().host_copies, 0u);
  EXPECT_EQ(m.counters().faults, 9u);
}

// A frame that a copy is still to be written to is nobody else's, although its page was read elsewhere meanwhile.
TEST_F(copied_pages, whose_copies_are_held_are_pulled_into_other_frames) {
  for (const group_kind kind : all_kinds) {
    if (under_tsan && kind != group_kind::warp) continue;
    const host_mount m(machine_, dir_.path(), options(16));
    machine_.held = true;
    read_all(ref(m), kind, 1);
    const mount_counters held = m.counters();
    EXPECT_GT(held.under_way, 0u) << "group kind " << static_cast<int>(kind);
    EXPECT_EQ(held.host_copies, 0u);
    EXPECT_EQ(held.pins, 0u);
    machine_.held = false;
    for (std::uint64_t trial = 2; trial < 6; ++trial) read_all(ref(m), kind, trial);
    const auto is_over = [&] {
      read_all(ref(m), kind, 6);
      return m.counters().under_way == 0;
    };
    EXPECT_TRUE(wait_until(is_over)) << "group kind " << static_cast<int>(kind);
    EXPECT_GT(m.counters().host_copies, held.host_copies);
    EXPECT_EQ(m.counters().pins, 0u);
    EXPECT_EQ(m.counters().io_timeouts, 0u);
  }
}

TEST_F(copied_pages, of_many_groups_in_few_frames) {
  for (std::uint64_t trial = 0; trial < schedules(24, 4) && !HasFailure(); ++trial) {
    random_source draw(trial);
    mount_options o = options(static_cast<std::uint32_t>(draw.between(6, 40)));
    o.internals.request_rings = static_cast<std::uint32_t>(draw.between(4, 8));
    o.internals.request_slots = 2;
    machine_.fail_every = 0;
    const host_mount m(machine_, dir_.path(), o);
    machine_.looks = draw.percent(50) ? 400 : 0;
    machine_.fail_every = draw.percent(30) ? 3 : 0;
    std::atomic<bool> ends{false};
    std::thread holder([&] {
      for (bool held = true; !ends && trial % 2 != 0; held = !held) {
        machine_.held = held;
        std::this_thread::sleep_for(std::chrono::milliseconds(held ? 150 : 30));
      }
      machine_.held = false;
    });
    read_all(ref(m), draw.pick(std::vector<group_kind>(std::begin(all_kinds), std::end(all_kinds))), trial);
    ends = true;
    holder.join();
    EXPECT_EQ(m.counters().pins, 0u) << trial;
    EXPECT_EQ(m.counters().io_timeouts, 0u) << trial;
  }
}

// Whoever reads such a page hears of it, whether the copy came before or after the change.
TEST_F(copied_pages, of_a_version_that_has_ended_are_refused) {
  const host_mount m(machine_, dir_.path(), options(128));
  players groups(ref(m), {.grid = 1, .block = 32});
  script first, second;
  first.open(0, "file");
  const auto good = first.pread(0, 3 * page, 0);
  const auto bad = second.pread(0, 3 * page, static_cast<std::int64_t>(6 * page));
  const auto known = second.pread(0, 3 * page, 0);
  second.close(0);
  EXPECT_EQ(groups.run(first)[good].value, static_cast<std::int64_t>(3 * page));
  dir_.add("file", nbytes, seed + 1);
  const auto got = groups.run(second);
  EXPECT_EQ(got[bad].value, -ESTALE);
  EXPECT_EQ(wrong_bytes(got[known], 3 * page, seed, 0), 0u) << "what the cache has stays as it was";
}

TEST_F(copied_pages, come_by_host_threads_where_the_engine_fails) {
  const host_mount m(machine_, dir_.path(), options(128));
  machine_.fail_every = 1;
  read_all(ref(m), group_kind::warp);
  const mount_counters c = m.counters();
  EXPECT_EQ(c.host_copies, 0u);
  EXPECT_GE(c.host_reads, npages);
  ASSERT_FALSE(m.log().empty());
  EXPECT_NE(m.log().front().find("the test's engine fails"), std::string::npos) << m.log().front();
}

TEST_F(copied_pages, are_pulled_where_the_device_cannot_copy) {
  machine_.fail_every = 1;
  const host_mount m(machine_, dir_.path(), options(128));
  read_all(ref(m), group_kind::warp);
  EXPECT_EQ(m.counters().host_copies, 0u);
  EXPECT_EQ(m.counters().host_reads, 0u);
  ASSERT_EQ(m.log().size(), 1u);
  EXPECT_NE(m.log().front().find("the copy engine is not used: the test's engine fails"), std::string::npos) << m.log().front();
}

// The copy may wait for the kernel that asks.
TEST_F(copied_pages, are_ready_where_it_is_in_doubt_that_they_come) {
  const host_mount m(machine_, dir_.path(), options(128));
  machine_.held = true;
  players groups(ref(m), {.grid = 1, .block = 32});
  script s;
  s.open(0, "file");
  s.read_async(0, 0, 3 * page, static_cast<std::int64_t>(4 * page));
  const auto is_ready = s.ready(0, std::chrono::seconds(20));
  const auto waited = s.wait(0);
  const auto read = s.pread(0, 3 * page, static_cast<std::int64_t>(4 * page));
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[is_ready].value, 1);
  EXPECT_EQ(got[waited].value, static_cast<std::int64_t>(3 * page));
  EXPECT_EQ(wrong_bytes(got[read], 3 * page, seed, 4 * page), 0u);
  machine_.held = false;
}

// What was asked for ahead and is held costs whoever reads it page by page little more than the first of them.
TEST_F(copied_pages, that_are_held_and_read_one_by_one_are_waited_for_once) {
  const host_mount m(machine_, dir_.path(), options(128));
  machine_.held = true;
  players groups(ref(m), {.grid = 1, .block = 32});
  script s;
  s.open(0, "file");
  for (int i = 0; i < 8; ++i) s.prefetch(0, 0, 16 * page);
  std::vector<std::size_t> reads;
  for (std::uint64_t i = 0; i < 16; ++i) reads.push_back(s.pread(0, page, static_cast<std::int64_t>(i * page)));
  s.close(0);
  const auto begin = std::chrono::steady_clock::now();
  const auto got = groups.run(s);
  const auto took = std::chrono::steady_clock::now() - begin;
  for (std::uint64_t i = 0; i < reads.size(); ++i) EXPECT_EQ(wrong_bytes(got[reads[i]], page, seed, i * page), 0u);
  EXPECT_LT(took, std::chrono::milliseconds(1000)) << "16 times 100 ms on the CPU machine, 16 times 20 ms on a GPU";
  machine_.held = false;
}

// In a cache that the file fits into, too, where no page is evicted: some other page is missed.
TEST_F(copied_pages, are_asked_for_again_once_copies_are_not_held) {
  const host_mount m(machine_, dir_.path(), options(256));
  players groups(ref(m), {.grid = 1, .block = 32});
  machine_.held = true;
  script first;
  first.open(0, "file");
  const auto read = first.pread(0, page, 0);
  EXPECT_EQ(wrong_bytes(groups.run(first)[read], page, seed, 0), 0u);
  EXPECT_EQ(m.counters().host_copies, 0u);
  machine_.held = false;
  for (std::uint64_t i = 1; i < npages - 1 && m.counters().host_copies < 2; ++i) {
    script next;
    const auto part = next.pread(0, page, static_cast<std::int64_t>(i * page));
    EXPECT_EQ(wrong_bytes(groups.run(next)[part], page, seed, i * page), 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(m.counters().host_copies, 2u);
  script last;
  last.close(0);
  groups.run(last);
}

// A run of pages, of which host threads bring some and the engine others.
TEST_F(copied_pages, of_windows_beside_pages_that_host_threads_read) {
  constexpr std::uint64_t window = 4 * page;
  mount_options o = options(128);
  const auto files = std::make_shared<store::auto_store>(machine_, dir_.path(), 3 * window,
                                                         store::auto_options{.small_file_nbytes = 1, .window_nbytes = window});
  o.custom_store = files;
  const host_mount m(machine_, dir_.path(), o);
  players groups(ref(m), {.grid = 1, .block = 32});
  script open;
  open.open(0, "file");
  groups.run(open);
  const auto read_some = [&](std::uint64_t first, std::uint64_t n) {
    script s;
    s.advise(0, 0, nbytes, advice::dontneed);
    const auto read = s.pread(0, n * page, static_cast<std::int64_t>(first * page));
    const auto got = groups.run(s);
    EXPECT_EQ(got[read].value, static_cast<std::int64_t>(n * page));
    EXPECT_EQ(wrong_bytes(got[read], n * page, seed, first * page), 0u);
  };
  // Until the second window is registered, and not the first.
  EXPECT_TRUE(wait_until([&] {
    read_some(4, 4);
    return m.counters().host_copies != 0;
  }));
  EXPECT_EQ(files->usage().pinned_nbytes, window);
  for (const bool held : {false, true, false}) {
    machine_.held = held;
    const auto begin = std::chrono::steady_clock::now();
    read_some(1, 9);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << held;
  }
  script close;
  close.close(0);
  groups.run(close);
}

// Copies that are under way are the mount's to wait for.
TEST_F(copied_pages, are_no_leak_when_the_mount_ends) {
  std::thread later;
  {
    const host_mount m(machine_, dir_.path(), options(32));
    machine_.held = true;
    read_all(ref(m), group_kind::warp);
    EXPECT_GT(m.counters().under_way, 0u);
    later = std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      machine_.held = false;
    });
  }
  later.join();
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
