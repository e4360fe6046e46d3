// SPDX-License-Identifier: Apache-2.0
// Files in memory that the device writes in place, through their mapping: docs/design/writing.md, "Stores in place". What every
// file does is tested with them in write_property_test.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "file/faulty_store.hpp"
#include "noting_store.hpp"
#include "script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t page = 4096;

class stored_writes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }

  mount_options stored(std::uint32_t nframes = 16) const {
    mount_options o;
    o.writable = true;
    o.page_nbytes = page;
    o.cache_nbytes = std::uint64_t{nframes} * page;
    o.max_open_files = 64;
    o.custom_store = mapping_store(dir_.path());
    return o;
  }
  std::uint64_t mtime_ns(const std::string& name) const {
    struct stat st;
    if (::stat((dir_ / name).c_str(), &st) != 0) fail_errno("stat " + name);
    return static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec);
  }
  void cut_and_grow(const std::string& name, std::int64_t nbytes) const {
    if (::truncate((dir_ / name).c_str(), 0) != 0 || ::truncate((dir_ / name).c_str(), nbytes) != 0) fail_errno("truncate");
  }

  temp_dir dir_{memory_directory()};
};

// Pages beyond the cache go to the file without a request for each; the last one has it where it is not whole.
TEST_F(stored_writes, need_no_request) {
  constexpr std::uint64_t npages = 40;
  for (const std::uint64_t rest : {0, 100}) {
    const std::uint64_t nbytes = npages * page + rest;
    dir_.add("file", nbytes, 1);
    const auto store = std::make_shared<noting_store>(mapping_store(dir_.path()));
    mount_options o = stored();
    o.custom_store = store;
    const mount m(dir_.path(), o);
    prepare_for_memcheck(m, "file", O_RDWR);
    players groups(m.ref(), {});
    script open, s;
    open.open(0, "file", O_RDWR);
    groups.run(open);
    let_file_times_pass();
    const std::uint64_t before = mtime_ns("file");  // the mapping may have moved it, as its pages become writable
    const auto bytes = content(2, 0, nbytes);
    const auto write = s.pwrite(0, bytes, 0);
    const auto got = groups.run(s);
    EXPECT_EQ(got[write].value, static_cast<std::int64_t>(nbytes));
    ASSERT_EQ(m.open_files().size(), 1u);
    EXPECT_EQ(m.open_files()[0].reason.rfind("live: ", 0), 0u) << m.open_files()[0].reason;
    script t;
    const auto close = t.close(0);
    EXPECT_EQ(groups.run(t)[close].value, 0);
    EXPECT_EQ(dir_.read("file"), bytes);
    EXPECT_GT(mtime_ns("file"), before) << "other mounts would not see the change";
    const mount_counters now = m.counters();
    EXPECT_EQ(now.write_backs, npages + (rest != 0));
    EXPECT_EQ(now.bytes_written_back, nbytes);
    EXPECT_EQ(store->nwrites(), rest != 0 ? 1u : 0u) << "the last page, where it lies over the end of the mapping";
    EXPECT_EQ(now.unwritten_pages, 0u);
    EXPECT_EQ(now.pins, 0u);
  }
}

// One group removes a name, and the host answers once the other has opened another file, written and closed it: a slot whose path
// may be somebody else's by then.
struct write_while_a_name_goes {
  mount_ref fs;
  const std::byte* bytes;
  std::uint32_t* go;    // pinned: the host is asked to remove the name
  std::uint32_t* done;  // pinned
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (simt::block_rank() == 0) {
      const int removed = unlink(warp, fs, "other");
      if (warp.leader()) results[0] = removed;
      return;
    }
    const simt::deadline until(20'000'000'000);
    simt::backoff pause;
    const simt::atomic_ref<std::uint32_t, simt::scope::system> asked(*go);
    while (warp.broadcast(asked.load(std::memory_order_acquire) == 0 && !until.expired())) pause();
    const file f = open(warp, fs, "file", O_RDWR);
    const std::int64_t written = pwrite(warp, f, bytes, 4 * page, 0);
    const int closed = close(warp, f);
    if (!warp.leader()) return;
    results[1] = written;
    results[2] = closed;
    simt::atomic_ref<std::uint32_t, simt::scope::system>(*done).store(1, std::memory_order_release);
  }
};
TEST_F(stored_writes, need_no_request_where_a_name_goes_meanwhile) {
  dir_.add("file", 4 * page, 1);
  dir_.add("other", page, 1);
  const auto store = std::make_shared<noting_store>(mapping_store(dir_.path()));
  const pinned_buffer<std::uint32_t> go(1), done(1);
  store->on_unlink = [&] {
    std::atomic_ref<std::uint32_t>(*go.get()).store(1, std::memory_order_release);
    wait_until([&] { return std::atomic_ref<std::uint32_t>(*done.get()).load(std::memory_order_acquire) != 0; });
  };
  mount_options o = stored();
  o.custom_store = store;
  o.nworkers = 4;  // one waits in the store
  const mount m(dir_.path(), o);
  prepare_for_memcheck(m, "file", O_RDWR);
  const auto bytes = content(2, 0, 4 * page);
  const std::span<const std::byte> all(bytes);
  const device_buffer<std::byte> input(all);
  const device_buffer<std::int64_t> results(3);
  simt::launch({.grid = 2, .block = 32}, write_while_a_name_goes{m.ref(), input.get(), go.get(), done.get(), results.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{0, 4 * page, 0}));
  EXPECT_EQ(dir_.read("file"), bytes);
  EXPECT_EQ(store->nwrites(), 0u);
}

// The last close asks the host once, also for what was stored; one before it has nothing to close, and only tells of stores: then
// the last one has nothing to tell.
TEST_F(stored_writes, a_close_asks_once) {
  dir_.add("file", 4 * page, 1);
  const auto store = std::make_shared<noting_store>(mapping_store(dir_.path()));
  mount_options o = stored();
  o.custom_store = store;
  const mount m(dir_.path(), o);
  prepare_for_memcheck(m, "file", O_RDWR);
  players groups(m.ref(), {});
  for (const bool stores : {true, false}) {
    const std::uint64_t opens = m.counters().host_opens;
    script first, second;
    first.open(0, "file", O_RDWR);
    first.open(1, "file", O_RDWR);
    if (stores) first.pwrite(0, content(2, 0, 4 * page), 0);
    const auto close = first.close(0);
    EXPECT_EQ(groups.run(first)[close].value, 0);
    EXPECT_EQ(store->notes().size(), stores ? 1u : 0u) << "others have it open";
    second.close(1);
    EXPECT_EQ(groups.run(second)[0].value, 0);
    EXPECT_EQ(store->notes(), stores ? std::vector<bool>{false} : std::vector<bool>{});
    EXPECT_EQ(m.counters().host_opens, opens + 1);
    EXPECT_EQ(m.counters().host_closes, m.counters().host_opens);
    EXPECT_EQ(dir_.read("file"), content(2, 0, 4 * page));
    store->forget();
  }
  script alone;
  alone.open(0, "file", O_RDWR);
  alone.pwrite(0, content(3, 0, 4 * page), 0);
  alone.close(0);
  EXPECT_EQ(groups.run(alone).back().value, 0);
  EXPECT_EQ(store->notes(), std::vector<bool>{true});
  EXPECT_EQ(dir_.read("file"), content(3, 0, 4 * page));
}

// What a first open for writing would do while its kernel waits.
TEST_F(stored_writes, prepared_ahead) {
  dir_.add("file", 8 * page, 1);
  const auto store = std::make_shared<store::auto_store>(simt::this_platform(), dir_.path(), 0,
                                                         store::auto_options{.posix = {.writable = true}, .small_file_nbytes = 1});
  mount_options o = stored();
  o.custom_store = store;
  const mount m(dir_.path(), o);
  m.prepare("file", O_RDWR);
  EXPECT_EQ(store->usage().nmappings, 1u);
  EXPECT_EQ(store->usage().nidle, 1u);
  players groups(m.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  s.pwrite(0, content(2, 0, 8 * page), 0);
  groups.run(s);
  EXPECT_EQ(m.open_files()[0].reason.rfind("live: ", 0), 0u) << m.open_files()[0].reason;
  EXPECT_EQ(store->usage().nmappings, 1u) << "the open found it";
  EXPECT_EQ(store->usage().nidle, 0u);
  script t;
  t.close(0);
  EXPECT_EQ(groups.run(t)[0].value, 0);
  EXPECT_EQ(dir_.read("file"), content(2, 0, 8 * page));

  EXPECT_THROW(m.prepare("missing", O_RDWR), error);
  EXPECT_THROW(m.prepare("file", O_RDWR | O_TRUNC), error);
  EXPECT_THROW(m.prepare("new", O_RDWR | O_CREAT), error);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "new"));
  EXPECT_EQ(dir_.read("file").size(), 8 * page);
  const mount reads(dir_.path(), {.cache_nbytes = 16 * page, .page_nbytes = page});
  EXPECT_THROW(reads.prepare("file", O_RDWR), error);
  reads.prepare("file");
}

// As mapped_writes.go_back_to_what_was_noted: of one run of bytes, and of two.
TEST_F(stored_writes, keep_the_twins_of_mapped_pages) {
  constexpr std::uint64_t nbytes = 2 * page;
  for (const bool masked : {false, true}) {
    dir_.add("file", nbytes, 1);
    auto wanted = content(1, 0, nbytes);
    const mount m(dir_.path(), stored());
    prepare_for_memcheck(m, "file", O_RDWR);
    players groups(m.ref(), {});
    const auto store = [masked](script& s, std::uint64_t seed) {
      s.store(0, content(seed, 0, 100), 100);
      if (masked) s.store(0, content(seed, 100, 50), 333);
    };
    script s;
    s.open(0, "file", O_RDWR);
    s.map_write(0, 0, 0);
    s.map_write(0, 1, 0);
    store(s, 2);
    s.unmap_write(1);
    store(s, 3);
    s.fsync(0, durability::page_cache);
    for (const auto& r : groups.run(s)) EXPECT_GE(r.value, 0);
    EXPECT_EQ(m.open_files()[0].reason.rfind("live: ", 0), 0u) << m.open_files()[0].reason;
    script t;
    store(t, 2);
    t.unmap_write(0);
    t.close(0);
    for (const auto& r : groups.run(t)) EXPECT_GE(r.value, 0);
    std::ranges::copy(content(2, 0, 100), wanted.begin() + 100);
    if (masked) std::ranges::copy(content(2, 100, 50), wanted.begin() + 333);
    EXPECT_EQ(dir_.read("file"), wanted) << masked;
  }
}

// Two mounts and this process write every third run of bytes each, of one byte or of many. The mounts have all pages in their
// caches before, so that each has the others' old bytes beside its new ones.
TEST_F(stored_writes, keep_to_their_bytes) {
  constexpr std::size_t nbytes = 6 * page;
  dir_.add("file", nbytes, 1);
  auto wanted = content(1, 0, nbytes);
  const mount a(dir_.path(), stored(16)), b(dir_.path(), stored(16));
  for (const mount* m : {&a, &b}) prepare_for_memcheck(*m, "file", O_RDWR);
  players of_a(a.ref(), {}), of_b(b.ref(), {});
  for (players* groups : {&of_a, &of_b}) {
    script s;
    s.open(0, "file", O_RDWR);
    const auto all = s.pread(0, nbytes, 0);
    EXPECT_EQ(groups->run(s)[all].bytes, wanted);
  }
  script scripts[2];
  const int fd = ::open((dir_ / "file").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (std::size_t at = 0, i = 0; at < nbytes; ++i) {
    const std::size_t n = std::min<std::size_t>(1 + content_word(5, i) % (i % 4 == 0 ? 90 : 9), nbytes - at);
    const auto part = content(100 + i, at, n);
    std::copy(part.begin(), part.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
    if (i % 3 == 2) {
      ASSERT_EQ(::pwrite(fd, part.data(), n, static_cast<off_t>(at)), static_cast<ssize_t>(n));
    } else {
      scripts[i % 3].pwrite(0, part, static_cast<std::int64_t>(at));
    }
    at += n;
  }
  ::close(fd);
  for (script& s : scripts) s.close(0);
  EXPECT_EQ(of_a.run(scripts[0]).back().value, 0);
  EXPECT_EQ(of_b.run(scripts[1]).back().value, 0);
  EXPECT_EQ(dir_.read("file"), wanted);
}

// The mapping's pages are the file's no more once somebody else has cut it. Then a sync tells, once, or nothing is lost; and from
// then on writes go through the host.
TEST_F(stored_writes, a_file_cut_underneath) {
  constexpr std::uint64_t nbytes = 8 * page;
  dir_.add("file", nbytes, 1);
  const mount m(dir_.path(), stored());
  prepare_for_memcheck(m, "file", O_RDWR);
  players groups(m.ref(), {});
  const auto first = content(2, 0, nbytes), second = content(3, 0, nbytes);
  script s;
  s.open(0, "file", O_RDWR);
  s.pwrite(0, first, 0);
  const auto whole = s.fsync(0, durability::page_cache);
  EXPECT_EQ(groups.run(s)[whole].value, 0);
  EXPECT_EQ(dir_.read("file"), first);

  cut_and_grow("file", nbytes);
  script t;
  t.pwrite(0, second, 0);
  const auto told = t.fsync(0, durability::page_cache);
  const auto again = t.fsync(0, durability::page_cache);
  const auto after_cut = groups.run(t);
  EXPECT_TRUE(after_cut[told].value == -EIO || (after_cut[told].value == 0 && dir_.read("file") == second))
      << after_cut[told].value;
  if (on_cuda) {
    EXPECT_EQ(after_cut[told].value, -EIO);
  }
  EXPECT_EQ(after_cut[again].value, 0) << "told once";

  script u;
  const auto write = u.pwrite(0, second, 0);
  u.close(0);
  const auto got = groups.run(u);
  EXPECT_EQ(got[write].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(got.back().value, 0);
  EXPECT_EQ(dir_.read("file"), second);
}

// Nobody syncs: the last close tells, or the mount's sync.
TEST_F(stored_writes, closing_and_ending_tell_of_a_cut) {
  for (const bool closes : {true, false}) {
    const std::string name = closes ? "closed" : "left";
    dir_.add(name, 8 * page, 1);
    mount m(dir_.path(), stored());
    prepare_for_memcheck(m, name, O_RDWR);
    players groups(m.ref(), {});
    const auto bytes = content(2, 0, 8 * page);
    script s;
    s.open(0, name, O_RDWR);
    s.pwrite(0, bytes, 0);
    groups.run(s);
    cut_and_grow(name, 8 * page);
    if (closes) {
      script t;
      t.close(0);
      EXPECT_EQ(groups.run(t)[0].value, -EIO);
    } else {
      EXPECT_EQ(m.sync(), 1u);
      EXPECT_EQ(m.sync(), 0u) << "told once";
      script t;
      t.pwrite(0, bytes, 0);
      t.close(0);
      EXPECT_EQ(groups.run(t).back().value, 0);
      EXPECT_EQ(dir_.read(name), bytes) << "it goes through the host from now on";
    }
    ASSERT_FALSE(m.log().empty());
    EXPECT_NE(m.log().back().find(name), std::string::npos) << m.log().back();
  }
}

// What has been synced is the file's own: whoever closes it last, after somebody else has cut it, has lost nothing.
TEST_F(stored_writes, a_cut_after_a_sync_takes_nothing) {
  for (const bool reads_on : {true, false}) {
    dir_.add("file", 8 * page, 1);
    const mount m(dir_.path(), stored());
    prepare_for_memcheck(m, "file", O_RDWR);
    players groups(m.ref(), {});
    const auto bytes = content(2, 0, 8 * page);
    script s;
    s.open(0, "file", O_RDWR);
    s.open(1, "file");
    s.pwrite(0, bytes, 0);
    const auto synced = reads_on ? s.close(0) : s.fsync(0, durability::page_cache);
    EXPECT_EQ(groups.run(s)[synced].value, 0);
    EXPECT_EQ(dir_.read("file"), bytes);
    cut_and_grow("file", 8 * page);
    script t;
    t.close(1);
    if (!reads_on) t.close(0);
    EXPECT_EQ(groups.run(t).back().value, 0);
    EXPECT_TRUE(m.log().empty()) << m.log().back();
  }
}

// An open that fails to cut the file holds it for a while, here until its writer has closed it. So it is the last to let go; but it
// looks at nothing, as the writer's close has.
TEST_F(stored_writes, who_fails_to_cut_and_lets_go_last_tells_nothing) {
  dir_.add("file", 4 * page, 1);
  const auto store = std::make_shared<noting_store>(mapping_store(dir_.path()));
  gate cutting, closed;
  cutting.close();
  closed.close();
  store->on_open = [&](std::string_view path) {
    if (path == "is being cut") cutting.pass();
    if (path == "was closed") closed.open();
  };
  store->on_truncate = [&] {
    cutting.open();
    closed.pass();
    return -EFBIG;
  };
  store->last_look_gives(-EIO);
  mount_options o = stored();
  o.custom_store = store;
  o.nworkers = 4;
  const mount m(dir_.path(), o);
  prepare_for_memcheck(m, "file", O_RDWR);
  players groups(m.ref(), {.block = 64, .all = group_kind::warp});
  std::vector<script> opens(2), scripts(2);
  opens[0].open(0, "file", O_RDWR);
  opens[0].pwrite(0, content(2, 0, 4 * page), 0);
  groups.run(opens);
  scripts[0].open(1, "is being cut");
  const auto close = scripts[0].close(0);
  scripts[0].open(1, "was closed");
  scripts[1].open(0, "file", O_RDWR | O_TRUNC);
  const auto got = groups.run(scripts);
  cutting.open();
  closed.open();
  EXPECT_EQ(got[0][close].value, 0);
  EXPECT_EQ(got[1][0].value, -EFBIG);
  EXPECT_EQ(store->notes(), std::vector<bool>{false});
  for (const std::string& line : m.log()) EXPECT_EQ(line.find("close 'file'"), std::string::npos) << line;
  EXPECT_TRUE(m.open_files().empty());
  EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
}

// Cut in the middle of one of the system's pages, which stays the file's: what was stored behind its end is lost all the same.
TEST_F(stored_writes, a_file_cut_within_a_page) {
  dir_.add("file", 4 * page, 1);
  const mount m(dir_.path(), stored());
  prepare_for_memcheck(m, "file", O_RDWR);
  players groups(m.ref(), {});
  const auto bytes = content(2, 0, page);
  script s;
  s.open(0, "file", O_RDWR);
  groups.run(s);
  if (::truncate((dir_ / "file").c_str(), page + 100) != 0) fail_errno("truncate");
  script t;
  t.pwrite(0, bytes, page);
  const auto sync = t.fsync(0, durability::page_cache);
  t.close(0);
  EXPECT_EQ(groups.run(t)[sync].value, -EIO);
}

// A page that is not in the cache is read in place, too; and what ftruncate has cut is gone although the mapping has it.
TEST_F(stored_writes, reads_and_cuts_of_their_own) {
  constexpr std::uint64_t nbytes = 32 * page;
  dir_.add("file", nbytes, 1);
  const mount m(dir_.path(), stored(4));
  prepare_for_memcheck(m, "file", O_RDWR);
  players groups(m.ref(), {});
  auto wanted = content(1, 0, nbytes);
  script s;
  s.open(0, "file", O_RDWR);
  const auto one = content(9, 0, 1);
  s.pwrite(0, one, 20 * page + 7);
  wanted[20 * page + 7] = one[0];
  const auto all = s.pread(0, nbytes, 0);
  const auto reads = groups.run(s);
  EXPECT_EQ(reads[all].bytes, wanted);
  EXPECT_EQ(m.counters().host_reads, 0u);
  script t;
  const auto cut = t.ftruncate(0, 10 * page + 5);
  const auto grow = t.ftruncate(0, nbytes);
  const auto rest = t.pread(0, nbytes, 0);
  t.pwrite(0, one, 30 * page);
  const auto sync = t.fsync(0, durability::data);
  t.close(0);
  std::fill(wanted.begin() + 10 * page + 5, wanted.end(), std::byte{0});
  const auto got = groups.run(t);
  EXPECT_EQ(got[cut].value, 0);
  EXPECT_EQ(got[grow].value, 0);
  EXPECT_EQ(got[rest].bytes, wanted);
  EXPECT_EQ(got[sync].value, 0);
  EXPECT_EQ(got.back().value, 0);
  wanted[30 * page] = one[0];
  EXPECT_EQ(dir_.read("file"), wanted);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
