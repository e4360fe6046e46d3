// SPDX-License-Identifier: Apache-2.0
// The host's end of the request rings: allocates their memory, takes requests in order, and answers them in any order.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>

#include "gpufs/simt/device_array.hpp"
#include "gpufs/transport/detail/layout.hpp"
#include "gpufs/transport/detail/row_buffers.hpp"

namespace gpufs::transport {

// A copy of a request, and where its answer goes.
struct taken_request {
  request what;
  std::uint32_t index;     // the slot's place among the slots of all rings
  std::uint32_t sequence;  // of this use of the slot
};

// The numbers and sizes of the row buffers for so many rings, without memory. The buffers belong to rings that no write uses
// (requests.hpp), if there are four rings or more, and to so few rings that all rows take 8 MiB at most: the rows of requests under
// way should stay in the processors' caches. There are no buffers if a ring has more than most_slots slots.
inline row_buffers row_buffers_for(std::uint32_t nrings, std::uint32_t nslots) {
  constexpr std::uint32_t enough_slots = 256, most_slots = 2048, all_nbytes = 8u << 20, most_nbytes = 32u << 10;
  row_buffers made;
  if (nslots > most_slots) return made;
  const bool many = nrings >= 4;
  made.nslots = nslots;
  made.ring_step = many ? 4 : 1;
  made.ring_begin = many ? 1 : 0;
  made.nrings = std::clamp(enough_slots / nslots, 1u, many ? nrings / 4 : nrings);
  made.nbytes = std::min(most_nbytes, all_nbytes / made.count() / 512 * 512);
  return made;
}
inline std::size_t nbytes_of(const row_buffers& of) { return std::size_t{of.count()} * (row_buffers::list_nbytes + of.nbytes); }

class rings {
 public:
  // If `writable`, each payload has room for a mask or a second path.
  rings(simt::platform& machine, std::uint32_t nrings, std::uint32_t nslots, std::uint32_t payload_nbytes, bool writable)
      : requests_(std::size_t{nrings} * nslots, machine),
        replies_(std::size_t{nrings} * nslots, machine),
        tails_(nrings, machine),
        turns_(std::size_t{nrings} * nslots, machine),
        cursors_(new cursor[nrings]),
        answered_(new std::atomic<std::uint32_t>[std::size_t{nrings} * nslots]),
        nrings_(nrings),
        nslots_(nslots),
        payload_nbytes_(payload_nbytes),
        payload_stride_(writable ? payload_nbytes + (payload_nbytes / 8 + 4095) / 4096 * 4096 : payload_nbytes),
        payload_(std::size_t{nrings} * nslots * payload_stride_, machine) {
    // As if every slot had been used, and answered, once before its first use.
    for (std::size_t i = 0; i < std::size_t{nrings} * nslots; ++i) {
      answered_[i].store(static_cast<std::uint32_t>(i % nslots) + 1 - nslots, std::memory_order_relaxed);
    }
  }

  transport_layout layout() const {
    return {{requests_.get(), replies_.get(), payload_.get(), nrings_, nslots_, payload_nbytes_, payload_stride_},
            tails_.get(),
            turns_.get()};
  }
  std::uint32_t nrings() const { return nrings_; }
  std::byte* payload(std::uint32_t index) const { return payload_.get() + std::size_t{index} * payload_stride_; }
  std::uint32_t payload_nbytes() const { return payload_nbytes_; }

  // Whether ring r has a request to take. A hint; costs two loads.
  bool pending(std::uint32_t r) const {
    const std::uint32_t ticket = cursors_[r].next.load(std::memory_order_relaxed);
    return sequence_of(index_of(r, ticket)).load(std::memory_order_relaxed) == ticket + 1;
  }

  // Whether any ring has requests. If none has, the sinks of take() have run for all earlier ones: the acquire meets take()'s
  // release.
  bool any_pending() const {
    for (std::uint32_t r = 0; r < nrings_; ++r) {
      const std::uint32_t ticket = cursors_[r].next.load(std::memory_order_acquire);
      if (sequence_of(index_of(r, ticket)).load(std::memory_order_relaxed) == ticket + 1) return true;
    }
    return false;
  }

  // Passes up to `most` requests of ring r, in order, to sink(taken_request). Returns how many; 0 also if another worker does so
  // now.
  template <class Sink>
  std::uint32_t take(std::uint32_t r, std::uint32_t most, Sink sink) {
    cursor& at = cursors_[r];
    // The acquire meets the release below: we see the cursor of the worker that took last.
    if (at.busy.exchange(true, std::memory_order_acquire)) return 0;
    std::uint32_t ticket = at.next.load(std::memory_order_relaxed);
    std::uint32_t n = 0;
    for (; n < most; ++n, ++ticket) {
      const std::uint32_t index = index_of(r, ticket);
      // Meets the device's release store of `sequence`: we see the request's fields and payload.
      if (sequence_of(index).load(std::memory_order_acquire) != ticket + 1) break;
      // A device that keeps to the protocol has read the answer to the slot's last use. If it has not, the request waits here,
      // because otherwise two workers might fill one payload. Meets complete()'s release.
      if (answered_[index].load(std::memory_order_acquire) != ticket + 1 - nslots_) break;
      sink(taken_request{copy_request(index), index, ticket + 1});
    }
    at.next.store(ticket, std::memory_order_release);
    at.busy.store(false, std::memory_order_release);
    return n;
  }

  // Answers the use `sequence` of the slot. The payload must be complete.
  void complete(std::uint32_t index, std::uint32_t sequence, const reply& answer) {
    reply& out = replies_.get()[index];
    std::memcpy(&out, &answer, offsetof(reply, sequence));
    answered_[index].store(sequence, std::memory_order_release);  // before the device may use the slot again; meets take()
    // Meets the device's acquire load of `sequence`: it sees the reply's fields and the payload.
    std::atomic_ref<std::uint32_t>(out.sequence).store(sequence, std::memory_order_release);
  }

 private:
  struct alignas(64) cursor {
    std::atomic<std::uint32_t> next{0};  // ticket
    std::atomic<bool> busy{false};
  };
  std::uint32_t index_of(std::uint32_t r, std::uint32_t ticket) const { return r * nslots_ + (ticket & (nslots_ - 1)); }
  std::atomic_ref<std::uint32_t> sequence_of(std::uint32_t index) const {
    return std::atomic_ref<std::uint32_t>(requests_.get()[index].sequence);
  }

  // Copies word by word, and reads each word once. If the device writes meanwhile, we get some request, but it no longer changes.
  request copy_request(std::uint32_t index) const {
    std::uint32_t words[sizeof(request) / sizeof(std::uint32_t)];
    auto* from = reinterpret_cast<std::uint32_t*>(&requests_.get()[index]);
    for (std::size_t i = 0; i < std::size(words); ++i) {
      words[i] = std::atomic_ref<std::uint32_t>(from[i]).load(std::memory_order_relaxed);
    }
    request copy;
    std::memcpy(&copy, words, sizeof copy);
    return copy;
  }

  simt::pinned_array<request> requests_;
  simt::pinned_array<reply> replies_;
  simt::device_array<std::uint32_t> tails_, turns_;
  std::unique_ptr<cursor[]> cursors_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> answered_;  // by slot: the sequence of the last answer
  std::uint32_t nrings_, nslots_, payload_nbytes_, payload_stride_;
  simt::pinned_array<std::byte> payload_;
};

}  // namespace gpufs::transport
