// SPDX-License-Identifier: Apache-2.0
// A file in memory (tmpfs) as host threads load from it, although anybody may cut it at any moment.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "unique_mmap.hpp"

namespace gpufs::store {

// A load beyond the end of a file that was cut raises SIGBUS. The first mapping of a process sets a handler, which puts zeros where
// the page was and lets the load go on; what it is not for, it gives to the handler that was there before. Where somebody else has
// set a handler since, there are no such mappings any more.
class readable_mapping {
 public:
  ~readable_mapping();
  readable_mapping(const readable_mapping&) = delete;
  readable_mapping& operator=(const readable_mapping&) = delete;

  // Maps nbytes of a file from `begin` on, as offset 0. nullptr: its file system is not one of these, it cannot be mapped, it has
  // holes (a load would take memory for them), or somebody else has taken the signal.
  static std::unique_ptr<readable_mapping> of(int fd, std::size_t nbytes, std::size_t begin = 0);

  // Copies row_nbytes from each offset, one behind the other; all of them lie in the mapping. False: pages of it are gone, so
  // anything may be there; it is so from then on. Any thread.
  bool gather(std::span<const std::uint64_t> offsets, std::size_t row_nbytes, std::byte* to);

 private:
  readable_mapping(unique_mmap memory, std::size_t end, std::size_t begin);

  unique_mmap memory_;  // of all of the file
  std::size_t begin_;
  std::atomic<bool> is_cut_{false};               // written by the handler
  std::atomic<std::uintptr_t>* known_ = nullptr;  // by which the handler finds it; 0: no more
};

}  // namespace gpufs::store
