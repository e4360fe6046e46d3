// SPDX-License-Identifier: Apache-2.0
// A part of a CUDA program that g++ compiles: it looks at mounts, and launches nothing.
#include <cstdio>
#include <gpufs/gpufs.hpp>

void print_log(const gpufs::host_mount& fs) {
  for (const std::string& line : fs.log()) std::printf("%s\n", line.c_str());
}

std::uint64_t hits_of(const gpufs::mount& fs) { return fs.counters().hits; }
