// SPDX-License-Identifier: Apache-2.0
// What could be gained if the warps of a block that miss pages brought them in together (bench/pointers.cu).
#pragma once
#include "cold_runs.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// A mix of pages that the warps of a block want, one each a step: they draw from so many pages that nobody has read before, or take
// one each.
struct wanted_pages {
  std::uint64_t first, npages;  // how many pages were given to steps before; of the file
  std::uint32_t nsteps, of_step;
  bool draws;

  GPUFS_HOST_DEVICE std::uint64_t page(std::uint64_t block, std::uint32_t step, std::uint32_t warp) const {
    constexpr std::uint64_t spread = 2654435761;  // a prime: all pages come before one comes again
    const std::uint64_t begin = first + (block * nsteps + step) * of_step;
    const std::uint64_t i = begin + (draws ? scaled(word_of(begin * 32 + warp), of_step) : warp);
    return i % npages * spread % npages;
  }
};

// How the warps of a block come to their pages: each as it goes; the same, but they meet before each step, as those must that bring
// pages in together; or together: the first warp that wants a page brings it in, and those that want it, too, read it after
// all have met again. No warp has more than one page to bring in, as each wants one.
enum class fault_way { alone, in_step, together };

struct pages_of_warps {
  std::uint64_t of[32];
};

template <fault_way How>
struct fault_in_mix {
  mapped_file from;
  wanted_pages wanted;
  std::uint64_t *sum, *failed;

  GPUFS_DEVICE void operator()() const {
    constexpr std::uint32_t nwords = 4096 / 8;
    const auto block = gpufs::this_block();
    const auto warp = gpufs::this_warp();
    const std::uint32_t me = gpufs::simt::warp_rank();
    auto p = from.template at<std::uint64_t>(0);
    std::uint64_t mine = 0;
    for (std::uint32_t s = 0; s < wanted.nsteps; ++s) {
      const std::uint64_t page = wanted.page(gpufs::simt::block_rank(), s, me);
      p += static_cast<std::int64_t>(page * nwords) - p.offset() / 8;
      if constexpr (How == fault_way::in_step) block.sync();
      if constexpr (How == fault_way::together) {
        auto& pages = gpufs::simt::shared<pages_of_warps>();
        if (warp.leader()) pages.of[me] = page;
        block.sync();
        const bool is_anothers = warp.any(lane_id() < me && pages.of[lane_id()] == page);
        if (!is_anothers) p.fault_in();  // and holds it, so that the others find it
        block.sync();                    // also before anybody writes the next page
      }
      for (std::uint32_t w = lane_id(); w < nwords; w += 32) mine += p[w];  // what is not to be had reads as zeros
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
    if (p.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

class block_fault_runs : public cold_runs {
 public:
  explicit block_fault_runs(const cold_runs& runs) : cold_runs(runs) {}

  // ap_major_by_block
  void same_pages(results& out) const {
    // Room for a page of each lane, which their pointers pin.
    const gpufs::mount fs = make_mount(small_page, std::max<std::uint64_t>(nbytes_ / 8, 1u << 20), "data");
    const host_file file(fs, "data");
    want_whole_pages(fs, file.ref().number());
    const mapped_file from{fs.ref(), file.ref().number()};
    std::uint64_t nread = 0;
    for (const unsigned grid : grids()) {
      read_same<pages_of_block::one>("one page for all lanes, ", fs, from, grid, nread, out);
      read_same<pages_of_block::one_a_lane>("a page a lane, ", fs, from, grid, nread, out);
    }
  }

  // ap_faults_by_block
  void mixes(results& out) const {
    const pulled_file pulled = pull_data(out);
    const gpufs::mount fs = make_mount(small_page, evicting_nbytes(), "data");
    const host_file file(fs, "data");
    want_whole_pages(fs, file.ref().number());
    const faulted_file data{fs, {fs.ref(), file.ref().number()}, piece_sums(small_page, nbytes_ / small_page), pulled.pages};
    const std::uint32_t nwarps = small_.block / 32;
    std::uint64_t nread = 0;
    const auto mix = [&](const std::string& label, unsigned grid, std::uint32_t of_step, bool draws) {
      // Of the pages drawn from, about half are read.
      const double steps = pages_a_launch(grid) / grid / (of_step > nwarps ? of_step / 2. : of_step);
      const wanted_pages wanted{0, nbytes_ / small_page, static_cast<std::uint32_t>(std::ceil(steps)), of_step, draws};
      read_mix(label, data, grid, wanted, nread, out);
    };
    for (const unsigned grid : grids()) {
      mix("distinct pages", grid, nwarps, false);
      const std::uint32_t few = nwarps + (nwarps + 1) / 2;
      mix("drawn from " + std::to_string(few) + " pages", grid, few, true);
      mix("one page", grid, 1, true);
    }
  }

 private:
  // Few blocks wait for their pages; many wait for the bus.
  std::array<unsigned, 2> grids() const { return {small_.grid, std::max(std::min(small_.grid / 2, 8u), 1u)}; }
  double pages_a_launch(unsigned grid) const { return std::max(launch_nbytes_ / (grid == small_.grid ? 4 : 64) / small_page, 64.); }

  struct block_faults {
    std::vector<double> gbps;
    bool right = true;
    gpufs::mount_counters counted{};

    double met_a_fill() const {
      const auto misses = static_cast<double>(counted.faults + counted.waits);
      return misses > 0 ? static_cast<double>(counted.waits) / misses : 0;
    }
  };
  struct faulted_file {
    const gpufs::mount& fs;
    mapped_file from;
    std::vector<std::uint64_t> page_sums;
    double pulled;  // pages a second; 0: not known
  };
  struct mix_faults : block_faults {
    std::vector<double> brought;  // pages a second
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
  void read_same(const std::string& label, const gpufs::mount& fs, const mapped_file& from, unsigned grid, std::uint64_t& nread,
                 results& out) const {
    const double pages = pages_a_launch(grid);
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

  // One launch: what all warps read, page by page. Its pages begin after nread.
  template <fault_way How>
  void fault_mix(const faulted_file& data, unsigned grid, wanted_pages wanted, std::uint64_t& nread, bool counts,
                 mix_faults& to) const {
    const std::uint32_t nwarps = small_.block / 32;
    const std::uint64_t steps = std::uint64_t{grid} * wanted.nsteps;
    wanted.first = nread;
    nread += steps * wanted.of_step;
    const std::uint64_t expected = sum_in_parallel(steps, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) {
        for (std::uint32_t w = 0; w < nwarps; ++w)
          sum += data.page_sums[wanted.page(i / wanted.nsteps, static_cast<std::uint32_t>(i % wanted.nsteps), w)];
      }
      return sum;
    });
    const gpufs::mount_counters before = data.fs.counters();
    const checked_run done = run_checked({grid, small_.block}, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
      return fault_in_mix<How>{data.from, wanted, sum, failed};
    });
    to.right = done.right && to.right;
    if (!counts) return;
    const gpufs::mount_counters d = difference(data.fs.counters(), before);
    to.gbps.push_back(static_cast<double>(steps * nwarps) * small_page / done.seconds * 1e-9);
    to.brought.push_back(static_cast<double>(d.faults) / done.seconds);
    to.counted += d;
  }

  void read_mix(const std::string& label, const faulted_file& data, unsigned grid, const wanted_pages& wanted, std::uint64_t& nread,
                results& out) const {
    mix_faults alone, in_step, together;
    for (int r = 0; r <= std::min(repeats_, 5); ++r) {
      fault_mix<fault_way::alone>(data, grid, wanted, nread, r > 0, alone);
      fault_mix<fault_way::in_step>(data, grid, wanted, nread, r > 0, in_step);
      fault_mix<fault_way::together>(data, grid, wanted, nread, r > 0, together);
    }
    measurement m{"ap_faults_by_block", label + ", " + std::to_string(grid) + (grid == 1 ? " block" : " blocks"), together.gbps,
                  "GB/s"};
    m.ceiling = spread_of(alone.gbps).median;
    m.ceiling_is = "each warp for itself";
    m.verified = alone.right && in_step.right && together.right;
    m.details = {{"in_step_gbps", spread_of(in_step.gbps).median},
                 {"faults", static_cast<double>(alone.counted.faults)},
                 {"met_a_fill", alone.met_a_fill()},
                 {"faults_together", static_cast<double>(together.counted.faults)},
                 {"met_a_fill_together", together.met_a_fill()}};
    if (data.pulled > 0) {
      m.details.emplace_back("missed_share_of_pull_alone", spread_of(alone.brought).median / data.pulled);
      m.details.emplace_back("missed_share_of_pull_alone_together", spread_of(together.brought).median / data.pulled);
    }
    out.add(m);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
