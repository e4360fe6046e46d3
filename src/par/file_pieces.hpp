// SPDX-License-Identifier: Apache-2.0
// file_pieces for the machine that the including source is compiled for.
#pragma once
#include "gpufs/par/file_pieces.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "../simt/answer_of.hpp"
#include "gpufs/file/open.hpp"
#include "gpufs/file/paths.hpp"
#include "gpufs/file/prefetch.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace {

// So few blocks that those of the caller's kernels run beside them: half a multiprocessor each.
constexpr unsigned nthreads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 2, nblocks = GPUFS_ON_CUDA ? 64 : 2;

// Each warp reads, or writes, parts of a piece.
template <class Work>
GPUFS_DEVICE void each_part(std::uint64_t nbytes, std::int64_t& error, const Work& work) {
  constexpr std::uint64_t part_nbytes = 64 << 10;
  const auto warp = this_warp();
  for (std::uint64_t begin = simt::global_warp_rank() * part_nbytes; begin < nbytes;
       begin += simt::global_warp_count() * part_nbytes) {
    const std::int64_t failed = work(warp, begin, nbytes - begin < part_nbytes ? nbytes - begin : part_nbytes);
    if (failed != 0 && warp.leader()) simt::atomic_ref<std::int64_t>(error).store(failed, std::memory_order_relaxed);
  }
}
struct read_piece {
  file of;
  std::byte* to;
  std::uint64_t nbytes, offset;
  std::int64_t* error;
  GPUFS_DEVICE void operator()() const {
    each_part(nbytes, *error, [&](auto warp, std::uint64_t begin, std::uint64_t n) -> std::int64_t {
      const std::int64_t got = pread(warp, of, to + begin, n, static_cast<std::int64_t>(offset + begin));
      if (got == static_cast<std::int64_t>(n)) return 0;
      return got < 0 ? got : -ESTALE;  // it is shorter than it was
    });
  }
};
struct write_piece {
  file of;
  const std::byte* from;
  std::uint64_t nbytes, offset;
  std::int64_t* error;
  GPUFS_DEVICE void operator()() const {
    each_part(nbytes, *error, [&](auto warp, std::uint64_t begin, std::uint64_t n) -> std::int64_t {
      for (std::uint64_t done = 0; done < n;) {  // what did not go says why when it is tried again
        const std::int64_t got = pwrite(warp, of, from + begin + done, n - done, static_cast<std::int64_t>(offset + begin + done));
        if (got <= 0) return got < 0 ? got : -EIO;
        done += static_cast<std::uint64_t>(got);
      }
      return 0;
    });
  }
};

struct status_of_file {
  file of;
  file_status* answer;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file_status got = fstat(warp, of);
    if (warp.leader()) *answer = got;
  }
};
struct sync_written {
  file of;
  std::int64_t* answer;
  GPUFS_DEVICE void operator()() const {
    const auto block = this_block();
    const int error = fsync(block, of);
    if (block.leader()) *answer = error;
  }
};
using path_text = char[names::max_path_nbytes + 1];
struct change_name {
  mount_ref fs;
  bool removes;
  std::int64_t* answer;
  path_text from, to;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const int error = removes ? unlink(warp, fs, from) : rename(warp, fs, from, to);
    if (warp.leader()) *answer = error;
  }
};
struct status_of_path {
  mount_ref fs;
  path_status* answer;
  path_text path;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const path_status got = stat(warp, fs, path);
    if (warp.leader()) *answer = got;
  }
};

template <class Kernel>
auto answer_of(simt::platform& device, const Kernel& kernel, unsigned threads = simt::warp_lanes) {
  return simt::answer_of(device, kernel, &Kernel::answer, threads);
}
// A path that opens: it has its length.
void copy_path(const std::string& path, path_text& to) {
  std::memcpy(to, path.c_str(), std::min(path.size() + 1, sizeof to));
  to[sizeof to - 1] = '\0';
}

change_name renamed_or_removed(const mount_ref& fs, bool removes, const std::string& from, const std::string& to) {
  change_name kernel{fs, removes, nullptr, {}, {}};
  copy_path(from, kernel.from);
  copy_path(to, kernel.to);
  return kernel;
}

path_status status_of(const mount_ref& fs, simt::platform& device, const std::string& path) {
  status_of_path kernel{fs, nullptr, {}};
  copy_path(path, kernel.path);
  return answer_of(device, kernel);
}

host_file made_beside(const host_mount& fs, const std::string& path) {
  static std::atomic<unsigned> number = 0;
  // Of a long name the first 200 bytes, so that there is room behind it; names may be alike as far as that.
  const std::size_t name = path.rfind('/') + 1;
  const std::string begin = path.substr(0, std::min(path.size(), name + 200));
  if (path.empty()) throw std::system_error(ENOENT, std::generic_category(), "gpufs::par::file_pieces: a file without a name");
  for (;;) {
    try {
      const std::string beside = begin + "." + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".unfinished";
      return {fs, beside, O_GWRONCE | O_CREAT | O_EXCL};
    } catch (const std::system_error& error) {
      if (error.code().value() == EEXIST) continue;  // of a process that was killed, or of another mount
      throw std::system_error(error.code(), "gpufs::par::file_pieces: '" + path + "' cannot be made");
    }
  }
}

}  // namespace

file_pieces::file_pieces(const host_mount& fs, const std::string& from, const std::optional<std::string>& to,
                         std::uint64_t piece_nbytes, std::uint64_t begin)
    : fs_(mount_inside(fs).resident()),
      device_(fs.device()),
      from_(fs, from),
      begin_(begin),
      piece_nbytes_(piece_nbytes),
      errors_(1, device_) {
  if (piece_nbytes == 0) throw std::invalid_argument("gpufs::par::file_pieces: a piece has a byte at least");
  {
    // Now, as else they would be loaded while kernels wait for the host.
    const simt::on_device here(device_);
    simt::load<read_piece, nthreads, least_blocks>();
    simt::load<write_piece, nthreads, least_blocks>();
    simt::load<status_of_file>();
    simt::load<sync_written>();
    simt::load<change_name>();
    simt::load<status_of_path>();
  }
  from_.advise(advice::noreuse);  // each byte is read once
  version_ = answer_of(device_, status_of_file{from_.ref(), nullptr});
  if (version_.error != 0) fail(version_.error, from, "cannot be read");
  const auto size = static_cast<std::uint64_t>(version_.nbytes);
  if (begin > size) throw std::invalid_argument("gpufs::par::file_pieces: the file ends before");
  nbytes_ = size - begin;
  npieces_ = nbytes_ / piece_nbytes_ + (nbytes_ % piece_nbytes_ != 0 ? 1 : 0);
  for (int i = 0; i < 3; ++i) buffers_.push_back(std::make_unique<buffer>(std::min(piece_nbytes_, nbytes_), device_));
  if (!to) return;
  to_ = *to;
  if (const path_status there = status_of(fs_, device_, to_); there.error == 0 && S_ISDIR(there.mode)) {
    throw std::system_error(EISDIR, std::generic_category(), "gpufs::par::file_pieces: '" + to_ + "'");
  }
  out_.emplace(made_beside(fs, to_));
  unfinished_ = out_->path();
}

file_pieces::~file_pieces() { remove(); }

std::uint64_t file_pieces::nbytes_of(std::uint64_t piece) const { return std::min(piece_nbytes_, nbytes_ - piece * piece_nbytes_); }

void file_pieces::begin_read() {
  simt::launch_config config{.grid = nblocks, .block = nthreads};
  config.schedule.timeout_ns = 0;
  const buffer& to = buffer_of(nread_);
  simt::launch<nthreads, least_blocks>(
      config, read_piece{from_.ref(), to.bytes.get(), nbytes_of(nread_), begin_ + nread_ * piece_nbytes_, &errors_.get()->of_reads},
      to.turns);
  ++nread_;
}

// Of the piece that the caller has.
void file_pieces::begin_write() {
  if (!out_ || ngiven_ == 0) return;
  const std::uint64_t piece = ngiven_ - 1;
  simt::launch_config config{.grid = nblocks, .block = nthreads};
  config.schedule.timeout_ns = 0;
  const buffer& from = buffer_of(piece);
  simt::launch<nthreads, least_blocks>(
      config, write_piece{out_->ref(), from.bytes.get(), nbytes_of(piece), piece * piece_nbytes_, &errors_.get()->of_writes},
      from.turns);
}

std::span<std::byte> file_pieces::next() {
  if (ngiven_ == npieces_) {
    check_version();
    return {};
  }
  begin_write();
  if (nread_ == ngiven_) begin_read();
  if (nread_ != npieces_) begin_read();  // after what was written of the piece there before, in its stream
  const buffer& given = buffer_of(ngiven_);
  given.turns.wait();
  check();
  return {given.bytes.get(), nbytes_of(ngiven_++)};
}

void file_pieces::check() const {
  const errors so_far = errors_.read_one();
  if (so_far.of_reads != 0) fail(so_far.of_reads, from_.path(), "cannot be read");
  if (so_far.of_writes != 0) fail(so_far.of_writes, to_, "cannot be written");
}

// A page that was cached has no need to ask for the file, and so nobody has looked.
void file_pieces::check_version() const {
  const path_status now = status_of(fs_, device_, from_.path());
  const bool is_it = now.error == 0 && now.inode == version_.inode;  // else another one has the name, and this one is as it was
  if (is_it && (now.nbytes != version_.nbytes || now.mtime_ns != version_.mtime_ns)) fail(-ESTALE, from_.path(), "");
}

void file_pieces::fail(std::int64_t error, const std::string& path, const char* what) const {
  const int number = static_cast<int>(-error);
  const std::string why = number == ESTALE ? "has changed meanwhile" : std::string(what) + ": " + std::strerror(number);
  throw gpufs::error(path + ": " + why, number);
}

void file_pieces::finish() {
  if (!out_) return;
  if (ngiven_ != npieces_) throw std::logic_error("gpufs::par::file_pieces: not all pieces have come");
  try {
    begin_write();
    for (const auto& each : buffers_) each->turns.wait();
    check();
    check_version();
    const auto must = [&](std::int64_t error) {
      if (error != 0) fail(error, to_, "cannot be written");
    };
    must(answer_of(device_, sync_written{out_->ref(), nullptr}, nthreads));
    try {
      out_->close();
    } catch (const std::system_error& error) {
      must(-error.code().value());
    }
    must(answer_of(device_, renamed_or_removed(fs_, false, unfinished_, to_)));
  } catch (...) {
    remove();
    throw;
  }
  unfinished_.clear();
  out_.reset();
}

// Waits for what is under way, and removes what has no name yet. What its pages still wait to write is written to the file that
// nobody sees.
void file_pieces::remove() noexcept {
  for (const auto& each : buffers_) {
    try {
      each->turns.wait();
    } catch (const std::exception&) {  // who waited for the piece was told, or does not care any more
    }
  }
  if (unfinished_.empty()) return;
  try {
    answer_of(device_, renamed_or_removed(fs_, true, unfinished_, to_));
    unfinished_.clear();
    out_->close();
    out_.reset();
  } catch (const std::exception&) {  // the caller is told of the first error
  }
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
