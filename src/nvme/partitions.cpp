// SPDX-License-Identifier: Apache-2.0
#include "partitions.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpufs::nvme {
namespace {

constexpr std::uint64_t most_table_nbytes = 1 << 20;
constexpr std::size_t most_why_nbytes = 500;

template <class T>
T field(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// As of Ethernet: reflected, 0xedb88320.
std::uint32_t crc_of(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0u;
  for (const std::byte each : bytes) {
    crc ^= static_cast<std::uint32_t>(each);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

// Reads one table. Members say what is wrong with it, or nothing.
class reader {
 public:
  reader(std::uint64_t nblocks, std::uint32_t block_nbytes, const std::function<int(std::uint64_t, std::span<std::byte>)>& read)
      : nblocks_(nblocks), block_nbytes_(block_nbytes), read_(read) {}

  partition_table table() {
    std::vector<std::byte> mbr;
    if (nblocks_ == 0) return {};
    if (const std::string wrong = get(0, 1, mbr); !wrong.empty()) return {{}, wrong};
    if (field<std::uint16_t>(mbr, 510) != 0xaa55) return {};
    bool is_gpt = false;
    for (std::size_t at = 446; at < 510; at += 16) {
      if ((field<std::uint8_t>(mbr, at) & 0x7f) != 0) return {};  // the first block of a file system, say
      is_gpt = is_gpt || field<std::uint8_t>(mbr, at + 4) == 0xee;
    }
    if (is_gpt) {
      if (const std::string first = take_gpt(1); !first.empty()) {
        const std::string last = take_gpt(nblocks_ - 1);
        if (!last.empty()) return {{}, "its partition table (GPT) is damaged: " + first + "; and the backup's " + last};
      }
    } else {
      take_mbr(mbr);
    }
    drop_wrong_ones();
    drop_too_many();
    return {std::move(all_), std::move(why_)};
  }

 private:
  std::string get(std::uint64_t lba, std::uint64_t n, std::vector<std::byte>& to) const {
    to.resize(n * block_nbytes_);
    const int error = read_(lba, to);
    if (error == 0) return {};
    // -EOPNOTSUPP: nvme::controller::read has no queue.
    return error == -EOPNOTSUPP ? "the host has no pair of queues to read its partition table by: the controller grants one only"
                                : "block " + std::to_string(lba) + " cannot be read: " + std::strerror(-error);
  }

  void take_mbr(std::span<const std::byte> mbr) {
    first_ = 1;
    last_ = nblocks_ - 1;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::span entry = mbr.subspan(446 + 16 * i, 16);
      const auto type = field<std::uint8_t>(entry, 4);
      const auto n = field<std::uint32_t>(entry, 12);
      if (type == 0 || n == 0) continue;
      if (type == 0x05 || type == 0x0f || type == 0x85) {
        say("partition " + std::to_string(i + 1) + " is an extended one, whose parts are not read");
      } else {
        all_.push_back({i + 1, field<std::uint32_t>(entry, 8), n});
      }
    }
  }

  std::string take_gpt(std::uint64_t lba) {
    std::vector<std::byte> header, entries;
    if (lba == 0 || lba >= nblocks_) return "its header is beyond the end";
    if (std::string wrong = get(lba, 1, header); !wrong.empty()) return wrong;
    if (std::memcmp(header.data(), "EFI PART", 8) != 0) return "its header is none";
    const auto header_nbytes = field<std::uint32_t>(header, 12), crc = field<std::uint32_t>(header, 16);
    if (header_nbytes < 92 || header_nbytes > block_nbytes_) return "its header has an odd length";
    std::memset(header.data() + 16, 0, 4);
    if (crc_of(std::span(header).first(header_nbytes)) != crc) return "its header's CRC is another one";
    if (field<std::uint64_t>(header, 24) != lba) return "its header belongs to another block";
    const auto first = field<std::uint64_t>(header, 40), last = field<std::uint64_t>(header, 48);
    const auto begin = field<std::uint64_t>(header, 72);
    const std::uint64_t n = field<std::uint32_t>(header, 80), entry_nbytes = field<std::uint32_t>(header, 84);
    if (first > last || last >= nblocks_) return "it covers blocks that there are not";
    if (entry_nbytes < 128 || (entry_nbytes & (entry_nbytes - 1)) != 0 || n * entry_nbytes > most_table_nbytes) {
      return "its entries have an odd length, or are too many";
    }
    const std::uint64_t nblocks = (n * entry_nbytes + block_nbytes_ - 1) / block_nbytes_;
    if (begin == 0 || begin >= nblocks_ || nblocks > nblocks_ - begin) return "its entries are beyond the end";
    if (std::string wrong = get(begin, nblocks, entries); !wrong.empty()) return wrong;
    if (crc_of(std::span(entries).first(n * entry_nbytes)) != field<std::uint32_t>(header, 88)) {
      return "its entries' CRC is another one";
    }
    first_ = first;
    last_ = last;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::span entry = std::span<const std::byte>(entries).subspan(i * entry_nbytes, entry_nbytes);
      if (field<std::uint64_t>(entry, 0) == 0 && field<std::uint64_t>(entry, 8) == 0) continue;  // of no type
      // An end before its beginning is a length that wraps, and so out of range.
      all_.push_back(
          {i + 1, field<std::uint64_t>(entry, 32), field<std::uint64_t>(entry, 40) - field<std::uint64_t>(entry, 32) + 1});
    }
    return {};
  }

  void drop_wrong_ones() {
    std::erase_if(all_, [&](const partition& each) {
      const bool is_in = each.nblocks != 0 && each.first >= first_ && each.first <= last_ && each.nblocks - 1 <= last_ - each.first;
      if (!is_in) say("partition " + std::to_string(each.number) + " is not within the blocks that partitions may have");
      return !is_in;
    });
    std::vector<partition> in_order = all_;
    std::sort(in_order.begin(), in_order.end(), [](const partition& a, const partition& b) { return a.first < b.first; });
    std::vector<std::uint32_t> meet;
    const partition* furthest = nullptr;  // whoever meets an earlier one meets the one that ends last of those
    for (const partition& each : in_order) {
      if (furthest != nullptr && each.first < furthest->first + furthest->nblocks) {
        meet.insert(meet.end(), {furthest->number, each.number});
        say("partitions " + std::to_string(furthest->number) + " and " + std::to_string(each.number) + " have blocks in common");
      }
      if (furthest == nullptr || each.first + each.nblocks > furthest->first + furthest->nblocks) furthest = &each;
    }
    std::sort(meet.begin(), meet.end());
    std::erase_if(all_, [&](const partition& each) { return std::binary_search(meet.begin(), meet.end(), each.number); });
  }
  void drop_too_many() {
    if (all_.size() <= most_partitions) return;
    const std::string first = std::to_string(all_[most_partitions].number);
    all_.erase(all_.begin() + most_partitions, all_.end());
    why_.insert(0, "partitions from number " + first + " on are not there, as " + std::to_string(most_partitions) +
                       " of a namespace are the most" + (why_.empty() ? "" : "; "));
  }

  void say(const std::string& what) {
    if (why_.size() > most_why_nbytes) return;
    why_ += (why_.empty() ? "" : "; ") + what;
    if (why_.size() > most_why_nbytes) why_.replace(most_why_nbytes, std::string::npos, " ...");
  }

  const std::uint64_t nblocks_;
  const std::uint32_t block_nbytes_;
  const std::function<int(std::uint64_t, std::span<std::byte>)>& read_;
  std::uint64_t first_ = 0, last_ = 0;  // the blocks that partitions may have
  std::vector<partition> all_;
  std::string why_;
};

}  // namespace

partition_table read_partitions(std::uint64_t nblocks, std::uint32_t block_nbytes,
                                const std::function<int(std::uint64_t, std::span<std::byte>)>& read) {
  return reader(nblocks, block_nbytes, read).table();
}

}  // namespace gpufs::nvme
