// SPDX-License-Identifier: Apache-2.0
// Makes a program that fails smaller, while it still fails: first its schedule becomes one by priorities, if one fails, as these
// repeat; then calls are left out, and points of the schedule.
#pragma once
#include <chrono>

#include "fuzz/run.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

// Numbers of calls, in the order of the drawn program's rounds, and in each its groups, this process and the second one.
using call_numbers = std::vector<std::size_t>;

template <class Each>
void each_list(program& p, Each each) {
  for (round& r : p.rounds) {
    for (calls& mine : r.groups) each(mine);
    each(r.host);
    each(r.peer);
  }
}

// The program with these calls only.
inline program with_calls(const program& drawn, const call_numbers& kept) {
  program p = drawn;
  std::size_t i = 0;
  std::string text;
  each_list(p, [&](calls& list) {
    std::erase_if(list, [&](const call&) { return !std::binary_search(kept.begin(), kept.end(), i++); });
  });
  for (std::size_t first = 0; first < kept.size();) {
    std::size_t last = first;
    while (last + 1 < kept.size() && kept[last + 1] == kept[last] + 1) ++last;
    text.append(text.empty() ? "" : ",").append(std::to_string(kept[first])).append("-").append(std::to_string(kept[last]));
    first = last + 1;
  }
  p.kept = text;
  return p;
}
inline call_numbers all_calls(program p) {
  call_numbers all;
  each_list(p, [&](const calls& list) {
    for ([[maybe_unused]] const call& c : list) all.push_back(all.size());
  });
  return all;
}
// From "0-3,7-7": GPUFS_TEST_KEEP.
inline call_numbers numbers_from_text(const std::string& text) {
  call_numbers out;
  std::istringstream in(text);
  char dash = 0, comma = 0;
  for (std::size_t first = 0, last = 0; in >> first >> dash >> last; in >> comma) {
    for (; first <= last; ++first) out.push_back(first);
  }
  return out;
}

class shrinker {
 public:
  shrinker(const program& drawn, std::string wrong, const peer_process& peer)
      : drawn_(drawn), peer_(peer), best_(drawn), wrong_(std::move(wrong)) {}

  void operator()() {
    call_numbers kept = all_calls(drawn_);
    find_schedule();
    needed_ = 2;  // else, where luck is needed, what is left fails more and more rarely
    if (!still_fails(best_)) needed_ = 1;
    for (bool smaller = true; smaller && in_time();) {
      const std::size_t before = kept.size() + npoints();
      const auto schedules = best_.schedules;
      kept = fewest(kept, [&](const call_numbers& some) {
        program p = with_calls(drawn_, some);
        p.how = best_.how;
        p.schedules = schedules;
        return still_fails(p);
      });
      for (const auto& [r, given] : program(best_).schedules) {
        fewest(given.points, [&, which = r](const schedule_points& some) {
          program p = best_;
          p.schedules[which].points = some;
          return still_fails(p);
        });
      }
      smaller = kept.size() + npoints() < before;
    }
    for (int i = 0; i < ntries; ++i) nfailed_ += !wrong_in(best_).empty();
  }

  const program& shortest() const { return best_; }
  const std::string& wrong() const { return wrong_; }
  std::string summary() const {
    return (best_.schedules.empty() ? "the schedule is drawn; failed "
                                    : std::to_string(npoints()) + " points of the schedule; failed ") +
           std::to_string(nfailed_) + " times of " + std::to_string(ntries);
  }

 private:
  static constexpr int ntries = 8;
  bool in_time() const { return std::chrono::steady_clock::now() < end_; }

  std::size_t npoints() const {
    std::size_t n = 0;
    for (const auto& [r, given] : best_.schedules) n += given.points.size();
    return n;
  }

  std::string wrong_in(const program& p) {
    program_run run(p, peer_);
    const std::string wrong = run();
    if (!wrong.empty()) traces_ = run.traces();
    return wrong;
  }
  // Races need luck.
  bool still_fails(const program& p) {
    int nfailed = 0;
    std::string wrong;
    for (int i = 0; i < ntries && nfailed < needed_ && in_time(); ++i) {
      const std::string now = wrong_in(p);
      if (now.empty()) continue;
      wrong = now;
      ++nfailed;
    }
    if (nfailed < needed_) return false;
    best_ = p;
    wrong_ = wrong;
    return true;
  }

  // The points that the last run which failed met become the program's.
  bool keep_points(program p) {
    p.schedules.clear();
    for (unsigned r = 0; r <= p.rounds.size(); ++r) {
      const auto met = traces_.find(r);
      p.schedules[r] = {p.how.schedule.seed + r, met != traces_.end() ? met->second.points : schedule_points()};
    }
    return still_fails(p);
  }
  void find_schedule() {
    if (!best_.schedules.empty()) return;
    constexpr int most = on_cuda ? 0 : 300;
    for (int i = 0; i < most && in_time(); ++i) {
      program p = drawn_;
      simt::cpu_schedule& s = p.how.schedule;
      const bool as_drawn = i == 0 && s.policy == simt::schedule_policy::priorities;
      if (!as_drawn) {
        s.policy = simt::schedule_policy::priorities;
        s.seed += 1000 * static_cast<std::uint64_t>(i);
        s.nthreads = 1;
        s.depth = 1 + static_cast<unsigned>(i) % 4;
        s.delay_percent = i % 3 == 0 ? 5 : 0;
      }
      if (!wrong_in(p).empty() && keep_points(p)) return;
    }
    best_ = drawn_;
  }

  const program& drawn_;
  const peer_process& peer_;
  program best_;
  std::string wrong_;
  std::map<unsigned, simt::schedule_trace> traces_;
  int needed_ = 1, nfailed_ = 0;
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + std::chrono::seconds(60);
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
