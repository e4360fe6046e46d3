// SPDX-License-Identifier: Apache-2.0
// How the host and kernels reach one NVMe controller, and how it reaches memory: what differs between a device behind vfio, a
// machine's emulator and a controller in software.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpufs::nvme {

// Its owner is the only one who uses the controller. One thread calls at a time; map and unmap may be called beside that, by any.
class controller_access {
 public:
  virtual ~controller_access() = default;
  controller_access(const controller_access&) = delete;
  controller_access& operator=(const controller_access&) = delete;

  // Registers, by their offset in BAR0. A read of a device that is gone gives all ones. Writes come to the device in order, and
  // after what the caller has written to memory before. So do they after the doorbells that lanes have stored before: one that
  // came later than a reset would be taken for one of the queues made since.
  virtual std::uint32_t read32(std::uint32_t offset) = 0;
  virtual void write32(std::uint32_t offset, std::uint32_t value) = 0;
  // Where lanes store the doorbell at this offset. It stays valid.
  virtual std::uint32_t* doorbell(std::uint32_t offset) = 0;

  // Lets the controller read and write these bytes of pinned host memory, whole pages of 4 KiB that begin one. Returns each page's
  // address on the bus. Throws std::system_error: no room in the IOMMU, say.
  virtual std::vector<std::uint64_t> map(std::byte* memory, std::size_t nbytes) = 0;
  virtual void unmap(std::byte* memory) noexcept = 0;

  virtual std::string name() const = 0;  // for messages

 protected:
  controller_access() = default;
};

}  // namespace gpufs::nvme
