// SPDX-License-Identifier: Apache-2.0
// Stands in for the CPU machine in a build without Boost.Context: host code works, launches are refused.
#include <ctime>

#include "gpufs/simt/detail/cpu_machine.hpp"

namespace gpufs::simt::runtime {
namespace {

[[noreturn]] void refuse() { throw launch_error("this build of gpufs has no CPU machine (it needs Boost.Context)"); }

}  // namespace

void cpu_preempt() {}
void cpu_wrote() {}
void cpu_refuse_address(bool) {}
void cpu_check_call(const cpu_call&) {}
void cpu_enter_call(cpu_call&) {}
void cpu_leave_call(const cpu_call&) {}
void cpu_report_misuse(const char*) {}
void cpu_backoff(std::uint64_t cap_ns) {
  const timespec t{0, static_cast<long>(cap_ns < 1'000'000 ? cap_ns : 1'000'000)};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
}
void cpu_warp(cpu_op, std::uint32_t, unsigned, std::uint32_t, const std::uint64_t*, std::uint64_t*) { refuse(); }
void cpu_block(cpu_op, unsigned, std::uint32_t, const std::uint64_t*, std::uint64_t*) { refuse(); }
void cpu_grid_sync() { refuse(); }
unsigned cpu_max_cooperative_grid(const launch_config&) { refuse(); }
void* cpu_shared(const void*, std::size_t, std::size_t) { refuse(); }
void cpu_launch(const launch_config&, void (*)(const void*), const void*) { refuse(); }

}  // namespace gpufs::simt::runtime
