// SPDX-License-Identifier: Apache-2.0
// Mirrors: read from any copy that can be, written to all, and never read from one that a write did not reach.
#include "nvme/volumes.hpp"

#include <atomic>
#include <cerrno>
#include <new>
#include <thread>

#include "forwarding_platform.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t seed = disk_seed;
constexpr std::uint32_t page = 4096;

// Equal copies on n controllers.
std::vector<std::shared_ptr<soft_controller>> equal_disks(std::uint32_t n) {
  std::vector<std::shared_ptr<soft_controller>> soft;
  for (std::uint32_t i = 0; i < n; ++i) {
    soft.push_back(soft_disk({.nblocks = 640, .seed = i + 1}));
    soft.back()->write_image(0, content(seed, 0, 640 * 512));
  }
  return soft;
}
const nvme_volume two_copies{"m", nvme_volume_kind::mirror, {"c0n1", "c1n1"}, page};
constexpr std::uint32_t medium_error = 0x281 | 0x4000, denied = 0x286;

TEST(nvme_mirrors, are_read_from_all_copies_and_written_to_all) {
  for (const auto& [unit, page_nbytes] : {std::pair{4096u, 16384u}, std::pair{16384u, 4096u}}) {
    SCOPED_TRACE(unit);
    const disk_array on(equal_disks(3), {{"m", nvme_volume_kind::mirror, {"c0n1", "c1n1", "c2n1"}, unit}},
                        {.page_nbytes = page_nbytes, .nframes = 16});
    std::vector<std::byte> model = content(seed, 0, 640 * 512);
    std::vector<std::uint64_t> before;
    for (const auto& each : on.soft) before.push_back(each->done().commands);
    expect_random_reads(*on.fs, "m", model, unit);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_GT(on.soft[i]->done().commands, before[i] + 20) << i;
    expect_pointers_and_rows(*on.fs, "m", model);
    EXPECT_EQ(on.fs->counters().host_reads, 0u);
    write_at_random(on, "m", model, 8, 12);
    for (const auto& each : on.soft) {
      each->lose_power();
      EXPECT_TRUE(each->bytes() == model);
    }
    EXPECT_TRUE(on.read("m", model.size(), 0).bytes == model);
    EXPECT_EQ(on.files->left_out(), std::vector<std::string>{});
  }
}

TEST(nvme_mirrors, are_read_from_another_copy_where_one_fails) {
  const disk_array on(equal_disks(2), {two_copies});
  const std::vector<std::byte> model = content(seed, 0, 640 * 512);
  on.soft[0]->add({.opcode = 2, .times = 100'000, .status = medium_error});
  EXPECT_TRUE(on.read("m", model.size(), 0).bytes == model);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{}) << "a read that fails says nothing of other bytes";
  EXPECT_EQ(on.read("c0n1", page, 0).value, -EIO);
}

// Page 2 of the file is asked of copy 0 first, page 3 of copy 1.
TEST(nvme_mirrors, of_which_no_copy_can_be_read_give_the_first_ones_error) {
  const disk_array on(equal_disks(2), {two_copies}, {.nframes = 4});
  for (const std::uint64_t at : {2u, 3u}) {
    on.soft[0]->add({.opcode = 2, .first_lba = at * 8, .last_lba = at * 8 + 7, .status = medium_error});
    on.soft[1]->add({.opcode = 2, .first_lba = at * 8, .last_lba = at * 8 + 7, .status = denied});
    EXPECT_EQ(on.read("m", page, static_cast<std::int64_t>(at * page)).value, at == 2 ? -EIO : -EACCES);
    EXPECT_EQ(on.read("m", page, static_cast<std::int64_t>(at * page)).value, page);
  }
}

TEST(nvme_mirrors, of_which_a_copy_does_not_answer_are_read_from_the_other_in_time) {
  const disk_array on(equal_disks(2), {two_copies}, {.io_timeout = seconds(1)});
  on.soft[0]->add({.does = soft_fault::what::lose, .opcode = 2});
  const auto begin = std::chrono::steady_clock::now();
  const outcome got = on.read("m", page, 0);
  EXPECT_EQ(got.value, page);
  EXPECT_EQ(wrong_bytes(got, page, seed, 0), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(450)) << "half of the time is the first copy's";
}

// The slow copy has all the time that there is: a copy that nobody asks has no share of it.
TEST(nvme_mirrors, of_which_a_copy_is_left_out_give_the_others_all_the_time) {
  const disk_array on(equal_disks(2), {two_copies}, {.io_timeout = seconds(1)});
  on.soft[0]->add({.opcode = 1, .times = 1, .status = medium_error});
  EXPECT_EQ(on.write("m", content(seed, 0, page), 0), 0);
  ASSERT_EQ(on.files->left_out(), std::vector<std::string>{"c0n1"});
  on.soft[1]->add({.does = soft_fault::what::delay, .opcode = 2, .delay_ns = 650'000'000});
  EXPECT_EQ(on.read("m", page, 3 * page).value, page) << "of copy 1 first";
}

TEST(nvme_mirrors, go_on_where_a_controller_is_lost) {
  const disk_array on(equal_disks(2), {two_copies});
  std::vector<std::byte> model = content(seed, 0, 640 * 512);
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "m", O_RDONLY);
  warp.run(s);
  on.soft[0]->unplug();
  script reads;
  const auto all = reads.pread(0, model.size(), 0);
  reads.close(0);
  EXPECT_TRUE(warp.run(reads)[all].bytes == model);
  EXPECT_EQ(on.open("c0n1"), -ENODEV);
  EXPECT_GE(on.open("m"), 0);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{}) << "it has what the other has";
  write_at_random(on, "m", model, 5, 6);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c0n1"});
  EXPECT_TRUE(on.soft[1]->bytes() == model);
  EXPECT_TRUE(on.read("m", model.size(), 0).bytes == model);
  on.soft[1]->unplug();
  EXPECT_EQ(on.open("m"), -ENODEV);
}

TEST(nvme_mirrors, leave_a_copy_out_that_was_not_written) {
  const disk_array on(equal_disks(2), {two_copies});
  std::vector<std::byte> model = content(seed, 0, 640 * 512);
  on.soft[1]->add({.opcode = 1, .times = 1, .status = medium_error});
  const auto written = content(6, 0, 5 * page);
  EXPECT_EQ(on.write("m", written, 7 * page), 0);
  std::copy(written.begin(), written.end(), model.begin() + 7 * page);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c1n1"});
  const std::uint64_t before = on.soft[1]->done().commands;
  EXPECT_TRUE(on.read("m", model.size(), 0).bytes == model);
  EXPECT_EQ(on.write("m", written, 30 * page), 0);
  EXPECT_EQ(on.with("m", O_RDWR, [](script& s) { s.pread(0, page, 31 * page); })[1].value, page);
  EXPECT_EQ(on.soft[1]->done().commands, before) << "nobody uses it any more";
  // What is left alone has no other copy beside it: its error is the writer's, and it stays.
  on.soft[0]->add({.opcode = 1, .times = 1, .status = medium_error});
  EXPECT_EQ(on.write("m", written, 50 * page), -EIO);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c1n1"});
  EXPECT_EQ(on.read("m", page, 0).value, page);
  int error = 0;
  EXPECT_NE(on.files->open("m", O_RDONLY, &error)->reason().find("copies that are not read any more: c1n1"), std::string::npos);
}

// Counts copies to the device's memory. In the answer to a kernel's fsync one may wait for that kernel.
class counting_platform final : public forwarding_platform {
 public:
  counting_platform() : forwarding_platform(simt::this_platform()) {}
  void copy_to_device(void* dst, const void* src, std::size_t n) override {
    ++ncopies;
    forwarding_platform::copy_to_device(dst, src, n);
  }
  std::atomic<std::uint64_t> ncopies{0};
};

TEST(nvme_mirrors, leave_a_copy_out_without_a_copy_to_the_device) {
  counting_platform machine;
  const disk_array on(equal_disks(2), {two_copies}, {.machine = &machine});
  const std::uint64_t before = machine.ncopies;
  EXPECT_GT(before, 0u);
  on.soft[0]->add({.opcode = 1, .times = 1, .status = medium_error});
  const auto written = content(6, 0, 2 * page);
  EXPECT_EQ(on.write("m", written, 0), 0);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c0n1"});
  EXPECT_TRUE(on.read("m", 2 * page, 0).bytes == written);
  EXPECT_EQ(machine.ncopies, before);
}

// A controller, of which the host finds by its next look that it has failed, and by the one after that there is no memory.
class scarce_access final : public nvme::controller_access {
 public:
  explicit scarce_access(const soft_options& as) : soft(simt::this_platform(), as) {}
  std::uint32_t read32(std::uint32_t offset) override {
    constexpr std::uint32_t status = 0x1c, has_failed = 2;
    const std::uint32_t now = soft.read32(offset);
    if (offset != status || nlooks == 0) return now;
    if (--nlooks == 0) throw std::bad_alloc();
    return now | has_failed;
  }
  void write32(std::uint32_t offset, std::uint32_t value) override { soft.write32(offset, value); }
  std::uint32_t* doorbell(std::uint32_t offset) override { return soft.doorbell(offset); }
  std::vector<std::uint64_t> map(std::byte* memory, std::size_t nbytes) override { return soft.map(memory, nbytes); }
  void unmap(std::byte* memory) noexcept override { soft.unmap(memory); }
  std::string name() const override { return soft.name(); }

  soft_controller soft;
  std::uint32_t nlooks = 0;
};

TEST(nvme_mirrors, leave_a_copy_out_whose_write_finds_no_memory_and_nobody_waits_for_it) {
  const auto scarce = std::make_shared<scarce_access>(soft_options{.nblocks = 64});
  const auto other = soft_disk({.nblocks = 64});
  store::nvme_store files(simt::this_platform(), {scarce, other}, {.nqueues = 1, .writable = true, .look_every_ns = 0},
                          {two_copies});
  int error = 0;
  const auto file = files.open("m", O_RDWR, &error);
  ASSERT_TRUE(file);
  scarce->soft.add({.does = soft_fault::what::delay, .opcode = 1, .delay_ns = 300'000'000});
  scarce->nlooks = 2;
  const auto first = content(3, 0, page), second = content(4, 0, page);
  EXPECT_EQ(file->pwrite(first, 0), 0);
  EXPECT_EQ(scarce->nlooks, 0u);
  EXPECT_EQ(files.left_out(), std::vector<std::string>{"c0n1"});
  EXPECT_EQ(file->pwrite(second, 0), 0);
  const std::vector<std::byte> all = other->bytes();
  EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin()));
}

TEST(nvme_mirrors, that_fail_to_flush_a_copy_leave_it_out) {
  const disk_array on(equal_disks(3), {{"m", nvme_volume_kind::mirror, {"c0n1", "c1n1", "c2n1"}, page}});
  on.soft[2]->add({.opcode = 0, .times = 1, .status = medium_error});
  const auto written = content(6, 0, page);
  EXPECT_EQ(on.write("m", written, 0), 0);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c2n1"});
  for (const std::size_t i : {0u, 1u}) on.soft[i]->add({.opcode = 0, .times = 1, .status = medium_error});
  EXPECT_EQ(on.write("m", written, 0), -EIO);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c2n1"}) << "of two that fail together neither is better";
}

TEST(nvme_mirrors, leave_a_copy_out_that_has_another_size_by_now) {
  const disk_array on(equal_disks(2), {two_copies});
  on.soft[0]->resize(320);
  EXPECT_EQ(on.read("m", 640 * 512, 0).value, 640 * 512);
  EXPECT_EQ(on.files->left_out(), std::vector<std::string>{"c0n1"});
  on.soft[1]->resize(320);
  std::this_thread::sleep_for(milliseconds(11));  // what an open saw is believed for 10
  EXPECT_EQ(on.open("m"), -ESTALE);
  EXPECT_TRUE(on.log_has("the namespace c1n1 has 320 blocks of 512 bytes now, and had 640"));
}

TEST(nvme_mirrors, keep_their_parts_from_being_written_alone) {
  const auto soft = partitioned();
  const auto other = soft_disk({.nblocks = 260});
  const disk_array on({soft, other}, {{"m", nvme_volume_kind::mirror, {"c0n1p1", "c1n1"}, page}});
  for (const char* each : {"c0n1", "c0n1p1", "c1n1"}) {
    EXPECT_EQ(on.open(each, O_RDWR), -EBUSY) << each;
    EXPECT_GE(on.open(each), 0) << each;
  }
  EXPECT_TRUE(on.log_has("a copy of the mirror in \"m\": write that"));
  EXPECT_GE(on.open("c0n1p3", O_RDWR), 0);
  EXPECT_GE(on.open("m", O_RDWR), 0);
}

// Or copies would have the bytes of different ones. Calls wait for the one queue of the slow controller, and none knows who is
// next.
TEST(nvme_mirrors, have_equal_copies_after_threads_have_written_the_same_bytes) {
  const disk_array on({soft_disk({.nblocks = 64}), soft_disk({.nblocks = 64, .latency_ns = 50'000})}, {two_copies},
                      {.driver = {.nqueues = 2, .writable = true, .nhost_queues = 1}});
  for (int round = 0; round < static_cast<int>(fewer(20)); ++round) {
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        int error = 0;
        const auto file = on.files->open("m", O_RDWR, &error);
        for (std::uint64_t i = 0; i < 8; ++i) {
          EXPECT_EQ(file->pwrite(content(t * 100 + i, 0, 3000), static_cast<std::int64_t>((t + i) % 6 * 4000)), 0);
        }
      });
    }
    for (std::thread& each : threads) each.join();
    ASSERT_TRUE(on.soft[0]->bytes() == on.soft[1]->bytes()) << round;
  }
}

TEST(nvme_mirrors, may_be_parts_of_stripes) {
  std::vector<std::shared_ptr<soft_controller>> soft;
  for (const std::uint32_t n : {1u, 2u, 1u, 2u}) {
    soft.push_back(soft_disk({.nblocks = 640, .seed = soft.size() + 1}));
    soft.back()->write_image(0, content(n, 0, 640 * 512));
  }
  const disk_array on(soft, {{"a", nvme_volume_kind::mirror, {"c0n1", "c2n1"}, page},
                             {"b", nvme_volume_kind::mirror, {"c1n1", "c3n1"}, page},
                             {"ab", nvme_volume_kind::stripe, {"a", "b"}, 2 * page}});
  std::vector<std::byte> model = striped(on, {{0, 1}, {1, 1}}, 2 * page);
  expect_random_reads(*on.fs, "ab", model, 6);
  on.soft[0]->unplug();
  on.soft[3]->unplug();
  expect_random_reads(*on.fs, "ab", model, 7);
  write_at_random(on, "ab", model, 8, 8);
  EXPECT_EQ(on.files->left_out(), (std::vector<std::string>{"c0n1", "c3n1"}));
  EXPECT_TRUE(on.read("ab", model.size(), 0).bytes == model);
  EXPECT_TRUE(striped(on, {{2, 1}, {1, 1}}, 2 * page) == model);
  const auto a = on.soft[2]->bytes();
  EXPECT_TRUE(on.read("a", a.size(), 0).bytes == a) << "the mirror's own file knows it, too";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
