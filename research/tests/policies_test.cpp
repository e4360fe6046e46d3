// SPDX-License-Identifier: Apache-2.0
// The papers' page tables and allocators under random groups, forced schedules and failing fills, and what they leave behind.
#include <algorithm>
#include <set>

#include "cache/cache_box.hpp"
#include "cache/stress.hpp"
#include "research/baselines/original_mount.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace baselines;
using cache::frame_index;
using cache::make_key;
using cache::page_key;

// --- The radix tree alone, against a map ---

enum class table_op : std::uint32_t { insert, erase, find };
struct table_call {
  table_op what;
  std::uint32_t frame;
  page_key key;
};
constexpr std::uint32_t none = ~0u;

struct run_table_calls {
  const cache::cache_layout* layout;
  const table_call* calls;
  std::uint32_t ncalls;
  std::uint32_t* results;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    for (std::uint32_t i = 0; i < ncalls; ++i) {
      const radix_tree<> tree(*layout);
      const table_call call = calls[i];
      std::uint32_t found = none;
      if (call.what == table_op::find) {
        tree.find(call.key, [&](frame_index f) {
          found = static_cast<std::uint32_t>(f);
          return true;
        });
      } else if (call.what == table_op::erase) {
        tree.erase(call.key, frame_index{call.frame});
      } else if (tree.lock(call.key, simt::deadline(patient_ns))) {
        tree.insert(call.key, frame_index{call.frame});
        tree.unlock(call.key);
      }
      results[i] = found;
    }
  }
};

template <class T>
std::vector<T> read(const T* device, std::size_t n) {
  std::vector<T> values(n);
  simt::this_platform().copy_from_device(values.data(), device, n * sizeof(T));
  return values;
}

// Every node and tree is back, no lock is held, and nothing is left in a node.
void expect_empty(const original_storage& storage, const std::string& repeat) {
  const radix_storage tree = storage.read().tree;
  const radix_words words = read(tree.words, 1)[0];
  EXPECT_EQ(words.lock, 0u) << repeat;
  EXPECT_EQ(words.version % 2, 0u) << repeat;
  EXPECT_EQ(words.nfree_nodes, tree.nnodes) << repeat;
  EXPECT_EQ(words.nfree_trees, tree.ntrees) << repeat;
  for (const radix_node& node : read(tree.nodes, tree.nnodes)) {
    EXPECT_EQ(node.nchildren, 0u) << repeat;
    EXPECT_TRUE(std::all_of(std::begin(node.children), std::end(node.children), [](std::uint32_t c) { return c == 0; })) << repeat;
  }
  for (const std::uint32_t chain : read(tree.chains, tree.chain_mask + 1)) EXPECT_EQ(chain, 0u) << repeat;
  const auto stack = read(tree.free_nodes, tree.nnodes);
  EXPECT_EQ(std::set<std::uint32_t>(stack.begin(), stack.end()).size(), tree.nnodes) << "a node is free twice " << repeat;
}

TEST(radix_tree, does_what_a_map_does) {
  const seed_range seeds = seeds_to_run(under_tsan ? 20 : 200);
  for (std::uint64_t seed = seeds.first; seed < seeds.end && !HasFailure(); ++seed) {
    const std::string repeat = "GPUFS_TEST_SEED=" + std::to_string(seed);
    random_source draw(seed);
    const auto nframes = static_cast<std::uint32_t>(draw.between(1, 24));
    const cache_box box({.nframes = nframes});
    const original_storage storage(simt::this_platform(), box.layout());
    // Page numbers of all sizes, some of them close to each other, of a few files.
    std::vector<page_key> keys;
    for (std::uint32_t i = 0; i < 2 * nframes; ++i) {
      const std::uint64_t page = draw.percent(50) ? draw.below(200) : draw.word() >> draw.between(28, 63);
      keys.push_back(make_key(static_cast<std::uint32_t>(draw.between(1, 4)), page));
    }
    std::map<page_key, std::uint32_t> model;
    std::vector<std::uint32_t> free;
    for (std::uint32_t f = 0; f < nframes; ++f) free.push_back(f);
    std::vector<table_call> calls;
    std::vector<std::uint32_t> expected;
    for (int i = 0; i < 300; ++i) {
      const page_key key = draw.pick(keys);
      const auto at = model.find(key);
      table_call call{table_op::find, 0, key};
      if (at == model.end() && !free.empty() && draw.percent(50)) {
        call = {table_op::insert, free.back(), key};
        free.pop_back();
        model[key] = call.frame;
      } else if (at != model.end() && draw.percent(40)) {
        call = {table_op::erase, at->second, key};
        free.push_back(at->second);
        model.erase(at);
      } else if (draw.percent(10)) {
        call = {table_op::erase, nframes, key};  // not its frame: nothing happens
      }
      calls.push_back(call);
      const auto now = model.find(key);
      expected.push_back(call.what != table_op::find || now == model.end() ? none : now->second);
    }
    for (const auto& [key, frame] : model) {
      calls.push_back({table_op::erase, frame, key});
      expected.push_back(none);
    }
    const device_buffer<table_call> memory(calls);
    const device_buffer<std::uint32_t> results(calls.size());
    simt::launch({.grid = 1, .block = 32, .schedule = {.seed = seed}},
                 run_table_calls{storage.device(), memory.get(), static_cast<std::uint32_t>(calls.size()), results.get()});
    EXPECT_EQ(results.read(), expected) << repeat;
    expect_empty(storage, repeat);
  }
}

// --- All policies, under load ---

// Acquires pages one after another in one lane: brings in what is asked, and says which frames it got.
template <class Pages>
struct touch_pages {
  const cache::cache_layout* layout;
  std::uint32_t first, end;
  std::uint32_t keep;  // how many of the first pages stay pinned
  std::int32_t* errors;
  std::uint64_t frame_ns;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const Pages pages(*layout);
    for (std::uint32_t p = first; p < end; ++p) {
      const page_key key = make_key(1, p);
      const auto got = pages.acquire(key, p, {patient_ns, frame_ns});  // from all rings in turn
      errors[p - first] = got.error;
      if (got.what == Pages::role::error) continue;
      if (got.what == Pages::role::fill) Pages(*layout).end_fill(key, got.frame, 0);  // a new one, as a fill has it
      if (p - first >= keep) pages.unpin(got.frame);
    }
  }
};

template <class Pages>
class baseline_policies : public ::testing::Test {
 public:
  struct machine {
    explicit machine(const box_shape& shape, std::uint32_t ahead = 0)
        : box(shape), storage(simt::this_platform(), box.layout(), {.tree = has_tree<Pages>, .ahead = ahead}) {}

    std::vector<std::int32_t> touch(std::uint32_t first, std::uint32_t end, std::uint32_t keep = 0,
                                    std::uint64_t frame_ns = patient_ns) {
      const device_buffer<std::int32_t> errors(end - first);
      simt::launch({.grid = 1, .block = 32}, touch_pages<Pages>{storage.device(), first, end, keep, errors.get(), frame_ns});
      return errors.read();
    }
    std::set<page_key> resident() const {
      std::set<page_key> keys;
      for (const frame_facts& f : box.meta()) {
        if ((f.state & (cache::frame_state::claimed | cache::frame_state::failed)) == 0) keys.insert(f.key);
      }
      return keys;
    }
    cache_box box;
    original_storage storage;
  };
};

using designs = ::testing::Types<original_cache, timed_original_cache, hash_and_free_list, hash_and_rings, timed_hash_and_rings>;
TYPED_TEST_SUITE(baseline_policies, designs);

TYPED_TEST(baseline_policies, pages_leave_in_the_order_they_came) {
  typename TestFixture::machine m({.nframes = 8});
  m.touch(0, 8);
  m.touch(0, 1);  // a hit changes nothing
  m.touch(100, 101);
  const auto keys = m.resident();
  EXPECT_EQ(keys.count(make_key(1, 0)), 0u) << "the page that was allocated first, hit or not";
  for (std::uint32_t p = 1; p < 8; ++p) EXPECT_EQ(keys.count(make_key(1, p)), 1u) << p;
}

TYPED_TEST(baseline_policies, pinned_pages_stay_and_others_are_found) {
  typename TestFixture::machine m({.nframes = 200, .nbuckets = 64});
  m.touch(0, 150, 150);  // more than one look goes over, all pinned
  for (const std::int32_t error : m.touch(1000, 1400)) EXPECT_EQ(error, 0);
  const auto keys = m.resident();
  for (std::uint32_t p = 0; p < 150; ++p) EXPECT_EQ(keys.count(make_key(1, p)), 1u) << p;
}

TYPED_TEST(baseline_policies, every_frame_pinned_is_enomem_in_bounded_time) {
  for (const std::uint32_t nframes : {2u, 5u, 64u}) {
    typename TestFixture::machine m({.nframes = nframes, .nbuckets = 32});
    for (const std::int32_t error : m.touch(0, nframes, nframes)) EXPECT_EQ(error, 0);
    const auto begin = std::chrono::steady_clock::now();
    for (const std::int32_t error : m.touch(1000, 1003, 0, 20'000'000)) EXPECT_EQ(error, -ENOMEM);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(m.box.pins(), nframes);
  }
}

TYPED_TEST(baseline_policies, random_groups_see_only_their_pages) {
  const seed_range seeds = seeds_to_run(under_tsan ? 15 : 300);
  for (std::uint64_t seed = seeds.first; seed < seeds.end && !this->HasFailure(); ++seed) {
    random_source draw(seed);
    const std::string repeat = "GPUFS_TEST_SEED=" + std::to_string(seed);
    const auto nframes = static_cast<std::uint32_t>(draw.between(2, 40));
    typename TestFixture::machine m({.nframes = nframes,
                                     .nbuckets = cache::buckets_for(nframes),
                                     .nrings = static_cast<std::uint32_t>(draw.between(1, std::min(nframes, 4u)))},
                                    static_cast<std::uint32_t>(draw.below(4)));
    const device_buffer<std::uint32_t> wrong(1), refused(1), failed(1), fills(1);
    const stress<TypeParam> kernel{.layout = m.storage.device(),
                                   .seed = seed,
                                   .npages = static_cast<std::uint32_t>(draw.between(1, 3 * nframes)),
                                   .rounds = on_cuda ? (under_compute_sanitizer() ? 20u : 200u) : 20u,
                                   .fail_every = static_cast<std::uint32_t>(draw.percent(50) ? draw.between(1, 10) : 0),
                                   .wrong = wrong.get(),
                                   .refused = refused.get(),
                                   .failed = failed.get(),
                                   .fills = fills.get()};
    const auto warps = static_cast<unsigned>(draw.between(1, 3));
    simt::launch({.grid = static_cast<unsigned>(on_cuda ? draw.between(1, 24) : draw.between(1, 4)),
                  .block = 32 * warps,
                  .schedule = {.seed = seed,
                               .order = static_cast<simt::block_order>(draw.below(3)),
                               .resident_blocks = static_cast<unsigned>(draw.below(3)),
                               .switch_percent = static_cast<unsigned>(draw.pick(std::vector<int>{0, 10, 50, 100}))}},
                 kernel);
    EXPECT_EQ(wrong.read_one(), 0u) << repeat;
    EXPECT_EQ(refused.read_one(), 0u) << repeat;
    EXPECT_EQ(m.box.pins(), 0u) << repeat;

    std::uint64_t allocations = 0;
    for (const cache::clock_ring& r : m.box.rings()) allocations += r.allocations;
    EXPECT_EQ(allocations, fills.read_one()) << "a frame was taken for nothing " << repeat;
    std::uint64_t nresident = 0, nfree = 0;
    for (const frame_facts& f : m.box.meta()) {
      using namespace cache::frame_state;
      EXPECT_EQ(f.state & filling, 0u) << repeat;
      EXPECT_EQ((f.state & claimed) != 0, (f.state & free) != 0) << "claimed and nobody's " << repeat;
      nfree += (f.state & free) != 0;
      nresident += (f.state & (claimed | cache::frame_state::failed)) == 0;
    }
    EXPECT_EQ(m.resident().size(), nresident) << "one page in two frames " << repeat;
    EXPECT_EQ(allocations - m.box.evictions() - failed.read_one(), nresident) << repeat;
    // Whatever happened, the cache can be filled again from end to end, with other pages.
    for (const std::int32_t error : m.touch(100'000, 100'000 + 4 * nframes)) EXPECT_EQ(error, 0) << repeat;
    for (const page_key key : m.resident()) {
      EXPECT_GE(static_cast<std::uint64_t>(key) & 0xfffffffff, 100'000u) << "a frame was lost to an old page " << repeat;
    }
    if (has_tree<TypeParam>) {
      std::vector<table_call> calls;
      const auto meta = m.box.meta();
      for (std::uint32_t f = 0; f < meta.size(); ++f) {
        if ((meta[f].state & (cache::frame_state::claimed | cache::frame_state::failed)) == 0) {
          calls.push_back({table_op::erase, f, meta[f].key});
        }
      }
      const device_buffer<table_call> memory(calls);
      const device_buffer<std::uint32_t> results(calls.size());
      simt::launch({.grid = 1, .block = 32},
                   run_table_calls{m.storage.device(), memory.get(), static_cast<std::uint32_t>(calls.size()), results.get()});
      expect_empty(m.storage, repeat);
    }
  }
}

TYPED_TEST(baseline_policies, lists_stay_whole) {
  typename TestFixture::machine m({.nframes = 40, .nbuckets = 16, .nrings = 3}, 2);
  m.touch(0, 1000);
  const original_layout all = m.storage.read();
  const list_words list = read(all.list.words, 1)[0];
  EXPECT_EQ(list.lock, 0u);
  if (list.newest != 0) {  // the design with the free list: every frame is on exactly one of the two
    std::set<std::uint32_t> frames;
    const auto free = read(all.list.free, 40);
    const auto order = read(all.list.order, 40);
    for (std::uint32_t i = 0; i < list.nfree; ++i) frames.insert(free[i]);
    for (std::uint64_t i = list.oldest; i < list.newest; ++i) frames.insert(order[i % 40]);
    EXPECT_EQ(frames.size(), 40u);
    EXPECT_EQ(list.nfree + (list.newest - list.oldest), 40u);
  }
  const auto order = read(all.fifo.order, 40);
  EXPECT_EQ(std::set<std::uint32_t>(order.begin(), order.end()).size(), 40u);
  for (const fifo_ring& r : read(all.fifo.rings, 3)) EXPECT_EQ(r.lock, 0u);
}

TEST(baseline_times, are_counted) {
  const cache_box box({.nframes = 8});
  original_storage storage(simt::this_platform(), box.layout(), {.counted_first = 2, .counted_end = 5});
  const device_buffer<std::int32_t> errors(6);
  const touch_pages<timed_original_cache> kernel{storage.device(), 0, 6, 0, errors.get(), patient_ns};
  using timed_touch = timed_kernel<touch_pages<timed_original_cache>, simt::block>;
  simt::launch({.grid = 1, .block = 32}, timed_touch{kernel, storage.device()});
  simt::launch({.grid = 1, .block = 32}, timed_touch{kernel, storage.device()});
  const time_shard sum = storage.times();
  EXPECT_EQ(sum.accesses, 12u);
  EXPECT_EQ(sum.misses, 6u);
  EXPECT_EQ(sum.counted_accesses, 6u);
  EXPECT_EQ(sum.counted_misses, 3u);
  EXPECT_GT(sum.total_ns, 0u);
  EXPECT_LE(sum.access_ns + sum.wait_ns + sum.fill_ns, sum.total_ns);
  EXPECT_LE(sum.lock_ns + sum.allocate_ns, sum.access_ns);
  storage.reset_times();
  EXPECT_EQ(storage.times().accesses, 0u);
}

struct acquire_one {
  const cache::cache_layout* layout;
  std::int32_t* error;
  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    *error = original_cache(*layout).acquire(make_key(1, 1), 0, {20'000'000, 20'000'000}).error;
  }
};

// A lock that nobody gives back ends a call in bounded time.
TEST(baseline_locks, that_are_never_given_back_end_in_an_error) {
  const cache_box box({.nframes = 4});
  const original_storage storage(simt::this_platform(), box.layout());
  const std::uint32_t held = 1;
  simt::this_platform().copy_to_device(&storage.read().tree.words->lock, &held, sizeof held);
  const device_buffer<std::int32_t> error(1);
  simt::launch({.grid = 1, .block = 32}, acquire_one{storage.device(), error.get()});
  EXPECT_EQ(error.read_one(), -ETIMEDOUT);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
