// SPDX-License-Identifier: Apache-2.0
// What kernels find in memory of a pair of queues, of memory that the controller reaches, and of a namespace. docs/design/nvme.md
// says who writes what, and when.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/nvme/detail/wire.hpp"

namespace gpufs::nvme {

// A page of the controller's (CC.MPS = 0). Addresses on the bus are known page by page.
inline constexpr std::uint32_t bus_page_nbytes = 4096;
inline constexpr std::uint32_t list_entries = bus_page_nbytes / 8;  // of a page of a PRP list

// Pinned host memory that the controller may read and write. Begins a page; whole pages.
struct dma_memory {
  std::byte* data;  // for lanes and the host
  std::uint64_t nbytes;
  const std::uint64_t* page;  // device memory: the address of each page on the bus
};
static_assert(sizeof(dma_memory) == 24 && offsetof(dma_memory, data) == 0 && offsetof(dma_memory, nbytes) == 8);
static_assert(offsetof(dma_memory, page) == 16);

enum class record_state : std::uint32_t { idle, pending, given_up, done };

// A record's word: what becomes of the command that has its number. Bits 0 and 1: the state; 2 to 16: the status, where it is done;
// 17 to 31: the queue's epoch when it was sent; 32 to 63: how often the record was used.
namespace record_word {
inline constexpr std::uint64_t state_mask = 3, status_shift = 2, epoch_shift = 17, epoch_mask = 0x7fff, use_shift = 32;
GPUFS_HOST_DEVICE constexpr record_state state(std::uint64_t word) { return static_cast<record_state>(word & state_mask); }
GPUFS_HOST_DEVICE constexpr status_word status(std::uint64_t word) {
  return static_cast<status_word>(word >> status_shift & status_mask);
}
GPUFS_HOST_DEVICE constexpr std::uint32_t epoch(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> epoch_shift & epoch_mask);
}
GPUFS_HOST_DEVICE constexpr std::uint32_t use(std::uint64_t word) { return static_cast<std::uint32_t>(word >> use_shift); }
GPUFS_HOST_DEVICE constexpr std::uint64_t make(record_state state, std::uint32_t epoch, std::uint32_t use, status_word status = 0) {
  return static_cast<std::uint64_t>(state) | std::uint64_t{status & status_mask} << status_shift |
         (epoch & epoch_mask) << epoch_shift | std::uint64_t{use} << use_shift;
}
}  // namespace record_word

enum class gate_state : std::uint32_t { open, closed, dead };  // dead: the controller is lost, until the driver's end

// The words of a pair of queues, in device memory: those that others use are on other lines.
struct alignas(128) queue_words {
  std::uint64_t tail;                    // the next position of the submission queue that is not reserved
  alignas(128) std::uint64_t head;       // how many of them the controller has fetched, as completions say
  alignas(128) std::uint32_t ringers;    // publications that no ringer has swept since
  std::uint64_t rung;                    // the ringer's: up to where the doorbell is
  alignas(128) std::uint32_t polling;    // 1: a group polls
  std::uint32_t seen_epoch;              // the poller's: the last one that it has looked through the records for
  std::uint64_t taken, told;             // the poller's: entries of the completion queue; up to where the doorbell is
  alignas(128) std::uint32_t users;      // groups that are between the gate and their doorbell
  alignas(128) gate_state gate;          // the host's
  std::uint32_t epoch;                   // the host's: how often the queue was made again
  alignas(128) std::uint64_t ncommands;  // counters, from here on
  std::uint64_t ndoorbells, nunexpected;
};
static_assert(sizeof(queue_words) == 7 * 128 && offsetof(queue_words, tail) == 0);
static_assert(offsetof(queue_words, head) == 128 && offsetof(queue_words, ringers) == 256 && offsetof(queue_words, rung) == 264);
static_assert(offsetof(queue_words, polling) == 384 && offsetof(queue_words, seen_epoch) == 388);
static_assert(offsetof(queue_words, taken) == 392 && offsetof(queue_words, told) == 400 && offsetof(queue_words, users) == 512);
static_assert(offsetof(queue_words, gate) == 640 && offsetof(queue_words, epoch) == 644 && offsetof(queue_words, ncommands) == 768);
static_assert(offsetof(queue_words, ndoorbells) == 776 && offsetof(queue_words, nunexpected) == 784);

// A pair of queues.
struct queue_layout {
  submission* commands;         // pinned: nslots of them
  completion* completions;      // pinned: nentries
  std::uint32_t* command_bell;  // doorbells, as lanes reach them
  std::uint32_t* completion_bell;
  std::uint64_t* given_up;      // pinned: when a lane last gave a command up
  queue_words* words;           // these in device memory
  std::uint64_t* published;     // of each slot: the position there, plus 1, in bits 6 to 63; for how many commands, in bits 0 to 5
  std::uint64_t* free_records;  // a bit each
  std::uint64_t* records;       // a word each
  dma_memory lists;             // list_pages for each record
  dma_memory buffers;           // buffer_nbytes for each record
  std::uint32_t nslots, nentries, nrecords;  // 2 to 65,536 slots and entries; records: fewer than either
  std::uint32_t list_pages, buffer_nbytes;
  std::uint32_t id;  // the number of both queues
};
static_assert(sizeof(queue_layout) == 144 && offsetof(queue_layout, commands) == 0 && offsetof(queue_layout, completions) == 8);
static_assert(offsetof(queue_layout, command_bell) == 16 && offsetof(queue_layout, completion_bell) == 24);
static_assert(offsetof(queue_layout, given_up) == 32 && offsetof(queue_layout, words) == 40 &&
              offsetof(queue_layout, published) == 48);
static_assert(offsetof(queue_layout, free_records) == 56 && offsetof(queue_layout, records) == 64 &&
              offsetof(queue_layout, lists) == 72);
static_assert(offsetof(queue_layout, buffers) == 96 && offsetof(queue_layout, nslots) == 120 &&
              offsetof(queue_layout, nentries) == 124);
static_assert(offsetof(queue_layout, nrecords) == 128 && offsetof(queue_layout, list_pages) == 132);
static_assert(offsetof(queue_layout, buffer_nbytes) == 136 && offsetof(queue_layout, id) == 140);

// A namespace of a controller, with the queues that lead there.
struct namespace_layout {
  const queue_layout* queues;  // device memory
  std::uint64_t nblocks;
  std::uint32_t nqueues, nsid;
  std::uint32_t block_shift;       // a block has 1 << block_shift bytes
  std::uint32_t blocks_a_command;  // at most: MDTS, a record's buffer, 65,536
  std::uint32_t writable;          // 0: writes are -EROFS
  std::uint32_t reserved;
};
static_assert(sizeof(namespace_layout) == 40 && offsetof(namespace_layout, queues) == 0 &&
              offsetof(namespace_layout, nblocks) == 8);
static_assert(offsetof(namespace_layout, nqueues) == 16 && offsetof(namespace_layout, nsid) == 20);
static_assert(offsetof(namespace_layout, block_shift) == 24 && offsetof(namespace_layout, blocks_a_command) == 28);
static_assert(offsetof(namespace_layout, writable) == 32 && offsetof(namespace_layout, reserved) == 36);

}  // namespace gpufs::nvme
