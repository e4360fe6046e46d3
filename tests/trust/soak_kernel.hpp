// SPDX-License-Identifier: Apache-2.0
// What soak's kernels do, and what its actors know: soak.cpp.
#pragma once
#include <cstring>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint32_t nmounts = 2, kernels_per_mount = 2, nprocesses = 2;
inline constexpr unsigned grid = on_cuda ? 16 : 2, block = 64;  // the second kernel of a mount works in blocks, the first in warps
inline constexpr std::uint32_t actors_per_kernel = grid * block / 32;
inline constexpr std::uint32_t ndevice_actors = nmounts * kernels_per_mount * actors_per_kernel,
                               nactors = ndevice_actors + nprocesses;

// The file that all share: ranges with one owner each, in turn, and gaps that nobody owns. Its size stays.
inline constexpr std::uint32_t nranges = nactors * 16, stride_nbytes = 613, shared_nbytes = nranges * stride_nbytes;
GPUFS_HOST_DEVICE std::uint32_t range_nbytes(std::uint32_t range) { return 1 + range * 2654435761u % stride_nbytes; }

// A file of one actor: blocks, each of one version, or a hole.
inline constexpr std::uint32_t block_nbytes = 301, max_blocks = 24, own_nbytes = block_nbytes * max_blocks;
inline constexpr std::uint32_t record_nbytes = 32;  // of a log, to which all actors of a mount append
inline constexpr std::uint32_t scratch_nbytes = 8192, path_nbytes = 32;
static_assert(own_nbytes < scratch_nbytes);

// Version 0: as it was made. In files with holes versions are 1 to 15.
GPUFS_HOST_DEVICE std::byte byte_of(std::uint32_t tag, std::uint64_t offset, std::uint32_t version) {
  return static_cast<std::byte>((static_cast<std::uint32_t>(content_byte(tag + 1000, offset)) & 0xf0u) | (version & 15u));
}
GPUFS_HOST_DEVICE bool belongs(std::byte b, std::uint32_t tag, std::uint64_t offset) {
  return static_cast<std::uint32_t>(b) >> 4 == static_cast<std::uint32_t>(content_byte(tag + 1000, offset)) >> 4;
}
inline constexpr std::uint32_t shared_tag = 999;

// What an actor knows. Its leader changes it.
struct actor_state {
  std::uint64_t turn;
  std::uint32_t last_version, appended;
  std::uint32_t there, name, nblocks;  // its own file: which of its two names it has
  std::uint32_t moved;                 // it was renamed while open, and not opened for writing since
  std::uint8_t blocks[max_blocks];     // versions; 0: a hole
  std::uint8_t ranges[nranges / nactors];
  std::uint64_t steps;
};

enum trouble_kind : std::uint32_t {
  none,
  open_shared,
  write_shared,
  own_range,
  foreign_byte,
  short_read,
  sync_failed,
  close_failed,
  append_failed,
  own_open,
  own_write,
  own_append,
  own_truncate,
  own_size,
  own_bytes,
  own_unlink,
  own_rename,
  own_map,
  others_open,
  others_read,
  others_bytes,
  status_failed,
  directory_failed,
};
inline constexpr const char* trouble_names[] = {"none",
                                                "open of the shared file",
                                                "write to the shared file",
                                                "own range",
                                                "a byte that does not belong there",
                                                "short read",
                                                "fsync",
                                                "close",
                                                "append",
                                                "open of an own file",
                                                "own write",
                                                "own append",
                                                "own truncate",
                                                "own size",
                                                "own bytes",
                                                "own unlink",
                                                "own rename",
                                                "mapping to write",
                                                "other open",
                                                "other read",
                                                "other bytes",
                                                "stat",
                                                "read_directory"};
struct trouble {
  std::uint32_t what, actor;
  std::int64_t a, b, c;
};

GPUFS_HOST_DEVICE std::uint64_t draw_from(std::uint64_t seed, std::uint32_t actor, std::uint64_t turn, std::uint64_t n) {
  return content_word(seed * 1000 + actor, turn) % n;
}

struct soak_kernel {
  mount_ref fs;
  actor_state* actors;
  const char* paths;  // of own files: 2 an actor; then "shared", "."
  const char* log;
  std::byte* scratches;
  trouble* first;
  std::uint64_t seed;
  std::uint32_t first_actor, steps;
  bool blocks;  // or warps

  GPUFS_DEVICE void operator()() const {
    if (blocks) return run(this_block(), first_actor + simt::block_rank());
    run(this_warp(), first_actor + simt::block_rank() * (simt::block_size() / 32) + simt::warp_rank());
  }

  template <class Group>
  struct player {
    const soak_kernel& k;
    Group group;
    std::uint32_t me;
    actor_state& state;
    std::byte* scratch;
    std::int32_t own;  // its own file's number, or -1

    GPUFS_DEVICE std::uint64_t draw(std::uint64_t n) {
      std::uint64_t got = 0;
      if (group.leader()) got = draw_from(k.seed, me, state.turn++, n);
      return group.broadcast(got);
    }
    template <class T>
    GPUFS_DEVICE T get(const T& of_leader) const {
      T value{};
      if (group.leader()) value = of_leader;
      return group.broadcast(value);
    }
    template <class T, class V>
    GPUFS_DEVICE void set(T& word, V value) const {
      if (group.leader()) word = static_cast<T>(value);
      group.sync();
    }
    GPUFS_DEVICE std::uint32_t next_version() const {
      std::uint32_t version = 0;
      if (group.leader()) version = state.last_version = state.last_version % 15 + 1;
      return group.broadcast(version);
    }
    // Any lane.
    GPUFS_DEVICE void report(trouble_kind what, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) const {
      std::uint32_t before = none;
      if (!simt::atomic_ref<std::uint32_t>(k.first->what).compare_exchange(before, what, std::memory_order_relaxed)) return;
      k.first->actor = me;
      k.first->a = a;
      k.first->b = b;
      k.first->c = c;
    }
    GPUFS_DEVICE bool troubled() const {
      std::uint32_t what = none;
      if (group.leader()) what = simt::atomic_ref<std::uint32_t>(k.first->what).load(std::memory_order_relaxed);
      return group.broadcast(what) != none;
    }
    GPUFS_DEVICE void expect_zero(std::int64_t result, trouble_kind what) const {
      if (result != 0) report(what, result);
    }
    GPUFS_DEVICE file at(std::int32_t number) const { return file(k.fs, file_number{number}); }
    GPUFS_DEVICE const char* path(std::uint32_t actor, std::uint32_t name) const {
      return k.paths + (actor * 2 + name) * path_nbytes;
    }
    GPUFS_DEVICE void fill(std::uint32_t tag, std::uint64_t offset, std::uint32_t n, std::uint32_t version) const {
      group.sync();
      for (std::uint32_t i = group.rank(); i < n; i += group.size()) scratch[i] = byte_of(tag, offset + i, version);
      group.sync();
    }
    // Into scratch; all of it is wanted.
    GPUFS_DEVICE bool read(const file& f, std::uint64_t offset, std::uint32_t n) const {
      group.sync();
      const std::int64_t got = pread(group, f, scratch, n, static_cast<std::int64_t>(offset));
      group.sync();
      if (got != n) report(short_read, got, n, static_cast<std::int64_t>(offset));
      return got == n;
    }
    // By stores to mapped pages, or through pointers; all of it lies in the file.
    GPUFS_DEVICE bool store(const file& f, std::uint64_t offset, std::uint32_t n) {
      if (draw(2) == 0) return store_through_pointers(f, offset, n);
      for (std::uint32_t done = 0; done < n;) {
        mapped_page page = map_page<std::byte>(group, f, static_cast<std::int64_t>(offset + done));
        if (page.error() != 0) {
          report(own_map, page.error(), static_cast<std::int64_t>(offset + done));
          return false;
        }
        const std::uint32_t part = page.nbytes() < n - done ? page.nbytes() : n - done;
        for (std::uint32_t i = group.rank(); i < part; i += group.size()) page.data()[i] = scratch[done + i];
        expect_zero(unmap_page(group, std::move(page)), own_map);
        done += part;
      }
      group.sync();
      return true;
    }

    GPUFS_DEVICE bool store_through_pointers(const file& f, std::uint64_t offset, std::uint32_t n) const {
      {
        const auto p = map<std::byte>(group, f, static_cast<std::int64_t>(offset), n);
        if (p.error() != 0) {
          report(own_map, p.error(), static_cast<std::int64_t>(offset), 1);
          return false;
        }
        for (std::uint32_t i = group.rank(); i < n; i += group.size()) p[i] = scratch[i];
      }
      group.sync();
      return true;
    }

    GPUFS_DEVICE void write_range(const file& f) {
      const auto mine = static_cast<std::uint32_t>(draw(nranges / nactors));
      const std::uint32_t range = mine * nactors + me, n = range_nbytes(range);
      const std::uint64_t offset = std::uint64_t{range} * stride_nbytes;
      const std::uint32_t version = next_version();
      fill(shared_tag, offset, n, version);
      if (draw(4) == 0) {
        if (!store(f, offset, n)) return;
      } else {
        const std::int64_t done = pwrite(group, f, scratch, n, static_cast<std::int64_t>(offset));
        if (done != n) return report(write_shared, done, n, static_cast<std::int64_t>(offset));
      }
      set(state.ranges[mine], version);
    }
    GPUFS_DEVICE void read_range(const file& f) {
      const auto mine = static_cast<std::uint32_t>(draw(nranges / nactors));
      const std::uint32_t range = mine * nactors + me, version = get(state.ranges[mine]), n = range_nbytes(range);
      const std::uint64_t offset = std::uint64_t{range} * stride_nbytes;
      if (!read(f, offset, n)) return;
      for (std::uint32_t i = group.rank(); i < n; i += group.size()) {
        const std::byte wanted = byte_of(shared_tag, offset + i, version);
        if (scratch[i] != wanted)
          report(own_range, static_cast<int>(scratch[i]), static_cast<int>(wanted), static_cast<std::int64_t>(offset + i));
      }
    }
    GPUFS_DEVICE void read_any(const file& f) {
      const std::uint64_t offset = draw(shared_nbytes);
      auto n = static_cast<std::uint32_t>(1 + draw(scratch_nbytes - 1));
      if (offset + n > shared_nbytes) n = static_cast<std::uint32_t>(shared_nbytes - offset);
      if (!read(f, offset, n)) return;
      for (std::uint32_t i = group.rank(); i < n; i += group.size()) {
        if (!belongs(scratch[i], shared_tag, offset + i))
          report(foreign_byte, static_cast<int>(scratch[i]), 0, static_cast<std::int64_t>(offset + i));
      }
    }
    // A record: who, which one of theirs, and bytes that follow from these.
    GPUFS_DEVICE void append_record() {
      const file f = open(group, k.fs, k.log, O_WRONLY | O_APPEND);
      if (f.error() != 0) return report(append_failed, f.error());
      for (std::uint64_t n = 1 + draw(4); n > 0; --n) {
        const std::uint32_t number = get(state.appended);
        fill(me, std::uint64_t{number} * record_nbytes, record_nbytes, 0);
        if (group.leader()) {
          memcpy(scratch, &me, sizeof me);
          memcpy(scratch + sizeof me, &number, sizeof number);
        }
        group.sync();
        const std::int64_t offset = append(group, f, scratch, record_nbytes);
        if (offset < 0 || offset % record_nbytes != 0) report(append_failed, offset);
        set(state.appended, number + 1);
      }
      expect_zero(close(group, f), close_failed);
    }

    GPUFS_DEVICE bool have_own() {
      if (own >= 0) return true;
      const file f = open(group, k.fs, path(me, get(state.name)), O_RDWR | O_CREAT);
      if (f.error() != 0) report(own_open, f.error());
      own = static_cast<std::int32_t>(f.number());
      if (own >= 0) set(state.there, 1);
      set(state.moved, 0);
      return own >= 0;
    }
    GPUFS_DEVICE void close_own() {
      if (own >= 0) expect_zero(close(group, at(own)), close_failed);
      own = -1;
    }
    GPUFS_DEVICE void set_blocks(std::uint32_t first_block, std::uint32_t end, std::uint32_t version) const {
      if (group.leader()) {
        for (std::uint32_t i = first_block; i < end; ++i) state.blocks[i] = static_cast<std::uint8_t>(version);
      }
      group.sync();
    }
    GPUFS_DEVICE void check_own(const file& f) {
      group.sync();
      const std::uint32_t nbytes = get(state.nblocks) * block_nbytes;
      const std::int64_t n = pread(group, f, scratch, scratch_nbytes, 0);
      group.sync();
      if (n != nbytes) return report(own_size, n, nbytes);
      for (std::uint32_t i = group.rank(); i < nbytes; i += group.size()) {
        const std::uint32_t version = state.blocks[i / block_nbytes];
        const std::byte wanted = version == 0 ? std::byte{0} : byte_of(me, i, version);
        if (scratch[i] != wanted) report(own_bytes, static_cast<int>(scratch[i]), static_cast<int>(wanted), i);
      }
      group.sync();
    }
    GPUFS_DEVICE void work_on_own() {
      const std::uint64_t what = draw(14);
      if (!have_own()) return;
      const file f = at(own);
      const std::uint32_t nblocks = get(state.nblocks);
      switch (what) {
        case 0:
        case 1:
        case 2: {  // also beyond the end
          const std::uint32_t most = nblocks + 2 < max_blocks ? nblocks + 3 : max_blocks;
          const auto i = static_cast<std::uint32_t>(draw(most));
          const std::uint32_t version = next_version();
          fill(me, std::uint64_t{i} * block_nbytes, block_nbytes, version);
          const std::int64_t n = pwrite(group, f, scratch, block_nbytes, std::int64_t{i} * block_nbytes);
          if (n != block_nbytes) return report(own_write, n, i);
          if (i >= nblocks) {
            set_blocks(nblocks, i, 0);
            set(state.nblocks, i + 1);
          }
          return set_blocks(i, i + 1, version);
        }
        case 3:
        case 4: {
          if (nblocks == max_blocks) return;
          const std::uint32_t version = next_version();
          fill(me, std::uint64_t{nblocks} * block_nbytes, block_nbytes, version);
          const std::int64_t offset = append(group, f, scratch, block_nbytes);
          if (offset != std::int64_t{nblocks} * block_nbytes) return report(own_append, offset, nblocks);
          set_blocks(nblocks, nblocks + 1, version);
          return set(state.nblocks, nblocks + 1);
        }
        case 5:
        case 6: {
          const auto n = static_cast<std::uint32_t>(draw(max_blocks + 1));
          const int error = ftruncate(group, f, std::int64_t{n} * block_nbytes);
          if (error != 0) return report(own_truncate, error, n);
          if (n > nblocks) set_blocks(nblocks, n, 0);
          return set(state.nblocks, n);
        }
        case 7: {  // by a mapping
          if (nblocks == 0) return;
          const auto i = static_cast<std::uint32_t>(draw(nblocks));
          const std::uint32_t version = next_version();
          fill(me, std::uint64_t{i} * block_nbytes, block_nbytes, version);
          if (store(f, std::uint64_t{i} * block_nbytes, block_nbytes)) set_blocks(i, i + 1, version);
          return;
        }
        case 8:
          return expect_zero(fsync(group, f, draw(4) == 0 ? durability::data : durability::page_cache), sync_failed);
        case 9: {  // as somebody reads it who comes later
          close_own();
          // Who has opened the new name meanwhile for reading is of a second path (docs/guide/writing.md), which we would join.
          if (get(state.moved) != 0) return;
          const file again = open(group, k.fs, path(me, get(state.name)));
          if (again.error() != 0) return report(own_open, again.error(), 1);
          check_own(again);
          return expect_zero(close(group, again), close_failed);
        }
        case 10: {
          if (draw(2) == 0) close_own();
          expect_zero(unlink(group, k.fs, path(me, get(state.name))), own_unlink);
          close_own();
          set(state.there, 0);
          return set(state.nblocks, 0);
        }
        case 11: {
          const std::uint32_t name = get(state.name);
          if (draw(2) == 0) close_own();
          if (own >= 0) set(state.moved, 1);
          expect_zero(rename(group, k.fs, path(me, name), path(me, 1 - name)), own_rename);
          return set(state.name, 1 - name);
        }
        case 12: {
          close_own();
          const file cut = open(group, k.fs, path(me, get(state.name)), O_RDWR | O_TRUNC);
          if (cut.error() != 0) return report(own_open, cut.error(), 2);
          own = static_cast<std::int32_t>(cut.number());
          return set(state.nblocks, 0);
        }
        default:
          return check_own(f);
      }
    }

    // Somebody's file may be gone, or change under its readers; its bytes belong there all the same.
    GPUFS_DEVICE void read_others() {
      const auto whose = static_cast<std::uint32_t>(draw(nactors));
      const file f = open(group, k.fs, path(whose, static_cast<std::uint32_t>(draw(2))));
      if (f.error() != 0) {
        if (f.error() != -ENOENT && f.error() != -ESTALE) report(others_open, f.error(), whose);
        return;
      }
      for (std::uint64_t n = 1 + draw(3); n > 0; --n) {
        group.sync();
        const std::int64_t got = pread(group, f, scratch, scratch_nbytes, 0);
        group.sync();
        if (got < 0 ? got != -ESTALE : got > own_nbytes) report(others_read, got, whose);
        for (std::int64_t i = group.rank(); i < got; i += group.size()) {
          if (scratch[i] != std::byte{0} && !belongs(scratch[i], whose, static_cast<std::uint64_t>(i))) {
            report(others_bytes, static_cast<int>(scratch[i]), whose, i);
          }
        }
      }
      expect_zero(close(group, f), close_failed);
    }
    GPUFS_DEVICE void look_around() {
      const auto whose = static_cast<std::uint32_t>(draw(nactors));
      const path_status status = stat(group, k.fs, path(whose, static_cast<std::uint32_t>(draw(2))));
      const int error = status.error;
      if (error != 0 ? error != -ENOENT : status.nbytes < 0 || status.nbytes > own_nbytes)
        report(status_failed, error, status.nbytes, whose);
      std::int64_t position = 0;
      for (;;) {
        group.sync();
        const directory_part got = read_directory(group, k.fs, k.paths + (nactors * 2 + 1) * path_nbytes, scratch, 1024, position);
        const std::int64_t n = got.nbytes;
        position = got.position;
        group.sync();
        if (n < 0) return report(directory_failed, n);
        if (n == 0) return;
        for (std::int64_t i = 0; i < n;) {
          directory_entry entry;
          memcpy(&entry, scratch + i, sizeof entry);
          if (entry.name_nbytes == 0 || entry.entry_nbytes < sizeof entry + entry.name_nbytes || i + entry.entry_nbytes > n) {
            return report(directory_failed, entry.name_nbytes, entry.entry_nbytes, i);
          }
          i += entry.entry_nbytes;
        }
      }
    }

    GPUFS_DEVICE void play() {
      file shared = open(group, k.fs, k.paths + nactors * 2 * path_nbytes, O_RDWR);
      if (shared.error() != 0) return report(open_shared, shared.error());
      for (std::uint32_t step = 0; step < k.steps && !troubled(); ++step) {
        const std::uint64_t what = draw(100);
        if (what < 25) {
          write_range(shared);
        } else if (what < 40) {
          read_range(shared);
        } else if (what < 50) {
          read_any(shared);
        } else if (what < 56) {
          append_record();
        } else if (what < 84) {
          work_on_own();
        } else if (what < 91) {
          read_others();
        } else if (what < 94) {
          look_around();
        } else if (what < 98) {
          expect_zero(fsync(group, shared, draw(8) == 0 ? durability::stable : durability::page_cache), sync_failed);
        } else {
          expect_zero(close(group, shared), close_failed);
          shared = open(group, k.fs, k.paths + nactors * 2 * path_nbytes, O_RDWR);
          if (shared.error() != 0) return report(open_shared, shared.error());
        }
        if (group.leader()) ++state.steps;
      }
      close_own();
      expect_zero(close(group, shared), close_failed);
    }
  };

  template <class Group>
  GPUFS_DEVICE void run(Group group, std::uint32_t me) const {
    player<Group>{*this, group, me, actors[me], scratches + std::size_t{me} * scratch_nbytes, -1}.play();
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
