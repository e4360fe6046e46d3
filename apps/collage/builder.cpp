// SPDX-License-Identifier: Apache-2.0
#include "apps/collage/builder.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "apps/atomic_file.hpp"
#include "apps/collage/lsh.hpp"
#include "apps/crc32.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::collage {
namespace {

constexpr std::uint32_t batch = 4096;  // images between two progress calls

std::uint64_t hash_thumbnail(const std::uint8_t* pixels) {
  std::uint64_t h = 0x243F6A8885A308D3u;
  for (std::uint32_t i = 0; i < tile_nbytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, pixels + i, sizeof word);
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

// The thumbnails seen so far: hash to id, open addressing.
class seen_set {
 public:
  // Calls equal(id) for ids whose thumbnail has this hash; false when one is equal, else `id` is put in.
  template <class Equal>
  bool insert(std::uint64_t hash, std::uint32_t id, const Equal& equal) {
    if (nused_ * 10 >= slots_.size() * 7) grow();
    for (std::size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].id == none) {
        slots_[i] = {hash, id};
        ++nused_;
        return true;
      }
      if (slots_[i].hash == hash && equal(slots_[i].id)) return false;
    }
  }

 private:
  static constexpr std::uint32_t none = ~0u;
  struct slot {
    std::uint64_t hash = 0;
    std::uint32_t id = none;
  };
  void grow() {
    std::vector<slot> bigger(slots_.size() * 2);
    for (const slot& s : slots_) {
      if (s.id == none) continue;
      std::size_t i = s.hash & (bigger.size() - 1);
      while (bigger[i].id != none) i = (i + 1) & (bigger.size() - 1);
      bigger[i] = s;
    }
    slots_.swap(bigger);
  }
  std::vector<slot> slots_ = std::vector<slot>(1024);
  std::size_t nused_ = 0;
};

// Writes one section after the other and keeps their sums.
class section_writer {
 public:
  section_writer(atomic_file& file, header& head) : file_(file), head_(head) {}

  void begin(section_kind kind, std::uint32_t index = 0) {
    end_ = align_up(end_, section_alignment);
    current_ = &head_.sections[nbegun_++];
    *current_ = {kind, index, end_, 0, 0, 0};
  }
  void write(const void* data, std::size_t nbytes) {
    file_.write(data, nbytes, end_);
    current_->crc32 = crc32(current_->crc32, data, nbytes);
    current_->nbytes += nbytes;
    end_ += nbytes;
  }
  std::uint64_t end() const { return end_; }

 private:
  atomic_file& file_;
  header& head_;
  section* current_ = nullptr;
  std::uint32_t nbegun_ = 0;
  std::uint64_t end_ = sizeof(header);
};

struct table_image {
  std::vector<std::uint32_t> directory;  // with its padding
  std::vector<table_entry> entries;
};

table_image make_table(const std::uint32_t* keys, std::uint32_t nimages, std::uint32_t key_nbits, std::uint32_t cell_nbits) {
  const std::uint32_t mask = (std::uint32_t{1} << key_nbits) - 1;
  std::vector<std::uint64_t> order(nimages);  // hashed key, id
  for (std::uint32_t id = 0; id < nimages; ++id) order[id] = std::uint64_t{hash_key(keys[id] & mask)} << 32 | id;
  std::sort(order.begin(), order.end());
  table_image image;
  image.directory.resize(directory_nbytes(cell_nbits) / sizeof(std::uint32_t));
  const std::uint32_t ncells = std::uint32_t{1} << cell_nbits;
  std::uint32_t in_bucket = 0;
  std::uint32_t next_cell = 0;  // cells before it have their beginning
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto hashed = static_cast<std::uint32_t>(order[i] >> 32);
    in_bucket = i != 0 && order[i - 1] >> 32 == hashed ? in_bucket + 1 : 1;
    if (in_bucket > bucket_limit) continue;
    const std::uint32_t cell = cell_of(hashed, cell_nbits);
    while (next_cell <= cell) image.directory[next_cell++] = static_cast<std::uint32_t>(image.entries.size());
    image.entries.push_back({hashed, static_cast<std::uint32_t>(order[i])});
  }
  while (next_cell <= ncells) image.directory[next_cell++] = static_cast<std::uint32_t>(image.entries.size());
  return image;
}

// The longest keys that still give shortlists of the wanted length.
void choose_key_nbits(const std::uint32_t* keys, const std::vector<image_origin>& origins, unsigned nthreads, header& head) {
  std::uint32_t log2 = 0;
  while (head.nimages >> (log2 + 1) != 0) ++log2;
  const std::uint32_t first = log2 > 8 ? log2 - 4 : 4;
  const std::uint32_t last = std::min(30u, log2 + 12);
  const auto means = measure_shortlists(keys, origins, first, last, nthreads);
  if (head.key_nbits == 0) {
    head.key_nbits = last;
    while (head.key_nbits > first && means[head.key_nbits - first] < wanted_mean_shortlist * 1000) --head.key_nbits;
  }
  head.mean_shortlist = head.key_nbits < first || head.key_nbits > last ? 0 : means[head.key_nbits - first];
}

}  // namespace

struct library_builder::impl {
  impl(const std::string& path, const builder_options& o)
      : options(o), nthreads(thread_count(o.nthreads)), file(path), sections(file, head) {
    std::memcpy(head.magic, magic, sizeof magic);
    head.version = format_version;
    head.nsections = section_count;
    head.seed = o.seed;
    head.histogram_stride = o.packed ? histogram_nbytes : section_alignment;
    head.key_nbits = o.key_nbits;
    head.ntables = ntables;
    head.bucket_limit = bucket_limit;
    head.shortlist_limit = shortlist_limit;
    head.shortlist_goal = o.shortlist_goal;
    head.flags = o.tiles ? flag_tiles : 0;
    sections.begin(section_kind::thumbnails);
  }

  builder_options options;
  unsigned nthreads;
  header head{};
  atomic_file file;
  section_writer sections;
  seen_set seen;
  std::vector<image_origin> origins;
  std::vector<std::uint64_t> name_ends;  // in `names`
  std::string names;
  std::uint64_t folded_sums[nfolded] = {};

  void write_histograms(std::uint32_t* keys, const std::int32_t* reference, const std::vector<std::int8_t>& projections,
                        const progress_function& progress, std::uint64_t total);
};

library_builder::library_builder(const std::string& path, const builder_options& options) {
  if (options.key_nbits != 0 && (options.key_nbits < 4 || options.key_nbits > 30)) throw error("keys have 4 to 30 bits");
  if (options.shortlist_goal < 1 || options.shortlist_goal > shortlist_limit) throw error("a shortlist's goal is 1 to 256 images");
  impl_ = std::make_unique<impl>(path, options);
}
library_builder::~library_builder() = default;

std::uint32_t library_builder::nimages() const { return static_cast<std::uint32_t>(impl_->origins.size()); }

std::uint32_t library_builder::add_source(std::string_view name) {
  if (impl_->name_ends.size() == max_nimages) throw error(impl_->file.path() + ": more than 2^31 sources");
  impl_->names += name;
  impl_->name_ends.push_back(impl_->names.size());
  return static_cast<std::uint32_t>(impl_->name_ends.size() - 1);
}

std::size_t library_builder::add(const std::uint8_t* thumbnails, const image_origin* origins, std::size_t n,
                                 const std::function<bool(std::size_t)>& replace) {
  impl& self = *impl_;
  constexpr std::size_t share = 64;  // images a thread takes at a time
  std::vector<std::uint64_t> hashes(n);
  parallel_for(self.nthreads, (n + share - 1) / share, [&](std::size_t s) {
    for (std::size_t i = s * share; i < std::min(n, (s + 1) * share); ++i) hashes[i] = hash_thumbnail(thumbnails + i * tile_nbytes);
  });

  const auto check_source = [&](const image_origin& origin) {
    if (origin.source >= self.name_ends.size()) throw error(self.file.path() + ": an image has no source");
  };
  std::vector<std::uint8_t> stored(tile_nbytes);
  const std::uint32_t nwritten = nimages();
  std::vector<std::size_t> kept;  // image nwritten + k is thumbnail kept[k]
  kept.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint8_t* pixels = thumbnails + i * tile_nbytes;
    const std::uint32_t id = nimages();
    const auto equal = [&](std::uint32_t other) {
      const std::uint8_t* p = stored.data();
      if (other >= nwritten) {
        p = thumbnails + kept[other - nwritten] * tile_nbytes;
      } else {
        self.file.read(stored.data(), tile_nbytes, sizeof(header) + std::uint64_t{other} * tile_nbytes);
      }
      return std::memcmp(p, pixels, tile_nbytes) == 0;
    };
    check_source(origins[i]);
    bool fresh = self.seen.insert(hashes[i], id, equal);
    while (!fresh && replace && replace(i)) {
      check_source(origins[i]);
      fresh = self.seen.insert(hash_thumbnail(pixels), id, equal);
    }
    if (!fresh) continue;
    if (id == max_nimages) throw error(self.file.path() + ": more than 2^31 images");
    self.origins.push_back(origins[i]);
    kept.push_back(i);
  }

  std::mutex sums_lock;
  parallel_for(self.nthreads, (kept.size() + share - 1) / share, [&](std::size_t s) {
    counts counted;
    folded_counts folded;
    std::uint64_t sums[nfolded] = {};
    for (std::size_t k = s * share; k < std::min(kept.size(), (s + 1) * share); ++k) {
      count_pixels(thumbnails + kept[k] * tile_nbytes, tile_side * 3, counted);
      fold(counted, folded);
      for (std::uint32_t b = 0; b < nfolded; ++b) sums[b] += folded[b];
    }
    const std::lock_guard lock(sums_lock);
    for (std::uint32_t b = 0; b < nfolded; ++b) self.folded_sums[b] += sums[b];
  });

  for (std::size_t k = 0; k < kept.size();) {  // runs of thumbnails none of which was left out
    std::size_t end = k + 1;
    while (end < kept.size() && kept[end] == kept[end - 1] + 1) ++end;
    self.sections.write(thumbnails + kept[k] * tile_nbytes, (end - k) * tile_nbytes);
    k = end;
  }
  return kept.size();
}

void library_builder::impl::write_histograms(std::uint32_t* keys, const std::int32_t* reference,
                                             const std::vector<std::int8_t>& projections, const progress_function& progress,
                                             std::uint64_t total) {
  const std::uint32_t nimages = head.nimages;
  const std::uint32_t stride = head.histogram_stride;
  const key_maker maker(projections.data(), reference, 30);
  constexpr std::uint32_t share = 256;  // images a thread takes at a time
  std::vector<std::uint8_t> pixels(std::size_t{batch} * tile_nbytes);
  std::vector<std::byte> out(std::size_t{batch} * stride);
  sections.begin(section_kind::histograms);
  for (std::uint32_t first = 0; first < nimages; first += batch) {
    const std::uint32_t n = std::min(batch, nimages - first);
    file.read(pixels.data(), std::size_t{n} * tile_nbytes, sizeof(header) + std::uint64_t{first} * tile_nbytes);
    parallel_for(nthreads, (n + share - 1) / share, [&](std::size_t s) {
      counts counted;
      folded_counts folded;
      float histogram[nbins];
      std::uint32_t of_image[ntables];
      for (std::uint32_t i = static_cast<std::uint32_t>(s) * share;
           i < std::min<std::uint32_t>(n, (static_cast<std::uint32_t>(s) + 1) * share); ++i) {
        count_pixels(pixels.data() + std::size_t{i} * tile_nbytes, tile_side * 3, counted);
        std::copy(counted.begin(), counted.end(), histogram);
        std::memcpy(out.data() + std::size_t{i} * stride, histogram, sizeof histogram);
        fold(counted, folded);
        maker.keys(folded, of_image);
        for (std::uint32_t t = 0; t < ntables; ++t) keys[std::size_t{t} * nimages + first + i] = of_image[t];
      }
    });
    sections.write(out.data(), std::size_t{n} * stride);
    if (progress) progress(first + n, total);
  }
}

header library_builder::finish(const progress_function& progress) {
  impl& self = *impl_;
  header& head = self.head;
  const std::uint32_t n = nimages();
  if (n == 0) throw error(self.file.path() + ": there are no images to put into the library");
  head.nimages = n;
  head.nsources = static_cast<std::uint32_t>(self.name_ends.size());
  head.cell_nbits = choose_cell_nbits(n);
  const std::uint64_t total = std::uint64_t{n} + n / 2 + 1;  // the tables count for half as much as the histograms

  std::int32_t reference[nfolded];
  for (std::uint32_t b = 0; b < nfolded; ++b)
    reference[b] = static_cast<std::int32_t>((2 * self.folded_sums[b] + n) / (2 * std::uint64_t{n}));
  const auto projections = make_projections(head.seed);
  const scratch_map scratch(self.file.path(), std::size_t{n} * ntables * sizeof(std::uint32_t));
  auto* keys = static_cast<std::uint32_t*>(scratch.data());
  self.write_histograms(keys, reference, projections, progress, total);
  choose_key_nbits(keys, self.origins, self.nthreads, head);

  self.sections.begin(section_kind::projections);
  self.sections.write(projections.data(), projections.size());
  self.sections.begin(section_kind::reference);
  self.sections.write(reference, sizeof reference);
  for (std::uint32_t first = 0; first < ntables; first += self.nthreads) {
    std::vector<table_image> tables(std::min(self.nthreads, ntables - first));
    parallel_for(self.nthreads, tables.size(),
                 [&](std::size_t i) { tables[i] = make_table(keys + (first + i) * n, n, head.key_nbits, head.cell_nbits); });
    for (std::size_t i = 0; i < tables.size(); ++i) {
      self.sections.begin(section_kind::table, first + static_cast<std::uint32_t>(i));
      self.sections.write(tables[i].directory.data(), tables[i].directory.size() * sizeof(std::uint32_t));
      self.sections.write(tables[i].entries.data(), tables[i].entries.size() * sizeof(table_entry));
    }
    if (progress) progress(n + std::uint64_t{n / 2} * std::min(ntables, first + self.nthreads) / ntables, total);
  }
  self.sections.begin(section_kind::origins);
  self.sections.write(self.origins.data(), self.origins.size() * sizeof(image_origin));
  self.sections.begin(section_kind::sources);
  const std::uint64_t text_begin = (self.name_ends.size() + 1) * sizeof(std::uint64_t);
  for (std::uint64_t& end : self.name_ends) end += text_begin;
  self.sections.write(&text_begin, sizeof text_begin);
  self.sections.write(self.name_ends.data(), self.name_ends.size() * sizeof(std::uint64_t));
  self.sections.write(self.names.data(), self.names.size());

  head.file_nbytes = self.sections.end();
  head.crc32 = crc32(0, &head, offsetof(header, crc32));
  self.file.write(&head, sizeof head, 0);
  if (progress) progress(total, total);
  self.file.publish();  // no progress after this: it may throw
  return head;
}

}  // namespace gpufs::apps::collage
