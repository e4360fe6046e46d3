// SPDX-License-Identifier: Apache-2.0
// Files that are named buffers in host memory or in device memory.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "gpufs/simt/platform.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::store {

// Host only, any thread. Files open as `pull` from pinned memory, as `staged` through pread(), or as `mem` from device memory.
// Errors: flags and paths as in posix_store.hpp's table; -ENOENT for a name that was never put. Open files cannot be written: a new
// version needs pinned or device memory, and an allocation may wait for running kernels.
class mem_store final : public store {
 public:
  // kind: pull, staged or mem (else std::invalid_argument). The platform must outlive the store and its files.
  explicit mem_store(simt::platform& machine, source_kind kind = source_kind::pull);
  ~mem_store() override;

  // Copies the bytes into a new version of the file `path` (a relative path; directories need not exist). Files that are
  // open keep the bytes they were opened with. Throws std::invalid_argument for a path that open() would refuse, and
  // std::bad_alloc.
  void put(std::string_view path, std::span<const std::byte> bytes);

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "mem"; }
  // Frees old versions that are not open. Waits for running kernels (freeing such memory does); without this call they stay.
  void trim() override;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpufs::store
