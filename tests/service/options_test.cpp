// SPDX-License-Identifier: Apache-2.0
// The service's options at their ends, what it counts by kind of file, and stores that offer no more than open().
#include <gtest/gtest.h>

#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"

namespace gpufs::test {
namespace {

using transport::opcode;

class service_options_are : public ::testing::Test {
 protected:
  template <class Set>
  static std::string said(const Set& set) {
    service::service_options o{.nrings = 1, .nslots = 2, .nworkers = 1, .max_open_files = 4};
    set(o);
    try {
      const service::service host(simt::cpu_platform(), std::make_shared<store::nil_store>(100), o);
      return "";
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
  }
};

TEST_F(service_options_are, refused_beyond_their_ends_and_taken_at_them) {
  const auto refused = [](const char* name, auto set) { EXPECT_NE(said(set).find(name), std::string::npos) << name << said(set); };
  const auto taken = [](auto set) { EXPECT_EQ(said(set), ""); };
  refused("nrings", [](auto& o) { o.nrings = 0; });
  for (const std::uint32_t bad : {0u, 3u}) refused("nslots", [&](auto& o) { o.nslots = bad; });
  taken([](auto& o) { o.nslots = 1; });
  refused("nrings * nslots", [](auto& o) { o.nrings = 1u << 16, o.nslots = 1u << 15; });
  for (const std::uint32_t bad : {0u, 3584u, 4095u, 4097u}) refused("payload_nbytes", [&](auto& o) { o.payload_nbytes = bad; });
  for (const std::uint32_t good : {4096u, 4608u}) taken([&](auto& o) { o.payload_nbytes = good; });
  for (const std::uint32_t bad : {0u, (1u << 20) + 1}) refused("max_open_files", [&](auto& o) { o.max_open_files = bad; });
  taken([](auto& o) { o.max_open_files = 1; });
  for (const std::uint32_t bad : {0u, 65u}) refused("max_batch", [&](auto& o) { o.max_batch = bad; });
  for (const std::uint32_t good : {1u, 64u}) taken([&](auto& o) { o.max_batch = good; });
  for (const int bad : {0, -1}) refused("watch_interval", [&](auto& o) { o.watch_interval = std::chrono::milliseconds(bad); });
}

TEST(service_counters, opens_by_kind) {
  const temp_dir dir;
  dir.add("f", 100, 1);
  const auto opens_of = [](std::shared_ptr<store::store> files) {
    service::service host(simt::cpu_platform(), std::move(files), {.nrings = 1, .nslots = 2, .nworkers = 1});
    ring_client client(host.transport().rings);
    const auto file = client.open("f");
    EXPECT_GE(file.result, 0);
    EXPECT_EQ(client.close(file.handle), 0);
    const service::service_counters now = host.counters();
    EXPECT_EQ(now.closes, 1u);
    return std::vector<std::uint64_t>{now.opens, now.opens_nil, now.opens_pull, now.opens_staged};
  };
  const auto mem = std::make_shared<store::mem_store>(simt::cpu_platform());
  mem->put("f", content(1, 0, 100));
  EXPECT_EQ(opens_of(std::make_shared<store::nil_store>(100)), (std::vector<std::uint64_t>{1, 1, 0, 0}));
  EXPECT_EQ(opens_of(mem), (std::vector<std::uint64_t>{1, 0, 1, 0}));
  EXPECT_EQ(opens_of(std::make_shared<store::posix_store>(dir.path())), (std::vector<std::uint64_t>{1, 0, 0, 1}));
}

TEST(a_store_of_open_alone, refuses_calls_on_paths_and_writes) {
  service::service host(simt::cpu_platform(), std::make_shared<store::nil_store>(100),
                        {.nrings = 1, .nslots = 2, .writable = true, .nworkers = 1});
  ring_client client(host.transport().rings);
  const auto path_call = [&](opcode op, std::string_view to = {}) {
    transport::request what{};
    what.op = op;
    what.handle = 4096;  // of read_dir: room
    return client.on_path(what, "f", to).result;
  };
  EXPECT_EQ(path_call(opcode::unlink), -EROFS);
  EXPECT_EQ(path_call(opcode::rename, "g"), -EROFS);
  EXPECT_EQ(path_call(opcode::mkdir), -EROFS);
  EXPECT_EQ(path_call(opcode::stat), -ENOSYS);
  EXPECT_EQ(path_call(opcode::read_dir), -ENOSYS);
  const auto file = store::nil_store(100).open("f", O_RDONLY, std::make_unique<int>().get());
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->pwrite({}, 0), -EBADF);
  EXPECT_EQ(file->sync(false), -EBADF);
  EXPECT_EQ(file->truncate(0), -EBADF);
  EXPECT_EQ(file->note_written_in_place(0, true), -EBADF);
  EXPECT_EQ(file->check_version(), 0);
}

}  // namespace
}  // namespace gpufs::test
