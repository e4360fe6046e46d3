// SPDX-License-Identifier: Apache-2.0
// Random programs of pointers of map_sequential, in caches with room for the runs that they link to. Seeds as in
// read_property_test.cpp.
#include "pointer/pointer_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

const std::uint64_t trials = under_compute_sanitizer() ? 40 : under_tsan ? 30 : 200;

TEST(ptr_property, sequential_reads_are_those_of_a_plain_pointer) {
#if GPUFS_ON_CUDA  // as in read_property_test.cpp
  run_pointer_trials<sequential_access, false, const record<4, 4>, const record<12, 4>>(trials);
#else
  run_pointer_trials<sequential_access, false, const record<1, 1>, const record<4, 4>, const record<12, 4>, const record<16, 16>>(
      trials);
#endif
}

TEST(ptr_property, sequential_writes_are_those_of_a_plain_pointer) {
  run_pointer_trials<sequential_access, false, std::uint32_t>(trials / 2);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
