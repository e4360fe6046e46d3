// SPDX-License-Identifier: Apache-2.0
// NVMe controllers on this machine's PCI bus: which there are, whether they can be taken over and why not; and one that is taken
// over, by vfio-pci, or by its registers in sysfs where there is no IOMMU. The host only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/nvme/controller_access.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::nvme {

// Where the kernel tells of devices, and is told.
class pci_tree {
 public:
  explicit pci_tree(std::string sys_at = "/sys", std::string proc_at = "/proc", std::string dev_at = "/dev")
      : sys(std::move(sys_at)), proc(std::move(proc_at)), dev(std::move(dev_at)) {}
  virtual ~pci_tree() = default;
  // Writes words to a file of sysfs. 0 or -errno.
  virtual int write(const std::string& path, const std::string& words);

  const std::string sys, proc, dev;
};

enum class pci_way {
  vfio,       // through the IOMMU: the controller reaches the memory that it is given, and no other
  registers,  // there is no IOMMU: it reaches all memory, so that a mistake of whoever drives it may overwrite any. For tests
  none,
};

struct pci_facts {
  std::string address;  // 0000:01:00.0
  std::string id;       // vendor:device, 144d:a80a
  std::string driver;   // of the kernel's; empty: none
  int iommu_group = -1;
  std::vector<std::string> disks;  // that the kernel made of its namespaces: nvme0n1
  std::vector<std::string> users;  // who has them: "nvme0n1p2 is mounted at /home"
  pci_way way = pci_way::none;     // how it can be taken over
  bool asks_kernel = false;        // only with pci_options::from_kernel, as the kernel's driver has it
  std::string why;                 // it cannot, and what helps; or what that takes
};

// By address. What cannot be read is taken for not there. Never throws but std::bad_alloc.
std::vector<pci_facts> find_pci_controllers(const pci_tree& tree = pci_tree());

struct pci_options {
  bool from_kernel = false;    // take it from the kernel's driver, which gets it back at the end
  bool without_iommu = false;  // by its registers, where there is no IOMMU
};

// A controller that is taken over, until this ends: then the driver that had it gets it back. It is handed to nvme_store, or to
// who drives it, and sends no command by itself. One owner: others are refused by the kernel (vfio), or not noticed (registers).
class pci_controller final : public controller_access {
 public:
  // Throws std::system_error, whose words say what is wrong and what helps; then all is as before. ENODEV, no such controller;
  // EBUSY, the kernel's driver has it and options do not say from_kernel, or a file system, swap or another device uses it;
  // EPERM or EACCES, this process may not; EOPNOTSUPP, there is no way; EIO, the kernel refuses a step. machine: whose kernels ring
  // its doorbells.
  pci_controller(simt::platform& machine, const std::string& address, const pci_options& options = {},
                 std::shared_ptr<pci_tree> tree = std::make_shared<pci_tree>());
  ~pci_controller() override;

  std::uint32_t read32(std::uint32_t offset) override;
  void write32(std::uint32_t offset, std::uint32_t value) override;
  std::uint32_t* doorbell(std::uint32_t offset) override;
  std::vector<std::uint64_t> map(std::byte* memory, std::size_t nbytes) override;
  void unmap(std::byte* memory) noexcept override;
  std::string name() const override;
  pci_way way() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace gpufs::nvme
