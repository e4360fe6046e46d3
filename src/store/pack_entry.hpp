// SPDX-License-Identifier: Apache-2.0
// Entries of directories, as read_directory gives them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "gpufs/names/words.hpp"

namespace gpufs::store {

// How many bytes the entry of this name takes.
inline std::size_t entry_nbytes_of(std::string_view name) { return (sizeof(directory_entry) + name.size() + 1 + 7) / 8 * 8; }

// Writes an entry, which has room at `to`, and its name.
inline void pack_entry(std::byte* to, directory_entry entry, std::string_view name) {
  entry.entry_nbytes = static_cast<std::uint16_t>(entry_nbytes_of(name));
  entry.name_nbytes = static_cast<std::uint16_t>(name.size());
  std::memcpy(to, &entry, sizeof entry);
  std::memcpy(to + sizeof entry, name.data(), name.size());
  to[sizeof entry + name.size()] = std::byte{0};
}

}  // namespace gpufs::store
