// SPDX-License-Identifier: Apache-2.0
#include "ext4_device.hpp"

#include <cerrno>
#include <cstring>
#include <new>

namespace gpufs::store {
namespace {

constexpr std::size_t cache_nbytes = std::size_t{8} << 20;

// libext2fs hands a name to whoever opens, and nothing else.
thread_local ext4_device* opening = nullptr;

}  // namespace

// The calls of struct_io_manager.
struct ext4_channel {
  static ext4_device& of(io_channel channel) { return *static_cast<ext4_device*>(channel->private_data); }

  static errcode_t open(const char*, int flags, io_channel* out) {
    if ((flags & IO_FLAG_RW) != 0 || opening == nullptr) return EROFS;
    auto* const made = new (std::nothrow) struct_io_channel{};
    if (made == nullptr) return EXT2_ET_NO_MEMORY;
    made->magic = EXT2_ET_MAGIC_IO_CHANNEL;
    made->manager = manager();
    made->block_size = 1024;
    made->refcount = 1;
    made->private_data = opening;
    *out = made;
    return 0;
  }
  static errcode_t close(io_channel channel) {
    if (--channel->refcount == 0) delete channel;
    return 0;
  }
  static errcode_t set_block_size(io_channel channel, int nbytes) {
    if (channel->block_size != nbytes) of(channel).forget_blocks();
    channel->block_size = nbytes;
    return 0;
  }
  static errcode_t read64(io_channel channel, unsigned long long block, int count, void* to) {
    return of(channel).read_blocks(block, count, static_cast<std::size_t>(channel->block_size), static_cast<std::byte*>(to));
  }
  static errcode_t read(io_channel channel, unsigned long block, int count, void* to) { return read64(channel, block, count, to); }
  static errcode_t write64(io_channel, unsigned long long, int, const void*) { return EROFS; }
  static errcode_t write(io_channel, unsigned long, int, const void*) { return EROFS; }
  static errcode_t flush(io_channel) { return 0; }

  static io_manager manager() {
    static struct_io_manager calls = [] {
      struct_io_manager made{};
      made.magic = EXT2_ET_MAGIC_IO_MANAGER;
      made.name = "gpufs";
      made.open = open;
      made.close = close;
      made.set_blksize = set_block_size;
      made.read_blk = read;
      made.write_blk = write;
      made.flush = flush;
      made.read_blk64 = read64;
      made.write_blk64 = write64;
      return made;
    }();
    return &calls;
  }
};

errcode_t ext4_device::open(int flags, ext2_filsys* out) {
  begin_call();
  opening = this;
  const errcode_t answer = ::ext2fs_open2("gpufs", nullptr, flags, 0, 0, ext4_channel::manager(), out);
  opening = nullptr;
  return answer;
}

// count: of blocks, or below zero of bytes.
errcode_t ext4_device::read_blocks(std::uint64_t block, int count, std::size_t block_nbytes, std::byte* to) noexcept try {
  const std::size_t nbytes =
      count < 0 ? static_cast<std::size_t>(-std::int64_t{count}) : static_cast<std::size_t>(count) * block_nbytes;
  if (block > nbytes_ / block_nbytes || nbytes > nbytes_ - block * block_nbytes) return EXT2_ET_SHORT_READ;
  cached_block* kept = nullptr;
  if (nbytes == block_nbytes) {
    if (cached_.empty()) cached_.resize(cache_nbytes / block_nbytes);
    kept = &cached_[block % cached_.size()];
    if (kept->number == block) {
      std::memcpy(to, kept->bytes.data(), nbytes);
      return 0;
    }
  }
  if (const int error = read_(block * block_nbytes, {to, nbytes}); error != 0) {
    failed_ = error;
    return -error;
  }
  if (kept != nullptr) {
    kept->number = ~std::uint64_t{0};
    kept->bytes.assign(to, to + nbytes);
    kept->number = block;
  }
  return 0;
} catch (...) {
  thrown_ = std::current_exception();
  return EIO;
}

void ext4_device::begin_call() {
  failed_ = 0;
  thrown_ = nullptr;
}

int ext4_device::error_of(errcode_t answer) const {
  if (answer == 0) return 0;
  if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  if (failed_ != 0) return failed_;
  if (answer == EXT2_ET_NO_MEMORY) return -ENOMEM;
  // com_err's codes of tables of their own begin above those of the system.
  return answer > 0 && answer < 256 ? -static_cast<int>(answer) : -EUCLEAN;
}

}  // namespace gpufs::store
