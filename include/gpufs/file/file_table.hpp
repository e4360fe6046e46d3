// The device-side table of open files: repeated opens of one path are a count, without a host call. A path is known by two
// polynomial hashes modulo 2^61 - 1 at points drawn secretly for each mount: two different paths of up to 4095 bytes agree with
// probability below 2^-103, so no path is kept in GPU memory. After GPUfs (CACM'14), section 4.2: the open-file table.
#pragma once
#include <fcntl.h>

#include <type_traits>

#include "gpufs/cache/dirty.hpp"
#include "gpufs/file/request.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a call needs to know of an open file; error != 0: it is not open.
struct file_view {
  std::int64_t nbytes;
  std::uint64_t pull_base;
  std::uint32_t cache_id;
  service::source_kind kind;
  std::uint32_t handle;
  std::uint32_t slot;
  std::uint32_t place;  // which of the file's entries, and of its counters, this group uses
  std::int32_t error;
};

// "directory/name" of two NUL-terminated strings, for kernels that have no room to put them together. No directory (null, "" or
// "."): the mount's root. Slashes at the directory's end do not count.
class joined_path {
 public:
  GPUFS_DEVICE joined_path(const char* directory, const char* name) : directory_(directory), name_(name), nbytes_(0) {
    if (directory == nullptr || (directory[0] == '.' && directory[1] == '\0')) return;
    while (nbytes_ <= service::max_path_nbytes && directory[nbytes_] != '\0') ++nbytes_;
    if (nbytes_ > service::max_path_nbytes) return;  // too long already
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

// What an open gives its group.
struct open_result {
  std::int32_t number;  // a file number or a negative errno
  // When not 0: as many bytes, all that the file's first page has, are in the payload of the request slot `ticket`, which the
  // caller must give back.
  std::uint32_t nbytes;
  service::requests::ticket ticket;
  std::uint32_t cache_id;
  std::uint32_t slot;
  bool truncates;  // O_TRUNC of a file that others have open for writing: the caller must cut it
};

class file_table {
 public:
  GPUFS_DEVICE explicit file_table(const mount_layout& mount) : mount_(mount) {}

  // Opens `path` (a const char* or joined_path, readable by the device). One lane calls; waits for the host where the path is not
  // open yet, at most io_timeout_ns.
  template <class Path>
  GPUFS_DEVICE_COLD static open_result open(const mount_layout* mount, Path path, int flags, std::uint32_t start) {
    open_result result{};
    result.number = file_table(*mount).try_open(path, flags, start, result);
    if (result.number < 0) simt::atomic_ref<std::uint64_t>(mount->words->open_errors).add_relaxed(1);
    return result;
  }

  // Gives one open back; the last one closes the file on the host. One lane calls. 0 or a negative errno.
  GPUFS_DEVICE_COLD static int close(const mount_layout* mount, file_number number, std::uint32_t start) {
    const file_table table(*mount);
    const file_view opened = table.view_of_any(number);
    if (opened.error != 0) return opened.error;
    bool held = true;
    const int error = table.drop(opened.slot, start, held);
    if (!held) count_bad_number(mount->words);  // closed by another at the same moment
    return error;
  }

  // What the slot behind a number says; error == -EBADF when the number is forged, the file was closed, or is open only for
  // writing.
  GPUFS_DEVICE file_view view(file_number number) const {
    const auto raw = static_cast<std::uint32_t>(number);
    const std::uint32_t index = index_of(number);
    file_view v{};
    v.slot = index;
    v.error = -EBADF;
    if (static_cast<std::int32_t>(raw) < 0 || index >= mount_.nslots) [[unlikely]] {
      simt::call_cold(&count_bad_number, mount_.words);
      return v;
    }
    // Relaxed loads suffice: whoever has the number got it after the opener had published the slot.
    v.place = place_of(index);
    const file_entry& entry = mount_.entries[v.place];
    const simt::vec16 low = simt::load_relaxed_16(&entry);
    const simt::vec16 high = simt::load_relaxed_16(&entry.file_nbytes);
    v.kind = kind_of(low.word[0]);
    const bool forged = (raw & number_may_write) != 0 && v.kind < service::source_kind::live;
    if ((low.word[0] & 0xffffu) != open_word_of(raw) || forged) [[unlikely]] {
      simt::call_cold(&count_bad_number, mount_.words);
      return v;
    }
    v.cache_id = low.word[1];
    v.handle = low.word[2];
    v.nbytes = static_cast<std::int64_t>(high.word[0] | static_cast<std::uint64_t>(high.word[1]) << 32);
    if (v.kind >= service::source_kind::live) [[unlikely]]
      v.nbytes = nbytes_now(index);
    v.pull_base = high.word[2] | static_cast<std::uint64_t>(high.word[3]) << 32;
    v.error = 0;
    return v;
  }

  // The same of a file that may be written, read or not.
  GPUFS_DEVICE file_view view_to_write(file_number number) const {
    const auto raw = static_cast<std::int32_t>(number);
    file_view v = view(may_write(number) ? file_number{raw & ~number_write_only} : number);
    if (!may_write(number)) v.error = -EBADF;
    return v;
  }
  GPUFS_DEVICE file_view view_of_any(file_number number) const { return may_write(number) ? view_to_write(number) : view(number); }
  GPUFS_DEVICE static bool may_write(file_number number) {
    const auto raw = static_cast<std::int32_t>(number);
    return raw >= 0 && (raw & number_may_write) != 0;
  }

  // The size of a file that is open for writing; whoever sees a size sees the bytes up to it.
  GPUFS_DEVICE std::int64_t nbytes_now(std::uint32_t index) const {
    return simt::atomic_ref<std::int64_t>(mount_.slots[index].file_nbytes).load(std::memory_order_acquire);
  }
  GPUFS_DEVICE cache::dirty_list& list(std::uint32_t slot, std::uint32_t i) const {
    return mount_.dirty_lists[slot * lists_per_slot + i];
  }

  // The size of the path's file if it is open for writing (else -1), which it may have nowhere else yet. One lane calls.
  GPUFS_DEVICE_COLD static std::int64_t nbytes_if_written(const mount_layout* mount, const char* path, std::uint32_t start) {
    const file_table table(*mount);
    path_name name = table.name_of(path);
    name.mode = slot_mode::write;
    table.add_chunk(name, 0);
    const std::uint32_t index = table.join(table.chain_of(name), name, 64);
    if (index == none) return -1;
    const bool open =
        state_of(simt::atomic_ref<std::uint32_t>(mount->slots[index].word).load(std::memory_order_acquire)) == slot_state::open;
    const std::int64_t nbytes = open ? table.nbytes_now(index) : -1;
    table.drop(index, start);
    return nbytes;
  }

  // All slots leave their chains: a directory has another name now. One lane calls. False: -ETIMEDOUT.
  GPUFS_DEVICE_COLD static bool forget_all_paths(const mount_layout* mount) {
    const file_table table(*mount);
    for (std::uint32_t i = 0; i <= mount->path_mask; ++i) {
      path_bucket& chain = mount->paths[i];
      if (simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_acquire) == 0) continue;
      if (!table.lock(chain, simt::deadline(mount->io_timeout_ns))) return false;
      table.detach(chain, [](file_slot&) { return true; });
      table.unlock(chain);
    }
    return true;
  }

  // Takes the open slots of a path out of its chain, so that nobody joins them any more: the path was removed, or names another
  // file. One lane calls. False: -ETIMEDOUT.
  GPUFS_DEVICE_COLD static bool forget_path(const mount_layout* mount, const char* path) {
    const file_table table(*mount);
    for (const int flags : {0, O_NOFOLLOW}) {
      path_name name = table.name_of(path);
      if (name.error != 0) return true;
      table.add_chunk(name, static_cast<std::uint32_t>(flags));
      path_bucket& chain = table.chain_of(name);
      if (!table.lock(chain, simt::deadline(mount->io_timeout_ns))) return false;
      table.detach(chain, [&](file_slot& slot) { return same_hash(slot, name); });
      table.unlock(chain);
    }
    return true;
  }

  GPUFS_DEVICE static std::uint32_t index_of(file_number number) {
    return static_cast<std::uint32_t>(number) & ((1u << slot_bits) - 1);
  }

  // The same as view().error == 0, and counts nothing. Where it is not: all uses that came before its close happened before (the
  // acquire meets the releases of retire, recycle and link).
  GPUFS_DEVICE bool is_open(file_number number) const {
    const auto raw = static_cast<std::uint32_t>(number);
    const std::uint32_t index = index_of(number);
    if (static_cast<std::int32_t>(raw) < 0 || index >= mount_.nslots) return false;
    const std::uint32_t word = simt::atomic_ref<std::uint32_t>(mount_.slots[index].word).load(std::memory_order_acquire);
    return (word & 0xffffu) == open_word_of(raw);
  }

  // Whether the host has seen the file change since it was opened.
  GPUFS_DEVICE bool is_stale(const file_view& opened) const {
    return simt::atomic_ref<std::uint32_t>(mount_.slots[opened.slot].stale).load(std::memory_order_relaxed) == opened.handle;
  }

  GPUFS_DEVICE static service::source_kind kind_of(std::uint32_t word) { return service::source_kind{word >> 16}; }
  GPUFS_DEVICE file_slot& slot(std::uint32_t index) const { return mount_.slots[index]; }
  // Which of the copies of a slot's entry and counters this processor uses. At most 2^20 slots, so the product fits.
  GPUFS_DEVICE std::uint32_t place_of(std::uint32_t index) const {
    return simt::processor_id() % file_shards * mount_.nslots + index;
  }
  GPUFS_DEVICE file_counters& counters(std::uint32_t place) const { return mount_.counters[place]; }

  // Copies a path of nbytes bytes into a request's payload. One lane calls.
  template <class Path>
  GPUFS_DEVICE static void copy_path(std::byte* payload, const Path& path, std::uint32_t nbytes) {
    // Eight bytes a store: the payload lies behind the bus.
    for (std::uint32_t i = 0; i < nbytes; i += 8) {
      std::uint64_t word = 0;
      for (std::uint32_t k = 0; k < 8 && i + k < nbytes; ++k) {
        word |= static_cast<std::uint64_t>(static_cast<unsigned char>(path[i + k])) << (8 * k);
      }
      *reinterpret_cast<std::uint64_t*>(payload + i) = word;
    }
  }

 private:
  struct path_name {
    std::uint64_t hash[2];
    std::uint32_t nbytes;
    std::int32_t error;
    slot_mode mode;  // how it is to be opened
    std::uint32_t flags;
  };

  GPUFS_DEVICE static std::uint32_t word_of(std::uint32_t generation, slot_state state) {
    return ((generation & generation_mask) << 3) | static_cast<std::uint32_t>(state);
  }
  // What a number's slot has in its word's lower half. A number that may not read is no slot's.
  GPUFS_DEVICE static std::uint32_t open_word_of(std::uint32_t raw) {
    return ((raw >> slot_bits) & (2 * generation_mask + 1)) << 3 | static_cast<std::uint32_t>(slot_state::open);
  }
  GPUFS_DEVICE static std::uint32_t generation_of(std::uint32_t word) { return (word >> 3) & generation_mask; }
  GPUFS_DEVICE static slot_state state_of(std::uint32_t word) { return slot_state{word & 7u}; }
  GPUFS_DEVICE static std::int32_t number_of(std::uint32_t index, std::uint32_t word) {
    return static_cast<std::int32_t>((generation_of(word) << slot_bits) | index);
  }
  GPUFS_DEVICE_COLD static void count_bad_number(mount_words* words) {
    simt::atomic_ref<std::uint64_t>(words->bad_numbers).add_relaxed(1);
  }

  GPUFS_DEVICE static std::uint64_t multiply_mod_mersenne61(std::uint64_t a, std::uint64_t b) {
    __extension__ using wide = unsigned __int128;
    const wide product = static_cast<wide>(a) * b;
    constexpr std::uint64_t p = (std::uint64_t{1} << 61) - 1;
    const std::uint64_t sum = (static_cast<std::uint64_t>(product) & p) + static_cast<std::uint64_t>(product >> 61);
    return sum >= p ? sum - p : sum;
  }

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
      if (n == service::max_path_nbytes) {
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
  GPUFS_DEVICE void add_chunk(path_name& name, std::uint64_t chunk) const {
    for (int i = 0; i < 2; ++i) {
      // A hash is below 2^61 and a chunk below 2^57, so the sum fits; the hash need not be the least residue to be one value.
      name.hash[i] = multiply_mod_mersenne61(name.hash[i] + chunk, mount_.hash_points[i]);
    }
  }

  // A file number or a negative errno; `brought` tells of the first page.
  template <class Path>
  GPUFS_DEVICE std::int32_t try_open(const Path& path, int flags, std::uint32_t start, open_result& brought) const {
    const bool once = (flags & static_cast<int>(service::open_write_once)) != 0;
    const int access = flags & O_ACCMODE;
    const bool writes = access != O_RDONLY || once;
    if (writes || (flags & (O_CREAT | O_EXCL | O_TRUNC | O_APPEND)) != 0) {
      if (mount_.dirty_lists == nullptr) return -EROFS;
      if (!writes || access == O_ACCMODE) return -EINVAL;
    }
    path_name name = name_of(path);
    if (name.error != 0) return name.error;
    name.mode = once ? slot_mode::write_once : writes ? slot_mode::write : slot_mode::read;
    name.flags = static_cast<std::uint32_t>(flags);
    add_chunk(name, name.flags & O_NOFOLLOW);  // with it, a path may name something else
    const simt::deadline until(mount_.io_timeout_ns);
    path_bucket& chain = chain_of(name);

    std::uint32_t index = none;
    bool ours = false;
    for (;;) {
      index = join(chain, name, 64);
      if (index == none) {
        if (!lock(chain, until)) return -ETIMEDOUT;
        index = join(chain, name, mount_.nslots);
        if (index == none) {
          index = take_slot(start);
          if (index == none) {
            unlock(chain);
            return -ENFILE;
          }
          // Who opened it for reading keeps what they opened; who opens it from now on sees what is written.
          if (writes) detach(chain, [&](file_slot& other) { return same_hash(other, name) && mode_of(other) == slot_mode::read; });
          link(chain, index, name);
          ours = true;
        }
        unlock(chain);
      }
      file_slot& slot = mount_.slots[index];
      simt::atomic_ref<std::uint64_t>(counters(place_of(index)).opens).add_relaxed(1);
      const int error = ours ? ask_host(slot, index, path, name, flags, start, until, brought) : wait_open(slot);
      if (error == 0) break;
      // An error may come of what the opener wanted (-EEXIST of O_EXCL, -ENOENT without O_CREAT), and be none of ours.
      const bool is_ours = ours || simt::atomic_ref<std::uint32_t>(slot.flags).load(std::memory_order_relaxed) == name.flags;
      if (ours) fail(chain, slot, index, error);
      drop(index, start);
      if (is_ours || until.expired()) return error;
    }
    file_slot& slot = mount_.slots[index];
    if (writes && !ours) {
      if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
        drop(index, start);
        return -EEXIST;
      }
      brought.truncates = (flags & O_TRUNC) != 0;
    }
    // We hold the slot, so its word stays.
    const std::int32_t number = number_of(index, simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_relaxed));
    return number | (writes ? number_may_write : 0) | (once || access == O_WRONLY ? number_write_only : 0);
  }

  static constexpr std::uint32_t none = ~0u;

  // Looks for a live slot of this path and takes a reference, as a look-up pins a page. Without the chain's lock the chain may
  // change under us; then the walk strays and ends after max_steps, and the caller looks again under the lock.
  GPUFS_DEVICE std::uint32_t join(path_bucket& chain, const path_name& name, std::uint32_t max_steps) const {
    std::uint32_t next = simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_acquire);
    for (std::uint32_t steps = 0; next != 0 && steps < max_steps; ++steps) {
      const std::uint32_t index = next - 1;
      file_slot& slot = mount_.slots[index];
      if (may_join(slot, name)) {
        const std::uint32_t before = simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_acquire);
        if ((before & slot_live) != 0 && may_join(slot, name)) return index;
        drop(index, index);
        return none;
      }
      next = simt::atomic_ref<std::uint32_t>(slot.next).load(std::memory_order_acquire);
    }
    return none;
  }

  GPUFS_DEVICE path_bucket& chain_of(file_slot& slot) const {
    return mount_.paths[simt::atomic_ref<std::uint64_t>(slot.hash[0]).load(std::memory_order_relaxed) & mount_.path_mask];
  }

  GPUFS_DEVICE path_bucket& chain_of(const path_name& name) const { return mount_.paths[name.hash[0] & mount_.path_mask]; }

  GPUFS_DEVICE static slot_mode mode_of(file_slot& slot) {
    return simt::atomic_ref<slot_mode>(slot.shared_by).load(std::memory_order_relaxed);
  }
  // Whether an open of this name may share the slot.
  GPUFS_DEVICE static bool may_join(file_slot& slot, const path_name& name) {
    if (!same_hash(slot, name)) return false;
    const slot_mode mode = mode_of(slot);
    if (name.mode != slot_mode::read || mode != slot_mode::read) {
      return mode == (name.mode == slot_mode::write_once ? slot_mode::write_once : slot_mode::write);
    }
    return simt::atomic_ref<std::uint32_t>(slot.flags).load(std::memory_order_relaxed) == name.flags;
  }
  GPUFS_DEVICE static bool same_hash(file_slot& slot, const path_name& name) {
    return simt::atomic_ref<std::uint64_t>(slot.hash[0]).load(std::memory_order_relaxed) == name.hash[0] &&
           simt::atomic_ref<std::uint64_t>(slot.hash[1]).load(std::memory_order_relaxed) == name.hash[1];
  }

  GPUFS_DEVICE bool lock(path_bucket& chain, const simt::deadline& until) const {
    simt::backoff pause;
    while (simt::atomic_ref<std::uint32_t>(chain.lock).exchange(1, std::memory_order_acquire) != 0) {  // meets unlock
      if (until.expired()) return false;
      pause();
    }
    return true;
  }
  GPUFS_DEVICE void unlock(path_bucket& chain) const {
    simt::atomic_ref<std::uint32_t>(chain.lock).store(0, std::memory_order_release);
  }

  // A free slot, from any list, starting at `start`. None when there was a moment at which all were empty: a tag grows with each
  // change, so two walks that found nothing and the same tags had one in between. (Or after many walks, as others wait for us.)
  GPUFS_DEVICE std::uint32_t take_slot(std::uint32_t start) const {
    constexpr int most_walks = 64;
    std::uint64_t last_tags = 0;
    for (int walk = 0; walk < most_walks; ++walk) {
      std::uint64_t tags = 0;
      for (std::uint32_t i = 0; i < free_lists; ++i) {
        const std::uint32_t index = pop_slot(mount_.free_slots[(start + i) % free_lists], tags);
        if (index != none) return index;
      }
      if (walk > 0 && tags == last_tags) return none;
      last_tags = tags;
    }
    return none;
  }

  // The tag in the top half tells a top that came back from one that never left. That of an empty list is added to `tags`.
  GPUFS_DEVICE std::uint32_t pop_slot(free_list& list, std::uint64_t& tags) const {
    simt::atomic_ref<std::uint64_t> top(list.top);
    std::uint64_t seen = top.load(std::memory_order_acquire);
    for (;;) {
      const auto first = static_cast<std::uint32_t>(seen);
      if (first == 0) {
        tags += seen >> 32;
        return none;
      }
      const std::uint32_t next = simt::atomic_ref<std::uint32_t>(mount_.slots[first - 1].next).load(std::memory_order_relaxed);
      const std::uint64_t wanted = (((seen >> 32) + 1) << 32) | next;
      if (top.compare_exchange(seen, wanted, std::memory_order_acq_rel)) {
        simt::atomic_ref<std::uint64_t> used(mount_.words->slots_used);
        std::uint64_t now = used.load(std::memory_order_relaxed);
        while (now < first && !used.compare_exchange(now, first, std::memory_order_relaxed)) {
        }
        return first - 1;
      }
    }
  }

  GPUFS_DEVICE void push_slot(std::uint32_t index) const {
    simt::atomic_ref<std::uint64_t> top(mount_.free_slots[index % free_lists].top);
    std::uint64_t seen = top.load(std::memory_order_relaxed);
    for (;;) {
      simt::atomic_ref<std::uint32_t>(mount_.slots[index].next).store(static_cast<std::uint32_t>(seen), std::memory_order_relaxed);
      const std::uint64_t wanted = (((seen >> 32) + 1) << 32) | (index + 1);
      if (top.compare_exchange(seen, wanted, std::memory_order_acq_rel)) return;
    }
  }

  // Puts a fresh slot, held once by us, at the head of the chain; the caller holds the chain's lock.
  GPUFS_DEVICE void link(path_bucket& chain, std::uint32_t index, const path_name& name) const {
    file_slot& slot = mount_.slots[index];
    simt::atomic_ref<std::uint32_t> word(slot.word);
    // Meets is_open's acquire: as recycle's, which this hides.
    word.store(word_of(generation_of(word.load(std::memory_order_relaxed)), slot_state::opening), std::memory_order_release);
    simt::atomic_ref<std::uint64_t>(slot.hash[0]).store(name.hash[0], std::memory_order_relaxed);
    simt::atomic_ref<std::uint64_t>(slot.hash[1]).store(name.hash[1], std::memory_order_relaxed);
    put(slot.shared_by, name.mode);
    put(slot.flags, name.flags);
    put(slot.write_error, 0);
    put(slot.writers, 0);
    put(slot.mapped_nbytes, 0);
    put(slot.stored_nbytes, 0);
    put(slot.twinned, 0);
    // An add, not a store: a stray look-up may hold a reference for a moment. Its release meets join's acquire.
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(slot_live + 1, std::memory_order_release);
    simt::atomic_ref<std::uint32_t>(slot.next).store(simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_relaxed),
                                                     std::memory_order_relaxed);
    simt::atomic_ref<std::uint32_t>(chain.head).store(index + 1, std::memory_order_release);
  }

  // Takes the slot out of its chain; the caller holds the chain's lock.
  GPUFS_DEVICE void unlink(path_bucket& chain, std::uint32_t index) const {
    std::uint32_t* at = &chain.head;
    for (;;) {
      simt::atomic_ref<std::uint32_t> ref(*at);
      const std::uint32_t here = ref.load(std::memory_order_relaxed);
      if (here == 0) return;
      std::uint32_t& next = mount_.slots[here - 1].next;
      if (here - 1 == index) {
        ref.store(simt::atomic_ref<std::uint32_t>(next).load(std::memory_order_relaxed), std::memory_order_release);
        return;
      }
      at = &next;
    }
  }

  // Takes the live slots that `which` names out of the chain, whose lock the caller holds, and nobody joins them from then on.
  // Those that hold them go on; the last one closes the file.
  template <class Which>
  GPUFS_DEVICE void detach(path_bucket& chain, Which which) const {
    std::uint32_t next = simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_relaxed);
    while (next != 0) {
      const std::uint32_t index = next - 1;
      file_slot& slot = mount_.slots[index];
      next = simt::atomic_ref<std::uint32_t>(slot.next).load(std::memory_order_relaxed);
      if (!which(slot)) continue;
      simt::atomic_ref<std::uint32_t> refs(slot.refs);
      std::uint32_t seen = refs.load(std::memory_order_relaxed);
      while ((seen & slot_live) != 0 &&
             !refs.compare_exchange(seen, (seen & slot_refs) | slot_detached, std::memory_order_acq_rel)) {
      }
      if ((seen & slot_live) != 0) unlink(chain, index);  // else who retires it does
    }
  }

  template <class Path>
  GPUFS_DEVICE int ask_host(file_slot& slot, std::uint32_t index, const Path& path, const path_name& name, int flags,
                            std::uint32_t start, const simt::deadline& until, open_result& brought) const {
    const service::requests rings(mount_);
    const auto ticket = rings.take(start, until);
    if (ticket.index == service::requests::no_slot) return count_timeout();
    copy_path(rings.payload(ticket), path, name.nbytes);
    service::request ask{};
    ask.op = service::opcode::open;
    ask.handle = name.mode == slot_mode::read ? 1u << mount_.cache.frames.page_shift : 0;  // the first page, if it is at hand
    ask.nbytes = name.nbytes;
    ask.flags = static_cast<std::uint32_t>(name.mode == slot_mode::write_once ? (flags & ~O_ACCMODE) | O_WRONLY : flags);
    ask.offset = index;  // a hint for marking the slot stale; the host checks it
    service::reply answer;
    if (rings.call(ticket, ask, answer, until) != 0) return count_timeout();
    const bool fits = answer.result >= 0 && fits_keys(answer.file_nbytes);
    if (fits && answer.result > 0) {
      brought.nbytes = static_cast<std::uint32_t>(answer.result);
      brought.ticket = ticket;
      brought.cache_id = answer.cache_id;
      brought.slot = index;
    } else {
      rings.give_back(ticket);
    }
    if (answer.result < 0) return static_cast<int>(answer.result);
    if (!fits) {
      close_on_host(answer.handle, 0, start);
      return -EFBIG;
    }
    put(slot.file_nbytes, answer.file_nbytes);
    put(slot.pull_base, answer.pull_base);
    put(slot.inode, answer.inode);
    put(slot.mtime_ns, answer.mtime_ns);
    put(slot.cache_id, answer.cache_id);
    put(slot.handle, answer.handle);
    put(slot.mode, answer.mode);
    put(slot.host_nbytes, static_cast<std::uint64_t>(answer.file_nbytes));
    const bool mapped = name.mode != slot_mode::read && answer.pull_base != 0;
    put(slot.mapped_nbytes, mapped ? static_cast<std::uint64_t>(answer.file_nbytes) : 0);
    const service::source_kind kind = name.mode == slot_mode::read    ? answer.kind
                                      : name.mode == slot_mode::write ? service::source_kind::live
                                                                      : service::source_kind::unread;
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t open_word =
        word_of(generation_of(word.load(std::memory_order_relaxed)), slot_state::open) | static_cast<std::uint32_t>(kind) << 16;
    for (std::uint32_t shard = 0; shard < file_shards; ++shard) {
      file_entry& e = entry(index, shard);
      put(e.file_nbytes, answer.file_nbytes);
      put(e.pull_base, answer.pull_base);
      put(e.cache_id, answer.cache_id);
      put(e.handle, answer.handle);
      put(e.word, open_word);
    }
    word.store(open_word, std::memory_order_release);  // publishes the fields; meets the acquire in wait_open()
    return 0;
  }

  GPUFS_DEVICE file_entry& entry(std::uint32_t index, std::uint32_t shard) const {
    return mount_.entries[std::size_t{shard} * mount_.nslots + index];
  }

  // The host may look at any slot at any time (host_mount::open_files), so that no field is written plainly.
  template <class T>
  GPUFS_DEVICE static void put(T& field, std::type_identity_t<T> value) {
    simt::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
  }

  // Whether each page of a file of this size has a number that a page key holds, and none the last one, which stands for no page. A
  // larger one would be taken for another version's pages.
  GPUFS_DEVICE bool fits_keys(std::int64_t file_nbytes) const {
    const std::uint64_t last_page = static_cast<std::uint64_t>(file_nbytes - 1) >> mount_.cache.frames.page_shift;
    return file_nbytes <= 0 || (last_page + 1) >> cache::page_number_bits == 0;
  }

  GPUFS_DEVICE int wait_open(file_slot& slot) const {
    const simt::deadline until(2 * mount_.io_timeout_ns);
    simt::backoff pause;
    for (;;) {
      const std::uint32_t word = simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_acquire);
      if (state_of(word) == slot_state::open) return 0;
      if (state_of(word) == slot_state::dead) return slot.error;
      if (until.expired()) return -ETIMEDOUT;
      pause();
    }
  }

  // Opening failed: nobody can join any more, and those who wait get the error.
  GPUFS_DEVICE void fail(path_bucket& chain, file_slot& slot, std::uint32_t index, int error) const {
    const bool locked = lock(chain, simt::deadline(mount_.io_timeout_ns));
    if (locked) {
      unlink(chain, index);
    } else {
      keep_for_ever(slot);
    }
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_and(slot_refs, std::memory_order_relaxed);
    put(slot.error, error);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    word.store(word_of(generation_of(word.load(std::memory_order_relaxed)), slot_state::dead), std::memory_order_release);
    if (locked) unlock(chain);
  }

  // A slot that could not be taken out of its chain must never be used again. The lock's holders wait for nobody, so this
  // takes a kernel that was stopped in the middle.
  GPUFS_DEVICE void keep_for_ever(file_slot& slot) const {
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_relaxed);
    count_timeout();
  }

  // Gives a reference back. Whoever gives back the last one of a live slot closes the file; of a dead one, frees it. 0, what the
  // host said when it closed the file, or -EBADF and !held when there was none.
  GPUFS_DEVICE int drop(std::uint32_t index, std::uint32_t start, bool& held) const {
    file_slot& slot = mount_.slots[index];
    // Read while we hold the slot: once it is given back, it may be freed and taken for another path before we look again.
    const std::uint32_t generation = generation_of(simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_relaxed));
    simt::atomic_ref<std::uint32_t> refs(slot.refs);
    std::uint32_t before = refs.load(std::memory_order_relaxed);
    do {
      if ((before & slot_refs) == 0) {
        held = false;
        return -EBADF;
      }
    } while (!refs.compare_exchange(before, before - 1, std::memory_order_acq_rel));
    if (before == (slot_live | 1) || before == (slot_detached | 1)) return retire(slot, index, start);
    if (before == 1) recycle(slot, index, generation);
    return 0;
  }
  GPUFS_DEVICE void drop(std::uint32_t index, std::uint32_t start) const {
    bool held = true;
    drop(index, start, held);
  }

  GPUFS_DEVICE int retire(file_slot& slot, std::uint32_t index, std::uint32_t start) const {
    // Fails when somebody opened the path again meanwhile: then theirs is the last reference. From here on the slot is ours,
    // and stays this path's, until we give it back. We do so when the host has closed the file, so that no more files are open
    // there than there are slots.
    simt::atomic_ref<std::uint32_t> refs(slot.refs);
    std::uint32_t unused = refs.load(std::memory_order_relaxed);
    do {
      if ((unused & slot_refs) != 0 || unused == 0) return 0;
    } while (!refs.compare_exchange(unused, 1, std::memory_order_acq_rel));
    path_bucket& chain = chain_of(slot);
    if (!lock(chain, simt::deadline(mount_.io_timeout_ns))) {
      keep_for_ever(slot);
      return -ETIMEDOUT;
    }
    if (unused == slot_live) unlink(chain, index);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t handle = slot.handle;
    const std::uint32_t generation = generation_of(word.load(std::memory_order_relaxed));
    for (std::uint32_t shard = 0; shard < file_shards; ++shard)
      put(entry(index, shard).word, word_of(generation, slot_state::dead));
    word.store(word_of(generation, slot_state::dead), std::memory_order_release);
    unlock(chain);
    const bool written = mode_of(slot) != slot_mode::read;
    if (written) forget_unwritten(index);
    const std::uint64_t stored = written ? simt::atomic_ref<std::uint64_t>(slot.stored_nbytes).load(std::memory_order_relaxed) : 0;
    const closed_on_host closed = close_on_host(handle, stored, start);
    const int error = stored != 0 ? closed.error : 0;
    if (!closed.asked) return error;  // still open there: the slot stays taken, too
    if (written && has_lost_list(index)) service::requests(mount_).end_late_writes();
    if (written && has_lost_list(index)) return error;  // as does one whose file the host may yet write
    if (simt::atomic_ref<std::uint32_t>(slot.refs).fetch_sub(1, std::memory_order_acq_rel) == 1) recycle(slot, index, generation);
    return error;
  }

  GPUFS_DEVICE bool has_lost_list(std::uint32_t index) const {
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      if (cache::dirty_pages::is_lost(list(index, i))) return true;
    }
    return false;
  }

  // What close could not even send to the host, as it has told: else it would go to the next file that uses the slot.
  GPUFS_DEVICE void forget_unwritten(std::uint32_t index) const {
    const cache::dirty_pages pages(mount_.cache);
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      const auto next = [&] { return pages.leave(list(index, i), [](cache::frame_index) { return false; }); };
      for (auto left = next(); left.found; left = next()) {
        pages.begin_write_back(left.frame);
        pages.unmark(simt::this_thread(), left.frame, 0);
        cache::frames(mount_.cache).unpin(left.frame);
        simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
        simt::atomic_ref<std::uint64_t>(mount_.words->write_errors).add_relaxed(1);
      }
    }
  }

  // dead -> free, once; a new generation makes old numbers invalid. `generation` is the one that the caller held.
  GPUFS_DEVICE void recycle(file_slot& slot, std::uint32_t index, std::uint32_t generation) const {
    simt::atomic_ref<std::uint32_t> word(slot.word);
    std::uint32_t seen = word_of(generation, slot_state::dead);
    if (word.compare_exchange(seen, word_of(generation + 1, slot_state::free), std::memory_order_acq_rel)) push_slot(index);
  }

  struct closed_on_host {
    bool asked;  // else no slot of a request ring came in time
    int error;
  };
  GPUFS_DEVICE closed_on_host close_on_host(std::uint32_t handle, std::uint64_t stored_nbytes, std::uint32_t start) const {
    const simt::deadline until(mount_.io_timeout_ns);
    const service::requests rings(mount_);
    const auto ticket = rings.take(start, until);
    if (ticket.index == service::requests::no_slot) {
      return {false, count_timeout()};
    }
    service::request ask{};
    ask.op = service::opcode::close;
    ask.handle = handle;
    ask.offset = static_cast<std::int64_t>(stored_nbytes);
    service::reply answer;
    if (rings.call(ticket, ask, answer, until) != 0) return {true, count_timeout()};
    rings.give_back(ticket);
    return {true, answer.result < 0 ? static_cast<int>(answer.result) : 0};
  }

  GPUFS_DEVICE int count_timeout() const {
    simt::atomic_ref<std::uint64_t>(mount_.words->io_timeouts).add_relaxed(1);
    return -ETIMEDOUT;
  }

  const mount_layout& mount_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
