// SPDX-License-Identifier: Apache-2.0
#include "host_blocks.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "gpufs/nvme/detail/status.hpp"

namespace gpufs::nvme {

namespace {

constexpr std::uint64_t buffer_nbytes = 128 << 10;
constexpr int most_retries = 3;

}  // namespace

host_blocks::host_blocks(controller_access& access, simt::platform& machine, std::uint32_t id, std::uint32_t most_entries,
                         std::uint64_t most_nbytes, std::uint64_t timeout_ns)
    : queue_(access, machine, id, std::min(most_entries, host_queue::most_slots)),
      buffer_(access, machine, buffer_nbytes),
      list_(access, machine, bus_page_nbytes),
      most_nbytes_(most_nbytes == 0 ? buffer_nbytes : std::min(buffer_nbytes, most_nbytes)),
      timeout_ns_(timeout_ns) {
  for (std::size_t page = 1; page < buffer_.npages(); ++page) {
    const std::uint64_t address = buffer_.page_at(page * bus_page_nbytes);
    std::memcpy(list_.data() + 8 * (page - 1), &address, sizeof address);
  }
}

int host_blocks::execute(const submission& what) {
  for (int tries = 0;; ++tries) {
    const int status = queue_.execute(what, timeout_ns_);
    if (status <= 0) return status;
    const auto word = static_cast<status_word>(status);
    if (!may_pass(word) || tries == most_retries) return status_errno(word);
  }
}

// Between the buffer's first bytes and the namespace.
int host_blocks::move(opcode what, const namespace_facts& of, std::uint64_t lba, std::uint32_t nblocks) {
  submission ask{};
  ask.cdw0 = static_cast<std::uint32_t>(what);
  ask.nsid = of.nsid;
  ask.prp1 = buffer_.page_at(0);
  const std::uint64_t nbytes = std::uint64_t{nblocks} * of.block_nbytes;
  if (nbytes > bus_page_nbytes) ask.prp2 = nbytes <= 2 * bus_page_nbytes ? buffer_.page_at(bus_page_nbytes) : list_.page_at(0);
  ask.cdw10 = static_cast<std::uint32_t>(lba);
  ask.cdw11 = static_cast<std::uint32_t>(lba >> 32);
  ask.cdw12 = nblocks - 1;
  return execute(ask);
}

// Calls work(lba, nblocks, skip, begin, nbytes) -> 0 or -errno for parts of the range that one command moves: nbytes of it, from
// its `begin` on, lie `skip` bytes behind the first of the blocks.
template <class Work>
int host_blocks::each_part(const namespace_facts& of, std::uint64_t offset, std::uint64_t nbytes, Work work) {
  const std::uint64_t block = of.block_nbytes;
  if (block == 0 || block > most_nbytes_) return -EOPNOTSUPP;
  if (offset > of.nblocks * block || nbytes > of.nblocks * block - offset) return -ENXIO;
  for (std::uint64_t done = 0; done < nbytes;) {
    const std::uint64_t at = offset + done, skip = at % block;
    const std::uint64_t n = std::min(nbytes - done, most_nbytes_ / block * block - skip);
    const auto nblocks = static_cast<std::uint32_t>((skip + n + block - 1) / block);
    if (const int error = work(at / block, nblocks, skip, done, n); error != 0) return error;
    done += n;
  }
  return 0;
}

int host_blocks::read(const namespace_facts& of, std::uint64_t offset, std::span<std::byte> to) {
  return each_part(of, offset, to.size(),
                   [&](std::uint64_t lba, std::uint32_t nblocks, std::uint64_t skip, std::uint64_t begin, std::uint64_t nbytes) {
                     const int error = move(opcode::read, of, lba, nblocks);
                     if (error == 0) std::memcpy(to.data() + begin, buffer_.data() + skip, nbytes);
                     return error;
                   });
}

int host_blocks::write(const namespace_facts& of, std::uint64_t offset, std::span<const std::byte> from) {
  return each_part(of, offset, from.size(),
                   [&](std::uint64_t lba, std::uint32_t nblocks, std::uint64_t skip, std::uint64_t begin, std::uint64_t nbytes) {
                     // The rest of blocks that are written in part.
                     if (skip != 0 || (skip + nbytes) % of.block_nbytes != 0) {
                       if (const int error = move(opcode::read, of, lba, nblocks); error != 0) return error;
                     }
                     std::memcpy(buffer_.data() + skip, from.data() + begin, nbytes);
                     return move(opcode::write, of, lba, nblocks);
                   });
}

int host_blocks::flush(const namespace_facts& of) {
  submission ask{};
  ask.cdw0 = static_cast<std::uint32_t>(opcode::flush);
  ask.nsid = of.nsid;
  return execute(ask);
}

}  // namespace gpufs::nvme
