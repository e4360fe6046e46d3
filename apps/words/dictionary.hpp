// SPDX-License-Identifier: Apache-2.0
// What is looked for: the words of a dictionary, or a string. Host code.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/words/text.hpp"

namespace gpufs::apps::words {

constexpr std::uint32_t most_word_nbytes = 255, most_string_nbytes = 1000;
// How many bytes behind a chunk's end belong to what begins in it, at most: a word's, which get fewer when they are folded (3 to 1
// at most), and the one that shows that it is longer; those of a character that is cut.
constexpr std::uint32_t most_ahead = most_string_nbytes;
static_assert(3 * most_word_nbytes + 32 <= most_ahead);

// Which characters belong to words, and their folded forms.
class letters {
 public:
  static const letters& all();  // made at the first call
  letters_view view() const;
  std::span<const std::uint64_t> is_word() const { return is_word_; }
  static std::span<const code_pair> folds();

 private:
  letters();
  std::vector<std::uint64_t> is_word_;
};

// The different words of a text that has one a line.
class dictionary {
 public:
  // folds: words that are equal when they are folded are one, under the first one's name. name: what errors call the text. Ends of
  // lines are LF or CR LF; empty lines are passed over, and so are lines that are no word, which are counted. Throws gpufs::error:
  // there is no word, or more than 2^31.
  dictionary(std::string_view text, bool folds, const std::string& name);

  std::uint32_t nwords() const { return static_cast<std::uint32_t>(begins_.size() - 1); }
  std::string_view word(std::uint32_t i) const {  // as its line has it
    return std::string_view(lines_).substr(lines_begin_[i], lines_begin_[i + 1] - lines_begin_[i]);
  }
  std::uint64_t nrepeated() const { return nrepeated_; }  // lines with a word that was there
  struct refused {
    std::uint64_t n = 0, line = 0;  // how many lines are no word, and the first one's number, from 1 on
    std::string text;               // of the first one
  };
  const refused& no_words() const { return no_words_; }

  dictionary_view view() const;  // for host threads
  std::span<const slot> slots() const { return slots_; }
  std::span<const std::uint8_t> text() const { return text_; }
  std::span<const std::uint32_t> begins() const { return begins_; }

 private:
  bool add(const std::uint8_t* line, std::uint32_t nbytes);  // whether it is a word
  void grow();

  bool folds_;
  std::string lines_;
  std::vector<std::size_t> lines_begin_{0};
  std::vector<std::uint8_t> text_;
  std::vector<std::uint32_t> begins_{0};
  std::vector<slot> slots_;
  std::uint32_t shift_ = 0, longest_ = 0;
  std::uint64_t nrepeated_ = 0;
  refused no_words_;
};

// Throws gpufs::error: the string is empty, too long, or has an end of line or a NUL.
class wanted_string {
 public:
  explicit wanted_string(std::string text);
  string_view view() const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// One of them.
struct wanted {
  const dictionary* words = nullptr;
  const wanted_string* text = nullptr;
};

}  // namespace gpufs::apps::words
