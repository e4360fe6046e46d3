// SPDX-License-Identifier: Apache-2.0
// Requests of rows: from files in memory and on a disk, cold ones, and what goes wrong with one row, the file, or the request.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "../../src/simt/unique_fd.hpp"
#include "../../src/store/readable_mapping.hpp"
#include "file/faulty_store.hpp"
#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

using transport::row_buffers;

std::vector<std::byte> rows_of(std::uint64_t seed, std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes) {
  std::vector<std::byte> all;
  for (const std::uint64_t offset : offsets) {
    const auto row = content(seed, offset, row_nbytes);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

class host_rows : public running_service {
 protected:
  void start_rows(std::shared_ptr<store::store> files, service::service_options options = {.nrings = 16, .nslots = 8}) {
    let_file_times_pass();
    start(std::move(files), options);
    buffers_ = service_->row_buffers();
  }
  void start_in(const temp_dir& dir, store::posix_options how = {}) {
    start_rows(std::make_shared<store::posix_store>(dir.path(), how));
  }
  // Many requests of drawn rows at a time.
  void expect_rows(std::uint32_t handle, std::uint64_t file_nbytes, std::uint64_t seed, int nrounds) {
    random_source draw(seed);
    struct asked {
      ring_client::ticket t;
      std::vector<std::uint64_t> offsets;
      std::uint32_t row_nbytes;
    };
    for (int round = 0; round < nrounds; ++round) {
      std::vector<asked> all;
      for (std::uint32_t i = 0; i < 20; ++i) {
        constexpr std::uint32_t sizes[] = {1, 4, 100, 512, 1000, 4096, 9000};
        const auto row_nbytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(sizes[draw.below(std::size(sizes))], file_nbytes));
        const std::uint64_t n = 1 + draw.below(std::min(70u, buffers_.fitting(row_nbytes)));
        std::vector<std::uint64_t> offsets(n);
        const bool dense = draw.below(2) == 0;  // one behind the other, with little between them, or none
        std::uint64_t at = draw.below(file_nbytes - row_nbytes + 1);
        for (std::uint64_t& offset : offsets) {
          offset = at;
          at += row_nbytes + (draw.below(2) == 0 ? 0 : draw.below(4000));
          if (!dense || at > file_nbytes - row_nbytes) at = draw.below(file_nbytes - row_nbytes + 1);
        }
        all.push_back({client_->begin_rows(buffers_, handle, offsets, row_nbytes, i), offsets, row_nbytes});
      }
      for (const asked& each : all) {
        std::vector<std::byte> got;
        ASSERT_EQ(client_->end_rows(buffers_, each.t, each.offsets.size() * each.row_nbytes, &got), 0);
        ASSERT_TRUE(got == rows_of(seed, each.offsets, each.row_nbytes));
      }
    }
  }
  std::int64_t rows(std::uint32_t handle, std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes,
                    std::uint32_t count = 0) {
    return client_->end_rows(buffers_, client_->begin_rows(buffers_, handle, offsets, row_nbytes, 0, count), 0, nullptr);
  }

  const temp_dir memory_{memory_directory()};
  row_buffers buffers_;
};

TEST_P(host_rows, come_from_files_in_memory) {
  memory_.add("a", 300'001, 3);
  start_in(memory_);
  const auto file = client_->open("a");
  expect_rows(file.handle, 300'001, 3, 10);
  const auto counted = service_->counters();
  EXPECT_EQ(counted.reads, 200u);
  EXPECT_GT(counted.bytes_read, 200u);
  EXPECT_EQ(client_->close(file.handle), 0);
}

TEST_P(host_rows, come_from_the_disk_what_the_page_cache_lacks_too) {
  dir_.add("cold", 2 << 20, 5);
  const unique_fd fd(open((dir_ / "cold").c_str(), O_RDONLY | O_CLOEXEC));
  fsync(fd.get());
  start_in(dir_);
  const auto file = client_->open("cold");
  for (int round = 0; round < 10; ++round) {
    posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    expect_rows(file.handle, 2 << 20, 5, 1);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(service_->counters().cold_reads, 0u) << "nothing was cold: this test tests nothing on this file system";
}

TEST_P(host_rows, come_from_files_that_are_read_directly) {
  dir_.add("a", 200'000, 6);
  start_in(dir_, {.direct = true});
  const auto file = client_->open("a");
  expect_rows(file.handle, 200'000, 6, 3);
}

TEST_P(host_rows, come_from_a_hole_without_filling_it) {
  memory_.add_sparse("a", 1 << 20, 5000, 8);
  start_in(memory_);
  const auto file = client_->open("a");
  const std::vector<std::uint64_t> offsets = {0, 77'000, 1 << 20};
  std::vector<std::byte> got;
  EXPECT_EQ(client_->end_rows(buffers_, client_->begin_rows(buffers_, file.handle, offsets, 100), 300, &got), 0);
  std::vector<std::byte> want(300);
  std::ranges::copy(content(8, 1 << 20, 100), want.begin() + 200);
  EXPECT_EQ(got, want);
  struct stat status {};
  ASSERT_EQ(stat((memory_ / "a").c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 100'000);
}

// Windows are registered as soon as by reads of the pages.
TEST_P(host_rows, count_as_pages_of_their_window) {
  constexpr std::uint64_t window = 64 << 10, page = 4096;
  memory_.add("a", 4 * window, 9);
  start_rows(mapping_store(memory_.path()));
  std::atomic<std::uint64_t> registered{0};
  service_->on_windows([&](std::uint32_t, std::uint32_t, const std::byte*, const store::registered_windows& windows) {
    registered = windows.registered;
    return true;
  });
  const auto file = client_->open("a");
  ASSERT_EQ(file.kind, source_kind::windows);
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t at = window; at < 2 * window; at += page) {
    for (const std::uint64_t in_page : {100, 900, 3000}) offsets.push_back(at + in_page);
  }
  const auto all = std::span<const std::uint64_t>(offsets);
  EXPECT_EQ(rows(file.handle, all.first(offsets.size() - 3), 64), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(registered, 0u) << "a page is missing";
  EXPECT_EQ(rows(file.handle, all.last(3), 64), 0);
  EXPECT_TRUE(wait_until([&] { return registered == 2; })) << registered;
}

TEST_P(host_rows, refuses_what_a_device_makes_up) {
  dir_.add("a", 10'000, 1);
  start_posix({.nrings = 16, .nslots = 8});
  const auto file = client_->open("a");
  transport::request early{};
  early.op = opcode::read_rows;
  early.handle = file.handle;
  early.nbytes = early.skip = 1;
  EXPECT_EQ(client_->call(early, 1).result, -EINVAL) << "there are no buffers yet";
  buffers_ = service_->row_buffers();
  ASSERT_FALSE(buffers_.has(0));
  EXPECT_EQ(client_->call(early, 0).result, -EINVAL) << "this slot has none";
  const std::vector<std::uint64_t> good = {0, 9900};
  EXPECT_EQ(rows(file.handle, good, 100), 0);
  EXPECT_EQ(rows(file.handle, good, 101), -EINVAL) << "the last one ends behind the file";
  EXPECT_EQ(rows(file.handle, good, 0), -EINVAL);
  EXPECT_EQ(rows(file.handle, good, 0xffffffffu), -EINVAL);
  EXPECT_EQ(rows(file.handle, good, 10'001), -EINVAL);
  EXPECT_EQ(rows(file.handle, std::vector<std::uint64_t>{~std::uint64_t{0}}, 100), -EINVAL);
  EXPECT_EQ(rows(file.handle, std::vector<std::uint64_t>{~std::uint64_t{0} - 99}, 100), -EINVAL);
  const std::vector<std::uint64_t> many(row_buffers::most_rows);
  EXPECT_EQ(rows(file.handle, many, 1), 0);
  EXPECT_EQ(rows(file.handle, many, 1, row_buffers::most_rows + 1), -EINVAL);
  EXPECT_EQ(rows(file.handle, many, 1, 0xffffffffu), -EINVAL);
  EXPECT_EQ(rows(file.handle, many, 1000, buffers_.fitting(1000)), 0);
  EXPECT_EQ(rows(file.handle, many, 1000, buffers_.fitting(1000) + 1), -EINVAL);
  EXPECT_EQ(rows(file.handle + 1, good, 100), -EBADF);
  EXPECT_EQ(client_->close(file.handle), 0);
  EXPECT_EQ(rows(file.handle, good, 100), -EBADF);
  service_->stop();
  EXPECT_EQ(rows(file.handle, good, 100), -ESHUTDOWN);
}

TEST_P(host_rows, fail_one_by_one) {
  dir_.add("a", 100'000, 4);
  const auto files = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path()));
  start_rows(files);
  const auto file = client_->open("a");
  files->wrong().fail_at(5000, 5001);
  files->wrong().short_every = 3;
  const std::vector<std::uint64_t> offsets = {0, 4950, 5001, 4700, 99'900};
  std::vector<std::byte> got;
  std::vector<int> errors(offsets.size(), 1);
  EXPECT_EQ(client_->end_rows(buffers_, client_->begin_rows(buffers_, file.handle, offsets, 100), 500, &got, &errors), 1);
  EXPECT_EQ(errors, (std::vector<int>{0, -EIO, 0, 0, 0}));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (i == 1) continue;
    const auto want = content(4, offsets[i], 100);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + static_cast<std::ptrdiff_t>(100 * i))) << i;
  }
  EXPECT_EQ(service_->counters().bytes_read, 400u);
  EXPECT_EQ(service_->counters().errors, 1u);
  ASSERT_FALSE(service_->log_entries().empty());
  EXPECT_EQ(service_->log_entries().back().operation, "read_rows");
  EXPECT_EQ(service_->log_entries().back().error, EIO);
  EXPECT_EQ(service_->log_entries().back().path, "a");
}

// Slow rows are no call that hangs, and others of the file come between.
TEST_P(host_rows, are_read_in_turns_where_they_are_slow) {
  dir_.add("a", 100'000, 4);
  const auto files = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path()));
  start_rows(files, {.nrings = 16, .nslots = 8, .nworkers = 1});
  const auto file = client_->open("a");
  files->wrong().delay_ns = 5'000'000;
  std::vector<std::uint64_t> offsets(40);
  for (std::uint64_t i = 0; i < 40; ++i) offsets[i] = i * 1000;
  const auto t = client_->begin_rows(buffers_, file.handle, offsets, 100);
  ASSERT_TRUE(wait_until([&] { return files->wrong().reads > 1; }));
  EXPECT_EQ(client_->read(file.handle, 0, 100, nullptr, 3), 100);
  EXPECT_FALSE(client_->answered(t));
  EXPECT_EQ(service_->what_hangs()(), "");
  std::vector<std::byte> got;
  EXPECT_EQ(client_->end_rows(buffers_, t, 4000, &got), 0);
  EXPECT_EQ(got, rows_of(4, offsets, 100));
}

// A load from what is gone is no end of the process.
TEST_P(host_rows, of_a_file_that_was_cut_are_stale) {
  for (const temp_dir* const dir : std::initializer_list<const temp_dir*>{&memory_, &dir_}) {
    dir->add("a", 200'000, 4);
    start_in(*dir);
    const auto file = client_->open("a");
    const std::vector<std::uint64_t> offsets = {0, 50'000, 150'000};
    EXPECT_EQ(rows(file.handle, offsets, 512), 0);
    dir->resize("a", 10'000);
    EXPECT_EQ(rows(file.handle, offsets, 512), -ESTALE);
    EXPECT_EQ(rows(file.handle, offsets, 512), -ESTALE);
    dir->resize("a", 200'000);
    EXPECT_EQ(rows(file.handle, offsets, 512), -ESTALE) << "what was put in place of its pages is not the file's";
    EXPECT_EQ(client_->close(file.handle), 0);
    const auto again = client_->open("a");
    std::vector<std::byte> got;
    EXPECT_EQ(
        client_->end_rows(buffers_, client_->begin_rows(buffers_, again.handle, std::vector<std::uint64_t>{0}, 512), 512, &got), 0);
    EXPECT_EQ(got, content(4, 0, 512));
  }
}

// While others cut it and write it anew: each answer is an error, or the bytes of the version.
TEST_P(host_rows, of_a_file_that_is_being_cut_are_all_or_nothing) {
  constexpr std::uint64_t nbytes = 1 << 20;
  for (int round = 0; round < 10; ++round) {
    memory_.add("a", nbytes, 4);
    start_in(memory_);
    const auto file = client_->open("a");
    std::atomic<bool> cut{false};
    std::thread cutter([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      memory_.resize("a", 4096 * static_cast<std::uint64_t>(round));
      cut = true;
      memory_.resize("a", nbytes);
    });
    random_source draw(static_cast<std::uint64_t>(round));
    bool ended = false;
    for (int i = 0; i < 1000 && !ended; ++i) {
      std::vector<std::uint64_t> offsets(64);
      for (std::uint64_t& offset : offsets) offset = draw.below(nbytes - 512);
      std::vector<std::byte> got;
      const bool was_cut = cut;
      const std::int64_t result =
          client_->end_rows(buffers_, client_->begin_rows(buffers_, file.handle, offsets, 512), 64 * 512, &got);
      ended = result != 0;
      if (ended) {
        EXPECT_EQ(result, -ESTALE);
      } else {
        EXPECT_FALSE(was_cut);
        EXPECT_TRUE(got == rows_of(4, offsets, 512));
      }
    }
    cutter.join();
  }
}

INSTANTIATE_TEST_SUITE_P(io, host_rows, testing::Bool(), [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

// --- The mapping ---------------------------------------------------------------------------------------------------------------

volatile sig_atomic_t nbus_errors = 0;
void* page_of_others = nullptr;

TEST(readable_mapping, leaves_other_faults_to_those_who_were_there_before) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process in which no test before this one has made a mapping
  const temp_dir dir(memory_directory());
  dir.add("a", 8192, 1);
  EXPECT_EXIT(
      {
        struct sigaction others {};
        others.sa_handler = [](int) {
          nbus_errors = nbus_errors + 1;
          ::mmap(page_of_others, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        };
        ::sigaction(SIGBUS, &others, nullptr);
        const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
        const auto mapping = store::readable_mapping::of(fd.get(), 8192);
        page_of_others = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 4096);
        dir.resize("a", 0);
        std::byte row[4];
        const bool gathered = mapping == nullptr || mapping->gather(std::vector<std::uint64_t>{4096}, 4, row);
        const bool ours_told = nbus_errors != 0;
        const int word = *static_cast<volatile int*>(page_of_others);
        ::_exit(gathered || ours_told || word != 0 || nbus_errors != 1 ? 1 : 42);
      },
      testing::ExitedWithCode(42), "");
}

// More than the handler's list has in one piece, of which some go and others come.
TEST(readable_mapping, of_many_files_are_told_apart) {
  const temp_dir dir(memory_directory());
  constexpr std::size_t n = 150;
  std::vector<std::unique_ptr<store::readable_mapping>> all;
  std::vector<unique_fd> files;
  for (std::size_t i = 0; i < n; ++i) {
    const std::string name = "f" + std::to_string(i);
    dir.add(name, 8192, i);
    files.emplace_back(::open((dir / name).c_str(), O_RDONLY | O_CLOEXEC));
    all.push_back(store::readable_mapping::of(files.back().get(), 8192));
    ASSERT_NE(all.back(), nullptr);
  }
  for (std::size_t i = 0; i < n; i += 3) all[i].reset();
  for (std::size_t i = 0; i < n; i += 6) all[i] = store::readable_mapping::of(files[i].get(), 8192);
  for (std::size_t i = 0; i < n; i += 5) dir.resize("f" + std::to_string(i), 4096);
  for (std::size_t i = 0; i < n; ++i) {
    std::byte row[4];
    if (all[i] == nullptr) continue;
    EXPECT_EQ(all[i]->gather(std::vector<std::uint64_t>{4096}, 4, row), i % 5 != 0) << i;
  }
}

TEST(readable_mapping, is_none_where_somebody_else_has_taken_the_signal_since) {
  const temp_dir dir(memory_directory());
  dir.add("a", 8192, 1);
  const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_NE(store::readable_mapping::of(fd.get(), 8192), nullptr);
  struct sigaction others {
  }, ours{};
  others.sa_handler = [](int) {};
  ::sigaction(SIGBUS, &others, &ours);
  EXPECT_EQ(store::readable_mapping::of(fd.get(), 8192), nullptr);
  ::sigaction(SIGBUS, &ours, nullptr);
  EXPECT_NE(store::readable_mapping::of(fd.get(), 8192), nullptr);
}

}  // namespace
}  // namespace gpufs::test
