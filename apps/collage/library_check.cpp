// SPDX-License-Identifier: Apache-2.0
// The thorough checks of a library.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "apps/collage/library.hpp"
#include "apps/collage/lsh.hpp"
#include "apps/crc32.hpp"

namespace gpufs::apps::collage {
namespace {

constexpr std::size_t piece_nbytes = 4 << 20;

std::string text(std::uint64_t n) { return std::to_string(n); }

void check_histograms(const library& lib, const std::function<void(std::uint64_t)>& add_progress) {
  const std::uint32_t stride = lib.head().histogram_stride;
  constexpr std::uint32_t batch = 1024;
  std::vector<std::uint8_t> pixels(std::size_t{batch} * tile_nbytes);
  std::vector<std::byte> stored(std::size_t{batch} * stride);
  counts counted;
  float expected[nbins];
  for (std::uint32_t first = 0; first < lib.nimages(); first += batch) {
    const std::uint32_t n = std::min(batch, lib.nimages() - first);
    lib.read(pixels.data(), std::size_t{n} * tile_nbytes,
             lib.find(section_kind::thumbnails).offset + std::uint64_t{first} * tile_nbytes);
    lib.read(stored.data(), std::size_t{n} * stride, lib.find(section_kind::histograms).offset + std::uint64_t{first} * stride);
    for (std::uint32_t i = 0; i < n; ++i) {
      count_pixels(pixels.data() + std::size_t{i} * tile_nbytes, tile_side * 3, counted);
      std::copy(counted.begin(), counted.end(), expected);
      const std::byte* at = stored.data() + std::size_t{i} * stride;
      const bool padded = std::all_of(at + histogram_nbytes, at + stride, [](std::byte b) { return b == std::byte{0}; });
      if (!std::equal(at, at + histogram_nbytes, std::as_bytes(std::span(expected)).begin()) || !padded) {
        lib.fail("the histogram of image " + text(first + i) + " is not that of its thumbnail");
      }
    }
    add_progress(n * std::uint64_t{tile_nbytes + stride});
  }
}

void check_table(const library& lib, std::uint32_t table) {
  const section& s = lib.find(section_kind::table, table);
  const std::uint32_t cell_nbits = lib.head().cell_nbits;
  const std::uint32_t nentries = lib.table_nentries(table);
  const auto bad = [&](const std::string& what) { lib.fail("table " + text(table) + " is damaged (" + what + ")"); };
  std::vector<std::uint32_t> directory((std::size_t{1} << cell_nbits) + 1);
  std::vector<table_entry> entries(nentries);
  lib.read(directory.data(), directory.size() * sizeof(std::uint32_t), s.offset);
  lib.read(entries.data(), entries.size() * sizeof(table_entry), s.offset + directory_nbytes(cell_nbits));
  if (directory.front() != 0 || directory.back() != nentries || !std::is_sorted(directory.begin(), directory.end())) {
    bad("its directory is not in order");
  }
  const std::uint32_t inverse = [] {  // of the multiplier, modulo 2^32
    std::uint32_t x = 1;
    for (int i = 0; i < 5; ++i) x *= 2 - hash_multiplier * x;
    return x;
  }();
  std::uint32_t in_bucket = 0;
  for (std::uint32_t i = 0; i < nentries; ++i) {
    const table_entry e = entries[i];
    const std::uint32_t cell = cell_of(e.hashed_key, cell_nbits);
    if (i < directory[cell] || i >= directory[cell + 1]) bad("entry " + text(i) + " lies in another cell");
    if (e.id >= lib.nimages()) bad("there is no image " + text(e.id));
    if ((e.hashed_key * inverse) >> lib.head().key_nbits != 0) bad("entry " + text(i) + " has a key that is too long");
    const bool same = i != 0 && entries[i - 1].hashed_key == e.hashed_key;
    if (i != 0 && (entries[i - 1].hashed_key > e.hashed_key || (same && entries[i - 1].id >= e.id)))
      bad("entry " + text(i) + " is not in order");
    in_bucket = same ? in_bucket + 1 : 1;
    if (in_bucket > bucket_limit) bad("a bucket holds more than " + text(bucket_limit) + " images");
  }
}

void check_names(const library& lib) {
  const section& s = lib.find(section_kind::sources);
  const std::uint32_t nsources = lib.head().nsources;
  std::vector<std::uint64_t> offsets(std::size_t{nsources} + 1);
  lib.read(offsets.data(), offsets.size() * sizeof(std::uint64_t), s.offset);
  if (offsets.front() != offsets.size() * sizeof(std::uint64_t) || offsets.back() != s.nbytes ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    lib.fail("section sources is damaged (a name lies outside)");
  }
  std::vector<image_origin> origins(4096);
  for (std::uint32_t first = 0; first < lib.nimages(); first += 4096) {
    const std::uint32_t n = std::min<std::uint32_t>(4096, lib.nimages() - first);
    lib.read(origins.data(), n * sizeof(image_origin),
             lib.find(section_kind::origins).offset + std::uint64_t{first} * sizeof(image_origin));
    for (std::uint32_t i = 0; i < n; ++i) {
      if (origins[i].source >= nsources) lib.fail("section origins is damaged (image " + text(first + i) + " has no source)");
    }
  }
}

}  // namespace

void library::check_sums(const progress_function& progress) const {
  std::vector<std::byte> buffer(piece_nbytes);
  std::uint64_t end = sizeof(header);
  for (const section& s : head_.sections) {
    read(buffer.data(), s.offset - end, end);
    if (std::any_of(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(s.offset - end),
                    [](std::byte b) { return b != std::byte{0}; })) {
      fail("the gap before section " + section_name(s) + " is damaged (not zero)");
    }
    std::uint32_t sum = 0;
    end = s.offset + s.nbytes;
    for (std::uint64_t at = s.offset; at < end;) {
      const std::size_t n = std::min<std::uint64_t>(piece_nbytes, end - at);
      read(buffer.data(), n, at);
      sum = crc32(sum, buffer.data(), n);
      at += n;
      if (progress) progress(at, file_nbytes_);
    }
    if (sum != s.crc32) fail("section " + section_name(s) + " is damaged (checksum differs)");
  }
}

void library::check_contents(const progress_function& progress) const {
  std::uint64_t done = 0;
  const std::uint64_t total =
      find(section_kind::thumbnails).nbytes + find(section_kind::histograms).nbytes + ntables * piece_nbytes;
  const auto add = [&](std::uint64_t n) {
    done += n;
    if (progress) progress(done, total);
  };
  check_names(*this);
  check_histograms(*this, add);
  for (std::uint32_t t = 0; t < ntables; ++t) {
    check_table(*this, t);
    add(piece_nbytes);
  }
}

}  // namespace gpufs::apps::collage
