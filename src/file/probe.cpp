// SPDX-License-Identifier: Apache-2.0
#include "gpufs/file/detail/probe.hpp"

#include <fcntl.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs {
namespace {

path_probe failed(int error) { return {"error", std::strerror(-error), error, 0}; }

std::string mebibytes(std::uint64_t nbytes) { return std::to_string(nbytes >> 20) + " MiB"; }

path_probe answer_of(const store::open_file& opened) {
  const store::file_info& info = opened.info();
  return {info.kind == source_kind::pull ? "pull" : "staged", info.reason, 0, info.nbytes};
}

path_probe by_budget(std::uint64_t nbytes) {
  const std::uint64_t budget = store::default_pin_nbytes();
  const bool fits = nbytes <= budget;
  path_probe answer;
  answer.way = fits ? "pull" : "staged";
  answer.reason = "its " + mebibytes(nbytes) + (fits ? " fit" : " do not fit") + " into the pin budget of " + mebibytes(budget) +
                  (fits ? " (not tried: registering would read all of it)" : "");
  answer.nbytes = static_cast<std::int64_t>(nbytes);
  return answer;
}

path_probe probe(simt::platform& machine, const std::string& path, std::uint64_t register_up_to_nbytes) {
  const std::filesystem::path whole = std::filesystem::absolute(path);
  const std::string folder = whole.parent_path().string(), name = whole.filename().string();
  int error = 0;
  {
    store::posix_store files(folder);
    const auto opened = files.open(name, O_RDONLY, &error);
    if (opened == nullptr) return failed(error);
    const auto nbytes = static_cast<std::uint64_t>(opened->info().nbytes);
    if (nbytes > register_up_to_nbytes) return by_budget(nbytes);
  }
  store::auto_store files(machine, folder);
  const auto opened = files.open(name, O_RDONLY | static_cast<int>(names::open_prepared), &error);
  return opened == nullptr ? failed(error) : answer_of(*opened);
}

}  // namespace

path_probe probe_path(simt::platform& machine, const std::string& path, std::uint64_t register_up_to_nbytes) {
  try {
    return probe(machine, path, register_up_to_nbytes);
  } catch (const std::system_error& problem) {
    return {"error", problem.what(), -problem.code().value(), 0};
  }
}

}  // namespace gpufs
