// SPDX-License-Identifier: Apache-2.0
// What the benches of batches of rows share: their options, mounts, and gathers that are timed and checked.
#pragma once
#include <string>

#include "gpufs/par/row_batch.hpp"
#include "rows.hpp"
#include "subject.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

struct settings {
  settings(arguments& args, const machine_facts& machine)
      : how(grid_of(machine, args)),
        repeats(repeats_of(args)),
        nthreads(std::min(host_threads(), 16u)),
        dir(args.path("dir", "/dev/shm")),
        file_nbytes(std::bit_floor(args.nbytes("file-gib", {16, 1, 2. / 1024}))),
        small_nbytes(std::bit_floor(args.nbytes("small-file-gib", {4, 0.5, 1. / 1024}))),
        cache_nbytes(args.nbytes("cache-gib", {1. / 16, 1. / 64, 1. / 4096})),
        nrows(static_cast<std::uint64_t>(args.number("rows", {1u << 22, 1u << 18, 200}))),
        at_once(static_cast<std::uint64_t>(args.number("at-once", {1u << 22, 1u << 22, 100}))),
        few_rows(static_cast<std::uint64_t>(args.number("few-rows", {1u << 16, 1u << 14, 50}))),
        warm_ups(static_cast<int>(args.number("warm-ups", {8, 4, 1}))) {}
  shape how;
  int repeats;
  unsigned nthreads;
  std::string dir;
  std::uint64_t file_nbytes, small_nbytes, cache_nbytes, nrows;
  std::uint64_t at_once;  // of a batch's rows are sorted; larger batches go by pieces
  std::uint64_t few_rows;
  int warm_ups;  // batches before those that are timed, where they fill the cache
};

inline std::string size_text(std::uint32_t nbytes) {
  return nbytes < 1024 ? std::to_string(nbytes) + " B" : std::to_string(nbytes / 1024) + " KiB";
}
inline std::string count_text(std::uint64_t n) {
  if (n % (1 << 20) == 0) return std::to_string(n >> 20) + " Mi";
  return n % 1024 == 0 ? std::to_string(n >> 10) + " Ki" : std::to_string(n);
}

// Seconds of what `work` puts into the stream that it is given.
template <class Work>
double stream_seconds(const Work& work) {
#if GPUFS_ON_CUDA
  return device_seconds([&] { work(bench_stream()); });
#else
  const stopwatch watch;
  const gpufs::simt::stream turns;
  work(turns);
  turns.wait();
  return watch.seconds();
#endif
}

inline gpufs::mount mount_of(const subject& s, std::uint64_t cache_nbytes, std::uint32_t page_nbytes = 4096) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = cache_nbytes;
  options.page_nbytes = page_nbytes;
  options.custom_store = s.files;
  gpufs::mount fs(s.folder.path(), options);
  fs.prepare("data");
  return fs;
}

// Gathers rows of one size from one file of one mount, and checks them.
class gathers {
 public:
  gathers(const settings& set, const gpufs::mount& fs, std::uint64_t file_nbytes, std::uint32_t row_nbytes, std::uint64_t most)
      : set_(set),
        file_(fs, "data"),
        layout_{.row_nbytes = row_nbytes, .nrows = file_nbytes / row_nbytes},
        batch_(fs, static_cast<std::uint32_t>(std::min(most, set.at_once)), on_gpu ? gpufs::row_batch::usually_unsorted : 16),
        dst_(most * row_nbytes) {}

  std::uint64_t file_rows() const { return layout_.nrows; }
  std::uint64_t at_most(std::uint64_t n) const { return std::min(n, layout_.nrows); }
  // n distinct rows, others each round (but where they are all that there are).
  row_numbers distinct(std::uint64_t n, int round) const {
    return {n, shuffled(layout_.nrows, word_of(static_cast<std::uint64_t>(round) + 11'000))};
  }

  // GB/s of a row_batch.
  double ours(const row_numbers& numbers) {
    return checked(numbers, [&] {
      const double seconds = stream_seconds(
          [&](auto&& on) { batch_.gather(file_.ref(), layout_, numbers.device.get(), numbers.host.size(), dst_.get(), on); });
      right_ = batch_.failure().error == 0 && right_;
      return seconds;
    });
  }
  // Of a kernel that reads `from`. sorted: in that order.
  double by_kernel(const std::byte* from, const row_numbers& numbers, const sorted_rows* sorted = nullptr) {
    return checked(numbers, [&] {
      const row_index* const order = sorted != nullptr ? sorted->numbers.get() : numbers.device.get();
      return copy_rows_seconds(set_.how, from, order, sorted != nullptr ? sorted->places.get() : nullptr, numbers.host.size(),
                               row_nbytes(), dst_.get());
    });
  }
  double by_threads(const host_threads_gather& threads, gathering how, const row_numbers& numbers) {
    return checked(numbers, [&] { return threads.to_device(how, numbers.host, row_nbytes(), dst_.get()); });
  }

  bool right() const { return right_; }
  gpufs::file_number number() const { return file_.ref().number(); }
  std::uint32_t row_nbytes() const { return static_cast<std::uint32_t>(layout_.row_nbytes); }

 protected:
  // What an earlier batch left is no answer.
  template <class Run>
  double checked(const row_numbers& numbers, const Run& run) {
    const std::size_t nbytes = numbers.host.size() * layout_.row_nbytes;
    gpufs::simt::this_platform().zero_device(dst_.get(), nbytes);
    const double seconds = run();
    right_ = has_rows(set_.how, dst_.get(), numbers, row_nbytes()) && right_;
    return static_cast<double>(nbytes) / seconds * 1e-9;
  }

  const settings& set_;
  host_file file_;
  gpufs::row_layout layout_;
  gpufs::row_batch batch_;
  device_array<std::byte> dst_;
  bool right_ = true;
};

inline double per(std::uint64_t n, std::uint64_t all) { return static_cast<double>(n) / static_cast<double>(all); }

}  // namespace GPUFS_MACHINE
}  // namespace bench
