// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>

namespace gpufs::store {
namespace {

std::size_t whole_pages(std::size_t nbytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

std::string mib(std::uint64_t nbytes) { return std::to_string((nbytes + (1u << 20) - 1) >> 20) + " MiB"; }

}  // namespace

mappings::~mappings() {
  // Every file holds this object, so all mappings are idle now.
  for (const auto& [version, m] : by_version_) unmap(*m);
}

std::shared_ptr<mappings::mapping> mappings::acquire(const file_info& info, int fd, std::string* why) {
  if (info.nbytes == 0) {
    *why = "it is empty, and nothing cannot be mapped";
    return nullptr;
  }
  const std::size_t nbytes = whole_pages(static_cast<std::size_t>(info.nbytes));
  std::unique_lock hold(lock_);
  const version_key version{info.device, info.inode, info.nbytes, info.mtime_ns, info.ctime_ns, info.settled ? 0 : ++unsettled_};
  if (const auto found = by_version_.find(version); found != by_version_.end()) {
    std::shared_ptr<mapping> m = found->second;
    if (m->users++ == 0) {
      idle_.erase(m->idle_place);
      idle_nbytes_ -= m->nbytes;
    }
    registered_.wait(hold, [&] { return m->ready || !m->failure.empty(); });
    if (m->ready) return m;
    *why = m->failure;
    return nullptr;
  }
  // The comparison cannot overflow: pinned_nbytes_ never exceeds the budget.
  if (nbytes > budget_nbytes_ - pinned_nbytes_) {
    *why = "its " + mib(nbytes) + " do not fit the pin budget of " + mib(budget_nbytes_) + " (" + mib(pinned_nbytes_) + " in use";
    if (idle_nbytes_ != 0) *why += ", " + mib(idle_nbytes_) + " of it by closed files, which trim() gives back";
    *why += ")";
    return nullptr;
  }
  pinned_nbytes_ += nbytes;
  const auto m = std::make_shared<mapping>();
  m->version = version;
  m->nbytes = nbytes;
  m->users = 1;
  by_version_.emplace(version, m);
  hold.unlock();
  bool done = false;
  try {
    done = map_and_register(*m, static_cast<std::size_t>(info.nbytes), fd);
  } catch (const std::exception&) {  // no memory for a message; those who wait must wake all the same
  }
  hold.lock();
  if (!done && m->failure.empty()) m->failure = "no memory";
  m->ready = done;
  if (!done) {
    pinned_nbytes_ -= nbytes;
    by_version_.erase(version);
    *why = m->failure;
  }
  hold.unlock();
  registered_.notify_all();
  return done ? m : nullptr;
}

bool mappings::map_and_register(mapping& m, std::size_t file_nbytes, int fd) {
  // Waiters read `failure` under the lock, so it is set there.
  const auto fail = [&](std::string why) {
    const std::scoped_lock hold(lock_);
    m.failure = std::move(why);
    return false;
  };
  void* address = ::mmap(nullptr, file_nbytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return fail(std::string("mmap failed: ") + std::strerror(errno));
  std::string why;
  const void* device = nullptr;
  try {
    device = machine_.register_readonly(address, m.nbytes, &why);
  } catch (const std::exception& e) {
    why = e.what();
  }
  if (device == nullptr) {
    ::munmap(address, file_nbytes);
    return fail("registering the mapping failed: " + (why.empty() ? std::string("no reason given") : why));
  }
  m.address = address;
  m.device_address = static_cast<const std::byte*>(device);
  return true;
}

void mappings::release(const std::shared_ptr<mapping>& used) noexcept {
  const std::scoped_lock hold(lock_);
  assert(used->users > 0);
  if (--used->users != 0) return;
  used->idle_place = idle_.insert(idle_.end(), used);
  idle_nbytes_ += used->nbytes;
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

mapped_file::mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner,
                         std::shared_ptr<mappings::mapping> mapping, std::string reason)
    : file_(std::move(file)), owner_(std::move(owner)), mapping_(std::move(mapping)), info_(file_->info()) {
  info_.kind = service::source_kind::pull;
  info_.pull_base = mapping_->device_address;
  info_.reason = std::move(reason);
}

}  // namespace gpufs::store
