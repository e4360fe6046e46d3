// SPDX-License-Identifier: Apache-2.0
// Random programs against a plain model: every result and every byte, on caches of 2 to 64 frames, all stores, all page sizes, all
// kinds of groups, schedules and block orders, drawn from a seed.
//   GPUFS_TEST_SEEDS=5000 GPUFS_TEST_FIRST_SEED=1   how many and from where
//   GPUFS_TEST_SEED=77                              this one only
#include "file/random_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

TEST(random_model, programs_do_what_the_model_says) {
  const seed_range seeds = seeds_to_run(under_tsan ? 40 : 300);
  const bool loud = number_from_environment("GPUFS_TEST_VERBOSE", 0) != 0;
  int counts[6] = {};
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    trial t(seed);
    try {
      run_trial<mount>(t);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    if (loud) std::cout << t.describe() << '\n';
    ++counts[static_cast<int>(t.from)];
    ASSERT_FALSE(HasFailure()) << "repeat with " << t.describe();
  }
  for (int i = 0; i < 6; ++i) std::cout << counts[i] << " programs on " << name_of(static_cast<source>(i)) << '\n';
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
