// SPDX-License-Identifier: Apache-2.0
// Small records of large pages: warps read 128 bytes anywhere in a file of which the cache holds an eighth.
//
// read_128_whole: after advise(whole), a page a miss. read_128_parts: after advise(random), a sector a miss. read_128_learnt:
// without advice, after a first round in which that is learnt. read_128_once: after advise(noreuse), past the cache; each as a
// share of what a kernel pulls that only copies such records to random places of as much memory as the cache has. Beside each
// figure, how many bytes came over the bus for one that was wanted.
//
// part_pages_hot: hits on pages that have come by sectors, over hits on pages that came whole; the worst of four cases. All sectors
// there: as hot_4k and hot_thread (bench/hot.cu). The first half of them there: a warp reads that half, a thread 4 bytes of it, by
// pread.
//
// part_pages_pointer: records of 128 bytes read through p[i], of pages of which the first half is there, over pages that came
// whole; the worse of two cases: a warp reads a record, an element a lane, or each thread its own, element by element.
#include "access.hpp"
#include "subject.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096, record_nbytes = 128;

std::uint64_t cache_of(std::uint64_t nbytes) {
  return std::max<std::uint64_t>(nbytes / 8, 64 * page_nbytes) / page_nbytes * page_nbytes;
}

struct read_records {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;  // of records
  std::uint32_t per_warp;
  std::byte* scratch;  // a record a warp
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t me = global_warp();
    std::byte* mine = scratch + me * record_nbytes;
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t offset = access.page(me * per_warp + i) * record_nbytes;
      const bool right = gpufs::pread(warp, file, mine, record_nbytes, static_cast<std::int64_t>(offset)) == record_nbytes;
      if (right) compare(warp, mine, offset, record_nbytes / 8, counts);
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
      warp.sync();
    }
  }
};

void measure(const char* name, const char* label, gpufs::advice what, const subject& s, double pulls, const shape& how,
             double nreads, int repeats, results& out) {
  const std::uint64_t nbytes = s.nbytes;
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = cache_of(nbytes);
  options.page_nbytes = page_nbytes;
  options.custom_store = s.files;
  const gpufs::mount fs(s.folder.path(), options);
  fs.prepare("data");
  const host_file file(fs, "data", O_RDONLY);
  const device_array<std::uint64_t> failed(1);
  run({1, 32}, advise_all{fs.ref(), file.ref().number(), what, failed.get()});
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(nreads / static_cast<double>(how.warps())));
  const double total = static_cast<double>(how.warps()) * per_warp;
  const device_array<std::byte> scratch(how.warps() * record_nbytes);
  measurement m{name, label, {}, "M records/s", pulls * 1e-6, "a kernel that only pulls such records"};
  m.verified = failed.read_one() == 0;
  const gpufs::mount_counters before = fs.counters();
  for (int r = 0; r <= repeats; ++r) {
    const device_array<wrong_or_failed> counts(1);
    const page_access access{nbytes / record_nbytes, word_of(static_cast<std::uint64_t>(r) + 4000)};
    const double seconds = run(how, read_records{fs.ref(), file.ref().number(), access, per_warp, scratch.get(), counts.get()});
    m.verified = told(counts.read_one()) && m.verified;
    if (r > 0) m.samples.push_back(total / seconds * 1e-6);  // the first fills the cache
  }
  const gpufs::mount_counters after = fs.counters();
  add_hits(m, before, after);
  const double wanted = total * (repeats + 1) * record_nbytes;
  const double past = what == gpufs::advice::noreuse ? wanted : 0;
  m.details.emplace_back("bytes over the bus per byte",
                         (static_cast<double>(after.bytes_filled - before.bytes_filled) + past) / wanted);
  out.add(m);
}

// --- Hits ---------------------------------------------------------------------------------------------------------------------

// Brings in the first nsectors of each page, one by one.
struct read_sectors {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t npages;
  std::uint32_t nsectors;
  std::byte* scratch;  // a sector a warp
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    std::byte* mine = scratch + global_warp() * record_nbytes;
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    for (std::uint64_t i = global_warp(); i < npages * nsectors; i += warps) {
      const std::uint64_t offset = i / nsectors * page_nbytes + i % nsectors * record_nbytes;
      const bool right = gpufs::pread(warp, file, mine, record_nbytes, static_cast<std::int64_t>(offset)) == record_nbytes;
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      warp.sync();
    }
  }
};

constexpr std::uint32_t half_nbytes = page_nbytes / 2;

// Each warp reads and adds up the first halves of random pages.
struct read_halves {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t per_warp;
  std::byte* scratch;  // a half a warp
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    std::byte* half = scratch + global_warp() * half_nbytes;
    std::uint64_t mine = 0;
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t offset = access.page(global_warp() * per_warp + i) * page_nbytes;
      const bool right = gpufs::pread(warp, file, half, half_nbytes, static_cast<std::int64_t>(offset)) == half_nbytes;
      if (right) mine += sum_of(half, half_nbytes, warp.rank(), warp.size());
      if (!right && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      warp.sync();
    }
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// Each thread reads the first element of random pages.
struct read_first_elements {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;
  std::uint32_t per_thread;
  std::uint64_t* sum;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto thread = gpufs::this_thread();
    const gpufs::file file(fs, number);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    std::uint64_t mine = 0;
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      std::uint32_t element = 0;
      const std::uint64_t offset = access.page(me * per_thread + i) * page_nbytes;
      const bool right = gpufs::pread(thread, file, &element, sizeof element, static_cast<std::int64_t>(offset)) == sizeof element;
      if (!right) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      mine += element;
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// Records of 128 bytes of the first halves of random pages, through a pointer: each warp reads one, or each thread.
struct read_by_pointer {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  page_access access;  // of records
  std::uint32_t per_reader;
  bool by_thread;
  std::uint64_t* sum;
  std::uint64_t* failed;

  static constexpr std::uint32_t elements = record_nbytes / 4, per_half = half_nbytes / record_nbytes;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    std::uint64_t mine = 0;
    const auto p = gpufs::map<const std::uint32_t>(warp, file);
    const std::uint64_t me = by_thread ? global_warp() * 32 + warp.rank() : global_warp();
    for (std::uint32_t i = 0; i < per_reader; ++i) {
      const std::uint64_t record = access.page(me * per_reader + i);
      const std::uint64_t offset = record / per_half * page_nbytes + record % per_half * record_nbytes;
      const auto first = static_cast<std::int64_t>(offset / 4);
      if (by_thread) {
        for (std::uint32_t k = 0; k < elements; ++k) mine += p[first + k];
      } else {
        mine += p[first + warp.rank()];
      }
    }
    if (p.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
    p.unlink();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

class hits {
 public:
  hits(const std::string& folder, std::uint64_t nbytes, const shape& how, double nreads, int repeats)
      : folder_(folder), nbytes_(nbytes), how_(how), nreads_(nreads), repeats_(repeats), scratch_(how.warps() * half_nbytes) {
    make_file(folder_ + "/hot", nbytes_);
    chunks_ = piece_sums(chunk_nbytes, nbytes_ / chunk_nbytes);
    halves_ = piece_sums(half_nbytes, nbytes_ / half_nbytes);
  }

  void measure(results& out) {
    constexpr std::uint32_t all = page_nbytes / record_nbytes, half = all / 2;
    struct {
      const char* label;
      std::vector<double> whole, parts;
      double share() const { return spread_of(parts).median / spread_of(whole).median; }
    } cases[] = {{"8 KiB a warp, complete", {}, {}},
                 {"4 bytes a thread, complete", {}, {}},
                 {"2 KiB a warp, half there", {}, {}},
                 {"4 bytes a thread, half there", {}, {}}};
    right_ = true;
    {
      const mounted whole(*this, 0), complete(*this, all), halved(*this, half);
      for (int r = 0; r <= repeats_; ++r) {  // by turns
        const bool keeps = r > 0;
        const auto each = [&](std::size_t i, const mounted& fs, double rate) {
          if (keeps) (&fs == &whole ? cases[i].whole : cases[i].parts).push_back(rate);
        };
        for (const mounted* fs : {&whole, &complete}) {
          each(0, *fs, chunks(*fs, r));
          each(1, *fs, elements(*fs, r));
        }
        for (const mounted* fs : {&whole, &halved}) {
          each(2, *fs, halves(*fs, r));
          each(3, *fs, first_elements(*fs, r));
        }
      }
      right_ = right_ && whole.all_hit() && complete.all_hit() && halved.all_hit();
    }
    const auto* worst = &cases[0];
    for (const auto& c : cases) worst = c.share() < worst->share() ? &c : worst;
    measurement m{"part_pages_hot",
                  std::string("the worst: ") + worst->label,
                  worst->parts,
                  "M calls/s",
                  spread_of(worst->whole).median,
                  "pages that came whole"};
    m.verified = right_;
    for (const auto& c : cases) m.details.emplace_back(c.label, c.share());
    out.add(m);
  }

  void measure_pointers(results& out) {
    struct {
      const char* label;
      bool by_thread;
      std::vector<double> whole, parts;
      double share() const { return spread_of(parts).median / spread_of(whole).median; }
    } cases[] = {{"a record a warp", false, {}, {}}, {"a record a thread", true, {}, {}}};
    right_ = true;
    {
      const mounted whole(*this, 0), halved(*this, page_nbytes / record_nbytes / 2);
      for (int r = 0; r <= repeats_; ++r) {  // by turns
        for (auto& c : cases) {
          const double of_whole = records(whole, r, c.by_thread), of_parts = records(halved, r, c.by_thread);
          if (r > 0) c.whole.push_back(of_whole), c.parts.push_back(of_parts);
        }
      }
      right_ = right_ && whole.all_hit() && halved.all_hit();
    }
    const auto& worse = cases[0].share() < cases[1].share() ? cases[0] : cases[1];
    measurement m{
        "part_pages_pointer",   std::string("the worse: ") + worse.label, worse.parts, "M records/s", spread_of(worse.whole).median,
        "pages that came whole"};
    m.verified = right_;
    for (const auto& c : cases) m.details.emplace_back(c.label, c.share());
    out.add(m);
  }

 private:
  // A mount with all of the file in its cache: whole pages, or their first nsectors.
  struct mounted {
    mounted(hits& of, std::uint32_t nsectors) : fs(of.folder_, options(of)), file((fs.prepare("hot"), fs), "hot", O_RDONLY) {
      const device_array<std::uint64_t> failed(1);
      if (nsectors == 0) {
        std::uint64_t total = 0;
        for (const std::uint64_t sum : of.chunks_) total += sum;
        fill_cache(fs, file.ref().number(), of.how_, of.nbytes_, total);
      } else {
        run({1, 32}, advise_all{fs.ref(), file.ref().number(), gpufs::advice::random, failed.get()});
        run(of.how_,
            read_sectors{fs.ref(), file.ref().number(), of.nbytes_ / page_nbytes, nsectors, of.scratch_.get(), failed.get()});
      }
      if (failed.read_one() != 0) throw gpufs::error("the file is not to be read");
      faults = fs.counters().faults;
    }
    static gpufs::mount_options options(const hits& of) {
      gpufs::mount_options with = short_waits();
      with.cache_nbytes = of.nbytes_ + of.nbytes_ / 2;
      with.page_nbytes = page_nbytes;
      with.internals.nrings = on_gpu ? 0 : 1;  // as in hot.cu
      with.pin_nbytes = of.nbytes_ + (1u << 30);
      return with;
    }
    gpufs::file_number number() const { return file.ref().number(); }
    bool all_hit() const { return fs.counters().faults - faults <= of_all_pages * 1e-3; }

    gpufs::mount fs;
    host_file file;
    std::uint64_t faults = 0;
    static constexpr double of_all_pages = 1e5;
  };

  // Each: M calls a second.
  double rate(std::uint64_t total, const checked_run& done) {
    right_ = right_ && done.right;
    return static_cast<double>(total) * 1e-6 / done.seconds;
  }
  std::uint32_t each_of(std::uint64_t n, double calls) const {
    return static_cast<std::uint32_t>(std::ceil(calls / static_cast<double>(n)));
  }
  double chunks(const mounted& m, int r) {
    const chunk_access<pattern::uniform> access{nbytes_ / chunk_nbytes, word_of(static_cast<std::uint64_t>(r) + 5000)};
    const std::uint32_t per_warp = each_of(how_.warps(), nreads_ / 4);
    const std::uint64_t total = how_.warps() * per_warp;
    return rate(total, run_checked(how_, expected_sum(access, total, chunks_), [&](std::uint64_t* sum, std::uint64_t* failed) {
                  return read_chunks<pattern::uniform>{m.fs.ref(), m.number(), access, per_warp, sum, failed};
                }));
  }
  double elements(const mounted& m, int r) {
    const std::uint64_t seed = word_of(static_cast<std::uint64_t>(r) + 6000), n = nbytes_ / 4;
    const std::uint32_t per_thread = each_of(how_.threads(), 10 * nreads_);
    const std::uint64_t total = how_.threads() * per_thread;
    return rate(total, run_checked(how_, sum_of_elements(total, seed, n), [&](std::uint64_t* sum, std::uint64_t* failed) {
                  return read_elements{m.fs.ref(), m.number(), n, seed, per_thread, sum, failed};
                }));
  }
  double halves(const mounted& m, int r) {
    const page_access access{nbytes_ / page_nbytes, word_of(static_cast<std::uint64_t>(r) + 7000)};
    const std::uint32_t per_warp = each_of(how_.warps(), nreads_);
    const std::uint64_t total = how_.warps() * per_warp;
    const std::uint64_t expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) sum += halves_[2 * access.page(i)];
      return sum;
    });
    return rate(total, run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
                  return read_halves{m.fs.ref(), m.number(), access, per_warp, scratch_.get(), sum, failed};
                }));
  }
  double first_elements(const mounted& m, int r) {
    const page_access access{nbytes_ / page_nbytes, word_of(static_cast<std::uint64_t>(r) + 8000)};
    const std::uint32_t per_thread = each_of(how_.threads(), 4 * nreads_);
    const std::uint64_t total = how_.threads() * per_thread;
    const std::uint64_t expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) sum += static_cast<std::uint32_t>(word_of(access.page(i) * (page_nbytes / 8)));
      return sum;
    });
    return rate(total, run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
                  return read_first_elements{m.fs.ref(), m.number(), access, per_thread, sum, failed};
                }));
  }
  double records(const mounted& m, int r, bool by_thread) {
    constexpr std::uint32_t per_half = read_by_pointer::per_half, words = record_nbytes / 8;
    const page_access access{nbytes_ / page_nbytes * per_half, word_of(static_cast<std::uint64_t>(r) + 9000)};
    const std::uint64_t readers = by_thread ? how_.threads() : how_.warps();
    const std::uint32_t per_reader = each_of(readers, nreads_);
    const std::uint64_t total = readers * per_reader;
    const std::uint64_t expected = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = begin; i < end; ++i) {
        const std::uint64_t record = access.page(i);
        const std::uint64_t first = record / per_half * (page_nbytes / 8) + record % per_half * words;
        for (std::uint32_t k = 0; k < words; ++k) sum += (word_of(first + k) & ~0u) + (word_of(first + k) >> 32);
      }
      return sum;
    });
    return rate(total, run_checked(how_, expected, [&](std::uint64_t* sum, std::uint64_t* failed) {
                  return read_by_pointer{m.fs.ref(), m.number(), access, per_reader, by_thread, sum, failed};
                }));
  }

  std::string folder_;
  std::uint64_t nbytes_;
  shape how_;
  double nreads_;
  int repeats_;
  device_array<std::byte> scratch_;
  std::vector<std::uint64_t> chunks_, halves_;
  bool right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("parts", [&] {
    arguments args(argc, argv, "parts  --dir DIR  --file-gib N  --hot-gib N  --blocks-per-sm N  --warps N  --reads N  --repeats N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const std::string parent = args.path("dir", "/dev/shm");
    const std::uint64_t nbytes = args.nbytes("file-gib", {16, 2, 1. / 1024}) / page_nbytes * page_nbytes;
    const shape how = grid_of(machine, args);
    const std::uint64_t hot_nbytes = args.nbytes("hot-gib", {4, 0.25, 1. / 1024}) / chunk_nbytes * chunk_nbytes;
    const double nreads = args.number("reads", {3e7, 4e6, 2048});
    const int repeats = repeats_of(args);
    results out("parts", args, machine);
    const struct {
      const char *name, *label;
      gpufs::advice what;
    } ways[] = {{"read_128_whole", "128 bytes anywhere, by whole pages", gpufs::advice::whole},
                {"read_128_parts", "128 bytes anywhere, by sectors", gpufs::advice::random},
                {"read_128_learnt", "128 bytes anywhere, without advice", gpufs::advice::normal},
                {"read_128_once", "128 bytes anywhere, past the cache", gpufs::advice::noreuse}};
    args.done();
    if (args.wants_any({"read_128_whole", "read_128_parts", "read_128_learnt", "read_128_once"})) {
      const subject s(parent, nbytes, "memory");
      const double pulls =
          s.mapping() == nullptr ? 0 : measure_pull(out, how, record_nbytes, s.mapping(), nbytes, cache_of(nbytes)).median;
      for (const auto& way : ways) {
        if (args.wants(way.name)) measure(way.name, way.label, way.what, s, pulls, how, nreads, repeats, out);
      }
    }
    const work_folder folder(parent);
    if (args.wants_any({"part_pages_hot", "part_pages_pointer"})) {
      hits pages(folder.path(), hot_nbytes, how, nreads, repeats);
      if (args.wants("part_pages_hot")) pages.measure(out);
      if (args.wants("part_pages_pointer")) pages.measure_pointers(out);
    }
    return out.finish();
  });
}
