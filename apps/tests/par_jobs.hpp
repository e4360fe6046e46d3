// SPDX-License-Identifier: Apache-2.0
// What tests of scans and sorts share: files and memory that jobs are tried on, values, records, and the loops that say what comes.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "apps/par/file_jobs.hpp"
#include "apps/par/operators.hpp"
#include "par/keys.hpp"

namespace gpufs::apps::par {

using bytes = std::vector<std::byte>;

template <class T>
bytes bytes_of(const std::vector<T>& values) {
  bytes all(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(all.data(), values.data(), all.size());
  return all;
}

inline constexpr number_type all_types[] = {number_type::u32, number_type::i32, number_type::u64,
                                            number_type::i64, number_type::f32, number_type::f64};

class par_files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_par_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static std::unique_ptr<engine> make_engine(bool by_kernels) {
    if (!by_kernels) return make_engine_cpu();
#if GPUFS_ON_CUDA
    return make_engine_cuda(0);
#else
    return make_engine_simt(0);
#endif
  }
  // work(engine, whether it has kernels, type, T{}) for each engine and type.
  template <class Work>
  static void by_each_engine_of_each_type(const Work& work) {
    for (const bool by_kernels : {false, true}) {
      const auto by = make_engine(by_kernels);
      for (const number_type type : all_types) {
        with_type(type, [&](auto of) { work(*by, by_kernels, type, of); });
      }
    }
  }
  std::string in() const { return root_ + "/in"; }
  std::string out() const { return root_ + "/out"; }
  void write(const bytes& all) const {
    std::ofstream(in(), std::ios::binary).write(reinterpret_cast<const char*>(all.data()), std::ssize(all));
  }
  static bytes content_of(const std::string& path) {
    bytes all(std::filesystem::file_size(path));
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(all.data()), std::ssize(all));
    return all;
  }
  // What make(from, to, nbytes) does to these bytes, in memory or in files.
  template <class Make>
  bytes done(const bytes& all, bool in_files, const Make& make) const {
    if (!in_files) {
      bytes result(all.size());
      finish(*make(bytes_from{.memory = all.data()}, bytes_to{.memory = result.data()}, all.size()));
      return result;
    }
    write(all);
    const input_file from(in(), "tried");
    std::fclose(std::fopen(out().c_str(), "wb"));
    std::FILE* const made = std::fopen(out().c_str(), "r+b");
    {
      const output_file to(out(), fileno(made), from.nbytes());
      finish(*make(bytes_from{.file = &from}, bytes_to{.file = &to}, from.nbytes()));
    }
    std::fclose(made);
    return content_of(out());
  }
  static void finish(job& of) {
    std::uint64_t last = 0;
    while (of.next()) {
      EXPECT_GT(of.ndone(), last);
      last = of.ndone();
    }
    EXPECT_EQ(of.ndone(), of.nbytes());
    EXPECT_FALSE(of.next());
  }

  std::string root_;
};

// A loop over the values, by definitions of its own.
template <class T>
std::vector<T> scanned(const std::vector<T>& values, scan_op op, bool exclusive) {
  const auto is_nan = [](T x) { return x != x; };
  T so_far{};
  switch (op) {
    case scan_op::mul:
      so_far = T{1};
      break;
    case scan_op::bit_and:
      so_far = static_cast<T>(-1);
      break;
    case scan_op::max:
      so_far = std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::lowest();
      break;
    case scan_op::min:
      so_far = std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::max();
      break;
    default:
      break;
  }
  std::vector<T> result;
  for (const T& x : values) {
    if (exclusive) result.push_back(so_far);
    if constexpr (std::is_integral_v<T>) {
      using bits = std::make_unsigned_t<T>;
      const bits a = static_cast<bits>(so_far), b = static_cast<bits>(x);
      if (op == scan_op::add) so_far = static_cast<T>(a + b);
      if (op == scan_op::mul) so_far = static_cast<T>(a * b);
      if (op == scan_op::bit_and) so_far = static_cast<T>(a & b);
      if (op == scan_op::bit_or) so_far = static_cast<T>(a | b);
      if (op == scan_op::bit_xor) so_far = static_cast<T>(a ^ b);
    } else {
      if (op == scan_op::add) so_far += x;
      if (op == scan_op::mul) so_far *= x;
    }
    if (op == scan_op::max && (is_nan(so_far) || x > so_far)) so_far = x;
    if (op == scan_op::min && (is_nan(so_far) || x < so_far)) so_far = x;
    if (!exclusive) result.push_back(so_far);
  }
  return result;
}

// Values whose sums and products are exact, so that brackets do not matter; for max and min of real numbers also NaNs and zeros of
// both signs, of which the left one stays.
template <class T>
std::vector<T> drawn_values(std::mt19937_64& draw, std::uint64_t n, scan_op op) {
  std::vector<T> values(n);
  for (T& value : values) {
    const std::uint64_t word = draw();
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(word >> draw() % 64);
    } else if (op == scan_op::mul) {
      constexpr T factors[] = {1, -1, 2, T{0.5}};
      value = factors[word % 4];
    } else {
      value = static_cast<T>(static_cast<std::int64_t>(word % 2001) - 1000);
      if (op != scan_op::add && word % 3 != 0) value = word % 2 == 0 ? T{0} : -T{0};
      if (op != scan_op::add && word % 5 == 0) value = std::numeric_limits<T>::quiet_NaN();
    }
  }
  if (op == scan_op::mul && std::is_floating_point_v<T>) {  // no overflow: each factor has its inverse behind it
    for (std::uint64_t i = 1; i < n; i += 2) values[i] = T{1} / values[i - 1];
  }
  return values;
}

inline constexpr scan_op all_ops[] = {scan_op::add,     scan_op::mul,    scan_op::max,    scan_op::min,
                                      scan_op::bit_and, scan_op::bit_or, scan_op::bit_xor};

struct record_shape {
  std::uint64_t nbytes, key_offset;
};

// Records of drawn keys, and the rest of each is its number, as far as it goes.
template <class Key>
bytes drawn_records(std::mt19937_64& draw, std::uint64_t n, const record_shape& shape) {
  const std::vector<Key> keys = test::drawn_keys<Key>(draw, n);
  bytes all(n * shape.nbytes);
  for (std::uint64_t i = 0; i < n; ++i) {
    std::byte* const at = all.data() + i * shape.nbytes;
    for (std::uint64_t k = 0; k < shape.nbytes; ++k) at[k] = static_cast<std::byte>(i >> 8 * (k % 2));
    std::memcpy(at + shape.key_offset, &keys[i], sizeof(Key));
  }
  return all;
}
template <class Key>
bytes sorted(const bytes& all, const record_shape& shape, bool descending) {
  std::vector<const std::byte*> order;
  for (std::uint64_t at = 0; at < all.size(); at += shape.nbytes) order.push_back(all.data() + at);
  const auto key_of = [&](const std::byte* record) {
    Key key;
    std::memcpy(&key, record + shape.key_offset, sizeof key);
    return key;
  };
  const auto is_before = [&](const std::byte* a, const std::byte* b) {
    return descending ? test::is_before(key_of(b), key_of(a)) : test::is_before(key_of(a), key_of(b));
  };
  std::stable_sort(order.begin(), order.end(), is_before);
  bytes result;
  for (const std::byte* const record : order) result.insert(result.end(), record, record + shape.nbytes);
  return result;
}

}  // namespace gpufs::apps::par
