// SPDX-License-Identifier: Apache-2.0
// What the sanitizers must know about fibers. In an ordinary build all of it does nothing.
//
// ThreadSanitizer sees each lane as a thread of its own: a switch orders nothing (no_sync), and collectives state their own order.
// So the scheduler, which all lanes of an OS thread run, is not instrumented (GPUFS_NO_TSAN) and calls nothing that is.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_write_range(void* ptr, unsigned long nbytes);
#define GPUFS_NO_TSAN __attribute__((no_sanitize("thread"), noinline))
#else
#define GPUFS_NO_TSAN
#endif

namespace gpufs::simt::sanitizer {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::size_t stack_factor = 4;  // instrumented frames are larger
#else
inline constexpr std::size_t stack_factor = 1;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr unsigned max_fibers = 4096;  // it knows 8128 threads in all
#else
inline constexpr unsigned max_fibers = ~0u;
#endif

#if defined(__SANITIZE_THREAD__)
#define GPUFS_SANITIZER_INLINE __attribute__((no_sanitize("thread"), always_inline)) inline
#else
#define GPUFS_SANITIZER_INLINE inline
#endif

// Orders what came before release(p) before what comes after acquire(p).
GPUFS_SANITIZER_INLINE void release([[maybe_unused]] const void* p) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(const_cast<void*>(p));
#endif
}
GPUFS_SANITIZER_INLINE void acquire([[maybe_unused]] const void* p) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(const_cast<void*>(p));
#endif
}

GPUFS_SANITIZER_INLINE void* create_fiber() {
#if defined(__SANITIZE_THREAD__)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}
GPUFS_SANITIZER_INLINE void* current_fiber() {
#if defined(__SANITIZE_THREAD__)
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

// Around a switch: the fiber that leaves calls start, and the fiber that arrives calls finish.
GPUFS_SANITIZER_INLINE void start_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* stack_bottom,
                                         [[maybe_unused]] std::size_t stack_nbytes, [[maybe_unused]] void* tsan_fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, stack_bottom, stack_nbytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
}
GPUFS_SANITIZER_INLINE void finish_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** left_bottom,
                                          [[maybe_unused]] std::size_t* left_nbytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, left_bottom, left_nbytes);
#endif
}

// Memory that may not be touched until it is handed out again.
GPUFS_SANITIZER_INLINE void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t nbytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(p, nbytes);
#endif
}
GPUFS_SANITIZER_INLINE void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t nbytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(p, nbytes);
#endif
}

// The stack of a fiber that will never run again still owns the memory that it points to.
GPUFS_SANITIZER_INLINE void keep_reachable([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t nbytes) {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_register_root_region(p, nbytes);
#endif
}

// The kernel is about to write this range for us.
inline void will_write([[maybe_unused]] void* p, [[maybe_unused]] std::size_t nbytes) {
#if defined(__SANITIZE_THREAD__)
  __tsan_write_range(p, nbytes);
#elif defined(__SANITIZE_ADDRESS__)
  __builtin_memset(p, 0, nbytes);
#endif
}

}  // namespace gpufs::simt::sanitizer
