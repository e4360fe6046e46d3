// SPDX-License-Identifier: Apache-2.0
// A pointer into a file is an iterator: the standard library's lower_bound searches a sorted file larger than the cache. Each
// thread searches for a number of its own, and only the pages that it looks at are brought in.
#include "example.hpp"

// What nvcc calls the standard library's algorithms for device code.
#if !GPUFS_ON_CUDA
#include <algorithm>
namespace algorithms = std;
#elif __has_include(<cuda/std/algorithm>)
#include <cuda/std/algorithm>
namespace algorithms = cuda::std;
#else
#include <cuda/std/detail/libcxx/include/algorithm>  // where CUDA 13.0 has it
namespace algorithms = cuda::std;
#endif

struct search_file {
  gpufs::mount_ref fs;
  std::uint32_t nnumbers;
  const std::uint32_t* wanted;  // by thread
  std::int64_t* found;          // by thread: where the first number that is not smaller stands; or a negative errno

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint32_t me = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const gpufs::file f = gpufs::open(warp, fs, "sorted");
    // The warp maps the file together; from here on each thread's pointers are its own.
    const auto first = gpufs::map<const std::uint32_t>(warp, f, 0, nnumbers);
    if (first.error() == 0) {  // also says so when the file did not open
      const auto last = first + nnumbers;
      const auto at = algorithms::lower_bound(first, last, wanted[me]);
      found[me] = at < last && *at < wanted[me] ? -EBADMSG : at - first;
    } else {
      found[me] = first.error();
    }
    warp.sync();  // all have found theirs: the file must be open as long as pointers into it are used
    gpufs::close(warp, f);
  }
};

int main() {
  constexpr unsigned grid = 4, block = 64, nthreads = grid * block;
  std::vector<std::uint32_t> numbers(1 << 19), wanted(nthreads);
  for (std::uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = 5000 * (i + 1) + i * 2654435761u % 5000;
  for (std::uint32_t i = 0; i < nthreads; ++i) wanted[i] = i % 2 == 0 ? numbers[i * 2048] : i * 2654435761u;
  wanted[1] = 0;
  wanted[3] = ~0u;
  const example::folder folder;
  folder.write("sorted", std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 4));

  // A thread keeps the page that its pointer was used on last, so there should be as many pages as threads that run together.
  gpufs::mount fs(folder.path(), {.cache_nbytes = nthreads * 512, .page_nbytes = 512});
  fs.prepare("sorted");
  const example::device_array<std::uint32_t> device_wanted(wanted);
  const example::device_array<std::int64_t> found(nthreads);
  gpufs::simt::launch({.grid = grid, .block = block},
                      search_file{fs.ref(), static_cast<std::uint32_t>(numbers.size()), device_wanted.get(), found.get()});

  const std::vector<std::int64_t> host_found = found.read();
  bool right = true;
  for (std::uint32_t i = 0; i < nthreads; ++i) {
    right = right && host_found[i] == std::lower_bound(numbers.begin(), numbers.end(), wanted[i]) - numbers.begin();
  }
  const gpufs::mount_counters counters = fs.counters();
  std::printf("%llu pages of 4096 were brought in\n", static_cast<unsigned long long>(counters.faults));
  example::check(right, "256 threads found what they searched for in 2 MiB of sorted numbers");
  example::check(counters.pinned_frames == 0, "the pointers are gone, and no page is held");
}
