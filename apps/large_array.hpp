// SPDX-License-Identifier: Apache-2.0
// Arrays that threads write all over.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace gpufs::apps {

struct freed {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using large_array = std::unique_ptr<T[], freed>;

// Of n elements that have no value yet, in pages of 2 MiB where the system has them: with 4 KiB nearly each store to another place
// waits for an address to be translated. Throws std::bad_alloc.
template <class T>
large_array<T> make_large_array(std::size_t n) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  constexpr std::size_t page = std::size_t{2} << 20;
  if (n > (~std::size_t{0} - page) / sizeof(T)) throw std::bad_alloc();
  const std::size_t alignment = n * sizeof(T) < page ? 64 : page;
  const std::size_t nbytes = (n * sizeof(T) / alignment + 1) * alignment;
  void* const memory = std::aligned_alloc(alignment, nbytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == page) ::madvise(memory, nbytes, MADV_HUGEPAGE);  // else small pages
  return large_array<T>(static_cast<T*>(memory));
}

}  // namespace gpufs::apps
