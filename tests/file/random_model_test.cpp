// SPDX-License-Identifier: Apache-2.0
// Random programs against a plain model: every result and every byte, on caches of 2 to 64 frames, or of 128 to 200, which learn
// whether pages should come in part; all stores, all page sizes, all kinds of groups, schedules and block orders, drawn from a
// seed. Of a program that fails by priorities the schedule is made shorter.
//   GPUFS_TEST_SEEDS=5000 GPUFS_TEST_FIRST_SEED=1   how many and from where
//   GPUFS_TEST_SEED=77                              this one only; with GPUFS_TEST_SCHEDULE as it was printed
#include <gtest/gtest-spi.h>

#include "file/random_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

void run(trial& t) {
  try {
    run_trial<mount>(t);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

// Whether the seed's program fails with this schedule in one of a few tries, as the host's threads decide a little too.
bool fails(std::uint64_t seed, const given_schedule& given, simt::schedule_trace& trace) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    trial t(seed);
    use(given, t.how.schedule, trace);
    t.how.schedule.trace = &trace;
    ::testing::TestPartResultArray results;
    {
      const ::testing::ScopedFakeTestPartResultReporter quiet(::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS,
                                                              &results);
      run(t);
    }
    if (results.size() != 0) return true;
  }
  return false;
}

std::string shortest_schedule(std::uint64_t seed, const given_schedule& failing) {
  simt::schedule_trace trace;
  if (!fails(seed, failing, trace)) return "it does not fail again with the same points";
  given_schedule best{failing.seed, fewest(failing.points, [&](const schedule_points& points) {
                        return fails(seed, {failing.seed, points}, trace);
                      })};
  const bool again = fails(seed, best, trace);
  std::ostringstream text;
  text << best.points.size() << " points, " << trace.nswitches << " switches in " << trace.nsteps << " steps"
       << (again ? "" : " (not every time)") << "; GPUFS_TEST_SEED=" << seed << " GPUFS_TEST_SCHEDULE='"
       << to_text(given_schedules{{{0, 0}, best}}) << "'";
  return text.str();
}

TEST(random_model, programs_do_what_the_model_says) {
  const seed_range seeds = seeds_to_run(under_tsan ? 40 : 300);
  const bool loud = number_from_environment("GPUFS_TEST_VERBOSE", 0) != 0;
  const char* given = std::getenv("GPUFS_TEST_SCHEDULE");
  int counts[6] = {}, nlearn = 0, ninpart = 0, nlearnt = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    trial t(seed);
    simt::schedule_trace trace;
    simt::cpu_schedule& schedule = t.how.schedule;
    if (given != nullptr) use(schedules_from_text(given).at({0, 0}), schedule, trace);
    const bool by_priorities = schedule.policy == simt::schedule_policy::priorities && !on_cuda;
    if (by_priorities) schedule.trace = &trace;
    run(t);
    if (loud) std::cout << t.describe() << '\n';
    ++counts[static_cast<int>(t.from)];
    nlearn += t.learns;
    ninpart += t.unadvised_share < 1;
    nlearnt += t.unadvised_share < .5;
    if (HasFailure() && by_priorities) std::cout << shortest_schedule(seed, {schedule.seed, trace.points}) << std::endl;
    ASSERT_FALSE(HasFailure()) << "repeat with " << t.describe();
    tell_progress("programs that read", seeds, seed);
  }
  for (int i = 0; i < 6; ++i) std::cout << counts[i] << " programs on " << name_of(static_cast<source>(i)) << '\n';
  std::cout << nlearn << " programs where it is learnt what readers want, " << ninpart << " with pages in part, " << nlearnt
            << " with most of them so\n";
  if (on_cuda) return;
  EXPECT_TRUE(ninpart != 0 || seeds.end - seeds.first < 40) << "no page was tried";
  EXPECT_TRUE(nlearnt != 0 || seeds.end - seeds.first < 300) << "nothing has been learnt";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
