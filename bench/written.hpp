// SPDX-License-Identifier: Apache-2.0
// Files that kernels write: what they write, and how it is compared on the host.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device.hpp"
#include "simt/unique_fd.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// The file's new content from word `first` on.
template <class Group>
GPUFS_DEVICE void make_words(Group group, std::byte* to, std::uint64_t first, std::uint32_t nwords, std::uint64_t salt) {
  auto* words = reinterpret_cast<std::uint64_t*>(to);
  for (std::uint32_t i = group.rank(); i < nwords; i += group.size()) words[i] = word_of(first + i) + salt;
  group.sync();
}

// Writes to page p of `sum` what that page of two other files has, added up word by word, and salt; by way of `mine`, of a page's
// size. False: it could not.
GPUFS_DEVICE bool add_pages(gpufs::simt::warp warp, const gpufs::file& first, const gpufs::file& second, const gpufs::file& sum,
                            std::uint64_t p, std::uint32_t page_nbytes, std::uint64_t* mine, std::uint64_t salt) {
  const auto offset = static_cast<std::int64_t>(p * page_nbytes);
  gpufs::mapped_page x = gpufs::map_page(warp, first, offset), y = gpufs::map_page(warp, second, offset);
  const bool are_there = x.error() == 0 && y.error() == 0;
  if (are_there) {
    const auto* xs = reinterpret_cast<const std::uint64_t*>(x.data());
    const auto* ys = reinterpret_cast<const std::uint64_t*>(y.data());
    for (std::uint32_t i = warp.rank(); i < page_nbytes / 8; i += 32) mine[i] = xs[i] + ys[i] + salt;
  }
  gpufs::unmap_page(warp, std::move(x));
  gpufs::unmap_page(warp, std::move(y));
  return are_there && gpufs::pwrite(warp, sum, mine, page_nbytes, offset) == page_nbytes;
}

// The page of the i-th write: npages, a power of two, in a row are all of them, once each.
GPUFS_HOST_DEVICE std::uint64_t scattered_page(std::uint64_t i, std::uint64_t npages) {
  return i * 0x9e3779b97f4a7c15u & (npages - 1);  // odd
}

inline gpufs::unique_fd open_file(const std::string& path, int flags) {
  gpufs::unique_fd file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (file.get() < 0) throw gpufs::error("cannot open " + path);
  return file;
}

// A file in the process's memory that kernels may write.
class written_mapping {
 public:
  written_mapping(const std::string& path, std::uint64_t nbytes) : nbytes_(nbytes) {
    const auto file = open_file(path, O_RDWR);
    host_ = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (host_ == MAP_FAILED) throw gpufs::error("cannot map " + path);
    device_ = static_cast<std::byte*>(gpufs::simt::this_platform().register_writable(host_, nbytes, &why_));
  }
  ~written_mapping() {
    if (device_ != nullptr) gpufs::simt::this_platform().unregister(host_);
    ::munmap(host_, nbytes_);
  }
  written_mapping(const written_mapping&) = delete;
  written_mapping& operator=(const written_mapping&) = delete;
  std::byte* device() const { return device_; }  // null, and why
  std::byte* host() const { return static_cast<std::byte*>(host_); }
  const std::string& why() const { return why_; }

 private:
  std::uint64_t nbytes_;
  void* host_;
  std::byte* device_ = nullptr;
  std::string why_;
};

// A file whose 8-byte word i is word(i), by all host threads; what was there before goes.
template <class Word>
void write_words(const std::string& path, std::uint64_t nbytes, const Word& word) {
  const auto file = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
  const std::uint64_t missing = sum_in_parallel(nbytes / 8, [&](std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> words(1 << 16);
    std::uint64_t failed = 0;
    for (std::uint64_t at = begin; at < end; at += words.size()) {
      const std::size_t n = std::min<std::uint64_t>(words.size(), end - at);
      for (std::size_t i = 0; i < n; ++i) words[i] = word(at + i);
      failed += ::pwrite(file.get(), words.data(), n * 8, static_cast<off_t>(at * 8)) != static_cast<ssize_t>(n * 8);
    }
    return failed;
  });
  if (missing != 0) throw gpufs::error("cannot write " + path);
}

// How many of the file's 8-byte words i are not word(i), from all host threads.
template <class Word>
std::uint64_t wrong_words(const std::string& path, std::uint64_t nbytes, const Word& word) {
  const auto file = open_file(path, O_RDONLY);
  if (::lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(nbytes)) return ~std::uint64_t{0};
  return sum_in_parallel(nbytes / 8, [&](std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> words(1 << 16);
    std::uint64_t wrong = 0;
    for (std::uint64_t at = begin; at < end; at += words.size()) {
      const std::size_t n = std::min<std::uint64_t>(words.size(), end - at);
      if (::pread(file.get(), words.data(), n * 8, static_cast<off_t>(at * 8)) != static_cast<ssize_t>(n * 8))
        return ~std::uint64_t{0} / 2;
      for (std::size_t i = 0; i < n; ++i) wrong += words[i] != word(at + i);
    }
    return wrong;
  });
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
