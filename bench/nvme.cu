// SPDX-License-Identifier: Apache-2.0
// What queues of NVMe controllers cost that kernels drive. No device is here: the controller is one in GPU memory, which SMs of the
// same kernel play (nvme_device.hpp), or the one in software, whose threads are the host's.
//
// nvme_submit: commands a second that all other SMs submit and see completed, 128 queues of 1,024, the controller answers at once.
// nvme_by_queues: the same with fewer queues, against 128; each is served by one warp. nvme_queues: 16 queues against 128, of a
// controller that answers 50 million times a second, as BaM's ten SSDs did. nvme_latency_hidden: reads of 512 B of a controller
// that answers after 11 and 324 us, and 5 million times a second, against that rate. nvme_overhead: a round trip of a warp alone,
// less what the controller had of it. nvme_host: random commands for 512 B and 4 KiB to the controller in software that moves
// nothing, against its threads alone, which ring for themselves. nvme_vector_add: c = a + b over namespaces, pages of c written
// behind, against host threads that read, copy, launch, copy back and write by queues of their own.
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "../src/nvme/controller.hpp"
#include "../src/nvme/soft_pair.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme_device.hpp"
#include "written.hpp"

namespace {

using namespace bench;

// What senders have seen.
struct sent {
  std::uint64_t lbas;       // the sum of word_of(LBA) of the commands that ended well
  std::uint64_t failed;     // the others
  std::uint64_t rounds_ns;  // from before the first command of a warp's round to the last completion, of all rounds
};

GPUFS_HOST_DEVICE std::uint64_t lba_of(std::uint64_t i, std::uint64_t nblocks) { return scaled(word_of(i), nblocks); }

// Sends a command of each lane of a warp, and waits for all. Whether the lane's ended well.
template <class Warp>
GPUFS_DEVICE bool send(Warp warp, const nvme::queue_pair& queue, bool wanted, std::uint64_t lba, std::uint32_t nblocks) {
  const simt::deadline until(kernel_deadline_ns);
  simt::backoff pause;
  bool open = wanted, good = false;
  while (warp.any(open)) {
    nvme::ticket ticket{};
    const nvme::command what{nvme::opcode::read, 1, lba, nblocks, 0, std::uint64_t{nblocks} * device_block_nbytes, nullptr, 0};
    const int submitted = queue.submit(warp, open, what, ticket, [](std::byte*) {});
    const bool mine = submitted == 1;
    if (!warp.any(mine)) {
      if (queue.poll(warp) == 0) pause();
      if ((submitted < 0 && submitted != -EAGAIN) || until.expired()) open = false;
      continue;
    }
    const int status = queue.wait(warp, mine, ticket, until);
    if (mine && status >= 0) queue.finish(ticket);
    if (mine) {
      good = status == 0;
      open = false;
    }
  }
  return good;
}

// Each warp sends `rounds` times a command of each lane. `me` is the how-manieth sender.
struct send_rounds {
  const nvme::namespace_layout* space;
  std::uint32_t rounds, nlanes, nblocks;  // lanes of a warp that send; blocks a command
  sent* all;

  GPUFS_DEVICE void run(std::uint64_t me) const {
    const auto warp = gpufs::this_warp();
    const nvme::queue_pair queue(space->queues[me % space->nqueues]);
    std::uint64_t lbas = 0, failed = 0, ns = 0;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::uint64_t lba = lba_of((me * rounds + i) * 32 + warp.rank(), space->nblocks - nblocks);
      const bool wanted = warp.rank() < nlanes;
      warp.sync();
      const std::uint64_t begin = simt::clock_ns();
      const bool good = send(warp, queue, wanted, lba, nblocks);
      warp.sync();
      ns += simt::clock_ns() - begin;
      if (wanted && good) lbas += word_of(lba);
      if (wanted && !good) ++failed;
    }
    lbas = warp.reduce_add(lbas);
    failed = warp.reduce_add(failed);
    if (warp.leader()) {
      atomic_ref<std::uint64_t>(all->lbas).add_relaxed(lbas);
      atomic_ref<std::uint64_t>(all->failed).add_relaxed(failed);
      atomic_ref<std::uint64_t>(all->rounds_ns).add_relaxed(ns);
    }
  }
};

// The same by read_each, which copies each block: it begins with word_of(its LBA).
struct read_rounds {
  const nvme::namespace_layout* space;
  std::uint32_t rounds;
  std::byte* scratch;  // a block a lane
  sent* all;

  GPUFS_DEVICE void run(std::uint64_t me) const {
    const auto warp = gpufs::this_warp();
    std::byte* const mine = scratch + (me * 32 + warp.rank()) * device_block_nbytes;
    std::uint64_t lbas = 0, failed = 0;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::uint64_t lba = lba_of((me * rounds + i) * 32 + warp.rank(), space->nblocks - 1);
      const std::int64_t n = nvme::read_each(warp, *space, lba, 1, mine, kernel_deadline_ns);
      const bool right = n == device_block_nbytes && *reinterpret_cast<const std::uint64_t*>(mine) == word_of(lba);
      if (right) {
        lbas += word_of(lba);
      } else {
        ++failed;
      }
    }
    lbas = warp.reduce_add(lbas);
    failed = warp.reduce_add(failed);
    if (warp.leader()) {
      atomic_ref<std::uint64_t>(all->lbas).add_relaxed(lbas);
      atomic_ref<std::uint64_t>(all->failed).add_relaxed(failed);
    }
  }
};

// The first blocks are the controller, the others send.
template <class Senders>
struct beside_controller {
  device_controller controller;
  Senders senders;
  std::uint32_t ncontroller_blocks;
  std::uint32_t* ended;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t nwarps = simt::block_size() / 32;
    if (simt::block_rank() < ncontroller_blocks) {
      controller.play(simt::block_rank() * nwarps + simt::warp_rank(), ncontroller_blocks * nwarps);
      return;
    }
    const std::uint32_t me = (simt::block_rank() - ncontroller_blocks) * nwarps + simt::warp_rank();
    if (me >= controller.nsenders) return;
    senders.run(me);
    // Relaxed: the controller has nothing to read of what the senders did.
    if (gpufs::this_warp().leader()) atomic_ref<std::uint32_t>(*ended).fetch_add(1, std::memory_order_relaxed);
  }
};

template <class Senders>
struct senders_alone {
  Senders senders;
  GPUFS_DEVICE void operator()() const { senders.run(global_warp()); }
};

struct outcome {
  double seconds, commands, own_us, round_us;  // own: of the controller, a command; round: of a warp
  bool right;
};

class in_gpu_memory {
 public:
  in_gpu_memory(arguments& args, const machine_facts& machine)
      : blocks_(std::max(2u, machine.nprocessors)),
        depth_(static_cast<std::uint32_t>(args.number("depth", {1024, 1024, 64}))),
        commands_(args.number("commands", {5e7, 5e6, 8e3})),
        answers_(args.number("answers", {5e6, 5e5, 2e3})),
        repeats_(repeats_of(args)) {}

  static constexpr std::uint32_t most_queues = on_gpu ? 128 : 8;

  void submit(results& out) const {
    measurement m = rates("nvme_submit", most_queues, "M commands/s");
    m.figure = measurement::kind::itself;
    out.add(m);
  }

  void by_queues(results& out) const {
    const auto against_most = [&](const char* name, std::initializer_list<std::uint32_t> queues, std::uint64_t apart_ns) {
      const double most = spread_of(rates(name, most_queues, "", apart_ns).samples).median;
      for (const std::uint32_t n : queues) {
        if (n >= most_queues && n != 16) continue;
        measurement m = rates(name, on_gpu ? n : std::min(n, most_queues / 2), "M commands/s", apart_ns);
        m.ceiling = most;
        m.ceiling_is = std::to_string(most_queues) + " queues";
        out.add(m);
      }
    };
    against_most("nvme_queues", {16}, on_gpu ? 20 : 10'000);
    against_most("nvme_by_queues", {64, 40, 16, 8}, 0);
  }

  void hidden(results& out) const {
    for (const std::uint64_t latency_us : {11u, 324u}) {
      const double per_second = on_gpu ? 5e6 : 1e5;
      measurement m{
          "nvme_latency_hidden",          std::to_string(latency_us) + " us, reads of 512 B", {}, "M commands/s", per_second * 1e-6,
          "what the controller is set to"};
      m.verified = true;
      const std::uint32_t nsenders = senders_of(most_queues);
      const device_array<std::byte> scratch(std::size_t{nsenders} * 32 * device_block_nbytes);
      const std::uint32_t rounds = rounds_of(answers_, nsenders);
      for (int r = 0; r <= repeats_; ++r) {
        const outcome got = run_beside(most_queues, nsenders, 32.0 * rounds * nsenders, latency_us * 1000,
                                       static_cast<std::uint64_t>(1e9 / per_second), [&](const auto* space, sent* all) {
                                         return read_rounds{space, rounds, scratch.get(), all};
                                       });
        m.verified = m.verified && got.right;
        if (r > 0) m.samples.push_back(got.commands / got.seconds * 1e-6);
      }
      out.add(m);
    }
  }

  void overhead(results& out) const {
    for (const std::uint32_t nlanes : {1u, 32u}) {
      measurement m{"nvme_overhead", nlanes == 1 ? "a command of one lane" : "a command of each lane", {}, "us"};
      m.figure = measurement::kind::itself;
      m.verified = true;
      const std::uint32_t rounds = on_gpu ? 20'000 : 50;
      for (int r = 0; r <= repeats_; ++r) {
        const outcome got = run_beside(1, 1, 1.0 * rounds * nlanes, 0, 0, [&](const auto* space, sent* all) {
          return send_rounds{space, rounds, nlanes, 1, all};
        });
        m.verified = m.verified && got.right;
        if (r > 0) m.samples.push_back(got.round_us / rounds - got.own_us);
        m.details = {{"us a round trip", got.round_us / rounds}, {"us of the controller", got.own_us}};
      }
      out.add(m);
    }
  }

 private:
  std::uint32_t nwarps() const { return large_block / 32; }
  // A warp of the controller for each queue, on SMs of its own.
  std::uint32_t controller_blocks(std::uint32_t nqueues) const {
    return std::min((nqueues + nwarps() - 1) / nwarps(), std::max(blocks_ / 2, 1u));
  }
  std::uint32_t senders_of(std::uint32_t nqueues) const { return (blocks_ - controller_blocks(nqueues)) * nwarps(); }
  static std::uint32_t rounds_of(double commands, std::uint32_t nsenders) {
    return std::max(1u, static_cast<std::uint32_t>(commands / 32 / nsenders));
  }

  // apart_ns: between two answers of the controller; 0: at once.
  measurement rates(const char* name, std::uint32_t nqueues, const char* unit, std::uint64_t apart_ns = 0) const {
    measurement m{name, std::to_string(nqueues) + " queues of " + std::to_string(depth_), {}, unit};
    m.verified = true;
    const std::uint32_t nsenders = senders_of(most_queues);  // the same for each number of queues
    const std::uint32_t rounds = rounds_of(apart_ns == 0 ? commands_ : commands_ / 4, nsenders);
    for (int r = 0; r <= repeats_; ++r) {
      const outcome got = run_beside(nqueues, nsenders, 32.0 * rounds * nsenders, 0, apart_ns, [&](const auto* space, sent* all) {
        return send_rounds{space, rounds, 32, 1, all};
      });
      m.verified = m.verified && got.right;
      if (r > 0) m.samples.push_back(got.commands / got.seconds * 1e-6);
    }
    return m;
  }

  template <class Make>
  outcome run_beside(std::uint32_t nqueues, std::uint32_t nsenders, double commands, std::uint64_t latency_ns,
                     std::uint64_t apart_ns, const Make& make) const {
    const device_queues queues(nqueues, depth_);
    const device_array<sent> seen(1);
    const auto senders = make(queues.space(), seen.get());
    const std::uint32_t ncontroller = controller_blocks(nqueues);
    const std::uint32_t grid = ncontroller + (nsenders + nwarps() - 1) / nwarps();
    const double seconds = run_large_blocks(
        {grid, large_block}, beside_controller<decltype(senders)>{queues.controller(latency_ns, apart_ns, nsenders), senders,
                                                                  ncontroller, queues.ended()});
    const sent got = seen.read_one();
    const served_queue served = queues.served();
    // Each command was executed once, and its completion seen once.
    const bool right = got.failed == 0 && got.lbas == served.lbas && served.wrong == 0 &&
                       static_cast<double>(served.fetched) == commands && served.done == served.fetched;
    if (!right) {
      std::printf("WRONG: %llu of %.0f commands fetched, %llu done, %llu failed, %llu wrong\n",
                  static_cast<unsigned long long>(served.fetched), commands, static_cast<unsigned long long>(served.done),
                  static_cast<unsigned long long>(got.failed), static_cast<unsigned long long>(served.wrong));
    }
    return {seconds, commands, static_cast<double>(served.own_ns) / commands * 1e-3, static_cast<double>(got.rounds_ns) * 1e-3,
            right};
  }

  std::uint32_t blocks_, depth_;
  double commands_, answers_;
  int repeats_;
};

// --- Against the controller in software ----------------------------------------------------------------------------------------

class against_host {
 public:
  against_host(arguments& args, const machine_facts& machine)
      : how_(grid_of(machine, args)),
        nthreads_(on_gpu ? std::min(16u, host_threads()) : 2),
        nqueues_(on_gpu ? 4 * nthreads_ : 4),
        depth_(static_cast<std::uint32_t>(args.number("host-depth", {1024, 1024, 64}))),
        commands_(args.number("host-commands", {2e7, 2e6, 4e3})),
        repeats_(repeats_of(args)) {}

  void commands(results& out) const {
    const double alone = threads_alone();
    for (const std::uint32_t nblocks : {1u, 8u}) {
      nvme::soft_controller soft(
          simt::this_platform(),
          {.most_entries = depth_, .nqueues = nqueues_, .scattered = false, .nthreads = nthreads_, .moves_nothing = true});
      nvme::controller driver(soft, simt::this_platform(), {.nqueues = nqueues_, .depth = depth_});
      const nvme::namespace_layout* const space = driver.open(1);
      measurement m{"nvme_host",
                    std::string("commands for ") + (nblocks == 1 ? "512 B, " : "4 KiB, ") + std::to_string(nthreads_) + " threads",
                    {},
                    "M commands/s",
                    alone * 1e-6,
                    "the threads alone, which ring for themselves"};
      m.verified = true;
      const auto rounds = static_cast<std::uint32_t>(std::max(1.0, commands_ / 32 / static_cast<double>(how_.warps())));
      for (int r = 0; r <= repeats_; ++r) {
        const device_array<sent> seen(1);
        const std::uint64_t before = soft.done().commands;
        const double seconds = run(how_, senders_alone<send_rounds>{{space, rounds, 32, nblocks, seen.get()}});
        const std::uint64_t n = 32ull * rounds * how_.warps();
        m.verified = m.verified && seen.read_one().failed == 0 && soft.done().commands - before == n;
        if (r > 0) m.samples.push_back(static_cast<double>(n) / seconds * 1e-6);
      }
      out.add(m);
    }
  }

 private:
  // Commands a second of the controller's threads, each with as many queues as there, which it rings for itself.
  double threads_alone() const {
    constexpr std::uint64_t page = 4096;
    const std::uint32_t per_thread = nqueues_ / nthreads_;
    struct own_queue {
      explicit own_queue(std::uint32_t depth)
          : commands(gpufs::simt::this_platform(), depth * 64),
            entries(gpufs::simt::this_platform(), depth * 16),
            bells(gpufs::simt::this_platform(), page) {}
      nvme::pinned_memory commands, entries, bells;
    };
    const auto pages_of = [](const nvme::pinned_memory& memory) {
      std::vector<std::byte*> pages;
      for (std::size_t at = 0; at < memory.nbytes(); at += page) pages.push_back(memory.data() + at);
      return pages;
    };
    std::vector<std::unique_ptr<own_queue>> queues;
    for (std::uint32_t q = 0; q < nqueues_; ++q) queues.push_back(std::make_unique<own_queue>(std::max(depth_, 256u)));
    const std::uint32_t depth = std::max(depth_, 256u);
    const auto wanted = static_cast<std::uint64_t>(commands_ * (on_gpu ? 10 : 1) / nthreads_);
    std::atomic<std::uint64_t> all{0};
    const double seconds = run_threads(nthreads_, [&](unsigned t) {
      std::vector<std::unique_ptr<nvme::soft_pair>> pairs;
      std::vector<std::uint32_t*> bells;
      for (std::uint32_t i = 0; i < per_thread; ++i) {
        const own_queue& q = *queues[t * per_thread + i];
        bells.push_back(reinterpret_cast<std::uint32_t*>(q.bells.data()));
        pairs.push_back(std::make_unique<nvme::soft_pair>(nvme::soft_pair_places{i + 1, pages_of(q.commands), pages_of(q.entries),
                                                                                 depth, depth, bells.back(), bells.back() + 32}));
      }
      std::uint64_t done = 0;
      while (done < wanted) {
        for (std::uint32_t i = 0; i < per_thread; ++i) {
          // Half of the queue is rung for, and what was completed is told, each time.
          const auto ended = static_cast<std::uint32_t>(pairs[i]->ncompleted() % depth);
          std::atomic_ref(bells[i][32]).store(ended, std::memory_order_release);
          std::atomic_ref(bells[i][0]).store((ended + depth / 2) % depth, std::memory_order_release);
          const std::uint64_t before = pairs[i]->ncompleted();
          pairs[i]->step(
              static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)),
              [](std::uint32_t) {
                return std::pair<std::uint64_t, std::uint64_t>{0, 0};
              },
              [](const std::uint32_t*) { return 0u; });
          done += pairs[i]->ncompleted() - before;
        }
      }
      all += done;
    });
    return static_cast<double>(all.load()) / seconds;
  }

  shape how_;
  std::uint32_t nthreads_, nqueues_, depth_;
  double commands_;
  int repeats_;
};

// --- c = a + b -----------------------------------------------------------------------------------------------------------------

// By a kernel: pages of two namespaces mapped, those of a third written.
struct add_namespaces {
  gpufs::mount_ref fs;
  gpufs::file_number a, b, c;
  std::uint64_t npages;
  std::uint32_t page_nbytes;
  std::uint64_t salt;
  std::byte* scratch;  // a page a warp
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file first(fs, a), second(fs, b), sum(fs, c);
    const std::uint64_t warps = std::uint64_t{simt::grid_size()} * (simt::block_size() / 32);
    auto* mine = reinterpret_cast<std::uint64_t*>(scratch + global_warp() * page_nbytes);
    std::uint64_t wrong = 0;
    for (std::uint64_t p = global_warp(); p < npages; p += warps) {
      const bool right = add_pages(warp, first, second, sum, p, page_nbytes, mine, salt);
      if (!right) ++wrong;
    }
    if (gpufs::fsync(warp, sum) != 0) ++wrong;
    if (warp.leader() && wrong != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(wrong);
  }
};
struct add_words {
  const std::uint64_t *a, *b;
  std::uint64_t* c;
  std::uint64_t n, salt;
  GPUFS_DEVICE void operator()() const {
    for (std::uint64_t i = std::uint64_t{simt::block_rank()} * simt::block_size() + simt::thread_rank(); i < n;
         i += std::uint64_t{simt::grid_size()} * simt::block_size()) {
      c[i] = a[i] + b[i] + salt;
    }
  }
};

// A program of the host's that drives the controller itself: a pair of queues for each of its threads, data by DMA to and from
// their pinned memory.
class host_program {
 public:
  static constexpr std::uint64_t chunk_nbytes = on_gpu ? 4 << 20 : 256 << 10, command_nbytes = 128 << 10;

  host_program(nvme::controller_access& access, unsigned nthreads) : access_(access), admin_(access, simt::this_platform()) {
    admin_.begin(stride);
    set_ready(true);
    for (unsigned t = 0; t < nthreads; ++t) threads_.push_back(std::make_unique<worker>(access, t + 1));
    ask(nvme::admin::set_features, 0, nvme::admin::number_of_queues, (nthreads - 1) << 16 | (nthreads - 1));
    for (const auto& each : threads_) {
      each->queue.begin(stride);
      const std::uint32_t id = each->queue.id(), sizes = (nvme::host_queue::nslots - 1) << 16 | id;
      ask(nvme::admin::create_completions, each->queue.completions_at(), sizes, 1);
      ask(nvme::admin::create_submissions, each->queue.submissions_at(), sizes, id << 16 | 1);
    }
  }
  ~host_program() { set_ready(false); }

  // Seconds for nbytes of each.
  double add(std::uint64_t nbytes, std::uint64_t salt) {
    std::atomic<std::uint64_t> next{0};
    auto& machine = simt::this_platform();
    std::atomic<bool> right{true};
    const double seconds = run_threads(static_cast<unsigned>(threads_.size()), [&](unsigned t) {
      worker& mine = *threads_[t];
      for (std::uint64_t at = next.fetch_add(chunk_nbytes); at < nbytes; at = next.fetch_add(chunk_nbytes)) {
        const std::uint64_t n = std::min(chunk_nbytes, nbytes - at);
        bool good = mine.move(nvme::opcode::read, 1, at, n, 0) && mine.move(nvme::opcode::read, 2, at, n, chunk_nbytes);
        machine.copy_to_device(mine.x.get(), mine.data.data(), n);
        machine.copy_to_device(mine.y.get(), mine.data.data() + chunk_nbytes, n);
        simt::launch({.grid = on_gpu ? 64u : 1u, .block = on_gpu ? 256u : 32u},
                     add_words{mine.x.get(), mine.y.get(), mine.z.get(), n / 8, salt});
        machine.copy_from_device(mine.data.data(), mine.z.get(), n);
        good = good && mine.move(nvme::opcode::write, 3, at, n, 0);
        if (!good) right = false;
      }
      if (!mine.flush(3)) right = false;
    });
    if (!right) throw gpufs::error("the host program's commands fail");
    return seconds;
  }

 private:
  static constexpr std::uint32_t stride = 4;

  struct worker {
    worker(nvme::controller_access& access, std::uint32_t id)
        : queue(access, simt::this_platform(), id),
          data(access, simt::this_platform(), 2 * chunk_nbytes),
          lists(access, simt::this_platform(), 2 * chunk_nbytes / command_nbytes * 4096),
          x(chunk_nbytes / 8),
          y(chunk_nbytes / 8),
          z(chunk_nbytes / 8) {
      for (std::uint64_t at = 0; at < 2 * chunk_nbytes; at += command_nbytes) {
        for (std::uint64_t page = 4096; page < command_nbytes; page += 4096) {
          const std::uint64_t address = data.page_at(at + page);
          std::memcpy(lists.data() + at / command_nbytes * 4096 + (page / 4096 - 1) * 8, &address, 8);
        }
      }
    }
    bool move(nvme::opcode what, std::uint32_t nsid, std::uint64_t offset, std::uint64_t nbytes, std::uint64_t to) {
      for (std::uint64_t at = 0; at < nbytes; at += command_nbytes) {
        nvme::submission ask{};
        ask.cdw0 = static_cast<std::uint32_t>(what);
        ask.nsid = nsid;
        ask.prp1 = data.page_at(to + at);
        ask.prp2 = lists.page_at((to + at) / command_nbytes * 4096);
        ask.cdw10 = static_cast<std::uint32_t>((offset + at) >> 9);
        ask.cdw12 = static_cast<std::uint32_t>(command_nbytes >> 9) - 1;
        if (queue.execute(ask, kernel_deadline_ns) != 0) return false;
      }
      return true;
    }
    bool flush(std::uint32_t nsid) {
      nvme::submission ask{};
      ask.nsid = nsid;
      return queue.execute(ask, kernel_deadline_ns) == 0;
    }
    nvme::host_queue queue;
    nvme::dma_region data, lists;
    device_array<std::uint64_t> x, y, z;
  };

  void ask(std::uint32_t what, std::uint64_t address, std::uint32_t cdw10, std::uint32_t cdw11) {
    nvme::submission words{};
    words.cdw0 = what;
    words.prp1 = address;
    words.cdw10 = cdw10;
    words.cdw11 = cdw11;
    if (admin_.execute(words, kernel_deadline_ns) != 0) throw gpufs::error("the host program cannot make its queues");
  }
  void set_ready(bool ready) {
    access_.write32(nvme::at::configuration, ready ? nvme::configuration::entry_sizes | nvme::configuration::enable : 0);
    const stopwatch watch;
    while (((access_.read32(nvme::at::status) & nvme::state::ready) != 0) != ready && watch.seconds() < 10)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  nvme::controller_access& access_;
  nvme::host_queue admin_;
  std::vector<std::unique_ptr<worker>> threads_;
};

class adding {
 public:
  adding(arguments& args, const machine_facts& machine)
      // Each warp has two pages mapped, and one to write: together less than the cache.
      : how_(on_gpu ? shape{machine.nprocessors, 256} : shape{2, 64}),
        repeats_(repeats_of(args)),
        nbytes_(args.nbytes("namespace-gib", {2, 0.25, 2. / 1024}) / host_program::chunk_nbytes * host_program::chunk_nbytes),
        cache_nbytes_(args.nbytes("cache-gib", {0.5, 1. / 16, 1. / 1024})) {}

  void run_all(results& out) const {
    const auto soft = std::make_shared<nvme::soft_controller>(
        simt::this_platform(), nvme::soft_options{.nblocks = nbytes_ >> 9,
                                                  .nnamespaces = 3,
                                                  .nqueues = 40,
                                                  .scattered = false,
                                                  .nthreads = on_gpu ? std::min(8u, host_threads()) : 2});
    const std::vector<std::byte> words = content_of();
    soft->write_image(0, words, 1);
    soft->write_image(0, words, 2);
    double there = 0;
    for (const unsigned nthreads : {2u, on_gpu ? 8u : 3u}) {
      host_program rival(*soft, nthreads);
      const double seconds = rival.add(nbytes_, nthreads);
      if (!is_sum(*soft, nthreads)) throw gpufs::error("the host program's sum is wrong");
      there = std::max(there, gb(seconds));
    }
    measurement m{"nvme_vector_add", "pages of 64 KiB", {}, "GB/s", there, "read, copy, kernel, copy back, write by host threads"};
    m.verified = true;
    constexpr std::uint32_t page_nbytes = 64 << 10;
    gpufs::mount_options options = short_waits();
    options.page_nbytes = page_nbytes;
    options.cache_nbytes = cache_nbytes_;
    options.writable = true;
    options.custom_store = std::make_shared<gpufs::store::nvme_store>(
        simt::this_platform(), soft,
        nvme::controller_options{.nqueues = 32, .depth = on_gpu ? 128u : 16u, .buffer_nbytes = page_nbytes, .writable = true});
    const gpufs::mount fs("", options);
    const device_array<std::byte> scratch(how_.warps() * page_nbytes);
    for (int r = 0; r <= repeats_; ++r) {
      const auto salt = static_cast<std::uint64_t>(r + 100);
      {
        const host_file a(fs, "n1"), b(fs, "n2"), c(fs, "n3", O_RDWR);
        const device_array<std::uint64_t> failed(1);
        const double seconds = run(how_, add_namespaces{fs.ref(), a.ref().number(), b.ref().number(), c.ref().number(),
                                                        nbytes_ / page_nbytes, page_nbytes, salt, scratch.get(), failed.get()});
        if (r > 0) m.samples.push_back(gb(seconds));
        m.verified = failed.read_one() == 0 && m.verified;
      }
      m.verified = is_sum(*soft, salt) && m.verified;
    }
    out.add(m);
  }

 private:
  double gb(double seconds) const { return 3 * static_cast<double>(nbytes_) / seconds * 1e-9; }
  std::vector<std::byte> content_of() const {
    std::vector<std::byte> bytes(nbytes_);
    sum_in_parallel(nbytes_ / 8, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t i = begin; i < end; ++i) {
        const std::uint64_t word = word_of(i);
        std::memcpy(bytes.data() + i * 8, &word, 8);
      }
      return std::uint64_t{0};
    });
    return bytes;
  }
  // On the medium.
  bool is_sum(nvme::soft_controller& soft, std::uint64_t salt) const {
    const std::vector<std::byte> bytes = soft.medium(3);
    return sum_in_parallel(nbytes_ / 8, [&](std::uint64_t begin, std::uint64_t end) {
             std::uint64_t wrong = 0, word = 0;
             for (std::uint64_t i = begin; i < end; ++i) {
               std::memcpy(&word, bytes.data() + i * 8, 8);
               wrong += word != 2 * word_of(i) + salt;
             }
             return wrong;
           }) == 0;
  }

  shape how_;
  int repeats_;
  std::uint64_t nbytes_, cache_nbytes_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("nvme", [&] {
    arguments args(
        argc, argv,
        "nvme  --commands N  --answers N  --depth N  --host-commands N  --host-depth N  --namespace-gib N  --cache-gib N  "
        "--blocks-per-sm N  --warps N",
        on_gpu);
    const machine_facts machine = this_machine();
    const in_gpu_memory inside(args, machine);
    const against_host outside(args, machine);
    const adding add(args, machine);
    args.path("dir", "");  // as other benches have it: no file is made here
    results out("nvme", args, machine);
    if (args.wants("nvme_submit")) inside.submit(out);
    if (args.wants_any({"nvme_queues", "nvme_by_queues"})) inside.by_queues(out);
    if (args.wants("nvme_latency_hidden")) inside.hidden(out);
    if (args.wants("nvme_overhead")) inside.overhead(out);
    if (args.wants("nvme_host")) outside.commands(out);
    if (args.wants("nvme_vector_add")) add.run_all(out);
    return out.finish();
  });
}
