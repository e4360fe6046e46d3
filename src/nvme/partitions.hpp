// SPDX-License-Identifier: Apache-2.0
// The partitions that a namespace's own table names: GPT, or the primary ones of an MBR.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace gpufs::nvme {

struct partition {
  std::uint32_t number;  // from 1 on, as the kernel counts: its place in the table
  std::uint64_t first, nblocks;

  bool operator==(const partition&) const = default;
};

struct partition_table {
  std::vector<partition> all;  // by number; none meets another, and all lie where partitions may
  std::string why;             // what of the table is not there, and why not; empty: nothing, or there is no table
};

// Reads the table of a namespace of nblocks blocks of block_nbytes bytes by read(lba, bytes) -> 0 or -errno, whole blocks. A GPT
// needs an MBR that says so; where its first header, or what that leads to, is damaged, the one in the last block counts. A table
// of which both are damaged has no partitions; of two entries that meet neither is one.
partition_table read_partitions(std::uint64_t nblocks, std::uint32_t block_nbytes,
                                const std::function<int(std::uint64_t lba, std::span<std::byte>)>& read);

}  // namespace gpufs::nvme
