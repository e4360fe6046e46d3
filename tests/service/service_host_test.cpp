// SPDX-License-Identifier: Apache-2.0
// What the host can see of a service, what it may ask of one, and what one costs that has nothing to do.
#include <sys/resource.h>

#include <thread>

#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

std::chrono::nanoseconds cpu_time() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return std::chrono::seconds(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         std::chrono::microseconds(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

TEST_P(running_service, tells_the_host_what_goes_on) {
  dir_.add("a", 10'000, 1);
  start_posix();
  const auto file = client_->open("a");
  for (int i = 0; i < 10; ++i) client_->read(file.handle, i * 100, 100);
  client_->open("nope");
  client_->open("nope");
  client_->read(file.handle ^ 0x100, 0, 1);
  const auto counts = service_->counters();
  EXPECT_EQ(counts.opens, 1u);
  EXPECT_EQ(counts.opens_staged, 1u);
  EXPECT_EQ(counts.reads, 10u);
  EXPECT_EQ(counts.bytes_read, 1000u);
  EXPECT_EQ(counts.errors, 3u);
  EXPECT_EQ(counts.requests, 14u);
  EXPECT_GE(counts.batches, 1u);
  EXPECT_LE(counts.batches, 14u);
  EXPECT_GE(counts.max_batch, 1u);
  EXPECT_EQ(counts.open_files, 1u);
  EXPECT_EQ(service_->errors(), (std::map<int, std::uint64_t>{{ENOENT, 2}, {EBADF, 1}}));
  bool found = false;
  for (const auto& entry : service_->log_entries()) {
    if (entry.path != "nope") continue;
    found = true;
    EXPECT_EQ(entry.operation, "open");
    EXPECT_EQ(entry.error, ENOENT);
    EXPECT_EQ(entry.count, 2u);
  }
  EXPECT_TRUE(found);
  const auto lines = service_->log();
  EXPECT_NE(lines.back().find("read"), std::string::npos) << lines.back();
  const auto known = service_->describe(file.handle);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->path, "a");
  EXPECT_EQ(known->nbytes, 10'000);
  EXPECT_EQ(known->kind, source_kind::staged);
  EXPECT_FALSE(known->reason.empty());
  client_->close(file.handle);
  EXPECT_FALSE(service_->describe(file.handle));
  EXPECT_FALSE(service_->describe(0));
}

TEST_P(running_service, the_log_is_bounded) {
  start_posix();
  for (int i = 0; i < 1500; ++i) client_->open("missing" + std::to_string(i));
  const auto entries = service_->log_entries();
  EXPECT_EQ(entries.size(), 1024u);
  EXPECT_EQ(entries.back().path, "missing1499");
  EXPECT_EQ(service_->errors().at(ENOENT), 1500u);
}

TEST_P(running_service, refuses_bad_options) {
  const auto files = std::make_shared<store::nil_store>(1);
  const auto make = [&](service::service_options o) { service::service s(simt::cpu_platform(), files, o); };
  EXPECT_THROW(make({.nrings = 0}), std::invalid_argument);
  EXPECT_THROW(make({.nslots = 3}), std::invalid_argument);
  EXPECT_THROW(make({.nslots = 0}), std::invalid_argument);
  EXPECT_THROW(make({.payload_nbytes = 2048}), std::invalid_argument);
  EXPECT_THROW(make({.max_open_files = 0}), std::invalid_argument);
  EXPECT_THROW(make({.max_open_files = (1u << 20) + 1}), std::invalid_argument);
  EXPECT_THROW(service::service(simt::cpu_platform(), nullptr), std::invalid_argument);
}

// An idle mount, also one with open pull files to watch and after some work, costs at most 1 % of a core.
TEST_P(running_service, idles_cheaply) {
  if (under_tsan) GTEST_SKIP() << "instrumented code costs more";
  for (int i = 0; i < 200; ++i) dir_.add("f" + std::to_string(i), 5000, 1);
  let_file_times_pass();
  start(std::make_shared<store::auto_store>(simt::cpu_platform(), dir_.path(), 0, store::auto_options{.small_file_nbytes = 0}));
  for (int i = 0; i < 200; ++i) client_->open("f" + std::to_string(i));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until it is idle
  // The quietest of some seconds: others on this machine make a nap dearer.
  double share = 1;
  for (int i = 0; i < 8 && share >= 0.01; ++i) {
    const auto before = cpu_time();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    share = std::min(share, std::chrono::duration<double>(cpu_time() - before).count());
  }
  std::printf("idle: %.2f %% of a core\n", share * 100);
  EXPECT_LT(share, 0.01);
  EXPECT_EQ(client_->open("f0").result, 0);
}

}  // namespace
}  // namespace gpufs::test
