// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/mapped_store.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "gpufs/store/auto_store.hpp"
#include "mapped_files.hpp"
#include "path.hpp"
#include "pin_budget.hpp"

namespace gpufs::store {
namespace {

constexpr std::uint64_t usual_window_nbytes = auto_options{}.window_nbytes;

std::shared_ptr<mappings> make_mappings(simt::platform& machine, std::uint64_t pin_nbytes, std::uint64_t window_nbytes) {
  return std::make_shared<mappings>(machine, pin_budget(pin_nbytes), window_nbytes);
}

mappings::use map(const posix_file& file, mappings& all, bool whole, std::string* why) {
  const posix_file::lease descriptor = file.use();
  if (descriptor.error == 0) {
    return whole ? all.acquire(file.info(), descriptor.fd, why) : all.acquire_windows(file.info(), descriptor.fd, why);
  }
  *why = std::string("opening it again failed: ") + std::strerror(-descriptor.error);
  return nullptr;
}

bool is_unmapped(int flags) { return (flags & static_cast<int>(names::open_unmapped)) != 0; }

// Does what open_posix_file does, but may wait until the file has settled. A file that has not settled gets a new mapping at each
// open (mappings.hpp). If the file is large and all of it is to be registered, a new mapping costs more time and memory than the
// wait. We do not wait two seconds on a file system that keeps whole seconds only.
std::unique_ptr<posix_file> open_to_map(const root_directory& root, std::string_view path, int flags, const posix_options& options,
                                        int* error) {
  constexpr std::int64_t worth_waiting_nbytes = 64 << 20;
  auto file = open_posix_file(root, path, flags, options, error);
  if (!file || is_unmapped(flags) || file->info().settled || file->info().nbytes < worth_waiting_nbytes || file->alignment() > 1) {
    return file;
  }
  std::this_thread::sleep_for(settle_time + std::chrono::milliseconds(1));
  return open_posix_file(root, path, flags, options, error);
}

// Maps a file that is open for writing, so that the device can write it. If that is not possible, returns the file itself; its
// reason says why.
std::unique_ptr<open_file> map_to_write(std::unique_ptr<live_file> file, const std::shared_ptr<mappings>& all,
                                        std::uint64_t least_nbytes, int flags) {
  if (!file || file->info().nbytes == 0 || is_unmapped(flags)) return file;
  std::string why = "it is small";
  if (static_cast<std::uint64_t>(file->info().nbytes) >= least_nbytes) {
    if (auto mapping = all->acquire_to_write(file->info(), file->descriptor(), &why)) {
      return std::make_unique<file_written_in_place>(std::move(file), all, std::move(mapping));
    }
  }
  file->add_reason(", and not mapped: " + why);
  return file;
}

}  // namespace

mapped_store::mapped_store(simt::platform& machine, const std::string& root, std::uint64_t pin_nbytes, posix_options options)
    : rooted_store(root, options), mappings_(make_mappings(machine, pin_nbytes, usual_window_nbytes)) {}

mapped_store::~mapped_store() = default;

std::unique_ptr<open_file> mapped_store::open(std::string_view path, int flags, int* error) {
  std::string why;
  return open_explained(path, flags, error, &why);
}

std::unique_ptr<open_file> mapped_store::open_explained(std::string_view path, int flags, int* error, std::string* why) {
  why->clear();
  if (writes(flags)) return map_to_write(open_live_file(root_, path, flags, options_, error), mappings_, 0, flags);
  posix_options buffered = options_;
  buffered.direct = false;
  auto file = open_to_map(root_, path, flags & ~O_DIRECT, buffered, error);
  if (!file || is_unmapped(flags)) return file;
  auto mapping = map(*file, *mappings_, true, why);
  if (!mapping) {
    *error = -EOPNOTSUPP;
    *why = "the file cannot be pulled: " + *why;
    return nullptr;
  }
  return std::make_unique<mapped_file>(std::move(file), mappings_, std::move(mapping));
}

void mapped_store::trim(std::uint64_t keep_nbytes) { mappings_->trim(keep_nbytes); }
bool mapped_store::lacks_room() const { return mappings_->lacks_room(); }
bool mapped_store::has_idle_room() const { return mappings_->has_idle_room(); }
void mapped_store::make_room() { mappings_->make_room(); }
pin_usage mapped_store::usage() const { return mappings_->usage(); }

auto_store::auto_store(simt::platform& machine, const std::string& root, std::uint64_t pin_nbytes, auto_options options)
    : rooted_store(root, options.posix),
      small_file_nbytes_(options.small_file_nbytes),
      small_reason_("staged: its bytes are fewer than the " + std::to_string(options.small_file_nbytes) +
                    " from which registering a mapping pays"),
      mappings_(make_mappings(machine, pin_nbytes, options.window_nbytes)) {}

auto_store::~auto_store() = default;

std::unique_ptr<open_file> auto_store::open(std::string_view path, int flags, int* error) {
  if (writes(flags)) return map_to_write(open_live_file(root_, path, flags, options_, error), mappings_, small_file_nbytes_, flags);
  const bool whole = (flags & static_cast<int>(names::open_prepared)) != 0;
  auto file = whole ? open_to_map(root_, path, flags, options_, error) : open_posix_file(root_, path, flags, options_, error);
  if (!file) return nullptr;
  // The file's reason says whether it is read with O_DIRECT.
  if (options_.direct || (flags & O_DIRECT) != 0 || is_unmapped(flags)) return file;
  const file_info& info = file->info();
  if (static_cast<std::uint64_t>(info.nbytes) < small_file_nbytes_) {
    file->set_reason(small_reason_);
    return file;
  }
  std::string why;
  auto mapping = map(*file, *mappings_, whole, &why);
  if (!mapping) {
    file->set_reason("staged: " + why);
    return file;
  }
  return std::make_unique<mapped_file>(std::move(file), mappings_, std::move(mapping));
}

void auto_store::trim(std::uint64_t keep_nbytes) { mappings_->trim(keep_nbytes); }
bool auto_store::lacks_room() const { return mappings_->lacks_room(); }
bool auto_store::has_idle_room() const { return mappings_->has_idle_room(); }
void auto_store::make_room() { mappings_->make_room(); }
pin_usage auto_store::usage() const { return mappings_->usage(); }

}  // namespace gpufs::store
