// SPDX-License-Identifier: Apache-2.0
// The parts of a collage library, each against a plain computation. tests/python compares whole files with a second
// implementation of the format.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <set>

#include "apps/atomic_file.hpp"
#include "apps/bus_guard.hpp"
#include "apps/collage/lsh.hpp"
#include "apps/crc32.hpp"
#include "apps/parallel.hpp"
#include "collage_fixture.hpp"

namespace gpufs::apps::collage {
namespace {

using namespace testing;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(crc32, known_values) {
  EXPECT_EQ(crc32(0, "", 0), 0u);
  EXPECT_EQ(crc32(0, "123456789", 9), 0xCBF43926u);
  const std::string zeros(4096, '\0');
  EXPECT_EQ(crc32(0, zeros.data(), zeros.size()), 0xC71C0011u);
}

TEST(crc32, pieces_give_the_sum_of_the_whole) {
  std::vector<std::uint8_t> data(1000);
  std::iota(data.begin(), data.end(), std::uint8_t{3});
  const std::uint32_t whole = crc32(0, data.data(), data.size());
  for (std::size_t cut = 0; cut <= 100; ++cut) {
    EXPECT_EQ(crc32(crc32(0, data.data(), cut), data.data() + cut, data.size() - cut), whole);
  }
}

TEST(projections, are_split_mix64) {
  EXPECT_EQ(splitmix64(1234567, 0), 6457827717110365317u);  // the generator's published test vector
  EXPECT_EQ(splitmix64(1234567, 1), 3203168211198807973u);
  EXPECT_EQ(splitmix64(1234567, 4), 16408922859458223821u);
  const auto weights = make_projections(42);
  ASSERT_EQ(weights.size(), std::size_t{32} * 192 * 32);
  EXPECT_EQ(weights[(5 * 192 + 7) * 32 + 9], projection_weight(42, 5, 7, 9));
  double sum = 0;
  double squares = 0;
  for (const std::int8_t w : weights) {
    sum += w;
    squares += double(w) * w;
  }
  EXPECT_NEAR(sum / static_cast<double>(weights.size()), 0, 0.05);
  EXPECT_NEAR(squares / static_cast<double>(weights.size()), 16, 0.2);
}

TEST(histograms, count_and_fold) {
  std::mt19937 random(4);
  const auto pixels = paint(random, 64, 48);
  counts counted;
  count_pixels(pixels.data() + 10 * 64 * 3 + 7 * 3, 64 * 3, counted);
  counts expected{};
  for (std::size_t y = 10; y < 42; ++y) {
    for (std::size_t x = 7; x < 39; ++x) {
      for (std::size_t c = 0; c < 3; ++c) ++expected[256 * c + pixels[(y * 64 + x) * 3 + c]];
    }
  }
  EXPECT_EQ(counted, expected);
  folded_counts folded;
  fold(counted, folded);
  for (std::size_t i = 0; i < nfolded; ++i) {
    EXPECT_EQ(folded[i], std::accumulate(counted.begin() + static_cast<std::ptrdiff_t>(4 * i),
                                         counted.begin() + static_cast<std::ptrdiff_t>(4 * i + 4), 0));
  }
}

// The largest distance there is, and sums in every lane that a vector unit may have.
TEST(histograms, distance_is_exact) {
  float a[nbins] = {};
  float b[nbins] = {};
  EXPECT_EQ(histogram_distance(a, b), 0.0f);
  for (std::size_t c = 0; c < 3; ++c) {
    a[256 * c + c] = 1024;
    b[256 * c + 255] = 1024;
  }
  EXPECT_EQ(histogram_distance(a, b), static_cast<float>(max_distance));
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::int64_t expected = 0;
    for (std::size_t i = 0; i < nbins; ++i) {
      a[i] = static_cast<float>(random() % 60);
      b[i] = static_cast<float>(random() % 60);
      expected += static_cast<std::int64_t>((a[i] - b[i]) * (a[i] - b[i]));
    }
    EXPECT_EQ(static_cast<std::int64_t>(histogram_distance(a, b)), expected);
  }
}

TEST(keys, are_signs_of_projections) {
  const auto weights = make_projections(9);
  std::vector<std::int32_t> reference(nfolded, 5);
  const key_maker maker(weights.data(), reference.data(), 13);
  const key_maker longer(weights.data(), reference.data(), 30);
  std::mt19937 random(2);
  for (int round = 0; round < 50; ++round) {
    counts counted;
    folded_counts folded;
    count_pixels(paint(random, 32, 32).data(), 96, counted);
    fold(counted, folded);
    std::uint32_t keys[ntables];
    std::uint32_t long_keys[ntables];
    maker.keys(folded, keys);
    longer.keys(folded, long_keys);
    for (std::uint32_t t = 0; t < ntables; ++t) {
      std::uint32_t expected = 0;
      for (std::uint32_t b = 0; b < 13; ++b) {
        int sum = 0;
        for (std::uint32_t i = 0; i < nfolded; ++i) sum += weights[(t * nfolded + i) * 32 + b] * (folded[i] - 5);
        expected |= static_cast<std::uint32_t>(sum > 0) << b;
      }
      EXPECT_EQ(keys[t], expected);
      EXPECT_EQ(long_keys[t] & ((1u << 13) - 1), expected);
    }
  }
}

TEST(format, cells_follow_the_number_of_images) {
  EXPECT_EQ(choose_cell_nbits(1), 0u);
  EXPECT_EQ(choose_cell_nbits(15), 0u);
  EXPECT_EQ(choose_cell_nbits(16), 1u);
  EXPECT_EQ(choose_cell_nbits(10'000'000), 20u);
  EXPECT_EQ(choose_cell_nbits(max_nimages), 28u);
  EXPECT_EQ(directory_nbytes(0), 4096u);
  EXPECT_EQ(directory_nbytes(10), 8192u);
}

TEST(library, is_sound_after_building) {
  const temporary_folder folder;
  for (const bool packed : {false, true}) {
    for (const std::uint32_t n : {1u, 17u, 700u}) {
      build(folder.file("l"), n, {.packed = packed, .nthreads = 2});
      const library lib(folder.file("l"));
      EXPECT_EQ(lib.nimages(), n);
      lib.check_sums();
      lib.check_contents();
      EXPECT_EQ(lib.source_name(0), "test");
    }
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"l"});
}

TEST(library, does_not_depend_on_threads) {
  const temporary_folder folder;
  build(folder.file("a"), 900, {.nthreads = 1});
  build(folder.file("b"), 900, {.nthreads = 7});
  EXPECT_EQ(contents(folder.file("a")), contents(folder.file("b")));
}

TEST(builder, leaves_nothing_unless_finished) {
  const temporary_folder folder;
  {
    library_builder builder(folder.file("l"), {});
    builder.add_source("x");
    EXPECT_THROW(builder.finish(), error);  // no images
  }
  {
    library_builder builder(folder.file("l"), {});
    builder.add_source("x");
    std::vector<std::uint8_t> pixels(tile_nbytes);
    const image_origin origin{0, 0, 0, 32};
    EXPECT_EQ(builder.add(pixels.data(), &origin, 1), 1u);
    EXPECT_EQ(builder.add(pixels.data(), &origin, 1), 0u);
    const image_origin wrong{1, 0, 0, 32};
    EXPECT_THROW(builder.add(pixels.data(), &wrong, 1), error);
    EXPECT_THROW(builder.finish([](std::uint64_t, std::uint64_t) { throw std::runtime_error("enough"); }), std::runtime_error);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
  EXPECT_THROW(library_builder(folder.file("nowhere/l"), {}), error);
  EXPECT_THROW(library_builder(folder.path(), {}), error);
}

// What the tables say of shortlists is what counting by hand says.
TEST(measure, counts_what_buckets_hold) {
  std::mt19937 random(5);
  constexpr std::uint32_t n = 400;
  std::vector<std::uint32_t> keys(std::size_t{ntables} * n);
  for (auto& key : keys) key = random() % 97 * 0x9E37u;  // crowded buckets
  std::vector<image_origin> origins(n);
  for (std::uint32_t i = 0; i < n; ++i) origins[i].source = i % 3;
  const auto means = measure_shortlists(keys.data(), origins, 4, 9, 2);
  ASSERT_EQ(means.size(), 6u);
  for (std::uint32_t nbits = 4; nbits <= 9; ++nbits) {
    const std::uint32_t mask = (1u << nbits) - 1;
    std::uint64_t sum = 0;
    for (std::uint32_t s = 0; s < 256; ++s) {
      const std::uint32_t query = s * n / 256;
      std::set<std::uint32_t> others;
      for (std::uint32_t t = 0; t < ntables; ++t) {
        std::uint32_t in_bucket = 0;
        for (std::uint32_t i = 0; i < n && in_bucket < bucket_limit; ++i) {
          if (((keys[t * n + i] ^ keys[t * n + query]) & mask) != 0) continue;
          ++in_bucket;
          if (origins[i].source != origins[query].source) others.insert(i);
        }
      }
      sum += std::min<std::size_t>(others.size(), shortlist_limit);
    }
    EXPECT_EQ(means[nbits - 4], sum * 1000 / 256) << nbits;
  }
}

TEST(atomic_file, appears_whole_or_not_at_all) {
  const temporary_folder folder;
  std::ofstream(folder.file("f")) << "before";
  {
    atomic_file file(folder.file("f"));
    file.write("after!", 6, 0);
    EXPECT_EQ(contents(folder.file("f")), "before");
  }
  EXPECT_EQ(contents(folder.file("f")), "before");
  {
    atomic_file file(folder.file("f"));
    file.write("after!", 6, 0);
    char back[6];
    file.read(back, 6, 0);
    EXPECT_EQ(std::memcmp(back, "after!", 6), 0);
    EXPECT_THROW(file.read(back, 6, 1), error);
    file.publish();
  }
  EXPECT_EQ(contents(folder.file("f")), "after!");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"f"});
}

TEST(bus_guard, reports_pages_that_are_gone) {
  const temporary_folder folder;
  std::ofstream(folder.file("f")) << std::string(8192, 'x');
  const int fd = ::open(folder.file("f").c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const auto* mapped = static_cast<const volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
  ASSERT_EQ(::ftruncate(fd, 4096), 0);
  parallel_for(4, 100, [&](std::size_t i) { EXPECT_EQ(bus_guarded([&] { (void)mapped[i % 2 == 0 ? 0 : 5000]; }), i % 2 == 0); });
  ::munmap(const_cast<char*>(mapped), 8192);
  ::close(fd);
}

TEST(parallel_for, does_each_once_and_passes_exceptions_on) {
  std::vector<std::atomic<int>> done(1000);
  parallel_for(5, done.size(), [&](std::size_t i) { ++done[i]; });
  EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
  EXPECT_THROW(parallel_for(3, 50,
                            [](std::size_t i) {
                              if (i == 20) throw std::out_of_range("here");
                            }),
               std::out_of_range);
  parallel_for(3, 0, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace gpufs::apps::collage
