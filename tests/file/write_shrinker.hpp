// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>

#include "file/write_run.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// Makes a run that fails smaller. First its schedule: where that was drawn at random, one by priorities that fails too is looked
// for; then points of it are left out (lanes that fall, delays), and then groups and calls; more and more finely, while what is
// left still fails. Kernels that run by priorities repeat but for the host: when its threads answer, and when kernels of several
// mounts meet. So each step is tried several times, and what is left may need as many tries.
class shrinker {
 public:
  explicit shrinker(write_program failing, std::string wrong) : best_(std::move(failing)), best_wrong_(std::move(wrong)) {}

  void operator()() {
    has_points_ = best_.schedules.empty() ? find_schedule() : true;
    needed_ = 2;  // else, where luck is needed, what is left fails more and more rarely
    if (!still_fails(best_)) needed_ = 1;
    for (bool smaller = true; smaller && in_time();) {
      smaller = leave_out(&shrinker::point_count, &shrinker::without_points);
      smaller |= leave_out(&shrinker::group_count, &shrinker::without_groups);
      smaller |= leave_out(&shrinker::step_count, &shrinker::without_steps);
    }
    count_failures();
  }
  const write_program& program() const { return best_; }
  const std::string& wrong() const { return best_wrong_; }
  // How short its schedule is, and how surely it fails.
  std::string summary() const {
    std::ostringstream text;
    if (!has_points_) return "no schedule by priorities was found that fails: threads of the machine decide";
    text << npoints(best_.schedules) << " points, " << nswitches_ << " switches in " << nsteps_ << " steps; failed " << nfailed_
         << " times of " << ntries;
    return text.str();
  }

  // Leaves out what a shrinker did: GPUFS_TEST_LEAVE_OUT.
  static write_program leave_out_again(write_program program, const std::string& text) {
    shrinker s(std::move(program), "");
    std::istringstream in(text);
    char kind = 0, plus = 0;
    for (std::size_t first = 0, count = 0; in >> kind >> first >> plus >> count;) {
      s.best_ = kind == 'g' ? s.without_groups(first, count) : s.without_steps(first, count);
    }
    return s.best_;
  }

 private:
  using counting = std::size_t (shrinker::*)() const;
  using leaving_out = write_program (shrinker::*)(std::size_t, std::size_t) const;

  bool in_time() const { return std::chrono::steady_clock::now() < end_; }

  bool leave_out(counting count, leaving_out without) {
    bool any = false;
    std::size_t part = ((this->*count)() + 1) / 2;
    while (part != 0 && in_time()) {
      bool smaller = false;
      for (std::size_t first = 0; first < (this->*count)() && in_time();) {
        if (still_fails((this->*without)(first, part))) {
          smaller = any = true;
        } else {
          first += part;
        }
      }
      if (!smaller || part > (this->*count)()) part /= 2;
    }
    return any;
  }

  // Races need luck.
  bool still_fails(const write_program& p) {
    int nfailed = 0;
    for (int attempt = 0; attempt < ntries && nfailed < needed_ && in_time(); ++attempt) nfailed += fails(p);
    if (nfailed < needed_) return false;
    best_ = p;
    best_wrong_ = wrong_;
    return true;
  }
  bool fails(const write_program& p) {
    program_run run(p);
    const std::string wrong = run();
    if (wrong.empty()) return false;
    wrong_ = wrong;
    last_traces_ = run.traces();
    return true;
  }

  // The points that the last run which failed met become the program's.
  bool keep_points() {
    write_program p = best_;
    p.schedules.clear();
    for (unsigned i = 0; i < p.phases.size(); ++i) {
      for (unsigned m = 0; m < p.mounts.size(); ++m) {
        const auto met = last_traces_.find({i, m});  // it may have failed before this kernel
        p.schedules[{i, m}] = {p.mounts[m].how.schedule.seed, met != last_traces_.end() ? met->second.points : schedule_points()};
      }
    }
    return still_fails(p);
  }

  static bool all_by_priorities(const write_program& p) {
    return std::all_of(p.mounts.begin(), p.mounts.end(),
                       [](const program_mount& m) { return m.how.schedule.policy == simt::schedule_policy::priorities; });
  }

  bool find_schedule() {
    if (on_cuda) return false;
    const write_program drawn = best_;
    if (all_by_priorities(drawn) && still_fails(drawn) && keep_points()) return true;
    for (unsigned i = 0; i < 300 && in_time(); ++i) {
      write_program p = drawn;
      for (program_mount& m : p.mounts) {
        simt::cpu_schedule& s = m.how.schedule;
        s.policy = simt::schedule_policy::priorities;
        s.seed += 1000 * i;
        s.nthreads = 1;
        s.depth = 1 + i % 4;
        s.delay_percent = i % 3 == 0 ? 5 : 0;
      }
      if (!fails(p)) continue;
      best_ = p;
      if (keep_points()) return true;
    }
    best_ = drawn;
    return false;
  }

  void count_failures() {
    const write_program p = best_;
    for (int i = 0; i < ntries; ++i) nfailed_ += fails(p);
    for (const auto& [launch, trace] : last_traces_) {
      nswitches_ += trace.nswitches;
      nsteps_ += trace.nsteps;
    }
  }

  std::size_t point_count() const { return npoints(best_.schedules); }
  write_program without_points(std::size_t first, std::size_t count) const {
    write_program copy = best_;
    std::size_t i = 0;
    for (auto& [launch, given] : copy.schedules) {
      std::erase_if(given.points, [&](const simt::schedule_point&) {
        const bool goes = i >= first && i - first < count;
        ++i;
        return goes;
      });
    }
    return copy;
  }

  static std::string left_out(const write_program& p, char kind, std::size_t first, std::size_t count) {
    return p.left_out + (p.left_out.empty() ? "" : " ") + kind + std::to_string(first) + "+" + std::to_string(count);
  }

  // Groups that do anything, in all kernels; and this process.
  template <class Each>
  static void each_group(write_program& p, Each each) {
    for (std::size_t m = 0; m < p.mounts.size(); ++m) {
      for (std::size_t g = 0; g < p.mounts[m].how.ngroups(); ++g) {
        bool any = false;
        for (const program_phase& phase : p.phases) any |= !phase.groups[m][g].empty();
        if (!any) continue;
        each([&] {
          for (program_phase& phase : p.phases) phase.groups[m][g].clear();
        });
      }
    }
    for (program_phase& phase : p.phases) {
      for (steps* host : {&phase.host_before, &phase.host_during}) {
        if (!host->empty()) each([&] { host->clear(); });
      }
    }
  }
  std::size_t group_count() const {
    std::size_t n = 0;
    write_program copy = best_;
    each_group(copy, [&](auto) { ++n; });
    return n;
  }
  write_program without_groups(std::size_t first, std::size_t count) const {
    write_program copy = best_;
    copy.left_out = left_out(best_, 'g', first, count);
    std::size_t i = 0;
    each_group(copy, [&](auto clear) {
      if (i >= first && i - first < count) clear();
      ++i;
    });
    return copy;
  }

  // Calls that others do not need: not opens and closes.
  static bool may_go(const step& s) { return s.kind > step_kind::close; }
  template <class Each>
  static void each_list(write_program& p, Each each) {
    for (program_phase& phase : p.phases) {
      for (auto& groups : phase.groups) {
        for (steps& s : groups) each(s);
      }
    }
  }
  std::size_t step_count() const {
    std::size_t n = 0;
    write_program copy = best_;
    each_list(copy, [&](const steps& s) { n += static_cast<std::size_t>(std::count_if(s.begin(), s.end(), may_go)); });
    return n;
  }
  write_program without_steps(std::size_t first, std::size_t count) const {
    write_program copy = best_;
    copy.left_out = left_out(best_, 's', first, count);
    std::size_t i = 0;
    each_list(copy, [&](steps& s) {
      std::erase_if(s, [&](const step& one) {
        if (!may_go(one)) return false;
        const bool goes = i >= first && i - first < count;
        ++i;
        return goes;
      });
    });
    return copy;
  }

  static constexpr int ntries = 8;
  write_program best_;
  std::string best_wrong_, wrong_;  // wrong_: of the last run that failed
  std::map<std::pair<unsigned, unsigned>, simt::schedule_trace> last_traces_;
  int needed_ = 1;
  bool has_points_ = false;
  int nfailed_ = 0;
  std::uint64_t nswitches_ = 0, nsteps_ = 0;
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + std::chrono::seconds(60);
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
