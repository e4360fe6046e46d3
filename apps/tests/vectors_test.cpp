// SPDX-License-Identifier: Apache-2.0
// Indexes of vectors of all shapes, by host threads and by kernels over a cache of few pages, against a plain loop; and indexes
// that are damaged.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "apps/crc32.hpp"
#include "apps/vectors/builder.hpp"
#include "apps/vectors/engine.hpp"
#include "apps/vectors/plan.hpp"
#include "apps/vectors/synth.hpp"
#include "gpufs/simt/config.hpp"
#include "said.hpp"
#include "simt/harness.hpp"

namespace gpufs::apps::vectors {
namespace {

const auto nobody = [](std::uint64_t, std::uint64_t) {};
constexpr bool by_threads = false, by_kernels = true;

std::unique_ptr<engine> make(bool kernels, const index_file& index) {
  const engine_options options{.nthreads = 2, .cache_nbytes = 48 << 10, .page_nbytes = 1024};
  if (!kernels) return make_engine_cpu(index, options);
#if GPUFS_ON_CUDA
  return make_engine_cuda(index, options);
#else
  return make_engine_simt(index, options);
#endif
}
std::unique_ptr<quantizer> make_quantizer(bool kernels, const std::vector<float>& centroids, std::uint32_t dim) {
  const auto n = static_cast<std::uint32_t>(centroids.size() / dim);
  const std::vector<std::byte> groups = to_groups(centroids.data(), n, dim);
  if (!kernels) return make_quantizer_cpu(groups, n, dim, {.nthreads = 2});
#if GPUFS_ON_CUDA
  return make_quantizer_cuda(groups, n, dim, {});
#else
  return make_quantizer_simt(groups, n, dim, {});
#endif
}

std::vector<float> drawn(std::uint32_t dim, std::uint64_t first, std::uint64_t n) {
  std::vector<float> rows(n * dim);
  draw({dim, 20, 0.3f, 7}, first, n, 2, rows.data());
  return rows;
}
std::uint64_t key_between(const float* a, const float* b, std::uint32_t dim, std::uint32_t id) {
  float sum = 0;
  for (std::uint32_t d = 0; d < dim; ++d) sum = std::fma(a[d] - b[d], a[d] - b[d], sum);
  return key_of(sum, id);
}
// The k least keys of rows where wanted(id).
template <class Wanted>
std::vector<std::uint64_t> nearest_of(const std::vector<float>& rows, const float* to, std::uint32_t dim, std::size_t k,
                                      const Wanted& wanted) {
  std::vector<std::uint64_t> keys;
  for (std::uint32_t i = 0; i < rows.size() / dim; ++i) {
    if (wanted(i)) keys.push_back(key_between(to, rows.data() + std::size_t{i} * dim, dim, i));
  }
  std::sort(keys.begin(), keys.end());
  keys.resize(k, no_key);
  return keys;
}

class vectors : public ::testing::Test {
 protected:
  vectors() {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_vectors_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) folder_ = name;
  }
  ~vectors() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/index"; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) all.push_back(entry.path().filename().string());
    return all;
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(std::uint64_t at, const void* value, std::size_t nbytes) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(static_cast<const char*>(value), static_cast<std::streamsize>(nbytes));
  }

  // Of vectors that come in pieces of `piece`.
  build_report build(bool kernels, const std::vector<float>& base, const std::vector<float>& centroids, std::uint32_t dim,
                     std::size_t piece = 100) const {
    const auto by = make_quantizer(kernels, centroids, dim);
    index_builder builder(path(), centroids.data(), static_cast<std::uint32_t>(centroids.size() / dim), dim, *by,
                          {.nthreads = 2, .made_by = "a test", .base = "base"});
    each_piece(base, dim, piece, [&](const query_rows& rows) { builder.count(rows, nobody); });
    builder.begin_lists();
    each_piece(base, dim, piece, [&](const query_rows& rows) { builder.add(rows); });
    return builder.finish();
  }
  template <class Use>
  static void each_piece(const std::vector<float>& base, std::uint32_t dim, std::size_t piece, const Use& use) {
    for (std::size_t at = 0, n = base.size() / dim; at < n; at += piece) use({base.data() + at * dim, std::min(piece, n - at)});
  }

  // Searches by both engines; the keys that all must find.
  void expect_found(const std::vector<float>& base, const std::vector<float>& centroids, const std::vector<float>& queries,
                    std::uint32_t dim, const search_options& how) const {
    const index_file index(path());
    std::vector<std::uint32_t> list_of;
    for (std::size_t i = 0; i < base.size() / dim; ++i) {
      list_of.push_back(id_of(nearest_of(centroids, base.data() + i * dim, dim, 1, [](auto) { return true; })[0]));
    }
    const std::size_t n = queries.size() / dim;
    std::vector<std::uint64_t> wanted;
    std::uint64_t ncompared = 0;
    for (std::size_t q = 0; q < n; ++q) {
      const auto lists = nearest_of(centroids, queries.data() + q * dim, dim, how.nprobe, [](auto) { return true; });
      const auto is_probed = [&](std::uint32_t i) {
        return std::any_of(lists.begin(), lists.end(),
                           [&](std::uint64_t list) { return list != no_key && id_of(list) == list_of[i]; });
      };
      const auto keys = nearest_of(base, queries.data() + q * dim, dim, how.k, is_probed);
      wanted.insert(wanted.end(), keys.begin(), keys.end());
      for (std::uint32_t i = 0; i < list_of.size(); ++i) ncompared += is_probed(i) ? 1 : 0;
    }
    for (const bool kernels : {by_threads, by_kernels}) {
      std::vector<std::uint64_t> found(n * how.k, 1);
      const search_facts facts = make(kernels, index)->search({queries.data(), n}, how, found.data(), nobody);
      EXPECT_EQ(found, wanted) << "by kernels: " << kernels << ", dim " << dim << ", k " << how.k << ", nprobe " << how.nprobe;
      EXPECT_EQ(facts.ncompared, ncompared);
      EXPECT_EQ(facts.bytes_read != 0, kernels && ncompared != 0);
    }
  }

  std::string folder_;
};

TEST_F(vectors, of_all_shapes_have_the_neighbours_of_a_plain_loop) {
  struct shape {
    std::uint32_t dim;
    std::size_t nvectors, nlists, nqueries;
  };
  for (const shape& of : {shape{1, 50, 3, 5}, shape{5, 400, 7, 19}, shape{16, 300, 4, 9}, shape{17, 300, 40, 10},
                          shape{36, 500, 5, 6}, shape{3, 0, 2, 4}, shape{4, 1, 1, 1}, shape{2, 33, 1, 3}}) {
    SCOPED_TRACE(testing::Message() << "dim " << of.dim << ", " << of.nvectors << " vectors");
    const auto base = drawn(of.dim, 0, of.nvectors), centroids = drawn(of.dim, 5'000, of.nlists),
               queries = drawn(of.dim, 10'000, of.nqueries);
    build(by_threads, base, centroids, of.dim);
    for (const std::uint32_t k : {1u, 10u, 70u}) {
      for (const std::uint32_t nprobe : {1u, 3u, 1000u}) expect_found(base, centroids, queries, of.dim, {k, nprobe, 7});
    }
  }
}

TEST_F(vectors, that_are_equal_come_in_the_order_of_their_ids) {
  const std::uint32_t dim = 4;
  std::vector<float> base;
  for (int i = 0; i < 200; ++i) base.insert(base.end(), {1.f, 2.f, i % 3 == 0 ? 3.f : 4.f, 0.f});
  const std::vector<float> centroids{1, 2, 3, 0, 1, 2, 4, 0, 9, 9, 9, 9}, queries{1, 2, 3.5, 0, 1, 2, 3, 0};
  build(by_threads, base, centroids, dim);
  for (const std::uint32_t k : {5u, 33u, 150u}) expect_found(base, centroids, queries, dim, {k, 2, 100});
}

TEST_F(vectors, that_are_equally_far_come_in_the_order_of_their_ids_whichever_list_has_them) {
  const std::uint32_t dim = 16;  // and as many lists: more than blocks, so that some come when others have found all that they want
  std::vector<float> base, centroids;
  for (std::uint32_t list = 0; list < dim; ++list) {
    for (std::uint32_t d = 0; d < dim; ++d) centroids.push_back(d == list ? 1.f : 0.f);
  }
  for (std::uint32_t i = 0; i < 10 * dim; ++i) {  // the last list has the first ids
    const auto of_list = centroids.begin() + std::ptrdiff_t{dim - 1 - i / 10} * dim;
    base.insert(base.end(), of_list, of_list + dim);
  }
  build(by_threads, base, centroids, dim);
  for (const std::uint32_t k : {3u, 25u}) expect_found(base, centroids, std::vector<float>(dim), dim, {k, dim, 1});
}

TEST_F(vectors, that_many_queries_look_for_are_found_by_each) {
  const std::uint32_t dim = 9;
  const auto base = drawn(dim, 0, 900), centroids = drawn(dim, 5'000, 6), queries = drawn(dim, 10'000, 150);
  build(by_kernels, base, centroids, dim);
  expect_found(base, centroids, queries, dim, {4, 2, 10'000});
  expect_found(base, centroids, queries, dim, {4, 2, 1});
}

TEST_F(vectors, that_are_far_away_are_found) {
  const std::vector<float> base{1e30f, 0, -1e30f, 0, 3e38f, 1}, centroids{0, 0}, queries{-3e38f, 0, 1e30f, 1};
  build(by_threads, base, centroids, 2);
  expect_found(base, centroids, queries, 2, {3, 1, 10});  // distances are infinite, and equal
}

TEST_F(vectors, in_any_pieces_and_by_any_engine_make_the_same_file) {
  const std::uint32_t dim = 6;
  const auto base = drawn(dim, 0, 700), centroids = drawn(dim, 5'000, 9);
  const build_report report = build(by_threads, base, centroids, dim, 700);
  const std::string whole = bytes();
  EXPECT_EQ(report.nvectors, 700u);
  EXPECT_EQ(report.file_nbytes, whole.size());
  build(by_kernels, base, centroids, dim, 33);
  EXPECT_TRUE(bytes() == whole);
  const index_file index(path());
  index.check_lists(2, nobody);
  EXPECT_EQ(std::string(index.head().made_by), "a test");
  EXPECT_EQ(index.lists()[0].begin % 4096, 0u);
  EXPECT_EQ(names(), std::vector<std::string>{"index"});
}

TEST_F(vectors, of_a_seed_are_the_same_wherever_they_begin) {
  const auto all = drawn(5, 0, 3'000), some = drawn(5, 1'000, 20);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 5'000));
  double sum = 0, squares = 0;
  for (const float x : all) sum += x, squares += double{x} * x;
  EXPECT_NEAR(sum / static_cast<double>(all.size()), 0, 0.3);
  EXPECT_NEAR(squares / static_cast<double>(all.size()), 1.09, 0.4);
}

TEST_F(vectors, with_what_is_no_number_are_refused) {
  auto base = drawn(3, 0, 250);
  const auto centroids = drawn(3, 5'000, 2);
  base[3 * 201 + 1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(said([&] { build(by_threads, base, centroids, 3); }),
            "base: element 1 of vector 201 is no number (NaN or infinite): leave the vector out, or mend it");
  base[3 * 130 + 2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(said([&] { build(by_threads, base, centroids, 3); }).find("element 2 of vector 130 "), std::string::npos);
  EXPECT_TRUE(names().empty());
}

TEST_F(vectors, have_as_many_elements_as_an_index_can_be_opened_with) {
  const auto by = make_quantizer(by_threads, {0, 0}, 2);
  for (const std::uint32_t dim : {0u, 70'000u}) {
    const std::vector<float> centroid(dim);
    EXPECT_EQ(said([&] { index_builder(path(), centroid.data(), 1, dim, *by, {.base = "base"}); }),
              "base: has vectors of " + std::to_string(dim) + " elements, and an index takes 1 to 65536");
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(vectors, that_change_between_the_passes_are_refused) {
  const auto base = drawn(3, 0, 250), centroids = drawn(3, 5'000, 2);
  for (const std::size_t n : {249u, 251u}) {
    const auto others = drawn(3, 0, n);
    const auto by = make_quantizer(by_threads, centroids, 3);
    EXPECT_EQ(said([&] {
                index_builder builder(path(), centroids.data(), 2, 3, *by, {.nthreads = 2, .base = "base"});
                builder.count({base.data(), 250}, nobody);
                builder.begin_lists();
                builder.add({others.data(), n});
                builder.finish();
              }),
              "base: was changed while it was read: try again");
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(vectors, are_read_as_far_as_they_must) {
  const std::uint32_t dim = 8;
  const auto base = drawn(dim, 0, 6'000), centroids = drawn(dim, 0, 30);
  build(by_threads, base, centroids, dim);
  const index_file index(path());
  const auto kernels = make(by_kernels, index);
  std::vector<std::uint64_t> found(5);
  const search_facts one = kernels->search({base.data(), 1}, {5, 1, 10}, found.data(), nobody);
  EXPECT_EQ(found[0], key_of(0, 0));
  EXPECT_LE(one.bytes_read, (one.ncompared + 32) * (dim + 1) * 4 + 2 * 1024);
  const search_facts all = kernels->search({base.data(), 1}, {5, 30, 10}, found.data(), nobody);
  EXPECT_EQ(all.ncompared, 6'000u);
  EXPECT_GT(all.bytes_read, 6'000u * dim * 3);  // the cache has less than a quarter of them
}

TEST_F(vectors, are_looked_for_until_somebody_stops_it) {
  const auto base = drawn(8, 0, 3'000), centroids = drawn(8, 5'000, 30);
  build(by_threads, base, centroids, 8);
  const index_file index(path());
  std::vector<std::uint64_t> found(300);
  for (const bool kernels : {by_threads, by_kernels}) {
    const auto by = make(kernels, index);
    EXPECT_EQ(said([&] {
                by->search({base.data(), 300}, {1, 30, 100}, found.data(),
                           [](std::uint64_t, std::uint64_t) { throw gpufs::error("stopped"); });
              }),
              "stopped");
    by->search({base.data(), 1}, {1, 30, 100}, found.data(), nobody);
    EXPECT_EQ(found[0], key_of(0, 0));
  }
}

TEST(vectors_plan, of_one_query_has_larger_pieces_where_results_take_too_much_memory) {
  const std::vector<place> lists{{0, 1'000}, {4'096'000, 0}, {8'192'000, 90}};
  for (const std::uint64_t most : {1'000, 20, 3, 2}) {
    const plan what = make_plan(lists, {}, 0, 1, {4096, 8, 2, 500, most});
    ASSERT_EQ(what.slots.size(), 2u) << most;
    EXPECT_LE(what.slots[1], most);
    EXPECT_EQ(what.units.size(), what.slots[1]);
    std::uint64_t ngroups = 0;
    for (const unit& of : what.units) ngroups += of.ngroups;
    EXPECT_EQ(ngroups, 1'090u);
  }
  EXPECT_TRUE(make_plan(lists, {}, 0, 1, {4096, 8, 2, 500, 1}).slots.empty());
  EXPECT_TRUE(make_plan(lists, {}, 0, 2, {4096, 8, 2, 500, 4}).slots.empty());  // they are halved first
}

// A file with some bytes changed or cut off, and what is said of it.
class damaged_index : public vectors {
 protected:
  void SetUp() override {
    base_ = drawn(8, 0, 2'000);
    build(by_threads, base_, drawn(8, 5'000, 5), 8);
  }
  void expect(const std::string& words) const {
    const std::string told = said([&] { const index_file index(path()); });
    EXPECT_TRUE(told.starts_with(path() + ": ") && told.find(words) != std::string::npos) << told;
  }
  void expect_by_check(const std::string& words) const {
    const index_file index(path());
    const std::string told = said([&] { index.check_lists(2, nobody); });
    EXPECT_TRUE(told.starts_with(path() + ": ") && told.find(words) != std::string::npos) << told;
  }
  std::vector<float> base_;
};

TEST_F(damaged_index, header_is_no_header) {
  const std::uint32_t one = 1;
  put(13, &one, 4);
  expect("the header is damaged");
  put(0, &one, 4);
  expect("is no index of vectors; `gpufs vectors build`");
}
TEST_F(damaged_index, header_is_of_another_version_or_has_other_numbers) {
  header head{};
  std::memcpy(&head, bytes().data(), sizeof head);
  const auto put_head = [&] {
    head.crc32 = crc32(0, &head, offsetof(header, crc32));
    put(0, &head, sizeof head);
  };
  head.nvectors += 1;
  put_head();
  expect("its lists have other sizes than the header says");
  head.dim = 0;
  put_head();
  expect("numbers that no index has");
  head.version = 2;
  put_head();
  expect("is an index of version 2, and this gpufs reads version 1");
}
TEST_F(damaged_index, file_was_cut) {
  const std::uint64_t nbytes = std::filesystem::file_size(path());
  std::filesystem::resize_file(path(), nbytes - 1);
  expect("it was cut; copy or build it again");
  std::filesystem::resize_file(path(), nbytes + 1);
  expect("and its header says " + std::to_string(nbytes));
  std::filesystem::resize_file(path(), 100);
  expect("it is too short");
  std::filesystem::resize_file(path(), 0);
  expect("it is too short");
  std::filesystem::remove(path());
  expect("No such file or directory");
}
TEST_F(damaged_index, centroids_have_another_sum) {
  const float x = 1;
  put(centroids_at(5) + 4, &x, 4);
  expect("the table of its lists or their centroids are damaged");
}
TEST_F(damaged_index, centroids_are_those_of_other_lists_and_the_sums_are_right) {
  const std::uint64_t at = centroids_at(5), ids_at = at + 8 * row_nbytes, nbytes = group_nbytes(8);
  const auto expect_with = [&](std::uint64_t where, const auto& value) {
    SetUp();
    put(where, &value, sizeof value);
    const std::string all = bytes();
    header head{};
    std::memcpy(&head, all.data(), sizeof head);
    const std::uint32_t table = crc32(0, all.data() + sizeof head, 5 * sizeof(list_entry));
    head.front_crc32 = crc32(table, all.data() + at, nbytes);
    head.crc32 = crc32(0, &head, offsetof(header, crc32));
    put(0, &head, sizeof head);
    expect("the centroids of lists from 0 on are damaged");
  };
  expect_with(ids_at, std::uint32_t{1'000'000'000});
  expect_with(ids_at + 4, std::uint32_t{0});      // which is there already
  expect_with(ids_at + 5 * 4, std::uint32_t{5});  // of no list
  expect_with(at + 4, std::numeric_limits<float>::quiet_NaN());
  expect_with(at + 4, -std::numeric_limits<float>::infinity());
}
TEST_F(damaged_index, header_tells_of_centroids_that_are_a_hole) {
  header head{};
  std::memcpy(&head, bytes().data(), sizeof head);
  head.nlists = 1 << 20;
  head.dim = 1 << 10;  // 4 GiB of them
  head.file_nbytes = lists_at(head.nlists, head.dim);
  head.crc32 = crc32(0, &head, offsetof(header, crc32));
  put(0, &head, sizeof head);
  std::filesystem::resize_file(path(), head.file_nbytes);
  expect("the centroids of lists from 0 on are damaged");
}
TEST_F(damaged_index, lists_are_checked_when_that_is_asked_for) {
  const std::uint64_t begin = index_file(path()).lists()[3].begin;
  const float x = 1.5f, nan = std::numeric_limits<float>::quiet_NaN();
  put(begin + 4, &x, 4);
  expect_by_check("list 3 is damaged (its checksum is another): build or copy the index again");
  put(begin + 8, &nan, 4);
  expect_by_check("list 3 has a vector with an element that is no number");
  SetUp();
  const std::uint32_t far = 2'000;
  std::uint32_t second = 0;
  std::memcpy(&second, bytes().data() + begin + 8 * row_nbytes + 4, 4);
  put(begin + 8 * row_nbytes, &second, 4);
  expect_by_check("list 3 has vector " + std::to_string(second) + " again");
  put(begin + 8 * row_nbytes, &far, 4);
  expect_by_check("list 3 has vector 2000, which is not there");
}
TEST_F(damaged_index, file_is_cut_while_it_is_read) {
  for (const bool kernels : {by_threads, by_kernels}) {
    SetUp();
    const index_file index(path());
    const auto by = make(kernels, index);
    std::filesystem::resize_file(path(), lists_at(5, 8) + 4096);
    std::vector<std::uint64_t> found(20);
    EXPECT_NE(said([&] {
                by->search({base_.data(), 20}, {1, 5, 100}, found.data(), nobody);
              }).find("was truncated, replaced or written"),
              std::string::npos)
        << kernels;
  }
}
TEST_F(damaged_index, file_is_another_one_when_the_engine_opens_it_or_when_it_was_searched) {
  const auto replace = [&] {
    std::filesystem::rename(path(), path() + ".old");
    std::filesystem::copy_file(path() + ".old", path());
  };
  const auto write = [&] {  // the same bytes, at another time
    const std::string all = bytes();
    put(lists_at(5, 8), all.data() + lists_at(5, 8), 4);
    std::filesystem::last_write_time(path(), std::filesystem::file_time_type::clock::now() + std::chrono::seconds(1));
  };
  const std::string words = path() + ": was truncated, replaced or written by others while it was read: try again";
  std::vector<std::uint64_t> found(20);
  for (const bool is_replaced : {true, false}) {
    for (const bool kernels : {by_threads, by_kernels}) {
      const index_file index(path());
      const auto by = make(kernels, index);
      const auto search = [&] { by->search({base_.data(), 20}, {1, 5, 100}, found.data(), nobody); };
      search();
      is_replaced ? replace() : write();
      EXPECT_EQ(said(search), words) << kernels;
    }
    const index_file index(path());
    is_replaced ? replace() : write();
    EXPECT_EQ(said([&] { make(by_kernels, index); }), words);
    EXPECT_EQ(said([&] { index.check_lists(2, nobody); }), words);
  }
}

}  // namespace
}  // namespace gpufs::apps::vectors
