// SPDX-License-Identifier: Apache-2.0
#include "controller.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "gpufs/nvme/detail/status.hpp"

namespace gpufs::nvme {

namespace {

template <class T>
T field(const std::byte* page, std::size_t offset) {
  T value;
  std::memcpy(&value, page + offset, sizeof value);
  return value;
}

std::string hex(std::uint32_t word) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", word);
  return text;
}

constexpr int most_resets = 3;  // in a row, of a controller that fails while it is reset

clock::time_point in(std::uint64_t ns) { return clock::now() + std::chrono::nanoseconds(ns); }

// By the status of a controller that should run: it has failed or is gone (all ones), or somebody else has reset it (a function's
// reset by the system, say), and then it knows no queue any more, and answers no abort.
bool has_stopped(std::uint32_t status) { return (status & state::fatal) != 0 || (status & state::ready) == 0; }

}  // namespace

controller::controller(controller_access& access, simt::platform& machine, const controller_options& options)
    : access_(access),
      machine_(machine),
      options_(options),
      admin_(access, machine),
      page_(access, machine, bus_page_nbytes),
      memory_(machine) {
  if (options.nqueues == 0 || options.nqueues > 65535 || options.depth < 2 || options.depth > 16384 || options.buffer_nbytes == 0 ||
      options.buffer_nbytes % bus_page_nbytes != 0) {
    refuse(EINVAL, "a controller has 1 to 65,535 pairs of queues, of 2 to 16,384 slots, and buffers of a multiple of 4,096 bytes");
  }
  try {
    take_over();
    if (options.look_every_ns != 0) looker_ = std::thread([this] { look_now_and_then(); });
  } catch (...) {
    try {
      set_ready(false);                   // no memory stays its own
    } catch (const std::system_error&) {  // it has stopped to answer
    }
    throw;
  }
}

void controller::take_over() {
  const std::uint32_t now = access_.read32(at::status);
  if (now == state::gone) refuse(ENODEV, "it does not answer: is it unplugged, or its memory space disabled?");
  limits_.cap = {access_.read32(at::cap) | std::uint64_t{access_.read32(at::cap + 4)} << 32};
  if (!limits_.cap.has_nvm_commands()) refuse(EOPNOTSUPP, "it has no NVM command set");
  if (limits_.cap.least_page_shift() != 12) refuse(EOPNOTSUPP, "its pages are larger than 4,096 bytes");
  limits_.depth = std::min(options_.depth, limits_.cap.most_entries());
  if (limits_.depth < 2) refuse(EOPNOTSUPP, "its queues have one entry");
  set_ready(false);
  start();
  must(identify(admin::of_controller, 0), "identify");
  limits_.model.assign(reinterpret_cast<const char*>(page_.data()) + 24, 40);
  limits_.model.erase(limits_.model.find_last_not_of(' ') + 1);
  const auto mdts = field<std::uint8_t>(page_.data(), 77);
  limits_.most_nbytes = mdts == 0 ? 0 : mdts >= 48 ? 0 : std::uint64_t{1} << (mdts + limits_.cap.least_page_shift());
  limits_.has_write_cache = (field<std::uint8_t>(page_.data(), 525) & 1) != 0;
  const std::uint32_t wanted = std::min(options_.nhost_queues, 65535 - options_.nqueues);
  const std::uint32_t granted = ask_for_queues(options_.nqueues + wanted);
  // The host has what kernels leave, and one of two at least.
  const std::uint32_t nhost = granted < 2 || wanted == 0 ? 0 : granted > options_.nqueues ? granted - options_.nqueues : 1;
  limits_.nqueues = granted - nhost;

  std::uint64_t most = std::max<std::uint64_t>(options_.buffer_nbytes, std::uint64_t{4} << 20);  // of a command
  if (limits_.most_nbytes != 0) most = std::min(most, limits_.most_nbytes);
  std::vector<queue_layout> layouts;
  for (std::uint32_t id = 1; id <= limits_.nqueues; ++id) {
    queues_.push_back(std::make_unique<queue_memory>(
        access_, machine_,
        queue_options{id, limits_.depth, options_.buffer_nbytes, static_cast<std::uint32_t>(most), limits_.cap.doorbell_stride()}));
    queue_memory& made = *queues_.back();
    if (limits_.cap.wants_contiguous_queues() && !(made.submissions().is_contiguous() && made.completions().is_contiguous())) {
      refuse(EINVAL,
             "it wants queues in one piece (CAP.CQR), and this memory is in pieces: choose a depth of 64 at most, or larger pages");
    }
    if (!create(made)) refuse(EIO, "it refuses to make queue " + std::to_string(id));
    layouts.push_back(made.layout());
  }
  layouts_ = memory_.allocate(layouts);
  for (std::uint32_t id = limits_.nqueues + 1; id <= granted; ++id) {
    blocks_.push_back(std::make_unique<host_blocks>(access_, machine_, id, limits_.cap.most_entries(), limits_.most_nbytes,
                                                    options_.host_timeout_ns));
    blocks_.back()->queue().begin(limits_.cap.doorbell_stride());
    if (!create(blocks_.back()->queue())) refuse(EIO, "it refuses to make a queue for the host");
    idle_.push_back(blocks_.back().get());
  }
  writing_.reserve(blocks_.size());
  for (const auto& each : queues_) each->open();
}

controller::~controller() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  if (looker_.joinable()) looker_.join();
  close_for_good();
  if (access_.read32(at::status) == state::gone) return;
  if (!done_.dead) {  // else it may be disabled already, and would begin anew
    configure(configuration::entry_sizes | configuration::enable | configuration::normal_shutdown);
    const auto until = in(options_.admin_timeout_ns);
    while ((access_.read32(at::status) & state::shutdown_mask) != state::shut_down && clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  try {
    set_ready(false);
  } catch (const std::system_error&) {
    std::fprintf(stderr, "gpufs: the NVMe controller %s does not let itself be disabled\n", access_.name().c_str());
  }
}

void controller::refuse(int error, const std::string& why) const {
  throw std::system_error(error, std::generic_category(), "gpufs: the NVMe controller " + access_.name() + ": " + why);
}

void controller::set_ready(bool ready) {
  configure(ready ? configuration::entry_sizes | configuration::enable : 0);
  const auto until = in(std::max<std::uint64_t>(limits_.cap.ready_ns(), 500'000'000));
  for (;;) {
    const std::uint32_t now = access_.read32(at::status);
    if (now == state::gone) refuse(ENODEV, "it is gone");
    if (ready && (now & state::fatal) != 0) refuse(EIO, "it says that it has failed (CSTS.CFS): reset or replug it");
    if (((now & state::ready) != 0) == ready) return;
    if (clock::now() >= until) refuse(ETIMEDOUT, ready ? "it does not get ready" : "it does not stop");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// It is disabled.
void controller::start() {
  admin_.begin(limits_.cap.doorbell_stride());
  set_ready(true);
}

void controller::must(int status, const char* call) const {
  if (status == 0) return;
  if (status < 0) refuse(-status, std::string("no answer to ") + call);
  refuse(EIO, std::string(call) + " failed: status " + hex(code_of(static_cast<status_word>(status))));
}

int controller::identify(std::uint32_t what, std::uint32_t nsid) {
  submission ask{};
  ask.cdw0 = admin::identify;
  ask.nsid = nsid;
  ask.prp1 = page_.page_at(0);
  ask.cdw10 = what;
  return execute(ask);
}

std::uint32_t controller::ask_for_queues(std::uint32_t n) {
  submission ask{};
  ask.cdw0 = admin::set_features;
  ask.cdw10 = admin::number_of_queues;
  ask.cdw11 = (n - 1) << 16 | (n - 1);
  std::uint32_t granted = 0;
  must(execute(ask, &granted), "a number of queues");
  return std::min({n, (granted & 0xffff) + 1, (granted >> 16) + 1});
}

bool controller::create(queue_memory& queue) {
  const queue_layout& layout = queue.layout();
  const auto one = [&](std::uint32_t what, const dma_region& memory, std::uint32_t flags) {
    return memory.is_contiguous() ? create(what, layout.id, layout.nslots, memory.page_at(0), flags | 1)
                                  : create(what, layout.id, layout.nslots, queue.page_list(memory), flags);
  };
  return one(admin::create_completions, queue.completions(), 0) &&
         one(admin::create_submissions, queue.submissions(), layout.id << 16);
}

bool controller::create(host_queue& queue) {
  return create(admin::create_completions, queue.id(), queue.nslots(), queue.completions_at(), 1) &&
         create(admin::create_submissions, queue.id(), queue.nslots(), queue.submissions_at(), queue.id() << 16 | 1);
}

// Flags: bit 0, the queue lies in one piece. No interrupts.
bool controller::create(std::uint32_t what, std::uint32_t id, std::uint32_t nslots, std::uint64_t address, std::uint32_t flags) {
  submission ask{};
  ask.cdw0 = what;
  ask.prp1 = address;
  ask.cdw10 = (nslots - 1) << 16 | id;
  ask.cdw11 = flags;
  return execute(ask) == 0;
}

// Submissions first: the controller ends all their commands before it answers.
bool controller::remove(queue_memory& queue) {
  submission ask{};
  ask.cdw10 = queue.layout().id;
  ask.cdw0 = admin::delete_submissions;
  if (execute(ask) != 0) return false;
  ask.cdw0 = admin::delete_completions;
  return execute(ask) == 0;
}

// work() asks by admin commands.
template <class Work>
auto controller::ask(Work work) {
  const std::lock_guard lock(mutex_);
  for (bool once_more = true;; once_more = false) {
    if (done_.dead) refuse(ENODEV, "it is lost");
    try {
      return work();
    } catch (const std::system_error& error) {
      if (error.code().value() != ETIMEDOUT) throw;
      const bool has_failed = this->has_failed();
      reset_locked();  // or the next answer would be taken for this one's
      if (!has_failed || !once_more) throw;
    }
  }
}
std::vector<namespace_facts> controller::namespaces() {
  return ask([&] { return namespaces_locked(); });
}
namespace_facts controller::look_at(std::uint32_t nsid) {
  return ask([&] { return look_at_locked(nsid); });
}
bool controller::is_there() const {
  const std::lock_guard lock(mutex_);
  return !done_.dead && access_.read32(at::status) != state::gone;
}

std::vector<namespace_facts> controller::namespaces_locked() {
  must(identify(admin::active_namespaces, 0), "identify");
  std::vector<std::uint32_t> ids(bus_page_nbytes / 4);
  std::memcpy(ids.data(), page_.data(), bus_page_nbytes);
  ids.erase(std::find(ids.begin(), ids.end(), 0u), ids.end());
  std::vector<namespace_facts> found;
  found.reserve(ids.size());
  for (const std::uint32_t id : ids) found.push_back(look_at_locked(id));
  return found;
}

namespace_facts controller::look_at_locked(std::uint32_t nsid) {
  const int status = identify(admin::of_namespace, nsid);
  if (status > 0 && code_of(static_cast<status_word>(status)) == code::invalid_namespace) return {nsid, 0, 0};
  must(status, "identify");
  const std::byte* const page = page_.data();  // zeros of one that is not active
  const auto flbas = field<std::uint8_t>(page, 26);
  const auto format = field<std::uint32_t>(page, 128 + 4 * ((flbas & 15u) | (flbas >> 1 & 0x30u)));
  const auto shift = format >> 16 & 0xff;
  // Of a format that is not for blocks of bytes alone, no size: open says so.
  const bool plain = (format & 0xffff) == 0 && (field<std::uint8_t>(page, 29) & 7) == 0 && shift >= 9 && shift <= 16;
  return {nsid, field<std::uint64_t>(page, 0), plain ? 1u << shift : 0};
}

const namespace_layout* controller::open(std::uint32_t nsid) {
  const namespace_facts found = look_at(nsid);
  if (found.nblocks == 0) refuse(ENODEV, "it has no namespace " + std::to_string(nsid) + " that is active");
  if (found.block_nbytes == 0)
    refuse(EOPNOTSUPP, "namespace " + std::to_string(nsid) + " has metadata or protection, or odd blocks");
  if (found.block_nbytes > options_.buffer_nbytes) {
    refuse(EOPNOTSUPP,
           "its blocks have " + std::to_string(found.block_nbytes) + " bytes, which is more than buffer_nbytes: make that larger");
  }
  namespace_layout made{};
  made.queues = layouts_;
  made.nblocks = found.nblocks;
  made.nqueues = limits_.nqueues;
  made.nsid = nsid;
  while (1u << made.block_shift < found.block_nbytes) ++made.block_shift;
  made.blocks_a_command = static_cast<std::uint32_t>(command_nbytes(found) >> made.block_shift);
  if (made.blocks_a_command == 0) {
    refuse(EOPNOTSUPP, "its blocks have " + std::to_string(found.block_nbytes) + " bytes, and a command moves at most " +
                           std::to_string(limits_.most_nbytes) + " (MDTS)");
  }
  made.writable = options_.writable ? 1 : 0;
  const std::lock_guard lock(mutex_);
  return memory_.allocate(std::vector{made});
}

std::uint64_t controller::command_nbytes(const namespace_facts& of) const {
  const std::uint64_t block = of.block_nbytes;
  const std::uint64_t most =
      limits_.most_nbytes == 0 ? options_.buffer_nbytes : std::min<std::uint64_t>(options_.buffer_nbytes, limits_.most_nbytes);
  return std::min<std::uint64_t>(most / block, 65536) * block;
}

// Each wait is for calls that end in their time, or for a reset that does.
template <class Work>
int controller::by_host(const written_blocks& writes, Work work) {
  std::unique_lock lock(mutex_);
  if (blocks_.empty()) return done_.dead ? -ENODEV : -EOPNOTSUPP;
  for (bool once_more = true;; once_more = false) {
    // A block that is written in part is read before, so nobody else may write it meanwhile.
    const auto is_free = [&] {
      return nresetting_ == 0 && !idle_.empty() &&
             std::none_of(writing_.begin(), writing_.end(), [&](const written_blocks& each) { return each.meet(writes); });
    };
    host_changes_.wait(lock, [&] { return done_.dead || is_free(); });
    if (done_.dead) return -ENODEV;
    host_blocks* const mine = idle_.back();
    idle_.pop_back();
    writing_.push_back(writes);
    const std::uint64_t resets = done_.resets;
    lock.unlock();
    const int error = work(*mine);
    lock.lock();
    idle_.push_back(mine);
    writing_.erase(std::find(writing_.begin(), writing_.end(), writes));
    host_changes_.notify_all();
    if (error != -ETIMEDOUT) return error;
    // Now, before anybody has the queue: or the answer may come as another command's, and into the buffer.
    const bool has_failed = done_.resets != resets || this->has_failed();
    if (done_.resets == resets && !done_.dead) reset_locked();
    if (!has_failed || !once_more) return error;
  }
}
bool controller::has_failed() {
  const std::uint32_t now = access_.read32(at::status);
  return now != state::gone && (now & state::fatal) != 0;
}
int controller::read(const namespace_facts& of, std::uint64_t offset, std::span<std::byte> to) {
  return by_host({}, [&](host_blocks& blocks) { return blocks.read(of, offset, to); });
}
int controller::write(const namespace_facts& of, std::uint64_t offset, std::span<const std::byte> from) {
  if (!options_.writable) return -EROFS;
  const std::uint64_t block = std::max(of.block_nbytes, 1u), nbytes = std::max<std::uint64_t>(from.size(), 1);
  return by_host({of.nsid, offset / block, (offset + nbytes - 1) / block},
                 [&](host_blocks& blocks) { return blocks.write(of, offset, from); });
}
int controller::flush(const namespace_facts& of) {
  return by_host({}, [&](host_blocks& blocks) { return blocks.flush(of); });
}

std::unique_ptr<dma_region> controller::make_memory(std::size_t nbytes) {
  const std::lock_guard lock(mutex_);
  return std::make_unique<dma_region>(access_, machine_, nbytes);
}

controller::counts controller::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::size_t controller::recover() {
  const std::lock_guard lock(mutex_);
  return recover_locked();
}

void controller::reset() {
  const std::lock_guard lock(mutex_);
  if (!done_.dead) reset_locked();
}

std::size_t controller::recover_locked() {
  if (done_.dead) return 0;
  if (const std::uint32_t now = access_.read32(at::status); has_stopped(now)) {
    // Who resets a function has it for 100 ms (PCI Express, 6.6.2), and then writes its configuration back: what we write meanwhile
    // may be lost.
    if ((now & state::fatal) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    reset_locked();
    return 0;
  }
  std::size_t n = 0;
  for (const auto& queue : queues_) {
    const std::vector<std::uint32_t> lost = queue->given_up();
    n += lost.size();
    if (lost.empty() || abort_all(*queue, lost) || make_again(*queue)) continue;
    reset_locked();
    break;
  }
  return n;
}

// Whether all of them have come back.
bool controller::abort_all(queue_memory& queue, const std::vector<std::uint32_t>& lost) {
  for (const std::uint32_t record : lost) {
    submission ask{};
    ask.cdw0 = admin::abort;
    ask.cdw10 = record << 16 | queue.layout().id;
    std::uint32_t result = 0;
    if (execute(ask, &result) != 0) return false;
    ++done_.aborts;
    if ((result & 1) != 0) break;  // it was not aborted: the controller does not know the command, and no completion will come
  }
  // Kernels that poll take the completions. If none does, the queue is made again.
  for (const auto until = in(options_.abort_wait_ns); clock::now() < until;) {
    if (queue.given_up().empty()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

bool controller::make_again(queue_memory& queue) {
  queue.close();
  if (!queue.is_empty_by(in(options_.inside_wait_ns))) return false;
  if (!remove(queue)) return false;
  ++done_.deletions;
  queue.begin_anew();
  if (!create(queue)) return false;
  queue.open();
  return true;
}

// Also where the device is lost: then no lane is inside any more.
void controller::close_for_good() {
  try {
    for (const auto& queue : queues_) queue->close(gate_state::dead);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpufs: the NVMe controller %s: %s\n", access_.name().c_str(), error.what());
  }
}

// Waits until no call of the host's is under way, without the mutex; another reset may be made meanwhile, and is enough.
void controller::reset_locked() {
  std::string why;
  const std::uint64_t before = done_.resets;
  ++nresetting_;
  std::unique_lock lock(mutex_, std::adopt_lock);
  host_changes_.wait(lock, [&] { return idle_.size() == blocks_.size(); });
  lock.release();
  --nresetting_;
  if (done_.resets != before || done_.dead) return host_changes_.notify_all();
  for (int tries = 0; tries < most_resets; ++tries) {
    try {
      bring_back();
      ++done_.resets;
      return host_changes_.notify_all();
    } catch (const std::system_error& error) {
      why = error.what();
      if (error.code().value() != EIO && !has_failed()) break;  // else it has failed once more meanwhile
    } catch (const std::exception& error) {                     // the device's, as after a kernel that was stopped
      why = error.what();
      break;
    }
  }
  done_.dead = true;
  host_changes_.notify_all();
  std::fprintf(stderr, "%s\n", why.c_str());
  close_for_good();
}

void controller::bring_back() {
  for (const auto& queue : queues_) queue->close();
  // Not before all are out: who is inside may still ring.
  const auto until = in(options_.inside_wait_ns);
  const bool all_out = std::all_of(queues_.begin(), queues_.end(), [&](const auto& queue) { return queue->is_empty_by(until); });
  set_ready(false);  // from here on it touches no memory
  if (!all_out) refuse(ETIMEDOUT, "kernels are inside its queues, and do not leave");
  start();
  const auto nall = static_cast<std::uint32_t>(limits_.nqueues + blocks_.size());
  if (ask_for_queues(nall) < nall) refuse(EIO, "it grants fewer queues than before");
  for (const auto& each : blocks_) {
    each->queue().begin(limits_.cap.doorbell_stride());
    if (!create(each->queue())) refuse(EIO, "it refuses to make the host's queues again");
  }
  for (const auto& queue : queues_) {
    queue->begin_anew();
    if (!create(*queue)) refuse(EIO, "it refuses to make queues again");
  }
  for (const auto& queue : queues_) queue->open();
}

void controller::look_now_and_then() {
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, std::chrono::nanoseconds(options_.look_every_ns), [this] { return ends_; })) {
    if (done_.dead) continue;
    try {
      bool news = has_stopped(access_.read32(at::status));
      for (const auto& queue : queues_) news = queue->has_news() || news;
      if (news) recover_locked();
    } catch (const std::exception& error) {  // the device is lost, and its kernels
      done_.dead = true;
      host_changes_.notify_all();
      std::fprintf(stderr, "gpufs: the NVMe controller %s: %s\n", access_.name().c_str(), error.what());
    }
  }
}

}  // namespace gpufs::nvme
