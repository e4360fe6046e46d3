// SPDX-License-Identifier: Apache-2.0
// Random programs that write files through pointers: as private_property_test.cpp's, but what they write is the file's, and is
// there once all have closed it. Seeds as in read_property_test.cpp.
#include "pointer/pointer_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

const std::uint64_t trials = under_compute_sanitizer() ? 40 : under_tsan ? 40 : 300;

TEST(ptr_property, files_get_what_a_plain_pointer_would_write) {
#if GPUFS_ON_CUDA  // as in read_property_test.cpp
  run_pointer_trials<plain_access, true, std::uint32_t, record<12, 4>>(trials);
#else
  run_pointer_trials<plain_access, true, std::uint8_t, record<3, 1>, std::uint32_t, std::uint64_t, record<12, 4>, record<48, 16>>(
      trials);
#endif
}

TEST(ptr_property, files_get_what_sequential_pointers_write) {
  run_pointer_trials<sequential_access, true, std::uint32_t>(trials / 4);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
