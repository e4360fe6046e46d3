// SPDX-License-Identifier: Apache-2.0
// What host threads serve, against the same number of host threads that do nothing else.
//
// staged_4k: random 4 KiB misses of a file that the store may not map, with 1, 4 and 16 workers; against as many threads that
// pread random 4 KiB of the same file into pinned memory. Only pages that missed count.
// staged_read: warps read 1 MiB at random places in one pread each, with 16 workers; against the lesser of those threads alone, and
// of a kernel that pulls such pieces from pinned memory.
// staged_latency: a store answers each read after 100 us, as an NVMe does, however many there are, and no thread waits for it. A
// warp reads 64 pages in one pread; against the time of one page, and what the same warp takes to pull 64 pages from pinned memory.
// small_open: warps open, read whole and close files of 4 KiB, each by one warp; against as many threads, as the mount has
// workers, doing openat, fstat, pread, close. The cache is smaller than the files together, so that every launch reads all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "access.hpp"
#include "late_store.hpp"
#include "pread_alone.hpp"

namespace {

using namespace bench;

struct settings {
  settings(arguments& args, const machine_facts& machine)
      : how(grid_of(machine, args)),
        repeats(repeats_of(args)),
        dir(args.path("dir", "/dev/shm")),
        file_nbytes(args.nbytes("file-gib", {8, 0.5, 4. / 1024}) / 4096 * 4096),
        cache_nbytes(args.nbytes("cache-gib", {0.25, 1. / 16, 1. / 1024})),
        // About 0.2 s: a thread reads up to 0.7 M pages a second.
        reads_per_thread(args.number("reads-per-thread", {1e5, 2e4, 64})),
        nfiles(static_cast<std::uint32_t>(args.number("files", {50000, 5000, 200}))) {}
  shape how;
  int repeats;
  std::string dir;
  std::uint64_t file_nbytes, cache_nbytes;
  double reads_per_thread;
  std::uint32_t nfiles;
};

// --- staged_4k -----------------------------------------------------------------------------------------------------------------

void staged_4k(const settings& set, results& out) {
  const work_folder folder(set.dir);
  const std::uint64_t nbytes = set.file_nbytes;
  const std::string path = folder.path() + "/data";
  make_file(path, nbytes);
  const int repeats = set.repeats;
  for (const unsigned workers : {1u, 4u, 16u}) {
    if (workers > host_threads()) {
      out.note("staged_4k with " + std::to_string(workers) + " workers: left out, the host has " + std::to_string(host_threads()) +
               " threads");
      continue;
    }
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = set.cache_nbytes;
    options.store = gpufs::store_kind::posix;
    options.nworkers = workers;
    const gpufs::mount fs(folder.path(), options);
    fs.prepare("data");
    const host_file file(fs, "data");
    const double each = set.reads_per_thread;
    bool right = true;
    std::vector<double> alone;
    for (int r = 0; r < repeats; ++r) {
      alone.push_back(pread_alone(path, nbytes, workers, static_cast<std::uint32_t>(each),
                                  word_of(4000 + static_cast<std::uint64_t>(r)), &right));
    }
    const spread ceiling = spread_of(alone);
    const std::string who = std::to_string(workers) + (workers == 1 ? " thread" : " threads");
    out.ceiling("pread of random 4 KiB, " + who, "M pages/s",
                {ceiling.median * 1e-6, ceiling.low * 1e-6, ceiling.high * 1e-6, ceiling.samples});
    const random_reads got = measure_random<way::map_page>(fs, file.ref().number(), set.how, nbytes / 4096, each * workers, repeats,
                                                           [](const shape& s, const auto& kernel) { return run(s, kernel); });
    measurement m{"staged_4k", who, times(got.missed, 1e-6), "M pages/s", ceiling.median * 1e-6, "pread alone, " + who};
    m.verified = right && got.right;
    m.details = {{"hits", static_cast<double>(got.counters.hits)}, {"faults", static_cast<double>(got.counters.faults)}};
    out.add(m);
  }
}

// --- staged_read, staged_latency ----------------------------------------------------------------------------------------------

// Each warp reads pieces at random places, and adds up what it has read.
struct read_pieces {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  const std::byte* pinned;  // where given, it pulls from there instead
  page_access access;       // of pieces
  std::uint32_t piece_nbytes, per_warp;
  std::byte* scratch;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = global_warp();
    std::byte* mine = scratch + me * piece_nbytes;
    const gpufs::file file = pinned == nullptr ? gpufs::file(fs, number) : gpufs::file();
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t offset = access.page(me * per_warp + i) * piece_nbytes;
      const bool good = pinned != nullptr
                            ? gpufs::simt::copy_from_host(warp, mine, pinned + offset, piece_nbytes) == 0
                            : gpufs::pread(warp, file, mine, piece_nbytes, static_cast<std::int64_t>(offset)) == piece_nbytes;
      if (!good && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      warp.sync();
      for (std::uint32_t w = warp.rank(); w < piece_nbytes / 8; w += warp.size())
        total += reinterpret_cast<const std::uint64_t*>(mine)[w];
      warp.sync();
    }
    total = warp.reduce_add(total);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(total);
  }
};

void staged_read(const settings& set, results& out) {
  const unsigned workers = std::min(host_threads(), 16u);
  constexpr std::uint32_t piece = on_gpu ? 1u << 20 : 16u << 10;
  const work_folder folder(set.dir);
  const std::uint64_t nbytes = set.file_nbytes / piece * piece;
  make_file(folder.path() + "/data", nbytes);
  const std::vector<std::uint64_t> sums = piece_sums(piece, nbytes / piece);
  const shape how{on_gpu ? 64u : 2u, 128};  // enough warps for all workers, each with its window
  const auto per_warp = static_cast<std::uint32_t>(std::max(1., set.reads_per_thread * workers * 4096 / piece / how.warps() / 4));
  const device_array<std::byte> scratch(how.warps() * piece);
  bool right = true;
  const auto rate = [&](gpufs::mount_ref fs, gpufs::file_number number, const std::byte* pinned, int r) {
    const page_access access{nbytes / piece, word_of(static_cast<std::uint64_t>(r) + 7000)};
    std::uint64_t expected = 0;
    for (std::uint64_t i = 0; i < how.warps() * per_warp; ++i) expected += sums[access.page(i)];
    const checked_run done = run_checked(how, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
      return read_pieces{fs, number, pinned, access, piece, per_warp, scratch.get(), sum, failed};
    });
    right = right && done.right;
    return static_cast<double>(how.warps()) * per_warp * piece / done.seconds * 1e-9;
  };
  std::vector<double> alone, pulled, got;
  for (int r = 0; r < set.repeats; ++r) {
    const auto each = static_cast<std::uint32_t>(set.reads_per_thread);
    alone.push_back(pread_alone(folder.path() + "/data", nbytes, workers, each, word_of(static_cast<std::uint64_t>(r)), &right) *
                    4096e-9);
  }
  {
    const pinned_array<std::byte> pinned(nbytes);
    auto* words = reinterpret_cast<std::uint64_t*>(pinned.get());
    sum_in_parallel(nbytes / 8, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t w = begin; w < end; ++w) words[w] = word_of(w);
      return 0;
    });
    for (int r = 0; r <= set.repeats; ++r) {
      const double gbps = rate({}, {}, pinned.get(), r);
      if (r > 0) pulled.push_back(gbps);
    }
  }
  gpufs::mount_options options = short_waits();
  options.store = gpufs::store_kind::posix;
  options.cache_nbytes = set.cache_nbytes;
  options.nworkers = workers;
  const gpufs::mount fs(folder.path(), options);
  const host_file file(fs, "data");
  for (int r = 0; r <= set.repeats; ++r) {
    const double gbps = rate(fs.ref(), file.ref().number(), nullptr, r + 100);
    if (r > 0) got.push_back(gbps);
  }
  const double by_threads = spread_of(alone).median, by_kernel = spread_of(pulled).median;
  out.ceiling("pread of random 4 KiB, " + std::to_string(workers) + " threads", "GB/s", spread_of(alone));
  out.ceiling("a kernel pulls the same pieces", "GB/s", spread_of(pulled));
  measurement m{"staged_read",
                "1 MiB a warp, " + std::to_string(workers) + " workers",
                got,
                "GB/s",
                std::min(by_threads, by_kernel),
                by_threads < by_kernel ? "pread alone" : "a kernel's pull"};
  m.verified = right;
  out.add(m);
}

// One warp: how long a read, or a pull, of npages takes.
struct time_one_read {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  const std::byte* pinned;
  std::uint64_t offset;
  std::uint32_t nbytes;
  std::byte* dst;
  std::uint64_t* ns;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file = pinned == nullptr ? gpufs::file(fs, number) : gpufs::file();
    warp.sync();
    const std::uint64_t begin = gpufs::simt::clock_ns();
    const bool good = pinned != nullptr ? gpufs::simt::copy_from_host(warp, dst, pinned + offset, nbytes) == 0
                                        : gpufs::pread(warp, file, dst, nbytes, static_cast<std::int64_t>(offset)) == nbytes;
    warp.sync();
    if (!warp.leader()) return;
    *ns = gpufs::simt::clock_ns() - begin;
    *failed = good ? 0 : 1;
  }
};

void staged_latency(const settings& set, results& out) {
  constexpr std::uint32_t npages = 64;
  constexpr std::chrono::microseconds answer(100);
  const int repeats = std::max(5 * set.repeats, 3);
  const work_folder folder(set.dir);
  const std::uint64_t nbytes = std::uint64_t{npages + 1} * 4096 * (static_cast<std::uint64_t>(repeats) + 1);
  make_file(folder.path() + "/data", nbytes);
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = 2 * nbytes;
  options.custom_store = std::make_shared<late_store>(folder.path(), answer);
  options.nworkers = std::min(host_threads(), 16u);
  const gpufs::mount fs(folder.path(), options);
  const host_file file(fs, "data");
  const pinned_array<std::byte> pinned(nbytes);
  const device_array<std::byte> dst(npages * 4096);
  const device_array<std::uint64_t> ns(1), failed(1);
  bool right = true;
  const auto time = [&](const std::byte* from, std::uint64_t offset, std::uint32_t n) {
    run({1, 32}, time_one_read{fs.ref(), file.ref().number(), from, offset, n, dst.get(), ns.get(), failed.get()});
    right = right && failed.read_one() == 0;
    if (from == nullptr) {
      const std::vector<std::byte> bytes = dst.read();
      for (std::uint32_t w = 0; w < n / 8; ++w) {
        std::uint64_t word = 0;
        std::memcpy(&word, &bytes[w * 8], 8);
        right = right && word == word_of(offset / 8 + w);
      }
    }
    return static_cast<double>(ns.read_one()) * 1e-3;
  };
  std::vector<double> one, pull, many;
  for (int r = 0; r <= repeats; ++r) {
    const std::uint64_t offset = std::uint64_t{npages + 1} * 4096 * static_cast<std::uint64_t>(r);
    const double a = time(nullptr, offset, 4096), b = time(pinned.get(), offset, npages * 4096),
                 c = time(nullptr, offset + 4096, npages * 4096);
    if (r == 0) continue;
    one.push_back(a);
    pull.push_back(b);
    many.push_back(c);
  }
  const double limit = spread_of(one).median + spread_of(pull).median;
  out.ceiling("one page of that store", "us", spread_of(one));
  out.ceiling("a warp pulls 64 pinned pages", "us", spread_of(pull));
  measurement m{"staged_latency", "64 pages, answers after 100 us", many, "us", limit, "one answer and a pull"};
  m.verified = right;
  out.add(m);
}

// --- small_open ----------------------------------------------------------------------------------------------------------------

constexpr std::size_t name_nbytes = 16;
constexpr std::uint32_t small_nbytes = 4096;

std::array<char, name_nbytes> small_name(std::uint32_t i) {
  std::array<char, name_nbytes> name{};
  std::snprintf(name.data(), name.size(), "%02u/%07u", i % 100, i);
  return name;
}

// File i continues the content where file i - 1 ends.
void make_small_files(const std::string& folder, std::uint32_t nfiles) {
  for (unsigned d = 0; d < 100; ++d) {
    std::array<char, 8> name{};
    std::snprintf(name.data(), name.size(), "/%02u", d);
    if (mkdir((folder + name.data()).c_str(), 0700) != 0) throw gpufs::error("cannot make a folder");
  }
  std::atomic<bool> right{true};
  sum_in_parallel(nfiles, [&](std::uint64_t begin, std::uint64_t end) {
    std::array<std::uint64_t, small_nbytes / 8> words{};
    for (std::uint64_t i = begin; i < end; ++i) {
      for (std::size_t w = 0; w < words.size(); ++w) words[w] = word_of(i * words.size() + w);
      const std::string path = folder + "/" + small_name(static_cast<std::uint32_t>(i)).data();
      const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (fd < 0 || write(fd, words.data(), small_nbytes) != small_nbytes) right = false;
      if (fd >= 0) close(fd);
    }
    return 0;
  });
  if (!right) throw gpufs::error("cannot write the small files");
}

// Files a second of nthreads threads; compares the first word of each.
double calls_alone(const std::string& folder, std::uint32_t nfiles, unsigned nthreads, bool* right) {
  const int root = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) throw gpufs::error("cannot open the folder");
  std::vector<std::array<char, name_nbytes>> names(nfiles);
  for (std::uint32_t i = 0; i < nfiles; ++i) names[i] = small_name(i);
  const pinned_array<std::uint64_t> buffers(std::size_t{nthreads} * small_nbytes / 8);
  std::atomic<bool> all_right{true};
  const double seconds = run_threads(nthreads, [&](unsigned t) {
    std::uint64_t* buffer = buffers.get() + std::size_t{t} * small_nbytes / 8;
    for (std::uint32_t i = t; i < nfiles; i += nthreads) {
      struct stat status {};
      const int fd = openat(root, names[i].data(), O_RDONLY | O_CLOEXEC);
      const bool read = fd >= 0 && ::fstat(fd, &status) == 0 && status.st_size == small_nbytes &&
                        ::pread(fd, buffer, small_nbytes, 0) == small_nbytes &&
                        buffer[0] == word_of(i * std::uint64_t{small_nbytes / 8});
      if (fd >= 0) ::close(fd);
      if (!read) all_right = false;
    }
  });
  ::close(root);
  *right = *right && all_right;
  return nfiles / seconds;
}

struct read_small_files {
  gpufs::mount_ref fs;
  const char* names;
  std::uint32_t nfiles, nwords;
  std::byte* scratch;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t me = global_warp();
    const std::uint64_t nwarps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    std::byte* mine = scratch + me * small_nbytes;
    for (std::uint64_t i = me; i < nfiles; i += nwarps) {
      const gpufs::file file = gpufs::open(warp, fs, names + i * name_nbytes);
      bool right = file.error() == 0;
      if (right) {
        right = gpufs::pread(warp, file, mine, small_nbytes, 0) == small_nbytes;
        if (right) {
          for (std::uint32_t w = warp.rank(); w < nwords; w += warp.size()) {
            if (reinterpret_cast<const std::uint64_t*>(mine)[w] != word_of(i * (small_nbytes / 8) + w)) {
              atomic_ref<std::uint64_t>(counts->wrong).add_relaxed(1);
            }
          }
        }
        right = gpufs::close(warp, file) == 0 && right;
      }
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
    }
  }
};

void small_open(const settings& set, results& out) {
  const work_folder folder(set.dir);
  const std::uint32_t nfiles = set.nfiles;
  const shape how = set.how;
  make_small_files(folder.path(), nfiles);
  const unsigned workers = std::min(host_threads(), 16u);
  std::vector<char> names(nfiles * name_nbytes);
  for (std::uint32_t i = 0; i < nfiles; ++i) std::memcpy(&names[i * name_nbytes], small_name(i).data(), name_nbytes);
  const device_array<char> device_names(names);
  const device_array<std::byte> scratch(how.warps() * small_nbytes);
  const int repeats = set.repeats;

  bool right = true;
  std::vector<double> alone;
  for (int r = 0; r < repeats; ++r) alone.push_back(calls_alone(folder.path(), nfiles, workers, &right));
  const spread ceiling = spread_of(alone);
  const std::string who = std::to_string(workers) + " threads";
  out.ceiling("openat, fstat, pread, close, " + who, "files/s", ceiling);

  gpufs::mount_options options = short_waits();
  // Room for a page a warp, and less than the files.
  options.cache_nbytes = std::max<std::uint64_t>(how.warps() * 2 * small_nbytes, std::uint64_t{nfiles} * small_nbytes / 4);
  options.nworkers = workers;
  const gpufs::mount fs(folder.path(), options);
  measurement m{"small_open", std::to_string(nfiles) + " files of 4 KiB, " + who, {}, "files/s", ceiling.median, "the calls alone"};
  const gpufs::mount_counters before = fs.counters();
  std::vector<double> cores;
  for (int r = 0; r <= repeats + 1; ++r) {
    const device_array<wrong_or_failed> counts(1);
    const bool verify = r == repeats + 1;
    const double cpu_before = process_cpu_seconds();
    const double seconds = run(
        how, read_small_files{fs.ref(), device_names.get(), nfiles, verify ? small_nbytes / 8 : 32u, scratch.get(), counts.get()});
    right = told(counts.read_one()) && right;
    if (r == 0 || verify) continue;
    m.samples.push_back(nfiles / seconds);
    cores.push_back((process_cpu_seconds() - cpu_before) / seconds);
  }
  const gpufs::mount_counters after = fs.counters();
  m.verified = right;
  m.details = {{"launches", repeats + 2.},
               {"host_cores_busy", spread_of(cores).median},
               {"faults", static_cast<double>(after.faults - before.faults)},
               {"host_opens", static_cast<double>(after.host_opens - before.host_opens)}};
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("staged", [&] {
    arguments args(argc, argv,
                   "staged  --dir DIR  --file-gib N  --cache-gib N  --reads-per-thread N  --files N  --blocks-per-sm N  --warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const settings set(args, machine);
    results out("staged", args, machine);
    if (args.wants("staged_4k")) staged_4k(set, out);
    if (args.wants("staged_read")) staged_read(set, out);
    if (args.wants("staged_latency")) staged_latency(set, out);
    if (args.wants("small_open")) small_open(set, out);
    return out.finish();
  });
}
