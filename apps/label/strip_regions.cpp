// SPDX-License-Identifier: Apache-2.0
// A union-find of the regions at edges. Numbers before joining rise with regions' first pixels, so the least of those that are
// joined is the one whose first pixel is the first of all; and of the others each takes one number away from all that come behind
// it.
#include "apps/label/strip_regions.hpp"

#include <algorithm>
#include <span>

#include "gpufs/mount.hpp"

namespace gpufs::apps::label {

void strip_regions::add(const std::int32_t* labels, std::uint64_t height, std::uint64_t nregions, const std::uint32_t* seam) {
  const std::span first_row(labels, width_), last_row(labels + (height - 1) * width_, width_);
  strips_.push_back({.nregions_before = nregions_, .first_edge = numbers_.size(), .nregions = nregions});
  std::vector<std::int32_t> at_edges(first_row.begin(), first_row.end());
  at_edges.insert(at_edges.end(), last_row.begin(), last_row.end());
  std::sort(at_edges.begin(), at_edges.end());
  at_edges.erase(std::unique(at_edges.begin(), at_edges.end()), at_edges.end());
  for (const std::int32_t label : at_edges) {
    if (label == 0) continue;
    joined_to_.push_back(numbers_.size());
    numbers_.push_back(nregions_ + static_cast<std::uint64_t>(label));
  }
  nregions_ += nregions;
  if (strips_.size() > 1) {
    const strip &upper = strips_[strips_.size() - 2], &lower = strips_.back();
    for (std::uint64_t column = 0; column < width_; ++column) {
      if (first_row[column] == 0) continue;
      const auto meet = [&](std::uint64_t above) {
        if (seam[above] == seam[width_ + column]) join(edge_of(upper, above_[above]), edge_of(lower, first_row[column]));
      };
      meet(column);
      if (corners_ && column != 0) meet(column - 1);
      if (corners_ && column != width_ - 1) meet(column + 1);
    }
  }
  above_.assign(last_row.begin(), last_row.end());
}

std::uint64_t strip_regions::edge_of(const strip& of, std::int32_t label) const {
  const auto begin = numbers_.begin() + static_cast<std::ptrdiff_t>(of.first_edge);
  const std::uint64_t number = of.nregions_before + static_cast<std::uint64_t>(label);
  return static_cast<std::uint64_t>(std::lower_bound(begin, numbers_.end(), number) - numbers_.begin());
}

std::uint64_t strip_regions::first_of(std::uint64_t edge) {
  while (joined_to_[edge] != edge) edge = joined_to_[edge] = joined_to_[joined_to_[edge]];
  return edge;
}

void strip_regions::join(std::uint64_t i, std::uint64_t j) {
  const std::uint64_t a = first_of(i), b = first_of(j);
  joined_to_[std::max(a, b)] = std::min(a, b);
}

std::uint64_t strip_regions::number() {
  std::uint64_t njoined = 0, i = 0;
  for (std::uint64_t which = 0; which < strips_.size(); ++which) {
    strips_[which].njoined_before = njoined;
    const std::uint64_t end = which + 1 < strips_.size() ? strips_[which + 1].first_edge : numbers_.size();
    for (; i < end; ++i) {
      const bool is_first = joined_to_[i] == i;
      joined_to_[i] = is_first ? numbers_[i] - njoined : joined_to_[joined_to_[i]];  // of one further ahead, which has its number
      njoined += is_first ? 0 : 1;
    }
  }
  return nregions_ - njoined;
}

template <class Label>
void strip_regions::renumber(std::uint64_t which, Label* labels, std::uint64_t n) const {
  if (n == 0) return;
  const strip& of = strips_.at(which);
  const auto [least, most] = std::minmax_element(labels, labels + n);
  if (*least < 0 || static_cast<std::uint64_t>(*most) > of.nregions) {
    throw error("these labels are none of their strip: was the file of labels changed by others?", EIO);
  }
  std::vector<Label> table(static_cast<std::uint64_t>(*most) + 1);  // 0 is the background
  std::uint64_t njoined = of.njoined_before, edge = of.first_edge;
  for (std::uint64_t label = 1; label < table.size(); ++label) {
    const std::uint64_t number = of.nregions_before + label;
    std::uint64_t now = number - njoined;
    if (edge < numbers_.size() && numbers_[edge] == number) {
      if (joined_to_[edge] != now) ++njoined;
      now = joined_to_[edge++];
    }
    table[label] = static_cast<Label>(now);
  }
  for (std::uint64_t i = 0; i < n; ++i) labels[i] = table[static_cast<std::uint64_t>(labels[i])];
}

template void strip_regions::renumber(std::uint64_t, std::int32_t*, std::uint64_t) const;
template void strip_regions::renumber(std::uint64_t, std::int64_t*, std::uint64_t) const;

}  // namespace gpufs::apps::label
