// SPDX-License-Identifier: Apache-2.0
// What a controller in software keeps its blocks in: memory, behind a volatile write cache; or a file, whose cache is the system's.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace gpufs::nvme {

class soft_image {
 public:
  // Zeros.
  explicit soft_image(std::uint64_t nbytes) : now_(nbytes), medium_(nbytes), data_(now_.data()), nbytes_(nbytes) {}
  // The file's bytes; whole blocks. Throws std::system_error.
  soft_image(const std::string& file, std::uint32_t block_nbytes) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) fail(errno, file, "cannot be opened to read and write");
    struct stat status {};
    const bool known = ::fstat(fd, &status) == 0;
    nbytes_ = known ? static_cast<std::uint64_t>(status.st_size) : 0;
    const bool fits = nbytes_ != 0 && nbytes_ % block_nbytes == 0;
    if (fits) mapped_ = ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    ::close(fd);
    if (!fits) fail(EINVAL, file, "is empty, no file, or no whole number of blocks: make one by `truncate -s 64M`, say");
    if (mapped_ == MAP_FAILED) fail(error, file, "cannot be mapped");
    data_ = static_cast<std::byte*>(mapped_);
  }
  ~soft_image() {
    if (is_file()) ::munmap(mapped_, nbytes_);
  }
  soft_image(const soft_image&) = delete;
  soft_image& operator=(const soft_image&) = delete;

  std::uint64_t nbytes() const { return nbytes_; }
  void read(std::uint64_t at, std::byte* to, std::uint64_t nbytes) const { std::memcpy(to, data_ + at, nbytes); }
  // As several threads do, each to blocks of its own.
  void write(std::uint64_t at, const std::byte* from, std::uint64_t nbytes, bool through) {
    std::memcpy(data_ + at, from, nbytes);
    const std::lock_guard lock(mutex_);
    if (is_file()) {
      if (through) flush_locked();
    } else if (through) {
      std::memcpy(medium_.data() + at, from, nbytes);
    } else {
      cached_.emplace_back(at, nbytes);
    }
  }
  // 0, or an errno of the file's.
  int flush() {
    const std::lock_guard lock(mutex_);
    return flush_locked();
  }
  // What the cache has is gone: of memory. The system keeps what a file's has.
  void lose_cache() {
    const std::lock_guard lock(mutex_);
    if (is_file()) return;
    std::memcpy(data_, medium_.data(), nbytes_);
    cached_.clear();
  }
  std::vector<std::byte> bytes() const { return {data_, data_ + nbytes_}; }
  std::vector<std::byte> medium() const { return is_file() ? bytes() : medium_; }

 private:
  [[noreturn]] static void fail(int error, const std::string& file, const char* why) {
    throw std::system_error(error, std::generic_category(), "gpufs: the image " + file + " " + why);
  }
  int flush_locked() {
    if (is_file()) return ::msync(data_, nbytes_, MS_SYNC) == 0 ? 0 : errno;
    for (const auto& [at, nbytes] : cached_) std::memcpy(medium_.data() + at, data_ + at, nbytes);
    cached_.clear();
    return 0;
  }
  bool is_file() const { return mapped_ != MAP_FAILED; }

  std::mutex mutex_;  // medium and cache
  std::vector<std::byte> now_, medium_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cached_;
  void* mapped_ = MAP_FAILED;
  std::byte* data_ = nullptr;
  std::uint64_t nbytes_ = 0;
};

}  // namespace gpufs::nvme
