// SPDX-License-Identifier: Apache-2.0
#include "apps/query/trips.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "apps/drawn_word.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::query {
namespace {

constexpr std::uint64_t block_rows = 32 << 10, blocks_a_round = 256;

enum columns : unsigned {
  vendor,
  pickup,
  dropoff,
  passengers,
  distance,
  rate,
  pickup_zone,
  dropoff_zone,
  payment,
  fare,
  extra,
  mta_tax,
  tip,
  tolls,
  improvement,
  total,
  congestion,
  airport,
  ncolumns
};
constexpr trip_column table[ncolumns] = {
    {"VendorID", value_type::i32, "<i4"},
    {"tpep_pickup_datetime", value_type::i64, "<M8[us]"},
    {"tpep_dropoff_datetime", value_type::i64, "<M8[us]"},
    {"passenger_count", value_type::i64, "<i8"},
    {"trip_distance", value_type::f64, "<f8"},
    {"RatecodeID", value_type::i64, "<i8"},
    {"PULocationID", value_type::i32, "<i4"},
    {"DOLocationID", value_type::i32, "<i4"},
    {"payment_type", value_type::i64, "<i8"},
    {"fare_amount", value_type::f64, "<f8"},
    {"extra", value_type::f64, "<f8"},
    {"mta_tax", value_type::f64, "<f8"},
    {"tip_amount", value_type::f64, "<f8"},
    {"tolls_amount", value_type::f64, "<f8"},
    {"improvement_surcharge", value_type::f64, "<f8"},
    {"total_amount", value_type::f64, "<f8"},
    {"congestion_surcharge", value_type::f64, "<f8"},
    {"airport_fee", value_type::f64, "<f8"},
};

// Of a billion trips so many are below so many hundredths of a mile; between these points they are even.
struct point {
  std::int64_t ntrips, distance;
};
constexpr point distances[] = {{0, 0},
                               {6'000'000, 1},
                               {100'000'000, 62},
                               {250'000'000, 100},
                               {500'000'000, 170},
                               {750'000'000, 315},
                               {900'000'000, 760},
                               {950'000'000, 1120},
                               {980'000'000, 1760},
                               {990'000'000, 1900},
                               {999'000'000, 2240},
                               {999'700'000, 3000},
                               {999'950'000, 5000},
                               {1'000'000'000, 12000}};
static_assert(distances[0].ntrips == 0 && distances[std::size(distances) - 1].ntrips == 1'000'000'000);

// Whole numbers throughout: a trip is the same on every machine. Money in cents, distances in hundredths of a mile, times in us.
class trip {
 public:
  trip(std::uint64_t seed, std::uint64_t number) : seed_(seed), number_(number) {
    constexpr std::int64_t second = 1'000'000, begin = 1'230'768'000 * second;  // 2009
    const std::int64_t d = drawn_distance();
    of[vendor] = below(100) < 30 ? 1 : 2;
    of[pickup] = begin + static_cast<std::int64_t>(number) * (second / 4) + below(3600) * second;  // 345,600 trips a day
    const std::int64_t seconds = 90 + d * 36 * 100 / (600 + below(1200));                          // at 6 to 18 miles an hour
    of[dropoff] = of[pickup] + seconds * second;
    of[passengers] = one_of({{720, 1}, {860, 2}, {900, 3}, {920, 4}, {970, 5}, {1000, 6}});
    of[distance] = d;
    const bool is_from_airport = d >= 1400 && below(100) < 45;
    of[rate] = is_from_airport ? 2 : one_of({{985, 1}, {990, 5}, {995, 3}, {1000, 4}});
    of[pickup_zone] = 1 + std::min(below(265), below(265));
    of[dropoff_zone] = 1 + std::min(below(265), below(265));
    of[payment] = one_of({{690, 1}, {985, 2}, {994, 3}, {1000, 4}});
    of[fare] = is_from_airport ? 7000 : 300 + (d * 350 / 100 + seconds * 70 / 300) / 10 * 10;
    of[extra] = one_of({{450, 0}, {700, 50}, {850, 100}, {1000, 250}});
    of[mta_tax] = below(1000) < 992 ? 50 : 0;
    of[tip] = of[payment] == 1 && below(100) >= 8 ? of[fare] * (10 + below(20)) / 100 : 0;
    of[tolls] = d >= 800 && below(100) < 35 ? 655 : 0;
    of[improvement] = below(1000) < 995 ? 30 : 0;
    of[congestion] = below(100) < 91 ? 250 : 0;
    of[airport] = is_from_airport ? 175 : 0;
    of[total] = of[fare] + of[extra] + of[mta_tax] + of[tip] + of[tolls] + of[improvement] + of[congestion] + of[airport];
  }

  std::int64_t of[ncolumns];

 private:
  // Even among n numbers.
  std::int64_t below(std::uint32_t n) {
    return static_cast<std::int64_t>((drawn_word(seed_, number_ << 5 | ndrawn_++) >> 32) * n >> 32);
  }
  struct share {
    std::int64_t below_of_thousand, value;
  };
  std::int64_t one_of(std::initializer_list<share> all) {
    const std::int64_t drawn = below(1000);
    return std::ranges::find_if(all, [&](const share& each) { return drawn < each.below_of_thousand; })->value;
  }
  std::int64_t drawn_distance() {
    const std::int64_t drawn = below(1'000'000'000);
    const point* const to = std::ranges::upper_bound(distances, drawn, {}, &point::ntrips);
    const point &a = to[-1], &b = to[0];
    return a.distance + (drawn - a.ntrips) * (b.distance - a.distance) / (b.ntrips - a.ntrips);
  }

  std::uint64_t seed_, number_;
  unsigned ndrawn_ = 0;
};

void put(std::byte* to, unsigned column, std::int64_t value) {
  if (table[column].type == value_type::f64) {
    const double amount = static_cast<double>(value) / 100;
    std::memcpy(to, &amount, 8);
  } else if (table[column].type == value_type::i32) {
    const auto narrow = static_cast<std::int32_t>(value);
    std::memcpy(to, &narrow, 4);
  } else {
    std::memcpy(to, &value, 8);
  }
}
void fill_block(std::span<const unsigned> columns, std::uint64_t seed, std::uint64_t first, std::uint64_t n,
                std::span<std::byte* const> to) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const trip each(seed, first + i);
    for (std::size_t c = 0; c < columns.size(); ++c)
      put(to[c] + i * nbytes_of(table[columns[c]].type), columns[c], each.of[columns[c]]);
  }
}

void write_all(const trip_output& to, const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) {
  while (nbytes != 0) {
    const ssize_t n = ::pwrite(to.descriptor, from, nbytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw gpufs::error(to.path + ": cannot be written: " + std::strerror(errno), errno);
    from += n;
    offset += static_cast<std::uint64_t>(n);
    nbytes -= static_cast<std::uint64_t>(n);
  }
}

}  // namespace

std::span<const trip_column> trip_columns() { return table; }

unsigned trip_column_of(const std::string& name) {
  const auto* const at = std::ranges::find_if(table, [&](const trip_column& each) { return name == each.name; });
  if (at == std::end(table)) throw std::invalid_argument("trips have no column " + name);
  return static_cast<unsigned>(at - table);
}

void fill_trips(std::span<const unsigned> columns, std::uint64_t seed, std::uint64_t first, std::uint64_t n,
                std::span<std::byte* const> to, unsigned nthreads) {
  parallel_for(
      thread_count(nthreads), (n + block_rows - 1) / block_rows,
      [&](std::size_t block) {
        const std::uint64_t begin = block * block_rows;
        std::vector<std::byte*> here;
        for (std::size_t c = 0; c < columns.size(); ++c) here.push_back(to[c] + begin * nbytes_of(table[columns[c]].type));
        fill_block(columns, seed, first + begin, std::min(block_rows, n - begin), here);
      },
      helper_threads::of_process());
}

void write_trips(const std::vector<trip_output>& to, std::uint64_t seed, std::uint64_t nrows, unsigned nthreads,
                 const progress_function& progress) {
  std::vector<unsigned> columns;
  for (const trip_output& each : to) columns.push_back(each.column);
  progress(0, nrows);
  const std::uint64_t nblocks = (nrows + block_rows - 1) / block_rows;
  for (std::uint64_t first = 0; first < nblocks; first += blocks_a_round) {
    const std::uint64_t here = std::min(blocks_a_round, nblocks - first);
    parallel_for(
        thread_count(nthreads), here,
        [&](std::size_t i) {
          const std::uint64_t row = (first + i) * block_rows, n = std::min(block_rows, nrows - row);
          std::vector<std::byte> room(to.size() * block_rows * 8);
          std::vector<std::byte*> parts;
          for (std::size_t c = 0; c < to.size(); ++c) parts.push_back(room.data() + c * block_rows * 8);
          fill_block(columns, seed, row, n, parts);
          for (std::size_t c = 0; c < to.size(); ++c) {
            const std::uint64_t nbytes = nbytes_of(table[to[c].column].type);
            write_all(to[c], parts[c], n * nbytes, to[c].offset + row * nbytes);
          }
        },
        helper_threads::of_process());
    progress(std::min((first + here) * block_rows, nrows), nrows);
  }
}

}  // namespace gpufs::apps::query
