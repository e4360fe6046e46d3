// SPDX-License-Identifier: Apache-2.0
// The one file of a program over NVMe controllers. What the program is compared with is a file of a folder, and needs to know
// nothing of controllers: the image of a namespace, or what their disks have, which is written there.
#pragma once
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <thread>

#include "file/harness.hpp"
#include "fuzz/nvme_disks.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/qemu_controller.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

inline constexpr const char* namespace_name = "n1";

// The store, of which one file has the program's name, and the number of the file that it is compared with.
class nvme_files final : public store::store {
 public:
  nvme_files(const gpufs::store::nvme_store::controllers& all, const nvme::controller_options& options,
             const std::vector<gpufs::store::nvme_volume>& volumes, std::string name, const std::string& image)
      : files_(simt::this_platform(), all, options, volumes), ncontrollers_(all.size()), name_(std::move(name)) {
    struct ::stat status {};
    if (::stat(image.c_str(), &status) != 0) fail_errno("stat " + image);
    inode_ = status.st_ino;
  }
  std::shared_ptr<void> admit_mount() override { return files_.admit_mount(); }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto opened = files_.open(named(path), flags, error);
    if (opened == nullptr) return nullptr;
    return std::make_unique<numbered_file>(std::move(opened), inode_);
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override {
    const int error = files_.status(named(path), link, out);
    if (error == 0 && S_ISREG(out->mode)) out->inode = inode_;
    return error;
  }
  std::string_view name() const override { return files_.name(); }
  // A controller that was lost, or a copy that was left out; or nothing.
  std::string wrong() const {
    for (std::size_t i = 0; i < ncontrollers_; ++i) {
      if (files_.recovered(i).lost) return "a controller is lost";
    }
    const auto left_out = files_.left_out();
    return left_out.empty() ? "" : "a copy is left out: " + left_out.front();
  }

 private:
  class numbered_file final : public gpufs::store::open_file {
   public:
    numbered_file(std::unique_ptr<gpufs::store::open_file> of, std::uint64_t inode) : of_(std::move(of)), info_(of_->info()) {
      info_.inode = inode;
    }
    const gpufs::store::file_info& info() const override { return info_; }
    std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return of_->pread(dst, offset); }
    int check_version() const override { return of_->check_version(); }
    int pwrite(std::span<const std::byte> src, std::int64_t offset) override { return of_->pwrite(src, offset); }
    int sync(bool data_only) override { return of_->sync(data_only); }
    int truncate(std::int64_t nbytes) override { return of_->truncate(nbytes); }

   private:
    std::unique_ptr<gpufs::store::open_file> of_;
    gpufs::store::file_info info_;
  };

  std::string_view named(std::string_view path) const { return path == namespace_name ? name_ : path; }

  gpufs::store::nvme_store files_;
  const std::size_t ncontrollers_;
  const std::string name_;
  std::uint64_t inode_ = 0;
};

// The controllers of one run: in software, with faults that the driver copes with, or QEMU's.
class nvme_run {
 public:
  nvme_run(std::string image, const nvme_shape& shape, bool is_qemu, std::uint64_t seed)
      : image_(std::move(image)), draw_(seed), fast_(!is_qemu && draw_.percent(30)) {
    // So that a machine that is busy makes nobody give up.
    nvme::controller_options options{.nqueues = static_cast<std::uint32_t>(draw_.between(1, 3)),
                                     .depth = static_cast<std::uint32_t>(draw_.between(2, 20)),
                                     .buffer_nbytes = static_cast<std::uint32_t>(4096 * draw_.between(1, 3)),
                                     .writable = true,
                                     .admin_timeout_ns = 30'000'000'000,
                                     .inside_wait_ns = 30'000'000'000,
                                     .look_every_ns = 300'000};
    gpufs::store::nvme_store::controllers all;
    if (is_qemu) {
      all.push_back(std::make_shared<qemu_controller>("file=" + image_));
    } else if (shape.is_namespace()) {
      all.push_back(made({.image = image_}));
    } else {
      disks_.emplace(shape, bytes_of(image_), draw_, [this](const nvme::soft_options& as) { return made(as); });
      all.assign(disks_->disks().begin(), disks_->disks().end());
    }
    files_ = std::make_shared<nvme_files>(all, options, disks_ ? disks_->volumes() : std::vector<gpufs::store::nvme_volume>{},
                                          disks_ ? disks_->name() : namespace_name, image_);
  }

  const std::shared_ptr<nvme_files>& files() const { return files_; }
  // Beside a launch: a controller may fail, so that it is reset.
  void trouble() {
    if (soft_.empty() || !draw_.percent(40)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(draw_.below(3000)));
    draw_.pick(soft_)->fail();
  }
  // What the controllers have by now becomes the image's.
  void bring_back() const {
    if (!disks_) return;
    const auto bytes = disks_->file();
    std::fstream out(image_, std::ios::binary | std::ios::in | std::ios::out);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) fail_errno("write " + image_);
  }
  // What the driver did that it must not, or that a controller was lost or has other bytes than it should; or nothing.
  std::string wrong() const {
    std::string found = files_->wrong();
    for (const auto& each : soft_) {
      const auto noted = each->violations();
      if (found.empty() && !noted.empty()) found = "the controller notes: " + noted.front();
    }
    return found.empty() && disks_ ? disks_->wrong() : found;
  }

 private:
  static std::vector<std::byte> bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    const auto* const first = reinterpret_cast<const std::byte*>(all.data());
    return {first, first + all.size()};
  }

  // A controller that has what `as` says.
  std::shared_ptr<nvme::soft_controller> made(nvme::soft_options as) {
    as.latency_ns = draw_.percent(30) ? draw_.below(50'000) : 0;
    as.seed = draw_.word();
    as.nthreads = fast_ ? 2 : 0;
    soft_.push_back(std::make_shared<nvme::soft_controller>(simt::this_platform(), as));
    // A command is tried four times, and any of them may meet all of these.
    constexpr std::uint32_t passing[] = {0x004, 0x006, 0x007, 0x021, 0x022, 0x280, 0x281};
    for (std::uint64_t n = draw_.below(4); n != 0 && !fast_; --n) {
      soft_.back()->add({.opcode = draw_.percent(70) ? 2 : 1,
                         .skip = static_cast<std::uint32_t>(draw_.below(20)),
                         .status = passing[draw_.below(std::size(passing))]});
    }
    for (std::uint64_t n = draw_.below(3); n != 0 && !fast_; --n) {
      soft_.back()->add({.does = nvme::soft_fault::what::delay,
                         .opcode = 2,
                         .skip = static_cast<std::uint32_t>(draw_.below(20)),
                         .delay_ns = draw_.below(2'000'000)});
    }
    return soft_.back();
  }

  const std::string image_;
  random_source draw_;
  const bool fast_;
  std::vector<std::shared_ptr<nvme::soft_controller>> soft_;
  std::optional<nvme_disks> disks_;  // where the file is no namespace
  std::shared_ptr<nvme_files> files_;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
