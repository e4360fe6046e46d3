// SPDX-License-Identifier: Apache-2.0
// The default store: a part of a file that is read often is pulled if possible, all else is staged, and each file says which and
// why.
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
  // The size of the parts that are registered, a power of two from a cache page on; larger if a file would have more than 64 parts.
  std::uint64_t window_nbytes = 64 << 20;
};

// Opens at once, kind windows. Each part of a file is staged, as by posix_store, until as many bytes of it were read as it has.
// Then it is registered in the background, as by mapped_store, if the pin budget allows, and pulled from then on: registering pays
// after some three passes (mappings.hpp). With names::open_prepared all of the file is registered at once, and the file opens as
// kind pull; or staged, if registering is not possible. A file also opens as kind pull if all of it is registered already. Small
// files, files with O_DIRECT and files opened for writing are staged. info().reason is one sentence that says which and why. Errors
// as posix_store.
class auto_store final : public rooted_store {
 public:
  // The arguments and errors are those of mapped_store.
  auto_store(simt::platform& machine, const std::string& root, std::uint64_t pin_nbytes = 0, auto_options options = {});
  ~auto_store() override;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "auto"; }
  void trim() override { trim(0); }
  void trim(std::uint64_t keep_nbytes);  // as mapped_store
  bool lacks_room() const override;
  bool has_idle_room() const override;
  void make_room() override;
  pin_usage usage() const;

 private:
  std::uint64_t small_file_nbytes_;
  std::string small_reason_;
  std::shared_ptr<mappings> mappings_;
};

}  // namespace gpufs::store
