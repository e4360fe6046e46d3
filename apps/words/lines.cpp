// SPDX-License-Identifier: Apache-2.0
#include "apps/words/lines.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "apps/parallel.hpp"

namespace gpufs::apps::words {
namespace {

constexpr std::size_t files_at_once = 256;
constexpr std::uint64_t nbytes_at_once = 64 << 20;

// 0 or an errno.
int read_all(const std::string& path, std::string& to) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno;
  struct stat about {};
  int error = ::fstat(fd, &about) != 0 ? errno : 0;
  std::size_t done = 0;
  try {
    if (error == 0) to.resize(static_cast<std::size_t>(about.st_size));
  } catch (const std::exception&) {  // of this file, and not of those behind it
    error = ENOMEM;
  }
  while (error == 0 && done < to.size()) {
    const ssize_t got = ::read(fd, to.data() + done, to.size() - done);
    if (got < 0 && errno != EINTR) error = errno;
    if (got == 0) break;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  to.resize(done);
  ::close(fd);
  return error;
}

}  // namespace

line_reader::line_reader(const file_tree& tree, const found& in_order, const wanted_string& text, unsigned nthreads)
    : tree_(tree), found_(in_order), text_(text), nthreads_(thread_count(nthreads)) {}

std::vector<file_lines> line_reader::next() {
  const std::vector<segment>& segments = found_.segments;
  std::vector<std::pair<std::size_t, std::size_t>> files;  // first segment, and the end
  for (std::uint64_t nbytes = 0; at_ < segments.size() && files.size() < files_at_once && nbytes < nbytes_at_once;) {
    const std::size_t first = at_;
    while (at_ < segments.size() && segments[at_].file == segments[first].file) ++at_;
    files.emplace_back(first, at_);
    nbytes += tree_.files()[segments[first].file].nbytes;
  }
  std::vector<file_lines> all(files.size());
  parallel_for(nthreads_, files.size(), [&](std::size_t i) { all[i] = read(files[i].first, files[i].second); });
  return all;
}

file_lines line_reader::read(std::size_t first, std::size_t end) const {
  file_lines of{found_.segments[first].file, 0, false, {}};
  std::string bytes;
  of.error = read_all(tree_.root() + tree_.below_root(of.file), bytes);
  if (of.error != 0) return of;
  of.is_binary = bytes.find('\0') != std::string::npos;
  std::vector<std::uint64_t> places;
  for (std::size_t i = first; i < end; ++i) {
    const segment& here = found_.segments[i];
    for (std::uint32_t k = 0; k < here.nrecords; ++k) places.push_back(here.begin + here.records[k].what);
  }
  std::ranges::sort(places);
  const std::string& wanted = text_.text();
  std::uint64_t number = 1, counted = 0, line_end = 0;  // ends of lines before `counted`; that of the line that was put last
  for (const std::uint64_t place : places) {
    if (bytes.size() < wanted.size() || place > bytes.size() - wanted.size() ||
        bytes.compare(static_cast<std::size_t>(place), wanted.size(), wanted) != 0) {
      return {of.file, ESTALE, false, {}};
    }
    if (of.is_binary || (place < line_end)) continue;
    const auto at = static_cast<std::size_t>(place);
    number += static_cast<std::uint64_t>(std::count(bytes.data() + counted, bytes.data() + at, '\n'));
    counted = at;
    const std::size_t before = at == 0 ? std::string::npos : bytes.rfind('\n', at - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const std::size_t last = std::min(bytes.find('\n', at), bytes.size());
    of.lines.push_back({number, bytes.substr(begin, last - begin)});
    line_end = last;
  }
  return of;
}

}  // namespace gpufs::apps::words
