// SPDX-License-Identifier: Apache-2.0
// A service that may write, over a store, and a client that asks it as a device would.
#pragma once
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../../src/service/for_tests.hpp"
#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "file/noting_store.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"
#include "set_meanwhile.hpp"
#include "store/posix_extras.hpp"

namespace gpufs::test {

using transport::opcode;

// Each test with io_uring and without.
class writing_service : public testing::TestWithParam<bool> {
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

inline transport::request asking(opcode op, std::uint32_t flags = 0, std::int64_t offset = 0, std::uint32_t mode = 0) {
  transport::request ask{};
  ask.op = op;
  ask.flags = flags;
  ask.offset = offset;
  ask.mode = mode;
  return ask;
}

inline std::shared_ptr<noting_store> noting(const std::string& root) {
  return std::make_shared<noting_store>(std::make_shared<store::posix_store>(root, store::posix_options{.writable = true}));
}

inline constexpr auto most = std::numeric_limits<std::int64_t>::max();

inline transport::request write_request(std::uint32_t handle, std::int64_t offset, std::uint32_t nbytes, std::uint32_t skip = 0,
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

}  // namespace gpufs::test
