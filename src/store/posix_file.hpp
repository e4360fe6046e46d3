// SPDX-License-Identifier: Apache-2.0
// An open regular file: one version of it, for reading; or its present bytes, for writing.
#pragma once
#include <time.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "../simt/unique_fd.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::store {

class posix_file final : public open_file {
 public:
  // How to open the file again, if it keeps no descriptor.
  struct origin {
    std::string path;
    int flags = 0;
  };
  // One use of the file's descriptor.
  struct lease {
    unique_fd own;  // if the file keeps none
    int fd = -1;
    int error = 0;  // negative errno; -ESTALE: the path names another file now
  };

  // Keeps `fd` unless the process is short of descriptors (kept_descriptors.hpp); then each access opens `from` below `root` again.
  posix_file(unique_fd fd, file_info info, std::uint64_t nlinks, std::uint32_t alignment, const root_directory& root, origin from);
  ~posix_file() override;

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override;
  int descriptor() const override { return fd_.get(); }  // -1 if it keeps none
  lease use() const;
  std::uint32_t alignment() const override { return alignment_; }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override;
  int check_version() const override;  // also -errno if fstat fails
  void begin_rename() override;
  void end_rename() override;
  void set_reason(std::string reason) { info_.reason = std::move(reason); }  // before any other thread has the file

 private:
  int changed() const;
  int check_version(int fd) const;
  std::int64_t read_aligned(int fd, std::span<std::byte> dst, std::int64_t offset) const;

  unique_fd fd_;
  file_info info_;
  root_directory root_;  // empty if the file keeps its descriptor; so is from_
  origin from_;
  std::uint32_t alignment_;
  // The ctime that stands for the opened version, and the number of links that belongs to it. Both are set together, under the
  // lock, if only the number of links has changed, or a rename of ours has changed the file's name.
  mutable std::atomic<std::uint64_t> ctime_ns_;
  mutable std::mutex lock_;
  mutable std::uint64_t nlinks_;
  int nrenames_ = 0;                        // renames under way, under the lock: they may change ctime
  mutable std::atomic<bool> stale_{false};  // a file that has changed once stays stale
};

// A regular file that is open for writing. It always keeps its descriptor: if it were opened again, its path might lead to another
// file, and the written bytes would be lost.
class live_file final : public open_file {
 public:
  live_file(unique_fd fd, file_info info);
  ~live_file() override;

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override;
  int descriptor() const override { return fd_.get(); }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override;
  int sync(bool data_only) override;
  int truncate(std::int64_t nbytes) override;
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override;
  void add_reason(const std::string& reason) { info_.reason += reason; }  // before any other thread has the file

 private:
  unique_fd fd_;
  file_info info_;
};

// Opens a file for posix_store::open, to read. Returns nullptr and *error, or the file.
std::unique_ptr<posix_file> open_posix_file(const root_directory& root, std::string_view path, int flags,
                                            const posix_options& options, int* error);

// Opens a file for posix_store::open, to write (path.hpp: writes(flags)). Returns nullptr and *error, or the file.
std::unique_ptr<live_file> open_live_file(const root_directory& root, std::string_view path, int flags,
                                          const posix_options& options, int* error);

std::uint64_t ns_of(const timespec& t);

// Opens the root directory. Throws std::system_error.
root_directory open_root(const std::string& root);

// The age from which stamps are settled, if the file system keeps fractions of a second.
inline constexpr auto settle_time = std::chrono::milliseconds(20);

// Whether stamps (ns) are so old at `now` that a later change must give other stamps; see posix_store.
bool is_settled(std::uint64_t mtime_ns, std::uint64_t ctime_ns, std::uint64_t now_ns);

}  // namespace gpufs::store
