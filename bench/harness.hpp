// SPDX-License-Identifier: Apache-2.0
// What every bench needs of the host: its command line, files to read, host threads, medians, and one JSON file with the results.
// Independent of the machine; device.hpp has the device's side.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace bench {

// How much work: what the figures are quoted from; a GPU in a few seconds; the CPU machine, whose lanes are fibers.
struct sized {
  double full, quick, cpu;
};

// --name value, or --name alone for a flag. A program asks for all its options, then calls done().
class arguments {
 public:
  // Prints `usage` and exits with 0 for --help.
  arguments(int argc, char** argv, const char* usage, bool on_gpu);
  bool flag(const std::string& name);
  double number(const std::string& name, const sized& fallback);
  double number(const std::string& name, double fallback) { return number(name, {fallback, fallback, fallback}); }
  std::uint64_t nbytes(const std::string& name, const sized& fallback_gib);  // given in GiB
  std::string text(const std::string& name, const std::string& fallback);
  // A path; command() has its option's name in its place, so that results name no folders of the machine.
  std::string path(const std::string& name, const std::string& fallback);
  // Whether --only names this result, or there is no --only.
  bool wants(const std::string& name);
  bool wants_any(std::initializer_list<std::string> names);
  void done() const;  // throws std::invalid_argument for options that nobody asked for

  bool quick() const { return quick_; }
  bool on_gpu() const { return on_gpu_; }
  std::string command() const;

 private:
  const std::string* find(const std::string& name);

  std::string program_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::set<std::string> known_, paths_;
  bool on_gpu_, quick_ = false;
};

struct spread {
  double median = 0, low = 0, high = 0;
  std::size_t samples = 0;
};
spread spread_of(std::vector<double> samples);

// One line of the results.
struct measurement {
  std::string name;   // a row of targets.txt, or a name of its own, which nothing bounds
  std::string label;  // which case of it
  std::vector<double> samples{};
  std::string unit{};
  double ceiling = 0;  // in `unit`; 0: none
  std::string ceiling_is{};
  // extra_over_ceiling: measured / ceiling - 1, where less is better. times_as_fast: ceiling / measured, both of them times.
  enum class kind { share_of_ceiling, extra_over_ceiling, times_as_fast, itself } figure = kind::share_of_ceiling;
  bool verified = false;
  std::string cause{};  // why a target is missed, where that is known
  std::vector<std::pair<std::string, double>> details{};
};

// What the results of a program say of where they come from.
struct machine_facts {
  std::string gpu;     // empty: the CPU machine
  std::string driver;  // and the CUDA version it speaks
  unsigned nprocessors = 0;
};

// Prints results as they come, and keeps the JSON file of --out (default: none) up to date, so that a run that is cut short
// leaves what it had.
class results {
 public:
  results(std::string bench, arguments& args, const machine_facts& machine);
  void ceiling(const std::string& name, const std::string& unit, const spread& value);
  void add(const measurement& m);
  void note(const std::string& text);  // what was left out, and why
  int finish() const;                  // the program's exit status: 0 when every answer was right and something was measured

 private:
  void write() const;

  std::string bench_, head_, out_;
  std::vector<std::string> ceilings_, cases_, notes_;
  std::map<std::string, std::string> bounds_;
  bool right_ = true;
};

// A new folder below `parent`, removed at the end with all that is in it.
class work_folder {
 public:
  explicit work_folder(const std::string& parent);
  ~work_folder();
  work_folder(const work_folder&) = delete;
  work_folder& operator=(const work_folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The content of every file: its 8-byte word i is word_of(i) (device.hpp). Written by all host threads; throws on failure.
// All of it is in memory afterwards, as far as that goes: in tmpfs, or in the page cache of a disk's file system.
void make_file(const std::string& path, std::uint64_t nbytes);
// npieces sums of the 8-byte words of pieces of a file of that content.
std::vector<std::uint64_t> piece_sums(std::uint64_t piece_nbytes, std::uint64_t npieces);

unsigned host_threads();
// work(thread) in n threads, all started before any begins; the seconds from the first's begin to the last's end.
double run_threads(unsigned n, const std::function<void(unsigned thread)>& work);
// The sum of part(begin, end) over [0, n) cut into pieces for all host threads.
std::uint64_t sum_in_parallel(std::uint64_t n, const std::function<std::uint64_t(std::uint64_t begin, std::uint64_t end)>& part);

double process_cpu_seconds();  // user and system, of all threads

class stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// main() of a bench: errors are printed and give 1.
int guarded(const char* program, const std::function<int()>& body);

}  // namespace bench
