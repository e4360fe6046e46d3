// SPDX-License-Identifier: Apache-2.0
// A controller that is taken over: by vfio-pci (Linux, Documentation/driver-api/vfio.rst), or by its registers.
#include "gpufs/nvme/pci_controller.hpp"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>

#include "../simt/unique_fd.hpp"
#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/atomic.hpp"
#include "registers.hpp"

namespace gpufs::nvme {

namespace {

// Of the PCI configuration space: the command register, and what it must allow.
constexpr off_t command_register = 4;
constexpr std::uint16_t memory_space = 2, bus_master = 4;
// Addresses on the bus behind an IOMMU: where machines have memory, and so no registers of a device, which a bridge would lead to.
constexpr std::uint64_t first_address = 16 << 20, end_address = std::uint64_t{2} << 30;

}  // namespace

struct pci_controller::state {
  state(simt::platform& on, const std::string& which, const pci_options& options, std::shared_ptr<pci_tree> from)
      : machine(on), tree(std::move(from)), address(which) {
    const std::vector<pci_facts> all = find_pci_controllers(*tree);
    const auto found = std::find_if(all.begin(), all.end(), [&](const pci_facts& each) { return each.address == which; });
    if (found == all.end()) {
      std::string known;
      for (const pci_facts& each : all) known += " " + each.address;
      refuse(ENODEV, "it is no NVMe controller of this machine" + (known.empty() ? "; there is none" : "; here are:" + known));
    }
    before = *found;
    if (before.way == pci_way::none) refuse(before.users.empty() ? EOPNOTSUPP : EBUSY, before.why);
    if (before.asks_kernel && !options.from_kernel)
      refuse(EBUSY, "the kernel's driver has it, as " + disks() + ": unbind it, or take it by pci_options::from_kernel");
    if (before.way == pci_way::registers && !options.without_iommu)
      refuse(EOPNOTSUPP,
             "there is no IOMMU, so that it reaches all memory: switch the IOMMU on, or, for tests, say "
             "pci_options::without_iommu");
    try {
      take_from_kernel();
      if (before.way == pci_way::vfio) {
        open_vfio();
      } else {
        open_registers();
      }
      reach_doorbells();
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~state() { give_back(); }

  [[noreturn]] void refuse(int error, const std::string& why) const {
    throw std::system_error(error, std::generic_category(), "gpufs: the NVMe controller " + address + ": " + why);
  }
  std::string disks() const {
    std::string all;
    for (const std::string& each : before.disks) all += (all.empty() ? "" : ", ") + each;
    return all.empty() ? "a controller without disks" : all;
  }
  std::string device_path(const char* name) const { return tree->sys + "/bus/pci/devices/" + address + "/" + name; }
  std::string bus_path(const char* name) const { return tree->sys + "/bus/pci/" + name; }
  std::string driver() const {
    char to[4096];
    const ssize_t n = ::readlink(device_path("driver").c_str(), to, sizeof to);
    const std::string path(to, n < 0 ? 0 : static_cast<std::size_t>(n));
    return path.substr(path.rfind('/') + 1);
  }
  void tell(const std::string& path, const std::string& words, const char* what) const {
    const int error = tree->write(path, words);
    if (error != 0)
      refuse(error == -EACCES || error == -EPERM ? EPERM : EIO,
             std::string("the kernel refuses to ") + what + " (" + std::strerror(-error) + "): it takes root");
  }

  void take_from_kernel() {
    if (before.asks_kernel) {
      // Nobody opens a disk for himself alone between the look and the end of the driver.
      std::vector<unique_fd> held;
      for (const std::string& disk : before.disks) {
        held.emplace_back(::open((tree->dev + "/" + disk).c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
        if (held.back().get() < 0 && errno == EBUSY) refuse(EBUSY, disk + " is in use");
      }
      tell(device_path("driver/unbind"), address, "take it from its driver");
      is_taken = true;
    }
    if (before.way == pci_way::vfio && driver() != "vfio-pci") {
      is_bound = true;
      tell(device_path("driver_override"), "vfio-pci", "keep it for vfio-pci");
      tell(bus_path("drivers_probe"), address, "bind it to vfio-pci");
      if (driver() != "vfio-pci") refuse(EOPNOTSUPP, "vfio-pci does not take it: is the module there? (modprobe vfio-pci)");
    }
  }

  void open_vfio() {
    const std::string group_path = tree->dev + "/vfio/" + std::to_string(before.iommu_group);
    container = unique_fd(::open((tree->dev + "/vfio/vfio").c_str(), O_RDWR | O_CLOEXEC));
    if (container.get() < 0) refuse(errno, "cannot open " + tree->dev + "/vfio/vfio: is the module vfio there, and may this user?");
    if (::ioctl(container.get(), VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
        ::ioctl(container.get(), VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
      refuse(EOPNOTSUPP, "this kernel's vfio lacks the type 1 IOMMU: modprobe vfio_iommu_type1");
    group = unique_fd(::open(group_path.c_str(), O_RDWR | O_CLOEXEC));
    if (group.get() < 0)
      refuse(errno, errno == EBUSY ? "another process has its IOMMU group" : "cannot open " + group_path + ": may this user?");
    vfio_group_status status{};
    status.argsz = sizeof status;
    if (::ioctl(group.get(), VFIO_GROUP_GET_STATUS, &status) != 0 || (status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0)
      refuse(EBUSY, "its IOMMU group has devices that other drivers have: bind all of them to vfio-pci");
    int container_of_group = container.get();
    if (::ioctl(group.get(), VFIO_GROUP_SET_CONTAINER, &container_of_group) != 0) refuse(errno, "its group takes no container");
    if (::ioctl(container.get(), VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0) refuse(errno, "the IOMMU is not given");
    device = unique_fd(::ioctl(group.get(), VFIO_GROUP_GET_DEVICE_FD, address.c_str()));
    if (device.get() < 0) refuse(errno, "vfio does not give it");
    const vfio_region_info bar = region(VFIO_PCI_BAR0_REGION_INDEX), config = region(VFIO_PCI_CONFIG_REGION_INDEX);
    set_command(device.get(), static_cast<off_t>(config.offset) + command_register);
    map_registers(device.get(), static_cast<off_t>(bar.offset), bar.size);
  }
  vfio_region_info region(std::uint32_t index) const {
    vfio_region_info info{};
    info.argsz = sizeof info;
    info.index = index;
    if (::ioctl(device.get(), VFIO_DEVICE_GET_REGION_INFO, &info) != 0) refuse(errno, "vfio does not say where its registers are");
    return info;
  }

  void open_registers() {
    is_enabled = true;
    tell(device_path("enable"), "1", "enable it");
    config_ = unique_fd(::open(device_path("config").c_str(), O_RDWR | O_CLOEXEC));
    if (config_.get() < 0) refuse(errno, "cannot open its configuration: it takes root");
    set_command(config_.get(), command_register);
    const unique_fd bar(::open(device_path("resource0").c_str(), O_RDWR | O_SYNC | O_CLOEXEC));
    if (bar.get() < 0) refuse(errno, "cannot open its registers: it takes root, and a kernel that is not locked down");
    struct stat facts {};
    ::fstat(bar.get(), &facts);
    map_registers(bar.get(), 0, static_cast<std::uint64_t>(facts.st_size));
  }

  void set_command(int fd, off_t at) {
    if (::pread(fd, &old_command, sizeof old_command, at) != sizeof old_command) refuse(EIO, "its configuration cannot be read");
    knows_command = true;
    const std::uint16_t now = old_command | memory_space | bus_master;
    if (::pwrite(fd, &now, sizeof now, at) != sizeof now) refuse(EIO, "its configuration cannot be written");
  }
  void map_registers(int fd, off_t at, std::uint64_t n) {
    if (n < at::doorbells + bus_page_nbytes) refuse(EOPNOTSUPP, "its registers are too few for an NVMe controller");
    void* const mapped = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (mapped == MAP_FAILED) refuse(errno, "its registers cannot be mapped");
    registers = static_cast<std::byte*>(mapped);
    nbytes = n;
  }
  // For kernels.
  void reach_doorbells() {
    if (!machine.is_cuda()) {
      for_kernels = registers;
      return;
    }
    std::string why;
    for_kernels = static_cast<std::byte*>(machine.register_writable(registers, nbytes, &why));
    if (for_kernels == nullptr) refuse(EOPNOTSUPP, "the GPU does not reach its doorbells: " + why);
  }

  std::vector<std::uint64_t> map(std::byte* memory, std::size_t n) {
    const std::lock_guard lock(mutex);
    std::vector<std::uint64_t> pages;
    if (before.way == pci_way::registers) {
      if (::mlock(memory, n) != 0) refuse(errno, "its memory cannot be locked: raise RLIMIT_MEMLOCK");
      const unique_fd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
      for (std::size_t at = 0; at < n; at += bus_page_nbytes) {
        std::uint64_t entry = 0;
        const auto place = static_cast<off_t>((reinterpret_cast<std::uintptr_t>(memory) + at) / bus_page_nbytes * sizeof entry);
        const bool known = ::pread(map.get(), &entry, sizeof entry, place) == sizeof entry;
        const std::uint64_t frame = entry & ((std::uint64_t{1} << 55) - 1);
        if (!known || entry >> 63 == 0 || frame == 0) refuse(EPERM, "this process does not see where its memory is: it takes root");
        pages.push_back(frame * bus_page_nbytes);
      }
      mappings[memory] = {0, n};
      return pages;
    }
    std::uint64_t at = first_address;
    for (const auto& [begin, size] : used) {
      if (at + n <= begin) break;
      at = begin + size;
    }
    if (at + n > end_address) refuse(ENOSPC, "2 GiB of memory are mapped for it: ask for fewer queues, or less depth");
    vfio_iommu_type1_dma_map ask{};
    ask.argsz = sizeof ask;
    ask.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
    ask.vaddr = reinterpret_cast<std::uintptr_t>(memory);
    ask.iova = at;
    ask.size = n;
    if (::ioctl(container.get(), VFIO_IOMMU_MAP_DMA, &ask) != 0)
      refuse(errno, "the IOMMU does not map " + std::to_string(n) + " bytes" +
                        (errno == ENOMEM   ? ": raise RLIMIT_MEMLOCK"
                         : errno == ENOSPC ? ": ask for fewer queues, or raise dma_entry_limit of the module vfio_iommu_type1"
                                           : ""));
    used[at] = n;
    mappings[memory] = {at, n};
    for (std::size_t i = 0; i < n; i += bus_page_nbytes) pages.push_back(at + i);
    return pages;
  }
  void unmap(std::byte* memory) noexcept {
    const std::lock_guard lock(mutex);
    const auto found = mappings.find(memory);
    if (found == mappings.end()) return;
    const auto [at, n] = found->second;
    if (before.way == pci_way::registers) {
      ::munlock(memory, n);
    } else {
      vfio_iommu_type1_dma_unmap ask{};
      ask.argsz = sizeof ask;
      ask.iova = at;
      ask.size = n;
      if (::ioctl(container.get(), VFIO_IOMMU_UNMAP_DMA, &ask) != 0) warn("the IOMMU does not unmap");
      used.erase(at);
    }
    mappings.erase(found);
  }

  void warn(const std::string& what) const noexcept {
    std::fprintf(stderr, "gpufs: the NVMe controller %s: %s\n", address.c_str(), what.c_str());
  }
  // As it was found.
  void give_back() noexcept {
    if (registers != nullptr) {
      if (for_kernels != nullptr && machine.is_cuda()) machine.unregister(registers);
      ::munmap(registers, nbytes);
      registers = for_kernels = nullptr;
    }
    if (config_.get() >= 0 && knows_command &&
        ::pwrite(config_.get(), &old_command, sizeof old_command, command_register) != sizeof old_command)
      warn("its configuration is not as before");
    config_ = unique_fd();
    device = unique_fd();  // vfio resets it
    group = unique_fd();
    container = unique_fd();
    const auto tell_again = [&](const std::string& path, const std::string& words) {
      if (const int error = tree->write(path, words); error != 0) warn(path + ": " + std::strerror(-error));
    };
    if (is_enabled) tell_again(device_path("enable"), "0");
    if (is_bound) {
      if (driver() == "vfio-pci") tell_again(device_path("driver/unbind"), address);
      tell_again(device_path("driver_override"), "\n");
    }
    if (is_taken) {
      tell_again(bus_path("drivers_probe"), address);
      if (driver() != before.driver) warn("the driver " + before.driver + " does not take it again");
    }
    is_enabled = is_bound = is_taken = false;
  }

  simt::platform& machine;
  std::shared_ptr<pci_tree> tree;
  std::string address;
  pci_facts before;
  bool is_taken = false, is_bound = false, is_enabled = false;  // from the kernel; to vfio-pci; by sysfs
  unique_fd container, group, device, config_;
  std::uint16_t old_command = 0;
  bool knows_command = false;
  std::byte* registers = nullptr;
  std::byte* for_kernels = nullptr;
  std::uint64_t nbytes = 0;
  std::mutex mutex;                             // of what follows
  std::map<std::uint64_t, std::uint64_t> used;  // addresses on the bus
  std::map<std::byte*, std::pair<std::uint64_t, std::size_t>> mappings;
};

pci_controller::pci_controller(simt::platform& machine, const std::string& address, const pci_options& options,
                               std::shared_ptr<pci_tree> tree)
    : state_(std::make_unique<state>(machine, address, options, std::move(tree))) {}
pci_controller::~pci_controller() = default;

std::uint32_t pci_controller::read32(std::uint32_t offset) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(state_->registers + offset)).load(std::memory_order_acquire);
}
void pci_controller::write32(std::uint32_t offset, std::uint32_t value) {
  // What the caller has written to memory comes before: its partner is the controller's read after it has seen the register.
  simt::fence(std::memory_order_seq_cst, simt::scope::system);
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(state_->registers + offset)).store(value, std::memory_order_release);
}
std::uint32_t* pci_controller::doorbell(std::uint32_t offset) {
  if (offset + sizeof(std::uint32_t) > state_->nbytes)
    state_->refuse(EOPNOTSUPP, "it has fewer doorbells than queues: ask for fewer queues");
  return reinterpret_cast<std::uint32_t*>(state_->for_kernels + offset);
}
std::vector<std::uint64_t> pci_controller::map(std::byte* memory, std::size_t nbytes) { return state_->map(memory, nbytes); }
void pci_controller::unmap(std::byte* memory) noexcept { state_->unmap(memory); }
std::string pci_controller::name() const { return state_->address; }
pci_way pci_controller::way() const { return state_->before.way; }

}  // namespace gpufs::nvme
