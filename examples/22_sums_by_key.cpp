// SPDX-License-Identifier: Apache-2.0
// Sums by key over a file of sales, by all blocks of one kernel: they read the file, sort its records by shop, add up each shop's
// amounts, and keep each shop's last sum.
#include "example.hpp"
#include "gpufs/par/compact.hpp"
#include "gpufs/par/sort.hpp"

struct sale {
  std::uint32_t shop, amount;
};
struct total {
  std::uint32_t shop, is_last;
  std::uint64_t sum;
};

struct is_last {
  GPUFS_DEVICE bool operator()(const total& t) const { return t.is_last != 0; }
};

struct add_up {
  gpufs::file sales;
  std::uint64_t n;
  sale* records;
  std::uint32_t *shops, *shops_space;
  std::uint64_t *amounts, *amounts_space;  // amounts_space has the sums afterwards
  total *totals, *of_shops;
  gpufs::par::scan_space space;
  std::int64_t* result;  // of each block: how many shops there are, or a negative errno

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const gpufs::simt::grid grid = gpufs::simt::this_grid();
    // Each block reads a share.
    const std::uint64_t share = (n + gpufs::simt::grid_size() - 1) / gpufs::simt::grid_size();
    const std::uint64_t begin = share * gpufs::simt::block_rank() < n ? share * gpufs::simt::block_rank() : n;
    const std::uint64_t end = begin + share < n ? begin + share : n;
    const std::int64_t got =
        gpufs::pread(block, sales, records + begin, (end - begin) * sizeof(sale), static_cast<std::int64_t>(begin * sizeof(sale)));
    const bool has_read = got == static_cast<std::int64_t>((end - begin) * sizeof(sale));
    block.sync();  // what other lanes have read
    for (std::uint64_t i = begin + block.rank(); i < end; i += block.size()) {
      shops[i] = records[i].shop;
      amounts[i] = records[i].amount;
    }
    // All blocks together: what one has written before, all see.
    int error = gpufs::par::sort(grid, shops, amounts, n, shops_space, amounts_space, space);
    const auto summed = gpufs::par::inclusive_segmented_scan(grid, amounts, gpufs::par::heads_by_keys<std::uint32_t>{shops},
                                                             amounts_space, n, gpufs::par::plus<std::uint64_t>{}, space);
    for (std::uint64_t i = grid.rank(); i < n; i += grid.size()) {
      totals[i] = {shops[i], i + 1 == n || shops[i + 1] != shops[i], amounts_space[i]};
    }
    const auto kept = gpufs::par::compact(grid, totals, of_shops, n, is_last{}, space);
    for (const int e : {summed.error, kept.error, has_read ? 0 : -EIO}) error = e != 0 ? e : error;
    if (block.leader()) result[gpufs::simt::block_rank()] = error != 0 ? error : static_cast<std::int64_t>(kept.all);
  }
};

int main() {
  constexpr std::uint64_t n = 20'000;
  constexpr std::uint32_t nshops = 300;
  constexpr unsigned nblocks = 4, nthreads = 128;
  const example::folder folder;
  std::vector<sale> all(n);
  std::vector<std::uint64_t> sums(nshops);
  for (std::uint32_t i = 0; i < n; ++i) {
    all[i] = {(i * 2654435761u >> 9) % nshops, i % 1000};
    sums[all[i].shop] += all[i].amount;
  }
  folder.write("sales", std::string(reinterpret_cast<const char*>(all.data()), n * sizeof(sale)));

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20});
  const gpufs::host_file sales(fs, "sales");
  // One space for all three calls: as large as the one that wants most.
  using gpufs::par::scan_space;
  std::uint64_t nbytes = scan_space::nbytes_to_sort(nblocks);
  for (const std::uint64_t needed :
       {scan_space::nbytes_for<std::uint64_t>(n, nblocks, nthreads), scan_space::nbytes_for<total>(n, nblocks, nthreads)}) {
    nbytes = needed > nbytes ? needed : nbytes;
  }
  const example::device_array<std::byte> space(nbytes);
  const example::device_array<sale> records(n);
  const example::device_array<std::uint32_t> shops(n), shops_space(n);
  const example::device_array<std::uint64_t> amounts(n), amounts_space(n);
  const example::device_array<total> totals(n), of_shops(n);
  const example::device_array<std::int64_t> result(nblocks);
  // Cooperative: all blocks run at once, so that they may wait for each other.
  gpufs::simt::launch<nthreads, 4>({.grid = nblocks, .block = nthreads, .cooperative = true}, add_up{sales.ref(),
                                                                                                     n,
                                                                                                     records.get(),
                                                                                                     shops.get(),
                                                                                                     shops_space.get(),
                                                                                                     amounts.get(),
                                                                                                     amounts_space.get(),
                                                                                                     totals.get(),
                                                                                                     of_shops.get(),
                                                                                                     {space.get(), nbytes},
                                                                                                     result.get()});

  for (const std::int64_t found : result.read()) example::check(found == nshops, "a block knows how many shops there are");
  const std::vector<total> got = of_shops.read();
  bool right = true;
  for (std::uint32_t shop = 0; shop < nshops; ++shop) right = right && got[shop].shop == shop && got[shop].sum == sums[shop];
  example::check(right, "each shop has its sum");
}
