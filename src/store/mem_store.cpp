// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/mem_store.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "gpufs/simt/device_array.hpp"
#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

// One version's bytes, in pinned or in device memory.
class buffer {
 public:
  buffer(simt::platform& machine, std::span<const std::byte> bytes, bool on_device) : machine_(machine) {
    if (on_device) {
      on_device_.emplace(bytes, machine);
      return;
    }
    pinned_.emplace(bytes.size(), machine);
    if (!bytes.empty()) std::memcpy(pinned_->get(), bytes.data(), bytes.size());
  }
  const std::byte* data() const { return on_device_ ? on_device_->get() : pinned_->get(); }
  void read(std::span<std::byte> dst, std::size_t offset) const {
    if (on_device_) {
      machine_.copy_from_device(dst.data(), data() + offset, dst.size());
    } else {
      std::memcpy(dst.data(), data() + offset, dst.size());
    }
  }

 private:
  simt::platform& machine_;
  std::optional<simt::device_array<std::byte>> on_device_;
  std::optional<simt::pinned_array<std::byte>> pinned_;
};

std::string reason_of(source_kind kind) {
  switch (kind) {
    case source_kind::pull:
      return "pull: the file is a buffer in pinned host memory";
    case source_kind::mem:
      return "mem: the file is a buffer in device memory";
    default:
      return "staged: the file is a buffer in host memory, and the store was asked to serve it through staging";
  }
}

struct version {
  file_info info;
  std::shared_ptr<const buffer> bytes;
};

}  // namespace

// Shared by the store and its files, so that the last of them frees the buffers. A file that closes earlier frees no buffer, since
// that would wait for running kernels.
struct mem_store::state {
  simt::platform& machine;
  source_kind kind;
  std::mutex lock;
  std::unordered_map<std::string, version> files;
  std::vector<std::shared_ptr<const buffer>> all;
  std::uint64_t next_inode = 1, next_version = 1;
};

namespace {

class mem_file final : public open_file {
 public:
  mem_file(version opened, std::shared_ptr<const void> owner) : opened_(std::move(opened)), owner_(std::move(owner)) {}
  const file_info& info() const override { return opened_.info; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(dst.size(), offset, opened_.info.nbytes);
    if (n != 0) opened_.bytes->read(dst.first(n), static_cast<std::size_t>(offset));
    return static_cast<std::int64_t>(n);
  }

 private:
  version opened_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

mem_store::mem_store(simt::platform& machine, source_kind kind)
    : state_(new state{.machine = machine, .kind = kind, .lock = {}, .files = {}, .all = {}}) {
  if (kind != source_kind::pull && kind != source_kind::staged && kind != source_kind::mem) {
    throw std::invalid_argument("gpufs::store::mem_store: the kind must be pull, staged or mem");
  }
}

mem_store::~mem_store() = default;

void mem_store::put(std::string_view path, std::span<const std::byte> bytes) {
  std::string name;
  if (const int error = lexical_path(path, &name); error != 0) {
    throw std::invalid_argument("gpufs::store::mem_store: cannot put '" + std::string(path) + "': " + std::strerror(-error));
  }
  auto fresh = std::make_shared<const buffer>(state_->machine, bytes, state_->kind == source_kind::mem);
  const std::scoped_lock hold(state_->lock);
  state_->all.push_back(fresh);
  version& file = state_->files[name];
  file_info& info = file.info;
  if (info.inode == 0) info.inode = state_->next_inode++;
  info.nbytes = static_cast<std::int64_t>(bytes.size());
  info.mtime_ns = info.ctime_ns = state_->next_version++;
  info.mode = S_IFREG | 0444;
  info.kind = state_->kind;
  info.pull_base = may_pass_host_by(info.kind) ? fresh->data() : nullptr;
  info.reason = reason_of(info.kind);
  file.bytes = std::move(fresh);
}

std::unique_ptr<open_file> mem_store::open(std::string_view path, int flags, int* error) {
  std::string name;
  *error = check_flags(flags);
  if (*error != 0) return nullptr;
  const int spelling = lexical_path(path, &name);
  if (spelling != 0 && spelling != -ENOTDIR) {
    *error = spelling;
    return nullptr;
  }
  const std::scoped_lock hold(state_->lock);
  const auto found = state_->files.find(name);
  if (found == state_->files.end() || spelling != 0) {
    *error = found == state_->files.end() ? -ENOENT : spelling;
    return nullptr;
  }
  return std::make_unique<mem_file>(found->second, state_);
}

void mem_store::trim() {
  std::vector<std::shared_ptr<const buffer>> unused;  // freed outside the lock
  const std::scoped_lock hold(state_->lock);
  auto& all = state_->all;
  // A use count of one is this list's own; no thread can copy the pointer meanwhile, since opens hold the lock.
  const auto used = [](const std::shared_ptr<const buffer>& b) { return b.use_count() > 1; };
  const auto middle = std::partition(all.begin(), all.end(), used);
  unused.assign(std::make_move_iterator(middle), std::make_move_iterator(all.end()));
  all.erase(middle, all.end());
}

}  // namespace gpufs::store
