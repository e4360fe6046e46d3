// SPDX-License-Identifier: Apache-2.0
// The CPU machine's lanes against a controller that is not ours: QEMU's. Skipped where QEMU is not installed.
#include "ext4_image.hpp"
#include "file/script.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/qemu_controller.hpp"
#include "nvme/rig.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

class nvme_qemu : public testing::Test {
 protected:
  static constexpr std::uint64_t nblocks = 8192;

  void SetUp() override {
    if (!qemu_controller::is_there()) GTEST_SKIP() << "qemu-system-x86_64 is not installed";
    write_image(content(1, 0, nblocks * 512));
  }
  void write_image(const std::vector<std::byte>& bytes) const {
    std::ofstream(path(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::string path() const { return dir_.path() + "/image"; }
  std::shared_ptr<qemu_controller> start() const { return std::make_shared<qemu_controller>("file=" + path()); }

  const temp_dir dir_;
};

TEST_F(nvme_qemu, lanes_read_and_write_blocks_as_a_model_in_memory_has_them) {
  constexpr std::uint32_t nlanes = 64, ncalls = 6, most_blocks = 60;
  program what(7, nlanes, ncalls, nblocks, 512, most_blocks);
  write_image(what.before);
  const auto qemu = start();
  {
    // Large commands have lists; queues of 24 slots wrap.
    nvme::controller driver(*qemu, simt::this_platform(), {.nqueues = 3, .depth = 24, .buffer_nbytes = 16384, .writable = true});
    EXPECT_EQ(driver.limits().model, "QEMU NVMe Ctrl");
    EXPECT_EQ(driver.limits().nqueues, 3u);
    const nvme::namespace_layout* space = driver.open(1);
    std::vector<std::byte> bytes = what.bytes;
    EXPECT_EQ(play<simt::tile<8>>(space, what.calls, nlanes, bytes), what.expected);
    EXPECT_TRUE(bytes == what.wanted) << "a read gave other bytes";
    const std::vector<block_call> flushes(32, block_call{.what = block_op::flush});
    EXPECT_EQ(play<simt::warp>(space, flushes, 32, bytes), std::vector<std::int64_t>(32));
    for (std::uint32_t i = 0; i < driver.nqueues(); ++i) EXPECT_EQ(driver.queue(i).words().nunexpected, 0u);
    EXPECT_EQ(driver.done().resets + driver.done().deletions + driver.done().aborts, 0u);
  }
  EXPECT_EQ(qemu->nmapped(), 0u);
  EXPECT_TRUE(dir_.read("image") == what.image);
}

// Doorbells are long on their way: one that came after a reset would have stale commands executed, and wrong blocks delivered.
TEST_F(nvme_qemu, lanes_get_their_blocks_while_it_is_reset) {
  constexpr std::uint32_t nlanes = 64, ncalls = 8;
  const auto qemu = start();
  qemu->delay_bells(std::chrono::microseconds(500));
  nvme::controller driver(*qemu, simt::this_platform(),
                          {.nqueues = 2, .depth = 16, .inside_wait_ns = 20'000'000'000, .look_every_ns = 500'000});
  const nvme::namespace_layout* space = driver.open(1);
  std::vector<block_call> calls(nlanes * ncalls);
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i] = {.what = block_op::read, .nblocks = 2, .lba = random() % (nblocks - 2), .data = i * 1024};
  }
  std::vector<std::byte> bytes(calls.size() * 1024);
  std::thread resetter([&] {
    for (int i = 0; i < 4; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      driver.reset();
    }
  });
  EXPECT_EQ(play<simt::warp>(space, calls, nlanes, bytes), std::vector<std::int64_t>(calls.size(), 1024));
  resetter.join();
  EXPECT_EQ(driver.done().resets, 4u);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto wanted = content(1, calls[i].lba * 512, 1024);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i * 1024))) << i;
  }
}

TEST_F(nvme_qemu, its_namespace_is_a_file_that_kernels_read_and_the_host_writes) {
  const auto qemu = start();
  const auto files =
      std::make_shared<store::nvme_store>(simt::this_platform(), qemu, nvme::controller_options{.nqueues = 2, .writable = true});
  mount_options o;
  o.cache_nbytes = 64 * 4096;
  o.custom_store = files;
  o.writable = true;
  auto wanted = content(1, 0, nblocks * 512);
  {
    const mount fs("", o);
    players groups(fs.ref(), {.grid = 2, .block = 64, .all = group_kind::warp});
    script s;
    s.open(0, "n1", O_RDONLY);
    const auto read = s.pread(0, 1 << 20, 12345);
    s.close(0);
    for (const auto& got : groups.run(std::vector<script>(groups.size(), s))) {
      ASSERT_EQ(got[read].value, 1 << 20);
      EXPECT_EQ(wrong_bytes(got[read], 1 << 20, 1, 12345), 0u);
    }
    EXPECT_EQ(fs.counters().host_reads, 0u);
    players warp(fs.ref(), {});
    script w;
    w.open(0, "n1", O_RDWR);
    const auto bytes = content(9, 0, 10'000);
    w.pwrite(0, bytes, 77'777);
    const auto synced = w.fsync(0);
    w.close(0);
    EXPECT_EQ(warp.run(w)[synced].value, 0);
    std::copy(bytes.begin(), bytes.end(), wanted.begin() + 77'777);
  }
  EXPECT_TRUE(dir_.read("image") == wanted);
}

TEST_F(nvme_qemu, files_of_its_ext4_file_system_are_read) {
  if (const std::string why = no_ext4(); !why.empty()) GTEST_SKIP() << why;
  const ext4_image image;
  const std::vector<std::byte> combed = image.add_combed("combed", 200);
  image.make("-t ext4 -b 1024", 4 << 10);
  const auto qemu = std::make_shared<qemu_controller>("file=" + image.path());
  mount_options o;
  o.cache_nbytes = 64 * 4096;
  o.custom_store = store::make_ext4_store(simt::this_platform(), std::make_unique<store::nvme_store>(simt::this_platform(), qemu));
  const mount fs("", o);
  players warp(fs.ref(), {});
  script s;
  s.open(0, "combed");
  const auto read = s.pread(0, combed.size(), 0);
  s.close(0);
  EXPECT_TRUE(warp.run(s)[read].bytes == combed);
  EXPECT_EQ(fs.counters().host_reads, 0u);
}

// By QEMU's block layer: reads of sector 2048 fail, each time.
TEST_F(nvme_qemu, a_sector_that_cannot_be_read_is_an_error_of_who_reads_it) {
  std::ofstream(dir_.path() + "/faults") << "[inject-error]\nevent = \"read_aio\"\nerrno = \"5\"\nsector = \"2048\"\n";
  const auto qemu = std::make_shared<qemu_controller>("file=blkdebug:" + dir_.path() + "/faults:" + path());
  mount_options o;
  o.cache_nbytes = 64 * 4096;
  o.custom_store = std::make_shared<store::nvme_store>(simt::this_platform(), qemu);
  const mount fs("", o);
  players warp(fs.ref(), {});
  script s;
  s.open(0, "n1", O_RDONLY);
  const auto before = s.pread(0, 4096, 2040 * 512), bad = s.pread(0, 10, 2048 * 512 + 5), behind = s.pread(0, 4096, 2056 * 512);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[before].value, 4096);
  EXPECT_EQ(got[bad].value, -EIO);
  EXPECT_EQ(got[behind].value, 4096);
  EXPECT_EQ(fs.counters().errors, 1u);
}

TEST_F(nvme_qemu, that_is_killed_is_a_device_that_is_gone) {
  const auto qemu = start();
  mount_options o;
  o.cache_nbytes = 64 * 4096;
  const auto files = std::make_shared<store::nvme_store>(simt::this_platform(), qemu);
  o.custom_store = files;
  const mount fs("", o);
  players warp(fs.ref(), {});
  script s;
  s.open(0, "n1", O_RDONLY);
  s.pread(0, 4096, 0);
  EXPECT_EQ(warp.run(s)[1].value, 4096);
  qemu->kill();
  script then;
  const auto read = then.pread(0, 4096, 40'960);
  then.close(0);
  EXPECT_EQ(warp.run(then)[read].value, -ENODEV);
  EXPECT_TRUE(files->recovered().lost);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
