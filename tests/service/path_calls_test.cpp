// SPDX-License-Identifier: Apache-2.0
// Calls on paths, and what they mean for files that are open.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "file/faulty_store.hpp"
#include "write_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(writing_service, calls_on_paths) {
  dir_.add("a", 1000, 1);
  start_posix();
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir, 0, 0, 0700), "d").result, 0);
  const auto renamed = client_->on_path(asking(opcode::rename), "a", "d/b");
  EXPECT_EQ(renamed.result, 0);
  EXPECT_TRUE(S_ISREG(renamed.mode));
  const auto status = client_->on_path(asking(opcode::stat), "/d/b");
  struct stat st;
  ASSERT_EQ(stat((dir_ / "d/b").c_str(), &st), 0);
  EXPECT_EQ(status.result, 0);
  EXPECT_EQ(status.file_nbytes, 1000);
  EXPECT_EQ(status.mode, st.st_mode);
  EXPECT_EQ(status.inode, st.st_ino);
  EXPECT_EQ(status.mtime_ns,
            static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec));
  EXPECT_TRUE(S_ISDIR(client_->on_path(asking(opcode::stat), "").mode));
  EXPECT_EQ(client_->on_path(asking(opcode::stat), "none").result, -ENOENT);
  ASSERT_EQ(symlink("d/b", (dir_ / "link").c_str()), 0);
  EXPECT_TRUE(S_ISREG(client_->on_path(asking(opcode::stat), "link").mode));

  for (int i = 0; i < 200; ++i) dir_.add("many/" + std::to_string(i), 10, 1);
  std::set<std::string> names;
  std::int64_t position = 0;
  int nanswers = 0;
  for (;; ++nanswers) {
    std::vector<std::byte> got;
    transport::request ask = asking(opcode::read_dir, 0, position);
    ask.handle = nanswers % 2 == 0 ? 1000 : ~0u;  // at most so many bytes
    const auto answer = client_->on_path(ask, "many", {}, &got);
    ASSERT_GE(answer.result, 0);
    ASSERT_LE(answer.result, std::min(ask.handle, 4096u));
    if (answer.result == 0) break;
    position = answer.file_nbytes;
    for (std::size_t at = 0; at < got.size();) {
      directory_entry entry;
      std::memcpy(&entry, got.data() + at, sizeof entry);
      EXPECT_EQ(entry.file_nbytes, 10);
      EXPECT_TRUE(names.insert(reinterpret_cast<const char*>(got.data() + at + sizeof entry)).second);
      at += entry.entry_nbytes;
    }
  }
  EXPECT_EQ(names.size(), 200u);
  EXPECT_GE(nanswers, 2);

  EXPECT_EQ(client_->on_path(asking(opcode::unlink), "d").result, -EISDIR);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink, names::unlink_directory), "d").result, -ENOTEMPTY);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink), "d/b").result, 0);
  EXPECT_EQ(client_->on_path(asking(opcode::unlink, names::unlink_directory), "d").result, 0);
  EXPECT_EQ(client_->on_path(asking(opcode::rename), "none", "x").result, -ENOENT);
  EXPECT_EQ(client_->on_path(asking(opcode::mkdir), "../x").result, -EXDEV);
  std::set<std::string> logged;
  for (const auto& entry : service_->log_entries()) {
    if (entry.error != 0) logged.insert(entry.operation + " " + entry.path + " " + entry.text);
  }
  EXPECT_EQ(logged, (std::set<std::string>{"stat none ", "unlink d ", "rename none to 'x'", "mkdir ../x "}));
}

TEST_P(writing_service, exclusive_without_create_cuts_as_others_do) {
  dir_.add("a", 100, 1);
  start_posix();
  const auto file = client_->open("a", O_RDWR | O_TRUNC | O_EXCL);
  EXPECT_EQ(file.result, 0);
  EXPECT_EQ(file.file_nbytes, 0);
  EXPECT_TRUE(bytes_of("a").empty());
  EXPECT_EQ(client_->open("b", O_RDWR | O_TRUNC | O_EXCL).result, -ENOENT);
  EXPECT_EQ(client_->open("b", O_RDWR | O_TRUNC | O_EXCL | O_CREAT).result, 0);
}

TEST_P(writing_service, who_opens_a_file_while_it_is_renamed_has_a_version) {
  for (const bool has_others_open : {false, true}) {
    dir_.add("a", 100, 1);
    let_file_times_pass();
    const auto files = noting(dir_.path());
    gate renames;
    files->on_rename = [&] { renames.pass(); };
    start(files, {.nworkers = 3});
    const std::uint32_t other = has_others_open ? client_->open("a").handle : 0;
    renames.close();
    std::thread renamer([&] { EXPECT_EQ(client_->on_path(asking(opcode::rename), "a", "b", nullptr, 1).result, 0); });
    EXPECT_TRUE(wait_until([&] { return renames.waiting() == 1; }));
    const auto beside = client_->open("a");
    EXPECT_EQ(beside.result, 0);
    renames.open();
    renamer.join();
    std::vector<std::byte> got;
    EXPECT_EQ(client_->read(beside.handle, 0, 100, &got), 100);
    EXPECT_EQ(got, content(1, 0, 100));
    if (has_others_open) {
      EXPECT_EQ(client_->read(other, 0, 100), 100);
    }
    const auto afterwards = client_->open("b");
    EXPECT_EQ(client_->read(afterwards.handle, 0, 100), 100);
    let_file_times_pass();
    std::filesystem::permissions(dir_ / "b", std::filesystem::perms::owner_all);  // ctime alone
    for (const auto& version : {beside, afterwards}) {
      EXPECT_EQ(client_->read(version.handle, 0, 100), -ESTALE) << "only a rename of the mount's own is none of a version's end";
    }
  }
}

TEST_P(writing_service, an_open_that_a_rename_overtakes_has_the_version_after_it) {
  for (const bool is_back : {false, true}) {
    dir_.add("a", 100, 1);
    let_file_times_pass();
    const auto files = noting(dir_.path());
    gate answers;
    files->on_opened = [&](std::string_view) { answers.pass(); };
    start(files, {.nworkers = 3});
    answers.close();
    const auto asked = client_->begin_open("a", 0, 0, 1);
    EXPECT_TRUE(wait_until([&] { return answers.waiting() == 1; }));
    EXPECT_EQ(client_->on_path(asking(opcode::rename), "a", "b").result, 0);
    if (is_back) {
      EXPECT_EQ(client_->on_path(asking(opcode::rename), "b", "a").result, 0);
    }
    answers.open();
    const auto opened = client_->wait(asked);
    client_->give_back(asked);
    EXPECT_EQ(opened.result, is_back ? 0 : -ENOENT);
    if (is_back) {
      EXPECT_EQ(client_->read(opened.handle, 0, 100), 100);
    }
    EXPECT_EQ(service_->counters().open_files, is_back ? 1u : 0u);
  }
}

TEST_P(writing_service, status_of_a_file_that_is_closed_meanwhile_says_what_was_written) {
  dir_.add("a", 3, 1);
  const auto files = noting(dir_.path());
  std::uint32_t writer = 0;
  std::atomic<bool> looked{false};
  files->on_status = [&] {
    if (looked.exchange(true)) return;
    EXPECT_EQ(client_->write(writer, 0, content(2, 0, 10), 1), 10);
    EXPECT_EQ(client_->close(writer, 1), 0);
  };
  start(files, {.nworkers = 3});
  writer = client_->open("a", O_RDWR, 5).handle;
  const auto status = client_->on_path(asking(opcode::stat), "a");
  EXPECT_EQ(status.result, 0);
  EXPECT_TRUE(looked);
  EXPECT_EQ(status.number, 0u);
  EXPECT_EQ(status.file_nbytes, 10);
}

TEST_P(writing_service, each_open_for_writing_has_a_cache_id_of_its_own) {
  dir_.add("a", 100, 1);
  let_file_times_pass();
  start_posix();
  const auto id_of = [&](int flags) {
    const auto file = client_->open("a", flags);
    EXPECT_EQ(client_->close(file.handle), 0);
    return file.cache_id;
  };
  std::set<std::uint32_t> ids;
  const std::uint32_t before = id_of(O_RDONLY);
  ids.insert(before);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(ids.insert(id_of(O_RDWR)).second);
  EXPECT_EQ(id_of(O_RDONLY), before) << "nothing was written: it is the version that it was";
  // On a slow machine the file's stamps may be settled before the second open, which then proves something: once more.
  bool quick = false;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!quick && std::chrono::steady_clock::now() < until) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint32_t writer = open_to_write("a");
    EXPECT_EQ(client_->write(writer, 0, content(2, 0, 10)), 10);
    EXPECT_EQ(client_->close(writer), 0);
    EXPECT_TRUE(ids.insert(id_of(O_RDONLY)).second) << "changed just now";
    const bool new_again = ids.insert(id_of(O_RDONLY)).second;
    quick = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(10);  // half of what settles them
    EXPECT_TRUE(new_again || !quick) << "and that proves nothing yet";
  }
  EXPECT_TRUE(quick);
  let_file_times_pass();
  const std::uint32_t after = id_of(O_RDONLY);
  EXPECT_TRUE(ids.insert(after).second);
  EXPECT_EQ(id_of(O_RDONLY), after);
}

}  // namespace
}  // namespace gpufs::test
