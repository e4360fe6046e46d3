// SPDX-License-Identifier: Apache-2.0
// A store that is slow, fails or stops where a test says, over a real one. Its files are staged, or of windows of which none is
// registered: read through pread() and written through pwrite(), so that every byte comes by here. If it answers later, threads of
// its own call pread().
#pragma once
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpufs/store/store.hpp"

namespace gpufs::test {

// A gate that stops host workers until the test opens it. Open at first.
class gate {
 public:
  void close() { set(false); }
  void open() { set(true); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  int waiting() const {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  void set(bool open) {
    std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

// What goes wrong; shared by the test and the store, and changed while kernels run.
struct faults {
  std::atomic<std::uint64_t> delay_ns{0};          // of each read
  std::atomic<std::uint64_t> open_delay_ns{0};     // of each open
  std::atomic<std::uint32_t> fail_every{0};        // every n-th read fails; 0: none
  std::atomic<std::uint32_t> short_every{0};       // every n-th read gives half of what was asked, or one byte; 0: none
  std::atomic<int> read_error{EIO};                // with which errno
  std::atomic<int> open_error{0};                  // every open fails so; 0: none
  std::atomic<std::uint64_t> write_delay_ns{0};    // of each write: up to so long, each another time, so that they overtake
  std::atomic<std::uint32_t> fail_write_every{0};  // every n-th write fails; 0: none
  std::atomic<std::uint32_t> tear_every{0};        // every n-th write writes half of its bytes, and fails; 0: none
  std::atomic<int> write_error{EIO};               // with which errno
  std::atomic<int> sync_error{0};                  // every sync fails so; 0: none
  std::atomic<int> truncate_error{0};              // every truncation fails so; 0: none
  std::atomic<std::uint64_t> reads{0}, opens{0}, closes{0};
  std::atomic<std::uint64_t> writes{0}, bytes_written{0}, truncates{0};  // writes: also those that failed
  std::atomic<std::uint64_t> syncs{0}, data_syncs{0};                    // syncs: of both kinds
  gate read_gate, open_gate, write_gate, sync_gate;
  gate stall_gate;  // for the reads that stall_at() names

  void stall_at(std::int64_t first, std::int64_t end) {  // reads that touch [first, end) wait for stall_gate
    std::lock_guard lock(mutex_);
    stalled_.emplace(first, end);
  }
  bool is_stalled(std::int64_t first, std::int64_t end) const { return touches(stalled_, first, end); }
  void fail_at(std::int64_t first, std::int64_t end) {  // reads that touch [first, end)
    std::lock_guard lock(mutex_);
    bad_.emplace(first, end);
  }
  struct write_fault {
    std::string path;
    std::int64_t first, end;  // 0: none
    int error;
  };
  // Writes of the file that touch [first, end) fail so, and write what lies before.
  void fail_writes_at(const std::string& path, std::int64_t first, std::int64_t end, int error) {
    std::lock_guard lock(mutex_);
    bad_writes_.push_back({path, first, end, error});
  }
  // The first that the write meets.
  write_fault failing_write(const std::string& path, std::int64_t first, std::int64_t end) const {
    std::lock_guard lock(mutex_);
    for (const write_fault& f : bad_writes_) {
      if (f.path == path && first < f.end && f.first < end) return f;
    }
    return {};
  }
  struct failed_write {
    std::string path;
    int flags;  // of the file's open
    std::int64_t offset;
  };
  void note_failed(const std::string& path, int flags, std::int64_t offset) {
    std::lock_guard lock(mutex_);
    failed_writes_.push_back({path, flags, offset});
  }
  // The writes that have failed since it was called last.
  std::vector<failed_write> take_failed() {
    std::lock_guard lock(mutex_);
    return std::exchange(failed_writes_, {});
  }
  void heal() {
    std::lock_guard lock(mutex_);
    bad_.clear();
    bad_writes_.clear();
    fail_every = fail_write_every = 0;
    short_every = tear_every = 0;
    open_error = sync_error = truncate_error = 0;
  }
  bool is_bad(std::int64_t first, std::int64_t end) const { return touches(bad_, first, end); }

 private:
  using ranges = std::set<std::pair<std::int64_t, std::int64_t>>;
  bool touches(const ranges& of, std::int64_t first, std::int64_t end) const {
    std::lock_guard lock(mutex_);
    for (const auto& [of_first, of_end] : of) {
      if (first < of_end && of_first < end) return true;
    }
    return false;
  }

  mutable std::mutex mutex_;
  ranges bad_, stalled_;
  std::vector<write_fault> bad_writes_;
  std::vector<failed_write> failed_writes_;
};

// Threads that do what they are given. At its end they do what is left.
class doers {
 public:
  doers() {
    for (std::thread& one : threads_) one = std::thread([this] { run(); });
  }
  ~doers() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& one : threads_) one.join();
  }
  void add(std::function<void()> what) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(what));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waiting_.empty() || ends_; });
      if (waiting_.empty()) return;
      const std::function<void()> what = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      what();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ends_ = false;
  std::thread threads_[8];
};

class faulty_file final : public store::open_file {
 public:
  faulty_file(std::unique_ptr<store::open_file> real, std::shared_ptr<faults> wrong, std::shared_ptr<doers> later,
              std::string_view path, int flags, source_kind version)
      : real_(std::move(real)),
        wrong_(std::move(wrong)),
        later_(std::move(later)),
        path_(path),
        flags_(flags),
        info_(real_->info()) {
    info_.kind = info_.live ? source_kind::staged : version;
    info_.pull_base = nullptr;
    info_.reason = "a test's faulty store";
  }
  ~faulty_file() override { ++wrong_->closes; }

  const store::file_info& info() const override { return info_; }
  int check_version() const override { return real_->check_version(); }
  void begin_rename() override { real_->begin_rename(); }
  void end_rename() override { real_->end_rename(); }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    const std::uint64_t n = ++wrong_->reads;
    wrong_->read_gate.pass();
    if (wrong_->is_stalled(offset, offset + static_cast<std::int64_t>(dst.size()))) wrong_->stall_gate.pass();
    if (const std::uint64_t delay = wrong_->delay_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
    if (wrong_->is_bad(offset, offset + static_cast<std::int64_t>(dst.size()))) return -wrong_->read_error;
    if (const std::uint32_t every = wrong_->fail_every; every != 0 && n % every == 0) return -wrong_->read_error;
    if (const std::uint32_t every = wrong_->short_every; every != 0 && n % every == 0) dst = dst.first((dst.size() + 1) / 2);
    return real_->pread(dst, offset);
  }
  bool begin_pread(std::span<std::byte> dst, std::int64_t offset, store::read_answer answer) override {
    if (later_) later_->add([=, this] { answer(pread(dst, offset)); });
    return later_ != nullptr;
  }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
    const int error = try_pwrite(src, offset);
    if (error != 0) wrong_->note_failed(path_, flags_, offset);
    return error;
  }
  int sync(bool data_only) override {
    ++wrong_->syncs;
    if (data_only) ++wrong_->data_syncs;
    wrong_->sync_gate.pass();
    const int error = wrong_->sync_error;
    return error != 0 ? -error : real_->sync(data_only);
  }
  int truncate(std::int64_t nbytes) override {
    ++wrong_->truncates;
    const int error = wrong_->truncate_error;
    return error != 0 ? -error : real_->truncate(nbytes);
  }

 private:
  int try_pwrite(std::span<const std::byte> src, std::int64_t offset) {
    const std::int64_t end = offset + static_cast<std::int64_t>(src.size());
    const std::uint64_t n = ++wrong_->writes;
    wrong_->write_gate.pass();
    if (const std::uint64_t delay = wrong_->write_delay_ns) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(delay * (n * 0x9e3779b97f4a7c15u >> 48) >> 16));
    }
    if (const faults::write_fault bad = wrong_->failing_write(path_, offset, end); bad.end != 0) {
      const std::int64_t before = bad.first - offset;
      const int error = before > 0 ? real_->pwrite(src.first(static_cast<std::size_t>(before)), offset) : 0;
      return error != 0 ? error : -bad.error;
    }
    if (const std::uint32_t every = wrong_->fail_write_every; every != 0 && n % every == 0) return -wrong_->write_error;
    if (const std::uint32_t every = wrong_->tear_every; every != 0 && n % every == 0) {
      const int error = real_->pwrite(src.first(src.size() / 2), offset);
      return error != 0 ? error : -wrong_->write_error;
    }
    const int error = real_->pwrite(src, offset);
    if (error == 0) wrong_->bytes_written += src.size();
    return error;
  }

  std::unique_ptr<store::open_file> real_;
  std::shared_ptr<faults> wrong_;
  std::shared_ptr<doers> later_;  // null: it answers at once
  std::string path_;
  int flags_;
  store::file_info info_;
};

class faulty_store final : public store::store {
 public:
  // version: staged or windows, of files that are not live.
  explicit faulty_store(std::shared_ptr<gpufs::store::store> real, bool answers_later = false,
                        source_kind version = source_kind::staged)
      : real_(std::move(real)), later_(answers_later ? std::make_shared<doers>() : nullptr), version_(version) {}

  faults& wrong() const { return *wrong_; }
  std::string_view name() const override { return "faulty"; }
  void trim() override { real_->trim(); }
  bool lacks_room() const override { return real_->lacks_room(); }
  std::shared_ptr<void> admit_mount() override { return real_->admit_mount(); }
  bool has_idle_room() const override { return real_->has_idle_room(); }
  void make_room() override { real_->make_room(); }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    ++wrong_->opens;
    wrong_->open_gate.pass();
    if (const std::uint64_t delay = wrong_->open_delay_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
    if (const int wanted = wrong_->open_error; wanted != 0) {
      *error = -wanted;
      return nullptr;
    }
    auto file = real_->open(path, flags, error);
    if (file == nullptr) return nullptr;
    return std::make_unique<faulty_file>(std::move(file), wrong_, later_, path, flags, version_);
  }
  int unlink(std::string_view path, bool directory) override { return real_->unlink(path, directory); }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override { return real_->rename(from, to, mode); }
  int make_directory(std::string_view path, std::uint32_t mode) override { return real_->make_directory(path, mode); }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override { return real_->status(path, link, out); }
  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) override {
    return real_->read_directory(path, position, out);
  }

 private:
  std::shared_ptr<gpufs::store::store> real_;
  std::shared_ptr<faults> wrong_ = std::make_shared<faults>();
  std::shared_ptr<doers> later_;
  source_kind version_;
};

}  // namespace gpufs::test
