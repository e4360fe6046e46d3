// SPDX-License-Identifier: Apache-2.0
// A service over a store, and a client that asks it as a device would.
#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "../../src/service/for_tests.hpp"
#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"
#include "set_meanwhile.hpp"

namespace gpufs::test {

using transport::opcode;

// Each test with io_uring and without.
class running_service : public testing::TestWithParam<bool> {
 protected:
  void start(std::shared_ptr<store::store> files, service::service_options options = {}) {
    client_.reset();
    service_ = std::make_unique<service::service>(simt::cpu_platform(), std::move(files), options);
    client_ = std::make_unique<ring_client>(service_->transport().rings);
  }
  void start_posix(service::service_options options = {}) {
    let_file_times_pass();
    start(std::make_shared<store::posix_store>(dir_.path()), options);
  }
  std::int64_t raw(opcode op, std::uint32_t handle, std::int64_t offset, std::uint32_t nbytes) {
    transport::request ask{};
    ask.op = op;
    ask.handle = handle;
    ask.offset = offset;
    ask.nbytes = nbytes;
    return client_->call(ask).result;
  }
  std::uint32_t open_id(const char* path) {
    const auto got = client_->open(path);
    EXPECT_EQ(got.result, 0) << path;
    EXPECT_EQ(client_->close(got.handle), 0);
    return got.cache_id;
  }

  const set_meanwhile<bool> io_uring_{service::for_tests::io_uring, GetParam()};
  temp_dir dir_;
  std::unique_ptr<service::service> service_;
  std::unique_ptr<ring_client> client_;
};

}  // namespace gpufs::test
