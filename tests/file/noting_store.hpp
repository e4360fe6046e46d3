// SPDX-License-Identifier: Apache-2.0
// A store over a real one that keeps what it is told of stores into its files' mappings, and says of them, and does, what a test
// wants.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/store/store.hpp"

namespace gpufs::test {

class noting_store final : public store::store {
  struct kept {
    std::mutex lock;
    std::vector<bool> notes;
    std::atomic<int> last_look{0};
    std::atomic<std::uint64_t> nwrites{0};
    std::function<int()> on_truncate;
    std::function<void(bool last)> on_note;
  };
  const std::shared_ptr<kept> kept_ = std::make_shared<kept>();

 public:
  explicit noting_store(std::shared_ptr<gpufs::store::store> real) : real_(std::move(real)) {}

  // Of each call of note_written_in_place, whether it was the last.
  std::vector<bool> notes() const {
    const std::scoped_lock hold(kept_->lock);
    return kept_->notes;
  }
  void forget() {
    const std::scoped_lock hold(kept_->lock);
    kept_->notes.clear();
  }
  // How often the host was asked to write.
  std::uint64_t nwrites() const { return kept_->nwrites; }
  // What each last look gives that finds nothing: 0 or a negative errno.
  void last_look_gives(int error) { kept_->last_look = error; }

  // Set before the store is used. What is done in an open, before it and after it; before a rename or an unlink; once a path's
  // status was looked up; in a truncation, which then gives that errno; and when it is told of stores, before it looks at them.
  std::function<void(std::string_view path)> on_open, on_opened;
  std::function<void()> on_rename, on_unlink, on_status;
  std::function<int()>& on_truncate = kept_->on_truncate;
  std::function<void(bool last)>& on_note = kept_->on_note;

  std::string_view name() const override { return "noting"; }
  void trim() override { real_->trim(); }
  bool lacks_room() const override { return real_->lacks_room(); }
  std::shared_ptr<void> admit_mount() override { return real_->admit_mount(); }
  bool has_idle_room() const override { return real_->has_idle_room(); }
  void make_room() override { real_->make_room(); }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    if (on_open) on_open(path);
    auto opened = real_->open(path, flags, error);
    if (on_opened) on_opened(path);
    return opened ? std::make_unique<file>(std::move(opened), kept_) : nullptr;
  }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override {
    if (on_rename) on_rename();
    return real_->rename(from, to, mode);
  }
  int unlink(std::string_view path, bool directory) override {
    if (on_unlink) on_unlink();
    return real_->unlink(path, directory);
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override {
    const int error = real_->status(path, link, out);
    if (on_status) on_status();
    return error;
  }

 private:
  class file final : public gpufs::store::open_file {
   public:
    file(std::unique_ptr<open_file> real, std::shared_ptr<kept> kept) : real_(std::move(real)), kept_(std::move(kept)) {}
    const gpufs::store::file_info& info() const override { return real_->info(); }
    std::string reason() const override { return real_->reason(); }
    std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return real_->pread(dst, offset); }
    // So that each write comes by here.
    int descriptor() const override { return real_->info().live ? -1 : real_->descriptor(); }
    std::uint32_t alignment() const override { return real_->alignment(); }
    int check_version() const override { return real_->check_version(); }
    void begin_rename() override { real_->begin_rename(); }
    void end_rename() override { real_->end_rename(); }
    int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
      ++kept_->nwrites;
      return real_->pwrite(src, offset);
    }
    int sync(bool data_only) override { return real_->sync(data_only); }
    int truncate(std::int64_t nbytes) override {
      const int error = kept_->on_truncate ? kept_->on_truncate() : 0;
      return error != 0 ? error : real_->truncate(nbytes);
    }
    int note_written_in_place(std::int64_t nbytes, bool last) override {
      {
        const std::scoped_lock hold(kept_->lock);
        kept_->notes.push_back(last);
      }
      if (kept_->on_note) kept_->on_note(last);
      const int error = real_->note_written_in_place(nbytes, last);
      return error == 0 && last ? kept_->last_look.load() : error;
    }

   private:
    std::unique_ptr<open_file> real_;
    std::shared_ptr<kept> kept_;
  };

  std::shared_ptr<gpufs::store::store> real_;
};

}  // namespace gpufs::test
