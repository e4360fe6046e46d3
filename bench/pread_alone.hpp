// SPDX-License-Identifier: Apache-2.0
// What host threads read that do nothing else: the ceiling of misses that they serve.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "access.hpp"

namespace bench {

// preads a second of `nthreads` threads, each into 128 pinned pages of its own; every page that is left is compared afterwards.
inline double pread_alone(const std::string& path, std::uint64_t nbytes, unsigned nthreads, std::uint32_t per_thread,
                          std::uint64_t seed, bool* right) {
  constexpr std::uint32_t npages = 128;
  const pinned_array<std::byte> pages(std::size_t{nthreads} * npages * 4096);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw gpufs::error("cannot open the file");
  const page_access access{nbytes / 4096, seed};
  std::atomic<bool> all_right{true};
  const double seconds = run_threads(nthreads, [&](unsigned t) {
    std::byte* mine = pages.get() + std::size_t{t} * npages * 4096;
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      const auto offset = static_cast<off_t>(access.page(std::uint64_t{t} * per_thread + i) * 4096);
      if (pread(fd, mine + i % npages * 4096, 4096, offset) != 4096) all_right = false;
    }
  });
  close(fd);
  for (unsigned t = 0; t < nthreads; ++t) {
    for (std::uint32_t i = per_thread < npages ? 0 : per_thread - npages; i < per_thread; ++i) {
      const std::uint64_t first = access.page(std::uint64_t{t} * per_thread + i) * 512;
      const auto* words = reinterpret_cast<const std::uint64_t*>(pages.get() + (std::size_t{t} * npages + i % npages) * 4096);
      for (std::uint64_t w = 0; w < 512; ++w) {
        if (words[w] != word_of(first + w)) all_right = false;
      }
    }
  }
  *right = *right && all_right;
  return static_cast<double>(nthreads) * per_thread / seconds;
}

}  // namespace bench
