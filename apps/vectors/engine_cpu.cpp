// SPDX-License-Identifier: Apache-2.0
// The search by host threads, over the index's mapped file.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "apps/bus_guard.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"
#include "apps/simd_clones.hpp"
#include "apps/vectors/engine.hpp"
#include "apps/vectors/plan.hpp"

namespace gpufs::apps::vectors {
namespace {

constexpr std::uint32_t tile = 4;             // queries that are compared with a group at once
constexpr std::uint32_t queries_a_unit = 64;  // so many come to a group while it is in a core's cache
constexpr std::uint64_t most_scratch_nbytes = std::uint64_t{1} << 30;

// Sums of 32 vectors for each of four queries: a loop over elements with a step for 32 lanes.
GPUFS_SIMD_FMA_CLONES void compare(const float* group, std::uint32_t dim, const float* a, const float* b, const float* c,
                                   const float* d, float* sums) {
  float of_a[group_vectors]{}, of_b[group_vectors]{}, of_c[group_vectors]{}, of_d[group_vectors]{};
  for (std::uint32_t i = 0; i < dim; ++i, group += group_vectors) {
    const float x = a[i], y = b[i], z = c[i], w = d[i];
    for (std::uint32_t lane = 0; lane < group_vectors; ++lane) {
      const float v = group[lane];
      of_a[lane] = std::fma(x - v, x - v, of_a[lane]);
      of_b[lane] = std::fma(y - v, y - v, of_b[lane]);
      of_c[lane] = std::fma(z - v, z - v, of_c[lane]);
      of_d[lane] = std::fma(w - v, w - v, of_d[lane]);
    }
  }
  std::copy_n(of_a, group_vectors, sums);
  std::copy_n(of_b, group_vectors, sums + group_vectors);
  std::copy_n(of_c, group_vectors, sums + 2 * group_vectors);
  std::copy_n(of_d, group_vectors, sums + 3 * group_vectors);
}

// The k nearest keys, the farthest one in front (a heap).
void put_in(std::uint64_t* nearest, std::uint32_t k, std::uint64_t key) {
  if (key >= nearest[0]) return;
  std::uint32_t at = 0;
  for (;;) {
    std::uint32_t below = 2 * at + 1;
    if (below >= k) break;
    if (below + 1 < k && nearest[below + 1] > nearest[below]) ++below;
    if (nearest[below] <= key) break;
    nearest[at] = nearest[below];
    at = below;
  }
  nearest[at] = key;
}

class cpu_scanner {
 public:
  cpu_scanner(std::uint32_t dim, unsigned nthreads) : dim_(dim), nthreads_(thread_count(nthreads)) {}

  plan_limits limits(std::uint32_t k) const {
    return {group_nbytes(dim_), queries_a_unit, 8, std::uint64_t{8} * nthreads_,
            std::min<std::uint64_t>(most_scratch_nbytes / sizeof(std::uint64_t) / k, UINT32_MAX)};
  }

  // As the kernels do. False: the mapping ended before the groups did.
  template <class Look>
  bool run(const std::byte* data, const plan& what, const float* queries, std::uint32_t k, std::uint64_t* nearest,
           const Look& look) {
    const std::size_t nqueries = what.slots.size() - 1;
    found_.assign(std::size_t{what.slots.back()} * k, no_key);
    std::atomic<bool> is_cut{false};
    std::atomic<std::uint64_t> done{0};
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(
        nthreads_, what.units.size(),
        [&](std::size_t i) {
          if (is_cut.load(std::memory_order_relaxed)) return;
          if (!bus_guarded([&] { scan(data, what, what.units[i], queries, k); })) is_cut.store(true, std::memory_order_relaxed);
          const std::uint64_t now = done.fetch_add(1, std::memory_order_relaxed) + 1;
          if (std::this_thread::get_id() == caller) look(now, what.units.size());
        },
        helper_threads::of_process());
    if (is_cut.load(std::memory_order_relaxed)) return false;
    parallel_for(
        nthreads_, nqueries,
        [&](std::size_t q) {
          std::uint64_t* const mine = nearest + q * k;
          std::fill_n(mine, k, no_key);
          for (std::size_t i = std::size_t{what.slots[q]} * k; i < std::size_t{what.slots[q + 1]} * k; ++i)
            put_in(mine, k, found_[i]);
          std::sort(mine, mine + k);
        },
        helper_threads::of_process());
    return true;
  }

 private:
  // Reads the mapping, and owns nothing.
  void scan(const std::byte* data, const plan& what, const unit& of, const float* queries, std::uint32_t k) {
    const probe* const probes = what.probes.data() + of.first_probe;
    for (std::uint32_t g = 0; g < of.ngroups; ++g) {
      const std::byte* const group = data + of.begin + g * group_nbytes(dim_);
      const auto* const ids = reinterpret_cast<const std::uint32_t*>(group + std::uint64_t{dim_} * row_nbytes);
      for (std::uint32_t first = 0; first < of.nprobes; first += tile) {
        const float* rows[tile];
        for (std::uint32_t t = 0; t < tile; ++t)
          rows[t] = queries + std::uint64_t{probes[std::min(first + t, of.nprobes - 1)].query} * dim_;
        float sums[tile * group_vectors];
        compare(reinterpret_cast<const float*>(group), dim_, rows[0], rows[1], rows[2], rows[3], sums);
        for (std::uint32_t t = 0; t < tile && first + t < of.nprobes; ++t) {
          std::uint64_t* const mine = found_.data() + (std::size_t{probes[first + t].slot} + of.piece) * k;
          for (std::uint32_t lane = 0; lane < group_vectors; ++lane) {
            if (ids[lane] != no_id) put_in(mine, k, key_of(sums[t * group_vectors + lane], ids[lane]));
          }
        }
      }
    }
  }

  std::uint32_t dim_;
  unsigned nthreads_;
  std::vector<std::uint64_t> found_;
};

// Of n queries. The centroids lie in memory of this process.
template <class Look>
void nearest_centroids(cpu_scanner& by, std::span<const std::byte> centroids, std::uint32_t nlists, const float* queries,
                       std::uint32_t dim, std::uint32_t n, std::uint32_t nprobe, std::uint32_t* to, const Look& look) {
  const place all{0, static_cast<std::uint32_t>(groups_of(nlists))};
  const plan what = make_plan({&all, 1}, {}, 0, n, by.limits(nprobe));
  if (what.slots.empty() && n > 1) {  // their results would take too much memory together
    const std::uint32_t half = n / 2;
    nearest_centroids(by, centroids, nlists, queries, dim, half, nprobe, to, look);
    nearest_centroids(by, centroids, nlists, queries + std::uint64_t{half} * dim, dim, n - half, nprobe,
                      to + std::uint64_t{half} * nprobe, look);
    return;
  }
  if (what.slots.empty()) throw too_many_results();
  std::vector<std::uint64_t> keys(std::size_t{n} * nprobe);
  by.run(centroids.data(), what, queries, nprobe, keys.data(), look);
  std::transform(keys.begin(), keys.end(), to, [](std::uint64_t key) { return id_of(key); });
}

class cpu_engine final : public engine {
 public:
  cpu_engine(const index_file& index, const engine_options& options) : index_(index), scanner_(index.dim(), options.nthreads) {
    index.map();
  }

  search_facts search(const query_rows& queries, const search_options& how, std::uint64_t* nearest,
                      const progress_function& progress) override {
    const auto begin = std::chrono::steady_clock::now();
    search_facts facts;
    for (std::uint64_t done = 0; done < queries.n;) {
      const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(how.batch, queries.n - done));
      const float* const rows = queries.elements + done * index_.dim();
      std::vector<std::uint32_t> chosen;
      if (how.nprobe < index_.nlists()) {
        chosen.resize(std::size_t{n} * how.nprobe);
        nearest_centroids(scanner_, index_.centroids(), index_.nlists(), rows, index_.dim(), n, how.nprobe, chosen.data(),
                          [&](std::uint64_t, std::uint64_t) { progress(done, queries.n); });
        for (const std::uint32_t list : chosen) facts.ncompared += index_.entries()[list].nvectors;
      } else {
        facts.ncompared += index_.head().nvectors * n;
      }
      search_lists(rows, chosen, how.nprobe, n, how.k, nearest + done * how.k,
                   [&](std::uint64_t units, std::uint64_t all) { progress(done + n * units / all, queries.n); });
      done += n;
      progress(done, queries.n);
    }
    index_.check_unchanged();
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return facts;
  }

 private:
  template <class Look>
  void search_lists(const float* rows, std::span<const std::uint32_t> chosen, std::uint32_t nprobe, std::uint32_t n,
                    std::uint32_t k, std::uint64_t* nearest, const Look& look) {
    const plan what = make_plan(index_.lists(), chosen, nprobe, n, scanner_.limits(k));
    if (what.slots.empty() && n > 1) {
      const std::uint32_t half = n / 2;
      search_lists(rows, chosen.empty() ? chosen : chosen.first(std::size_t{half} * nprobe), nprobe, half, k, nearest, look);
      search_lists(rows + std::uint64_t{half} * index_.dim(), chosen.empty() ? chosen : chosen.subspan(std::size_t{half} * nprobe),
                   nprobe, n - half, k, nearest + std::uint64_t{half} * k, look);
      return;
    }
    if (what.slots.empty()) throw too_many_results();
    if (!scanner_.run(index_.map(), what, rows, k, nearest, look)) index_.fail_changed();
  }

  const index_file& index_;
  cpu_scanner scanner_;
};

class cpu_quantizer final : public quantizer {
 public:
  cpu_quantizer(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim, const engine_options& options)
      : centroids_(centroids.begin(), centroids.end()), nlists_(nlists), dim_(dim), scanner_(dim, options.nthreads) {}

  void nearest(const query_rows& vectors, std::uint32_t* lists, const progress_function& look) override {
    nearest_centroids(scanner_, centroids_, nlists_, vectors.elements, dim_, static_cast<std::uint32_t>(vectors.n), 1, lists, look);
  }

 private:
  std::vector<std::byte> centroids_;
  std::uint32_t nlists_, dim_;
  cpu_scanner scanner_;
};

}  // namespace

std::unique_ptr<engine> make_engine_cpu(const index_file& index, const engine_options& options) {
  return std::make_unique<cpu_engine>(index, options);
}
std::unique_ptr<quantizer> make_quantizer_cpu(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim,
                                              const engine_options& options) {
  return std::make_unique<cpu_quantizer>(centroids, nlists, dim, options);
}

std::vector<std::byte> to_groups(const float* rows, std::uint32_t n, std::uint32_t dim) {
  std::vector<std::byte> all(groups_of(n) * group_nbytes(dim));
  for (std::uint64_t i = 0; i < groups_of(n) * group_vectors; ++i) {
    std::byte* const group = all.data() + i / group_vectors * group_nbytes(dim);
    const std::uint64_t lane = i % group_vectors;
    const std::uint32_t id = i < n ? static_cast<std::uint32_t>(i) : no_id;
    for (std::uint64_t d = 0; d < dim && i < n; ++d) reinterpret_cast<float*>(group)[d * group_vectors + lane] = rows[i * dim + d];
    reinterpret_cast<std::uint32_t*>(group)[std::uint64_t{dim} * group_vectors + lane] = id;
  }
  return all;
}

}  // namespace gpufs::apps::vectors
