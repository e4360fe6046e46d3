// SPDX-License-Identifier: Apache-2.0
// What the headers need from the CPU machine's runtime (src/simt/). Lanes are fibers; an OS thread runs one at a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/schedule.hpp"

namespace gpufs::simt::runtime {

enum class cpu_op : std::uint8_t {
  sync,
  ballot,
  any,
  all,
  shfl,
  broadcast,
  match_any,
  reduce_add,
  reduce_min_signed,
  reduce_min_unsigned,
  reduce_max_signed,
  reduce_max_unsigned
};

// A call that all lanes of a group make together (gpufs/simt/group_call.hpp). It is on the stack of a lane that makes it.
enum class cpu_argument_kind : std::uint8_t { signed_number, unsigned_number, address, text };
struct cpu_argument {
  cpu_argument_kind kind = cpu_argument_kind::address;
  std::uint64_t value = 0;
  bool is_of_all = false;  // an address or text that must not be on the lane's stack
};
struct cpu_call {
  const char* signature = nullptr;  // "name(argument, ...)"; nullptr: none
  std::uint32_t mask = 0;           // the group's lanes in the warp; 0: all threads of the block
  std::uint32_t nargs = 0;
  const cpu_argument* arguments = nullptr;
  const cpu_call* outer = nullptr;  // the call that this one is part of
  mutable bool agreed = false;      // all lanes of the group have met in this call, with equal arguments
};

// A lane, as inline code sees it. A host thread outside a launch has one that looks like lane 0 of a launch of one thread.
struct cpu_lane {
  std::uint32_t lane_id = 0, warp_rank = 0, thread_rank = 0, block_size = 1, block_rank = 0, grid_size = 1, processor = 0;
  int device = 0;
  std::uint32_t countdown = 0;     // preemption points to pass before the next switch; 0: not a lane
  bool tells_writes = false;       // the lane calls cpu_wrote after its next atomic write
  const cpu_call* call = nullptr;  // the call that the lane is in
  std::uint32_t nline_words = 0;   // how many words of its warp's lines it got; equal in all lanes at each collective of the warp
  // The block's shared memory and the lane's stack.
  std::uintptr_t shared_begin = 0, stack_begin = 0;
  std::size_t shared_nbytes = 0, stack_nbytes = 0;
};

extern constinit thread_local cpu_lane* cpu_current;

void cpu_preempt();  // this lane's countdown has ended
void cpu_wrote();    // this lane has written something atomically
void cpu_refuse_address(bool is_shared);
void cpu_check_call(const cpu_call& call);  // checks its arguments alone; does nothing in a host thread
void cpu_enter_call(cpu_call& call);        // the same
void cpu_leave_call(const cpu_call& call);
void cpu_report_misuse(const char* what);
void cpu_backoff(std::uint64_t cap_ns);
// A collective of the lanes of `mask` (absolute lane numbers); value and result: nwords 8-byte words each, not overlapping,
// valid until it returns. arg: the absolute source lane. Orders memory among these lanes.
void cpu_warp(cpu_op op, std::uint32_t mask, unsigned nwords, std::uint32_t arg, const std::uint64_t* value, std::uint64_t* result);
// The same for all threads of the block; arg: the source thread's rank.
void cpu_block(cpu_op op, unsigned nwords, std::uint32_t arg, const std::uint64_t* value, std::uint64_t* result);
// A collective of all threads of a cooperative launch, for memory only.
void cpu_grid_sync();
// The lanes of the caller's warp, itself included, that came to this site before any of them went on; the seed says how long they
// wait for others. In a host thread: lane 0.
std::uint32_t cpu_converge(const void* site);
void* cpu_shared(const void* key, std::size_t nbytes, std::size_t alignment);
std::uint64_t cpu_clock_ns();
// Copies from memory that may be truncated or unmapped meanwhile: 0 or -EIO, never a signal.
int cpu_copy_from_host(void* dst, const void* src, std::size_t nbytes);
// The same in the other direction; other lanes may write the source.
int cpu_copy_to_host(void* dst, const void* src, std::size_t nbytes);
// Copies from memory that other lanes may write: ThreadSanitizer does not check it.
void cpu_copy_changing(void* dst, const void* src, std::size_t nbytes);
void cpu_fence(bool acquire, bool release);  // only where ThreadSanitizer cannot follow std::atomic_thread_fence
void cpu_launch(const launch_config& config, void (*body)(const void*), const void* kernel);
unsigned cpu_max_cooperative_grid(const launch_config& config);

}  // namespace gpufs::simt::runtime
