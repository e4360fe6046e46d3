// SPDX-License-Identifier: Apache-2.0
// What bench/scans measures on: the elements, CUB as the rival, both sides' turns, and the line of the results.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "device.hpp"
#include "gpufs/par/scan_space.hpp"

#if GPUFS_ON_CUDA
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#endif

namespace bench {
inline namespace GPUFS_MACHINE {

using element = std::uint32_t;

// --- Data -------------------------------------------------------------------------------------------------------------------

GPUFS_HOST_DEVICE element element_at(std::uint64_t i) { return static_cast<element>(word_of(i) >> 32); }
// Of an array of T, which is element or float. Real numbers are -1, 0 or 1, whose sums are exact in any order.
template <class T>
GPUFS_HOST_DEVICE T value_at(std::uint64_t i) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(static_cast<int>(element_at(i) % 3) - 1);
  } else {
    return element_at(i);
  }
}
GPUFS_HOST_DEVICE bool is_head_at(std::uint64_t i, std::uint64_t mean) { return i == 0 || scaled(word_of(~i), mean) == 0; }

struct is_kept {
  GPUFS_HOST_DEVICE bool operator()(element x) const { return x % 2 == 0; }
};

// work(i) for i below n, by all threads of a launch.
template <class Work>
struct for_all {
  std::uint64_t n;
  Work work;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::uint64_t all = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    for (std::uint64_t i = me; i < n; i += all) work(i);
  }
};
template <class T>
struct fill_elements {
  T* to;
  GPUFS_DEVICE void operator()(std::uint64_t i) const { to[i] = value_at<T>(i); }
};
struct fill_numbers {
  element* to;
  GPUFS_DEVICE void operator()(std::uint64_t i) const { to[i] = static_cast<element>(i); }
};
struct fill_heads {
  std::uint8_t* to;
  std::uint64_t mean;
  GPUFS_DEVICE void operator()(std::uint64_t i) const { to[i] = is_head_at(i, mean) ? 1 : 0; }
};
struct heads_to_bits {  // of 32 elements
  const std::uint8_t* heads;
  std::uint32_t* to;
  std::uint64_t n;
  GPUFS_DEVICE void operator()(std::uint64_t word) const {
    std::uint32_t bits = 0;
    for (std::uint64_t i = word * 32; i < word * 32 + 32 && i < n; ++i) bits |= std::uint32_t{heads[i]} << i % 32;
    to[word] = bits;
  }
};
template <class T>
struct count_different {
  const T *a, *b;
  std::uint64_t* count;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    if (a[i] != b[i]) atomic_ref<std::uint64_t>(*count).add_relaxed(1);
  }
};

struct settings {
  machine_facts machine;
  std::uint64_t n, nsorted, mean;
  int repeats;
  unsigned ncalls;

  template <class Work>
  double for_each(std::uint64_t count, const Work& work) const {
    return run(on_gpu ? shape{machine.nprocessors * 8, 256} : shape{2, 64}, for_all<Work>{count, work});
  }
  template <class T>
  bool are_same(const device_array<T>& a, const device_array<T>& b, std::uint64_t count) const {
    const device_array<std::uint64_t> ndifferent(1);
    for_each(count, count_different<T>{a.get(), b.get(), ndifferent.get()});
    return ndifferent.read_one() == 0;
  }
};

// The first elements of an answer, and its last one, against `wanted(i, so_far)` for i = 0, 1, ... and `last`.
template <class T, class Wanted>
bool begins_with(const device_array<T>& got, std::uint64_t n, Wanted wanted) {
  std::vector<T> first(std::min<std::uint64_t>(n, 1u << 20));
  gpufs::simt::this_platform().copy_from_device(first.data(), got.get(), first.size() * sizeof(T));
  T so_far = 0;
  for (std::uint64_t i = 0; i < first.size(); ++i) {
    so_far = wanted(i, so_far);
    if (first[i] != so_far) {
      std::printf("WRONG: element %llu\n", static_cast<unsigned long long>(i));
      return false;
    }
  }
  return true;
}
template <class T>
T sum_on_host(std::uint64_t n) {
  return static_cast<T>(static_cast<std::int64_t>(sum_in_parallel(n, [](std::uint64_t begin, std::uint64_t end) {
    std::int64_t sum = 0;
    for (std::uint64_t i = begin; i < end; ++i) sum += static_cast<std::int64_t>(value_at<T>(i));
    return static_cast<std::uint64_t>(sum);
  })));
}

// --- Ours -------------------------------------------------------------------------------------------------------------------

// What a call said, by one thread of the grid.
struct said {
  std::int64_t error;
  std::uint64_t all;  // by its bytes, of any type

  template <class T>
  T all_as() const {
    T value;
    std::memcpy(&value, &all, sizeof value);
    return value;
  }
};
template <class Result>
GPUFS_DEVICE void say(said* to, const Result& result) {
  if (!gpufs::simt::this_grid().leader()) return;
  *to = {result.error, 0};
  std::memcpy(&to->all, &result.all, sizeof result.all);
}

// A kernel on as many blocks as run at once, blocks of Threads of which Blocks fit on a multiprocessor; with space for a call of
// n elements.
template <unsigned Threads, unsigned Blocks, class Kernel>
class by_grid {
 public:
  by_grid(Kernel kernel, std::uint64_t n)
      : grid_(most_together<Threads, Blocks>(kernel)),
        space_(std::max(gpufs::par::scan_space::nbytes_for<element>(n, grid_, Threads),
                        gpufs::par::scan_space::nbytes_to_sort(grid_))),
        kernel_(kernel) {
    kernel_.space = {space_.get(), space_.size()};
    kernel_.to = to_.get();
  }
  void operator()() const { launch_together<Threads, Blocks>({grid_, Threads}, kernel_); }
  said answer() const { return to_.read_one(); }
  void describe(measurement& m, const machine_facts& machine) const {
    m.details.emplace_back("threads_a_block", Threads);
    m.details.emplace_back("blocks_an_sm", static_cast<double>(grid_) / machine.nprocessors);
#if GPUFS_ON_CUDA
    cudaFuncAttributes attributes{};
    const void* const entry = gpufs::simt::detail::cuda_entry<Threads, Blocks, Kernel>();
    check(cudaFuncGetAttributes(&attributes, entry), "cudaFuncGetAttributes");
    m.details.emplace_back("registers", attributes.numRegs);
    m.details.emplace_back("local_nbytes", static_cast<double>(attributes.localSizeBytes));
#endif
  }

 private:
  unsigned grid_;
  device_array<std::byte> space_;
  device_array<said> to_{1};
  Kernel kernel_;
};

// --- The rival --------------------------------------------------------------------------------------------------------------

#if GPUFS_ON_CUDA
constexpr const char* rival_name = "CUB";
// call(space, nbytes) as CUB's calls are; the first time only for the space that it wants.
template <class Call>
class by_cub {
 public:
  explicit by_cub(Call call) : call_(call), space_(needed(call)) {}
  void operator()() const {
    std::size_t nbytes = space_.size();
    check(call_(space_.get(), nbytes), "CUB");
  }

 private:
  static std::size_t needed(Call call) {
    std::size_t nbytes = 0;
    check(call(nullptr, nbytes), "CUB");
    return nbytes;
  }
  Call call_;
  device_array<std::byte> space_;
};
#else
constexpr const char* rival_name = "";
#endif

// What is done before each sample of ours, outside the timed part.
struct no_preparation {
  void operator()() const {}
};

// The seconds that each of some calls takes, one behind the other; waits until all are done.
template <class Call>
double seconds_a_call(const Call& call, unsigned ncalls = 1) {
  const auto all = [&] {
    for (unsigned i = 0; i < ncalls; ++i) call();
  };
#if GPUFS_ON_CUDA
  return device_seconds(all) / ncalls;
#else
  const stopwatch watch;
  all();
  return watch.seconds() / ncalls;
#endif
}

// Seconds a call of each side, by turns.
struct sides {
  std::vector<double> ours, theirs;
};
template <class Ours, class Theirs, class Prepare>
sides by_turns(const settings& set, const Ours& ours, const Theirs& theirs, const Prepare& prepare, unsigned ncalls) {
  sides both;
  for (int r = 0; r <= set.repeats; ++r) {
    prepare();
    const double a = seconds_a_call(ours, ncalls), b = seconds_a_call(theirs, ncalls);
    if (r == 0) continue;
    both.ours.push_back(a);
    both.theirs.push_back(b);
  }
  return both;
}

// A line of the results: `n` elements a call, which read and write so many bytes at least.
template <class Ours>
void report(const settings& set, const char* name, const std::string& label, std::uint64_t n, double nbytes, double rival_nbytes,
            const Ours& ours, const sides& both, bool right, results& out) {
  const auto rates = [n](const std::vector<double>& seconds) {
    std::vector<double> per_second;
    for (const double s : seconds) per_second.push_back(static_cast<double>(n) / s * 1e-9);
    return per_second;
  };
  measurement m{name, label, rates(both.ours), "G elements/s"};
  if (on_gpu) {
    m.ceiling = spread_of(rates(both.theirs)).median;
    m.ceiling_is = rival_name;
  }
  m.verified = right && ours.answer().error == 0;
  const double gb = static_cast<double>(n) * 1e-9;
  m.details = {{"gb_per_second", spread_of(m.samples).median * nbytes / static_cast<double>(n)},
               {"rivals_gb_per_second", m.ceiling * rival_nbytes / static_cast<double>(n)},
               {"us_a_call", gb / spread_of(m.samples).median * 1e6}};
  ours.describe(m, set.machine);
  out.add(m);
}

}  // namespace GPUFS_MACHINE
}  // namespace bench
