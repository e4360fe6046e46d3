// SPDX-License-Identifier: Apache-2.0
// Queues under many schedules: the controller is a lane of the launch, and so comes between any two steps of others. On the CPU
// machine only.
#include "file/harness.hpp"
#include "forwarding_platform.hpp"
#include "nvme/rig.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

template <class Group>
class nvme_schedules : public testing::Test {};
using groups = testing::Types<simt::thread, simt::tile<8>, simt::warp>;
TYPED_TEST_SUITE(nvme_schedules, groups);

template <class Group>
void explore(rig& on, std::uint64_t nseeds, simt::schedule_policy policy, nvme::controller* reset = nullptr) {
  for (std::uint64_t seed = 1; seed <= nseeds && !testing::Test::HasFailure(); ++seed) {
    play_program<Group>(on, seed, 32, 3, 2,
                        {.seed = seed,
                         .nthreads = 1,
                         .policy = policy,
                         .nsteps = 20'000,
                         .delay_percent = policy == simt::schedule_policy::priorities ? 20u : 0u},
                        {&on.soft, reset});
    EXPECT_EQ(on.soft.violations(), std::vector<std::string>{});
  }
}
// One queue, of so many slots that lanes wait for them, or do not.
template <class Group>
void explore(std::uint32_t depth, std::uint64_t nseeds, simt::schedule_policy policy) {
  rig on({.nblocks = 128}, {.nqueues = 1, .depth = depth, .writable = true});
  explore<Group>(on, nseeds, policy);
}
TYPED_TEST(nvme_schedules, that_are_random_give_each_lane_its_blocks) {
  explore<TypeParam>(64, fewer(TypeParam::size() == 1 ? 60 : 20), simt::schedule_policy::random);
  explore<TypeParam>(5, fewer(TypeParam::size() == 1 ? 60 : 20), simt::schedule_policy::random);
}

TYPED_TEST(nvme_schedules, that_hold_lanes_back_give_each_lane_its_blocks) {
  explore<TypeParam>(64, fewer(TypeParam::size() == 1 ? 60 : 10), simt::schedule_policy::priorities);
  explore<TypeParam>(5, fewer(TypeParam::size() == 1 ? 60 : 10), simt::schedule_policy::priorities);
}

// A device whose copies, as looks at registers, are points where other lanes may go on: so the host's work may be a lane's.
class yielding_platform final : public forwarding_platform {
 public:
  using forwarding_platform::forwarding_platform;
  void copy_to_device(void* to, const void* from, std::size_t nbytes) override {
    simt::preempt();
    forwarding_platform::copy_to_device(to, from, nbytes);
    simt::preempt();
  }
  void copy_from_device(void* to, const void* from, std::size_t nbytes) override {
    forwarding_platform::copy_from_device(to, from, nbytes);
    if (by_lanes) simt::backoff()();
  }
  bool by_lanes = false;
};

// Who is inside a queue ends there first, and commands under way come again.
TYPED_TEST(nvme_schedules, give_each_lane_its_blocks_while_the_controller_is_reset) {
  yielding_platform machine(simt::this_platform());
  rig on({.nblocks = 128},
         {.nqueues = 1,
          .depth = 8,
          .writable = true,
          .admin_timeout_ns = patient_ns,
          .inside_wait_ns = patient_ns,
          .look_every_ns = 0},
         machine);
  machine.by_lanes = true;
  explore<TypeParam>(on, fewer(TypeParam::size() == 1 ? 200 : 5), simt::schedule_policy::random, on.driver.get());
  machine.by_lanes = false;
  EXPECT_GT(on.driver->done().resets, 20u);
  EXPECT_FALSE(on.driver->done().dead);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
