// SPDX-License-Identifier: Apache-2.0
// All that is promised, at once: random programs of all verbs by several groups, mounts and processes against a model that knows
// nothing of gpufs. A program that fails is made smaller while it still fails, and printed.
//   GPUFS_TEST_SEEDS=5000 GPUFS_TEST_FIRST_SEED=1   how many and from where
//   GPUFS_TEST_SEED=77                              this one only; what a shrinker says is set beside it repeats what it found
//   GPUFS_TEST_VERBOSE=1                            prints each program
#include <iostream>

#include "fuzz/drawer.hpp"
#include "fuzz/shrinker.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// draw: a seed's program. nschedules: of each. Whether all verbs that it may have come to a good end in many programs.
template <class Draw>
void run_programs(const char* about, const seed_range& seeds, std::uint64_t nschedules, bool all_verbs, Draw draw) {
  const bool loud = number_from_environment("GPUFS_TEST_VERBOSE", 0) != 0;
  const bool goes_on = number_from_environment("GPUFS_FUZZ_GO_ON", 0) != 0;
  const fuzz::peer_process peer;
  unsigned nfailed = 0;
  std::map<fuzz::verb, std::map<std::int64_t, std::uint64_t>> tally;
  std::uint64_t given_up = 0, past_cache = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    fuzz::program program = draw(seed);
    if (const char* text = std::getenv("GPUFS_TEST_KEEP")) program = with_calls(program, fuzz::numbers_from_text(text));
    if (const char* text = std::getenv("GPUFS_TEST_SCHEDULE")) {
      for (const auto& [launch, given] : schedules_from_text(text)) program.schedules[launch.first] = given;
    }
    if (loud) std::cout << to_text(program) << std::flush;
    std::string wrong;
    for (std::uint64_t i = 0; i < nschedules && wrong.empty(); ++i) {
      if (i != 0) program.how.schedule.seed += 1'000'003;
      fuzz::program_run run(program, peer);
      wrong = run();
      run.add_to(tally);
      given_up += run.searches_given_up();
      past_cache += run.reads_past_cache();
      ASSERT_FALSE(testing::Test::HasFailure()) << "repeat with GPUFS_TEST_SEED=" << seed;
    }
    tell_progress(about, seeds, seed);
    if (wrong.empty()) continue;
    if (goes_on) {
      ++nfailed;
      std::cout << "GPUFS_TEST_SEED=" << seed << ": " << wrong << std::endl;
      continue;
    }
    std::cout << "GPUFS_TEST_SEED=" << seed << ": " << wrong << "\nlooking for a shorter run that fails" << std::endl;
    fuzz::shrinker shrink(program, wrong, peer);
    shrink();
    FAIL() << wrong << "\nshorter: " << shrink.wrong() << '\n' << shrink.summary() << '\n' << to_text(shrink.shortest());
  }
  EXPECT_EQ(nfailed, 0u);
  const bool many = all_verbs && seeds.end - seeds.first >= 1000;
  const bool tells = number_from_environment("GPUFS_TEST_PROGRESS", 0) != 0;
  for (auto& [what, results] : tally) {
    if (tells) std::cout << fuzz::verb_names[static_cast<int>(what)] << ':';
    for (const auto& [value, count] : results) {
      if (tells) std::cout << ' ' << (value == fuzz::skipped ? "skipped" : std::to_string(value)) << " x" << count;
    }
    if (tells) std::cout << '\n';
    if (many) {  // of fewer, some verbs meet no file that they may have
      EXPECT_GT(results[0], 0u) << fuzz::verb_names[static_cast<int>(what)] << " never went well";
    }
  }
  EXPECT_TRUE(past_cache != 0 || !many) << "nothing was read past the cache";
  if (tells) {
    std::cout << given_up << " orders were not looked for to the end, " << past_cache << " elements were read past the cache"
              << std::endl;
  }
}

TEST(fuzz, programs_do_what_is_promised) {
  run_programs("programs of all verbs", seeds_to_run(under_tsan ? 10 : 60),
               on_cuda      ? 2
               : under_tsan ? 1
                            : 8,
               true, [](std::uint64_t seed) { return fuzz::drawer(seed)(); });
}

// Over controllers, which fail, are late and are reset meanwhile.
TEST(fuzz, programs_over_nvme_do_what_is_promised) {
  run_programs("programs over NVMe", seeds_to_run(fewer(20)), on_cuda || under_tsan ? 1 : 3, false,
               [](std::uint64_t seed) { return fuzz::drawer(seed, fuzz::store_choice::nvme)(); });
}
TEST(fuzz, programs_over_qemus_nvme_do_what_is_promised) {
  if (on_cuda) GTEST_SKIP() << "the GPU does not reach QEMU's memory";
  if (!qemu_controller::is_there()) GTEST_SKIP() << "qemu-system-x86_64 is not installed";
  run_programs("programs over QEMU's NVMe", seeds_to_run(fewer(6)), 1, false,
               [](std::uint64_t seed) { return fuzz::drawer(seed, fuzz::store_choice::qemu)(); });
}

// The program then fails with that; it took the test along with it (SIGPIPE, std::terminate), or waited for ever.
TEST(fuzz_peer, that_dies_or_hangs_is_told_of) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    fuzz::peer_process peer;
    fuzz::program program;
    program.rounds.emplace_back().peer = {2, {.what = fuzz::verb::mkdir, .path = "x"}};
    program.mounts.emplace_back().options.cache_nbytes = 1 << 16;
    program.how.grid = 1;
    program.how.block = 32;
    program.how.warps = {group_kind::warp};
    EXPECT_EQ(fuzz::program_run(program, peer)(), "");
    ASSERT_EQ(::kill(peer.pid(), signal), 0);
    if (signal == SIGSTOP) peer.set_longest(std::chrono::seconds(1));
    EXPECT_EQ(fuzz::program_run(program, peer)(), "the second process is gone, or does not answer");
  }
}

// The second process.
TEST(fuzz_peer, DISABLED_serves) {
  const std::uint64_t socket = number_from_environment(fuzz::peer_variable, 0);
  if (socket == 0) GTEST_SKIP() << "it is started by the other test";
  fuzz::peer_process::serve(static_cast<int>(socket));
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
