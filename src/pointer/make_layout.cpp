// SPDX-License-Identifier: Apache-2.0
#include "make_layout.hpp"

#include <cstddef>

namespace gpufs {

pointer_layout make_layout(simt::device_memory& memory, const fault_log& faults, const pointer_options& options) {
  return {.mappings = memory.allocate<mapping_entry>(std::size_t{mapping_copies} * options.max_mappings),
          .faults = faults.records(),
          .fault_counts = faults.counts(),
          .spare_page = memory.allocate<std::byte>(options.page_nbytes),
          .words = memory.allocate<pointer_words>(1),
          .mapping_mask = options.max_mappings - 1};
}

}  // namespace gpufs
