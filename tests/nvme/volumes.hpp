// SPDX-License-Identifier: Apache-2.0
// What tests of volumes share: a mount over several controllers in software, and a model of where a volume's bytes lie.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "file/script.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/tables.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

using nvme::soft_controller;
using nvme::soft_fault;
using nvme::soft_options;
using store::nvme_volume;
using store::nvme_volume_kind;

// What a mount of tests has besides: small, so that pages are evicted.
struct array_options {
  nvme::controller_options driver{.nqueues = 2, .depth = 32, .buffer_nbytes = 8192, .writable = true};
  std::uint32_t page_nbytes = 4096;
  std::uint64_t nframes = 32;
  std::chrono::nanoseconds io_timeout = std::chrono::seconds(60);
  simt::platform* machine = &simt::this_platform();  // the store's
};

struct disk_array {
  disk_array(std::vector<std::shared_ptr<soft_controller>> controllers, const std::vector<nvme_volume>& volumes,
             const array_options& as = {})
      : soft(std::move(controllers)) {
    files = std::make_shared<store::nvme_store>(*as.machine, store::nvme_store::controllers(soft.begin(), soft.end()), as.driver,
                                                volumes);
    mount_options o;
    o.page_nbytes = as.page_nbytes;
    o.cache_nbytes = as.nframes * as.page_nbytes;
    o.custom_store = files;
    o.writable = as.driver.writable;
    o.max_open_files = 16;
    o.io_timeout = as.io_timeout;
    fs = std::make_unique<mount>("", o);
  }
  ~disk_array() {
    EXPECT_EQ(fs->counters().pins, 0u);
    fs.reset();
    files.reset();
    for (const auto& each : soft) {
      EXPECT_EQ(each->violations(), std::vector<std::string>{});
      EXPECT_EQ(each->done().nmapped, 0u);
    }
  }
  disk_array(const disk_array&) = delete;
  disk_array& operator=(const disk_array&) = delete;

  // What the calls of one warp give that opens the file as number 0 and does `what` with it.
  template <class What>
  std::vector<outcome> with(const char* path, int flags, What what) const {
    players warp(fs->ref(), {});
    script s;
    s.open(0, path, flags);
    what(s);
    s.close(0);
    return warp.run(s);
  }
  std::int64_t open(const char* path, int flags = O_RDONLY) const {
    return with(path, flags, [](script&) {})[0].value;
  }
  outcome read(const char* path, std::uint64_t nbytes, std::int64_t offset) const {
    return with(path, O_RDONLY, [&](script& s) { s.pread(0, nbytes, offset); })[1];
  }
  // Of a pwrite and the fsync after it.
  std::int64_t write(const char* path, const std::vector<std::byte>& bytes, std::int64_t offset) const {
    const auto got = with(path, O_RDWR, [&](script& s) {
      s.pwrite(0, bytes, offset);
      s.fsync(0);
    });
    return got[1].value < 0 ? got[1].value : got[2].value;
  }
  bool log_has(const std::string& words) const {
    for (const std::string& line : fs->log()) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }

  std::vector<std::shared_ptr<soft_controller>> soft;
  std::shared_ptr<store::nvme_store> files;
  std::unique_ptr<mount> fs;
};

inline std::shared_ptr<soft_controller> soft_disk(const soft_options& as) {
  return std::make_shared<soft_controller>(simt::this_platform(), as);
}

inline constexpr std::uint64_t disk_seed = 23;  // of what is on disks
// A disk of 1,000 blocks with a GPT: partition 1 has blocks 40 to 299, 3 has 301 to 639.
inline std::shared_ptr<soft_controller> partitioned() {
  auto soft = soft_disk({.nblocks = 1000});
  table_image image(1000, 512);
  image.bytes = content(disk_seed, 0, image.bytes.size());
  std::fill_n(image.bytes.begin(), image.first_usable() * 512, std::byte{});
  std::fill(image.bytes.begin() + static_cast<std::ptrdiff_t>((image.last_usable() + 1) * 512), image.bytes.end(), std::byte{});
  image.put_gpt({{40, 299}, {0, 0}, {301, 639}});
  soft->write_image(0, image.bytes);
  return soft;
}
// A namespace, by the numbers of its controller and its own.
struct disk {
  std::uint32_t controller, nsid;
};
inline std::vector<std::byte> bytes_of(const disk_array& on, const disk& of) { return on.soft[of.controller]->bytes(of.nsid); }

// The bytes of stripes over these, put together unit by unit.
inline std::vector<std::byte> striped(const disk_array& on, const std::vector<disk>& disks, std::uint64_t unit) {
  std::vector<std::vector<std::byte>> parts;
  std::size_t least = ~std::size_t{0};
  for (const disk& each : disks) {
    parts.push_back(bytes_of(on, each));
    least = std::min(least, parts.back().size());
  }
  std::vector<std::byte> all;
  for (std::uint64_t row = 0; (row + 1) * unit <= least; ++row) {
    for (const auto& part : parts) {
      const auto begin = part.begin() + static_cast<std::ptrdiff_t>(row * unit);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(unit));
    }
  }
  return all;
}

// Reads of a file by all kinds of groups, by pread and map_page, at random places: all must have the model's bytes.
inline void expect_random_reads(const mount& fs, const char* path, const std::vector<std::byte>& model, std::uint64_t seed) {
  random_source draw(seed);
  for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
    const bool are_many = kind == group_kind::thread || kind == group_kind::tile8;
    players groups(fs.ref(), {.grid = are_many ? 1u : 2u, .block = are_many ? 32u : 64u, .all = kind});
    struct wanted {
      std::size_t call;
      std::uint64_t at, nbytes;
    };
    std::vector<std::vector<wanted>> all;
    std::vector<script> scripts;
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      script s;
      std::vector<wanted> mine;
      s.open(0, path, O_RDONLY);
      for (int i = are_many ? 2 : 4; i != 0; --i) {
        const std::uint64_t at = draw.below(model.size()), n = draw.between(1, std::min<std::uint64_t>(40'000, model.size() - at));
        mine.push_back({s.pread(0, n, static_cast<std::int64_t>(at)), at, n});
      }
      const std::uint64_t at = draw.below(model.size() - 64);
      mine.push_back({s.map(0, 0, static_cast<std::int64_t>(at), 64), at, 64});
      s.unmap(0);
      s.close(0);
      scripts.push_back(s);
      all.push_back(mine);
    }
    const auto got = groups.run(scripts);
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      for (const wanted& each : all[g]) {
        const outcome& here = got[g][each.call];
        ASSERT_GT(here.value, 0) << "group " << g << " at " << each.at;
        // A page ends a mapping, and the file a read.
        const std::uint64_t n = std::min<std::uint64_t>(static_cast<std::uint64_t>(here.value), each.nbytes);
        if (each.nbytes != 64) {
          ASSERT_EQ(n, each.nbytes);
        }
        ASSERT_TRUE(std::equal(here.bytes.begin(), here.bytes.begin() + static_cast<std::ptrdiff_t>(n),
                               model.begin() + static_cast<std::ptrdiff_t>(each.at)))
            << "group " << g << " at " << each.at << ", " << n << " bytes";
      }
    }
  }
}

// Random writes, with fsync: the model gets them too.
inline void write_at_random(const disk_array& on, const char* path, std::vector<std::byte>& model, std::uint64_t seed, int times) {
  random_source draw(seed);
  const auto got = on.with(path, O_RDWR, [&](script& s) {
    for (int i = 0; i < times; ++i) {
      const std::uint64_t n = draw.between(1, std::min<std::uint64_t>(30'000, model.size())),
                          at = draw.between(0, model.size() - n);
      const auto bytes = content(seed + 100 + static_cast<std::uint64_t>(i), at, n);
      s.pwrite(0, bytes, static_cast<std::int64_t>(at));
      std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<std::ptrdiff_t>(at));
    }
    s.fsync(0);
  });
  ASSERT_EQ(got[static_cast<std::size_t>(times) + 1].value, 0);
}

// Reads of a pointer, by lanes that are no tile.
struct add_bytes {
  mount_ref fs;
  const char* path;
  std::int64_t nbytes;
  std::uint64_t* sums;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    const file f = open(this_warp(), fs, path);
    {
      const auto p = map<const std::uint8_t>(this_warp(), f);
      for (std::int64_t i = 0; i < 6; ++i) {
        if (me % 3 != 1) sums[me] += p[(me * 39'701 + i * 100'310) % nbytes];
      }
    }
    close(this_warp(), f);
  }
};

inline void expect_pointers_and_rows(const mount& fs, const std::string& path, const std::vector<std::byte>& model) {
  constexpr std::uint32_t nlanes = 64;
  const simt::device_array<std::uint64_t> sums(nlanes);
  const std::string terminated = path + '\0';
  const simt::device_array<char> name{std::span<const char>(terminated)};
  const auto nbytes = static_cast<std::int64_t>(model.size());
  simt::launch({.grid = 1, .block = nlanes}, add_bytes{fs.ref(), name.get(), nbytes, sums.get()});
  std::vector<std::uint64_t> wanted(nlanes);
  for (std::uint32_t me = 0; me < nlanes; ++me) {
    for (std::int64_t i = 0; me % 3 != 1 && i < 6; ++i) {
      wanted[me] += static_cast<std::uint64_t>(model[static_cast<std::size_t>((me * 39'701 + i * 100'310) % nbytes)]);
    }
  }
  EXPECT_EQ(sums.read(), wanted);

  const host_file opened(fs, path);
  const std::uint64_t row_nbytes = 6000;
  const row_layout layout{.row_nbytes = row_nbytes, .nrows = model.size() / row_nbytes};
  std::vector<std::int64_t> numbers;
  for (std::uint64_t i = 0; i < 30; ++i) numbers.push_back(static_cast<std::int64_t>(i * 37 % layout.nrows));
  const device_buffer<std::int64_t> asked{std::span<const std::int64_t>(numbers)};
  const device_buffer<std::byte> rows(numbers.size() * row_nbytes);
  const simt::stream turns;
  row_batch batch(fs, numbers.size(), 4);
  batch.gather(opened.ref(), layout, asked.get(), numbers.size(), rows.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, 0);
  const std::vector<std::byte> got = rows.read();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(i * row_nbytes),
                           got.begin() + static_cast<std::ptrdiff_t>((i + 1) * row_nbytes),
                           model.begin() + static_cast<std::ptrdiff_t>(numbers[i]) * static_cast<std::ptrdiff_t>(row_nbytes)))
        << i;
  }
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
