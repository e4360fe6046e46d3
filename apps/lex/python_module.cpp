// SPDX-License-Identifier: Apache-2.0
// gpufs._lex: what `gpufs lex` and gpufs.lex() find tokens by. The interpreter's lock is not held while anything waits. Memory is
// named by its address, and Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "apps/crc32.hpp"
#include "apps/lex/lexer.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::lex;
using gpufs::par::lex_table;

namespace {

std::unique_ptr<lexer> make_lexer(const std::string& engine, const std::string& path, const lex_table& table,
                                  const lexer_options& options) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  if (engine == "cpu") return make_lexer_cpu(path, table, options);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return make_lexer_cuda(path, table, options);
#endif
  return make_lexer_simt(path, table, options);
}

// Of all that tokens depend on, and of what they are called.
std::uint32_t checksum_of(const lex_table& table) {
  const std::uint32_t start = table.start();
  const auto steps = table.packed_steps();
  const auto kinds = table.packed_kinds();
  std::uint32_t crc = crc32(0, &start, sizeof start);
  crc = crc32(crc, steps.data(), steps.size() * sizeof steps[0]);
  crc = crc32(crc, kinds.data(), kinds.size());
  for (const std::string& name : table.kinds()) crc = crc32(crc, name.c_str(), name.size() + 1);
  return crc;
}

// A file that is lexed.
class lexer_of_file {
 public:
  lexer_of_file(const std::string& engine, const std::string& path, const lex_table& table, const lexer_options& options) {
    const unlocked others;
    lexer_ = make_lexer(engine, path, table, options);
  }
  ~lexer_of_file() {
    const unlocked others;
    lexer_.reset();
  }
  lexer_of_file(const lexer_of_file&) = delete;
  lexer_of_file& operator=(const lexer_of_file&) = delete;

  const lexer& get() const { return *lexer_; }
  void go_on(std::uint64_t offset, std::uint64_t begin, std::uint32_t state) { lexer_->go_on({offset, begin, state}); }
  std::size_t next() {
    const unlocked others;
    lexer_->next();
    return lexer_->found().offsets.size();
  }
  void copy(std::uintptr_t offsets, std::uintptr_t kinds) const {
    const unlocked others;
    const found_tokens& found = lexer_->found();
    std::ranges::copy(found.offsets, reinterpret_cast<std::uint64_t*>(offsets));
    std::ranges::copy(found.kinds, reinterpret_cast<std::uint8_t*>(kinds));
  }

 private:
  std::unique_ptr<lexer> lexer_;
};

}  // namespace

NB_MODULE(_lex, m) {
  m.doc() = "Tokens of files, for gpufs.lex().";
  translate_errors();
  nb::class_<lex_table>(m, "Table", "An automaton that finds tokens.")
      .def_static(
          "parse",
          [](const nb::bytes& text, const std::string& name) {
            return lex_table::parse({text.c_str(), text.size()}, name);
          },
          "text"_a, "name"_a, "Of a text; name: what errors call it.")
      .def_static(
          "named", [](const std::string& name) { return lex_table::named(name); }, "name"_a, "One that is there.")
      .def_static(
          "names",
          [] {
            const auto names = lex_table::names();
            return std::vector<std::string>(names.begin(), names.end());
          },
          "Of those that are there.")
      .def(
          "kinds", [](const lex_table& table) { return table.kinds(); }, "The kinds of tokens, from number 1 on.")
      .def(
          "nstates", [](const lex_table& table) { return table.nstates(); }, "How many states it has.")
      .def("checksum", &checksum_of, "Of what it does: 32 bits.");
  nb::class_<lexer_of_file>(m, "Lexer", "A regular file whose tokens are found piece by piece.")
      .def(
          "__init__",
          [](lexer_of_file* self, const std::string& engine, const nb::object& path, const lex_table& table,
             std::uint64_t piece_nbytes, int device) {
            new (self) lexer_of_file(engine, to_path(path), table, {piece_nbytes, device});
          },
          "engine"_a, "path"_a, "table"_a, "piece_nbytes"_a, "device"_a, "piece_nbytes: at a time; 0: the engine's own choice.")
      .def("nbytes", [](const lexer_of_file& of) { return of.get().nbytes(); })
      .def("ndone", [](const lexer_of_file& of) { return of.get().ndone(); })
      .def("piece_nbytes", [](const lexer_of_file& of) { return of.get().piece_nbytes(); })
      .def(
          "so_far",
          [](const lexer_of_file& of) {
            const gpufs::par::lex_place& at = of.get().so_far();
            return std::tuple(at.offset, at.begin, at.state);
          },
          "Where it is: the next byte, where the token under way began, and the state; there another lexer goes on.")
      .def("go_on", &lexer_of_file::go_on, "offset"_a, "begin"_a, "state"_a, "From there on, before the first next().")
      .def("next", &lexer_of_file::next, "Lexes the next piece, and waits: how many tokens end in it.")
      .def("copy", &lexer_of_file::copy, "offsets"_a, "kinds"_a, "Those tokens, to memory for as many uint64 and uint8.");
}
