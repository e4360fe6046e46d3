// SPDX-License-Identifier: Apache-2.0
// What the host's answers mean whose callers had given up; the mount's requests, which are told so; and its name space, which asks
// by them.
#pragma once
#include "gpufs/cache/detail/dirty.hpp"
#include "gpufs/file/detail/operation.hpp"
#include "gpufs/names/detail/host_names.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// transport::requests' `Late`. The token of a write names the page, and which of the mount's dirty lists has lost it.
class late_answers {
 public:
  GPUFS_DEVICE explicit late_answers(const file_mount& mount) : mount_(mount) {}

  GPUFS_DEVICE static std::uint64_t token_of(cache::frame_index frame, std::uint32_t list) {
    return std::uint64_t{list} << 32 | static_cast<std::uint32_t>(frame);
  }

  GPUFS_DEVICE transport::late_call after(const transport::request& asked, const transport::reply& answer) const {
    return names::after_late(asked, answer);
  }

  // Ends the work of a late answer. Write-back: the host has written the page or failed, and the caller was told of a failure; the
  // page may be written again. Operation: the answer has the page.
  GPUFS_DEVICE void end(transport::ticket t, const transport::request& asked, const transport::reply& answer,
                        const std::byte* payload) const {
    if (asked.op == transport::opcode::read && operation::is_token(asked.token)) {
      const operation::asked of{t, (asked.flags & transport::read_to_frame) != 0};
      simt::call_cold(&detail::end_operation_alone, &mount_, of, asked.token, asked.nbytes, answer.result,
                      detail::is_in_payload(asked, answer) ? payload : nullptr);
    }
    if (asked.op != transport::opcode::write) return;
    const std::uint64_t token = asked.token;
    const cache::frame_index frame{static_cast<std::uint32_t>(token)};
    cache::frames::unpin_after_writes(cache::frames(mount_.cache).state_word(frame), 1);  // of its mask
    simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
    cache::dirty_pages::end_late(file_blocks(mount_).list(static_cast<std::uint32_t>(token >> 32)));
  }

 private:
  const file_mount& mount_;
};

// A mount's requests, for one lane.
class mount_requests : public transport::requests<late_answers> {
 public:
  GPUFS_DEVICE explicit mount_requests(const file_mount& mount) : requests(mount.transport, late_answers(mount)) {}
};

// The same for the calls on names and open files. Another name space stands here in its place.
class mount_names : public names::host_names<mount_requests> {
 public:
  GPUFS_DEVICE mount_names(const file_mount& mount, std::uint32_t start)
      : host_names(mount_requests(mount), mount.io_timeout_ns, mount.words->io_timeouts, start) {}
};
static_assert(names::name_space<mount_names>);

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
