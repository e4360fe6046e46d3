// SPDX-License-Identifier: Apache-2.0
// The page cache by itself: nothing is brought in (nil store).
//
// evict_cost: warps map and unmap random pages of a file four times as large as the cache, so that three quarters of the calls
// take a frame and evict; beside it, the same over a file that fits, where nothing is evicted. The nil store has no bytes to
// compare, so the counters are: every call is a hit, a fault or a wait, every fault has taken a frame, no pin is left.
// metadata: bytes of page table, frame states and rings of a mount's real layout for each byte of cache; at 1 GiB, and at the
// size where the page table, whose buckets are a power of two, is largest. Needs no GPU.
// mount_nbytes: the device's memory that a default mount of 1 GiB takes besides its cache; mount_nbytes_writable: a writable one.
#include <memory>
#include <optional>

#include "access.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/store/nil_store.hpp"

namespace {

using namespace bench;

struct map_random {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t page_nbytes, per_warp;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t me = global_warp();
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      gpufs::mapped_page page =
          gpufs::map_page(warp, file, static_cast<std::int64_t>(access.page(me * per_warp + i) * page_nbytes));
      const bool right = page.error() == 0 && gpufs::unmap_page(warp, std::move(page)) == 0;
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
    }
  }
};

struct cache_rates {
  std::vector<double> calls, allocations;  // a second
  bool right = true;
};

cache_rates measure(const gpufs::mount& fs, gpufs::file_number number, const shape& how, std::uint64_t npages, double calls,
                    int repeats) {
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(calls / static_cast<double>(how.warps())));
  const std::uint64_t total = how.warps() * per_warp;
  cache_rates rates;
  for (int r = 0; r <= repeats; ++r) {
    const device_array<wrong_or_failed> counts(1);
    const gpufs::mount_counters before = fs.counters();
    const page_access access{npages, word_of(static_cast<std::uint64_t>(r) + 3000)};
    const double seconds = run(how, map_random{fs.ref(), number, access, fs.options().page_nbytes, per_warp, counts.get()});
    const gpufs::mount_counters after = fs.counters(), d = difference(after, before);
    rates.right = told(counts.read_one()) && rates.right && d.hits + d.faults + d.waits == total && d.allocations >= d.faults &&
                  after.pinned_frames == 0;
    if (r == 0) continue;
    rates.calls.push_back(static_cast<double>(total) / seconds);
    rates.allocations.push_back(static_cast<double>(d.allocations) / seconds);
  }
  return rates;
}

void evict_cost(const shape& how, std::uint64_t cache_nbytes, double calls, int repeats, results& out) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = cache_nbytes;
  options.custom_store = std::make_shared<gpufs::store::nil_store>(static_cast<std::int64_t>(cache_nbytes * 4));
  const gpufs::mount fs(".", options);
  const host_file file(fs, "nothing");
  const std::uint64_t cache_pages = cache_nbytes / 4096;
  const cache_rates fits = measure(fs, file.ref().number(), how, cache_pages * 3 / 4, calls, repeats);
  const cache_rates evicts = measure(fs, file.ref().number(), how, cache_pages * 4, calls, repeats);
  measurement m{"evict_cost", "working set 4x the cache, by warps", times(evicts.allocations, 1e-6), "M allocations/s"};
  m.figure = measurement::kind::itself;
  m.verified = fits.right && evicts.right;
  m.details = {{"m_calls_per_second", spread_of(evicts.calls).median * 1e-6},
               {"m_calls_per_second_that_fit", spread_of(fits.calls).median * 1e-6},
               {"m_allocations_per_second_that_fit", spread_of(fits.allocations).median * 1e-6}};
  out.add(m);
}

void metadata(results& out) {
  constexpr std::uint64_t unit = on_gpu ? 1u << 30 : 64u << 20;
  for (const std::uint64_t cache_nbytes : {unit, unit + unit / 4 * 3}) {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes;
    options.custom_store = std::make_shared<gpufs::store::nil_store>(4096);
    const gpufs::mount fs(".", options);
    const gpufs::cache::cache_layout& cache = gpufs::mount_inside(fs).layout().cache;
    const std::uint64_t frames = std::uint64_t{cache.frames.nframes} * gpufs::cache::words_of_frame * sizeof(std::uint64_t);
    const std::uint64_t table =
        (std::uint64_t{cache.table.bucket_mask} + 1) * (sizeof *cache.table.buckets + sizeof *cache.table.headers);
    const std::uint64_t rings = std::uint64_t{cache.rings.nrings} * sizeof *cache.rings.rings;
    const std::uint64_t data = std::uint64_t{cache.frames.nframes} << cache.frames.page_shift;
    measurement m{"metadata", std::to_string(cache_nbytes >> 20) + " MiB of cache", {}, "bytes per byte"};
    m.samples = {static_cast<double>(frames + table + rings) / static_cast<double>(data)};
    m.figure = measurement::kind::itself;
    m.verified = data == cache_nbytes;
    m.details = {{"frame_states", static_cast<double>(frames)},
                 {"page_table", static_cast<double>(table)},
                 {"rings", static_cast<double>(rings)}};
    out.add(m);
  }
}

void mount_nbytes(results& out) {
  bool given_back = true;
  const auto besides = [&given_back](bool writable) {
    gpufs::test::measured_platform machine(gpufs::simt::this_platform());
    gpufs::mount_options options;
    options.cache_nbytes = 1u << 30;
    options.writable = writable;
    std::optional<gpufs::host_mount> fs(std::in_place, machine, ".", options);
    const std::size_t in_use = machine.in_use();
    fs.reset();
    given_back = given_back && in_use > options.cache_nbytes && machine.in_use() == 0;
    return static_cast<double>(in_use - options.cache_nbytes) / (1 << 20);
  };
  for (const bool writable : {false, true}) {
    measurement m{writable ? "mount_nbytes_writable" : "mount_nbytes", "1 GiB of cache, 4 KiB pages", {besides(writable)}, "MiB"};
    m.figure = measurement::kind::itself;
    m.verified = given_back;
    out.add(m);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("cache", [&] {
    arguments args(argc, argv, "cache  --cache-gib N  --calls N  --blocks-per-sm N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    const shape how = grid_of(machine, args);
    const std::uint64_t cache_nbytes = args.nbytes("cache-gib", {1, 1. / 16, 1. / 1024});
    const double calls = args.number("calls", {3e7, 3e6, 1024});
    const int repeats = repeats_of(args);
    results out("cache", args, machine);
    if (args.wants("evict_cost")) evict_cost(how, cache_nbytes, calls, repeats, out);
    if (args.wants("metadata")) metadata(out);
    if (args.wants_any({"mount_nbytes", "mount_nbytes_writable"})) mount_nbytes(out);
    return out.finish();
  });
}
