// SPDX-License-Identifier: Apache-2.0
#include "extender.hpp"

#include <sys/prctl.h>

#include <cerrno>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "clock.hpp"
#include "worker.hpp"  // core destroys workers

namespace gpufs::service {

void extender::on_extend(std::function<std::uint64_t(std::uint32_t n)> make) {
  const std::scoped_lock hold(making_);
  make_ = std::move(make);
}

void extender::ask(const taken_request& taken) {
  {
    const std::scoped_lock hold(lock_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    asked_.push_back(taken);
  }
  wake_.notify_one();
}

void extender::end() {
  {
    const std::scoped_lock hold(lock_);
    end_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void extender::run() {
  ::prctl(PR_SET_NAME, "gpufs-extend");
  core_.machine.stay_current();
  std::unique_lock hold(lock_);
  for (;;) {
    wake_.wait(hold, [this] { return end_ || !asked_.empty(); });
    if (asked_.empty()) return;
    const taken_request taken = asked_.front();
    asked_.pop_front();
    hold.unlock();
    make(taken);
    hold.lock();
  }
}

void extender::make(const taken_request& taken) {
  if (core_.stopping.load()) return fail(taken, ESHUTDOWN, {});
  constexpr std::uint64_t long_ns = 1'000'000'000;
  const std::int64_t n = taken.what.offset;
  const std::uint64_t begin = clock_ns();
  reply out{};
  try {
    const std::scoped_lock hold(making_);
    const bool known = make_ && n >= 0 && n <= std::numeric_limits<std::uint32_t>::max();
    out.pull_base = known ? make_(static_cast<std::uint32_t>(n)) : 0;
  } catch (const std::bad_alloc& e) {
    return fail(taken, ENOMEM, e.what());
  } catch (const std::exception& e) {
    return fail(taken, EIO, e.what());
  }
  if (out.pull_base == 0) return fail(taken, EINVAL, "there is no piece " + std::to_string(n));
  if (const std::uint64_t took = clock_ns() - begin; took > long_ns) {
    core_.log.add("extend", "", 0,
                  "tables for more open files took " + std::to_string(took / 1'000'000) +
                      " ms: another thread waited for the device. mount_options::reserved_open_files has them made before");
  }
  core_.answer(counts_, taken.index, taken.sequence, out);
}

void extender::fail(const taken_request& taken, int error, std::string_view text) {
  core_.note_error(counts_, "extend", "", error, text);
  core_.refuse(counts_, taken.index, taken.sequence, error);
}

}  // namespace gpufs::service
