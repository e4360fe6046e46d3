// SPDX-License-Identifier: Apache-2.0
// Products with matrices in files larger than the cache, against double-buffered host programs that do the same: GPUfs' own
// applications (CACM'14; SYSTOR'16, section 4.1).
//
// matrix_vector: y = A x. A block takes rows of A, its warps map their pages, and it writes their part of y: one kernel does all.
// The host program reads A in pieces into pinned memory, copies and multiplies them. matrix_matrix: C = A B by cuBLAS, a panel of
// C's rows at a time, for which all rows of B are read once more: kernels read the tiles from the files into device memory, and
// write C to its file; beside them cuBLAS multiplies the tiles before. The host program reads them by threads and copies, writes
// so, and calls cuBLAS alike. All elements are small whole numbers, so that all sums are exact. Of each product all elements are
// verified.
#include <bit>

#include "access.hpp"
#include "stages.hpp"
#include "written.hpp"
#if GPUFS_ON_CUDA && BENCH_HAS_CUBLAS
#include <cublas_v2.h>
#endif

namespace {

using namespace bench;

constexpr std::uint32_t page_nbytes = 4096, page_floats = page_nbytes / sizeof(float);

// --- What is multiplied ----------------------------------------------------------------------------------------------------------

// Element i of a matrix or vector, -1 to 2, drawn by its seed; 32 of them are drawn at once.
struct elements {
  std::uint64_t seed;
  std::uint64_t drawn(std::uint64_t i) const { return word_of(seed + i / 32) >> (i % 32 * 2); }
  static float value(std::uint64_t bits) { return static_cast<float>(static_cast<int>(bits & 3) - 1); }
  float operator()(std::uint64_t i) const { return value(drawn(i)); }
  std::uint64_t word(std::uint64_t i) const {  // of the file, two elements
    const std::uint64_t bits = drawn(2 * i);
    return std::bit_cast<std::uint32_t>(value(bits)) | std::uint64_t{std::bit_cast<std::uint32_t>(value(bits >> 2))} << 32;
  }
};

constexpr elements of_a{0}, of_b{std::uint64_t{1} << 40}, of_x{std::uint64_t{1} << 41};

// A matrix of nrows rows by v, modulo 2^64.
std::vector<std::uint64_t> rows_by(const std::vector<std::uint64_t>& v, std::uint64_t nrows, const elements& of) {
  std::vector<std::uint64_t> made(nrows);
  sum_in_parallel(nrows, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t r = begin; r < end; ++r) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < v.size(); ++i) {
        sum += static_cast<std::uint64_t>(static_cast<std::int64_t>(of(r * v.size() + i))) * v[i];
      }
      made[r] = sum;
    }
    return 0;
  });
  return made;
}

// --- y = A x ---------------------------------------------------------------------------------------------------------------------

// The lanes' sum of nfloats elements of a row by those of x; both in device memory, nfloats a multiple of 4.
GPUFS_DEVICE float dot(const float* row, const float* x, std::uint32_t nfloats) {
  struct alignas(16) four {
    float of[4];
  };
  const auto* rows = reinterpret_cast<const four*>(row);
  const auto* xs = reinterpret_cast<const four*>(x);
  float sum = 0;
  GPUFS_UNROLL
  for (std::uint32_t i = gpufs::simt::lane_id(); i < nfloats / 4; i += 32) {
    const four a = rows[i], b = xs[i];
    sum += a.of[0] * b.of[0] + a.of[1] * b.of[1] + a.of[2] * b.of[2] + a.of[3] * b.of[3];
  }
  return sum;
}

constexpr std::uint32_t slab_rows = 64;  // of y that a block writes at once

struct multiply_by_vector {
  gpufs::mount_ref fs;
  gpufs::file_number a, x, y;
  std::uint64_t nrows, ncolumns;
  float times;     // y is this times A x: what an earlier run wrote is wrong
  float* scratch;  // of each block: ncolumns of x, and a slab of y
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const auto warp = gpufs::this_warp();
    const gpufs::file matrix(fs, a), to(fs, y);
    float* vector = scratch + gpufs::simt::block_rank() * (ncolumns + slab_rows);
    float* slab = vector + ncolumns;
    const auto row_nbytes = ncolumns * sizeof(float);
    bool right = gpufs::pread(block, gpufs::file(fs, x), vector, row_nbytes, 0) == static_cast<std::int64_t>(row_nbytes);
    for (std::uint64_t first = std::uint64_t{gpufs::simt::block_rank()} * slab_rows; first < nrows;
         first += std::uint64_t{gpufs::simt::grid_size()} * slab_rows) {
      for (std::uint32_t r = gpufs::simt::warp_rank(); r < slab_rows; r += block.nwarps()) {
        float sum = 0;
        for (std::uint64_t at = 0; at < ncolumns; at += page_floats) {
          gpufs::mapped_page page = gpufs::map_page(warp, matrix, static_cast<std::int64_t>((first + r) * row_nbytes + at * 4));
          if (page.error() != 0) {
            right = false;
            break;
          }
          sum += dot(reinterpret_cast<const float*>(page.data()), vector + at, page_floats);
          gpufs::unmap_page(warp, std::move(page));
        }
        sum = warp.reduce_add(sum);
        if (warp.leader()) slab[r] = times * sum;
      }
      block.sync();
      constexpr std::int64_t nbytes = slab_rows * sizeof(float);
      right = gpufs::pwrite(block, to, slab, nbytes, static_cast<std::int64_t>(first * sizeof(float))) == nbytes && right;
      block.sync();  // the slab has been written
    }
    right = gpufs::fsync(block, to, gpufs::durability::page_cache) == 0 && right;
    if (!right) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

// The same of rows that are in device memory.
struct multiply_rows {
  const float *rows, *x;
  float* y;
  std::uint64_t nrows, ncolumns;
  float times;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    for (std::uint64_t r = global_warp(); r < nrows; r += warps) {
      float sum = 0;
      for (std::uint64_t at = 0; at < ncolumns; at += page_floats) sum += dot(rows + r * ncolumns + at, x + at, page_floats);
      sum = warp.reduce_add(sum);
      if (warp.leader()) y[r] = times * sum;
    }
  }
};

// --- C = A B ---------------------------------------------------------------------------------------------------------------------

// Pieces of a file to device memory, or back, a piece at a time a block.
template <bool Writes>
struct move_tile {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::byte* memory;                                   // the pieces, one after the other
  std::uint64_t npieces, piece_nbytes, begin, stride;  // of the file
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const gpufs::file file(fs, number);
    for (std::uint64_t i = gpufs::simt::block_rank(); i < npieces; i += gpufs::simt::grid_size()) {
      const auto offset = static_cast<std::int64_t>(begin + i * stride);
      std::byte* mine = memory + i * piece_nbytes;
      std::int64_t moved;
      if constexpr (Writes) {
        moved = gpufs::pwrite(block, file, mine, piece_nbytes, offset);
      } else {
        moved = gpufs::pread(block, file, mine, piece_nbytes, offset);
      }
      if (block.leader() && moved != static_cast<std::int64_t>(piece_nbytes)) {
        atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
      }
    }
  }
};

struct sync_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t* failed;
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    if (gpufs::fsync(warp, gpufs::file(fs, number), gpufs::durability::page_cache) != 0 && warp.leader()) {
      atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
    }
  }
};

#if GPUFS_ON_CUDA && BENCH_HAS_CUBLAS
constexpr bool has_products_of_tiles = true;

class tile_products {
 public:
  tile_products() {
    check(cublasCreate(&handle_), "cublasCreate");
    check(cublasSetStream(handle_, stream_.get()), "cublasSetStream");
  }
  ~tile_products() { cublasDestroy(handle_); }
  tile_products(const tile_products&) = delete;
  tile_products& operator=(const tile_products&) = delete;

  // c (m x n) = times a (m x k) b (k x n), or added to it; all of them row by row, which cuBLAS takes for transposed.
  void begin(std::uint64_t m, std::uint64_t n, std::uint64_t k, float times, const float* a, const float* b, float* c, bool adds) {
    const float before = adds ? 1 : 0;
    const auto rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
    check(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, columns, rows, depth, &times, b, columns, a, depth, &before, c, columns),
          "cublasSgemm");
  }
  void end() { stream_.wait(); }

 private:
  static void check(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS) throw gpufs::error(std::string(what) + ": " + cublasGetStatusString(status));
  }
  gpufs::simt::stream stream_;
  cublasHandle_t handle_{};
};
#elif GPUFS_ON_CUDA
constexpr bool has_products_of_tiles = false;

struct tile_products {
  void begin(std::uint64_t, std::uint64_t, std::uint64_t, float, const float*, const float*, float*, bool) {}
  void end() {}
};
#else
constexpr bool has_products_of_tiles = true;

// In the place of cuBLAS: the CPU machine's device memory is the host's.
struct tile_products {
  void begin(std::uint64_t m, std::uint64_t n, std::uint64_t k, float times, const float* a, const float* b, float* c, bool adds) {
    for (std::uint64_t i = 0; i < m; ++i) {
      if (!adds) std::fill_n(c + i * n, n, 0.0f);
      for (std::uint64_t l = 0; l < k; ++l) {
        for (std::uint64_t j = 0; j < n; ++j) c[i * n + j] += times * a[i * k + l] * b[l * n + j];
      }
    }
  }
  void end() {}
};
#endif

// The steps of a product of n x n matrices: step s is panel s / nk of C's rows, and of A's columns and B's rows, s % nk.
struct tiling {
  std::uint64_t n, rows, depth;  // both divide n
  std::uint64_t nk() const { return n / depth; }
  std::uint64_t nsteps() const { return n / rows * nk(); }
  std::uint64_t row_nbytes() const { return n * sizeof(float); }
  // Of A a piece of each of the panel's rows, of B whole rows.
  std::uint64_t a_piece_nbytes() const { return depth * sizeof(float); }
  std::uint64_t a_begin(std::uint64_t s) const { return s / nk() * rows * row_nbytes() + s % nk() * a_piece_nbytes(); }
  std::uint64_t b_begin(std::uint64_t s) const { return s % nk() * depth * row_nbytes(); }
  std::uint64_t a_nbytes() const { return rows * a_piece_nbytes(); }
  std::uint64_t b_nbytes() const { return depth * row_nbytes(); }
  // A finished panel of C is written while the next is made, a slice a step.
  std::uint64_t slice_nbytes() const { return rows / nk() * row_nbytes(); }
  std::uint64_t slice_begin(std::uint64_t s) const { return s * slice_nbytes(); }  // of the file
  std::uint64_t slice_in_panel(std::uint64_t s) const { return s % nk() * slice_nbytes(); }
  double flops() const { return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n); }
};

// Two of each, for the steps of two ticks.
struct tile_buffers {
  explicit tile_buffers(const tiling& t)
      : a{device_array<std::byte>(t.a_nbytes()), device_array<std::byte>(t.a_nbytes())},
        b{device_array<std::byte>(t.b_nbytes()), device_array<std::byte>(t.b_nbytes())},
        c{device_array<std::byte>(t.rows * t.row_nbytes()), device_array<std::byte>(t.rows * t.row_nbytes())} {}
  float* panel(const tiling& t, std::uint64_t s) const { return reinterpret_cast<float*>(c[s / t.nk() % 2].get()); }
  std::byte* slice(const tiling& t, std::uint64_t s) const { return c[s / t.nk() % 2].get() + t.slice_in_panel(s); }

  device_array<std::byte> a[2], b[2], c[2];
};

// The stage that multiplies, the same for both programs.
stage multiplying(std::uint64_t delay, const tiling& t, float times, const tile_buffers& on, tile_products& products) {
  return {delay,
          [&, times](std::uint64_t s) {
            products.begin(t.rows, t.n, t.depth, times, reinterpret_cast<const float*>(on.a[s % 2].get()),
                           reinterpret_cast<const float*>(on.b[s % 2].get()), on.panel(t, s), s % t.nk() != 0);
          },
          [&] { products.end(); }};
}

// --- The bench -------------------------------------------------------------------------------------------------------------------

class products {
 public:
  products(arguments& args, const machine_facts& machine)
      : how_{machine.nprocessors * blocks_per_sm, static_cast<unsigned>(args.number("warps", {8, 8, 2})) * 32},
        repeats_(repeats_of(args)),
        cache_nbytes_(args.nbytes("cache-gib", {1, 1. / 16, 1. / 2048})),
        rows_(static_cast<std::uint64_t>(args.number("rows", {65536, 8192, 512})) / slab_rows * slab_rows),
        columns_(static_cast<std::uint64_t>(args.number("columns", {32768, 8192, 2048})) / page_floats * page_floats),
        tiles_{static_cast<std::uint64_t>(args.number("n", {32768, 8192, 512})),
               static_cast<std::uint64_t>(args.number("panel-rows", {4096, 2048, 128})),
               static_cast<std::uint64_t>(args.number("panel-depth", {1024, 512, 64}))},
        fill_(on_gpu ? static_cast<unsigned>(args.number("fill-blocks", 64)) : 2),
        folder_(args.path("dir", "/dev/shm")) {
    const tiling& t = tiles_;
    const bool whole = t.n != 0 && t.rows != 0 && t.depth != 0 && t.n % t.rows == 0 && t.n % t.depth == 0 && t.rows % t.nk() == 0;
    if (!whole) throw gpufs::error("--panel-rows and --panel-depth must divide --n, and n / panel-depth must divide panel-rows");
    if (rows_ == 0 || columns_ == 0) throw gpufs::error("--rows is at least 64, --columns at least 1024");
    if (how_.block == 0 || how_.block > 256) throw gpufs::error("--warps is 1 to 8");
  }

  void by_vector(results& out) const {
    write_words(folder_.path() + "/a", rows_ * columns_ * 4, [](std::uint64_t i) { return of_a.word(i); });
    write_words(folder_.path() + "/x", columns_ * 4, [](std::uint64_t i) { return of_x.word(i); });
    std::vector<std::uint64_t> x(columns_);
    for (std::uint64_t i = 0; i < columns_; ++i) x[i] = static_cast<std::uint64_t>(static_cast<std::int64_t>(of_x(i)));
    for (const char* name : {"/y", "/host_y"}) write_words(folder_.path() + name, rows_ * 4, [](std::uint64_t) { return 0; });
    const std::vector<std::uint64_t> y = rows_by(x, rows_, of_a);
    const auto is_right = [&](const char* name, float times) {
      return wrong_words(folder_.path() + name, rows_ * 4, [&](std::uint64_t i) {
               const auto bits = [&](std::uint64_t r) {
                 return std::uint64_t{std::bit_cast<std::uint32_t>(times * static_cast<float>(static_cast<std::int64_t>(y[r])))};
               };
               return bits(2 * i) | bits(2 * i + 1) << 32;
             }) == 0;
    };
    const double gb = static_cast<double>(rows_ * columns_ * 4) * 1e-9;
    const std::string label = gib(rows_ * columns_ * 4) + " GiB, a cache of " + gib(cache_nbytes_);

    const device_array<float> scratch(how_.grid * (columns_ + slab_rows));
    measurement m{"matrix_vector", label, {}, "GB/s"};
    m.verified = true;
    std::vector<double> theirs;
    host_team team(std::min(16u, host_threads()));
    const gpufs::mount fs = make_mount();
    fs.prepare("a");
    fs.prepare("y", O_RDWR);
    for (int r = 0; r <= repeats_; ++r) {
      const auto times = static_cast<float>(r + 1);
      {
        const host_file a(fs, "a"), x_file(fs, "x"), y_file(fs, "y", O_RDWR);
        const device_array<std::uint64_t> failed(1);
        const double seconds =
            run<blocks_per_sm>(how_, multiply_by_vector{fs.ref(), a.ref().number(), x_file.ref().number(), y_file.ref().number(),
                                                        rows_, columns_, times, scratch.get(), failed.get()});
        if (r > 0) m.samples.push_back(gb / seconds);
        m.verified = failed.read_one() == 0 && m.verified;
      }
      m.verified = is_right("/y", times) && m.verified;
      const double seconds = host_by_vector(team, times);
      if (r > 0) theirs.push_back(gb / seconds);
      if (!is_right("/host_y", times)) throw gpufs::error("the host program's product with a vector is wrong");
    }
    add(out, m, theirs, team.size());
    for (const char* name : {"/a", "/x", "/y", "/host_y"}) ::unlink((folder_.path() + name).c_str());
  }

  void by_matrix(results& out) const {
    if (!has_products_of_tiles) {
      out.note("matrix_matrix: left out, as this was built without cuBLAS");
      return;
    }
    const tiling& t = tiles_;
    const std::uint64_t nbytes = t.n * t.row_nbytes();
    write_words(folder_.path() + "/a", nbytes, [](std::uint64_t i) { return of_a.word(i); });
    write_words(folder_.path() + "/b", nbytes, [](std::uint64_t i) { return of_b.word(i); });
    for (const char* name : {"/c", "/host_c"}) write_words(folder_.path() + name, nbytes, [](std::uint64_t) { return 0; });
    // Freivalds' test: C r is A (B r) for a random r; a C that is another one passes once in 2^40 times, or more rarely.
    std::vector<std::uint64_t> r(t.n);
    for (std::uint64_t i = 0; i < t.n; ++i) r[i] = word_of(i + 12345);
    const std::vector<std::uint64_t> expected = rows_by(rows_by(r, t.n, of_b), t.n, of_a);

    measurement m{
        "matrix_matrix",
        std::to_string(t.n) + " x " + std::to_string(t.n) + ", " + gib(nbytes) + " GiB each, a cache of " + gib(cache_nbytes_),
        {},
        "TFLOPS"};
    m.verified = true;
    std::vector<double> theirs;
    host_team team(std::min(16u, host_threads()));
    const tile_buffers buffers(t);
    tile_products multiplier;
    const gpufs::mount fs = make_mount();
    for (const char* name : {"a", "b"}) fs.prepare(name);
    fs.prepare("c", O_RDWR);
    for (int run = 0; run <= repeats_; ++run) {
      const auto times = static_cast<float>(run + 1);
      std::vector<std::uint64_t> wanted = expected;
      for (std::uint64_t& one : wanted) one *= static_cast<std::uint64_t>(run + 1);
      const double seconds = through_files(fs, times, buffers, multiplier);
      if (run > 0) m.samples.push_back(t.flops() / seconds * 1e-12);
      m.verified = rows_of_file("/c", r) == wanted && m.verified;
      const double host = host_by_matrix(team, times, buffers, multiplier);
      if (run > 0) theirs.push_back(t.flops() / host * 1e-12);
      if (rows_of_file("/host_c", r) != wanted) throw gpufs::error("the host program's product with a matrix is wrong");
    }
    add(out, m, theirs, team.size());
  }

 private:
  static constexpr unsigned blocks_per_sm = on_gpu ? 3 : 1;  // with the registers that a call and a dot product want

  static std::string gib(std::uint64_t nbytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", static_cast<double>(nbytes) / (1u << 30));
    return text;
  }

  gpufs::mount make_mount() const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes_;
    options.page_nbytes = page_nbytes;
    options.writable = true;
    return gpufs::mount(folder_.path(), options);
  }

  static void add(results& out, measurement& m, const std::vector<double>& theirs, unsigned nthreads) {
    const spread host = spread_of(theirs);
    m.ceiling = host.median;
    m.ceiling_is = "a double-buffered program of " + std::to_string(nthreads) + " host threads";
    out.ceiling("the product of " + m.name + " by " + m.ceiling_is.substr(2), m.unit, host);
    out.add(m);
  }

  // Reads, copies and multiplies pieces of rows: the seconds until y is in its file.
  double host_by_vector(host_team& team, float times) const {
    const std::uint64_t row_nbytes = columns_ * 4;
    const std::uint64_t rows = std::clamp<std::uint64_t>((32 << 20) / row_nbytes, 1, rows_), nsteps = (rows_ + rows - 1) / rows;
    const pinned_array<std::byte> host(2 * rows * row_nbytes), small(row_nbytes + rows_ * 4);
    const device_array<std::byte> device(2 * rows * row_nbytes), x(row_nbytes), y(rows_ * 4);
    const auto a_file = open_file(folder_.path() + "/a", O_RDONLY), x_file = open_file(folder_.path() + "/x", O_RDONLY);
    const auto y_file = open_file(folder_.path() + "/host_y", O_RDWR);
    auto& machine = gpufs::simt::this_platform();
    const gpufs::simt::stream copies, kernels;
    const auto rows_in = [&](std::uint64_t s) { return std::min(rows, rows_ - s * rows); };
    const stopwatch watch;
    move_bytes(team, false, x_file.get(), small.get(), row_nbytes, 0);
    machine.copy_to_device(x.get(), small.get(), row_nbytes);
    run_stages(nsteps, {{2,
                         [&](std::uint64_t s) {
                           gpufs::simt::launch(
                               {.grid = how_.grid, .block = how_.block},
                               multiply_rows{reinterpret_cast<const float*>(device.get() + s % 2 * rows * row_nbytes),
                                             reinterpret_cast<const float*>(x.get()), reinterpret_cast<float*>(y.get()) + s * rows,
                                             rows_in(s), columns_, times},
                               kernels);
                         },
                         [&] { kernels.wait(); }},
                        {1,
                         [&](std::uint64_t s) {
                           const std::uint64_t at = s % 2 * rows * row_nbytes;
                           copies.copy_to_device(device.get() + at, host.get() + at, rows_in(s) * row_nbytes);
                         },
                         [&] { copies.wait(); }},
                        {0, [&](std::uint64_t s) {
                           move_bytes(team, false, a_file.get(), host.get() + s % 2 * rows * row_nbytes, rows_in(s) * row_nbytes,
                                      s * rows * row_nbytes);
                         }}});
    machine.copy_from_device(small.get() + row_nbytes, y.get(), rows_ * 4);
    move_bytes(team, true, y_file.get(), small.get() + row_nbytes, rows_ * 4, 0);
    return watch.seconds();
  }

  // Kernels read the tiles and write the slices.
  double through_files(const gpufs::mount& fs, float times, const tile_buffers& on, tile_products& multiplier) const {
    const tiling& t = tiles_;
    const host_file a(fs, "a"), b(fs, "b"), c(fs, "c", O_RDWR);
    const device_array<std::uint64_t> failed(1);
    const gpufs::simt::stream fills, drains;
    const gpufs::simt::launch_config how{.grid = fill_, .block = how_.block};
    const std::uint64_t piece = std::min<std::uint64_t>(64 << 10, t.row_nbytes());
    const stopwatch watch;
    run_stages(t.nsteps(), {multiplying(1, t, times, on, multiplier),
                            {0,
                             [&](std::uint64_t s) {
                               gpufs::simt::launch(how,
                                                   move_tile<false>{fs.ref(), a.ref().number(), on.a[s % 2].get(), t.rows,
                                                                    t.a_piece_nbytes(), t.a_begin(s), t.row_nbytes(), failed.get()},
                                                   fills);
                               gpufs::simt::launch(how,
                                                   move_tile<false>{fs.ref(), b.ref().number(), on.b[s % 2].get(),
                                                                    t.b_nbytes() / piece, piece, t.b_begin(s), piece, failed.get()},
                                                   fills);
                             },
                             [&] { fills.wait(); }},
                            {1 + t.nk(),
                             [&](std::uint64_t s) {
                               gpufs::simt::launch(
                                   how,
                                   move_tile<true>{fs.ref(), c.ref().number(), on.slice(t, s), t.slice_nbytes() / piece, piece,
                                                   t.slice_begin(s), piece, failed.get()},
                                   drains);
                             },
                             [&] { drains.wait(); }}});
    gpufs::simt::launch<32>({.grid = 1, .block = 32}, sync_file{fs.ref(), c.ref().number(), failed.get()}, drains);
    drains.wait();
    const double seconds = watch.seconds();
    if (failed.read_one() != 0) throw gpufs::error("a kernel cannot read or write a tile");
    return seconds;
  }

  // Host threads read the tiles and write the slices, beside copies and products.
  double host_by_matrix(host_team& team, float times, const tile_buffers& on, tile_products& multiplier) const {
    const tiling& t = tiles_;
    const pinned_array<std::byte> a(2 * t.a_nbytes()), b(2 * t.b_nbytes()), c(2 * t.slice_nbytes());
    const auto a_file = open_file(folder_.path() + "/a", O_RDONLY), b_file = open_file(folder_.path() + "/b", O_RDONLY);
    const auto c_file = open_file(folder_.path() + "/host_c", O_RDWR);
    const gpufs::simt::stream copies, copies_back;
    const stopwatch watch;
    run_stages(t.nsteps(), {multiplying(2, t, times, on, multiplier),
                            {1,
                             [&](std::uint64_t s) {
                               copies.copy_to_device(on.a[s % 2].get(), a.get() + s % 2 * t.a_nbytes(), t.a_nbytes());
                               copies.copy_to_device(on.b[s % 2].get(), b.get() + s % 2 * t.b_nbytes(), t.b_nbytes());
                             },
                             [&] { copies.wait(); }},
                            {2 + t.nk(),
                             [&](std::uint64_t s) {
                               copies_back.copy_from_device(c.get() + s % 2 * t.slice_nbytes(), on.slice(t, s), t.slice_nbytes());
                             },
                             [&] { copies_back.wait(); }},
                            {0,
                             [&](std::uint64_t s) {
                               move_pieces(team, false, a_file.get(), t.rows, [&](std::uint64_t i) {
                                 return file_piece{a.get() + s % 2 * t.a_nbytes() + i * t.a_piece_nbytes(), t.a_piece_nbytes(),
                                                   t.a_begin(s) + i * t.row_nbytes()};
                               });
                               move_bytes(team, false, b_file.get(), b.get() + s % 2 * t.b_nbytes(), t.b_nbytes(), t.b_begin(s));
                             }},
                            {3 + t.nk(), [&](std::uint64_t s) {
                               move_bytes(team, true, c_file.get(), c.get() + s % 2 * t.slice_nbytes(), t.slice_nbytes(),
                                          t.slice_begin(s));
                             }}});
    return watch.seconds();
  }

  // The rows of such a file by r; of a row with an element that is no whole number, something else.
  std::vector<std::uint64_t> rows_of_file(const char* name, const std::vector<std::uint64_t>& r) const {
    const tiling& t = tiles_;
    const auto file = open_file(folder_.path() + name, O_RDONLY);
    std::vector<std::uint64_t> made(t.n);
    sum_in_parallel(t.n, [&](std::uint64_t begin, std::uint64_t end) {
      std::vector<float> row(t.n);
      for (std::uint64_t i = begin; i < end; ++i) {
        std::uint64_t sum = 0;
        bool whole = ::pread(file.get(), row.data(), t.row_nbytes(), static_cast<off_t>(i * t.row_nbytes())) ==
                     static_cast<ssize_t>(t.row_nbytes());
        for (std::uint64_t j = 0; j < t.n && whole; ++j) {
          whole = row[j] == std::floor(row[j]) && std::fabs(row[j]) < 0x1p24f;
          sum += whole ? static_cast<std::uint64_t>(static_cast<std::int64_t>(row[j])) * r[j] : 0;
        }
        made[i] = whole ? sum : sum + 1;
      }
      return 0;
    });
    return made;
  }

  shape how_;
  int repeats_;
  std::uint64_t cache_nbytes_, rows_, columns_;
  tiling tiles_;
  unsigned fill_;
  work_folder folder_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("products", [&] {
    arguments args(
        argc, argv,
        "products  --dir DIR  --rows N  --columns N  --n N  --panel-rows N  --panel-depth N  --cache-gib N  --fill-blocks N  "
        "--warps N",
        on_gpu);
    const machine_facts machine = this_machine();
    const products bench(args, machine);
    results out("products", args, machine);
    if (args.wants("matrix_vector")) bench.by_vector(out);
    if (args.wants("matrix_matrix")) bench.by_matrix(out);
    return out.finish();
  });
}
