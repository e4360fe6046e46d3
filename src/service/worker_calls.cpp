// SPDX-License-Identifier: Apache-2.0
// What a worker does with the store: opening files, and calls on paths.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>

#include "../store/path.hpp"
#include "../store/read_loop.hpp"
#include "worker.hpp"

namespace gpufs::service {

void worker::run_call(work& w) {
  if (w.op == opcode::sync || w.op == opcode::truncate) return call_on_file(w);
  if (w.op == opcode::close) return close_file(w);
  // Copied out of the shared memory once.
  const std::string path(reinterpret_cast<const char*>(payload_of(w)), w.nbytes);
  w.op == opcode::open ? open_file(w, path) : call_on_path(w, path);
}

void worker::open_file(const work& w, const std::string& path) {
  std::string why;
  int error = 0;
  std::unique_ptr<store::open_file> file;
  if (core_.open.full()) {
    error = -EMFILE;
    why = "max_open_files is " + std::to_string(core_.options.max_open_files);
  } else if (!core_.options.writable && store::check_flags(static_cast<int>(w.flags), false) == -EROFS) {
    error = -EROFS;
    why = "the mount may not write";
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
    out.cache_id = info.live ? core_.ids.fresh() : core_.ids.id_of(info);
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
  if (error != 0) return fail(w, path, -error, why);
  tally::add(counts_.opens[std::min(static_cast<std::size_t>(kind), counts_.opens.size() - 1)]);
  if (out.result != 0) tally::add(counts_.opens_with_bytes);
  answer(w, out);
}

// Brings the file's beginning along with the answer to its open: how many bytes, all that are wanted or none. An error is no
// concern of the open's: the read that wants these bytes asks again, and gets it.
std::uint32_t worker::read_along(const work& w, const store::open_file& file, read_path& how) {
  constexpr std::size_t most = 65536;  // a few us; a larger page is brought in when somebody reads it
  const std::size_t nbytes = store::clip(w.nbytes_along, 0, file.info().nbytes);
  if (file.info().kind != source_kind::staged || file.info().live || nbytes == 0 || nbytes > most) return 0;
  std::size_t done = 0;
  while (done < nbytes) {
    const std::int64_t n = read_at_once(file, how, {payload_of(w) + done, nbytes - done}, static_cast<std::int64_t>(done));
    if (n <= 0) return 0;
    done += static_cast<std::size_t>(n);
  }
  return file.check_version() == 0 ? static_cast<std::uint32_t>(nbytes) : 0;
}

void worker::call_on_path(const work& w, const std::string& path) {
  const bool reads = w.op == opcode::stat || w.op == opcode::read_dir;
  const std::uint32_t known = w.op == opcode::unlink ? unlink_directory : w.op == opcode::stat ? stat_link : 0;
  if (!reads && !core_.options.writable) return fail(w, path, EROFS, "the mount may not write");
  if ((w.flags & ~known) != 0) return fail(w, path, EINVAL, "flags " + std::to_string(w.flags));
  reply out{};
  std::string text;
  try {
    store::store& files = *core_.files;
    switch (w.op) {
      case opcode::unlink:
        out.result = files.unlink(path, (w.flags & unlink_directory) != 0);
        break;
      case opcode::rename: {
        const std::string to(reinterpret_cast<const char*>(payload_of(w) + core_.requests.payload_nbytes()), w.handle);
        out.result = files.rename(path, to, &out.mode);
        if (out.result < 0) text = "to '" + to + "'";
        break;
      }
      case opcode::mkdir:
        out.result = files.make_directory(path, w.mode);
        break;
      case opcode::stat: {
        store::path_status status;
        out.result = files.status(path, (w.flags & stat_link) != 0, &status);
        out.file_nbytes = status.nbytes;
        out.inode = status.inode;
        out.mtime_ns = status.mtime_ns;
        out.mode = status.mode;
        break;
      }
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

}  // namespace gpufs::service
