// SPDX-License-Identifier: Apache-2.0
// rows_by_host.hpp for the machine that the including source is compiled for.
#pragma once
#include <algorithm>

#include "rows_by_host.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Each warp asks for as many rows as fit into a request, and brings them to where they are wanted. What a warp waits for is the
// host, or a request slot that others who run hold; it keeps nothing then.
struct gather_rows_by_host : rows_by_host {
  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    if (simt::block_rank() == 0 && simt::thread_rank() == 0) *left.next_counts = {0, 0};
    const std::uint32_t n = left.counts->n;  // of the kernel before
    if (n == 0) return;
    const file_pages of(from);
    // Where there are few, in as many requests as there can be: so that host threads share them.
    const std::uint32_t fair = (n + left.buffers.count() - 1) / left.buffers.count();
    const std::uint32_t fitting = left.buffers.fitting(part.layout.row_nbytes), at_once = fair < fitting ? fair : fitting;
    for (;;) {
      const auto first = by_leader(
          warp, [&] { return simt::atomic_ref<std::uint32_t>(left.counts->begun).fetch_add(at_once, std::memory_order_relaxed); });
      if (first >= n) return;
      read(warp, of, first, n - first < at_once ? n - first : at_once);
    }
  }

 private:
  struct answer {
    transport::ticket ticket;
    std::int64_t result;
    bool held;  // the ticket is ours, and must be given back
  };

  // The rows at [first, first + n) of the list.
  GPUFS_DEVICE void read(simt::warp warp, const file_pages& of, std::uint32_t first, std::uint32_t n) const {
    const file_mount& mount = *of.mount();
    const mount_requests rings(mount);
    const simt::deadline until(mount.io_timeout_ns);
    const file_view view = by_leader(warp, [&] { return of.view(); });
    answer got{{transport::no_slot, 0}, view.error, false};
    if (view.error == 0) {
      got.ticket = by_leader(warp, [&] { return rings.take_with_rows(left.buffers, ring_hint(), until); });
      got.result = -ETIMEDOUT;
    }
    if (got.ticket.index != transport::no_slot) {
      for (std::uint32_t k = warp.rank(); k < n; k += warp.size()) {
        left.buffers.list(got.ticket.index)[k] = part.offset(part.row(left.places[first + k]));
      }
      warp.sync();  // before the leader's release, with which it sends the request
      got = by_leader(warp, [&] { return ask(rings, view.handle, got, n, until); });
    }
    if (got.result < 0 && !got.held && view.error == 0 && warp.leader()) count(mount.words->io_timeouts, 1);
    const std::uint32_t nlost = bring(warp, of, got, first, n);
    warp.sync();  // all lanes have read the buffer
    if (!warp.leader()) return;
    if (got.held) rings.give_back(got.ticket);
    count(of.hits().bytes_read, std::uint64_t{n - nlost} * part.layout.row_nbytes);
  }
  // One lane calls.
  GPUFS_DEVICE answer ask(const mount_requests& rings, std::uint32_t handle, answer got, std::uint32_t n,
                          const simt::deadline& until) const {
    transport::request what{};
    what.op = transport::opcode::read_rows;
    what.handle = handle;
    what.nbytes = static_cast<std::uint32_t>(part.layout.row_nbytes);
    what.skip = n;
    transport::reply reply;
    if (rings.call(got.ticket, what, reply, until) != 0) return got;
    got.held = true;
    got.result = reply.result;
    return got;
  }
  // Brings what has come to where it is wanted. How many rows failed.
  GPUFS_DEVICE std::uint32_t bring(simt::warp warp, const file_pages& of, const answer& got, std::uint32_t first,
                                   std::uint32_t n) const {
    const simt::tile<8> group;  // four rows at a time, with four loads of a lane in flight
    const std::uint64_t nbytes = part.layout.row_nbytes;
    for (std::uint32_t k = warp.rank() / group.lanes; got.result >= 0 && k < n; k += simt::warp_lanes / group.lanes) {
      std::byte* const here = to + part.in_memory(left.places[first + k]);
      // It is pinned memory, which nobody cuts.
      static_cast<void>(simt::copy_from_host(group, here, left.buffers.rows(got.ticket.index) + k * nbytes, nbytes));
    }
    if (got.result == 0) return 0;
    std::uint32_t nlost = 0;
    for (std::uint32_t k = 0; k < n; ++k) {
      const int error = got.result < 0 ? static_cast<int>(got.result) : by_leader(warp, [&] { return error_of(got.ticket, k); });
      if (error == 0) continue;
      lose_row(warp, part, of, from, to, left.places[first + k], error);
      ++nlost;
    }
    return nlost;
  }
  GPUFS_DEVICE int error_of(const transport::ticket& ticket, std::uint32_t k) const {
    const simt::atomic_ref<std::uint64_t, simt::scope::system> word(left.buffers.list(ticket.index)[k]);
    return static_cast<int>(static_cast<std::int64_t>(word.load(std::memory_order_relaxed)));  // after the answer's acquire
  }
};

void load_rows_by_host() { load_row_kernel<gather_rows_by_host>(); }

// As many warps as there are request slots for them, and as many again that wait for one.
#if GPUFS_ON_CUDA
void start_rows_by_host(const rows_by_host& rows, simt::platform& device, CUstream_st* on) {
#else
void start_rows_by_host(const rows_by_host& rows, simt::platform& device, const simt::stream& on) {
#endif
  constexpr std::uint32_t nwarps = rows_block / simt::warp_lanes;
  const std::uint32_t most = std::min(2 * rows.left.buffers.count(), rows.part.n);
  simt::launch_config config{.grid = GPUFS_ON_CUDA ? (most + nwarps - 1) / nwarps : 4, .block = rows_block};
  config.schedule.timeout_ns = 0;  // many rows may take long; what waits inside has its own deadline
  const simt::on_device here(device);
  simt::launch<rows_block, least_row_blocks>(config, gather_rows_by_host{rows}, on);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
