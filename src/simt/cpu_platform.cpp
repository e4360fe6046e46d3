// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu_devices.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::simt {
namespace {

constexpr std::size_t alignment = 4096;
constexpr int max_devices = 64;

constinit thread_local int current_device = 0;

// Which device owns which memory. Never destroyed.
struct pieces {
  struct piece {
    std::uintptr_t end;
    std::size_t nbytes;  // counted as the device's
    int device;
  };
  std::mutex mutex;
  std::map<std::uintptr_t, piece> all;  // by their first byte
  std::atomic<int> last_device{0};      // the highest that ever had memory: while it is 0, no memory can be another device's

  static pieces& get() {
    static pieces* p = [] {
      // A child of fork() may make mounts of its own, so the lock must be free there. Else a thread that the child does not have
      // may hold it.
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); }, [] { get().mutex.unlock(); });
      return new pieces;
    }();
    return *p;
  }
  // What an address is in, or null. Under the lock.
  const piece* around(const void* address) const {
    const auto where = reinterpret_cast<std::uintptr_t>(address);
    auto found = all.upper_bound(where);
    if (found == all.begin()) return nullptr;
    --found;
    return where < found->second.end ? &found->second : nullptr;
  }
};

// Calls copy(i, std::type_identity<Word>) for each word of the `nbytes` at `device`: the largest that is aligned and fits.
template <class Copy>
void each_word(const void* device, std::size_t nbytes, Copy copy) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  for (std::size_t i = 0; i < nbytes;) {
    const auto fits = [&](std::size_t word) { return (address + i) % word == 0 && nbytes - i >= word; };
    if (fits(8)) {
      do copy(i, std::type_identity<std::uint64_t>()), i += 8;
      while (nbytes - i >= 8);
    } else if (fits(4)) {
      copy(i, std::type_identity<std::uint32_t>()), i += 4;
    } else {
      copy(i, std::type_identity<std::uint8_t>()), i += 1;
    }
  }
}

// The caller makes the copies at once.
class cpu_copy_batch final : public copy_batch {
 public:
  void begin(std::span<host_copy> copies) override {
    for (host_copy& each : copies) each.failed = runtime::cpu_copy_from_host(each.to, each.from, each.nbytes) != 0;
  }
  bool has_ended() override { return true; }
};

class cpu_memory final : public platform {
 public:
  explicit cpu_memory(int index) : index_(index) {}

  void* allocate_device(std::size_t nbytes) override {
    pieces& known = pieces::get();
    const std::lock_guard lock(known.mutex);
    if (nbytes > memory_nbytes() - in_use_) throw std::bad_alloc();
    void* p = allocate(nbytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    try {
      known.all.emplace(begin, pieces::piece{begin + std::max<std::size_t>(nbytes, 1), nbytes, index_});
    } catch (...) {
      std::free(p);
      throw;
    }
    in_use_ += nbytes;
    if (known.last_device.load(std::memory_order_relaxed) < index_) known.last_device.store(index_, std::memory_order_relaxed);
    return p;
  }
  void deallocate_device(void* ptr) noexcept override {
    if (ptr == nullptr) return;
    pieces& known = pieces::get();
    {
      const std::lock_guard lock(known.mutex);
      const auto found = known.all.find(reinterpret_cast<std::uintptr_t>(ptr));
      if (found == known.all.end() || found->second.device != index_) {
        std::fprintf(stderr, "gpufs: device %d of the cpu machine is given back memory that is not its own\n", index_);
        std::abort();
      }
      in_use_ -= found->second.nbytes;
      known.all.erase(found);
    }
    std::free(ptr);
  }
  bool may_be_memory(const void* ptr, std::size_t nbytes) const override {
    const auto at = reinterpret_cast<std::uintptr_t>(ptr);
    pieces& known = pieces::get();
    const std::lock_guard lock(known.mutex);
    if (ptr == nullptr || nbytes == 0 || nbytes > ~std::uintptr_t{0} - at) return false;
    const auto next = known.all.upper_bound(at);
    if (next != known.all.begin()) {
      const pieces::piece& in = std::prev(next)->second;
      if (at < in.end) return in.device == index_ && nbytes <= in.end - at;
    }
    return next == known.all.end() || nbytes <= next->first - at;  // of no device
  }
#if defined(__SANITIZE_ADDRESS__)
  // From the heap, so that AddressSanitizer sees leaks and accesses out of bounds.
  void* allocate_pinned(std::size_t nbytes) override { return std::memset(allocate(nbytes), 0, nbytes); }
  void deallocate_pinned(void* ptr) noexcept override { std::free(ptr); }
#else
  // A mapping, whose pages are zeroed when they are first touched: most pages of a mount's buffers never are. A page before it
  // holds its size.
  void* allocate_pinned(std::size_t nbytes) override {
    if (nbytes > memory_nbytes()) throw std::bad_alloc();
    const std::size_t mapped = alignment + round_up(nbytes);
    void* const begin = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    std::memcpy(begin, &mapped, sizeof mapped);
    return static_cast<std::byte*>(begin) + alignment;
  }
  void deallocate_pinned(void* ptr) noexcept override {
    if (ptr == nullptr) return;
    void* const begin = static_cast<std::byte*>(ptr) - alignment;
    std::size_t mapped;
    std::memcpy(&mapped, begin, sizeof mapped);
    ::munmap(begin, mapped);
  }
#endif

  const void* register_readonly(const void* ptr, std::size_t, std::string*) override { return ptr; }
  // Allocates the pages now, as a GPU does.
  void* register_writable(void* ptr, std::size_t nbytes, std::string* why) override {
    if (::madvise(ptr, nbytes, MADV_POPULATE_WRITE) == 0) return ptr;
    if (why != nullptr) *why = std::string("madvise: ") + std::strerror(errno);
    return nullptr;
  }
  bool registers_in_place() const override { return true; }
  void unregister(const void*) noexcept override {}

  // Copies by atomic words, because kernels may use the same words.
  // As copies of CUDA end one after the other, so does a kernel that acquires what this one wrote see what earlier ones did.
  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) override {
    check(device_dst, "a copy to");
    each_word(device_dst, nbytes, [&]<class Word>(std::size_t i, std::type_identity<Word>) {
      Word word;
      std::memcpy(&word, static_cast<const std::byte*>(src) + i, sizeof word);
      std::atomic_ref(*reinterpret_cast<Word*>(static_cast<std::byte*>(device_dst) + i)).store(word, std::memory_order_release);
    });
  }
  // The acquire meets the releases of the kernels' words.
  void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) override {
    check(device_src, "a copy from");
    auto* from = static_cast<std::byte*>(const_cast<void*>(device_src));
    each_word(device_src, nbytes, [&]<class Word>(std::size_t i, std::type_identity<Word>) {
      const Word word = std::atomic_ref(*reinterpret_cast<Word*>(from + i)).load(std::memory_order_acquire);
      std::memcpy(static_cast<std::byte*>(dst) + i, &word, sizeof word);
    });
  }
  void zero_device(void* device_dst, std::size_t nbytes) override {
    check(device_dst, "zeroing by");
    if (nbytes != 0) std::memset(device_dst, 0, nbytes);
  }

  std::size_t reachable_nbytes(const void* ptr, std::size_t nbytes) override {
    if (ptr == nullptr) return 0;
    pieces& known = pieces::get();
    const std::lock_guard lock(known.mutex);
    const pieces::piece* const found = known.around(ptr);
    if (found == nullptr) return nbytes;
    return found->device != index_ ? 0 : std::min<std::size_t>(nbytes, found->end - reinterpret_cast<std::uintptr_t>(ptr));
  }

  std::unique_ptr<copy_batch> make_copy_batch() override { return std::make_unique<cpu_copy_batch>(); }
  bool is_idle() const override { return runtime::cpu_nlaunches.load() == 0; }

  std::string_view name() const override { return "cpu"; }
  bool is_cuda() const override { return false; }
  int index() const override { return index_; }
  std::size_t memory_nbytes() const override {
    return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }
  std::size_t free_nbytes() const override {
    const std::lock_guard lock(pieces::get().mutex);
    return memory_nbytes() - in_use_;
  }
  std::string describe() const override {
    return "machine: cpu (every GPU thread is a fiber)\ndevices: " + std::to_string(runtime::cpu_device_count()) +
           " (GPUFS_SIMT_DEVICES)\nos threads: " + std::to_string(std::max(1u, std::thread::hardware_concurrency())) +
           "\nmemory: " + std::to_string(memory_nbytes() >> 20) + " MiB\n";
  }
  int exchange_current(int index) noexcept override { return std::exchange(current_device, index); }

 private:
  void check(const void* address, const char* what) const {
    const int owner = runtime::cpu_other_device(address, index_);
    if (owner < 0) return;
    throw std::invalid_argument(std::string(what) + " device " + std::to_string(index_) +
                                " of the cpu machine, but the memory is device " + std::to_string(owner) + "'s");
  }
  static std::size_t round_up(std::size_t nbytes) { return (std::max<std::size_t>(nbytes, 1) + alignment - 1) & ~(alignment - 1); }
  void* allocate(std::size_t nbytes) const {
    void* p = nbytes > memory_nbytes() ? nullptr : std::aligned_alloc(alignment, round_up(nbytes));
    if (p == nullptr) throw std::bad_alloc();
    return p;
  }

  int index_;
  std::size_t in_use_ = 0;  // under the lock of `pieces`
};

}  // namespace

platform& cpu_platform() { return runtime::cpu_device(0); }

namespace runtime {

int cpu_device_count() {
  static const int count = [] {
    const char* text = std::getenv("GPUFS_SIMT_DEVICES");
    return text == nullptr || *text == '\0' ? 2 : std::clamp(std::atoi(text), 1, max_devices);
  }();
  return count;
}

platform& cpu_device(int i) {
  static const std::vector<cpu_memory*>* all = [] {
    auto* devices = new std::vector<cpu_memory*>;  // outlive all static objects
    for (int n = 0; n < cpu_device_count(); ++n) devices->push_back(new cpu_memory(n));
    return devices;
  }();
  if (i < 0 || i >= cpu_device_count()) refuse_device(i, "cpu", cpu_device_count(), "GPUFS_SIMT_DEVICES");
  return *(*all)[static_cast<std::size_t>(i)];
}

platform& cpu_current_device() { return cpu_device(current_device); }
int cpu_current_index() { return current_device; }

int cpu_other_device(const void* address, int mine) {
  pieces& known = pieces::get();
  if (mine == 0 && known.last_device.load(std::memory_order_relaxed) == 0) return -1;
  const std::lock_guard lock(known.mutex);
  const pieces::piece* const found = known.around(address);
  return found != nullptr && found->device != mine ? found->device : -1;
}

void refuse_device(int i, std::string_view machine, int count, std::string_view whence) {
  std::string text = "there is no device " + std::to_string(i) + ": the ";
  text.append(machine).append(" machine has ").append(std::to_string(count)).append(count == 1 ? ", number 0" : ", numbers 0 to ");
  if (count != 1) text.append(std::to_string(count - 1));
  throw std::out_of_range(text.append(" (").append(whence).append(" says how many)"));
}

}  // namespace runtime

}  // namespace gpufs::simt
