// SPDX-License-Identifier: Apache-2.0
// Rows of an array in a file: the inside of gpufs.open() in Python. Each engine reads the same bytes in another way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpufs/mount.hpp"

namespace gpufs::apps::arrays {

// Where the rows lie in the file: row i is at begin + i * row_nbytes.
struct row_place {
  std::uint64_t begin, row_nbytes, nrows;
};

// Of the engines that have a mount; 0: the mount's own default.
struct cache_options {
  std::uint64_t cache_nbytes = 0;
  std::uint32_t page_nbytes = 4096;
};

// An open file. Its calls may be made by several threads at once.
class row_file {
 public:
  virtual ~row_file() = default;
  row_file(const row_file&) = delete;
  row_file& operator=(const row_file&) = delete;

  // Copies rows ids[0], ids[1], ..., ids[n - 1] to `out`, one after the other. Waits until they are there. Both lie in memory of
  // the host or, where `on_device` says so and the engine is a GPU's, of the device. Throws std::out_of_range, there is no such
  // row, or gpufs::error, the file cannot be read, or is shorter by now; `out` is undefined then.
  virtual void read(const std::int64_t* ids, std::size_t n, std::byte* out, bool on_device) = 0;
  // Which way the bytes take, and why.
  virtual std::string way() const = 0;
  // Zeros where the engine has no mount.
  virtual mount_counters counters() const { return {}; }

 protected:
  row_file() = default;
};

// By host threads, from a mapping of the file.
std::unique_ptr<row_file> open_rows_cpu(const std::string& path, const row_place& place);
// By a kernel, on the CPU machine, and on a GPU.
std::unique_ptr<row_file> open_rows_simt(const std::string& path, const row_place& place, const cache_options& options);
std::unique_ptr<row_file> open_rows_cuda(const std::string& path, const row_place& place, const cache_options& options);

}  // namespace gpufs::apps::arrays
