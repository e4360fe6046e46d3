// SPDX-License-Identifier: Apache-2.0
// Where pointers meet files that are being written: pages of other forms that are not in the cache, few frames, kernels that are
// stopped, files that are closed too early.
#include "file/faulty_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct ptr_write_error : pointer_fixture {
  ptr_write_error() { options.writable = true; }
  // The files and the mount anew.
  void start_again() {
    end_mount();
    dir.add("f", npages * page, file_seed);
    dir.add("g", npages * page, file_seed + 1);
    let_file_times_pass();
  }
  static void expect_leftovers_of_an_outlived_file() {
    if (on_cuda) {
      expect_leftovers_but_pins("a pointer outlives its file");
    } else {
      expect_leftovers("that is a mistake, for which the CPU machine may stop a lane in a destructor, with its pin");
    }
  }
};

struct forms_kernel : pointer_job {
  inverting handler;
  std::uint32_t* value;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path, O_RDWR);
    std::int64_t* r = mine();
    r[0] = pwrite(me, f, value, 4, 3 * page);
    {
      const auto own = map<const std::uint32_t>(me, f, 0, to_the_end, map_flags::private_changes);
      const auto inverted = map<const std::uint32_t>(me, f, 0, to_the_end, map_flags::none, handler);
      r[1] = own[2 * per_page];  // in no form yet
      r[2] = inverted[per_page];
      r[3] = own[3 * per_page];  // written, and not written back
      r[4] = inverted[3 * per_page];
    }
    r[5] = close(me, f);
  }
};

TEST_F(ptr_write_error, other_forms_of_a_file_being_written) {
  const device_buffer<std::uint32_t> value(std::vector<std::uint32_t>{333});
  const inverting handler{fs().new_form()};
  const auto r = run<forms_kernel>(1, 32, handler, value.get());
  const std::vector<std::int64_t> expected = {4, word_at(2 * per_page), ~word_at(per_page), 333, ~std::uint32_t{333}, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 6), expected);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// As many groups as there are frames each bring in a private page of their own: none needs two frames.
struct private_pages_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<const std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      this_block().sync();
      const std::int64_t at = simt::warp_rank() * per_page;
      mine()[0] = p[at] == word_at(at);
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(ptr_write_error, a_private_page_needs_one_frame) {
  options.cache_nbytes = 8 * page;
  options.store = store_kind::posix;
  options.frame_timeout = std::chrono::milliseconds(100);
  options.io_timeout = std::chrono::seconds(1);
  schedule.delay_percent = 60;
  schedule.switch_percent = 80;
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 5 : 20); ++seed) {
    schedule.seed = seed;
    end_mount();
    run<private_pages_kernel>(2, 256);
    for (unsigned t = 0; t < 512; ++t) ASSERT_EQ(result(t, 0), 1) << "thread " << t << " of seed " << seed;
  }
}

// One lane closes f and opens g, which gets the only entry of the mount's mappings, while another one's pointer is linked to f.
struct reused_kernel : pointer_job {
  const char* other;
  std::uint32_t* words;

  GPUFS_DEVICE void wait_for(std::uint32_t turn) const {
    simt::backoff pause;
    const simt::deadline until(20'000'000'000);
    while (simt::atomic_ref<std::uint32_t>(words[0]).load(std::memory_order_acquire) != turn && !until.expired()) pause();
  }
  GPUFS_DEVICE void pass(std::uint32_t turn) const {
    simt::atomic_ref<std::uint32_t>(words[0]).store(turn, std::memory_order_release);
  }
  GPUFS_DEVICE void operator()() const {
    if (simt::lane_id() != 0) return;
    const auto me = this_thread();
    if (simt::warp_rank() == 0) {
      const file f = open(me, fs, path, O_RDWR);
      {
        const auto p = map<std::uint32_t>(me, f);
        mine()[0] = p[5];
        words[1] = static_cast<std::uint32_t>(f.number());
        pass(1);
        wait_for(2);
        p[3] = 7;
      }
      pass(3);
    } else {
      wait_for(1);
      const file f(fs, file_number{static_cast<std::int32_t>(words[1])}), g = open(me, fs, other, O_RDWR);
      close(me, f);
      pass(2);
      mine()[0] = map<std::uint32_t>(me, g).error();
      wait_for(3);
      mine()[1] = close(me, g);
    }
  }
};

TEST_F(ptr_write_error, a_pointer_that_outlived_its_file_writes_no_other) {
  expect_leftovers_of_an_outlived_file();
  if (under_tsan) GTEST_SKIP() << "such a pointer reads its entry while that is given to another file, and looks afterwards";
  options.max_mappings = 1;
  options.store = store_kind::posix;
  pins_may_leak = !on_cuda;
  schedule.delay_percent = 30;
  const device_buffer<char> other(std::vector<char>{'g', 0});
  for (std::uint64_t seed = 1; seed <= fewer(60); ++seed) {
    schedule.seed = seed;
    start_again();
    const device_buffer<std::uint32_t> words(2);
    try {
      run<reused_kernel>(1, 64, static_cast<const char*>(other.get()), words.get());
      EXPECT_EQ(result(0, 0), word_at(5));
      EXPECT_EQ(result(32, 1), 0);
    } catch (const simt::launch_error& e) {  // the write came through, and is found to be too late when the pointer ends
      ASSERT_NE(std::string(e.what()).find("after the file was closed"), std::string::npos) << e.what();
    }
    EXPECT_EQ(fs().counters().fault_errors, 1u);
    end_mount();
    ASSERT_EQ(dir.read("g"), content(file_seed + 1, 0, npages * page)) << "seed " << seed;
    ASSERT_EQ(dir.read("f"), content(file_seed, 0, npages * page)) << "seed " << seed;
  }
}

// The same where its file's number has come round to another file.
struct number_kernel : pointer_job {
  const char* other;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR);
    file g(fs, file_number{-EBADF});
    {
      const auto p = map<std::uint32_t>(me, f);
      p[3] = 7;
      close(me, f);
      for (r[0] = 0; r[0] < 2000; ++r[0]) {
        g = open(me, fs, other, O_RDWR);
        if (g.number() == f.number()) break;
        close(me, g);
      }
    }
    r[1] = close(me, g);
  }
};

TEST_F(ptr_write_error, stores_noted_too_late_are_lost_and_change_no_other_file) {
  expect_leftovers_of_an_outlived_file();
  options.store = store_kind::posix;
  start_again();
  const device_buffer<char> other(std::vector<char>{'g', 0});
  if (on_cuda) {
    const auto r = run<number_kernel>(1, 32, static_cast<const char*>(other.get()));
    ASSERT_LT(r[0], 2000) << "no file has had that number again";
    EXPECT_EQ(r[1], 0);
  } else {  // the CPU machine takes it for a mistake, and leaves the lane with its pin where it is
    pins_may_leak = true;
    start_again();
    EXPECT_THROW(run<number_kernel>(1, 32, static_cast<const char*>(other.get())), simt::launch_error);
  }
  EXPECT_EQ(fs().counters().fault_errors, 1u);
  ASSERT_EQ(fs().log().size(), 1u);
  EXPECT_EQ(fs().log()[0].rfind("lost, what was written through a pointer to ", 0), 0u) << fs().log()[0];
  end_mount();
  EXPECT_EQ(dir.read("g"), content(file_seed + 1, 0, npages * page));
  EXPECT_EQ(dir.read("f"), content(file_seed, 0, npages * page));
}

// More pages are written than the cache has room for, with their twins.
struct crowd_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<std::uint32_t>(warp, f);
      const std::int64_t own = thread() % static_cast<std::int64_t>(npages) * per_page + thread() * 8;
      for (std::int64_t i = 0; i < 8; ++i) p[own + i] += 1;
    }
    mine()[0] = close(warp, f);
  }
};

TEST_F(ptr_write_error, without_frames_nothing_is_made_up_and_others_get_on) {
  options.cache_nbytes = 24 * page;
  options.frame_timeout = std::chrono::milliseconds(1);
  start_again();
  run<crowd_kernel>(1, 64);
  const std::uint64_t failed = fs().counters().fault_errors;
  const auto bytes = dir.read("f");
  std::uint64_t not_done = 0;
  for (unsigned t = 0; t < 64; ++t) {
    const std::int64_t own = t % static_cast<std::int64_t>(npages) * per_page + t * 8;
    for (std::int64_t i = own; i < own + 8; ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, &bytes[static_cast<std::size_t>(i) * 4], 4);
      ASSERT_TRUE(word == word_at(i) || word == word_at(i) + 1) << "word " << i << " is " << word;
      not_done += word == word_at(i);
    }
  }
  EXPECT_EQ(not_done, failed);
}

// A pointer that gets no frame for its page's twin does not keep the page, which another one may wait for.
struct gives_way_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path, O_RDWR);
    std::int64_t* r = mine();
    {
      const auto written = map<std::uint32_t>(me, f), read = map<std::uint32_t>(me, f, page),
                 late = map<std::uint32_t>(me, f, 2 * page);
      *written = 1;  // two frames of three
      r[0] = *read;
      *read = 2;
      r[1] = read.linked();
      r[2] = *late;
    }
    r[3] = close(me, f);
  }
};

TEST_F(ptr_write_error, who_gets_no_frame_gives_way) {
  options.cache_nbytes = 3 * page;
  options.frame_timeout = std::chrono::milliseconds(5);
  const auto r = run<gives_way_kernel>(1, 32);
  const std::vector<std::int64_t> expected = {word_at(per_page), 0, word_at(2 * per_page), -ENOMEM};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 4), expected);
  EXPECT_EQ(fs().counters().fault_errors, 1u);
}

// An update whose reading fails is a write that is lost.
struct no_frame_to_read_kernel : pointer_job {
  const char* other_path;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path, O_RDWR), g = open(me, fs, other_path, O_RDWR);
    std::int64_t* r = mine();
    const auto first = map<const std::uint32_t>(me, f), second = map<const std::uint32_t>(me, f, page);
    {
      const auto late = map<std::uint32_t>(me, f, 2 * page);
      r[0] = *first + *second;  // both frames
      *late += 1;
    }
    r[1] = fsync(me, f, durability::page_cache);
    {
      const auto late = map<std::uint32_t>(me, f, 2 * page), other = map<std::uint32_t>(me, g);
      *late = *other;
    }
    r[2] = fsync(me, f, durability::page_cache);
    late_beyond(me, f);
    {
      const auto late = map<std::uint32_t>(me, f, 2 * page);
      const ptr<std::uint32_t> none;
      *late = *none;
    }
    r[3] = fsync(me, f, durability::page_cache);  // the pointers' own fault, of which the log tells where it can
    r[4] = close(me, f);
    r[5] = close(me, g);
  }
  template <class Thread>
  GPUFS_DEVICE static void late_beyond(Thread me, const file& f) {
    const auto p = map<std::uint32_t>(me, f, 0, 1);
    p[1] += 1;
  }
};

TEST_F(ptr_write_error, an_update_that_cannot_be_read_is_told_as_a_write) {
  options.cache_nbytes = 2 * page;
  options.frame_timeout = std::chrono::milliseconds(5);
  start_again();
  const auto before = dir.read("f");
  const device_buffer<char> other(std::vector<char>{'g', 0});
  const auto r = run<no_frame_to_read_kernel>(1, 32, other.get());
  const std::vector<std::int64_t> expected = {word_at(0) + word_at(per_page), -ENOMEM, -ENOMEM, 0, 0, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 6), expected);
  EXPECT_EQ(fs().counters().fault_errors, 3u);
  EXPECT_EQ(dir.read("f"), before);
}

// An update whose reading fails, while writing would not.
struct read_fails_once_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR);
    {
      const auto p = map<std::uint32_t>(me, f), first = map<std::uint32_t>(me, f);
      r[0] = *first;
      p[per_page] += 5;  // the second read of the file
      r[1] = p.error();
      r[2] = p[per_page];
    }
    r[3] = close(me, f);
  }
};

TEST_F(ptr_write_error, an_update_whose_reading_fails_is_not_made_up) {
  const auto store =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path(), store::posix_options{.writable = true}));
  options.custom_store = store;
  store->wrong().fail_every = 2;
  const auto before = dir.read("f");
  const auto r = run<read_fails_once_kernel>(1, 32);
  const std::vector<std::int64_t> expected = {word_at(0), -EIO, word_at(per_page), -EIO};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 4), expected);
  EXPECT_EQ(fs().counters().fault_errors, 1u);
  EXPECT_EQ(dir.read("f"), before);
}

// What is to be written comes from a file that was cut.
struct cut_source_kernel : pointer_job {
  const char* other;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR), g = open(me, fs, other, O_RDWR);
    {
      const auto p = map<std::uint32_t>(me, f), q = map<std::uint32_t>(me, g);
      r[0] = ftruncate(me, g, static_cast<std::int64_t>(page));
      p[0] = q[3 * per_page];
      r[1] = fsync(me, f);
      p[0] = q[nwords];  // beyond the mapping
    }
    r[2] = close(me, g);
    r[3] = close(me, f);
  }
};

TEST_F(ptr_write_error, a_source_that_was_cut_is_told_by_the_file_that_was_to_be_written) {
  start_again();
  dir.add("g", npages * page, file_seed + 1);
  let_file_times_pass();
  const auto before = dir.read("f");
  const device_buffer<char> other(std::vector<char>{'g', 0});
  const auto r = run<cut_source_kernel>(1, 32, other.get());
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 4), (std::vector<std::int64_t>{0, -EIO, 0, 0}));
  EXPECT_EQ(fs().counters().fault_errors, 2u);
  EXPECT_EQ(dir.read("f"), before);
}

// A pointer that is left in memory: what it has written is in no list.
struct left_kernel : pointer_job {
  std::byte* memory;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path, O_RDWR);
    auto* p = ::new (static_cast<void*>(memory)) ptr<std::uint32_t>(map<std::uint32_t>(this_thread(), f));
    (*p)[0] = 1;
    mine()[0] = close(this_thread(), f);
  }
};

TEST_F(ptr_write_error, the_mount_says_what_pointers_left_in_memory_have_written) {
  expect_leftovers("pointers are left in memory");
  pins_may_leak = true;
  const device_buffer<std::byte> memory(sizeof(ptr<std::uint32_t>));
  const auto r = run<left_kernel>(1, 32, memory.get());
  EXPECT_EQ(r[0], 0);
  ::testing::internal::CaptureStderr();
  end_mount();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("1 pages or files are lost"), std::string::npos) << said;
}

#if !GPUFS_ON_CUDA  // a kernel that stops on a GPU takes the context with it
struct stopped_kernel : pointer_job {
  std::int64_t when;

  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path, O_RDWR);
    const auto p = map<std::uint32_t>(this_warp(), f);
    this_block().sync();
    for (std::int64_t i = 0; i < 200; ++i) {
      if (thread() == 40 && i == when) throw std::runtime_error("as a user's kernel might");
      p[(thread() * 7 + i) % static_cast<std::int64_t>(npages) * per_page + thread()] = 1;
    }
  }
};

// Else its frame would be another page's one day, and be compared with this one's twin.
TEST_F(ptr_write_error, lanes_that_are_unwound_keep_the_pins_of_pages_that_they_count_as_writing) {
  expect_leftovers("the kernel is stopped");
  options.cache_nbytes = 256 * page;
  options.io_timeout = std::chrono::milliseconds(100);
  pins_may_leak = true;
  std::uint64_t counted = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    schedule.seed = seed;
    start_again();
    EXPECT_THROW(run<stopped_kernel>(1, 64, static_cast<std::int64_t>(seed % 7 + 1)), simt::launch_error);
    const cache::cache_layout layout = mount_inside(fs()).layout().cache;
    for (std::uint32_t i = 0; i < layout.frames.nframes; ++i) {
      if (layout.dirty.twins[i].count == 0) continue;
      ++counted;
      ASSERT_NE(layout.frames.states[i] / cache::frame_state::one_pin, 0u) << "frame " << i << " of seed " << seed;
    }
  }
  EXPECT_GT(counted, 0u);
}
#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
