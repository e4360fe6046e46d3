// SPDX-License-Identifier: Apache-2.0
// Scans and sorts of files and of memory, by host threads and by kernels, in pieces of any size, against loops; and what cannot be
// scanned, sorted or written.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <tuple>

#include "apps/par/run_cuts.hpp"
#include "gpufs/mount.hpp"
#include "par_jobs.hpp"
#include "said.hpp"

namespace gpufs::apps::par {
namespace {

// --- Scans ------------------------------------------------------------------------------------------------------------------

TEST_F(par_files, scans_are_what_a_loop_says_of_each_type_by_each_operator) {
  std::mt19937_64 draw(27);
  by_each_engine_of_each_type([&](engine& by, bool by_kernels, number_type type, auto of) {
    using T = decltype(of);
    for (const scan_op op : all_ops) {
      if (std::is_floating_point_v<T> && op > scan_op::min) continue;
      const std::uint64_t n = draw() % 400;
      const scan_options options{op, type, draw() % 2 == 0, (draw() % 200 + 1) * sizeof(T)};
      const auto values = drawn_values<T>(draw, n, op);
      SCOPED_TRACE(testing::Message() << "type " << int(type) << ", operator " << int(op) << ", " << n << " elements, pieces of "
                                      << options.piece_nbytes << ", " << options.exclusive << by_kernels);
      EXPECT_EQ(done(bytes_of(values), draw() % 2 == 0, [&](auto... with) { return make_scan(by, with..., options); }),
                bytes_of(scanned(values, op, options.exclusive)));
    }
  });
}

TEST_F(par_files, scans_are_the_same_around_the_ends_of_pieces) {
  std::mt19937_64 draw(28);
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const std::uint64_t n : {0u, 1u, 2u, 12u, 13u, 14u, 26u, 27u, 130u}) {
      const auto values = drawn_values<std::uint32_t>(draw, n, scan_op::add);
      for (const bool exclusive : {false, true}) {
        for (const bool in_files : {false, true}) {
          // 55 bytes are 13 elements.
          const scan_options options{scan_op::add, number_type::u32, exclusive, 55};
          EXPECT_EQ(done(bytes_of(values), in_files, [&](auto... with) { return make_scan(*by, with..., options); }),
                    bytes_of(scanned(values, scan_op::add, exclusive)))
              << n << exclusive << in_files << by_kernels;
        }
      }
    }
  }
}

TEST_F(par_files, scans_of_more_than_a_slot_and_a_part_are_the_same) {
  std::mt19937_64 draw(29);
  const auto values = drawn_values<std::int64_t>(draw, 300'001, scan_op::add);  // 2.3 MiB: several parts, of some slots each
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const bool exclusive : {false, true}) {
      const scan_options options{scan_op::add, number_type::i64, exclusive, by_kernels ? std::uint64_t{700'000} : 0};
      EXPECT_EQ(done(bytes_of(values), true, [&](auto... with) { return make_scan(*by, with..., options); }),
                bytes_of(scanned(values, scan_op::add, exclusive)))
          << exclusive << by_kernels;
    }
  }
}

TEST_F(par_files, scans_of_real_numbers_have_the_same_bits_each_time) {
  std::mt19937_64 draw(30);
  std::vector<float> values(300'000);
  for (float& value : values) value = std::ldexp(static_cast<float>(draw() % 1000) - 400, static_cast<int>(draw() % 30));
  for (const bool by_kernels : {false, true}) {
    std::optional<bytes> first;
    for (int i = 0; i < 3; ++i) {
      const auto by = make_engine(by_kernels);
      const scan_options options{.type = number_type::f32, .piece_nbytes = 500'000};
      const bytes result = done(bytes_of(values), false, [&](auto... with) { return make_scan(*by, with..., options); });
      if (!first) first = result;
      EXPECT_TRUE(result == *first) << by_kernels;
    }
  }
}

// --- Sorts ------------------------------------------------------------------------------------------------------------------

TEST_F(par_files, sorts_are_stable_and_in_order_for_each_type_of_keys_and_records) {
  std::mt19937_64 draw(31);
  by_each_engine_of_each_type([&](engine& by, bool by_kernels, number_type type, auto of) {
    using Key = decltype(of);
    for (const record_shape& shape : {record_shape{sizeof(Key), 0}, {sizeof(Key) + 4, 4}, {16, 8}, {sizeof(Key) + 5, 3}}) {
      const std::uint64_t n = draw() % (by_kernels ? 150 : 400), piece = n / (draw() % 6 + 1) + 2;
      sort_options options{.type = type, .record_nbytes = shape.nbytes, .key_offset = shape.key_offset};
      options.descending = draw() % 2 == 0;
      options.most_piece_nbytes = piece * shape.nbytes;
      if (draw() % 2 == 0) options.scratch_folder = root_;
      const bytes all = drawn_records<Key>(draw, n, shape);
      SCOPED_TRACE(testing::Message() << "type " << int(type) << ", " << n << " records of " << shape.nbytes << ", pieces of "
                                      << piece << ", " << options.descending << by_kernels);
      EXPECT_EQ(done(all, draw() % 2 == 0, [&](auto... with) { return make_sort(by, with..., options); }),
                sorted<Key>(all, shape, options.descending));
    }
  });
  std::filesystem::remove(in());
  std::filesystem::remove(out());
  EXPECT_TRUE(std::filesystem::is_empty(root_));  // of runs nothing is left
}

TEST_F(par_files, sorts_are_the_same_around_the_ends_of_runs) {
  std::mt19937_64 draw(32);
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const std::uint64_t n : {0u, 1u, 2u, 7u, 8u, 9u, 16u, 17u, 65u}) {
      const record_shape shape{8, 0};
      std::vector<std::byte> scratch(n * shape.nbytes);
      sort_options options{.type = number_type::i32, .record_nbytes = 8, .scratch_memory = scratch.data()};
      options.most_piece_nbytes = 64;
      const bytes all = drawn_records<std::int32_t>(draw, n, shape);
      EXPECT_EQ(done(all, n % 2 == 0, [&](auto... with) { return make_sort(*by, with..., options); }),
                sorted<std::int32_t>(all, shape, false))
          << n << by_kernels;
    }
  }
}

TEST_F(par_files, sorts_of_many_records_go_by_parts_and_slots) {
  std::mt19937_64 draw(33);
  const auto by_threads = make_engine(false);
  for (const record_shape& shape : {record_shape{8, 0}, {20, 12}}) {
    bytes all = drawn_records<std::uint64_t>(draw, 300'000, shape);
    for (std::uint64_t at = shape.key_offset; at < all.size() && shape.nbytes == 20; at += shape.nbytes) {
      const std::uint64_t one_of_few = draw() % 5;
      std::memcpy(&all[at], &one_of_few, sizeof one_of_few);
    }
    sort_options options{.record_nbytes = shape.nbytes, .key_offset = shape.key_offset, .scratch_folder = root_};
    options.most_piece_nbytes = all.size() / 3;
    EXPECT_TRUE(done(all, true, [&](auto... with) { return make_sort(*by_threads, with..., options); }) ==
                sorted<std::uint64_t>(all, shape, false))
        << shape.nbytes;
  }
  const bytes all = drawn_records<std::uint32_t>(draw, 60'000, {4, 0});
  sort_options options{.type = number_type::u32, .record_nbytes = 4, .descending = true, .scratch_folder = root_};
  options.most_piece_nbytes = all.size() / 2 + 4;
  const auto by_kernels = make_engine(true);
  EXPECT_TRUE(done(all, true, [&](auto... with) { return make_sort(*by_kernels, with..., options); }) ==
              sorted<std::uint32_t>(all, {4, 0}, true));
}

TEST_F(par_files, sorts_take_no_more_memory_than_they_may) {
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const std::uint64_t size : {8u, 24u}) {
      const sort_options options{.record_nbytes = size};
      const std::uint64_t memory = 3 << 20, beside = size == 8 ? 0 : by_kernels ? 24 : 32;
      const std::uint64_t n = by->most_records(options, 4, memory);
      EXPECT_LE(n * (4 * size + beside), memory);
      if (GPUFS_ON_CUDA && by_kernels) continue;  // CUB wants room, too
      EXPECT_GT(n * (4 * size + beside), memory / 10 * 9);
    }
  }
}

TEST(run_cuts, have_as_many_records_before_them_as_wanted_and_the_first_of_the_merge) {
  std::mt19937_64 draw(34);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t n = draw() % 60, run_n = draw() % 9 + 1, span = draw() % 2 == 0 ? 4 : 1'000'000'000;
    std::vector<std::uint64_t> keys(n);
    for (std::uint64_t& key : keys) key = draw() % span;
    std::vector<std::uint64_t> merged(n);  // numbers, by key and then by place
    for (std::uint64_t i = 0; i < n; ++i) merged[i] = i;
    for (std::uint64_t i = 0; i < n; i += run_n) std::sort(&keys[i], keys.data() + std::min(n, i + run_n));
    std::stable_sort(merged.begin(), merged.end(), [&](std::uint64_t a, std::uint64_t b) { return keys[a] < keys[b]; });
    run_cuts cuts(reinterpret_cast<const std::byte*>(keys.data()), n, run_n, {});
    for (std::uint64_t at = 0; at < n;) {
      const std::uint64_t step = draw() % 12;
      cuts.move_on(step);
      std::vector<std::uint64_t> got;
      for (std::uint64_t i = 0; i < cuts.nruns(); ++i) {
        for (std::uint64_t k = cuts.begin(i); k < cuts.end(i); ++k) got.push_back(k);
      }
      const std::uint64_t end = std::min(n, at + step);
      std::vector<std::uint64_t> wanted(merged.data() + at, merged.data() + end);
      std::sort(wanted.begin(), wanted.end());
      EXPECT_EQ(got, wanted) << n << " " << run_n << " " << at;
      at = end;
    }
  }
}

// --- What goes wrong --------------------------------------------------------------------------------------------------------

TEST_F(par_files, what_cannot_be_scanned_or_sorted_is_refused_with_the_reason) {
  bytes all(30), result(30);
  const bytes_from from{.memory = all.data()};
  const bytes_to to{.memory = result.data()};
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    const auto scan = [&](scan_options options) { return said([&] { make_scan(*by, from, to, 30, options); }); };
    EXPECT_EQ(scan({.type = number_type::u64}), "the input: has 30 bytes, which is no multiple of the 8 of an element");
    EXPECT_EQ(scan({.op = scan_op::bit_xor, .type = number_type::f32}),
              "real numbers are not combined bit by bit: name a type of whole numbers (u32, i32, u64, i64)");
    const auto sort = [&](sort_options options) { return said([&] { make_sort(*by, from, to, 30, options); }); };
    EXPECT_EQ(sort({}), "the input: has 30 bytes, which is no multiple of the 8 of a record");
    EXPECT_EQ(sort({.record_nbytes = 10, .key_offset = 3}), "a key of 8 bytes from byte 3 on does not lie in a record of 10");
    EXPECT_EQ(sort({.record_nbytes = 10, .key_offset = ~std::uint64_t{0}}),
              "a key of 8 bytes from byte 18446744073709551615 on does not lie in a record of 10");
    EXPECT_EQ(sort({.record_nbytes = 4}), "a key of 8 bytes from byte 0 on does not lie in a record of 4");
    EXPECT_EQ(sort({.record_nbytes = 10, .memory_nbytes = 40}),
              "a memory of 40 bytes is too little for pieces of two records of 10");
    EXPECT_EQ(sort({.record_nbytes = 10, .scratch_folder = root_ + "/none", .most_piece_nbytes = 20}),
              root_ + "/none: no file can be made here: No such file or directory");
  }
}

TEST_F(par_files, an_input_that_is_cut_meanwhile_is_an_error) {
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    write(bytes(1 << 20));
    const input_file from(in(), "scanned");
    bytes result(1 << 20);
    const auto scan = make_scan(*by, {.file = &from}, {.memory = result.data()}, from.nbytes(), {.piece_nbytes = 100'000});
    EXPECT_TRUE(scan->next());
    std::filesystem::resize_file(in(), 1000);
    EXPECT_EQ(said([&] { finish(*scan); }), in() + ": was truncated, replaced or written by others while it was scanned: try again")
        << by_kernels;
    EXPECT_NE(said([&] { scan->next(); }), "nothing") << "it is complete all of a sudden";
  }
}

TEST_F(par_files, a_job_may_be_given_up) {
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    const bytes all(4000);
    bytes result(4000);
    sort_options options{.scratch_folder = root_};
    options.most_piece_nbytes = 400;
    for (const int nsteps : {0, 1, 13}) {
      const auto sort = make_sort(*by, {.memory = all.data()}, {.memory = result.data()}, 4000, options);
      for (int i = 0; i < nsteps; ++i) EXPECT_TRUE(sort->next());
      EXPECT_EQ(sort->ndone(), 400u * static_cast<unsigned>(nsteps));
    }
    EXPECT_TRUE(std::filesystem::is_empty(root_));
  }
}

// A job that is given up after each number of pieces, and another one that goes on from its state: the bytes of one that was not.
class par_files_gone_on : public par_files {
 protected:
  struct named_file {
    std::FILE* file;
    explicit named_file(const std::string& path) : file(std::fopen(path.c_str(), "w+b")) {}
    ~named_file() { std::fclose(file); }
    named_file(const named_file&) = delete;
    named_file& operator=(const named_file&) = delete;
  };

  // begin(from, to, nbytes, state)
  template <class Begin>
  void expect_the_same_from_each_piece_on(const bytes& all, unsigned npieces, const Begin& begin) const {
    bytes wanted(all.size());
    const bytes_from from{.memory = all.data()};
    {
      const auto whole = begin(from, bytes_to{.memory = wanted.data()}, all.size(), nullptr);
      finish(*whole);
      EXPECT_EQ(whole->state().npieces, npieces);
    }
    for (unsigned ndone = 0; ndone <= npieces; ++ndone) {
      const named_file made(out());
      job_state state;
      {
        const output_file to(out(), fileno(made.file), all.size());
        const auto first = begin(from, bytes_to{.file = &to}, all.size(), nullptr);
        for (unsigned i = 0; i < ndone; ++i) EXPECT_TRUE(first->next());
        state = first->state();
      }
      {
        const output_file to(out(), fileno(made.file), all.size());
        const auto second = begin(from, bytes_to{.file = &to}, all.size(), &state);
        EXPECT_EQ(second->ndone() == second->nbytes(), ndone == npieces);
        unsigned nmore = 0;
        while (second->next()) ++nmore;
        EXPECT_EQ(nmore, npieces - ndone);
        EXPECT_EQ(second->ndone(), second->nbytes());
      }
      EXPECT_TRUE(content_of(out()) == wanted) << "gone on behind piece " << ndone;
    }
  }
};

TEST_F(par_files_gone_on, scans_have_the_same_bits) {
  std::mt19937_64 draw(41);
  std::vector<float> values(1000);
  for (float& value : values) value = std::ldexp(static_cast<float>(draw() % 1000) - 400, static_cast<int>(draw() % 30));
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const bool exclusive : {false, true}) {
      SCOPED_TRACE(testing::Message() << by_kernels << exclusive);
      const scan_options options{.type = number_type::f32, .exclusive = exclusive, .piece_nbytes = 700};
      expect_the_same_from_each_piece_on(bytes_of(values), 6, [&](auto&&... with) {
        const auto [from, to, nbytes, state] = std::tuple(with...);
        return make_scan(*by, from, to, nbytes, options, state);
      });
    }
  }
}

TEST_F(par_files_gone_on, sorts_have_the_same_records) {
  std::mt19937_64 draw(42);
  std::vector<std::uint32_t> records(3 * 170);  // keys, of which many are equal, and two numbers
  for (std::uint32_t i = 0; i < records.size(); ++i) records[i] = i % 3 == 0 ? static_cast<std::uint32_t>(draw() % 20) : i;
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    for (const std::uint64_t nrecords : {30u, 170u}) {
      const named_file runs(root_ + "/runs");
      const sort_options options{.type = number_type::u32,
                                 .record_nbytes = 12,
                                 .scratch_folder = root_,
                                 .scratch_descriptor = fileno(runs.file),
                                 .most_piece_nbytes = 12 * nrecords};
      const unsigned npieces = nrecords == 170 ? 1 : 12;
      expect_the_same_from_each_piece_on(bytes_of(records), npieces, [&](auto&&... with) {
        const auto [from, to, nbytes, state] = std::tuple(with...);
        return make_sort(*by, from, to, nbytes, options, state);
      });
    }
  }
}

TEST_F(par_files_gone_on, states_that_cannot_be_are_refused) {
  const auto by = make_engine(false);
  const bytes all(40);
  bytes result(40);
  const bytes_from from{.memory = all.data()};
  const bytes_to to{.memory = result.data()};
  const auto scan = [&](job_state state) { return said([&] { make_scan(*by, from, to, 40, {}, &state); }); };
  const auto sort = [&](job_state state) { return said([&] { make_sort(*by, from, to, 40, {}, &state); }); };
  EXPECT_EQ(scan({12, 5}), "there are not 5 pieces of 12 bytes");
  EXPECT_EQ(scan({0, 1}), "pieces of no bytes have not been done");
  EXPECT_EQ(scan({13, 1}), "a piece is no multiple of an element");
  EXPECT_EQ(sort({16, 7}), "there are not 7 pieces of 16 bytes");
  EXPECT_EQ(sort({12, 1}), "a piece is no multiple of a record");
  EXPECT_EQ(sort({~std::uint64_t{7}, 2}), "there are not 2 pieces of 18446744073709551608 bytes");
}

// Files of this process have that many bytes at most, while it lives.
class size_limit {
 public:
  explicit size_limit(std::uint64_t nbytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &was_);
    rlimit now = was_;
    now.rlim_cur = nbytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~size_limit() {
    setrlimit(RLIMIT_FSIZE, &was_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  void (*before_)(int);
  rlimit was_{};
};

TEST_F(par_files, an_output_that_cannot_grow_is_an_error_with_its_reason) {
  std::FILE* const made = std::fopen(out().c_str(), "w+b");
  {
    const size_limit limit(1000);
    EXPECT_EQ(said([&] { output_file(out(), fileno(made), 1001); }), out() + ": cannot be written: File too large");
    EXPECT_EQ(said([&] { (void)output_file::without_name(root_, 1001); }),
              root_ + ": a file of 1001 bytes: cannot be written: File too large");
  }
  // Where a page of the mapping cannot be had, the same bytes go by pwrite; or that says why not.
  const output_file to(out(), fileno(made), 1 << 20);
  ASSERT_NE(to.mapped(), nullptr);
  std::filesystem::resize_file(out(), 0);
  const bytes some(5000, std::byte{7});
  to.write(some.data(), some.size(), 10'000);
  EXPECT_EQ(std::filesystem::file_size(out()), 15'000u);
  EXPECT_EQ(content_of(out())[14'999], std::byte{7});
  const size_limit limit(1000);
  EXPECT_EQ(said([&] { to.write(some.data(), some.size(), 100'000); }), out() + ": cannot be written: File too large");
  std::fclose(made);
}

TEST_F(par_files, a_job_whose_output_cannot_be_written_ends_with_the_reason) {
  for (const bool by_kernels : {false, true}) {
    const auto by = make_engine(by_kernels);
    std::FILE* const made = std::fopen(out().c_str(), "w+b");
    const output_file to(out(), fileno(made), 1 << 20);
    std::filesystem::resize_file(out(), 0);
    const bytes all(1 << 20);
    const size_limit limit(200'000);
    const auto scan = make_scan(*by, {.memory = all.data()}, {.file = &to}, all.size(), {.piece_nbytes = 100'000});
    EXPECT_EQ(said([&] { finish(*scan); }), out() + ": cannot be written: File too large") << by_kernels;
    std::fclose(made);
  }
}

}  // namespace
}  // namespace gpufs::apps::par
