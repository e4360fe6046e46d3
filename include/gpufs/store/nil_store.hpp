// SPDX-License-Identifier: Apache-2.0
// A store without bytes: it shows what cache and service cost by themselves.
#pragma once
#include <cstdint>

#include "gpufs/store/store.hpp"

namespace gpufs::store {

// Every well-formed path opens as a file of nbytes bytes and kind nil: a fault brings nothing in, and pread() gives zeros. The same
// path is the same file (inode: a hash of the path). Errors: flags and paths as in posix_store.hpp's table.
class nil_store final : public store {
 public:
  explicit nil_store(std::int64_t nbytes);  // throws std::invalid_argument when negative
  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "nil"; }

 private:
  std::int64_t nbytes_;
};

}  // namespace gpufs::store
