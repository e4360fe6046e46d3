// SPDX-License-Identifier: Apache-2.0
// Pointer operations as data: each lane interprets its own list, and leaves one number for each operation.
#pragma once
#include <cstring>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "pointer/sequential_access.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// What files are made of here, in every size: a struct of N bytes that lie at multiples of Align.
template <unsigned N, unsigned Align>
struct alignas(Align) record {
  std::uint8_t byte[N];
};

enum class pointer_op : std::uint8_t {
  dereference,    // *p                      -> digest of the element
  index,          // p[n]                    -> digest
  arrow,          // p->byte[n], *p of what is no struct -> digest
  load_wide,      // p.load<V>(n)            -> digest; with the flag, unlinks (it may have been in place, in two pages)
  gather,         // p.gather({n, v})        -> digest of the first, or (not flag) the second; unlinks
  walk,           // for_each_n(n, v, ..., p) -> digest of what it gave
  copy,           // T of a copy of p        -> digest
  post_plus,      // *p++                    -> digest
  post_minus,     // *p--                    -> digest
  read_only,      // *ptr<const T>(p)        -> digest
  plus_plus,      // ++p                     -> offset()
  minus_minus,    // --p                     -> offset()
  add,            // p += n                  -> offset()
  subtract,       // p -= n                  -> offset()
  sum,            // q = p + n               -> offset()
  sum_reversed,   // q = n + p               -> offset()
  less,           // q = p - n               -> offset()
  assign,         // q = p
  move,           // q = std::move(p)
  self_assign,    // p = p
  self_move,      // p = std::move(p)
  swap,           // p and q
  by_value,       // q = f(std::move(p), n), which returns its argument, n elements on -> offset()
  copy_by_value,  // q = f(p, n)             -> offset()
  difference,     // p - q
  compare,        // -> bits: == != < <= > >=
  fault_in,       // -> 0 or the errno
  unlink,
  linked,  // -> linked()
  // Of a writable pointer.
  write,        // *p = v
  write_index,  // p[n] = v
  write_plus,   // p[n] += v; whole numbers, else as write_index
  write_copy,   // p[n] = p[v]             (both elements of p)
  // Whole numbers of 4 and 8 bytes, as all atomics; else as write. exchange, fetch_ops and add_shared with the flag: without a link
  // (exchange_at, ...), and so unlinks.
  exchange,          // -> digest of what was there
  compare_exchange,  // expects the digest's element, or what differs in one bit -> 1 when done, and what was found
  fetch_ops,         // fetch_sub, fetch_or, fetch_and, fetch_max, fetch_min in turn -> what was there each time
  add_shared,        // fetch_add v; others add there too
};

struct pointer_step {
  pointer_op what;
  std::uint8_t p, q;  // which of the lane's pointers; the first local_pointers are the lane's own variables, the rest global memory
  std::uint8_t flag;
  std::int64_t n;
  std::uint64_t v;
};
inline constexpr unsigned local_pointers = 3, global_pointers = 2, all_pointers = local_pointers + global_pointers;

// Out of line, as kernels would have it for each operation and size; nvcc then takes twice as long.
[[gnu::noinline]] GPUFS_HOST_DEVICE std::uint64_t digest(const void* bytes, std::size_t nbytes) {
  const auto* b = static_cast<const unsigned char*>(bytes);
  std::uint64_t h = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < nbytes; ++i) h = (h ^ b[i]) * 0x100000001b3u;
  return h;
}

GPUFS_HOST_DEVICE std::uint64_t next_of_walk(std::uint64_t so_far, std::uint64_t digest) { return so_far * 31 + digest; }

// The element that a write of `v` leaves.
template <class T>
GPUFS_HOST_DEVICE T element_of(std::uint64_t v) {
  T value;
  if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(v);
  } else {
    auto* bytes = reinterpret_cast<unsigned char*>(&value);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<unsigned char>((v >> (i % 8 * 8)) + i / 8);
  }
  return value;
}

template <class T>
struct pair_of {
  T first, second;
};
// What load<V> reads: 16 bytes at once where T divides them, else two elements.
template <class T>
using wide_of = std::conditional_t<sizeof(T) < 16 && 16 % sizeof(T) == 0, simt::vec16, pair_of<T>>;

template <class T>
inline constexpr bool has_atomics = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <class P>
GPUFS_DEVICE P moved_on(P p, std::int64_t n) {
  p += n;
  return p;
}

template <class T, class Access>
class pointer_interpreter {
  using pointer = ptr<T, Access>;
  using plain = std::remove_const_t<T>;
  static constexpr bool writable = !std::is_const_v<T>;

 public:
  // `global` is zeroed memory for global_pointers pointers: null ones.
  GPUFS_DEVICE pointer_interpreter(const pointer& begin, pointer* global) : global_(global) {
    for (unsigned i = 0; i < all_pointers; ++i) at(i) = begin;
  }
  GPUFS_DEVICE ~pointer_interpreter() {
    for (unsigned i = 0; i < global_pointers; ++i) global_[i].unlink();
  }

  GPUFS_DEVICE std::uint64_t run(const pointer_step& s) {
    pointer& p = at(s.p);
    pointer& q = at(s.q);
    switch (s.what) {
      case pointer_op::dereference:
        return digest_of(*p);
      case pointer_op::index:
        return digest_of(p[s.n]);
      case pointer_op::arrow:
        if constexpr (std::is_class_v<plain>) {
          return digest(p->byte, sizeof(plain));
        } else {
          return digest_of(*p);
        }
      case pointer_op::load_wide: {
        const auto value = p.template load<wide_of<plain>>(s.n);
        if (s.flag != 0) p.unlink();
        return digest(&value, sizeof value);
      }
      case pointer_op::gather: {
        const std::ptrdiff_t at[] = {s.n, static_cast<std::ptrdiff_t>(s.v)};
        const auto got = p.gather(at);
        p.unlink();  // as it has done already if it had to wait
        return digest_of(got[s.flag != 0 ? 0 : 1]);
      }
      case pointer_op::walk: {
        std::uint64_t all = 0;
        for_each_n(
            s.n, static_cast<std::int64_t>(s.v), [&](const plain& x) { all = next_of_walk(all, digest_of(x)); }, p);
        return all;
      }
      case pointer_op::copy: {
        const pointer copied(p);
        return digest_of(*copied);
      }
      case pointer_op::post_plus:
        return digest_of(*p++);
      case pointer_op::post_minus:
        return digest_of(*p--);
      case pointer_op::read_only: {
        const ptr<const plain, Access> reader = p;
        return digest_of(*reader);
      }
      case pointer_op::plus_plus:
        return offset_of(++p);
      case pointer_op::minus_minus:
        return offset_of(--p);
      case pointer_op::add:
        return offset_of(p += s.n);
      case pointer_op::subtract:
        return offset_of(p -= s.n);
      case pointer_op::sum:
        return offset_of(q = p + s.n);
      case pointer_op::sum_reversed:
        return offset_of(q = s.n + p);
      case pointer_op::less:
        return offset_of(q = p - s.n);
      case pointer_op::assign:
        return offset_of(q = p);
      case pointer_op::move:
        return offset_of(q = static_cast<pointer&&>(p));
      case pointer_op::self_assign:
        return offset_of(p = at(s.p));
      case pointer_op::self_move:
        return offset_of(p = static_cast<pointer&&>(at(s.p)));
      case pointer_op::swap: {
        pointer kept(static_cast<pointer&&>(p));
        p = static_cast<pointer&&>(q);
        q = static_cast<pointer&&>(kept);
        return offset_of(p);
      }
      case pointer_op::by_value:
        return offset_of(q = moved_on(static_cast<pointer&&>(p), s.n));
      case pointer_op::copy_by_value:
        return offset_of(q = moved_on(p, s.n));
      case pointer_op::difference:
        return static_cast<std::uint64_t>(p - q);
      case pointer_op::compare:
        return (p == q ? 1u : 0u) | (p != q ? 2u : 0u) | (p < q ? 4u : 0u) | (p <= q ? 8u : 0u) | (p > q ? 16u : 0u) |
               (p >= q ? 32u : 0u);
      case pointer_op::fault_in:
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(p.fault_in()));
      case pointer_op::unlink:
        p.unlink();
        return p.linked();
      case pointer_op::linked:
        return p.linked();
      default:
        if constexpr (writable) return change(p, s);
        return 0;
    }
  }

 private:
  GPUFS_DEVICE pointer& at(unsigned i) { return i < local_pointers ? local_[i] : global_[i - local_pointers]; }
  GPUFS_DEVICE static std::uint64_t offset_of(const pointer& p) { return static_cast<std::uint64_t>(p.offset()); }
  GPUFS_DEVICE static std::uint64_t digest_of(const plain& value) { return digest(&value, sizeof value); }

  GPUFS_DEVICE_COLD static std::uint64_t change(const pointer& p, const pointer_step& s) {
    const plain v = element_of<plain>(s.v);
    switch (s.what) {
      case pointer_op::write_index:
        p[s.n] = v;
        return 0;
      case pointer_op::write_plus:
        if constexpr (std::is_integral_v<plain>) {
          p[s.n] += v;
        } else {
          p[s.n] = v;
        }
        return 0;
      case pointer_op::write_copy:
        p[s.n] = p[static_cast<std::int64_t>(s.v)];
        return 0;
      default:
        if constexpr (has_atomics<plain>) return change_atomically(p, s, v);
        *p = v;
        return 0;
    }
  }

  GPUFS_DEVICE_COLD static std::uint64_t change_atomically(const pointer& p, const pointer_step& s, plain v) {
    return s.flag != 0 ? update(p, s, v) : change_by_link(p, s, v);
  }
  GPUFS_DEVICE_COLD static std::uint64_t change_by_link(const pointer& p, const pointer_step& s, plain v) {
    constexpr auto order = std::memory_order_relaxed;
    switch (s.what) {
      case pointer_op::exchange:
        return p.exchange(v, order);
      case pointer_op::compare_exchange: {
        auto expected = static_cast<plain>(s.n);
        const bool done = p.compare_exchange(expected, v, order);
        return std::uint64_t{expected} * 2 + done;
      }
      case pointer_op::fetch_ops: {
        const plain a = p.fetch_sub(v, order);
        const plain b = p.fetch_or(static_cast<plain>(s.v >> 3), order);
        const plain c = p.fetch_and(static_cast<plain>(~v), order);
        const plain d = p.fetch_max(static_cast<plain>(s.v >> 5), order);
        const plain e = p.fetch_min(static_cast<plain>(s.v >> 7), order);
        return (((std::uint64_t{a} * 31 + b) * 31 + c) * 31 + d) * 31 + e;
      }
      case pointer_op::add_shared:
        p.fetch_add(v, order);
        return 0;
      default:
        *p = v;
        return 0;
    }
  }

  // As change_atomically, without a link where there is such a call.
  GPUFS_DEVICE_COLD static std::uint64_t update(const pointer& p, const pointer_step& s, plain v) {
    if constexpr (std::is_same_v<Access, plain_access>) {
      switch (s.what) {
        case pointer_op::exchange:
          return exchange_at(p, 0, v);
        case pointer_op::fetch_ops: {
          constexpr auto order = std::memory_order_relaxed;
          const plain a = fetch_add_at(p, 0, static_cast<plain>(0 - v));
          const plain b = p.fetch_or(static_cast<plain>(s.v >> 3), order);
          const plain c = p.fetch_and(static_cast<plain>(~v), order);
          const plain d = fetch_max_at(p, 0, static_cast<plain>(s.v >> 5));
          const plain e = fetch_min_at(p, 0, static_cast<plain>(s.v >> 7));
          return (((std::uint64_t{a} * 31 + b) * 31 + c) * 31 + d) * 31 + e;
        }
        default:
          fetch_add_at(p, 0, v);
          return 0;
      }
    } else {
      const std::uint64_t got = change_by_link(p, s, v);
      p.unlink();
      return got;
    }
  }

  pointer local_[local_pointers];
  pointer* global_;
};

// What the lanes of one warp do together after each round of their lists.
enum class meeting : std::uint32_t { none, warp, block, pread };

template <class T, class Access>
struct pointer_kernel {
  mount_ref fs;
  const char* path;
  std::int64_t offset, count;
  map_flags flags;
  bool to_file;       // what T, which is not const, changes is the file
  std::int32_t said;  // each warp gives this advice, if T is const; below 0: none
  unsigned nrounds;
  const meeting* meetings;          // per round
  const std::uint32_t* first_step;  // per thread and round, and the end
  const pointer_step* steps;
  std::uint64_t* results;  // per step
  std::byte* global;       // zeroed: global_pointers pointers a thread
  std::byte* scratch;      // 64 bytes a warp
  std::int64_t* errors;    // per thread: of the mapping, and what the preads gave (bytes too few, or wrong ones, count)

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    const file f = opened();
    int told = 0;
    if constexpr (std::is_const_v<T>) {
      if (said >= 0) told = advise(warp, f, 0, 0, static_cast<advice>(said));
    }
    {
      const ptr<T, Access> begin = mapped(f);
      errors[me] = told != 0 ? told : begin.error();
      pointer_interpreter<T, Access> all(begin, reinterpret_cast<ptr<T, Access>*>(global) + std::size_t{me} * global_pointers);
      for (unsigned round = 0; round < nrounds; ++round) {
        const std::uint32_t list = me * nrounds + round;
        for (std::uint32_t i = first_step[list]; i < first_step[list + 1]; ++i) results[i] = all.run(steps[i]);
        meet(round, f, me);
      }
    }
    const int error = close(warp, f);
    if (error != 0) errors[me] = error;
  }

  GPUFS_DEVICE file opened() const {
    if constexpr (!std::is_const_v<T>) {
      if (to_file) return open(this_warp(), fs, path, O_RDWR);
    }
    return open(this_warp(), fs, path);
  }
  GPUFS_DEVICE ptr<T, Access> mapped(const file& f) const {
    if constexpr (std::is_same_v<Access, sequential_access>) {
      return map_sequential<T>(this_warp(), f, offset, count, flags);
    } else {
      return map<T>(this_warp(), f, offset, count, flags);
    }
  }
  GPUFS_DEVICE void meet(unsigned round, const file& f, std::uint32_t me) const {
    const auto warp = this_warp();
    switch (meetings[round]) {
      case meeting::none:
        return;
      case meeting::warp:
        if (warp.ballot(true) != ~0u) errors[me] = -EPROTO;
        return;
      case meeting::block:
        return this_block().sync();
      case meeting::pread: {
        if (to_file) return;  // others write there
        // Pages of the file beside those of the pointers.
        const std::int64_t n = pread(warp, f, scratch + std::size_t{me / 32} * 64, 64, 64 * round);
        if (n < 0) errors[me] = n;
        return;
      }
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
