// SPDX-License-Identifier: Apache-2.0
// A mount of a directory with one good file, which must be readable after whatever a test does to the mount.
#pragma once
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t good_seed = 7, good_nbytes = 20000;

class bad_input : public ::testing::TestWithParam<store_kind> {
 protected:
  bad_input() {
    dir.add("good", good_nbytes, good_seed);
    options.cache_nbytes = 16 * 4096;
    options.max_open_files = 1 << 18;  // of which most have no memory yet: a forged number may be of those
    options.nworkers = 2;
    options.frame_timeout = std::chrono::milliseconds(50);
  }

  void TearDown() override {
    if (!fs_) return;
    const mount_counters before = fs_->counters();
    EXPECT_EQ(before.pinned_frames, 0u);
    EXPECT_EQ(before.io_timeouts, 0u);
    expect_usable();
    EXPECT_EQ(fs_->counters().pinned_frames, 0u);
  }

  mount& fs() {
    if (!fs_) {
      options.store = GetParam();
      fs_.emplace(dir.path(), options);
    }
    return *fs_;
  }

  void expect_usable() {
    players warp(fs().ref(), {});
    script s;
    s.open(0, "good");
    const auto read = s.pread(0, 6000, 3000);
    const auto end = s.close(0);
    const auto got = warp.run(s);
    EXPECT_GE(got[0].value, 0) << "the mount is not usable";
    EXPECT_EQ(got[read].value, 6000) << "the mount is not usable";
    EXPECT_EQ(wrong_bytes(got[read], 6000, good_seed, 3000), 0u);
    EXPECT_EQ(got[end].value, 0);
  }

  // Opening gives the error, in every kind of group, and is counted.
  void expect_open(const std::optional<std::string>& path, int error, int flags = O_RDONLY) {
    for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
      const std::uint64_t before = fs().counters().open_errors;
      players groups(fs().ref(), {.grid = 1, .block = 64, .all = kind});
      script s;
      s.open(0, path, flags);
      for (const auto& got : groups.run_all(s)) {
        EXPECT_EQ(got[0].value, -error) << (path ? path->substr(0, 60) : "NULL") << " by kind " << static_cast<int>(kind);
      }
      EXPECT_EQ(fs().counters().open_errors - before, error == 0 ? 0 : groups.size());
    }
  }

  // Runs one script in one warp, with the file of `path` open as file 0.
  std::vector<outcome> with_open(const std::string& path, script s) {
    players warp(fs().ref(), {});
    script first, last;
    first.open(0, path);
    last.close(0);
    EXPECT_GE(warp.run(first)[0].value, 0);
    auto got = warp.run(s);
    EXPECT_EQ(warp.run(last)[0].value, 0);
    return got;
  }

  temp_dir dir;
  mount_options options;

 private:
  std::optional<mount> fs_;
};

inline std::string store_name(const ::testing::TestParamInfo<store_kind>& tested) {
  return tested.param == store_kind::posix ? "posix" : tested.param == store_kind::mapped ? "mapped" : "automatic";
}
inline auto every_store() { return ::testing::Values(store_kind::posix, store_kind::mapped, store_kind::automatic); }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
