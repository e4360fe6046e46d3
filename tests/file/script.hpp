// SPDX-License-Identifier: Apache-2.0
// File calls as data: the host writes what each group of threads shall call, a kernel calls it, and the host sees every result and
// every byte. Open files and mapped pages stay with the group from one run to the next.
#pragma once
#include <barrier>
#include <cstring>
#include <map>
#include <optional>
#include <ostream>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

enum class group_kind : std::uint32_t { thread, tile8, warp, block };

enum class op_kind : std::uint32_t {
  open,         // -> file number or error
  close,        // -> 0 or error
  pread,        // -> bytes or error; the bytes
  map,          // -> bytes from the offset to the end of page or file, or error; the bytes
  look,         // -> the bytes of a page that was mapped before
  unmap,        // -> 0 or error
  unmap_copy,   // the same through a copy of the handle, so that ours still seems mapped
  fstat,        // -> size or error; the file_status
  use_number,   // takes `offset` for the file's number
  pwrite,       // -> bytes or error
  append,       // -> offset or error
  fsync,        // -> 0 or error
  ftruncate,    // -> 0 or error
  map_write,    // maps the page for writing -> bytes from the offset to the end of page or file, or error
  store,        // stores the input bytes into the mapped page -> 0, or -EINVAL when none is mapped
  msync,        // -> 0 or error
  unmap_write,  // -> 0 or error
  prefetch,     // -> 0 or error
  advise,       // -> 0 or error
  read_async,   // -> 0; its bytes are there after `wait`
  ready,        // -> 1 or 0; asks again for so many nanoseconds
  wait,         // -> bytes or error
};

struct op {
  op_kind kind;
  std::uint32_t file;  // which of the group's files
  std::uint32_t page;  // which of the group's mapped pages
  std::int32_t flags;  // of open; of fsync, how far; of advise, what
  std::int64_t offset;
  std::uint64_t nbytes;
  std::uint64_t path;  // in the paths' memory; of pwrite and append, in the input memory
  std::uint64_t out;   // in the output memory
};
inline constexpr std::uint64_t null_address = ~std::uint64_t{0};
inline constexpr std::byte untouched{0xa5};  // what output memory holds before

inline constexpr unsigned files_per_group = 4, pages_per_group = 8, reads_per_group = 4;

struct group_state {
  std::int32_t numbers[files_per_group];
  page_handle<const std::byte> pages[pages_per_group];
  page_handle<std::byte> writable[pages_per_group];
  pending_read pending[reads_per_group];
};

// Where a thread's group is: which kind, and which of the launch's groups.
struct membership {
  group_kind kind;
  std::uint32_t group;
};

// Calls work(group) with the calling thread's group of that kind.
template <class Work>
GPUFS_DEVICE void with_group(group_kind kind, Work work) {
  switch (kind) {
    case group_kind::thread:
      return work(this_thread());
    case group_kind::tile8:
      return work(this_tile<8>());
    case group_kind::warp:
      return work(this_warp());
    case group_kind::block:
      return work(this_block());
  }
}

// Tests that read mapped files, or write them in place, register them before.
inline void prepare_for_memcheck(const mount& m, const std::string& path, int flags = O_RDONLY) {
  if (under_memcheck()) m.prepare(path, flags);
}

// Which threads form groups: for each block either one block group, or a kind for each of its warps.
struct formation {
  unsigned grid = 1, block = 32;
  simt::cpu_schedule schedule = {};
  std::vector<group_kind> warps = {};  // grid * block / 32 kinds; `block` for all warps of a block or none. Empty: all `all`
  group_kind all = group_kind::warp;

  std::vector<membership> members() const {
    std::vector<membership> out;
    std::uint32_t groups = 0;
    for (unsigned w = 0; w < grid * block / 32; ++w) {
      const group_kind kind = warps.empty() ? all : warps[w];
      const unsigned size = kind == group_kind::thread ? 1 : kind == group_kind::tile8 ? 8 : 32;
      const bool joins = kind == group_kind::block && w % (block / 32) != 0;
      for (unsigned lane = 0; lane < 32; ++lane) out.push_back({kind, joins ? groups - 1 : groups + lane / size});
      if (!joins) groups += 32 / size;
    }
    return out;
  }
  std::uint32_t ngroups() const { return members().back().group + 1; }
};

// What one group shall call. Each call returns its index, by which the result is found.
class script {
 public:
  std::size_t open(unsigned file, const std::optional<std::string>& path, int flags = O_RDONLY) {
    op o = make(op_kind::open, file);
    o.flags = flags;
    o.path = null_address;
    if (path) {
      o.path = paths_.size();
      paths_.append(*path);
      paths_.push_back('\0');
    }
    return add(o, 0);
  }
  std::size_t close(unsigned file) { return add(make(op_kind::close, file), 0); }
  std::size_t pread(unsigned file, std::uint64_t nbytes, std::int64_t offset) { return pread(file, nbytes, offset, nbytes); }
  // Asks for nbytes, but has room for the first `room` of them only (a request that must fail, or ends at the end of the file).
  std::size_t pread(unsigned file, std::uint64_t nbytes, std::int64_t offset, std::uint64_t room) {
    op o = make(op_kind::pread, file);
    o.nbytes = nbytes;
    o.offset = offset;
    return add(o, room);
  }
  std::size_t pread_to_null(unsigned file, std::uint64_t nbytes, std::int64_t offset) {
    op o = make(op_kind::pread, file);
    o.nbytes = nbytes;
    o.offset = offset;
    o.out = null_address;
    return add(o, 0);
  }
  std::size_t map(unsigned file, unsigned page, std::int64_t offset, std::uint64_t nbytes) {
    op o = make(op_kind::map, file);
    o.page = page;
    o.offset = offset;
    o.nbytes = nbytes;
    return add(o, nbytes);
  }
  std::size_t look(unsigned page, std::uint64_t nbytes) {
    op o = make(op_kind::look, 0);
    o.page = page;
    o.nbytes = nbytes;
    return add(o, nbytes);
  }
  std::size_t unmap(unsigned page) { return paged(op_kind::unmap, page); }
  std::size_t unmap_copy(unsigned page) { return paged(op_kind::unmap_copy, page); }
  std::size_t fstat(unsigned file) { return add(make(op_kind::fstat, file), sizeof(file_status)); }
  std::size_t use_number(unsigned file, std::int32_t number) {
    op o = make(op_kind::use_number, file);
    o.offset = number;
    return add(o, 0);
  }
  std::size_t pwrite(unsigned file, const std::vector<std::byte>& bytes, std::int64_t offset) {
    return put(op_kind::pwrite, file, bytes, offset);
  }
  std::size_t append(unsigned file, const std::vector<std::byte>& bytes) { return put(op_kind::append, file, bytes, 0); }
  std::size_t map_write(unsigned file, unsigned page, std::int64_t offset) {
    op o = make(op_kind::map_write, file);
    o.page = page;
    o.offset = offset;
    return add(o, 0);
  }
  // `at`: from the byte that was mapped.
  std::size_t store(unsigned page, const std::vector<std::byte>& bytes, std::int64_t at) {
    const std::size_t i = put(op_kind::store, 0, bytes, at);
    ops_[i].page = page;
    return i;
  }
  std::size_t msync(unsigned page, durability how = durability::stable) {
    const std::size_t i = paged(op_kind::msync, page);
    ops_[i].flags = static_cast<std::int32_t>(how);
    return i;
  }
  std::size_t unmap_write(unsigned page) { return paged(op_kind::unmap_write, page); }
  // nbytes of nothing, or from nowhere: calls that must fail.
  std::size_t pwrite_from_null(unsigned file, std::uint64_t nbytes, std::int64_t offset) {
    op o = make(op_kind::pwrite, file);
    o.path = null_address;
    o.nbytes = nbytes;
    o.offset = offset;
    return add(o, 0);
  }
  std::size_t fsync(unsigned file, durability how = durability::stable) {
    op o = make(op_kind::fsync, file);
    o.flags = static_cast<std::int32_t>(how);
    return add(o, 0);
  }
  std::size_t ftruncate(unsigned file, std::int64_t nbytes) {
    op o = make(op_kind::ftruncate, file);
    o.offset = nbytes;
    return add(o, 0);
  }
  std::size_t prefetch(unsigned file, std::int64_t offset, std::uint64_t nbytes) {
    op o = make(op_kind::prefetch, file);
    o.nbytes = nbytes;
    o.offset = offset;
    return add(o, 0);
  }
  std::size_t advise(unsigned file, std::int64_t offset, std::uint64_t nbytes, advice what) {
    op o = make(op_kind::advise, file);
    o.nbytes = nbytes;
    o.offset = offset;
    o.flags = static_cast<std::int32_t>(what);
    return add(o, 0);
  }
  // What `wait` with the same number reads becomes this call's bytes.
  std::size_t read_async(unsigned file, unsigned read, std::uint64_t nbytes, std::int64_t offset) {
    op o = make(op_kind::read_async, file);
    o.page = read;
    o.nbytes = nbytes;
    o.offset = offset;
    return add(o, nbytes);
  }
  std::size_t ready(unsigned read, std::chrono::nanoseconds within = {}) {
    const std::size_t i = paged(op_kind::ready, read);
    ops_[i].nbytes = static_cast<std::uint64_t>(within.count());
    return i;
  }
  std::size_t wait(unsigned read) { return paged(op_kind::wait, read); }
  void pad(std::uint64_t nbytes) { out_nbytes_ += nbytes; }  // the next output is aligned otherwise

  const std::vector<op>& ops() const { return ops_; }
  const std::string& paths() const { return paths_; }
  const std::vector<std::byte>& in() const { return in_; }
  std::uint64_t out_nbytes() const { return out_nbytes_; }
  std::uint64_t room(std::size_t i) const { return rooms_[i]; }

 private:
  static op make(op_kind kind, unsigned file) {
    op o{};
    o.kind = kind;
    o.file = file;
    return o;
  }
  std::size_t put(op_kind kind, unsigned file, const std::vector<std::byte>& bytes, std::int64_t offset) {
    op o = make(kind, file);
    o.nbytes = bytes.size();
    o.offset = offset;
    o.path = in_.size();
    in_.insert(in_.end(), bytes.begin(), bytes.end());
    return add(o, 0);
  }
  std::size_t paged(op_kind kind, unsigned page) {
    op o = make(kind, 0);
    o.page = page;
    return add(o, 0);
  }
  std::size_t add(op o, std::uint64_t room) {
    if (o.out != null_address) o.out = out_nbytes_;
    out_nbytes_ += room;
    ops_.push_back(o);
    rooms_.push_back(room);
    return ops_.size() - 1;
  }

  std::vector<op> ops_;
  std::vector<std::uint64_t> rooms_;
  std::string paths_;
  std::vector<std::byte> in_;
  std::uint64_t out_nbytes_ = 0;
};

// What came of one call.
struct outcome {
  std::int64_t value = 0;
  std::vector<std::byte> bytes;  // all the room it had

  file_status status() const {
    file_status s{};
    if (bytes.size() == sizeof s) std::memcpy(&s, bytes.data(), sizeof s);
    return s;
  }
};

// The groups of a formation on one mount, with their open files and mapped pages. Mount: mount_ref, or a reference to a mount of
// bench/'s designs, for which script_players.hpp is included, too.
template <class Mount>
class basic_players {
 public:
  basic_players(const Mount& fs, const formation& how)
      : fs_(fs), how_(how), members_(how.members()), states_(std::vector<group_state>(how.ngroups())), ngroups_(how.ngroups()) {}

  std::uint32_t size() const { return ngroups_; }
  simt::cpu_schedule& schedule() { return how_.schedule; }  // of the runs to come

  // Runs scripts[g] in group g, all at once. outcomes[g][i] is what came of call i.
  // With others' kernels at once: each run brings `together` along, and none allocates or frees while another's kernel runs, since
  // CUDA then waits for that kernel, and keeps the service from registering what it has opened.
  std::vector<std::vector<outcome>> run(const std::vector<script>& scripts, std::barrier<>* together = nullptr);
  // The same script in every group.
  std::vector<std::vector<outcome>> run_all(const script& s) { return run(std::vector<script>(ngroups_, s)); }
  // In the only group.
  std::vector<outcome> run(const script& s) { return run_all(s).at(0); }

 private:
  Mount fs_;
  formation how_;
  device_buffer<membership> members_;
  device_buffer<group_state> states_;
  std::uint32_t ngroups_;
};

// Its kernel has all calls for each kind of group, and takes a compiler long: it is compiled once, in script.cpp.
using players = basic_players<mount_ref>;
extern template class basic_players<mount_ref>;

// A small mount that may write.
inline mount_options writing_options(std::uint32_t page_nbytes, std::uint32_t nframes) {
  mount_options o;
  o.writable = true;
  o.page_nbytes = page_nbytes;
  o.cache_nbytes = std::uint64_t{nframes} * page_nbytes;
  o.max_open_files = 64;
  o.internals.request_rings = 4;
  return o;
}

// How many of the first `count` bytes are not content(seed) from `offset` on.
inline std::size_t wrong_bytes(const outcome& got, std::size_t count, std::uint64_t seed, std::uint64_t offset) {
  if (got.bytes.size() < count) return count;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += got.bytes[i] != content_byte(seed, offset + i);
  return wrong;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
