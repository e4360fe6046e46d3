// SPDX-License-Identifier: Apache-2.0
// The search by kernels over gpufs, for the machine that the including source is compiled for. Host code.
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "apps/vectors/engine.hpp"
#include "apps/vectors/scan.hpp"
#include "apps/watched_launch.hpp"

namespace gpufs::apps::vectors {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned least_blocks = 2;
inline constexpr std::uint64_t most_scratch_nbytes = GPUFS_ON_CUDA ? std::uint64_t{1} << 30 : std::uint64_t{1} << 26;

// Thrown where a kernel could not read: a negative errno.
struct read_failure {
  int error;
};

// Memory of a device that grows with what is asked for.
template <class T>
class room_for {
 public:
  explicit room_for(simt::platform& device) : all_(0, device) {}
  // Of n elements at least, with any values.
  T* operator()(std::uint64_t n) {
    if (n > all_.size()) {
      all_ = simt::device_array<T>(0, all_.device());  // first, or both would be there at once
      all_ = simt::device_array<T>(n + n / 4, all_.device());
    }
    return all_.get();
  }
  T* copy_of(std::span<const T> values) {
    T* const to = (*this)(values.size());
    all_.write(values);
    return to;
  }
  std::vector<T> read(std::uint64_t n) const {
    std::vector<T> values(n);
    if (n != 0) all_.device().copy_from_device(values.data(), all_.get(), n * sizeof(T));
    return values;
  }

 private:
  simt::device_array<T> all_;
};

// What kernels need to compare queries with groups that lie anywhere.
class scanner {
 public:
  // most_warps: that a kernel may have; each pins a page.
  scanner(std::uint32_t dim, simt::platform& device, std::uint64_t most_warps = ~std::uint64_t{0})
      : dim_(dim),
        device_(device),
        most_warps_(most_warps),
        queries_(device),
        units_(device),
        probes_(device),
        slots_(device),
        bounds_(device),
        lists_(device),
        found_(device),
        nearest_(device),
        state_(1, device) {}

  std::uint32_t dim() const { return dim_; }
  simt::platform& device() const { return device_; }

  plan_limits limits(std::uint32_t k) const {
    return {group_nbytes(dim_), tile_queries, 2 * nwarps_a_block, std::uint64_t{8} * most_blocks<by_page>(k),
            std::min<std::uint64_t>(most_scratch_nbytes / sizeof(std::uint64_t) / k, UINT32_MAX)};
  }

  void take(const query_rows& queries) { queries_.copy_of({queries.elements, queries.n * dim_}); }

  // The k nearest keys of queries first, first + 1, ..., of those that were taken; the plan has their numbers from 0 on. look:
  // called now and then with units that are done of all; what it throws ends the work. Throws read_failure.
  template <class Elements, class Look>
  std::vector<std::uint64_t> run(const Elements& elements, const plan& what, std::uint64_t first, std::uint32_t k,
                                 const Look& look) {
    const simt::on_device here(device_);
    const auto nqueries = static_cast<std::uint32_t>(what.slots.size() - 1);
    const unsigned nblocks = static_cast<unsigned>(std::clamp<std::uint64_t>(what.units.size(), 1, most_blocks<Elements>(k)));
    state_.write_one({});
    std::uint64_t* const found = found_(std::uint64_t{what.slots.back()} * k);
    const std::vector<std::uint32_t> far(nqueries, ~0u);
    const scan_kernel<Elements> kernel{elements,
                                       units_.copy_of(what.units),
                                       static_cast<std::uint32_t>(what.units.size()),
                                       probes_.copy_of(what.probes),
                                       queries_(0) + first * dim_,
                                       dim_,
                                       k,
                                       lists_(std::uint64_t{nblocks} * nwarps_a_block * tile_queries * k),
                                       found,
                                       bounds_.copy_of(far),
                                       state_.get()};
    if (!what.units.empty()) {  // lists that have vectors; look() gets a part of something
      launch_watched<block_threads, least_blocks>(
          config(nblocks), kernel, device_,
          [&] { look(std::min<std::uint64_t>(state_.read_one().next, what.units.size()), what.units.size()); },
          [&] {
            const std::uint32_t stop = 1;
            device_.copy_to_device(&state_.get()->stop, &stop, sizeof stop);
          });
    }
    if (const std::int64_t error = state_.read_one().error; error != 0) throw read_failure{static_cast<int>(error)};
    std::uint64_t* const nearest = nearest_(std::uint64_t{nqueries} * k);
    const merge_kernel merge{slots_.copy_of(what.slots), nqueries, k, found, bounds_(0), nearest};
    simt::launch<block_threads, least_blocks>(config(std::min((nqueries + nwarps_a_block - 1) / nwarps_a_block, most_grid)), merge);
    return nearest_.read(std::uint64_t{nqueries} * k);
  }

 private:
  static constexpr unsigned most_grid = GPUFS_ON_CUDA ? 1 << 20 : 4;

  static simt::launch_config config(unsigned nblocks) {
    simt::launch_config of{.grid = nblocks, .block = block_threads};
    of.schedule.timeout_ns = 0;  // what waits inside has its own deadline
    of.schedule.switch_percent = GPUFS_ON_CUDA ? 0 : 5;
    return of;
  }
  template <class Elements>
  std::uint64_t most_blocks(std::uint32_t k) const {
    const simt::on_device here(device_);
    std::uint64_t n =
        GPUFS_ON_CUDA ? simt::max_cooperative_grid<block_threads, least_blocks>(config(1), scan_kernel<Elements>{}) : 3;
    n = std::min(n, most_warps_ / nwarps_a_block);
    n = std::min(n, most_scratch_nbytes / (sizeof(std::uint64_t) * nwarps_a_block * tile_queries * k));
    return std::max<std::uint64_t>(n, 1);
  }

  std::uint32_t dim_;
  simt::platform& device_;
  std::uint64_t most_warps_;
  room_for<float> queries_;
  room_for<unit> units_;
  room_for<probe> probes_;
  room_for<std::uint32_t> slots_, bounds_;
  room_for<std::uint64_t> lists_, found_, nearest_;
  simt::device_array<scan_state> state_;
};

// Centroids in a device's memory.
class device_centroids {
 public:
  device_centroids(std::span<const std::byte> groups, std::uint32_t nlists, simt::platform& device)
      : groups_(groups, device), nlists_(nlists) {}

  // The numbers of the nprobe nearest ones for each of n queries from `first` on, of those that the scanner has taken.
  template <class Look>
  std::vector<std::uint32_t> nearest(scanner& by, std::uint64_t first, std::uint32_t n, std::uint32_t nprobe,
                                     const Look& look) const {
    const place all{0, static_cast<std::uint32_t>(groups_of(nlists_))};
    const plan what = make_plan({&all, 1}, {}, 0, n, by.limits(nprobe));
    std::vector<std::uint32_t> numbers;
    if (what.slots.empty() && n > 1) {  // their results would take too much memory together
      numbers = nearest(by, first, n / 2, nprobe, look);
      const std::vector<std::uint32_t> rest = nearest(by, first + n / 2, n - n / 2, nprobe, look);
      numbers.insert(numbers.end(), rest.begin(), rest.end());
      return numbers;
    }
    if (what.slots.empty()) throw too_many_results();
    for (const std::uint64_t key : by.run(in_memory{groups_.get(), 2}, what, first, nprobe, look)) {
      numbers.push_back(id_of(key));
    }
    return numbers;
  }
  std::uint32_t nlists() const { return nlists_; }

 private:
  simt::device_array<std::byte> groups_;
  std::uint32_t nlists_;
};

// Searches lists that `elements` reads, of queries that the scanner takes. look(units, of units).
template <class Elements, class Look>
void search_lists(scanner& by, const Elements& elements, std::span<const place> lists, std::span<const std::uint32_t> chosen,
                  std::uint32_t nprobe, std::uint64_t first, std::uint32_t n, std::uint32_t k, std::uint64_t* nearest,
                  const Look& look) {
  const plan what = make_plan(lists, chosen, nprobe, n, by.limits(k));
  if (what.slots.empty() && n > 1) {
    const std::uint32_t half = n / 2;
    search_lists(by, elements, lists, chosen.empty() ? chosen : chosen.first(std::size_t{half} * nprobe), nprobe, first, half, k,
                 nearest, look);
    search_lists(by, elements, lists, chosen.empty() ? chosen : chosen.subspan(std::size_t{half} * nprobe), nprobe, first + half,
                 n - half, k, nearest + std::uint64_t{half} * k, look);
    return;
  }
  if (what.slots.empty()) throw too_many_results();
  const std::vector<std::uint64_t> keys = by.run(elements, what, first, k, look);
  std::copy(keys.begin(), keys.end(), nearest);
}

// All batches of a search: the nearest centroids of each, then their lists.
template <class Elements>
std::uint64_t search_batches(scanner& by, const Elements& elements, const device_centroids& centroids, const index_file& index,
                             const query_rows& queries, const search_options& how, std::uint64_t* nearest,
                             const progress_function& progress) {
  std::uint64_t ncompared = 0;
  for (std::uint64_t done = 0; done < queries.n;) {
    const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(how.batch, queries.n - done));
    by.take({queries.elements + done * by.dim(), n});
    std::vector<std::uint32_t> chosen;
    if (how.nprobe < index.nlists()) {
      chosen = centroids.nearest(by, 0, n, how.nprobe, [&](std::uint64_t, std::uint64_t) { progress(done, queries.n); });
      for (const std::uint32_t list : chosen) ncompared += index.entries()[list].nvectors;
    } else {
      ncompared += index.head().nvectors * n;
    }
    search_lists(by, elements, index.lists(), chosen, how.nprobe, 0, n, how.k, nearest + done * how.k,
                 [&](std::uint64_t units, std::uint64_t all) { progress(done + n * units / all, queries.n); });
    done += n;
    progress(done, queries.n);
  }
  return ncompared;
}

class device_engine final : public engine {
 public:
  device_engine(const index_file& index, const engine_options& options)
      : index_(index),
        path_(std::filesystem::canonical(index.path())),  // a mount follows no link out of its root
        fs_(path_.parent_path().string(), mount_options_of(index, options)),
        opened_(opened()),
        scanner_(index.dim(), fs_.device(), fs_.options().cache_nbytes / fs_.options().page_nbytes / 4),
        centroids_(index.centroids(), index.nlists(), fs_.device()) {
    index_.check_unchanged();  // or opened_ could be another file
    opened_.advise(advice::whole);
  }

  search_facts search(const query_rows& queries, const search_options& how, std::uint64_t* nearest,
                      const progress_function& progress) override {
    const simt::on_device here(fs_.device());
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t before = fs_.counters().bytes_filled;
    search_facts facts;
    try {
      facts.ncompared = search_batches(scanner_, by_page{opened_.ref(), 0, 2}, centroids_, index_, queries, how, nearest, progress);
    } catch (const read_failure& failure) {
      if (failure.error == -ESTALE || failure.error == -ENXIO) index_.fail_changed();
      if (failure.error == -ENOMEM) index_.fail("no page of the cache was free for long: allow more by --cache-size", ENOMEM);
      index_.fail(std::string("cannot be read: ") + std::strerror(-failure.error), -failure.error);
    }
    index_.check_unchanged();
    facts.bytes_read = fs_.counters().bytes_filled - before;
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return facts;
  }

 private:
  // Of a page that a list has a few of, 64 KiB at most.
  static std::uint32_t page_nbytes_of(const index_file& index) {
    const std::uint64_t mean = (index.head().file_nbytes - lists_at(index.nlists(), index.dim())) / index.nlists();
    std::uint32_t nbytes = 4096;
    while (nbytes < (64 << 10) && std::uint64_t{nbytes} * 16 <= mean) nbytes *= 2;
    return nbytes;
  }
  static mount_options mount_options_of(const index_file& index, const engine_options& options) {
    mount_options all;
    all.device = options.device;
    all.cache_nbytes = options.cache_nbytes;
    all.page_nbytes = options.page_nbytes != 0 ? options.page_nbytes : page_nbytes_of(index);
    return all;
  }
  host_file opened() const {
    try {
      return {fs_, path_.filename().string()};
    } catch (const std::system_error& error) {
      index_.fail(error.code().message(), error.code().value());
    }
  }

  const index_file& index_;
  std::filesystem::path path_;
  mount fs_;
  host_file opened_;
  scanner scanner_;
  device_centroids centroids_;
};

class device_quantizer final : public quantizer {
 public:
  device_quantizer(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim, const engine_options& options)
      : scanner_(dim, simt::device(options.device)), centroids_(centroids, nlists, scanner_.device()) {}

  void nearest(const query_rows& vectors, std::uint32_t* lists, const progress_function& look) override {
    scanner_.take(vectors);
    const std::vector<std::uint32_t> numbers = centroids_.nearest(scanner_, 0, static_cast<std::uint32_t>(vectors.n), 1, look);
    std::copy(numbers.begin(), numbers.end(), lists);
  }

 private:
  scanner scanner_;
  device_centroids centroids_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::vectors
