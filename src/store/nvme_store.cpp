// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/nvme_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <deque>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "nvme_bytes.hpp"
#include "pack_entry.hpp"
#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

nvme::controller_options with_host_queue(nvme::controller_options options) {
  if (options.nhost_queues == 0) options.nhost_queues = 4;
  return options;
}

// A file of the root.
struct known_file {
  std::string name;
  std::int64_t nbytes = 0;
  std::shared_ptr<nvme_bytes> bytes;  // null: it cannot be used
  int error = 0;
  std::string why;  // it cannot
};

}  // namespace

// Shared by the store and its files: the last of them gives the controllers back.
struct nvme_store::state {
  state(simt::platform& machine, std::shared_ptr<nvme::controller_access> to, const nvme::controller_options& options)
      : memory(machine), writable(options.writable) {
    devices.push_back(std::make_unique<nvme_device>(machine, std::move(to), with_host_queue(options)));
    for (const nvme::namespace_facts& facts : devices.back()->driver.namespaces()) add(*devices.back(), facts);
  }

  void add(nvme_device& device, const nvme::namespace_facts& facts) {
    nvme_namespace& space = namespaces.emplace_back(device, facts, "n" + std::to_string(facts.nsid));
    const std::uint64_t nbytes = facts.nblocks * facts.block_nbytes;
    known_file made{space.name, static_cast<std::int64_t>(nbytes), nullptr, 0, {}};
    try {
      space.layout = device.driver.open(facts.nsid);
      made.bytes = linear({&space, 0, nbytes, space.name});
    } catch (const std::system_error& error) {
      if (error.code().value() == ENODEV || error.code().value() == ETIMEDOUT) throw;  // the controller's
      made.error = -error.code().value();
      made.why = error.what();
    }
    add(std::move(made));
  }
  void add(known_file made) {
    by_name[made.name] = files.size();
    files.push_back(std::move(made));
  }
  std::shared_ptr<nvme_bytes> linear(nvme_part part) {
    const std::vector<nvme_part> copies{std::move(part)};
    return std::make_shared<nvme_bytes>(std::vector{std::make_shared<nvme_column>(copies, memory)}, nvme::no_unit_shift, memory);
  }

  // The number of the file that the path names, from 1 on; 0: of the root; or -errno.
  std::int64_t find(std::string_view path) const {
    std::string name;
    const int spelling = lexical_path(path, &name);
    if (spelling == -EISDIR) return 0;
    if (spelling != 0 && spelling != -ENOTDIR) return spelling;
    const auto found = by_name.find(name);
    if (found == by_name.end()) return -ENOENT;
    return spelling != 0 ? spelling : static_cast<std::int64_t>(found->second) + 1;
  }
  const known_file& file(std::int64_t number) const { return files[static_cast<std::size_t>(number) - 1]; }
  path_status status(std::int64_t number) const {
    const known_file& of = file(number);
    return {of.nbytes, 0, static_cast<std::uint64_t>(number), of.bytes == nullptr ? 0 : of.bytes->version(),
            S_IFREG | (writable ? 0666u : 0444u)};
  }

  std::vector<std::unique_ptr<nvme_device>> devices;
  simt::device_memory memory;
  std::deque<nvme_namespace> namespaces;
  std::vector<known_file> files;  // they stay as they are
  std::map<std::string, std::size_t, std::less<>> by_name;
  const bool writable;
};

namespace {

template <class State>
class nvme_file final : public open_file {
 public:
  nvme_file(std::shared_ptr<State> owner, nvme_bytes& bytes, file_info info)
      : owner_(std::move(owner)), bytes_(bytes), info_(std::move(info)) {}

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(dst.size(), offset, info_.nbytes);
    if (n == 0) return 0;
    const int error = bytes_.read(static_cast<std::uint64_t>(offset), dst.first(n));
    return error != 0 ? error : static_cast<std::int64_t>(n);
  }
  int check_version() const override { return info_.live || bytes_.version() == info_.mtime_ns ? 0 : -ESTALE; }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
    if (!info_.live) return -EBADF;
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(src.size(), offset, info_.nbytes);
    const int error = bytes_.write(static_cast<std::uint64_t>(offset), src.first(n));
    return error == 0 && n < src.size() ? -ENOSPC : error;
  }
  int sync(bool) override { return info_.live ? bytes_.flush() : -EBADF; }
  int truncate(std::int64_t nbytes) override {
    if (!info_.live) return -EBADF;
    return nbytes == info_.nbytes ? 0 : -EINVAL;
  }

 private:
  std::shared_ptr<State> owner_;
  nvme_bytes& bytes_;
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
  const std::int64_t number = state_->find(path);
  if (number == -ENOENT) return refuse(-ENOENT, "the controller has no such namespace; its files are named n1, n2 and so on");
  if (number <= 0) return refuse(number == 0 ? -EISDIR : static_cast<int>(number));
  if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) return refuse(-EEXIST);
  const known_file& of = state_->file(number);
  if (of.bytes == nullptr) return refuse(of.error, of.why);
  std::string changed;
  if (const int wrong = of.bytes->check(&changed); wrong != 0) return refuse(wrong, changed);
  const path_status now = state_->status(number);
  file_info info;
  info.nbytes = now.nbytes;
  info.inode = now.inode;
  info.mtime_ns = info.ctime_ns = now.mtime_ns;
  info.mode = now.mode;
  info.live = writes(flags);
  if (info.live) {
    if (!of.bytes->has_host_queues()) return refuse(-EOPNOTSUPP, "the controller grants one pair of queues, and the host has none");
    info.reason = "staged: the namespace is open for writing, which the host does with a queue of its own";
  } else {
    info.kind = source_kind::nvme;
    info.pull_base = reinterpret_cast<const std::byte*>(of.bytes->layout());
    info.reason = "nvme: kernels send the controller commands for the namespace's blocks";
  }
  *error = 0;
  return std::make_unique<nvme_file<state>>(state_, *of.bytes, std::move(info));
}

int nvme_store::status(std::string_view path, bool, path_status* out) {
  const std::int64_t number = path.empty() ? 0 : state_->find(path);
  if (number < 0) return static_cast<int>(number);
  *out = {};
  if (number == 0) {
    out->mode = S_IFDIR | 0555;
  } else {
    *out = state_->status(number);
  }
  return 0;
}

// A position: the number of the last entry that was given.
std::int64_t nvme_store::read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) {
  const std::int64_t number = path.empty() ? 0 : state_->find(path);
  if (number != 0) return number < 0 ? number : -ENOTDIR;
  if (*position < 0) return -EINVAL;
  std::size_t done = 0;
  while (*position < static_cast<std::int64_t>(state_->files.size())) {
    const std::string& name = state_->file(*position + 1).name;
    const std::size_t nbytes = entry_nbytes_of(name);
    if (nbytes > out.size() - done) return done != 0 ? static_cast<std::int64_t>(done) : -EINVAL;
    const path_status now = state_->status(++*position);
    directory_entry packed{};
    packed.inode = now.inode;
    packed.file_nbytes = now.nbytes;
    packed.mtime_ns = now.mtime_ns;
    packed.mode = now.mode;
    pack_entry(out.data() + done, packed, name);
    done += nbytes;
  }
  return static_cast<std::int64_t>(done);
}

nvme_store::recoveries nvme_store::recovered() const {
  const auto done = state_->devices.front()->driver.done();
  return {done.aborts, done.deletions, done.resets, done.dead};
}

}  // namespace gpufs::store
