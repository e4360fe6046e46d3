// SPDX-License-Identifier: Apache-2.0
// What a mount is asked for: checked, and with the defaults filled in.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "gpufs/mount.hpp"

namespace gpufs {

// Throws gpufs::error.
[[noreturn]] void refuse(const std::string& what, int number = EINVAL);

mount_options filled_in(mount_options options, const simt::platform& machine);
std::uint32_t frames_of(const mount_options& options);
std::shared_ptr<store::store> make_store(simt::platform& machine, const std::string& root, const mount_options& options);

}  // namespace gpufs
