// SPDX-License-Identifier: Apache-2.0
// Batches of few rows: is one by row_batch, which the host calls, slower than a kernel of the program's whose warps pread a row
// each?
//
// batch_small: 1, 32, 1 Ki and 4 Ki distinct rows of 512 bytes, all cached or nearly none, in pages of 4 KiB and of 512 bytes. Many
// batches go into one stream, one behind the other, and then the stream is waited for: what a batch takes is the host's calls or
// the device's work, whichever takes longer. The kernel is launched by <<<>>>, in blocks of 8 warps. Of rows that are not cached
// the two ways read others, as pread leaves their pages in the cache.
#include "gathers.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t row_nbytes = 512;

struct pread_rows {
  gpufs::file from;
  const row_index* numbers;
  std::uint64_t n;
  std::byte* dst;
  std::uint64_t* nfailed;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t i = global_warp();
    if (i >= n) return;
    const auto warp = gpufs::this_warp();
    const std::int64_t offset = numbers[i] * std::int64_t{row_nbytes};
    const bool right = gpufs::pread(warp, from, dst + i * row_nbytes, row_nbytes, offset) == row_nbytes;
    if (!right && warp.leader()) atomic_ref<std::uint64_t>(*nfailed).add_relaxed(1);
  }
};

// One launch in the stream's turn, as a program would have it.
template <class Kernel, class Stream>
void launch_in(const shape& how, const Kernel& kernel, Stream&& on) {
#if GPUFS_ON_CUDA
  entry<Kernel, small_blocks_per_sm><<<how.grid, how.block, 0, on>>>(kernel);
  check(cudaGetLastError(), "the kernel was not launched");
#else
  gpufs::simt::launch({.grid = how.grid, .block = how.block, .schedule = {.switch_percent = 0}}, kernel, on);
#endif
}

// Batches of n rows each, whose numbers lie one behind the other, as do the rows that come of them.
class many_batches : public gathers {
 public:
  using gathers::gathers;

  // Microseconds a batch.
  double by_calls(const row_numbers& numbers, std::uint64_t n) {
    const double taken = each(numbers, n, [&](std::uint64_t first, auto&& on) {
      batch_.gather(file_.ref(), layout_, numbers.device.get() + first, n, row(first), on);
    });
    right_ = batch_.failure().error == 0 && right_;
    return taken;
  }
  double by_preads(const row_numbers& numbers, std::uint64_t n) {
    const device_array<std::uint64_t> nfailed(1);
    const auto warps = static_cast<unsigned>(std::min<std::uint64_t>(n, set_.how.block / 32));
    const shape how{static_cast<unsigned>((n + warps - 1) / warps), warps * 32};
    const double taken = each(numbers, n, [&](std::uint64_t first, auto&& on) {
      launch_in(how, pread_rows{file_.ref(), numbers.device.get() + first, n, row(first), nfailed.get()}, on);
    });
    right_ = nfailed.read_one() == 0 && right_;
    return taken;
  }

 private:
  std::byte* row(std::uint64_t i) const { return dst_.get() + i * row_nbytes(); }
  template <class Batch>
  double each(const row_numbers& numbers, std::uint64_t n, const Batch& batch) {
    double seconds = 0;
    checked(numbers, [&] {
      return seconds = stream_seconds([&](auto&& on) {
               for (std::uint64_t first = 0; first < numbers.host.size(); first += n) batch(first, on);
             });
    });
    return seconds * 1e6 * static_cast<double>(n) / static_cast<double>(numbers.host.size());
  }
};

struct amounts {
  std::uint64_t nbatches, most_rows;
};

// Rows of the first `range` bytes of the file.
void batches_of(const settings& set, const amounts& of, many_batches& rows, const gpufs::mount& fs, std::uint64_t range,
                const std::string& where, results& out) {
  std::uint64_t seed = 14'000;
  for (const std::uint64_t n : {1u, 32u, 1024u, 4096u}) {
    if (n > of.most_rows) break;
    const auto next = [&] { return row_numbers(n * of.nbatches, shuffled(range / row_nbytes, word_of(seed++))); };
    measurement m{"batch_small", count_text(n) + (n == 1 ? " row, " : " rows, ") + where, {}, "us a batch"};
    std::vector<double> by_preads;
    gpufs::mount_counters counted{};  // by ours
    for (int r = 0; r <= set.repeats; ++r) {
      const row_numbers numbers = next(), others = next();
      const gpufs::mount_counters before = fs.counters();
      const double ours = rows.by_calls(numbers, n);
      const gpufs::mount_counters d = difference(fs.counters(), before);
      const double theirs = rows.by_preads(others, n);
      if (r == 0) continue;
      m.samples.push_back(ours);
      by_preads.push_back(theirs);
      counted += d;
    }
    m.figure = measurement::kind::times_as_fast;
    m.ceiling = spread_of(by_preads).median;
    m.ceiling_is = "a warp preads each row";
    m.verified = rows.right();
    const std::uint64_t read = n * of.nbatches * static_cast<std::uint64_t>(set.repeats);
    m.details = {{"hits_a_row", per(counted.hits, read)}, {"faults_a_row", per(counted.faults, read)}};
    out.add(m);
  }
}

void small(const settings& set, const amounts& of, const subject& s, std::uint32_t page_nbytes, results& out) {
  const std::string pages = ", pages of " + size_text(page_nbytes);
  {
    const std::uint64_t range = std::min(s.nbytes, of.nbatches * of.most_rows * row_nbytes * 2);
    const gpufs::mount fs = mount_of(s, 2 * range, page_nbytes);
    many_batches rows(set, fs, s.nbytes, row_nbytes, of.nbatches * of.most_rows);
    std::uint64_t total = 0;
    for (const std::uint64_t sum : piece_sums(page_nbytes, range / page_nbytes)) total += sum;
    fill_cache(fs, rows.number(), set.how, range, total);
    batches_of(set, of, rows, fs, range, "cached" + pages, out);
  }
  const gpufs::mount fs = mount_of(s, set.cache_nbytes, page_nbytes);
  many_batches rows(set, fs, s.nbytes, row_nbytes, of.nbatches * of.most_rows);
  const device_array<std::uint64_t> found(2);  // what fills the cache with others' pages
  run(set.how, read_all{fs.ref(), rows.number(), 2 * set.cache_nbytes / page_nbytes, page_nbytes, found.get(), found.get() + 1});
  batches_of(set, of, rows, fs, s.nbytes, "not cached" + pages, out);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("small_batches", [&] {
    arguments args(argc, argv,
                   "small_batches  --dir DIR  --small-file-gib N  --cache-gib N  --batches N  --most-rows N  --blocks-per-sm N  "
                   "--warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const settings set(args, machine);
    const amounts of{std::bit_floor(static_cast<std::uint64_t>(args.number("batches", {64, 16, 2}))),
                     std::bit_floor(static_cast<std::uint64_t>(args.number("most-rows", {4096, 4096, 32})))};
    results out("small_batches", args, machine);
    const subject memory(set.dir, set.small_nbytes, "memory");
    if (!args.wants("batch_small")) return out.finish();
    for (const std::uint32_t page_nbytes : {4096u, 512u}) small(set, of, memory, page_nbytes, out);
    return out.finish();
  });
}
