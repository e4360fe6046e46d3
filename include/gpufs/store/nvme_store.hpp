// SPDX-License-Identifier: Apache-2.0
// NVMe controllers as a file system: one file for each namespace and each of its partitions, and stripes and mirrors of those.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpufs/nvme/controller_access.hpp"
#include "gpufs/nvme/controller_options.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/store/nvme_volume.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::store {

// Host only, any thread. Takes controllers over, whose only driver it is, and gives them back when the store and all its files have
// ended. Namespace 3 is the file "n3" of the root, with the namespace's size; of several controllers that of the second one is
// "c1n3". Partition 2 of its table (GPT, or primary ones of an MBR, as they were when the store was made; 1,024 at most) is "n3p2".
// A volume is a file by its name. Files that are opened for reading are of kind nvme: a kernel's lanes that miss a page send
// commands for its blocks, and no thread of the host is on the way. Files that are opened for writing, which takes
// options.writable, are read and written by the host's threads, with queues of the host's own; fsync sends Flush to all that the
// file lies on. What writes a part of a block reads the block first. Sizes stay: -ENOSPC for what is written behind the end,
// -EINVAL for another size, and for O_TRUNC. Whoever writes a namespace, as any file, ends the versions of all files on it, of
// which the kernels of its own mount are told. Those of another one would read on, old bytes or new ones: so a store that is
// writable has one mount at a time, and any number otherwise.
//
// A mirror is written to all copies. One that cannot be written or flushed while another one can, or has another size or format by
// now, is left out: this store reads it no more, and nothing on it says so, so that whoever makes a store of it again copies it
// first. A read that fails is tried of the other copies.
//
// Errors of an open: flags and paths as in posix_store.hpp's table; -ENOENT, no such namespace, partition or volume (nor is one
// made by O_CREAT); -EOPNOTSUPP, its blocks have metadata or protection, it says that it has 2^63 bytes or more, or a controller
// grants no second queue to write by; -EBUSY, to write what a mirror has a copy in, or to read or write what has bytes of another
// file that is open for writing; -EAGAIN (of a mount), to read what was written by another name each of ten times that it was
// opened; -ESTALE, it has another size or format by now than when the store was made (what an open found to be so is believed for
// 10 ms, and reads of what is not there any more are errors meanwhile); -ENODEV, the controller is lost. Of a read:
// nvme/detail/blocks.hpp's, as -ENXIO beyond the end of a namespace that has shrunk, -EIO, or -ETIMEDOUT after the mount's
// io_timeout.
class nvme_store final : public store {
 public:
  // machine: whose kernels read; it must outlive the store and its files. options.nhost_queues need not be set. Throws
  // std::system_error as nvme::controller does, with the remedy in what(): ENODEV, it does not answer; ETIMEDOUT, it does not get
  // ready; EOPNOTSUPP, it lacks what is needed here. Throws std::invalid_argument, with the remedy too, for volumes that their
  // parts do not fit (nvme_volume.hpp), no controllers, or one twice. The options are those of each controller.
  nvme_store(simt::platform& machine, std::shared_ptr<nvme::controller_access> access, const nvme::controller_options& options = {},
             const std::vector<nvme_volume>& volumes = {});
  using controllers = std::vector<std::shared_ptr<nvme::controller_access>>;
  nvme_store(simt::platform& machine, const controllers& all, const nvme::controller_options& options = {},
             const std::vector<nvme_volume>& volumes = {});
  ~nvme_store() override;

  std::shared_ptr<void> admit_mount() override;
  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::unique_ptr<open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) override;
  int status(std::string_view path, bool link, path_status* out) override;
  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) override;
  std::string_view name() const override { return "nvme"; }

  // What was done to get commands back that did not end: how often it aborted some, made queues again, reset the controller; and
  // whether it is lost, so that all calls give -ENODEV.
  struct recoveries {
    std::uint64_t aborts, deletions, resets;
    bool lost;
  };
  recoveries recovered(std::size_t controller = 0) const;
  // The mirrors' parts that are left out.
  std::vector<std::string> left_out() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpufs::store
