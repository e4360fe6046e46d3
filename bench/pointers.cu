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
// N bytes a lane a read, not tiled; each warp reads its own part and keeps sums in registers, which it writes at its end. 16 bytes
// are four 4-byte elements, worked on one by one. The mean of the extra times. Its kernels had no page cache behind the pointers;
// these link once a page. Today's compiler unrolls the raw loops, which tiles them after all, and these are what is held against;
// _untiled: against raw loops that are not unrolled. _by_blocks: from 1 block up (its Figure 6). ap_minor: each warp reads 4 bytes
// a lane of each of 512 pages, moving its pointer from page to page; against map_page and unmap_page of each (its Table III, where
// gmmap was the baseline). ap_major: as bench/cold.cu, through pointers, which read all of each page. ap_gather: every thread reads
// random 8-byte elements p[i], as hot_thread in bench/hot.cu. ap_registers: what a pointer adds to the copy kernels, with the same
// launch bounds; the worst of the three.
#include <fcntl.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>

#include "access.hpp"
#include "gpufs/store/auto_store.hpp"
#include "workloads.hpp"

namespace {

using namespace bench;
using gpufs::simt::lane_id;
using gpufs::simt::vec16;

// --- Where a kernel's data is ------------------------------------------------------------------------------------------------

struct raw_memory {
  const std::byte* data;

  template <class T>
  GPUFS_DEVICE const T* at(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(data + offset);
  }
};

// The same for kernels whose loop reads once a round: the compiler unrolls it for raw_memory, and has several reads in flight.
struct untiled_raw_memory : raw_memory {};

// All lanes of the warp call at() together.
struct mapped_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;

  template <class T>
  GPUFS_DEVICE auto at(std::uint64_t offset) const {
    return gpufs::map<const T>(gpufs::this_warp(), gpufs::file(fs, number), static_cast<std::int64_t>(offset));
  }
};

// --- Latency -----------------------------------------------------------------------------------------------------------------

// Cycles of the SM's clock (CPU machine: ns). No access to memory is moved across it.
GPUFS_DEVICE std::uint64_t ticks() {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t) : : "memory");
  return t;
#else
  return gpufs::simt::clock_ns();
#endif
}

// The lanes of one warp follow the file, line by line of 128 bytes: it names the next element (p[i]), or its distance.
template <bool Increment, class Source>
struct chase {
  Source from;
  std::uint64_t offset;
  std::uint32_t nsteps;  // in each of two rounds, of which the second counts
  std::uint64_t* cycles;
  std::uint32_t* ends;  // an element a lane

  GPUFS_DEVICE void operator()() const {
    auto p = from.template at<std::int32_t>(offset);
    const auto begin = p;
    std::int32_t at = static_cast<std::int32_t>(lane_id());
    if constexpr (Increment) p += at;
    std::uint64_t elapsed = 0;
    BENCH_NOT_UNROLLED
    for (int round = 0; round < 2; ++round) {
      const std::uint64_t start = ticks();
      for (std::uint32_t s = 0; s < nsteps; ++s) {
        if constexpr (Increment) {
          p += *p;
        } else {
          at = p[at];
        }
      }
      elapsed = ticks() - start;
    }
    cycles[lane_id()] = elapsed;
    ends[lane_id()] = static_cast<std::uint32_t>(Increment ? p - begin : at);
  }
};

// --- Copy --------------------------------------------------------------------------------------------------------------------

// Four loads, a warp's width apart, before anything is done with them: for an active pointer, one check.
template <class T>
GPUFS_DEVICE gpufs::elements<T, 4> read_tile(const T* p) {
  return {{p[0], p[32], p[64], p[96]}};
}
template <class T, class Access>
GPUFS_DEVICE auto read_tile(const gpufs::ptr<const T, Access>& p) {
  return p.template read_tile<4>(32);
}

template <class T, class Source>
struct copy_parts {
  static constexpr unsigned step = 4 * gpufs::simt::warp_lanes;  // elements
  Source from;
  T* to;
  std::uint32_t nsteps;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t first = global_warp() * nsteps * step;
    auto p = from.template at<T>(first * sizeof(T));
    p += lane_id();
    T* q = to + first + lane_id();
    for (std::uint32_t i = 0; i < nsteps; ++i) {
      const auto tile = read_tile(p);
      for (unsigned k = 0; k < 4; ++k) q[k * 32] = tile[k];
      p += step;
      q += step;
    }
  }
};

// Device memory with the content of a file; or counts where it differs.
struct fill_words {
  std::uint64_t* words;
  std::uint64_t nwords;
  std::uint64_t* wrong;  // nullptr: write

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::uint64_t n = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    for (std::uint64_t i = me; i < nwords; i += n) {
      if (wrong == nullptr) {
        words[i] = word_of(i);
      } else if (words[i] != word_of(i)) {
        atomic_ref<std::uint64_t>(*wrong).add_relaxed(1);
      }
    }
  }
};

// --- Workloads ---------------------------------------------------------------------------------------------------------------

template <class T, class Work, class Source>
struct work_on_parts {
  static constexpr unsigned nwords = sizeof(T) / 4;
  Source from;
  std::uint64_t begin, begin_of_second;  // bytes
  std::uint32_t nsteps;
  typename Work::value* sums;  // an element a thread

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t mine = global_warp() * nsteps * (32 * sizeof(T));
    auto p = from.template at<T>(begin + mine);
    p += lane_id();
    typename Work::value sum{};
    if constexpr (Work::of_two) {
      auto q = from.template at<T>(begin_of_second + mine);
      q += lane_id();
      repeat([&] {
        add_to(sum, *p, *q);
        p += 32;
        q += 32;
      });
    } else {
      repeat([&] {
        const T x = *p;
        add_to(sum, x, x);
        p += 32;
      });
    }
    sums[std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank()] = sum;
  }
  template <class Step>
  GPUFS_DEVICE void repeat(const Step& step) const {
    if constexpr (std::is_same_v<Source, untiled_raw_memory>) {
      BENCH_NOT_UNROLLED
      for (std::uint32_t i = 0; i < nsteps; ++i) step();
    } else {
      for (std::uint32_t i = 0; i < nsteps; ++i) step();
    }
  }
  GPUFS_DEVICE static void add_to(typename Work::value& sum, const T& x, const T& y) {
    std::uint32_t xs[nwords], ys[nwords];
    std::memcpy(xs, &x, sizeof x);
    std::memcpy(ys, &y, sizeof y);
    for (unsigned w = 0; w < nwords; ++w) sum += Work::apply(xs[w], ys[w]);
  }
};

// --- Faults ------------------------------------------------------------------------------------------------------------------

template <bool Pointer>
struct touch_pages {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t nranges;  // of per_warp pages, in the file
  std::uint32_t page_nbytes, per_warp;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    std::uint64_t offset = global_warp() % nranges * per_warp * page_nbytes;
    std::uint64_t mine = 0;
    if constexpr (Pointer) {
      auto p = gpufs::map<const std::uint32_t>(warp, file, static_cast<std::int64_t>(offset));
      p += lane_id();
      for (std::uint32_t i = 0; i < per_warp; ++i, p += page_nbytes / 4) mine += *p;
    } else {
      for (std::uint32_t i = 0; i < per_warp; ++i, offset += page_nbytes) {
        gpufs::page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(offset));
        if (page.error() != 0) {
          if (warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
          continue;
        }
        mine += reinterpret_cast<const std::uint32_t*>(page.data())[warp.rank()];
        gpufs::unmap_page(warp, page);
      }
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

template <class Source>
struct gather {
  Source from;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto p = from.template at<std::uint64_t>(0);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    std::uint64_t mine = 0;
    for (std::uint32_t i = 0; i < per_thread; ++i) mine += p[element_of(me * per_thread + i, seed, nelements)];
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// --- What is measured --------------------------------------------------------------------------------------------------------

// Several ways to do the same, in turn, so that all see the same clocks: what each took in every round but the first, a warm-up.
template <class... Way>
std::array<std::vector<double>, sizeof...(Way)> in_turn(int repeats, const Way&... ways) {
  std::array<std::vector<double>, sizeof...(Way)> taken;
  for (int r = 0; r <= repeats; ++r) {
    std::size_t i = 0;
    for (const double one : {ways(r)...}) {  // from left to right
      if (r > 0) taken[i++].push_back(one);
    }
  }
  return taken;
}

std::vector<double> per_second(const std::vector<double>& seconds, double amount) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(amount / s);
  return rates;
}

class pointers {
 public:
  pointers(arguments& args, const machine_facts& machine, const std::string& folder, std::uint64_t nbytes)
      : args_(args),
        small_(grid_of(machine, args)),
        full_{machine.nprocessors * full_blocks_per_sm, full_block},
        repeats_(std::max(1, static_cast<int>(args.number("repeats", {9, 3, 1})))),
        nbytes_(nbytes),
        accesses_(args.number("accesses", {3e8, 5e7, 2048})),
        minor_pages_(static_cast<std::uint32_t>(args.number("minor-pages", {512, 512, 16}))),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9),
        folder_(folder) {}

  // With files that stay registered for all mounts.
  void make_files() {
    make_file(folder_ + "/data", nbytes_);
    std::ofstream chased(folder_ + "/chased", std::ios::binary);
    for (const std::uint32_t span : {large_page, small_page}) {
      for (const bool distance : {false, true}) {
        const std::vector<std::int32_t> page = chase_page(span, distance);
        chased.write(reinterpret_cast<const char*>(page.data()), large_page);
        chase_.insert(chase_.end(), page.begin(), page.end());
      }
    }
    if (!chased.flush()) throw gpufs::error("cannot write the file that is chased");
    files_ = std::make_shared<gpufs::store::auto_store>(gpufs::simt::this_platform(), folder_, nbytes_ + (1u << 30));
  }

  void latency(results& out) const {
    const gpufs::mount fs = make_mount(large_page, 32 * large_page, "chased");
    const held_file file(fs, "chased");
    const mapped_file mapped{fs.ref(), file.number()};
    const device_array<std::int32_t> memory(chase_);
    const raw_memory raw{reinterpret_cast<const std::byte*>(memory.get())};
    struct level {
      std::uint32_t span;
      const char *read, *read_inc, *label;
    };
    for (const level& l : {level{large_page, "ap_read_latency", "ap_read_inc_latency", "from the second-level cache"},
                           level{small_page, "ap_read_latency_l1", "ap_read_inc_latency_l1", "from the first-level cache"}}) {
      const std::uint64_t begin = l.span == large_page ? 0 : 2 * large_page;
      if (args_.wants(l.read)) follow<false>(l.read, l.label, raw, mapped, begin, l.span, out);
      if (args_.wants(l.read_inc)) follow<true>(l.read_inc, l.label, raw, mapped, begin + large_page, l.span, out);
    }
  }

  void hits(results& out) const {
    const gpufs::mount fs = make_mount(small_page, nbytes_ + nbytes_ / 2, "data");
    const held_file file(fs, "data");
    fill_cache(fs, file.number(), small_, nbytes_, sum_in_parallel(nbytes_ / 8, [](std::uint64_t begin, std::uint64_t end) {
                 std::uint64_t sum = 0;
                 for (std::uint64_t i = begin; i < end; ++i) sum += word_of(i);
                 return sum;
               }));
    const mapped_file mapped{fs.ref(), file.number()};
    const device_array<std::uint64_t> memory(nbytes_ / 8);
    run(small_, fill_words{memory.get(), nbytes_ / 8, nullptr});
    const raw_memory raw{reinterpret_cast<const std::byte*>(memory.get())};
    if (args_.wants("ap_copy_4")) copy<std::uint32_t>("ap_copy_4", fs, raw, mapped, out);
    if (args_.wants("ap_copy_8")) copy<std::uint64_t>("ap_copy_8", fs, raw, mapped, out);
    if (args_.wants("ap_copy_16")) copy<vec16>("ap_copy_16", fs, raw, mapped, out);
    if (args_.wants("ap_workloads_4")) workloads<std::uint32_t>("ap_workloads_4", raw, mapped, out);
    if (args_.wants("ap_workloads_16")) workloads<vec16>("ap_workloads_16", raw, mapped, out);
    if (args_.wants("ap_minor")) minor(fs, file.number(), out);
    if (args_.wants("ap_gather")) gather_elements(fs, raw, mapped, out);
  }

  void major(results& out) const {
    const double copy_gbps = measure_copy(out, pinned_memory{}).median;
    int error = 0;
    const auto opened = files_->open("data", O_RDONLY, &error);
    if (!opened) throw gpufs::error("cannot open the file: " + std::to_string(error));
    const auto* mapping = static_cast<const std::byte*>(opened->info().pull_base);
    const double pull = mapping == nullptr ? 0 : measure_pull(out, small_, small_page, mapping, nbytes_).median;
    const std::string where = mapping == nullptr ? "memory; not pulled: " + opened->info().reason : "memory";
    const gpufs::mount fs = make_mount(small_page, std::max<std::uint64_t>(nbytes_ / 24, 1u << 20), "data");
    const held_file file(fs, "data");
    const double reads = std::max(launch_nbytes_ / small_page, 64.);
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    tell_random("ap_major", "ptr", where, small_page, copy_gbps, pull,
                measure_random<way::pointer>(fs, file.number(), small_, nbytes_ / small_page, reads, repeats_, launch), out);
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
      m.details.insert(m.details.end(), {{std::string("raw_") + nbytes, raw.registers},
                                         {std::string("ptr_") + nbytes, ptr.registers},
                                         {std::string("ptr_local_nbytes_") + nbytes, ptr.local_nbytes}});
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
  static constexpr std::uint32_t small_page = 4096, large_page = 2u << 20;
  static constexpr std::uint32_t line = 32, lines_on = 5;  // elements; the next line of a chase

  // For each element of the first `span` bytes: where the next one is, or how far away. The rest is 0.
  static std::vector<std::int32_t> chase_page(std::uint32_t span, bool distance) {
    std::vector<std::int32_t> page(large_page / 4);
    const std::uint32_t n = span / 4;
    for (std::uint32_t e = 0; e < n; ++e) {
      const std::uint32_t next = (e + lines_on * line) % n;
      page[e] = static_cast<std::int32_t>(next) - (distance ? static_cast<std::int32_t>(e) : 0);
    }
    return page;
  }

  gpufs::mount make_mount(std::uint32_t page_nbytes, std::uint64_t cache_nbytes, const char* path) const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes;
    options.page_nbytes = page_nbytes;
    options.nrings = on_gpu ? 0 : 1;  // so few warps start at few rings
    options.custom_store = files_;
    gpufs::mount fs(folder_, options);
    fs.prepare(path);
    return fs;
  }

  template <bool Increment>
  void follow(const char* name, const char* label, const raw_memory& raw, const mapped_file& mapped, std::uint64_t offset,
              std::uint32_t span, results& out) const {
    const std::uint32_t nlines = span / 4 / line, nsteps = (on_gpu ? 16384 : 100) + 3;
    measurement m{name, label, {}, "cycles a step"};
    m.verified = true;
    const auto cycles = [&](const auto& from) {
      const device_array<std::uint64_t> taken(32);
      const device_array<std::uint32_t> ends(32);
      run<1>({1, 32}, chase<Increment, std::decay_t<decltype(from)>>{from, offset, nsteps, taken.get(), ends.get()});
      const auto at = ends.values();
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        m.verified = m.verified && at[lane] == 2 * nsteps * lines_on % nlines * line + lane;
      }
      return static_cast<double>(taken.value()) / nsteps;
    };
    const auto [on_raw, on_ptr] = in_turn(
        repeats_, [&](int) { return cycles(raw); }, [&](int) { return cycles(mapped); });
    extra_over(m, on_ptr, on_raw, "raw pointer");
    out.add(m);
  }

  static void extra_over(measurement& m, const std::vector<double>& taken, const std::vector<double>& base, const char* base_is) {
    m.figure = measurement::kind::extra_over_ceiling;
    m.samples = taken;
    m.ceiling = spread_of(base).median;
    m.ceiling_is = base_is;
  }

  // Bytes for each of the warps, whole pages, at most `most`, so that all together have `total`.
  static std::uint32_t part_nbytes(std::uint64_t total, const shape& how, std::uint64_t most) {
    const std::uint64_t part = std::min(total / how.warps(), most) / small_page * small_page;
    if (part == 0) throw gpufs::error("the file is too small: a page a warp is the least");
    return static_cast<std::uint32_t>(part);
  }

  template <class T>
  void copy(const char* name, const gpufs::mount& fs, const raw_memory& raw, const mapped_file& mapped, results& out) const {
    const std::uint32_t part = part_nbytes(nbytes_, full_, copy_part);
    const std::uint64_t total = full_.warps() * part;
    const device_array<T> to(total / sizeof(T));
    const auto nsteps = static_cast<std::uint32_t>(part / sizeof(T) / copy_parts<T, raw_memory>::step);
    measurement m{name, std::to_string(sizeof(T)) + " bytes a lane", {}, "GB/s"};
    m.verified = true;
    const auto once = [&](const auto& from) {
      return run_full_blocks(full_, copy_parts<T, std::decay_t<decltype(from)>>{from, to.get(), nsteps});
    };
    const auto check_copy = [&] {
      const device_array<std::uint64_t> wrong(1);
      run(small_, fill_words{reinterpret_cast<std::uint64_t*>(to.get()), total / 8, wrong.get()});
      if (wrong.value() != 0) std::printf("WRONG: %llu words\n", static_cast<unsigned long long>(wrong.value()));
      return wrong.value() == 0;
    };
    const gpufs::mount_counters before = fs.counters();
    const auto [on_raw, on_ptr] = in_turn(
        repeats_, [&](int) { return once(raw); }, [&](int) { return once(mapped); });
    const gpufs::mount_counters after = fs.counters();
    for (const bool pointer : {false, true}) {
      gpufs::simt::this_platform().zero_device(to.get(), total);
      pointer ? once(mapped) : once(raw);
      m.verified = check_copy() && m.verified;
    }
    m.samples = per_second(on_ptr, static_cast<double>(total) * 1e-9);
    m.ceiling = spread_of(per_second(on_raw, static_cast<double>(total) * 1e-9)).median;
    m.ceiling_is = "raw pointer";
    add_hits(m, before, after);
    out.add(m);
  }

  // One workload: its seconds on raw memory, the same untiled, and through pointers; and whether all gave the same.
  template <class T, class Work>
  auto time_work(const shape& how, int repeats, std::uint32_t part, const raw_memory& raw, const mapped_file& mapped,
                 bool& right) const {
    using value = typename Work::value;
    const device_array<value> from_raw(how.threads()), from_untiled(how.threads()), from_ptr(how.threads());
    const std::uint64_t half = nbytes_ / 2, total = how.warps() * part;
    const auto nsteps = static_cast<std::uint32_t>(part / (32 * sizeof(T)));
    const auto on = [&](const auto& from, value* sums) {
      return [&from, sums, &how, half, total, nsteps](int r) {
        // Elsewhere in each round: few blocks read no more than the second-level cache holds.
        const std::uint64_t begin = static_cast<std::uint64_t>(r) % (half / total) * total;
        return run_full_blocks(how, work_on_parts<T, Work, std::decay_t<decltype(from)>>{from, begin, half + begin, nsteps, sums});
      };
    };
    const untiled_raw_memory untiled{raw};
    const auto taken = in_turn(repeats, on(raw, from_raw.get()), on(untiled, from_untiled.get()), on(mapped, from_ptr.get()));
    const auto a = from_raw.values(), b = from_untiled.values(), c = from_ptr.values();
    for (std::size_t i = 0; i < a.size(); ++i) right = right && agree(b[i], a[i]) && agree(c[i], a[i]);
    return taken;
  }

  // Whether a warp's few steps on raw memory give what the host makes of the same data.
  template <class T, class Work>
  bool work_is_right(const raw_memory& raw) const {
    using value = typename Work::value;
    constexpr std::uint32_t nsteps = 3, nwords = sizeof(T) / 4;
    const std::uint64_t half = nbytes_ / 2;
    const device_array<value> sums(32);
    run_full_blocks({1, 32}, work_on_parts<T, Work, raw_memory>{raw, 0, half, nsteps, sums.get()});
    std::array<value, 32> expected{};
    for (std::uint32_t vector = 0; vector < nsteps * nwords; ++vector) {
      lanes32 x, y;
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        const std::uint64_t i = (std::uint64_t{vector} / nwords * 32 + lane) * nwords + vector % nwords;  // of 4-byte elements
        x[lane] = static_cast<std::uint32_t>(word_of(i / 2) >> (i % 2 * 32));
        y[lane] = static_cast<std::uint32_t>(word_of(half / 8 + i / 2) >> (i % 2 * 32));
      }
      const auto made = Work::of_warp(x, y);
      for (std::uint32_t lane = 0; lane < 32; ++lane) expected[lane] += made[lane];
    }
    const auto found = sums.values();
    bool right = true;
    for (std::uint32_t lane = 0; lane < 32; ++lane) right = right && agree(found[lane], expected[lane]);
    if (!right) std::printf("WRONG: %s of %zu bytes is not what the host makes\n", Work::name, sizeof(T));
    return right;
  }

  // All workloads on one grid: the case `name`, held against raw memory, and `name`_untiled. suffix: of both.
  template <class T, class... Work>
  void all_works(const std::string& name, const std::string& suffix, const std::string& label, const shape& how, int repeats,
                 const raw_memory& raw, const mapped_file& mapped, bool right, results& out) const {
    const std::uint32_t part = part_nbytes(nbytes_ / 2, full_, work_part);
    measurement tiled{name + suffix, label}, untiled{name + "_untiled" + suffix, label};
    for (measurement* m : {&tiled, &untiled}) {
      m->figure = measurement::kind::itself;
      m->unit = "extra time";
      m->samples.assign(static_cast<std::size_t>(repeats), 0);
      m->details = {{"blocks", how.grid}};
    }
    const auto one = [&]<class W>(W) {
      const auto [on_raw, on_untiled, on_ptr] = time_work<T, W>(how, repeats, part, raw, mapped, right);
      const auto add = [&on_ptr = on_ptr](measurement& m, const std::vector<double>& base) {
        for (std::size_t r = 0; r < base.size(); ++r) m.samples[r] += (on_ptr[r] / base[r] - 1) / sizeof...(Work);
        m.details.emplace_back(W::name, spread_of(on_ptr).median / spread_of(base).median - 1);
      };
      add(tiled, on_raw);
      add(untiled, on_untiled);
    };
    (one(Work{}), ...);
    for (measurement* m : {&tiled, &untiled}) {
      m->verified = right;
      out.add(*m);
    }
  }

  template <class T>
  void workloads(const char* name, const raw_memory& raw, const mapped_file& mapped, results& out) const {
    const auto measure = [&]<class... Work>(Work...) {
      const bool right = (work_is_right<T, Work>(raw) && ...);
      all_works<T, Work...>(name, "", "mean of the workloads, full occupancy", full_, repeats_, raw, mapped, right, out);
      for (unsigned grid = 1; grid < full_.grid; grid *= 2) {
        all_works<T, Work...>(name, "_by_blocks", std::to_string(grid) + (grid == 1 ? " block" : " blocks"), {grid, full_.block},
                              std::min(repeats_, 3), raw, mapped, right, out);
      }
    };
    measure(add_work{}, read_work{}, random_work<5>{}, random_work<20>{}, random_work<50>{}, reduce_work{}, fft_work{},
            sort_work{});
  }

  void minor(const gpufs::mount& fs, gpufs::file_number number, results& out) const {
    const std::uint64_t nranges = nbytes_ / small_page / minor_pages_, total = small_.warps() * minor_pages_;
    if (nranges == 0) throw gpufs::error("the file is too small for --minor-pages");
    const std::uint64_t expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) {
        const std::uint64_t page = i % (nranges * minor_pages_);
        for (std::uint64_t w = 0; w < 16; ++w) {
          const std::uint64_t word = word_of(page * (small_page / 8) + w);
          sum += (word & 0xffffffffu) + (word >> 32);
        }
      }
      return sum;
    });
    measurement m{"ap_minor", "a warp links page after page", {}, "ns a page, all warps together"};
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    const auto once = [&]<bool Pointer>() {
      const checked_run done = run_checked(small_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
        return touch_pages<Pointer>{fs.ref(), number, nranges, small_page, minor_pages_, sum, failed};
      });
      m.verified = m.verified && done.right;
      return done.seconds / static_cast<double>(total) * 1e9;
    };
    const auto [by_call, by_ptr] = in_turn(
        repeats_, [&](int) { return once.template operator()<false>(); }, [&](int) { return once.template operator()<true>(); });
    extra_over(m, by_ptr, by_call, "map_page and unmap_page");
    add_hits(m, before, fs.counters());
    out.add(m);
  }

  void gather_elements(const gpufs::mount& fs, const raw_memory& raw, const mapped_file& mapped, results& out) const {
    const auto per_thread = static_cast<std::uint32_t>(std::ceil(accesses_ / static_cast<double>(small_.threads())));
    const std::uint64_t total = small_.threads() * per_thread, nelements = nbytes_ / 8;
    measurement m{"ap_gather", "a random 8-byte element a thread", {}, "G accesses/s"};
    m.figure = measurement::kind::itself;
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    std::uint64_t expected = 0;
    const auto seed_of = [](int r) { return word_of(static_cast<std::uint64_t>(r) + 4000); };
    const auto once = [&](int r, const auto& from) {
      const checked_run done = run_checked(small_, expected, [&](std::uint64_t* sum, std::uint64_t*) {
        return gather<std::decay_t<decltype(from)>>{from, nelements, seed_of(r), per_thread, sum};
      });
      m.verified = m.verified && done.right;
      return static_cast<double>(total) / done.seconds * 1e-9;
    };
    const auto [on_raw, on_ptr] = in_turn(
        std::min(repeats_, 5),
        [&](int r) {
          expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
            std::uint64_t sum = 0;
            for (std::uint64_t i = begin; i < end; ++i) sum += word_of(element_of(i, seed_of(r), nelements));
            return sum;
          });
          return once(r, raw);
        },
        [&](int r) { return once(r, mapped); });
    m.samples = on_ptr;
    m.details = {{"raw_g_accesses_per_second", spread_of(on_raw).median}};
    add_hits(m, before, fs.counters());
    out.add(m);
  }

  static constexpr std::uint64_t copy_part = on_gpu ? 1u << 20 : 16u << 10, work_part = copy_part / 2;
  arguments& args_;
  shape small_, full_;
  int repeats_;
  std::uint64_t nbytes_;
  double accesses_;
  std::uint32_t minor_pages_;
  double launch_nbytes_;
  std::string folder_;
  std::vector<std::int32_t> chase_;
  std::shared_ptr<gpufs::store::auto_store> files_;
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
    if (args.wants_any({"ap_copy_4", "ap_copy_8", "ap_copy_16", "ap_workloads_4", "ap_workloads_16", "ap_minor", "ap_gather"}))
      bench.hits(out);
    if (args.wants("ap_major")) bench.major(out);
    return out.finish();
  });
}
