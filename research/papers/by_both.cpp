// SPDX-License-Identifier: Apache-2.0
// The collage as programs for GPUs had it without gpufs (SYSTOR'16, section 3: "CPU-GPU"): a kernel makes the keys, host threads
// make the shortlists of them, read each image on any of these once, into pinned memory, and copy them; a second kernel compares.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

#include "apps/collage/match_kernel.hpp"
#include "apps/collage/shortlist.hpp"
#include "apps/parallel.hpp"
#include "gpufs/simt/device_array.hpp"
#include "research/papers/engines.hpp"

namespace gpufs::papers {
inline namespace GPUFS_MACHINE {

using namespace apps::collage;

// What both kernels have of the collage's own: the photograph and its histograms.
struct both_base : match_kernel<mount_ref> {
  std::uint32_t nblocks;
};

struct make_keys_kernel : both_base {
  const std::int32_t* means;   // the library's reference
  const std::int8_t* weights;  // its projections
  std::uint32_t* keys;         // [nblocks][ntables]

  GPUFS_DEVICE void operator()() const {
    match_shared& s = simt::shared<match_shared>();
    const auto block = simt::this_block();
    const auto warp = simt::this_warp();
    for (std::uint32_t i = block.rank(); i < nfolded; i += block.size()) s.reference[i] = means[i];
    for (std::uint32_t b = simt::block_rank(); b < nblocks; b += simt::grid_size()) {
      make_histogram(s, b);
      for (std::uint32_t t = simt::warp_rank(); t < ntables; t += block.nwarps()) {
        const std::int8_t* column = weights + t * projection_nbytes + simt::lane_id();
        std::int32_t sum = 0;
        for (std::uint32_t i = 0; i < nfolded; ++i) sum += column[i * max_key_nbits] * s.centred[i];
        const std::uint32_t key = warp.ballot(sum > 0) & ((1u << key_nbits) - 1);
        if (warp.leader()) keys[b * ntables + t] = key;
      }
    }
  }
};

// One image of a shortlist, and where its histogram is.
struct candidate {
  std::uint32_t id, slot;
};

struct compare_kernel : both_base {
  const std::byte* slots;       // histogram_nbytes each
  const candidate* candidates;  // of all blocks, one behind the other
  const std::uint32_t* begins;  // by block, and the end of the last
  match* found;                 // id and distance

  GPUFS_DEVICE void operator()() const {
    match_shared& s = simt::shared<match_shared>();
    const auto block = simt::this_block();
    const auto warp = simt::this_warp();
    for (std::uint32_t i = block.rank(); i < nfolded; i += block.size()) s.reference[i] = 0;
    for (std::uint32_t b = simt::block_rank(); b < nblocks; b += simt::grid_size()) {
      make_histogram(s, b);
      std::uint64_t best = ~std::uint64_t{0};
      for (std::uint32_t c = begins[b] + simt::warp_rank(); c < begins[b + 1]; c += block.nwarps()) {
        const candidate one = candidates[c];
        const std::byte* histogram = slots + std::uint64_t{one.slot} * histogram_nbytes;
        float sum = 0;
        for (std::uint32_t at = simt::lane_id() * 16; at < histogram_nbytes; at += 512) {
          sum += squared_distance(histogram + at, s.histogram + at / sizeof(float));
        }
        const std::uint64_t mine = std::uint64_t{warp.reduce_add(static_cast<std::uint32_t>(sum))} << 32 | one.id;
        best = mine < best ? mine : best;
      }
      best = block.reduce_min(best);
      if (block.leader()) found[b] = {static_cast<std::uint32_t>(best), static_cast<std::uint32_t>(best >> 32), 0, 0};
    }
  }
};

// Of at least n elements, kept from one photograph to the next.
template <class Array>
Array& grown(std::optional<Array>& array, std::size_t n) {
  if (!array || array->size() < n) {
    array.reset();
    array.emplace(n);
  }
  return *array;
}

class both_matcher final : public matcher {
 public:
  explicit both_matcher(const library& lib)
      : lib_(lib),
        lists_(lib),
        means_(std::span<const std::int32_t>(lib.reference())),
        weights_(std::span<const std::int8_t>(lib.projections())),
        slot_of_(lib.nimages()) {}

  match_result find(const photo& picture, const apps::progress_function&) override {
    const std::uint32_t nblocks = picture.nblocks();
    const std::size_t pixels_nbytes = picture.row_nbytes() * tile_side * picture.nblocks_y;
    const auto begin = std::chrono::steady_clock::now();
    const auto& pixels = grown(pixels_, pixels_nbytes);
    pixels.write(std::span(picture.pixels, pixels_nbytes));
    both_base base{};
    base.pixels = pixels.get();
    base.nblocks_x = picture.nblocks_x;
    base.key_nbits = lib_.head().key_nbits;
    base.nblocks = nblocks;
    const simt::launch_config how{.grid = std::min(nblocks, simt::this_platform().is_cuda() ? 4096u : 16u),
                                  .block = simt::this_platform().is_cuda() ? 256u : 64u};
    const auto& device_keys = grown(keys_, std::size_t{nblocks} * ntables);
    simt::launch(how, make_keys_kernel{base, means_.get(), weights_.get(), device_keys.get()});
    const std::vector<std::uint32_t> keys = device_keys.read();

    match_result result;
    result.matches.resize(nblocks);
    const std::uint32_t nslots = shorten(keys, result.matches);
    // Reads each image once, and copies.
    const auto& staging = grown(staging_, std::size_t{nslots} * histogram_nbytes);
    constexpr std::uint32_t share = 256;
    apps::parallel_for(apps::thread_count(0), (nslots + share - 1) / share, [&](std::size_t part) {
      const auto first = static_cast<std::uint32_t>(part) * share;
      for (std::uint32_t i = first; i < std::min(nslots, first + share); ++i) {
        std::memcpy(staging.get() + std::size_t{i} * histogram_nbytes, lib_.histogram(images_[i]), histogram_nbytes);
      }
    });
    const auto& slots = grown(slots_, std::size_t{nslots} * histogram_nbytes);
    simt::this_platform().copy_to_device(slots.get(), staging.get(), std::size_t{nslots} * histogram_nbytes);
    const auto& candidates = grown(device_candidates_, candidates_.size());
    candidates.write(candidates_);
    const auto& begins = grown(device_begins_, begins_.size());
    begins.write(begins_);

    const auto& matches = grown(matches_, nblocks);
    simt::launch(how, compare_kernel{base, slots.get(), candidates.get(), begins.get(), matches.get()});
    const std::vector<match> found = matches.read();
    for (std::uint32_t b = 0; b < nblocks; ++b) {
      result.matches[b].id = found[b].id;
      result.matches[b].distance = found[b].distance;
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    result.machine = std::string(simt::this_platform().name());
    return result;
  }

 private:
  static constexpr std::uint32_t nowhere = ~0u;

  // Fills candidates_, begins_ and images_, which image each slot has; how many slots there are.
  std::uint32_t shorten(const std::vector<std::uint32_t>& keys, std::vector<match>& matches) {
    const auto nblocks = static_cast<std::uint32_t>(matches.size());
    all_.resize(std::size_t{nblocks} * shortlist_limit);
    std::atomic<bool> damaged_table{false};
    constexpr std::uint32_t share = 16;
    apps::parallel_for(apps::thread_count(0), (nblocks + share - 1) / share, [&](std::size_t part) {
      shortlist list;
      const auto first = static_cast<std::uint32_t>(part) * share;
      for (std::uint32_t b = first; b < std::min(nblocks, first + share); ++b) {
        if (!lists_.make(keys.data() + std::size_t{b} * ntables, list, matches[b].nbuckets)) damaged_table = true;
        matches[b].nshortlist = list.size();
        std::copy(list.begin(), list.end(), all_.begin() + std::size_t{b} * shortlist_limit);
      }
    });
    if (damaged_table) lib_.fail("is damaged; `gpufs collage verify` says more");
    std::fill(slot_of_.begin(), slot_of_.end(), nowhere);
    images_.clear();
    candidates_.clear();
    begins_.assign(1, 0);
    for (std::uint32_t b = 0; b < nblocks; ++b) {
      const std::uint32_t* list = all_.data() + std::size_t{b} * shortlist_limit;
      for (std::uint32_t i = 0; i < matches[b].nshortlist; ++i) {
        std::uint32_t& slot = slot_of_[list[i]];
        if (slot == nowhere) {
          slot = static_cast<std::uint32_t>(images_.size());
          images_.push_back(list[i]);
        }
        candidates_.push_back({list[i], slot});
      }
      begins_.push_back(static_cast<std::uint32_t>(candidates_.size()));
    }
    return static_cast<std::uint32_t>(images_.size());
  }

  const library& lib_;
  shortlist_maker lists_;
  simt::device_array<std::int32_t> means_;
  simt::device_array<std::int8_t> weights_;
  std::vector<std::uint32_t> slot_of_, images_, begins_, all_;
  std::vector<candidate> candidates_;
  std::optional<simt::device_array<std::uint8_t>> pixels_;
  std::optional<simt::device_array<std::uint32_t>> keys_, device_begins_;
  std::optional<simt::device_array<candidate>> device_candidates_;
  std::optional<simt::device_array<std::byte>> slots_;
  std::optional<simt::device_array<match>> matches_;
  std::optional<simt::pinned_array<std::byte>> staging_;
};

}  // namespace GPUFS_MACHINE

std::unique_ptr<apps::collage::matcher> matcher_by_both(const apps::collage::library& lib) {
  return std::make_unique<both_matcher>(lib);
}

}  // namespace gpufs::papers
