// SPDX-License-Identifier: Apache-2.0
// The files of an ext2, ext3 or ext4 file system that nobody has mounted, to be read: where it lies on a namespace of an NVMe
// controller, kernels read the files' blocks themselves.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "gpufs/simt/platform.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::store {

struct ext4_options {
  std::string file = "n1";                                // of the store below: the device that the file system lies on
  std::uint64_t tables_nbytes = std::uint64_t{64} << 20;  // pinned memory, at most, for what kernels know of files: 64 bytes and
                                                          // 24 an extent for each. The first MiB is taken by
                                                          // make_ext4_store, more by a thread ahead. Files that find no room when
                                                          // they are opened are read by the host
};

// Host only, any thread. Reads the file system by libext2fs, and writes nothing; paths, flags and their errors are those of
// posix_store that may not write (posix_store.hpp's table), with symbolic links followed inside the file system. Permissions are
// not looked at: who reads the device reads all of it.
//
// device: an nvme_store, say, which must not be writable; nobody else may write what it reads while the store and its files exist.
// machine: whose kernels read; it must outlive both, too.
// Files are of kind nvme where `file` is, and their extents are plain: lanes that miss a page find its blocks in a table, and no
// thread of the host is on the way. Holes, and what was allocated and never written, read as zeros. Files that lie in their inodes
// (inline data), those that find no room for a table, and all where `file` is of another kind, the host reads.
// Errors of an open, beside those of paths and of the device: -EOPNOTSUPP, the file is encrypted, compressed or has fs-verity;
// -EUCLEAN, what the file system says of it cannot be: a checksum is wrong, extents are out of range or order.
//
// Throws std::system_error, whose words say what helps: ENOSYS, gpufs was built without libext2fs; EINVAL, there is no such file
// system, or the device may be written; EOPNOTSUPP, it has features or a revision that are not understood; EUCLEAN, its superblock
// or its groups are damaged, or Linux has noted errors; EROFS, its journal must be replayed first; EBUSY, it was not unmounted;
// ENXIO, the device is smaller than the file system; and what opening or reading `file` gives. std::invalid_argument:
// no device.
std::unique_ptr<store> make_ext4_store(simt::platform& machine, std::shared_ptr<store> device, const ext4_options& options = {});

}  // namespace gpufs::store
