// SPDX-License-Identifier: Apache-2.0
// Records of any sizes that groups of all kinds and grids append: in the file they lie one behind the other, in their order, with
// nothing between them; and what is refused leaves the file as it was.
#include "gpufs/par/append_records.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>

#include "file/write_errors.hpp"
#include "leftovers.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

struct append_work {
  mount_ref fs;
  file_number number;
  records_of_array records;
  std::uint64_t n, *places;
  std::byte* staging;
  std::uint64_t nbytes;
  scan_space space;
  appended_records* results;  // of each block

  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    const file f(fs, number);
    appended_records got;
    if constexpr (std::is_same_v<Group, simt::grid>) {
      got = append_records(group, f, records, n, places, staging, nbytes, space);
    } else {
      got = append_records(group, f, records, n, places, staging, nbytes);
    }
    if (tells(group)) results[simt::block_rank()] = got;
  }
};

// Sizes that the records of one call are drawn from.
struct sizes {
  const char* name;
  std::uint64_t least, most;
  unsigned none_percent;
};
constexpr sizes all_sizes[] = {{"16 bytes each", 16, 16, 0},  {"a byte each", 1, 1, 0},
                               {"some bytes", 1, 40, 0},      {"some, or none", 0, 24, 50},
                               {"nothing at all", 0, 0, 100}, {"one of many", 2 * page, 3 * page, 97}};

// Records in device memory, at any address, and what they are together.
class drawn_records {
 public:
  drawn_records(std::mt19937_64& draw, std::uint64_t n, const sizes& kind) {
    std::vector<std::pair<std::size_t, std::int64_t>> parts;
    std::vector<std::byte> bytes(1);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t nbytes = draw() % 100 < kind.none_percent ? 0 : kind.least + draw() % (kind.most - kind.least + 1);
      bytes.resize(bytes.size() + draw() % 20);
      parts.emplace_back(bytes.size(), nbytes);
      places_.push_back(together_.size());
      const auto here = content(draw(), 0, nbytes);
      bytes.insert(bytes.end(), here.begin(), here.end());
      together_.insert(together_.end(), here.begin(), here.end());
    }
    bytes_ = std::make_unique<device_array<std::byte>>(std::span<const std::byte>(bytes));
    for (const auto& [at, nbytes] : parts) all_.push_back({nbytes == 0 ? nullptr : bytes_->get() + at, nbytes});
  }

  std::vector<record>& all() { return all_; }
  const std::vector<std::byte>& together() const { return together_; }
  const std::vector<std::uint64_t>& places() const { return places_; }

  // By one kind of team, with so much too little staging and space. What each block gets.
  template <class Kind>
  std::vector<appended_records> run(const mount& m, file_number number, const Kind& kind, std::uint64_t staging_less = 0,
                                    std::uint64_t space_less = 0) {
    const std::uint64_t n = all_.size();
    const auto records = on_device(all_);
    const guarded_array<std::uint64_t> places(std::vector<std::uint64_t>(n, ~std::uint64_t{0}));
    const guarded_array<std::byte> staging(std::vector<std::byte>(together_.size() - staging_less));
    const drawn_space space(kind.draw, scan_space::nbytes_to_append(n, kind.nblocks, kind.nthreads) - space_less);
    const device_array<appended_records> results(kind.nblocks);
    kind.run(append_work{m.ref(),
                         number,
                         {records.get()},
                         n,
                         places.get(),
                         staging.get(),
                         together_.size() - staging_less,
                         space.get(),
                         results.get()});
    got_places_ = places.read();
    staging.read();  // what is around it is as it was
    return results.read();
  }
  const std::vector<std::uint64_t>& got_places() const { return got_places_; }

 private:
  std::vector<record> all_;
  std::unique_ptr<device_array<std::byte>> bytes_;
  std::vector<std::byte> together_;
  std::vector<std::uint64_t> places_, got_places_;
};

void expect_all(const std::vector<appended_records>& got, std::int64_t offset, std::uint64_t nbytes) {
  for (const appended_records& of_block : got) {
    EXPECT_EQ(of_block.offset, offset);
    EXPECT_EQ(of_block.nbytes, nbytes);
  }
}

TEST(append_records, puts_them_one_behind_the_other) {
  const temp_dir dir;
  const mount m(dir.path(), writing());
  std::mt19937_64 draw(1);
  for (const std::uint64_t n : {0, 1, 31, 300, 1100}) {
    for (const sizes& kind_of_sizes : all_sizes) {
      SCOPED_TRACE(testing::Message() << n << " of " << kind_of_sizes.name);
      by_each_kind(draw, [&](const auto& kind) {
        const std::uint64_t before = draw() % 3 == 0 ? 0 : draw() % (2 * page);
        dir.add("log", before, 9);
        drawn_records records(draw, n, kind_of_sizes);
        {
          const host_file log(m, "log", O_RDWR);
          expect_all(records.run(m, log.ref().number(), kind), static_cast<std::int64_t>(before), records.together().size());
        }
        EXPECT_EQ(records.got_places(), records.places());
        std::vector<std::byte> wanted = content(9, 0, before);
        put(wanted, records.together(), before);
        EXPECT_EQ(dir.read("log"), wanted);
      });
    }
  }
  expect_all_written(m);
}

// Each block appends its own, again and again, while others do.
struct blocks_append {
  mount_ref fs;
  file_number number;
  const record* records;
  std::uint64_t n;
  std::byte* staging;
  std::uint64_t nbytes;
  appended_records* results;  // of each block, by rounds
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = simt::block_rank();
    for (unsigned r = 0; r < nrounds; ++r) {
      const appended_records got = append_records(simt::this_block(), file(fs, number), records_of_array{records + me * n}, n,
                                                  nullptr, staging + me * nbytes, nbytes);
      if (simt::this_block().leader()) results[me * nrounds + r] = got;
    }
  }
};
TEST(append_records, of_many_blocks_lie_beside_each_other) {
  constexpr unsigned nblocks = 4, nrounds = 3, n = 90;
  const temp_dir dir;
  const mount m(dir.path(), writing());
  std::mt19937_64 draw(2);
  for (int trial = 0; trial < ntrials / 10; ++trial) {
    dir.add("log", 77, 9);
    std::vector<std::unique_ptr<drawn_records>> of_blocks;
    std::vector<record> records;
    std::uint64_t most = 0;
    for (unsigned b = 0; b < nblocks; ++b) {
      of_blocks.push_back(std::make_unique<drawn_records>(draw, n, all_sizes[2 + b % 2]));
      records.insert(records.end(), of_blocks[b]->all().begin(), of_blocks[b]->all().end());
      most = std::max(most, of_blocks[b]->together().size());
    }
    const auto on_the_device = on_device(records);
    const device_array<std::byte> staging(nblocks * most);
    const device_array<appended_records> results(nblocks * nrounds);
    {
      const host_file log(m, "log", O_RDWR);
      simt::launch({.grid = nblocks, .block = 64, .schedule = drawn_schedule(draw)},
                   blocks_append{m.ref(), log.ref().number(), on_the_device.get(), n, staging.get(), most, results.get(), nrounds});
    }
    std::vector<std::byte> wanted = content(9, 0, 77);
    std::uint64_t total = 77;
    const std::vector<appended_records> got = results.read();
    for (unsigned i = 0; i < nblocks * nrounds; ++i) {
      const auto& together = of_blocks[i / nrounds]->together();
      ASSERT_GE(got[i].offset, 77);
      put(wanted, together, static_cast<std::size_t>(got[i].offset));
      total += together.size();
    }
    EXPECT_EQ(wanted.size(), total) << "no gap, and none over another";
    EXPECT_EQ(dir.read("log"), wanted);
  }
  expect_all_written(m);
}

TEST(append_records, refuses_what_it_cannot_append_whole) {
  const temp_dir dir;
  const mount m(dir.path(), writing());
  std::mt19937_64 draw(3);
  constexpr std::int64_t most = std::int64_t{1} << 62;
  by_each_kind(draw, [&](const auto& kind) {
    constexpr bool is_grid = std::remove_cvref_t<decltype(kind)>::is_grid;
    dir.add("log", 100, 9);
    drawn_records good(draw, 200, all_sizes[0]);
    const auto expect_error = [&](int error, std::uint64_t nbytes, file_number number, auto change, std::uint64_t staging_less = 0,
                                  std::uint64_t space_less = 0) {
      const std::vector<record> before = good.all();
      change(good.all());
      expect_all(good.run(m, number, kind, staging_less, space_less), error, nbytes);
      good.all() = before;
    };
    const auto nothing = [](std::vector<record>&) {};
    {
      const host_file log(m, "log", O_RDWR);
      const file_number number = log.ref().number();
      expect_error(-EINVAL, 0, number, [](std::vector<record>& all) { all[150].nbytes = -1; });
      expect_error(-EFAULT, 0, number, [](std::vector<record>& all) { all[199].bytes = nullptr; });
      expect_error(-EOVERFLOW, 0, number, [&](std::vector<record>& all) { all[3].nbytes = all[120].nbytes = most; });
      // Whatever the brackets.
      expect_error(-EINVAL, 0, number, [&](std::vector<record>& all) {
        all[0].nbytes = all[1].nbytes = most;
        all[2].bytes = nullptr;
        all[3].nbytes = std::numeric_limits<std::int64_t>::min();
      });
      expect_error(-ENOBUFS, 200 * 16, number, nothing, 1);
      expect_error(-ENOBUFS, 199 * 16 + most, number, [&](std::vector<record>& all) { all[7].nbytes = most; });
      if (is_grid) expect_error(-EINVAL, 0, number, nothing, 0, 1);
    }
    {
      const host_file log(m, "log", O_RDONLY);
      expect_error(-EBADF, 200 * 16, log.ref().number(), nothing);
    }
    expect_error(-ENOENT, 200 * 16, file_number{-ENOENT}, nothing);
    EXPECT_EQ(dir.read("log"), content(9, 0, 100));
  });
  expect_all_written(m);
}

// The page in which the file ends must be read in, and is not.
TEST_F(write_errors, are_told_to_all_where_a_grids_records_cannot_be_appended) {
  dir_.add("log", page + 100, 1);
  options_.frame_timeout = milliseconds(20);
  const mount& m = start(16);
  wrong().fail_at(page, 2 * page);
  std::mt19937_64 draw(4);
  drawn_records records(draw, 150, all_sizes[0]);
  {
    const host_file log(m, "log", O_RDWR);
    expect_all(records.run(m, log.ref().number(), kind_of_team<simt::grid>{3, 32, draw}), -EIO, records.together().size());
  }
  wrong().heal();
  const auto bytes = dir_.read("log");
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + page + 100, content(1, 0, page + 100).begin()));
  expect_idle();
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
