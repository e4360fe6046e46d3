// SPDX-License-Identifier: Apache-2.0
#include "apps/bus_guard.hpp"

#include <csignal>
#include <mutex>

namespace gpufs::apps::detail {
namespace {

struct sigaction previous;

void on_bus(int signal, siginfo_t* info, void* context) {
  if (bus_return != nullptr) siglongjmp(*bus_return, 1);
  // That of the library's mappings, say, which may put the fault right. It leaves our handler where it is.
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  // Not ours: the fault is raised again, with the handler that was there before.
  sigaction(signal, &previous, nullptr);
}

}  // namespace

thread_local sigjmp_buf* bus_return = nullptr;

void install_bus_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
  });
}

}  // namespace gpufs::apps::detail
