// SPDX-License-Identifier: Apache-2.0
// Drawn file systems (ext2, ext3, ext4), on drawn disks, are read by all kinds of groups: files have the bytes that were put in.
//   GPUFS_TEST_SEEDS, GPUFS_TEST_FIRST_SEED, GPUFS_TEST_SEED   as whole_test.cpp has them
#include "ext4_image.hpp"
#include "fuzz/nvme_disks.hpp"
#include "nvme/volumes.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct put_file {
  std::string path;
  std::vector<std::byte> bytes;
};

// Pieces of bytes and holes, neither of whole blocks.
put_file put_drawn(const ext4_image& image, const std::string& path, std::uint64_t id, random_source& draw) {
  put_file made{path, std::vector<std::byte>(draw.between(6000, draw.percent(30) ? 400'000 : 60'000))};
  const std::string in_tree = "tree/" + path;
  image.dir.add(in_tree, 0, 0);
  image.dir.resize(in_tree, made.bytes.size());
  const unsigned full = draw.percent(30) ? 100 : 60;
  const std::uint64_t longest = draw.percent(50) ? 5000 : made.bytes.size();
  for (std::uint64_t at = 0; at < made.bytes.size();) {
    const std::uint64_t n = std::min<std::uint64_t>(draw.between(1, longest), made.bytes.size() - at);
    if (draw.percent(full)) {
      image.dir.overwrite(in_tree, at, n, id);
      const auto bytes = content(id, at, n);
      std::copy(bytes.begin(), bytes.end(), made.bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
    at += n;
  }
  return made;
}

void read_drawn(std::uint64_t seed) {
  random_source draw(seed);
  const ext4_image image;
  std::vector<put_file> files;
  for (const char* path : {"a", "d/b", "d/e/c"}) {
    if (files.empty() || draw.percent(50)) files.push_back(put_drawn(image, path, draw.word(), draw));
  }
  const std::string kind = draw.pick(std::vector<std::string>{"ext2", "ext3", "ext4", "ext4", "ext4"});
  image.make("-t " + kind + " -b " + draw.pick(std::vector<std::string>{"1024", "2048", "4096"}), 8 << 10);

  std::vector<std::byte> bytes = image.dir.read("image");
  const fuzz::nvme_shape shape = fuzz::draw_shape(draw);
  SCOPED_TRACE(kind + " on " + shape.text());
  bytes.resize(shape.whole(bytes.size()));
  const fuzz::nvme_disks disks(shape, bytes, draw, [&](soft_options as) {
    as.seed = draw.word();
    return soft_disk(as);
  });
  const nvme::controller_options driver{.nqueues = static_cast<std::uint32_t>(draw.between(1, 3)),
                                        .depth = static_cast<std::uint32_t>(draw.between(4, 32)),
                                        .buffer_nbytes = static_cast<std::uint32_t>(4096 * draw.between(1, 3))};
  {
    mount_options o;
    o.page_nbytes = draw.pick(std::vector<std::uint32_t>{512, 4096, 4096, 16384});
    o.cache_nbytes = o.page_nbytes * draw.between(40, 80);
    o.max_open_files = 16;
    o.io_timeout = std::chrono::seconds(60);
    o.custom_store = store::make_ext4_store(
        simt::this_platform(),
        std::make_shared<store::nvme_store>(simt::this_platform(),
                                            store::nvme_store::controllers(disks.disks().begin(), disks.disks().end()), driver,
                                            disks.volumes()),
        {.file = disks.name()});
    const mount fs("", o);
    o.custom_store.reset();
    for (const put_file& each : files) {
      SCOPED_TRACE(each.path);
      expect_random_reads(fs, each.path.c_str(), each.bytes, seed);
      expect_pointers_and_rows(fs, each.path, each.bytes);
    }
    EXPECT_EQ(fs.counters().host_reads, 0u);
    EXPECT_EQ(fs.counters().fault_errors, 0u);
  }
  EXPECT_EQ(disks.wrong(), "");
  for (const auto& each : disks.disks()) EXPECT_EQ(each->violations(), std::vector<std::string>{});
}

TEST(fuzz_ext4, files_have_the_bytes_that_were_put_in) {
  if (const std::string why = no_ext4(); !why.empty()) GTEST_SKIP() << why;
  const seed_range seeds = seeds_to_run(fewer(60));
  for (std::uint64_t seed = seeds.first; seed < seeds.end; seed += 10) {  // one takes as long as ten programs
    read_drawn(seed);
    tell_progress("file systems", seeds, seed);
    ASSERT_FALSE(HasFailure()) << "repeat with GPUFS_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
