// SPDX-License-Identifier: Apache-2.0
// Rows of a file, thousands at once, in any order: the host asks, a stream does it. Then some are changed and written back.
#include "gpufs/par/row_batch.hpp"

#include <fstream>
#include <iterator>

#include "example.hpp"

constexpr std::uint64_t nrows = 5000, row_nfloats = 24;

// Which vector has the largest sum? A kernel that works on what was gathered.
struct add_up {
  const float* rows;
  std::uint64_t n;
  float* sums;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t i = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    if (i >= n) return;
    float sum = 0;
    for (std::uint64_t k = 0; k < row_nfloats; ++k) sum += rows[i * row_nfloats + k];
    sums[i] = sum;
  }
};

int main() {
  const example::folder folder;
  std::vector<float> vectors(nrows * row_nfloats);
  for (std::size_t i = 0; i < vectors.size(); ++i) vectors[i] = static_cast<float>(i % 1000);
  folder.write("vectors", std::string(reinterpret_cast<const char*>(vectors.data()), vectors.size() * sizeof(float)));

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20, .writable = true});
  const gpufs::row_layout layout{.row_nbytes = row_nfloats * sizeof(float), .nrows = nrows};
  std::vector<std::int32_t> wanted(1000);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::int32_t>(i * 7919 % nrows);
  const example::device_array<std::int32_t> numbers{std::span<const std::int32_t>(wanted)};
  const example::device_array<float> rows(wanted.size() * row_nfloats), sums(wanted.size());

  const gpufs::simt::stream turns;
  gpufs::row_batch batch(fs);
  {
    const gpufs::host_file file(fs, "vectors");
    batch.gather(file.ref(), layout, numbers.get(), wanted.size(), rows.get(), turns);
    gpufs::simt::launch({.grid = 8, .block = 128}, add_up{rows.get(), wanted.size(), sums.get()}, turns);
    turns.wait();
    example::check(batch.failure().error == 0, "all rows were read");
  }
  const std::vector<float> got = sums.read();
  bool right = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    float sum = 0;
    for (std::uint64_t k = 0; k < row_nfloats; ++k) sum += vectors[static_cast<std::uint64_t>(wanted[i]) * row_nfloats + k];
    right &= got[i] == sum;
  }
  example::check(right, "the sums are those of the rows that were asked for");

  gpufs::host_file file(fs, "vectors", O_RDWR);
  const example::device_array<float> zeros(wanted.size() * row_nfloats);
  batch.scatter(file.ref(), layout, numbers.get(), wanted.size(), zeros.get(), turns);
  turns.wait();
  example::check(batch.failure().error == 0, "all rows were written");
  file.close();
  std::ifstream in(folder.path() + "/vectors", std::ios::binary);
  const std::string now{std::istreambuf_iterator<char>(in), {}};
  for (const std::int32_t row : wanted) {
    const std::string bytes = now.substr(static_cast<std::size_t>(row) * layout.row_nbytes, layout.row_nbytes);
    right &= bytes == std::string(layout.row_nbytes, '\0');
  }
  example::check(right, "and the file has them");
}
