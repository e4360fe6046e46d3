// SPDX-License-Identifier: Apache-2.0
// Random elements through pointers, and pages that are not there (bench/pointers.cu).
#include "faults_by_block.hpp"
#include "pointer_parts.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {
namespace {

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

class fault_runs : public cold_runs {
 public:
  fault_runs(const pointer_runs& runs, arguments& args)
      : cold_runs(runs, args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9), accesses_(args.number("accesses", {3e8, 5e7, 2048})) {}

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
    const pulled_file pulled = pull_data(out);
    const std::string where = pulled.pages == 0 ? "memory; not pulled: " + pulled.opened->info().reason : "memory";
    const gpufs::mount fs = make_mount(small_page, evicting_nbytes(), "data");
    const host_file file(fs, "data");
    want_whole_pages(fs, file.ref().number());
    const double reads = std::max(launch_nbytes_ / small_page, 64.);
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    tell_random({"ap_major", "ap_major_pull"}, "ptr", where, small_page, copy_gbps, pulled.pages,
                measure_random<way::pointer>(fs, file.ref().number(), small_, nbytes_ / small_page, reads, repeats_, launch), out);
  }

  void by_block(results& out) const {
    const block_fault_runs bench(*this);
    if (args_.wants("ap_major_by_block")) bench.same_pages(out);
    if (args_.wants("ap_faults_by_block")) bench.mixes(out);
  }

 private:
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

  double accesses_;
};

}  // namespace

void measure_faults(const pointer_runs& runs, arguments& args, results& out) {
  const fault_runs bench(runs, args);
  if (args.wants_any({"ap_gather", "ap_gather_limit", "ap_gather_four"})) bench.gathers(out);
  if (args.wants_any({"ap_major", "ap_major_pull"})) bench.major(out);
  if (args.wants_any({"ap_major_by_block", "ap_faults_by_block"})) bench.by_block(out);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
