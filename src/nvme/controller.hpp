// SPDX-License-Identifier: Apache-2.0
// An NVMe controller whose queues kernels drive: takes it over, makes queues, sees to commands that do not end, gives it back
// (docs/design/nvme.md).
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/nvme/controller_options.hpp"
#include "host_blocks.hpp"
#include "queue_memory.hpp"

namespace gpufs::nvme {

// What the controller says of itself.
struct controller_limits {
  capabilities cap;
  std::string model;
  std::uint64_t most_nbytes = 0;  // a command moves: MDTS; 0: no limit
  std::uint32_t nqueues = 0;      // granted
  std::uint32_t depth = 0;        // slots of each
  bool has_write_cache = false;   // so that only flush, or force_unit_access, brings writes to the medium
};

// Members may be called from several host threads. Constructor and member functions throw std::system_error, whose words say what
// is wrong and what helps: ENODEV, the controller is gone; ETIMEDOUT, it does not get ready; EIO, it refuses a command, or says
// that it has failed; EOPNOTSUPP, it lacks what is needed here; EINVAL, options that nothing can keep.
class controller {
 public:
  controller(controller_access& access, simt::platform& machine, const controller_options& options = {});
  // Kernels that use it must have ended. Shuts the controller down, and disables it: then no memory is its own any more.
  ~controller();
  controller(const controller&) = delete;
  controller& operator=(const controller&) = delete;

  const controller_limits& limits() const { return limits_; }
  // The namespaces that are active.
  std::vector<namespace_facts> namespaces();
  // One of them, by one command. One that is not active has no blocks.
  namespace_facts look_at(std::uint32_t nsid);
  // Whether it is not lost, and its registers answer. Sends no command.
  bool is_there() const;
  // For kernels: the namespace, with all queues. EOPNOTSUPP, with metadata, or protected. The address is device memory, and lives
  // as long as this.
  const namespace_layout* open(std::uint32_t nsid);
  // The most that one command moves for kernels, of whole blocks.
  std::uint64_t command_nbytes(const namespace_facts& of) const;
  bool has_host_queue() const { return !blocks_.empty(); }
  // Bytes that the host reads and writes by queues of its own (options.nhost_queues): they need not begin or end a block. A call
  // for each queue at a time, and for each block one that writes; the others wait. 0 or -errno, as host_blocks has them; -EROFS,
  // the options do not say writable; -EOPNOTSUPP, there is no such queue, as the controller grants one pair only; -ENODEV, it is
  // lost. After -ETIMEDOUT it has been reset; where it had failed, the call was then made again.
  int read(const namespace_facts& of, std::uint64_t offset, std::span<std::byte> to);
  int write(const namespace_facts& of, std::uint64_t offset, std::span<const std::byte> from);
  int flush(const namespace_facts& of);
  // Memory for commands of one's own (queue_pair::submit). It must end before this, after all its commands.
  std::unique_ptr<dma_region> make_memory(std::size_t nbytes);

  // Looks for commands that kernels gave up, and does what brings their records back: aborts them, else deletes their queues and
  // makes them again, else resets the controller. Returns how many records were given up. Of a controller that cannot be brought
  // back all queues are dead from then on (-ENODEV).
  std::size_t recover();
  // Resets the controller at once, as a last step of recover: commands under way are aborted, and may be sent again.
  void reset();

  // What was done.
  struct counts {
    std::uint64_t aborts, deletions, resets;
    bool dead;
  };
  counts done() const;
  std::uint32_t nqueues() const { return static_cast<std::uint32_t>(queues_.size()); }
  const queue_memory& queue(std::uint32_t i) const { return *queues_.at(i); }

 private:
  void take_over();
  void start();
  void set_ready(bool ready);
  void configure(std::uint32_t word) { access_.write32(at::configuration, word); }
  int identify(std::uint32_t what, std::uint32_t nsid);  // as execute
  std::uint32_t ask_for_queues(std::uint32_t n);         // how many it grants
  bool create(queue_memory& queue);
  bool create(host_queue& queue);
  bool create(std::uint32_t what, std::uint32_t id, std::uint32_t nslots, std::uint64_t address, std::uint32_t flags);
  // Blocks of a namespace that a call of the host's writes, from the first to the last; or none.
  struct written_blocks {
    std::uint32_t nsid = 0;
    std::uint64_t first = 0, last = 0;
    bool operator==(const written_blocks&) const = default;
    bool meet(const written_blocks& other) const {
      return nsid != 0 && nsid == other.nsid && first <= other.last && other.first <= last;
    }
  };
  template <class Work>
  int by_host(const written_blocks& writes, Work work);
  bool has_failed();  // and is there
  bool remove(queue_memory& queue);
  int execute(const submission& what, std::uint32_t* result = nullptr) {
    return admin_.execute(what, options_.admin_timeout_ns, result);
  }
  void must(int status, const char* call) const;
  [[noreturn]] void refuse(int error, const std::string& why) const;

  template <class Work>
  auto ask(Work work);
  std::vector<namespace_facts> namespaces_locked();
  namespace_facts look_at_locked(std::uint32_t nsid);
  std::size_t recover_locked();
  bool abort_all(queue_memory& queue, const std::vector<std::uint32_t>& records);
  bool make_again(queue_memory& queue);
  void reset_locked();
  void bring_back();
  void close_for_good();
  void look_now_and_then();

  controller_access& access_;
  simt::platform& machine_;
  controller_options options_;
  controller_limits limits_;
  host_queue admin_;
  dma_region page_;  // for what identify answers
  simt::device_memory memory_;
  std::vector<std::unique_ptr<queue_memory>> queues_;
  const queue_layout* layouts_ = nullptr;
  std::vector<std::unique_ptr<host_blocks>> blocks_;  // a queue of the host's each

  mutable std::mutex mutex_;  // of all below; and none sends an admin command without it
  counts done_{};
  std::vector<host_blocks*> idle_;       // that no call has
  std::vector<written_blocks> writing_;  // by calls under way: one of a queue at most, for which there is room
  std::uint32_t nresetting_ = 0;         // then no call begins
  std::condition_variable host_changes_;
  std::condition_variable wakes_;
  bool ends_ = false;
  std::thread looker_;
};

}  // namespace gpufs::nvme
