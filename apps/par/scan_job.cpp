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
           const job_state& state)
      : job(nbytes, 1, state),
        carrier_(by.make_carrier(4, state.piece_nbytes)),
        scan_(begun(by.make_scan(options, state.piece_nbytes), state)),
        pieces_(
            *carrier_, from, to,
            [nbytes, piece_nbytes = state.piece_nbytes, at = ndone_](piece& next) mutable {
              next.nbytes = std::min(piece_nbytes, nbytes - at);
              next.from = {{at, next.nbytes}};
              next.to = std::exchange(at, at + next.nbytes);
              return next.nbytes != 0;
            },
            *scan_) {}

  bool next() override { return count(pieces_.next(), pieces_.so_far()); }

 private:
  static std::unique_ptr<transform> begun(std::unique_ptr<transform> scan, const job_state& state) {
    if (state.npieces != 0) scan->go_on(state.so_far);
    return scan;
  }

  std::unique_ptr<carrier> carrier_;
  std::unique_ptr<transform> scan_;
  piece_stream pieces_;
};

// name: of what has so many bytes.
void check(const scan_options& options, std::uint64_t nbytes, const std::string& name) {
  const std::uint64_t size = nbytes_of(options.type);
  const bool is_real = options.type == number_type::f32 || options.type == number_type::f64;
  if (is_real && (options.op == scan_op::bit_and || options.op == scan_op::bit_or || options.op == scan_op::bit_xor)) {
    throw gpufs::error("real numbers are not combined bit by bit: name a type of whole numbers (u32, i32, u64, i64)");
  }
  if (nbytes % size != 0) {
    throw gpufs::error(name + ": has " + std::to_string(nbytes) + " bytes, which is no multiple of the " + std::to_string(size) +
                       " of an element");
  }
}

}  // namespace

void scan_there(engine& by, const std::byte* in, std::byte* out, std::uint64_t nbytes, const scan_options& options,
                std::span<std::byte> space) {
  check(options, nbytes, "the array");
  if (nbytes == 0) return;
  if (space.size() < by.space_to_scan(nbytes, options)) throw gpufs::error("the space of a scan is too small");
  by.scan_all(in, out, nbytes, options, space);
}

std::unique_ptr<job> make_scan(engine& by, const bytes_from& from, const bytes_to& to, std::uint64_t nbytes,
                               const scan_options& options, const job_state* from_here) {
  check(options, nbytes, from.name());
  const std::uint64_t size = nbytes_of(options.type);
  std::uint64_t piece_nbytes = options.piece_nbytes != 0 ? options.piece_nbytes : by.usual_scan_nbytes();
  piece_nbytes = std::max(size, std::min(piece_nbytes, nbytes) / size * size);
  const job_state state = from_here != nullptr ? *from_here : job_state{.piece_nbytes = piece_nbytes};
  if (state.piece_nbytes % size != 0) throw gpufs::error("a piece is no multiple of an element");
  return std::make_unique<scan_job>(by, from, to, nbytes, options, state);
}

}  // namespace gpufs::apps::par
