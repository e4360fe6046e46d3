// SPDX-License-Identifier: Apache-2.0
// gpufs::array<T> against memory: random programs of many lanes that go their own ways, elements of 1 to 48 bytes that straddle
// pages or not, caches of few frames, the ends of the file, what must not be written, and what is out of range.
#include <algorithm>

#include "gpufs/gpufs.hpp"
#include "gpufs/store/mem_store.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// An element of N bytes with an alignment.
template <unsigned N, unsigned Alignment = 1>
struct alignas(Alignment) block_of {
  unsigned char bytes[N];
};
template <class T>
GPUFS_HOST_DEVICE bool equal(const T& a, const T& b) {
  for (unsigned i = 0; i < sizeof(T); ++i) {
    if (reinterpret_cast<const unsigned char*>(&a)[i] != reinterpret_cast<const unsigned char*>(&b)[i]) return false;
  }
  return true;
}
// The value that is written as the n-th.
template <class T>
GPUFS_HOST_DEVICE T value_of(std::uint64_t n) {
  T value;
  for (unsigned i = 0; i < sizeof(T); ++i)
    reinterpret_cast<unsigned char*>(&value)[i] = static_cast<unsigned char>(content_word(99, n * 8 + i / 8) >> (i % 8 * 8));
  return value;
}

constexpr std::uint32_t small_page = 512;

// Each thread writes its own elements, and reads these and, of a second file that nobody writes, any. What it reads is compared
// with `shadow`, which has what memory would have.
template <class T>
struct random_program {
  array<T> mine;         // element i is thread i % nthreads's
  array<const T> fixed;  // as `shadow` was before
  T* shadow;
  const T* before;
  std::uint64_t seed;
  std::uint32_t nsteps;
  std::uint32_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = pointer_job::thread(), n = simt::grid_size() * simt::block_size();
    const std::int64_t size = mine.size(), owned = (size - me + n - 1) / n;
    std::uint32_t bad = 0;
    for (std::uint32_t step = 0; step < nsteps; ++step) {
      const std::uint64_t draw = content_word(seed, std::uint64_t{me} * nsteps + step);
      const auto pick = static_cast<std::int64_t>((draw >> 8) % static_cast<std::uint64_t>(owned));
      const std::int64_t own = me + pick * n, any = static_cast<std::int64_t>((draw >> 8) % static_cast<std::uint64_t>(size));
      switch (draw % 8) {
        case 0:
        case 1:
          mine[own] = shadow[own] = value_of<T>(draw);
          break;
        case 2: {
          const T value = value_of<T>(draw);
          shadow[own] = value;
          bad += mine.set(own, value) != 0;
          break;
        }
        case 3:
          mine[own] = fixed[any];
          shadow[own] = before[any];
          break;
        case 4: {
          T value;
          bad += mine.get(own, value) != 0 || !equal(value, shadow[own]);
          break;
        }
        case 5:
          bad += !equal<T>(fixed[any], before[any]);
          break;
        case 6: {  // a loop of a length of its own
          std::int64_t i = any;
          for (const T x : fixed.every(17, any)) {
            bad += !equal(x, before[i]);
            i += 17;
            if (i > any + 17 * static_cast<std::int64_t>(draw >> 60)) break;
          }
          break;
        }
        default:  // nothing, so that the others go on apart
          break;
      }
    }
    if (bad != 0) simt::atomic_ref<std::uint32_t>(*wrong).add_relaxed(bad);
  }
};

template <class T>
std::vector<T> elements_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// Files on disk, which the host reads and writes, or in memory, which the device does.
struct arrays : ::testing::TestWithParam<bool> {
  arrays() : dir(GetParam() ? memory_directory() : std::filesystem::temp_directory_path()) {
    options.page_nbytes = small_page;
    options.cache_nbytes = 64 * small_page;
    options.max_open_files = 64;
    options.nworkers = 2;
    options.writable = true;
    options.frame_timeout = std::chrono::seconds(5);  // writes wait in turn for few frames; reads a sixteenth of it, once
    options.store = GetParam() ? store_kind::mapped : store_kind::posix;
    options.on_failed_accesses = failed_accesses::quiet;
  }
  void SetUp() override {
    if (GetParam() && memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }

  // nbytes is no multiple of a page, nor of most elements: the last bytes are nobody's.
  template <class T>
  void run_program(std::uint64_t nframes, std::uint64_t seed, std::optional<advice> said = {}) {
    constexpr std::uint64_t nbytes = 40 * small_page + 77;
    constexpr unsigned grid = 2, block = 32;
    dir.add("mine", nbytes, seed);
    dir.add("fixed", nbytes, seed);
    let_file_times_pass();
    options.cache_nbytes = nframes * small_page;
    const std::vector<T> before = elements_of<T>(content(seed, 0, nbytes));
    const device_buffer<T> shadow(before.size()), fixed(before.size());
    shadow.write(before);
    fixed.write(before);
    const device_buffer<std::uint32_t> wrong(1);
    {
      const mount fs(dir.path(), options);
      host_file a(fs, "mine", O_RDWR), b(fs, "fixed");
      if (said) a.advise(*said);
      if (said) b.advise(*said);
      const auto mine = map_array<T>(a);
      ASSERT_EQ(mine.size(), static_cast<std::int64_t>(nbytes / sizeof(T)));
      simt::launch<block, 8>({.grid = grid, .block = block},
                             random_program<T>{mine, map_array<const T>(b), shadow.get(), fixed.get(), seed,
                                               static_cast<std::uint32_t>(fewer(16)), wrong.get()});
      EXPECT_EQ(wrong.read_one(), 0u);
      EXPECT_EQ(fs.counters().fault_errors, 0u);
      EXPECT_EQ(fs.counters().pins, 0u);  // an array holds nothing
      a.close();
    }
    std::vector<std::byte> want = content(seed, 0, nbytes);
    const std::vector<T> now = shadow.read();
    std::memcpy(want.data(), now.data(), now.size() * sizeof(T));
    EXPECT_TRUE(dir.read("mine") == want) << sizeof(T) << " bytes, " << nframes << " frames, seed " << seed;
    EXPECT_TRUE(dir.read("fixed") == content(seed, 0, nbytes));
  }

  temp_dir dir;
  mount_options options;
};
INSTANTIATE_TEST_SUITE_P(on_disk_and_in_memory, arrays, ::testing::Bool(), name_of_place);

TEST_P(arrays, are_as_memory_for_lanes_that_go_their_own_ways) {
  run_program<std::uint8_t>(12, 10);
  run_program<std::uint32_t>(128, 40);  // fits
  run_program<std::uint32_t>(12, 41);
  run_program<block_of<24, 8>>(128, 80);
  run_program<block_of<24, 8>>(6, 81);  // lanes wait in turn
#if !GPUFS_ON_CUDA                      // each of these is a kernel, which nvcc takes long for
  run_program<std::uint16_t>(12, 20);
  run_program<block_of<3>>(12, 30);
  run_program<std::uint64_t>(12, 50);
  run_program<block_of<12, 4>>(12, 60);
  run_program<block_of<16, 16>>(12, 70);
  run_program<block_of<48, 16>>(12, 90);
#endif
}

TEST_P(arrays, whose_pages_come_sector_by_sector_are_as_memory) {
  run_program<std::uint32_t>(64, 1, advice::random);
  run_program<block_of<24, 8>>(12, 2, advice::random);
}

// Of a file shorter than a page, of one whose elements are larger than a page, and of no elements.
struct ends : pointer_job {
  const char* large;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    using huge = block_of<528, 16>;
    const file f = open(warp, fs, path, O_RDWR), g = open(warp, fs, large, O_RDWR);
    std::int64_t* r = mine();
    const auto a = map_array<std::uint32_t>(warp, f, 4, 5);
    r[0] = a.size();
    r[1] = a[4];
    r[2] = a.set(5, 1);  // behind the array, not the file
    std::uint32_t value = 7;
    r[3] = a.get(5, value);
    r[4] = value;
    r[5] = a.set(-1, 1);
    r[6] = a.get(std::int64_t{1} << 62, value);  // its position would wrap around to element 0
    const auto h = map_array<huge>(warp, g);
    r[7] = h.size();
    huge mark{};
    for (unsigned i = 0; i < sizeof mark.bytes; ++i) mark.bytes[i] = static_cast<unsigned char>(i + simt::lane_id());
    r[8] = simt::lane_id() < 3 ? h.set(simt::lane_id(), mark) : 0;
    warp.sync();
    const huge found = h[simt::lane_id() % 3];
    r[9] = simt::lane_id() >= 3 || equal(found, mark);
    r[10] = h.get(7, mark);
    const auto none = map_array<const std::uint32_t>(warp, f, 24);
    r[11] = none.size();
    r[12] = none.error();
    r[13] = none.get(0, value);
    for (const std::uint32_t x : none) r[13] += x + 1000;
    for (const std::uint32_t x : a.every(0)) r[13] += x + 1000;
    for (const std::uint32_t x : a.every(1, 5)) r[13] += x + 1000;
    for (const std::uint32_t x : a.every(1, -1)) r[13] += x + 1000;
    a[1] = a[77];  // neither is made up
    a[2] += a[77];
    a[77] += 5u;
    for (const std::uint32_t x : a.every(2, 1)) r[25] += 1 + 0 * x;
    r[14] = map_array<std::uint32_t>(warp, f, 2).error();
    r[15] = map_array<std::uint32_t>(warp, f, 0, 100000).error();
    r[16] = array<std::uint32_t>().error();
    r[17] = array<std::uint32_t>().get(0, value);
    r[18] = map_array<std::uint32_t>(warp, file()).set(0, 1);
    warp.sync();
    r[19] = flush(warp, h);
    r[20] = flush(warp, none);
    r[21] = flush(warp, array<int>());
    close(warp, f);
    close(warp, g);
    r[22] = a.get(0, value);  // it is in the cache
    r[23] = a.set(0, 1);
    r[24] = flush(warp, a);
  }
};

TEST_P(arrays, end_where_their_file_ends_and_say_what_fails) {
  dir.add("f", 24, 1);
  dir.add("large", 4000, 2);
  const auto name = [](const std::string& text) {
    std::vector<char> chars(text.begin(), text.end());
    chars.push_back(0);
    return device_buffer<char>(chars);
  };
  const auto f = name("f"), large = name("large");
  const device_buffer<std::int64_t> out(32 * outs);
  {
    const mount fs(dir.path(), options);
    simt::launch({.grid = 1, .block = 32}, ends{{fs.ref(), f.get(), out.get()}, large.get()});
    EXPECT_GT(fs.counters().fault_errors, 0u);
    EXPECT_FALSE(fs.log().empty());
  }
  std::uint32_t last;
  const auto of_f = content(1, 0, 24);
  std::memcpy(&last, &of_f[20], 4);
  const auto all = out.read();
  for (unsigned t = 0; t < 32; ++t) {
    const std::vector<std::int64_t> r(all.begin() + t * outs, all.begin() + t * outs + 26);
    const std::vector<std::int64_t> want = {5,      last,   -ENXIO, -ENXIO, 0,      -ENXIO,  -ENXIO, 7,       0,
                                            1,      -ENXIO, 0,      0,      -ENXIO, -EINVAL, -ENXIO, -EFAULT, -EFAULT,
                                            -EBADF, 0,      0,      -EBADF, 0,      -EBADF,  -EBADF, 2};
    EXPECT_EQ(r, want) << t;
  }
  std::vector<std::byte> want = content(2, 0, 4000);
  for (unsigned lane = 0; lane < 3; ++lane) {
    for (unsigned i = 0; i < 528; ++i) want[lane * 528 + i] = static_cast<std::byte>(i + lane);
  }
  EXPECT_TRUE(dir.read("large") == want);
  EXPECT_TRUE(dir.read("f") == of_f);
}

// Of a file that is open for reading, with and without private changes.
struct write_what_is_read_only {
  array<std::uint32_t> a, privately;
  std::int64_t* out;

  GPUFS_DEVICE void operator()() const {
    std::int64_t* r = out + pointer_job::thread() * 8;
    const std::uint32_t me = pointer_job::thread(), was = a[me];
    r[0] = a.set(me, 5);
    a[me] = 6;
    a[me] += 7;
    r[1] = a[me] == was;
    r[2] = privately.set(me, 5);
    privately[me] += 3u;
    r[3] = privately[me];
    r[4] = a[me] == was;
    array<const std::uint32_t> reads = a;
    r[5] = reads[me] == was && reads.size() == a.size();
    this_block().sync();
    auto changed = privately.pointer();
    r[6] = discard(this_block(), changed);
    r[7] = privately[me] == was;
  }
};

TEST_P(arrays, of_a_file_that_is_read_only_cannot_be_written_but_privately) {
  dir.add("f", 4 * small_page, 1);
  const device_buffer<std::int64_t> out(64 * 8);
  options.cache_nbytes = 128 * small_page;
  {
    const mount fs(dir.path(), options);
    const host_file f(fs, "f");
    simt::launch({.grid = 1, .block = 64},
                 write_what_is_read_only{map_array<std::uint32_t>(f),
                                         map_array<std::uint32_t>(f, 0, to_the_end, map_flags::private_changes), out.get()});
    EXPECT_EQ(fs.counters().fault_errors, 3u * 64);
  }
  const auto r = out.read();
  for (unsigned t = 0; t < 64; ++t) {
    EXPECT_EQ(std::vector<std::int64_t>(r.begin() + t * 8, r.begin() + t * 8 + 8),
              (std::vector<std::int64_t>{-EACCES, 1, 0, 8, 1, 1, 0, 1}));
  }
  EXPECT_TRUE(dir.read("f") == content(1, 0, 4 * small_page));
}

// The host makes none where there is none.
TEST_P(arrays, that_the_host_cannot_have_throw) {
  dir.add("f", 100, 1);
  const mount fs(dir.path(), options);
  host_file f(fs, "f");
  const auto code = [&](auto make) {
    try {
      make();
    } catch (const std::system_error& error) {
      return error.code().value();
    }
    return 0;
  };
  EXPECT_EQ(code([&] { map_array<std::uint32_t>(f, 2); }), EINVAL);
  EXPECT_EQ(code([&] { map_array<std::uint32_t>(f, 0, 26); }), ENXIO);
  EXPECT_EQ(code([&] { map_array<std::uint32_t>(f, 104); }), ENXIO);
  EXPECT_EQ(map_array<std::uint32_t>(f, 100).size(), 0);
  EXPECT_EQ(map_array<block_of<7>>(f, 1).size(), 14);
  f.close();
  EXPECT_EQ(code([&] { map_array<std::uint32_t>(f); }), EBADF);
}

// Lanes of a warp that want one page: it comes once, and is written once for all.
struct side_by_side {
  array<std::uint32_t> a;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::int64_t at = warp.rank() + std::int64_t{simt::block_rank()} * 128;
    const std::uint32_t value = a[at];
    warp.sync();
    a[at + 32] = value;
  }
};

TEST_P(arrays, bring_a_page_in_once_for_a_warp) {
  dir.add("f", 4 * small_page, 1);
  const mount fs(dir.path(), options);
  host_file f(fs, "f", O_RDWR);
  simt::launch({.grid = 4, .block = 32}, side_by_side{map_array<std::uint32_t>(f)});
  const mount_counters counted = fs.counters();
  EXPECT_EQ(counted.faults, 4u);
  EXPECT_EQ(counted.bytes_written, 4u * 128);
  EXPECT_EQ(counted.fault_errors, 0u);
  f.close();
  const auto words = elements_of<std::uint32_t>(dir.read("f"));
  for (std::uint64_t i = 0; i < 4 * 32; ++i) EXPECT_EQ(words[i / 32 * 128 + 32 + i % 32], word_at(i / 32 * 128 + i % 32, 1));
}

// Pointers and arrays are of one file: each sees what the other has written.
struct by_both_ways {
  array<std::uint64_t> a;
  std::int64_t* out;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint32_t me = warp.rank();
    a[me] = me;
    warp.sync();
    std::int64_t r = 0;
    {
      auto p = a.pointer(31 - me);
      r = static_cast<std::int64_t>(*p);
      warp.sync();
      *p += 100;
      p.unlink();
      fetch_add_at(a.pointer(), 40, std::uint64_t{1});
      std::uint64_t sum = 0;
      auto q = a.reader(me);
      for_each_n(
          2, 32, [&](std::uint64_t x) { sum += x; }, q);
      out[64 + me] = static_cast<std::int64_t>(sum);
    }
    warp.sync();
    a[me] -= 1;
    out[me] = r;
    out[32 + me] = static_cast<std::int64_t>(static_cast<std::uint64_t>(a[me]));
  }
};

TEST_P(arrays, and_pointers_see_what_the_other_has_written) {
  dir.add("f", 2 * small_page, 1);
  const device_buffer<std::int64_t> out(96);
  const mount fs(dir.path(), options);
  host_file f(fs, "f", O_RDWR);
  const auto before = elements_of<std::uint64_t>(content(1, 0, 2 * small_page));
  simt::launch({.grid = 1, .block = 32}, by_both_ways{map_array<std::uint64_t>(f), out.get()});
  f.close();
  const auto r = out.read();
  const auto now = elements_of<std::uint64_t>(dir.read("f"));
  for (std::uint64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(r[i], static_cast<std::int64_t>(31 - i));
    EXPECT_EQ(r[32 + i], static_cast<std::int64_t>(i + 99));
    EXPECT_EQ(now[i], i + 99);
  }
  EXPECT_EQ(now[40], before[40] + 32);
}

// Other sources: a store in memory, which is copied from or asked.
using record = block_of<20, 4>;
struct compare_records {
  array<const record> a;
  const record* expected;
  std::uint32_t* wrong;
  GPUFS_DEVICE void operator()() const {
    for (std::int64_t i = pointer_job::thread() * 37 % 64; i < a.size(); i += 64) {
      if (!equal<record>(a[i], expected[i])) simt::atomic_ref<std::uint32_t>(*wrong).add_relaxed(1);
    }
  }
};
TEST(array, is_of_any_source) {
  for (const source_kind kind : {source_kind::pull, source_kind::staged}) {
    const auto files = std::make_shared<store::mem_store>(simt::this_platform(), kind);
    const auto bytes = content(3, 0, 10 * small_page);
    files->put("f", bytes);
    const temp_dir dir;
    const mount fs(dir.path(), {.cache_nbytes = 4 * small_page, .page_nbytes = small_page, .custom_store = files});
    const host_file f(fs, "f");
    const device_buffer<std::uint32_t> wrong(1);
    const auto before = elements_of<record>(bytes);
    const device_buffer<record> expected(before);
    const auto a = map_array<const record>(f);
    simt::launch({.grid = 2, .block = 32}, compare_records{a, expected.get(), wrong.get()});
    EXPECT_EQ(wrong.read_one(), 0u);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
