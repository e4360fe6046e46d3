// SPDX-License-Identifier: Apache-2.0
// Names that change while others open them: each open gets a file that its path led to at some time since the open began.
#include <sys/stat.h>

#include <atomic>
#include <set>
#include <thread>

#include "file/faulty_store.hpp"
#include "file/noting_store.hpp"
#include "file/pinned_words.hpp"
#include "file/writing.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Removes and renames as the real one, and answers only once somebody has made a file since: so the kernel's table hears of it
// late.
class late_remover final : public store::store {
 public:
  explicit late_remover(const std::string& root)
      : real_(std::make_shared<gpufs::store::posix_store>(root, gpufs::store::posix_options{.writable = true})) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = real_->open(path, flags, error);
    if (file != nullptr && (flags & O_EXCL) != 0) ++nmade_;
    return file;
  }
  int unlink(std::string_view path, bool directory) override {
    const unsigned before = nmade_;
    const int error = real_->unlink(path, directory);
    await(before);
    return error;
  }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override {
    const unsigned before = nmade_;
    const int error = real_->rename(from, to, mode);
    await(before);
    return error;
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override { return real_->status(path, link, out); }
  std::string_view name() const override { return "late_remover"; }

 private:
  void await(unsigned before) const {
    wait_until([&] { return nmade_ != before; }, std::chrono::seconds(10));
  }
  std::shared_ptr<gpufs::store::store> real_;
  std::atomic<unsigned> nmade_{0};
};

// The first group removes the path, or renames it. The second finds that it is gone, makes it anew, and appends; the third opens it
// once the first is done, and appends to the same file.
struct make_while_it_is_removed {
  mount_ref fs;
  bool renames;
  std::uint32_t* done;
  std::int64_t* offsets;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const simt::deadline until(20'000'000'000);
    simt::backoff pause;
    const auto is_done = [&](std::uint32_t n) {
      return warp.broadcast(simt::atomic_ref<std::uint32_t>(*done).load(std::memory_order_acquire) >= n || until.expired());
    };
    std::int64_t at = -1;
    switch (simt::block_rank()) {
      case 0:
        at = renames ? rename(warp, fs, "f", "g") : unlink(warp, fs, "f");
        break;
      case 1:
        for (;;) {
          const file old = open(warp, fs, "f", O_WRONLY);
          if (old.error() == -ENOENT || warp.broadcast(until.expired())) break;
          if (old.error() == 0) close(warp, old);
          pause();
        }
        at = append(warp, open(warp, fs, "f", O_WRONLY | O_CREAT | O_EXCL), "appended", 8);
        break;
      default:
        while (!is_done(2)) pause();
        at = append(warp, open(warp, fs, "f", O_WRONLY), "appended", 8);
    }
    if (warp.leader()) {
      offsets[simt::block_rank()] = at;
      simt::atomic_ref<std::uint32_t>(*done).fetch_add(1, std::memory_order_release);
    }
  }
};
TEST(names_race, a_file_made_while_its_path_is_removed_is_one_file) {
  expect_leftovers("nothing is closed");
  for (const bool renames : {false, true}) {
    temp_dir dir{memory_directory()};
    dir.add("f", 100, 1);
    mount_options o = writing();
    o.custom_store = std::make_shared<late_remover>(dir.path());
    o.nworkers = 4;  // one waits in the store
    const mount fs(dir.path(), o);
    const device_buffer<std::int64_t> offsets(3);
    const device_buffer<std::uint32_t> done(1);
    simt::launch({.grid = 3, .block = 32}, make_while_it_is_removed{fs.ref(), renames, done.get(), offsets.get()});
    EXPECT_EQ(offsets.read(), (std::vector<std::int64_t>{0, 0, 8}));
    EXPECT_EQ(fs.open_files().size(), 1u) << "two opens of one file";
  }
}

// Some groups open a path, making it anew where it is gone, and append; another removes it all the while, or puts another file in
// its place. All who have one file, by whichever open, append behind one another. (Nothing is closed, so an inode is one file.)
struct append_while_it_is_removed {
  mount_ref fs;
  bool replaces;
  unsigned rounds;
  std::int64_t* inodes;  // [group][round]
  std::int64_t* offsets;
  std::uint32_t* done;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint32_t me = simt::block_rank();
    if (me == 0) {
      const simt::deadline until(20'000'000'000);
      simt::backoff pause;
      while (warp.broadcast(simt::atomic_ref<std::uint32_t>(*done).load(std::memory_order_relaxed)) < simt::grid_size() - 1) {
        if (replaces) {
          open(warp, fs, "other", O_WRONLY | O_CREAT);
          rename(warp, fs, "other", "f");
        } else {
          unlink(warp, fs, "f");
        }
        if (warp.broadcast(until.expired())) return;
        pause();
      }
      return;
    }
    for (unsigned i = 0; i < rounds; ++i) {
      const file f = open(warp, fs, "f", O_WRONLY | O_CREAT);
      const file_status status = fstat(warp, f);
      const std::int64_t at = append(warp, f, "appended", 8);
      if (warp.leader()) {
        inodes[(me - 1) * rounds + i] = f.error() != 0 ? f.error() : static_cast<std::int64_t>(status.inode);
        offsets[(me - 1) * rounds + i] = at;
      }
    }
    if (warp.leader()) simt::atomic_ref<std::uint32_t>(*done).fetch_add(1, std::memory_order_relaxed);
  }
};
TEST(names_race, appends_beside_one_who_removes_or_replaces_the_file_do_not_overlap) {
  expect_leftovers("nothing is closed");
  constexpr unsigned ngroups = 4, rounds = 12;
  for (std::uint64_t seed = 1; seed <= schedules(40, 6); ++seed) {
    temp_dir dir{memory_directory()};
    mount_options o = writing();
    o.max_open_files = 4096;
    const mount fs(dir.path(), o);
    const device_buffer<std::int64_t> inodes(ngroups * rounds), offsets(ngroups * rounds);
    const device_buffer<std::uint32_t> done(1);
    simt::launch({.grid = 1 + ngroups, .block = 32, .schedule = {.seed = seed, .switch_percent = 40}},
                 append_while_it_is_removed{fs.ref(), seed % 2 == 0, rounds, inodes.get(), offsets.get(), done.get()});
    ASSERT_EQ(done.read_one(), ngroups) << "seed " << seed;
    std::set<std::pair<std::int64_t, std::int64_t>> places;
    const auto files = inodes.read(), at = offsets.read();
    for (std::size_t i = 0; i < files.size(); ++i) {
      ASSERT_GT(files[i], 0) << "seed " << seed;
      ASSERT_GE(at[i], 0) << "seed " << seed;
      EXPECT_TRUE(places.emplace(files[i], at[i]).second)
          << "seed " << seed << ": two appends at " << at[i] << " of inode " << files[i];
    }
  }
}

// Groups open one file by two spellings at once, append, and close.
struct append_by_two_spellings {
  mount_ref fs;
  unsigned rounds;
  std::uint32_t* bad;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const char* path = simt::block_rank() % 2 == 0 ? "f" : "./f";
    for (unsigned i = 0; i < rounds; ++i) {
      const file f = open(warp, fs, path, O_WRONLY);
      const std::int64_t at = append(warp, f, "appended", 8);
      const int closed = close(warp, f);
      if (warp.leader() && (at < 0 || closed != 0)) simt::atomic_ref<std::uint32_t>(*bad).fetch_add(1, std::memory_order_relaxed);
    }
  }
};
TEST(names_race, opens_by_two_spellings_at_once_lose_no_append) {
  constexpr unsigned ngroups = 4, rounds = 6;
  for (std::uint64_t seed = 1; seed <= schedules(60, 8); ++seed) {
    temp_dir dir{memory_directory()};
    dir.add("f", 0, 1);
    const mount fs(dir.path(), writing());
    const device_buffer<std::uint32_t> bad(1);
    simt::launch({.grid = ngroups, .block = 32, .schedule = {.seed = seed, .switch_percent = 40}},
                 append_by_two_spellings{fs.ref(), rounds, bad.get()});
    EXPECT_EQ(bad.read_one(), 0u) << "seed " << seed;
    EXPECT_EQ(dir.read("f").size(), ngroups * rounds * 8) << "seed " << seed;
    EXPECT_EQ(fs.counters().host_opens, fs.counters().host_closes) << "seed " << seed;
    EXPECT_TRUE(fs.open_files().empty()) << "seed " << seed;
    expect_all_written(fs);
  }
}

// Opens really, and then waits at a gate before it says what came of it, where the path begins so.
class late_answer_store final : public gpufs::store::store {
 public:
  explicit late_answer_store(const std::string& root, std::string_view late = "")
      : real_(std::make_shared<gpufs::store::posix_store>(root, gpufs::store::posix_options{.writable = true})), late_(late) {}
  gate& answers() { return answers_; }
  std::string_view name() const override { return "late"; }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = real_->open(path, flags, error);
    if (path.starts_with(late_)) answers_.pass();
    return file;
  }
  int unlink(std::string_view path, bool directory) override { return real_->unlink(path, directory); }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override { return real_->rename(from, to, mode); }
  int make_directory(std::string_view path, std::uint32_t mode) override { return real_->make_directory(path, mode); }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override { return real_->status(path, link, out); }

 private:
  std::shared_ptr<gpufs::store::store> real_;
  std::string_view late_;
  gate answers_;
};

struct open_in_a_new_directory {
  mount_ref fs;
  std::int64_t* results;
  std::uint32_t* go;  // pinned: the host has seen the first open's error
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (simt::block_rank() == 0) {
      const file f = open(warp, fs, "d/f", O_RDWR | O_CREAT);
      if (warp.leader()) results[0] = f.error();
    } else {
      wait_until_set(go);
      const int made = mkdir(warp, fs, "d");
      const file f = open(warp, fs, "d/f", O_RDWR | O_CREAT);
      if (warp.leader()) {
        results[1] = made;
        results[2] = f.error();
      }
      if (f.error() == 0) close(warp, f);
    }
  }
};
TEST(names_answered, an_open_takes_no_error_from_before_it_began) {
  const temp_dir dir(memory_directory());
  auto store = std::make_shared<late_answer_store>(dir.path());
  mount_options o = writing();
  o.custom_store = store;
  o.nworkers = 4;
  const mount m(dir.path(), o);
  const device_buffer<std::int64_t> results(3);
  const pinned_buffer<std::uint32_t> go(1);
  store->answers().close();
  std::thread host([&] {
    EXPECT_TRUE(wait_until([&] { return store->answers().waiting() == 1; }));  // the first open's answer is -ENOENT
    std::atomic_ref<std::uint32_t>(*go.get()).store(1, std::memory_order_release);
    // Until the second open has joined the first one's, or asks the host on its own.
    EXPECT_TRUE(wait_until([&] { return m.counters().opens >= 2 || store->answers().waiting() == 2; }));
    store->answers().open();
  });
  simt::launch({.grid = 2, .block = 32}, open_in_a_new_directory{m.ref(), results.get(), go.get()});
  host.join();
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{-ENOENT, 0, 0}));
}

// The first group is opening the file by one spelling, or by a link: the host has found it, and is about to say so. The second
// removes the file by another one, or puts another file in its place, and then opens the first one's path, while that one waits or
// when it has its file.
struct remove_while_it_is_opened {
  mount_ref fs;
  const char* path;
  bool replaces, joins, written;  // written: the first has it open before
  std::uint32_t* found;           // pinned: by the host
  std::uint32_t* removed;         // pinned
  std::uint32_t* opened;          // by the first; by the second
  std::int64_t* inodes;           // of the files that they got

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    file_status status{};
    if (simt::block_rank() == 0) {
      const file before = open(warp, fs, written ? "f" : "other", O_RDWR);
      const file f = open(warp, fs, path, O_RDWR);
      status = fstat(warp, f);
      if (warp.leader()) inodes[0] = static_cast<std::int64_t>(status.inode);
      tell(opened);
      wait_until_set(opened + 1);
      close(warp, f);
      close(warp, before);
      return;
    }
    wait_until_set(found);
    const int error = replaces ? rename(warp, fs, "g", "f") : unlink(warp, fs, "f");
    tell(removed);
    if (!joins) wait_until_set(opened);
    const file f = open(warp, fs, path, O_RDWR | O_CREAT);
    status = fstat(warp, f);
    if (warp.leader()) inodes[1] = error != 0 ? error : static_cast<std::int64_t>(status.inode);
    tell(opened + 1);
    close(warp, f);
  }
};
std::int64_t inode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::int64_t>(status.st_ino) : -errno;
}
class names_late : public ::testing::TestWithParam<std::tuple<bool, bool, bool, bool>> {};
TEST_P(names_late, nobody_joins_a_file_that_was_removed_while_it_was_opened) {
  const auto [link, replaces, joins, written] = GetParam();
  const temp_dir dir(memory_directory());
  for (const char* name : {"f", "g", "other"}) dir.add(name, 100, 1);
  std::filesystem::create_symlink("f", dir / "l");
  const std::int64_t old = inode_of(dir / "f");
  const std::string path = link ? "l" : "./f";
  auto store = std::make_shared<late_answer_store>(dir.path(), path);
  mount_options o = writing();
  o.custom_store = store;
  o.nworkers = 4;
  const mount m(dir.path(), o);
  const device_buffer<std::int64_t> inodes(2);
  const device_buffer<std::uint32_t> opened(2);
  const device_buffer<char> text(std::vector<char>(path.c_str(), path.c_str() + path.size() + 1));
  const pinned_buffer<std::uint32_t> found(1), removed(1);
  store->answers().close();
  std::thread host([&, joins = joins] {
    EXPECT_TRUE(wait_until([&] { return store->answers().waiting() == 1; }));
    std::atomic_ref<std::uint32_t>(*found.get()).store(1, std::memory_order_release);
    EXPECT_TRUE(wait_until([&] { return std::atomic_ref<std::uint32_t>(*removed.get()).load(std::memory_order_acquire) == 1; }));
    // Until the second open has joined the first one's, or asks the host on its own.
    const auto asks = [&] { return m.counters().opens >= 3 || store->answers().waiting() == 2; };
    EXPECT_TRUE(!joins || wait_until(asks));
    store->answers().open();
  });
  simt::launch({.grid = 2, .block = 32}, remove_while_it_is_opened{m.ref(), text.get(), replaces, joins, written, found.get(),
                                                                   removed.get(), opened.get(), inodes.get()});
  host.join();
  const auto got = inodes.read();
  EXPECT_EQ(got[0], old);
  EXPECT_NE(got[1], old) << "the removed file";
  EXPECT_EQ(got[1], inode_of(dir / "f"));
  EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
}
std::string name_of(const ::testing::TestParamInfo<names_late::ParamType>& tested) {
  const auto [link, replaces, joins, written] = tested.param;
  return std::string(link ? "link_" : "spelling_") + (replaces ? "replaced_" : "removed_") + (joins ? "meanwhile" : "later") +
         (written ? "_open_before" : "");
}
INSTANTIATE_TEST_SUITE_P(by, names_late,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Bool(), ::testing::Bool()), name_of);

// The first group removes a file, or puts another one in its place, and then opens it by a spelling or link by which the others
// open, write and close it all the while. Nobody else removes it: what it opens is what the path leads to then.
struct remove_and_open_by_another_path {
  mount_ref fs;
  unsigned rounds;
  std::uint32_t* done;
  std::uint32_t* bad;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const simt::deadline until(20'000'000'000);
    simt::backoff pause;
    const auto note = [&](bool wrong) {
      if (warp.leader() && wrong) simt::atomic_ref<std::uint32_t>(*bad).fetch_add(1, std::memory_order_relaxed);
    };
    if (simt::block_rank() != 0) {
      const char* path = simt::block_rank() % 2 == 0 ? "l" : "./f";
      while (warp.broadcast(simt::atomic_ref<std::uint32_t>(*done).load(std::memory_order_relaxed)) == 0) {
        const file f = open(warp, fs, path, O_WRONLY | O_CREAT);
        const std::int64_t at = append(warp, f, "appended", 8);
        note(at < 0 || close(warp, f) != 0 || until.expired());
        if (warp.broadcast(until.expired())) return;
        pause();
      }
      return;
    }
    for (unsigned i = 0; i < rounds; ++i) {
      if (i % 3 == 0) {
        close(warp, open(warp, fs, "other", O_WRONLY | O_CREAT));
        note(rename(warp, fs, "other", "f") != 0);
      } else {
        const int error = unlink(warp, fs, "f");
        note(error != 0 && error != -ENOENT);
      }
      const file f = open(warp, fs, i % 2 == 0 ? "l" : "./f", O_WRONLY | O_CREAT);
      const file_status opened = fstat(warp, f);
      const path_status there = stat(warp, fs, "f");
      note(opened.error != 0 || there.error != 0 || opened.inode != there.inode);
      note(close(warp, f) != 0);
    }
    if (warp.leader()) simt::atomic_ref<std::uint32_t>(*done).store(1, std::memory_order_relaxed);
  }
};
TEST(names_race, who_removes_a_file_finds_it_by_no_path) {
  constexpr unsigned ngroups = 4, rounds = 12;
  for (std::uint64_t seed = 1; seed <= schedules(60, 6); ++seed) {
    temp_dir dir{memory_directory()};
    std::filesystem::create_symlink("f", dir / "l");
    const mount m(dir.path(), writing());
    const device_buffer<std::uint32_t> done(1), bad(1);
    simt::launch({.grid = 1 + ngroups, .block = 32, .schedule = {.seed = seed, .switch_percent = 40}},
                 remove_and_open_by_another_path{m.ref(), rounds, done.get(), bad.get()});
    EXPECT_EQ(bad.read_one(), 0u) << "seed " << seed;
    EXPECT_EQ(m.counters().host_opens, m.counters().host_closes) << "seed " << seed;
    EXPECT_TRUE(m.open_files().empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
