// SPDX-License-Identifier: Apache-2.0
// read_tile and gather, and left() beside them: elements of every kind, tiles that lie in a page or across pages, reach beyond the
// mapping at either end, or want pages that are not to be had; from pointers in each state. Each element that is not to be had is
// zeros, and one error.
#include "file/faulty_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

template <class Word, unsigned N>
struct words {
  Word word[N];
};
struct alignas(16) aligned_16 {
  std::uint64_t word[2];
};

struct tile_read : pointer_fixture {};

struct tile_counts {
  std::int64_t wrong_bytes, missing, moved;
};

// How many bytes are not the file's from `at` on, or zeros where there are none. Out of line, and so once for all kernels: inside
// them it was most of what there is to compile.
[[gnu::noinline]] GPUFS_DEVICE std::int64_t wrong_bytes(const void* element, std::uint32_t nbytes, std::uint64_t at, bool there) {
  const auto* bytes = static_cast<const unsigned char*>(element);
  std::int64_t wrong = 0;
  for (std::uint32_t b = 0; b < nbytes; ++b) {
    wrong += bytes[b] != (there ? static_cast<unsigned char>(content_byte(file_seed, at + b)) : 0);
  }
  return wrong;
}

// Tiles around the ends of the mapping and of pages, a few hundred a thread.
template <class T>
struct tiles_kernel : pointer_job {
  std::int64_t begin, count;  // of the mapping: bytes and elements
  std::uint32_t seed;

  GPUFS_DEVICE static std::uint32_t draw(std::uint64_t& random, std::uint32_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(random >> 33) % below;
  }

  template <unsigned N>
  GPUFS_DEVICE void read(const ptr<const T>& p, std::int64_t index, std::uint32_t stride, tile_counts& counts) const {
    const elements<T, N> tile = p.template read_tile<N>(stride);
    for (unsigned k = 0; k < N; ++k) {
      const std::int64_t i = index + static_cast<std::int64_t>(k) * stride;
      const bool there = i >= 0 && i < count;
      counts.missing += !there;
      const auto at = static_cast<std::uint64_t>(begin + i * static_cast<std::int64_t>(sizeof(T)));
      counts.wrong_bytes += wrong_bytes(&tile[k], sizeof(T), at, there);
    }
    counts.moved += p.offset() != begin + index * static_cast<std::int64_t>(sizeof(T)) || p.left() != count - index;
  }

  // Elements about this one, each lane its own; now and then all the same.
  template <unsigned N>
  GPUFS_DEVICE void gather(const ptr<const T>& p, std::int64_t index, std::uint64_t& random, tile_counts& counts) const {
    const bool alike = draw(random, 4) == 0, was_linked = p.linked();
    const std::uint32_t lane = this_warp().rank();
    std::ptrdiff_t at[N];
    for (unsigned k = 0; k < N; ++k) {
      const std::uint32_t far = draw(random, static_cast<std::uint32_t>(2 * count) + 9) + (alike ? 0 : lane * (k + 3));
      at[k] = static_cast<std::ptrdiff_t>(far) - (draw(random, 2) == 0 ? index + 4 : 0);
    }
    const elements<T, N> got = p.gather(at);
    for (unsigned k = 0; k < N; ++k) {
      const std::int64_t i = index + at[k];
      const bool there = i >= 0 && i < count;
      counts.missing += !there;
      counts.wrong_bytes +=
          wrong_bytes(&got[k], sizeof(T), static_cast<std::uint64_t>(begin + i * static_cast<std::int64_t>(sizeof(T))), there);
    }
    // It links to nothing, and unlinks only where it had to wait.
    counts.moved += p.offset() != begin + index * static_cast<std::int64_t>(sizeof(T)) || (p.linked() && !was_linked);
  }

  GPUFS_DEVICE void operator()() const {
    constexpr auto nbytes = static_cast<std::int64_t>(sizeof(T));
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    tile_counts counts{};
    {
      const auto first = map<const T>(warp, f, begin, count);
      mine()[3] = first.error();
      std::uint64_t random = seed;  // the same for all lanes where they draw together, so that they keep to one access
      for (unsigned round = 0; round < 48; ++round) {
        const std::uint32_t n = round % 4, kind = draw(random, 3);
        const std::uint32_t stride = kind == 0 ? 1 : kind == 1 ? 32 : 1000;
        const std::uint32_t where = draw(random, 4), back = draw(random, (stride << n) + 4);
        const std::int64_t page_end = (begin / std::int64_t{page} + 1 + draw(random, 4)) * std::int64_t{page};
        std::int64_t index = where == 0 ? 3 : where == 1 ? count + 3 : (page_end - begin) / nbytes + 1;
        index += static_cast<std::int64_t>(warp.rank() % 5) - back;
        ptr<const T> p = first + index;
        const std::uint32_t state = draw(random, 5);
        if (draw(random, 4) == 0 && warp.rank() % 3 == 0) continue;  // lanes need not all come
        if (state == 1) (void)p.fault_in();
        if (state == 2) (void)p[count / 2 - index];  // linked, and elsewhere
        if (state == 3) {
          (void)p[count - index];  // not to be had
          ++counts.missing;
        }
        if (state == 1 && (index < 0 || index >= count)) ++counts.missing;
        for (int again = 0; again < 2; ++again, ++p, ++index) {
          if (n == 0) read<1>(p, index, stride, counts);
          if (n == 1) read<2>(p, index, stride, counts);
          if (n == 2) read<4>(p, index, stride, counts);
          if (n == 3) read<8>(p, index, stride, counts);
          if (n == 1) gather<1>(p, index, random, counts);
          if (n == 2) gather<4>(p, index, random, counts);
        }
      }
    }
    warp.sync();
    close(warp, f);
    mine()[0] = counts.wrong_bytes;
    mine()[1] = counts.missing;
    mine()[2] = counts.moved;
  }
};

template <class T>
struct read_tile_of : pointer_fixture {};
#if GPUFS_ON_CUDA  // as in read_property_test.cpp
using element_types = ::testing::Types<std::uint8_t, std::uint32_t, std::uint64_t, aligned_16, words<std::uint8_t, 3>,
                                       words<std::uint32_t, 3>, words<std::uint64_t, 2>, words<std::uint64_t, 75>>;
#else
using element_types =
    ::testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, aligned_16, words<std::uint8_t, 3>,
                     words<std::uint32_t, 3>, words<std::uint64_t, 2>, words<std::uint64_t, 3>, words<std::uint32_t, 5>,
                     words<std::uint16_t, 50>, words<std::uint64_t, 75>>;
#endif
TYPED_TEST_SUITE(read_tile_of, element_types);

TYPED_TEST(read_tile_of, reads_what_is_there_and_counts_what_is_not) {
  const unsigned threads = under_tsan ? 32 : 64;
  const std::int64_t begin = 2 * std::int64_t{page} - 160;
  for (const std::int64_t count : {std::int64_t{7}, 5 * std::int64_t{page} / std::int64_t{sizeof(TypeParam)}}) {
    for (std::uint32_t seed = 1; seed <= (under_compute_sanitizer() ? 1 : fewer(4)); ++seed) {
      this->schedule.seed = seed;
      const std::uint64_t errors_before = this->fs().counters().fault_errors;
      this->template run<tiles_kernel<TypeParam>>(1, threads, begin, count, seed);
      std::int64_t missing = 0;
      for (unsigned t = 0; t < threads; ++t) {
        ASSERT_EQ(this->result(t, 0), 0) << "bytes differ, thread " << t << ", " << count << " elements, seed " << seed;
        ASSERT_EQ(this->result(t, 2), 0) << "offset or left, thread " << t << ", " << count << " elements, seed " << seed;
        ASSERT_EQ(this->result(t, 3), 0);
        missing += this->result(t, 1);
      }
      EXPECT_GT(missing, 0);
      EXPECT_EQ(this->fs().counters().fault_errors - errors_before, static_cast<std::uint64_t>(missing)) << count << " elements";
    }
  }
}

// One lane, so that the log has one order.
template <class T>
struct beyond_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    {
      const auto p = map<const T>(this_thread(), f, 2 * page - 2 * sizeof(T), 2);
      (void)(p - 1).template read_tile<4>(1);
      const auto q = map<const T>(this_thread(), f, page - 4, 2);
      (void)q.template read_tile<4>(1);
    }
    close(this_thread(), f);
  }
};

TEST_F(tile_read, the_log_names_elements_of_each_page) {
  const auto check = [this](std::size_t nbytes, std::size_t had) {
    const std::vector<std::string> log = fs().log();
    ASSERT_EQ(log.size(), had + 3);
    const std::string beyond = ": beyond the mapping of " + std::to_string(2 * nbytes) + " bytes (block 0, warp 0, lane 0";
    const std::string expected[] = {std::to_string(2 * page - 3 * nbytes) + beyond + ")", std::to_string(2 * page) + beyond + ")",
                                    std::to_string(page - 4 + 2 * nbytes) + beyond + " first; 2 accesses)"};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NE(log[had + i].find("at offset " + expected[i]), std::string::npos) << log[had + i];
    }
  };
  run<beyond_kernel<std::uint32_t>>(1, 32);
  check(4, 0);
  run<beyond_kernel<words<std::uint32_t, 3>>>(1, 32);
  check(12, 3);
}

// A page that the store does not give, at the begin of a tile, at its end, and between.
template <class T>
struct broken_page_kernel : pointer_job {
  std::uint64_t bad_begin, bad_end;

  GPUFS_DEVICE void operator()() const {
    constexpr auto nbytes = static_cast<std::int64_t>(sizeof(T));
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = 0, missing = 0;
    {
      const auto first = map<const T>(warp, f);
      const std::int64_t bad = static_cast<std::int64_t>(bad_begin) / nbytes;
      const auto per_tile = static_cast<std::int64_t>(page) / nbytes / 2;  // three pages a tile, nearly
      for (const std::int64_t from : {bad - per_tile * 2, bad - 2, bad + 1, bad + std::int64_t{page} / nbytes - 2}) {
        for (const std::int64_t stride : {std::int64_t{1}, per_tile}) {
          const auto p = first + from;
          const elements<T, 4> tile = p.template read_tile<4>(static_cast<std::uint32_t>(stride));
          for (unsigned k = 0; k < 4; ++k) {
            const std::uint64_t at = static_cast<std::uint64_t>((from + k * stride) * nbytes);
            const bool there = at + sizeof(T) <= bad_begin || at >= bad_end;
            missing += !there;
            const auto* bytes = reinterpret_cast<const unsigned char*>(&tile[k]);
            for (std::size_t b = 0; b < sizeof(T); ++b) {
              wrong += bytes[b] != (there ? static_cast<unsigned char>(content_byte(file_seed, at + b)) : 0);
            }
          }
        }
      }
    }
    warp.sync();
    close(warp, f);
    mine()[0] = wrong;
    mine()[1] = missing;
  }
};

// As above, with elements at both sides of it and in it in one gather.
template <class T>
struct broken_gather_kernel : pointer_job {
  std::uint64_t bad_begin, bad_end;

  GPUFS_DEVICE void operator()() const {
    constexpr auto nbytes = static_cast<std::ptrdiff_t>(sizeof(T));
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = 0, missing = 0;
    {
      const auto first = map<const T>(warp, f);
      const auto bad = static_cast<std::ptrdiff_t>(bad_begin) / nbytes, lane = static_cast<std::ptrdiff_t>(warp.rank());
      const std::ptrdiff_t at[] = {bad - lane - 2, lane % 2 == 0 ? bad + 2 + lane % 5 : lane, lane % 3, bad + 1};
      const elements<T, 4> got = first.gather(at);
      for (unsigned k = 0; k < 4; ++k) {
        const auto begin = static_cast<std::uint64_t>(at[k] * nbytes);
        const bool there = begin + sizeof(T) <= bad_begin || begin >= bad_end;
        missing += !there;
        wrong += wrong_bytes(&got[k], sizeof(T), begin, there);
      }
    }
    warp.sync();
    close(warp, f);
    mine()[0] = wrong;
    mine()[1] = missing;
  }
};

TEST_F(tile_read, of_a_page_that_fails) {
  const auto store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
  options.custom_store = store;
  store->wrong().fail_at(5 * page, 6 * page);
  const auto check = [this](std::uint64_t errors_before) {
    std::uint64_t missing = 0;
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), 0) << t;
      missing += static_cast<std::uint64_t>(result(t, 1));
    }
    EXPECT_GT(missing, 0u);
    EXPECT_EQ(fs().counters().fault_errors - errors_before, missing);
  };
  run<broken_page_kernel<std::uint64_t>>(1, 32, 5 * page, 6 * page);
  check(0);
  const std::uint64_t before = fs().counters().fault_errors;
  run<broken_page_kernel<words<std::uint32_t, 5>>>(1, 32, 5 * page, 6 * page);
  check(before);
  const std::uint64_t between = fs().counters().fault_errors;
  run<broken_gather_kernel<std::uint64_t>>(1, 32, 5 * page, 6 * page);
  check(between);
  const std::uint64_t then = fs().counters().fault_errors;
  run<broken_gather_kernel<words<std::uint32_t, 5>>>(1, 32, 5 * page, 6 * page);
  check(then);
}

// Gathers from all of a file by a few lanes of each warp, in a cache with hardly more frames than these may hold at once: what they
// look at is evicted, and filled anew, all the while.
struct gather_everywhere_kernel : pointer_job {
  std::uint32_t rounds;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = 0;
    {
      const auto first = map<const std::uint64_t>(warp, f);
      std::uint64_t random = thread() * 77u + 1;
      for (std::uint32_t round = 0; round < rounds && warp.rank() < 3; ++round) {
        std::ptrdiff_t at[4];
        for (unsigned k = 0; k < 4; ++k) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          at[k] = static_cast<std::ptrdiff_t>((random >> 33) % (npages * page / 8));
        }
        const auto got = first.gather(at);
        for (unsigned k = 0; k < 4; ++k) wrong += wrong_bytes(&got[k], 8, static_cast<std::uint64_t>(at[k]) * 8, true);
      }
    }
    warp.sync();
    close(warp, f);
    mine()[0] = wrong;
  }
};

TEST_F(tile_read, gathers_beside_evictions) {
  options.cache_nbytes = 16 * page;
  const bool few = under_tsan || under_compute_sanitizer();
  for (std::uint64_t seed = 1; seed <= (few ? 4 : fewer(40)); ++seed) {
    schedule.seed = seed;
    run<gather_everywhere_kernel>(4, 32, few ? 20u : 80u);
    for (unsigned t = 0; t < 128; ++t) ASSERT_EQ(result(t, 0), 0) << "thread " << t << ", seed " << seed;
  }
  EXPECT_GT(fs().counters().evictions, 100u);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// The same of a file whose pages come in part: sectors that are there are read without a pin, and others are brought in.
struct gather_sectors_kernel : pointer_job {
  std::uint32_t rounds;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = advise(warp, f, 0, 0, advice::random);
    {
      const auto first = map<const std::uint64_t>(warp, f);
      std::uint64_t random = thread() * 77u + 1;
      for (std::uint32_t round = 0; round < rounds && warp.rank() < 4; ++round) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const auto i = static_cast<std::ptrdiff_t>((random >> 33) % (npages * page / 8 - 20));
        for (const std::ptrdiff_t near : {0, 1, 19}) {  // in one sector, mostly, and one behind it
          const std::ptrdiff_t at[2] = {i + near, i};
          const auto got = first.gather(at);
          for (unsigned k = 0; k < 2; ++k) wrong += wrong_bytes(&got[k], 8, static_cast<std::uint64_t>(at[k]) * 8, true);
        }
      }
    }
    warp.sync();
    close(warp, f);
    mine()[0] = wrong;
  }
};

TEST_F(tile_read, gathers_sectors_beside_evictions) {
  options.store = store_kind::mapped;
  const bool few = under_tsan || under_compute_sanitizer();
  for (std::uint64_t seed = 1; seed <= (few ? 4 : fewer(30)); ++seed) {
    schedule.seed = seed;
    options.cache_nbytes = seed % 2 == 0 ? 16 * page : 64 * page;
    end_mount();
    run<gather_sectors_kernel>(2, 32, few ? 20u : 60u);
    for (unsigned t = 0; t < 64; ++t) ASSERT_EQ(result(t, 0), 0) << "thread " << t << ", seed " << seed;
    const auto counted = fs().counters();
    EXPECT_LT(counted.bytes_filled, counted.faults * page) << "no page came in part";
    EXPECT_EQ(counted.fault_errors, 0u);
  }
}

// Each lane is linked to a page of its own, and there are no more frames than lanes: who gathers gives its page up first.
struct gather_while_linked_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f);
      const std::ptrdiff_t mine_at = warp.rank() * per_page, far[] = {(32 + warp.rank() % 8) * per_page + 3};
      mine()[0] = p[mine_at] == word_at(mine_at);
      warp.sync();
      mine()[1] = p.gather(far)[0] == word_at(far[0]);
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(tile_read, gather_gives_its_page_up_before_it_waits_for_another) {
  options.cache_nbytes = 32 * page;
  for (std::uint64_t seed = 1; seed <= fewer(5); ++seed) {
    schedule.seed = seed;
    run<gather_while_linked_kernel>(1, 32);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), 1) << t;
      EXPECT_EQ(result(t, 1), 1) << t;
    }
  }
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// Elements larger than a page lie in none.
struct large_element_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    using large = words<std::uint64_t, 96>;
    const file f = open(this_warp(), fs, path);
    {
      const auto p = map<const large>(this_warp(), f);
      const std::ptrdiff_t at[] = {static_cast<std::ptrdiff_t>(this_warp().rank()), 0, -1};
      const auto got = p.gather(at);
      mine()[0] = wrong_bytes(&got[0], sizeof(large), static_cast<std::uint64_t>(at[0]) * sizeof(large), true) +
                  wrong_bytes(&got[1], sizeof(large), 0, true) + wrong_bytes(&got[2], sizeof(large), 0, false);
    }
    this_warp().sync();
    close(this_warp(), f);
  }
};

TEST_F(tile_read, of_elements_larger_than_a_page) {
  options.page_nbytes = 512;
  run<large_element_kernel>(1, 32);
  for (unsigned t = 0; t < 32; ++t) EXPECT_EQ(result(t, 0), 0) << t;
  EXPECT_EQ(fs().counters().fault_errors, 32u);
}

struct null_tile_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    ptr<const std::uint32_t> p;
    ptr<const words<std::uint8_t, 3>> q;
    mine()[0] = p.left() + q.left();
    for (int again = 0; again < 2; ++again, p += 3, q += 3) {
      const auto a = p.read_tile<4>(7);
      const auto b = q.read_tile<2>(7);
      mine()[1] += a[0] + a[1] + a[2] + a[3] + b[0].word[0] + b[1].word[2];
      const std::ptrdiff_t at[] = {0, -7};
      mine()[1] += p.gather(at)[1] + q.gather(at)[0].word[1];
    }
    mine()[2] = p.left() + q.left();
  }
};

TEST_F(tile_read, of_null_is_zeros_and_nobodys_error) {
  const auto r = run<null_tile_kernel>(1, 32);
  EXPECT_EQ(r[0], 0);
  EXPECT_EQ(r[1], 0);
  EXPECT_EQ(r[2], -12);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
