// SPDX-License-Identifier: Apache-2.0
#include "gpufs/simt/detail/pinned_answer.hpp"

#include <map>
#include <mutex>
#include <vector>

namespace gpufs::simt::runtime {
namespace {

struct answers {
  std::vector<void*> unused;  // has room for all that were ever made
  std::size_t nmade = 0;
};
struct pool {
  std::mutex mutex;
  std::map<platform*, answers> machines;
};
pool& the_pool() {
  static pool* p = new pool;  // must outlive all that ends with the process
  return *p;
}

}  // namespace

pinned_answer::pinned_answer(platform& machine) : machine_(machine) {
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  auto& [unused, nmade] = p.machines[&machine];
  if (unused.empty()) {
    constexpr std::size_t n = 64;
    unused.reserve(nmade + n);  // first, so that no memory is lost if this throws
    auto* begin = static_cast<char*>(machine.allocate_pinned(n * nbytes));
    for (std::size_t i = 0; i < n; ++i) unused.push_back(begin + i * nbytes);
    nmade += n;
  }
  data_ = unused.back();
  unused.pop_back();
}

pinned_answer::~pinned_answer() {
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  p.machines[&machine_].unused.push_back(data_);  // has room: it came from there
}

}  // namespace gpufs::simt::runtime
