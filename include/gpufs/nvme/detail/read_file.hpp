// SPDX-License-Identifier: Apache-2.0
// Bytes of a file that is made of namespaces, read by lanes of a warp that want them together.
#pragma once
#include "gpufs/nvme/detail/file_layout.hpp"
#include "gpufs/nvme/detail/read_bytes.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// A set bit for each of at most 32 copies that is left out. By one lane, as the host may leave more out meanwhile.
GPUFS_DEVICE std::uint32_t left_out_of(const file_part* copies, std::uint32_t ncopies) {
  std::uint32_t out = 0;
  for (std::uint32_t i = 0; i < ncopies; ++i) {
    // Acquire: meets the release of nvme_column::leave_out.
    const simt::atomic_ref<std::uint32_t, simt::scope::system> word(const_cast<std::uint32_t&>(*copies[i].left_out));
    out |= std::uint32_t{word.load(std::memory_order_acquire) != 0} << i;
  }
  return out;
}

// Collective, for any lanes of a warp, which `lanes` names. Reads nbytes of the file from byte `offset` on to `to`, as read_bytes
// does: one run of bytes that lie together after the other; those that no extent has are zeros. Of equal copies that are not left
// out each is tried in its turn, and gets an equal share of the time that is left of timeout_ns, which is for all. 0, and the bytes
// are all there; or -errno, of the copy that was tried first, and any of them may be.
GPUFS_DEVICE int read_file(std::uint32_t lanes, const file_layout& file, std::uint64_t offset, std::byte* to, std::uint64_t nbytes,
                           std::uint64_t timeout_ns) {
  const simt::some_lanes group(lanes);
  const simt::deadline until(timeout_ns);
  const std::uint32_t ncopies = file.shape.ncopies;
  for (std::uint64_t done = 0; done < nbytes;) {
    extent_run found{false, offset + done, nbytes - done};
    if (file.extents != nullptr) found = find_extent(file.extents, file.nextents, found.begin, found.nbytes);
    if (found.is_zeros) {
      simt::zero_bytes(group, to + done, found.nbytes);
      done += found.nbytes;
      continue;
    }
    const file_run run = file.shape.locate(found.begin, found.nbytes);
    const file_part* const copies = file.parts + run.column * ncopies;
    const std::uint32_t out = ncopies == 1 ? 0 : group.broadcast(group.leader() ? left_out_of(copies, ncopies) : 0);
    std::uint32_t untried = ncopies - simt::count_lanes(out);
    int answer = -EIO;  // where all copies are left out, to which the host does not let it come
    bool failed = false;
    for (std::uint32_t tried = 0; tried < ncopies; ++tried) {
      const std::uint32_t i = (run.first_copy + tried) % ncopies;
      if ((out >> i & 1) != 0) continue;
      const file_part part = copies[i];
      const int error = read_bytes(lanes, *part.space, part.begin + run.offset, to + done, run.nbytes, until.left_ns() / untried--);
      if (error == 0 || !failed) answer = error;
      if (error == 0) break;
      failed = true;
    }
    if (answer != 0) return answer;
    done += run.nbytes;
  }
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
