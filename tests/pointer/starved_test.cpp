// SPDX-License-Identifier: Apache-2.0
// All frames are pinned by the pointers of lanes that have nothing to do: reads are served past the cache, and writes fail at once.
#include <chrono>

#include "file/faulty_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr unsigned nframes = 8;

// How the file is mapped, and where its bytes come from.
enum class way { read, write, private_changes, private_of_written, inverted, inverted_of_written };
struct kind {
  way how;
  store_kind store;
};
std::string name_of(const ::testing::TestParamInfo<kind>& info) {
  constexpr const char* names[] = {"read", "write", "private_changes", "private_of_written", "inverted", "inverted_of_written"};
  return names[static_cast<int>(info.param.how)] + std::string(info.param.store == store_kind::posix ? "_staged" : "_pulled");
}

struct three_words {
  std::uint32_t a, b, c;
};

// Warp 0's pointers hold a page each, as many as there are frames. Then warp 1 reads all of the file, in each way that there is.
struct starved_kernel : pointer_job {
  way how;
  inverting handler;
  const std::uint32_t* changed;  // what page 9 begins with, where the file is open for writing

  GPUFS_DEVICE bool writes() const {
    return how == way::write || how == way::private_of_written || how == way::inverted_of_written;
  }
  template <class T>
  GPUFS_DEVICE auto map_it(const file& f) const {
    const bool own = how == way::private_changes || how == way::private_of_written;
    return map<const T>(this_warp(), f, 0, to_the_end, own ? map_flags::private_changes : map_flags::none);
  }
  template <class T>
  GPUFS_DEVICE auto map_inverted(const file& f) const {
    return map<const T>(this_warp(), f, 0, to_the_end, map_flags::none, handler);
  }
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, writes() ? O_RDWR : O_RDONLY);
    if (how == way::inverted || how == way::inverted_of_written) {
      work(f, map_inverted<std::uint32_t>(f), map_inverted<three_words>(f), ~std::uint32_t{0});
    } else {
      work(f, map_it<std::uint32_t>(f), map_it<three_words>(f), 0);
    }
    this_block().sync();
    close(warp, f);
  }
  GPUFS_DEVICE std::uint32_t is(std::int64_t i, std::uint32_t inverted) const {
    const bool was_changed = writes() && i >= 9 * per_page && i < 9 * per_page + 4;
    return (was_changed ? changed[i - 9 * per_page] : word_at(i)) ^ inverted;
  }
  template <class Words, class Records>
  GPUFS_DEVICE void work(const file& f, const Words& p, const Records& records, std::uint32_t inverted) const {
    std::int64_t* r = mine();
    if (writes() && simt::warp_rank() == 1) r[9] = pwrite(this_warp(), f, changed, 16, 9 * page);
    this_block().sync();
    const auto held = p + simt::lane_id() * per_page;
    if (simt::warp_rank() == 0) {
      r[0] = *held == is(simt::lane_id() * per_page, inverted);
      r[1] = held.linked();
    }
    this_block().sync();
    if (simt::warp_rank() == 1) {
      std::int64_t wrong = 0;
      const std::uint64_t start = simt::clock_ns();
      constexpr std::int64_t step = under_tsan ? 9 : 3;  // page 9 is among them; as in fewer()
      for (std::int64_t n = 0; n < static_cast<std::int64_t>(npages); n += step) {
        const std::int64_t i = n * per_page + simt::lane_id() % 8;
        wrong += p[i] != is(i, inverted);
        const auto vector = p.template load<simt::vec16>(n * per_page + 4);
        wrong += vector.word[1] != is(n * per_page + 5, inverted);
        const auto tile = (p + i).template read_tile<3>(32);
        for (int k = 0; k < 3; ++k) wrong += tile[static_cast<unsigned>(k)] != is(i + k * 32, inverted);
        const std::ptrdiff_t at[2] = {i, (i + 3 * per_page) % nwords};
        const auto some = p.template gather<2>(at);
        wrong += some[0] != is(at[0], inverted) || some[1] != is(at[1], inverted);
        const std::int64_t last = n * per_page / 3;  // straddles pages, mostly
        const three_words record = records[last];
        wrong +=
            record.a != is(3 * last, inverted) || record.b != is(3 * last + 1, inverted) || record.c != is(3 * last + 2, inverted);
        auto walking = p + n * per_page;
        std::int64_t next = n * per_page;
        for_each_n(
            5, 1, [&](std::uint32_t x) { wrong += x != is(next++, inverted); }, walking);
      }
      r[0] = wrong;
      r[1] = static_cast<std::int64_t>((simt::clock_ns() - start) / 1'000'000);
      r[2] = p.error() + records.error();
    }
    this_block().sync();
  }
};

struct starved : pointer_fixture, ::testing::WithParamInterface<kind> {
  starved() : pointer_fixture(GetParam().store == store_kind::posix ? std::filesystem::temp_directory_path() : "/dev/shm") {
    options.store = GetParam().store;
    options.cache_nbytes = nframes * page;
    options.writable = true;
    options.frame_timeout = std::chrono::seconds(4);
  }
};

TEST_P(starved, reads_that_find_no_frame_are_right) {
  const device_buffer<std::uint32_t> changed(std::vector<std::uint32_t>{1, 2, 3, 4});
  const inverting handler{fs().new_form()};
  run<starved_kernel>(1, 64, GetParam().how, handler, static_cast<const std::uint32_t*>(changed.get()));
  std::int64_t linked = 0;
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), 1) << t;
    linked += result(t, 1);
  }
  EXPECT_GE(linked, 1);
  for (unsigned t = 32; t < 64; ++t) {
    EXPECT_EQ(result(t, 0), 0) << "lane " << t;
    EXPECT_EQ(result(t, 2), 0) << "lane " << t;
    EXPECT_LT(result(t, 1), 120'000) << "ms: hundreds of accesses, of which few wait for a frame";
  }
  const mount_counters c = fs().counters();
  EXPECT_EQ(c.fault_errors, 0u);
  EXPECT_EQ(c.errors, 0u);
  EXPECT_GE(c.past_cache, 32 * npages / 2);
  EXPECT_TRUE(fs().log().empty()) << fs().log()[0];
}

INSTANTIATE_TEST_SUITE_P(each, starved,
                         ::testing::Values(kind{way::read, store_kind::posix}, kind{way::read, store_kind::mapped},
                                           kind{way::write, store_kind::posix}, kind{way::write, store_kind::mapped},
                                           kind{way::private_changes, store_kind::posix},
                                           kind{way::private_changes, store_kind::mapped},
                                           kind{way::private_of_written, store_kind::posix}, kind{way::inverted, store_kind::posix},
                                           kind{way::inverted, store_kind::mapped},
                                           kind{way::inverted_of_written, store_kind::posix}),
                         name_of);

// A sparse matrix times a vector as textbooks have it, a lane a row: rows of few elements leave their lanes idle, with three
// pointers' pages held.
struct spmv_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto all = map<const std::uint32_t>(warp, f);
      auto begins = all + thread() * (per_page / 3), columns = all + (thread() * 5 % npages) * per_page,
           values = all + (thread() * 11 % npages) * per_page;
      std::uint64_t sum = *begins;
      const std::int64_t n = thread() % 32 == 7 ? 400 : thread() % 4;
      for (std::int64_t k = 0; k < n; ++k, columns += 37, values += 41) {
        columns = all + (columns.offset() / 4 + 37) % nwords;
        values = all + (values.offset() / 4 + 41) % nwords;
        sum += *columns * std::uint64_t{3} + *values;
      }
      mine()[0] = static_cast<std::int64_t>(sum);
      mine()[1] = begins.error() + columns.error() + values.error();
    }
    warp.sync();
    close(warp, f);
  }
  static std::int64_t expected(std::int64_t t) {
    std::int64_t columns = t * 5 % static_cast<std::int64_t>(npages) * per_page,
                 values = t * 11 % static_cast<std::int64_t>(npages) * per_page;
    std::uint64_t sum = word_at(t * (per_page / 3));
    const std::int64_t n = t % 32 == 7 ? 400 : t % 4;
    for (std::int64_t k = 0; k < n; ++k, columns += 37, values += 41) {
      columns = (columns + 37) % nwords;
      values = (values + 41) % nwords;
      sum += word_at(columns) * std::uint64_t{3} + word_at(values);
    }
    return static_cast<std::int64_t>(sum);
  }
};

struct starved_ptr : pointer_fixture {
  starved_ptr() { options.cache_nbytes = nframes * page; }
};

TEST_F(starved_ptr, a_textbook_spmv_is_right_with_an_eighth_of_the_file_in_the_cache) {
  options.cache_nbytes = npages / 8 * page;
  const auto start = std::chrono::steady_clock::now();
  run<spmv_kernel>(1, 96);
  for (unsigned t = 0; t < 96; ++t) {
    ASSERT_EQ(result(t, 0), spmv_kernel::expected(t)) << "row " << t;
    EXPECT_EQ(result(t, 1), 0) << "row " << t;
  }
  EXPECT_EQ(fs().counters().fault_errors, 0u);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 120.0) << "one frame_timeout for each of 1,200 accesses is ten minutes";
}

// All frames are held, then each lane of warp 1 writes in many ways.
struct starved_writes : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::int64_t* r = mine();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto reads = map<const std::uint32_t>(warp, f);
      const auto held = reads + simt::lane_id() * per_page;
      if (simt::warp_rank() == 0) r[6] = held.fault_in();
      this_block().sync();
      const auto w = map<std::uint32_t>(warp, f);
      if (simt::warp_rank() == 1) {
        const std::uint64_t start = simt::clock_ns();
        // Where each waits, it would be hours.
        const simt::deadline enough(60'000'000'000);
        for (std::int64_t n = 8; n < static_cast<std::int64_t>(npages) && !enough.expired(); ++n) {
          const std::int64_t i = n * per_page + simt::lane_id();
          const auto at = w + i;
          *at = 7;
          r[0] = at.error();
          w[i] += 3;
          r[1] += (w + i).fetch_add(5, std::memory_order_relaxed);
          r[2] += w[i] == word_at(i);
        }
        // Elements that straddle pages that nobody holds, mostly.
        const auto records = map<three_words>(warp, f);
        for (std::int64_t n = 34; n < static_cast<std::int64_t>(npages); ++n) records[n * per_page / 3] = three_words{1, 2, 3};
        r[3] = static_cast<std::int64_t>((simt::clock_ns() - start) / 1'000'000);
        r[4] = w.error() == records.error() ? w.error() : 0;
      }
      this_block().sync();
    }
    warp.sync();
    r[5] = close(warp, f);
  }
};

TEST_F(starved_ptr, writes_that_find_no_frame_fail_at_once_and_say_why) {
  options.writable = true;
  options.frame_timeout = std::chrono::seconds(2);
  const auto before = dir.read("f");
  run<starved_writes>(1, 64);
  bool told = false;
  for (unsigned t = 32; t < 64; ++t) {
    EXPECT_EQ(result(t, 0), -ENOMEM) << t;
    EXPECT_EQ(result(t, 1), 0) << t;
    EXPECT_EQ(result(t, 2), npages - 8) << "reads are served";
    EXPECT_EQ(result(t, 4), -ENOMEM) << t;
    EXPECT_LT(result(t, 3), 120'000) << "ms: 3,264 writes, of which few wait";
  }
  for (unsigned t = 0; t < 64; ++t) told |= result(t, 5) == -ENOMEM;
  EXPECT_TRUE(told) << "one of the two closes tells";
  EXPECT_EQ(dir.read("f"), before);
  EXPECT_EQ(fs().counters().fault_errors, 32u * ((npages - 8) * 3 + 6));
  const auto log = fs().log();
  const auto names_the_cause = [](const std::string& line) {
    return line.rfind("write through a pointer to 'f'", 0) == 0 &&
           line.find("all frames of the cache (8) are pinned; warps x 32 lanes x pointers") != std::string::npos;
  };
  EXPECT_GE(std::count_if(log.begin(), log.end(), names_the_cause), 1);
}

// Bytes about the end of a file that is no whole number of pages, while another file's pages are in all frames, or not.
struct end_kernel : pointer_job {
  const char* other;
  inverting handler;
  std::int64_t mapped, cut;  // bytes: when it is mapped, and when it is read (0: the same)
  bool starves;

  template <class Bytes, class Records>
  GPUFS_DEVICE void read(const file& f, const Bytes& p, const Records& wide) const {
    std::int64_t* r = mine();
    if (cut != 0) r[0] = ftruncate(this_warp(), f, cut);
    constexpr auto nbytes = static_cast<std::int64_t>(gpufs::test::page);
    const std::int64_t around[] = {0, nbytes - 1, nbytes, 2 * nbytes - 1, 2 * nbytes, 2 * nbytes + 1, 3 * nbytes - 1, 3 * nbytes};
    for (std::int64_t k = 0; k < 8; ++k) {
      const auto q = p + around[k];
      r[1 + 2 * k] = *q;
      r[2 + 2 * k] = q.error();
    }
    const auto w = wide + (2 * nbytes - 8) / 16;  // two pages' bytes
    const auto both = *w;
    r[17] = both.bytes[7];
    r[18] = both.bytes[8];
    r[19] = w.error();
  }
  struct alignas(1) sixteen {
    std::uint8_t bytes[16];
  };
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, cut != 0 ? O_RDWR : O_RDONLY), g = open(warp, fs, other);
    {
      const auto held = map<const std::uint32_t>(warp, g) + simt::lane_id() * per_page;
      if (simt::warp_rank() == 0 && starves) (void)*held;
      this_block().sync();
      if (simt::warp_rank() == 1) {
        if (handler.number == 0) {
          read(f, map<const std::uint8_t>(warp, f), map<const sixteen>(warp, f, 8));
        } else {
          read(f, map<const std::uint8_t>(warp, f, 0, to_the_end, map_flags::none, handler),
               map<const sixteen>(warp, f, 8, to_the_end, map_flags::none, handler));
        }
      }
      this_block().sync();
    }
    warp.sync();
    close(warp, g);
    mine()[20] = close(warp, f);
  }
};

struct end_of_file : starved {
  // What byte `at` of a file of `mapped` bytes that was cut to `cut` reads as, and with which error.
  static std::pair<std::int64_t, std::int64_t> expected(std::int64_t at, std::int64_t mapped, std::int64_t cut, bool inverted) {
    const std::int64_t now = cut != 0 ? cut : mapped;
    const auto npages_now = (now + static_cast<std::int64_t>(page) - 1) / static_cast<std::int64_t>(page);
    if (at >= mapped || at >= npages_now * static_cast<std::int64_t>(page)) return {0, -ENXIO};
    const auto byte =
        at < now ? static_cast<std::uint8_t>(content_byte(file_seed, static_cast<std::uint64_t>(at))) : std::uint8_t{0};
    return {inverted && at < now ? static_cast<std::uint8_t>(~byte) : byte, 0};
  }
};

TEST_P(end_of_file, is_the_same_with_and_without_frames) {
  const bool writes = GetParam().how == way::write || GetParam().how == way::inverted_of_written;
  const bool inverted = GetParam().how == way::inverted || GetParam().how == way::inverted_of_written;
  constexpr auto two = static_cast<std::int64_t>(2 * page), three = static_cast<std::int64_t>(3 * page);
  const device_buffer<char> other(std::vector<char>{'g', 0});
  for (const std::int64_t end : {two - 1, two, two + 1, three}) {
    if (under_tsan && (end == two || end == three)) continue;  // as in fewer()
    for (const bool starves : {false, true}) {
      end_mount();
      const std::int64_t mapped = writes ? three : end, cut = writes ? end : 0;
      dir.add("f", static_cast<std::uint64_t>(mapped), file_seed);
      dir.add("g", npages * page, file_seed + 1);
      let_file_times_pass();
      const inverting handler{inverted ? fs().new_form() : 0};
      run<end_kernel>(1, 64, static_cast<const char*>(other.get()), handler, mapped, cut, starves);
      const std::int64_t nbytes = page,
                         around[] = {0, nbytes - 1, nbytes, 2 * nbytes - 1, 2 * nbytes, 2 * nbytes + 1, 3 * nbytes - 1, 3 * nbytes};
      for (unsigned t = 32; t < 64; ++t) {
        SCOPED_TRACE("lane " + std::to_string(t) + ", " + std::to_string(end) + " bytes" + (starves ? ", starved" : ""));
        for (unsigned k = 0; k < 8; ++k) {
          const std::pair<std::int64_t, std::int64_t> got{result(t, 1 + 2 * k), result(t, 2 + 2 * k)};
          ASSERT_EQ(got, expected(around[k], mapped, cut, inverted)) << "byte " << around[k];
        }
        // Both of its pages, or it is not read.
        const bool has_both = expected(two + 7, mapped, cut, inverted).second == 0;
        ASSERT_EQ(result(t, 19), has_both ? 0 : -ENXIO);
        ASSERT_EQ(result(t, 17), has_both ? expected(two - 1, mapped, cut, inverted).first : 0);
        ASSERT_EQ(result(t, 18), has_both ? expected(two, mapped, cut, inverted).first : 0);
      }
      if (starves) {
        EXPECT_GE(fs().counters().past_cache, 32u);
      } else {
        EXPECT_EQ(fs().counters().past_cache, 0u);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(each, end_of_file,
                         ::testing::Values(kind{way::read, store_kind::posix}, kind{way::read, store_kind::mapped},
                                           kind{way::write, store_kind::posix}, kind{way::write, store_kind::mapped},
                                           kind{way::inverted, store_kind::posix},
                                           kind{way::inverted_of_written, store_kind::posix}),
                         name_of);

// A page that has half of the pins that a frame's word can count.
struct crowded_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR);
    const auto read = map<const std::uint32_t>(me, f);
    r[0] = *read;
    const std::uint32_t written = 77;  // which the file does not have yet
    r[11] = pwrite(me, f, &written, 4, 24);
    const cache::frames frames(fs.get()->cache);
    cache::frame_index frame{0};  // the only one that is pinned
    while (frames.state(frame).load(std::memory_order_relaxed) < cache::frame_state::one_pin)
      frame = cache::frame_index{static_cast<std::uint32_t>(frame) + 1};
    constexpr std::uint32_t npins = 1u << 23;
    frames.pin_more(frame, npins - 2);
    auto last = map_page(me, f, 4);
    r[1] = last.error() == 0 ? map_page(me, f, 8).error() : 1;
    {
      const auto copy = read;
      r[2] = copy[5];
      r[12] = copy[6];
      r[3] = copy.fault_in();
      const auto w = map<std::uint32_t>(me, f);
      w[5] = 1;
      r[4] = w.error();
    }
    std::uint32_t word = 0;
    r[5] = pread(me, f, &word, 4, 20);
    auto other = map_page(me, f, gpufs::test::page);
    r[6] = other.error();
    unmap_page(me, std::move(other));
    cache::frames::unpin(frames.state_word(frame), npins - 2);
    r[7] = pread(me, f, &word, 4, 20);
    r[8] = word;
    unmap_page(me, std::move(last));
    read.unlink();
    r[9] = pins();
    r[10] = close(me, f);
  }
};

TEST_F(starved_ptr, a_page_with_too_many_pins_takes_no_more_and_is_read) {
  options.writable = true;
  const auto r = run<crowded_kernel>(1, 32);
  const std::vector<std::int64_t> expected = {word_at(0), -EMFILE,    word_at(5), -EMFILE, -EMFILE, -EMFILE, 0,
                                              4,          word_at(5), 0,          -EMFILE, 4,       77};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 13), expected);
  EXPECT_EQ(fs().counters().fault_errors, 1u);
  const auto log = fs().log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find(": Too many open files: the page is pinned 2^23 times"), std::string::npos) << log[0];
}

// All frames are held; then each lane of warp 1 reads a page that can be read, and one that the store fails to read.
struct half_readable_kernel : pointer_job {
  inverting handler;  // number 0: none

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    if (handler.number == 0) {
      work(map<const std::uint32_t>(warp, f), 0);
    } else {
      work(map<const std::uint32_t>(warp, f, 0, to_the_end, map_flags::none, handler), ~std::uint32_t{0});
    }
    warp.sync();
    close(warp, f);
  }
  template <class Words>
  GPUFS_DEVICE void work(const Words& p, std::uint32_t inverted) const {
    const auto held = p + simt::lane_id() * per_page;
    if (simt::warp_rank() == 0 && simt::lane_id() < nframes) mine()[0] = held.fault_in();
    this_block().sync();
    if (simt::warp_rank() == 1) {
      const std::int64_t i = 9 * per_page + simt::lane_id();
      const auto good = p + i, bad = p + 20 * per_page;
      mine()[0] = *good == (word_at(i) ^ inverted) ? good.error() : 1;
      mine()[1] = *bad;
      mine()[2] = bad.error();
    }
    this_block().sync();
  }
};

TEST_F(starved_ptr, only_reads_that_were_served_count_as_such_and_only_others_as_errors) {
  const auto store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
  options.custom_store = store;
  store->wrong().fail_at(20 * page, 21 * page);
  for (const bool handled : {false, true}) {
    end_mount();
    const inverting handler{handled ? fs().new_form() : 0};
    run<half_readable_kernel>(1, 64, handler);
    for (unsigned t = 0; t < 64; ++t) {
      EXPECT_EQ(result(t, 0), 0) << t;
      EXPECT_EQ(result(t, 1), 0) << t;
      EXPECT_EQ(result(t, 2), t < 32 ? 0 : -EIO) << t;
    }
    const mount_counters c = fs().counters();
    EXPECT_EQ(c.past_cache, 32u);
    EXPECT_EQ(c.fault_errors, 32u);
    EXPECT_EQ(c.errors, 32u);
  }
}

#if !GPUFS_ON_CUDA  // where a stop ends the context
// Works on a page until the kernel is stopped, as long as words[1] is 0; words[0] says that it does.
struct endless_handler {
  std::uint32_t number;
  std::uint32_t* words;

  GPUFS_HOST_DEVICE std::uint32_t form() const { return number; }
  template <class Group>
  GPUFS_DEVICE int filled(Group /*group*/, std::byte* /*data*/, std::uint64_t offset, std::uint32_t /*nbytes*/) const {
    if (offset < nframes * gpufs::test::page) return 0;
    simt::atomic_ref<std::uint32_t>(words[0]).store(1, std::memory_order_relaxed);
    simt::backoff pause;
    while (simt::atomic_ref<std::uint32_t>(words[1]).load(std::memory_order_relaxed) == 0) pause();
    return 0;
  }
};

// All frames are held; then warp 1 reads by way of the handler. Or its first lane alone, and the last one stops the kernel while
// that is in there.
struct stopped_in_handler : pointer_job {
  endless_handler handler;
  bool stops;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<const std::uint32_t>(warp, f, 0, to_the_end, map_flags::none, handler);
      const auto held = p + simt::lane_id() * per_page;
      if (simt::warp_rank() == 0 && simt::lane_id() < nframes) mine()[0] = held.fault_in();
      this_block().sync();
      if (simt::warp_rank() == 1) {
        if (stops && simt::lane_id() == 31) {
          simt::backoff pause;
          while (simt::atomic_ref<std::uint32_t>(handler.words[0]).load(std::memory_order_relaxed) == 0) pause();
          simt::stop_kernel("it was to stop");
        }
        const std::int64_t i = (nframes + simt::lane_id()) * per_page;
        if (!stops || simt::lane_id() == 0) mine()[0] = p[i] == word_at(i) ? p.error() : 1;
      }
      this_block().sync();
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(starved_ptr, a_kernel_that_is_stopped_in_a_handler_leaves_the_spare_page_to_the_next) {
  expect_leftovers_but_pins("the kernel is stopped");
  options.io_timeout = std::chrono::seconds(4);
  for (schedule.seed = 1; schedule.seed <= 4; ++schedule.seed) {
    end_mount();
    const device_buffer<std::uint32_t> words(2);
    const endless_handler handler{fs().new_form(), words.get()};
    EXPECT_THROW(run<stopped_in_handler>(1, 64, handler, true), simt::launch_error);
    const std::uint32_t goes_on = 1;
    simt::this_platform().copy_to_device(words.get() + 1, &goes_on, sizeof goes_on);
    run<stopped_in_handler>(1, 64, handler, false);
    for (unsigned t = 0; t < 64; ++t) ASSERT_EQ(result(t, 0), 0) << t << ", seed " << schedule.seed;
  }
}
#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
