// SPDX-License-Identifier: Apache-2.0
// Lexing in kernels against a loop over the table: random automata, all groups, lengths, cuts, schedules; and bad arguments.
#include "gpufs/par/lex.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/lexes.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

text_bytes text_of(std::string_view text) { return {text.begin(), text.end()}; }

// What one caller has: memory for its tokens, and what it was told.
struct lexed_tokens {
  // May be told of as few as `given`.
  explicit lexed_tokens(std::uint64_t most, std::uint64_t given = ~std::uint64_t{0})
      : offsets(most), kinds(most), result(1), room(std::min(most, given)) {}
  lex_tokens tokens() const { return {offsets.get(), kinds.get(), room}; }
  std::vector<token> read() const {
    const lex_result told = result.read_one();
    EXPECT_EQ(told.error, 0);
    std::vector<token> all;
    const std::vector<std::uint64_t> at = offsets.read();
    const std::vector<std::uint8_t> of = kinds.read();
    for (std::uint64_t i = 0; i < std::min(told.ntokens, room); ++i) all.push_back({at[i], of[i]});
    EXPECT_EQ(all.size(), told.ntokens);
    return all;
  }

  device_array<std::uint64_t> offsets;
  device_array<std::uint8_t> kinds;
  device_array<lex_result> result;
  std::uint64_t room;
};

enum class caller : std::uint8_t { thread, tile, warp, block, grid };
constexpr caller callers[] = {caller::thread, caller::tile, caller::warp, caller::block, caller::grid};

struct lex_once {
  caller who;
  lex_view table;
  lex_place at;
  lex_text text;
  lex_tokens out;
  lex_space space;
  lex_result* result;

  GPUFS_DEVICE void operator()() const {
    if (who == caller::grid) {
      const simt::grid grid = simt::this_grid();
      const lex_result got = lex(grid, table, at, text, out, space);
      if (grid.leader()) *result = got;
      return;
    }
    if (simt::block_rank() != 0) return;
    if (who == caller::block) by(simt::this_block());
    if (who == caller::warp && simt::warp_rank() == 0) by(simt::this_warp());
    if (who == caller::tile && simt::thread_rank() < 8) by(simt::this_tile<8>());
    if (who == caller::thread && simt::thread_rank() == 0) by(simt::this_thread());
  }

 private:
  template <class Group>
  GPUFS_DEVICE void by(Group group) const {
    const lex_result got = lex(group, table, at, text, out, space);
    if (group.leader()) *result = got;
  }
};

constexpr unsigned nblocks = 3, nthreads = 64;

// `text` begins `skipped` bytes behind an address that 16 divides.
void lex_by(caller who, const device_lex_table& table, const lex_place& at, std::span<const std::uint8_t> text, bool is_last,
            const lexed_tokens& to, unsigned skipped = 0, const simt::cpu_schedule& schedule = {}) {
  text_bytes shifted(skipped);
  shifted.insert(shifted.end(), text.begin(), text.end());
  const device_array<std::uint8_t> bytes{std::span<const std::uint8_t>(shifted)};
  const std::uint64_t nbytes = lex_space::nbytes_for(text.size(), table.view().nstates, nblocks, nthreads);
  const device_array<std::byte> space{std::span<const std::byte>(std::vector<std::byte>(nbytes + skipped, std::byte{0xa5}))};
  simt::launch({.grid = nblocks, .block = nthreads, .schedule = schedule, .cooperative = true},
               lex_once{who,
                        table.view(),
                        at,
                        {bytes.get() + skipped, text.size(), is_last},
                        to.tokens(),
                        {space.get() + skipped, nbytes},
                        to.result.get()});
}
std::vector<token> lexed_by(caller who, const lex_table& table, std::span<const std::uint8_t> text, unsigned skipped = 0,
                            const simt::cpu_schedule& schedule = {}) {
  const device_lex_table on_device(table);
  const lexed_tokens to(text.size() + 1);
  lex_by(who, on_device, {.state = table.start()}, text, true, to, skipped, schedule);
  return to.read();
}

// Around the ends of a thread's bytes, of walks, and of walks of walks.
const std::vector<std::uint64_t> text_lengths = {0, 1, 2, 15, 16, 17, 255, 256, 257, 1025, 4099, 16385};

TEST(lexing, finds_what_random_automata_say_by_all_groups) {
  std::mt19937_64 draw(31);
  for (const std::uint64_t n : text_lengths) {
    for (const unsigned nstates : {1u, 2u, 9u, 16u, 17u, 40u, 256u}) {
      if (n > 2000 && nstates > 40) continue;
      const lex_table table = drawn_table(draw, nstates, draw() % 2 == 0);
      const text_bytes text = drawn_text(draw, n);
      const std::vector<token> wanted = tokens_of(table, text);
      for (const caller who : callers) {
        if (n > 2000 && who == caller::tile) continue;
        SCOPED_TRACE(testing::Message() << n << " bytes, " << nstates << " states, caller " << static_cast<int>(who));
        EXPECT_EQ(lexed_by(who, table, text, static_cast<unsigned>(draw() % 17)), wanted);
      }
    }
  }
}

TEST(lexing, is_the_same_in_all_schedules) {
  std::mt19937_64 draw(32);
  for (int trial = 0; trial < ntrials / 2; ++trial) {
    SCOPED_TRACE(trial);
    const lex_table table = drawn_table(draw, trial % 3 == 0 ? 30 : 2 + static_cast<unsigned>(draw() % 15), trial % 2 == 0);
    const text_bytes text = drawn_text(draw, draw() % 9000);
    for (const caller who : {caller::block, caller::grid}) {
      EXPECT_EQ(lexed_by(who, table, text, 0, drawn_schedule(draw)), tokens_of(table, text));
    }
  }
}

TEST(lexing, goes_on_where_a_piece_of_a_text_ended) {
  std::mt19937_64 draw(33);
  for (int trial = 0; trial < 20; ++trial) {
    const lex_table table = drawn_table(draw, trial % 4 == 0 ? 20 : 16, true);
    const device_lex_table on_device(table);
    const text_bytes text = drawn_text(draw, 700);
    std::vector<token> got;
    lex_place at{.state = table.start()};
    while (at.offset < text.size()) {
      const std::uint64_t n = std::min<std::uint64_t>(text.size() - at.offset, draw() % 4 == 0 ? draw() % 3 : draw() % 200);
      const lexed_tokens some(n + 1);
      lex_by(callers[static_cast<std::size_t>(trial) % 5], on_device, at, std::span(text).subspan(at.offset, n),
             at.offset + n == text.size(), some);
      for (const token& each : some.read()) got.push_back(each);
      ASSERT_EQ(some.result.read_one().after.offset, at.offset + n);
      at = some.result.read_one().after;
    }
    EXPECT_EQ(got, tokens_of(table, text)) << trial;
    EXPECT_EQ(at.state, table.start());
  }
}

TEST(lexing, of_a_text_that_ends_later_leaves_its_last_token_to_the_next_piece) {
  const lex_table table = lex_table::named("json");
  const device_lex_table on_device(table);
  const lexed_tokens to(16);
  lex_by(caller::block, on_device, {.state = table.start()}, text_of("[12, \"ab"), false, to);
  EXPECT_EQ(to.read().size(), 3u);
  const lex_place after = to.result.read_one().after;
  EXPECT_EQ(after.begin, 5u);
  lex_by(caller::warp, on_device, after, text_of("c\"]"), true, to);
  EXPECT_EQ(to.read(), (std::vector<token>{{5, 8}, {10, 5}}));
}

// --- The paper's table -------------------------------------------------------------------------------------------------------

TEST(lexing, by_the_papers_table_has_words_operators_and_strings) {
  const lex_table table = lex_table::named("paper");
  EXPECT_EQ(table.nstates(), 10u);  // the paper's nine, and one for bytes that they have no place for
  const std::string text = "if x<= n then print(\"She said \"\"no\"\";\", y);\n3 a>b \"open";
  enum : unsigned { error = 1, word, op, string };
  const std::vector<token> wanted = {{0, word},   {3, word},    {4, op},  {7, word},  {9, word},  {14, word},
                                     {19, op},    {20, string}, {38, op}, {40, word}, {41, op},   {42, op},
                                     {44, error}, {46, word},   {47, op}, {48, word}, {50, error}};
  EXPECT_EQ(tokens_of(table, text_of(text)), wanted);
  for (const caller who : callers) EXPECT_EQ(lexed_by(who, table, text_of(text)), wanted) << static_cast<int>(who);
}

// --- Bad arguments -----------------------------------------------------------------------------------------------------------

TEST(lexing, without_room_for_all_tokens_says_how_many_there_are) {
  const lex_table table = lex_table::named("csv");
  const device_lex_table on_device(table);
  for (const caller who : callers) {
    SCOPED_TRACE(static_cast<int>(who));
    const lexed_tokens enough(5), fewer(5, 4), none(5, 0);
    for (const lexed_tokens* to : {&enough, &fewer, &none}) {
      lex_by(who, on_device, {.state = table.start()}, text_of("a,b\nc"), false, *to);
    }
    EXPECT_EQ(enough.result.read_one().error, 0);
    EXPECT_EQ(enough.result.read_one().ntokens, 4u);  // and `c`, which may go on
    for (const lexed_tokens* to : {&fewer, &none}) {
      const lex_result told = to->result.read_one();
      EXPECT_EQ(told.error, -ENOSPC);
      EXPECT_EQ(told.ntokens, 5u);
      EXPECT_EQ(told.after.offset, 0u);
      const std::vector<std::uint64_t> offsets = to->offsets.read();
      const std::vector<std::uint8_t> kinds = to->kinds.read();
      for (std::uint64_t i = to->room; i < 5; ++i) EXPECT_TRUE(offsets[i] == 0 && kinds[i] == 0) << i;
    }
  }
}

TEST(lexing, with_too_little_space_or_a_state_that_is_not_there_does_nothing) {
  std::mt19937_64 draw(35);
  for (const unsigned nstates : {9u, 70u}) {
    const lex_table table = drawn_table(draw, nstates, false);
    const device_lex_table on_device(table);
    const text_bytes text = drawn_text(draw, 3000);
    const device_array<std::uint8_t> bytes{std::span<const std::uint8_t>(text)};
    for (const caller who : callers) {
      const std::uint64_t needed = who == caller::grid ? lex_space::nbytes_for(text.size(), nstates, nblocks, nthreads)
                                                       : lex_space::nbytes_for(text.size(), nstates);
      const device_array<std::byte> space(needed);
      const lexed_tokens to(text.size() + 1);
      const auto run = [&](std::uint64_t nbytes, std::uint32_t state) {
        simt::launch({.grid = nblocks, .block = nthreads, .cooperative = true}, lex_once{who,
                                                                                         on_device.view(),
                                                                                         {.state = state},
                                                                                         {bytes.get(), text.size(), true},
                                                                                         to.tokens(),
                                                                                         {space.get(), nbytes},
                                                                                         to.result.get()});
        return to.result.read_one().error;
      };
      EXPECT_EQ(run(needed - 1, table.start()), -EINVAL);
      EXPECT_EQ(run(needed, nstates), -EINVAL);
      EXPECT_EQ(to.offsets.read(), std::vector<std::uint64_t>(text.size() + 1));
      EXPECT_EQ(run(needed, table.start()), 0);
      EXPECT_EQ(to.read(), tokens_of(table, text));
    }
  }
}

// For these a group needs 0, 0 and 33 bytes by a formula that wraps around.
TEST(lexing, of_texts_that_no_memory_has_is_refused) {
  std::mt19937_64 draw(36);
  const std::pair<unsigned, std::uint64_t> lengths[] = {
      {17, 0xeeeeeeeeeeeeeea0}, {40, 0xdc2d6ef6639aa524}, {255, 0x7efdfbf7efdfbe01}, {9, ~std::uint64_t{0}}};
  for (const auto& [nstates, nbytes] : lengths) {
    const lex_table table = drawn_table(draw, nstates, false);
    const device_lex_table on_device(table);
    const device_array<std::uint8_t> bytes(64);
    const device_array<std::byte> space(1 << 16);
    for (const caller who : callers) {
      const lexed_tokens to(4);
      simt::launch({.grid = nblocks, .block = nthreads, .cooperative = true}, lex_once{who,
                                                                                       on_device.view(),
                                                                                       {.state = table.start()},
                                                                                       {bytes.get(), nbytes, true},
                                                                                       to.tokens(),
                                                                                       {space.get(), 1 << 16},
                                                                                       to.result.get()});
      EXPECT_EQ(to.result.read_one().error, -EINVAL) << nstates << " states, caller " << static_cast<int>(who);
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
