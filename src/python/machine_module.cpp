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

#include "gpufs/file/detail/probe.hpp"
#include "gpufs/nvme/pci_controller.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/version.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Of each machine of this build that can run here, its devices: all GPUs, or the current one, and one of the CPU machine.
enum class which { all, current };
std::vector<gpufs::simt::platform*> platforms(which wanted) {
  std::vector<gpufs::simt::platform*> found;
#if GPUFS_WITH_CUDA
  gpufs::simt::platform* const current = gpufs::simt::cuda_platform();
  if (current != nullptr && wanted == which::current) found.push_back(current);
  for (int i = 0; wanted == which::all && i < gpufs::simt::runtime::cuda_device_count(); ++i) {
    try {
      found.push_back(&gpufs::simt::runtime::cuda_device(i));
    } catch (const std::exception&) {  // too old, say: the driver's list of GPUs has it
    }
  }
#else
  static_cast<void>(wanted);
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
  for (const gpufs::simt::platform* machine : platforms(which::all)) described.emplace_back(machine->name(), machine->describe());
  return described;
}

// A path is any bytes, and the reason may hold it.
std::vector<std::tuple<std::string, std::string, nb::object>> probe_path(const nb::bytes& path) {
  std::vector<std::tuple<std::string, std::string, nb::object>> answers;
  for (gpufs::simt::platform* machine : platforms(which::current)) {
    gpufs::path_probe probe;
    {
      const std::string name(path.c_str(), path.size());
      const gpufs::python::unlocked others;
      probe = gpufs::probe_path(*machine, name);
    }
    answers.emplace_back(machine->name(), probe.way, nb::steal(PyUnicode_DecodeFSDefault(probe.reason.c_str())));
  }
  return answers;
}

// (address, what it is, how it can be taken over or None, why not or what that takes).
std::vector<std::tuple<std::string, std::string, nb::object, std::string>> nvme_controllers(const std::string& sys,
                                                                                            const std::string& proc,
                                                                                            const std::string& dev) {
  std::vector<std::tuple<std::string, std::string, nb::object, std::string>> told;
  for (const gpufs::nvme::pci_facts& each : gpufs::nvme::find_pci_controllers(gpufs::nvme::pci_tree(sys, proc, dev))) {
    std::string what = each.id;
    for (const std::string& disk : each.disks) what += ", " + disk;
    what += each.driver.empty() ? ", no driver" : ", driver " + each.driver;
    what += each.iommu_group < 0 ? ", no IOMMU" : ", IOMMU group " + std::to_string(each.iommu_group);
    const nb::object way = each.way == gpufs::nvme::pci_way::none   ? nb::none()
                           : each.way == gpufs::nvme::pci_way::vfio ? nb::object(nb::str("vfio"))
                                                                    : nb::object(nb::str("registers"));
    told.emplace_back(each.address, what, way, each.why);
  }
  return told;
}

}  // namespace

NB_MODULE(_machine, m) {
  m.doc() = "What this machine offers gpufs.";
  m.def("version", &gpufs::version, "The library's version.");
  m.def("cuda_missing", &cuda_missing, "Why kernels cannot run on a GPU here; empty when they can.");
  m.def("describe_platforms", &describe_platforms, "(name, lines of \"key: value\") of each GPU, and of the CPU machine.");
  m.def("probe_path", &probe_path, "path"_a,
        "(machine, \"pull\", \"staged\" or \"error\", why) for the file, on each machine that can run here.");
  m.def("nvme_controllers", &nvme_controllers, "sys"_a = "/sys", "proc"_a = "/proc", "dev"_a = "/dev",
        "(address, what it is, \"vfio\", \"registers\" or None, why) of each NVMe controller on the PCI bus: how it can be taken "
        "over.");
}
