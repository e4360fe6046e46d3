// SPDX-License-Identifier: Apache-2.0
// A worker's calls of the store: opening files, and calls on paths.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "../store/file_extents.hpp"
#include "../store/file_system.hpp"
#include "../store/path.hpp"
#include "../store/read_loop.hpp"
#include "worker.hpp"

namespace gpufs::service {

namespace {

// try_open's result if the file must be opened again.
constexpr int open_again = 1;

// Whether files of the kind may have others with bytes of them (open_file::others_with_its_bytes). The host is not asked for pages
// of those, and so does not look at their version again.
constexpr bool may_have_others(source_kind kind) { return kind == source_kind::nvme; }

}  // namespace

void worker::open_file(const work& w, const std::string& path) {
  std::string why;
  int error = 0;
  reply out{};
  source_kind kind{};
  try {
    for (int nagain = 10;; --nagain) {
      out = {};
      error = try_open(w, path, nagain > 0, out, kind, why);
      if (error != open_again) break;
    }
  } catch (const std::bad_alloc&) {
    error = -ENOMEM;
  } catch (const std::exception& e) {
    error = -EIO;
    why = e.what();
  }
  if (error != 0) return fail(w, path, -error, why);
  if (out.number == 0) {
    tally::add(counts_.opens[std::min(static_cast<std::size_t>(reader_of(kind)), counts_.opens.size() - 1)]);
    if (out.result != 0) tally::add(counts_.opens_with_bytes);
  }
  answer(w, out);
}

// Returns 0, a negative errno, or open_again (only if `again`); unless 0, the file is not open.
int worker::try_open(const work& w, const std::string& path, bool again, reply& out, source_kind& kind, std::string& why) {
  const bool cuts = (w.flags & O_TRUNC) != 0, once = (w.flags & open_write_once) != 0;
  if (core_.open.full()) {
    why = "max_open_files is " + std::to_string(core_.options.max_open_files);
    return -EMFILE;
  }
  if (!core_.options.writable && store::check_flags(static_cast<int>(w.flags), false) == -EROFS) {
    why = "the mount may not write";
    return -EROFS;
  }
  if ((w.flags & (open_unmapped | open_prepared)) != 0) return -EINVAL;  // only the service sets these
  const std::uint64_t nrenamed = core_.open.nrenamed(), nclosed = core_.open.nwritten_closed();
  // O_TRUNC is left out until we know that the file is not open for writing: a caller that joins such an open cuts the file by it.
  std::uint32_t flags = w.flags & ~static_cast<std::uint32_t>(O_TRUNC);
  if (cuts || is_written(path, once)) flags |= open_unmapped;
  int error = 0;
  std::unique_ptr<store::open_file> file = core_.files->open_explained(path, static_cast<int>(flags), &error, &why);
  if (!file) return error < 0 ? error : -EIO;
  const store::file_info info = file->info();
  if (info.live && info.begin != 0) return -EINVAL;
  kind = info.kind;
  if (may_ask_ahead(kind) && !core_.has_opened_staged.load(std::memory_order_relaxed)) core_.has_opened_staged = true;
  out.file_nbytes = info.nbytes;
  out.pull_base = reinterpret_cast<std::uintptr_t>(info.pull_base);
  out.kind = info.kind;
  out.mode = info.mode | (info.live && info.fixed_size ? transport::fixed_size_bit : 0);
  out.inode = info.inode;
  out.mtime_ns = info.mtime_ns;
  out.cache_id = info.live ? core_.ids.fresh() : core_.ids.id_of(info);
  const bool is_known = info.device == known_.device && info.device == core_.files->device();
  if (const int fd = file->descriptor(); fd >= 0 && !is_known) {
    const store::file_system_kind in = store::file_system_of(fd);
    // If the file system may have RWF_NOWAIT, read_at_once() tries.
    known_ = {info.device,
              in == store::file_system_kind::fuse     ? read_path::call
              : in == store::file_system_kind::remote ? read_path::async
                                                      : read_path::nowait,
              store::may_hang(in)};
  }
  const bool remote = file->descriptor() >= 0 && known_.remote;
  read_path how = file->descriptor() < 0  ? read_path::call
                  : file->alignment() > 1 ? (known_.how == read_path::call ? known_.how : read_path::async)
                                          : known_.how;
  if (out.cache_id == 0) {
    why = "all 2^28 - 1 cache ids of this mount have been given";
    return -ENFILE;
  }
  out.result = read_along(w, *file, how);
  const open_files::entered entered = core_.open.insert(
      std::move(file), {.path = path, .device_number = w.number, .how = how, .once = once, .remote = remote, .not_handle = w.skip});
  if (entered.error == -EBUSY) why = "it is open for writing, and so only from its first byte on";
  if (entered.error != 0) return entered.error;
  out.handle = entered.handle;
  if (entered.joined) {
    out.result = 0;
    out.number = *entered.joined + 1;
    return 0;
  }
  try {
    constexpr std::uint32_t made_anew = O_CREAT | O_EXCL;
    if (info.live && !cuts && (w.flags & made_anew) != made_anew && has_other_size(path, out, nclosed)) {
      core_.open.close(out.handle);
      why = "its size changes each time that it is opened, by closes of this mount";
      error = again ? open_again : -EAGAIN;
    } else if (info.live) {
      end_versions(info);
      end_versions_of_others(out.handle);
      if (cuts && (w.flags & made_anew) != made_anew) error = cut(out);
    } else if (has_ended_meanwhile(entered, kind, nrenamed, nclosed) && (again || may_have_others(kind))) {
      core_.open.close(out.handle);
      why = "it is written by another name each time that it is opened";
      error = again ? open_again : -EAGAIN;
    }
  } catch (...) {
    core_.open.close(out.handle);
    throw;
  }
  return error;
}

// For a file that was just opened for reading. Whether its version has ended by what this mount did during the open: by a rename,
// which looked the file's opens up before this one was entered, or by the close of an open for writing, which this one then found
// no more, though it had looked at the file before all was written; or by an open for writing of another file that has its bytes.
bool worker::has_ended_meanwhile(const open_files::entered& opened, source_kind kind, std::uint64_t nrenamed,
                                 std::uint64_t nclosed) {
  if (!may_have_others(kind)) {
    if (!opened.renamed && core_.open.nrenamed() == nrenamed && core_.open.nwritten_closed() == nclosed) return false;
  }
  const open_files::ref file = core_.open.acquire(opened.handle);
  if (!file) return false;  // the device has guessed its handle, and closed it
  if (opened.renamed) file->file->begin_rename();
  return file->file->check_version() == -ESTALE;
}

// For a file that was just opened for writing. Whether it has another size than it was opened with, as this mount has closed an
// open for writing of it meanwhile, which this one then found no more: what is appended by a size from before that would overwrite
// what the other has written.
bool worker::has_other_size(const std::string& path, const reply& opened, std::uint64_t nclosed) {
  if (core_.open.nwritten_closed() == nclosed) return false;
  const open_files::ref file = core_.open.acquire(opened.handle);
  if (!file) return false;  // the device has guessed its handle, and closed it
  struct stat now;
  const int fd = file->file->descriptor();
  if (fd >= 0) return ::fstat(fd, &now) != 0 || now.st_size != opened.file_nbytes;
  store::path_status status;  // by its path, which may lead to another file by now: then this one is opened once more in vain
  if (core_.files->status(path, false, &status) != 0) return false;
  return status.inode != file->file->info().inode || status.nbytes != opened.file_nbytes;
}

// Whether the path's file is open for writing: then this open will join that one. (If that one is closed before, this open has no
// mapping.)
bool worker::is_written(const std::string& path, bool once) {
  if (core_.open.nwritten() == 0) return false;
  store::path_status status;
  return core_.files->status(path, false, &status) == 0 && core_.open.written(status.device, status.inode, once);
}

// Called when a file is open for writing from now on. Opens of it for reading would get the writers' bytes when they read the file,
// so their versions end; they may still read cached pages of their version.
void worker::end_versions(const store::file_info& info) {
  for (const open_files::ref& reader : core_.open.readers_of(info.device, info.inode)) {
    if (!core_.end_version(*reader.get())) continue;
    core_.log.add("open", reader->path, ESTALE, "it is open for writing now: who had it open for reading has what is cached");
  }
}

void worker::end_versions_of_others(std::uint32_t handle) {
  const open_files::ref file = core_.open.acquire(handle);
  if (!file) return;  // the device has guessed its handle, and closed it
  store::file_info other = file->file->info();
  for (const std::uint64_t inode : file->file->others_with_its_bytes()) {
    other.inode = inode;
    end_versions(other);
  }
}

// Cuts a file that was just opened for writing with O_TRUNC. 0, or a negative errno, and then the file is closed again.
int worker::cut(reply& out) {
  int error = -EIO;
  if (const open_files::ref file = core_.open.acquire(out.handle)) {
    try {
      error = file->file->truncate(0);
    } catch (const std::exception&) {
    }
  }
  out.file_nbytes = 0;
  if (error != 0) core_.open.close(out.handle);
  return error;
}

// Brings the file's beginning along with the answer to its open. Returns how many bytes: all that are wanted, or none. An error
// here does not fail the open: a read of these bytes asks again, and gets the error.
std::uint32_t worker::read_along(const work& w, const store::open_file& file, read_path& how) {
  constexpr std::size_t most = 65536;  // a few us; a larger page is brought in at its first read
  const std::size_t nbytes = store::clip(w.nbytes_along, 0, file.info().nbytes);
  const bool is_asked_for = may_ask_ahead(file.info().kind) && !file.info().live;
  if (!is_asked_for || nbytes == 0 || nbytes > most) return 0;
  std::size_t done = 0;
  while (done < nbytes) {
    const std::int64_t n =
        read_at_once(file, file.descriptor(), how, {payload_of(w) + done, nbytes - done}, static_cast<std::int64_t>(done));
    if (n <= 0) return 0;
    done += static_cast<std::size_t>(n);
  }
  return file.check_version() == 0 ? static_cast<std::uint32_t>(nbytes) : 0;
}

// The places of the opens, for writing and with open_write_once, of a file that has just lost a name, as `reply` has them for
// unlink and rename.
void worker::note_written(const store::path_status& lost, std::uint64_t& place, std::uint64_t& once_place) {
  if (lost.inode == 0) return;
  const auto place_of = [&](bool once) {
    const auto file = core_.open.written(lost.device, lost.inode, once);
    return file ? std::uint64_t{file->device_number} << 32 | file->handle : 0;
  };
  place = place_of(false);
  once_place = place_of(true);
}

// A path's status, and the places of its file's opens for writing.
int worker::status_of(const std::string& path, reply& out) {
  store::path_status status;
  std::uint64_t place = 0, before = 0;
  bool none = false;
  // If an open for writing was closed after we looked at the file, the status may lack bytes that were written through it. So we
  // look again, until no open for writing existed before the look. (If opens are closed each time, the last look counts.)
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t nclosed = core_.open.nwritten_closed();
    const int error = core_.files->status(path, false, &status);
    if (error < 0) return error;
    place = out.pull_base = 0;
    note_written(status, place, out.pull_base);
    if (core_.open.nwritten_closed() == nclosed || (none && status.inode == before)) break;
    none = place == 0 && out.pull_base == 0;
    before = status.inode;
  }
  out.number = place != 0 ? static_cast<std::uint32_t>(place >> 32) + 1 : 0;
  out.handle = static_cast<std::uint32_t>(place);
  out.file_nbytes = status.nbytes;
  out.inode = status.inode;
  out.mtime_ns = status.mtime_ns;
  out.mode = status.mode;
  return 0;
}

void worker::call_on_path(const work& w, const std::string& path) {
  const bool reads = w.op == opcode::stat || w.op == opcode::read_dir;
  const std::uint32_t known = w.op == opcode::unlink ? unlink_directory : 0;
  if (!reads && !core_.options.writable) return fail(w, path, EROFS, "the mount may not write");
  if ((w.flags & ~known) != 0) return fail(w, path, EINVAL, "flags " + std::to_string(w.flags));
  reply out{};
  std::string text;
  store::path_status status;
  try {
    store::store& files = *core_.files;
    switch (w.op) {
      case opcode::unlink:
        if (core_.open.nwritten() == 0 || files.status(path, true, &status) != 0) status = {};
        out.result = files.unlink(path, (w.flags & unlink_directory) != 0);
        out.number = S_ISLNK(status.mode) ? 1 : 0;
        note_written(status, reinterpret_cast<std::uint64_t&>(out.file_nbytes), out.pull_base);
        break;
      case opcode::rename: {
        const std::string to(reinterpret_cast<const char*>(payload_of(w) + core_.requests.payload_nbytes()), w.handle);
        store::path_status replaced;
        if (files.status(path, true, &status) != 0) status = {};
        if (core_.open.nwritten() == 0 || files.status(to, true, &replaced) != 0) replaced = {};
        {
          const open_files::renaming renaming(core_.open, status.device, status.inode);
          out.result = files.rename(path, to, &out.mode);
        }
        out.number = S_ISDIR(out.mode) || S_ISLNK(out.mode) || S_ISLNK(replaced.mode) ? 1 : 0;
        note_written(status, reinterpret_cast<std::uint64_t&>(out.file_nbytes), out.pull_base);
        note_written(replaced, out.inode, out.mtime_ns);
        if (out.result < 0) text = "to '" + to + "'";
        break;
      }
      case opcode::mkdir:
        out.result = files.make_directory(path, w.mode);
        break;
      case opcode::stat:
        out.result = status_of(path, out);
        break;
      default:
        out.file_nbytes = w.offset;
        out.result =
            files.read_directory(path, &out.file_nbytes, {payload_of(w), std::min(w.handle, core_.requests.payload_nbytes())});
        break;
    }
  } catch (const std::bad_alloc&) {
    out.result = -ENOMEM;
  } catch (const std::exception& e) {
    out.result = -EIO;
    text = e.what();
  }
  if (out.result < 0) return fail(w, path, static_cast<int>(-out.result), text);
  answer(w, out);
}

// `extents`: of any open file.
void worker::list_extents(work& w, open_files::entry* file) {
  w.file = file;
  if (file == nullptr) return fail(w, EBADF, "no open file has this handle");
  const std::size_t room =
      std::min<std::size_t>(std::min(w.nbytes, core_.requests.payload_nbytes()) / sizeof(extent), store::most_extents);
  if (w.flags != 0 || w.offset < 0 || room == 0) {
    return fail(w, EINVAL, "extents from " + std::to_string(w.offset) + " on, room for " + std::to_string(room));
  }
  reply out{};
  out.file_nbytes = w.offset;
  std::string text;
  try {
    std::vector<extent> found(room);
    out.result = file->file->extents(&out.file_nbytes, found);
    // Its version has ended, and what the file has is another's. Meets mark_ended's release.
    if (out.result >= 0 && file->has_ended()) out.result = -ESTALE;
    if (out.result > 0) {
      out.result *= static_cast<std::int64_t>(sizeof(extent));
      std::memcpy(payload_of(w), found.data(), static_cast<std::size_t>(out.result));
    }
  } catch (const std::bad_alloc&) {
    out.result = -ENOMEM;
  } catch (const std::exception& e) {
    out.result = -EIO;
    text = e.what();
  }
  if (out.result == -EOPNOTSUPP) return refuse(w, EOPNOTSUPP);  // an answer, and no error of ours
  if (out.result < 0) return fail(w, static_cast<int>(-out.result), text);
  answer(w, out);
}

}  // namespace gpufs::service
