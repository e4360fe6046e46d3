// SPDX-License-Identifier: Apache-2.0
// Opens and looks at a file beside its last close: they see it as the close leaves it, and nothing that was written is lost.
#include <atomic>
#include <thread>

#include "file/noting_store.hpp"
#include "file/pinned_words.hpp"
#include "file/writing.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// The first group writes a file in memory in place and closes it; the second opens it while the host is at that close, which moves
// the file's mtime, and reads it later.
struct open_while_it_is_closed {
  mount_ref fs;
  const char* bytes;
  char* to;
  std::int64_t* results;
  std::uint32_t *closing, *closed;  // pinned: the host has begun; the close has returned

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (simt::block_rank() == 0) {
      const file f = open(warp, fs, "f", O_RDWR);
      const std::int64_t n = pwrite(warp, f, bytes, page, 5 * page);
      const int error = close(warp, f);
      if (warp.leader()) results[0] = n, results[1] = error;
      tell(closed);
      return;
    }
    simt::backoff pause;
    wait_until_set(closing);
    const file f = open(warp, fs, "./f");  // by the same spelling it would wait for the close in the host, once that hangs
    const simt::deadline watched(400'000'000);
    while (warp.broadcast(!watched.expired())) pause();
    const std::int64_t n = pread(warp, f, to, page, 5 * page);
    const int error = close(warp, f);
    if (warp.leader()) results[2] = n, results[3] = error;
  }
};
// The open asks the host so many times before the close goes on; its first answer takes so long, or until the close has returned.
void open_beside_a_close(unsigned nasks, std::chrono::milliseconds takes, bool until_closed = false) {
  if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  const temp_dir dir(memory_directory());
  dir.add("f", 8 * page, 1);
  let_file_times_pass();
  auto store = std::make_shared<noting_store>(mapping_store(dir.path()));
  const pinned_buffer<std::uint32_t> closing(1), closed(1);
  const auto is_closing = [&] { return is_set(closing.get()); };
  std::atomic<unsigned> nopens{0};
  store->on_open = [&](std::string_view) {
    if (is_closing() && nopens == 0) std::this_thread::sleep_for(takes);
    nopens += is_closing();
  };
  store->on_opened = [&](std::string_view) {
    if (!until_closed || !is_closing()) return;
    EXPECT_TRUE(wait_until([&] { return is_set(closed.get()); }));
  };
  store->on_note = [&](bool last) {
    if (!last) return;
    tell_kernels(closing.get());
    EXPECT_TRUE(wait_until([&] { return nopens >= nasks; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the open ends; another tick of the file's clock
  };
  mount_options o = writing();
  o.custom_store = store;
  o.nworkers = 4;
  o.io_timeout = std::chrono::seconds(8);
  const mount m(dir.path(), o);
  prepare_for_memcheck(m, "f");
  prepare_for_memcheck(m, "f", O_RDWR);
  const auto wanted = content(2, 0, page);
  const device_buffer<std::byte> bytes(wanted), to(page);
  const device_buffer<std::int64_t> results(4);
  simt::launch({.grid = 2, .block = 32},
               open_while_it_is_closed{m.ref(), reinterpret_cast<const char*>(bytes.get()), reinterpret_cast<char*>(to.get()),
                                       results.get(), closing.get(), closed.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{page, 0, page, 0}));
  EXPECT_EQ(to.read(), wanted);
}
TEST(names_answered, who_opens_a_file_while_it_is_closed_gets_what_that_leaves) {
  open_beside_a_close(1, std::chrono::milliseconds(0));
}
TEST(names_answered, who_looked_at_a_file_before_it_was_closed_looks_again) {
  open_beside_a_close(1, std::chrono::milliseconds(0), true);
}

// The second group opens a file for writing, by another spelling, and the host looks at it before the first group appends to it and
// closes it, and enters the open after that. Then the second appends, too.
struct append_after_a_close {
  mount_ref fs;
  const char* bytes;
  std::int64_t* results;
  std::uint32_t *opened, *looked, *closed;  // pinned

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const bool is_first = simt::block_rank() == 0;
    if (!is_first) wait_until_set(opened);
    const file f = open(warp, fs, is_first ? "f" : "./f", O_RDWR);
    if (is_first) {
      tell(opened);
      wait_until_set(looked);
    }
    const std::int64_t at = append(warp, f, bytes, page);
    const int error = close(warp, f);
    if (is_first) tell(closed);
    if (warp.leader()) results[simt::block_rank() * 2] = at, results[simt::block_rank() * 2 + 1] = error;
  }
};
TEST(names_answered, who_opened_a_file_before_another_s_close_appends_behind_what_that_wrote) {
  for (const bool in_place : {false, true}) {
    if (in_place && memory_directory() != "/dev/shm") continue;
    const temp_dir dir(in_place ? memory_directory() : std::filesystem::temp_directory_path());
    dir.add("f", 8 * page, 1);
    let_file_times_pass();
    std::shared_ptr<store::store> real = std::make_shared<store::posix_store>(dir.path(), store::posix_options{.writable = true});
    if (in_place) real = mapping_store(dir.path());
    const auto store = std::make_shared<noting_store>(std::move(real));
    const pinned_buffer<std::uint32_t> opened(1), looked(1), closed(1);
    std::atomic<unsigned> nopens{0};
    store->on_opened = [&](std::string_view) {
      if (++nopens != 2) return;
      tell_kernels(looked.get());
      EXPECT_TRUE(wait_until([&] { return is_set(closed.get()); }));
    };
    mount_options o = writing();
    o.custom_store = store;
    o.nworkers = 4;
    o.io_timeout = std::chrono::seconds(8);
    const auto added = content(2, 0, page);
    {
      const mount m(dir.path(), o);
      const device_buffer<std::byte> bytes(added);
      const device_buffer<std::int64_t> results(4);
      simt::launch({.grid = 2, .block = 32}, append_after_a_close{m.ref(), reinterpret_cast<const char*>(bytes.get()),
                                                                  results.get(), opened.get(), looked.get(), closed.get()});
      EXPECT_EQ(results.read(), (std::vector<std::int64_t>{8 * page, 0, 9 * page, 0})) << in_place;
    }
    std::vector<std::byte> wanted = content(1, 0, 8 * page);
    for (int i = 0; i < 2; ++i) wanted.insert(wanted.end(), added.begin(), added.end());
    EXPECT_EQ(dir.read("f"), wanted) << in_place;
  }
}

// How long it waits for the close is not counted from its beginning.
TEST(names_answered, who_opens_a_file_slowly_while_it_is_closed_waits_for_that_too) {
  open_beside_a_close(2, std::chrono::milliseconds(2100));
}

// The first group writes a file and closes it while the second's stat is on its way back from the host, which has looked at the
// file's size before anything was written back.
struct stat_while_it_is_closed {
  mount_ref fs;
  int flags;
  const char* bytes;
  std::int64_t* results;
  std::uint32_t *written, *looked, *closed;  // pinned
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (simt::block_rank() == 0) {
      const file f = open(warp, fs, "f", flags);
      const std::int64_t n = pwrite(warp, f, bytes, 10, 0);
      tell(written);
      wait_until_set(looked);
      const int error = close(warp, f);
      if (warp.leader()) results[0] = n, results[1] = error;
      tell(closed);
      return;
    }
    wait_until_set(written);
    const path_status status = stat(warp, fs, "./f");
    const int error = status.error;
    if (warp.leader()) results[2] = error, results[3] = status.nbytes;
  }
};
TEST(names_answered, stat_beside_the_last_close_says_what_was_written) {
  for (const int flags : {O_RDWR, O_GWRONCE}) {
    const temp_dir dir(memory_directory());
    dir.add("f", 3, 1);
    auto store = std::make_shared<noting_store>(
        std::make_shared<gpufs::store::posix_store>(dir.path(), gpufs::store::posix_options{.writable = true}));
    const pinned_buffer<std::uint32_t> words(3);
    std::uint32_t *const written = words.get(), *const looked = written + 1, *const closed = written + 2;
    store->on_status = [&] {
      if (!is_set(written)) return;
      tell_kernels(looked);
      EXPECT_TRUE(wait_until([&] { return is_set(closed); }));
    };
    mount_options o = writing();
    o.custom_store = store;
    o.nworkers = 4;
    const mount m(dir.path(), o);
    const device_buffer<std::byte> bytes(content(2, 0, 10));
    const device_buffer<std::int64_t> results(4);
    simt::launch({.grid = 2, .block = 32}, stat_while_it_is_closed{m.ref(), flags, reinterpret_cast<const char*>(bytes.get()),
                                                                   results.get(), written, looked, closed});
    EXPECT_EQ(results.read(), (std::vector<std::int64_t>{10, 0, 0, 10})) << "flags " << flags;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
