// SPDX-License-Identifier: Apache-2.0
// Words in a tree of source files: by how much does a kernel that opens all files itself beat the same search by host threads, and
// how near does it come to opening and reading them? After GPUfs (CACM'14), Table 2.
//
// The tree has as many files as the Linux source 6.1, of sizes distributed as its are, with synthetic text: a third of the words is
// from a dictionary of 58,112 words, by Zipf's law, the rest are names. Files are in memory. The answers of all ways are compared
// with each other, and of some words with a plain loop over the text, outside the timed part. What an engine sets up before its
// first search (mounts, paths in device memory) is not timed: words_start.
//
// words_vs_cpu16, words_vs_cpu8: to find and to put in order, the engine cpu with as many threads over the GPU's.
// words_overhead: to find, over as many threads as the mount has workers that only open, read and close the files.
// words_vs_rg: ripgrep, where it is there, which counts the lines with one word, over a search for that word.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "apps/words/finder.hpp"
#include "device.hpp"

namespace {

using namespace bench;
using namespace gpufs::apps::words;

// Of the sizes of the files of Linux 6.1.192 each 64th in their order, and of the largest 64th each 16th.
constexpr std::array<double, 64> sizes{0,     100,   177,   242,   302,   362,   422,   485,   557,   638,   720,   806,   889,
                                       977,   1073,  1176,  1280,  1377,  1484,  1598,  1720,  1849,  1983,  2121,  2271,  2429,
                                       2592,  2772,  2959,  3165,  3377,  3624,  3874,  4132,  4413,  4729,  5053,  5392,  5755,
                                       6136,  6549,  6974,  7460,  7981,  8567,  9171,  9851,  10597, 11416, 12397, 13409, 14568,
                                       15898, 17435, 19149, 21234, 23722, 26671, 30319, 34979, 41348, 50149, 65330, 96178};
constexpr std::array<double, 17> largest{96178,  99593,  103694, 108572, 112482, 118827, 126085,  133471,  144062,
                                         156541, 173109, 193676, 227282, 293709, 420746, 1136970, 23944620};

// At x in 0..1 of values that are spread evenly.
template <std::size_t N>
double between(const std::array<double, N>& values, double x) {
  const double at = x * (N - 1);
  const auto i = std::min<std::size_t>(static_cast<std::size_t>(at), N - 2);
  return values[i] + (values[i + 1] - values[i]) * (at - static_cast<double>(i));
}
std::uint64_t size_of(std::uint32_t file, std::uint32_t nfiles) {
  const double x = (file + 0.5) / nfiles * 64;
  return static_cast<std::uint64_t>(x < 63 ? between(sizes, x / 63) : between(largest, x - 63));
}

struct drawn {
  std::uint64_t state;
  std::uint64_t operator()() { return state = word_of(state + 0x9e3779b97f4a7c15); }
};

std::string drawn_word(std::uint64_t number, unsigned least, unsigned most) {
  drawn draw{number};
  std::string word(least + draw() % (most - least + 1), ' ');
  for (char& c : word) c = static_cast<char>('a' + draw() % 26);
  return word;
}

// The dictionary's words, and names that are none of them.
struct vocabulary {
  static constexpr unsigned nwords = 58'112, nnames = 200'000;
  std::vector<std::string> words, names;
  vocabulary() {
    for (unsigned i = 0; i < nwords; ++i) words.push_back(drawn_word(i, 2, 13));
    for (unsigned i = 0; i < nnames; ++i) names.push_back(drawn_word(nwords + i, 1, 8) + "_" + drawn_word(2 * nnames + i, 1, 8));
  }
  std::string text(std::uint64_t seed, std::uint64_t nbytes) const {
    static constexpr std::array<const char*, 8> marks{" ", " ", "(", "->", ";\n\t", ", ", " = ", ");\n"};
    drawn draw{seed};
    std::string of;
    while (of.size() < nbytes) {
      const std::uint64_t x = draw();
      const double share = static_cast<double>(x >> 40) / (1 << 24);
      // Zipf's law: the logarithm of the rank is spread evenly.
      if (x % 3 == 0)
        of += words[static_cast<std::size_t>(std::pow(nwords, share)) - 1];
      else
        of += names[static_cast<std::size_t>(std::pow(nnames, share)) - 1];
      of += marks[x >> 8 & 7];
    }
    of.resize(nbytes);
    return of;
  }
  std::string lines() const {
    std::string all;
    for (const std::string& word : words) all += word + "\n";
    return all;
  }
};

// 16 files in a folder, 64 folders in a folder, as in a source tree about. Big files are among small ones.
void make_tree(const std::string& root, std::uint32_t nfiles, const vocabulary& from) {
  for (std::uint32_t i = 0; i < nfiles; i += 16) {
    const std::string outer = root + "/" + std::to_string(i / 1024);
    if (i % 1024 == 0 && mkdir(outer.c_str(), 0700) != 0) throw gpufs::error("cannot make a folder");
    if (mkdir((outer + "/" + std::to_string(i / 16)).c_str(), 0700) != 0) throw gpufs::error("cannot make a folder");
  }
  std::atomic<bool> right{true};
  std::atomic<std::uint32_t> next{0};
  (void)run_threads(host_threads(), [&](unsigned) {
    for (std::uint32_t i; (i = next.fetch_add(1)) < nfiles;) {
      // The largest first, so that threads end together; where a file lies does not depend on its size.
      const auto place = static_cast<std::uint32_t>(std::uint64_t{i} * 40'503 % nfiles);
      const std::string text = from.text(i, size_of(nfiles - 1 - i, nfiles));
      const std::string path =
          root + "/" + std::to_string(place / 1024) + "/" + std::to_string(place / 16) + "/" + std::to_string(i) + ".c";
      const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      std::size_t done = 0;
      while (fd >= 0 && done < text.size()) {
        const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
        if (n <= 0) break;
        done += static_cast<std::size_t>(n);
      }
      if (fd < 0 || done != text.size()) right = false;
      if (fd >= 0) ::close(fd);
    }
  });
  if (!right) throw gpufs::error("cannot write the files");
}

// Seconds that nthreads threads take to open, read and close all files.
double only_read(const file_tree& tree, unsigned nthreads) {
  const int root = ::open(tree.root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < tree.files().size(); ++i) paths.push_back(tree.below_root(i));
  std::vector<std::uint32_t> by_size;
  for (const piece& each : pieces_of(tree, to_the_end)) by_size.push_back(each.file);
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> all{0};
  const double seconds = run_threads(nthreads, [&](unsigned) {
    std::vector<char> buffer(128 << 10);
    std::uint64_t nbytes = 0;
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < by_size.size();) {
      const int fd = ::openat(root, paths[by_size[i]].c_str(), O_RDONLY | O_CLOEXEC);
      std::uint64_t done = 0;
      for (ssize_t n; fd >= 0 && (n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(done))) > 0;) {
        done += static_cast<std::uint64_t>(n);
        if (static_cast<std::size_t>(n) < buffer.size()) break;
      }
      if (fd >= 0) ::close(fd);
      nbytes += done;
    }
    all += nbytes;
  });
  ::close(root);
  if (all != tree.nbytes()) throw gpufs::error("the files cannot be read");
  return seconds;
}

struct timed {
  double start = 0, find = 0, order = 0;
  double both() const { return find + order; }
};
struct answer {
  timed took;
  word_rows rows;
};

answer search(bool by_kernels, const file_tree& tree, const dictionary& words, unsigned nthreads, const std::string& scratch) {
  find_options options;
  options.nthreads = nthreads;
  options.scratch = scratch;
  options.device = gpufs::current_device;
  answer of;
  stopwatch whole;
#if GPUFS_ON_CUDA
  const auto by = by_kernels ? make_finder_cuda(tree, options) : make_finder_cpu(tree, options);
#else
  const auto by = by_kernels ? make_finder_simt(tree, options) : make_finder_cpu(tree, options);
#endif
  of.took.start = whole.seconds();
  const found all = by->find({&words, nullptr}, [](std::uint64_t, std::uint64_t) {});
  of.took.find = whole.seconds() - of.took.start;
  if (std::ranges::any_of(all.errors, [](int error) { return error != 0; })) throw gpufs::error("a file could not be read");
  of.rows = rows_of(all, words.nwords(), nthreads);
  of.took.order = whole.seconds() - of.took.start - of.took.find;
  return of;
}

bool same(const word_rows& a, const word_rows& b) {
  return a.begins == b.begins && std::equal(a.files.get(), a.files.get() + a.nrows(), b.files.get()) &&
         std::equal(a.counts.get(), a.counts.get() + a.nrows(), b.counts.get());
}

// Of every 997th file and every 97th word, by a plain loop.
bool is_right(const file_tree& tree, const dictionary& words, const word_rows& rows) {
  bool right = true;
  for (std::size_t file = 0; file < tree.files().size(); file += 997) {
    const std::string path = tree.root() + tree.below_root(file);
    std::string text(tree.files()[file].nbytes, ' ');
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (::read(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return false;
    ::close(fd);
    const auto is_letter = [&](std::size_t i) { return i < text.size() && (std::isalnum(text[i]) != 0 || text[i] == '_'); };
    for (std::uint32_t word = 0; word < words.nwords(); word += 97) {
      std::uint64_t n = 0;
      for (std::size_t at = 0; (at = text.find(words.word(word), at)) != std::string::npos; ++at)
        n += (at == 0 || !is_letter(at - 1)) && !is_letter(at + words.word(word).size());
      std::uint64_t told = 0;
      for (std::uint64_t i = rows.begins[word]; i < rows.begins[word + 1]; ++i) told += rows.files[i] == file ? rows.counts[i] : 0;
      right = right && n == told;
    }
  }
  return right;
}

int run_bench(arguments& args) {
  const machine_facts machine = this_machine();
  const auto nfiles = static_cast<std::uint32_t>(args.number("files", {78'579, 8'000, 150}));
  const int repeats = static_cast<int>(args.number("runs", {5, 3, 1}));
  const std::string dir = args.path("dir", "/dev/shm");
  results out("words", args, machine);
  const work_folder folder(dir), scratch(dir);
  const vocabulary from;
  make_tree(folder.path(), nfiles, from);
  const file_tree tree({folder.path()}, host_threads());
  const dictionary words(from.lines(), false, "words");
  const unsigned most = std::min(16u, host_threads());
  const std::string what = std::to_string(nfiles) + " files, " + std::to_string(tree.nbytes() / 1'000'000) + " MB";

  std::vector<answer> ours, by_16, by_8;
  std::vector<double> bare;
  bool right = true;
  for (int run = 0; run <= repeats; ++run) {  // by turns; the first of each is not counted
    ours.push_back(search(true, tree, words, most, scratch.path()));
    by_16.push_back(search(false, tree, words, most, scratch.path()));
    by_8.push_back(search(false, tree, words, std::min(8u, most), scratch.path()));
    bare.push_back(only_read(tree, most));
    right = right && same(ours.back().rows, by_16.back().rows) && same(ours.back().rows, by_8.back().rows);
    if (run == 0) right = right && is_right(tree, words, ours.back().rows);
    for (std::vector<answer>* const way : {&ours, &by_16, &by_8}) way->back().rows = {};
  }
  const auto taken = [](const std::vector<answer>& from_all, double (*of)(const timed&)) {
    std::vector<double> all;
    for (auto at = from_all.begin() + 1; at != from_all.end(); ++at) all.push_back(of(at->took));
    return all;
  };
  const auto both = [](const timed& took) { return took.both(); };
  const auto find = [](const timed& took) { return took.find; };
  const auto order = [](const timed& took) { return took.order; };
  bare.erase(bare.begin());
  const spread bare_spread = spread_of(bare), find_spread = spread_of(taken(ours, find)),
               order_spread = spread_of(taken(ours, order));
  out.ceiling("open, read, close, " + std::to_string(most) + " threads", "s", bare_spread);
  const auto against = [&](const char* name, const std::vector<answer>& rival, unsigned nthreads) {
    if (!args.wants(name)) return;
    const spread theirs = spread_of(taken(rival, both));
    out.add({name,
             what + ", " + std::to_string(nthreads) + " threads",
             taken(ours, both),
             "s",
             theirs.median,
             "the engine cpu",
             measurement::kind::times_as_fast,
             right,
             "",
             {{"find", find_spread.median},
              {"order", order_spread.median},
              {"their_find", spread_of(taken(rival, find)).median},
              {"their_order", spread_of(taken(rival, order)).median}}});
  };
  against("words_vs_cpu16", by_16, most);
  against("words_vs_cpu8", by_8, std::min(8u, most));
  if (args.wants("words_overhead")) {
    measurement m{"words_overhead", what, {}, "times"};
    for (const double seconds : taken(ours, find)) m.samples.push_back(seconds / bare_spread.median);
    m.figure = measurement::kind::itself;
    m.verified = right;
    m.details = {{"find", find_spread.median}, {"open_read_close", bare_spread.median}};
    out.add(m);
  }
  if (args.wants("words_start")) {
    out.add({"words_start", what, taken(ours, [](const timed& took) { return took.start; }), "s", 0, "", measurement::kind::itself,
             right});
  }
  if (args.wants("words_vs_rg")) {
    if (std::system("rg --version > /dev/null 2>&1") != 0) {
      out.note("words_vs_rg: left out, there is no ripgrep (rg)");
    } else {
      const std::string word(words.word(100));
      const dictionary one(word + "\n", false, "one word");
      const std::string command = "rg -c -w -F --no-ignore --hidden " + word + " " + folder.path() + " > /dev/null";
      std::vector<double> rg, one_word;
      for (int run = 0; run <= repeats; ++run) {
        const stopwatch watch;
        right = right && std::system(command.c_str()) == 0;
        rg.push_back(watch.seconds());
        one_word.push_back(search(true, tree, one, most, scratch.path()).took.both());
      }
      rg.erase(rg.begin());
      one_word.erase(one_word.begin());
      out.add({"words_vs_rg", what + ", one word", one_word, "s", spread_of(rg).median, "ripgrep", measurement::kind::times_as_fast,
               right});
    }
  }
  return out.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("words", [&] {
    arguments args(argc, argv, "words  --dir DIR  --files N  --runs N", on_gpu);
    return run_bench(args);
  });
}
