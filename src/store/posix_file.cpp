// SPDX-License-Identifier: Apache-2.0
#include "posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>

#include "beneath.hpp"
#include "file_extents.hpp"
#include "gpufs/names/words.hpp"
#include "kept_descriptors.hpp"
#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

constexpr std::uint64_t second_ns = 1'000'000'000;

// pread(2) that waits. Returns how many bytes, or -errno.
std::int64_t pread_waiting(int fd, std::byte* to, std::size_t nbytes, std::int64_t at) {
  ssize_t n = ::pread(fd, to, nbytes, at);
  if (n < 0 && errno == EAGAIN) {
    make_blocking(fd);  // unless another thread just has
    n = ::pread(fd, to, nbytes, at);
  }
  return n < 0 ? -errno : n;
}

std::int64_t pread_fully(int fd, std::span<std::byte> dst, std::int64_t offset) {
  return read_fully([fd](std::byte* to, std::size_t nbytes, std::int64_t at) { return pread_waiting(fd, to, nbytes, at); }, dst,
                    offset);
}

// The alignment that O_DIRECT needs here; 0 if the file does not support O_DIRECT.
std::uint32_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx sx;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(sx.stx_dio_mem_align, sx.stx_dio_offset_align);
  }
#endif
  static_cast<void>(fd);
  return 4096;  // kernels before 6.1 do not report it; no disk asks for more
}

file_info info_of(const struct stat& st, std::string reason) {
  file_info info;
  info.nbytes = st.st_size;
  info.device = st.st_dev;
  info.inode = st.st_ino;
  info.mtime_ns = ns_of(st.st_mtim);
  info.ctime_ns = ns_of(st.st_ctim);
  info.mode = st.st_mode;
  info.reason = std::move(reason);
  return info;
}

// Calls call() -> 0, or -1 and errno; calls again after EINTR. Returns 0 or -errno.
template <class Call>
int uninterrupted(Call call) {
  for (;;) {
    if (call() == 0) return 0;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

std::uint64_t ns_of(const timespec& t) {
  return static_cast<std::uint64_t>(t.tv_sec) * second_ns + static_cast<std::uint64_t>(t.tv_nsec);
}

posix_file::posix_file(unique_fd fd, file_info info, std::uint64_t nlinks, std::uint32_t alignment, const root_directory& root,
                       origin from)
    : info_(std::move(info)), alignment_(alignment), ctime_ns_(info_.ctime_ns), nlinks_(nlinks) {
  if (keep_descriptor(kept_for::file)) {
    fd_ = std::move(fd);
  } else {
    root_ = root;
    from_ = std::move(from);
  }
}

posix_file::~posix_file() {
  if (fd_.get() >= 0) give_descriptor_back();
}

posix_file::lease posix_file::use() const {
  lease one;
  if (fd_.get() >= 0) {
    one.fd = fd_.get();
    return one;
  }
  struct stat st;
  one.error = open_beneath(root_->get(), from_.path, from_.flags, &one.own, &st);
  const bool short_of_descriptors = one.error == -EMFILE || one.error == -ENFILE || one.error == -ENOMEM;
  if (one.error != 0 && !short_of_descriptors) one.error = -ESTALE;
  if (one.error == 0 && (st.st_dev != info_.device || st.st_ino != info_.inode)) one.error = -ESTALE;
  one.fd = one.own.get();
  return one;
}

bool is_settled(std::uint64_t mtime_ns, std::uint64_t ctime_ns, std::uint64_t now_ns) {
  const auto window = [](std::uint64_t stamp) {
    return stamp % second_ns == 0 ? 2 * second_ns : static_cast<std::uint64_t>(std::chrono::nanoseconds(settle_time).count());
  };
  // ctime is always the kernel's clock, so a ctime in the future is as doubtful as a fresh one; mtime may be set to any time.
  if (ctime_ns + window(ctime_ns) > now_ns) return false;
  return mtime_ns + window(mtime_ns) <= now_ns || mtime_ns > now_ns + window(mtime_ns);
}

int posix_file::check_version() const {
  if (stale_.load(std::memory_order_relaxed)) return -ESTALE;
  const lease descriptor = use();
  return descriptor.error != 0 ? descriptor.error : check_version(descriptor.fd);
}

int posix_file::check_version(int fd) const {
  if (stale_.load(std::memory_order_relaxed)) return -ESTALE;
  struct stat st;
  if (::fstat(fd, &st) != 0) return -errno;
  const auto same_bytes = [&] { return st.st_size == info_.nbytes && ns_of(st.st_mtim) == info_.mtime_ns; };
  if (!same_bytes()) return changed();
  if (ns_of(st.st_ctim) == ctime_ns_.load(std::memory_order_relaxed)) return 0;
  const std::scoped_lock hold(lock_);
  if (::fstat(fd, &st) != 0) return -errno;  // again: another thread may have taken a newer ctime since
  if (!same_bytes()) return changed();
  if (ns_of(st.st_ctim) == ctime_ns_.load(std::memory_order_relaxed)) return 0;
  if (st.st_nlink == nlinks_ && nrenames_ == 0) return changed();
  nlinks_ = st.st_nlink;
  ctime_ns_.store(ns_of(st.st_ctim), std::memory_order_relaxed);
  return 0;
}

void posix_file::begin_rename() {
  check_version();  // so that an earlier change does not count as the rename's
  const std::scoped_lock hold(lock_);
  ++nrenames_;
}

void posix_file::end_rename() {
  check_version();  // takes the new ctime
  const std::scoped_lock hold(lock_);
  --nrenames_;
}

int posix_file::changed() const {
  stale_.store(true, std::memory_order_relaxed);
  return -ESTALE;
}

std::int64_t posix_file::pread(std::span<std::byte> dst, std::int64_t offset) {
  if (offset < 0) return -EINVAL;
  const lease descriptor = use();
  if (descriptor.error != 0) return descriptor.error;
  const int fd = descriptor.fd;
  const std::size_t n = clip(dst.size(), offset, info_.nbytes);
  if (n == 0) return check_version(fd);
  const std::span<std::byte> wanted = dst.first(n);
  const std::int64_t got = alignment_ == 1 ? pread_fully(fd, wanted, offset) : read_aligned(fd, wanted, offset);
  if (got < 0) return got;
  const int version = check_version(fd);
  return version == 0 ? got : version;
}

std::int64_t posix_file::extents(std::int64_t* offset, std::span<extent> out) {
  const lease descriptor = use();
  if (descriptor.error != 0) return descriptor.error;
  const std::int64_t n = extents_of(descriptor.fd, offset, out);
  if (n < 0) return n;
  const int version = check_version(descriptor.fd);
  return version == 0 ? n : version;
}

// Reads with O_DIRECT into a buffer of our own that covers the range.
std::int64_t posix_file::read_aligned(int fd, std::span<std::byte> dst, std::int64_t offset) const {
  const auto mask = static_cast<std::int64_t>(alignment_) - 1;
  const std::int64_t begin = offset & ~mask;
  const auto lead = static_cast<std::size_t>(offset - begin);
  const std::size_t nbytes = (lead + dst.size() + static_cast<std::size_t>(mask)) & ~static_cast<std::size_t>(mask);
  const std::unique_ptr<std::byte, decltype(&std::free)> buffer(static_cast<std::byte*>(std::aligned_alloc(alignment_, nbytes)),
                                                                &std::free);
  if (!buffer) return -ENOMEM;
  std::size_t done = 0;
  while (done < lead + dst.size()) {
    const std::int64_t n = pread_waiting(fd, buffer.get() + done, nbytes - done, begin + static_cast<std::int64_t>(done));
    if (n == -EINTR) continue;
    if (n < 0) return n;
    if (n == 0) return -ESTALE;
    done += static_cast<std::size_t>(n);
    // A direct read stops off its alignment only at the end of the file.
    if (done < lead + dst.size() && (done & static_cast<std::size_t>(mask)) != 0) return -ESTALE;
  }
  std::memcpy(dst.data(), buffer.get() + lead, dst.size());
  return static_cast<std::int64_t>(dst.size());
}

std::unique_ptr<posix_file> open_posix_file(const root_directory& root, std::string_view path, int flags,
                                            const posix_options& options, int* error) {
  std::string_view relative;
  *error = check_flags(flags, options.writable);
  if (*error == 0) *error = check_path(path, &relative);
  if (*error != 0) return nullptr;

  std::string name(relative);
  const int nofollow = flags & O_NOFOLLOW;
  bool direct = options.direct || (flags & O_DIRECT) != 0;
  std::string reason = "staged: host threads read it through the page cache";
  unique_fd fd;
  struct stat st;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);  // before open: a change after this must not look settled
  *error = open_beneath(root->get(), name, nofollow | (direct ? O_DIRECT : 0), &fd, &st);
  if (direct && *error == -EINVAL) {
    direct = false;
    reason += ", because its file system has no O_DIRECT";
    *error = open_beneath(root->get(), name, nofollow, &fd, &st);
  }
  if (*error != 0) return nullptr;

  std::uint32_t alignment = 1;
  if (direct) {
    alignment = direct_alignment(fd.get());
    if (alignment == 0) {
      direct = false;
      reason += ", because this file cannot be read with O_DIRECT";
      alignment = 1;
      const int status = ::fcntl(fd.get(), F_GETFL);
      if (status < 0 || ::fcntl(fd.get(), F_SETFL, status & ~O_DIRECT) != 0) {
        *error = -errno;
        return nullptr;
      }
    } else {
      reason = "staged: host threads read it with O_DIRECT, aligned to " + std::to_string(alignment) + " bytes";
    }
  }

  file_info info = info_of(st, std::move(reason));
  info.settled = is_settled(info.mtime_ns, info.ctime_ns, ns_of(now));
  return std::make_unique<posix_file>(std::move(fd), std::move(info), st.st_nlink, alignment, root,
                                      posix_file::origin{std::move(name), nofollow | (direct ? O_DIRECT : 0)});
}

// Descriptors of files that are open for writing count too, so that readers keep fewer; only the kernel limits them.
live_file::live_file(unique_fd fd, file_info info) : fd_(std::move(fd)), info_(std::move(info)) { keep_descriptor_anyway(); }

live_file::~live_file() { give_descriptor_back(); }

std::int64_t live_file::pread(std::span<std::byte> dst, std::int64_t offset) {
  if (offset < 0) return -EINVAL;
  return read_to_end(
      [this](std::byte* to, std::size_t nbytes, std::int64_t at) { return pread_waiting(fd_.get(), to, nbytes, at); }, dst, offset);
}

int live_file::pwrite(std::span<const std::byte> src, std::int64_t offset) {
  if (offset < 0) return -EINVAL;
  iovec part{const_cast<std::byte*>(src.data()), src.size()};  // pwritev(2) has no const
  std::size_t done = 0;
  return write_fully(fd_.get(), {&part, 1}, offset, &done);
}

int live_file::sync(bool data_only) {
  return uninterrupted([&] { return data_only ? ::fdatasync(fd_.get()) : ::fsync(fd_.get()); });
}

int live_file::truncate(std::int64_t nbytes) {
  if (nbytes < 0) return -EINVAL;
  return uninterrupted([&] { return ::ftruncate(fd_.get(), nbytes); });
}

std::int64_t live_file::extents(std::int64_t* offset, std::span<extent> out) { return extents_of(fd_.get(), offset, out); }

std::unique_ptr<live_file> open_live_file(const root_directory& root, std::string_view path, int flags,
                                          const posix_options& options, int* error) {
  std::string_view relative;
  *error = check_flags(flags, options.writable);
  if (*error == 0) *error = check_path(path, &relative);
  if (*error != 0) return nullptr;

  const std::string name(relative);
  const bool creates = (flags & O_CREAT) != 0, fresh = creates && (flags & O_EXCL) != 0;
  const int how = (flags & O_NOFOLLOW) | (creates ? O_CREAT : 0) | (fresh ? O_EXCL : 0);
  unique_fd fd;
  struct stat st;
  // Also if the flags say O_WRONLY: a write of a part of a page first reads the page in.
  *error = open_beneath(root->get(), name, O_RDWR | how, &fd, &st);
  if (*error == -EACCES && (flags & names::open_write_once) != 0) {
    *error = open_beneath(root->get(), name, O_WRONLY | how, &fd, &st);
  }
  if (*error != 0) return nullptr;
  // Only now is it known to be a regular file.
  if ((flags & O_TRUNC) != 0 && !fresh) {
    *error = uninterrupted([&] { return ::ftruncate(fd.get(), 0); });
    if (*error == 0 && ::fstat(fd.get(), &st) != 0) *error = -errno;
    if (*error != 0) return nullptr;
  }
  const bool direct = options.direct || (flags & O_DIRECT) != 0;
  file_info info = info_of(st, direct ? "staged: it is open for writing, which goes through the page cache (no O_DIRECT)"
                                      : "staged: it is open for writing");
  info.settled = false;
  info.live = true;
  return std::make_unique<live_file>(std::move(fd), std::move(info));
}

root_directory open_root(const std::string& root) {
  const int fd = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "gpufs: cannot use '" + root + "' as a root");
  return std::make_shared<const unique_fd>(fd);
}

posix_store::posix_store(const std::string& root, posix_options options) : rooted_store(root, options) {}

posix_store::~posix_store() = default;

std::unique_ptr<open_file> posix_store::open(std::string_view path, int flags, int* error) {
  if (writes(flags)) return open_live_file(root_, path, flags, options_, error);
  return open_posix_file(root_, path, flags, options_, error);
}

}  // namespace gpufs::store
