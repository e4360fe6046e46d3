// SPDX-License-Identifier: Apache-2.0
// Which way a file's bytes would take, without a mount and without a kernel: what `gpufs doctor` asks.
#pragma once
#include <cstdint>
#include <string>

#include "gpufs/simt/platform.hpp"

namespace gpufs {

struct path_probe {
  std::string way;     // "pull", "staged" or "error"
  std::string reason;  // one sentence
  int error = 0;       // 0 or the negative errno that an open in a kernel would give
  std::int64_t nbytes = 0;
};

// Opens the file as a mount of its folder with the store `auto` would, and closes it again. Host only; throws nothing but
// std::bad_alloc. A file over register_up_to_nbytes is not registered with the platform for the sake of the answer (that
// reads all of it): the answer is then what the pin budget says.
path_probe probe_path(simt::platform& machine, const std::string& path, std::uint64_t register_up_to_nbytes = 64u << 20);

}  // namespace gpufs
