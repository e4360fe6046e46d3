// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <utility>

#include "apps/parallel.hpp"
#include "apps/words/finder.hpp"

namespace gpufs::apps::words {
namespace {

// What a file has, in one piece: the records of its only segment, or the sums of all.
struct word_count {
  std::uint32_t word;
  std::uint64_t count;
};
struct file_words {
  std::uint32_t file;
  std::span<const segment> segments;
  std::vector<word_count> sums{};

  std::uint64_t size() const { return segments.size() == 1 ? segments[0].nrecords : sums.size(); }
  template <class Work>
  void each(const Work& work) const {
    if (segments.size() == 1) {
      for (const record& one : std::span(segments[0].records, segments[0].nrecords)) work(one.what, std::uint64_t{one.count});
    } else {
      for (const word_count& one : sums) work(one.word, one.count);
    }
  }
  void add_up() {
    if (segments.size() == 1) return;
    for (const segment& part : segments) {
      for (const record& one : std::span(part.records, part.nrecords)) sums.push_back({one.what, one.count});
    }
    std::ranges::sort(sums, {}, &word_count::word);
    std::size_t to = 0;
    for (std::size_t i = 1; i < sums.size(); ++i) {
      if (sums[to].word == sums[i].word) {
        sums[to].count += sums[i].count;
      } else {
        sums[++to] = sums[i];
      }
    }
    sums.resize(to + 1);
  }
};

}  // namespace

void put_in_order(found& of) {
  std::vector<std::uint64_t> places(of.errors.size() + 1);  // of a file's segments
  for (const segment& each : of.segments) {
    if (of.errors[each.file] == 0) ++places[each.file + std::size_t{1}];
  }
  for (std::size_t i = 1; i < places.size(); ++i) places[i] += places[i - 1];
  std::vector<segment> in_order(places.back());
  const std::vector<std::uint64_t> begins = places;
  for (const segment& each : of.segments) {
    if (of.errors[each.file] == 0) in_order[places[each.file]++] = each;
  }
  for (std::size_t file = 0; file + 1 < begins.size(); ++file) {
    const std::span here(in_order.data() + begins[file], begins[file + 1] - begins[file]);
    std::ranges::stable_sort(here, {}, &segment::begin);
  }
  of.segments = std::move(in_order);
}

// A stable counting sort by words: threads count the words of a part of the files each; so it is known where a thread's next row of
// a word goes.
word_rows rows_of(const found& in_order, std::uint32_t nwords, unsigned nthreads) {
  std::vector<file_words> files;
  const std::span<const segment> segments = in_order.segments;
  for (std::size_t i = 0; i < segments.size();) {
    const std::size_t first = i;
    while (i < segments.size() && segments[i].file == segments[first].file) ++i;
    files.push_back({segments[first].file, segments.subspan(first, i - first)});
  }
  const unsigned most = thread_count(nthreads);
  parallel_for(most, files.size(), [&](std::size_t i) { files[i].add_up(); });
  std::uint64_t nrows = 0;
  for (const file_words& file : files) nrows += file.size();
  constexpr std::uint64_t least = 4;  // rows a word in a part, or counters cost more than rows
  const auto nparts = static_cast<std::size_t>(std::clamp<std::uint64_t>(nrows / (least * nwords), 1, most));
  std::vector<std::size_t> ends;  // of parts, in files
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    n += files[i].size();
    if (ends.size() < nparts && n * nparts >= nrows * (ends.size() + 1)) ends.push_back(i + 1);
  }
  ends.resize(nparts, files.size());
  const auto of_part = [&](std::size_t part) {
    const std::size_t begin = part == 0 ? 0 : ends[part - 1];
    return std::span(files).subspan(begin, ends[part] - begin);
  };
  std::vector<std::vector<std::uint64_t>> places(nparts);  // of a part's next row of each word
  parallel_for(most, nparts, [&](std::size_t part) {
    places[part].resize(nwords);
    for (const file_words& file : of_part(part)) file.each([&](std::uint32_t word, std::uint64_t) { ++places[part][word]; });
  });
  word_rows rows;
  rows.begins.resize(nwords + std::size_t{1});
  std::uint64_t place = 0;
  for (std::uint32_t word = 0; word < nwords; ++word) {
    rows.begins[word] = place;
    for (std::vector<std::uint64_t>& part : places) place += std::exchange(part[word], place);
  }
  rows.begins[nwords] = place;
  rows.files = std::make_unique_for_overwrite<std::uint32_t[]>(nrows);
  rows.counts = std::make_unique_for_overwrite<std::uint64_t[]>(nrows);
  parallel_for(most, nparts, [&](std::size_t part) {
    for (const file_words& file : of_part(part)) {
      file.each([&](std::uint32_t word, std::uint64_t count) {
        const std::uint64_t at = places[part][word]++;
        rows.files[at] = file.file;
        rows.counts[at] = count;
      });
    }
  });
  return rows;
}

}  // namespace gpufs::apps::words
