// SPDX-License-Identifier: Apache-2.0
// Active pointers against plain ones: what does an address that faults cost? After ActivePointers (ISCA'16), sections VI-A to
// VI-C. Each kernel is one template over where its pointers come from, a file through gpufs::ptr or device memory with the same
// content through const T*; raw and pointer launches alternate. Data is in the cache but for ap_major, in pages of 4 KiB.
//
// ap_read_latency, ap_read_inc_latency: one warp, all lanes on one page that is linked already; coalesced 4-byte reads, of which
// each tells the next element's place (p[i]) or how far to move on (p += *p), so that a step is the whole latency. The paper read
// the clock around each access, and its raw read took 225 cycles, those of a second-level cache. So here the lanes go through a
// page of 2 MiB, more than the first level holds; the _l1 rows are the same in 4 KiB, which it holds. ap_copy_N: each warp copies
// its own 1 MiB, N bytes a lane, four loads (read_tile) and then four stores (the paper's tiling), from the file to device memory,
// with 2 blocks of 1,024 threads an SM. Raw is the same kernel, where the paper took cudaMemcpy. ap_workloads_N: the paper's eight,
// N bytes a lane a read; each warp reads its own part by gpufs::for_each_n, through pointers of either kind, and keeps sums in
// registers, which it writes at its end. 16 bytes are four 4-byte elements, worked on one by one. The mean of the extra times.
// _loops: the same, against raw pointers in a loop of *p and p += 32. _by_element: both in such a loop, as the paper had it.
// Today's compiler unrolls that for raw pointers; _untiled: against raw loops that are not unrolled. _by_blocks: from 1 block up
// (its Figure 6). The paper's kernels had no page cache behind the pointers; these link to pages of 4 KiB. ap_minor: each warp
// reads 4 bytes a lane of each of 512 pages, moving its pointer from page to page; against map_page and unmap_page of each (its
// Table III, where gmmap was the baseline). ap_major: as bench/cold.cu, through
// pointers, which read all of each page. ap_major_by_block: what could be gained if the warps of a block that miss one page
// brought it in together. All 8 warps of a block read the same cold pages through pointers, one for all lanes or one a lane, each
// warp as it goes; against the same where one warp reads them first and the others wait for it at a barrier. met_a_fill: of the
// misses, those that found the page on its way, which are all that such grouping could spare. ap_gather: every thread reads random
// 8-byte elements p[i], as hot_thread in bench/hot.cu; ap_gather_limit holds it against a kernel that makes the same accesses to
// memory; _four: four at a time by p.gather. ap_registers: what a pointer adds to the copy kernels, with the same launch bounds;
// the worst of the three.
#include <fcntl.h>

#include "pointer_runs.hpp"

namespace {

using namespace bench;
using gpufs::simt::vec16;

// Elements anywhere, four at a time: for an active pointer, gather.
GPUFS_DEVICE gpufs::elements<std::uint64_t, 4> gather_elements(const std::uint64_t* p, const std::ptrdiff_t (&at)[4]) {
  return {{p[at[0]], p[at[1]], p[at[2]], p[at[3]]}};
}
template <class Pointer>
requires(!std::is_pointer_v<Pointer>) GPUFS_DEVICE auto gather_elements(const Pointer& p, const std::ptrdiff_t (&at)[4]) {
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

// Each thread reads random elements: one after the other, or four at a time.
template <class Source, bool Four>
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
    if constexpr (Four) {
      for (std::uint32_t i = 0; i < per_thread; i += 4) {
        const std::ptrdiff_t at[4] = {element(i), element(i + 1), element(i + 2), element(i + 3)};
        const auto got = gather_elements(p, at);
        for (unsigned k = 0; k < 4; ++k) mine += got[k];
      }
    } else {
      for (std::uint32_t i = 0; i < per_thread; ++i) mine += p[element(i)];
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

class pointers : public pointer_runs {
 public:
  pointers(arguments& args, const machine_facts& machine, const std::string& folder, std::uint64_t nbytes)
      : pointer_runs(args, machine, folder, nbytes),
        accesses_(args.number("accesses", {3e8, 5e7, 2048})),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9) {}

  void latency(results& out) const {
    const chased_file chased(*this);
    struct level {
      std::uint32_t span;
      const char *read, *read_inc, *label;
    };
    for (const level& l : {level{large_page, "ap_read_latency", "ap_read_inc_latency", "from the second-level cache"},
                           level{small_page, "ap_read_latency_l1", "ap_read_inc_latency_l1", "from the first-level cache"}}) {
      if (args_.wants(l.read)) follow<step::read>(l.read, l.label, chased, l.span, out);
      if (args_.wants(l.read_inc)) follow<step::read_and_increment>(l.read_inc, l.label, chased, l.span, out);
    }
  }

  void hits(results& out) const {
    const filled_cache cache(*this, small_page);
    const filled_memory memory(*this);
    const raw_memory& raw = memory.raw;
    const mapped_file& mapped = cache.mapped;
    const auto copies = [&]<class T>(const char* name, T) {
      if (args_.wants(name)) copy<T>(name, cache.fs, raw, mapped, out);
    };
    copies("ap_copy_4", std::uint32_t{});
    copies("ap_copy_8", std::uint64_t{});
    copies("ap_copy_16", vec16{});
    const auto works = [&]<class T>(const std::string& name, T) {
      const baseline<raw_memory> loops{name + "_loops", raw};
      if (args_.wants(name))
        workloads<T>(out, {}, by_walks<mapped_file>{mapped}, baseline<by_walks<raw_memory>>{name, {raw}}, loops);
      const std::string by_element = name + "_by_element";
      if (!args_.wants(by_element)) return;
      workloads<T>(out, {}, mapped, baseline<raw_memory>{by_element, raw},
                   baseline<untiled_raw_memory>{by_element + "_untiled", {raw}});
    };
    works("ap_workloads_4", std::uint32_t{});
    works("ap_workloads_16", vec16{});
    if (args_.wants("ap_minor")) minor("ap_minor", cache, mapped, out);
    if (args_.wants_any({"ap_gather", "ap_gather_limit"}))
      read_elements<false>("ap_gather", "a random 8-byte element a thread", cache.fs, raw, mapped, out);
    if (args_.wants("ap_gather_four"))
      read_elements<true>("ap_gather_four", "four random 8-byte elements a thread", cache.fs, raw, mapped, out);
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
    const double reads = std::max(launch_nbytes_ / small_page, 64.);
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    tell_random({"ap_major", "ap_major_pull"}, "ptr", where, small_page, copy_gbps, pull,
                measure_random<way::pointer>(fs, file.ref().number(), small_, nbytes_ / small_page, reads, repeats_, launch), out);
  }

  void major_by_block(results& out) const {
    // Room for a page of each lane, which their pointers pin.
    const gpufs::mount fs = make_mount(small_page, std::max<std::uint64_t>(nbytes_ / 8, 1u << 20), "data");
    const host_file file(fs, "data");
    const mapped_file from{fs.ref(), file.ref().number()};
    std::uint64_t nread = 0;
    for (const unsigned grid : {small_.grid, std::min(small_.grid / 2, 8u)}) {
      by_block<pages_of_block::one>("one page for all lanes, ", fs, from, grid, nread, out);
      by_block<pages_of_block::one_a_lane>("a page a lane, ", fs, from, grid, nread, out);
    }
  }

  void registers(results& out) const {
#if GPUFS_ON_CUDA
    measurement m{"ap_registers", "the copy kernels, 2 blocks of 1,024 threads an SM", {}, "registers"};
    m.figure = measurement::kind::itself;
    m.verified = true;
    double worst = -1e9;
    const auto look = [&]<class T>(const char* nbytes, T) {
      const thread_resources raw = resources_in_full_blocks<copy_parts<T, raw_memory>>();
      const thread_resources ptr = resources_in_full_blocks<copy_parts<T, mapped_file>>();
      worst = std::max(worst, static_cast<double>(ptr.registers - raw.registers));
      m.details.emplace_back(std::string("raw_") + nbytes, raw.registers);
      m.details.emplace_back(std::string("ptr_") + nbytes, ptr.registers);
      m.details.emplace_back(std::string("ptr_local_nbytes_") + nbytes, ptr.local_nbytes);
    };
    look("4", std::uint32_t{});
    look("8", std::uint64_t{});
    look("16", vec16{});
    m.samples = {worst};
    out.add(m);
#else
    out.note("ap_registers: there are none to count on the CPU machine");
#endif
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

  template <step Step>
  void follow(const char* name, const char* label, const chased_file& chased, std::uint32_t span, results& out) const {
    measurement m{name, label, {}, "cycles a step"};
    m.verified = true;
    const auto [on_raw, on_ptr] = time_steps<Step>(span, m.verified, chased.raw, chased.mapped);
    extra_over(m, on_ptr, on_raw, "raw pointer");
    out.add(m);
  }

  template <class T, class Source>
  void copy(const char* name, const gpufs::mount& fs, const raw_memory& raw, const Source& mapped, results& out) const {
    measurement m{name, std::to_string(sizeof(T)) + " bytes a lane", {}, "GB/s"};
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    const auto [on_raw, on_ptr] = time_copies<T>(m.verified, raw, mapped);
    m.samples = on_ptr;
    m.ceiling = spread_of(on_raw).median;
    m.ceiling_is = "raw pointer";
    add_hits(m, before, fs.counters());
    out.add(m);
  }

  template <class Source>
  void minor(const char* name, const filled_cache& cache, const Source& mapped, results& out) const {
    measurement m{name, "a warp links page after page", {}, "ns a page, all warps together"};
    m.verified = true;
    const gpufs::mount_counters before = cache.fs.counters();
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    const auto [by_call, by_ptr] = time_pages(small_, repeats_, minor_pages_, m.verified, launch,
                                              called_file{cache.fs.ref(), cache.file.ref().number(), small_page}, mapped);
    extra_over(m, by_ptr, by_call, "map_page and unmap_page");
    add_hits(m, before, cache.fs.counters());
    out.add(m);
  }

  template <bool Four>
  void read_elements(const char* name, const char* label, const gpufs::mount& fs, const raw_memory& raw, const mapped_file& mapped,
                     results& out) const {
    // Four look-ups under way want 64 registers.
    constexpr unsigned blocks_per_sm = Four ? 4 : small_blocks_per_sm;
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
        return random_reads<std::decay_t<decltype(from)>, Four>{from, nelements, seed_of(r), per_thread, sum};
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
          if constexpr (Four) {
            return 0.;
          } else {
            return once(r, looked_up_memory{raw.data, states.get(), keys.get()});
          }
        },
        [&](int r) { return once(r, mapped); });
    m.samples = on_ptr;
    m.details = {{"raw_g_accesses_per_second", spread_of(on_raw).median}};
    add_hits(m, before, fs.counters());
    out.add(m);
    if constexpr (Four) return;
    m.name = "ap_gather_limit";
    m.figure = measurement::kind::share_of_ceiling;
    m.ceiling = spread_of(on_looked_up).median;
    m.ceiling_is = "a kernel that makes the same accesses to memory";
    out.add(m);
  }

  double accesses_, launch_nbytes_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("pointers", [&] {
    arguments args(argc, argv,
                   "pointers  --dir DIR  --file-gib N  --accesses N  --minor-pages N  --launch-gb N  --blocks-per-sm N  --warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {16, 2, 2. / 1024}) / (64 << 10) * (64 << 10);
    pointers bench(args, machine, folder.path(), nbytes);
    results out("pointers", args, machine);
    bench.make_files();
    make_factors();
    if (args.wants("ap_registers")) bench.registers(out);
    if (args.wants_any({"ap_read_latency", "ap_read_inc_latency", "ap_read_latency_l1", "ap_read_inc_latency_l1"}))
      bench.latency(out);
    if (args.wants_any({"ap_copy_4", "ap_copy_8", "ap_copy_16", "ap_workloads_4", "ap_workloads_16", "ap_workloads_4_by_element",
                        "ap_workloads_16_by_element", "ap_minor", "ap_gather", "ap_gather_limit", "ap_gather_four"}))
      bench.hits(out);
    if (args.wants_any({"ap_major", "ap_major_pull"})) bench.major(out);
    if (args.wants("ap_major_by_block")) bench.major_by_block(out);
    return out.finish();
  });
}
