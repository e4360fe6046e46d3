// SPDX-License-Identifier: Apache-2.0
// A mount's files that go through the device's memory piece by piece, in and out, for host code whose kernels work on a piece at a
// time. docs/design/scans.md, "At the host's call"
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpufs/host_file.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/stream.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Reads a file's pieces in their order, one ahead of the caller's work; and writes them, as the caller has changed them, to another
// file, behind it. One thread calls. The mount must end after it. Its kernels are the library's: one that reads is under way, and
// one that writes, each on half of 64 multiprocessors at most. They wait for the host, so kernels that work on pieces are loaded
// (simt::load), and their memory is there, before the first piece is asked for.
class file_pieces {
 public:
  static constexpr std::uint64_t usual_piece_nbytes = GPUFS_ON_CUDA ? 128 << 20 : 1 << 20;

  // from, to: paths below the mount's root; without `to` pieces are only read. Of three pieces there is room in the device's
  // memory. piece_nbytes: of all pieces but the last one. begin: where the first one begins in `from`. Opens both files; what is
  // written is first a file TO.<process>-<number>.unfinished of the same folder. Throws std::invalid_argument (no bytes are no
  // piece; `from` ends before `begin`), std::system_error with the open's errno (EROFS: the mount is not writable; EISDIR: `to` is
  // a folder), gpufs::error, std::bad_alloc.
  file_pieces(const host_mount& fs, const std::string& from, const std::optional<std::string>& to = {},
              std::uint64_t piece_nbytes = usual_piece_nbytes, std::uint64_t begin = 0);
  // Waits for what is under way. Without finish() what was written is removed again, and what had the name before has it still.
  ~file_pieces();
  file_pieces(const file_pieces&) = delete;
  file_pieces& operator=(const file_pieces&) = delete;

  std::uint64_t nbytes() const { return nbytes_; }  // of the input from `begin` on
  // Waits for the next piece, in the device's memory, aligned to 256 bytes; no bytes: there are no more, each time. It is the
  // caller's until the next call of next(), or finish(); kernels that work on it have ended by then. Throws gpufs::error, with the
  // path: the file cannot be read, or has changed (ESTALE); or a piece before could not be written.
  std::span<std::byte> next();
  // After the last piece: all is on the disk (fsync), and then has its name, as a new file with a new file's mode; what had it
  // before, a link, too, is replaced. Throws gpufs::error, with the path, and has removed what was written; std::logic_error: not
  // all pieces have come. Without `to`, and a second time, it does nothing.
  void finish();

 private:
  struct buffer {
    simt::device_array<std::byte> bytes;
    simt::stream turns;  // it is filled, and what is in it written, in this one
    buffer(std::uint64_t nbytes, simt::platform& device) : bytes(nbytes, device), turns(device) {}
  };
  struct errors {
    std::int64_t of_reads, of_writes;  // a negative errno of any of them, or 0
  };

  buffer& buffer_of(std::uint64_t piece) const { return *buffers_[piece % buffers_.size()]; }
  std::uint64_t nbytes_of(std::uint64_t piece) const;
  void begin_read();
  void begin_write();
  void check() const;
  void check_version() const;
  [[noreturn]] void fail(std::int64_t error, const std::string& path, const char* what) const;
  void remove() noexcept;

  mount_ref fs_;
  simt::platform& device_;
  host_file from_;
  std::string to_, unfinished_;  // empty: nothing is written
  std::optional<host_file> out_;
  file_status version_;  // of from_, when it was opened
  std::uint64_t begin_, piece_nbytes_, nbytes_ = 0;
  std::uint64_t npieces_ = 0, nread_ = 0, ngiven_ = 0;  // pieces in all, those asked for, and those that the caller has got
  simt::device_array<errors> errors_;
  std::vector<std::unique_ptr<buffer>> buffers_;  // their ends wait for kernels, which use all above
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
