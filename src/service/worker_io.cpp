// SPDX-License-Identifier: Apache-2.0
// A worker's calls of open files: reading and writing.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <limits>
#include <new>

#include "../simt/unique_fd.hpp"
#include "../store/file_system.hpp"
#include "../store/read_loop.hpp"
#include "../transport/mask_runs.hpp"
#include "clock.hpp"
#include "worker.hpp"

namespace gpufs::service {
namespace {

// How to read a file whose file system has no RWF_NOWAIT.
read_path without_nowait(int fd) {
  return store::file_system_of(fd) == store::file_system_kind::memory ? read_path::memory : read_path::async;
}

const char* stores_text(int error) {
  return error == -EIO ? "somebody else has cut the file while it was mapped: what was written there may be lost" : "";
}

// True for a live file: its end was reached, and the bytes read so far are the answer.
bool ended(work& w) {
  if (!w.file->file->info().live) return false;
  w.nbytes = w.done;
  return true;
}

}  // namespace

// Reads from the page cache at once, and begins an asynchronous read for all else. Measured on a page-cached file, a batch through
// io_uring costs as much a read as preadv2 (0.91 and 0.99 us for 4 KiB), but answers only when all of it is done. One reference to
// a file serves all reads of it: 16 workers that acquire one for each read of one file wait for each other.
void worker::read_group() {
  by_file(group_, [this](std::span<work> reads) {
    open_files::ref file = core_.open.acquire(reads.front().handle);
    pages_from_ = nullptr;
    own_ = nullptr;
    ncalls_ = 0;
    if (file) look_how_to_read(*file.get(), static_cast<std::uint32_t>(reads.size()));
    for (work& w : reads) w.op == opcode::read ? begin_read(w, file.get()) : begin_rows(w, file.get());
    if (own_ != nullptr) own_->note(id_, ncalls_);
    finish(read_);
    read_.clear();
    let_go(std::move(file));
  });
  if (nin_flight_ != nby_store_) ring_.submit();
  group_.clear();
}

// Decides how the next `nreads` reads of the file are done. Small files, and those of which little is read, get no mapping and no
// descriptors of the workers', because to have them and to give them back costs as much as some reads.
void worker::look_how_to_read(open_files::entry& file, std::uint32_t nreads) {
  const std::uint32_t often = for_tests::eager_loads.load(std::memory_order_relaxed) ? 1 : 64;
  reads_by_ = file.file->descriptor();
  bool maps = false;  // one thread, whose reads make them many; the others go on meanwhile
  if (file.nreads.load(std::memory_order_relaxed) < often) {
    const std::uint32_t before = file.nreads.fetch_add(nreads, std::memory_order_relaxed);
    if (before >= often || before + nreads < often) return;
    maps = true;
  }
  const read_path how = file.how.load(std::memory_order_relaxed);
  const bool at_once = how == read_path::nowait || how == read_path::memory;
  if (!at_once || reads_by_ < 0 || file.remote || file.file->info().live || file.file->alignment() != 1) return;
  if (maps || file.mapping.load(std::memory_order_relaxed) != nullptr) pages_from_ = mapping_of(file);
  own_ = file.descriptors.load(std::memory_order_acquire);
  if (own_ == nullptr) {
    try {
      auto made = std::make_unique<own_descriptors>(core_.most_workers());
      // As in map().
      if (file.descriptors.compare_exchange_strong(own_, made.get(), std::memory_order_acq_rel)) own_ = made.release();
    } catch (const std::bad_alloc&) {
      return;
    }
  }
  reads_by_ = own_->of(id_, reads_by_);
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

// Checks a read and answers it, or passes it on: to read_ if its bytes are there, else to a queue in which it can wait.
void worker::begin_read(work& w, open_files::entry* file) {
  if (core_.stopping.load()) return fail(w, ESHUTDOWN);
  if (file == nullptr && (w.flags & read_ahead) != 0) return refuse(w, EBADF);  // it was asked for before the last close
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  w.file = file;
  if (w.offset < 0 || w.nbytes > core_.requests.payload_nbytes() ||
      w.offset > std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(w.nbytes)) {
    return fail(w, EINVAL, std::to_string(w.nbytes) + " bytes at " + std::to_string(w.offset));
  }
  const store::file_info& info = w.file->file->info();
  if (!info.live) w.nbytes = static_cast<std::uint32_t>(store::clip(w.nbytes, w.offset, info.nbytes));
  if ((w.flags & read_to_frame) != 0 && begin_copy(w)) return;
  const bool asks = w.nbytes == 0 && file->remote;  // asks the server whether the file has changed
  if (asks || file->how.load(std::memory_order_relaxed) == read_path::call) {
    w.hold = core_.open.share(*file);
    w.nbytes == 0 ? push_slow(std::move(w)) : read_by_store(std::move(w));
  } else if (w.nbytes == 0 || read_cached(w)) {
    read_.push_back(std::move(w));
  }
}

// Begins to copy a page straight to its frame, if the device may read that part of the file itself. False: it may not, and the page
// is read like any other.
bool worker::begin_copy(work& w) {
  w.flags &= ~read_to_frame;
  if (w.nbytes == 0 || w.skip >= core_.frames.nframes || w.nbytes > core_.frames.nbytes) return false;
  const store::open_file& file = *w.file->file;
  const source_kind kind = file.info().kind;
  const store::registered_windows windows = file.windows();
  const auto first = static_cast<std::uint64_t>(w.offset), last = first + w.nbytes - 1;
  if (kind == source_kind::windows) {
    const auto is_registered = [&](std::uint64_t window) { return window < 64 && (windows.registered >> window & 1) != 0; };
    if (!is_registered(first >> windows.shift) || !is_registered(last >> windows.shift)) return false;
  } else if (kind != source_kind::pull) {
    return false;
  }
  // The engine copies from one registration, and each registration is of one window of the file itself.
  const auto begin = static_cast<std::uint64_t>(file.info().begin);
  if (begin != 0 && (begin + first) >> windows.shift != (begin + last) >> windows.shift) return false;
  w.flags |= read_to_frame;
  w.hold = core_.open.share(*w.file);
  core_.copy_later(std::move(w));
  return true;
}

// One read of bytes that are there at once. Returns how many, or -errno; -EAGAIN if they are not there. Sets `how` if the file
// system turns out to have no RWF_NOWAIT. fd: the file's descriptor, or our own.
std::int64_t worker::read_at_once(const store::open_file& file, int fd, read_path& how, std::span<std::byte> to,
                                  std::int64_t offset) {
  const iovec part{to.data(), to.size()};
  return read_at_once(file, fd, how, {&part, 1}, offset);
}
std::int64_t worker::read_at_once(const store::open_file& file, int fd, read_path& how, std::span<const iovec> parts,
                                  std::int64_t offset) {
  const int nparts = static_cast<int>(parts.size());
  const off_t at = file.info().begin + offset;
  while (how == read_path::nowait || how == read_path::memory) {
    ++ncalls_;
    const ssize_t n =
        how == read_path::memory ? ::preadv(fd, parts.data(), nparts, at) : ::preadv2(fd, parts.data(), nparts, at, RWF_NOWAIT);
    if (n >= 0) return n;
    if (how == read_path::nowait && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) {
      how = without_nowait(fd);
      if (file.info().device == known_.device) known_.how = how;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return -EAGAIN;
}

// Loads from a mapping, in place of a call, where that is cheaper: 0.7 us in place of 1.5 to 2 for 4 KiB (an H200's host). A fault
// takes 5 to 6. Calls of many threads take longest, so there loads pay sooner.
bool worker::read_mapped(work& w) {
  const auto offset = static_cast<std::uint64_t>(w.offset);
  const bool eager = for_tests::eager_loads.load(std::memory_order_relaxed);
  const std::uint8_t nreads = eager ? 0 : core_.options.nworkers >= 8 ? 3 : 6;
  if (pages_from_ == nullptr || !pages_from_->pays(offset, w.nbytes, nreads)) return false;
  if (!pages_from_->gather({&offset, 1}, w.nbytes, payload_of(w))) return false;
  w.done = w.nbytes;
  return true;
}

// True: all of w was read, or all that a live file has. Else w was answered, or is being read asynchronously, or waits for a thread
// that may block.
bool worker::read_cached(work& w) {
  if (read_mapped(w)) return true;
  open_files::entry& file = *w.file;
  const read_path known = file.how.load(std::memory_order_relaxed);
  read_path how = known;
  while (w.done < w.nbytes) {
    const std::int64_t n = read_at_once(*file.file, reads_by_, how, {payload_of(w) + w.done, w.nbytes - w.done}, w.offset + w.done);
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
      if (ended(w)) return true;
      fail_read(w, -ESTALE, "the file has become shorter");
    } else {
      fail_read(w, static_cast<int>(n));
    }
    return false;
  }
  return true;
}

void worker::read_async(work w) {
  const std::uint32_t alignment = w.file->file->alignment();
  // io_uring cannot do unaligned O_DIRECT reads; open_file::pread does them.
  const auto begin = static_cast<std::uintptr_t>(w.file->file->info().begin + w.offset);
  const auto at = reinterpret_cast<std::uintptr_t>(payload_of(w)) | begin | w.done;
  if (!have_ring_ || (at & (alignment - 1)) != 0) return push_slow(std::move(w));
  // Nor does it get a read of a remote file that hangs, or one more than the kernel has threads for such reads.
  const bool remote = w.file->remote;
  const bool waits = remote && (w.file->nhung_io.load(std::memory_order_relaxed) != 0 || nremote_ >= ring_.most_blocking());
  if (waits || free_tags_.empty()) {
    return push_slow(std::move(w));
  }
  const std::uint32_t tag = take_tag(false, remote);
  in_flight_[tag].what = std::move(w);
  submit_read(tag);
}

// Has the store answer the read when it can; else a thread that may block reads.
void worker::read_by_store(work w) {
  if (w.file->file->descriptor() >= 0 || free_tags_.empty()) return push_slow(std::move(w));
  const std::uint32_t tag = take_tag(true, false);
  in_flight_[tag].what = std::move(w);
  if (const int error = submit_read(tag); error != 0) end_read(tag, error);
}

// A tag is the place in in_flight_ of a read that begins now.
std::uint32_t worker::take_tag(bool by_store, bool remote) {
  const std::uint32_t tag = free_tags_.back();
  free_tags_.pop_back();
  ++nin_flight_;
  nremote_ += remote;
  nby_store_ += by_store;
  flight& f = in_flight_[tag];
  f.since_ns = clock_ns();
  f.by_store = by_store;
  return tag;
}

void worker::give_tag_back(std::uint32_t tag) {
  nby_store_ -= in_flight_[tag].by_store;
  in_flight_[tag] = {};
  free_tags_.push_back(tag);
  --nin_flight_;
}

// Begins the read, or what is left of it. 0 or a negative errno, which ends it.
int worker::submit_read(std::uint32_t tag) {
  flight& f = in_flight_[tag];
  if (f.by_store) return begin_in_store(f, tag);
  const work& w = f.what;
  const std::int64_t at = w.file->file->info().begin + w.offset + w.done;
  if (std::byte* const to = f.to) {  // a row
    ring_.prepare_read(w.file->file->descriptor(), to + w.done, w.nbytes - w.done, at, tag);
    return 0;
  }
  const std::uint32_t alignment = w.file->file->alignment();
  const std::uint32_t nbytes = (w.nbytes - w.done + alignment - 1) & ~(alignment - 1);
  const std::uint32_t room = core_.requests.payload_nbytes() - w.done;
  ring_.prepare_read(w.file->file->descriptor(), payload_of(w) + w.done, std::min(nbytes, room), at, tag);
  return 0;
}

// -EAGAIN: the store does not begin it.
int worker::begin_in_store(flight& f, std::uint32_t tag) {
  const work& w = f.what;
  std::byte* const to = f.to != nullptr ? f.to : payload_of(w);
  int error = -EAGAIN;
  try {
    if (w.file->file->begin_pread({to + w.done, w.nbytes - w.done}, w.offset + w.done, answers_.expect(tag))) return 0;
  } catch (const std::bad_alloc&) {
    error = -ENOMEM;
  } catch (const std::exception&) {
    error = -EIO;
  }
  answers_.forget(tag);
  return error;
}

bool worker::reap() {
  unsigned n = answers_.reap([this](std::uint32_t tag, std::int64_t result) { end_read(tag, result); });
  if (nin_flight_ != nby_store_) {
    n += ring_.reap([this](std::uint64_t tag, int result) { end_read(static_cast<std::uint32_t>(tag), result); });
  }
  if (n != 0 && !rows_.empty()) begin_left();
  if (nin_flight_ != nby_store_) ring_.submit();
  by_file(read_, [this](std::span<work> reads) { finish(reads); });
  read_.clear();
  return n != 0;
}

// Goes on with a read in flight that has given so many bytes or -errno, or ends it.
void worker::end_read(std::uint32_t tag, std::int64_t result) {
  flight& f = in_flight_[tag];
  work& w = f.what;
  store::open_file& file = *w.file->file;
  const bool by_store = f.by_store;
  const bool again = result == -EINTR || (!by_store && result == -EAGAIN && make_blocking(file.descriptor()));
  if (result > 0) w.done += static_cast<std::uint32_t>(std::min<std::int64_t>(w.nbytes - w.done, result));
  const bool aligned = by_store || (w.done & (file.alignment() - 1)) == 0;
  if (again || (result > 0 && w.done < w.nbytes && aligned)) {
    result = submit_read(tag);
    if (result == 0) return;
  }
  if (f.overdue) {
    core_.blocked.note_read(*w.file, -1);
    if (--noverdue_ == 0) core_.blocked.note_keeper(-1);
  }
  nremote_ -= w.file->remote;
  // This file system or kernel cannot do it, or a signal came between; or the store does not begin it.
  const bool failed_in_ring =
      (result > 0 && w.done < w.nbytes) || result == -EOPNOTSUPP || result == -EINVAL || result == -ECANCELED;
  const bool by_call = result == -EAGAIN || (!by_store && failed_in_ring);
  if (f.of != nullptr) return end_row(tag, static_cast<int>(result), by_call);
  work finished = std::move(w);
  give_tag_back(tag);
  if (by_call) return push_slow(std::move(finished));
  if (result > 0 || (result == 0 && ended(finished))) {
    finished.read = true;
    // A thread that may block asks a remote file's server whether the file has changed, and closes the file.
    return finished.file->remote ? push_slow(std::move(finished)) : read_.push_back(std::move(finished));
  }
  if (result == 0) {
    fail_read(finished, -ESTALE, "the file has become shorter");
  } else {
    fail_read(finished, static_cast<int>(result));
  }
  let_go(std::move(finished.hold));
}

// Answers reads of one file whose bytes are there, after one check that the file still is the version that was opened.
void worker::finish(std::span<work> read) {
  if (read.empty()) return;
  open_files::entry& from = *read.front().file;
  // Meets end_version's release: bytes that a writer of this mount has written come after that.
  const int error = from.has_ended() ? -ESTALE : from.file->check_version();
  const bool by_windows = from.file->info().kind == source_kind::windows;
  for (const work& w : read) {
    if (error != 0) {
      fail_read(w, error, error == -ESTALE ? "the file has changed since it was opened" : "looking whether the file has changed");
      continue;
    }
    if (w.op == opcode::read_rows) {
      answer_rows(w);
      continue;
    }
    reply out{};
    out.result = w.nbytes;
    if ((w.flags & read_to_frame) != 0) {
      tally::add(counts_.copies);
      out.number = 1;
    } else {
      tally::add(counts_.reads);
      tally::add(counts_.bytes_read, w.nbytes);
      if (by_windows) from.file->note_missed(w.offset, w.nbytes);
    }
    answer(w, out);
  }
  if (by_windows && core_.has_new_windows(from)) core_.look_soon(from);
}

// Ends the version before the answer: a later open of the file does not share a version that has ended. If the device cannot be
// told at once, it is told soon after.
void worker::fail_read(const work& w, int error, std::string_view text) {
  if (error == -ESTALE && !w.file->file->info().live) core_.end_version_soon(*w.file);
  fail(w, -error, text);
}

void worker::read_blocking(const work& w) {
  std::int64_t result = 0;
  std::string text;
  try {
    store::open_file& file = *w.file->file;
    const auto read = [&](std::byte* to, std::size_t nbytes, std::int64_t at) { return file.pread({to, nbytes}, at); };
    const std::span<std::byte> wanted{payload_of(w) + w.done, w.nbytes - w.done};
    if (file.info().live) {
      result = store::read_to_end(read, wanted, w.offset + w.done);
    } else {
      result = w.nbytes == 0 ? file.check_version() : store::read_fully(read, wanted, w.offset + w.done);
    }
  } catch (const std::bad_alloc&) {
    result = -ENOMEM;
  } catch (const std::exception& e) {
    result = -EIO;
    text = e.what();
  }
  if (result >= 0 && w.file->has_ended()) {
    result = -ESTALE;
    text = "the file has changed since it was opened";
  }
  if (result < 0) return fail_read(w, static_cast<int>(result), text);
  tally::add(counts_.reads);
  reply out{};
  out.result = w.done + result;
  if (w.file->file->info().kind == source_kind::windows)
    w.file->file->note_missed(w.offset, static_cast<std::uint32_t>(out.result));
  tally::add(counts_.bytes_read, static_cast<std::uint64_t>(out.result));
  answer(w, out);
}

// Sorts a file's writes by their offset, so that neighbours become one call.
void worker::write_group() {
  const open_files::ref file = core_.open.acquire(group_.front().handle);
  for (work& w : group_) begin_write(w, file.get());
  sort_writes(write_);
  write_joined(write_);
  write_.clear();
}

void worker::sort_writes(std::vector<work>& writes) {
  std::stable_sort(writes.begin(), writes.end(), [](const work& a, const work& b) { return a.offset < b.offset; });
}

// Whether other requests of the same kind and file that wait for a thread to block can be done along with it.
bool worker::can_join(const work& w) {
  return w.read || (w.op == opcode::write && (w.flags & write_masked) == 0 && w.file->file->descriptor() >= 0);
}

// Checks a write and does it, or passes it on: to write_ if it may be joined with others, else to a queue in which it can wait.
void worker::begin_write(work& w, open_files::entry* file) {
  if (core_.stopping.load()) return fail(w, ESHUTDOWN);
  w.file = file;
  if (!core_.options.writable) return fail(w, EROFS, "the mount may not write");
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  if (!file->file->info().live) return fail(w, EBADF, "the file is not open for writing");
  const std::uint32_t room = core_.requests.payload_nbytes();
  if ((w.flags & ~write_masked) != 0 || w.skip > room || w.nbytes > room - w.skip || w.offset < 0 ||
      w.offset > std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(w.nbytes)) {
    return fail(
        w, EINVAL,
        std::to_string(w.nbytes) + " bytes, " + std::to_string(w.skip) + " into the payload, at " + std::to_string(w.offset));
  }
  if (file->file->descriptor() < 0 || file->remote) {
    w.hold = core_.open.share(*file);
    push_slow(std::move(w));
  } else if ((w.flags & write_masked) != 0) {
    write_each(w);
  } else {
    write_.push_back(std::move(w));
  }
}

// The writes are of one file, and sorted. Bytes before an error were written.
void worker::write_joined(std::span<const work> writes) {
  std::array<iovec, group_size> parts;
  for (std::size_t first = 0, end = 0; first < writes.size(); first = end) {
    const work& begin = writes[first];
    std::int64_t at = begin.offset;
    for (end = first; end < writes.size() && writes[end].offset == at; ++end) {
      const work& w = writes[end];
      parts[end - first] = {payload_of(w) + w.skip, w.nbytes};
      at += w.nbytes;
    }
    std::size_t done = 0;
    const int error = store::write_fully(begin.file->file->descriptor(), std::span(parts).first(end - first), begin.offset, &done);
    for (std::size_t i = first; i < end; ++i) {
      const work& w = writes[i];
      const auto w_end = static_cast<std::size_t>(w.offset - begin.offset) + w.nbytes;
      finish_write(w, w_end <= done ? 0 : error, w.nbytes);
    }
  }
}

// Does one write by itself: masked, or through the store's pwrite.
void worker::write_each(const work& w) {
  int error = 0;
  std::uint32_t nwritten = w.nbytes;
  std::string text;
  try {
    if ((w.flags & write_masked) != 0) {
      error = write_runs(w, &nwritten);
    } else if (w.nbytes != 0) {
      error = w.file->file->pwrite({payload_of(w) + w.skip, w.nbytes}, w.offset);
    }
  } catch (const std::bad_alloc&) {
    error = -ENOMEM;
  } catch (const std::exception& e) {
    error = -EIO;
    text = e.what();
  }
  finish_write(w, error, nwritten, text);
}

// Writes each run of bytes whose bits are set, by a call of its own.
int worker::write_runs(const work& w, std::uint32_t* nwritten) {
  const std::uint32_t end = w.skip + w.nbytes;
  // Copies the mask out of the shared memory once, word by word.
  auto* shared = reinterpret_cast<std::uint32_t*>(payload_of(w) + core_.requests.payload_nbytes());
  mask_.resize((end + 31) / 32);
  for (std::size_t i = w.skip / 32; i < mask_.size(); ++i) {
    mask_[i] = std::atomic_ref<std::uint32_t>(shared[i]).load(std::memory_order_relaxed);
  }
  *nwritten = 0;
  return transport::each_run(mask_, w.skip, end, [&](std::uint32_t first, std::uint32_t last) {
    const int error = w.file->file->pwrite({payload_of(w) + first, last - first}, w.offset + (first - w.skip));
    if (error == 0) *nwritten += last - first;
    return error;
  });
}

void worker::finish_write(const work& w, int error, std::uint32_t nwritten, std::string_view text) {
  if (error != 0) return fail(w, error < 0 ? -error : EIO, text);
  tally::add(counts_.writes);
  tally::add(counts_.bytes_written, nwritten);
  reply out{};
  out.result = nwritten;
  answer(w, out);
}

void worker::close_file(const work& w) {
  int error = 0;
  if (w.offset != 0) {
    if (const open_files::ref file = core_.open.acquire(w.handle)) error = file->file->note_written_in_place(w.offset, true);
  }
  if (core_.open.close(w.handle) != 0) return fail(w, EBADF, "no open file has this handle");
  tally::add(counts_.closes);
  if (error != 0) return fail(w, core_.open.path_of(w.handle).value_or(""), -error, stores_text(error));
  answer(w, reply{});
}

// Sync and truncate.
void worker::call_on_file(work& w, open_files::entry* file) {
  w.file = file;
  if (!core_.options.writable) return fail(w, EROFS, "the mount may not write");
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  if (!file->file->info().live) return fail(w, EBADF, "the file is not open for writing");
  const bool syncs = w.op == opcode::sync;
  constexpr std::uint32_t both = names::sync_data_only | names::sync_page_cache;
  if ((w.flags & ~(syncs ? both : 0)) != 0 || (w.flags & both) == both) {
    return fail(w, EINVAL, "flags " + std::to_string(w.flags));
  }
  if (!syncs && w.offset < 0) return fail(w, EINVAL, "to " + std::to_string(w.offset) + " bytes");
  int error = 0;
  std::string text;
  try {
    if (!syncs) {
      error = file->file->truncate(w.offset);
    } else {
      if (w.offset != 0) error = file->file->note_written_in_place(w.offset, false);
      text = stores_text(error);
      const int synced = (w.flags & names::sync_page_cache) != 0 ? 0 : file->file->sync((w.flags & names::sync_data_only) != 0);
      if (error == 0) error = synced;
    }
  } catch (const std::bad_alloc&) {
    error = -ENOMEM;
  } catch (const std::exception& e) {
    error = -EIO;
    text = e.what();
  }
  if (error != 0) return fail(w, error < 0 ? -error : EIO, text);
  if (syncs) tally::add(counts_.syncs);
  answer(w, reply{});
}

}  // namespace gpufs::service
