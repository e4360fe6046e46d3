// SPDX-License-Identifier: Apache-2.0
// Records of a file that pass a test go to another file, each block's by one append: a compaction finds the places, so no lane
// takes a lock and none leaves a gap.
#include <fstream>

#include "example.hpp"
#include "gpufs/par/compact.hpp"

struct record {
  std::uint32_t id, value;
};
constexpr std::uint64_t at_once = 1024;  // records that a block reads and filters at a time
constexpr unsigned nblocks = 6;

struct is_large {
  GPUFS_DEVICE bool operator()(const record& r) const { return r.value > 3'000'000'000u; }
};

struct filter {
  gpufs::file in, out;
  record* workspace;     // of each block: at_once that it has read, and as many that it keeps
  std::int64_t* result;  // of each block: how many it kept, or a negative errno

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const std::uint32_t me = gpufs::simt::block_rank();
    record* const read = workspace + 2 * at_once * me;
    record* const kept = read + at_once;
    const std::int64_t file_nbytes = gpufs::fstat(block, in).nbytes;
    std::int64_t total = 0;
    for (std::uint64_t first = me * at_once;; first += gpufs::simt::grid_size() * at_once) {
      const auto offset = static_cast<std::int64_t>(first * sizeof(record));
      if (offset >= file_nbytes) break;
      std::int64_t n = gpufs::pread(block, in, read, at_once * sizeof(record), offset);
      block.sync();  // what other lanes have read
      if (n > 0) {
        const std::uint64_t nkept =
            gpufs::par::compact(block, read, kept, static_cast<std::uint64_t>(n) / sizeof(record), is_large{});
        block.sync();
        n = gpufs::append(block, out, kept, nkept * sizeof(record));
        total += static_cast<std::int64_t>(nkept);
      }
      if (n < 0) {  // the same for all lanes
        total = n;
        break;
      }
    }
    if (block.leader()) result[me] = total;
  }
};

int main() {
  const example::folder folder;
  std::vector<record> all(50'001);
  std::vector<bool> is_wanted(all.size());
  std::int64_t nwanted = 0;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    all[i] = {i, i * 2654435761u};
    is_wanted[i] = all[i].value > 3'000'000'000u;
    nwanted += is_wanted[i] ? 1 : 0;
  }
  folder.write("records", std::string(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(record)));

  std::int64_t total = 0;
  {
    const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20, .writable = true});
    const gpufs::host_file in(fs, "records");
    gpufs::host_file out(fs, "large", O_WRONLY | O_CREAT);
    const example::device_array<record> workspace(2 * at_once * nblocks);
    const example::device_array<std::int64_t> result(nblocks);
    gpufs::simt::launch<128, 4>({.grid = nblocks, .block = 128}, filter{in.ref(), out.ref(), workspace.get(), result.get()});
    for (const std::int64_t n : result.read()) {
      example::check(n >= 0, "a block read, filtered and appended");
      total += n;
    }
    out.close();  // what was appended is in the file, or this throws
  }
  std::ifstream file(folder.path() + "/large", std::ios::binary);
  std::int64_t n = 0;
  bool right = true;
  for (record r{}; file.read(reinterpret_cast<char*>(&r), sizeof r); ++n) {
    right = right && r.id < all.size() && is_wanted[r.id] && r.value == all[r.id].value;
    if (right) is_wanted[r.id] = false;  // each once
  }
  example::check(n == nwanted && total == nwanted, "as many as there are");
  example::check(right, "each of them once");
}
