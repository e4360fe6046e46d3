// SPDX-License-Identifier: Apache-2.0
// The points of a schedule by priorities, for tests: making them fewer, and as text.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/simt/schedule.hpp"

namespace gpufs::test {

using schedule_points = std::vector<simt::schedule_point>;

// Leaves elements out, halves first and then ever smaller parts, while `fails(rest)` holds: delta debugging. What comes back fails,
// and (where fails() is a function of its argument) no longer does when any one element more is left out.
template <class T, class Fails>
std::vector<T> fewest(std::vector<T> all, Fails fails) {
  for (std::size_t part = (all.size() + 1) / 2; part != 0;) {
    bool fewer = false;
    for (std::size_t first = 0; first < all.size();) {
      std::vector<T> rest = all;
      const auto from = rest.begin() + static_cast<std::ptrdiff_t>(first);
      rest.erase(from, from + static_cast<std::ptrdiff_t>(std::min(part, all.size() - first)));
      if (fails(rest)) {
        all = std::move(rest);
        fewer = true;
      } else {
        first += part;
      }
    }
    if (!fewer) part /= 2;
    part = std::min(part, all.size());
  }
  return all;
}

// "120>2,340+64": at step 120 who runs falls to priority 2, at 340 it is held back until others have written 64 times.
inline std::string points_to_text(const schedule_points& points) {
  std::string text;
  for (const simt::schedule_point& p : points) {
    if (!text.empty()) text.append(",");
    text.append(std::to_string(p.step)).append(p.priority != 0 ? ">" : "+");
    text.append(std::to_string(p.priority != 0 ? p.priority : p.nwrites));
  }
  return text;
}

inline schedule_points points_from_text(const std::string& text) {
  schedule_points points;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    simt::schedule_point p{.step = std::strtoull(at, &end, 10)};
    const bool falls = *end == '>';
    if (!falls && *end != '+') break;
    (falls ? p.priority : p.nwrites) = static_cast<std::uint32_t>(std::strtoull(end + 1, &end, 10));
    points.push_back(p);
    at = *end == ',' ? end + 1 : end;
  }
  return points;
}

}  // namespace gpufs::test
