// SPDX-License-Identifier: Apache-2.0
// Files whose bytes the GPU pulls itself, from a registered read-only mapping of the host's page cache.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpufs/simt/platform.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::store {

// How much host memory registered mappings hold, in bytes of whole pages.
struct pin_usage {
  std::uint64_t budget_nbytes = 0;
  std::uint64_t pinned_nbytes = 0;  // registered, also by idle mappings
  std::uint64_t idle_nbytes = 0;    // registered, but no open file uses them
  std::size_t nmappings = 0, nidle = 0;
};

class mappings;  // registered mappings, shared by the opens of one version of a file

// Half of the kernel's MemAvailable, in bytes, or half of the memory limit of the process's control groups (a container's) if that
// is less; 1 GiB if neither is known.
std::uint64_t default_pin_nbytes();

// Like posix_store, but maps a file (PROT_READ, MAP_SHARED) and registers it with the platform at open; kind pull. A file that
// cannot be mapped does not open: -EOPNOTSUPP, and open_explained() says why (an empty file, the pin budget, the platform's error);
// other errors as posix_store. Opening a file that is not in the page cache reads all of it. A file opened for writing is staged.
//
// Opens of one version of a file share a mapping, unless the file was changed within the last 20 ms (posix_store.hpp: it has not
// settled). If such a file has 64 MiB or more, its open takes 21 ms longer instead. A mapping stays registered after the last
// close, and counts against the budget: unregistering waits for running kernels, and a running kernel may wait for the close. Only
// trim() and the destructor unregister.
class mapped_store final : public rooted_store {
 public:
  // pin_nbytes 0: default_pin_nbytes(). The budget is never above the memory limit of the process's control groups. Throws
  // std::system_error as posix_store. The platform must outlive store and files.
  mapped_store(simt::platform& machine, const std::string& root, std::uint64_t pin_nbytes = 0, posix_options options = {});
  ~mapped_store() override;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::unique_ptr<open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) override;
  std::string_view name() const override { return "mapped"; }
  void trim() override { trim(0); }
  // Unregisters idle mappings, the least recently used first, until at most keep_nbytes of them are left.
  void trim(std::uint64_t keep_nbytes);
  bool lacks_room() const override;
  bool has_idle_room() const override;
  void make_room() override;
  pin_usage usage() const;

 private:
  std::shared_ptr<mappings> mappings_;
};

}  // namespace gpufs::store
