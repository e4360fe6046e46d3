// SPDX-License-Identifier: Apache-2.0
// Mappings: what all pointers into an open file share, in device memory. A pointer names its mapping by one word, so that it stays
// small, and keeps its bounds itself.
#pragma once
#include "gpufs/file/file.hpp"
#include "gpufs/pointer/detail/mount_layout.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// Names a mapping: its entry's address, with the entry's generation above it, and in the bits that are 0 in all entries' addresses
// the page shift and what pointers do besides; 0: none; negative: why there is none (detail::error_name).
enum class mapping_name : std::int64_t {};

namespace detail {

inline constexpr unsigned mapping_address_bits = 48;
inline constexpr std::uint64_t mapping_generation_mask = 0x7fff;

GPUFS_DEVICE bool is_mapping(mapping_name name) { return static_cast<std::int64_t>(name) > 0; }
inline constexpr std::uint64_t mapping_shift_mask = 31;
inline constexpr std::uint64_t mapping_stops = 32;  // an access that fails stops the kernel
static_assert(alignof(mapping_entry) == 128);
GPUFS_DEVICE mapping_entry* entry_of(mapping_name name) {
  constexpr std::uint64_t address_mask = ((std::uint64_t{1} << mapping_address_bits) - 1) & ~(alignof(mapping_entry) - 1);
  return reinterpret_cast<mapping_entry*>(static_cast<std::uint64_t>(name) & address_mask);
}
GPUFS_DEVICE std::uint32_t page_shift_of(mapping_name name) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(name) & mapping_shift_mask);
}

// Whether two names are of one mapping, or of none.
GPUFS_DEVICE bool same_mapping(mapping_name a, mapping_name b) {
  if (!is_mapping(a)) return !is_mapping(b);
  return ((static_cast<std::uint64_t>(a) ^ static_cast<std::uint64_t>(b)) & ~mapping_stops) == 0;
}

// A value in place of a name. It says why there is no mapping (an errno is above -4096), and whether an access by it stops the
// kernel.
GPUFS_DEVICE mapping_name error_name(int error, bool stops) { return mapping_name{stops ? error - 4096 : error}; }
GPUFS_HOST_DEVICE int error_of(mapping_name name) {
  const auto value = static_cast<std::int64_t>(name);
  return static_cast<int>(value >= 0 ? 0 : value < -4095 ? value + 4096 : value);
}
GPUFS_DEVICE bool stops_on_error(mapping_name name) {
  const auto value = static_cast<std::int64_t>(name);
  return value < 0 ? value < -4095 : (static_cast<std::uint64_t>(value) & mapping_stops) != 0;
}

// What a mapping is made from.
struct mapping_key {  // as mapping_entry's
  std::int32_t number;
  std::uint32_t cache_id;
  std::uint32_t handle;  // the number's: no two mappings differ in it only
};

// The mappings of a mount, a hash set: one for each open file and form of it, so that all groups of a kernel that map parts of a
// file share it. An entry lives as long as its file is open; a pointer that outlives it is told by the generation, until the entry
// has been given away 32,768 times more.
class mapping_table {
 public:
  GPUFS_DEVICE mapping_table(const file_mount& mount, const pointer_layout& pointers) : mount_(mount), pointers_(pointers) {}

  // Looks for it where it mostly is, in this processor's copy of the entry of its home, as one line of the second-level cache
  // serves too few loads for all groups of a kernel that begin by mapping a file. One lane calls. No name: it is not there.
  GPUFS_DEVICE mapping_name find(const mapping_key& key) const {
    mapping_entry* at = first_copy(home_of(key));
    mapping_entry& copy = at[simt::processor_id() % mapping_copies];
    const std::uint64_t seen = word(copy).load(std::memory_order_acquire);  // meets add's release: all copies are whole
    const bool same = get(copy.number) == key.number && get(copy.cache_id) == key.cache_id;
    simt::fence_loads();  // as in is()
    const bool stayed = (seen & state_mask) == ready && word(copy).load(std::memory_order_relaxed) == seen;
    return same && stayed ? name_of(*at, seen) : mapping_name{0};
  }

  // One lane calls. A name, or -ENFILE when there are too many, or -ETIMEDOUT.
  GPUFS_DEVICE mapping_name find_or_add(const mapping_key& key) const {
    // Keys with the same home are added one at a time. Otherwise two lanes that add the same key might take two places, because
    // entries become free meanwhile. The lane that holds the lock waits for nobody. A lane that waits looks the key up again,
    // because all groups of a kernel may begin by mapping the same file.
    const simt::deadline until(mount_.io_timeout_ns);
    simt::backoff pause;
    const simt::atomic_ref<std::uint32_t> adding(first_copy(home_of(key))->adding);
    for (;;) {
      const looked now = look(key);
      if (is_mapping(now.name) || (now.place == nullptr && !now.writing)) return now.name;
      if (adding.exchange(1, std::memory_order_acquire) == 0) break;  // meets the release below
      if (until.expired()) return mapping_name{-ETIMEDOUT};
      pause();
    }
    mapping_name name{-ETIMEDOUT};
    do {
      const looked now = look(key);
      name = now.name;
      if (is_mapping(name) || now.place == nullptr) break;
      // The entry has the next generation from here on, so that names of the old generation do not match the new contents.
      std::uint64_t seen = now.seen;
      const std::uint64_t next = (((seen >> 2) + 1) & mapping_generation_mask) << 2;
      const bool ours = word(*now.place).compare_exchange(seen, next | writing, std::memory_order_acquire);
      name = ours ? add(*now.place, next, key) : mapping_name{-ETIMEDOUT};
    } while (!is_mapping(name) && !until.expired());  // else a key of another home has taken the place
    adding.store(0, std::memory_order_release);
    return name;
  }

 private:
  enum : std::uint64_t { unused = 0, writing = 1, ready = 2, state_mask = 3 };

  GPUFS_DEVICE static std::uint32_t home_of(const mapping_key& key) {
    const std::uint64_t mixed = static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.number)) << 32 | key.cache_id;
    return static_cast<std::uint32_t>(mixed * 0x94d049bb133111ebu >> 32);
  }
  // The first of an entry's copies.
  GPUFS_DEVICE mapping_entry* first_copy(std::uint32_t i) const {
    return pointers_.mappings + std::size_t{i & pointers_.mapping_mask} * mapping_copies;
  }

  // A key's name, or -ENFILE and where it can be added, if anywhere: the first entry that is unused, or whose file is closed.
  struct looked {
    mapping_name name;
    mapping_entry* place;
    std::uint64_t seen;  // the place's word
    bool writing;        // an entry is being written: of another key, if ours is not being added
  };
  GPUFS_DEVICE looked look(const mapping_key& key) const {
    looked at{mapping_name{-ENFILE}, nullptr, 0, false};
    const std::uint32_t home = home_of(key);
    const std::uint32_t most = pointers_.mapping_mask < 256 ? pointers_.mapping_mask : 255;
    for (std::uint32_t i = 0; i <= most; ++i) {
      mapping_entry& entry = *first_copy(home + i);
      const std::uint64_t seen = word(entry).load(std::memory_order_acquire);  // meets add's release
      const std::uint64_t state = seen & state_mask;
      at.writing |= state == writing;
      if (state == writing) continue;
      if (state == ready && is(entry, key) && word(entry).load(std::memory_order_relaxed) == seen) {
        return {name_of(entry, seen), nullptr, 0, false};
      }
      if (at.place == nullptr && (state == unused || !file_table(mount_).is_open(file_number{get(entry.number)}))) {
        at.place = &entry;
        at.seen = seen;
      }
      if (state == unused) break;  // entries never become unused again: the key is nowhere behind
    }
    return at;
  }

  GPUFS_DEVICE mapping_name add(mapping_entry& entry, std::uint64_t generation, const mapping_key& key) const {
    const auto fill = [&](mapping_entry& copy) {
      put(copy.number, key.number);
      put(copy.cache_id, key.cache_id);
      put(copy.handle, key.handle);
      copy.hit = {mount_.cache.frames, mount_.cache.table,
                  file_table(mount_).first_hits(file_table::index_of(file_number{key.number})), &mount_};
    };
    // The generation comes first, so that no pointer of an older generation takes a copy for its own. Once all copies are filled,
    // they are marked as ready. From then on find returns the mapping's name. Users of that name check the generation only.
    for (std::uint32_t copy = 1; copy < mapping_copies; ++copy)
      word((&entry)[copy]).store(generation | writing, std::memory_order_relaxed);
    // Meets the fences of is() and find: a lane that sees a new field sees `writing`.
    simt::fence(std::memory_order_release, simt::scope::device);
    for (std::uint32_t copy = 0; copy < mapping_copies; ++copy) fill((&entry)[copy]);
    const std::uint64_t after = generation | ready;  // meets the acquires of find and find_or_add
    for (std::uint32_t copy = mapping_copies; copy-- > 0;) word((&entry)[copy]).store(after, std::memory_order_release);
    return name_of(entry, after);
  }

  GPUFS_DEVICE static simt::atomic_ref<std::uint64_t> word(mapping_entry& entry) {
    return simt::atomic_ref<std::uint64_t>(entry.word);
  }
  // An entry may be given to another mapping while we look at it; the caller then finds its word changed (the fence orders that).
  GPUFS_DEVICE static bool is(mapping_entry& entry, const mapping_key& key) {
    const bool same = get(entry.number) == key.number && get(entry.cache_id) == key.cache_id;
    simt::fence(std::memory_order_acquire, simt::scope::device);
    return same;
  }
  template <class T>
  GPUFS_DEVICE static T get(T& field) {
    return simt::atomic_ref<T>(field).load(std::memory_order_relaxed);
  }
  template <class T>
  GPUFS_DEVICE static void put(T& field, T value) {
    simt::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
  }
  GPUFS_DEVICE mapping_name name_of(mapping_entry& entry, std::uint64_t seen) const {
    return mapping_name{static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(&entry) | mount_.cache.frames.page_shift |
                                                  seen >> 2 << mapping_address_bits)};
  }

  const file_mount& mount_;
  const pointer_layout& pointers_;
};

// Of all of the table's entries.
GPUFS_DEVICE const mount_layout* mount_of(const mapping_entry& from) { return whole_of(from.hit.mount); }

// Whether the entry is still that of the name's mapping, and not given to another since its file was closed.
GPUFS_DEVICE bool is_current(mapping_name name) {
  const std::uint64_t generation = simt::atomic_ref<std::uint64_t>(entry_of(name)->word).load(std::memory_order_relaxed) >> 2;
  return generation == static_cast<std::uint64_t>(name) >> mapping_address_bits;
}

// Why there is nothing behind a name, or 0: there is.
GPUFS_DEVICE int check_name(mapping_name name) {
  if (!is_mapping(name)) return error_of(name) != 0 ? error_of(name) : -EFAULT;
  return is_current(name) ? 0 : -EBADF;
}

// The part of a file that a pointer may access.
struct bounds {
  std::uint64_t begin = 0, end = 0;
  GPUFS_DEVICE bool have(std::uint64_t position, std::uint32_t nbytes) const {
    return end - begin >= nbytes && position - begin <= end - begin - nbytes;
  }
};

// Whether pages of the mapping are copies that never reach the file.
GPUFS_DEVICE bool is_private(std::uint32_t cache_id) { return cache_id >> cache::form_shift == cache::private_form; }
// Whether its pages are the file's own, and the file is open for writing. A ptr<T> of a mapping that is neither is made from the
// name of a ptr<const T> only.
GPUFS_DEVICE bool stores_to_file(const mapping_entry& from) {
  return from.cache_id >> cache::form_shift == cache::file_form && file_table::may_write(file_number{from.number});
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
