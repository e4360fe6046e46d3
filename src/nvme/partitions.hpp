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

inline constexpr std::size_t most_partitions = 1024;  // each is a file; a table may have 8,192

struct partition_table {
  std::vector<partition> all;  // by number, most_partitions at most; none meets another, and all lie where partitions may
  // What of the table is not there, and why not, in some hundred characters; empty: nothing, or there is no table.
  std::string why;
};

// Reads the table of a namespace of nblocks blocks of block_nbytes bytes by read(lba, bytes) -> 0 or -errno, whole blocks. A GPT
// needs an MBR that says so; where its first header, or what that leads to, is damaged, the one in the last block counts. A table
// of which both are damaged has no partitions; of two entries that meet neither is one.
partition_table read_partitions(std::uint64_t nblocks, std::uint32_t block_nbytes,
                                const std::function<int(std::uint64_t lba, std::span<std::byte>)>& read);

}  // namespace gpufs::nvme
