// SPDX-License-Identifier: Apache-2.0
// append_each: a record of each lane, in one place of the file for all of the group's. Each is whole, where its lane was told, and
// those of a group lie in the order of its lanes; whatever else goes on.
#include <algorithm>

#include "file/write_errors.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// What a lane appends in one round, and what comes of it.
struct record {
  std::uint64_t src;  // in the bytes; null_address: none, on_stack: the lane's stack
  std::uint64_t nbytes;
  std::uint64_t id;  // byte k of it is content_byte(id, k)
  std::int64_t offset;
};
constexpr std::uint64_t on_stack = null_address - 1, most_on_stack = 40;

struct append_rounds {
  mount_ref fs;
  file_number number;
  const membership* members;
  const std::byte* bytes;
  record* records;  // per round, those of all threads
  std::uint32_t nrounds;

  GPUFS_DEVICE void operator()() const {
    const membership& me = members[thread()];
    with_group(me.kind, [&](auto group) { run(group); });
  }

 private:
  GPUFS_DEVICE static std::uint32_t thread() { return simt::block_rank() * simt::block_size() + simt::thread_rank(); }
  template <class Group>
  GPUFS_DEVICE_COLD void run(Group group) const {
    const file f(fs, number);
    for (std::uint32_t r = 0; r < nrounds; ++r) {
      record& mine = records[std::uint64_t{r} * simt::grid_size() * simt::block_size() + thread()];
      std::byte own[most_on_stack];
      const bool owns = mine.src == on_stack;
      if (owns) {
        for (std::uint64_t k = 0; k < mine.nbytes; ++k) own[k] = content_byte(mine.id, k);
      }
      const std::byte* src = owns ? own : mine.src == null_address ? nullptr : bytes + mine.src;
      mine.offset = append_each(group, f, src, mine.nbytes);
    }
  }
};

// Sizes that a round of one group is drawn from.
struct sizes {
  const char* name;
  std::uint64_t least, most;
  unsigned none_percent;
};
constexpr sizes all_sizes[] = {
    {"16 bytes each", 16, 16, 0},  {"a byte each", 1, 1, 0},      {"some bytes", 1, 40, 0},
    {"some, or none", 0, 24, 50},  {"words of 4", 4, 4, 0},       {"over a page", 1, 2 * page + 3, 80},
    {"nothing at all", 0, 0, 100}, {"pages together", 16, 16, 0}, {"one of all", 64, 64, 97},
};

class appending {
 public:
  appending(const formation& how, std::uint64_t seed) : how_(how), members_(how.members()), draw_(seed) {}

  // A round in which each group draws its kind of sizes, or all have `of`.
  void add(const sizes* of = nullptr) {
    const sizes* kind = of;
    for (std::size_t t = 0; t < members_.size(); ++t) {
      const bool begins = t == 0 || members_[t].group != members_[t - 1].group;
      if (begins && of == nullptr) kind = &all_sizes[draw_.below(std::size(all_sizes))];
      record r{};
      r.nbytes = draw_.percent(kind->none_percent) ? 0 : draw_.between(kind->least, kind->most);
      r.id = records_.size() + 1;
      r.src = r.nbytes <= most_on_stack && draw_.percent(30) ? on_stack : put(r);
      records_.push_back(r);
    }
    ++nrounds_;
  }
  record& at(std::uint32_t round, std::size_t thread) { return records_[round * members_.size() + thread]; }

  void run(const mount& m, file_number number) {
    const device_buffer<membership> members(members_);
    const device_buffer<std::byte> bytes(bytes_);
    const device_buffer<record> records(records_);
    simt::launch({how_.grid, how_.block, how_.schedule},
                 append_rounds{m.ref(), number, members.get(), bytes.get(), records.get(), nrounds_});
    records_ = records.read();
  }

  // That those of a group lie side by side in each round.
  void expect_in_order() const {
    for (std::size_t i = 1; i < records_.size(); ++i) {
      const std::size_t thread = i % members_.size();
      if (thread == 0 || members_[thread].group != members_[thread - 1].group) continue;
      const record &before = records_[i - 1], &mine = records_[i];
      ASSERT_EQ(mine.offset, before.offset + static_cast<std::int64_t>(before.nbytes)) << "thread " << thread << " of " << i;
    }
  }
  std::uint64_t total() const {
    std::uint64_t n = 0;
    for (const record& r : records_) n += r.nbytes;
    return n;
  }
  // Puts them where their lanes were told: each byte once, and none before the first nbytes of the file.
  void put_into(std::vector<std::byte>& file) const {
    std::vector<bool> taken(file.size() + total());
    std::fill_n(taken.begin(), file.size(), true);
    file.resize(taken.size());
    for (const record& r : records_) {
      ASSERT_GE(r.offset, 0) << r.id;
      ASSERT_LE(static_cast<std::uint64_t>(r.offset) + r.nbytes, file.size()) << r.id;
      for (std::uint64_t k = 0; k < r.nbytes; ++k) {
        const auto at = static_cast<std::size_t>(r.offset) + k;
        ASSERT_FALSE(taken[at]) << at << " of " << r.id;
        taken[at] = true;
        file[at] = content_byte(r.id, k);
      }
    }
  }

 private:
  std::uint64_t put(const record& r) {
    bytes_.resize(bytes_.size() + draw_.below(20));  // any alignment
    const std::uint64_t at = bytes_.size();
    const auto of_it = content(r.id, 0, r.nbytes);
    bytes_.insert(bytes_.end(), of_it.begin(), of_it.end());
    return at;
  }

  formation how_;
  std::vector<membership> members_;
  random_source draw_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1);
  std::vector<record> records_;
  std::uint32_t nrounds_ = 0;
};

formation formed(group_kind kind, std::uint64_t seed = 1) {
  return {.grid = 2, .block = 96, .schedule = {.seed = seed, .resident_blocks = 2, .switch_percent = 25}, .all = kind};
}
constexpr group_kind all_kinds[] = {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block};

// One group of each kind alone, so that what follows what is known.
TEST(append_each, puts_records_behind_one_another_in_the_order_of_the_lanes) {
  for (const group_kind kind : all_kinds) {
    for (const std::uint64_t size : {0, 1, 100, 511, 512, 1031}) {
      const temp_dir dir;
      dir.add("log", size, 9);
      const mount m(dir.path(), writing(16));
      appending all({.grid = 1, .block = kind == group_kind::block ? 64u : 32u, .all = kind}, size + 7);
      for (const sizes& s : all_sizes) all.add(&s);
      {
        const host_file log(m, "log", O_WRONLY | O_APPEND);
        all.run(m, log.ref().number());
      }
      if (kind == group_kind::warp || kind == group_kind::block) {
        EXPECT_EQ(all.at(0, 0).offset, static_cast<std::int64_t>(size));
        EXPECT_EQ(all.at(0, 5).offset, static_cast<std::int64_t>(size + 80));
      }
      all.expect_in_order();
      auto wanted = content(9, 0, size);
      all.put_into(wanted);
      ASSERT_EQ(dir.read("log"), wanted) << static_cast<int>(kind) << " behind " << size;
      EXPECT_EQ(m.counters().bytes_written, all.total());
      EXPECT_EQ(m.counters().bytes_written_back, all.total()) << "bytes that were appended, once";
      expect_all_written(m);
    }
  }
}

TEST(append_each, groups_of_all_kinds_never_overlap) {
  for (std::uint64_t seed = 1; seed <= schedules(12, 2); ++seed) {
    random_source draw(seed);
    const temp_dir dir(draw.percent(50) ? memory_directory() : std::filesystem::temp_directory_path());
    const std::uint64_t size = draw.below(3 * page);
    dir.add("log", size, 9);
    mount_options options = writing(static_cast<std::uint32_t>(draw.between(6, 40)));
    options.dirty_nbytes = draw.percent(50) ? page * draw.between(1, 4) : 0;
    const mount m(dir.path(), options);
    formation how = formed(draw.pick(std::vector<group_kind>(std::begin(all_kinds), std::end(all_kinds))), seed);
    how.schedule.switch_percent = draw.pick(std::vector<unsigned>{0, 5, 25, 60});
    if (how.all != group_kind::block) {
      for (int w = 0; w < 6; ++w) how.warps.push_back(all_kinds[draw.below(3)]);
    }
    appending all(how, seed);
    for (unsigned r = 0; r < (under_tsan ? 2 : 5); ++r) all.add();
    {
      const host_file log(m, "log", draw.percent(50) ? O_RDWR : O_GWRONCE);
      all.run(m, log.ref().number());
    }
    all.expect_in_order();
    auto wanted = content(9, 0, size);
    all.put_into(wanted);
    ASSERT_EQ(dir.read("log"), wanted) << "seed " << seed;
    expect_all_written(m);
  }
}

// One warp appends forty pages, of which two may be dirty.
TEST(append_each, keeps_to_the_dirty_limit) {
  const temp_dir dir;
  mount_options options = writing(40);
  options.dirty_nbytes = 2 * page;
  const mount m(dir.path(), options);
  appending all({.grid = 1, .block = 32}, 5);
  for (int r = 0; r < 40; ++r) all.add(&all_sizes[0]);
  {
    const host_file log(m, "log", O_RDWR | O_CREAT);
    all.run(m, log.ref().number());
    EXPECT_LE(m.counters().unwritten_pages, 2u);
    EXPECT_GE(m.counters().write_backs, 38u);
  }
  std::vector<std::byte> wanted;
  all.put_into(wanted);
  EXPECT_EQ(dir.read("log"), wanted);
  expect_all_written(m);
}

// A lane's own mistake is that lane's; a file that cannot be written is all lanes'.
TEST(append_each, tells_each_lane_what_was_wrong) {
  const temp_dir dir;
  dir.add("log", 100, 9);
  const mount m(dir.path(), writing());
  for (const group_kind kind : {group_kind::tile8, group_kind::warp, group_kind::block}) {
    appending all({.grid = 1, .block = 64, .all = kind}, 3);
    for (int r = 0; r < 4; ++r) all.add(&all_sizes[0]);
    const auto nothing = [&](std::uint32_t round, std::size_t thread, std::uint64_t src, std::uint64_t nbytes) {
      all.at(round, thread).src = src;
      all.at(round, thread).nbytes = nbytes;
    };
    constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
    nothing(0, 3, null_address, 16);
    nothing(0, 4, null_address, 0);
    nothing(1, 9, 1, most + 1);
    nothing(1, 10, 1, ~std::uint64_t{0});
    nothing(1, 11, 1, std::uint64_t{page} << 32);
    for (std::size_t t = 0; t < 64; ++t) nothing(2, t, null_address, 7);
    {
      const host_file log(m, "log", O_RDWR);
      all.run(m, log.ref().number());
    }
    EXPECT_EQ(all.at(0, 3).offset, -EFAULT);
    EXPECT_EQ(all.at(0, 4).offset, all.at(0, 2).offset + 16);
    EXPECT_EQ(all.at(0, 5).offset, all.at(0, 2).offset + 16) << "nothing lies where nothing was";
    EXPECT_EQ(all.at(1, 9).offset, -EOVERFLOW);
    EXPECT_EQ(all.at(1, 10).offset, -EOVERFLOW);
    EXPECT_EQ(all.at(1, 11).offset, -EFBIG);
    EXPECT_EQ(all.at(1, 12).offset, all.at(1, 8).offset + 16);
    for (std::size_t t = 0; t < 64; ++t) EXPECT_EQ(all.at(2, t).offset, -EFAULT) << t;
    EXPECT_EQ(all.at(3, 1).offset, all.at(3, 0).offset + 16);
    const auto bytes = dir.read("log");
    for (const auto& [round, thread] : {std::pair{0u, 2u}, {0u, 5u}, {1u, 8u}, {1u, 12u}, {3u, 31u}}) {
      const record& r = all.at(round, thread);
      ASSERT_LE(static_cast<std::size_t>(r.offset) + 16, bytes.size());
      EXPECT_TRUE(std::equal(bytes.begin() + r.offset, bytes.begin() + r.offset + 16, content(r.id, 0, 16).begin()));
    }
    const std::size_t good = 62 + 61 + 64;
    EXPECT_EQ(bytes.size(), 100 + good * 16);
    dir.resize("log", 100);
  }
  for (const int how : {0, 1, 2, 3}) {  // closed, only to be read, no file, a number that nobody was given
    appending all(formed(group_kind::warp), 3);
    all.add();
    file_number number{how == 2 ? -ENOENT : number_may_write | 50};
    {
      const host_file log(m, "log", how == 0 ? O_RDWR : O_RDONLY);
      if (how < 2) number = log.ref().number();
      if (how == 1) all.run(m, number);
    }
    if (how != 1) all.run(m, number);
    for (std::size_t t = 0; t < 192; ++t) ASSERT_EQ(all.at(0, t).offset, how == 2 ? -ENOENT : -EBADF) << how;
  }
  EXPECT_EQ(dir.read("log").size(), 100u);
  expect_all_written(m);
}

// No place for all: none is written, and the file does not grow.
TEST(append_each, ends_where_a_file_must_end) {
  const temp_dir dir(memory_directory());
  const mount m(dir.path(), writing());
  constexpr std::int64_t most = ((std::int64_t{1} << 32) - 1) * page;
  players one(m.ref(), {});
  script s;
  s.open(0, "log", O_RDWR | O_CREAT);
  s.ftruncate(0, most - 32 * 16);
  s.fstat(0);
  ASSERT_EQ(one.run(s)[2].value, most - 32 * 16);
  appending all({.grid = 1, .block = 32}, 3), more({.grid = 1, .block = 32}, 3);
  const sizes larger{"larger", 17, 17, 0};
  all.add(&larger);
  all.add(&all_sizes[0]);
  all.add(&all_sizes[6]);
  all.add(&all_sizes[0]);
  {
    const host_file log(m, "log", O_RDWR);
    all.run(m, log.ref().number());
    for (std::size_t t = 0; t < 32; ++t) {
      EXPECT_EQ(all.at(0, t).offset, -EFBIG);
      EXPECT_EQ(all.at(1, t).offset, most - static_cast<std::int64_t>(32 - t) * 16);
      EXPECT_EQ(all.at(2, t).offset, most);
      EXPECT_EQ(all.at(3, t).offset, -EFBIG);
    }
  }
  script end;
  const auto status = end.fstat(0), read = end.pread(0, 16, most - 16), cut = end.ftruncate(0, 0);
  end.close(0);
  const auto got = one.run(end);
  EXPECT_EQ(got[status].value, most);
  EXPECT_EQ(wrong_bytes(got[read], 16, all.at(1, 31).id, 0), 0u);
  EXPECT_EQ(got[cut].value, 0);
  expect_all_written(m);
}

// While one lane appends at the file's beginning, another writes the last byte that it may have. The append comes before it, or is
// refused: wherever it is held up.
struct append_beside_the_last_byte {
  mount_ref fs;
  file_number number;
  std::int64_t most;
  const std::byte* src;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    if (!this_warp().leader()) return;
    const auto one = this_thread();
    const file f(fs, number);
    if (simt::block_rank() == 0) {
      results[0] = pwrite(one, f, src, 1, most - 1);
    } else {
      results[1] = append_each(one, f, src, 8);
      results[2] = append_each(one, f, src, 8);
    }
    results[3 + simt::block_rank()] = fstat(one, f).nbytes;
  }
};
TEST(append_each, keeps_to_the_limit_beside_a_write_to_the_last_page) {
  constexpr std::int64_t most = ((std::int64_t{1} << 32) - 1) * page;
  const temp_dir dir(memory_directory());
  const mount m(dir.path(), writing());
  const device_buffer<std::byte> src(content(1, 0, 8));
  players one(m.ref(), {});
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    simt::schedule_trace trace;
    trace.given = true;
    trace.nsteps = 20;
    constexpr std::uint64_t stride = under_tsan ? 7 : 1;
    for (std::uint64_t step = 1; step < trace.nsteps; step += stride) {
      trace.points = {{.step = step, .priority = 1}};
      const device_buffer<std::int64_t> results(5);
      const host_file log(m, "log", O_RDWR | O_CREAT | O_TRUNC);
      simt::cpu_schedule by_points{.seed = seed, .resident_blocks = 2, .nthreads = 1};
      by_points.policy = simt::schedule_policy::priorities;
      by_points.trace = &trace;
      simt::launch({.grid = 2, .block = 32, .schedule = by_points},
                   append_beside_the_last_byte{m.ref(), log.ref().number(), most, src.get(), results.get()});
      const auto got = results.read();
      const auto where = numbered("seed ", seed) + numbered(", step ", step);
      ASSERT_EQ(got[0], 1) << where;
      ASSERT_TRUE(got[1] == 0 || got[1] == -EFBIG) << got[1] << ", " << where;
      ASSERT_TRUE(got[2] == (got[1] == 0 ? 8 : -EFBIG) || got[2] == -EFBIG) << got[2] << ", " << where;
      ASSERT_LE(got[4], most) << where;
      ASSERT_EQ(got[3], most) << where;
      script s;
      s.use_number(0, static_cast<std::int32_t>(log.ref().number()));
      const auto cut = s.ftruncate(0, 0);
      ASSERT_EQ(one.run(s)[cut].value, 0);
      if (on_cuda) break;  // which has a schedule of its own
    }
    EXPECT_TRUE(on_cuda || trace.nsteps > 50) << trace.nsteps;
  }
  expect_all_written(m);
}

// Appends that more is cut, written and synced beside than is appended.
struct append_beside_others {
  mount_ref fs;
  file_number number;
  const std::byte* src;
  std::uint32_t* bad;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f(fs, number);
    const auto expect = [&](bool good) {
      if (!good) simt::atomic_ref<std::uint32_t>(*bad).fetch_add(1, std::memory_order_relaxed);
    };
    const std::uint32_t who = simt::block_rank();
    for (int i = 0; i < 5; ++i) {
      if (who == 0) {
        expect(ftruncate(warp, f, i * 100) == 0);
      } else if (who == 1) {
        expect(pwrite(warp, f, src, 64, 0) == 64);
        expect(fsync(warp, f, durability::page_cache) == 0);
      } else {
        const std::int64_t at = append_each(warp, f, src + simt::lane_id() % 2, 1 + simt::lane_id() % 2);
        const std::int64_t first = warp.broadcast(at);
        expect(at == first + simt::lane_id() + simt::lane_id() / 2);
      }
    }
  }
};
TEST(append_each, goes_on_beside_truncation_writes_and_syncs) {
  if (under_tsan) GTEST_SKIP() << "after a cut, appends and pwrite write the same bytes at once: a race of the program's";
  const temp_dir dir;
  const mount m(dir.path(), writing(12));
  const device_buffer<std::byte> src(std::vector<std::byte>(64, std::byte{7}));
  for (std::uint64_t seed = 1; seed <= schedules(16, 2); ++seed) {
    const device_buffer<std::uint32_t> bad(1);
    {
      const host_file log(m, "log", O_RDWR | O_CREAT | O_TRUNC);
      simt::launch({.grid = 4, .block = 32, .schedule = {.seed = seed, .resident_blocks = 4, .switch_percent = 40}},
                   append_beside_others{m.ref(), log.ref().number(), src.get(), bad.get()});
    }
    ASSERT_EQ(bad.read_one(), 0u) << "seed " << seed;
    for (const std::byte b : dir.read("log")) ASSERT_TRUE(b == std::byte{7} || b == std::byte{0});
  }
  expect_all_written(m);
}

// Pages that cannot be had: lanes before them have theirs, the others an error, and the file is as they say.
TEST_F(write_errors, are_each_lanes_own_where_records_cannot_be_appended) {
  for (const group_kind kind : {group_kind::tile8, group_kind::warp, group_kind::block}) {
    dir_.add("log", page + 100, 1);
    options_.frame_timeout = milliseconds(20);
    const mount& m = start(8);
    // The page in which the file ends must be read in, and is not.
    wrong().fail_at(page, 2 * page);
    appending all({.grid = 1, .block = 64, .all = kind}, 3);
    const sizes some{"some", 100, 100, 0};
    all.add(&some);
    {
      const host_file log(m, "log", O_RDWR);
      all.run(m, log.ref().number());
    }
    wrong().heal();
    const auto bytes = dir_.read("log");
    std::size_t failed = 0;
    for (std::size_t t = 0; t < 64; ++t) {
      const record& r = all.at(0, t);
      failed += r.offset < 0;
      if (r.offset < 0) {
        EXPECT_EQ(r.offset, -EIO) << t;
        continue;
      }
      ASSERT_LE(static_cast<std::size_t>(r.offset) + 100, bytes.size());
      EXPECT_TRUE(std::equal(bytes.begin() + r.offset, bytes.begin() + r.offset + 100, content(r.id, 0, 100).begin())) << t;
    }
    // Of the first group, or the block's first warp: all, as the first page is theirs.
    EXPECT_EQ(failed, kind == group_kind::tile8 ? 8u : 32u);
    expect_idle();
    mount_.reset();
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
