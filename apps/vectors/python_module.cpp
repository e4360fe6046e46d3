// SPDX-License-Identifier: Apache-2.0
// gpufs._vectors: what `gpufs vectors` and gpufs.vectors run. The interpreter's lock is not held while work is done. Memory is
// named by its address, and Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/one_call.hpp"
#include "apps/python_support.hpp"
#include "apps/vectors/builder.hpp"
#include "apps/vectors/engine.hpp"
#include "apps/vectors/synth.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::vectors;

namespace {

std::unique_ptr<engine> make_engine(const std::string& name, const index_file& of, const engine_options& options) {
  check_engine(name);
  if (name == "cpu") return make_engine_cpu(of, options);
#if GPUFS_WITH_CUDA
  if (name == "gpu") return make_engine_cuda(of, options);
#endif
  return make_engine_simt(of, options);
}
std::unique_ptr<quantizer> make_quantizer(const std::string& name, std::span<const std::byte> centroids, std::uint32_t nlists,
                                          std::uint32_t dim, const engine_options& options) {
  check_engine(name);
  if (name == "cpu") return make_quantizer_cpu(centroids, nlists, dim, options);
#if GPUFS_WITH_CUDA
  if (name == "gpu") return make_quantizer_cuda(centroids, nlists, dim, options);
#endif
  return make_quantizer_simt(centroids, nlists, dim, options);
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<2>> to_numpy(std::vector<T>&& values, std::size_t nrows, std::size_t ncolumns) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<2>>(kept->data(), {nrows, ncolumns}, owner);
}
// Of memory that Python keeps.
const float* floats_at(std::uintptr_t address) { return reinterpret_cast<const float*>(address); }

nb::dict info_of(const index_file& index) {
  const header& h = index.head();
  nb::dict d;
  d["nvectors"] = h.nvectors;
  d["dim"] = h.dim;
  d["nlists"] = h.nlists;
  std::uint32_t longest = 0, nempty = 0;
  for (const list_entry& entry : index.entries()) {
    longest = std::max(longest, entry.nvectors);
    nempty += entry.nvectors == 0 ? 1 : 0;
  }
  d["longest_list"] = longest;
  d["empty_lists"] = nempty;
  d["file_nbytes"] = h.file_nbytes;
  d["made_by"] =
      nb::steal(PyUnicode_DecodeFSDefaultAndSize(h.made_by, static_cast<Py_ssize_t>(strnlen(h.made_by, sizeof h.made_by))));
  return d;
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> centroids_of(const index_file& index) {
  std::vector<float> rows(std::size_t{index.nlists()} * index.dim());
  for (std::size_t list = 0; list < index.nlists(); ++list) {
    const std::byte* const group = index.centroids().data() + list / group_vectors * group_nbytes(index.dim());
    for (std::size_t d = 0; d < index.dim(); ++d) {
      rows[list * index.dim() + d] = reinterpret_cast<const float*>(group)[d * group_vectors + list % group_vectors];
    }
  }
  return to_numpy(std::move(rows), index.nlists(), index.dim());
}

// The vectors of a list as rows, and their ids.
nb::tuple list_of(const index_file& index, std::uint32_t list) {
  if (list >= index.nlists()) throw gpufs::error("there is no list " + std::to_string(list));
  const std::size_t n = index.entries()[list].nvectors, dim = index.dim();
  std::vector<float> rows(n * dim);
  std::vector<std::int64_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::byte* const group = index.map() + index.lists()[list].begin + i / group_vectors * group_nbytes(index.dim());
    for (std::size_t d = 0; d < dim; ++d)
      rows[i * dim + d] = reinterpret_cast<const float*>(group)[d * group_vectors + i % group_vectors];
    ids[i] = reinterpret_cast<const std::uint32_t*>(group)[dim * group_vectors + i % group_vectors];
  }
  return nb::make_tuple(to_numpy(std::move(rows), n, dim), to_numpy(std::move(ids), 1, n));
}

class searcher {
 public:
  searcher(const index_file& index, const std::string& name, const engine_options& options) {
    const unlocked others;
    engine_ = make_engine(name, index, options);
  }
  ~searcher() {
    const unlocked others;
    engine_.reset();
  }
  searcher(const searcher&) = delete;
  searcher& operator=(const searcher&) = delete;

  nb::tuple search(std::uintptr_t queries, std::uint64_t n, std::uint32_t k, std::uint32_t nprobe, std::uint32_t batch,
                   const nb::object& progress) {
    const auto told = to_progress(progress);
    std::vector<std::int64_t> ids(n * k);
    std::vector<float> distances(n * k);
    const search_facts facts = [&] {
      const unlocked others;
      const one_call::taken mine(one_call_, "a search");
      std::vector<std::uint64_t> keys(n * k);
      const search_facts of = engine_->search({floats_at(queries), n}, {k, nprobe, batch}, keys.data(), told);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const bool is_there = keys[i] != no_key;
        ids[i] = is_there ? std::int64_t{id_of(keys[i])} : -1;
        const std::uint32_t bits = distance_bits(keys[i]);
        std::memcpy(&distances[i], &bits, sizeof bits);
        if (!is_there) distances[i] = std::numeric_limits<float>::infinity();
      }
      return of;
    }();
    nb::dict d;
    d["seconds"] = facts.seconds;
    d["bytes_read"] = facts.bytes_read;
    d["compared"] = facts.ncompared;
    return nb::make_tuple(to_numpy(std::move(ids), n, k), to_numpy(std::move(distances), n, k), d);
  }

 private:
  one_call one_call_;
  std::unique_ptr<engine> engine_;
};

// A builder with its quantizer.
class builder {
 public:
  builder(const std::string& path, std::uintptr_t centroids, std::uint32_t nlists, std::uint32_t dim, const std::string& engine,
          unsigned threads, int device, const build_options& options) {
    const unlocked others;
    const float* const rows = floats_at(centroids);
    by_ = make_quantizer(engine, to_groups(rows, nlists, dim), nlists, dim, {.nthreads = threads, .device = device});
    builder_ = std::make_unique<index_builder>(path, rows, nlists, dim, *by_, options);
  }
  void count(std::uintptr_t rows, std::uint64_t n) {
    const nb::object nobody = nb::none();
    const auto look = to_progress(nobody);  // Control-C ends it
    const unlocked others;
    const one_call::taken mine(one_call_, "a builder");
    opened().count({floats_at(rows), n}, look);
  }
  void begin_lists() {
    const unlocked others;
    const one_call::taken mine(one_call_, "a builder");
    opened().begin_lists();
  }
  void add(std::uintptr_t rows, std::uint64_t n) {
    const unlocked others;
    const one_call::taken mine(one_call_, "a builder");
    opened().add({floats_at(rows), n});
  }
  nb::dict finish() {
    const build_report report = [&] {
      const unlocked others;
      const one_call::taken mine(one_call_, "a builder");
      return opened().finish();
    }();
    nb::dict d;
    d["nvectors"] = report.nvectors;
    d["empty_lists"] = report.nempty;
    d["shortest_list"] = report.shortest;
    d["longest_list"] = report.longest;
    d["file_nbytes"] = report.file_nbytes;
    return d;
  }
  void close() {
    const unlocked others;
    const one_call::taken mine(one_call_, "a builder");
    builder_.reset();
    by_.reset();
  }

 private:
  index_builder& opened() {
    if (!builder_) throw gpufs::error("the builder is closed");
    return *builder_;
  }

  one_call one_call_;
  std::unique_ptr<quantizer> by_;
  std::unique_ptr<index_builder> builder_;
};

}  // namespace

NB_MODULE(_vectors, m) {
  m.doc() = "Nearest vectors in files, for `gpufs vectors` and gpufs.vectors.";
  translate_errors();
  m.attr("MAGIC") = nb::bytes(magic, sizeof magic);
  m.attr("MOST_K") = most_k;
  m.attr("MOST_LISTS") = most_lists;
  m.attr("MOST_DIM") = most_dim;
  m.attr("MOST_VECTORS") = most_vectors;
  m.def(
      "write_drawn",
      [](const nb::object& path, const nb::bytes& head, std::uint64_t first, std::uint64_t n, std::uint32_t dim,
         std::uint32_t clusters, float spread, std::uint64_t seed, unsigned threads, const nb::object& progress) {
        const std::string name = to_path(path), before(head.c_str(), head.size());
        const auto told = to_progress(progress);
        const unlocked others;
        write_drawn(name, before, {dim, clusters, spread, seed}, first, n, threads, told);
      },
      "path"_a, "head"_a, nb::kw_only(), "first"_a, "n"_a, "dim"_a, "clusters"_a, "spread"_a, "seed"_a, "threads"_a,
      "progress"_a.none(), "Writes synthetic vectors behind a head, as rows of float32. progress(done, total), in bytes.");
  m.def(
      "draw",
      [](std::uintptr_t to, std::uint64_t first, std::uint64_t n, std::uint32_t dim, std::uint32_t clusters, float spread,
         std::uint64_t seed, unsigned threads) {
        const unlocked others;
        draw({dim, clusters, spread, seed}, first, n, threads, reinterpret_cast<float*>(to));
      },
      "to"_a, nb::kw_only(), "first"_a, "n"_a, "dim"_a, "clusters"_a, "spread"_a, "seed"_a, "threads"_a, "The same in memory.");
  m.def(
      "first_bad_row",
      [](std::uintptr_t rows, std::uint64_t n, std::uint32_t dim) {
        const unlocked others;
        return first_bad_row({floats_at(rows), n}, dim, 0);
      },
      "rows"_a, "n"_a, "dim"_a, "The first row with an element that is NaN or infinite; n: there is none.");

  nb::class_<index_file>(m, "Index", "The file of an index, open.")
      .def(
          "__init__", [](index_file* self, const nb::object& path) { new (self) index_file(to_path(path)); }, "path"_a)
      .def("info", &info_of, "What its header says.")
      .def("centroids", &centroids_of, "A row for each list.")
      .def("list", &list_of, "number"_a, "The vectors of a list as rows, and their ids as one row.")
      .def(
          "check",
          [](const index_file& index, unsigned threads, const nb::object& progress) {
            const auto told = to_progress(progress);
            const unlocked others;
            index.check_lists(threads, told);
          },
          nb::kw_only(), "threads"_a, "progress"_a.none(),
          "Reads all lists. GpufsError: what is wrong. progress(done, total), in bytes.");

  nb::class_<searcher>(m, "Searcher", "What searches an index.")
      .def(
          "__init__",
          [](searcher* self, const index_file& index, const std::string& name, unsigned threads, std::uint64_t cache_nbytes,
             std::uint32_t page_nbytes, int device) {
            new (self) searcher(index, name, {threads, cache_nbytes, page_nbytes, device});
          },
          nb::keep_alive<1, 2>(), "index"_a, "name"_a, nb::kw_only(), "threads"_a, "cache_nbytes"_a, "page_nbytes"_a, "device"_a)
      .def("search", &searcher::search, "queries"_a, "n"_a, nb::kw_only(), "k"_a, "nprobe"_a, "batch"_a, "progress"_a.none(),
           "Of n rows of float32: ids (int64, -1: none) and squared distances (float32), k of each, and facts.");

  nb::class_<builder>(m, "Builder", "Makes the file of an index: count() of all vectors, begin_lists(), add() of all, finish().")
      .def(
          "__init__",
          [](builder* self, const nb::object& path, std::uintptr_t centroids, std::uint32_t nlists, std::uint32_t dim,
             const std::string& engine, unsigned threads, int device, const std::string& made_by, const nb::object& base) {
            new (self) builder(to_path(path), centroids, nlists, dim, engine, threads, device, {threads, made_by, to_path(base)});
          },
          "path"_a, "centroids"_a, "nlists"_a, "dim"_a, nb::kw_only(), "engine"_a, "threads"_a, "device"_a, "made_by"_a, "base"_a)
      .def("count", &builder::count, "rows"_a, "n"_a)
      .def("begin_lists", &builder::begin_lists)
      .def("add", &builder::add, "rows"_a, "n"_a)
      .def("finish", &builder::finish, "Puts the file in its place: what it has.")
      .def("close", &builder::close, "Without finish(): nothing stays.");
}
