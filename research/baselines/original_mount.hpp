// SPDX-License-Identifier: Apache-2.0
// A mount whose page cache is one of the papers' designs: an ordinary mount's host side, with other policies on the device.
#pragma once
#include <algorithm>
#include <bit>
#include <string>

#include "gpufs/gpufs.hpp"
#include "research/baselines/fifo_rings.hpp"
#include "research/baselines/free_list.hpp"
#include "research/baselines/original_file.hpp"
#include "research/baselines/original_storage.hpp"
#include "research/baselines/radix_tree.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// GPUfs as it was first published, and the two steps that SYSTOR'16 takes from it.
using original_cache = cache::page_cache<radix_tree<>, free_list>;
using hash_and_free_list = cache::page_cache<cache::hash_table, free_list>;
using hash_and_rings = cache::page_cache<cache::hash_table, fifo_rings>;

using timed_original_cache = timed_cache<cache::page_cache<radix_tree<timed>, timed_allocator<free_list>>>;
using timed_hash_and_free_list = timed_cache<cache::page_cache<cache::hash_table, timed_allocator<free_list>>>;
using timed_hash_and_rings = timed_cache<cache::page_cache<cache::hash_table, timed_allocator<fifo_rings>>>;
using timed_own_cache = timed_cache<cache::page_cache<cache::hash_table, timed_allocator<cache::clock_rings>>>;

template <class Cache>
inline constexpr bool has_tree = false;
template <class Times, class Allocator>
inline constexpr bool has_tree<cache::page_cache<radix_tree<Times>, Allocator>> = true;
template <class Cache>
inline constexpr bool has_tree<timed_cache<Cache>> = has_tree<Cache>;

// The host side as it was: one thread, which takes one request from one ring, reads one page, answers, and looks again.
inline mount_options original_host_side(mount_options options) {
  constexpr std::uint64_t staging_nbytes = 64u << 20;
  options.store = store_kind::posix;
  options.nworkers = 1;
  options.internals.request_batch = 1;
  options.internals.request_rings = 1;
  // There was a slot for every threadblock: enough of them that none waits for one.
  options.internals.request_slots =
      static_cast<std::uint32_t>(std::bit_floor(std::clamp<std::uint64_t>(staging_nbytes / options.page_nbytes, 2, 4096)));
  return options;
}

// Owner, as gpufs::mount. Throws gpufs::error, and std::bad_alloc where the policies' memory does not fit.
template <class Cache>
class original_mount : public host_mount {
 public:
  explicit original_mount(const std::string& root, const mount_options& options = {}, storage_options storage = {})
      : host_mount(simt::this_platform(), root, options),
        storage_(simt::this_platform(), gpufs::mount_inside(*this).layout().cache, with_tree(storage)) {}

  original_ref<Cache> ref() const { return {gpufs::mount_inside(*this).resident(), storage_.device()}; }
  original_storage& storage() { return storage_; }

 private:
  static storage_options with_tree(storage_options storage) {
    storage.tree = has_tree<Cache>;
    return storage;
  }

  original_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
