// SPDX-License-Identifier: Apache-2.0
// gpufs._words: what `gpufs words` and `gpufs grep` find by. The interpreter's lock is not held while anything waits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/parallel.hpp"
#include "apps/python_support.hpp"
#include "apps/words/finder.hpp"
#include "apps/words/lines.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::words;

namespace {

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

std::unique_ptr<finder> make_finder(const std::string& engine, const file_tree& tree, const find_options& options) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  if (engine == "cpu") return make_finder_cpu(tree, options);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return make_finder_cuda(tree, options);
#endif
  return make_finder_simt(tree, options);
}

find_options options_of(unsigned nthreads, std::uint32_t piece_nbytes, int device, const nb::object& scratch) {
  find_options options;
  options.nthreads = nthreads;
  if (piece_nbytes != 0) options.piece_nbytes = piece_nbytes;
  options.device = device;
  options.scratch = to_path(scratch);
  return options;
}

std::vector<std::tuple<std::uint32_t, int>> errors_of(const found& all) {
  std::vector<std::tuple<std::uint32_t, int>> errors;
  for (std::size_t i = 0; i < all.errors.size(); ++i) {
    if (all.errors[i] != 0) errors.emplace_back(static_cast<std::uint32_t>(i), all.errors[i]);
  }
  return errors;
}

// What a search for a dictionary's words has found, in order.
class counted_words {
 public:
  counted_words(const std::string& engine, const file_tree& tree, const dictionary& words, const find_options& options,
                const progress_function& progress)
      : tree_(tree), words_(words), nthreads_(options.nthreads) {
    const unlocked others;
    auto last = std::chrono::steady_clock::now();
    const auto lap = [&] {
      const auto before = std::exchange(last, std::chrono::steady_clock::now());
      return std::chrono::duration<double>(last - before).count();
    };
    const std::unique_ptr<finder> by = make_finder(engine, tree, options);
    start_seconds_ = lap();
    const found all = by->find({&words, nullptr}, progress);
    find_seconds_ = lap();
    rows_ = rows_of(all, words.nwords(), options.nthreads);
    order_seconds_ = lap();
    errors_ = errors_of(all);
    nbytes_ = all.nbytes;
  }
  const std::vector<std::tuple<std::uint32_t, int>>& errors() const { return errors_; }
  std::uint64_t nbytes() const { return nbytes_; }
  std::tuple<double, double, double> seconds() const { return {start_seconds_, find_seconds_, order_seconds_}; }
  std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> totals() const {
    std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> all;
    for (std::uint32_t word = 0; word < words_.nwords(); ++word) {
      const std::uint64_t first = rows_.begins[word], end = rows_.begins[word + 1];
      if (first == end) continue;
      const std::uint64_t n = std::accumulate(rows_.counts.get() + first, rows_.counts.get() + end, std::uint64_t{0});
      all.emplace_back(word, n, end - first);
    }
    return all;
  }
  // A line for each word and file. 0 or an errno. Written by one thread, in the order of words, while all make lines of a part.
  int write(int fd) const {
    const unlocked others;
    std::vector<std::string> paths(tree_.files().size());
    parallel_for(thread_count(nthreads_), paths.size(), [&](std::size_t i) { paths[i] = escaped(tree_.shown(i)); });
    constexpr std::uint64_t rows_at_once = 1 << 16;
    const std::uint64_t nrows = rows_.nrows(), nparts = (nrows + rows_at_once - 1) / rows_at_once;
    const std::size_t together = 2 * std::size_t{thread_count(nthreads_)};
    std::vector<std::string> texts(together);
    for (std::uint64_t first = 0; first < nparts; first += together) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(together, nparts - first));
      parallel_for(thread_count(nthreads_), n, [&](std::size_t i) {
        const std::uint64_t begin = (first + i) * rows_at_once;
        texts[i] = lines_of(begin, std::min(nrows, begin + rows_at_once), paths);
      });
      for (std::size_t i = 0; i < n; ++i) {
        if (const int error = write_all(fd, texts[i]); error != 0) return error;
      }
    }
    return 0;
  }

 private:
  // A path on one line, without tabs.
  static std::string escaped(const std::string& path) {
    std::string text;
    for (const char c : path) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') {
        constexpr char digits[] = "0123456789abcdef";
        text += {'\\', 'x', digits[c >> 4 & 15], digits[c & 15]};
      } else {
        text += c;
      }
    }
    return text;
  }
  std::string lines_of(std::uint64_t begin, std::uint64_t end, const std::vector<std::string>& paths) const {
    std::string text;
    auto word = static_cast<std::uint32_t>(std::ranges::upper_bound(rows_.begins, begin) - rows_.begins.begin() - 1);
    for (std::uint64_t row = begin; row < end; ++row) {
      while (rows_.begins[word + 1] <= row) ++word;
      text.append(words_.word(word)).append("\t").append(std::to_string(rows_.counts[row])).append("\t");
      text.append(paths[rows_.files[row]]).append("\n");
    }
    return text;
  }
  static int write_all(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t done = ::write(fd, text.data(), text.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return errno;
      text.remove_prefix(static_cast<std::size_t>(done));
    }
    return 0;
  }

  const file_tree& tree_;
  const dictionary& words_;
  unsigned nthreads_;
  word_rows rows_;
  std::vector<std::tuple<std::uint32_t, int>> errors_;
  std::uint64_t nbytes_ = 0;
  double start_seconds_ = 0, find_seconds_ = 0, order_seconds_ = 0;
};

// The lines that have a string.
class lines_with {
 public:
  lines_with(const std::string& engine, const file_tree& tree, const wanted_string& text, const find_options& options,
             const progress_function& progress)
      : found_(find_unlocked(engine, tree, text, options, progress)), reader_(tree, found_, text, options.nthreads) {}
  std::vector<std::tuple<std::uint32_t, int>> errors() const { return errors_of(found_); }
  std::uint64_t nbytes() const { return found_.nbytes; }
  nb::list next() {
    std::vector<file_lines> files;
    {
      const unlocked others;
      files = reader_.next();
    }
    nb::list all;
    for (const file_lines& file : files) {
      nb::list lines;
      for (const found_line& line : file.lines) lines.append(nb::make_tuple(line.number, to_bytes(line.text)));
      all.append(nb::make_tuple(file.file, file.error, file.is_binary, lines));
    }
    return all;
  }

 private:
  static found find_unlocked(const std::string& engine, const file_tree& tree, const wanted_string& text,
                             const find_options& options, const progress_function& progress) {
    const unlocked others;
    return make_finder(engine, tree, options)->find({nullptr, &text}, progress);
  }
  found found_;
  line_reader reader_;
};

}  // namespace

NB_MODULE(_words, m) {
  m.doc() = "Words and strings in trees of files, for `gpufs words` and `gpufs grep`.";
  translate_errors();
  nb::class_<file_tree>(m, "Tree", "The regular files that paths name, in order.")
      .def(
          "__init__",
          [](file_tree* self, const std::vector<nb::object>& paths, unsigned nthreads) {
            std::vector<std::string> all;
            all.reserve(paths.size());
            for (const nb::object& path : paths) all.push_back(to_path(path));
            const auto look = to_progress(nb::none());
            const unlocked others;
            new (self) file_tree(all, nthreads, [&] { look(0, 1); });
          },
          "paths"_a, "nthreads"_a = 0)
      .def("nfiles", [](const file_tree& tree) { return tree.files().size(); })
      .def("nbytes", &file_tree::nbytes)
      .def("is_one_file", &file_tree::is_one_file, "One path was given, which is no folder.")
      .def(
          "path", [](const file_tree& tree, std::size_t i) { return to_bytes(tree.shown(i)); }, "i"_a,
          "Of file i, as it was named.")
      .def(
          "failures",
          [](const file_tree& tree) {
            nb::list all;
            for (const file_tree::failure& each : tree.failures()) all.append(nb::make_tuple(to_bytes(each.path), each.error));
            return all;
          },
          "What could not be looked at: path and errno.");
  nb::class_<dictionary>(m, "Dictionary", "The different words of a text.")
      .def(
          "__init__",
          [](dictionary* self, const nb::bytes& text, bool folds, const std::string& name) {
            new (self) dictionary({text.c_str(), text.size()}, folds, name);
          },
          "text"_a, "folds"_a, "name"_a, "name: what errors call it.")
      .def("nwords", &dictionary::nwords)
      .def(
          "word", [](const dictionary& of, std::uint32_t i) { return to_bytes(of.word(i)); }, "i"_a)
      .def("nrepeated", &dictionary::nrepeated, "How many lines have a word that was there.")
      .def(
          "no_words",
          [](const dictionary& of) {
            const dictionary::refused& lines = of.no_words();
            return nb::make_tuple(lines.n, lines.line, to_bytes(lines.text));
          },
          "How many lines are no word; the first one's number and text.");
  nb::class_<wanted_string>(m, "WantedString", "A string to find.")
      .def(
          "__init__",
          [](wanted_string* self, const nb::bytes& text) {
            new (self) wanted_string({text.c_str(), text.size()});
          },
          "text"_a);
  nb::class_<counted_words>(m, "CountedWords", "How often, and in which files, there are a dictionary's words.")
      .def(
          "__init__",
          [](counted_words* self, const std::string& engine, const file_tree& tree, const dictionary& words, unsigned nthreads,
             std::uint32_t piece_nbytes, int device, const nb::object& scratch, const nb::object& progress) {
            new (self)
                counted_words(engine, tree, words, options_of(nthreads, piece_nbytes, device, scratch), to_progress(progress));
          },
          "engine"_a, "tree"_a, "words"_a, "nthreads"_a, "piece_nbytes"_a, "device"_a, "scratch"_a, "progress"_a = nb::none(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), "piece_nbytes: of a file, searched by one thread; 0: the usual.")
      .def("errors", &counted_words::errors, "Of files that could not be read, and count nothing: number and errno.")
      .def("nbytes", &counted_words::nbytes, "How many were searched.")
      .def("seconds", &counted_words::seconds, "To start the engine, to find, and to put in order.")
      .def("totals", &counted_words::totals, "Of each word that occurs: its number, how often, in how many files.")
      .def("write", &counted_words::write, "fd"_a, "A line for each word and file: 0 or an errno.");
  nb::class_<lines_with>(m, "LinesWith", "The lines that have a string.")
      .def(
          "__init__",
          [](lines_with* self, const std::string& engine, const file_tree& tree, const wanted_string& text, unsigned nthreads,
             std::uint32_t piece_nbytes, int device, const nb::object& scratch, const nb::object& progress) {
            new (self) lines_with(engine, tree, text, options_of(nthreads, piece_nbytes, device, scratch), to_progress(progress));
          },
          "engine"_a, "tree"_a, "text"_a, "nthreads"_a, "piece_nbytes"_a, "device"_a, "scratch"_a, "progress"_a = nb::none(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("errors", &lines_with::errors)
      .def("nbytes", &lines_with::nbytes)
      .def("next", &lines_with::next,
           "Of the next files: number, errno, whether it is binary, and lines: number and text. After the last ones none.");
}
