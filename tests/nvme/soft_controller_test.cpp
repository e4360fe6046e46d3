// SPDX-License-Identifier: Apache-2.0
// The controller in software notes what drivers must not do: here is one that does it.
#include "gpufs/nvme/soft_controller.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "../../src/nvme/host_queue.hpp"

namespace gpufs::test {
namespace {

using nvme::soft_controller;
using nvme::soft_fault;
using nvme::soft_options;

// A driver of a few lines, with a pair of queues of eight slots.
class small_driver {
 public:
  explicit small_driver(const soft_options& options = {.nblocks = 64})
      : soft(simt::cpu_platform(), options),
        admin(soft, simt::cpu_platform()),
        out(soft, simt::cpu_platform(), 4096),
        in(soft, simt::cpu_platform(), 4096),
        data(soft, simt::cpu_platform(), 16384) {
    admin.begin(4);
    soft.write32(0x14, 0x460001);
    wait([&] { return soft.read32(0x1c) == 1; });
  }
  ~small_driver() {
    soft.write32(0x14, 0);
    wait([&] { return soft.read32(0x1c) == 0; });
  }

  int ask(std::uint32_t opcode, std::uint64_t prp1, std::uint32_t cdw10, std::uint32_t cdw11) {
    nvme::submission what{};
    what.cdw0 = opcode;
    what.prp1 = prp1;
    what.cdw10 = cdw10;
    what.cdw11 = cdw11;
    return admin.execute(what, 5'000'000'000);
  }
  void make_queues() {
    EXPECT_EQ(ask(5, in.page_at(0), 7 << 16 | 1, 1), 0);
    EXPECT_EQ(ask(1, out.page_at(0), 7 << 16 | 1, 1 << 16 | 1), 0);
  }
  // A read of one block, which `change` makes another; it is not rung for.
  template <class Change>
  void write(std::uint32_t slot, std::uint32_t id, Change change) {
    nvme::submission what{};
    what.cdw0 = 2 | id << 16;
    what.nsid = 1;
    what.prp1 = data.page_at(0);
    change(what);
    std::memcpy(out.data() + slot * 64, &what, 64);
  }
  void ring(std::uint32_t bell, std::uint32_t value) {
    std::atomic_ref(*soft.doorbell(0x1000 + 4 * bell)).store(value, std::memory_order_release);
  }
  template <class Condition>
  static void wait(Condition holds) {
    for (int i = 0; i < 5000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(holds());
  }
  bool notes(const char* words) {
    for (const std::string& each : soft.violations()) {
      if (each.find(words) != std::string::npos) return true;
    }
    return false;
  }
  void expect_noted(const char* words) {
    SCOPED_TRACE(words);
    wait([&] { return notes(words); });
  }

  soft_controller soft;
  nvme::host_queue admin;
  nvme::dma_region out, in, data;
};

TEST(soft_controller, finds_nothing_wrong_with_a_driver_that_is_right) {
  small_driver one;
  one.make_queues();
  for (std::uint32_t i = 0; i < 20; ++i) {
    one.write(i % 8, i, [](auto&) {});
    one.ring(2, (i + 1) % 8);
    small_driver::wait([&] { return one.soft.done().completions == i + 3; });
    one.ring(3, (i + 1) % 8);
  }
  EXPECT_EQ(one.soft.violations(), std::vector<std::string>{});
  EXPECT_EQ(one.soft.done().commands, 20u);
}

TEST(soft_controller, notes_doorbells_that_are_wrong) {
  {
    small_driver one;
    one.make_queues();
    one.ring(2, 8);
    one.expect_noted("beyond its queue");
  }
  {
    small_driver one;
    one.make_queues();
    one.ring(4, 1);
    one.expect_noted("not there");
  }
  {
    small_driver one;
    one.make_queues();
    EXPECT_EQ(one.ask(0, 0, 1, 0), 0);
    one.ring(2, 3);
    one.expect_noted("not there");
  }
  {
    small_driver one({.nblocks = 64, .latency_ns = 200'000'000, .lazy = false});
    one.make_queues();
    for (std::uint32_t i = 0; i < 3; ++i) one.write(i, i, [](auto&) {});
    one.ring(2, 3);
    small_driver::wait([&] { return one.soft.done().commands == 3; });
    EXPECT_EQ(one.soft.violations(), std::vector<std::string>{});
    one.ring(3, 2);
    one.expect_noted("passes what was posted");
  }
}

// Seven commands are there, of which it has fetched one.
void have_seven(small_driver& one) {
  one.make_queues();
  for (std::uint32_t i = 0; i < 7; ++i) one.write(i, i, [](auto&) {});
  one.ring(2, 7);
  small_driver::wait([&] { return one.soft.done().commands != 0; });
}
constexpr soft_options slow = {.nblocks = 64, .fetch_every_ns = 300'000'000};

TEST(soft_controller, notes_a_tail_that_goes_back) {
  small_driver one(slow);
  have_seven(one);
  one.ring(2, 5);
  one.expect_noted("goes back");
}

TEST(soft_controller, notes_a_command_that_changes_behind_its_doorbell) {
  small_driver one(slow);
  have_seven(one);
  for (std::uint32_t i = 0; i < 7; ++i) one.write(i, i, [](auto& what) { what.cdw10 = 9; });
  one.expect_noted("changes after its doorbell");
}

TEST(soft_controller, notes_commands_that_are_wrong) {
  struct {
    const char* says;
    void (*change)(nvme::submission&);
  } const cases[] = {
      {"PRP1 is no multiple of 4", [](auto& what) { what.prp1 += 2; }},
      {"PRP1 is no memory", [](auto& what) { what.prp1 = std::uint64_t{1} << 50; }},
      {"PRP2 begins no page", [](auto& what) { what.cdw12 = 15, what.prp2 = what.prp1 + 4; }},
      {"PRP2 is no memory", [](auto& what) { what.cdw12 = 15, what.prp2 = 0; }},
      {"a list is no memory", [](auto& what) { what.cdw12 = 31, what.prp2 = 0; }},
      {"an entry of a list", [](auto& what) { what.cdw12 = 31, what.prp2 = what.prp1; }},
      {"more than MDTS", [](auto& what) { what.cdw10 = 0, what.cdw12 = 63; }},
      {"reserved words", [](auto& what) { what.cdw3 = 1; }},
      {"fused", [](auto& what) { what.cdw0 |= 1 << 14; }},
  };
  for (const auto& each : cases) {
    small_driver one({.nblocks = 64, .mdts = 2});
    one.make_queues();
    one.write(0, 0, each.change);
    one.ring(2, 1);
    one.expect_noted(each.says);
  }
}

TEST(soft_controller, notes_identifiers_that_are_in_use) {
  small_driver one({.nblocks = 64, .latency_ns = 200'000'000});
  one.make_queues();
  for (std::uint32_t i = 0; i < 2; ++i) one.write(i, 5, [](auto&) {});
  one.ring(2, 2);
  one.expect_noted("in use");
}

TEST(soft_controller, notes_queues_that_are_wrong) {
  small_driver one;
  EXPECT_NE(one.ask(1, one.out.page_at(0), 7 << 16 | 1, 1 << 16 | 1), 0) << "there is no completion queue";
  EXPECT_NE(one.ask(5, one.in.page_at(0), 2000 << 16 | 1, 1), 0) << "MQES";
  EXPECT_NE(one.ask(5, one.in.page_at(0), 7 << 16, 1), 0) << "the admin queue's number";
  EXPECT_EQ(one.soft.violations(), std::vector<std::string>{});
  one.make_queues();
  EXPECT_NE(one.ask(5, one.in.page_at(0), 7 << 16 | 1, 1), 0) << "it is there";
  EXPECT_NE(one.ask(4, 0, 1, 0), 0) << "its submission queue is there";
  EXPECT_EQ(one.ask(0, 0, 1, 0), 0);
  EXPECT_EQ(one.ask(4, 0, 1, 0), 0);
  EXPECT_EQ(one.soft.violations(), std::vector<std::string>{});
  std::memset(one.in.data(), 0xff, 4096);
  EXPECT_EQ(one.ask(5, one.in.page_at(0), 7 << 16 | 1, 1), 0);
  one.expect_noted("phases that are not 0");
}

}  // namespace
}  // namespace gpufs::test
