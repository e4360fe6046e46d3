// SPDX-License-Identifier: Apache-2.0
// What a launch that stops says of its lanes.
#include <bit>
#include <string>

#include "cpu_scheduler.hpp"

namespace gpufs::simt::runtime {
namespace {

constexpr const char* op_names[] = {"sync",       "ballot",     "any",        "all",        "shfl",      "broadcast",
                                    "match_any",  "reduce_add", "reduce_min", "reduce_min", "reduce_max", "reduce_max"};
constexpr unsigned max_listed = 8;

std::string short_name(const lane& l, const lane& beside) {
  if (l.home == beside.home && l.warp_rank == beside.warp_rank) return "lane " + std::to_string(l.lane_id);
  return lane_name(l);
}

// "1, 2, 5 - 7"
std::string lane_list(std::uint32_t mask) {
  std::string text;
  for (unsigned i = 0; i < warp_lanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    unsigned last = i;
    while (last + 1 < warp_lanes && (mask >> (last + 1) & 1) != 0) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(i);
    if (last > i) text += (last > i + 1 ? " - " : ", ") + std::to_string(last);
    i = last;
  }
  return text;
}

std::string state_text(const lane& l) {
  switch (l.state) {
    case lane_state::fresh: return "has not started";
    case lane_state::runnable: return "runs";
    case lane_state::backing_off: return "backs off";
    case lane_state::exited: return "has exited";
    case lane_state::in_warp:
      return std::string("waits in ") + op_names[static_cast<int>(l.op)] + " of lanes {" + lane_list(l.mask) + "}";
    case lane_state::in_block:
      return l.op == cpu_op::sync ? "waits in block barrier"
                                  : std::string("waits in block ") + op_names[static_cast<int>(l.op)];
  }
  return "";
}

// Who has not come to where `l` waits.
std::uint32_t missing_in_warp(const lane& l, unsigned warp_rank) {
  std::uint32_t missing = 0;
  for (unsigned i = 0; i < warp_lanes; ++i) {
    const lane& other = *l.home->lanes[warp_rank * warp_lanes + i];
    const bool wanted = l.state == lane_state::in_block || (l.mask >> i & 1) != 0;
    const bool came = other.state == l.state && other.op == l.op && (l.state == lane_state::in_block || other.mask == l.mask);
    if (wanted && !came) missing |= 1u << i;
  }
  return missing;
}

}  // namespace

std::string lane_name(const lane& l) {
  return "block " + std::to_string(l.block_rank) + " warp " + std::to_string(l.warp_rank) + " lane " +
         std::to_string(l.lane_id);
}

std::string describe_wait(const lane& l) {
  if (l.state != lane_state::in_warp && l.state != lane_state::in_block) return lane_name(l) + " " + state_text(l);
  const bool in_warp = l.state == lane_state::in_warp;
  std::string text = lane_name(l) + " " + state_text(l);
  std::string why;
  unsigned nlisted = 0;
  bool more = false;
  const unsigned first = in_warp ? l.warp_rank : 0;
  const unsigned last = in_warp ? l.warp_rank : l.home->nthreads / warp_lanes - 1;
  for (unsigned w = first; w <= last; ++w) {
    const std::uint32_t missing = missing_in_warp(l, w);
    if (missing == 0) continue;
    if (in_warp) {
      text += " for lanes {" + lane_list(missing) + "}";
    } else if (!more) {
      text += (nlisted == 0 ? " for warp " : ", warp ") + std::to_string(w) + " lanes {" + lane_list(missing) + "}";
    }
    for (std::uint32_t m = missing; m != 0; m &= m - 1) {
      if (nlisted == max_listed) {
        more = true;
        break;
      }
      const lane& other = *l.home->lanes[w * warp_lanes + static_cast<unsigned>(std::countr_zero(m))];
      why += "; " + short_name(other, l) + " " + state_text(other);
      ++nlisted;
    }
  }
  return text + why + (more ? "; ..." : "");
}

std::string describe_worker(const worker& w) {
  std::string text;
  unsigned nlisted = 0;
  for (unsigned b = 0; b < w.nblocks; ++b) {
    const block_state& block = w.blocks[b];
    if (!block.resident) continue;
    unsigned count[6] = {};
    for (unsigned i = 0; i < block.nthreads; ++i) ++count[static_cast<int>(block.lanes[i]->state)];
    if (nlisted == max_listed) continue;
    // One lane for each place where lanes of a warp wait.
    unsigned nspoken = 0;
    for (unsigned i = 0; i < block.nthreads && nlisted < max_listed; ++i) {
      const lane& l = *block.lanes[i];
      if (l.state != lane_state::in_warp && l.state != lane_state::in_block) continue;
      bool spoken = false;
      for (unsigned j = i - i % warp_lanes; j < i && !spoken; ++j) {
        const lane& k = *block.lanes[j];
        spoken = k.state == l.state && k.op == l.op && k.mask == l.mask;
      }
      for (unsigned j = 0; j < i && !spoken && l.state == lane_state::in_block; ++j) {
        spoken = block.lanes[j]->state == l.state && block.lanes[j]->op == l.op;
      }
      if (spoken) continue;
      text += (text.empty() ? "" : "; ") + describe_wait(l);
      ++nlisted;
      ++nspoken;
    }
    if (nspoken == 0) {
      text += (text.empty() ? "" : "; ") + ("block " + std::to_string(block.rank)) + ":";
      constexpr const char* names[] = {"not started", "running", "backing off", "in a collective", "in a block collective",
                                       "exited"};
      for (unsigned s = 0; s < 6; ++s) {
        if (count[s] != 0) text += " " + std::to_string(count[s]) + " lanes " + names[s] + ",";
      }
      text.pop_back();
      ++nlisted;
    }
  }
  const std::uint64_t started = w.launch->next_block.load(std::memory_order_relaxed);
  const unsigned grid = w.launch->config->grid;
  if (started < grid) {
    text += (text.empty() ? "" : "; ") + std::to_string(grid - started) + " of " + std::to_string(grid) +
            " blocks have not started (at most " + std::to_string(w.launch->resident) + " resident)";
  }
  return text;
}

std::string how_to_repeat(const launch_state& launch) {
  const std::string seed = std::to_string(launch.seed);
  std::string text = "; seed " + seed + " (repeat with " +
                     (launch.seed_given ? "cpu_schedule{.seed = " + seed + "}" : "GPUFS_SIMT_SEED=" + seed);
  if (launch.nworkers > 1) {
    text += ", nearly: " + std::to_string(launch.nworkers) + " OS threads ran; GPUFS_SIMT_THREADS=1 repeats exactly";
  }
  return text + ")";
}

}  // namespace gpufs::simt::runtime
