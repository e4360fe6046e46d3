// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of arrays at the host's call, in a stream's turn, with any operator. docs/design/scans.md, "At the host's
// call"
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpufs/mount.hpp"
#include "gpufs/par/detail/array_scan_kernels.hpp"
#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Arrays that are scanned, or combined, one call after the other, as if they were one: each call goes on from what all before it
// gave. Order: scan_order::fixed has the same bits on each run for sums of real numbers, too, on devices of one kind. A kernel of
// as many blocks as the device runs at once does it: it begins when other kernels leave room for all of them. One thread at a time
// calls, and what it enqueues is under way on one stream. That stream must have been waited for when the array_scan ends.
template <scan_operator Op, scan_order Order = scan_order::any>
class array_scan {
 public:
  using value = typename Op::value;

  // max_n: elements of a call, at most. It has a workspace in the device's memory: on CUDA of some 2 bytes for 1,000
  // elements of 4 bytes, 8 for those of 8, 160 for those of 32. Throws what the platform does, where there is no memory.
  explicit array_scan(std::uint64_t max_n, simt::platform& device = simt::this_platform(), const Op& op = {})
      : array_scan(std::in_place, std::nullopt, max_n, device, op) {}

  // The same with a workspace of the caller's: at least workspace_nbytes(max_n, device) bytes that the device reaches, aligned to
  // workspace_alignment, whatever is in them; else std::invalid_argument. Until the array_scan ends they are nobody else's.
  array_scan(std::span<std::byte> workspace, std::uint64_t max_n, simt::platform& device = simt::this_platform(), const Op& op = {})
      : array_scan(std::in_place, workspace, max_n, device, op) {}
  static constexpr std::size_t workspace_alignment = 256;
  static std::size_t workspace_nbytes(std::uint64_t max_n, simt::platform& device = simt::this_platform()) {
    return nbytes_for(max_n, blocks_on(device));
  }

  // out[i]: all elements up to and with in[i] combined, or all before it. They are enqueued, and return at once. in, out: n
  // elements each that kernels of the device reach (its own memory, pinned memory; on the CPU machine all of the host's), until the
  // stream has done it; `out` may be `in`, else they do not overlap. Throw, before anything is enqueued, std::invalid_argument:
  // more than max_n elements, memory that kernels do not reach, arrays that overlap, another device's stream; simt::launch_error.
  void inclusive(const value* in, value* out, std::uint64_t n, const simt::stream& on) { scan(in, out, n, false, on); }
  void exclusive(const value* in, value* out, std::uint64_t n, const simt::stream& on) { scan(in, out, n, true, on); }
  // The same without an `out`: only for all().
  void reduce(const value* in, std::uint64_t n, const simt::stream& on) {
    check("in", in, n, on);
    run(typename kernels::reduction{in, n, op_, !goes_on_, state_, space_}, on);
  }

  // All elements of all calls since the beginning combined; op.identity() of none. Waits for the stream. Throws gpufs::error: a
  // scan gave up (scan_result); and what the stream's wait() throws.
  value all(const simt::stream& on) {
    if (!goes_on_) reduce(nullptr, 0, on);  // what nothing gives, kernels know
    on.wait();
    state now;
    device_->copy_from_device(&now, state_, sizeof now);
    if (now.error != 0) throw error(std::string("a scan of an array failed: ") + std::strerror(-now.error), -now.error);
    return now.all;
  }

  // The next call begins anew.
  void restart() { goes_on_ = false; }
  // The next call goes on as if all elements before it gave this. Nothing may be under way.
  void restart(const value& before) {
    const state from_here{before, 0};
    device_->copy_to_device(state_, &from_here, sizeof from_here);
    goes_on_ = true;
  }

 private:
  using state = detail::array_scan_state<value>;
  using kernels = detail::array_scan_kernels<Op, Order>;
  static constexpr unsigned nthreads = !GPUFS_ON_CUDA ? 64 : sizeof(value) <= 8 ? 512 : 256, least_blocks = 2;
  static constexpr std::size_t space_begin = (sizeof(state) + 255) / 256 * 256;

  array_scan(std::in_place_t, std::optional<std::span<std::byte>> workspace, std::uint64_t max_n, simt::platform& device,
             const Op& op)
      : device_(&device), op_(op), max_n_(max_n), nblocks_(blocks_on(device)) {
    const simt::on_device here(device);
    simt::load<typename kernels::scan, nthreads, least_blocks>();  // kernels that wait for the host may run when it is launched
    simt::load<typename kernels::reduction, nthreads, least_blocks>();
    const std::size_t nbytes = nbytes_for(max_n, nblocks_);
    if (!workspace) {
      own_.emplace(nbytes, device);
      workspace = {own_->get(), own_->size()};
    }
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(workspace->data()) % workspace_alignment == 0;
    if (workspace->size() < nbytes || !is_aligned || device.reachable_nbytes(workspace->data(), nbytes) < nbytes) {
      throw std::invalid_argument("gpufs::par::array_scan: a workspace has " + std::to_string(nbytes) +
                                  " bytes at least that the device reaches, aligned to " + std::to_string(workspace_alignment));
    }
    state_ = reinterpret_cast<state*>(workspace->data());
    space_ = {workspace->data() + space_begin, nbytes - space_begin};
  }

  static std::size_t nbytes_for(std::uint64_t max_n, unsigned nblocks) {
    return space_begin + scan_space::nbytes_for<value>(max_n, nblocks, nthreads);
  }
  // Always as many on a device, so that brackets in fixed order are the same: as many as run at once.
  static unsigned blocks_on(simt::platform& device) {
    const simt::on_device here(device);
    const unsigned most =
        std::min(simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, typename kernels::scan{}),
                 simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, typename kernels::reduction{}));
    return GPUFS_ON_CUDA ? most : std::min(most, 3u);
  }

  void scan(const value* in, value* out, std::uint64_t n, bool exclusive, const simt::stream& on) {
    check("in", in, n, on);
    check("out", out, n, on);
    if (in != out && in < out + n && out < in + n) {
      throw std::invalid_argument("gpufs::par::array_scan: out overlaps in, and is not the same");
    }
    run(typename kernels::scan{in, out, n, op_, exclusive, !goes_on_, state_, space_}, on);
  }
  void check(const char* name, const value* memory, std::uint64_t n, const simt::stream& on) const {
    const std::string who = "gpufs::par::array_scan: ";
    if (n > max_n_)
      throw std::invalid_argument(who + "was made for " + std::to_string(max_n_) + " elements, not " + std::to_string(n));
    if (&on.device() != device_) throw std::invalid_argument(who + "the stream is another device's");
    if (n != 0 && device_->reachable_nbytes(memory, n * sizeof(value)) < n * sizeof(value)) {
      throw std::invalid_argument(who + "kernels of the device do not reach all of " + name);
    }
  }
  template <class Kernel>
  void run(const Kernel& kernel, const simt::stream& on) {
    simt::launch_config config{.grid = nblocks_, .block = nthreads, .cooperative = true};
    config.schedule.timeout_ns = 0;  // it takes as long as it takes
    simt::launch<nthreads, least_blocks>(config, kernel, on);
    goes_on_ = true;
  }

  simt::platform* device_;
  Op op_;
  std::uint64_t max_n_;
  unsigned nblocks_;
  std::optional<simt::device_array<std::byte>> own_;  // the workspace, if it is not the caller's
  state* state_;                                      // in the workspace
  scan_space space_{};
  bool goes_on_ = false;  // from what is in the state
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
