// SPDX-License-Identifier: Apache-2.0
#include "apps/vectors/builder.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "apps/crc32.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::vectors {
namespace {

constexpr std::uint64_t rows_a_share = 1024;

std::uint32_t checked_dim(std::uint32_t dim, const std::string& base) {
  if (dim >= 1 && dim <= most_dim) return dim;
  throw gpufs::error(
      base + ": has vectors of " + std::to_string(dim) + " elements, and an index takes 1 to " + std::to_string(most_dim), EINVAL);
}

}  // namespace

std::uint64_t first_bad_row(const query_rows& rows, std::uint32_t dim, unsigned nthreads) {
  std::atomic<std::uint64_t> first{rows.n};
  parallel_for(
      thread_count(nthreads), (rows.n + rows_a_share - 1) / rows_a_share,
      [&](std::size_t share) {
        const std::uint64_t begin = share * rows_a_share, end = std::min(rows.n, begin + rows_a_share);
        const float* const from = rows.elements + begin * dim;
        float zero = 0;  // or NaN
        for (std::uint64_t i = 0; i < (end - begin) * dim; ++i) zero += from[i] * 0.f;
        if (zero == 0) return;
        for (std::uint64_t row = begin; row < end; ++row) {
          const float* const of = rows.elements + row * dim;
          if (std::all_of(of, of + dim, [](float x) { return std::isfinite(x); })) continue;
          std::uint64_t was = first.load(std::memory_order_relaxed);
          while (row < was && !first.compare_exchange_weak(was, row, std::memory_order_relaxed)) {
          }
          return;
        }
      },
      helper_threads::of_process());
  return first.load(std::memory_order_relaxed);
}

index_builder::index_builder(const std::string& path, const float* centroids, std::uint32_t nlists, std::uint32_t dim,
                             quantizer& by, const build_options& options)
    : options_(options),
      dim_(checked_dim(dim, options.base)),
      by_(by),
      file_(path),
      centroids_(to_groups(centroids, nlists, dim)),
      entries_(nlists) {}

void index_builder::check(const query_rows& vectors, std::uint64_t first) const {
  const std::uint64_t bad = first_bad_row(vectors, dim_, options_.nthreads);
  if (bad == vectors.n) return;
  const float* const of = vectors.elements + bad * dim_;
  const auto at = std::find_if(of, of + dim_, [](float x) { return !std::isfinite(x); }) - of;
  throw gpufs::error(options_.base + ": element " + std::to_string(at) + " of vector " + std::to_string(first + bad) +
                         " is no number (NaN or infinite): leave the vector out, or mend it",
                     EINVAL);
}

void index_builder::count(const query_rows& vectors, const progress_function& look) {
  const std::size_t before = list_of_.size();
  if (before + vectors.n > most_vectors) throw gpufs::error(options_.base + ": an index has at most 2^32 - 1 vectors", EFBIG);
  check(vectors, before);
  list_of_.resize(before + vectors.n);
  by_.nearest(vectors, list_of_.data() + before, look);
  for (std::size_t i = before; i < list_of_.size(); ++i) ++entries_[list_of_[i]].nvectors;
}

void index_builder::begin_lists() {
  list_places at = places_of(entries_, dim_);
  lists_ = std::move(at.lists);
  end_ = at.end;
  file_.resize(end_);
  nadded_.resize(entries_.size());
  groups_.resize(entries_.size() * group_nbytes(dim_));
}

void index_builder::write_group(std::uint32_t list) {
  std::byte* const group = groups_.data() + list * group_nbytes(dim_);
  const std::uint32_t number = (nadded_[list] - 1) / group_vectors, n = nadded_[list] - number * group_vectors;
  for (std::uint32_t lane = n; lane < group_vectors; ++lane) {  // of the last group
    for (std::uint64_t d = 0; d < dim_; ++d) reinterpret_cast<float*>(group)[d * group_vectors + lane] = 0;
    reinterpret_cast<std::uint32_t*>(group)[std::uint64_t{dim_} * group_vectors + lane] = no_id;
  }
  entries_[list].crc32 = crc32(entries_[list].crc32, group, group_nbytes(dim_));
  file_.write(group, group_nbytes(dim_), lists_[list].begin + number * group_nbytes(dim_));
}

void index_builder::append(std::uint32_t list, std::uint32_t id, const float* vector) {
  std::byte* const group = groups_.data() + list * group_nbytes(dim_);
  const std::uint32_t lane = nadded_[list]++ % group_vectors;
  for (std::uint64_t d = 0; d < dim_; ++d) reinterpret_cast<float*>(group)[d * group_vectors + lane] = vector[d];
  reinterpret_cast<std::uint32_t*>(group)[std::uint64_t{dim_} * group_vectors + lane] = id;
  if (lane + 1 == group_vectors) write_group(list);
}

void index_builder::add(const query_rows& vectors) {
  if (vectors.n > list_of_.size() - nvectors_)
    throw gpufs::error(options_.base + ": was changed while it was read: try again", ESTALE);
  check(vectors, nvectors_);
  const std::uint32_t* const lists = list_of_.data() + nvectors_;
  // The vectors in the order of their lists; those of a list in their own.
  const std::size_t nlists = entries_.size();
  std::vector<std::uint32_t> begins(nlists + 1), order(vectors.n);
  for (std::uint64_t i = 0; i < vectors.n; ++i) ++begins[lists[i] + 1];
  for (std::size_t list = 0; list < nlists; ++list) begins[list + 1] += begins[list];
  std::vector<std::uint32_t> next(begins.begin(), begins.end() - 1);
  for (std::uint64_t i = 0; i < vectors.n; ++i) order[next[lists[i]]++] = static_cast<std::uint32_t>(i);

  const unsigned nthreads = thread_count(options_.nthreads);
  const std::size_t nshares = std::min<std::size_t>(nlists, std::size_t{nthreads} * 8);
  parallel_for(
      nthreads, nshares,
      [&](std::size_t share) {
        for (std::size_t list = nlists * share / nshares; list < nlists * (share + 1) / nshares; ++list) {
          for (std::uint32_t i = begins[list]; i < begins[list + 1]; ++i) {
            append(static_cast<std::uint32_t>(list), static_cast<std::uint32_t>(nvectors_ + order[i]),
                   vectors.elements + std::uint64_t{order[i]} * dim_);
          }
        }
      },
      helper_threads::of_process());
  nvectors_ += vectors.n;
}

build_report index_builder::finish() {
  if (nvectors_ != list_of_.size()) throw gpufs::error(options_.base + ": was changed while it was read: try again", ESTALE);
  build_report report;
  report.nvectors = nvectors_;
  report.file_nbytes = end_;
  report.shortest = nvectors_;
  for (std::uint32_t list = 0; list < entries_.size(); ++list) {
    if (nadded_[list] % group_vectors != 0) write_group(list);
    report.nempty += nadded_[list] == 0 ? 1 : 0;
    report.shortest = std::min<std::uint64_t>(report.shortest, nadded_[list]);
    report.longest = std::max<std::uint64_t>(report.longest, nadded_[list]);
  }
  header head{};
  std::memcpy(head.magic, magic, sizeof magic);
  head.version = format_version;
  head.dim = dim_;
  head.nvectors = nvectors_;
  head.nlists = static_cast<std::uint32_t>(entries_.size());
  head.front_crc32 = crc32(crc32(0, entries_.data(), entries_.size() * sizeof entries_[0]), centroids_.data(), centroids_.size());
  head.file_nbytes = end_;
  std::snprintf(head.made_by, sizeof head.made_by, "%s", options_.made_by.c_str());
  head.crc32 = crc32(0, &head, offsetof(header, crc32));
  file_.write(entries_.data(), entries_.size() * sizeof entries_[0], sizeof head);
  file_.write(centroids_.data(), centroids_.size(), centroids_at(head.nlists));
  file_.write(&head, sizeof head, 0);
  file_.publish();
  return report;
}

}  // namespace gpufs::apps::vectors
