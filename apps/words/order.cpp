// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "apps/parallel.hpp"
#include "apps/words/finder.hpp"

namespace gpufs::apps::words {

void put_in_order(found& of) {
  std::erase_if(of.segments, [&](const segment& each) { return of.errors[each.file] != 0; });
  std::ranges::sort(of.segments, {}, [](const segment& each) { return std::tuple(each.file, each.begin); });
}

// A stable counting sort by words: threads count the words of a part of the segments each; so it is known where a thread's records
// of a word go. Then what one file has of a word lies side by side.
word_rows rows_of(const found& in_order, std::uint32_t nwords, unsigned nthreads) {
  const std::vector<segment>& segments = in_order.segments;
  std::uint64_t nrecords = 0;
  for (const segment& each : segments) nrecords += each.nrecords;
  constexpr std::uint64_t least = 4;  // records a word in a part, or counters cost more than records
  const auto nparts = static_cast<std::size_t>(std::clamp<std::uint64_t>(nrecords / (least * nwords), 1, thread_count(nthreads)));
  std::vector<std::size_t> ends;  // of parts, in segments
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    n += segments[i].nrecords;
    if (n * nparts >= nrecords * (ends.size() + 1)) ends.push_back(i + 1);
  }
  ends.resize(nparts, segments.size());
  const auto each_record = [&](std::size_t part, const auto& work) {
    for (std::size_t i = part == 0 ? 0 : ends[part - 1]; i < ends[part]; ++i) {
      for (const record& each : std::span(segments[i].records, segments[i].nrecords)) work(segments[i].file, each);
    }
  };
  std::vector<std::vector<std::uint64_t>> places(nparts);  // of a part's next record of each word
  parallel_for(static_cast<unsigned>(nparts), nparts, [&](std::size_t part) {
    places[part].resize(nwords);
    each_record(part, [&](std::uint32_t, const record& each) { ++places[part][each.what]; });
  });
  word_rows rows;
  rows.begins.resize(nwords + std::size_t{1});
  std::uint64_t place = 0;
  for (std::uint32_t word = 0; word < nwords; ++word) {
    rows.begins[word] = place;
    for (std::vector<std::uint64_t>& of_part : places) place += std::exchange(of_part[word], place);
  }
  rows.begins[nwords] = place;
  rows.files.resize(nrecords);
  rows.counts.resize(nrecords);
  parallel_for(static_cast<unsigned>(nparts), nparts, [&](std::size_t part) {
    each_record(part, [&](std::uint32_t file, const record& each) {
      const std::uint64_t at = places[part][each.what]++;
      rows.files[at] = file;
      rows.counts[at] = each.count;
    });
  });
  // One row of each file.
  std::uint64_t to = 0, begin = 0;
  for (std::uint32_t word = 0; word < nwords; ++word) {
    const std::uint64_t end = rows.begins[word + 1], first = to;
    for (std::uint64_t i = begin; i < end; ++i) {
      if (to != first && rows.files[to - 1] == rows.files[i]) {
        rows.counts[to - 1] += rows.counts[i];
        continue;
      }
      rows.files[to] = rows.files[i];
      rows.counts[to++] = rows.counts[i];
    }
    begin = end;
    rows.begins[word + 1] = to;
  }
  rows.files.resize(to);
  rows.counts.resize(to);
  return rows;
}

}  // namespace gpufs::apps::words
