// SPDX-License-Identifier: Apache-2.0
#include "pointer_workloads.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

void measure_workloads_16(const pointer_runs& runs, results& out) {
  make_factors();
  workload_runs<gpufs::simt::vec16>(runs).measure("ap_workloads_16", out);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
