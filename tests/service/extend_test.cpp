// SPDX-License-Identifier: Apache-2.0
// More of the device's own memory, which the device asks for: what the mount's function gives, and nobody waits along.
#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <thread>

#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"

namespace gpufs::test {
namespace {

using transport::opcode;

class extend : public testing::Test {
 protected:
  static transport::request ask_for(std::int64_t n) {
    transport::request ask{};
    ask.op = opcode::extend;
    ask.offset = n;
    return ask;
  }
  std::int64_t result_of(std::int64_t n) { return client_.call(ask_for(n)).result; }

  temp_dir dir_;
  // One worker, so that whatever it waits for holds up all.
  service::service service_{simt::cpu_platform(), std::make_shared<store::posix_store>(dir_.path()), {.nworkers = 1}};
  ring_client client_{service_.transport().rings};
};

TEST_F(extend, gives_what_the_mount_names_and_nothing_that_it_was_not_asked_for) {
  EXPECT_EQ(result_of(0), -EINVAL) << "nobody makes any";
  std::vector<std::uint32_t> asked;
  service_.on_extend([&](std::uint32_t n) -> std::uint64_t {
    asked.push_back(n);
    if (n == 7) throw std::bad_alloc();
    if (n == 8) throw std::runtime_error("the device is lost");
    return n < 3 ? 4096 * (n + 1) : 0;
  });
  const transport::reply got = client_.call(ask_for(2));
  EXPECT_EQ(got.result, 0);
  EXPECT_EQ(got.pull_base, 3u * 4096);
  EXPECT_EQ(result_of(3), -EINVAL);
  EXPECT_EQ(result_of(7), -ENOMEM);
  EXPECT_EQ(result_of(8), -EIO);
  EXPECT_NE(service_.last_error().find("extend: Input/output error (the device is lost)"), std::string::npos)
      << service_.last_error();
  for (const std::int64_t n : {std::int64_t{-1}, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(result_of(n), -EINVAL);
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{2, 3, 7, 8}));
  EXPECT_EQ(service_.counters().errors, 7u);
  service_.stop();
  EXPECT_EQ(result_of(2), -ESHUTDOWN);
}

// The driver may have who makes memory wait until a kernel ends. It is answered then, and so is who asked for the same meanwhile.
TEST_F(extend, that_takes_long_holds_up_nothing_else) {
  gate made;
  std::atomic<int> ncalls{0};
  made.close();
  service_.on_extend([&](std::uint32_t) -> std::uint64_t {
    ++ncalls;
    made.pass();
    return 4096;
  });
  const auto first = client_.take(0);
  client_.post(first, ask_for(1));
  ASSERT_TRUE(wait_until([&] { return made.waiting() == 1; }));
  const auto again = client_.take(0);
  client_.post(again, ask_for(1));
  dir_.add("a", 10'000, 1);
  let_file_times_pass();
  const transport::reply file = client_.open("a");
  ASSERT_EQ(file.result, 0);
  std::vector<std::byte> bytes;
  EXPECT_EQ(client_.read(file.handle, 100, 1000, &bytes), 1000);
  EXPECT_EQ(bytes, content(1, 100, 1000));
  EXPECT_EQ(client_.close(file.handle), 0);
  EXPECT_FALSE(service_.finish(std::chrono::milliseconds(20))) << "two are not answered";
  EXPECT_FALSE(client_.answered(first) || client_.answered(again));
  EXPECT_EQ(made.waiting(), 1) << "one at a time";
  made.open();
  EXPECT_EQ(client_.end(first), 0);
  EXPECT_EQ(client_.end(again), 0);
  EXPECT_TRUE(service_.finish(std::chrono::seconds(10)));
  EXPECT_EQ(ncalls, 2);
}

// stop() waits for the one that is being made; what has not begun is refused.
TEST_F(extend, ends_with_the_service) {
  gate made;
  made.close();
  service_.on_extend([&](std::uint32_t) -> std::uint64_t {
    made.pass();
    return 4096;
  });
  const auto first = client_.take(0), second = client_.take(0);
  client_.post(first, ask_for(1));
  client_.post(second, ask_for(2));
  ASSERT_TRUE(wait_until([&] { return made.waiting() == 1 && service_.counters().requests == 2; }));
  std::thread stopping([&] { service_.stop(); });
  EXPECT_TRUE(wait_until([&] { return client_.close(0) == -ESHUTDOWN; }));
  EXPECT_FALSE(client_.answered(first));
  made.open();
  stopping.join();
  EXPECT_EQ(client_.end(first), 0);
  EXPECT_EQ(client_.end(second), -ESHUTDOWN);
}

}  // namespace
}  // namespace gpufs::test
