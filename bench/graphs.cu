// SPDX-License-Identifier: Apache-2.0
// The algorithms of `gpufs graph` on a Kronecker graph in a file in memory, of whose edges the cache holds an eighth: against the
// same kernels reading the registered file in place (EMOGI: Min et al., VLDB 2020; target T of BaM, ASPLOS 2023, section 5.2),
// against 16 host threads, and, with a cache that holds all, against the same kernels and plain pointers to GPU memory.
//
// graph_by_cache: by the cache's size (BaM, Figure 10).
//
// Each run through the small cache has a mount of its own, so it begins with an empty cache. Results are compared with those of the
// host threads, to the bit.
#include <memory>
#include <stdexcept>
#include <utility>

#include "apps/graph/engine_device.hpp"
#include "apps/graph/synth_device.hpp"
#include "rows.hpp"
#include "subject.hpp"

namespace {

using namespace bench;
namespace graphs = gpufs::apps::graph;
using graphs::vertex;

const auto nobody = [](std::uint64_t, std::uint64_t) {};

struct timed {
  double seconds;
  bool right;
};
struct measured {
  std::vector<double> seconds{}, bytes{};  // bytes that came over the bus
  bool right = true;
};

// --- What is run: by edges of any kind, the r-th time --------------------------------------------------------------------------

struct bfs_case {
  const graphs::device_graph& lists;
  std::vector<std::pair<vertex, std::vector<std::uint32_t>>> wanted;  // by source

  bfs_case(const graphs::device_graph& of, const graphs::graph_file& file, graphs::engine& threads, int nsources) : lists(of) {
    const std::vector<std::uint64_t> offsets = file.read_offsets(graphs::direction::out);
    for (std::uint64_t i = 0; std::ssize(wanted) < nsources; ++i) {
      const auto source = static_cast<vertex>(scaled(word_of(i + 1), of.nvertices()));
      if (offsets[source] != offsets[source + 1]) wanted.emplace_back(source, threads.bfs(source, nobody).depths);
    }
  }
  template <class EdgesOf>
  timed operator()(EdgesOf& edges, int r) const {
    const auto& [source, depths] = wanted[static_cast<std::size_t>(r) % wanted.size()];
    graphs::bfs_on_device all(lists, edges, gpufs::simt::this_platform());
    const stopwatch watch;
    all.run(source, nobody);
    const double seconds = watch.seconds();
    return {seconds, all.depths().read() == depths};
  }
};

struct components_case {
  const graphs::device_graph& lists;
  std::vector<vertex> wanted;

  template <class EdgesOf>
  timed operator()(EdgesOf& edges, int) const {
    graphs::components_on_device all(lists, edges, gpufs::simt::this_platform());
    const stopwatch watch;
    all.run(nobody);
    const double seconds = watch.seconds();
    return {seconds, all.components().read() == wanted};
  }
};

struct pagerank_case {
  const graphs::device_graph& lists;
  graphs::pagerank_options how;
  std::vector<float> wanted;

  template <class EdgesOf>
  timed operator()(EdgesOf& edges, int) const {
    graphs::pagerank_on_device all(lists, edges, gpufs::simt::this_platform());
    const stopwatch watch;
    all.run(how, nobody);
    const double seconds = watch.seconds();
    return {seconds, all.scores().read() == wanted};
  }
};

// --- Where edges are ----------------------------------------------------------------------------------------------------------

// Edges in the file, always by whole pages or always by sectors: to see what the algorithms' own choice is worth.
struct edges_by_one_share {
  graphs::edges_in_file& of;
  graphs::share only;

  template <graphs::share Share>
  auto targets(graphs::direction which) const {
    return of.targets<Share>(which);
  }
  graphs::share expect(graphs::share) { return of.expect(only); }
};

class graph_bench {
 public:
  // shares: auto, most or few.
  graph_bench(const subject& s, int repeats, const std::string& shares)
      : subject_(s),
        file_(s.folder.path() + "/data"),
        lists_(file_.read_offsets(graphs::direction::out), {}, gpufs::simt::this_platform()),
        repeats_(repeats),
        shares_(shares) {
    if (shares != "auto" && shares != "most" && shares != "few") throw std::invalid_argument("--share is auto, most or few");
  }

  const graphs::graph_file& file() const { return file_; }
  const graphs::device_graph& lists() const { return lists_; }
  double medges(double seconds) const { return static_cast<double>(file_.nedges()) * 1e-6 / seconds; }

  template <class Case>
  measured in_host_memory(const Case& run) const {
    return in_memory(run, subject_.mapping() + file_.targets_at(graphs::direction::out));
  }
  template <class Case>
  measured in_device_memory(const Case& run) const {
    const std::size_t nbytes = file_.nedges() * sizeof(vertex);
    const device_array<std::byte> targets(nbytes);
    gpufs::simt::this_platform().copy_to_device(targets.get(), file_.map() + file_.targets_at(graphs::direction::out), nbytes);
    return in_memory(run, targets.get());
  }
  // The cache holds one part of so many of the edges.
  template <class Case>
  measured through_small_cache(const Case& run, std::uint64_t part = 8) const {
    measured result;
    for (int r = 0; r <= repeats_; ++r) {
      const opened_graph here(*this, std::max<std::uint64_t>(file_.nedges() * sizeof(vertex) / part, 1 << 20));
      graphs::edges_in_file edges(file_, here.fs, *here.file, lists_);
      edges_by_one_share by_one{edges, shares_ == "few" ? graphs::share::few : graphs::share::most};
      const timed done = shares_ == "auto" ? run(edges, r) : run(by_one, r);
      note(done, r, here.fs.counters().bytes_filled, result);
    }
    return result;
  }
  // warm: run before, so that all is there.
  template <class Warm, class Case>
  measured through_large_cache(const Warm& warm, const Case& run) const {
    measured result;
    const opened_graph here(*this, file_.head().file_nbytes / 2 * 3 + (8 << 20));
    graphs::edges_in_file edges(file_, here.fs, *here.file, lists_);
    warm(edges, 0);
    for (int r = 0; r <= repeats_; ++r) {
      const std::uint64_t before = here.fs.counters().bytes_filled;
      note(run(edges, r), r, here.fs.counters().bytes_filled - before, result);
    }
    return result;
  }
  // Seconds until all threads have read the file into pinned memory.
  double load_seconds() const {
    const pinned_array<std::byte> to(file_.head().file_nbytes);
    const auto from = open_file(file_.path(), O_RDONLY);
    const unsigned n = host_threads();
    std::atomic<bool> failed{false};
    const double seconds = run_threads(n, [&](unsigned t) {
      for (std::uint64_t at = to.size() * t / n, end = to.size() * (t + 1) / n; at < end;) {
        const ssize_t got = ::pread(from.get(), to.get() + at, end - at, static_cast<off_t>(at));
        if (got <= 0) return failed.store(true);
        at += static_cast<std::uint64_t>(got);
      }
    });
    if (failed.load()) throw gpufs::error("the graph cannot be read");
    return seconds;
  }

 private:
  struct opened_graph {
    opened_graph(const graph_bench& of, std::uint64_t cache_nbytes) : fs(of.subject_.folder.path(), options_of(of, cache_nbytes)) {
      fs.prepare("data");
      file = std::make_unique<host_file>(fs, "data");
    }
    static gpufs::mount_options options_of(const graph_bench& of, std::uint64_t cache_nbytes) {
      gpufs::mount_options options = short_waits();
      options.page_nbytes = 4096;
      options.cache_nbytes = cache_nbytes / 4096 * 4096;
      options.custom_store = of.subject_.files;
      return options;
    }
    gpufs::mount fs;
    std::unique_ptr<host_file> file;
  };

  template <class Case>
  measured in_memory(const Case& run, const std::byte* targets) const {
    const graphs::edges_in_memory edges{targets, targets, nullptr, sizeof(vertex)};
    measured result;
    for (int r = 0; r <= repeats_; ++r) note(run(edges, r), r, 0, result);
    return result;
  }
  static void note(const timed& done, int r, std::uint64_t nbytes, measured& result) {
    if (!done.right) std::printf("WRONG: another result than that of the host threads\n");
    result.right = result.right && done.right;
    if (r == 0) return;  // warms up what all share
    result.seconds.push_back(done.seconds);
    result.bytes.push_back(static_cast<double>(nbytes));
  }

  const subject& subject_;
  graphs::graph_file file_;
  graphs::device_graph lists_;
  int repeats_;
  std::string shares_;
};

// --- Results ------------------------------------------------------------------------------------------------------------------

class report {
 public:
  report(const graph_bench& of, results& out) : of_(of), out_(out) {}

  // Rates: of ours over theirs.
  void share(const char* name, const char* label, const measured& ours, const measured& theirs, const char* theirs_are,
             double load_seconds = 0) {
    measurement m{name, label, rates(ours), "M edges/s", of_.medges(spread_of(theirs.seconds).median), theirs_are};
    m.verified = ours.right && theirs.right;
    m.details = {{"seconds", spread_of(ours.seconds).median},
                 {"theirs", spread_of(theirs.seconds).median},
                 {"GB over the bus", spread_of(ours.bytes).median * 1e-9}};
    if (load_seconds > 0) {
      m.details.emplace_back("with loading", (spread_of(theirs.seconds).median + load_seconds) / spread_of(ours.seconds).median);
    }
    out_.add(m);
  }
  // By the cache's size, against a quarter of the edges.
  template <class Case>
  void by_cache(const std::string& label, const Case& run) {
    const measured quarter = of_.through_small_cache(run, 4);
    for (const std::uint64_t part : {32, 16, 8, 2, 1}) {
      const std::string size = part == 1 ? "all edges" : "1/" + std::to_string(part) + " of the edges";
      share("graph_by_cache", (label + ", " + size).c_str(), of_.through_small_cache(run, part), quarter, "1/4 of the edges");
    }
  }
  void extra(const char* name, const char* label, const measured& ours, const measured& theirs) {
    measurement m{name, label, ours.seconds, "s", spread_of(theirs.seconds).median, "plain pointers to GPU memory"};
    m.figure = measurement::kind::extra_over_ceiling;
    m.verified = ours.right && theirs.right;
    m.details = {{"MB over the bus", spread_of(ours.bytes).median * 1e-6}};
    out_.add(m);
  }

 private:
  std::vector<double> rates(const measured& of) const {
    std::vector<double> all;
    for (const double seconds : of.seconds) all.push_back(of_.medges(seconds));
    return all;
  }
  const graph_bench& of_;
  results& out_;
};

void make_graph(const std::string& path, const graphs::synth_options& of, std::uint64_t nedges) {
  const auto lists = graphs::make_device_list_builder(of, nedges, gpufs::simt::this_platform().index());
  const graphs::build_report made =
      graphs::build_graph(path, std::uint64_t{1} << of.scale, *lists, {}, [](const char*, std::uint64_t, std::uint64_t) {});
  std::printf("%-14s %.3g M vertices, %.3g G neighbours\n", "graph", static_cast<double>(made.nvertices) * 1e-6,
              static_cast<double>(made.nedges) * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("graphs", [&] {
    arguments args(argc, argv,
                   "graphs  --dir DIR  --scale N  --degree N  --uniform  --share auto|most|few  --rounds N  --repeats N", on_gpu);
    const machine_facts machine = this_machine();
    const auto scale = static_cast<unsigned>(args.number("scale", {25, 22, 12}));
    const auto degree = static_cast<std::uint64_t>(args.number("degree", 32));
    const bool uniform = args.flag("uniform");
    const std::string shares = args.text("share", "auto");
    const auto rounds = static_cast<unsigned>(args.number("rounds", {4, 3, 2}));
    const int repeats = std::min(repeats_of(args), 4);
    const std::string parent = args.path("dir", "/dev/shm");
    results out("graphs", args, machine);
    const std::uint64_t nbytes = (degree << scale) * sizeof(vertex) + (std::uint64_t{8} << scale) + (1 << 20);  // at most
    const subject s(parent, nbytes, "memory", [&](const std::string& path, std::uint64_t) {
      make_graph(path, {uniform ? graphs::synth_kind::urand : graphs::synth_kind::kron, scale, 1}, (degree << scale) / 2);
    });
    if (s.mapping() == nullptr) {
      out.note("the file cannot be registered" + s.how_bytes_come());
      return out.finish();
    }
    const graph_bench all(s, repeats, shares);
    report tell(all, out);
    const auto threads = graphs::make_engine_cpu(all.file(), {.nthreads = std::min(16u, host_threads())});
    const graphs::pagerank_options how{.tolerance = 0, .most_rounds = rounds};
    const bool wants_overhead = args.wants("graph_cache_overhead"), wants_sizes = args.wants("graph_by_cache");
    const double load_seconds = all.load_seconds();

    measured ranks_by_threads;
    const auto ranks_again = [&] {
      graphs::pagerank_result found = threads->pagerank(how, nobody);
      ranks_by_threads.seconds.push_back(found.seconds);
      ranks_by_threads.bytes.push_back(0);
      return found.scores;
    };
    const pagerank_case ranks{all.lists(), how, ranks_again()};
    const auto overhead = [&](const char* label, const auto& run) {
      if (wants_overhead) tell.extra("graph_cache_overhead", label, all.through_large_cache(ranks, run), all.in_device_memory(run));
    };

    if (args.wants("graph_bfs_vs_host_memory") || wants_overhead || wants_sizes) {
      const bfs_case search(all.lists(), all.file(), *threads, repeats + 1);
      if (args.wants("graph_bfs_vs_host_memory")) {
        tell.share("graph_bfs_vs_host_memory", "BFS", all.through_small_cache(search), all.in_host_memory(search),
                   "its kernels in host memory", load_seconds);
      }
      overhead("BFS", search);
      if (wants_sizes) tell.by_cache("BFS", search);
    }
    if (args.wants("graph_cc_vs_host_memory") || wants_overhead || wants_sizes) {
      const components_case components{all.lists(), threads->components(nobody).components};
      if (args.wants("graph_cc_vs_host_memory")) {
        tell.share("graph_cc_vs_host_memory", "components", all.through_small_cache(components), all.in_host_memory(components),
                   "its kernels in host memory", load_seconds);
      }
      overhead("components", components);
      if (wants_sizes) tell.by_cache("components", components);
    }
    if (args.wants_any({"graph_pagerank_vs_cpu", "graph_pagerank_vs_host_memory"})) {
      const measured ours = all.through_small_cache(ranks);
      if (args.wants("graph_pagerank_vs_cpu")) {
        for (int r = 1; r < std::min(repeats, 2); ++r) ranks_by_threads.right = ranks_again() == ranks.wanted;
        tell.share("graph_pagerank_vs_cpu", "PageRank", ours, ranks_by_threads, "16 host threads");
      }
      if (args.wants("graph_pagerank_vs_host_memory")) {
        tell.share("graph_pagerank_vs_host_memory", "PageRank", ours, all.in_host_memory(ranks), "its kernels in host memory",
                   load_seconds);
      }
    }
    overhead("PageRank", ranks);
    args.done();
    return out.finish();
  });
}
