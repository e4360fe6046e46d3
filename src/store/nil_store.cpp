// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/nil_store.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

class nil_file final : public open_file {
 public:
  explicit nil_file(file_info info) : info_(std::move(info)) {}
  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(dst.size(), offset, info_.nbytes);
    if (n != 0) std::memset(dst.data(), 0, n);
    return static_cast<std::int64_t>(n);
  }

 private:
  file_info info_;
};

std::uint64_t fnv1a(std::string_view s) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace

nil_store::nil_store(std::int64_t nbytes) : nbytes_(nbytes) {
  if (nbytes < 0) throw std::invalid_argument("gpufs::store::nil_store: the size is negative");
}

std::unique_ptr<open_file> nil_store::open(std::string_view path, int flags, int* error) {
  std::string name;
  *error = check_flags(flags);
  if (*error == 0) *error = lexical_path(path, &name);
  if (*error != 0) return nullptr;
  file_info info;
  info.nbytes = nbytes_;
  info.inode = fnv1a(name);
  info.mode = S_IFREG | 0444;
  info.kind = source_kind::nil;
  info.reason = "nil: this store holds no bytes; a fault brings nothing in";
  return std::make_unique<nil_file>(std::move(info));
}

}  // namespace gpufs::store
