// SPDX-License-Identifier: Apache-2.0
// Arrays in files, gpufs::array<T>, against map_page and unmap_page: the same file, in the same run, by turns. After BaM's Figures
// 5 and 6 (ASPLOS'23).
//
// array_hot: all is in the cache; a warp reads 1,024 contiguous elements of 8 bytes (8 KiB, at a random multiple of 8 KiB) and adds
// them up, by for_each_n over an array of 16-byte vectors, which keeps a reference to its pages; map_page is hot_4k's kernel
// (bench/hot.cu). array_hot_each: the same by a[i] alone, 8 bytes a lane, as BaM's kernel is, each access a look-up of its own.
// array_cold: a file 24 times as large as the cache; warps read random pages of 4 KiB, all 512 elements of each by a[i], so that
// nearly the first access to each misses and all evict; what is delivered counts. map_page there reads 32 of a page's words in
// place.
#include "access.hpp"
#include "subject.hpp"

namespace {

using namespace bench;

enum class loop { keeps_reference, each };

// As read_chunks (access.hpp).
template <loop How>
struct read_array {
  gpufs::array<const std::uint64_t> words;
  gpufs::array<const two_words> vectors;
  chunk_access<pattern::uniform> access;
  std::uint32_t per_warp;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = global_warp() * per_warp;
    std::uint64_t mine = 0;
    if constexpr (How == loop::each) {
      for (std::uint32_t i = 0; i < per_warp; ++i) {
        const auto begin = static_cast<std::int64_t>(access.chunk(me + i) * (chunk_nbytes / 8) + warp.rank());
        for (std::uint32_t k = 0; k < chunk_nbytes / 8; k += 32) mine += words[begin + k];
      }
    } else {
      constexpr std::uint32_t in_chunk = chunk_nbytes / sizeof(two_words);
      gpufs::ptr<const two_words> p = vectors.reader(warp.rank());
      std::int64_t at = 0;
      for (std::uint32_t i = 0; i < per_warp; ++i) {
        const auto begin = static_cast<std::int64_t>(access.chunk(me + i) * in_chunk);
        p += begin - at;
        gpufs::for_each_n(
            in_chunk / 32, 32, [&](const two_words& v) { mine += v.a + v.b; }, p);
        at = begin + in_chunk;
      }
      if (p.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

class arrays {
 public:
  arrays(arguments& args, const machine_facts& machine)
      : how_(grid_of(machine, args)),
        repeats_(repeats_of(args)),
        hot_nbytes_(args.nbytes("hot-gib", {2, 0.25, 1. / 1024}) / chunk_nbytes * chunk_nbytes),
        cold_nbytes_(args.nbytes("file-gib", {6, 1, 8. / 1024}) / chunk_nbytes * chunk_nbytes),
        reads_(args.number("reads", {8e6, 2e6, 64})),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9) {}

  void hot(const std::string& folder, results& out, arguments& args) const {
    make_file(folder + "/data", hot_nbytes_);
    const std::vector<std::uint64_t> sums = piece_sums(chunk_nbytes, hot_nbytes_ / chunk_nbytes);
    std::uint64_t all = 0;
    for (const std::uint64_t s : sums) all += s;
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = hot_nbytes_ + hot_nbytes_ / 2;
    options.page_nbytes = 4096;
    options.pin_nbytes = hot_nbytes_ + (1u << 30);
    const gpufs::mount fs(folder, options);
    fs.prepare("data");
    const host_file file(fs, "data");
    fill_cache(fs, file.ref().number(), how_, hot_nbytes_, all);
    if (args.wants("array_hot")) {
      compare<loop::keeps_reference>("array_hot", "a warp reads 8 KiB, uniform, by for_each_n", fs, file, sums, out);
    }
    if (args.wants("array_hot_each")) {
      compare<loop::each>("array_hot_each", "the same, by a[i]", fs, file, sums, out);
    }
  }

  void cold(const std::string& parent, results& out) const {
    const subject s(parent, cold_nbytes_, "a file in memory");
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cold_nbytes_ / 24 / 4096 * 4096;
    options.page_nbytes = 4096;
    options.custom_store = s.files;
    const gpufs::mount fs(s.folder.path(), options);
    fs.prepare("data");
    const host_file file(fs, "data");
    const std::uint64_t npages = cold_nbytes_ / 4096;
    const double reads = std::min(launch_nbytes_ / 4096, std::max(launch_nbytes_ / 1024, 64.));
    const auto launch = [](const shape& how, const auto& kernel) { return run(how, kernel); };
    const random_reads by_page = measure_random<way::map_page>(fs, file.ref().number(), how_, npages, reads, repeats_, launch);
    const random_reads by_array = measure_random<way::array>(fs, file.ref().number(), how_, npages, reads, repeats_, launch);
    measurement m{"array_cold", "random 4 KiB misses by a[i], " + s.where + s.how_bytes_come(), times(by_array.read, 4096e-9)};
    m.unit = "GB/s";
    m.ceiling = spread_of(by_page.read).median * 4096e-9;
    m.ceiling_is = "map_page";
    m.verified = by_page.right && by_array.right;
    m.details = {{"hits", static_cast<double>(by_array.counters.hits)},
                 {"faults", static_cast<double>(by_array.counters.faults)},
                 {"evictions", static_cast<double>(by_array.counters.evictions)},
                 {"missed_share", spread_of(by_array.missed).median / spread_of(by_array.read).median},
                 {"map_page_missed_share", spread_of(by_page.missed).median / spread_of(by_page.read).median}};
    out.add(m);
  }

 private:
  template <loop How>
  void compare(const char* name, const char* label, const gpufs::mount& fs, const host_file& file,
               const std::vector<std::uint64_t>& sums, results& out) const {
    const auto words = gpufs::map_array<const std::uint64_t>(file);
    const auto vectors = gpufs::map_array<const two_words>(file);
    const auto per_warp = static_cast<std::uint32_t>(std::ceil(reads_ / static_cast<double>(how_.warps())));
    const std::uint64_t total = how_.warps() * per_warp;
    measurement m{name, label, {}, "GB/s"};
    m.verified = true;
    std::vector<double> by_page;
    const gpufs::mount_counters before = fs.counters();
    for (int r = 0; r <= repeats_; ++r) {
      const chunk_access<pattern::uniform> access{hot_nbytes_ / chunk_nbytes, word_of(static_cast<std::uint64_t>(r) + 3000)};
      const std::uint64_t expected = expected_sum(access, total, sums);
      const auto gbps = [&](const checked_run& done) {
        m.verified = m.verified && done.right;
        return static_cast<double>(total) * chunk_nbytes / done.seconds * 1e-9;
      };
      const double page = gbps(run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
        return read_chunks<pattern::uniform>{fs.ref(), file.ref().number(), access, per_warp, sum, failed};
      }));
      const double array = gbps(run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
        return read_array<How>{words, vectors, access, per_warp, sum, failed};
      }));
      if (r == 0) continue;  // it loads the kernels
      by_page.push_back(page);
      m.samples.push_back(array);
    }
    m.ceiling = spread_of(by_page).median;
    m.ceiling_is = "map_page";
    add_hits(m, before, fs.counters());
    out.add(m);
  }

  shape how_;
  int repeats_;
  std::uint64_t hot_nbytes_, cold_nbytes_;
  double reads_, launch_nbytes_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("arrays", [&] {
    arguments args(argc, argv,
                   "arrays  --dir DIR  --hot-gib N  --file-gib N  --reads N  --launch-gb N  --blocks-per-sm N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    const std::string dir = args.path("dir", "/dev/shm");
    const arrays bench(args, machine);
    results out("arrays", args, machine);
    if (args.wants_any({"array_hot", "array_hot_each"})) {
      const work_folder folder(dir);
      bench.hot(folder.path(), out, args);
    }
    if (args.wants("array_cold")) bench.cold(dir, out);
    return out.finish();
  });
}
