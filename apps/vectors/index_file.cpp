// SPDX-License-Identifier: Apache-2.0
#include "apps/vectors/index_file.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <new>
#include <thread>
#include <utility>

#include "apps/crc32.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::vectors {
namespace {

const char* const how_to_make = "`gpufs vectors build` makes indexes";
constexpr std::uint64_t centroids_at_once = 16 << 20;  // bytes

// Zeros: there is none, and who opens it says why.
struct stat stat_of(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) about = {};
  return about;
}

}  // namespace

list_places places_of(const std::vector<list_entry>& entries, std::uint32_t dim) {
  list_places all;
  all.end = lists_at(static_cast<std::uint32_t>(entries.size()), dim);
  for (const list_entry& entry : entries) {
    const std::uint64_t ngroups = groups_of(entry.nvectors);
    all.lists.push_back({align_up(all.end), static_cast<std::uint32_t>(ngroups)});
    all.end = align_up(all.end) + ngroups * group_nbytes(dim);
  }
  return all;
}

index_file::index_file(std::string path)
    : absolute_(std::filesystem::absolute(path).string()), before_(stat_of(absolute_)), file_(std::move(path), "read") {
  check_header();
  read_front();
  check_unchanged();
}

// The file of file_ is open, so no other can have its number: where the path has the stamp of before, it names that file.
void index_file::check_unchanged() const {
  const struct stat now = stat_of(absolute_);
  const bool is_same = now.st_dev == before_.st_dev && now.st_ino == before_.st_ino && now.st_size == before_.st_size &&
                       now.st_mtim.tv_sec == before_.st_mtim.tv_sec && now.st_mtim.tv_nsec == before_.st_mtim.tv_nsec;
  if (!is_same) fail_changed();
}

void index_file::check_header() {
  if (file_.nbytes() < sizeof(header)) fail(std::string("is no index of vectors: it is too short; ") + how_to_make);
  file_.read(&head_, sizeof head_, 0);
  if (std::memcmp(head_.magic, magic, sizeof magic) != 0) fail(std::string("is no index of vectors; ") + how_to_make);
  if (head_.version != format_version) {
    fail("is an index of version " + std::to_string(head_.version) + ", and this gpufs reads version " +
         std::to_string(format_version) + ": build it again");
  }
  if (head_.crc32 != crc32(0, &head_, offsetof(header, crc32))) {
    fail("the header is damaged (its checksum is another): build or copy the index again");
  }
  const bool is_good = head_.dim >= 1 && head_.dim <= most_dim && head_.nlists >= 1 && head_.nlists <= most_lists &&
                       head_.nvectors <= most_vectors && head_.file_nbytes >= lists_at(head_.nlists, head_.dim);
  if (!is_good) fail("the header has numbers that no index has: build the index again");
  if (file_.nbytes() != head_.file_nbytes) {
    fail("has " + std::to_string(file_.nbytes()) + " bytes, and its header says " + std::to_string(head_.file_nbytes) +
         (file_.nbytes() < head_.file_nbytes ? ": it was cut; copy or build it again" : ": copy or build it again"));
  }
}

void index_file::read_front() {
  entries_.resize(nlists());
  file_.read(entries_.data(), entries_.size() * sizeof entries_[0], sizeof(header));
  std::uint64_t nvectors = 0;
  for (const list_entry& entry : entries_) nvectors += entry.nvectors;
  const bool is_sum_right = nvectors == head_.nvectors;  // else places may be too large for 64 bits
  list_places at = is_sum_right ? places_of(entries_, dim()) : list_places{};
  const std::uint32_t sum = read_centroids(crc32(0, entries_.data(), entries_.size() * sizeof entries_[0]));
  if (sum != head_.front_crc32) {
    fail("the table of its lists or their centroids are damaged (their checksum is another): build or copy the index again");
  }
  if (!is_sum_right || at.end != head_.file_nbytes) fail("its lists have other sizes than the header says: build it again");
  lists_ = std::move(at.lists);
}

std::uint32_t index_file::read_centroids(std::uint32_t sum) {
  const std::uint64_t nbytes = group_nbytes(dim()), all = groups_of(nlists()) * nbytes;
  try {
    centroids_.reserve(all);
  } catch (const std::bad_alloc&) {
    fail("there is no memory for its centroids, " + std::to_string(all) + " bytes", ENOMEM);
  }
  // A piece at a time, each checked: what a header says of a file with holes does not take memory that only holes would fill.
  const std::uint64_t piece = std::max<std::uint64_t>(1, centroids_at_once / nbytes) * nbytes;
  while (centroids_.size() < all) {
    const std::uint64_t before = centroids_.size();
    centroids_.resize(std::min(all, before + piece));
    file_.read(centroids_.data() + before, centroids_.size() - before, centroids_at(nlists()) + before);
    sum = crc32(sum, centroids_.data() + before, centroids_.size() - before);
    for (std::uint64_t group = before / nbytes; group < centroids_.size() / nbytes; ++group) check_centroids(group);
  }
  return sum;
}

// A search takes their ids as numbers of lists, so a sum that is right is not enough.
void index_file::check_centroids(std::uint64_t group) const {
  const std::byte* const begin = centroids_.data() + group * group_nbytes(dim());
  const auto* const elements = reinterpret_cast<const float*>(begin);
  const auto* const ids = reinterpret_cast<const std::uint32_t*>(begin + std::uint64_t{dim()} * row_nbytes);
  bool is_good = std::all_of(elements, elements + std::uint64_t{dim()} * group_vectors, [](float x) { return std::isfinite(x); });
  for (std::uint32_t lane = 0; lane < group_vectors; ++lane) {
    const std::uint64_t list = group * group_vectors + lane;
    is_good = is_good && ids[lane] == (list < nlists() ? list : std::uint64_t{no_id});
  }
  if (!is_good) {
    fail("the centroids of lists from " + std::to_string(group * group_vectors) +
         " on are damaged (they have other numbers, or elements that are no numbers): build or copy the index again");
  }
}

void index_file::check_lists(unsigned nthreads, const progress_function& progress) const {
  std::vector<std::atomic<std::uint64_t>> seen((head_.nvectors + 63) / 64);
  std::atomic<std::uint64_t> done{0};
  const std::thread::id caller = std::this_thread::get_id();
  const std::uint64_t nbytes = group_nbytes(dim());
  parallel_for(thread_count(nthreads), nlists(), [&](std::size_t list) {
    const auto fail_here = [&](const std::string& what) {
      fail("list " + std::to_string(list) + " " + what + ": build or copy the index again");
    };
    std::vector<std::byte> group(nbytes);
    std::uint32_t sum = 0;
    std::uint32_t left = entries_[list].nvectors;
    for (std::uint32_t g = 0; g < lists_[list].ngroups; ++g) {
      file_.read(group.data(), nbytes, lists_[list].begin + g * nbytes);
      sum = crc32(sum, group.data(), nbytes);
      const auto* const elements = reinterpret_cast<const float*>(group.data());
      const auto* const ids = reinterpret_cast<const std::uint32_t*>(group.data() + std::uint64_t{dim()} * row_nbytes);
      for (std::uint64_t i = 0; i < std::uint64_t{dim()} * group_vectors; ++i) {
        if (!std::isfinite(elements[i])) fail_here("has a vector with an element that is no number");
      }
      for (std::uint32_t i = 0; i < group_vectors; ++i) {
        if (left == 0 && ids[i] != no_id) fail_here("has more vectors than its size says");
        if (left == 0) continue;
        --left;
        if (ids[i] >= head_.nvectors) fail_here("has vector " + std::to_string(ids[i]) + ", which is not there");
        const std::uint64_t bit = std::uint64_t{1} << ids[i] % 64;
        if ((seen[ids[i] / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0)
          fail_here("has vector " + std::to_string(ids[i]) + " again");
      }
    }
    if (sum != entries_[list].crc32) fail_here("is damaged (its checksum is another)");
    const std::uint64_t now = done.fetch_add(lists_[list].ngroups * nbytes, std::memory_order_relaxed);
    if (std::this_thread::get_id() == caller) progress(now, file_.nbytes());
  });
  check_unchanged();
  progress(file_.nbytes(), file_.nbytes());
}

void index_file::fail(const std::string& what, int error) const {
  throw gpufs::error(path() + ": " + what, error != 0 ? error : EINVAL);
}
void index_file::fail_changed() const { file_.fail(ESTALE); }

}  // namespace gpufs::apps::vectors
