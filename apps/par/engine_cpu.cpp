// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of pieces by host threads.
#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "apps/par/operators.hpp"
#include "apps/par/spread_copies.hpp"

namespace gpufs::apps::par {
namespace {

// Memory of the host, where pieces are read to and written from.
class host_carrier final : public carrier {
 public:
  host_carrier(unsigned nbuffers, std::uint64_t nbytes) {
    for (unsigned i = 0; i < nbuffers; ++i) buffers_.push_back(std::make_unique_for_overwrite<std::uint64_t[]>(nbytes / 8 + 3));
  }
  unsigned nbuffers() const override { return static_cast<unsigned>(buffers_.size()); }
  std::byte* buffer(unsigned i) const override { return reinterpret_cast<std::byte*>(buffers_[i].get()); }
  void begin_in(unsigned i, const bytes_from& from, std::span<const range> ranges) override {
    read_by_all(from, ranges, buffer(i));
  }
  void end_in(unsigned) override {}
  void begin_out(unsigned, std::uint64_t, const bytes_to&, std::uint64_t) override {}
  void end_out(unsigned i, std::uint64_t nbytes, const bytes_to& to, std::uint64_t offset) override {
    write_by_all(to, buffer(i), nbytes, offset);
  }

 private:
  std::vector<std::unique_ptr<std::uint64_t[]>> buffers_;
};

// Parts of a fixed size, so that sums of real numbers do not depend on how many threads there are.
template <class T>
class host_scan final : public transform {
  static constexpr std::uint64_t part_n = (1 << 20) / sizeof(T);

 public:
  explicit host_scan(const scan_options& options) : options_(options), carry_(any_operator<T>{options.op}.identity()) {}

  bool run(std::byte* in, std::byte*, std::uint64_t nbytes) override {
    with_operator<T>(options_.op, [&](const auto& op) {
      using value = typename std::decay_t<decltype(op)>::value;  // T, or the same bits without a sign
      scan(reinterpret_cast<value*>(in), nbytes / sizeof(T), op);
      return value{};
    });
    return false;
  }
  known so_far() const override { return known_of(carry_); }
  void go_on(const known& so_far) override { carry_ = value_of<T>(so_far); }

 private:
  template <class Op>
  void scan(typename Op::value* all, std::uint64_t n, const Op& op) {
    using value = typename Op::value;
    const std::uint64_t nparts = (n + part_n - 1) / part_n;
    const auto end_of = [n](std::uint64_t i) { return std::min(n, (i + 1) * part_n); };
    std::vector<value> before(nparts + 1);
    before[0] = static_cast<value>(carry_);
    by_all_threads(nparts, [&](std::size_t i) {
      value sum = op.identity();
      for (std::uint64_t k = i * part_n; k < end_of(i); ++k) sum = op(sum, all[k]);
      before[i + 1] = sum;
    });
    for (std::uint64_t i = 0; i < nparts; ++i) before[i + 1] = op(before[i], before[i + 1]);
    by_all_threads(nparts, [&](std::size_t i) {
      value sum = before[i];
      for (std::uint64_t k = i * part_n; k < end_of(i); ++k) {
        const value with_it = op(sum, all[k]);
        all[k] = options_.exclusive ? sum : with_it;
        sum = with_it;
      }
    });
    carry_ = static_cast<T>(before[nparts]);
  }

  scan_options options_;
  T carry_;
};

// Sorts [first, first + n) by all threads, with as much room: parts, then merges of two. Where the result is. Items have an order
// without equal ones that may be told apart.
template <class Item>
Item* sort_by_all(Item* first, Item* room, std::uint64_t n) {
  const std::uint64_t nparts = n < 1 << 16 ? 1 : std::bit_ceil(std::uint64_t{std::min(most_threads, thread_count(0))});
  const auto begin_of = [=](std::uint64_t i) { return n * std::min(i, nparts) / nparts; };
  by_all_threads(nparts, [&](std::size_t i) { std::sort(first + begin_of(i), first + begin_of(i + 1)); });
  for (std::uint64_t width = 1; width < nparts; width *= 2) {
    by_all_threads(nparts / (2 * width), [&](std::size_t i) {
      const std::uint64_t a = begin_of(2 * i * width), b = begin_of((2 * i + 1) * width), c = begin_of((2 * i + 2) * width);
      std::merge(first + a, first + b, first + b, first + c, room + a);
    });
    std::swap(first, room);
  }
  return first;
}

// n times work(i), by parts.
template <class Work>
void for_all(std::uint64_t n, const Work& work) {
  constexpr std::uint64_t part_n = 1 << 16;
  by_all_threads((n + part_n - 1) / part_n, [&](std::size_t part) {
    for (std::uint64_t i = part * part_n; i < std::min(n, (part + 1) * part_n); ++i) work(i);
  });
}

template <class Bits>
class host_sort_of_keys final : public transform {
 public:
  explicit host_sort_of_keys(const sort_options& options) : order_{options.type, options.descending} {}
  bool run(std::byte* in, std::byte* out, std::uint64_t nbytes) override {
    auto* const keys = reinterpret_cast<Bits*>(in);
    const std::uint64_t n = nbytes / sizeof(Bits);
    for_all(n, [&](std::uint64_t i) { keys[i] = order_.ordered(keys[i]); });
    Bits* const sorted = sort_by_all(keys, reinterpret_cast<Bits*>(out), n);
    for_all(n, [&](std::uint64_t i) { sorted[i] = order_.key_of(sorted[i]); });
    return sorted != keys;
  }

 private:
  key_order order_;
};

template <class Bits>
class host_sort_of_records final : public transform {
  struct item {  // of equal keys the one that was first
    Bits key;
    std::uint32_t number;
    bool operator<(const item& other) const { return key != other.key ? key < other.key : number < other.number; }
  };

 public:
  static constexpr std::uint64_t nbytes_a_record = 2 * sizeof(item);

  host_sort_of_records(const sort_options& options, std::uint64_t n)
      : order_{options.type, options.descending},
        size_(options.record_nbytes),
        key_offset_(options.key_offset),
        items_(n),
        room_(n) {}
  bool run(std::byte* in, std::byte* out, std::uint64_t nbytes) override {
    const std::uint64_t n = nbytes / size_;
    for_all(n, [&](std::uint64_t i) {
      Bits key;
      std::memcpy(&key, in + i * size_ + key_offset_, sizeof key);
      items_[i] = {order_.ordered(key), static_cast<std::uint32_t>(i)};
    });
    const item* const sorted = sort_by_all(items_.data(), room_.data(), n);
    for_all(n, [&](std::uint64_t i) { std::memcpy(out + i * size_, in + sorted[i].number * size_, size_); });
    return true;
  }

 private:
  key_order order_;
  std::uint64_t size_, key_offset_;
  std::vector<item> items_, room_;
};

class cpu_engine final : public engine {
 public:
  std::unique_ptr<carrier> make_carrier(unsigned nbuffers, std::uint64_t buffer_nbytes) override {
    return std::make_unique<host_carrier>(nbuffers, buffer_nbytes);
  }
  std::unique_ptr<transform> make_scan(const scan_options& options, std::uint64_t) override {
    return with_type(options.type,
                     [&](auto type) -> std::unique_ptr<transform> { return std::make_unique<host_scan<decltype(type)>>(options); });
  }
  std::unique_ptr<transform> make_sort(const sort_options& options, std::uint64_t nrecords) override {
    return nbytes_of(options.type) == 4 ? make<std::uint32_t>(options, nrecords) : make<std::uint64_t>(options, nrecords);
  }
  std::uint64_t space_to_scan(std::uint64_t, const scan_options&) override { return 0; }
  void scan_all(const std::byte* in, std::byte* out, std::uint64_t nbytes, const scan_options& options,
                std::span<std::byte>) override {
    if (in != out) std::memcpy(out, in, nbytes);
    make_scan(options, nbytes)->run(out, nullptr, nbytes);
  }
  std::uint64_t space_to_sort(std::uint64_t nbytes, number_type) override { return nbytes; }
  void sort_keys(std::byte* keys, std::uint64_t nbytes, number_type type, bool descending, std::span<std::byte> space) override {
    const std::uint64_t size = nbytes_of(type);
    const auto sort = make_sort({.type = type, .record_nbytes = size, .descending = descending}, nbytes / size);
    if (sort->run(keys, space.data(), nbytes)) std::memcpy(keys, space.data(), nbytes);
  }
  std::uint64_t usual_scan_nbytes() const override { return 64 << 20; }
  std::uint64_t usual_memory_nbytes() const override {
    struct sysinfo now {};
    if (::sysinfo(&now) != 0) return 1 << 30;
    return std::clamp<std::uint64_t>(std::uint64_t{now.freeram} * now.mem_unit / 4, 256 << 20, std::uint64_t{8} << 30);
  }
  std::uint64_t most_records(const sort_options& options, unsigned nbuffers, std::uint64_t memory_nbytes) const override {
    if (options.is_keys_alone()) return memory_nbytes / (nbuffers * options.record_nbytes);
    const std::uint64_t beside = nbytes_of(options.type) == 4 ? host_sort_of_records<std::uint32_t>::nbytes_a_record
                                                              : host_sort_of_records<std::uint64_t>::nbytes_a_record;
    return std::min<std::uint64_t>(std::numeric_limits<std::uint32_t>::max(),
                                   memory_nbytes / (nbuffers * options.record_nbytes + beside));
  }

 private:
  template <class Bits>
  static std::unique_ptr<transform> make(const sort_options& options, std::uint64_t nrecords) {
    if (options.is_keys_alone()) return std::make_unique<host_sort_of_keys<Bits>>(options);
    return std::make_unique<host_sort_of_records<Bits>>(options, nrecords);
  }
};

}  // namespace

std::unique_ptr<engine> make_engine_cpu() { return std::make_unique<cpu_engine>(); }

}  // namespace gpufs::apps::par
