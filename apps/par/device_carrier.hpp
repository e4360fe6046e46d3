// SPDX-License-Identifier: Apache-2.0
// Buffers in a device's memory, which copy engines fill and empty: from and to host memory that the device reaches at once, else by
// way of pinned slots, which host threads fill and empty. For the machine that the including source is compiled for.
#pragma once
#include <algorithm>
#include <deque>
#include <vector>

#include "apps/par/spread_copies.hpp"
#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/stream.hpp"

namespace gpufs::apps::par {
inline namespace GPUFS_MACHINE {

class device_carrier final : public carrier {
  static constexpr std::uint64_t slot_nbytes = GPUFS_ON_CUDA ? 16 << 20 : 64 << 10;
  static constexpr unsigned nslots = 3;

  // Pinned memory, and the copies from or to it.
  struct slot {
    simt::pinned_array<std::byte> bytes;
    simt::stream copies;
    explicit slot(simt::platform& device) : bytes(slot_nbytes, device), copies(device) {}
  };
  struct buffer_of {
    simt::device_array<std::byte> bytes;
    simt::stream copies;
    bool in_slots = false, out_slots = false;  // whether its bytes come, and go, by way of slots
    buffer_of(std::uint64_t nbytes, simt::platform& device) : bytes(nbytes + 16, device), copies(device) {}
  };

 public:
  device_carrier(unsigned nbuffers, std::uint64_t nbytes, simt::platform& device) : device_(device) {
    for (unsigned i = 0; i < nbuffers; ++i) buffers_.emplace_back(nbytes, device);
  }
  unsigned nbuffers() const override { return static_cast<unsigned>(buffers_.size()); }
  std::byte* buffer(unsigned i) const override { return buffers_[i].bytes.get(); }

  void begin_in(unsigned i, const bytes_from& from, std::span<const range> ranges) override {
    buffer_of& to = buffers_[i];
    to.in_slots = !std::ranges::all_of(ranges, [&](const range& each) { return reaches(from.memory, each.offset, each.nbytes); });
    if (to.in_slots) return fill_by_slots(to, from, ranges);
    std::byte* next = to.bytes.get();
    for (const range& each : ranges) {
      to.copies.copy_to_device(next, from.memory + each.offset, each.nbytes);
      next += each.nbytes;
    }
  }
  // By slots this waits for more than it must: for what of the next piece is under way.
  void end_in(unsigned i) override {
    if (!buffers_[i].in_slots) return buffers_[i].copies.wait();
    for (const slot& each : in_) each.copies.wait();
  }

  void begin_out(unsigned i, std::uint64_t nbytes, const bytes_to& to, std::uint64_t offset) override {
    buffer_of& from = buffers_[i];
    from.out_slots = !reaches(to.memory, offset, nbytes);
    if (!from.out_slots) from.copies.copy_from_device(to.memory + offset, from.bytes.get(), nbytes);
  }
  void end_out(unsigned i, std::uint64_t nbytes, const bytes_to& to, std::uint64_t offset) override {
    if (!buffers_[i].out_slots) return buffers_[i].copies.wait();
    fill(out_);
    const std::uint64_t nchunks = (nbytes + slot_nbytes - 1) / slot_nbytes;
    const auto chunk = [&](std::uint64_t k) { return std::min(slot_nbytes, nbytes - k * slot_nbytes); };
    for (std::uint64_t k = 0; k < nchunks + nslots - 1; ++k) {
      if (k < nchunks) {
        const slot& to_here = out_[k % nslots];
        to_here.copies.copy_from_device(to_here.bytes.get(), buffer(i) + k * slot_nbytes, chunk(k));
      }
      if (k < nslots - 1) continue;
      const std::uint64_t done = k - (nslots - 1);
      out_[done % nslots].copies.wait();
      if (done < nchunks) write_by_all(to, out_[done % nslots].bytes.get(), chunk(done), offset + done * slot_nbytes);
    }
  }

 private:
  bool reaches(const std::byte* memory, std::uint64_t offset, std::uint64_t nbytes) const {
    return memory != nullptr && device_.reachable_nbytes(memory + offset, nbytes) == nbytes;
  }
  void fill(std::deque<slot>& slots) const {
    while (slots.size() < nslots) slots.emplace_back(device_);
  }
  void fill_by_slots(const buffer_of& to, const bytes_from& from, std::span<const range> ranges) {
    fill(in_);
    std::byte* next = to.bytes.get();
    std::vector<range> some;  // for one slot
    std::uint64_t nbytes = 0;
    const auto send = [&] {
      const slot& by = in_[next_in_++ % nslots];
      by.copies.wait();
      read_by_all(from, some, by.bytes.get());
      by.copies.copy_to_device(next, by.bytes.get(), nbytes);
      next += nbytes;
      nbytes = 0;
      some.clear();
    };
    for (range each : ranges) {
      while (each.nbytes != 0) {
        const std::uint64_t n = std::min(each.nbytes, slot_nbytes - nbytes);
        some.push_back({each.offset, n});
        nbytes += n;
        each = {each.offset + n, each.nbytes - n};
        if (nbytes == slot_nbytes) send();
      }
    }
    if (nbytes != 0) send();
  }

  simt::platform& device_;
  std::deque<buffer_of> buffers_;
  std::deque<slot> in_, out_;  // made when they are needed
  std::uint64_t next_in_ = 0;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::par
