// SPDX-License-Identifier: Apache-2.0
// The kernel of basic_players, and what starts it.
#pragma once
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

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
    with_group(me.kind, [&](auto group) { run(group, me.group); });
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
    page_handle<const std::byte>& kept = state.pages[what.page];
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
        kept = map_page(group, f, what.offset).release();
        return kept.number < 0 ? kept.number : give_bytes(group, kept, what);
      case op_kind::look:
        return give_bytes(group, kept, what);
      case op_kind::unmap: {
        mapped_page mapped(kept);
        const int error = unmap_page(group, std::move(mapped));
        kept = mapped.release();
        return error;
      }
      case op_kind::unmap_copy:
        return unmap_page(group, mapped_page(kept));
      case op_kind::fstat: {
        const file_status status = fstat(group, f);
        if (status.error == 0 && group.leader()) memcpy(out + what.out, &status, sizeof status);
        return status.error != 0 ? status.error : status.nbytes;
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
  GPUFS_DEVICE_COLD std::int64_t call_to_write(Group group, page_handle<std::byte>& kept, const file& f, const op& what) const {
    mapped_page mapped(kept);
    const std::int64_t result = call_to_write(group, mapped, f, what);
    kept = mapped.release();
    return result;
  }
  template <class Group>
  GPUFS_DEVICE std::int64_t call_to_write(Group group, mapped_page<std::byte>& mapped, const file& f, const op& what) const {
    const std::byte* src = what.path == null_address ? nullptr : in + what.path;
    if (what.kind == op_kind::pwrite) return pwrite(group, f, src, what.nbytes, what.offset);
    if (what.kind == op_kind::append) return append(group, f, src, what.nbytes);
    if (what.kind == op_kind::fsync) return fsync(group, f, static_cast<durability>(what.flags));
    if (what.kind == op_kind::ftruncate) return ftruncate(group, f, what.offset);
    if (what.kind == op_kind::msync) return msync(group, mapped, static_cast<durability>(what.flags));
    if (what.kind == op_kind::unmap_write) return unmap_page(group, std::move(mapped));
    if (what.kind == op_kind::map_write) {
      mapped = map_page<std::byte>(group, f, what.offset);
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
  GPUFS_DEVICE std::int64_t give_bytes(Group group, const page_handle<const std::byte>& mapped, const op& what) const {
    const std::uint64_t n = mapped.nbytes < what.nbytes ? mapped.nbytes : what.nbytes;
    for (std::uint64_t i = group.rank(); i < n; i += group.size()) out[what.out + i] = mapped.data[i];
    return mapped.nbytes;
  }
};

inline std::vector<std::vector<outcome>> sort_out(const std::vector<script>& scripts, const std::vector<std::int64_t>& results,
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

template <class Mount>
std::vector<std::vector<outcome>> basic_players<Mount>::run(const std::vector<script>& scripts, std::barrier<>* together) {
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
               script_runner<Mount>{fs_, members_.get(), first_op_memory.get(), op_memory.get(), path_memory.get(), in_memory.get(),
                                    out.get(), results.get(), states_.get(), disagreements.get()});
  mine.pass();
  EXPECT_EQ(disagreements.read_one(), 0u) << "lanes of one group got different results";
  return sort_out(scripts, results.read(), out.read());
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
