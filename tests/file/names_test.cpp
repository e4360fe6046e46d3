// SPDX-License-Identifier: Apache-2.0
// A file is its identity, a path only leads to it: opens of one file share what is written, whichever paths led to it and whatever
// becomes of these; and who has a file open for reading has its version, or -ESTALE.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "file/faulty_store.hpp"
#include "file/notes.hpp"
#include "file/noting_store.hpp"
#include "file/writing.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

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
      file_status status{};
      fstat(warp, f, &status);
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

// All lanes of a warp call: until the host has set the word, or 20 s have passed.
GPUFS_DEVICE void wait_for_host(std::uint32_t* word) {
  const simt::deadline until(20'000'000'000);
  simt::backoff pause;
  // Meets the host's release store.
  while (this_warp().broadcast(simt::atomic_ref<std::uint32_t, simt::scope::system>(*word).load(std::memory_order_acquire) == 0 &&
                               !until.expired())) {
    pause();
  }
}

// Opens really, and then waits at a gate before it says what came of it.
class late_answer_store final : public gpufs::store::store {
 public:
  explicit late_answer_store(std::shared_ptr<gpufs::store::store> real) : real_(std::move(real)) {}
  gate& answers() { return answers_; }
  std::string_view name() const override { return "late"; }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = real_->open(path, flags, error);
    answers_.pass();
    return file;
  }
  int make_directory(std::string_view path, std::uint32_t mode) override { return real_->make_directory(path, mode); }

 private:
  std::shared_ptr<gpufs::store::store> real_;
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
      wait_for_host(go);
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
TEST(names_late, an_open_takes_no_error_from_before_it_began) {
  const temp_dir dir(memory_directory());
  auto store = std::make_shared<late_answer_store>(
      std::make_shared<gpufs::store::posix_store>(dir.path(), gpufs::store::posix_options{.writable = true}));
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

// The first group writes a file in memory in place and closes it; the second opens it while the host is at that close, which moves
// the file's mtime, and reads it later.
struct open_while_it_is_closed {
  mount_ref fs;
  const char* bytes;
  char* to;
  std::int64_t* results;
  std::uint32_t* closing;  // pinned: the host has begun

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (simt::block_rank() == 0) {
      const file f = open(warp, fs, "f", O_RDWR);
      const std::int64_t n = pwrite(warp, f, bytes, page, 5 * page);
      const int closed = close(warp, f);
      if (warp.leader()) results[0] = n, results[1] = closed;
      return;
    }
    simt::backoff pause;
    wait_for_host(closing);
    const file f = open(warp, fs, "f");
    const simt::deadline watched(400'000'000);
    while (warp.broadcast(!watched.expired())) pause();
    const std::int64_t n = pread(warp, f, to, page, 5 * page);
    const int closed = close(warp, f);
    if (warp.leader()) results[2] = n, results[3] = closed;
  }
};
TEST(names_late, who_opens_a_file_while_it_is_closed_gets_what_that_leaves) {
  if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  const temp_dir dir(memory_directory());
  dir.add("f", 8 * page, 1);
  let_file_times_pass();
  auto store = std::make_shared<noting_store>(mapping_store(dir.path()));
  const pinned_buffer<std::uint32_t> closing(1);
  std::atomic<unsigned> nopens{0};
  store->on_open = [&](std::string_view) { ++nopens; };
  store->on_note = [&](bool last) {
    if (!last) return;
    const unsigned before = nopens;
    std::atomic_ref<std::uint32_t>(*closing.get()).store(1, std::memory_order_release);
    wait_until([&] { return nopens != before; }, std::chrono::milliseconds(200));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the open ends; another tick of the file's clock
  };
  mount_options o = writing();
  o.custom_store = store;
  o.nworkers = 4;
  const mount m(dir.path(), o);
  prepare_for_memcheck(m, "f");
  prepare_for_memcheck(m, "f", O_RDWR);
  const auto wanted = content(2, 0, page);
  const device_buffer<std::byte> bytes(wanted), to(page);
  const device_buffer<std::int64_t> results(4);
  simt::launch({.grid = 2, .block = 32}, open_while_it_is_closed{m.ref(), reinterpret_cast<const char*>(bytes.get()),
                                                                 reinterpret_cast<char*>(to.get()), results.get(), closing.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{page, 0, page, 0}));
  EXPECT_EQ(to.read(), wanted);
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
