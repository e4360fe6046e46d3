// SPDX-License-Identifier: Apache-2.0
// What cannot be had: mappings that are refused, accesses beyond, closed files, stores that fail, too few frames, kernels that
// stop, pins that leak. And what the mount says of it.
#include <gtest/gtest-spi.h>

#include <limits>

#include "file/faulty_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using reader = ptr<const std::uint32_t>;

struct ptr_error : pointer_fixture {
  bool log_has(const std::string& line) {
    for (const std::string& l : fs().log()) {
      if (l.find(line) != std::string::npos) return true;
    }
    return false;
  }
};

struct own_form {
  std::uint32_t number;
  GPUFS_DEVICE std::uint32_t form() const { return number; }
  template <class Group>
  GPUFS_DEVICE static int filled(Group, std::byte*, std::uint64_t, std::uint32_t) {
    return 0;
  }
};

struct refused_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::int64_t* r = mine();
    const file f = open(warp, fs, path);
    const file missing = open(warp, fs, "missing");
    const auto size = static_cast<std::int64_t>(npages * page);
    constexpr auto priv = map_flags::private_changes;
    r[0] = map<const std::uint32_t>(warp, f, -4).error();
    r[1] = map<const std::uint32_t>(warp, f, 2).error();
    r[2] = map<const std::uint32_t>(warp, f, 0, -2).error();
    r[3] = map<const std::uint32_t>(warp, f, 0, 1, priv, own_form{1}).error();
    r[4] = map<const std::uint32_t>(warp, f, size + 4).error();
    r[5] = map<const std::uint32_t>(warp, f, 4, nwords).error();
    r[6] = map<std::uint32_t>(warp, f).error();
    r[7] = map<std::uint32_t>(warp, f, 0, 1, map_flags::stop_on_error).error();
    r[8] = map<const std::uint32_t>(warp, missing).error();
    {
      const auto empty = map<const std::uint32_t>(warp, f, size);
      r[9] = empty.error() + (empty ? 0 : 1);
      r[10] = *empty;
      const auto whole = map<const std::uint32_t>(warp, f, 0, nwords);
      r[11] = whole.error() + map<std::uint32_t>(warp, f, 0, 1, priv).error() +
              map<const std::uint32_t>(warp, f, 0, 1, map_flags::none, own_form{1}).error();
      const auto part = map<const record_of_3>(warp, f, 1);  // 3 does not divide what is left
      r[12] = part.error();
      r[13] = part[(size - 1) / 3 - 1].byte[2];
      r[14] = part.offset();
    }
    close(warp, f);
    const auto late = map<const std::uint32_t>(warp, f);
    r[15] = late.error();
    r[16] = *late;
    r[17] = late.fault_in();
    r[18] = static_cast<bool>(late);
  }
  struct record_of_3 {
    std::uint8_t byte[3];
  };
};

TEST_F(ptr_error, mappings_that_are_refused_say_why) {
  const auto r = run<refused_kernel>(1, 32);
  const auto last = static_cast<std::int64_t>(content_byte(file_seed, (npages * page - 1) / 3 * 3));
  const std::vector<std::int64_t> expected = {-EINVAL, -EINVAL, -EINVAL, -EINVAL, -ENXIO, -ENXIO, -EACCES, -EACCES, -ENOENT, 0,
                                              0,       0,       0,       last,    1,      -EBADF, 0,       -EBADF,  0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 19), expected);
  EXPECT_EQ(fs().counters().fault_errors, 33u)
      << "the empty mapping's, and that one was to stop; those of no mapping have no mount";
  EXPECT_TRUE(log_has("at offset 0: Permission denied"));
}

struct beyond_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<const std::uint32_t>(warp, f, page, 10);
      if (warp.rank() == 3) {
        mine()[0] = p[-1];
        mine()[1] = p[10];
        mine()[2] = p.load<simt::vec16>(8).word[0];
        mine()[3] = p.load<simt::vec16>(6).word[3];
        mine()[4] = (p + 10).fault_in();
      }
      auto w = map<std::uint32_t>(warp, f, page, 10, map_flags::private_changes);
      if (warp.rank() == 4) {
        w[10] = 1;
        mine()[0] = (w + 10).exchange(1, std::memory_order_relaxed);
        w += 9;
        *w = 5;
        mine()[1] = w.linked() ? *w : -1;
      }
    }
    close(warp, f);
  }
};

TEST_F(ptr_error, a_mount_has_forms_for_14_handlers) {
  for (std::uint32_t form = 1; form <= 14; ++form) EXPECT_EQ(fs().new_form(), form);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(fs().new_form(), error);
}

TEST_F(ptr_error, accesses_beyond_the_mapping_are_counted_and_logged) {
  expect_leftovers_but_pins("a page changed through a private mapping");
  run<beyond_kernel>(1, 32);
  EXPECT_EQ(result(3, 0) + result(3, 1) + result(3, 2), 0);
  EXPECT_EQ(result(3, 3), word_at(per_page + 9));
  EXPECT_EQ(result(3, 4), -ENXIO);
  EXPECT_EQ(result(4, 0), 0);
  EXPECT_EQ(result(4, 1), 5);
  EXPECT_EQ(fs().counters().fault_errors, 6u);
  EXPECT_TRUE(log_has("at offset " + std::to_string(page - 4) + ": beyond the mapping of 40 bytes (block 0, warp 0, lane 3)"));
  EXPECT_TRUE(log_has("at offset " + std::to_string(page + 40) +
                      ": beyond the mapping of 40 bytes (block 0, warp 0, lane 3 first; 3 accesses)"));
  EXPECT_EQ(fs().counters().dirty_frames, 1u);
}

struct named_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    const auto p = map<const std::uint32_t>(this_thread(), f, 8, 4);
    mine()[0] = p[4];
    mine()[1] = static_cast<std::int64_t>(f.number());
  }
};
struct close_kernel : pointer_job {
  std::int64_t number;
  GPUFS_DEVICE void operator()() const {
    if (thread() == 0) mine()[0] = close(this_thread(), file(fs, file_number{static_cast<std::int32_t>(number)}));
  }
};

TEST_F(ptr_error, the_log_names_file_offset_and_cause) {
  const auto r = run<named_kernel>(1, 32);
  ASSERT_EQ(fs().log().size(), 1u);
  EXPECT_EQ(fs().log()[0], "pointer to 'f' at offset 24: beyond the mapping of 16 bytes (block 0, warp 0, lane 0)");
  EXPECT_EQ(run<close_kernel>(1, 32, r[1])[0], 0);
  ASSERT_EQ(fs().log().size(), 1u);
  EXPECT_EQ(fs().log()[0], "pointer to 'f' at offset 24: beyond the mapping of 16 bytes (block 0, warp 0, lane 0)")
      << "it is closed now";
}

struct closed_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    const auto p = map<const std::uint32_t>(warp, f);
    (void)p[5 * per_page];
    const reader q = p;
    (void)*q;
    close(warp, f);
    mine()[0] = p[5 * per_page + 1];  // linked
    mine()[1] = p[1];                 // in the cache
    mine()[2] = p[7 * per_page];      // nowhere
    mine()[3] = p.fault_in();
    mine()[4] = (p + 7 * per_page).fault_in();
  }
};

TEST_F(ptr_error, of_a_closed_file_finds_what_is_cached) {
  run<closed_kernel>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), word_at(5 * per_page + 1));
    EXPECT_EQ(result(t, 1), word_at(1));
    EXPECT_EQ(result(t, 2), 0);
    EXPECT_EQ(result(t, 3), 0);
    EXPECT_EQ(result(t, 4), -EBADF);
  }
  EXPECT_EQ(fs().counters().fault_errors, 64u);
  EXPECT_TRUE(log_has("pointer to 'f' at offset " + std::to_string(7 * page) + ": Bad file descriptor"));
}

// A pointer to write through, made from what a read-only one tells.
struct forged_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto r = map<const std::uint32_t>(warp, f);
      const ptr<std::uint32_t> forged(r.mapped(), r.within(), {});
      mine()[0] = forged[thread()];
      forged[thread()] = 1;
      mine()[1] = forged[thread()];
      mine()[2] = (forged + thread()).fetch_add(1, std::memory_order_relaxed);
      struct straddling {
        std::uint32_t a, b, c;
      };
      const ptr<straddling> s(r.mapped(), {0, 3 * page}, {});
      constexpr auto last = static_cast<std::int64_t>(page / 12);  // it straddles pages
      s[0] = straddling{1, 2, 3};
      s[last] = straddling{1, 2, 3};
      const straddling value = s[last];
      mine()[3] = value.a | value.b | value.c;
    }
    std::uint32_t word = 0;
    pread(this_thread(), f, &word, 4, 4 * thread());
    mine()[4] = word;
    close(warp, f);
  }
};

TEST_F(ptr_error, pages_of_the_file_are_never_written) {
  run<forged_kernel>(1, 32);
  constexpr std::int64_t i = per_page / 3 * 3;
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), word_at(t));
    EXPECT_EQ(result(t, 1), word_at(t));
    EXPECT_EQ(result(t, 2), 0);
    EXPECT_EQ(result(t, 3), word_at(i) | word_at(i + 1) | word_at(i + 2));
    EXPECT_EQ(result(t, 4), word_at(t));
  }
  EXPECT_EQ(fs().counters().fault_errors, 4u * 32);
  EXPECT_EQ(fs().counters().dirty_frames, 0u);
  EXPECT_TRUE(log_has(": Permission denied (block 0, warp 0, lane"));
  EXPECT_EQ(fs().log().size(), 2u) << "a line for each mapping";
  for (const std::string& line : fs().log()) EXPECT_NE(line.find(" first; 64 accesses of 32 lanes)"), std::string::npos) << line;
}

struct page_kernel : pointer_job {
  std::int64_t wanted;  // page
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<const std::uint32_t>(warp, f);
      mine()[0] = p[wanted * per_page + thread()];
      mine()[1] = p.linked();
      mine()[2] = p[(wanted + 1) * per_page - 1];
      const auto straddling = map<const three_words>(warp, f, (wanted + 1) * static_cast<std::int64_t>(page) - 4, 1);
      const three_words value = *straddling;
      mine()[3] = value.a | value.b | value.c;
    }
    close(warp, f);
  }
  struct three_words {
    std::uint32_t a, b, c;
  };
};

TEST_F(ptr_error, a_read_that_fails_reaches_all_lanes_that_wait) {
  const auto store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
  options.custom_store = store;
  store->wrong().fail_at(3 * page, 4 * page);
  store->wrong().delay_ns = 2'000'000;
  run<page_kernel>(3, 64, std::int64_t{3});
  for (unsigned t = 0; t < 192; ++t) {
    for (unsigned k = 0; k < 4; ++k) EXPECT_EQ(result(t, k), 0) << t << " " << k;
  }
  EXPECT_EQ(fs().counters().fault_errors, 3u * 192);
  // Two lines a warp, as there are two mappings: whose access is the first is the schedule's choice.
  for (unsigned w = 0; w < 6; ++w) {
    const std::string who = ": Input/output error (block " + std::to_string(w / 2) + ", warp " + std::to_string(w % 2) + ", lane ";
    const auto all = fs().log();
    const auto is_its = [&](const std::string& line) { return line.find(who) != std::string::npos; };
    ASSERT_EQ(std::count_if(all.begin(), all.end(), is_its), 2) << who;
    const auto first = std::find_if(all.begin(), all.end(), is_its);
    EXPECT_NE(first->find(" first; 64 accesses of 32 lanes)"), std::string::npos) << *first;
    const auto second = std::find_if(first + 1, all.end(), is_its);
    EXPECT_NE(second->find(" first; 32 accesses of 32 lanes)"), std::string::npos) << *second;
  }
  store->wrong().heal();
  run<page_kernel>(3, 64, std::int64_t{3});
  for (unsigned t = 0; t < 192; ++t) {
    EXPECT_EQ(result(t, 0), word_at(3 * per_page + t));
    EXPECT_EQ(result(t, 1), 1);
    EXPECT_EQ(result(t, 2), word_at(4 * per_page - 1));
    EXPECT_EQ(result(t, 3), word_at(4 * per_page - 1) | word_at(4 * per_page) | word_at(4 * per_page + 1));
  }
}

// More pages linked at once than there are frames.
struct crowd_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f);
      mine()[0] = p[(thread() % npages) * per_page + 1];
      mine()[1] = p.linked();
      this_block().sync();
      mine()[2] = pins();
      this_block().sync();
      p.unlink();
      this_block().sync();
      if (warp.rank() == 0) mine()[3] = p[(thread() % npages) * per_page + 1];
    }
    close(warp, f);
  }
};

TEST_F(ptr_error, more_linked_pointers_than_frames_end_in_bounded_time) {
  constexpr unsigned nframes = 8, threads = 64;
  options.cache_nbytes = nframes * page;
  options.frame_timeout = std::chrono::milliseconds(2);
  const auto start = std::chrono::steady_clock::now();
  run<crowd_kernel>(1, threads);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 20.0);
  unsigned linked = 0;
  for (unsigned t = 0; t < threads; ++t) {
    linked += result(t, 1) != 0;
    EXPECT_EQ(result(t, 0), word_at((t % npages) * per_page + 1)) << t;
    EXPECT_EQ(result(t, 2), result(0, 2)) << t;
    if (t % 32 == 0) {
      EXPECT_EQ(result(t, 3), word_at((t % npages) * per_page + 1)) << "frames are free again";
    }
  }
  EXPECT_EQ(result(0, 2), linked);
  EXPECT_GE(linked, 1u);
  EXPECT_LT(linked, threads);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
  EXPECT_EQ(fs().counters().past_cache, threads - linked) << "once each";
}

// One warp, a page for each lane.
struct starve_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<const std::uint32_t>(warp, f);
      warp.sync();
      const std::uint64_t start = simt::clock_ns();
      mine()[0] = p[thread() * per_page + 1];
      mine()[1] = static_cast<std::int64_t>(simt::clock_ns() - start);
      mine()[2] = p.linked();
      warp.sync();
    }
    close(warp, f);
  }
};

TEST_F(ptr_error, lanes_of_a_warp_wait_for_frames_together) {
  constexpr unsigned nframes = 8;
  constexpr std::int64_t timeout_ms = 3200, wait_ns = timeout_ms / 16 * 1'000'000;
  options.cache_nbytes = nframes * page;
  options.frame_timeout = std::chrono::milliseconds(timeout_ms);
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();  // a run may be held up by what else the machine does
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    schedule.seed = seed;
    end_mount();  // so that none of its accesses has waited
    run<starve_kernel>(1, 32);
    std::int64_t linked = 0, longest = 0;
    for (unsigned t = 0; t < 32; ++t) {
      linked += result(t, 2);
      longest = std::max(longest, result(t, 1));
      EXPECT_EQ(result(t, 0), word_at(t * per_page + 1)) << t;
    }
    EXPECT_EQ(linked, nframes);
    EXPECT_GE(longest, wait_ns) << "reads wait so long for a frame";
    shortest = std::min(shortest, longest);
    EXPECT_EQ(fs().counters().past_cache, 32 - nframes);
    EXPECT_EQ(fs().counters().fault_errors, 0u);
  }
  EXPECT_LE(shortest, 12 * wait_ns) << "24 pages get no frame";
}

// A pointer in memory that outlives the kernel keeps its pin.
struct leave_linked : pointer_job {
  reader* kept;
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    *kept = map<const std::uint32_t>(this_thread(), f);
    mine()[0] = **kept;
    close(this_thread(), f);
  }
};
struct unlink_kept : pointer_job {
  reader* kept;
  GPUFS_DEVICE void operator()() const {
    if (thread() == 0) kept->unlink();
  }
};

TEST_F(ptr_error, a_leaked_pin_is_counted) {
  const device_buffer<std::byte> memory(sizeof(reader));
  auto* kept = reinterpret_cast<reader*>(memory.get());
  EXPECT_EQ(run<leave_linked>(1, 32, kept)[0], word_at(0));
  EXPECT_EQ(fs().counters().pins, 1u);
  EXPECT_EQ(fs().counters().pinned_frames, 1u);
  run<unlink_kept>(1, 32, kept);
  EXPECT_EQ(fs().counters().pins, 0u);
}

TEST_F(ptr_error, a_leaked_pin_fails_its_test_at_the_mounts_end) {
  for (const bool others_may_be_left : {false, true}) {
    if (others_may_be_left) expect_leftovers_but_pins("to see that a pin fails all the same");
    const device_buffer<std::byte> memory(sizeof(reader));
    run<leave_linked>(1, 32, reinterpret_cast<reader*>(memory.get()));
    EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(end_mount(), "a mount ends with 1 pins");
  }
}

struct stop_kernel_job : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    const auto p = map<const std::uint32_t>(warp, f, 0, 10, map_flags::stop_on_error);
    mine()[0] = p[thread() % 10];
    this_block().sync();  // all are linked, and none is inside a fault when the kernel stops
    if (thread() == 5) mine()[1] = p[10];
    this_block().sync();  // the others wait here, linked
    mine()[2] = 1;
  }
};

// On CUDA the context is lost then, with all device memory: so in a process of its own.
TEST_F(ptr_error, the_log_outlives_a_kernel_that_was_stopped) {
  if (under_compute_sanitizer()) GTEST_SKIP() << "it reports the stop";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stop = [&] {
    const device_buffer<char> name(std::vector<char>{'f', 0});
    const device_buffer<std::int64_t> out(64 * outs);
    const mount m(dir.path(), options);
    try {
      simt::launch({.grid = 1, .block = 64}, stop_kernel_job{{m.ref(), name.get(), out.get()}});
    } catch (const std::exception&) {
      for (const std::string& line : m.log()) std::fprintf(stderr, "%s\n", line.c_str());
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(stop(), testing::ExitedWithCode(0), "pointer to 'f' at offset 40: beyond the mapping of 40 bytes");
}

#if !GPUFS_ON_CUDA
TEST_F(ptr_error, a_mapping_can_stop_the_kernel) {
  expect_leftovers_but_pins("the kernel is stopped");
  try {
    run<stop_kernel_job>(1, 64);
    FAIL() << "the launch did not stop";
  } catch (const simt::launch_error& e) {
    EXPECT_NE(std::string(e.what()).find("an access through a pointer failed"), std::string::npos) << e.what();
  }
  EXPECT_EQ(fs().counters().fault_errors, 1u);
  EXPECT_TRUE(log_has("pointer to 'f' at offset 40: beyond the mapping of 40 bytes"));
  EXPECT_EQ(fs().counters().pins, 0u) << "lanes that are unwound unlink";
}

// Uses a pointer that it did not get, in each way that there is.
struct stop_refused : pointer_job {
  std::int64_t way;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, way == 0 ? "missing" : path);
    const auto p = map<std::uint32_t>(warp, f, 4, 10, map_flags::stop_on_error);
    mine()[0] = p.error();
    mine()[1] = p == nullptr && !p && !p.linked();
    warp.sync();
    if (way == 1) mine()[2] = p[3];
    if (way == 2) p[3] = 1;
    if (way == 3) p.fault_in();
    if (way == 4) p.fetch_add(1, std::memory_order_relaxed);
    if (way == 5) mine()[2] = p.load<simt::vec16>().word[0];
    if (way == 6) mine()[2] = ptr<const std::uint32_t>(p).read_tile<2>(1)[0];
    close(warp, f);
  }
};

TEST_F(ptr_error, a_refused_mapping_stops_the_kernel_when_it_is_used) {
  expect_leftovers_but_pins("the kernel is stopped");
  run<stop_refused>(1, 32, std::int64_t{0});
  EXPECT_EQ(result(0, 0), -ENOENT) << "nobody used it";
  EXPECT_TRUE(log_has("mapping of a file that is not open at offset 4: No such file or directory"));
  for (std::int64_t way = 1; way <= 6; ++way) {
    try {
      run<stop_refused>(1, 32, way);
      FAIL() << "the launch did not stop, way " << way;
    } catch (const simt::launch_error& e) {
      EXPECT_NE(std::string(e.what()).find("an access through a pointer failed"), std::string::npos) << e.what();
    }
    EXPECT_EQ(fs().counters().fault_errors, static_cast<std::uint64_t>(way + 1)) << "once a mapping";
  }
  EXPECT_TRUE(log_has("mapping of 'f' at offset 4: Permission denied"));
}

struct throwing_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path);
    auto p = map<std::uint32_t>(this_warp(), f, 0, to_the_end, map_flags::private_changes);
    p += thread() * 300;
    *p = 1;
    const auto q = static_cast<ptr<std::uint32_t>&&>(p);
    this_block().sync();
    if (thread() == 40) throw std::runtime_error("as a user's kernel might");
    simt::backoff pause;
    while (thread() % 3 == 0) pause();
    this_block().sync();
  }
};

TEST_F(ptr_error, lanes_that_are_unwound_unlink) {
  expect_leftovers_but_pins("the kernel is stopped");
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    EXPECT_THROW(run<throwing_kernel>(1, 64), simt::launch_error);
    EXPECT_EQ(fs().counters().pins, 0u) << "seed " << seed;
  }
}
#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
