// SPDX-License-Identifier: Apache-2.0
// A warp opens a file, reads it and closes it, from inside a kernel.
#include "example.hpp"

struct read_hello {
  gpufs::mount_ref fs;  // a mount as kernels see it: copied by value
  char* text;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();  // the threads that make each call together
    const gpufs::file f = gpufs::open(warp, fs, "hello.txt");
    if (f.error() != 0) {
      *result = f.error();  // a negative errno, as in the kernel of an operating system
      return;
    }
    const std::int64_t n = gpufs::pread(warp, f, text, 100, 0);
    if (warp.leader()) *result = n;
    gpufs::close(warp, f);
  }
};

int main() {
  const example::folder folder;
  folder.write("hello.txt", "hello from a file\n");

  gpufs::mount fs(folder.path());  // the host side: page cache, request rings, threads
  const example::device_array<char> text(101);
  const example::device_array<std::int64_t> result(1);
  gpufs::simt::launch({.grid = 1, .block = 32}, read_hello{fs.ref(), text.get(), result.get()});

  std::printf("the kernel read %lld bytes: %s", static_cast<long long>(result.read_one()), text.read().data());
  example::check(std::string(text.read().data(), 18) == "hello from a file\n" && result.read_one() == 18,
                 "the whole file, and only that");
}
