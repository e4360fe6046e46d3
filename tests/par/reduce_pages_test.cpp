// SPDX-License-Identifier: Apache-2.0
// Sums and checksums by page in kernels against loops on the host: operators that commute and that do not, elements that are
// values and that are made into values, all kinds of groups, lengths of pages and arrays, places in memory, orders of blocks.
#include "gpufs/par/reduce_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// --- What pages are combined to ---------------------------------------------------------------------------------------------

// Each has elements, an operator, what makes a value of an element, and a loop that gives what a page of n elements is.
struct sums {
  using element = std::uint32_t;
  using op = plus<std::uint32_t>;
  using of = as_it_is;
  static element drawn(std::mt19937_64& draw) { return static_cast<element>(draw()); }
  static std::uint32_t by_loop(const element* page, std::uint64_t n) {
    std::uint32_t sum = 0;
    for (std::uint64_t i = 0; i < n; ++i) sum += page[i];
    return sum;
  }
};

struct maps {
  using element = affine::value;
  using op = affine;
  using of = as_it_is;
  static element drawn(std::mt19937_64& draw) { return affine::drawn(draw); }
  static affine::value by_loop(const element* page, std::uint64_t n) {
    affine::value all = affine{}.identity();
    for (std::uint64_t i = 0; i < n; ++i) all = affine{}(all, page[i]);
    return all;
  }
};

// Of bytes Fletcher's two sums (of 32 bits, which wrap around), how many they are, and the plain sum: 24 bytes. The second sum
// depends on places: what stands on the left counts once more for each byte on the right.
struct fletcher {
  struct value {
    std::uint32_t first, second;
    std::uint64_t count, sum;
    friend bool operator==(const value&, const value&) = default;
  };
  GPUFS_DEVICE value identity() const { return {0, 0, 0, 0}; }
  GPUFS_DEVICE value operator()(const value& a, const value& b) const {
    return {a.first + b.first, a.second + static_cast<std::uint32_t>(b.count) * a.first + b.second, a.count + b.count,
            a.sum + b.sum};
  }
};
struct checksum_of_byte {
  GPUFS_DEVICE fletcher::value operator()(std::uint8_t byte) const { return {byte, byte, 1, byte}; }
};
struct checksums {
  using element = std::uint8_t;
  using op = fletcher;
  using of = checksum_of_byte;
  static element drawn(std::mt19937_64& draw) { return static_cast<element>(draw()); }
  static fletcher::value by_loop(const element* page, std::uint64_t n) {
    fletcher::value all{};
    for (std::uint64_t i = 0; i < n; ++i) {
      all.first += page[i];
      all.second += all.first;
      ++all.count;
      all.sum += page[i];
    }
    return all;
  }
};

// Elements larger than their values, which no access of 16 bytes fetches.
struct record {
  std::uint32_t head[4];
  std::uint16_t price, tail;
};
struct price_of_record {
  GPUFS_DEVICE std::uint64_t operator()(const record& of) const { return of.price; }
};
struct prices {
  using element = record;
  using op = plus<std::uint64_t>;
  using of = price_of_record;
  static element drawn(std::mt19937_64& draw) {
    record one{};
    one.price = static_cast<std::uint16_t>(draw());
    one.tail = 77;
    return one;
  }
  static std::uint64_t by_loop(const element* page, std::uint64_t n) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < n; ++i) sum += page[i].price;
    return sum;
  }
};

// --- By groups and by grids -------------------------------------------------------------------------------------------------

// Each group has its stretch, whose first element begins a page; and in `out` a stretch of as many values.
template <class Case, class Group>
struct by_groups {
  const typename Case::element* in;
  typename Case::op::value* out;
  int* errors;
  std::uint64_t n, stretch, out_stretch, page_n;
  typename Case::op op;
  typename Case::of of;

  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const std::uint64_t mine = simt::thread_rank() / group.size(), begin = mine * stretch < n ? mine * stretch : n;
    const std::uint64_t here = n - begin < stretch ? n - begin : stretch;
    const int error = reduce_pages(group, in + begin, here, page_n, out + mine * out_stretch, op, of);
    if (group.leader()) errors[mine] = error;
  }
};

template <class Case>
struct by_grid {
  const typename Case::element* in;
  typename Case::op::value* out;
  int* errors;
  std::uint64_t n, page_n;
  typename Case::op op;
  typename Case::of of;

  GPUFS_DEVICE void operator()() const {
    const int error = reduce_pages(simt::this_grid(), in, n, page_n, out, op, of);
    if (simt::this_block().leader()) errors[simt::block_rank()] = error;
  }
};

// An array of random elements, and what comes out of it.
template <class Case>
class pages {
  using element = typename Case::element;
  using value = typename Case::op::value;

 public:
  pages(std::uint64_t seed, std::uint64_t n, std::uint64_t page_n) : draw_(seed), n_(n), page_n_(page_n), offset_(draw_() % 4) {
    for (std::uint64_t i = 0; i < offset_ + n; ++i) in_.push_back(Case::drawn(draw_));
  }

  template <class Group>
  void by(unsigned nthreads) {
    const std::uint64_t ngroups = std::is_same_v<Group, simt::block> ? 1 : nthreads / Group{}.size();
    const std::uint64_t stretch = (n_ + ngroups - 1) / ngroups, out_stretch = stretch / page_n_ + 2;
    const device_array<element> in{std::span<const element>(in_)};
    const device_array<value> out{std::span<const value>(std::vector<value>(ngroups * out_stretch, nothing()))};
    const device_array<int> errors{std::span<const int>(std::vector<int>(ngroups, 1))};
    simt::launch<1024>(
        {.block = nthreads, .schedule = drawn_schedule(draw_)},
        by_groups<Case, Group>{in.get() + offset_, out.get(), errors.get(), n_, stretch, out_stretch, page_n_, {}, {}});
    EXPECT_EQ(errors.read(), std::vector<int>(ngroups));
    std::vector<value> wanted(ngroups * out_stretch, nothing());
    for (std::uint64_t k = 0; k < ngroups; ++k) {
      by_loop(std::min(n_, k * stretch), std::min(n_, (k + 1) * stretch), &wanted[k * out_stretch]);
    }
    EXPECT_TRUE(out.read() == wanted);
  }

  void by_grid_of(unsigned nblocks, unsigned nthreads) {
    const device_array<element> in{std::span<const element>(in_)};
    const device_array<value> out{std::span<const value>(std::vector<value>(n_ / page_n_ + 2, nothing()))};
    const device_array<int> errors{std::span<const int>(std::vector<int>(nblocks, 1))};
    simt::launch({.grid = nblocks, .block = nthreads, .schedule = drawn_schedule(draw_), .cooperative = true},
                 by_grid<Case>{in.get() + offset_, out.get(), errors.get(), n_, page_n_, {}, {}});
    EXPECT_EQ(errors.read(), std::vector<int>(nblocks));
    std::vector<value> wanted(n_ / page_n_ + 2, nothing());
    by_loop(0, n_, wanted.data());
    EXPECT_TRUE(out.read() == wanted);
  }

 private:
  // What is in `out` where no page is.
  static value nothing() {
    value all;
    std::fill_n(reinterpret_cast<unsigned char*>(&all), sizeof all, static_cast<unsigned char>(0xab));
    return all;
  }
  void by_loop(std::uint64_t begin, std::uint64_t end, value* wanted) const {
    for (; begin < end; begin += std::min(page_n_, end - begin)) {
      *wanted++ = Case::by_loop(&in_[offset_ + begin], std::min(page_n_, end - begin));
    }
  }

  std::mt19937_64 draw_;
  std::uint64_t n_, page_n_, offset_;
  std::vector<element> in_;
};

// Around ends of pages, and more pages than there are warps or blocks.
std::vector<std::uint64_t> lengths_of(std::uint64_t page_n) {
  std::vector<std::uint64_t> all = {0, 1, page_n - 1, page_n, page_n + 1, 9 * page_n + page_n / 2};
  if (page_n <= 32) all.push_back(40 * page_n);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}
#if defined(__SANITIZE_THREAD__)
const std::vector<std::uint64_t> page_lengths = {1, 32, 5000};
#else
const std::vector<std::uint64_t> page_lengths = {1, 7, 32, 512, 1000, 5000};
#endif

template <class Case>
class pages_of : public ::testing::Test {};
using cases = ::testing::Types<sums, maps, checksums, prices>;
TYPED_TEST_SUITE(pages_of, cases);

TYPED_TEST(pages_of, by_groups_give_what_a_loop_gives) {
  for (const std::uint64_t page_n : page_lengths) {
    for (const std::uint64_t n : lengths_of(page_n)) {
      SCOPED_TRACE(testing::Message() << n << " elements in pages of " << page_n);
      pages<TypeParam>(n + 1, n, page_n).template by<simt::thread>(32);
      pages<TypeParam>(n + 2, n, page_n).template by<simt::tile<8>>(64);
      pages<TypeParam>(n + 3, n, page_n).template by<simt::warp>(96);
      pages<TypeParam>(n + 4, n, page_n).template by<simt::block>(32);
      pages<TypeParam>(n + 5, n, page_n).template by<simt::block>(160);
    }
  }
  pages<TypeParam>(6, 40000, 20001).template by<simt::block>(1024);
}

TYPED_TEST(pages_of, by_a_grid_give_what_a_loop_gives) {
  for (const std::uint64_t page_n : page_lengths) {
    for (const std::uint64_t n : lengths_of(page_n)) {
      SCOPED_TRACE(testing::Message() << n << " elements in pages of " << page_n);
      pages<TypeParam>(n + 7, n, page_n).by_grid_of(1, 64);
      pages<TypeParam>(n + 8, n, page_n).by_grid_of(3, 32);
      pages<TypeParam>(n + 9, n, page_n).by_grid_of(4, 96);
    }
  }
  pages<TypeParam>(10, 1000, ~std::uint64_t{0}).by_grid_of(3, 64);  // one page, much longer than the array
}

// --- Errors -----------------------------------------------------------------------------------------------------------------

struct pages_of_nothing {
  const std::uint32_t* in;
  std::uint32_t* out;
  int* errors;
  std::uint64_t n;
  GPUFS_DEVICE void operator()() const {
    const plus<std::uint32_t> op;
    const int got[] = {reduce_pages(simt::this_grid(), in, n, 0, out, op), reduce_pages(simt::this_block(), in, n, 0, out, op),
                       reduce_pages(simt::this_warp(), in, n, 0, out, op), reduce_pages(simt::this_thread(), in, n, 0, out, op)};
    if (!simt::this_grid().leader()) return;
    for (int i = 0; i < 4; ++i) errors[i] = got[i];
  }
};

TEST(pages, of_no_elements_are_refused_and_nothing_is_written) {
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{100}}) {
    const device_array<std::uint32_t> in(n), out{std::span<const std::uint32_t>(std::vector<std::uint32_t>(100, 7))};
    const device_array<int> errors(4);
    simt::launch({.grid = 3, .block = 64, .cooperative = true}, pages_of_nothing{in.get(), out.get(), errors.get(), n});
    EXPECT_EQ(errors.read(), std::vector<int>(4, -EINVAL));
    EXPECT_EQ(out.read(), std::vector<std::uint32_t>(100, 7));
  }
}

// --- Just before, and just after --------------------------------------------------------------------------------------------

// Elements that any threads have just written are seen, and so are pages, by all, without a barrier of the caller's.
struct written_just_before {
  std::uint32_t *in, *out;
  int* nwrong;
  std::uint64_t n, page_n;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const plus<std::uint32_t> op;
    const std::uint64_t npages = (n + page_n - 1) / page_n;
    for (std::uint32_t value = 1; value <= 3; ++value) {
      for (std::uint64_t i = grid.size() - 1 - grid.rank(); i < n; i += grid.size()) in[i] = value;
      reduce_pages(grid, in, n, page_n, out, op);
      for (std::uint64_t p = grid.rank(); p < npages; p += grid.size()) {
        const std::uint64_t other = npages - 1 - p, here = n - other * page_n < page_n ? n - other * page_n : page_n;
        if (out[other] != here * value) simt::atomic_ref(*nwrong).add_relaxed(1);
      }
    }
  }
};

TEST(pages_by_a_grid, are_of_what_was_written_just_before_and_seen_just_after) {
  std::mt19937_64 draw(6);
  for (int trial = 0; trial < ntrials; ++trial) {
    const std::uint64_t n = 9500, page_n = trial % 2 == 0 ? 700 : 4700;
    const device_array<std::uint32_t> in(n), out(n / page_n + 1);
    const device_array<int> nwrong(1);
    simt::launch({.grid = 3, .block = 64, .schedule = drawn_schedule(draw), .cooperative = true},
                 written_just_before{in.get(), out.get(), nwrong.get(), n, page_n});
    EXPECT_EQ(nwrong.read(), std::vector<int>(1)) << trial;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
