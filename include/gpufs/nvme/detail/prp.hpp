// SPDX-License-Identifier: Apache-2.0
// A command's memory, as the controller is told of it: physical region pages (NVM Express Base Specification 2.0, section 4.1.1).
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// How many pages a list takes for transfers of up to so many bytes that may begin within a page.
GPUFS_HOST_DEVICE std::uint32_t list_pages_for(std::uint64_t nbytes) {
  const std::uint64_t addresses = (nbytes + bus_page_nbytes - 1) / bus_page_nbytes;  // behind the first page
  // Each page but the last gives an address of it for that of the next one.
  return addresses <= 1 ? 0 : static_cast<std::uint32_t>(addresses <= list_entries ? 1 : (addresses - 2) / (list_entries - 1) + 1);
}

struct prp_pair {
  std::uint64_t first, second;
};

// Writes PRP1 and PRP2 for nbytes of `memory` from `offset` on, and the list behind them into `list_pages` pages of `lists` from
// page `list` on. One lane calls. Returns 0; -EFAULT if the bytes are not all in the memory; -EINVAL if they begin at no multiple
// of 4; -E2BIG if the list has no room. Then nothing was written.
GPUFS_DEVICE int make_prps(const dma_memory& memory, std::uint64_t offset, std::uint64_t nbytes, const dma_memory& lists,
                           std::uint64_t list, std::uint32_t list_pages, prp_pair& out) {
  if (nbytes == 0 || offset > memory.nbytes || nbytes > memory.nbytes - offset) return -EFAULT;
  if (offset % 4 != 0) return -EINVAL;
  const std::uint64_t first = offset / bus_page_nbytes, last = (offset + nbytes - 1) / bus_page_nbytes;
  out = {memory.page[first] + offset % bus_page_nbytes, 0};
  if (last == first) return 0;
  if (last == first + 1) {
    out.second = memory.page[last];
    return 0;
  }
  if (list_pages_for((last - first) * bus_page_nbytes) > list_pages) return -E2BIG;
  out.second = lists.page[list];
  auto* entry = reinterpret_cast<std::uint64_t*>(lists.data + list * bus_page_nbytes);
  std::uint32_t used = 0;
  for (std::uint64_t page = first + 1; page <= last; ++page) {
    if (used == list_entries - 1 && page != last) {  // more follow than fit: the page's last entry leads on
      entry[used] = lists.page[++list];
      entry = reinterpret_cast<std::uint64_t*>(lists.data + list * bus_page_nbytes);
      used = 0;
    }
    entry[used++] = memory.page[page];
  }
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
