// SPDX-License-Identifier: Apache-2.0
// kill -9 of a process whose kernels write: what an fsync or close had answered for is in the file, and nothing else has changed.
// The process is this program, started anew. What its kernels had begun and what was synced they note in a mapped file, which
// outlives them. GPUFS_TEST_KILLS: how often.
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "leftovers.hpp"
#include "store/posix_extras.hpp"

extern char** environ;

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// A range of the file has one writer, which gives it version 1, 2, ... Neighbours have different writers, so pages are shared.
struct range {
  std::uint64_t offset;
  std::uint32_t nbytes;
};
constexpr std::uint32_t max_range_nbytes = 700;

GPUFS_HOST_DEVICE std::byte byte_of(std::uint64_t seed, std::uint32_t range_index, std::uint32_t version, std::uint64_t offset) {
  return content_byte((seed << 20) + (std::uint64_t{version} << 10) + range_index + 77, offset);
}

// What parent and child both draw from the seed.
struct plan {
  std::uint64_t seed;
  std::uint32_t page_nbytes, nframes, rounds;
  int flags;
  std::uint64_t file_nbytes;  // before; the last ranges lie beyond
  std::vector<range> ranges;
  std::uint32_t writes_before_kill;  // not a time: a slow machine has as much to lose
  std::uint32_t then_us;

  static constexpr unsigned grid = 3, block = 64, ngroups = grid * block / 32;

  explicit plan(std::uint64_t s) : seed(s) {
    random_source draw(seed);
    page_nbytes = draw.percent(50) ? 512 : 4096;
    nframes = static_cast<std::uint32_t>(draw.between(32, 96));
    rounds = draw.percent(75) ? 1'000'000 : static_cast<std::uint32_t>(draw.between(1, 4));
    flags = draw.pick(std::vector<int>{O_RDWR, O_RDWR, O_WRONLY, O_GWRONCE | O_WRONLY});
    std::uint64_t end = draw.below(100);
    for (std::uint32_t i = 0; i < 300; ++i) {
      const range r{end, static_cast<std::uint32_t>(draw.between(1, draw.percent(50) ? 60 : max_range_nbytes))};
      ranges.push_back(r);
      end = r.offset + r.nbytes + (draw.percent(50) ? 0 : draw.below(200));  // what is between is nobody's
    }
    file_nbytes = end * 4 / 5;
    writes_before_kill = static_cast<std::uint32_t>(draw.below(draw.percent(30) ? 40 : 1'500));
    then_us = static_cast<std::uint32_t>(draw.below(3'000));
  }
};

constexpr const char* file_name = "file";
constexpr std::uint64_t old_seed = 3;

// Each word has one writer; plain memory of the system's page cache, which does not die with the process.
struct note {
  std::uint32_t begun;   // the version that is being written, or was last
  std::uint32_t synced;  // the last version that an fsync or close has answered for
};
struct group_note {
  std::uint32_t writes;  // begun
  std::int32_t error;    // the first result that was not as it should be
};
struct journal {
  std::uint32_t ended;  // after the mount's end
  group_note groups[plan::ngroups];
  note notes[1024];

  std::uint32_t writes() const {
    std::uint32_t n = 0;
    for (const group_note& g : groups) n += now(g.writes);
    return n;
  }
  std::int32_t error() const {
    for (const group_note& g : groups) {
      if (const std::int32_t error = now(g.error); error != 0) return error;
    }
    return 0;
  }

 private:
  template <class T>
  static T now(const T& word) {
    return std::atomic_ref<T>(const_cast<T&>(word)).load();
  }
};

class mapped_journal {
 public:
  explicit mapped_journal(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(journal)) != 0) fail_errno("journal");
    at_ = ::mmap(nullptr, sizeof(journal), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at_ == MAP_FAILED) fail_errno("mmap");
  }
  ~mapped_journal() {
    if (of_device_ != nullptr) simt::this_platform().unregister(at_);
    ::munmap(at_, sizeof(journal));
  }
  mapped_journal(const mapped_journal&) = delete;
  mapped_journal& operator=(const mapped_journal&) = delete;
  journal& operator*() const { return *static_cast<journal*>(at_); }
  journal* operator->() const { return static_cast<journal*>(at_); }
  // For kernels.
  journal* register_for_device() {
    std::string why;
    of_device_ = simt::this_platform().register_writable(at_, sizeof(journal), &why);
    if (of_device_ == nullptr) throw std::runtime_error("the journal: " + why);
    return static_cast<journal*>(of_device_);
  }

 private:
  void *at_, *of_device_ = nullptr;
};

struct writer {
  mount_ref fs;
  journal* notes;
  const range* ranges;
  std::uint32_t nranges;
  std::byte* scratch;  // max_range_nbytes a group
  const char* path;
  std::uint64_t seed;
  std::uint32_t rounds;
  int flags;

  GPUFS_DEVICE void operator()() const {
    const auto group = this_warp();
    const std::uint32_t me = simt::block_rank() * (simt::block_size() / 32) + simt::warp_rank();
    std::uint64_t turn = std::uint64_t{me} << 40;
    const auto draw = [&](std::uint64_t n) { return content_word(seed, turn++) % n; };
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const file f = open(group, fs, path, flags);
      if (f.error() != 0) return fail(group, me, f.error());
      for (std::uint64_t n = draw(20); n > 0; --n) {
        const auto mine = static_cast<std::uint32_t>(me + draw((nranges - me - 1) / plan::ngroups + 1) * plan::ngroups);
        if (const int error = write(group, f, me, mine, draw(4) == 0); error != 0) return fail(group, me, error);
        if (draw(4) == 0) {
          const int error = fsync(group, f, draw(3) == 0 ? durability::stable : durability::page_cache);
          if (error != 0) return fail(group, me, error);
          note_synced(group, me);
        }
      }
      if (round + 1 == rounds) return;  // the mount's end writes what is left
      const int error = close(group, f);
      if (error != 0) return fail(group, me, error);
      note_synced(group, me);
    }
  }

  template <class T>
  GPUFS_DEVICE static simt::atomic_ref<T, simt::scope::system> host_word(T& word) {
    return simt::atomic_ref<T, simt::scope::system>(word);
  }

  template <class Group>
  GPUFS_DEVICE void fail(Group group, std::uint32_t me, int error) const {
    if (group.leader()) host_word(notes->groups[me].error).store(error, std::memory_order_relaxed);
  }

  // 0 or a negative errno.
  template <class Group>
  GPUFS_DEVICE int write(Group group, const file& f, std::uint32_t me, std::uint32_t index, bool by_mapping) const {
    const range& r = ranges[index];
    std::uint32_t version = 0;
    if (group.leader()) {
      version = add_one(notes->notes[index].begun);
      add_one(notes->groups[me].writes);
      simt::fence(std::memory_order_seq_cst, simt::scope::system);  // it is noted before any byte of it can be in the file
    }
    version = group.broadcast(version);
    std::byte* bytes = scratch + std::size_t{me} * max_range_nbytes;
    for (std::uint32_t i = group.rank(); i < r.nbytes; i += group.size()) bytes[i] = byte_of(seed, index, version, r.offset + i);
    group.sync();
    std::uint32_t done = 0;
    while (by_mapping && (flags & O_ACCMODE) == O_RDWR && done < r.nbytes) {
      mapped_page mapped = map_page<std::byte>(group, f, static_cast<std::int64_t>(r.offset + done));
      if (mapped.error() == -ENXIO) break;  // beyond the end: pwrite makes the file longer
      if (mapped.error() != 0) return mapped.error();
      const std::uint32_t n = mapped.nbytes() < r.nbytes - done ? mapped.nbytes() : r.nbytes - done;
      for (std::uint32_t i = group.rank(); i < n; i += group.size()) mapped.data()[i] = bytes[done + i];
      const int error = unmap_page(group, std::move(mapped));
      if (error != 0) return error;
      done += n;
    }
    if (done < r.nbytes) {
      const std::int64_t n = pwrite(group, f, bytes + done, r.nbytes - done, static_cast<std::int64_t>(r.offset + done));
      if (n != r.nbytes - done) return n < 0 ? static_cast<int>(n) : -EIO;
    }
    group.sync();
    return 0;
  }

  // Of a word that only this lane writes; as it is then.
  GPUFS_DEVICE static std::uint32_t add_one(std::uint32_t& word) {
    const std::uint32_t n = host_word(word).load(std::memory_order_relaxed) + 1;
    host_word(word).store(n, std::memory_order_relaxed);
    return n;
  }

  template <class Group>
  GPUFS_DEVICE void note_synced(Group group, std::uint32_t me) const {
    if (!group.leader()) return;
    for (std::uint32_t i = me; i < nranges; i += plan::ngroups) {
      host_word(notes->notes[i].synced)
          .store(host_word(notes->notes[i].begun).load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
  }
};

int child(const std::string& directory, const std::string& journal_path, std::uint64_t seed, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // who ends before has nobody to end us
  if (::getppid() != parent) return 1;
  expect_leftovers_but_pins("the kernel need not close the file");
  const plan p(seed);
  mapped_journal notes(journal_path);
  journal* of_device = notes.register_for_device();
  {
    mount_options o;
    o.writable = true;
    o.page_nbytes = p.page_nbytes;
    o.cache_nbytes = std::uint64_t{p.nframes} * p.page_nbytes;
    o.max_open_files = 16;
    o.internals.request_rings = 4;
    o.nworkers = 2;
    if (seed % 2 == 0) o.custom_store = mapping_store(directory);
    const mount m(directory, o);
    const device_buffer<range> ranges(p.ranges);
    const device_buffer<std::byte> scratch(std::size_t{plan::ngroups} * max_range_nbytes);
    const device_buffer<char> path(std::vector<char>(file_name, file_name + std::strlen(file_name) + 1));
    simt::launch({.grid = plan::grid, .block = plan::block, .schedule = {.seed = seed, .switch_percent = 5}},
                 writer{m.ref(), of_device, ranges.get(), static_cast<std::uint32_t>(p.ranges.size()), scratch.get(), path.get(),
                        seed, p.rounds, p.flags});
    if (const std::uint64_t npins = m.counters().pins; npins != 0) {
      std::fprintf(stderr, "the kernel has left %llu pins\n", static_cast<unsigned long long>(npins));
      return 1;
    }
  }
  if (notes->error() != 0) {
    std::fprintf(stderr, "a call of a kernel gave %d\n", notes->error());
    return 1;
  }
  notes->ended = 1;
  return 0;
}

struct totals {
  std::uint64_t killed = 0, synced = 0, unsynced = 0;  // ranges
};

class killed_process : public testing::Test {
 protected:
  void one_kill(std::uint64_t seed, totals* sums) {
    const plan p(seed);
    const temp_dir all{memory_directory()};
    std::filesystem::create_directories(all / "root/sub");
    all.add("root/file", p.file_nbytes, old_seed);
    all.add("root/other", 5000, 5);
    all.add("root/sub/third", 100, 6);
    const mapped_journal notes(all / "journal");
    const int status = run_child(all / "root", all / "journal", p, *notes);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ASSERT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << "the child ended with " << status;
    ASSERT_EQ(notes->error(), 0) << "a call of a kernel";
    sums->killed += killed;

    EXPECT_EQ(names_in(all / "root"), (std::vector<std::string>{"file", "other", "sub"}));
    EXPECT_EQ(names_in(all / "root/sub"), std::vector<std::string>{"third"});
    EXPECT_EQ(all.read("root/other"), content(5, 0, 5000));
    EXPECT_EQ(all.read("root/sub/third"), content(6, 0, 100));
    compare(p, *notes, all.read("root/file"), sums);
  }

 private:
  static int run_child(const std::string& root, const std::string& journal_path, const plan& p, const journal& notes) {
    std::string arguments[] = {"kill_test", "--child", root, journal_path, std::to_string(p.seed), std::to_string(::getpid())};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    errno = ::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ);
    if (errno != 0) fail_errno("posix_spawn");
    int status = 0;
    const auto ended = [&] { return ::waitpid(pid, &status, WNOHANG) == pid; };
    bool gone = false;
    EXPECT_TRUE(wait_until([&] { return (gone = ended()) || notes.writes() > p.writes_before_kill; })) << "the child hangs";
    if (!gone) std::this_thread::sleep_for(std::chrono::microseconds(p.then_us));
    if (gone || ended()) return status;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return status;
  }

  static void compare(const plan& p, const journal& notes, const std::vector<std::byte>& got, totals* sums) {
    std::uint64_t least = p.file_nbytes, most = p.file_nbytes;
    std::vector<bool> owned(std::max<std::size_t>(got.size(), p.file_nbytes));
    for (std::uint32_t i = 0; i < p.ranges.size(); ++i) {
      const range& r = p.ranges[i];
      const note& n = notes.notes[i];
      const std::uint32_t first = notes.ended != 0 ? n.begun : n.synced;
      sums->synced += first != 0;
      sums->unsynced += first != n.begun;
      if (first != 0) least = std::max(least, r.offset + r.nbytes);
      if (n.begun != 0) most = std::max(most, r.offset + r.nbytes);
      for (std::uint64_t at = r.offset; at < std::min<std::uint64_t>(r.offset + r.nbytes, got.size()); ++at) {
        owned[at] = true;
        bool known = first == 0 && got[at] == old_byte(p, at);
        for (std::uint32_t v = std::max(first, 1u); v <= n.begun && !known; ++v) known = got[at] == byte_of(p.seed, i, v, at);
        ASSERT_TRUE(known) << "byte " << at - r.offset << " of range " << i << " (" << r.nbytes << " bytes at " << r.offset
                           << ") is of no version from " << first << " (synced) to " << n.begun << " (begun)";
      }
    }
    EXPECT_GE(got.size(), least) << "the file's size";
    EXPECT_LE(got.size(), most) << "the file's size";
    for (std::uint64_t at = 0; at < got.size(); ++at) {
      ASSERT_TRUE(owned[at] || got[at] == old_byte(p, at)) << "byte " << at << ", which nobody writes";
    }
  }

  static std::byte old_byte(const plan& p, std::uint64_t at) {
    return at < p.file_nbytes ? content_byte(old_seed, at) : std::byte{0};
  }
};

TEST_F(killed_process, what_was_synced_is_there_and_nothing_else_has_changed) {
  expect_leftovers("the process is killed");
  const std::uint64_t first = number_from_environment("GPUFS_TEST_SEED", 0);
  const std::uint64_t n = first != 0 ? 1 : number_from_environment("GPUFS_TEST_KILLS", fewer(15));
  const std::uint64_t begin = first != 0 ? first : number_from_environment("GPUFS_TEST_FIRST_SEED", 1);
  totals sums;
  for (std::uint64_t seed = begin; seed < begin + n; ++seed) {
    ASSERT_NO_FATAL_FAILURE(one_kill(seed, &sums)) << "GPUFS_TEST_SEED=" << seed;
    ASSERT_FALSE(HasFailure()) << "GPUFS_TEST_SEED=" << seed;
  }
  std::printf("%llu of %llu killed as they wrote; ranges with synced bytes: %llu, with others: %llu\n",
              static_cast<unsigned long long>(sums.killed), static_cast<unsigned long long>(n),
              static_cast<unsigned long long>(sums.synced), static_cast<unsigned long long>(sums.unsynced));
  if (n < 10) return;
  EXPECT_GE(sums.killed, n / 3);
  EXPECT_GE(sums.synced, n * 10) << "there was something to lose";
  EXPECT_GE(sums.unsynced, n);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--child")
    return gpufs::test::child(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), std::atoi(argv[5]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
