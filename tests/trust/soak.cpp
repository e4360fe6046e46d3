// SPDX-License-Identifier: Apache-2.0
// Kernels on two mounts and two processes work on the same files for as long as is asked: soak SECONDS [SEED]. Each byte of a file
// says which file and place it is meant for, and by its low bits which version of it; each actor (a group of threads, or a process)
// knows the versions of what it owns. Contents are checked all the time, and all of them after each round, with pins, pages,
// descriptors and memory. GPUFS_TEST_SEED is no use here: threads and processes meet as they like; the seed says what they ask for.
#include <malloc.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "soak_kernel.hpp"

extern char** environ;

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

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
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // who is killed takes us along
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
// What the process has taken, in MiB: by malloc (touched or not), of its own memory in all (files and what is shared with others
// come and go with the mounts), and of the device's: what others take there counts, too, so nobody else is to use it.
struct taken_memory {
  std::uint64_t in_use, own, device;
};
taken_memory memory_now() {
  ::malloc_trim(0);
  std::uint64_t all = 0, resident = 0, shared = 0;
  std::FILE* in = std::fopen("/proc/self/statm", "r");
  if (in == nullptr || std::fscanf(in, "%lu %lu %lu", &all, &resident, &shared) != 3) wrong("/proc/self/statm");
  std::fclose(in);
  const struct mallinfo2 heap = ::mallinfo2();  // zeros under sanitizers
  std::size_t device_free = 0, device_all = 0;
#if GPUFS_ON_CUDA
  expect(cudaMemGetInfo(&device_free, &device_all) == cudaSuccess, "cudaMemGetInfo");
#endif
  return {(heap.uordblks + heap.hblkhd) >> 20, (resident - shared) * 4096 >> 20, (device_all - device_free) >> 20};
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

// Frames that are neither free nor have a page, nor one on its way, while no kernel runs: nobody would get them any more.
std::uint64_t lost_frames(const mount& m) {
  const cache::frame_storage& frames = mount_inside(m).layout().cache.frames;
  const auto read = [&](const std::uint64_t* words) {
    std::vector<std::uint64_t> all(frames.nframes);
    simt::this_platform().copy_from_device(all.data(), words, all.size() * sizeof all[0]);
    return all;
  };
  const auto states = read(frames.states), operations = read(cache::operations_of(frames));
  std::uint64_t lost = 0;
  for (std::size_t f = 0; f < states.size(); ++f) {
    const bool busy = (states[f] & (cache::frame_state::claimed | cache::frame_state::filling)) != 0;
    lost += busy && (states[f] & cache::frame_state::free) == 0 && operations[f] == 0;
  }
  return lost;
}

void check_mount(const mount& m) {
  const mount_counters now = m.counters();
  const std::pair<const char*, std::uint64_t> zeros[] = {
      {"pins", now.pins},
      {"pinned frames", now.pinned_frames},
      {"lost frames", lost_frames(m)},
      {"dirty frames", now.dirty_frames},
      {"unwritten pages", now.unwritten_pages},
      {"write errors", now.write_errors},
      {"failed accesses through pointers", now.fault_errors},
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
  const temp_dir dir{memory_directory()};
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
    if (draw.percent(50)) o.custom_store = mapping_store(dir / "root");
    o.max_open_files = 1024;
    o.internals.request_rings = static_cast<std::uint32_t>(draw.between(1, 8));
    o.nworkers = static_cast<std::uint32_t>(draw.between(2, 4));
    o.frame_timeout = std::chrono::seconds(60);
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
  std::uint64_t descriptors = 0;
  taken_memory most{};  // in the first rounds, after which all is there that stays
  std::uint64_t rounds = 0;
  const auto tell = [](const char* format, auto... numbers) {
    std::printf(format, static_cast<unsigned long long>(numbers)...);
    std::fflush(stdout);
  };
  for (; std::chrono::steady_clock::now() < end; ++rounds, ++seed) {
    tell("round %llu, seed %llu", rounds, seed);
    if (rounds == 0) descriptors = open_descriptors();
    one_round(seed, time, &sums);
    const taken_memory now = memory_now();
    tell(": %llu MiB in memory, %llu given out by malloc, %llu of the device\n", now.own, now.in_use, now.device);
    expect(on_cuda && rounds == 0 ? true : open_descriptors() == descriptors,
           numbered("descriptors stay open: ", open_descriptors()));
    if (on_cuda && rounds == 0) descriptors = open_descriptors();
    if (rounds <= 2) {
      most = {std::max(most.in_use, now.in_use), std::max(most.own, now.own), std::max(most.device, now.device)};
    }
    expect(now.in_use <= most.in_use + most.in_use / 4 + 16, numbered("malloc gives out more and more, MiB: ", now.in_use));
    expect(now.own <= most.own + most.own / 4 + 64, numbered("memory grows, MiB: ", now.own));
    expect(now.device <= most.device + 64, numbered("the device's memory is not given back, MiB: ", now.device));
  }
  tell("%llu rounds: %llu kernels, %llu steps of theirs, %llu of processes; %llu pages written back, %llu evicted\n", rounds,
       sums.launches, sums.steps, sums.process_steps, sums.write_backs, sums.evictions);
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
  ::mallopt(M_ARENA_MAX, 1);  // malloc_trim gives back the end of this heap only, not those of threads' own
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return gpufs::test::soak(number(1, 5), number(2, now % 1'000'000));
}
