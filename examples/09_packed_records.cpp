// SPDX-License-Identifier: Apache-2.0
// Records that straddle pages: histograms of 3 KiB, one after the other. With map_page a kernel would cut each into the parts that
// lie in one page; through a pointer the same code reads them packed, and padded to pages. The host opens the files, and says to
// the kernel which.
#include "example.hpp"

constexpr std::uint32_t nrecords = 300;
constexpr std::uint32_t nbins = 768;

// Each warp takes one query at a time, and finds the record that is least different.
struct find_nearest {
  gpufs::file records;
  std::uint32_t stride;  // bins from one record to the next
  std::uint32_t nqueries;
  const std::uint32_t* queries;
  std::uint32_t* nearest;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto bins = gpufs::map<const std::uint32_t>(warp, records);
    if (bins.error() != 0) *error = bins.error();
    for (std::uint32_t q = gpufs::simt::block_rank(); q < nqueries && bins; q += gpufs::simt::grid_size()) {
      std::uint64_t best = ~std::uint64_t{0};
      for (std::uint32_t id = 0; id < nrecords; ++id) {
        const std::uint64_t found = std::uint64_t{difference(bins + std::int64_t{id} * stride, queries + q * nbins)} << 32 | id;
        best = found < best ? found : best;
      }
      if (warp.leader()) nearest[q] = static_cast<std::uint32_t>(best);
    }
  }

  // Each lane compares four bins at a time, read by one load of 16 bytes where they lie in one page.
  GPUFS_DEVICE static std::uint32_t difference(const gpufs::ptr<const std::uint32_t>& record, const std::uint32_t* query) {
    const auto warp = gpufs::this_warp();
    std::uint32_t sum = 0;
    for (std::uint32_t at = 4 * warp.rank(); at < nbins; at += 4 * warp.size()) {
      const auto four = record.load<gpufs::simt::vec16>(at);
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t mine = four.word[i], theirs = query[at + i];
        sum += mine < theirs ? theirs - mine : mine - theirs;
      }
    }
    return warp.reduce_add(sum);
  }
};

int main() {
  constexpr std::uint32_t nqueries = 4;
  std::vector<std::uint32_t> records(nrecords * nbins);
  for (std::uint32_t i = 0; i < records.size(); ++i) records[i] = i * 2654435761u >> 22;
  std::vector<std::uint32_t> queries, expected;
  for (std::uint32_t q = 0; q < nqueries; ++q) {
    expected.push_back(q * 83 + 20);
    for (std::uint32_t bin = 0; bin < nbins; ++bin) queries.push_back(records[expected[q] * nbins + bin] + bin % 3);
  }

  const example::folder folder;
  std::string packed, padded;
  for (std::uint32_t id = 0; id < nrecords; ++id) {
    const std::string bytes(reinterpret_cast<const char*>(&records[id * nbins]), nbins * 4);
    packed += bytes;
    padded += bytes + std::string(1024, '\0');
  }
  folder.write("packed", packed);
  folder.write("padded", padded);

  gpufs::mount fs(folder.path(), {.cache_nbytes = 128 * 4096, .page_nbytes = 4096});
  const example::device_array<std::uint32_t> device_queries(queries), nearest(nqueries);
  const example::device_array<int> error(1);
  for (const std::string name : {"packed", "padded"}) {
    const gpufs::host_file file(fs, name);  // open until here; one that does not open throws
    const std::uint32_t stride = name == "packed" ? nbins : 1024;
    const std::uint64_t faults = fs.counters().faults;
    gpufs::simt::launch({.grid = nqueries, .block = 32},
                        find_nearest{file.ref(), stride, nqueries, device_queries.get(), nearest.get(), error.get()});
    std::printf("%s: %llu pages were brought in\n", name.c_str(), static_cast<unsigned long long>(fs.counters().faults - faults));
    example::check(error.read_one() == 0 && nearest.read() == expected,
                   name + " records: each query found the record that it was made of");
  }
}
