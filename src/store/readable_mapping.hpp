// SPDX-License-Identifier: Apache-2.0
// A file in memory (tmpfs) from which host threads load, although other programs may cut it at any moment.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "unique_mmap.hpp"

namespace gpufs::store {

// A load beyond the end of a file that was cut raises SIGBUS. The first mapping of a process sets a handler, which puts zeros in
// place of the page, and the load goes on. Other signals go to the handler that was set before. If another part of the program has
// set a handler since, no more mappings are made.
class readable_mapping {
 public:
  ~readable_mapping();
  readable_mapping(const readable_mapping&) = delete;
  readable_mapping& operator=(const readable_mapping&) = delete;

  // Maps nbytes of a file from `begin` on, which is offset 0 of the mapping. nullptr: the file is in no file system in memory,
  // cannot be mapped, or has holes (a load would allocate memory for them); the process has `most` mappings; or another handler is
  // set. May throw std::bad_alloc.
  static std::unique_ptr<readable_mapping> of(int fd, std::size_t nbytes, std::size_t begin = 0);

  // Whether our handler is set, which the first call does. Without it, a load beyond the end of a file that was cut ends the
  // process.
  static bool is_guarded();

  // Copies row_nbytes from each offset, one behind the other; all of them lie in the mapping. False: pages of the mapping are gone,
  // so the copies may be wrong; all later calls return false, too. Any thread.
  bool gather(std::span<const std::uint64_t> offsets, std::size_t row_nbytes, std::byte* to);

  // Whether a copy of this part, which lies in the mapping, is cheaper by loads than by pread(2). The first load of a block of 64
  // KiB faults, and the system then maps the whole block; that costs about as much as loads save in some reads of 4 KiB, nreads. So
  // the answer is yes where each block of the part was asked about nreads times before: then no more than twice what was needed is
  // spent. Any thread.
  bool pays(std::uint64_t offset, std::size_t nbytes, std::uint8_t nreads);

  std::unique_ptr<readable_mapping> next;  // for who keeps a list of some

 private:
  static constexpr std::uint32_t most = 1024;  // the system bounds the mappings of a process (vm.max_map_count)
  static constexpr unsigned block_shift = 16;  // what a kernel maps at a fault by default (fault_around_bytes)

  readable_mapping(unique_mmap memory, std::size_t nbytes, std::size_t begin);
  void take_pages_out() const;

  static std::atomic<std::uint32_t> nmappings_;

  unique_mmap memory_;  // from the begin of a block on
  std::size_t nbytes_;  // of it
  std::size_t begin_;   // where offset 0 is in it
  // How often pays() was asked about each block, up to its nreads; a count may be lost. The first call makes them.
  std::atomic<std::atomic<std::uint8_t>*> nasked_{nullptr};
  std::atomic<bool> was_loaded_{false};
  std::atomic<bool> is_cut_{false};               // written by the handler
  std::atomic<std::uintptr_t>* known_ = nullptr;  // the place in which the handler finds the mapping; 0 in it: the mapping has
                                                  // ended
};

}  // namespace gpufs::store
