// SPDX-License-Identifier: Apache-2.0
#include "apps/collage/library.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/collage/lsh.hpp"
#include "apps/crc32.hpp"

namespace gpufs::apps::collage {
namespace {

std::string text(std::uint64_t n) { return std::to_string(n); }

template <class T>
bool all_zero(const T& bytes) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](auto b) { return b == 0; });
}

}  // namespace

std::string section_name(const section& s) {
  switch (s.kind) {
    case section_kind::thumbnails:
      return "thumbnails";
    case section_kind::histograms:
      return "histograms";
    case section_kind::projections:
      return "projections";
    case section_kind::reference:
      return "reference";
    case section_kind::table:
      return "table " + text(s.index);
    case section_kind::origins:
      return "origins";
    case section_kind::sources:
      return "sources";
  }
  return "section of kind " + text(static_cast<std::uint32_t>(s.kind));
}

void library::fail(const std::string& what) const { throw library_error(path_ + ": " + what); }

library::library(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a FIFO is refused below instead of waited for.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) fail(std::strerror(errno));
  try {
    struct stat st;
    if (::fstat(fd_, &st) != 0) fail(std::strerror(errno));
    if (!S_ISREG(st.st_mode)) fail(S_ISDIR(st.st_mode) ? "is a directory, not a collage library" : "is not a regular file");
    file_nbytes_ = static_cast<std::uint64_t>(st.st_size);
    inode_ = st.st_ino;
    if (file_nbytes_ < sizeof head_.magic) fail("is not a collage library (only " + text(file_nbytes_) + " bytes)");
    read(&head_, std::min<std::uint64_t>(sizeof head_, file_nbytes_), 0);
    check_header();
    check_layout();
    projections_.resize(find(section_kind::projections).nbytes);
    reference_.resize(nfolded);
    read(projections_.data(), projections_.size(), find(section_kind::projections).offset);
    read(reference_.data(), nfolded * sizeof(std::int32_t), find(section_kind::reference).offset);
    if (crc32(0, projections_.data(), projections_.size()) != find(section_kind::projections).crc32 ||
        projections_ != make_projections(head_.seed)) {
      fail("section projections is damaged (checksum differs)");
    }
    if (crc32(0, reference_.data(), nfolded * sizeof(std::int32_t)) != find(section_kind::reference).crc32) {
      fail("section reference is damaged (checksum differs)");
    }
    for (const std::int32_t r : reference_) {
      if (r < 0 || r > static_cast<std::int32_t>(tile_npixels))
        fail("section reference is damaged (" + std::to_string(r) + " is no mean count)");
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

library::library(library&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      file_nbytes_(other.file_nbytes_),
      inode_(other.inode_),
      head_(other.head_),
      projections_(std::move(other.projections_)),
      reference_(std::move(other.reference_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      histograms_(std::exchange(other.histograms_, nullptr)) {}

library::~library() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), file_nbytes_);
  if (fd_ >= 0) ::close(fd_);
}

void library::check_header() const {
  const header& h = head_;
  if (std::memcmp(h.magic, magic, sizeof magic) != 0) fail("is not a collage library");
  if (file_nbytes_ < sizeof h) fail("is truncated: " + text(file_nbytes_) + " bytes, the header alone has " + text(sizeof h));
  if (h.version != format_version) {
    fail("has format version " + text(h.version) + "; this program reads version " + text(format_version));
  }
  if (crc32(0, &h, offsetof(header, crc32)) != h.crc32) fail("its header is damaged (checksum differs)");
  if (h.file_nbytes != file_nbytes_) {
    fail((file_nbytes_ < h.file_nbytes ? "is truncated: " : "is too long: ") + text(file_nbytes_) + " bytes, the header says " +
         text(h.file_nbytes));
  }
  const bool sound = h.nsections == section_count && h.ntables == ntables && h.nimages >= 1 && h.nimages <= max_nimages &&
                     h.nsources >= 1 && (h.histogram_stride == section_alignment || h.histogram_stride == histogram_nbytes) &&
                     h.key_nbits >= 4 && h.key_nbits <= 30 && h.cell_nbits == choose_cell_nbits(h.nimages) &&
                     h.bucket_limit == bucket_limit && h.shortlist_limit == shortlist_limit && h.shortlist_goal >= 1 &&
                     h.shortlist_goal <= shortlist_limit && (h.flags & ~flag_tiles) == 0 && all_zero(h.reserved1) &&
                     all_zero(h.reserved2);
  if (!sound) fail("its header has values that this program does not know");
}

void library::check_layout() const {
  std::uint64_t end = sizeof(header);
  std::uint64_t seen = 0;
  for (const section& s : head_.sections) {
    const std::string name = section_name(s);
    std::uint64_t least = 0;
    std::uint64_t most = 0;
    unsigned slot = 0;
    switch (s.kind) {
      case section_kind::thumbnails:
        least = most = std::uint64_t{head_.nimages} * tile_nbytes;
        break;
      case section_kind::histograms:
        least = most = std::uint64_t{head_.nimages} * head_.histogram_stride;
        break;
      case section_kind::projections:
        least = most = std::uint64_t{ntables} * projection_nbytes;
        break;
      case section_kind::reference:
        least = most = nfolded * sizeof(std::int32_t);
        break;
      case section_kind::table:
        least = directory_nbytes(head_.cell_nbits);
        most = least + std::uint64_t{head_.nimages} * sizeof(table_entry);
        if ((s.nbytes - least) % sizeof(table_entry) != 0) fail("section " + name + " has a size that cannot be");
        slot = s.index;
        break;
      case section_kind::origins:
        least = most = std::uint64_t{head_.nimages} * sizeof(image_origin);
        break;
      case section_kind::sources:
        least = (std::uint64_t{head_.nsources} + 1) * sizeof(std::uint64_t);
        most = file_nbytes_;
        break;
      default:
        fail("has a " + name + ", which this program does not know");
    }
    const bool is_table = s.kind == section_kind::table;
    if (s.reserved != 0 || (is_table ? s.index >= ntables : s.index != 0))
      fail("section " + name + " has a bad entry in the header");
    const unsigned bit = is_table ? slot : ntables + static_cast<unsigned>(s.kind);
    if ((seen >> bit & 1) != 0) fail("section " + name + " occurs twice");
    seen |= std::uint64_t{1} << bit;
    if (s.nbytes < least || s.nbytes > most) fail("section " + name + " has a size that cannot be: " + text(s.nbytes) + " bytes");
    // Sections come in the order of their offsets, each at the first page boundary after the one before.
    if (s.offset != align_up(end, section_alignment) || s.nbytes > file_nbytes_ - std::min(file_nbytes_, s.offset)) {
      fail("section " + name + " does not lie where it must");
    }
    end = s.offset + s.nbytes;
  }
  if (end != file_nbytes_) fail("its sections end at byte " + text(end) + " of " + text(file_nbytes_));
}

const section& library::find(section_kind kind, std::uint32_t index) const {
  for (const section& s : head_.sections) {
    if (s.kind == kind && s.index == index) return s;
  }
  fail("lacks a section");  // check_layout saw all of them
}

std::uint32_t library::table_nentries(std::uint32_t table) const {
  return static_cast<std::uint32_t>((find(section_kind::table, table).nbytes - directory_nbytes(head_.cell_nbits)) /
                                    sizeof(table_entry));
}

void library::read(void* dst, std::size_t nbytes, std::uint64_t offset) const {
  auto* p = static_cast<std::byte*>(dst);
  while (nbytes != 0) {
    const ssize_t n = ::pread(fd_, p, nbytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot be read at byte " + text(offset) + ": " + std::strerror(errno));
    if (n == 0) fail("ends at byte " + text(offset) + "; it was truncated while it was read");
    p += n;
    offset += static_cast<std::uint64_t>(n);
    nbytes -= static_cast<std::size_t>(n);
  }
}

void library::read_thumbnails(const std::uint32_t* ids, std::size_t n, std::uint8_t* out) const {
  const std::uint64_t base = find(section_kind::thumbnails).offset;
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] >= head_.nimages) fail("has no image " + text(ids[i]));
    read(out + i * tile_nbytes, tile_nbytes, base + std::uint64_t{ids[i]} * tile_nbytes);
  }
}

image_origin library::origin(std::uint32_t id) const {
  if (id >= head_.nimages) fail("has no image " + text(id));
  image_origin o;
  read(&o, sizeof o, find(section_kind::origins).offset + std::uint64_t{id} * sizeof o);
  return o;
}

std::string library::source_name(std::uint32_t source) const {
  const section& s = find(section_kind::sources);
  if (source >= head_.nsources) fail("has no source " + text(source));
  std::uint64_t range[2];
  read(range, sizeof range, s.offset + std::uint64_t{source} * sizeof(std::uint64_t));
  const std::uint64_t text_begin = (std::uint64_t{head_.nsources} + 1) * sizeof(std::uint64_t);
  if (range[0] < text_begin || range[1] < range[0] || range[1] > s.nbytes) fail("section sources is damaged (a name lies outside)");
  std::string name(range[1] - range[0], '\0');
  read(name.data(), name.size(), s.offset + range[0]);
  return name;
}

const std::byte* library::map() const {
  if (mapping_ == nullptr) {
    void* p = ::mmap(nullptr, file_nbytes_, PROT_READ, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) fail(std::string("cannot be mapped: ") + std::strerror(errno));
    mapping_ = static_cast<const std::byte*>(p);
    histograms_ = mapping_ + find(section_kind::histograms).offset;
  }
  return mapping_;
}

mapped_table library::map_table(std::uint32_t table) const {
  const std::byte* base = map() + find(section_kind::table, table).offset;
  return {reinterpret_cast<const std::uint32_t*>(base),
          reinterpret_cast<const table_entry*>(base + directory_nbytes(head_.cell_nbits)), table_nentries(table)};
}

}  // namespace gpufs::apps::collage
