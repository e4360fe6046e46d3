// SPDX-License-Identifier: Apache-2.0
// A fault handler for encrypted files: pages are decrypted (AES-CTR) as they come into the GPU's page cache, and kernels read plain
// values through pointers. After the handlers of ActivePointers (ISCA'16), whose example is an encrypted file.
//
// The file is what any well-kept library writes, OpenSSL's EVP_aes_128_ctr, _192_ctr or _256_ctr say: block i is xored with the
// encryption of counter + i, a big-endian number of 128 bits. The file has nothing else in it: no header, no padding.
//
// What this protects: the file on its disk, in the host's page cache and on the bus, all of which only see it encrypted. The key
// is in device memory while the owner lives; what the constructor needs of it on the host is wiped when that returns, and it is
// in no file, log or message. Its device memory is zeroed before it is given back. Neither the time taken nor any address depends
// on key or data, since no table is read.
//
// What it does not protect:
// - Decrypted pages lie in the GPU's page cache, in device memory. They stay while the mount lives, also after the owner of the
//   key is gone, and are not zeroed with it. Every kernel of this process can read them, and the key.
// - Nothing says whether the file was changed (CTR has no authentication): a flipped bit of the file is a flipped bit of a value.
// - Two files, or versions of one, encrypted with one key and overlapping counters tell their difference to whoever has both.
// - Copies of the key that we cannot reach: the caller's, what a GPU's driver keeps of what it moved, single words that the
//   compiler left on the stack.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <gpufs/mount.hpp>
#include <gpufs/simt/config.hpp>
#include <gpufs/simt/platform.hpp>
#include <gpufs/simt/types.hpp>
#include <memory>
#include <span>
#include <type_traits>

#include "aes_slices.hpp"

namespace example {

// What the owner keeps in device memory.
struct aes_ctr_keys {
  aes::two_blocks round_keys[aes::max_rounds + 1];  // in slices, each byte where it is in its round; both blocks alike
  std::uint64_t counter_high, counter_low;          // of the file's first block
  std::uint32_t nrounds;
  std::uint32_t reserved[3];
};
static_assert(sizeof(aes::two_blocks) == 32 && offsetof(aes_ctr_keys, counter_high) == 480 &&
              offsetof(aes_ctr_keys, nrounds) == 496 && sizeof(aes_ctr_keys) == 512);

// The host side, the same for both machines. Use aes_ctr, which picks the machine of the translation unit. Move-only; the
// memory of a key goes along, and one that is assigned to gives its own back.
class host_aes_ctr {
 public:
  // key: 16, 24 or 32 bytes, else throws gpufs::error. counter: the first block's, what OpenSSL takes as IV. Takes one of the
  // mount's forms (host_mount::new_form, which may throw), so that these pages are nobody else's. Both spans are only read.
  host_aes_ctr(gpufs::simt::platform& machine, gpufs::host_mount& fs, std::span<const std::byte> key,
               std::span<const std::byte, 16> counter);

 protected:
  // In device memory. Throws gpufs::error when this was moved from.
  const aes_ctr_keys* keys() const;
  std::uint32_t form() const { return form_; }

 private:
  struct key_memory;  // the device's, zeroed before it is given back
  struct wiper {
    void operator()(key_memory* keys) const noexcept;
  };
  std::unique_ptr<key_memory, wiper> keys_;
  std::uint32_t form_;
};

inline namespace GPUFS_MACHINE {

// The handler itself, as gpufs::map takes it and each pointer carries it: trivially copyable, made by aes_ctr.
class aes_ctr_ref {
 public:
  aes_ctr_ref() = default;  // for null pointers; a page that is brought in with it gives -EINVAL
  GPUFS_HOST_DEVICE aes_ctr_ref(const aes_ctr_keys* keys, std::uint32_t form) : keys_(keys), form_(form) {}

  // Under which decrypted pages are cached; pread of the same file gives the file's own bytes.
  GPUFS_HOST_DEVICE std::uint32_t form() const { return form_; }

  // Decrypts a page that has been brought into its frame, in place. All lanes of the group call, with equal arguments; they need
  // not have converged, and it syncs nothing: what they read must be visible to them before, and the caller syncs after.
  // page: aligned to 16, with whole blocks of room. offset: in the file, a multiple of 16. Bytes from nbytes on stay as they
  // are. 0, or -EINVAL when nobody's key was given.
  template <class Group>
  GPUFS_DEVICE int filled(Group group, std::byte* page, std::uint64_t offset, std::uint32_t nbytes) const {
    if (keys_ == nullptr) return -EINVAL;
    const std::uint32_t nblocks = nbytes / 16 + (nbytes % 16 != 0), size = group.size();
    const unsigned nrounds = keys_->nrounds;
    // Two blocks a lane: those of neighbouring lanes lie side by side.
    for (std::uint32_t block = group.rank(); block < nblocks; block += 2 * size) {
      const std::uint64_t number = offset / 16 + block;
      aes::two_blocks stream;
      put_counter(stream, 0, number);
      put_counter(stream, 1, number + size);
      aes::encrypt(stream, keys_->round_keys, nrounds);
      add_stream(page, block, nbytes, stream, 0);
      if (block + size < nblocks) add_stream(page, block + size, nbytes, stream, 1);
    }
    return 0;
  }

 private:
  GPUFS_DEVICE static std::uint32_t big_endian(std::uint64_t x) {
    const auto low = static_cast<std::uint32_t>(x);
    return low << 24 | (low & 0xff00u) << 8 | (low >> 8 & 0xff00u) | low >> 24;
  }

  // The counter of the file's block `number`, as block j.
  GPUFS_DEVICE void put_counter(aes::two_blocks& t, unsigned j, std::uint64_t number) const {
    const std::uint64_t low = keys_->counter_low + number;
    const std::uint64_t high = keys_->counter_high + (low < number ? 1 : 0);
    t.word[j] = big_endian(high >> 32);
    t.word[2 + j] = big_endian(high);
    t.word[4 + j] = big_endian(low >> 32);
    t.word[6 + j] = big_endian(low);
  }

  GPUFS_DEVICE static void add_stream(std::byte* page, std::uint32_t block, std::uint32_t nbytes, const aes::two_blocks& stream,
                                      unsigned j) {
    auto* place = reinterpret_cast<gpufs::simt::vec16*>(page) + block;
    const std::uint32_t left = nbytes - 16 * block;
    gpufs::simt::vec16 bytes = *place;
    for (unsigned c = 0; c < 4; ++c) {
      std::uint32_t word = stream.word[2 * c + j];
      if (left < 4 * c + 4) word &= left <= 4 * c ? 0 : (1u << 8 * (left - 4 * c)) - 1;
      bytes.word[c] ^= word;
    }
    *place = bytes;
  }

  const aes_ctr_keys* keys_ = nullptr;
  std::uint32_t form_ = 0;
};
static_assert(std::is_trivially_copyable_v<aes_ctr_ref> && sizeof(aes_ctr_ref) <= 16);

// Owner of a key on the device. Kernels that use it must have ended before it is destroyed or assigned to.
class aes_ctr : public host_aes_ctr {
 public:
  aes_ctr(gpufs::host_mount& fs, std::span<const std::byte> key, std::span<const std::byte, 16> counter)
      : host_aes_ctr(fs.device(), fs, key, counter) {}

  // Valid while this lives or what it was moved to. Throws gpufs::error when this was moved from.
  aes_ctr_ref ref() const { return {keys(), form()}; }
};

}  // namespace GPUFS_MACHINE
}  // namespace example
