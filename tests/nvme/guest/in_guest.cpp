// SPDX-License-Identifier: Apache-2.0
// What the guests run that guest.py makes (with_iommu.sh, without_iommu.sh), a test at a time: a controller of the machine is taken
// over, the CPU machine's lanes use it, and the kernel's own driver fills its disks before and reads them afterwards. They are
// spoilt.
//   in_guest ADDRESS [from_kernel] [without_iommu] [user=UID] [writes=N] [refused=ERRNO] [says=WORDS] --gtest_filter=...
#include <fcntl.h>
#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "file/script.hpp"
#include "gpufs/nvme/pci_controller.hpp"
#include "gpufs/store/ext4_store.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/rig.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct {
  std::string address;
  nvme::pci_options how;
  std::size_t nwrites = 0;  // of `writes` below, which kernels have made
  int refused = 0;
  std::string says;
} asked;

// A namespace's bytes are content(its number), with what kernels have written on top.
struct range {
  std::uint32_t nsid;
  std::uint64_t offset, nbytes, seed;
};
constexpr range writes[] = {{1, 77'777, 10'000, 9},
                            {1, 1 << 20, 65'536, 10},
                            {2, 4'095, 8'195, 11},
                            {2, (2 << 20) + 1, 4'096, 12},
                            {1, 3 << 20, 50'000, 13}};
constexpr std::size_t nwrites_of_one_program = 4;  // the others are of the one that is killed
constexpr std::uint64_t disk_nbytes = 4 << 20;

std::vector<std::byte> wanted(std::uint32_t nsid) {
  std::vector<std::byte> all = content(nsid, 0, disk_nbytes);
  for (std::size_t i = 0; i < asked.nwrites; ++i) {
    const std::vector<std::byte> bytes = content(writes[i].seed, 0, writes[i].nbytes);
    if (writes[i].nsid == nsid) std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(writes[i].offset));
  }
  return all;
}

std::shared_ptr<nvme::pci_controller> take() {
  return std::make_shared<nvme::pci_controller>(simt::this_platform(), asked.address, asked.how);
}
nvme::controller_options driver_options() {
  return {.nqueues = 4, .depth = 32, .writable = true, .nhost_queues = 2, .admin_timeout_ns = patient_ns};
}
mount_options small_cache(std::shared_ptr<store::store> files) {
  mount_options o;
  o.cache_nbytes = 64 * 4096;
  o.writable = true;
  o.custom_store = std::move(files);
  return o;
}

// --- What the kernel's own driver says -----------------------------------------------------------------------------------

class disk {
 public:
  explicit disk(std::uint32_t nsid) {
    for (const nvme::pci_facts& each : nvme::find_pci_controllers()) {
      if (each.address == asked.address && nsid <= each.disks.size()) path_ = "/dev/" + each.disks[nsid - 1];
    }
    fd_ = ::open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd_ < 0) fail_errno("open the disk '" + path_ + "'");
    if (posix_memalign(&memory_, 4096, disk_nbytes) != 0) throw std::bad_alloc();
  }
  ~disk() {
    ::close(fd_);
    std::free(memory_);
  }
  disk(const disk&) = delete;
  disk& operator=(const disk&) = delete;

  void write(const std::vector<std::byte>& all) const {
    std::memcpy(memory_, all.data(), all.size());
    if (::pwrite(fd_, memory_, all.size(), 0) != static_cast<ssize_t>(all.size())) fail_errno("write " + path_);
    if (::fsync(fd_) != 0) fail_errno("fsync " + path_);
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> all(disk_nbytes);
    if (::pread(fd_, memory_, all.size(), 0) != static_cast<ssize_t>(all.size())) fail_errno("read " + path_);
    std::memcpy(all.data(), memory_, all.size());
    return all;
  }

 private:
  std::string path_;
  int fd_ = -1;
  void* memory_ = nullptr;
};

TEST(guest_disk, is_filled) {
  for (const std::uint32_t nsid : {1, 2}) disk(nsid).write(wanted(nsid));
}

TEST(guest_disk, has_what_kernels_have_written_and_nothing_else_changed) {
  for (const std::uint32_t nsid : {1, 2}) EXPECT_TRUE(disk(nsid).read() == wanted(nsid)) << "namespace " << nsid;
}

// --- Blocks --------------------------------------------------------------------------------------------------------------

TEST(guest_blocks, lanes_read_and_write_them_by_several_queues) {
  constexpr std::uint32_t nlanes = 64, ncalls = 4, most_blocks = 6;
  const auto taken = take();
  EXPECT_EQ(taken->way(), asked.how.without_iommu ? nvme::pci_way::registers : nvme::pci_way::vfio);
  nvme::controller_options options = driver_options();
  options.buffer_nbytes = 16'384;
  nvme::controller driver(*taken, simt::this_platform(), options);
  EXPECT_EQ(driver.limits().model, "QEMU NVMe Ctrl");
  ASSERT_EQ(driver.nqueues(), 4u);
  const std::vector<nvme::namespace_facts> all = driver.namespaces();
  ASSERT_GE(all.size(), 2u);
  for (const std::uint32_t block_nbytes : {512u, 4096u}) {
    const nvme::namespace_facts& of = all[block_nbytes == 512 ? 0 : 1];
    SCOPED_TRACE(block_nbytes);
    EXPECT_EQ(of.block_nbytes, block_nbytes);
    const program what(7, nlanes, ncalls, 1024, block_nbytes, most_blocks);
    ASSERT_EQ(driver.write(of, 0, what.before), 0);
    std::vector<std::byte> bytes = what.bytes;
    EXPECT_EQ(play<simt::tile<8>>(driver.open(of.nsid), what.calls, nlanes, bytes), what.expected);
    EXPECT_TRUE(bytes == what.wanted) << "a read gave other bytes";
    std::vector<std::byte> image(what.image.size());
    ASSERT_EQ(driver.read(of, 0, image), 0);
    EXPECT_TRUE(image == what.image);
    driver.reset();
    ASSERT_EQ(driver.read(of, 0, image), 0);
    EXPECT_TRUE(image == what.image);
  }
  EXPECT_EQ(driver.done().resets, 2u);
  for (std::uint32_t i = 0; i < driver.nqueues(); ++i) EXPECT_EQ(driver.queue(i).words().nunexpected, 0u);
}

TEST(guest_blocks, memory_that_is_unmapped_makes_room) {
  const auto taken = take();
  const nvme::pinned_memory first(simt::this_platform(), 1 << 20), second(simt::this_platform(), 1 << 20);
  const std::vector<std::uint64_t> pages = taken->map(first.data(), first.nbytes());
  taken->unmap(first.data());
  EXPECT_EQ(taken->map(second.data(), second.nbytes()), pages);
  taken->unmap(second.data());
}

// --- Files, through store and page cache ---------------------------------------------------------------------------------

void expect_namespaces(const mount& fs) {
  players groups(fs.ref(), {.grid = 2, .block = 64, .all = group_kind::warp});
  for (const std::uint32_t nsid : {1, 2}) {
    const std::vector<std::byte> all = wanted(nsid);
    // Each group another part, which begins and ends amid blocks.
    const std::uint64_t share = disk_nbytes / groups.size();
    std::vector<script> scripts(groups.size());
    for (std::size_t g = 0; g < scripts.size(); ++g) {
      scripts[g].open(0, numbered("n", nsid), O_RDONLY);
      scripts[g].pread(0, 600'000, static_cast<std::int64_t>(g * share + 1'234));
      scripts[g].close(0);
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < scripts.size(); ++g) {
      ASSERT_EQ(got[g][1].value, 600'000) << "group " << g;
      EXPECT_TRUE(
          std::equal(got[g][1].bytes.begin(), got[g][1].bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(g * share + 1'234)))
          << "namespace " << nsid << ", group " << g;
    }
  }
}

TEST(guest_files, are_read_as_the_disks_were_written) {
  const auto files = std::make_shared<store::nvme_store>(simt::this_platform(), take(), driver_options());
  const mount fs("", small_cache(files));
  expect_namespaces(fs);
  EXPECT_EQ(fs.counters().host_reads, 0u);
  EXPECT_EQ(files->recovered().resets + files->recovered().aborts, 0u);
}

void write_and_sync(players& warp, std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    const std::vector<std::byte> bytes = content(writes[i].seed, 0, writes[i].nbytes);
    script s;
    const auto opened = s.open(0, numbered("n", writes[i].nsid), O_RDWR);
    const auto written = s.pwrite(0, bytes, static_cast<std::int64_t>(writes[i].offset));
    const auto synced = s.fsync(0);
    s.close(0);
    const auto got = warp.run(s);
    ASSERT_GE(got[opened].value, 0) << i;
    ASSERT_EQ(got[written].value, static_cast<std::int64_t>(bytes.size())) << i;
    ASSERT_EQ(got[synced].value, 0) << i;
  }
}

TEST(guest_files, are_written_and_synced) {
  const mount fs("", small_cache(std::make_shared<store::nvme_store>(simt::this_platform(), take(), driver_options())));
  players warp(fs.ref(), {});
  write_and_sync(warp, 0, nwrites_of_one_program);
  asked.nwrites = nwrites_of_one_program;
  expect_namespaces(fs);
}

// Killed by with_iommu.sh while commands are under way.
TEST(guest_files, are_read_until_the_program_is_killed) {
  const mount fs("", small_cache(std::make_shared<store::nvme_store>(simt::this_platform(), take(), driver_options())));
  players warp(fs.ref(), {});
  write_and_sync(warp, nwrites_of_one_program, std::size(writes));
  asked.nwrites = std::size(writes);
  std::puts("GUEST: all is synced");
  std::fflush(stdout);
  while (!HasFailure()) expect_namespaces(fs);
}

// The kernel resets the function in the midst of reads: what was on the way ends with an error or comes after all, and no byte is
// wrong.
TEST(guest_files, are_right_or_an_error_while_the_function_is_reset) {
  const auto files = std::make_shared<store::nvme_store>(simt::this_platform(), take(), driver_options());
  mount_options o = small_cache(files);
  o.io_timeout = std::chrono::seconds(2);
  const mount fs("", o);
  players warp(fs.ref(), {});
  const std::vector<std::byte> all = wanted(1);
  script first;
  first.open(0, "n1", O_RDONLY);
  EXPECT_GE(warp.run(first)[0].value, 0);
  std::atomic<int> told{-1};
  std::thread resetter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    told = nvme::pci_tree().write("/sys/bus/pci/devices/" + asked.address + "/reset", "1");
  });
  std::uint64_t at = 0;
  std::int64_t value = 0;
  int nerrors = 0;
  const auto read_on = [&] {
    at = (at + 1'000'003) % (disk_nbytes - 100'000);
    script s;
    s.pread(0, 100'000, static_cast<std::int64_t>(at));
    const auto got = warp.run(s);
    value = got[0].value;
    nerrors += value < 0;
    EXPECT_TRUE(value == 100'000 || value == -ENODEV || value == -ETIMEDOUT || value == -EIO) << value;
    const std::size_t n = value < 0 ? 0 : static_cast<std::size_t>(value);
    EXPECT_TRUE(std::equal(got[0].bytes.begin(), got[0].bytes.begin() + static_cast<std::ptrdiff_t>(n),
                           all.begin() + static_cast<std::ptrdiff_t>(at)));
  };
  while (told == -1) read_on();
  resetter.join();
  EXPECT_EQ(told, 0);
  const simt::deadline until(patient_ns);
  do {
    read_on();
  } while (value < 0 && !files->recovered().lost && !until.expired());
  std::printf("%d reads failed; %llu resets, %s\n", nerrors, static_cast<unsigned long long>(files->recovered().resets),
              files->recovered().lost ? "lost" : "not lost");
  EXPECT_TRUE(value == 100'000 || (value == -ENODEV && files->recovered().lost)) << value;
  EXPECT_TRUE(files->recovered().resets != 0 || files->recovered().lost) << "the reset was not noticed";
  script last;
  last.close(0);
  warp.run(last);
}

// guest.py has QEMU unplug the device as soon as the console says so. The kernel lets no device go that vfio has given away, so
// until this ends all goes on.
TEST(guest_files, are_read_while_the_device_is_being_unplugged) {
  const mount fs("", small_cache(std::make_shared<store::nvme_store>(simt::this_platform(), take(), driver_options())));
  players warp(fs.ref(), {});
  const simt::deadline until(3'000'000'000);
  std::ofstream("/dev/console") << "GUEST: unplug" << std::endl;
  for (std::uint64_t at = 0; !until.expired(); at = (at + 1'000'003) % (disk_nbytes - 100'000)) {
    script s;
    s.open(0, "n1", O_RDONLY);
    const auto read = s.pread(0, 100'000, static_cast<std::int64_t>(at));
    s.close(0);
    const auto got = warp.run(s);
    ASSERT_EQ(got[read].value, 100'000);
    EXPECT_EQ(std::count(got[read].bytes.begin(), got[read].bytes.end(), std::byte{0}), 100'000) << "it was never written";
  }
}

// Of a file system that mke2fs has made on the host's side, and whose file `big` guest.py has put beside this program, too.
TEST(guest_files, of_an_ext4_partition_are_read) {
  std::ifstream file("/wanted/big", std::ios::binary);
  const std::string big((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(big.size(), 1'000'000u);
  nvme::controller_options options = driver_options();
  options.writable = false;
  const auto namespaces = std::make_shared<store::nvme_store>(simt::this_platform(), take(), options);
  mount_options o = small_cache(store::make_ext4_store(simt::this_platform(), namespaces, {.file = "n1p1"}));
  o.writable = false;
  const mount fs("", o);
  players warp(fs.ref(), {});
  script s;
  const auto opened = s.open(0, "folder/big");
  const auto read = s.pread(0, big.size(), 0);
  s.close(0);
  const auto got = warp.run(s);
  ASSERT_GE(got[opened].value, 0);
  ASSERT_EQ(got[read].value, static_cast<std::int64_t>(big.size()));
  EXPECT_EQ(std::memcmp(got[read].bytes.data(), big.data(), big.size()), 0);
  EXPECT_EQ(fs.counters().host_reads, 0u);
}

// --- Refusals ------------------------------------------------------------------------------------------------------------

void expect_refused(int error, const std::string& says) {
  try {
    const store::nvme_store files(simt::this_platform(), take(), driver_options());
    ADD_FAILURE() << "it was not refused";
  } catch (const std::system_error& refusal) {
    std::printf("%s\n", refusal.what());
    EXPECT_EQ(refusal.code().value(), error) << refusal.what();
    EXPECT_NE(std::string(refusal.what()).find(says), std::string::npos) << refusal.what();
  }
}

TEST(guest_refusal, is_as_told) {
  ASSERT_NE(asked.refused, 0);
  expect_refused(asked.refused, asked.says);
}

TEST(guest_refusal, is_that_of_who_comes_second) {
  const auto taken = take();
  expect_refused(EBUSY, "another process has its IOMMU group");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto& asked = gpufs::test::asked;
  constexpr std::pair<const char*, int> errors[] = {{"EBUSY", EBUSY},   {"EACCES", EACCES},         {"ENOMEM", ENOMEM},
                                                    {"ENOSPC", ENOSPC}, {"EOPNOTSUPP", EOPNOTSUPP}, {"EPERM", EPERM}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = word.substr(word.find('=') + 1);
    if (word == "from_kernel") {
      asked.how.from_kernel = true;
    } else if (word == "without_iommu") {
      asked.how.without_iommu = true;
    } else if (word.rfind("user=", 0) == 0) {
      const auto user = static_cast<uid_t>(std::stoul(value));
      if (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0) return std::perror("setuid"), 2;
    } else if (word.rfind("writes=", 0) == 0) {
      asked.nwrites = std::stoul(value);
    } else if (word.rfind("refused=", 0) == 0) {
      for (const auto& [name, error] : errors) asked.refused = value == name ? error : asked.refused;
    } else if (word.rfind("says=", 0) == 0) {
      asked.says = value;
    } else {
      asked.address = word;
    }
  }
  const int failed = RUN_ALL_TESTS();
  // A filter that names no test, or a test that was skipped, is no pass.
  return failed != 0 || testing::UnitTest::GetInstance()->successful_test_count() != 1;
}
