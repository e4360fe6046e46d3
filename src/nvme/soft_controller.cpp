// SPDX-License-Identifier: Apache-2.0
// Registers, queues and what happens when. soft_commands.cpp has what commands do.
#include "gpufs/nvme/soft_controller.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "dma_region.hpp"
#include "gpufs/simt/wait.hpp"
#include "soft_image.hpp"
#include "soft_pair.hpp"

namespace gpufs::nvme {

namespace {

constexpr std::uint32_t at_configuration = 0x14, at_status = 0x1c, at_admin_sizes = 0x24, at_admin_queues = 0x28;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

soft_controller::soft_controller(simt::platform& machine, const soft_options& options)
    : options_(options),
      nbells_(2 * std::max(options.nqueues + 1, 128u)),
      registers_(std::make_unique<pinned_memory>(machine, 0x1000 + nbells_ * (4u << options.doorbell_stride_shift))),
      random_(options.seed) {
  if (options.moves_nothing && options.nthreads == 0)
    throw std::invalid_argument("gpufs: soft_options::moves_nothing takes nthreads, of 1 or more");
  if (options.image.empty()) {
    for (std::uint32_t i = 0; i < options.nnamespaces; ++i) images_.emplace_back(options.nblocks << options.block_shift);
  } else {
    options_.nnamespaces = 1;
    images_.emplace_back(options.image, 1u << options.block_shift);
    options_.nblocks = images_[0].nbytes() >> options.block_shift;
  }
  nblocks_.assign(images_.size(), options_.nblocks);
  const std::uint64_t capabilities =
      (options.most_entries - 1) | std::uint64_t{options.contiguous_queues} << 16 | std::uint64_t{options.ready_halves} << 24 |
      std::uint64_t{options.doorbell_stride_shift} << 32 | std::uint64_t{options.nvm_commands} << 37 |
      std::uint64_t{options.least_page_shift - 12} << 48 | 4ull << 52;
  store(0, static_cast<std::uint32_t>(capabilities));
  store(4, static_cast<std::uint32_t>(capabilities >> 32));
  store(8, 0x20000);
  if (options.nthreads != 0) {
    for (std::uint32_t i = 0; i <= options.nqueues; ++i) served_.push_back(std::make_unique<served_pair>());
  }
  for (std::uint32_t i = 0; i < options.nthreads; ++i) servers_.emplace_back([this, i] { serve(i); });
  thread_ = std::thread([this] { run(); });
}

soft_controller::~soft_controller() {
  ends_.store(true);
  thread_.join();
  for (std::thread& each : servers_) each.join();
}

std::uint32_t* soft_controller::word(std::uint32_t offset) const {
  return reinterpret_cast<std::uint32_t*>(registers_->data() + offset);
}

std::uint32_t soft_controller::read32(std::uint32_t offset) {
  {
    const std::lock_guard lock(mutex_);
    if (unplugged_) return ~0u;
  }
  if (others_step_.load()) simt::backoff()();  // a lane looks: others go on
  return load(offset);
}

void soft_controller::write32(std::uint32_t offset, std::uint32_t value) { store(offset, value); }

std::vector<std::uint64_t> soft_controller::map(std::byte* memory, std::size_t nbytes) {
  const std::scoped_lock lock(mutex_, served_mutex_);
  if (reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || nbytes % 4096 != 0 || nbytes == 0)
    note("memory is mapped that is no pages");
  std::vector<std::uint64_t> addresses;
  next_page_ += 16;  // nothing lies between two mappings
  for (std::size_t i = 0; i < nbytes; i += 4096) {
    std::uint64_t page = next_page_++;
    while (options_.scattered && (page = 0x100 + draw(std::uint64_t{1} << 30), pages_.count(page) != 0)) {
    }
    pages_[page] = memory + i;
    addresses.push_back(page * 4096);
  }
  done_.nmapped += static_cast<std::uint32_t>(addresses.size());
  mappings_[memory] = addresses;
  return addresses;
}

void soft_controller::unmap(std::byte* memory) noexcept {
  const std::scoped_lock lock(mutex_, served_mutex_);
  const auto found = mappings_.find(memory);
  if (found == mappings_.end()) return note("memory is unmapped that was not mapped");
  for (const std::uint64_t address : found->second) pages_.erase(address / 4096);
  done_.nmapped -= static_cast<std::uint32_t>(found->second.size());
  mappings_.erase(found);
}

std::byte* soft_controller::at(std::uint64_t address, std::uint64_t nbytes) {
  const auto found = pages_.find(address / 4096);
  return found == pages_.end() || address % 4096 + nbytes > 4096 ? nullptr : found->second + address % 4096;
}

void soft_controller::note(const std::string& violation) {
  const std::lock_guard lock(notes_mutex_);
  if (violations_.size() < 20) violations_.push_back(violation);
}

void soft_controller::add(const soft_fault& fault) {
  if (options_.nthreads != 0 && fault.opcode < 0x100)
    throw std::invalid_argument(
        "gpufs: faults of commands for blocks take a soft controller of one thread (soft_options::nthreads 0)");
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}
void soft_controller::move_stuck() {
  const std::lock_guard lock(mutex_);
  for (const work& each : stuck_) execute(each.what);
}
void soft_controller::fail() {
  const std::lock_guard lock(mutex_);
  if (!enabled_) return;  // a reset is under way, which ends it
  failed_ = true;
  for (std::uint32_t id = 1; id < served_.size(); ++id) end_served(id, 0);
  store(at_status, load(at_status) | 2);
}
void soft_controller::unplug() {
  const std::lock_guard lock(mutex_);
  unplugged_ = true;
  for (std::uint32_t id = 1; id < served_.size(); ++id) end_served(id, 0);
}
void soft_controller::never_disable() {
  const std::lock_guard lock(mutex_);
  stays_ready_ = true;
}
void soft_controller::resize(std::uint64_t nblocks, std::uint32_t nsid) {
  const std::scoped_lock lock(mutex_, served_mutex_);
  nblocks_.at(nsid - 1) = std::clamp<std::uint64_t>(nblocks, 1, options_.nblocks);
}
void soft_controller::lose_power() {
  const std::lock_guard lock(mutex_);
  for (soft_image& each : images_) each.lose_cache();
}
std::vector<std::byte> soft_controller::bytes(std::uint32_t nsid) {
  const std::lock_guard lock(mutex_);
  return images_.at(nsid - 1).bytes();
}
std::vector<std::byte> soft_controller::medium(std::uint32_t nsid) {
  const std::lock_guard lock(mutex_);
  return images_.at(nsid - 1).medium();
}
void soft_controller::write_image(std::uint64_t lba, const std::vector<std::byte>& bytes, std::uint32_t nsid) {
  const std::lock_guard lock(mutex_);
  images_.at(nsid - 1).write(lba << options_.block_shift, bytes.data(), bytes.size(), true);
}
std::vector<std::string> soft_controller::violations() {
  const std::lock_guard lock(notes_mutex_);
  return violations_;
}
soft_controller::counts soft_controller::done() {
  const std::lock_guard lock(mutex_);
  counts all = done_;
  all.flushes = nflushes_.load();
  for (const auto& each : served_) {
    const std::lock_guard here(each->mutex);
    const std::uint64_t n = each->ncompleted + (each->pair ? each->pair->ncompleted() : 0);
    all.commands += n;
    all.completions += n;
  }
  return all;
}

bool soft_controller::step() {
  const std::lock_guard lock(mutex_);
  if (unplugged_) return false;
  bool did = look_at_configuration();
  if (enabled_ && !failed_) {
    did = look_at_doorbells() || did;
    did = fetch() || did;
    did = complete_some() || did;
  }
  return did;
}

void soft_controller::run() {
  std::uint32_t idle = 0;
  while (!ends_.load()) {
    idle = !others_step_.load() && step() ? 0 : idle + 1;
    if (idle > 200) {
      std::this_thread::sleep_for(std::chrono::microseconds(30));
    } else {
      std::this_thread::yield();
    }
  }
}

// The queues for blocks whose turn is this thread's.
void soft_controller::serve(std::uint32_t thread) {
  std::uint32_t idle = 0;
  const auto due = [this](std::uint32_t n) { return due_of(n); };
  const auto do_it = [this](const std::uint32_t* words) {
    command_words what;
    std::memcpy(&what, words, sizeof what);
    return options_.moves_nothing && what.opcode() != 0 ? 0 : execute(what);
  };
  while (!ends_.load()) {
    std::uint32_t n = 0;
    for (std::size_t id = thread + 1; id < served_.size(); id += options_.nthreads) {
      served_pair& mine = *served_[id];
      if (!mine.is_there.load(std::memory_order_relaxed)) continue;
      const std::lock_guard lock(mine.mutex);
      if (!mine.pair) continue;
      const std::shared_lock memory(served_mutex_);
      n += mine.pair->step(now_ns(), due, do_it);
    }
    idle = n != 0 ? 0 : idle + 1;
    if (idle > 200) {
      std::this_thread::sleep_for(std::chrono::microseconds(30));
    } else if (idle != 0) {
      std::this_thread::yield();
    }
  }
}

// When the next n commands that are fetched are done: the first, and how much later each other one.
std::pair<std::uint64_t, std::uint64_t> soft_controller::due_of(std::uint32_t n) {
  const std::uint64_t now = now_ns();
  if (options_.most_per_second == 0) return {now + options_.latency_ns, 0};
  const std::uint64_t apart = 1'000'000'000 / options_.most_per_second;
  std::uint64_t next = next_start_ns_.load(std::memory_order_relaxed);
  while (!next_start_ns_.compare_exchange_weak(next, std::max(next, now) + n * apart, std::memory_order_relaxed)) {
  }
  return {std::max(next, now) + options_.latency_ns, apart};
}

// From here on no thread touches the queue's memory, nor that of its commands. status: of those that are not done; 0: none is told.
void soft_controller::end_served(std::uint32_t id, std::uint32_t status) {
  served_pair& ends = *served_[id];
  const std::lock_guard lock(ends.mutex);
  if (!ends.pair) return;
  if (status != 0) ends.pair->end_all(status);
  ends.ncompleted += ends.pair->ncompleted();
  ends.pair.reset();
  ends.is_there.store(false, std::memory_order_relaxed);
}

// CC: it is enabled, disabled or shut down.
bool soft_controller::look_at_configuration() {
  const std::uint32_t configuration = load(at_configuration);
  const bool wanted = (configuration & 1) != 0;
  if (wanted && (configuration & 3u << 14) != 0 && (load(at_status) & 0xc) == 0) {
    for (soft_image& each : images_) each.flush();
    store(at_status, load(at_status) | 2u << 2);
    return true;
  }
  if (wanted == enabled_) return false;
  if (!wanted) {
    if (stays_ready_) return false;
    enabled_ = failed_ = false;
    for (std::uint32_t id = 1; id < served_.size(); ++id) end_served(id, 0);
    submissions_.clear();
    completions_.clear();
    working_.clear();
    stuck_.clear();
    ++done_.resets;
    store(at_status, 0);  // from here on it touches no memory
    return true;
  }
  if (!options_.gets_ready) return false;
  if ((configuration >> 16 & 0xff) != 0x46) note("CC names other sizes of entries than 64 and 16 bytes");
  if ((configuration >> 7 & 15) != 0) note("CC names other pages than 4 KiB");
  const auto queue_at = [&](std::uint32_t offset) { return at(load(offset) | std::uint64_t{load(offset + 4)} << 32, 4096); };
  std::byte* const commands = queue_at(at_admin_queues);
  std::byte* const entries = queue_at(at_admin_queues + 8);
  if (commands == nullptr || entries == nullptr) {
    note("the admin queue is no memory");
    failed_ = true;
    store(at_status, 2);
    return true;
  }
  for (std::uint32_t i = 0; i < nbells_; ++i) store(bell_offset(i), 0);
  submissions& out = submissions_[0];
  out.page = {commands};
  out.n = (load(at_admin_sizes) & 0xfff) + 1;
  completions& in = completions_[0];
  in.page = {entries};
  in.n = (load(at_admin_sizes) >> 16 & 0xfff) + 1;
  enabled_ = true;
  store(at_status, 1);
  return true;
}

// Base 2.0, section 3.3.1: a doorbell is a slot of its queue; a tail never passes the head, nor a head what was
// posted.
bool soft_controller::look_at_doorbells() {
  bool did = false;
  const std::uint32_t n = served_.empty() ? nbells_ : 2;  // threads look at those of theirs
  for (std::uint32_t bell = 0; bell < n; ++bell) {
    const std::uint32_t value = load(bell_offset(bell)), queue = bell / 2;
    const bool is_tail = bell % 2 == 0;
    const auto out = submissions_.find(queue);
    const auto in = completions_.find(queue);
    if (is_tail ? out == submissions_.end() : in == completions_.end()) {
      if (value != 0) {
        note("a doorbell of a queue that is not there: " + std::to_string(queue));
        store(bell_offset(bell), 0);
      }
      continue;
    }
    std::uint32_t& known = is_tail ? out->second.bell : in->second.bell;
    if (value == known) continue;
    const std::uint32_t nslots = is_tail ? out->second.n : in->second.n;
    if (value >= nslots) {
      note("a doorbell beyond its queue");
      continue;
    }
    did = true;
    const std::uint32_t moves = (value + nslots - known) % nslots;
    if (is_tail) {
      submissions& from = out->second;
      if (moves > nslots - 1 - (known + nslots - from.head) % nslots) note("a tail goes back, or passes the head");
      for (std::uint32_t slot = known; slot != value; slot = (slot + 1) % nslots) {
        command_words words;
        std::memcpy(&words, from.page[slot / 64] + slot % 64 * 64, sizeof words);
        from.published.push_back(words);
      }
      known = value;
      if (queue == 0) continue;
      done_.most_under_way = std::max(done_.most_under_way, static_cast<std::uint32_t>(from.ids.size() + from.published.size()));
    } else {
      if (moves > (in->second.tail + nslots - known) % nslots) note("a completion doorbell goes back, or passes what was posted");
      known = value;
    }
  }
  return did;
}

bool soft_controller::fetch() {
  bool did = false;
  for (auto& [queue, from] : submissions_) {
    std::uint64_t most = from.published.size();
    if (options_.lazy && most > 1) most = 1 + draw(most);
    if (options_.fetch_every_ns != 0 && queue != 0 && most != 0) {
      if (now_ns() < next_fetch_ns_) continue;
      next_fetch_ns_ = now_ns() + options_.fetch_every_ns;
      most = 1;
    }
    for (; most != 0; --most) {
      if (queue == 0 && draw(4) == 0 && options_.lazy) break;
      take(queue, from);
      did = true;
      if (queue == 0) break;  // an admin command may have changed which queues there are
    }
    if (queue == 0 && did) return true;
  }
  return did;
}

// One command is fetched.
void soft_controller::take(std::uint32_t queue, submissions& from) {
  command_words words;
  std::memcpy(&words, from.page[from.head / 64] + from.head % 64 * 64, sizeof words);
  if (std::memcmp(&words, &from.published.front(), sizeof words) != 0) note("a command changes after its doorbell");
  from.published.pop_front();
  from.head = (from.head + 1) % from.n;
  ++(queue == 0 ? done_.admin_commands : done_.commands);
  if (from.ids.count(words.id()) != 0) {
    note("a command's identifier is in use");
  }
  from.ids[words.id()] = true;
  if ((words.dword[0] >> 8 & 0xff) != 0) note("a command is fused, or has SGLs");
  if (words.dword[2] != 0 || words.dword[3] != 0 || words.quad(4) != 0) note("reserved words of a command are not 0");
  work next{queue, words, now_ns() + options_.latency_ns, false, {}};
  if (queue != 0) next.due_ns = due_of(1).first;
  const int opcode = static_cast<int>(words.opcode()) | (queue == 0 ? 0x100 : 0);
  for (soft_fault& fault : faults_) {
    if (fault.times == 0 || (fault.opcode != -1 && fault.opcode != opcode) || (fault.opcode == -1 && queue == 0)) continue;
    if (queue != 0 && opcode != 0 && (words.quad(10) < fault.first_lba || words.quad(10) > fault.last_lba)) continue;
    if (fault.skip != 0) {
      --fault.skip;
      continue;
    }
    --fault.times;
    next.has_fault = true;
    next.fault = fault;
    if (fault.does == soft_fault::what::delay) next.due_ns += fault.delay_ns;
    break;
  }
  if (next.has_fault && next.fault.does == soft_fault::what::stick) {
    stuck_.push_back(next);
  } else {
    working_.push_back(next);
  }
}

// Commands whose time has come: some of them, in any order.
bool soft_controller::complete_some() {
  const std::uint64_t now = now_ns();
  std::vector<std::size_t> due;
  for (std::size_t i = 0; i < working_.size(); ++i) {
    if (working_[i].due_ns <= now) due.push_back(i);
  }
  if (due.empty()) return false;
  if (options_.reorders) std::shuffle(due.begin(), due.end(), random_);
  if (options_.lazy) due.resize(1 + draw(due.size()));
  bool did = false;
  for (const std::size_t i : due) {
    const work each = working_[i];
    if (each.due_ns == ended) continue;  // by an admin command, just now
    // No room in the completion queue: the command waits. It has moved nothing yet.
    const completions& to = completions_.at(each.queue == 0 ? 0 : submissions_.at(each.queue).completions);
    if ((to.tail + 1) % to.n == to.bell) {
      ++done_.stalls;
      continue;
    }
    working_[i].due_ns = ended;
    std::uint32_t status = 0, result = 0;
    if (each.has_fault && each.fault.does == soft_fault::what::fail) {
      status = each.fault.status;
    } else if (each.queue == 0) {
      execute_admin(each.what, status, result);
    } else {
      status = execute(each.what);
    }
    const bool is_back = each.has_fault && each.fault.does == soft_fault::what::back;
    if (!each.has_fault || each.fault.does != soft_fault::what::lose)
      post(each.queue, each.what.id(), status, result, is_back ? 2 : 0);
    did = true;
  }
  std::erase_if(working_, [](const work& each) { return each.due_ns == ended; });
  return did;
}

// An entry: its last word, which has the phase, comes last.
bool soft_controller::post(std::uint32_t queue, std::uint16_t id, std::uint32_t status, std::uint32_t result, std::uint32_t back) {
  submissions& from = submissions_.at(queue);
  completions& to = completions_.at(queue == 0 ? 0 : from.completions);
  if ((to.tail + 1) % to.n == to.bell) return false;
  auto* const entry = reinterpret_cast<std::uint32_t*>(to.page[to.tail / 256] + to.tail % 256 * 16);
  const std::uint32_t words[4] = {result, 0, (from.head + from.n - back) % from.n | queue << 16,
                                  id | to.phase << 16 | status << 17};
  for (int i = 0; i < 4; ++i) {
    if (options_.lazy && i != 0 && draw(8) == 0) std::this_thread::yield();
    std::atomic_ref(entry[i]).store(words[i], std::memory_order_release);
  }
  if (++to.tail == to.n) {
    to.tail = 0;
    to.phase ^= 1;
  }
  from.ids.erase(id);
  ++done_.completions;
  return true;
}

}  // namespace gpufs::nvme
