// SPDX-License-Identifier: Apache-2.0
// The report on the lanes of a launch that stops.
#include <bit>
#include <string>

#include "cpu_scheduler.hpp"

namespace gpufs::simt::runtime {
namespace {

constexpr const char* op_names[] = {"sync",      "ballot",     "any",        "all",        "shfl",       "broadcast",
                                    "match_any", "reduce_add", "reduce_min", "reduce_min", "reduce_max", "reduce_max"};
constexpr unsigned max_listed = 8;

std::string of_lanes(std::uint32_t mask) { return mask == ~0u ? std::string() : " of lanes {" + lane_list(mask) + "}"; }

std::string state_text(const lane& l) {
  switch (l.state) {
    case lane_state::fresh:
      return "has not started";
    case lane_state::runnable:
      return "runs";
    case lane_state::backing_off:
      return "backs off";
    case lane_state::exited:
      return "has exited";
    case lane_state::in_warp:
      return std::string("waits in ") + op_names[static_cast<int>(l.op)] + of_lanes(l.mask) + call_text(l);
    case lane_state::in_block:
      return (l.op == cpu_op::sync ? "waits in block barrier" : std::string("waits in block ") + op_names[static_cast<int>(l.op)]) +
             call_text(l);
  }
  return "";
}

bool has_come(const lane& other, const lane& l) {
  return other.state == l.state && other.op == l.op && (l.state == lane_state::in_block || other.mask == l.mask);
}

// Whether `other` cannot come before `l` goes on, or never comes.
bool is_stuck(const lane& other) {
  return other.state == lane_state::exited || other.state == lane_state::in_warp || other.state == lane_state::in_block;
}

// Appends a sentence.
void say(std::string& text, const std::string& sentence) {
  if (!text.empty()) text.append("; ");
  text.append(sentence);
}

std::string describe_counts(const block_state& block) {
  constexpr const char* names[] = {" not started",          " running", " backing off", " in warp collectives",
                                   " in block collectives", " exited"};
  unsigned count[6] = {};
  for (unsigned i = 0; i < block.nthreads; ++i) ++count[static_cast<int>(block.lanes[i]->state)];
  std::string text;
  for (unsigned s = 0; s < 6; ++s) {
    if (count[s] == 0) continue;
    if (!text.empty()) text.append(", ");
    text.append(std::to_string(count[s])).append(names[s]);
  }
  return "block " + std::to_string(block.rank) + ": lanes: " + text;
}

}  // namespace

std::string short_name(const lane& l, const lane& beside) {
  const std::string name = "lane " + std::to_string(l.lane_id);
  return l.warp_rank == beside.warp_rank ? name : "warp " + std::to_string(l.warp_rank) + " " + name;
}

std::string lane_list(std::uint32_t mask) {
  std::string text;
  for (unsigned i = 0; i < warp_lanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    unsigned last = i;
    while (last + 1 < warp_lanes && (mask >> (last + 1) & 1) != 0) ++last;
    if (!text.empty()) text.append(", ");
    text.append(std::to_string(i));
    if (last > i) text.append(last > i + 1 ? " - " : ", ").append(std::to_string(last));
    i = last;
  }
  return text;
}

std::string lane_name(const lane& l) {
  return "block " + std::to_string(l.block_rank) + " warp " + std::to_string(l.warp_rank) + " lane " + std::to_string(l.lane_id);
}

// "block 0 warp 1 lane 5 waits in ballot for lanes {3, 7}; lane 3 has exited; lane 7 waits in block barrier"
std::string describe_wait(const lane& l) {
  std::string text = lane_name(l) + " " + state_text(l);
  const bool in_warp = l.state == lane_state::in_warp;
  if (!in_warp && l.state != lane_state::in_block) return text;
  const block_state& block = *l.home;
  std::string stuck, where;
  unsigned nsaid = 0, nstuck = 0, nmissing = 0, nwarps_listed = 0;
  const auto add_stuck = [&](const std::string& sentence) {
    if (nsaid++ < max_listed) say(stuck, sentence);
  };
  for (unsigned w = in_warp ? l.warp_rank : 0; w < (in_warp ? l.warp_rank + 1 : block.nthreads / warp_lanes); ++w) {
    std::uint32_t missing = 0, exited = 0;
    for (unsigned i = 0; i < warp_lanes; ++i) {
      const lane& other = *block.lanes[w * warp_lanes + i];
      if ((in_warp && (l.mask >> i & 1) == 0) || has_come(other, l)) continue;
      missing |= 1u << i;
      if (!is_stuck(other)) continue;
      ++nstuck;
      if (other.state == lane_state::exited) exited |= 1u << i;
      if (other.state != lane_state::exited) add_stuck(short_name(other, l) + " " + state_text(other));
    }
    if (std::has_single_bit(exited)) {
      add_stuck(short_name(*block.lanes[w * warp_lanes + static_cast<unsigned>(std::countr_zero(exited))], l) + " has exited");
    } else if (exited != 0) {
      const std::string lanes = "lanes {" + lane_list(exited) + "} have exited";
      add_stuck(w == l.warp_rank ? lanes : "warp " + std::to_string(w) + " " + lanes);
    }
    nmissing += static_cast<unsigned>(std::popcount(missing));
    if (missing == 0 || nwarps_listed++ >= max_listed) continue;
    if (!where.empty()) where.append(", ");
    if (!in_warp) where.append("warp ").append(std::to_string(w)).append(" ");
    where.append("lanes {").append(lane_list(missing)).append("}");
  }
  if (!where.empty()) text.append(" for ").append(where);
  if (nwarps_listed > max_listed) text.append(" and in ").append(std::to_string(nwarps_listed - max_listed)).append(" more warps");
  if (!stuck.empty()) say(text, stuck);
  if (nsaid > max_listed) say(text, std::to_string(nsaid - max_listed) + " more like these");
  if (nstuck != 0 && nmissing > nstuck) say(text, "the others may still come");
  return text;
}

std::string describe_waiters_for(const lane& l) {
  const block_state& block = *l.home;
  for (unsigned i = 0; i < block.nthreads; ++i) {
    const lane& other = *block.lanes[i];
    const bool same_warp = other.warp_rank == l.warp_rank;
    if (other.state == lane_state::in_warp && same_warp && (other.mask >> l.lane_id & 1) != 0) return describe_wait(other);
    if (other.state == lane_state::in_block && l.state != lane_state::in_block) return describe_wait(other);
  }
  return lane_name(l) + " " + state_text(l);
}

std::string describe_worker(const worker& w) {
  std::string text;
  unsigned nlisted = 0, nresident = 0;
  for (unsigned b = 0; b < w.nblocks; ++b) {
    const block_state& block = w.blocks[b];
    if (!block.resident || ++nresident > max_listed) continue;
    say(text, describe_counts(block));
    // Lists one lane for each collective that lanes of a warp wait in, and one for each collective of the block.
    for (unsigned i = 0; i < block.nthreads && nlisted < max_listed; ++i) {
      const lane& l = *block.lanes[i];
      if (l.state != lane_state::in_warp && l.state != lane_state::in_block) continue;
      bool spoken = false;
      for (unsigned j = l.state == lane_state::in_block ? 0 : i - i % warp_lanes; j < i && !spoken; ++j) {
        spoken = has_come(*block.lanes[j], l);
      }
      if (spoken) continue;
      say(text, describe_wait(l));
      ++nlisted;
    }
  }
  if (nresident > max_listed) say(text, std::to_string(nresident - max_listed) + " more blocks run");
  const std::uint64_t started = __atomic_load_n(&w.launch->next_block, __ATOMIC_RELAXED);
  const unsigned grid = w.launch->config->grid;
  if (started < grid) {
    say(text, std::to_string(grid - started) + " of " + std::to_string(grid) + " blocks have not started (at most " +
                  std::to_string(w.launch->resident) + " resident)");
  }
  return text;
}

std::string how_to_repeat(const launch_state& launch) {
  const std::string seed = std::to_string(launch.seed);
  std::string text = "; seed " + seed;
  text.append(launch.seed_given ? " (repeat with cpu_schedule{.seed = " + seed + "}" : " (repeat with GPUFS_SIMT_SEED=" + seed);
  if (launch.config->schedule.policy == schedule_policy::priorities) {
    text.append(", by priorities, depth ").append(std::to_string(launch.config->schedule.depth));
  }
  if (launch.nworkers > 1) {
    text.append(", nearly: ").append(std::to_string(launch.nworkers));
    text.append(" OS threads ran; .nthreads = 1 or GPUFS_SIMT_THREADS=1 repeats exactly");
  }
  return text.append(")");
}

}  // namespace gpufs::simt::runtime
