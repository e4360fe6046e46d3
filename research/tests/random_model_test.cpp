// SPDX-License-Identifier: Apache-2.0
// The random programs of tests/file on mounts with the papers' designs: the same results and bytes, on caches of 2 to 64 frames,
// with every store.
#include "file/random_trial.hpp"
#include "file/script_players.hpp"
#include "research/baselines/original_mount.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace baselines;

template <class Cache>
class baselines_random_model : public ::testing::Test {};

using designs = ::testing::Types<original_cache, timed_original_cache, hash_and_free_list, hash_and_rings, timed_hash_and_rings>;
TYPED_TEST_SUITE(baselines_random_model, designs);

TYPED_TEST(baselines_random_model, programs_do_what_the_model_says) {
  const seed_range seeds = seeds_to_run(under_tsan ? 10 : 80);
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    trial t(seed);
    t.knows_ahead = false;
    if (seed % 3 == 0) {  // the host side as it was; programs on other stores than posix have it, too
      const store_kind store = t.options.store;
      t.options = original_host_side(t.options);
      t.options.store = store;
    }
    try {
      run_trial<original_mount<TypeParam>>(t);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    ASSERT_FALSE(this->HasFailure()) << "repeat with " << t.describe();
  }
}

TEST(original_host_side, takes_one_request_at_a_time) {
  const file_set& files = files_for(4096);
  for (const std::uint32_t batch : {1u, 64u}) {
    mount_options options{.cache_nbytes = 64 * 4096};
    options = original_host_side(options);
    options.internals.request_batch = batch;
    const original_mount<original_cache> m(files.dir.path(), options);
    script calls;
    calls.open(0, files.names.back());
    for (int i = 0; i < 20; ++i) calls.pread(0, 4096, 4096 * i);
    calls.close(0);
    basic_players(m.ref(), {.grid = 4, .block = 128}).run_all(calls);
    const mount_counters c = m.counters();
    const std::uint64_t requests = c.host_reads + c.host_opens + c.host_closes;
    EXPECT_GT(c.host_reads, 0u);
    EXPECT_LE(c.host_batches, requests);
    EXPECT_TRUE(batch != 1 || c.host_batches == requests) << c.host_batches << " batches, " << requests << " requests";
  }
  for (const std::uint32_t batch : {0u, 65u}) {
    EXPECT_THROW(mount(files.dir.path(), {.cache_nbytes = 64 * 4096, .internals = {.request_batch = batch}}), error);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
