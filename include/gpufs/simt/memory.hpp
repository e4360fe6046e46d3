// SPDX-License-Identifier: Apache-2.0
// Wide loads, copies by a group, and shared memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/group.hpp"
#include "gpufs/simt/types.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_memory.hpp"
#else
#include "gpufs/simt/detail/cpu_memory.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Loads 16 bytes of global memory, aligned to 16. Each 4-byte word is a relaxed atomic load of scope S, device or system; the four
// together are not one, so words may come from different writes.
template <scope S = scope::device>
GPUFS_DEVICE vec16 load_relaxed_16(const void* p) {
  static_assert(S != scope::block);
  return detail::load_relaxed_16<S>(p);
}

// Stores 16 bytes to global memory, aligned to 16: relaxed, of device scope, and on CUDA by one instruction. The CPU machine stores
// two words of 8 bytes, so a program that runs there trusts in no more.
GPUFS_DEVICE void store_relaxed_16(void* p, const vec16& value) { detail::store_relaxed_16(p, value); }

// The same as load_relaxed_16, with kept_ref's request to the second-level cache.
template <scope S = scope::device>
GPUFS_DEVICE vec16 load_kept_16(const void* p) {
  static_assert(S != scope::block);
  return detail::load_kept_16<S>(p);
}

// The same as load_relaxed_16 for host memory that others may change (system scope): never served from a stale first-level cache.
GPUFS_DEVICE vec16 load_host_16(const void* p) { return load_relaxed_16<scope::system>(p); }

// Loads 16 bytes of host memory, aligned to 16, that somebody writes whose last store is the last word's: a device, by one write
// over the bus, or a thread, by a release. If the last word is new, so are the others, and what the writer did before. An acquire
// of system scope, of that word; on CUDA one load.
GPUFS_DEVICE vec16 load_published_16(const void* p) { return detail::load_published_16(p); }

// Loads *p from device memory (not shared memory, not a stack). The load is faster if T has 4, 8 or 16 bytes and is aligned to its
// size.
template <class T>
GPUFS_DEVICE T load_device(const T* p) {
  return detail::load_device(p);
}
// Loads like load_device if `wanted`; otherwise it makes no access, and returns any value. It has no branch. So the load can begin
// before the program has decided a branch on the same condition.
template <class T>
GPUFS_DEVICE T load_device_if(bool wanted, const T* p) {
  return detail::load_device_if(wanted, p);
}

// Stores 16 bytes, aligned to 16, to device memory, as load_device loads: by one instruction, which the compiler does not take
// apart.
GPUFS_DEVICE void store_device_16(void* p, const vec16& value) { detail::store_device_16(p, value); }

// Loads *p from device memory that other processors may write meanwhile: never from a stale first-level cache. Its bytes are old or
// new ones, and may come from different writes.
template <class T>
GPUFS_DEVICE T load_changing(const T* p) {
  return detail::load_changing(p);
}
// Orders the caller's earlier loads before its later ones, if both are relaxed atomic loads of device scope (or load_changing's):
// an acquire fence of that scope, for loads alone. On CUDA the fence has the block's scope, which waits for values and nothing
// else: see atomic_ref::fetch_add_after_loads.
GPUFS_DEVICE void fence_loads() { fence(std::memory_order_acquire, GPUFS_ON_CUDA ? scope::block : scope::device); }

// 128 bytes of global memory that a full warp holds, one word in a register of each lane. The words are loaded at once, and get
// shuffles them to the lanes. All lanes of the warp construct it together, with the same address (aligned to 128), and call get
// together.
class warp_line {
 public:
  GPUFS_DEVICE explicit warp_line(const void* line) : line_(line) {}
  // Returns the member at `offset`, of 4 or 8 bytes, aligned.
  template <class T>
  GPUFS_DEVICE T get(unsigned offset) const {
    return line_.template get<T>(offset);
  }

 private:
  detail::warp_line_words line_;
};

// Collective. Copies nbytes from host memory (pinned, or a registered mapping) to device memory, any alignment; 16-byte loads, four
// in flight a lane, if source and destination are aligned alike. The caller must order the members' earlier writes before the call
// if that matters; when the call returns, every member sees the copy. 0, or -EIO: CPU machine only, the source was unmapped or
// truncated meanwhile, and dst may contain anything.
template <class Group>
GPUFS_DEVICE int copy_from_host(Group group, void* dst, const void* host_src, std::size_t nbytes) {
  return detail::copy_from_host(group, dst, host_src, nbytes);
}

// The same, in few registers. dst, host_src and nbytes must be multiples of 16.
template <class Group>
GPUFS_DEVICE int copy_aligned_from_host(Group group, void* dst, const void* host_src, std::uint32_t nbytes) {
  return detail::copy_aligned_from_host(group, dst, host_src, nbytes);
}

// Collective. Copies nbytes from host memory to `to` and, unless that is null, to `also`; all of them must be multiples of 16. For
// a group that waits for these bytes and has the registers: 8 loads are in flight a lane. The caller syncs the group before anybody
// reads them. Else as copy_from_host.
template <class Group>
GPUFS_DEVICE int copy_page_from_host(Group group, void* to, void* also, const void* host_src, std::uint32_t nbytes) {
  return detail::copy_page_from_host(group, to, also, host_src, nbytes);
}

// Collective. Copies device memory that others may write meanwhile (then each byte is an old or a new one) to pinned host memory or
// device memory.
template <class Group>
GPUFS_DEVICE void copy_changing(Group group, void* dst, const void* src, std::size_t nbytes) {
  detail::copy_changing(group, dst, src, nbytes);
}

// The same, to a registered mapping of a file. 0, or -EIO: CPU machine only, the mapping was cut meanwhile.
template <class Group>
GPUFS_DEVICE int copy_to_host(Group group, void* host_dst, const void* src, std::size_t nbytes) {
  return detail::copy_to_host(group, host_dst, src, nbytes);
}

// Collective. Sets device memory, any alignment, to zeros: by stores of 16 bytes, all that lie so. Or memory of its own for a group
// of one thread. The caller syncs the group before anybody reads them.
template <class Group>
GPUFS_DEVICE void zero_bytes(Group group, void* to, std::size_t nbytes) {
  detail::zero_bytes(group, to, nbytes);
}

// Compares 32 bytes of device memory, aligned to 16, with `twin`, and returns a set bit for each byte that differs. `twin` becomes
// equal to the bytes compared. Others may write `changing` meanwhile; each of its bytes is loaded once.
GPUFS_DEVICE std::uint32_t take_differences(const void* changing, void* twin) { return detail::take_differences(changing, twin); }

// Collective. Copies device memory to device memory; the ranges do not overlap, and nobody writes the source.
template <class Group>
GPUFS_DEVICE void copy_bytes(Group group, void* dst, const void* src, std::size_t nbytes) {
  detail::copy_bytes(group, dst, src, nbytes);
}

// The block's object of type T, not initialised; at most 48 KiB for all types together. Two users of one plain type share it, so
// each use names a struct of its own.
template <class T>
GPUFS_DEVICE T& shared() {
  static_assert(std::is_trivially_default_constructible_v<T> && std::is_trivially_destructible_v<T>);
  return detail::block_shared<T>();
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
