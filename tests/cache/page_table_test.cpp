// SPDX-License-Identifier: Apache-2.0
// The page table alone: one hash table for all files, with buckets of four.
#include <algorithm>
#include <map>
#include <set>

#include "cache/cache_box.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using cache::frame_index;
using cache::make_key;
using cache::page_key;

// Pages of a row each, as those of one row have one tag, and differ by their buckets; of which there are fewer here.
page_key nth_key(std::uint64_t n) { return make_key(1 + static_cast<std::uint32_t>(n % 5), n / 5 * 8); }

enum class table_op : std::uint32_t { insert, erase, find };

struct table_call {
  table_op what;
  std::uint32_t frame;  // find: the frame that must be found, or none
  page_key key;
};
constexpr std::uint32_t none = ~0u;

// One lane does one call after another; results: find's frame or none.
struct run_calls {
  const cache::cache_layout* layout;
  const table_call* calls;
  std::uint32_t ncalls;
  std::uint32_t* results;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const cache::hash_table table(*layout);
    for (std::uint32_t i = 0; i < ncalls; ++i) {
      const table_call call = calls[i];
      results[i] = none;
      if (call.what == table_op::find) {
        std::uint32_t found = none;
        table.find(call.key, [&](frame_index f) {
          if (static_cast<std::uint32_t>(f) == call.frame || call.frame == none) found = static_cast<std::uint32_t>(f);
          return found != none;
        });
        results[i] = found;
      } else if (table.lock(call.key, simt::deadline(1'000'000'000))) {
        results[i] = 0;
        if (call.what == table_op::insert) table.insert(call.key, frame_index{call.frame});
        if (call.what == table_op::erase) table.erase(call.key, frame_index{call.frame});
        table.unlock(call.key);
      }
    }
  }
};

std::vector<std::uint32_t> do_calls(const cache_box& box, const std::vector<table_call>& calls) {
  const device_buffer<table_call> memory(calls);
  const device_buffer<std::uint32_t> results(calls.size());
  simt::launch({.grid = 1, .block = 32},
               run_calls{box.resident(), memory.get(), static_cast<std::uint32_t>(calls.size()), results.get()});
  return results.read();
}

// The home bucket of each of the first n keys, seen by inserting it into an empty table.
std::vector<std::uint32_t> homes_of(std::uint32_t n, std::uint32_t nbuckets) {
  std::vector<std::uint32_t> homes;
  const cache_box box({.nframes = 2 * nbuckets, .nbuckets = nbuckets});
  for (std::uint32_t k = 0; k < n; ++k) {
    do_calls(box, {{table_op::insert, 0, nth_key(k)}});
    const auto buckets = box.buckets();
    std::uint32_t home = none;
    for (std::uint32_t b = 0; b < nbuckets; ++b) {
      if (buckets[b].slots[0] != 0) home = b;
    }
    homes.push_back(home);
    do_calls(box, {{table_op::erase, 0, nth_key(k)}});
  }
  return homes;
}

std::vector<page_key> keys_of_bucket(std::uint32_t wanted, std::uint32_t count, std::uint32_t nbuckets) {
  std::vector<page_key> keys;
  const auto homes = homes_of(count * nbuckets * 4, nbuckets);
  for (std::uint32_t k = 0; k < homes.size() && keys.size() < count; ++k) {
    if (homes[k] == wanted) keys.push_back(nth_key(k));
  }
  EXPECT_EQ(keys.size(), count);
  return keys;
}

int filled_slots(const cache::bucket& b) {
  return static_cast<int>(std::count_if(std::begin(b.slots), std::end(b.slots), [](std::uint32_t s) { return s != 0; }));
}

bool is_empty(const cache_box& box) {
  const auto buckets = box.buckets();
  const auto headers = box.headers();
  return std::all_of(headers.begin(), headers.end(), [](std::uint32_t h) { return h == 0; }) &&
         std::all_of(buckets.begin(), buckets.end(), [](const cache::bucket& b) { return filled_slots(b) == 0; });
}

void overflow_into(std::uint32_t bucket, std::uint32_t neighbour, std::uint32_t nbuckets) {
  const cache_box box({.nframes = 14, .nbuckets = nbuckets});
  const auto keys = keys_of_bucket(bucket, 7, nbuckets);
  std::vector<table_call> inserts, finds, erases;
  for (std::uint32_t i = 0; i < 7; ++i) {
    inserts.push_back({table_op::insert, i, keys[i]});
    finds.push_back({table_op::find, i, keys[i]});
    erases.push_back({table_op::erase, i, keys[i]});
  }
  do_calls(box, inserts);
  EXPECT_EQ(filled_slots(box.buckets()[bucket]), 4);
  EXPECT_EQ(filled_slots(box.buckets()[neighbour]), 3);
  EXPECT_EQ(box.headers()[bucket], 3u) << "three entries probed past the full bucket";
  auto found = do_calls(box, finds);
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_EQ(found[i], i);

  // Room in the home bucket does not hide those that went on.
  do_calls(box, {erases[0], erases[2], erases[4]});
  found = do_calls(box, finds);
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_EQ(found[i], i == 0 || i == 2 || i == 4 ? none : i);
  EXPECT_EQ(box.headers()[bucket], 2u);

  do_calls(box, {erases[6]});
  EXPECT_EQ(box.headers()[bucket], 1u);
  do_calls(box, {inserts[0]});
  EXPECT_EQ(filled_slots(box.buckets()[bucket]), 3);
  do_calls(box, {erases[0], erases[1], erases[3], erases[5]});
  EXPECT_TRUE(is_empty(box)) << "erasing gives everything back";
}

// Of few buckets to the next one; else to the same place in the next row of eight, and from the last row to the first's next place.
TEST(page_table, full_bucket_overflows_to_its_neighbour_and_back) { overflow_into(1, 2, 4); }
TEST(page_table, last_bucket_overflows_to_the_first) { overflow_into(3, 0, 4); }
TEST(page_table, full_bucket_overflows_into_the_next_row) { overflow_into(1, 9, 32); }
TEST(page_table, last_row_overflows_into_the_first) {
  overflow_into(25, 2, 32);
  overflow_into(31, 0, 32);
}

TEST(page_table, neighbours_have_their_buckets_side_by_side) {
  constexpr std::uint32_t a_row = 8, nbuckets = 64;
  std::set<std::uint32_t> rows;
  for (const std::uint64_t first : {0u, 8u, 80u, 1u << 20}) {
    const cache_box box({.nframes = a_row, .nbuckets = nbuckets});
    std::vector<table_call> inserts;
    for (std::uint32_t i = 0; i < a_row; ++i) inserts.push_back({table_op::insert, i, make_key(3, first + i)});
    do_calls(box, inserts);
    const auto buckets = box.buckets();
    std::uint32_t row = none;
    for (std::uint32_t b = 0; b < nbuckets; ++b) {
      if (filled_slots(buckets[b]) != 0) row = std::min(row, b / a_row);
    }
    ASSERT_NE(row, none);
    for (std::uint32_t i = 0; i < a_row; ++i)
      EXPECT_EQ(filled_slots(buckets[row * a_row + i]), 1) << "page " << first << " + " << i;
    rows.insert(row);
  }
  EXPECT_GT(rows.size(), 1u) << "rows are spread";
}

TEST(page_table, passes_several_full_buckets) {
  const cache_box box({.nframes = 14, .nbuckets = 4});
  const auto first = keys_of_bucket(2, 6, 4), second = keys_of_bucket(3, 3, 4);
  std::vector<table_call> calls;
  for (std::uint32_t i = 0; i < 3; ++i) calls.push_back({table_op::insert, i, second[i]});
  for (std::uint32_t i = 0; i < 6; ++i) calls.push_back({table_op::insert, 3 + i, first[i]});
  do_calls(box, calls);
  EXPECT_EQ(filled_slots(box.buckets()[2]), 4);
  EXPECT_EQ(filled_slots(box.buckets()[3]), 4);
  EXPECT_EQ(box.headers()[2], 2u);
  do_calls(box, {{table_op::erase, 0, second[0]}});  // frame 0 is free again
  const auto extra = keys_of_bucket(2, 7, 4)[6];
  do_calls(box, {{table_op::insert, 0, extra}});
  EXPECT_EQ(box.headers()[2], 3u);
  for (table_call& c : calls) c.what = table_op::find;
  const auto found = do_calls(box, calls);
  EXPECT_EQ(found[0], none);
  for (std::uint32_t i = 1; i < calls.size(); ++i) EXPECT_EQ(found[i], calls[i].frame);
  for (table_call& c : calls) c.what = table_op::erase;
  calls[0].key = extra;
  do_calls(box, calls);
  EXPECT_TRUE(is_empty(box));
}

TEST(page_table, one_bucket_holds_what_it_can) {
  const cache_box box({.nframes = 3, .nbuckets = 1});
  do_calls(box, {{table_op::insert, 0, nth_key(7)}, {table_op::insert, 1, nth_key(8)}, {table_op::insert, 2, nth_key(9)}});
  const auto found = do_calls(box, {{table_op::find, 2, nth_key(9)},
                                    {table_op::find, 1, nth_key(8)},
                                    {table_op::find, none, nth_key(10)},
                                    {table_op::find, 0, nth_key(7)}});
  EXPECT_EQ(found, (std::vector<std::uint32_t>{2, 1, none, 0}));
}

TEST(page_table, no_key_and_frame_look_like_an_empty_slot) {
  // Keys at the ends of their ranges, frame 0 and the last one.
  const cache_box box({.nframes = 64, .nbuckets = 32});
  const page_key keys[] = {page_key{0}, make_key(1, 0),
                           make_key(cache::max_cache_id, (std::uint64_t{1} << cache::page_number_bits) - 1)};
  std::vector<table_call> calls;
  for (const std::uint32_t frame : {0u, 63u}) {
    for (const page_key key : keys) {
      calls.push_back({table_op::insert, frame, key});
      calls.push_back({table_op::find, frame, key});
      calls.push_back({table_op::erase, frame, key});
    }
  }
  const auto found = do_calls(box, calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(found[i], calls[i].what == table_op::find ? calls[i].frame : 0);
  }
  EXPECT_TRUE(is_empty(box));
}

// Some lanes look up keys that stay, while others insert and erase keys of the same few buckets.
struct churn {
  const cache::cache_layout* layout;
  std::uint32_t nstable;  // keys 0 .. nstable-1 are in the table as frames of the same number
  std::uint32_t nmoving;  // the key that frame nstable + i is given by its writer
  std::uint32_t rounds;
  std::uint32_t* lost;     // look-ups that missed a key that stays
  std::uint32_t* strange;  // look-ups that found a frame under a key it never had

  GPUFS_DEVICE void operator()() const {
    const cache::hash_table table(*layout);
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    if (me < nmoving) return move(table, nstable + me);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::uint32_t wanted = (me + i) % nstable;
      if (!table.find(key_of(wanted), [&](frame_index f) { return static_cast<std::uint32_t>(f) == wanted; })) {
        simt::atomic_ref<std::uint32_t>(*lost).fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  GPUFS_DEVICE static page_key key_of(std::uint32_t n) { return make_key(1 + n % 5, n / 5 * 8); }

  GPUFS_DEVICE void move(const cache::hash_table& table, std::uint32_t frame) const {
    const page_key key = key_of(frame);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      if (!table.lock(key, simt::deadline(10'000'000'000))) continue;
      table.insert(key, frame_index{frame});
      table.unlock(key);
      if (!table.find(key, [&](frame_index f) { return static_cast<std::uint32_t>(f) == frame; })) {
        simt::atomic_ref<std::uint32_t>(*strange).fetch_add(1, std::memory_order_relaxed);
      }
      table.erase(key, frame_index{frame});
    }
  }
};

// Of keys of one home bucket, as many as fill it and one more: whether each is found with the key's lock.
struct look_with_the_lock {
  const cache::cache_layout* layout;
  const page_key* keys;
  std::uint32_t nkeys;
  std::uint32_t* found;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const cache::hash_table table(*layout);
    for (std::uint32_t i = 0; i < nkeys; ++i) {
      if (!table.lock(keys[i], simt::deadline(10'000'000'000))) return;
      table.insert(keys[i], frame_index{i});
      table.unlock(keys[i]);
    }
    for (std::uint32_t i = 0; i < nkeys; ++i) {
      std::uint32_t home = cache::hash_table::unlocked, busy = home;
      if (!table.try_lock(keys[i], home)) return;
      found[i] = table.find(
          keys[i], [&](frame_index f) { return static_cast<std::uint32_t>(f) == i; }, home);
      found[i] |= static_cast<std::uint32_t>(table.try_lock(keys[i], busy)) << 1;
      table.unlock(keys[i]);
    }
  }
};

TEST(page_table, a_look_up_with_the_lock_goes_on_behind_a_full_bucket) {
  const cache_box box({.nframes = 16, .nbuckets = 16});
  // In a table of its own each key shows its home.
  std::map<std::size_t, std::vector<page_key>> by_home;
  std::vector<page_key> keys;
  for (std::uint32_t page = 0; keys.empty(); page += 8) {
    const cache_box alone({.nframes = 16, .nbuckets = 16});
    const page_key key = make_key(1, page);
    do_calls(alone, {{table_op::insert, 0, key}});
    const auto buckets = alone.buckets();
    for (std::size_t home = 0; home < buckets.size(); ++home) {
      if (std::count(std::begin(buckets[home].slots), std::end(buckets[home].slots), 0u) == 4) continue;
      by_home[home].push_back(key);
      if (by_home[home].size() == 5) keys = by_home[home];
    }
  }
  const device_buffer<page_key> memory(keys);
  const device_buffer<std::uint32_t> found(keys.size());
  simt::launch({.grid = 1, .block = 32}, look_with_the_lock{box.resident(), memory.get(), 5, found.get()});
  EXPECT_EQ(found.read(), (std::vector<std::uint32_t>{1, 1, 1, 1, 1}));
}

TEST(page_table, look_ups_find_what_stays_while_others_insert_and_erase) {
  const seed_range seeds = seeds_to_run(under_tsan ? 10 : 200);
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    // 16 buckets of four slots for 56 frames, twice as full as a mount's: some bucket overflows all the time.
    const cache_box box({.nframes = 56, .nbuckets = 16});
    constexpr std::uint32_t nstable = 24, nmoving = 32;
    std::vector<table_call> calls;
    for (std::uint32_t i = 0; i < nstable; ++i) calls.push_back({table_op::insert, i, nth_key(i)});
    do_calls(box, calls);
    const auto before = box.buckets();
    const auto headers_before = box.headers();
    const device_buffer<std::uint32_t> lost(1), strange(1);
    simt::launch({.grid = on_cuda ? 64u : 3u,
                  .block = 64,
                  .schedule = {.seed = seed, .order = simt::block_order::random, .switch_percent = 50}},
                 churn{box.resident(), nstable, nmoving, on_cuda ? 2000u : 40u, lost.get(), strange.get()});
    EXPECT_EQ(lost.read_one(), 0u) << "GPUFS_TEST_SEED=" << seed;
    EXPECT_EQ(strange.read_one(), 0u) << "GPUFS_TEST_SEED=" << seed;
    // Entries that stayed may lie elsewhere than at first only if they were moved, and nobody moves entries.
    const auto after = box.buckets();
    EXPECT_EQ(headers_before, box.headers()) << "GPUFS_TEST_SEED=" << seed;
    for (std::size_t b = 0; b < before.size(); ++b) {
      EXPECT_TRUE(std::equal(std::begin(before[b].slots), std::end(before[b].slots), std::begin(after[b].slots)));
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
