// SPDX-License-Identifier: Apache-2.0
// A device as libext2fs reads it: what it asks for comes by a function, and nothing is ever written.
#pragma once
#include <ext2fs/ext2fs.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

namespace gpufs::store {

// One thread at a time. It stays where it is while libext2fs has it open.
class ext4_device {
 public:
  // Bytes of the device, from `offset` on: 0 or -errno.
  using read_bytes = std::function<int(std::uint64_t offset, std::span<std::byte> to)>;

  ext4_device(std::uint64_t nbytes, read_bytes read) : nbytes_(nbytes), read_(std::move(read)) {}
  ext4_device(const ext4_device&) = delete;
  ext4_device& operator=(const ext4_device&) = delete;

  std::uint64_t nbytes() const { return nbytes_; }
  int read(std::uint64_t offset, std::span<std::byte> to) { return read_(offset, to); }
  // ext2fs_open2 of it; *out must be closed before this ends.
  errcode_t open(int flags, ext2_filsys* out);
  // Before each call of libext2fs: what went wrong in the last one is no more known.
  void begin_call();
  // -errno for what that call has answered: the device's own where a read of it has failed. What the read has thrown is thrown
  // here, as it may not pass through C.
  int error_of(errcode_t answer) const;

 private:
  friend struct ext4_channel;
  errcode_t read_blocks(std::uint64_t block, int count, std::size_t block_nbytes, std::byte* to) noexcept;
  void forget_blocks() { cached_.clear(); }

  // What libext2fs reads are blocks with many small things, which it asks for again and again.
  struct cached_block {
    std::uint64_t number = ~std::uint64_t{0};
    std::vector<std::byte> bytes;
  };
  std::uint64_t nbytes_;
  read_bytes read_;
  std::vector<cached_block> cached_;
  int failed_ = 0;
  std::exception_ptr thrown_;
};

}  // namespace gpufs::store
