// SPDX-License-Identifier: Apache-2.0
// What every store must do, run on each.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ext4_image.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

constexpr std::int64_t nil_nbytes = 10'001, nvme_nbytes = 20 * 512;

// A store with two files of nbytes bytes and, unless it is nil, "empty".
struct subject {
  const char* name;
  std::function<std::unique_ptr<store::store>(const temp_dir&)> make;
  bool nil = false;
  bool empty_opens = true;  // a registered mapping cannot be empty
  bool walks = false;       // as where there is no openat2
  std::string first = "a", other = "d/e";
  std::int64_t nbytes = nil_nbytes;
  bool has_empty = true;  // no namespace is
};

std::unique_ptr<store::store> make_mem(source_kind kind) {
  auto files = std::make_unique<store::mem_store>(simt::cpu_platform(), kind);
  files->put("a", content(1, 0, nil_nbytes));
  files->put("d/e", content(2, 0, nil_nbytes));
  files->put("empty", {});
  return files;
}

std::shared_ptr<nvme::soft_controller> make_controller() {
  auto soft = std::make_shared<nvme::soft_controller>(simt::cpu_platform(),
                                                      nvme::soft_options{.nblocks = nvme_nbytes / 512, .nnamespaces = 2});
  for (const std::uint32_t nsid : {1u, 2u}) soft->write_image(0, content(nsid, 0, nvme_nbytes), nsid);
  return soft;
}
std::unique_ptr<store::store> make_nvme() { return std::make_unique<store::nvme_store>(simt::cpu_platform(), make_controller()); }
// Their namespaces 1 are a mirror, too.
std::unique_ptr<store::store> make_nvme_mirror() {
  const std::vector<store::nvme_volume> volumes{{"m", store::nvme_volume_kind::mirror, {"c0n1", "c1n1"}, 4096}};
  return std::make_unique<store::nvme_store>(simt::cpu_platform(),
                                             store::nvme_store::controllers{make_controller(), make_controller()},
                                             nvme::controller_options{}, volumes);
}

std::unique_ptr<store::store> make_ext4(const temp_dir& dir) {
  const ext4_image image;
  image.make("-t ext4 -b 1024", 2 << 10, dir.path());
  auto device = std::make_unique<store::mem_store>(simt::cpu_platform(), source_kind::staged);
  device->put("n1", image.dir.read("image"));
  return store::make_ext4_store(simt::cpu_platform(), std::move(device));
}

void PrintTo(const subject& s, std::ostream* out) { *out << s.name; }

class every_store : public testing::TestWithParam<subject> {
 protected:
  every_store() {
    dir_.add("a", nil_nbytes, 1);
    dir_.add("d/e", nil_nbytes, 2);
    dir_.add("empty", 0, 0);
    let_file_times_pass();
    store_ = GetParam().make(dir_);
  }
  std::unique_ptr<store::open_file> open(std::string_view path, int flags = 0) {
    int error = 0;
    auto file = store_->open(path, flags, &error);
    EXPECT_EQ(error, 0) << path;
    return file;
  }
  std::vector<std::byte> expected(std::uint64_t seed, std::int64_t offset, std::size_t nbytes) const {
    return GetParam().nil ? std::vector<std::byte>(nbytes) : content(seed, static_cast<std::uint64_t>(offset), nbytes);
  }

  static const subject& its() { return GetParam(); }

  const set_meanwhile<bool> walks_{store::openat2_missing, GetParam().walks};
  temp_dir dir_;
  std::unique_ptr<store::store> store_;
};

TEST_P(every_store, reads_ranges_as_pread) {
  const auto file = open(its().first);
  ASSERT_TRUE(file);
  ASSERT_EQ(file->info().nbytes, its().nbytes);
  for (const std::int64_t offset : {0, 1, 511, 512, 4096, 9'999, 10'000}) {
    for (const std::size_t nbytes : {1, 2, 511, 4096, 20'000}) {
      std::vector<std::byte> got(nbytes, std::byte{0xee});
      const auto n = static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(nbytes), its().nbytes - offset));
      ASSERT_EQ(file->pread(got, offset), static_cast<std::int64_t>(n)) << offset << " " << nbytes;
      for (std::size_t i = n; i < nbytes; ++i) ASSERT_EQ(got[i], std::byte{0xee}) << "wrote beyond what was read";
      got.resize(n);
      ASSERT_EQ(got, expected(1, offset, n)) << offset << " " << nbytes;
    }
  }
  std::byte one[1];
  EXPECT_EQ(file->pread(one, its().nbytes), 0);
  EXPECT_EQ(file->pread(one, std::int64_t{1} << 62), 0);
  EXPECT_EQ(file->pread({}, 0), 0);
  EXPECT_EQ(file->pread(one, -1), -EINVAL);
  EXPECT_EQ(file->check_version(), 0);
}

TEST_P(every_store, says_what_it_opened) {
  const auto file = open(its().other);
  ASSERT_TRUE(file);
  const store::file_info& info = file->info();
  EXPECT_FALSE(info.reason.empty());
  EXPECT_TRUE(S_ISREG(info.mode));
  EXPECT_TRUE(info.settled);
  const bool by_windows = info.kind == source_kind::windows;
  EXPECT_EQ(info.pull_base != nullptr, may_pass_host_by(info.kind));
  EXPECT_TRUE(!by_windows || file->windows().registered == 0);
  if (info.kind == source_kind::pull) {
    EXPECT_EQ(std::vector<std::byte>(info.pull_base, info.pull_base + info.nbytes), expected(2, 0, its().nbytes));
  }
  EXPECT_GE(file->alignment(), 1u);
  EXPECT_FALSE(store_->name().empty());
}

TEST_P(every_store, spellings_of_one_path_are_one_file) {
  const auto plain = open(its().other);
  ASSERT_TRUE(plain);
  std::vector<std::string> paths{"/" + its().other, "///" + its().other, "./" + its().other, "x/../" + its().other};
  if (its().other == "d/e") paths = {"/d/e", "///d/e", "./d/e", "d//e", "d/./e", "d/../d/e"};
  for (const std::string& path : paths) {
    const auto same = open(path);
    ASSERT_TRUE(same) << path;
    EXPECT_EQ(same->info().inode, plain->info().inode) << path;
    EXPECT_EQ(same->info().device, plain->info().device) << path;
    EXPECT_EQ(same->info().mtime_ns, plain->info().mtime_ns) << path;
    EXPECT_EQ(same->info().ctime_ns, plain->info().ctime_ns) << path;
  }
  EXPECT_NE(open(its().first)->info().inode, plain->info().inode);
}

TEST_P(every_store, refuses_bad_paths_and_flags) {
  EXPECT_EQ(error_of(*store_, ""), -ENOENT);
  EXPECT_EQ(error_of(*store_, "/"), -EISDIR);
  EXPECT_EQ(error_of(*store_, "//"), -EISDIR);
  EXPECT_EQ(error_of(*store_, "."), -EISDIR);
  EXPECT_EQ(error_of(*store_, std::string_view("a\0b", 3)), -EINVAL);
  EXPECT_EQ(error_of(*store_, std::string_view("a\0", 2)), -EINVAL);
  EXPECT_EQ(error_of(*store_, std::string(4096, 'x')), -ENAMETOOLONG);
  EXPECT_EQ(error_of(*store_, std::string(256, 'x')), -ENAMETOOLONG);
  EXPECT_EQ(error_of(*store_, "d/" + std::string(256, 'x') + "/y"), -ENAMETOOLONG);
  EXPECT_EQ(error_of(*store_, ".."), -EXDEV);
  EXPECT_EQ(error_of(*store_, "../a"), -EXDEV);
  EXPECT_EQ(error_of(*store_, "/../a"), -EXDEV);
  EXPECT_EQ(error_of(*store_, "d/../../a"), -EXDEV);
  EXPECT_EQ(error_of(*store_, its().first + "/"), -ENOTDIR);
  if (!its().nil) {
    EXPECT_EQ(error_of(*store_, "missing"), -ENOENT);
    EXPECT_EQ(error_of(*store_, "missing/"), -ENOENT);
    EXPECT_EQ(error_of(*store_, std::string(255, 'x')), -ENOENT);
  }
  for (const int flags : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_CREAT | O_EXCL, O_ACCMODE, O_TMPFILE | O_RDWR}) {
    EXPECT_EQ(error_of(*store_, its().first, flags), -EROFS) << flags;
  }
  for (const int flags : {O_PATH, O_DIRECTORY, O_ASYNC, 1 << 30})
    EXPECT_EQ(error_of(*store_, its().first, flags), -EINVAL) << flags;
  for (const int flags : {O_RDONLY, O_CLOEXEC, O_NOATIME, O_SYNC, O_NOFOLLOW, O_NONBLOCK}) {
    EXPECT_EQ(error_of(*store_, its().first, flags), 0) << flags;
  }
}

TEST_P(every_store, opens_empty_files) {
  if (its().nil || !its().has_empty) return;
  if (!its().empty_opens) {
    int error = 0;
    std::string why;
    EXPECT_EQ(store_->open_explained("empty", 0, &error, &why), nullptr);
    EXPECT_EQ(error, -EOPNOTSUPP);
    EXPECT_NE(why.find("empty"), std::string::npos) << why;
    return;
  }
  const auto file = open("empty");
  ASSERT_TRUE(file);
  std::byte one[1];
  EXPECT_EQ(file->info().nbytes, 0);
  EXPECT_EQ(file->pread(one, 0), 0);
}

TEST_P(every_store, files_outlive_their_store) {
  const auto file = open(its().first);
  store_.reset();
  EXPECT_EQ(read_all(*file), expected(1, 0, its().nbytes));
}

TEST_P(every_store, serves_threads_at_once) {
  const auto shared = open(its().first);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      random_source draw(t + 1);
      for (int i = 0; i < 100; ++i) {
        int error = 0;
        const auto own = store_->open(its().other, 0, &error);
        ASSERT_TRUE(own) << error;
        const auto offset = static_cast<std::int64_t>(draw.below(its().nbytes));
        std::vector<std::byte> got(draw.between(1, 3000));
        for (const auto& [file, seed] : {std::pair{shared.get(), 1}, std::pair{own.get(), 2}}) {
          const std::int64_t n = file->pread(got, offset);
          ASSERT_GT(n, 0);
          ASSERT_TRUE(std::equal(got.begin(), got.begin() + n,
                                 expected(static_cast<std::uint64_t>(seed), offset, static_cast<std::size_t>(n)).begin()));
        }
        if (i % 10 == 0) store_->trim();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_P(every_store, trims_with_files_open_and_closed) {
  auto file = open(its().first);
  store_->trim();
  EXPECT_EQ(read_all(*file), expected(1, 0, its().nbytes));
  file.reset();
  store_->trim();
  EXPECT_EQ(read_all(*open(its().first)), expected(1, 0, its().nbytes));
}

using store::auto_options;
using store::posix_options;
INSTANTIATE_TEST_SUITE_P(
    stores, every_store,
    testing::Values(
        subject{"nil", [](const temp_dir&) { return std::make_unique<store::nil_store>(nil_nbytes); }, true},
        subject{"mem_pull", [](const temp_dir&) { return make_mem(source_kind::pull); }},
        subject{"mem_mem", [](const temp_dir&) { return make_mem(source_kind::mem); }},
        subject{"mem_staged", [](const temp_dir&) { return make_mem(source_kind::staged); }},
        subject{"nvme", [](const temp_dir&) { return make_nvme(); }, false, true, false, "n1", "n2", nvme_nbytes, false},
        subject{"nvme_mirror", [](const temp_dir&) { return make_nvme_mirror(); }, false, true, false, "m", "c1n2", nvme_nbytes,
                false},
        subject{"posix", [](const temp_dir& dir) { return std::make_unique<store::posix_store>(dir.path()); }},
        subject{"posix_walk", [](const temp_dir& dir) { return std::make_unique<store::posix_store>(dir.path()); }, false, true,
                true},
        subject{
            "posix_direct",
            [](const temp_dir& dir) { return std::make_unique<store::posix_store>(dir.path(), posix_options{.direct = true}); }},
        subject{"mapped",
                [](const temp_dir& dir) { return std::make_unique<store::mapped_store>(simt::cpu_platform(), dir.path()); }, false,
                false},
        subject{"auto_staged",
                [](const temp_dir& dir) { return std::make_unique<store::auto_store>(simt::cpu_platform(), dir.path()); }},
        subject{"auto_pull",
                [](const temp_dir& dir) {
                  return std::make_unique<store::auto_store>(simt::cpu_platform(), dir.path(), 0,
                                                             auto_options{.small_file_nbytes = 0});
                }}),
    [](const testing::TestParamInfo<subject>& s) { return std::string(s.param.name); });
INSTANTIATE_TEST_SUITE_P(where_it_can_be_made, every_store,
                         testing::ValuesIn(no_ext4().empty() ? std::vector{subject{"ext4", make_ext4}} : std::vector<subject>{}),
                         [](const testing::TestParamInfo<subject>& s) { return std::string(s.param.name); });

}  // namespace
}  // namespace gpufs::test
