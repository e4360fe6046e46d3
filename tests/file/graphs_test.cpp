// SPDX-License-Identifier: Apache-2.0
// Kernels in CUDA graphs (docs/guide/getting-started.md, "Kernels in CUDA graphs"). The CPU machine has no graphs.
#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/store/mem_store.hpp"
#include "leftovers.hpp"

#if GPUFS_ON_CUDA

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t page = 4096, npages = 256, cache_pages = 64;
constexpr unsigned nwarps = 8;
constexpr simt::launch_config shape{.grid = 2, .block = 128};

// Warp i reads page *first + i of an open file.
struct read_pages {
  file from;
  const std::uint64_t* first;
  std::byte* to;
  std::int64_t* nread;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint64_t me = simt::global_warp_rank();
    const std::int64_t n = pread(warp, from, to + me * page, page, static_cast<std::int64_t>((*first + me) * page));
    if (warp.leader()) nread[me] = n;
  }
};

// Warp i opens the file, and reads page *first + i.
struct open_and_read {
  mount_ref fs;
  const char* path;
  read_pages how;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file opened = open(warp, fs, path);
    read_pages{opened, how.first, how.to, how.nread}();
    close(warp, opened);
  }
};

// Warp i writes page *first + i, which is in the file then.
struct write_pages {
  file to;
  const std::uint64_t* first;
  const std::byte* from;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint64_t me = simt::global_warp_rank();
    const std::int64_t n = pwrite(warp, to, from + me * page, page, static_cast<std::int64_t>((*first + me) * page));
    const int synced = fsync(warp, to);
    if (warp.leader()) result[me] = synced != 0 ? synced : n;
  }
};

struct read_beyond {
  file from;
  std::uint32_t* out;

  GPUFS_DEVICE void operator()() const {
    const auto numbers = map<const std::uint32_t>(this_warp(), from);
    out[simt::thread_rank()] = numbers[npages * page / 4 + simt::thread_rank()];
  }
};

// Each thread opens a file of its own, and keeps it.
struct open_many {
  mount_ref fs;
  std::int32_t* errors;
  unsigned* ended;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = simt::global_warp_rank() * simt::warp_lanes + simt::lane_id();
    char path[32];
    format_path(path, 'f', me);
    errors[me] = open(this_thread(), fs, path).error();
    simt::atomic_ref<unsigned, simt::scope::system>(*ended).fetch_add(1, std::memory_order_release);
  }
};

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorName(error));
}

// What `enqueue` puts into a stream, to be launched again and again. Captured in the mode that CUDA's users, as torch, take first.
class graph {
 public:
  template <class Enqueue>
  explicit graph(const Enqueue& enqueue) {
    check(cudaStreamBeginCapture(turns_.get(), cudaStreamCaptureModeGlobal));
    enqueue(turns_);
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(turns_.get(), &captured));
    check(cudaGraphInstantiateWithFlags(&made_, captured, 0));
    check(cudaGraphDestroy(captured));
  }
  ~graph() { EXPECT_EQ(cudaGraphExecDestroy(made_), cudaSuccess); }
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  void begin() const { check(cudaGraphLaunch(made_, turns_.get())); }
  void run() const {
    begin();
    check(cudaStreamSynchronize(turns_.get()));
  }
  const simt::stream& turns() const { return turns_; }

 private:
  simt::stream turns_;
  cudaGraphExec_t made_ = nullptr;
};

class graphs : public ::testing::Test {
 protected:
  graphs() { dir_.add("file", npages * page, 1); }

  static mount_options small(bool writable = false) {
    return {.cache_nbytes = cache_pages * page, .max_open_files = 64, .writable = writable, .nworkers = 2};
  }
  void expect_pages(std::uint64_t seed, std::uint64_t first) const {
    EXPECT_EQ(nread_.read(), std::vector<std::int64_t>(nwarps, page));
    EXPECT_TRUE(bytes_.read() == content(seed, first * page, nwarps * page)) << "from page " << first;
  }

  temp_dir dir_;
  device_buffer<std::uint64_t> first_{1};
  device_buffer<std::byte> bytes_{nwarps * page};
  device_buffer<std::int64_t> nread_{nwarps};
};

// Launched again and again while another kernel evicts what it has read.
TEST_F(graphs, read_what_is_cached_and_what_is_not) {
  const device_buffer<std::uint64_t> zero(1);
  const device_buffer<std::byte> all(npages * page);
  const device_buffer<std::int64_t> nread_of_all(npages);
  simt::load<read_pages>();
  for (const store_kind kind : {store_kind::posix, store_kind::mapped}) {
    mount_options options = small();
    options.store = kind;
    const mount fs(dir_.path(), options);
    const host_file opened(fs, "file");
    const std::uint64_t faults = fs.counters().faults;  // of the open, which may bring the first page along
    const graph reads([&](const simt::stream& on) {
      simt::launch(shape, read_pages{opened.ref(), first_.get(), bytes_.get(), nread_.get()}, on);
    });
    EXPECT_EQ(fs.counters().faults, faults) << "captured, and not run";
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t first = round * 37;
      first_.write_one(first);
      for (int again = 0; again < 3; ++again) reads.begin();
      check(cudaStreamSynchronize(reads.turns().get()));
      expect_pages(1, first);
      simt::launch({.grid = npages / 8, .block = 256}, read_pages{opened.ref(), zero.get(), all.get(), nread_of_all.get()});
      EXPECT_EQ(nread_of_all.read(), std::vector<std::int64_t>(npages, page));
      EXPECT_TRUE(all.read() == content(1, 0, npages * page));
    }
    EXPECT_GT(fs.counters().evictions, 6 * (npages - cache_pages) / 2);
    EXPECT_GE(fs.counters().hits, 6 * nwarps);
    EXPECT_TRUE(fs.log().empty());
  }
}

// A path is opened anew by each launch, and is then the file that it is then.
TEST_F(graphs, open_paths_each_time) {
  const mount fs(dir_.path(), small());
  const device_buffer<char> path = simt::device_string("file");
  simt::load<open_and_read>();
  const graph reads([&](const simt::stream& on) {
    simt::launch(shape, open_and_read{fs.ref(), path.get(), {{}, first_.get(), bytes_.get(), nread_.get()}}, on);
  });
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    if (seed != 1) dir_.add("file", npages * page, seed);
    let_file_times_pass();
    reads.run();
    expect_pages(seed, 0);
    EXPECT_EQ(fs.counters().opens, seed * nwarps);
    EXPECT_TRUE(fs.open_files().empty());
  }
}

// Two kernels of one graph, one behind the other: one writes, the other reads it.
TEST_F(graphs, write_and_read) {
  const mount fs(dir_.path(), small(true));
  const host_file opened(fs, "file", O_RDWR);
  const device_buffer<std::byte> from(nwarps * page);
  const device_buffer<std::int64_t> written(nwarps);
  simt::load<write_pages>();
  simt::load<read_pages>();
  const graph both([&](const simt::stream& on) {
    simt::launch(shape, write_pages{opened.ref(), first_.get(), from.get(), written.get()}, on);
    simt::launch(shape, read_pages{opened.ref(), first_.get(), bytes_.get(), nread_.get()}, on);
  });
  std::vector<std::byte> expected = content(1, 0, npages * page);
  for (std::uint64_t round = 0; round < 4; ++round) {
    const std::uint64_t first = round * 60;
    const std::vector<std::byte> bytes = content(10 + round, first * page, nwarps * page);
    from.write(bytes);
    first_.write_one(first);
    both.run();
    EXPECT_EQ(written.read(), std::vector<std::int64_t>(nwarps, page));
    expect_pages(10 + round, first);
    std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(first * page));
    EXPECT_TRUE(dir_.read("file") == expected);
  }
}

// CUDA tells the library nothing when a graph's kernels end. Whoever asks the mount, or waits by simt::stream, hears of it.
TEST_F(graphs, say_later_which_accesses_have_failed) {
  const device_buffer<std::uint32_t> out(32);
  simt::load<read_beyond>();
  const std::string what = "gpufs: accesses through pointers have failed";
  for (const bool by_stream : {false, true}) {
    const mount fs(dir_.path(), small());
    const host_file opened(fs, "file");
    const graph reads([&](const simt::stream& on) {
      simt::launch({.grid = 1, .block = 32}, read_beyond{opened.ref(), out.get()}, on);
    });
    ::testing::internal::CaptureStderr();
    reads.run();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    ::testing::internal::CaptureStderr();
    if (by_stream) {
      reads.turns().wait();
    } else {
      EXPECT_GT(fs.counters().fault_errors, 0u);
    }
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find(what), 0u);
    EXPECT_EQ(out.read(), std::vector<std::uint32_t>(32));
  }
}

// While a thread captures, CUDA gives others no memory, but for those that have said that they mean no harm: as the mount's have,
// which make tables for more open files here.
TEST_F(graphs, are_captured_while_the_mount_serves_other_kernels) {
  if (under_memcheck()) GTEST_SKIP() << "it takes memory that comes while a kernel runs for out of bounds";
  constexpr unsigned nfiles = 1536;  // there are tables for 1,024
  const auto store = std::make_shared<store::mem_store>(simt::this_platform(), source_kind::staged);
  for (std::uint32_t n = 0; n < nfiles; ++n) {
    char path[32];
    format_path(path, 'f', n);
    store->put(path, content(n, 0, 16));
  }
  mount_options options = small();
  options.max_open_files = nfiles;
  options.custom_store = store;
  expect_leftovers_but_pins("its kernel keeps open what it has opened");
  const mount fs("", options);
  const mount other(dir_.path(), small());
  const host_file opened(other, "file");
  const device_buffer<std::int32_t> errors(nfiles);
  const pinned_buffer<unsigned> ended(1);
  simt::load<read_pages>();
  simt::load<open_many>();
  const simt::stream beside;
  const graph reads([&](const simt::stream& on) {
    simt::launch(shape, read_pages{opened.ref(), first_.get(), bytes_.get(), nread_.get()}, on);
    simt::launch({.grid = nfiles / 128, .block = 128}, open_many{fs.ref(), errors.get(), ended.get()}, beside);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (simt::atomic_ref<unsigned, simt::scope::system>(ended[0]).load(std::memory_order_acquire) != nfiles &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  });
  beside.wait();
  EXPECT_EQ(errors.read(), std::vector<std::int32_t>(nfiles));
  reads.run();
  expect_pages(1, 0);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

#endif
