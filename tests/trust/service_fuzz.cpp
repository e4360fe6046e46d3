// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry: ./dev fuzz builds and runs it.
#include "service_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t nbytes) {
  static gpufs::test::service_fuzzer& fuzzer = *new gpufs::test::service_fuzzer;  // libFuzzer leaves by _Exit
  fuzzer.run({data, nbytes});
  return 0;
}
