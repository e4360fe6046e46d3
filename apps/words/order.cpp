// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <utility>

#include "apps/parallel.hpp"
#include "apps/words/finder.hpp"

namespace gpufs::apps::words {
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

// A stable counting sort by words: threads count the rows of a part of the files each; so it is known where a thread's next row of
// a word goes. What a file has in several segments is one row: of a word only the last file that had it is asked.
word_rows rows_of(const found& in_order, std::uint32_t nwords, unsigned nthreads) {
  const std::span<const segment> segments = in_order.segments;
  std::uint64_t nrecords = 0;
  for (const segment& each : segments) nrecords += each.nrecords;
  constexpr std::uint64_t least = 4;  // records a word in a part, or counters cost more than records
  const unsigned most = thread_count(nthreads);
  const auto nparts = static_cast<std::size_t>(std::clamp<std::uint64_t>(nrecords / (least * nwords), 1, most));
  std::vector<std::size_t> ends;  // of parts, in segments, between two files
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    n += segments[i].nrecords;
    const bool is_last_of_file = i + 1 == segments.size() || segments[i + 1].file != segments[i].file;
    if (is_last_of_file && ends.size() < nparts && n * nparts >= nrecords * (ends.size() + 1)) ends.push_back(i + 1);
  }
  ends.resize(nparts, segments.size());
  constexpr std::uint32_t none = ~0u;
  struct of_word {
    std::uint64_t place;  // of the part's next row
    std::uint32_t file;   // of its last one
  };
  std::vector<std::vector<of_word>> parts(nparts);
  // Calls row(of the word, count) for each of a part's records that is a row's first, and more(of the word, count) for others.
  const auto go_through = [&](std::size_t part, const auto& row, const auto& more) {
    std::vector<of_word>& words = parts[part];
    for (std::size_t i = part == 0 ? 0 : ends[part - 1]; i < ends[part]; ++i) {
      const segment& here = segments[i];
      for (const record& one : std::span(here.records, here.nrecords)) {
        of_word& word = words[one.what];
        if (word.file == here.file) {
          more(word, one.count);
        } else {
          word.file = here.file;
          row(word, one.count);
        }
      }
    }
  };
  parallel_for(most, nparts, [&](std::size_t part) {
    parts[part].assign(nwords, {0, none});
    go_through(
        part, [](of_word& word, std::uint32_t) { ++word.place; }, [](const of_word&, std::uint32_t) {});
  });
  word_rows rows;
  rows.begins.resize(nwords + std::size_t{1});
  std::uint64_t place = 0;
  for (std::uint32_t word = 0; word < nwords; ++word) {
    rows.begins[word] = place;
    for (std::vector<of_word>& part : parts) {
      place += std::exchange(part[word].place, place);
      part[word].file = none;
    }
  }
  rows.begins[nwords] = place;
  rows.files = make_large_array<std::uint32_t>(place);
  rows.counts = make_large_array<std::uint64_t>(place);
  parallel_for(most, nparts, [&](std::size_t part) {
    go_through(
        part,
        [&](of_word& word, std::uint32_t count) {
          rows.files[word.place] = word.file;
          rows.counts[word.place++] = count;
        },
        [&](const of_word& word, std::uint32_t count) { rows.counts[word.place - 1] += count; });
  });
  return rows;
}

}  // namespace gpufs::apps::words
