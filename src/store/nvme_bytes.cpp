// SPDX-License-Identifier: Apache-2.0
#include "nvme_bytes.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace gpufs::store {

std::string blocks_of(const nvme::namespace_facts& facts) {
  return std::to_string(facts.nblocks) + " blocks of " + std::to_string(facts.block_nbytes) + " bytes";
}

namespace {

void keep_first(int& error, int next) {
  if (error == 0) error = next;
}

}  // namespace

int nvme_namespace::check(std::string* why) {
  try {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (seen_ && now - *seen_ < believed_for && of.driver.is_there()) return 0;
    seen_.reset();
    const nvme::namespace_facts found = of.driver.look_at(facts.nsid);
    if (found == facts) {
      seen_ = now;
      return 0;
    }
    if (found.nblocks == 0) {
      *why = "the namespace " + name + " is not active any more";
      return -ENODEV;
    }
    *why = "the namespace " + name + " has " + blocks_of(found) + " now, and had " + blocks_of(facts) +
           " when it was mounted: mount it again";
    return -ESTALE;
  } catch (const std::system_error& gone) {
    *why = gone.what();
    return -gone.code().value();
  }
}

nvme_column::nvme_column(std::vector<nvme_part> copies, simt::platform& machine) : copies_(std::move(copies)) {
  if (copies_.size() > 1) left_out_.emplace(copies_.size(), machine);
}

// Acquire: meets leave_out's release, as kernels' loads do.
bool nvme_column::is_left_out(std::size_t i) const {
  return left_out_ && std::atomic_ref((*left_out_)[i]).load(std::memory_order_acquire) != 0;
}

int nvme_column::read(std::uint64_t offset, std::span<std::byte> to, std::uint32_t first) {
  int answer = 0;
  for (std::uint32_t tried = 0; tried < ncopies(); ++tried) {
    const std::uint32_t i = (first + tried) % ncopies();
    if (is_left_out(i)) continue;
    const nvme_part& from = copies_[i];
    const int error = from.space->of.driver.read(from.space->facts, from.begin + offset, to);
    if (error == 0) return 0;
    keep_first(answer, error);
  }
  return answer;
}

// work(part) -> 0 or -errno. What it throws is that copy's error: the others may have been written before.
template <class Work>
std::vector<int> nvme_column::each_copy(Work work) const {
  std::vector<int> errors(copies_.size(), not_tried);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (is_left_out(i)) continue;
    try {
      errors[i] = work(copies_[i]);
    } catch (const std::system_error& error) {
      errors[i] = -error.code().value();
    } catch (const std::exception&) {
      errors[i] = -ENOMEM;
    }
  }
  return errors;
}

// Of several copies the bytes are one call's while it lives. Who waits for it waits no longer than its commands may take, each of
// which has the controller's host_timeout_ns.
class nvme_column::turn {
 public:
  turn(nvme_column& of, const range& mine) : of_(of), mine_(mine) {
    if (of_.copies_.size() == 1) return;
    std::unique_lock lock(of_.mutex_);
    of_.changes_.wait(lock, [&] {
      return std::none_of(of_.writing_.begin(), of_.writing_.end(),
                          [&](const range& each) { return each.begin < mine.end && mine.begin < each.end; });
    });
    of_.writing_.push_back(mine);
  }
  ~turn() {
    if (of_.copies_.size() == 1) return;
    {
      const std::lock_guard lock(of_.mutex_);
      of_.writing_.erase(std::find(of_.writing_.begin(), of_.writing_.end(), mine_));
    }
    of_.changes_.notify_all();
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;

 private:
  nvme_column& of_;
  const range mine_;
};

int nvme_column::leave_out(const std::vector<int>& errors) {
  const auto failed = std::find_if(errors.begin(), errors.end(), [](int error) { return error < 0; });
  if (failed == errors.end()) return 0;
  const std::lock_guard lock(mutex_);
  // Beside a copy that has all that the others have, and that no other call has left out meanwhile.
  bool any = false;
  for (std::size_t i = 0; i < errors.size(); ++i) any = any || (errors[i] == 0 && !is_left_out(i));
  if (!any) return *failed;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (errors[i] >= 0 || is_left_out(i)) continue;
    // Release: meets the acquires of read_file and is_left_out. Who finds it asks copies that have what was written before.
    std::atomic_ref((*left_out_)[i]).store(1, std::memory_order_release);
    std::fprintf(stderr, "gpufs: the copy %s of a mirror is left out from now on: %s\n", copies_[i].name.c_str(),
                 std::strerror(-errors[i]));
  }
  return 0;
}

int nvme_column::write(std::uint64_t offset, std::span<const std::byte> from) {
  const turn mine(*this, {offset, offset + from.size()});
  return leave_out(
      each_copy([&](const nvme_part& part) { return part.space->of.driver.write(part.space->facts, part.begin + offset, from); }));
}

int nvme_column::flush() {
  return leave_out(each_copy([](const nvme_part& part) { return part.space->of.driver.flush(part.space->facts); }));
}

int nvme_column::check(std::string* why) {
  std::string first;
  std::vector<int> errors = each_copy([&](const nvme_part& part) {
    std::string text;
    const int wrong = part.space->check(&text);
    if (first.empty()) first = text;
    return wrong;
  });
  // Who does not answer now has what the others have.
  const bool any = std::find(errors.begin(), errors.end(), 0) != errors.end();
  std::replace_if(
      errors.begin(), errors.end(), [&](int error) { return any && error != 0 && error != -ESTALE; }, not_tried);
  const int error = leave_out(errors);
  if (error != 0) *why = first;
  return error;
}

std::vector<std::string> nvme_column::left_out() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (is_left_out(i)) names.push_back(copies_[i].name);
  }
  return names;
}

nvme_bytes::nvme_bytes(std::vector<std::shared_ptr<nvme_column>> columns, std::uint32_t unit_shift, std::uint64_t nbytes,
                       simt::device_memory& memory)
    : columns_(std::move(columns)), nbytes_(nbytes) {
  shape_ = {unit_shift, static_cast<std::uint32_t>(columns_.size()), columns_.front()->ncopies(), 0};
  nvme::file_layout made{nullptr, std::uint64_t{1} << unit_shift, shape_};
  std::vector<nvme::file_part> parts;
  for (const auto& column : columns_) {
    for (std::uint32_t i = 0; i < column->ncopies(); ++i) {
      const nvme_part& part = column->part(i);
      if (std::find(spaces_.begin(), spaces_.end(), part.space) == spaces_.end()) spaces_.push_back(part.space);
      parts.push_back(column->layout(i));
      made.share_nbytes = std::min(made.share_nbytes, part.space->of.driver.command_nbytes(part.space->facts));
    }
  }
  made.parts = memory.allocate(parts);
  layout_ = memory.allocate(std::vector{made});
}

// work(run, how many bytes come before) -> 0 or -errno
template <class Work>
static int each_run(const nvme::file_shape& shape, std::uint64_t offset, std::uint64_t nbytes, Work work) {
  for (std::uint64_t done = 0; done < nbytes;) {
    const nvme::file_run run = shape.locate(offset + done, nbytes - done);
    if (const int error = work(run, done); error != 0) return error;
    done += run.nbytes;
  }
  return 0;
}

int nvme_bytes::read(std::uint64_t offset, std::span<std::byte> to) {
  return each_run(shape_, offset, to.size(), [&](const nvme::file_run& run, std::uint64_t done) {
    return columns_[run.column]->read(run.offset, to.subspan(done, run.nbytes), run.first_copy);
  });
}

int nvme_bytes::write(std::uint64_t offset, std::span<const std::byte> from) {
  return each_run(shape_, offset, from.size(), [&](const nvme::file_run& run, std::uint64_t done) {
    return columns_[run.column]->write(run.offset, from.subspan(done, run.nbytes));
  });
}

int nvme_bytes::flush() {
  int error = 0;
  for (const auto& column : columns_) keep_first(error, column->flush());
  return error;
}

int nvme_bytes::check(std::string* why) {
  for (const auto& column : columns_) {
    if (const int error = column->check(why); error != 0) return error;
  }
  return 0;
}

bool nvme_bytes::has_host_queues() const {
  return std::all_of(spaces_.begin(), spaces_.end(), [](const nvme_namespace* each) { return each->of.driver.has_host_queue(); });
}

std::vector<std::string> nvme_bytes::left_out() const {
  std::vector<std::string> names;
  for (const auto& column : columns_) {
    for (std::string& name : column->left_out()) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace gpufs::store
