// SPDX-License-Identifier: Apache-2.0
// Misses against the bus. A file in memory is 24 times as large as the cache, so that nearly every read misses and evicts.
// The ceiling is one pinned host-to-device copy in the same run; beside it, what a kernel reaches that only copies random pages
// of the same mapping of the file.
//
// cold_4k, cold_512, cold_64k: warps read whole random pages through pread, and map them with map_page; the pages that missed
// count (`delivered` in the details counts hits as well). cold_4k also from the page cache of a disk's file system (--disk-dir).
// seq_read: blocks read the file in order, a piece of 128 KiB each, through pread.
#include <optional>

#include "access.hpp"
#include "subject.hpp"

namespace {

using namespace bench;

// Blocks read the file's pieces in order.
struct read_in_order {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t npieces;
  std::uint32_t piece_nbytes, nwords;
  std::byte* scratch;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const gpufs::file file(fs, number);
    std::byte* mine = scratch + std::uint64_t{gpufs::simt::block_rank()} * piece_nbytes;
    for (std::uint64_t p = gpufs::simt::block_rank(); p < npieces; p += gpufs::simt::grid_size()) {
      const std::uint64_t offset = p * piece_nbytes;
      if (gpufs::pread(block, file, mine, piece_nbytes, static_cast<std::int64_t>(offset)) == piece_nbytes) {
        compare(block, mine, offset, nwords, counts);
      } else if (block.leader()) {
        atomic_ref<std::uint64_t>(counts->failed).add_relaxed(1);
      }
      block.sync();
    }
  }
};

class cold {
 public:
  cold(arguments& args, const machine_facts& machine)
      : how_(grid_of(machine, args)),
        how_small_{on_gpu ? machine.nprocessors * blocks_for_small : how_.grid, how_.block},
        repeats_(repeats_of(args)),
        cache_nbytes_(args.nbytes("cache-gib", {1, 1. / 16, 1. / 1024})),
        launch_nbytes_(args.number("launch-gb", {8, 0.5, 1e-3}) * 1e9) {}

  gpufs::mount make_mount(const subject& s, std::uint32_t page_nbytes, bool by_engine = false) const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes_;
    options.page_nbytes = page_nbytes;
    options.custom_store = s.files;
    options.copy_engine = by_engine;
    if (by_engine) options.internals.request_slots = 32;
    gpufs::mount fs(s.folder.path(), options);
    fs.prepare("data");
    return fs;
  }

  // Pages a second that a kernel without a file system pulls from the subject's mapping into as many frames; 0 where there is none.
  double pull(const subject& s, std::uint32_t page_nbytes, results& out) const {
    if (s.mapping() == nullptr) return 0;
    if (page_nbytes < 4096)
      return measure_pull<blocks_for_small>(out, how_small_, page_nbytes, s.mapping(), s.nbytes, cache_nbytes_).median;
    return measure_pull(out, how_, page_nbytes, s.mapping(), s.nbytes, cache_nbytes_).median;
  }

  void random(const names_of_misses& name, const subject& s, std::uint32_t page_nbytes, double copy_gbps, results& out,
              bool by_engine = false) const {
    const double pull_pages = pull(s, page_nbytes, out);
    const bool small = page_nbytes < 4096;
    const shape how = small ? how_small_ : how_;
    const gpufs::mount fs = make_mount(s, page_nbytes, by_engine);
    const host_file file(fs, "data");
    // Small pages: half the bytes are enough.
    const double reads = std::min(launch_nbytes_ / page_nbytes, std::max(launch_nbytes_ / 1024, 64.));
    const std::uint64_t npages = s.nbytes / page_nbytes;
    const auto launch = [small](const shape& shape, const auto& kernel) {
      return small ? run<blocks_for_small>(shape, kernel) : run(shape, kernel);
    };
    const std::string where = s.where + s.how_bytes_come();
    tell_random(name, "pread", where, page_nbytes, copy_gbps, pull_pages,
                measure_random<way::pread>(fs, file.ref().number(), how, npages, reads, repeats_, launch), out);
    tell_random(name, "map_page", where, page_nbytes, copy_gbps, pull_pages,
                measure_random<way::map_page>(fs, file.ref().number(), how, npages, reads, repeats_, launch), out);
  }

  void in_order(const subject& s, std::uint32_t page_nbytes, double copy_gbps, results& out) const {
    const double pull_pages = pull(s, page_nbytes, out);
    const gpufs::mount fs = make_mount(s, page_nbytes);
    const host_file file(fs, "data");
    const std::uint32_t piece_nbytes = 128 << 10;
    const device_array<std::byte> scratch(std::uint64_t{how_.grid} * piece_nbytes);
    measurement m{"seq_read", "pread by blocks, pages of " + size_text(page_nbytes), {}, "GB/s", copy_gbps, "pinned copy"};
    m.verified = true;
    m.cause = bus_cause(page_nbytes, copy_gbps, pull_pages);
    for (int r = 0; r <= repeats_; ++r) {
      const device_array<wrong_or_failed> counts(1);
      const bool verify = r == repeats_;
      const std::uint64_t before = fs.counters().faults;
      const double seconds = run(how_, read_in_order{fs.ref(), file.ref().number(), s.nbytes / piece_nbytes, piece_nbytes,
                                                     verify ? piece_nbytes / 8 : 32, scratch.get(), counts.get()});
      m.verified = told(counts.read_one()) && m.verified;
      if (!verify) m.samples.push_back(static_cast<double>(fs.counters().faults - before) * page_nbytes / seconds * 1e-9);
    }
    out.add(m);
  }

 private:
  static std::string size_text(std::uint32_t nbytes) {
    return nbytes < 1024 ? std::to_string(nbytes) + " B" : std::to_string(nbytes / 1024) + " KiB";
  }

  // Of small pages, fewer warps want more: each spends most of a miss in the slow path, which wants registers.
  static constexpr unsigned blocks_for_small = 4;
  shape how_, how_small_;
  int repeats_;
  std::uint64_t cache_nbytes_;
  double launch_nbytes_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("cold", [&] {
    arguments args(argc, argv,
                   "cold  --dir DIR  --disk-dir DIR  --file-gib N  --disk-gib N  --cache-gib N  --launch-gb N  --blocks-per-sm N  "
                   "--warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const std::string dir = args.path("dir", "/dev/shm"), disk_dir = args.path("disk-dir", "");
    const std::uint64_t whole = 128 << 10;
    const std::uint64_t nbytes = args.nbytes("file-gib", {24, 1, 8. / 1024}) / whole * whole;
    const std::uint64_t disk_nbytes =
        args.nbytes("disk-gib", {static_cast<double>(nbytes) / (1u << 30), 1, 8. / 1024}) / whole * whole;
    const cold bench(args, machine);
    results out("cold", args, machine);
    const double copy = measure_copy(out, pinned_memory{}).median;
    std::optional<subject> memory(std::in_place, dir, nbytes, "memory");
    if (args.wants_any({"cold_4k", "cold_4k_pull"})) bench.random({"cold_4k", "cold_4k_pull"}, *memory, 4096, copy, out);
    if (args.wants_any({"cold_512", "cold_512_pull"})) bench.random({"cold_512", "cold_512_pull"}, *memory, 512, copy, out);
    if (args.wants_any({"cold_64k", "cold_64k_pull"})) bench.random({"cold_64k", "cold_64k_pull"}, *memory, 65536, copy, out);
    // Unbounded: the same by the copy engine.
    const auto copied = [&](const names_of_misses& name, std::uint32_t page_nbytes) {
      if (args.wants_any({name.of_copy, name.of_pull})) bench.random(name, *memory, page_nbytes, copy, out, true);
    };
    copied({"copied_64k", "copied_64k_pull"}, 64 << 10);
    copied({"copied_256k", "copied_256k_pull"}, 256 << 10);
    if (args.wants("seq_read")) {
      bench.in_order(*memory, 4096, copy, out);
      bench.in_order(*memory, 65536, copy, out);
    }
    memory.reset();
    if (args.wants_any({"cold_4k", "cold_4k_pull"})) {
      if (disk_dir.empty()) {
        out.note("cold_4k from a disk's page cache: left out, as there is no --disk-dir");
      } else {
        const subject disk(disk_dir, disk_nbytes, "a disk's page cache");
        bench.random({"cold_4k", "cold_4k_pull"}, disk, 4096, copy, out);
      }
    }
    return out.finish();
  });
}
