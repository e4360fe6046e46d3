// SPDX-License-Identifier: Apache-2.0
#include "file_memory.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <span>
#include <system_error>

namespace gpufs {
namespace {

// A random point for the hashes of paths, 1 to 2^61 - 2.
std::uint64_t secret_point() {
  std::uint64_t x = 0;
  if (getrandom(&x, sizeof x, 0) != sizeof x) throw std::system_error(errno, std::generic_category(), "getrandom");
  return x % ((std::uint64_t{1} << 61) - 2) + 1;
}

}  // namespace

file_memory::file_memory(simt::platform& machine, const file_options& options) : memory_(machine), writable_(options.writable) {
  layout_.nslots = options.max_open_files;
  layout_.blocks = memory_.allocate<std::uint64_t>(blocks_for(layout_.nslots));
  const std::uint32_t npaths = std::bit_ceil(layout_.nslots);
  layout_.paths = memory_.allocate<path_bucket>(npaths);
  layout_.path_mask = npaths - 1;
  for (std::uint64_t& point : layout_.hash_points) point = secret_point();
  if (writable_) layout_.dirty_limit = options.dirty_limit;
  blocks_.reserve(blocks_for(layout_.nslots));  // now, because without memory for it later a new block would be lost
  // Chains the first slots as file_blocks::add chains those of later blocks.
  const std::uint32_t nblocks = blocks_for(std::clamp(options.reserved, 1u, layout_.nslots));
  const std::uint32_t end = std::min(layout_.nslots, nblocks * block_slots);
  for (std::uint32_t n = 0; n < nblocks; ++n) blocks_.push_back(make_block(n, end));
  std::vector<std::uint64_t> addresses;
  for (file_block* block : blocks_) addresses.push_back(reinterpret_cast<std::uint64_t>(block));
  memory_.write(layout_.blocks, std::span<const std::uint64_t>(addresses));
  std::vector<free_list> lists(free_lists);
  for (std::uint32_t i = 0; i < std::min(free_lists, end); ++i) lists[i].top = i + 1;
  layout_.free_slots = memory_.allocate(lists);
}

void file_memory::set_home(const file_home& home) {
  home_ = home;
  for (file_block* block : blocks()) write_home(block);
}

void file_memory::write_home(file_block* to) const {
  const std::vector<file_home> copies(home_shards, home_);
  memory_.write(to->homes, std::span(copies));
}

file_block* file_memory::extend(std::uint32_t n) {
  const std::scoped_lock one(making_);
  const std::size_t nblocks = blocks().size();
  if (n < nblocks) return blocks()[n];
  if (n != nblocks || n >= blocks_for(layout_.nslots)) return nullptr;
  file_block* const made = make_block(n, std::min(layout_.nslots, (n + 1) * block_slots));
  write_home(made);
  const std::scoped_lock hold(lock_);
  blocks_.push_back(made);
  return made;
}

std::vector<file_block*> file_memory::blocks() const {
  const std::scoped_lock hold(lock_);
  return blocks_;
}

file_block* file_memory::block_of(std::uint32_t slot) const {
  const std::scoped_lock hold(lock_);
  const std::uint32_t n = slot / block_slots;
  return slot < layout_.nslots && n < blocks_.size() ? blocks_[n] : nullptr;
}

file_block* file_memory::make_block(std::uint32_t n, std::uint32_t end) {
  std::vector<file_slot> slots(block_slots);
  for (std::uint32_t i = 0; i < block_slots; ++i) {
    const std::uint32_t next = n * block_slots + i + free_lists;
    if (next < end) slots[i].next = next + 1;
  }
  file_block* const block = writable_ ? memory_.allocate<writable_block>(1) : memory_.allocate<file_block>(1);
  memory_.write(block->slots, std::span<const file_slot>(slots));
  return block;
}

}  // namespace gpufs
