// SPDX-License-Identifier: Apache-2.0
// Words and strings in trees of files: the inside of `gpufs words` and `gpufs grep`. Each engine finds the same. Host code.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/large_array.hpp"
#include "apps/words/dictionary.hpp"

namespace gpufs::apps::words {

// Regular files, in the order of the arguments that name them or a folder above them, then of their paths' bytes.
class file_tree {
 public:
  struct argument {
    std::string shown;  // what paths begin with: as it was given
    std::string below;  // the same below root()
  };
  struct file {
    std::uint32_t argument;
    std::string rest;  // of both paths
    std::uint64_t nbytes;
  };
  struct failure {
    std::string path;
    int error;  // an errno
  };

  // By up to nthreads threads (0: a processor each). No link in a folder is followed; what is no regular file there is passed over,
  // as is what goes while it is looked for. A path that is neither file nor folder, or cannot be read, is a failure. look: called
  // by this thread, now and then; what it throws ends the walk.
  file_tree(
      const std::vector<std::string>& paths, unsigned nthreads, const std::function<void()>& look = [] {});

  const std::string& root() const { return root_; }  // a folder above all files
  const std::vector<file>& files() const { return files_; }
  const std::vector<failure>& failures() const { return failures_; }
  std::uint64_t nbytes() const { return nbytes_; }
  bool is_one_file() const { return is_one_file_; }  // a single path was given, which is no folder
  std::string shown(std::size_t i) const { return arguments_[files_[i].argument].shown + files_[i].rest; }
  std::string below_root(std::size_t i) const { return arguments_[files_[i].argument].below + files_[i].rest; }

 private:
  void walk(std::uint32_t number, const std::string& folder, unsigned nthreads, const std::function<void()>& look);

  std::string root_;
  std::vector<argument> arguments_;
  std::vector<file> files_;
  std::vector<failure> failures_;
  std::uint64_t nbytes_ = 0;
  bool is_one_file_ = false;
};

// A part of a file that is searched by one thread, or one warp.
struct piece {
  std::uint64_t begin;
  std::uint32_t file;
  std::uint32_t nbytes;  // to_the_end: all that there is
};
constexpr std::uint32_t to_the_end = ~0u;
static_assert(sizeof(piece) == 16);
// Of all files, the largest files' first.
std::vector<piece> pieces_of(const file_tree& tree, std::uint32_t piece_nbytes);

// How often a piece has a word; or where in the piece a string begins, and 1.
struct record {
  std::uint32_t what, count;
};
// The records of a piece, or some of them; in a file of records they lie behind a head.
struct segment_head {
  std::uint32_t piece, nrecords;
};
static_assert(sizeof(record) == 8 && sizeof(segment_head) == 8);
struct segment {
  std::uint64_t begin;  // of the piece
  std::uint32_t file, nrecords;
  const record* records;
};

// What an engine has found, in any order.
struct found {
  std::vector<segment> segments;
  std::vector<int> errors;       // of each file, an errno or 0; those that failed have no segments
  std::uint64_t nbytes = 0;      // that were searched
  std::shared_ptr<void> memory;  // of the records
};
// Takes away what files have that failed, and puts the rest in the order of files and places.
void put_in_order(found& of);

// Called from the thread that waits, at first, now and then, and at the end: how many bytes of how many are done. What it throws
// ends the search.
using progress_function = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct find_options {
  unsigned nthreads = 0;  // 0: a processor each. Of kernels: those that open and read for them, at most 16
  std::uint32_t piece_nbytes = 128 << 10;
  int device = 0;
  std::uint64_t cache_nbytes = 0;  // of kernels; 0: gpufs decides
  std::string scratch{};           // a folder for records, of kernels
};

// Searches the files of a tree, which stays while it lives. One thread calls.
class finder {
 public:
  virtual ~finder() = default;
  finder(const finder&) = delete;
  finder& operator=(const finder&) = delete;
  // Waits. Files that fail are in found::errors. Throws gpufs::error: records could not be written.
  virtual found find(const wanted& what, const progress_function& progress) = 0;

 protected:
  finder() = default;
};
// By host threads; by kernels on the CPU machine, and on a GPU, with all that is there before the first search. Throw gpufs::error.
std::unique_ptr<finder> make_finder_cpu(const file_tree& tree, const find_options& options);
std::unique_ptr<finder> make_finder_simt(const file_tree& tree, const find_options& options);
std::unique_ptr<finder> make_finder_cuda(const file_tree& tree, const find_options& options);

// Of each word, the files that have it, in order: rows begins[w] to begins[w + 1].
struct word_rows {
  std::vector<std::uint64_t> begins;
  large_array<std::uint32_t> files;
  large_array<std::uint64_t> counts;

  std::uint64_t nrows() const { return begins.empty() ? 0 : begins.back(); }
};
word_rows rows_of(const found& in_order, std::uint32_t nwords, unsigned nthreads);

}  // namespace gpufs::apps::words
