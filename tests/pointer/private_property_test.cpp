// SPDX-License-Identifier: Apache-2.0
// Random programs that also write, through private mappings: each lane its own elements, and all of them some by atomic adds. What
// the file has stays what others see. Seeds as in read_property_test.cpp.
#include "pointer/pointer_trial.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

TEST(ptr_property, writes_are_those_of_a_plain_pointer) {
  const std::uint64_t trials = under_compute_sanitizer() ? 60 : under_tsan ? 40 : 300;
#if GPUFS_ON_CUDA  // as in read_property_test.cpp
  run_pointer_trials<plain_access, false, std::uint8_t, record<3, 1>, std::uint32_t, std::uint64_t, record<48, 16>>(trials);
#else
  run_pointer_trials<plain_access, false, std::uint8_t, record<3, 1>, std::uint32_t, record<6, 2>, std::uint64_t, record<12, 4>,
                     record<48, 16>>(trials);
#endif
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
