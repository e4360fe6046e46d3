// SPDX-License-Identifier: Apache-2.0
// Ids for versions of files: the page cache makes its keys of them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "gpufs/store/store.hpp"

namespace gpufs::service {

// An unchanged file keeps its id between opens, so its pages are found again; a changed file gets a new id, and its old pages age
// out. If a version is not settled, now or when its id was given, equal stamps prove nothing: each such open gets a new id. A file
// that is opened from another byte on (file_info::begin) has other pages, and an id of its own. No id is given to two different
// versions. Remembers about the `capacity` files that were opened last (some 120 bytes each). A large table has parts with locks of
// their own, because each open comes here.
class cache_ids {
 public:
  static constexpr std::uint32_t last_id = (1u << 28) - 1;

  explicit cache_ids(std::uint32_t first_id = 1, std::size_t capacity = 1u << 20)
      : next_(first_id), parts_(capacity < 1024 * nparts ? 1 : nparts), part_capacity_(capacity / parts_.size()) {}

  // The id of the version, 1 .. last_id; 0 if all ids have been given.
  std::uint32_t id_of(const store::file_info& file);
  // A new id, for a file that is open for writing; results as id_of.
  std::uint32_t fresh() { return next_id(); }

 private:
  static constexpr std::size_t nparts = 64;
  struct identity {
    std::uint64_t device, inode;
    std::int64_t begin;
    bool operator==(const identity&) const = default;
  };
  struct hash {
    std::size_t operator()(const identity& i) const {
      return static_cast<std::size_t>(
          (i.inode ^ (i.device + static_cast<std::uint64_t>(i.begin)) * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu >> 7);
    }
  };
  struct known {
    identity file;
    std::int64_t nbytes;
    std::uint64_t mtime_ns, ctime_ns;
    bool settled;
    std::uint32_t id;
  };

  struct alignas(64) part {
    std::mutex lock;
    std::list<known> by_use;  // most recent first
    std::unordered_map<identity, std::list<known>::iterator, hash> files;
  };

  std::uint32_t next_id();

  std::atomic<std::uint64_t> next_;  // wide enough never to come round
  std::vector<part> parts_;
  const std::size_t part_capacity_;
};

}  // namespace gpufs::service
