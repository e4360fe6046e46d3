// SPDX-License-Identifier: Apache-2.0
// What kernels write, request by request: bytes and masks, refusals of what a device may make up, calls on paths.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "gpufs/service/service.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"

namespace gpufs::test {
namespace {

using service::opcode;
using service::source_kind;

// Each test with io_uring and without.
class write_test : public testing::TestWithParam<bool> {
 protected:
  void start(std::shared_ptr<store::store> files, service::service_options options = {}) {
    options.io_uring = GetParam();
    options.writable = true;
    client_.reset();
    service_ = std::make_unique<service::service>(simt::cpu_platform(), std::move(files), options);
    client_ = std::make_unique<ring_client>(service_->rings());
  }
  void start_posix(service::service_options options = {}) {
    start(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}), options);
  }
  std::vector<std::byte> bytes_of(const std::string& name) const {
    std::ifstream in(dir_ / name, std::ios::binary);
    std::vector<std::byte> bytes;
    for (char c; in.get(c);) bytes.push_back(static_cast<std::byte>(c));
    return bytes;
  }

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
  EXPECT_EQ(client_->on_file(opcode::sync, file.handle, 0, service::sync_data_only), 0);
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

INSTANTIATE_TEST_SUITE_P(io, write_test, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "uring" : "blocking"); });

}  // namespace
}  // namespace gpufs::test
