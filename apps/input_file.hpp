// SPDX-License-Identifier: Apache-2.0
// A regular file that is read by host threads, and is not to change meanwhile. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpufs::apps {

// Throws gpufs::error, whose text has the path. Members may be called by several threads at once.
class input_file {
 public:
  // verb: what is done with it ("lexed"), for what is said of a file that changed meanwhile.
  input_file(std::string path, std::string verb);
  ~input_file();
  input_file(const input_file&) = delete;
  input_file& operator=(const input_file&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t nbytes() const { return nbytes_; }  // when it was opened
  // All nbytes bytes. Waits for the disk.
  void read(void* to, std::uint64_t nbytes, std::uint64_t offset) const;
  // The whole file, mapped read-only until this ends; not to be called by several threads. Reads beyond the end of a file that was
  // cut meanwhile raise SIGBUS (bus_guard.hpp).
  const std::byte* map() const;
  [[noreturn]] void fail(int error) const;  // ESTALE: it changed

 private:
  std::string path_, verb_;
  int descriptor_;
  std::uint64_t nbytes_ = 0;
  mutable const std::byte* mapping_ = nullptr;
};

}  // namespace gpufs::apps
