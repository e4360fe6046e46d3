// SPDX-License-Identifier: Apache-2.0
// One controller of a machine that may be spoilt, a guest of QEMU say (in_guest.sh): takes it over, has the CPU machine's lanes
// read and write its first namespace as a model in memory does, and gives it back. in_guest ADDRESS [from_kernel] [without_iommu]
#include <cstdio>
#include <string>

#include "gpufs/nvme/pci_controller.hpp"
#include "nvme/rig.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

std::string address;
nvme::pci_options how;

TEST(nvme_in_guest, lanes_read_and_write_blocks_of_a_controller_that_is_taken_over) {
  constexpr std::uint32_t nlanes = 64, ncalls = 6, most_blocks = 40;
  nvme::pci_controller taken(simt::this_platform(), address, how);
  std::printf("taken by %s\n", taken.way() == nvme::pci_way::vfio ? "vfio" : "registers");
  nvme::controller driver(
      taken, simt::this_platform(),
      {.nqueues = 2, .depth = 24, .buffer_nbytes = 16384, .writable = true, .nhost_queues = 2, .admin_timeout_ns = patient_ns});
  std::printf("%s\n", driver.limits().model.c_str());
  const std::vector<nvme::namespace_facts> all = driver.namespaces();
  ASSERT_FALSE(all.empty());
  program what(7, nlanes, ncalls, 4096, 512, most_blocks);
  ASSERT_EQ(driver.write(all[0], 0, what.before), 0);
  std::vector<std::byte> bytes = what.bytes;
  EXPECT_EQ(play<simt::tile<8>>(driver.open(1), what.calls, nlanes, bytes), what.expected);
  EXPECT_TRUE(bytes == what.wanted) << "a read gave other bytes";
  std::vector<std::byte> image(what.image.size());
  ASSERT_EQ(driver.read(all[0], 0, image), 0);
  EXPECT_TRUE(image == what.image);
  driver.reset();
  ASSERT_EQ(driver.read(all[0], 0, image), 0);
  EXPECT_TRUE(image == what.image);
  EXPECT_EQ(driver.done().resets, 1u);
  for (std::uint32_t i = 0; i < driver.nqueues(); ++i) EXPECT_EQ(driver.queue(i).words().nunexpected, 0u);
}

TEST(nvme_in_guest, who_has_it_already_is_told) {
  const nvme::pci_controller taken(simt::this_platform(), address, how);
  if (taken.way() != nvme::pci_way::vfio) GTEST_SKIP() << "its registers have any number of owners";
  try {
    const nvme::pci_controller again(simt::this_platform(), address, how);
    ADD_FAILURE() << "it was taken twice";
  } catch (const std::system_error& refusal) {
    EXPECT_EQ(refusal.code().value(), EBUSY) << refusal.what();
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "from_kernel") {
      gpufs::test::how.from_kernel = true;
    } else if (word == "without_iommu") {
      gpufs::test::how.without_iommu = true;
    } else if (word == "list") {
      for (const auto& each : gpufs::nvme::find_pci_controllers())
        std::printf("%s %s %s: %s\n", each.address.c_str(), each.id.c_str(), each.driver.c_str(), each.why.c_str());
      return 0;
    } else {
      gpufs::test::address = word;
    }
  }
  return RUN_ALL_TESTS();
}
