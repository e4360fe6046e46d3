// SPDX-License-Identifier: Apache-2.0
// Cache ids, and versions that end: who is told, and what is not shared.
#include <unistd.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "file/faulty_store.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(running_service, cache_ids_name_versions) {
  dir_.add("a", 1000, 1);
  dir_.add("b", 1000, 1);
  start_posix();
  const std::uint32_t a = open_id("a");
  EXPECT_EQ(open_id("a"), a);
  EXPECT_EQ(open_id("/./a"), a);
  EXPECT_NE(open_id("b"), a);
  ASSERT_EQ(link((dir_ / "b").c_str(), (dir_ / "b2").c_str()), 0);
  std::set<std::uint32_t> seen{a};
  const auto expect_new = [&](const char* what) {
    const std::uint32_t fresh = open_id("a");
    EXPECT_TRUE(seen.insert(fresh).second) << what;
    let_file_times_pass();
    const std::uint32_t settled = open_id("a");  // the first open was of an unsettled file
    EXPECT_TRUE(seen.insert(settled).second) << what << ", settled";
    EXPECT_EQ(open_id("a"), settled) << what << ", opened again";
  };
  dir_.overwrite("a", 10, 1, 5);
  expect_new("overwritten");
  dir_.resize("a", 500);
  expect_new("truncated");
  utimensat(AT_FDCWD, (dir_ / "a").c_str(), nullptr, 0);
  expect_new("touched");
  dir_.add("new", 1000, 2);
  ASSERT_EQ(rename((dir_ / "new").c_str(), (dir_ / "a").c_str()), 0);
  expect_new("replaced");
  unlink((dir_ / "a").c_str());
  dir_.add("a", 1000, 3);
  expect_new("made anew");
}

TEST_P(running_service, quick_rewrites_never_share_an_id) {
  dir_.add("a", 1000, 0);
  start_posix();
  std::set<std::uint32_t> seen;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    dir_.overwrite("a", 0, 1000, i);
    const auto file = client_->open("a");
    EXPECT_TRUE(seen.insert(file.cache_id).second) << "rewrite " << i;
    std::vector<std::byte> got;
    ASSERT_EQ(client_->read(file.handle, 0, 1000, &got), 1000);
    ASSERT_EQ(got, content(i, 0, 1000));
    client_->close(file.handle);
  }
}

TEST_P(running_service, cache_ids_run_out) {
  auto mem = std::make_shared<store::mem_store>(simt::cpu_platform());
  mem->put("a", {});
  mem->put("b", {});
  const set_meanwhile<std::uint32_t> near_the_end(service::for_tests::first_cache_id, (1u << 28) - 1);
  start(mem);
  EXPECT_EQ(client_->open("a").cache_id, (1u << 28) - 1);
  EXPECT_EQ(client_->open("b").result, -ENFILE);
  EXPECT_EQ(client_->open("a").result, 0) << "a known version keeps its id";
  mem->put("a", {});
  EXPECT_EQ(client_->open("a").result, -ENFILE);
  EXPECT_NE(service_->log_entries().back().text.find("cache ids"), std::string::npos);
}

TEST_P(running_service, reads_of_a_changed_file_are_stale) {
  dir_.add("a", 10'000, 1);
  start_posix();
  const auto file = client_->open("a");
  EXPECT_EQ(client_->read(file.handle, 0, 100), 100);
  dir_.overwrite("a", 0, 10, 2);
  EXPECT_EQ(client_->read(file.handle, 0, 100), -ESTALE);
  let_file_times_pass();
  const auto cut = client_->open("a");
  EXPECT_EQ(client_->read(cut.handle, 0, 100), 100);
  dir_.resize("a", 50);
  EXPECT_EQ(client_->read(cut.handle, 0, 100), -ESTALE);
  EXPECT_EQ(client_->read(cut.handle, 5000, 100), -ESTALE);
  dir_.add("new", 10, 3);
  let_file_times_pass();
  const auto held = client_->open("a");
  std::filesystem::rename(dir_ / "new", dir_ / "a");
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(held.handle, 0, 100, &got), 50) << "replaced by a rename: the open file keeps its bytes";
}

// So that who opens the file anew does not share a version that has ended.
TEST_P(running_service, tells_when_a_read_finds_that_a_version_has_ended) {
  const auto real = [&](bool direct) {
    return std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.direct = direct});
  };
  const std::vector<std::shared_ptr<store::store>> stores{real(false), real(true), std::make_shared<faulty_store>(real(false))};
  for (std::size_t i = 0; i < stores.size(); ++i) {
    for (const bool cuts : {false, true}) {
      dir_.add("a", 16'384, 1);
      let_file_times_pass();
      start(stores[i]);
      std::vector<std::pair<std::uint32_t, std::uint32_t>> told;  // before the answer that we wait for
      service_->on_stale([&](std::uint32_t number, std::uint32_t handle) { told.emplace_back(number, handle); });
      const auto file = client_->open("a", 0, 100);
      EXPECT_EQ(client_->read(file.handle, 0, 4096), 4096);
      EXPECT_TRUE(told.empty());
      if (cuts) {
        dir_.resize("a", 4096);
      } else {
        dir_.overwrite("a", 0, 10, 2);
      }
      for (int n = 0; n < 2; ++n) EXPECT_EQ(client_->read(file.handle, 8192, 4096), -ESTALE);
      const std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted{{100, file.handle}};
      EXPECT_EQ(told, wanted) << "store " << i << ", cut: " << cuts;
      EXPECT_EQ(service_->counters().stale_files, 1u);
      EXPECT_EQ(service_->log_entries().back().count, 2u) << "once for each read";
      EXPECT_EQ(client_->close(file.handle), 0);
    }
  }
}

// Telling the device may have to wait for the kernel that reads.
TEST_P(running_service, a_read_is_answered_where_the_device_cannot_be_told) {
  dir_.add("a", 16'384, 1);
  let_file_times_pass();
  start(std::make_shared<store::posix_store>(dir_.path()));
  std::promise<void> answered;
  std::atomic<bool> waited{false};
  service_->on_stale([&, ended = answered.get_future().share()](std::uint32_t, std::uint32_t) {
    waited = ended.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  });
  const auto file = client_->open("a", 0, 100);
  dir_.overwrite("a", 0, 10, 2);
  for (int n = 0; n < 3; ++n) EXPECT_EQ(client_->read(file.handle, 8192, 4096), -ESTALE);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // longer than calls of the system that do not hang
  EXPECT_EQ(client_->close(file.handle), 0);
  answered.set_value();
  EXPECT_TRUE(wait_until([&] { return waited.load(); })) << "it is told, and the reads did not wait for that";
}

TEST_P(running_service, tells_of_each_of_many_versions_that_reads_find_ended) {
  constexpr std::uint32_t nfiles = 60;
  for (std::uint32_t i = 0; i < nfiles; ++i) dir_.add("f" + std::to_string(i), 5000, 1);
  let_file_times_pass();
  start(std::make_shared<store::posix_store>(dir_.path()));
  std::mutex lock;
  std::multiset<std::uint32_t> told;
  service_->on_stale([&](std::uint32_t, std::uint32_t handle) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::scoped_lock hold(lock);
    told.insert(handle);
  });
  std::multiset<std::uint32_t> handles;
  for (std::uint32_t i = 0; i < nfiles; ++i) handles.insert(client_->open("f" + std::to_string(i), 0, 100 + i).handle);
  for (std::uint32_t i = 0; i < nfiles; ++i) dir_.overwrite("f" + std::to_string(i), 100, 1, 2);
  for (const std::uint32_t handle : handles) {
    EXPECT_EQ(client_->read(handle, 4096, 100), -ESTALE);
    const std::scoped_lock hold(lock);
    EXPECT_EQ(told.count(handle), 1u) << "before the answer";
  }
  EXPECT_EQ(told, handles);
  EXPECT_EQ(service_->counters().stale_files, nfiles);
}

TEST_P(running_service, tells_when_pull_files_change) {
  for (int i = 0; i < 30; ++i) dir_.add("f" + std::to_string(i), 5000, 1);
  let_file_times_pass();
  start(std::make_shared<store::auto_store>(simt::cpu_platform(), dir_.path(), 0, store::auto_options{.small_file_nbytes = 0}),
        {.watch_interval = std::chrono::milliseconds(5)});
  std::mutex lock;
  std::map<std::uint32_t, std::uint32_t> told;  // handle by number
  int ncalls = 0;
  service_->on_stale([&](std::uint32_t number, std::uint32_t handle) {
    const std::scoped_lock hold(lock);
    told[number] = handle;
    ++ncalls;
  });
  std::vector<std::uint32_t> handles;
  for (int i = 0; i < 30; ++i) handles.push_back(client_->open("f" + std::to_string(i), 0, 100 + i).handle);
  dir_.overwrite("f7", 100, 1, 2);
  dir_.resize("f21", 10);
  client_->close(handles[5]);
  dir_.overwrite("f5", 100, 1, 2);
  EXPECT_TRUE(wait_until([&] {
    const std::scoped_lock hold(lock);
    return told.size() == 2;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  service_->stop();
  EXPECT_EQ(told, (std::map<std::uint32_t, std::uint32_t>{{107, handles[7]}, {121, handles[21]}}));
  EXPECT_EQ(ncalls, 2) << "once each";
  EXPECT_EQ(service_->counters().stale_files, 2u);
}

}  // namespace
}  // namespace gpufs::test
