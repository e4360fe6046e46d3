// SPDX-License-Identifier: Apache-2.0
// Pointers into pages that are there in part: they link the run of sectors around the element that was read.
#include "file/device_file.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = device_file_seed, page_nbytes = 4096, sector = 128;

GPUFS_HOST_DEVICE std::uint8_t byte_at(std::uint64_t i) { return static_cast<std::uint8_t>(content_byte(seed, i)); }

GPUFS_DEVICE std::int64_t pins_of(mount_ref fs) {
  const cache::frames frames(fs.get()->cache);
  std::uint64_t n = 0;
  for (std::uint32_t i = 0; i < frames.count(); ++i)
    n += frames.state(cache::frame_index{i}).load(std::memory_order_relaxed) / cache::frame_state::one_pin;
  return static_cast<std::int64_t>(n);
}

enum class part_op : std::uint8_t { access, pread, unlink };
struct part_step {
  part_op what;
  std::uint64_t at, nbytes = 0;  // of the file
};

// A thread reads by a pointer, and preads beside it.
struct read_parts {
  mount_ref fs;
  const char* path;
  std::uint64_t begin;  // of the mapping
  const part_step* steps;
  std::size_t n;
  std::byte* scratch;
  std::int64_t* out;  // wrong bytes, pins before the last unlink, the pointer's error

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path);
    std::int64_t wrong = advise(me, f, 0, 0, advice::random);
    {
      const auto p = map<const std::uint8_t>(me, f, static_cast<std::int64_t>(begin));
      for (std::size_t i = 0; i < n; ++i) {
        const part_step& s = steps[i];
        if (s.what == part_op::unlink) p.unlink();
        if (s.what == part_op::access) wrong += p[static_cast<std::int64_t>(s.at - begin)] != byte_at(s.at) && p.error() == 0;
        if (s.what != part_op::pread) continue;
        wrong += pread(me, f, scratch, s.nbytes, static_cast<std::int64_t>(s.at)) != static_cast<std::int64_t>(s.nbytes);
        for (std::uint64_t k = 0; k < s.nbytes; ++k) wrong += static_cast<std::uint8_t>(scratch[k]) != byte_at(s.at + k);
      }
      out[1] = pins_of(fs);
      out[2] = p.error();
    }
    out[0] = wrong;
    close(me, f);
  }
};

class part_runs : public ::testing::TestWithParam<source_kind> {
 protected:
  // Adds a step, which looks pages up or brings bytes in so often. Each is counted by a run of all steps so far.
  void expect(const part_step& step, std::uint64_t faults, std::uint64_t hits, const char* says) {
    steps_.push_back(step);
    faults_ += faults;
    hits_ += hits;
    const mount m("/", device_file(GetParam(), file_nbytes, page_nbytes, nframes));
    const device_buffer<char> path(std::vector<char>{'f', 0});
    const device_buffer<part_step> steps(steps_);
    const device_buffer<std::byte> scratch(page_nbytes);
    const device_buffer<std::int64_t> out(3);
    simt::launch({.grid = 1, .block = 32},
                 read_parts{m.ref(), path.get(), begin, steps.get(), steps_.size(), scratch.get(), out.get()});
    results_ = out.read();
    const mount_counters c = m.counters();
    EXPECT_EQ(results_[0], 0) << says;
    EXPECT_EQ(c.faults, faults_) << says;
    EXPECT_EQ(c.hits, hits_) << says;
    EXPECT_EQ(c.pins, 0u) << says;
    EXPECT_EQ(c.past_cache, 0u) << says;
  }
  static part_step access(std::uint64_t at) { return {part_op::access, at}; }
  static part_step in_page_1(std::uint64_t sectors, std::int64_t and_bytes = 0) {
    return access(page_nbytes + sectors * sector + static_cast<std::uint64_t>(and_bytes));
  }
  static part_step pread(std::uint64_t at, std::uint64_t nbytes) { return {part_op::pread, at, nbytes}; }

  std::uint64_t file_nbytes = 8 * page_nbytes, begin = 0;
  std::uint32_t nframes = 16;
  std::vector<std::int64_t> results_;

 private:
  std::vector<part_step> steps_;
  std::uint64_t faults_ = 0, hits_ = 0;
};
INSTANTIATE_TEST_SUITE_P(sources, part_runs, ::testing::Values(source_kind::pull, source_kind::mem),
                         [](const auto& tested) { return std::string(tested.param == source_kind::pull ? "pull" : "mem"); });

TEST_P(part_runs, are_linked_and_no_sector_beyond) {
  expect(pread(page_nbytes + 4 * sector, 3 * sector), 1, 0, "sectors 4 to 6 come");
  expect(in_page_1(5, 7), 0, 1, "they are found");
  EXPECT_EQ(results_[1], 1);
  expect(in_page_1(4), 0, 0, "the run's first byte");
  expect(in_page_1(7, -1), 0, 0, "its last one");
  expect(in_page_1(3, -1), 1, 0, "before the run, where nothing is there: sector 2 comes");
  expect(in_page_1(2), 0, 0, "a run of one sector");
  expect(in_page_1(5), 0, 1, "the other run of the page");
  expect(in_page_1(7), 1, 0, "behind the run, where nothing is there: with sector 7 come as many as are in the run");
  expect(in_page_1(4), 0, 0, "the run has grown: its begin");
  expect(in_page_1(10, -1), 0, 0, "and its end");
  expect(in_page_1(3), 1, 0, "what joins two runs");
  expect(in_page_1(2), 0, 0, "the first");
  expect(in_page_1(10, -1), 0, 0, "and the second");
}

TEST_P(part_runs, begin_and_end_with_the_page) {
  expect(in_page_1(32, -1), 1, 0, "the page's last sector");
  expect(in_page_1(31), 0, 0, "its first byte");
  expect(in_page_1(32), 1, 0, "the next page's first sector");
  expect(in_page_1(33, -1), 0, 0, "its last byte");
  expect(in_page_1(33), 1, 0, "the second one");
  expect(in_page_1(32), 0, 0, "both are linked");
  expect(in_page_1(0), 1, 0, "the first page's first sector");
  expect(in_page_1(1, -1), 0, 0, "its last byte");
  expect(in_page_1(31), 0, 1, "the page's end again");
}

TEST_P(part_runs, grow_to_the_whole_page) {
  constexpr std::uint64_t brought[] = {0, 1, 2, 4, 8, 16};
  for (const std::uint64_t first : brought) {
    expect(in_page_1(first), 1, 0, "as many sectors again");
    expect(in_page_1(0), 0, 0, "the page's begin");
  }
  expect(in_page_1(32, -1), 0, 0, "the page's end");
}

TEST_P(part_runs, end_with_the_file_and_the_mapping) {
  file_nbytes = 2 * page_nbytes + 1000;  // its last sector has 104 bytes
  begin = 2 * page_nbytes + 5 * sector + 10;
  const std::uint64_t last_sector = 2 * page_nbytes + 7 * sector;
  expect(access(file_nbytes - 1), 1, 0, "the last byte");
  expect(access(last_sector), 0, 0, "its sector's first");
  expect(access(last_sector - 1), 1, 0, "the sector before");
  expect(access(file_nbytes - 1), 0, 0, "the last byte, of two sectors that are linked");
  expect(access(begin), 1, 0, "the mapping's first byte");
  expect(access(file_nbytes - 1), 0, 0, "three sectors");
  EXPECT_EQ(results_[2], 0);
  // The sectors that are there go on both ways, and the mapping does not.
  for (const std::uint64_t beyond : {begin - 1, file_nbytes}) {
    expect(access(beyond), 0, 0, "no byte of the mapping");
    EXPECT_EQ(results_[2], -ENXIO);
    expect(access(begin), 0, 1, "found again");
  }
}

TEST_P(part_runs, keep_their_page_until_they_are_left) {
  file_nbytes = 64 * page_nbytes;
  expect(in_page_1(3), 1, 0, "a sector comes");
  for (std::uint64_t n = 2; n < 41; n += 13) {
    for (std::uint64_t i = n; i < n + 12; ++i) expect(pread(i * page_nbytes, 1), 1, 0, "others take all frames but one");
    expect(in_page_1(3), 0, 0, "it is linked");
  }
  expect({part_op::unlink, 0}, 0, 0, "it is given back");
  EXPECT_EQ(results_[1], 0);
  for (std::uint64_t i = 42; i < 64; ++i) expect(pread(i * page_nbytes, 1), 1, 0, "others take the frame");
  expect(in_page_1(3), 1, 0, "it comes again");
}

// The lanes of a warp read from two sectors of one page, and then each from the other.
struct read_two_runs {
  mount_ref fs;
  const char* path;
  std::uint64_t there;  // bit 0: the even lanes' sector, bit 1: the odd ones'
  std::byte* scratch;
  std::int64_t* out;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = advise(warp, f, 0, 0, advice::random);
    const std::uint64_t places[] = {page_nbytes + 3 * sector, page_nbytes + 20 * sector};
    for (unsigned k = 0; k < 2; ++k) {
      if ((there >> k & 1) != 0) wrong += pread(warp, f, scratch, sector, static_cast<std::int64_t>(places[k])) != sector;
    }
    {
      const auto p = map<const std::uint8_t>(warp, f);
      for (unsigned turn = 0; turn < 4; ++turn) {
        const std::uint64_t at = places[(warp.rank() + turn / 2) % 2] + warp.rank() + turn;
        wrong += p[static_cast<std::int64_t>(at)] != byte_at(at);
        wrong += !p.linked();
        warp.sync();
        if (warp.leader()) out[turn] = pins_of(fs);
        warp.sync();
      }
    }
    simt::atomic_ref<std::int64_t>(out[4]).fetch_add(wrong, std::memory_order_relaxed);
    close(warp, f);
  }
};
TEST_P(part_runs, of_one_page_are_linked_by_lanes_of_a_warp) {
  for (std::uint64_t there = 0; there < 4; ++there) {
    for (std::uint64_t trial = 1; trial <= 20; ++trial) {
      const mount m("/", device_file(GetParam(), 8 * page_nbytes, page_nbytes, 16));
      const device_buffer<char> path(std::vector<char>{'f', 0});
      const device_buffer<std::byte> scratch(page_nbytes);
      const device_buffer<std::int64_t> out(5);
      simt::launch({.grid = 1, .block = 32, .schedule = {.seed = trial, .whole_warps = trial % 2 == 0}},
                   read_two_runs{m.ref(), path.get(), there, scratch.get(), out.get()});
      const std::string which = "seed " + std::to_string(trial) + ", there " + std::to_string(there);
      EXPECT_EQ(out.read(), (std::vector<std::int64_t>{32, 32, 32, 32, 0})) << which;
      const mount_counters c = m.counters();
      EXPECT_EQ(c.bytes_filled, 2 * sector) << which;
      EXPECT_EQ(c.pins, 0u) << which;
      EXPECT_EQ(c.fault_errors, 0u) << which;
      if (trial % 2 == 0) {
        EXPECT_EQ(c.faults, there == 0 ? 1u : 2u) << which << ": lanes that are together bring sectors in together";
      }
    }
  }
}

// Lanes go to and fro through few pages, each by itself or all together, while groups of other blocks read some of them, too.
struct wander {
  mount_ref fs;
  const char* path;
  std::uint64_t file_nbytes, drawn;
  std::int64_t* wrong;

  template <class T>
  GPUFS_DEVICE std::int64_t walk(const file& f, std::uint64_t random) const {
    const auto p = map<const T>(this_warp(), f);
    const std::int64_t n = p.left();
    std::int64_t nwrong = 0, at = 0;
    for (int i = 0; i < 24; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const auto step = static_cast<std::int64_t>(random >> 40);
      at = step % 8 == 0 ? step / 8 % n : (at + step / 8 % (256 / static_cast<std::int64_t>(sizeof(T)))) % n;
      const T value = p[at];
      for (unsigned k = 0; k < sizeof(T); ++k) nwrong += value.byte[k] != byte_at(static_cast<std::uint64_t>(at) * sizeof(T) + k);
      if (step / 64 % 16 == 0) p.unlink();
    }
    return nwrong + (p.error() != 0);
  }
  GPUFS_DEVICE void operator()() const {
    struct three {
      std::uint8_t byte[3];
    };
    struct alignas(4) twelve {
      std::uint8_t byte[12];
    };
    const auto warp = this_warp();
    const std::uint32_t block = simt::block_rank();
    const file f = open(warp, fs, path);
    std::int64_t nwrong = advise(warp, f, 0, 0, advice::random);
    const std::uint64_t random = content_word(drawn, block * 2 + warp_number()), mine = content_word(random, warp.rank());
    if (block % 3 == 0) {
      nwrong += walk<three>(f, block % 2 == 0 ? random : mine);
    } else if (block % 3 == 1) {
      nwrong += walk<twelve>(f, block % 2 == 0 ? random : mine);
    } else {
      std::byte bytes[200];
      for (std::uint64_t i = 0; i < 24; ++i) {
        const std::uint64_t at = content_word(mine, i) % (file_nbytes - sizeof bytes);
        nwrong += pread(this_thread(), f, bytes, sizeof bytes, static_cast<std::int64_t>(at)) != sizeof bytes;
        for (unsigned k = 0; k < sizeof bytes; ++k) nwrong += static_cast<std::uint8_t>(bytes[k]) != byte_at(at + k);
      }
    }
    if (nwrong != 0) simt::atomic_ref<std::int64_t>(*wrong).fetch_add(nwrong, std::memory_order_relaxed);
    warp.sync();
    close(warp, f);
  }
  GPUFS_DEVICE static std::uint32_t warp_number() { return simt::thread_rank() / simt::warp_lanes; }
};
TEST_P(part_runs, of_lanes_anywhere_have_the_files_bytes) {
  const seed_range seeds = seeds_to_run(under_tsan ? 6 : 60);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    random_source draw(trial);
    const auto nbytes_of_page = static_cast<std::uint32_t>(512u << draw.below(7));
    const std::uint64_t nbytes = nbytes_of_page * draw.between(2, 40) - draw.below(nbytes_of_page / 2);
    // Each lane holds a page at most, and those that pread another.
    const auto frames = static_cast<std::uint32_t>(draw.percent(50) ? draw.between(224, 300) : nbytes / nbytes_of_page + 2);
    const mount m("/", device_file(GetParam(), nbytes, nbytes_of_page, frames));
    const device_buffer<char> path(std::vector<char>{'f', 0});
    const device_buffer<std::int64_t> wrong(1);
    simt::launch({.grid = 3,
                  .block = 64,
                  .schedule = {.seed = trial,
                               .resident_blocks = 3,
                               .switch_percent = draw.percent(50) ? 20u : 100u,
                               .whole_warps = draw.percent(50)}},
                 wander{m.ref(), path.get(), nbytes, trial, wrong.get()});
    EXPECT_EQ(wrong.read()[0], 0) << "GPUFS_TEST_SEED=" << trial;
    EXPECT_EQ(m.counters().pins, 0u) << "GPUFS_TEST_SEED=" << trial;
    EXPECT_EQ(m.counters().fault_errors, 0u) << "GPUFS_TEST_SEED=" << trial;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
