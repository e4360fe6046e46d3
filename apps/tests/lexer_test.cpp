// SPDX-License-Identifier: Apache-2.0
// The tokens of files, by host threads and by kernels, in pieces of any size; and files that are none, or change.
#include "apps/lex/lexer.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpufs/mount.hpp"
#include "gpufs/simt/config.hpp"
#include "par/lexes.hpp"
#include "said.hpp"

namespace gpufs::apps::lex {
namespace {

using par::lex_table;
using test::text_bytes;
using test::token;

class lexers : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_lex_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string path() const { return root_ + "/text"; }
  void write(const text_bytes& text) const {
    std::ofstream(path(), std::ios::binary).write(reinterpret_cast<const char*>(text.data()), std::ssize(text));
  }
  // By host threads, and by kernels.
  static std::unique_ptr<lexer> make(bool by_kernels, const std::string& path, const lex_table& table, std::uint64_t piece_nbytes) {
    const lexer_options options{.piece_nbytes = piece_nbytes};
    if (!by_kernels) return make_lexer_cpu(path, table, options);
#if GPUFS_ON_CUDA
    return make_lexer_cuda(path, table, options);
#else
    return make_lexer_simt(path, table, options);
#endif
  }
  // Lexes a piece, and appends its tokens.
  static void take_piece(lexer& from, std::vector<token>& to) {
    from.next();
    const found_tokens& found = from.found();
    EXPECT_EQ(found.offsets.size(), found.kinds.size());
    for (std::size_t i = 0; i < found.offsets.size(); ++i) to.push_back({found.offsets[i], found.kinds[i]});
  }
  static std::vector<token> all_of(lexer& from) {
    std::vector<token> all;
    do take_piece(from, all);
    while (from.ndone() != from.nbytes());
    return all;
  }

  std::string root_;
};

TEST_F(lexers, find_what_random_automata_say_in_pieces_of_any_size) {
  std::mt19937_64 draw(41);
  for (const std::uint64_t n : {0u, 1u, 2u, 100u, 5000u, 70000u}) {
    for (const unsigned nstates : {2u, 16u, 40u}) {
      const lex_table table = test::drawn_table(draw, nstates, draw() % 2 == 0);
      const text_bytes text = test::drawn_text(draw, n);
      write(text);
      const std::vector<token> wanted = test::tokens_of(table, text);
      for (const std::uint64_t piece_nbytes : {std::uint64_t{0}, n / 7 + 1, std::uint64_t{1}}) {
        if (piece_nbytes == 1 && n > 100) continue;
        for (const bool by_kernels : {false, true}) {
          SCOPED_TRACE(testing::Message() << n << " bytes, " << nstates << " states, pieces of " << piece_nbytes << ", "
                                          << by_kernels);
          EXPECT_EQ(all_of(*make(by_kernels, path(), table, piece_nbytes)), wanted);
        }
      }
    }
  }
}

TEST_F(lexers, go_on_behind_each_piece_that_another_one_has_lexed) {
  std::mt19937_64 draw(43);
  for (const unsigned nstates : {2u, 16u, 40u}) {
    const lex_table table = test::drawn_table(draw, nstates, draw() % 2 == 0);
    const text_bytes text = test::drawn_text(draw, 700);
    write(text);
    const std::vector<token> wanted = test::tokens_of(table, text);
    for (const bool by_kernels : {false, true}) {
      const std::unique_ptr<lexer> first = make(by_kernels, path(), table, 100);
      EXPECT_EQ(first->piece_nbytes(), 100u);
      std::vector<token> before;
      while (first->ndone() != first->nbytes()) {
        take_piece(*first, before);
        for (const std::uint64_t piece_nbytes : {100u, 230u}) {
          SCOPED_TRACE(testing::Message() << nstates << " states, from " << first->ndone() << " by pieces of " << piece_nbytes
                                          << ", kernels first: " << by_kernels);
          const std::unique_ptr<lexer> second = make(by_kernels != (piece_nbytes == 230), path(), table, piece_nbytes);
          second->go_on(first->so_far());
          std::vector<token> all = before;
          const std::vector<token> rest = all_of(*second);
          all.insert(all.end(), rest.begin(), rest.end());
          EXPECT_EQ(all, wanted);
        }
      }
    }
  }
}

TEST_F(lexers, go_on_with_a_token_that_began_pieces_ago) {
  const lex_table table = lex_table::named("json");
  const std::string text = "[1, \"" + std::string(1000, 'a') + "\", 2]";
  write(text_bytes(text.begin(), text.end()));
  for (const bool by_kernels : {false, true}) {
    const std::unique_ptr<lexer> first = make(by_kernels, path(), table, 100), second = make(by_kernels, path(), table, 100);
    for (int i = 0; i < 5; ++i) first->next();
    EXPECT_EQ(first->so_far().offset, 500u);
    EXPECT_EQ(first->so_far().begin, 4u);
    second->go_on(first->so_far());
    const std::vector<token> rest = all_of(*second);
    ASSERT_EQ(rest.size(), 4u) << by_kernels;
    EXPECT_EQ(rest[0].offset, 4u) << by_kernels;
    EXPECT_EQ(rest[1].offset, 1006u) << by_kernels;
  }
}

TEST_F(lexers, go_on_from_no_place_that_the_file_or_the_table_has_not) {
  const lex_table table = lex_table::named("json");
  write(text_bytes(10, '1'));
  for (const bool by_kernels : {false, true}) {
    const std::unique_ptr<lexer> some = make(by_kernels, path(), table, 5);
    for (const par::lex_place& place : {par::lex_place{11, 0, 0}, {5, 6, 0}, {5, 0, table.nstates()}}) {
      EXPECT_EQ(said([&] { some->go_on(place); }), "there is no place at byte " + std::to_string(place.offset) + ", in state " +
                                                       std::to_string(place.state) + ", of a token from byte " +
                                                       std::to_string(place.begin) + " on");
    }
    EXPECT_EQ(all_of(*some).size(), 1u);
  }
}

TEST_F(lexers, say_of_what_is_no_text_why_not) {
  const lex_table table = lex_table::named("csv");
  const std::string fifo = root_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const bool by_kernels : {false, true}) {
    EXPECT_EQ(said([&] { (void)make(by_kernels, path(), table, 0); }), path() + ": No such file or directory");
    EXPECT_EQ(said([&] { (void)make(by_kernels, root_, table, 0); }), root_ + ": Is a directory");
    EXPECT_EQ(said([&] { (void)make(by_kernels, fifo, table, 0); }), fifo + ": is no regular file: copy it to one first");
  }
}

TEST_F(lexers, say_that_a_file_was_cut_meanwhile) {
  const lex_table table = lex_table::named("csv");
  for (const bool by_kernels : {false, true}) {
    write(text_bytes(1 << 20, 'a'));
    const std::unique_ptr<lexer> some = make(by_kernels, path(), table, 100'000);
    some->next();
    std::filesystem::resize_file(path(), 1000);
    EXPECT_EQ(said([&] { (void)all_of(*some); }),
              path() + ": was truncated, replaced or written by others while it was lexed: try again")
        << by_kernels;
  }
}

}  // namespace
}  // namespace gpufs::apps::lex
