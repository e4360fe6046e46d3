// SPDX-License-Identifier: Apache-2.0
// What device tests of the file part share: device memory, files of chosen sizes whose bytes are a function of (seed, offset), and
// seeds from the environment.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/simt.hpp"
#include "gpufs/store/auto_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool under_tsan = true;  // a switch of lanes costs a hundred times more
#else
inline constexpr bool under_tsan = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool under_asan = true;
#else
inline constexpr bool under_asan = false;
#endif
inline constexpr bool on_cuda = GPUFS_ON_CUDA;

// How many of `usual` seeds or rounds a test has: all, but of those that take long half under AddressSanitizer and a quarter under
// ThreadSanitizer. What these see they see in any schedule; what needs a rare one is for the builds where schedules are cheap.
constexpr std::uint64_t fewer(std::uint64_t usual) { return under_tsan ? (usual + 3) / 4 : under_asan ? (usual + 1) / 2 : usual; }

// How many seeds of the CPU machine's schedules a test tries. A GPU draws its own, and there a mount takes 0.1 s to make.
constexpr std::uint64_t schedules(std::uint64_t usual, std::uint64_t with_tsan) {
  return under_tsan ? with_tsan : on_cuda ? 10 : under_asan ? (usual + 1) / 2 : usual;
}

// The byte at `offset` of the file that was made from `seed`, for host and device. No two pages are alike.
GPUFS_HOST_DEVICE std::uint64_t content_word(std::uint64_t seed, std::uint64_t word) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + word;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
GPUFS_HOST_DEVICE std::byte content_byte(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<std::byte>(content_word(seed, offset / 8) >> (8 * (offset % 8)));
}

inline std::vector<std::byte> content(std::uint64_t seed, std::uint64_t offset, std::size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = content_byte(seed, offset + i);
  return bytes;
}

template <class T>
using device_buffer = simt::device_array<T>;
template <class T>
using pinned_buffer = simt::pinned_array<T>;

[[noreturn]] inline void fail_errno(const std::string& what) {
  throw std::runtime_error(what + ": " + std::generic_category().message(errno));
}

inline bool is_tmpfs(const std::string& directory) {
  struct statfs fs;
  return ::statfs(directory.c_str(), &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}
// Where files are in memory (tmpfs), so that the device may write them in place; else where temporary files are.
inline std::filesystem::path memory_directory() {
  const bool usable = is_tmpfs("/dev/shm") && ::access("/dev/shm", W_OK) == 0;
  return usable ? "/dev/shm" : std::filesystem::temp_directory_path();
}

// A store that maps files of every size, and to write them, too. Windows are small, so that parts of a file are registered while
// others are not.
inline std::shared_ptr<store::store> mapping_store(const std::string& root,
                                                   const store::posix_options& posix = {.writable = true}) {
  return std::make_shared<store::auto_store>(
      simt::this_platform(), root, 0, store::auto_options{.posix = posix, .small_file_nbytes = 1, .window_nbytes = 64 << 10});
}

// A directory of its own, removed at the end; `beneath` a directory, by default the system's for temporary files.
class temp_dir {
 public:
  explicit temp_dir(const std::filesystem::path& beneath = std::filesystem::temp_directory_path()) {
    std::string name = (beneath / "gpufs-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) fail_errno("mkdtemp " + name);
    path_ = name;
  }
  ~temp_dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temp_dir(const temp_dir&) = delete;
  temp_dir& operator=(const temp_dir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // A file of nbytes bytes of content(seed). Its directory is made.
  void add(const std::string& name, std::uint64_t nbytes, std::uint64_t seed) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    write(name, O_CREAT | O_TRUNC, 0, nbytes, seed);
  }
  // Overwrites bytes in place.
  void overwrite(const std::string& name, std::uint64_t offset, std::uint64_t nbytes, std::uint64_t seed) const {
    write(name, 0, offset, nbytes, seed);
  }
  // A hole of `hole` bytes, then nbytes bytes of content (which is a function of the offset in the file).
  void add_sparse(const std::string& name, std::uint64_t hole, std::uint64_t nbytes, std::uint64_t seed) const {
    write(name, O_CREAT | O_TRUNC, hole, nbytes, seed);
  }
  // All bytes of a file.
  std::vector<std::byte> read(const std::string& name) const {
    const int fd = ::open((*this / name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail_errno("open " + name);
    std::vector<std::byte> bytes;
    std::vector<std::byte> part(1 << 16);
    ssize_t n = 0;
    while ((n = ::read(fd, part.data(), part.size())) > 0) bytes.insert(bytes.end(), part.begin(), part.begin() + n);
    ::close(fd);
    if (n < 0) fail_errno("read " + name);
    return bytes;
  }
  void resize(const std::string& name, std::uint64_t nbytes) const {
    if (truncate((*this / name).c_str(), static_cast<off_t>(nbytes)) != 0) fail_errno("truncate " + name);
  }

 private:
  void write(const std::string& name, int flags, std::uint64_t offset, std::uint64_t nbytes, std::uint64_t seed) const {
    const int fd = ::open((*this / name).c_str(), O_WRONLY | O_CLOEXEC | flags, 0644);
    if (fd < 0) fail_errno("open " + name);
    for (std::uint64_t done = 0; done < nbytes;) {
      const auto part = content(seed, offset + done, static_cast<std::size_t>(std::min<std::uint64_t>(nbytes - done, 1 << 20)));
      const ssize_t n = ::pwrite(fd, part.data(), part.size(), static_cast<off_t>(offset + done));
      if (n <= 0) fail_errno("pwrite " + name);
      done += static_cast<std::uint64_t>(n);
    }
    ::close(fd);
  }

  std::string path_;
};

// "f" and 7 give "f7". (GCC 12 warns of an overlap that is not there when "f" + std::to_string(7) is inlined.)
inline std::string numbered(const char* name, std::uint64_t n) { return std::string(name).append(std::to_string(n)); }

// File systems stamp changes with a coarse clock (4 ms on most kernels): a change made later than this has another time.
inline void let_file_times_pass() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

// compute-sanitizer's tools take up to a hundred times a kernel's time. GPUFS_SANITIZER names the tool (bench/on_gpu.sh).
inline bool under_compute_sanitizer() { return std::getenv("GPUFS_SANITIZER") != nullptr; }
// Its memcheck takes memory that is allocated, or registered, while a kernel runs for out of bounds.
inline bool under_memcheck() { return under_compute_sanitizer() && std::string(std::getenv("GPUFS_SANITIZER")) == "memcheck"; }

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

// The seeds to run: GPUFS_TEST_SEED alone, else GPUFS_TEST_SEEDS of them, starting at GPUFS_TEST_FIRST_SEED.
struct seed_range {
  std::uint64_t first, end;
};
inline seed_range seeds_to_run(std::uint64_t usual_count) {
  if (const std::uint64_t one = number_from_environment("GPUFS_TEST_SEED", 0); one != 0) return {one, one + 1};
  const std::uint64_t first = number_from_environment("GPUFS_TEST_FIRST_SEED", 1);
  return {first, first + number_from_environment("GPUFS_TEST_SEEDS", usual_count)};
}

// Draws for random tests; the same on every machine (std::uniform_int_distribution is not).
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : engine_() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool percent(unsigned p) { return below(100) < p; }
  template <class T>
  const T& pick(const std::vector<T>& of) {
    return of[below(of.size())];
  }
  std::uint64_t word() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// True when `done` came true in time. For host threads that watch a kernel.
template <class Condition>
bool wait_until(Condition done, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
