// SPDX-License-Identifier: Apache-2.0
// An NVMe controller in software, as the NVM Express specifications (Base 2.0, NVM Command Set 1.0) have it: one thread of the host
// that looks at registers and doorbells in memory, and moves blocks of an image, for kernels of this process. It takes nothing from
// the queues' code that it is to test, but the way in which that reaches a controller. It notes whatever a driver does that the
// specifications forbid, and does on demand whatever they allow, and some of what they do not. With soft_options::nthreads it is
// fast instead: more threads, which serve the queues for blocks in order and look at nothing else. For programs without a device,
// and for tests; it is no measure of one.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpufs/nvme/controller_access.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::nvme {

class pinned_memory;
class soft_image;
struct served_pair;

struct soft_options {
  std::string image{};           // a file that has the blocks, of the one namespace; empty: memory, of zeros at first
  std::uint64_t nblocks = 4096;  // of memory
  std::uint64_t hole = 0;        // so many blocks more before them, which nobody may touch
  std::uint32_t block_shift = 9;
  std::uint32_t nnamespaces = 1;  // each with an image of its own
  bool metadata = false;          // formats of 8 bytes a block beside its data
  // Registers.
  std::uint32_t most_entries = 1024;  // of a queue
  std::uint32_t doorbell_stride_shift = 0;
  std::uint32_t least_page_shift = 12;
  bool contiguous_queues = false;
  bool nvm_commands = true;
  bool gets_ready = true;
  std::uint32_t ready_halves = 60;  // of seconds that a change of CC.EN may take: CAP.TO
  std::uint32_t mdts = 5;           // 128 KiB
  std::uint32_t nqueues = 16;       // granted
  // How it works.
  bool scattered = true;              // pages that are mapped lie anywhere on the bus
  std::uint64_t latency_ns = 0;       // of each command
  std::uint64_t most_per_second = 0;  // 0: no limit
  bool reorders = true;               // completes what is due in any order
  bool lazy = true;                   // fetches some of what is there, and posts entries word by word, with pauses
  std::uint64_t fetch_every_ns = 0;   // one command at a time; 0: as they come
  std::uint64_t seed = 1;
  // As fast as memory is. Queue i is of thread (i - 1) % nthreads. There `reorders`, `lazy` and `fetch_every_ns` mean nothing, no
  // fault happens to commands for blocks, violations are not seen, and an abort finds nothing.
  std::uint32_t nthreads = 0;  // 0: one thread, as above
  bool moves_nothing = false;  // with nthreads: reads and writes end at once, and no byte is moved
};

// What happens to commands instead of what should. The first that fits a command and has times left counts.
struct soft_fault {
  enum class what {
    fail,   // completes with `status`, and moves nothing
    back,   // does it, and its completion says that fewer commands were fetched than one before said (SQHD)
    lose,   // does it, and posts no completion
    stick,  // keeps it: moves its blocks when move_stuck is called, and posts no completion
    delay,  // completes it after `delay_ns`
  };
  what does = what::fail;
  int opcode = -1;  // any; admin commands: 0x100 and theirs
  std::uint64_t first_lba = 0, last_lba = ~std::uint64_t{0};
  std::uint32_t skip = 0, times = 1;
  std::uint32_t status = 0;  // SC, SCT, DNR as in the entry, without the phase
  std::uint64_t delay_ns = 0;
};

// Any host thread. Its driver must have ended before it.
class soft_controller final : public controller_access {
 public:
  // Throws std::system_error where the image is no file that can be read and written, of whole blocks; std::invalid_argument, for
  // moves_nothing without nthreads.
  soft_controller(simt::platform& machine, const soft_options& options);
  ~soft_controller() override;

  std::uint32_t read32(std::uint32_t offset) override;
  void write32(std::uint32_t offset, std::uint32_t value) override;
  std::uint32_t* doorbell(std::uint32_t offset) override { return word(offset); }
  std::vector<std::uint64_t> map(std::byte* memory, std::size_t nbytes) override;
  void unmap(std::byte* memory) noexcept override;
  std::string name() const override { return "gpufs-nvme-soft"; }

  // With nthreads: of admin commands only, else std::invalid_argument.
  void add(const soft_fault& fault);
  void move_stuck();                                           // those that it keeps move their blocks, each time
  void fail();                                                 // CSTS.CFS, if it is enabled: it does nothing more until it is reset
  void unplug();                                               // its registers read as all ones, and it does nothing more
  void never_disable();                                        // RDY stays 1
  void lose_power();                                           // what only its cache has is gone; of an image in a file nothing is
  void resize(std::uint64_t nblocks, std::uint32_t nsid = 1);  // the namespace has fewer blocks from now on: 1 to as many as it had
  // Whether somebody else steps, and not its own thread: so that tests say when, between which steps of lanes. A step looks at
  // registers and doorbells once, fetches some commands and ends some; it waits for nobody. Returns whether there was anything to
  // do.
  void let_others_step(bool others) { others_step_.store(others); }
  bool step();

  // What is there, with what the cache has; and what would be after the power was lost.
  std::vector<std::byte> bytes(std::uint32_t nsid = 1);
  std::vector<std::byte> medium(std::uint32_t nsid = 1);
  void write_image(std::uint64_t lba, const std::vector<std::byte>& bytes, std::uint32_t nsid = 1);

  std::vector<std::string> violations();  // what the driver did that it must not
  struct counts {
    std::uint64_t commands, admin_commands, completions, flushes, stalls, resets;  // stalls: looks at a full completion queue
    std::uint32_t most_under_way;  // of one queue: fetched or published, and not yet taken from the completion queue
    std::uint32_t nmapped;         // pages
  };
  counts done();

 private:
  struct command_words {
    std::uint32_t dword[16];
    std::uint32_t opcode() const { return dword[0] & 0xff; }
    std::uint16_t id() const { return static_cast<std::uint16_t>(dword[0] >> 16); }
    std::uint64_t quad(int at) const { return dword[at] | std::uint64_t{dword[at + 1]} << 32; }
  };
  struct work {
    std::uint32_t queue;
    command_words what;
    std::uint64_t due_ns;
    bool has_fault;
    soft_fault fault;
  };
  static constexpr std::uint64_t ended = ~std::uint64_t{0};  // as a work's due_ns: it is nobody's any more
  struct completions {
    std::vector<std::byte*> page;
    std::uint32_t n = 0, tail = 0, phase = 1, bell = 0;
  };
  struct submissions {
    std::vector<std::byte*> page;
    std::uint32_t n = 0, head = 0, bell = 0, completions = 0;
    std::deque<command_words> published;  // as they were when the doorbell came
    std::map<std::uint16_t, bool> ids;    // under way
  };

  void run();
  bool look_at_configuration();
  bool look_at_doorbells();
  bool fetch();
  bool complete_some();
  void take(std::uint32_t queue, submissions& from);
  // Of queues that threads have (nthreads).
  void serve(std::uint32_t thread);
  std::pair<std::uint64_t, std::uint64_t> due_of(std::uint32_t n);
  void end_served(std::uint32_t id, std::uint32_t status);

  std::uint32_t execute(const command_words& what);
  std::uint32_t transfer(const command_words& what, bool writes);
  std::uint32_t gather(const command_words& what, std::uint64_t nbytes, std::vector<std::pair<std::byte*, std::uint64_t>>& pieces);
  void execute_admin(const command_words& what, std::uint32_t& status, std::uint32_t& result);
  std::uint32_t identify(const command_words& what);
  std::uint32_t create(const command_words& what, bool of_submissions);
  std::uint32_t remove(const command_words& what, bool of_submissions);
  bool post(std::uint32_t queue, std::uint16_t id, std::uint32_t status, std::uint32_t result, std::uint32_t back = 0);
  std::byte* at(std::uint64_t address, std::uint64_t nbytes);
  std::uint32_t* word(std::uint32_t offset) const;
  std::uint32_t load(std::uint32_t offset) const { return std::atomic_ref(*word(offset)).load(std::memory_order_acquire); }
  void store(std::uint32_t offset, std::uint32_t value) { std::atomic_ref(*word(offset)).store(value, std::memory_order_release); }
  std::uint32_t bell_offset(std::uint32_t n) const { return 0x1000 + n * (4u << options_.doorbell_stride_shift); }
  std::uint64_t draw(std::uint64_t n) { return n == 0 ? 0 : random_() % n; }
  void note(const std::string& violation);

  soft_options options_;
  std::uint32_t nbells_;  // doorbells that there are, with the admin queue's
  std::unique_ptr<pinned_memory> registers_;
  std::deque<soft_image> images_;
  std::mutex notes_mutex_;
  std::vector<std::string> violations_;
  std::mutex mutex_;  // all below
  std::mt19937_64 random_;
  // Also changed under this only, which threads have shared while they serve queues.
  std::shared_mutex served_mutex_;
  std::vector<std::uint64_t> nblocks_;                   // of each image
  std::unordered_map<std::uint64_t, std::byte*> pages_;  // by address / 4096
  std::unordered_map<std::byte*, std::vector<std::uint64_t>> mappings_;
  std::uint64_t next_page_ = 0x100;
  std::deque<soft_fault> faults_;
  std::map<std::uint32_t, submissions> submissions_;
  std::map<std::uint32_t, completions> completions_;
  std::deque<work> working_, stuck_;
  std::atomic<std::uint64_t> next_start_ns_{0}, nflushes_{0};
  std::uint64_t next_fetch_ns_ = 0;
  counts done_{};
  bool enabled_ = false, failed_ = false, unplugged_ = false, stays_ready_ = false;
  std::atomic<bool> ends_{false}, others_step_{false};
  std::vector<std::unique_ptr<served_pair>> served_;  // by the queues' number; with nthreads
  std::vector<std::thread> servers_;
  std::thread thread_;
};

}  // namespace gpufs::nvme
