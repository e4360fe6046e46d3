// SPDX-License-Identifier: Apache-2.0
// Bytes of namespaces that the host itself reads and writes, by a pair of queues that no kernel has.
#pragma once
#include <cstdint>
#include <span>

#include "host_queue.hpp"

namespace gpufs::nvme {

struct namespace_facts {
  std::uint32_t nsid;
  std::uint64_t nblocks;
  std::uint32_t block_nbytes;  // 0: of a format that is not for blocks of bytes alone

  bool operator==(const namespace_facts&) const = default;
};

// One thread at a time.
class host_blocks {
 public:
  // A queue has most_entries at most. A command moves most_nbytes at most (0: no limit), and takes timeout_ns at most.
  host_blocks(controller_access& access, simt::platform& machine, std::uint32_t id, std::uint32_t most_entries,
              std::uint64_t most_nbytes, std::uint64_t timeout_ns);

  host_queue& queue() { return queue_; }
  // Bytes in the namespace; they need not begin or end a block. 0 or -errno: those of blocks.hpp, and -ETIMEDOUT, after which the
  // controller must be reset. After an error of write any of the bytes may be new; other bytes of their blocks stay.
  int read(const namespace_facts& of, std::uint64_t offset, std::span<std::byte> to);
  int write(const namespace_facts& of, std::uint64_t offset, std::span<const std::byte> from);
  int flush(const namespace_facts& of);

 private:
  template <class Work>
  int each_part(const namespace_facts& of, std::uint64_t offset, std::uint64_t nbytes, Work work);
  int move(opcode what, const namespace_facts& of, std::uint64_t lba, std::uint32_t nblocks);
  int execute(const submission& what);

  host_queue queue_;
  dma_region buffer_, list_;
  std::uint64_t most_nbytes_, timeout_ns_;
};

}  // namespace gpufs::nvme
