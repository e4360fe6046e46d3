// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_devices.hpp"
#include "cpu_scheduler.hpp"
#include "gpufs/simt/detail/launch_end.hpp"

namespace gpufs::simt::runtime {
namespace {

std::uint64_t environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 0);
}

std::uint64_t process_seed() {
  static const std::uint64_t seed = [] {
    const std::uint64_t given = environment("GPUFS_SIMT_SEED");
    return given != 0 ? given : cpu_clock_ns() % 1'000'000'000 + 1;
  }();
  return seed;
}

unsigned default_threads() {
  const std::uint64_t given = environment("GPUFS_SIMT_THREADS");
  return static_cast<unsigned>(given != 0 ? std::min<std::uint64_t>(given, 1024)
                                          : std::max(1u, std::thread::hardware_concurrency()));
}

constexpr unsigned max_cooperative_lanes = 16384;  // each has a stack of 64 KiB, and two of the 65,530 mappings that Linux allows

// The distance from one switch to the next is geometric; these are 256 equally likely samples of it. 0 per cent still switches:
// else a lane that spins without backing off would keep its OS thread for ever.
constexpr std::uint32_t longest_countdown = 1u << 16;
void fill_countdowns(std::uint32_t (&countdowns)[256], unsigned percent) {
  for (unsigned i = 0; i < 256; ++i) {
    if (percent == 0) {
      countdowns[i] = longest_countdown;
    } else if (percent >= 100) {
      countdowns[i] = 1;
    } else {
      const double u = (i + 0.5) / 256;
      countdowns[i] = 1 + static_cast<std::uint32_t>(std::log(u) / std::log(1 - percent / 100.0));
    }
  }
}

std::vector<std::uint32_t> block_sequence(unsigned grid, block_order order, std::uint64_t seed) {
  std::vector<std::uint32_t> sequence;
  if (order == block_order::in_order) return sequence;
  sequence.resize(grid);
  for (unsigned i = 0; i < grid; ++i) sequence[i] = order == block_order::reversed ? grid - 1 - i : i;
  if (order == block_order::random) {
    dice random{seed ^ 0x5bd1e995};
    for (unsigned i = grid - 1; i > 0; --i) std::swap(sequence[i], sequence[random.below(i + 1)]);
  }
  return sequence;
}

// A worker and the arrays it works on.
class worker_memory {
 public:
  worker_memory(launch_state& launch, unsigned index, unsigned nblocks) : nlanes_(nblocks * launch.config->block) {
    queues_ = std::make_unique<lane*[]>(5 * std::size_t{nlanes_});
    blocks_ = std::make_unique<block_state[]>(nblocks);
    shared_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, nblocks * max_shared_nbytes)));
    if (shared_ == nullptr) throw std::bad_alloc();
    for (unsigned i = 0; i < nblocks; ++i) {
      blocks_[i].shared_memory = shared_.get() + i * max_shared_nbytes;
      blocks_[i].lanes = queues_.get() + 4 * std::size_t{nlanes_} + std::size_t{i} * launch.config->block;
    }
    worker_.launch = &launch;
    worker_.index = index;
    worker_.random.state = launch.seed + index * 0xd1342543de82ef95;
    worker_.ready = queues_.get();
    worker_.sleeping = queues_.get() + nlanes_;
    worker_.idle = queues_.get() + 2 * std::size_t{nlanes_};
    worker_.held = queues_.get() + 3 * std::size_t{nlanes_};
    worker_.blocks = blocks_.get();
    worker_.nblocks = nblocks;
    start_exploring(launch.config->schedule);
    take_lanes(worker_.idle, nlanes_);
    worker_.nidle = nlanes_;
  }
  ~worker_memory() { give_lanes(worker_.idle, worker_.nidle); }
  worker_memory(const worker_memory&) = delete;
  worker_memory& operator=(const worker_memory&) = delete;
  void run() { worker_.run(); }

  void give_trace(schedule_trace& out) const {
    const exploration& e = worker_.explore;
    out.points.assign(e.met, e.met + e.nmet);
    out.nsteps = e.nsteps;
    out.nswitches = e.nswitches;
    out.order = e.order;
  }

 private:
  void start_exploring(const cpu_schedule& schedule) {
    exploration& e = worker_.explore;
    const bool given = schedule.trace != nullptr && schedule.trace->given;
    e.by_priority = schedule.policy == schedule_policy::priorities;
    e.delays = schedule.delay_percent != 0 && !given;
    e.writes_count = e.by_priority || e.delays;
    e.random.state = worker_.random.state ^ 0x2545f4914f6cdd1d;
    if (e.delays) {
      fill_countdowns(e.delay_gaps, schedule.delay_percent);
      e.until_delay = e.delay_gaps[e.random() & 255];
    }
    if (!e.by_priority) return;
    if (given) {
      points_ = schedule.trace->points;
    } else {
      draw_points(schedule);
    }
    e.next = points_.data();
    e.end = e.next + points_.size();
    met_.resize(max_points);
    e.met = met_.data();
  }

  // Without an estimate of the launch's length, all orders of magnitude are equally likely.
  void draw_points(const cpu_schedule& schedule) {
    dice& random = worker_.explore.random;
    const std::uint64_t nsteps = schedule.nsteps != 0 ? schedule.nsteps : std::uint64_t{32} << random.below(13);
    const auto depth = static_cast<std::uint32_t>(std::min<std::size_t>(schedule.depth, max_points));
    for (std::uint32_t i = 1; i < depth; ++i) points_.push_back({.step = 1 + random() % nsteps, .priority = i});
    std::sort(points_.begin(), points_.end(), [](const schedule_point& a, const schedule_point& b) { return a.step < b.step; });
  }

  struct release {
    void operator()(std::byte* p) const { std::free(p); }
  };
  unsigned nlanes_;
  std::unique_ptr<lane*[]> queues_;
  std::unique_ptr<block_state[]> blocks_;
  std::unique_ptr<std::byte, release> shared_;
  worker worker_;
  std::vector<schedule_point> points_, met_;
};

// A launch_error that also holds the kernel's own exception.
class kernel_exception : public launch_error, public std::nested_exception {
 public:
  explicit kernel_exception(const std::string& message) : launch_error(message) {}
};

[[noreturn]] void throw_error(launch_state& launch) {
  const std::string message = launch.error + how_to_repeat(launch);
  if (launch.exception == nullptr) throw launch_error(message);
  try {
    std::rethrow_exception(std::exchange(launch.exception, nullptr));
  } catch (...) {
    throw kernel_exception(message);
  }
}

}  // namespace

unsigned cpu_max_cooperative_grid(const launch_config& config) {
  check_launch_config(config);
  const unsigned asked = config.schedule.resident_blocks;
  const unsigned fit = std::max(1u, std::min(max_cooperative_lanes, sanitizer::max_fibers) / config.block);
  return asked == 0 ? fit : std::min(asked, fit);
}

void cpu_launch(const launch_config& config, void (*body)(const void*), const void* kernel) {
  check_launch_config(config);
  if (cpu_current->countdown != 0) throw launch_error("a kernel cannot launch another one");
  const cpu_schedule& schedule = config.schedule;
  launch_state launch;
  launch.config = &config;
  launch.body = body;
  launch.kernel = kernel;
  launch.device = cpu_current_index();
  launch.seed_given = schedule.seed != 0;
  launch.seed = launch.seed_given ? schedule.seed : process_seed();
  launch.nworkers = schedule.nthreads != 0 ? schedule.nthreads : default_threads();
  launch.resident = schedule.resident_blocks != 0 ? schedule.resident_blocks : 4 * launch.nworkers;
  launch.resident = std::min(launch.resident, config.grid);
  launch.resident = std::min(launch.resident, std::max(1u, sanitizer::max_fibers / config.block));
  if (config.cooperative) {
    const unsigned most = cpu_max_cooperative_grid(config);
    if (config.grid > most) {
      throw launch_error("a cooperative launch of " + std::to_string(config.grid) + " blocks of " + std::to_string(config.block) +
                         " threads: at most " + std::to_string(most) + " run at once");
    }
    launch.resident = config.grid;
  }
  launch.nworkers = std::min(launch.nworkers, launch.resident);
  if (schedule.trace != nullptr && (schedule.policy != schedule_policy::priorities || launch.nworkers != 1)) {
    throw launch_error("a schedule's trace is of priorities on one OS thread");
  }
  launch.start_ns = cpu_clock_ns();
  const std::vector<std::uint32_t> order = block_sequence(config.grid, schedule.order, launch.seed);
  if (!order.empty()) launch.order = order.data();
  fill_countdowns(launch.countdowns, schedule.switch_percent);

  std::vector<std::unique_ptr<worker_memory>> workers;
  for (unsigned i = 0; i < launch.nworkers; ++i) {
    const unsigned nblocks = launch.resident / launch.nworkers + (i < launch.resident % launch.nworkers ? 1 : 0);
    workers.push_back(std::make_unique<worker_memory>(launch, i, nblocks));
  }
  sanitizer::release(&launch.started);
  ++cpu_nlaunches;
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 1; i < launch.nworkers; ++i) threads.emplace_back([&workers, i] { workers[i]->run(); });
    workers[0]->run();
  }
  --cpu_nlaunches;
  sanitizer::acquire(&launch.ended);
  if (schedule.trace != nullptr) workers[0]->give_trace(*schedule.trace);
  tell_launch_ended();
  if (!launch.error.empty()) throw_error(launch);
}

}  // namespace gpufs::simt::runtime
