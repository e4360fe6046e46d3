// SPDX-License-Identifier: Apache-2.0
// A file is its identity, a path only leads to it: opens of one file share what is written, whichever paths led to it and whatever
// becomes of these; and who has a file open for reading has its version, or -ESTALE.
#include <algorithm>
#include <thread>

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

struct append_around_a_rename {
  mount_ref fs{mount_layout{}};
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
  mount_ref fs{mount_layout{}};
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
    file_status status{};
    note(stat(warp, fs, "f", &status));
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
  mount_ref fs{mount_layout{}};
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
  mount_ref fs{mount_layout{}};
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
  mount_ref fs{mount_layout{}};
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
    note(fstat(warp, a, &status));
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
  mount_ref fs{mount_layout{}};
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
  mount_ref fs{mount_layout{}};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "f", O_GWRONCE | O_CREAT);
    note(pwrite(warp, a, "12345", 5, 1000));
    file_status status{};
    note(stat(warp, fs, "./f", &status));
    note(status.nbytes);
    const file b = open(warp, fs, "f", O_RDWR);
    note(pwrite(warp, b, "12345", 5, 2000));
    note(stat(warp, fs, "f", &status));
    note(status.nbytes);
    note(ftruncate(warp, b, 0));
    note(close(warp, b));
    note(stat(warp, fs, "f", &status));
    note(status.nbytes);
    note(close(warp, a));
    note(stat(warp, fs, "f", &status));
    note(status.nbytes);
  }
};
TEST_F(names, stat_knows_the_size_of_a_file_that_is_written_once) {
  expect(run(size_of_a_file_written_once{}), {5, 0, 1005, 5, 0, 2005, 0, 0, 0, 1005, 0, 0, 1005});
}

// Versions, of files that are read in both ways.
class versions : public ::testing::TestWithParam<store_kind> {
 protected:
  static script end_script() {
    script s;
    s.close(0);
    return s;
  }
  mount_options options() const {
    mount_options o = writing();
    o.store = GetParam();
    return o;
  }
  temp_dir dir{memory_directory()};
};
INSTANTIATE_TEST_SUITE_P(stores, versions, ::testing::Values(store_kind::posix, store_kind::mapped),
                         [](const auto& tested) { return std::string(tested.param == store_kind::posix ? "posix" : "mapped"); });

struct rename_file_and_directory {
  mount_ref fs;
  std::int64_t* results;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    note(rename(warp, fs, "d/f", "d/g"));
    note(rename(warp, fs, "d", "e"));
  }
};
TEST_P(versions, a_file_that_this_mount_renames_is_read_on) {
  dir.add("d/f", 8 * page, 1);
  let_file_times_pass();
  const mount m(dir.path(), options());
  prepare_for_memcheck(m, "d/f");
  players groups(m.ref(), {});
  script before, after;
  before.open(0, "d/f");
  before.pread(0, page, 0);
  EXPECT_EQ(groups.run(before)[1].value, page);
  let_file_times_pass();
  const device_buffer<std::int64_t> results(2);
  simt::launch({.grid = 1, .block = 32}, rename_file_and_directory{m.ref(), results.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{0, 0}));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the watch has looked at it
  after.pread(0, 7 * page, page);
  after.close(0);
  const auto got = groups.run(after);
  EXPECT_EQ(got[0].value, 7 * page);
  EXPECT_EQ(wrong_bytes(got[0], 7 * page, 1, page), 0u);
  EXPECT_TRUE(m.log().empty()) << m.log().front();
}

TEST_P(versions, who_opens_a_file_that_others_have_changed_sees_that) {
  dir.add("f", 8 * page, 1);
  let_file_times_pass();
  const mount m(dir.path(), options());
  prepare_for_memcheck(m, "f");
  players before(m.ref(), {}), late(m.ref(), {});
  script begin, read, anew;
  begin.open(0, "f");
  begin.pread(0, page, 0);
  EXPECT_EQ(before.run(begin)[1].value, page);
  dir.overwrite("f", 5 * page, page, 2);
  if (GetParam() == store_kind::mapped) {
    EXPECT_TRUE(wait_until([&] { return !m.log().empty(); }));  // the watch has looked at it
  }
  read.pread(0, page, 5 * page);
  EXPECT_EQ(before.run(read)[0].value, -ESTALE);
  anew.open(0, "f");
  anew.pread(0, page, 5 * page);
  anew.close(0);
  const auto now = late.run(anew);
  EXPECT_EQ(now[1].value, page);
  EXPECT_EQ(wrong_bytes(now[1], page, 2, 5 * page), 0u);
  EXPECT_EQ(before.run(end_script())[0].value, 0);
}

// Who had it open for reading gets its version's bytes or -ESTALE, and no count that looks like the end of the file.
TEST_P(versions, who_read_before_a_writer_gets_their_version_or_stale) {
  for (const bool closes : {false, true}) {
    dir.add("f", 8 * page, 1);
    let_file_times_pass();
    const mount m(dir.path(), options());
    prepare_for_memcheck(m, "f");
    prepare_for_memcheck(m, "f", O_RDWR);
    players reader(m.ref(), {}), writer(m.ref(), {});
    script begin, write, read;
    begin.open(0, "f");
    begin.pread(0, page, 2 * page);
    EXPECT_EQ(reader.run(begin)[1].value, page);
    write.open(0, closes ? "./f" : "f", O_RDWR);
    write.pwrite(0, content(2, 0, 8 * page), 0);
    if (closes) write.close(0);
    EXPECT_EQ(writer.run(write)[1].value, 8 * page);
    const auto cached = read.pread(0, page, 2 * page), missing = read.pread(0, page, 5 * page);
    const auto over_both = read.pread(0, 3 * page, 2 * page);
    const auto got = reader.run(read);
    EXPECT_EQ(got[cached].value, page);
    EXPECT_EQ(wrong_bytes(got[cached], page, 1, 2 * page), 0u);
    EXPECT_EQ(got[missing].value, -ESTALE);
    EXPECT_EQ(got[over_both].value, -ESTALE);
    // Who opens it now sees what it is now, though the same path is open still.
    players late(m.ref(), {});
    script anew;
    anew.open(0, "f");
    anew.pread(0, page, 5 * page);
    anew.close(0);
    const auto now = late.run(anew);
    EXPECT_EQ(now[1].value, page);
    EXPECT_EQ(wrong_bytes(now[1], page, 2, 5 * page), 0u);
    EXPECT_EQ(reader.run(end_script())[0].value, 0);
    if (!closes) {
      EXPECT_EQ(writer.run(end_script())[0].value, 0);
    }
    EXPECT_EQ(dir.read("f"), content(2, 0, 8 * page));
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
