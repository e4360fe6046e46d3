// SPDX-License-Identifier: Apache-2.0
// An NVMe controller as a file system: one file for each namespace.
#pragma once
#include <memory>
#include <string>

#include "gpufs/nvme/controller_access.hpp"
#include "gpufs/nvme/controller_options.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::store {

// Host only, any thread. Takes the controller over, whose only driver it is, and gives it back when the store and all its files
// have ended. Namespace 3 is the file "n3" of the root, with the namespace's size. Files that are opened for reading are of kind
// nvme: a kernel's lanes that miss a page send commands for its blocks, and no thread of the host is on the way. Files that are
// opened for writing, which takes options.writable, are read and written by the host's threads, with queues of the host's own;
// fsync sends Flush. What writes a part of a block reads the block first. Sizes stay: -ENOSPC for what is written behind the end,
// -EINVAL for another size, and for O_TRUNC. Errors of an open: flags and paths as in posix_store.hpp's table; -ENOENT, no such
// namespace (nor is one made by O_CREAT); -EOPNOTSUPP, its blocks have metadata or protection, or the controller grants no second
// queue to write by; -ESTALE, it has another size or format by now than when the store was made; -ENODEV, the controller is lost.
// Of a read: nvme/detail/blocks.hpp's, as -ENXIO beyond the end of a namespace that has shrunk, -EIO, or -ETIMEDOUT after the
// mount's io_timeout.
class nvme_store final : public store {
 public:
  // machine: whose kernels read; it must outlive the store and its files. options.nhost_queues need not be set. Throws
  // std::system_error as nvme::controller does, with the remedy in what(): ENODEV, it does not answer; ETIMEDOUT, it does not get
  // ready; EOPNOTSUPP, it lacks what is needed here.
  nvme_store(simt::platform& machine, std::shared_ptr<nvme::controller_access> access,
             const nvme::controller_options& options = {});
  ~nvme_store() override;

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
  recoveries recovered() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpufs::store
