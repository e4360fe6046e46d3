// SPDX-License-Identifier: Apache-2.0
// Kernels may do anything to the mount's words in device memory. The host reads those that count and list, while it runs and when
// it ends: whatever they say, it does not crash, does not wait for ever, and writes no file that is not open for writing.
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t page = 512;

// Words of device memory (the CPU machine's is the host's), some of which become something else.
class garbler {
 public:
  explicit garbler(std::uint64_t seed) : draw_(seed) {}

  template <class T>
  void garble(T* first, std::size_t n) {
    auto* words = reinterpret_cast<std::uint32_t*>(first);
    const auto percent = static_cast<unsigned>(draw_.pick(std::vector<int>{0, 2, 30, 100}));
    for (std::size_t i = 0; i < n * sizeof(T) / 4; ++i) {
      if (!draw_.percent(percent)) continue;
      const std::uint32_t others[] = {static_cast<std::uint32_t>(draw_.between(0, ~std::uint32_t{0})), ~std::uint32_t{0},
                                      std::uint32_t{1} << 31, static_cast<std::uint32_t>(draw_.below(10)),
                                      words[i] ^ std::uint32_t{1} << draw_.below(32)};
      words[i] = others[draw_.below(std::size(others))];
    }
  }

  void garble(const mount_layout& l) {
    const cache::frame_storage& frames = l.cache.frames;
    garble(l.words, 1);
    auto& files = *reinterpret_cast<writable_block*>(l.files.blocks[0]);
    garble(files.slots, l.files.nslots);
    garble(files.calls, file_shards);
    garble(files.hits, hit_shards);
    garble(files.lists, l.files.nslots);
    garble(frames.states, frames.nframes);
    garble(frames.keys, frames.nframes);
    garble(l.cache.dirty.twins, frames.nframes);
    garble(l.cache.dirty.masks, std::size_t{frames.nframes} * page / 32);
    garble(l.cache.rings.rings, l.cache.rings.nrings);
    garble(l.pointers.faults, fault_records);
    garble(l.pointers.words, 1);
  }

 private:
  random_source draw_;
};

TEST(hostile_device, words_that_the_host_reads_may_be_anything) {
  for (std::uint64_t seed = 0; seed < (under_tsan ? 20 : fewer(200)); ++seed) {
    const temp_dir dir;
    for (const char* name : {"written", "read", "closed"}) dir.add(name, 6 * page, 1);
    {
      mount_options o;
      o.writable = true;
      o.page_nbytes = page;
      o.cache_nbytes = 16 * page;
      o.max_open_files = 8;
      o.store = store_kind::posix;
      mount m(dir.path(), o);
      players groups(m.ref(), {});
      script s;
      s.open(0, "written", O_RDWR);
      s.open(1, "read");
      s.pread(1, 3 * page, 0);
      s.pwrite(0, content(2, 0, 2 * page), page / 2);
      s.map_write(0, 0, 4 * page);
      s.store(0, content(2, 0, page), 0);
      const auto got = groups.run(s);
      ASSERT_EQ(got[3].value, 2 * page);
      garbler(seed).garble(mount_inside(m).layout());
      m.counters();
      EXPECT_LE(m.open_files().size(), o.max_open_files) << "seed " << seed;
      for (const std::string& line : m.log()) EXPECT_FALSE(line.empty());
      m.sync();
    }
    for (const char* name : {"read", "closed"}) EXPECT_EQ(dir.read(name), content(1, 0, 6 * page)) << name << ", seed " << seed;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 3) << "seed " << seed;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
