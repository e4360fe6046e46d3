// SPDX-License-Identifier: Apache-2.0
// Opens that run out of memory, at each of their allocations in turn: they throw, and leave nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <new>

#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mapped_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

constexpr int never = -1;
thread_local int allocations_left = never;  // of this thread, until one fails

void* allocate_or_throw(std::size_t nbytes) {
  if (allocations_left != never && allocations_left-- == 0) throw std::bad_alloc();
  if (void* ptr = std::malloc(std::max<std::size_t>(nbytes, 1))) return ptr;
  throw std::bad_alloc();
}

std::size_t times_mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += line.ends_with("/" + name);
  return n;
}

// How many of its allocations an open has, each of which has failed once.
template <class Store>
int open_without_memory(Store& files, const std::string& name, int flags) {
  for (int n = 0;; ++n) {
    const std::size_t descriptors = names_in("/proc/self/fd").size();
    std::unique_ptr<store::open_file> file;
    bool threw = false;
    int error = 0;
    allocations_left = n;
    try {
      file = files.open(name, flags, &error);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    const bool failed = allocations_left == never;
    allocations_left = never;
    if (!failed) {
      EXPECT_TRUE(file != nullptr && file->info().pull_base != nullptr) << error;
      file.reset();
      files.trim();
    }
    EXPECT_FALSE(threw && file);
    file.reset();
    files.trim();
    EXPECT_EQ(times_mapped(name), 0u) << "allocation " << n;
    EXPECT_EQ(files.usage().nmappings, 0u) << "allocation " << n;
    EXPECT_EQ(files.usage().pinned_nbytes, 0u) << "allocation " << n;
    EXPECT_EQ(names_in("/proc/self/fd").size(), descriptors) << "allocation " << n;
    if (!failed || testing::Test::HasFailure()) return n;
  }
}

TEST(out_of_memory, an_open_leaves_nothing) {
  const temp_dir dir(memory_directory());
  dir.add("file", 20'000, 1);
  let_file_times_pass();
  store::auto_store either(simt::cpu_platform(), dir.path(), 1 << 20, {.posix = {.writable = true}, .small_file_nbytes = 0});
  store::mapped_store mapped(simt::cpu_platform(), dir.path(), 1 << 20, {.writable = true});
  EXPECT_GT(open_without_memory(either, "file", O_RDONLY), 5);
  EXPECT_GT(open_without_memory(mapped, "file", O_RDONLY), 5);
  if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  EXPECT_GT(open_without_memory(either, "file", O_RDWR), 5);
  EXPECT_GT(open_without_memory(mapped, "file", O_RDWR), 5);
}

}  // namespace
}  // namespace gpufs::test

void* operator new(std::size_t nbytes) { return gpufs::test::allocate_or_throw(nbytes); }
void* operator new[](std::size_t nbytes) { return gpufs::test::allocate_or_throw(nbytes); }
void operator delete(void* ptr) noexcept { std::free(ptr); }
void operator delete[](void* ptr) noexcept { std::free(ptr); }
void operator delete(void* ptr, std::size_t) noexcept { std::free(ptr); }
void operator delete[](void* ptr, std::size_t) noexcept { std::free(ptr); }
