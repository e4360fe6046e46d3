// SPDX-License-Identifier: Apache-2.0
// What misses wait beside writing. In one kernel every other warp maps random pages of 4 KiB of a file 32 times as large as the
// cache, so that nearly all miss, and the warps between write whole random pages of another file of the mount for as long as
// anybody reads. Against the same kernel whose writers end at once, by turns. Pages that missed count, over the time from the
// first reader's begin to the last one's end: what the writers have to finish then is not the readers'.
//
// read_beside_write_4k: files in memory, so that pages are pulled, and stored in place. read_beside_write_host: pages are pulled,
// and written by host threads, as the file has a hole. staged_read_beside_write_host: host threads do both. The first has the bus
// as its limit, whose directions are not free of each other: the same kernel without files, in the same run, says what it leaves.
#include <fcntl.h>
#include <unistd.h>

#include <bit>

#include "access.hpp"
#include "written.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096;
constexpr const char* too_early = "writers came to the end of their work before the readers: too good";

// A reading warp and a writing one.
struct pair_of_warps {
  std::uint64_t begin_ns, end_ns;  // of reading
  std::uint64_t nwritten;          // pages
};
struct shared_words {
  std::uint64_t readers_left, failed_writes;
};

// reads() is all that a warp reads; writes(warp, i) writes the i-th page, of all writers' together.
template <class Reads, class Writes>
struct beside {
  Reads reads;
  Writes writes;
  std::uint64_t most;  // pages a writer, so that it ends in any case
  pair_of_warps* pairs;
  shared_words* shared;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t pair = global_warp() / 2;
    const atomic_ref<std::uint64_t> readers_left(shared->readers_left);
    if (global_warp() % 2 == 0) {
      const std::uint64_t begin_ns = gpufs::simt::clock_ns();
      reads();
      warp.sync();
      if (warp.leader()) {
        pairs[pair].begin_ns = begin_ns;
        pairs[pair].end_ns = gpufs::simt::clock_ns();
        readers_left.fetch_sub(1, std::memory_order_relaxed);
      }
      return;
    }
    const std::uint64_t npairs = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32) / 2;
    std::uint64_t n = 0;
    for (; n < most && warp.ballot(warp.leader() && readers_left.load_relaxed() != 0) != 0; ++n) {
      const bool right = writes(warp, pair + n * npairs);
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(shared->failed_writes).add_relaxed(1);
    }
    if (warp.leader()) pairs[pair].nwritten = n;
  }
};

struct write_pages {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t npages, salt;
  std::byte* scratch;  // a page a warp

  template <class Warp>
  GPUFS_DEVICE bool operator()(Warp warp, std::uint64_t i) const {
    const std::uint64_t page = scattered_page(i, npages);
    std::byte* mine = scratch + global_warp() * page_nbytes;
    make_words(warp, mine, page * (page_nbytes / 8), page_nbytes / 8, salt);
    return gpufs::pwrite(warp, gpufs::file(fs, number), mine, page_nbytes, static_cast<std::int64_t>(page * page_nbytes)) ==
           page_nbytes;
  }
};

// The same to plain pinned memory.
struct store_pages {
  std::byte* host;
  std::uint64_t npages;
  std::byte* scratch;

  template <class Warp>
  GPUFS_DEVICE bool operator()(Warp warp, std::uint64_t i) const {
    return gpufs::simt::copy_to_host(warp, host + scattered_page(i, npages) * page_nbytes, scratch + global_warp() * page_nbytes,
                                     page_nbytes) == 0;
  }
};

// Which way a case's bytes go.
struct route {
  const char *name, *label;
  gpufs::store_kind store;
  bool hole;            // in the file that is written, which then is not mapped
  double launch_share;  // of the bytes that a launch reads
  bool pulls() const { return store == gpufs::store_kind::automatic; }
  bool stores() const { return pulls() && !hole; }
};

class reading_beside_writing {
 public:
  reading_beside_writing(arguments& args, const machine_facts& machine)
      : how_(grid_of(machine, args)),
        repeats_(repeats_of(args)),
        cache_nbytes_(args.nbytes("cache-gib", {0.25, 1. / 16, 1. / 1024})),
        read_nbytes_(args.nbytes("file-gib", {8, 2, 32. / 1024}) / page_nbytes * page_nbytes),
        write_nbytes_(std::bit_floor(args.nbytes("written-gib", {2, 0.25, 4. / 1024}))),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9),
        folder_(args.path("dir", "/dev/shm")) {
    if (how_.warps() % 2 != 0) throw gpufs::error("the warps are not even: half of them read");
    make_file(folder_.path() + "/data", read_nbytes_);
  }

  // The share of pulls alone that the bus leaves to pulls beside stores.
  double measure_bus(results& out) const {
    const pinned_memory host;
    const std::uint64_t npages = pinned_memory::nbytes / page_nbytes / 2;
    const device_array<std::byte> scratch(how_.warps() * page_nbytes);
    const std::uint32_t per_warp = reads_per_warp(launch_nbytes_ / 2);
    const pull_alone pulls{host.bytes.get(), npages, page_nbytes, per_warp, scratch.get(), how_.warps()};
    const store_pages stores{host.bytes.get() + pinned_memory::nbytes / 2, npages, scratch.get()};
    std::vector<double> rates[2];
    std::uint64_t early = 0;
    for (int r = 0; r <= 3; ++r) {
      for (const bool writing : {false, true}) {
        const times_of t = launch(pulls, stores, per_warp, writing);
        if (r == 0) continue;
        rates[writing].push_back(static_cast<double>(npairs() * per_warp) * page_nbytes * 1e-9 / t.reading);
        early += t.early;
      }
    }
    const spread alone = spread_of(rates[0]), both = spread_of(rates[1]);
    out.ceiling("half of the warps only pull random pages of 4 KiB", "GB/s", alone);
    out.ceiling("the same, and the others store such pages", "GB/s", both);
    if (early != 0) out.note("pulls beside stores: " + std::string(too_early));
    return both.median / alone.median;
  }

  gpufs::mount make_mount(gpufs::store_kind store) const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes_;
    options.page_nbytes = page_nbytes;
    options.store = store;
    options.writable = true;
    gpufs::mount fs(folder_.path(), options);
    fs.prepare("data");
    return fs;
  }

  void measure(const route& by, results& out) const {
    const std::string path = folder_.path() + "/out";
    make_file(path, write_nbytes_);
    const std::uint64_t file_nbytes = write_nbytes_ + (by.hole ? page_nbytes : 0);
    if (::truncate(path.c_str(), static_cast<off_t>(file_nbytes)) != 0) throw gpufs::error("cannot size " + path);
    const std::uint64_t npages = write_nbytes_ / page_nbytes;
    const gpufs::mount fs = make_mount(by.store);
    const host_file data(fs, "data");
    const std::uint32_t per_warp = reads_per_warp(launch_nbytes_ * by.launch_share);
    const device_array<std::byte> scratch(how_.warps() * page_nbytes);

    measurement m{by.name, by.label, {}, "GB/s"};
    m.ceiling_is = "the same without writing";
    m.verified = true;
    std::vector<double> alone, written;
    std::uint64_t misses = 0, hits = 0, early = 0;
    std::vector<std::uint64_t> salts(npages);  // of what each page has
    for (int r = 0; r <= repeats_ + 1; ++r) {
      const bool verify = r == repeats_ + 1;  // every byte that is read
      const auto salt = static_cast<std::uint64_t>(r + 1);
      {
        const host_file to(fs, "out", O_RDWR);
        if (r == 0 && !bytes_go(fs, by, out)) return;
        for (const bool writing : {false, true}) {
          const device_array<wrong_or_failed> counts(1);
          const page_access access{read_nbytes_ / page_nbytes, word_of(2 * salt + writing)};
          const read_random<way::map_page> reads{
              fs.ref(),      data.ref().number(), access, page_nbytes, per_warp, verify ? page_nbytes / 8 : 32u,
              scratch.get(), counts.get()};
          const gpufs::file_counters before = report_of(fs, "data").counters;
          const std::uint64_t back = fs.counters().bytes_written_back;
          const times_of t =
              launch(reads, write_pages{fs.ref(), to.ref().number(), npages, salt, scratch.get()}, per_warp, writing);
          const gpufs::file_counters after = report_of(fs, "data").counters;
          m.verified = told(counts.read_one()) && t.right && m.verified;
          for (std::size_t p = 0; p < t.nwritten.size(); ++p) {
            for (std::uint64_t n = 0; n < t.nwritten[p]; ++n) salts[scattered_page(p + n * npairs(), npages)] = salt;
          }
          if (r == 0 || verify) continue;
          const double rate = static_cast<double>(after.faults - before.faults) * page_nbytes * 1e-9 / t.reading;
          if (!writing) {
            alone.push_back(rate);
            continue;
          }
          m.samples.push_back(rate);
          written.push_back(static_cast<double>(fs.counters().bytes_written_back - back) * 1e-9 / t.kernel);
          misses += after.faults - before.faults;
          hits += after.hits - before.hits;
          early += t.early;
        }
      }
      m.verified = wrong_words(path, file_nbytes,
                               [&](std::uint64_t i) {
                                 const std::uint64_t page = i / (page_nbytes / 8);
                                 return page < npages ? word_of(i) + salts[page] : 0;  // 0: the hole
                               }) == 0 &&
                   m.verified;
    }
    const spread without = spread_of(alone);
    out.ceiling(std::string(by.name) + " without writing", "GB/s", without);
    m.ceiling = without.median;
    m.details = {
        {"written_gbps", spread_of(written).median}, {"misses", static_cast<double>(misses)}, {"hits", static_cast<double>(hits)}};
    if (by.stores()) m.details.emplace_back("share_that_the_bus_leaves", measure_bus(out));
    out.add(m);
    if (early != 0) out.note(std::string(by.name) + ": " + too_early);
  }

 private:
  struct times_of {
    double reading, kernel;  // seconds
    std::vector<std::uint64_t> nwritten;
    std::uint64_t early;  // writers that wrote all they might
    bool right;
  };

  std::uint64_t npairs() const { return how_.warps() / 2; }
  std::uint32_t reads_per_warp(double nbytes) const {
    return static_cast<std::uint32_t>(std::ceil(nbytes / page_nbytes / static_cast<double>(npairs())));
  }

  template <class Reads, class Writes>
  times_of launch(const Reads& reads, const Writes& writes, std::uint32_t per_warp, bool writing) const {
    const device_array<pair_of_warps> pairs(npairs());
    const device_array<shared_words> shared(std::vector<shared_words>{{npairs(), 0}});
    // Stores alone are as fast as pulls alone: 16 times as much as is read is more than there is time for.
    const std::uint64_t most = writing ? std::uint64_t{16} * per_warp : 0;
    times_of t{};
    t.kernel = run(how_, beside<Reads, Writes>{reads, writes, most, pairs.get(), shared.get()});
    std::uint64_t begin_ns = ~std::uint64_t{0}, end_ns = 0;
    for (const pair_of_warps& p : pairs.read()) {
      begin_ns = std::min(begin_ns, p.begin_ns);
      end_ns = std::max(end_ns, p.end_ns);
      t.nwritten.push_back(p.nwritten);
      t.early += writing && p.nwritten == most;
    }
    t.reading = static_cast<double>(end_ns - begin_ns) * 1e-9;
    t.right = shared.read_one().failed_writes == 0;
    if (!t.right) std::printf("WRONG: %llu writes\n", static_cast<unsigned long long>(shared.read_one().failed_writes));
    return t;
  }

  static gpufs::file_report report_of(const gpufs::mount& fs, const std::string& path) {
    for (const gpufs::file_report& report : fs.open_files()) {
      if (report.path == path) return report;
    }
    throw gpufs::error(path + " is not open");
  }

  // Whether bytes go as the case has it; they do not where files are not in memory, or may not be pinned.
  static bool bytes_go(const gpufs::mount& fs, const route& by, results& out) {
    const gpufs::file_report in = report_of(fs, "data"), to = report_of(fs, "out");
    if ((in.source == gpufs::source_kind::pull) == by.pulls() && to.reason.starts_with("stored: ") == by.stores()) return true;
    out.note(std::string(by.name) + ": left out; what is read is " + in.reason + "; what is written, " + to.reason);
    return false;
  }

  shape how_;
  int repeats_;
  std::uint64_t cache_nbytes_, read_nbytes_, write_nbytes_;
  double launch_nbytes_;
  work_folder folder_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("beside", [&] {
    arguments args(argc, argv,
                   "beside  --dir DIR  --file-gib N  --written-gib N  --cache-gib N  --launch-gb N  --blocks-per-sm N  --warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const reading_beside_writing bench(args, machine);
    results out("beside", args, machine);
    using gpufs::store_kind;
    for (const route& by : {
             route{"read_beside_write_4k", "pulled, beside stores in place", store_kind::automatic, false, 1},
             route{"read_beside_write_host", "pulled, beside writes by the host", store_kind::automatic, true, 1},
             // A launch reads less, as these are slower: were one thread left for them, 2 GB would take 0.7 s.
             route{"staged_read_beside_write_host", "read by the host, beside writes by it", store_kind::posix, false, 0.25},
         }) {
      if (args.wants(by.name)) bench.measure(by, out);
    }
    return out.finish();
  });
}
