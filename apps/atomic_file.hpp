// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name whole, or not at all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpufs::apps {

// Writes beside the final name, into a file without a name where the file system can do that (then even SIGKILL leaves
// nothing), else into ".NAME.PID.tmp". Throws gpufs::error. Several threads may write at once; else it is not thread-safe.
class atomic_file {
 public:
  explicit atomic_file(std::string path);
  ~atomic_file();  // not published: nothing stays
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;

  void write(const void* data, std::size_t nbytes, std::uint64_t offset);
  void read(void* dst, std::size_t nbytes, std::uint64_t offset) const;
  void resize(std::uint64_t nbytes);  // what is new reads as zeros
  // Syncs the bytes, then puts the file in place of what has the name now, then syncs the folder.
  void publish();

  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const std::string& doing, int error) const;
  void remove_temporary() noexcept;

  std::string path_;
  std::string folder_;
  std::string temporary_;  // empty while the file has no name
  int fd_ = -1;
};

// A file in the folder that is gone when it is closed, open for reading and writing; -1 with errno. Where the file system makes no
// file without a name, SIGKILL between two calls leaves one.
int open_without_name(const std::string& folder);

// Room for temporary data in the folder of `path`, in a file without a name. The space is reserved, so that a full disk is an
// exception here and no signal later. Throws gpufs::error.
class scratch_map {
 public:
  scratch_map(const std::string& path, std::size_t nbytes);
  ~scratch_map();
  scratch_map(const scratch_map&) = delete;
  scratch_map& operator=(const scratch_map&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t nbytes_;
};

}  // namespace gpufs::apps
