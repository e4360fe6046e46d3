// SPDX-License-Identifier: Apache-2.0
// Writing loses nothing: random programs of many groups, mounts and a host process against a plain model. A program that fails is
// made smaller while it still fails, and printed.
//   GPUFS_TEST_SEEDS=5000 GPUFS_TEST_FIRST_SEED=1   how many and from where
//   GPUFS_TEST_SEED=77                              this one only; what a shrinker says is set beside it repeats what it found
#include <iostream>

#include "file/write_shrinker.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

TEST(write_property, programs_leave_what_the_model_says) {
  const seed_range seeds = seeds_to_run(under_tsan ? 10 : 120);
  const bool loud = number_from_environment("GPUFS_TEST_VERBOSE", 0) != 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    write_program program = program_drawer(seed)();
    if (const char* text = std::getenv("GPUFS_TEST_LEAVE_OUT")) program = shrinker::leave_out_again(program, text);
    if (const char* text = std::getenv("GPUFS_TEST_SCHEDULE")) program.schedules = schedules_from_text(text);
    if (loud) std::cout << to_text(program) << std::flush;
    const std::string wrong = program_run(program)();
    ASSERT_FALSE(HasFailure()) << "repeat with GPUFS_TEST_SEED=" << seed;
    tell_progress("programs that write", seeds, seed);
    if (wrong.empty()) continue;
    std::cout << "GPUFS_TEST_SEED=" << seed << ": " << wrong << "\nlooking for a shorter run that fails" << std::endl;
    shrinker shrink(program, wrong);
    shrink();
    FAIL() << wrong << "\nshorter: " << shrink.wrong() << '\n' << shrink.summary() << '\n' << to_text(shrink.program());
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
