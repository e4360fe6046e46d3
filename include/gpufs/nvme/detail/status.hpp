// SPDX-License-Identifier: Apache-2.0
// What a command's status means to a caller.
#pragma once
#include <cerrno>

#include "gpufs/nvme/detail/wire.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// 0 of success, else -errno: of each status another one only where a caller can do something else about it.
GPUFS_HOST_DEVICE int status_errno(status_word status) {
  switch (code_of(status)) {
    case code::success:
      return 0;
    case code::invalid_opcode:
      return -EOPNOTSUPP;
    case code::invalid_field:
    case code::prp_offset:
      return -EINVAL;
    case code::invalid_namespace:
      return -ENODEV;
    case code::lba_out_of_range:
      return -ENXIO;
    case code::capacity_exceeded:
      return -ENOSPC;
    case code::namespace_not_ready:
    case code::format_in_progress:
      return -EBUSY;
    case code::reservation_conflict:
      return -EBADE;
    case code::write_protected:
    case code::read_only_range:
      return -EROFS;
    case code::guard_check:
    case code::application_tag_check:
    case code::reference_tag_check:
    case code::compare_failure:
      return -EILSEQ;
    case code::access_denied:
      return -EACCES;
    case code::unwritten_block:
      return -ENODATA;
    default:
      return -EIO;
  }
}

// Whether the same command may come to another end: the controller does not say DNR, and nothing that the caller asked for is the
// reason. A command that was aborted by a reset, or by a queue's deletion, is one of these.
GPUFS_HOST_DEVICE bool may_pass(status_word status) {
  if (status == 0 || (status & do_not_retry) != 0) return false;
  const int error = status_errno(status);
  return error == -EIO || error == -EBUSY;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
