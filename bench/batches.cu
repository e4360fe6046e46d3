// SPDX-License-Identifier: Apache-2.0
// Batches of random rows by row_batch, against the bus and against how a program gets them otherwise. Sorting is part of the time.
//
// batch_128, batch_512, batch_4k: a gather of 4 Mi distinct rows, sorted at once, of a file in memory that is registered before,
// with a cache so small (64 MiB) that nearly none of them is in it; against one pinned host-to-device copy in the same run.
// batch_few_*: the same with 64 Ki rows.
//
// batch_in_kernel_512: the same rows of 512 bytes, whose numbers lie in device memory, by gather of all blocks of one kernel
// (gpufs/par/gather_by_grid.hpp), which sorts them by window; _by_blocks, _by_warps: each block, or each warp, calls for its share
// of them by itself.
//
// batch_vs_best_rival: the same with 4 Mi rows of 64 to 4,096 bytes, against the fastest of: host threads that gather from a memory
// map into pinned memory while earlier chunks are copied to the device, by memcpy alone, or with prefetches of later rows; a kernel
// that copies the rows from the registered mapping in the batch's order. The same kernel over sorted rows is the limit.
//
// batch_sorted_by: cold rows of 64, 512 and 4,096 bytes, few and many, sorted by 1,024 windows of the file and no further, which
// takes the radix sort fewer passes; against the sort by address.
//
// batch_skewed: rows of 512 bytes by Zipf's law (0.99), scattered over a file ten times as large as the cache, after some batches
// of the same law; against the same rivals. Pages are of a row's size, as docs/guide/tuning.md says of such batches
// (batch_skewed_large_pages: 4 KiB).
//
// batch_staged: rows of 512 bytes of a file that the store may not map; against as many threads that gather them from a memory map
// into pinned memory.
//
// batch_hot_512: all rows are in the cache; against the kernel over a copy of the file in device memory.
//
// scatter_512: distinct rows of 512 bytes written to a file in memory that is larger than the cache, so that pages are written back
// all the time; its time ends when all is in the file (fsync). Against one pinned device-to-host copy; the limit is a kernel that
// only stores the rows, sorted before, to the file's registered mapping.
//
// scatter_in_kernel_512: the same by scatter of all blocks of one kernel (gpufs/par/scatter_by_grid.hpp).
#include <optional>

#include "gathers.hpp"
#include "gpufs/par/gather_by_grid.hpp"
#include "gpufs/par/scatter_by_grid.hpp"
#include "par/measured.hpp"

namespace {

using namespace bench;

enum class caller { grid, block, warp };

template <caller Who>
struct gather_in_kernel {
  gpufs::file from;
  gpufs::row_layout layout;
  const row_index* numbers;
  std::uint64_t n;
  std::byte* dst;
  gpufs::grid_space space;
  std::uint64_t* nfailed;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t nblocks = gpufs::simt::grid_size();
    if constexpr (Who == caller::grid) {
      note(gpufs::this_block(), gpufs::gather(gpufs::simt::this_grid(), from, layout, numbers, n, dst, space));
    } else if constexpr (Who == caller::block) {
      gather_share(gpufs::this_block(), gpufs::simt::block_rank(), nblocks);
    } else {
      gather_share(gpufs::this_warp(), global_warp(), nblocks * (gpufs::simt::block_size() / gpufs::simt::warp_lanes));
    }
  }

 private:
  template <class Group>
  GPUFS_DEVICE void gather_share(Group group, std::uint64_t me, std::uint64_t ngroups) const {
    const std::uint64_t share = (n + ngroups - 1) / ngroups, first = me * share;
    if (first >= n) return;
    const std::uint64_t here = n - first < share ? n - first : share;
    note(group, gpufs::gather(group, from, layout, numbers + first, here, dst + first * layout.row_nbytes));
  }
  template <class Group>
  GPUFS_DEVICE void note(Group group, const gpufs::row_failure& failed) const {
    if (failed.error != 0 && group.leader()) atomic_ref<std::uint64_t>(*nfailed).add_relaxed(1);
  }
};

constexpr unsigned grid_block = on_gpu ? 256 : 64, least_blocks = 4;
// As many blocks as run at once.
template <class Kernel>
gpufs::simt::launch_config by_all_blocks(const Kernel& kernel) {
  gpufs::simt::launch_config config{.grid = 1, .block = grid_block, .cooperative = true};
  config.schedule.timeout_ns = 0;
  config.grid = gpufs::simt::max_cooperative_grid<grid_block, least_blocks>(config, kernel);
  return config;
}

class gathers_in_kernels : public gathers {
 public:
  using gathers::gathers;
  // GB/s of a kernel that gathers them itself, by as many blocks as run at once.
  template <caller Who>
  double in_kernel(const row_numbers& numbers) {
    const device_array<std::uint32_t> space(gpufs::grid_space::nwords_for(numbers.host.size()));
    const device_array<std::uint64_t> nfailed(1);
    const gather_in_kernel<Who> kernel{
        file_.ref(), layout_, numbers.device.get(), numbers.host.size(), dst_.get(), {space.get(), space.size()}, nfailed.get()};
    const gpufs::simt::launch_config config = by_all_blocks(kernel);
    return checked(numbers, [&] {
      const double seconds = stream_seconds([&](auto&& on) { gpufs::simt::launch<grid_block, least_blocks>(config, kernel, on); });
      right_ = nfailed.read_one() == 0 && right_;
      return seconds;
    });
  }
};

// GB/s of those who do the same batches by turns.
struct rates {
  std::vector<double> ours, kernel, threads, threads_ahead, sorted;
};

void add_rivals(const rates& of, const std::string& what, unsigned nthreads, results& out) {
  const std::string who = std::to_string(nthreads) + " host threads and copies, ";
  out.ceiling("a kernel over the mapping, " + what, "GB/s", spread_of(of.kernel));
  out.ceiling(who + what, "GB/s", spread_of(of.threads));
  out.ceiling("the same that prefetch", "GB/s", spread_of(of.threads_ahead));
  if (!of.sorted.empty()) out.ceiling("a kernel over sorted rows, " + what, "GB/s", spread_of(of.sorted));
}

measurement against_rivals(const char* name, const std::string& label, const rates& of, const gathers& rows) {
  const double kernel = spread_of(of.kernel).median, threads = spread_of(of.threads).median,
               ahead = spread_of(of.threads_ahead).median;
  measurement m{name, label, of.ours, "GB/s", std::max({kernel, threads, ahead})};
  m.ceiling_is = kernel >= std::max(threads, ahead) ? "a kernel over the mapping, in the batch's order"
                 : threads >= ahead                 ? "host threads and copies"
                                                    : "host threads that prefetch, and copies";
  m.verified = rows.right();
  m.details = {{"kernel_gbps", kernel}, {"threads_gbps", threads}, {"prefetching_threads_gbps", ahead}};
  if (!of.sorted.empty()) m.details.emplace_back("sorted_kernel_gbps", spread_of(of.sorted).median);
  return m;
}

// --- Rows that are not cached --------------------------------------------------------------------------------------------------

struct wanted {
  const char *whole, *few;  // null: none
  bool share, rivals, rivals_512, in_kernel;
};

// GB/s of kernels that gather their rows themselves, with nothing cached.
template <caller Who>
void rows_in_kernel(const settings& set, const char* name, const std::string& label, std::uint64_t n, double copy,
                    gathers_in_kernels& rows, results& out) {
  measurement m{name, label, {}, "GB/s", copy, "pinned copy"};
  for (int r = 0; r <= set.repeats; ++r) {
    const double rate = rows.in_kernel<Who>(rows.distinct(n, r + 200 + 100 * static_cast<int>(Who)));
    if (r > 0) m.samples.push_back(rate);
  }
  m.verified = rows.right();
  m.details = {{"M rows/s", spread_of(m.samples).median * 1e3 / rows.row_nbytes()}};
  out.add(m);
}

void cold_rows(const settings& set, const subject& s, const host_threads_gather* threads, std::uint32_t row_nbytes, double copy,
               const wanted& want, results& out) {
  const gpufs::mount fs = mount_of(s, set.cache_nbytes);
  gathers_in_kernels rows(set, fs, s.nbytes, row_nbytes, std::min(set.nrows, s.nbytes / row_nbytes));
  const std::uint64_t n = rows.at_most(set.nrows), few = rows.at_most(set.few_rows);
  const bool rivals = want.rivals || want.rivals_512;
  rates of;
  gpufs::mount_counters before{};
  for (int r = 0; r <= set.repeats; ++r) {  // the first fills the cache with pages that nobody wants later
    if (r == 1) before = fs.counters();
    const row_numbers numbers = rows.distinct(n, r);
    const double ours = rows.ours(numbers);
    if (r == 0) continue;
    of.ours.push_back(ours);
    if (!rivals) continue;
    of.kernel.push_back(rows.by_kernel(s.mapping(), numbers));
    of.threads.push_back(rows.by_threads(*threads, gathering::plain, numbers));
    of.threads_ahead.push_back(rows.by_threads(*threads, gathering::ahead, numbers));
    if (r < set.repeats) continue;
    const sorted_rows sorted(numbers.host);
    for (int i = 0; i < set.repeats; ++i) of.sorted.push_back(rows.by_kernel(s.mapping(), numbers, &sorted));
  }
  const gpufs::mount_counters d = difference(fs.counters(), before);
  const std::uint64_t read = n * static_cast<std::uint64_t>(set.repeats);
  const std::string what = "rows of " + size_text(row_nbytes), label = count_text(n) + " " + what + s.how_bytes_come();
  if (want.share) {
    measurement m{want.whole, label, of.ours, "GB/s", copy, "pinned copy"};
    m.verified = rows.right();
    m.details = {{"M rows/s", spread_of(of.ours).median * 1e3 / row_nbytes},
                 {"hits_a_row", per(d.hits, read)},
                 {"faults_a_row", per(d.faults, read)}};
    out.add(m);
    std::vector<double> fewer;
    for (int r = 0; r <= set.repeats; ++r) {
      const double ours = rows.ours(rows.distinct(few, r + 100));
      if (r > 0) fewer.push_back(ours);
    }
    measurement some{want.few, count_text(few) + " " + what + s.how_bytes_come(), fewer, "GB/s", copy, "pinned copy"};
    some.verified = rows.right();
    some.details = {{"M rows/s", spread_of(fewer).median * 1e3 / row_nbytes}};
    out.add(some);
  }
  if (want.in_kernel) {
    rows_in_kernel<caller::grid>(set, "batch_in_kernel_512", label, n, copy, rows, out);
    rows_in_kernel<caller::block>(set, "batch_in_kernel_512_by_blocks", label, n, copy, rows, out);
    rows_in_kernel<caller::warp>(set, "batch_in_kernel_512_by_warps", label, n, copy, rows, out);
  }
  if (!rivals) return;
  add_rivals(of, what, set.nthreads, out);
  if (want.rivals) out.add(against_rivals("batch_vs_best_rival", label, of, rows));
  if (want.rivals_512) out.add(against_rivals("batch_vs_best_rival_512", label, of, rows));
}

void sorted_by(const settings& set, const subject& s, results& out) {
  constexpr unsigned window_nbits = 10;
  for (const std::uint32_t row_nbytes : {64u, 512u, 4096u}) {
    const gpufs::mount fs = mount_of(s, set.cache_nbytes);
    gathers rows(set, fs, s.nbytes, row_nbytes, std::min(set.nrows, s.nbytes / row_nbytes));
    for (const std::uint64_t wanted : {set.few_rows, set.nrows}) {
      const std::uint64_t n = rows.at_most(wanted);
      std::vector<double> by_address, by_window;
      for (int r = 0; r <= set.repeats; ++r) {
        const double address = rows.ours(rows.distinct(n, 500 + 2 * r));
        gpufs::par::forms.window_nbits = window_nbits;
        const double window = rows.ours(rows.distinct(n, 501 + 2 * r));
        gpufs::par::forms = {};
        if (r == 0) continue;
        by_address.push_back(address);
        by_window.push_back(window);
      }
      const std::string label = count_text(n) + " rows of " + size_text(row_nbytes) + ", by 1,024 windows" + s.how_bytes_come();
      measurement m{"batch_sorted_by", label, by_window, "GB/s", spread_of(by_address).median, "sorted by address"};
      m.verified = rows.right();
      const double nbytes = static_cast<double>(n * row_nbytes);
      m.details = {{"us_by_window", nbytes * 1e-3 / spread_of(by_window).median}, {"us_by_address", nbytes * 1e-3 / m.ceiling}};
      out.add(m);
    }
  }
}

void all_cold_rows(const settings& set, double copy, arguments& args, results& out) {
  struct size {
    std::uint32_t row_nbytes;
    const char *whole, *few;
  };
  constexpr size sizes[] = {{64, nullptr, nullptr},   {128, "batch_128", "batch_few_128"},
                            {256, nullptr, nullptr},  {512, "batch_512", "batch_few_512"},
                            {1024, nullptr, nullptr}, {4096, "batch_4k", "batch_few_4k"}};
  const bool rivals = args.wants("batch_vs_best_rival"), rivals_512 = args.wants("batch_vs_best_rival_512");
  const bool in_kernel = args.wants("batch_in_kernel_512");
  const subject memory(set.dir, set.file_nbytes, "memory");
  std::optional<mapped_file> map;
  std::optional<host_threads_gather> threads;
  if (memory.mapping() == nullptr) out.note("rivals: left out, " + memory.file->info().reason);
  const bool can_pull = memory.mapping() != nullptr;
  if (can_pull && (rivals || rivals_512)) {
    map.emplace(memory.folder.path() + "/data", memory.nbytes);
    threads.emplace(map->data(), set.nthreads);
  }
  for (const size& of : sizes) {
    const wanted want{of.whole,
                      of.few,
                      of.whole != nullptr && args.wants(of.whole),
                      rivals && can_pull,
                      rivals_512 && can_pull && of.row_nbytes == 512,
                      in_kernel && of.row_nbytes == 512};
    if (want.share || want.rivals || want.rivals_512 || want.in_kernel)
      cold_rows(set, memory, threads ? &*threads : nullptr, of.row_nbytes, copy, want, out);
  }
  if (args.wants("batch_sorted_by")) sorted_by(set, memory, out);
}

// --- Rows of 512 bytes of a smaller file ---------------------------------------------------------------------------------------

constexpr std::uint32_t row_nbytes = 512;

void skewed(const settings& set, const subject& s, const char* name, std::uint32_t page_nbytes, results& out) {
  const gpufs::mount fs = mount_of(s, s.nbytes / 10 / page_nbytes * page_nbytes, page_nbytes);
  const std::uint64_t n = std::max<std::uint64_t>(1, set.nrows / 4);
  gathers rows(set, fs, s.nbytes, row_nbytes, n);
  const mapped_file map(s.folder.path() + "/data", s.nbytes);
  const host_threads_gather threads(map.data(), set.nthreads);
  const zipf ranks(rows.file_rows());
  const shuffled scattered(rows.file_rows(), 12'000);
  rates of;
  gpufs::mount_counters before{};
  for (int r = 0; r < set.warm_ups + set.repeats; ++r) {
    const std::uint64_t first = static_cast<std::uint64_t>(r) * n;
    const row_numbers numbers(n, [&](std::uint64_t i) { return scattered(ranks(word_of(first + i))); });
    if (r == set.warm_ups) before = fs.counters();
    const double ours = rows.ours(numbers);
    if (r < set.warm_ups) continue;
    of.ours.push_back(ours);
    of.kernel.push_back(rows.by_kernel(s.mapping(), numbers));
    of.threads.push_back(rows.by_threads(threads, gathering::plain, numbers));
    of.threads_ahead.push_back(rows.by_threads(threads, gathering::ahead, numbers));
  }
  const gpufs::mount_counters d = difference(fs.counters(), before);
  const std::uint64_t read = n * static_cast<std::uint64_t>(set.repeats);
  add_rivals(of, "Zipf 0.99, rows of 512 B", set.nthreads, out);
  measurement m = against_rivals(name, "Zipf 0.99, pages of " + size_text(page_nbytes), of, rows);
  m.details.insert(m.details.end(), {{"hits_a_row", per(d.hits, read)}, {"faults_a_row", per(d.faults, read)}});
  out.add(m);
}

struct fill_words {
  std::uint64_t* words;
  std::uint64_t n;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t step = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    std::uint64_t i = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (; i < n; i += step) words[i] = word_of(i);
  }
};

void hot(const settings& set, const subject& s, results& out) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = s.nbytes + s.nbytes / 2;
  options.internals.nrings = on_gpu ? 0 : 1;  // as in hot.cu
  options.custom_store = s.files;
  const gpufs::mount fs(s.folder.path(), options);
  fs.prepare("data");
  gathers rows(set, fs, s.nbytes, row_nbytes, std::min(set.nrows, s.nbytes / row_nbytes));
  std::uint64_t total = 0;
  for (const std::uint64_t sum : piece_sums(4096, s.nbytes / 4096)) total += sum;
  fill_cache(fs, rows.number(), set.how, s.nbytes, total);
  const device_array<std::uint64_t> copy(s.nbytes / 8);
  run(set.how, fill_words{copy.get(), s.nbytes / 8});
  const std::uint64_t n = rows.at_most(set.nrows);
  std::vector<double> ours, selected;
  gpufs::mount_counters before{};
  for (int r = 0; r <= set.repeats; ++r) {
    if (r == 1) before = fs.counters();
    const row_numbers numbers = rows.distinct(n, r);
    const double a = rows.ours(numbers), b = rows.by_kernel(reinterpret_cast<const std::byte*>(copy.get()), numbers);
    if (r == 0) continue;
    ours.push_back(a);
    selected.push_back(b);
  }
  out.ceiling("a kernel selects rows of 512 B in device memory", "GB/s", spread_of(selected));
  measurement m{"batch_hot_512", count_text(n) + " rows of 512 B, all cached", ours, "GB/s", spread_of(selected).median};
  m.ceiling_is = "rows selected in device memory";
  m.verified = rows.right();
  add_hits(m, before, fs.counters());
  out.add(m);
}

void staged(const settings& set, const subject& s, results& out) {
  gpufs::mount_options options = short_waits();
  options.store = gpufs::store_kind::posix;
  options.cache_nbytes = std::max<std::uint64_t>(set.cache_nbytes, s.nbytes / 16);
  options.nworkers = set.nthreads;
  const gpufs::mount fs(s.folder.path(), options);
  const std::uint64_t most = std::max<std::uint64_t>(1, set.nrows / 4);
  gathers rows(set, fs, s.nbytes, row_nbytes, most);
  const std::uint64_t n = rows.at_most(most);
  const mapped_file map(s.folder.path() + "/data", s.nbytes);
  const host_threads_gather threads(map.data(), set.nthreads);
  const pinned_array<std::byte> pinned(n * row_nbytes);
  const device_array<std::byte> there(n * row_nbytes);
  bool right = true;
  const auto alone = [&](gathering how, const row_numbers& numbers) {
    std::memset(pinned.get(), 0, n * row_nbytes);
    const double seconds = threads.to_pinned(how, numbers.host, row_nbytes, pinned.get());
    copy_seconds(there.get(), pinned.get(), n * row_nbytes);
    right = has_rows(set.how, there.get(), numbers, row_nbytes) && right;
    return static_cast<double>(n * row_nbytes) / seconds * 1e-9;
  };
  std::vector<double> ours, plain, ahead;
  gpufs::mount_counters before{};
  for (int r = 0; r <= set.repeats; ++r) {
    if (r == 1) before = fs.counters();
    const row_numbers numbers = rows.distinct(n, r);
    const double a = rows.ours(numbers), b = alone(gathering::plain, numbers), c = alone(gathering::ahead, numbers);
    if (r == 0) continue;
    ours.push_back(a);
    plain.push_back(b);
    ahead.push_back(c);
  }
  const gpufs::mount_counters d = difference(fs.counters(), before);
  const std::string who = std::to_string(set.nthreads) + " threads";
  out.ceiling("rows of 512 B into pinned memory, " + who, "GB/s", spread_of(plain));
  out.ceiling("the same that prefetch", "GB/s", spread_of(ahead));
  measurement m{"batch_staged", who, ours, "GB/s", std::max(spread_of(plain).median, spread_of(ahead).median)};
  m.ceiling_is = "the same threads' gather into pinned memory";
  m.verified = right && rows.right();
  m.details = {{"M rows/s", spread_of(ours).median * 1e3 / row_nbytes},
               {"faults_a_row", per(d.faults, n * static_cast<std::uint64_t>(set.repeats))},
               {"host_reads_a_row", per(d.host_reads, n * static_cast<std::uint64_t>(set.repeats))}};
  out.add(m);
}

// --- Writing -------------------------------------------------------------------------------------------------------------------

struct make_rows {
  std::byte* to;
  const row_index* numbers;
  std::uint64_t n, salt;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    for (std::uint64_t i = global_warp(); i < n; i += warps) {
      make_words(warp, to + i * row_nbytes, static_cast<std::uint64_t>(numbers[i]) * (row_nbytes / 8), row_nbytes / 8, salt);
    }
  }
};

struct sync_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const gpufs::file file(fs, number);
    if (gpufs::fsync(block, file, gpufs::durability::page_cache) != 0 && block.leader())
      atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

struct scatter_in_kernel {
  gpufs::file to;
  gpufs::row_layout layout;
  const row_index* numbers;
  std::uint64_t n;
  const std::byte* src;
  gpufs::grid_space space;
  std::uint64_t* nfailed;

  GPUFS_DEVICE void operator()() const {
    const gpufs::row_failure failed = gpufs::scatter(gpufs::simt::this_grid(), to, layout, numbers, n, src, space);
    if (failed.error != 0 && gpufs::simt::this_grid().leader()) atomic_ref<std::uint64_t>(*nfailed).add_relaxed(1);
  }
};

// A file in memory, rows that are scattered into it, and whether it then has them.
class scatters {
 public:
  explicit scatters(const settings& set) : set_(set), folder_(set.dir) {
    make_file(path_, set.small_nbytes);
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = set.small_nbytes / 4;
    options.writable = true;
    fs_.emplace(folder_.path(), options);
  }
  std::uint64_t n() const { return n_; }
  const gpufs::mount& fs() const { return *fs_; }
  const gpufs::row_layout& layout() const { return layout_; }
  const std::byte* src() const { return src_.get(); }
  std::uint64_t* nfailed() const { return failed_.get(); }
  bool right() const { return right_; }
  const gpufs::simt::stream& turns() const { return turns_; }

  row_numbers next_numbers() {
    ++salt_;
    return row_numbers(n_, shuffled(layout_.nrows, word_of(salt_ + 12'999)));
  }
  // GB/s of write(file), fsync included.
  template <class Write>
  double rate(const row_numbers& numbers, Write write) {
    run(set_.how, make_rows{src_.get(), numbers.device.get(), n_, salt_});
    double seconds = 0;
    {
      const host_file file(*fs_, "data", O_RDWR);
      const stopwatch watch;
      write(file);
      gpufs::simt::launch({.grid = 1, .block = 256}, sync_file{fs_->ref(), file.ref().number(), failed_.get()}, turns_);
      turns_.wait();
      seconds = watch.seconds();
    }
    right_ = failed_.read_one() == 0 && right_;
    for (const row_index row : numbers.host) salts_[static_cast<std::size_t>(row)] = salt_;
    look();
    return static_cast<double>(n_ * row_nbytes) / seconds * 1e-9;
  }
  // Of a kernel that stores the same rows, sorted, which are there already. Empty: there is no mapping, as out says.
  std::vector<double> limit(const row_numbers& numbers, results& out) {
    std::vector<double> rates;
    const written_mapping map(path_, set_.small_nbytes);
    if (map.device() == nullptr) {
      out.note("stores of sorted rows: left out, " + map.why());
      return rates;
    }
    const sorted_rows sorted(numbers.host);
    for (int i = 0; i <= set_.repeats; ++i) {
      const double seconds = store_rows_seconds(set_.how, src_.get(), sorted, n_, row_nbytes, map.device());
      if (i > 0) rates.push_back(static_cast<double>(n_ * row_nbytes) / seconds * 1e-9);
    }
    look();
    return rates;
  }

 private:
  void look() {
    const auto word = [&](std::uint64_t i) { return word_of(i) + salts_[i / (row_nbytes / 8)]; };
    right_ = wrong_words(path_, set_.small_nbytes, word) == 0 && right_;
  }

  const settings& set_;
  const work_folder folder_;
  const std::string path_ = folder_.path() + "/data";
  std::optional<gpufs::mount> fs_;
  const gpufs::row_layout layout_{.row_nbytes = row_nbytes, .nrows = set_.small_nbytes / row_nbytes};
  const std::uint64_t n_ = std::min(set_.nrows, layout_.nrows / 2);
  const device_array<std::byte> src_{n_ * row_nbytes};
  const device_array<std::uint64_t> failed_{1};
  std::vector<std::uint64_t> salts_ = std::vector<std::uint64_t>(layout_.nrows);  // of each row, by whom it was written last
  std::uint64_t salt_ = 0;
  bool right_ = true;
  const gpufs::simt::stream turns_;
};

// write(file, numbers), and error() of all that was written.
template <class Write, class Error>
void scatter(const settings& set, const char* name, const std::string& by, double back, scatters& rows, results& out, Write write,
             Error error) {
  measurement m{name, count_text(rows.n()) + " rows of 512 B" + by + ", and fsync", {}, "GB/s", back, "pinned copy back"};
  std::vector<double> limit;
  const gpufs::mount_counters before = rows.fs().counters();
  for (int r = 0; r <= set.repeats; ++r) {
    const row_numbers numbers = rows.next_numbers();
    const double rate = rows.rate(numbers, [&](const host_file& file) { write(file, numbers); });
    if (r > 0) m.samples.push_back(rate);
    if (r == set.repeats) limit = rows.limit(numbers, out);
  }
  const gpufs::mount_counters d = difference(rows.fs().counters(), before);
  const std::uint64_t written = rows.n() * static_cast<std::uint64_t>(set.repeats + 1);
  m.verified = rows.right() && error() == 0;
  m.details = {{"M rows/s", spread_of(m.samples).median * 1e3 / row_nbytes},
               {"faults_a_row", per(d.faults, written)},
               {"bytes_back_a_byte", per(d.bytes_written_back, written * row_nbytes)}};
  if (!limit.empty()) {
    out.ceiling("a kernel stores sorted rows of 512 B", "GB/s", spread_of(limit));
    m.details.emplace_back("sorted_stores_gbps", spread_of(limit).median);
  }
  out.add(m);
}

void scatter_by_host(const settings& set, double back, results& out) {
  scatters rows(set);
  gpufs::row_batch batch(rows.fs(), static_cast<std::uint32_t>(std::min(rows.n(), set.at_once)));
  scatter(
      set, "scatter_512", "", back, rows, out,
      [&](const host_file& file, const row_numbers& numbers) {
        batch.scatter(file.ref(), rows.layout(), numbers.device.get(), rows.n(), rows.src(), rows.turns());
      },
      [&] { return batch.failure().error; });
}

void scatter_by_grid(const settings& set, double back, results& out) {
  scatters rows(set);
  const device_array<std::uint32_t> space(gpufs::grid_space::nwords_to_scatter(rows.n()));
  scatter(
      set, "scatter_in_kernel_512", ", by a grid", back, rows, out,
      [&](const host_file& file, const row_numbers& numbers) {
        const scatter_in_kernel kernel{
            file.ref(), rows.layout(), numbers.device.get(), rows.n(), rows.src(), {space.get(), space.size()}, rows.nfailed()};
        gpufs::simt::launch<grid_block, least_blocks>(by_all_blocks(kernel), kernel, rows.turns());
      },
      [] { return 0; });
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("batches", [&] {
    arguments args(
        argc, argv,
        "batches  --dir DIR  --file-gib N  --small-file-gib N  --cache-gib N  --rows N  --at-once N  --few-rows N  --warm-ups N  "
        "--blocks-per-sm N  --warps N",
        on_gpu);
    const machine_facts machine = this_machine();
    const settings set(args, machine);
    results out("batches", args, machine);
    if (args.wants_any({"batch_128", "batch_512", "batch_4k", "batch_in_kernel_512", "batch_vs_best_rival",
                        "batch_vs_best_rival_512", "batch_sorted_by"})) {
      const double copy = measure_copy(out, pinned_memory{}).median;
      all_cold_rows(set, copy, args, out);
    }
    if (args.wants_any({"batch_skewed", "batch_skewed_large_pages", "batch_hot_512", "batch_staged"})) {
      const subject memory(set.dir, set.small_nbytes, "memory");
      if (memory.mapping() == nullptr) {
        out.note("batch_skewed: left out, " + memory.file->info().reason);
      } else {
        if (args.wants("batch_skewed")) skewed(set, memory, "batch_skewed", 512, out);
        if (args.wants("batch_skewed_large_pages")) skewed(set, memory, "batch_skewed_large_pages", 4096, out);
      }
      if (args.wants("batch_hot_512")) hot(set, memory, out);
      if (args.wants("batch_staged")) staged(set, memory, out);
    }
    if (args.wants_any({"scatter_512", "scatter_in_kernel_512"})) {
      const double back = measure_copy_back(out, pinned_memory{}).median;
      if (args.wants("scatter_512")) scatter_by_host(set, back, out);
      if (args.wants("scatter_in_kernel_512")) scatter_by_grid(set, back, out);
    }
    return out.finish();
  });
}
