// SPDX-License-Identifier: Apache-2.0
#include "nvme_volumes.hpp"

#include <algorithm>
#include <stdexcept>

namespace gpufs::store {
namespace {

constexpr std::size_t most_parts = 32;  // copies are bits of a word, too (read_file.hpp)

[[noreturn]] void refuse(const nvme_volume& as, const std::string& why) {
  throw std::invalid_argument("gpufs: the volume \"" + as.name + "\": " + why);
}

bool is_power_of_two(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

}  // namespace

const nvme_volumes::taken* nvme_volumes::who_has(const nvme_part& part) const {
  for (const taken& each : taken_) {
    for (std::uint32_t i = 0; i < each.column->ncopies(); ++i) {
      if (each.column->part(i).meets(part)) return &each;
    }
  }
  return nullptr;
}

std::string nvme_volumes::mirror_with(const nvme_bytes& file) const {
  for (const auto& column : file.columns()) {
    if (column->ncopies() != 1) continue;
    const taken* const has = who_has(column->part(0));
    if (has != nullptr && has->is_mirror) return has->by;
  }
  return {};
}

void nvme_volumes::check_parts(const nvme_volume& as, const std::vector<std::shared_ptr<nvme_bytes>>& parts) {
  const bool is_mirror = as.kind == nvme_volume_kind::mirror;
  const std::size_t least = is_mirror ? 2 : 1;
  if (parts.size() < least || parts.size() > most_parts) {
    refuse(as, std::string("a ") + (is_mirror ? "mirror" : "stripe") + " has " + std::to_string(least) + " to " +
                   std::to_string(most_parts) + " parts, and this one " + std::to_string(parts.size()));
  }
  if (!is_power_of_two(as.unit_nbytes) || as.unit_nbytes < 4096) {
    refuse(as, "unit_nbytes is a power of two, 4,096 at least, and not " + std::to_string(as.unit_nbytes));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const nvme_bytes& part = *parts[i];
    const nvme_column& column = *part.columns().front();
    if (part.columns().size() != 1 || (is_mirror && column.ncopies() != 1)) {
      refuse(as, as.parts[i] + " is a volume itself: only mirrors may be parts, and only of stripes");
    }
    if (column.ncopies() != parts.front()->columns().front()->ncopies()) {
      refuse(as, "all parts of a stripe have as many copies: " + as.parts[i] + " has " + std::to_string(column.ncopies()));
    }
    if (is_mirror && part.nbytes() != parts.front()->nbytes()) {
      refuse(as, "the parts of a mirror are equally long: " + as.parts[i] + " has " + std::to_string(part.nbytes()) +
                     " bytes, and " + as.parts[0] + " " + std::to_string(parts[0]->nbytes()) +
                     "; partitions of one size may take their place");
    }
    if (part.nbytes() < as.unit_nbytes) {
      refuse(as, as.parts[i] + " has " + std::to_string(part.nbytes()) + " bytes, fewer than a unit: choose unit_nbytes smaller");
    }
    for (std::uint32_t copy = 0; copy < column.ncopies(); ++copy) {
      const std::uint32_t block = column.part(copy).space->facts.block_nbytes;
      if (as.unit_nbytes < block) {
        refuse(as, as.parts[i] + " has blocks of " + std::to_string(block) + " bytes: choose unit_nbytes as large at least");
      }
    }
  }
}

std::shared_ptr<nvme_bytes> nvme_volumes::make(const nvme_volume& as, const std::vector<std::shared_ptr<nvme_bytes>>& parts,
                                               simt::device_memory& memory) {
  check_parts(as, parts);
  const bool is_mirror = as.kind == nvme_volume_kind::mirror;
  const std::size_t before = taken_.size();
  std::vector<std::shared_ptr<nvme_column>> columns;
  std::vector<nvme_part> copies;
  std::uint64_t least = ~std::uint64_t{0};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::shared_ptr<nvme_column>& column = parts[i]->columns().front();
    const auto same = std::find_if(taken_.begin(), taken_.end(), [&](const taken& each) { return each.column == column; });
    if (column->ncopies() > 1 && same->by == as.parts[i]) {
      same->by = as.name;  // a mirror is part of one stripe
    } else if (const taken* const has = who_has(column->part(0)); has != nullptr) {
      refuse(as, as.parts[i] + " has bytes that " + (has->by == as.name ? "another part" : "\"" + has->by + "\"") +
                     " has already: name each once");
    } else {
      taken_.push_back({column, as.name, is_mirror});
    }
    columns.push_back(column);
    least = std::min(least, parts[i]->nbytes());
    copies.push_back(column->part(0));
  }
  if (is_mirror) {
    columns.assign(1, std::make_shared<nvme_column>(copies, memory.machine()));
    taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(before), taken_.end());
    taken_.push_back({columns.front(), as.name, true});
  }
  std::uint32_t shift = 0;
  while (1u << shift < as.unit_nbytes) ++shift;
  if (!is_mirror) least = least >> shift << shift;
  if (least > most_file_nbytes / columns.size()) refuse(as, "it would have more bytes than a file can have: choose smaller parts");
  return std::make_shared<nvme_bytes>(columns, shift, columns.size() * least, memory);
}

}  // namespace gpufs::store
