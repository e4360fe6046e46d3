// SPDX-License-Identifier: Apache-2.0
// What long work tells of itself. Host code.
#pragma once
#include <cstdint>
#include <functional>

namespace gpufs::apps {

// Called now and then with what is done of `total`; may throw to stop the work.
using progress_function = std::function<void(std::uint64_t done, std::uint64_t total)>;

}  // namespace gpufs::apps
