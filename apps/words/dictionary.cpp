// SPDX-License-Identifier: Apache-2.0
#include "apps/words/dictionary.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gpufs/mount.hpp"

namespace gpufs::apps::words {
namespace {

#include "apps/words/letters.inc"

constexpr std::uint32_t ncodes = 0x110000;
constexpr std::size_t slack = 16;  // readable bytes before and behind a text

// The first 8 bytes, with zeros behind them if they are fewer.
std::uint64_t first_8(std::string_view text) {
  std::uint64_t first = 0;
  std::memcpy(&first, text.data(), std::min<std::size_t>(8, text.size()));
  return first;
}

}  // namespace

const letters& letters::all() {
  static const letters one;
  return one;
}
letters::letters() : is_word_(ncodes / 64) {
  for (const code_pair& range : word_ranges) {
    for (std::uint32_t code = range.from; code <= range.to; ++code) is_word_[code / 64] |= std::uint64_t{1} << code % 64;
  }
}
std::span<const code_pair> letters::folds() { return case_folds; }
letters_view letters::view() const { return {is_word_.data(), case_folds, static_cast<std::uint32_t>(std::size(case_folds))}; }

dictionary::dictionary(std::string_view text, bool folds, const std::string& name) : folds_(folds) {
  grow();
  std::vector<std::uint8_t> around(2 * slack + most_word_nbytes + 64);
  std::uint64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    bool is_word = line.size() <= most_word_nbytes;
    if (is_word) {
      std::ranges::fill(around, std::uint8_t{0});
      std::memcpy(around.data() + slack, line.data(), line.size());
      is_word = add(around.data() + slack, static_cast<std::uint32_t>(line.size()));
    }
    if (!is_word && no_words_.n++ == 0) {
      no_words_.line = number;
      no_words_.text = line;
    }
  }
  if (nwords() == 0) {
    throw gpufs::error("dictionary '" + name + "': " + (no_words_.n != 0 ? "no line is a word" : "has no words") +
                       "; it is a text with one word a line");
  }
}

bool dictionary::add(const std::uint8_t* line, std::uint32_t nbytes) {
  const letters_view by = letters::all().view();
  for (std::uint32_t i = 0; i < nbytes; ++i) {
    if (!is_in_word(by, line, static_cast<std::int32_t>(i))) return false;
  }
  const std::size_t begin = text_.size();
  if (folds_) {
    fold_word(by, line, 0, nbytes, [&](std::uint32_t byte) { text_.push_back(static_cast<std::uint8_t>(byte)); });
  } else {
    text_.insert(text_.end(), line, line + nbytes);
  }
  const auto of_it = static_cast<std::uint32_t>(text_.size() - begin);
  if (of_it > most_word_nbytes || text_.size() > UINT32_MAX || nwords() == INT32_MAX) {
    text_.resize(begin);
    return false;
  }
  std::vector<std::uint8_t> folded(of_it + slack);
  std::memcpy(folded.data(), text_.data() + begin, of_it);
  bool beyond_ascii = false;
  const word_key key = key_of<false>(folded.data(), 0, of_it, beyond_ascii);
  const auto mask = static_cast<std::uint32_t>(slots_.size() - 1);
  std::uint32_t at = slot_of(key.key, of_it, shift_);
  for (; slots_[at].nbytes != 0; at = (at + 1) & mask) {
    const slot& other = slots_[at];
    if (other.key == key.key && other.nbytes == of_it &&
        std::memcmp(text_.data() + begins_[other.word], folded.data(), of_it) == 0) {
      text_.resize(begin);
      ++nrepeated_;
      return true;
    }
  }
  slots_[at] = {key.key, nwords(), of_it};
  begins_.push_back(static_cast<std::uint32_t>(text_.size()));
  lines_.append(reinterpret_cast<const char*>(line), nbytes);
  lines_begin_.push_back(lines_.size());
  longest_ = std::max(longest_, of_it);
  if (2 * std::uint64_t{nwords()} > slots_.size()) grow();
  return true;
}

// Twice as many slots.
void dictionary::grow() {
  const std::vector<slot> before = std::move(slots_);
  const std::size_t n = std::max<std::size_t>(64, 2 * before.size());
  slots_.assign(n, slot{0, 0, 0});
  shift_ = 64 - static_cast<std::uint32_t>(std::countr_zero(n));
  for (const slot& each : before) {
    if (each.nbytes == 0) continue;
    std::size_t at = slot_of(each.key, each.nbytes, shift_);
    while (slots_[at].nbytes != 0) at = (at + 1) & (n - 1);
    slots_[at] = each;
  }
}

dictionary_view dictionary::view() const {
  const std::uint32_t reach = folds_ ? 3 * longest_ : longest_;
  return {letters::all().view(),
          slots_.data(),
          text_.data(),
          begins_.data(),
          static_cast<std::uint32_t>(slots_.size() - 1),
          shift_,
          reach,
          folds_};
}

wanted_string::wanted_string(std::string text) : text_(std::move(text)) {
  const auto refuse = [](const std::string& why) { throw gpufs::error("the string " + why); };
  if (text_.empty()) refuse("is empty: every line has it");
  if (text_.size() > most_string_nbytes) {
    refuse("has " + std::to_string(text_.size()) + " bytes: at most " + std::to_string(most_string_nbytes) + " can be looked for");
  }
  if (text_.find('\n') != std::string::npos) refuse("has an end of line: look for one line at a time");
  if (text_.find('\0') != std::string::npos) refuse("has a NUL, as no text has");
}
string_view wanted_string::view() const {
  const auto n = static_cast<std::uint32_t>(text_.size());
  return {reinterpret_cast<const std::uint8_t*>(text_.data()), n, first_8(text_), low_bytes(~std::uint64_t{0}, n)};
}

}  // namespace gpufs::apps::words
