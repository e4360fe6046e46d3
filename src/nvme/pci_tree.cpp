// SPDX-License-Identifier: Apache-2.0
// Which NVMe controllers there are, and who has them, as sysfs and /proc tell.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpufs/nvme/pci_controller.hpp"

namespace gpufs::nvme {

namespace fs = std::filesystem;

int pci_tree::write(const std::string& path, const std::string& words) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  const ssize_t n = ::write(fd, words.data(), words.size());
  const int error = n < 0 ? -errno : 0;
  ::close(fd);
  return error;
}

namespace {

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}
std::string link_name(const fs::path& path) {
  std::error_code none;
  const fs::path to = fs::read_symlink(path, none);
  return none ? std::string() : to.filename().string();
}
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator each(folder, none), end; !none && each != end; each.increment(none))
    names.push_back(each->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// nvme0n1 of "nvme0n1" and, of a path to a namespace that has several, "nvme0c1n1". Empty: it is no namespace.
std::string disk_of(const std::string& name) {
  if (name.rfind("nvme", 0) != 0) return {};
  std::size_t at = 4;
  const auto digits = [&] {
    const std::size_t begin = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0) ++at;
    return at != begin;
  };
  if (!digits()) return {};
  const std::string controller = name.substr(0, at);
  if (at < name.size() && name[at] == 'c' && (++at, !digits())) return {};
  const std::size_t n = at;
  if (at >= name.size() || name[at] != 'n' || (++at, !digits()) || at != name.size()) return {};
  return controller + name.substr(n);
}

// Spaces and the like in mountinfo are \040.
std::string unescaped(const std::string& word) {
  std::string out;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return at < word.size() && word[at] >= '0' && word[at] <= '7'; };
    const bool is_octal = word[i] == '\\' && is_digit(i + 1) && is_digit(i + 2) && is_digit(i + 3);
    out += is_octal ? static_cast<char>(std::strtol(word.substr(i + 1, 3).c_str(), nullptr, 8)) : word[i];
    if (is_octal) i += 3;
  }
  return out;
}

struct mounted {
  std::string number, source, at;  // "259:2", "/dev/nvme0n1p2", "/home"
};
// Of the first process, where this one may see it: others' mounts, too.
std::vector<mounted> mounts_of(const pci_tree& tree) {
  std::vector<mounted> all;
  for (const char* who : {"/1/mountinfo", "/self/mountinfo"}) {
    std::ifstream file(tree.proc + who);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      mounted made;
      std::string skip;
      words >> skip >> skip >> made.number >> skip >> made.at;
      while (words >> skip && skip != "-") {
      }
      words >> skip >> made.source;
      made.at = unescaped(made.at);
      all.push_back(made);
    }
  }
  return all;
}
std::vector<std::string> swaps_of(const pci_tree& tree) {
  std::vector<std::string> all;
  std::ifstream file(tree.proc + "/swaps");
  for (std::string line; std::getline(file, line);) all.push_back(line.substr(0, line.find(' ')));
  return all;
}

// What the disk and its partitions are used for.
void add_users(const pci_tree& tree, const std::string& disk, const std::vector<mounted>& mounts,
               const std::vector<std::string>& swaps, std::vector<std::string>& users) {
  const fs::path here = fs::path(tree.sys) / "class/block" / disk;
  std::vector<std::pair<std::string, fs::path>> parts{{disk, here}};
  std::error_code none;
  for (const std::string& name : names_in(here)) {
    if (fs::exists(here / name / "partition", none)) parts.emplace_back(name, here / name);
  }
  const auto add = [&](const std::string& user) {
    if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
  };
  for (const auto& [name, path] : parts) {
    const std::string number = text_of(path / "dev"), node = "/dev/" + name;
    for (const mounted& each : mounts) {
      if ((!number.empty() && each.number == number) || each.source == node) add(name + " is mounted at " + each.at);
    }
    if (std::find(swaps.begin(), swaps.end(), node) != swaps.end()) add(name + " is swap space");
    for (const std::string& holder : names_in(path / "holders")) {
      std::string what = name;
      add(what.append(" is part of ").append(holder));
    }
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& each : words) all += (all.empty() ? "" : "; ") + each;
  return all;
}

// Others of its group whose drivers keep the group from being a user's.
std::vector<std::string> group_mates(const pci_tree& tree, const pci_facts& of) {
  std::vector<std::string> mates;
  const fs::path devices = fs::path(tree.sys) / "kernel/iommu_groups" / std::to_string(of.iommu_group) / "devices";
  for (const std::string& name : names_in(devices)) {
    const std::string driver = link_name(fs::path(tree.sys) / "bus/pci/devices" / name / "driver");
    if (name == of.address || driver.empty() || driver == "vfio-pci" || driver == "pcieport") continue;
    std::string mate = name;
    mates.push_back(mate.append(" (").append(driver).append(")"));
  }
  return mates;
}

void decide(const pci_tree& tree, pci_facts& of) {
  if (!of.users.empty()) {
    of.why = "it is in use: " + joined(of.users) + ". Unmount it, or swapoff, or take the device apart, first";
    return;
  }
  if (of.iommu_group >= 0) {
    if (const auto mates = group_mates(tree, of); !mates.empty()) {
      of.why = "its IOMMU group " + std::to_string(of.iommu_group) +
               " has others, too, which drivers of the kernel have: " + joined(mates) +
               ". Bind them to vfio-pci, or put the controller into another slot";
      return;
    }
  }
  if (!of.driver.empty() && of.driver != "vfio-pci" && of.driver != "nvme") {
    of.why = "the driver " + of.driver + " has it: unbind that first";
    return;
  }
  if (of.driver == "vfio-pci" && of.iommu_group < 0) {
    of.why = "vfio-pci has it without an IOMMU: unbind it, and it can be reached by its registers";
    return;
  }
  of.way = of.iommu_group >= 0 ? pci_way::vfio : pci_way::registers;
  of.asks_kernel = of.driver == "nvme";
  of.why = of.way == pci_way::vfio ? "through vfio-pci"
                                   : "by its registers, as there is no IOMMU: for tests (pci_options::without_iommu)";
  if (of.asks_kernel) of.why += "; the kernel's driver has it, and nobody uses its disks: pci_options::from_kernel";
}

}  // namespace

std::vector<pci_facts> find_pci_controllers(const pci_tree& tree) {
  std::vector<pci_facts> found;
  const std::vector<mounted> mounts = mounts_of(tree);
  const std::vector<std::string> swaps = swaps_of(tree);
  const fs::path devices = fs::path(tree.sys) / "bus/pci/devices";
  for (const std::string& address : names_in(devices)) {
    const fs::path here = devices / address;
    if (text_of(here / "class") != "0x010802") continue;  // mass storage, non-volatile memory, NVM Express
    pci_facts made;
    made.address = address;
    const auto number = [&](const char* name) {
      const std::string word = text_of(here / name);
      return word.rfind("0x", 0) == 0 ? word.substr(2) : word;
    };
    made.id = number("vendor") + ":" + number("device");
    made.driver = link_name(here / "driver");
    const std::string group = link_name(here / "iommu_group");
    if (!group.empty() && std::all_of(group.begin(), group.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      made.iommu_group = std::atoi(group.c_str());
    }
    for (const std::string& controller : names_in(here / "nvme")) {
      for (const std::string& name : names_in(here / "nvme" / controller)) {
        const std::string disk = disk_of(name);
        if (!disk.empty() && std::find(made.disks.begin(), made.disks.end(), disk) == made.disks.end()) made.disks.push_back(disk);
      }
    }
    for (const std::string& disk : made.disks) add_users(tree, disk, mounts, swaps, made.users);
    decide(tree, made);
    found.push_back(std::move(made));
  }
  return found;
}

}  // namespace gpufs::nvme
