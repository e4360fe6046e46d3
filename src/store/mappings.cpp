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
#include <thread>
#include <utility>

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

std::shared_ptr<mappings::mapping> mappings::acquire(const file_info& info, int fd, std::string* why) {
  return acquire(info, fd, false, why);
}

std::shared_ptr<mappings::mapping> mappings::acquire_to_write(const file_info& info, int fd, std::string* why) {
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
    if (!m || whole_nbytes(*m, m->nbytes) == m->nbytes) return m;
    // Cut since it was mapped: nobody gets it any more.
    {
      const std::scoped_lock hold(lock_);
      by_version_.erase(m->version);
      std::get<5>(m->version) = ++unsettled_;
      by_version_.emplace(m->version, m);
    }
    release(m);
  }
  *why = "the system does not tell whether a mapping's pages are the file's (/proc/self/pagemap)";
  return nullptr;
}

std::size_t mappings::whole_nbytes(const mapping& m, std::size_t nbytes) const {
  std::array<std::uint64_t, 4096> words;
  const std::size_t page = whole_pages(1), npages = whole_pages(nbytes) / page;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(m.address) / page;
  for (std::size_t done = 0; done < npages;) {
    const std::size_t n = std::min(words.size(), npages - done);
    const ssize_t got = ::pread(pagemap_.get(), words.data(), n * 8, static_cast<off_t>((first + done) * 8));
    if (got < 8) return done * page;
    const auto nread = static_cast<std::size_t>(got) / 8;
    for (std::size_t i = 0; i < nread; ++i) {
      if (words[i] >> 62 == 0) return (done + i) * page;  // neither there nor being moved
    }
    done += nread;
  }
  return nbytes;
}

std::shared_ptr<mappings::mapping> mappings::acquire(const file_info& info, int fd, bool writable, std::string* why) {
  if (info.nbytes == 0) {
    *why = "it is empty, and nothing cannot be mapped";
    return nullptr;
  }
  constexpr const char* too_long =
      "registering its mapping takes too long: some thread may be in a CUDA call that waits for a kernel";
  const std::size_t nbytes = whole_pages(static_cast<std::size_t>(info.nbytes));
  std::unique_lock hold(lock_);
  const version_key version =
      writable ? version_key{info.device, info.inode, info.nbytes, 0, 0, ~std::uint64_t{0}}
               : version_key{info.device, info.inode, info.nbytes, info.mtime_ns, info.ctime_ns, info.settled ? 0 : ++unsettled_};
  std::shared_ptr<mapping> m = join(version);
  if (!m) {
    // mmap waits while CUDA pins another mapping's pages; nobody else shall.
    hold.unlock();
    void* address = ::mmap(nullptr, nbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    const int failure = errno;
    hold.lock();
    m = join(version);
    const auto now = std::chrono::steady_clock::now();
    if (m || address == MAP_FAILED) {
      if (!m) *why = std::string("mmap failed: ") + std::strerror(failure);
    } else if (nbytes > budget_nbytes_ - pinned_nbytes_) {  // cannot overflow: pinned_nbytes_ never exceeds the budget
      *why = "its " + mib(nbytes) + " do not fit the pin budget of " + mib(budget_nbytes_) + " (" + mib(pinned_nbytes_) + " in use";
      if (idle_nbytes_ != 0) *why += ", " + mib(idle_nbytes_) + " of it by closed files, which trim() gives back";
      *why += ")";
    } else if (std::any_of(registering_.begin(), registering_.end(), [&](const auto& other) { return other->due < now; })) {
      *why = too_long;
    } else {
      m = std::make_shared<mapping>();
      m->version = version;
      m->writable = writable;
      m->address = std::exchange(address, MAP_FAILED);
      m->nbytes = nbytes;
      m->due = now + longest_registration(nbytes);
      m->users = 1;
      begin_registration(m);
    }
    if (address != MAP_FAILED) ::munmap(address, nbytes);
    if (!m) return nullptr;
  }
  registered_.wait_until(hold, m->due, [&] { return m->ready || !m->failure.empty(); });
  if (m->ready) return m;
  *why = m->failure.empty() ? too_long : m->failure;
  --m->users;
  return nullptr;
}

// The mapping of a version, with one user more; or nullptr. Under the lock.
std::shared_ptr<mappings::mapping> mappings::join(const version_key& version) {
  const auto found = by_version_.find(version);
  if (found == by_version_.end()) return nullptr;
  const std::shared_ptr<mapping>& m = found->second;
  if (m->users++ == 0 && m->ready) {
    idle_.erase(m->idle_place);
    idle_nbytes_ -= m->nbytes;
  }
  return m;
}

// Under the lock.
void mappings::begin_registration(const std::shared_ptr<mapping>& m) {
  const auto place = registering_.insert(registering_.end(), m);
  pinned_nbytes_ += m->nbytes;
  try {
    by_version_.emplace(m->version, m);
    std::thread([this, place] { register_mapping(place); }).detach();
  } catch (const std::exception& e) {  // no thread, no memory
    end_registration(place, nullptr, e.what());
  }
}

// In a thread of its own.
void mappings::register_mapping(std::list<std::shared_ptr<mapping>>::iterator place) {
  const std::shared_ptr<mapping> m = *place;  // nobody else takes it out of the list
  std::string why;
  const void* device = nullptr;
  try {
    device = m->writable ? machine_.register_writable(m->address, m->nbytes, &why)
                         : machine_.register_readonly(m->address, m->nbytes, &why);
  } catch (const std::exception& e) {
    why = e.what();
  }
  const std::scoped_lock hold(lock_);
  end_registration(place, device, why);
}

// Under the lock, under which it also wakes those that wait: who destroys us is one of them.
void mappings::end_registration(std::list<std::shared_ptr<mapping>>::iterator place, const void* device, const std::string& why) {
  const std::shared_ptr<mapping> m = *place;
  registering_.erase(place);
  if (device != nullptr) {
    m->device_address = static_cast<const std::byte*>(device);
    m->ready = true;
    if (m->users == 0) put_to_idle(m);  // nobody has waited so long
  } else {
    m->failure = "registering the mapping failed: " + (why.empty() ? std::string("no reason given") : why);
    ::munmap(m->address, m->nbytes);
    pinned_nbytes_ -= m->nbytes;
    by_version_.erase(m->version);
  }
  registered_.notify_all();
}

void mappings::put_to_idle(const std::shared_ptr<mapping>& m) {
  m->idle_place = idle_.insert(idle_.end(), m);
  idle_nbytes_ += m->nbytes;
}

void mappings::release(const std::shared_ptr<mapping>& used) noexcept {
  const std::scoped_lock hold(lock_);
  assert(used->users > 0);
  if (--used->users == 0) put_to_idle(used);
}

void mappings::trim(std::uint64_t keep_nbytes) {
  std::vector<std::shared_ptr<mapping>> unused;
  {
    const std::scoped_lock hold(lock_);
    while (!idle_.empty() && idle_nbytes_ > keep_nbytes) {
      idle_nbytes_ -= idle_.front()->nbytes;
      by_version_.erase(idle_.front()->version);
      unused.push_back(std::move(idle_.front()));
      idle_.pop_front();
    }
  }
  for (const auto& m : unused) {
    unmap(*m);
    const std::scoped_lock hold(lock_);
    pinned_nbytes_ -= m->nbytes;  // only now is the memory free again
  }
}

void mappings::unmap(const mapping& m) noexcept {
  machine_.unregister(m.address);
  ::munmap(m.address, m.nbytes);
}

pin_usage mappings::usage() const {
  const std::scoped_lock hold(lock_);
  return {budget_nbytes_, pinned_nbytes_, idle_nbytes_, by_version_.size(), idle_.size()};
}

stored_file::stored_file(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner,
                         std::shared_ptr<mappings::mapping> mapping)
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
  // Who cuts it between both looks at the file is noticed by the last one.
  if (last || ns_of(before.st_ctim) != ctime_ns_) {
    whole_nbytes_ = owner_->whole_nbytes(*mapping_, std::min(whole_nbytes_, own_nbytes_));
  }
  ctime_ns_ = ns_of(after.st_ctim);
  const std::size_t wanted = std::min(own_nbytes_, static_cast<std::size_t>(nbytes));
  return whole_nbytes_ < wanted || static_cast<std::size_t>(after.st_size) < wanted ? -EIO : 0;
}

mapped_file::mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner,
                         std::shared_ptr<mappings::mapping> mapping, std::string reason)
    : file_(std::move(file)), owner_(std::move(owner)), mapping_(std::move(mapping)), info_(file_->info()) {
  info_.kind = service::source_kind::pull;
  info_.pull_base = mapping_->device_address;
  info_.reason = std::move(reason);
}

}  // namespace gpufs::store
