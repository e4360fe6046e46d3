// SPDX-License-Identifier: Apache-2.0
// What a device may make up: requests that are no requests, forged handles and sequence numbers, more files than there may be.
#include <fcntl.h>

#include <set>
#include <thread>

#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(running_service, refuses_what_a_device_makes_up) {
  dir_.add("a", 10'000, 1);
  start_posix();
  const auto file = client_->open("a");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(raw(opcode::none, 0, 0, 0), -ENOSYS);
  EXPECT_EQ(raw(static_cast<opcode>(15), file.handle, 0, 10), -ENOSYS);
  EXPECT_EQ(raw(static_cast<opcode>(0xffffffffu), file.handle, 0, 10), -ENOSYS);
  EXPECT_EQ(raw(opcode::read, file.handle, -1, 10), -EINVAL);
  EXPECT_EQ(raw(opcode::read, file.handle, std::numeric_limits<std::int64_t>::min(), 10), -EINVAL);
  EXPECT_EQ(raw(opcode::read, file.handle, most - 5, 10), -EINVAL);
  EXPECT_EQ(raw(opcode::read, file.handle, most - 10, 10), 0);
  EXPECT_EQ(raw(opcode::read, file.handle, 0, 4097), -EINVAL);
  EXPECT_EQ(raw(opcode::read, file.handle, 0, 0xffffffffu), -EINVAL);
  for (const std::uint32_t handle : {0u, file.handle + 1, file.handle ^ 0x10000u, file.handle ^ 0x80000000u, 0xffffffffu, 1u}) {
    if (handle == file.handle) continue;
    EXPECT_EQ(raw(opcode::read, handle, 0, 10), -EBADF) << std::hex << handle;
    EXPECT_EQ(raw(opcode::close, handle, 0, 10), -EBADF) << std::hex << handle;
  }
  EXPECT_EQ(raw(opcode::open, 0, 0, 0), -ENOENT);
  EXPECT_EQ(raw(opcode::open, 0, 0, 4096), -ENAMETOOLONG);
  EXPECT_EQ(raw(opcode::open, 0, 0, 0xffffffffu), -ENAMETOOLONG);
  EXPECT_EQ(client_->open("a", O_RDWR).result, -EROFS);
  EXPECT_EQ(client_->open("a", -1).result, -EROFS);
  EXPECT_EQ(client_->open("../a").result, -EXDEV);
  EXPECT_EQ(client_->open("b").result, -ENOENT);
  EXPECT_EQ(client_->open(std::string_view("a\0", 2)).result, -EINVAL);
  EXPECT_EQ(client_->open(std::string(4095, 'x')).result, -ENAMETOOLONG);
  EXPECT_EQ(client_->read(file.handle, 0, 10), 10) << "still works";
}

TEST_P(running_service, survives_random_requests) {
  dir_.add("a", 10'000, 1);
  dir_.add("b", 10, 2);
  start_posix({.nrings = 4, .nslots = 16, .nworkers = 3, .max_open_files = 50});
  const transport::row_buffers buffers = service_->row_buffers();
  for (const std::uint64_t seed : {1, 2, 3}) {
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        random_source draw(seed * 10 + t);
        std::vector<std::uint32_t> handles{0};
        for (int i = 0; i < 3000; ++i) {
          const auto ticket = client_->take(static_cast<std::uint32_t>(draw.below(4)));
          transport::request ask;
          std::uint32_t words[16];
          for (auto& w : words) w = static_cast<std::uint32_t>(draw.word());
          std::memcpy(&ask, words, sizeof ask);
          // Mostly a request that is almost right.
          if (draw.percent(90)) ask.op = static_cast<opcode>(draw.below(5));
          if (draw.percent(20)) {
            ask.op = opcode::read_rows;
            if (draw.percent(80)) ask.flags = 0;
            if (draw.percent(80)) ask.skip = static_cast<std::uint32_t>(draw.below(buffers.most_rows + 3));
            if (draw.percent(50)) ask.nbytes = 1 + static_cast<std::uint32_t>(draw.below(64));
            for (std::uint32_t k = 0; buffers.has(ticket.index) && k < buffers.most_rows; ++k)
              std::atomic_ref(buffers.list(ticket.index)[k]).store(draw.below(10'100), std::memory_order_relaxed);
          }
          if (draw.percent(60)) ask.handle = draw.pick(handles) ^ (draw.percent(20) ? 1u << draw.below(32) : 0);
          if (draw.percent(60)) ask.offset = static_cast<std::int64_t>(draw.below(20'000));
          if (draw.percent(70)) ask.nbytes = static_cast<std::uint32_t>(draw.below(5000));
          if (ask.op == opcode::open) {
            ask.flags = draw.percent(80) ? 0 : ask.flags;
            std::memcpy(client_->payload(ticket), draw.percent(50) ? "a" : "b", 1);
            if (draw.percent(80)) {
              ask.nbytes = 1;
            } else {
              for (int k = 0; k < 100; ++k) client_->payload(ticket)[k] = static_cast<std::byte>(draw.word());
            }
          }
          client_->post(ticket, ask);
          const auto got = client_->wait(ticket);
          if (ask.op == opcode::open && got.result == 0) handles.push_back(got.handle);
          EXPECT_GE(got.result, -4095);
          EXPECT_LE(got.result, 4096);
          client_->give_back(ticket);
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }
  const auto counts = service_->counters();
  EXPECT_GT(counts.opens, 0u);
  EXPECT_GT(counts.reads, 0u);
  EXPECT_GT(counts.errors, 0u);
  EXPECT_LE(counts.open_files, 50u);
  EXPECT_EQ(counts.opens - counts.closes, counts.open_files);
}

// A device that breaks the protocol itself: sequences ahead of their time, requests that change while they are taken. It hurts
// itself only: no memory of others, no worker that hangs.
TEST_P(running_service, survives_forged_sequences) {
  dir_.add("a", 10'000, 1);
  start_posix({.nrings = 2, .nslots = 8, .nworkers = 3});
  service_->row_buffers();
  const auto file = client_->open("a", 0, 0, 1);
  const transport::ring_layout& rings = client_->rings();
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      random_source draw(t + 1);
      for (int i = 0; i < 20'000; ++i) {
        auto* words = reinterpret_cast<std::uint32_t*>(&rings.requests[draw.below(8)]);  // ring 0
        const auto w = draw.below(16);
        const std::uint64_t value = w == 15  ? draw.below(4000)
                                    : w == 0 ? (draw.percent(70) ? draw.below(4) : 13)
                                    : w == 1 ? file.handle
                                             : draw.below(5000);
        std::atomic_ref(words[w]).store(static_cast<std::uint32_t>(value), std::memory_order_release);
      }
    });
  }
  std::vector<std::byte> got;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t n = client_->read(file.handle, 100, 4096, &got, 1);
    if (n == -EBADF) break;  // the forger closed it
    ASSERT_EQ(n, 4096);
    ASSERT_EQ(got, content(1, 100, 4096));
  }
  for (std::thread& t : threads) t.join();
  const auto again = client_->open("a", 0, 0, 1);
  EXPECT_EQ(again.result, 0);
}

TEST_P(running_service, limits_open_files) {
  dir_.add("a", 10, 1);
  start_posix({.max_open_files = 5});
  std::vector<std::uint32_t> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(client_->open("a").handle);
  EXPECT_EQ(std::set(handles.begin(), handles.end()).size(), 5u);
  EXPECT_EQ(client_->open("a").result, -EMFILE);
  EXPECT_EQ(client_->close(handles[2]), 0);
  const auto again = client_->open("a");
  EXPECT_EQ(again.result, 0);
  EXPECT_NE(again.handle, handles[2]) << "a new generation";
  EXPECT_EQ(client_->read(handles[2], 0, 1), -EBADF);
  EXPECT_EQ(service_->counters().open_files, 5u);
}

TEST_P(running_service, tickets_wrap_around) {
  // A ring of one slot and one of two go through many laps.
  for (const std::uint32_t nslots : {1u, 2u}) {
    dir_.add("a", 5000, 1);
    start_posix({.nrings = 1, .nslots = nslots, .nworkers = 2});
    const auto file = client_->open("a");
    std::vector<std::byte> got;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(i), 100, &got), 100);
      ASSERT_EQ(got, content(1, i, 100));
    }
  }
}

}  // namespace
}  // namespace gpufs::test
