// SPDX-License-Identifier: Apache-2.0
// The default store: what is read often is pulled where it can be, the rest staged, and each file says which and why.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "gpufs/store/mapped_store.hpp"

namespace gpufs::store {

struct auto_options {
  posix_options posix{};
  // Files below this size are staged: registering one costs more than it saves.
  std::uint64_t small_file_nbytes = 256 << 10;
  // What is registered at once of a file, a power of two from a cache page on; more where a file has more than 64 of these.
  std::uint64_t window_nbytes = 64 << 20;
};

// Opens at once, kind windows: each part of a file is staged, as posix_store does it, until as much was read of it as it has bytes.
// Then it is registered in the background, as mapped_store does it, if the pin budget allows, and pulled from then on: registering
// pays after some three passes (mappings.hpp). With names::open_prepared all of the file is registered now, and it opens as kind
// pull, as it does where all of it is registered already; where that cannot be, staged. Files are also staged that are small, when
// O_DIRECT is asked for, or when they are opened for writing. info().reason is one sentence that says which and why. Errors as
// posix_store.
class auto_store final : public rooted_store {
 public:
  // As mapped_store.
  auto_store(simt::platform& machine, const std::string& root, std::uint64_t pin_nbytes = 0, auto_options options = {});
  ~auto_store() override;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "auto"; }
  void trim() override { trim(0); }
  void trim(std::uint64_t keep_nbytes);  // as mapped_store
  pin_usage usage() const;

 private:
  std::uint64_t small_file_nbytes_;
  std::string small_reason_;
  std::shared_ptr<mappings> mappings_;
};

}  // namespace gpufs::store
