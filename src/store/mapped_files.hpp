// SPDX-License-Identifier: Apache-2.0
// Open files that use mappings: the device reads them there, or writes them in place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "mappings.hpp"
#include "posix_file.hpp"

namespace gpufs::store {

// A posix_file whose pages the device pulls: all of them, or those of the registered windows.
class mapped_file final : public open_file {
 public:
  mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, mappings::use mapping);
  const file_info& info() const override { return info_; }
  std::string reason() const override;
  registered_windows windows() const override;
  void note_missed(std::int64_t offset, std::uint32_t nbytes) noexcept override {
    owner_->note_missed(*mapping_, static_cast<std::uint64_t>(offset), nbytes);
  }
  void give_up_windows() noexcept override { owner_->give_up(*mapping_); }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override { return file_->extents(offset, out); }
  int check_version() const override { return file_->check_version(); }
  void begin_rename() override { file_->begin_rename(); }
  void end_rename() override { file_->end_rename(); }

 private:
  std::unique_ptr<posix_file> file_;
  std::shared_ptr<mappings> owner_;  // before mapping_, which needs it at its end
  mappings::use mapping_;
  file_info info_;
};

// A file that is open for writing, and whose mapping the device writes to by plain stores.
class file_written_in_place final : public open_file {
 public:
  file_written_in_place(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner, mappings::use mapping);
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return file_->pread(dst, offset); }
  int descriptor() const override { return file_->descriptor(); }
  std::int64_t extents(std::int64_t* offset, std::span<extent> out) override { return file_->extents(offset, out); }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override { return file_->pwrite(src, offset); }
  int sync(bool data_only) override { return file_->sync(data_only); }
  int truncate(std::int64_t nbytes) override;
  int note_written_in_place(std::int64_t nbytes, bool last) override;

 private:
  std::unique_ptr<open_file> file_;
  std::shared_ptr<mappings> owner_;  // before mapping_, which needs it at its end
  mappings::use mapping_;
  file_info info_;
  std::mutex lock_;           // of what follows
  std::size_t own_nbytes_;    // bytes that truncate() has not cut
  std::size_t whole_nbytes_;  // bytes that others had not cut either, at the last look
  std::uint64_t ctime_ns_;    // at that look
};

}  // namespace gpufs::store
