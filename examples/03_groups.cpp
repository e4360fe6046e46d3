// SPDX-License-Identifier: Apache-2.0
// Who calls? One thread by itself, eight lanes, a warp, or a whole block: the same calls, the group named first. All threads
// of the group make the call together and get the same answer.
#include "example.hpp"

// Every group reads a record of its own; a larger group has more hands for a larger record.
template <class MakeGroup>
struct read_records {
  gpufs::mount_ref fs;
  char* records;
  std::int64_t record_nbytes;
  int* nwrong;

  GPUFS_DEVICE void operator()() const {
    const auto group = MakeGroup::make();
    const std::int64_t my_thread = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::int64_t my_record = my_thread / group.size();
    const gpufs::file f = gpufs::open(group, fs, "records");
    const std::int64_t at = my_record * record_nbytes;
    const std::int64_t n = gpufs::pread(group, f, records + at, record_nbytes, at);
    if (n != record_nbytes && group.leader()) {
      gpufs::simt::atomic_ref<int>(*nwrong).fetch_add(1, std::memory_order_relaxed);
    }
    gpufs::close(group, f);
  }
};

struct thread_group {
  GPUFS_DEVICE static auto make() { return gpufs::this_thread(); }
};
struct eight_lanes {
  GPUFS_DEVICE static auto make() { return gpufs::this_tile<8>(); }
};
struct warp_group {
  GPUFS_DEVICE static auto make() { return gpufs::this_warp(); }
};
struct block_group {
  GPUFS_DEVICE static auto make() { return gpufs::this_block(); }
};

template <class MakeGroup>
void run(const gpufs::mount& fs, const std::string& bytes, std::int64_t lanes, const char* who) {
  constexpr std::int64_t nthreads = 256;
  const std::int64_t record_nbytes = static_cast<std::int64_t>(bytes.size()) * lanes / nthreads;
  const example::device_array<char> records(bytes.size());
  const example::device_array<int> nwrong(1);
  gpufs::simt::launch({.grid = 2, .block = 128}, read_records<MakeGroup>{fs.ref(), records.get(), record_nbytes, nwrong.get()});
  const bool right = nwrong.read_one() == 0 && std::string(records.read().data(), bytes.size()) == bytes;
  example::check(right,
                 std::to_string(nthreads / lanes) + " records of " + std::to_string(record_nbytes) + " bytes, each read by " + who);
}

int main() {
  const example::folder folder;
  std::string bytes;
  for (int i = 0; i < 1 << 17; ++i) bytes += static_cast<char>(i * 31 + i / 4096);
  folder.write("records", bytes);

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 18});
  run<thread_group>(fs, bytes, 1, "one thread");
  run<eight_lanes>(fs, bytes, 8, "eight lanes");
  run<warp_group>(fs, bytes, 32, "a warp");
  run<block_group>(fs, bytes, 128, "a block");
}
