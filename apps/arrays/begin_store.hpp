// SPDX-License-Identifier: Apache-2.0
// Files that are open from a byte of theirs on, so that pages of the cache begin where rows do.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "gpufs/store/store.hpp"

namespace gpufs::apps::arrays {

// A file, and the byte from which on it is open. As a path of begin_store: the file's, with "/#" and the number behind it. No file
// has such a path: there is none below another one.
struct file_part {
  std::string path;
  std::int64_t begin;

  static std::optional<file_part> of(std::string_view path);  // nothing: it is none of these
  std::string to_path() const { return path + "/#" + std::to_string(begin); }
};

// Another store, whose files open for reading by a file_part's path, too; then offset 0 is the file's byte `begin`. -EINVAL: that
// is no multiple of 16, or the file ends before it. Where the file is open for writing in the same mount, the open gives -EBUSY.
class begin_store final : public store::store {
 public:
  explicit begin_store(std::shared_ptr<gpufs::store::store> files) : files_(std::move(files)) {}

  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override;
  std::unique_ptr<gpufs::store::open_file> open_explained(std::string_view path, int flags, int* error, std::string* why) override;
  int unlink(std::string_view path, bool directory) override { return files_->unlink(path, directory); }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override { return files_->rename(from, to, mode); }
  int make_directory(std::string_view path, std::uint32_t mode) override { return files_->make_directory(path, mode); }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override { return files_->status(path, link, out); }
  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) override {
    return files_->read_directory(path, position, out);
  }
  std::uint64_t device() const override { return files_->device(); }
  std::string_view name() const override { return files_->name(); }
  void trim() override { files_->trim(); }
  bool lacks_room() const override { return files_->lacks_room(); }
  std::shared_ptr<void> admit_mount() override { return files_->admit_mount(); }
  bool has_idle_room() const override { return files_->has_idle_room(); }
  void make_room() override { files_->make_room(); }

 private:
  std::shared_ptr<gpufs::store::store> files_;
};

// Which windows of a file of nbytes are registered, where windows count from `begin` on: each has parts of two of the file's.
gpufs::store::registered_windows windows_from(std::int64_t begin, std::int64_t nbytes,
                                              const gpufs::store::registered_windows& of_file);

}  // namespace gpufs::apps::arrays
