// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "apps/par/file_jobs.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::par {

job::job(std::uint64_t nbytes_a_round, unsigned nrounds, const job_state& state)
    : nbytes_(nrounds * nbytes_a_round), state_(state) {
  if (state.npieces == 0) return;
  const std::uint64_t piece = state.piece_nbytes;
  if (piece == 0) throw gpufs::error("pieces of no bytes have not been done");
  const std::uint64_t a_round = nbytes_a_round / piece + (nbytes_a_round % piece != 0 ? 1 : 0);
  if (a_round == 0 || state.npieces > a_round * nrounds) {
    throw gpufs::error("there are not " + std::to_string(state.npieces) + " pieces of " + std::to_string(piece) + " bytes");
  }
  ndone_ = state.npieces / a_round * nbytes_a_round + state.npieces % a_round * piece;
}

bool job::count(std::uint64_t nbytes, const known& so_far) {
  if (nbytes == 0) return false;
  ndone_ += nbytes;
  ++state_.npieces;
  state_.so_far = so_far;
  return true;
}

}  // namespace gpufs::apps::par
