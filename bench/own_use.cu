// SPDX-License-Identifier: Apache-2.0
// Would gpufs gain by using its own data-parallel operations (gpufs/par) inside? Tried beside what it does; nothing here is
// bounded.
//
// par_regroup: every thread reads 8-byte elements of a file in memory through a pointer, drawn by Zipf's law (0.99) or evenly, with
// a cache of an eighth of the file. As it is, the lanes of a warp that miss are grouped by page. Against that a block groups all of
// its threads: it sorts the pages that they want, so that warps have lanes that want the same ones, reads, and gives the elements
// back through shared memory ("dynamic warp formation" with an equal page in place of an equal place in the program).
// par_rendezvous: frames for n lanes at once, n from 2^10 to 2^16 of 2^18: by a rendezvous of all blocks of a launch, as times as
// fast as by the page cache's allocation rings, lane by lane. What each has given must be n frames, no two of them the same.
#include <algorithm>
#include <numeric>

#include "access.hpp"
#include "gpufs/par/rendezvous.hpp"
#include "gpufs/par/sort.hpp"
#include "gpufs/store/nil_store.hpp"
#include "rows.hpp"

namespace {

using namespace bench;

// --- Faults ------------------------------------------------------------------------------------------------------------------

constexpr unsigned most_block = 256;
constexpr std::uint32_t page_nbytes = 4096, page_n = page_nbytes / 8;

struct regrouped {
  std::uint32_t pages[most_block], pages_space[most_block], threads[most_block], threads_space[most_block];
  std::uint64_t values[most_block];
};

template <bool ByBlock>
struct read_drawn {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  const std::uint32_t* elements;  // of each block and step, one a thread
  std::uint32_t nsteps;
  std::uint64_t *sum, *failed;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const auto warp = gpufs::this_warp();
    const auto p = gpufs::map<const std::uint64_t>(warp, gpufs::file(fs, number));
    std::uint64_t mine = 0;
    for (std::uint32_t s = 0; s < nsteps; ++s) {
      const std::uint32_t* const wanted = elements + (std::uint64_t{gpufs::simt::block_rank()} * nsteps + s) * block.size();
      if constexpr (ByBlock) {
        auto& all = gpufs::simt::shared<regrouped>();
        all.pages[block.rank()] = wanted[block.rank()] / page_n;
        all.threads[block.rank()] = block.rank();
        block.sync();
        gpufs::par::sort(block, all.pages, all.threads, block.size(), all.pages_space, all.threads_space);
        block.sync();
        const std::uint32_t who = all.threads[block.rank()];
        all.values[who] = p[static_cast<std::ptrdiff_t>(wanted[who])];
        block.sync();
        mine += all.values[block.rank()];
      } else {
        mine += p[static_cast<std::ptrdiff_t>(wanted[block.rank()])];
      }
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
    if (p.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

class regroup {
 public:
  regroup(const std::string& folder, std::uint64_t nbytes, const shape& small, double nreads, int repeats, results& out)
      : n_(nbytes / 8),
        small_(small),
        nreads_(nreads),
        repeats_(repeats),
        out_(out),
        fs_(folder, options(nbytes)),
        file_(fs_, "data") {
    fs_.prepare("data");  // so that no side waits for windows that are registered meanwhile
  }

  template <class Draw>
  void measure(const std::string& law, const Draw& draw) const {
    for (const unsigned grid : {small_.grid, std::max(1u, std::min(8u, small_.grid / 2))}) {
      const double reads = grid == small_.grid ? nreads_ : nreads_ / 16;
      const auto nsteps = static_cast<std::uint32_t>(std::max(1., reads / (static_cast<double>(grid) * small_.block)));
      measurement m{"par_regroup", law + ", " + std::to_string(grid) + " blocks", {}, "M elements/s"};
      std::vector<double> alone;
      m.verified = true;
      for (int r = 0; r <= repeats_; ++r) {
        const double by_warps = run_once<false>(grid, nsteps, draw, m.verified),
                     by_block = run_once<true>(grid, nsteps, draw, m.verified);
        if (r == 0) continue;
        alone.push_back(by_warps);
        m.samples.push_back(by_block);
      }
      m.ceiling = spread_of(alone).median;
      m.ceiling_is = "each warp groups its own lanes";
      out_.add(m);
    }
  }

 private:
  static gpufs::mount_options options(std::uint64_t nbytes) {
    gpufs::mount_options o = short_waits();
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = std::max<std::uint64_t>(nbytes / 8, 4 << 20);
    o.pin_nbytes = nbytes + (1u << 30);
    return o;
  }
  template <bool ByBlock, class Draw>
  double run_once(unsigned grid, std::uint32_t nsteps, const Draw& draw, bool& right) const {
    const std::uint64_t n = std::uint64_t{grid} * nsteps * small_.block, from = drawn_;
    drawn_ += n;
    std::vector<std::uint32_t> elements(n);
    const std::uint64_t sum = sum_in_parallel(n, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t part = 0;
      for (std::uint64_t i = begin; i < end; ++i) part += word_of(elements[i] = static_cast<std::uint32_t>(draw(from + i)));
      return part;
    });
    const device_array<std::uint32_t> on_device{std::span<const std::uint32_t>(elements)};
    const checked_run done = run_checked({grid, small_.block}, sum, [&](std::uint64_t* to, std::uint64_t* failed) {
      return read_drawn<ByBlock>{fs_.ref(), file_.ref().number(), on_device.get(), nsteps, to, failed};
    });
    right = right && done.right;
    return static_cast<double>(n) / done.seconds * 1e-6;
  }

  std::uint64_t n_;
  shape small_;
  double nreads_;
  int repeats_;
  results& out_;
  gpufs::mount fs_;
  host_file file_;
  mutable std::uint64_t drawn_ = 0;
};

// --- Frames ------------------------------------------------------------------------------------------------------------------

using pages_type = gpufs::cache::page_cache<>;

struct take_frames {
  gpufs::cache::cache_layout cache;
  std::uint64_t n;
  std::uint32_t* got;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    if (me >= n) return;
    const auto ring = gpufs::simt::processor_id() * 29 + static_cast<std::uint32_t>(me);
    const auto frame = gpufs::simt::call_cold(&pages_type::take_frame, &cache, ring, std::uint64_t{1'000'000'000});
    got[me] = frame.what == pages_type::role::fill ? static_cast<std::uint32_t>(frame.frame) : ~0u;
  }
};
struct give_frames_back {
  gpufs::cache::cache_layout cache;
  std::uint64_t n;
  const std::uint32_t* got;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    if (me < n && got[me] != ~0u) pages_type(cache).unpin(gpufs::cache::frame_index{got[me]});
  }
};
struct meet {
  const std::uint8_t* wants;
  std::uint64_t n;
  std::uint8_t* is_free;
  std::uint64_t nframes;
  std::uint32_t* got;
  gpufs::par::scan_space space;
  GPUFS_DEVICE void operator()() const { gpufs::par::rendezvous(gpufs::simt::this_grid(), wants, n, is_free, nframes, got, space); }
};

void measure_frames(std::uint64_t nframes, int repeats, results& out) {
  gpufs::mount_options options = short_waits();
  options.page_nbytes = page_nbytes;
  options.cache_nbytes = nframes * page_nbytes;
  options.custom_store = std::make_shared<gpufs::store::nil_store>(page_nbytes);
  const gpufs::mount fs(".", options);
  const gpufs::cache::cache_layout cache = gpufs::mount_inside(fs).layout().cache;
  constexpr unsigned threads = on_gpu ? 256 : 64, blocks = on_gpu ? 4 : 1;
  const unsigned grid = most_together<threads, blocks>(meet{});
  const std::uint64_t nbytes = gpufs::par::scan_space::nbytes_to_meet(nframes, nframes, 4, grid, threads);
  const device_array<std::byte> space(nbytes);
  const device_array<std::uint32_t> got(nframes);
  const std::vector<std::uint8_t> ones(nframes, 1);
  const device_array<std::uint8_t> wants{std::span<const std::uint8_t>(ones)}, is_free(nframes);
  for (std::uint64_t n = 1u << 10; n <= nframes / 2; n *= 8) {
    measurement m{"par_rendezvous", std::to_string(n) + " frames of " + std::to_string(nframes), {}, "M frames/s"};
    std::vector<double> by_rings;
    m.verified = true;
    for (int r = 0; r <= repeats; ++r) {
      const shape lanes{static_cast<unsigned>((n + threads - 1) / threads), threads};
      const double rings = run(lanes, take_frames{cache, n, got.get()});
      m.verified = m.verified && are_distinct(got.read(), n, nframes);
      run(lanes, give_frames_back{cache, n, got.get()});
      is_free.write(std::span<const std::uint8_t>(ones));
      const meet kernel{wants.get(), n, is_free.get(), nframes, got.get(), {space.get(), nbytes}};
      const double meets = run_together<threads, blocks>({grid, threads}, kernel);
      m.verified = m.verified && are_distinct(got.read(), n, nframes);
      if (r == 0) continue;
      by_rings.push_back(static_cast<double>(n) / rings * 1e-6);
      m.samples.push_back(static_cast<double>(n) / meets * 1e-6);
    }
    m.ceiling = spread_of(by_rings).median;
    m.ceiling_is = "the allocation rings, lane by lane";
    out.add(m);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("own_use", [&] {
    arguments args(argc, argv, "own_use  --dir DIR  --gib N  --reads N  --frames N  --blocks-per-sm N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    shape small = grid_of(machine, args);
    small.block = std::min(small.block, most_block);
    const std::uint64_t nbytes = args.nbytes("gib", {4, 0.25, 1. / 64}) / page_nbytes * page_nbytes;
    const double nreads = args.number("reads", {4e6, 5e5, 2e4});
    const auto nframes = static_cast<std::uint64_t>(args.number("frames", {1u << 18, 1u << 16, 1u << 12}));
    const int repeats = repeats_of(args);
    const work_folder folder(args.path("dir", "/dev/shm"));
    results out("own_use", args, machine);
    if (args.wants("par_regroup")) {
      make_file(folder.path() + "/data", nbytes);
      const regroup of(folder.path(), nbytes, small, nreads, repeats, out);
      const std::uint64_t n = std::bit_floor(nbytes / 8);
      const zipf ranks(n);
      const shuffled scattered(n, 7);
      of.measure("Zipf 0.99", [&](std::uint64_t i) { return static_cast<std::uint64_t>(scattered(ranks(word_of(i)))); });
      of.measure("evenly", [&](std::uint64_t i) { return scaled(word_of(~i), n); });
    }
    if (args.wants("par_rendezvous")) measure_frames(nframes, repeats, out);
    return out.finish();
  });
}
