// SPDX-License-Identifier: Apache-2.0
// The system's calls, one of which fails where a test says. The linker leads the library's calls here (--wrap): CMakeLists.txt.
#pragma once
#include <cstdint>
#include <span>

namespace gpufs::test {

enum class consequence {
  none,    // the library tries again, and nobody notices
  told,    // some call of a kernel or the host gives an error
  either,  // there may be another way
};

struct failing_call {
  const char* name;  // as the linker knows it
  int error;
  consequence then;
};

// All calls, each with what it may fail with. short_count in place of an errno lets it do half of what was asked, no_bytes nothing.
inline constexpr int short_count = -1, no_bytes = -2;
std::span<const failing_call> failing_calls();

// From now on the n-th (from 0) call of this kind fails, and with `lasting` all after it.
void let_fail(const failing_call& which, std::uint64_t n, bool lasting);
// All calls of this kind fail so, besides, from now on: as where a container forbids them. nullptr: none.
void forbid(const char* name, int error);
// No call fails any more, but those forbidden. How many of the kind there have been since let_fail().
std::uint64_t let_none_fail();

}  // namespace gpufs::test
