// SPDX-License-Identifier: Apache-2.0
#include "queue_memory.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "gpufs/nvme/detail/prp.hpp"
#include "gpufs/simt/atomic.hpp"
#include "registers.hpp"

namespace gpufs::nvme {

queue_memory::queue_memory(controller_access& access, simt::platform& machine, const queue_options& options)
    : memory_(machine),
      submissions_(access, machine, std::size_t{options.nslots} * sizeof(submission)),
      completions_(access, machine, std::size_t{options.nslots} * sizeof(completion)),
      lists_(access, machine, std::size_t{options.nslots} * list_pages_for(options.command_nbytes) * bus_page_nbytes),
      buffers_(access, machine, std::size_t{options.nslots - 1} * options.buffer_nbytes),
      page_lists_(access, machine, 2 * bus_page_nbytes),
      given_up_(machine, sizeof(std::uint64_t)),
      zeros_(options.nslots) {
  const std::uint32_t nrecords = options.nslots - 1;
  std::vector<std::uint64_t> free((nrecords + 63) / 64, ~std::uint64_t{0});
  if (nrecords % 64 != 0) free.back() >>= 64 - nrecords % 64;
  const auto bell = [&](std::uint32_t n) { return access.doorbell(at::doorbells + n * options.doorbell_stride); };
  layout_ = {
      .commands = reinterpret_cast<submission*>(submissions_.data()),
      .completions = reinterpret_cast<completion*>(completions_.data()),
      .command_bell = bell(2 * options.id),
      .completion_bell = bell(2 * options.id + 1),
      .given_up = reinterpret_cast<std::uint64_t*>(given_up_.data()),
      .words = memory_.allocate<queue_words>(1),
      .published = memory_.allocate<std::uint64_t>(options.nslots),
      .free_records = memory_.allocate(free),
      .records = memory_.allocate<std::uint64_t>(nrecords),
      .lists = lists_.layout(),
      .buffers = buffers_.layout(),
      .nslots = options.nslots,
      .nentries = options.nslots,
      .nrecords = nrecords,
      .list_pages = list_pages_for(options.command_nbytes),
      .buffer_nbytes = options.buffer_nbytes,
      .id = options.id,
  };
  close();
}

std::uint64_t queue_memory::page_list(const dma_region& queue) {
  const std::size_t at = &queue == &submissions_ ? 0 : bus_page_nbytes;
  for (std::size_t i = 0; i < queue.npages(); ++i) {
    const std::uint64_t page = queue.page_at(i * bus_page_nbytes);
    std::memcpy(page_lists_.data() + at + 8 * i, &page, sizeof page);
  }
  return page_lists_.page_at(at);
}

void queue_memory::close(gate_state as) { set(layout_.words->gate, as); }

bool queue_memory::is_empty_by(clock::time_point until) const {
  // Between the gate and the look at who is inside, as the fence of look_from_inside stands between its two: meets that.
  simt::fence(std::memory_order_seq_cst, simt::scope::system);
  const auto is_zero = [&](const std::uint32_t& word) {
    while (memory_.read_one(&word) != 0) {  // meets the releases of leave and poll
      if (clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  };
  return is_zero(layout_.words->users) && is_zero(layout_.words->polling);
}

void queue_memory::begin_anew() {
  std::memset(completions_.data(), 0, completions_.nbytes());
  // By a copy of zeros: CUDA zeroes memory by a kernel, which would wait for those that fill the device, and they for this.
  memory_.write(layout_.published, std::span<const std::uint64_t>(zeros_));
  queue_words& words = *layout_.words;
  // One by one: whoever finds the gate closed may be adding itself to `users`, and taking itself away, meanwhile.
  set(words.tail, std::uint64_t{0});
  set(words.head, std::uint64_t{0});
  set(words.rung, std::uint64_t{0});
  set(words.taken, std::uint64_t{0});
  set(words.told, std::uint64_t{0});
  set(words.epoch, memory_.read_one(&words.epoch) + 1);
}

// Meets gate_error's acquire: words and memory are those of the new queues.
void queue_memory::open() { set(layout_.words->gate, gate_state::open); }

std::vector<std::uint32_t> queue_memory::given_up() const {
  const std::uint32_t epoch = memory_.read_one(&layout_.words->epoch) & record_word::epoch_mask;
  const std::vector<std::uint64_t> records = memory_.read(layout_.records, layout_.nrecords);
  std::vector<std::uint32_t> found;
  for (std::uint32_t id = 0; id < records.size(); ++id) {
    if (record_word::state(records[id]) == record_state::given_up && record_word::epoch(records[id]) == epoch) found.push_back(id);
  }
  return found;
}

bool queue_memory::has_news() {
  // Meets the release of tell_host: the record's word says given_up.
  const std::uint64_t now = std::atomic_ref(*layout_.given_up).load(std::memory_order_acquire);
  return std::exchange(seen_given_up_, now) != now;
}

}  // namespace gpufs::nvme
