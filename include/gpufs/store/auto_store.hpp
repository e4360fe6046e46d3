// The default store: pull where it can, else staged, and each file says which and why.
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
};

// mapped_store where the pin budget allows and the platform registers the mapping, else posix_store; info().reason is one
// sentence that says which and why. Files are also staged when O_DIRECT is asked for, or when
// they are opened for writing. Errors as posix_store.
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
