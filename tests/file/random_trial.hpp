// SPDX-License-Identifier: Apache-2.0
// One random program on a mount of random dimensions, drawn from a seed and checked against the plain model: every result, every
// byte, and the counters at the end.
#pragma once
#include <string>

#include "file/random_model.hpp"
#include "file/schedules.hpp"
#include "gpufs/file/detail/miss.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

struct trial {
  explicit trial(std::uint64_t chosen) : seed(chosen), draw(chosen) {
    const std::vector<std::uint32_t> pages = {512, 512, 512, 1024, 4096, 4096, 4096, 16384, 65536};
    options.page_nbytes = draw.percent(2) ? 2u << 20 : draw.pick(pages);
    const bool large = options.page_nbytes > 65536;
    from = static_cast<source>(draw.below(6));
    nframes = static_cast<std::uint32_t>(draw.percent(30) ? draw.between(2, 4) : draw.between(2, large ? 8 : 64));
    learns = draw.percent(25);
    if (learns) {
      options.page_nbytes = draw.percent(50) ? 512 : 1024;
      nframes = static_cast<std::uint32_t>(draw.between(detail::least_to_learn_from, 200));
      from = draw.pick(std::vector<source>{source::mapped, source::automatic, source::mem_pull});
    }
    options.cache_nbytes = std::uint64_t{nframes} * options.page_nbytes;
    options.store = from == source::posix ? store_kind::posix : from == source::mapped ? store_kind::mapped : store_kind::automatic;
    options.max_open_files = 1024;
    options.nworkers = static_cast<std::uint32_t>(draw.between(1, 3));
    options.internals.nrings = static_cast<std::uint32_t>(draw.below(5));
    options.internals.request_rings = static_cast<std::uint32_t>(draw.between(1, 4));
    options.internals.request_slots = draw.percent(50) ? 2 : 8;

    how.grid = static_cast<unsigned>(on_cuda ? draw.between(1, 64) : draw.between(1, 4));
    const auto warps = static_cast<unsigned>(draw.between(1, under_tsan ? 2 : 4));
    how.block = 32 * warps;
    const std::uint64_t mode = draw.below(5);  // all of one kind, or mixed
    for (unsigned b = 0; b < how.grid; ++b) {
      const bool as_block = mode == 3 || (mode == 4 && draw.percent(25));
      for (unsigned w = 0; w < warps; ++w) {
        how.warps.push_back(as_block    ? group_kind::block
                            : mode == 4 ? static_cast<group_kind>(draw.below(3))
                                        : static_cast<group_kind>(mode));
      }
    }
    how.schedule.seed = seed;
    how.schedule.order = static_cast<simt::block_order>(draw.below(3));
    how.schedule.resident_blocks = static_cast<unsigned>(draw.below(4));
    how.schedule.nthreads = static_cast<unsigned>(draw.between(1, 3));
    how.schedule.switch_percent = draw.pick(std::vector<unsigned>{0, 5, 25, 60, 100});
    draw_policy(draw, how.schedule);
  }

  void draw_programs(const file_set& files) {
    const std::uint32_t ngroups = how.ngroups();
    program_shape shape{.from = from, .page_nbytes = options.page_nbytes};
    shape.ncalls = static_cast<unsigned>(ngroups > 100 ? draw.between(3, 10) : draw.between(5, 40)) / (under_tsan ? 2 : 1);
    if (learns) shape.ncalls = std::max(shape.ncalls, (under_tsan ? 2000u : 4000u) / ngroups);
    const std::uint64_t budget = (on_cuda ? 64u << 20 : 8u << 20) / (ngroups * shape.ncalls + 1);
    shape.max_read = std::clamp<std::uint64_t>(budget, 64, 3 * std::uint64_t{options.page_nbytes});
    shape.maps = draw.percent(70);
    shape.asks_ahead = knows_ahead && draw.percent(learns ? 25 : 50);
    shape.learns = learns;
    for (std::uint32_t g = 0; g < ngroups; ++g) programs.emplace_back(draw, files, shape);

    std::uint64_t pins = 0, maps = 0;
    const auto members = how.members();
    std::uint32_t last = ~0u;
    for (const membership& m : members) {
      if (m.group == last) continue;
      last = m.group;
      pins += programs[m.group].most_maps() + (m.kind == group_kind::block ? how.block / 32 : 1);
      maps += programs[m.group].most_maps();
    }
    // Pins that are held over further calls can use up every frame: then calls may give -ENOMEM, else never.
    may_starve = maps != 0 && pins > nframes;
    options.frame_timeout = may_starve ? std::chrono::milliseconds(1) : std::chrono::seconds(60);
  }

  std::string describe() const {
    std::ostringstream text;
    text << "GPUFS_TEST_SEED=" << seed << " (" << name_of(from) << ", page " << options.page_nbytes << ", " << nframes
         << " frames, " << options.internals.nrings << " rings, " << how.grid << " x " << how.block << " threads, " << how.ngroups()
         << " groups" << (learns ? ", learns" : "") << (may_starve ? ", may starve" : "") << ", "
         << gpufs::test::describe(how.schedule) << ")";
    return text.str();
  }

  std::uint64_t seed;
  random_source draw;
  source from;
  std::uint32_t nframes;
  mount_options options;
  formation how;
  std::vector<program> programs;
  bool may_starve = false;
  bool learns = false;         // files that no advice is given of may have pages that come in part
  double unadvised_share = 1;  // of a page's bytes that a fault brought, once it has run; of advice to read in parts 1
  bool knows_ahead = true;     // there are prefetch and advise
};

inline const file_set& files_for(std::uint64_t page_nbytes) {
  static std::map<std::uint64_t, std::unique_ptr<file_set>> sets;
  auto& set = sets[page_nbytes];
  if (!set) set = std::make_unique<file_set>(page_nbytes, page_nbytes <= 1024);
  return *set;
}

// What the counters must say after a program, added up from what came of the calls.
struct tally {
  std::uint64_t pages = 0;  // that were read or mapped
  std::uint64_t bytes = 0, errors = 0, bad_numbers = 0, opens = 0, open_errors = 0;
  bool more_pages = false;  // a call that failed has read others
  bool ahead = false;       // pages were asked for, or dropped, that nobody reads
  bool past_cache = false;  // pages may have been read without a look-up that counts
  bool in_parts = false;    // pages may have come sector by sector, as was advised
};

class checker {
 public:
  checker(const trial& t, const file_set& files) : trial_(t), files_(files) {}

  void check(std::uint32_t group, const std::vector<outcome>& got) {
    const auto& expected = trial_.programs[group].expected();
    ASSERT_EQ(got.size(), expected.size());
    std::vector<bool> unmapped(pages_per_group, false);  // a map that starved: its looks and unmap find nothing
    for (std::size_t i = 0; i < got.size(); ++i) {
      const op& call = trial_.programs[group].calls().ops()[i];
      check_one(expected[i], got[i], call, unmapped, numbered("group ", group) + numbered(" call ", i));
      if (::testing::Test::HasFailure()) return;
    }
  }

  const tally& sum() const { return sum_; }

 private:
  void check_one(const expectation& e, const outcome& got, const op& call, std::vector<bool>& unmapped, const std::string& where) {
    const std::int64_t page = trial_.options.page_nbytes;
    sum_.bad_numbers += e.bad_number;
    switch (e.kind) {
      case op_kind::open:
        sum_.opens += e.reached_table;
        sum_.open_errors += e.value < 0;
        if (e.value == 0) {
          EXPECT_GE(got.value, 0) << where << " open";
        } else {
          EXPECT_EQ(got.value, e.value) << where << " open";
        }
        return;
      case op_kind::pread: {
        std::int64_t value = e.value;
        if (got.value != value && value > 0 && trial_.may_starve) {
          value = -ENOMEM;  // a page found no frame
          sum_.more_pages = true;
        }
        EXPECT_EQ(got.value, value) << where << " pread " << call.nbytes << " at " << call.offset;
        sum_.errors += value < 0 && !e.bad_number;
        if (value <= 0) return;
        sum_.bytes += static_cast<std::uint64_t>(value);
        sum_.pages += static_cast<std::uint64_t>((e.offset + value - 1) / page - e.offset / page + 1);
        expect_bytes(e, got, static_cast<std::size_t>(value), where);
        if (value == e.value) {  // nothing is written past the bytes that were read
          EXPECT_EQ(std::count(got.bytes.begin() + value, got.bytes.end(), untouched), got.bytes.end() - got.bytes.begin() - value)
              << where;
        }
        return;
      }
      case op_kind::map:
        if (got.value == -ENOMEM && e.value > 0 && trial_.may_starve) {
          unmapped[call.page] = true;
          ++sum_.errors;
          return;
        }
        EXPECT_EQ(got.value, e.value) << where << " map " << call.offset;
        unmapped[call.page] = false;
        sum_.errors += e.value < 0 && !e.bad_number;
        if (e.value > 0) {
          ++sum_.pages;
          expect_bytes(e, got, got.bytes.size(), where);
        }
        return;
      case op_kind::look:
        if (unmapped[call.page]) return;
        EXPECT_EQ(got.value, e.value) << where << " look";
        expect_bytes(e, got, got.bytes.size(), where);
        return;
      case op_kind::unmap:
        EXPECT_EQ(got.value, unmapped[call.page] ? -ENOMEM : 0) << where << " unmap";
        return;
      case op_kind::prefetch:
      case op_kind::advise:
        sum_.ahead = true;
        if (e.kind == op_kind::advise && call.flags == static_cast<int>(advice::noreuse)) sum_.past_cache = true;
        if (e.kind == op_kind::advise && call.flags == static_cast<int>(advice::random)) sum_.in_parts = true;
        [[fallthrough]];
      default:
        EXPECT_EQ(got.value, e.value) << where << " kind " << static_cast<int>(e.kind);
        return;
    }
  }

  void expect_bytes(const expectation& e, const outcome& got, std::size_t n, const std::string& where) {
    if (trial_.from == source::nil) return;  // brings nothing in
    const auto& file = files_.bytes[e.file];
    ASSERT_LE(n, got.bytes.size());
    ASSERT_LE(static_cast<std::size_t>(e.offset) + n, file.size());
    EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.begin() + static_cast<std::ptrdiff_t>(n), file.begin() + e.offset))
        << where << ": other bytes than file " << e.file << " has at " << e.offset;
  }

  const trial& trial_;
  const file_set& files_;
  tally sum_;
};

inline void check_counters(const trial& t, const mount_counters& c, const tally& sum) {
  EXPECT_EQ(c.pinned_frames, 0u) << "a pin was left";
  const bool in_parts = sum.in_parts || t.learns;
  const std::uint64_t touched = c.hits + c.faults + c.waits;
  if (!sum.past_cache) {
    EXPECT_GE(touched, sum.pages);
  }
  if (!sum.more_pages && !sum.ahead) {
    // An open of a staged file may fill the first page.
    const bool staged = t.from == source::posix || t.from == source::automatic;
    EXPECT_LE(touched, sum.pages + (staged ? c.host_opens : 0))
        << c.hits << " hits, " << c.faults << " faults, " << c.waits << " waits";
  }
  if (!in_parts) {
    EXPECT_GE(c.allocations, c.faults + c.under_way);
  }
  EXPECT_GE(c.allocations - c.evictions, t.nframes - c.free_frames);
  if (!sum.ahead) {  // no fill fails but of pages that are asked for just before the last close
    EXPECT_LE(c.allocations, c.faults);
    if (!in_parts) {
      EXPECT_EQ(c.allocations, c.faults);
    }
    EXPECT_EQ(c.allocations - c.evictions, t.nframes - c.free_frames);
  }
  if (in_parts) {
    EXPECT_LE(c.bytes_filled, c.faults * t.options.page_nbytes);
  } else {
    EXPECT_EQ(c.bytes_filled, c.faults * t.options.page_nbytes);
  }
  EXPECT_EQ(c.bytes_read, sum.bytes);
  EXPECT_EQ(c.errors, sum.errors);
  EXPECT_EQ(c.bad_file_numbers, sum.bad_numbers);
  EXPECT_EQ(c.opens, sum.opens);
  EXPECT_EQ(c.open_errors, sum.open_errors);
  EXPECT_EQ(c.host_opens, c.host_closes);
  EXPECT_LE(c.host_opens, c.opens);
  EXPECT_EQ(c.io_timeouts, 0u);
  EXPECT_EQ(c.unpin_errors, 0u);
}

// Owner: gpufs::mount, or another with the same members; `mount_options` and `trial` are as it wants them.
template <class Owner>
void run_trial(trial& t) {
  const file_set& files = files_for(t.options.page_nbytes);
  t.draw_programs(files);
  t.options.custom_store = files.custom_store(t.from);
  const Owner m(files.dir.path(), t.options);
  // Sometimes what is mapped is registered before the kernel.
  const bool early = t.draw.percent(30) || under_memcheck();
  if (early && (t.from == source::mapped || t.from == source::automatic)) {
    for (std::size_t i = 0; i < files.names.size(); ++i) {
      if (!files.bytes[i].empty()) m.prepare(files.names[i]);
    }
  }
  std::vector<script> scripts;
  for (const program& p : t.programs) scripts.push_back(p.calls());
  const auto got = basic_players(m.ref(), t.how).run(scripts);

  checker check(t, files);
  std::uint32_t last = ~0u;
  for (const membership& member : t.how.members()) {
    if (member.group == last) continue;
    last = member.group;
    check.check(member.group, got[member.group]);
    if (::testing::Test::HasFailure()) return;
  }
  const mount_counters c = m.counters();
  check_counters(t, c, check.sum());
  if (!check.sum().in_parts && c.faults != 0) {
    t.unadvised_share = static_cast<double>(c.bytes_filled) / static_cast<double>(c.faults * t.options.page_nbytes);
  }
  EXPECT_TRUE(m.open_files().empty());
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
