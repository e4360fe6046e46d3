// What host and device share in pinned memory: request rings. One writer per word (there are no PCIe atomics between
// host and GPU here), so requests are written by the device only and replies by the host only.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpufs::service {

enum class opcode : std::uint32_t { none = 0, open = 1, read = 2, close = 3 };

// Where the bytes of an open file come from.
enum class source_kind : std::uint32_t {
  nil = 0,     // nothing is brought in: measures the cache alone
  pull = 1,    // the faulting group copies from a registered host mapping
  staged = 2,  // a host worker fills a pinned staging slot
};

// One request slot. The device writes every field, then `sequence` with a system-scope release; the host's acquire load of
// `sequence` meets it. `sequence` of the n-th use (ticket t) of a ring is t + 1, so slot t % nslots never repeats a value soon.
struct alignas(64) request {
  opcode op;
  std::uint32_t handle;  // host file handle (read, close); open: how many bytes of the file's beginning to bring along
  std::int64_t offset;   // read: bytes; open: the device's number for the file, handed back when it turns stale (a hint)
  std::uint32_t nbytes;  // bytes to read, at most payload_nbytes; open: length of the path in the payload, without a NUL
  std::uint32_t flags;   // open: O_* flags
  std::uint32_t reserved[9];
  std::uint32_t sequence;
};

// The answer to the request in the same slot. The host writes every field (and the payload), then `sequence` (equal to the
// request's) with a release; the device's system-scope acquire load meets it.
struct alignas(64) reply {
  std::int64_t result;       // >= 0 bytes read, for open bytes brought along (all that were asked for and are in the file, or 0),
                             // or -errno
  std::int64_t file_nbytes;  // open: size at open
  std::uint64_t pull_base;   // open: device-visible address of byte 0 of the file (pull), else 0
  std::uint32_t handle;      // open: host file handle for read and close
  std::uint32_t cache_id;    // open: names this version of this file, 1 .. 2^28 - 1
  source_kind kind;          // open
  std::uint32_t mode;        // open: st_mode
  std::uint64_t inode;       // open: st_ino
  std::uint64_t mtime_ns;    // open
  std::uint32_t reserved;
  std::uint32_t sequence;
};

static_assert(sizeof(request) == 64 && offsetof(request, offset) == 8 && offsetof(request, sequence) == 60);
static_assert(sizeof(reply) == 64 && offsetof(reply, handle) == 24 && offsetof(reply, sequence) == 60);

inline constexpr std::uint32_t max_path_nbytes = 4095;

// The rings of one mount, as both sides see them (addresses valid on host and device). Ring r, slot s is element
// r * nslots + s; its payload is payload_nbytes bytes at payload + (r * nslots + s) * payload_nbytes. nslots is a power of two.
struct ring_view {
  request* requests;
  reply* replies;
  std::byte* payload;
  std::uint32_t nrings;
  std::uint32_t nslots;
  std::uint32_t payload_nbytes;  // max(page size, 4096)
};

}  // namespace gpufs::service
