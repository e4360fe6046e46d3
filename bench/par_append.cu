// SPDX-License-Identifier: Apache-2.0
// Records of different sizes that all threads of a grid have, appended to a file: what does a scan that says where each goes gain
// over appends of their own? All of it may be dirty, so no bus is in the way, and the time ends with the kernel. Each record is
// looked for in the file afterwards.
//
// par_append: one append a block of eight records a thread, against one a warp of its 32 records, both by par::append_records.
// par_append_by_grid: one for all of the grid's records. par_append_each: the first against append_each by warps, which needs no
// scan.
#include <fcntl.h>
#include <unistd.h>

#include "device.hpp"
#include "gpufs/par/append_records.hpp"
#include "written.hpp"

namespace {

using namespace bench;
using gpufs::par::record;

constexpr std::uint64_t least_nbytes = 8, most_nbytes = 40;  // of a record, which begins with its number

GPUFS_HOST_DEVICE std::uint64_t size_of(std::uint64_t number) {
  return least_nbytes + scaled(word_of(number), most_nbytes - least_nbytes + 1);
}

// Records from number `first` on, side by side in memory.
struct records_in_memory {
  const std::byte* all;
  std::uint64_t first;
  GPUFS_DEVICE record operator()(std::uint64_t i) const {
    return {all + (first + i) * most_nbytes, static_cast<std::int64_t>(size_of(first + i))};
  }
};

struct make_records {
  std::byte* all;
  std::uint64_t n;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint64_t i = me; i < n; i += std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size()) {
      auto* const words = reinterpret_cast<std::uint64_t*>(all + i * most_nbytes);
      for (std::uint64_t k = 0; k < most_nbytes / 8; ++k) words[k] = k == 0 ? i : word_of(i + k);
    }
  }
};

struct job {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  const std::byte* records;
  std::uint64_t n;
  std::byte* staging;  // of the grid's records, or of each group's
  gpufs::par::scan_space space;
  std::uint64_t* failed;

  GPUFS_DEVICE void note(bool tells, bool right) const {
    if (tells && !right) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

struct append_by_grid : job {
  GPUFS_DEVICE void operator()() const {
    const auto grid = gpufs::simt::this_grid();
    std::uint64_t all = n * most_nbytes;
    const auto got =
        gpufs::par::append_records(grid, gpufs::file(fs, number), records_in_memory{records, 0}, n, nullptr, staging, all, space);
    note(grid.leader(), got.offset >= 0);
  }
};

// Each group takes PerThread records a thread at a time.
template <class Group, unsigned PerThread>
struct append_by_groups : job {
  static GPUFS_DEVICE std::uint64_t rank(gpufs::simt::block) { return gpufs::simt::block_rank(); }
  static GPUFS_DEVICE std::uint64_t rank(gpufs::simt::warp) { return gpufs::simt::global_warp_rank(); }
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const gpufs::file file(fs, number);
    const std::uint64_t ngroups = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / group.size());
    const std::uint64_t some = std::uint64_t{group.size()} * PerThread;
    std::byte* const mine = staging + rank(group) * some * most_nbytes;
    for (std::uint64_t first = rank(group) * some; first < n; first += ngroups * some) {
      const std::uint64_t count = n - first < some ? n - first : some;
      const auto got =
          gpufs::par::append_records(group, file, records_in_memory{records, first}, count, nullptr, mine, some * most_nbytes);
      note(group.leader(), got.offset >= 0);
    }
  }
};

struct append_each_by_warps : job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    for (std::uint64_t first = gpufs::simt::global_warp_rank() * 32; first < n; first += gpufs::simt::global_warp_count() * 32) {
      const std::uint64_t i = first + warp.rank();
      const record mine = i < n ? records_in_memory{records, 0}(i) : record{nullptr, 0};
      note(true, gpufs::append_each(warp, file, mine.bytes, static_cast<std::size_t>(mine.nbytes)) >= 0);
    }
  }
};

class appending {
  static constexpr unsigned blocks_per_sm = 3;  // 80 registers a thread: with fewer, a scan's values go to the stack

 public:
  appending(arguments& args, const machine_facts& machine)
      : how_(on_gpu ? shape{machine.nprocessors * blocks_per_sm, 256} : shape{2, 64}),
        repeats_(repeats_of(args)),
        n_(static_cast<std::uint64_t>(args.number("records", {1u << 24, 1u << 20, 3000}))),
        folder_(args.path("dir", "/dev/shm")),
        records_(n_ * most_nbytes),
        staging_(std::max<std::uint64_t>(n_, how_.threads() * 8) * most_nbytes),
        space_(gpufs::par::scan_space::nbytes_to_append(n_, how_.grid, how_.block)) {
    run<blocks_per_sm>(how_, make_records{records_.get(), n_});
  }

  void measure(results& out) const {
    gpufs::mount_options options = short_waits();
    options.page_nbytes = 4096;
    options.cache_nbytes = (2 * n_ * most_nbytes / 4096 + 4096) * 4096;
    options.dirty_nbytes = options.cache_nbytes / 2;
    options.writable = true;
    const gpufs::mount fs(folder_.path(), options);
    std::vector<double> grids, blocks, warps, each;
    bool right = true;
    for (int r = 0; r <= repeats_; ++r) {
      const double by_grid = once<append_by_grid, true>(fs, right),
                   by_blocks = once<append_by_groups<gpufs::simt::block, 8>>(fs, right),
                   by_warps = once<append_by_groups<gpufs::simt::warp, 1>>(fs, right),
                   by_each = once<append_each_by_warps>(fs, right);
      if (r == 0) continue;
      grids.push_back(by_grid * 1e3);
      blocks.push_back(by_blocks * 1e3);
      warps.push_back(by_warps * 1e3);
      each.push_back(by_each * 1e3);
    }
    const auto add = [&](const char* name, const char* label, const std::vector<double>& ours, const std::vector<double>& theirs,
                         const char* rival) {
      measurement m{name, label, ours, "ms", spread_of(theirs).median, rival, measurement::kind::times_as_fast, right};
      m.details = {{"M records/s", static_cast<double>(n_) / spread_of(ours).median * 1e-3}};
      out.add(m);
    };
    add("par_append", "one append a block", blocks, warps, "one append a warp");
    add("par_append_by_grid", "one append for a grid's records", grids, warps, "one append a warp");
    add("par_append_each", "one append a block", blocks, each, "append_each by warps");
  }

 private:
  template <class Kernel, bool Cooperative = false>
  double once(const gpufs::mount& fs, bool& right) const {
    const device_array<std::uint64_t> failed(1);
    double seconds = 0;
    {
      const host_file file(fs, "records", O_WRONLY | O_CREAT | O_TRUNC);
      Kernel kernel;
      static_cast<job&>(kernel) = {fs.ref(),       file.ref().number(),           records_.get(), n_,
                                   staging_.get(), {space_.get(), space_.size()}, failed.get()};
      seconds = Cooperative ? run_together<256, blocks_per_sm>(how_, kernel) : run<blocks_per_sm>(how_, kernel);
    }
    right = failed.read_one() == 0 && are_whole() && right;
    return seconds;
  }
  // Each record once, one behind the other.
  bool are_whole() const {
    const std::string path = folder_.path() + "/records";
    const auto file = open_file(path, O_RDONLY);
    const auto nbytes = static_cast<std::uint64_t>(::lseek(file.get(), 0, SEEK_END));
    void* const at = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (at == MAP_FAILED) throw gpufs::error("cannot map " + path);
    const auto* const bytes = static_cast<const std::byte*>(at);
    std::vector<bool> seen(n_);
    std::uint64_t nseen = 0, next = 0;
    while (next + least_nbytes <= nbytes) {
      std::uint64_t number;
      std::memcpy(&number, bytes + next, sizeof number);
      if (number >= n_ || seen[number] || next + size_of(number) > nbytes) break;
      std::uint64_t words[most_nbytes / 8];
      for (std::uint64_t k = 0; k < most_nbytes / 8; ++k) words[k] = k == 0 ? number : word_of(number + k);
      if (std::memcmp(bytes + next, words, size_of(number)) != 0) break;
      seen[number] = true;
      ++nseen;
      next += size_of(number);
    }
    ::munmap(at, nbytes);
    return nseen == n_ && next == nbytes;
  }

  shape how_;
  int repeats_;
  std::uint64_t n_;
  work_folder folder_;
  device_array<std::byte> records_, staging_, space_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("par_append", [&] {
    arguments args(argc, argv, "par_append  --dir DIR  --records N", on_gpu);
    const machine_facts machine = this_machine();
    const appending bench(args, machine);
    results out("par_append", args, machine);
    bench.measure(out);
    return out.finish();
  });
}
