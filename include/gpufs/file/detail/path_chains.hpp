// SPDX-License-Identifier: Apache-2.0
// Paths on the device. The hash of a path leads to a chain of slots, which holds the slots that are open by that path. GPU memory
// keeps no paths: the device tells paths apart by two polynomial hashes modulo 2^61 - 1, at points drawn secretly for each mount.
// Two different paths of up to 4095 bytes have the same hashes with a probability below 2^-103.
#pragma once
#include "gpufs/file/detail/file_slots.hpp"
#include "gpufs/names/words.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// The path "directory/name", made of two NUL-terminated strings, for kernels that have no room to copy them together. If the
// directory is null, "" or ".", it is the mount's root. Slashes at the directory's end are ignored.
class joined_path {
 public:
  GPUFS_DEVICE joined_path(const char* directory, const char* name) : directory_(directory), name_(name), nbytes_(0) {
    if (directory == nullptr || (directory[0] == '.' && directory[1] == '\0')) return;
    while (nbytes_ <= names::max_path_nbytes && directory[nbytes_] != '\0') ++nbytes_;
    if (nbytes_ > names::max_path_nbytes) return;  // the directory alone is too long
    while (nbytes_ > 0 && directory[nbytes_ - 1] == '/') --nbytes_;
  }
  GPUFS_DEVICE char operator[](std::uint32_t i) const {
    if (nbytes_ == 0) return name_[i];
    return i < nbytes_ ? directory_[i] : i == nbytes_ ? '/' : name_[i - nbytes_ - 1];
  }
  GPUFS_DEVICE friend bool operator==(const joined_path& path, std::nullptr_t) { return path.name_ == nullptr; }

 private:
  const char* directory_;
  const char* name_;
  std::uint32_t nbytes_;  // of the directory
};

// A path as the device knows it, and how an open wants to use it.
struct path_name {
  std::uint64_t hash[2];
  std::uint32_t nbytes;
  std::int32_t error;
  slot_mode mode;  // how the open uses the file
  std::uint32_t flags;
};

// The chains of open slots. The hash of a path selects its chain. Each chain has a lock.
class path_chains {
 public:
  GPUFS_DEVICE explicit path_chains(const file_mount& mount) : mount_(mount), blocks_(mount) {}

  // The name of a path alone, without open flags. A bad path sets `error`: -EFAULT (null), -ENAMETOOLONG or -ENOENT (empty).
  template <class Path>
  GPUFS_DEVICE path_name name_of(const Path& path) const {
    path_name name{{1, 1}, 0, 0, slot_mode::read, 0};
    if (path == nullptr) {
      name.error = -EFAULT;
      return name;
    }
    std::uint64_t chunk = 0;
    std::uint32_t n = 0;
    for (; path[n] != '\0'; ++n) {
      if (n == names::max_path_nbytes) {
        name.error = -ENAMETOOLONG;
        return name;
      }
      chunk = (chunk << 8) | static_cast<unsigned char>(path[n]);
      if (n % 7 == 6) {
        add_chunk(name, chunk);
        chunk = 0;
      }
    }
    add_chunk(name, chunk);
    add_chunk(name, n);
    name.nbytes = n;
    if (n == 0) name.error = -ENOENT;
    return name;
  }
  // Adds up to 56 bits to both hashes.
  GPUFS_DEVICE void add_chunk(path_name& name, std::uint64_t chunk) const {
    for (int i = 0; i < 2; ++i) {
      // A hash is below 2^61 and a chunk below 2^57, so the sum fits into 64 bits. The hash need not be the least residue: equal
      // paths get equal hashes in any case.
      name.hash[i] = multiply_mod_mersenne61(name.hash[i] + chunk, mount_.files.hash_points[i]);
    }
  }

  GPUFS_DEVICE path_bucket& chain_of(file_slot& slot) const {
    return mount_.files
        .paths[simt::atomic_ref<std::uint64_t>(slot.hash[0]).load(std::memory_order_relaxed) & mount_.files.path_mask];
  }

  GPUFS_DEVICE path_bucket& chain_of(const path_name& name) const {
    return mount_.files.paths[name.hash[0] & mount_.files.path_mask];
  }

  // Whether an open with this name (path, mode, flags) may share the slot.
  GPUFS_DEVICE static bool may_join(file_slot& slot, const path_name& name) {
    if (!same_hash(slot, name)) return false;
    const slot_mode mode = file_slots::mode_of(slot);
    if (name.mode != slot_mode::read || mode != slot_mode::read) {
      return mode == (name.mode == slot_mode::write_once ? slot_mode::write_once : slot_mode::write);
    }
    return simt::atomic_ref<std::uint32_t>(slot.flags).load(std::memory_order_relaxed) == name.flags && !has_ended(slot);
  }
  // Whether the slot is open for reading with a version of the file that has ended. A new open must not share it, but open the
  // version that the path leads to now.
  GPUFS_DEVICE static bool has_ended(file_slot& slot) {
    // Meets the opener's release (file_table::ask_host): the handle that we load below belongs to this open.
    const std::uint32_t word = simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_acquire);
    return file_slots::state_of(word) == slot_state::open &&
           simt::atomic_ref<std::uint32_t>(slot.stale).load(std::memory_order_relaxed) ==
               simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed);
  }
  GPUFS_DEVICE static bool same_hash(file_slot& slot, const path_name& name) {
    return simt::atomic_ref<std::uint64_t>(slot.hash[0]).load(std::memory_order_relaxed) == name.hash[0] &&
           simt::atomic_ref<std::uint64_t>(slot.hash[1]).load(std::memory_order_relaxed) == name.hash[1];
  }

  GPUFS_DEVICE static bool try_lock(path_bucket& chain) {
    return simt::atomic_ref<std::uint32_t>(chain.lock).exchange(1, std::memory_order_acquire) == 0;  // meets unlock's
  }
  // Takes the chain's lock, and waits for it until then. False: it did not come in time. Holders wait for nobody.
  GPUFS_DEVICE bool lock(path_bucket& chain, const simt::deadline& until) const {
    simt::backoff pause;
    while (!try_lock(chain)) {
      if (until.expired()) return false;
      pause();
    }
    return true;
  }
  GPUFS_DEVICE void unlock(path_bucket& chain) const {
    simt::atomic_ref<std::uint32_t>(chain.lock).store(0, std::memory_order_release);  // meets try_lock's acquire
  }

  // Puts a fresh slot at the head of the chain, with one reference, which is the caller's. The caller holds the chain's lock.
  GPUFS_DEVICE void link(path_bucket& chain, std::uint32_t index, const path_name& name) const {
    file_slot& slot = blocks_.slot(index);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    // Meets is_open's acquire. It must be a release as the store in recycle is, because it replaces the value from there.
    word.store(file_slots::word_of(file_slots::generation_of(word.load(std::memory_order_relaxed)), slot_state::opening),
               std::memory_order_release);
    // A lane that reads a field of this open, from here on or of ask_host's, and then looks at the words again, sees that the last
    // open has ended: meets the fences in look_with_source and nbytes_if_written.
    simt::fence(std::memory_order_release, simt::scope::device);
    simt::atomic_ref<std::uint64_t>(slot.hash[0]).store(name.hash[0], std::memory_order_relaxed);
    simt::atomic_ref<std::uint64_t>(slot.hash[1]).store(name.hash[1], std::memory_order_relaxed);
    file_slots::put(slot.shared_by, name.mode);
    file_slots::put(slot.flags, name.flags);
    file_slots::put(slot.write_error, 0);
    const bool has_gate = name.mode != slot_mode::read && is_writable(mount_);
    for (std::uint32_t shard = 0; has_gate && shard < gate_shards; ++shard) file_slots::put(blocks_.gate(index, shard), 0);
    file_slots::put(slot.bytes.mapped_nbytes, 0);
    file_slots::put(slot.in_place_nbytes, 0);
    file_slots::put(slot.twinned, 0);
    file_slots::put(slot.unsynced, 0);
    // An add, not a store, because a look-up that strayed here may hold a reference for a moment. The release meets the acquires of
    // held_slots::join and join_file.
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(slot_joinable + 1, std::memory_order_release);
    simt::atomic_ref<std::uint32_t>(slot.next).store(simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_relaxed),
                                                     std::memory_order_relaxed);
    simt::atomic_ref<std::uint32_t>(chain.head).store(index + 1, std::memory_order_release);  // meets join's acquire
  }

  // Takes the slot out of its chain. The caller holds the chain's lock.
  GPUFS_DEVICE void unlink(path_bucket& chain, std::uint32_t index) const {
    std::uint32_t* at = &chain.head;
    for (;;) {
      simt::atomic_ref<std::uint32_t> ref(*at);
      const std::uint32_t here = ref.load(std::memory_order_relaxed);
      if (here == 0) return;
      std::uint32_t& next = blocks_.slot(here - 1).next;
      if (here - 1 == index) {
        // Meets join's acquire.
        ref.store(simt::atomic_ref<std::uint32_t>(next).load(std::memory_order_relaxed), std::memory_order_release);
        return;
      }
      at = &next;
    }
  }

  // Takes the slots that opens may join (slot_joinable) and for which `which` is true out of the chain. The caller holds the
  // chain's lock. From then on no open joins these slots. Existing opens go on with them, and the last close closes the file.
  template <class Which>
  GPUFS_DEVICE void detach(path_bucket& chain, Which which) const {
    std::uint32_t next = simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_relaxed);
    while (next != 0) {
      const std::uint32_t index = next - 1;
      file_slot& slot = blocks_.slot(index);
      next = simt::atomic_ref<std::uint32_t>(slot.next).load(std::memory_order_relaxed);
      if (!which(slot)) continue;
      simt::atomic_ref<std::uint32_t> refs(slot.refs);
      std::uint32_t seen = refs.load(std::memory_order_relaxed);
      // acq_rel: meets the compare-exchange of held_slots::drop, which is on the same word.
      while ((seen & slot_joinable) != 0 &&
             !refs.compare_exchange(seen, (seen & slot_refs) | slot_detached, std::memory_order_acq_rel)) {
      }
      if ((seen & slot_joinable) != 0) unlink(chain, index);  // otherwise retire has the slot, and unlinks it
    }
  }

 private:
  GPUFS_DEVICE static std::uint64_t multiply_mod_mersenne61(std::uint64_t a, std::uint64_t b) {
    __extension__ using wide = unsigned __int128;
    const wide product = static_cast<wide>(a) * b;
    constexpr std::uint64_t p = (std::uint64_t{1} << 61) - 1;
    const std::uint64_t sum = (static_cast<std::uint64_t>(product) & p) + static_cast<std::uint64_t>(product >> 61);
    return sum >= p ? sum - p : sum;
  }

  const file_mount& mount_;
  const file_blocks blocks_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
