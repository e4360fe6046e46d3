// SPDX-License-Identifier: Apache-2.0
// An open collage library: its header, checked, and its sections. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/collage/format.hpp"
#include "apps/progress.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::collage {

// What is wrong with a library file, in one line that names the file.
class library_error : public error {
 public:
  using error::error;
};

// One LSH table in memory.
struct mapped_table {
  const std::uint32_t* directory;  // 2^D + 1 words
  const table_entry* entries;
  std::uint32_t nentries;
};

class library {
 public:
  // Opens the file and checks its header, its size, where its sections lie, and the sections that every engine trusts
  // (projections, reference). Throws library_error.
  explicit library(std::string path);
  ~library();
  library(library&&) noexcept;
  library& operator=(library&&) = delete;

  const std::string& path() const { return path_; }
  const header& head() const { return head_; }
  std::uint32_t nimages() const { return head_.nimages; }
  // Tells this file from one that took its name meanwhile.
  std::uint64_t inode() const { return inode_; }
  const section& find(section_kind kind, std::uint32_t index = 0) const;
  std::uint32_t table_nentries(std::uint32_t table) const;
  const std::vector<std::int8_t>& projections() const { return projections_; }
  const std::vector<std::int32_t>& reference() const { return reference_; }

  // Reads exactly nbytes. Throws library_error (also when the file has become shorter).
  void read(void* dst, std::size_t nbytes, std::uint64_t offset) const;
  // The thumbnails of n images, tile_nbytes each. Throws library_error (no such image, read errors).
  void read_thumbnails(const std::uint32_t* ids, std::size_t n, std::uint8_t* out) const;
  image_origin origin(std::uint32_t id) const;
  std::string source_name(std::uint32_t source) const;  // bytes as the file system has them

  // Compares every section with its CRC and the gaps between them with zero. Throws library_error naming the section.
  void check_sums(const progress_function& progress = {}) const;
  // What sums cannot tell: histograms are those of the thumbnails, table entries are sorted and lie in their cells, names and
  // origins are sound. Throws library_error.
  void check_contents(const progress_function& progress = {}) const;

  // The whole file, mapped read-only; mapped on first use, stays until the library is closed. Reads beyond the end of a file
  // that was truncated meanwhile raise SIGBUS: use bus_guard.
  const std::byte* map() const;
  mapped_table map_table(std::uint32_t table) const;
  // In the mapping.
  const float* histogram(std::uint32_t id) const {
    return reinterpret_cast<const float*>(histograms_ + std::uint64_t{id} * head_.histogram_stride);
  }

  [[noreturn]] void fail(const std::string& what) const;  // library_error: "PATH: what"

 private:
  void check_header() const;
  void check_layout() const;

  std::string path_;
  int fd_ = -1;
  std::uint64_t file_nbytes_ = 0;
  std::uint64_t inode_ = 0;
  header head_{};
  std::vector<std::int8_t> projections_;
  std::vector<std::int32_t> reference_;
  mutable const std::byte* mapping_ = nullptr;
  mutable const std::byte* histograms_ = nullptr;
};

std::string section_name(const section& s);

}  // namespace gpufs::apps::collage
