// SPDX-License-Identifier: Apache-2.0
// The name space that the host keeps: each call is a request to it. docs/design/names.md
#pragma once
#include "gpufs/names/name_space.hpp"
#include "gpufs/transport/detail/requests.hpp"

namespace gpufs::names {
inline namespace GPUFS_MACHINE {

// The request that an answer calls for if its caller has given up. An open's answer calls for a close, because nobody wants the
// file any more. If the answer names another open, there is nothing to close.
GPUFS_DEVICE transport::late_call after_late(const transport::request& asked, const transport::reply& answer) {
  const bool is_opened = asked.op == transport::opcode::open && answer.result >= 0 && answer.number == 0;
  return is_opened ? transport::late_call{transport::opcode::close, answer.handle}
                   : transport::late_call{transport::opcode::none, 0};
}

// A name_space. One lane calls; each call waits for the host, at most so long (or until `until`), and then gives -ETIMEDOUT, and
// counts it. `start`: the ring at which it begins to look for a slot. The bytes that an answer has kept lie in its request's slot.
template <class Requests>
class host_names {
 public:
  GPUFS_DEVICE host_names(const Requests& rings, std::uint64_t timeout_ns, std::uint64_t& timeouts, std::uint32_t start)
      : rings_(rings), timeout_ns_(timeout_ns), timeouts_(timeouts), start_(start) {}

  // Looks a path up, makes the file where the flags say so, and opens it. `path`: anything that [i] gives bytes of.
  template <class Path>
  GPUFS_DEVICE opened open(const Path& path, const open_call& how, const simt::deadline& until) const {
    opened got{};
    const transport::ticket ticket = rings_.take(start_, until);
    if (ticket.index == transport::no_slot) return {timed_out(), 0, {}, 0, {}};
    copy_path(rings_.payload(ticket), path, how.nbytes);
    transport::request ask{};
    ask.op = transport::opcode::open;
    ask.nbytes = how.nbytes;
    ask.flags = how.flags;
    ask.offset = how.number;
    ask.handle = how.first_nbytes;
    ask.skip = how.closed;
    transport::reply answer;
    if (rings_.call(ticket, ask, answer, until) != 0) return {timed_out(), 0, {}, 0, {}};
    got.error = answer.result < 0 ? static_cast<int>(answer.result) : 0;
    got.elsewhere = got.error == 0 ? answer.number : 0;
    got.file = {answer.handle,
                answer.cache_id,
                answer.file_nbytes,
                answer.pull_base,
                answer.inode,
                answer.mtime_ns,
                answer.mode & ~transport::fixed_size_bit,
                answer.kind,
                (answer.mode & transport::fixed_size_bit) != 0};
    if (got.error == 0 && got.elsewhere == 0 && answer.result > 0) {
      got.nbytes = static_cast<std::uint32_t>(answer.result);
      got.kept = kept_in(ticket);
    } else {
      rings_.give_back(ticket);
    }
    return got;
  }

  // in_place_nbytes: the end of what was stored to the file's mapping, or 0.
  GPUFS_DEVICE closed close(std::uint32_t id, std::uint64_t in_place_nbytes) const {
    const simt::deadline until(timeout_ns_);
    const transport::ticket ticket = rings_.take(start_, until);
    if (ticket.index == transport::no_slot) return {false, timed_out()};
    transport::request ask{};
    ask.op = transport::opcode::close;
    ask.handle = id;
    ask.offset = static_cast<std::int64_t>(in_place_nbytes);
    transport::reply answer;
    return {true, call(ticket, ask, answer, until)};
  }

  // Brings an open file to the disk, as `flags` say (names::sync_*), with what was stored to its mapping. 0 or a negative
  // errno.
  GPUFS_DEVICE int sync(std::uint32_t id, std::uint64_t in_place_nbytes, std::uint32_t flags) const {
    return ask_about_file(transport::opcode::sync, id, static_cast<std::int64_t>(in_place_nbytes), flags);
  }
  GPUFS_DEVICE int set_size(std::uint32_t id, std::int64_t nbytes) const {
    return ask_about_file(transport::opcode::truncate, id, nbytes, 0);
  }

  // Removes a name; flags: unlink_directory.
  GPUFS_DEVICE lost_names remove(const char* path, std::uint32_t flags) const {
    transport::request ask{};
    ask.op = transport::opcode::unlink;
    ask.flags = flags;
    transport::reply answer;
    const int error = ask_about_path(ask, answer, path);
    return {error, false, answer.number != 0, {answer.pull_base, static_cast<written_place>(answer.file_nbytes), 0, 0}};
  }
  // Only where the mount may write: others have no room for a second path.
  GPUFS_DEVICE lost_names rename(const char* from, const char* to) const {
    transport::request ask{};
    ask.op = transport::opcode::rename;
    transport::reply answer;
    const int error = ask_about_path(ask, answer, from, to);
    if (error != 0 || answer.mode == 0) return {error, true, false, {}};
    return {0,
            false,
            answer.number != 0,
            {answer.pull_base, static_cast<written_place>(answer.file_nbytes), answer.inode, answer.mtime_ns}};
  }
  GPUFS_DEVICE int make_directory(const char* path, std::uint32_t mode) const {
    transport::request ask{};
    ask.op = transport::opcode::mkdir;
    ask.mode = mode;
    transport::reply answer;
    return ask_about_path(ask, answer, path);
  }

  GPUFS_DEVICE status stat(const char* path) const {
    transport::request ask{};
    ask.op = transport::opcode::stat;
    transport::reply answer;
    const int error = ask_about_path(ask, answer, path);
    const written_place written = answer.number != 0 ? written_place{answer.number - 1} << 32 | answer.handle : 0;
    return {error, answer.mode, answer.file_nbytes, answer.inode, answer.mtime_ns, written, answer.pull_base};
  }
  // At most so many bytes of entries, from a position on: 0, or what the last listing gave.
  GPUFS_DEVICE listing list(const char* path, std::int64_t position, std::uint32_t nbytes) const {
    transport::request ask{};
    ask.op = transport::opcode::read_dir;
    ask.offset = position;
    ask.handle = nbytes;
    transport::reply answer;
    listing got{};
    transport::ticket ticket{};
    got.error = ask_about_path(ask, answer, path, nullptr, &ticket);
    got.kept = kept_in(ticket);
    got.nbytes = answer.result;
    got.position = answer.file_nbytes;
    return got;
  }

  // Where an open file's bytes lie, from an offset on: at most so many bytes of extents. -EOPNOTSUPP: the file has none, as its
  // bytes are in memory or on another machine.
  GPUFS_DEVICE listing extents(std::uint32_t id, std::int64_t offset, std::uint32_t nbytes) const {
    const simt::deadline until(timeout_ns_);
    const transport::ticket ticket = rings_.take(start_, until);
    if (ticket.index == transport::no_slot) return {timed_out(), {}, 0, 0};
    transport::request ask{};
    ask.op = transport::opcode::extents;
    ask.handle = id;
    ask.offset = offset;
    ask.nbytes = nbytes;
    transport::reply answer{};
    const int error = call_and_keep(ticket, ask, answer, until);
    return {error, kept_in(ticket), answer.result, answer.file_nbytes};
  }

  GPUFS_DEVICE const std::byte* bytes_of(kept_bytes kept) const { return rings_.payload(slot_of(kept)); }
  // One lane calls, after all lanes of the group have read the bytes and met in a sync.
  GPUFS_DEVICE void give_back(kept_bytes kept) const { rings_.give_back(slot_of(kept)); }

 private:
  GPUFS_DEVICE static kept_bytes kept_in(transport::ticket t) { return {t.index, t.number}; }
  GPUFS_DEVICE static transport::ticket slot_of(kept_bytes kept) { return {kept.low, kept.high}; }

  GPUFS_DEVICE int timed_out() const {
    simt::atomic_ref<std::uint64_t>(timeouts_).add_relaxed(1);
    return -ETIMEDOUT;
  }

  // 0, a negative errno of the host's, or -ETIMEDOUT.
  GPUFS_DEVICE int call(transport::ticket ticket, const transport::request& ask, transport::reply& answer,
                        const simt::deadline& until) const {
    if (rings_.call(ticket, ask, answer, until) != 0) return timed_out();
    rings_.give_back(ticket);
    return answer.result < 0 ? static_cast<int>(answer.result) : 0;
  }
  // The same; where there is no error, the slot remains the caller's.
  GPUFS_DEVICE int call_and_keep(transport::ticket ticket, const transport::request& ask, transport::reply& answer,
                                 const simt::deadline& until) const {
    if (rings_.call(ticket, ask, answer, until) != 0) return timed_out();
    if (answer.result >= 0) return 0;
    rings_.give_back(ticket);
    return static_cast<int>(answer.result);
  }
  GPUFS_DEVICE int ask_about_file(transport::opcode op, std::uint32_t id, std::int64_t offset, std::uint32_t flags) const {
    const simt::deadline until(timeout_ns_);
    const transport::ticket ticket = rings_.take_to_write(start_, until);
    if (ticket.index == transport::no_slot) return timed_out();
    transport::request ask{};
    ask.op = op;
    ask.handle = id;
    ask.offset = offset;
    ask.flags = flags;
    transport::reply answer;
    return call(ticket, ask, answer, until);
  }
  // `ask` has all but the paths. Where `kept` is given and there is no error, the slot is the caller's.
  GPUFS_DEVICE int ask_about_path(transport::request& ask, transport::reply& answer, const char* path, const char* second = nullptr,
                                  transport::ticket* kept = nullptr) const {
    answer = {};
    const bool has_second = ask.op == transport::opcode::rename;
    const std::int32_t length = length_of(path), second_length = has_second ? length_of(second) : 0;
    if (length < 0) return length;
    if (second_length < 0) return second_length;
    const simt::deadline until(timeout_ns_);
    const transport::ticket ticket = rings_.take(start_, until);
    if (ticket.index == transport::no_slot) return timed_out();
    copy_path(rings_.payload(ticket), path, static_cast<std::uint32_t>(length));
    ask.nbytes = static_cast<std::uint32_t>(length);
    if (has_second) {
      copy_path(rings_.behind_payload(ticket), second, static_cast<std::uint32_t>(second_length));
      ask.handle = static_cast<std::uint32_t>(second_length);
    }
    if (kept == nullptr) return call(ticket, ask, answer, until);
    *kept = ticket;
    return call_and_keep(ticket, ask, answer, until);
  }

  template <class Path>
  GPUFS_DEVICE static void copy_path(std::byte* payload, const Path& path, std::uint32_t nbytes) {
    // Eight bytes a store: the payload lies behind the bus.
    for (std::uint32_t i = 0; i < nbytes; i += 8) {
      std::uint64_t word = 0;
      for (std::uint32_t k = 0; k < 8 && i + k < nbytes; ++k) {
        word |= static_cast<std::uint64_t>(static_cast<unsigned char>(path[i + k])) << (8 * k);
      }
      *reinterpret_cast<std::uint64_t*>(payload + i) = word;
    }
  }

  const Requests rings_;
  std::uint64_t timeout_ns_;
  std::uint64_t& timeouts_;
  std::uint32_t start_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::names
