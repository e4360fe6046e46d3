// SPDX-License-Identifier: Apache-2.0
// Random programs of pointer operations against an index into plain bytes: every value, on caches of 2 to 64 frames, all stores,
// pages of 512 B to 64 KiB, elements of 1 to 48 bytes, all advice about a file that is only read, all divergence that random lists
// of operations make.
//   GPUFS_TEST_SEEDS=5000 GPUFS_TEST_FIRST_SEED=1   how many and from where
//   GPUFS_TEST_SEED=77                              this one only
#include "pointer/pointer_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

TEST(ptr_property, reads_are_those_of_a_plain_pointer) {
  const std::uint64_t trials = under_compute_sanitizer() ? 60 : under_tsan ? 40 : 400;
#if GPUFS_ON_CUDA  // of each way to load and to straddle pages one, as nvcc takes seconds for each type
  run_pointer_trials<plain_access, false, const record<1, 1>, const record<3, 1>, const record<4, 4>, const record<8, 8>,
                     const record<12, 4>, const record<16, 16>, const record<48, 16>>(trials);
#else
  run_pointer_trials<plain_access, false, const record<1, 1>, const record<2, 2>, const record<3, 1>, const record<4, 4>,
                     const record<6, 2>, const record<8, 8>, const record<12, 4>, const record<16, 16>, const record<24, 8>,
                     const record<32, 32>, const record<48, 16>>(trials);
#endif
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
