// SPDX-License-Identifier: Apache-2.0
// Queries by host threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/arrays/row_pieces.hpp"
#include "apps/helper_threads.hpp"
#include "apps/input_file.hpp"
#include "apps/parallel.hpp"
#include "apps/query/engine.hpp"

namespace gpufs::apps::query {
namespace {

constexpr std::uint64_t chunk_rows = 32 << 10, chunks_a_round = 512;  // a thread takes a chunk; progress is told after a round
constexpr std::uint64_t gap_nbytes = 4096;  // what lies between values that are read together, a page of the host's cache

// Calls work with the type as a constant.
template <class Work>
void with_type(value_type type, const Work& work) {
  const auto call = [&]<std::size_t... Type>(std::index_sequence<Type...>) {
    ((static_cast<std::size_t>(type) == Type ? work(std::integral_constant<value_type, static_cast<value_type>(Type)>()) : void()),
     ...);
  };
  call(std::make_index_sequence<ntypes>());
}

// What a thread works with.
struct thread_room {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> rows, values;  // that pass; values of the scanned column
};

// A column of an open file.
class open_column {
 public:
  open_column(const column& of, std::shared_ptr<const input_file> file)
      : type_(of.type), nbytes_(nbytes_of(of.type)), file_(std::move(file)), pieces_(of.place), map_(pieces_.map()) {}
  open_column(const open_column&) = delete;
  open_column& operator=(const open_column&) = delete;

  value_type type() const { return type_; }
  std::uint64_t nrows() const { return pieces_.nrows(); }

  // Lists those of n rows from `first` on whose values pass, in their order. How many bytes were read.
  std::uint64_t select(std::uint64_t first, std::uint64_t n, const condition& wanted, thread_room& to) const {
    to.rows.clear();
    to.values.clear();
    const std::uint64_t end = (first + n) * nbytes_;
    for (std::uint64_t at = first * nbytes_; at < end;) {
      const arrays::byte_run there = map_.at(at);
      const std::uint64_t here = std::min(there.nbytes, end - at);
      read(there.offset, here, to.bytes);
      with_type(type_, [&](auto type) { select_in<type()>(to.bytes.data(), here / nbytes_, at / nbytes_, wanted, to); });
      at += here;
    }
    return n * nbytes_;
  }
  // Gives the values of rows, which ascend, to take(bits). How many bytes were read.
  template <class Take>
  std::uint64_t some(const std::vector<std::uint64_t>& rows, std::vector<std::byte>& room, const Take& take) const {
    std::uint64_t nread = 0;
    for (std::size_t i = 0; i < rows.size();) {
      const std::uint64_t begin = rows[i] * nbytes_;
      const arrays::byte_run there = map_.at(begin);
      std::uint64_t end = begin + nbytes_;
      std::size_t next = i + 1;
      while (next < rows.size() && rows[next] * nbytes_ < begin + there.nbytes && rows[next] * nbytes_ - end <= gap_nbytes) {
        end = rows[next++] * nbytes_ + nbytes_;
      }
      read(there.offset, end - begin, room);
      nread += end - begin;
      for (; i < next; ++i) take(bits_at(room.data() + (rows[i] * nbytes_ - begin), nbytes_));
    }
    return nread;
  }

 private:
  void read(std::uint64_t offset, std::uint64_t nbytes, std::vector<std::byte>& room) const {
    if (room.size() < nbytes) room.resize(nbytes);
    file_->read(room.data(), nbytes, offset);
  }
  // Of a block of values how many pass, without a branch, and then, where any do, which.
  template <value_type Type>
  static void select_in(const std::byte* values, std::uint64_t n, std::uint64_t first_row, const condition& wanted,
                        thread_room& to) {
    constexpr std::uint32_t nbytes = nbytes_of(Type);
    constexpr std::uint64_t block = 64;
    const auto value = [&](std::uint64_t i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, values + i * nbytes, nbytes);
      return bits;
    };
    const auto passes = [&](std::uint64_t i) { return wanted.holds(key_of(Type, value(i))); };
    for (std::uint64_t begin = 0; begin < n; begin += block) {
      const std::uint64_t end = std::min(begin + block, n);
      unsigned npassed = 0;
      for (std::uint64_t i = begin; i < end; ++i) npassed += passes(i) ? 1 : 0;
      for (std::uint64_t i = begin; i < end && npassed != 0; ++i) {
        if (!passes(i)) continue;
        to.rows.push_back(first_row + i);
        to.values.push_back(value(i));
        --npassed;
      }
    }
  }

  value_type type_;
  std::uint32_t nbytes_;
  std::shared_ptr<const input_file> file_;
  arrays::row_pieces pieces_;
  arrays::byte_map map_;
};

class cpu_engine final : public engine {
 public:
  cpu_engine(const query& of, const engine_options& options)
      : wanted_(of.wanted), nthreads_(thread_count(options.nthreads)), where_(open(of.where)) {
    for (const column& each : of.sums) sums_.push_back(is_same(each, of.where) ? nullptr : open(each));
  }

  query_result run(const progress_function& progress) override {
    const auto begin = std::chrono::steady_clock::now();
    query_result all{.nrows = where_->nrows(), .sums = std::vector<column_sums>(sums_.size(), no_sums())};
    progress(0, all.nrows);
    const std::uint64_t nchunks = (all.nrows + chunk_rows - 1) / chunk_rows;
    for (std::uint64_t first = 0; first < nchunks; first += chunks_a_round) {
      const std::uint64_t n = std::min(chunks_a_round, nchunks - first);
      std::atomic<std::uint64_t> next{first};
      const auto work = [&](std::size_t) {
        thread_room room;
        for (std::uint64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < first + n;) look_at(chunk, room, all);
      };
      parallel_for(nthreads_, std::min<std::uint64_t>(nthreads_, n), work, helper_threads::of_process());
      for (column_sums& each : all.sums) carry(each);
      progress(std::min((first + n) * chunk_rows, all.nrows), all.nrows);
    }
    all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return all;
  }

 private:
  static column_sums no_sums() {
    column_sums none{};
    none.least = ~std::uint64_t{0};
    return none;
  }
  std::unique_ptr<const open_column> open(const column& of) {
    std::shared_ptr<const input_file>& file = files_[of.path];
    if (file == nullptr) file = std::make_shared<const input_file>(of.path, "queried");
    return std::make_unique<const open_column>(of, file);
  }

  void look_at(std::uint64_t chunk, thread_room& room, query_result& all) {
    const std::uint64_t first = chunk * chunk_rows, n = std::min(chunk_rows, where_->nrows() - first);
    std::uint64_t nread = where_->select(first, n, wanted_, room);
    const std::uint64_t npassed = room.rows.size();
    std::vector<column_sums> found(sums_.size(), no_sums());
    for (std::size_t i = 0; i < sums_.size() && npassed != 0; ++i) {
      if (sums_[i] == nullptr) {
        for (const std::uint64_t bits : room.values) add_value(found[i], where_->type(), bits, plain_words());
      } else {
        nread += sums_[i]->some(room.rows, room.bytes,
                                [&](std::uint64_t bits) { add_value(found[i], sums_[i]->type(), bits, plain_words()); });
      }
    }
    const std::lock_guard lock(mutex_);
    all.npassed += npassed;
    all.bytes_read += nread;
    for (std::size_t i = 0; i < sums_.size(); ++i) add_sums(all.sums[i], found[i], plain_words());
  }

  condition wanted_;
  unsigned nthreads_;
  std::map<std::string, std::shared_ptr<const input_file>> files_;  // by path
  std::unique_ptr<const open_column> where_;
  std::vector<std::unique_ptr<const open_column>> sums_;  // null: the one that is scanned
  std::mutex mutex_;                                      // of what is found
};

}  // namespace

bool is_same(const column& a, const column& b) {
  const auto same = [](const arrays::row_piece& x, const arrays::row_piece& y) { return x.first == y.first && x.begin == y.begin; };
  return a.path == b.path && a.type == b.type && std::ranges::equal(a.place.pieces, b.place.pieces, same);
}

void check_columns(const query& of) {
  if (of.sums.size() > most_columns) throw std::invalid_argument("there are too many columns");
  const auto check = [&](const column& each) {
    if (each.place.nrows != of.where.place.nrows) throw std::invalid_argument("the columns have different numbers of rows");
    if (each.place.row_nbytes != nbytes_of(each.type)) throw std::invalid_argument("a column's rows are of another size");
  };
  check(of.where);
  for (const column& each : of.sums) check(each);
}

std::unique_ptr<engine> make_engine_cpu(const query& of, const engine_options& options) {
  check_columns(of);
  return std::make_unique<cpu_engine>(of, options);
}

}  // namespace gpufs::apps::query
