// SPDX-License-Identifier: Apache-2.0
// Data-dependent access: each warp follows a chain of files, and learns from one which to open next. No host code could have
// planned the transfers. Opening a path that is open already costs no call to the host.
#include "example.hpp"

constexpr int nfiles = 500;
constexpr int nsteps = 20;
constexpr unsigned block = 64;

// What a group's calls read or write is memory of all its lanes: global or shared, not a lane's own variable.
struct block_paths {
  char of_warp[block / 32][16];
};

struct follow_chains {
  gpufs::mount_ref fs;
  int* last;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto chain = gpufs::simt::global_warp_rank();
    auto& path = gpufs::simt::shared<block_paths>().of_warp[gpufs::simt::warp_rank()];
    int here = static_cast<int>(chain) % nfiles;
    for (int step = 0; step < nsteps; ++step) {
      // One that does not fit would be empty, and not open.
      if (warp.leader()) gpufs::format_path(path, "node-", gpufs::padded(here, 3));
      warp.sync();  // what a lane has written there is synced before the call
      const gpufs::file f = gpufs::open(warp, fs, path);
      gpufs::mapped_page p = gpufs::map_page(warp, f, 0);  // of a file that did not open: its error
      if (p.error() != 0) {
        *error = f.error() != 0 ? f.error() : p.error();
        return;
      }
      here = *reinterpret_cast<const int*>(p.data());
      gpufs::unmap_page(warp, std::move(p));
      gpufs::close(warp, f);
    }
    if (warp.leader()) last[chain] = here;
  }
};

int next_of(int node) { return (node * 137 + 71) % nfiles; }

int main() {
  const example::folder folder;
  for (int i = 0; i < nfiles; ++i) {
    char name[16];
    gpufs::format_path(name, "node-", gpufs::padded(i, 3));
    const int next = next_of(i);
    folder.write(name, std::string(reinterpret_cast<const char*>(&next), sizeof next));
  }

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20});
  constexpr unsigned grid = 8, nchains = grid * block / 32;
  const example::device_array<int> last(nchains);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = grid, .block = block}, follow_chains{fs.ref(), last.get(), error.get()});

  example::check(error.read_one() == 0, "every file of every chain opened");
  bool right = true;
  const std::vector<int> ends = last.read();
  for (unsigned chain = 0; chain < nchains; ++chain) {
    int here = static_cast<int>(chain) % nfiles;
    for (int step = 0; step < nsteps; ++step) here = next_of(here);
    right = right && ends[chain] == here;
  }
  const gpufs::mount_counters counters = fs.counters();
  std::printf("%llu opens in kernels, %llu of them asked the host\n", static_cast<unsigned long long>(counters.opens),
              static_cast<unsigned long long>(counters.host_opens));
  example::check(right, "16 chains of 20 files end where they should");
}
