// SPDX-License-Identifier: Apache-2.0
// Pages of files that are open for writing, which come sector by sector after advise(random): docs/design/part-pages.md, "Writing".
#include <algorithm>

#include "file/device_file.hpp"
#include "file/notes.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = 5;
constexpr std::uint32_t page_nbytes = 4096, sector = 128;

class part_writes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }
  mount_options in_place(std::uint32_t nframes = 16, std::uint32_t nbytes_of_page = page_nbytes) const {
    mount_options o = writing_options(nbytes_of_page, nframes);
    o.custom_store = mapping_store(dir_.path());
    return o;
  }
  // A file, and what it is to have.
  void begin(std::uint64_t nbytes) {
    dir_.add("f", nbytes, seed);
    model_ = content(seed, 0, nbytes);
  }
  // A write that the model makes, too.
  std::size_t pwrite(script& s, std::uint64_t nbytes, std::uint64_t offset) {
    const auto bytes = content(++id_, offset, nbytes);
    put(model_, bytes, offset);
    return s.pwrite(0, bytes, static_cast<std::int64_t>(offset));
  }
  std::vector<std::byte> part(std::uint64_t nbytes, std::uint64_t offset) const {
    const auto from = model_.begin() + static_cast<std::ptrdiff_t>(offset);
    return {from, from + static_cast<std::ptrdiff_t>(nbytes)};
  }

  temp_dir dir_{memory_directory()};
  std::vector<std::byte> model_;
  std::uint64_t id_ = 100;
};

// Only what a write leaves of its sectors is read; only what was written goes back.
TEST_F(part_writes, read_the_sectors_of_which_they_leave_some) {
  for (const group_kind kind : all_kinds) {
    const std::string which = "group kind " + std::to_string(static_cast<int>(kind));
    begin(8 * page_nbytes);
    const mount m(dir_.path(), in_place());
    prepare_for_memcheck(m, "f", O_RDWR);
    players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
    std::vector<script> scripts(groups.size());
    const auto run = [&](script s) {
      scripts[0] = std::move(s);
      return groups.run(scripts)[0];
    };
    std::uint64_t nsectors = 0, nfaults = 0;
    const auto expect = [&](const std::string& what, std::uint64_t faults, std::uint64_t sectors) {
      nfaults += faults;
      nsectors += sectors;
      EXPECT_EQ(m.counters().faults, nfaults) << what << ", " << which;
      EXPECT_EQ(m.counters().bytes_filled, nsectors * sector) << what << ", " << which;
      nfaults = m.counters().faults;
      nsectors = m.counters().bytes_filled / sector;
    };
    script open;
    open.open(0, "f", O_RDWR);
    open.advise(0, 0, 0, advice::random);
    const auto opened = run(open);
    EXPECT_GE(opened[0].value, 0);
    EXPECT_EQ(opened[1].value, 0);
    expect("an open", 0, 0);

    std::uint64_t nwritten = 0;
    const auto write = [&](const std::string& what, std::uint64_t nbytes, std::uint64_t offset, std::uint64_t faults,
                           std::uint64_t sectors) {
      script s;
      pwrite(s, nbytes, offset);
      EXPECT_EQ(run(s)[0].value, static_cast<std::int64_t>(nbytes)) << what;
      nwritten += nbytes;
      expect(what, faults, sectors);
    };
    write("a few bytes of one sector", 16, page_nbytes + 5 * sector + 20, 1, 1);
    write("others of that sector", 16, page_nbytes + 5 * sector + 60, 0, 0);
    write("sectors from edge to edge", 3 * sector, 2 * page_nbytes + 4 * sector, 0, 0);
    write("the end of one, all of two, the begin of one", 3 * sector, 3 * page_nbytes + 9 * sector + 50, 1, 2);
    write("the begin of a sector", 10, 3 * page_nbytes + 20 * sector, 1, 1);
    write("the end of a page and the begin of the next one", 300, 5 * page_nbytes - 100, 2, 2);
    script read;  // what was written is there, also what was not read, and the rest comes around it
    read.pread(0, 3 * sector, 2 * page_nbytes + 4 * sector);
    const auto first = run(read);
    EXPECT_EQ(first[0].bytes, part(3 * sector, 2 * page_nbytes + 4 * sector)) << which;
    expect("a read of what was written", 0, 0);
    script all;
    all.pread(0, 8 * page_nbytes, 0);
    EXPECT_EQ(run(all)[0].bytes, model_) << which;
    expect("a read of all", m.counters().faults - nfaults, 8 * 32 - (3 + 2 + 1) - nsectors);
    script end;
    end.fsync(0);
    end.close(0);
    EXPECT_EQ(run(end)[1].value, 0);
    EXPECT_EQ(dir_.read("f"), model_) << which;
    EXPECT_EQ(m.counters().bytes_written_back, nwritten) << which;
    expect_all_written(m);
  }
}

// A part page that is written whole has nothing left to be read, and is as any page then; so is one of which all sectors were
// written.
TEST_F(part_writes, make_pages_whole) {
  begin(4 * page_nbytes);
  const mount m(dir_.path(), in_place());
  prepare_for_memcheck(m, "f", O_RDWR);
  players groups(m.ref(), {});
  script s;
  s.open(0, "f", O_RDWR);
  s.advise(0, 0, 0, advice::random);
  s.pread(0, 1, page_nbytes);
  pwrite(s, page_nbytes, page_nbytes);
  for (std::uint32_t i = 0; i < 8; ++i) pwrite(s, 4 * sector, (i * 3 % 8) * 4 * sector);
  s.map(0, 0, 0, page_nbytes);
  s.unmap(0);
  s.map(0, 0, page_nbytes, page_nbytes);
  s.unmap(0);
  const auto all = s.pread(0, 2 * page_nbytes, 0);
  auto got = groups.run(s);
  EXPECT_EQ(got[all].bytes, part(2 * page_nbytes, 0));
  EXPECT_EQ(m.counters().bytes_filled, sector);
  EXPECT_EQ(m.counters().hits, 4u) << "two mapped pages, and two that were read";
  script close;
  close.close(0);
  EXPECT_EQ(groups.run(close)[0].value, 0);
  EXPECT_EQ(dir_.read("f"), model_);
  expect_all_written(m);
}

// Without advice, or after it was taken back, pages are whole: nothing is learnt of a file that is open for writing.
TEST_F(part_writes, come_whole_without_advice) {
  begin(200 * page_nbytes);
  const mount m(dir_.path(), in_place(128));
  prepare_for_memcheck(m, "f", O_RDWR);
  players groups(m.ref(), {});
  script s;
  s.open(0, "f", O_RDWR);
  for (std::uint32_t i = 0; i < 200; ++i) s.pread(0, 8, i * page_nbytes);
  for (std::uint32_t i = 0; i < 200; ++i) pwrite(s, 8, i * page_nbytes + 8);
  groups.run(s);
  EXPECT_EQ(m.counters().bytes_filled, m.counters().faults * page_nbytes);
  script t;
  t.advise(0, 0, 0, advice::random);
  pwrite(t, 8, page_nbytes + 300);
  t.advise(0, 0, 0, advice::whole);
  pwrite(t, 8, page_nbytes + 1000);  // now the rest of the page comes along
  const auto rest = t.pread(0, page_nbytes, page_nbytes);
  t.close(0);
  const std::uint64_t before = m.counters().bytes_filled;
  const auto got = groups.run(t);
  EXPECT_EQ(got[rest].bytes, part(page_nbytes, page_nbytes));
  EXPECT_EQ(m.counters().bytes_filled - before, page_nbytes);
  EXPECT_EQ(dir_.read("f"), model_);
  expect_all_written(m);
}

// Cut within a sector, between sectors, and before the page; grown by ftruncate, by a write beyond the end, and by an append.
TEST_F(part_writes, are_cut_and_grow) {
  for (const group_kind kind : {group_kind::thread, group_kind::warp, group_kind::block}) {
    for (const std::uint32_t cut : {2u * page_nbytes + 7 * sector + 50, 2u * page_nbytes + 7 * sector, 2u * page_nbytes - 30}) {
      for (int how = 0; how < 3; ++how) {
        const std::string which = "cut to " + std::to_string(cut) + ", grown in way " + std::to_string(how);
        begin(3 * page_nbytes);
        const mount m(dir_.path(), in_place());
        prepare_for_memcheck(m, "f", O_RDWR);
        players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
        script s;
        s.open(0, "f", O_RDWR);
        s.advise(0, 0, 0, advice::random);
        s.pread(0, 4 * sector, 2 * page_nbytes + 5 * sector);  // sectors before, at and behind the cut
        pwrite(s, 200, 2 * page_nbytes + 7 * sector + 10);
        pwrite(s, 30, 2 * page_nbytes + 12 * sector);
        pwrite(s, 4 * sector, 2 * page_nbytes + 20 * sector);
        s.ftruncate(0, cut);
        model_.resize(cut);
        if (how == 0) {
          s.ftruncate(0, 3 * page_nbytes);
          model_.resize(3 * page_nbytes);
        } else if (how == 1) {
          pwrite(s, 100, 2 * page_nbytes + 25 * sector + 5);
        } else {
          const auto bytes = content(++id_, 0, 700);
          put(model_, bytes, cut);
          s.append(0, bytes);
        }
        const auto read = s.pread(0, model_.size(), 0);
        const auto close = s.close(0);
        std::vector<script> scripts(groups.size());
        scripts[0] = s;
        const auto got = groups.run(scripts)[0];
        EXPECT_EQ(got[read].value, static_cast<std::int64_t>(model_.size())) << which;
        EXPECT_EQ(got[read].bytes, model_) << which;
        EXPECT_EQ(got[close].value, 0) << which;
        EXPECT_EQ(dir_.read("f"), model_) << which;
        expect_all_written(m);
      }
    }
  }
}

// A group cuts a file and lets it grow while others bring in sectors of what is cut: what was cut off never comes back.
TEST_F(part_writes, bring_nothing_back_that_was_cut_off) {
  if (under_tsan) GTEST_SKIP() << "who reads what is being cut off races with the zeros, as in a whole page";
  constexpr std::uint64_t npages = 3, file_nbytes = npages * page_nbytes;
  const seed_range seeds = seeds_to_run(80);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    random_source draw(trial);
    begin(file_nbytes);
    const mount m(dir_.path(), in_place(npages + 8));
    prepare_for_memcheck(m, "f", O_RDWR);
    players groups(m.ref(), {.grid = 6,
                             .block = 32,
                             .schedule = {.seed = trial,
                                          .resident_blocks = 6,
                                          .nthreads = static_cast<unsigned>(draw.between(1, 3)),
                                          .switch_percent = 100},
                             .all = draw.percent(50) ? group_kind::warp : group_kind::block});
    std::vector<script> scripts(groups.size());
    const auto read_some = [&](script& s, int n) {
      for (int i = 0; i < n; ++i) {
        const std::uint64_t offset = page_nbytes + draw.below(file_nbytes - page_nbytes - 100);
        s.pread(0, draw.between(1, 100), static_cast<std::int64_t>(offset));
      }
    };
    for (script& s : scripts) {
      s.open(0, "f", O_RDWR);
      s.advise(0, 0, 0, advice::random);
    }
    for (std::size_t g = 1; g < scripts.size(); ++g) read_some(scripts[g], 20);
    read_some(scripts[0], static_cast<int>(draw.below(10)));
    const auto cut = draw.between(1, page_nbytes);
    scripts[0].ftruncate(0, static_cast<std::int64_t>(cut));
    scripts[0].ftruncate(0, file_nbytes);
    const auto read = scripts[0].pread(0, file_nbytes, 0);
    for (script& s : scripts) s.close(0);
    const auto got = groups.run(scripts);
    model_.resize(cut);
    model_.resize(file_nbytes);
    EXPECT_TRUE(got[0][read].bytes == model_) << "GPUFS_TEST_SEED=" << trial;
    EXPECT_TRUE(dir_.read("f") == model_) << "GPUFS_TEST_SEED=" << trial;
    expect_all_written(m);
  }
}

// Groups of all kinds write bytes of their own, all over few pages that have hardly a frame each, read them, and sync.
TEST_F(part_writes, of_many_groups_lose_nothing) {
  const seed_range seeds = seeds_to_run(under_tsan ? 6 : 60);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    random_source draw(trial);
    const std::uint32_t nbytes_of_page = 512u << draw.below(6);
    const std::uint64_t file_nbytes = nbytes_of_page * draw.between(2, 12) - draw.below(nbytes_of_page);
    begin(file_nbytes);
    mount_options o = in_place(static_cast<std::uint32_t>(draw.between(6, 20)), nbytes_of_page);
    o.frame_timeout = std::chrono::seconds(30);  // many wait in turn for few frames
    const mount m(dir_.path(), o);
    prepare_for_memcheck(m, "f", O_RDWR);
    players groups(m.ref(), {.grid = 3,
                             .block = 64,
                             .schedule = {.seed = trial,
                                          .resident_blocks = 3,
                                          .nthreads = static_cast<unsigned>(draw.between(1, 3)),
                                          .switch_percent = draw.percent(50) ? 20u : 100u},
                             .all = draw.pick(std::vector<group_kind>{group_kind::tile8, group_kind::warp, group_kind::block})});
    // Runs of bytes, each a group's.
    struct run {
      std::uint64_t begin, end;
    };
    std::vector<std::vector<run>> owned(groups.size());
    for (std::uint64_t at = 0; at < file_nbytes;) {
      const std::uint64_t end = std::min(at + draw.between(1, draw.percent(70) ? 200 : 2ull * nbytes_of_page), file_nbytes);
      owned[draw.below(groups.size())].push_back({at, end});
      at = end;
    }
    struct expected {
      std::size_t group, call;
      std::vector<std::byte> bytes;
    };
    std::vector<expected> reads;
    std::vector<script> scripts(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      script& s = scripts[g];
      s.open(0, "f", O_RDWR);
      for (int i = 0; i < 10 && !owned[g].empty(); ++i) {
        if (i == 0 || draw.percent(10)) {
          s.advise(0, 0, 0, draw.percent(85) ? advice::random : draw.pick(std::vector<advice>{advice::normal, advice::whole}));
        }
        const run mine = draw.pick(owned[g]);
        const std::uint64_t begin = draw.percent(50) ? mine.begin : mine.begin + draw.below(mine.end - mine.begin);
        const std::uint64_t nbytes = draw.percent(50) ? mine.end - begin : draw.between(1, mine.end - begin);
        const std::uint64_t what = draw.below(10);
        if (!under_tsan && draw.percent(40)) {  // what others write at that moment: it may be anything
          const std::uint64_t at = draw.below(file_nbytes);
          s.pread(0, std::min(draw.between(1, 600), file_nbytes - at), static_cast<std::int64_t>(at));
        }
        if (what < 6) {
          pwrite(s, nbytes, begin);
        } else if (what < 9) {
          reads.push_back({g, s.pread(0, nbytes, static_cast<std::int64_t>(begin)), part(nbytes, begin)});
        } else if (g != 0 || draw.percent(30)) {  // of those that map a page each waits for a second frame: so one group does
          s.fsync(0, durability::page_cache);
        } else {
          s.map_write(0, 0, static_cast<std::int64_t>(begin));
          const std::uint64_t here = std::min<std::uint64_t>(nbytes, nbytes_of_page - begin % nbytes_of_page);
          const auto bytes = content(++id_, begin, here);
          put(model_, bytes, begin);
          s.store(0, bytes, 0);
          s.unmap_write(0);
        }
      }
      s.close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const outcome& call : got[g]) ASSERT_GE(call.value, 0) << "GPUFS_TEST_SEED=" << trial << " group " << g;
    }
    for (const expected& r : reads) {
      ASSERT_EQ(got[r.group][r.call].bytes, r.bytes) << "GPUFS_TEST_SEED=" << trial << " group " << r.group << " call " << r.call;
    }
    ASSERT_EQ(dir_.read("f"), model_) << "GPUFS_TEST_SEED=" << trial;
    expect_all_written(m);
  }
}

// Updates of elements, stores past links, and reads through pointers take a sector each; a pointer that writes takes the page.
struct update_by_sectors {
  mount_ref fs;
  const char* path;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file f = open(warp, fs, path, O_RDWR);
    note(advise(warp, f, 0, 0, advice::random));
    {
      const auto p = map<std::uint32_t>(warp, f);
      const auto lane = static_cast<std::int64_t>(simt::lane_id());
      fetch_add_at(p, lane * 1024, 1u);                                       // each lane a page of its own
      fetch_add_at(p, lane % 4 * 32 + 40, 1u);                                // eight lanes an element, four sectors of page 0
      store_at(p, 31 * 1024 + 512 + lane, static_cast<std::uint32_t>(lane));  // a sector of one page
      note(p.error());
      const auto q = map<const std::uint32_t>(warp, f);
      const std::uint32_t seen = q[31 * 1024 + 512 + lane];
      note(warp.all(seen == static_cast<std::uint32_t>(lane)));
      note(q.linked() ? 1 : 0);
      q.unlink();
    }
    note(close(warp, f));
  }
};
TEST_F(part_writes, of_elements_take_their_sectors) {
  begin(32 * page_nbytes);
  const mount m(dir_.path(), in_place(64));
  prepare_for_memcheck(m, "f", O_RDWR);
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::int64_t> results(nresults);
  simt::launch({.grid = 1, .block = 32, .schedule = {.whole_warps = true}}, update_by_sectors{m.ref(), path.get(), results.get()});
  auto got = results.read();
  got.resize(5);
  EXPECT_EQ(got, (std::vector<std::int64_t>{0, 0, 1, 1, 0}));
  // 32 sectors of the first updates, four of the second ones, of which one more may come along behind them, and one of the stores.
  EXPECT_GE(m.counters().bytes_filled, (32u + 4 + 1) * sector);
  EXPECT_LE(m.counters().bytes_filled, (32u + 5 + 1) * sector);
  std::vector<std::uint32_t> words(model_.size() / 4);
  std::memcpy(words.data(), model_.data(), model_.size());
  for (std::size_t lane = 0; lane < 32; ++lane) {
    words[lane * 1024] += 1;
    words[lane % 4 * 32 + 40] += 1;
    words[31 * 1024 + 512 + lane] = static_cast<std::uint32_t>(lane);
  }
  std::memcpy(model_.data(), words.data(), model_.size());
  EXPECT_EQ(dir_.read("f"), model_);
  expect_all_written(m);
}

// Bytes that are written to a page in part, and are nowhere else, are in a private mapping's copy of it, and in a page that a
// handler has made; also where no frame is to be had for these, and they are read past the cache.
struct read_from_part_pages {
  mount_ref fs;
  const char* path;
  const std::byte* bytes;
  bool crowded;  // the other frames are pinned
  std::int64_t* results;

  static constexpr unsigned nheld = 6;
  struct twice {
    GPUFS_DEVICE static std::uint32_t form() { return 1; }
    template <class Group>
    GPUFS_DEVICE int filled(Group group, std::byte* page, std::uint64_t, std::uint32_t nbytes) const {
      for (std::uint32_t i = group.rank(); i < nbytes; i += group.size()) {
        page[i] = static_cast<std::byte>(2 * static_cast<unsigned>(page[i]));
      }
      group.sync();
      return 0;
    }
  };
  template <class Pointer>
  GPUFS_DEVICE bool is_right(const Pointer& p, std::int64_t page, std::int64_t first, unsigned times) const {
    bool right = true;
    for (std::int64_t at = page * page_nbytes + first; at < page * page_nbytes + 730; ++at) {
      const std::int64_t written = at - page * page_nbytes - 700;
      const auto byte = written >= 0 && written < 16 ? bytes[written] : content_byte(seed, static_cast<std::uint64_t>(at));
      right = right && static_cast<std::uint8_t>(p[at]) == static_cast<std::uint8_t>(times * static_cast<unsigned>(byte));
    }
    return this_warp().all(right);
  }

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file f = open(warp, fs, path, O_RDWR);
    note(advise(warp, f, 0, 0, advice::random));
    note(pwrite(warp, f, bytes, 16, 700));
    note(pwrite(warp, f, bytes, 16, page_nbytes + 700));
    mapped_page<const std::byte> held[nheld];
    for (unsigned i = 0; crowded && i < nheld; ++i) held[i] = map_page(warp, f, (2 + i) * page_nbytes);
    {
      const auto first = map<const std::uint8_t>(warp, f), second = first + 0;
      note(is_right(first, 0, 690, 1));
      note(is_right(second, 1, 690, 1));
      const auto copied = map<std::uint8_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      note(is_right(copied, 0, 600, 1));  // also of a sector that is not there
      copied.unlink();
      const auto handled = map<const std::uint8_t>(warp, f, 0, to_the_end, map_flags::none, twice{});
      note(is_right(handled, 1, 600, 2));
    }
    for (unsigned i = 0; crowded && i < nheld; ++i) note(unmap_page(warp, std::move(held[i])));
    note(close(warp, f));
  }
};
TEST_F(part_writes, are_seen_in_copies_of_the_page) {
  for (const bool crowded : {false, true}) {
    begin(16 * page_nbytes);
    mount_options o = in_place(read_from_part_pages::nheld + 2);
    if (crowded) o.frame_timeout = std::chrono::milliseconds(5);
    const mount m(dir_.path(), o);
    prepare_for_memcheck(m, "f", O_RDWR);
    const auto bytes = content(9, 0, 16);
    const std::span<const std::byte> all(bytes);
    const device_buffer<std::byte> input(all);
    const device_buffer<char> path(std::vector<char>{'f', 0});
    const auto got = noted(m, read_from_part_pages{m.ref(), path.get(), input.get(), crowded, nullptr});
    std::vector<std::int64_t> want = {0, 16, 16, 1, 1, 1, 1};
    want.resize(nresults);
    EXPECT_EQ(got, want);
    EXPECT_EQ(m.counters().past_cache != 0, crowded);
    put(model_, bytes, 700);
    put(model_, bytes, page_nbytes + 700);
    EXPECT_EQ(dir_.read("f"), model_);
    expect_all_written(m);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
