// SPDX-License-Identifier: Apache-2.0
// Atomic accesses and fences, with a scope and an order each. On the CPU machine each one is a preemption point.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/types.hpp"
#include "gpufs/simt/wait.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_atomic.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Refers to a T of 4 or 8 bytes at its natural alignment, in memory that the platform allocated or registered; in shared memory
// or on a thread's own stack only with scope::block (the CPU machine reports it otherwise). Host code may use it too, in a TU
// of either compiler; to meet a kernel on a GPU, host and device use scope::system, and only one side writes a word: there
// are no PCIe atomics.
template <class T, scope S = scope::device>
class atomic_ref {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

 public:
  GPUFS_HOST_DEVICE explicit atomic_ref(T& object) : object_(&object) {}

  GPUFS_HOST_DEVICE T load(std::memory_order order) const {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_load<S>(address(), order));
#else
    before_access();
    return host().load(order);
#endif
  }
  GPUFS_HOST_DEVICE T load_relaxed() const { return load(std::memory_order_relaxed); }
  GPUFS_HOST_DEVICE void store(T value, std::memory_order order) const {
#ifdef __CUDA_ARCH__
    detail::ptx_store<S>(address(), to_bits(value), order);
#else
    before_access();
    host().store(value, order);
    after_write();
#endif
  }
  GPUFS_HOST_DEVICE T exchange(T value, std::memory_order order) const {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_exchange<S>(address(), to_bits(value), order));
#else
    before_access();
    const T was = host().exchange(value, order);
    if (std::memcmp(&was, &value, sizeof value) != 0) after_write();
    return was;
#endif
  }
  // Never fails spuriously; compares bytes. If it fails, it leaves the value that it found in `expected`, and is an acquire if
  // `success` is.
  GPUFS_HOST_DEVICE bool compare_exchange(T& expected, T desired, std::memory_order success) const {
#ifdef __CUDA_ARCH__
    const bits wanted = to_bits(expected);
    const bits found = detail::ptx_compare_exchange<S>(address(), wanted, to_bits(desired), success);
    expected = from_bits(found);
    return found == wanted;
#else
    before_access();
    const bool acquires = success != std::memory_order_relaxed && success != std::memory_order_release;
    const bool done = host().compare_exchange_strong(expected, desired, success,
                                                     acquires ? std::memory_order_acquire : std::memory_order_relaxed);
    if (done) after_write();
    return done;
#endif
  }
  GPUFS_HOST_DEVICE T fetch_add(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_fetch_add<S>(address(), to_bits(value), order));
#else
    before_access();
    const T was = host().fetch_add(value, order);
    after_write();
    return was;
#endif
  }
  GPUFS_HOST_DEVICE T fetch_add(T value, std::memory_order order) const requires std::is_floating_point_v<T> {
#ifdef __CUDA_ARCH__
    return detail::ptx_fetch_add_real<S>(const_cast<plain*>(object_), value, order);
#else
    return replace([value](T was) { return was + value; }, order);
#endif
  }
  GPUFS_HOST_DEVICE T fetch_sub(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_fetch_add<S>(address(), static_cast<bits>(0 - to_bits(value)), order));
#else
    before_access();
    const T was = host().fetch_sub(value, order);
    after_write();
    return was;
#endif
  }
  GPUFS_HOST_DEVICE T fetch_or(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_fetch_or<S>(address(), to_bits(value), order));
#else
    before_access();
    const T was = host().fetch_or(value, order);
    if ((was | value) != was) after_write();
    return was;
#endif
  }
  GPUFS_HOST_DEVICE T fetch_and(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    return from_bits(detail::ptx_fetch_and<S>(address(), to_bits(value), order));
#else
    before_access();
    const T was = host().fetch_and(value, order);
    if ((was & value) != was) after_write();
    return was;
#endif
  }
  // The object gets the lesser, or the greater, of its value and `value`.
  GPUFS_HOST_DEVICE T fetch_min(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_signed_v<T>) return from_bits(detail::ptx_fetch_min_signed<S>(address(), to_bits(value), order));
    return from_bits(detail::ptx_fetch_min_unsigned<S>(address(), to_bits(value), order));
#else
    return replace([value](T was) { return value < was ? value : was; }, order);
#endif
  }
  GPUFS_HOST_DEVICE T fetch_max(T value, std::memory_order order) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_signed_v<T>) return from_bits(detail::ptx_fetch_max_signed<S>(address(), to_bits(value), order));
    return from_bits(detail::ptx_fetch_max_unsigned<S>(address(), to_bits(value), order));
#else
    return replace([value](T was) { return was < value ? value : was; }, order);
#endif
  }
  // Adds `value`, after the earlier loads of the caller's warp, and orders nothing else. So these loads do not see writes that a
  // lane makes after it has acquired the sum. (Other warps of the block wait for their own loads by a fence of the block's scope,
  // before the warps meet.) Once a load has its value, no later write changes it. So on CUDA a fence of the block's scope is
  // enough, because it waits for just that. NVIDIA's GPUs work like this, although PTX's model does not promise it. (A release
  // would wait for unrelated writes to reach the device: measured on hits, this costs 5 to 12 % of their speed.)
  GPUFS_HOST_DEVICE T fetch_add_after_loads(T value) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    detail::ptx_fence(std::memory_order_acq_rel, scope::block);
    return from_bits(detail::ptx_fetch_add<S>(address(), to_bits(value), std::memory_order_relaxed));
#else
    return fetch_add(value, std::memory_order_release);
#endif
  }
  // Adds without returning the old value: for counters.
  GPUFS_HOST_DEVICE void add_relaxed(T value) const requires std::is_integral_v<T> {
#ifdef __CUDA_ARCH__
    detail::ptx_add_relaxed<S>(address(), to_bits(value));
#else
    before_access();
    host().fetch_add(value, std::memory_order_relaxed);
    after_write();
#endif
  }

 private:
  using plain = std::remove_cv_t<T>;
  GPUFS_HOST_DEVICE static bits to_bits(const plain& value) {
    bits b;
    std::memcpy(&b, &value, sizeof b);
    return b;
  }
  GPUFS_HOST_DEVICE static plain from_bits(bits b) {
    plain value;
    std::memcpy(&value, &b, sizeof b);
    return value;
  }
  GPUFS_HOST_DEVICE bits* address() const { return reinterpret_cast<bits*>(const_cast<plain*>(object_)); }
  // A point where other lanes may run, and where the machine notices accesses that CUDA could not make.
  void before_access() const {
#if !GPUFS_ON_CUDA
    if constexpr (S != scope::block) {
      const runtime::cpu_lane* lane = runtime::cpu_current;
      const auto at = reinterpret_cast<std::uintptr_t>(object_);
      const bool is_shared = at - lane->shared_begin < lane->shared_nbytes;
      if (is_shared || at - lane->stack_begin < lane->stack_nbytes) runtime::cpu_refuse_address(is_shared);
    }
#endif
    preempt();
  }
  // One atomic operation: sets by(old value), and returns the old value.
  template <class By>
  T replace(By by, std::memory_order order) const {
    before_access();
    T was = host().load(std::memory_order_relaxed);
    while (!host().compare_exchange_weak(was, by(was), order, std::memory_order_relaxed)) {
    }
    if (by(was) != was) after_write();
    return was;
  }
  // Tells the CPU machine's scheduler that this lane makes progress: an idle OS thread sleeps longer while no lane does. Where
  // schedules are explored, another lane may run now, before this one's next step. An operation that leaves its word unchanged is
  // not progress, so a lane that tries a lock again and again counts as one that waits.
  static void after_write() {
#if !GPUFS_ON_CUDA
    if (runtime::cpu_current->tells_writes) runtime::cpu_wrote();
#endif
  }
  std::atomic_ref<plain> host() const { return std::atomic_ref<plain>(*const_cast<plain*>(object_)); }

  T* object_;
};

// Accesses like atomic_ref's, to words that are used again while other data streams by once: they ask the second-level cache to
// evict these words last.
template <scope S = scope::device>
class kept_ref {
  static_assert(S != scope::block, "the first-level cache is told nothing");

 public:
  GPUFS_DEVICE explicit kept_ref(std::uint64_t& object) : object_(&object) {}

  GPUFS_DEVICE std::uint64_t load_relaxed() const {
#ifdef __CUDA_ARCH__
    return detail::ptx_load_kept<S>(object_);
#else
    return usual().load_relaxed();
#endif
  }
  GPUFS_DEVICE std::uint64_t fetch_add(std::uint64_t value, std::memory_order order) const {
#ifdef __CUDA_ARCH__
    return detail::ptx_fetch_add_kept<S>(object_, value, order);
#else
    return usual().fetch_add(value, order);
#endif
  }
  GPUFS_DEVICE std::uint64_t fetch_add_after_loads(std::uint64_t value) const {
#ifdef __CUDA_ARCH__
    detail::ptx_fence(std::memory_order_acq_rel, scope::block);
    return detail::ptx_fetch_add_kept<S>(object_, value, std::memory_order_relaxed);
#else
    return usual().fetch_add_after_loads(value);
#endif
  }

 private:
  GPUFS_DEVICE atomic_ref<std::uint64_t, S> usual() const { return atomic_ref<std::uint64_t, S>(*object_); }
  std::uint64_t* object_;
};

// The order of a write that follows a releasing fence. On the CPU machine it is a release all the same: ThreadSanitizer knows the
// machine's fences only if both sides have one, and the partner of this write is an acquire.
inline constexpr std::memory_order after_fence = GPUFS_ON_CUDA ? std::memory_order_relaxed : std::memory_order_release;

// A fence: one half of a synchronisation whose accesses are relaxed. `order`: release, acquire, acq_rel or seq_cst.
GPUFS_HOST_DEVICE void fence([[maybe_unused]] std::memory_order order, [[maybe_unused]] scope s) {
#ifdef __CUDA_ARCH__
  detail::ptx_fence(order, s);
#elif defined(__SANITIZE_THREAD__) && !GPUFS_ON_CUDA
  preempt();
  runtime::cpu_fence(order != std::memory_order_release, order != std::memory_order_acquire);
#else
  preempt();
  std::atomic_thread_fence(order);
#endif
}

// Stores to a register of another device that kernels reach, such as a doorbell: once, and joined with no other store. It is
// relaxed, of system scope; what the device is to find before it, a fence of that scope orders (its partner is the device's look at
// the register).
GPUFS_DEVICE void store_register(std::uint32_t* to, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
#else
  atomic_ref<std::uint32_t, scope::system>(*to).store(value, after_fence);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
