// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpufs/file/probe.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/version.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// The machines of this build that can run here.
std::vector<gpufs::simt::platform*> platforms() {
  std::vector<gpufs::simt::platform*> found;
#if GPUFS_WITH_CUDA
  if (gpufs::simt::platform* cuda = gpufs::simt::cuda_platform()) found.push_back(cuda);
#endif
  found.push_back(&gpufs::simt::cpu_platform());
  return found;
}

std::string cuda_missing() {
#if GPUFS_WITH_CUDA
  return gpufs::simt::cuda_platform() == nullptr ? gpufs::simt::cuda_unavailable_reason() : "";
#else
  return "this build of gpufs has no CUDA machine";
#endif
}

std::vector<std::pair<std::string, std::string>> describe_platforms() {
  std::vector<std::pair<std::string, std::string>> described;
  for (const gpufs::simt::platform* machine : platforms()) described.emplace_back(machine->name(), machine->describe());
  return described;
}

// A path is any bytes, and the reason may hold it.
std::vector<std::tuple<std::string, std::string, nb::object>> probe_path(const nb::bytes& path) {
  std::vector<std::tuple<std::string, std::string, nb::object>> answers;
  for (gpufs::simt::platform* machine : platforms()) {
    gpufs::path_probe probe;
    {
      const std::string name(path.c_str(), path.size());
      nb::gil_scoped_release unlock;
      probe = gpufs::probe_path(*machine, name);
    }
    answers.emplace_back(machine->name(), probe.way, nb::steal(PyUnicode_DecodeFSDefault(probe.reason.c_str())));
  }
  return answers;
}

}  // namespace

NB_MODULE(_machine, m) {
  m.doc() = "What this machine offers gpufs.";
  m.def("version", &gpufs::version, "The library's version.");
  m.def("cuda_missing", &cuda_missing, "Why kernels cannot run on a GPU here; empty when they can.");
  m.def("describe_platforms", &describe_platforms, "(name, lines of \"key: value\") of each machine that can run here.");
  m.def("probe_path", &probe_path, "path"_a,
        "(machine, \"pull\", \"staged\" or \"error\", why) for the file, on each machine that can run here.");
}
