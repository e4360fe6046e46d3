// SPDX-License-Identifier: Apache-2.0
// A mount's memory on the device: little at first, more as kernels open more files, and what happens where there is none.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <thread>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Gives no memory, or late, when told to.
class scarce_platform final : public measured_platform {
 public:
  scarce_platform() : measured_platform(simt::this_platform()) {}

  void* allocate_device(std::size_t nbytes) override {
    allocation.pass();
    if (refuse) throw std::bad_alloc();
    return measured_platform::allocate_device(nbytes);
  }
  gate allocation;
  std::atomic<bool> refuse{false};
};

// Each thread opens files, or closes what it has.
struct open_files {
  mount_ref fs;
  bool closes;
  std::uint32_t begin, end;
  std::int32_t* numbers;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t nthreads = simt::grid_size() * simt::block_size();
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    for (std::uint32_t n = begin + me; n < end; n += nthreads) {
      if (closes) {
        if (numbers[n] >= 0) numbers[n] = close(this_thread(), file(fs, file_number{numbers[n]}));
        continue;
      }
      char path[32];
      format_path(path, 'f', n);
      const file f = open(this_thread(), fs, path);
      numbers[n] = f.error() != 0 ? f.error() : static_cast<std::int32_t>(f.number());
    }
  }
};

class file_memory : public ::testing::Test {
 protected:
  static constexpr std::uint32_t nfiles = 3000;

  file_memory() : numbers_(nfiles) {
    for (std::uint32_t n = 0; n < nfiles; ++n) {
      char path[32];
      format_path(path, 'f', n);
      store_->put(path, content(n, 0, 16));
    }
    options_.page_nbytes = 512;
    options_.cache_nbytes = 64 * 512;
    options_.custom_store = store_;
  }

  std::vector<std::int32_t> run(const host_mount& m, bool closes, std::uint32_t begin, std::uint32_t end, unsigned nthreads = 256) {
    simt::launch({.grid = nthreads / 64, .block = 64},
                 open_files{mount_ref(mount_inside(m).resident()), closes, begin, end, numbers_.get()});
    return numbers_.read();
  }
  static std::map<std::int32_t, int> errors_of(const std::vector<std::int32_t>& numbers, std::uint32_t begin, std::uint32_t end) {
    std::map<std::int32_t, int> errors;
    for (std::uint32_t n = begin; n < end; ++n) {
      if (numbers[n] < 0) ++errors[numbers[n]];
    }
    return errors;
  }

  scarce_platform machine_;
  std::shared_ptr<store::mem_store> store_ = std::make_shared<store::mem_store>(simt::this_platform(), source_kind::staged);
  mount_options options_;
  device_buffer<std::int32_t> numbers_;
};

// mount_nbytes, mount_nbytes_writable: of a default mount of 1 GiB with 4 KiB pages, besides its cache.
TEST_F(file_memory, of_a_mount_is_little) {
  constexpr std::size_t cache_nbytes = std::size_t{1} << 30;
  for (const bool writable : {false, true}) {
    mount_options options;
    options.cache_nbytes = cache_nbytes;
    options.writable = writable;
    const temp_dir dir;
    const host_mount m(machine_, dir.path(), options);
    const double besides = static_cast<double>(machine_.in_use() - cache_nbytes);
    RecordProperty(writable ? "mount_nbytes_writable" : "mount_nbytes", std::to_string(besides));
    EXPECT_LE(besides, (8 << 20) + (writable ? 0.145 : 0.015) * cache_nbytes) << "writable: " << writable;
  }
  EXPECT_EQ(machine_.in_use(), 0u);
}

// Threads that all find no slot at once: one has the host make more; as many files open as may, and each slot is used once.
TEST_F(file_memory, grows_with_what_is_open) {
  for (const std::uint32_t most : {1u, 63u, 64u, 65u, 100u, 1023u, 1024u, 1025u, 2500u}) {
    options_.max_open_files = most;
    const host_mount m(machine_, "", options_);
    const std::size_t before = machine_.in_use();
    for (int round = 0; round < 2; ++round) {
      auto numbers = run(m, false, 0, nfiles);
      EXPECT_EQ(errors_of(numbers, 0, nfiles), (std::map<std::int32_t, int>{{-ENFILE, static_cast<int>(nfiles - most)}})) << most;
      EXPECT_EQ(m.open_files().size(), most);
      std::erase_if(numbers, [](std::int32_t number) { return number < 0; });
      std::sort(numbers.begin(), numbers.end());
      EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end()) << "one number for two files";
      EXPECT_EQ(machine_.in_use() - before, (blocks_for(most) - 1) * sizeof(file_block)) << most;
      run(m, true, 0, nfiles);
      EXPECT_TRUE(m.open_files().empty());
    }
    EXPECT_EQ(m.counters().opens, 2 * most + 0u);
    EXPECT_EQ(m.counters().host_errors, 0u);
  }
}

// So many from the beginning, and the others as before.
TEST_F(file_memory, may_be_reserved) {
  for (const auto& [reserved, blocks] : {std::pair{0u, 1u}, {1024u, 1u}, {1025u, 2u}, {2048u, 2u}, {2500u, 3u}, {~0u, 3u}}) {
    options_.max_open_files = 2500;
    options_.reserved_open_files = reserved;
    const host_mount m(machine_, "", options_);
    const std::size_t before = machine_.in_use();
    EXPECT_EQ(m.open_files().size(), 0u);
    auto numbers = run(m, false, 0, nfiles);
    EXPECT_EQ(errors_of(numbers, 0, nfiles), (std::map<std::int32_t, int>{{-ENFILE, 500}})) << reserved;
    std::erase_if(numbers, [](std::int32_t number) { return number < 0; });
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end()) << "one number for two files";
    EXPECT_EQ(machine_.in_use() - before, (3 - blocks) * sizeof(file_block)) << reserved;
    run(m, true, 0, nfiles);
    EXPECT_TRUE(m.open_files().empty());
  }
}

// What is open stays so, and more opens once there is memory.
TEST_F(file_memory, that_the_device_does_not_have_is_an_error) {
  const host_mount m(machine_, "", options_);
  EXPECT_TRUE(errors_of(run(m, false, 0, 1000), 0, 1000).empty());
  machine_.refuse = true;
  EXPECT_EQ(errors_of(run(m, false, 1000, 1100, 64), 1000, 1100), (std::map<std::int32_t, int>{{-ENOMEM, 76}}));
  ASSERT_FALSE(m.log().empty());
  EXPECT_NE(m.log().back().find("extend"), std::string::npos) << m.log().back();
  run(m, true, 1000, 1100, 64);
  EXPECT_EQ(m.open_files().size(), 1000u);
  machine_.refuse = false;
  EXPECT_TRUE(errors_of(run(m, false, 1000, 2500), 1000, 2500).empty());
  EXPECT_EQ(m.open_files().size(), 2500u);
  run(m, true, 0, 2500);
}

// While the driver has who makes memory wait, as it may until a kernel ends, files that are open are read.
struct open_beside_reading {
  mount_ref fs;
  file_number read_from;
  std::uint32_t* has_read;  // pinned
  std::int64_t* results;    // the open's, the read's

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    if (simt::block_rank() == 0) {
      results[0] = open(this_thread(), fs, "f2000").error();
    } else {
      std::byte bytes[8];
      results[1] = pread(this_thread(), file(fs, read_from), bytes, 8, 8);
      simt::atomic_ref<std::uint32_t, simt::scope::system>(*has_read).store(1, std::memory_order_release);  // meets the host's
    }
  }
};

TEST_F(file_memory, that_comes_late_holds_up_nobody_else) {
  expect_leftovers_but_pins("nothing is closed");
  options_.nworkers = 1;
  const host_mount m(machine_, "", options_);
  const auto numbers = run(m, false, 0, 1024);
  ASSERT_TRUE(errors_of(numbers, 0, 1024).empty());
  pinned_buffer<std::uint32_t> has_read(1);
  const device_buffer<std::int64_t> results(2);
  machine_.allocation.close();
  std::thread host([&] {
    EXPECT_TRUE(wait_until([&] {
      return machine_.allocation.waiting() == 1 &&
             simt::atomic_ref<std::uint32_t, simt::scope::system>(has_read[0]).load(std::memory_order_acquire) == 1;
    }));
    EXPECT_EQ(m.open_files().size(), 1024u);  // who looks at the tables does not wait either
    machine_.allocation.open();
  });
  simt::launch({.grid = 2, .block = 32},
               open_beside_reading{mount_ref(mount_inside(m).resident()), file_number{numbers[0]}, has_read.get(), results.get()});
  host.join();
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{0, 8}));
  EXPECT_EQ(m.open_files().size(), 1025u);
}

// A host that answers too late has made a block that the next who asks gets.
TEST_F(file_memory, that_comes_late_is_not_lost) {
  const host_mount m(machine_, "", options_);
  EXPECT_TRUE(errors_of(run(m, false, 0, 1024), 0, 1024).empty());
  const std::size_t npieces = machine_.npieces();
  machine_.allocation.close();
  EXPECT_EQ(errors_of(run(m, false, 1024, 1032, 64), 1024, 1032), (std::map<std::int32_t, int>{{-ENOMEM, 8}}));
  EXPECT_EQ(m.counters().io_timeouts, 1u);
  machine_.allocation.open();
  EXPECT_TRUE(wait_until([&] {
    const auto log = m.log();
    return machine_.npieces() == npieces + 1 && std::any_of(log.begin(), log.end(), [](const std::string& line) {
             return line.find("reserved_open_files") != std::string::npos;
           });
  }));
  EXPECT_TRUE(errors_of(run(m, false, 1024, 2000), 1024, 2000).empty());
  EXPECT_EQ(machine_.npieces(), npieces + 1);
  run(m, true, 0, 2000);
}

// What the host tells the device of a file in a later block: which windows it reads itself, and that the version has ended.
TEST_F(file_memory, of_later_blocks_hears_of_windows_and_ended_versions) {
  if (under_memcheck()) GTEST_SKIP() << "memcheck takes memory that is registered while a kernel runs for out of bounds";
  constexpr std::uint64_t page = 4096, window = 64 << 10, nbytes = 2 * window;
  const temp_dir dir{memory_directory()};
  for (std::uint32_t n = 0; n < 1024; ++n) dir.add(numbered("f", n), 16, n);
  dir.add("large", nbytes, 1);
  let_file_times_pass();
  options_.page_nbytes = page;
  options_.cache_nbytes = 8 * page;
  options_.custom_store = std::make_shared<store::auto_store>(simt::this_platform(), dir.path(), 0,
                                                              store::auto_options{.small_file_nbytes = 1, .window_nbytes = window});
  const host_mount m(machine_, dir.path(), options_);
  EXPECT_TRUE(errors_of(run(m, false, 0, 1024), 0, 1024).empty());
  players group(mount_ref(mount_inside(m).resident()), {});
  const auto read_all = [&] {
    script s;
    for (std::uint64_t at = 0; at < nbytes; at += page) s.pread(0, page, static_cast<std::int64_t>(at));
    return group.run(s);
  };
  script opening, closing;
  opening.open(0, "large");
  ASSERT_GE(group.run(opening)[0].value, 0);
  EXPECT_TRUE(wait_until([&] {
    const std::uint64_t before = m.counters().host_reads;
    for (const auto& result : read_all()) EXPECT_EQ(result.value, page);
    return m.counters().host_reads == before;
  })) << "the device was not told of windows";
  dir.overwrite("large", 0, nbytes, 2);
  EXPECT_TRUE(wait_until([&] {
    std::uint64_t nstale = 0;
    for (const auto& result : read_all()) nstale += result.value == -ESTALE;
    return nstale >= nbytes / page - 8;  // the cache has 8 pages of the version
  })) << "the device was not told that the version has ended";
  const auto log = m.log();
  EXPECT_TRUE(!log.empty() && log.back().find("'large'") != std::string::npos);
  closing.close(0);
  EXPECT_EQ(group.run(closing)[0].value, 0);
  run(m, true, 0, 1024);
}

// What kernels wrote into files of later blocks, and left, comes to the files; and these blocks' counts are counted.
struct write_number {
  mount_ref fs;
  std::uint32_t n;
  GPUFS_DEVICE void operator()() const {
    for (std::uint32_t i = simt::block_rank() * simt::block_size() + simt::thread_rank(); i < n;
         i += simt::grid_size() * simt::block_size()) {
      char path[32];
      format_path(path, 'f', i);
      const file f = open(this_thread(), fs, path, O_RDWR | O_CREAT);
      pwrite(this_thread(), f, &i, sizeof i, 4);
    }
  }
};

TEST_F(file_memory, of_later_blocks_is_written_back) {
  expect_leftovers_but_pins("nothing is closed");
  const temp_dir dir;
  mount_options options;
  options.writable = true;
  options.cache_nbytes = 4096 * 512;
  options.dirty_nbytes = 2048 * 512;
  options.page_nbytes = 512;
  {
    mount m(dir.path(), options);
    constexpr std::uint32_t n = 1300;
    simt::launch({.grid = 4, .block = 64}, write_number{m.ref(), n});
    EXPECT_EQ(m.counters().bytes_written, n * 4);
    EXPECT_EQ(m.counters().unwritten_pages, n);
    EXPECT_EQ(m.sync(), 0u);
    EXPECT_EQ(m.counters().unwritten_pages, 0u);
    for (std::uint32_t i = 0; i < n; i += 7) {
      char path[32];
      format_path(path, 'f', i);
      std::vector<std::byte> wanted(8);
      std::memcpy(wanted.data() + 4, &i, 4);
      EXPECT_EQ(dir.read(path), wanted) << path;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
