// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of arrays that are in an engine's own memory already, against loops.
#include "gpufs/mount.hpp"
#include "gpufs/simt/device_array.hpp"
#include "par_jobs.hpp"

namespace gpufs::apps::par {
namespace {

// Bytes in the engine's own memory.
class own_array {
 public:
  own_array(bool by_kernels, const bytes& all)
      : by_kernels_(by_kernels), on_host_(all), on_device_(std::span<const std::byte>(all)) {}
  std::byte* get() { return by_kernels_ ? on_device_.get() : on_host_.data(); }
  std::span<std::byte> span() { return {get(), on_host_.size()}; }
  bytes read() const { return by_kernels_ ? on_device_.read() : on_host_; }

 private:
  bool by_kernels_;
  bytes on_host_;
  simt::device_array<std::byte> on_device_;
};
own_array leftovers_of(bool by_kernels, std::uint64_t nbytes) { return {by_kernels, bytes(nbytes, std::byte{0xa5})}; }

TEST_F(par_files, scans_of_arrays_that_are_there_are_the_same) {
  std::mt19937_64 draw(34);
  by_each_engine_of_each_type([&](engine& by, bool by_kernels, number_type type, auto of) {
    using T = decltype(of);
    for (const scan_op op : all_ops) {
      const scan_options options{op, type, draw() % 2 == 0};
      const std::uint64_t n = draw() % 5 == 0 ? draw() % 2 : draw() % 3000;
      const auto values = drawn_values<T>(draw, n, op);
      SCOPED_TRACE(testing::Message() << "type " << int(type) << ", operator " << int(op) << ", " << n << " elements, "
                                      << options.exclusive << by_kernels);
      own_array in(by_kernels, bytes_of(values)), out(by_kernels, bytes_of(values));
      own_array& to = draw() % 2 == 0 ? in : out;
      own_array space = leftovers_of(by_kernels, by.space_to_scan(n * sizeof(T), options));
      if (std::is_floating_point_v<T> && op > scan_op::min) {
        EXPECT_THROW(scan_there(by, in.get(), to.get(), n * sizeof(T), options, space.span()), gpufs::error);
        continue;
      }
      scan_there(by, in.get(), to.get(), n * sizeof(T), options, space.span());
      EXPECT_EQ(to.read(), bytes_of(scanned(values, op, options.exclusive)));
      EXPECT_TRUE(&to == &in || in.read() == bytes_of(values));
      EXPECT_THROW(scan_there(by, in.get(), to.get(), n * sizeof(T) + 1, options, space.span()), gpufs::error);
      if (by_kernels && n != 0) {
        EXPECT_THROW(scan_there(by, in.get(), to.get(), n * sizeof(T), options, {space.get(), 255}), gpufs::error);
      }
    }
  });
}

TEST_F(par_files, sorts_of_arrays_that_are_there_are_the_same) {
  std::mt19937_64 draw(35);
  by_each_engine_of_each_type([&](engine& by, bool by_kernels, number_type type, auto of) {
    using Key = decltype(of);
    for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, draw() % 1000}) {
      const record_shape shape{sizeof(Key), 0};
      const bool descending = draw() % 2 == 0;
      const bytes all = drawn_records<Key>(draw, n, shape);
      own_array keys(by_kernels, all);
      own_array space = leftovers_of(by_kernels, by.space_to_sort(all.size(), type));
      sort_there(by, keys.get(), all.size(), type, descending, space.span());
      EXPECT_EQ(keys.read(), sorted<Key>(all, shape, descending)) << int(type) << ", " << n << descending << by_kernels;
      EXPECT_THROW(sort_there(by, keys.get(), all.size() + 1, type, descending, space.span()), gpufs::error);
      if (n > 1) {
        EXPECT_THROW(sort_there(by, keys.get(), all.size(), type, descending, {space.get(), 1}), gpufs::error);
      }
    }
  });
}

}  // namespace
}  // namespace gpufs::apps::par
