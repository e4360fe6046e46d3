// SPDX-License-Identifier: Apache-2.0
// The search of `gpufs vectors` in an index of synthetic vectors in a file in memory that is larger than the cache: what does it
// cost beside the same kernels over lists in GPU memory, and by how much does it beat a host that copies whole lists?
//
// vectors_overhead: all lists are in the cache, over the same kernels and all lists in GPU memory, in batches of all queries.
// vectors_vs_copied: the cache has a part of them. The rival has as much GPU memory, in two halves: 16 host threads copy the lists
// that a batch probes into one of them, while kernels search the other. vectors_vs_cpu: the same, against the engine cpu with 16
// threads. vectors_1, vectors_100: a search of so many queries after that.
//
// Answers of all ways are compared with each other, to the bit; those of some queries that look into all lists with a plain loop
// over all vectors, outside the timed part.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "apps/vectors/builder.hpp"
#include "apps/vectors/engine_device.hpp"
#include "apps/vectors/synth.hpp"
#include "rows.hpp"
#include "subject.hpp"

namespace {

using namespace bench;
namespace vectors = gpufs::apps::vectors;
using keys = std::vector<std::uint64_t>;

const auto nobody = [](std::uint64_t, std::uint64_t) {};
const auto no_preparation = [] {};

struct sizes {
  std::uint64_t n;
  std::uint32_t dim, nlists, nprobe, k, nqueries;
  std::uint64_t cache_nbytes;
  vectors::synth_options drawn() const { return {dim, std::max(1u, nlists / 64), 0.3f, 1}; }
  vectors::search_options how(std::uint32_t probes) const { return {k, probes, nqueries}; }
  // At most.
  std::uint64_t file_nbytes() const {
    return vectors::lists_at(nlists, dim) + n / vectors::group_vectors * vectors::group_nbytes(dim) +
           nlists * (vectors::group_nbytes(dim) + vectors::section_alignment);
  }
};

std::vector<float> draw_rows(const sizes& of, std::uint64_t first, std::uint64_t n) {
  std::vector<float> rows(n * of.dim);
  vectors::draw(of.drawn(), first, n, host_threads(), rows.data());
  return rows;
}

std::unique_ptr<vectors::quantizer> make_quantizer(const std::vector<float>& centroids, const sizes& of) {
  return std::make_unique<vectors::device_quantizer>(vectors::to_groups(centroids.data(), of.nlists, of.dim), of.nlists, of.dim,
                                                     vectors::engine_options{.device = gpufs::simt::this_platform().index()});
}

// Lloyd's iterations on a sample; a list without vectors stays where it is.
std::vector<float> train(const sizes& of) {
  const std::uint64_t nsample = std::min(of.n, std::uint64_t{of.nlists} * 64);
  const std::vector<float> sample = draw_rows(of, 0, nsample);  // any of them: their clusters are drawn
  std::vector<float> centroids(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(of.nlists) * of.dim);
  std::vector<std::uint32_t> nearest(nsample);
  for (int iteration = 0; iteration < (on_gpu ? 8 : 2); ++iteration) {
    make_quantizer(centroids, of)->nearest({sample.data(), nsample}, nearest.data(), nobody);
    std::vector<double> sums(centroids.size());
    std::vector<std::uint32_t> counts(of.nlists);
    for (std::uint64_t i = 0; i < nsample; ++i) {
      ++counts[nearest[i]];
      for (std::uint32_t d = 0; d < of.dim; ++d) sums[std::size_t{nearest[i]} * of.dim + d] += sample[i * of.dim + d];
    }
    for (std::size_t i = 0; i < centroids.size(); ++i) {
      if (counts[i / of.dim] != 0) centroids[i] = static_cast<float>(sums[i] / counts[i / of.dim]);
    }
  }
  return centroids;
}

void make_index(const std::string& path, const sizes& of) {
  const std::vector<float> centroids = train(of);
  const auto by = make_quantizer(centroids, of);
  vectors::index_builder builder(path, centroids.data(), of.nlists, of.dim, *by, {.made_by = "bench", .base = "synthetic vectors"});
  const auto each_piece = [&](const auto& use) {
    const std::uint64_t piece = on_gpu ? 1 << 19 : 1000;
    for (std::uint64_t at = 0; at < of.n; at += piece) {
      const std::vector<float> rows = draw_rows(of, at, std::min(piece, of.n - at));
      use({rows.data(), rows.size() / of.dim});
    }
  };
  each_piece([&](const vectors::query_rows& rows) { builder.count(rows, nobody); });
  builder.begin_lists();
  each_piece([&](const vectors::query_rows& rows) { builder.add(rows); });
  const vectors::build_report report = builder.finish();
  std::printf("%-14s %.3g M vectors, lists of %llu to %llu\n", "index", static_cast<double>(report.nvectors) * 1e-6,
              static_cast<unsigned long long>(report.shortest), static_cast<unsigned long long>(report.longest));
}

// By a plain loop over all vectors, for the first `nqueries`.
keys brute_force(const sizes& of, const std::vector<float>& queries, std::uint32_t nqueries) {
  keys nearest(std::size_t{nqueries} * of.k, vectors::no_key);
  std::mutex lock;
  const std::uint64_t piece = 1 << 18;
  for (std::uint64_t at = 0; at < of.n; at += piece) {
    const std::vector<float> rows = draw_rows(of, at, std::min(piece, of.n - at));
    sum_in_parallel(rows.size() / of.dim, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint32_t q = 0; q < nqueries; ++q) {
        keys mine;
        for (std::uint64_t i = begin; i < end; ++i) {
          float sum = 0;
          for (std::uint32_t d = 0; d < of.dim; ++d) {
            const float off = queries[std::size_t{q} * of.dim + d] - rows[i * of.dim + d];
            sum = std::fma(off, off, sum);
          }
          mine.push_back(vectors::key_of(sum, static_cast<std::uint32_t>(at + i)));
        }
        const std::lock_guard guard(lock);
        mine.insert(mine.end(), nearest.begin() + std::ptrdiff_t{q} * of.k, nearest.begin() + (std::ptrdiff_t{q} + 1) * of.k);
        std::partial_sort(mine.begin(), mine.begin() + of.k, mine.end());
        std::copy_n(mine.begin(), of.k, nearest.begin() + std::ptrdiff_t{q} * of.k);
      }
      return 0;
    });
  }
  return nearest;
}

double recall(const keys& found, const keys& wanted, std::uint32_t k) {
  std::uint64_t n = 0;
  for (std::size_t begin = 0; begin < wanted.size(); begin += k) {
    for (std::size_t i = begin; i < begin + k; ++i) {
      n += std::find(found.begin() + static_cast<std::ptrdiff_t>(begin), found.begin() + static_cast<std::ptrdiff_t>(begin + k),
                     wanted[i]) != found.begin() + static_cast<std::ptrdiff_t>(begin + k)
               ? 1
               : 0;
    }
  }
  return static_cast<double>(n) / static_cast<double>(wanted.size());
}

// Searches of one kind, in the order of `nearest`; seconds of each, but for the first.
struct measured {
  std::vector<double> seconds{};
  keys nearest{};
  std::vector<double> bytes{};  // that came over the bus

  template <class Prepare, class Search>
  void run(int repeats, std::size_t nkeys, const Prepare& prepare, const Search& search) {
    for (int r = 0; r <= repeats; ++r) {
      prepare();
      nearest.assign(nkeys, 0);
      const stopwatch watch;
      search(nearest.data());
      if (r > 0) seconds.push_back(watch.seconds());
    }
  }
};

class vector_bench {
 public:
  vector_bench(const subject& s, const sizes& of, int repeats)
      : subject_(s),
        of_(of),
        index_(s.folder.path() + "/data"),
        centroids_(index_.centroids(), index_.nlists(), gpufs::simt::this_platform()),
        queries_(draw_rows(of, of.n, of.nqueries)),
        repeats_(repeats) {}

  const std::vector<float>& queries() const { return queries_; }
  // Of the first n queries in all lists, by host threads.
  keys exact(std::uint32_t n, unsigned nthreads) const {
    keys nearest(nkeys(n));
    vectors::make_engine_cpu(index_, {.nthreads = nthreads})
        ->search({queries_.data(), n}, of_.how(of_.nlists), nearest.data(), nobody);
    return nearest;
  }
  std::uint64_t file_nbytes() const { return index_.head().file_nbytes; }

  // Through gpufs, with a cache of so many bytes; fresh: each time an empty one.
  measured through_cache(std::uint64_t cache_nbytes, bool fresh, std::uint32_t nprobe) const {
    measured result;
    std::unique_ptr<opened_index> here;
    const auto prepare = [&] {
      if (here != nullptr && !fresh) return;
      here.reset();
      here = std::make_unique<opened_index>(*this, cache_nbytes);
    };
    result.run(repeats_, nkeys(of_.nqueries), prepare, [&](std::uint64_t* nearest) {
      const std::uint64_t before = here->fs.counters().bytes_filled;
      search(*here, of_.nqueries, nprobe, nearest);
      result.bytes.push_back(static_cast<double>(here->fs.counters().bytes_filled - before));
    });
    return result;
  }
  // Of `n` queries after a batch of all.
  measured few_through_cache(std::uint64_t cache_nbytes, std::uint32_t n) const {
    opened_index here(*this, cache_nbytes);
    keys all(nkeys(of_.nqueries));
    search(here, of_.nqueries, of_.nprobe, all.data());
    measured result;
    const int turns = on_gpu ? 50 : 2;
    for (int r = 0; r < turns; ++r) {
      const std::uint32_t first = static_cast<std::uint32_t>(r) * n % (of_.nqueries - n + 1);
      keys nearest(nkeys(n));
      const stopwatch watch;
      vectors::search_batches(here.by, here.elements(), centroids_, index_, {queries_.data() + std::size_t{first} * of_.dim, n},
                              of_.how(of_.nprobe), nearest.data(), nobody);
      result.seconds.push_back(watch.seconds());
      is_right_ = is_right_ && std::equal(nearest.begin(), nearest.end(), all.begin() + static_cast<std::ptrdiff_t>(nkeys(first)));
    }
    return result;
  }
  measured in_device_memory(std::uint32_t nprobe) const {
    const std::uint64_t nbytes = index_.head().file_nbytes;
    const device_array<std::byte> lists(nbytes);
    gpufs::simt::this_platform().copy_to_device(lists.get(), index_.map(), nbytes);
    vectors::scanner by(of_.dim, gpufs::simt::this_platform());
    measured result;
    result.run(repeats_, nkeys(of_.nqueries), no_preparation, [&](std::uint64_t* nearest) {
      vectors::search_batches(by, gpufs::apps::in_memory{lists.get(), 2}, centroids_, index_, {queries_.data(), of_.nqueries},
                              of_.how(nprobe), nearest, nobody);
    });
    return result;
  }
  measured by_threads(unsigned nthreads) const {
    const auto by = vectors::make_engine_cpu(index_, {.nthreads = nthreads});
    measured result;
    result.run(repeats_, nkeys(of_.nqueries), no_preparation, [&](std::uint64_t* nearest) {
      by->search({queries_.data(), of_.nqueries}, of_.how(of_.nprobe), nearest, nobody);
    });
    return result;
  }
  measured copied_by_host(std::uint64_t room_nbytes, unsigned nthreads) const {
    const mapped_file file(index_.path(), index_.head().file_nbytes);
    const host_threads_gather copies(file.data(), nthreads);
    const std::uint64_t half = std::max(room_nbytes / 2, longest_list_nbytes());
    const device_array<std::byte> room(2 * half);
    vectors::scanner by(of_.dim, gpufs::simt::this_platform());
    measured result;
    result.run(repeats_, nkeys(of_.nqueries), no_preparation,
               [&](std::uint64_t* nearest) { search_copied(copies, by, room, half, nearest); });
    return result;
  }
  bool is_right() const { return is_right_; }

 private:
  struct opened_index {
    opened_index(const vector_bench& of, std::uint64_t cache_nbytes)
        : fs(of.subject_.folder.path(), options_of(of, cache_nbytes)),
          by(of.of_.dim, fs.device(), fs.options().cache_nbytes / fs.options().page_nbytes / 4) {
      fs.prepare("data");
      file = std::make_unique<host_file>(fs, "data");
      file->advise(gpufs::advice::whole);
    }
    static gpufs::mount_options options_of(const vector_bench& of, std::uint64_t cache_nbytes) {
      gpufs::mount_options options = short_waits();
      options.page_nbytes = on_gpu ? 64 << 10 : 1024;
      options.cache_nbytes = cache_nbytes / options.page_nbytes * options.page_nbytes;
      options.custom_store = of.subject_.files;
      return options;
    }
    gpufs::apps::by_page elements() const { return {file->ref(), 0, 2}; }
    gpufs::mount fs;
    vectors::scanner by;
    std::unique_ptr<host_file> file;
  };

  std::size_t nkeys(std::uint32_t nqueries) const { return std::size_t{nqueries} * of_.k; }
  std::uint64_t longest_list_nbytes() const {
    std::uint64_t longest = 0;
    for (const vectors::place& list : index_.lists()) longest = std::max(longest, rows_of(list) * vectors::section_alignment);
    return longest;
  }
  std::uint64_t rows_of(const vectors::place& list) const {
    return vectors::align_up(list.ngroups * vectors::group_nbytes(of_.dim)) / vectors::section_alignment;
  }
  void search(opened_index& here, std::uint32_t n, std::uint32_t nprobe, std::uint64_t* nearest) const {
    vectors::search_batches(here.by, here.elements(), centroids_, index_, {queries_.data(), n}, of_.how(nprobe), nearest, nobody);
  }

  // Rounds: the lists that fit into a half are copied while those in the other half are searched.
  void search_copied(const host_threads_gather& copies, vectors::scanner& by, const device_array<std::byte>& room,
                     std::uint64_t half, std::uint64_t* nearest) const {
    by.take({queries_.data(), of_.nqueries});
    const std::vector<std::uint32_t> chosen = centroids_.nearest(by, 0, of_.nqueries, of_.nprobe, nobody);
    std::vector<bool> is_probed(of_.nlists);
    for (const std::uint32_t list : chosen) is_probed[list] = true;
    std::fill_n(nearest, nkeys(of_.nqueries), vectors::no_key);
    std::future<keys> searching;
    unsigned turn = 0;
    for (std::uint32_t list = 0; list < of_.nlists; turn ^= 1) {
      std::vector<vectors::place> here(of_.nlists, vectors::place{0, 0});  // those of other rounds have no groups
      std::vector<row_index> rows;
      for (; list < of_.nlists; ++list) {
        if (!is_probed[list]) continue;
        const vectors::place& at = index_.lists()[list];
        if ((rows.size() + rows_of(at)) * vectors::section_alignment > half) break;
        here[list] = {rows.size() * vectors::section_alignment, at.ngroups};
        for (std::uint64_t i = 0; i < rows_of(at); ++i)
          rows.push_back(static_cast<row_index>(at.begin / vectors::section_alignment + i));
      }
      std::byte* const to = room.get() + turn * half;
      copies.to_device(gathering::plain, rows, vectors::section_alignment, to);
      if (searching.valid()) merge(searching.get(), nearest);
      searching = std::async(std::launch::async, [this, &by, &chosen, here, to] {
        const gpufs::simt::on_device device(by.device());
        keys found(nkeys(of_.nqueries));
        vectors::search_lists(by, gpufs::apps::in_memory{to, 2}, here, chosen, of_.nprobe, 0, of_.nqueries, of_.k, found.data(),
                              nobody);
        return found;
      });
    }
    merge(searching.get(), nearest);
  }
  void merge(const keys& found, std::uint64_t* nearest) const {
    keys both(2 * std::size_t{of_.k});
    for (std::uint32_t q = 0; q < of_.nqueries; ++q) {
      std::uint64_t* const mine = nearest + nkeys(q);
      const auto theirs = found.begin() + static_cast<std::ptrdiff_t>(nkeys(q));
      std::merge(mine, mine + of_.k, theirs, theirs + of_.k, both.begin());
      std::copy_n(both.begin(), of_.k, mine);
    }
  }

  const subject& subject_;
  sizes of_;
  vectors::index_file index_;
  vectors::device_centroids centroids_;
  std::vector<float> queries_;
  int repeats_;
  mutable bool is_right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("vectors", [&] {
    arguments args(argc, argv,
                   "vectors  --dir DIR  --vectors N  --dim N  --lists N  --nprobe N  --k N  --queries N  --cache GIB  --repeats N",
                   on_gpu);
    const machine_facts machine = this_machine();
    sizes of{};
    of.n = static_cast<std::uint64_t>(args.number("vectors", {100e6, 4e6, 6000}));
    of.dim = static_cast<std::uint32_t>(args.number("dim", {96, 96, 12}));
    of.nlists = static_cast<std::uint32_t>(args.number("lists", {10'000, 2'000, 24}));
    of.nprobe = static_cast<std::uint32_t>(args.number("nprobe", {32, 16, 3}));
    of.k = static_cast<std::uint32_t>(args.number("k", 10));
    of.nqueries = static_cast<std::uint32_t>(args.number("queries", {10'000, 10'000, 40}));
    of.cache_nbytes = args.nbytes("cache", {8, 0.5, 48.0 / (1 << 20)});
    const int repeats = std::min(repeats_of(args), 4);
    const std::string parent = args.path("dir", "/dev/shm");
    results out("vectors", args, machine);
    const subject s(parent, of.file_nbytes(), "memory", [&](const std::string& path, std::uint64_t) { make_index(path, of); });
    if (s.mapping() == nullptr) {
      out.note("the file cannot be registered" + s.how_bytes_come());
      return out.finish();
    }
    const vector_bench all(s, of, repeats);
    const unsigned nthreads = std::min(16u, host_threads());
    const std::string label = std::to_string(of.nqueries) + " queries";

    const measured threads = all.by_threads(nthreads);
    const std::uint32_t nexact = std::min(of.nqueries, 100u), nbrute = std::min(nexact, 4u);
    const keys exact = all.exact(nexact, nthreads), true_ones = brute_force(of, all.queries(), nbrute);
    bool right = std::equal(true_ones.begin(), true_ones.end(), exact.begin());
    if (!right) std::printf("WRONG: other neighbours than those of a plain loop\n");
    const double share_found = recall(threads.nearest, exact, of.k);
    const auto check = [&](const measured& way, const char* what) {
      if (way.nearest == threads.nearest) return;
      std::printf("WRONG: %s finds others than the host's threads\n", what);
      right = false;
    };
    // Seconds of ours, and of theirs.
    const auto against = [&](const char* name, const measured& ours, const measured& theirs, const char* theirs_are) {
      measurement m{name, label, ours.seconds, "s", spread_of(theirs.seconds).median, theirs_are};
      m.figure = measurement::kind::times_as_fast;
      m.verified = right;
      m.details = {{"theirs", spread_of(theirs.seconds).median},
                   {"GB over the bus", spread_of(ours.bytes).median * 1e-9},
                   {"recall", share_found}};
      out.add(m);
    };
    if (args.wants("vectors_overhead")) {
      const measured cached = all.through_cache(all.file_nbytes() / 4 * 5 + (8 << 20), false, of.nprobe);
      const measured plain = all.in_device_memory(of.nprobe);
      check(cached, "gpufs with all in its cache");
      check(plain, "the kernel over GPU memory");
      measurement m{"vectors_overhead", label, {}, "times"};
      for (const double seconds : cached.seconds) m.samples.push_back(seconds / spread_of(plain.seconds).median);
      m.figure = measurement::kind::itself;
      m.verified = right;
      m.details = {{"seconds", spread_of(cached.seconds).median}, {"in GPU memory", spread_of(plain.seconds).median}};
      out.add(m);
    }
    if (args.wants_any({"vectors_vs_copied", "vectors_vs_cpu"})) {
      const measured ours = all.through_cache(of.cache_nbytes, true, of.nprobe);
      check(ours, "gpufs with a small cache");
      if (args.wants("vectors_vs_copied")) {
        const measured copied = all.copied_by_host(of.cache_nbytes, nthreads);
        check(copied, "the host that copies lists");
        against("vectors_vs_copied", ours, copied, "lists copied by 16 host threads");
      }
      if (args.wants("vectors_vs_cpu")) against("vectors_vs_cpu", ours, threads, "the engine cpu, 16 threads");
    }
    for (const std::uint32_t n : {1u, std::min(100u, of.nqueries)}) {
      const std::string name = n == 1 ? "vectors_1" : "vectors_100";
      if (!args.wants(name)) continue;
      const measured few = all.few_through_cache(of.cache_nbytes, n);
      measurement m{name, std::to_string(n) + " queries", {}, "ms"};
      for (const double seconds : few.seconds) m.samples.push_back(seconds * 1e3);
      m.figure = measurement::kind::itself;
      m.verified = right && all.is_right();
      out.add(m);
    }
    args.done();
    return out.finish();
  });
}
