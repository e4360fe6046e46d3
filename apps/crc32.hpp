// SPDX-License-Identifier: Apache-2.0
// CRC-32 as zlib computes it (reflected polynomial 0xEDB88320).
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpufs::apps {

// Continues `crc` (0 to begin) over nbytes bytes: crc32(crc32(0, a), b) is the CRC of a followed by b.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t nbytes);

}  // namespace gpufs::apps
