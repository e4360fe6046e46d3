// SPDX-License-Identifier: Apache-2.0
#include "fault_log.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace gpufs {
namespace {

// The first record need not be complete: a lane may have been stopped after it took that one.
bool is_complete(fault_record& record) {
  return std::atomic_ref<std::uint32_t>(record.written).load(std::memory_order_acquire) != 0;  // meets record_fault
}

// What was accessed, and why it failed. The device has written it, and nothing in it is believed.
std::string describe(const fault& what, const std::optional<std::string>& path, std::uint32_t nframes) {
  constexpr const char* whats[] = {"pointer to ", "write through a pointer to ", "lost, what was written through a pointer to ",
                                   "mapping of "};
  const auto kind = static_cast<std::uint32_t>(std::atomic_ref(const_cast<fault_kind&>(what.kind)).load(std::memory_order_relaxed));
  std::string line = kind < std::size(whats) ? whats[kind] : "access to ";
  line.append(path              ? "'" + *path + "'"
              : what.number < 0 ? "a file that is not open"
                                : "file number " + std::to_string(what.number) + " (closed since)");
  line.append(" at offset ").append(std::to_string(what.offset)).append(": ");
  const bool mapped = kind != static_cast<std::uint32_t>(fault_kind::mapping);
  const std::uint64_t left = what.end - static_cast<std::uint64_t>(what.offset), mapped_nbytes = what.end - what.begin;
  const bool within = static_cast<std::uint64_t>(what.offset) - what.begin < mapped_nbytes && what.nbytes <= left;
  const std::string cause = std::strerror(static_cast<int>(0 - static_cast<std::uint32_t>(what.error)));
  switch (mapped ? what.error : 0) {
    case -ENXIO:
      return line.append(within ? "the file has been cut, and ends before"
                                : "beyond the mapping of " + std::to_string(mapped_nbytes) + " bytes");
    case -ENOMEM:
      return line.append(cause).append(": all frames of the cache (" + std::to_string(nframes) +
                                       ") are pinned; warps x 32 lanes x pointers may each hold one, and one more "
                                       "for a page that they write: see mount_options::cache_nbytes, and ptr::unlink");
    case -EMFILE:
      return line.append(cause).append(": the page is pinned 2^23 times");
    default:
      return line.append(cause);
  }
}

std::string describe_who(const fault& what, const fault_count& alike) {
  std::string who = " (block " + std::to_string(what.block) + ", warp " + std::to_string(what.thread / 32) + ", lane " +
                    std::to_string(what.thread % 32);
  const int nlanes = std::popcount(alike.lanes);
  if (alike.accesses > 1) {
    who.append(" first; ").append(std::to_string(alike.accesses)).append(" accesses");
    if (nlanes > 1) who.append(" of ").append(std::to_string(nlanes)).append(" lanes");
  }
  return who.append(")");
}

}  // namespace

fault_log::fault_log(simt::device_memory& memory)
    : memory_(memory), records_(fault_records, memory.machine()), counts_(memory.allocate<fault_count>(fault_counts)) {}

bool fault_log::empty() const { return std::none_of(records(), records() + fault_records, is_complete); }

std::vector<std::string> fault_log::lines(const path_finder& path_of, std::uint32_t nframes) const {
  std::vector<std::string> lines;
  std::vector<fault_count> counts;
  for (std::uint32_t i = 0; i < fault_records; ++i) {
    fault_record& record = records_[i];
    if (!is_complete(record)) continue;
    if (counts.empty()) counts = memory_.read_or_zeros(counts_, fault_counts);
    const fault& what = record.what;
    lines.push_back(describe(what, path_of(what.handle), nframes) +
                    describe_who(what, what.counted_in < fault_counts ? counts[what.counted_in] : fault_count{}));
  }
  return lines;
}

}  // namespace gpufs
