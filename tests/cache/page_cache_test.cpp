// SPDX-License-Identifier: Apache-2.0
// Frames, clock rings and the page cache over them, without files: who stays, who goes, who waits.
#include <algorithm>

#include "cache/cache_box.hpp"
#include "cache/stress.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using cache::frame_index;
using cache::make_key;
using cache::page_cache;
using cache::page_key;
using role = page_cache<>::role;

enum class cache_op : std::uint32_t {
  acquire,       // a miss is filled; the pin is kept
  acquire_fail,  // a miss is filled with -EIO
  touch,         // acquire, fill on a miss, unpin
  unpin,         // the frame that call `argument` got
};

struct cache_call {
  cache_op what;
  std::uint32_t argument;  // the page; of unpin: the number of the call
  std::uint64_t frame_ns = patient_ns;
};

struct cache_answer {
  std::uint32_t frame;
  role what;
  std::int32_t error;
};

// The clock alone: nobody gets a frame of their choice.
class clock_only : private cache::clock_rings {
 public:
  using clock_rings::allocate;
  using clock_rings::attempts_for_all;
  using clock_rings::clock_rings;
  using clock_rings::count_eviction;
  using clock_rings::result;
};
using by_clock = page_cache<cache::hash_table, clock_only>;

// One lane does one call after another.
template <class Pages>
struct run_cache_calls {
  const cache::cache_layout* layout;
  const cache_call* calls;
  std::uint32_t ncalls;
  cache_answer* answers;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const Pages pages(*layout);
    for (std::uint32_t i = 0; i < ncalls; ++i) answers[i] = call(pages, calls[i]);
  }

  GPUFS_DEVICE cache_answer call(const Pages& pages, const cache_call& c) const {
    if (c.what == cache_op::unpin) {
      const std::uint32_t frame = answers[c.argument].frame;
      return {frame, role::hit, pages.unpin_checked(frame_index{frame}) ? 0 : -EINVAL};
    }
    const page_key key = make_key(1, c.argument);
    const auto got = pages.acquire(key, 0, {patient_ns, c.frame_ns});
    if (got.what == Pages::role::fill) pages.end_fill(key, got.frame, c.what == cache_op::acquire_fail ? -EIO : 0);
    if (c.what == cache_op::touch && got.what != Pages::role::error) pages.unpin(got.frame);
    return {static_cast<std::uint32_t>(got.frame), static_cast<role>(got.what), got.error};
  }
};

template <class Pages = page_cache<>>
std::vector<cache_answer> do_calls(const cache_box& box, const std::vector<cache_call>& calls) {
  const device_buffer<cache_call> memory(calls);
  const device_buffer<cache_answer> answers(calls.size());
  simt::launch({.grid = 1, .block = 32},
               run_cache_calls<Pages>{box.resident(), memory.get(), static_cast<std::uint32_t>(calls.size()), answers.get()});
  return answers.read();
}

std::vector<cache_call> touches(std::uint32_t first, std::uint32_t end) {
  std::vector<cache_call> calls;
  for (std::uint32_t p = first; p < end; ++p) calls.push_back({cache_op::touch, p});
  return calls;
}

bool resident(const cache_box& box, std::uint32_t page) {
  for (const auto& [frame, count] : box.entries()) {
    if (box.meta()[frame].key == make_key(1, page)) return true;
  }
  return false;
}

TEST(page_cache, miss_fills_then_hits) {
  const cache_box box({.nframes = 8});
  const auto got = do_calls(box, {{cache_op::acquire, 5}, {cache_op::acquire, 5}, {cache_op::unpin, 0}, {cache_op::unpin, 1}});
  EXPECT_EQ(got[0].what, role::fill);
  EXPECT_EQ(got[1].what, role::hit);
  EXPECT_EQ(got[0].frame, got[1].frame);
  EXPECT_EQ(box.pins(), 0u);
  EXPECT_EQ(box.free_frames(), 7u);
}

TEST(page_cache, unpinning_twice_is_refused_and_changes_nothing) {
  const cache_box box({.nframes = 4});
  const auto got = do_calls(box, {{cache_op::acquire, 5}, {cache_op::unpin, 0}, {cache_op::unpin, 0}, {cache_op::unpin, 0}});
  EXPECT_EQ(got[1].error, 0);
  EXPECT_EQ(got[2].error, -EINVAL);
  EXPECT_EQ(got[3].error, -EINVAL);
  EXPECT_EQ(box.pins(), 0u);
  EXPECT_EQ(do_calls(box, {{cache_op::touch, 5}})[0].what, role::hit);
}

TEST(page_cache, page_that_was_hit_gets_a_second_chance) {
  for (const std::uint32_t ahead : {0u, 1u}) {
    const cache_box box({.nframes = 8, .ahead = ahead});
    do_calls<by_clock>(box, touches(0, 8 - ahead));
    do_calls<by_clock>(box, {{cache_op::touch, 3}});  // the only one that is hit
    do_calls<by_clock>(box, touches(100, 106));       // most of a round of misses
    EXPECT_TRUE(resident(box, 3)) << "evicted in the hand's first pass, ahead " << ahead;
    do_calls<by_clock>(box, touches(200, 216));  // two more rounds without a hit
    EXPECT_FALSE(resident(box, 3)) << "ahead " << ahead;
  }
}

TEST(page_cache, page_that_is_hit_every_round_stays) {
  const cache_box box({.nframes = 8});
  do_calls(box, touches(0, 8));
  do_calls(box, {{cache_op::touch, 3}});
  for (std::uint32_t round = 0; round < 50; ++round) {
    auto calls = touches(1000 + 5 * round, 1000 + 5 * round + 5);
    calls.push_back({cache_op::touch, 3});
    EXPECT_EQ(do_calls(box, calls).back().what, role::hit) << "round " << round;
  }
}

TEST(page_cache, pinned_pages_are_never_evicted) {
  const cache_box box({.nframes = 8, .nrings = 2, .ahead = 1});
  std::vector<cache_call> calls = {{cache_op::acquire, 0}, {cache_op::acquire, 1}, {cache_op::acquire, 2}};
  const auto pinned = do_calls(box, calls);
  const auto misses = do_calls(box, touches(10, 200));
  for (const cache_answer& a : misses) EXPECT_EQ(a.what, role::fill);
  const auto again = do_calls(box, calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(again[i].what, role::hit);
    EXPECT_EQ(again[i].frame, pinned[i].frame);
  }
}

TEST(page_cache, eviction_runs_ahead_of_allocation) {
  const cache_box box({.nframes = 64, .nbuckets = 32, .ahead = 8});
  do_calls<by_clock>(box, touches(0, 56));
  EXPECT_EQ(box.evictions(), 0u) << "free frames are used before pages are evicted";
  for (std::uint32_t round = 0; round < 10; ++round) {
    do_calls<by_clock>(box, touches(1000 + 7 * round, 1000 + 7 * round + 7));
    EXPECT_GE(box.free_frames(), 7u) << "a ring keeps free frames before its hand, round " << round;
    EXPECT_LE(box.free_frames(), 9u) << "and not more, round " << round;
  }
}

// What frames::preferred says of keys.
struct choose_frames {
  cache::frame_storage frames;
  const page_key* keys;
  std::uint32_t nkeys;
  std::uint32_t* chosen;

  GPUFS_DEVICE void operator()() const {
    for (std::uint32_t i = simt::thread_rank(); i < nkeys; i += simt::block_size()) {
      chosen[i] = static_cast<std::uint32_t>(cache::frames(frames).preferred(keys[i]));
    }
  }
};
std::vector<std::uint32_t> choices(std::uint32_t nframes, const std::vector<page_key>& keys) {
  const device_buffer<page_key> memory(keys);
  const device_buffer<std::uint32_t> chosen(keys.size());
  cache::frame_storage frames{};
  frames.nframes = nframes;
  frames.reciprocal = cache::reciprocal_of(nframes);
  simt::launch({.grid = 1, .block = 32},
               choose_frames{frames, memory.get(), static_cast<std::uint32_t>(keys.size()), chosen.get()});
  return chosen.read();
}

TEST(page_cache, pages_side_by_side_choose_frames_side_by_side) {
  constexpr std::uint32_t ids[] = {0, 1, 2, 77, cache::max_cache_id, cache::id_in_form(9, 5)};
  constexpr std::uint32_t run = 200;
  for (const std::uint32_t n : {1u, 2u, 3u, 7u, 8u, 64u, 1000u, 65'536u, 262'143u, 4'194'304u, 33'554'393u, (1u << 30) + 1, ~0u}) {
    std::vector<page_key> keys;
    for (const std::uint32_t id : ids) {
      for (const std::uint32_t first : {0u, 0u - run}) {
        for (std::uint32_t i = 0; i < run; ++i) keys.push_back(make_key(id, first + i));
      }
    }
    const std::vector<std::uint32_t> got = choices(n, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_LT(got[i], n) << "page " << cache::page_number_of(keys[i]);
      if (i % run == 0) continue;
      const std::uint32_t next = got[i - 1] + 1;
      ASSERT_EQ(got[i], next == n ? 0 : next) << n << " frames, page " << cache::page_number_of(keys[i]);
    }
  }
}

TEST(page_cache, first_pages_of_files_meet_less_often_than_pages_in_frames_that_are_drawn) {
  for (const std::uint32_t n : {64u, 1000u, 65'536u, 100'000u, 262'143u}) {
    const std::uint32_t nfiles = n / 4;
    std::vector<page_key> keys;
    for (std::uint32_t id = 1; id <= nfiles; ++id) keys.push_back(make_key(id, 0));
    std::vector<std::uint32_t> got = choices(n, keys);
    std::sort(got.begin(), got.end());
    got.erase(std::unique(got.begin(), got.end()), got.end());
    EXPECT_GT(static_cast<double>(got.size()), 0.885 * nfiles) << n << " frames; drawn, it is 4 (1 - exp(-1/4)) of them";
  }
}

TEST(page_cache, forms_of_a_page_choose_frames_of_their_own) {
  for (const std::uint32_t n : {16u, 64u, 65'536u, 262'144u, 1u << 25, 100'000u}) {
    for (const std::uint32_t id : {1u, 2u, 1000u, cache::max_cache_id}) {
      std::vector<page_key> keys;
      for (std::uint32_t form = cache::file_form; form <= cache::private_form; ++form) {
        keys.push_back(make_key(cache::id_in_form(id, form), 7));
      }
      std::vector<std::uint32_t> got = choices(n, keys);
      std::sort(got.begin(), got.end());
      EXPECT_EQ(std::unique(got.begin(), got.end()), got.end()) << n << " frames, cache id " << id;
    }
  }
}

TEST(page_cache, page_gets_the_frame_of_its_choice_unless_another_uses_it) {
  constexpr std::uint32_t n = 8;
  const cache_box box({.nframes = n, .nbuckets = 8});
  const auto choice = [](std::uint32_t page) { return choices(n, {make_key(1, page)})[0]; };
  const auto touch = [&](std::uint32_t page) { return do_calls(box, {{cache_op::touch, page}})[0]; };
  EXPECT_EQ(touch(3).frame, choice(3)) << "free";
  EXPECT_NE(touch(3 + n).frame, choice(3)) << "other frames are free, so that page 3 may stay";
  EXPECT_EQ(touch(3).what, role::hit);
  EXPECT_EQ(box.evictions(), 0u);
  do_calls(box, touches(0, n));  // all frames are in use now, by pages that were not hit but 3
  const std::uint64_t before = box.evictions();
  const auto taken = touch(5 + 2 * n);
  EXPECT_EQ(taken.frame, choice(5)) << "its page was not hit since it came";
  EXPECT_FALSE(resident(box, 5));
  EXPECT_EQ(box.evictions(), before + 1);
  EXPECT_EQ(touch(5 + 2 * n).what, role::hit);
  EXPECT_NE(touch(5 + 3 * n).frame, choice(5)) << "its page was hit";
  EXPECT_EQ(touch(5 + 2 * n).what, role::hit) << "and has stayed";
  // Pinned, and not hit besides.
  const auto pinned = do_calls(box, {{cache_op::acquire, 6 + 4 * n}})[0];
  EXPECT_EQ(pinned.frame, choice(6));
  EXPECT_NE(touch(6 + 5 * n).frame, choice(6));
  EXPECT_EQ(do_calls(box, {{cache_op::acquire_fail, 7 + 6 * n}})[0].what, role::fill);
  const auto after = touch(7);
  EXPECT_EQ(after.what, role::fill) << "a frame whose fill failed is taken, too";
  EXPECT_EQ(after.frame, choice(7));
  for (const auto& [frame, count] : box.entries()) EXPECT_EQ(count, 1) << "the table names frame " << frame << " for one page";
  std::uint32_t used = 0;
  for (const cache::clock_ring& r : box.rings()) used += r.used;
  EXPECT_EQ(used, n - box.free_frames());
}

TEST(page_cache, every_frame_pinned_is_enomem_in_bounded_time_and_passes) {
  for (const std::uint32_t nrings : {1u, 3u}) {
    const cache_box box({.nframes = 6, .nrings = nrings});
    std::vector<cache_call> calls;
    for (std::uint32_t p = 0; p < 6; ++p) calls.push_back({cache_op::acquire, p});
    for (std::uint32_t p = 6; p < 9; ++p) calls.push_back({cache_op::acquire, p, 30'000'000});
    for (std::uint32_t p = 0; p < 6; ++p) calls.push_back({cache_op::acquire, p, 0});  // what is there is still found
    calls.push_back({cache_op::unpin, 2});
    calls.push_back({cache_op::unpin, 2});
    calls.push_back({cache_op::acquire, 7});
    const auto begin = std::chrono::steady_clock::now();
    const auto got = do_calls(box, calls);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(got[i].what, role::fill);
    for (std::size_t i = 6; i < 9; ++i) EXPECT_EQ(got[i].error, -ENOMEM);
    for (std::size_t i = 9; i < 15; ++i) EXPECT_EQ(got[i].what, role::hit);
    EXPECT_EQ(got[17].what, role::fill);
    EXPECT_EQ(got[17].frame, got[2].frame) << "the only frame that was given back";
  }
}

TEST(page_cache, failed_fill_leaves_no_trace) {
  const cache_box box({.nframes = 4});
  const auto got =
      do_calls(box, {{cache_op::acquire_fail, 5}, {cache_op::acquire_fail, 5}, {cache_op::touch, 5}, {cache_op::touch, 5}});
  EXPECT_EQ(got[0].what, role::fill);
  EXPECT_EQ(got[1].what, role::fill) << "the failure is not remembered";
  EXPECT_EQ(got[2].what, role::fill);
  EXPECT_EQ(got[3].what, role::hit);
  EXPECT_EQ(box.pins(), 0u);
  EXPECT_EQ(box.entries().size(), 1u);
  // Frames of failed fills come back.
  const auto later = do_calls(box, touches(10, 30));
  for (const cache_answer& a : later) EXPECT_EQ(a.what, role::fill);
}

// One lane fills a page that it has pinned a second time meanwhile, and looks by that pin whether the page is there.
struct look_by_a_pin {
  const cache::cache_layout* layout;
  std::uint32_t* filled;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const page_cache<> pages(*layout);
    for (std::uint32_t page = 0; page < 2; ++page) {
      const page_key key = make_key(1, page);
      const auto got = pages.acquire(key, 0, {patient_ns, patient_ns});
      frame_index seen{};
      if (got.what != role::fill || !pages.pin_cached(key, seen)) return;
      filled[2 * page] = pages.pages().is_filled(seen);
      pages.end_fill(key, got.frame, page == 0 ? 0 : -EIO);
      filled[2 * page + 1] = pages.pages().is_filled(seen);
      pages.unpin(seen);
      if (page == 0) pages.unpin(got.frame);
    }
  }
};

TEST(page_cache, who_has_pinned_a_page_before_its_fill_fails_sees_that_it_is_not_there) {
  const cache_box box({.nframes = 4});
  const device_buffer<std::uint32_t> filled(std::vector<std::uint32_t>(4, 7));
  simt::launch({.grid = 1, .block = 32}, look_by_a_pin{box.resident(), filled.get()});
  EXPECT_EQ(filled.read(), (std::vector<std::uint32_t>{0, 1, 0, 0}));
  EXPECT_EQ(box.pins(), 0u);
}

// Fills one frame that is about to run out of stamps.
struct fill_at_last_stamp {
  const cache::cache_layout* layout;
  std::uint64_t* states;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const cache::frames pages(*layout);
    const frame_index f{0};
    auto word = pages.state(f);
    word.store(cache::frame_state::claimed | (cache::frame_state::stamp_mask - cache::frame_state::one_stamp) |
                   2 * cache::frame_state::one_pin,
               std::memory_order_relaxed);  // two look-ups that are about to take their pins back
    for (int i = 0; i < 2; ++i) {
      pages.begin_fill(f, make_key(1, 5), word.load(std::memory_order_relaxed));
      pages.end_fill(f, 0);
      states[i] = word.load(std::memory_order_relaxed);
      pages.unpin(f);
      word.fetch_or(cache::frame_state::claimed, std::memory_order_relaxed);
    }
  }
};

TEST(page_cache, stamps_come_round_without_touching_the_pins) {
  const cache_box box({.nframes = 1});
  const device_buffer<std::uint64_t> states(2);
  simt::launch({.grid = 1, .block = 32}, fill_at_last_stamp{box.resident(), states.get()});
  const auto got = states.read();
  EXPECT_EQ(got[0], cache::frame_state::stamp_mask | 3 * cache::frame_state::one_pin);
  EXPECT_EQ(got[1], 3 * cache::frame_state::one_pin);
}

// Looks at a frame without a pin in each state of its life, and asks in each later one whether the page seen first has stayed.
struct look_without_a_pin {
  const cache::cache_layout* layout;
  std::uint32_t* has;     // in each state: bit 0: page 5, bit 1: page 6
  std::uint32_t* stayed;  // in each state: page 5, as seen when it was there

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const cache::frames pages(*layout);
    const frame_index f{0};
    auto word = pages.state(f);
    const cache::page_key five = make_key(1, 5), six = make_key(1, 6);
    cache::frames::unpinned seen{};
    unsigned n = 0;
    const auto look = [&] {
      const auto now = pages.look(f);
      has[n] = std::uint32_t{cache::frames::has(now, five)} | std::uint32_t{cache::frames::has(now, six)} << 1;
      stayed[n++] = cache::frames::has_stayed(seen, word.load(std::memory_order_relaxed));
    };
    std::uint64_t before = 0;
    (void)pages.take_free(f, before);
    pages.begin_fill(f, five, word.load(std::memory_order_relaxed));
    look();  // 0: being filled
    pages.end_fill(f, 0);
    seen = pages.look(f);
    look();  // 1: there, with the filler's pin
    pages.unpin(f);
    look();  // 2: there
    (void)pages.pin(f, five);
    look();  // 3: used
    pages.unpin(f);
    (void)pages.claim(f, word.load(std::memory_order_relaxed));
    look();  // 4: evicted
    pages.begin_fill(f, six, word.load(std::memory_order_relaxed));
    look();  // 5: being filled with another
    pages.end_fill(f, 0);
    look();  // 6: another
    pages.unpin(f);
    (void)pages.claim(f, word.load(std::memory_order_relaxed));
    pages.begin_fill(f, five, word.load(std::memory_order_relaxed));
    pages.end_fill(f, 0);
    look();  // 7: there again
    pages.unpin(f);
    (void)pages.claim(f, word.load(std::memory_order_relaxed));
    pages.begin_fill(f, five, word.load(std::memory_order_relaxed));
    pages.end_fill(f, -EIO);
    look();  // 8: not to be had
    pages.unpin(f);
  }
};

TEST(page_cache, who_holds_no_pin_sees_whether_the_page_has_stayed) {
  const cache_box box({.nframes = 1});
  const device_buffer<std::uint32_t> has(9), stayed(9);
  simt::launch({.grid = 1, .block = 32}, look_without_a_pin{box.resident(), has.get(), stayed.get()});
  EXPECT_EQ(has.read(), (std::vector<std::uint32_t>{0, 1, 1, 1, 0, 0, 2, 1, 0}));
  EXPECT_EQ(stayed.read(), (std::vector<std::uint32_t>{0, 1, 1, 1, 0, 0, 0, 0, 0}));
}

// Lane 0 gives back pins that it does not have, of an idle page that stays, while the other warp takes frames around it.
struct unpin_too_often {
  const cache::cache_layout* layout;
  std::uint32_t frame;
  std::uint32_t* accepted;

  GPUFS_DEVICE void operator()() const {
    if (simt::lane_id() != 0) return;
    const page_cache<> pages(*layout);
    if (simt::warp_rank() == 0) {
      for (int i = 0; i < 2000; ++i) {
        if (pages.unpin_checked(frame_index{frame}))
          simt::atomic_ref<std::uint32_t>(*accepted).fetch_add(1, std::memory_order_relaxed);
      }
      return;
    }
    for (std::uint32_t p = 1000; p < 1000 + pages.pages().count() - 10; ++p) {
      const page_key key = make_key(1, p);
      const auto got = pages.acquire(key, 0, {patient_ns, patient_ns});
      if (got.what == role::fill) pages.end_fill(key, got.frame, 0);
      if (got.what != role::error) pages.unpin(got.frame);
    }
  }
};

TEST(page_cache, unpinning_too_often_does_not_disturb_those_who_look_for_frames) {
  const seed_range seeds = seeds_to_run(under_tsan ? 10 : 100);
  for (std::uint64_t seed = seeds.first; seed < seeds.end && !HasFailure(); ++seed) {
    const cache_box box({.nframes = 64, .nbuckets = 32});
    do_calls(box, touches(0, 64));
    const std::uint32_t frame = do_calls(box, {{cache_op::touch, 30}})[0].frame;  // a hit: it survives the hand's one pass
    const device_buffer<std::uint32_t> accepted(1);
    simt::launch({.grid = 1, .block = 64, .schedule = {.seed = seed, .switch_percent = 50}},
                 unpin_too_often{box.resident(), frame, accepted.get()});
    EXPECT_EQ(accepted.read_one(), 0u) << "GPUFS_TEST_SEED=" << seed;
    EXPECT_EQ(box.pins(), 0u) << "GPUFS_TEST_SEED=" << seed;
    EXPECT_TRUE(resident(box, 30)) << "GPUFS_TEST_SEED=" << seed;
    EXPECT_EQ(box.meta()[frame].key, make_key(1, 30)) << "GPUFS_TEST_SEED=" << seed;
  }
}

void check_after_stress(const cache_box& box, const std::string& repeat) {
  EXPECT_EQ(box.pins(), 0u) << repeat;
  const auto meta = box.meta();
  const auto entries = box.entries();
  for (std::uint32_t f = 0; f < meta.size(); ++f) {
    const bool in_table = entries.count(f) != 0;
    const bool is_free = (meta[f].state & cache::frame_state::free) != 0;
    const bool has_failed = (meta[f].state & cache::frame_state::failed) != 0;
    EXPECT_EQ(in_table, !is_free && !has_failed) << "frame " << f << " state " << std::hex << meta[f].state << ' ' << repeat;
    EXPECT_EQ(in_table ? entries.at(f) : 1, 1) << repeat;
    EXPECT_EQ(meta[f].state & cache::frame_state::filling, 0u) << repeat;
    EXPECT_EQ((meta[f].state & cache::frame_state::claimed) != 0, is_free) << "claimed and nobody's, frame " << f << ' ' << repeat;
  }
  std::vector<page_key> keys;
  for (const auto& [f, count] : entries) keys.push_back(meta[f].key);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end()) << "one page in two frames " << repeat;
  for (const std::uint32_t header : box.headers()) EXPECT_EQ(header >> 31, 0u) << "a lock is still held " << repeat;
}

TEST(page_cache, random_groups_see_only_their_pages) {
  const seed_range seeds = seeds_to_run(under_tsan ? 20 : 500);
  for (std::uint64_t seed = seeds.first; seed < seeds.end && !HasFailure(); ++seed) {
    random_source draw(seed);
    const std::string repeat = "GPUFS_TEST_SEED=" + std::to_string(seed);
    const auto nframes = static_cast<std::uint32_t>(draw.between(2, 40));
    const box_shape shape{.nframes = nframes,
                          .nbuckets = cache::buckets_for(nframes),
                          .nrings = static_cast<std::uint32_t>(draw.between(1, std::min(nframes, 4u))),
                          .ahead = static_cast<std::uint32_t>(draw.below(3))};
    const cache_box box(shape);
    const device_buffer<std::uint32_t> wrong(1), refused(1), failed(1), fills(1);
    const stress<page_cache<>> kernel{.layout = box.resident(),
                                      .seed = seed,
                                      .npages = static_cast<std::uint32_t>(draw.between(1, 3 * nframes)),
                                      .rounds = on_cuda ? (under_compute_sanitizer() ? 50u : 500u) : 20u,
                                      .fail_every = static_cast<std::uint32_t>(draw.percent(50) ? draw.between(1, 10) : 0),
                                      .wrong = wrong.get(),
                                      .refused = refused.get(),
                                      .failed = failed.get(),
                                      .fills = fills.get()};
    const unsigned warps = static_cast<unsigned>(draw.between(1, 3));
    simt::launch({.grid = static_cast<unsigned>(on_cuda ? draw.between(1, 200) : draw.between(1, 4)),
                  .block = 32 * warps,
                  .schedule = {.seed = seed,
                               .order = static_cast<simt::block_order>(draw.below(3)),
                               .resident_blocks = static_cast<unsigned>(draw.below(3)),
                               .switch_percent = static_cast<unsigned>(draw.pick(std::vector<int>{0, 10, 50, 100}))}},
                 kernel);
    EXPECT_EQ(wrong.read_one(), 0u) << repeat;
    EXPECT_EQ(refused.read_one(), 0u) << repeat;
    std::uint64_t allocations = 0;
    for (const cache::clock_ring& r : box.rings()) allocations += r.allocations;
    EXPECT_EQ(allocations, fills.read_one()) << "a frame was taken for nothing " << repeat;
    EXPECT_EQ(allocations - box.evictions() - failed.read_one(), box.entries().size()) << repeat;
    check_after_stress(box, repeat);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
