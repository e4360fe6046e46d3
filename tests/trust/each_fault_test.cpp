// SPDX-License-Identifier: Apache-2.0
// One kernel that uses all of the interface, and each call of the system that the host makes for it fails in turn: once, or from
// then on. Whatever fails, no call gives wrong bytes, says success of what is lost, or waits for an answer that nobody gives; and
// what failed once works the next time.
#include <sys/stat.h>

#include <cstring>

#include "failing_calls.hpp"
#include "file/writing.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

enum step : unsigned {
  open_read,
  read_all,
  stat_open,
  map_one,
  read_by_pointer,
  close_read,
  open_new,
  write_new,
  append_new,
  sync_new,
  cut_new,
  read_new,
  sync_new_data,
  close_new,
  open_log,
  append_log,
  append_lanes,
  close_log,
  open_stores,
  map_to_write,
  sync_page,
  unmap_written,
  close_stores,
  open_once,
  write_once,
  close_once,
  open_pointed,
  write_by_pointer,
  close_pointed,
  make_dir,
  rename_in,
  stat_new_name,
  list_dir,
  unlink_file,
  remove_dir,
  open_both,
  close_both,
  nsteps
};
constexpr const char* names[] = {
    "open_read",     "read_all",     "stat_open",    "map_one",       "read_by_pointer", "close_read",    "open_new",
    "write_new",     "append_new",   "sync_new",     "cut_new",       "read_new",        "sync_new_data", "close_new",
    "open_log",      "append_log",   "append_lanes", "close_log",     "open_stores",     "map_to_write",  "sync_page",
    "unmap_written", "close_stores", "open_once",    "write_once",    "close_once",      "open_pointed",  "write_by_pointer",
    "close_pointed", "make_dir",     "rename_in",    "stat_new_name", "list_dir",        "unlink_file",   "remove_dir",
    "open_both",     "close_both"};

constexpr std::uint32_t read_nbytes = 5 * page + 100, new_nbytes = 2 * page + 50, appended = 300, cut_to = 2 * page;
constexpr std::int64_t wrong_bytes = -100'000;  // a result: success was said, and the bytes are not those of the file

// What the kernel finds in the folder, and each file's seed.
constexpr std::uint64_t seed_read = 1, seed_new = 2, seed_log = 3, seed_stores = 4, seed_once = 5, seed_pointed = 6;

struct every_verb {
  mount_ref fs;
  std::byte* memory;  // 32 KiB
  const char* const* both;
  std::int64_t* results;
  bool again;  // the second time: the folder has what the first has made

  template <class Group>
  GPUFS_DEVICE void note(Group group, step which, std::int64_t value) const {
    if (group.leader()) results[which] = value;
  }
  template <class Group>
  GPUFS_DEVICE std::int64_t checked(Group group, const std::byte* bytes, std::uint64_t seed, std::int64_t first,
                                    std::int64_t n) const {
    bool good = true;
    for (std::int64_t i = group.rank(); i < n; i += group.size()) {
      good &= bytes[i] == content_byte(seed, static_cast<std::uint64_t>(first + i));
    }
    return group.all(good) ? n : wrong_bytes;
  }
  template <class Group>
  GPUFS_DEVICE const std::byte* filled(Group group, std::uint64_t seed, std::uint64_t first, std::uint64_t n) const {
    std::byte* at = memory + 16384;
    group.sync();
    for (std::uint64_t i = group.rank(); i < n; i += group.size()) at[i] = content_byte(seed, first + i);
    group.sync();
    return at;
  }

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    read(warp);
    write(warp);
    log(warp);
    store(warp);
    once(warp);
    point(warp);
    walk(warp);
  }
  template <class Group>
  GPUFS_DEVICE void read(Group group) const {
    const file f = open(group, fs, "read");
    note(group, open_read, f.error());
    const std::int64_t n = pread(group, f, memory, 16384, 0);
    group.sync();
    note(group, read_all, n < 0 ? n : checked(group, memory, seed_read, 0, n));
    const file_status status = fstat(group, f);
    const int error = status.error;
    note(group, stat_open, error != 0 ? error : status.nbytes);
    gpufs::mapped_page mapped = map_page(group, f, 3 * gpufs::test::page);
    note(group, map_one,
         mapped.error() != 0 ? mapped.error() : checked(group, mapped.data(), seed_read, 3 * gpufs::test::page, mapped.nbytes()));
    unmap_page(group, std::move(mapped));
    std::int64_t wrong = 0, failed = 0;
    {
      auto p = map<const std::byte>(group, f) + group.rank();
      for (std::int64_t i = group.rank(); i < read_nbytes; i += 32, p += 32) {
        const std::byte got = *p;
        const int e = p.error();
        if (e != 0) failed = e;
        wrong += e == 0 && got != content_byte(seed_read, static_cast<std::uint64_t>(i)) ? 1 : 0;
      }
    }
    wrong = group.any(wrong != 0) ? wrong_bytes : 0;
    note(group, read_by_pointer, wrong != 0 ? wrong : group.any(failed != 0) ? -EIO : 0);
    note(group, close_read, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void write(Group group) const {
    const file f = open(group, fs, "new", O_RDWR | O_CREAT | O_TRUNC);
    note(group, open_new, f.error());
    note(group, write_new, pwrite(group, f, filled(group, seed_new, 0, new_nbytes), new_nbytes, 0));
    note(group, append_new, append(group, f, filled(group, seed_new, new_nbytes, appended), appended));
    note(group, sync_new, fsync(group, f));
    note(group, cut_new, ftruncate(group, f, cut_to));
    const std::int64_t n = pread(group, f, memory, 16384, 0);
    group.sync();
    note(group, read_new, n < 0 ? n : checked(group, memory, seed_new, 0, n));
    note(group, sync_new_data, fsync(group, f, durability::data));
    note(group, close_new, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void log(Group group) const {
    const file f = open(group, fs, "log", O_WRONLY | O_CREAT);
    note(group, open_log, f.error());
    note(group, append_log, append(group, f, filled(group, seed_log, 0, appended), appended));
    // The lanes' records, a word each.
    const std::byte* words = filled(group, seed_log + 100, 0, 4 * group.size());
    const std::int64_t at = append_each(group, f, words + 4 * group.rank(), 4);
    const std::int64_t first = group.broadcast(at);
    const bool apart = at >= 0 && at != first + 4 * static_cast<std::int64_t>(group.rank());
    note(group, append_lanes, group.any(apart) ? wrong_bytes : group.any(at < 0) ? group.reduce_min(at) : at);
    note(group, close_log, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void store(Group group) const {
    const file f = open(group, fs, "stores", O_RDWR);
    note(group, open_stores, f.error());
    mapped_page mapped = map_page<std::byte>(group, f, gpufs::test::page);
    note(group, map_to_write, mapped.error() != 0 ? mapped.error() : std::int64_t{mapped.nbytes()});
    if (mapped.error() == 0) {
      const std::byte* from = filled(group, seed_stores + 100, 0, 200);
      for (unsigned i = group.rank(); i < 200; i += group.size()) mapped.data()[i] = from[i];
    }
    group.sync();
    note(group, sync_page, msync(group, mapped));
    note(group, unmap_written, unmap_page(group, std::move(mapped)));
    note(group, close_stores, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void once(Group group) const {
    const file f = open(group, fs, "once", O_GWRONCE | O_CREAT);
    note(group, open_once, f.error());
    note(group, write_once, pwrite(group, f, filled(group, seed_once, 0, 700), 700, 0));
    note(group, close_once, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void point(Group group) const {
    const file f = open(group, fs, "pointed", O_RDWR);
    note(group, open_pointed, f.error());
    int error = 0;
    {
      auto p = map<std::uint32_t>(group, f);
      error = p.error();
      if (error == 0) {
        p += group.rank() * 16;
        *p = group.rank();
        error = p.error();
      }
    }
    note(group, write_by_pointer, group.any(error != 0) ? -EIO : 0);
    note(group, close_pointed, close(group, f));
  }
  template <class Group>
  GPUFS_DEVICE void walk(Group group) const {
    note(group, make_dir, mkdir(group, fs, again ? "made2" : "made"));
    note(group, rename_in, again ? rename(group, fs, "kept/moved", "kept/moved2") : rename(group, fs, "old", "kept/moved"));
    const path_status status = stat(group, fs, again ? "kept/moved2" : "kept/moved");
    const int error = status.error;
    note(group, stat_new_name, error != 0 ? error : status.nbytes);
    std::int64_t total = 0;
    directory_part part{};
    while ((part = read_directory(group, fs, "listed", memory, 4096, part.position)).nbytes > 0) total += part.nbytes;
    note(group, list_dir, part.nbytes < 0 ? part.nbytes : total);
    note(group, unlink_file, unlink(group, fs, again ? "gone2" : "gone"));
    note(group, remove_dir, rmdir(group, fs, again ? "empty2" : "empty"));
    auto* numbers = reinterpret_cast<file_number*>(memory);
    const bool all = open_all(group, fs, ".", both, 2, O_RDONLY, numbers);
    group.sync();
    note(group, open_both, all ? 0 : -EIO);
    note(group, close_both, close_all(group, fs, numbers, 2) ? 0 : -EIO);
  }
};

struct kind {
  store_kind store;
  bool openat2;  // false: forbidden, as in some containers
};

class each_fault : public ::testing::TestWithParam<kind> {
 protected:
  // A folder as it is at first, whose files were not changed just now; many are made at once, to wait once.
  std::unique_ptr<temp_dir> folder() {
    if (folders_.empty()) {
      while (folders_.size() < 32) folders_.push_back(new_folder());
      let_file_times_pass();
    }
    auto last = std::move(folders_.back());
    folders_.pop_back();
    return last;
  }
  static std::unique_ptr<temp_dir> new_folder() {
    auto dir = std::make_unique<temp_dir>(memory_directory());
    dir->add("read", read_nbytes, seed_read);
    dir->add("stores", 3 * page, seed_stores);
    dir->add("new", 3000, 9);
    dir->add("pointed", 4 * page, seed_pointed);
    for (const char* name : {"old", "gone", "gone2", "listed/a", "kept/b"}) dir->add(name, 100, 9);
    for (const char* name : {"empty", "empty2"}) ::mkdir((*dir / name).c_str(), 0755);
    return dir;
  }
  mount_options options() const {
    return {.cache_nbytes = 32 * page,
            .page_nbytes = page,
            .store = GetParam().store,
            .max_open_files = 64,
            .writable = true,
            .nworkers = 2,
            .io_timeout = std::chrono::seconds(under_tsan ? 20 : 5)};
  }
  std::vector<std::int64_t> use(const mount& m, bool again) {
    const device_buffer<std::byte> memory(32768);
    const device_buffer<char> text(std::vector<char>{'r', 'e', 'a', 'd', 0, 's', 't', 'o', 'r', 'e', 's', 0});
    const device_buffer<const char*> both(std::vector<const char*>{text.get(), text.get() + 5});
    const device_buffer<std::int64_t> results(std::vector<std::int64_t>(nsteps, -77'777));
    simt::launch({.grid = 1, .block = 32}, every_verb{m.ref(), memory.get(), both.get(), results.get(), again});
    return results.read();
  }
  // That what the kernel heard is there, where nobody told it, or the host, of an error.
  void expect_kept(const temp_dir& dir, const std::vector<std::int64_t>& got, bool lost_some) {
    const auto good = [&](std::initializer_list<step> steps) {
      for (const step s : steps) {
        if (got[s] < 0) return false;
      }
      return !lost_some;
    };
    if (good({open_new, write_new, append_new, sync_new, cut_new, read_new, sync_new_data, close_new})) {
      EXPECT_EQ(dir.read("new"), content(seed_new, 0, cut_to));
    }
    if (good({open_log, append_lanes, close_log})) {
      const auto whole = dir.read("log"), words = content(seed_log + 100, 0, 32 * 4);
      const auto at = static_cast<std::size_t>(got[append_lanes]);
      ASSERT_GE(whole.size(), at + words.size());
      EXPECT_TRUE(std::equal(words.begin(), words.end(), whole.begin() + at));
    }
    if (good({open_log, append_log, close_log})) {
      const auto whole = dir.read("log");
      const auto at = static_cast<std::size_t>(got[append_log]);
      ASSERT_GE(whole.size(), at + appended);
      EXPECT_TRUE(std::equal(whole.begin() + at, whole.begin() + at + appended, content(seed_log, 0, appended).begin()));
    }
    if (good({open_stores, map_to_write, sync_page, unmap_written, close_stores})) {
      std::vector<std::byte> wanted = content(seed_stores, 0, 3 * page);
      put(wanted, content(seed_stores + 100, 0, 200), page);
      EXPECT_EQ(dir.read("stores"), wanted);
    }
    if (good({open_once, write_once, close_once})) {
      EXPECT_EQ(dir.read("once"), content(seed_once, 0, 700));
    }
    if (good({open_pointed, write_by_pointer, close_pointed})) {
      std::vector<std::byte> wanted = content(seed_pointed, 0, 4 * page);
      for (std::uint32_t i = 0; i < 32; ++i) std::memcpy(wanted.data() + 64 * i, &i, 4);
      EXPECT_EQ(dir.read("pointed"), wanted);
    }
  }
  // All that a run without faults gives.
  std::vector<std::int64_t> wanted(const std::vector<std::int64_t>& got, bool again) const {
    std::vector<std::int64_t> all(nsteps, 0);
    all[read_all] = all[stat_open] = read_nbytes;
    all[map_one] = page;
    all[write_new] = new_nbytes;
    all[append_new] = new_nbytes;
    all[read_new] = cut_to;
    all[append_log] = again ? got[append_log] : 0;
    all[append_lanes] = got[append_log] + appended;
    all[map_to_write] = page;
    all[write_once] = 700;
    all[stat_new_name] = 100;
    all[list_dir] = listed_;
    return all;
  }

  std::int64_t listed_ = 0;  // what list_dir gives without faults

 private:
  std::vector<std::unique_ptr<temp_dir>> folders_;
};

TEST_P(each_fault, gives_an_error_and_loses_nothing_that_was_said_to_be_there) {
  if (under_tsan && (GetParam().store == store_kind::automatic || !GetParam().openat2)) {
    GTEST_SKIP() << "the threads do nothing here that they do not in the others";
  }
  expect_leftovers("what cannot be written stays unwritten");
  forbid(GetParam().openat2 ? nullptr : "openat2", ENOSYS);
  {
    const auto dir = folder();
    mount m(dir->path(), options());
    const auto got = use(m, false);
    listed_ = got[list_dir];
    EXPECT_GT(listed_, 0);
    EXPECT_EQ(got, wanted(got, false));
    expect_kept(*dir, got, false);
  }
  for (const failing_call& call : failing_calls()) {
    for (const bool lasting : {false, true}) {
      if (lasting && call.error == EINTR) continue;  // would be tried again for ever
      // Stores through pointers that leave a byte as it was are none, and a file that ends has zeros there.
      if (lasting && call.error == no_bytes && call.then != consequence::told) continue;
      for (std::uint64_t n = 0;; n += under_tsan ? 12 : under_asan ? 3 : 1) {
        SCOPED_TRACE(std::string(call.name) + " fails with " +
                     (call.error == short_count ? "half of it"
                      : call.error == no_bytes  ? "no bytes"
                                                : std::generic_category().message(call.error)) +
                     " at call " + std::to_string(n) + (lasting ? " and after" : ""));
        const auto dir = folder();
        std::vector<std::int64_t> got, then;
        bool lost_some = false, refused = false;
        std::uint64_t ncalls = 0;
        ::testing::internal::CaptureStderr();
        {
          std::optional<mount> m;
          let_fail(call, n, lasting);
          try {
            m.emplace(dir->path(), options());
          } catch (const std::exception&) {
            ncalls = let_none_fail();
            refused = true;
            m.emplace(dir->path(), options());  // it says why, and the next one is made
          }
          got = use(*m, false);
          if (!lasting) {  // what failed once is done the next time, but for what is told once
            ncalls = std::max(ncalls, let_none_fail());
            lost_some = m->sync() != 0;
            use(*m, true);
            then = use(*m, true);
          }
        }
        if (lasting) ncalls = std::max(ncalls, let_none_fail());
        const std::string said = ::testing::internal::GetCapturedStderr();
        const bool told = lost_some || refused || !said.empty();
        for (unsigned i = 0; i < nsteps; ++i) {
          EXPECT_NE(got[i], wrong_bytes) << names[i];
          EXPECT_NE(got[i], -ETIMEDOUT) << names[i];
          EXPECT_TRUE(got[i] < 0 || got[i] == wanted(got, false)[i]) << names[i] << ": " << got[i];
        }
        const bool struck = ncalls > n;
        const bool seen = told || got != wanted(got, false);
        if (struck && call.then == consequence::told) {
          EXPECT_TRUE(seen) << "nobody was told";
        }
        if (call.then == consequence::none && !lasting) {
          EXPECT_FALSE(seen) << "it is nobody's business";
        }
        if (lasting) expect_kept(*dir, got, told);
        if (!lasting) {
          const auto all = wanted(then, true);
          for (const unsigned i :
               {open_read,  read_all,     stat_open,        map_one,       read_by_pointer, close_read,   open_new,  write_new,
                append_new, sync_new,     cut_new,          read_new,      sync_new_data,   close_new,    open_log,  append_log,
                close_log,  open_stores,  map_to_write,     sync_page,     unmap_written,   close_stores, open_once, write_once,
                close_once, open_pointed, write_by_pointer, close_pointed, open_both,       close_both}) {
            EXPECT_EQ(then[i], all[i]) << names[i] << ", without faults";
          }
          expect_kept(*dir, then, !said.empty());
        }
        if (::testing::Test::HasFailure()) {
          std::string line;
          for (unsigned i = 0; i < nsteps; ++i) line += std::string(names[i]) + " " + std::to_string(got[i]) + ", ";
          ADD_FAILURE() << line << "\n" << said;
        }
        if (ncalls <= n) break;  // there was none to fail
      }
    }
  }
}
// ThreadSanitizer sees all threads with one store.
std::vector<kind> kinds() {
  if (under_tsan) return {{store_kind::automatic, true}};
  return {{store_kind::posix, true}, {store_kind::automatic, true}, {store_kind::mapped, true}, {store_kind::posix, false}};
}
INSTANTIATE_TEST_SUITE_P(stores, each_fault, ::testing::ValuesIn(kinds()), [](const auto& param) {
  const kind& k = param.param;
  const std::string store = k.store == store_kind::posix ? "posix" : k.store == store_kind::mapped ? "mapped" : "automatic";
  return store + (k.openat2 ? "" : "_without_openat2");
});

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
