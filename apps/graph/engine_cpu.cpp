// SPDX-License-Identifier: Apache-2.0
// The algorithms by host threads, as GAP has them, over the graph's mapped file.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "apps/bus_guard.hpp"
#include "apps/graph/engine.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::graph {
namespace {

constexpr std::uint64_t vertices_a_share = 1024, most_found_at_once = 1024;

template <class T>
T load(const T& of) {
  return std::atomic_ref<T>(const_cast<T&>(of)).load(std::memory_order_relaxed);
}
template <class T>
bool replace(T& of, T was, T by) {
  return std::atomic_ref<T>(of).compare_exchange_strong(was, by, std::memory_order_relaxed);
}
bool has_bit(const std::vector<std::uint64_t>& bitmap, vertex v) { return (load(bitmap[v / 64]) >> v % 64 & 1) != 0; }
void set_bit(std::vector<std::uint64_t>& bitmap, vertex v) {
  const std::uint64_t bit = std::uint64_t{1} << v % 64;
  if ((load(bitmap[v / 64]) & bit) == 0) std::atomic_ref<std::uint64_t>(bitmap[v / 64]).fetch_or(bit, std::memory_order_relaxed);
}

// Vertices that threads find, in no order.
class vertex_queue {
 public:
  explicit vertex_queue(std::uint64_t room) : found_(room) {}
  std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  void clear() { size_.store(0, std::memory_order_relaxed); }
  void swap(vertex_queue& other) {
    found_.swap(other.found_);
    size_.store(other.size_.exchange(size()), std::memory_order_relaxed);
  }
  vertex operator[](std::uint64_t i) const { return found_[i]; }
  void append(const vertex* from, std::uint64_t n) {
    std::copy(from, from + n, found_.begin() + static_cast<std::ptrdiff_t>(size_.fetch_add(n, std::memory_order_relaxed)));
  }

 private:
  std::vector<vertex> found_;
  std::atomic<std::uint64_t> size_{0};
};
// A thread's share of them; owns nothing.
class found_vertices {
 public:
  explicit found_vertices(vertex_queue& to) : to_(to) {}
  void add(vertex v) {
    found_[n_++] = v;
    if (n_ == most_found_at_once) end();
  }
  void end() {
    to_.append(found_, n_);
    n_ = 0;
  }

 private:
  vertex_queue& to_;
  std::uint64_t n_ = 0;
  vertex found_[most_found_at_once];
};

template <class Target>
class cpu_engine final : public engine {
 public:
  cpu_engine(const graph_file& graph, const engine_options& options)
      : file_(graph), n_(graph.nvertices()), nthreads_(thread_count(options.nthreads)), out_(graph, direction::out) {
    if (graph.is_directed()) in_ = std::make_unique<lists>(graph, direction::in);
    if (graph.has_weights()) weights_ = reinterpret_cast<const weight*>(graph.map() + graph.weights_at());
  }

  bfs_result bfs(vertex source, const progress_function& progress) override;
  components_result components(const progress_function& progress) override;
  pagerank_result pagerank(const pagerank_options& how, const progress_function& progress) override;
  paths_result shortest_paths(vertex source, std::uint64_t delta, const progress_function& progress) override;

 private:
  struct lists {
    lists(const graph_file& graph, direction of)
        : offsets(graph.read_offsets(of)), targets(reinterpret_cast<const Target*>(graph.map() + graph.targets_at(of))) {}
    std::uint64_t size(std::uint64_t v) const { return offsets[v + 1] - offsets[v]; }
    std::vector<std::uint64_t> offsets;
    const Target* targets;
  };
  const lists& out() const { return out_; }
  const lists& in() const { return in_ ? *in_ : out_; }

  // part(begin, end) of [0, n) by all threads: it reads the mapping, and owns nothing.
  template <class Part>
  void each(std::uint64_t n, const Part& part) const {
    std::atomic<bool> is_cut{false};
    parallel_for(
        nthreads_, (n + vertices_a_share - 1) / vertices_a_share,
        [&](std::size_t share) {
          const std::uint64_t begin = share * vertices_a_share;
          if (!bus_guarded([&] { part(begin, std::min(n, begin + vertices_a_share)); })) is_cut.store(true);
        },
        helper_threads::of_process());
    if (is_cut.load()) file_.fail_changed();
    if (is_wrong_.load(std::memory_order_relaxed)) file_.fail_target();
  }
  // The vertex of an edge, or 0 where that is not there.
  vertex target(const lists& from, std::uint64_t e) const {
    const Target v = from.targets[e];
    if (v < n_) [[likely]]
      return static_cast<vertex>(v);
    is_wrong_.store(true, std::memory_order_relaxed);
    return 0;
  }
  template <class Work>
  void timed(run_facts& facts, const Work& work) const {
    const auto begin = std::chrono::steady_clock::now();
    is_wrong_.store(false);
    work();
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  void link(std::vector<vertex>& parents, vertex a, vertex b) const;
  void flatten(std::vector<vertex>& parents) const;

  const graph_file& file_;
  std::uint64_t n_;
  unsigned nthreads_;
  lists out_;
  std::unique_ptr<lists> in_;
  const weight* weights_ = nullptr;
  mutable std::atomic<bool> is_wrong_{false};
};

template <class Target>
bfs_result cpu_engine<Target>::bfs(vertex source, const progress_function& progress) {
  bfs_result result;
  result.depths.assign(n_, not_reached);
  timed(result, [&] {
    std::vector<std::uint32_t>& depths = result.depths;
    vertex_queue queue(n_), next(n_);
    std::vector<std::uint64_t> front(n_ / 64 + 1), found(n_ / 64 + 1);
    depths[source] = 0;
    queue.append(&source, 1);
    std::uint32_t depth = 0;
    std::uint64_t ahead = out().size(source), left = out().offsets[n_], nreached = 1;
    const auto told = [&](std::uint64_t now) {
      nreached += now;
      progress(nreached, n_);
    };
    const auto pull = [&] {  // all that have a neighbour in `front`
      std::atomic<std::uint64_t> nfound{0};
      std::fill(found.begin(), found.end(), 0);
      each(n_, [&](std::uint64_t begin, std::uint64_t end) {
        std::uint64_t here = 0;
        for (std::uint64_t v = begin; v < end; ++v) {
          if (depths[v] != not_reached) continue;
          for (std::uint64_t e = in().offsets[v]; e < in().offsets[v + 1]; ++e) {
            if (!has_bit(front, target(in(), e))) continue;
            depths[v] = depth;
            set_bit(found, static_cast<vertex>(v));
            ++here;
            break;
          }
        }
        nfound.fetch_add(here, std::memory_order_relaxed);
      });
      front.swap(found);
      return nfound.load();
    };
    const auto push = [&] {
      std::atomic<std::uint64_t> nahead{0};
      next.clear();
      each(queue.size(), [&](std::uint64_t begin, std::uint64_t end) {
        found_vertices mine(next);
        std::uint64_t here = 0;
        for (std::uint64_t i = begin; i < end; ++i) {
          for (std::uint64_t e = out().offsets[queue[i]]; e < out().offsets[queue[i] + 1]; ++e) {
            const vertex v = target(out(), e);
            if (load(depths[v]) != not_reached || !replace(depths[v], not_reached, depth)) continue;
            mine.add(v);
            here += out().size(v);
          }
        }
        mine.end();
        nahead.fetch_add(here, std::memory_order_relaxed);
      });
      return nahead.load();
    };
    while (queue.size() != 0) {
      if (ahead > left / 15) {
        std::fill(front.begin(), front.end(), 0);
        for (std::uint64_t i = 0; i < queue.size(); ++i) set_bit(front, queue[i]);
        std::uint64_t now = queue.size(), before = 0;
        do {
          before = now;
          ++depth;
          now = pull();
          told(now);
        } while (now != 0 && (now >= before || now > n_ / 18));
        queue.clear();
        each(n_, [&](std::uint64_t begin, std::uint64_t end) {
          found_vertices mine(queue);
          for (std::uint64_t v = begin; v < end; ++v) {
            if (has_bit(front, static_cast<vertex>(v))) mine.add(static_cast<vertex>(v));
          }
          mine.end();
        });
        ahead = 1;
      } else {
        left -= std::min(left, ahead);
        ++depth;
        ahead = push();
        queue.swap(next);
        told(queue.size());
      }
    }
    result.nrounds = depth;
  });
  count_reached(result);
  return result;
}

template <class Target>
void cpu_engine<Target>::link(std::vector<vertex>& parents, vertex a, vertex b) const {
  vertex x = load(parents[a]), y = load(parents[b]);
  while (x != y) {
    const vertex high = std::max(x, y), low = std::min(x, y), above = load(parents[high]);
    if (above == low || (above == high && replace(parents[high], high, low))) return;
    x = load(parents[load(parents[high])]);
    y = load(parents[low]);
  }
}
template <class Target>
void cpu_engine<Target>::flatten(std::vector<vertex>& parents) const {
  each(n_, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t v = begin; v < end; ++v) {
      vertex root = load(parents[v]);
      for (vertex above; (above = load(parents[root])) != root;) root = above;
      std::atomic_ref<vertex>(parents[v]).store(root, std::memory_order_relaxed);
    }
  });
}

template <class Target>
components_result cpu_engine<Target>::components(const progress_function& progress) {
  constexpr std::uint64_t nsampled = 2, nsamples = 1024;
  components_result result;
  result.components.resize(n_);
  timed(result, [&] {
    std::vector<vertex>& parents = result.components;
    for (std::uint64_t v = 0; v < n_; ++v) parents[v] = static_cast<vertex>(v);
    const std::uint64_t nrounds = in_ ? 3 : 2;
    const auto link_lists = [&](const lists& of, std::uint64_t first, std::uint64_t most, vertex but) {
      each(n_, [&](std::uint64_t begin, std::uint64_t end) {
        for (std::uint64_t v = begin; v < end; ++v) {
          if (but != not_reached && load(parents[v]) == but) continue;
          const std::uint64_t list_end = of.offsets[v] + std::min(most, of.size(v));
          for (std::uint64_t e = of.offsets[v] + first; e < list_end; ++e) link(parents, static_cast<vertex>(v), target(of, e));
        }
      });
      flatten(parents);
    };
    link_lists(out(), 0, nsampled, not_reached);
    progress(1, nrounds);
    vertex largest = 0;
    std::unordered_map<vertex, unsigned> times;
    for (std::uint64_t i = 0; n_ != 0 && i < nsamples; ++i) {
      const vertex v = parents[i * 0x9e3779b97f4a7c15u % n_];
      if (++times[v] > times[largest]) largest = v;
    }
    link_lists(out(), nsampled, most_edges, largest);
    if (in_) link_lists(*in_, 0, most_edges, largest);
    result.nrounds = nrounds;
    progress(nrounds, nrounds);
  });
  count_components(result);
  return result;
}

template <class Target>
pagerank_result cpu_engine<Target>::pagerank(const pagerank_options& how, const progress_function& progress) {
  pagerank_result result;
  result.scores.resize(n_);
  if (n_ == 0) return result;
  timed(result, [&] {
    const score_rules rules = score_rules::of(how.damping, n_);
    std::vector<std::uint64_t> scores(n_, score_one / n_);
    std::vector<float> shares(n_);
    const auto share = [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t v = begin; v < end; ++v) shares[v] = score_rules::share_of(scores[v], out().size(v));
    };
    each(n_, share);
    while (result.nrounds < how.most_rounds) {
      std::atomic<std::uint64_t> change{0};
      each(n_, [&](std::uint64_t begin, std::uint64_t end) {
        std::uint64_t here = 0;
        for (std::uint64_t v = begin; v < end; ++v) {
          std::uint64_t sum = 0;
          for (std::uint64_t e = in().offsets[v]; e < in().offsets[v + 1]; ++e) sum += score_rules::taken(shares[target(in(), e)]);
          const std::uint64_t now = rules.score_of(sum), was = std::exchange(scores[v], now);
          here += now > was ? now - was : was - now;
        }
        change.fetch_add(here, std::memory_order_relaxed);
      });
      each(n_, share);
      ++result.nrounds;
      result.change = static_cast<double>(change.load()) * 0x1p-62;
      progress(result.nrounds, how.most_rounds);
      if (result.change < how.tolerance) break;
    }
    for (std::uint64_t v = 0; v < n_; ++v) result.scores[v] = static_cast<float>(scores[v]) * 0x1p-62f;
  });
  return result;
}

template <class Target>
paths_result cpu_engine<Target>::shortest_paths(vertex source, std::uint64_t delta, const progress_function& progress) {
  paths_result result;
  result.lengths.assign(n_, no_path);
  timed(result, [&] {
    std::vector<std::uint64_t>& lengths = result.lengths;
    std::vector<std::uint64_t> waiting(n_ / 64 + 1);
    vertex_queue taken(n_);
    lengths[source] = 0;
    set_bit(waiting, source);
    std::uint64_t limit = delta;
    for (;;) {
      std::atomic<std::uint64_t> least{no_path};
      taken.clear();
      each(n_, [&](std::uint64_t begin, std::uint64_t end) {  // begin: a multiple of 64
        found_vertices mine(taken);
        std::uint64_t here = no_path;
        for (std::uint64_t w = begin / 64; w * 64 < end; ++w) {
          for (std::uint64_t left = waiting[w]; left != 0; left &= left - 1) {
            const auto v = static_cast<vertex>(w * 64 + static_cast<unsigned>(__builtin_ctzll(left)));
            if (lengths[v] < limit) {
              waiting[w] &= ~(left & -left);
              mine.add(v);
            } else {
              here = std::min(here, lengths[v]);
            }
          }
        }
        mine.end();
        for (std::uint64_t was = least.load(); here < was && !least.compare_exchange_weak(was, here);) {
        }
      });
      if (taken.size() == 0) {
        if (least.load() == no_path) break;
        limit = least.load() > no_path - delta ? no_path : (least.load() / delta + 1) * delta;
        continue;
      }
      each(taken.size(), [&](std::uint64_t begin, std::uint64_t end) {
        for (std::uint64_t i = begin; i < end; ++i) {
          const std::uint64_t from = load(lengths[taken[i]]);
          for (std::uint64_t e = out().offsets[taken[i]]; e < out().offsets[taken[i] + 1]; ++e) {
            const vertex v = target(out(), e);
            const std::uint64_t sum = from + weights_[e];
            for (std::uint64_t was = load(lengths[v]); sum < was;) {
              if (std::atomic_ref<std::uint64_t>(lengths[v]).compare_exchange_weak(was, sum, std::memory_order_relaxed)) {
                set_bit(waiting, v);
                break;
              }
            }
          }
        }
      });
      progress(++result.nrounds, 0);
    }
  });
  count_reached(result);
  return result;
}

}  // namespace

std::unique_ptr<engine> make_engine_cpu(const graph_file& graph, const engine_options& options) {
  if (graph.head().target_nbytes == 8) return std::make_unique<cpu_engine<std::uint64_t>>(graph, options);
  return std::make_unique<cpu_engine<std::uint32_t>>(graph, options);
}

void count_reached(bfs_result& result) {
  result.nreached =
      result.depths.size() - static_cast<std::uint64_t>(std::count(result.depths.begin(), result.depths.end(), not_reached));
}
void count_reached(paths_result& result) {
  result.nreached =
      result.lengths.size() - static_cast<std::uint64_t>(std::count(result.lengths.begin(), result.lengths.end(), no_path));
}
void count_components(components_result& result) {
  std::vector<std::uint32_t> sizes(result.components.size());
  for (const vertex v : result.components) ++sizes[v];
  result.ncomponents = sizes.size() - static_cast<std::uint64_t>(std::count(sizes.begin(), sizes.end(), 0u));
  result.largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

}  // namespace gpufs::apps::graph
