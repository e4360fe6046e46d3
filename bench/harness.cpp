// SPDX-License-Identifier: Apache-2.0
#include "harness.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "apps/parallel.hpp"
#include "simt/harness.hpp"
#include "targets.hpp"

namespace bench {
namespace {

using gpufs::simt::test::scramble;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

std::string number_text(double x) {
  if (!std::isfinite(x)) return "null";
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.6g", x);
  return text.data();
}

// {"a": 1, "b": "x"}; values are JSON already.
std::string object(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    if (out.size() > 1) out += ", ";
    out.append(json_text(name)).append(": ").append(value);
  }
  return out + "}";
}

std::string list(const std::vector<std::string>& elements) {
  std::string out = "[";
  for (const std::string& e : elements) out.append(out.size() > 1 ? ",\n    " : "\n    ").append(e);
  return out + (elements.empty() ? "]" : "\n  ]");
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &utc);
  return text.data();
}

bool is_tmpfs(const std::string& path) {
  struct statfs status {};
  return statfs(path.c_str(), &status) == 0 && status.f_type == TMPFS_MAGIC;
}

class descriptor {
 public:
  descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0600)) {
    if (fd_ < 0) fail("cannot open " + path);
  }
  ~descriptor() { ::close(fd_); }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_mapped(int fd, std::uint64_t nbytes, const std::string& path) {
  auto* words = static_cast<std::uint64_t*>(mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (words == MAP_FAILED) fail("cannot map " + path);
  sum_in_parallel(nbytes / 8, [=](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) words[i] = scramble(i);
    return 0;
  });
  munmap(words, nbytes);
}

void write_called(int fd, std::uint64_t nbytes, const std::string& path) {
  constexpr std::uint64_t piece = 4u << 20;
  gpufs::apps::parallel_for(host_threads(), (nbytes + piece - 1) / piece, [&](std::size_t p) {
    const std::uint64_t begin = p * piece, end = std::min(nbytes, begin + piece);
    std::vector<std::uint64_t> words((end - begin) / 8);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = scramble(begin / 8 + i);
    for (std::uint64_t done = begin; done < end;) {
      const ssize_t n =
          pwrite(fd, reinterpret_cast<const char*>(words.data()) + (done - begin), end - done, static_cast<off_t>(done));
      if (n <= 0) fail("cannot write " + path);
      done += static_cast<std::uint64_t>(n);
    }
  });
}

}  // namespace

arguments::arguments(int argc, char** argv, const char* usage, bool on_gpu)
    : program_(std::filesystem::path(argv[0]).filename().string()), on_gpu_(on_gpu) {
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::printf("%s  --only NAME,...  --repeats N  --out FILE.json  --quick\n", usage);
      std::exit(0);
    }
    if (name.rfind("--", 0) != 0) throw std::invalid_argument("not an option: " + name + "\n" + usage);
    name.erase(0, 2);
    std::string value;
    if (i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0) value = argv[++i];
    given_.emplace_back(std::move(name), std::move(value));
  }
  quick_ = flag("quick");
}

const std::string* arguments::find(const std::string& name) {
  known_.insert(name);
  const std::string* value = nullptr;
  for (const auto& option : given_) {
    if (option.first == name) value = &option.second;
  }
  return value;
}

bool arguments::flag(const std::string& name) { return find(name) != nullptr; }

double arguments::number(const std::string& name, const sized& fallback) {
  const std::string* value = find(name);
  if (value == nullptr) return !on_gpu_ ? fallback.cpu : quick_ ? fallback.quick : fallback.full;
  std::size_t used = 0;
  double number = 0;
  try {
    number = std::stod(*value, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != value->size() || used == 0 || !std::isfinite(number) || number < 0) {
    throw std::invalid_argument("--" + name + " wants a number, not '" + *value + "'");
  }
  return number;
}

std::uint64_t arguments::nbytes(const std::string& name, const sized& fallback_gib) {
  return static_cast<std::uint64_t>(number(name, fallback_gib) * (1u << 30));
}

std::string arguments::text(const std::string& name, const std::string& fallback) {
  const std::string* value = find(name);
  return value == nullptr ? fallback : *value;
}

std::string arguments::path(const std::string& name, const std::string& fallback) {
  paths_.insert(name);
  return text(name, fallback);
}

bool arguments::wants(const std::string& name) {
  const std::string only = text("only", "");
  return only.empty() || ("," + only + ",").find("," + name + ",") != std::string::npos;
}

bool arguments::wants_any(std::initializer_list<std::string> names) {
  return std::any_of(names.begin(), names.end(), [this](const std::string& name) { return wants(name); });
}

void arguments::done() const {
  for (const auto& option : given_) {
    if (known_.count(option.first) == 0) throw std::invalid_argument("unknown option --" + option.first);
  }
}

std::string arguments::command() const {
  std::string line = program_;
  for (const auto& [name, value] : given_) {
    if (name == "out") continue;
    line.append(" --").append(name);
    if (paths_.count(name) != 0) {
      std::string shown = name;
      std::transform(shown.begin(), shown.end(), shown.begin(), [](char c) { return c == '-' ? '_' : std::toupper(c); });
      line.append(" ").append(shown);
    } else if (!value.empty()) {
      line.append(" ").append(value);
    }
  }
  return line;
}

spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back(), samples.size()};
}

results::results(std::string bench, arguments& args, const machine_facts& machine)
    : bench_(std::move(bench)), out_(args.path("out", "")) {
  args.wants("");  // --only is known to every program
  args.done();
  std::istringstream lines(targets);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    const auto first = line.find('|'), second = line.find('|', first + 1);
    bounds_[trimmed(line.substr(0, first))] = trimmed(line.substr(first + 1, second - first - 1));
  }
  struct sysinfo memory {};
  sysinfo(&memory);
  const char* commit = std::getenv("GPUFS_COMMIT");
  const double memory_gib = static_cast<double>(memory.totalram) * memory.mem_unit / (1u << 30);
  head_ = "\"bench\": " + json_text(bench_) + ",\n  \"machine\": " +
          object({{"gpu", machine.gpu.empty() ? "null" : json_text(machine.gpu)},
                  {"processors", std::to_string(machine.nprocessors)},
                  {"host_threads", std::to_string(host_threads())},
                  {"host_memory_gib", number_text(std::round(memory_gib))}}) +
          ",\n  \"driver\": " + json_text(machine.driver) +
          ",\n  \"commit\": " + json_text(commit != nullptr ? commit : "unknown") +
          ",\n  \"command\": " + json_text(args.command()) + ",\n  \"date\": " + json_text(today()) +
          ",\n  \"quick\": " + (args.quick() || !args.on_gpu() ? "true" : "false");
}

void results::ceiling(const std::string& name, const std::string& unit, const spread& value) {
  std::printf("%-14s %-34s %10.4g %s  (%.4g to %.4g)\n", "ceiling", name.c_str(), value.median, unit.c_str(), value.low,
              value.high);
  ceilings_.push_back(object({{"name", json_text(name)},
                              {"measured", number_text(value.median)},
                              {"unit", json_text(unit)},
                              {"low", number_text(value.low)},
                              {"high", number_text(value.high)},
                              {"samples", std::to_string(value.samples)}}));
  write();
}

void results::add(const measurement& m) {
  const spread raw = spread_of(m.samples);
  const auto figure = [&m](double measured) {
    if (m.figure == measurement::kind::itself) return measured;
    if (m.figure == measurement::kind::times_as_fast) return measured > 0 ? m.ceiling / measured : 0;
    const double share = m.ceiling > 0 ? measured / m.ceiling : 0;
    return m.figure == measurement::kind::extra_over_ceiling ? share - 1 : share;
  };
  const auto [low, high] = std::minmax({figure(raw.low), figure(raw.high)});
  const auto bound = bounds_.find(m.name);
  const bool verified = m.verified && raw.samples > 0;
  right_ = right_ && verified;
  std::string details;
  std::vector<std::pair<std::string, std::string>> detail_members;
  for (const auto& [name, value] : m.details) {
    details.append(details.empty() ? "  " : ", ").append(name).append(" ").append(number_text(value));
    detail_members.emplace_back(name, number_text(value));
  }
  std::printf("%-14s %-34s %10.4g %s  figure %.4g (%.4g to %.4g)%s%s%s%s\n", m.name.c_str(), m.label.c_str(), raw.median,
              m.unit.c_str(), figure(raw.median), low, high, bound == bounds_.end() ? "" : ", wanted ",
              bound == bounds_.end() ? "" : bound->second.c_str(), verified ? "" : "  WRONG ANSWERS", details.c_str());
  std::fflush(stdout);
  cases_.push_back(object({{"name", json_text(m.name)},
                           {"case", json_text(m.label)},
                           {"figure", number_text(figure(raw.median))},
                           {"bound", bound == bounds_.end() ? "null" : json_text(bound->second)},
                           {"measured", number_text(raw.median)},
                           {"unit", json_text(m.unit)},
                           {"ceiling", m.ceiling > 0 ? number_text(m.ceiling) : "null"},
                           {"ceiling_is", json_text(m.ceiling_is)},
                           {"spread", "[" + number_text(low) + ", " + number_text(high) + "]"},
                           {"samples", std::to_string(raw.samples)},
                           {"verified", verified ? "true" : "false"},
                           {"cause", json_text(m.cause)},
                           {"details", object(detail_members)}}));
  write();
}

void results::note(const std::string& text) {
  std::printf("%-14s %s\n", "note", text.c_str());
  notes_.push_back(json_text(text));
  write();
}

int results::finish() const {
  write();
  return right_ && !cases_.empty() ? 0 : 1;
}

void results::write() const {
  if (out_.empty()) return;
  const std::string part = out_ + ".part";
  {
    std::ofstream json(part);
    json << "{\n  " << head_ << ",\n  \"ceilings\": " << list(ceilings_) << ",\n  \"cases\": " << list(cases_)
         << ",\n  \"notes\": " << list(notes_) << "\n}\n";
    if (!json.flush()) fail("cannot write " + out_);
  }
  std::filesystem::rename(part, out_);
}

work_folder::work_folder(const std::string& parent) : path_(parent + "/gpufs-bench-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) fail("cannot make a folder in " + parent);
}

work_folder::~work_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void make_file(const std::string& path, std::uint64_t nbytes) {
  const descriptor file(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
  // A store to a mapping of a full tmpfs is a bus error. (posix_fallocate would clear all pages in one thread.)
  struct statvfs room {};
  if (fstatvfs(file.get(), &room) != 0) fail("cannot look at " + path);
  if (room.f_bavail * room.f_frsize < nbytes) {
    errno = ENOSPC;
    fail("no room for " + path);
  }
  if (ftruncate(file.get(), static_cast<off_t>(nbytes)) != 0) fail("cannot size " + path);
  if (is_tmpfs(path)) {
    write_mapped(file.get(), nbytes, path);
  } else {
    write_called(file.get(), nbytes, path);
  }
}

std::vector<std::uint64_t> piece_sums(std::uint64_t piece_nbytes, std::uint64_t npieces) {
  std::vector<std::uint64_t> sums(npieces);
  const std::uint64_t words = piece_nbytes / 8;
  sum_in_parallel(npieces, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t p = begin; p < end; ++p) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = p * words; i < (p + 1) * words; ++i) sum += scramble(i);
      sums[p] = sum;
    }
    return 0;
  });
  return sums;
}

unsigned host_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

double run_threads(unsigned n, const std::function<void(unsigned thread)>& work) {
  using clock = std::chrono::steady_clock;
  std::barrier start(static_cast<std::ptrdiff_t>(n));
  std::vector<clock::time_point> begins(n), ends(n);
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < n; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        begins[t] = clock::now();
        work(t);
        ends[t] = clock::now();
      });
    }
  }
  const auto begin = *std::min_element(begins.begin(), begins.end()), end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(end - begin).count();
}

std::uint64_t sum_in_parallel(std::uint64_t n, const std::function<std::uint64_t(std::uint64_t begin, std::uint64_t end)>& part) {
  const unsigned npieces = host_threads() * 4;
  std::vector<std::uint64_t> sums(npieces);
  gpufs::apps::parallel_for(host_threads(), npieces,
                            [&](std::size_t i) { sums[i] = part(n * i / npieces, n * (i + 1) / npieces); });
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

double process_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

int guarded(const char* program, const std::function<int()>& body) try { return body(); } catch (const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", program, e.what());
  return 1;
}

}  // namespace bench
