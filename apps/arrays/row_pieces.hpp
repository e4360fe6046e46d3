// SPDX-License-Identifier: Apache-2.0
// Rows that lie in several pieces of a file: where each byte of theirs is.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/arrays/rows.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

// Bytes that lie together in the file.
struct byte_run {
  std::uint64_t offset, nbytes;
};

// A piece: from the byte `first` on, of the bytes of all rows, they lie from `offset` on in the file.
struct byte_piece {
  std::uint64_t first, offset;
};

// The bytes of all rows, in the rows' order, as if they lay in one piece: where they are in the file. Trivially copyable; what it
// points to is in the memory of who looks, and is not looked at where there is one piece.
struct byte_map {
  std::uint64_t nbytes;
  std::uint64_t begin;         // in the file, of the first piece
  const byte_piece* pieces;    // and one behind them, whose `first` is nbytes
  const std::uint32_t* parts;  // of every 2^part_nbits bytes the piece that has the first one; and of what is behind them the last
  std::uint32_t npieces, part_nbits;

  // Where the byte is that has this number, below nbytes, and how many follow in its piece, itself included. A few steps, where
  // pieces are of similar sizes, as a part has few of them; never more than log2 of how many there are.
  GPUFS_HOST_DEVICE byte_run at(std::uint64_t byte) const {
    if (npieces == 1) return {begin + byte, nbytes - byte};
    const std::uint32_t* const part = parts + (byte >> part_nbits);
    const byte_piece* in = pieces + part[0];
    for (std::uint32_t n = part[1] - part[0] + 1; n > 1;) {
      const std::uint32_t half = n / 2;
      in += in[half].first <= byte ? half : 0;
      n -= half;
    }
    return {in->offset + (byte - in->first), in[1].first - byte};
  }
};

// The pieces of a place, on the host.
class row_pieces {
 public:
  // std::invalid_argument: there is no such place.
  explicit row_pieces(const row_place& place) : row_nbytes_(place.row_nbytes), nrows_(place.nrows), nbytes_(checked(place)) {
    const std::size_t n = row_nbytes_ == 0 ? 1 : place.pieces.size();  // pieces without bytes are none
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint64_t offset = place.pieces[k].begin, first = place.pieces[k].first * row_nbytes_;
      const std::uint64_t end = k + 1 < n ? place.pieces[k + 1].first * row_nbytes_ : nbytes_;
      if (offset > most || end - first > most - offset) refuse("the rows end beyond 2^63 bytes");
      ascend_ = ascend_ && offset >= file_end_;
      file_end_ = std::max(file_end_, offset + (end - first));
      table_.push_back({first, offset});
    }
    table_.push_back({nbytes_, 0});
    if (are_several()) divide();
  }

  std::uint64_t row_nbytes() const { return row_nbytes_; }
  std::uint64_t nrows() const { return nrows_; }
  std::uint64_t nbytes() const { return nbytes_; }
  bool are_several() const { return table_.size() > 2; }
  const std::vector<byte_piece>& table() const { return table_; }
  const std::vector<std::uint32_t>& parts() const { return parts_; }
  // For who looks them up in copies of the tables; or in the tables, which must stay.
  byte_map map(const byte_piece* table, const std::uint32_t* parts) const {
    return {nbytes_, table_[0].offset, table, parts, static_cast<std::uint32_t>(table_.size() - 1), part_nbits_};
  }
  byte_map map() const { return map(table_.data(), parts_.data()); }

  // From where on a file of one piece is to be open so that pages, which begin there, begin with rows as often as can be: the least
  // such multiple of 16, so that shards of an array have it in common; or 0. Rows whose size is a multiple or a fraction of a page
  // lie in no more pages than they must.
  std::uint64_t begin_of_pages(std::uint64_t page_nbytes) const {
    if (nbytes_ == 0 || are_several()) return 0;
    const std::uint64_t unit = std::min(page_nbytes, row_nbytes_ & (~row_nbytes_ + 1)), begin = table_[0].offset % unit;
    return begin % 16 == 0 ? begin : 0;
  }

  // Where the last byte of all rows ends, in the file.
  std::uint64_t file_end() const { return file_end_; }
  // How long a file has all bytes of rows up to the one with number `last`.
  std::uint64_t file_end(std::uint64_t last) const {
    if (!ascend_ || nbytes_ == 0) return file_end_;
    return map().at((last + 1) * row_nbytes_ - 1).offset + 1;
  }

 private:
  static constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  [[noreturn]] static void refuse(const char* why) { throw std::invalid_argument(std::string("pieces of rows: ") + why); }

  // How many bytes the rows have.
  static std::uint64_t checked(const row_place& place) {
    const std::vector<row_piece>& pieces = place.pieces;
    if (pieces.empty() || pieces.size() > std::numeric_limits<std::uint32_t>::max() || pieces[0].first != 0)
      refuse("the first one has the first row");
    for (std::size_t k = 1; k < pieces.size(); ++k) {
      if (pieces[k].first <= pieces[k - 1].first || pieces[k].first >= place.nrows) refuse("each has rows, in their order");
    }
    if (place.nrows > most || (place.row_nbytes != 0 && place.nrows > most / place.row_nbytes))
      refuse("the rows end beyond 2^63 bytes");
    return place.row_nbytes * place.nrows;
  }

  // Into parts, up to two a piece.
  void divide() {
    const std::uint64_t last = table_.size() - 2;
    while ((nbytes_ - 1) >> part_nbits_ > 2 * last) ++part_nbits_;
    std::uint32_t piece = 0;
    for (std::uint64_t part = 0; part <= (nbytes_ - 1) >> part_nbits_; ++part) {
      while (piece < last && table_[piece + 1].first <= part << part_nbits_) ++piece;
      parts_.push_back(piece);
    }
    parts_.push_back(static_cast<std::uint32_t>(last));
  }

  std::uint64_t row_nbytes_, nrows_, nbytes_;
  std::uint64_t file_end_ = 0;
  bool ascend_ = true;  // in the file, as the rows do
  std::vector<byte_piece> table_;
  std::vector<std::uint32_t> parts_;  // of several pieces
  std::uint32_t part_nbits_ = 0;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::arrays
