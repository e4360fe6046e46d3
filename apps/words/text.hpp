// SPDX-License-Identifier: Apache-2.0
// Words of a text, and where it has a string: the same for host threads and kernels. docs/design/words.md
//
// `text` points to a chunk's first byte. Before it there are 16 bytes more, and behind its end as many as its reader promises, and
// 16 of zeros then. It is aligned to 8.
#pragma once
#include <cstdint>
#include <cstring>

#include "gpufs/simt/bits.hpp"

namespace gpufs::apps::words {

struct code_pair {
  std::uint32_t from, to;
};
static_assert(sizeof(code_pair) == 8);

// One word of a dictionary, or none. 16 bytes, which one load reads.
struct alignas(16) slot {
  std::uint64_t key;
  std::uint32_t word;
  std::uint32_t nbytes;  // 0: of no word
};
static_assert(sizeof(slot) == 16);

// Which characters belong to words, a bit each; and which are another's form, in the order of `from`.
struct letters_view {
  const std::uint64_t* is_word;
  const code_pair* folds;
  std::uint32_t nfolds;
};

// A dictionary: dictionary.hpp makes it.
struct dictionary_view {
  letters_view letters;
  const slot* slots;
  const std::uint8_t* text;  // of all words, one behind the other
  const std::uint32_t* begins;
  std::uint32_t mask, shift;  // of the table: slots - 1, 64 - log2 of slots
  std::uint32_t reach;        // no word of a text that has more bytes equals one of the dictionary
  bool folds;                 // the dictionary's words are folded, and the text's are to be
};

// A string to find.
struct string_view {
  const std::uint8_t* bytes;
  std::uint32_t nbytes;
  std::uint64_t first, mask;  // its first 8 bytes, or all
};

inline namespace GPUFS_MACHINE {

constexpr std::uint64_t each_byte = 0x0101010101010101, high_bits = 0x80 * each_byte;
constexpr std::uint32_t no_word = ~0u;

// The high bit of each byte that is below 0x80 and at least `c`.
GPUFS_DEVICE std::uint64_t bytes_from(std::uint64_t x, unsigned c) {
  return ((x & ~high_bits) + (0x80 - c) * each_byte) & high_bits & ~x;
}
GPUFS_DEVICE std::uint64_t bytes_within(std::uint64_t x, unsigned first, unsigned last) {
  return bytes_from(x, first) & ~bytes_from(x, last + 1);
}
GPUFS_DEVICE std::uint64_t load_8(const std::uint8_t* at) {
  std::uint64_t x;
  std::memcpy(&x, at, sizeof x);
  return x;
}
// A bit for each of 8 bytes: it is a letter, a digit or '_' of ASCII.
GPUFS_DEVICE std::uint32_t ascii_marks(std::uint64_t x) {
  const std::uint64_t small = x | 0x20 * each_byte;  // makes no other sign a letter
  const std::uint64_t high = bytes_within(small, 'a', 'z') | bytes_within(x, '0', '9') | bytes_within(x, '_', '_');
  return static_cast<std::uint32_t>((high >> 7) * 0x0102040810204080 >> 56);
}

// The character of UTF-8 that has the byte at `at`. nbytes 0: none has.
struct character {
  std::int32_t begin;
  std::uint32_t nbytes, code;
};
GPUFS_DEVICE character character_at(const std::uint8_t* text, std::int32_t at) {
  character of{at, 1, 0};
  while (at - of.begin < 3 && (text[of.begin] & 0xc0) == 0x80) --of.begin;
  const unsigned lead = text[of.begin];
  unsigned least = 0;
  if (lead < 0x80) {
    of.code = lead;
  } else if ((lead & 0xe0) == 0xc0) {
    of.nbytes = 2;
    of.code = lead & 0x1f;
    least = 0x80;
  } else if ((lead & 0xf0) == 0xe0) {
    of.nbytes = 3;
    of.code = lead & 0x0f;
    least = 0x800;
  } else if ((lead & 0xf8) == 0xf0) {
    of.nbytes = 4;
    of.code = lead & 0x07;
    least = 0x10000;
  } else {
    return {at, 0, 0};
  }
  if (of.begin + static_cast<std::int32_t>(of.nbytes) <= at) return {at, 0, 0};
  for (unsigned i = 1; i < of.nbytes; ++i) {
    const unsigned next = text[of.begin + static_cast<std::int32_t>(i)];
    if ((next & 0xc0) != 0x80) return {at, 0, 0};
    of.code = of.code << 6 | (next & 0x3f);
  }
  if (of.code < least || of.code > 0x10ffff || (of.code >= 0xd800 && of.code < 0xe000)) return {at, 0, 0};
  return of;
}

// Whether the byte at `at` belongs to a word character.
GPUFS_DEVICE bool is_in_word(const letters_view& letters, const std::uint8_t* text, std::int32_t at) {
  const character of = character_at(text, at);
  return of.nbytes != 0 && (letters.is_word[of.code / 64] >> of.code % 64 & 1) != 0;
}

// The marks of 32 bytes from `at` on, a multiple of 8: a bit for each that belongs to a word character.
GPUFS_DEVICE std::uint32_t marks_of_32(const letters_view& letters, const std::uint8_t* text, std::uint32_t at) {
  std::uint32_t marks = 0;
  for (unsigned part = 0; part < 4; ++part) {
    const std::uint64_t x = *reinterpret_cast<const std::uint64_t*>(text + at + 8 * part);
    std::uint32_t here = ascii_marks(x);
    if ((x & high_bits) != 0) {
      for (unsigned i = 0; i < 8; ++i) {
        const std::uint32_t place = at + 8 * part + i;
        if (text[place] >= 0x80 && is_in_word(letters, text, static_cast<std::int32_t>(place))) here |= 1u << i;
      }
    }
    marks |= here << 8 * part;
  }
  return marks;
}

// Words begin where a mark is set behind one that is not. before: the mark before the first of these 32.
GPUFS_DEVICE std::uint32_t begins_of_words(std::uint32_t marks, std::uint32_t before) { return marks & ~(marks << 1 | before); }

// How many marks are set from `at` on, one behind the other; if they are more than `most`, some number above it. There are marks
// for the 32 bytes behind those.
GPUFS_DEVICE std::uint32_t run_length(const std::uint32_t* marks, std::uint32_t at, std::uint32_t most) {
  std::uint32_t i = at / 32;
  const std::uint32_t left = 32 - at % 32;
  std::uint32_t n = simt::trailing_zeros(~(marks[i] >> at % 32));
  if (n < left) return n;
  for (n = left; n <= most;) {
    const std::uint32_t more = simt::trailing_zeros(~marks[++i]);
    n += more;
    if (more < 32) break;
  }
  return n;
}

// Loses nothing: other keys become other keys.
GPUFS_DEVICE std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 29;
  x *= 0x9e3779b97f4a7c15;
  return x ^ x >> 32;
}
// Where a word's slots begin.
GPUFS_DEVICE std::uint32_t slot_of(std::uint64_t key, std::uint32_t nbytes, std::uint32_t shift) {
  return static_cast<std::uint32_t>((key ^ nbytes * 0xd6e8feb86659fd93) * 0xff51afd7ed558ccd >> shift);
}
GPUFS_DEVICE std::uint64_t low_bytes(std::uint64_t x, std::uint32_t n) { return n < 8 ? x & ((std::uint64_t{1} << 8 * n) - 1) : x; }
GPUFS_DEVICE std::uint64_t fold_ascii(std::uint64_t x) { return x | bytes_within(x, 'A', 'Z') >> 2; }

// The key of a word's bytes, and how many they are.
struct word_key {
  std::uint64_t key;
  std::uint32_t nbytes;

  // 8 bytes more, or what is left, with zeros behind it.
  GPUFS_DEVICE void add_block(std::uint64_t block, std::uint32_t n) {
    key = nbytes == 0 ? block : mix(key) ^ block;
    nbytes += n;
  }
};

GPUFS_DEVICE std::uint32_t folded_code(const letters_view& letters, std::uint32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 0x20 : code;
  std::uint32_t low = 0, high = letters.nfolds;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (letters.folds[middle].from < code) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < letters.nfolds && letters.folds[low].from == code ? letters.folds[low].to : code;
}
// Calls put(byte) for each byte of the folded form of a word.
template <class Put>
GPUFS_DEVICE void fold_word(const letters_view& letters, const std::uint8_t* text, std::uint32_t at, std::uint32_t nbytes,
                            const Put& put) {
  for (std::uint32_t i = 0; i < nbytes;) {
    const character of = character_at(text, static_cast<std::int32_t>(at + i));
    i += of.nbytes != 0 ? of.nbytes : 1;
    const std::uint32_t code = folded_code(letters, of.code);
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6);
      put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    }
  }
}
// The key of a word that is folded so.
GPUFS_DEVICE word_key folded_key(const letters_view& letters, const std::uint8_t* text, std::uint32_t at, std::uint32_t nbytes) {
  word_key of{0, 0};
  std::uint64_t block = 0;
  std::uint32_t n = 0;
  fold_word(letters, text, at, nbytes, [&](std::uint32_t byte) {
    block |= static_cast<std::uint64_t>(byte) << 8 * n;
    if (++n < 8) return;
    of.add_block(block, 8);
    block = 0;
    n = 0;
  });
  if (n != 0) of.add_block(block, n);
  return of;
}
// The key of a word; beyond_ascii: it has to be folded, and not only letters of ASCII.
template <bool Folds>
GPUFS_DEVICE word_key key_of(const std::uint8_t* text, std::uint32_t at, std::uint32_t nbytes, bool& beyond_ascii) {
  word_key of{0, 0};
  while (of.nbytes < nbytes) {
    const std::uint32_t n = nbytes - of.nbytes < 8 ? nbytes - of.nbytes : 8;
    std::uint64_t block = low_bytes(load_8(text + at + of.nbytes), n);
    if constexpr (Folds) {
      beyond_ascii |= (block & high_bits) != 0;
      block = fold_ascii(block);
    }
    of.add_block(block, n);
  }
  return of;
}

// The rest of find_word: whether the dictionary's word, of the same key and length and of more than 8 bytes, is the text's.
template <bool Folds>
GPUFS_DEVICE bool is_same_word(const dictionary_view& in, std::uint32_t word, const std::uint8_t* text, std::uint32_t at,
                               std::uint32_t nbytes) {
  const std::uint8_t* wanted = in.text + in.begins[word];
  bool same = true;
  if constexpr (Folds) {
    fold_word(in.letters, text, at, nbytes, [&](std::uint32_t byte) { same &= *wanted++ == byte; });
  } else {
    for (std::uint32_t i = 0; i < nbytes; ++i) same &= wanted[i] == text[at + i];
  }
  return same;
}

// A word of a text, of at most `reach` bytes, and where its slots begin.
struct text_word {
  word_key key;
  std::uint32_t slot, at, nbytes;
};
template <bool Folds>
GPUFS_DEVICE text_word word_at(const dictionary_view& in, const std::uint8_t* text, std::uint32_t at, std::uint32_t nbytes) {
  bool beyond_ascii = false;
  word_key key = key_of<Folds>(text, at, nbytes, beyond_ascii);
  if (beyond_ascii) key = folded_key(in.letters, text, at, nbytes);
  return {key, slot_of(key.key, key.nbytes, in.shift), at, nbytes};
}
// The number of the dictionary's word that it is, or no_word.
template <bool Folds>
GPUFS_DEVICE std::uint32_t find_word(const dictionary_view& in, const std::uint8_t* text, const text_word& wanted) {
  for (std::uint32_t i = wanted.slot;; i = (i + 1) & in.mask) {
    const slot here = in.slots[i];
    if (here.key == wanted.key.key && here.nbytes == wanted.key.nbytes &&
        (here.nbytes <= 8 || is_same_word<Folds>(in, here.word, text, wanted.at, wanted.nbytes)))
      return here.word;
    if (here.nbytes == 0) return no_word;
  }
}

// Whether the string is at `at`.
GPUFS_DEVICE bool is_string_at(const string_view& wanted, const std::uint8_t* text, std::uint32_t at) {
  if ((load_8(text + at) & wanted.mask) != wanted.first) return false;
  for (std::uint32_t i = 8; i < wanted.nbytes; ++i) {
    if (text[at + i] != wanted.bytes[i]) return false;
  }
  return true;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::words
