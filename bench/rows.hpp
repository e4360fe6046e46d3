// SPDX-License-Identifier: Apache-2.0
// Batches of rows without gpufs: which rows, how their answers are checked, and the two ways in which programs get them to a device
// otherwise: a kernel that copies them, from a registered mapping or from device memory, and host threads.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "access.hpp"
#include "written.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// --- Which rows ----------------------------------------------------------------------------------------------------------------

using row_index = std::int64_t;  // as PyTorch's indices are

// The rows 0 .. 2^nbits - 1 in another order: each step can be undone, so no two i give the same.
class shuffled {
 public:
  // nrows: a power of two, 2 at least.
  shuffled(std::uint64_t nrows, std::uint64_t seed)
      : mask_(nrows - 1), seed_(seed), shift_(std::max(1u, static_cast<unsigned>(std::bit_width(mask_) + 1) / 2)) {}
  row_index operator()(std::uint64_t i) const {
    std::uint64_t x = (i ^ seed_) & mask_;
    for (std::uint64_t round = 0; round < 4; ++round) {
      x = x * (word_of(seed_ + round) | 1) & mask_;
      x ^= x >> shift_;
    }
    return static_cast<row_index>(x);
  }

 private:
  std::uint64_t mask_, seed_;
  unsigned shift_;
};

// Rank i, of n, with a probability as 1 / (i + 1)^theta: by the formula of YCSB, which is that of Gray et al., "Quickly generating
// billion-record synthetic databases" (SIGMOD'94), section 3.3. From the third rank on it inverts the integral of that, so theta
// may be anything but 1.
class zipf {
 public:
  explicit zipf(std::uint64_t n, double theta = 0.99) : n_(static_cast<double>(n)), theta_(theta) {
    for (std::uint64_t i = n; i > 0; --i) zeta_ += std::pow(static_cast<double>(i), -theta_);
    eta_ = (1 - std::pow(2 / n_, 1 - theta_)) / (1 - (1 + std::pow(0.5, theta_)) / zeta_);
  }
  std::uint64_t operator()(std::uint64_t random) const {
    const double u = static_cast<double>(random >> 11) * 0x1p-53;
    if (u * zeta_ < 1) return 0;
    if (u * zeta_ < 1 + std::pow(0.5, theta_)) return 1;
    const double rank = n_ * std::pow(eta_ * u - eta_ + 1, 1 / (1 - theta_));
    return static_cast<std::uint64_t>(std::clamp(rank, 0., n_ - 1));
  }

 private:
  double n_, theta_, zeta_ = 0, eta_ = 0;
};

// The rows of a batch, for both sides.
struct row_numbers {
  // number(i): the row at place i.
  template <class Number>
  row_numbers(std::uint64_t n, const Number& number) : host(n), device(n) {
    sum_in_parallel(n, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t i = begin; i < end; ++i) host[i] = number(i);
      return 0;
    });
    device.write(host);
  }
  std::vector<row_index> host;
  device_array<row_index> device;
};

// The same in the order of their addresses, with the place of each.
struct sorted_rows {
  explicit sorted_rows(const std::vector<row_index>& in) : numbers(in.size()), places(in.size()) {
    std::vector<std::uint32_t> order(in.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return in[a] < in[b]; });
    std::vector<row_index> sorted(in.size());
    for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = in[order[i]];
    numbers.write(sorted);
    places.write(order);
  }
  device_array<row_index> numbers;
  device_array<std::uint32_t> places;
};

// --- What they must be ---------------------------------------------------------------------------------------------------------

struct compare_rows {
  const std::byte* got;
  const row_index* numbers;
  std::uint64_t n;
  std::uint32_t row_nbytes;
  wrong_or_failed* counts;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    for (std::uint64_t i = global_warp(); i < n; i += warps) {
      compare(warp, got + i * row_nbytes, static_cast<std::uint64_t>(numbers[i]) * row_nbytes, row_nbytes / 8, counts);
    }
  }
};

// Whether `got`, in device memory, has those rows of a file of the usual content.
inline bool has_rows(const shape& how, const std::byte* got, const row_numbers& numbers, std::uint32_t row_nbytes) {
  const device_array<wrong_or_failed> counts(1);
  run(how, compare_rows{got, numbers.device.get(), numbers.host.size(), row_nbytes, counts.get()});
  return told(counts.read_one());
}

// --- By a kernel ---------------------------------------------------------------------------------------------------------------

// Row numbers[i] of a file comes to, or from, place i of the batch. from_file_or_kept: some rows are in device memory.
enum class copying { from_file, from_file_or_kept, to_file };
constexpr std::uint32_t not_kept = ~0u;

// A group takes four rows at a time, by 16-byte loads, one of each row in flight.
template <unsigned Lanes, copying Way = copying::from_file>
struct copy_rows {
  const std::byte* from;
  const row_index* numbers;
  const std::uint32_t* places;  // null: in order
  std::uint64_t n;
  std::uint32_t row_nbytes;
  std::byte* to;
  const std::byte* kept = nullptr;       // rows
  const std::uint32_t* slots = nullptr;  // of each row of the file: which of those, or not_kept

  GPUFS_DEVICE void operator()() const {
    constexpr std::uint64_t at_once = 4;
    const gpufs::simt::tile<Lanes> group;
    const std::uint64_t thread = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::uint64_t step = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size() / Lanes * at_once;
    const std::uint32_t nwords = row_nbytes / sizeof(two_words);
    for (std::uint64_t first = thread / Lanes * at_once; first < n; first += step) {
      const two_words* src[at_once];
      two_words* dst[at_once];
      for (std::uint64_t k = 0; k < at_once; ++k) {
        const std::uint64_t i = first + k < n ? first + k : first;  // past the end the first one again
        const std::uint64_t in_file = static_cast<std::uint64_t>(numbers[i]) * row_nbytes;
        const std::uint64_t in_batch = (places != nullptr ? places[i] : i) * row_nbytes;
        src[k] = reinterpret_cast<const two_words*>(from + (Way == copying::to_file ? in_batch : in_file));
        dst[k] = reinterpret_cast<two_words*>(to + (Way == copying::to_file ? in_file : in_batch));
        if constexpr (Way == copying::from_file_or_kept) {
          const std::uint32_t slot = slots[numbers[i]];
          if (slot != not_kept) src[k] = reinterpret_cast<const two_words*>(kept + std::uint64_t{slot} * row_nbytes);
        }
      }
      BENCH_NOT_UNROLLED
      for (std::uint32_t w = group.rank(); w < nwords; w += Lanes) {
        two_words words[at_once];
        for (std::uint64_t k = 0; k < at_once; ++k) words[k] = load_once(src[k] + w);
        for (std::uint64_t k = 0; k < at_once; ++k) dst[k][w] = words[k];
      }
    }
  }
};

// Seconds; as many lanes a row as it has 16-byte words, a warp at most.
inline double copy_rows_seconds(const shape& how, const std::byte* from, const row_index* numbers, const std::uint32_t* places,
                                std::uint64_t n, std::uint32_t row_nbytes, std::byte* to) {
  if (row_nbytes >= 512) return run(how, copy_rows<32>{from, numbers, places, n, row_nbytes, to});
  if (row_nbytes >= 256) return run(how, copy_rows<16>{from, numbers, places, n, row_nbytes, to});
  if (row_nbytes >= 128) return run(how, copy_rows<8>{from, numbers, places, n, row_nbytes, to});
  return run(how, copy_rows<4>{from, numbers, places, n, row_nbytes, to});
}

// The same to a file's mapping, of rows of 512 bytes or more.
inline double store_rows_seconds(const shape& how, const std::byte* from, const sorted_rows& rows, std::uint64_t n,
                                 std::uint32_t row_nbytes, std::byte* to) {
  return run(how, copy_rows<32, copying::to_file>{from, rows.numbers.get(), rows.places.get(), n, row_nbytes, to});
}

// Rows in device memory, as programs keep the hottest by hand, and a word for each row of the file that says where.
class kept_rows {
 public:
  // `numbers`: of rows of 512 bytes or more of the nrows at `from`.
  kept_rows(const shape& how, const std::byte* from, std::uint64_t nrows, const row_numbers& numbers, std::uint32_t row_nbytes)
      : slots_(nrows, not_kept), on_device_(nrows), rows_(numbers.host.size() * row_nbytes) {
    for (std::size_t i = 0; i < numbers.host.size(); ++i)
      slots_[static_cast<std::size_t>(numbers.host[i])] = static_cast<std::uint32_t>(i);
    on_device_.write(slots_);
    copy_rows_seconds(how, from, numbers.device.get(), nullptr, numbers.host.size(), row_nbytes, rows_.get());
  }
  // As copy_rows_seconds, in the batch's order.
  double seconds(const shape& how, const std::byte* from, const row_numbers& numbers, std::uint32_t row_nbytes,
                 std::byte* to) const {
    return run(how, copy_rows<32, copying::from_file_or_kept>{from, numbers.device.get(), nullptr, numbers.host.size(), row_nbytes,
                                                              to, rows_.get(), on_device_.get()});
  }
  // How many of them are here.
  std::uint64_t count(const std::vector<row_index>& numbers) const {
    return static_cast<std::uint64_t>(std::count_if(
        numbers.begin(), numbers.end(), [&](row_index row) { return slots_[static_cast<std::size_t>(row)] != not_kept; }));
  }

 private:
  std::vector<std::uint32_t> slots_;
  device_array<std::uint32_t> on_device_;
  device_array<std::byte> rows_;
};

// --- By host threads -----------------------------------------------------------------------------------------------------------

// A file in the process's memory, all of its pages there.
class mapped_file {
 public:
  mapped_file(const std::string& path, std::uint64_t nbytes) : nbytes_(nbytes) {
    const auto file = open_file(path, O_RDONLY);
    void* const at = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (at == MAP_FAILED) throw gpufs::error("cannot map " + path);
    data_ = static_cast<const std::byte*>(at);
  }
  ~mapped_file() { ::munmap(const_cast<std::byte*>(data_), nbytes_); }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_;
  std::uint64_t nbytes_;
};

// ahead: a row's first lines are asked for while earlier rows are copied.
enum class gathering { plain, ahead };

// Threads that gather rows from a mapping into pinned memory, a chunk at a time each; the copies to the device go on meanwhile, as
// each thread has two chunks.
class host_threads_gather {
 public:
  host_threads_gather(const std::byte* from, unsigned nthreads)
      : from_(from), nthreads_(nthreads), pinned_(std::size_t{nthreads} * 2 * chunk_nbytes) {
    for (unsigned i = 0; i < 2 * nthreads; ++i) streams_.push_back(std::make_unique<gpufs::simt::stream>());
  }

  // Seconds until all rows are in device memory.
  double to_device(gathering how, const std::vector<row_index>& numbers, std::uint32_t row_nbytes, std::byte* device) const {
    const std::uint64_t rows_a_chunk = std::max<std::uint64_t>(1, chunk_nbytes / row_nbytes);
    std::atomic<std::uint64_t> next{0};
    return run_threads(nthreads_, [&](unsigned t) {
      for (unsigned turn = 0;; turn ^= 1) {
        const std::uint64_t begin = next.fetch_add(rows_a_chunk);
        if (begin >= numbers.size()) break;
        const std::uint64_t n = std::min<std::uint64_t>(rows_a_chunk, numbers.size() - begin);
        const gpufs::simt::stream& copies = *streams_[2 * t + turn];
        std::byte* const mine = pinned_.get() + (2 * std::size_t{t} + turn) * chunk_nbytes;
        copies.wait();
        gather(how, numbers.data() + begin, n, row_nbytes, mine);
        copies.copy_to_device(device + begin * row_nbytes, mine, n * row_nbytes);
      }
      streams_[2 * t]->wait();
      streams_[2 * t + 1]->wait();
    });
  }

  // The same, into pinned memory of all rows: nothing goes to the device.
  double to_pinned(gathering how, const std::vector<row_index>& numbers, std::uint32_t row_nbytes, std::byte* pinned) const {
    return run_threads(nthreads_, [&](unsigned t) {
      const std::uint64_t begin = numbers.size() * t / nthreads_, end = numbers.size() * (t + 1) / nthreads_;
      gather(how, numbers.data() + begin, end - begin, row_nbytes, pinned + begin * row_nbytes);
    });
  }

 private:
  static constexpr std::size_t chunk_nbytes = on_gpu ? 1u << 20 : 8192;

  void gather(gathering how, const row_index* numbers, std::uint64_t n, std::uint32_t row_nbytes, std::byte* to) const {
    constexpr std::uint64_t rows_ahead = 8;
    const std::uint32_t asked_nbytes = std::min(row_nbytes, 512u);  // of the rest the processor thinks itself
    for (std::uint64_t i = 0; i < n; ++i) {
      if (how == gathering::ahead && i + rows_ahead < n) {
        const std::byte* const later = from_ + static_cast<std::uint64_t>(numbers[i + rows_ahead]) * row_nbytes;
        for (std::uint32_t b = 0; b < asked_nbytes; b += 64) __builtin_prefetch(later + b);
      }
      std::memcpy(to + i * row_nbytes, from_ + static_cast<std::uint64_t>(numbers[i]) * row_nbytes, row_nbytes);
    }
  }

  const std::byte* from_;
  unsigned nthreads_;
  pinned_array<std::byte> pinned_;
  std::vector<std::unique_ptr<gpufs::simt::stream>> streams_;
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
