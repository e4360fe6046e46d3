// SPDX-License-Identifier: Apache-2.0
// Lexing by host threads. Of each part of a piece a thread finds the function from the state before it to the state after it, by
// walks from all states; those that have met go on as one, as most do within some bytes. Then the state before each part is known,
// and a thread finds its tokens.
#include <algorithm>
#include <array>
#include <vector>

#include "apps/lex/lexer.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::lex {
namespace {

constexpr std::uint64_t usual_piece_nbytes = 64 << 20, most_part_nbytes = 1 << 20;
constexpr std::uint64_t steps_between_looks = 64;  // at whether walks have met

using states = std::array<std::uint8_t, par::lex_table::most_states>;

// What a thread has found in a part.
struct part {
  states after;             // of each state before it
  found_tokens new_tokens;  // those that begin in it; the last one's kind may be missing
  std::uint8_t first_kind;  // of the token that was under way, if it ends here; else 0
};

class cpu_lexer final : public lexer {
 public:
  cpu_lexer(std::unique_ptr<input_file> file, const par::lex_table& table, std::uint64_t piece_nbytes)
      : lexer(file->nbytes(), piece_nbytes, table),
        file_(std::move(file)),
        steps_(table.packed_steps()),
        kinds_(table.packed_kinds()),
        start_(table.start()),
        bytes_(this->piece_nbytes()) {}

 private:
  par::lex_place lex_piece(const par::lex_place& at, found_tokens& to) override {
    const std::uint64_t n = std::min<std::uint64_t>(bytes_.size(), nbytes() - at.offset);
    const std::uint64_t part_nbytes = std::clamp<std::uint64_t>(n / (4 * thread_count(0)), 1, most_part_nbytes);
    std::vector<part> parts((n + part_nbytes - 1) / part_nbytes);
    const auto begin_of = [&](std::size_t i) { return std::min<std::uint64_t>(n, i * part_nbytes); };
    each(parts.size(), [&](std::size_t i) {
      file_->read(bytes_.data() + begin_of(i), begin_of(i + 1) - begin_of(i), at.offset + begin_of(i));
      walk(begin_of(i), begin_of(i + 1), parts[i].after);
    });
    std::vector<unsigned> before;
    par::lex_place after = at;
    for (const part& each : parts) {
      before.push_back(after.state);
      after.state = each.after[after.state];
    }
    each(parts.size(), [&](std::size_t i) { find(begin_of(i), begin_of(i + 1), at.offset, before[i], parts[i]); });
    for (const part& each : parts) join(each, after.begin, to);
    after.offset += n;
    if (after.offset == nbytes()) {
      if (kinds_[after.state] != 0) end_open(after.begin, kinds_[after.state], to);
      after.state = start_;  // no token is under way behind the text
    }
    return after;
  }

  template <class Work>
  static void each(std::size_t n, const Work& work) {
    parallel_for(std::min(16u, thread_count(0)), n, work);
  }
  void walk(std::uint64_t begin, std::uint64_t end, states& after) const {
    const std::size_t nstates = kinds_.size();
    std::vector<std::uint8_t> apart(nstates), of(nstates);  // the states that walks are in, and which walk each first state has
    for (std::size_t i = 0; i < nstates; ++i) apart[i] = of[i] = static_cast<std::uint8_t>(i);
    while (begin < end) {
      const std::uint64_t look = std::min(end, begin + steps_between_looks);
      for (std::uint8_t& state : apart) {
        unsigned now = state;
        for (std::uint64_t i = begin; i < look; ++i) now = steps_[256 * now + bytes_[i]] & 0xff;
        state = static_cast<std::uint8_t>(now);
      }
      begin = look;
      if (apart.size() > 1) let_meet(apart, of);
    }
    for (std::size_t i = 0; i < nstates; ++i) after[i] = apart[of[i]];
  }
  static void let_meet(std::vector<std::uint8_t>& apart, std::vector<std::uint8_t>& of) {
    std::array<int, par::lex_table::most_states> walk_in;
    walk_in.fill(-1);
    std::vector<std::uint8_t> left, now(apart.size());
    for (std::size_t i = 0; i < apart.size(); ++i) {
      int& walk = walk_in[apart[i]];
      if (walk < 0) {
        walk = static_cast<int>(left.size());
        left.push_back(apart[i]);
      }
      now[i] = static_cast<std::uint8_t>(walk);
    }
    if (left.size() == apart.size()) return;
    for (std::uint8_t& walk : of) walk = now[walk];
    apart = std::move(left);
  }
  // The piece's bytes from begin to end; it begins at `offset` of the file.
  void find(std::uint64_t begin, std::uint64_t end, std::uint64_t offset, unsigned state, part& in) const {
    in.first_kind = 0;
    found_tokens& found = in.new_tokens;
    for (std::uint64_t i = begin; i < end; ++i) {
      const unsigned step = steps_[256 * state + bytes_[i]];
      if (const auto ended = static_cast<std::uint8_t>(step >> 8 & 0x7f); ended != 0) {
        (found.offsets.empty() ? in.first_kind : found.kinds.back()) = ended;
      }
      if (step >> 15 != 0) {
        found.offsets.push_back(offset + i);
        found.kinds.push_back(0);
      }
      state = step & 0xff;
    }
  }
  // Appends the tokens that have ended. open: where the one began that has not.
  static void join(const part& from, std::uint64_t& open, found_tokens& to) {
    if (from.first_kind != 0) end_open(open, from.first_kind, to);
    const found_tokens& found = from.new_tokens;
    to.offsets.insert(to.offsets.end(), found.offsets.begin(), found.offsets.end());
    to.kinds.insert(to.kinds.end(), found.kinds.begin(), found.kinds.end());
    if (!found.kinds.empty() && found.kinds.back() == 0) {
      open = to.offsets.back();
      to.offsets.pop_back();
      to.kinds.pop_back();
    }
  }
  static void end_open(std::uint64_t open, std::uint8_t kind, found_tokens& to) {
    to.offsets.push_back(open);
    to.kinds.push_back(kind);
  }

  std::unique_ptr<input_file> file_;
  std::vector<std::uint16_t> steps_;
  std::vector<std::uint8_t> kinds_;
  unsigned start_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

std::unique_ptr<lexer> make_lexer_cpu(const std::string& path, const par::lex_table& table, const lexer_options& options) {
  return std::make_unique<cpu_lexer>(std::make_unique<input_file>(path, "lexed"), table,
                                     options.piece_nbytes != 0 ? options.piece_nbytes : usual_piece_nbytes);
}

}  // namespace gpufs::apps::lex
