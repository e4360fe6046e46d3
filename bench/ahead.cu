// SPDX-License-Identifier: Apache-2.0
// Reads that do not wait, of a store that answers each read after 100 us, as an NVMe does, however many are under way. The mount
// has the usual host threads, which begin reads and take answers, and wait for none.
//
// async_overlap: warps compute for a time and read for about the same, piece after piece. By read_async, the next piece is read
// while the warp computes; against the longer of computing alone and reading alone. prefetch_hides: random 4 KiB reads, which each
// warp prefetches 8 ahead; against eight times as many warps that do not. Both have as many requests under way.
#include <algorithm>

#include "access.hpp"
#include "late_store.hpp"

namespace {

using namespace bench;

constexpr std::chrono::microseconds answer(100);
constexpr std::uint32_t page_nbytes = 4096;

// --- async_overlap -------------------------------------------------------------------------------------------------------------

enum class part : std::uint32_t { compute, read, read_then_compute, both };

// Each warp adds up pieces of its own, one after the other.
struct compute_and_read {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  part what;
  std::uint32_t npieces, piece_nbytes;
  std::uint64_t first_piece;  // of the first warp
  std::uint64_t compute_ns;   // a piece
  std::byte* scratch;         // two pieces a warp
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = global_warp();
    std::byte* mine = scratch + 2 * me * piece_nbytes;
    const gpufs::file file(fs, number);
    const auto at = [&](std::uint32_t i) { return static_cast<std::int64_t>((first_piece + me * npieces + i) * piece_nbytes); };
    std::uint64_t total = 0;
    gpufs::pending_read next{};
    if (what == part::both) next = gpufs::read_async(warp, file, mine, piece_nbytes, at(0));
    for (std::uint32_t i = 0; i < npieces; ++i) {
      std::byte* to = mine + i % 2 * piece_nbytes;
      std::int64_t n = piece_nbytes;
      if (what == part::both) {
        n = gpufs::wait(warp, next);
        if (i + 1 < npieces) next = gpufs::read_async(warp, file, mine + (i + 1) % 2 * piece_nbytes, piece_nbytes, at(i + 1));
      } else if (what != part::compute) {
        n = gpufs::pread(warp, file, to, piece_nbytes, at(i));
      }
      if (n != piece_nbytes && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      if (what != part::read) compute(warp);
      if (what != part::compute) {
        for (std::uint32_t w = warp.rank(); w < piece_nbytes / 8; w += warp.size()) {
          total += reinterpret_cast<const std::uint64_t*>(to)[w];
        }
      }
      warp.sync();
    }
    total = warp.reduce_add(total);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(total);
  }

  // Takes so long, and moves nothing on.
  template <class Warp>
  GPUFS_DEVICE void compute(Warp warp) const {
    const std::uint64_t begin = gpufs::simt::clock_ns();
    while (warp.broadcast(gpufs::simt::clock_ns() - begin < compute_ns)) gpufs::simt::preempt();
  }
};

struct late_mount {
  late_mount(const std::string& folder, std::uint64_t cache_nbytes)
      : fs(folder, options_of(folder, cache_nbytes)), file(fs, "data") {}
  static gpufs::mount_options options_of(const std::string& folder, std::uint64_t cache_nbytes) {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes;
    options.custom_store = std::make_shared<late_store>(folder, answer);
    options.nworkers = std::min(host_threads(), 16u);
    return options;
  }
  gpufs::mount fs;
  host_file file;
};

void async_overlap(const std::string& dir, int repeats, results& out) {
  constexpr std::uint32_t piece = 8 * page_nbytes, npieces = on_gpu ? 64 : 4;
  const shape how{on_gpu ? 16u : 1u, 32};
  const std::uint64_t one_run = how.warps() * npieces * piece, nbytes = one_run * 4 * static_cast<std::uint64_t>(repeats + 1);
  const work_folder folder(dir);
  make_file(folder.path() + "/data", nbytes);
  const std::vector<std::uint64_t> sums = piece_sums(piece, nbytes / piece);
  const late_mount m(folder.path(), one_run / 2);
  const device_array<std::byte> scratch(2 * how.warps() * piece);
  bool right = true;
  std::uint64_t runs = 0, compute_ns = 0;
  const auto seconds = [&](part what) {
    const std::uint64_t first = runs++ * how.warps() * npieces;
    std::uint64_t expected = 0;
    for (std::uint64_t i = 0; what != part::compute && i < how.warps() * npieces; ++i) expected += sums[first + i];
    const checked_run done = run_checked(how, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
      return compute_and_read{m.fs.ref(), m.file.ref().number(), what, npieces, piece, first,
                              compute_ns, scratch.get(),         sum,  failed};
    });
    right = right && done.right;
    return done.seconds;
  };
  std::vector<double> both, in_turn;
  for (int r = 0; r <= repeats; ++r) {
    const double read = seconds(part::read);
    compute_ns = static_cast<std::uint64_t>(read * 1e9 / npieces);
    const double longer = std::max(read, seconds(part::compute));
    const double overlapped = seconds(part::both) / longer, turns = seconds(part::read_then_compute) / longer;
    if (r == 0) continue;
    both.push_back(overlapped);
    in_turn.push_back(turns);
  }
  out.note("async_overlap: by pread in turn it takes " + std::to_string(spread_of(in_turn).median) + " of the longer of the two");
  measurement m_out{"async_overlap", "pieces of 8 pages, a page's answer after 100 us", both, "times the longer of the two"};
  m_out.figure = measurement::kind::itself;
  m_out.verified = right;
  out.add(m_out);
}

// --- prefetch_hides ------------------------------------------------------------------------------------------------------------

struct read_ahead_of_use {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t per_warp, ahead;  // pages that are prefetched before they are read
  std::byte* scratch;             // a page a warp
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = global_warp();
    std::byte* mine = scratch + me * page_nbytes;
    const gpufs::file file(fs, number);
    const auto at = [&](std::uint32_t i) { return static_cast<std::int64_t>(access.page(me * per_warp + i) * page_nbytes); };
    for (std::uint32_t i = 0; i < ahead && i < per_warp; ++i) gpufs::prefetch(warp, file, at(i), page_nbytes);
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      if (ahead != 0 && i + ahead < per_warp) gpufs::prefetch(warp, file, at(i + ahead), page_nbytes);
      if (gpufs::pread(warp, file, mine, page_nbytes, at(i)) != page_nbytes && warp.leader()) {
        atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      }
      warp.sync();
      for (std::uint32_t w = warp.rank(); w < page_nbytes / 8; w += warp.size()) {
        total += reinterpret_cast<const std::uint64_t*>(mine)[w];
      }
      warp.sync();
    }
    total = warp.reduce_add(total);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(total);
  }
};

void prefetch_hides(const std::string& dir, int repeats, results& out) {
  constexpr std::uint32_t ahead = 8;
  const shape many{on_gpu ? 64u : 1u, 256}, few{many.grid, many.block / ahead};
  const std::uint64_t nreads = many.warps() * (on_gpu ? 128 : 16);
  const std::uint64_t npages = on_gpu ? 1u << 20 : 1u << 12;
  const work_folder folder(dir);
  make_file(folder.path() + "/data", npages * page_nbytes);
  const std::vector<std::uint64_t> sums = piece_sums(page_nbytes, npages);
  const late_mount m(folder.path(), npages / 16 * page_nbytes);
  const device_array<std::byte> scratch(many.warps() * page_nbytes);
  bool right = true;
  const auto rate = [&](const shape& how, std::uint32_t distance, std::uint64_t seed) {
    const page_access access{npages, word_of(seed)};
    const auto per_warp = static_cast<std::uint32_t>(nreads / how.warps());
    std::uint64_t expected = 0;
    for (std::uint64_t i = 0; i < nreads; ++i) expected += sums[access.page(i)];
    const checked_run done = run_checked(how, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
      return read_ahead_of_use{m.fs.ref(), m.file.ref().number(), access, per_warp, distance, scratch.get(), sum, failed};
    });
    right = right && done.right;
    return static_cast<double>(nreads) / done.seconds * 1e-3;
  };
  std::vector<double> without, with;
  for (int r = 0; r <= repeats; ++r) {
    const auto seed = static_cast<std::uint64_t>(2 * r + 9000);
    const double a = rate(many, 0, seed), b = rate(few, ahead, seed + 1);
    if (r == 0) continue;
    without.push_back(a);
    with.push_back(b);
  }
  const std::string who = std::to_string(many.warps()) + " warps without prefetch";
  out.ceiling(who, "k pages/s", spread_of(without));
  measurement m_out{
      "prefetch_hides", std::to_string(few.warps()) + " warps, 8 ahead", with, "k pages/s", spread_of(without).median, who};
  m_out.verified = right;
  out.add(m_out);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("ahead", [&] {
    arguments args(argc, argv, "ahead  --dir DIR", on_gpu);
    const machine_facts machine = this_machine();
    const std::string dir = args.path("dir", "/dev/shm");
    const int repeats = repeats_of(args);
    results out("ahead", args, machine);
    if (args.wants("async_overlap")) async_overlap(dir, repeats, out);
    if (args.wants("prefetch_hides")) prefetch_hides(dir, repeats, out);
    return out.finish();
  });
}
