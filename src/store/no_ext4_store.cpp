// SPDX-License-Identifier: Apache-2.0
// In place of ext4_store.cpp, where there is no libext2fs.
#include <cerrno>
#include <system_error>

#include "gpufs/store/ext4_store.hpp"

namespace gpufs::store {

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is the declaration's
std::unique_ptr<store> make_ext4_store(simt::platform&, std::shared_ptr<store>, const ext4_options&) {
  throw std::system_error(ENOSYS, std::generic_category(),
                          "gpufs: it was built without libext2fs: install it (Debian: libext2fs-dev) and build gpufs again");
}

}  // namespace gpufs::store
