// SPDX-License-Identifier: Apache-2.0
// Random elements through pointers, and pages that are not there (bench/pointers.cu).
#include <fcntl.h>

#include "pointer_parts.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {
namespace {

// For cases that count pages.
void want_whole_pages(const gpufs::mount& fs, gpufs::file_number number) {
  const device_array<std::uint64_t> failed(1);
  run({1, 32}, advise_all{fs.ref(), number, gpufs::advice::whole, failed.get()});
  if (failed.read_one() != 0) throw gpufs::error("the file takes no advice");
}

// N elements anywhere: for an active pointer, gather.
template <class Pointer, unsigned N>
GPUFS_DEVICE gpufs::elements<std::uint64_t, N> gather_elements(const Pointer& p, const std::ptrdiff_t (&at)[N]) {
  gpufs::elements<std::uint64_t, N> got;
  for (unsigned k = 0; k < N; ++k) got.values[k] = p[at[k]];
  return got;
}
template <class T, class Access, unsigned N>
GPUFS_DEVICE auto gather_elements(const gpufs::ptr<T, Access>& p, const std::ptrdiff_t (&at)[N]) {
  return p.gather(at);
}

// The accesses to memory that a read without a pin makes of a page in the frame of its choice, and nothing else: the frame's state
// and key, the element, and the state again (pointer/detail/unpinned.hpp).
template <class T>
struct looked_up_elements {
  const std::byte* data;
  std::uint64_t *states, *keys;  // of frames; zeros

  GPUFS_DEVICE T operator[](std::ptrdiff_t i) const {
    const std::uint64_t offset = static_cast<std::uint64_t>(i) * sizeof(T), frame = offset / 4096;
    const atomic_ref<std::uint64_t> state(states[frame]), key(keys[frame]);
    const std::uint64_t seen = state.load(std::memory_order_relaxed) | key.load(std::memory_order_relaxed);
    gpufs::simt::fence_loads();
    const T value = gpufs::simt::load_changing(reinterpret_cast<const T*>(data + offset));
    gpufs::simt::fence_loads();
    return (seen | state.load(std::memory_order_relaxed)) == 0 ? value : T{};
  }
};
struct looked_up_memory {
  const std::byte* data;
  std::uint64_t *states, *keys;

  template <class T>
  GPUFS_DEVICE auto at(std::uint64_t) const {
    return looked_up_elements<T>{data, states, keys};
  }
};

// Each thread reads random elements: one after the other by p[i] (0), or so many at a time by gather.
template <class Source, unsigned AtOnce>
struct random_reads {
  Source from;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;  // a multiple of 4
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto p = from.template at<std::uint64_t>(0);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const auto element = [&](std::uint32_t i) {
      return static_cast<std::ptrdiff_t>(element_of(me * per_thread + i, seed, nelements));
    };
    std::uint64_t mine = 0;
    if constexpr (AtOnce != 0) {
      for (std::uint32_t i = 0; i < per_thread; i += AtOnce) {
        std::ptrdiff_t at[AtOnce];
        for (unsigned k = 0; k < AtOnce; ++k) at[k] = element(i + k);
        const auto got = gather_elements(p, at);
        for (unsigned k = 0; k < AtOnce; ++k) mine += got[k];
      }
    } else {
      for (std::uint32_t i = 0; i < per_thread; ++i) mine += p[element(i)];
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

class fault_runs : public pointer_runs {
 public:
  fault_runs(const pointer_runs& runs, arguments& args)
      : pointer_runs(runs),
        accesses_(args.number("accesses", {3e8, 5e7, 2048})),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9) {}

  void gathers(results& out) const {
    const filled_cache cache(*this, small_page);
    const filled_memory memory(*this);
    const raw_memory& raw = memory.raw;
    const mapped_file& mapped = cache.mapped;
    if (args_.wants("ap_gather")) read_elements<0>("ap_gather", "a random 8-byte element a thread", cache.fs, raw, mapped, out);
    if (args_.wants("ap_gather_limit"))
      read_elements<1>("ap_gather_limit", "a random 8-byte element a thread, by gather", cache.fs, raw, mapped, out);
    if (args_.wants("ap_gather_four"))
      read_elements<4>("ap_gather_four", "four random 8-byte elements a thread", cache.fs, raw, mapped, out);
  }

  void major(results& out) const {
    const double copy_gbps = measure_copy(out, pinned_memory{}).median;
    int error = 0;
    const auto opened = files_->open("data", O_RDONLY | static_cast<int>(gpufs::names::open_prepared), &error);
    if (!opened) throw gpufs::error("cannot open the file: " + std::to_string(error));
    const auto* mapping = static_cast<const std::byte*>(opened->info().pull_base);
    const std::uint64_t cache_nbytes = std::max<std::uint64_t>(nbytes_ / 24, 1u << 20);
    const double pull = mapping == nullptr ? 0 : measure_pull(out, small_, small_page, mapping, nbytes_, cache_nbytes).median;
    const std::string where = mapping == nullptr ? "memory; not pulled: " + opened->info().reason : "memory";
    const gpufs::mount fs = make_mount(small_page, cache_nbytes, "data");
    const host_file file(fs, "data");
    want_whole_pages(fs, file.ref().number());
    const double reads = std::max(launch_nbytes_ / small_page, 64.);
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    tell_random({"ap_major", "ap_major_pull"}, "ptr", where, small_page, copy_gbps, pull,
                measure_random<way::pointer>(fs, file.ref().number(), small_, nbytes_ / small_page, reads, repeats_, launch), out);
  }

  void major_by_block(results& out) const {
    // Room for a page of each lane, which their pointers pin.
    const gpufs::mount fs = make_mount(small_page, std::max<std::uint64_t>(nbytes_ / 8, 1u << 20), "data");
    const host_file file(fs, "data");
    want_whole_pages(fs, file.ref().number());
    const mapped_file from{fs.ref(), file.ref().number()};
    std::uint64_t nread = 0;
    for (const unsigned grid : {small_.grid, std::min(small_.grid / 2, 8u)}) {
      by_block<pages_of_block::one>("one page for all lanes, ", fs, from, grid, nread, out);
      by_block<pages_of_block::one_a_lane>("a page a lane, ", fs, from, grid, nread, out);
    }
  }

 private:
  struct block_faults {
    std::vector<double> gbps;
    bool right = true;
    gpufs::mount_counters counted{};

    double met_a_fill() const {
      const auto misses = static_cast<double>(counted.faults + counted.waits);
      return misses > 0 ? static_cast<double>(counted.waits) / misses : 0;
    }
  };

  // One launch, of about so many pages, none of which was read lately. nread: how many were.
  template <pages_of_block Which, bool Together>
  void fault(const gpufs::mount& fs, const mapped_file& from, unsigned grid, double pages, std::uint64_t& nread, bool counts,
             block_faults& to) const {
    const std::uint32_t nwarps = small_.block / 32;
    const std::uint64_t a_step = grid * block_steps<Which>::pages_a_step(nwarps);
    const auto nsteps = static_cast<std::uint32_t>(std::ceil(pages / static_cast<double>(a_step)));
    const block_steps<Which> steps{nread, nbytes_ / small_page, nsteps};
    nread += a_step * nsteps;
    const std::uint64_t expected = sum_in_parallel(std::uint64_t{grid} * nsteps, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) {
        for (std::uint32_t t = 0; t < nwarps * 32; ++t)
          sum += word_of(steps.element(i / nsteps, static_cast<std::uint32_t>(i % nsteps), t / 32, t % 32, nwarps));
      }
      return sum;
    });
    const gpufs::mount_counters before = fs.counters();
    const checked_run done = run_checked({grid, small_.block}, expected, [&](std::uint64_t* sum, std::uint64_t*) {
      return fault_by_block<Which, Together>{from, steps, sum};
    });
    to.right = done.right && to.right;
    if (!counts) return;
    to.gbps.push_back(static_cast<double>(a_step * nsteps) * small_page / done.seconds * 1e-9);
    to.counted += difference(fs.counters(), before);
  }

  template <pages_of_block Which>
  void by_block(const std::string& label, const gpufs::mount& fs, const mapped_file& from, unsigned grid, std::uint64_t& nread,
                results& out) const {
    // Few blocks wait for their pages; many wait for the bus.
    const double pages = std::max(launch_nbytes_ / (grid == small_.grid ? 4 : 64) / small_page, 64.);
    block_faults alone, together, own;
    for (int r = 0; r <= std::min(repeats_, 5); ++r) {
      fault<Which, false>(fs, from, grid, pages, nread, r > 0, alone);
      fault<Which, true>(fs, from, grid, pages, nread, r > 0, together);
      if (Which == pages_of_block::one_a_lane && r < 2) fault<pages_of_block::own, false>(fs, from, grid, pages, nread, r > 0, own);
    }
    measurement m{"ap_major_by_block", label + std::to_string(grid) + " blocks", together.gbps, "GB/s"};
    m.ceiling = spread_of(alone.gbps).median;
    m.ceiling_is = "each warp as it goes";
    m.verified = alone.right && together.right && own.right;
    m.details = {{"faults", static_cast<double>(alone.counted.faults)},
                 {"met_a_fill", alone.met_a_fill()},
                 {"faults_in_turn", static_cast<double>(together.counted.faults)},
                 {"met_a_fill_in_turn", together.met_a_fill()}};
    if (!own.gbps.empty()) {  // pages that no other lane of the grid reads
      m.details.emplace_back("own_pages_gbps", spread_of(own.gbps).median);
      m.details.emplace_back("own_pages_met_a_fill", own.met_a_fill());
    }
    out.add(m);
  }

  template <unsigned AtOnce>
  void read_elements(const char* name, const char* label, const gpufs::mount& fs, const raw_memory& raw, const mapped_file& mapped,
                     results& out) const {
    // Four look-ups under way want 64 registers.
    constexpr unsigned blocks_per_sm = AtOnce == 4 ? 4 : small_blocks_per_sm;
    const shape how{on_gpu ? small_.grid / small_blocks_per_sm * blocks_per_sm : small_.grid, small_.block};
    const auto per_thread = 4 * static_cast<std::uint32_t>(std::ceil(accesses_ / 4 / static_cast<double>(how.threads())));
    const std::uint64_t total = how.threads() * per_thread, nelements = nbytes_ / 8;
    measurement m{name, label, {}, "G accesses/s"};
    m.figure = measurement::kind::itself;
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    std::uint64_t expected = 0;
    const auto seed_of = [](int r) { return word_of(static_cast<std::uint64_t>(r) + 4000); };
    const auto once = [&](int r, const auto& from) {
      const auto make = [&](std::uint64_t* sum, std::uint64_t*) {
        return random_reads<std::decay_t<decltype(from)>, AtOnce>{from, nelements, seed_of(r), per_thread, sum};
      };
      const checked_run done =
          run_checked(how, expected, make, [](const shape& s, const auto& kernel) { return run<blocks_per_sm>(s, kernel); });
      m.verified = m.verified && done.right;
      return static_cast<double>(total) / done.seconds * 1e-9;
    };
    const std::size_t nframes = static_cast<std::size_t>(nbytes_ / small_page) + 1;
    const device_array<std::uint64_t> states(nframes), keys(nframes);  // zeros
    const auto [on_raw, on_looked_up, on_ptr] = in_turn(
        std::min(repeats_, 5),
        [&](int r) {
          expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
            std::uint64_t sum = 0;
            for (std::uint64_t i = begin; i < end; ++i) sum += word_of(element_of(i, seed_of(r), nelements));
            return sum;
          });
          return once(r, raw);
        },
        [&](int r) {
          if constexpr (AtOnce == 1) {
            return once(r, looked_up_memory{raw.data, states.get(), keys.get()});
          } else {
            return 0.;
          }
        },
        [&](int r) { return once(r, mapped); });
    m.samples = on_ptr;
    m.details = {{"raw_g_accesses_per_second", spread_of(on_raw).median}};
    add_hits(m, before, fs.counters());
    if constexpr (AtOnce == 1) {
      m.figure = measurement::kind::share_of_ceiling;
      m.ceiling = spread_of(on_looked_up).median;
      m.ceiling_is = "a kernel that makes the same accesses to memory";
    }
    out.add(m);
  }

  double accesses_, launch_nbytes_;
};

}  // namespace

void measure_faults(const pointer_runs& runs, arguments& args, results& out) {
  const fault_runs bench(runs, args);
  if (args.wants_any({"ap_gather", "ap_gather_limit", "ap_gather_four"})) bench.gathers(out);
  if (args.wants_any({"ap_major", "ap_major_pull"})) bench.major(out);
  if (args.wants("ap_major_by_block")) bench.major_by_block(out);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
