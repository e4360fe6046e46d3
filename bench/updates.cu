// SPDX-License-Identifier: Apache-2.0
// Updates without a link: every thread adds to random 4-byte elements of a cached file.
//
// ap_add_spread: anywhere in 1 GiB. ap_add_six_pages: in six pages, where lanes meet on pages and sometimes on elements. Beside
// each the same adds to device memory by the hardware's atomic instruction, which no file system can pass. The file begins as
// zeros; what it has after close is summed up, and must be the number of adds. A first run, which is not measured, makes the
// pages dirty, and they go back to the file after the last one: neither is in the figures.
#include <fstream>

#include "access.hpp"

namespace {

using namespace bench;

struct add_to_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const gpufs::file file(fs, number);
    const auto counts = gpufs::map<std::uint32_t>(gpufs::this_warp(), file);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      gpufs::fetch_add_at(counts, static_cast<std::ptrdiff_t>(element_of(me * per_thread + i, seed, nelements)), 1u);
    }
    if (counts.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

struct add_to_memory {
  std::uint32_t* counts;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      atomic_ref<std::uint32_t>(counts[element_of(me * per_thread + i, seed, nelements)]).add_relaxed(1);
    }
  }
};

constexpr std::uint32_t page_nbytes = 4096;

std::uint64_t sum_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint32_t> words(1 << 20);
  std::uint64_t sum = 0;
  while (file) {
    file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * 4));
    for (std::size_t i = 0; i < static_cast<std::size_t>(file.gcount()) / 4; ++i) sum += words[i];
  }
  return sum;
}

void measure(const char* name, const char* label, std::uint64_t nelements, std::uint64_t nbytes, const std::string& folder,
             const shape& how, double nadds, int repeats, results& out) {
  const auto per_thread = static_cast<std::uint32_t>(std::ceil(nadds / static_cast<double>(how.threads())));
  const auto total = static_cast<double>(how.threads() * per_thread);
  const auto seed_of = [](int r) { return word_of(static_cast<std::uint64_t>(r) + 3000); };
  measurement memory{std::string(name) + "_memory", "the same adds to device memory", {}, "G adds/s"};
  memory.figure = measurement::kind::itself;
  {
    const device_array<std::uint32_t> counts(nbytes / 4);
    for (int r = 0; r <= repeats; ++r) {
      const double seconds = run(how, add_to_memory{counts.get(), nelements, seed_of(r), per_thread});
      if (r > 0) memory.samples.push_back(total / seconds * 1e-9);
    }
    std::uint64_t sum = 0;
    for (const std::uint32_t n : counts.read()) sum += n;
    memory.verified = sum == how.threads() * per_thread * static_cast<std::uint64_t>(repeats + 1);
  }
  out.add(memory);

  const std::string path = folder + "/counts";
  {
    std::ofstream file(path, std::ios::binary);
    const std::vector<char> zeros(1 << 20);
    for (std::uint64_t done = 0; done < nbytes; done += zeros.size())
      file.write(zeros.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(zeros.size(), nbytes - done)));
  }
  measurement m{name, label, {}, "G adds/s"};
  m.figure = measurement::kind::itself;
  m.verified = true;
  {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = 2 * nbytes + nbytes / 4 + 64 * page_nbytes;  // all of it may be dirty
    options.page_nbytes = page_nbytes;
    options.pin_nbytes = nbytes + (1u << 30);
    options.dirty_nbytes = options.cache_nbytes / 2;
    options.writable = true;
    const gpufs::mount fs(folder, options);
    host_file file(fs, "counts", O_RDWR);
    fill_cache(fs, file.ref().number(), how, nbytes, 0);
    const gpufs::mount_counters before = fs.counters();
    const device_array<std::uint64_t> failed(1);
    for (int r = 0; r <= repeats; ++r) {
      const double seconds = run(how, add_to_file{fs.ref(), file.ref().number(), nelements, seed_of(r), per_thread, failed.get()});
      if (r > 0) m.samples.push_back(total / seconds * 1e-9);
    }
    m.verified = failed.read()[0] == 0;
    add_hits(m, before, fs.counters());
    m.details.emplace_back("share of memory's", spread_of(m.samples).median / spread_of(memory.samples).median);
    file.close();
  }
  m.verified = m.verified && sum_of_file(path) == how.threads() * per_thread * static_cast<std::uint64_t>(repeats + 1);
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("updates", [&] {
    arguments args(argc, argv, "updates  --dir DIR  --file-gib N  --blocks-per-sm N  --warps N  --adds N  --repeats N", on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {1, 0.25, 1. / 1024}) / page_nbytes * page_nbytes;
    const shape how = grid_of(machine, args);
    const double nadds = args.number("adds", {2e9, 1e8, 2048});
    const int repeats = repeats_of(args);
    results out("updates", args, machine);
    if (args.wants("ap_add_spread"))
      measure("ap_add_spread", "a random element a thread", nbytes / 4, nbytes, folder.path(), how, nadds, repeats, out);
    if (args.wants("ap_add_six_pages"))
      measure("ap_add_six_pages", "a random element of six pages", 6 * page_nbytes / 4, nbytes, folder.path(), how, nadds / 8,
              repeats, out);
    args.done();
    return out.finish();
  });
}
