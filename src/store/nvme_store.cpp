// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/nvme_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "../nvme/controller.hpp"
#include "pack_entry.hpp"
#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

nvme::controller_options with_host_queue(nvme::controller_options options) {
  if (options.nhost_queues == 0) options.nhost_queues = 4;
  return options;
}

// A namespace, as it was when the store was made.
struct known_namespace {
  nvme::namespace_facts facts;
  const nvme::namespace_layout* layout = nullptr;  // for kernels; null: it cannot be used
  int error = 0;
  std::string why;                        // it cannot
  std::atomic<std::uint64_t> version{1};  // another one before and after each write
};

std::int64_t nbytes_of(const nvme::namespace_facts& facts) { return static_cast<std::int64_t>(facts.nblocks * facts.block_nbytes); }

std::string blocks_of(const nvme::namespace_facts& facts) {
  return std::to_string(facts.nblocks) + " blocks of " + std::to_string(facts.block_nbytes) + " bytes";
}

}  // namespace

// Shared by the store and its files: the last of them gives the controller back.
struct nvme_store::state {
  state(simt::platform& machine, std::shared_ptr<nvme::controller_access> to, const nvme::controller_options& options)
      : access(std::move(to)), driver(*access, machine, with_host_queue(options)), writable(options.writable) {
    for (const nvme::namespace_facts& facts : driver.namespaces()) {
      known_namespace& made = all[facts.nsid];
      made.facts = facts;
      try {
        made.layout = driver.open(facts.nsid);
      } catch (const std::system_error& error) {
        if (error.code().value() == ENODEV || error.code().value() == ETIMEDOUT) throw;  // the controller's
        made.error = -error.code().value();
        made.why = error.what();
      }
    }
  }

  // The number of the file that the path names, 0: of the root; or -errno.
  std::int64_t find(std::string_view path) const {
    std::string name;
    const int spelling = lexical_path(path, &name);
    if (spelling == -EISDIR) return 0;
    if (spelling != 0 && spelling != -ENOTDIR) return spelling;
    std::uint32_t nsid = 0;
    const char* const end = name.data() + name.size();
    const bool is_number = name.size() > 1 && name[0] == 'n' && name[1] != '0' &&
                           std::from_chars(name.data() + 1, end, nsid) == std::from_chars_result{end, std::errc{}};
    if (!is_number || all.count(nsid) == 0) return -ENOENT;
    return spelling != 0 ? spelling : std::int64_t{nsid};
  }

  std::uint32_t mode() const { return S_IFREG | (writable ? 0666u : 0444u); }

  std::shared_ptr<nvme::controller_access> access;
  nvme::controller driver;
  std::map<std::uint32_t, known_namespace> all;  // by nsid; it stays as it is
  const bool writable;
};

namespace {

template <class State>
class nvme_file final : public open_file {
 public:
  nvme_file(std::shared_ptr<State> owner, known_namespace& of, file_info info)
      : owner_(std::move(owner)), of_(of), info_(std::move(info)) {}

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(dst.size(), offset, info_.nbytes);
    if (n == 0) return 0;
    const int error = owner_->driver.read(of_.facts, static_cast<std::uint64_t>(offset), dst.first(n));
    return error != 0 ? error : static_cast<std::int64_t>(n);
  }
  // Acquire: meets the release of pwrite, so bytes that were read before are the version's.
  int check_version() const override {
    return info_.live || of_.version.load(std::memory_order_acquire) == info_.mtime_ns ? 0 : -ESTALE;
  }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
    if (!info_.live) return -EBADF;
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(src.size(), offset, info_.nbytes);
    // Twice: so who has opened the namespace meanwhile has no version either.
    of_.version.fetch_add(1, std::memory_order_release);
    const int error = n == 0 ? 0 : owner_->driver.write(of_.facts, static_cast<std::uint64_t>(offset), src.first(n));
    of_.version.fetch_add(1, std::memory_order_release);
    return error == 0 && n < src.size() ? -ENOSPC : error;
  }
  int sync(bool) override { return info_.live ? owner_->driver.flush(of_.facts) : -EBADF; }
  int truncate(std::int64_t nbytes) override {
    if (!info_.live) return -EBADF;
    return nbytes == info_.nbytes ? 0 : -EINVAL;
  }

 private:
  std::shared_ptr<State> owner_;
  known_namespace& of_;
  file_info info_;
};

}  // namespace

nvme_store::nvme_store(simt::platform& machine, std::shared_ptr<nvme::controller_access> access,
                       const nvme::controller_options& options)
    : state_(std::make_shared<state>(machine, std::move(access), options)) {}
nvme_store::~nvme_store() = default;

std::unique_ptr<open_file> nvme_store::open(std::string_view path, int flags, int* error) {
  std::string why;
  return open_explained(path, flags, error, &why);
}

std::unique_ptr<open_file> nvme_store::open_explained(std::string_view path, int flags, int* error, std::string* why) {
  why->clear();
  const auto refuse = [&](int number, std::string text = {}) {
    *error = number;
    *why = std::move(text);
    return nullptr;
  };
  if (const int wrong = check_flags(flags, state_->writable); wrong != 0) return refuse(wrong);
  const std::int64_t nsid = state_->find(path);
  if (nsid == -ENOENT) return refuse(-ENOENT, "the controller has no such namespace; its files are named n1, n2 and so on");
  if (nsid <= 0) return refuse(nsid == 0 ? -EISDIR : static_cast<int>(nsid));
  if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) return refuse(-EEXIST);
  known_namespace& of = state_->all.at(static_cast<std::uint32_t>(nsid));
  if (of.layout == nullptr) return refuse(of.error, of.why);
  try {
    const std::vector<nvme::namespace_facts> now = state_->driver.namespaces();
    const auto found = std::find_if(now.begin(), now.end(), [&](const auto& each) { return each.nsid == of.facts.nsid; });
    if (found == now.end()) return refuse(-ENODEV, "the namespace is not active any more");
    if (*found != of.facts) {
      return refuse(-ESTALE, "the namespace has " + blocks_of(*found) + " now, and had " + blocks_of(of.facts) +
                                 " when it was mounted: mount it again");
    }
  } catch (const std::system_error& gone) {
    return refuse(-gone.code().value(), gone.what());
  }
  file_info info;
  info.nbytes = nbytes_of(of.facts);
  info.inode = of.facts.nsid;
  info.mtime_ns = info.ctime_ns = of.version.load(std::memory_order_acquire);
  info.mode = state_->mode();
  info.live = writes(flags);
  if (info.live) {
    if (!state_->driver.has_host_queue())
      return refuse(-EOPNOTSUPP, "the controller grants one pair of queues, and the host has none");
    info.reason = "staged: the namespace is open for writing, which the host does with a queue of its own";
  } else {
    info.kind = source_kind::nvme;
    info.pull_base = reinterpret_cast<const std::byte*>(of.layout);
    info.reason = "nvme: kernels send the controller commands for the namespace's blocks";
  }
  *error = 0;
  return std::make_unique<nvme_file<state>>(state_, of, std::move(info));
}

int nvme_store::status(std::string_view path, bool, path_status* out) {
  const std::int64_t nsid = path.empty() ? 0 : state_->find(path);
  if (nsid < 0) return static_cast<int>(nsid);
  *out = {};
  if (nsid == 0) {
    out->mode = S_IFDIR | 0555;
    return 0;
  }
  const known_namespace& of = state_->all.at(static_cast<std::uint32_t>(nsid));
  *out = {nbytes_of(of.facts), 0, of.facts.nsid, of.version.load(std::memory_order_acquire), state_->mode()};
  return 0;
}

// A position: the nsid of the last entry that was given.
std::int64_t nvme_store::read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) {
  const std::int64_t nsid = path.empty() ? 0 : state_->find(path);
  if (nsid != 0) return nsid < 0 ? nsid : -ENOTDIR;
  if (*position < 0 || *position > 0xffffffff) return -EINVAL;
  std::size_t done = 0;
  for (auto each = state_->all.upper_bound(static_cast<std::uint32_t>(*position)); each != state_->all.end(); ++each) {
    const std::string name = "n" + std::to_string(each->first);
    const std::size_t nbytes = entry_nbytes_of(name);
    if (nbytes > out.size() - done) return done != 0 ? static_cast<std::int64_t>(done) : -EINVAL;
    directory_entry packed{};
    packed.inode = each->first;
    packed.file_nbytes = nbytes_of(each->second.facts);
    packed.mtime_ns = each->second.version.load(std::memory_order_acquire);
    packed.mode = state_->mode();
    pack_entry(out.data() + done, packed, name);
    done += nbytes;
    *position = each->first;
  }
  return static_cast<std::int64_t>(done);
}

nvme_store::recoveries nvme_store::recovered() const {
  const auto done = state_->driver.done();
  return {done.aborts, done.deletions, done.resets, done.dead};
}

}  // namespace gpufs::store
