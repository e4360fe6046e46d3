// SPDX-License-Identifier: Apache-2.0
// Regions of images by boundaries and by neighbours, in kernels, against a union-find on the host: snakes, spirals, regions in
// holes of regions, drawn ones; by pixels that meet at sides and at corners; in as few rounds as each algorithm needs.
#include "gpufs/par/label.hpp"

#include <bit>

#include "leftovers.hpp"
#include "par/label_images.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

unsigned log_of(std::uint64_t n) { return n < 2 ? 0 : static_cast<unsigned>(std::bit_width(n - 1)); }

template <class T>
struct label_work {
  const T* pixels;
  std::uint64_t height, width;
  touching how;
  std::uint32_t *by_boundaries, *by_neighbours;
  scan_space space;
  list_result* results;  // two of each block

  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    const list_result boundaries = label_regions(group, pixels, height, width, how, by_boundaries, space);
    list_result neighbours;
    if constexpr (std::is_same_v<Group, simt::grid>) {
      neighbours = label_regions_by_neighbours(group, pixels, height, width, how, by_neighbours, space);
    } else {
      neighbours = label_regions_by_neighbours(group, pixels, height, width, how, by_neighbours);
    }
    if (!tells(group)) return;
    results[2 * simt::block_rank()] = boundaries;
    results[2 * simt::block_rank() + 1] = neighbours;
  }
};

struct label_calls {
  std::vector<std::uint32_t> by_boundaries, by_neighbours;
  std::vector<list_result> results;
  static constexpr std::uint32_t untouched = 0x55555555;

  template <class T, class Kind>
  label_calls(const Kind& kind, const std::vector<T>& pixels, std::uint64_t height, std::uint64_t width, touching how,
              std::uint64_t space_less = 0) {
    const auto of = on_device(pixels);
    const guarded_array<std::uint32_t> boundaries(std::vector<std::uint32_t>(pixels.size(), untouched)),
        neighbours(std::vector<std::uint32_t>(pixels.size(), untouched));
    const drawn_space space(kind.draw, scan_space::nbytes_to_label(pixels.size(), kind.nblocks) - space_less);
    const device_array<list_result> got(2 * kind.nblocks);
    kind.run(label_work<T>{of.get(), height, width, how, boundaries.get(), neighbours.get(), space.get(), got.get()});
    by_boundaries = boundaries.read();
    by_neighbours = neighbours.read();
    results = got.read();
  }
  template <class T, class Kind>
  static label_calls of(const Kind& kind, const image& what, touching how) {
    return {kind, std::vector<T>(what.pixels.begin(), what.pixels.end()), static_cast<std::uint64_t>(what.height),
            static_cast<std::uint64_t>(what.width), how};
  }
};

TEST(labels, are_those_of_a_union_find) {
  std::mt19937_64 draw(1);
  for (const image& what : some_images(draw)) {
    for (const touching how : {touching::sides, touching::corners}) {
      SCOPED_TRACE(testing::Message() << what.name << ", " << what.height << " x " << what.width
                                      << (how == touching::sides ? ", sides" : ", corners"));
      const std::vector<std::uint32_t> want = what.labels(how == touching::corners);
      const unsigned way = what.longest_way(how == touching::corners);
      const auto check = [&](const label_calls& got) {
        EXPECT_EQ(got.by_boundaries, want);
        EXPECT_EQ(got.by_neighbours, want);
        for (std::size_t i = 0; i < got.results.size(); i += 2) {
          EXPECT_EQ(got.results[i].error, 0);
          EXPECT_EQ(got.results[i + 1].error, 0);
          EXPECT_LE(got.results[i].nrounds, log_of(4 * what.n()) + log_of(what.n()) + 2);
          EXPECT_LE(got.results[i + 1].nrounds, way + 1);
        }
      };
      by_each_kind(draw, [&](const auto& kind) { check(label_calls::of<std::uint8_t>(kind, what, how)); });
      check(label_calls::of<std::uint32_t>(kind_of_team<simt::block>{1, 64, draw}, what, how));
    }
  }
}

// A way of hundreds of pixels is one of some rounds along boundaries; and all of a checkerboard is done at once.
TEST(labels, of_long_regions_take_few_rounds) {
  std::mt19937_64 draw(2);
  const kind_of_team<simt::block> kind{1, 64, draw};
  for (const image& what : {snake(41, 23), spiral(31)}) {
    const label_calls got = label_calls::of<std::uint8_t>(kind, what, touching::sides);
    EXPECT_EQ(got.by_boundaries, what.labels(false));
    EXPECT_EQ(got.by_neighbours, what.labels(false));
    EXPECT_GE(what.longest_way(false), 200u);
    // The boundary of either is about twice as long as its way; the lists lead up and over, and not along it.
    EXPECT_LE(got.results[0].nrounds, log_of(4 * what.n()) + log_of(static_cast<std::uint64_t>(what.height)) + 2);
  }
  const image board = checkerboard(20, 20);
  const label_calls got = label_calls::of<std::uint8_t>(kind, board, touching::sides);
  EXPECT_EQ(got.by_boundaries, board.labels(false));
  EXPECT_LE(got.results[0].nrounds, 4u);
  EXPECT_EQ(got.results[1].nrounds, 1u);
}

TEST(labels, that_cannot_be_made_leave_all_as_it_was) {
  std::mt19937_64 draw(3);
  const std::vector<std::uint8_t> pixels(12, 1);
  const std::vector<std::uint32_t> untouched(12, label_calls::untouched);
  by_each_kind(draw, [&](const auto& kind) {
    const label_calls small(kind, pixels, 3, 4, touching::sides, 1);
    EXPECT_EQ(small.by_boundaries, untouched);
    for (std::size_t i = 0; i < small.results.size(); i += 2) EXPECT_EQ(small.results[i].error, -EINVAL);
    constexpr std::uint64_t many = std::uint64_t{1} << 30;
    for (const auto& [height, width] :
         {std::pair<std::uint64_t, std::uint64_t>{many, 1}, {1, many}, {many / 4, 4}, {many * 4, 0}}) {
      const label_calls large(kind, pixels, height, width, touching::corners);
      EXPECT_EQ(large.by_boundaries, untouched);
      EXPECT_EQ(large.by_neighbours, untouched);
      for (const list_result& each : large.results) EXPECT_EQ(each.error, -EINVAL);
    }
  });
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
