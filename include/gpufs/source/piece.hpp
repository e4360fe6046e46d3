// SPDX-License-Identifier: Apache-2.0
// What a source is asked, and what it answers: where the bytes of a piece of a file are.
#pragma once
#include "gpufs/simt/atomic.hpp"
#include "gpufs/source/detail/layout.hpp"
#include "gpufs/source/kind.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

enum class place : std::uint32_t {
  nowhere,      // there are none: what the frame has is as good
  zeros,        // they all are 0
  device,       // in device memory
  host_memory,  // in the file's mmap, where the device may read (or write); where that fails, the host is asked
  blocks,       // in namespaces of NVMe controllers, at the file's own offset: the device sends commands for them
  host,         // the host's threads read (or write) them, through a request slot
};

struct piece {
  place where;
  std::uint32_t nbytes;   // so many of those that were asked for; what comes after them is zeros
  std::uint64_t address;  // of device and host_memory; of blocks, nvme::file_layout's
};

// An open file as its source sees it, for one lane.
struct opened_file {
  std::int64_t nbytes;  // the version's
  std::uint64_t base;   // as file_bytes::base, of the version
  file_windows* windows;
  file_bytes* bytes;  // as it is now
  std::uint32_t handle;
};

// How many of `wanted` bytes at `offset` lie before `end`.
GPUFS_DEVICE std::uint32_t nbytes_before(std::uint64_t end, std::uint64_t offset, std::uint32_t wanted) {
  const std::uint64_t left = offset < end ? end - offset : 0;
  return left < wanted ? static_cast<std::uint32_t>(left) : wanted;
}
// Of a version whose bytes are at one place.
GPUFS_DEVICE piece version_at(place where, const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
  const std::uint32_t nbytes = nbytes_before(static_cast<std::uint64_t>(of.nbytes), offset, wanted);
  return {nbytes != 0 ? where : place::zeros, nbytes, of.base + offset};
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
