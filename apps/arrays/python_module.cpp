// SPDX-License-Identifier: Apache-2.0
// gpufs._rows: what gpufs.open() reads by. The interpreter's lock is not held while anything waits.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <system_error>

#include "apps/arrays/rows.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::arrays;

namespace {

using index_array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig>;
using byte_array = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig>;

std::unique_ptr<row_file> open_rows(const std::string& engine, const std::string& path, const row_place& place,
                                    const cache_options& options) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  if (engine == "cpu") return open_rows_cpu(path, place);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return open_rows_cuda(path, place, options);
#endif
  return open_rows_simt(path, place, options);
}

// An open file, and what its engine takes.
class rows {
 public:
  rows(const std::string& engine, const std::string& path, const row_place& place, const cache_options& options)
      : place_(place), takes_device_(engine == "gpu") {
    nb::gil_scoped_release unlock;
    file_ = open_rows(engine, path, place, options);
  }
  ~rows() {
    nb::gil_scoped_release unlock;
    file_.reset();
  }
  rows(const rows&) = delete;
  rows& operator=(const rows&) = delete;

  void read(const index_array& ids, const byte_array& out) const {
    const bool on_device = ids.device_type() != nb::device::cpu::value;
    if (on_device != (out.device_type() != nb::device::cpu::value)) throw nb::value_error("ids and out are not on one device");
    if (on_device && !takes_device_) throw nb::value_error("this engine reads into the host's memory");
    if (out.size() != ids.size() * place_.row_nbytes) throw nb::value_error("out is not as large as the rows");
    nb::gil_scoped_release unlock;
    file_->read(ids.data(), ids.size(), reinterpret_cast<std::byte*>(out.data()), on_device);
  }
  std::string way() const { return file_->way(); }
  nb::dict stats() const { return counters_of(file_->counters()); }

 private:
  row_place place_;
  bool takes_device_;
  std::unique_ptr<row_file> file_;
};

}  // namespace

NB_MODULE(_rows, m) {
  m.doc() = "Rows of arrays in files, for gpufs.open().";
  translate_errors();
  m.def("engine_missing", &why_not, "engine"_a, "Why the engine (cpu, simt, gpu) cannot run here; empty when it can.");
  nb::class_<rows>(m, "Rows", "An open file with rows of equal size.")
      .def(
          "__init__",
          [](rows* self, const std::string& engine, const nb::object& path, std::uint64_t begin, std::uint64_t row_nbytes,
             std::uint64_t nrows, std::uint64_t cache_nbytes, std::uint32_t page_nbytes) {
            new (self) rows(engine, to_path(path), {begin, row_nbytes, nrows}, {cache_nbytes, page_nbytes});
          },
          "engine"_a, "path"_a, "begin"_a, "row_nbytes"_a, "nrows"_a, "cache_nbytes"_a, "page_nbytes"_a)
      .def("read", &rows::read, "ids"_a, "out"_a,
           "Copies the rows with these numbers (int64 [n]) to out (uint8 [n * row_nbytes]), and waits for them.")
      .def("way", &rows::way, "Which way the bytes take, and why.")
      .def("stats", &rows::stats, "The mount's counters; zeros where there is no mount.");
}
