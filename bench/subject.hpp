// SPDX-License-Identifier: Apache-2.0
// The file that benches of misses read, pulled by the device.
#pragma once
#include <fcntl.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "device.hpp"
#include "gpufs/store/auto_store.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// A file and a store that keeps it registered, for mounts of several page sizes and for a kernel without a file system.
struct subject {
  using writer = std::function<void(const std::string& path, std::uint64_t nbytes)>;

  subject(const std::string& parent, std::uint64_t nbytes_, const char* where_, const writer& write = make_file)
      : folder(parent), nbytes(nbytes_), where(where_) {
    const stopwatch watch;
    write(folder.path() + "/data", nbytes);
    files = std::make_shared<gpufs::store::auto_store>(gpufs::simt::this_platform(), folder.path(), nbytes + (1u << 30));
    std::printf("%-14s %.3g GiB in %s, written in %.1f s\n", "file", static_cast<double>(nbytes) / (1u << 30), where.c_str(),
                watch.seconds());
    int error = 0;
    file = files->open("data", O_RDONLY | static_cast<int>(gpufs::names::open_prepared), &error);
    if (!file) throw gpufs::error("cannot open the file: " + std::to_string(error));
  }
  // What the device may read in place; nullptr when the store does not let it.
  const std::byte* mapping() const { return file->info().pull_base; }
  std::string how_bytes_come() const { return mapping() != nullptr ? "" : "; not pulled: " + file->info().reason; }

  work_folder folder;
  std::uint64_t nbytes;
  std::string where;
  std::shared_ptr<gpufs::store::store> files;
  std::unique_ptr<gpufs::store::open_file> file;
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
