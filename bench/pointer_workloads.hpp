// SPDX-License-Identifier: Apache-2.0
// The eight workloads of ActivePointers through pointers, by reads of one width: each width has a file of its own
// (pointer_parts.hpp).
#pragma once
#include "pointer_parts.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

template <class T>
class workload_runs : public pointer_runs {
 public:
  explicit workload_runs(const pointer_runs& runs) : pointer_runs(runs) {}

  void measure(const std::string& name, results& out) const {
    const std::string by_element = name + "_by_element";
    if (!args_.wants_any({name, by_element})) return;
    const filled_cache cache(*this, small_page);
    const filled_memory memory(*this);
    const raw_memory& raw = memory.raw;
    const mapped_file& mapped = cache.mapped;
    if (args_.wants(name)) {
      workloads<T>(out, {}, by_walks<mapped_file>{mapped}, baseline<by_walks<raw_memory>>{name, {raw}},
                   baseline<raw_memory>{name + "_loops", raw});
    }
    if (args_.wants(by_element)) {
      workloads<T>(out, {}, mapped, baseline<raw_memory>{by_element, raw},
                   baseline<untiled_raw_memory>{by_element + "_untiled", {raw}});
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
