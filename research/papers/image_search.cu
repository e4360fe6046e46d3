// SPDX-License-Identifier: Apache-2.0
// Figure 10 of SYSTOR'16 (section 6.2), an application of the first GPUfs (CACM'14): approximate image search. Query images are
// compared with the images of three data sets, one after another, until one matches; each is 1,024 values. By page size, with this
// library's page cache and calls by warps, and with the original design (research/baselines) and calls by blocks; and by a
// double-buffered host program, whose kernel compares alike. All of them find the same image for each query: the first that
// matches.
#include "bench/access.hpp"
#include "bench/stages.hpp"
#include "bench/written.hpp"
#include "research/baselines/original_mount.hpp"

namespace {

using namespace bench;
using gpufs::baselines::map_page;
using gpufs::baselines::original_cache;
using gpufs::baselines::original_mount;
using gpufs::baselines::pread;

// --- The images
// -------------------------------------------------------------------------------------------------------------------

constexpr std::uint32_t nsets = 3, nvalues = 1024, image_nbytes = nvalues * sizeof(float);
constexpr float matches_below = 100.0f * nvalues;  // the squared distance of images that match: on average 10 grey levels a value

struct image_number {
  std::uint32_t set, image;
};
// Some images are there twice: behind each other in a data set, where two warps meet them at once, or in the second as in the
// first. The first one is what is found.
constexpr image_number first_of(image_number i) {
  if (i.image % 10 == 9) return {i.set, i.image - 1};
  return i.set == 1 && i.image % 10 == 4 ? image_number{0, i.image} : i;
}

// The grey levels of an image, 0 to 255; of a query, an image's but for a few of them.
std::uint32_t level(image_number i, std::uint32_t v) {
  const image_number from = first_of(i);
  const std::uint64_t word = (std::uint64_t{from.set} << 32 | from.image) * (nvalues / 8) + v / 8;
  return static_cast<std::uint32_t>(word_of(word) >> (v % 8 * 8)) & 255;
}

struct query {
  bool is_somewhere;  // three of four are
  image_number like;

  query(std::uint32_t q, std::uint32_t nimages) {
    const std::uint64_t drawn = word_of(std::uint64_t{1} << 50 | q);
    is_somewhere = drawn % 4 != 3;
    like = is_somewhere ? image_number{static_cast<std::uint32_t>(drawn % 4), static_cast<std::uint32_t>(scaled(drawn, nimages))}
                        : image_number{nsets, q};
  }
  std::uint32_t level_of(std::uint32_t v) const { return level(like, v) ^ (v % 5 == 0 ? 3 : 0); }
};

std::uint64_t two_floats(std::uint32_t a, std::uint32_t b) {
  const auto bits = [](std::uint32_t x) { return std::uint64_t{std::bit_cast<std::uint32_t>(static_cast<float>(x))}; };
  return bits(a) | bits(b) << 32;
}

constexpr std::uint32_t nothing = ~0u;

// --- Comparing
// ---------------------------------------------------------------------------------------------------------------------

// A warp's query: a lane has the values 4 (32 k + lane) to 4 (32 k + lane) + 3.
struct alignas(16) four_values {
  float of[4];
};
struct warp_query {
  four_values mine[nvalues / 128];

  GPUFS_DEVICE explicit warp_query(const float* values) {
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < nvalues / 128; ++k) mine[k] = part(values, k);
  }
  GPUFS_DEVICE bool matches(const float* image) const {
    float sum = 0;
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < nvalues / 128; ++k) {
      const four_values other = part(image, k);
      for (std::uint32_t i = 0; i < 4; ++i) {
        const float d = mine[k].of[i] - other.of[i];
        sum += d * d;
      }
    }
    return gpufs::this_warp().reduce_add(sum) < matches_below;
  }

 private:
  GPUFS_DEVICE static four_values part(const float* values, std::uint32_t k) {
    return reinterpret_cast<const four_values*>(values)[k * 32 + gpufs::simt::lane_id()];
  }
};

struct search_shared {
  four_values query[nvalues / 4];
  std::uint32_t best;  // the first image of this data set that matches, of those looked at
};
using block_word = atomic_ref<std::uint32_t, gpufs::simt::scope::block>;

// A block searches for one query at a time: warp w of W compares the images w, w + W, ... . Ref: of a mount; Caller: who makes the
// calls.
template <class Ref, class File, class Caller>
struct search_files {
  Ref fs;
  gpufs::file_number queries, sets[nsets];
  std::uint32_t nqueries, nimages, per_page;  // images a page
  std::uint32_t* found;                       // by query: set * nimages + image, or nothing
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    auto& s = gpufs::simt::shared<search_shared>();
    const File asked(fs, queries);
    for (std::uint32_t q = gpufs::simt::block_rank(); q < nqueries; q += gpufs::simt::grid_size()) {
      bool right = pread(block, asked, s.query, image_nbytes, std::int64_t{q} * image_nbytes) == image_nbytes;
      const warp_query mine(s.query[0].of);
      std::uint32_t answer = nothing;
      for (std::uint32_t set = 0; set < nsets && answer == nothing; ++set) {
        if (block.leader()) s.best = nothing;
        block.sync();
        right = look_into(File(fs, sets[set]), mine, s) && right;
        block.sync();
        if (s.best != nothing) answer = set * nimages + s.best;
        block.sync();  // all have read it
      }
      if (block.leader()) found[q] = answer;
      if (block.any(!right) && block.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
    }
  }

  GPUFS_DEVICE bool look_into(const File& set, const warp_query& mine, search_shared& s) const {
    constexpr bool alone = std::is_same_v<Caller, gpufs::simt::warp>;
    const Caller caller{};
    const auto warp = gpufs::this_warp();
    const std::uint32_t nwarps = gpufs::this_block().nwarps(), w = gpufs::simt::warp_rank(), npages = nimages / per_page;
    const bool skips = alone && per_page < nwarps;  // pages without an image of this warp
    for (std::uint32_t p = skips ? w / per_page : 0; p < npages; p += skips ? nwarps / per_page : 1) {
      if (caller.broadcast(block_word(s.best).load(std::memory_order_relaxed)) < p * per_page) return true;
      gpufs::mapped_page page = map_page(caller, set, std::int64_t{p} * per_page * image_nbytes);
      if (page.error() != 0) return false;
      const auto* images = reinterpret_cast<const float*>(page.data());
      for (std::uint32_t i = (w + nwarps - p * per_page % nwarps) % nwarps; i < per_page; i += nwarps) {
        if (!mine.matches(images + i * nvalues)) continue;
        if (warp.leader()) block_word(s.best).fetch_min(p * per_page + i, std::memory_order_relaxed);
        break;
      }
      if (gpufs::unmap_page(caller, std::move(page)) != 0) return false;
    }
    return true;
  }
};

// Some images of a data set in device memory, for all queries; what was found before them is not looked for any more.
struct search_memory {
  const float *queries, *images;
  std::uint32_t nqueries, nimages, first;  // first: set * images of a set + image
  std::uint32_t* found;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const auto warp = gpufs::this_warp();
    for (std::uint32_t q = gpufs::simt::block_rank(); q < nqueries; q += gpufs::simt::grid_size()) {
      const atomic_ref<std::uint32_t> best(found[q]);
      const warp_query mine(queries + std::uint64_t{q} * nvalues);
      for (std::uint32_t i = gpufs::simt::warp_rank(); i < nimages; i += block.nwarps()) {
        if (warp.broadcast(best.load(std::memory_order_relaxed)) < first + i) break;
        if (!mine.matches(images + std::uint64_t{i} * nvalues)) continue;
        if (warp.leader()) best.fetch_min(first + i, std::memory_order_relaxed);
        break;
      }
    }
  }
};

// --- The bench
// ---------------------------------------------------------------------------------------------------------------------

class image_search {
 public:
  image_search(arguments& args, const machine_facts& machine)
      : how_{machine.nprocessors * blocks_per_sm, static_cast<unsigned>(args.number("warps", {8, 8, 2})) * 32},
        repeats_(repeats_of(args)),
        nqueries_(static_cast<std::uint32_t>(args.number("queries", {560, 560, 24}))),
        nimages_(static_cast<std::uint32_t>(args.number("images", {10240, 10240, 512})) / most_per_page * most_per_page),
        cache_nbytes_(args.nbytes("cache-gib", {2, 2, 32. / 1024})),
        folder_(args.path("dir", "/dev/shm")) {
    if (nqueries_ == 0 || nimages_ == 0) throw gpufs::error("--queries is at least 1, --images at least 512");
    if (!std::has_single_bit(how_.block) || how_.block > 256) throw gpufs::error("--warps is 1, 2, 4 or 8");
    std::vector<query> all;
    for (std::uint32_t q = 0; q < nqueries_; ++q) {
      all.emplace_back(q, nimages_);
      const image_number first = first_of(all.back().like);
      expected_.push_back(all.back().is_somewhere ? first.set * nimages_ + first.image : nothing);
    }
    write_words(path("queries"), std::uint64_t{nqueries_} * image_nbytes, [&](std::uint64_t i) {
      const query& q = all[i / (nvalues / 2)];
      const auto v = static_cast<std::uint32_t>(i % (nvalues / 2)) * 2;
      return two_floats(q.level_of(v), q.level_of(v + 1));
    });
    for (std::uint32_t set = 0; set < nsets; ++set) {
      write_words(path(set_name(set)), std::uint64_t{nimages_} * image_nbytes, [&](std::uint64_t i) {
        const image_number one{set, static_cast<std::uint32_t>(i / (nvalues / 2))};
        const auto v = static_cast<std::uint32_t>(i % (nvalues / 2)) * 2;
        return two_floats(level(one, v), level(one, v + 1));
      });
    }
  }

  void by_page_size(arguments& args, results& out) const {
    const bool ours = args.wants("systor_figure_10"), original = args.wants("systor_figure_10_original");
    if (!ours && !original) return;
    const spread host = by_host_threads(out);
    for (std::uint32_t page = 4096; page <= most_per_page * image_nbytes; page *= 2) {
      const std::string size = page < (1 << 20) ? std::to_string(page >> 10) + " KiB" : std::to_string(page >> 20) + " MiB";
      gpufs::mount_options options = short_waits();
      options.cache_nbytes = cache_nbytes_;
      options.page_nbytes = page;
      if (ours) measure<gpufs::mount, gpufs::file, gpufs::simt::warp>("systor_figure_10", "pages of " + size, options, host, out);
      if (!original) continue;
      measure<original_mount<original_cache>, gpufs::baselines::original_file<original_cache>, gpufs::simt::block>(
          "systor_figure_10_original", "pages of " + size + ", the original design", gpufs::baselines::original_host_side(options),
          host, out);
    }
  }

 private:
  static constexpr unsigned blocks_per_sm = on_gpu ? 3 : 1;  // with registers for a query
  static constexpr std::uint32_t most_per_page = (2 << 20) / image_nbytes;

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::string set_name(std::uint32_t set) { return "set_" + std::to_string(set); }

  // Each run has a mount of its own, so that its cache is empty; files are open, and registered where the design pulls.
  template <class Mount, class File, class Caller>
  void measure(const char* name, const std::string& label, const gpufs::mount_options& options, const spread& host,
               results& out) const {
    measurement m{name, label, {}, "ms", host.median, "a double-buffered host program"};
    m.figure = measurement::kind::times_as_fast;
    m.verified = true;
    for (int r = 0; r <= repeats_; ++r) {
      const Mount fs(folder_.path(), options);
      using ref = decltype(fs.ref());
      search_files<ref, File, Caller> kernel{fs.ref(), {},     {}, nqueries_, nimages_, options.page_nbytes / image_nbytes,
                                             nullptr,  nullptr};
      std::vector<std::unique_ptr<host_file>> files;
      const auto open = [&](const std::string& file) {
        fs.prepare(file);
        files.push_back(std::make_unique<host_file>(fs, file.c_str()));
        return files.back()->ref().number();
      };
      kernel.queries = open("queries");
      for (std::uint32_t set = 0; set < nsets; ++set) kernel.sets[set] = open(set_name(set));
      const device_array<std::uint32_t> found(nqueries_);
      const device_array<std::uint64_t> failed(1);
      kernel.found = found.get();
      kernel.failed = failed.get();
      const double seconds = run<blocks_per_sm>(how_, kernel);
      if (r > 0) m.samples.push_back(seconds * 1e3);
      m.verified = failed.read_one() == 0 && found.read() == expected_ && m.verified;
      const gpufs::mount_counters now = fs.counters();
      m.verified = m.verified && now.pinned_frames == 0;
      m.details = {{"page_nbytes", options.page_nbytes},
                   {"faults", static_cast<double>(now.faults)},
                   {"hits", static_cast<double>(now.hits)}};
    }
    out.add(m);
  }

  // Reads, copies and compares pieces of the data sets, one after another, until no query is left: ms.
  spread by_host_threads(results& out) const {
    const std::uint32_t piece = std::min(on_gpu ? 2048u : 128u, nimages_), per_set = nimages_ / piece;  // 8 MiB
    const std::uint64_t piece_nbytes = std::uint64_t{piece} * image_nbytes,
                        queries_nbytes = std::uint64_t{nqueries_} * image_nbytes;
    host_team team(std::min(16u, host_threads()));
    const pinned_array<std::byte> host(2 * piece_nbytes), asked(queries_nbytes);
    const device_array<std::byte> device(2 * piece_nbytes), queries(queries_nbytes);
    const auto queries_file = open_file(path("queries"), O_RDONLY);
    std::vector<gpufs::unique_fd> sets;
    for (std::uint32_t set = 0; set < nsets; ++set) sets.push_back(open_file(path(set_name(set)), O_RDONLY));
    const gpufs::simt::stream copies, kernels;
    std::vector<double> taken;
    for (int r = 0; r <= repeats_; ++r) {
      const device_array<std::uint32_t> found(std::vector<std::uint32_t>(nqueries_, nothing));
      const stopwatch watch;
      move_bytes(team, false, queries_file.get(), asked.get(), queries_nbytes, 0);
      gpufs::simt::this_platform().copy_to_device(queries.get(), asked.get(), queries_nbytes);
      run_stages(std::uint64_t{nsets} * per_set,
                 {{2,
                   [&](std::uint64_t s) {
                     const auto first = static_cast<std::uint32_t>(s) * piece;
                     gpufs::simt::launch<256, blocks_per_sm>(
                         {.grid = how_.grid, .block = how_.block},
                         search_memory{reinterpret_cast<const float*>(queries.get()),
                                       reinterpret_cast<const float*>(device.get() + s % 2 * piece_nbytes), nqueries_, piece, first,
                                       found.get()},
                         kernels);
                   },
                   [&] { kernels.wait(); }},
                  {1,
                   [&](std::uint64_t s) {
                     copies.copy_to_device(device.get() + s % 2 * piece_nbytes, host.get() + s % 2 * piece_nbytes, piece_nbytes);
                   },
                   [&] { copies.wait(); }},
                  {0, [&](std::uint64_t s) {
                     move_bytes(team, false, sets[s / per_set].get(), host.get() + s % 2 * piece_nbytes, piece_nbytes,
                                s % per_set * piece_nbytes);
                   }}});
      const std::vector<std::uint32_t> answers = found.read();
      if (r > 0) taken.push_back(watch.seconds() * 1e3);
      if (answers != expected_) throw gpufs::error("the host program finds other images");
    }
    const spread ms = spread_of(taken);
    out.ceiling("image search by a double-buffered program of " + std::to_string(team.size()) + " host threads", "ms", ms);
    return ms;
  }

  shape how_;
  int repeats_;
  std::uint32_t nqueries_, nimages_;
  std::uint64_t cache_nbytes_;
  work_folder folder_;
  std::vector<std::uint32_t> expected_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("image_search", [&] {
    arguments args(argc, argv, "image_search  --dir DIR  --queries N  --images N  --cache-gib N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    const image_search bench(args, machine);
    results out("image_search", args, machine);
    bench.by_page_size(args, out);
    return out.finish();
  });
}
