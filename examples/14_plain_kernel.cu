// SPDX-License-Identifier: Apache-2.0
// A plain __global__ function, launched with <<<...>>> on a stream of the program's own: CUDA only. A kernel needs no more than
// fs.ref(), by value; simt::launch is there so that one source runs on the CPU machine, too.
//
// What the host may do meanwhile: look at the mount (counters(), log(), open_files()), launch other kernels, copy with
// cudaMemcpyAsync from and to pinned memory on other streams, and wait for streams and events. What it should not do while a kernel
// opens files, in any thread: calls that wait for all of the device, such as cudaFree, cudaFreeHost, cudaHostUnregister, and
// cudaMemcpy, which also waits for kernels on blocking streams (so the stream here is made with cudaStreamNonBlocking). An open may
// need CUDA to register the file's mapping, and CUDA does not before such a call has returned, which is when the kernel has ended:
// the open takes 2 s then, and the file is read by host threads. Nothing is lost but time. fs.prepare() before the launch, or
// store_kind::posix, does without. More than 1,024 files open at once need memory that CUDA does not give meanwhile, either:
// reserve it (mount_options::reserved_open_files). The mount, and what the kernel's arguments point to, must stay until the kernel
// has ended.
#include <cuda_runtime.h>

#include "example.hpp"

constexpr int nthreads = 128;

// Each warp counts the lines of every so many-th page.
__global__ void __launch_bounds__(nthreads) count_lines(gpufs::mount_ref fs, std::uint32_t* nlines, int* error) {
  const auto warp = gpufs::this_warp();
  const gpufs::file f = gpufs::open(warp, fs, "text");
  const gpufs::file_status status = gpufs::fstat(warp, f);
  int wrong = status.error;
  std::uint32_t mine = 0;
  const auto step = static_cast<std::int64_t>(gpufs::simt::global_warp_count()) * 4096;
  for (auto at = static_cast<std::int64_t>(gpufs::simt::global_warp_rank()) * 4096; at < status.nbytes && wrong == 0; at += step) {
    gpufs::mapped_page p = gpufs::map_page(warp, f, at);
    wrong = p.error();
    if (wrong != 0) break;
    for (std::uint32_t i = warp.rank(); i < p.nbytes(); i += warp.size()) mine += p.data()[i] == std::byte{'\n'};
    gpufs::unmap_page(warp, std::move(p));
  }
  gpufs::close(warp, f);
  if (wrong != 0) *error = wrong;
  // Once for each block, not for each thread.
  const std::uint32_t of_block = gpufs::this_block().reduce_add(mine);
  if (threadIdx.x == 0) atomicAdd(nlines, of_block);
}

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

int main() {
  const example::folder folder;
  std::string text;
  std::uint32_t expected = 0;
  for (int i = 0; text.size() < 1 << 20; ++i, ++expected) text += std::string(static_cast<std::size_t>(i % 97), 'x') + "\n";
  folder.write("text", text);

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 18});
  const example::device_array<std::uint32_t> nlines(1);
  const example::device_array<int> error(1);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  count_lines<<<8, nthreads, 0, stream>>>(fs.ref(), nlines.get(), error.get());
  check_cuda(cudaGetLastError());
  unsigned long long looks = 0;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) looks += fs.counters().opens != 0;  // the host goes on
  check_cuda(cudaStreamSynchronize(stream));
  check_cuda(cudaStreamDestroy(stream));

  const std::uint32_t counted = nlines.read_one();
  std::printf("%u lines; the host looked at the mount %llu times while the kernel had it open\n", counted, looks);
  example::check(error.read_one() == 0 && counted == expected, "all lines of the file");
}
