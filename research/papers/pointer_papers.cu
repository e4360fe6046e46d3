// SPDX-License-Identifier: Apache-2.0
// The tables and figures of ActivePointers (ISCA'16, section VI-A to VI-D), remade: gpufs::ptr, which is the paper's long layout
// without a TLB, beside the short layout and a TLB for each block (pointer_variants.hpp). Each case has the paper's value in its
// details: `paper` is held against the figure, and paper_measured and paper_base are what it is made of, where the text has them.
//
// ap_table_1: one warp, cycles of a 4-byte read, an increment, and both; the paper's best row for each (prefetching; for the
// increment the compiler's). Its last column checks permissions, which here are in the type. ap_table_2: each warp copies 1 MiB,
// held against the driver's copy, with a raw kernel beside it. The paper's pointers faulted nowhere there; with pages of 2 MiB a
// warp faults once or twice, with pages of 4 KiB 256 times. ap_table_3: each warp touches 512 pages, against map_page (the paper's
// gmmap), when they are in the cache, and when the cache is a 24th of the file. ap_figure_6a, 6b: eight workloads with 4 and 16
// bytes a read, in pages of 2 MiB, by blocks; _untiled: against raw loops that are not unrolled. 6c: in pages of 4 KiB and against
// map_page, 4 bytes a read; 6c_16: the same with 16, of which the paper gives the mean only. ap_figure_7: one block, whose warps
// each link page after page out of those that the block shares, by their number and by the entries of the TLB. The paper's value of
// 6c and 6c_16 is without its FFT.
#include "bench/pointer_runs.hpp"
#include "research/baselines/pointer_variants.hpp"

namespace {

using namespace bench;

using long_no_tlb = mapped_file;
using short_no_tlb = mapped_variant<layout::short_ptr>;
template <unsigned Entries>
using long_tlb = mapped_variant<layout::long_ptr, tlb_access<Entries>>;
template <unsigned Entries>
using short_tlb = mapped_variant<layout::short_ptr, tlb_access<Entries>>;
inline constexpr unsigned papers_entries = 32;

// The warps of a block read 128 bytes of their own of each of 32 pages a round, out of the first npages (a power of 2) of the file.
template <class Source>
struct share_pages {
  static constexpr std::uint32_t per_round = 32;
  Source from;
  std::uint32_t npages, page_nbytes;
  std::uint32_t nrounds;  // of which the first warms up
  std::uint64_t* cycles;  // a warp
  std::uint64_t* sum;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint32_t first = gpufs::simt::warp_rank() * per_round;
    auto p = from.template at<std::uint32_t>(0);
    p += gpufs::simt::thread_rank();
    std::uint32_t page = 0;
    std::uint64_t mine = 0, start = 0;
    gpufs::this_block().sync();
    for (std::uint32_t i = 0; i < nrounds * per_round; ++i) {
      if (i == per_round) start = ticks();
      const std::uint32_t next = (first + i % per_round) % npages;
      p += (static_cast<std::int64_t>(next) - page) * (page_nbytes / 4);
      page = next;
      mine += *p;
    }
    if (warp.leader()) cycles[gpufs::simt::warp_rank()] = ticks() - start;
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

class papers : public pointer_runs {
 public:
  using pointer_runs::pointer_runs;

  void table_1(results& out) const {
    const chased_file chased(*this);
    for (const std::uint32_t span : {large_page, small_page}) {
      follow<step::read>("read", {271, 225}, span, chased, out);
      if (span == large_page) follow<step::increment>("increment", {152, 32}, span, chased, out);
      follow<step::read_and_increment>("read and increment", {423, 257}, span, chased, out);
    }
  }

  void in_large_pages(results& out) const {
    const filled_memory memory(*this);
    const filled_cache cache(*this, large_page);
    if (args_.wants("ap_table_2")) copies("pages of 2 MiB", true, memory.raw, cache, out);
    const raw_memory& raw = memory.raw;
    if (args_.wants("ap_figure_6a")) {
      workloads<std::uint32_t>(out, {}, cache.mapped, baseline<raw_memory>{"ap_figure_6a", raw},
                               baseline<untiled_raw_memory>{"ap_figure_6a_untiled", {raw}});
    }
    if (args_.wants("ap_figure_6b")) {
      workloads<gpufs::simt::vec16>(out, {{"paper", 0.20}}, cache.mapped, baseline<raw_memory>{"ap_figure_6b", raw},
                                    baseline<untiled_raw_memory>{"ap_figure_6b_untiled", {raw}});
    }
  }

  void in_small_pages(results& out) const {
    const filled_cache cache(*this, small_page);
    const called_file called{cache.fs.ref(), cache.file.ref().number(), small_page};
    if (args_.wants("ap_table_2")) {
      const filled_memory memory(*this);
      copies("pages of 4 KiB", false, memory.raw, cache, out);
    }
    if (args_.wants("ap_table_3")) {
      faults("minor faults", repeats_, minor_pages_, {0.13, 0.24, 0.20}, called, cache.mapped, out);
    }
    if (args_.wants("ap_figure_6c")) {
      workloads<std::uint32_t>(out, {{"paper", 0.16}}, cache.mapped, baseline<called_file>{"ap_figure_6c", called});
      workloads<gpufs::simt::vec16>(out, {{"paper", 0.09}}, cache.mapped, baseline<called_file>{"ap_figure_6c_16", called});
    }
    if (args_.wants("ap_figure_7")) shared_pages(cache.mapped, out);
  }

  void major(results& out) const {
    const gpufs::mount fs = make_mount(small_page, std::max<std::uint64_t>(nbytes_ / 24, 1u << 20), "data");
    const host_file file(fs, "data");
    const auto per_warp = std::min(minor_pages_, part_nbytes(nbytes_, full_, copy_part * 2) / small_page);
    faults("major faults", std::min(repeats_, 3), per_warp, {0, 0, 0}, called_file{fs.ref(), file.ref().number(), small_page},
           {fs.ref(), file.ref().number()}, out);
  }

 private:
  // What the paper measured, and what it held that against.
  struct papers_value {
    double measured, base;
  };
  static void add_paper(measurement& m, const papers_value& paper, double figure) {
    m.details.insert(m.details.end(), {{"paper", figure}, {"paper_measured", paper.measured}, {"paper_base", paper.base}});
  }

  template <step Step>
  void follow(const std::string& what, const papers_value& paper, std::uint32_t span, const chased_file& chased,
              results& out) const {
    bool right = true;
    const auto taken = time_steps<Step>(span, right, chased.raw, chased.mapped, short_no_tlb{chased.mapped});
    const bool as_paper = span == large_page;  // which reads from the second-level cache
    const std::string level = Step == step::increment ? "" : as_paper ? ", second-level cache" : ", first-level cache";
    for (const std::size_t variant : {1, 2}) {
      measurement m{"ap_table_1", what + level + (variant == 1 ? ": long pointer" : ": short pointer"), {}, "cycles"};
      extra_over(m, taken[variant], taken[0], "raw pointer");
      if (as_paper && variant == 1) add_paper(m, paper, paper.measured / paper.base - 1);
      m.verified = right;
      out.add(m);
    }
  }

  void copies(const std::string& where, bool with_raw, const raw_memory& raw, const filled_cache& cache, results& out) const {
    const auto one = [&]<class T>(T, const papers_value& paper) {
      bool right = true;
      const gpufs::mount_counters before = cache.fs.counters();
      const auto taken = time_copies<T>(right, copied_memory{raw}, raw, cache.mapped, short_no_tlb{cache.mapped});
      const gpufs::mount_counters after = cache.fs.counters();
      const std::array<const char*, 4> names{"", "raw pointer", "long pointer", "short pointer"};
      for (std::size_t i = with_raw ? 1 : 2; i < names.size(); ++i) {
        measurement m{"ap_table_2", std::to_string(sizeof(T)) + " bytes a lane, " + (i == 1 ? "" : where + ", ") + names[i],
                      taken[i], "GB/s"};
        m.ceiling = spread_of(taken[0]).median;
        m.ceiling_is = "the driver's copy";
        m.verified = right;
        if (i > 1) add_hits(m, before, after);  // of both layouts together
        if (with_raw && i == 2) add_paper(m, paper, paper.measured / paper.base);
        out.add(m);
      }
    };
    one(std::uint32_t{}, {99.7, 152});
    one(std::uint64_t{}, {148.7, 152});
  }

  // paper: of long pointers without a TLB, and of long and short ones with one.
  void faults(const std::string& what, int repeats, std::uint32_t per_warp, const std::array<double, 3>& paper,
              const called_file& called, const mapped_file& mapped, results& out) const {
    bool right = true;
    const auto launch = [](const shape& how, const auto& kernel) { return run_full_blocks(how, kernel); };
    const auto taken = time_pages(full_, repeats, per_warp, right, launch, called, mapped, long_tlb<papers_entries>{mapped},
                                  short_tlb<papers_entries>{mapped}, short_no_tlb{mapped});
    const std::array<const char*, 5> names{"", "long pointers, no TLB", "long pointers, TLB", "short pointers, TLB",
                                           "short pointers, no TLB"};
    for (std::size_t i = 1; i < names.size(); ++i) {
      measurement m{"ap_table_3", what + ": " + names[i], {}, "ns a page, all warps together"};
      extra_over(m, taken[i], taken[0], "map_page and unmap_page");
      if (i <= paper.size()) m.details = {{"paper", paper[i - 1]}};
      m.verified = right;
      out.add(m);
    }
  }

  void shared_pages(const mapped_file& mapped, results& out) const {
    const shape how{1, full_block};
    const auto nwarps = static_cast<std::uint32_t>(how.warps());
    constexpr std::uint32_t nrounds = on_gpu ? 17 : 3, per_round = share_pages<mapped_file>::per_round;
    for (std::uint32_t npages = 2; npages <= nwarps * per_round; npages *= 2) {
      std::uint64_t expected = 0;
      for (std::uint32_t i = 0; i < nwarps * per_round; ++i) {
        expected += nrounds * sum_of_elements(std::uint64_t{i % npages} * small_page + i / per_round * 128, 32);
      }
      bool right = true;
      const auto cycles = [&](const auto& source) {
        const device_array<std::uint64_t> taken(nwarps), sum(1);
        run_full_blocks(how,
                        share_pages<std::decay_t<decltype(source)>>{source, npages, small_page, nrounds, taken.get(), sum.get()});
        right = right && sum.read_one() == expected;
        double total = 0;
        for (const std::uint64_t one : taken.read()) total += static_cast<double>(one);
        return total / (nwarps * (nrounds - 1) * per_round);
      };
      const auto taken = in_turn(
          repeats_, [&](int) { return cycles(mapped); }, [&](int) { return cycles(long_tlb<16>{mapped}); },
          [&](int) { return cycles(long_tlb<32>{mapped}); }, [&](int) { return cycles(long_tlb<64>{mapped}); });
      const std::array<unsigned, 4> entries{0, 16, 32, 64};
      for (std::size_t i = 0; i < entries.size(); ++i) {
        measurement m{"ap_figure_7",
                      std::to_string(npages) + " pages, " + (i == 0 ? "no TLB" : "TLB of " + std::to_string(entries[i])), taken[i],
                      "cycles a page"};
        m.figure = measurement::kind::itself;
        m.details = {{"pages", npages}, {"tlb_entries", entries[i]}};
        m.verified = right;
        out.add(m);
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("pointer_papers", [&] {
    arguments args(argc, argv, "pointer_papers  --dir DIR  --file-gib N  --minor-pages N  --blocks-per-sm N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {9, 1, 4. / 1024}) / (2u << 20) * (2u << 20);
    papers bench(args, machine, folder.path(), nbytes);
    results out("pointer_papers", args, machine);
    bench.make_files();
    make_factors();
    if (args.wants("ap_table_1")) bench.table_1(out);
    if (args.wants_any({"ap_table_2", "ap_figure_6a", "ap_figure_6b"})) bench.in_large_pages(out);
    if (args.wants_any({"ap_table_2", "ap_table_3", "ap_figure_6c", "ap_figure_7"})) bench.in_small_pages(out);
    if (args.wants("ap_table_3")) bench.major(out);
    return out.finish();
  });
}
