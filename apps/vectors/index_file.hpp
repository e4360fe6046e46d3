// SPDX-License-Identifier: Apache-2.0
// The file of an index, open: its header, lists and centroids, checked. Host code.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/input_file.hpp"
#include "apps/progress.hpp"
#include "apps/vectors/format.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::vectors {

class index_file {
 public:
  // Reads and checks all that lies before the lists, and the file's size. Throws gpufs::error, whose text has the path and what
  // helps.
  explicit index_file(std::string path);

  const std::string& path() const { return file_.path(); }
  const header& head() const { return head_; }
  std::uint32_t dim() const { return head_.dim; }
  std::uint32_t nlists() const { return head_.nlists; }
  const std::vector<list_entry>& entries() const { return entries_; }
  const std::vector<place>& lists() const { return lists_; }
  // In groups, as vectors whose ids are the numbers of the lists.
  const std::vector<std::byte>& centroids() const { return centroids_; }
  // The whole file, mapped read-only until this ends. Reads beyond the end of a file that was cut meanwhile raise SIGBUS.
  const std::byte* map() const { return file_.map(); }

  // Reads all lists, by up to nthreads threads (0: a processor each): their sums, that each id is there once, that all elements are
  // numbers. Throws gpufs::error: what is wrong; and what progress, called with bytes by this thread, throws.
  void check_lists(unsigned nthreads, const progress_function& progress) const;

  // Throws gpufs::error: "PATH: what".
  [[noreturn]] void fail(const std::string& what, int error = 0) const;
  [[noreturn]] void fail_changed() const;  // it was cut, or replaced
  // Throws the same where the path names another file by now than when this was opened, or the file was written since. Who opens
  // the path again asks after that, and who has read lists asks before it gives results.
  void check_unchanged() const;

 private:
  void check_header();
  void read_front();
  std::uint32_t read_centroids(std::uint32_t sum);  // the sum with theirs
  void check_centroids(std::uint64_t group) const;

  std::string absolute_;  // the path, also where the working folder changes
  struct stat before_;    // of the path, taken before file_ opens it
  input_file file_;
  header head_{};
  std::vector<list_entry> entries_;
  std::vector<place> lists_;
  std::vector<std::byte> centroids_;
};

// Where sections begin: the table lies behind the header.
constexpr std::uint64_t centroids_at(std::uint32_t nlists) { return align_up(sizeof(header) + nlists * sizeof(list_entry)); }
constexpr std::uint64_t lists_at(std::uint32_t nlists, std::uint32_t dim) {
  return align_up(centroids_at(nlists) + groups_of(nlists) * group_nbytes(dim));
}
// The lists' places, one behind the other from multiples of section_alignment on, and the file's end.
struct list_places {
  std::vector<place> lists;
  std::uint64_t end;
};
list_places places_of(const std::vector<list_entry>& entries, std::uint32_t dim);

}  // namespace gpufs::apps::vectors
