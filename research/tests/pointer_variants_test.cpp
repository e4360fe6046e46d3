// SPDX-License-Identifier: Apache-2.0
// The designs of pointers that research/ compares with read what the file has, with more pages than frames.
#include "research/baselines/pointer_variants.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using bench::layout;
template <unsigned Entries>
using tlb_access = bench::tlb_access<Entries>;

// The pages of a warp are its own choice at each step, so that it faults as one; some steps end with an access in which lanes part.
template <class Variant>
struct walk_kernel : pointer_job {
  static constexpr unsigned nsteps = 150;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t* r = mine();
    {
      auto p = Variant{{fs, f.number()}}.template at<std::uint32_t>(0);
      const auto begin = p;
      std::int64_t at = 0, wrong = 0;
      for (unsigned i = 0; i < nsteps; ++i) {
        const std::uint64_t drawn = simt::test::scramble(thread() / 32 * nsteps + i);
        const std::int64_t to = static_cast<std::int64_t>(drawn % npages) * per_page + (simt::lane_id() * 37 + i * 11) % per_page;
        p += to - at;
        at = to;
        wrong += *p != word_at(at) || p - begin != at;
        if (i % 4 == 1 && at + 1 < nwords) wrong += p[1] != word_at(at + 1);
        if (i % 4 == 2 && at + 96 < nwords) {
          const auto tile = p.template read_tile<4>(32);
          for (unsigned k = 0; k < 4; ++k) wrong += tile[k] != word_at(at + k * 32);
        }
        if (i % 8 == 3 && (drawn >> 40 & 1 << simt::lane_id() % 4) != 0) {
          auto copy = p;
          wrong += *copy != word_at(at);
        }
        warp.sync();
      }
      r[0] = wrong;
      p += nwords - at;
      r[1] = *p;  // beyond the file
      r[2] = f.error();
    }
    warp.sync();
    close(warp, f);
  }
};

struct pointer_variants : pointer_fixture {
  pointer_variants() {
    options.cache_nbytes = 24 * page;
    options.internals.nrings = 1;
  }
  template <class Variant>
  void walks() {
    constexpr unsigned grid = 2, block = 64;
    run<walk_kernel<Variant>>(grid, block);
    for (unsigned thread = 0; thread < grid * block; ++thread) {
      ASSERT_EQ(result(thread, 0), 0) << "thread " << thread;
      ASSERT_EQ(result(thread, 1), 0);
      ASSERT_EQ(result(thread, 2), 0);
    }
    EXPECT_EQ(fs().counters().fault_errors, grid * block);
  }
};

TEST_F(pointer_variants, short_pointers) { walks<bench::mapped_variant<layout::short_ptr>>(); }
TEST_F(pointer_variants, long_pointers_through_a_tlb) { walks<bench::mapped_variant<layout::long_ptr, tlb_access<16>>>(); }
TEST_F(pointer_variants, short_pointers_through_a_tlb) { walks<bench::mapped_variant<layout::short_ptr, tlb_access<16>>>(); }
TEST_F(pointer_variants, pages_that_fight_for_an_entry) { walks<bench::mapped_variant<layout::long_ptr, tlb_access<1>>>(); }

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
