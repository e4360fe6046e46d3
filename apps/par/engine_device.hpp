// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of pieces by kernels, for the machine that the including source is compiled for.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "apps/par/device_carrier.hpp"
#include "apps/par/operators.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/par/array_scan.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::apps::par {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned nthreads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 2;

inline simt::launch_config config_of(unsigned nblocks, bool cooperative = false) {
  simt::launch_config of{.grid = nblocks, .block = nthreads, .cooperative = cooperative};
  of.schedule.timeout_ns = 0;  // a piece takes as long as it takes
  return of;
}

// Whole numbers by one pass; sums of real ones have the same bits on each run.
template <class Op>
using scan_by = gpufs::par::array_scan<Op, std::is_integral_v<typename Op::value> ? gpufs::par::scan_order::any
                                                                                  : gpufs::par::scan_order::fixed>;

// work(operator): sums, which are wanted most, have kernels of their own; the other operators share one, which is half as fast in
// memory, and faster than the bus.
template <class Work>
void with_scan_operator(const scan_options& options, const Work& work) {
  with_type(options.type, [&](auto type) {
    using T = decltype(type);
    if (options.op == scan_op::add) {
      work(gpufs::par::plus<T>{});
    } else {
      work(any_operator<T>{options.op});
    }
  });
}

template <class Op>
void enqueue_scan(scan_by<Op>& scan, const std::byte* in, std::byte* out, std::uint64_t nbytes, bool exclusive,
                  const simt::stream& on) {
  using T = typename Op::value;
  const T* const from = reinterpret_cast<const T*>(in);
  T* const to = reinterpret_cast<T*>(out);
  exclusive ? scan.exclusive(from, to, nbytes / sizeof(T), on) : scan.inclusive(from, to, nbytes / sizeof(T), on);
}

template <class Op>
class device_scan final : public transform {
  using T = typename Op::value;

 public:
  device_scan(const Op& op, bool exclusive, std::uint64_t nbytes, simt::platform& device)
      : exclusive_(exclusive), scan_(nbytes / sizeof(T), device, op), work_(device) {}

  bool run(std::byte* in, std::byte*, std::uint64_t nbytes) override {
    enqueue_scan<Op>(scan_, in, in, nbytes, exclusive_, work_);
    last_ = scan_.all(work_);
    return false;
  }
  known so_far() const override { return known_of(last_); }
  void go_on(const known& so_far) override {
    last_ = value_of<T>(so_far);
    scan_.restart(last_);
  }

 private:
  bool exclusive_;
  T last_{};  // what all pieces so far give
  scan_by<Op> scan_;
  simt::stream work_;
};

// work(i) for i below n, by all threads of a launch.
template <class Work>
struct for_each_number {
  std::uint64_t n;
  Work work;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t all = std::uint64_t{simt::grid_size()} * simt::block_size();
    for (std::uint64_t i = std::uint64_t{simt::block_rank()} * simt::block_size() + simt::thread_rank(); i < n; i += all) work(i);
  }
};
template <class Work>
void for_all(std::uint64_t n, const Work& work, const simt::stream& on) {
  simt::launch<nthreads>(config_of(GPUFS_ON_CUDA ? 2048 : 2), for_each_number<Work>{n, work}, on);
}

template <class T>
struct copy_values {
  const T* from;
  T* to;
  GPUFS_DEVICE void operator()(std::uint64_t i) const { to[i] = from[i]; }
};

template <class Bits>
struct order_keys {
  Bits* keys;
  key_order order;
  bool back;
  GPUFS_DEVICE void operator()(std::uint64_t i) const { keys[i] = back ? order.key_of(keys[i]) : order.ordered(keys[i]); }
};
template <class Bits>
struct take_keys {
  const std::byte* records;
  std::uint64_t record_nbytes, key_offset;
  key_order order;
  Bits* keys;
  std::uint32_t* numbers;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    const std::byte* const at = records + i * record_nbytes + key_offset;
    Bits key;
    if (reinterpret_cast<std::uintptr_t>(at) % sizeof key == 0) {
      key = *reinterpret_cast<const Bits*>(at);
    } else {
      std::memcpy(&key, at, sizeof key);
    }
    keys[i] = order.ordered(key);
    numbers[i] = static_cast<std::uint32_t>(i);
  }
};
template <class Word>
struct gather_words {  // of records of so many words
  const Word* from;
  const std::uint32_t* numbers;
  std::uint64_t record_nwords;
  Word* to;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    to[i] = from[numbers[i / record_nwords] * record_nwords + i % record_nwords];
  }
};

// Sorter<Bits>(space, device), of a space of nbytes_for(n, with_numbers) bytes of the device for n keys: sort(keys, room, n,
// stream) and sort(keys, room, numbers, numbers' room, n, stream), stable and ascending, each of which says whether the result is
// in the rooms.

// The same of keys alone in their order.
template <class Sorter, class Bits>
bool sort_in_order(const Sorter& by, const key_order& order, Bits* keys, Bits* room, std::uint64_t n, const simt::stream& on) {
  if (order.changes_bits()) for_all(n, order_keys<Bits>{keys, order, false}, on);
  const bool is_room = by.sort(keys, room, n, on);
  if (order.changes_bits()) for_all(n, order_keys<Bits>{is_room ? room : keys, order, true}, on);
  return is_room;
}

template <template <class> class Sorter, class Bits>
class device_sort final : public transform {
 public:
  device_sort(const sort_options& options, std::uint64_t n, simt::platform& device)
      : order_{options.type, options.descending},
        options_(options),
        nbeside_(options.is_keys_alone() ? 0 : n),
        keys_{array<Bits>(nbeside_, device), array<Bits>(nbeside_, device)},
        numbers_{array<std::uint32_t>(nbeside_, device), array<std::uint32_t>(nbeside_, device)},
        space_(space_nbytes(n, !options.is_keys_alone(), device), device),
        sorter_({space_.get(), space_.size()}, device),
        work_(device) {}

  bool run(std::byte* in, std::byte* out, std::uint64_t nbytes) override {
    const std::uint64_t n = nbytes / options_.record_nbytes;
    const bool is_out = options_.is_keys_alone()
                            ? sort_in_order(sorter_, order_, reinterpret_cast<Bits*>(in), reinterpret_cast<Bits*>(out), n, work_)
                            : sort_records(in, out, n);
    work_.wait();
    return is_out;
  }

 private:
  template <class T>
  using array = simt::device_array<T>;

  static std::uint64_t space_nbytes(std::uint64_t n, bool with_numbers, simt::platform& device) {
    const simt::on_device here(device);
    return Sorter<Bits>::nbytes_for(n, with_numbers);
  }
  bool sort_records(const std::byte* in, std::byte* out, std::uint64_t n) {
    const std::uint64_t size = options_.record_nbytes;
    for_all(n, take_keys<Bits>{in, size, options_.key_offset, order_, keys_[0].get(), numbers_[0].get()}, work_);
    const bool is_room = sorter_.sort(keys_[0].get(), keys_[1].get(), numbers_[0].get(), numbers_[1].get(), n, work_);
    const std::uint32_t* const numbers = numbers_[is_room ? 1 : 0].get();
    if (size % 8 == 0) {
      gather<std::uint64_t>(in, numbers, out, n);
    } else if (size % 4 == 0) {
      gather<std::uint32_t>(in, numbers, out, n);
    } else {
      gather<std::uint8_t>(in, numbers, out, n);
    }
    return true;
  }
  template <class Word>
  void gather(const std::byte* in, const std::uint32_t* numbers, std::byte* out, std::uint64_t n) const {
    const std::uint64_t nwords = options_.record_nbytes / sizeof(Word);
    for_all(n * nwords, gather_words<Word>{reinterpret_cast<const Word*>(in), numbers, nwords, reinterpret_cast<Word*>(out)},
            work_);
  }

  key_order order_;
  sort_options options_;
  std::uint64_t nbeside_;
  array<Bits> keys_[2];
  array<std::uint32_t> numbers_[2];
  array<std::byte> space_;
  Sorter<Bits> sorter_;
  simt::stream work_;
};

template <template <class> class Sorter>
class device_engine final : public engine {
 public:
  explicit device_engine(simt::platform& device) : device_(device) {}

  std::unique_ptr<carrier> make_carrier(unsigned nbuffers, std::uint64_t buffer_nbytes) override {
    return std::make_unique<device_carrier>(nbuffers, buffer_nbytes, device_);
  }
  std::unique_ptr<transform> make_scan(const scan_options& options, std::uint64_t piece_nbytes) override {
    std::unique_ptr<transform> made;
    with_scan_operator(options, [&](const auto& op) {
      made = std::make_unique<device_scan<std::decay_t<decltype(op)>>>(op, options.exclusive, piece_nbytes, device_);
    });
    return made;
  }
  std::unique_ptr<transform> make_sort(const sort_options& options, std::uint64_t nrecords) override {
    if (nbytes_of(options.type) == 4) return std::make_unique<device_sort<Sorter, std::uint32_t>>(options, nrecords, device_);
    return std::make_unique<device_sort<Sorter, std::uint64_t>>(options, nrecords, device_);
  }
  std::uint64_t space_to_scan(std::uint64_t nbytes, const scan_options& options) override {
    std::uint64_t space = 0;
    with_scan_operator(options, [&](const auto& op) {
      using Op = std::decay_t<decltype(op)>;
      space = scan_by<Op>::workspace_nbytes(nbytes / sizeof(typename Op::value), device_);
    });
    return space;
  }
  void scan_all(const std::byte* in, std::byte* out, std::uint64_t nbytes, const scan_options& options,
                std::span<std::byte> space) override {
    with_scan_operator(options, [&](const auto& op) {
      using Op = std::decay_t<decltype(op)>;
      scan_by<Op> scan(space, nbytes / sizeof(typename Op::value), device_, op);
      const simt::stream work(device_);
      enqueue_scan<Op>(scan, in, out, nbytes, options.exclusive, work);
      scan.all(work);
    });
  }
  std::uint64_t space_to_sort(std::uint64_t nbytes, number_type type) override {
    const simt::on_device here(device_);
    const std::uint64_t n = nbytes / nbytes_of(type);
    return room_nbytes(nbytes) +
           (nbytes_of(type) == 4 ? Sorter<std::uint32_t>::nbytes_for(n, false) : Sorter<std::uint64_t>::nbytes_for(n, false));
  }
  void sort_keys(std::byte* keys, std::uint64_t nbytes, number_type type, bool descending, std::span<std::byte> space) override {
    const key_order order{type, descending};
    nbytes_of(type) == 4 ? sort_with<std::uint32_t>(keys, nbytes, order, space)
                         : sort_with<std::uint64_t>(keys, nbytes, order, space);
  }
  std::uint64_t usual_scan_nbytes() const override { return GPUFS_ON_CUDA ? 128 << 20 : 1 << 20; }
  std::uint64_t usual_memory_nbytes() const override { return GPUFS_ON_CUDA ? device_.free_nbytes() / 4 * 3 : 64 << 20; }
  std::uint64_t most_records(const sort_options& options, unsigned nbuffers, std::uint64_t memory_nbytes) const override {
    const bool is_alone = options.is_keys_alone();
    const unsigned key = nbytes_of(options.type);
    const std::uint64_t each = nbuffers * options.record_nbytes + (is_alone ? 0 : 2 * (key + sizeof(std::uint32_t)));
    const std::uint64_t most = is_alone ? std::uint64_t{1} << 40 : std::numeric_limits<std::uint32_t>::max();
    const std::uint64_t nfit = std::min(most, memory_nbytes / each);
    const simt::on_device here(device_);
    const std::uint64_t space =
        key == 4 ? Sorter<std::uint32_t>::nbytes_for(nfit, !is_alone) : Sorter<std::uint64_t>::nbytes_for(nfit, !is_alone);
    return space >= memory_nbytes ? 0 : std::min(most, (memory_nbytes - space) / each);
  }

 private:
  // In front of a sorter's space there is room for as many keys.
  static std::uint64_t room_nbytes(std::uint64_t nbytes) { return (nbytes + 255) / 256 * 256; }
  template <class Bits>
  void sort_with(std::byte* all, std::uint64_t nbytes, const key_order& order, std::span<std::byte> space) {
    auto* const keys = reinterpret_cast<Bits*>(all);
    auto* const room = reinterpret_cast<Bits*>(space.data());
    const std::uint64_t n = nbytes / sizeof(Bits);
    const simt::stream work(device_);
    if (sort_in_order(Sorter<Bits>(space.subspan(room_nbytes(nbytes)), device_), order, keys, room, n, work)) {
      for_all(n, copy_values<Bits>{room, keys}, work);
    }
    work.wait();
  }

  simt::platform& device_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::par
