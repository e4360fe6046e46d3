// SPDX-License-Identifier: Apache-2.0
// A folder of a real FUSE file system whose files hang, fail, are slow or give less than was asked, as a test says. Its server is a
// child that speaks the kernel's protocol (linux/fuse.h) itself, so nothing need be installed; who dies, or kills it, hangs no
// more.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "file/name_spaces.hpp"

namespace gpufs::test {

// One file of the folder, in memory that the server shares. What the test changes counts from the next request on; requests that
// hang are answered once it says that they do not.
struct fuse_file {
  static constexpr std::size_t capacity = 4 << 20;
  std::atomic<bool> exists{false};
  char name[64] = {};
  std::atomic<std::uint64_t> nbytes{0}, mtime_s{1'000'000'000};
  std::atomic<bool> hangs_lookup{false}, hangs_open{false}, hangs_read{false}, hangs_write{false}, hangs_status{false};
  std::atomic<bool> hangs_flush{false};              // of each close(2)
  std::atomic<bool> direct{false};                   // past the page cache: reads are those that were asked for
  std::atomic<int> read_error{0};                    // every read fails so; 0: none
  std::atomic<std::uint32_t> interrupt_every{0};     // every n-th read gives EINTR; 0: none
  std::atomic<std::uint32_t> short_every{0};         // every n-th read gives half of what was asked; 0: none
  std::atomic<std::uint32_t> delay_ms{0};            // of each read
  std::atomic<std::uint32_t> nreads{0}, nwrites{0};  // requests that came
  std::atomic<std::uint32_t> nhung{0};               // requests that wait now
  std::byte bytes[capacity];
};

class fuse_folder {
 public:
  fuse_folder() : shared_(map_shared()) {
    const own_ids ids;
    int answers[2];
    if (::pipe2(answers, O_CLOEXEC) != 0) fail_errno("pipe2");
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ < 0) fail_errno("fork");
    if (child_ == 0) {  // calls nothing that takes a lock
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(answers[0]);
      int error = ::getppid() == parent && enter_name_spaces(ids) ? 0 : errno;
      const int fd = error == 0 ? ::open("/dev/fuse", O_RDWR | O_CLOEXEC) : -1;
      if (error == 0 && fd < 0) error = errno;
      char options[128];
      std::snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fd, ::getuid(), ::getgid());
      if (error == 0 && ::mount("gpufs-test", at_.path().c_str(), "fuse", MS_NODEV | MS_NOSUID, options) != 0) error = errno;
      if (::write(answers[1], &error, sizeof error) == sizeof error && error == 0) server{*shared_, fd}.run();
      ::_exit(0);
    }
    ::close(answers[1]);
    if (::read(answers[0], &error_, sizeof error_) != sizeof error_) error_ = ECHILD;
    ::close(answers[0]);
  }
  ~fuse_folder() {
    end();
    ::munmap(shared_, sizeof *shared_);
  }
  fuse_folder(const fuse_folder&) = delete;
  fuse_folder& operator=(const fuse_folder&) = delete;

  int error() const { return error_; }  // why there is none, or 0
  std::string path() const { return "/proc/" + std::to_string(child_) + "/root" + at_.path(); }

  // The server dies: whatever hangs fails.
  void end() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  // A file of nbytes bytes of content(seed).
  fuse_file& add(const std::string& name, std::size_t nbytes, std::uint64_t seed) {
    for (fuse_file& file : shared_->files) {
      if (file.exists) continue;
      std::strncpy(file.name, name.c_str(), sizeof file.name - 1);
      const auto bytes = content(seed, 0, nbytes);
      std::copy(bytes.begin(), bytes.end(), file.bytes);
      file.nbytes = nbytes;
      file.exists = true;
      return file;
    }
    throw std::runtime_error("the FUSE folder has no room for another file");
  }

 private:
  static constexpr std::size_t max_files = 128, max_waiting = 512, max_write = 65536, request_nbytes = max_write + 4096;

  // A request that has not been answered yet.
  struct waiting_request {
    std::uint64_t due_ns;  // 0: none is here
    fuse_file* file;
    alignas(8) char request[request_nbytes];
  };
  struct shared {
    fuse_file files[max_files];
    waiting_request waiting[max_waiting];
  };

  static shared* map_shared() {
    void* at = ::mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail_errno("mmap");
    auto* made = static_cast<shared*>(at);
    for (fuse_file& file : made->files) new (&file) fuse_file;  // its bytes stay untouched, and unallocated
    return made;
  }

  // In the child.
  class server {
   public:
    server(shared& all, int fd) : all_(all), fd_(fd) {}

    void run() {
      for (;;) {
        pollfd what{fd_, POLLIN, 0};
        ::poll(&what, 1, nwaiting_ != 0 ? 1 : -1);
        const std::uint64_t now = now_ns();
        for (waiting_request& w : all_.waiting) {
          if (nwaiting_ == 0) break;
          if (w.due_ns == 0 || w.due_ns > now || hangs(w.file, header_of(w.request).opcode)) continue;
          w.due_ns = 0;
          --nwaiting_;
          --w.file->nhung;
          answer(w.request);
        }
        if ((what.revents & POLLIN) == 0) continue;
        const ssize_t n = ::read(fd_, request_, sizeof request_);
        if (n < 0 && errno == ENODEV) return;  // unmounted
        if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) take();
      }
    }

   private:
    static std::uint64_t now_ns() {
      timespec t;
      ::clock_gettime(CLOCK_MONOTONIC, &t);
      return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
    }
    static const fuse_in_header& header_of(const char* request) { return *reinterpret_cast<const fuse_in_header*>(request); }
    template <class T>
    static const T& body_of(const char* request) {
      return *reinterpret_cast<const T*>(request + sizeof(fuse_in_header));
    }

    fuse_file* by_node(std::uint64_t node) {
      return node >= first_node && node < first_node + max_files ? &all_.files[node - first_node] : nullptr;
    }
    std::uint64_t node_of(const fuse_file& file) const { return first_node + static_cast<std::uint64_t>(&file - all_.files); }
    fuse_file* by_name(const char* name) {
      for (fuse_file& file : all_.files) {
        if (file.exists && std::strcmp(file.name, name) == 0) return &file;
      }
      return nullptr;
    }

    static bool hangs(const fuse_file* file, std::uint32_t opcode) {
      switch (opcode) {
        case FUSE_LOOKUP:
          return file->hangs_lookup;
        case FUSE_OPEN:
          return file->hangs_open;
        case FUSE_READ:
          return file->hangs_read;
        case FUSE_WRITE:
          return file->hangs_write;
        case FUSE_GETATTR:
          return file->hangs_status;
        case FUSE_FLUSH:
          return file->hangs_flush;
        default:
          return false;
      }
    }

    // Answers what has come, or keeps it.
    void take() {
      const fuse_in_header& ask = header_of(request_);
      fuse_file* file = ask.opcode == FUSE_LOOKUP ? by_name(request_ + sizeof ask) : by_node(ask.nodeid);
      if (file != nullptr) {
        file->nreads += ask.opcode == FUSE_READ;
        file->nwrites += ask.opcode == FUSE_WRITE;
        const std::uint64_t delay_ns = ask.opcode == FUSE_READ ? std::uint64_t{file->delay_ms} * 1'000'000 : 0;
        if (delay_ns != 0 || hangs(file, ask.opcode)) {
          for (waiting_request& w : all_.waiting) {
            if (w.due_ns != 0) continue;
            std::memcpy(w.request, request_, ask.len);
            w.due_ns = now_ns() + delay_ns;
            w.file = file;
            ++nwaiting_;
            ++file->nhung;
            return;
          }
        }
      }
      answer(request_);
    }

    void reply(const fuse_in_header& to, int error, const void* body = nullptr, std::size_t nbytes = 0) const {
      fuse_out_header header{static_cast<std::uint32_t>(sizeof header + nbytes), error, to.unique};
      const iovec parts[] = {{&header, sizeof header}, {const_cast<void*>(body), nbytes}};
      [[maybe_unused]] const ssize_t sent = ::writev(fd_, parts, nbytes != 0 ? 2 : 1);  // fails when nobody waits any more
    }

    fuse_attr attributes_of(std::uint64_t node) {
      const fuse_file* file = by_node(node);
      fuse_attr a{};
      a.ino = node;
      a.mode = file != nullptr ? S_IFREG | 0644 : S_IFDIR | 0755;
      a.nlink = 1;
      a.uid = ::getuid();
      a.gid = ::getgid();
      a.blksize = 4096;
      a.size = file != nullptr ? file->nbytes.load() : 0;
      a.blocks = (a.size + 511) / 512;
      a.atime = a.mtime = a.ctime = file != nullptr ? file->mtime_s.load() : 1'000'000'000;
      return a;
    }
    fuse_entry_out entry_of(const fuse_file& file) {
      fuse_entry_out out{};
      out.nodeid = node_of(file);
      out.attr = attributes_of(out.nodeid);
      return out;  // and is asked for again each time
    }
    static fuse_open_out opened(const fuse_file* file) {
      fuse_open_out out{};
      out.open_flags = file != nullptr && file->direct ? FOPEN_DIRECT_IO : FOPEN_KEEP_CACHE;
      return out;
    }
    static void touch(fuse_file& file) { file.mtime_s = static_cast<std::uint64_t>(::time(nullptr)); }

    void answer(const char* request) {
      const fuse_in_header& ask = header_of(request);
      fuse_file* file = by_node(ask.nodeid);
      switch (ask.opcode) {
        case FUSE_INIT: {
          fuse_init_out out{};
          out.major = FUSE_KERNEL_VERSION;
          out.minor = 31;
          out.max_write = max_write;
          out.max_background = max_waiting;
          out.congestion_threshold = max_waiting;
          out.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS;  // a look-up that hangs is alone
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_LOOKUP: {
          const fuse_file* found = by_name(request + sizeof ask);
          if (found == nullptr) return reply(ask, -ENOENT);
          const fuse_entry_out out = entry_of(*found);
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_CREATE: {
          const char* name = request + sizeof ask + sizeof(fuse_create_in);
          fuse_file* made =
              std::find_if(std::begin(all_.files), std::end(all_.files), [](const fuse_file& f) { return !f.exists; });
          if (made == std::end(all_.files)) return reply(ask, -ENOSPC);
          std::strncpy(made->name, name, sizeof made->name - 1);
          made->exists = true;
          struct {
            fuse_entry_out entry;
            fuse_open_out open;
          } const out{entry_of(*made), opened(made)};
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_GETATTR:
          return reply_attributes(ask);
        case FUSE_SETATTR: {
          const auto& in = body_of<fuse_setattr_in>(request);
          if (file != nullptr && (in.valid & FATTR_SIZE) != 0) file->nbytes = std::min<std::uint64_t>(in.size, file->capacity);
          if (file != nullptr) touch(*file);
          return reply_attributes(ask);
        }
        case FUSE_OPEN:
        case FUSE_OPENDIR: {
          const fuse_open_out out = opened(file);
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_READ:
          return file != nullptr ? read(ask, body_of<fuse_read_in>(request), *file) : reply(ask, -EBADF);
        case FUSE_WRITE: {
          const auto& in = body_of<fuse_write_in>(request);
          if (file == nullptr || in.offset + in.size > file->capacity) return reply(ask, -ENOSPC);
          std::memcpy(file->bytes + in.offset, request + sizeof ask + sizeof in, in.size);
          file->nbytes = std::max(file->nbytes.load(), in.offset + in.size);
          touch(*file);
          fuse_write_out out{};
          out.size = in.size;
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_FLUSH:
        case FUSE_FSYNC:
        case FUSE_RELEASE:
        case FUSE_RELEASEDIR:
          return reply(ask, 0);
        case FUSE_STATFS: {
          fuse_statfs_out out{};
          out.st.bsize = out.st.frsize = 4096;
          out.st.namelen = 63;
          return reply(ask, 0, &out, sizeof out);
        }
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
          return;  // get no answer
        default:
          return reply(ask, -ENOSYS);
      }
    }

    void reply_attributes(const fuse_in_header& ask) {
      fuse_attr_out out{};
      out.attr = attributes_of(ask.nodeid);
      reply(ask, 0, &out, sizeof out);
    }

    void read(const fuse_in_header& ask, const fuse_read_in& in, fuse_file& file) const {
      const std::uint32_t n = file.nreads;
      if (const int error = file.read_error; error != 0) return reply(ask, -error);
      if (const std::uint32_t every = file.interrupt_every; every != 0 && n % every == 0) return reply(ask, -EINTR);
      const std::uint64_t left = in.offset < file.nbytes ? file.nbytes - in.offset : 0;
      std::uint64_t nbytes = std::min<std::uint64_t>(left, in.size);
      if (const std::uint32_t every = file.short_every; every != 0 && n % every == 0) nbytes = (nbytes + 1) / 2;
      reply(ask, 0, file.bytes + in.offset, nbytes);
    }

    static constexpr std::uint64_t first_node = FUSE_ROOT_ID + 1;
    shared& all_;
    int fd_;
    std::uint32_t nwaiting_ = 0;
    alignas(8) char request_[request_nbytes];
  };

  temp_dir at_;
  shared* shared_;
  pid_t child_ = -1;
  int error_ = 0;
};

}  // namespace gpufs::test
