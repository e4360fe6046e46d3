// SPDX-License-Identifier: Apache-2.0
// Lists of synthetic graphs by kernels, for the machine that the including source is compiled for. The host sorts them.
#pragma once
#include <algorithm>
#include <memory>
#include <type_traits>

#include "apps/graph/builder.hpp"
#include "apps/graph/device_graph.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

struct count_entries {
  generator draw;
  std::uint64_t first;  // edge
  bool both;
  std::uint64_t* counts;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    const edge e = draw(first + i);
    if (e.from == e.to) return;
    simt::atomic_ref<std::uint64_t>(counts[e.from]).add_relaxed(1);
    if (both) simt::atomic_ref<std::uint64_t>(counts[e.to]).add_relaxed(1);
  }
};

// Puts each entry into a place of its own in its vertex's list; `next` counts up from the list's beginning.
template <class Entry>
struct place_entries {
  generator draw;
  std::uint64_t first;
  bool both;
  vertex first_vertex;
  std::uint64_t nvertices;
  std::uint64_t* next;
  std::uint64_t first_place;  // of `entries`
  Entry* entries;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    const edge e = draw(first + i);
    if (e.from == e.to) return;
    place(e.from, e.to);
    if (both) place(e.to, e.from);
  }
  GPUFS_DEVICE void place(vertex from, vertex to) const {
    const std::uint64_t list = std::uint64_t{from} - first_vertex;  // of a vertex before the first one: beyond all
    if (list >= nvertices) return;
    const std::uint64_t at = simt::atomic_ref<std::uint64_t>(next[list]).fetch_add(1, std::memory_order_relaxed) - first_place;
    if constexpr (sizeof(Entry) == 8) {
      entries[at] = std::uint64_t{to} << 32 | draw.weight_of(from, to);
    } else {
      entries[at] = to;
    }
  }
};

// Synthetic graphs are not directed.
class device_list_builder final : public list_builder {
 public:
  device_list_builder(const synth_options& of, std::uint64_t n, simt::platform& device) : of_{of}, n_(n), device_(device) {}

  void count(std::span<std::uint64_t> counts, direction, bool both, const progress_function& progress) override {
    const simt::on_device here(device_);
    const array<std::uint64_t> found(counts.size(), device_);
    each_part(progress, [&](std::uint64_t first) { return count_entries{of_, first, both, found.get()}; });
    device_.copy_from_device(counts.data(), found.get(), counts.size_bytes());
  }
  void place(vertex first, std::span<const std::uint64_t> begins, direction, bool both, std::uint32_t* entries,
             const progress_function& progress) override {
    place_any(first, begins, both, entries, progress);
  }
  void place(vertex first, std::span<const std::uint64_t> begins, direction, bool both, std::uint64_t* entries,
             const progress_function& progress) override {
    place_any(first, begins, both, entries, progress);
  }

 private:
  static constexpr std::uint64_t edges_a_launch = GPUFS_ON_CUDA ? std::uint64_t{1} << 28 : 1 << 14;

  template <class Make>
  void each_part(const progress_function& progress, const Make& make) const {
    for (std::uint64_t first = 0; first < n_; first += edges_a_launch) {
      const std::uint64_t n = std::min(edges_a_launch, n_ - first);
      run_on_device(~0u, each_vertex<decltype(make(first))>{n, make(first)});
      progress(first + n, n_);
    }
  }
  // As many vertices at once as there is room for.
  template <class Entry>
  void place_any(vertex first, std::span<const std::uint64_t> begins, bool both, Entry* entries,
                 const progress_function& progress) const {
    const simt::on_device here(device_);
    const std::uint64_t nlists = begins.size() - 1;
    for (std::uint64_t list = 0; list < nlists;) {
      const std::uint64_t room = device_.free_nbytes() / 10 * 9;
      const auto nbytes_to = [&](std::uint64_t end) {
        return (begins[end] - begins[list]) * sizeof(Entry) + (end - list) * sizeof(std::uint64_t);
      };
      std::uint64_t low = list + 1, high = nlists;  // one list at least: if it does not fit, that is told
      while (low < high) {
        const std::uint64_t middle = (low + high + 1) / 2;
        (nbytes_to(middle) <= room ? low : high) = nbytes_to(middle) <= room ? middle : middle - 1;
      }
      const array<std::uint64_t> next(begins.subspan(list, low - list), device_);
      const std::uint64_t n = begins[low] - begins[list];
      const array<Entry> placed(n, device_);
      each_part(progress, [&](std::uint64_t first_edge) {
        return place_entries<Entry>{of_,        first_edge, both,         static_cast<vertex>(first + list),
                                    low - list, next.get(), begins[list], placed.get()};
      });
      device_.copy_from_device(entries + begins[list], placed.get(), n * sizeof(Entry));
      list = low;
    }
  }

  generator of_;
  std::uint64_t n_;
  simt::platform& device_;
};

inline std::unique_ptr<list_builder> make_device_list_builder(const synth_options& of, std::uint64_t n, int device) {
  return std::make_unique<device_list_builder>(of, n, simt::device(device));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
