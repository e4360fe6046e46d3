// SPDX-License-Identifier: Apache-2.0
// The plain engine: threads, SIMD, and the library mapped into memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "apps/bus_guard.hpp"
#include "apps/collage/lsh.hpp"
#include "apps/collage/match.hpp"
#include "apps/collage/shortlist.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::collage {
namespace {

struct searcher {
  const library& lib;
  const key_maker& maker;
  shortlist_maker lists;

  // no_fault, or what went wrong. Owns nothing: SIGBUS may end it anywhere.
  std::uint64_t search(const photo& picture, std::uint32_t block, match& out) const {
    counts counted;
    folded_counts folded;
    std::uint32_t keys[ntables];
    alignas(64) float histogram[nbins];
    shortlist list;
    count_pixels(picture.block(block), picture.row_nbytes(), counted);
    std::copy(counted.begin(), counted.end(), histogram);
    fold(counted, folded);
    maker.keys(folded, keys);
    if (!lists.make(keys, list, out.nbuckets)) return fault_word(block, step::entries, damaged);
    float best = max_distance + 1.0f;
    std::uint32_t best_id = 0;
    for (const std::uint32_t id : list) {
      const float distance = histogram_distance(lib.histogram(id), histogram);
      if (!(distance >= 0 && distance <= max_distance)) return fault_word(block, step::histogram, damaged);
      if (distance < best || (distance == best && id < best_id)) {
        best = distance;
        best_id = id;
      }
    }
    out.id = best_id;
    out.distance = static_cast<std::uint32_t>(best);
    out.nshortlist = list.size();
    return no_fault;
  }
};

}  // namespace

void throw_fault(const library& lib, const photo& picture, std::uint64_t fault) {
  const auto block = static_cast<std::uint32_t>(fault >> 32);
  const auto error = static_cast<int>(fault & 0xffff);
  static constexpr const char* doing[] = {"opening the library",         "reading the projections",   "reading the reference",
                                          "reading a table's directory", "reading a table's entries", "reading a histogram",
                                          "closing the library"};
  const std::string where = " (block " + std::to_string(block) + ": column " + std::to_string(block % picture.nblocks_x) +
                            ", row " + std::to_string(block / picture.nblocks_x) + ")";
  const std::string what = doing[std::min<std::uint64_t>(fault >> 16 & 0xffff, std::size(doing) - 1)];
  if (error == -damaged) lib.fail("is damaged, found while " + what + where + "; `gpufs collage verify` says more");
  const bool of_block = (fault >> 16 & 0xffff) != static_cast<std::uint32_t>(step::opening);
  lib.fail(what + " failed: " + std::strerror(error) + " (errno " + std::to_string(error) + ")" + (of_block ? where : ""));
}

match_result match_cpu(const library& lib, const photo& picture, const engine_options& options) {
  constexpr std::uint32_t share = 16;  // blocks between two looks at the clock
  const auto begin = std::chrono::steady_clock::now();
  const key_maker maker(lib.projections().data(), lib.reference().data(), lib.head().key_nbits);
  const searcher engine{lib, maker, shortlist_maker(lib)};

  match_result result;
  result.machine = "cpu";
  result.source = "mapped into memory";
  const std::uint32_t nblocks = picture.nblocks();
  result.matches.resize(nblocks);
  std::atomic<std::uint64_t> fault{no_fault};
  std::atomic<std::uint32_t> ndone{0};
  const auto caller = std::this_thread::get_id();
  parallel_for(thread_count(options.nthreads), (nblocks + share - 1) / share, [&](std::size_t s) {
    const auto first = static_cast<std::uint32_t>(s) * share;
    const std::uint32_t last = std::min(nblocks, first + share);
    for (std::uint32_t block = first; block < last; ++block) {
      std::uint64_t mine = fault_word(block, step::entries, -EIO);  // when the search is left by SIGBUS
      bus_guarded([&] { mine = engine.search(picture, block, result.matches[block]); });
      for (std::uint64_t seen = fault.load(); mine < seen && !fault.compare_exchange_weak(seen, mine);) {
      }
    }
    const std::uint32_t done = ndone.fetch_add(last - first) + last - first;
    if (options.progress && std::this_thread::get_id() == caller) options.progress(done, nblocks);
  });
  if (fault.load() != no_fault) throw_fault(lib, picture, fault.load());
  if (options.progress) options.progress(nblocks, nblocks);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::unique_ptr<matcher> matcher_cpu(const library& lib, const engine_options& options) {
  struct by_threads final : matcher {
    by_threads(const library& of, engine_options how) : lib(of), options(std::move(how)) {}
    match_result find(const photo& picture, const progress_function& progress) override {
      options.progress = progress;
      return match_cpu(lib, picture, options);
    }
    const library& lib;
    engine_options options;
  };
  return std::make_unique<by_threads>(lib, options);
}

std::vector<match> match_exhaustive(const library& lib, const photo& picture, const std::vector<std::uint32_t>& blocks,
                                    unsigned nthreads, const progress_function& progress) {
  constexpr std::uint32_t batch = 512;
  const std::uint32_t stride = lib.head().histogram_stride;
  const std::uint64_t base = lib.find(section_kind::histograms).offset;
  std::vector<std::array<float, nbins>> queries(blocks.size());
  for (std::size_t q = 0; q < blocks.size(); ++q) {
    if (blocks[q] >= picture.nblocks()) throw error("there is no block " + std::to_string(blocks[q]));
    counts counted;
    count_pixels(picture.block(blocks[q]), picture.row_nbytes(), counted);
    std::copy(counted.begin(), counted.end(), queries[q].begin());
  }
  std::vector<match> best(blocks.size(), match{~0u, ~0u, 0, 0});
  std::mutex best_lock;
  std::uint64_t ndone = 0;
  const auto caller = std::this_thread::get_id();
  parallel_for(thread_count(nthreads), (lib.nimages() + batch - 1) / batch, [&](std::size_t b) {
    const auto first = static_cast<std::uint32_t>(b) * batch;
    const std::uint32_t n = std::min(batch, lib.nimages() - first);
    thread_local std::vector<std::byte> buffer;
    buffer.resize(std::size_t{batch} * stride);
    lib.read(buffer.data(), std::size_t{n} * stride, base + std::uint64_t{first} * stride);
    std::vector<match> mine(blocks.size(), match{~0u, ~0u, 0, 0});
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto* histogram = reinterpret_cast<const float*>(buffer.data() + std::size_t{i} * stride);
      for (std::size_t q = 0; q < queries.size(); ++q) {
        const float distance = histogram_distance(histogram, queries[q].data());
        if (!(distance >= 0 && distance <= max_distance))
          throw_fault(lib, picture, fault_word(blocks[q], step::histogram, damaged));
        const auto whole = static_cast<std::uint32_t>(distance);
        if (whole < mine[q].distance) mine[q] = {first + i, whole, 0, 0};
      }
    }
    const std::lock_guard lock(best_lock);
    for (std::size_t q = 0; q < best.size(); ++q) {
      const bool nearer = mine[q].distance < best[q].distance || (mine[q].distance == best[q].distance && mine[q].id < best[q].id);
      if (nearer) best[q] = mine[q];
    }
    ndone += n;
    if (progress && std::this_thread::get_id() == caller) progress(ndone, lib.nimages());
  });
  if (progress) progress(lib.nimages(), lib.nimages());
  for (match& m : best) m.nshortlist = lib.nimages();
  return best;
}

}  // namespace gpufs::apps::collage
