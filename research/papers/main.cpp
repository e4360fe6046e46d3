// SPDX-License-Identifier: Apache-2.0
// The tables and figures of "Supporting data-driven I/O on GPUs using GPUfs" (SYSTOR'16), and the collage of ActivePointers
// (ISCA'16), from the library's own cache and from the papers' (research/baselines): a JSON file each, with the paper's values
// beside ours.
//
//   papers NAME[,NAME...] --library L --photo P.ppm [--photo ...] --out DIR [--cache-mib 2048] [--big-cache-mib 16384] [--repeats
//   5] names: table_1 table_2 table_3 figure_4 figure_5 figure_6 figure_7 figure_8 figure_9 original_slowdown pointer_collage
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "research/papers/bench.hpp"

namespace {

using namespace gpufs::papers;

struct entry {
  const char* name;
  report (*make)(const inputs&);
};
constexpr entry entries[] = {{"table_1", table_1},
                             {"table_2", table_2},
                             {"table_3", table_3},
                             {"figure_4", figure_4},
                             {"figure_5", figure_5},
                             {"figure_6", figure_6},
                             {"figure_7", figure_7},
                             {"figure_8", figure_8},
                             {"figure_9", figure_9},
                             {"original_slowdown", original_slowdown},
                             {"pointer_collage", pointer_collage}};

const entry& entry_of(const std::string& name) {
  for (const entry& e : entries) {
    if (name == e.name) return e;
  }
  throw gpufs::error("there is no table or figure '" + name + "'");
}

std::uint64_t whole_number(const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || text[0] == '-') throw gpufs::error("'" + text + "' is not a number");
  return value;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string library_path, out;
  std::vector<std::string> names, photos;
  std::uint64_t cache_mib = 2048, big_cache_mib = 16384, repeats = 5;
  std::string command = "papers";
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    command.append(" ").append(text.substr(text.rfind('/') == std::string::npos ? 0 : text.rfind('/') + 1));
  }
  if (argc > 1) {
    std::istringstream list(argv[1]);
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  }
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--library") {
      library_path = value;
    } else if (key == "--photo") {
      photos.push_back(value);
    } else if (key == "--out") {
      out = value;
    } else if (key == "--cache-mib") {
      cache_mib = whole_number(value);
    } else if (key == "--big-cache-mib") {
      big_cache_mib = whole_number(value);
    } else if (key == "--repeats") {
      repeats = whole_number(value);
    } else {
      throw gpufs::error("unknown option " + key);
    }
  }
  if (names.empty() || library_path.empty() || photos.empty() || out.empty() || argc % 2 != 0) {
    std::fputs(
        "usage: papers NAME[,NAME...] --library L --photo P.ppm [--photo ...] --out DIR [--cache-mib n] [--big-cache-mib n]\n"
        "              [--repeats n]\nnames:",
        stderr);
    for (const entry& e : entries) std::fprintf(stderr, " %s", e.name);
    std::fputs("\n", stderr);
    return 2;
  }
  const gpufs::apps::collage::library lib(library_path);
  inputs in{.lib = lib, .images = {}};
  in.cache_nbytes = cache_mib << 20;
  in.big_cache_nbytes = big_cache_mib << 20;
  in.repeats = static_cast<int>(repeats);
  for (const std::string& path : photos) in.images.push_back(std::make_unique<image>(path));
  const machine_facts machine = this_machine();
  const char* commit = std::getenv("GPUFS_COMMIT");
  const provenance from{machine.machine, machine.driver, commit != nullptr ? commit : "unknown", command};
  bool verified = true;
  for (const std::string& name : names) entry_of(name);  // before anything is measured
  for (const std::string& name : names) {
    std::fprintf(stderr, "%s\n", name.c_str());
    const report r = entry_of(name).make(in);
    std::fputs(to_text(r).c_str(), stdout);
    std::fflush(stdout);
    std::ofstream json(out + "/" + r.name + ".json");
    json << to_json(r, from);
    if (!json.flush()) throw gpufs::error("cannot write " + out + "/" + r.name + ".json");
    verified = verified && r.verified;
  }
  return verified ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "papers: %s\n", e.what());
  return 1;
}
