// SPDX-License-Identifier: Apache-2.0
// Who has a file open for reading has its version, or -ESTALE; of files that are read in both ways.
#include <thread>

#include "file/notes.hpp"
#include "file/watch.hpp"
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

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

// Who opens "f" anew has page 5 as it was changed, to that of seed 2.
void expect_as_it_is_now(const mount& m) {
  players late(m.ref(), {});
  script s;
  s.open(0, "f");
  s.pread(0, page, 5 * page);
  s.close(0);
  const auto now = late.run(s);
  EXPECT_EQ(now[1].value, page);
  EXPECT_EQ(wrong_bytes(now[1], page, 2, 5 * page), 0u);
}

TEST_P(versions, who_opens_a_file_that_others_have_changed_sees_that) {
  dir.add("f", 8 * page, 1);
  let_file_times_pass();
  const mount m(dir.path(), options());
  prepare_for_memcheck(m, "f");
  players before(m.ref(), {});
  script begin, read;
  begin.open(0, "f");
  begin.pread(0, page, 0);
  EXPECT_EQ(before.run(begin)[1].value, page);
  dir.overwrite("f", 5 * page, page, 2);
  if (GetParam() == store_kind::mapped) {
    expect_the_watch_has_told(m);
  }
  read.pread(0, page, 5 * page);
  EXPECT_EQ(before.run(read)[0].value, -ESTALE);
  expect_as_it_is_now(m);
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
    expect_as_it_is_now(m);
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
