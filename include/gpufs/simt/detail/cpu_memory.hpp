// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {
using namespace simt::runtime;

// Loads word by word, with a preemption point before each: four loads must not look like one atomic load.
template <scope S>
vec16 load_relaxed_16(const void* p) {
  auto* word = static_cast<std::uint32_t*>(const_cast<void*>(p));
  vec16 v;
  for (int i = 0; i < 4; ++i) v.word[i] = atomic_ref<std::uint32_t, S>(word[i]).load(std::memory_order_relaxed);
  return v;
}
template <scope S>
vec16 load_kept_16(const void* p) {
  return load_relaxed_16<S>(p);
}

inline vec16 load_published_16(const void* p) {
  auto* word = static_cast<std::uint32_t*>(const_cast<void*>(p));
  vec16 v;
  v.word[3] = atomic_ref<std::uint32_t, scope::system>(word[3]).load(std::memory_order_acquire);
  for (int i = 0; i < 3; ++i) v.word[i] = atomic_ref<std::uint32_t, scope::system>(word[i]).load(std::memory_order_relaxed);
  return v;
}

inline void store_relaxed_16(void* p, const vec16& value) {
  std::uint64_t words[2];
  std::memcpy(words, &value, sizeof words);
  for (int i = 0; i < 2; ++i)
    atomic_ref<std::uint64_t>(static_cast<std::uint64_t*>(p)[i]).store(words[i], std::memory_order_relaxed);
}

inline void store_device_16(void* p, const vec16& value) { *static_cast<vec16*>(p) = value; }
template <class T>
T load_device(const T* p) {
  return *p;
}
template <class T>
T load_device_if(bool wanted, const T* p) {
  return wanted ? *p : std::remove_cv_t<T>{};
}

template <class T>
T load_changing(const T* p) {
  std::remove_cv_t<T> value;
  preempt();
  cpu_copy_changing(&value, p, sizeof value);
  return value;
}

// Atomic loads, because others may compare and exchange words of the line: to ThreadSanitizer a failed exchange is a write, too.
// The warp's next collective checks that all lanes have called get.
class warp_line_words {
 public:
  explicit warp_line_words(const void* line) : line_(static_cast<const std::byte*>(line)) {}
  template <class T>
  T get(unsigned offset) const {
    ++cpu_current->nline_words;
    T value;
    __atomic_load(reinterpret_cast<const T*>(line_ + offset), &value, __ATOMIC_RELAXED);
    return value;
  }

 private:
  const std::byte* line_;
};

template <class Group>
int copy_from_host(Group group, void* dst, const void* host_src, std::size_t nbytes) {
  return group.broadcast(group.leader() ? cpu_copy_from_host(dst, host_src, nbytes) : 0);
}
template <class Group>
int copy_aligned_from_host(Group group, void* dst, const void* host_src, std::uint32_t nbytes) {
  return detail::copy_from_host(group, dst, host_src, nbytes);
}
template <class Group>
int copy_page_from_host(Group group, void* to, void* also, const void* host_src, std::uint32_t nbytes) {
  const int error = detail::copy_from_host(group, to, host_src, nbytes);
  if (also != nullptr && error == 0 && group.leader()) std::memcpy(also, to, nbytes);
  return error;
}
template <class Group>
void copy_changing(Group group, void* dst, const void* src, std::size_t nbytes) {
  if (group.leader()) cpu_copy_changing(dst, src, nbytes);
  group.sync();
}
template <class Group>
int copy_to_host(Group group, void* dst, const void* src, std::size_t nbytes) {
  return group.broadcast(group.leader() ? cpu_copy_to_host(dst, src, nbytes) : 0);
}
template <class Group>
void zero_bytes(Group group, void* to, std::size_t nbytes) {
  if (group.leader()) std::memset(to, 0, nbytes);
}
inline std::uint32_t take_differences(const void* changing, void* twin) {
  unsigned char now[32];
  cpu_copy_changing(now, changing, sizeof now);
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < sizeof now; ++i) bits |= std::uint32_t{now[i] != static_cast<const unsigned char*>(twin)[i]} << i;
  std::memcpy(twin, now, sizeof now);
  return bits;
}
template <class Group>
void copy_bytes(Group group, void* dst, const void* src, std::size_t nbytes) {
  if (group.leader() && nbytes != 0) std::memcpy(dst, src, nbytes);
  group.sync();
}

template <class T>
struct shared_key {
  static inline const char address = 0;
};
template <class T>
T& block_shared() {
  return *static_cast<T*>(cpu_shared(&shared_key<T>::address, sizeof(T), alignof(T)));
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
