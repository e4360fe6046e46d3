// SPDX-License-Identifier: Apache-2.0
// Controllers on the PCI bus, as a tree of files tells that stands for the kernel: which may be taken over, what is said of the
// others, and that all is given back. A controller itself: guest/in_guest.cpp.
#include "gpufs/nvme/pci_controller.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "file/harness.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

namespace fs = std::filesystem;
using nvme::pci_controller;
using nvme::pci_facts;
using nvme::pci_options;
using nvme::pci_tree;
using nvme::pci_way;

constexpr const char* address = "0000:01:00.0";

// sysfs, /proc and /dev in a folder, and what the kernel does when it is told something.
class fake_tree final : public pci_tree {
 public:
  explicit fake_tree(const std::string& root) : pci_tree(root + "/sys", root + "/proc", root + "/dev") {}

  int write(const std::string& path, const std::string& words) override {
    if (refuses != 0 && path.find(refused) != std::string::npos) return -refuses;
    told.push_back(fs::path(path).filename().string() + "=" + words);
    const std::string name = fs::path(path).filename().string();
    if (name == "unbind") fs::remove(device() / "driver");
    if (name == "driver_override") override_ = words == "\n" ? "" : words;
    if (name == "drivers_probe" && (override_.empty() || has_vfio)) bind(override_.empty() ? "nvme" : override_);
    return 0;
  }

  fs::path device(const std::string& which = address) const { return fs::path(sys) / "bus/pci/devices" / which; }
  void put(const fs::path& path, const std::string& words) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << words;
  }
  void add_function(const std::string& which, const std::string& kind) const {
    put(device(which) / "class", kind + "\n");
    put(device(which) / "vendor", "0x144d\n");
    put(device(which) / "device", "0xa80a\n");
  }
  void bind(const std::string& driver, const std::string& which = address) const {
    fs::create_directories(fs::path(sys) / "bus/pci/drivers" / driver);
    fs::create_directory_symlink("../../drivers/" + driver, device(which) / "driver");
  }
  void set_group(int n, const std::string& which = address) const {
    const fs::path group = fs::path(sys) / "kernel/iommu_groups" / std::to_string(n);
    fs::create_directories(group / "devices");
    fs::create_directory_symlink(group, device(which) / "iommu_group");
    fs::create_directory_symlink(device(which), group / "devices" / which);
  }
  // A namespace with two partitions, by the kernel's driver.
  void add_disk(const std::string& as = "nvme0n1") const {
    fs::create_directories(device() / "nvme/nvme0" / as);
    const fs::path disk = fs::path(sys) / "class/block/nvme0n1";
    put(disk / "dev", "259:0\n");
    for (const char* part : {"1", "2"}) {
      put(disk / (std::string("nvme0n1p") + part) / "partition", part);
      put(disk / (std::string("nvme0n1p") + part) / "dev", std::string("259:") + part + "\n");
    }
    put(fs::path(dev) / "nvme0n1", "");
  }

  std::vector<std::string> told;
  int refuses = 0;
  std::string refused;
  bool has_vfio = true;

 private:
  std::string override_;
};

class pci : public testing::Test {
 protected:
  pci() { tree_->add_function(address, "0x010802"); }
  pci_facts only() const {
    const std::vector<pci_facts> all = nvme::find_pci_controllers(*tree_);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? pci_facts{} : all[0];
  }
  void expect_refused(int error, const char* says, const pci_options& options = {.from_kernel = true, .without_iommu = true}) {
    SCOPED_TRACE(says);
    try {
      const pci_controller taken(simt::cpu_platform(), address, options, tree_);
      ADD_FAILURE() << "it was taken";
    } catch (const std::system_error& refusal) {
      EXPECT_EQ(refusal.code().value(), error) << refusal.what();
      EXPECT_NE(std::string(refusal.what()).find(says), std::string::npos) << refusal.what();
      EXPECT_NE(std::string(refusal.what()).find(address), std::string::npos) << refusal.what();
    }
  }

  const temp_dir dir_;
  const std::shared_ptr<fake_tree> tree_ = std::make_shared<fake_tree>(dir_.path());
};

TEST_F(pci, controllers_are_found_by_their_class_with_what_is_known_of_them) {
  tree_->add_function("0000:02:00.0", "0x020000");
  tree_->bind("nvme");
  tree_->set_group(7);
  tree_->add_disk();
  const pci_facts found = only();
  EXPECT_EQ(found.address, address);
  EXPECT_EQ(found.id, "144d:a80a");
  EXPECT_EQ(found.driver, "nvme");
  EXPECT_EQ(found.iommu_group, 7);
  EXPECT_EQ(found.disks, std::vector<std::string>{"nvme0n1"});
  EXPECT_EQ(found.users, std::vector<std::string>{});
  EXPECT_EQ(found.way, pci_way::vfio);
  EXPECT_TRUE(found.asks_kernel);
  EXPECT_EQ(nvme::find_pci_controllers(pci_tree(dir_.path() + "/none")).size(), 0u);
}

TEST_F(pci, a_controller_that_is_in_use_is_never_taken) {
  struct {
    const char* file;
    const char* words;
    const char* says;
  } const uses[] = {
      {"/proc/1/mountinfo", "29 1 259:2 / /home\\040of\\040mine rw - ext4 /dev/nvme0n1p2 rw\n",
       "nvme0n1p2 is mounted at /home of mine"},
      {"/proc/self/mountinfo", "29 1 0:45 /@ /data rw shared:1 - btrfs /dev/nvme0n1 rw\n", "nvme0n1 is mounted at /data"},
      {"/proc/swaps", "Filename Type\n/dev/nvme0n1p1 partition 8 0 -2\n", "nvme0n1p1 is swap space"},
      {"/sys/class/block/nvme0n1/nvme0n1p2/holders/dm-0", "", "nvme0n1p2 is part of dm-0"},
  };
  tree_->bind("nvme");
  tree_->set_group(1);
  for (const char* disk : {"nvme0n1", "nvme0c3n1"}) {
    fs::remove_all(tree_->device() / "nvme");
    tree_->add_disk(disk);
    for (const auto& each : uses) {
      tree_->put(dir_.path() + each.file, each.words);
      EXPECT_EQ(only().users, std::vector<std::string>{each.says});
      EXPECT_EQ(only().way, pci_way::none);
      expect_refused(EBUSY, each.says);
      fs::remove(dir_.path() + each.file);
    }
  }
  EXPECT_EQ(only().users.size(), 0u);
  EXPECT_EQ(tree_->told, std::vector<std::string>{}) << "the kernel was told something";
  EXPECT_TRUE(fs::exists(tree_->device() / "driver"));
}

TEST_F(pci, what_else_keeps_a_controller_from_being_taken_is_said) {
  expect_refused(EOPNOTSUPP, "there is no IOMMU", {});
  tree_->bind("nvme");
  tree_->add_disk();
  expect_refused(EBUSY, "the kernel's driver has it, as nvme0n1", {.without_iommu = true});
  expect_refused(EOPNOTSUPP, "there is no IOMMU", {.from_kernel = true});
  tree_->refuses = EACCES;
  tree_->refused = "unbind";
  expect_refused(EPERM, "refuses to take it from its driver");
  tree_->set_group(3);
  tree_->add_function("0000:01:00.1", "0x020000");
  tree_->set_group(3, "0000:01:00.1");
  EXPECT_EQ(only().way, pci_way::vfio);
  tree_->bind("e1000e", "0000:01:00.1");
  expect_refused(EOPNOTSUPP, "0000:01:00.1 (e1000e)");
  fs::remove(tree_->device() / "driver");
  tree_->bind("other");
  fs::remove(tree_->device("0000:01:00.1") / "driver");
  expect_refused(EOPNOTSUPP, "the driver other has it");
  fs::remove_all(tree_->device());
  expect_refused(ENODEV, "there is none");
}

TEST_F(pci, one_that_vfio_does_not_give_is_given_back_to_its_driver) {
  tree_->bind("nvme");
  tree_->set_group(5);
  tree_->add_disk();
  expect_refused(ENOENT, "/dev/vfio/vfio");
  EXPECT_EQ(tree_->told, (std::vector<std::string>{"unbind=0000:01:00.0", "driver_override=vfio-pci", "drivers_probe=0000:01:00.0",
                                                   "unbind=0000:01:00.0", "driver_override=\n", "drivers_probe=0000:01:00.0"}));
  EXPECT_EQ(only().driver, "nvme");
  tree_->has_vfio = false;
  expect_refused(EOPNOTSUPP, "modprobe vfio-pci");
  EXPECT_EQ(only().driver, "nvme");
  tree_->put(dir_.path() + "/dev/vfio/vfio", "");
  tree_->has_vfio = true;
  expect_refused(EOPNOTSUPP, "vfio lacks");
  EXPECT_EQ(only().driver, "nvme");
}

// A file stands for the registers.
TEST_F(pci, one_without_an_iommu_is_reached_by_its_registers_and_given_back_as_it_was) {
  tree_->bind("nvme");
  tree_->add_disk();
  const std::string config("\x4d\x14\x0a\xa8\x01\x04\0\0", 8), registers = (tree_->device() / "resource0").string();
  tree_->put(tree_->device() / "config", config);
  tree_->put(registers, std::string(64, '\0'));
  expect_refused(EOPNOTSUPP, "its registers are too few");
  EXPECT_EQ(dir_.read(fs::relative(tree_->device() / "config", dir_.path()).string()).size(), 8u);
  EXPECT_EQ(only().driver, "nvme");
  tree_->told.clear();
  fs::resize_file(registers, 16384);
  const auto word_at = [](const fs::path& path, std::streamoff at) {
    std::uint32_t word = 0;
    std::ifstream(path, std::ios::binary).seekg(at).read(reinterpret_cast<char*>(&word), sizeof word);
    return word;
  };
  {
    pci_controller taken(simt::cpu_platform(), address, {.from_kernel = true, .without_iommu = true}, tree_);
    EXPECT_EQ(taken.way(), pci_way::registers);
    EXPECT_EQ(taken.name(), address);
    EXPECT_EQ(only().driver, "");
    EXPECT_EQ(word_at(tree_->device() / "config", 4) & 0xffff, 0x0407u) << "memory space and bus master, beside what was";
    taken.write32(0x14, 0x460001);
    EXPECT_EQ(word_at(registers, 0x14), 0x460001u);
    EXPECT_EQ(taken.read32(0x14), 0x460001u);
    *taken.doorbell(0x1008) = 5;
    EXPECT_EQ(taken.read32(0x1008), 5u);
    EXPECT_THROW(taken.doorbell(16384), std::system_error);
    // Addresses take root, and the right to see them.
    const std::size_t nbytes = 8192;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, nbytes));
    std::memset(memory, 1, nbytes);
    try {
      const std::vector<std::uint64_t> pages = taken.map(memory, nbytes);
      EXPECT_EQ(pages.size(), 2u);
      for (const std::uint64_t page : pages) EXPECT_EQ(page % 4096, 0u);
      taken.unmap(memory);
    } catch (const std::system_error& refusal) {
      EXPECT_EQ(refusal.code().value(), EPERM) << refusal.what();
    }
    std::free(memory);
  }
  EXPECT_EQ(tree_->told, (std::vector<std::string>{"unbind=0000:01:00.0", "enable=1", "enable=0", "drivers_probe=0000:01:00.0"}));
  EXPECT_EQ(only().driver, "nvme");
  EXPECT_EQ(word_at(tree_->device() / "config", 4) & 0xffff, 0x0401u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
