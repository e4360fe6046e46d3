// SPDX-License-Identifier: Apache-2.0
// Writes that are refused, or fail: what a device may make up, full disks, a service that ends.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <thread>

#include "file/faulty_store.hpp"
#include "write_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(writing_service, refuses_what_a_device_may_make_up) {
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
  transport::request extents{};
  extents.op = opcode::extents;
  for (const auto& [handle, offset, nbytes, flags, error] : {std::tuple{file ^ 0x80000000u, 0, 64u, 0u, -EBADF},
                                                             {file, 0, 31u, 0u, -EINVAL},
                                                             {file, -1, 64u, 0u, -EINVAL},
                                                             {file, 0, 64u, 1u, -EINVAL}}) {
    extents.handle = handle;
    extents.offset = offset;
    extents.nbytes = nbytes;
    extents.flags = flags;
    EXPECT_EQ(raw(extents), error) << offset << " " << nbytes << " " << flags;
  }
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

TEST_P(writing_service, a_service_that_may_not_write_does_not) {
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

TEST_P(writing_service, a_full_file_system_is_told_to_those_whose_bytes_did_not_fit) {
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
TEST_P(writing_service, a_file_that_may_not_grow_is_told_to_those_whose_bytes_did_not_fit) {
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

TEST_P(writing_service, errors_of_the_store_are_the_answer) {
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

TEST_P(writing_service, survives_random_requests) {
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

TEST_P(writing_service, nothing_is_written_after_stop) {
  start_posix();
  const std::uint32_t file = open_to_write("a");
  service_->stop();
  EXPECT_EQ(client_->write(file, 0, content(1, 0, 10)), -ESHUTDOWN);
  EXPECT_EQ(client_->on_file(opcode::sync, file), -ESHUTDOWN);
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir), "d").result, -ESHUTDOWN);
  EXPECT_EQ(bytes_of("a").size(), 0u);
}

}  // namespace
}  // namespace gpufs::test
