// SPDX-License-Identifier: Apache-2.0
// What a pointer is, and when it holds a pin: each way to link and unlink, alone and with other lanes.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>

#include "gpufs/store/mem_store.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using reader = ptr<const std::uint32_t>;
using writer = ptr<std::uint32_t>;

static_assert(std::is_same_v<std::iterator_traits<reader>::iterator_category, std::random_access_iterator_tag>);
static_assert(std::is_same_v<std::iterator_traits<reader>::value_type, std::uint32_t>);
static_assert(std::is_same_v<std::iterator_traits<reader>::difference_type, std::ptrdiff_t>);
static_assert(std::is_same_v<std::iterator_traits<reader>::reference, std::uint32_t>);
static_assert(std::random_access_iterator<reader>);
static_assert(std::sentinel_for<reader, reader> && std::sized_sentinel_for<reader, reader>);
static_assert(std::is_convertible_v<writer, reader> && !std::is_convertible_v<reader, writer>);
static_assert(std::is_nothrow_move_constructible_v<reader> && std::is_nothrow_move_assignable_v<writer>);
static_assert(!std::is_trivially_copyable_v<reader>, "a byte-wise copy would copy the pin");
static_assert(std::is_same_v<decltype(*std::declval<writer>()), element<std::uint32_t, plain_access>>);
// Memory that is zeroed holds null pointers, so they have no vtable and no member that starts otherwise.
static_assert(std::is_standard_layout_v<mapping_name> && !std::is_polymorphic_v<reader>);

struct any_ptr : pointer_fixture {};

struct null_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    std::int64_t* r = mine();
    reader p, q = nullptr;
    r[0] = *p;
    r[1] = p[1000];
    r[2] = p.fault_in();
    r[3] = static_cast<bool>(p) || p.linked() || p != nullptr || p != q || p.error() != -EFAULT || q.error() != 0;
    ++p;
    r[4] = p == nullptr || p - q != 1 || *p != 0;
    writer w;
    *w = 7;
    w[3] += 7;
    r[5] = w.fetch_add(1, std::memory_order_relaxed) + *w;
    w.unlink();
    std::uint32_t expected = 9;
    r[6] = w.compare_exchange(expected, 1, std::memory_order_relaxed) || expected != 9;
    r[7] = p.load<simt::vec16>().word[0];
  }
};

TEST_F(any_ptr, null_reads_as_zeros_and_tells_nobody) {
  const auto r = run<null_kernel>(1, 32);
  std::vector<std::int64_t> expected(outs);
  expected[2] = -EFAULT;
  EXPECT_EQ(r, expected);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// An element that can be copied, and not assigned.
struct fixed_pair {
  const std::uint32_t first;
  std::uint32_t second;
};

struct fixed_pairs_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    {
      const auto p = map<const fixed_pair>(this_thread(), f);
      for (int i = 0; i < 3; ++i) {
        const fixed_pair at = p[i * static_cast<int>(per_page)];
        mine()[i] = static_cast<std::int64_t>(at.first) << 32 | at.second;
      }
    }
    close(this_thread(), f);
  }
};

TEST_F(any_ptr, elements_need_not_be_assignable) {
  const auto r = run<fixed_pairs_kernel>(1, 32);
  for (unsigned i = 0; i < 3; ++i) {
    std::uint32_t words[2];
    const auto bytes = content(file_seed, std::uint64_t{i} * per_page * sizeof(fixed_pair), sizeof words);
    std::memcpy(words, bytes.data(), sizeof words);
    EXPECT_EQ(r[i], static_cast<std::int64_t>(words[0]) << 32 | words[1]) << i;
  }
}

// One lane: the pins of the whole mount after each step.
struct pins_kernel : pointer_job {
  GPUFS_DEVICE static reader give_back(reader p) { return p; }

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    std::int64_t* r = mine();
    unsigned n = 0;
    {
      reader p = map<const std::uint32_t>(this_thread(), f);
      r[n++] = pins();  // 0: nothing is brought in by mapping
      (void)*p;
      r[n++] = pins();  // 1
      (void)p[per_page];
      r[n++] = pins();  // 1: another page, so the first is left
      p += 1;
      r[n++] = pins() * 10 + p.linked();  // 11: it points to the first page but is linked to the second
      (void)*p;
      const reader copied(p);
      r[n++] = pins() * 10 + copied.linked();  // 10: copies hold none
      (void)*copied;
      r[n++] = pins();  // 2
      copied.unlink();
      copied.unlink();
      r[n++] = pins();  // 1
      reader moved(static_cast<reader&&>(p));
      r[n++] = pins() * 100 + moved.linked() * 10 + p.linked();  // 110: handed over
      p = static_cast<reader&&>(moved);
      r[n++] = pins() * 100 + moved.linked() * 10 + p.linked();  // 101
      reader& self = p;
      p = self;
      p = static_cast<reader&&>(self);
      r[n++] = pins() * 10 + p.linked();  // 11
      p += per_page;
      r[n++] = pins() * 10 + p.linked();  // 11: arithmetic only moves
      (void)*p;
      r[n++] = pins();  // 1: left the page
      p = give_back(static_cast<reader&&>(p));
      r[n++] = pins() * 10 + p.linked();  // 11: by value keeps it
      p = copied;
      r[n++] = pins();  // 0
      (void)*p;
      moved = p + 1;
      (void)*moved;
      moved = static_cast<reader&&>(p);
      r[n++] = pins();  // 1: the one that `moved` had is given back
      (void)moved[-1000];
      r[n++] = pins();  // 0: beyond the mapping
      (void)*moved;
      moved = nullptr;
      r[n++] = pins();  // 0
      p = copied;
      for (int i = 0; i < 3; ++i) (void)*p++;
      r[n++] = pins();  // 0: each copy gave its own back
      (void)*p;
    }
    r[n++] = pins();  // 0: its destructor
    close(this_thread(), f);
  }
};

TEST_F(any_ptr, holds_one_pin_while_it_is_linked) {
  const auto r = run<pins_kernel>(1, 32);
  const std::vector<std::int64_t> expected = {0, 1, 1, 11, 10, 2, 1, 110, 101, 11, 11, 1, 11, 0, 1, 0, 0, 0, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + static_cast<std::ptrdiff_t>(expected.size())), expected);
  EXPECT_EQ(fs().counters().fault_errors, 1u);
}

struct shared_page_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f, page * 3);
      p += warp.rank();
      mine()[0] = *p;
      mine()[1] = pins_at_rest();
      if (warp.rank() % 2 == 0) p.unlink();
      mine()[2] = pins_at_rest();
    }
    warp.sync();
    mine()[3] = pins();
    close(warp, f);
  }
};

TEST_F(any_ptr, lanes_of_one_page_share_the_look_up) {
  std::uint64_t lookups = 0;
  const int rounds = 20;
  for (int seed = 1; seed <= rounds; ++seed) {
    schedule.seed = static_cast<std::uint64_t>(seed);
    const auto before = fs().counters();
    run<shared_page_kernel>(1, 32);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), word_at(3 * per_page + t));
      EXPECT_EQ(result(t, 1), 32);
      EXPECT_EQ(result(t, 2), 16);
      EXPECT_EQ(result(t, 3), 0);
    }
    const auto after = fs().counters();
    lookups += after.hits + after.faults + after.waits - before.hits - before.faults - before.waits;
  }
  // On CUDA the lanes arrive together; on the CPU machine the seed says which do. (An open may enter the first page.)
  EXPECT_LE(lookups, rounds * (on_cuda ? 4u : 16u));
  EXPECT_GE(lookups, static_cast<std::uint64_t>(rounds));
}

struct own_pages_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f);
      mine()[0] = p[warp.rank() * per_page + 5];
      mine()[1] = pins_at_rest();
    }
    // One lane by itself faults; the others are in the reduction below already.
    std::uint32_t value = 0;
    if (warp.rank() == 11) {
      const auto p = map<const std::uint32_t>(this_thread(), f);
      value = p[38 * per_page];
    }
    mine()[2] = warp.reduce_add(value);
    close(warp, f);
  }
};

TEST_F(any_ptr, lanes_of_different_pages_and_a_lane_alone) {
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    run<own_pages_kernel>(1, 32);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), word_at(t * per_page + 5));
      EXPECT_EQ(result(t, 1), 32);
      EXPECT_EQ(result(t, 2), word_at(38 * per_page));
    }
  }
}

// Every kind of group maps; 2 blocks of the given size.
struct groups_kernel : pointer_job {
  template <class Group>
  GPUFS_DEVICE std::int64_t sum(Group group) const {
    const file f = open(group, fs, path);
    std::int64_t total = 0;
    {
      auto p = map<const std::uint32_t>(group, f, 4, nwords - 1);
      const reader end = p + (nwords - 1);
      for (p += thread(); p < end; p += 997) total += *p;
    }
    close(group, f);
    return total;
  }
  GPUFS_DEVICE void operator()() const {
    mine()[0] = sum(this_thread());
    mine()[1] = sum(this_tile<8>());
    mine()[2] = sum(this_warp());
    mine()[3] = sum(this_block());
  }
};

TEST_F(any_ptr, any_group_maps) {
  for (const unsigned block : {32u, 64u, 128u, 256u}) {
    if (under_tsan && block > 64) break;
    run<groups_kernel>(2, block);
    for (unsigned t = 0; t < 2 * block; ++t) {
      std::int64_t total = 0;
      for (std::int64_t i = 1 + t; i < nwords; i += 997) total += word_at(i);
      for (unsigned k = 0; k < 4; ++k) ASSERT_EQ(result(t, k), total) << "thread " << t << " of blocks of " << block;
    }
  }
}

// Block 0 of the first launch leaves a pointer; all blocks of the second copy it.
struct leave_pointer : pointer_job {
  reader* shared;
  std::int32_t* number;

  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    auto p = map<const std::uint32_t>(this_thread(), f, 8);
    (void)*p;
    *shared = p;  // a copy: not linked
    *number = static_cast<std::int32_t>(f.number());
  }
};
struct copy_pointer : pointer_job {
  const reader* shared;

  GPUFS_DEVICE void operator()() const {
    const reader p = *shared;
    mine()[0] = p[thread() * 100];
    mine()[1] = shared->linked();
  }
};
struct close_number : pointer_job {
  const std::int32_t* number;
  GPUFS_DEVICE void operator()() const {
    if (thread() == 0) mine()[0] = close(this_thread(), file(fs, file_number{*number}));
  }
};

TEST_F(any_ptr, is_shared_by_copying) {
  const device_buffer<std::byte> shared(sizeof(reader));
  const device_buffer<std::int32_t> number(1);
  auto* at = reinterpret_cast<reader*>(shared.get());
  run<leave_pointer>(1, 32, at, number.get());
  run<copy_pointer>(3, 64, static_cast<const reader*>(at));
  for (unsigned t = 0; t < 3 * 64; ++t) {
    EXPECT_EQ(result(t, 0), word_at(2 + t * 100));
    EXPECT_EQ(result(t, 1), 0);
  }
  EXPECT_EQ(run<close_number>(1, 32, static_cast<const std::int32_t*>(number.get()))[0], 0);
}

struct two_mounts_kernel : pointer_job {
  mount_ref other;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file a = open(warp, fs, path), b = open(warp, other, path);
    {
      auto p = map<const std::uint32_t>(warp, a);
      const auto q = map<const std::uint32_t>(warp, b);
      if (warp.rank() % 2 != 0) p = q;
      mine()[0] = p[2 * per_page + 3];
      mine()[1] = p[9 * per_page + 3];
      if (warp.rank() % 4 == 3) p = map<const std::uint32_t>(this_thread(), a);
      mine()[2] = p[9 * per_page + 3];
    }
    close(warp, a);
    close(warp, b);
  }
};

TEST_F(any_ptr, of_two_mounts_in_one_warp) {
  const temp_dir other_dir;
  other_dir.add("f", npages * page, file_seed + 1);
  const mount other(other_dir.path(), options);
  if (under_compute_sanitizer()) other.prepare("f");
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    run<two_mounts_kernel>(2, 64, other.ref());
    for (unsigned t = 0; t < 128; ++t) {
      const std::uint64_t of = t % 2 != 0 ? file_seed + 1 : file_seed;
      EXPECT_EQ(result(t, 0), word_at(2 * per_page + 3, of));
      EXPECT_EQ(result(t, 1), word_at(9 * per_page + 3, of));
      EXPECT_EQ(result(t, 2), word_at(9 * per_page + 3, t % 4 == 3 ? file_seed : of));
    }
  }
  EXPECT_EQ(other.counters().pins, 0u);
}

struct equal_kernel : pointer_job {
  mount_ref other;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file a = open(warp, fs, path), again = open(warp, fs, path), b = open(warp, other, path);
    {
      const auto p = map<const std::uint32_t>(warp, a);
      const auto part = map<const std::uint32_t>(warp, again, 4, 10);
      const auto same = [&](const reader& one, const reader& two) {
        return (one == two ? 1 : 0) + (two == one ? 1 : 0) + (one != two ? 10 : 0);
      };
      std::int64_t* r = mine();
      r[0] = same(p, p);
      r[1] = same(part, p + 1);
      r[2] = same(part, p);
      (void)*part;  // linked
      r[3] = same(part, p + 1);
      const reader copied = part;
      r[4] = same(copied, part);
      r[5] = same(map<const std::uint32_t>(warp, a, 0, 5, map_flags::stop_on_error), p);
      r[6] = same(map<const std::uint32_t>(warp, a, 0, 5, map_flags::private_changes), p);
      r[7] = same(map<std::uint32_t>(warp, a, 0, 5, map_flags::private_changes), p);  // converted
      r[8] = same(map<const std::uint32_t>(warp, b), p);
      r[9] = same(p, nullptr);
      r[10] = same(map<const std::uint32_t>(warp, a, -4), nullptr);
      r[11] = same(map<const std::uint32_t>(warp, a, -4, 1, map_flags::stop_on_error), map<const std::uint32_t>(warp, a, 2));
      r[12] = p < part && part > p && p <= part && part - p == 1;
    }
    close(warp, a);
    close(warp, again);
    close(warp, b);
  }
};

TEST_F(any_ptr, is_equal_to_pointers_to_the_same_byte_of_the_same_file) {
  const temp_dir other_dir;
  other_dir.add("f", npages * page, file_seed);
  const mount other(other_dir.path(), options);
  if (under_compute_sanitizer()) other.prepare("f");
  const auto r = run<equal_kernel>(1, 32, other.ref());
  const std::vector<std::int64_t> expected = {2, 2, 10, 2, 2, 2, 10, 10, 10, 10, 2, 2, 1};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + static_cast<std::ptrdiff_t>(expected.size())), expected);
}

struct algorithms_kernel : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    {
      const auto begin = map<const std::uint32_t>(this_thread(), f);
      const reader end = begin + nwords;
#if GPUFS_ON_CUDA  // cuda::std's algorithms are for the host too, where pointers are not
      for (reader p = begin; p != end; ++p) mine()[0] += *p;
#else
      mine()[0] = std::accumulate(begin, end, std::int64_t{0});
      mine()[1] = std::find(begin, end, word_at(per_page + 7)) - begin;
      mine()[2] = std::distance(begin, end) + std::count(begin, end, word_at(5));
#endif
    }
    close(this_thread(), f);
  }
};

TEST_F(any_ptr, works_with_algorithms) {
  const auto r = run<algorithms_kernel>(1, 32);
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < nwords; ++i) total += word_at(i);
  EXPECT_EQ(r[0], total);
  if (!on_cuda) {
    EXPECT_EQ(r[1], per_page + 7);
    EXPECT_EQ(r[2], nwords + 1);
  }
}

#if !GPUFS_ON_CUDA
struct sorted_kernel : pointer_job {
  std::int64_t n;
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const file f = open(this_thread(), fs, path);
    {
      const auto begin = map<const std::uint32_t>(this_thread(), f);
      for (unsigned i = 0; i < outs; ++i) {
        mine()[i] = std::lower_bound(begin, begin + n, static_cast<std::uint32_t>(i * 3001)) - begin;
      }
    }
    close(this_thread(), f);
  }
};

TEST_F(any_ptr, lower_bound) {
  std::vector<std::uint32_t> sorted;
  for (std::uint32_t i = 0; i < 30000; ++i) sorted.push_back(4 * i + 1);
  auto store = std::make_shared<store::mem_store>(simt::this_platform());
  store->put("f", std::as_bytes(std::span(sorted)));
  options.custom_store = store;
  const auto r = run<sorted_kernel>(1, 32, std::int64_t{30000});
  for (unsigned i = 0; i < outs; ++i) {
    EXPECT_EQ(r[i], std::lower_bound(sorted.begin(), sorted.end(), i * 3001) - sorted.begin());
  }
}
#endif

// Warps that open, map, read and close one of six files after the other, where two mappings have room: each entry of the mount's
// table is one file's after another's.
struct take_turns : pointer_job {
  std::uint64_t seed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const char* const names[] = {"0", "1", "2", "3", "4", "5"};
    std::int64_t* r = mine();
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::uint64_t drawn = content_word(seed, i * 64 + thread() / 32);
      const file f = open(warp, fs, names[drawn % 6]);
      const auto p = map<const std::uint32_t>(warp, f);
      if (p) {
        const std::int64_t at = static_cast<std::int64_t>(drawn / 6 % (nwords - 32)) + warp.rank();
        r[0] += p[at] != word_at(at, file_seed + drawn % 6);
        ++r[1];
      } else {
        r[0] += p.error() != -ENFILE;
      }
      p.unlink();
      warp.sync();
      close(warp, f);
    }
  }
};

TEST_F(any_ptr, files_that_take_turns_in_a_mapping_do_not_mix) {
  for (unsigned k = 0; k < 6; ++k) dir.add(std::to_string(k), npages * page, file_seed + k);
  let_file_times_pass();
  options.max_mappings = 2;
  options.store = store_kind::posix;
  schedule.delay_percent = 20;
  schedule.nthreads = 8;  // a copy of each entry for each
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    run<take_turns>(4, 64, seed);
    std::int64_t read = 0;
    for (unsigned t = 0; t < 256; t += 32) read += result(t, 1);
    for (unsigned t = 0; t < 256; ++t) EXPECT_EQ(result(t, 0), 0) << "thread " << t;
    EXPECT_GT(read, 8);
  }
}

// Pairs of warps that open and map the same file at once, one of six, while others close theirs; there is room for four mappings.
struct map_at_once : pointer_job {
  std::uint64_t seed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const char* const names[] = {"0", "1", "2", "3", "4", "5"};
    for (std::uint64_t i = 0; i < 16; ++i) {
      const file f = open(warp, fs, names[content_word(seed, i * 64 + thread() / 64) % 6]);
      {
        const auto first = map<const std::uint32_t>(warp, f);
        for (int later = 0; later < 3; ++later) {
          const auto again = map<const std::uint32_t>(warp, f);
          if (first && again) {
            mine()[0] += first != again;
            ++mine()[1];
          }
        }
      }
      warp.sync();
      close(warp, f);
    }
  }
};

TEST_F(any_ptr, groups_that_map_a_file_at_once_share_one_mapping) {
  for (unsigned k = 0; k < 6; ++k) dir.add(std::to_string(k), page, file_seed + k);
  let_file_times_pass();
  options.max_mappings = 4;
  options.store = store_kind::posix;
  schedule.delay_percent = 20;
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    run<map_at_once>(4, 64, seed);
    std::int64_t compared = 0;
    for (unsigned t = 0; t < 256; ++t) {
      EXPECT_EQ(result(t, 0), 0) << "thread " << t << ", seed " << seed;
      compared += result(t, 1);
    }
    EXPECT_GT(compared, 1000);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
