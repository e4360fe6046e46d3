// SPDX-License-Identifier: Apache-2.0
// mount_options that cannot be are refused with the option's name; those just beside them are not.
#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

class mount_options_are : public ::testing::Test {
 protected:
  // What is said when a mount is made with these options: nothing when it is made.
  template <class Set>
  std::string said(const Set& set) const {
    mount_options o{
        .cache_nbytes = 64 << 10, .page_nbytes = 4096, .max_open_files = 16, .nworkers = 2, .internals = {.request_rings = 4}};
    set(o);
    try {
      const mount m(dir_.path(), o);
      return "";
    } catch (const error& e) {
      return e.what();
    }
  }
  template <class Set>
  void expect_refused(const char* option, const Set& set) const {
    EXPECT_NE(said(set).find(option), std::string::npos) << option << ": " << said(set);
  }
  template <class Set>
  void expect_made(const Set& set) const {
    EXPECT_EQ(said(set), "");
  }
  temp_dir dir_;
};

TEST_F(mount_options_are, refused_beyond_their_ends_and_taken_at_them) {
  for (const std::uint32_t bad : {0u, 256u, 511u, 513u, 1536u, 4u << 20}) {
    expect_refused("page_nbytes", [&](mount_options& o) { o.page_nbytes = bad; });
  }
  expect_made([](mount_options& o) { o.page_nbytes = 512; });
  expect_made([](mount_options& o) { o.cache_nbytes = 2 * (o.page_nbytes = 2 << 20); });
  expect_refused("cache_nbytes", [](mount_options& o) { o.cache_nbytes = 4095; });
  expect_made([](mount_options& o) { o.cache_nbytes = 4096; });
  expect_refused("cache_nbytes", [](mount_options& o) { o.cache_nbytes = (std::uint64_t{1} << 28) * 4096 + 4096; });
  for (const std::uint32_t bad : {0u, (1u << 20) + 1}) {
    expect_refused("max_open_files", [&](mount_options& o) { o.max_open_files = bad; });
  }
  expect_made([](mount_options& o) { o.max_open_files = 1; });
  for (const std::uint32_t bad : {0u, (1u << 24) + 1}) {
    expect_refused("max_mappings", [&](mount_options& o) { o.max_mappings = bad; });
  }
  expect_made([](mount_options& o) { o.max_mappings = 1; });
  for (const std::uint32_t bad : {1u, 3u}) {
    expect_refused("request_slots", [&](mount_options& o) { o.internals.request_slots = bad; });
  }
  for (const std::uint32_t good : {2u, 1024u}) {
    expect_made([&](mount_options& o) { o.internals.request_slots = good, o.internals.request_rings = 1; });
  }
  expect_made([](mount_options& o) { o.internals.request_slots = 2, o.internals.request_rings = 1u << 15; });
  expect_refused("request_rings",
                 [](mount_options& o) { o.internals.request_slots = 2, o.internals.request_rings = (1u << 15) + 1; });
  for (const std::uint32_t bad : {0u, 65u}) {
    expect_refused("request_batch", [&](mount_options& o) { o.internals.request_batch = bad; });
  }
  for (const std::uint32_t good : {1u, 64u}) expect_made([&](mount_options& o) { o.internals.request_batch = good; });
  expect_refused("nworkers", [](mount_options& o) { o.nworkers = 1025; });
  expect_made([](mount_options& o) { o.nworkers = 1; });
  expect_refused("store", [](mount_options& o) { o.store = static_cast<store_kind>(3); });
  expect_refused("store", [](mount_options& o) { o.store = static_cast<store_kind>(-1); });
  expect_refused("on_failed_accesses", [](mount_options& o) { o.on_failed_accesses = static_cast<failed_accesses>(3); });
  expect_refused("on_failed_accesses", [](mount_options& o) { o.on_failed_accesses = static_cast<failed_accesses>(-1); });
  for (const int bad : {0, -1}) {
    expect_refused("io_timeout", [&](mount_options& o) { o.io_timeout = std::chrono::nanoseconds(bad); });
    expect_refused("end_timeout", [&](mount_options& o) { o.end_timeout = std::chrono::nanoseconds(bad); });
  }
  expect_refused("frame_timeout", [](mount_options& o) { o.frame_timeout = std::chrono::nanoseconds(-1); });
  expect_made([](mount_options& o) { o.frame_timeout = std::chrono::nanoseconds(0); });
}

// What options() says of a mount.
TEST_F(mount_options_are, filled_in) {
  const auto of = [this](const mount_options& o) { return mount(dir_.path(), o).options(); };
  const mount_options usual = of({.cache_nbytes = 1024 * 4096});
  EXPECT_EQ(usual.dirty_nbytes, 256u * 4096);
  EXPECT_EQ(usual.internals.nrings, 16u);
  EXPECT_EQ(usual.internals.request_slots, 8u);
  EXPECT_EQ(usual.internals.request_rings, 256u);
  EXPECT_EQ(usual.max_mappings, 4096u);
  EXPECT_GT(usual.pin_nbytes, 0u);
  EXPECT_EQ(of({.cache_nbytes = 16 << 20, .page_nbytes = 2 << 20}).internals.request_rings, 16u) << "128 requests of 2 MiB";
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .dirty_nbytes = 9 * 4096}).dirty_nbytes, 5u * 4096);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .internals = {.nrings = 11}}).internals.nrings, 10u);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .internals = {.nrings = 3}}).internals.nrings, 3u);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096}).internals.nrings, 1u);
  EXPECT_EQ(of({.cache_nbytes = 64 << 10, .max_mappings = 5}).max_mappings, 8u);
  EXPECT_EQ(of({.cache_nbytes = 64 << 10, .io_timeout = std::chrono::nanoseconds(1)}).io_timeout.count(), 1);
}

TEST_F(mount_options_are, refused_where_the_root_is_no_directory) {
  dir_.add("file", 10, 1);
  const auto said_of = [](const std::string& root) -> std::string {
    try {
      const mount m(root, {.cache_nbytes = 64 << 10});
      return "";
    } catch (const error& e) {
      return e.what();
    }
  };
  EXPECT_NE(said_of(dir_ / "file").find("is not a directory"), std::string::npos);
  EXPECT_NE(said_of(dir_ / "none").find("No such file"), std::string::npos);
  EXPECT_NE(said_of(dir_.path() + std::string("\0x", 2)).find("NUL"), std::string::npos);
  EXPECT_EQ(said_of(dir_.path()), "");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
