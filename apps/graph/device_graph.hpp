// SPDX-License-Identifier: Apache-2.0
// What the algorithms on a device share: where lists lie, how kernels are launched, and the ways to read edges. Host code.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "apps/graph/graph_file.hpp"
#include "apps/graph/lists.hpp"
#include "apps/graph/results.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

template <class T>
using array = simt::device_array<T>;

inline constexpr unsigned block_threads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 3;

// Runs the kernel by as many blocks as run at once, up to most_blocks, and waits.
template <class Kernel>
void run_on_device(unsigned most_blocks, const Kernel& kernel) {
  simt::launch_config of{.grid = 1, .block = block_threads};
  of.schedule.timeout_ns = 0;  // what waits inside has its own deadline
  of.schedule.switch_percent = GPUFS_ON_CUDA ? 0 : 5;
  of.grid = std::clamp(simt::max_cooperative_grid<block_threads, least_blocks>(of, kernel), 1u, most_blocks);
  simt::launch<block_threads, least_blocks>(of, kernel);
}
struct do_nothing {
  GPUFS_DEVICE void operator()() const {}
};
inline unsigned most_blocks_of_machine() {
  if (!GPUFS_ON_CUDA) return 4;
  return simt::max_cooperative_grid<block_threads, least_blocks>({.grid = 1, .block = block_threads}, do_nothing{});
}

// The offsets of a graph's lists, and the pieces of long ones, in device memory.
class device_graph {
 public:
  // in: of a directed graph; else empty. most_warps: that kernels may have; each pins up to two pages.
  device_graph(const std::vector<std::uint64_t>& out, const std::vector<std::uint64_t>& in, simt::platform& device,
               std::uint64_t most_warps = ~std::uint64_t{0})
      : out_(out, device),
        in_(in, device),
        nvertices_(out.size() - 1),
        nedges_(out.back()),
        is_directed_(!in.empty()),
        most_blocks_(blocks_of(device, most_warps)) {}

  std::uint64_t nvertices() const { return nvertices_; }
  std::uint64_t nedges() const { return nedges_; }
  std::uint64_t nwords() const { return (nvertices_ + 31) / 32; }
  bool is_directed() const { return is_directed_; }
  unsigned most_blocks() const { return most_blocks_; }
  std::uint64_t most_warps() const { return std::uint64_t{most_blocks_} * (block_threads / 32); }
  list_places places(direction of) const {
    const side& lists = is_directed_ && of == direction::in ? in_ : out_;
    return {lists.offsets.get(), nvertices_, lists.pieces.get(), lists.pieces.size()};
  }
  std::uint64_t nneighbours(vertex v) const { return out_.offsets.read_one(v + 1) - out_.offsets.read_one(v); }

 private:
  struct side {
    side(const std::vector<std::uint64_t>& from, simt::platform& device)
        : offsets(from, device), pieces(std::span<const piece>(pieces_of(from)), device) {}
    static std::vector<piece> pieces_of(const std::vector<std::uint64_t>& from) {
      std::vector<piece> all;
      for (std::size_t v = 0; v + 1 < from.size(); ++v) {
        const std::uint64_t n = from[v + 1] - from[v];
        for (std::uint32_t i = 0; n > edges_a_piece && i * edges_a_piece < n; ++i) all.push_back({static_cast<vertex>(v), i});
      }
      return all;
    }
    array<std::uint64_t> offsets;
    array<piece> pieces;
  };
  static unsigned blocks_of(simt::platform& device, std::uint64_t most_warps) {
    const simt::on_device here(device);
    return static_cast<unsigned>(std::clamp<std::uint64_t>(most_warps / (block_threads / 32), 1, most_blocks_of_machine()));
  }

  side out_, in_;
  std::uint64_t nvertices_, nedges_;
  bool is_directed_;
  unsigned most_blocks_;
};

// Which edges a kernel wants: most of a page, or few.
enum class share { most, few };

constexpr unsigned shift_of(std::uint32_t nbytes) { return nbytes == 8 ? 3 : 2; }

// Edges in memory that kernels reach, of target_nbytes each.
struct edges_in_memory {
  const std::byte* out;
  const std::byte* in;
  const weight* weights_;
  std::uint32_t target_nbytes;

  template <share>
  in_memory targets(direction of) const {
    return {of == direction::in ? in : out, shift_of(target_nbytes)};
  }
  template <share>
  in_memory weights() const {
    return {reinterpret_cast<const std::byte*>(weights_), 2};
  }
  share expect(share wanted) const { return wanted; }
};

// Edges in a graph's file, through gpufs. The sectors that kernels want come alone where these are few, unless the cache has room
// for all pages.
class edges_in_file {
 public:
  edges_in_file(const graph_file& of, const mount& fs, const host_file& opened, const device_graph& graph)
      : of_(of),
        opened_(opened),
        has_room_(fs.options().cache_nbytes / 8 * 7 >= of.head().file_nbytes),  // rings of the cache fill unevenly
        target_copies_(graph.most_warps() * by_part::most_nbytes, fs.device()),
        weight_copies_(of.has_weights() ? target_copies_.size() : 0, fs.device()) {
    opened_.advise(advice::whole);
  }

  template <share Share>
  auto targets(direction which) const {
    return read_by<Share>(of_.targets_at(which), shift_of(of_.head().target_nbytes), target_copies_.get());
  }
  template <share Share>
  auto weights() const {
    return read_by<Share>(of_.weights_at(), 2, weight_copies_.get());
  }
  // Which share the next kernels are to be compiled for.
  share expect(share wanted) {
    if (has_room_) wanted = share::most;
    if (wanted != advised_) opened_.advise(wanted == share::few ? advice::random : advice::whole);
    return advised_ = wanted;
  }

 private:
  template <share Share>
  auto read_by(std::uint64_t begin, unsigned shift, std::byte* copies) const {
    if constexpr (Share == share::few) {
      return by_part{opened_.ref(), begin, shift, copies};
    } else {
      return by_page{opened_.ref(), begin, shift};
    }
  }

  const graph_file& of_;
  const host_file& opened_;
  bool has_room_;
  array<std::byte> target_copies_, weight_copies_;
  share advised_ = share::most;
};

// Calls work with the share as its template's argument.
template <class Work>
void by_share(share of, const Work& work) {
  if (of == share::most) {
    work.template operator()<share::most>();
  } else {
    work.template operator()<share::few>();
  }
}

// Told after each round: what is done, of what; may throw.
using round_function = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Thrown where a kernel could not read: a negative errno, -EDOM for a vertex that is not there.
struct read_failure {
  int error;
};
inline counts checked(const array<counts>& from) {
  const counts got = from.read_one();
  if (got.error != 0) throw read_failure{static_cast<int>(got.error)};
  return got;
}

// --- Small kernels -----------------------------------------------------------------------------------------------------------

template <class Make>
struct each_vertex {
  std::uint64_t n;
  Make make;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t step = std::uint64_t{simt::grid_size()} * simt::block_size();
    for (std::uint64_t v = std::uint64_t{simt::block_rank()} * simt::block_size() + simt::thread_rank(); v < n; v += step) make(v);
  }
};
template <class T>
struct set_to {
  T* of;
  T value;
  GPUFS_DEVICE void operator()(std::uint64_t v) const { of[v] = value; }
};
template <class T>
void fill(unsigned most_blocks, const array<T>& of, T value) {
  run_on_device(most_blocks, each_vertex<set_to<T>>{of.size(), {of.get(), value}});
}
template <class T>
void clear(const array<T>& of) {
  of.device().zero_device(of.get(), of.size() * sizeof(T));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
