// SPDX-License-Identifier: Apache-2.0
#include "leftovers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include "../src/mount/leftovers.hpp"

namespace gpufs::test {
namespace {

std::atomic<const char*> expected{nullptr};
std::atomic<bool> pins_expected{false};

void check(const leftovers& left) {
  if (!left.any() || (expected != nullptr && (left.pins == 0 || pins_expected))) return;
  ADD_FAILURE() << "a mount ends with " << left.pins << " pins, " << left.open_slots << " files open in kernels, "
                << left.host_files << " on the host, " << left.unwritten_pages << " pages unwritten, " << left.changed_frames
                << " frames changed";
}

std::ptrdiff_t open_descriptors() {
  std::error_code none;
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd", none), std::filesystem::directory_iterator());
}

class listener final : public ::testing::EmptyTestEventListener {
 public:
  listener() { leftovers_watcher = &check; }

 private:
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    expected = nullptr;
    descriptors_ = open_descriptors();
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    // A GPU's driver opens its own when it wants.
    if (GPUFS_TESTS_COUNT_DESCRIPTORS && expected == nullptr && !test.result()->Skipped()) {
      EXPECT_EQ(open_descriptors(), descriptors_) << "descriptors are left open";
    }
    expected = nullptr;
  }
  std::ptrdiff_t descriptors_ = 0;
};

[[maybe_unused]] const bool installed = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new listener);
  return true;
}();

}  // namespace

void expect_leftovers(const char* why) {
  pins_expected = true;
  expected = why;
}
void expect_leftovers_but_pins(const char* why) {
  pins_expected = false;
  expected = why;
}

}  // namespace gpufs::test
