// SPDX-License-Identifier: Apache-2.0
// Schedules of random programs: drawn from the program's seed, given by text, and what became of them.
#pragma once
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "file/harness.hpp"
#include "simt/schedule_points.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// One launch's schedule by priorities: the seed, which gives the priorities, and all its points.
struct given_schedule {
  std::uint64_t seed = 0;
  schedule_points points;
};
// By kernel: phase and mount.
using given_schedules = std::map<std::pair<unsigned, unsigned>, given_schedule>;

// Who runs: at random, at random with delays, or by priorities with depths of 1 to 5, with delays or none.
// GPUFS_TEST_POLICY, random, delays or priorities, leaves one of them.
inline void draw_policy(random_source& draw, simt::cpu_schedule& s) {
  const char* only = std::getenv("GPUFS_TEST_POLICY");
  const std::string drawn = draw.pick(std::vector<std::string>{"random", "delays", "priorities", "priorities"});
  const std::string policy = only != nullptr ? only : drawn;
  const auto depth = static_cast<unsigned>(draw.between(1, 5));
  const auto percent = draw.pick(std::vector<unsigned>{1, 5, 20});
  const bool delays = draw.percent(50);
  if (policy == "random") return;
  if (policy == "delays" || delays) s.delay_percent = percent;
  if (policy == "delays") return;
  s.policy = simt::schedule_policy::priorities;
  s.depth = depth;
  s.nthreads = 1;  // so that it repeats
}

inline void use(const given_schedule& given, simt::cpu_schedule& s, simt::schedule_trace& trace) {
  trace.points = given.points;
  trace.given = true;
  s.policy = simt::schedule_policy::priorities;
  s.seed = given.seed;
  s.nthreads = 1;
  s.delay_percent = 0;
}

inline std::string describe(const simt::cpu_schedule& s) {
  std::ostringstream text;
  text << "seed " << s.seed << " on " << s.nthreads;
  if (s.policy == simt::schedule_policy::priorities) {
    text << ", by priorities, depth " << s.depth;
  } else {
    text << ", switches " << s.switch_percent << " %";
  }
  if (s.delay_percent != 0) text << ", delays " << s.delay_percent << " %";
  return text.str();
}

// "0.1@77:120>2,340+64;1.0@77:": phase, mount, seed, points.
inline std::string to_text(const given_schedules& all) {
  std::ostringstream text;
  for (const auto& [launch, given] : all) {
    text << (text.tellp() == 0 ? "" : ";") << launch.first << '.' << launch.second << '@' << given.seed << ':'
         << points_to_text(given.points);
  }
  return text.str();
}

inline given_schedules schedules_from_text(const std::string& text) {
  given_schedules all;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ';');) {
    unsigned phase = 0, mount = 0;
    std::uint64_t seed = 0;
    char dot = 0, at = 0, colon = 0;
    std::string points;
    std::istringstream part(one);
    if (!(part >> phase >> dot >> mount >> at >> seed >> colon) || dot != '.' || at != '@' || colon != ':') {
      throw std::runtime_error("GPUFS_TEST_SCHEDULE: " + one);
    }
    std::getline(part, points);
    all[{phase, mount}] = {seed, points_from_text(points)};
  }
  return all;
}

inline std::size_t npoints(const given_schedules& all) {
  std::size_t n = 0;
  for (const auto& [launch, given] : all) n += given.points.size();
  return n;
}

// For seeds that take long: GPUFS_TEST_PROGRESS=500 prints a line after so many.
inline void tell_progress(const char* what, const seed_range& seeds, std::uint64_t seed) {
  static const std::uint64_t every = number_from_environment("GPUFS_TEST_PROGRESS", 0);
  const std::uint64_t done = seed - seeds.first + 1;
  if (every != 0 && (done % every == 0 || seed + 1 == seeds.end)) {
    std::cout << what << ": " << done << " of " << seeds.end - seeds.first << " seeds" << std::endl;
  }
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
