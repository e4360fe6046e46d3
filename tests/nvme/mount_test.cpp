// SPDX-License-Identifier: Apache-2.0
// A controller as a file system: kernels read its namespaces as files, and what goes wrong with it they are told.
#include <cerrno>
#include <fstream>
#include <thread>

#include "file/script.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/store/nvme_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using nvme::soft_controller;
using nvme::soft_fault;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t seed = 17;
constexpr std::uint32_t page = 4096;

// A mount of a controller in software whose namespaces have the bytes of `seed`, `seed` + 1 and so on.
struct device {
  explicit device(const nvme::soft_options& soft_as = {.nblocks = 640}, nvme::controller_options driver = {},
                  std::chrono::nanoseconds io_timeout = seconds(60), std::uint32_t page_nbytes = page, std::uint64_t nframes = 32)
      : soft(std::make_shared<soft_controller>(simt::this_platform(), soft_as)) {
    for (std::uint32_t nsid = 1; nsid <= soft_as.nnamespaces; ++nsid) {
      nbytes = soft->bytes(nsid).size();
      if (soft_as.image.empty()) soft->write_image(0, content(seed + nsid - 1, 0, nbytes), nsid);
    }
    files = std::make_shared<store::nvme_store>(simt::this_platform(), soft, driver);
    mount_options o;
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = nframes * page_nbytes;
    o.custom_store = files;
    o.writable = driver.writable;
    o.max_open_files = 16;
    o.io_timeout = io_timeout;
    fs = std::make_unique<mount>("", o);
  }
  ~device() {
    if (fs) {  // else the test has failed to mount it again
      EXPECT_EQ(fs->counters().pins, 0u);
    }
    fs.reset();
    files.reset();
    EXPECT_EQ(soft->violations(), std::vector<std::string>{});
    EXPECT_EQ(soft->done().nmapped, 0u);
  }
  // What the first of the calls of one warp gives that opens the file and does `what` with it.
  template <class What>
  std::vector<outcome> with(int flags, What what, const char* path = "n1") const {
    players warp(fs->ref(), {});
    script s;
    s.open(0, path, flags);
    what(s);
    s.close(0);
    return warp.run(s);
  }
  std::int64_t read(std::uint64_t nbytes_to_read, std::int64_t offset) const {
    std::size_t read = 0;
    return with(O_RDONLY, [&](script& s) { read = s.pread(0, nbytes_to_read, offset); })[read].value;
  }
  bool log_has(const std::string& words) const {
    for (const std::string& line : fs->log()) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }

  std::shared_ptr<soft_controller> soft;
  std::shared_ptr<store::nvme_store> files;
  std::unique_ptr<mount> fs;
  std::uint64_t nbytes = 0;
};

TEST(nvme_mount, kernels_bring_pages_in_and_no_thread_of_the_host) {
  const device on({.nblocks = 640, .nnamespaces = 2});
  players groups(on.fs->ref(), {.grid = 4, .block = 64, .all = group_kind::warp});
  std::vector<script> scripts;
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    script s;
    s.open(0, g % 2 == 0 ? "n1" : "/n2", O_RDONLY);
    s.pread(0, on.nbytes, 0);
    s.close(0);
    scripts.push_back(s);
  }
  const auto got = groups.run(scripts);
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    ASSERT_EQ(got[g][1].value, static_cast<std::int64_t>(on.nbytes)) << g;
    EXPECT_EQ(wrong_bytes(got[g][1], on.nbytes, seed + g % 2, 0), 0u) << g;
  }
  EXPECT_EQ(on.fs->counters().host_reads, 0u);
  EXPECT_GE(on.soft->done().commands, 2 * on.nbytes / page);
}

TEST(nvme_mount, pages_larger_than_a_command_come_by_several) {
  for (const std::uint32_t page_nbytes : {512u, 65536u}) {
    const device on({.nblocks = 640, .mdts = 1}, {.buffer_nbytes = 65536}, seconds(60), page_nbytes, 4);
    for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
      players groups(on.fs->ref(), {.grid = 1, .block = 64, .all = kind});
      script s;
      s.open(0, "n1", O_RDONLY);
      const auto read = s.pread(0, 200'000, 100'001);
      s.close(0);
      for (const auto& got : groups.run(std::vector<script>(groups.size(), s))) {
        ASSERT_EQ(got[read].value, 200'000);
        EXPECT_EQ(wrong_bytes(got[read], 200'000, seed, 100'001), 0u);
      }
    }
  }
}

// Reads of a pointer, which lanes that are no tile make together, or a lane alone where no frame is free.
struct add_words {
  mount_ref fs;
  std::int64_t nwords;
  std::uint64_t* sums;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    const file f = open(this_warp(), fs, "n1");
    {
      const auto p = map<const std::uint64_t>(this_warp(), f);
      for (std::int64_t i = 0; i < 8; ++i) {
        if (me % 3 != 1) sums[me] += p[(me * 397 + i * 1031) % nwords];
      }
    }
    close(this_warp(), f);
  }
};

TEST(nvme_mount, pointers_read_what_it_has) {
  for (const std::uint64_t nframes : {8u, 128u}) {
    const device on({.nblocks = 640}, {}, seconds(60), page, nframes);
    const std::int64_t nwords = static_cast<std::int64_t>(on.nbytes / 8);
    constexpr std::uint32_t nlanes = 128;
    const simt::device_array<std::uint64_t> sums(nlanes);
    simt::launch({.grid = 2, .block = nlanes / 2}, add_words{on.fs->ref(), nwords, sums.get()});
    const std::vector<std::byte> bytes = content(seed, 0, on.nbytes);
    std::vector<std::uint64_t> wanted(nlanes);
    for (std::uint32_t me = 0; me < nlanes; ++me) {
      for (std::int64_t i = 0; me % 3 != 1 && i < 8; ++i) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + (me * 397 + i * 1031) % nwords * 8, 8);
        wanted[me] += word;
      }
    }
    EXPECT_EQ(sums.read(), wanted);
    EXPECT_EQ(on.fs->counters().fault_errors, 0u);
    EXPECT_EQ(on.fs->counters().host_reads, 0u);
  }
}

TEST(nvme_mount, rows_of_a_batch_are_gathered) {
  const device on;
  const host_file opened(*on.fs, "n1");
  for (const std::uint64_t row_nbytes : {std::uint64_t{100}, std::uint64_t{page}, std::uint64_t{6000}}) {
    const row_layout layout{.row_nbytes = row_nbytes, .nrows = on.nbytes / row_nbytes};
    std::vector<std::int64_t> numbers;
    for (std::uint64_t i = 0; i < 60; ++i) numbers.push_back(static_cast<std::int64_t>(i * 37 % layout.nrows));
    const device_buffer<std::int64_t> wanted{std::span<const std::int64_t>(numbers)};
    const device_buffer<std::byte> rows(numbers.size() * row_nbytes);
    const simt::stream turns;
    row_batch batch(*on.fs, numbers.size(), 4);
    batch.gather(opened.ref(), layout, wanted.get(), numbers.size(), rows.get(), turns);
    turns.wait();
    EXPECT_EQ(batch.failure().error, 0);
    const std::vector<std::byte> got = rows.read();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = content(seed, static_cast<std::uint64_t>(numbers[i]) * row_nbytes, row_nbytes);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), got.begin() + static_cast<std::ptrdiff_t>(i * row_nbytes))) << i;
    }
  }
}

TEST(nvme_mount, a_status_reaches_who_reads_there_and_nobody_else) {
  const device on;
  const struct {
    std::uint32_t status;
    std::int64_t errno_;
  } cases[] = {{0x281 | 0x4000, -EIO}, {0x286, -EACCES}, {0x287, -ENODATA}, {0x080, -ENXIO}};
  std::int64_t at = 10 * page;
  for (const auto& each : cases) {
    const auto lba = static_cast<std::uint64_t>(at) / 512;
    on.soft->add({.opcode = 2, .first_lba = lba, .last_lba = lba + 7, .status = each.status});
    EXPECT_EQ(on.read(page, at - page), page);
    EXPECT_EQ(on.read(100, at + 5), each.errno_);
    EXPECT_EQ(on.read(100, at + 5), 100) << "the fault has passed, and the page is no failed one for good";
    at += 2 * page;
  }
}

TEST(nvme_mount, a_command_that_does_not_end_is_an_error_in_time_and_the_next_read_has_its_bytes) {
  const device on({.nblocks = 640}, {.nqueues = 1, .depth = 8}, milliseconds(300));
  std::uint64_t nfaults = 0;
  for (const auto what : {soft_fault::what::lose, soft_fault::what::stick}) {
    const std::int64_t at = what == soft_fault::what::lose ? 3 * page : 5 * page;
    on.soft->add({.does = what, .opcode = 2});
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(on.read(page, at), -ETIMEDOUT);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
    EXPECT_TRUE(wait_until([&] { return on.read(page, at) == page; }));
    ++nfaults;
    EXPECT_TRUE(wait_until([&] { return on.files->recovered().deletions + on.files->recovered().resets >= nfaults; }));
  }
  std::size_t all = 0;
  const auto got = on.with(O_RDONLY, [&](script& s) { all = s.pread(0, on.nbytes, 0); });
  EXPECT_EQ(wrong_bytes(got[all], on.nbytes, seed, 0), 0u);
}

TEST(nvme_mount, a_namespace_that_shrinks_is_an_error_beyond_its_end_and_opens_no_more) {
  const device on;
  players warp(on.fs->ref(), {});
  script opens;
  opens.open(0, "n1", O_RDONLY);
  ASSERT_GE(warp.run(opens)[0].value, 0);
  on.soft->resize(320);
  std::this_thread::sleep_for(milliseconds(11));  // what an open saw is believed for 10
  script reads;
  const auto inside = reads.pread(0, page, 39 * page), outside = reads.pread(0, page, 40 * page);
  reads.close(0);
  const auto anew = reads.open(1, "n1", O_RDONLY);
  const auto got = warp.run(reads);
  EXPECT_EQ(got[inside].value, page);
  EXPECT_EQ(got[outside].value, -ENXIO);
  EXPECT_EQ(got[anew].value, -ESTALE);
  EXPECT_TRUE(on.log_has("320 blocks of 512 bytes now, and had 640"));
}

TEST(nvme_mount, what_cannot_be_opened_says_why) {
  const device on({.nblocks = 64, .metadata = true});
  EXPECT_EQ(on.with(O_RDONLY, [](script&) {})[0].value, -EOPNOTSUPP);
  EXPECT_TRUE(on.log_has("has metadata or protection"));
  EXPECT_EQ(on.with(
                  O_RDONLY, [](script&) {}, "n2")[0]
                .value,
            -ENOENT);
  EXPECT_TRUE(on.log_has("no such namespace"));
  EXPECT_EQ(on.with(
                  O_RDONLY, [](script&) {}, "n01")[0]
                .value,
            -ENOENT);
  EXPECT_EQ(on.with(O_RDWR, [](script&) {})[0].value, -EROFS);
}

TEST(nvme_mount, a_controller_that_is_unplugged_is_an_error_at_once) {
  const device on;
  EXPECT_EQ(on.read(page, 0), page);
  players warp(on.fs->ref(), {});
  script opens;
  opens.open(0, "n1", O_RDONLY);
  warp.run(opens);
  on.soft->unplug();
  script reads;
  const auto read = reads.pread(0, page, 50 * page), cached = reads.pread(0, page, 0);
  reads.close(0);
  const auto anew = reads.open(1, "n1", O_RDONLY);
  const auto got = warp.run(reads);
  EXPECT_EQ(got[read].value, -ENODEV);
  EXPECT_EQ(got[cached].value, page) << "what is in the cache stays readable";
  EXPECT_EQ(got[anew].value, -ENODEV);
  EXPECT_TRUE(on.files->recovered().lost);
}

TEST(nvme_mount, reads_go_on_while_the_controller_is_reset_again_and_again) {
  const device on({.nblocks = 640, .latency_ns = 100'000}, {.nqueues = 2, .depth = 8}, seconds(60), page, 16);
  std::atomic<bool> ended{false};
  std::thread breaker([&] {
    for (std::uint64_t n = 1; n <= 6 && !ended; ++n) {
      std::this_thread::sleep_for(milliseconds(3));
      on.soft->fail();
      wait_until([&] { return ended || on.files->recovered().resets >= n; });
    }
  });
  players groups(on.fs->ref(), {.grid = 2, .block = 128, .all = group_kind::warp});
  script s;
  s.open(0, "n1", O_RDONLY);
  const auto read = s.pread(0, on.nbytes, 0);
  s.close(0);
  for (const auto& got : groups.run(std::vector<script>(groups.size(), s))) {
    EXPECT_EQ(got[read].value, static_cast<std::int64_t>(on.nbytes));
    EXPECT_EQ(wrong_bytes(got[read], on.nbytes, seed, 0), 0u);
  }
  ended = true;
  breaker.join();
  EXPECT_FALSE(on.files->recovered().lost);
}

TEST(nvme_mount, a_controller_that_fails_while_it_is_reset_is_reset_again) {
  const device on;
  on.soft->add({.opcode = 0x105, .status = 0x006});  // it refuses a queue
  on.soft->fail();
  EXPECT_EQ(on.read(page, 0), page);
  EXPECT_EQ(on.files->recovered().resets, 1u);
  EXPECT_FALSE(on.files->recovered().lost);
}

// Also parts of blocks, whose other bytes stay.
TEST(nvme_mount, what_is_written_and_synced_outlives_the_power) {
  for (const std::uint32_t shift : {9u, 12u}) {
    const device on({.nblocks = 640u >> (shift - 9), .block_shift = shift}, {.writable = true});
    std::vector<std::byte> wanted = content(seed, 0, on.nbytes);
    players warp(on.fs->ref(), {});
    script s;
    s.open(0, "n1", O_RDWR);
    random_source draw(5);
    for (std::uint32_t i = 0; i < 20; ++i) {
      const std::uint64_t n = draw.between(1, 9000), at = draw.between(0, on.nbytes - n);
      const auto bytes = content(100 + i, at, n);
      s.pwrite(0, bytes, static_cast<std::int64_t>(at));
      std::copy(bytes.begin(), bytes.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const auto synced = s.fsync(0), read = s.pread(0, on.nbytes, 0);
    const auto got = warp.run(s);
    EXPECT_EQ(got[synced].value, 0);
    EXPECT_TRUE(got[read].bytes == wanted);
    EXPECT_GE(on.soft->done().flushes, 1u);
    on.soft->lose_power();
    EXPECT_TRUE(on.soft->bytes() == wanted);
    script end;
    end.close(0);
    EXPECT_EQ(warp.run(end)[0].value, 0);
    // Kernels read it by commands of their own again.
    std::size_t again = 0;
    EXPECT_TRUE(on.with(O_RDONLY, [&](script& r) { again = r.pread(0, on.nbytes, 0); })[again].bytes == wanted);
  }
}

// Its size stays, and what was written before a call that wants another one is not lost by it.
TEST(nvme_mount, what_wants_another_size_is_refused_before_anything_is_done) {
  const device on({.nblocks = 64}, {.writable = true});
  std::vector<std::byte> wanted = content(seed, 0, on.nbytes);
  const auto end = static_cast<std::int64_t>(on.nbytes);
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "n1", O_RDWR);
  const auto bytes = content(7, 0, 3000), tail = content(8, 0, 100);
  s.pwrite(0, bytes, 5000);
  std::copy(bytes.begin(), bytes.end(), wanted.begin() + 5000);
  const auto over = s.pwrite(0, tail, end - 50), behind = s.pwrite(0, tail, end), appended = s.append(0, tail);
  const auto cut = s.ftruncate(0, 0), grown = s.ftruncate(0, end + 1), same = s.ftruncate(0, end);
  const auto truncated = s.open(1, "n1", O_RDWR | O_TRUNC);
  const auto size = s.fstat(0), last = s.pwrite(0, tail, end - 100), read = s.pread(0, on.nbytes, 0);
  std::copy(tail.begin(), tail.end(), wanted.end() - 100);
  const auto synced = s.fsync(0), closed = s.close(0);
  const auto anew = s.open(0, "n1", O_RDWR | O_TRUNC);
  const auto got = warp.run(s);
  for (const auto refused : {over, behind, appended}) EXPECT_EQ(got[refused].value, -ENOSPC);
  for (const auto refused : {cut, grown, truncated, anew}) EXPECT_EQ(got[refused].value, -EINVAL);
  EXPECT_EQ(got[same].value, 0);
  EXPECT_EQ(got[size].value, end);
  EXPECT_EQ(got[last].value, 100);
  EXPECT_TRUE(got[read].bytes == wanted);
  EXPECT_EQ(got[synced].value, 0);
  EXPECT_EQ(got[closed].value, 0);
  EXPECT_TRUE(on.soft->bytes() == wanted);
}

TEST(nvme_mount, who_reads_a_version_that_is_written_is_told) {
  const device on({.nblocks = 640}, {.writable = true});
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "n1", O_RDONLY);
  const auto before = s.pread(0, page, 0);
  s.open(1, "n1", O_RDWR);
  s.pwrite(1, content(3, 0, 10), 70 * page);
  s.fsync(1);
  const auto cached = s.pread(0, page, 0), missed = s.pread(0, page, 70 * page);
  s.close(1);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[before].value, page);
  EXPECT_EQ(got[cached].value, page);
  EXPECT_EQ(got[missed].value, -ESTALE);
}

TEST(nvme_mount, of_a_store_that_is_writable_is_the_only_one_until_it_ends) {
  device on({.nblocks = 640}, {.writable = true});
  mount_options o = on.fs->options();
  for (const bool writable : {true, false}) {
    o.writable = writable;
    try {
      const mount second("", o);
      ADD_FAILURE() << "a second mount";
    } catch (const error& refused) {
      EXPECT_EQ(refused.number(), EBUSY);
      EXPECT_NE(std::string(refused.what()).find("end the first mount, or make the store without"), std::string::npos)
          << refused.what();
    }
  }
  EXPECT_EQ(on.read(page, 0), page);
  o.writable = true;
  for (int round = 0; round < 2; ++round) {
    on.fs.reset();
    on.fs = std::make_unique<mount>("", o);
    const auto got = on.with(O_RDWR, [](script& s) { s.pwrite(0, content(3, 0, 10), 0); });
    EXPECT_EQ(got[1].value, 10);
  }
}

TEST(nvme_mount, of_a_store_that_is_not_writable_reads_beside_others) {
  device on({.nblocks = 640});
  mount_options o = on.fs->options();
  o.page_nbytes = 512;
  o.cache_nbytes = 64 * o.page_nbytes;
  auto second = std::make_unique<mount>("", o);
  const auto read_all = [&](const mount& fs) {
    players groups(fs.ref(), {.grid = 2, .block = 64, .all = group_kind::warp});
    script s;
    s.open(0, "n1", O_RDONLY);
    for (int pass = 0; pass < 3; ++pass) s.pread(0, on.nbytes, 0);
    s.close(0);
    for (const auto& got : groups.run(std::vector<script>(groups.size(), s))) {
      for (std::size_t pass = 1; pass <= 3; ++pass) {
        EXPECT_EQ(got[pass].value, static_cast<std::int64_t>(on.nbytes));
        EXPECT_EQ(wrong_bytes(got[pass], on.nbytes, seed, 0), 0u);
      }
    }
  };
  std::thread beside([&] { read_all(*second); });
  read_all(*on.fs);
  beside.join();
  on.soft->fail();  // one driver resets it for both
  read_all(*second);
  second.reset();
  read_all(*on.fs);
}

TEST(nvme_mount, a_controller_that_grants_one_queue_is_read_and_not_written) {
  const device on({.nblocks = 64, .nqueues = 1}, {.writable = true});
  EXPECT_EQ(on.read(page, 0), page);
  EXPECT_EQ(on.with(O_RDWR, [](script&) {})[0].value, -EOPNOTSUPP);
  EXPECT_TRUE(on.log_has("grants one pair of queues"));
}

TEST(nvme_mount, queues_of_few_entries_are_enough) {
  for (const std::uint32_t most : {2u, 3u, 31u}) {
    const device on({.nblocks = 64, .most_entries = most}, {.writable = true});
    const auto bytes = content(9, 0, 5000);
    std::size_t written = 0, synced = 0, read = 0;
    const auto got = on.with(O_RDWR, [&](script& s) {
      written = s.pwrite(0, bytes, 100);
      synced = s.fsync(0);
      read = s.pread(0, bytes.size(), 100);
    });
    EXPECT_EQ(got[written].value, 5000) << most;
    EXPECT_EQ(got[synced].value, 0) << most;
    EXPECT_TRUE(got[read].bytes == bytes) << most;
    EXPECT_EQ(on.read(page, 0), page) << most;
  }
}

TEST(nvme_mount, an_image_in_a_file_is_read_and_written) {
  const temp_dir dir(std::filesystem::temp_directory_path());
  dir.add("image", 640 * 512, seed);
  dir.add("odd", 1000, seed);
  const std::string path = dir / "image";
  {
    const device on({.image = path}, {.writable = true});
    ASSERT_EQ(on.nbytes, 640u * 512);
    std::size_t read = 0, synced = 0;
    const auto got = on.with(O_RDWR, [&](script& s) {
      read = s.pread(0, on.nbytes, 0);
      s.pwrite(0, content(4, 0, 1000), 5001);
      synced = s.fsync(0);
    });
    EXPECT_EQ(wrong_bytes(got[read], on.nbytes, seed, 0), 0u);
    EXPECT_EQ(got[synced].value, 0);
  }
  auto wanted = content(seed, 0, 640 * 512);
  const auto written = content(4, 0, 1000);
  std::copy(written.begin(), written.end(), wanted.begin() + 5001);
  EXPECT_EQ(dir.read("image"), wanted);
  EXPECT_THROW(soft_controller(simt::this_platform(), {.image = dir / "none"}), std::system_error);
  EXPECT_THROW(soft_controller(simt::this_platform(), {.image = dir / "odd"}), std::system_error);
}

TEST(nvme_mount, its_directory_has_the_namespaces) {
  const device on({.nblocks = 64, .nnamespaces = 3});
  std::vector<std::byte> entries(4096);
  std::int64_t position = 0;
  const std::int64_t n = on.files->read_directory("/", &position, entries);
  std::string names;
  for (std::int64_t at = 0; at < n;) {
    directory_entry entry;
    std::memcpy(&entry, entries.data() + at, sizeof entry);
    EXPECT_EQ(entry.file_nbytes, 64 * 512);
    names += reinterpret_cast<const char*>(entries.data() + at + sizeof entry) + std::string(" ");
    at += entry.entry_nbytes;
  }
  EXPECT_EQ(names, "n1 n2 n3 ");
  EXPECT_EQ(on.files->read_directory("/", &position, entries), 0);
  EXPECT_EQ(on.files->read_directory("n1", &position, entries), -ENOTDIR);
  std::int64_t first = 0;
  EXPECT_EQ(on.files->read_directory("/", &first, std::span(entries).first(8)), -EINVAL);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
