// SPDX-License-Identifier: Apache-2.0
// The kernels that move rows and whole files, and what they tell the host.
#pragma once
#include "apps/arrays/row_pieces.hpp"
#include "apps/arrays/rows.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/row_batch.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

enum class row_verb : std::uint32_t { read, write, prefetch };

// What calls in streams tell: of each file, in the device's memory, and in pinned memory, which kernels alone write and the host
// only reads, so that nothing that is told is lost.
struct stream_words {
  std::uint64_t failed;  // a row_failure's word, of calls since the last one that ended
  std::uint64_t ended;   // calls
  std::uint64_t ntold;
};
struct told_words {
  std::uint64_t failed;
  std::uint64_t ntold;  // another than before: `failed` is new
};

// Behind a call in its stream, or at the end of a call of one block.
struct end_call {
  stream_words* words;
  told_words* told;
  std::uint64_t* batch_ended;  // of a batch that the call used; else nullptr

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const std::uint64_t failed =
        simt::atomic_ref<std::uint64_t>(words->failed).exchange(row_failure::none, std::memory_order_relaxed);
    if (failed != row_failure::none) {
      const std::uint64_t n = simt::atomic_ref<std::uint64_t>(words->ntold).fetch_add(1, std::memory_order_relaxed) + 1;
      simt::atomic_ref<std::uint64_t, simt::scope::system>(told->failed).store(failed, std::memory_order_relaxed);
      // Meets check()'s acquire.
      simt::atomic_ref<std::uint64_t, simt::scope::system>(told->ntold).store(n, std::memory_order_release);
    }
    // Meets the copies that `ended` and `is_free` make: what the call did comes before.
    simt::fence(std::memory_order_release, simt::scope::system);
    if (batch_ended != nullptr) simt::atomic_ref<std::uint64_t>(*batch_ended).fetch_add(1, std::memory_order_release);
    simt::atomic_ref<std::uint64_t>(words->ended).fetch_add(1, std::memory_order_release);
  }
};

// Rows of equal size among the bytes of all rows: row i begins with the byte first + i * row_nbytes. The last one is shorter, if it
// reaches beyond `end`.
struct row_bytes {
  std::uint64_t first, row_nbytes, nrows, end;
};

// Each warp moves rows, or of those that are larger parts.
template <row_verb Verb>
struct move_rows {
  static constexpr std::uint64_t part_nbytes = 64 << 10;
  static std::uint64_t parts_of(std::uint64_t row_nbytes) { return (row_nbytes + part_nbytes - 1) / part_nbytes; }

  file of;
  byte_map map;
  row_bytes bytes;
  std::uint64_t parts;  // of a row
  row_list rows;
  std::byte* memory;      // of row i at i * bytes.row_nbytes; reads write it, writes read it
  std::uint64_t* failed;  // a row_failure's word
  end_call end;           // of a call that is this launch of one block alone; else without words

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t i = simt::global_warp_rank(); i < rows.n * parts; i += simt::global_warp_count()) {
      std::uint64_t row = i, from = 0;
      if (parts != 1) {
        row = i / parts;
        from = i % parts * part_nbytes;
      }
      move(warp, row, from);
    }
    if (end.words == nullptr) return;
    this_block().sync();  // what all warps did comes before
    end();
  }

 private:
  // What row i has from its byte `begin` on, as far as a part goes.
  GPUFS_DEVICE void move(simt::warp warp, std::uint64_t i, std::uint64_t begin) const {
    std::int64_t id = static_cast<std::int64_t>(rows.first + i);
    if (rows.ids != nullptr) id = rows.ids[i];
    if (id < 0) id += static_cast<std::int64_t>(bytes.nrows);
    std::byte* const at = memory + i * bytes.row_nbytes + begin;
    std::uint64_t nbytes = bytes.row_nbytes - begin < part_nbytes ? bytes.row_nbytes - begin : part_nbytes;
    std::int64_t got = -EDOM;
    if (id >= 0 && static_cast<std::uint64_t>(id) < bytes.nrows) {
      const std::uint64_t first = bytes.first + static_cast<std::uint64_t>(id) * bytes.row_nbytes + begin;
      if (bytes.end - first < nbytes) nbytes = bytes.end - first;
      got = move_bytes(warp, at, nbytes, first);
    }
    if ((Verb == row_verb::prefetch && got != -EDOM) || got == static_cast<std::int64_t>(nbytes)) return;
    if constexpr (Verb == row_verb::read) {
      for (std::uint64_t k = warp.rank(); k < nbytes; k += warp.size()) at[k] = std::byte{0};
    }
    if (warp.leader()) {
      // Of this device alone, as no atomics reach host memory over PCIe: `failed` may lie there, and the host reads it after the
      // kernel.
      simt::atomic_ref<std::uint64_t>(*failed).fetch_min(row_failure::word(i, got < 0 ? static_cast<int>(got) : -ESTALE),
                                                         std::memory_order_relaxed);
    }
  }
  // From the byte `first` of all rows on, which may go on in other pieces. How many were moved, or a negative errno.
  GPUFS_DEVICE std::int64_t move_bytes(simt::warp warp, std::byte* at, std::uint64_t nbytes, std::uint64_t first) const {
    std::uint64_t done = 0;
    while (done < nbytes) {
      const byte_run run = map.at(first + done);
      const std::uint64_t n = run.nbytes < nbytes - done ? run.nbytes : nbytes - done;
      const auto from = static_cast<std::int64_t>(run.offset);
      auto got = static_cast<std::int64_t>(n);
      if constexpr (Verb == row_verb::read) got = pread(warp, of, at + done, n, from);
      if constexpr (Verb == row_verb::write) got = pwrite(warp, of, at + done, n, from);
      if constexpr (Verb == row_verb::prefetch) prefetch(warp, of, from, n);
      if (got < 0) return got;
      done += static_cast<std::uint64_t>(got);
      if (static_cast<std::uint64_t>(got) != n) break;
    }
    return static_cast<std::int64_t>(done);
  }
};

// Numbers of rows become places in the file, -1 if there is no such row: for batches, whose rows lie in one piece. A batch of rows
// that begin at any byte of the file reads the same, in the order of their addresses.
struct locate_rows {
  byte_map map;
  std::uint64_t row_nbytes, nrows;
  const std::int64_t* ids;
  std::uint64_t n;
  std::int64_t* offsets;  // may be where the numbers are

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t nthreads = simt::global_warp_count() * simt::warp_lanes;
    for (std::uint64_t i = simt::global_warp_rank() * simt::warp_lanes + simt::lane_id(); i < n; i += nthreads) {
      std::int64_t id = ids[i];
      if (id < 0) id += static_cast<std::int64_t>(nrows);
      const bool is_row = id >= 0 && static_cast<std::uint64_t>(id) < nrows;
      offsets[i] = is_row ? static_cast<std::int64_t>(map.at(static_cast<std::uint64_t>(id) * row_nbytes).offset) : -1;
    }
  }
};

struct sync_rows {
  file of;
  durability how;
  std::uint64_t* error;  // pinned

  GPUFS_DEVICE void operator()() const {
    const int result = fsync(this_block(), of, how);
    if (this_block().leader()) *error = static_cast<std::uint64_t>(-result);
  }
};

// Each warp opens, reads and closes some of the files, one after the other.
struct read_whole_files {
  static constexpr std::uint32_t most_warps = 1024;  // so many files are open at once
  struct one {
    const char* path;
    std::uint64_t nbytes;
    std::byte* out;
  };

  mount_ref fs;
  const one* files;
  std::uint32_t n;
  std::int32_t* errors;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t i = simt::global_warp_rank(); i < n; i += simt::global_warp_count()) {
      // By all lanes, which copy what comes with the answer; a lane alone copies 16 bytes at a time.
      const file opened = open(warp, fs, files[i].path);
      const int error = read(warp, files[i], opened);
      close(warp, opened);
      if (warp.leader()) errors[i] = error;
    }
  }

 private:
  // 0 or a negative errno.
  static GPUFS_DEVICE int read(simt::warp warp, const one& from, const file& opened) {
    const file_status status = fstat(warp, opened);
    if (status.error != 0) return status.error;
    if (static_cast<std::uint64_t>(status.nbytes) != from.nbytes) return -ESTALE;
    const std::int64_t got = pread(warp, opened, from.out, from.nbytes, 0);
    return got < 0 ? static_cast<int>(got) : static_cast<std::uint64_t>(got) == from.nbytes ? 0 : -ESTALE;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::arrays
