// SPDX-License-Identifier: Apache-2.0
// Memory that calls from the host take, and give back.
#pragma once
#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/par/row_batch.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

// Rows at once: larger batches go by pieces. The more, the closer lies what is read at one time, in a workspace of 40 bytes a row.
constexpr std::uint64_t most_sorted = 1u << 22, fewer_sorted = 1u << 20;

// Device memory for one call from the host at a time, kept from one to the next: CUDA's free waits for all kernels.
struct row_scratch {
  explicit row_scratch(simt::platform& device) : ids(0, device), bytes(0, device), word(1, device) {}
  static row_scratch& grown(row_scratch& scratch, std::size_t nids, std::size_t nbytes) {
    simt::platform& device = scratch.ids.device();
    if (scratch.ids.size() < nids) scratch.ids = simt::device_array<std::int64_t>(nids, device);
    if (scratch.bytes.size() < nbytes) scratch.bytes = simt::device_array<std::byte>(nbytes, device);
    return scratch;
  }

  // For reads of up to n rows.
  row_batch& batch(const mount& fs, std::uint64_t n) {
    const std::uint64_t wanted = std::min(std::bit_ceil(n), most_sorted);
    if (batched_nrows >= wanted) return *batch_;
    try {
      sort_at_once(fs, wanted);
    } catch (const std::bad_alloc&) {
      if (wanted <= fewer_sorted) throw;
      if (batched_nrows < fewer_sorted) sort_at_once(fs, fewer_sorted);
    }
    return *batch_;
  }
  const simt::stream& turns() const { return *turns_; }

  simt::device_array<std::int64_t> ids;
  simt::device_array<std::byte> bytes;
  simt::pinned_array<std::uint64_t> word;

 private:
  void sort_at_once(const mount& fs, std::uint64_t nrows) {
    if (turns_ == nullptr) turns_ = std::make_unique<simt::stream>(ids.device());
    batch_ = std::make_unique<row_batch>(fs, static_cast<std::uint32_t>(nrows));
    batched_nrows = nrows;
  }

  std::uint64_t batched_nrows = 0;
  std::unique_ptr<row_batch> batch_;
  std::unique_ptr<simt::stream> turns_;
};

class scratch_pool {
 public:
  explicit scratch_pool(simt::platform& device) : device_(device) {}

  // Calls work(scratch).
  template <class Work>
  void with(std::size_t nids, std::size_t nbytes, const Work& work) {
    std::unique_ptr<row_scratch> scratch = take();
    row_scratch& grown = row_scratch::grown(*scratch, nids, nbytes);
    grown.word[0] = 0;
    work(grown);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::unique_ptr<row_scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<row_scratch> last = std::move(free_.back());
        free_.pop_back();
        return last;
      }
    }
    return std::make_unique<row_scratch>(device_);
  }

  simt::platform& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<row_scratch>> free_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::arrays
