// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/ext4_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "ext4_files.hpp"
#include "file_extents.hpp"
#include "kernel_tables.hpp"
#include "path.hpp"

namespace gpufs::store {
namespace {

[[noreturn]] void refuse(int error, const std::string& why) {
  throw std::system_error(error, std::generic_category(), "gpufs: a file system on the file " + why);
}

// Opens the device's file, or throws.
std::unique_ptr<open_file> open_device(store& device, const std::string& file) {
  int error = 0;
  std::string why;
  // To write alone is the question: nothing is written.
  if (device.open_explained(file, O_WRONLY, &error, &why) != nullptr || error != -EROFS)
    refuse(EINVAL, file + ": the store that has it may write, and must not");
  auto opened = device.open_explained(file, O_RDONLY, &error, &why);
  if (opened == nullptr) refuse(-error, file + ": " + (why.empty() ? "it cannot be opened" : why));
  return opened;
}

int refusal_of(std::uint32_t mode, std::string* why) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return 0;
    case S_IFDIR:
      return -EISDIR;
    case S_IFLNK:
      return -ELOOP;
    case S_IFSOCK:
      return -ENXIO;
    case S_IFCHR:
    case S_IFBLK:
      return -ENODEV;
    case S_IFIFO:
      return -EOPNOTSUPP;
    default:
      *why = "its inode is of no kind of file: run e2fsck";
      return -EUCLEAN;
  }
}

struct ext4_state {
  ext4_state(simt::platform& machine, std::shared_ptr<store> below, const ext4_options& as)
      : device(std::move(below)),
        options(as),
        whole(open_device(*device, options.file)),
        files(static_cast<std::uint64_t>(whole->info().nbytes),
              [this](std::uint64_t offset, std::span<std::byte> to) { return read(offset, to); }) {
    if (whole->info().kind != source_kind::nvme) {
      why_staged = "staged: the host reads the device, which is of another kind than nvme";
      return;
    }
    // Kernels look extents up once.
    extent one;
    std::int64_t at = 0;
    if (whole->extents(&at, std::span(&one, 1)) != -EOPNOTSUPP) {
      why_staged = "staged: the device is a file of a file system itself";
      return;
    }
    machine.copy_from_device(&base, whole->info().pull_base, sizeof base);
    tables.emplace(machine, options.tables_nbytes);
  }

  // Sets where kernels find the file's bytes, if they can, and says why or why not.
  std::shared_ptr<const nvme::file_layout> make_table(const ext4_contents& contents, file_info* info) {
    std::shared_ptr<const nvme::file_layout> table;
    info->reason = why_staged;
    if (contents.is_inline) {
      info->reason = "staged: the file lies in its inode";
    } else if (tables) {
      table = tables->make(info->inode, base, contents.runs);
      info->reason = table != nullptr ? "nvme: kernels send the controller commands for the blocks of the file's extents"
                                      : "staged: its table of extents has no room (ext4_options::tables_nbytes), or none yet";
    }
    if (table != nullptr) info->kind = source_kind::nvme;
    info->pull_base = reinterpret_cast<const std::byte*>(table.get());
    return table;
  }

  // Bytes of the device.
  int read(std::uint64_t offset, std::span<std::byte> to) const {
    const std::int64_t n = whole->pread(to, static_cast<std::int64_t>(offset));
    return n < 0 ? static_cast<int>(n) : static_cast<std::size_t>(n) == to.size() ? 0 : -EIO;
  }

  std::shared_ptr<store> device;
  ext4_options options;
  std::unique_ptr<open_file> whole;
  ext4_files files;
  nvme::file_layout base{};             // the device's
  std::string why_staged;               // all files are; empty: they are not
  std::optional<kernel_tables> tables;  // none: all files are staged
};

class ext4_file final : public open_file {
 public:
  ext4_file(std::shared_ptr<ext4_state> owner, std::unique_ptr<open_file> device, ext4_contents contents, file_info info)
      : owner_(std::move(owner)), device_(std::move(device)), contents_(std::move(contents)), info_(std::move(info)) {
    table_ = owner_->make_table(contents_, &info_);
  }

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    return read_contents(
        contents_, info_.nbytes, [&](std::uint64_t at, std::span<std::byte> to) { return owner_->read(at, to); }, dst, offset);
  }
  // The device's: as it was when this was opened.
  int check_version() const override { return device_->check_version(); }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override {
    if (*offset < 0 || out.empty()) return -EINVAL;
    if (contents_.is_inline) {
      const bool is_behind = *offset >= info_.nbytes;
      if (!is_behind) out[0] = {0, 0, info_.nbytes, extent_elsewhere, 0};
      *offset = std::max(*offset, info_.nbytes);
      return is_behind ? 0 : 1;
    }
    auto next = std::upper_bound(contents_.extents.begin(), contents_.extents.end(), *offset,
                                 [](std::int64_t at, const extent& each) { return at < each.offset + each.nbytes; });
    std::size_t n = 0;
    for (; n < std::min(out.size(), most_extents) && next != contents_.extents.end(); ++n, ++next) {
      out[n] = *next;
      // The first one may begin before what was asked for.
      const std::int64_t before = std::max<std::int64_t>(*offset - next->offset, 0);
      out[n].offset += before;
      out[n].device_offset += before;
      out[n].nbytes -= before;
      *offset = out[n].offset + out[n].nbytes;
    }
    return static_cast<std::int64_t>(n);
  }

 private:
  std::shared_ptr<ext4_state> owner_;
  std::unique_ptr<open_file> device_;
  ext4_contents contents_;
  file_info info_;
  std::shared_ptr<const nvme::file_layout> table_;
};

class ext4_store final : public store {
 public:
  explicit ext4_store(std::shared_ptr<ext4_state> state) : state_(std::move(state)) {}

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override {
    std::string why;
    return open_explained(path, flags, error, &why);
  }

  std::unique_ptr<open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) override {
    why->clear();
    *error = check_flags(flags);
    if (*error == 0 && path.empty()) *error = -ENOENT;
    ext4_node node;
    if (*error == 0) *error = state_->files.find(path, (flags & O_NOFOLLOW) == 0, &node, why);
    if (*error == 0) *error = refusal_of(node.status.mode, why);
    ext4_contents contents;
    if (*error == 0) *error = state_->files.contents_of(node, &contents, why);
    if (*error != 0) return nullptr;
    // Anew, so that a namespace that is another one by now is known.
    auto device = state_->device->open_explained(state_->options.file, O_RDONLY, error, why);
    if (device == nullptr) return nullptr;
    file_info info;
    info.nbytes = node.status.nbytes;
    info.inode = node.status.inode;
    info.mtime_ns = node.status.mtime_ns;
    info.ctime_ns = node.ctime_ns;
    info.mode = node.status.mode;
    return std::make_unique<ext4_file>(state_, std::move(device), std::move(contents), std::move(info));
  }

  int status(std::string_view path, bool link, path_status* out) override {
    ext4_node node;
    std::string why;
    const int error = state_->files.find(path, !link, &node, &why);
    if (error == 0) *out = node.status;
    return error;
  }

  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) override {
    ext4_node node;
    std::string why;
    const int error = state_->files.find(path, true, &node, &why);
    return error != 0 ? error : state_->files.list(node, position, out);
  }

  std::string_view name() const override { return "ext4"; }
  void trim() override {
    if (state_->tables) state_->tables->give_up();
  }
  bool lacks_room() const override { return state_->tables && state_->tables->lacks_room(); }
  void make_room() override { trim(); }

 private:
  std::shared_ptr<ext4_state> state_;
};

}  // namespace

std::unique_ptr<store> make_ext4_store(simt::platform& machine, std::shared_ptr<store> device, const ext4_options& options) {
  if (device == nullptr) throw std::invalid_argument("gpufs: an ext4 file system needs the store that its device is a file of");
  return std::make_unique<ext4_store>(std::make_shared<ext4_state>(machine, std::move(device), options));
}

}  // namespace gpufs::store
