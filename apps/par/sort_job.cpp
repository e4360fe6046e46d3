// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "apps/bus_guard.hpp"
#include "apps/par/file_jobs.hpp"
#include "apps/par/run_cuts.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/store/mapped_store.hpp"

namespace gpufs::apps::par {
namespace {

constexpr std::uint64_t usual_pieces = 32, least_piece_nbytes = 64 << 20;

// Memory that the kernel gives by large pages where it can: it takes most of the time of writing a run to have 4 KiB at a time
// cleared.
class large_memory {
 public:
  explicit large_memory(std::uint64_t nbytes) : nbytes_(nbytes) {
    void* const made = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(made);
    ::madvise(made, nbytes, MADV_HUGEPAGE);
  }
  ~large_memory() { ::munmap(data_, nbytes_); }
  large_memory(const large_memory&) = delete;
  large_memory& operator=(const large_memory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::uint64_t nbytes_;
};

// Runs, and their merges; or one piece that is all of it.
class sort_job final : public job {
 public:
  sort_job(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes, const sort_options& options,
           const job_state& state)
      : job(nbytes, nbytes <= state.piece_nbytes ? 1 : 2, state),
        from_(from),
        to_(to),
        options_(options),
        nrecords_(nbytes / options.record_nbytes),
        piece_nrecords_(state.piece_nbytes / options.record_nbytes),
        carrier_(by.make_carrier(is_one_piece() ? 2 : 4, state.piece_nbytes)),
        sort_(by.make_sort(options, piece_nrecords_)) {
    if (!is_one_piece()) make_scratch();
    if (is_one_piece() || ndone_ < nbytes) {
      pieces_.emplace(*carrier_, from_, is_one_piece() ? to_ : bytes_to{scratch_memory(), scratch_file()},
                      pieces_in_order(ndone_ / options.record_nbytes), *sort_);
    } else {
      begin_merges((ndone_ - nbytes) / options.record_nbytes);
    }
  }

  bool next() override {
    std::uint64_t n = pieces_->next();
    if (n == 0 && !is_one_piece() && !merges_) {
      begin_merges(0);
      n = pieces_->next();
    }
    return count(n, {});
  }

 private:
  bool is_one_piece() const { return nrecords_ <= piece_nrecords_; }
  std::byte* scratch_memory() const {
    return options_.scratch_memory != nullptr ? options_.scratch_memory : own_memory_ ? own_memory_->data() : nullptr;
  }
  const output_file* scratch_file() const { return scratch_ ? &*scratch_ : nullptr; }

  void make_scratch() {
    const std::uint64_t nbytes = nrecords_ * options_.record_nbytes;
    if (options_.scratch_memory != nullptr) return;
    if (options_.scratch_descriptor >= 0) {
      scratch_.emplace(options_.scratch_folder, options_.scratch_descriptor, nbytes);
      return check_scratch();
    }
    if (options_.scratch_folder.empty() || (options_.prefers_memory && nbytes <= store::default_pin_nbytes())) {
      own_memory_.emplace(nbytes);
      return;
    }
    scratch_.emplace(output_file::without_name(options_.scratch_folder, nbytes));
    check_scratch();
  }
  void check_scratch() const {
    if (scratch_->mapped() == nullptr) {
      throw gpufs::error(options_.scratch_folder + ": files cannot be mapped here: name another folder for runs");
    }
  }

  plan pieces_in_order(std::uint64_t first) const {
    return [=, this, at = first](piece& next) mutable {
      const std::uint64_t n = std::min(piece_nrecords_, nrecords_ - at), size = options_.record_nbytes;
      next = {{{at * size, n * size}}, n * size, at * size};
      at += n;
      return n != 0;
    };
  }

  // first: of the records of the output, a multiple of a piece's, or all.
  void begin_merges(std::uint64_t first) {
    merges_ = true;
    pieces_.reset();
    const std::byte* const all = scratch_ ? scratch_->mapped() : scratch_memory();
    cuts_.emplace(all, nrecords_, piece_nrecords_, options_);
    if (first != 0) move_cuts_on(first);
    pieces_.emplace(*carrier_, bytes_from{scratch_memory(), nullptr, scratch_file()}, to_, merged_pieces(first), *sort_);
  }
  void move_cuts_on(std::uint64_t n) {
    if (!bus_guarded([&] { cuts_->move_on(n); })) scratch_->fail(EIO);
  }
  plan merged_pieces(std::uint64_t first) {
    return [this, at = first](piece& next) mutable {
      const std::uint64_t n = std::min(piece_nrecords_, nrecords_ - at), size = options_.record_nbytes;
      if (n == 0) return false;
      move_cuts_on(n);
      next = {{}, n * size, at * size};
      for (std::uint64_t i = 0; i < cuts_->nruns(); ++i) {
        if (cuts_->begin(i) != cuts_->end(i))
          next.from.push_back({cuts_->begin(i) * size, (cuts_->end(i) - cuts_->begin(i)) * size});
      }
      at += n;
      return true;
    };
  }

  bytes_from from_;
  bytes_to to_;
  sort_options options_;
  std::uint64_t nrecords_, piece_nrecords_;
  std::unique_ptr<carrier> carrier_;
  std::unique_ptr<transform> sort_;
  std::optional<output_file> scratch_;
  std::optional<large_memory> own_memory_;
  bool merges_ = false;
  std::optional<run_cuts> cuts_;
  std::optional<piece_stream> pieces_;  // its threads use all of the above
};

}  // namespace

void sort_there(engine& by, std::byte* keys, std::uint64_t nbytes, number_type type, bool descending, std::span<std::byte> space) {
  const std::uint64_t size = nbytes_of(type);
  if (nbytes % size != 0) throw gpufs::error("an array of " + std::to_string(nbytes) + " bytes has no whole number of keys");
  if (nbytes <= size) return;
  if (space.size() < by.space_to_sort(nbytes, type)) throw gpufs::error("the space of a sort is too small");
  by.sort_keys(keys, nbytes, type, descending, space);
}

std::unique_ptr<job> make_sort(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes,
                               const sort_options& options, const job_state* from_here) {
  const std::uint64_t size = options.record_nbytes, key_nbytes = nbytes_of(options.type);
  if (size < key_nbytes || options.key_offset > size - key_nbytes) {
    throw gpufs::error("a key of " + std::to_string(key_nbytes) + " bytes from byte " + std::to_string(options.key_offset) +
                       " on does not lie in a record of " + std::to_string(size));
  }
  if (nbytes % size != 0) {
    throw gpufs::error(from.name() + ": has " + std::to_string(nbytes) + " bytes, which is no multiple of the " +
                       std::to_string(size) + " of a record");
  }
  if (from_here != nullptr) {
    if (from_here->piece_nbytes % size != 0) throw gpufs::error("a piece is no multiple of a record");
    return std::make_unique<sort_job>(by, from, to, nbytes, options, *from_here);
  }
  const std::uint64_t memory = options.memory_nbytes != 0 ? options.memory_nbytes : by.usual_memory_nbytes();
  const std::uint64_t nrecords = nbytes / size, most = std::max<std::uint64_t>(1, options.most_piece_nbytes / size);
  std::uint64_t piece = std::min(by.most_records(options, 2, memory), most);  // if all is one piece
  if (piece < nrecords) {
    piece = std::min(by.most_records(options, 4, memory), most);
    piece = std::min(piece, std::max({(nrecords + usual_pieces - 1) / usual_pieces, least_piece_nbytes / size, std::uint64_t{2}}));
  }
  if (piece < std::min<std::uint64_t>(nrecords, 2)) {
    throw gpufs::error("a memory of " + std::to_string(memory) + " bytes is too little for pieces of two records of " +
                       std::to_string(size));
  }
  piece = std::max<std::uint64_t>(1, std::min(piece, nrecords));
  return std::make_unique<sort_job>(by, from, to, nbytes, options, job_state{.piece_nbytes = piece * size});
}

}  // namespace gpufs::apps::par
