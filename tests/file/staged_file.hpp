// SPDX-License-Identifier: Apache-2.0
// A small file whose pages host threads read, by a store that is slow, fails or stops where a test says.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

class staged_file : public ::testing::Test {
 protected:
  static constexpr std::uint32_t page = 512;
  static constexpr std::uint64_t seed = 5;

  // A mount of the file, `npages` long.
  mount make(std::uint32_t npages, std::uint32_t nframes, std::chrono::nanoseconds io_timeout = std::chrono::seconds(60)) {
    mount_options o = options_of(npages, nframes);
    o.io_timeout = io_timeout;
    return mount(dir_.path(), o);
  }
  mount_options options_of(std::uint32_t npages, std::uint32_t nframes) {
    dir_.add("file", std::uint64_t{npages} * page, seed);
    store_ =
        std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
    mount_options o;
    o.cache_nbytes = std::uint64_t{nframes} * page;
    o.page_nbytes = page;
    o.custom_store = store_;
    o.nworkers = 8;
    o.request_batch = 1;
    o.abort_on_leaked_pins = true;
    o.frame_timeout = std::chrono::seconds(20);
    return o;
  }
  faults& wrong() { return store_->wrong(); }

  temp_dir dir_;
  std::shared_ptr<faulty_store> store_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
