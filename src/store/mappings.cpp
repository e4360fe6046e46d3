// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <thread>
#include <utility>

#include "file_system.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

std::size_t whole_pages(std::size_t nbytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

// Ten times the usual time.
std::chrono::nanoseconds longest_registration(std::size_t nbytes) {
  return std::chrono::seconds(2) + std::chrono::nanoseconds(nbytes);
}

constexpr std::size_t most_windows = 64;  // one for each bit of a word

constexpr const char* too_long =
    "registering its mapping takes too long: some thread may be in a CUDA call that waits for a kernel";

std::string mib(std::uint64_t nbytes) { return std::to_string((nbytes + (1u << 20) - 1) >> 20) + " MiB"; }

// The empty text if there is no memory for it.
std::string text_of(const std::exception& e) noexcept {
  try {
    return e.what();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace

mappings::mappings(simt::platform& machine, std::uint64_t budget_nbytes, std::uint64_t least_window_nbytes)
    : machine_(machine),
      budget_nbytes_(budget_nbytes),
      least_window_nbytes_(std::bit_ceil(std::max<std::uint64_t>(least_window_nbytes, whole_pages(1)))),
      pagemap_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

mappings::~mappings() {
  {
    std::unique_lock hold(lock_);
    registered_.wait(hold, [&] { return registering_.empty(); });
  }
  // Every file holds this object, so no file uses a mapping any more.
  for (const auto& [version, m] : by_version_) unmap(*m);
}

mappings::use mappings::acquire(const file_info& info, int fd, std::string* why) { return acquire(info, fd, how::whole, why); }

mappings::use mappings::acquire_windows(const file_info& info, int fd, std::string* why) {
  // On other machines the device's address of a window is not known before the window is registered.
  return acquire(info, fd, machine_.registers_in_place() ? how::windows : how::whole, why);
}

mappings::use mappings::acquire_to_write(const file_info& info, int fd, std::string* why) {
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0 || static_cast<std::uint64_t>(fs.f_type) != TMPFS_MAGIC) {
    *why = "it is not in memory (tmpfs)";
    return nullptr;
  }
  struct stat st;
  if (::fstat(fd, &st) != 0 || st.st_size != info.nbytes || st.st_blocks * 512 < st.st_size) {
    *why = "it has holes";
    return nullptr;
  }
  for (int tries = 0; tries < 2; ++tries) {
    auto m = acquire(info, fd, how::writable, why);
    if (!m || whole_nbytes(*m, m->nbytes, true) == m->nbytes) return m;
    // The file was cut since it was mapped: the mapping gets another key, so that no later open finds it.
    const std::scoped_lock hold(lock_);
    auto known = by_version_.extract(m->version);
    std::get<5>(m->version) = ++unsettled_;
    known.key() = m->version;
    by_version_.insert(std::move(known));
  }
  *why = "the system does not tell whether a mapping's pages are the file's (/proc/self/pagemap)";
  return nullptr;
}

std::size_t mappings::whole_nbytes(const mapping& m, std::size_t nbytes, bool changed) const {
  std::array<std::uint64_t, 4096> words;
  const std::size_t page = whole_pages(1), npages = whole_pages(nbytes) / page;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(m.memory.get()) / page;
  const auto file_has = [&](std::size_t i) {
    unsigned char resident = 0;
    return ::mincore(static_cast<std::byte*>(m.memory.get()) + i * page, page, &resident) == 0 && (resident & 1) != 0;
  };
  for (std::size_t done = 0; done < npages;) {
    const std::size_t n = std::min(words.size(), npages - done);
    const std::int64_t got = read_to_end(
        [this](std::byte* to, std::size_t room, std::int64_t at) -> std::int64_t {
          const ssize_t some = ::pread(pagemap_.get(), to, room, at);
          return some < 0 ? -errno : some;
        },
        std::as_writable_bytes(std::span(words.data(), n)), static_cast<std::int64_t>((first + done) * 8));
    if (got < 8) return done * page;
    const auto nread = static_cast<std::size_t>(got) / 8;
    for (std::size_t i = 0; i < nread; ++i) {
      const bool is_mapped = words[i] >> 62 != 0;  // present, or being moved by the kernel
      if (!is_mapped && (m.is_locked || changed || !file_has(done + i))) return (done + i) * page;
    }
    done += nread;
  }
  return nbytes;
}

mappings::use mappings::acquire(const file_info& info, int fd, how wanted, std::string* why) {
  if (info.nbytes == 0) {
    *why = "it is empty, and nothing cannot be mapped";
    return nullptr;
  }
  const bool writable = wanted == how::writable;
  const std::size_t nbytes = whole_pages(static_cast<std::size_t>(info.nbytes));
  unique_mmap memory;             // declared before the lock: an unused mapping is unmapped without the lock
  std::shared_ptr<mapping> gone;  // the same
  std::unique_lock hold(lock_);
  const version_key version =
      writable ? version_key{info.device, info.inode, info.nbytes, 0, 0, ~std::uint64_t{0}}
               : version_key{info.device, info.inode, info.nbytes, info.mtime_ns, info.ctime_ns, info.settled ? 0 : ++unsettled_};
  std::shared_ptr<mapping> m = join(version);
  if (!m) {
    // mmap waits while CUDA pins another mapping's pages; no other thread must wait for that.
    hold.unlock();
    // On CUDA, registering reads the pages in, and we wait for it for a limited time. On the CPU machine each load would read them,
    // and no time limit applies.
    const bool hangs = !machine_.is_cuda() && may_hang(file_system_of(fd));
    if (!hangs) memory = unique_mmap(fd, nbytes, writable);
    const int failure = errno;
    hold.lock();
    m = join(version);
    if (m) {
      // another thread was faster
    } else if (hangs) {
      *why = "its file system is served by a process or another machine: while that hangs, reading the mapping would, too";
    } else if (memory.get() == nullptr) {
      *why = std::string("mmap failed: ") + std::strerror(failure);
    } else {
      m = enter(version, std::move(memory), nbytes, wanted);
    }
    if (!m) return nullptr;
  }
  if (wanted == how::windows) return use(m.get(), {this});
  bool was_given_up = false;
  do {  // once more if what we waited for were windows that somebody gave up
    time_point due;
    try {
      was_given_up = !was_given_up && given_up_nbytes_ != 0;
      if (!begin_whole(m, &due, why)) {
        gone = let_go(*m);
        return nullptr;
      }
    } catch (...) {
      gone = let_go(*m);
      throw;
    }
    registered_.wait_until(hold, due, [&] { return m->is_whole() || m->nwanted == 0; });
  } while (was_given_up && !m->is_whole() && m->nwanted == 0);
  if (m->is_whole()) return use(m.get(), {this});
  *why = m->nwanted != 0 ? too_long : "registering the mapping failed: " + (m->failure.empty() ? "no reason given" : m->failure);
  gone = let_go(*m);
  return nullptr;
}

// Returns the mapping of a version, and adds a user to it; or nullptr. The caller holds the lock.
std::shared_ptr<mappings::mapping> mappings::join(const version_key& version) {
  const auto found = by_version_.find(version);
  if (found == by_version_.end()) return nullptr;
  const std::shared_ptr<mapping>& m = found->second;
  m->nunread = 0;
  if (m->users++ == 0) {
    used_.splice(used_.end(), idle_, m->place);
    idle_nbytes_ -= m->registered_nbytes();
  }
  return m;
}

// Makes a new mapping, with one user and no registered window. The caller holds the lock.
std::shared_ptr<mappings::mapping> mappings::enter(const version_key& version, unique_mmap memory, std::size_t nbytes, how wanted) {
  auto m = std::make_shared<mapping>();
  m->version = version;
  m->writable = wanted == how::writable;
  m->nbytes = nbytes;
  const bool in_parts = !m->writable && machine_.registers_in_place();
  m->window_shift = static_cast<unsigned>(std::countr_zero(in_parts ? least_window_nbytes_ : std::bit_ceil(nbytes)));
  while (nbytes > std::uint64_t{most_windows} << m->window_shift) ++m->window_shift;
  m->nwindows = ((nbytes - 1) >> m->window_shift) + 1;
  m->windows = std::make_unique<window[]>(m->nwindows);
  if (in_parts) m->device_address = static_cast<const std::byte*>(memory.get());
  m->users = 1;
  mapping_list one{m};
  m->place = one.begin();
  by_version_.emplace(version, m);  // the last call that may throw; until here nothing else refers to the mapping
  m->memory = std::move(memory);
  used_.splice(used_.end(), one);
  return m;
}

// Begins to register all windows that are not registered yet; they should be by *due. False and a sentence in *why: it cannot. The
// caller holds the lock.
bool mappings::begin_whole(const std::shared_ptr<mapping>& m, time_point* due, std::string* why) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::size_t> missing;
  std::uint64_t nbytes = 0;
  for (std::size_t i = 0; i < m->nwindows; ++i) {
    const window_state state = m->windows[i].state.load(std::memory_order_relaxed);
    if (state == window_state::registered || state == window_state::wanted) continue;
    missing.push_back(i);
    nbytes += m->nbytes_of(i);
  }
  if (missing.empty() && m->nwanted != 0) {  // all missing windows are being registered already
    if (m->due == time_point()) m->due = now + longest_registration(m->nbytes);
    *due = m->due;
    return true;
  }
  *due = now + longest_registration(m->nbytes);
  if (missing.empty()) return true;
  if (nbytes > budget_nbytes_ - pinned_nbytes_) {  // no underflow: pinned_nbytes_ never exceeds the budget
    *why = over_budget(nbytes);
    lacking_nbytes_ = std::max(lacking_nbytes_, nbytes);
    return false;
  }
  if (std::any_of(registering_.begin(), registering_.end(), [&](time_point other) { return other < now; })) {
    *why = too_long;
    return false;
  }
  start_thread(*due, [this, m, missing](time_point&) { register_whole(m, missing); });
  pinned_nbytes_ += nbytes;
  ++m->users;
  m->due = *due;
  m->nwanted += missing.size();
  for (const std::size_t i : missing) m->windows[i].state.store(window_state::wanted, std::memory_order_relaxed);
  return true;
}

std::string mappings::over_budget(std::uint64_t nbytes) const {
  std::string text =
      "its " + mib(nbytes) + " do not fit the pin budget of " + mib(budget_nbytes_) + " (" + mib(pinned_nbytes_) + " in use";
  if (idle_nbytes_ != 0) text += ", " + mib(idle_nbytes_) + " of it by closed files, which trim() gives back";
  return text + ")";
}

// Starts a thread that registers. `due`: when its work should be done; the thread may change that. It waits for the lock, which the
// caller holds. Throws if there is no thread, or no memory.
template <class Work>
void mappings::start_thread(time_point due, Work work) {
  std::list<time_point> one{due};
  const auto place = one.begin();
  std::thread([this, place, work = std::move(work)] {
    machine_.stay_current();
    work(*place);
    // notify_all, too, is under the lock: one of the threads that it wakes may destroy this object.
    const std::scoped_lock hold(lock_);
    registering_.erase(place);
    registered_.notify_all();
  }).detach();
  registering_.splice(registering_.end(), one);
}

// If a window fails, gives back what was reserved for the windows after it.
void mappings::register_whole(const std::shared_ptr<mapping>& m, const std::vector<std::size_t>& missing) noexcept {
  std::shared_ptr<mapping> gone;
  std::unique_lock hold(lock_);
  bool good = true;
  for (const std::size_t i : missing) {
    if (good) {
      good = register_window(*m, i, hold);
    } else {
      pinned_nbytes_ -= m->nbytes_of(i);
      end_window(*m, i, window_state::none);
    }
  }
  gone = let_go(*m);
}

void mappings::note_missed(mapping& used, std::uint64_t offset, std::uint64_t nbytes) noexcept {
  const std::size_t i = offset >> used.window_shift;
  if (i >= used.nwindows) return;
  window& w = used.windows[i];
  const window_state state = w.state.load(std::memory_order_relaxed);
  if (state == window_state::wanted) w.missed_nbytes.fetch_add(nbytes, std::memory_order_relaxed);  // its count decides its turn
  if (state != window_state::none) return;
  const std::size_t in_file = static_cast<std::size_t>(std::get<2>(used.version)) - used.begin_of(i);  // bytes of the file from the
                                                                                                       // window's begin on
  const std::uint64_t enough = std::min(used.nbytes_of(i), in_file);
  if (w.missed_nbytes.fetch_add(nbytes, std::memory_order_relaxed) + nbytes < enough) return;
  const std::scoped_lock hold(lock_);
  if (w.state.load(std::memory_order_relaxed) != window_state::none) return;
  try {
    wanted_.emplace_back(*used.place, i);
    if (!registers_wanted_) {
      start_thread(time_point::max(), [this](time_point& due) { register_wanted(due); });
      registers_wanted_ = true;
    }
  } catch (const std::exception&) {  // no thread, or no memory: the next miss tries again
    if (!wanted_.empty() && wanted_.back().first.get() == &used && wanted_.back().second == i) wanted_.pop_back();
    return;
  }
  ++used.users;
  ++used.nwanted;
  ++used.nqueued;
  w.state.store(window_state::wanted, std::memory_order_relaxed);
}

std::string mappings::progress_of(const mapping& used) const {
  std::size_t nrefused = 0;
  std::string failure;
  {
    const std::scoped_lock hold(lock_);
    for (std::size_t i = 0; i < used.nwindows; ++i) {
      nrefused += used.windows[i].state.load(std::memory_order_relaxed) == window_state::refused;
    }
    if (nrefused != 0) failure = used.failure.empty() ? "no reason given" : used.failure;
  }
  // One load, so that the sentence agrees with itself.
  const auto nregistered = static_cast<std::size_t>(std::popcount(used.registered.load(std::memory_order_acquire)));
  std::string text = "windows: " + std::to_string(nregistered) + " of " + std::to_string(used.nwindows) + " windows of " +
                     mib(std::uint64_t{1} << used.window_shift) + " registered, which the device reads itself";
  if (nregistered == used.nwindows) return text;
  text += "; host threads read the others, each until as much was read of it as it has";
  if (nrefused != 0) text += "; " + std::to_string(nrefused) + " refused: " + failure;
  return text;
}

// Registers one window after another, as CUDA registers under one lock: first those of mappings that a thread waits for, then the
// one with the most missed bytes for its size.
void mappings::register_wanted(time_point& due) noexcept {
  const auto passes = [](const std::pair<std::shared_ptr<mapping>, std::size_t>& of) {
    if (of.first->due != time_point{}) return std::numeric_limits<double>::infinity();
    const auto missed = of.first->windows[of.second].missed_nbytes.load(std::memory_order_relaxed);
    return static_cast<double>(missed) / static_cast<double>(of.first->nbytes_of(of.second));
  };
  std::unique_lock hold(lock_);
  while (!wanted_.empty()) {
    const auto hottest =
        std::max_element(wanted_.begin(), wanted_.end(), [&](const auto& a, const auto& b) { return passes(a) < passes(b); });
    auto [m, i] = std::move(*hottest);
    wanted_.erase(hottest);
    const std::size_t nbytes = m->nbytes_of(i);
    const bool is_closed = m->users == m->nqueued;  // no file uses the mapping any more
    --m->nqueued;
    if (is_closed) {
      m->windows[i].missed_nbytes.store(0, std::memory_order_relaxed);
      end_window(*m, i, window_state::none);
    } else if (nbytes > budget_nbytes_ - pinned_nbytes_) {
      lacking_nbytes_ += nbytes;
      try {  // tells the threads that wait for all of it
        m->failure = over_budget(nbytes);
      } catch (const std::bad_alloc&) {
        m->failure.clear();
      }
      end_window(*m, i, window_state::refused);
    } else {
      pinned_nbytes_ += nbytes;
      due = std::chrono::steady_clock::now() + longest_registration(nbytes);
      register_window(*m, i, hold);
      due = time_point::max();
    }
    std::shared_ptr<mapping> gone = let_go(*m);
    hold.unlock();
    gone.reset();
    m.reset();
    hold.lock();
  }
  registers_wanted_ = false;
}

// Its bytes are counted as pinned already. The caller holds the lock, which is free while the platform registers.
bool mappings::register_window(mapping& m, std::size_t i, std::unique_lock<std::mutex>& hold) noexcept {
  hold.unlock();
  std::byte* const begin = static_cast<std::byte*>(m.memory.get()) + m.begin_of(i);
  const std::size_t nbytes = m.nbytes_of(i);
  std::string why;
  const void* device = nullptr;
  bool is_locked = false;
  try {
    // Else the kernel may take pages out of the mapping to reclaim memory, and whole_nbytes would take that for a cut. It needs
    // RLIMIT_MEMLOCK; if it fails, we go on. It comes first, because registering then brings the pages in.
    if (m.writable) is_locked = ::mlock2(begin, nbytes, MLOCK_ONFAULT) == 0;
    device = m.writable ? machine_.register_writable(begin, nbytes, &why) : machine_.register_readonly(begin, nbytes, &why);
  } catch (const std::exception& e) {
    why = text_of(e);
  }
  hold.lock();
  if (device != nullptr) {
    if (m.device_address == nullptr) m.device_address = static_cast<const std::byte*>(device) - m.begin_of(i);
    m.is_locked = is_locked;
    m.registered.fetch_or(std::uint64_t{1} << i, std::memory_order_release);
  } else {
    pinned_nbytes_ -= nbytes;
    m.failure = std::move(why);
  }
  end_window(m, i, device != nullptr ? window_state::registered : window_state::refused);
  return device != nullptr;
}

// The caller holds the lock.
void mappings::end_window(mapping& m, std::size_t i, window_state became) noexcept {
  m.windows[i].state.store(became, std::memory_order_relaxed);
  if (--m.nwanted == 0) m.due = {};
  registered_.notify_all();
}

bool mappings::hold_whole(use& of) {
  const std::scoped_lock hold(lock_);
  if (!of->is_whole()) return false;
  if (!of.get_deleter().holds_whole) ++of->nwhole;
  return of.get_deleter().holds_whole = true;
}

void mappings::release(mapping& used, bool held_whole) noexcept {
  std::shared_ptr<mapping> gone;
  const std::scoped_lock hold(lock_);
  if (held_whole) --used.nwhole;
  used.nunread = 0;  // who is a user has changed: they are asked anew
  gone = let_go(used);
}

// Removes one user. If it was the last one and nothing of the mapping is registered, returns the mapping: then only the caller has
// it, and must free it without the lock.
std::shared_ptr<mappings::mapping> mappings::let_go(mapping& used) noexcept {
  assert(used.users > 0);
  if (--used.users != 0) return nullptr;
  if (used.registered.load(std::memory_order_relaxed) != 0) {
    idle_.splice(idle_.end(), used_, used.place);
    idle_nbytes_ += used.registered_nbytes();
    return nullptr;
  }
  std::shared_ptr<mapping> gone = *used.place;
  by_version_.erase(used.version);
  used_.erase(used.place);
  return gone;
}

void mappings::trim(std::uint64_t keep_nbytes) {
  mapping_list unused;
  {
    const std::scoped_lock hold(lock_);
    while (!idle_.empty() && idle_nbytes_ > keep_nbytes) {
      idle_nbytes_ -= idle_.front()->registered_nbytes();
      by_version_.erase(idle_.front()->version);
      unused.splice(unused.end(), idle_, idle_.begin());
    }
  }
  for (const auto& m : unused) {
    const std::uint64_t nbytes = m->registered_nbytes();
    unmap(*m);
    const std::scoped_lock hold(lock_);
    pinned_nbytes_ -= nbytes;  // only now is the memory free again
  }
  // There may be room now for windows that were refused.
  const std::scoped_lock hold(lock_);
  lacking_nbytes_ = 0;
  for (const auto& m : used_) {
    m->nunread = 0;
    for (std::size_t i = 0; i < m->nwindows; ++i) {
      if (m->windows[i].state.load(std::memory_order_relaxed) != window_state::refused) continue;
      m->windows[i].state.store(window_state::none, std::memory_order_relaxed);
    }
  }
}

bool mappings::lacks_room() const {
  const std::scoped_lock hold(lock_);
  return lacking_nbytes_ != 0;
}

bool mappings::has_idle_room() const {
  const std::scoped_lock hold(lock_);
  return idle_nbytes_ != 0;
}

void mappings::give_up(mapping& used) noexcept {
  const std::scoped_lock hold(lock_);
  if (++used.nunread != used.users || used.nwhole != 0 || used.nwanted != 0) return;
  for (std::size_t i = 0; i < used.nwindows; ++i) {
    const std::uint64_t there = budget_nbytes_ - pinned_nbytes_ + idle_nbytes_ + given_up_nbytes_;
    if (lacking_nbytes_ <= there) return;
    if (!used.is_registered(i)) continue;
    try {
      given_up_.emplace_back(*used.place, i);
    } catch (const std::bad_alloc&) {  // then it stays
      return;
    }
    ++used.users;
    ++used.nwanted;
    given_up_nbytes_ += used.nbytes_of(i);
    used.windows[i].state.store(window_state::wanted, std::memory_order_relaxed);
    used.registered.fetch_and(~(std::uint64_t{1} << i), std::memory_order_release);
  }
}

// Of a window that was given up. Waits for kernels.
void mappings::unregister_window(mapping& m, std::size_t i) noexcept {
  machine_.unregister(static_cast<std::byte*>(m.memory.get()) + m.begin_of(i));
  std::shared_ptr<mapping> gone;
  const std::scoped_lock hold(lock_);
  pinned_nbytes_ -= m.nbytes_of(i);
  given_up_nbytes_ -= m.nbytes_of(i);
  m.windows[i].missed_nbytes.store(0, std::memory_order_relaxed);
  end_window(m, i, window_state::none);
  gone = let_go(m);
}

void mappings::make_room() {
  std::vector<std::pair<std::shared_ptr<mapping>, std::size_t>> given_up;
  {
    const std::scoped_lock hold(lock_);
    given_up.swap(given_up_);
  }
  for (const auto& [m, i] : given_up) unregister_window(*m, i);
  std::uint64_t keep = 0;
  {
    const std::scoped_lock hold(lock_);
    const std::uint64_t left = budget_nbytes_ - pinned_nbytes_;
    const std::uint64_t missing = lacking_nbytes_ > left ? lacking_nbytes_ - left : 0;
    keep = idle_nbytes_ > missing ? idle_nbytes_ - missing : 0;
  }
  trim(keep);
}

void mappings::unmap(mapping& m) noexcept {
  for (std::size_t i = 0; i < m.nwindows; ++i) {
    if (m.is_registered(i)) machine_.unregister(static_cast<std::byte*>(m.memory.get()) + m.begin_of(i));
  }
  m.memory.reset();
}

pin_usage mappings::usage() const {
  const std::scoped_lock hold(lock_);
  return {budget_nbytes_, pinned_nbytes_, idle_nbytes_, by_version_.size(), idle_.size()};
}

}  // namespace gpufs::store
