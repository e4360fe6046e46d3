// SPDX-License-Identifier: Apache-2.0
// An NVMe controller in GPU memory that warps of the kernel play, beside those that send commands: so that the cost of queues is
// measured without a bus. It fetches what is rung for, answers after a time and at a rate, in order, and keeps to the rules.
#pragma once
#include <utility>
#include <vector>

#include "access.hpp"
#include "gpufs/nvme/detail/blocks.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

namespace nvme = gpufs::nvme;
namespace simt = gpufs::simt;

inline constexpr std::uint64_t kernel_deadline_ns = 20'000'000'000;  // of each wait in these kernels
inline constexpr std::uint32_t device_block_nbytes = 512;

// What the controller keeps of a pair of queues.
struct served_queue {
  std::uint64_t fetched, done;  // commands, since the queue's creation
  std::uint64_t lbas;           // the sum of word_of(LBA) of all commands
  std::uint64_t own_ns;         // from the look that found a command to the store of its completion, of all
  std::uint64_t wrong;          // commands that are no reads of one block
};
struct fetched_command {
  std::uint64_t due_ns, seen_ns;
  std::uint32_t id, reserved;
};

struct device_controller {
  const nvme::queue_layout* queues;
  served_queue* served;      // an element a queue
  fetched_command* pending;  // nslots a queue
  std::uint32_t nqueues;
  std::uint64_t latency_ns, apart_ns;  // of each command; between two of all queues, 0: no limit
  std::uint64_t* next_start_ns;
  const std::uint32_t* ended;  // warps that send commands no more
  std::uint32_t nsenders;

  // A warp, the `me`-th of n, serves every n-th queue until all senders have ended.
  GPUFS_DEVICE void play(std::uint32_t me, std::uint32_t n) const {
    const auto warp = gpufs::this_warp();
    simt::deadline until(kernel_deadline_ns);  // while nothing comes
    simt::backoff pause(128);
    for (;;) {
      bool any = false;
      for (std::uint32_t q = me; q < nqueues; q += n) any = serve(warp, q) || any;
      if (any) {
        pause.reset();
        until = simt::deadline(kernel_deadline_ns);
        continue;
      }
      const bool ends =
          warp.leader() &&
          (atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(*ended)).load_relaxed() == nsenders || until.expired());
      if (warp.broadcast(ends)) return;
      pause();
    }
  }

 private:
  // One look. Whether there was anything to do.
  template <class Warp>
  GPUFS_DEVICE bool serve(Warp warp, std::uint32_t q) const {
    const nvme::queue_layout& queue = queues[q];
    served_queue& state = served[q];
    const std::uint64_t seen = simt::clock_ns();
    std::uint32_t bell = 0, told = 0;
    if (warp.leader()) {
      // The first meets the ringer's fence, whose commands it has then; the second that of the poller, who has read its entries.
      bell = atomic_ref<std::uint32_t, simt::scope::system>(*queue.command_bell).load(std::memory_order_acquire);
      told = atomic_ref<std::uint32_t, simt::scope::system>(*queue.completion_bell).load(std::memory_order_acquire);
    }
    bell = warp.broadcast(bell);
    told = warp.broadcast(told);
    warp.sync();  // all lanes come after the leader's acquires
    const std::uint64_t fetched = state.fetched, done = state.done;
    const auto n = static_cast<std::uint32_t>((bell + queue.nslots - fetched % queue.nslots) % queue.nslots);
    const std::uint32_t nfetched = n < 32 ? n : 32;
    if (nfetched != 0) fetch(warp, q, fetched, nfetched, seen);
    warp.sync();

    // Due, in a row, and with room in the completion queue.
    const std::uint64_t now = simt::clock_ns(), open = fetched + nfetched - done;
    const auto used = static_cast<std::uint32_t>((done % queue.nentries + queue.nentries - told) % queue.nentries);
    const std::uint32_t room = queue.nentries - 1 - used;
    fetched_command mine{};
    const bool is_there = warp.rank() < open && warp.rank() < room;
    if (is_there) mine = pending[std::uint64_t{q} * queue.nslots + (done + warp.rank()) % queue.nslots];
    const std::uint32_t not_due = ~warp.ballot(is_there && mine.due_ns <= now);
    const std::uint32_t ndone = not_due == 0 ? 32 : simt::lowest_lane(not_due);
    if (ndone != 0) complete(warp, q, done, fetched + nfetched, ndone, mine);
    return nfetched + ndone != 0;
  }

  template <class Warp>
  GPUFS_DEVICE void fetch(Warp warp, std::uint32_t q, std::uint64_t first, std::uint32_t n, std::uint64_t seen) const {
    const nvme::queue_layout& queue = queues[q];
    std::uint64_t start = seen;
    if (apart_ns != 0 && warp.leader()) {
      const atomic_ref<std::uint64_t> next(*next_start_ns);
      std::uint64_t known = next.load_relaxed();
      do {
        start = known < seen ? seen : known;
      } while (!next.compare_exchange(known, start + n * apart_ns, std::memory_order_relaxed));
    }
    start = warp.broadcast(start);
    std::uint64_t lbas = 0, wrong = 0;
    if (warp.rank() < n) {
      const std::uint64_t position = first + warp.rank();
      nvme::submission what;
      simt::vec16 words[4];
      for (int i = 0; i < 4; ++i)
        words[i] = simt::load_relaxed_16(reinterpret_cast<const simt::vec16*>(&queue.commands[position % queue.nslots]) + i);
      std::memcpy(&what, words, sizeof what);
      const std::uint64_t lba = what.cdw10 | std::uint64_t{what.cdw11} << 32;
      wrong = (what.cdw0 & 0xff) != static_cast<std::uint32_t>(nvme::opcode::read) || what.cdw12 != 0 ? 1 : 0;
      lbas = word_of(lba);
      *reinterpret_cast<std::uint64_t*>(what.prp1) = word_of(lba);  // the block begins so
      pending[std::uint64_t{q} * queue.nslots + position % queue.nslots] = {start + warp.rank() * apart_ns + latency_ns, seen,
                                                                            what.cdw0 >> 16, 0};
    }
    lbas = warp.reduce_add(lbas);
    wrong = warp.reduce_add(wrong);
    if (warp.leader()) {
      served[q].fetched = first + n;
      served[q].lbas += lbas;
      served[q].wrong += wrong;
    }
  }

  template <class Warp>
  GPUFS_DEVICE void complete(Warp warp, std::uint32_t q, std::uint64_t first, std::uint64_t fetched, std::uint32_t n,
                             const fetched_command& mine) const {
    const nvme::queue_layout& queue = queues[q];
    // Meets load_published_16: the data, and that the commands were read, come before the entries.
    simt::fence(std::memory_order_acq_rel, simt::scope::system);
    std::uint64_t own = 0;
    if (warp.rank() < n) {
      const std::uint64_t position = first + warp.rank();
      simt::vec16 entry{};
      entry.word[2] = static_cast<std::uint32_t>(fetched % queue.nslots) | queue.id << 16;
      entry.word[3] = mine.id | static_cast<std::uint32_t>(~(position / queue.nentries) & 1) << 16;
      // One store; on the CPU machine the two words that are read lie in one of its two.
      simt::store_relaxed_16(&queue.completions[position % queue.nentries], entry);
      own = simt::clock_ns() - mine.seen_ns;
    }
    own = warp.reduce_add(own);
    if (warp.leader()) {
      served[q].done = first + n;
      served[q].own_ns += own;
    }
    warp.sync();
  }
};

// The queues, as the driver's host half would make them, all in device memory.
class device_queues {
 public:
  device_queues(std::uint32_t nqueues, std::uint32_t nslots)
      : nqueues_(nqueues),
        nslots_(nslots),
        pages_a_queue_((std::uint64_t{nslots} * device_block_nbytes + 4095) / 4096),
        commands_(std::size_t{nqueues} * nslots),
        completions_(std::size_t{nqueues} * nslots),
        bells_(std::size_t{nqueues} * 64),
        words_(nqueues),
        given_up_(nqueues),
        published_(std::size_t{nqueues} * nslots),
        free_(std::span<const std::uint64_t>(free_records())),
        records_(std::size_t{nqueues} * nslots),
        buffers_((nqueues * pages_a_queue_ + 1) * 4096),
        pages_(std::span<const std::uint64_t>(addresses())),
        layouts_(std::span<const nvme::queue_layout>(layouts())),
        served_(nqueues),
        pending_(std::size_t{nqueues} * nslots),
        next_(1),
        ended_(1) {
    nvme::namespace_layout space{};
    space.queues = layouts_.get();
    space.nblocks = nblocks;
    space.nqueues = nqueues;
    space.nsid = 1;
    space.block_shift = 9;
    space.blocks_a_command = 1;
    space_.write_one(space);
  }

  static constexpr std::uint64_t nblocks = std::uint64_t{1} << 40;
  const nvme::namespace_layout* space() const { return space_.get(); }
  std::uint32_t* ended() const { return ended_.get(); }
  device_controller controller(std::uint64_t latency_ns, std::uint64_t apart_ns, std::uint32_t nsenders) const {
    return {layouts_.get(), served_.get(), pending_.get(), nqueues_, latency_ns, apart_ns, next_.get(), ended_.get(), nsenders};
  }
  // Of all queues together.
  served_queue served() const {
    served_queue all{};
    for (const served_queue& each : served_.read()) {
      all.fetched += each.fetched;
      all.done += each.done;
      all.lbas += each.lbas;
      all.own_ns += each.own_ns;
      all.wrong += each.wrong;
    }
    for (const nvme::queue_words& each : words_.read()) all.wrong += each.nunexpected;
    return all;
  }

 private:
  std::vector<std::uint64_t> free_records() const {
    const std::uint32_t nwords = (nslots_ - 1 + 63) / 64;
    std::vector<std::uint64_t> one(nwords, ~std::uint64_t{0}), all;
    if ((nslots_ - 1) % 64 != 0) one.back() >>= 64 - (nslots_ - 1) % 64;
    for (std::uint32_t q = 0; q < nqueues_; ++q) all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  std::byte* buffers_begin() const {
    const auto at = reinterpret_cast<std::uintptr_t>(buffers_.get());
    return buffers_.get() + (4096 - at % 4096) % 4096;
  }
  std::vector<std::uint64_t> addresses() const {
    std::vector<std::uint64_t> all(nqueues_ * pages_a_queue_);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = reinterpret_cast<std::uint64_t>(buffers_begin() + i * 4096);
    return all;
  }
  std::vector<nvme::queue_layout> layouts() const {
    std::vector<nvme::queue_layout> all;
    for (std::uint32_t q = 0; q < nqueues_; ++q) {
      const std::size_t first = std::size_t{q} * nslots_;
      nvme::queue_layout made{};
      made.commands = commands_.get() + first;
      made.completions = completions_.get() + first;
      made.command_bell = bells_.get() + std::size_t{q} * 64;
      made.completion_bell = made.command_bell + 32;
      made.given_up = given_up_.get() + q;
      made.words = words_.get() + q;
      made.published = published_.get() + first;
      made.free_records = free_.get() + std::size_t{q} * ((nslots_ - 1 + 63) / 64);
      made.records = records_.get() + first;
      made.buffers = {buffers_begin() + q * pages_a_queue_ * 4096, pages_a_queue_ * 4096, pages_.get() + q * pages_a_queue_};
      made.lists = made.buffers;  // commands of one page have none
      made.nslots = made.nentries = nslots_;
      made.nrecords = nslots_ - 1;
      made.buffer_nbytes = device_block_nbytes;
      made.id = q + 1;
      all.push_back(made);
    }
    return all;
  }

  std::uint32_t nqueues_, nslots_;
  std::uint64_t pages_a_queue_;
  device_array<nvme::submission> commands_;
  device_array<nvme::completion> completions_;
  device_array<std::uint32_t> bells_;  // lines of their own
  device_array<nvme::queue_words> words_;
  device_array<std::uint64_t> given_up_, published_, free_, records_;
  device_array<std::byte> buffers_;
  device_array<std::uint64_t> pages_;
  device_array<nvme::queue_layout> layouts_;
  device_array<served_queue> served_;
  device_array<fetched_command> pending_;
  device_array<std::uint64_t> next_;
  device_array<std::uint32_t> ended_;
  device_array<nvme::namespace_layout> space_{1};
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
