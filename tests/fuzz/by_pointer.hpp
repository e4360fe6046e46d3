// SPDX-License-Identifier: Apache-2.0
// What groups do through pointers. Each lane takes every group.size()-th element, or a stretch of its own; of what lanes have met
// the errno that was noted last is the call's.
#pragma once
#include <cstring>

#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

// Runs each(pointer, k) for the lane's elements of the mapping from `begin` on, nbytes of bytes at most, and gives how many there
// are, or an errno. *error: a word for the group alone. What only reads needs no frame, and goes on without one.
template <class T, class Group, class Each>
GPUFS_DEVICE std::int64_t for_bytes(Group group, const file& f, std::uint64_t begin, std::uint64_t nbytes, map_flags flags,
                                    bool in_stretches, std::uint32_t* error, Each each) {
  if (group.leader()) *error = 0;
  group.sync();
  std::int64_t n = 0;
  {
    auto p = map<T>(group, f, static_cast<std::int64_t>(begin), to_the_end, flags);
    if (p.error() != 0) return p.error();
    n = p.left() < static_cast<std::int64_t>(nbytes) ? p.left() : static_cast<std::int64_t>(nbytes);
    const std::int64_t size = group.size(), rank = group.rank(), stretch = (n + size - 1) / size;
    const std::int64_t step = in_stretches ? 1 : size, first = in_stretches ? rank * stretch : rank;
    const std::int64_t end = in_stretches && first + stretch < n ? first + stretch : n;
    const auto note = [&](int failed) {
      simt::atomic_ref<std::uint32_t>(*error).store(static_cast<std::uint32_t>(-failed), std::memory_order_relaxed);
    };
    p += first;
    for (std::int64_t k = first; k < end; k += step, p += step) {
      const int failed = p.fault_in();
      if (failed == 0 || (failed == -ENOMEM && std::is_const_v<T>)) {
        each(p, k);
      } else {
        note(failed);
      }
    }
    if (p.error() != 0) note(p.error());
  }
  group.sync();  // the pointers have left their pages
  const int failed = -static_cast<int>(simt::atomic_ref<std::uint32_t>(*error).load(std::memory_order_relaxed));
  group.sync();
  return failed != 0 ? failed : n;
}

template <class Group>
GPUFS_DEVICE std::int64_t load_bytes(Group group, const file& f, std::uint64_t begin, std::uint64_t nbytes, std::byte* out,
                                     bool in_stretches, std::uint32_t* error) {
  return for_bytes<const unsigned char>(
      group, f, begin, nbytes, map_flags::none, in_stretches, error,
      [&](auto& p, std::int64_t k) { out[k] = static_cast<std::byte>(static_cast<unsigned char>(*p)); });
}

template <class Group>
GPUFS_DEVICE std::int64_t poke_bytes(Group group, const file& f, std::uint64_t begin, std::uint64_t nbytes, const std::byte* in,
                                     bool in_stretches, std::uint32_t* error) {
  return for_bytes<unsigned char>(group, f, begin, nbytes, map_flags::none, in_stretches, error,
                                  [&](auto& p, std::int64_t k) { *p = static_cast<unsigned char>(in[k]); });
}

// Elements, whole ones. How many bytes, from the first on, or an errno.
template <class T, class Group>
GPUFS_DEVICE std::int64_t store_elements(Group group, const file& f, std::uint64_t begin, std::uint64_t nbytes, const std::byte* in,
                                         std::uint32_t* error) {
  if (group.leader()) *error = 0;
  group.sync();
  const auto p = map<T>(group, f, static_cast<std::int64_t>(begin));
  if (p.error() != 0) return p.error();
  const auto most = static_cast<std::int64_t>(nbytes / sizeof(T)), n = p.left() < most ? p.left() : most;
  for (std::int64_t k = group.rank(); k < n; k += group.size()) {
    T value;
    std::memcpy(&value, in + static_cast<std::size_t>(k) * sizeof(T), sizeof(T));
    store_at(p, k, value);
  }
  const simt::atomic_ref<std::uint32_t> word(*error);
  if (p.error() != 0) word.store(static_cast<std::uint32_t>(-p.error()), std::memory_order_relaxed);
  group.sync();
  const int failed = -static_cast<int>(word.load(std::memory_order_relaxed));
  group.sync();
  return failed != 0 ? failed : n * static_cast<std::int64_t>(sizeof(T));
}
struct alignas(16) sixteen_bytes {
  std::byte bytes[16];
};

// What the word at `begin` was before 1 was added, or an errno.
template <class Group>
GPUFS_DEVICE std::int64_t add_one(Group group, const file& f, std::uint64_t begin, bool links) {
  std::int64_t was = 0;
  {
    const auto p = map<std::uint64_t>(group, f, static_cast<std::int64_t>(begin), 1);
    if (p.error() != 0) return p.error();
    if (group.leader()) {
      was = links ? p.fault_in() : 0;
      if (was == 0) {
        was = static_cast<std::int64_t>(links ? p.fetch_add(1, std::memory_order_relaxed) : fetch_add_at(p, 0, std::uint64_t{1}));
      }
      if (p.error() != 0) was = p.error();
    }
  }
  group.sync();
  return group.broadcast(was);
}

// Writes into the private pages of a mapping those of the bytes that are `mine` of 8, reads them back while their page is held, and
// gives the changes up. How many were not what they had become, or an errno; -EBUSY where others hold the page.
template <class Group>
GPUFS_DEVICE std::int64_t scratch_bytes(Group group, const file& f, std::uint64_t begin, std::uint64_t nbytes, const std::byte* in,
                                        std::uint32_t mine, std::uint32_t* error) {
  std::uint32_t wrong = 0;
  const std::int64_t n =
      for_bytes<unsigned char>(group, f, begin, nbytes, map_flags::private_changes, false, error, [&](auto& p, std::int64_t k) {
        if (static_cast<std::uint64_t>(p.offset()) % 8 != mine) return;
        *p = static_cast<unsigned char>(in[k]);
        wrong += static_cast<std::byte>(static_cast<unsigned char>(*p)) != in[k];
      });
  const bool any = group.any(wrong != 0);
  // Afterwards: the file may have grown before the others' page was mapped, and who leaves last gives all up.
  auto whole = map<unsigned char>(group, f, 0, to_the_end, map_flags::private_changes);
  if (whole.error() != 0) return whole.error();
  const int discarded = discard(group, whole);
  return n < 0 ? n : discarded != 0 ? discarded : any;
}

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
