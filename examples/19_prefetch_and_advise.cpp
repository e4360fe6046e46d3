// SPDX-License-Identifier: Apache-2.0
// What is known beforehand is said beforehand. The first kernel reads records by a list: it prefetches the page of the eighth
// record after the one that it reads, so that the store's answers come while it works. The second goes through the file in order,
// and says so (advise), and that it will not come back: what it has read makes room first. For files that host threads read.
#include "example.hpp"

constexpr std::uint32_t page_nbytes = 4096, npages = 1024, nframes = 256, record_nbytes = 64, ahead = 8;
constexpr std::uint32_t nrecords = npages * (page_nbytes / record_nbytes);
constexpr unsigned grid = 2, block = 64, nwarps = grid * block / 32;

struct read_by_list {
  gpufs::mount_ref fs;
  const std::uint32_t* list;
  std::uint32_t n;
  std::uint32_t* records;  // one a warp
  std::uint64_t* sums;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto me = static_cast<std::uint32_t>(gpufs::simt::global_warp_rank());
    const gpufs::file f = gpufs::open(warp, fs, "records");
    std::uint32_t* const record = records + me * (record_nbytes / 4);
    std::uint64_t sum = 0;
    for (std::uint32_t i = me; i < n; i += nwarps) {
      const std::uint32_t later = i + ahead * nwarps;
      if (later < n) gpufs::prefetch(warp, f, std::int64_t{list[later]} * record_nbytes, record_nbytes);  // returns at once
      const std::int64_t got = gpufs::pread(warp, f, record, record_nbytes, std::int64_t{list[i]} * record_nbytes);
      if (got != record_nbytes && warp.leader()) *error = got < 0 ? static_cast<int>(got) : -EIO;
      sum += record[0];
      warp.sync();  // all have read it before the next one goes to its place
    }
    if (warp.leader()) sums[me] = sum;
    gpufs::close(warp, f);
  }
};

struct read_in_order {
  gpufs::mount_ref fs;
  std::uint32_t* pages;  // one a block
  std::uint64_t* sums;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto group = gpufs::this_block();
    const gpufs::file f = gpufs::open(group, fs, "records");
    int told = gpufs::advise(group, f, 0, 0, gpufs::advice::sequential);
    std::uint32_t* const page = pages + gpufs::simt::block_rank() * (page_nbytes / 4);
    const std::uint32_t share = npages / gpufs::simt::grid_size(), first = gpufs::simt::block_rank() * share;
    std::uint64_t sum = 0;
    for (std::uint32_t p = first; p < first + share; ++p) {
      const std::int64_t offset = std::int64_t{p} * page_nbytes;
      const std::int64_t got = gpufs::pread(group, f, page, page_nbytes, offset);
      if (got != page_nbytes && group.leader()) *error = got < 0 ? static_cast<int>(got) : -EIO;
      std::uint64_t part = 0;
      for (std::uint32_t i = group.rank(); i < page_nbytes / record_nbytes; i += group.size())
        part += page[i * (record_nbytes / 4)];
      sum += group.reduce_add(part);  // here all lanes have read the page, so the next one may take its place
      if (told == 0) told = gpufs::advise(group, f, offset, page_nbytes, gpufs::advice::dontneed);
    }
    if (group.leader()) {
      sums[gpufs::simt::block_rank()] = sum;
      if (told != 0) *error = told;
    }
    gpufs::close(group, f);
  }
};

std::uint32_t value_of(std::uint32_t record) { return record * 2654435761u; }

int main() {
  std::string bytes(std::size_t{nrecords} * record_nbytes, '\0');
  auto* const words = reinterpret_cast<std::uint32_t*>(bytes.data());
  std::uint64_t expected_of_all = 0;
  for (std::uint32_t r = 0; r < nrecords; ++r) expected_of_all += words[r * (record_nbytes / 4)] = value_of(r);
  std::vector<std::uint32_t> list(4000);
  std::uint64_t expected = 0;
  for (std::uint32_t i = 0; i < list.size(); ++i) expected += value_of(list[i] = (i * 7919u + 13) % nrecords);
  const example::folder folder;
  folder.write("records", bytes);

  const gpufs::mount fs(folder.path(), {.cache_nbytes = nframes * page_nbytes, .store = gpufs::store_kind::posix});
  // Open for both kernels: what the first has read, the second finds. (Opened anew, a file that was written just now is another
  // version.)
  const gpufs::host_file stays_open(fs, "records");
  const example::device_array<std::uint32_t> numbers(list), records(nwarps * record_nbytes / 4), pages(grid * page_nbytes / 4);
  const example::device_array<std::uint64_t> sums(nwarps), sums_in_order(grid);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = grid, .block = block}, read_by_list{fs.ref(), numbers.get(), static_cast<std::uint32_t>(list.size()),
                                                                   records.get(), sums.get(), error.get()});
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums.read()) sum += s;
  example::check(error.read_one() == 0 && sum == expected, "the records of the list were read");
  const gpufs::mount_counters of_list = fs.counters();
  example::check(of_list.waits != 0, "pages were on their way before they were wanted");

  gpufs::simt::launch({.grid = grid, .block = block}, read_in_order{fs.ref(), pages.get(), sums_in_order.get(), error.get()});
  sum = 0;
  for (const std::uint64_t s : sums_in_order.read()) sum += s;
  example::check(error.read_one() == 0 && sum == expected_of_all, "the whole file was read in order");
  const gpufs::mount_counters counters = fs.counters();
  std::printf("%llu of the %u pages came for the second kernel; %llu of %u frames are free\n",
              static_cast<unsigned long long>(counters.faults - of_list.faults), npages,
              static_cast<unsigned long long>(counters.free_frames), nframes);
  example::check(counters.free_frames > nframes / 2, "what was read in order has made room");
  example::check(counters.pinned_frames == 0, "no page is held");
}
