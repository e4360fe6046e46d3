// SPDX-License-Identifier: Apache-2.0
// file_pieces for the machine that the including source is compiled for.
#pragma once
#include "gpufs/par/file_pieces.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "gpufs/file/open.hpp"
#include "gpufs/file/paths.hpp"
#include "gpufs/file/prefetch.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace {

constexpr unsigned nthreads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 2, nblocks = GPUFS_ON_CUDA ? 256 : 2;

// Each warp reads, or writes, parts of a piece.
template <class Work>
GPUFS_DEVICE void each_part(std::uint64_t nbytes, std::int64_t& error, const Work& work) {
  constexpr std::uint64_t part_nbytes = 64 << 10;
  const auto warp = this_warp();
  for (std::uint64_t begin = simt::global_warp_rank() * part_nbytes; begin < nbytes;
       begin += simt::global_warp_count() * part_nbytes) {
    const std::uint64_t n = nbytes - begin < part_nbytes ? nbytes - begin : part_nbytes;
    const std::int64_t got = work(warp, begin, n);
    if (got == static_cast<std::int64_t>(n) || !warp.leader()) continue;
    simt::atomic_ref<std::int64_t>(error).store(got < 0 ? got : -ESTALE, std::memory_order_relaxed);
  }
}
struct read_piece {
  file of;
  std::byte* to;
  std::uint64_t nbytes, offset;
  std::int64_t* error;
  GPUFS_DEVICE void operator()() const {
    each_part(nbytes, *error, [&](auto warp, std::uint64_t begin, std::uint64_t n) {
      return pread(warp, of, to + begin, n, static_cast<std::int64_t>(offset + begin));
    });
  }
};
struct write_piece {
  file of;
  const std::byte* from;
  std::uint64_t nbytes, offset;
  std::int64_t* error;
  GPUFS_DEVICE void operator()() const {
    each_part(nbytes, *error, [&](auto warp, std::uint64_t begin, std::uint64_t n) {
      return pwrite(warp, of, from + begin, n, static_cast<std::int64_t>(offset + begin));
    });
  }
};

struct size_of_file {
  file of;
  std::int64_t* answer;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file_status got = fstat(warp, of);
    if (warp.leader()) *answer = got.nbytes;
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
struct change_name {
  mount_ref fs;
  const char *from, *to;  // nullptr: it is removed
  std::int64_t* answer;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const int error = to == nullptr ? unlink(warp, fs, from) : rename(warp, fs, from, to);
    if (warp.leader()) *answer = error;
  }
};

template <class Kernel>
std::int64_t answer_of(simt::platform& device, Kernel kernel, unsigned nwarps = 1) {
  const simt::on_device here(device);
  const simt::device_array<std::int64_t> answer(1, device);
  kernel.answer = answer.get();
  simt::launch_config config{.grid = 1, .block = nwarps * simt::warp_lanes};
  config.schedule.timeout_ns = 0;  // what waits inside has its own deadline
  simt::launch(config, kernel);
  return answer.read_one();
}

std::string name_beside(const std::string& path) {
  static std::atomic<unsigned> number = 0;
  return path + "." + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".unfinished";
}

}  // namespace

file_pieces::file_pieces(const host_mount& fs, const std::string& from, const std::optional<std::string>& to,
                         std::uint64_t piece_nbytes)
    : fs_(mount_inside(fs).resident()), device_(fs.device()), from_(fs, from), piece_nbytes_(piece_nbytes), errors_(1, device_) {
  if (piece_nbytes == 0) throw std::invalid_argument("gpufs::par::file_pieces: a piece has a byte at least");
  from_.advise(advice::noreuse);  // each byte is read once
  nbytes_ = static_cast<std::uint64_t>(answer_of(device_, size_of_file{from_.ref(), nullptr}));
  npieces_ = nbytes_ / piece_nbytes_ + (nbytes_ % piece_nbytes_ != 0 ? 1 : 0);
  for (int i = 0; i < 3; ++i) buffers_.push_back(std::make_unique<buffer>(std::min(piece_nbytes_, nbytes_), device_));
  const simt::on_device here(device_);
  simt::load<read_piece, nthreads, least_blocks>();  // before any of them runs
  simt::load<write_piece, nthreads, least_blocks>();
  if (!to) return;
  to_ = *to;
  const std::string beside = name_beside(to_);
  out_.emplace(fs, beside, O_GWRONCE | O_CREAT | O_EXCL);
  unfinished_ = beside;
}

file_pieces::~file_pieces() {
  for (const auto& each : buffers_) {
    try {
      each->turns.wait();
    } catch (const std::exception&) {  // who waited for the piece was told, or does not care any more
    }
  }
  remove();
}

std::uint64_t file_pieces::nbytes_of(std::uint64_t piece) const { return std::min(piece_nbytes_, nbytes_ - piece * piece_nbytes_); }

void file_pieces::begin_read() {
  simt::launch_config config{.grid = nblocks, .block = nthreads};
  config.schedule.timeout_ns = 0;
  const buffer& to = buffer_of(nread_);
  simt::launch<nthreads, least_blocks>(
      config, read_piece{from_.ref(), to.bytes.get(), nbytes_of(nread_), nread_ * piece_nbytes_, &errors_.get()->of_reads},
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
  if (ngiven_ == npieces_) return {};
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

void file_pieces::fail(std::int64_t error, const std::string& path, const char* what) const {
  const int number = static_cast<int>(-error);
  const std::string why = number == ESTALE ? "has changed meanwhile" : std::string(what) + ": " + std::strerror(number);
  throw gpufs::error(path + ": " + why, number);
}

void file_pieces::finish() {
  if (!out_) return;
  try {
    begin_write();
    for (const auto& each : buffers_) each->turns.wait();
    check();
    if (const std::int64_t error = answer_of(device_, sync_written{out_->ref(), nullptr}, 4); error != 0) {
      fail(error, to_, "cannot be written");
    }
    out_->close();
    const auto from = simt::device_string(unfinished_, device_), to = simt::device_string(to_, device_);
    if (const std::int64_t error = answer_of(device_, change_name{fs_, from.get(), to.get(), nullptr}); error != 0) {
      fail(error, to_, "cannot be written");
    }
  } catch (...) {
    remove();
    throw;
  }
  unfinished_.clear();
  out_.reset();
}

// What has no name yet. What its pages still wait to write is written to the file that nobody sees.
void file_pieces::remove() noexcept {
  if (unfinished_.empty()) return;
  try {
    const auto path = simt::device_string(std::exchange(unfinished_, {}), device_);
    answer_of(device_, change_name{fs_, path.get(), nullptr, nullptr});
    out_->close();
  } catch (const std::exception&) {  // the caller is told of the first error
  }
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
