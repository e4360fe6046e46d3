// SPDX-License-Identifier: Apache-2.0
// Reads of a store that answers later (store::open_file::begin_pread), which this test answers as it likes.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>

#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t page = 4096;
constexpr std::int64_t file_nbytes = 2000 * std::int64_t{page} + 123;
constexpr std::uint64_t seed = 6;

// A read that was begun.
struct begun {
  std::span<std::byte> dst;
  std::int64_t offset;
  store::read_answer answer;

  void give() const { give_first(dst.size()); }
  // The rest of dst stays as it is.
  void give_first(std::size_t nbytes) const {
    const auto bytes = content(seed, static_cast<std::uint64_t>(offset), nbytes);
    std::copy(bytes.begin(), bytes.end(), dst.begin());
    answer(static_cast<std::int64_t>(nbytes));
  }
};

// What the store's files do; shared with the test.
struct behaviour {
  // Called by begin_pread, if there is one: 0: the read is kept for the test; 1: it was answered; -1: it is not begun. May throw.
  using begin_function = std::function<int(const begun&)>;
  std::atomic<int> version{0};
  std::atomic<int> npreads{0}, nopen{0};
  std::atomic<std::size_t> nbegun{0}, nanswered{0}, most{0};  // most: were under way together

  void on_begin(begin_function what) {
    const std::scoped_lock hold(lock_);
    on_begin_ = std::move(what);
  }
  begin_function on_begin() {
    const std::scoped_lock hold(lock_);
    return on_begin_;
  }
  void keep(const begun& one) {
    const std::scoped_lock hold(lock_);
    kept_.push_back(one);
  }
  std::vector<begun> take() {
    const std::scoped_lock hold(lock_);
    return std::exchange(kept_, {});
  }
  std::size_t nkept() {
    const std::scoped_lock hold(lock_);
    return kept_.size();
  }
  // The next n that are kept.
  std::vector<begun> take(std::size_t n) {
    EXPECT_TRUE(wait_until([&] { return nkept() >= n; }));
    return take();
  }
  begun take_one() {
    const std::vector<begun> kept = take(1);
    EXPECT_EQ(kept.size(), 1u);
    return kept.at(0);
  }

 private:
  std::mutex lock_;
  begin_function on_begin_;
  std::vector<begun> kept_;
};

// Files "a", "b", ... are the same bytes; "plain..." are read by pread alone.
class later_file final : public store::open_file {
 public:
  later_file(std::shared_ptr<behaviour> how, std::string_view path, int flags) : how_(std::move(how)), path_(path) {
    info_.nbytes = file_nbytes;
    info_.device = 5;
    info_.inode = static_cast<unsigned char>(path.front());
    info_.live = (flags & O_ACCMODE) != O_RDONLY;
    info_.kind = info_.live ? source_kind::live : source_kind::staged;
    ++how_->nopen;
  }
  ~later_file() override { --how_->nopen; }
  const store::file_info& info() const override { return info_; }
  int check_version() const override { return how_->version; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (path_.front() != 'p') ++how_->npreads;
    if (offset >= file_nbytes) return 0;
    dst = dst.first(std::min(dst.size(), static_cast<std::size_t>(file_nbytes - offset)));
    const auto bytes = content(seed, static_cast<std::uint64_t>(offset), dst.size());
    std::copy(bytes.begin(), bytes.end(), dst.begin());
    return static_cast<std::int64_t>(dst.size());
  }
  bool begin_pread(std::span<std::byte> dst, std::int64_t offset, store::read_answer answer) override {
    if (path_.front() == 'p') return false;
    const begun one{dst, offset, answer};
    const std::size_t n = ++how_->nbegun - how_->nanswered;
    if (n > how_->most) how_->most = n;
    const auto what = how_->on_begin();
    const int done = what ? what(one) : 0;
    if (done == 0) how_->keep(one);
    return done >= 0;
  }

 private:
  std::shared_ptr<behaviour> how_;
  std::string path_;
  store::file_info info_;
};

class later_store final : public store::store {
 public:
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int*) override {
    return std::make_unique<later_file>(how, path, flags);
  }
  int status(std::string_view path, bool, gpufs::store::path_status* out) override {
    *out = {.nbytes = file_nbytes, .device = 5, .inode = static_cast<unsigned char>(path.front())};
    return 0;
  }
  std::string_view name() const override { return "later"; }
  const std::shared_ptr<behaviour> how = std::make_shared<behaviour>();
};

class later_reads : public running_service {
 protected:
  void begin(service::service_options options = {}) {
    auto files = std::make_shared<later_store>();
    how_ = files->how;
    options.writable = true;
    start(std::move(files), options);
  }
  std::uint32_t open(const char* path = "a", int flags = O_RDONLY) {
    const auto got = client_->open(path, flags);
    EXPECT_EQ(got.result, 0);
    return got.handle;
  }
  void expect_read(std::uint32_t handle, std::int64_t offset, std::uint32_t asked, std::int64_t wanted) {
    std::vector<std::byte> got;
    ASSERT_EQ(client_->read(handle, offset, asked, &got), wanted) << offset;
    const auto nbytes = static_cast<std::size_t>(std::max<std::int64_t>(wanted, 0));
    ASSERT_TRUE(got == content(seed, static_cast<std::uint64_t>(offset), nbytes)) << offset;
  }
  void expect_end(ring_client::ticket t, std::int64_t offset, std::int64_t wanted = page) {
    std::vector<std::byte> got;
    ASSERT_EQ(client_->end_read(t, &got), wanted) << offset;
    const auto nbytes = static_cast<std::size_t>(std::max<std::int64_t>(wanted, 0));
    ASSERT_TRUE(got == content(seed, static_cast<std::uint64_t>(offset), nbytes)) << offset;
  }
  std::vector<ring_client::ticket> begin_pages(std::uint32_t handle, int n) {
    std::vector<ring_client::ticket> asked;
    asked.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) asked.push_back(client_->begin_read(handle, i * std::int64_t{page}, page, nth_ring(i)));
    return asked;
  }
  void expect_pages(const std::vector<ring_client::ticket>& asked) {
    for (std::size_t i = 0; i < asked.size(); ++i) expect_end(asked[i], static_cast<std::int64_t>(i * page));
  }
  static std::uint32_t nth_ring(int i) { return static_cast<std::uint32_t>(i % 31); }

  std::shared_ptr<behaviour> how_;
};

TEST_P(later_reads, are_answered_while_they_are_begun) {
  begin();
  how_->on_begin([](const begun& one) {
    one.give();
    return 1;
  });
  const std::uint32_t file = open();
  for (int i = 0; i < 100; ++i) expect_read(file, i * 4321, page, page);
  expect_read(file, file_nbytes - 5, 100, 5);
  expect_read(file, file_nbytes, 100, 0);
  expect_pages(begin_pages(file, 300));
  EXPECT_EQ(client_->close(file), 0);
  EXPECT_EQ(how_->npreads, 0);
  EXPECT_EQ(how_->nopen, 0);
}

// Also of files that are open for writing, beside others that only pread reads.
TEST_P(later_reads, are_answered_in_any_order) {
  begin();
  const std::uint32_t file = open(), written = open("w", O_RDWR), plain = open("plain");
  std::minstd_rand draw(1);
  for (const std::uint32_t of : {file, written}) {
    const auto asked = begin_pages(of, 100);
    std::vector<begun> kept = how_->take(100);
    expect_read(plain, 99, page, page);
    std::shuffle(kept.begin(), kept.end(), draw);
    for (const begun& one : kept) one.give();
    expect_pages(asked);
  }
  EXPECT_EQ(how_->npreads, 0);
}

TEST_P(later_reads, are_answered_by_many_threads_at_once) {
  begin();
  const std::uint32_t file = open();
  for (int round = 0; round < 10; ++round) {
    const auto asked = begin_pages(file, 200);
    const std::vector<begun> kept = how_->take(200);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 8; ++t) {
      threads.emplace_back([&kept, t] {
        for (std::size_t i = t; i < kept.size(); i += 8) kept[i].give();
      });
    }
    expect_pages(asked);
    for (std::thread& one : threads) one.join();
  }
  EXPECT_EQ(how_->npreads, 0);
}

TEST_P(later_reads, go_on_after_short_answers_and_interruptions) {
  begin();
  how_->on_begin([n = std::make_shared<std::atomic<int>>(0)](const begun& one) {
    if (const int i = (*n)++; i % 3 == 0) {
      one.answer(-EINTR);
    } else {
      one.give_first((one.dst.size() + 1) / 2);
    }
    return 1;
  });
  for (const int flags : {O_RDONLY, O_RDWR}) {
    const std::uint32_t file = open(flags == O_RDONLY ? "a" : "w", flags);
    for (int i = 0; i < 20; ++i) expect_read(file, i * 777, page, page);
  }
  EXPECT_EQ(how_->npreads, 0);
}

TEST_P(later_reads, tell_errors_to_who_reads_there) {
  begin();
  const std::uint32_t file = open(), other = open("b");
  for (const int error : {EIO, EINVAL, EOPNOTSUPP, ECANCELED, ENOMEM}) {
    const auto asked = client_->begin_read(file, 0, page);
    how_->take_one().answer(-error);
    expect_end(asked, 0, -error);
    EXPECT_EQ(service_->log_entries().back().error, error);
    EXPECT_EQ(service_->log_entries().back().path, "a");
  }
  how_->on_begin([](const begun&) -> int { throw std::bad_alloc(); });
  expect_read(file, 0, page, -ENOMEM);
  how_->on_begin([](const begun&) -> int { throw std::runtime_error("a test"); });
  expect_read(file, 0, page, -EIO);
  how_->on_begin(nullptr);
  // A file that is shorter than it was, or no longer the one that was opened, has no version any more.
  for (const auto& [handle, result] : {std::pair{file, std::int64_t{0}}, {other, std::int64_t{-ESTALE}}}) {
    const auto asked = client_->begin_read(handle, 0, page);
    how_->take_one().answer(result);
    expect_end(asked, 0, -ESTALE);
  }
  EXPECT_EQ(service_->counters().stale_files, 2u);
  EXPECT_EQ(how_->npreads, 0);
}

// A read that the store does not begin, or not the rest of, is a call's.
TEST_P(later_reads, that_are_not_begun_are_read_by_a_call) {
  begin();
  const std::uint32_t file = open();
  how_->on_begin([](const begun&) { return -1; });
  expect_read(file, 5, page, page);
  EXPECT_EQ(how_->npreads, 1);
  how_->on_begin([](const begun& one) {
    one.answer(-EAGAIN);
    return 1;
  });
  expect_read(file, 6, page, page);
  EXPECT_EQ(how_->npreads, 2);
  how_->on_begin([n = std::make_shared<std::atomic<int>>(0)](const begun& one) {
    if ((*n)++ % 2 == 1) return -1;
    one.give_first(1000);
    return 1;
  });
  expect_read(file, 7, page, page);
  EXPECT_EQ(how_->npreads, 3);
  how_->on_begin([](const begun&) { return -1; });
  expect_pages(begin_pages(file, 300));
}

TEST_P(later_reads, of_a_file_that_is_written_end_where_it_ends) {
  begin();
  const std::uint32_t file = open("w", O_RDWR);
  const auto asked = client_->begin_read(file, 100, page);
  how_->take_one().give_first(300);
  const begun rest = how_->take_one();
  EXPECT_EQ(rest.offset, 400);
  EXPECT_EQ(rest.dst.size(), page - 300);
  rest.answer(0);
  expect_end(asked, 100, 300);
}

TEST_P(later_reads, of_a_version_that_has_ended_meanwhile_are_stale) {
  begin();
  const std::uint32_t file = open(), seen = open("b");
  const auto asked = client_->begin_read(file, 0, page), also = client_->begin_read(seen, 0, page);
  const std::vector<begun> kept = how_->take(2);
  EXPECT_EQ(client_->open("a", O_RDWR).result, 0);  // ends the version of who reads
  how_->version = -ESTALE;                          // another process has changed the other one
  for (const begun& one : kept) one.give();
  expect_end(asked, 0, -ESTALE);
  expect_end(also, 0, -ESTALE);
  EXPECT_EQ(service_->counters().stale_files, 2u);
}

TEST_P(later_reads, keep_their_file_open) {
  begin();
  const std::uint32_t file = open();
  const auto asked = client_->begin_read(file, 0, page);
  const begun one = how_->take_one();
  EXPECT_EQ(client_->close(file), 0);
  EXPECT_EQ(how_->nopen, 1);
  one.give();
  expect_end(asked, 0);
  EXPECT_TRUE(wait_until([&] { return how_->nopen == 0; }));
}

TEST_P(later_reads, are_waited_for_by_the_end_of_the_service) {
  begin();
  const std::uint32_t file = open();
  const auto asked = begin_pages(file, 20);
  const std::vector<begun> kept = how_->take(20);
  std::atomic<bool> stopped{false};
  std::thread stops([&] {
    service_->stop();
    stopped = true;
  });
  EXPECT_TRUE(wait_until([&] { return client_->close(77) == -ESHUTDOWN; }));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(stopped);
  for (const begun& one : kept) one.give();
  stops.join();
  expect_pages(asked);
  client_.reset();
  service_.reset();
  EXPECT_EQ(how_->nopen, 0);
}

TEST_P(later_reads, that_hang_hold_up_no_other_file) {
  begin({.nworkers = 2});
  const std::uint32_t bad = open(), good = open("b"), plain = open("plain");
  const auto asked = begin_pages(bad, 600);  // more than there may be under way
  ASSERT_TRUE(wait_until([&] { return service_->what_hangs()().find("a read of 'a'") != std::string::npos; }));
  how_->on_begin([](const begun& one) {
    if (one.offset < file_nbytes / 2) return 0;
    one.give();
    return 1;
  });
  const auto since = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    expect_read(plain, i * 999, page, page);
    expect_read(good, file_nbytes - page - i, page, page);
    const auto also = client_->open("c", O_RDONLY, 0, 31);
    EXPECT_EQ(also.result, 0);
    EXPECT_EQ(client_->close(also.handle, 31), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - since, seconds(under_tsan ? 30 : 10));
  std::size_t nanswered = 0;
  std::atomic<bool> ends{false};
  std::thread answers([&] {
    while (!ends) {
      for (const begun& one : how_->take()) one.give(), ++nanswered;
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  expect_pages(asked);
  ends = true;
  answers.join();
  EXPECT_GE(nanswered, 256u);
  EXPECT_TRUE(wait_until([&] { return service_->what_hangs()().empty(); }));
}

// More than the workers can have under way: the others wait for their turn.
TEST_P(later_reads, may_be_more_than_a_worker_has_places_for) {
  begin({.nworkers = 2, .nspare_workers = 0});
  const std::uint32_t file = open();
  std::atomic<bool> ends{false};
  std::thread answers([&] {
    while (!ends) {
      const std::vector<begun> kept = how_->take();
      how_->nanswered += kept.size();
      for (const begun& one : kept) one.give();
      std::this_thread::sleep_for(milliseconds(3));
    }
  });
  for (int round = 0; round < 3; ++round) expect_pages(begin_pages(file, 1900));
  ends = true;
  answers.join();
  EXPECT_GT(how_->most, 200u);
  EXPECT_LE(how_->most, 2 * 256u);
}

// Which a store may not do. What it hits is dropped, and not taken for another read's answer.
TEST_P(later_reads, that_are_answered_twice_are_answered_once) {
  begin({.nworkers = 1});
  const std::uint32_t file = open();
  for (int i = 0; i < 20; ++i) {
    const auto asked = client_->begin_read(file, 0, page);
    const begun one = how_->take_one();
    one.give();
    expect_end(asked, 0);
    const auto next = client_->begin_read(file, page, page);
    const begun two = how_->take_one();
    one.answer(-EIO);
    two.give();
    two.answer(-EIO);
    expect_end(next, page);
  }
  // Nor is a read that was refused.
  how_->on_begin([](const begun& one) {
    one.answer(-EIO);
    return -1;
  });
  expect_read(file, 0, page, page);
}

class later_rows : public later_reads {
 protected:
  void begin_with_rows() {
    begin({.nrings = 16, .nslots = 8});
    buffers_ = service_->row_buffers();
  }
  ring_client::ticket ask(std::uint32_t handle, std::uint32_t ring = 0) {
    return client_->begin_rows(buffers_, handle, offsets_, row, ring);
  }
  void expect_rows(ring_client::ticket t) {
    std::vector<std::byte> got, wanted;
    ASSERT_EQ(client_->end_rows(buffers_, t, offsets_.size() * row, &got), 0);
    for (const std::uint64_t offset : offsets_) {
      const auto one = content(seed, offset, row);
      wanted.insert(wanted.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(got == wanted);
  }

  static constexpr std::uint32_t row = 512;
  const std::vector<std::uint64_t> offsets_{0, 512, 513, 100'000, 7, 4090, file_nbytes - 512, 3000};
  transport::row_buffers buffers_;
};

TEST_P(later_rows, are_answered_in_any_order) {
  begin_with_rows();
  const std::uint32_t file = open();
  std::minstd_rand draw(1);
  for (int round = 0; round < 10; ++round) {
    std::vector<ring_client::ticket> asked;
    for (std::uint32_t i = 0; i < 4; ++i) asked.push_back(ask(file, i));
    std::vector<begun> kept = how_->take(4 * offsets_.size());
    std::shuffle(kept.begin(), kept.end(), draw);
    for (const begun& one : kept) one.give();
    for (const ring_client::ticket t : asked) expect_rows(t);
  }
  EXPECT_EQ(how_->npreads, 0);
}

TEST_P(later_rows, may_be_short_or_no_reads_of_the_stores) {
  begin_with_rows();
  const std::uint32_t file = open();
  const auto each_third = [](int (*what)(const begun&)) {
    return [what, n = std::make_shared<std::atomic<int>>(0)](const begun& one) {
      if ((*n)++ % 3 == 2) return what(one);
      one.give();
      return 1;
    };
  };
  how_->on_begin(each_third([](const begun& one) {
    one.give_first(one.dst.size() / 2);
    return 1;
  }));
  expect_rows(ask(file));
  EXPECT_EQ(how_->npreads, 0);
  how_->on_begin(each_third([](const begun& one) {
    one.answer(-EAGAIN);
    return 1;
  }));
  expect_rows(ask(file));
  how_->on_begin(each_third([](const begun&) { return -1; }));
  for (int i = 0; i < 5; ++i) expect_rows(ask(file));
  how_->on_begin([](const begun&) { return -1; });
  expect_rows(ask(file));
  EXPECT_GT(how_->npreads, 8);
}

TEST_P(later_rows, tell_errors_of_each) {
  begin_with_rows();
  const std::uint32_t file = open();
  const auto t = ask(file);
  for (const begun& one : how_->take(offsets_.size())) one.offset == 7 ? one.answer(-EINVAL) : one.give();
  std::vector<std::byte> got;
  std::vector<int> errors(offsets_.size());
  EXPECT_EQ(client_->end_rows(buffers_, t, offsets_.size() * row, &got, &errors), 1);
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], offsets_[i] == 7 ? -EINVAL : 0);
  how_->on_begin([](const begun&) -> int { throw std::bad_alloc(); });
  EXPECT_EQ(client_->end_rows(buffers_, ask(file), 0, nullptr), static_cast<std::int64_t>(offsets_.size()));
  how_->on_begin(nullptr);
  const auto cut = ask(file);
  for (const begun& one : how_->take(offsets_.size())) one.offset == 7 ? one.answer(0) : one.give();
  EXPECT_EQ(client_->end_rows(buffers_, cut, 0, nullptr), -ESTALE);
}

INSTANTIATE_TEST_SUITE_P(io, later_reads, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });
// One request may ask for more rows than a worker has places for.
TEST_P(later_rows, that_hang_hold_up_no_rows_of_another_file) {
  begin({.nrings = 16, .nslots = 8, .nworkers = 1});
  buffers_ = service_->row_buffers();
  const std::uint32_t bad = open(), good = open("b");
  std::vector<std::uint64_t> many;
  for (std::uint64_t i = 0; i < 400; ++i) many.push_back(i * 64);
  const auto asked = client_->begin_rows(buffers_, bad, many, 64, 0);
  ASSERT_TRUE(wait_until([&] { return how_->nkept() > 200; }));
  const auto since = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    std::vector<std::byte> got;
    const std::vector<std::uint64_t> last{file_nbytes - 64 - 8 * static_cast<std::uint64_t>(i)};
    const auto one = client_->begin_rows(buffers_, good, last, 64, 1);
    ASSERT_EQ(client_->end_rows(buffers_, one, 64, &got), 0);
    EXPECT_TRUE(got == content(seed, last[0], 64));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - since, seconds(under_tsan ? 30 : 10));
  std::atomic<bool> ends{false};
  std::thread answers([&] {
    while (!ends) {
      for (const begun& one : how_->take()) one.give();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  EXPECT_EQ(client_->end_rows(buffers_, asked, many.size() * 64, nullptr), 0);
  ends = true;
  answers.join();
}
INSTANTIATE_TEST_SUITE_P(io, later_rows, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
