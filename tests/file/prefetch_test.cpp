// SPDX-License-Identifier: Apache-2.0
// prefetch, read_async, ready, wait and advise: pages on their way that belong to nobody, and who ends what they are about.
#include "file/staged_file.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using prefetches = staged_file;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr group_kind all_kinds[] = {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block};

// A prefetch leaves out pages whose lane meets others at a ring: who wants them all asks again.
constexpr int asks = 8;

script opened() {
  script s;
  s.open(0, "file");
  return s;
}

// The host answers nothing before the kernel that asked has ended; the next kernel finds the pages.
TEST_F(prefetches, outlive_the_kernel_that_begins_them) {
  for (const group_kind kind : all_kinds) {
    const mount m = make(64, 1024);
    players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
    wrong().read_gate.close();
    const std::uint64_t reads = wrong().reads;
    script ask = opened();
    std::size_t asked = 0;
    for (int i = 0; i < asks; ++i) asked = ask.prefetch(0, 0, 48 * page);
    auto of_one = std::vector<script>(groups.size(), opened());
    of_one[0] = ask;
    EXPECT_EQ(groups.run(of_one)[0][asked].value, 0);
    EXPECT_EQ(m.counters().under_way, 48u) << "group kind " << static_cast<int>(kind);
    EXPECT_EQ(m.counters().pins, 0u) << "pages on their way are nobody's";
    wrong().read_gate.open();
    script take;
    const auto read = take.pread(0, 64 * page, 0);
    take.close(0);
    std::vector<script> rest(groups.size());
    for (script& s : rest) s.close(0);
    rest[0] = take;
    const auto got = groups.run(rest)[0];
    ASSERT_EQ(got[read].value, 64 * page);
    EXPECT_EQ(wrong_bytes(got[read], 64 * page, seed, 0), 0u);
    const mount_counters c = m.counters();
    EXPECT_EQ(c.faults, 64u) << "each page came once";
    EXPECT_EQ(wrong().reads - reads, 64u);
    EXPECT_EQ(c.under_way, 0u);
    EXPECT_EQ(c.pins, 0u);
  }
}

TEST_F(prefetches, are_no_leak_when_the_mount_ends) {
  std::thread later;
  {
    const mount m = make(64, 256);
    players groups(m.ref(), {.grid = 1, .block = 32});
    wrong().read_gate.close();
    script s = opened();
    s.prefetch(0, 0, 64 * page);
    s.close(0);
    groups.run(s);
    EXPECT_GT(m.counters().under_way, 0u);
    later = std::thread([this] {
      std::this_thread::sleep_for(milliseconds(50));
      wrong().read_gate.open();
    });
  }
  later.join();
}

// What a prefetch could not read is asked for anew by who wants it, who gets the error, or the page.
TEST_F(prefetches, leave_errors_to_those_who_read) {
  const mount m = make(64, 256);
  players groups(m.ref(), {.grid = 1, .block = 32});
  wrong().fail_at(3 * page, 4 * page);
  script s = opened();
  const auto asked = s.prefetch(0, 0, 16 * page);
  s.read_async(0, 0, 8 * page, 0);
  const auto ready = s.ready(0, seconds(20));
  const auto waited = s.wait(0);
  const auto before = s.pread(0, 3 * page, 0);
  const auto bad = s.pread(0, page, 3 * page);
  const auto got = groups.run(s);
  EXPECT_EQ(got[asked].value, 0);
  EXPECT_EQ(got[ready].value, 1) << "a read that gives an error is ready";
  EXPECT_EQ(got[waited].value, -EIO);
  EXPECT_EQ(got[before].value, 3 * page);
  EXPECT_EQ(got[bad].value, -EIO);
  script again;
  again.prefetch(0, 3 * page, page);
  groups.run(again);
  wrong().heal();
  script healed;
  const auto good = healed.pread(0, 16 * page, 0);
  healed.close(0);
  const auto read = groups.run(healed);
  EXPECT_EQ(read[good].value, 16 * page) << "whoever reads asks anew";
  EXPECT_EQ(wrong_bytes(read[good], 16 * page, seed, 0), 0u);
}

// Whoever waits for an answer that does not come gives the operation up; what comes at last touches nothing.
TEST_F(prefetches, that_hang_are_given_up_by_who_waits) {
  const mount m = make(64, 256, milliseconds(300));
  players groups(m.ref(), {.grid = 1, .block = 32});
  wrong().stall_at(5 * page, 6 * page);
  wrong().stall_gate.close();
  script s = opened();
  s.prefetch(0, 5 * page, page);
  const auto hung = s.pread(0, page, 5 * page);
  EXPECT_EQ(groups.run(s)[hung].value, -ETIMEDOUT);
  EXPECT_EQ(m.counters().under_way, 0u);
  EXPECT_EQ(m.counters().io_timeouts, 1u);
  wrong().stall_gate.open();
  EXPECT_TRUE(wait_until([&] { return wrong().stall_gate.waiting() == 0; }));
  script rest;
  const auto all = rest.pread(0, 64 * page, 0);
  rest.close(0);
  const auto got = groups.run(rest);
  EXPECT_EQ(got[all].value, 64 * page);
  EXPECT_EQ(wrong_bytes(got[all], 64 * page, seed, 0), 0u);
  EXPECT_EQ(m.counters().pins, 0u);
}

// The last close ends the host's handle before the host has read: who opens the file again reads it.
TEST_F(prefetches, end_with_the_file_and_harm_no_later_open) {
  const mount m = make(64, 256);
  players groups(m.ref(), {.grid = 1, .block = 32});
  for (int round = 0; round < 20; ++round) {
    script s = opened();
    s.prefetch(0, 0, 40 * page);
    s.close(0);
    s.open(0, "file");
    // All at once, or page by page.
    const std::uint32_t each = round % 2 == 0 ? 64 : 1;
    std::vector<std::size_t> reads;
    for (std::uint32_t i = 0; i < 64; i += each) reads.push_back(s.pread(0, each * page, i * page));
    s.advise(0, 0, 0, advice::dontneed);
    s.close(0);
    const auto got = groups.run(s);
    for (std::uint32_t i = 0; i < reads.size(); ++i) {
      ASSERT_EQ(got[reads[i]].value, each * page) << round;
      EXPECT_EQ(wrong_bytes(got[reads[i]], each * page, seed, i * each * page), 0u);
    }
  }
}

// Slots that pages on their way hold are taken by whoever needs one, once the host has answered.
TEST_F(prefetches, hold_up_nobody_for_request_slots) {
  mount_options o = options_of(64, 256);
  o.internals.request_rings = 1;
  o.internals.request_slots = 2;
  const mount m(dir_.path(), o);
  players groups(m.ref(), {.grid = 1, .block = 32});
  dir_.add("other", page, seed + 1);
  script s = opened();
  s.prefetch(0, 0, 64 * page);
  s.open(1, "other");
  const auto other = s.pread(1, page, 0);
  s.close(1);
  s.prefetch(0, 0, 64 * page);
  const auto read = s.pread(0, 64 * page, 0);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[other].value, page);
  EXPECT_EQ(got[read].value, 64 * page);
  EXPECT_EQ(wrong_bytes(got[read], 64 * page, seed, 0), 0u);
  EXPECT_EQ(m.counters().faults, 65u);
}

// All frames are mapped, or on their way: the last are to be had, too, as who finds none ends what the host has answered.
TEST_F(prefetches, hold_up_nobody_for_frames) {
  mount_options o = options_of(64, 8);
  o.frame_timeout = milliseconds(100);
  const mount m(dir_.path(), o);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s = opened();
  s.prefetch(0, 60 * page, 4 * page);
  s.prefetch(0, 40 * page, 4 * page);
  std::vector<std::size_t> maps, unmaps;
  for (unsigned i = 0; i < 8; ++i) maps.push_back(s.map(0, i, i * page, page));
  for (unsigned i = 0; i < 8; ++i) unmaps.push_back(s.unmap(i));
  s.close(0);
  const auto got = groups.run(s);
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_EQ(got[maps[i]].value, page) << i;
    EXPECT_EQ(wrong_bytes(got[maps[i]], page, seed, i * page), 0u) << i;
    EXPECT_EQ(got[unmaps[i]].value, 0) << i;
  }
}

TEST_F(prefetches, take_a_quarter_of_the_frames) {
  const mount m = make(64, 32);
  players groups(m.ref(), {.grid = 1, .block = 32});
  wrong().read_gate.close();
  script s = opened();
  for (int i = 0; i < 4; ++i) s.prefetch(0, i * 16 * page, 16 * page);
  s.close(0);
  groups.run(s);
  EXPECT_EQ(m.counters().under_way, 32u / 4);
  wrong().read_gate.open();
}

TEST_F(prefetches, refuse_what_reads_refuse) {
  const mount m = make(4, 64);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s = opened();
  std::vector<std::pair<std::size_t, std::int64_t>> refusals;
  refusals.emplace_back(s.prefetch(0, -1, 1), -EINVAL);
  refusals.emplace_back(s.prefetch(0, 1, ~std::uint64_t{0}), -EOVERFLOW);
  refusals.emplace_back(s.prefetch(0, 4 * page, 1), 0);
  refusals.emplace_back(s.prefetch(0, 0, 0), 0);
  refusals.emplace_back(s.advise(0, -1, 1, advice::sequential), -EINVAL);
  refusals.emplace_back(s.advise(0, -1, 0, advice::willneed), -EINVAL);
  refusals.emplace_back(s.advise(0, 0, 0, static_cast<advice>(77)), -EINVAL);
  refusals.emplace_back(s.open(1, "none"), -ENOENT);
  refusals.emplace_back(s.prefetch(1, 0, 1), -ENOENT);
  refusals.emplace_back(s.advise(1, 0, 1, advice::normal), -ENOENT);
  s.read_async(1, 0, page, 0);
  refusals.emplace_back(s.ready(0), 1);
  refusals.emplace_back(s.wait(0), -ENOENT);
  s.read_async(0, 1, page, -5);
  refusals.emplace_back(s.ready(1), 1);
  refusals.emplace_back(s.wait(1), -EINVAL);
  s.close(0);
  refusals.emplace_back(s.prefetch(0, 0, 1), -EBADF);
  const auto got = groups.run(s);
  for (const auto& [call, value] : refusals) EXPECT_EQ(got[call].value, value) << "call " << call;
  EXPECT_EQ(m.counters().faults, 0u);
}

// Files that kernels pull, and files that are open for writing, have the pages at once.
TEST_F(prefetches, of_files_that_are_pulled_or_written_bring_pages_in_at_once) {
  dir_.add("pulled", 20 * page, seed);
  mount_options o;
  o.cache_nbytes = 128 * page;
  o.page_nbytes = page;
  o.store = store_kind::mapped;
  o.writable = true;
  const mount m(dir_.path(), o);
  prepare_for_memcheck(m, "pulled");
  for (const group_kind kind : {group_kind::warp, group_kind::block}) {
    players groups(m.ref(), {.grid = 1, .block = 64, .warps = std::vector<group_kind>(2, kind)});
    std::vector<script> scripts(groups.size());
    script& s = scripts[0];
    s.open(0, "pulled");
    const auto asked = s.prefetch(0, page, 9 * page);
    s.read_async(0, 0, 9 * page, page);
    const auto ready = s.ready(0);
    const auto waited = s.wait(0);
    s.advise(0, 0, 0, advice::dontneed);
    s.close(0);
    s.open(1, "pulled", O_RDWR);
    const auto written = s.prefetch(1, 0, 20 * page);
    s.close(1);
    const std::uint64_t before = m.counters().faults;
    const auto got = groups.run(scripts)[0];
    EXPECT_EQ(got[asked].value, 0);
    EXPECT_EQ(got[ready].value, 1);
    EXPECT_EQ(got[waited].value, 9 * page);
    EXPECT_EQ(got[written].value, 0);
    EXPECT_GE(m.counters().faults - before, 9u);
  }
}

TEST_F(prefetches, ready_waits_for_nobody_and_wait_for_the_bytes) {
  const mount m = make(64, 256);
  dir_.add("signal", page, seed);
  players groups(m.ref(), {.grid = 1, .block = 32});
  wrong().read_gate.close();
  script s = opened();
  const auto begun = s.read_async(0, 0, 20 * page, 10 * page);
  const auto early = s.ready(0);
  s.open(1, "signal");
  const auto late = s.ready(0, seconds(20));
  const auto read = s.wait(0);
  s.close(1);
  s.close(0);
  std::vector<outcome> got;
  std::thread kernel([&] { got = groups.run(s); });
  EXPECT_TRUE(wait_until([&] { return wrong().opens >= 2; })) << "the kernel comes by, though no read has ended";
  wrong().read_gate.open();
  kernel.join();
  EXPECT_EQ(got[early].value, 0);
  EXPECT_EQ(got[late].value, 1);
  EXPECT_EQ(got[read].value, 20 * page);
  EXPECT_EQ(wrong_bytes(got[begun], 20 * page, seed, 10 * page), 0u);
  EXPECT_EQ(m.counters().faults, 20u);
}

// A reader that goes from page to page has others under way, if it has said so.
TEST_F(prefetches, follow_a_reader_that_reads_on) {
  for (const advice what : {advice::sequential, advice::random, advice::normal}) {
    for (const group_kind kind : all_kinds) {
      const mount m = make(64, 1024);
      players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
      std::vector<script> scripts(groups.size());
      script& s = scripts[0];
      s.open(0, "file");
      s.advise(0, 0, 0, advice::sequential);
      if (what != advice::sequential) s.advise(0, 0, 0, what);
      std::vector<std::size_t> reads;
      for (std::uint32_t i = 0; i < 64; ++i) reads.push_back(s.pread(0, page, i * page));
      s.close(0);
      wrong().read_gate.close();
      std::vector<std::vector<outcome>> got;
      std::thread kernel([&] { got = groups.run(scripts); });
      EXPECT_TRUE(wait_until([&] { return wrong().read_gate.waiting() >= (what == advice::sequential ? 3 : 1); }));
      if (what != advice::sequential) {
        std::this_thread::sleep_for(milliseconds(5));
        EXPECT_EQ(wrong().read_gate.waiting(), 1);
      }
      wrong().read_gate.open();
      kernel.join();
      for (std::uint32_t i = 0; i < 64; ++i) {
        ASSERT_EQ(got[0][reads[i]].value, page) << i;
        EXPECT_EQ(wrong_bytes(got[0][reads[i]], page, seed, i * page), 0u) << i;
      }
      EXPECT_EQ(m.counters().faults, 64u) << "each page came once, and none beyond the end";
      EXPECT_EQ(m.counters().under_way, 0u);
    }
  }
}

// Pages that nobody needs leave the cache; those that are mapped, or not written back, stay.
TEST_F(prefetches, dontneed_leaves_what_is_in_use) {
  mount_options o = options_of(16, 64);
  o.writable = true;
  const mount m(dir_.path(), o);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s = opened();
  s.pread(0, 16 * page, 0);
  s.map(0, 0, 3 * page, page);
  const auto dropped = s.advise(0, page / 2, 9 * page, advice::dontneed);  // pages 1 to 8 lie in it whole
  const auto looked = s.look(0, page);
  auto got = groups.run(s);
  EXPECT_EQ(got[dropped].value, 0);
  EXPECT_EQ(wrong_bytes(got[looked], page, seed, 3 * page), 0u);
  EXPECT_EQ(m.counters().free_frames, 64u - 9);
  script t;
  t.unmap(0);
  const auto again = t.pread(0, 16 * page, 0);
  t.advise(0, 0, 0, advice::dontneed);
  t.close(0);
  got = groups.run(t);
  EXPECT_EQ(got[again].value, 16 * page);
  EXPECT_EQ(wrong_bytes(got[again], 16 * page, seed, 0), 0u);
  EXPECT_EQ(m.counters().faults, 16u + 7);
  EXPECT_EQ(m.counters().free_frames, 64u);
  script w;
  w.open(1, "file", O_RDWR);
  w.pwrite(1, std::vector<std::byte>(page, std::byte{7}), 2 * page);
  w.advise(1, 0, 0, advice::dontneed);
  const auto written = w.pread(1, page, 2 * page);
  w.close(1);
  got = groups.run(w);
  EXPECT_EQ(got[written].bytes, std::vector<std::byte>(page, std::byte{7}));
}

// Pages that nobody comes by, though the host has answered, keep no others out.
TEST_F(prefetches, make_room_for_others) {
  const mount m = make(256, 64);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s = opened();
  for (int i = 0; i < asks; ++i) s.prefetch(0, 0, 64 * page);
  groups.run(s);
  ASSERT_TRUE(wait_until([&] { return wrong().reads >= 16; }));
  script t;
  t.prefetch(0, 128 * page, 64 * page);
  t.read_async(0, 0, 8 * page, 200 * page);
  const auto ready = t.ready(0, seconds(20));
  t.close(0);
  const auto got = groups.run(t);
  EXPECT_EQ(got[ready].value, 1);
  EXPECT_GE(wrong().reads, 16u + 8);
}

// Who has a file open anew gets none of the errors of what was asked for before its last close.
TEST_F(prefetches, of_files_that_close_fail_no_read_of_others) {
  for (std::uint64_t trial = 1; trial <= (under_tsan ? 4u : 20u); ++trial) {
    mount_options o = options_of(32, 256);
    wrong().delay_ns = 10'000;
    const mount m(dir_.path(), o);
    players groups(m.ref(), {.grid = 3, .block = 64, .schedule = {.seed = trial, .resident_blocks = 3}, .all = group_kind::warp});
    std::vector<script> scripts(groups.size());
    std::vector<std::size_t> reads;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (int round = 0; round < 6; ++round) {
        scripts[g].open(0, "file");
        scripts[g].prefetch(0, 0, 32 * page);
        if (g % 2 == 0) {
          scripts[g].close(0);
          scripts[g].open(0, "file");
        }
        const auto read =
            scripts[g].pread(0, page, static_cast<std::int64_t>((g * 6 + static_cast<std::size_t>(round)) % 32 * page));
        if (g == 0) reads.push_back(read);
        if (g % 2 != 0) scripts[g].pread(0, 8 * page, 0);
        scripts[g].advise(0, 0, 0, advice::dontneed);
        scripts[g].close(0);
      }
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < got[g].size(); ++i)
        ASSERT_GE(got[g][i].value, 0) << "seed " << trial << " group " << g << " call " << i;
    }
    EXPECT_EQ(m.counters().host_errors, 0u) << "nor is it the host's error";
    EXPECT_TRUE(m.log().empty() || m.log().front().find("descriptor") == std::string::npos) << m.log().front();
  }
}

// Writers find the frames of pages on their way, too.
TEST_F(prefetches, hold_up_no_writer_for_frames) {
  mount_options o = options_of(64, 8);
  o.writable = true;
  o.frame_timeout = milliseconds(200);
  const mount m(dir_.path(), o);
  dir_.add("other", 4 * page, seed + 1);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s = opened();
  s.prefetch(0, 40 * page, 2 * page);
  for (unsigned i = 0; i < 6; ++i) s.map(0, i, i * page, page);
  s.open(1, "other", O_RDWR);
  const auto written = s.pwrite(1, std::vector<std::byte>(10, std::byte{7}), 5);
  const auto again = s.pwrite(1, std::vector<std::byte>(10, std::byte{8}), page + 5);
  for (unsigned i = 0; i < 6; ++i) s.unmap(i);
  s.close(1);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[written].value, 10);
  EXPECT_EQ(got[again].value, 10);
}

// A file that hangs holds up no other by what was asked for ahead of it.
TEST_F(prefetches, of_a_file_that_hangs_hold_up_no_other) {
  expect_leftovers_but_pins("it stays open");
  mount_options o = options_of(64, 256);
  o.internals.request_rings = 8;
  o.internals.request_slots = 2;
  o.io_timeout = seconds(20);
  const mount m(dir_.path(), o);
  dir_.add("other", 4 * page, seed + 1);
  players groups(m.ref(), {.grid = 1, .block = 32});
  wrong().stall_at(4 * page, 64 * page);
  wrong().stall_gate.close();
  script s = opened();
  s.prefetch(0, 4 * page, 60 * page);
  std::vector<std::size_t> reads;
  for (int round = 0; round < 30; ++round) {
    s.open(1, "other");
    reads.push_back(s.pread(1, 4 * page, 0));
    s.advise(1, 0, 0, advice::dontneed);
    s.close(1);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto got = groups.run(s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15));
  for (const std::size_t read : reads) EXPECT_EQ(got[read].value, 4 * page);
  wrong().stall_gate.open();
}

// A pointer's access is whoever comes by, too.
struct sum_by_pointer {
  mount_ref fs;
  std::uint64_t n;
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, "file");
    prefetch(warp, f, 0, n);
    const auto all = map<const std::uint8_t>(warp, f);
    std::uint64_t mine = 0;
    for (std::uint64_t i = warp.rank(); i < n; i += warp.size()) mine += all[i];
    const std::uint64_t total = warp.reduce_add(mine);
    if (warp.leader()) *sum = total;
    close(warp, f);
  }
};

TEST_F(prefetches, serve_pointers) {
  const mount m = make(64, 256);
  const device_buffer<std::uint64_t> sum(1);
  simt::launch({.grid = 1, .block = 32}, sum_by_pointer{m.ref(), 64 * page, sum.get()});
  std::uint64_t expected = 0;
  for (std::uint64_t i = 0; i < 64 * page; ++i) expected += static_cast<std::uint8_t>(content_byte(seed, i));
  EXPECT_EQ(sum.read_one(), expected);
  EXPECT_EQ(m.counters().faults, 64u);
  EXPECT_EQ(m.counters().under_way, 0u);
  EXPECT_EQ(m.counters().fault_errors, 0u);
}

// Groups of all kinds ask for, wait for and drop overlapping parts.
TEST_F(prefetches, of_many_groups_give_all_to_each) {
  const seed_range seeds = seeds_to_run(under_tsan ? 6 : 40);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    let_many_groups(trial, true, [](random_source& draw, script& s) {
      std::vector<wanted> reads;
      for (int r = 0; r < 6; ++r) {
        const std::uint64_t first = draw.below(60), n = draw.between(1, 36), nbytes = n * page;
        const auto offset = static_cast<std::int64_t>(first * page);
        switch (draw.below(6)) {
          case 0:
            s.prefetch(0, offset, nbytes);
            break;
          case 1:
            s.advise(0, offset, nbytes, draw.pick(std::vector<advice>{advice::sequential, advice::normal, advice::dontneed}));
            break;
          case 2: {
            const std::size_t begun = s.read_async(0, 0, nbytes, offset);
            if (draw.percent(50)) s.ready(0);
            if (draw.percent(80)) reads.push_back({s.wait(0), begun, nbytes, first * page});
            break;
          }
          case 3: {
            const std::size_t mapped = s.map(0, 0, offset, page);
            s.unmap(0);
            reads.push_back({mapped, mapped, page, first * page});
            break;
          }
          default: {
            const std::size_t read = s.pread(0, nbytes, offset);
            reads.push_back({read, read, nbytes, first * page});
          }
        }
      }
      return reads;
    });
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
