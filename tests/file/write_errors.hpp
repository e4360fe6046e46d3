// SPDX-License-Identifier: Apache-2.0
// A mount whose store goes wrong where a test says.
#pragma once
#include "file/faulty_store.hpp"
#include "file/writing.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

using std::chrono::milliseconds;
using std::chrono::seconds;

class write_errors : public ::testing::Test {
 protected:
  explicit write_errors(milliseconds io_timeout = seconds(60)) { options_.io_timeout = io_timeout; }

  mount& start(std::uint32_t nframes = 64) {
    options_.writable = true;
    options_.page_nbytes = page;
    options_.cache_nbytes = std::uint64_t{nframes} * page;
    options_.max_open_files = 64;
    options_.internals.request_rings = 4;
    options_.internals.request_slots = 8;
    options_.nworkers = 4;
    options_.custom_store = store_;
    mount_ = std::make_unique<mount>(dir_.path(), options_);
    return *mount_;
  }
  players one() const { return {mount_->ref(), {}}; }
  faults& wrong() const { return store_->wrong(); }

  void expect_idle() const {
    const mount_counters now = mount_->counters();
    EXPECT_EQ(now.unwritten_pages, 0u);
    EXPECT_EQ(now.dirty_frames, 0u);
    EXPECT_EQ(now.pins, 0u);
    EXPECT_EQ(now.pinned_frames, 0u);
  }
  bool log_has(const std::string& a, const std::string& b) const {
    for (const std::string& line : mount_->log()) {
      if (line.find(a) != std::string::npos && line.find(b) != std::string::npos) return true;
    }
    return false;
  }

  temp_dir dir_;
  mount_options options_;
  const std::shared_ptr<faulty_store> store_ =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
  std::unique_ptr<mount> mount_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
