// SPDX-License-Identifier: Apache-2.0
// The records of accesses through pointers that failed, and what they say in words.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpufs/pointer/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs {

class fault_log {
 public:
  // Its memory: the counts are in `memory`, which must outlive it.
  explicit fault_log(simt::device_memory& memory);

  fault_record* records() const { return records_.get(); }
  fault_count* counts() const { return counts_; }

  // Whether no record is complete. A look at all of them.
  bool empty() const;
  // A line for each record that is complete. path_of: of a file by its handle on the host, if that is known; nframes: the cache's.
  using path_finder = std::function<std::optional<std::string>(std::uint32_t handle)>;
  std::vector<std::string> lines(const path_finder& path_of, std::uint32_t nframes) const;

 private:
  const simt::device_memory& memory_;
  simt::pinned_array<fault_record> records_;
  fault_count* counts_;
};

}  // namespace gpufs
