// SPDX-License-Identifier: Apache-2.0
#include "gpufs/file/format_path.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct formatted {
  int result;
  char path[40];
};

// 10 characters and a NUL: what is written behind them would be seen.
struct in_eleven {
  GPUFS_HOST_DEVICE static formatted of(const char* first, std::uint32_t number) {
    formatted got;
    std::memset(&got, '#', sizeof got);
    char path[11];
    got.result = format_path(path, first, number);
    std::memcpy(got.path, path, sizeof path);
    return got;
  }
};

struct edges {
  formatted* out;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const auto one = [this](int i, auto... parts) { out[i].result = format_path(out[i].path, parts...); };
    one(0, UINT64_MAX);
    one(1, INT64_MIN);
    one(2, 0, '/', static_cast<std::int8_t>(-128), '/', static_cast<std::uint8_t>(255), '/', INT32_MIN);
    one(3, padded(0, 0), 'a', padded(0, 1), 'a', padded(0, 3), 'a', padded(-7, 3), 'a', padded(12345, 3), 'a', padded(42u, 2));
    one(4);
    one(5, "", 'x', "");
    one(6, "a", static_cast<const char*>(nullptr), "b");
    one(7, padded(1, 39));
    one(8, padded(1, 40));
    one(9, padded(1, ~0u));
    out[10] = in_eleven::of("123456789", 0);
    out[11] = in_eleven::of("1234567890", 1);
    out[12] = in_eleven::of("12345678901", 1);
    out[13] = in_eleven::of("12345678901234567890", 1);
    out[14] = in_eleven::of("123456789", 10);
  }
};

TEST(format_path, at_its_edges) {
  const device_buffer<formatted> memory(15);
  simt::launch({.grid = 1, .block = 32}, edges{memory.get()});
  const auto got = memory.read();
  const auto expect = [&got](int i, const std::string& path) {
    EXPECT_EQ(got[i].result, static_cast<int>(path.size())) << i;
    EXPECT_EQ(got[i].path, path) << i;
  };
  const auto refused = [&got](int i, int error) {
    EXPECT_EQ(got[i].result, error) << i;
    EXPECT_STREQ(got[i].path, "") << i;
  };
  expect(0, "18446744073709551615");
  expect(1, "-9223372036854775808");
  expect(2, "0/-128/255/-2147483648");
  expect(3, "a0a000a-007a12345a42");
  expect(4, "");
  expect(5, "x");
  refused(6, -EFAULT);
  expect(7, std::string(38, '0') + "1");
  refused(8, -ENAMETOOLONG);
  refused(9, -ENAMETOOLONG);
  expect(10, "1234567890");
  for (const int i : {11, 12, 13, 14}) refused(i, -ENAMETOOLONG);
  for (const int i : {10, 11, 12, 13, 14}) EXPECT_EQ(got[i].path[11], '#') << i;
}

struct numbers {
  std::uint64_t seed;
  formatted* out;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = simt::thread_rank();
    const std::uint64_t drawn = content_word(seed, me) >> content_word(seed, me + 1000) % 64;
    out[me].result = format_path(out[me].path, static_cast<std::int64_t>(drawn), '-', padded(drawn, me % 20));
  }
};

TEST(format_path, writes_numbers_as_printf_does) {
  const device_buffer<formatted> memory(256);
  simt::launch({.grid = 1, .block = 256}, numbers{7, memory.get()});
  const auto got = memory.read();
  for (std::uint32_t me = 0; me < 256; ++me) {
    const std::uint64_t drawn = content_word(7, me) >> content_word(7, me + 1000) % 64;
    char expected[64];
    const int n = std::snprintf(expected, sizeof expected, "%lld-%0*llu", static_cast<long long>(drawn), static_cast<int>(me % 20),
                                static_cast<unsigned long long>(drawn));
    if (drawn == 0 && me % 20 == 0) continue;  // printf writes a digit
    if (n < 40) {
      EXPECT_EQ(got[me].result, n) << me;
      EXPECT_STREQ(got[me].path, expected) << me;
    } else {
      EXPECT_EQ(got[me].result, -ENAMETOOLONG) << me;
      EXPECT_STREQ(got[me].path, "") << me;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
