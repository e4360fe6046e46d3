// SPDX-License-Identifier: Apache-2.0
// A worker's work on requests of rows (opcode::read_rows).
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "../store/read_loop.hpp"
#include "clock.hpp"
#include "worker.hpp"

namespace gpufs::service {
namespace {

// A load from a mapping whose file was cut raises SIGBUS. In a thread that blocks it, as those of the thread do that made the
// mount, it kills the process.
void allow_bus_errors() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGBUS);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

rows_left& left_of(work& w, std::span<const std::uint64_t> offsets) {
  if (!w.rows) {
    w.rows = std::make_unique<rows_left>();
    w.rows->offsets.assign(offsets.begin(), offsets.end());
    w.rows->errors.resize(offsets.size());
  }
  return *w.rows;
}

}  // namespace

// Checks the request and answers it, or passes it on like begin_read.
void worker::begin_rows(work& w, open_files::entry* file) {
  if (core_.stopping.load()) return fail(w, ESHUTDOWN);
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  w.file = file;
  const store::file_info& info = file->file->info();
  const transport::row_buffers* const buffers = core_.rows.load(std::memory_order_acquire);  // meets make_row_buffers' release
  if (buffers == nullptr) return fail(w, EINVAL, "nobody has asked for row buffers");
  bool fits = buffers->has(w.index) && w.skip != 0 && w.skip <= buffers->fitting(w.nbytes) && w.flags == 0 && !info.live &&
              w.nbytes <= info.nbytes;
  const std::span<std::uint64_t> offsets = std::span(offsets_).first(fits ? w.skip : 0);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    // Copies the offsets out of the shared memory once.
    offsets[i] = std::atomic_ref<std::uint64_t>(buffers->list(w.index)[i]).load(std::memory_order_relaxed);
    fits = fits && offsets[i] <= static_cast<std::uint64_t>(info.nbytes) - w.nbytes;
  }
  if (!fits) return fail(w, EINVAL, std::to_string(w.skip) + " rows of " + std::to_string(w.nbytes) + " bytes");
  if (info.kind == source_kind::windows) note_missed_rows(*file, offsets, w.nbytes);
  if (read_mapped_rows(w, offsets)) {
    read_.push_back(std::move(w));
  } else {
    read_rows(std::move(w), offsets);
  }
}

// Counts rows as missed pages, and a page once for neighbouring rows in it. So the file is registered as soon as by reads of its
// pages; a row costs the host's threads more than its bytes say.
void worker::note_missed_rows(const open_files::entry& file, std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes) {
  const unsigned shift = file.file->windows().shift;
  // One call for neighbours in the list that are in one window, because other threads count there, too.
  constexpr unsigned page_shift = 12;
  for (std::size_t i = 0, end = 0; i < offsets.size(); i = end) {
    std::uint64_t npages = 0, next = 0;  // next: the first page that was not counted
    for (; end < offsets.size() && offsets[end] >> shift == offsets[i] >> shift; ++end) {
      const std::uint64_t first = offsets[end] >> page_shift, last = (offsets[end] + row_nbytes - 1) >> page_shift;
      if (first >= next || last + 1 < next) {
        npages += last - first + 1;
      } else {
        npages += last + 1 - next;
      }
      next = last + 1;
    }
    file.file->note_missed(static_cast<std::int64_t>(offsets[i]), static_cast<std::uint32_t>(npages << page_shift));
  }
}

// The file's mapping, which the first call makes; nullptr if it has none, or if loads from it are not safe now.
store::readable_mapping* worker::mapping_of(open_files::entry& file) {
  // Of a version that has ended, pages may be gone: a load would give them memory again.
  if (file.has_no_mapping.load(std::memory_order_relaxed) || file.has_ended()) return nullptr;
  store::readable_mapping* mapping = file.mapping.load(std::memory_order_acquire);
  if (mapping == nullptr) {
    mapping = map(file);
  } else if (!store::readable_mapping::is_guarded()) {  // another part of the program has taken the signal since
    mapping = nullptr;
  }
  if (mapping != nullptr && !std::exchange(allows_bus_errors_, true)) allow_bus_errors();
  return mapping;
}

store::readable_mapping* worker::map(open_files::entry& file) {
  const store::file_info& info = file.file->info();
  const bool by_call = file.how.load(std::memory_order_relaxed) == read_path::call;
  try {
    std::unique_ptr<store::readable_mapping> made;
    if (!file.remote && !by_call && file.file->alignment() == 1) {
      const auto nbytes = static_cast<std::size_t>(info.nbytes), begin = static_cast<std::size_t>(info.begin);
      made = store::readable_mapping::of(file.file->descriptor(), nbytes, begin);
    }
    if (!made) {
      file.has_no_mapping.store(true, std::memory_order_relaxed);
      return nullptr;
    }
    // Release: meets mapping_of's acquire, and that of the thread that closes the file. If another thread was first, its mapping
    // serves as well.
    store::readable_mapping* others = nullptr;
    return file.mapping.compare_exchange_strong(others, made.get(), std::memory_order_acq_rel) ? made.release() : others;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Copies the rows from a mapping of the file. Returns whether all of them were there.
bool worker::read_mapped_rows(const work& w, std::span<const std::uint64_t> offsets) {
  store::readable_mapping* const mapping = pages_from_ != nullptr ? pages_from_ : mapping_of(*w.file);
  return mapping != nullptr && mapping->gather(offsets, w.nbytes, row_buffers().rows(w.index));
}

// Fills parts_ with the first rows that one call can read: they follow each other with little between them, which costs less to
// copy than another call. Returns how many.
std::size_t worker::begin_together(std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes, std::byte* to) {
  constexpr std::size_t most = 64;
  parts_.assign(1, {to, row_nbytes});
  std::size_t n = 1;
  for (; n < offsets.size() && n < most; ++n) {
    const std::uint64_t end = offsets[n - 1] + row_nbytes;
    if (offsets[n] < end || offsets[n] - end > between_.size()) break;
    if (offsets[n] != end) parts_.push_back({between_.data(), static_cast<std::size_t>(offsets[n] - end)});
    parts_.push_back({to + n * row_nbytes, row_nbytes});
  }
  return n;
}

// Reads rows from the page cache at once, and the rest asynchronously, row by row.
void worker::read_rows(work w, std::span<const std::uint64_t> offsets) {
  open_files::entry& file = *w.file;
  const read_path known = file.how.load(std::memory_order_relaxed);
  read_path how = file.file->alignment() > 1 ? read_path::call : known;  // O_DIRECT reads whole blocks
  std::byte* const rows = row_buffers().rows(w.index);
  bool may_join = true;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    std::int64_t n = -EAGAIN;
    if (how == read_path::nowait || how == read_path::memory) {
      const std::size_t most = may_join ? offsets.size() - i : 1;
      const std::size_t together = begin_together(offsets.subspan(i, most), w.nbytes, rows + i * w.nbytes);
      n = read_at_once(*file.file, reads_by_, how, parts_, static_cast<std::int64_t>(offsets[i]));
      if (n == 0) n = -ESTALE;  // the file has become shorter
      std::size_t nwhole = 0;
      while (n > 0 && nwhole < together && offsets[i + nwhole] + w.nbytes <= offsets[i] + static_cast<std::uint64_t>(n)) ++nwhole;
      // After a page that is not there, each row is read alone, so that it shows which part of it is missing.
      may_join = nwhole == together;
      if (nwhole != 0 || together > 1) {
        i += nwhole - 1;  // none: now this row alone
        continue;
      }
      if (n > 0) n = -EAGAIN;  // a part of the row
    }
    if (n == -EAGAIN) {
      left_of(w, offsets).rows.push_back(static_cast<std::uint32_t>(i));
    } else {
      left_of(w, offsets).errors[i] = static_cast<int>(n);
    }
  }
  if (how != known && file.file->alignment() == 1) file.how.store(how, std::memory_order_relaxed);
  if (!w.rows || w.rows->rows.empty()) return read_.push_back(std::move(w));
  tally::add(counts_.cold_reads);
  w.hold = core_.open.share(file);
  const bool by_store = how == read_path::call && file.file->descriptor() < 0;
  if (!by_store && (how == read_path::call || !have_ring_)) return push_slow(std::move(w));
  auto waiting = std::make_unique<work>(std::move(w));
  if (begin_rows_left(*waiting)) return rows_.push_back(std::move(waiting));
  // If no read can begin because the file hangs, one thread that may block waits for it. All have failed if each did as it began.
  waiting->read = waiting->rows->next == waiting->rows->rows.size();
  waiting->read ? read_.push_back(std::move(*waiting)) : push_slow(std::move(*waiting));
}

// Begins as many of the remaining reads as there is room for. Returns whether any are under way, or will be once others have ended,
// which reads that hang may never do.
bool worker::begin_rows_left(work& w) {
  rows_left& left = *w.rows;
  open_files::entry& file = *w.file;
  const bool remote = file.remote;
  const bool by_store = file.file->descriptor() < 0;
  const bool begins = !core_.stopping.load() && !(remote && file.nhung_io.load(std::memory_order_relaxed) != 0);
  // A group of other reads must find tags.
  while (begins && !left.by_call && left.next < left.rows.size() && free_tags_.size() > group_size &&
         !(remote && nremote_ >= ring_.most_blocking())) {
    const std::uint32_t tag = take_tag(by_store, remote), row = left.rows[left.next++];
    ++left.nunder_way;
    flight& f = in_flight_[tag];
    f.what.file = &file;
    f.what.nbytes = w.nbytes;
    f.what.offset = static_cast<std::int64_t>(left.offsets[row]);
    f.of = &w;
    f.row = row;
    f.to = row_buffers().rows(w.index) + std::size_t{row} * w.nbytes;
    if (const int error = submit_read(tag); error != 0) end_row(tag, error, error == -EAGAIN);
  }
  return left.nunder_way != 0 || (begins && !left.by_call && left.next < left.rows.size() && nfresh() != 0);
}

// Ends a row that was read asynchronously; result: of its last part. by_call: a call that may block reads it.
void worker::end_row(std::uint32_t tag, int result, bool by_call) {
  const flight& f = in_flight_[tag];
  rows_left& left = *f.of->rows;
  --left.nunder_way;
  if (by_call) {
    left.rows.push_back(f.row);
    left.by_call = true;
  } else if (result <= 0) {
    left.errors[f.row] = result == 0 ? -ESTALE : result;  // 0: the file has become shorter
  }
  give_tag_back(tag);
}

// Called after reads have ended: begins others, and passes on the requests that have no more rows to begin or to wait for.
void worker::begin_left() {
  std::erase_if(rows_, [this](std::unique_ptr<work>& w) {
    const auto is_begun = [&] { return w->rows->next == w->rows->rows.size(); };
    if (is_begun() ? w->rows->nunder_way != 0 : begin_rows_left(*w)) return false;
    const bool has_more = !is_begun();  // rows that fail as they begin are not under way
    w->read = !has_more;
    // A thread that may block asks a remote file's server whether the file has changed, and closes the file.
    has_more || w->file->remote ? push_slow(std::move(*w)) : read_.push_back(std::move(*w));
    return true;
  });
}

// Reads row by row, in a thread that may block. It stops after a while, so that others need not wait and it does not count as a
// hanging call, unless one row alone takes so long.
void worker::read_rows_blocking(work w) {
  constexpr std::uint64_t enough_ns = 20'000'000;
  const std::uint64_t until = clock_ns() + enough_ns;
  store::open_file& file = *w.file->file;
  rows_left& left = *w.rows;
  std::byte* const rows = row_buffers().rows(w.index);
  const auto read = [&](std::byte* to, std::size_t nbytes, std::int64_t at) { return file.pread({to, nbytes}, at); };
  while (left.next < left.rows.size()) {
    const std::uint32_t row = left.rows[left.next++];
    std::int64_t result = -EIO;
    try {
      result =
          store::read_fully(read, {rows + std::size_t{row} * w.nbytes, w.nbytes}, static_cast<std::int64_t>(left.offsets[row]));
    } catch (const std::bad_alloc&) {
      result = -ENOMEM;
    } catch (const std::exception&) {
    }
    left.errors[row] = result < 0 ? static_cast<int>(result) : 0;
    if (clock_ns() > until && left.next < left.rows.size()) return push_slow(std::move(w));
  }
  // Meets end_version's release, as in finish().
  if (w.file->has_ended()) {
    return fail_read(w, -ESTALE, "the file has changed since it was opened");
  }
  answer_rows(w);
}

// Answers; the caller has checked that the file still is the version that was opened.
void worker::answer_rows(const work& w) {
  reply out{};
  if (w.rows) {
    const std::vector<int>& errors = w.rows->errors;
    if (std::find(errors.begin(), errors.end(), -ESTALE) != errors.end()) {
      return fail_read(w, -ESTALE, "the file has changed since it was opened");
    }
    const auto first = std::find_if(errors.begin(), errors.end(), [](int error) { return error != 0; });
    if (first != errors.end()) {
      out.result = std::count_if(first, errors.end(), [](int error) { return error != 0; });
      std::uint64_t* const list = row_buffers().list(w.index);
      for (std::size_t i = 0; i < errors.size(); ++i) {
        std::atomic_ref<std::uint64_t>(list[i]).store(static_cast<std::uint64_t>(std::int64_t{errors[i]}),
                                                      std::memory_order_relaxed);
      }
      core_.note_error(counts_, "read_rows", w.file->path, -*first,
                       std::to_string(out.result) + " of " + std::to_string(errors.size()) + " rows");
    }
  }
  tally::add(counts_.reads);
  tally::add(counts_.bytes_read, (w.skip - static_cast<std::uint64_t>(out.result)) * w.nbytes);
  answer(w, out);
}

}  // namespace gpufs::service
