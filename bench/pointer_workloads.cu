// SPDX-License-Identifier: Apache-2.0
// The eight workloads of ActivePointers through pointers (bench/pointers.cu).
#include "pointer_parts.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {
namespace {

using gpufs::simt::vec16;

class workload_runs : public pointer_runs {
 public:
  explicit workload_runs(const pointer_runs& runs) : pointer_runs(runs) {}

  void measure(results& out) const {
    const filled_cache cache(*this, small_page);
    const filled_memory memory(*this);
    const raw_memory& raw = memory.raw;
    const mapped_file& mapped = cache.mapped;
    const auto works = [&]<class T>(const std::string& name, T) {
      const baseline<raw_memory> loops{name + "_loops", raw};
      if (args_.wants(name))
        workloads<T>(out, {}, by_walks<mapped_file>{mapped}, baseline<by_walks<raw_memory>>{name, {raw}}, loops);
      const std::string by_element = name + "_by_element";
      if (!args_.wants(by_element)) return;
      workloads<T>(out, {}, mapped, baseline<raw_memory>{by_element, raw},
                   baseline<untiled_raw_memory>{by_element + "_untiled", {raw}});
    };
    works("ap_workloads_4", std::uint32_t{});
    works("ap_workloads_16", vec16{});
  }
};

}  // namespace

void measure_workloads(const pointer_runs& runs, arguments& args, results& out) {
  if (!args.wants_any({"ap_workloads_4", "ap_workloads_16", "ap_workloads_4_by_element", "ap_workloads_16_by_element"})) return;
  make_factors();
  workload_runs(runs).measure(out);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
