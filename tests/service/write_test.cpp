// SPDX-License-Identifier: Apache-2.0
// What kernels write, request by request: bytes and masks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include "file/faulty_store.hpp"
#include "write_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(writing_service, writes_reads_syncs_and_truncates) {
  start_posix();
  const auto file = client_->open("new", O_RDWR | O_CREAT);
  ASSERT_EQ(file.result, 0);
  EXPECT_EQ(file.kind, source_kind::staged);
  EXPECT_EQ(file.file_nbytes, 0);
  EXPECT_EQ(client_->write(file.handle, 100, content(1, 100, 1000)), 1000);
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(file.handle, 100, 4096, &got), 1000) << "what is there, though the file was empty when it was opened";
  EXPECT_EQ(got, content(1, 100, 1000));
  EXPECT_EQ(client_->read(file.handle, 1100, 10), 0);
  EXPECT_EQ(client_->read(file.handle, std::int64_t{1} << 40, 10), 0);
  EXPECT_EQ(client_->on_file(opcode::sync, file.handle), 0);
  EXPECT_EQ(client_->on_file(opcode::sync, file.handle, 0, names::sync_data_only), 0);
  EXPECT_EQ(client_->on_file(opcode::truncate, file.handle, 600), 0);
  EXPECT_EQ(client_->read(file.handle, 100, 4096, &got), 500);
  EXPECT_EQ(client_->on_file(opcode::truncate, file.handle, 10'000), 0);
  EXPECT_EQ(client_->read(file.handle, 9'999, 4096, &got), 1);
  EXPECT_EQ(client_->close(file.handle), 0);
  std::vector<std::byte> want(10'000);
  const auto kept = content(1, 100, 500);
  std::copy(kept.begin(), kept.end(), want.begin() + 100);
  EXPECT_EQ(bytes_of("new"), want);
  EXPECT_EQ(service_->counters().writes, 1u);
  EXPECT_EQ(service_->counters().bytes_written, 1000u);
  EXPECT_EQ(service_->counters().syncs, 2u);
}

TEST_P(writing_service, writes_what_the_mask_says) {
  dir_.add("a", 5000, 1);
  start_posix();
  const auto file = client_->open("a", O_RDWR);
  ASSERT_EQ(file.result, 0);
  random_source draw(7);
  auto want = content(1, 0, 5000);
  for (int i = 0; i < 200; ++i) {
    const auto skip = static_cast<std::uint32_t>(draw.below(4097));
    const auto nbytes = static_cast<std::uint32_t>(draw.below(4097 - skip));
    const auto offset = static_cast<std::int64_t>(draw.below(5000));
    const auto bytes = content(static_cast<std::uint64_t>(i) + 2, 0, nbytes);
    std::vector<std::uint32_t> mask(4096 / 32);
    for (auto& word : mask) word = draw.percent(30) ? ~0u : draw.percent(30) ? 0u : static_cast<std::uint32_t>(draw.word());
    std::int64_t nset = 0;
    for (std::uint32_t k = 0; k < nbytes; ++k) {
      const std::uint32_t at = skip + k;
      if ((mask[at / 32] >> at % 32 & 1) == 0) continue;
      ++nset;
      const std::size_t to = static_cast<std::size_t>(offset) + k;
      if (to >= want.size()) want.resize(to + 1);
      want[to] = bytes[k];
    }
    ASSERT_EQ(client_->write(file.handle, offset, bytes, 0, skip, &mask), nset) << i;
  }
  EXPECT_EQ(bytes_of("a"), want);
  const std::vector<std::uint32_t> none(4096 / 32);
  EXPECT_EQ(client_->write(file.handle, 0, content(9, 0, 4096), 0, 0, &none), 0);
  EXPECT_EQ(bytes_of("a"), want);
}

TEST_P(writing_service, a_live_file_is_never_stale_and_brings_nothing_along) {
  dir_.add("a", 5000, 1);
  let_file_times_pass();
  for (const bool without_descriptor : {false, true}) {
    auto real = std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true});
    auto faulty = std::make_shared<faulty_store>(real);
    faulty->wrong().short_every = 2;
    if (without_descriptor) {
      start(faulty);
    } else {
      start(real);
    }
    dir_.add("a", 5000, 1);
    auto ticket = client_->begin_open("a", O_RDWR, 0, 0, 4096);
    const auto file = client_->wait(ticket);
    client_->give_back(ticket);
    EXPECT_EQ(file.result, 0) << "no bytes";
    EXPECT_EQ(file.file_nbytes, 5000);
    dir_.add("a", 10'000, 2);
    std::vector<std::byte> got;
    EXPECT_EQ(client_->read(file.handle, 8192, 4096, &got), 1808);
    EXPECT_EQ(got, content(2, 8192, 1808));
    dir_.resize("a", 100);
    EXPECT_EQ(client_->read(file.handle, 50, 4096, &got), 50);
    EXPECT_EQ(got, content(2, 50, 50));
    EXPECT_EQ(client_->read(file.handle, 4096, 4096, &got), 0);
    EXPECT_EQ(client_->read(file.handle, 0, 0, &got), 0);
    EXPECT_EQ(client_->read(file.handle, -1, 10, &got), -EINVAL);
    // Not in the page cache: asynchronously, or by a thread that blocks.
    dir_.add("a", 10'000, 3);
    const int fd = ::open((dir_ / "a").c_str(), O_RDONLY | O_CLOEXEC);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
    EXPECT_EQ(client_->read(file.handle, 8192, 4096, &got), 1808);
    EXPECT_EQ(got, content(3, 8192, 1808));
    EXPECT_EQ(client_->read(file.handle, 0, 4096, &got), 4096);
    EXPECT_EQ(got, content(3, 0, 4096));
    EXPECT_EQ(client_->close(file.handle), 0);
  }
}

// Blocks of a few files, by many threads, each through a ring; some masked.
TEST_P(writing_service, many_threads_write_neighbouring_blocks) {
  constexpr std::uint32_t nthreads = 6, nfiles = 3, nblocks = 300, block_nbytes = 1000;
  start_posix({.nrings = nthreads, .nslots = 32, .nworkers = 3});
  std::vector<std::uint32_t> files;
  for (std::uint32_t f = 0; f < nfiles; ++f) files.push_back(open_to_write(std::to_string(f).c_str()));
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < nthreads; ++t) {
    threads.emplace_back([&, t] {
      random_source draw(t + 1);
      std::vector<ring_client::ticket> tickets;
      const auto drain = [&] {
        for (const auto ticket : tickets) EXPECT_EQ(client_->end(ticket), block_nbytes);
        tickets.clear();
      };
      for (std::uint32_t b = t; b < nfiles * nblocks; b += nthreads) {
        const std::uint32_t f = b % nfiles, block = b / nfiles;
        const std::int64_t offset = std::int64_t{block} * block_nbytes;
        const auto bytes = content(f, static_cast<std::uint64_t>(offset), block_nbytes);
        const auto skip = static_cast<std::uint32_t>(draw.below(4096 - block_nbytes));
        const std::vector<std::uint32_t> all(4096 / 32, ~0u);
        tickets.push_back(client_->begin_write(files[f], offset, bytes, t, skip, draw.percent(20) ? &all : nullptr));
        if (tickets.size() == 12) drain();
      }
      drain();
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::uint32_t f = 0; f < nfiles; ++f) {
    EXPECT_EQ(bytes_of(std::to_string(f)), content(f, 0, std::size_t{nblocks} * block_nbytes));
  }
  EXPECT_EQ(service_->counters().writes, std::uint64_t{nfiles} * nblocks);
  EXPECT_EQ(service_->counters().bytes_written, std::uint64_t{nfiles} * nblocks * block_nbytes);
}

std::uint64_t write_calls() {  // of this process, so far; 0 where the kernel does not count
  std::ifstream in("/proc/self/io");
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;) {
    if (key == "syscw:") return value;
  }
  return 0;
}

TEST_P(writing_service, neighbours_become_one_call) {
  auto files =
      std::make_shared<gated_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  start(files, {.nrings = 1, .nworkers = 1});
  const std::uint32_t a = open_to_write("a"), b = open_to_write("b");
  files->gate_.close();
  const auto held = client_->take(0);
  client_->post(held, asking(opcode::stat));
  while (files->gate_.waiting() == 0) std::this_thread::yield();
  std::vector<ring_client::ticket> tickets;
  for (int i = 15; i >= 0; --i) {  // not in order
    tickets.push_back(client_->begin_write(i % 2 == 0 ? a : b, std::int64_t{i / 2} * 4096,
                                           content(1, static_cast<std::uint64_t>(i) * 4096, 4096)));
  }
  const std::uint64_t before = write_calls();
  files->gate_.open();
  for (const auto ticket : tickets) EXPECT_EQ(client_->end(ticket), 4096);
  EXPECT_EQ(client_->end(held), 0);
  if (before != 0) {
    EXPECT_EQ(write_calls() - before, 2u) << "one a file";
  }
  for (std::size_t i = 0; i < 16; ++i) {
    const auto bytes = bytes_of(i % 2 == 0 ? "a" : "b");
    ASSERT_EQ(bytes.size(), 8u * 4096);
    const auto want = content(1, i * 4096, 4096);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i / 2 * 4096))) << i;
  }
}

TEST_P(writing_service, what_blocks_leaves_a_thread_to_others) {
  dir_.add("other", 100, 1);
  auto faulty =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  faults& wrong = faulty->wrong();
  start(faulty, {.nworkers = 2});
  const std::uint32_t file = open_to_write("a"), other = client_->open("other").handle;
  wrong.write_gate.close();
  wrong.sync_gate.close();
  std::vector<ring_client::ticket> tickets;
  const auto post = [&](const transport::request& ask, std::uint32_t ring) {
    tickets.push_back(client_->take(ring));
    client_->post(tickets.back(), ask);
  };
  for (std::uint32_t i = 0; i < 8; ++i) post(write_request(file, 0, 10), i);
  EXPECT_EQ(client_->read(other, 0, 100), 100);
  wrong.write_gate.open();
  for (const auto ticket : tickets) EXPECT_EQ(client_->end(ticket), 10);
  tickets.clear();
  transport::request sync{};
  sync.op = opcode::sync;
  sync.handle = file;
  for (std::uint32_t i = 0; i < 8; ++i) post(sync, i);
  EXPECT_EQ(client_->read(other, 0, 100), 100);
  EXPECT_EQ(client_->write(file, 0, content(1, 0, 10)), 10);
  wrong.sync_gate.open();
  for (const auto ticket : tickets) EXPECT_EQ(client_->end(ticket), 0);
}

INSTANTIATE_TEST_SUITE_P(io, writing_service, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "uring" : "blocking"); });

}  // namespace
}  // namespace gpufs::test
