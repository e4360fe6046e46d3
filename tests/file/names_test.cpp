// SPDX-License-Identifier: Apache-2.0
// A file is its identity, a path only leads to it: opens of one file share what is written, whichever paths led to it and whatever
// becomes of these.
#include "file/notes.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct names : ::testing::Test {
  template <class Kernel>
  std::vector<std::int64_t> run(Kernel kernel) const {
    return noted(fs, kernel);
  }
  void expect(const std::vector<std::int64_t>& got, const std::vector<std::int64_t>& wanted) const {
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << "call " << i;
    EXPECT_EQ(fs.counters().host_opens, fs.counters().host_closes);
    EXPECT_TRUE(fs.open_files().empty());
    expect_all_written(fs);
  }
  std::string text(const std::string& name) const {
    const auto bytes = dir.read(name);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  temp_dir dir{memory_directory()};
  mount fs{dir.path(), writing()};
};

struct open_with_odd_flags {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "a", O_RDWR | O_CREAT);
    note(a.error());
    for (const char* path : {"a", "b"}) {  // which is open already, and which is not
      for (const int flags : {O_SYNC, O_DSYNC, O_DIRECTORY, O_PATH, O_TMPFILE, O_ASYNC, 1 << 28, 1 << 29}) {
        note(open(warp, fs, path, O_RDWR | flags).error());
      }
    }
    for (const int flags : {O_DIRECTORY, O_PATH, O_ASYNC, 1 << 28, 1 << 29}) note(open(warp, fs, "a", O_RDONLY | flags).error());
    for (const int flags : {O_SYNC, O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOATIME}) {
      const file joined = open(warp, fs, "a", O_RDONLY | flags);
      note(joined.error());
      note(close(warp, joined));
    }
    note(close(warp, a));
  }
};
TEST_F(names, flags_that_cannot_be_held_are_refused_also_where_the_file_is_open) {
  dir.add("b", 10, 1);
  std::vector<std::int64_t> wanted(27, 0);
  for (int i = 1; i <= 21; ++i) wanted[static_cast<std::size_t>(i)] = -EINVAL;
  expect(run(open_with_odd_flags{fs.ref()}), wanted);
}

struct append_around_a_rename {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "log", O_WRONLY | O_CREAT);
    note(append(warp, a, "AAAA", 4));
    note(mkdir(warp, fs, "d"));
    note(rename(warp, fs, "d", "e"));
    const file b = open(warp, fs, "log", O_WRONLY | O_CREAT);
    note(append(warp, b, "BBBB", 4));
    note(append(warp, a, "CCCC", 4));
    note(close(warp, a));
    note(close(warp, b));
  }
};
TEST_F(names, a_directory_that_is_renamed_parts_no_file) {
  expect(run(append_around_a_rename{}), {0, 0, 0, 4, 8, 0, 0});
  EXPECT_EQ(text("log"), "AAAABBBBCCCC");
}

struct append_by_all_paths {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  int flags = 0;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "d/f", flags), b = open(warp, fs, "d/./f", flags);
    const file c = open(warp, fs, "soft", flags), d = open(warp, fs, "hard", flags);
    note(append(warp, a, "1", 1));
    note(append(warp, b, "2", 1));
    note(append(warp, c, "3", 1));
    note(append(warp, d, "4", 1));
    note(rename(warp, fs, "d", "e"));
    const file e = open(warp, fs, "e/f", flags);
    note(append(warp, e, "5", 1));
    note(unlink(warp, fs, "hard"));
    note(append(warp, d, "6", 1));
    note(rename(warp, fs, "e/f", "f"));
    path_status status{};
    note((status = stat(warp, fs, "f")).error);
    note(status.nbytes);  // nothing of it was written back yet
    note(close(warp, a));
    const file f = open(warp, fs, "f", flags);
    note(append(warp, f, "7", 1));
    for (const file& one : {b, c, d, e, f}) note(close(warp, one));
  }
};
TEST_F(names, opens_by_all_paths_share_what_is_written) {
  for (const int once : {0, O_GWRONCE}) {
    for (const char* old : {"f", "e", "soft", "hard"}) std::filesystem::remove_all(dir / old);
    dir.add("d/f", 0, 1);
    std::filesystem::create_symlink("d/f", dir / "soft");
    std::filesystem::create_hard_link(dir / "d/f", dir / "hard");
    expect(run(append_by_all_paths{.flags = O_WRONLY | once}), {0, 1, 2, 3, 0, 4, 0, 5, 0, 0, 6, 0, 6, 0, 0, 0, 0, 0});
    EXPECT_EQ(text("f"), "1234567");
  }
}

// What a file is open by need not be the spelling by which it loses a name.
struct write_by_another_spelling {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  bool renames = false;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "./log", O_RDWR | O_CREAT);
    note(append(warp, a, "old", 3));
    note(renames ? rename(warp, fs, "log", "elsewhere") : unlink(warp, fs, "log"));
    const file b = open(warp, fs, "./log", O_RDWR | O_CREAT);
    note(append(warp, b, "new", 3));
    note(close(warp, b));
    note(close(warp, a));
  }
};
TEST_F(names, a_removed_file_is_opened_for_writing_by_no_spelling) {
  expect(run(write_by_another_spelling{}), {0, 0, 0, 0, 0});
  ASSERT_TRUE(std::filesystem::exists(dir / "log"));
  EXPECT_EQ(text("log"), "new");
}
TEST_F(names, a_renamed_file_is_opened_for_writing_by_no_spelling_of_its_old_name) {
  expect(run(write_by_another_spelling{.renames = true}), {0, 0, 0, 0, 0});
  ASSERT_TRUE(std::filesystem::exists(dir / "log"));
  EXPECT_EQ(text("log"), "new");
  EXPECT_EQ(text("elsewhere"), "old");
}

// The name that is gone may be that of a link on the path.
struct write_behind_a_link {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "./l", O_RDWR), b = open(warp, fs, "./m", O_RDWR), c = open(warp, fs, "n/f", O_RDWR);
    note(append(warp, a, "1", 1));
    note(unlink(warp, fs, "l"));
    note(open(warp, fs, "./l", O_RDWR).error());
    note(rename(warp, fs, "g", "m"));
    const file d = open(warp, fs, "./m", O_RDWR);
    note(append(warp, d, "2", 1));
    note(rename(warp, fs, "n", "o"));
    note(open(warp, fs, "n/f", O_RDWR).error());
    const file e = open(warp, fs, "o/f", O_RDWR);
    note(append(warp, e, "3", 1));
    for (const file& one : {a, b, c, d, e}) note(close(warp, one));
  }
};
TEST_F(names, a_link_that_is_gone_leads_nowhere) {
  dir.add("d/f", 0, 1);
  dir.add("g", 0, 1);
  std::filesystem::create_symlink("d/f", dir / "l");
  std::filesystem::create_symlink("d/f", dir / "m");
  std::filesystem::create_symlink("d", dir / "n");
  expect(run(write_behind_a_link{}), {0, 0, -ENOENT, 0, 0, 0, -ENOENT, 1, 0, 0, 0, 0, 0});
  EXPECT_EQ(text("d/f"), "13");
  EXPECT_EQ(text("m"), "2");
}

struct read_and_cut_by_another_path {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "f", O_RDWR);
    note(pwrite(warp, a, "unseen", 6, 0));
    const file b = open(warp, fs, "./f");
    note(pread(warp, b, results + 20, 8, 0) >= 6 && reinterpret_cast<const char*>(results + 20)[0] == 'u');
    note(open(warp, fs, "./f", O_RDWR | O_CREAT | O_EXCL).error());
    const file c = open(warp, fs, "./f", O_RDWR | O_TRUNC);
    file_status status{};
    note((status = fstat(warp, a)).error);
    note(status.nbytes);
    note(pread(warp, b, results + 20, 8, 0));
    for (const file& one : {a, b, c}) note(close(warp, one));
  }
};
TEST_F(names, another_path_reads_and_cuts_the_same_file) {
  dir.add("f", 5000, 1);
  expect(run(read_and_cut_by_another_path{}), {6, 1, -EEXIST, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(text("f"), "");
}

struct rename_to_itself {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "f", O_RDWR), r = open(warp, fs, "r");
    note(rename(warp, fs, "f", "f"));
    note(rename(warp, fs, "f", "g"));  // two links to one file
    note(rename(warp, fs, "r", "r"));
    note(static_cast<int>(open(warp, fs, "f", O_RDWR).number()) == static_cast<int>(a.number()));
    note(static_cast<int>(open(warp, fs, "r").number()) == static_cast<int>(r.number()));
    note(close(warp, a));
    note(close(warp, a));
    note(close(warp, r));
    note(close(warp, r));
  }
};
TEST_F(names, renaming_a_file_to_itself_does_nothing) {
  dir.add("f", 10, 1);
  dir.add("r", 10, 2);
  std::filesystem::create_hard_link(dir / "f", dir / "g");
  expect(run(rename_to_itself{}), {0, 0, 0, 1, 1, 0, 0, 0, 0});
  EXPECT_EQ(fs.counters().host_opens, 2u) << "opens of a path that is open ask no host";
  EXPECT_TRUE(std::filesystem::exists(dir / "g"));
}

struct size_of_a_file_written_once {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "f", O_GWRONCE | O_CREAT);
    note(pwrite(warp, a, "12345", 5, 1000));
    path_status status{};
    note((status = stat(warp, fs, "./f")).error);
    note(status.nbytes);
    const file b = open(warp, fs, "f", O_RDWR);
    note(pwrite(warp, b, "12345", 5, 2000));
    note((status = stat(warp, fs, "f")).error);
    note(status.nbytes);
    note(ftruncate(warp, b, 0));
    note(close(warp, b));
    note((status = stat(warp, fs, "f")).error);
    note(status.nbytes);
    note(close(warp, a));
    note((status = stat(warp, fs, "f")).error);
    note(status.nbytes);
  }
};
TEST_F(names, stat_knows_the_size_of_a_file_that_is_written_once) {
  expect(run(size_of_a_file_written_once{}), {5, 0, 1005, 5, 0, 2005, 0, 0, 0, 1005, 0, 0, 1005});
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
