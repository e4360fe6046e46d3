// SPDX-License-Identifier: Apache-2.0
// Bytes of a namespace, read by lanes of a warp that want them together: they submit the commands, and all copy what each brings.
#pragma once
#include "gpufs/nvme/detail/blocks.hpp"
#include "gpufs/simt/some_lanes.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

namespace detail {

// Any lanes of a warp, as queues take groups: one type for all, so that kernels have the code once. Of lanes that lie side by side
// each may have a command. Of others the first one alone has: it is the group, and the others keep step.
class lanes_with_commands {
 public:
  GPUFS_DEVICE explicit lanes_with_commands(std::uint32_t mask) : all_(mask), first_(simt::lowest_lane(mask)) {
    const std::uint32_t from_first = mask >> first_;
    size_ = (from_first & (from_first + 1)) == 0 ? simt::count_lanes(mask) : 1;
  }
  GPUFS_DEVICE unsigned size() const { return size_; }
  GPUFS_DEVICE unsigned rank() const { return size_ != 1 ? simt::lane_id() - first_ : leader() ? 0 : 1; }  // 1 of 1: none of it
  GPUFS_DEVICE bool leader() const { return simt::lane_id() == first_; }
  GPUFS_DEVICE void sync() const { all_.sync(); }
  GPUFS_DEVICE std::uint32_t ballot(bool predicate) const {
    return all_.ballot_lanes(predicate) >> first_ & (~0u >> (simt::warp_lanes - size_));
  }
  GPUFS_DEVICE bool any(bool predicate) const { return ballot(predicate) != 0; }
  template <class T>
  GPUFS_DEVICE T shfl(const T& value, unsigned rank) const {
    return all_.shfl_from_lane(value, first_ + rank);
  }
  template <class T>
  GPUFS_DEVICE T broadcast(const T& value) const {
    return shfl(value, 0);
  }

 private:
  simt::some_lanes all_;
  unsigned first_, size_;
};

}  // namespace detail

// Collective, for any lanes of a warp, which `lanes` names. Reads nbytes (fewer than 2^32 blocks) from byte `offset` of the
// namespace on to `to`: memory of the device, or for a lane alone its own. Neither need begin or end a block. Waits for at most
// timeout_ns. 0, and the bytes are all there, or -errno, as read_each's, and any of them may be.
GPUFS_DEVICE int read_bytes(std::uint32_t lanes, const namespace_layout& space, std::uint64_t offset, std::byte* to,
                            std::uint64_t nbytes, std::uint64_t timeout_ns) {
  if (nbytes == 0) return 0;
  const simt::some_lanes all(lanes);
  const detail::lanes_with_commands group(lanes);
  const std::uint64_t first = offset >> space.block_shift;
  const auto n = static_cast<std::uint32_t>(((offset + nbytes - 1) >> space.block_shift) - first + 1);
  // Whole commands for each lane: one, unless there are more of them than lanes.
  const std::uint32_t most = space.blocks_a_command, ncommands = (n + most - 1) / most;
  const std::uint32_t share = (ncommands + group.size() - 1) / group.size() * most, begin = group.rank() * share;
  const std::uint32_t mine = begin >= n ? 0 : n - begin < share ? n - begin : share;
  const auto take = [&](bool is_moved, const std::byte* buffer, const detail::moved_part& part) {
    int error = 0;
    group.sync();  // a record's own lane alone has acquired that its buffer is filled
    const std::uint64_t here = ((first + begin) << space.block_shift) + part.done;  // in the namespace
    for (std::uint32_t left = group.ballot(is_moved); left != 0; left &= left - 1) {
      const auto rank = simt::lowest_lane(left);
      const std::uint64_t at = group.shfl(here, rank), end = at + group.shfl(part.nbytes, rank);
      const std::uint64_t from = at < offset ? offset : at, up_to = end < offset + nbytes ? end : offset + nbytes;
      const auto address = group.shfl(reinterpret_cast<std::uint64_t>(buffer), rank);
      const auto* const there = reinterpret_cast<const std::byte*>(address + (from - at));
      const int failed = simt::copy_from_host(all, to + (from - offset), there, up_to - from);
      if (group.rank() == rank) error = failed;
    }
    group.sync();  // all have read the buffers, which are others' from here on
    return error;
  };
  const detail::transferred got = detail::transfer_each<opcode::read>(group, space, mine != 0, first + begin, mine, 0, timeout_ns,
                                                                      detail::copy_nothing{}, take);
  const std::uint32_t wrong = group.ballot(got.error != 0);
  return wrong == 0 ? 0 : group.shfl(got.error, simt::lowest_lane(wrong));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
