// SPDX-License-Identifier: Apache-2.0
#include "apps/arrays/begin_store.hpp"

#include <fcntl.h>

#include <cerrno>
#include <charconv>
#include <utility>

namespace gpufs::apps::arrays {
namespace {

class file_from final : public store::open_file {
 public:
  file_from(std::unique_ptr<store::open_file> file, std::int64_t begin) : file_(std::move(file)), info_(file_->info()) {
    info_.nbytes -= begin;
    info_.begin = begin;
    if (info_.pull_base != nullptr) info_.pull_base += begin;
  }

  const store::file_info& info() const override { return info_; }
  std::string reason() const override { return file_->reason(); }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    return offset < info_.nbytes ? file_->pread(dst, info_.begin + offset) : file_->check_version();
  }
  bool begin_pread(std::span<std::byte> dst, std::int64_t offset, store::read_answer answer) override {
    return offset >= 0 && offset < info_.nbytes && file_->begin_pread(dst, info_.begin + offset, answer);
  }
  int descriptor() const override { return file_->descriptor(); }
  std::uint32_t alignment() const override { return file_->alignment(); }
  int check_version() const override { return file_->check_version(); }
  store::registered_windows windows() const override { return windows_from(info_.begin, file_->info().nbytes, file_->windows()); }
  // The device reads a window where both of the file's that it has parts of are registered. If the first one is, a miss is one of
  // the second: a file's last window may be so short that no page begins there.
  void note_missed(std::int64_t offset, std::uint32_t nbytes) noexcept override {
    file_->note_missed(info_.begin + offset, nbytes);
    const store::registered_windows of_file = file_->windows();
    const std::int64_t second = (info_.begin >> of_file.shift) + (offset >> of_file.shift) + 1;
    const bool has_first = second <= 64 && (of_file.registered >> (second - 1) & 1) != 0;
    if (has_first && second << of_file.shift < file_->info().nbytes) file_->note_missed(second << of_file.shift, nbytes);
  }
  void give_up_windows() noexcept override { file_->give_up_windows(); }
  void begin_rename() override { file_->begin_rename(); }
  void end_rename() override { file_->end_rename(); }

 private:
  std::unique_ptr<store::open_file> file_;
  store::file_info info_;
};

std::uint64_t first_bits(std::uint64_t n) { return n < 64 ? (std::uint64_t{1} << n) - 1 : ~std::uint64_t{0}; }

}  // namespace

store::registered_windows windows_from(std::int64_t begin, std::int64_t nbytes, const store::registered_windows& of_file) {
  if (of_file.registered == 0) return of_file;
  const auto from = static_cast<std::uint64_t>(begin), end = static_cast<std::uint64_t>(nbytes);
  const unsigned shift = of_file.shift;
  const std::uint64_t inside = first_bits(shift);  // of an offset, within its window
  const auto count = [&](std::uint64_t n) { return (n + inside) >> shift; };
  // What lies behind the file's last window is wanted by none.
  const std::uint64_t missing = ~of_file.registered & first_bits(count(end));
  const auto missing_from = [&](std::uint64_t window) { return window < 64 ? missing >> window : 0; };
  std::uint64_t lacking = missing_from(from >> shift);
  if ((from & inside) != 0) lacking |= missing_from((from >> shift) + 1);
  return {~lacking & first_bits(count(end - from)), shift};
}

std::optional<file_part> file_part::of(std::string_view path) {
  const std::size_t mark = path.rfind("/#");
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  const std::string_view number = path.substr(mark + 2);
  std::int64_t begin = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), begin);
  if (error != std::errc() || end != number.data() + number.size() || begin < 0) return std::nullopt;
  return file_part{std::string(path.substr(0, mark)), begin};
}

std::unique_ptr<store::open_file> begin_store::open(std::string_view path, int flags, int* error) {
  std::string why;
  return open_explained(path, flags, error, &why);
}

std::unique_ptr<store::open_file> begin_store::open_explained(std::string_view path, int flags, int* error, std::string* why) {
  auto file = files_->open_explained(path, flags, error, why);
  if (file || *error != -ENOTDIR || (flags & O_ACCMODE) != O_RDONLY) return file;
  const auto part = file_part::of(path);
  if (!part) return nullptr;
  file = files_->open_explained(part->path, flags, error, why);
  if (!file) return nullptr;
  if (file->info().live || part->begin % 16 != 0 || part->begin > file->info().nbytes) {
    *error = -EINVAL;
    *why = "a file of " + std::to_string(file->info().nbytes) + " bytes opens from a multiple of 16 on";
    return nullptr;
  }
  return std::make_unique<file_from>(std::move(file), part->begin);
}

}  // namespace gpufs::apps::arrays
