// SPDX-License-Identifier: Apache-2.0
#include "kept_descriptors.hpp"

#include <sys/resource.h>

#include <atomic>
#include <cstdint>

namespace gpufs::store {
namespace {

std::atomic<std::uint64_t> nkept{0}, nfurther{0};  // nkept: of both

bool add_below(std::atomic<std::uint64_t>& n, std::uint64_t most) {
  if (n.fetch_add(1, std::memory_order_relaxed) < most) return true;
  n.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// Reads the limit at one in 64 calls of a thread, because the kernel takes a lock of the whole process for it.
rlim_t descriptor_limit() {
  constexpr unsigned interval = 64;
  thread_local rlim_t known = RLIM_INFINITY;
  thread_local unsigned nuses = 0;
  if (nuses++ % interval == 0) {
    rlimit limit{};
    known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  }
  return known;
}

}  // namespace

bool keep_descriptor(kept_for what) {
  const rlim_t limit = descriptor_limit();
  const bool further = what == kept_for::further_reader;
  if (further && !add_below(nfurther, limit / 8)) return false;
  if (add_below(nkept, limit / 4 * 3)) return true;
  if (further) nfurther.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void keep_descriptor_anyway() { nkept.fetch_add(1, std::memory_order_relaxed); }

void give_descriptor_back(kept_for what) {
  nkept.fetch_sub(1, std::memory_order_relaxed);
  if (what == kept_for::further_reader) nfurther.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace gpufs::store
