// SPDX-License-Identifier: Apache-2.0
// The queries of BaM (Qureshi et al., ASPLOS 2023, section 5.3) on drawn taxi trips in a file in memory: `gpufs query`'s kernel,
// which reads of further columns what belongs to rows that pass, against whole columns that are moved to the GPU, as programs do
// that have no access on demand, and then the same kernel. Nothing is cached: each run reads all that it wants over the bus.
//
// What is found is compared with the host threads', to the bit; each run of theirs is a result of its own.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>

#include "apps/query/engine_device.hpp"
#include "apps/query/trips.hpp"
#include "subject.hpp"
#include "written.hpp"

namespace {

using namespace bench;
namespace queries = gpufs::apps::query;

const auto nobody = [](std::uint64_t, std::uint64_t) {};
// Each query wants a column more than the one before: distance, total, surcharges, hail fee, tolls, taxes.
struct query_names {
  const char *column, *by_columns, *by_threads;
};
constexpr query_names names[] = {{"trip_distance", "query_q0_vs_columns", "query_q0_vs_own_threads"},
                                 {"total_amount", "query_q1_vs_columns", "query_q1_vs_own_threads"},
                                 {"extra", "query_q2_vs_columns", "query_q2_vs_own_threads"},
                                 {"improvement_surcharge", "query_q3_vs_columns", "query_q3_vs_own_threads"},
                                 {"tolls_amount", "query_q4_vs_columns", "query_q4_vs_own_threads"},
                                 {"mta_tax", "query_q5_vs_columns", "query_q5_vs_own_threads"}};
constexpr unsigned nqueries = std::size(names);
constexpr double least_miles = 30;

// Columns in memory that kernels reach, one behind the other.
struct columns_in_memory {
  const std::byte* where;
  const std::byte* sums;  // the first of them
  std::uint64_t column_nbytes;

  GPUFS_DEVICE queries::scanned_run scan(gpufs::simt::warp, queries::warp_space&, std::uint64_t byte, std::uint32_t most) const {
    return {where + byte, most, 0};
  }
  GPUFS_DEVICE int fetch(gpufs::simt::warp warp, queries::warp_space& mine, unsigned column, const std::uint64_t* rows,
                         std::uint32_t n) const {
    if (warp.rank() < n) {
      const std::byte* const at = sums + column * column_nbytes + rows[warp.rank()] * sizeof(double);
      *reinterpret_cast<double*>(mine.values + warp.rank() * sizeof(double)) = *reinterpret_cast<const double*>(at);
    }
    return 0;
  }
};

queries::query query_of(const std::string& path, std::uint64_t nrows, unsigned number) {
  const auto column = [&](unsigned c) {
    return queries::column{path, queries::value_type::f64, {sizeof(double), nrows, {{0, c * nrows * sizeof(double)}}}};
  };
  std::uint64_t bits = 0;
  std::memcpy(&bits, &least_miles, sizeof bits);
  queries::query q{column(0), queries::condition::of(queries::value_type::f64, queries::comparison::at_least, bits), {}};
  for (unsigned c = 0; c <= number; ++c) q.sums.push_back(column(c));
  return q;
}

bool is_same(const queries::query_result& a, const queries::query_result& b) {
  const bool same = a.nrows == b.nrows && a.npassed == b.npassed && a.sums.size() == b.sums.size() &&
                    std::memcmp(a.sums.data(), b.sums.data(), a.sums.size() * sizeof(queries::column_sums)) == 0;
  if (!same) std::printf("WRONG: another result than that of the host threads\n");
  return same;
}

struct measured {
  std::vector<double> seconds{};
  double nbytes = 0, by_pages = 0;  // that were read, or moved; that came by pages of the cache
  bool right = true;
};

class query_bench {
 public:
  query_bench(const subject& s, std::uint64_t nrows, int repeats, unsigned nthreads)
      : subject_(s), nrows_(nrows), repeats_(repeats), nthreads_(nthreads) {}

  // On demand, and by host threads: `make` gives an engine.
  template <class Make>
  measured by_engine(unsigned number, const queries::query_result& wanted, const Make& make) const {
    const auto by = make(query_of(path(), nrows_, number));
    measured result;
    for (int r = 0; r <= repeats_; ++r) {
      const queries::query_result got = by->run(nobody);
      result.right = result.right && is_same(got, wanted);
      result.nbytes = static_cast<double>(got.bytes_read);
      result.by_pages = static_cast<double>(got.bytes_filled);
      if (r != 0) result.seconds.push_back(got.seconds);
    }
    return result;
  }
  measured on_demand(unsigned number, const queries::query_result& wanted) const {
    return by_engine(number, wanted, [&](const queries::query& q) {
      queries::engine_options options;
      options.device = gpufs::simt::this_platform().index();
      options.cache_nbytes = on_gpu ? 256 << 20 : 4 << 20;
      options.store = subject_.files;
      return queries::make_engine(q, options);
    });
  }
  measured by_threads(unsigned number, const queries::query_result& wanted) const {
    return by_engine(number, wanted, [&](const queries::query& q) { return queries::make_engine_cpu(q, {.nthreads = nthreads_}); });
  }
  // The query's columns are copied from the registered file to the GPU, whole, and looked at there.
  measured by_columns(unsigned number, const queries::query_result& wanted) const {
    const queries::query q = query_of(path(), nrows_, number);
    const std::uint64_t column_nbytes = nrows_ * sizeof(double);
    const device_array<std::byte> there((number + 1) * column_nbytes);
    const queries::kernel_runs runs(q, gpufs::simt::this_platform());
    measured result;
    for (int r = 0; r <= repeats_; ++r) {
      const stopwatch watch;
      copy_seconds(there.get(), subject_.mapping(), there.size());
      const queries::query_result got = runs.run(columns_in_memory{there.get(), there.get(), column_nbytes}, nobody);
      const double seconds = watch.seconds();
      result.right = result.right && is_same(got, wanted);
      result.nbytes = static_cast<double>(there.size());
      if (r != 0) result.seconds.push_back(seconds);
    }
    return result;
  }
  queries::query_result found(unsigned number) const {
    return queries::make_engine_cpu(query_of(path(), nrows_, number), {.nthreads = nthreads_})->run(nobody);
  }

 private:
  std::string path() const { return subject_.folder.path() + "/data"; }

  const subject& subject_;
  std::uint64_t nrows_;
  int repeats_;
  unsigned nthreads_;
};

void tell(results& out, const std::string& name, const char* rival, const std::string& label, const measured& ours,
          const measured& theirs) {
  measurement m{name, label, ours.seconds, "s", spread_of(theirs.seconds).median, rival};
  m.figure = measurement::kind::times_as_fast;
  m.verified = ours.right && theirs.right;
  m.details = {{"GB read", ours.nbytes * 1e-9}, {"GB by pages", ours.by_pages * 1e-9}, {"GB by theirs", theirs.nbytes * 1e-9}};
  out.add(m);
}

void draw_trips(const std::string& path, std::uint64_t nrows) {
  const auto file = open_file(path, O_RDWR | O_CREAT | O_EXCL);
  std::vector<queries::trip_output> to;
  for (unsigned c = 0; c < nqueries; ++c)
    to.push_back({queries::trip_column_of(names[c].column), file.get(), c * nrows * sizeof(double), path});
  queries::write_trips(to, 1, nrows, host_threads(), nobody);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("query", [&] {
    arguments args(argc, argv, "query  --dir DIR  --rows N  --threads N  --repeats N", on_gpu);
    const machine_facts machine = this_machine();
    const auto nthreads = static_cast<unsigned>(args.number("threads", 16));
    const int repeats = repeats_of(args);
    const std::string parent = args.path("dir", "/dev/shm");
    // As many as New York's taxis had from 2009 on, or what four fifths of the folder's room take.
    const auto room = static_cast<double>(std::filesystem::space(parent).available) * .8 / (nqueries * sizeof(double));
    const auto nrows = static_cast<std::uint64_t>(args.number("rows", {std::min(1.7e9, room), 1e8, 2e4}));
    results out("query", args, machine);
    const subject s(parent, nqueries * nrows * sizeof(double), "memory",
                    [&](const std::string& path, std::uint64_t) { draw_trips(path, nrows); });
    if (s.mapping() == nullptr) {
      out.note("the file cannot be registered" + s.how_bytes_come());
      return out.finish();
    }
    const query_bench all(s, nrows, repeats, nthreads);
    for (unsigned number = 0; number < nqueries; ++number) {
      const query_names& name = names[number];
      if (!args.wants_any({name.by_columns, name.by_threads})) continue;
      const std::string label = "Q" + std::to_string(number);
      const queries::query_result wanted = all.found(number);
      const measured ours = all.on_demand(number, wanted);
      if (args.wants(name.by_columns))
        tell(out, name.by_columns, "whole columns moved", label, ours, all.by_columns(number, wanted));
      if (args.wants(name.by_threads))
        tell(out, name.by_threads, "gpufs's engine cpu", label, ours, all.by_threads(number, wanted));
    }
    args.done();
    return out.finish();
  });
}
