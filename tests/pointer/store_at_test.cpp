// SPDX-License-Identifier: Apache-2.0
// Stores to elements that no pointer links, of 4, 8 and 16 bytes: each element has what some lane has stored, the highest one of
// those that met, and nothing else of the file changes.
#include <map>
#include <set>

#include "gpufs/host_file.hpp"
#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct alignas(16) pair_of_words {
  std::uint64_t low, high;
};

// What the n-th store stores: no two have a half in common.
template <class T>
GPUFS_HOST_DEVICE T value_of(std::uint32_t n) {
  T value{};
  if constexpr (sizeof(T) == 16) {
    value = {std::uint64_t{n} << 32 | 1, std::uint64_t{n} << 32 | 2};
  } else {
    value = static_cast<T>(n + 1);
  }
  return value;
}
// The halves that are stored as one each, at least.
template <class T>
std::vector<std::uint64_t> words_of(const T& value) {
  if constexpr (sizeof(T) == 16) {
    return {value.low, value.high};
  } else {
    return {static_cast<std::uint64_t>(value)};
  }
}

using stores_at = writing_pointer_fixture;
INSTANTIATE_TEST_SUITE_P(on_disk_and_in_memory, stores_at, ::testing::Bool(), name_of_place);

template <class T>
struct store_kernel : pointer_job {
  std::uint32_t ntimes;
  std::uint64_t spread;
  bool by_sectors;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    if (by_sectors) advise(warp, f, 0, 0, advice::random);
    {
      const auto p = map<T>(warp, f);
      for (std::uint32_t i = 0; i < ntimes; ++i) {
        const std::uint32_t n = thread() * ntimes + i;
        store_at(p, element(n, spread), value_of<T>(n));
      }
      mine()[0] = p.error();
    }
    mine()[1] = close(warp, f);
  }
  GPUFS_HOST_DEVICE static std::int64_t element(std::uint32_t n, std::uint64_t spread) {
    return static_cast<std::int64_t>(content_word(7, n) % spread);
  }
};

constexpr unsigned nthreads = 128;

TEST_P(stores_at, leave_a_value_that_was_stored_and_all_else_as_it_was) {
  struct trial {
    std::uint32_t ntimes;
    std::uint64_t spread, nframes;
    bool by_sectors;
  };
  // All over a file that does not fit; few elements; one; few frames; and by sectors.
  constexpr trial trials[] = {{24, npages * 256, 16, false}, {12, 40, 64, false},          {12, 1, 64, false},
                              {6, npages * 256, 5, false},   {24, npages * 256, 16, true}, {6, npages * 256, 5, true}};
  const auto of = [&]<class T>(T) {
    for (const trial& t : trials) {
      end_mount();
      dir.add("f", npages * page, file_seed);
      let_file_times_pass();
      options.cache_nbytes = t.nframes * page;
      const std::vector<T> before = in_file<T>();
      run<store_kernel<T>>(2, nthreads / 2, t.ntimes, t.spread, t.by_sectors);
      for (unsigned i = 0; i < nthreads; ++i) {
        EXPECT_EQ(result(i, 0), 0);
        EXPECT_EQ(result(i, 1), 0);
      }
      const mount_counters counted = fs().counters();
      EXPECT_EQ(counted.fault_errors, 0u);
      EXPECT_EQ(counted.unwritten_pages, 0u);
      EXPECT_EQ(counted.bytes_written, std::uint64_t{nthreads} * t.ntimes * sizeof(T));
      std::map<std::int64_t, std::set<std::uint64_t>> stored;
      for (std::uint32_t n = 0; n < nthreads * t.ntimes; ++n) {
        for (const std::uint64_t word : words_of(value_of<T>(n))) stored[store_kernel<T>::element(n, t.spread)].insert(word);
      }
      const std::vector<T> now = in_file<T>();
      ASSERT_EQ(now.size(), before.size());
      for (std::size_t i = 0; i < now.size(); ++i) {
        const auto here = stored.find(static_cast<std::int64_t>(i));
        if (here == stored.end()) {
          ASSERT_EQ(words_of(now[i]), words_of(before[i])) << i;
          continue;
        }
        const std::vector<std::uint64_t> words = words_of(now[i]);
        for (const std::uint64_t word : words) ASSERT_TRUE(here->second.contains(word)) << i;
        if constexpr (sizeof(T) == 16) {
          ASSERT_EQ(words[0] % 4, 1u);
          ASSERT_EQ(words[1] % 4, 2u);
          if (on_cuda) {
            ASSERT_EQ(words[0] >> 32, words[1] >> 32) << "halves of two values";
          }
        }
      }
    }
  };
  of(std::uint32_t{});
  of(std::int64_t{});
  of(pair_of_words{});
}

// One lane after another, so that it is known which was the last; in pages that are cached, or not, or held by a pointer.
template <class T>
struct store_in_turn : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<T>(warp, f);
      auto held = map<std::uint32_t>(warp, f);
      if (simt::lane_id() == 0) held[5 * per_page + 1] = 77;  // linked, and written
      warp.sync();
      for (unsigned lane = 0; lane < 32; ++lane) {
        if (simt::lane_id() == lane) {
          for (std::int64_t k = 0; k < 10; ++k) store_at(p, k * static_cast<std::int64_t>(page / sizeof(T)) + 1, value_of<T>(lane));
        }
        warp.sync();
      }
      for (std::int64_t k = 0; k < 10; ++k) {
        const T now = p[k * static_cast<std::int64_t>(page / sizeof(T)) + 1];
        const T want = value_of<T>(31);
        for (unsigned b = 0; b < sizeof(T); ++b)
          mine()[2 + k] += reinterpret_cast<const std::byte*>(&now)[b] != reinterpret_cast<const std::byte*>(&want)[b];
      }
      mine()[0] = p.error();
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(stores_at, are_seen_by_all_who_read_later) {
  const auto of = [&]<class T>(T) {
    end_mount();
    dir.add("f", npages * page, file_seed);
    let_file_times_pass();
    const std::vector<T> before = in_file<T>();
    run<store_in_turn<T>>(1, 32);
    for (unsigned t = 0; t < 32; ++t) {
      for (unsigned i = 0; i < 12; ++i) EXPECT_EQ(result(t, i), 0) << i;
    }
    const std::vector<T> now = in_file<T>();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const std::size_t in_page = i % (page / sizeof(T)), at = i / (page / sizeof(T));
      if (at == 5 && in_page == 4 / sizeof(T)) continue;  // the pointer's word is in it, or it is in the element
      const T want = at < 10 && in_page == 1 ? value_of<T>(31) : before[i];
      ASSERT_EQ(words_of(now[i]), words_of(want)) << i;
    }
  };
  of(std::uint64_t{});
  of(pair_of_words{});
}

struct store_a_page_a_lane : pointer_job {
  file f;

  GPUFS_DEVICE void operator()() const {
    const auto p = map<pair_of_words>(this_warp(), f);
    store_at(p, static_cast<std::int64_t>(thread()) * static_cast<std::int64_t>(page / 16) + thread(),
             value_of<pair_of_words>(thread()));
    mine()[0] = p.error();
  }
};

// What another process writes beside them meanwhile stays.
TEST_P(stores_at, write_back_their_own_bytes_alone) {
  constexpr std::uint64_t other_seed = file_seed + 1;
  options.dirty_nbytes = 40 * page;  // nothing goes back before
  {
    host_file f(fs(), "f", O_RDWR);
    run<store_a_page_a_lane>(1, 32, f.ref());
    dir.overwrite("f", 0, npages * page, other_seed);
    f.close();
  }
  for (unsigned t = 0; t < 32; ++t) EXPECT_EQ(result(t, 0), 0);
  std::vector<std::byte> want = content(other_seed, 0, npages * page);
  for (std::uint32_t t = 0; t < 32; ++t) {
    const auto value = value_of<pair_of_words>(t);
    std::memcpy(&want[t * page + t * 16], &value, sizeof value);
  }
  EXPECT_TRUE(dir.read("f") == want);
  EXPECT_EQ(fs().counters().bytes_written_back, 32u * 16);
}

// What cannot be stored, and says so.
struct refused : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR), reader = open(me, fs, path);
    const pair_of_words value{1, 2};
    {
      const auto p = map<pair_of_words>(me, f, 32, 4);
      store_at(p, 3, value);
      r[0] = p.error();
      store_at(p, 4, value);  // beyond the mapping
      r[1] = p.error();
      const auto before = map<pair_of_words>(me, f, 32, 4);
      store_at(before, -1, value);
      r[2] = before.error();
      const auto not_aligned = map<pair_of_words>(me, f, 8);
      store_at(not_aligned, 0, value);
      r[3] = not_aligned.error();
      const auto of_reader = map<pair_of_words>(me, reader);
      store_at(of_reader, 0, value);
      r[4] = of_reader.error();
      const auto constant = map<const pair_of_words>(me, reader);
      const ptr<pair_of_words> forged(constant.mapped(), constant.within(), {});
      store_at(forged, 1, value);
      r[5] = forged.error();
      const auto last = map<pair_of_words>(me, f);
      r[6] = ftruncate(me, f, static_cast<std::int64_t>(page + 8));
      store_at(last, static_cast<std::int64_t>(page / 16), value);  // the file has half of it
      r[7] = last.error();
    }
    r[8] = close(me, f);
    close(me, reader);
  }
};

TEST_P(stores_at, what_cannot_be_stored_changes_nothing_and_is_recorded) {
  const auto r = run<refused>(1, 32);
  const std::vector<std::int64_t> expected = {0, -ENXIO, -ENXIO, -EINVAL, -EACCES, -EACCES, 0, -ENXIO, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 9), expected);
  auto want = content(file_seed, 0, page + 8);
  const pair_of_words value{1, 2};
  std::memcpy(&want[32 + 3 * 16], &value, sizeof value);
  EXPECT_TRUE(dir.read("f") == want);
}

// The lanes of a warp, by one call: which lanes those of a store_at are, the hardware says.
template <class Word>
struct meeting : pointer_job {
  Word* to;
  unsigned nelements;

  GPUFS_DEVICE void operator()() const {
    const unsigned lane = simt::lane_id();
    detail::one_store<Word> what{};
    const std::uint32_t word = lane + 1;
    std::memcpy(&what.value, &word, sizeof word);
    const bool wants = lane % 11 != 3;
    what.make(simt::some_lanes(~0u), wants ? reinterpret_cast<std::uint64_t>(to + lane % nelements) : 0);
  }
};

struct store_at : pointer_fixture {};

TEST_F(store_at, of_lanes_that_meet_the_highest_stores) {
  const auto of = [&]<class Word>(Word) {
    for (const unsigned n : {1u, 2u, 5u, 9u, 16u, 31u, 32u}) {
      const device_buffer<Word> to(32);
      run<meeting<Word>>(1, 32, to.get(), n);
      const std::vector<Word> found = to.read();
      std::vector<std::uint32_t> want(32), words(32);
      for (unsigned lane = 0; lane < 32; ++lane) {
        if (lane % 11 != 3) want[lane % n] = lane + 1;
        std::memcpy(&words[lane], &found[lane], 4);
      }
      EXPECT_EQ(words, want) << n;
    }
  };
  of(std::uint32_t{});
  of(std::uint64_t{});
  of(simt::vec16{});
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
