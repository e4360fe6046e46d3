// SPDX-License-Identifier: Apache-2.0
// Kernels on two mounts and two processes work on the same files for as long as is asked: soak SECONDS [SEED]. Each byte of a file
// says which file and place it is meant for, and by its low bits which version of it; each actor (a group of threads, or a process)
// knows the versions of what it owns. Contents are checked all the time, and all of them after each round, with pins, pages,
// descriptors and memory. GPUFS_TEST_SEED is no use here: threads and processes meet as they like; the seed says what they ask for.
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

extern char** environ;

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t nmounts = 2, kernels_per_mount = 2, nprocesses = 2;
constexpr unsigned grid = on_cuda ? 16 : 2, block = 64;  // the second kernel of a mount works in blocks, the first in warps
constexpr std::uint32_t actors_per_kernel = grid * block / 32;
constexpr std::uint32_t ndevice_actors = nmounts * kernels_per_mount * actors_per_kernel, nactors = ndevice_actors + nprocesses;

// The file that all share: ranges with one owner each, in turn, and gaps that nobody owns. Its size stays.
constexpr std::uint32_t nranges = nactors * 16, stride_nbytes = 613, shared_nbytes = nranges * stride_nbytes;
GPUFS_HOST_DEVICE std::uint32_t range_nbytes(std::uint32_t range) { return 1 + range * 2654435761u % stride_nbytes; }

// A file of one actor: blocks, each of one version, or a hole.
constexpr std::uint32_t block_nbytes = 301, max_blocks = 24, own_nbytes = block_nbytes * max_blocks;
constexpr std::uint32_t record_nbytes = 32;  // of a log, to which all actors of a mount append
constexpr std::uint32_t scratch_nbytes = 8192, path_nbytes = 32;
static_assert(own_nbytes < scratch_nbytes);

// Version 0: as it was made. In files with holes versions are 1 to 15.
GPUFS_HOST_DEVICE std::byte byte_of(std::uint32_t tag, std::uint64_t offset, std::uint32_t version) {
  return static_cast<std::byte>((static_cast<std::uint32_t>(content_byte(tag + 1000, offset)) & 0xf0u) | (version & 15u));
}
GPUFS_HOST_DEVICE bool belongs(std::byte b, std::uint32_t tag, std::uint64_t offset) {
  return static_cast<std::uint32_t>(b) >> 4 == static_cast<std::uint32_t>(content_byte(tag + 1000, offset)) >> 4;
}
constexpr std::uint32_t shared_tag = 999;

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
constexpr const char* trouble_names[] = {"none",
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
    // By stores to mapped pages; all of it lies in the file.
    GPUFS_DEVICE bool store(const file& f, std::uint64_t offset, std::uint32_t n) const {
      for (std::uint32_t done = 0; done < n;) {
        writable_page page = map_page_to_write(group, f, static_cast<std::int64_t>(offset + done));
        if (page.error() != 0) {
          report(own_map, page.error(), static_cast<std::int64_t>(offset + done));
          return false;
        }
        const std::uint32_t part = page.nbytes() < n - done ? page.nbytes() : n - done;
        for (std::uint32_t i = group.rank(); i < part; i += group.size()) page.data()[i] = scratch[done + i];
        expect_zero(unmap_page(group, page), own_map);
        done += part;
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
          // Who has opened the new name meanwhile for reading is of a second path (docs/writing.md), which we would join.
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
      file_status status{};
      const auto whose = static_cast<std::uint32_t>(draw(nactors));
      const int error = stat(group, k.fs, path(whose, static_cast<std::uint32_t>(draw(2))), &status);
      if (error != 0 ? error != -ENOENT : status.nbytes < 0 || status.nbytes > own_nbytes)
        report(status_failed, error, status.nbytes, whose);
      std::int64_t position = 0;
      for (;;) {
        group.sync();
        const std::int64_t n = read_directory(group, k.fs, k.paths + (nactors * 2 + 1) * path_nbytes, scratch, 1024, &position);
        group.sync();
        if (n < 0) return report(directory_failed, n);
        if (n == 0) return;
        for (std::int64_t i = 0; i < n;) {
          service::dir_entry entry;
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

std::string own_path(std::uint32_t actor, std::uint32_t name) { return numbered("own_", actor).append(name == 0 ? "_a" : "_b"); }

[[noreturn]] void wrong(const std::string& what) {
  std::printf("WRONG: %s\n", what.c_str());
  std::fflush(stdout);
  std::exit(1);
}
void expect(bool right, const std::string& what) {
  if (!right) wrong(what);
}

// Shared with the processes.
struct process_words {
  std::atomic<std::uint32_t> stop;
  actor_state actors[nprocesses];
};
class shared_words {
 public:
  explicit shared_words(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(process_words)) != 0) fail_errno(path);
    at_ = ::mmap(nullptr, sizeof(process_words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at_ == MAP_FAILED) fail_errno("mmap");
  }
  ~shared_words() { ::munmap(at_, sizeof(process_words)); }
  shared_words(const shared_words&) = delete;
  shared_words& operator=(const shared_words&) = delete;
  process_words* operator->() const { return static_cast<process_words*>(at_); }

 private:
  void* at_;
};

std::vector<std::byte> version_bytes(std::uint32_t tag, std::uint64_t offset, std::uint32_t n, std::uint32_t version) {
  std::vector<std::byte> bytes(n);
  for (std::uint32_t i = 0; i < n; ++i) bytes[i] = byte_of(tag, offset + i, version);
  return bytes;
}
std::vector<std::byte> own_content(const actor_state& state, std::uint32_t actor) {
  std::vector<std::byte> bytes(std::size_t{state.nblocks} * block_nbytes);
  for (std::uint32_t i = 0; i < bytes.size(); ++i) {
    const std::uint32_t version = state.blocks[i / block_nbytes];
    if (version != 0) bytes[i] = byte_of(actor, i, version);
  }
  return bytes;
}

// An actor that is a process: plain system calls on the same files, checked as the kernels'.
int process(const std::string& root, std::uint32_t which, std::uint64_t seed) {
  const shared_words words(root + "/../words");
  const std::uint32_t me = ndevice_actors + which;
  actor_state& state = words->actors[which];
  const auto draw = [&](std::uint64_t n) { return draw_from(seed, me, state.turn++, n); };
  const auto next_version = [&] { return state.last_version = state.last_version % 15 + 1; };
  const auto name = [&](std::uint32_t i) { return root + "/" + own_path(me, i); };
  const int shared = ::open((root + "/shared").c_str(), O_RDWR | O_CLOEXEC);
  expect(shared >= 0, "a process cannot open the shared file");
  std::vector<std::byte> got(scratch_nbytes);
  for (; words->stop.load() == 0; ++state.steps) {
    const auto mine = static_cast<std::uint32_t>(draw(nranges / nactors));
    const std::uint32_t range = mine * nactors + me, n = range_nbytes(range);
    const off_t offset = off_t{range} * stride_nbytes;
    const std::uint64_t what = draw(100);
    if (what < 35) {
      const auto bytes = version_bytes(shared_tag, static_cast<std::uint64_t>(offset), n, next_version());
      expect(::pwrite(shared, bytes.data(), n, offset) == n, "a process's pwrite");
      state.ranges[mine] = static_cast<std::uint8_t>(state.last_version);
    } else if (what < 60) {
      expect(::pread(shared, got.data(), n, offset) == n, "a process's pread");
      const auto wanted = version_bytes(shared_tag, static_cast<std::uint64_t>(offset), n, state.ranges[mine]);
      expect(std::memcmp(got.data(), wanted.data(), n) == 0, numbered("a process's range at ", static_cast<std::uint64_t>(offset)));
    } else if (what < 65) {
      const auto at = static_cast<off_t>(draw(shared_nbytes));
      const ssize_t there = ::pread(shared, got.data(), got.size(), at);
      expect(there == std::min<ssize_t>(scratch_nbytes, shared_nbytes - at), "a process's pread of anything");
      for (ssize_t i = 0; i < there; ++i) {
        expect(belongs(got[static_cast<std::size_t>(i)], shared_tag, static_cast<std::uint64_t>(at + i)),
               "a process reads what does not belong there");
      }
    } else {
      const int own = ::open(name(state.name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      expect(own >= 0, "a process cannot open its file");
      state.there = 1;
      const std::uint64_t act = draw(6);
      if (act < 2) {
        const auto i = static_cast<std::uint32_t>(draw(std::min(state.nblocks + 3, max_blocks)));
        const auto bytes = version_bytes(me, std::uint64_t{i} * block_nbytes, block_nbytes, next_version());
        expect(::pwrite(own, bytes.data(), block_nbytes, off_t{i} * block_nbytes) == block_nbytes, "a process's own pwrite");
        for (; state.nblocks <= i; ++state.nblocks) state.blocks[state.nblocks] = 0;
        state.blocks[i] = static_cast<std::uint8_t>(state.last_version);
      } else if (act == 2) {
        const auto blocks = static_cast<std::uint32_t>(draw(max_blocks + 1));
        expect(::ftruncate(own, off_t{blocks} * block_nbytes) == 0, "a process's ftruncate");
        for (; state.nblocks < blocks; ++state.nblocks) state.blocks[state.nblocks] = 0;
        state.nblocks = blocks;
      } else if (act == 3) {
        const auto wanted = own_content(state, me);
        const ssize_t there = ::pread(own, got.data(), got.size(), 0);
        expect(there == static_cast<ssize_t>(wanted.size()) && std::equal(wanted.begin(), wanted.end(), got.begin()),
               "a process's own file");
      } else if (act == 4) {
        expect(::rename(name(state.name).c_str(), name(1 - state.name).c_str()) == 0, "a process's rename");
        state.name = 1 - state.name;
      } else {
        expect(::unlink(name(state.name).c_str()) == 0, "a process's unlink");
        state.there = state.nblocks = 0;
      }
      ::close(own);
    }
    if (draw(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw(2000)));
  }
  ::close(shared);
  return 0;
}

std::uint64_t open_descriptors() {
  return static_cast<std::uint64_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})) - 1;
}
std::uint64_t resident_mib() {
  std::uint64_t all = 0, resident = 0;
  std::FILE* in = std::fopen("/proc/self/statm", "r");
  if (in == nullptr || std::fscanf(in, "%lu %lu", &all, &resident) != 2) wrong("/proc/self/statm");
  std::fclose(in);
  return resident * 4096 >> 20;
}

// What is in the files when all have closed them.
void check_files(const temp_dir& dir, const std::vector<actor_state>& actors) {
  const auto shared = dir.read("root/shared");
  expect(shared.size() == shared_nbytes, numbered("the shared file has bytes: ", shared.size()));
  for (std::uint32_t at = 0; at < shared_nbytes; ++at) {
    const std::uint32_t range = at / stride_nbytes, owner = range % nactors;
    const std::uint32_t version = at % stride_nbytes < range_nbytes(range) ? actors[owner].ranges[range / nactors] : 0;
    expect(shared[at] == byte_of(shared_tag, at, version),
           numbered("at the end, the shared file's byte ", at).append(numbered(" of actor ", owner)));
  }
  std::set<std::string> names{"shared"};
  for (std::uint32_t a = 0; a < nactors; ++a) {
    if (actors[a].there == 0) continue;
    names.insert(own_path(a, actors[a].name));
    expect(dir.read("root/" + own_path(a, actors[a].name)) == own_content(actors[a], a),
           numbered("at the end, the file of actor ", a));
  }
  for (std::uint32_t m = 0; m < nmounts; ++m) {
    names.insert(numbered("log_", m));
    const auto log = dir.read("root/" + numbered("log_", m));
    std::vector<std::uint32_t> seen(nactors);
    for (std::size_t at = 0; at + record_nbytes <= log.size(); at += record_nbytes) {
      std::uint32_t who = 0, number = 0;
      std::memcpy(&who, &log[at], sizeof who);
      std::memcpy(&number, &log[at + sizeof who], sizeof number);
      expect(who < nactors && seen[who]++ == number, numbered("a log's record at ", at));
      const auto wanted = version_bytes(who, std::uint64_t{number} * record_nbytes, record_nbytes, 0);
      expect(std::memcmp(&log[at + 8], &wanted[8], record_nbytes - 8) == 0, numbered("a log's bytes at ", at));
    }
    std::uint64_t records = 0;
    for (std::uint32_t a = m * kernels_per_mount * actors_per_kernel; a < (m + 1) * kernels_per_mount * actors_per_kernel; ++a) {
      expect(seen[a] == actors[a].appended, numbered("a log lacks records of actor ", a));
      records += actors[a].appended;
    }
    expect(log.size() == records * record_nbytes, numbered("a log's size: ", log.size()));
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir / "root")) {
    expect(names.erase(entry.path().filename().string()) == 1, "not expected: " + entry.path().string());
  }
  expect(names.empty(), "missing: " + (names.empty() ? "" : *names.begin()));
}

void check_mount(const mount& m) {
  const mount_counters now = m.counters();
  const std::pair<const char*, std::uint64_t> zeros[] = {
      {"pins", now.pins},
      {"pinned frames", now.pinned_frames},
      {"dirty frames", now.dirty_frames},
      {"unwritten pages", now.unwritten_pages},
      {"write errors", now.write_errors},
      {"timeouts", now.io_timeouts},
      {"unpin errors", now.unpin_errors},
      {"bad file numbers", now.bad_file_numbers},
      {"open files", m.open_files().size()},
      {"files open on the host", now.host_opens - now.host_closes},
  };
  bool right = true;
  for (const auto& [what, n] : zeros) {
    right &= n == 0;
    if (n != 0) std::printf("%s: %llu\n", what, static_cast<unsigned long long>(n));
  }
  if (!right) {
    for (const std::string& line : m.log()) std::printf("log: %s\n", line.c_str());
    wrong("a mount after all kernels have closed their files");
  }
}

struct round_sums {
  std::uint64_t launches = 0, steps = 0, process_steps = 0, write_backs = 0, evictions = 0;
};

void one_round(std::uint64_t seed, std::chrono::milliseconds time, round_sums* sums) {
  const temp_dir dir;
  std::filesystem::create_directories(dir / "root");
  {
    const auto bytes = version_bytes(shared_tag, 0, shared_nbytes, 0);
    std::FILE* out = std::fopen((dir / "root/shared").c_str(), "wb");
    expect(out != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), out) == bytes.size(), "making the shared file");
    std::fclose(out);
  }
  for (std::uint32_t m = 0; m < nmounts; ++m) dir.add(numbered("root/log_", m), 0, 1);

  const shared_words words(dir / "words");
  std::vector<pid_t> processes;
  for (std::uint32_t p = 0; p < nprocesses; ++p) {
    std::string arguments[] = {"soak", "--process", dir / "root", std::to_string(p), std::to_string(seed)};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), arguments[4].data(), nullptr};
    pid_t pid = 0;
    errno = ::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv, environ);
    if (errno != 0) fail_errno("posix_spawn");
    processes.push_back(pid);
  }

  random_source draw(seed);
  std::vector<std::unique_ptr<mount>> mounts;
  for (std::uint32_t m = 0; m < nmounts; ++m) {
    mount_options o;
    o.writable = true;
    o.page_nbytes = draw.percent(50) ? 512 : 4096;
    o.cache_nbytes = draw.between(on_cuda ? 512 : 64, on_cuda ? 1024 : 256) * o.page_nbytes;
    o.dirty_nbytes = draw.percent(50) ? 0 : 8 * o.page_nbytes;
    o.store = draw.percent(50) ? store_kind::posix : store_kind::automatic;
    o.max_open_files = 1024;
    o.request_rings = static_cast<std::uint32_t>(draw.between(1, 8));
    o.nworkers = static_cast<std::uint32_t>(draw.between(2, 4));
    o.frame_timeout = std::chrono::seconds(60);
    o.abort_on_leaked_pins = true;
    mounts.push_back(std::make_unique<mount>(dir / "root", o));
  }
  std::vector<char> paths((nactors * 2 + 2 + nmounts) * path_nbytes);
  const auto put_path = [&](std::uint32_t i, const std::string& path) {
    std::memcpy(&paths[i * path_nbytes], path.c_str(), path.size() + 1);
  };
  for (std::uint32_t a = 0; a < nactors * 2; ++a) put_path(a, own_path(a / 2, a % 2));
  put_path(nactors * 2, "shared");
  put_path(nactors * 2 + 1, ".");
  for (std::uint32_t m = 0; m < nmounts; ++m) put_path(nactors * 2 + 2 + m, numbered("log_", m));
  const device_buffer<char> path_memory(paths);
  const device_buffer<actor_state> actors(nactors);
  const device_buffer<std::byte> scratch(std::size_t{ndevice_actors} * scratch_nbytes);
  const device_buffer<trouble> first(1);

  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> launches{0};
  std::string failure;
  std::mutex failure_lock;
  std::vector<std::thread> hosts;
  for (std::uint32_t h = 0; h < nmounts * kernels_per_mount; ++h) {
    hosts.emplace_back([&, h] {
      const std::uint32_t m = h / kernels_per_mount;
      for (std::uint64_t n = 0; !stop; ++n) {
        const soak_kernel kernel{mounts[m]->ref(),
                                 actors.get(),
                                 path_memory.get(),
                                 path_memory.get() + (nactors * 2 + 2 + m) * path_nbytes,
                                 scratch.get(),
                                 first.get(),
                                 seed,
                                 h * actors_per_kernel,
                                 static_cast<std::uint32_t>(5 + draw_from(seed, h, n, 60)),
                                 h % kernels_per_mount == 1};
        try {
          simt::launch({.grid = grid, .block = block, .schedule = {.seed = seed * 100 + h + n, .switch_percent = 5}}, kernel);
        } catch (const std::exception& e) {
          const std::scoped_lock hold(failure_lock);
          failure = e.what();
          stop = true;
        }
        ++launches;
        if (first.read_one().what != none) stop = true;
      }
    });
  }
  const auto until = std::chrono::steady_clock::now() + time;
  while (!stop && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  stop = true;
  for (std::thread& host : hosts) host.join();
  words->stop = 1;
  bool processes_right = true;
  for (const pid_t pid : processes) {
    int status = 0;
    processes_right &= ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  const trouble found = first.read_one();
  if (found.what != none || !failure.empty()) {
    for (const auto& m : mounts) {
      for (const std::string& line : m->log()) std::printf("log: %s\n", line.c_str());
    }
    if (!failure.empty()) wrong(failure);
    wrong(std::string(trouble_names[found.what]) + numbered(", actor ", found.actor) + ": " + std::to_string(found.a) + ", " +
          std::to_string(found.b) + ", " + std::to_string(found.c));
  }
  expect(processes_right, "a process");
  for (const auto& m : mounts) {
    check_mount(*m);
    sums->write_backs += m->counters().write_backs;
    sums->evictions += m->counters().evictions;
  }
  mounts.clear();
  auto states = actors.read();
  for (std::uint32_t p = 0; p < nprocesses; ++p) states[ndevice_actors + p] = words->actors[p];
  check_files(dir, states);
  sums->launches += launches;
  for (std::uint32_t a = 0; a < nactors; ++a) (a < ndevice_actors ? sums->steps : sums->process_steps) += states[a].steps;
}

int soak(std::uint64_t seconds, std::uint64_t seed) {
  const auto begin = std::chrono::steady_clock::now(), end = begin + std::chrono::seconds(seconds);
  const auto time = std::chrono::milliseconds(std::clamp<std::uint64_t>(seconds * 1000 / 4, 500, 15'000));
  simt::this_platform().memory_nbytes();  // what the platform keeps open is open from here on
  round_sums sums;
  std::uint64_t descriptors = 0, memory = 0;
  std::uint64_t rounds = 0;
  for (; std::chrono::steady_clock::now() < end; ++rounds, ++seed) {
    std::printf("round %llu, seed %llu\n", static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    if (rounds == 0) descriptors = open_descriptors();
    one_round(seed, time, &sums);
    expect(on_cuda && rounds == 0 ? true : open_descriptors() == descriptors,
           numbered("descriptors stay open: ", open_descriptors()));
    if (on_cuda && rounds == 0) descriptors = open_descriptors();
    if (rounds <= 2) memory = std::max(memory, resident_mib());
    expect(resident_mib() <= memory + memory / 4 + 64, numbered("memory grows, MiB: ", resident_mib()));
  }
  std::printf(
      "%llu rounds: %llu kernels, %llu steps of theirs, %llu of processes; %llu pages written back, %llu evicted; %llu MiB\n",
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(sums.launches),
      static_cast<unsigned long long>(sums.steps), static_cast<unsigned long long>(sums.process_steps),
      static_cast<unsigned long long>(sums.write_backs), static_cast<unsigned long long>(sums.evictions),
      static_cast<unsigned long long>(resident_mib()));
  return sums.steps != 0 && sums.process_steps != 0 && sums.write_backs != 0 ? 0 : 1;
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

int main(int argc, char** argv) {
  const auto number = [&](int i, std::uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  if (argc == 5 && std::string(argv[1]) == "--process") {
    return gpufs::test::process(argv[2], static_cast<std::uint32_t>(number(3, 0)), number(4, 0));
  }
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return gpufs::test::soak(number(1, 5), number(2, now % 1'000'000));
}
