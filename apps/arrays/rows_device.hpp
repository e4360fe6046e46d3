// SPDX-License-Identifier: Apache-2.0
// Rows by a kernel, for the machine that the including source is compiled for.
#pragma once
#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>

#include "apps/arrays/rows.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

// Each warp reads rows, as whole as they are.
struct read_rows {
  file from;
  row_place place;
  const std::int64_t* ids;
  std::uint64_t n;
  std::byte* out;
  std::int64_t* failed;  // of a row that could not be read: 1 + its place in ids; and why: an errno, or -EDOM, there is no such row

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t i = simt::global_warp_rank(); i < n; i += simt::global_warp_count()) {
      const std::int64_t id = ids[i];
      std::int64_t got = -EDOM;
      if (id >= 0 && static_cast<std::uint64_t>(id) < place.nrows) {
        const std::uint64_t offset = place.begin + static_cast<std::uint64_t>(id) * place.row_nbytes;
        got = pread(warp, from, out + i * place.row_nbytes, place.row_nbytes, static_cast<std::int64_t>(offset));
      }
      if (got != static_cast<std::int64_t>(place.row_nbytes) && warp.leader()) note(i, got < 0 ? got : -ESTALE);
    }
  }
  GPUFS_DEVICE void note(std::uint64_t i, std::int64_t error) const {
    std::int64_t none = 0;
    if (simt::atomic_ref<std::int64_t>(failed[0]).compare_exchange(none, static_cast<std::int64_t>(i) + 1,
                                                                   std::memory_order_relaxed)) {
      simt::atomic_ref<std::int64_t>(failed[1]).store(error, std::memory_order_relaxed);
    }
  }
};

class device_rows final : public row_file {
 public:
  device_rows(const std::string& path, const row_place& place, const cache_options& options)
      : path_(path), place_(place), fs_(folder_of(path), options_of(options)), file_(fs_, name_of(path)), failed_(2) {}

  void read(const std::int64_t* ids, std::size_t n, std::byte* out, bool on_device) override {
    if (n == 0 || place_.row_nbytes == 0) return;
    if (on_device) return run(ids, n, out);
    // What does not fit into a moderate piece of device memory goes in parts.
    constexpr std::size_t piece_nbytes = 256 << 20;
    const std::size_t most = std::max<std::size_t>(1, piece_nbytes / place_.row_nbytes);
    for (std::size_t first = 0; first < n; first += most) {
      const std::size_t here = std::min(most, n - first);
      const simt::device_array<std::int64_t> device_ids(std::span(ids + first, here));
      const simt::device_array<std::byte> rows(here * place_.row_nbytes);
      run(device_ids.get(), here, rows.get());
      const std::vector<std::byte> bytes = rows.read();
      std::memcpy(out + first * place_.row_nbytes, bytes.data(), bytes.size());
    }
  }

  std::string way() const override {
    std::string way(simt::this_platform().name());
    for (const file_report& report : fs_.open_files()) {
      if (report.path == name_of(path_)) way += ": " + report.reason;
    }
    return way;
  }
  mount_counters counters() const override { return fs_.counters(); }

 private:
  static std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }
  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  static mount_options options_of(const cache_options& options) {
    mount_options wanted;
    wanted.cache_nbytes = options.cache_nbytes;
    wanted.page_nbytes = options.page_nbytes;
    return wanted;
  }

  void run(const std::int64_t* ids, std::size_t n, std::byte* out) {
    const std::lock_guard lock(mutex_);  // of failed_
    failed_.write_one(0, 0);
    constexpr unsigned block = GPUFS_ON_CUDA ? 256 : 64;
    constexpr std::uint64_t most_blocks = GPUFS_ON_CUDA ? 4096 : 4;
    const std::uint64_t blocks = (n + block / simt::warp_lanes - 1) / (block / simt::warp_lanes);
    simt::launch_config config{static_cast<unsigned>(std::min(blocks, most_blocks)), block};
    config.schedule.timeout_ns = 0;  // many rows may take long; what waits inside has its own deadline
    simt::launch(config, read_rows{file_.ref(), place_, ids, n, out, failed_.get()});
    const std::vector<std::int64_t> failed = failed_.read();
    if (failed[0] == 0) return;
    if (failed[1] == -EDOM)
      throw std::out_of_range("index " + std::to_string(failed[0] - 1) + " of those that were asked for names no row");
    throw error("cannot read '" + path_ + "': " + std::strerror(static_cast<int>(-failed[1])));
  }

  std::string path_;
  row_place place_;
  mount fs_;
  host_file file_;
  simt::device_array<std::int64_t> failed_;
  std::mutex mutex_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::arrays
