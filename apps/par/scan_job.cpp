// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "apps/par/file_jobs.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::par {
namespace {

class scan_job final : public job {
 public:
  scan_job(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes, const scan_options& options,
           std::uint64_t piece_nbytes)
      : job(nbytes),
        carrier_(by.make_carrier(4, piece_nbytes)),
        scan_(by.make_scan(options, piece_nbytes)),
        pieces_(
            *carrier_, from, to,
            [=, at = std::uint64_t{0}](piece& next) mutable {
              next.nbytes = std::min(piece_nbytes, nbytes - at);
              next.from = {{at, next.nbytes}};
              next.to = std::exchange(at, at + next.nbytes);
              return next.nbytes != 0;
            },
            *scan_) {}

  bool next() override {
    const std::uint64_t n = pieces_.next();
    ndone_ += n;
    return n != 0;
  }

 private:
  std::unique_ptr<carrier> carrier_;
  std::unique_ptr<transform> scan_;
  piece_stream pieces_;
};

}  // namespace

std::unique_ptr<job> make_scan(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes,
                               const scan_options& options) {
  const std::uint64_t size = nbytes_of(options.type);
  const bool is_real = options.type == number_type::f32 || options.type == number_type::f64;
  if (is_real && (options.op == scan_op::bit_and || options.op == scan_op::bit_or || options.op == scan_op::bit_xor)) {
    throw gpufs::error("real numbers are not combined bit by bit: name a type of whole numbers (u32, i32, u64, i64)");
  }
  if (nbytes % size != 0) {
    throw gpufs::error(from.name() + ": has " + std::to_string(nbytes) + " bytes, which is no multiple of the " +
                       std::to_string(size) + " of an element");
  }
  std::uint64_t piece_nbytes = options.piece_nbytes != 0 ? options.piece_nbytes : by.usual_scan_nbytes();
  piece_nbytes = std::max(size, std::min(piece_nbytes, nbytes) / size * size);
  return std::make_unique<scan_job>(by, from, to, nbytes, options, piece_nbytes);
}

}  // namespace gpufs::apps::par
