// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of more bytes than an engine's memory has: the inside of `gpufs scan`, `gpufs sort`, and of gpufs.par in Python.
// Host code. docs/design/out-of-core-sort.md
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apps/par/key_order.hpp"
#include "apps/par/pieces.hpp"

namespace gpufs::apps::par {

enum class scan_op : std::uint8_t { add, mul, max, min, bit_and, bit_or, bit_xor };

struct scan_options {
  scan_op op = scan_op::add;  // bit_and, bit_or, bit_xor: of whole numbers
  number_type type = number_type::u32;
  bool exclusive = false;
  std::uint64_t piece_nbytes = 0;  // brought at a time, at most; 0: the engine's own choice
};

// Records of record_nbytes, each with a key of this type at key_offset, at any alignment.
struct sort_options {
  number_type type = number_type::u64;
  std::uint64_t record_nbytes = 8, key_offset = 0;
  bool descending = false;
  std::uint64_t memory_nbytes = 0;                      // of the engine's memory, at most; 0: the engine's own choice
  std::string scratch_folder{};                         // where runs go; empty: to memory of the host
  bool prefers_memory = false;                          // to which they go all the same if half of what is free has room
  std::byte* scratch_memory = nullptr;                  // or here: as many bytes as there are
  int scratch_descriptor = -1;                          // or in this file, which is open for reading and writing
  std::uint64_t most_piece_nbytes = ~std::uint64_t{0};  // pieces are not larger
  bool is_keys_alone() const { return record_nbytes == nbytes_of(type); }
};

// Where the work is done. Outlives what it makes. One thread calls.
class engine {
 public:
  virtual ~engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  virtual std::unique_ptr<carrier> make_carrier(unsigned nbuffers, std::uint64_t buffer_nbytes) = 0;
  virtual std::unique_ptr<transform> make_scan(const scan_options& options, std::uint64_t piece_nbytes) = 0;
  virtual std::unique_ptr<transform> make_sort(const sort_options& options, std::uint64_t nrecords) = 0;  // in a piece, at most
  // What scan_there and sort_there ask for, of some bytes, and the space that these take.
  virtual std::uint64_t space_to_scan(std::uint64_t nbytes, const scan_options& options) = 0;
  virtual void scan_all(const std::byte* in, std::byte* out, std::uint64_t nbytes, const scan_options& options,
                        std::span<std::byte> space) = 0;
  virtual std::uint64_t space_to_sort(std::uint64_t nbytes, number_type type) = 0;
  virtual void sort_keys(std::byte* keys, std::uint64_t nbytes, number_type type, bool descending, std::span<std::byte> space) = 0;
  virtual std::uint64_t usual_scan_nbytes() const = 0;    // of a piece
  virtual std::uint64_t usual_memory_nbytes() const = 0;  // of a sort
  // How many records a piece may have, if all that a sort takes shall fit into that memory.
  virtual std::uint64_t most_records(const sort_options& options, unsigned nbuffers, std::uint64_t memory_nbytes) const = 0;

 protected:
  engine() = default;
};
// By host threads; by kernels on the CPU machine, and on a GPU. Throw what the platform throws.
std::unique_ptr<engine> make_engine_cpu();
std::unique_ptr<engine> make_engine_simt(int device);
std::unique_ptr<engine> make_engine_cuda(int device);

// How far a job has come. With the same input, options, output and scratch file another job goes on from there.
struct job_state {
  std::uint64_t piece_nbytes = 0;  // of all pieces but the last one
  std::uint64_t npieces = 0;       // that are where they belong; of a sort first runs, then merged ones
  known so_far{};
};

// A scan or a sort that is under way. One thread calls. What it was made of outlives it.
class job {
 public:
  virtual ~job() = default;
  job(const job&) = delete;
  job& operator=(const job&) = delete;

  // Of all bytes that have to be written (a sort may write each twice), how many are.
  std::uint64_t nbytes() const { return nbytes_; }
  std::uint64_t ndone() const { return ndone_; }
  // Waits for the next piece; false: the output is complete. Throws gpufs::error, or what the platform throws: it never will be.
  virtual bool next() = 0;
  const job_state& state() const { return state_; }

 protected:
  // Goes nrounds times through so many bytes. Throws gpufs::error: such a job has no such state.
  job(std::uint64_t nbytes_a_round, unsigned nrounds, const job_state& state);
  // What a stream's next() has said, and the transform knew then. Whether there was a piece.
  bool count(std::uint64_t nbytes, const known& so_far);

  std::uint64_t nbytes_, ndone_ = 0;
  job_state state_;
};

// Of all nbytes bytes of `from`. `to` has room for as many, and is not the same memory or file. Throw gpufs::error: the options are
// none, or do not fit the size; the memory is too little; the folder takes no file. from_here: the state of a job that has not come
// to its end; sizes of pieces are its own then.
std::unique_ptr<job> make_scan(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes,
                               const scan_options& options, const job_state* from_here = nullptr);
std::unique_ptr<job> make_sort(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes,
                               const sort_options& options, const job_state* from_here = nullptr);

// Whole arrays in the engine's own memory (a GPU's), of elements or of keys alone; wait. `out` may be `in`. space: as many bytes
// there as space_to_scan or space_to_sort of the engine says, aligned to 256; a sort takes as much as the keys, and some more.
// Throw gpufs::error: the options are none, the array has no whole elements, or the space is too small; what the platform throws.
void scan_there(engine& by, const std::byte* in, std::byte* out, std::uint64_t nbytes, const scan_options& options,
                std::span<std::byte> space);
void sort_there(engine& by, std::byte* keys, std::uint64_t nbytes, number_type type, bool descending, std::span<std::byte> space);

}  // namespace gpufs::apps::par
