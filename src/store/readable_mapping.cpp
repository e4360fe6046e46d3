// SPDX-License-Identifier: Apache-2.0
#include "readable_mapping.hpp"

#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace gpufs::store {
namespace {

// A mapping that may fault. It is in a list that is never freed, because a handler may read the list at any moment. There is no
// thread-local word: a running process (Python's ctypes) cannot load a library whose handler needs one.
struct known_mapping {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin: 0 while the place is free
  std::atomic<std::atomic<bool>*> is_cut{nullptr};
};
struct known_mappings {
  known_mapping places[64];
  known_mappings* next = nullptr;
};
std::atomic<known_mappings*> all_known{nullptr};  // the latest first
std::mutex known_lock;                            // of the threads that change the list

known_mapping& enter(std::uintptr_t begin, std::uintptr_t end, std::atomic<bool>* is_cut) {
  const std::scoped_lock hold(known_lock);
  known_mapping* at = nullptr;
  for (known_mappings* some = all_known.load(std::memory_order_relaxed); some != nullptr && at == nullptr; some = some->next) {
    for (known_mapping& place : some->places) {
      if (place.begin.load(std::memory_order_relaxed) == 0) at = &place;
    }
  }
  if (at == nullptr) {
    auto* const more = new known_mappings;
    more->next = all_known.load(std::memory_order_relaxed);
    all_known.store(more, std::memory_order_release);
    at = &more->places[0];
  }
  std::atomic_thread_fence(std::memory_order_release);  // the 0 comes before what follows: meets find's fence
  at->end.store(end, std::memory_order_relaxed);
  at->is_cut.store(is_cut, std::memory_order_relaxed);
  at->begin.store(begin, std::memory_order_release);  // meets find's acquire
  return *at;
}

// The flag of the mapping that has this address. A mapping that faults stays while we look: its thread is inside gather.
std::atomic<bool>* find(std::uintptr_t at) {
  for (known_mappings* some = all_known.load(std::memory_order_acquire); some != nullptr; some = some->next) {
    for (const known_mapping& place : some->places) {
      const std::uintptr_t begin = place.begin.load(std::memory_order_acquire);
      const std::uintptr_t end = place.end.load(std::memory_order_relaxed);
      std::atomic<bool>* const is_cut = place.is_cut.load(std::memory_order_relaxed);
      // If the place changes meanwhile, its begin is another mapping's or 0.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (begin != 0 && at >= begin && at < end && place.begin.load(std::memory_order_relaxed) == begin) return is_cut;
    }
  }
  return nullptr;
}

struct sigaction before;  // constant once our handler is set
std::size_t page_nbytes;

void on_bus_error(int number, siginfo_t* info, void* context) {
  const bool is_sent = info->si_code <= 0;  // by a process: no instruction has faulted
  const auto at = is_sent ? 0 : reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (std::atomic<bool>* const is_cut = at != 0 ? find(at) : nullptr) {
    const int was = errno;
    // Before the zeros are there, so that a thread that loads one and then looks sees it.
    is_cut->store(true, std::memory_order_release);
    void* const page = reinterpret_cast<void*>(at / page_nbytes * page_nbytes);
    const bool filled = ::mmap(page, page_nbytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    errno = was;
    if (filled) return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  if (is_sent && before.sa_handler == SIG_IGN) return;
  // The instruction runs again when we return, and then ends the process as it would have without us. So does a signal that was
  // sent and is sent again.
  struct sigaction ends {};
  ends.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &ends, nullptr);
  if (is_sent) ::raise(SIGBUS);
}

// Sets the handler, once.
void set_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_nbytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction ours {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&ours.sa_mask);
    if (::sigaction(SIGBUS, nullptr, &before) == 0) ::sigaction(SIGBUS, &ours, nullptr);
  });
}

}  // namespace

std::atomic<std::uint32_t> readable_mapping::nmappings_{0};

bool readable_mapping::is_guarded() {
  set_handler();
  struct sigaction now {};
  return ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error;
}

std::unique_ptr<readable_mapping> readable_mapping::of(int fd, std::size_t nbytes, std::size_t begin) {
  const std::size_t end = begin + nbytes;
  struct stat status {};
  struct statfs in {};
  if (fd < 0 || nbytes == 0 || ::fstat(fd, &status) != 0 || ::fstatfs(fd, &in) != 0) return nullptr;
  if (static_cast<std::uint64_t>(status.st_size) < end || status.st_blocks * 512 < status.st_size) return nullptr;
  // hugetlbfs is not accepted: a small page cannot take the place of one of its pages.
  if (in.f_type != TMPFS_MAGIC && in.f_type != RAMFS_MAGIC) return nullptr;
  if (!is_guarded() || nmappings_.load(std::memory_order_relaxed) >= most) return nullptr;
  const std::size_t from = begin >> block_shift << block_shift;
  unique_mmap memory(fd, end - from, false, from);
  if (memory.get() == nullptr) return nullptr;
  return std::unique_ptr<readable_mapping>(new readable_mapping(std::move(memory), end - from, begin - from));
}

readable_mapping::readable_mapping(unique_mmap memory, std::size_t nbytes, std::size_t begin)
    : memory_(std::move(memory)), nbytes_(nbytes), begin_(begin) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
  known_ = &enter(at, at + nbytes, &is_cut_).begin;
  nmappings_.fetch_add(1, std::memory_order_relaxed);
}

readable_mapping::~readable_mapping() {
  take_pages_out();
  known_->store(0, std::memory_order_release);  // before the addresses are used again
  nmappings_.fetch_sub(1, std::memory_order_relaxed);
  delete[] nasked_.load(std::memory_order_relaxed);
}

// Of a large mapping: munmap(2) would do it alone, and keep all other calls that map memory waiting meanwhile, 0.65 s for 32 GiB.
void readable_mapping::take_pages_out() const {
  constexpr std::size_t some = std::size_t{64} << 20, worth_a_thread = std::size_t{1} << 30;
  if (nbytes_ <= some || !was_loaded_.load(std::memory_order_relaxed)) return;
  auto* const from = static_cast<std::byte*>(memory_.get());
  std::atomic<std::size_t> next_begin{0};
  const auto take = [&] {
    for (std::size_t at = next_begin.fetch_add(some); at < nbytes_; at = next_begin.fetch_add(some)) {
      ::madvise(from + at, std::min(some, nbytes_ - at), MADV_DONTNEED);
    }
  };
  std::array<std::thread, 3> helpers;
  try {
    for (std::size_t i = 0; i < helpers.size() && i < nbytes_ / worth_a_thread; ++i) helpers[i] = std::thread(take);
  } catch (const std::exception&) {  // no thread, or no memory: then fewer do it
  }
  take();
  for (std::thread& helper : helpers) {
    if (helper.joinable()) helper.join();
  }
}

bool readable_mapping::pays(std::uint64_t offset, std::size_t nbytes, std::uint8_t nreads) {
  std::atomic<std::uint8_t>* counts = nasked_.load(std::memory_order_acquire);
  if (counts == nullptr) {
    auto* const made = new (std::nothrow) std::atomic<std::uint8_t>[(nbytes_ >> block_shift) + 1] {};
    if (made == nullptr) return false;
    // Meets the acquire above of other threads, which see zeros then.
    if (nasked_.compare_exchange_strong(counts, made, std::memory_order_acq_rel)) {
      counts = made;
    } else {
      delete[] made;
    }
  }
  bool all = true;
  const std::uint64_t first = (begin_ + offset) >> block_shift, last = (begin_ + offset + nbytes - 1) >> block_shift;
  for (std::uint64_t block = first; block <= last; ++block) {
    const std::uint8_t n = counts[block].load(std::memory_order_relaxed);
    if (n >= nreads) continue;
    counts[block].store(n + 1, std::memory_order_relaxed);
    all = false;
  }
  return all;
}

bool readable_mapping::gather(std::span<const std::uint64_t> offsets, std::size_t row_nbytes, std::byte* to) {
  constexpr std::size_t nahead = 8, line = 64, most_asked = 512;  // the processor itself prefetches the rest of a longer row
  const auto* const from = static_cast<const std::byte*>(memory_.get()) + begin_;
  const auto ask = [&](std::size_t i) {
    const std::byte* const row = from + offsets[i];
    for (std::size_t b = 0; b < row_nbytes && b < most_asked; b += line) __builtin_prefetch(row + b);
  };
  if (!was_loaded_.load(std::memory_order_relaxed)) was_loaded_.store(true, std::memory_order_relaxed);
  for (std::size_t i = 0; i < nahead && i < offsets.size(); ++i) ask(i);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (is_cut_.load(std::memory_order_relaxed)) return false;  // each load would get a page of zeros of its own
    if (i + nahead < offsets.size()) ask(i + nahead);
    std::memcpy(to + i * row_nbytes, from + offsets[i], row_nbytes);
  }
  // After the loads. Meets the handler's release, of this thread or another.
  std::atomic_thread_fence(std::memory_order_acquire);
  return !is_cut_.load(std::memory_order_relaxed);
}

}  // namespace gpufs::store
