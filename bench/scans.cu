// SPDX-License-Identifier: Apache-2.0
// Scans, segmented scans, sorts, compactions and reductions that a kernel calls by all its blocks (gpufs/par): how near do they
// come to CUB's, which the host calls, over the same data in GPU memory? No file is read.
//
// par_scan_device: an inclusive scan of 2^28 elements of 4 bytes by one cooperative launch, as a share of cub::DeviceScan.
// par_segscan_device: the same by segments whose lengths are random, 100 elements by default on average, as a share of
// cub::DeviceScan::InclusiveSumByKey. Where segments begin ours read as a bit an element; CUB reads a key of 4 bytes an element,
// the segment's number. par_segscan_bytes: the same, ours with a byte an element. par_scan_fixed_device: the scan of real numbers
// of 4 bytes in fixed order, and in any, as a share of cub::DeviceScan of the same. par_sort_device, par_sort_pairs_device: of 2^26
// keys, with a value of 4 bytes each or alone, in place, against cub::DeviceRadixSort. par_compact_device: half of the elements are
// kept, against cub::DeviceSelect::If. par_reduce_device: against cub::DeviceReduce. par_scan_by_shape, par_segscan_by_shape,
// par_compact_by_shape: blocks of other sizes, more or fewer of them; par_scan_by_rows: with more elements a thread, and without
// asking for them ahead. Ceilings: a kernel that copies the elements, and the driver's copy.
//
// Both sides take turns; a sample is the mean of some calls one behind the other, each with all that it has to do, CUB's with its
// memory allocated. Every element of the answers is compared with CUB's on the device; their first ones, and the last one, with
// loops on the host, which is all of them on the CPU machine, where there is no CUB.
#include <cstring>

#include "gpufs/par/compact.hpp"
#include "gpufs/par/scan.hpp"
#include "gpufs/par/sort.hpp"
#include "scan_rival.hpp"

namespace {

using namespace bench;
using gpufs::par::plus;
using gpufs::par::scan_order;
using gpufs::par::scan_space;

// --- Ours -------------------------------------------------------------------------------------------------------------------

template <class T>
struct scan_job {
  const T* in;
  T* out;
  std::uint64_t n;
  said* to;
  scan_space space;
};
template <class T, scan_order Order = scan_order::any>
struct scan_all : scan_job<T> {
  GPUFS_DEVICE void operator()() const {
    say(this->to,
        gpufs::par::inclusive_scan(gpufs::simt::this_grid(), this->in, this->out, this->n, plus<T>{}, this->space, Order));
  }
};
// The same with other numbers of elements a thread, or without the request to the second-level cache for later tiles.
enum class elements { fetched_ahead, loaded };
template <unsigned Rows, elements Are>
struct rows_of : gpufs::par::detail::array_items<const element, gpufs::par::detail::memory::global> {
  static constexpr unsigned nrows = Rows;
  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    if constexpr (Are == elements::fetched_ahead) array_items::prefetch(begin, end);
  }
};
template <unsigned Rows, elements Are>
struct scan_by_rows : scan_job<element> {
  GPUFS_DEVICE void operator()() const {
    namespace detail = gpufs::par::detail;
    const plus<element> op;
    say(to, detail::scan_by_grid(gpufs::simt::this_grid(), "scan_by_rows", in, out, rows_of<Rows, Are>{{in}}, n, op, space,
                                 scan_order::any, detail::put_scan<true, plus<element>, detail::memory::global>{{op}, {out}}));
  }
};
template <class Heads>
struct scan_segments {
  const element* in;
  Heads heads;
  element* out;
  std::uint64_t n;
  said* to;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    say(to, gpufs::par::inclusive_segmented_scan(gpufs::simt::this_grid(), in, heads, out, n, plus<element>{}, space));
  }
};
struct compact_all {
  const element* in;
  element* out;
  std::uint64_t n;
  said* to;
  scan_space space;
  GPUFS_DEVICE void operator()() const { say(to, gpufs::par::compact(gpufs::simt::this_grid(), in, out, n, is_kept{}, space)); }
};
struct reduce_all {
  const element* in;
  std::uint64_t n;
  said* to;
  scan_space space;
  GPUFS_DEVICE void operator()() const { say(to, gpufs::par::reduce(gpufs::simt::this_grid(), in, n, plus<element>{}, space)); }
};
template <bool WithValues>
struct sort_all {
  element *keys, *keys_space, *values, *values_space;
  std::uint64_t n;
  said* to;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const auto grid = gpufs::simt::this_grid();
    int error = 0;
    if constexpr (WithValues) {
      error = gpufs::par::sort(grid, keys, values, n, keys_space, values_space, space);
    } else {
      error = gpufs::par::sort(grid, keys, n, keys_space, space);
    }
    if (grid.leader()) *to = {error, 0};
  }
};

// Blocks of 256 threads, as many as have the registers on a multiprocessor. Of 512 for scans: half as many tiles.
#if GPUFS_ON_CUDA
template <class Kernel>
using usual_scan = by_grid<512, 2, Kernel>;
template <unsigned Blocks, class Kernel>
using usual = by_grid<256, Blocks, Kernel>;
#else
template <class Kernel>
using usual_scan = by_grid<64, 1, Kernel>;
template <unsigned, class Kernel>
using usual = by_grid<64, 1, Kernel>;
#endif

// --- What is measured -------------------------------------------------------------------------------------------------------

constexpr double of_elements = sizeof(element);

void measure_copies(const settings& set, const device_array<element>& in, const device_array<element>& to, results& out) {
  using gpufs::simt::vec16;
  const std::uint64_t nbytes = set.n * sizeof(element) / sizeof(vec16) * sizeof(vec16);
  const auto rates = [&](auto seconds) {
    std::vector<double> gb;
    for (int r = 0; r <= set.repeats + 2; ++r) {
      const double s = seconds();
      if (r != 0) gb.push_back(2 * static_cast<double>(nbytes) / s * 1e-9);
    }
    return spread_of(gb);
  };
  const copy_vectors kernel{reinterpret_cast<const vec16*>(in.get()), reinterpret_cast<vec16*>(to.get()), nbytes / sizeof(vec16)};
  const shape how = on_gpu ? shape{set.machine.nprocessors * 8, 256} : shape{2, 64};
  out.ceiling("a kernel that copies device memory, read and written", "GB/s", rates([&] { return run<8>(how, kernel); }));
  out.ceiling("the driver's copy of device memory, read and written", "GB/s",
              rates([&] { return device_copy_seconds(to.get(), in.get(), nbytes); }));
}

// The elements, and room for both sides' answers.
template <class T>
struct arrays {
  device_array<T> in, ours, theirs;
  explicit arrays(const settings& set, std::uint64_t n) : in(n), ours(n), theirs(on_gpu ? n : 1) {
    set.for_each(n, fill_elements<T>{in.get()});
  }
};

template <class T, class Ours>
void measure_scan(const settings& set, const char* name, const std::string& label, const arrays<T>& of, const Ours& ours,
                  results& out) {
  const std::uint64_t n = set.n;
#if GPUFS_ON_CUDA
  const by_cub theirs([&of, n](void* space, std::size_t& nbytes) {
    return cub::DeviceScan::InclusiveSum(space, nbytes, of.in.get(), of.theirs.get(), static_cast<std::uint32_t>(n),
                                         bench_stream());
  });
#else
  const no_preparation theirs;
#endif
  const sides both = by_turns(set, ours, theirs, no_preparation{}, set.ncalls);
  bool right = begins_with(of.ours, n, [](std::uint64_t i, T so_far) { return so_far + value_at<T>(i); });
  const T all = sum_on_host<T>(n);
  right = right && of.ours.read_one(n - 1) == all && ours.answer().template all_as<T>() == all;
  if (on_gpu) right = right && set.are_same(of.ours, of.theirs, n);
  const double nbytes = 2 * sizeof(T) * static_cast<double>(n);
  report(set, name, label, n, nbytes, nbytes, ours, both, right, out);
}

// Where segments begin, in each form.
struct segments {
  device_array<std::uint8_t> bytes;
  device_array<std::uint32_t> bits;
  device_array<element> numbers;  // of each element its segment's; for CUB

  explicit segments(const settings& set) : bytes(set.n), bits(set.n / 32 + 1), numbers(on_gpu ? set.n : 1) {
    set.for_each(set.n, fill_heads{bytes.get(), set.mean});
    set.for_each((set.n + 31) / 32, heads_to_bits{bytes.get(), bits.get(), set.n});
#if GPUFS_ON_CUDA
    const by_cub number([this, n = set.n](void* space, std::size_t& nbytes) {
      return cub::DeviceScan::InclusiveSum(space, nbytes, bytes.get(), numbers.get(), static_cast<std::uint32_t>(n),
                                           bench_stream());
    });
    device_seconds(number);
#endif
  }
};

template <class Ours>
void measure_segments(const settings& set, const char* name, const std::string& label, const arrays<element>& of,
                      [[maybe_unused]] const segments& at, double head_nbytes, const Ours& ours, results& out) {
  const std::uint64_t n = set.n;
#if GPUFS_ON_CUDA
  const by_cub theirs([&](void* space, std::size_t& nbytes) {
    return cub::DeviceScan::InclusiveSumByKey(space, nbytes, at.numbers.get(), of.in.get(), of.theirs.get(),
                                              static_cast<std::uint32_t>(n), ::cuda::std::equal_to<>{}, bench_stream());
  });
#else
  const no_preparation theirs;
#endif
  const sides both = by_turns(set, ours, theirs, no_preparation{}, set.ncalls);
  bool right = begins_with(of.ours, n, [&](std::uint64_t i, element so_far) {
    return is_head_at(i, set.mean) ? element_at(i) : so_far + element_at(i);
  });
  element last = 0;
  for (std::uint64_t i = n; i-- != 0;) {
    last += element_at(i);
    if (is_head_at(i, set.mean)) break;
  }
  right = right && of.ours.read_one(n - 1) == last && ours.answer().template all_as<element>() == last;
  if (on_gpu) right = right && set.are_same(of.ours, of.theirs, n);
  const double count = static_cast<double>(n);
  report(set, name, label, n, (2 * of_elements + head_nbytes) * count, 3 * of_elements * count, ours, both, right, out);
}

template <bool WithValues>
void measure_sort(const settings& set, const char* name, results& out) {
  const std::uint64_t n = set.nsorted, nvalues = WithValues ? n : 1;
  const device_array<element> in(n), numbers(nvalues), keys(n), keys_space(n), values(nvalues), values_space(nvalues);
  const device_array<element> their_keys(on_gpu ? n : 1), their_values(on_gpu ? nvalues : 1);
  set.for_each(n, fill_elements<element>{in.get()});
  set.for_each(nvalues, fill_numbers{numbers.get()});
  // Ours sorts in place.
  const auto prepare = [&] {
    device_copy_seconds(keys.get(), in.get(), n * sizeof(element));
    device_copy_seconds(values.get(), numbers.get(), nvalues * sizeof(element));
  };
  const usual<3, sort_all<WithValues>> ours({keys.get(), keys_space.get(), values.get(), values_space.get(), n, nullptr, {}}, n);
#if GPUFS_ON_CUDA
  const by_cub theirs([&](void* space, std::size_t& nbytes) {
    const auto count = static_cast<std::uint32_t>(n);
    if constexpr (WithValues) {
      return cub::DeviceRadixSort::SortPairs(space, nbytes, in.get(), their_keys.get(), numbers.get(), their_values.get(), count, 0,
                                             32, bench_stream());
    } else {
      return cub::DeviceRadixSort::SortKeys(space, nbytes, in.get(), their_keys.get(), count, 0, 32, bench_stream());
    }
  });
#else
  const no_preparation theirs;
#endif
  const sides both = by_turns(set, ours, theirs, prepare, 1);
  bool right = true;
  if (on_gpu) {
    right = set.are_same(keys, their_keys, n) && (!WithValues || set.are_same(values, their_values, n));
  } else {
    std::vector<std::uint64_t> wanted;  // a key and its number
    for (std::uint64_t i = 0; i < n; ++i) wanted.push_back(std::uint64_t{element_at(i)} << 32 | i);
    std::sort(wanted.begin(), wanted.end());
    right = begins_with(keys, n, [&](std::uint64_t i, element) { return static_cast<element>(wanted[i] >> 32); }) &&
            (!WithValues || begins_with(values, n, [&](std::uint64_t i, element) { return static_cast<element>(wanted[i]); }));
  }
  const double nbytes = 2 * of_elements * static_cast<double>(n) * (WithValues ? 2 : 1);
  report(set, name, WithValues ? "keys of 4 bytes with values of 4 bytes" : "keys of 4 bytes", n, nbytes, nbytes, ours, both, right,
         out);
}

template <class Ours>
void measure_compaction(const settings& set, const char* name, const std::string& label, const arrays<element>& of,
                        const Ours& ours, results& out) {
  const std::uint64_t n = set.n;
  const std::uint64_t nkept = sum_in_parallel(n, [](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t count = 0;
    for (std::uint64_t i = begin; i < end; ++i) count += is_kept{}(element_at(i)) ? 1 : 0;
    return count;
  });
#if GPUFS_ON_CUDA
  const device_array<std::uint32_t> nselected(1);
  const by_cub theirs([&](void* space, std::size_t& nbytes) {
    return cub::DeviceSelect::If(space, nbytes, of.in.get(), of.theirs.get(), nselected.get(), static_cast<int>(n), is_kept{},
                                 bench_stream());
  });
#else
  const no_preparation theirs;
#endif
  const sides both = by_turns(set, ours, theirs, no_preparation{}, set.ncalls);
  bool right = ours.answer().all == nkept;
  std::uint64_t next = 0;
  right = right && begins_with(of.ours, nkept, [&next](std::uint64_t, element) {
            while (!is_kept{}(element_at(next))) ++next;
            return element_at(next++);
          });
  if (on_gpu) right = right && set.are_same(of.ours, of.theirs, nkept);
  const double nbytes = of_elements * static_cast<double>(n + nkept);
  report(set, name, label, n, nbytes, nbytes, ours, both, right, out);
}

void measure_reduction(const settings& set, const arrays<element>& of, results& out) {
  const std::uint64_t n = set.n;
  const usual<6, reduce_all> ours({of.in.get(), n, nullptr, {}}, n);
#if GPUFS_ON_CUDA
  const by_cub theirs([&](void* space, std::size_t& nbytes) {
    return cub::DeviceReduce::Sum(space, nbytes, of.in.get(), of.theirs.get(), static_cast<std::uint32_t>(n), bench_stream());
  });
#else
  const no_preparation theirs;
#endif
  const sides both = by_turns(set, ours, theirs, no_preparation{}, set.ncalls);
  const bool right = ours.answer().all_as<element>() == sum_on_host<element>(n);
  const double nbytes = of_elements * static_cast<double>(n);
  report(set, "par_reduce_device", "sum of 4-byte elements", n, nbytes, nbytes, ours, both, right, out);
}

template <unsigned Threads, unsigned Blocks>
void measure_shape(arguments& args, const settings& set, const arrays<element>& of, const segments& at, results& out) {
  const std::string label = std::to_string(Blocks) + " blocks of " + std::to_string(Threads) + " threads an SM";
  const auto heads = gpufs::par::heads_by_bits{at.bits.get()};
  if (args.wants("par_scan_by_shape")) {
    measure_scan(set, "par_scan_by_shape", label, of,
                 by_grid<Threads, Blocks, scan_all<element>>({of.in.get(), of.ours.get(), set.n, nullptr, {}}, set.n), out);
  }
  if (args.wants("par_segscan_by_shape")) {
    measure_segments(set, "par_segscan_by_shape", label, of, at, 1. / 8,
                     by_grid<Threads, Blocks, scan_segments<gpufs::par::heads_by_bits>>(
                         {of.in.get(), heads, of.ours.get(), set.n, nullptr, {}}, set.n),
                     out);
  }
  if (args.wants("par_compact_by_shape")) {
    measure_compaction(set, "par_compact_by_shape", label, of,
                       by_grid<Threads, Blocks, compact_all>({of.in.get(), of.ours.get(), set.n, nullptr, {}}, set.n), out);
  }
}

template <unsigned Threads, unsigned Blocks, unsigned Rows, elements Are = elements::fetched_ahead>
void measure_rows(const settings& set, const arrays<element>& of, results& out) {
  const std::string label = std::to_string(Blocks) + " blocks of " + std::to_string(Threads) + " threads an SM, " +
                            std::to_string(Rows * scan_space::items_a_row(sizeof(element))) + " elements a thread" +
                            (Are == elements::loaded ? ", not fetched ahead" : "");
  measure_scan(set, "par_scan_by_rows", label, of,
               by_grid<Threads, Blocks, scan_by_rows<Rows, Are>>({of.in.get(), of.ours.get(), set.n, nullptr, {}}, set.n), out);
}

void measure_over_elements(arguments& args, const settings& set, results& out) {
  const arrays<element> of(set, set.n);
  const segments at(set);
  const std::string mean = "segments of " + std::to_string(set.mean) + " elements, ";
  measure_copies(set, of.in, of.ours, out);
  if (args.wants("par_scan_device")) {
    measure_scan(set, "par_scan_device", "inclusive, sums of 4-byte elements", of,
                 usual_scan<scan_all<element>>({of.in.get(), of.ours.get(), set.n, nullptr, {}}, set.n), out);
  }
  if (args.wants("par_segscan_device")) {
    using gpufs::par::heads_by_bits;
    measure_segments(set, "par_segscan_device", mean + "heads by bits", of, at, 1. / 8,
                     usual_scan<scan_segments<heads_by_bits>>(
                         {of.in.get(), heads_by_bits{at.bits.get()}, of.ours.get(), set.n, nullptr, {}}, set.n),
                     out);
  }
  if (args.wants("par_segscan_bytes")) {
    using gpufs::par::heads_by_bytes;
    measure_segments(set, "par_segscan_bytes", mean + "heads by bytes", of, at, 1,
                     usual_scan<scan_segments<heads_by_bytes>>(
                         {of.in.get(), heads_by_bytes{at.bytes.get()}, of.ours.get(), set.n, nullptr, {}}, set.n),
                     out);
  }
  if (args.wants("par_compact_device")) {
    measure_compaction(set, "par_compact_device", "half of the elements are kept", of,
                       usual<4, compact_all>({of.in.get(), of.ours.get(), set.n, nullptr, {}}, set.n), out);
  }
  if (args.wants("par_reduce_device")) measure_reduction(set, of, out);
#if GPUFS_ON_CUDA
  if (args.wants_any({"par_scan_by_shape", "par_segscan_by_shape", "par_compact_by_shape"})) {
    measure_shape<128, 8>(args, set, of, at, out);
    measure_shape<128, 12>(args, set, of, at, out);
    measure_shape<256, 4>(args, set, of, at, out);
    measure_shape<256, 5>(args, set, of, at, out);
    measure_shape<256, 6>(args, set, of, at, out);
    measure_shape<512, 2>(args, set, of, at, out);
    measure_shape<512, 3>(args, set, of, at, out);
    measure_shape<1024, 1>(args, set, of, at, out);
  }
  if (args.wants("par_scan_by_rows")) {
    measure_rows<256, 4, 4, elements::loaded>(set, of, out);
    measure_rows<256, 4, 5>(set, of, out);
    measure_rows<256, 4, 6>(set, of, out);
    measure_rows<256, 3, 6>(set, of, out);
    measure_rows<256, 3, 8>(set, of, out);
    measure_rows<512, 2, 4, elements::loaded>(set, of, out);
    measure_rows<512, 2, 5>(set, of, out);
    measure_rows<512, 2, 6>(set, of, out);
    measure_rows<512, 2, 6, elements::loaded>(set, of, out);
    measure_rows<1024, 1, 4, elements::loaded>(set, of, out);
    measure_rows<1024, 1, 5>(set, of, out);
    measure_rows<1024, 1, 6>(set, of, out);
  }
#endif
}

void measure_orders(const settings& set, results& out) {
  const arrays<float> of(set, set.n);
  const scan_job<float> job{of.in.get(), of.ours.get(), set.n, nullptr, {}};
  measure_scan(set, "par_scan_fixed_device", "inclusive, sums of 4-byte real numbers in fixed order", of,
               usual_scan<scan_all<float, scan_order::fixed>>({job}, set.n), out);
  measure_scan(set, "par_scan_fixed_device", "inclusive, sums of 4-byte real numbers in any order", of,
               usual_scan<scan_all<float>>({job}, set.n), out);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("scans", [&] {
    arguments args(argc, argv, "scans  --elements N  --sort-elements N  --segment N  --calls N  --dir DIR", on_gpu);
    const settings set{
        this_machine(),
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(args.number("elements", {1u << 28, 1u << 22, 5001}))),
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(args.number("sort-elements", {1u << 26, 1u << 21, 2001}))),
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(args.number("segment", 100))),
        repeats_of(args),
        std::max(1u, static_cast<unsigned>(args.number("calls", {8, 4, 1})))};
    args.path("dir", "");  // as for all; nothing is written there
    results out("scans", args, set.machine);
    if (set.n > 1u << 30 || set.nsorted > 1u << 30) throw std::invalid_argument("at most 2^30 elements");
    if (!on_gpu) out.note("no CUB on the CPU machine");
    if (args.wants_any({"par_scan_device", "par_segscan_device", "par_segscan_bytes", "par_compact_device", "par_reduce_device",
                        "par_scan_by_shape", "par_segscan_by_shape", "par_compact_by_shape", "par_scan_by_rows"})) {
      measure_over_elements(args, set, out);
    }
    if (args.wants("par_scan_fixed_device")) measure_orders(set, out);
    if (args.wants("par_sort_device")) measure_sort<false>(set, "par_sort_device", out);
    if (args.wants("par_sort_pairs_device")) measure_sort<true>(set, "par_sort_pairs_device", out);
    return out.finish();
  });
}
