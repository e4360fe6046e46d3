// SPDX-License-Identifier: Apache-2.0
// QEMU's NVMe controller without a guest: a process of QEMU whose processor stands still. Registers are reached through its qtest
// socket; its memory is a file that this process maps, too, so that queues and data are ordinary memory. For the CPU machine.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/nvme/controller_access.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

class qemu_controller final : public nvme::controller_access {
 public:
  // drive: QEMU's words for the file that has the blocks.
  explicit qemu_controller(const std::string& drive) {
    const std::string ram = ram_.path() + "/ram", rom = ram_.path() + "/hlt.rom", socket = ram_.path() + "/qtest";
    make_rom(rom);
    memory_ = ::open(ram.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (memory_ < 0 || ::ftruncate(memory_, ram_nbytes) != 0) fail("cannot make QEMU's memory " + ram);
    start({"qemu-system-x86_64",
           "-M",
           "q35,memory-backend=m",
           "-object",
           "memory-backend-file,id=m,size=" + std::to_string(ram_nbytes) + ",share=on,mem-path=" + ram,
           "-m",
           std::to_string(ram_nbytes >> 20),
           "-accel",
           "tcg",
           "-bios",
           rom,
           "-qtest",
           "unix:" + socket + ",server=on,wait=off",
           "-qtest-log",
           "none",
           "-nodefaults",
           "-vga",
           "none",
           "-display",
           "none",
           "-drive",
           drive + ",format=raw,if=none,id=d0",
           "-device",
           "nvme,drive=d0,serial=test"});
    try {
      connect_to(socket);
      find_function();
    } catch (...) {
      stop();
      throw;
    }
    bells_.resize(nbells);
    for (auto& bell : bells_) bell = nothing;
    forwarder_ = std::thread([this] { forward(); });
  }
  ~qemu_controller() override {
    ends_ = true;
    forwarder_.join();
    stop();
  }

  static bool is_there() { return std::system("qemu-system-x86_64 --version > /dev/null 2>&1") == 0; }

  std::uint32_t read32(std::uint32_t offset) override { return static_cast<std::uint32_t>(ask("readl", bar + offset)); }
  void write32(std::uint32_t offset, std::uint32_t value) override {
    pass_on_bells();  // as controller_access has it: those of before a reset would else come to the queues that follow
    ask("writel", bar + offset, value);
  }
  // Lanes store there, and a thread passes on what it finds.
  std::uint32_t* doorbell(std::uint32_t offset) override { return &bells_.at((offset - first_bell) / 4); }

  // The pages become pages of QEMU's memory, where they are.
  std::vector<std::uint64_t> map(std::byte* memory, std::size_t nbytes) override {
    const std::lock_guard lock(mutex_);
    std::uint64_t at = first_free;  // behind what other mappings have
    for (const auto& [where, n] : used_) {
      if (at + nbytes <= where) break;
      at = where + n;
    }
    if (at + nbytes > ram_nbytes) throw std::system_error(ENOSPC, std::generic_category(), "QEMU's memory is full");
    overlay(memory, nbytes, MAP_SHARED, memory_, static_cast<off_t>(at));
    std::memset(memory, 0, nbytes);
    used_[at] = nbytes;
    mapped_[memory] = at;
    std::vector<std::uint64_t> pages;
    for (std::size_t i = 0; i < nbytes; i += 4096) pages.push_back(at + i);
    return pages;
  }
  void unmap(std::byte* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t at = mapped_.at(memory);
    overlay(memory, used_.at(at), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    used_.erase(at);
    mapped_.erase(memory);
  }
  std::string name() const override { return "QEMU's"; }

  // Each doorbell is on its way for so long.
  void delay_bells(std::chrono::microseconds delay) { bell_delay_ = delay; }
  void kill() { ::kill(process_, SIGKILL); }
  std::size_t nmapped() const { return mapped_.size(); }

 private:
  static constexpr std::uint64_t ram_nbytes = 128 << 20, first_free = 16 << 20, bar = 0xe0000000;
  static constexpr std::uint32_t first_bell = 0x1000, nbells = 2 * 33, nothing = ~0u;

  [[noreturn]] static void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

  static void overlay(std::byte* memory, std::size_t nbytes, int flags, int fd, off_t at) {
    if (::mmap(memory, nbytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, at) == MAP_FAILED) std::abort();
  }
  // At the reset vector: cli, hlt, jmp.
  static void make_rom(const std::string& path) {
    std::string bytes(65536, '\0');
    bytes.replace(65520, 4, "\xfa\xf4\xeb\xfd");
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void start(std::vector<std::string> words) {
    std::vector<char*> argv;
    for (std::string& each : words) argv.push_back(each.data());
    argv.push_back(nullptr);
    process_ = ::fork();
    if (process_ < 0) fail("cannot start QEMU");
    if (process_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends with the test, however that ends
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  void stop() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    if (socket_ >= 0) ::close(socket_);
    ::close(memory_);
  }
  void connect_to(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected =
        wait_until([&] { return ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0; });
    if (!connected) fail("QEMU does not come up");
  }
  // What firmware would do: finds the function on bus 0, gives it BAR0, and enables memory and DMA.
  void find_function() {
    for (std::uint32_t device = 0; device < 32; ++device) {
      const std::uint32_t at = 0x80000000 | device << 11;
      ask("outl", 0xcf8, at | 8);
      if (ask("inl", 0xcfc) >> 8 != 0x010802) continue;
      for (const auto& [word, value] : {std::pair{0x10u, std::uint32_t{bar}}, {0x14u, 0u}, {0x04u, 6u}}) {
        ask("outl", 0xcf8, at | word);
        ask("outl", 0xcfc, value);
      }
      return;
    }
    throw std::runtime_error("QEMU has no NVMe function");
  }

  // One call of qtest's. All ones of a process that is gone.
  std::uint64_t ask(const char* call, std::uint64_t address, std::int64_t value = -1) {
    const std::lock_guard lock(socket_mutex_);
    char text[128];
    int n = value < 0 ? std::snprintf(text, sizeof text, "%s 0x%llx\n", call, static_cast<unsigned long long>(address))
                      : std::snprintf(text, sizeof text, "%s 0x%llx 0x%llx\n", call, static_cast<unsigned long long>(address),
                                      static_cast<unsigned long long>(value));
    if (::send(socket_, text, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) return ~std::uint64_t{0};
    std::string answer;
    while (answer.empty() || answer.back() != '\n') {
      const ssize_t got = ::recv(socket_, text, sizeof text, 0);
      if (got <= 0) return ~std::uint64_t{0};
      answer.append(text, static_cast<std::size_t>(got));
    }
    if (answer.rfind("OK", 0) != 0) throw std::runtime_error("qtest says " + answer);
    return answer.size() > 4 ? std::stoull(answer.substr(3), nullptr, 0) : 0;
  }

  void forward() {
    while (!ends_) {
      if (!pass_on_bells()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  // Whether there were any. When it returns, QEMU has all that were stored before the call.
  bool pass_on_bells() {
    const std::lock_guard lock(bells_mutex_);
    bool any = false;
    for (std::uint32_t i = 2; i < nbells; ++i) {
      // Meets the ringer's store: the commands are in memory before QEMU looks.
      const std::uint32_t value = std::atomic_ref(bells_[i]).exchange(nothing, std::memory_order_acq_rel);
      if (value == nothing) continue;
      std::this_thread::sleep_for(bell_delay_.load());
      ask("writel", bar + first_bell + 4 * i, value);
      any = true;
    }
    return any;
  }

  const temp_dir ram_{memory_directory()};
  int memory_ = -1, socket_ = -1;
  pid_t process_ = -1;
  std::mutex mutex_, bells_mutex_, socket_mutex_;
  std::map<std::uint64_t, std::uint64_t> used_;  // of QEMU's memory: where, and how many bytes
  std::map<std::byte*, std::uint64_t> mapped_;
  std::vector<std::uint32_t> bells_;
  std::atomic<std::chrono::microseconds> bell_delay_{std::chrono::microseconds(0)};
  std::atomic<bool> ends_{false};
  std::thread forwarder_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
