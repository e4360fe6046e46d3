// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of files at the host's call, against loops: sizes around those of pieces, operators that do not commute,
// how bytes come; and what fails leaves no file, and what was there as it was.
#include "gpufs/par/file_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "file/faulty_store.hpp"
#include "file/writing.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)

// For the host, too.
struct sum_of_bytes {
  using value = std::uint8_t;
  GPUFS_HOST_DEVICE value identity() const { return 0; }
  GPUFS_HOST_DEVICE value operator()(value a, value b) const { return static_cast<value>(a + b); }
};
struct largest {
  using value = std::int64_t;
  GPUFS_HOST_DEVICE value identity() const { return INT64_MIN; }
  GPUFS_HOST_DEVICE value operator()(value a, value b) const { return a < b ? b : a; }
};

template <class T>
std::vector<T> elements_of(const std::vector<std::byte>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(elements.data()), bytes.data(), elements.size() * sizeof(T));
  return elements;
}
template <class Op>
auto scanned(std::vector<typename Op::value> elements, const Op& op, bool exclusive) {
  auto all = op.identity();
  for (auto& each : elements) {
    const auto with_it = op(all, each);
    each = exclusive ? all : with_it;
    all = with_it;
  }
  return std::pair(elements, all);
}
std::vector<std::string> names_in(const temp_dir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}
int number_of(const auto& call) {
  try {
    call();
  } catch (const error& thrown) {
    return thrown.number();
  } catch (const std::system_error& thrown) {
    return thrown.code().value();
  }
  return 0;
}

class file_scan : public ::testing::TestWithParam<store_kind> {
 protected:
  file_scan() {
    mount_options options = writing(256);
    options.store = GetParam();
    mount_ = std::make_unique<mount>(dir_.path(), options);
  }

  template <class Op, scan_order Order = scan_order::any>
  void expect_scanned(std::uint64_t n, std::uint64_t piece_nbytes, bool exclusive, const std::string& to = "out") {
    using T = typename Op::value;
    SCOPED_TRACE(testing::Message() << n << " elements of " << sizeof(T) << " bytes, pieces of " << piece_nbytes);
    dir_.add("in", n * sizeof(T), n + 1);
    const auto in = dir_.read("in");
    const auto [want, all] = scanned(elements_of<T>(in), Op{}, exclusive);
    const auto reduced = reduce_file<Order>(*mount_, "in", Op{}, {.piece_nbytes = piece_nbytes});
    EXPECT_EQ(reduced.n, n);
    EXPECT_TRUE(reduced.all == all);
    const auto got = scan_file<Order>(*mount_, "in", to, Op{}, {exclusive, piece_nbytes});
    EXPECT_EQ(got.n, n);
    EXPECT_TRUE(got.all == all);
    const auto out = dir_.read(to);
    EXPECT_EQ(out.size(), n * sizeof(T));
    EXPECT_TRUE(elements_of<T>(out) == want);
    EXPECT_TRUE(to == "in" || dir_.read("in") == in);
    EXPECT_EQ(names_in(dir_), to == "in" ? std::vector<std::string>{"in"} : (std::vector<std::string>{"in", to}));
    expect_all_written(*mount_);
  }

  temp_dir dir_;
  std::unique_ptr<mount> mount_;
};

TEST_P(file_scan, gives_what_a_loop_gives) {
  std::mt19937_64 draw(5);
  for (const std::uint64_t piece : {1u, 4096u, 10'000u}) {  // less than an element, whole pages, and neither
    const std::uint64_t piece_n = std::max<std::uint64_t>(piece / 8, 1);
    for (const std::uint64_t n :
         {std::uint64_t{0}, std::uint64_t{1}, piece_n - 1, piece_n, piece_n + 1, 3 * piece_n, 5 * piece_n + 3}) {
      expect_scanned<affine>(n, piece, draw() % 2 == 0);
    }
  }
  expect_scanned<product>(3001, 8000, false);
  expect_scanned<product, scan_order::fixed>(3001, 8000, true);
  expect_scanned<sum_of_bytes>(20'003, 7001, false);
  expect_scanned<largest>(2000, 8192, true);
}
TEST_P(file_scan, may_replace_its_input) {
  expect_scanned<affine>(3000, 4096, false, "in");
  expect_scanned<affine>(3000, 4096, true, "in");
}
TEST_P(file_scan, of_no_whole_elements_makes_no_file) {
  dir_.add("in", 4001, 1);
  dir_.add("out", 10, 2);
  const auto before = dir_.read("out");
  EXPECT_EQ(number_of([&] { scan_file(*mount_, "in", "out", plus<std::uint32_t>{}); }), EINVAL);
  EXPECT_EQ(number_of([&] { reduce_file(*mount_, "in", plus<std::uint32_t>{}); }), EINVAL);
  EXPECT_TRUE(dir_.read("out") == before);
  EXPECT_EQ(names_in(dir_), (std::vector<std::string>{"in", "out"}));
}
TEST_P(file_scan, of_what_does_not_open_says_so) {
  EXPECT_EQ(number_of([&] { reduce_file(*mount_, "none", plus<std::uint32_t>{}); }), ENOENT);
  dir_.add("in", 4000, 1);
  EXPECT_EQ(number_of([&] { scan_file(*mount_, "in", "no/out", plus<std::uint32_t>{}); }), ENOENT);
  std::filesystem::create_directory(dir_ / "folder");
  EXPECT_EQ(number_of([&] { scan_file(*mount_, "in", "folder", plus<std::uint32_t>{}); }), EISDIR);
  EXPECT_EQ(names_in(dir_), (std::vector<std::string>{"folder", "in"}));
  const mount for_reading(dir_.path());
  EXPECT_EQ(number_of([&] { scan_file(for_reading, "in", "out", plus<std::uint32_t>{}); }), EROFS);
}
INSTANTIATE_TEST_SUITE_P(of, file_scan, ::testing::Values(store_kind::posix, store_kind::automatic), [](const auto& of) {
  return std::string(of.param == store_kind::posix ? "staged_files" : "files_of_windows");
});

// --- What goes wrong ----------------------------------------------------------------------------------------------------------

class failing_file_scan : public ::testing::Test {
 protected:
  failing_file_scan() {
    mount_options options = writing(256);
    options.custom_store = store_;
    mount_ = std::make_unique<mount>(dir_.path(), options);
    dir_.add("in", 40'000, 1);
    dir_.add("out", 100, 2);
    before_ = dir_.read("out");
  }
  int scan() const {
    return number_of([&] { scan_file(*mount_, "in", "out", plus<std::uint32_t>{}, {.piece_nbytes = 4000}); });
  }
  void expect_as_before() const {
    EXPECT_TRUE(dir_.read("out") == before_);
    EXPECT_EQ(names_in(dir_), (std::vector<std::string>{"in", "out"}));
  }
  faults& wrong() const { return store_->wrong(); }

  temp_dir dir_;
  const std::shared_ptr<faulty_store> store_ =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  std::unique_ptr<mount> mount_;
  std::vector<std::byte> before_;
};

TEST_F(failing_file_scan, of_reads_leaves_what_was_there) {
  for (const std::int64_t at : {0, 20'000, 39'999}) {
    wrong().fail_at(at, at + 1);
    EXPECT_EQ(scan(), EIO);
    expect_as_before();
    wrong().heal();
  }
  EXPECT_EQ(scan(), 0);
}
TEST_F(failing_file_scan, of_writes_leaves_what_was_there) {
  wrong().write_error = ENOSPC;
  wrong().fail_write_every = 20;
  EXPECT_EQ(scan(), ENOSPC);
  wrong().fail_write_every = 0;
  expect_as_before();
  EXPECT_EQ(scan(), 0);
}
TEST_F(failing_file_scan, of_the_disk_at_the_end_leaves_what_was_there) {
  wrong().sync_error = EIO;
  EXPECT_EQ(scan(), EIO);
  wrong().sync_error = 0;
  expect_as_before();
}

// --- Pieces -------------------------------------------------------------------------------------------------------------------

TEST(file_pieces, come_in_their_order_and_go_where_they_were) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 10'001, 3);
  file_pieces pieces(m, "in", "out", 1000);
  EXPECT_EQ(pieces.nbytes(), 10'001u);
  std::vector<std::byte> all;
  for (auto piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
    EXPECT_EQ(piece.size(), all.size() == 10'000 ? 1u : 1000u);
    std::vector<std::byte> bytes(piece.size());
    simt::this_platform().copy_from_device(bytes.data(), piece.data(), bytes.size());
    all.insert(all.end(), bytes.begin(), bytes.end());
    simt::this_platform().zero_device(piece.data(), 1);
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  }
  EXPECT_TRUE(pieces.next().empty());
  const auto in = dir.read("in");
  EXPECT_TRUE(all == in);
  pieces.finish();
  auto want = in;
  for (std::size_t at = 0; at < want.size(); at += 1000) want[at] = std::byte{0};
  EXPECT_TRUE(dir.read("out") == want);
}
TEST(file_pieces, of_a_file_that_changes_are_an_error_also_where_all_of_it_is_cached) {
  const temp_dir dir;
  mount_options options = writing(2048);
  options.store = store_kind::posix;
  const mount m(dir.path(), options);
  const auto change = [&](auto&& how) {
    dir.add("in", 100'000, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));        // what was changed just now is not kept from open to open
    EXPECT_EQ(reduce_file(m, "in", plus<std::uint32_t>{}).n, 25'000u);  // fills the cache
    file_pieces pieces(m, "in", "out", 1000);
    pieces.next();
    how();
    EXPECT_EQ(number_of([&] {
                while (!pieces.next().empty()) {
                }
                pieces.finish();
              }),
              ESTALE);
  };
  change([&] { dir.resize("in", 5000); });
  change([&] { dir.overwrite("in", 0, 5000, 9); });
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"});
}
TEST(file_pieces, of_a_file_that_is_replaced_are_those_of_the_one_that_was_opened) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 10'000, 3);
  dir.add("other", 5'000, 4);
  const auto in = dir.read("in");
  file_pieces pieces(m, "in", "out", 1000);
  pieces.next();
  std::filesystem::rename(dir / "other", dir / "in");
  while (!pieces.next().empty()) {
  }
  pieces.finish();
  EXPECT_TRUE(dir.read("out") == in);
}
TEST(file_pieces, begin_where_they_are_told_to) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 2500, 3);
  const auto in = dir.read("in");
  for (const std::uint64_t begin : {1u, 777u, 2499u, 2500u}) {
    file_pieces pieces(m, "in", "out", 1000, begin);
    EXPECT_EQ(pieces.nbytes(), 2500 - begin);
    while (!pieces.next().empty()) {
    }
    pieces.finish();
    EXPECT_TRUE(dir.read("out") == std::vector<std::byte>(in.begin() + static_cast<std::ptrdiff_t>(begin), in.end())) << begin;
  }
  EXPECT_THROW(file_pieces(m, "in", {}, 1000, 2501), std::invalid_argument);
}
TEST(file_pieces, are_written_beside_what_a_killed_process_has_left) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 2500, 3);
  std::string mine;
  {
    const file_pieces pieces(m, "in", "out", 1000);
    mine = names_in(dir).back();  // out.PROCESS-NUMBER.unfinished
  }
  const auto dash = mine.find('-'), end = mine.find(".unfinished");
  ASSERT_TRUE(mine.starts_with("out.") && dash < end && end < mine.size()) << mine;
  const std::string next = mine.substr(0, dash + 1) + std::to_string(std::stoul(mine.substr(dash + 1)) + 1) + ".unfinished";
  dir.add(next, 10, 4);
  const auto left = dir.read(next);
  EXPECT_EQ(scan_file(m, "in", "out", plus<std::uint32_t>{}).n, 625u);
  EXPECT_TRUE(dir.read(next) == left);
  EXPECT_EQ(names_in(dir), (std::vector<std::string>{"in", "out", next}));
}
TEST(file_pieces, may_have_a_name_as_long_as_names_are) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("folder/in", 2500, 3);
  const std::string name = "folder/" + std::string(255, 'n');
  EXPECT_EQ(scan_file(m, "folder/in", name, plus<std::uint32_t>{}).n, 625u);
  EXPECT_EQ(dir.read(name).size(), 2500u);
}
TEST(file_pieces, of_which_some_have_not_come_make_no_file) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 2500, 3);
  {
    file_pieces pieces(m, "in", "out", 1000);
    pieces.next();
    EXPECT_THROW(pieces.finish(), std::logic_error);
  }
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"});
}
TEST(file_pieces, of_a_file_that_changes_are_an_error) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 100'000, 3);
  {
    file_pieces pieces(m, "in", "out", 1000);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(pieces.next().size(), 1000u);
    dir.overwrite("in", 90'000, 100, 4);
    std::filesystem::last_write_time(dir / "in", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
    EXPECT_EQ(number_of([&] {
                while (!pieces.next().empty()) {
                }
              }),
              ESTALE);
  }
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"});
}
TEST(file_pieces, that_are_given_up_leave_no_file) {
  const temp_dir dir;
  const mount m(dir.path(), writing(256));
  dir.add("in", 10'000, 3);
  {
    file_pieces pieces(m, "in", "out", 1000);
    for (int i = 0; i < 5; ++i) pieces.next();
  }
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"});
  EXPECT_THROW(file_pieces(m, "in", {}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
