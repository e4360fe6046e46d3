// The device's side of the request rings (service/abi.hpp): a group's leader takes a slot, writes a request and waits for the
// host's answer. A slot that is free is taken by compare-exchange on the ring's tail, so nobody holds a place in a ring that
// it cannot use. A ring is used in order: a request that is slow, or timed out, holds up the few slots of its ring once the ring
// comes round to it, and callers go on to the next ring.
#pragma once
#include <cerrno>

#include "gpufs/cache/dirty.hpp"
#include "gpufs/file/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::service {
inline namespace GPUFS_MACHINE {

class requests {
 public:
  GPUFS_DEVICE explicit requests(const mount_layout& mount)
      : mount_(mount), view_(mount.requests), tails_(mount.request_tails), turns_(mount.request_turns) {}

  // A slot held by the caller between take() and give_back().
  struct ticket {
    std::uint32_t index;   // of the slot in all rings; no_slot when none came in time
    std::uint32_t number;  // the ring's ticket
  };
  static constexpr std::uint32_t no_slot = ~0u;

  // Takes a free slot, starting at ring `start`. One lane calls. Waits until `until` when all are in use. On the way it closes
  // what the host has opened for a caller that had given up, by the slot in which the answer lies, so that this needs no other and
  // is sent even if no time is left; and it ends write-backs that were late.
  GPUFS_DEVICE ticket take(std::uint32_t start, const simt::deadline& until) const { return take_of(1, start, until); }
  // The same for what writes: pages that go back, syncs, truncations. Every other ring is not for these, so that who reads waits
  // for no slot behind them, and finds a ring of its own next to one that they have filled.
  GPUFS_DEVICE ticket take_to_write(std::uint32_t start, const simt::deadline& until) const { return take_of(2, start, until); }

  GPUFS_DEVICE std::byte* payload(ticket t) const {
    return view_.payload + static_cast<std::size_t>(t.index) * view_.payload_stride;
  }
  // Of a mount that may write: where the payload's mask lies, or a second path.
  GPUFS_DEVICE std::byte* behind_payload(ticket t) const { return payload(t) + view_.payload_nbytes; }

  // Sends the request (its fields but `sequence`) and waits for the answer. One lane calls. 0 or -ETIMEDOUT, and then the
  // slot is not ours any more.
  GPUFS_DEVICE int call(ticket t, const request& what, reply& answer, const simt::deadline& until) const {
    send(t, what);
    return wait(t, answer, until);
  }

  // The halves of a call, for who has several under way. A slot that was taken must be used: its ring goes on only after it.
  GPUFS_DEVICE void send(ticket t, const request& what) const {
    request& out = view_.requests[t.index];
    out.op = what.op;
    out.handle = what.handle;
    out.offset = what.offset;
    out.nbytes = what.nbytes;
    out.flags = what.flags;
    out.skip = what.skip;
    out.mode = what.mode;
    out.frame = what.frame;
    out.list = what.list;
    // Meets the host's acquire load of `sequence`: it then sees the fields and the payload.
    host_word(out.sequence).store(t.number + 1, std::memory_order_release);
  }
  GPUFS_DEVICE int wait(ticket t, reply& answer, const simt::deadline& until) const {
    if (is_answered(t, answer, until)) return 0;
    abandon(t);
    return -ETIMEDOUT;
  }
  // The halves of a wait: false when no answer came in time. Then the caller abandons the slot, which is not ours any more.
  GPUFS_DEVICE bool is_answered(ticket t, reply& answer, const simt::deadline& until) const {
    const reply& in = view_.replies[t.index];
    simt::backoff pause;
    // Meets the host's release store: we then see its fields and the payload.
    while (host_word(const_cast<std::uint32_t&>(in.sequence)).load(std::memory_order_acquire) != t.number + 1) {
      if (until.expired()) return false;
      pause();
    }
    answer = in;
    return true;
  }
  GPUFS_DEVICE void abandon(ticket t) const {
    simt::atomic_ref<std::uint32_t>(turns_[t.index]).store(turn_of(t.number) | abandoned, std::memory_order_release);
  }

  // Ends all write-backs that the host has answered for too late. One lane calls; looks at every slot, and waits for nobody.
  GPUFS_DEVICE void end_late_writes() const {
    for (std::uint32_t index = 0; index < view_.nrings * view_.nslots; ++index) {
      const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
      if ((turn & abandoned) != 0) reclaim(index, turn, false);
    }
  }

  // Gives the slot back after the group has read the payload (and met in a sync). One lane calls.
  GPUFS_DEVICE void give_back(ticket t) const {
    simt::atomic_ref<std::uint32_t>(turns_[t.index]).store(turn_of(t.number + view_.nslots), std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t abandoned = 1u << 31;

  // Of the rings 0, step, 2 * step, ...
  GPUFS_DEVICE ticket take_of(std::uint32_t step, std::uint32_t start, const simt::deadline& until) const {
    const std::uint32_t nrings = (view_.nrings + step - 1) / step;
    simt::backoff pause;
    for (std::uint32_t attempt = 0;; ++attempt) {
      const std::uint32_t ring = (start + attempt) % nrings * step;
      simt::atomic_ref<std::uint32_t> tail(tails_[ring]);
      std::uint32_t number = tail.load(std::memory_order_relaxed);
      const std::uint32_t index = ring * view_.nslots + (number & (view_.nslots - 1));
      // The acquire meets give_back's release: the last user has read its answer before we ask anew.
      const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
      if (turn == turn_of(number)) {
        if (tail.compare_exchange(number, number + 1, std::memory_order_relaxed)) return {index, number};
        continue;
      }
      if (turn == (turn_of(number - view_.nslots) | abandoned)) {
        const late_open late = reclaim(index, turn);
        if (late.found) {
          // Ticket `number` is ours, too: others take it only at a turn that the slot, being ours, has not had, and never will, as
          // we set the one after it, or that one abandoned. So the tail is still there, and nobody else moves it on. Relaxed: what
          // the slot's next user must see comes by the turn.
          tail.store(number + 1, std::memory_order_relaxed);
          close(ticket{index, number}, late.handle, until);
        }
      }
      if (attempt % nrings == nrings - 1) {
        if (until.expired()) return {no_slot, 0};
        pause();
      }
    }
  }

  // How often the slot of ticket `number` was used before it.
  GPUFS_DEVICE std::uint32_t turn_of(std::uint32_t number) const { return (number / view_.nslots) & (abandoned - 1); }

  // A file that the host opened after the caller had given up.
  struct late_open {
    std::uint32_t handle;
    bool found;
  };

  // A slot whose caller gave up, seen with `turn`, is free again once the host has answered it after all. If a file was opened, the
  // slot is now the caller's, to close it; or stays as it is, if the caller closes none.
  GPUFS_DEVICE late_open reclaim(std::uint32_t index, std::uint32_t turn, bool closes = true) const {
    reply& in = view_.replies[index];
    const late_open none{0, false};
    const std::uint32_t number = (turn & ~abandoned) * view_.nslots + (index & (view_.nslots - 1));  // of its ticket
    if (host_word(in.sequence).load(std::memory_order_acquire) != number + 1) return none;
    simt::atomic_ref<std::uint32_t> word(turns_[index]);
    if (!word.compare_exchange(turn, turn & ~abandoned, std::memory_order_acq_rel)) return none;
    // The slot is ours, as if we had asked: read the answer before others can ask anew.
    const request& asked = view_.requests[index];
    if (asked.op == opcode::open && in.result >= 0 && in.number == 0) {
      if (!closes) {
        word.store(turn, std::memory_order_release);
        return none;
      }
      return {in.handle, true};
    }
    if (asked.op == opcode::write) end_late_write(asked.frame, asked.list);
    word.store(turn_of(number + view_.nslots), std::memory_order_release);
    return none;
  }

  // The host has done what it was given, well or not: its caller was told that it did not. The page may be written anew.
  GPUFS_DEVICE void end_late_write(std::uint32_t frame, std::uint32_t list) const {
    cache::frames(mount_.cache).unpin(cache::frame_index{frame});
    simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
    cache::dirty_pages::end_late(mount_.dirty_lists[list]);
  }

  GPUFS_DEVICE void close(ticket t, std::uint32_t handle, const simt::deadline& until) const {
    request ask{};
    ask.op = opcode::close;
    ask.handle = handle;
    reply answer;
    if (call(t, ask, answer, until) == 0) give_back(t);
  }

  GPUFS_DEVICE static simt::atomic_ref<std::uint32_t, simt::scope::system> host_word(std::uint32_t& word) {
    return simt::atomic_ref<std::uint32_t, simt::scope::system>(word);
  }

  const mount_layout& mount_;
  const ring_view& view_;
  std::uint32_t* tails_;
  std::uint32_t* turns_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::service
