// SPDX-License-Identifier: Apache-2.0
// What a controller in software keeps its blocks in: memory, behind a volatile write cache.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace gpufs::test {

class soft_image {
 public:
  explicit soft_image(std::uint64_t nbytes) : now_(nbytes), medium_(nbytes) {}

  void read(std::uint64_t at, std::byte* to, std::uint64_t nbytes) const { std::memcpy(to, now_.data() + at, nbytes); }
  void write(std::uint64_t at, const std::byte* from, std::uint64_t nbytes, bool through) {
    std::memcpy(now_.data() + at, from, nbytes);
    if (through) {
      std::memcpy(medium_.data() + at, from, nbytes);
    } else {
      cached_.emplace_back(at, nbytes);
    }
  }
  void flush() {
    for (const auto& [at, nbytes] : cached_) std::memcpy(medium_.data() + at, now_.data() + at, nbytes);
    cached_.clear();
  }
  void lose_cache() {
    now_ = medium_;
    cached_.clear();
  }
  const std::vector<std::byte>& bytes() const { return now_; }
  const std::vector<std::byte>& medium() const { return medium_; }

 private:
  std::vector<std::byte> now_, medium_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cached_;
};

}  // namespace gpufs::test
