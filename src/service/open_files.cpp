// SPDX-License-Identifier: Apache-2.0
#include "open_files.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace gpufs::service {
namespace {

constexpr std::uint64_t one_ref = 1;
constexpr std::uint64_t opened(std::uint32_t generation) { return std::uint64_t{generation} << 32 | one_ref; }
constexpr std::uint32_t generation_of(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }

bool is_written(const open_files::entry& e) { return e.file->info().live; }

// Whether the device may read the file without the host.
bool is_pulled(const store::file_info& info) { return may_pass_host_by(info.kind); }

}  // namespace

open_files::open_files(std::uint32_t max_open_files)
    : max_(max_open_files),
      index_bits_(std::max(1u, static_cast<unsigned>(std::bit_width(max_open_files - 1)))),
      chunks_(new std::atomic<chunk*>[(max_open_files + chunk_size - 1) / chunk_size] {}),
      chains_(std::bit_ceil(std::clamp(max_open_files, 64u, 65536u))) {}

open_files::entry* open_files::find(std::uint32_t index) const {
  if (index >= max_) return nullptr;
  // Meets insert()'s release: the chunk's entries.
  chunk* c = chunks_[index / chunk_size].load(std::memory_order_acquire);
  return c == nullptr ? nullptr : &(*c)[index % chunk_size];
}

std::size_t open_files::chain_of(std::uint64_t device, std::uint64_t inode) const {
  return static_cast<std::size_t>(((inode ^ device * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu) >> 32) & (chains_.size() - 1);
}

// Calls each(entry) for the entries of one file, until a call returns true. The caller holds the part's lock. In a store without
// identities (inode 0), no two opens are of one file.
template <class Each>
void open_files::each_of(std::size_t chain, std::uint64_t device, std::uint64_t inode, Each each) const {
  if (inode == 0) return;
  for (std::uint32_t at = chains_[chain]; at != 0;) {
    entry& e = *find(at - 1);
    at = e.next;
    const store::file_info& info = e.file->info();
    if (info.device == device && info.inode == inode && each(e)) return;
  }
}

// The caller holds the part's lock.
void open_files::unchain(std::size_t chain, entry& e) {
  if (!e.chained) return;
  std::uint32_t* at = &chains_[chain];
  while (*at != e.index + 1) at = &find(*at - 1)->next;
  *at = e.next;
  e.chained = false;
  if (!is_written(e)) return;
  nwritten_.fetch_sub(1, std::memory_order_relaxed);
  nwritten_closed_.fetch_add(1, std::memory_order_release);  // meets nwritten_closed()'s acquire
}

open_files::entered open_files::insert(std::unique_ptr<store::open_file> file, entering how) {
  std::uint32_t index = take_free();
  if (index == none) index = take_unused();
  if (index == none) index = take_free();  // the last unused one went to another thread
  if (index == none) return {.error = -EMFILE};
  entry& e = *find(index);  // no other thread has it
  const std::uint32_t last_generation = (1u << (32 - index_bits_)) - 1;
  {
    const std::scoped_lock hold(free_[index % nparts].lock);  // path_of may be reading
    e.generation = e.generation >= last_generation ? 1 : e.generation + 1;
    e.path = std::move(how.path);
  }
  e.file = std::move(file);
  e.device_number = how.device_number;
  e.once = how.once;
  e.remote.store(how.remote, std::memory_order_relaxed);
  e.how.store(how.how, std::memory_order_relaxed);
  e.told.store(0, std::memory_order_relaxed);
  e.awaits_look.store(false, std::memory_order_relaxed);
  e.stale.store(false, std::memory_order_relaxed);
  e.stale_told.store(false, std::memory_order_relaxed);
  e.awaits_telling.store(false, std::memory_order_relaxed);
  e.has_no_mapping.store(false, std::memory_order_relaxed);
  e.nreads.store(0, std::memory_order_relaxed);
  nopen_.fetch_add(1, std::memory_order_relaxed);
  entered result{.handle = handle_of(e)};
  try {
    enter(e, how.not_handle, result);
  } catch (...) {
    free(e);
    throw;
  }
  if (result.joined || result.error != 0) free(e);
  return result;
}

// Joins an open of the same file, or makes this one known. The state is set last, because a device may close any open handle.
void open_files::enter(entry& e, std::uint32_t not_handle, entered& result) {
  const store::file_info& info = e.file->info();
  const std::size_t chain = chain_of(info.device, info.inode);
  const std::scoped_lock hold(identities_[chain % nparts].lock);
  each_of(chain, info.device, info.inode, [&](entry& other) {
    if (!is_written(other) || other.once != e.once) return false;
    if (handle_of(other) == not_handle) {
      unchain(chain, other);
    } else if (info.begin != 0) {
      result.error = -EBUSY;
    } else {
      result.handle = handle_of(other);
      result.joined = other.device_number;
    }
    return true;
  });
  if (result.joined || result.error != 0) return;
  std::vector<ref>* by_renaming = nullptr;
  if (!is_written(e)) {
    for (renaming* const one : identities_[chain % nparts].renamings) {
      if (one->device_ != info.device || one->inode_ != info.inode) continue;
      one->since_.reserve(one->since_.size() + 1);
      by_renaming = &one->since_;
    }
  }
  if (is_pulled(info)) {
    const std::scoped_lock hold_pulls(lock_);
    e.pull_place = static_cast<std::uint32_t>(pulls_.size());
    pulls_.push_back(e.index);
    npull_.store(pulls_.size(), std::memory_order_relaxed);
  }
  e.next = chains_[chain];
  chains_[chain] = e.index + 1;
  e.chained = true;
  if (is_written(e)) nwritten_.fetch_add(1, std::memory_order_relaxed);
  e.state.store(opened(e.generation), std::memory_order_release);  // meets acquire()'s: all that was set above
  result.renamed = by_renaming != nullptr;
  if (by_renaming != nullptr) by_renaming->push_back(share(e));
}

std::vector<open_files::ref> open_files::readers_of(std::uint64_t device, std::uint64_t inode) {
  const std::size_t chain = chain_of(device, inode);
  std::vector<ref> readers;
  const std::scoped_lock hold(identities_[chain % nparts].lock);
  add_readers(chain, device, inode, readers);
  return readers;
}

// The caller holds the part's lock.
void open_files::add_readers(std::size_t chain, std::uint64_t device, std::uint64_t inode, std::vector<ref>& to) {
  each_of(chain, device, inode, [&](entry& e) {
    // An entry that is being closed has lost its generation, and so the table has given up its reference.
    if (!is_written(e)) {
      if (ref one = acquire(handle_of(e))) to.push_back(std::move(one));
    }
    return false;
  });
}

open_files::renaming::renaming(open_files& table, std::uint64_t device, std::uint64_t inode)
    : table_(table), device_(device), inode_(inode) {
  if (inode == 0) return;
  const std::size_t chain = table.chain_of(device, inode);
  identity_part& part = table.identities_[chain % nparts];
  {
    const std::scoped_lock hold(part.lock);
    table.add_readers(chain, device, inode, before_);
    part.renamings.push_back(this);
  }
  for (const ref& reader : before_) reader->file->begin_rename();
}

open_files::renaming::~renaming() {
  if (inode_ == 0) return;
  identity_part& part = table_.identities_[table_.chain_of(device_, inode_) % nparts];
  // Meets nrenamed()'s acquire: a thread that sees this count, and then opens the file, opens it in its present state.
  table_.nrenamed_.fetch_add(1, std::memory_order_release);
  {
    const std::scoped_lock hold(part.lock);
    std::erase(part.renamings, this);
  }
  for (const ref& reader : before_) reader->file->end_rename();
  for (const ref& reader : since_) reader->file->end_rename();
}

std::optional<open_files::written_file> open_files::written(std::uint64_t device, std::uint64_t inode, bool once) {
  const std::size_t chain = chain_of(device, inode);
  std::optional<written_file> found;
  const std::scoped_lock hold(identities_[chain % nparts].lock);
  each_of(chain, device, inode, [&](entry& e) {
    if (is_written(e) && e.once == once) found = {handle_of(e), e.device_number};
    return found.has_value();
  });
  return found;
}

// Takes an entry that was freed long enough ago or, once every entry has been used, any free one.
std::uint32_t open_files::take_free() {
  thread_local std::uint32_t turn = 0;
  const std::uint32_t first = turn++;
  const bool any = nused_.load(std::memory_order_relaxed) == max_;
  for (std::uint32_t i = 0; i < nparts; ++i) {
    free_part& part = free_[(first + i) % nparts];
    const std::scoped_lock hold(part.lock);
    if (part.n > (any ? 0 : reuse_distance)) {
      entry& e = *part.first;
      part.first = std::exchange(e.next_free, nullptr);
      if (--part.n == 0) part.last = nullptr;
      return e.index;
    }
    if (!any) break;  // an unused entry is as good
  }
  return none;
}

std::uint32_t open_files::take_unused() {
  const std::scoped_lock hold(lock_);
  const std::uint32_t index = nused_.load(std::memory_order_relaxed);
  if (index == max_) return none;
  if (index % chunk_size == 0) {
    owned_.push_back(std::make_unique<chunk>());
    chunks_[index / chunk_size].store(owned_.back().get(), std::memory_order_release);
  }
  find(index)->index = index;
  nused_.store(index + 1, std::memory_order_relaxed);
  return index;
}

open_files::ref open_files::acquire(std::uint32_t handle) {
  const std::uint32_t generation = handle >> index_bits_;
  entry* e = find(handle & ((1u << index_bits_) - 1));
  if (e == nullptr || generation == 0) return {};
  std::uint64_t state = e->state.load(std::memory_order_relaxed);
  do {
    if (generation_of(state) != generation) return {};
    // The acquire meets insert()'s release.
  } while (!e->state.compare_exchange_weak(state, state + one_ref, std::memory_order_acquire, std::memory_order_relaxed));
  return {this, e};
}

open_files::entry* open_files::peek(std::uint32_t handle) const {
  const std::uint32_t generation = handle >> index_bits_;
  entry* e = find(handle & ((1u << index_bits_) - 1));
  const bool open = e != nullptr && generation != 0 && generation_of(e->state.load(std::memory_order_relaxed)) == generation;
  return open ? e : nullptr;
}

std::optional<std::string> open_files::path_of(std::uint32_t handle) {
  const std::uint32_t generation = handle >> index_bits_, index = handle & ((1u << index_bits_) - 1);
  entry* e = find(index);
  if (e == nullptr || generation == 0) return std::nullopt;
  const std::scoped_lock hold(free_[index % nparts].lock);
  if (e->generation != generation) return std::nullopt;
  return e->path;
}

std::string open_files::path_of(const entry& e) {
  const std::scoped_lock hold(free_[e.index % nparts].lock);
  return e.path;
}

std::string open_files::late_path(std::size_t* nfiles) {
  std::string path;
  *nfiles = 0;
  for (std::uint32_t index = 0; index < max_; ++index) {
    const entry* e = find(index);
    if (e == nullptr) break;
    if (e->nlate.load(std::memory_order_relaxed) == 0) continue;
    ++*nfiles;
    path = path_of(*e);
  }
  return path;
}

void open_files::release(entry& e) {
  // The release meets the acquire of the thread that frees the entry, so our last use of the file happens before.
  if (e.state.fetch_sub(one_ref, std::memory_order_acq_rel) == one_ref) free(e);
}

void open_files::free(entry& e) {
  std::unique_ptr<store::open_file> file = std::move(e.file);
  file.reset();  // outside the lock: closing may block
  // These meet the release of the thread that made what they name.
  delete e.descriptors.exchange(nullptr, std::memory_order_acquire);
  if (store::readable_mapping* const mapping = e.mapping.exchange(nullptr, std::memory_order_acquire)) {
    unmapper_.take(std::unique_ptr<store::readable_mapping>(mapping));
  }
  free_part& part = free_[e.index % nparts];
  {
    const std::scoped_lock hold(part.lock);
    (part.n == 0 ? part.first : part.last->next_free) = &e;
    part.last = &e;
    ++part.n;
  }
  nopen_.fetch_sub(1, std::memory_order_release);  // meets full's acquire
}

bool open_files::release_unless_last(entry& e) {
  std::uint64_t state = e.state.load(std::memory_order_relaxed);
  do {
    if (state == one_ref) return false;
    // The release has the same partner as release()'s.
  } while (!e.state.compare_exchange_weak(state, state - one_ref, std::memory_order_release, std::memory_order_relaxed));
  return true;
}

int open_files::close(std::uint32_t handle) {
  const ref held = acquire(handle);
  if (!held) return -EBADF;
  entry& e = *held.get();
  std::uint64_t state = e.state.load(std::memory_order_relaxed);
  do {
    if (generation_of(state) != handle >> index_bits_) return -EBADF;  // another thread has closed it since
  } while (!e.state.compare_exchange_weak(state, state & 0xffffffffu, std::memory_order_acq_rel, std::memory_order_relaxed));
  {
    const store::file_info& info = e.file->info();
    const std::size_t chain = chain_of(info.device, info.inode);
    const std::scoped_lock chains(identities_[chain % nparts].lock);
    // One that could no longer be joined is counted once more: what it has written is in the file now, and not before.
    if (!e.chained && is_written(e)) nwritten_closed_.fetch_add(1, std::memory_order_release);  // meets nwritten_closed()'s acquire
    unchain(chain, e);
  }
  if (is_pulled(e.file->info())) drop_from_pulls(e);
  release(e);  // the table's own reference
  return 0;
}

void open_files::drop_from_pulls(entry& e) {
  const std::scoped_lock hold(lock_);
  const std::uint32_t last = pulls_.back();
  pulls_[e.pull_place] = last;
  find(last)->pull_place = e.pull_place;
  pulls_.pop_back();
  npull_.store(pulls_.size(), std::memory_order_relaxed);
}

void open_files::clear(const std::function<void(const entry&)>& closes) {
  for (std::uint32_t index = 0; index < max_; ++index) {
    entry* e = find(index);
    if (e == nullptr) break;
    if (generation_of(e->state.load(std::memory_order_acquire)) == 0) continue;
    if (closes) closes(*e);
    close(handle_of(*e));
  }
}

std::vector<std::uint32_t> open_files::pull_handles(std::size_t most, std::size_t* cursor) const {
  const std::scoped_lock hold(lock_);
  std::vector<std::uint32_t> handles;
  const std::size_t n = std::min(most, pulls_.size());
  handles.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (*cursor >= pulls_.size()) *cursor = 0;
    handles.push_back(handle_of(*find(pulls_[(*cursor)++])));
  }
  return handles;
}

}  // namespace gpufs::service
