// SPDX-License-Identifier: Apache-2.0
// The device's side of the request rings (wire.hpp). The leader of a group takes a slot, writes a request into it and waits for the
// host's answer. A lane takes a slot by a compare-exchange on the ring's tail, and only if the slot is free. So no lane holds a
// place in a ring that it cannot use. The slots of a ring are used in order. A request that is slow or has timed out therefore
// blocks its ring once the tail comes round to its slot. Callers then go on to the next ring.
#pragma once
#include <cerrno>

#include "gpufs/simt/simt.hpp"
#include "gpufs/transport/detail/layout.hpp"
#include "gpufs/transport/detail/row_buffers.hpp"

namespace gpufs::transport {
inline namespace GPUFS_MACHINE {

// A slot held by the caller between requests::take() and give_back().
struct ticket {
  std::uint32_t index;   // the slot's place among the slots of all rings; no_slot: no slot was free in time
  std::uint32_t number;  // how many tickets of this ring were taken before
};
inline constexpr std::uint32_t no_slot = ~0u;

// The request that an answer which came too late calls for (to close a file). opcode::none: it calls for none.
struct late_call {
  opcode op;
  std::uint32_t handle;
};

// `Late` handles answers that came after their callers had given up. The lane that finds such an answer takes the slot and calls
//   late_call after(const request& asked, const reply& answer) const: returns the request that the answer calls for. If none,
//   void end(ticket, const request& asked, const reply& answer, const std::byte* payload) const: ends the work that the caller left
//   under way. `asked.token` is the caller's.
template <class Late>
class requests {
 public:
  GPUFS_DEVICE requests(const transport_layout& layout, const Late& late)
      : late_(late), rings_(layout.rings), tails_(layout.tails), turns_(layout.turns) {}

  // Takes a free slot; the search starts at ring `start`. If all slots are in use, it waits for one until `until`; no_slot: none
  // came in time. One lane calls. During the search it also handles answers whose callers have given up. If such an answer calls
  // for another request (to close a file that nobody wants any more), the call sends that request by the same slot: this needs no
  // second slot, and works even if no time is left.
  GPUFS_DEVICE ticket take(std::uint32_t start, const simt::deadline& until) const { return take_of(every(1), start, until); }
  // The same for requests that write: write-backs, syncs, truncations. They use every second ring only. So a reader never waits for
  // a slot behind them, and next to a ring that they have filled it finds a ring for reads.
  GPUFS_DEVICE ticket take_to_write(std::uint32_t start, const simt::deadline& until) const {
    return take_of(every(2), start, until);
  }
  // The same for requests that read rows. They use the rings that have row buffers only.
  GPUFS_DEVICE ticket take_with_rows(const row_buffers& buffers, std::uint32_t start, const simt::deadline& until) const {
    return take_of({buffers.nrings, buffers.ring_step, buffers.ring_begin}, start, until);
  }

  // Takes a slot if one of a few rings has a free one, for a caller that can do without; it does not wait. A slot whose caller has
  // given up counts as used. To check whether the host has answered there is a read over the bus, and to end its work takes one
  // lane a long time.
  GPUFS_DEVICE ticket take_at_hand(std::uint32_t start) const { return take_at_hand_of({rings_.nrings, 1, 0}, start, 4, false); }
  // The same for requests that nobody waits for. They use a quarter of the rings, so that a store that hangs keeps few slots from
  // lanes that wait. (Writes use none of these rings if the number of rings is a multiple of four.)
  // With `reclaims` it also takes a slot that was abandoned and is answered by now, since perhaps no other lane comes to do so:
  // that takes the bus, and the lane brings the answer's page into its frame alone.
  GPUFS_DEVICE ticket take_ahead(std::uint32_t start, bool reclaims = false) const {
    return take_at_hand_of(rings_ahead(), start, 8, reclaims);
  }
  // Ends up to `most` abandoned requests in the rings of take_ahead that the host has answered. One lane calls. Waits for nobody.
  GPUFS_DEVICE void end_ahead(std::uint32_t start, std::uint32_t most) const {
    const some_rings rings = rings_ahead();
    for (std::uint32_t i = 0; i < rings.n && most != 0; ++i) {
      const std::uint32_t first = rings.at(start + i) * rings_.nslots;
      for (std::uint32_t index = first; index < first + rings_.nslots && most != 0; ++index) {
        // Meets abandon's release.
        const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
        if ((turn & abandoned) != 0 && has_answer(ticket_of(index, turn))) {
          reclaim(index, turn, false);
          --most;
        }
      }
    }
  }

  GPUFS_DEVICE std::byte* payload(ticket t) const {
    return rings_.payload + static_cast<std::size_t>(t.index) * rings_.payload_stride;
  }
  // The place of the payload's mask, or of a request's second path. It exists only if the mount may write.
  GPUFS_DEVICE std::byte* behind_payload(ticket t) const { return payload(t) + rings_.payload_nbytes; }

  // Sends the request (all fields except `sequence`) and waits for the answer until `until`. One lane calls. Returns 0, or
  // -ETIMEDOUT; after -ETIMEDOUT the slot is no longer the caller's.
  GPUFS_DEVICE int call(ticket t, const request& what, reply& answer, const simt::deadline& until) const {
    send(t, what);
    return wait(t, answer, until);
  }

  // The two halves of a call, for a caller with several requests under way. A caller that has taken a slot must send a request by
  // it: the ring goes on only after that.
  GPUFS_DEVICE void send(ticket t, const request& what) const {
    write(t, what);
    // Meets the host's acquire load of `sequence`: the host then sees the fields and the payload.
    sequence_of(t).store(t.number + 1, std::memory_order_release);
  }
  // The same in two steps, for a caller that sends several requests at once: all of them are written, then a fence (release, of
  // system scope), then each is published.
  GPUFS_DEVICE void write(ticket t, const request& what) const {
    request& out = rings_.requests[t.index];
    out.op = what.op;
    out.handle = what.handle;
    out.offset = what.offset;
    out.nbytes = what.nbytes;
    out.flags = what.flags;
    out.skip = what.skip;
    out.mode = what.mode;
    out.token = what.token;
  }
  GPUFS_DEVICE void publish_after_fence(ticket t) const { sequence_of(t).store(t.number + 1, simt::after_fence); }
  GPUFS_DEVICE int wait(ticket t, reply& answer, const simt::deadline& until) const {
    if (is_answered(t, answer, until)) return 0;
    abandon(t);
    return -ETIMEDOUT;
  }
  // The two halves of a wait. is_answered is false if no answer came in time; then the caller must call abandon, and the slot is no
  // longer the caller's.
  GPUFS_DEVICE bool is_answered(ticket t, reply& answer, const simt::deadline& until) const {
    const reply& in = rings_.replies[t.index];
    simt::backoff pause;
    // Meets the host's release store of `sequence`: we then see the reply's fields and the payload.
    while (host_word(const_cast<std::uint32_t&>(in.sequence)).load(std::memory_order_acquire) != t.number + 1) {
      if (until.expired()) return false;
      pause();
    }
    answer = in;
    return true;
  }
  GPUFS_DEVICE void abandon(ticket t) const {
    // Meets the acquires of the lanes that look for abandoned slots: take_of, take_at_hand_of, end_ahead, end_late, take_back.
    simt::atomic_ref<std::uint32_t>(turns_[t.index]).store(turn_of(t.number) | abandoned, std::memory_order_release);
  }

  // Takes an abandoned slot back if the host has answered there. True: the caller owns the slot and its payload until give_back.
  GPUFS_DEVICE bool take_answered(ticket t, request& asked, reply& answer) const {
    if (!take_back(t)) return false;
    asked = rings_.requests[t.index];
    answer = rings_.replies[t.index];
    return true;
  }

  // Ends all abandoned requests that the host has answered, except those whose answer calls for another request. One lane calls; it
  // looks at every slot, and waits for nobody.
  GPUFS_DEVICE void end_late() const {
    for (std::uint32_t index = 0; index < rings_.nrings * rings_.nslots; ++index) {
      // Meets abandon's release.
      const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
      if ((turn & abandoned) != 0) reclaim(index, turn, false);
    }
  }

  // Gives the slot back. One lane calls, after all lanes of the group have read the payload and met in a sync.
  GPUFS_DEVICE void give_back(ticket t) const {
    // Meets the acquire of the next lane that takes the slot (take_of, take_at_hand_of).
    simt::atomic_ref<std::uint32_t>(turns_[t.index]).store(turn_of(t.number + rings_.nslots), std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t abandoned = 1u << 31;

  struct some_rings {
    std::uint32_t n, stride, first;
    GPUFS_DEVICE std::uint32_t at(std::uint32_t i) const { return i % n * stride + first; }
  };
  // The rings 0, step, 2 * step, ...
  GPUFS_DEVICE some_rings every(std::uint32_t step) const { return {(rings_.nrings + step - 1) / step, step, 0}; }
  GPUFS_DEVICE some_rings rings_ahead() const {
    const std::uint32_t n = rings_.nrings < 4 ? 1 : rings_.nrings / 4, stride = rings_.nrings / n;
    return {n, stride, stride - 1};
  }
  GPUFS_DEVICE ticket take_at_hand_of(const some_rings& rings, std::uint32_t start, std::uint32_t attempts, bool reclaims) const {
    for (std::uint32_t attempt = 0; attempt < attempts; ++attempt) {
      const std::uint32_t ring = rings.at(start + attempt);
      simt::atomic_ref<std::uint32_t> tail(tails_[ring]);
      std::uint32_t number = tail.load(std::memory_order_relaxed);
      const std::uint32_t index = ring * rings_.nslots + (number & (rings_.nslots - 1));
      simt::atomic_ref<std::uint32_t> word(turns_[index]);
      std::uint32_t turn = word.load(std::memory_order_acquire);  // as in take_of
      if (reclaims && turn == (turn_of(number - rings_.nslots) | abandoned)) {
        reclaim(index, turn, false);
        turn = word.load(std::memory_order_acquire);
      }
      if (turn == turn_of(number) && tail.compare_exchange(number, number + 1, std::memory_order_relaxed)) return {index, number};
    }
    return {no_slot, 0};
  }

  // The ticket of the slot's use to which `turn` belongs.
  GPUFS_DEVICE ticket ticket_of(std::uint32_t index, std::uint32_t turn) const {
    return {index, (turn & ~abandoned) * rings_.nslots + (index & (rings_.nslots - 1))};
  }
  // Meets the host's release store of `sequence`: a lane that sees the answer sees the reply's fields and the payload.
  GPUFS_DEVICE bool has_answer(ticket t) const {
    return host_word(rings_.replies[t.index].sequence).load(std::memory_order_acquire) == t.number + 1;
  }

  // Takes a free slot of `rings`.
  GPUFS_DEVICE ticket take_of(const some_rings& rings, std::uint32_t start, const simt::deadline& until) const {
    simt::backoff pause;
    for (std::uint32_t attempt = 0;; ++attempt) {
      const std::uint32_t ring = rings.at(start + attempt);
      simt::atomic_ref<std::uint32_t> tail(tails_[ring]);
      std::uint32_t number = tail.load(std::memory_order_relaxed);
      const std::uint32_t index = ring * rings_.nslots + (number & (rings_.nslots - 1));
      // Meets the releases of give_back and abandon: the slot's last user has read its answer before we write a new request.
      const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
      if (turn == turn_of(number)) {
        if (tail.compare_exchange(number, number + 1, std::memory_order_relaxed)) return {index, number};
        continue;
      }
      if (turn == (turn_of(number - rings_.nslots) | abandoned)) {
        const late_call late = reclaim(index, turn);
        if (late.op != opcode::none) {
          // Ticket `number` is ours, too. Another lane could take it only while the slot shows the turn of `number`, not abandoned.
          // The slot is ours and never shows that: we set the turn after it, or that turn as abandoned. So the tail still is
          // `number`, and only we move it. Relaxed suffices, because the turn orders all that the slot's next user must see.
          tail.store(number + 1, std::memory_order_relaxed);
          follow(ticket{index, number}, late, until);
        }
      }
      if (attempt % rings.n == rings.n - 1) {
        if (until.expired()) return {no_slot, 0};
        pause();
      }
    }
  }

  // How often the slot of ticket `number` was used before this ticket.
  GPUFS_DEVICE std::uint32_t turn_of(std::uint32_t number) const { return (number / rings_.nslots) & (abandoned - 1); }

  // Makes an abandoned slot the caller's, if the host has answered there and no other lane was first.
  GPUFS_DEVICE bool take_back(ticket t) const {
    if (!has_answer(t)) return false;
    std::uint32_t turn = turn_of(t.number) | abandoned;
    // The acquire meets abandon's release. The release meets the acquires of other lanes that look at the slot's turn.
    return simt::atomic_ref<std::uint32_t>(turns_[t.index]).compare_exchange(turn, turn & ~abandoned, std::memory_order_acq_rel);
  }

  // Handles the answer in an abandoned slot, which the caller has seen with `turn`, if the host has answered there by now. If the
  // answer calls for no other request, the work ends and the slot is free. If it calls for one, the result names it, and the slot
  // is the caller's to send it; but if `asks` is false, the slot stays abandoned, and the result is none.
  GPUFS_DEVICE late_call reclaim(std::uint32_t index, std::uint32_t turn, bool asks = true) const {
    const late_call none{opcode::none, 0};
    const ticket t = ticket_of(index, turn);
    if (!take_back(t)) return none;
    // The slot is ours, as if we had sent the request. We read the answer before give_back, as then another lane may use the slot.
    const request& asked = rings_.requests[index];
    const reply& answer = rings_.replies[index];
    const late_call next = late_.after(asked, answer);
    if (next.op == opcode::none) {
      late_.end(t, asked, answer, payload(t));
      give_back(t);
    } else if (!asks) {
      abandon(t);
      return none;
    }
    return next;
  }

  // Sends the request that a late answer calls for, and waits for its answer until `until`.
  GPUFS_DEVICE void follow(ticket t, const late_call& late, const simt::deadline& until) const {
    request ask{};
    ask.op = late.op;
    ask.handle = late.handle;
    reply answer;
    if (call(t, ask, answer, until) == 0) give_back(t);
  }

  GPUFS_DEVICE simt::atomic_ref<std::uint32_t, simt::scope::system> sequence_of(ticket t) const {
    return host_word(rings_.requests[t.index].sequence);
  }
  GPUFS_DEVICE static simt::atomic_ref<std::uint32_t, simt::scope::system> host_word(std::uint32_t& word) {
    return simt::atomic_ref<std::uint32_t, simt::scope::system>(word);
  }

  Late late_;
  const ring_layout& rings_;
  std::uint32_t* tails_;
  std::uint32_t* turns_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::transport
