// SPDX-License-Identifier: Apache-2.0
#include "pin_budget.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "gpufs/store/mapped_store.hpp"

namespace gpufs::store {
namespace {

constexpr std::uint64_t none = ~std::uint64_t{0};

// Calls each(line) for the lines of a text file, without their ends. It uses C's stdio: in a Python process with several C++
// run-time libraries, an istream gave wrong numbers here.
template <class Each>
void for_each_line(const std::string& path, Each each) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::array<char, 4096> line;
  while (file && std::fgets(line.data(), static_cast<int>(line.size()), file.get()) != nullptr) {
    line[std::strcspn(line.data(), "\n")] = '\0';
    each(line.data());
  }
}

// The number in a file that has one; `none` for "max", for other text, and if there is no file.
std::uint64_t number_in(const std::string& path) {
  std::uint64_t number = none;
  for_each_line(path, [&](const char* line) {
    unsigned long long value = 0;
    if (std::sscanf(line, "%llu", &value) == 1) number = value;
  });
  return number;
}

// The least limit of the group at `path` below `root` and of the groups above it.
std::uint64_t least_limit(const std::string& root, std::string path, const char* limit) {
  std::uint64_t least = none;
  for (;;) {
    least = std::min(least, number_in(root + path + "/" + limit));
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

std::uint64_t memory_limit(const std::string& process_groups, const std::string& mounted) {
  std::uint64_t least = none;
  for_each_line(process_groups, [&](const char* line) {  // number:controllers,...:/path
    const std::string_view text = line;
    const std::size_t first = text.find(':'), second = text.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return;
    const std::string controllers = "," + std::string(text.substr(first + 1, second - first - 1)) + ",";
    std::string path(text.substr(second + 1));
    if (path == "/") path.clear();
    if (controllers == ",,") {
      least = std::min(least, least_limit(mounted, path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, least_limit(mounted + "/memory", path, "memory.limit_in_bytes"));
    }
  });
  return least;
}

namespace {

std::uint64_t own_memory_limit() { return memory_limit("/proc/self/cgroup", "/sys/fs/cgroup"); }

}  // namespace

std::uint64_t default_pin_nbytes() {
  std::uint64_t available = std::uint64_t{2} << 30;
  for_each_line("/proc/meminfo", [&](const char* line) {
    unsigned long long kib = 0;
    if (std::sscanf(line, "MemAvailable: %llu", &kib) == 1) available = std::uint64_t{kib} * 1024;
  });
  return std::min(available, own_memory_limit()) / 2;
}

std::uint64_t pin_budget(std::uint64_t asked) { return asked == 0 ? default_pin_nbytes() : std::min(asked, own_memory_limit()); }

}  // namespace gpufs::store
