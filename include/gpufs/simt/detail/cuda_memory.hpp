// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cuda_access.hpp"
#include "gpufs/simt/detail/cuda_atomic.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {

// The ways in which a copy reads its source.
struct host_source {
  __device__ static vec16 load(const vec16* p) { return load_relaxed_16<scope::system>(p); }
  __device__ static std::uint32_t load(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
  }
  __device__ static unsigned char load(const unsigned char* p) {
    std::uint32_t v;
    asm volatile("ld.relaxed.sys.global.b8 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return static_cast<unsigned char>(v);
  }
};
struct device_source {
  __device__ static vec16 load(const vec16* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {{v.x, v.y, v.z, v.w}};
  }
  template <class Word>
  __device__ static Word load(const Word* p) {
    return *p;
  }
};

// Device memory that other processors may write: never from a stale L1.
struct changing_source {
  __device__ static vec16 load(const vec16* p) { return load_relaxed_16<scope::device>(p); }
  __device__ static std::uint32_t load(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
  }
  __device__ static unsigned char load(const unsigned char* p) {
    std::uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b8 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return static_cast<unsigned char>(v);
  }
};

template <class Word>
__device__ inline void store_word(Word* p, const Word& v) {
  *p = v;
}
__device__ inline void store_word(vec16* p, const vec16& v) {
  *reinterpret_cast<uint4*>(p) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// Copies this lane's part of `count` words: so many independent loads, then their stores. to(i, word) stores word i.
template <class Source, unsigned InFlight, class Word, class Count, class Store>
__device__ inline void move_words(unsigned rank, unsigned size, const Word* src, Count count, Store to) {
  Count i = rank;
#pragma unroll 1
  for (; i + (InFlight - 1) * Count{size} < count; i += InFlight * Count{size}) {
    Word words[InFlight];
#pragma unroll
    for (unsigned k = 0; k < InFlight; ++k) words[k] = Source::load(src + i + k * size);
#pragma unroll
    for (unsigned k = 0; k < InFlight; ++k) to(i + k * size, words[k]);
  }
#pragma unroll 1
  for (; i < count; i += size) to(i, Source::load(src + i));
}
template <class Source, class Word, class Count = std::size_t>
__device__ inline void copy_words(unsigned rank, unsigned size, Word* dst, const Word* src, Count count) {
  move_words<Source, 4>(rank, size, src, count, [dst](Count i, const Word& word) { store_word(dst + i, word); });
}

// Copies bytes up to the first aligned word, whole words, then bytes.
template <class Source, class Word>
__device__ inline void copy_aligned_alike(unsigned rank, unsigned size, unsigned char* dst, const unsigned char* src,
                                          std::size_t nbytes) {
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(dst)) & (sizeof(Word) - 1);
  if (head > nbytes) head = nbytes;
  const std::size_t nwords = (nbytes - head) / sizeof(Word);
  const std::size_t done = head + nwords * sizeof(Word);
  if (head != 0) copy_words<Source>(rank, size, dst, src, head);
  copy_words<Source>(rank, size, reinterpret_cast<Word*>(dst + head), reinterpret_cast<const Word*>(src + head), nwords);
  if (done != nbytes) copy_words<Source>(rank, size, dst + done, src + done, nbytes - done);
}

template <class Source, class Group>
__device__ inline void copy_with(Group group, void* to, const void* from, std::size_t nbytes) {
  auto* dst = static_cast<unsigned char*>(to);
  auto* src = static_cast<const unsigned char*>(from);
  const std::uintptr_t skew = reinterpret_cast<std::uintptr_t>(dst) ^ reinterpret_cast<std::uintptr_t>(src);
  const unsigned rank = group.rank(), size = group.size();
  if (skew % sizeof(vec16) == 0) {
    copy_aligned_alike<Source, vec16>(rank, size, dst, src, nbytes);
  } else if (skew % sizeof(std::uint32_t) == 0) {
    copy_aligned_alike<Source, std::uint32_t>(rank, size, dst, src, nbytes);
  } else {
    copy_words<Source>(rank, size, dst, src, nbytes);
  }
  group.sync();
}

template <class Group>
__device__ inline void zero_bytes(Group group, void* to, std::size_t nbytes) {
  auto* const dst = static_cast<unsigned char*>(to);
  const unsigned rank = group.rank(), size = group.size();
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(dst)) & (sizeof(vec16) - 1);
  if (head > nbytes) head = nbytes;
  const std::size_t nwords = (nbytes - head) / sizeof(vec16), done = head + nwords * sizeof(vec16);
#pragma unroll 1
  for (std::size_t i = rank; i < head; i += size) dst[i] = 0;
#pragma unroll 1
  for (std::size_t i = rank; i < nwords; i += size) store_word(reinterpret_cast<vec16*>(dst + head) + i, vec16{});
#pragma unroll 1
  for (std::size_t i = done + rank; i < nbytes; i += size) dst[i] = 0;
}

// The compiler cannot see that an address which was a number points to global memory, and a generic load takes longer. It is
// volatile, because other assembly says when the page may be gone.
template <class T>
__device__ inline T load_device(const T* p) {
  if constexpr (sizeof(T) == alignof(T) && (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16)) {
    std::uint32_t words[sizeof(T) / 4];
    if constexpr (sizeof(T) == 4) {
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(words[0]) : "l"(__cvta_generic_to_global(p)) : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "l"(__cvta_generic_to_global(p))
                   : "memory");
    } else {
      asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(__cvta_generic_to_global(p))
                   : "memory");
    }
    std::remove_cv_t<T> value;
    std::memcpy(static_cast<void*>(&value), words, sizeof value);
    return value;
  } else {
    return *p;
  }
}

__device__ inline void store_device_16(void* p, const vec16& value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(value.word[0]),
               "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}

// If p's load is not wanted, it loads from another address: ptxas would put a branch around a load that a predicate guards.
template <class T>
__device__ inline T load_device_if(bool wanted, const T* p) {
  if constexpr (sizeof(T) == alignof(T) && (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16)) {
    static __device__ const vec16 something{};
    return detail::load_device(wanted ? p : reinterpret_cast<const T*>(&something));
  } else {
    return wanted ? *p : std::remove_cv_t<T>{};
  }
}

template <unsigned Nbytes>
__device__ inline void load_changing_piece(const std::byte* from, std::byte* to) {
  const std::size_t at = __cvta_generic_to_global(from);
  if constexpr (Nbytes == 16) {
    const vec16 piece = load_relaxed_16<scope::device>(from);
    std::memcpy(to, &piece, Nbytes);
  } else if constexpr (Nbytes == 8) {
    std::uint64_t piece;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(piece) : "l"(at) : "memory");
    std::memcpy(to, &piece, Nbytes);
  } else if constexpr (Nbytes == 4) {
    std::uint32_t piece;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(piece) : "l"(at) : "memory");
    std::memcpy(to, &piece, Nbytes);
  } else if constexpr (Nbytes == 2) {
    std::uint16_t piece;
    asm volatile("ld.relaxed.gpu.global.b16 %0, [%1];" : "=h"(piece) : "l"(at) : "memory");
    std::memcpy(to, &piece, Nbytes);
  } else {
    std::uint32_t piece;
    asm volatile("ld.relaxed.gpu.global.b8 %0, [%1];" : "=r"(piece) : "l"(at) : "memory");
    *to = static_cast<std::byte>(piece);
  }
}
template <class T>
__device__ inline T load_changing(const T* p) {
  constexpr unsigned nbytes = alignof(T) < 16 ? alignof(T) : 16;
  std::remove_cv_t<T> value;
  const auto* from = reinterpret_cast<const std::byte*>(p);
  for (unsigned done = 0; done < sizeof(T); done += nbytes) {
    load_changing_piece<nbytes>(from + done, reinterpret_cast<std::byte*>(&value) + done);
  }
  return value;
}

template <class Group>
__device__ inline int copy_from_host(Group group, void* dst, const void* host_src, std::size_t nbytes) {
  copy_with<host_source>(group, dst, host_src, nbytes);
  return 0;
}
template <class Group>
__device__ inline int copy_aligned_from_host(Group group, void* dst, const void* host_src, std::uint32_t nbytes) {
  auto* const to = static_cast<vec16*>(dst);
  auto* const from = static_cast<const vec16*>(host_src);
  copy_words<host_source, vec16>(group.rank(), group.size(), to, from, std::uint32_t(nbytes / sizeof(vec16)));
  group.sync();
  return 0;
}
template <class Group>
__device__ inline int copy_page_from_host(Group group, void* to, void* also, const void* host_src, std::uint32_t nbytes) {
  const std::uint32_t count = nbytes / sizeof(vec16);
  move_words<host_source, 8>(group.rank(), group.size(), static_cast<const vec16*>(host_src), count,
                             [=](std::uint32_t i, const vec16& word) {
                               store_word(static_cast<vec16*>(to) + i, word);
                               if (also != nullptr) store_word(static_cast<vec16*>(also) + i, word);
                             });
  return 0;
}
template <class Group>
__device__ inline void copy_changing(Group group, void* dst, const void* src, std::size_t nbytes) {
  copy_with<changing_source>(group, dst, src, nbytes);
}
template <class Group>
__device__ inline int copy_to_host(Group group, void* dst, const void* src, std::size_t nbytes) {
  copy_with<changing_source>(group, dst, src, nbytes);
  return 0;
}
__device__ inline std::uint32_t take_differences(const void* changing, void* twin) {
  std::uint32_t bits = 0;
  for (unsigned half = 0; half < 2; ++half) {
    vec16& other = static_cast<vec16*>(twin)[half];
    const vec16 a = load_relaxed_16<scope::device>(static_cast<const vec16*>(changing) + half), b = other;
    for (unsigned i = 0; i < 4; ++i) {
      // 0xff in each byte that differs; then one bit of each.
      const std::uint32_t differ = __vcmpne4(a.word[i], b.word[i]) & 0x08040201u;
      bits |= ((differ | differ >> 8 | differ >> 16 | differ >> 24) & 15u) << (half * 16 + i * 4);
    }
    if ((bits >> (half * 16) & 0xffffu) != 0) other = a;
  }
  return bits;
}
template <class Group>
__device__ inline void copy_bytes(Group group, void* dst, const void* src, std::size_t nbytes) {
  copy_with<device_source>(group, dst, src, nbytes);
}

template <class T>
__device__ inline T& block_shared() {
  __shared__ T object;
  return object;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
