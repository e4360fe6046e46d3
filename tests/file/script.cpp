// SPDX-License-Identifier: Apache-2.0
#include "file/script_players.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

template class basic_players<mount_ref>;

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
