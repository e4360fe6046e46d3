// SPDX-License-Identifier: Apache-2.0
// Queries of columns of all types, in pieces anywhere in files, by host threads and by kernels over a cache of few pages, against
// sums of whole numbers; what they read; and files that are cut.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "apps/query/engine.hpp"
#include "apps/query/trips.hpp"
#include "said.hpp"
#include "simt/harness.hpp"

namespace gpufs::apps::query {
namespace {

using int128 = __int128;

const auto nobody = [](std::uint64_t, std::uint64_t) {};

class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_query_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~folder() { std::filesystem::remove_all(path_); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Values as whole numbers of 1/1024, which all types of floats have exactly; and as the bits of their type.
constexpr std::int64_t units = 1024;
std::uint64_t bits_of(value_type type, std::int64_t value) {
  std::uint64_t bits = 0;
  if (type == value_type::f64) {
    const double real = static_cast<double>(value) / units;
    std::memcpy(&bits, &real, 8);
  } else if (type == value_type::f32) {
    const float real = static_cast<float>(value) / units;
    std::memcpy(&bits, &real, 4);
  } else {
    bits = static_cast<std::uint64_t>(value);
  }
  return bits;
}
// Of any size that the type has.
std::int64_t drawn_value(value_type type, std::mt19937_64& draw) {
  if (is_float(type)) return static_cast<std::int64_t>(draw() % 20001) - 10000;
  const unsigned nbits = 8 * nbytes_of(type);
  if (is_signed(type)) return static_cast<std::int64_t>(draw()) >> (64 - nbits);
  return static_cast<std::int64_t>(draw() >> (nbits == 64 ? 1 : 64 - nbits));
}

// A column in a file of its own, in pieces of up to piece_rows rows, in any order, with gaps; odd: at odd bytes.
struct drawn_column {
  column of;
  std::vector<std::int64_t> values;

  drawn_column(const std::string& path, value_type type, std::uint64_t nrows, std::uint64_t piece_rows, bool odd,
               std::uint64_t seed) {
    std::mt19937_64 draw(seed);
    const std::uint32_t nbytes = nbytes_of(type);
    for (std::uint64_t i = 0; i < nrows; ++i) values.push_back(drawn_value(type, draw));
    of = {path, type, {nbytes, nrows, {}}};
    std::string bytes;
    for (std::uint64_t first = 0; first < nrows; first += piece_rows) of.place.pieces.push_back({first, 0});
    if (nrows == 0) of.place.pieces.push_back({0, 0});
    std::vector<std::size_t> order(of.place.pieces.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, draw);
    for (const std::size_t i : order) {
      const std::uint64_t first = of.place.pieces[i].first;
      bytes.append(odd ? 1 + draw() % 40 : 8 * (draw() % 5), '\xee');
      if (!odd) bytes.append((8 - bytes.size() % 8) % 8, '\xee');
      of.place.pieces[i].begin = bytes.size();
      for (std::uint64_t row = first; row < std::min(first + piece_rows, nrows); ++row) {
        const std::uint64_t bits = bits_of(type, values[row]);
        bytes.append(reinterpret_cast<const char*>(&bits), nbytes);
      }
    }
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
};

std::unique_ptr<engine> make(bool by_kernels, const query& of) {
  const engine_options options{.nthreads = 2, .cache_nbytes = 48 << 10, .page_nbytes = 1024};
  if (!by_kernels) return make_engine_cpu(of, options);
#if GPUFS_ON_CUDA
  return make_engine_cuda(of, options);
#else
  return make_engine_simt(of, options);
#endif
}

bool compares(comparison how, std::int64_t a, std::int64_t b) {
  switch (how) {
    case comparison::less:
      return a < b;
    case comparison::at_most:
      return a <= b;
    case comparison::equal:
      return a == b;
    case comparison::unequal:
      return a != b;
    case comparison::at_least:
      return a >= b;
    default:
      return a > b;
  }
}
// The digits of a sum, without adding any by parts.
std::vector<std::uint64_t> digits_of(int128 sum, value_type type) {
  column_sums all{};
  const unsigned place = 1074 - (is_float(type) ? 10 : 0);  // of a unit
  const int128 shifted = sum * (int128{1} << place % 32);
  unsigned at = place / 32;
  int128 left = shifted;
  for (; at + 1 < column_sums::ndigits; ++at) {
    all.digits[at] = static_cast<std::uint64_t>(left & 0xffffffff);
    left >>= 32;
  }
  all.digits[at] = static_cast<std::uint64_t>(left);
  return {all.digits, all.digits + column_sums::ndigits};
}

struct drawn_table {
  drawn_column where;
  std::vector<drawn_column> others;

  query asked(comparison how, std::int64_t value, bool also_where) const {
    query q{where.of, condition::of(where.of.type, how, bits_of(where.of.type, value)), {}};
    if (also_where) q.sums.push_back(where.of);
    for (const drawn_column& each : others) q.sums.push_back(each.of);
    return q;
  }
  // What was found is right.
  void check(const query_result& got, comparison how, std::int64_t value, bool also_where) const {
    std::vector<const drawn_column*> summed;
    if (also_where) summed.push_back(&where);
    for (const drawn_column& each : others) summed.push_back(&each);
    ASSERT_EQ(got.sums.size(), summed.size());
    std::uint64_t npassed = 0;
    std::vector<int128> sums(summed.size());
    std::vector<std::int64_t> least(summed.size(), std::numeric_limits<std::int64_t>::max());
    std::vector<std::int64_t> greatest(summed.size(), std::numeric_limits<std::int64_t>::min());
    for (std::size_t row = 0; row < where.values.size(); ++row) {
      if (!compares(how, where.values[row], value)) continue;
      ++npassed;
      for (std::size_t c = 0; c < summed.size(); ++c) {
        sums[c] += summed[c]->values[row];
        least[c] = std::min(least[c], summed[c]->values[row]);
        greatest[c] = std::max(greatest[c], summed[c]->values[row]);
      }
    }
    EXPECT_EQ(got.nrows, where.values.size());
    EXPECT_EQ(got.npassed, npassed);
    for (std::size_t c = 0; c < summed.size(); ++c) {
      const column_sums& found = got.sums[c];
      const value_type type = summed[c]->of.type;
      EXPECT_EQ(std::vector<std::uint64_t>(found.digits, found.digits + column_sums::ndigits), digits_of(sums[c], type)) << c;
      EXPECT_EQ(found.least, npassed == 0 ? ~std::uint64_t{0} : key_of(type, bits_of(type, least[c]))) << c;
      EXPECT_EQ(found.greatest, npassed == 0 ? 0 : key_of(type, bits_of(type, greatest[c]))) << c;
      EXPECT_EQ(found.nnan + found.ninfinite + found.nminus_infinite, 0u);
    }
  }
};

TEST(queries, of_columns_of_all_types_in_any_pieces_add_up_exactly) {
  const folder here;
  std::mt19937_64 draw(11);
  for (unsigned t = 0; t < ntypes; ++t) {
    const auto type = static_cast<value_type>(t), next = static_cast<value_type>((t + 3) % ntypes);
    const bool odd = t % 2 == 0;
    const std::uint64_t nrows = t == 9 ? 40'000 : 1500 + draw() % 1000;  // one with several launches, chunks and rounds
    const auto column_of = [&](const char* name, value_type of, std::uint64_t piece_rows) {
      return drawn_column(here.file(name + std::to_string(t)), of, nrows, piece_rows, odd, draw());
    };
    const drawn_table table{column_of("where", type, t % 3 == 0 ? nrows : 200 + draw() % 300),
                            {column_of("first", next, nrows), column_of("second", type, 97)}};
    const std::int64_t value = table.where.values[draw() % nrows];
    const auto how = static_cast<comparison>(draw() % 6);
    for (const bool by_kernels : {false, true}) {
      SCOPED_TRACE(testing::Message() << "type " << t << ", comparison " << static_cast<unsigned>(how) << ", kernels "
                                      << by_kernels);
      const auto by = make(by_kernels, table.asked(how, value, odd));
      table.check(by->run(nobody), how, value, odd);
      table.check(by->run(nobody), how, value, odd);  // and again
    }
  }
}

TEST(queries, by_each_comparison_find_the_rows_that_pass) {
  const folder here;
  const drawn_table table{{here.file("where"), value_type::i8, 3000, 3000, false, 1},
                          {{here.file("other"), value_type::i64, 3000, 500, false, 2}}};
  for (unsigned how = 0; how < 6; ++how) {
    for (const std::int64_t value : {-128, -1, 0, 126, 127}) {
      for (const bool by_kernels : {false, true}) {
        SCOPED_TRACE(testing::Message() << how << ' ' << value << ' ' << by_kernels);
        const query asked = table.asked(static_cast<comparison>(how), value, true);
        table.check(make(by_kernels, asked)->run(nobody), static_cast<comparison>(how), value, true);
      }
    }
  }
}

TEST(queries, of_no_rows_and_of_no_columns_find_none) {
  const folder here;
  const drawn_table none{{here.file("none"), value_type::f64, 0, 1, false, 1}, {{here.file("no"), value_type::u8, 0, 1, false, 2}}};
  const drawn_table alone{{here.file("alone"), value_type::u16, 700, 50, true, 3}, {}};
  for (const bool by_kernels : {false, true}) {
    none.check(make(by_kernels, none.asked(comparison::at_least, 0, true))->run(nobody), comparison::at_least, 0, true);
    alone.check(make(by_kernels, alone.asked(comparison::less, 9999, false))->run(nobody), comparison::less, 9999, false);
  }
}

TEST(queries, read_of_other_columns_what_belongs_to_rows_that_pass) {
  const folder here;
  const std::uint64_t nrows = 20'000;
  drawn_column where(here.file("where"), value_type::i32, nrows, nrows, false, 1);
  std::vector<std::int32_t> values(nrows, 0);
  for (const std::size_t row : {5u, 9000u, 19999u}) values[row] = 7;
  std::fstream file(where.of.path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(where.of.place.pieces[0].begin));
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(nrows * 4));
  file.close();
  where.values.assign(values.begin(), values.end());
  const drawn_table table{where, {{here.file("other"), value_type::f64, nrows, nrows, false, 2}}};
  for (const bool by_kernels : {false, true}) {
    const auto by = make(by_kernels, table.asked(comparison::equal, 7, false));
    const query_result got = by->run(nobody);
    table.check(got, comparison::equal, 7, false);
    EXPECT_GE(got.bytes_read, nrows * 4 + 3 * 8);
    EXPECT_LE(got.bytes_read, nrows * 4 + nrows * 4 / 512 * 16 + 3 * 8) << by_kernels;  // with what comes before a chunk
    const query_result no_row = make(by_kernels, table.asked(comparison::more, 7, false))->run(nobody);
    EXPECT_EQ(no_row.npassed, 0u);
    EXPECT_EQ(got.bytes_read - no_row.bytes_read, 3u * 8) << by_kernels;
  }
}

TEST(queries, tell_how_far_they_are_and_can_be_stopped) {
  const folder here;
  const drawn_table table{{here.file("where"), value_type::u8, 40'000, 40'000, false, 1}, {}};
  for (const bool by_kernels : {false, true}) {
    const auto by = make(by_kernels, table.asked(comparison::at_least, 0, true));
    std::vector<std::uint64_t> told;
    by->run([&](std::uint64_t done, std::uint64_t total) {
      EXPECT_EQ(total, 40'000u);
      told.push_back(done);
    });
    EXPECT_TRUE(std::ranges::is_sorted(told) && told.front() == 0 && told.back() == 40'000);
    struct stop {};
    EXPECT_THROW(by->run([](std::uint64_t, std::uint64_t) { throw stop(); }), stop);
    table.check(by->run(nobody), comparison::at_least, 0, true);
  }
}

TEST(queries, of_files_that_are_cut_or_gone_say_so) {
  const folder here;
  for (const bool by_kernels : {false, true}) {
    for (const char* which : {"where", "other"}) {
      const drawn_table table{{here.file("where"), value_type::u8, 30'000, 30'000, false, 1},
                              {{here.file("other"), value_type::f64, 30'000, 30'000, false, 2}}};
      const query asked = table.asked(comparison::at_least, 0, false);
      const auto by = make(by_kernels, asked);
      std::filesystem::resize_file(here.file(which), 16'384);
      const std::string told = said([&] { by->run(nobody); });
      EXPECT_EQ(told, here.file(which) + ": was truncated, replaced or written by others while it was queried: try again");
      EXPECT_EQ(said([&] { make(by_kernels, asked)->run(nobody); }), told);  // shorter from the beginning
      std::filesystem::remove(here.file(which));
      EXPECT_EQ(said([&] { make(by_kernels, asked); }), here.file(which) + ": No such file or directory");
    }
  }
}

TEST(queries, of_columns_that_do_not_belong_together_are_refused) {
  const folder here;
  const drawn_column a(here.file("a"), value_type::i32, 10, 10, false, 1), b(here.file("b"), value_type::i32, 11, 11, false, 2);
  const query two_lengths{a.of, {0, 0, false}, {b.of}};
  query many{a.of, {0, 0, false}, {}}, wide{a.of, {0, 0, false}, {a.of}};
  many.sums.assign(most_columns + 1, a.of);
  wide.sums[0].place.row_nbytes = 8;
  for (const bool by_kernels : {false, true}) {
    EXPECT_THROW(make(by_kernels, two_lengths), std::invalid_argument);
    EXPECT_THROW(make(by_kernels, many), std::invalid_argument);
    EXPECT_THROW(make(by_kernels, wide), std::invalid_argument);
  }
}

std::uint64_t bits(double value) {
  std::uint64_t b = 0;
  std::memcpy(&b, &value, 8);
  return b;
}

TEST(values, are_in_the_order_of_their_keys) {
  constexpr double inf = std::numeric_limits<double>::infinity(), tiny = std::numeric_limits<double>::denorm_min();
  const std::vector<double> ascending{-inf, -1e308, -2, -1, -tiny, 0, tiny, 1, 1.5, 1e308, inf};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const std::uint64_t key = key_of(value_type::f64, bits(ascending[i]));
    EXPECT_EQ(bits_of_key(value_type::f64, key), bits(ascending[i]));
    if (i != 0) {
      EXPECT_LT(key_of(value_type::f64, bits(ascending[i - 1])), key);
    }
  }
  EXPECT_EQ(key_of(value_type::f64, bits(-0.0)), key_of(value_type::f64, bits(0.0)));
  EXPECT_EQ(key_of(value_type::f64, bits(std::nan(""))), key_of(value_type::f64, bits(-std::nan(""))));
  EXPECT_GT(key_of(value_type::f64, bits(std::nan(""))), key_of(value_type::f64, bits(inf)));
  EXPECT_EQ(bits_of_key(value_type::i8, key_of(value_type::i8, 0x80)), static_cast<std::uint64_t>(-128));
  EXPECT_LT(key_of(value_type::i16, 0xffff), key_of(value_type::i16, 0));
  EXPECT_GT(key_of(value_type::u16, 0xffff), key_of(value_type::u16, 0));
}

TEST(values, that_are_no_number_are_unequal_to_all) {
  const std::uint64_t nan = key_of(value_type::f64, bits(std::nan("")));
  const std::uint64_t infinite = bits(std::numeric_limits<double>::infinity());
  for (const std::uint64_t value : {bits(1.0), infinite, bits(-1.0)}) {
    for (unsigned how = 0; how < 6; ++how) {
      const auto asked = static_cast<comparison>(how);
      EXPECT_EQ(condition::of(value_type::f64, asked, value).holds(nan), asked == comparison::unequal) << how;
    }
  }
  EXPECT_FALSE(condition::of(value_type::f64, comparison::more, infinite).holds(key_of(value_type::f64, infinite)));
}

TEST(sums, keep_all_bits_and_count_what_is_not_finite) {
  column_sums of{};
  const auto add = [&](double value) { add_value(of, value_type::f64, bits(value), plain_words()); };
  const double tiny = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  for (int i = 0; i < 1000; ++i) add(most);
  add(tiny);
  for (int i = 0; i < 1000; ++i) add(-most);
  carry(of);
  EXPECT_EQ(of.digits[0], 1u);
  for (unsigned i = 1; i < column_sums::ndigits; ++i) EXPECT_EQ(of.digits[i], 0u) << i;
  add(-tiny);
  add(-tiny);
  carry(of);
  EXPECT_EQ(of.digits[0], 0xffffffffu);
  EXPECT_EQ(of.digits[column_sums::ndigits - 1], ~std::uint64_t{0});  // below zero
  add(std::nan(""));
  add(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(of.nnan, 1u);
  EXPECT_EQ(of.nminus_infinite, 1u);
  EXPECT_EQ(of.ninfinite, 0u);
}

TEST(trips, are_the_same_however_they_are_drawn) {
  const std::vector<unsigned> columns{trip_column_of("trip_distance"), trip_column_of("VendorID"), trip_column_of("total_amount")};
  const std::uint64_t n = 70'000;
  const auto drawn = [&](std::uint64_t seed, std::uint64_t parts, unsigned nthreads) {
    std::vector<std::byte> all(n * 20);
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t begin = n * part / parts, end = n * (part + 1) / parts;
      const std::vector<std::byte*> to{all.data() + begin * 8, all.data() + n * 8 + begin * 4, all.data() + n * 12 + begin * 8};
      fill_trips(columns, seed, begin, end - begin, to, nthreads);
    }
    return all;
  };
  const std::vector<std::byte> once = drawn(5, 1, 2);
  EXPECT_EQ(once, drawn(5, 7, 1));
  EXPECT_NE(once, drawn(6, 1, 2));
}

}  // namespace
}  // namespace gpufs::apps::query
