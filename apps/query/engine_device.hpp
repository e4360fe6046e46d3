// SPDX-License-Identifier: Apache-2.0
// Queries by kernels over gpufs, for the machine that the including source is compiled for.
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/query/query_kernel.hpp"
#include "gpufs/par/gather.hpp"

namespace gpufs::apps::query {
inline namespace GPUFS_MACHINE {

// A column of an open file, for kernels.
struct column_in_file {
  file of;
  arrays::byte_map map;
  row_layout layout;  // of values by the byte at which they begin: they may begin at any
};

// Reads what is asked for, past the cache where the device reads the files itself: no value is wanted twice.
struct columns_in_files {
  column_in_file where;
  const column_in_file* sums;

  GPUFS_DEVICE scanned_run scan(simt::warp warp, warp_space& mine, std::uint64_t byte, std::uint32_t most) const {
    const arrays::byte_run there = where.map.at(byte);
    const std::uint32_t n = there.nbytes < most ? static_cast<std::uint32_t>(there.nbytes) : most;
    const auto before = static_cast<std::uint32_t>(there.offset % 16);  // read as well: loads of 16 bytes are aligned
    const std::int64_t got = pread(warp, where.of, mine.chunk, before + n, static_cast<std::int64_t>(there.offset - before));
    if (got != static_cast<std::int64_t>(before + n)) return {nullptr, 0, got < 0 ? static_cast<int>(got) : -ESTALE};
    return {mine.chunk + before, n, 0};
  }
  GPUFS_DEVICE int fetch(simt::warp warp, warp_space& mine, unsigned column, const std::uint64_t* rows, std::uint32_t n) const {
    const column_in_file& in = sums[column];
    if (warp.rank() < n) mine.places[warp.rank()] = in.map.at(rows[warp.rank()] * in.layout.row_nbytes).offset;
    warp.sync();
    const int error = gather(warp, in.of, in.layout, mine.places, n, mine.values).error;
    return error == -EDOM || error == -ENXIO ? -ESTALE : error;  // the file was cut
  }
};

// Where a column's pieces lie, in device memory.
struct pieces_there {
  pieces_there(const column& of, simt::platform& device)
      : pieces(of.place), table(pieces.table(), device), parts(pieces.parts(), device) {}
  arrays::byte_map map() const { return pieces.map(table.get(), parts.get()); }

  arrays::row_pieces pieces;
  simt::device_array<arrays::byte_piece> table;
  simt::device_array<std::uint32_t> parts;
};

class device_engine final : public engine {
 public:
  device_engine(const query& of, const engine_options& options)
      : paths_(paths_of(of)),
        root_(root_of(paths_)),
        fs_(root_.string(), mount_options_of(options)),
        runs_(of, fs_.device(), fs_.options().cache_nbytes / fs_.options().page_nbytes / pages_a_warp) {
    const simt::on_device here(fs_.device());
    const column_in_file where = open(of.where);
    std::vector<column_in_file> sums;
    for (const column& each : of.sums) sums.push_back(open(each));
    sums_ = std::make_unique<const simt::device_array<column_in_file>>(sums, fs_.device());
    columns_ = {where, sums_->get()};
    names_.push_back(of.where.path);
    for (const column& each : of.sums) names_.push_back(each.path);
  }

  query_result run(const progress_function& progress) override {
    const simt::on_device here(fs_.device());
    const auto begin = std::chrono::steady_clock::now();
    const mount_counters before = fs_.counters();
    query_result all;
    try {
      all = runs_.run(columns_, progress);
    } catch (const kernel_runs::read_failure& failure) {
      fail(names_[failure.column], failure.error);
    }
    const mount_counters after = fs_.counters();
    all.bytes_read = after.bytes_read - before.bytes_read;
    all.bytes_filled = after.bytes_filled - before.bytes_filled;
    all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return all;
  }

 private:
  // Where host threads read for it: those of a chunk, or of rows that it fetches, whose frames it may wait for.
  static constexpr std::uint64_t pages_a_warp = 4;
  using path = std::filesystem::path;

  // Of all columns, without links: a mount follows none out of its root.
  static std::map<std::string, path> paths_of(const query& of) {
    std::map<std::string, path> all;
    const auto add = [&](const column& each) {
      std::error_code error;
      const path there = std::filesystem::canonical(each.path, error);
      if (error) fail(each.path, error.value());
      all.emplace(each.path, there);
    };
    add(of.where);
    for (const column& each : of.sums) add(each);
    return all;
  }
  // The deepest folder above all.
  static path root_of(const std::map<std::string, path>& paths) {
    path root = paths.begin()->second.parent_path();
    for (const auto& [name, there] : paths) {
      const path folder = there.parent_path();
      const auto [in_root, in_folder] = std::mismatch(root.begin(), root.end(), folder.begin(), folder.end());
      path common;
      for (auto part = root.begin(); part != in_root; ++part) common /= *part;
      root = common;
    }
    return root;
  }
  static mount_options mount_options_of(const engine_options& options) {
    mount_options all;
    all.device = options.device;
    all.cache_nbytes = options.cache_nbytes;
    all.page_nbytes = options.page_nbytes;
    all.custom_store = options.store;
    return all;
  }
  [[noreturn]] static void fail(const std::string& name, int number) {
    const bool changed = number == ESTALE || number == ENXIO;
    const std::string why = changed            ? "was truncated, replaced or written by others while it was queried: try again"
                            : number == ENOMEM ? "no page of the cache was free for long: allow more by --cache-size"
                                               : std::strerror(number);
    throw gpufs::error(name + ": " + why, number);
  }

  column_in_file open(const column& of) {
    auto at = files_.find(of.path);
    if (at == files_.end()) {
      try {
        at = files_.emplace(of.path, host_file(fs_, paths_.at(of.path).lexically_relative(root_).string())).first;
        at->second.advise(advice::noreuse);
      } catch (const std::system_error& error) {
        fail(of.path, error.code().value());
      }
    }
    const pieces_there& there = pieces_.emplace_back(of, fs_.device());
    const std::uint64_t nbytes = nbytes_of(of.type), end = std::max(there.pieces.file_end(), nbytes);
    return {at->second.ref(), there.map(), {.row_nbytes = nbytes, .nrows = end - nbytes + 1, .stride_nbytes = 1}};
  }

  std::map<std::string, path> paths_;
  path root_;
  mount fs_;
  std::map<std::string, host_file> files_;
  std::deque<pieces_there> pieces_;
  std::unique_ptr<const simt::device_array<column_in_file>> sums_;
  columns_in_files columns_{};
  std::vector<std::string> names_;  // of the column that is scanned, then the sums'
  kernel_runs runs_;
};

inline std::unique_ptr<engine> make_engine(const query& of, const engine_options& options) {
  check_columns(of);
  return std::make_unique<device_engine>(of, options);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::query
