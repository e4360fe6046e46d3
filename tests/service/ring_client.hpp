// SPDX-License-Identifier: Apache-2.0
// A device that is a few host threads: it drives the rings exactly as transport/detail/layout.hpp says, so that the service is
// tested without a machine. Its memory accesses are C++ atomics, so ThreadSanitizer checks the protocol.
#pragma once
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "gpufs/transport/detail/layout.hpp"
#include "gpufs/transport/detail/row_buffers.hpp"

namespace gpufs::test {

// Members may be called by many threads; a ticket belongs to the thread that took it.
class ring_client {
 public:
  struct ticket {
    std::uint32_t index;
    std::uint32_t number;
  };

  explicit ring_client(const transport::ring_layout& rings)
      : rings_(rings),
        tails_(new std::atomic<std::uint32_t>[rings.nrings] {}),
        turns_(new std::atomic<std::uint32_t>[std::size_t{rings.nrings} * rings.nslots] {}) {}

  // Takes a slot of the ring, waiting until one is free.
  ticket take(std::uint32_t ring) {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (;;) {
      std::uint32_t number = tails_[ring].load(std::memory_order_relaxed);
      const std::uint32_t index = ring * rings_.nslots + (number & (rings_.nslots - 1));
      // Meets give_back().
      if (turns_[index].load(std::memory_order_acquire) == number / rings_.nslots) {
        if (tails_[ring].compare_exchange_strong(number, number + 1, std::memory_order_relaxed)) return {index, number};
        continue;
      }
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("no slot became free");
      std::this_thread::yield();
    }
  }

  std::byte* payload(ticket t) const { return rings_.payload + std::size_t{t.index} * rings_.payload_stride; }

  void post(ticket t, const transport::request& what) {
    transport::request& out = rings_.requests[t.index];
    auto* to = reinterpret_cast<std::uint32_t*>(&out);
    std::uint32_t words[16];
    std::memcpy(words, &what, sizeof words);
    for (int i = 0; i < 15; ++i) std::atomic_ref(to[i]).store(words[i], std::memory_order_relaxed);
    std::atomic_ref(out.sequence).store(t.number + 1, std::memory_order_release);  // meets the host's acquire
  }

  bool answered(ticket t) const {
    return std::atomic_ref(rings_.replies[t.index].sequence).load(std::memory_order_acquire) == t.number + 1;
  }

  // Waits for the answer. Throws after a minute.
  transport::reply wait(ticket t) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (int spins = 0; !answered(t); ++spins) {
      if (spins < 200) continue;
      std::this_thread::yield();
      if (spins % 1024 == 0 && std::chrono::steady_clock::now() > until) throw std::runtime_error("no answer came");
    }
    return rings_.replies[t.index];
  }

  void give_back(ticket t) { turns_[t.index].store(t.number / rings_.nslots + 1, std::memory_order_release); }

  transport::reply call(const transport::request& what, std::uint32_t ring = 0) {
    const ticket t = take(ring);
    post(t, what);
    const transport::reply got = wait(t);
    give_back(t);
    return got;
  }

  // nbytes_along: of the file's beginning, wanted in the payload.
  ticket begin_open(std::string_view path, int flags = 0, std::int64_t number = 0, std::uint32_t ring = 0,
                    std::uint32_t nbytes_along = 0) {
    const ticket t = take(ring);
    std::memcpy(payload(t), path.data(), std::min<std::size_t>(path.size(), rings_.payload_nbytes));
    transport::request ask{};
    ask.op = transport::opcode::open;
    ask.handle = nbytes_along;
    ask.nbytes = static_cast<std::uint32_t>(path.size());
    ask.flags = static_cast<std::uint32_t>(flags);
    ask.offset = number;
    post(t, ask);
    return t;
  }
  transport::reply open(std::string_view path, int flags = 0, std::int64_t number = 0, std::uint32_t ring = 0) {
    const ticket t = begin_open(path, flags, number, ring);
    const transport::reply got = wait(t);
    give_back(t);
    return got;
  }

  // The answer, and what came along in *bytes.
  transport::reply open_along(std::string_view path, std::uint32_t nbytes_along, std::vector<std::byte>* bytes) {
    const ticket t = begin_open(path, 0, 0, 0, nbytes_along);
    const transport::reply got = wait(t);
    bytes->assign(payload(t), payload(t) + (got.result > 0 ? got.result : 0));
    give_back(t);
    return got;
  }

  ticket begin_read(std::uint32_t handle, std::int64_t offset, std::uint32_t nbytes, std::uint32_t ring = 0) {
    const ticket t = take(ring);
    transport::request ask{};
    ask.op = transport::opcode::read;
    ask.handle = handle;
    ask.offset = offset;
    ask.nbytes = nbytes;
    post(t, ask);
    return t;
  }
  // The result, and what was read in *bytes.
  std::int64_t end_read(ticket t, std::vector<std::byte>* bytes) {
    const std::int64_t result = wait(t).result;
    if (bytes != nullptr) bytes->assign(payload(t), payload(t) + (result > 0 ? result : 0));
    give_back(t);
    return result;
  }
  std::int64_t read(std::uint32_t handle, std::int64_t offset, std::uint32_t nbytes, std::vector<std::byte>* bytes = nullptr,
                    std::uint32_t ring = 0) {
    return end_read(begin_read(handle, offset, nbytes, ring), bytes);
  }

  // Rows at these offsets, by a slot that has a buffer of `buffers`. count: what the request says, 0: as many as there are.
  ticket begin_rows(const transport::row_buffers& buffers, std::uint32_t handle, std::span<const std::uint64_t> offsets,
                    std::uint32_t row_nbytes, std::uint32_t ring = 0, std::uint32_t count = 0) {
    const ticket t = take(buffers.ring_begin + ring % buffers.nrings * buffers.ring_step);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      std::atomic_ref(buffers.list(t.index)[i]).store(offsets[i], std::memory_order_relaxed);
    }
    transport::request ask{};
    ask.op = transport::opcode::read_rows;
    ask.handle = handle;
    ask.nbytes = row_nbytes;
    ask.skip = count != 0 ? count : static_cast<std::uint32_t>(offsets.size());
    post(t, ask);
    return t;
  }
  // The result; the rows in *bytes, and if some failed the error of each in *errors.
  std::int64_t end_rows(const transport::row_buffers& buffers, ticket t, std::size_t nbytes, std::vector<std::byte>* bytes,
                        std::vector<int>* errors = nullptr) {
    const std::int64_t result = wait(t).result;
    if (bytes != nullptr) bytes->assign(buffers.rows(t.index), buffers.rows(t.index) + (result >= 0 ? nbytes : 0));
    for (std::size_t i = 0; errors != nullptr && i < errors->size(); ++i) {
      (*errors)[i] = result <= 0 ? 0 : static_cast<int>(static_cast<std::int64_t>(buffers.list(t.index)[i]));
    }
    give_back(t);
    return result;
  }

  ticket begin_close(std::uint32_t handle, std::uint32_t ring = 0) {
    const ticket t = take(ring);
    transport::request ask{};
    ask.op = transport::opcode::close;
    ask.handle = handle;
    post(t, ask);
    return t;
  }
  std::int64_t close(std::uint32_t handle, std::uint32_t ring = 0) { return end(begin_close(handle, ring)); }

  // Writes bytes from `skip` in the payload on; with a mask (a bit a byte of the payload), only what it says.
  ticket begin_write(std::uint32_t handle, std::int64_t offset, std::span<const std::byte> bytes, std::uint32_t ring = 0,
                     std::uint32_t skip = 0, const std::vector<std::uint32_t>* mask = nullptr) {
    const ticket t = take(ring);
    std::memcpy(payload(t) + skip, bytes.data(), bytes.size());
    if (mask != nullptr) std::memcpy(payload(t) + rings_.payload_nbytes, mask->data(), mask->size() * sizeof(std::uint32_t));
    transport::request ask{};
    ask.op = transport::opcode::write;
    ask.handle = handle;
    ask.offset = offset;
    ask.nbytes = static_cast<std::uint32_t>(bytes.size());
    ask.skip = skip;
    ask.flags = mask != nullptr ? transport::write_masked : 0;
    post(t, ask);
    return t;
  }
  std::int64_t end(ticket t) {
    const std::int64_t result = wait(t).result;
    give_back(t);
    return result;
  }
  std::int64_t write(std::uint32_t handle, std::int64_t offset, std::span<const std::byte> bytes, std::uint32_t ring = 0,
                     std::uint32_t skip = 0, const std::vector<std::uint32_t>* mask = nullptr) {
    return end(begin_write(handle, offset, bytes, ring, skip, mask));
  }
  std::int64_t on_file(transport::opcode op, std::uint32_t handle, std::int64_t offset = 0, std::uint32_t flags = 0) {
    transport::request ask{};
    ask.op = op;
    ask.handle = handle;
    ask.offset = offset;
    ask.flags = flags;
    return call(ask).result;
  }

  // A call on a path, or on two. What lies in the payload goes to *bytes.
  transport::reply on_path(const transport::request& what, std::string_view path, std::string_view to = {},
                           std::vector<std::byte>* bytes = nullptr, std::uint32_t ring = 0) {
    const ticket t = take(ring);
    std::memcpy(payload(t), path.data(), path.size());
    transport::request ask = what;
    ask.nbytes = static_cast<std::uint32_t>(path.size());
    if (!to.empty()) std::memcpy(payload(t) + rings_.payload_nbytes, to.data(), to.size());
    if (ask.op == transport::opcode::rename) ask.handle = static_cast<std::uint32_t>(to.size());
    post(t, ask);
    const transport::reply got = wait(t);
    if (bytes != nullptr) bytes->assign(payload(t), payload(t) + (got.result > 0 ? got.result : 0));
    give_back(t);
    return got;
  }

  const transport::ring_layout& rings() const { return rings_; }

 private:
  static constexpr auto limit = std::chrono::seconds(60);
  transport::ring_layout rings_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> tails_, turns_;
};

}  // namespace gpufs::test
