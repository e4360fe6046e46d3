// SPDX-License-Identifier: Apache-2.0
// Words and strings in trees of files, by host threads and by kernels, against plain loops; and files that fail.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/words/finder.hpp"
#include "apps/words/lines.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::apps::words {
namespace {

using counts = std::map<std::string, std::map<std::string, std::uint64_t>>;  // of words, of files

class words_in_trees : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_words_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    scratch_ = root_ + ".scratch";
    std::filesystem::create_directory(scratch_);
  }
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(scratch_));
    std::filesystem::permissions(root_, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(root_);
    std::filesystem::remove_all(scratch_);
  }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  found find(
      bool by_kernels, const file_tree& tree, const wanted& what, std::uint32_t piece_nbytes = 128 << 10,
      const progress_function& progress = [](std::uint64_t, std::uint64_t) {}) const {
    find_options options;
    options.piece_nbytes = piece_nbytes;
    options.scratch = scratch_;
    options.nthreads = 2;
    if (!by_kernels) return make_finder_cpu(tree, options)->find(what, progress);
#if GPUFS_ON_CUDA
    return make_finder_cuda(tree, options)->find(what, progress);
#else
    return make_finder_simt(tree, options)->find(what, progress);
#endif
  }
  static counts counts_of(const file_tree& tree, const dictionary& words, const found& all) {
    const word_rows rows = rows_of(all, words.nwords(), 2);
    counts of;
    for (std::uint32_t word = 0; word < words.nwords(); ++word) {
      for (std::uint64_t i = rows.begins[word]; i < rows.begins[word + 1]; ++i) {
        if (i != rows.begins[word]) {
          EXPECT_LT(rows.files[i - 1], rows.files[i]);
        }
        of[std::string(words.word(word))][tree.shown(rows.files[i])] = rows.counts[i];
      }
    }
    return of;
  }
  counts counted(bool by_kernels, const dictionary& words, std::uint32_t piece_nbytes = 128 << 10) const {
    const file_tree tree({root_}, 2);
    const found all = find(by_kernels, tree, {&words, nullptr}, piece_nbytes);
    for (const int error : all.errors) EXPECT_EQ(error, 0);
    return counts_of(tree, words, all);
  }
  // Of both engines, which agree.
  counts counted_by_both(const dictionary& words, std::uint32_t piece_nbytes = 128 << 10) const {
    const counts by_threads = counted(false, words, piece_nbytes), by_kernels = counted(true, words, piece_nbytes);
    EXPECT_EQ(by_threads, by_kernels);
    return by_threads;
  }
  // What is counted of one text.
  std::map<std::string, std::uint64_t> counted_in(const std::string& text, const std::string& words, bool folds) const {
    write("text", text);
    std::map<std::string, std::uint64_t> all;
    for (const auto& [word, files] : counted_by_both(dictionary(words, folds, "words"))) all[word] = files.at(root_ + "/text");
    return all;
  }

  std::string root_, scratch_;
};
using word_counts = std::map<std::string, std::uint64_t>;

// A text of words with a..c, and what is between them; and how often it has each word.
struct drawn_text {
  std::string text;
  std::map<std::string, std::uint64_t> words;
};
drawn_text draw_text(std::mt19937_64& draw, std::size_t nbytes) {
  static const std::vector<std::string> between{" ",    "\n",   "\r\n",        ".", "-", "\t(", std::string(1, '\0'),
                                                "\xff", "\xc3", "\xe2\x80\x9d"};
  drawn_text of;
  while (of.text.size() < nbytes) {
    std::string word;
    const std::size_t kind = draw() % 50;
    const std::size_t n = kind == 0 ? 300 + draw() % 5000 : kind < 5 ? 8 + draw() % 20 : 1 + draw() % 3;
    for (std::size_t i = 0; i < n; ++i) word += n > 3 ? "a" : draw() % 8 == 0 ? "\xc3\xa4" : std::string(1, "abc"[draw() % 3]);
    ++of.words[word];
    of.text += word;
    do of.text += between[draw() % between.size()];
    while (draw() % 4 == 0);
  }
  // The text may begin and end with a word.
  if (draw() % 2 == 0) {
    of.text += "ab";
    ++of.words["ab"];
  }
  return of;
}

TEST_F(words_in_trees, are_counted_as_a_plain_loop_has_them) {
  std::mt19937_64 draw(1);
  std::map<std::string, std::map<std::string, std::uint64_t>> wanted;
  std::string lines;
  for (const std::size_t nbytes : {0u, 1u, 30u, 1000u, 1024u, 5000u, 5000u, 20'000u, 70'000u}) {
    const drawn_text some = draw_text(draw, nbytes);
    const std::string name = std::to_string(wanted.size()) + "/" + std::to_string(nbytes) + "-" + std::to_string(draw() % 1000);
    write(name, some.text);
    for (const auto& [word, n] : some.words) {
      if (word.size() > most_word_nbytes || draw() % 5 == 0) continue;
      wanted[word][root_ + "/" + name] = n;
    }
    wanted["z" + std::to_string(nbytes)];  // occurs nowhere
  }
  // All that the dictionary has is wanted of all files.
  for (const auto& [word, files] : wanted) lines += word + "\n" + (draw() % 9 == 0 ? word + "\r\n" : "");
  const dictionary words(lines, false, "words");
  counts all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::size_t at = 0; at < text.size();) {
      const auto is_letter = [&](std::size_t i, std::size_t& n) {
        n = text.compare(i, 2, "\xc3\xa4") == 0 ? 2 : 1;
        return n == 2 || (text[i] >= 'a' && text[i] <= 'c');
      };
      std::size_t n = 0, end = at;
      while (end < text.size() && is_letter(end, n)) end += n;
      if (end != at && wanted.contains(text.substr(at, end - at))) ++all[text.substr(at, end - at)][entry.path().string()];
      at = end + 1;
    }
  }
  for (const std::uint32_t piece_nbytes : {128u << 10, 4096u, 1000u}) {
    SCOPED_TRACE(piece_nbytes);
    EXPECT_TRUE(counted_by_both(words, piece_nbytes) == all);
  }
}

TEST_F(words_in_trees, of_more_kinds_than_a_table_holds_are_all_counted) {
  std::string text, lines;
  for (unsigned i = 0; i < 3000; ++i) {
    lines += "w" + std::to_string(i) + "\n";
    for (unsigned k = 0; k <= i % 3; ++k) text += "w" + std::to_string((i * 7 + k) % 3000) + " ";
  }
  const word_counts found = counted_in(text, lines, false);
  EXPECT_EQ(found.size(), 3000u);
  std::uint64_t all = 0;
  for (const auto& [word, n] : found) all += n;
  EXPECT_EQ(all, 6000u);
}

TEST_F(words_in_trees, are_runs_of_letters_marks_numbers_and_underscores) {
  EXPECT_EQ(
      counted_in("don't na\xc3\xafve _x1 x1 \xe2\x80\x9cx1\xe2\x80\x9d x\xc2\xb2 e\xcc\x81 e \xd0\xb4\xd0\xb0.",
                 "x1\n_x1\nna\xc3\xafve\nna\nve\ndon\nt\ne\nx\xc2\xb2\nx\n\xd0\xb4\xd0\xb0\n", false),
      (word_counts{
          {"x1", 2}, {"_x1", 1}, {"na\xc3\xafve", 1}, {"don", 1}, {"t", 1}, {"e", 1}, {"x\xc2\xb2", 1}, {"\xd0\xb4\xd0\xb0", 1}}));
}

TEST_F(words_in_trees, that_bytes_of_no_text_cut_are_words) {
  // A continuation without a beginning, a character that is cut, one that is written too long, a surrogate, one beyond all.
  EXPECT_EQ(counted_in("a\x80"
                       "a a\xe2\x82"
                       "a \xc1\xa1"
                       "a \xed\xa0\x80"
                       "a \xf4\x90\x80\x80"
                       "a \xff"
                       "a",
                       "a\n", false),
            (word_counts{{"a", 8}}));
}

TEST_F(words_in_trees, of_eight_bytes_and_more_differ_by_all_of_them) {
  EXPECT_EQ(counted_in("abcdefgh abcdefg abcdefghi abcdefghabcdefgh abcdefghabcdefgi xbcdefghabcdefgh",
                       "abcdefgh\nabcdefghi\nabcdefghabcdefgh\n", false),
            (word_counts{{"abcdefgh", 1}, {"abcdefghi", 1}, {"abcdefghabcdefgh", 1}}));
}

TEST_F(words_in_trees, are_equal_in_either_case_where_that_is_asked_for) {
  const std::string words =
      "Stra\xc3\x9f"
      "e\n\xc3\x84rger\nkelvin\nLONGERTHANEIGHT\n\xc3\xa4rger\n";
  const std::string text =
      "STRA\xc3\x9f"
      "E stra\xc3\x9f"
      "e STRA\xe1\xba\x9e"
      "E \xc3\xa4RGER \xe2\x84\xaa"
      "elvin longerThanEight LongerThanEighT_";
  EXPECT_EQ(counted_in(text, words, true), (word_counts{{"Stra\xc3\x9f"
                                                         "e",
                                                         3},
                                                        {"\xc3\x84rger", 1},
                                                        {"kelvin", 1},
                                                        {"LONGERTHANEIGHT", 1}}));
  EXPECT_EQ(counted_in(text, words, false), (word_counts{}));
}

TEST_F(words_in_trees, that_are_long_are_found_across_borders_of_pieces) {
  const std::string longest(most_word_nbytes, 'x'), shorter = longest.substr(1);
  for (const std::size_t at : {0u, 1u, 700u, 769u, 1000u, 1023u, 1024u}) {
    const std::string text = std::string(at, ' ') + longest + " " + longest + "y " + longest + "x " + shorter;
    write("text", text);
    const counts found = counted_by_both(dictionary(longest + "\n" + shorter, false, "words"), 512);
    ASSERT_EQ(found.size(), 2u) << at;
    EXPECT_EQ(found.at(longest).at(root_ + "/text"), 1u) << at;
    EXPECT_EQ(found.at(shorter).at(root_ + "/text"), 1u) << at;
  }
}

TEST_F(words_in_trees, in_files_that_cannot_be_read_count_nothing_and_the_error_is_told) {
  write("a", "word word");
  write("b", "word");
  write("c", "word");
  const dictionary words("word\n", false, "words");
  for (const bool by_kernels : {false, true}) {
    const file_tree tree({root_}, 2);
    std::filesystem::remove(root_ + "/b");
    const found all = find(by_kernels, tree, {&words, nullptr});
    EXPECT_EQ(all.errors, (std::vector<int>{0, ENOENT, 0}));
    EXPECT_EQ(counts_of(tree, words, all), (counts{{"word", {{root_ + "/a", 2}, {root_ + "/c", 1}}}})) << by_kernels;
    write("b", "word");
  }
}

TEST_F(words_in_trees, in_files_that_were_cut_count_nothing_and_files_beside_keep_their_counts) {
  std::string cut, whole;
  for (int i = 0; i < 3000; ++i) {
    cut += "gone ";
    whole += "stays ";
  }
  write("a", cut);
  write("b", whole);
  const dictionary words("gone\nstays\n", false, "words");
  const file_tree tree({root_}, 2);
  std::filesystem::resize_file(root_ + "/a", 5000);  // of pieces of 4096 bytes the second ends too early
  for (const bool by_kernels : {false, true}) {
    const found all = find(by_kernels, tree, {&words, nullptr}, 4096);
    ASSERT_EQ(all.errors.size(), 2u);
    EXPECT_EQ(all.errors[0], ESTALE) << by_kernels;
    EXPECT_EQ(all.errors[1], 0);
    const counts of = counts_of(tree, words, all);
    EXPECT_FALSE(of.contains("gone")) << by_kernels;
    EXPECT_EQ(of.at("stays").at(root_ + "/b"), 3000u) << by_kernels;
  }
}

TEST(found_segments, of_files_that_failed_are_gone_and_the_others_are_in_order) {
  const record records[]{{2, 1}, {0, 5}, {2, 0xffffffff}, {1, 1}, {2, 3}};
  found all;
  all.errors = {0, EIO, 0};
  all.segments = {{0, 2, 1, records}, {100, 0, 2, records + 1}, {0, 1, 1, records + 3}, {0, 0, 1, records + 4}};
  put_in_order(all);
  ASSERT_EQ(all.segments.size(), 3u);
  EXPECT_EQ(all.segments[0].begin, 0u);
  EXPECT_EQ(all.segments[1].begin, 100u);
  EXPECT_EQ(all.segments[2].file, 2u);
  const word_rows rows = rows_of(all, 3, 2);
  EXPECT_EQ(rows.begins, (std::vector<std::uint64_t>{0, 1, 1, 3}));
  EXPECT_EQ(std::vector(rows.files.get(), rows.files.get() + 3), (std::vector<std::uint32_t>{0, 0, 2}));
  EXPECT_EQ(std::vector(rows.counts.get(), rows.counts.get() + 3), (std::vector<std::uint64_t>{5, 0x100000002, 1}));
}

// So many that the rows lie in large pages.
TEST(found_segments, give_each_word_its_rows_also_of_many) {
  constexpr std::uint32_t nfiles = 3000, nwords = 257;
  std::vector<std::vector<record>> records(nfiles);
  found all;
  all.errors.resize(nfiles);
  for (std::uint32_t file = 0; file < nfiles; ++file) {
    for (std::uint32_t word = file % 3; word < nwords; word += 1 + file % 2) records[file].push_back({word, file + word + 1});
    all.segments.push_back({0, file, static_cast<std::uint32_t>(records[file].size()), records[file].data()});
  }
  const word_rows rows = rows_of(all, nwords, 3);
  ASSERT_GT(rows.nrows() * sizeof(std::uint64_t), std::uint64_t{4} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.counts.get()) % (2 << 20), 0u);
  std::uint64_t row = 0;
  for (std::uint32_t word = 0; word < nwords; ++word) {
    ASSERT_EQ(rows.begins[word], row);
    for (std::uint32_t file = 0; file < nfiles; ++file) {
      if (word < file % 3 || (word - file % 3) % (1 + file % 2) != 0) continue;
      ASSERT_EQ(rows.files[row], file);
      ASSERT_EQ(rows.counts[row++], file + word + 1);
    }
  }
  EXPECT_EQ(rows.nrows(), row);
}

TEST(large_array, refuses_more_than_there_can_be) {
  EXPECT_THROW(make_large_array<std::uint64_t>(~std::size_t{0} / 8), std::bad_alloc);
  EXPECT_THROW(make_large_array<std::uint64_t>(~std::size_t{0} / 4), std::bad_alloc);
  EXPECT_NE(make_large_array<std::uint64_t>(0).get(), nullptr);
}

TEST_F(words_in_trees, end_where_the_caller_says_so) {
  for (unsigned i = 0; i < 40; ++i) write(std::to_string(i), std::string(100'000, 'x'));
  const dictionary words("word\n", false, "words");
  const file_tree tree({root_}, 2);
  for (const bool by_kernels : {false, true}) {
    unsigned ncalls = 0;
    EXPECT_THROW((void)find(by_kernels, tree, {&words, nullptr}, 128 << 10,
                            [&](std::uint64_t, std::uint64_t) {
                              if (++ncalls == 2) throw std::domain_error("enough");
                            }),
                 std::domain_error);
    EXPECT_EQ(ncalls, 2u) << by_kernels;
  }
}

TEST_F(words_in_trees, have_files_in_the_order_of_paths_without_links) {
  write("b/x", "");
  write("b.c", "");
  write("a", "");
  std::filesystem::create_symlink("a", root_ + "/link");
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  const file_tree tree({root_, root_ + "/link", root_ + "/fifo", root_ + "/none"}, 2);
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < tree.files().size(); ++i) shown.push_back(tree.shown(i).substr(root_.size()));
  EXPECT_EQ(shown, (std::vector<std::string>{"/a", "/b.c", "/b/x", "/link"}));
  ASSERT_EQ(tree.failures().size(), 2u);
  EXPECT_EQ(tree.failures()[0].error, EINVAL);
  EXPECT_EQ(tree.failures()[1].error, ENOENT);
  EXPECT_EQ(tree.failures()[1].path, root_ + "/none");
}

TEST_F(words_in_trees, strings_are_found_with_their_lines) {
  std::mt19937_64 draw(2);
  const std::string wanted = "abaabaabab";
  std::map<std::string, std::vector<std::pair<std::uint64_t, std::string>>> lines;
  for (unsigned i = 0; i < 6; ++i) {
    std::string text;
    std::uint64_t number = 0;
    const std::string name = root_ + "/" + std::to_string(i);
    while (text.size() < 3000 * i) {
      std::string line;
      for (std::uint64_t n = draw() % 200; n != 0; --n)
        line += draw() % 9 == 0 ? wanted.substr(draw() % 3) : std::string(1, "ab"[draw() % 2]);
      ++number;
      if (line.find(wanted) != std::string::npos) lines[name].emplace_back(number, line);
      text += line + "\n";
    }
    if (i % 2 == 0 && !text.empty()) text.pop_back();
    write(std::to_string(i), text);
  }
  write("binary", wanted + std::string(1, '\0'));
  const wanted_string text(wanted);
  for (const bool by_kernels : {false, true}) {
    for (const std::uint32_t piece_nbytes : {128u << 10, 512u}) {
      const file_tree tree({root_}, 2);
      const found all = find(by_kernels, tree, {nullptr, &text}, piece_nbytes);
      line_reader reader(tree, all, text, 2);
      decltype(lines) found_lines;
      unsigned nbinary = 0;
      for (std::vector<file_lines> some; !(some = reader.next()).empty();) {
        for (const file_lines& file : some) {
          EXPECT_EQ(file.error, 0);
          if (file.is_binary) {
            ++nbinary;
            EXPECT_TRUE(file.lines.empty());
            continue;
          }
          for (const found_line& line : file.lines) found_lines[tree.shown(file.file)].emplace_back(line.number, line.text);
        }
      }
      EXPECT_EQ(found_lines, lines) << by_kernels << " " << piece_nbytes;
      EXPECT_EQ(nbinary, 1u);
    }
  }
}

TEST_F(words_in_trees, strings_in_a_file_that_changed_since_are_an_error) {
  write("a", "xxword");
  const wanted_string text("word");
  const file_tree tree({root_ + "/a"}, 2);
  const found all = find(false, tree, {nullptr, &text});
  write("a", "xword");
  line_reader reader(tree, all, text, 1);
  const std::vector<file_lines> lines = reader.next();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].error, ESTALE);
}

std::string said_of(const std::string& lines) {
  try {
    (void)dictionary(lines, false, "D");
  } catch (const error& why) {
    return why.what();
  }
  return "nothing";
}

TEST(dictionaries, without_a_word_are_refused) {
  EXPECT_EQ(said_of("\n\r\n"), "dictionary 'D': has no words; it is a text with one word a line");
  EXPECT_EQ(said_of("a b\n"), "dictionary 'D': no line is a word; it is a text with one word a line");
}

TEST(dictionaries, have_each_word_once_and_count_lines_that_are_none) {
  const dictionary words("b\na-b\n\nb\r\na\n" + std::string(256, 'x') + "\n" + std::string(255, 'x'), false, "D");
  ASSERT_EQ(words.nwords(), 3u);
  EXPECT_EQ(words.word(0), "b");
  EXPECT_EQ(words.word(1), "a");
  EXPECT_EQ(words.nrepeated(), 1u);
  EXPECT_EQ(words.no_words().n, 2u);
  EXPECT_EQ(words.no_words().line, 2u);
  EXPECT_EQ(words.no_words().text, "a-b");
}

TEST(wanted_strings, are_refused_where_no_line_can_have_them) {
  for (const std::string& text : {std::string(), std::string("a\nb"), std::string(1, '\0'), std::string(1001, 'a')})
    EXPECT_THROW(wanted_string{text}, error);
  EXPECT_EQ(wanted_string(std::string(1000, 'a')).view().nbytes, 1000u);
}

}  // namespace
}  // namespace gpufs::apps::words
