// SPDX-License-Identifier: Apache-2.0
// Files that hang, fail or are slow in a real FUSE folder: who uses other files goes on, and each gets the error that there was.
#include <gtest/gtest.h>

#include "../../src/service/for_tests.hpp"
#include "file/faulty_store.hpp"
#include "file/fuse_folder.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"
#include "set_meanwhile.hpp"

namespace gpufs::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::opcode;

// Each test with io_uring and without.
class hanging_store : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (folder_.error() != 0) GTEST_SKIP() << "a FUSE folder of our own cannot be had: " << std::strerror(folder_.error());
    folder_.add("good", 1 << 20, 1);
    folder_.add("written", 0, 0);  // while a look-up hangs, the kernel makes no new file in its directory
  }
  void TearDown() override {
    syncs_.open();
    folder_.end();  // what still hangs fails
  }

  void start(std::uint32_t nworkers = 4) {
    start_with(std::make_shared<store::posix_store>(folder_.path(), store::posix_options{.writable = true}), nworkers);
  }
  void start_with(std::shared_ptr<store::store> files, std::uint32_t nworkers) {
    service_ = std::make_unique<service::service>(
        simt::cpu_platform(), std::move(files),
        service::service_options{.nrings = 32, .nslots = 64, .writable = true, .nworkers = nworkers});
    client_ = std::make_unique<ring_client>(service_->transport().rings);
  }
  void add_many(const char* prefix, int n) {
    for (int i = 0; i < n; ++i) many_.push_back(&folder_.add(prefix + std::to_string(i), 1 << 20, 50 + static_cast<unsigned>(i)));
  }
  static std::string numbered(const char* prefix, int i) { return prefix + std::to_string(i); }

  // Opens, reads, writes, syncs and closes a file that does not hang, in time.
  void expect_good_goes_on() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::byte> got;
    const auto file = client_->open("good", 0, 0, good_ring);
    ASSERT_EQ(file.result, 0);
    for (int i = 0; i < 20; ++i, ++next_) {
      ASSERT_EQ(client_->read(file.handle, next_ * 4096, 4096, &got, good_ring), 4096);
      ASSERT_EQ(got, content(1, static_cast<std::uint64_t>(next_) * 4096, 4096));
    }
    EXPECT_EQ(client_->close(file.handle, good_ring), 0);
    const auto written = client_->open("written", O_RDWR, 0, good_ring);
    ASSERT_EQ(written.result, 0);
    EXPECT_EQ(client_->write(written.handle, 0, content(9, 0, 3000), good_ring), 3000);
    EXPECT_EQ(client_->read(written.handle, 0, 3000, &got, good_ring), 3000);
    EXPECT_EQ(got, content(9, 0, 3000));
    EXPECT_EQ(client_->close(written.handle, good_ring), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(under_tsan ? 30 : 10));
  }

  static constexpr std::uint32_t good_ring = 31;
  const set_meanwhile<bool> io_uring_{service::for_tests::io_uring, GetParam()};
  fuse_folder folder_;
  std::vector<fuse_file*> many_;
  gate syncs_;
  std::unique_ptr<service::service> service_;
  std::unique_ptr<ring_client> client_;
  std::int64_t next_ = 0;
};

TEST_P(hanging_store, reads_that_hang_hold_up_no_other_file) {
  fuse_file& bad = folder_.add("bad", 1 << 20, 2);
  start();
  const auto file = client_->open("bad");
  ASSERT_EQ(file.result, 0);
  bad.hangs_read = true;
  std::vector<ring_client::ticket> asked;
  for (int i = 0; i < 100; ++i)
    asked.push_back(client_->begin_read(file.handle, i * 8192, 4096, static_cast<std::uint32_t>(i % 8)));
  ASSERT_TRUE(wait_until([&] { return bad.nhung > 0; }));
  for (int round = 0; round < 3; ++round) expect_good_goes_on();
  bad.hangs_read = false;
  std::vector<std::byte> got;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ASSERT_EQ(client_->end_read(asked[i], &got), 4096);
    ASSERT_EQ(got, content(2, i * 8192, 4096));
  }
}

TEST_P(hanging_store, rows_that_hang_hold_up_no_other_file) {
  fuse_file& bad = folder_.add("bad", 1 << 20, 2);
  start();
  const transport::row_buffers buffers = service_->row_buffers();
  const auto file = client_->open("bad"), good = client_->open("good");
  ASSERT_EQ(file.result, 0);
  ASSERT_EQ(good.result, 0);
  std::vector<std::uint64_t> offsets(30);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * 30'000;
  const auto expect_rows = [&](ring_client::ticket t, std::uint64_t seed) {
    std::vector<std::byte> got, want;
    for (const std::uint64_t offset : offsets) {
      const auto row = content(seed, offset, 512);
      want.insert(want.end(), row.begin(), row.end());
    }
    EXPECT_EQ(client_->end_rows(buffers, t, offsets.size() * 512, &got), 0);
    EXPECT_TRUE(got == want);
  };
  bad.hangs_read = true;
  std::vector<ring_client::ticket> asked;
  for (std::uint32_t i = 0; i < 20; ++i) asked.push_back(client_->begin_rows(buffers, file.handle, offsets, 512, i % 4));
  ASSERT_TRUE(wait_until([&] { return bad.nhung > 0; }));
  for (std::uint32_t round = 0; round < 3; ++round) {
    expect_good_goes_on();
    expect_rows(client_->begin_rows(buffers, good.handle, offsets, 512, 4 + round % 2), 1);
  }
  bad.hangs_read = false;
  for (const ring_client::ticket t : asked) expect_rows(t, 2);
}

TEST_P(hanging_store, many_files_whose_reads_hang_hold_up_no_other) {
  constexpr int nfiles = 24;
  add_many("bad", nfiles);
  start();
  std::vector<std::uint32_t> handles;
  for (int i = 0; i < nfiles; ++i) handles.push_back(client_->open(numbered("bad", i)).handle);
  for (fuse_file* bad : many_) bad->hangs_read = true;
  std::vector<ring_client::ticket> asked;
  for (int i = 0; i < 10 * nfiles; ++i) {
    asked.push_back(client_->begin_read(handles[static_cast<std::size_t>(i % nfiles)], i / nfiles * 8192, 4096,
                                        static_cast<std::uint32_t>(i % 24)));
  }
  ASSERT_TRUE(wait_until([&] { return std::any_of(many_.begin(), many_.end(), [](fuse_file* f) { return f->nhung > 0; }); }));
  for (int round = 0; round < 3; ++round) expect_good_goes_on();
  for (fuse_file* bad : many_) bad->hangs_read = false;
  std::vector<std::byte> got;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ASSERT_EQ(client_->end_read(asked[i], &got), 4096);
    ASSERT_EQ(got, content(50 + i % nfiles, i / nfiles * 8192, 4096));
  }
}

TEST_P(hanging_store, writes_that_hang_hold_up_no_other_file) {
  add_many("bad", 8);
  start();
  std::vector<std::uint32_t> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(client_->open(numbered("bad", i), O_RDWR).handle);
  for (fuse_file* bad : many_) bad->hangs_write = true;
  std::vector<ring_client::ticket> asked;
  for (int i = 0; i < 80; ++i) {
    asked.push_back(client_->begin_write(handles[static_cast<std::size_t>(i % 8)], i / 8 * 8192, content(3, 0, 4096),
                                         static_cast<std::uint32_t>(i % 8)));
  }
  ASSERT_TRUE(wait_until([&] { return std::any_of(many_.begin(), many_.end(), [](fuse_file* f) { return f->nhung > 0; }); }));
  for (int round = 0; round < 3; ++round) expect_good_goes_on();
  for (fuse_file* bad : many_) bad->hangs_write = false;
  for (const auto t : asked) EXPECT_EQ(client_->end(t), 4096);
}

TEST_P(hanging_store, opens_and_other_calls_that_hang_hold_up_no_other) {
  add_many("bad", 8);
  start();
  for (std::size_t i = 0; i < 8; ++i) (i % 2 == 0 ? many_[i]->hangs_open : many_[i]->hangs_lookup) = true;
  std::vector<ring_client::ticket> asked;
  for (int i = 0; i < 40; ++i) {
    asked.push_back(client_->begin_open(numbered("bad", i % 8), 0, 0, static_cast<std::uint32_t>(i % 8)));
  }
  ASSERT_TRUE(wait_until([&] { return std::any_of(many_.begin(), many_.end(), [](fuse_file* f) { return f->nhung > 0; }); }));
  for (int round = 0; round < 3; ++round) expect_good_goes_on();
  for (fuse_file* bad : many_) bad->hangs_open = bad->hangs_lookup = false;
  for (const auto t : asked) EXPECT_EQ(client_->wait(t).result, 0);
}

// What a worker asks of a file beside reading it: whether it has changed, and to close it.
TEST_P(hanging_store, looks_and_closes_that_hang_hold_up_no_other_file) {
  add_many("bad", 8);
  start();
  std::vector<std::uint32_t> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(client_->open(numbered("bad", i)).handle);
  for (std::size_t i = 0; i < 8; ++i) (i % 2 == 0 ? many_[i]->hangs_status : many_[i]->hangs_flush) = true;
  std::vector<ring_client::ticket> reads, closes;
  for (int i = 0; i < 8; ++i) {
    const auto ring = static_cast<std::uint32_t>(i);
    if (i % 2 == 0) {
      reads.push_back(client_->begin_read(handles[ring], 0, 4096, ring));
    } else {
      closes.push_back(client_->begin_close(handles[ring], ring));
    }
  }
  ASSERT_TRUE(wait_until([&] { return std::any_of(many_.begin(), many_.end(), [](fuse_file* f) { return f->nhung > 0; }); }));
  for (int round = 0; round < 3; ++round) expect_good_goes_on();
  for (fuse_file* bad : many_) bad->hangs_status = bad->hangs_flush = false;
  for (const auto t : reads) EXPECT_EQ(client_->end_read(t, nullptr), 4096);
  for (const auto t : closes) EXPECT_EQ(client_->wait(t).result, 0);
}

// A file of the folder or of another store, as a test would have it.
class changed_file final : public store::open_file {
 public:
  changed_file(std::unique_ptr<open_file> real, gate* syncs, std::uint64_t device)
      : real_(std::move(real)), info_(real_->info()), syncs_(syncs) {
    if (device != 0) info_.device = device;
  }
  const store::file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> to, std::int64_t offset) override { return real_->pread(to, offset); }
  int descriptor() const override { return real_->descriptor(); }
  int check_version() const override { return real_->check_version(); }
  int pwrite(std::span<const std::byte> from, std::int64_t offset) override { return real_->pwrite(from, offset); }
  int sync(bool data_only) override {
    if (syncs_ != nullptr) syncs_->pass();
    return real_->sync(data_only);
  }

 private:
  std::unique_ptr<open_file> real_;
  store::file_info info_;
  gate* syncs_;
};

class changing_store final : public store::store {
 public:
  std::shared_ptr<gpufs::store::store> folder, local;  // local: of files whose names begin so
  gate* syncs = nullptr;
  std::uint64_t device = 0;  // of all files; 0: as they are
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = (path.starts_with("local") ? local : folder)->open(path, flags, error);
    return file ? std::make_unique<changed_file>(std::move(file), syncs, device) : nullptr;
  }
  std::string_view name() const override { return "changing"; }
};

// A call that ends after its file was closed has the last reference: what hangs when that goes is the call.
TEST_P(hanging_store, closes_that_others_calls_do_hold_up_no_other_file) {
  constexpr std::uint32_t nbad = 4;
  add_many("bad", nbad);
  auto files = std::make_shared<changing_store>();
  files->folder = std::make_shared<store::posix_store>(folder_.path(), store::posix_options{.writable = true});
  files->syncs = &syncs_;
  start_with(files, 4);
  for (std::uint32_t i = 0; i < nbad; ++i) {
    fuse_file& bad = *many_[i];
    int ntries = 0;
    for (bool closed_first = false; !closed_first;) {
      ASSERT_LT(ntries++, 30) << "no thread closes the file beside the sync";
      const auto file = client_->open(numbered("bad", static_cast<int>(i)), O_RDWR);
      ASSERT_EQ(file.result, 0);
      bad.hangs_flush = true;
      syncs_.close();
      transport::request ask{};
      ask.op = opcode::sync;
      ask.handle = file.handle;
      const auto sync = client_->take(i);
      client_->post(sync, ask);
      ASSERT_TRUE(wait_until([&] { return syncs_.waiting() == 1; }));
      const auto close = client_->begin_close(file.handle, 20);
      const std::string hangs = i == 0 ? "a sync of" : std::to_string(i + 1) + " calls";
      ASSERT_TRUE(wait_until([&] {
        closed_first = client_->answered(close);
        return closed_first || service_->what_hangs()().find(hangs) != std::string::npos;
      }));
      if (!closed_first) bad.hangs_flush = false;  // the sync hangs, and the close waits for it: once more
      syncs_.open();
      EXPECT_EQ(client_->end(sync), 0);
      EXPECT_EQ(client_->end(close), 0);
    }
    ASSERT_TRUE(wait_until([&] { return bad.nhung != 0; }));
  }
  expect_good_goes_on();
  for (fuse_file* bad : many_) bad->hangs_flush = false;
}

// The number of a device goes to another file system when the one that had it is gone.
TEST_P(hanging_store, a_device_number_does_not_tell_what_hangs) {
  fuse_file& bad = folder_.add("bad", 1 << 20, 2);
  const temp_dir here;
  here.add("local", 100, 1);
  auto files = std::make_shared<changing_store>();
  files->folder = std::make_shared<store::posix_store>(folder_.path(), store::posix_options{.writable = true});
  files->local = std::make_shared<store::posix_store>(here.path(), store::posix_options{});
  files->device = 77;
  start_with(files, 1);
  ASSERT_EQ(client_->open("local").result, 0);
  const auto file = client_->open("bad");
  ASSERT_EQ(file.result, 0);
  bad.hangs_status = true;
  const auto read = client_->begin_read(file.handle, 0, 4096);
  ASSERT_TRUE(wait_until([&] { return bad.nhung > 0; }));
  expect_good_goes_on();
  bad.hangs_status = false;
  EXPECT_EQ(client_->end_read(read, nullptr), 4096);
}

TEST_P(hanging_store, errors_interruptions_and_short_reads) {
  fuse_file& file = folder_.add("file", 1 << 20, 3);
  for (const bool direct : {false, true}) {
    file.direct = direct;
    start(2);
    const auto opened = client_->open("file");
    ASSERT_EQ(opened.result, 0);
    std::vector<std::byte> got;
    file.read_error = EIO;
    EXPECT_EQ(client_->read(opened.handle, 4096, 4096), -EIO);
    EXPECT_EQ(service_->log_entries().back().path, "file");
    EXPECT_EQ(service_->log_entries().back().error, EIO);
    file.read_error = 0;
    file.delay_ms = 2;
    file.interrupt_every = 3;
    if (direct) file.short_every = 5;  // for the page cache, a short read is the end of the file
    for (std::uint64_t i = 1; i < 40; ++i) {
      ASSERT_EQ(client_->read(opened.handle, static_cast<std::int64_t>(i * 5000), 4096, &got), 4096) << direct << " " << i;
      const auto wanted = content(3, i * 5000, 4096);
      const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
      ASSERT_EQ(at, 4096) << direct << " " << i << " reads " << file.nreads;
    }
    file.delay_ms = file.interrupt_every = file.short_every = 0;
    EXPECT_EQ(client_->close(opened.handle), 0);
  }
}

// Nobody could bound how long a page of its mapping takes.
TEST_P(hanging_store, files_are_not_pulled) {
  int error = 0;
  store::auto_store any(simt::cpu_platform(), folder_.path(), 0, store::auto_options{.small_file_nbytes = 0});
  const auto file = any.open("good", O_RDONLY, &error);
  ASSERT_NE(file, nullptr) << std::strerror(-error);
  EXPECT_EQ(file->info().kind, source_kind::staged);
  EXPECT_NE(file->info().reason.find("served by a process or another machine"), std::string::npos) << file->info().reason;
  store::mapped_store mapped(simt::cpu_platform(), folder_.path());
  EXPECT_EQ(mapped.open("good", O_RDONLY, &error), nullptr);
  EXPECT_EQ(error, -EOPNOTSUPP);
}

INSTANTIATE_TEST_SUITE_P(io, hanging_store, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
