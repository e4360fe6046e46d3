// SPDX-License-Identifier: Apache-2.0
#include "kernel_tables.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <new>

namespace gpufs::store {
namespace {

constexpr std::uint64_t chunk_nbytes = std::uint64_t{1} << 20;  // taken at once: tables of 8,192 small files
constexpr std::size_t begins_at = 64;                           // of each table: a line of what a kernel reads at once

}  // namespace

kernel_tables::kernel_tables(simt::platform& machine, std::uint64_t most_nbytes) : machine_(machine), most_nbytes_(most_nbytes) {
  std::unique_lock held(mutex_);
  take(&held, chunk_nbytes);
  if (most_nbytes_ != 0) taker_ = std::thread([this] { run(); });
}

kernel_tables::~kernel_tables() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  if (taker_.joinable()) taker_.join();
}

void kernel_tables::run() {
  ::prctl(PR_SET_NAME, "gpufs-tables");
  machine_.stay_current();
  std::unique_lock held(mutex_);
  for (;;) {
    wake_.wait(held, [this] { return ends_ || wanted_ != 0; });
    if (ends_) return;
    const std::uint64_t nbytes = wanted_;
    take(&held, nbytes);
    if (wanted_ == nbytes) wanted_ = 0;
  }
}

void kernel_tables::take(std::unique_lock<std::mutex>* held, std::uint64_t nbytes) {
  const std::uint64_t n = std::min(std::max(nbytes, chunk_nbytes), most_nbytes_ - nbytes_);
  if (n == 0) return;
  nbytes_ += n;
  held->unlock();
  try {
    auto made = std::make_shared<chunk>(machine_, n);
    held->lock();
    chunks_.push_back(std::move(made));
  } catch (const std::exception&) {  // no memory, or the device is lost, which its kernels report
    if (!held->owns_lock()) held->lock();
    nbytes_ -= n;
    lacks_room_ = true;
  }
}

bool kernel_tables::is_mostly_used() const { return chunks_.empty() || chunks_.back()->left() < chunk_nbytes / 2; }

std::shared_ptr<kernel_tables::chunk> kernel_tables::room_for(std::size_t nbytes) {
  const auto found = std::find_if(chunks_.rbegin(), chunks_.rend(), [&](const auto& each) { return nbytes <= each->left(); });
  const std::uint64_t may_take = most_nbytes_ - nbytes_;
  if (found == chunks_.rend() && nbytes > may_take) {
    const bool may_come = wanted_ != 0;  // in a chunk that is being taken
    lacks_room_ = lacks_room_ || (!may_come && nbytes <= most_nbytes_);
  } else if (may_take != 0 && (found == chunks_.rend() || is_mostly_used())) {
    wanted_ = std::max({wanted_, chunk_nbytes, std::uint64_t{found == chunks_.rend() ? nbytes : 0}});
    wake_.notify_one();
  }
  return found == chunks_.rend() ? nullptr : *found;
}

std::shared_ptr<const nvme::file_layout> kernel_tables::make(std::uint64_t number, const nvme::file_layout& base,
                                                             const std::vector<nvme::file_extent>& extents) {
  const std::lock_guard lock(mutex_);
  if (const auto found = made_.find(number); found != made_.end()) return found->second;
  const std::size_t nbytes = sizeof(nvme::file_layout) + extents.size() * sizeof(nvme::file_extent);
  const std::size_t taken = (nbytes + begins_at - 1) / begins_at * begins_at;
  const std::shared_ptr<chunk> from = room_for(taken);
  if (from == nullptr) return nullptr;
  std::byte* const at = from->memory.data() + from->used;
  from->used += taken;
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
  std::vector<std::shared_ptr<chunk>> empty;
  std::unique_lock held(mutex_);
  std::erase_if(made_, [](const auto& each) { return each.second.use_count() == 1; });
  const auto middle = std::partition(chunks_.begin(), chunks_.end(), [](const auto& each) { return each.use_count() > 1; });
  std::uint64_t freed = 0;
  for (auto each = middle; each != chunks_.end(); ++each) freed += (*each)->memory.nbytes();
  empty.assign(std::make_move_iterator(middle), std::make_move_iterator(chunks_.end()));
  chunks_.erase(middle, chunks_.end());
  lacks_room_ = false;
  // Outside the lock: this waits for kernels, which may wait for an open.
  held.unlock();
  empty.clear();
  held.lock();
  nbytes_ -= freed;
  if (is_mostly_used()) take(&held, chunk_nbytes);
}

}  // namespace gpufs::store
