// SPDX-License-Identifier: Apache-2.0
// Rows of an array in a file: the inside of gpufs.open() in Python. Each engine moves the same bytes in another way.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpufs/mount.hpp"

namespace gpufs::apps::arrays {

// What a file does not do, in Python an OSError.
class file_error : public std::runtime_error {
 public:
  file_error(int number, const std::string& what, std::string path)
      : std::runtime_error(what), number_(number), path_(std::move(path)) {}
  int number() const { return number_; }  // an errno
  const std::string& path() const { return path_; }

 private:
  int number_;
  std::string path_;
};

// Rows that lie together in the file: those from the one with number `first` on, which begins at `begin`.
struct row_piece {
  std::uint64_t first, begin;
};

// Where rows of equal size lie in the file. pieces: one at least, in the order of the rows, whose end is where the next one begins;
// none is empty, but the one of no rows. In the file they may lie in any order.
struct row_place {
  std::uint64_t row_nbytes, nrows;
  std::vector<row_piece> pieces;
};

// Rows of a place, in this order: ids[0] to ids[n - 1], below 0 counted from the end; or, without ids, those from `first` on.
struct row_list {
  const std::int64_t* ids;
  std::uint64_t first, n;
};

// A stream of the engine's machine: CUDA's handle, or on the CPU machine the address of a simt::stream.
using stream_handle = std::uintptr_t;

// An open file. Its calls may be made by several threads at once, but close(), which is the last one.
class row_file {
 public:
  virtual ~row_file() = default;
  row_file(const row_file&) = delete;
  row_file& operator=(const row_file&) = delete;

  // Copies the rows to `out`, one after the other, or from `src`; waits until they are there. All is in the host's memory, and
  // rows that are written are all different. Throws std::out_of_range, there is no such row, before anything is moved; file_error,
  // the file cannot be read or written, or is shorter by now: then any of the rows may have been moved.
  virtual void read(const row_list& rows, std::byte* out) = 0;
  virtual void write(const row_list& rows, const std::byte* src) = 0;
  // Begins to bring the rows in, and goes on until that is asked for, or `stop` is set. What goes wrong, a later read says.
  virtual void prefetch(const row_list& rows, const std::atomic<bool>& stop) = 0;
  // Registers all of the file with the device and waits, so that no first read waits for that; what cannot be registered is read as
  // before. Nothing, where the engine has no device. file_error: the path does not open any more.
  virtual void prepare() {}
  // Brings what was written to the file: where processes see it, or where it stays if the machine stops. file_error: it did not
  // get there, and is lost.
  virtual void flush(bool durable) = 0;
  virtual void close() = 0;  // with a flush; throws what that does, and is closed nevertheless

  // The same in a stream, without waiting: all is in the device's memory. Of rows that there are not, or that cannot be read,
  // zeros are read, and nothing is written; the next check(), or the next of these, throws what went wrong.
  virtual void read_on(stream_handle stream, const row_list& rows, std::byte* out);
  virtual void write_on(stream_handle stream, const row_list& rows, const std::byte* src);
  virtual void prefetch_on(stream_handle stream, const row_list& rows);
  virtual bool ended() const { return true; }  // all that was put into streams
  virtual void check() {}

 protected:
  row_file() = default;
};

// Where bytes of a file that was read at once go: its `nbytes` at `at` of the buffer.
struct whole_file {
  std::string path;  // below the mount's root
  std::uint64_t nbytes, at;
};

// A folder, with the page cache of the files in it. Its files end before it.
class row_mount {
 public:
  virtual ~row_mount() = default;
  row_mount(const row_mount&) = delete;
  row_mount& operator=(const row_mount&) = delete;

  // path: below the root. Throws file_error, it does not open so, or ends before the rows do; std::invalid_argument, there is no
  // such place.
  virtual std::unique_ptr<row_file> open(const std::string& path, const row_place& place, bool writable) = 0;
  // Reads all of each file to `out`, in the host's memory or, where `on_device` says so and the engine has one, the device's, and
  // waits. Throws file_error for the first that does not open, cannot be read, or has another size by now.
  virtual void read_files(std::span<const whole_file> files, std::byte* out, bool on_device) = 0;
  virtual std::string way() const = 0;
  virtual int device() const { return 0; }
  virtual std::uint64_t cache_nbytes() const { return 0; }
  virtual mount_counters counters() const { return {}; }  // zeros where the engine has no page cache
  virtual std::vector<file_report> files() const { return {}; }

 protected:
  row_mount() = default;
};

// By host threads, from mappings of the files.
std::unique_ptr<row_mount> make_mount_cpu(const std::string& root);
// By kernels, on the CPU machine, and on a GPU. Throws gpufs::error.
std::unique_ptr<row_mount> make_mount_simt(const std::string& root, const mount_options& options);
std::unique_ptr<row_mount> make_mount_cuda(const std::string& root, const mount_options& options);

// The sizes of regular files, by host threads. file_error: of the first that is none.
std::vector<std::uint64_t> sizes_of(std::span<const std::string> paths);

// A descriptor of a file that must stay as long as it is.
class guarded_file {
 public:
  guarded_file(std::string path, int flags, std::uint64_t least_nbytes);  // file_error
  ~guarded_file();
  guarded_file(const guarded_file&) = delete;
  guarded_file& operator=(const guarded_file&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  void check() const { check(least_nbytes_); }
  void check(std::uint64_t nbytes) const;  // file_error, ESTALE: it is shorter than that by now
  [[noreturn]] void fail(int error, const char* what) const;

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t least_nbytes_;
};

}  // namespace gpufs::apps::arrays
