// SPDX-License-Identifier: Apache-2.0
// What commands do.
#include <algorithm>
#include <cstring>

#include "dma_region.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "soft_image.hpp"
#include "soft_pair.hpp"

namespace gpufs::nvme {

namespace {

// Status codes: SC, and SCT from bit 8 on.
constexpr std::uint32_t invalid_opcode = 0x01, invalid_field = 0x02, data_transfer_error = 0x04, abort_requested = 0x07,
                        queue_deleted = 0x08, invalid_namespace = 0x0b, invalid_prp_offset = 0x13, lba_out_of_range = 0x80,
                        invalid_completion_queue = 0x100, invalid_queue_id = 0x101, invalid_queue_size = 0x102,
                        invalid_queue_deletion = 0x10c, write_fault = 0x280;
constexpr std::uint32_t dnr = 1u << 14;

}  // namespace

// A command for blocks: its status.
std::uint32_t soft_controller::execute(const command_words& what) {
  const std::uint32_t nsid = what.dword[1];
  if (what.opcode() > 2) return invalid_opcode | dnr;
  if (nsid == 0 || nsid > images_.size()) return invalid_namespace | dnr;
  if (what.opcode() != 0) return transfer(what, what.opcode() == 1);
  ++nflushes_;
  return images_[nsid - 1].flush() == 0 ? 0 : write_fault;
}

std::uint32_t soft_controller::transfer(const command_words& what, bool writes) {
  soft_image& image = images_[what.dword[1] - 1];
  const std::uint64_t lba = what.quad(10), nblocks = (what.dword[12] & 0xffff) + 1;
  const std::uint64_t all = options_.hole + nblocks_[what.dword[1] - 1];
  if (lba > all || nblocks > all - lba) return lba_out_of_range | dnr;
  if (lba < options_.hole) {
    note("blocks of the hole are touched");
    return lba_out_of_range | dnr;
  }
  const std::uint64_t nbytes = nblocks << options_.block_shift;
  if (options_.mdts != 0 && nbytes > 4096ull << options_.mdts) {
    note("a command moves more than MDTS says");
    return invalid_field | dnr;
  }
  std::vector<std::pair<std::byte*, std::uint64_t>> pieces;
  if (const std::uint32_t status = gather(what, nbytes, pieces); status != 0) return status;
  std::uint64_t at = (lba - options_.hole) << options_.block_shift;
  for (const auto& [memory, n] : pieces) {
    if (writes) {
      image.write(at, memory, n, (what.dword[12] >> 30 & 1) != 0);
    } else {
      image.read(at, memory, n);
    }
    at += n;
  }
  return 0;
}

// Base 2.0, section 4.1.1: the first address may have an offset of whole dwords; the second is that of the second page where there
// are two, else that of a list, whose last entry in a page leads to the next page of the list where more addresses follow than fit.
std::uint32_t soft_controller::gather(const command_words& what, std::uint64_t nbytes,
                                      std::vector<std::pair<std::byte*, std::uint64_t>>& pieces) {
  const auto refuse = [&](const char* why, std::uint32_t status) {
    note(why);
    return status | dnr;
  };
  const auto add = [&](std::uint64_t address, std::uint64_t n) {
    std::byte* const memory = at(address, n);
    if (memory != nullptr) pieces.emplace_back(memory, n);
    return memory != nullptr;
  };
  const std::uint64_t first = what.quad(6), second = what.quad(8);
  if (first % 4 != 0) return refuse("PRP1 is no multiple of 4", invalid_prp_offset);
  std::uint64_t n = std::min<std::uint64_t>(nbytes, 4096 - first % 4096);
  if (!add(first, n)) return refuse("PRP1 is no memory", data_transfer_error);
  std::uint64_t left = nbytes - n;
  if (left == 0) return 0;
  if (left <= 4096) {
    if (second % 4096 != 0) return refuse("PRP2 begins no page", invalid_prp_offset);
    return add(second, left) ? 0 : refuse("PRP2 is no memory", data_transfer_error);
  }
  std::uint64_t list = second;
  if (list % 8 != 0) return refuse("a list is no multiple of 8", invalid_prp_offset);
  while (left != 0) {
    const std::byte* const entry = at(list, 8);
    if (entry == nullptr) return refuse("a list is no memory", data_transfer_error);
    std::uint64_t address;
    std::memcpy(&address, entry, 8);
    if (list % 4096 == 4088 && left > 4096) {
      list = address;
      if (list % 4096 != 0) return refuse("a list's next page begins none", invalid_prp_offset);
      continue;
    }
    if (address % 4096 != 0) return refuse("an entry of a list begins no page", invalid_prp_offset);
    n = std::min<std::uint64_t>(left, 4096);
    if (!add(address, n)) return refuse("an entry of a list is no memory", data_transfer_error);
    left -= n;
    list += 8;
  }
  return 0;
}

void soft_controller::execute_admin(const command_words& what, std::uint32_t& status, std::uint32_t& result) {
  switch (what.opcode()) {
    case 0x00:
      status = remove(what, true);
      break;
    case 0x04:
      status = remove(what, false);
      break;
    case 0x01:
      status = create(what, true);
      break;
    case 0x05:
      status = create(what, false);
      break;
    case 0x06:
      status = identify(what);
      break;
    case 0x08: {
      const std::uint32_t queue = what.dword[10] & 0xffff;
      const auto found = std::find_if(working_.begin(), working_.end(), [&](const work& each) {
        return each.queue == queue && queue != 0 && each.what.id() == what.dword[10] >> 16 && each.due_ns != ended;
      });
      result = found == working_.end() ? 1 : 0;
      if (found != working_.end() && !post(queue, found->what.id(), abort_requested, 0)) result = 1;
      if (result == 0) found->due_ns = ended;
      break;
    }
    case 0x09:
      if ((what.dword[10] & 0xff) != 7) {
        status = invalid_field | dnr;
      } else {
        if (submissions_.size() > 1 || completions_.size() > 1) note("a number of queues is asked for when there are some");
        const std::uint32_t granted = options_.nqueues - 1;
        result = std::min(granted, what.dword[11] & 0xffff) | std::min(granted, what.dword[11] >> 16) << 16;
      }
      break;
    default:
      status = invalid_opcode | dnr;
  }
}

std::uint32_t soft_controller::create(const command_words& what, bool of_submissions) {
  const std::uint32_t id = what.dword[10] & 0xffff, n = (what.dword[10] >> 16) + 1;
  const std::uint32_t entry_nbytes = of_submissions ? 64 : 16;
  const bool known = of_submissions ? submissions_.count(id) != 0 : completions_.count(id) != 0;
  if (id == 0 || id > options_.nqueues || known) return invalid_queue_id | dnr;
  if (n < 2 || n > options_.most_entries) return invalid_queue_size | dnr;
  const std::uint32_t npages = (n * entry_nbytes + 4095) / 4096;
  const bool in_one_piece = (what.dword[11] & 1) != 0;
  if (!in_one_piece && options_.contiguous_queues) return invalid_field | dnr;
  std::vector<std::byte*> pages;
  for (std::uint32_t i = 0; i < npages; ++i) {
    std::uint64_t address = what.quad(6) + std::uint64_t{i} * 4096;
    if (!in_one_piece) {
      const std::byte* const entry = at(what.quad(6) + std::uint64_t{i} * 8, 8);
      if (entry == nullptr) return data_transfer_error | dnr;
      std::memcpy(&address, entry, 8);
    }
    pages.push_back(address % 4096 == 0 ? at(address, 4096) : nullptr);
    if (pages.back() == nullptr) {
      note("a queue is no memory");
      return data_transfer_error | dnr;
    }
  }
  if (of_submissions) {
    const std::uint32_t answers_to = what.dword[11] >> 16;
    if (completions_.count(answers_to) == 0 || answers_to == 0) return invalid_completion_queue | dnr;
    // Threads have no queue in common.
    const bool is_shared = std::any_of(submissions_.begin(), submissions_.end(),
                                       [&](const auto& each) { return each.first != 0 && each.second.completions == answers_to; });
    if (is_shared && !served_.empty()) return invalid_completion_queue | dnr;
    submissions& made = submissions_[id];
    made.page = pages;
    made.n = n;
    made.completions = answers_to;
    store(bell_offset(2 * id), 0);
    if (!served_.empty()) {
      const completions& to = completions_.at(made.completions);
      served_pair& by = *served_[id];
      const std::lock_guard lock(by.mutex);
      by.pair = std::make_unique<soft_pair>(soft_pair_places{id, made.page, to.page, made.n, to.n, word(bell_offset(2 * id)),
                                                             word(bell_offset(2 * made.completions + 1))});
      by.is_there.store(true, std::memory_order_relaxed);
    }
    return 0;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if ((std::to_integer<unsigned>(pages[i / 256][i % 256 * 16 + 14]) & 1) != 0)
      note("a completion queue begins with phases that are not 0");
  }
  completions& made = completions_[id];
  made.page = pages;
  made.n = n;
  store(bell_offset(2 * id + 1), 0);
  return 0;
}

std::uint32_t soft_controller::remove(const command_words& what, bool of_submissions) {
  const std::uint32_t id = what.dword[10] & 0xffff;
  if (id == 0 || (of_submissions ? submissions_.count(id) == 0 : completions_.count(id) == 0)) return invalid_queue_id | dnr;
  if (!of_submissions) {
    for (const auto& [queue, each] : submissions_) {
      if (queue != 0 && each.completions == id) return invalid_queue_deletion | dnr;
    }
    completions_.erase(id);
    store(bell_offset(2 * id + 1), 0);
    return 0;
  }
  if (!served_.empty()) end_served(id, queue_deleted);
  for (std::deque<work>* const some : {&working_, &stuck_}) {
    for (work& each : *some) {
      if (each.queue == id && each.due_ns != ended) post(id, each.what.id(), queue_deleted, 0);
      if (each.queue == id) each.due_ns = ended;
    }
  }
  std::erase_if(stuck_, [](const work& each) { return each.due_ns == ended; });
  submissions_.erase(id);
  store(bell_offset(2 * id), 0);
  return 0;
}

std::uint32_t soft_controller::identify(const command_words& what) {
  std::byte* const page = what.quad(6) % 4096 == 0 ? at(what.quad(6), 4096) : nullptr;
  if (page == nullptr) return data_transfer_error | dnr;
  std::memset(page, 0, 4096);
  const auto put = [&](std::size_t offset, auto value) { std::memcpy(page + offset, &value, sizeof value); };
  const std::uint32_t nsid = what.dword[1];
  switch (what.dword[10] & 0xff) {
    case 0:
      if (nsid == 0 || nsid > images_.size()) return invalid_namespace | dnr;
      for (const std::size_t offset : {0, 8, 16}) put(offset, options_.hole + nblocks_[nsid - 1]);
      put(26, std::uint8_t{1});  // the second of its formats
      put(25, std::uint8_t{1});
      put(128, std::uint32_t{12u << 16});
      put(132, std::uint32_t{options_.block_shift << 16 | (options_.metadata ? 8u : 0u)});
      return 0;
    case 1:
      std::memset(page + 4, ' ', 60);
      std::memcpy(page + 4, "soft", 4);
      std::memcpy(page + 24, "gpufs-nvme-soft", 15);
      put(77, static_cast<std::uint8_t>(options_.mdts));
      put(258, std::uint8_t{3});
      put(512, std::uint8_t{0x66});
      put(513, std::uint8_t{0x44});
      put(516, static_cast<std::uint32_t>(images_.size()));
      put(525, std::uint8_t{1});
      return 0;
    case 2: {
      std::size_t at_entry = 0;
      for (std::uint32_t id = nsid + 1; id <= images_.size(); ++id, at_entry += 4) put(at_entry, id);
      return 0;
    }
    default:
      return invalid_field | dnr;
  }
}

}  // namespace gpufs::nvme
