// SPDX-License-Identifier: Apache-2.0
// The device's side of the request rings (wire.hpp): a group's leader takes a slot, writes a request and waits for the host's
// answer. A slot that is free is taken by compare-exchange on the ring's tail, so nobody holds a place in a ring that it cannot
// use. A ring is used in order: a request that is slow, or timed out, holds up the few slots of its ring once the ring comes round
// to it, and callers go on to the next ring.
#pragma once
#include <cerrno>

#include "gpufs/simt/simt.hpp"
#include "gpufs/transport/layout.hpp"

namespace gpufs::transport {
inline namespace GPUFS_MACHINE {

// A slot held by the caller between requests::take() and give_back().
struct ticket {
  std::uint32_t index;   // of the slot in all rings; no_slot when none came in time
  std::uint32_t number;  // the ring's ticket
};
inline constexpr std::uint32_t no_slot = ~0u;

// What is to be asked because of an answer that came too late; opcode::none: nothing.
struct late_call {
  opcode op;
  std::uint32_t handle;
};

// `Late` says what an answer means whose caller had given up. It is called by whoever comes by it, who has the slot meanwhile:
//   late_call after(const request& asked, const reply& answer) const: what must be asked because of it; if nothing,
//   void end(ticket, const request& asked, const reply& answer, const std::byte* payload) const: ends what the caller had left
//   under way. `asked.token` is as the caller gave it.
template <class Late>
class requests {
 public:
  GPUFS_DEVICE requests(const transport_layout& layout, const Late& late)
      : late_(late), view_(layout.rings), tails_(layout.tails), turns_(layout.turns) {}

  // Takes a free slot, starting at ring `start`. One lane calls. Waits until `until` when all are in use. On the way it ends
  // requests whose callers have given up and that are answered by now. Where such an answer asks for another request (a file that
  // was opened for nobody is to be closed), this one is sent by the same slot: it needs no other, and is sent even if no time is
  // left.
  GPUFS_DEVICE ticket take(std::uint32_t start, const simt::deadline& until) const { return take_of(1, start, until); }
  // The same for what writes: pages that go back, syncs, truncations. Every other ring is not for these, so that who reads waits
  // for no slot behind them, and finds a ring of its own next to one that they have filled.
  GPUFS_DEVICE ticket take_to_write(std::uint32_t start, const simt::deadline& until) const { return take_of(2, start, until); }

  // The same if one of a few rings has a free slot; for a caller that can do without. One that somebody had given up counts as
  // used: to see whether the host has answered takes the bus, and to end what it was for takes one lane long.
  GPUFS_DEVICE ticket take_at_hand(std::uint32_t start) const { return take_at_hand_of({view_.nrings, 1, 0}, start, false); }
  // The same for what nobody waits for, of a quarter of the rings (of which writes use none, where their number is a multiple of
  // four): so a store that hangs keeps few slots from those who wait. Takes a slot back whose answer came, as nobody else may.
  GPUFS_DEVICE ticket take_ahead(std::uint32_t start) const { return take_at_hand_of(rings_ahead(), start, true); }
  // Ends some of what take_ahead's callers have asked for, if the host has answered. One lane calls; waits for nobody.
  GPUFS_DEVICE void end_ahead(std::uint32_t start, std::uint32_t most) const {
    const some_rings rings = rings_ahead();
    for (std::uint32_t i = 0; i < rings.n && most != 0; ++i) {
      const std::uint32_t first = rings.at(start + i) * view_.nslots;
      for (std::uint32_t index = first; index < first + view_.nslots && most != 0; ++index) {
        const std::uint32_t turn = simt::atomic_ref<std::uint32_t>(turns_[index]).load(std::memory_order_acquire);
        if ((turn & abandoned) != 0 && has_answer(ticket_of(index, turn))) {
          reclaim(index, turn, false);
          --most;
        }
      }
    }
  }

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
    out.token = what.token;
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

  // Of a ticket that was abandoned: takes the slot back if the host has answered. Then the caller has it, with the payload, until
  // give_back.
  GPUFS_DEVICE bool take_answered(ticket t, request& asked, reply& answer) const {
    if (!take_back(t)) return false;
    asked = view_.requests[t.index];
    answer = view_.replies[t.index];
    return true;
  }

  // Ends all that the host has answered for too late and that asks for nothing more. One lane calls; looks at every slot, and waits
  // for nobody.
  GPUFS_DEVICE void end_late() const {
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

  struct some_rings {
    std::uint32_t n, stride, first;
    GPUFS_DEVICE std::uint32_t at(std::uint32_t i) const { return i % n * stride + first; }
  };
  GPUFS_DEVICE some_rings rings_ahead() const {
    const std::uint32_t n = view_.nrings < 4 ? 1 : view_.nrings / 4, stride = view_.nrings / n;
    return {n, stride, stride - 1};
  }
  GPUFS_DEVICE ticket take_at_hand_of(const some_rings& rings, std::uint32_t start, bool reclaims) const {
    for (std::uint32_t attempt = 0; attempt < 4; ++attempt) {
      const std::uint32_t ring = rings.at(start + attempt);
      simt::atomic_ref<std::uint32_t> tail(tails_[ring]);
      std::uint32_t number = tail.load(std::memory_order_relaxed);
      const std::uint32_t index = ring * view_.nslots + (number & (view_.nslots - 1));
      simt::atomic_ref<std::uint32_t> word(turns_[index]);
      std::uint32_t turn = word.load(std::memory_order_acquire);  // as in take_of
      if (reclaims && turn == (turn_of(number - view_.nslots) | abandoned)) {
        reclaim(index, turn, false);
        turn = word.load(std::memory_order_acquire);
      }
      if (turn == turn_of(number) && tail.compare_exchange(number, number + 1, std::memory_order_relaxed)) return {index, number};
    }
    return {no_slot, 0};
  }

  // Of the slot's use that this turn is of.
  GPUFS_DEVICE ticket ticket_of(std::uint32_t index, std::uint32_t turn) const {
    return {index, (turn & ~abandoned) * view_.nslots + (index & (view_.nslots - 1))};
  }
  // Meets the host's release store: who sees the answer sees its fields and the payload.
  GPUFS_DEVICE bool has_answer(ticket t) const {
    return host_word(view_.replies[t.index].sequence).load(std::memory_order_acquire) == t.number + 1;
  }

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
        const late_call late = reclaim(index, turn);
        if (late.op != opcode::none) {
          // Ticket `number` is ours, too: others take it only at a turn that the slot, being ours, has not had, and never will, as
          // we set the one after it, or that one abandoned. So the tail is still there, and nobody else moves it on. Relaxed: what
          // the slot's next user must see comes by the turn.
          tail.store(number + 1, std::memory_order_relaxed);
          follow(ticket{index, number}, late, until);
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

  GPUFS_DEVICE bool take_back(ticket t) const {
    if (!has_answer(t)) return false;
    std::uint32_t turn = turn_of(t.number) | abandoned;
    return simt::atomic_ref<std::uint32_t>(turns_[t.index]).compare_exchange(turn, turn & ~abandoned, std::memory_order_acq_rel);
  }

  // A slot whose caller gave up, seen with `turn`, is free again once the host has answered it after all. If something must be
  // asked because of the answer, the slot is now the caller's, to ask it; or stays as it is, if the caller asks nothing.
  GPUFS_DEVICE late_call reclaim(std::uint32_t index, std::uint32_t turn, bool asks = true) const {
    const late_call none{opcode::none, 0};
    const ticket t = ticket_of(index, turn);
    if (!take_back(t)) return none;
    // The slot is ours, as if we had asked: read the answer before others can ask anew.
    const request& asked = view_.requests[index];
    const reply& answer = view_.replies[index];
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

  GPUFS_DEVICE void follow(ticket t, const late_call& late, const simt::deadline& until) const {
    request ask{};
    ask.op = late.op;
    ask.handle = late.handle;
    reply answer;
    if (call(t, ask, answer, until) == 0) give_back(t);
  }

  GPUFS_DEVICE static simt::atomic_ref<std::uint32_t, simt::scope::system> host_word(std::uint32_t& word) {
    return simt::atomic_ref<std::uint32_t, simt::scope::system>(word);
  }

  Late late_;
  const ring_view& view_;
  std::uint32_t* tails_;
  std::uint32_t* turns_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::transport
