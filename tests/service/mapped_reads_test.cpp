// SPDX-License-Identifier: Apache-2.0
// Reads of pages that host threads copy from a mapping, because they have read much of the file: the bytes, and what goes wrong.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../../src/service/own_descriptors.hpp"
#include "../../src/simt/unique_fd.hpp"
#include "../../src/store/kept_descriptors.hpp"
#include "../../src/store/readable_mapping.hpp"
#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

constexpr std::uint64_t file_nbytes = (1 << 20) + 1000;  // its last page is not whole
constexpr std::uint32_t page_nbytes = 4096;

class mapped_reads : public running_service {
 protected:
  void start_in_memory(bool writable = false) {
    let_file_times_pass();
    service::service_options options{.nrings = 16, .nslots = 8};
    options.writable = writable;
    start(std::make_shared<store::posix_store>(memory_.path(), store::posix_options{.writable = writable}), options);
  }
  // Reads each page of the file so often that all later reads are loads.
  void read_all(std::uint32_t handle) {
    for (int round = 0; round < 5; ++round) {
      for (std::uint64_t at = 0; at < file_nbytes; at += page_nbytes) {
        std::vector<std::byte> got;
        const std::uint64_t n = std::min<std::uint64_t>(page_nbytes, file_nbytes - at);
        ASSERT_EQ(client_->read(handle, static_cast<std::int64_t>(at), page_nbytes, &got), static_cast<std::int64_t>(n));
        ASSERT_EQ(got, content(7, at, n)) << at;
      }
    }
  }
  const temp_dir memory_{memory_directory()};
};

TEST_P(mapped_reads, give_the_files_bytes_at_any_offset_and_of_any_size) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory();
  const auto file = client_->open("a");
  read_all(file.handle);
  random_source draw(1);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t at = draw.below(file_nbytes + 100);
    const auto asked = static_cast<std::uint32_t>(draw.below(page_nbytes + 1));
    const std::uint64_t n = at >= file_nbytes ? 0 : std::min<std::uint64_t>(asked, file_nbytes - at);
    std::vector<std::byte> got;
    ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(at), asked, &got), static_cast<std::int64_t>(n));
    ASSERT_EQ(got, content(7, at, n)) << at << ' ' << asked;
  }
  EXPECT_EQ(client_->close(file.handle), 0);
}

TEST_P(mapped_reads, of_a_file_that_was_cut_are_stale) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory();
  const auto file = client_->open("a");
  read_all(file.handle);
  memory_.resize("a", 10'000);
  EXPECT_EQ(client_->read(file.handle, 500'000, page_nbytes), -ESTALE);
  memory_.resize("a", file_nbytes);
  EXPECT_EQ(client_->read(file.handle, 0, page_nbytes), -ESTALE);
  EXPECT_EQ(client_->close(file.handle), 0);
  let_file_times_pass();
  const auto again = client_->open("a");
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(again.handle, 0, page_nbytes, &got), page_nbytes);
  EXPECT_EQ(got, content(7, 0, page_nbytes));
}

// While another program cuts it and writes it anew: each answer is an error, or the bytes of the version.
TEST_P(mapped_reads, of_a_file_that_is_being_cut_are_all_or_nothing) {
  for (int round = 0; round < 10; ++round) {
    memory_.add("a", file_nbytes, 7);
    start_in_memory();
    const auto file = client_->open("a");
    read_all(file.handle);
    std::atomic<bool> cut{false};
    std::thread cutter([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      memory_.resize("a", page_nbytes * static_cast<std::uint64_t>(round));
      cut = true;
      memory_.resize("a", file_nbytes);
    });
    random_source draw(static_cast<std::uint64_t>(round));
    bool ended = false;
    for (int i = 0; i < 100'000 && !ended; ++i) {
      const std::uint64_t at = draw.below(file_nbytes / page_nbytes) * page_nbytes;
      std::vector<std::byte> got;
      const bool was_cut = cut;
      const std::int64_t result = client_->read(file.handle, static_cast<std::int64_t>(at), page_nbytes, &got);
      ended = result != page_nbytes;
      if (ended) {
        EXPECT_EQ(result, -ESTALE);
      } else {
        EXPECT_FALSE(was_cut);
        EXPECT_TRUE(got == content(7, at, page_nbytes));
      }
    }
    EXPECT_TRUE(ended);
    cutter.join();
  }
}

// Loads would give the holes memory.
TEST_P(mapped_reads, leave_holes_as_they_are) {
  memory_.add("a", 0, 1);
  memory_.resize("a", file_nbytes);
  start_in_memory();
  const auto file = client_->open("a");
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t at = 0; at + page_nbytes <= file_nbytes; at += page_nbytes) {
      std::vector<std::byte> got;
      ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(at), page_nbytes, &got), page_nbytes);
      ASSERT_EQ(got, std::vector<std::byte>(page_nbytes));
    }
  }
  struct stat status {};
  ASSERT_EQ(::stat((memory_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

// A file that is open for writing has no version, and may grow.
TEST_P(mapped_reads, of_a_file_that_is_written_see_each_write) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory(true);
  const auto file = client_->open("a", O_RDWR);
  ASSERT_EQ(file.result, 0);
  read_all(file.handle);
  const auto more = content(8, 0, page_nbytes);
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{file_nbytes}}) {
    ASSERT_EQ(client_->write(file.handle, at, more), page_nbytes);
    std::vector<std::byte> got;
    EXPECT_EQ(client_->read(file.handle, at, page_nbytes, &got), page_nbytes);
    EXPECT_EQ(got, more);
  }
}

// How often the process has the file mapped, and open.
std::pair<int, int> uses_of(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/maps");
  int nmapped = 0, nopen = 0;
  for (std::string line; std::getline(maps, line);) nmapped += line.find(path.string()) != std::string::npos;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    nopen += std::filesystem::read_symlink(one, gone) == path;
  }
  return {nmapped, nopen};
}

TEST_P(mapped_reads, leave_nothing_of_a_file_that_is_closed) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory();
  const std::pair<int, int> none{0, 0};
  const auto file = client_->open("a");
  EXPECT_EQ(uses_of(memory_ / "a"), (std::pair{0, 1}));
  read_all(file.handle);
  const auto [nmapped, nopen] = uses_of(memory_ / "a");
  EXPECT_EQ(nmapped, 1);
  EXPECT_GE(nopen, 1);
  EXPECT_EQ(client_->close(file.handle), 0);
  // Nobody waits for the mapping's end.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (uses_of(memory_ / "a") != none && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(uses_of(memory_ / "a"), none);
}

// Its slot and number are free at once, though its mapping may not be.
TEST_P(mapped_reads, of_a_file_that_is_closed_leave_room_for_the_next) {
  constexpr std::uint64_t nbytes = 256 << 20;
  const unique_fd large(::open((memory_ / "a").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::posix_fallocate(large.get(), 0, nbytes), 0);
  let_file_times_pass();
  start(std::make_shared<store::posix_store>(memory_.path()), {.nrings = 16, .nslots = 8, .max_open_files = 1});
  for (int round = 0; round < 3; ++round) {
    const auto file = client_->open("a");
    ASSERT_EQ(file.result, 0);
    for (std::uint64_t at = 0; at < nbytes; at += 65536) {
      for (int i = 0; i < 7; ++i) ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(at), 64), 64);
    }
    ASSERT_EQ(client_->close(file.handle), 0);
  }
}

// A program may block all signals before it makes a mount, to take them by sigwait(3).
TEST_P(mapped_reads, of_a_cut_file_harm_no_program_that_blocks_signals) {
  memory_.add("a", file_nbytes, 7);
  sigset_t all, before;
  ::sigfillset(&all);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &all, &before), 0);
  start_in_memory();
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  const auto file = client_->open("a");
  read_all(file.handle);
  memory_.resize("a", 0);
  EXPECT_EQ(client_->read(file.handle, 0, page_nbytes), -ESTALE);
}

// A program that reads on by a stale handle gives the file no memory.
TEST_P(mapped_reads, of_a_version_that_has_ended_fill_no_holes) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory();
  const auto file = client_->open("a");
  read_all(file.handle);
  const unique_fd fd(::open((memory_ / "a").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, file_nbytes), 0);
  for (std::uint64_t at = 0; at + page_nbytes <= file_nbytes; at += page_nbytes) {
    ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(at), page_nbytes), -ESTALE);
  }
  struct stat status {};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  EXPECT_LE(status.st_blocks * 512, 65536) << "more than the first read's";
}

// Drawn programs: reads by several handles, beside what another program does to the files. An answer has the bytes of the version
// that was opened, or is -ESTALE, and that only where something was changed since.
TEST_P(mapped_reads, of_drawn_programs_have_their_versions_bytes) {
  struct open_handle {
    std::uint32_t number;
    std::string name;
    std::vector<std::byte> bytes;
    bool may_be_stale = false;
  };
  std::uint64_t nread = 0, nstale = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const set_meanwhile<bool> eager(service::for_tests::eager_loads, seed % 4 != 0);
    const temp_dir dir(memory_directory());
    std::map<std::string, std::vector<std::byte>> files;
    std::vector<open_handle> open;
    random_source draw(seed);
    const auto write = [&](const std::string& name, std::uint64_t nbytes, std::uint64_t id) {
      dir.add(name, nbytes, id);
      files[name] = content(id, 0, nbytes);
    };
    const auto is_changed = [&](const std::string& name) {
      for (open_handle& one : open) one.may_be_stale |= one.name == name;
      let_file_times_pass();
    };
    for (const char* const name : {"a", "b"}) write(name, 1 + draw.below(300'000), draw.below(1000));
    let_file_times_pass();
    start(std::make_shared<store::posix_store>(dir.path()), {.nrings = 16, .nslots = 8});
    for (int step = 0; step < 400; ++step) {
      const std::string name = draw.below(2) == 0 ? "a" : "b";
      const std::uint64_t what = draw.below(100);
      const unique_fd fd(what >= 90 ? ::open((dir / name).c_str(), O_RDWR | O_CLOEXEC) : -1);
      if (what < 6 && open.size() < 6) {
        const auto got = client_->open(name);
        ASSERT_EQ(got.result, 0);
        open.push_back({got.handle, name, files[name]});
      } else if (what < 9 && !open.empty()) {
        const auto which = open.begin() + static_cast<std::ptrdiff_t>(draw.below(open.size()));
        ASSERT_EQ(client_->close(which->number), 0);
        open.erase(which);
      } else if (what < 90 && !open.empty()) {
        open_handle& by = open[draw.below(open.size())];
        const std::uint64_t at = draw.below(by.bytes.size() + 10), asked = 1 + draw.below(page_nbytes);
        const std::uint64_t n = at >= by.bytes.size() ? 0 : std::min<std::uint64_t>(asked, by.bytes.size() - at);
        std::vector<std::byte> got;
        const std::int64_t result =
            client_->read(by.number, static_cast<std::int64_t>(at), static_cast<std::uint32_t>(asked), &got);
        if (result == -ESTALE) {
          ASSERT_TRUE(by.may_be_stale) << seed << ' ' << step;
          ++nstale;
          continue;
        }
        ASSERT_EQ(result, static_cast<std::int64_t>(n)) << seed << ' ' << step;
        ASSERT_TRUE(std::equal(got.begin(), got.end(), by.bytes.begin() + static_cast<std::ptrdiff_t>(n == 0 ? 0 : at),
                               by.bytes.begin() + static_cast<std::ptrdiff_t>(n == 0 ? 0 : at + n)))
            << seed << ' ' << step;
        ++nread;
      } else if (what == 90) {  // bytes change in place
        std::vector<std::byte>& now = files[name];
        if (now.empty()) continue;
        const std::uint64_t at = draw.below(now.size());
        const auto bytes = content(draw.below(1000), 0, std::min<std::uint64_t>(9000, now.size() - at));
        ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)), static_cast<ssize_t>(bytes.size()));
        std::copy(bytes.begin(), bytes.end(), now.begin() + static_cast<std::ptrdiff_t>(at));
        is_changed(name);
      } else if (what == 91 || what == 92) {  // the file is cut, or grows by a hole
        const std::uint64_t nbytes = draw.below(300'000);
        ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(nbytes)), 0);
        files[name].resize(nbytes);
        is_changed(name);
      } else if (what == 93) {  // a hole
        std::vector<std::byte>& now = files[name];
        if (now.empty()) continue;
        const std::uint64_t at = draw.below(now.size()), n = std::min<std::uint64_t>(100'000, now.size() - at);
        ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), static_cast<off_t>(n)),
                  0);
        std::fill_n(now.begin() + static_cast<std::ptrdiff_t>(at), n, std::byte{});
        is_changed(name);
      } else if (what == 94) {  // another file takes its place
        write("new", 1 + draw.below(300'000), draw.below(1000));
        std::filesystem::rename(dir / "new", dir / name);
        files[name] = std::move(files["new"]);
        is_changed(name);
      }
    }
    client_.reset();
    service_.reset();
  }
  EXPECT_GT(nread, 300u);
  EXPECT_GT(nstale, 20u);
}

std::atomic<int> ntold{0};

// Who sets a handler of SIGBUS later gets no signal of ours.
TEST_P(mapped_reads, load_nothing_while_somebody_else_has_the_signal) {
  memory_.add("a", file_nbytes, 7);
  start_in_memory();
  const auto file = client_->open("a");
  read_all(file.handle);
  struct sigaction others {
  }, ours{};
  others.sa_handler = [](int) { ntold = ntold + 1; };
  ASSERT_EQ(::sigaction(SIGBUS, &others, &ours), 0);
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(file.handle, 0, page_nbytes, &got), page_nbytes);
  EXPECT_EQ(got, content(7, 0, page_nbytes));
  memory_.resize("a", 0);
  EXPECT_EQ(client_->read(file.handle, 0, page_nbytes), -ESTALE);
  ASSERT_EQ(::sigaction(SIGBUS, &ours, nullptr), 0);
  EXPECT_EQ(ntold, 0);
}

INSTANTIATE_TEST_SUITE_P(io, mapped_reads, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

// A block counts by itself, and a part by the block of it that was asked about least.
TEST(readable_mapping, pays_once_each_block_was_read_often) {
  const temp_dir dir(memory_directory());
  constexpr std::uint64_t block = 65536;
  dir.add("a", 4 * block, 1);
  const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
  const auto mapping = store::readable_mapping::of(fd.get(), 4 * block);
  ASSERT_NE(mapping, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(mapping->pays(block + 100, 4096, 3));
  EXPECT_TRUE(mapping->pays(block, block, 3));
  EXPECT_FALSE(mapping->pays(2 * block - 1, 2, 3));
  EXPECT_FALSE(mapping->pays(0, 4 * block, 3));
  EXPECT_FALSE(mapping->pays(0, 4 * block, 3));
  EXPECT_TRUE(mapping->pays(2 * block - 1, 2, 3));
  EXPECT_FALSE(mapping->pays(0, 1, 3));
  EXPECT_TRUE(mapping->pays(0, 1, 3));
}

// Offsets are those in a file that begins within another, whose other blocks are not mapped.
TEST(readable_mapping, of_a_part_of_a_file_counts_its_own_blocks) {
  const temp_dir dir(memory_directory());
  constexpr std::uint64_t block = 65536;
  dir.add("a", 5 * block, 5);
  const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
  const auto mapping = store::readable_mapping::of(fd.get(), 2 * block + 1, 3 * block - 1);
  ASSERT_NE(mapping, nullptr);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(mapping->pays(2 * block, 1, 3), i == 3);
  EXPECT_FALSE(mapping->pays(0, 1, 3));
  std::byte ends[2];
  EXPECT_TRUE(mapping->gather(std::vector<std::uint64_t>{0, 2 * block}, 1, ends));
  EXPECT_EQ(ends[0], content(5, 3 * block - 1, 1)[0]);
  EXPECT_EQ(ends[1], content(5, 5 * block - 1, 1)[0]);
}

// A hole is no part of a file's blocks, wherever the part that is mapped lies.
TEST(readable_mapping, is_none_of_a_part_of_a_file_with_holes) {
  const temp_dir dir(memory_directory());
  const unique_fd fd(::open((dir / "a").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(fd.get(), 8 << 20), 0);
  ASSERT_EQ(::posix_fallocate(fd.get(), 4 << 20, 4 << 20), 0);
  EXPECT_EQ(store::readable_mapping::of(fd.get(), 2 << 20), nullptr);
  ASSERT_EQ(::posix_fallocate(fd.get(), 0, 4 << 20), 0);
  EXPECT_NE(store::readable_mapping::of(fd.get(), 2 << 20), nullptr);
  EXPECT_EQ(store::readable_mapping::of(fd.get(), 9 << 20), nullptr);
}

// A signal that a process has sent ends this one, or does not, as without us.
TEST(readable_mapping, passes_on_a_signal_that_was_sent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const temp_dir dir(memory_directory());
  dir.add("a", 8192, 1);
  const auto map_and_send = [&](sighandler_t before) {
    ::signal(SIGBUS, before);
    const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
    const auto mapping = store::readable_mapping::of(fd.get(), 8192);
    for (int i = 0; i < 2; ++i) ::kill(::getpid(), SIGBUS);
    ::_exit(mapping != nullptr && store::readable_mapping::is_guarded() ? 42 : 1);
  };
  EXPECT_EXIT(map_and_send(SIG_DFL), testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(map_and_send(SIG_IGN), testing::ExitedWithCode(42), "");
}

// --- The workers' descriptors ---------------------------------------------------------------------------------------------------

// In a thread of its own, as each keeps the limit for a while.
TEST(own_descriptors, take_an_eighth_of_the_limit_and_all_three_quarters) {
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const temp_dir dir;
  dir.add("a", 10, 1);
  const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
  std::thread([&] {
    const rlimit few{256, usual.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    int nfurther = 0, nfiles = 0;
    for (; store::keep_descriptor(store::kept_for::further_reader); ++nfurther) {
    }
    EXPECT_EQ(nfurther, 32);
    service::own_descriptors none(1);
    none.note(0, 1000);
    EXPECT_EQ(none.of(0, fd.get()), fd.get());
    for (; store::keep_descriptor(store::kept_for::file); ++nfiles) {
    }
    EXPECT_EQ(nfiles, 160);
    for (; nfurther != 0; --nfurther) store::give_descriptor_back(store::kept_for::further_reader);
    EXPECT_TRUE(store::keep_descriptor(store::kept_for::file));
    for (++nfiles; nfiles != 0; --nfiles) store::give_descriptor_back();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  }).join();
}

TEST(own_descriptors, are_opened_where_many_calls_were_made) {
  const temp_dir dir;
  dir.add("a", 10, 1);
  const unique_fd fd(::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC));
  service::own_descriptors all(2);
  all.note(0, 63);
  EXPECT_EQ(all.of(0, fd.get()), fd.get());
  all.note(0, 1);
  const int own = all.of(0, fd.get());
  EXPECT_NE(own, fd.get());
  EXPECT_EQ(all.of(0, fd.get()), own);
  EXPECT_EQ(all.of(1, fd.get()), fd.get());
  struct stat ours {
  }, theirs{};
  ASSERT_EQ(::fstat(own, &ours), 0);
  ASSERT_EQ(::fstat(fd.get(), &theirs), 0);
  EXPECT_EQ(ours.st_ino, theirs.st_ino);
  EXPECT_NE(::fcntl(own, F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace gpufs::test
