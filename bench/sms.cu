// SPDX-License-Identifier: Apache-2.0
// How misses and hits grow with the number of SMs: cold_4k's and hot_4k's kernels through map_page, one large block (24 warps) on
// each of 1 to all SMs. `sms_used` says on how many SMs the blocks really ran.
#include <memory>

#include "access.hpp"
#include "gpufs/store/auto_store.hpp"

namespace {

using namespace bench;

// Notes which SM a block ran on.
template <class Kernel>
struct noting {
  Kernel kernel;
  std::uint32_t* ran_on;  // an element an SM

  GPUFS_DEVICE void operator()() const {
    if (gpufs::simt::thread_rank() == 0) {
      atomic_ref<std::uint32_t>(ran_on[gpufs::simt::processor_id() % 1024]).store(1, std::memory_order_relaxed);
    }
    kernel();
  }
};

class spread_over_sms {
 public:
  template <class Kernel>
  double operator()(const shape& how, const Kernel& kernel) {
    const device_array<std::uint32_t> ran_on(1024);
    const double seconds = run_large_blocks(how, noting<Kernel>{kernel, ran_on.get()});
    used_ = 0;
    for (const std::uint32_t one : ran_on.read()) used_ += one;
    return seconds;
  }
  unsigned used() const { return used_; }

 private:
  unsigned used_ = 0;
};

measurement scaling(const char* name, unsigned nsms, double ceiling, const char* ceiling_is) {
  return {name, std::to_string(nsms) + (nsms == 1 ? " SM" : " SMs"), {}, "GB/s", ceiling, ceiling_is};
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("sms", [&] {
    arguments args(argc, argv, "sms  --dir DIR  --cold-gib N  --hot-gib N  --reads N  --chunks N", on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t cold_nbytes = args.nbytes("cold-gib", {8, 1, 4. / 1024}) / 65536 * 65536;
    const std::uint64_t hot_nbytes = args.nbytes("hot-gib", {2, 0.25, 1. / 1024}) / 65536 * 65536;
    const double reads = args.number("reads", {16e3, 4e3, 32}), chunks = args.number("chunks", {40e3, 8e3, 32});  // an SM
    const int repeats = static_cast<int>(args.number("repeats", {3, 2, 1}));
    std::vector<unsigned> sms;
    for (const unsigned n : {1u, 2u, 4u, 8u, 16u, 33u, 66u}) {
      if (n < machine.nprocessors) sms.push_back(n);
    }
    sms.push_back(machine.nprocessors);
    results out("sms", args, machine);
    const double copy = measure_copy(out, pinned_memory{}).median;
    const double memory = measure_memory_read(out, machine, hot_nbytes).median;
    make_file(folder.path() + "/cold", cold_nbytes);
    make_file(folder.path() + "/hot", hot_nbytes);
    const auto files = std::make_shared<gpufs::store::auto_store>(gpufs::simt::this_platform(), folder.path(),
                                                                  cold_nbytes + hot_nbytes + (1u << 30));
    gpufs::mount_options options = short_waits();
    options.custom_store = files;
    if (args.wants("cold_4k_by_sms")) {
      options.cache_nbytes =
          std::max<std::uint64_t>(cold_nbytes / 8, std::uint64_t{machine.nprocessors} * large_block / 32 * 4096 * 4);
      const gpufs::mount fs(folder.path(), options);
      fs.prepare("cold");
      const host_file file(fs, "cold");
      spread_over_sms launch;
      // Full before the small grids, which would fill it for long.
      measure_random<way::map_page>(fs, file.ref().number(), {machine.nprocessors, large_block}, cold_nbytes / 4096,
                                    2. * static_cast<double>(options.cache_nbytes) / 4096, 0, launch);
      for (const unsigned n : sms) {
        const random_reads got = measure_random<way::map_page>(fs, file.ref().number(), {n, large_block}, cold_nbytes / 4096,
                                                               reads * std::min(n, 40u), repeats, launch, n);
        measurement m = scaling("cold_4k_by_sms", n, copy, "pinned copy");
        m.samples = times(got.missed, 4096e-9);
        m.verified = got.right;
        m.details = {{"sms", n}, {"sms_used", launch.used()}};
        out.add(m);
      }
    }
    if (args.wants("hot_4k_by_sms")) {
      options.cache_nbytes = hot_nbytes * 2;
      options.internals.nrings = on_gpu ? 0 : 1;  // so few warps start at few rings
      const gpufs::mount fs(folder.path(), options);
      fs.prepare("hot");
      const host_file file(fs, "hot");
      const std::vector<std::uint64_t> sums = piece_sums(chunk_nbytes, hot_nbytes / chunk_nbytes);
      std::uint64_t whole = 0;
      for (const std::uint64_t s : sums) whole += s;
      const shape all{machine.nprocessors * 4, on_gpu ? 256 : large_block};
      for (int round = 0; round < 2; ++round) {
        const checked_run filled = run_checked(all, whole, [&](std::uint64_t* sum, std::uint64_t* failed) {
          return read_all{fs.ref(), file.ref().number(), hot_nbytes / 4096, 4096, sum, failed};
        });
        if (!filled.right) throw gpufs::error("the file does not read as it was written");
      }
      spread_over_sms launch;
      for (const unsigned n : sms) {
        const shape how{n, large_block};
        const auto per_warp = static_cast<std::uint32_t>(std::ceil(chunks * n / static_cast<double>(how.warps())));
        const std::uint64_t total = how.warps() * per_warp;
        measurement m = scaling("hot_4k_by_sms", n, memory, "sequential read of device memory");
        m.verified = true;
        const std::uint64_t before = fs.counters().faults;
        for (int r = 0; r <= repeats; ++r) {
          const chunk_access<pattern::uniform> access{hot_nbytes / chunk_nbytes, word_of(5000 + static_cast<std::uint64_t>(r))};
          const std::uint64_t expected = expected_sum(access, total, sums);
          const checked_run done = run_checked(
              how, expected,
              [&](std::uint64_t* sum, std::uint64_t* failed) {
                return read_chunks<pattern::uniform>{fs.ref(), file.ref().number(), access, per_warp, sum, failed};
              },
              launch);
          m.verified = m.verified && done.right;
          if (r > 0) m.samples.push_back(static_cast<double>(total) * chunk_nbytes / done.seconds * 1e-9);
        }
        m.details = {{"sms", n}, {"sms_used", launch.used()}, {"faults", static_cast<double>(fs.counters().faults - before)}};
        out.add(m);
      }
    }
    return out.finish();
  });
}
