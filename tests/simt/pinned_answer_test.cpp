// SPDX-License-Identifier: Apache-2.0
// Answers are given back in destructors, where nothing may throw: so nothing is allocated there.
#include "gpufs/simt/detail/pinned_answer.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <vector>

#include "gpufs/simt/platform.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

// Of the whole program. Not inlined: gcc takes an inlined malloc() or free() for a mismatch with the other one of the pair.
[[gnu::noinline]] void* operator new(std::size_t nbytes) {
  ++allocations;
  void* p = std::malloc(nbytes != 0 ? nbytes : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace gpufs::simt::test {
namespace {

TEST(pinned_answer, is_given_back_without_an_allocation) {
  constexpr std::size_t most = 300;  // five chunks of them
  std::vector<std::unique_ptr<runtime::pinned_answer>> answers;
  answers.reserve(most);
  std::set<void*> places;
  for (std::size_t i = 0; i < most; ++i) {
    answers.push_back(std::make_unique<runtime::pinned_answer>(cpu_platform()));
    places.insert(answers.back()->get());
  }
  EXPECT_EQ(places.size(), most) << "each has its own";
  const std::size_t before = allocations;
  ASSERT_GT(before, most) << "they are counted";
  answers.clear();
  EXPECT_EQ(allocations, before);

  for (std::size_t i = 0; i < most; ++i) {
    answers.push_back(std::make_unique<runtime::pinned_answer>(cpu_platform()));
    EXPECT_TRUE(places.contains(answers.back()->get())) << "used again";
  }
}

}  // namespace
}  // namespace gpufs::simt::test
