// SPDX-License-Identifier: Apache-2.0
#include "left_pages.hpp"

#include <unordered_map>

#include "gpufs/cache/detail/frames.hpp"

namespace gpufs {

left_pages::unwritten left_pages::write_back(bool stopped, bool finished) const {
  const auto slots = slots_.used();
  unwritten result = write_pages(slots, stopped);
  result.lost += note_written_in_place(slots);
  if (finished) return result;
  for (const cache::dirty_list& list : lists()) result.lost += list.lock > 1;  // refused when it stopped, or not
  return result;
}

std::uint64_t left_pages::untold_errors() const {
  std::uint64_t n = 0;
  for (const file_slot& slot : slots_.used()) n += slot_reader::is_open(slot) && slot.write_error != 0;
  return n;
}

std::uint64_t left_pages::still_mapped() const {
  std::uint64_t n = 0;
  for (const cache::twin_state& twin : memory_.read(mount_.cache.dirty.twins, mount_.cache.frames.nframes)) n += twin.count != 0;
  return n;
}

std::vector<cache::dirty_list> left_pages::lists() const {
  std::vector<cache::dirty_list> all;
  for (const file_block* const block : files_.blocks()) {
    const auto part = memory_.read(&static_cast<const writable_block*>(block)->lists[0][0], block_slots * lists_per_slot);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Of files that kernels have not closed.
std::uint64_t left_pages::note_written_in_place(const std::vector<file_slot>& slots) const {
  std::uint64_t lost = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const file_slot& slot = slots[i];
    if (!slot_reader::is_open(slot) || slot.in_place_nbytes == 0) continue;
    if (host_.note_written_in_place(slot.handle, static_cast<std::int64_t>(slot.in_place_nbytes)) == 0) continue;
    ++lost;  // as in a kernel's sync (sync_on_host): the mapping is not used any more
    const std::uint64_t none = 0;
    file_slot& on_device = files_.block_of(static_cast<std::uint32_t>(i))->slots[i % block_slots];
    memory_.write_one(&on_device.bytes.mapped_nbytes, none);
    memory_.write_one(&on_device.in_place_nbytes, none);
  }
  return lost;
}

left_pages::unwritten left_pages::write_pages(const std::vector<file_slot>& slots, bool stopped) const {
  std::uint64_t dirty = slots_.words().dirty_pages;
  unwritten result;
  if (dirty == 0) return result;
  const cache::frame_storage& frames = mount_.cache.frames;
  auto states = memory_.read(frames.states, frames.nframes);
  const auto keys = memory_.read(frames.keys, frames.nframes);
  std::unordered_map<std::uint32_t, std::size_t> open_slots;  // by cache id
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slot_reader::is_open(slots[i])) open_slots[slots[i].cache_id] = i;
  }
  auto lists = this->lists();
  const auto stays = [&](const cache::dirty_list& list) { return !stopped && list.lock > 1; };  // dirty_pages::is_lost
  const std::size_t mask_nwords = page_nbytes() / 64;
  auto* masks = reinterpret_cast<std::uint64_t*>(mount_.cache.dirty.masks);
  for (std::uint32_t f = 0; f < frames.nframes; ++f) {
    if ((states[f] & cache::frame_state::listed) == 0) continue;
    const cache::page_key key{cache::sealed(keys[f], states[f])};
    const auto mask = memory_.read(masks + f * mask_nwords, mask_nwords);
    const auto bytes =
        memory_.read(reinterpret_cast<const std::uint64_t*>(frames.data + std::size_t{f} * page_nbytes()), page_nbytes() / 8);
    const auto slot = open_slots.find(cache::cache_id_of(key));
    if (slot != open_slots.end() && stays(lists[slot->second * lists_per_slot + f % lists_per_slot])) {
      ++result.left;
      continue;
    }
    const std::uint64_t offset = cache::page_number_of(key) << frames.page_shift;
    result.lost +=
        slot == open_slots.end() || write_runs(slots[slot->second].handle, std::as_bytes(std::span(bytes)), mask, offset) != 0;
    if (!stopped) keep_twin(f, bytes, mask);
    memory_.zero(masks + f * mask_nwords, mask_nwords);
    states[f] &= ~(cache::frame_state::dirty | cache::frame_state::listed);
    memory_.write_one(frames.states + f, states[f]);
    --dirty;
  }
  // The remaining pages belong to write-backs that the host has not answered: they stay dirty, and their lists stay lost.
  for (cache::dirty_list& list : lists) {
    if (!stays(list)) list.head = 0;
  }
  const std::size_t nlists = block_slots * lists_per_slot;
  const auto blocks = files_.blocks();
  for (std::size_t i = 0; (i + 1) * nlists <= lists.size(); ++i)
    memory_.write(&static_cast<writable_block*>(blocks[i])->lists[0][0],
                  std::span<const cache::dirty_list>(&lists[i * nlists], nlists));
  memory_.write_one(&mount_.words->dirty_pages, dirty);
  return result;
}

// A page may be mapped for writing over several kernels: as a write-back of theirs (hold_twin), this one leaves in the twin what
// it has sent.
void left_pages::keep_twin(std::uint32_t f, const std::vector<std::uint64_t>& bytes, const std::vector<std::uint64_t>& mask) const {
  static_assert(sizeof(cache::twin_state) == 2 * sizeof(std::uint64_t));
  const auto twin = memory_.read_one(mount_.cache.dirty.twins + f);
  if (twin.count == 0 || twin.twin >= mount_.cache.frames.nframes) return;
  auto* at = reinterpret_cast<std::uint64_t*>(mount_.cache.frames.data + std::size_t{twin.twin} * page_nbytes());
  auto kept = memory_.read(at, bytes.size());
  const auto sent = std::as_bytes(std::span(bytes));
  const auto to = std::as_writable_bytes(std::span(kept));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if ((mask[i / 64] >> i % 64 & 1) != 0) to[i] = sent[i];
  }
  memory_.write(at, std::span<const std::uint64_t>(kept));
}

int left_pages::write_runs(std::uint32_t handle, std::span<const std::byte> bytes, const std::vector<std::uint64_t>& mask,
                           std::uint64_t offset) const {
  const auto is_set = [&](std::size_t i) { return (mask[i / 64] >> i % 64 & 1) != 0; };
  int error = 0;
  for (std::size_t begin = 0; begin < bytes.size();) {
    std::size_t end = begin;
    while (end < bytes.size() && is_set(end)) ++end;
    if (end != begin) {
      const int failed = host_.write(handle, bytes.subspan(begin, end - begin), static_cast<std::int64_t>(offset + begin));
      error = error != 0 ? error : failed;
    }
    begin = end + 1;
  }
  return error;
}

}  // namespace gpufs
