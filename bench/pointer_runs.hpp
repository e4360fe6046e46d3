// SPDX-License-Identifier: Apache-2.0
// What the benches of pointers share: their files, and launches of pointer_kernels.hpp that alternate between sources, with their
// answers verified.
#pragma once
#include <array>
#include <fstream>
#include <memory>
#include <tuple>
#include <utility>

#include "gpufs/store/auto_store.hpp"
#include "pointer_kernels.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

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

inline std::vector<double> per_second(const std::vector<double>& seconds, double amount) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(amount / s);
  return rates;
}

inline void extra_over(measurement& m, const std::vector<double>& taken, const std::vector<double>& base, const char* base_is) {
  m.figure = measurement::kind::extra_over_ceiling;
  m.samples = taken;
  m.ceiling = spread_of(base).median;
  m.ceiling_is = base_is;
}

// What pointers are held against, and the case's name.
template <class Source>
struct baseline {
  std::string name;
  Source from;
};

class pointer_runs {
 public:
  // All in pages of 4 KiB, and the latency in one of 2 MiB.
  static constexpr std::uint32_t small_page = 4096, large_page = 2u << 20;
  using details = std::vector<std::pair<std::string, double>>;

  pointer_runs(arguments& args, const machine_facts& machine, const std::string& folder, std::uint64_t nbytes)
      : args_(args),
        small_(grid_of(machine, args)),
        full_{machine.nprocessors * full_blocks_per_sm, full_block},
        repeats_(std::max(1, static_cast<int>(args.number("repeats", {9, 3, 1})))),
        nbytes_(nbytes),
        minor_pages_(static_cast<std::uint32_t>(args.number("minor-pages", {512, 512, 16}))),
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

 protected:
  gpufs::mount make_mount(std::uint32_t page_nbytes, std::uint64_t cache_nbytes, const char* path) const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes;
    options.page_nbytes = page_nbytes;
    options.internals.nrings = on_gpu ? 0 : 1;  // so few warps start at few rings
    options.custom_store = files_;
    gpufs::mount fs(folder_, options);
    fs.prepare(path);
    return fs;
  }

  // The file that is chased, open in a mount, and device memory with the same content.
  struct chased_file {
    explicit chased_file(const pointer_runs& runs)
        : fs(runs.make_mount(large_page, 32 * large_page, "chased")), file(fs, "chased"), memory(runs.chase_) {}
    gpufs::mount fs;
    host_file file;
    device_array<std::int32_t> memory;
    mapped_file mapped{fs.ref(), file.ref().number()};
    raw_memory raw{reinterpret_cast<const std::byte*>(memory.get())};
  };

  // A mount whose cache has the whole of the file `data`, which is open.
  struct filled_cache {
    filled_cache(const pointer_runs& runs, std::uint32_t page_nbytes)
        // Few large pages fall to the cache's rings less evenly.
        : fs(runs.make_mount(page_nbytes,
                             std::max(runs.nbytes_ * (page_nbytes == small_page ? 3 : 4) / 2, std::uint64_t{32} * page_nbytes),
                             "data")),
          file(fs, "data") {
      fill_cache(fs, file.ref().number(), runs.small_, runs.nbytes_,
                 sum_in_parallel(runs.nbytes_ / 8, [](std::uint64_t begin, std::uint64_t end) {
                   std::uint64_t sum = 0;
                   for (std::uint64_t i = begin; i < end; ++i) sum += word_of(i);
                   return sum;
                 }));
    }
    gpufs::mount fs;
    host_file file;
    mapped_file mapped{fs.ref(), file.ref().number()};
  };

  // Device memory with the content of `data`.
  struct filled_memory {
    explicit filled_memory(const pointer_runs& runs) : words(runs.nbytes_ / 8) {
      run(runs.small_, fill_words{words.get(), runs.nbytes_ / 8, nullptr});
    }
    device_array<std::uint64_t> words;
    raw_memory raw{reinterpret_cast<const std::byte*>(words.get())};
  };

  // Cycles a step from each source, by turns. span: the bytes that the lanes go through.
  template <step Step, class... Source>
  auto time_steps(std::uint32_t span, bool& right, const Source&... from) const {
    const std::uint64_t offset = (span == large_page ? 0 : 2 * large_page) + (Step == step::read ? 0 : large_page);
    const std::uint32_t nlines = span / 4 / line, nsteps = (on_gpu ? 16384 : 100) + 3;
    const auto cycles = [&](const auto& source) {
      const device_array<std::uint64_t> taken(32);
      const device_array<std::uint32_t> ends(32);
      run<1>({1, 32}, chase<Step, std::decay_t<decltype(source)>>{source, offset, nsteps, taken.get(), ends.get()});
      const auto at = ends.read();
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        right = right && at[lane] == (Step == step::increment ? 0 : 2 * nsteps * lines_on % nlines * line) + lane;
      }
      return static_cast<double>(taken.read_one()) / nsteps;
    };
    return in_turn(repeats_, [&](int) { return cycles(from); }...);
  }

  // Bytes for each of the warps, whole pages, at most `most`, so that all together have `total`.
  static std::uint32_t part_nbytes(std::uint64_t total, const shape& how, std::uint64_t most) {
    const std::uint64_t part = std::min(total / how.warps(), most) / small_page * small_page;
    if (part == 0) throw gpufs::error("the file is too small: a page a warp is the least");
    return static_cast<std::uint32_t>(part);
  }

  // GB/s of copying the warps' parts from each source, by turns, each of which is then verified.
  template <class T, class... Source>
  auto time_copies(bool& right, const Source&... from) const {
    const std::uint32_t part = part_nbytes(nbytes_, full_, copy_part);
    const std::uint64_t total = full_.warps() * part;
    const device_array<T> to(total / sizeof(T));
    const auto nsteps = static_cast<std::uint32_t>(part / sizeof(T) / copy_parts<T, raw_memory>::step);
    const auto once = [&](const auto& source) {
      using kind = std::decay_t<decltype(source)>;
      if constexpr (std::is_same_v<kind, copied_memory>) {
        return device_copy_seconds(to.get(), source.data, total);
      } else {
        return run_full_blocks(full_, copy_parts<T, kind>{source, to.get(), nsteps});
      }
    };
    auto taken = in_turn(repeats_, [&](int) { return once(from); }...);
    const auto check_copy = [&](const auto& source) {
      gpufs::simt::this_platform().zero_device(to.get(), total);
      once(source);
      const device_array<std::uint64_t> wrong(1);
      run(small_, fill_words{reinterpret_cast<std::uint64_t*>(to.get()), total / 8, wrong.get()});
      if (wrong.read_one() != 0) std::printf("WRONG: %llu words\n", static_cast<unsigned long long>(wrong.read_one()));
      right = right && wrong.read_one() == 0;
    };
    (check_copy(from), ...);
    for (std::vector<double>& each : taken) each = per_second(each, static_cast<double>(total) * 1e-9);
    return taken;
  }

  // ns a page of touching per_warp pages a warp, all warps together, from each source, by turns.
  template <class Launch, class... Source>
  auto time_pages(const shape& how, int repeats, std::uint32_t per_warp, bool& right, const Launch& launch,
                  const Source&... from) const {
    const std::uint64_t nranges = nbytes_ / small_page / per_warp, total = how.warps() * per_warp;
    if (nranges == 0) throw gpufs::error("the file is too small for --minor-pages");
    const std::uint64_t expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) sum += sum_of_elements(i % (nranges * per_warp) * small_page, 32);
      return sum;
    });
    const auto once = [&](const auto& source) {
      const auto make = [&](std::uint64_t* sum, std::uint64_t* failed) {
        return touch_pages<std::decay_t<decltype(source)>>{source, nranges, small_page, per_warp, sum, failed};
      };
      const checked_run done = run_checked(how, expected, make, launch);
      right = right && done.right;
      return done.seconds / static_cast<double>(total) * 1e9;
    };
    return in_turn(repeats, [&](int) { return once(from); }...);
  }

  // The sum of n 4-byte elements of `data` (an even number) from that byte on.
  static std::uint64_t sum_of_elements(std::uint64_t offset, std::uint64_t n) {
    std::uint64_t sum = 0;
    for (std::uint64_t w = 0; w < n / 2; ++w) sum += (word_of(offset / 8 + w) & 0xffffffffu) + (word_of(offset / 8 + w) >> 32);
    return sum;
  }

  // The paper's eight workloads through pointers, at full occupancy (`more`: details of that case), and from one block up: the mean
  // of the extra times over each baseline, and <name>_by_blocks.
  template <class T, class Source, class... Base>
  void workloads(results& out, const details& more, const Source& mapped, const baseline<Base>&... bases) const {
    const auto measure = [&]<class... Work>(Work...) {
      bool right = true;
      const auto check = [&]<class W>(W, const auto& from) { right = work_is_right<T, W>(from) && right; };
      const auto check_all = [&](const auto& from) { (check(Work{}, from), ...); };
      (check_all(bases.from), ...);
      for (measurement& m :
           all_works<T>("mean of the workloads, full occupancy", full_, repeats_, right, mapped, std::tuple<Work...>{}, bases...)) {
        m.details.insert(m.details.end(), more.begin(), more.end());
        out.add(m);
      }
      for (unsigned grid = 1; grid < full_.grid; grid *= 2) {
        for (measurement& m : all_works<T>(std::to_string(grid) + (grid == 1 ? " block" : " blocks"), {grid, full_.block},
                                           std::min(repeats_, 3), right, mapped, std::tuple<Work...>{}, bases...)) {
          m.name += "_by_blocks";
          out.add(m);
        }
      }
    };
    measure(add_work{}, read_work{}, random_work<5>{}, random_work<20>{}, random_work<50>{}, reduce_work{}, fft_work{},
            sort_work{});
  }

 private:
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

  // One workload: its seconds from each source, by turns, and whether all gave the same.
  template <class T, class Work, class... Source>
  auto time_work(const shape& how, int repeats, bool& right, const Source&... from) const {
    using value = typename Work::value;
    const std::uint32_t part = part_nbytes(nbytes_ / 2, full_, work_part);
    const std::uint64_t half = nbytes_ / 2, total = how.warps() * part;
    const auto nsteps = static_cast<std::uint32_t>(part / (32 * sizeof(T)));
    const device_array<value> sums(how.threads() * sizeof...(Source));
    value* next = sums.get();
    const auto on = [&](const auto& source) {
      return [&, to = std::exchange(next, next + how.threads())](int r) {
        // Elsewhere in each round: few blocks read no more than the second-level cache holds.
        const std::uint64_t begin = static_cast<std::uint64_t>(r) % (half / total) * total;
        return run_full_blocks(how,
                               work_on_parts<T, Work, std::decay_t<decltype(source)>>{source, begin, half + begin, nsteps, to});
      };
    };
    const std::tuple ways{on(from)...};  // braces: from left to right
    const auto taken = std::apply([&](const auto&... way) { return in_turn(repeats, way...); }, ways);
    const auto found = sums.read();
    for (std::size_t i = 0; i < found.size(); ++i) right = right && agree(found[i], found[i % how.threads()]);
    return taken;
  }

  // Whether the steps of one warp through a page give what the host makes of the same data.
  template <class T, class Work, class Source>
  bool work_is_right(const Source& from) const {
    using value = typename Work::value;
    constexpr std::uint32_t nsteps = small_page / (32 * sizeof(T)), nwords = sizeof(T) / 4;
    const std::uint64_t half = nbytes_ / 2;
    const device_array<value> sums(32);
    run_full_blocks({1, 32}, work_on_parts<T, Work, Source>{from, 0, half, nsteps, sums.get()});
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
    const auto found = sums.read();
    bool right = true;
    for (std::uint32_t lane = 0; lane < 32; ++lane) right = right && agree(found[lane], expected[lane]);
    if (!right) std::printf("WRONG: %s of %zu bytes is not what the host makes\n", Work::name, sizeof(T));
    return right;
  }

  // All workloads on one grid: a case for each baseline.
  template <class T, class Source, class... Work, class... Base>
  std::vector<measurement> all_works(const std::string& label, const shape& how, int repeats, bool right, const Source& mapped,
                                     std::tuple<Work...>, const baseline<Base>&... bases) const {
    std::vector<measurement> made;
    const std::array<std::string, sizeof...(Base)> names{bases.name...};
    for (const std::string& name : names) {
      measurement m{name, label, std::vector<double>(static_cast<std::size_t>(repeats))};
      m.figure = measurement::kind::itself;
      m.unit = "extra time";
      m.details = {{"blocks", how.grid}};
      made.push_back(m);
    }
    const auto one = [&]<class W>(W) {
      const auto taken = time_work<T, W>(how, repeats, right, bases.from..., mapped);
      const std::vector<double>& on_ptr = taken.back();
      for (std::size_t b = 0; b < made.size(); ++b) {
        for (std::size_t r = 0; r < on_ptr.size(); ++r) {
          made[b].samples[r] += (on_ptr[r] / taken[b][r] - 1) / static_cast<double>(sizeof...(Work));
        }
        made[b].details.emplace_back(W::name, spread_of(on_ptr).median / spread_of(taken[b]).median - 1);
      }
    };
    (one(Work{}), ...);
    for (measurement& m : made) m.verified = right;
    return made;
  }

 protected:
  static constexpr std::uint64_t copy_part = on_gpu ? 1u << 20 : 16u << 10, work_part = copy_part / 2;
  arguments& args_;
  shape small_, full_;
  int repeats_;
  std::uint64_t nbytes_;
  std::uint32_t minor_pages_;
  std::string folder_;
  std::vector<std::int32_t> chase_;
  std::shared_ptr<gpufs::store::auto_store> files_;
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
