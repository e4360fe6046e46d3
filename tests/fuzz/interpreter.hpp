// SPDX-License-Identifier: Apache-2.0
// The kernel: each group makes the calls that it finds in device memory, and notes of each what came of it, and when it began and
// ended by a clock that all groups share. What one's clock says is over before another's begins did happen before it.
#pragma once
#include <cstring>

#include "fuzz/by_pointer.hpp"
#include "fuzz/program.hpp"
#include "gpufs/par/gather.hpp"
#include "gpufs/par/scatter.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

inline constexpr std::int64_t skipped = -1'000'000;  // the handle was not open, or open already

struct device_call {
  verb what;
  std::uint32_t mount, handle, count;
  std::int32_t flags;
  std::uint64_t path, second;  // in the texts
  std::uint64_t begin, nbytes, id;
  std::uint64_t in, out;  // in the bytes that go in and come out
  row_layout rows;        // of a batch
  std::uint64_t nplaces;  // whose numbers lie before what goes in
};

struct device_result {
  std::int64_t value;
  std::uint64_t begin, end;  // by the clock
  std::uint64_t inode;
  std::int64_t nbytes;  // of a status; of a batch the place that failed
  std::uint32_t mode;
  std::int32_t number;
};

struct group_handles {
  std::int32_t numbers[handles_per_group];
  std::uint32_t mounts[handles_per_group];
};

struct interpreter {
  const mount_ref* mounts;
  const membership* members;
  const std::uint32_t* first_call;  // per group of the formation, and the end
  const device_call* all;
  const char* texts;
  const std::byte* in;
  std::byte* out;
  device_result* results;
  group_handles* handles;
  const char** names;  // as many as calls, for open_all
  file_number* numbers;
  std::uint64_t* clock;

  GPUFS_DEVICE void operator()() const {
    const membership& me = members[simt::block_rank() * simt::block_size() + simt::thread_rank()];
    with_group(me.kind, [&](auto group) { run(group, me.group); });
  }

 private:
  // Acquire and release: what ended before a call began is seen by it.
  template <class Group>
  GPUFS_DEVICE std::uint64_t now(Group group) const {
    group.sync();
    std::uint64_t time = 0;
    if (group.leader()) time = simt::atomic_ref<std::uint64_t>(*clock).fetch_add(1, std::memory_order_acq_rel);
    return group.broadcast(time);
  }

  template <class Group>
  GPUFS_DEVICE void run(Group group, std::uint32_t index) const {
    if (first_call[index] == first_call[index + 1]) return;
    for (std::uint32_t i = first_call[index]; i < first_call[index + 1];) i += step(group, handles[index], i);
  }

  // Makes the i-th call, and `count` of them where it is one for many. How many it was.
  template <class Group>
  GPUFS_DEVICE_COLD std::uint32_t step(Group group, group_handles& mine, std::uint32_t i) const {
    const device_call& c = all[i];
    const bool many = c.what == verb::open_all || c.what == verb::close_all;
    const std::uint32_t n = many ? c.count : 1;
    const std::uint64_t begin = now(group);
    device_result r{};
    if (c.what == verb::open_all) {
      open_many(group, mine, i);
    } else if (c.what == verb::close_all) {
      close_many(group, mine, i);
    } else {
      r = make(group, mine, c, i);
    }
    const std::uint64_t end = now(group);
    if (group.leader()) {
      for (std::uint32_t k = 0; k < n; ++k) {
        device_result& to = results[i + k];
        if (!many) to = r;
        to.begin = begin;
        to.end = end;
      }
    }
    group.sync();
    return n;
  }

  template <class Group>
  GPUFS_DEVICE device_result make(Group group, group_handles& mine, const device_call& c, std::uint32_t i) const {
    device_result r{};
    const std::int32_t number = mine.numbers[c.handle];
    group.sync();  // all have read it
    if (names_no_handle(c.what)) {
      by_path(group, c, r);
      return r;
    }
    if ((number >= 0) == (c.what == verb::open)) {
      r.value = skipped;
      return r;
    }
    if (c.what == verb::open) {
      open_one(group, mine, c, r);
      return r;
    }
    const file f(mounts[mine.mounts[c.handle]], file_number{number});
    if (c.what == verb::close) {
      r.value = close(group, f);
      if (group.leader()) mine.numbers[c.handle] = -EBADF;
      group.sync();
    } else {
      by_handle(group, f, c, r, &results[i].mode);
    }
    return r;
  }
  GPUFS_DEVICE static bool names_no_handle(verb v) { return v >= verb::stat; }

  template <class Group>
  GPUFS_DEVICE void note_status(Group group, const file& f, device_result& r) const {
    const file_status status = fstat(group, f);
    const int error = status.error;
    if (error != 0) r.value = error;
    r.inode = status.inode;
    r.nbytes = status.nbytes;
    r.mode = status.mode;
  }

  template <class Group>
  GPUFS_DEVICE void open_one(Group group, group_handles& mine, const device_call& c, device_result& r) const {
    const file f = open(group, mounts[c.mount], texts + c.path, c.flags);
    r.value = f.error();
    r.number = static_cast<std::int32_t>(f.number());
    if (f.error() == 0) {
      note_status(group, f, r);
      if (group.leader()) {
        mine.numbers[c.handle] = r.number;
        mine.mounts[c.handle] = c.mount;
      }
    }
    group.sync();
  }

  template <class Group>
  GPUFS_DEVICE void open_many(Group group, group_handles& mine, std::uint32_t first) const {
    const device_call& c = all[first];
    bool any = false;
    for (std::uint32_t k = 0; k < c.count; ++k) any |= mine.numbers[c.handle + k] >= 0;
    group.sync();
    if (any) {
      for (std::uint32_t k = group.rank(); k < c.count; k += group.size()) results[first + k].value = skipped;
      return;
    }
    for (std::uint32_t k = group.rank(); k < c.count; k += group.size()) names[first + k] = texts + all[first + k].second;
    group.sync();
    open_all(group, mounts[c.mount], texts + c.path, names + first, c.count, c.flags, numbers + first);
    group.sync();
    for (std::uint32_t k = 0; k < c.count; ++k) {
      device_result r{};
      const file f(mounts[c.mount], numbers[first + k]);
      r.value = f.error();
      r.number = static_cast<std::int32_t>(f.number());
      if (r.value == 0) note_status(group, f, r);
      if (group.leader()) {
        results[first + k] = r;
        if (f.error() == 0) {
          mine.numbers[c.handle + k] = r.number;
          mine.mounts[c.handle + k] = c.mount;
        }
      }
      group.sync();
    }
  }

  template <class Group>
  GPUFS_DEVICE void close_many(Group group, group_handles& mine, std::uint32_t first) const {
    const device_call& c = all[first];
    for (std::uint32_t k = group.rank(); k < c.count; k += group.size()) {
      const std::int32_t number = mine.numbers[c.handle + k];
      numbers[first + k] = file_number{number};
      results[first + k].value = number < 0 ? skipped : 0;
    }
    group.sync();
    close_all(group, mounts[c.mount], numbers + first, c.count, reinterpret_cast<int*>(names + first));
    group.sync();
    for (std::uint32_t k = group.rank(); k < c.count; k += group.size()) {
      if (results[first + k].value != skipped) results[first + k].value = reinterpret_cast<int*>(names + first)[k];
      mine.numbers[c.handle + k] = -EBADF;
    }
    group.sync();
  }

  template <class Group>
  GPUFS_DEVICE_COLD void by_path(Group group, const device_call& c, device_result& r) const {
    const mount_ref& fs = mounts[c.mount];
    const char *path = texts + c.path, *second = texts + c.second;
    if (c.what == verb::unlink) {
      r.value = unlink(group, fs, path);
    } else if (c.what == verb::rmdir) {
      r.value = rmdir(group, fs, path);
    } else if (c.what == verb::mkdir) {
      r.value = mkdir(group, fs, path);
    } else if (c.what == verb::rename) {
      r.value = rename(group, fs, path, second);
    } else if (c.what == verb::stat) {
      const path_status status = stat(group, fs, path);
      r.value = status.error;
      r.inode = status.inode;
      r.nbytes = status.nbytes;
      r.mode = status.mode;
    } else {
      // Few entries a call, so that it takes several; a call's bytes follow those before.
      directory_part part{};
      std::uint64_t done = 0;
      constexpr std::uint32_t at_once = 600;
      while (done + at_once <= c.nbytes) {
        part = read_directory(group, fs, path, out + c.out + done, at_once, part.position);
        if (part.nbytes <= 0) break;
        done += static_cast<std::uint64_t>(part.nbytes);
      }
      r.value = part.nbytes < 0 ? part.nbytes : static_cast<std::int64_t>(done);
    }
  }

  template <class Group>
  GPUFS_DEVICE_COLD void by_handle(Group group, const file& f, const device_call& c, device_result& r, std::uint32_t* error) const {
    const auto offset = static_cast<std::int64_t>(c.begin);
    const std::byte* src = in + c.in;
    switch (c.what) {
      case verb::read:
        r.value = pread(group, f, out + c.out, c.nbytes, offset);
        return;
      case verb::write:
        r.value = pwrite(group, f, src, c.nbytes, offset);
        return;
      case verb::append:
        r.value = append(group, f, src, c.nbytes);
        return;
      case verb::append_each:
        r.value = append_pieces(group, f, src, c);
        return;
      case verb::cut:
        r.value = ftruncate(group, f, offset);
        return;
      case verb::sync:
        r.value = fsync(group, f, static_cast<durability>(c.flags));
        return;
      case verb::status:
        note_status(group, f, r);
        return;
      case verb::ahead:
        r.value = ahead(group, f, c);
        return;
      case verb::look:
        r.value = look(group, f, c);
        return;
      case verb::store:
        r.value = store(group, f, c);
        return;
      case verb::load:
        r.value = load_bytes(group, f, c.begin, c.nbytes, out + c.out, c.flags != 0, error);
        return;
      case verb::poke:
        r.value = poke_bytes(group, f, c.begin, c.nbytes, src, c.flags != 0, error);
        return;
      case verb::add:
        r.value = add_one(group, f, c.begin, c.flags == 0);
        return;
      case verb::store_at:
        r.value = c.flags == 0   ? store_elements<std::uint32_t>(group, f, c.begin, c.nbytes, src, error)
                  : c.flags == 1 ? store_elements<std::uint64_t>(group, f, c.begin, c.nbytes, src, error)
                                 : store_elements<sixteen_bytes>(group, f, c.begin, c.nbytes, src, error);
        return;
      case verb::gather:
      case verb::scatter:
        batch(group, f, c, r);
        return;
      case verb::scratch:
        r.value = scratch_bytes(group, f, c.begin, c.nbytes, src, static_cast<std::uint32_t>(c.flags), error);
        return;
      default:
        r.value = -ENOSYS;
    }
  }

  template <class Group>
  GPUFS_DEVICE_COLD void batch(Group group, const file& f, const device_call& c, device_result& r) const {
    const auto* const rows = reinterpret_cast<const std::uint32_t*>(in + c.in);
    row_failure failed;
    if (c.what == verb::gather) {
      failed = gather(group, f, c.rows, rows, c.nplaces, out + c.out);
    } else {
      failed = scatter(group, f, c.rows, rows, c.nplaces, in + c.in + c.nplaces * sizeof(std::uint32_t));
    }
    r.value = failed.error != 0 ? failed.error : static_cast<std::int64_t>(c.nbytes);
    r.nbytes = static_cast<std::int64_t>(failed.place);
  }

  template <class Group>
  GPUFS_DEVICE std::int64_t ahead(Group group, const file& f, const device_call& c) const {
    const auto offset = static_cast<std::int64_t>(c.begin);
    if (c.flags == 0) return prefetch(group, f, offset, c.nbytes);
    if (c.flags != 1) return advise(group, f, offset, c.nbytes, static_cast<advice>(c.flags - 2));
    const pending_read pending = read_async(group, f, nullptr, c.nbytes, offset);
    ready(group, pending);
    return prefetch(group, f, offset, 0);  // read_async tells no error
  }

  template <class Group>
  GPUFS_DEVICE std::int64_t look(Group group, const file& f, const device_call& c) const {
    mapped_page mapped = map_page(group, f, static_cast<std::int64_t>(c.begin));
    if (mapped.error() != 0) return mapped.error();
    const std::uint64_t n = mapped.nbytes() < c.nbytes ? mapped.nbytes() : c.nbytes;
    for (std::uint64_t k = group.rank(); k < n; k += group.size()) out[c.out + k] = simt::load_changing(mapped.data() + k);
    group.sync();
    const int error = unmap_page(group, std::move(mapped));
    return error != 0 ? error : static_cast<std::int64_t>(n);
  }

  // Where the piece of the group's k-th lane begins.
  GPUFS_DEVICE static std::uint64_t piece_begin(const device_call& c, std::uint64_t k, std::uint64_t nlanes) {
    if (c.flags == 0) return c.nbytes * k / nlanes;
    if (c.flags == 1) return c.nbytes * k * k / (nlanes * nlanes);
    return k > c.id % nlanes ? c.nbytes : 0;  // all of it is one lane's
  }
  // Where the first piece lies; -EPROTO: lanes were told of places that do not lie side by side.
  template <class Group>
  GPUFS_DEVICE std::int64_t append_pieces(Group group, const file& f, const std::byte* src, const device_call& c) const {
    const std::uint64_t begin = piece_begin(c, group.rank(), group.size()), end = piece_begin(c, group.rank() + 1, group.size());
    const std::int64_t at = append_each(group, f, src + begin, end - begin);
    const std::int64_t first = at < 0 ? at : at - static_cast<std::int64_t>(begin);
    return group.any(first != group.broadcast(first)) ? -EPROTO : first;
  }

  // How many bytes it stored, from the first on.
  template <class Group>
  GPUFS_DEVICE std::int64_t store(Group group, const file& f, const device_call& c) const {
    mapped_page mapped = map_page<std::byte>(group, f, static_cast<std::int64_t>(c.begin));
    if (mapped.error() != 0) return mapped.error();
    const std::uint64_t n = mapped.nbytes() < c.nbytes ? mapped.nbytes() : c.nbytes;
    for (std::uint64_t k = group.rank(); k < n; k += group.size()) mapped.data()[k] = in[c.in + k];
    group.sync();
    const int error = unmap_page(group, std::move(mapped));
    return error != 0 ? error : static_cast<std::int64_t>(n);
  }
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
