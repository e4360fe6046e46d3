// SPDX-License-Identifier: Apache-2.0
// What kernels write, request by request: bytes and masks, refusals of what a device may make up, calls on paths.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "../../src/service/for_tests.hpp"
#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "file/noting_store.hpp"
#include "gpufs/service/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"
#include "set_meanwhile.hpp"
#include "store/posix_extras.hpp"

namespace gpufs::test {
namespace {

using gpufs::source_kind;
using transport::opcode;

// Each test with io_uring and without.
class write_test : public testing::TestWithParam<bool> {
 protected:
  void start(std::shared_ptr<store::store> files, service::service_options options = {}) {
    options.writable = true;
    client_.reset();
    service_ = std::make_unique<service::service>(simt::cpu_platform(), std::move(files), options);
    client_ = std::make_unique<ring_client>(service_->transport().rings);
  }
  void start_posix(service::service_options options = {}) {
    start(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}), options);
  }
  std::vector<std::byte> bytes_of(const std::string& name) const { return file_bytes(dir_ / name); }
  std::int64_t raw(const transport::request& ask) { return client_->call(ask).result; }
  std::uint32_t open_to_write(const char* path, int flags = O_RDWR | O_CREAT) {
    const auto file = client_->open(path, flags);
    EXPECT_EQ(file.result, 0) << path;
    return file.handle;
  }

  const set_meanwhile<bool> io_uring_{service::for_tests::io_uring, GetParam()};
  temp_dir dir_;
  std::unique_ptr<service::service> service_;
  std::unique_ptr<ring_client> client_;
};

TEST_P(write_test, WritesReadsSyncsAndTruncates) {
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
  EXPECT_EQ(client_->on_file(opcode::sync, file.handle, 0, transport::sync_data_only), 0);
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

TEST_P(write_test, WritesWhatTheMaskSays) {
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

transport::request asking(opcode op, std::uint32_t flags = 0, std::int64_t offset = 0, std::uint32_t mode = 0) {
  transport::request ask{};
  ask.op = op;
  ask.flags = flags;
  ask.offset = offset;
  ask.mode = mode;
  return ask;
}

std::shared_ptr<noting_store> noting(const std::string& root) {
  return std::make_shared<noting_store>(std::make_shared<store::posix_store>(root, store::posix_options{.writable = true}));
}

constexpr auto most = std::numeric_limits<std::int64_t>::max();

transport::request write_request(std::uint32_t handle, std::int64_t offset, std::uint32_t nbytes, std::uint32_t skip = 0,
                                 std::uint32_t flags = 0) {
  transport::request ask{};
  ask.op = opcode::write;
  ask.handle = handle;
  ask.offset = offset;
  ask.nbytes = nbytes;
  ask.skip = skip;
  ask.flags = flags;
  return ask;
}

TEST_P(write_test, RefusesWhatADeviceMayMakeUp) {
  dir_.add("a", 100, 1);
  start_posix();
  const auto reader = client_->open("a");
  const std::uint32_t file = open_to_write("a");
  for (const std::uint32_t flags : {0u, transport::write_masked}) {
    for (const auto& [skip, nbytes] : {std::pair{0u, 4097u},
                                       {1u, 4096u},
                                       {4096u, 1u},
                                       {4097u, 0u},
                                       {0xffffffffu, 1u},
                                       {1u, 0xffffffffu},
                                       {0xffffffffu, 0xffffffffu},
                                       {0x80000000u, 0x80000000u}}) {
      EXPECT_EQ(raw(write_request(file, 0, nbytes, skip, flags)), -EINVAL) << skip << " " << nbytes;
    }
    for (const std::int64_t offset : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(), most - 9}) {
      EXPECT_EQ(raw(write_request(file, offset, 10, 0, flags)), -EINVAL) << offset;
    }
    EXPECT_EQ(raw(write_request(file, 0, 0, 4096, flags)), 0);
    EXPECT_EQ(raw(write_request(file, most, 0, 0, flags)), 0);
    EXPECT_EQ(raw(write_request(reader.handle, 0, 10, 0, flags)), -EBADF);
    for (const std::uint32_t handle : {0u, 1u, file + 100, file ^ 0x10000u, file ^ 0x80000000u, 0xffffffffu}) {
      EXPECT_EQ(raw(write_request(handle, 0, 10, 0, flags)), -EBADF) << handle;
    }
  }
  EXPECT_EQ(raw(write_request(file, 0, 10, 0, 2)), -EINVAL);
  EXPECT_EQ(raw(write_request(file, 0, 10, 0, 0xffffffffu)), -EINVAL);
  for (const opcode op : {opcode::sync, opcode::truncate}) {
    EXPECT_EQ(client_->on_file(op, reader.handle), -EBADF);
    EXPECT_EQ(client_->on_file(op, file ^ 0x80000000u), -EBADF);
    EXPECT_EQ(client_->on_file(op, file, 0, 4), -EINVAL);
  }
  EXPECT_EQ(client_->on_file(opcode::truncate, file, -1), -EINVAL);
  EXPECT_EQ(client_->on_file(opcode::truncate, file, most), -EFBIG);
  for (const opcode op : {opcode::unlink, opcode::rename, opcode::mkdir, opcode::stat, opcode::read_dir}) {
    transport::request ask{};
    ask.op = op;
    ask.handle = 1;
    ask.flags = 0xffff0000u;
    EXPECT_EQ(client_->on_path(ask, "a", "b").result, -EINVAL) << static_cast<int>(op);
    for (const std::uint32_t nbytes : {4096u, 0x7fffffffu, 0xffffffffu}) {
      ask.nbytes = nbytes;
      EXPECT_EQ(raw(ask), -ENAMETOOLONG) << static_cast<int>(op);
    }
    ask.nbytes = 0;
    ask.flags = 0;
    ask.handle = op == opcode::read_dir ? ~0u : 1;
    const bool root_too = op == opcode::stat || op == opcode::read_dir;
    EXPECT_EQ(raw(ask) < 0 ? raw(ask) : 0, root_too ? 0 : -ENOENT) << static_cast<int>(op);
  }
  transport::request ask{};
  ask.op = opcode::rename;
  ask.nbytes = 1;
  for (const auto& [nbytes, error] : {std::pair{0u, -ENOENT}, {4096u, -ENAMETOOLONG}, {0xffffffffu, -ENAMETOOLONG}}) {
    ask.handle = nbytes;
    EXPECT_EQ(raw(ask), error) << nbytes;
  }
  EXPECT_EQ(bytes_of("a"), content(1, 0, 100));
  EXPECT_EQ(client_->write(file, 0, content(2, 0, 10)), 10) << "still works";
}

TEST_P(write_test, AServiceThatMayNotWriteDoesNot) {
  dir_.add("a", 100, 1);
  let_file_times_pass();
  auto files = std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true});
  service::service reads(simt::cpu_platform(), files, {.nrings = 1});
  ring_client client(reads.transport().rings);
  for (const int flags : {O_RDWR, O_WRONLY, O_CREAT, O_TRUNC, O_RDWR | O_CREAT, -1}) {
    EXPECT_EQ(client.open("a", flags).result, -EROFS) << flags;
    EXPECT_EQ(client.open("b", flags).result, -EROFS) << flags;
  }
  const auto file = client.open("a");
  for (const std::uint32_t flags : {0u, transport::write_masked}) {
    EXPECT_EQ(client.call(write_request(file.handle, 0, 10, 0, flags)).result, -EROFS);
  }
  EXPECT_EQ(client.on_file(opcode::sync, file.handle), -EROFS);
  EXPECT_EQ(client.on_file(opcode::truncate, file.handle), -EROFS);
  EXPECT_EQ(client.on_path(asking(opcode::unlink), "a").result, -EROFS);
  EXPECT_EQ(client.on_path(asking(opcode::mkdir), "d").result, -EROFS);
  transport::request ask{};  // its second path would lie behind the payload, in another slot's
  ask.op = opcode::rename;
  ask.nbytes = ask.handle = 1;
  EXPECT_EQ(client.call(ask).result, -EROFS);
  EXPECT_EQ(client.on_path(asking(opcode::stat), "a").file_nbytes, 100);
  EXPECT_EQ(bytes_of("a"), content(1, 0, 100));
  EXPECT_EQ(names_in(dir_.path()), std::vector<std::string>{"a"});
}

TEST_P(write_test, CallsOnPaths) {
  dir_.add("a", 1000, 1);
  start_posix();
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir, 0, 0, 0700), "d").result, 0);
  const auto renamed = client_->on_path(asking(opcode::rename), "a", "d/b");
  EXPECT_EQ(renamed.result, 0);
  EXPECT_TRUE(S_ISREG(renamed.mode));
  const auto status = client_->on_path(asking(opcode::stat), "/d/b");
  struct stat st;
  ASSERT_EQ(stat((dir_ / "d/b").c_str(), &st), 0);
  EXPECT_EQ(status.result, 0);
  EXPECT_EQ(status.file_nbytes, 1000);
  EXPECT_EQ(status.mode, st.st_mode);
  EXPECT_EQ(status.inode, st.st_ino);
  EXPECT_EQ(status.mtime_ns,
            static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec));
  EXPECT_TRUE(S_ISDIR(client_->on_path(asking(opcode::stat), "").mode));
  EXPECT_EQ(client_->on_path(asking(opcode::stat), "none").result, -ENOENT);
  ASSERT_EQ(symlink("d/b", (dir_ / "link").c_str()), 0);
  EXPECT_TRUE(S_ISREG(client_->on_path(asking(opcode::stat), "link").mode));

  for (int i = 0; i < 200; ++i) dir_.add("many/" + std::to_string(i), 10, 1);
  std::set<std::string> names;
  std::int64_t position = 0;
  int nanswers = 0;
  for (;; ++nanswers) {
    std::vector<std::byte> got;
    transport::request ask = asking(opcode::read_dir, 0, position);
    ask.handle = nanswers % 2 == 0 ? 1000 : ~0u;  // at most so many bytes
    const auto answer = client_->on_path(ask, "many", {}, &got);
    ASSERT_GE(answer.result, 0);
    ASSERT_LE(answer.result, std::min(ask.handle, 4096u));
    if (answer.result == 0) break;
    position = answer.file_nbytes;
    for (std::size_t at = 0; at < got.size();) {
      directory_entry entry;
      std::memcpy(&entry, got.data() + at, sizeof entry);
      EXPECT_EQ(entry.file_nbytes, 10);
      EXPECT_TRUE(names.insert(reinterpret_cast<const char*>(got.data() + at + sizeof entry)).second);
      at += entry.entry_nbytes;
    }
  }
  EXPECT_EQ(names.size(), 200u);
  EXPECT_GE(nanswers, 2);

  EXPECT_EQ(client_->on_path(asking(opcode::unlink), "d").result, -EISDIR);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink, names::unlink_directory), "d").result, -ENOTEMPTY);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink), "d/b").result, 0);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink, names::unlink_directory), "d").result, 0);
  EXPECT_EQ(client_->on_path(asking(opcode::rename), "none", "x").result, -ENOENT);
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir), "../x").result, -EXDEV);
  std::set<std::string> logged;
  for (const auto& entry : service_->log_entries()) {
    if (entry.error != 0) logged.insert(entry.operation + " " + entry.path + " " + entry.text);
  }
  EXPECT_EQ(logged, (std::set<std::string>{"stat none ", "unlink d ", "rename none to 'x'", "mkdir ../x "}));
}

TEST_P(write_test, ExclusiveWithoutCreateCutsAsOthersDo) {
  dir_.add("a", 100, 1);
  start_posix();
  const auto file = client_->open("a", O_RDWR | O_TRUNC | O_EXCL);
  EXPECT_EQ(file.result, 0);
  EXPECT_EQ(file.file_nbytes, 0);
  EXPECT_TRUE(bytes_of("a").empty());
  EXPECT_EQ(client_->open("b", O_RDWR | O_TRUNC | O_EXCL).result, -ENOENT);
  EXPECT_EQ(client_->open("b", O_RDWR | O_TRUNC | O_EXCL | O_CREAT).result, 0);
}

TEST_P(write_test, WhoOpensAFileWhileItIsRenamedHasAVersion) {
  for (const bool has_others_open : {false, true}) {
    dir_.add("a", 100, 1);
    let_file_times_pass();
    const auto files = noting(dir_.path());
    gate renames;
    files->on_rename = [&] { renames.pass(); };
    start(files, {.nworkers = 3});
    const std::uint32_t other = has_others_open ? client_->open("a").handle : 0;
    renames.close();
    std::thread renamer([&] { EXPECT_EQ(client_->on_path(asking(opcode::rename), "a", "b", nullptr, 1).result, 0); });
    EXPECT_TRUE(wait_until([&] { return renames.waiting() == 1; }));
    const auto beside = client_->open("a");
    EXPECT_EQ(beside.result, 0);
    renames.open();
    renamer.join();
    std::vector<std::byte> got;
    EXPECT_EQ(client_->read(beside.handle, 0, 100, &got), 100);
    EXPECT_EQ(got, content(1, 0, 100));
    if (has_others_open) {
      EXPECT_EQ(client_->read(other, 0, 100), 100);
    }
    const auto afterwards = client_->open("b");
    EXPECT_EQ(client_->read(afterwards.handle, 0, 100), 100);
    let_file_times_pass();
    std::filesystem::permissions(dir_ / "b", std::filesystem::perms::owner_all);  // ctime alone
    for (const auto& version : {beside, afterwards}) {
      EXPECT_EQ(client_->read(version.handle, 0, 100), -ESTALE) << "only a rename of the mount's own is none of a version's end";
    }
  }
}

TEST_P(write_test, AnOpenThatARenameOvertakesHasTheVersionAfterIt) {
  for (const bool is_back : {false, true}) {
    dir_.add("a", 100, 1);
    let_file_times_pass();
    const auto files = noting(dir_.path());
    gate answers;
    files->on_opened = [&](std::string_view) { answers.pass(); };
    start(files, {.nworkers = 3});
    answers.close();
    const auto asked = client_->begin_open("a", 0, 0, 1);
    EXPECT_TRUE(wait_until([&] { return answers.waiting() == 1; }));
    EXPECT_EQ(client_->on_path(asking(opcode::rename), "a", "b").result, 0);
    if (is_back) {
      EXPECT_EQ(client_->on_path(asking(opcode::rename), "b", "a").result, 0);
    }
    answers.open();
    const auto opened = client_->wait(asked);
    client_->give_back(asked);
    EXPECT_EQ(opened.result, is_back ? 0 : -ENOENT);
    if (is_back) {
      EXPECT_EQ(client_->read(opened.handle, 0, 100), 100);
    }
    EXPECT_EQ(service_->counters().open_files, is_back ? 1u : 0u);
  }
}

TEST_P(write_test, StatusOfAFileThatIsClosedMeanwhileSaysWhatWasWritten) {
  dir_.add("a", 3, 1);
  const auto files = noting(dir_.path());
  std::uint32_t writer = 0;
  std::atomic<bool> looked{false};
  files->on_status = [&] {
    if (looked.exchange(true)) return;
    EXPECT_EQ(client_->write(writer, 0, content(2, 0, 10), 1), 10);
    EXPECT_EQ(client_->close(writer, 1), 0);
  };
  start(files, {.nworkers = 3});
  writer = client_->open("a", O_RDWR, 5).handle;
  const auto status = client_->on_path(asking(opcode::stat), "a");
  EXPECT_EQ(status.result, 0);
  EXPECT_TRUE(looked);
  EXPECT_EQ(status.number, 0u);
  EXPECT_EQ(status.file_nbytes, 10);
}

TEST_P(write_test, EachOpenForWritingHasACacheIdOfItsOwn) {
  dir_.add("a", 100, 1);
  let_file_times_pass();
  start_posix();
  const auto id_of = [&](int flags) {
    const auto file = client_->open("a", flags);
    EXPECT_EQ(client_->close(file.handle), 0);
    return file.cache_id;
  };
  std::set<std::uint32_t> ids;
  const std::uint32_t before = id_of(O_RDONLY);
  ids.insert(before);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(ids.insert(id_of(O_RDWR)).second);
  EXPECT_EQ(id_of(O_RDONLY), before) << "nothing was written: it is the version that it was";
  // On a slow machine the file's stamps may be settled before the second open, which then proves something: once more.
  bool quick = false;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!quick && std::chrono::steady_clock::now() < until) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint32_t writer = open_to_write("a");
    EXPECT_EQ(client_->write(writer, 0, content(2, 0, 10)), 10);
    EXPECT_EQ(client_->close(writer), 0);
    EXPECT_TRUE(ids.insert(id_of(O_RDONLY)).second) << "changed just now";
    const bool new_again = ids.insert(id_of(O_RDONLY)).second;
    quick = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(10);  // half of what settles them
    EXPECT_TRUE(new_again || !quick) << "and that proves nothing yet";
  }
  EXPECT_TRUE(quick);
  let_file_times_pass();
  const std::uint32_t after = id_of(O_RDONLY);
  EXPECT_TRUE(ids.insert(after).second);
  EXPECT_EQ(id_of(O_RDONLY), after);
}

TEST_P(write_test, ALiveFileIsNeverStaleAndBringsNothingAlong) {
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
TEST_P(write_test, ManyThreadsWriteNeighbouringBlocks) {
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

// A store whose status() waits, so that a test can hold a worker; its files are the real ones.
class gated_store final : public store::store {
 public:
  explicit gated_store(std::shared_ptr<gpufs::store::store> real) : real_(std::move(real)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    return real_->open(path, flags, error);
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override {
    gate_.pass();
    return real_->status(path, link, out);
  }
  std::string_view name() const override { return "gated"; }
  gate gate_;

 private:
  std::shared_ptr<gpufs::store::store> real_;
};

std::uint64_t write_calls() {  // of this process, so far; 0 where the kernel does not count
  std::ifstream in("/proc/self/io");
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;) {
    if (key == "syscw:") return value;
  }
  return 0;
}

TEST_P(write_test, NeighboursBecomeOneCall) {
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

TEST_P(write_test, AFullFileSystemIsToldToThoseWhoseBytesDidNotFit) {
  std::filesystem::create_directory(dir_ / "full");
  const small_tmpfs full(dir_ / "full", 64 << 10);
  if (!full.mounted()) GTEST_SKIP() << "may not mount";
  auto files =
      std::make_shared<gated_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  start(files, {.nrings = 1, .nworkers = 1});
  const std::uint32_t file = open_to_write("full/a");
  files->gate_.close();  // so that all come in one group, and are written by one call
  const auto held = client_->take(0);
  client_->post(held, asking(opcode::stat));
  std::vector<ring_client::ticket> tickets;
  for (int i = 0; i < 30; ++i) tickets.push_back(client_->begin_write(file, std::int64_t{i} * 4096, content(1, 0, 4096)));
  files->gate_.open();
  int nwritten = 0;
  for (const auto ticket : tickets) {
    const std::int64_t result = client_->end(ticket);
    EXPECT_TRUE(result == 4096 || result == -ENOSPC) << result;
    nwritten += result == 4096;
  }
  EXPECT_EQ(client_->end(held), 0);
  EXPECT_EQ(nwritten, 16);
  EXPECT_EQ(bytes_of("full/a").size(), 64u << 10);
  EXPECT_EQ(service_->errors().at(ENOSPC), 14u);
  const auto log = service_->log_entries();
  EXPECT_EQ(log.back().operation, "write");
  EXPECT_EQ(log.back().path, "full/a");
  EXPECT_EQ(log.back().error, ENOSPC);
  EXPECT_EQ(client_->on_file(opcode::truncate, file, 4096), 0);
  EXPECT_EQ(client_->write(file, 4096, content(1, 4096, 4096)), 4096) << "there is room again";
}

// The same by a limit that needs no mount.
TEST_P(write_test, AFileThatMayNotGrowIsToldToThoseWhoseBytesDidNotFit) {
  constexpr rlim_t limit = 10 * 4096;
  auto files =
      std::make_shared<gated_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  start(files, {.nrings = 1, .nworkers = 1});
  const std::uint32_t file = open_to_write("a");
  files->gate_.close();
  const auto held = client_->take(0);
  client_->post(held, asking(opcode::stat));
  while (files->gate_.waiting() == 0) std::this_thread::yield();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{limit, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<ring_client::ticket> tickets;
  for (int i = 0; i < 20; ++i) tickets.push_back(client_->begin_write(file, std::int64_t{i} * 4096, content(1, 0, 4096)));
  files->gate_.open();
  for (std::size_t i = 0; i < tickets.size(); ++i) EXPECT_EQ(client_->end(tickets[i]), i < 10 ? 4096 : -EFBIG) << i;
  EXPECT_EQ(client_->end(held), 0);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(bytes_of("a").size(), limit);
  EXPECT_EQ(service_->errors().at(EFBIG), 10u);
}

TEST_P(write_test, ErrorsOfTheStoreAreTheAnswer) {
  auto faulty =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  faults& wrong = faulty->wrong();
  start(faulty);
  const std::uint32_t file = open_to_write("a");
  for (const int error : {EIO, ENOSPC, EDQUOT, EFBIG, EROFS}) {
    wrong.heal();
    wrong.fail_writes_at("a", 4096, 8192, error);
    EXPECT_EQ(client_->write(file, 4000, content(1, 0, 200)), -error);
    EXPECT_EQ(service_->log_entries().back().error, error);
  }
  const std::vector<std::uint32_t> ends(4096 / 32, 0x80000001u);
  EXPECT_EQ(client_->write(file, 4000, content(1, 0, 200), 0, 0, &ends), -EROFS) << "one of its runs";
  EXPECT_EQ(client_->write(file, 0, content(1, 0, 100)), 100);
  wrong.heal();
  wrong.fail_write_every = 2;
  int nfailed = 0;
  for (int i = 0; i < 10; ++i) nfailed += client_->write(file, 0, content(1, 0, 100)) < 0;
  EXPECT_EQ(nfailed, 5);
  wrong.heal();
  wrong.sync_error = EIO;
  wrong.truncate_error = ENOSPC;
  EXPECT_EQ(client_->on_file(opcode::sync, file), -EIO);
  EXPECT_EQ(service_->log_entries().back().operation, "sync");
  EXPECT_EQ(client_->on_file(opcode::truncate, file, 10), -ENOSPC);
  EXPECT_EQ(service_->log_entries().back().operation, "truncate");
  EXPECT_EQ(service_->log_entries().back().path, "a");
  wrong.heal();
  EXPECT_EQ(client_->on_file(opcode::sync, file), 0);
  EXPECT_EQ(client_->on_file(opcode::truncate, file, 50), 0);
  EXPECT_EQ(bytes_of("a"), content(1, 0, 50));
}

TEST_P(write_test, WhatBlocksLeavesAThreadToOthers) {
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

TEST_P(write_test, SurvivesRandomRequests) {
  std::filesystem::create_directory(dir_ / "root");
  dir_.add("outside", 100, 1);
  dir_.add("root/a", 10'000, 1);
  start(std::make_shared<store::posix_store>(dir_ / "root", store::posix_options{.writable = true}),
        {.nrings = 4, .nslots = 16, .nworkers = 3, .max_open_files = 50});
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      random_source draw(t + 1);
      const std::vector<std::string> paths{"a", "b", "d", "d/c", "../outside", "..", "/", "d/../.."};
      std::vector<std::uint32_t> handles{0};
      for (int i = 0; i < (under_tsan ? 2000 : 4000); ++i) {
        const auto ticket = client_->take(static_cast<std::uint32_t>(draw.below(4)));
        transport::request ask;
        std::uint32_t words[16];
        for (auto& w : words) w = static_cast<std::uint32_t>(draw.word());
        std::memcpy(&ask, words, sizeof ask);
        std::byte* const payload = client_->payload(ticket);
        for (int k = 0; k < 64; ++k) payload[draw.below(4096 + 512)] = static_cast<std::byte>(draw.word());
        if (draw.percent(95)) ask.op = static_cast<opcode>(draw.below(13));
        // One of the last few, mostly: older ones have been closed.
        if (draw.percent(70)) ask.handle = handles[handles.size() - 1 - draw.below(std::min<std::size_t>(handles.size(), 8))];
        if (draw.percent(80)) ask.offset = static_cast<std::int64_t>(draw.below(20'000));
        if (draw.percent(80)) ask.nbytes = static_cast<std::uint32_t>(draw.below(5000));
        if (draw.percent(80)) ask.skip = static_cast<std::uint32_t>(draw.below(4000));
        if (draw.percent(80)) ask.flags = static_cast<std::uint32_t>(draw.below(2));
        if (ask.op >= opcode::unlink || ask.op == opcode::open) {
          const std::string& path = draw.pick(paths);
          const std::string& to = draw.pick(paths);
          std::memcpy(payload, path.data(), path.size());
          std::memcpy(payload + 4096, to.data(), to.size());
          if (draw.percent(90)) ask.nbytes = static_cast<std::uint32_t>(path.size());
          if (ask.op == opcode::rename && draw.percent(90)) ask.handle = static_cast<std::uint32_t>(to.size());
          if (ask.op == opcode::open && draw.percent(80)) ask.flags = O_RDWR | O_CREAT;
        }
        client_->post(ticket, ask);
        const auto got = client_->wait(ticket);
        if (ask.op == opcode::open && got.result >= 0) handles.push_back(got.handle);
        if (ask.op == opcode::write && got.result > 0) {
          ASSERT_LE(got.result, ask.nbytes);
        }
        client_->give_back(ticket);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(names_in(dir_.path()), (std::vector<std::string>{"outside", "root"}));
  EXPECT_EQ(bytes_of("outside"), content(1, 0, 100));
  EXPECT_GT(service_->counters().writes, 0u);
}

TEST_P(write_test, NothingIsWrittenAfterStop) {
  start_posix();
  const std::uint32_t file = open_to_write("a");
  service_->stop();
  EXPECT_EQ(client_->write(file, 0, content(1, 0, 10)), -ESHUTDOWN);
  EXPECT_EQ(client_->on_file(opcode::sync, file), -ESHUTDOWN);
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir), "d").result, -ESHUTDOWN);
  EXPECT_EQ(bytes_of("a").size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(io, write_test, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "uring" : "blocking"); });

}  // namespace
}  // namespace gpufs::test
