// SPDX-License-Identifier: Apache-2.0
// Bytes of a file that is made of namespaces, read by lanes of a warp that want them together.
#pragma once
#include "gpufs/nvme/detail/file_layout.hpp"
#include "gpufs/nvme/detail/read_bytes.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

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
      for (std::uint64_t i = group.rank(); i < found.nbytes; i += group.size()) to[done + i] = std::byte{0};
      done += found.nbytes;
      continue;
    }
    const file_run run = file.shape.locate(found.begin, found.nbytes);
    int answer = -EIO;  // where all copies are left out, to which the host does not let it come
    bool failed = false;
    for (std::uint32_t tried = 0; tried < ncopies; ++tried) {
      const file_part part = file.parts[run.column * ncopies + (run.first_copy + tried) % ncopies];
      if (part.left_out != nullptr) {
        // By one lane, as the host may leave it out meanwhile. Acquire: meets the release of nvme_column::leave_out.
        std::uint32_t is_left_out = 0;
        if (group.leader()) {
          is_left_out = simt::atomic_ref<std::uint32_t, simt::scope::system>(const_cast<std::uint32_t&>(*part.left_out))
                            .load(std::memory_order_acquire);
        }
        if (group.broadcast(is_left_out) != 0) continue;
      }
      const int error =
          read_bytes(lanes, *part.space, part.begin + run.offset, to + done, run.nbytes, until.left_ns() / (ncopies - tried));
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
