// SPDX-License-Identifier: Apache-2.0
// Small records of large pages: warps read 128 bytes anywhere in a file of which the cache holds an eighth.
//
// read_128_whole: as ever, a page a miss. read_128_parts: after advise(random), a sector a miss. read_128_once: after
// advise(noreuse), past the cache. Beside each figure, how many bytes came over the bus for one that was wanted.
#include "access.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096, record_nbytes = 128;

struct advise_all {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  gpufs::advice what;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const int error = gpufs::advise(warp, gpufs::file(fs, number), 0, 0, what);
    if (error != 0 && warp.leader()) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

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

void measure(const char* name, const char* label, gpufs::advice what, const std::string& folder, std::uint64_t nbytes,
             const shape& how, double nreads, int repeats, results& out) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = std::max<std::uint64_t>(nbytes / 8, 64 * page_nbytes) / page_nbytes * page_nbytes;
  options.page_nbytes = page_nbytes;
  options.pin_nbytes = nbytes + (1u << 30);
  const gpufs::mount fs(folder, options);
  fs.prepare("data");
  const host_file file(fs, "data", O_RDONLY);
  const device_array<std::uint64_t> failed(1);
  run({1, 32}, advise_all{fs.ref(), file.ref().number(), what, failed.get()});
  const auto per_warp = static_cast<std::uint32_t>(std::ceil(nreads / static_cast<double>(how.warps())));
  const double total = static_cast<double>(how.warps()) * per_warp;
  const device_array<std::byte> scratch(how.warps() * record_nbytes);
  measurement m{name, label, {}, "M records/s"};
  m.figure = measurement::kind::itself;
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

}  // namespace

int main(int argc, char** argv) {
  return guarded("parts", [&] {
    arguments args(argc, argv, "parts  --dir DIR  --file-gib N  --blocks-per-sm N  --warps N  --reads N  --repeats N", on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {16, 2, 1. / 1024}) / page_nbytes * page_nbytes;
    const shape how = grid_of(machine, args);
    const double nreads = args.number("reads", {3e7, 4e6, 2048});
    const int repeats = repeats_of(args);
    results out("parts", args, machine);
    make_file(folder.path() + "/data", nbytes);
    const struct {
      const char *name, *label;
      gpufs::advice what;
    } ways[] = {{"read_128_whole", "128 bytes anywhere, by whole pages", gpufs::advice::normal},
                {"read_128_parts", "128 bytes anywhere, by sectors", gpufs::advice::random},
                {"read_128_once", "128 bytes anywhere, past the cache", gpufs::advice::noreuse}};
    for (const auto& way : ways) {
      if (args.wants(way.name)) measure(way.name, way.label, way.what, folder.path(), nbytes, how, nreads, repeats, out);
    }
    args.done();
    return out.finish();
  });
}
