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
// misses, those that found the page on its way, which are all that such grouping could spare. ap_faults_by_block: the same question
// for mixes of cold pages that the 8 warps of a block want, one each a step: distinct ones, ones drawn from 12, or one for all; the
// cache evicts all the time, and each page is read whole. The block finds out which of its warps want the same pages, one warp
// brings each page in, and after a barrier all read theirs; against each warp for itself. in_step_gbps: each for itself, with one
// barrier a step. ap_gather: every thread reads random 8-byte elements p[i], as hot_thread in bench/hot.cu; ap_gather_limit holds
// it against a kernel that makes the same accesses to memory; _four: four at a time by p.gather. ap_registers: what a pointer adds
// to the copy kernels, with the same launch bounds; the worst of the three.
#include "pointer_parts.hpp"

namespace {

using namespace bench;
using gpufs::simt::vec16;

class pointers : public pointer_runs {
 public:
  using pointer_runs::pointer_runs;

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
    if (args_.wants("ap_minor")) minor("ap_minor", cache, mapped, out);
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
    if (args.wants("ap_registers")) bench.registers(out);
    if (args.wants_any({"ap_read_latency", "ap_read_inc_latency", "ap_read_latency_l1", "ap_read_inc_latency_l1"}))
      bench.latency(out);
    if (args.wants_any({"ap_copy_4", "ap_copy_8", "ap_copy_16", "ap_minor"})) bench.hits(out);
    measure_workloads_4(bench, out);
    measure_workloads_16(bench, out);
    measure_faults(bench, args, out);
    return out.finish();
  });
}
