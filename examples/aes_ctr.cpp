// SPDX-License-Identifier: Apache-2.0
// The host side of AES-CTR: expands the key, and leaves no copy of it in host memory.
#include "aes_ctr.hpp"

#include <string.h>

#include <exception>
#include <gpufs/simt/device_array.hpp>
#include <string>

namespace example {
namespace {

constexpr unsigned max_words = 4 * (aes::max_rounds + 1);

// What is secret while a key is expanded. In pinned memory: it is never swapped out, and the device reads it without a copy
// between.
struct scratch {
  aes_ctr_keys keys;
  std::uint32_t words[max_words];  // FIPS 197's w, byte 0 lowest
  aes::two_blocks slices;
};

struct wipe_scratch {
  gpufs::simt::platform* machine;
  void operator()(scratch* secret) const noexcept {
    explicit_bzero(secret, sizeof *secret);
    machine->deallocate_pinned(secret);
  }
};

// The S-box of each byte of the word, by the circuit that kernels use.
std::uint32_t sub_word(std::uint32_t word, aes::two_blocks& slices) {
  slices = {};
  for (unsigned i = 0; i < 32; ++i) slices.word[i % 8] |= (word >> i & 1) << (i / 8);
  aes::sub_bytes(slices);
  word = 0;
  for (unsigned i = 0; i < 32; ++i) word |= (slices.word[i % 8] >> (i / 8) & 1) << i;
  return word;
}

// FIPS 197, section 5.2.
void expand(scratch& s, std::span<const std::byte> key) {
  const auto nk = static_cast<unsigned>(key.size() / 4), nwords = 4 * (nk + 7);
  for (unsigned i = 0; i < key.size(); ++i) s.words[i / 4] |= std::to_integer<std::uint32_t>(key[i]) << (8 * (i % 4));
  std::uint32_t constant = 1;
  for (unsigned i = nk; i < nwords; ++i) {
    std::uint32_t word = s.words[i - 1];
    if (i % nk == 0) {
      word = sub_word(aes::rotate_right(word, 8), s.slices) ^ constant;
      constant = constant << 1 ^ (constant >> 7) * 0x11b;
    } else if (nk == 8 && i % nk == 4) {
      word = sub_word(word, s.slices);
    }
    s.words[i] = s.words[i - nk] ^ word;
  }
  s.keys.nrounds = nk + 6;
}

// Round keys as slices. In round k no byte has been moved by ShiftRows yet: that of row r and column c is in column c + k * r.
void slice(scratch& s) {
  for (unsigned k = 0; k <= s.keys.nrounds; ++k) {
    for (unsigned bit = 0; bit < 128; ++bit) {
      const unsigned b = bit % 8, r = bit / 8 % 4, c = bit / 32;
      const std::uint32_t value = s.words[4 * k + c] >> (bit % 32) & 1;
      s.keys.round_keys[k].word[b] |= 3 * value << (8 * r + 2 * ((c + k * r) % 4));
    }
  }
}

std::uint64_t big_endian(std::span<const std::byte, 8> bytes) {
  std::uint64_t value = 0;
  for (const std::byte b : bytes) value = value << 8 | std::to_integer<std::uint64_t>(b);
  return value;
}

}  // namespace

struct host_aes_ctr::key_memory {
  gpufs::simt::device_array<aes_ctr_keys> array;

  ~key_memory() {
    try {
      array.device().zero_device(array.get(), sizeof(aes_ctr_keys));
    } catch (const std::exception&) {  // the device is lost, and its memory with it
    }
  }
};

void host_aes_ctr::wiper::operator()(key_memory* keys) const noexcept { delete keys; }

host_aes_ctr::host_aes_ctr(gpufs::simt::platform& machine, gpufs::host_mount& fs, std::span<const std::byte> key,
                           std::span<const std::byte, 16> counter) {
  if (key.size() != 16 && key.size() != 24 && key.size() != 32) {
    throw gpufs::error("aes_ctr: the key has " + std::to_string(key.size()) + " bytes; it must have 16, 24 or 32");
  }
  const std::unique_ptr<scratch, wipe_scratch> secret(static_cast<scratch*>(machine.allocate_pinned(sizeof(scratch))), {&machine});
  expand(*secret, key);
  slice(*secret);
  secret->keys.counter_high = big_endian(counter.first<8>());
  secret->keys.counter_low = big_endian(counter.last<8>());
  keys_.reset(new key_memory{gpufs::simt::device_array<aes_ctr_keys>(1, machine)});
  keys_->array.write_one(secret->keys);
  form_ = fs.new_form();
}

const aes_ctr_keys* host_aes_ctr::keys() const {
  if (!keys_) throw gpufs::error("aes_ctr: ref() of one that was moved from");
  return keys_->array.get();
}

}  // namespace example
