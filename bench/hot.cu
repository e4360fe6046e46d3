// SPDX-License-Identifier: Apache-2.0
// Hits: everything that is read is in the cache already. How near do they come to reading the same memory without a file system?
//
// BaM's test: a warp reads 1,024 contiguous elements of 8 bytes (8 KiB, at a random multiple of 8 KiB in a file that fits into
// the cache) and adds them up. It maps each page that the 8 KiB touch (two of 4 KiB, a part of one of 64 KiB), reads it in
// place with 16-byte loads, eight in flight a lane, and unmaps it. hot_thread: every thread maps the page of a random 4-byte
// element, reads the element and unmaps. The file is opened before. All sums are compared with what the host computes.
#include "access.hpp"

namespace {

using namespace bench;

class hot {
 public:
  hot(arguments& args, const machine_facts& machine, const std::string& folder, std::uint64_t nbytes)
      : how_(grid_of(machine, args)),
        repeats_(repeats_of(args)),
        how_64k_{on_gpu ? machine.nprocessors * blocks_for_64k : how_.grid, how_.block},
        nbytes_(nbytes),
        reads_(args.number("reads", {12e6, 2e6, 64})),
        accesses_(args.number("accesses", {5e8, 5e7, 2048})),
        folder_(folder) {}

  void make_files() {
    make_file(folder_ + "/data", nbytes_);
    sums_ = piece_sums(chunk_nbytes, nbytes_ / chunk_nbytes);
    for (const std::uint64_t s : sums_) total_ += s;
    page_sum_ = 2 * piece_sums(4096, 1)[0];
  }

  void run_pages(std::uint32_t page_nbytes, results& out, arguments& args, double memory_gbps) {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = nbytes_ + nbytes_ / 2;
    options.page_nbytes = page_nbytes;
    options.internals.nrings = on_gpu ? 0 : 1;  // so few warps start at few rings
    options.pin_nbytes = nbytes_ + (1u << 30);
    const gpufs::mount fs(folder_, options);
    fs.prepare("data");
    const host_file file(fs, "data");
    fill_cache(fs, file.ref().number(), how_, nbytes_, total_);

    const bool small = page_nbytes == 4096;
    const auto reads = [&]<pattern How>(const char* name, const char* label, double ceiling, const char* ceiling_is) {
      return read_with<How>(fs, file.ref().number(), {name, label, {}, "GB/s", ceiling, ceiling_is}, out);
    };
    const auto uniform = [&](const char* name) {
      return reads.template operator()<pattern::uniform>(name, "a warp reads 8 KiB, uniform", memory_gbps,
                                                         "sequential read of device memory");
    };
    if (!small) {
      if (args.wants("hot_64k")) uniform("hot_64k");
      return;
    }
    if (args.wants("hot_4k") || args.wants("hot_skewed") || args.wants("hot_one_page")) {
      const double base = uniform("hot_4k");
      if (args.wants("hot_skewed")) {
        reads.template operator()<pattern::skewed>("hot_skewed", "90 % of reads to 1 % of pages", base, "hot_4k");
      }
      if (args.wants("hot_one_page"))
        reads.template operator()<pattern::one_page>("hot_one_page", "all reads to one page", base, "hot_4k");
    }
    if (args.wants("hot_thread")) threads(fs, file.ref().number(), out);
  }

 private:
  template <pattern How>
  double read_with(const gpufs::mount& fs, gpufs::file_number number, measurement m, results& out) const {
    const bool small = fs.options().page_nbytes == 4096;
    const shape& how = small ? how_ : how_64k_;
    const auto per_warp = static_cast<std::uint32_t>(std::ceil(reads_ / static_cast<double>(how.warps())));
    const std::uint64_t total = how.warps() * per_warp;
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    for (int r = 0; r <= repeats_; ++r) {
      const chunk_access<How> access{nbytes_ / chunk_nbytes, word_of(static_cast<std::uint64_t>(r) + 1000)};
      const std::uint64_t expected = How == pattern::one_page ? total * page_sum_ : expected_sum(access, total, sums_);
      const auto make = [&](std::uint64_t* sum, std::uint64_t* failed) {
        return read_chunks<How>{fs.ref(), number, access, per_warp, sum, failed};
      };
      const checked_run done =
          small
              ? run_checked(how, expected, make)
              : run_checked(how, expected, make, [](const shape& s, const auto& kernel) { return run<blocks_for_64k>(s, kernel); });
      m.verified = m.verified && done.right;
      if (r > 0) m.samples.push_back(static_cast<double>(total) * chunk_nbytes / done.seconds * 1e-9);
    }
    add_hits(m, before, fs.counters());
    out.add(m);
    return spread_of(m.samples).median;
  }

  void threads(const gpufs::mount& fs, gpufs::file_number number, results& out) const {
    const auto per_thread = static_cast<std::uint32_t>(std::ceil(accesses_ / static_cast<double>(how_.threads())));
    const std::uint64_t total = how_.threads() * per_thread, nelements = nbytes_ / 4;
    measurement m{"hot_thread", "a random 4-byte element a thread", {}, "G accesses/s"};
    m.figure = measurement::kind::itself;
    m.verified = true;
    const gpufs::mount_counters before = fs.counters();
    for (int r = 0; r <= repeats_; ++r) {
      const std::uint64_t seed = word_of(static_cast<std::uint64_t>(r) + 2000);
      const std::uint64_t expected = sum_of_elements(total, seed, nelements);
      const checked_run done = run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
        return read_elements{fs.ref(), number, nelements, seed, per_thread, sum, failed};
      });
      m.verified = m.verified && done.right;
      if (r > 0) m.samples.push_back(static_cast<double>(total) / done.seconds * 1e-9);
    }
    add_hits(m, before, fs.counters());
    out.add(m);
  }

  // Large pages: fewer look-ups a byte, so fewer warps, with registers for all eight loads in flight.
  static constexpr unsigned blocks_for_64k = 4;
  shape how_;
  int repeats_;
  shape how_64k_;
  std::uint64_t nbytes_;
  double reads_, accesses_;
  std::string folder_;
  std::vector<std::uint64_t> sums_;
  std::uint64_t total_ = 0, page_sum_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("hot", [&] {
    arguments args(argc, argv, "hot  --dir DIR  --file-gib N  --blocks-per-sm N  --warps N  --reads N  --accesses N", on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {4, 0.25, 1. / 1024}) / (64 << 10) * (64 << 10);
    hot bench(args, machine, folder.path(), nbytes);
    results out("hot", args, machine);
    bench.make_files();
    const double memory_gbps = measure_memory_read(out, machine, nbytes).median;
    bench.run_pages(4096, out, args, memory_gbps);
    if (args.wants("hot_64k")) bench.run_pages(65536, out, args, memory_gbps);
    return out.finish();
  });
}
