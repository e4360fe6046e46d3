// SPDX-License-Identifier: Apache-2.0
// The parts of the bench `pointers` in files of their own: ptxas takes minutes for the kernels of each. bench/pointers.cu says what
// they measure. Each measures what `args` asks for, of files that were made.
#pragma once
#include "pointer_runs.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// ap_workloads_4*
void measure_workloads_4(const pointer_runs& runs, results& out);
// ap_workloads_16*
void measure_workloads_16(const pointer_runs& runs, results& out);
// ap_gather*, ap_major*, ap_faults_by_block
void measure_faults(const pointer_runs& runs, arguments& args, results& out);

}  // namespace GPUFS_MACHINE
}  // namespace bench
