// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/mem_store.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

// One version's bytes, in pinned memory.
class buffer {
 public:
  buffer(simt::platform& machine, std::span<const std::byte> bytes)
      : machine_(machine), data_(static_cast<std::byte*>(machine.allocate_pinned(std::max<std::size_t>(bytes.size(), 1)))) {
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  ~buffer() { machine_.deallocate_pinned(data_); }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  const std::byte* data() const { return data_; }

 private:
  simt::platform& machine_;
  std::byte* data_;
};

struct version {
  file_info info;
  std::shared_ptr<const buffer> bytes;
};

}  // namespace

// Files share it, so that the last of store and files frees the buffers; a file that closes frees none, since that would wait
// for running kernels.
struct mem_store::state {
  simt::platform& machine;
  service::source_kind kind;
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
    if (n != 0) std::memcpy(dst.data(), opened_.bytes->data() + offset, n);
    return static_cast<std::int64_t>(n);
  }

 private:
  version opened_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

mem_store::mem_store(simt::platform& machine, service::source_kind kind)
    : state_(new state{.machine = machine, .kind = kind, .lock = {}, .files = {}, .all = {}}) {
  if (kind != service::source_kind::pull && kind != service::source_kind::staged) {
    throw std::invalid_argument("gpufs::store::mem_store: the kind must be pull or staged");
  }
}

mem_store::~mem_store() = default;

void mem_store::put(std::string_view path, std::span<const std::byte> bytes) {
  std::string name;
  if (const int error = lexical_path(path, &name); error != 0) {
    throw std::invalid_argument("gpufs::store::mem_store: cannot put '" + std::string(path) + "': " + std::strerror(-error));
  }
  auto fresh = std::make_shared<const buffer>(state_->machine, bytes);
  const std::scoped_lock hold(state_->lock);
  state_->all.push_back(fresh);
  version& file = state_->files[name];
  file_info& info = file.info;
  if (info.inode == 0) info.inode = state_->next_inode++;
  info.nbytes = static_cast<std::int64_t>(bytes.size());
  info.mtime_ns = info.ctime_ns = state_->next_version++;
  info.mode = S_IFREG | 0444;
  info.kind = state_->kind;
  info.pull_base = info.kind == service::source_kind::pull ? fresh->data() : nullptr;
  info.reason = info.kind == service::source_kind::pull
                    ? "pull: the file is a buffer in pinned host memory"
                    : "staged: the file is a buffer in host memory, and the store was asked to serve it through staging";
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
  // A count of one is this list's; nobody can copy it, since opens hold the lock.
  const auto used = [](const std::shared_ptr<const buffer>& b) { return b.use_count() > 1; };
  const auto middle = std::partition(all.begin(), all.end(), used);
  unused.assign(std::make_move_iterator(middle), std::make_move_iterator(all.end()));
  all.erase(middle, all.end());
}

}  // namespace gpufs::store
