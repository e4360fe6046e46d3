// SPDX-License-Identifier: Apache-2.0
// gpufs._query: what `gpufs query` and gpufs.query run. The interpreter's lock is not held while work is done. Memory is named by
// its address, and Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/one_call.hpp"
#include "apps/python_support.hpp"
#include "apps/query/engine.hpp"
#include "apps/query/trips.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::query;

namespace {

std::unique_ptr<engine> make_engine(const std::string& name, const gpufs::apps::query::query& of, const engine_options& options) {
  if (const std::string why = why_not(name); !why.empty()) throw gpufs::error("engine " + name + ": " + why);
  if (name == "cpu") return make_engine_cpu(of, options);
#if GPUFS_WITH_CUDA
  if (name == "gpu") return make_engine_cuda(of, options);
#endif
  return make_engine_simt(of, options);
}

// Path, type, rows, and of each piece the number of its first row and where it begins, as the bytes of int64.
using column_words = std::tuple<nb::object, unsigned, std::uint64_t, nb::bytes>;

column to_column(const column_words& words) {
  const auto& [path, type, nrows, pieces] = words;
  if (type >= ntypes) throw std::invalid_argument("there is no such type");
  column of{to_path(path), static_cast<value_type>(type), {nbytes_of(static_cast<value_type>(type)), nrows, {}}};
  of.place.pieces.resize(pieces.size() / sizeof(arrays::row_piece));
  std::memcpy(of.place.pieces.data(), pieces.c_str(), of.place.pieces.size() * sizeof(arrays::row_piece));
  return of;
}

// An int, or a float.
nb::object to_number(value_type type, std::uint64_t key) {
  const std::uint64_t bits = bits_of_key(type, key);
  if (is_float(type)) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return nb::float_(value);
  }
  if (is_signed(type)) return nb::int_(static_cast<std::int64_t>(bits));
  return nb::int_(bits);
}
// All digits as one number of two's complement, little endian.
nb::bytes to_bytes(const column_sums& of) {
  constexpr unsigned last = column_sums::ndigits - 1;
  char bytes[4 * last + 8];
  for (unsigned i = 0; i < last; ++i) std::memcpy(bytes + 4 * i, &of.digits[i], 4);
  std::memcpy(bytes + 4 * last, &of.digits[last], 8);
  return nb::bytes(bytes, sizeof bytes);
}
nb::dict to_dict(value_type type, const column_sums& of, bool is_empty) {
  nb::dict d;
  d["sum"] = to_bytes(of);
  d["min"] = is_empty ? nb::object(nb::none()) : to_number(type, of.least);
  d["max"] = is_empty ? nb::object(nb::none()) : to_number(type, of.greatest);
  d["nnan"] = of.nnan;
  d["ninf"] = of.ninfinite;
  d["nminus_inf"] = of.nminus_infinite;
  return d;
}

class engine_of_query {
 public:
  engine_of_query(const std::string& name, gpufs::apps::query::query of, const engine_options& options) {
    for (const column& each : of.sums) types_.push_back(each.type);
    const unlocked others;
    engine_ = make_engine(name, of, options);
  }
  ~engine_of_query() {
    const unlocked others;
    engine_.reset();
  }
  engine_of_query(const engine_of_query&) = delete;
  engine_of_query& operator=(const engine_of_query&) = delete;

  nb::dict run(const nb::object& progress) const {
    const auto told = to_progress(progress);
    const query_result got = [&] {
      const unlocked others;
      const one_call::taken mine(one_call_, "a query");
      return engine_->run(told);
    }();
    nb::list sums;
    for (std::size_t i = 0; i < got.sums.size(); ++i) sums.append(to_dict(types_[i], got.sums[i], got.npassed == 0));
    nb::dict d;
    d["nrows"] = got.nrows;
    d["npassed"] = got.npassed;
    d["sums"] = sums;
    d["seconds"] = got.seconds;
    d["bytes_read"] = got.bytes_read;
    d["bytes_filled"] = got.bytes_filled;
    return d;
  }

 private:
  std::vector<value_type> types_;
  std::unique_ptr<engine> engine_;
  mutable one_call one_call_;
};

}  // namespace

NB_MODULE(_query, m) {
  m.doc() = "Queries of columns in files, for `gpufs query`.";
  translate_errors();
  m.attr("MOST_COLUMNS") = most_columns;

  nb::class_<engine_of_query>(m, "Engine", "What runs a query.")
      .def(
          "__init__",
          [](engine_of_query* self, const std::string& name, const column_words& where, unsigned comparison_number,
             const nb::bytes& value, const std::vector<column_words>& columns, unsigned threads, std::uint64_t cache_nbytes,
             std::uint32_t page_nbytes, int device) {
            gpufs::apps::query::query of{to_column(where), {}, {}};
            std::uint64_t bits = 0;
            if (value.size() != nbytes_of(of.where.type) || comparison_number > static_cast<unsigned>(comparison::more))
              throw std::invalid_argument("there is no such condition");
            std::memcpy(&bits, value.c_str(), value.size());
            of.wanted = condition::of(of.where.type, static_cast<comparison>(comparison_number), bits);
            for (const column_words& each : columns) of.sums.push_back(to_column(each));
            new (self) engine_of_query(name, std::move(of), {threads, cache_nbytes, page_nbytes, device});
          },
          "name"_a, "where"_a, "comparison"_a, "value"_a, "columns"_a, nb::kw_only(), "threads"_a, "cache_nbytes"_a,
          "page_nbytes"_a, "device"_a,
          "Columns: (path, type, rows, pieces): type as TYPES has it, pieces: of each the number of its first row and where it "
          "begins, as int64. comparison: a number of < <= == != >= >; value: of the column's type, as bytes.")
      .def("run", &engine_of_query::run, "progress"_a.none(),
           "What it finds; a sum counts 2^-1074, in two's complement. progress(rows, all rows).");

  nb::list trips;
  for (const trip_column& each : trip_columns()) trips.append(nb::make_tuple(each.name, each.dtype));
  m.attr("TRIP_COLUMNS") = nb::tuple(trips);
  m.def(
      "fill_trips",
      [](const std::vector<std::string>& names, const std::vector<std::uintptr_t>& addresses, std::uint64_t seed,
         std::uint64_t first, std::uint64_t n, unsigned threads) {
        if (names.size() != addresses.size()) throw std::invalid_argument("each column has an address");
        std::vector<unsigned> columns;
        std::vector<std::byte*> to;
        for (const std::string& name : names) columns.push_back(trip_column_of(name));
        for (const std::uintptr_t address : addresses) to.push_back(reinterpret_cast<std::byte*>(address));
        const unlocked others;
        fill_trips(columns, seed, first, n, to, threads);
      },
      "names"_a, "addresses"_a, "seed"_a, "first"_a, "n"_a, "threads"_a, "Puts columns of n drawn trips into memory.");
  m.def(
      "write_trips",
      [](const std::vector<std::tuple<std::string, int, std::uint64_t, nb::object>>& outputs, std::uint64_t seed,
         std::uint64_t nrows, unsigned threads, const nb::object& progress) {
        std::vector<trip_output> to;
        for (const auto& [name, descriptor, offset, path] : outputs)
          to.push_back({trip_column_of(name), descriptor, offset, to_path(path)});
        const auto told = to_progress(progress);
        const unlocked others;
        write_trips(to, seed, nrows, threads, told);
      },
      "outputs"_a, "seed"_a, "nrows"_a, "threads"_a, "progress"_a.none(),
      "Writes columns of drawn trips, each (name, open file, offset, path). progress(rows, all rows).");
}
