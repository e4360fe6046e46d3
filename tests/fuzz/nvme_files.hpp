// SPDX-License-Identifier: Apache-2.0
// The one file of a program over an NVMe controller: namespace 1, whose image is that file, so that what the program is compared
// with needs to know nothing of controllers.
#pragma once
#include <sys/stat.h>

#include "file/harness.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/qemu_controller.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

inline constexpr const char* namespace_name = "n1";

// The store, and the file's own number for the namespace's.
class nvme_files final : public store::store {
 public:
  nvme_files(std::shared_ptr<nvme::controller_access> access, const nvme::controller_options& options, const std::string& image)
      : files_(simt::this_platform(), std::move(access), options) {
    struct ::stat status {};
    if (::stat(image.c_str(), &status) != 0) fail_errno("stat " + image);
    inode_ = status.st_ino;
  }
  std::shared_ptr<void> admit_mount() override { return files_.admit_mount(); }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto opened = files_.open(path, flags, error);
    if (opened == nullptr) return nullptr;
    return std::make_unique<numbered_file>(std::move(opened), inode_);
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override {
    const int error = files_.status(path, link, out);
    if (error == 0 && S_ISREG(out->mode)) out->inode = inode_;
    return error;
  }
  std::string_view name() const override { return files_.name(); }
  bool is_lost() const { return files_.recovered().lost; }

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

  gpufs::store::nvme_store files_;
  std::uint64_t inode_ = 0;
};

// A controller for one run: in software, with faults that the driver copes with, or QEMU's.
class nvme_run {
 public:
  nvme_run(const std::string& image, bool is_qemu, std::uint64_t seed) : draw_(seed) {
    // So that a machine that is busy makes nobody give up.
    nvme::controller_options options{.nqueues = static_cast<std::uint32_t>(draw_.between(1, 3)),
                                     .depth = static_cast<std::uint32_t>(draw_.between(2, 20)),
                                     .buffer_nbytes = static_cast<std::uint32_t>(4096 * draw_.between(1, 3)),
                                     .writable = true,
                                     .admin_timeout_ns = 30'000'000'000,
                                     .inside_wait_ns = 30'000'000'000,
                                     .look_every_ns = 300'000};
    if (is_qemu) {
      access_ = std::make_shared<qemu_controller>("file=" + image);
    } else {
      fast_ = draw_.percent(30);
      auto soft = std::make_shared<nvme::soft_controller>(
          simt::this_platform(), nvme::soft_options{.image = image,
                                                    .latency_ns = draw_.percent(30) ? draw_.below(50'000) : 0,
                                                    .seed = seed,
                                                    .nthreads = fast_ ? 2u : 0u});
      soft_ = soft.get();
      // A command is tried four times, and any of them may meet all of these.
      constexpr std::uint32_t passing[] = {0x004, 0x006, 0x007, 0x021, 0x022, 0x280, 0x281};
      for (std::uint64_t n = draw_.below(4); n != 0 && !fast_; --n) {
        soft->add({.opcode = draw_.percent(70) ? 2 : 1,
                   .skip = static_cast<std::uint32_t>(draw_.below(20)),
                   .status = passing[draw_.below(std::size(passing))]});
      }
      for (std::uint64_t n = draw_.below(3); n != 0 && !fast_; --n) {
        soft->add({.does = nvme::soft_fault::what::delay,
                   .opcode = 2,
                   .skip = static_cast<std::uint32_t>(draw_.below(20)),
                   .delay_ns = draw_.below(2'000'000)});
      }
      access_ = std::move(soft);
    }
    files_ = std::make_shared<nvme_files>(access_, options, image);
  }

  const std::shared_ptr<nvme_files>& files() const { return files_; }
  // Beside a launch: the controller may fail, so that it is reset.
  void trouble() {
    if (soft_ == nullptr || !draw_.percent(40)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(draw_.below(3000)));
    soft_->fail();
  }
  // What the driver did that it must not, or that the controller was lost; or nothing.
  std::string wrong() const {
    if (files_->is_lost()) return "the controller is lost";
    const auto noted = soft_ == nullptr ? std::vector<std::string>{} : soft_->violations();
    return noted.empty() ? "" : "the controller notes: " + noted.front();
  }

 private:
  random_source draw_;
  std::shared_ptr<nvme::controller_access> access_;
  nvme::soft_controller* soft_ = nullptr;
  bool fast_ = false;
  std::shared_ptr<nvme_files> files_;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
