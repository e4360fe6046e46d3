// SPDX-License-Identifier: Apache-2.0
#include "apps/crc32.hpp"

#include <array>
#include <cstring>

namespace gpufs::apps {
namespace {

constexpr unsigned nslices = 16;

// table[s][b]: the CRC of byte b followed by s zero bytes.
constexpr auto table = [] {
  std::array<std::array<std::uint32_t, 256>, nslices> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    t[0][b] = crc;
  }
  for (unsigned s = 1; s < nslices; ++s) {
    for (std::uint32_t b = 0; b < 256; ++b) t[s][b] = (t[s - 1][b] >> 8) ^ t[0][t[s - 1][b] & 0xff];
  }
  return t;
}();

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t nbytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; nbytes >= nslices; nbytes -= nslices, p += nslices) {
    std::uint32_t word[4];
    std::memcpy(word, p, sizeof word);
    word[0] ^= crc;
    crc = 0;
    for (unsigned i = 0; i < nslices; ++i) crc ^= table[nslices - 1 - i][(word[i / 4] >> (i % 4 * 8)) & 0xff];
  }
  for (; nbytes != 0; --nbytes, ++p) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
  return ~crc;
}

}  // namespace gpufs::apps
