// SPDX-License-Identifier: Apache-2.0
// What a user waits for before anything has been read.
//
// first_byte: a kernel opens a large file in memory and reads one page of it; process, CUDA and mount are up. first_percent,
// first_pass, first_ten: a fresh mount's first kernel opens it and reads a hundredth of its pages, all of them once, all of them
// ten times, in random order and with a cache of a fortieth; share of the rate at which a mount that had registered all of the file
// before does the last. What is registered meanwhile is in the time. first_second: a process that mounts the folder, reads one page
// and ends, less one that only starts CUDA.
#include <spawn.h>
#include <sys/wait.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "access.hpp"
#include "pread_alone.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096;

// Takes each page once, in an order that looks random: i * step mod n, and step has no divisor in common with n.
struct order {
  std::uint64_t npages, step;

  explicit order(std::uint64_t n) : npages(n), step(std::max<std::uint64_t>(static_cast<std::uint64_t>(0.618034 * double(n)), 1)) {
    while (std::gcd(step, n) != 1) ++step;
  }
  GPUFS_HOST_DEVICE std::uint64_t page(std::uint64_t i) const {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<wide>(i % npages) * step % npages);
  }
};

// The warps take the first `nreads` pages of the order, again from its beginning where these are more.
struct open_and_read {
  gpufs::mount_ref fs;
  const char* path;
  order pages;
  std::uint64_t nreads;
  std::uint64_t* sum;  // of the pages' first words
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file = gpufs::open(warp, fs, path);
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    std::uint64_t mine = 0, missing = file.error() != 0;
    for (std::uint64_t i = global_warp(); i < nreads && file.error() == 0; i += warps) {
      gpufs::mapped_page page = gpufs::map_page(warp, file, static_cast<std::int64_t>(pages.page(i) * page_nbytes));
      if (page.error() != 0) {
        ++missing;
        continue;
      }
      mine += *reinterpret_cast<const std::uint64_t*>(page.data());
      gpufs::unmap_page(warp, std::move(page));
    }
    gpufs::close(warp, file);
    if (!warp.leader()) return;
    atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
    if (missing != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(missing);
  }
};

std::uint64_t expected_of(const order& pages, std::uint64_t nreads) {
  return sum_in_parallel(nreads, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = begin; i < end; ++i) sum += word_of(pages.page(i) * (page_nbytes / 8));
    return sum;
  });
}

struct first {
  std::string folder;
  std::uint64_t nbytes, cache_nbytes;
  shape how;
  order pages;
  device_array<char> path = gpufs::simt::device_string("data");

  gpufs::mount make_mount() const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes;
    options.pin_nbytes = nbytes + (1u << 30);
    return gpufs::mount(folder, options);
  }
  // The user's seconds: from the launch to its end.
  checked_run read(const gpufs::mount& fs, const shape& by, std::uint64_t nreads, std::uint64_t expected) const {
    return run_checked(
        by, expected,
        [&](std::uint64_t* sum, std::uint64_t* failed) { return open_and_read{fs.ref(), path.get(), pages, nreads, sum, failed}; },
        [](const shape& s, const auto& kernel) {
          const stopwatch watch;
          run(s, kernel);
          return watch.seconds();
        });
  }
};

void measure_byte(const first& f, int repeats, results& out) {
  measurement m{"first_byte", std::to_string(f.nbytes >> 20) + " MiB in memory", {}, "ms"};
  m.figure = measurement::kind::itself;
  m.verified = true;
  {  // CUDA loads a kernel when it is launched first
    const gpufs::mount fs = f.make_mount();
    f.read(fs, {1, 32}, 1, expected_of(f.pages, 1));
  }
  for (int r = 0; r < repeats; ++r) {
    const gpufs::mount fs = f.make_mount();
    const checked_run got = f.read(fs, {1, 32}, 1, expected_of(f.pages, 1));
    m.samples.push_back(got.seconds * 1e3);
    m.verified = m.verified && got.right;
  }
  out.add(m);
}

void measure_passes(const first& f, int repeats, results& out, arguments& args) {
  const std::uint64_t npages = f.pages.npages;
  std::vector<double> rates;
  bool right = true;
  {
    const gpufs::mount fs = f.make_mount();
    fs.prepare("data");
    for (int r = 0; r <= repeats; ++r) {
      const checked_run got = f.read(fs, f.how, npages, expected_of(f.pages, npages));
      if (r != 0) rates.push_back(static_cast<double>(npages) / got.seconds * 1e-6);
      right = right && got.right;
    }
  }
  const spread prepared = spread_of(rates);
  out.ceiling("each page once, all registered beforehand", "M pages/s", prepared);
  // What is not registered yet, host threads read: these alone, with as many pages as a hundredth of the file has.
  const unsigned nthreads = std::min(host_threads(), 16u);  // as many as a mount has
  std::vector<double> alone;
  for (int r = 0; r < repeats; ++r) {
    const auto each = static_cast<std::uint32_t>(std::max<std::uint64_t>(npages / 100 / nthreads, 1));
    alone.push_back(pread_alone(f.folder + "/data", f.nbytes, nthreads, each, word_of(static_cast<std::uint64_t>(r)), &right) *
                    1e-6);
  }
  const spread threads = spread_of(alone);
  out.ceiling("pread of random 4 KiB, " + std::to_string(nthreads) + " threads", "M pages/s", threads);
  const struct {
    const char* name;
    std::uint64_t nreads;
  } cases[] = {{"first_percent", std::max<std::uint64_t>(npages / 100, 1)}, {"first_pass", npages}, {"first_ten", 10 * npages}};
  for (const auto& c : cases) {
    if (!args.wants(c.name)) continue;
    measurement m{c.name, std::to_string(f.nbytes >> 20) + " MiB in memory", {}, "M pages/s", prepared.median, "all registered"};
    m.verified = right;
    const std::uint64_t expected = expected_of(f.pages, c.nreads);
    std::uint64_t host_reads = 0;
    for (int r = 0; r < repeats; ++r) {
      const gpufs::mount fs = f.make_mount();
      const checked_run got = f.read(fs, f.how, c.nreads, expected);
      m.samples.push_back(static_cast<double>(c.nreads) / got.seconds * 1e-6);
      m.verified = m.verified && got.right;
      host_reads = fs.counters().host_reads;
    }
    m.details = {{"read_by_the_host", static_cast<double>(host_reads)}, {"pread_alone_M_pages_s", threads.median}};
    if (spread_of(m.samples).median > 0.8 * threads.median && spread_of(m.samples).median < 1.2 * threads.median &&
        c.nreads <= npages) {
      const auto percent = std::to_string(std::lround(threads.median / prepared.median * 100));
      m.cause = "the host's threads: they alone read this file at " + percent + " % of the rate with all registered";
    }
    out.add(m);
  }
}

// This program again, as a child; its seconds.
double child_seconds(const std::string& what, const std::string& folder) {
  const std::string program = "/proc/self/exe";
  std::string option = "--child", name = "--dir", doing = what, place = folder;
  char* words[] = {const_cast<char*>(program.c_str()), option.data(), doing.data(), name.data(), place.data(), nullptr};
  const stopwatch watch;
  pid_t child = 0;
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, words, environ) != 0) throw gpufs::error("cannot start a child");
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) throw gpufs::error("the child failed");
  return watch.seconds();
}

void run_child(const std::string& what, const std::string& folder) {
  if (what == "empty") {
    device_array<char> memory(1);
    return;
  }
  const gpufs::mount fs(folder);
  const auto path = gpufs::simt::device_string("data");
  const device_array<std::uint64_t> found(2);
  run({1, 32}, open_and_read{fs.ref(), path.get(), order(1), 1, found.get(), found.get() + 1});
  const auto values = found.read();
  if (values[0] != word_of(0) || values[1] != 0) throw gpufs::error("the first page is wrong");
}

void measure_second(const first& f, int repeats, results& out) {
  measurement m{"first_second", std::to_string(f.nbytes >> 20) + " MiB in memory, a default mount", {}, "s"};
  m.figure = measurement::kind::itself;
  m.verified = true;  // else the child fails
  std::vector<double> empty, whole;
  for (int r = 0; r <= repeats; ++r) {
    const double without = child_seconds("empty", f.folder), with = child_seconds("mount", f.folder);
    if (r == 0) continue;  // the program is in memory from here on
    empty.push_back(without);
    whole.push_back(with);
    m.samples.push_back(with - without);
  }
  m.details = {{"empty_seconds", spread_of(empty).median}, {"whole_seconds", spread_of(whole).median}};
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("first", [&] {
    arguments args(argc, argv, "first  --dir DIR  --file-gib N  --cache-gib N  --blocks-per-sm N  --warps N", on_gpu);
    const std::string child = args.text("child", ""), parent = args.path("dir", "/dev/shm");
    if (!child.empty()) {
      run_child(child, parent);
      return 0;
    }
    const machine_facts machine = this_machine();
    const shape how = grid_of(machine, args);
    const int repeats = repeats_of(args);
    const std::uint64_t nbytes = args.nbytes("file-gib", {40, 1, 8. / 1024}) / page_nbytes * page_nbytes;
    const std::uint64_t cache_nbytes = args.nbytes("cache-gib", {1, 1. / 16, 1. / 1024});
    results out("first", args, machine);
    const work_folder folder(parent);
    make_file(folder.path() + "/data", nbytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that its version has settled
    const first f{folder.path(), nbytes, cache_nbytes, how, order(nbytes / page_nbytes)};
    if (args.wants("first_byte")) measure_byte(f, repeats, out);
    if (args.wants_any({"first_percent", "first_pass", "first_ten"})) measure_passes(f, repeats, out, args);
    if (args.wants("first_second")) measure_second(f, repeats, out);
    args.done();
    return out.finish();
  });
}
