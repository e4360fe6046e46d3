// SPDX-License-Identifier: Apache-2.0
// Partition tables, byte by byte as the UEFI specification (2.10, section 5) has them, for images of namespaces.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpufs::test {

// Of a table of 256 words, as most programs have it: not as what is tested computes it.
inline std::uint32_t crc32_of(const std::byte* bytes, std::size_t nbytes) {
  static const std::vector<std::uint32_t> table = [] {
    std::vector<std::uint32_t> made(256);
    for (std::uint32_t i = 0; i < 256; ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = (made[i] & 1) != 0 ? made[i] >> 1 ^ 0xedb88320u : made[i] >> 1;
    }
    return made;
  }();
  std::uint32_t crc = 0xffffffff;
  for (std::size_t i = 0; i < nbytes; ++i) crc = table[(crc ^ static_cast<std::uint32_t>(bytes[i])) & 0xff] ^ crc >> 8;
  return crc ^ 0xffffffff;
}

struct table_image {
  table_image(std::uint64_t blocks, std::uint32_t nbytes_of_block)
      : block(nbytes_of_block), nblocks(blocks), bytes(blocks * block) {}

  template <class T>
  void put(std::uint64_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  void put_mbr_entry(std::uint32_t i, std::uint8_t type, std::uint32_t first, std::uint32_t n, std::uint8_t flag = 0) {
    put(446 + 16 * i, flag);
    put(446 + 16 * i + 4, type);
    put(446 + 16 * i + 8, first);
    put(446 + 16 * i + 12, n);
    put(510, std::uint16_t{0xaa55});
  }

  // Both tables of a GPT: entry i has blocks first to last; {0, 0} is unused. The entries' array is of nentries.
  struct entry {
    std::uint64_t first, last;
  };
  static constexpr std::uint32_t entry_nbytes = 128;
  std::uint32_t nentries = 128;
  std::uint64_t array_nblocks() const { return (entry_nbytes * nentries + block - 1) / block; }
  std::uint64_t first_usable() const { return 2 + array_nblocks(); }
  std::uint64_t last_usable() const { return nblocks - 2 - array_nblocks(); }
  void put_gpt(const std::vector<entry>& entries) {
    put_mbr_entry(0, 0xee, 1, static_cast<std::uint32_t>(nblocks - 1));
    put_half(1, nblocks - 1, 2, entries);
    put_half(nblocks - 1, 1, nblocks - 1 - array_nblocks(), entries);
  }
  void put_half(std::uint64_t lba, std::uint64_t other, std::uint64_t array, const std::vector<entry>& entries) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::uint64_t at = array * block + i * entry_nbytes;
      if (entries[i].first == 0) continue;
      for (std::uint64_t byte = 0; byte < 32; ++byte) put(at + byte, static_cast<std::uint8_t>(0x11 + byte + i));
      put(at + 32, entries[i].first);
      put(at + 40, entries[i].last);
    }
    const std::uint64_t header = lba * block;
    std::memcpy(bytes.data() + header, "EFI PART", 8);
    put(header + 8, std::uint32_t{0x00010000});
    put(header + 12, std::uint32_t{92});
    put(header + 24, lba);
    put(header + 32, other);
    put(header + 40, first_usable());
    put(header + 48, last_usable());
    put(header + 72, array);
    put(header + 80, nentries);
    put(header + 84, entry_nbytes);
    seal(lba, array);
  }
  // Both CRCs of a header anew, as of an array that begins at this block.
  void seal(std::uint64_t lba, std::uint64_t array) {
    const std::uint64_t header = lba * block;
    put(header + 88, crc32_of(bytes.data() + array * block, entry_nbytes * nentries));
    put(header + 16, std::uint32_t{0});
    put(header + 16, crc32_of(bytes.data() + header, 92));
  }

  std::uint32_t block;
  std::uint64_t nblocks;
  std::vector<std::byte> bytes;
};

}  // namespace gpufs::test
