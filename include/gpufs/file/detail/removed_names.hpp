// SPDX-License-Identifier: Apache-2.0
// Names that unlink, rename and rmdir take away: opens by them afterwards must not join one from before.
#pragma once
#include "gpufs/file/detail/path_chains.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

class removed_names {
 public:
  // Makes a call that takes names away: asks the host, and then takes the slots to which the paths led out of their chains. Opens
  // that are under way meanwhile see the call (was_removing). One lane calls.
  template <class Call>
  GPUFS_DEVICE static int removing(const file_mount* mount, Call call) {
    // Meets was_removing's: an open that does not see us there had its file open on the host before we ask.
    simt::atomic_ref<std::uint32_t>(mount->words->removals_begun).fetch_add(1, std::memory_order_acq_rel);
    const int error = call();
    // Meets removals_ended's acquire: an open that sees it asks the host once the name is gone.
    simt::atomic_ref<std::uint32_t>(mount->words->removals_ended).fetch_add(1, std::memory_order_release);
    return error;
  }

  // All slots leave their chains: a directory has another name now, or a link is gone. One lane calls. False: -ETIMEDOUT.
  GPUFS_DEVICE_COLD static bool forget_all_paths(const file_mount* mount) {
    const path_chains paths(*mount);
    for (std::uint32_t i = 0; i <= mount->files.path_mask; ++i) {
      path_bucket& chain = mount->files.paths[i];
      if (simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_acquire) == 0) continue;
      if (!paths.lock(chain, simt::deadline(mount->io_timeout_ns))) return false;
      paths.detach(chain, [](file_slot&) { return true; });
      paths.unlock(chain);
    }
    return true;
  }

  // Takes a file out of its path's chain, whichever path that is, because one of the file's names is gone. `place`: the host knows
  // the file by the handle in the lower half, and says that it is open for writing in the slot in the upper half; 0: there is none.
  // Opens by other names of the file find it by the host. One lane calls. False: -ETIMEDOUT.
  GPUFS_DEVICE_COLD static bool forget_file(const file_mount* mount, std::uint64_t place) {
    const auto index = static_cast<std::uint32_t>(place >> 32), handle = static_cast<std::uint32_t>(place);
    file_slot* const found = file_blocks(*mount).find_slot(index);
    if (place == 0 || found == nullptr) return true;
    const path_chains paths(*mount);
    file_slot& wanted = *found;
    path_bucket& chain =
        paths.chain_of(wanted);  // of another file, if the slot is used anew: then no slot there is the one we want
    if (!paths.lock(chain, simt::deadline(mount->io_timeout_ns))) return false;
    paths.detach(chain, [&](file_slot& slot) {
      return &slot == &wanted && simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed) == handle;
    });
    paths.unlock(chain);
    return true;
  }

  // Takes the open slots of a path out of its chain, so that nobody joins them any more: the path was removed, or names another
  // file. One lane calls. False: -ETIMEDOUT.
  GPUFS_DEVICE_COLD static bool forget_path(const file_mount* mount, const char* path) {
    const path_chains paths(*mount);
    for (const int flags : {0, O_NOFOLLOW}) {
      path_name name = paths.name_of(path);
      if (name.error != 0) return true;
      paths.add_chunk(name, static_cast<std::uint32_t>(flags));
      path_bucket& chain = paths.chain_of(name);
      if (!paths.lock(chain, simt::deadline(mount->io_timeout_ns))) return false;
      paths.detach(chain, [&](file_slot& slot) { return path_chains::same_hash(slot, name); });
      paths.unlock(chain);
    }
    return true;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
