// SPDX-License-Identifier: Apache-2.0
// A file of a known size that many host threads write at once, through a mapping where the file system has one. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpufs::apps::par {

// Throws gpufs::error, whose text has the path. Members may be called by several threads at once, for bytes apart.
class output_file {
 public:
  // descriptor: of a file that is open for reading and writing; it stays the caller's. The file gets this size. path: what errors
  // call it.
  output_file(std::string path, int descriptor, std::uint64_t nbytes);
  // A file without a name in this folder; its room is given back when it ends, or the process does.
  static output_file without_name(const std::string& folder, std::uint64_t nbytes);
  ~output_file();
  output_file(output_file&& from) noexcept;
  output_file& operator=(output_file&&) = delete;

  // Waits for room, and the disk's.
  void write(const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) const;
  void read(std::byte* to, std::uint64_t nbytes, std::uint64_t offset) const;
  // All of it, or nullptr where it cannot be mapped. Who reads it there does so within bus_guarded(): the disk may fail.
  const std::byte* mapped() const { return mapping_; }
  [[noreturn]] void fail(int error) const;

 private:
  std::string path_;
  int descriptor_;  // our own
  std::uint64_t nbytes_;
  std::byte* mapping_ = nullptr;
};

}  // namespace gpufs::apps::par
