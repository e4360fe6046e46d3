// SPDX-License-Identifier: Apache-2.0
// The device-side table of open files: repeated opens of one path are a count, without a host call. After GPUfs (CACM'14),
// section 4.2: the open-file table.
#pragma once
#include <fcntl.h>

#include "gpufs/file/detail/held_slots.hpp"
#include "gpufs/file/detail/new_block.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What an open gives its group.
struct open_result {
  std::int32_t number;  // a file number or a negative errno
  // When not 0: as many bytes, all that the file's first page has, are kept by the mount's name space, and the caller must give
  // them back.
  std::uint32_t nbytes;
  names::kept_bytes kept;
  std::uint32_t cache_id;
  std::uint32_t slot;
  bool truncates;  // O_TRUNC of a file that others have open for writing: the caller must cut it
};

// The slots, and the paths by which they are opened.
class file_table : public held_slots {
 public:
  GPUFS_DEVICE explicit file_table(const file_mount& mount) : held_slots(mount) {}

  // Opens `path` (a const char* or joined_path, readable by the device). One lane calls; waits for the host where the path is not
  // open yet, at most io_timeout_ns.
  template <class Path>
  GPUFS_DEVICE_COLD static open_result open(const file_mount* mount, Path path, int flags, std::uint32_t start) {
    open_result result{};
    result.number = file_table(*mount).try_open(path, flags, start, result);
    if (result.number < 0) simt::atomic_ref<std::uint64_t>(mount->words->open_errors).add_relaxed(1);
    return result;
  }

  // The size that counts of a file that the host knows by `handle`, and says is open for writing in this slot; -1: it is not (any
  // more). One lane calls.
  GPUFS_DEVICE_COLD static std::int64_t nbytes_if_written(const file_mount* mount, std::uint32_t index, std::uint32_t handle) {
    file_slot* const found = file_blocks(*mount).find_slot(index);
    if (found == nullptr) return -1;
    file_slot& slot = *found;
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t before = word.load(std::memory_order_acquire);  // meets ask_host's: the slot's fields
    if (state_of(before) != slot_state::open) return -1;
    const bool same = simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed) == handle;
    const std::int64_t nbytes = file_table(*mount).nbytes_now(index);
    simt::fence_loads();  // meets the fence in link: the word is looked at again after the fields
    return same && word.load(std::memory_order_relaxed) == before ? nbytes : -1;
  }

 private:
  // A file number or a negative errno; `brought` tells of the first page.
  template <class Path>
  GPUFS_DEVICE std::int32_t try_open(const Path& path, int flags, std::uint32_t start, open_result& brought) const {
    const bool once = (flags & static_cast<int>(names::open_write_once)) != 0;
    const int access = flags & O_ACCMODE;
    const bool writes = access != O_RDONLY || once;
    if (writes || (flags & (O_CREAT | O_EXCL | O_TRUNC | O_APPEND)) != 0) {
      if (!is_writable(mount_)) return -EROFS;
      if (!writes || access == O_ACCMODE) return -EINVAL;
    }
    // Here, too, as an open that joins another asks no store.
    const int known = O_ACCMODE | names::open_flags_to_read | (writes ? names::open_flags_to_write : O_SYNC | O_DSYNC);
    if ((flags & ~known) != 0) return -EINVAL;
    path_name name = paths().name_of(path);
    if (name.error != 0) return name.error;
    name.mode = once ? slot_mode::write_once : writes ? slot_mode::write : slot_mode::read;
    name.flags = static_cast<std::uint32_t>(flags);
    paths().add_chunk(name, name.flags & O_NOFOLLOW);  // with it, a path may name something else
    const simt::deadline until(mount_.io_timeout_ns);
    path_bucket& chain = paths().chain_of(name);

    // How long an open waits, from when it meets a file that is being closed, for the host to hear of that. It hears of it soon,
    // unless no request slot was to be had for that (retire): then the file gets another open there.
    simt::deadline closing(0);
    simt::backoff pause;
    std::uint32_t index = none, closed_handle = 0, closing_handle = 0;
    bool ours = false, asked_again = false, counted = false, joined = false;
    std::uint32_t gone = 0;  // removals that had ended when we first joined an open that was under way
    for (;;) {
      ours = false;
      index = join(chain, name, 64);
      // A group that waits for the lock looks again. Where each group of a kernel opens one file first, only the first of them
      // needs the lock; if all took it, one after the other, each would take 6 us.
      for (simt::backoff look_again; index == none && !path_chains::try_lock(chain); index = join(chain, name, 64)) {
        if (until.expired()) return -ETIMEDOUT;
        look_again();
      }
      if (index == none) {
        std::uint32_t unwanted = none;
        index = join(chain, name, mount_.files.nslots, &unwanted);
        if (unwanted != none) {
          paths().unlock(chain);
          drop(unwanted, start);
          if (until.expired()) return -ETIMEDOUT;
          continue;
        }
        if (index == none) {
          const std::uint32_t nblocks = blocks_.count();
          index = take_slot(start, nblocks < blocks_.most());
          if (index == none) {
            paths().unlock(chain);
            const int error = detail::extend(mount_, nblocks, start, until);
            if (error != 0) return error;
            continue;
          }
          // Opens for reading keep what they opened; opens from now on see what is written.
          if (writes)
            paths().detach(
                chain, [&](file_slot& other) { return path_chains::same_hash(other, name) && mode_of(other) == slot_mode::read; });
          put(source(index).removals, removals_ended());
          paths().link(chain, index, name);
          ours = true;
        }
        paths().unlock(chain);
      }
      file_slot& slot = this->slot(index);
      if (!counted) simt::atomic_ref<std::uint64_t>(counters(index).opens).add_relaxed(1);
      counted = true;
      const int error = ours ? ask_host(slot, index, path, name, flags, start, until, closed_handle, brought) : wait_open(slot);
      if (error == 0) {
        // A slot that we joined while it was being opened may have a version that had ended before our call: `join` could not see
        // it.
        if (ours || !path_chains::has_ended(slot) || until.expired()) break;
        drop(index, start);
        continue;
      }
      if (!ours && error > 0) {
        // Did the host look where the path leads before a name was gone that is gone since before we began? Then again, once.
        if (!joined) gone = removals_ended();
        joined = true;
        const std::uint32_t then = simt::atomic_ref<std::uint32_t>(source(index).removals).load(std::memory_order_relaxed);
        if (static_cast<std::int32_t>(then - gone) < 0) {
          drop(index, start);
          if (until.expired()) return -ETIMEDOUT;
          continue;
        }
        if (error == open_apart) break;
      }
      if (error == open_elsewhere) {
        // We give our slot up before we wait for the opener of the other slot, because that opener might be waiting for our slot.
        if (ours) fail(chain, slot, index, error);
        ours = false;
        const std::uint32_t there = simt::atomic_ref<std::uint32_t>(slot.cache_id).load(std::memory_order_relaxed);
        const std::uint32_t handle = simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed);
        drop(index, start);
        index = there;
        if (join_file(there, handle)) break;
        // It is being closed. An open that asked before the host has done that might get a version that ends by it (mtime).
        if (until.expired()) return -ETIMEDOUT;
        if (handle != closing_handle) closing = simt::deadline(mount_.io_timeout_ns / 4);
        closing_handle = handle;
        if (closing.expired()) closed_handle = handle;
        pause();
        continue;
      }
      // An error may come of what the opener wanted (-EEXIST of O_EXCL, -ENOENT without O_CREAT), and be none of ours.
      const bool is_ours = ours || simt::atomic_ref<std::uint32_t>(slot.flags).load(std::memory_order_relaxed) == name.flags;
      if (ours) fail(chain, slot, index, error);
      drop(index, start);
      // If another lane asked the host, it may have asked before our call began. So we try once more: the next request is younger
      // than our call, whoever sends it.
      if ((is_ours && (ours || asked_again)) || until.expired()) return error;
      asked_again |= is_ours;
    }
    file_slot& slot = this->slot(index);
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

  template <class Path>
  GPUFS_DEVICE int ask_host(file_slot& slot, std::uint32_t index, const Path& path, const path_name& name, int flags,
                            std::uint32_t start, const simt::deadline& until, std::uint32_t closed_handle,
                            open_result& brought) const {
    const mount_names all(mount_, start);
    const bool reads = name.mode == slot_mode::read;
    const auto how = static_cast<std::uint32_t>(name.mode == slot_mode::write_once ? (flags & ~O_ACCMODE) | O_WRONLY : flags);
    // The host gets the slot's index to mark the slot as stale later, and to name it to other opens of the same file. It does not
    // trust the index.
    const names::opened got =
        all.open(path, {name.nbytes, how, index, reads ? 1u << mount_.cache.frames.page_shift : 0, closed_handle}, until);
    if (got.error != 0) return got.error;
    if (got.elsewhere != 0) {
      put(slot.cache_id, got.elsewhere - 1);
      put(slot.handle, got.file.id);
      return open_elsewhere;
    }
    if (!fits_keys(got.file.nbytes)) {
      if (got.nbytes != 0) all.give_back(got.kept);
      all.close(got.file.id, 0);
      return -EFBIG;
    }
    brought.nbytes = got.nbytes;
    brought.kept = got.kept;
    brought.cache_id = got.file.cache_id;
    brought.slot = index;
    put(slot.bytes.nbytes, got.file.nbytes);
    put(slot.bytes.base, got.file.base);
    put(slot.handle, got.file.id);
    put(slot.inode, got.file.inode);
    put(slot.mtime_ns, got.file.mtime_ns);
    put(slot.cache_id, got.file.cache_id);
    put(slot.mode, got.file.mode | (got.file.fixed_size ? slot_fixed_size : 0));
    put(slot.bytes.host_nbytes, static_cast<std::uint64_t>(got.file.nbytes));
    put(slot.bytes.mapped_nbytes, !reads && got.file.base != 0 ? static_cast<std::uint64_t>(got.file.nbytes) : 0);
    const source_kind kind = reads ? got.file.kind : name.mode == slot_mode::write ? source_kind::live : source_kind::zero;
    // After the handle: by that, a call that begins to take the file's name away after this finds the slot (forget_file).
    std::uint32_t apart = 0;
    if (!reads && was_removing(index)) {
      path_bucket& chain = paths().chain_of(name);
      if (!paths().lock(chain, simt::deadline(mount_.io_timeout_ns))) {
        all.close(got.file.id, 0);
        return count_timeout();
      }
      paths().detach(chain, [&](file_slot& other) { return &other == &slot; });
      paths().unlock(chain);
      apart = slot_apart;
    }
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t open_word =
        word_of(generation_of(word.load(std::memory_order_relaxed)), slot_state::open) | static_cast<std::uint32_t>(kind) << 16;
    put(source(index).pull_base, got.file.base);
    put(source(index).handle, got.file.id);
    put(source(index).habit, read_habit::unknown);
    const cache::packed_frames frames = cache::pack(mount_.cache.frames);
    for (std::uint32_t shard = 0; shard < file_shards; ++shard) {
      file_entry& copy = *entry(index, shard);
      put(copy.file_nbytes, got.file.nbytes);
      put(copy.cache_id, got.file.cache_id);
      put(copy.frames.data_and_shift, frames.data_and_shift);
      put(copy.frames.nframes, frames.nframes);
      put(copy.frames.reciprocal, frames.reciprocal);
      put(copy.word, open_word);
    }
    word.store(open_word | apart, std::memory_order_release);  // publishes the fields; meets the acquire in wait_open()
    return 0;
  }

  // How many calls that take names away have ended. Acquire: meets removed_names::removing's release.
  GPUFS_DEVICE std::uint32_t removals_ended() const {
    return simt::atomic_ref<std::uint32_t>(mount_.words->removals_ended).load(std::memory_order_acquire);
  }
  // Whether a call that takes names away has been under way at any time since the host was asked to open the slot's file. It adds 0
  // instead of loading, because its release must meet the acquire of calls that begin later (removed_names::removing).
  GPUFS_DEVICE bool was_removing(std::uint32_t index) const {
    return simt::atomic_ref<std::uint32_t>(mount_.words->removals_begun).fetch_add(0, std::memory_order_acq_rel) !=
           simt::atomic_ref<std::uint32_t>(source(index).removals).load(std::memory_order_relaxed);
  }

  // Whether the number of each page of a file of this size fits into a page key. The largest number stands for no page, so no page
  // may have it. Pages of a larger file would be taken for pages of another version.
  GPUFS_DEVICE bool fits_keys(std::int64_t file_nbytes) const {
    const std::uint64_t last_page = static_cast<std::uint64_t>(file_nbytes - 1) >> mount_.cache.frames.page_shift;
    return file_nbytes <= 0 || (last_page + 1) >> cache::page_number_bits == 0;
  }

  // Ends an open that failed or led to another slot: no open can join the slot any more, and the lanes that wait for it get
  // `error`.
  GPUFS_DEVICE void fail(path_bucket& chain, file_slot& slot, std::uint32_t index, int error) const {
    const bool locked = paths().lock(chain, simt::deadline(mount_.io_timeout_ns));
    if (locked) {
      paths().unlink(chain, index);
    } else {
      keep_for_ever(slot);
    }
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_and(slot_refs, std::memory_order_relaxed);
    put(slot.error, error);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    word.store(word_of(generation_of(word.load(std::memory_order_relaxed)), slot_state::dead), std::memory_order_release);
    if (locked) paths().unlock(chain);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
