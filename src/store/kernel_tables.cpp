// SPDX-License-Identifier: Apache-2.0
#include "kernel_tables.hpp"

#include <algorithm>
#include <new>
#include <span>

namespace gpufs::store {
namespace {

constexpr std::size_t chunk_nbytes = std::size_t{1} << 20;  // taken at once: it takes some 0.1 ms
constexpr std::size_t begins_at = 64;                       // of each table: a line of what a kernel reads at once

}  // namespace

kernel_tables::kernel_tables(simt::platform& machine, std::uint64_t most_nbytes) : machine_(machine), most_nbytes_(most_nbytes) {}

std::shared_ptr<kernel_tables::chunk> kernel_tables::room_for(std::size_t nbytes) {
  if (!chunks_.empty() && nbytes <= chunks_.back()->memory.nbytes() - chunks_.back()->used) return chunks_.back();
  const std::size_t wanted = std::max(nbytes, std::min<std::size_t>(chunk_nbytes, most_nbytes_));
  if (nbytes_ > most_nbytes_ || wanted > most_nbytes_ - nbytes_) return nullptr;
  try {
    chunks_.push_back(std::make_shared<chunk>(machine_, wanted));
  } catch (const std::bad_alloc&) {  // no pinned memory
    return nullptr;
  }
  nbytes_ += wanted;
  return chunks_.back();
}

std::shared_ptr<const nvme::file_layout> kernel_tables::make(std::uint64_t number, const nvme::file_layout& base,
                                                             const std::vector<nvme::file_extent>& extents) {
  const std::lock_guard lock(mutex_);
  if (const auto found = made_.find(number); found != made_.end()) return found->second;
  const std::size_t nbytes = sizeof(nvme::file_layout) + extents.size() * sizeof(nvme::file_extent);
  const std::shared_ptr<chunk> from = room_for((nbytes + begins_at - 1) / begins_at * begins_at);
  if (from == nullptr) {
    lacks_room_ = true;
    return nullptr;
  }
  std::byte* const at = from->memory.data() + from->used;
  from->used += (nbytes + begins_at - 1) / begins_at * begins_at;
  auto* const table = reinterpret_cast<nvme::file_extent*>(at + sizeof(nvme::file_layout));
  std::uninitialized_copy(extents.begin(), extents.end(), table);
  auto* const layout = new (at) nvme::file_layout(base);
  layout->extents = table;
  layout->nextents = extents.size();
  // An owner of its own, so that it is known whether anybody has this one.
  const auto owner = std::make_shared<std::shared_ptr<chunk>>(from);
  return made_[number] = std::shared_ptr<const nvme::file_layout>(owner, layout);
}

bool kernel_tables::lacks_room() const {
  const std::lock_guard lock(mutex_);
  return lacks_room_;
}

void kernel_tables::give_up() {
  std::vector<std::shared_ptr<chunk>> empty;  // freed outside the lock: it waits for kernels, which may wait for an open
  const std::lock_guard lock(mutex_);
  std::erase_if(made_, [](const auto& each) { return each.second.use_count() == 1; });
  const auto middle = std::partition(chunks_.begin(), chunks_.end(), [](const auto& each) { return each.use_count() > 1; });
  for (auto each = middle; each != chunks_.end(); ++each) nbytes_ -= (*each)->memory.nbytes();
  empty.assign(std::make_move_iterator(middle), std::make_move_iterator(chunks_.end()));
  chunks_.erase(middle, chunks_.end());
  lacks_room_ = false;
}

}  // namespace gpufs::store
