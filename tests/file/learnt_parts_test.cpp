// SPDX-License-Identifier: Apache-2.0
// Files without advice: whether their pages come whole or sector by sector is learnt from how they are used.
#include "file/device_file.hpp"
#include "file/notes.hpp"
#include "file/watch.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = device_file_seed;
constexpr std::uint32_t page_nbytes = 4096, sector = 128, nframes = 256;
constexpr std::uint64_t npages = 8 * nframes, file_nbytes = npages * page_nbytes;

enum class in_order { random, ascending, descending, every_other, page_begins };

// A thread reads so many records of 128 bytes, beginning with number `first` of that order.
struct read_records {
  mount_ref fs;
  file_number number;
  in_order how;
  std::uint64_t first, n;
  std::int64_t* wrong;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const auto me = this_thread();
    const file f(fs, number);
    std::int64_t nwrong = 0;
    for (std::uint64_t i = first; i < first + n; ++i) {
      std::byte record[sector];
      const auto at = static_cast<std::int64_t>(offset_of(i));
      const std::int64_t got = pread(me, f, record, sector, at);
      nwrong += got != sector || record[i % sector] != content_byte(seed, static_cast<std::uint64_t>(at) + i % sector);
    }
    *wrong += nwrong;
  }
  GPUFS_DEVICE std::uint64_t offset_of(std::uint64_t i) const {
    std::uint64_t drawn = (i + 1) * 0x9e3779b97f4a7c15u;
    drawn = (drawn ^ drawn >> 29) * 0xbf58476d1ce4e5b9u;
    drawn ^= drawn >> 32;
    if (how == in_order::random) return drawn % (file_nbytes / sector) * sector;
    if (how == in_order::page_begins) return drawn % npages * page_nbytes;
    if (how == in_order::descending) return file_nbytes - (i + 1) * sector;
    return (how == in_order::every_other ? 2 : 1) * i * sector % file_nbytes;
  }
};

struct say {
  mount_ref fs;
  file_number number;
  advice what;
  std::int64_t* wrong;
  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() == 0) *wrong += advise(this_thread(), file(fs, number), 0, 0, what) != 0;
  }
};

// A mount of the file "f", and what its readers move.
class watched {
 public:
  explicit watched(source_kind kind, std::uint32_t frames = nframes, std::string name = "f")
      : mount_("/", two_files(kind, frames)), name_(std::move(name)) {}
  ~watched() {
    file_.reset();
    const mount_counters c = mount_.counters();
    EXPECT_EQ(c.pins, 0u);
    EXPECT_EQ(c.errors, 0u);
    EXPECT_EQ(c.fault_errors, 0u);
    EXPECT_EQ(wrong_.read()[0], 0);
  }

  struct moved {
    double faults, bytes, pages;  // a record; pages that got a frame
  };
  moved read(in_order how, std::uint64_t first, std::uint64_t n) {
    return run(n, read_records{mount_.ref(), number(), how, first, n, wrong_.get()});
  }
  template <class Kernel>
  moved run(std::uint64_t n, const Kernel& kernel, const simt::launch_config& how = {.grid = 1, .block = 32}) {
    const file_counters before = counters();
    const std::uint64_t pages_before = mount_.counters().allocations;
    simt::launch(how, kernel);
    const file_counters after = counters();
    const std::uint64_t pages = mount_.counters().allocations - pages_before;
    return {static_cast<double>(after.faults - before.faults) / static_cast<double>(n),
            static_cast<double>(after.bytes_filled - before.bytes_filled) / static_cast<double>(n),
            static_cast<double>(pages) / static_cast<double>(n)};
  }
  // Of the file.
  file_counters counters() const {
    for (const file_report& r : mount_.open_files()) {
      if (r.path == name_) return r.counters;
    }
    return {};
  }
  void say_once(advice what) { simt::launch({.grid = 1, .block = 32}, say{mount_.ref(), number(), what, wrong_.get()}); }
  void open_anew() { open(name_); }
  void open(const std::string& name) {
    file_.reset();
    name_ = name;
    file_ = std::make_unique<host_file>(mount_, name_);
  }

  mount_ref fs() const { return mount_.ref(); }
  file_number number() const { return file_->ref().number(); }
  std::int64_t* wrong() { return wrong_.get(); }

 private:
  static mount_options two_files(source_kind kind, std::uint32_t frames) {
    mount_options o = device_file(kind, file_nbytes, page_nbytes, frames);
    std::static_pointer_cast<store::mem_store>(o.custom_store)->put("g", content(seed, 0, file_nbytes));
    return o;
  }

  mount mount_;
  std::string name_;
  std::unique_ptr<host_file> file_ = std::make_unique<host_file>(mount_, name_);
  device_buffer<std::int64_t> wrong_{std::vector<std::int64_t>{0}};
};

constexpr std::uint64_t enough = 3000;  // records, to learn that parts are wanted

// Versions whose ids are 4,096 apart share a word.
struct learn_of_two {
  cache::table_storage table;
  std::uint32_t* ways;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    constexpr std::uint32_t id = 5, other = id + cache::nuses, page_shift = 12;
    const cache::page_uses mine(table, id), theirs(table, other);
    std::uint32_t* next = ways;
    const auto note = [&](const cache::page_uses& uses, std::uint32_t of) {
      *next++ = static_cast<std::uint32_t>(uses.of(cache::make_key(of, 0), true));
    };
    for (std::uint64_t page = 0; page < 1000; ++page) mine.note_evicted(cache::make_key(id, page), 3, page_shift);
    note(mine, id);
    note(theirs, other);
    for (std::uint64_t page = 0; page < 10; ++page) mine.note_evicted(cache::make_key(id, page), 0x1ff, page_shift);
    note(mine, id);
    theirs.note_unlinked();
    note(mine, id);
    note(theirs, other);
  }
};
TEST(page_uses, of_versions_that_share_a_word_are_not_mixed) {
  const device_buffer<std::uint32_t> words(std::vector<std::uint32_t>(1 + cache::nuses, 0)), ways(5);
  simt::launch({.grid = 1, .block = 32}, learn_of_two{{nullptr, words.get(), 0, 1}, ways.get()});
  const auto way = [](cache::page_uses::way w) { return static_cast<std::uint32_t>(w); };
  const auto part = way(cache::page_uses::way::part), got = ways.read()[4];
  EXPECT_EQ(ways.read()[0], part);
  EXPECT_NE(ways.read()[1], part);
  EXPECT_EQ(ways.read()[2], part) << "pages with more than little are no sign";
  EXPECT_NE(ways.read()[3], part) << "it was forgotten";
  EXPECT_NE(got, part);
}

class learnt_parts : public ::testing::TestWithParam<source_kind> {};
INSTANTIATE_TEST_SUITE_P(sources, learnt_parts, ::testing::Values(source_kind::pull, source_kind::mem),
                         [](const auto& tested) { return std::string(tested.param == source_kind::pull ? "pull" : "mem"); });

TEST_P(learnt_parts, of_random_readers) {
  watched advised(GetParam()), learns(GetParam());
  advised.say_once(advice::random);
  advised.read(in_order::random, 0, enough);
  EXPECT_GT(learns.read(in_order::random, 0, nframes).bytes, .8 * page_nbytes) << "nothing is known at first";
  learns.read(in_order::random, nframes, enough - nframes);
  const auto wanted = advised.read(in_order::random, enough, enough), got = learns.read(in_order::random, enough, enough);
  EXPECT_LE(wanted.bytes, sector);
  EXPECT_LE(got.bytes, 1.1 * wanted.bytes);
}

// Readers that read on get whole pages, though a page is tried now and then.
TEST_P(learnt_parts, are_not_those_of_readers_that_read_on) {
  watched whole(GetParam()), learns(GetParam());
  whole.say_once(advice::whole);
  constexpr std::uint64_t all = file_nbytes / sector;
  const auto first = learns.read(in_order::ascending, 0, all), again = learns.read(in_order::ascending, 0, all);
  const auto wanted = whole.read(in_order::ascending, 0, all);
  EXPECT_EQ(wanted.faults, 1. * sector / page_nbytes);
  for (const auto& got : {first, again}) {
    EXPECT_EQ(got.bytes, wanted.bytes);
    EXPECT_LE(got.faults, 1.03 * wanted.faults);
  }
}

// So do readers that share each page, where a reader of a page's begin does not come first.
struct read_shared {
  mount_ref fs;
  file_number number;
  std::int64_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const file f(fs, number);
    std::int64_t nwrong = 0;
    const std::uint64_t n = std::uint64_t{simt::grid_size()} * simt::block_size();
    for (std::uint64_t i = simt::block_rank() * simt::block_size() + simt::thread_rank(); i < file_nbytes / sector; i += n) {
      const std::uint64_t at = (i ^ 21) * sector;
      std::byte record[sector];
      const std::int64_t got = pread(this_thread(), f, record, sector, static_cast<std::int64_t>(at));
      nwrong += got != sector || record[7] != content_byte(seed, at + 7);
    }
    simt::atomic_ref<std::int64_t>(*wrong).fetch_add(nwrong, std::memory_order_relaxed);
  }
};
TEST_P(learnt_parts, are_not_those_of_pages_that_many_share) {
  for (std::uint64_t trial = 1; trial <= (under_tsan ? 1 : 4); ++trial) {
    watched learns(GetParam());
    const auto got = learns.run(npages, read_shared{learns.fs(), learns.number(), learns.wrong()},
                                {.grid = 2, .block = 64, .schedule = {.seed = trial, .resident_blocks = 2}});
    // A page may come twice, where some threads are far ahead of others.
    EXPECT_LE(got.faults, 1.03 * got.pages);
    EXPECT_GE(got.bytes, .99 * page_nbytes * got.pages);
  }
}

TEST_P(learnt_parts, are_those_of_one_file_and_not_of_another) {
  watched learns(GetParam());
  const auto both = [&](std::uint64_t first) {
    learns.open("f");
    const auto f = learns.read(in_order::random, first, 500);
    learns.open("g");
    return std::pair(f, learns.read(in_order::ascending, first * 32, 500 * 32));
  };
  for (std::uint64_t first = 0; first < 2 * enough; first += 500) both(first);
  const auto [f, g] = both(2 * enough);
  EXPECT_LE(f.bytes, 1.1 * sector);
  EXPECT_LE(g.faults, 1.03 * sector / page_nbytes);
}

TEST_P(learnt_parts, end_when_the_use_changes) {
  watched learns(GetParam());
  learns.read(in_order::random, 0, enough);
  EXPECT_LE(learns.read(in_order::random, enough, 1000).bytes, 1.1 * sector);
  constexpr std::uint64_t all = file_nbytes / sector;
  const auto first = learns.read(in_order::ascending, 0, all), again = learns.read(in_order::ascending, 0, all);
  EXPECT_LE(first.faults, 1.15 * sector / page_nbytes) << "it is learnt within a turn of the cache";
  EXPECT_LE(again.faults, 1.03 * sector / page_nbytes);
  learns.read(in_order::random, 0, 4 * enough);
  EXPECT_LE(learns.read(in_order::random, 5 * enough, 1000).bytes, 1.1 * sector) << "and back";
}

TEST_P(learnt_parts, of_page_begins_are_learnt_later) {
  watched learns(GetParam(), 1024);
  learns.read(in_order::page_begins, 0, 16 * enough);
  EXPECT_LE(learns.read(in_order::page_begins, 16 * enough, 1000).bytes, 1.1 * sector);
}

TEST_P(learnt_parts, give_way_to_advice) {
  watched learns(GetParam());
  learns.read(in_order::random, 0, enough);
  EXPECT_LE(learns.read(in_order::random, enough, 500).bytes, 1.1 * sector);
  learns.open_anew();
  EXPECT_LE(learns.read(in_order::random, 2 * enough, 500).bytes, 1.1 * sector) << "it is known of the version, not of an open";
  for (const advice what : {advice::whole, advice::sequential}) {
    learns.say_once(what);
    const auto got = learns.read(in_order::random, 3 * enough, 500);
    EXPECT_GE(got.bytes, got.faults * (page_nbytes - 3 * sector)) << "of a page in part the rest";
  }
  learns.say_once(advice::normal);
  EXPECT_GT(learns.read(in_order::random, 4 * enough, 100).bytes, .8 * page_nbytes) << "from the beginning";
  learns.say_once(advice::random);
  EXPECT_LE(learns.read(in_order::random, 5 * enough, 500).bytes, sector);
}

// Who reads on in a page that comes by sectors gets more at a time. Who does not gets what it wants.
TEST_P(learnt_parts, come_sooner_to_who_reads_on) {
  watched advised(GetParam());
  advised.say_once(advice::random);
  constexpr std::uint64_t n = file_nbytes / sector / 4, sectors = page_nbytes / sector;
  const auto on = advised.read(in_order::ascending, 0, n);
  EXPECT_LE(on.faults * sectors, 6.);
  EXPECT_EQ(on.bytes, sector);
  for (const in_order how : {in_order::every_other, in_order::descending}) {
    watched apart(GetParam());
    apart.say_once(advice::random);
    const auto got = apart.read(how, 0, n);
    EXPECT_EQ(got.faults, 1.);
    EXPECT_EQ(got.bytes, sector);
  }
}

// A thread reads so many elements of a record, each time, through a pointer; every second one from so many bytes away in its page.
struct read_through_pointers {
  mount_ref fs;
  file_number number;
  std::uint64_t first, n;
  std::uint32_t elements, away;  // away: a power of two
  std::int64_t* wrong;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const file f(fs, number);
    const auto p = map<const std::uint8_t>(this_thread(), f);
    const read_records order{fs, number, in_order::random, 0, 0, nullptr};
    std::int64_t nwrong = 0;
    for (std::uint64_t i = first; i < first + n; ++i) {
      for (std::uint32_t k = 0; k < elements; ++k) {
        const std::uint64_t at = (order.offset_of(i) ^ (k % 2 * away)) + k;
        nwrong += static_cast<std::uint8_t>(p[static_cast<std::int64_t>(at)]) != static_cast<std::uint8_t>(content_byte(seed, at));
      }
    }
    p.unlink();
    *wrong += nwrong;
  }
};
TEST_P(learnt_parts, of_pointers_that_read_an_element_anywhere) {
  watched one(GetParam()), many(GetParam()), to_and_fro(GetParam());
  const auto read = [](watched& w, std::uint64_t first, std::uint64_t n, std::uint32_t elements, std::uint32_t away) {
    return w.run(n, read_through_pointers{w.fs(), w.number(), first, n, elements, away, w.wrong()});
  };
  read(one, 0, enough, 1, 0);
  EXPECT_LE(read(one, enough, 1000, 1, 0).bytes, 1.1 * sector);
  read(many, 0, enough, 16, 0);
  EXPECT_LE(read(many, enough, 1000, 16, 0).bytes, 1.1 * sector) << "all 16 are of the sector that is linked";
  read(to_and_fro, 0, enough, 16, 2 * sector);
  EXPECT_GT(read(to_and_fro, enough, 1000, 16, 2 * sector).bytes, .8 * page_nbytes) << "a linked page saves looking at each turn";
}

// Groups of all kinds read a little here and there, and some map pages, while others learn from theirs.
TEST_P(learnt_parts, give_each_group_the_files_bytes) {
  std::uint64_t ninpart = 0;
  const seed_range seeds = seeds_to_run(under_tsan ? 3 : 12);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    random_source draw(trial);
    const std::uint32_t nbytes_of_page = draw.pick(std::vector<std::uint32_t>{1024, 4096, 8192});
    const std::uint64_t all = nbytes_of_page * std::uint64_t{1000} - draw.below(nbytes_of_page);
    const mount m("/", device_file(GetParam(), all, nbytes_of_page, 128));
    players groups(m.ref(), {.grid = 2,
                             .block = 64,
                             .schedule = {.seed = trial, .resident_blocks = 2, .switch_percent = draw.percent(50) ? 20u : 100u},
                             .all = draw.pick(std::vector<group_kind>{std::begin(all_kinds), std::end(all_kinds)})});
    const std::size_t ncalls = 3000 / groups.size() + 30;
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<std::pair<std::size_t, std::uint64_t>>> reads(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      scripts[g].open(0, "f");
      for (std::size_t i = 0; i < ncalls; ++i) {
        const std::uint64_t offset = draw.below(all - 64);
        if (draw.percent(2)) {
          scripts[g].map(0, 0, static_cast<std::int64_t>(offset), 1);
          scripts[g].unmap(0);
        } else if (draw.percent(1)) {
          scripts[g].advise(0, 0, 0, draw.percent(50) ? advice::normal : advice::random);
        } else {
          reads[g].emplace_back(scripts[g].pread(0, 64, static_cast<std::int64_t>(offset)), offset);
        }
      }
      scripts[g].close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const auto& [call, offset] : reads[g]) {
        ASSERT_EQ(wrong_bytes(got[g][call], 64, seed, offset), 0u) << "GPUFS_TEST_SEED=" << trial << " group " << g;
      }
    }
    const mount_counters c = m.counters();
    EXPECT_EQ(c.pins, 0u);
    EXPECT_EQ(c.fault_errors, 0u);
    ninpart += c.bytes_filled < c.faults * nbytes_of_page / 2;
  }
  EXPECT_TRUE(ninpart != 0 || seeds.end - seeds.first < 3);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
