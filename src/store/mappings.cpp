// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <thread>
#include <utility>

#include "file_system.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

std::size_t whole_pages(std::size_t nbytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

// Ten times what it takes.
std::chrono::nanoseconds longest_registration(std::size_t nbytes) {
  return std::chrono::seconds(2) + std::chrono::nanoseconds(nbytes);
}

std::string mib(std::uint64_t nbytes) { return std::to_string((nbytes + (1u << 20) - 1) >> 20) + " MiB"; }

// Nothing where there is no memory for it.
std::string text_of(const std::exception& e) noexcept {
  try {
    return e.what();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace

mappings::mappings(simt::platform& machine, std::uint64_t budget_nbytes)
    : machine_(machine), budget_nbytes_(budget_nbytes), pagemap_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

mappings::~mappings() {
  {
    std::unique_lock hold(lock_);
    registered_.wait(hold, [&] { return registering_.empty(); });
  }
  // Every file holds this object, so all mappings are idle now.
  for (const auto& [version, m] : by_version_) unmap(*m);
}

mappings::use mappings::acquire(const file_info& info, int fd, std::string* why) { return acquire(info, fd, false, why); }

mappings::use mappings::acquire_to_write(const file_info& info, int fd, std::string* why) {
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0 || static_cast<std::uint64_t>(fs.f_type) != TMPFS_MAGIC) {
    *why = "it is not in memory (tmpfs)";
    return nullptr;
  }
  struct stat st;
  if (::fstat(fd, &st) != 0 || st.st_size != info.nbytes || st.st_blocks * 512 < st.st_size) {
    *why = "it has holes";
    return nullptr;
  }
  for (int tries = 0; tries < 2; ++tries) {
    auto m = acquire(info, fd, true, why);
    if (!m || whole_nbytes(*m, m->nbytes, true) == m->nbytes) return m;
    // Cut since it was mapped: nobody gets it any more.
    const std::scoped_lock hold(lock_);
    auto known = by_version_.extract(m->version);
    std::get<5>(m->version) = ++unsettled_;
    known.key() = m->version;
    by_version_.insert(std::move(known));
  }
  *why = "the system does not tell whether a mapping's pages are the file's (/proc/self/pagemap)";
  return nullptr;
}

std::size_t mappings::whole_nbytes(const mapping& m, std::size_t nbytes, bool changed) const {
  std::array<std::uint64_t, 4096> words;
  const std::size_t page = whole_pages(1), npages = whole_pages(nbytes) / page;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(m.memory.get()) / page;
  const auto file_has = [&](std::size_t i) {
    unsigned char resident = 0;
    return ::mincore(static_cast<std::byte*>(m.memory.get()) + i * page, page, &resident) == 0 && (resident & 1) != 0;
  };
  for (std::size_t done = 0; done < npages;) {
    const std::size_t n = std::min(words.size(), npages - done);
    const std::int64_t got = read_to_end(
        [this](std::byte* to, std::size_t room, std::int64_t at) -> std::int64_t {
          const ssize_t some = ::pread(pagemap_.get(), to, room, at);
          return some < 0 ? -errno : some;
        },
        std::as_writable_bytes(std::span(words.data(), n)), static_cast<std::int64_t>((first + done) * 8));
    if (got < 8) return done * page;
    const auto nread = static_cast<std::size_t>(got) / 8;
    for (std::size_t i = 0; i < nread; ++i) {
      const bool is_mapped = words[i] >> 62 != 0;  // there, or being moved
      if (!is_mapped && (m.is_locked || changed || !file_has(done + i))) return (done + i) * page;
    }
    done += nread;
  }
  return nbytes;
}

mappings::use mappings::acquire(const file_info& info, int fd, bool writable, std::string* why) {
  if (info.nbytes == 0) {
    *why = "it is empty, and nothing cannot be mapped";
    return nullptr;
  }
  constexpr const char* too_long =
      "registering its mapping takes too long: some thread may be in a CUDA call that waits for a kernel";
  const std::size_t nbytes = whole_pages(static_cast<std::size_t>(info.nbytes));
  unique_mmap memory;  // before the lock: what nobody needs is unmapped without it
  std::unique_lock hold(lock_);
  const version_key version =
      writable ? version_key{info.device, info.inode, info.nbytes, 0, 0, ~std::uint64_t{0}}
               : version_key{info.device, info.inode, info.nbytes, info.mtime_ns, info.ctime_ns, info.settled ? 0 : ++unsettled_};
  std::shared_ptr<mapping> m = join(version);
  if (!m) {
    // mmap waits while CUDA pins another mapping's pages; nobody else shall.
    hold.unlock();
    // Registering brings the pages in on CUDA, and in time or not at all; on the CPU machine each read would, and no time bounds
    // it.
    const bool hangs = !machine_.is_cuda() && may_hang(file_system_of(fd));
    if (!hangs) memory = unique_mmap(fd, nbytes, writable);
    const int failure = errno;
    hold.lock();
    m = join(version);
    const auto now = std::chrono::steady_clock::now();
    if (m) {
      // somebody else was faster
    } else if (hangs) {
      *why = "its file system is served by a process or another machine: while that hangs, reading the mapping would, too";
    } else if (memory.get() == nullptr) {
      *why = std::string("mmap failed: ") + std::strerror(failure);
    } else if (nbytes > budget_nbytes_ - pinned_nbytes_) {  // cannot overflow: pinned_nbytes_ never exceeds the budget
      *why = "its " + mib(nbytes) + " do not fit the pin budget of " + mib(budget_nbytes_) + " (" + mib(pinned_nbytes_) + " in use";
      if (idle_nbytes_ != 0) *why += ", " + mib(idle_nbytes_) + " of it by closed files, which trim() gives back";
      *why += ")";
    } else if (std::any_of(registering_.begin(), registering_.end(), [&](const auto& other) { return other->due < now; })) {
      *why = too_long;
    } else {
      m = begin_registration(version, std::move(memory), nbytes, writable);
    }
    if (!m) return nullptr;
  }
  registered_.wait_until(hold, m->due, [&] { return m->ready || m->failed; });
  if (m->ready) return use(m.get(), {this});
  --m->users;
  *why = !m->failed ? too_long : "registering the mapping failed: " + (m->failure.empty() ? "no reason given" : m->failure);
  return nullptr;
}

// The mapping of a version, with one user more; or nullptr. Under the lock.
std::shared_ptr<mappings::mapping> mappings::join(const version_key& version) {
  const auto found = by_version_.find(version);
  if (found == by_version_.end()) return nullptr;
  const std::shared_ptr<mapping>& m = found->second;
  if (m->users++ == 0 && m->ready) {
    used_.splice(used_.end(), idle_, m->place);
    idle_nbytes_ -= m->nbytes;
  }
  return m;
}

// With one user. Under the lock.
std::shared_ptr<mappings::mapping> mappings::begin_registration(const version_key& version, unique_mmap memory, std::size_t nbytes,
                                                                bool writable) {
  auto m = std::make_shared<mapping>();
  m->version = version;
  m->writable = writable;
  m->memory = std::move(memory);
  m->nbytes = nbytes;
  m->due = std::chrono::steady_clock::now() + longest_registration(nbytes);
  m->users = 1;
  mapping_list one{m};
  m->place = one.begin();
  by_version_.emplace(version, m);  // the last that may throw while nobody knows of it
  registering_.splice(registering_.end(), one);
  pinned_nbytes_ += nbytes;
  try {
    std::thread([this, m] { register_mapping(m); }).detach();
  } catch (const std::exception& e) {  // no thread, no memory
    end_registration(*m, nullptr, text_of(e));
  }
  return m;
}

// In a thread of its own.
void mappings::register_mapping(const std::shared_ptr<mapping>& m) noexcept {
  std::string why;
  const void* device = nullptr;
  try {
    // Else the kernel may take pages out of the mapping while it looks for memory, and whole_nbytes would take that for a cut.
    // Needs RLIMIT_MEMLOCK; does without. Before registering, which then brings the pages in.
    if (m->writable) m->is_locked = ::mlock2(m->memory.get(), m->nbytes, MLOCK_ONFAULT) == 0;
    device = m->writable ? machine_.register_writable(m->memory.get(), m->nbytes, &why)
                         : machine_.register_readonly(m->memory.get(), m->nbytes, &why);
  } catch (const std::exception& e) {
    why = text_of(e);
  }
  const std::scoped_lock hold(lock_);
  end_registration(*m, device, std::move(why));
}

// Under the lock, under which it also wakes those that wait: who destroys us is one of them. The caller shares m.
void mappings::end_registration(mapping& m, const void* device, std::string why) noexcept {
  if (device != nullptr) {
    m.device_address = static_cast<const std::byte*>(device);
    m.ready = true;
    mapping_list& to = m.users == 0 ? idle_ : used_;  // nobody may have waited so long
    to.splice(to.end(), registering_, m.place);
    if (m.users == 0) idle_nbytes_ += m.nbytes;
  } else {
    m.failed = true;
    m.failure = std::move(why);
    m.memory.reset();
    pinned_nbytes_ -= m.nbytes;
    by_version_.erase(m.version);
    registering_.erase(m.place);
  }
  registered_.notify_all();
}

void mappings::release(mapping& used) noexcept {
  const std::scoped_lock hold(lock_);
  assert(used.users > 0);
  if (--used.users != 0) return;
  idle_.splice(idle_.end(), used_, used.place);
  idle_nbytes_ += used.nbytes;
}

void mappings::trim(std::uint64_t keep_nbytes) {
  mapping_list unused;
  {
    const std::scoped_lock hold(lock_);
    while (!idle_.empty() && idle_nbytes_ > keep_nbytes) {
      idle_nbytes_ -= idle_.front()->nbytes;
      by_version_.erase(idle_.front()->version);
      unused.splice(unused.end(), idle_, idle_.begin());
    }
  }
  for (const auto& m : unused) {
    unmap(*m);
    const std::scoped_lock hold(lock_);
    pinned_nbytes_ -= m->nbytes;  // only now is the memory free again
  }
}

void mappings::unmap(mapping& m) noexcept {
  machine_.unregister(m.memory.get());
  m.memory.reset();
}

pin_usage mappings::usage() const {
  const std::scoped_lock hold(lock_);
  return {budget_nbytes_, pinned_nbytes_, idle_nbytes_, by_version_.size(), idle_.size()};
}

stored_file::stored_file(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner, mappings::use mapping)
    : file_(std::move(file)),
      owner_(std::move(owner)),
      mapping_(std::move(mapping)),
      info_(file_->info()),
      own_nbytes_(mapping_->nbytes),
      whole_nbytes_(mapping_->nbytes),
      ctime_ns_(info_.ctime_ns) {
  info_.pull_base = mapping_->device_address;
  info_.reason = "stored: it is open for writing, its mapping is registered, and the device writes the host's page cache in place";
}

int stored_file::truncate(std::int64_t nbytes) {
  const std::scoped_lock hold(lock_);
  if (nbytes >= 0) own_nbytes_ = std::min(own_nbytes_, static_cast<std::size_t>(nbytes));
  return file_->truncate(nbytes);
}

int stored_file::note_stores(std::int64_t nbytes, bool last) {
  if (nbytes < 0) return -EINVAL;
  const std::scoped_lock hold(lock_);
  struct stat before, after;
  const int fd = file_->descriptor();
  if (::fstat(fd, &before) != 0) return -errno;
  // Who may write no more since it was opened may not move mtime either.
  if (::futimens(fd, nullptr) != 0 && errno != EACCES && errno != EPERM && errno != EROFS) return -errno;
  if (::fstat(fd, &after) != 0) return -errno;
  // Who cuts it between both looks at the file is noticed by what it has lost.
  const bool changed = ns_of(before.st_ctim) != ctime_ns_ || after.st_size < before.st_size || after.st_blocks < before.st_blocks;
  if (last || changed) whole_nbytes_ = owner_->whole_nbytes(*mapping_, std::min(whole_nbytes_, own_nbytes_), changed);
  ctime_ns_ = ns_of(after.st_ctim);
  const std::size_t wanted = std::min(own_nbytes_, static_cast<std::size_t>(nbytes));
  return whole_nbytes_ < wanted || static_cast<std::size_t>(after.st_size) < wanted ? -EIO : 0;
}

mapped_file::mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, mappings::use mapping,
                         std::string reason)
    : file_(std::move(file)), owner_(std::move(owner)), mapping_(std::move(mapping)), info_(file_->info()) {
  info_.kind = service::source_kind::pull;
  info_.pull_base = mapping_->device_address;
  info_.reason = std::move(reason);
}

}  // namespace gpufs::store
