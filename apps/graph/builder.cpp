// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/builder.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>
#include <type_traits>
#include <utility>

#include "apps/atomic_file.hpp"
#include "apps/crc32.hpp"
#include "apps/parallel.hpp"
#include "gpufs/store/mapped_store.hpp"

namespace gpufs::apps::graph {
namespace {

constexpr std::uint64_t edges_a_part = 1 << 18;     // of a generator
constexpr std::uint64_t entries_a_piece = 1 << 20;  // that a thread sorts and writes

class synthetic_edges final : public edge_source {
 public:
  synthetic_edges(const synth_options& of, std::uint64_t n, bool weights) : of_{of}, n_(n), weights_(weights) {}
  std::uint64_t nvertices() const override { return std::uint64_t{1} << of_.scale; }
  bool has_weights() const override { return weights_; }
  std::uint64_t nparts() const override { return (n_ + edges_a_part - 1) / edges_a_part; }
  void read_part(std::uint64_t part, std::vector<weighted_edge>& to) const override {
    for (std::uint64_t i = part * edges_a_part; i < std::min(n_, (part + 1) * edges_a_part); ++i) {
      const edge drawn = of_(i);
      to.push_back({drawn.from, drawn.to, weights_ ? of_.weight_of(drawn.from, drawn.to) : 0});
    }
  }

 private:
  generator of_;
  std::uint64_t n_;
  bool weights_;
};

class cpu_list_builder final : public list_builder {
 public:
  cpu_list_builder(const edge_source& edges, unsigned nthreads) : edges_(edges), nthreads_(thread_count(nthreads)) {}

  void count(std::span<std::uint64_t> counts, direction of, bool both, const progress_function& progress) override {
    each_entry(of, both, progress, [&](const weighted_edge& e) {
      std::atomic_ref<std::uint64_t>(counts[e.from]).fetch_add(1, std::memory_order_relaxed);
    });
  }
  void place(vertex first, std::span<const std::uint64_t> begins, direction of, bool both, std::uint32_t* entries,
             const progress_function& progress) override {
    place_any(first, begins, of, both, entries, progress);
  }
  void place(vertex first, std::span<const std::uint64_t> begins, direction of, bool both, std::uint64_t* entries,
             const progress_function& progress) override {
    place_any(first, begins, of, both, entries, progress);
  }

 private:
  template <class Entry>
  void place_any(vertex first, std::span<const std::uint64_t> begins, direction of, bool both, Entry* entries,
                 const progress_function& progress) {
    std::vector<std::uint64_t> next(begins.begin(), begins.end() - 1);
    each_entry(of, both, progress, [&](const weighted_edge& e) {
      const std::uint64_t i = std::uint64_t{e.from} - first;  // of a vertex before the first one: beyond all
      if (i >= next.size()) return;
      const std::uint64_t at = std::atomic_ref<std::uint64_t>(next[i]).fetch_add(1, std::memory_order_relaxed);
      if (at >= begins[i + 1]) fail_changed();
      if constexpr (sizeof(Entry) == 8) {
        entries[at] = std::uint64_t{e.to} << 32 | e.of;
      } else {
        entries[at] = e.to;
      }
    });
    if (!std::equal(next.begin(), next.end(), begins.begin() + 1)) fail_changed();
  }
  [[noreturn]] static void fail_changed() { throw gpufs::error("the input was changed while it was read: try again", ESTALE); }
  template <class Use>
  void each_entry(direction of, bool both, const progress_function& progress, const Use& use) {
    const auto caller = std::this_thread::get_id();
    std::atomic<std::uint64_t> ndone{0};
    parallel_for(nthreads_, edges_.nparts(), [&](std::size_t part) {
      std::vector<weighted_edge> edges;
      edges_.read_part(part, edges);
      for (const weighted_edge& e : edges) {
        if (e.from == e.to) continue;
        const weighted_edge back{e.to, e.from, e.of};
        use(of == direction::out ? e : back);
        if (both) use(of == direction::out ? back : e);
      }
      const std::uint64_t now = ++ndone;
      if (std::this_thread::get_id() == caller) progress(now, edges_.nparts());
    });
    progress(edges_.nparts(), edges_.nparts());
  }

  const edge_source& edges_;
  unsigned nthreads_;
};

template <class Entry>
vertex target_of(Entry entry) {
  if constexpr (sizeof(Entry) == 8) {
    return static_cast<vertex>(entry >> 32);
  } else {
    return entry;
  }
}

struct build {
  const std::string& path;
  std::uint64_t nvertices;
  list_builder& lists;
  const build_options& options;
  const stage_function& stage;
  unsigned nthreads = thread_count(options.nthreads);
  bool weighted = options.weights;
  atomic_file file{path};
  build_report report{nvertices, 0, 0, 0, 0};

  progress_function tell(const char* what) const {
    return [this, what](std::uint64_t done, std::uint64_t total) { stage(what, done, total); };
  }
  template <class Entry>
  void write_direction(direction of, header& head);
  template <class Entry>
  void sort_lists(std::span<const std::uint64_t> begins, Entry* entries, std::uint64_t* kept) const;
  template <class Entry, class Get>
  void write_lists(std::span<const std::uint64_t> begins, const Entry* entries, const std::uint64_t* kept, std::uint64_t at,
                   const Get& get);
  std::vector<std::uint64_t> cut(std::span<const std::uint64_t> begins, std::size_t entry_nbytes) const;
  void finish(header& head);
};

// The vertices where ranges begin, and the end.
std::vector<std::uint64_t> build::cut(std::span<const std::uint64_t> begins, std::size_t entry_nbytes) const {
  const std::uint64_t memory = options.memory_nbytes != 0 ? options.memory_nbytes : store::default_pin_nbytes();
  const std::uint64_t most = std::max<std::uint64_t>(memory / entry_nbytes, 1);
  std::vector<std::uint64_t> cuts{0};
  while (cuts.back() < nvertices) {
    const std::uint64_t first = cuts.back();
    auto end = static_cast<std::uint64_t>(
        std::upper_bound(begins.begin() + static_cast<std::ptrdiff_t>(first), begins.end(), begins[first] + most) - begins.begin() -
        1);
    if (end <= first) {
      throw gpufs::error(path + ": the list of vertex " + std::to_string(first) + " needs " +
                             std::to_string(((begins[first + 1] - begins[first]) * entry_nbytes >> 20) + 1) +
                             " MiB of memory while it is made: allow more by --memory",
                         ENOMEM);
    }
    cuts.push_back(std::min(end, nvertices));
  }
  return cuts;
}

// Vertices in pieces of about as many entries; piece(first, end) of each, from many threads.
template <class Piece>
void each_piece_of_lists(unsigned nthreads, std::span<const std::uint64_t> begins, const Piece& piece) {
  const std::uint64_t n = begins.size() - 1;
  const std::uint64_t npieces = (begins.back() + n) / entries_a_piece + 1;
  const auto first_of = [&](std::uint64_t i) {  // the vertex at which so many entries and vertices have passed
    const std::uint64_t wanted = (begins.back() + n) / npieces * i;
    std::uint64_t low = 0, high = n;
    while (low < high) {
      const std::uint64_t middle = (low + high) / 2;
      (begins[middle] + middle < wanted ? low : high) = begins[middle] + middle < wanted ? middle + 1 : middle;
    }
    return low;
  };
  parallel_for(nthreads, npieces, [&](std::size_t i) { piece(first_of(i), i + 1 == npieces ? n : first_of(i + 1)); });
}

// Sorts each list and drops what comes again; kept[i]: how many entries list i has then.
template <class Entry>
void build::sort_lists(std::span<const std::uint64_t> begins, Entry* entries, std::uint64_t* kept) const {
  const auto are_same = [](Entry a, Entry b) { return target_of(a) == target_of(b); };
  each_piece_of_lists(nthreads, begins, [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) {
      Entry *const from = entries + begins[i], *const to = entries + begins[i + 1];
      std::sort(from, to);  // of equal targets the least weight comes first, and stays
      kept[i] = static_cast<std::uint64_t>(std::unique(from, to, are_same) - from);
    }
  });
}

// Writes get(entry) of all entries that were kept, from byte `at` on.
template <class Entry, class Get>
void build::write_lists(std::span<const std::uint64_t> begins, const Entry* entries, const std::uint64_t* kept, std::uint64_t at,
                        const Get& get) {
  using value = std::invoke_result_t<Get, Entry>;
  std::vector<std::uint64_t> places(begins.size());  // of what is kept
  for (std::size_t i = 0; i + 1 < places.size(); ++i) places[i + 1] = places[i] + kept[i];
  each_piece_of_lists(nthreads, begins, [&](std::uint64_t first, std::uint64_t end) {
    std::vector<value> values;
    values.reserve(places[end] - places[first]);
    for (std::uint64_t i = first; i < end; ++i) {
      for (std::uint64_t e = begins[i]; e < begins[i] + kept[i]; ++e) values.push_back(get(entries[e]));
    }
    file.write(values.data(), values.size() * sizeof(value), at + places[first] * sizeof(value));
  });
}

template <class Entry>
void build::write_direction(direction of, header& head) {
  const bool is_out = of == direction::out;
  std::vector<std::uint64_t> begins(nvertices + 1);
  lists.count(std::span(begins).subspan(1), of, !options.directed, tell("counting edges"));
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  const std::vector<std::uint64_t> cuts = cut(begins, sizeof(Entry));
  const std::size_t nranges = cuts.size() - 1;
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < nranges; ++r) most = std::max(most, begins[cuts[r + 1]] - begins[cuts[r]]);
  if (begins.back() > most_edges) throw gpufs::error(path + ": a graph has at most 2^44 edges", EFBIG);

  const std::unique_ptr<Entry[]> entries(new Entry[most]);
  std::vector<std::uint64_t> offsets(nvertices + 1), local;
  const auto make_range = [&](std::size_t r) {
    const std::uint64_t first = cuts[r], end = cuts[r + 1];
    local.assign(begins.begin() + static_cast<std::ptrdiff_t>(first), begins.begin() + static_cast<std::ptrdiff_t>(end) + 1);
    for (std::uint64_t& begin : local) begin -= begins[first];
    lists.place(static_cast<vertex>(first), local, of, !options.directed, entries.get(), tell("placing edges"));
    tell("sorting lists")(r, nranges);
    sort_lists(std::span<const std::uint64_t>(local), entries.get(), offsets.data() + first + 1);
    ++report.nranges;
  };
  // Where weights lie, only the number of targets says: ranges are made anew for them, unless there is one.
  const auto each_range = [&](std::uint64_t at, auto get, bool is_made) {
    std::uint64_t ndone = 0;
    for (std::size_t r = 0; r < nranges; ++r) {
      if (!is_made) make_range(r);
      const std::uint64_t* const kept = offsets.data() + cuts[r] + 1;
      write_lists(std::span<const std::uint64_t>(local), entries.get(), kept, at + ndone * sizeof(get(Entry{})), get);
      ndone += std::accumulate(kept, kept + (cuts[r + 1] - cuts[r]), std::uint64_t{0});
    }
    return ndone;
  };
  layout at = layout_of(head);
  const std::uint64_t targets_at = is_out ? at.targets : at.in_targets;
  const auto narrow = [](Entry e) { return target_of(e); };
  const auto wide = [](Entry e) { return std::uint64_t{target_of(e)}; };
  const std::uint64_t nedges = options.wide_targets ? each_range(targets_at, wide, false) : each_range(targets_at, narrow, false);
  if (is_out) {
    head.nedges = nedges;
    report.ndropped = begins.back() - nedges;
    at = layout_of(head);
    file.resize(at.end);
  } else if (nedges != head.nedges) {
    throw gpufs::error("the input was changed while it was read: try again", ESTALE);
  }
  if constexpr (sizeof(Entry) == 8) {
    if (is_out)
      each_range(
          at.weights, [](Entry e) { return static_cast<weight>(e); }, nranges == 1);
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  file.write(offsets.data(), offsets.size() * sizeof offsets[0], is_out ? at.offsets : at.in_offsets);
}

void build::finish(header& head) {
  const layout at = layout_of(head);
  head.file_nbytes = report.file_nbytes = at.end;
  report.nedges = head.nedges;
  std::snprintf(head.made_by, sizeof head.made_by, "%s", options.made_by.c_str());
  head.crc32 = crc32(0, &head, offsetof(header, crc32));
  file.write(&head, sizeof head, 0);
  tell("writing to the disk")(0, 1);
  file.publish();
}

}  // namespace

std::unique_ptr<edge_source> make_synthetic_edges(const synth_options& of, std::uint64_t n, bool weights) {
  return std::make_unique<synthetic_edges>(of, n, weights);
}

std::unique_ptr<list_builder> make_list_builder_cpu(const edge_source& edges, unsigned nthreads) {
  return std::make_unique<cpu_list_builder>(edges, nthreads);
}

build_report build_graph(const std::string& path, std::uint64_t nvertices, list_builder& lists, const build_options& options,
                         const stage_function& stage) {
  if (nvertices > most_vertices) throw gpufs::error(path + ": a graph has at most 2^32 - 2 vertices", EFBIG);
  build all{path, nvertices, lists, options, stage};
  header head{};
  std::memcpy(head.magic, magic, sizeof magic);
  head.version = format_version;
  head.flags = options.directed ? flag_directed : 0;
  head.nvertices = nvertices;
  head.target_nbytes = options.wide_targets ? 8 : 4;
  head.weight_nbytes = options.weights ? 4 : 0;
  options.weights ? all.write_direction<std::uint64_t>(direction::out, head)
                  : all.write_direction<std::uint32_t>(direction::out, head);
  if (options.directed) all.write_direction<std::uint32_t>(direction::in, head);
  all.finish(head);
  return all.report;
}

}  // namespace gpufs::apps::graph
