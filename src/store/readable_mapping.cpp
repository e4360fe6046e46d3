// SPDX-License-Identifier: Apache-2.0
#include "readable_mapping.hpp"

#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace gpufs::store {
namespace {

// What the thread loads from just now.
struct loading {
  const std::byte* begin = nullptr;
  std::size_t nbytes = 0;
  std::atomic<bool>* is_cut = nullptr;
};
// initial-exec: a thread that has never been here finds it without a call that could take memory, in a handler.
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local loading now_loading;

struct sigaction before;  // constant once the handler is there
std::size_t page_nbytes;

void on_bus_error(int number, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const auto begin = reinterpret_cast<std::uintptr_t>(now_loading.begin);
  if (now_loading.begin != nullptr && at - begin < now_loading.nbytes) {
    const int was = errno;
    // Before the zeros are there: who loads one, and then looks, sees it.
    now_loading.is_cut->store(true, std::memory_order_release);
    void* const page = reinterpret_cast<void*>(at / page_nbytes * page_nbytes);
    const bool filled = ::mmap(page, page_nbytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    errno = was;
    if (filled) return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  // The instruction runs again when we return, and ends the process as it would have.
  struct sigaction ends {};
  ends.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &ends, nullptr);
}

// Sets the handler, once. Whether it is there.
bool has_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_nbytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction ours {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    if (::sigaction(SIGBUS, nullptr, &before) == 0) ::sigaction(SIGBUS, &ours, nullptr);
  });
  struct sigaction now {};
  return ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error;
}

}  // namespace

std::unique_ptr<readable_mapping> readable_mapping::of(int fd, std::size_t nbytes) {
  struct stat status {};
  struct statfs in {};
  if (fd < 0 || nbytes == 0 || ::fstat(fd, &status) != 0 || ::fstatfs(fd, &in) != 0 || !has_handler()) return nullptr;
  if (static_cast<std::uint64_t>(status.st_blocks) * 512 < nbytes) return nullptr;
  // Not of hugetlbfs, where a small page can take no other one's place.
  if (in.f_type != TMPFS_MAGIC && in.f_type != RAMFS_MAGIC) return nullptr;
  unique_mmap memory(fd, nbytes, false);
  if (memory.get() == nullptr) return nullptr;
  return std::unique_ptr<readable_mapping>(new readable_mapping(std::move(memory), nbytes));
}

bool readable_mapping::gather(std::span<const std::uint64_t> offsets, std::size_t row_nbytes, std::byte* to) {
  constexpr std::size_t nahead = 8, line = 64, most_asked = 512;  // of a longer row the processor asks for the rest itself
  const auto* const from = static_cast<const std::byte*>(memory_.get());
  const auto ask = [&](std::size_t i) {
    const std::byte* const row = from + offsets[i];
    for (std::size_t b = 0; b < row_nbytes && b < most_asked; b += line) __builtin_prefetch(row + b);
  };
  if (is_cut_.load(std::memory_order_relaxed)) return false;
  now_loading = {from, nbytes_, &is_cut_};
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (std::size_t i = 0; i < nahead && i < offsets.size(); ++i) ask(i);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (i + nahead < offsets.size()) ask(i + nahead);
    std::memcpy(to + i * row_nbytes, from + offsets[i], row_nbytes);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  now_loading = {};
  // Meets the handler's release, of this thread or another.
  return !is_cut_.load(std::memory_order_acquire);
}

}  // namespace gpufs::store
