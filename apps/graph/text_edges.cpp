// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/text_edges.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/parallel.hpp"

namespace gpufs::apps::graph {
namespace {

constexpr std::uint64_t part_nbytes = 1 << 20, most_line_nbytes = 4096;

bool is_between(char c) { return c == ' ' || c == '\t' || c == ',' || c == '\r'; }

// The next word of a line; empty at its end.
std::string_view take_word(std::string_view& line) {
  while (!line.empty() && is_between(line.front())) line.remove_prefix(1);
  std::size_t n = 0;
  while (n < line.size() && !is_between(line[n])) ++n;
  const std::string_view word = line.substr(0, n);
  line.remove_prefix(n);
  return word;
}
bool is_number(std::string_view word, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && end == word.data() + word.size();
}
// A whole number, also as 5.0 or 5e0, of which real matrices are full.
bool is_whole(std::string_view word, double& number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && end == word.data() + word.size() && std::isfinite(number) && number == std::trunc(number);
}

class text_edges final : public edge_source {
 public:
  text_edges(std::string path) : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail(std::strerror(errno));
    struct stat about {};
    const bool is_regular = ::fstat(descriptor_, &about) == 0 && S_ISREG(about.st_mode);
    nbytes_ = static_cast<std::uint64_t>(about.st_size);
    changed_ = about.st_mtim;
    try {
      if (!is_regular) fail(S_ISDIR(about.st_mode) ? std::strerror(EISDIR) : "is no regular file: copy it to one first");
      read_head();
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
  ~text_edges() override { ::close(descriptor_); }
  text_edges(const text_edges&) = delete;
  text_edges& operator=(const text_edges&) = delete;

  std::uint64_t nvertices() const override { return nvertices_; }
  bool has_weights() const override { return weights_; }
  std::uint64_t nparts() const override { return (nbytes_ - begin_ + part_nbytes - 1) / part_nbytes; }
  bool is_symmetric() const { return symmetric_; }

  void read_part(std::uint64_t part, std::vector<weighted_edge>& to) const override {
    each_line(part, [&](std::string_view line, std::uint64_t at) {
      weighted_edge e{};
      if (!parse(line, at, e)) return;
      if (e.from >= nvertices_ || e.to >= nvertices_) fail_at(at, "was changed while it was read: try again");
      to.push_back(e);
    });
    // A build goes through the file several times, and what one finds must be what the others did.
    struct stat now {};
    const bool is_same = ::fstat(descriptor_, &now) == 0 && static_cast<std::uint64_t>(now.st_size) == nbytes_ &&
                         now.st_mtim.tv_sec == changed_.tv_sec && now.st_mtim.tv_nsec == changed_.tv_nsec;
    if (!is_same) fail("was changed while it was read: try again");
  }
  // Counts the vertices, unless the file has said how many there are, and looks at each line.
  void look(unsigned nthreads, const progress_function& progress) {
    const auto caller = std::this_thread::get_id();
    std::mutex adding;
    std::uint64_t ndone = 0, nentries = 0, most = 0;
    parallel_for(thread_count(nthreads), nparts(), [&](std::size_t part) {
      std::uint64_t here = 0, n = 0;
      each_line(part, [&](std::string_view line, std::uint64_t at) {
        weighted_edge e{};
        if (!parse(line, at, e)) return;
        ++n;
        here = std::max<std::uint64_t>({here, std::uint64_t{e.from} + 1, std::uint64_t{e.to} + 1});
        if (is_matrix_ && here > nvertices_) fail_at(at, "a row or column is beyond the matrix's " + std::to_string(nvertices_));
      });
      std::uint64_t done = 0;
      {
        const std::lock_guard lock(adding);
        most = std::max(most, here);
        nentries += n;
        done = ++ndone;
      }
      if (std::this_thread::get_id() == caller) progress(done, nparts());
    });
    progress(nparts(), nparts());
    if (is_matrix_ && nentries != nentries_) {
      fail("has " + std::to_string(nentries) + " entries, and says that there are " + std::to_string(nentries_) +
           ": it was cut; copy it again");
    }
    if (!is_matrix_) nvertices_ = most;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw gpufs::error(path_ + ": " + what); }
  // at: a byte of the line.
  [[noreturn]] void fail_at(std::uint64_t at, const std::string& what) const {
    std::uint64_t line = 1;
    std::string bytes;
    for (std::uint64_t begin = 0; begin < at; begin += bytes.size()) {
      bytes.resize(std::min(part_nbytes, at - begin));
      read(bytes.data(), bytes.size(), begin);
      line += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
    }
    throw gpufs::error(path_ + ":" + std::to_string(line) + ": " + what);
  }
  void read(char* to, std::size_t nbytes, std::uint64_t offset) const {
    while (nbytes != 0) {
      const ssize_t got = ::pread(descriptor_, to, nbytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(std::strerror(errno));
      if (got == 0) fail("was cut while it was read: try again");
      to += got;
      nbytes -= static_cast<std::size_t>(got);
      offset += static_cast<std::uint64_t>(got);
    }
  }
  // The lines that begin in the part; use(line, its place).
  template <class Use>
  void each_line(std::uint64_t part, const Use& use) const {
    const std::uint64_t first = begin_ + part * part_nbytes, end = std::min(nbytes_, first + part_nbytes);
    const std::uint64_t from = part == 0 ? first : first - 1, to = std::min(nbytes_, end + most_line_nbytes);
    std::string bytes(to - from, '\0');
    read(bytes.data(), bytes.size(), from);
    std::size_t at = 0;
    if (part != 0) {
      at = bytes.find('\n');  // the end of the line that another part has
      if (at == std::string::npos) return;
      ++at;
    }
    while (from + at < end) {
      std::size_t line_end = bytes.find('\n', at);
      if (line_end == std::string::npos) {
        if (to != nbytes_)
          fail_at(from + at, "this line is longer than " + std::to_string(most_line_nbytes) + " bytes: is it text?");
        line_end = bytes.size();
      }
      use(std::string_view(bytes).substr(at, line_end - at), from + at);
      at = line_end + 1;
    }
  }
  // False: the line has no edge.
  bool parse(std::string_view line, std::uint64_t at, weighted_edge& e) const {
    std::string_view left = line;
    const std::string_view from = take_word(left);
    if (from.empty() || from.front() == '#' || from.front() == '%') return false;
    const std::string_view to = take_word(left), third = take_word(left);
    std::uint64_t numbers[2] = {};
    const std::string wanted = weights_ || ignores_values_ ? "FROM TO WEIGHT" : "FROM TO";
    if (!is_number(from, numbers[0]) || !is_number(to, numbers[1]) || third.empty() == (weights_ || ignores_values_) ||
        !take_word(left).empty()) {
      fail_at(at, "this is no line of the form '" + wanted + "' with whole numbers, as the first one is");
    }
    for (std::uint64_t& number : numbers) {
      if (is_matrix_ && number-- == 0) fail_at(at, "rows and columns of a matrix begin with 1");
      if (number >= most_vertices) fail_at(at, "vertex " + std::to_string(number) + " is too large: number them up to 2^32 - 3");
    }
    e = {static_cast<vertex>(numbers[0]), static_cast<vertex>(numbers[1]), 0};
    if (weights_) {
      double value = 0;
      if (!is_whole(third, value))
        fail_at(at, "weight '" + std::string(third) +
                        "' is no whole number: multiply and round weights, or leave them out by --no-weights");
      if (value < 0)
        fail_at(at, "weight " + std::string(third) + " is negative, and shortest paths are sought by weights of 0 and more");
      if (value > 0xffffffffp0) fail_at(at, "weight " + std::string(third) + " is too large: at most 2^32 - 1");
      e.of = static_cast<weight>(value);
    }
    return true;
  }
  void read_head() {
    std::string bytes(std::min<std::uint64_t>(nbytes_, part_nbytes), '\0');
    read(bytes.data(), bytes.size(), 0);
    std::string_view left = bytes;
    const auto take_line = [&] {
      const std::size_t n = std::min(left.find('\n'), left.size());
      const std::string_view line = left.substr(0, n);
      left.remove_prefix(std::min(left.size(), n + 1));
      return line;
    };
    if (!left.starts_with("%%MatrixMarket")) {
      while (!left.empty()) {  // the first edge says whether there are weights
        std::string_view line = take_line();
        const std::string_view first = take_word(line);
        if (first.empty() || first.front() == '#' || first.front() == '%') continue;
        take_word(line);
        weights_ = !take_word(line).empty();
        return;
      }
      if (nbytes_ > bytes.size()) fail("has no edge in its first MiB: is it text?");
      return;
    }
    is_matrix_ = true;
    std::string_view banner = take_line();
    std::string words[5];
    for (std::string& word : words) {
      word = std::string(take_word(banner));
      std::transform(word.begin(), word.end(), word.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    }
    const bool is_good = words[1] == "matrix" && words[2] == "coordinate" &&
                         (words[3] == "pattern" || words[3] == "integer" || words[3] == "real") &&
                         (words[4] == "general" || words[4] == "symmetric");
    if (!is_good) {
      fail("is a matrix '" + words[2] + " " + words[3] + " " + words[4] +
           "'; there are coordinate matrices, pattern, integer or real, general or symmetric");
    }
    weights_ = words[3] != "pattern";
    symmetric_ = words[4] == "symmetric";
    while (!left.empty()) {
      const std::string_view line = take_line();
      std::string_view rest = line;
      const std::string_view first = take_word(rest);
      if (first.empty() || first.front() == '%') continue;
      std::uint64_t nrows = 0, ncolumns = 0;
      if (!is_number(first, nrows) || !is_number(take_word(rest), ncolumns) || !is_number(take_word(rest), nentries_)) break;
      if (nrows != ncolumns)
        fail("has " + std::to_string(nrows) + " rows and " + std::to_string(ncolumns) + " columns, and a graph's matrix is square");
      if (nrows > most_vertices) fail("has more than 2^32 - 2 rows");
      nvertices_ = nrows;
      begin_ = static_cast<std::uint64_t>(left.data() - bytes.data());
      return;
    }
    fail("has no line with its numbers of rows, columns and entries");
  }

 public:
  void ignore_weights() {
    ignores_values_ = weights_;
    weights_ = false;
  }

 private:
  std::string path_;
  int descriptor_;
  timespec changed_{};
  std::uint64_t nbytes_ = 0, begin_ = 0;  // begin: of lines with edges
  std::uint64_t nvertices_ = 0, nentries_ = 0;
  bool weights_ = false, ignores_values_ = false, symmetric_ = false, is_matrix_ = false;
};

class csr_edges final : public edge_source {
 public:
  csr_edges(std::span<const std::int64_t> indptr, std::span<const std::int64_t> indices, std::span<const std::int64_t> weights)
      : indptr_(indptr), indices_(indices), weights_(weights) {}
  std::uint64_t nvertices() const override { return indptr_.size() - 1; }
  bool has_weights() const override { return !weights_.empty(); }
  std::uint64_t nparts() const override { return (nvertices() + rows_a_part - 1) / rows_a_part; }
  void read_part(std::uint64_t part, std::vector<weighted_edge>& to) const override {
    for (std::uint64_t row = part * rows_a_part; row < std::min(nvertices(), (part + 1) * rows_a_part); ++row) {
      for (auto i = static_cast<std::size_t>(indptr_[row]); i < static_cast<std::size_t>(indptr_[row + 1]); ++i) {
        to.push_back(
            {static_cast<vertex>(row), static_cast<vertex>(indices_[i]), weights_.empty() ? 0 : static_cast<weight>(weights_[i])});
      }
    }
  }

 private:
  static constexpr std::uint64_t rows_a_part = 4096;
  std::span<const std::int64_t> indptr_, indices_, weights_;
};

}  // namespace

text_graph open_text_edges(const std::string& path, bool with_weights, unsigned nthreads, const progress_function& progress) {
  auto text = std::make_unique<text_edges>(path);
  if (!with_weights) text->ignore_weights();
  text->look(nthreads, progress);
  const bool is_symmetric = text->is_symmetric();
  return {std::move(text), is_symmetric};
}

std::unique_ptr<edge_source> make_csr_edges(std::span<const std::int64_t> indptr, std::span<const std::int64_t> indices,
                                            std::span<const std::int64_t> weights, const std::string& name) {
  const auto fail = [&](const std::string& what) { throw gpufs::error(name + ": " + what); };
  if (indptr.empty() || indptr.front() != 0 || !std::is_sorted(indptr.begin(), indptr.end()) ||
      static_cast<std::uint64_t>(indptr.back()) != indices.size()) {
    fail("'indptr' does not ascend from 0 to the number of indices: it is no CSR matrix");
  }
  const std::uint64_t n = indptr.size() - 1;
  if (n > most_vertices) fail("has more than 2^32 - 2 rows");
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (static_cast<std::uint64_t>(indices[i]) >= n) {
      fail("index " + std::to_string(i) + " is " + std::to_string(indices[i]) + ", and the matrix has " + std::to_string(n) +
           " rows");
    }
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0)
      fail("weight " + std::to_string(i) + " is negative (" + std::to_string(weights[i]) +
           "), and shortest paths are sought by weights of 0 and more");
    if (weights[i] > 0xffffffff) fail("weight " + std::to_string(i) + " is too large: at most 2^32 - 1");
  }
  return std::make_unique<csr_edges>(indptr, indices, weights);
}

}  // namespace gpufs::apps::graph
