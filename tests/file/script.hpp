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
  unmap_copy,   // the same through a copy of the page, so that ours still seems mapped
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
  page pages[pages_per_group];
  writable_page writable[pages_per_group];
  pending_read pending[reads_per_group];
};

// Where a thread's group is: which kind, and which of the launch's groups.
struct membership {
  group_kind kind;
  std::uint32_t group;
};

template <class Mount>
struct script_runner {
  Mount fs;
  const membership* members;
  const std::uint32_t* first_op;  // per group, and the end
  const op* ops;
  const char* paths;
  const std::byte* in;
  std::byte* out;
  std::int64_t* results;
  group_state* states;
  std::uint32_t* disagreements;

  GPUFS_DEVICE void operator()() const {
    const membership& me = members[simt::block_rank() * simt::block_size() + simt::thread_rank()];
    switch (me.kind) {
      case group_kind::thread:
        return run(this_thread(), me.group);
      case group_kind::tile8:
        return run(this_tile<8>(), me.group);
      case group_kind::warp:
        return run(this_warp(), me.group);
      case group_kind::block:
        return run(this_block(), me.group);
    }
  }

  template <class Group>
  GPUFS_DEVICE_COLD void run(Group group, std::uint32_t index) const {
    group_state state = states[index];
    for (std::uint32_t i = first_op[index]; i < first_op[index + 1]; ++i) {
      const std::int64_t result = call(group, state, ops[i]);
      if (group.broadcast(result) != result) {
        simt::atomic_ref<std::uint32_t>(*disagreements).fetch_add(1, std::memory_order_relaxed);
      }
      if (group.leader()) results[i] = result;
    }
    group.sync();
    if (group.leader()) states[index] = state;
  }

  template <class Group>
  GPUFS_DEVICE_COLD std::int64_t call(Group group, group_state& state, const op& what) const {
    std::int32_t& number = state.numbers[what.file];
    page& mapped = state.pages[what.page];
    const decltype(open(group, fs, "")) f(fs, file_number{number});
    switch (what.kind) {
      case op_kind::open:
        number = static_cast<std::int32_t>(
            open(group, fs, what.path == null_address ? nullptr : paths + what.path, what.flags).number());
        return number;
      case op_kind::close:
        return close(group, f);
      case op_kind::pread:
        return pread(group, f, what.out == null_address ? nullptr : out + what.out, what.nbytes, what.offset);
      case op_kind::map:
        mapped = map_page(group, f, what.offset);
        return mapped.error() != 0 ? mapped.error() : give_bytes(group, mapped, what);
      case op_kind::look:
        return give_bytes(group, mapped, what);
      case op_kind::unmap:
        return unmap_page(group, mapped);
      case op_kind::unmap_copy: {
        page copy = mapped;
        return unmap_page(group, copy);
      }
      case op_kind::fstat: {
        if (what.out == null_address) return fstat(group, f, nullptr);
        file_status status{};
        const int error = fstat(group, f, &status);
        if (error == 0 && group.leader()) memcpy(out + what.out, &status, sizeof status);
        return error != 0 ? error : status.nbytes;
      }
      case op_kind::use_number:
        number = static_cast<std::int32_t>(what.offset);
        return number;
      case op_kind::pwrite:
      case op_kind::append:
      case op_kind::fsync:
      case op_kind::ftruncate:
      case op_kind::map_write:
      case op_kind::store:
      case op_kind::msync:
      case op_kind::unmap_write:
        if constexpr (std::is_same_v<Mount, mount_ref>) return call_to_write(group, state.writable[what.page], f, what);
        break;
      case op_kind::prefetch:
      case op_kind::advise:
      case op_kind::read_async:
      case op_kind::ready:
      case op_kind::wait:
        if constexpr (std::is_same_v<Mount, mount_ref>)
          return call_ahead(group, state.pending[what.page % reads_per_group], f, what);
    }
    return -ENOSYS;
  }

  template <class Group>
  GPUFS_DEVICE_COLD std::int64_t call_to_write(Group group, writable_page& mapped, const file& f, const op& what) const {
    const std::byte* src = what.path == null_address ? nullptr : in + what.path;
    if (what.kind == op_kind::pwrite) return pwrite(group, f, src, what.nbytes, what.offset);
    if (what.kind == op_kind::append) return append(group, f, src, what.nbytes);
    if (what.kind == op_kind::fsync) return fsync(group, f, static_cast<durability>(what.flags));
    if (what.kind == op_kind::ftruncate) return ftruncate(group, f, what.offset);
    if (what.kind == op_kind::msync) return msync(group, mapped, static_cast<durability>(what.flags));
    if (what.kind == op_kind::unmap_write) return unmap_page(group, mapped);
    if (what.kind == op_kind::map_write) {
      mapped = map_page_to_write(group, f, what.offset);
      return mapped.error() != 0 ? mapped.error() : static_cast<std::int64_t>(mapped.nbytes());
    }
    if (mapped.data() == nullptr) return -EINVAL;
    for (std::uint64_t i = group.rank(); i < what.nbytes; i += group.size()) mapped.data()[what.offset + i] = src[i];
    group.sync();
    return 0;
  }

  template <class Group>
  GPUFS_DEVICE_COLD std::int64_t call_ahead(Group group, pending_read& pending, const file& f, const op& what) const {
    if (what.kind == op_kind::prefetch) return prefetch(group, f, what.offset, what.nbytes);
    if (what.kind == op_kind::advise) return advise(group, f, what.offset, what.nbytes, static_cast<advice>(what.flags));
    if (what.kind == op_kind::wait) return wait(group, pending);
    if (what.kind == op_kind::read_async) {
      pending = read_async(group, f, out + what.out, what.nbytes, what.offset);
      return 0;
    }
    const simt::deadline until(what.nbytes);
    simt::backoff pause;
    for (;;) {
      const bool is_ready = ready(group, pending);
      if (group.broadcast(is_ready || until.expired())) return is_ready;
      pause();
    }
  }

  template <class Group>
  GPUFS_DEVICE std::int64_t give_bytes(Group group, const page& mapped, const op& what) const {
    const std::uint64_t n = mapped.nbytes() < what.nbytes ? mapped.nbytes() : what.nbytes;
    for (std::uint64_t i = group.rank(); i < n; i += group.size()) out[what.out + i] = mapped.data()[i];
    return mapped.nbytes();
  }
};

// compute-sanitizer's memcheck takes host memory that was registered while a kernel runs for out of bounds: tests that read
// mapped files, or write them in place, register them before.
inline bool under_memcheck() { return under_compute_sanitizer() && std::string(std::getenv("GPUFS_SANITIZER")) == "memcheck"; }
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
  std::size_t fstat_to_null(unsigned file) {
    op o = make(op_kind::fstat, file);
    o.out = null_address;
    return add(o, 0);
  }
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

// The groups of a formation on one mount, with their open files and mapped pages.
template <class Mount>
class basic_players {
 public:
  basic_players(const Mount& fs, const formation& how)
      : fs_(fs), how_(how), members_(how.members()), states_(how.ngroups()), ngroups_(how.ngroups()) {}

  std::uint32_t size() const { return ngroups_; }
  simt::cpu_schedule& schedule() { return how_.schedule; }  // of the runs to come

  // Runs scripts[g] in group g, all at once. outcomes[g][i] is what came of call i.
  // With others' kernels at once: each run brings `together` along, and none allocates or frees while another's kernel runs, since
  // CUDA then waits for that kernel, and keeps the service from registering what it has opened.
  std::vector<std::vector<outcome>> run(const std::vector<script>& scripts, std::barrier<>* together = nullptr) {
    struct turn {
      std::barrier<>* all;
      int left = 2;  // before the kernel, and after it
      void pass() {
        if (all != nullptr) all->arrive_and_wait();
        --left;
      }
      ~turn() {
        if (all != nullptr && left != 0) all->arrive_and_drop();
      }
    } mine{together};
    std::vector<op> ops;
    std::vector<std::uint32_t> first_op;
    std::string paths;
    std::vector<std::byte> in;
    std::uint64_t out_nbytes = 0;
    for (const script& s : scripts) {
      first_op.push_back(static_cast<std::uint32_t>(ops.size()));
      for (op o : s.ops()) {
        if (o.path != null_address) o.path += o.kind == op_kind::open ? paths.size() : in.size();
        if (o.out != null_address) o.out += out_nbytes;
        ops.push_back(o);
      }
      paths += s.paths();
      in.insert(in.end(), s.in().begin(), s.in().end());
      out_nbytes += s.out_nbytes();
    }
    first_op.push_back(static_cast<std::uint32_t>(ops.size()));
    paths.push_back('\0');

    const device_buffer<std::uint32_t> first_op_memory(first_op);
    const device_buffer<op> op_memory(ops);
    const device_buffer<char> path_memory(std::vector<char>(paths.begin(), paths.end()));
    const device_buffer<std::byte> in_memory(in);
    const device_buffer<std::byte> out(std::vector<std::byte>(out_nbytes, untouched));
    const device_buffer<std::int64_t> results(ops.size());
    const device_buffer<std::uint32_t> disagreements(1);
    mine.pass();
    simt::launch({.grid = how_.grid, .block = how_.block, .schedule = how_.schedule},
                 script_runner<Mount>{fs_, members_.get(), first_op_memory.get(), op_memory.get(), path_memory.get(),
                                      in_memory.get(), out.get(), results.get(), states_.get(), disagreements.get()});
    mine.pass();
    EXPECT_EQ(disagreements.read_one(), 0u) << "lanes of one group got different results";
    return sort_out(scripts, results.read(), out.read());
  }

  // The same script in every group.
  std::vector<std::vector<outcome>> run_all(const script& s) { return run(std::vector<script>(ngroups_, s)); }
  // In the only group.
  std::vector<outcome> run(const script& s) { return run_all(s).at(0); }

 private:
  static std::vector<std::vector<outcome>> sort_out(const std::vector<script>& scripts, const std::vector<std::int64_t>& results,
                                                    const std::vector<std::byte>& out) {
    std::vector<std::vector<outcome>> all;
    std::size_t k = 0;
    std::uint64_t base = 0;
    for (const script& s : scripts) {
      std::vector<outcome>& mine = all.emplace_back();
      for (std::size_t i = 0; i < s.ops().size(); ++i, ++k) {
        outcome& o = mine.emplace_back();
        o.value = results[k];
        if (s.room(i) == 0) continue;
        const std::byte* bytes = out.data() + base + s.ops()[i].out;
        o.bytes.assign(bytes, bytes + s.room(i));
      }
      base += s.out_nbytes();
    }
    return all;
  }

  Mount fs_;
  formation how_;
  device_buffer<membership> members_;
  device_buffer<group_state> states_;
  std::uint32_t ngroups_;
};

using players = basic_players<mount_ref>;

// A small mount that may write.
inline mount_options writing_options(std::uint32_t page_nbytes, std::uint32_t nframes) {
  mount_options o;
  o.writable = true;
  o.page_nbytes = page_nbytes;
  o.cache_nbytes = std::uint64_t{nframes} * page_nbytes;
  o.max_open_files = 64;
  o.request_rings = 4;
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
