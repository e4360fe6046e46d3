// SPDX-License-Identifier: Apache-2.0
// Writing against the bus. Files in memory (tmpfs) larger than the cache, so that pages are written back all the time; what a
// kernel has written is in the file when its time is taken. The ceiling is one pinned device-to-host copy in the same run.
//
// write_seq: blocks write a file in order, a piece of 128 KiB each. write_4k: warps write random pages, each once. The file is
// there before, so that it is in memory. write_new: as write_seq, into an empty file, against one host thread that does the same,
// since the kernel gives a file's new pages to one writer at a time. write_small: every warp appends records of 64 bytes; what
// crosses the bus for each byte asked. append_16: each lane appends records of 16 bytes, with a call of its block; all of it may be
// dirty, and the time ends with the kernel. append_16_close: until it is in the file and that is closed, against one host thread.
// vector_add: c = a + b over three files that are there before, pages of a and b mapped, against host threads that pread, copy,
// launch, copy back and pwrite.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "access.hpp"
#include "written.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t piece_nbytes = 128 << 10, page_nbytes = 4096, record_nbytes = 64;

struct job {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::byte* scratch;
  std::uint64_t* failed;
  std::uint64_t salt;  // added to every word: what an earlier run wrote is wrong

  GPUFS_DEVICE void note(bool leader, bool right) const {
    if (leader && !right) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

struct write_in_order : job {
  std::uint64_t npieces;
  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const gpufs::file file(fs, number);
    std::byte* mine = scratch + std::uint64_t{gpufs::simt::block_rank()} * piece_nbytes;
    for (std::uint64_t p = gpufs::simt::block_rank(); p < npieces; p += gpufs::simt::grid_size()) {
      make_words(block, mine, p * (piece_nbytes / 8), piece_nbytes / 8, salt);
      const std::int64_t n = gpufs::pwrite(block, file, mine, piece_nbytes, static_cast<std::int64_t>(p * piece_nbytes));
      note(block.leader(), n == piece_nbytes);
    }
    note(block.leader(), gpufs::fsync(block, file, gpufs::durability::page_cache) == 0);
  }
};

struct write_random : job {
  std::uint64_t npages;  // a power of two
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    std::byte* mine = scratch + global_warp() * page_nbytes;
    for (std::uint64_t i = global_warp(); i < npages; i += warps) {
      const std::uint64_t page = scattered_page(i, npages);
      make_words(warp, mine, page * (page_nbytes / 8), page_nbytes / 8, salt);
      const std::int64_t n = gpufs::pwrite(warp, file, mine, page_nbytes, static_cast<std::int64_t>(page * page_nbytes));
      note(warp.leader(), n == page_nbytes);
    }
    note(warp.leader(), gpufs::fsync(warp, file, gpufs::durability::page_cache) == 0);
  }
};

// A record is eight words of its number.
struct append_records : job {
  std::uint32_t per_warp;
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    auto* mine = reinterpret_cast<std::uint64_t*>(scratch + global_warp() * record_nbytes);
    for (std::uint32_t i = 0; i < per_warp; ++i) {
      const std::uint64_t record = global_warp() * per_warp + i;
      if (warp.rank() < 8) mine[warp.rank()] = word_of(record * 8 + warp.rank());
      warp.sync();
      note(warp.leader(), gpufs::append(warp, file, mine, record_nbytes) >= 0);
    }
    note(warp.leader(), gpufs::fsync(warp, file, gpufs::durability::page_cache) == 0);
  }
};

// A record is its number and a word of that.
template <class Group>
struct append_lanes_records : job {
  std::uint32_t per_thread;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const gpufs::file file(fs, number);
    const std::uint64_t threads = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    std::uint64_t record = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < per_thread; ++i, record += threads) {
      alignas(16) const std::uint64_t words[2] = {record, word_of(record)};
      note(true, gpufs::append_each(group, file, words, sizeof words) >= 0);
    }
  }
};

struct sync_all : job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    note(warp.leader(), gpufs::fsync(warp, gpufs::file(fs, number), gpufs::durability::page_cache) == 0);
  }
};

struct add_files : job {  // `number` is c's
  gpufs::file_number a, b;
  std::uint64_t npages;
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file first(fs, a), second(fs, b), sum(fs, number);
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    auto* mine = reinterpret_cast<std::uint64_t*>(scratch + global_warp() * page_nbytes);
    for (std::uint64_t p = global_warp(); p < npages; p += warps) {
      const bool right = add_pages(warp, first, second, sum, p, page_nbytes, mine, salt);
      note(warp.leader(), right);
    }
    note(warp.leader(), gpufs::fsync(warp, sum, gpufs::durability::page_cache) == 0);
  }
};

struct add_in_memory {
  const std::uint64_t *a, *b;
  std::uint64_t* c;
  std::uint64_t n, salt;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t step = std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size();
    for (std::uint64_t i = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank(); i < n; i += step)
      c[i] = a[i] + b[i] + salt;
  }
};

// Of a file that was written: word i.
struct content {
  std::uint64_t times, salt;
  std::uint64_t operator()(std::uint64_t i) const { return times * word_of(i) + salt; }
};

class writing {
 public:
  writing(arguments& args, const machine_facts& machine)
      : how_(grid_of(machine, args)),
        repeats_(repeats_of(args)),
        cache_nbytes_(args.nbytes("cache-gib", {1, 1. / 16, 1. / 1024})),
        nbytes_(std::bit_floor(args.nbytes("file-gib", {8, 0.5, 4. / 1024}))),
        folder_(args.path("dir", "/dev/shm")) {}

  gpufs::mount make_mount() const {
    gpufs::mount_options options = short_waits();
    options.cache_nbytes = cache_nbytes_;
    options.page_nbytes = page_nbytes;
    options.writable = true;
    return gpufs::mount(folder_.path(), options);
  }

  // GB/s of launches of make(job), each over a file that is there, or into an empty one.
  template <class Make>
  measurement measure(const char* name, const char* label, bool is_new, std::uint64_t scratch_nbytes, const Make& make) const {
    const device_array<std::byte> scratch(scratch_nbytes);
    measurement m{name, label, {}, "GB/s"};
    m.verified = true;
    const std::string path = folder_.path() + "/out";
    if (!is_new) make_file(path, nbytes_);
    const gpufs::mount fs = make_mount();
    for (int r = 0; r <= repeats_; ++r) {
      {
        const host_file file(fs, "out", is_new ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR);
        const device_array<std::uint64_t> failed(1);
        const auto salt = static_cast<std::uint64_t>(r + 1);
        const double seconds = run(how_, make(job{fs.ref(), file.ref().number(), scratch.get(), failed.get(), salt}));
        if (r > 0) m.samples.push_back(static_cast<double>(nbytes_) / seconds * 1e-9);
        m.verified = failed.read_one() == 0 && m.verified;
      }
      m.verified = wrong_words(path, nbytes_, content{1, static_cast<std::uint64_t>(r + 1)}) == 0 && m.verified;
    }
    ::unlink(path.c_str());
    return m;
  }

  void in_order(double ceiling, results& out) const {
    out.add(against(ceiling, "pinned copy back", write_in_order_to("write_seq", "pwrite by blocks, pages of 4 KiB", false)));
  }
  void into_a_new_file(results& out) const {
    const double host = host_writer(nbytes_);
    out.add(against(host, "one host thread's pwrite", write_in_order_to("write_new", "the same, an empty file", true)));
  }
  void random(double ceiling, results& out) const {
    out.add(against(ceiling, "pinned copy back",
                    measure("write_4k", "pwrite by warps, pages of 4 KiB", false, how_.warps() * page_nbytes, [&](const job& j) {
                      return write_random{j, nbytes_ / page_nbytes};
                    })));
  }

  // The bytes of requests, replies and payloads; of a payload, what had been written (full pages have no mask).
  void small(results& out) const {
    const gpufs::mount fs = make_mount();
    const auto per_warp = static_cast<std::uint32_t>(std::max<std::uint64_t>(nbytes_ / 8 / record_nbytes / how_.warps(), 16));
    const std::uint64_t asked = how_.warps() * per_warp * record_nbytes;
    measurement m{"write_small", "append of 64 bytes by warps", {}, "bytes a byte"};
    m.figure = measurement::kind::itself;
    {
      const host_file file(fs, "log", O_WRONLY | O_CREAT | O_APPEND);
      const device_array<std::byte> scratch(how_.warps() * record_nbytes);
      const device_array<std::uint64_t> failed(1);
      const double seconds = run(how_, append_records{{fs.ref(), file.ref().number(), scratch.get(), failed.get(), 0}, per_warp});
      const gpufs::mount_counters now = fs.counters();
      m.samples.push_back(static_cast<double>(now.bytes_written_back + 128 * now.write_backs) / static_cast<double>(asked));
      m.details = {{"M appends/s", static_cast<double>(how_.warps()) * per_warp / seconds * 1e-6},
                   {"pages written back", static_cast<double>(now.write_backs)}};
      m.verified = failed.read_one() == 0;
    }
    m.verified = m.verified && records_are_whole(asked / record_nbytes);
    out.add(m);
  }

  void of_lanes(results& out) const {
    const auto per_thread = static_cast<std::uint32_t>(std::max<std::uint64_t>(nbytes_ / 8 / 16 / how_.threads(), 4));
    const std::uint64_t nrecords = how_.threads() * per_thread, nbytes = nrecords * 16;
    gpufs::mount_options options = short_waits();
    options.page_nbytes = page_nbytes;
    options.cache_nbytes = (2 * nbytes + nbytes / 4) / page_nbytes * page_nbytes + 4096 * page_nbytes;
    options.dirty_nbytes = options.cache_nbytes / 2;
    options.writable = true;
    const gpufs::mount fs(folder_.path(), options);
    measurement blocks{"append_16", "append_each of 16 bytes by blocks", {}, "M records/s"}, warps = blocks;
    warps.name = "append_16_by_warps";
    warps.label = "the same by warps";
    blocks.figure = warps.figure = measurement::kind::itself;
    measurement closed = against(host_writer(nbytes), "one host thread's pwrite", {"append_16_close", "until close", {}, "GB/s"});
    blocks.verified = warps.verified = closed.verified = true;
    for (int r = 0; r <= repeats_; ++r) {
      append_and_close<gpufs::simt::block>(fs, per_thread, r > 0, blocks, &closed);
      append_and_close<gpufs::simt::warp>(fs, per_thread, r > 0, warps, nullptr);
    }
    for (const measurement& m : {blocks, warps, closed}) out.add(m);
  }

  template <class Group>
  void append_and_close(const gpufs::mount& fs, std::uint32_t per_thread, bool counts, measurement& m, measurement* closed) const {
    const std::uint64_t nrecords = how_.threads() * per_thread;
    const device_array<std::uint64_t> failed(1);
    host_file file(fs, "records", O_WRONLY | O_CREAT | O_TRUNC);
    const job all{fs.ref(), file.ref().number(), nullptr, failed.get(), 0};
    const std::uint64_t before = fs.counters().write_backs;
    const double appending = run(how_, append_lanes_records<Group>{all, per_thread});
    const bool below_limit = fs.counters().write_backs == before;
    const double syncing = run(how_, sync_all{all});
    const auto begin = std::chrono::steady_clock::now();
    file.close();
    const double closing = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const bool right = failed.read_one() == 0 && below_limit && lanes_records_are_whole(nrecords);
    m.verified = m.verified && right;
    if (counts) m.samples.push_back(static_cast<double>(nrecords) / appending * 1e-6);
    if (closed == nullptr) return;
    closed->verified = closed->verified && right;
    if (counts) closed->samples.push_back(static_cast<double>(nrecords * 16) / (appending + syncing + closing) * 1e-9);
  }

  void add(results& out) const {
    for (const char* name : {"/a", "/b", "/c"}) make_file(folder_.path() + name, nbytes_);
    const double there = host_program();
    measurement m{"vector_add", "pages of 4 KiB", {}, "GB/s", there, "pread, copy, kernel, copy back, pwrite by host threads"};
    m.verified = true;
    const device_array<std::byte> scratch(how_.warps() * page_nbytes);
    const gpufs::mount fs = make_mount();
    fs.prepare("a");
    fs.prepare("b");
    for (int r = 0; r <= repeats_; ++r) {
      {
        const host_file a(fs, "a"), b(fs, "b"), c(fs, "c", O_RDWR);
        const device_array<std::uint64_t> failed(1);
        const job j{fs.ref(), c.ref().number(), scratch.get(), failed.get(), static_cast<std::uint64_t>(r + 1)};
        const double seconds = run(how_, add_files{j, a.ref().number(), b.ref().number(), nbytes_ / page_nbytes});
        if (r > 0) m.samples.push_back(3 * static_cast<double>(nbytes_) / seconds * 1e-9);
        m.verified = failed.read_one() == 0 && m.verified;
      }
      m.verified = wrong_words(folder_.path() + "/c", nbytes_, content{2, static_cast<std::uint64_t>(r + 1)}) == 0 && m.verified;
    }
    out.add(m);
  }

 private:
  static measurement against(double ceiling, const char* of, measurement m) {
    m.ceiling = ceiling;
    m.ceiling_is = of;
    return m;
  }
  measurement write_in_order_to(const char* name, const char* label, bool is_new) const {
    return measure(name, label, is_new, std::uint64_t{how_.grid} * piece_nbytes, [&](const job& j) {
      return write_in_order{j, nbytes_ / piece_nbytes};
    });
  }

  // GB/s of one host thread that writes an empty file, 1 MiB a call.
  double host_writer(std::uint64_t nbytes) const {
    const std::vector<std::byte> bytes(1 << 20);
    const auto file = open_file(folder_.path() + "/host", O_RDWR | O_CREAT | O_TRUNC);
    bool right = true;
    const double seconds = run_threads(1, [&](unsigned) {
      for (std::uint64_t at = 0; at < nbytes && right; at += bytes.size()) {
        const std::size_t n = std::min<std::uint64_t>(bytes.size(), nbytes - at);
        right = ::pwrite(file.get(), bytes.data(), n, static_cast<off_t>(at)) == static_cast<ssize_t>(n);
      }
    });
    if (!right) throw gpufs::error("a host thread cannot write");
    ::unlink((folder_.path() + "/host").c_str());
    return static_cast<double>(nbytes) / seconds * 1e-9;
  }

  bool records_are_whole(std::uint64_t nrecords) const {
    const auto file = open_file(folder_.path() + "/log", O_RDONLY);
    std::vector<std::uint64_t> words(nrecords * 8);
    const auto nbytes = static_cast<ssize_t>(words.size() * 8);
    for (ssize_t done = 0; done < nbytes;) {
      const ssize_t n =
          ::pread(file.get(), reinterpret_cast<char*>(words.data()) + done, static_cast<std::size_t>(nbytes - done), done);
      if (n <= 0) return false;
      done += n;
    }
    std::vector<std::uint64_t> first(nrecords), expected(nrecords);
    for (std::uint64_t r = 0; r < nrecords; ++r) {
      first[r] = words[r * 8];
      expected[r] = word_of(r * 8);
    }
    std::sort(expected.begin(), expected.end());
    for (std::uint64_t r = 0; r < nrecords; ++r) {
      // scramble is one to one: of the first word follows the record.
      if (!std::binary_search(expected.begin(), expected.end(), first[r])) return false;
    }
    std::sort(first.begin(), first.end());
    return first == expected;
  }

  // Each record of append_lanes_records once.
  bool lanes_records_are_whole(std::uint64_t nrecords) const {
    const auto file = open_file(folder_.path() + "/records", O_RDONLY);
    if (::lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(nrecords * 16)) return false;
    std::vector<std::atomic<std::uint8_t>> seen(nrecords);
    const std::uint64_t wrong = sum_in_parallel(nrecords, [&](std::uint64_t begin, std::uint64_t end) {
      std::vector<std::uint64_t> words(1 << 17);
      std::uint64_t bad = 0;
      for (std::uint64_t at = begin; at < end; at += words.size() / 2) {
        const std::size_t n = std::min<std::uint64_t>(words.size(), 2 * (end - at));
        if (::pread(file.get(), words.data(), n * 8, static_cast<off_t>(at * 16)) != static_cast<ssize_t>(n * 8))
          return end - begin;
        for (std::size_t i = 0; i < n; i += 2) {
          bad += words[i] >= nrecords || words[i + 1] != word_of(words[i]) || seen[words[i]].exchange(1) != 0;
        }
      }
      return bad;
    });
    return wrong == 0;
  }

  // The better of two and eight threads, each with buffers of its own, so that reading, copying, adding and writing overlap: GB/s.
  double host_program() const {
    double best = 0;
    for (const unsigned nthreads : {2u, std::min(8u, host_threads())}) {
      const std::uint64_t chunk = std::min<std::uint64_t>(4 << 20, nbytes_ / nthreads);
      const auto a = open_file(folder_.path() + "/a", O_RDONLY), b = open_file(folder_.path() + "/b", O_RDONLY);
      const auto c = open_file(folder_.path() + "/c", O_RDWR);
      struct buffers {
        explicit buffers(std::uint64_t n) : host(2 * n), x(n), y(n), z(n) {}
        pinned_array<std::byte> host;
        device_array<std::byte> x, y, z;
      };
      std::vector<std::unique_ptr<buffers>> all;
      for (unsigned t = 0; t < nthreads; ++t) all.push_back(std::make_unique<buffers>(chunk));
      std::atomic<std::uint64_t> next{0};
      auto& machine = gpufs::simt::this_platform();
      std::atomic<bool> right{true};
      const double seconds = run_threads(nthreads, [&](unsigned t) {
        buffers& mine = *all[t];
        for (std::uint64_t at = next.fetch_add(chunk); at < nbytes_; at = next.fetch_add(chunk)) {
          const std::size_t n = std::min(chunk, nbytes_ - at);
          const auto offset = static_cast<off_t>(at);
          bool good = ::pread(a.get(), mine.host.get(), n, offset) == static_cast<ssize_t>(n);
          good &= ::pread(b.get(), mine.host.get() + chunk, n, offset) == static_cast<ssize_t>(n);
          machine.copy_to_device(mine.x.get(), mine.host.get(), n);
          machine.copy_to_device(mine.y.get(), mine.host.get() + chunk, n);
          gpufs::simt::launch({.grid = on_gpu ? 64u : 1u, .block = on_gpu ? 256u : 32u},
                              add_in_memory{reinterpret_cast<const std::uint64_t*>(mine.x.get()),
                                            reinterpret_cast<const std::uint64_t*>(mine.y.get()),
                                            reinterpret_cast<std::uint64_t*>(mine.z.get()), n / 8, nthreads});
          machine.copy_from_device(mine.host.get(), mine.z.get(), n);
          good &= ::pwrite(c.get(), mine.host.get(), n, offset) == static_cast<ssize_t>(n);
          if (!good) right = false;
        }
      });
      if (!right || wrong_words(folder_.path() + "/c", nbytes_, content{2, nthreads}) != 0)
        throw gpufs::error("the host program's sum is wrong");
      best = std::max(best, 3 * static_cast<double>(nbytes_) / seconds * 1e-9);
    }
    return best;
  }

  shape how_;
  int repeats_;
  std::uint64_t cache_nbytes_, nbytes_;
  work_folder folder_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("write", [&] {
    arguments args(argc, argv, "write  --dir DIR  --file-gib N  --cache-gib N  --blocks-per-sm N  --warps N", on_gpu);
    const machine_facts machine = this_machine();
    const writing bench(args, machine);
    results out("write", args, machine);
    const double back = measure_copy_back(out, pinned_memory{}).median;
    if (args.wants("write_seq")) bench.in_order(back, out);
    if (args.wants("write_new")) bench.into_a_new_file(out);
    if (args.wants("write_4k")) bench.random(back, out);
    if (args.wants("write_small")) bench.small(out);
    if (args.wants("append_16")) bench.of_lanes(out);
    if (args.wants("vector_add")) bench.add(out);
    return out.finish();
  });
}
