// SPDX-License-Identifier: Apache-2.0
// Tables for kernels, where pinned memory comes late, or has an end.
#include "../../src/store/kernel_tables.hpp"

#include <gtest/gtest.h>

#include <atomic>

#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "forwarding_platform.hpp"

namespace gpufs::test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::size_t nextents = 1000;
constexpr std::uint64_t table_nbytes = 24'064, in_first_chunk = mib / table_nbytes;
static_assert((sizeof(nvme::file_layout) + nextents * sizeof(nvme::file_extent) + 63) / 64 * 64 == table_nbytes);

// The CPU's memory, of which pinned memory comes when a test opens the gate, from the second piece on.
class late_platform final : public forwarding_platform {
 public:
  late_platform() : forwarding_platform(simt::cpu_platform()) {}
  void* allocate_pinned(std::size_t nbytes) override {
    if (++nasked > 1) held.pass();
    return real_.allocate_pinned(nbytes);
  }
  std::atomic<int> nasked{0};
  gate held;
};

using table = std::shared_ptr<const nvme::file_layout>;

table make(store::kernel_tables& in, std::uint64_t number, std::size_t n = nextents) {
  return in.make(number, {}, std::vector<nvme::file_extent>(n, {number, 1, number}));
}

TEST(kernel_tables, wait_for_no_memory_where_kernels_may_wait_for_an_open) {
  late_platform machine;
  machine.held.close();
  std::vector<table> made;
  store::kernel_tables tables(machine, 4 * mib);
  while (const table one = make(tables, made.size())) made.push_back(one);
  EXPECT_EQ(made.size(), in_first_chunk);
  EXPECT_TRUE(wait_until([&] { return machine.held.waiting() == 1; })) << "a thread takes more ahead";
  EXPECT_EQ(make(tables, made.size()), nullptr);
  EXPECT_EQ(make(tables, 0), made[0]) << "it has its table already";
  EXPECT_FALSE(tables.lacks_room()) << "there will be some";
  machine.held.open();
  while (made.size() < 3 * in_first_chunk) {
    ASSERT_TRUE(wait_until([&] { return make(tables, made.size()) != nullptr; }));
    made.push_back(make(tables, made.size()));
  }
  EXPECT_FALSE(tables.lacks_room());
  for (std::uint64_t i = 0; i < made.size(); ++i) {
    ASSERT_EQ(made[i]->nextents, nextents);
    ASSERT_EQ(made[i]->extents[nextents - 1].begin, i);
  }
}

TEST(kernel_tables, have_all_of_their_memory_and_lack_what_may_be_given_up) {
  late_platform machine;
  machine.held.close();
  store::kernel_tables tables(machine, mib + mib / 2);
  EXPECT_EQ(make(tables, 1000, 2 * mib / sizeof(nvme::file_extent)), nullptr);
  EXPECT_FALSE(tables.lacks_room()) << "that one never has room";
  std::vector<table> made;
  while (const table one = make(tables, made.size())) made.push_back(one);
  EXPECT_FALSE(tables.lacks_room()) << "the rest of the room comes";
  machine.held.open();
  while (wait_until([&] { return make(tables, made.size()) != nullptr || tables.lacks_room(); }) && !tables.lacks_room())
    made.push_back(make(tables, made.size()));
  EXPECT_EQ(made.size(), in_first_chunk + mib / 2 / table_nbytes);
  tables.give_up();
  EXPECT_EQ(make(tables, made.size()), nullptr) << "all are in use";
  EXPECT_TRUE(tables.lacks_room());
  made.clear();
  tables.give_up();
  EXPECT_FALSE(tables.lacks_room());
  EXPECT_NE(make(tables, 500), nullptr) << "at once";
}

TEST(kernel_tables, that_are_larger_than_a_chunk_find_room_at_a_later_open) {
  late_platform machine;
  store::kernel_tables tables(machine, 4 * mib);
  constexpr std::size_t many = 2 * mib / sizeof(nvme::file_extent);
  EXPECT_EQ(make(tables, 1, many), nullptr);
  EXPECT_FALSE(tables.lacks_room());
  EXPECT_TRUE(wait_until([&] { return make(tables, 1, many) != nullptr; }));
}

}  // namespace
}  // namespace gpufs::test
