// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/graph_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/crc32.hpp"

namespace gpufs::apps::graph {

graph_file::graph_file(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(std::strerror(errno), errno);
  try {
    struct stat about {};
    if (::fstat(descriptor_, &about) != 0) fail(std::strerror(errno), errno);
    if (S_ISDIR(about.st_mode)) fail(std::strerror(EISDIR), EISDIR);
    if (!S_ISREG(about.st_mode)) fail("is no regular file: copy it to one first");
    nbytes_ = static_cast<std::uint64_t>(about.st_size);
    check_header();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

graph_file::~graph_file() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), nbytes_);
  ::close(descriptor_);
}

namespace {

// Whether all bytes came.
bool read_all(int descriptor, void* to, std::size_t nbytes, std::uint64_t offset) {
  auto* p = static_cast<std::byte*>(to);
  while (nbytes != 0) {
    const ssize_t got = ::pread(descriptor, p, nbytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    p += got;
    nbytes -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

const char* const how_to_make = "`gpufs graph synth` and `gpufs graph import` make graphs";

}  // namespace

void graph_file::check_header() {
  header& head = head_;
  if (nbytes_ < sizeof(header)) fail(std::string("is no graph: it is too short; ") + how_to_make);
  if (!read_all(descriptor_, &head, sizeof head, 0)) fail_changed();
  if (std::memcmp(head.magic, magic, sizeof magic) != 0) fail(std::string("is no graph; ") + how_to_make);
  if (head.version != format_version) {
    fail("is a graph of version " + std::to_string(head.version) + ", and this gpufs reads version " +
         std::to_string(format_version) + ": make it again");
  }
  if (head.crc32 != crc32(0, &head, offsetof(header, crc32))) {
    fail("the header is damaged (its checksum is another): make or copy the graph again");
  }
  const bool is_good = head.nvertices <= most_vertices && head.nedges <= most_edges && (head.flags & ~flag_directed) == 0 &&
                       (head.target_nbytes == 4 || head.target_nbytes == 8) &&
                       (head.weight_nbytes == 0 || head.weight_nbytes == 4) && (head.nvertices != 0 || head.nedges == 0);
  if (!is_good) fail("the header has numbers that no graph has: make the graph again");
  at_ = layout_of(head);
  if (head.file_nbytes != at_.end || nbytes_ != at_.end) {
    fail("has " + std::to_string(nbytes_) + " bytes, and a graph of this header " + std::to_string(at_.end) +
         (nbytes_ < at_.end ? ": it was cut; copy or make it again" : ": copy or make it again"));
  }
}

std::vector<std::uint64_t> graph_file::read_offsets(direction of) const {
  std::vector<std::uint64_t> offsets(nvertices() + 1);
  if (!read_all(descriptor_, offsets.data(), offsets.size() * sizeof offsets[0], offsets_at(of))) fail_changed();
  const bool is_good = offsets.front() == 0 && offsets.back() == nedges() && std::is_sorted(offsets.begin(), offsets.end());
  if (!is_good) fail("the offsets of its lists do not ascend from 0 to the number of edges: make the graph again");
  return offsets;
}

const std::byte* graph_file::map() const {
  if (mapping_ == nullptr) {
    void* const at = ::mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (at == MAP_FAILED) fail(std::string("cannot be mapped: ") + std::strerror(errno), errno);
    mapping_ = static_cast<const std::byte*>(at);
  }
  return mapping_;
}

void graph_file::fail(const std::string& what, int error) const {
  throw gpufs::error(path_ + ": " + what, error != 0 ? error : EINVAL);
}
void graph_file::fail_changed() const { fail("was truncated, replaced or written by others while it was read: try again", ESTALE); }
void graph_file::fail_target() const {
  fail("a list has a vertex that is not there (the graph has " + std::to_string(nvertices()) + "): make the graph again");
}

}  // namespace gpufs::apps::graph
