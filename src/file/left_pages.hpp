// SPDX-License-Identifier: Apache-2.0
// Pages that kernels have written, but not written back: the host writes them to the files, through its service.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpufs/file/detail/layout.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/simt/detail/device_memory.hpp"
#include "slot_reader.hpp"

namespace gpufs {

// The unwritten pages of a mount that may write. No kernel that uses the mount may run meanwhile.
class left_pages {
 public:
  // The arguments must outlive it.
  left_pages(const simt::device_memory& memory, const file_memory& files, const file_mount& mount, service::service& host)
      : memory_(memory), files_(files), mount_(mount), host_(host), slots_(memory, files, mount) {}

  struct unwritten {
    std::uint64_t lost = 0, left = 0;  // lost: pages, and files that kernels wrote in place; left: pages that are still dirty
  };
  // Writes the pages that kernels left dirty through the host, neighbours together. If the host has not `stopped`, pages of a lost
  // list stay dirty, because the host may still write older bytes of them. If it has, no page stays dirty. finished: the host had
  // answered all requests before it stopped.
  unwritten write_back(bool stopped, bool finished = true) const;

  // How many files have a write-back error that the next sync or close would return.
  std::uint64_t untold_errors() const;
  // The number of pages that are still mapped for writing, or that pointers left in memory have written to. Nobody has noted which
  // of their bytes were written since.
  std::uint64_t still_mapped() const;

 private:
  std::uint32_t page_nbytes() const { return 1u << mount_.cache.frames.page_shift; }
  std::vector<cache::dirty_list> lists() const;  // [slot][list], of all blocks
  std::uint64_t note_written_in_place(const std::vector<file_slot>& slots) const;
  struct left_page {
    const file_slot* slot;  // null: the page's file is not open
    std::uint64_t offset;   // in the file
    std::uint32_t frame;
  };
  unwritten write_pages(const std::vector<file_slot>& slots, bool stopped) const;
  std::uint64_t write_stretch(std::uint32_t first, std::uint32_t end, std::vector<left_page>& pages, bool keeps_twins) const;
  void keep_twin(const cache::twin_state& twin, std::span<const std::byte> sent, std::span<const std::uint32_t> mask) const;

  const simt::device_memory& memory_;
  const file_memory& files_;
  const file_mount& mount_;
  service::service& host_;
  slot_reader slots_;
};

}  // namespace gpufs
