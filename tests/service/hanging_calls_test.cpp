// SPDX-License-Identifier: Apache-2.0
// Calls that hang in a store of local files: made to by the test, as no disk does so when it is asked to.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <functional>

#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "gpufs/service/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"

namespace gpufs::test {
namespace {

using service::opcode;
using std::chrono::seconds;

// A real store, but for what a test puts in its place.
class hooked_store final : public store::store {
 public:
  using file_ptr = std::unique_ptr<gpufs::store::open_file>;
  explicit hooked_store(std::shared_ptr<gpufs::store::store> real) : real_(std::move(real)) {}
  std::function<void(std::string_view path)> before_open;
  std::function<file_ptr(std::string_view path, file_ptr)> opened;

  file_ptr open(std::string_view path, int flags, int* error) override {
    if (before_open) before_open(path);
    file_ptr file = real_->open(path, flags, error);
    return file && opened ? opened(path, std::move(file)) : std::move(file);
  }
  std::string_view name() const override { return "hooked"; }

 private:
  std::shared_ptr<gpufs::store::store> real_;
};

// Each test with io_uring and without.
class hanging_calls : public testing::TestWithParam<bool> {
 protected:
  void start(service::service_options options = {}) {
    options.nrings = 32;
    options.writable = true;
    options.io_uring = GetParam();
    files_ =
        std::make_shared<hooked_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
    files_->before_open = before_open_;
    files_->opened = opened_;
    let_file_times_pass();
    service_ = std::make_unique<service::service>(simt::cpu_platform(), files_, options);
    client_ = std::make_unique<ring_client>(service_->rings());
  }
  temp_dir dir_;
  std::function<void(std::string_view)> before_open_;
  std::function<hooked_store::file_ptr(std::string_view, hooked_store::file_ptr)> opened_;
  std::shared_ptr<hooked_store> files_;
  std::unique_ptr<service::service> service_;
  std::unique_ptr<ring_client> client_;
};

TEST_P(hanging_calls, few_spare_threads_answer_all) {
  dir_.add("file", 5000, 1);
  for (const std::uint32_t nspare : {0u, 1u, 2u}) {
    start({.nworkers = 2, .nspare_workers = nspare});
    const auto file = client_->open("file", O_RDWR);
    ASSERT_EQ(file.result, 0) << nspare;
    EXPECT_EQ(client_->write(file.handle, 0, content(2, 0, 100)), 100) << nspare;
    EXPECT_EQ(client_->on_file(opcode::sync, file.handle), 0) << nspare;
    EXPECT_EQ(client_->close(file.handle), 0) << nspare;
  }
}

INSTANTIATE_TEST_SUITE_P(io, hanging_calls, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
