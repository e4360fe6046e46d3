// SPDX-License-Identifier: Apache-2.0
// Many files at once, as those of a directory: open_all, close_all, file_names. Called as what file.hpp has.
//
// Each lane of the group opens or closes some of the files, as a group of its own, so that as many requests are under way together
// as the group has lanes; calls for one file each would wait for the host one after another. A lane gives its request slot back
// before it meets the others: it waits for the host, or for an open of the same path, and for no slot that a lane of its own group
// keeps. So few request slots are enough, and more make it faster. What the host's answer brings of a file is copied by that lane
// alone, so a kernel of many warps whose files are read by the host is faster if each warp opens one file at a time by open().
#pragma once
#include "gpufs/file/paths.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// Opens `directory`/names[i] for each i < n, as open(group, fs, path, flags) does: numbers[i] becomes the file's number, or the
// negative errno of its open. file(fs, numbers[i]) is then the file, with its error(). True when all are open.
//
// `directory` is relative to the mount's root, which null, "" and "." stand for; with a name it is one path of at most 4095 bytes.
// The directory, the names (NUL-terminated) and both arrays are in memory that the device can read, and write `numbers`; what lanes
// of the group have written there is seen. A name may be there twice: each of the two opens must be closed.
template <simt::group Group>
GPUFS_DEVICE bool open_all(Group group, const mount_ref& fs, const char* directory, const char* const* names, std::uint32_t n,
                           int flags, file_number* numbers) {
  const simt::group_call call(group, "open_all(mount, directory, names, n, flags, numbers)", fs.get(), directory,
                              simt::memory_of_all{names, n * sizeof *names}, n, flags,
                              simt::memory_of_all{numbers, n * sizeof *numbers});
  group.sync();
  bool good = true;
  for (std::uint32_t i = group.rank(); i < n; i += group.size()) {
    const file opened = detail::open_path(this_thread(), fs, joined_path(directory, names[i]), flags);
    numbers[i] = opened.number();
    good &= opened.error() == 0;
  }
  return group.all(good);
}

// Closes the files with these numbers, as close(group, file) does; negative numbers, of files that did not open, are passed over.
// results[i], where given, becomes 0 or the negative errno of close. True when all of these are 0. Of files open for writing, each
// lane writes one back alone: where much was written, fsync by the group comes first.
template <simt::group Group>
GPUFS_DEVICE bool close_all(Group group, const mount_ref& fs, const file_number* numbers, std::uint32_t n, int* results = nullptr) {
  const simt::group_call call(group, "close_all(mount, numbers, n, results)", fs.get(),
                              simt::memory_of_all{numbers, n * sizeof *numbers}, n,
                              simt::memory_of_all{results, n * sizeof *results});
  group.sync();
  bool good = true;
  for (std::uint32_t i = group.rank(); i < n; i += group.size()) {
    const int error = static_cast<int>(numbers[i]) < 0 ? 0 : close(this_thread(), file(fs, numbers[i]));
    if (results != nullptr) results[i] = error;
    good &= error == 0;
  }
  return group.all(good);
}

// The names of files, that is of all but directories, in what read_directory has given: names[0], names[1], ... point to them, at
// most `most`; what their directory_entry says of each lies before it (names[i] - sizeof(directory_entry)). How many there
// are.
template <simt::group Group>
GPUFS_DEVICE std::uint32_t file_names(Group group, const void* entries, std::int64_t nbytes, const char** names,
                                      std::uint32_t most) {
  const simt::group_call call(group, "file_names(entries, nbytes, names, most)", simt::memory_of_all{entries}, nbytes,
                              simt::memory_of_all{names, most * sizeof *names}, most);
  return detail::by_leader(group, [&] {
    std::uint32_t n = 0;
    const auto* at = static_cast<const std::byte*>(entries);
    for (const std::byte* end = at + (nbytes < 0 ? 0 : nbytes); at < end;) {
      const auto& entry = *reinterpret_cast<const directory_entry*>(at);
      if ((entry.mode & S_IFMT) != S_IFDIR && n < most) names[n++] = reinterpret_cast<const char*>(&entry + 1);
      at += entry.entry_nbytes;
    }
    return n;
  });
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
