// SPDX-License-Identifier: Apache-2.0
// Arrays in files: Listing 1 of the BaM paper (ASPLOS'23), with its type's name changed and no more. The kernel gathers elements by
// an index that is a file, too, and writes what it finds to a third; none of them need fit into the GPU's memory. Host code opens
// the files and makes the arrays, which kernels take by value: with <<<...>>> as well, where the program is for CUDA alone.
#include "example.hpp"

// As in the paper, but for what is elided there ("size_t tid = ...") and __global__, which CUDA alone has. (A step of
// `blockIdx.x * blockDim.x`, as printed, is 0 in the first block; meant is the grid's.)
GPUFS_DEVICE void kernel(gpufs::array<float> data, std::size_t n, gpufs::array<float> out, gpufs::array<int> randidx) {
  std::size_t tid = std::size_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
  for (; tid < n; tid += std::size_t{gpufs::simt::grid_size()} * gpufs::simt::block_size()) out[tid] = data[randidx[tid]];
}

struct listing_1 {
  gpufs::array<float> data;
  std::size_t n;
  gpufs::array<float> out;
  gpufs::array<int> randidx;
  GPUFS_DEVICE void operator()() const { kernel(data, n, out, randidx); }
};

// What came out, added up: a loop over a file, each thread from its own place on.
struct add_up {
  gpufs::array<const float> out;
  double* sums;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    double sum = 0;
    for (const float x : out.every(gpufs::simt::grid_size() * gpufs::simt::block_size(), me)) sum += x;
    sums[me] = sum;
  }
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

int main() {
  constexpr std::size_t n = 20000;
  std::vector<float> data(n), expected(n);
  std::vector<int> randidx(n);
  for (std::size_t i = 0; i < n; ++i) {
    data[i] = static_cast<float>(i) * 0.5f;
    randidx[i] = static_cast<int>(i * 2654435761u % n);
  }
  double expected_sum = 0;
  for (std::size_t i = 0; i < n; ++i) expected_sum += expected[i] = data[static_cast<std::size_t>(randidx[i])];
  const example::folder folder;
  folder.write("data", bytes_of(data));
  folder.write("randidx", bytes_of(randidx));
  folder.write("out", std::string(n * sizeof(float), '\0'));

  constexpr unsigned grid = 4, block = 64;
  double sum = 0;
  {
    gpufs::mount fs(folder.path(), {.cache_nbytes = 64 << 10, .page_nbytes = 512, .writable = true});  // a quarter of the files
    const gpufs::host_file data_file(fs, "data"), index_file(fs, "randidx");
    gpufs::host_file out_file(fs, "out", O_RDWR);
    const auto out = gpufs::map_array<float>(out_file);
    // Launch bounds: the slow paths would else take registers from all of the kernel.
    gpufs::simt::launch<block, 8>({.grid = grid, .block = block},
                                  listing_1{gpufs::map_array<float>(data_file), n, out, gpufs::map_array<int>(index_file)});
    const example::device_array<double> sums(std::size_t{grid} * block);
    gpufs::simt::launch<block, 8>({.grid = grid, .block = block}, add_up{out, sums.get()});
    for (const double s : sums.read()) sum += s;
    example::check(fs.counters().fault_errors == 0, "no access failed");
    out_file.close();  // throws if what was written has not reached the file
  }
  std::vector<float> found(n);
  std::ifstream(folder.path() + "/out", std::ios::binary).read(reinterpret_cast<char*>(found.data()), n * sizeof(float));
  example::check(found == expected, "the file has what a loop over memory gives");
  example::check(sum == expected_sum, "and so has the sum over it");
}
