// SPDX-License-Identifier: Apache-2.0
// Pointers into files over 4 GiB: every kind of access on both sides of 2^32 bytes, where a position cut to 32 bits would name the
// file's beginning, which has other contents; and the last page that a page key can name.
#include <fstream>

#include "gpufs/store/nil_store.hpp"
#include "pointer/pointer_fixture.hpp"
#include "pointer/sequential_access.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::int64_t edge = std::int64_t{1} << 32, around = 128 << 10;  // what the file has about the edge, and at its beginning
constexpr std::int64_t edge_word = edge / 4;

struct three_words {
  std::uint32_t word[3];
};

// One warp. Leaves what was wrong, and what it saw.
struct about_the_edge : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::int64_t lane = warp.rank();
    std::int64_t* r = mine();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto words = map<const std::uint32_t>(warp, f);
      r[0] = words.error();
      auto p = words + edge_word;
      r[1] = p.offset() != edge || p - words != edge_word || p.left() != around / 4 || !(words < p);
      for (std::int64_t i = -2000 + lane; i < 2000; i += 32) r[2] += p[i] != word_at(edge_word + i);
      p = words + (edge_word - 1);
      r[3] = *p != word_at(edge_word - 1);
      ++p;
      r[3] += *p != word_at(edge_word);
      const auto vec = (words + edge_word).load<simt::vec16>(4 * (lane - 16));
      for (unsigned i = 0; i < 4; ++i) {
        r[4] += vec.word[i] != word_at(edge_word + 4 * (lane - 16) + i);
      }
      p = words + (edge_word - 64 + lane);
      const auto tile = p.template read_tile<4>(32);
      for (std::int64_t i = 0; i < 4; ++i) r[5] += tile[static_cast<std::uint32_t>(i)] != word_at(edge_word - 64 + lane + 32 * i);
      const std::ptrdiff_t at[4] = {-1 - lane, lane, lane - edge_word, around / 4 - 1 - lane};
      const auto gathered = (words + edge_word).gather(at);
      for (unsigned i = 0; i < 4; ++i) r[6] += gathered[i] != word_at(edge_word + at[i]);
      p = words + (edge_word - 8192 + lane);
      std::int64_t next = edge_word - 8192 + lane;
      for_each_n(
          512, 32,
          [&](std::uint32_t x) {
            r[7] += x != word_at(next);
            next += 32;
          },
          p);
      r[7] += p.offset() != 4 * (edge_word + 8192 + lane);
      auto back = map_sequential<const std::uint32_t>(warp, f, edge - around / 2);
      for (std::int64_t i = lane; i < around / 4; i += 32) r[8] += back[i] != word_at(edge_word - around / 8 + i);
      // They straddle pages here and there.
      const auto threes = map<const three_words>(warp, f);
      for (std::int64_t i = edge / 12 - 600 + lane; i < edge / 12 + 600; i += 32) {
        const three_words got = threes[i];
        for (int j = 0; j < 3; ++j) r[9] += got.word[j] != word_at(3 * i + j);
      }
      r[10] = words[edge_word + around / 4] != 0 || words[-1] != 0;  // beyond the mapping, both
    }
    {
      const auto w = map<std::uint32_t>(warp, f);
      for (std::int64_t i = -1024 + lane; i < 1024; i += 32) w[edge_word + i] = static_cast<std::uint32_t>(~(edge_word + i));
      auto three = map<three_words>(warp, f);
      if (lane == 0) three[edge / 12 + 5461] = three_words{{7, 8, 9}};  // across pages
      if (lane == 1) r[11] = (w + (edge_word + 5000)).fetch_add(1, std::memory_order_relaxed) != word_at(edge_word + 5000);
    }
    warp.sync();
    r[12] = close(warp, f);
  }
};

class large_pointers : public pointer_fixture, public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  std::vector<std::uint32_t> words_of_file(std::int64_t offset, std::int64_t nbytes) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(nbytes) / 4);
    std::ifstream in(dir / "f", std::ios::binary);
    in.seekg(offset).read(reinterpret_cast<char*>(words.data()), nbytes);
    EXPECT_EQ(in.gcount(), nbytes);
    return words;
  }
};
INSTANTIATE_TEST_SUITE_P(pages, large_pointers, ::testing::Values(512u, 4096u, 65536u));

TEST_P(large_pointers, reach_both_sides_of_4_gib) {
  dir.add("f", around, file_seed);
  dir.overwrite("f", edge - around, 2 * around, file_seed);
  let_file_times_pass();
  options.writable = true;
  options.page_nbytes = GetParam();
  options.cache_nbytes = std::uint64_t{64} * options.page_nbytes;
  options.store = store_kind::posix;
  run<about_the_edge>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    for (unsigned i = 0; i < 13; ++i) EXPECT_EQ(result(t, i), 0) << "lane " << t << ", " << i;
  }
  EXPECT_EQ(fs().counters().fault_errors, 64u);
  const auto first = words_of_file(0, around), words = words_of_file(edge - around, 2 * around);
  for (std::int64_t i = 0; i < around / 4; ++i) ASSERT_EQ(first[static_cast<std::size_t>(i)], word_at(i)) << i;
  for (std::int64_t i = 0; i < 2 * around / 4; ++i) {
    const std::int64_t at = edge_word - around / 4 + i;
    std::uint32_t expected = word_at(at);
    if (at >= edge_word - 1024 && at < edge_word + 1024) expected = static_cast<std::uint32_t>(~at);
    if (at / 3 == edge / 12 + 5461) expected = static_cast<std::uint32_t>(7 + at % 3);
    if (at == edge_word + 5000) ++expected;
    ASSERT_EQ(words[static_cast<std::size_t>(i)], expected) << at;
  }
}

struct last_page : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path);
    {
      const auto p = map<const std::uint64_t>(this_warp(), f);
      std::int64_t* r = mine();
      r[0] = p.left();
      const std::int64_t n = r[0];
      r[1] = p[n - 1] != 0 || p[n / 2] != 0 || p[0] != 0;
      r[2] = (p + (n - 1)).fault_in();
      r[3] = (p + n).fault_in();
      auto q = p + (n - 32 * 40 + this_warp().rank());
      r[4] = 0;
      for_each_n(
          40, 32, [&](std::uint64_t x) { r[4] += x == 0; }, q);
      r[5] = q.left();
    }
    this_warp().sync();
    close(this_warp(), f);
  }
};

struct far_pointer : pointer_fixture {};

TEST_F(far_pointer, reaches_the_last_page_that_a_key_can_name) {
  // 2^32 - 1 pages of 512 B; the store costs nothing.
  constexpr std::int64_t most = (std::int64_t{1} << 41) - 512;
  options.page_nbytes = 512;
  options.custom_store = std::make_shared<store::nil_store>(most);
  run<last_page>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 0), most / 8);
    EXPECT_EQ(result(t, 1), 0);
    EXPECT_EQ(result(t, 2), 0);
    EXPECT_EQ(result(t, 3), -ENXIO);
    EXPECT_EQ(result(t, 4), 40);
    EXPECT_EQ(result(t, 5), -static_cast<std::int64_t>(t));
  }
  EXPECT_EQ(fs().counters().faults, 3u + 20u - 1u) << "first, middle, and the last 20";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
