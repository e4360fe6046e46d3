// SPDX-License-Identifier: Apache-2.0
// Pages that come sector by sector, as their readers want a little of each (advise(random)).
#include "file/device_file.hpp"
#include "file/notes.hpp"
#include "file/watch.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = device_file_seed;

class part_pages : public ::testing::TestWithParam<source_kind> {
 protected:
  static constexpr std::uint32_t page_nbytes = 4096, sector = 128;
};
INSTANTIATE_TEST_SUITE_P(sources, part_pages, ::testing::Values(source_kind::pull, source_kind::mem),
                         [](const auto& tested) { return std::string(tested.param == source_kind::pull ? "pull" : "mem"); });

TEST_P(part_pages, bring_in_the_sectors_that_are_wanted) {
  for (const group_kind kind : all_kinds) {
    const std::string which = "group kind " + std::to_string(static_cast<int>(kind));
    const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
    players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
    std::vector<script> scripts(groups.size());
    const auto run = [&](script s) {
      scripts[0] = std::move(s);
      return groups.run(scripts)[0];
    };
    const auto expect = [&](std::uint64_t faults, std::uint64_t nsectors, std::uint64_t hits) {
      const mount_counters c = m.counters();
      EXPECT_EQ(c.faults, faults) << which;
      EXPECT_EQ(c.bytes_filled, nsectors * sector) << which;
      EXPECT_EQ(c.hits, hits) << which;
      EXPECT_EQ(c.pins, 0u) << which;
    };
    script first;
    first.open(0, "f");
    first.advise(0, 0, 0, advice::random);
    const auto read = first.pread(0, 10, page_nbytes + 5 * sector);
    EXPECT_EQ(wrong_bytes(run(first)[read], 10, seed, page_nbytes + 5 * sector), 0u);
    expect(1, 1, 0);
    script again;  // the same sector, then one that lies beside it, too
    again.pread(0, sector, page_nbytes + 5 * sector);
    again.pread(0, 2, page_nbytes + 6 * sector - 1);
    const auto both = run(again);
    EXPECT_EQ(wrong_bytes(both[0], sector, seed, page_nbytes + 5 * sector), 0u);
    EXPECT_EQ(wrong_bytes(both[1], 2, seed, page_nbytes + 6 * sector - 1), 0u);
    expect(2, 2, 1);
    script over;  // from one page into the next one
    over.pread(0, 3 * sector, 2 * page_nbytes - sector - 1);
    EXPECT_EQ(wrong_bytes(run(over)[0], 3 * sector, seed, 2 * page_nbytes - sector - 1), 0u);
    expect(4, 2 + 3 + 2 - 1, 1);
    script whole;  // the rest of a page, around what is there; then it is as any page
    whole.pread(0, page_nbytes, page_nbytes);
    whole.pread(0, page_nbytes, page_nbytes);
    whole.map(0, 0, page_nbytes, page_nbytes);
    whole.unmap(0);
    const auto wholes = run(whole);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(wrong_bytes(wholes[static_cast<std::size_t>(i)], page_nbytes, seed, page_nbytes), 0u);
    expect(5, 32 + 2, 3);
    script mapped;  // what is mapped is whole
    mapped.map(0, 0, 2 * page_nbytes, page_nbytes);
    mapped.unmap(0);
    mapped.map(0, 0, 3 * page_nbytes, page_nbytes);
    mapped.unmap(0);
    mapped.close(0);
    const auto maps = run(mapped);
    EXPECT_EQ(wrong_bytes(maps[0], page_nbytes, seed, 2 * page_nbytes), 0u);
    EXPECT_EQ(wrong_bytes(maps[2], page_nbytes, seed, 3 * page_nbytes), 0u);
    expect(7, 3 * 32, 3);
  }
}

// With its last byte come the zeros behind the file's end, so the last page becomes whole, too.
TEST_P(part_pages, become_whole_at_the_files_end) {
  const mount m("/", device_file(GetParam(), page_nbytes + 1000, page_nbytes, 16));
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "f");
  s.advise(0, 0, 0, advice::random);
  const auto first = s.pread(0, 10, page_nbytes);
  const auto last = s.pread(0, 4000, page_nbytes + 990);
  const auto rest = s.pread(0, 4000, page_nbytes);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(wrong_bytes(got[first], 10, seed, page_nbytes), 0u);
  EXPECT_EQ(got[last].value, 10);
  EXPECT_EQ(wrong_bytes(got[last], 10, seed, page_nbytes + 990), 0u);
  EXPECT_EQ(got[rest].value, 1000);
  EXPECT_EQ(wrong_bytes(got[rest], 1000, seed, page_nbytes), 0u);
  EXPECT_EQ(m.counters().bytes_filled, page_nbytes);
  EXPECT_EQ(m.counters().faults, 3u);
}

// Groups of all kinds read parts of few pages, with hardly a frame for each of them, and some map them.
TEST_P(part_pages, of_many_groups_give_all_to_each) {
  const seed_range seeds = seeds_to_run(under_tsan ? 6 : 30);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    random_source draw(trial);
    const std::uint32_t nbytes_of_page = 128u << draw.below(9);
    const std::uint64_t file_nbytes = nbytes_of_page * draw.between(3, 40) - draw.below(nbytes_of_page);
    const mount m("/", device_file(GetParam(), file_nbytes, std::max(nbytes_of_page, 512u),
                                   static_cast<std::uint32_t>(draw.between(10, 40))));
    players groups(m.ref(), {.grid = 3,
                             .block = 64,
                             .schedule = {.seed = trial, .resident_blocks = 3, .switch_percent = draw.percent(50) ? 20u : 100u},
                             .all = draw.pick(std::vector<group_kind>{std::begin(all_kinds), std::end(all_kinds)})});
    struct wanted {
      std::size_t call;
      std::uint64_t nbytes, offset;
      bool is_read;
    };
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<wanted>> reads(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      scripts[g].open(0, "f");
      for (int i = 0; i < 8; ++i) {
        if (i == 0 || draw.percent(10)) {
          scripts[g].advise(0, 0, 0,
                            draw.percent(80) ? advice::random : draw.pick(std::vector<advice>{advice::normal, advice::noreuse}));
        }
        const std::uint64_t offset = draw.below(file_nbytes);
        const std::uint64_t there =
            std::min(draw.percent(80) ? draw.between(1, 200) : draw.between(1, 3ull * nbytes_of_page), file_nbytes - offset);
        if (draw.percent(10)) {
          scripts[g].map(0, 0, static_cast<std::int64_t>(offset), 1);
          reads[g].push_back({scripts[g].look(0, 1), 1, offset, false});
          scripts[g].unmap(0);
        } else {
          reads[g].push_back({scripts[g].pread(0, there, static_cast<std::int64_t>(offset)), there, offset, true});
        }
      }
      scripts[g].close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const wanted& w : reads[g]) {
        if (w.is_read) {
          ASSERT_EQ(got[g][w.call].value, static_cast<std::int64_t>(w.nbytes)) << "GPUFS_TEST_SEED=" << trial << " group " << g;
        }
        ASSERT_EQ(wrong_bytes(got[g][w.call], w.nbytes, seed, w.offset), 0u) << "GPUFS_TEST_SEED=" << trial << " group " << g;
      }
    }
    EXPECT_EQ(m.counters().pins, 0u);
    EXPECT_EQ(m.counters().fault_errors, 0u);
  }
}

// A warp's lanes read through pointers, two lanes a sector: by dereferencing, by gather, by read_tile, and in pieces of 16 bytes.
struct read_by_pointers {
  mount_ref fs;
  const char* path;
  std::int64_t* wrong;
  advice after;  // said before the last round, in which whole pages are linked

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    int told = advise(warp, f, 0, 0, advice::random);
    const auto p = map<const std::uint8_t>(warp, f);
    std::int64_t nwrong = 0;
    for (std::int64_t round = 0; round < 4; ++round) {
      if (round == 3) told |= advise(warp, f, 0, 0, after);
      const std::int64_t at = round * 4096 + static_cast<std::int64_t>(simt::lane_id()) * 64;
      const auto here = static_cast<std::uint64_t>(at);
      const auto is = [](std::uint8_t value, std::uint64_t place) {
        return value == static_cast<std::uint8_t>(content_byte(seed, place));
      };
      nwrong += !is(p[at], here);
      const std::int64_t places[] = {at + 1, at + 8192 + 30};
      const auto two = p.gather(places);
      nwrong += !is(two[0], here + 1) + !is(two[1], here + 8192 + 30);
      const auto tile = (p + at).template read_tile<4>(2);
      for (unsigned k = 0; k < 4; ++k) nwrong += !is(tile[k], here + 2 * k);
      const auto sixteen = (p + at).template load<simt::vec16>(16);
      for (unsigned k = 0; k < 16; ++k) {
        nwrong += !is(static_cast<std::uint8_t>(sixteen.word[k / 4] >> (8 * (k % 4))), here + 16 + k);
      }
      nwrong += (p + at).error() != 0;
    }
    p.unlink();
    simt::atomic_ref<std::int64_t>(*wrong).fetch_add(nwrong + (told != 0), std::memory_order_relaxed);
    warp.sync();
    close(warp, f);
  }
};
TEST_P(part_pages, are_read_through_pointers) {
  for (const advice after : {advice::random, advice::normal}) {
    const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
    const device_buffer<char> path(std::vector<char>{'f', 0});
    const device_buffer<std::int64_t> wrong(std::vector<std::int64_t>{0});
    // Whole warps, as on a GPU: lanes that came later would find a run there, and bring as many sectors again.
    simt::launch({.grid = 1, .block = 32, .schedule = {.whole_warps = true}},
                 read_by_pointers{m.ref(), path.get(), wrong.get(), after});
    EXPECT_EQ(wrong.read()[0], 0);
    const mount_counters c = m.counters();
    EXPECT_EQ(c.fault_errors, 0u);
    EXPECT_EQ(c.pins, 0u);
    // Pages 0 to 3 by dereferences, 2 to 5 by gathers: the first 2 KiB of each, 17 sectors at most.
    if (after == advice::random) {
      EXPECT_LE(c.bytes_filled, 6u * 17 * sector);
      EXPECT_GE(c.bytes_filled, 6u * 16 * sector);
      EXPECT_LE(c.faults, 6u * 8) << "lanes that are together bring a page's sectors in together";
    } else {
      EXPECT_GT(c.bytes_filled, 6u * 17 * sector) << "pages are linked whole";
      EXPECT_LE(c.bytes_filled, 6u * page_nbytes);
    }
  }
}

// One lane has the first sector of each page, and then gathers an element of each that lies in another.
struct gather_beside_a_sector {
  mount_ref fs;
  const char* path;
  std::int64_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t nwrong = advise(warp, f, 0, 0, advice::random) != 0;
    const auto p = map<const std::uint8_t>(warp, f);
    if (warp.leader()) {
      for (std::int64_t n = 0; n < 8; ++n) nwrong += p[n * 4096] != static_cast<std::uint8_t>(content_byte(seed, n * 4096));
      p.unlink();
      for (std::int64_t n = 0; n < 8; ++n) {
        const std::int64_t places[] = {n * 4096 + 1, n * 4096 + 3001};
        const auto two = p.gather(places);
        for (unsigned k = 0; k < 2; ++k) {
          nwrong += two[k] != static_cast<std::uint8_t>(content_byte(seed, static_cast<std::uint64_t>(places[k])));
        }
      }
      *wrong = nwrong;
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_P(part_pages, give_gathers_no_sector_that_is_not_there) {
  const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::int64_t> wrong(std::vector<std::int64_t>{-1});
  simt::launch({.grid = 1, .block = 32}, gather_beside_a_sector{m.ref(), path.get(), wrong.get()});
  EXPECT_EQ(wrong.read()[0], 0);
  EXPECT_LT(m.counters().bytes_filled, 8u * page_nbytes) << "pages come in part";
}

// A page whose sectors have all come is linked as any; of one that lacks some, those that are there.
struct link_pages {
  mount_ref fs;
  const char* path;
  std::byte* scratch;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    const std::int64_t told = advise(warp, f, 0, 0, advice::random);
    const std::int64_t halves = pread(warp, f, scratch, 2048, 0) + pread(warp, f, scratch, 2048, 2048);
    const std::int64_t half = pread(warp, f, scratch, 2048, 4096);
    const auto p = map<const std::uint8_t>(warp, f);
    const std::int64_t whole_page = p.fault_in();
    const auto q = p + 4096;
    const std::int64_t part_of_page = q.fault_in();
    const bool is_linked = q.linked();
    const bool right = static_cast<std::uint8_t>(*q) == static_cast<std::uint8_t>(content_byte(seed, 4096));
    p.unlink();
    q.unlink();
    if (warp.leader()) {
      const cache::frames frames(fs.get()->cache);
      std::int64_t in_part = 0;
      for (std::uint32_t i = 0; i < frames.count(); ++i) in_part += frames.is_partial(cache::frame_index{i});
      const std::int64_t all[] = {told, halves, half, whole_page, part_of_page, is_linked, right, in_part};
      for (int i = 0; i < 8; ++i) results[i] = all[i];
    }
    warp.sync();
    close(warp, f);
  }
};
TEST_P(part_pages, are_linked_whole_and_in_part) {
  const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::byte> scratch(page_nbytes);
  const device_buffer<std::int64_t> results(8);
  simt::launch({.grid = 1, .block = 32}, link_pages{m.ref(), path.get(), scratch.get(), results.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{0, 4096, 2048, 0, 0, 1, 1, 1})) << "one page is whole, one in part";
  EXPECT_EQ(m.counters().past_cache, 0u);
}

// What lies on a page that is there in part, a batch of rows reads past it, and what a private mapping changes is its own.
struct write_privately {
  mount_ref fs;
  const char* path;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t told = advise(warp, f, 0, 0, advice::random);
    const auto shared = map<const std::uint8_t>(warp, f);
    told += shared[static_cast<std::int64_t>(simt::lane_id()) * 10] == 0xff && simt::lane_id() == 99;
    auto mine = map<std::uint8_t>(warp, f, 0, to_the_end, map_flags::private_changes);
    const std::int64_t at = static_cast<std::int64_t>(simt::lane_id()) * 100;
    const auto before = static_cast<std::uint8_t>(mine[at]);
    mine[at] = static_cast<std::uint8_t>(before + 1);
    const auto now = static_cast<std::uint8_t>(mine[at]);
    const auto shared_now = static_cast<std::uint8_t>(shared[at]);
    const bool right = before == static_cast<std::uint8_t>(content_byte(seed, static_cast<std::uint64_t>(at))) &&
                       now == static_cast<std::uint8_t>(before + 1) && shared_now == before;
    shared.unlink();
    told += !warp.all(right);
    told += discard(warp, mine) != 0;
    if (warp.leader()) *result = told;
    close(warp, f);
  }
};
TEST_P(part_pages, are_no_page_of_a_private_mapping_or_a_batch) {
  const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
  const host_file f(m, "f");
  const device_buffer<char> path(std::vector<char>{'f', 0});
  const device_buffer<std::int64_t> result(std::vector<std::int64_t>{1});
  simt::launch({.grid = 1, .block = 32}, write_privately{m.ref(), path.get(), result.get()});
  EXPECT_EQ(result.read()[0], 0);
  expect_batches_of_rows(m, f, 8 * page_nbytes, 64, 3);
}

// A version that has ended gives no more sectors; who opens the file anew has the new one's.
TEST(part_pages_of_changing_files, are_of_one_version) {
  temp_dir dir{memory_directory()};
  dir.add("f", 16 * page, seed);
  let_file_times_pass();
  mount_options o = writing(32);
  o.store = store_kind::mapped;
  const mount m(dir.path(), o);
  prepare_for_memcheck(m, "f");
  players groups(m.ref(), {.grid = 1, .block = 32});
  script before;
  before.open(0, "f");
  before.advise(0, 0, 0, advice::random);
  const auto read = before.pread(0, 8, 3 * page);
  auto got = groups.run(before);
  EXPECT_EQ(wrong_bytes(got[read], 8, seed, 3 * page), 0u);
  EXPECT_EQ(m.counters().bytes_filled, 128u);
  script write;
  write.open(1, "f", O_RDWR);
  write.pwrite(1, std::vector<std::byte>(page, std::byte{7}), 3 * page);
  const auto old = write.pread(0, 8, 3 * page + 256);
  write.close(1);
  write.close(0);
  write.open(0, "f");
  write.advise(0, 0, 0, advice::random);
  const auto now = write.pread(0, 8, 3 * page + 256);
  write.close(0);
  got = groups.run(write);
  EXPECT_EQ(got[old].value, -ESTALE);
  EXPECT_EQ(got[now].bytes, std::vector<std::byte>(8, std::byte{7}));
  EXPECT_EQ(m.counters().pins, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
