// SPDX-License-Identifier: Apache-2.0
// Many groups at once: one page that all want, stores that stall, caches smaller than what runs, several kernels on one mount, and
// a host that watches.
#include "file/faulty_store.hpp"
#include "file/reader.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t page = 4096;
constexpr std::uint64_t seed = 11;

std::shared_ptr<faulty_store> make_faulty(const temp_dir& dir) {
  return std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
}

mount_options small(std::uint32_t nframes) {
  mount_options o;
  o.cache_nbytes = std::uint64_t{nframes} * page;
  o.max_open_files = 64;
  o.nworkers = 3;
  o.internals.request_rings = 4;
  o.frame_timeout = std::chrono::seconds(60);
  return o;
}

// The pins of all frames, while a kernel runs, too.
std::uint64_t count_pins(const mount& m) {
  const cache::frame_storage frames = mount_inside(m).layout().cache.frames;
  std::vector<std::uint64_t> states(frames.nframes);
  simt::this_platform().copy_from_device(states.data(), frames.states, states.size() * sizeof(std::uint64_t));
  std::uint64_t n = 0;
  for (const std::uint64_t state : states) n += (state & cache::frame_state::pin_mask) / cache::frame_state::one_pin;
  return n;
}

// The store holds its answers until all groups have come: first to the file, so that they go for the page together, then to the
// page.
TEST(concurrency, one_hot_page_is_filled_once) {
  temp_dir dir;
  dir.add("hot", page, seed);
  for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
    const auto store = make_faulty(dir);
    store->wrong().open_gate.close();
    store->wrong().read_gate.close();
    mount_options options = small(16);
    options.custom_store = store;
    const mount m(dir.path(), options);
    const unsigned grid = on_cuda ? 128 : 4;
    reading_run run({.path = "hot",
                     .file_nbytes = page,
                     .seed = seed,
                     .calls = 5,
                     .max_nbytes = 64,
                     .kind = kind,
                     .config = {.grid = grid, .block = 64, .schedule = {.resident_blocks = 4}}});
    std::thread kernel([&] { run(m.ref()); });
    EXPECT_TRUE(wait_until([&] { return m.counters().opens == run.ngroups(); }));
    store->wrong().open_gate.open();
    // Each has a pin, to fill the page or to wait for it.
    EXPECT_TRUE(wait_until([&] { return count_pins(m) == run.ngroups(); }));
    store->wrong().read_gate.open();
    kernel.join();
    run.expect_good();
    const mount_counters c = m.counters();
    EXPECT_EQ(c.faults, 1u);
    EXPECT_EQ(c.waits, run.ngroups() - 1);
    EXPECT_EQ(c.hits, 4u * run.ngroups());
    EXPECT_EQ(c.host_reads, 1u);
    EXPECT_EQ(c.host_opens, 1u) << "one file, opened by all";
    EXPECT_EQ(store->wrong().reads, 1u);
  }
}

TEST(concurrency, every_page_is_filled_once_while_all_fit) {
  temp_dir dir;
  dir.add("file", 20 * page, seed);
  let_file_times_pass();  // else a file that was just written counts as another version each time it is opened
  const auto store = make_faulty(dir);
  mount_options options = small(64);
  options.custom_store = store;
  const mount m(dir.path(), options);
  for (std::uint64_t round = 1; round <= 5; ++round) {
    reading_run run({.path = "file",
                     .file_nbytes = 20 * page,
                     .seed = seed,
                     .calls = 20,
                     .max_nbytes = 2 * page,
                     .config = {.grid = on_cuda ? 64u : 4u, .block = 64, .schedule = {.seed = round}}});
    run(m.ref(), round);
    run.expect_good();
  }
  EXPECT_LE(m.counters().faults, 20u);
  EXPECT_EQ(m.counters().evictions, 0u);
  EXPECT_EQ(store->wrong().reads, m.counters().faults);
}

// Nobody who reads other files; and its own file's readers until it comes back, once it hangs (docs/design/architecture.md, "A
// store that hangs").
TEST(concurrency, page_whose_read_stalls_holds_up_nobody_else) {
  temp_dir dir;
  dir.add("stalls", 40 * page, seed);
  dir.add("other", 40 * page, seed);
  for (const char* path : {"stalls", "other"}) {  // others read further pages of the same file, or another file
    const auto store = make_faulty(dir);
    store->wrong().stall_at(0, page);
    store->wrong().stall_gate.close();
    mount_options options = small(64);
    options.custom_store = store;
    const mount m(dir.path(), options);
    reading_run slow({.path = "stalls",
                      .file_nbytes = 40 * page,
                      .seed = seed,
                      .end = 1,
                      .calls = 1,
                      .max_nbytes = 100,
                      .config = {.grid = 1, .block = 32, .schedule = {.nthreads = 1}}});
    reading_run others({.path = path, .file_nbytes = 40 * page, .seed = seed, .first = page, .calls = 30, .max_nbytes = 3000});
    std::thread slow_kernel([&] { slow(m.ref()); });
    EXPECT_TRUE(wait_until([&] { return store->wrong().stall_gate.waiting() == 1; }));
    const bool same = std::string(path) == "stalls";
    std::thread ends_the_stall([&] {
      if (!same) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      store->wrong().stall_gate.open();
    });
    const auto begin = std::chrono::steady_clock::now();
    others(m.ref());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    others.expect_good(path);
    ends_the_stall.join();
    if (!same) {
      EXPECT_EQ(slow.result().done, 0u) << "the others went on while it stalled";
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      store->wrong().stall_gate.open();
    }
    slow_kernel.join();
    slow.expect_good(path);
    EXPECT_EQ(m.counters().pinned_frames, 0u);
  }
}

TEST(concurrency, slow_store_is_only_slow) {
  temp_dir dir;
  dir.add("file", 200 * page, seed);
  const auto store = make_faulty(dir);
  store->wrong().delay_ns = 1'000'000;
  mount_options options = small(8);
  options.custom_store = store;
  const mount m(dir.path(), options);
  reading_run run({.path = "file",
                   .file_nbytes = 200 * page,
                   .seed = seed,
                   .calls = 5,
                   .max_nbytes = 6000,
                   .config = {.grid = 4, .block = 64, .schedule = {}}});
  run(m.ref());
  run.expect_good();
}

TEST(concurrency, one_worker_serves_all) {
  temp_dir dir;
  dir.add("file", 300 * page, seed);
  for (const bool through_pread : {false, true}) {
    mount_options options = small(16);
    options.nworkers = 1;
    options.store = store_kind::posix;
    if (through_pread) options.custom_store = make_faulty(dir);
    const mount m(dir.path(), options);
    reading_run run({.path = "file",
                     .file_nbytes = 300 * page,
                     .seed = seed,
                     .calls = 20,
                     .config = {.grid = on_cuda ? 64u : 4u, .block = 128, .schedule = {}}});
    run(m.ref());
    run.expect_good(through_pread ? "pread" : "descriptor");
  }
}

TEST(concurrency, one_ring_of_two_request_slots) {
  temp_dir dir;
  dir.add("file", 300 * page, seed);
  mount_options options = small(16);
  options.internals.request_rings = 1;
  options.internals.request_slots = 2;
  options.store = store_kind::posix;
  const mount m(dir.path(), options);
  reading_run run({.path = "file",
                   .file_nbytes = 300 * page,
                   .seed = seed,
                   .calls = 10,
                   .kind = group_kind::thread,
                   .config = {.grid = 2, .block = 64, .schedule = {}}});
  run(m.ref());
  run.expect_good();
  EXPECT_EQ(m.counters().io_timeouts, 0u);
}

TEST(concurrency, two_frames_for_64_groups) {
  temp_dir dir;
  dir.add("file", 50 * page, seed);
  for (const store_kind kind : {store_kind::posix, store_kind::mapped}) {
    for (const std::uint32_t nframes : {2u, 3u}) {
      mount_options options = small(nframes);
      options.store = kind;
      const mount m(dir.path(), options);
      if (kind == store_kind::mapped) prepare_for_memcheck(m, "file");
      reading_run run({.path = "file",
                       .file_nbytes = 50 * page,
                       .seed = seed,
                       .calls = under_tsan ? 3u : 10u,
                       .config = {.grid = 16, .block = 128, .schedule = {}}});
      ASSERT_EQ(run.ngroups(), 64u);
      run(m.ref());
      run.expect_good(numbered("frames: ", nframes));
      EXPECT_EQ(m.counters().pinned_frames, 0u);
    }
  }
}

TEST(concurrency, kernels_of_several_host_threads_share_a_mount) {
  temp_dir dir;
  dir.add("file", 60 * page, seed);
  mount_options options = small(24);
  options.store = store_kind::posix;
  const mount m(dir.path(), options);
  const reading what{.path = "file",
                     .file_nbytes = 60 * page,
                     .seed = seed,
                     .calls = under_tsan ? 5u : 20u,
                     .config = {.grid = 2, .block = 64, .schedule = {.nthreads = 1}}};
  std::vector<std::unique_ptr<reading_run>> runs;
  for (int i = 0; i < 4; ++i) runs.push_back(std::make_unique<reading_run>(what));
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { (*runs[i])(m.ref(), i + 1); });
  }
  for (const auto& run : runs) run->expect_good();
  EXPECT_EQ(m.counters().pinned_frames, 0u);
}

TEST(concurrency, counters_are_read_while_a_kernel_runs) {
  temp_dir dir;
  dir.add("file", 40 * page, seed);
  const auto store = make_faulty(dir);
  mount_options options = small(16);
  options.custom_store = store;
  const mount m(dir.path(), options);
  store->wrong().read_gate.close();
  reading_run run(
      {.path = "file", .file_nbytes = 40 * page, .seed = seed, .calls = 10, .config = {.grid = 2, .block = 64, .schedule = {}}});
  std::thread kernel([&] { run(m.ref()); });
  EXPECT_TRUE(wait_until([&] { return m.counters().pinned_frames >= 1 && m.counters().opens == run.ngroups(); }));
  EXPECT_EQ(m.counters().faults, 0u) << "no fill can have ended";
  EXPECT_EQ(m.counters().host_opens, 1u);
  const auto files = m.open_files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, "file");
  EXPECT_EQ(files[0].nbytes, 40 * page);
  EXPECT_EQ(files[0].source, source_kind::staged);
  EXPECT_FALSE(files[0].reason.empty());
  EXPECT_EQ(files[0].counters.opens, run.ngroups());
  store->wrong().read_gate.open();
  kernel.join();
  run.expect_good();
  EXPECT_EQ(m.counters().pinned_frames, 0u);
  EXPECT_GE(m.counters().faults, 1u);
  EXPECT_TRUE(m.open_files().empty());
}

TEST(concurrency, steady_misses_and_evictions_keep_every_byte) {
  temp_dir dir;
  constexpr std::uint64_t nbytes = 500 * 512 + 100;
  dir.add("file", nbytes, seed);
  const std::uint64_t count = number_from_environment("GPUFS_TEST_EFFORT", 1) * (under_tsan ? 1 : 4);
  for (std::uint64_t round = 1; round <= count; ++round) {
    for (int kind = 0; kind < 3; ++kind) {
      mount_options options = small(1);
      options.page_nbytes = 512;
      options.cache_nbytes = 20 * 512;
      options.internals.nrings = static_cast<std::uint32_t>(round % 4);
      if (kind == 0) options.store = store_kind::posix;
      if (kind == 1) options.store = store_kind::mapped;
      if (kind == 2) {
        const auto mem = std::make_shared<store::mem_store>(simt::this_platform());
        mem->put("file", content(seed, 0, nbytes));
        options.custom_store = mem;
      }
      const mount m(dir.path(), options);
      if (kind == 1) prepare_for_memcheck(m, "file");
      const group_kind groups = static_cast<group_kind>(round % 4);
      reading_run run({.path = "file",
                       .file_nbytes = nbytes,
                       .seed = seed,
                       // 20 frames serve a million pages a second at best, and a block of threads is 64 groups.
                       .calls = groups == group_kind::thread ? 8u : 40u,
                       .max_nbytes = 1500,
                       .kind = groups,
                       .config = {.grid = on_cuda ? 66u : 4u,
                                  .block = 64,
                                  .schedule = {.seed = round, .order = simt::block_order::random, .switch_percent = 50}}});
      run(m.ref(), round);
      run.expect_good(numbered("round ", round) + numbered(" kind ", static_cast<std::uint64_t>(kind)));
      const mount_counters c = m.counters();
      EXPECT_EQ(c.pinned_frames, 0u);
      EXPECT_GT(c.evictions, 20u);
      EXPECT_EQ(c.allocations - c.evictions, 20 - c.free_frames);
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
