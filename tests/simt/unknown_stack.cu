// SPDX-License-Identifier: Apache-2.0
// What cold.hpp forbids, and cmake/stacks.py must find: `outer` calls a function with its own parameters out of line, so ptxas
// takes that for recursion, and does not know the kernel's stack.
#include "gpufs/simt/cold.hpp"

namespace {

using gpufs::simt::call_cold;

template <int N>
GPUFS_DEVICE_COLD int inner(int x, int* p) {
  int some[40];
  for (int i = 0; i < 40; ++i) some[i] = p[i + x];
  for (int i = 0; i < 40; ++i) p[some[i]] = some[i * x % 40];
  return some[x % 40];
}

template <int N>
GPUFS_DEVICE_COLD int outer(int x, int* p) {
  int some[90];
  for (int i = 0; i < 90; ++i) some[i] = p[i + x];
  for (int i = 0; i < 90; ++i) p[some[i]] = some[i * x % 90];
  return call_cold(inner<1>, x + some[x % 90], p) + some[3 * x % 90];
}

}  // namespace

__global__ void kernel(int* p) { *p = call_cold(outer<1>, p[1], p); }
