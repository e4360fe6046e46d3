// SPDX-License-Identifier: Apache-2.0
// What a worker does with the store: opening and reading.
#include <linux/magic.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <new>

#include "../store/read_loop.hpp"
#include "../store/unique_fd.hpp"
#include "worker.hpp"

namespace gpufs::service {
namespace {

// How to read a file whose file system has no RWF_NOWAIT.
read_path without_nowait(int fd) {
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0) return read_path::async;
  const auto type = static_cast<std::uint64_t>(fs.f_type) & 0xffffffffu;
  const bool memory = type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == HUGETLBFS_MAGIC;
  return memory ? read_path::memory : read_path::async;
}

}  // namespace

// Reads what the page cache holds, at once; what it does not hold goes on asynchronously. Measured on a page-cached file, a
// batch through io_uring costs as much a read as preadv2 (0.91 and 0.99 us for 4 KiB), but answers only when all of it is done.
// A file is taken hold of once for all reads of it: 16 workers that do so for each read of one file wait for each other.
void worker::read_group() {
  by_file(group_, [this](std::span<work> reads) {
    const open_files::ref file = core_.open.acquire(reads.front().handle);
    for (work& w : reads) begin_read(w, file.get());
    finish(read_);
    read_.clear();
  });
  if (nin_flight_ != 0) ring_.submit();
  group_.clear();
}

// Calls each(works of one file), in any order.
template <class EachFile>
void worker::by_file(std::vector<work>& works, EachFile each) {
  std::sort(works.begin(), works.end(), [](const work& a, const work& b) { return a.handle < b.handle; });
  for (auto first = works.begin(); first != works.end();) {
    const auto end = std::find_if(first, works.end(), [&](const work& w) { return w.handle != first->handle; });
    each(std::span<work>(first, end));
    first = end;
  }
}

// Checks a read and answers it, or passes it on: to read_ when its bytes are there, else to where it can wait.
void worker::begin_read(work& w, open_files::entry* file) {
  if (core_.stopping.load()) return fail(w, ESHUTDOWN);
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  w.file = file;
  if (w.offset < 0 || w.nbytes > core_.requests.payload_nbytes() ||
      w.offset > std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(w.nbytes)) {
    return fail(w, EINVAL, std::to_string(w.nbytes) + " bytes at " + std::to_string(w.offset));
  }
  w.nbytes = static_cast<std::uint32_t>(store::clip(w.nbytes, w.offset, w.file->file->info().nbytes));
  if (file->how.load(std::memory_order_relaxed) == read_path::call) {
    w.hold = core_.open.share(*file);
    push_slow(std::move(w));
  } else if (w.nbytes == 0 || read_cached(w)) {
    read_.push_back(std::move(w));
  }
}

// One read of bytes that are there at once: how many, or -errno; -EAGAIN when they are not. Finds out `how` the file's file system
// is read where it has no RWF_NOWAIT.
std::int64_t worker::read_at_once(const store::open_file& file, read_path& how, std::span<std::byte> to, std::int64_t offset) {
  const int fd = file.descriptor();
  const iovec part{to.data(), to.size()};
  while (how == read_path::nowait || how == read_path::memory) {
    const ssize_t n =
        how == read_path::memory ? ::pread(fd, to.data(), to.size(), offset) : ::preadv2(fd, &part, 1, offset, RWF_NOWAIT);
    if (n >= 0) return n;
    if (how == read_path::nowait && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) {
      no_nowait_ = {file.info().device, without_nowait(fd)};
      how = no_nowait_.how;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return -EAGAIN;
}

// True when all of w was read. Else w has been answered, or is being read asynchronously, or waits for a thread to block.
bool worker::read_cached(work& w) {
  open_files::entry& file = *w.file;
  const read_path known = file.how.load(std::memory_order_relaxed);
  read_path how = known;
  while (w.done < w.nbytes) {
    const std::int64_t n = read_at_once(*file.file, how, {payload_of(w) + w.done, w.nbytes - w.done}, w.offset + w.done);
    if (how != known) file.how.store(how, std::memory_order_relaxed);
    if (n > 0) {
      w.done += static_cast<std::uint32_t>(n);
      continue;
    }
    if (n == -EAGAIN) {
      tally::add(counts_.cold_reads);
      w.hold = core_.open.share(file);
      read_async(std::move(w));
    } else if (n == 0) {
      fail(w, ESTALE, "the file has become shorter");
    } else {
      fail(w, static_cast<int>(-n));
    }
    return false;
  }
  return true;
}

void worker::read_async(work w) {
  const std::uint32_t alignment = w.file->file->alignment();
  // What io_uring cannot do goes through open_file::pread: unaligned O_DIRECT.
  const auto at = reinterpret_cast<std::uintptr_t>(payload_of(w)) | static_cast<std::uintptr_t>(w.offset) | w.done;
  if (!have_ring_ || (at & (alignment - 1)) != 0) return push_slow(std::move(w));
  const std::uint32_t tag = free_tags_.back();
  free_tags_.pop_back();
  ++nin_flight_;
  in_flight_[tag] = std::move(w);
  submit_read(tag);
}

void worker::submit_read(std::uint32_t tag) {
  const work& w = in_flight_[tag];
  const std::uint32_t alignment = w.file->file->alignment();
  const std::uint32_t nbytes = (w.nbytes - w.done + alignment - 1) & ~(alignment - 1);
  const std::uint32_t room = core_.requests.payload_nbytes() - w.done;
  ring_.prepare_read(w.file->file->descriptor(), payload_of(w) + w.done, std::min(nbytes, room), w.offset + w.done, tag);
}

bool worker::reap() {
  const unsigned n = ring_.reap([this](std::uint64_t tag, int result) {
    work& w = in_flight_[tag];
    const bool again = result == -EINTR || (result == -EAGAIN && store::make_blocking(w.file->file->descriptor()));
    if (result > 0) w.done = std::min(w.nbytes, w.done + static_cast<std::uint32_t>(result));
    const bool aligned = (w.done & (w.file->file->alignment() - 1)) == 0;
    if (again || (result > 0 && w.done < w.nbytes && aligned)) return submit_read(static_cast<std::uint32_t>(tag));
    work finished = std::move(w);
    free_tags_.push_back(static_cast<std::uint32_t>(tag));
    --nin_flight_;
    if (result > 0 && finished.done >= finished.nbytes) {
      read_.push_back(std::move(finished));
    } else if (result == 0) {
      fail(finished, ESTALE, "the file has become shorter");
    } else if (result > 0 || result == -EAGAIN || result == -EOPNOTSUPP || result == -EINVAL) {
      push_slow(std::move(finished));  // this file system or kernel does not do it so
    } else {
      fail(finished, -result);
    }
  });
  ring_.submit();
  by_file(read_, [this](std::span<work> reads) { finish(reads); });
  read_.clear();
  return n != 0;
}

// Answers reads of one file whose bytes are there, after one look at whether it still is the version that was opened.
void worker::finish(std::span<work> read) {
  if (read.empty()) return;
  const int error = read.front().file->file->check_version();
  for (const work& w : read) {
    if (error != 0) {
      fail(w, -error, error == -ESTALE ? "the file has changed since it was opened" : "looking whether the file has changed");
      continue;
    }
    tally::add(counts_.reads);
    tally::add(counts_.bytes_read, w.nbytes);
    reply out{};
    out.result = w.nbytes;
    answer(w, out);
  }
}

void worker::read_blocking(const work& w) {
  std::int64_t result = 0;
  std::string text;
  try {
    if (w.nbytes == 0) {
      result = w.file->file->check_version();
    } else {
      result = store::read_fully(
          [&](std::byte* to, std::size_t nbytes, std::int64_t at) {
            return w.file->file->pread({to, nbytes}, at);
          },
          {payload_of(w) + w.done, w.nbytes - w.done}, w.offset + w.done);
    }
  } catch (const std::bad_alloc&) {
    result = -ENOMEM;
  } catch (const std::exception& e) {
    result = -EIO;
    text = e.what();
  }
  if (result < 0) return fail(w, static_cast<int>(-result), text);
  tally::add(counts_.reads);
  tally::add(counts_.bytes_read, w.nbytes);
  reply out{};
  out.result = w.nbytes;
  answer(w, out);
}

void worker::open_file(const work& w) {
  // Copied out of the shared memory once.
  std::string path(reinterpret_cast<const char*>(payload_of(w)), w.nbytes);
  std::string why;
  int error = 0;
  std::unique_ptr<store::open_file> file;
  if (core_.open.full()) {
    error = -EMFILE;
    why = "max_open_files is " + std::to_string(core_.options.max_open_files);
  } else {
    try {
      file = core_.files->open_explained(path, static_cast<int>(w.flags), &error, &why);
      if (!file && error >= 0) error = -EIO;
    } catch (const std::bad_alloc&) {
      error = -ENOMEM;
    } catch (const std::exception& e) {
      error = -EIO;
      why = e.what();
    }
  }
  reply out{};
  source_kind kind{};
  if (file) {
    const store::file_info& info = file->info();
    kind = info.kind;
    out.file_nbytes = info.nbytes;
    out.pull_base = reinterpret_cast<std::uintptr_t>(info.pull_base);
    out.kind = info.kind;
    out.mode = info.mode;
    out.inode = info.inode;
    out.mtime_ns = info.mtime_ns;
    out.cache_id = core_.ids.id_of(info);
    read_path how = file->descriptor() < 0             ? read_path::call
                    : file->alignment() > 1            ? read_path::async
                    : info.device == no_nowait_.device ? no_nowait_.how
                                                       : read_path::nowait;
    if (out.cache_id == 0) {
      error = -ENFILE;
      why = "all 2^28 - 1 cache ids of this mount have been given";
    } else {
      out.result = read_along(w, *file, how);
      error = core_.open.insert(std::move(file), path, w.number, how, &out.handle);
    }
  }
  if (error != 0) {
    tally::add(counts_.errors);
    core_.log.count(-error);
    core_.log.add("open", path, -error, why);
    reply refusal{};
    refusal.result = error;
    return answer(w, refusal);
  }
  tally::add(counts_.opens[std::min(static_cast<std::size_t>(kind), counts_.opens.size() - 1)]);
  if (out.result != 0) tally::add(counts_.opens_with_bytes);
  answer(w, out);
}

// Brings the file's beginning along with the answer to its open: how many bytes, all that are wanted or none. An error is no
// concern of the open's: the read that wants these bytes asks again, and gets it.
std::uint32_t worker::read_along(const work& w, const store::open_file& file, read_path& how) {
  constexpr std::size_t most = 65536;  // a few us; a larger page is brought in when somebody reads it
  const std::size_t nbytes = store::clip(w.nbytes_along, 0, file.info().nbytes);
  if (file.info().kind != source_kind::staged || nbytes == 0 || nbytes > most) return 0;
  std::size_t done = 0;
  while (done < nbytes) {
    const std::int64_t n = read_at_once(file, how, {payload_of(w) + done, nbytes - done}, static_cast<std::int64_t>(done));
    if (n <= 0) return 0;
    done += static_cast<std::size_t>(n);
  }
  return file.check_version() == 0 ? static_cast<std::uint32_t>(nbytes) : 0;
}

}  // namespace gpufs::service
