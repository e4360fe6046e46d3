// SPDX-License-Identifier: Apache-2.0
// A breadth-first search of an RMAT graph whose lists of neighbours lie in a file in memory, of which the cache holds an eighth, by
// pages of 4 KiB. A warp takes a vertex of the frontier, or 1,024 neighbours of a large one. The file is registered before; each
// search has a mount of its own.
//
// part_pages_bfs_queue: the frontier in the order in which vertices were found, by sectors (advise(random)), over the same kernel
// by whole pages. part_pages_bfs: the frontier as a bitmap, in ascending order, by sectors, over whole pages in queue order.
// part_pages_vs_host_memory: the same over its kernel reading the registered file in place (EMOGI: Min et al., VLDB 2020).
// part_pages_bytes: the bytes that it brings over the bus, over those of the lines of 128 bytes that the kernel in place touches.
// bfs_learnt_queue, bfs_learnt_ascending: without advice, so that each search learns, over whole pages in queue order.
// The levels of a search are checked against the graph by the host, and all searches' against that one's.
#include "graph.hpp"
#include "rows.hpp"
#include "subject.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096, unseen = ~0u;
constexpr std::uint64_t piece_neighbours = page_nbytes / sizeof(vertex), large_neighbours = 4 * piece_neighbours;

GPUFS_DEVICE std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

// A part of a vertex's list, within a page.
struct piece {
  vertex of;
  std::uint32_t number;
};

struct edge_range {
  std::uint64_t begin, end;
};

struct counts_of_level {
  std::uint64_t queued, large, found, failed;
};

// What all kernels of a search share.
struct search {
  const std::uint64_t* begins;
  std::uint32_t* levels;
  std::uint32_t level;    // of what is found
  piece* next;            // in queue order
  std::uint32_t* bitmap;  // in ascending order
  piece* large;
  counts_of_level* counts;

  GPUFS_DEVICE edge_range all_of(vertex v) const { return {begins[v], begins[v + 1]}; }
  GPUFS_DEVICE static std::uint32_t pieces_of(const edge_range& list) {
    if (list.begin == list.end) return 0;
    return static_cast<std::uint32_t>((list.end - 1) / piece_neighbours - list.begin / piece_neighbours + 1);
  }
  GPUFS_DEVICE edge_range part_of(const piece& p) const {
    const edge_range list = all_of(p.of);
    const std::uint64_t page = (list.begin / piece_neighbours + p.number) * piece_neighbours;
    return {list.begin > page ? list.begin : page, least(list.end, page + piece_neighbours)};
  }
  template <class Warp>
  GPUFS_DEVICE void push(Warp warp, piece* queue, std::uint64_t& size, vertex v, std::uint32_t npieces) const {
    if (warp.ballot(npieces != 0) == 0) return;
    const std::uint64_t before = warp.exclusive_scan_add(std::uint64_t{npieces}), all = warp.reduce_add(std::uint64_t{npieces});
    std::uint64_t first = 0;
    if (warp.leader()) first = atomic_ref<std::uint64_t>(size).fetch_add(all, std::memory_order_relaxed);
    first = warp.broadcast(first) + before;
    for (std::uint32_t i = 0; i < npieces; ++i) queue[first + i] = {v, i};
  }
};

// --- Where the neighbours come from -------------------------------------------------------------------------------------------

// each(is_one, neighbour) is called by all lanes.
struct in_place {
  const vertex* neighbours;  // in host memory

  template <class Warp, class Each>
  GPUFS_DEVICE void read(Warp warp, const edge_range& range, counts_of_level*, const Each& each) const {
    for (std::uint64_t at = range.begin / 32 * 32; at < range.end; at += 32) {
      const std::uint64_t mine = at + warp.rank();
      const bool is_one = mine >= range.begin && mine < range.end;
      each(is_one, is_one ? neighbours[mine] : 0);
    }
  }
};

struct by_pread {
  static constexpr std::uint64_t most = 512;  // neighbours a call

  gpufs::mount_ref fs;
  gpufs::file_number number;
  vertex* scratch;  // so many a warp

  template <class Warp, class Each>
  GPUFS_DEVICE void read(Warp warp, const edge_range& range, counts_of_level* counts, const Each& each) const {
    vertex* const mine = scratch + global_warp() * most;
    const gpufs::file file(fs, number);
    for (std::uint64_t at = range.begin; at < range.end;) {
      const auto n = static_cast<std::uint32_t>(least(range.end, (at / most + 1) * most) - at);
      const std::size_t nbytes = n * sizeof(vertex);
      const std::int64_t got = gpufs::pread(warp, file, mine, nbytes, static_cast<std::int64_t>(at * sizeof(vertex)));
      if (got != static_cast<std::int64_t>(nbytes)) {
        if (warp.leader()) atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
        return;
      }
      for (std::uint32_t i = 0; i < n; i += 32) {
        const bool is_one = i + warp.rank() < n;
        each(is_one, is_one ? mine[i + warp.rank()] : 0);
      }
      warp.sync();
      at += n;
    }
  }
};

// --- The kernels --------------------------------------------------------------------------------------------------------------

enum class order { queue, ascending };

// Notes the neighbours in `range` that nobody has seen.
template <order Order, class Warp, class Neighbours>
GPUFS_DEVICE std::uint32_t visit(Warp warp, const search& s, const Neighbours& from, const edge_range& range) {
  std::uint32_t found = 0;
  from.read(warp, range, s.counts, [&](bool is_one, vertex v) {
    bool is_first = false;
    if (is_one && atomic_ref<std::uint32_t>(s.levels[v]).load_relaxed() == unseen) {
      if constexpr (Order == order::queue) {
        std::uint32_t was = unseen;
        is_first = atomic_ref<std::uint32_t>(s.levels[v]).compare_exchange(was, s.level, std::memory_order_relaxed);
      } else {
        atomic_ref<std::uint32_t>(s.levels[v]).store(s.level, std::memory_order_relaxed);  // as all do that see it now
        const std::uint32_t bit = 1u << (v % 32);
        is_first = (atomic_ref<std::uint32_t>(s.bitmap[v / 32]).fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
      }
    }
    if constexpr (Order == order::queue) {
      s.push(warp, s.next, s.counts->queued, v, is_first ? search::pieces_of(s.all_of(v)) : 0);
    } else {
      found += is_first ? 1 : 0;
    }
  });
  return found;
}

template <order Order, class Neighbours>
struct search_pieces {
  search s;
  Neighbours from;
  const piece* pieces;
  std::uint64_t n;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    std::uint32_t found = 0;
    for (std::uint64_t i = global_warp(); i < n; i += all_threads() / 32)
      found += visit<Order>(warp, s, from, s.part_of(pieces[i]));
    found = warp.reduce_add(found);
    if (warp.leader() && found != 0) atomic_ref<std::uint64_t>(s.counts->found).add_relaxed(found);
  }
};

template <class Neighbours>
struct search_bitmap {
  search s;
  Neighbours from;
  std::uint32_t* frontier;  // left empty
  std::uint64_t nwords;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    std::uint32_t found = 0;
    for (std::uint64_t w = global_warp(); w < nwords; w += all_threads() / 32) {
      std::uint32_t left = warp.broadcast(frontier[w]);
      if (left == 0) continue;
      if (warp.leader()) frontier[w] = 0;
      edge_range run{0, 0};  // lists that lie one behind the other are read as one
      for (; left != 0; left &= left - 1) {
        const auto v = static_cast<vertex>(w * 32 + gpufs::simt::lowest_lane(left));
        const edge_range list = s.all_of(v);
        if (list.end - list.begin > large_neighbours) {
          s.push(warp, s.large, s.counts->large, v, warp.leader() ? search::pieces_of(list) : 0);
        } else if (list.begin == run.end) {
          run.end = list.end;
        } else {
          found += visit<order::ascending>(warp, s, from, run);
          run = list;
        }
      }
      found += visit<order::ascending>(warp, s, from, run);
    }
    found = warp.reduce_add(found);
    if (warp.leader() && found != 0) atomic_ref<std::uint64_t>(s.counts->found).add_relaxed(found);
  }
};

// --- Searches -----------------------------------------------------------------------------------------------------------------

struct searched {
  double seconds = 0;
  std::vector<std::uint32_t> levels{};
  std::uint64_t failed = 0;
};

class searches {
 public:
  searches(const graph& g, const shape& how)
      : graph_(g),
        how_(how),
        levels_(g.nvertices),
        queues_{device_array<piece>(g.nvertices + g.nneighbours / piece_neighbours + 1),
                device_array<piece>(g.nvertices + g.nneighbours / piece_neighbours + 1)},
        bitmaps_{device_array<std::uint32_t>(g.nvertices / 32 + 1), device_array<std::uint32_t>(g.nvertices / 32 + 1)},
        counts_(1) {}

  template <order Order, class Neighbours>
  searched from_root(const Neighbours& from) {
    const vertex root = graph_.root();
    levels_.write(std::vector<std::uint32_t>(graph_.nvertices, unseen));
    levels_.write_one(0, root);
    counts_of_level now{};
    if (Order == order::queue) {
      now.queued = (graph_.begins_here[root + 1] - 1) / piece_neighbours - graph_.begins_here[root] / piece_neighbours + 1;
      for (std::uint32_t i = 0; i < now.queued; ++i) queues_[0].write_one({root, i}, i);
    } else {
      bitmaps_[0].write_one(1u << (root % 32), root / 32);
      now.found = 1;
    }
    searched result;
    for (std::uint32_t level = 1, turn = 0; now.queued + now.found != 0 && result.failed == 0; ++level, turn ^= 1) {
      counts_.write_one({}, 0);
      const search s{graph_.begins.get(),      levels_.get(),    level,        queues_[turn ^ 1].get(),
                     bitmaps_[turn ^ 1].get(), queues_[0].get(), counts_.get()};
      if constexpr (Order == order::queue) {
        result.seconds += run(how_, search_pieces<Order, Neighbours>{s, from, queues_[turn].get(), now.queued});
      } else {
        result.seconds += run(how_, search_bitmap<Neighbours>{s, from, bitmaps_[turn].get(), graph_.nvertices / 32 + 1});
        const std::uint64_t large = counts_.read_one().large;
        if (large != 0) result.seconds += run(how_, search_pieces<Order, Neighbours>{s, from, queues_[0].get(), large});
      }
      now = counts_.read_one();
      result.failed += now.failed;
    }
    result.levels = levels_.read();
    return result;
  }

 private:
  const graph& graph_;
  shape how_;
  device_array<std::uint32_t> levels_;
  device_array<piece> queues_[2];
  device_array<std::uint32_t> bitmaps_[2];
  device_array<counts_of_level> counts_;
};

// Whether these are the levels of a search from the root: an edge leads one level on at most, and each vertex that was found has a
// neighbour one level before. The edges lead both ways.
bool are_levels(const graph& g, const vertex* neighbours, const std::vector<std::uint32_t>& levels) {
  const vertex root = g.root();
  const std::uint64_t wrong = sum_in_parallel(g.nvertices, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t bad = 0;
    for (std::uint64_t v = begin; v < end; ++v) {
      if (levels[v] == unseen) continue;  // a found neighbour of it would tell
      bool is_reached = v == root && levels[v] == 0;
      for (std::uint64_t e = g.begins_here[v]; e < g.begins_here[v + 1]; ++e) {
        const std::uint32_t other = levels[neighbours[e]];
        bad += other == unseen || other > levels[v] + 1;
        is_reached |= other + 1 == levels[v];
      }
      bad += !is_reached;
    }
    return bad;
  });
  return wrong == 0 && levels[root] == 0;
}

// The lines that a kernel touches which reads in place.
std::uint64_t line_nbytes(const graph& g, const std::vector<std::uint32_t>& levels) {
  constexpr std::uint64_t neighbours_a_line = 128 / sizeof(vertex);
  return 128 * sum_in_parallel(g.nvertices, [&](std::uint64_t begin, std::uint64_t end) {
           std::uint64_t lines = 0;
           for (std::uint64_t v = begin; v < end; ++v) {
             const std::uint64_t b = g.begins_here[v], e = g.begins_here[v + 1];
             if (levels[v] != unseen && b != e) lines += (e - 1) / neighbours_a_line - b / neighbours_a_line + 1;
           }
           return lines;
         });
}

// --- Ways, measured -----------------------------------------------------------------------------------------------------------

struct measured {
  std::vector<double> rates{}, bytes{};  // M neighbours a second; bytes over the bus
  bool right = true;
};

class bench_of_bfs {
 public:
  bench_of_bfs(const graph& g, const subject& s, const shape& how, int repeats)
      : graph_(g), subject_(s), how_(how), repeats_(repeats), all_(g, how), scratch_(how.warps() * by_pread::most) {
    const mapped_file here(s.folder.path() + "/data", s.nbytes);
    const auto* neighbours = reinterpret_cast<const vertex*>(here.data());
    first_ = all_.from_root<order::queue>(in_place{reinterpret_cast<const vertex*>(s.mapping())}).levels;
    right_ = are_levels(g, neighbours, first_);
    for (std::uint64_t v = 0; v < g.nvertices; ++v) {
      if (first_[v] != unseen) nread_ += g.begins_here[v + 1] - g.begins_here[v];
    }
    std::printf("%-14s %.3g of %.3g G neighbours are read, in %u levels%s\n", "graph", static_cast<double>(nread_) * 1e-9,
                static_cast<double>(g.nneighbours) * 1e-9, depth(), right_ ? "" : "; WRONG levels");
  }

  template <order Order>
  measured in_host_memory() {
    measured result;
    for (int r = 0; r <= repeats_; ++r) {
      const searched done = all_.from_root<Order>(in_place{reinterpret_cast<const vertex*>(subject_.mapping())});
      note(done, r, result);
      if (r > 0) result.bytes.push_back(static_cast<double>(line_nbytes(graph_, done.levels)));
    }
    return result;
  }

  // The first of a search's mounts warms up what all share.
  template <order Order>
  measured through_cache(gpufs::advice what) {
    measured result;
    for (int r = 0; r <= repeats_; ++r) {
      gpufs::mount_options options = short_waits();
      options.cache_nbytes = std::max<std::uint64_t>(subject_.nbytes / 8, 64 * page_nbytes) / page_nbytes * page_nbytes;
      options.page_nbytes = page_nbytes;
      options.custom_store = subject_.files;
      const gpufs::mount fs(subject_.folder.path(), options);
      fs.prepare("data");
      const host_file file(fs, "data", O_RDONLY);
      const device_array<std::uint64_t> failed(1);
      run({1, 32}, advise_all{fs.ref(), file.ref().number(), what, failed.get()});
      const searched done = all_.from_root<Order>(by_pread{fs.ref(), file.ref().number(), scratch_.get()});
      note(done, r, result);
      result.right = result.right && failed.read_one() == 0;
      if (r > 0) result.bytes.push_back(static_cast<double>(fs.counters().bytes_filled));
    }
    return result;
  }

 private:
  void note(const searched& done, int r, measured& result) const {
    if (done.failed != 0) std::printf("WRONG: %llu calls failed\n", static_cast<unsigned long long>(done.failed));
    result.right = result.right && right_ && done.failed == 0 && done.levels == first_;
    if (r > 0) result.rates.push_back(static_cast<double>(nread_) * 1e-6 / done.seconds);
  }
  unsigned depth() const {
    std::uint32_t most = 0;
    for (const std::uint32_t level : first_) most = level == unseen ? most : std::max(most, level);
    return most + 1;
  }

  const graph& graph_;
  const subject& subject_;
  shape how_;
  int repeats_;
  searches all_;
  device_array<vertex> scratch_;
  std::vector<std::uint32_t> first_;
  std::uint64_t nread_ = 0;
  bool right_ = false;
};

void tell(const char* name, const char* label, const measured& ours, const measured& theirs, const char* theirs_are, results& out) {
  measurement m{name, label, ours.rates, "M neighbours/s", spread_of(theirs.rates).median, theirs_are};
  m.verified = ours.right && theirs.right;
  m.details = {{"GB over the bus", spread_of(ours.bytes).median * 1e-9}, {"theirs", spread_of(theirs.bytes).median * 1e-9}};
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("bfs", [&] {
    arguments args(argc, argv, "bfs  --dir DIR  --scale N  --edges N  --blocks-per-sm N  --warps N  --repeats N", on_gpu);
    const machine_facts machine = this_machine();
    const shape how = grid_of(machine, args);
    const auto scale = static_cast<unsigned>(args.number("scale", {25, 22, 12}));
    const auto edges = static_cast<unsigned>(args.number("edges", {16, 16, 16}));  // a vertex, both ways
    const int repeats = std::min(repeats_of(args), 3);
    const std::string parent = args.path("dir", "/dev/shm");
    results out("bfs", args, machine);
    const graph g(scale, edges, how);
    const subject s(parent, g.nneighbours * sizeof(vertex), "memory",
                    [&](const std::string& path, std::uint64_t) { g.write(path); });
    if (s.mapping() == nullptr) {
      out.note("the file cannot be registered" + s.how_bytes_come());
      return out.finish();
    }
    bench_of_bfs all(g, s, how, repeats);
    const measured whole = all.through_cache<order::queue>(gpufs::advice::whole);
    if (args.wants("part_pages_bfs_queue")) {
      const measured parts = all.through_cache<order::queue>(gpufs::advice::random);
      tell("part_pages_bfs_queue", "queue order, by sectors", parts, whole, "by whole pages", out);
      tell("bfs_queue_vs_host_memory", "queue order, by sectors", parts, all.in_host_memory<order::queue>(),
           "its kernel in host memory", out);
    }
    if (args.wants_any({"part_pages_bfs", "part_pages_vs_host_memory", "part_pages_bytes"})) {
      const measured parts = all.through_cache<order::ascending>(gpufs::advice::random);
      const measured place = all.in_host_memory<order::ascending>();
      tell("part_pages_bfs", "ascending, by sectors", parts, whole, "queue order, by whole pages", out);
      tell("part_pages_vs_host_memory", "ascending, by sectors", parts, place, "its kernel in host memory", out);
      measurement bytes{"part_pages_bytes",   "ascending, by sectors",       parts.bytes,
                        "bytes over the bus", spread_of(place.bytes).median, "lines that the kernel in place touches"};
      bytes.verified = parts.right && place.right;
      out.add(bytes);
    }
    if (args.wants("bfs_whole_ascending")) {
      tell("bfs_whole_ascending", "ascending, by whole pages", all.through_cache<order::ascending>(gpufs::advice::whole), whole,
           "queue order, by whole pages", out);
    }
    if (args.wants("bfs_learnt_queue")) {
      tell("bfs_learnt_queue", "queue order, without advice", all.through_cache<order::queue>(gpufs::advice::normal), whole,
           "by whole pages", out);
    }
    if (args.wants("bfs_learnt_ascending")) {
      tell("bfs_learnt_ascending", "ascending, without advice", all.through_cache<order::ascending>(gpufs::advice::normal), whole,
           "queue order, by whole pages", out);
    }
    args.done();
    return out.finish();
  });
}
