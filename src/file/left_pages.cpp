// SPDX-License-Identifier: Apache-2.0
#include "left_pages.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "../transport/mask_runs.hpp"
#include "gpufs/cache/detail/frames.hpp"

namespace gpufs {
namespace {

// Joins runs of bytes that follow each other in a file into one write.
class left_writer {
 public:
  explicit left_writer(service::service& host) : host_(host) {}

  // Adds bytes of page number `page`. All bytes of a page must be added before the next page. They must stay until finish().
  void add(std::uint32_t handle, std::uint64_t offset, std::span<const std::byte> bytes, std::size_t page) {
    if (!runs_.empty() && (handle != handle_ || offset != end_ || joined_.size() >= most_joined)) write();
    handle_ = handle;
    end_ = offset + bytes.size();
    runs_.push_back({offset, bytes, page});
    joined_.insert(joined_.end(), bytes.begin(), bytes.end());
  }
  void lose(std::size_t page) {
    nlost_ += page != last_lost_;
    last_lost_ = page;
  }
  // Writes the rest. Returns how many pages are lost.
  std::uint64_t finish() {
    write();
    return nlost_;
  }

 private:
  static constexpr std::size_t most_joined = 1 << 20;
  struct run {
    std::uint64_t offset;
    std::span<const std::byte> bytes;
    std::size_t page;
  };

  void write() {
    if (runs_.empty()) return;
    const bool failed = host_.write(handle_, joined_, static_cast<std::int64_t>(runs_.front().offset)) != 0;
    if (failed && runs_.size() == 1) lose(runs_.front().page);
    if (failed && runs_.size() > 1) {  // writes the runs one by one: those before the error may be there, and others may succeed
      for (const run& one : runs_) {
        if (host_.write(handle_, one.bytes, static_cast<std::int64_t>(one.offset)) != 0) lose(one.page);
      }
    }
    runs_.clear();
    joined_.clear();
  }

  service::service& host_;
  std::uint32_t handle_ = 0;
  std::uint64_t end_ = 0;
  std::vector<run> runs_;
  std::vector<std::byte> joined_;
  std::uint64_t nlost_ = 0;
  std::size_t last_lost_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace

left_pages::unwritten left_pages::write_back(bool stopped, bool finished) const {
  const auto slots = slots_.used();
  unwritten result = write_pages(slots, stopped);
  result.lost += note_written_in_place(slots);
  if (finished) return result;
  for (const cache::dirty_list& list : lists()) result.lost += list.lock > 1;  // its request was refused at the stop, or not
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

// Called for files that kernels have not closed.
std::uint64_t left_pages::note_written_in_place(const std::vector<file_slot>& slots) const {
  std::uint64_t lost = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const file_slot& slot = slots[i];
    if (!slot_reader::is_open(slot) || slot.in_place_nbytes == 0) continue;
    if (host_.note_written_in_place(slot.handle, static_cast<std::int64_t>(slot.in_place_nbytes)) == 0) continue;
    ++lost;  // as in a kernel's sync (sync_on_host): the mapping is no longer used
    const std::uint64_t none = 0;
    file_slot& on_device = files_.block_of(static_cast<std::uint32_t>(i))->slots[i % block_slots];
    memory_.write_one(&on_device.bytes.mapped_nbytes, none);
    memory_.write_one(&on_device.in_place_nbytes, none);
  }
  return lost;
}

// Goes through the frames in stretches. The bytes, masks and twins of a stretch come to the host by one copy each.
left_pages::unwritten left_pages::write_pages(const std::vector<file_slot>& slots, bool stopped) const {
  const std::uint64_t dirty = slots_.words().dirty_pages;
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
  const auto is_listed = [&](std::uint32_t f) { return (states[f] & cache::frame_state::listed) != 0; };
  constexpr std::uint32_t most_apart = 16;  // frames: a smaller gap costs less than a separate copy
  const std::uint32_t most = std::max<std::uint32_t>(1, (8u << 20) >> frames.page_shift);
  std::uint64_t nwritten = 0;
  for (std::uint32_t first = 0; first < frames.nframes; ++first) {
    if (!is_listed(first)) continue;
    std::uint32_t end = first + 1;
    for (std::uint32_t f = end; f < frames.nframes && f - first < most && f - end < most_apart; ++f) {
      if (is_listed(f)) end = f + 1;
    }
    std::vector<left_page> pages;
    for (std::uint32_t f = first; f < end; ++f) {
      if (!is_listed(f)) continue;
      const cache::page_key key{cache::sealed(keys[f], states[f])};
      const std::uint64_t number = cache::page_number_of(key);
      const auto slot = open_slots.find(cache::cache_id_of(key));
      const bool known = slot != open_slots.end();
      if (known && stays(lists[slot->second * lists_per_slot + list_of_page(number, frames.page_shift)])) {
        ++result.left;
        continue;
      }
      pages.push_back({known ? &slots[slot->second] : nullptr, number << frames.page_shift, f});
      states[f] &= ~(cache::frame_state::dirty | cache::frame_state::listed);
    }
    result.lost += write_stretch(first, end, pages, !stopped);
    memory_.write(frames.states + first, std::span<const std::uint64_t>(&states[first], end - first));
    nwritten += pages.size();
    first = end - 1;
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
  memory_.write_one(&mount_.words->dirty_pages, dirty - nwritten);
  return result;
}

// Writes pages of the frames [first, end), and clears their masks. Returns how many are lost, in part or whole. keeps_twins: a page
// may stay mapped for writing over several kernels. So, like a kernel's write-back (hold_twin), this one copies the bytes that it
// has sent into the twin.
std::uint64_t left_pages::write_stretch(std::uint32_t first, std::uint32_t end, std::vector<left_page>& pages,
                                        bool keeps_twins) const {
  static_assert(sizeof(cache::twin_state) == 2 * sizeof(std::uint64_t));
  if (pages.empty()) return 0;
  const std::size_t nbytes = page_nbytes(), mask_nwords = nbytes / 32, n = end - first;
  auto* const masks_at = mount_.cache.dirty.masks + first * mask_nwords;
  auto* const bytes_at = mount_.cache.frames.data + first * nbytes;
  auto masks = memory_.read(masks_at, n * mask_nwords);
  const auto bytes = memory_.read(bytes_at, n * nbytes);
  const auto twins = keeps_twins ? memory_.read(mount_.cache.dirty.twins + first, n) : std::vector<cache::twin_state>();
  std::sort(pages.begin(), pages.end(),
            [](const left_page& a, const left_page& b) { return std::tie(a.slot, a.offset) < std::tie(b.slot, b.offset); });
  left_writer writer(host_);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const left_page& page = pages[i];
    const std::size_t k = page.frame - first;
    const std::span mask = std::span(masks).subspan(k * mask_nwords, mask_nwords);
    const std::span data = std::span(bytes).subspan(k * nbytes, nbytes);
    if (page.slot == nullptr) writer.lose(i);
    if (page.slot != nullptr) {
      transport::each_run(mask, 0, page_nbytes(), [&](std::uint32_t begin, std::uint32_t last) {
        writer.add(page.slot->handle, page.offset + begin, data.subspan(begin, last - begin), i);
        return 0;
      });
    }
    if (keeps_twins) keep_twin(twins[k], data, mask);
    std::fill(mask.begin(), mask.end(), 0);
  }
  const std::uint64_t lost = writer.finish();
  memory_.write(masks_at, std::span<const std::uint32_t>(masks));
  return lost;
}

void left_pages::keep_twin(const cache::twin_state& twin, std::span<const std::byte> sent,
                           std::span<const std::uint32_t> mask) const {
  if (twin.count == 0 || twin.twin >= mount_.cache.frames.nframes) return;
  auto* const at = mount_.cache.frames.data + std::size_t{twin.twin} * page_nbytes();
  auto kept = memory_.read(at, page_nbytes());
  transport::each_run(mask, 0, page_nbytes(), [&](std::uint32_t begin, std::uint32_t end) {
    std::copy(sent.begin() + begin, sent.begin() + end, kept.begin() + begin);
    return 0;
  });
  memory_.write(at, std::span<const std::byte>(kept));
}

}  // namespace gpufs
