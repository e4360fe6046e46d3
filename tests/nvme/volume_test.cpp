// SPDX-License-Identifier: Apache-2.0
// Files that are made of parts of namespaces: partitions and stripes. Kernels read them as they do a namespace; here are their
// bytes, what comes of other names for them, and what is refused.
#include "nvme/volumes.hpp"

#include <cerrno>
#include <set>
#include <stdexcept>
#include <thread>

#include "gpufs/nvme/detail/file_layout.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t seed = disk_seed;
constexpr std::uint32_t page = 4096;

// Each byte of a file lies at a place of its own, where a list of all units says; and runs end with units, or what is asked for.
TEST(nvme_shapes, give_units_to_columns_in_turn) {
  for (const std::uint32_t ncolumns : {1u, 2u, 3u, 5u}) {
    for (const std::uint32_t ncopies : {1u, 2u, 3u}) {
      const nvme::file_shape shape{4, ncolumns, ncopies, 0};
      std::vector<std::uint64_t> rows(ncolumns);
      for (std::uint64_t unit = 0, column = 0; unit < 60; ++unit, column = (column + 1) % ncolumns) {
        const std::uint64_t row = rows[column]++;
        for (std::uint64_t within = 0; within < 16; ++within) {
          for (const std::uint64_t wanted : {1u, 7u, 100u}) {
            const nvme::file_run run = shape.locate(unit * 16 + within, wanted);
            ASSERT_EQ(run.column, column) << unit;
            ASSERT_EQ(run.first_copy, row % ncopies) << unit;
            ASSERT_EQ(run.offset, row * 16 + within);
            ASSERT_EQ(run.nbytes, std::min(wanted, 16 - within));
          }
        }
      }
    }
  }
}

TEST(nvme_shapes, of_one_column_are_in_one_piece) {
  const nvme::file_shape shape{nvme::no_unit_shift, 1, 1, 0};
  const std::uint64_t at = (std::uint64_t{7} << 40) + 5;
  const nvme::file_run run = shape.locate(at, 1 << 30);
  EXPECT_EQ(run.column, 0u);
  EXPECT_EQ(run.first_copy, 0u);
  EXPECT_EQ(run.offset, at);
  EXPECT_EQ(run.nbytes, 1u << 30);
}

std::string names_in(store::store& files) {
  std::vector<std::byte> entries(8192);
  std::int64_t position = 0;
  const std::int64_t n = files.read_directory("/", &position, entries);
  std::string names;
  for (std::int64_t at = 0; at < n;) {
    directory_entry entry;
    std::memcpy(&entry, entries.data() + at, sizeof entry);
    names += reinterpret_cast<const char*>(entries.data() + at + sizeof entry) + (":" + std::to_string(entry.file_nbytes) + " ");
    at += entry.entry_nbytes;
  }
  return names;
}

TEST(nvme_partition_files, have_the_bytes_of_their_blocks_and_no_others) {
  const disk_array on({partitioned()}, {});
  EXPECT_EQ(names_in(*on.files), "n1:512000 n1p1:133120 n1p3:173568 ");
  const std::vector<std::byte> all = on.soft[0]->bytes();
  const std::vector<std::byte> third(all.begin() + 301 * 512, all.begin() + 640 * 512);
  expect_random_reads(*on.fs, "n1p3", third, 1);
  EXPECT_EQ(on.fs->counters().host_reads, 0u);
  const outcome end = on.read("n1p1", 2 * page, 133'120 - 100);
  EXPECT_EQ(end.value, 100);
  EXPECT_EQ(wrong_bytes(end, 100, seed, 300 * 512 - 100), 0u);
}

TEST(nvme_partition_files, are_written_within_their_blocks) {
  const disk_array on({partitioned()}, {});
  std::vector<std::byte> all = on.soft[0]->bytes();
  std::vector<std::byte> model(all.begin() + 40 * 512, all.begin() + 300 * 512);
  write_at_random(on, "n1p1", model, 3, 12);
  EXPECT_EQ(on.write("n1p1", content(9, 0, 100), 133'120 - 50), -ENOSPC);
  std::copy(model.begin(), model.end(), all.begin() + 40 * 512);
  EXPECT_TRUE(on.soft[0]->bytes() == all);
}

TEST(nvme_partition_files, end_their_version_when_their_bytes_are_written_by_another_name) {
  for (const char* written : {"n1", "n1p1", "n1p3"}) {
    const disk_array on({partitioned()}, {});
    players warp(on.fs->ref(), {});
    script s;
    s.open(0, "n1", O_RDONLY);
    s.open(1, "n1p3", O_RDONLY);
    s.open(2, written, O_RDWR);
    s.pwrite(2, content(3, 0, 10), 60'000);
    const auto synced = s.fsync(2);
    const auto whole = s.pread(0, page, 40 * page), part = s.pread(1, page, 20 * page);
    for (const unsigned file : {0u, 1u, 2u}) s.close(file);
    const auto got = warp.run(s);
    EXPECT_EQ(got[synced].value, 0) << written;
    EXPECT_EQ(got[whole].value, -ESTALE) << written;
    EXPECT_EQ(got[part].value, std::string(written) == "n1p1" ? std::int64_t{page} : -ESTALE) << written;
  }
}

TEST(nvme_partition_files, are_not_opened_while_their_bytes_are_written_by_another_name) {
  const disk_array on({partitioned()}, {});
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "n1p1", O_RDWR);
  const auto whole = s.open(1, "n1", O_RDONLY), to_write = s.open(1, "n1", O_RDWR), other = s.open(2, "n1p3", O_RDWR);
  const auto same = s.open(3, "n1p1", O_RDONLY);
  for (const unsigned file : {0u, 2u, 3u}) s.close(file);
  const auto got = warp.run(s);
  EXPECT_EQ(got[whole].value, -EBUSY);
  EXPECT_EQ(got[to_write].value, -EBUSY);
  EXPECT_TRUE(on.log_has("n1p1, which has bytes of it, is open for writing"));
  EXPECT_GE(got[other].value, 0);
  EXPECT_GE(got[same].value, 0);
  EXPECT_GE(on.open("n1"), 0);
}

// A reader's open and a writer's by another name at the same time: the reader is told, or refused, or comes first or last.
TEST(nvme_partition_files, are_read_whole_or_not_at_all_beside_a_writer_by_another_name) {
  const disk_array on({partitioned()}, {}, {.nframes = 4});
  constexpr std::uint64_t npages = 6;
  on.write("n1p1", std::vector<std::byte>(npages * page, std::byte{1}), 0);
  int nread = 0;  // rounds in which the reader had bytes
  for (int round = 0; round < 20; ++round) {
    const auto old = static_cast<std::byte>(round + 1), fresh = static_cast<std::byte>(round + 2);
    players warps(on.fs->ref(), {.grid = 2, .block = 32});
    script reads, writes;
    std::vector<std::size_t> calls;
    reads.open(0, "n1p1", O_RDONLY);
    for (std::uint64_t i = 0; i < npages; ++i) calls.push_back(reads.pread(0, page, static_cast<std::int64_t>(i * page)));
    reads.close(0);
    for (int late = round % 4; late != 0; --late) {
      writes.open(1, "n1p3", O_RDONLY);
      writes.close(1);
    }
    const auto opened = writes.open(0, "n1", O_RDWR);
    writes.pwrite(0, std::vector<std::byte>(npages * page, fresh), 40 * 512);
    const auto synced = writes.fsync(0);
    writes.close(0);
    const auto got = warps.run({reads, writes});
    ASSERT_GE(got[1][opened].value, 0);
    ASSERT_EQ(got[1][synced].value, 0);
    std::set<std::byte> seen;
    for (const std::size_t call : calls) {
      const outcome& here = got[0][call];
      ASSERT_TRUE(here.value == page || here.value == -ESTALE || got[0][0].value == -EBUSY) << here.value;
      for (std::size_t i = 0; here.value == page && i < page; ++i) seen.insert(here.bytes[i]);
    }
    ASSERT_LE(seen.size(), 1u) << "pages of two versions, in round " << round;
    if (!seen.empty()) {
      ++nread;
      ASSERT_TRUE(*seen.begin() == old || *seen.begin() == fresh);
    }
  }
  EXPECT_GE(nread, 1);
}

TEST(nvme_partition_files, of_a_damaged_table_are_not_there_and_the_log_says_why) {
  auto soft = partitioned();
  soft->write_image(1, std::vector<std::byte>(512));
  {
    const disk_array on({soft}, {});
    EXPECT_GE(on.open("n1p1"), 0) << "by the backup";
  }
  soft->write_image(999, std::vector<std::byte>(512));
  const disk_array on({soft}, {});
  EXPECT_GE(on.open("n1"), 0);
  EXPECT_EQ(on.open("n1p1"), -ENOENT);
  EXPECT_TRUE(on.log_has("n1: its partition table (GPT) is damaged: its header is none; and the backup's its header is none"));
  EXPECT_EQ(on.open("n2"), -ENOENT);
  EXPECT_TRUE(on.log_has("no such namespace, partition or volume; there are n1"));
}

TEST(nvme_partition_files, take_a_queue_of_the_hosts_to_be_found) {
  auto soft = soft_disk({.nblocks = 1000, .nqueues = 1});
  soft->write_image(0, partitioned()->bytes());
  const disk_array on({soft}, {});
  EXPECT_EQ(on.read("n1", page, 0).value, page);
  EXPECT_EQ(on.open("n1p1"), -ENOENT);
  EXPECT_TRUE(on.log_has("the host has no pair of queues to read its partition table by"));
}

// Disks of unequal lengths, some of them on one controller, each filled with bytes of its own.
struct disks_made {
  std::vector<std::shared_ptr<soft_controller>> soft;
  std::vector<disk> disks;
  std::vector<std::string> names;
};
disks_made make_disks(std::uint32_t n, bool unequal = true) {
  disks_made made;
  const std::uint32_t ncontrollers = n < 3 ? n : (n + 1) / 2;
  for (std::uint32_t c = 0; c < ncontrollers; ++c) {
    made.soft.push_back(soft_disk({.nblocks = unequal ? 660u + 24 * c : 640u, .nnamespaces = n < 3 ? 1u : 2u, .seed = c + 1}));
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    const disk here = n < 3 ? disk{i, 1} : disk{i / 2, i % 2 + 1};
    made.disks.push_back(here);
    made.names.push_back((n == 1 ? "n" : "c" + std::to_string(here.controller) + "n") + std::to_string(here.nsid));
    const std::size_t nbytes = made.soft[here.controller]->bytes(here.nsid).size();
    made.soft[here.controller]->write_image(0, content(seed + i, 0, nbytes), here.nsid);
  }
  return made;
}

TEST(nvme_stripes, have_the_bytes_of_their_parts_unit_by_unit) {
  for (const std::uint32_t n : {1u, 2u, 3u, 5u}) {
    for (const auto& [unit, page_nbytes] : {std::pair{4096u, 16384u}, std::pair{16384u, 4096u}}) {
      if (under_tsan && n != 3) continue;  // where lanes switch slowly
      SCOPED_TRACE(std::to_string(n) + " parts, units of " + std::to_string(unit));
      const disks_made made = make_disks(n);
      const disk_array on(made.soft, {{"all", nvme_volume_kind::stripe, made.names, unit}},
                          {.page_nbytes = page_nbytes, .nframes = 16});
      std::vector<std::byte> model = striped(on, made.disks, unit);
      EXPECT_EQ(model.size(), n * (660 * 512 / unit * unit));
      EXPECT_NE((" " + names_in(*on.files)).find(" all:" + std::to_string(model.size()) + " "), std::string::npos);
      expect_random_reads(*on.fs, "all", model, n + unit);
      expect_pointers_and_rows(*on.fs, "all", model);
      EXPECT_EQ(on.fs->counters().host_reads, 0u);
      write_at_random(on, "all", model, n, 12);
      for (const auto& each : on.soft) each->lose_power();
      EXPECT_TRUE(striped(on, made.disks, unit) == model) << "what was synced is where it belongs, on all media";
      const outcome all = on.read("all", model.size(), 0);
      EXPECT_TRUE(all.bytes == model);
    }
  }
}

TEST(nvme_stripes, of_partitions_of_blocks_of_two_sizes_leave_the_rest_alone) {
  const auto small = partitioned();
  const auto large = soft_disk({.nblocks = 80, .block_shift = 12});
  large->write_image(0, content(5, 0, 80 * 4096));
  const std::vector<std::byte> before = small->bytes();
  const disk_array on({small, large}, {{"both", nvme_volume_kind::stripe, {"c1n1", "c0n1p3"}, 8192}});
  const std::uint64_t units = 339 * 512 / 8192;
  std::vector<std::byte> model;
  for (std::uint64_t row = 0; row < units; ++row) {
    const auto on_large = content(5, row * 8192, 8192), on_small = content(seed, 301 * 512 + row * 8192, 8192);
    model.insert(model.end(), on_large.begin(), on_large.end());
    model.insert(model.end(), on_small.begin(), on_small.end());
  }
  expect_random_reads(*on.fs, "both", model, 2);
  write_at_random(on, "both", model, 4, 10);
  EXPECT_TRUE(on.read("both", model.size(), 0).bytes == model);
  const std::vector<std::byte> after = small->bytes();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 301 * 512, after.begin()));
  const std::ptrdiff_t end = 301 * 512 + static_cast<std::ptrdiff_t>(units) * 8192;
  EXPECT_TRUE(std::equal(before.begin() + end, before.end(), after.begin() + end));
}

TEST(nvme_stripes, end_their_version_when_a_part_is_written) {
  const disks_made made = make_disks(3);
  const disk_array on(made.soft, {{"all", nvme_volume_kind::stripe, made.names, page}});
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "all", O_RDONLY);
  s.open(1, "c1n1", O_RDWR);
  s.pwrite(1, content(3, 0, 10), 0);
  s.fsync(1);
  const auto striped_read = s.pread(0, page, 0);
  s.close(0);
  s.close(1);
  s.open(0, "c0n2", O_RDONLY);
  s.open(1, "all", O_RDWR);
  s.pwrite(1, content(3, 0, 10), 0);
  s.fsync(1);
  const auto of_a_part = s.pread(0, page, 0);
  s.close(0);
  s.close(1);
  const auto got = warp.run(s);
  EXPECT_EQ(got[striped_read].value, -ESTALE);
  EXPECT_EQ(got[of_a_part].value, -ESTALE);
}

TEST(nvme_stripes, of_which_a_controller_is_lost_are_an_error_where_it_is_missing) {
  const disks_made made = make_disks(2);
  const disk_array on(made.soft, {{"all", nvme_volume_kind::stripe, made.names, page}});
  players warp(on.fs->ref(), {});
  script opens;
  opens.open(0, "all", O_RDONLY);
  warp.run(opens);
  on.soft[1]->unplug();
  script reads;
  const auto there = reads.pread(0, page, 0), missing = reads.pread(0, page, page);
  reads.close(0);
  const auto anew = reads.open(1, "all", O_RDONLY), other = reads.open(2, "c0n1", O_RDONLY);
  reads.close(2);
  const auto got = warp.run(reads);
  EXPECT_EQ(got[there].value, page);
  EXPECT_EQ(got[missing].value, -ENODEV);
  EXPECT_EQ(got[anew].value, -ENODEV);
  EXPECT_GE(got[other].value, 0);
  EXPECT_FALSE(on.files->recovered(0).lost);
  EXPECT_TRUE(on.files->recovered(1).lost);
}

TEST(nvme_volumes, are_no_longer_than_a_file_can_be) {
  const auto files_of = [](std::uint64_t nblocks, const std::vector<nvme_volume>& volumes) {
    const store::nvme_store::controllers all{soft_disk({.nblocks = 64, .hole = nblocks}),
                                             soft_disk({.nblocks = 64, .hole = nblocks})};
    return std::make_unique<store::nvme_store>(simt::this_platform(), all, nvme::controller_options{.nqueues = 1}, volumes);
  };
  const auto nbytes_of = [](store::nvme_store& files, const char* path) {
    store::path_status now;
    EXPECT_EQ(files.status(path, false, &now), 0);
    return now.nbytes;
  };
  for (const std::uint64_t nblocks : {std::uint64_t{1} << 54, std::uint64_t{1} << 55, ~std::uint64_t{0} - 64}) {
    const auto files = files_of(nblocks, {});
    EXPECT_EQ(nbytes_of(*files, "c0n1"), 0);
    int error = 0;
    std::string why;
    EXPECT_FALSE(files->open_explained("c0n1", O_RDONLY, &error, &why));
    EXPECT_EQ(error, -EOPNOTSUPP);
    EXPECT_EQ(why,
              "the namespace says that it has " + std::to_string(nblocks + 64) + " blocks of 512 bytes, which no file can have");
  }
  const nvme_volume stripe{"all", nvme_volume_kind::stripe, {"c0n1", "c1n1"}, page};
  EXPECT_EQ(nbytes_of(*files_of(std::uint64_t{1} << 52, {stripe}), "all"), std::int64_t{2} * ((std::int64_t{1} << 61) + 64 * 512));
  try {
    files_of(std::uint64_t{1} << 53, {stripe});
    ADD_FAILURE() << "it was made";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("more bytes than a file can have: choose smaller parts"), std::string::npos);
  }
}

TEST(nvme_volumes, that_are_opened_ask_for_each_namespace_once_and_believe_it_for_a_moment) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  const auto soft = soft_disk({.nblocks = 64, .nnamespaces = 8});
  const disk_array on({soft}, {{"all", nvme_volume_kind::stripe, {"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"}, page}});
  const auto asked_by = [&](int nopens) {
    const std::uint64_t before = soft->done().admin_commands;
    for (int i = 0; i < nopens; ++i) {
      int error = 0;
      EXPECT_TRUE(on.files->open("all", O_RDONLY, &error)) << error;
    }
    return soft->done().admin_commands - before;
  };
  EXPECT_EQ(asked_by(1), 8u);
  const auto begin = steady_clock::now();
  const std::uint64_t n = asked_by(200);
  const auto ntimes = (steady_clock::now() - begin) / milliseconds(10) + 1;
  EXPECT_LE(n, 8 * static_cast<std::uint64_t>(ntimes));
  std::this_thread::sleep_for(milliseconds(11));
  EXPECT_EQ(asked_by(1), 8u);
}

TEST(nvme_volumes, whose_parts_do_not_fit_are_refused_with_a_remedy) {
  using kind = nvme_volume_kind;
  const auto stripe = [](std::vector<std::string> parts, std::uint32_t unit = 4096) {
    return nvme_volume{"v", kind::stripe, std::move(parts), unit};
  };
  const auto mirror = [](std::vector<std::string> parts, const char* name = "v") {
    return nvme_volume{name, kind::mirror, std::move(parts), 4096};
  };
  struct {
    std::vector<nvme_volume> volumes;
    const char* says;
  } const cases[] = {
      {{stripe({})}, "a stripe has 1 to 32 parts, and this one 0"},
      {{mirror({"c0n1p1"})}, "a mirror has 2 to 32 parts, and this one 1"},
      {{stripe(std::vector<std::string>(33, "c1n1"))}, "this one 33"},
      {{stripe({"c0n1", "c4n1"})}, "there is no \"c4n1\": there is no such namespace, partition or volume; there are c0n1, c0n1p1"},
      {{stripe({"n1"})}, "there is no \"n1\""},
      {{stripe({"c0n1p2"})}, "there is no \"c0n1p2\""},
      {{stripe({"v"})}, "there is no \"v\""},
      {{stripe({"c3n1"})}, "c3n1 cannot be used: "},
      {{stripe({"c1n1"}, 6144)}, "a power of two, 4,096 at least, and not 6144"},
      {{stripe({"c1n1"}, 2048)}, "and not 2048"},
      {{stripe({"c1n1"}, 0)}, "and not 0"},
      {{stripe({"c2n1"}, 4096)}, "c2n1 has blocks of 8192 bytes: choose unit_nbytes as large"},
      {{stripe({"c1n1"}, 1u << 31)}, "fewer than a unit: choose unit_nbytes smaller"},
      {{stripe({"c1n1", "c1n1"})}, "c1n1 has bytes that another part has already: name each once"},
      {{stripe({"c0n1p1", "c0n1"})}, "c0n1 has bytes that another part has already"},
      {{mirror({"c0n1p1", "c1n1"})},
       "the parts of a mirror are equally long: c1n1 has 153600 bytes, and c0n1p1 133120; partitions"},
      {{stripe({"c0n1p1"}), {"w", kind::stripe, {"c0n1"}, 4096}}, "c0n1 has bytes that \"v\" has already"},
      {{mirror({"c1n1", "c1n2"}, "m"), {"m", kind::stripe, {"c0n1"}, 4096}}, "there is a file of this name"},
      {{{"c0n1", kind::stripe, {"c1n1"}, 4096}}, "there is a file of this name: choose another one"},
      {{{"a/b", kind::stripe, {"c1n1"}, 4096}}, "it needs a name that a file of the root can have"},
      {{{"", kind::stripe, {"c1n1"}, 4096}}, "it needs a name"},
      {{{"..", kind::stripe, {"c1n1"}, 4096}}, "it needs a name"},
      {{mirror({"c1n1", "c1n2"}, "m"), stripe({"m", "c0n1p1"})}, "all parts of a stripe have as many copies: c0n1p1 has 1"},
      {{mirror({"c1n1", "c1n2"}, "m"), mirror({"m", "c1n3"})}, "m is a volume itself: only mirrors may be parts"},
      {{mirror({"c1n1", "c1n2"}, "m"), stripe({"m", "m"})}, "m has bytes that another part has already"},
      {{mirror({"c1n1", "c1n2"}, "m"), stripe({"m"}), {"w", kind::stripe, {"m"}, 4096}}, "m has bytes that \"v\" has already"},
      {{stripe({"c1n1", "c1n2"}), {"w", kind::stripe, {"v"}, 4096}}, "v is a volume itself"},
  };
  const std::vector<std::shared_ptr<soft_controller>> soft{partitioned(), soft_disk({.nblocks = 300, .nnamespaces = 3}),
                                                           soft_disk({.nblocks = 64, .block_shift = 13}),
                                                           soft_disk({.nblocks = 64, .metadata = true})};
  const store::nvme_store::controllers all(soft.begin(), soft.end());
  for (const auto& each : cases) {
    SCOPED_TRACE(each.says);
    try {
      const store::nvme_store made(simt::this_platform(), all, {.nqueues = 1, .buffer_nbytes = 8192}, each.volumes);
      ADD_FAILURE() << "it was made";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(each.says), std::string::npos) << error.what();
    }
    for (const auto& controller : soft) EXPECT_EQ(controller->done().nmapped, 0u);
  }
  EXPECT_THROW(store::nvme_store(simt::this_platform(), store::nvme_store::controllers{}), std::invalid_argument);
  EXPECT_THROW(store::nvme_store(simt::this_platform(), store::nvme_store::controllers{soft[1], soft[1]}), std::invalid_argument);
  EXPECT_THROW(store::nvme_store(simt::this_platform(), store::nvme_store::controllers{nullptr}), std::invalid_argument);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
