// SPDX-License-Identifier: Apache-2.0
// AES encryption of two blocks by one thread, in bit slices: only logic on words. No table is read, so neither the time taken nor
// any address depends on key or data, and L1 stays the kernel's own. ShiftRows costs nothing: bytes stay where they are, and
// MixColumns looks for them there (fixslicing: Adomnicai and Peyrin, TCHES 2021).
//
// For sm_90 nvcc makes 1060 instructions a block of it with keys of 128 bits and 1420 with 256, in 30 registers. At 64 of them a
// clock, 132 SMs would do 215 and 160 GB/s at 1.7 GHz, so a bus of 50 GB/s takes a quarter to a third of them. A table would be
// read 160 to 224 times a block.
#pragma once
#include <cstdint>

#include <gpufs/simt/config.hpp>

namespace example::aes {

inline constexpr unsigned max_rounds = 14;

// Two blocks. As slices, word b has bit b of all 32 bytes, that of the byte in row r and column c of block j at bit 8r + 2c + j.
// As columns, word 2c + j is column c of block j, row 0 in its lowest byte.
struct alignas(32) two_blocks {
  std::uint32_t word[8];
};

inline namespace GPUFS_MACHINE {

GPUFS_HOST_DEVICE std::uint32_t rotate_right(std::uint32_t x, unsigned n) { return x >> (n & 31) | x << ((32 - n) & 31); }

// From columns to slices, and back: in each byte, bit b of word i changes places with bit i of word b.
GPUFS_HOST_DEVICE void transpose(two_blocks& t) {
  constexpr std::uint32_t low[] = {0x55555555, 0x33333333, 0x0f0f0f0f};
  for (unsigned level = 0; level < 3; ++level) {
    const unsigned n = 1u << level;
    for (unsigned i = 0; i < 8; ++i) {
      if ((i & n) != 0) continue;
      const std::uint32_t differ = (t.word[i] >> n ^ t.word[i + n]) & low[level];
      t.word[i + n] ^= differ;
      t.word[i] ^= differ << n;
    }
  }
}

// The S-box of all bytes: 32 ANDs and 83 XORs. Boyar and Peralta, "A new combinational logic minimization technique with
// applications to cryptology", SEA 2010; their names, x0 and s0 the highest bits.
GPUFS_HOST_DEVICE void sub_bytes(two_blocks& t) {
  using u32 = std::uint32_t;
  const u32 x0 = t.word[7], x1 = t.word[6], x2 = t.word[5], x3 = t.word[4];
  const u32 x4 = t.word[3], x5 = t.word[2], x6 = t.word[1], x7 = t.word[0];

  const u32 y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5, t0 = x1 ^ x2, y1 = t0 ^ x7, y4 = y1 ^ x3, y12 = y13 ^ y14;
  const u32 y2 = y1 ^ x0, y5 = y1 ^ x6, y3 = y5 ^ y8, t1 = x4 ^ y12, y15 = t1 ^ x5, y20 = t1 ^ x1, y6 = y15 ^ x7, y10 = y15 ^ t0;
  const u32 y11 = y20 ^ y9, y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8, y16 = t0 ^ y11, y21 = y13 ^ y16, y18 = x0 ^ y16;

  const u32 t2 = y12 & y15, t3 = y3 & y6, t4 = t3 ^ t2, t5 = y4 & x7, t6 = t5 ^ t2, t7 = y13 & y16, t8 = y5 & y1, t9 = t8 ^ t7;
  const u32 t10 = y2 & y7, t11 = t10 ^ t7, t12 = y9 & y11, t13 = y14 & y17, t14 = t13 ^ t12, t15 = y8 & y10, t16 = t15 ^ t12;
  const u32 t17 = t4 ^ t14, t18 = t6 ^ t16, t19 = t9 ^ t14, t20 = t11 ^ t16;
  const u32 t21 = t17 ^ y20, t22 = t18 ^ y19, t23 = t19 ^ y21, t24 = t20 ^ y18;

  const u32 t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26, t28 = t25 & t27, t29 = t28 ^ t22, t30 = t23 ^ t24;
  const u32 t31 = t22 ^ t26, t32 = t31 & t30, t33 = t32 ^ t24, t34 = t23 ^ t33, t35 = t27 ^ t33, t36 = t24 & t35;
  const u32 t37 = t36 ^ t34, t38 = t27 ^ t36, t39 = t29 & t38, t40 = t25 ^ t39;

  const u32 t41 = t40 ^ t37, t42 = t29 ^ t33, t43 = t29 ^ t40, t44 = t33 ^ t37, t45 = t42 ^ t41;
  const u32 z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16, z4 = t40 & y1, z5 = t29 & y7, z6 = t42 & y11;
  const u32 z7 = t45 & y17, z8 = t41 & y10, z9 = t44 & y12, z10 = t37 & y3, z11 = t33 & y4, z12 = t43 & y13, z13 = t40 & y5;
  const u32 z14 = t29 & y2, z15 = t42 & y9, z16 = t45 & y14, z17 = t41 & y8;

  const u32 t46 = z15 ^ z16, t47 = z10 ^ z11, t48 = z5 ^ z13, t49 = z9 ^ z10, t50 = z2 ^ z12, t51 = z2 ^ z5, t52 = z7 ^ z8;
  const u32 t53 = z0 ^ z3, t54 = z6 ^ z7, t55 = z16 ^ z17, t56 = z12 ^ t48, t57 = t50 ^ t53, t58 = z4 ^ t46, t59 = z3 ^ t54;
  const u32 t60 = t46 ^ t57, t61 = z14 ^ t57, t62 = t52 ^ t58, t63 = t49 ^ t58, t64 = z4 ^ t59, t65 = t61 ^ t62, t66 = z1 ^ t63;
  const u32 s3 = t53 ^ t66, t67 = t64 ^ t65;

  t.word[7] = t59 ^ t63;
  t.word[6] = ~(t64 ^ s3);
  t.word[5] = ~(t55 ^ t67);
  t.word[4] = s3;
  t.word[3] = t51 ^ t66;
  t.word[2] = t47 ^ t65;
  t.word[1] = ~(t56 ^ t62);
  t.word[0] = ~(t48 ^ t60);
}

// At each byte, the one that is Rows below and Columns to the right, both around.
template <unsigned Rows, unsigned Columns>
GPUFS_HOST_DEVICE std::uint32_t neighbours(std::uint32_t slice) {
  constexpr unsigned n = 2 * (Columns % 4);
  if constexpr (n == 0) {
    return rotate_right(slice, 8 * Rows);
  } else {
    constexpr std::uint32_t low = (0xffu >> n) * 0x01010101u;
    return (rotate_right(slice, 8 * Rows + n) & low) | (rotate_right(slice, 8 * Rows + n - 8) & ~low);
  }
}

// After Shifts times ShiftRows that moved nothing: the byte of row r in column c is r * Shifts columns further right.
template <unsigned Shifts>
GPUFS_HOST_DEVICE void mix_columns(two_blocks& t) {
  std::uint32_t below[8], sum[8];
  for (unsigned b = 0; b < 8; ++b) {
    below[b] = neighbours<1, Shifts>(t.word[b]);
    sum[b] = t.word[b] ^ below[b];
  }
  for (unsigned b = 0; b < 8; ++b) {
    std::uint32_t twice = sum[(b + 7) % 8];
    if (b == 1 || b == 3 || b == 4) twice ^= sum[7];  // less the polynomial
    t.word[b] = twice ^ below[b] ^ neighbours<2, 2 * Shifts>(sum[b]);
  }
}

// The key by value: so it is loaded 16 bytes at a time.
GPUFS_HOST_DEVICE void add_key(two_blocks& t, const two_blocks round_key) {
  for (unsigned b = 0; b < 8; ++b) t.word[b] ^= round_key.word[b];
}

// Both blocks, from columns to columns. Round keys are slices, too, each byte where the one that it meets is in that round.
GPUFS_HOST_DEVICE void encrypt(two_blocks& t, const two_blocks* round_keys, unsigned nrounds) {
  transpose(t);
  add_key(t, round_keys[0]);
  for (unsigned round = 1; round < nrounds; ++round) {
    sub_bytes(t);
    switch (round % 4) {
      case 0:
        mix_columns<0>(t);
        break;
      case 1:
        mix_columns<1>(t);
        break;
      case 2:
        mix_columns<2>(t);
        break;
      case 3:
        mix_columns<3>(t);
        break;
    }
    add_key(t, round_keys[round]);
  }
  sub_bytes(t);
  add_key(t, round_keys[nrounds]);
  if (nrounds % 4 == 2) {  // else 12: every row is back in its place
    constexpr std::uint32_t odd_rows = 0xff00ff00u;
    for (unsigned b = 0; b < 8; ++b) t.word[b] = (t.word[b] & ~odd_rows) | (neighbours<0, 2>(t.word[b]) & odd_rows);
  }
  transpose(t);
}

}  // namespace GPUFS_MACHINE
}  // namespace example::aes
