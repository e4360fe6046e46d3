// SPDX-License-Identifier: Apache-2.0
// A file that the device reads itself, from a mapping or its own memory, and batches of its rows.
#pragma once
#include <memory>
#include <vector>

#include "file/script.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/store/mem_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t device_file_seed = 5;
inline constexpr group_kind all_kinds[] = {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block};

// Of a mount of "f", whose content is device_file_seed's.
inline mount_options device_file(source_kind kind, std::uint64_t file_nbytes, std::uint32_t page_nbytes, std::uint32_t nframes) {
  auto files = std::make_shared<store::mem_store>(simt::this_platform(), kind);
  files->put("f", content(device_file_seed, 0, file_nbytes));
  mount_options o;
  o.page_nbytes = page_nbytes;
  o.cache_nbytes = std::uint64_t{page_nbytes} * nframes;
  o.max_open_files = 16;
  o.nworkers = 2;
  o.custom_store = files;
  return o;
}

// Three batches of the same n rows of 64 bytes, `step` rows apart, give the file's bytes.
inline void expect_batches_of_rows(const mount& m, const host_file& f, std::uint64_t file_nbytes, std::uint64_t n,
                                   std::uint64_t step) {
  constexpr std::uint64_t row = 64;
  std::vector<std::int64_t> numbers;
  for (std::uint64_t i = 0; i < n; ++i) numbers.push_back(static_cast<std::int64_t>(i * step));
  const device_buffer<std::int64_t> rows(numbers);
  const device_buffer<std::byte> dst(n * row);
  const simt::stream turns;
  row_batch batch(m);
  for (int round = 0; round < 3; ++round) {
    batch.gather(f.ref(), {.row_nbytes = row, .nrows = file_nbytes / row}, rows.get(), n, dst.get(), turns);
    turns.wait();
    ASSERT_EQ(batch.failure().error, 0);
    const auto got = dst.read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], content_byte(device_file_seed, static_cast<std::uint64_t>(numbers[i / row]) * row + i % row)) << i;
    }
  }
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
