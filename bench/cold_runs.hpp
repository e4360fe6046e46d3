// SPDX-License-Identifier: Apache-2.0
// What the benches of faults through pointers share, and the other benches of pointers need not compile.
#pragma once
#include <fcntl.h>

#include "pointer_runs.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

class cold_runs : public pointer_runs {
 protected:
  cold_runs(const pointer_runs& runs, double launch_nbytes) : pointer_runs(runs), launch_nbytes_(launch_nbytes) {}

  // For cases that count pages.
  static void want_whole_pages(const gpufs::mount& fs, gpufs::file_number number) {
    const device_array<std::uint64_t> failed(1);
    run({1, 32}, advise_all{fs.ref(), number, gpufs::advice::whole, failed.get()});
    if (failed.read_one() != 0) throw gpufs::error("the file takes no advice");
  }

  // The size of a cache that evicts all the time while `data` is read.
  std::uint64_t evicting_nbytes() const { return std::max<std::uint64_t>(nbytes_ / 24, 1u << 20); }

  // The file `data`, held open, and how many of its small pages a second a kernel copies that does nothing else (0: no mapping).
  struct pulled_file {
    std::unique_ptr<gpufs::store::open_file> opened;
    double pages;
  };
  pulled_file pull_data(results& out) const {
    int error = 0;
    auto opened = files_->open("data", O_RDONLY | static_cast<int>(gpufs::names::open_prepared), &error);
    if (!opened) throw gpufs::error("cannot open the file: " + std::to_string(error));
    const auto* mapping = static_cast<const std::byte*>(opened->info().pull_base);
    const double pages = mapping == nullptr ? 0 : measure_pull(out, small_, small_page, mapping, nbytes_, evicting_nbytes()).median;
    return {std::move(opened), pages};
  }

  double launch_nbytes_;
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
