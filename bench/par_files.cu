// SPDX-License-Identifier: Apache-2.0
// Data-parallel operations over files in memory (tmpfs): how near do they come to the bus? Answers are looked at after each run,
// outside the timed part.
//
// par_scan_file: an inclusive scan of 4-byte elements from a file to another that is there, both registered, against a kernel that
// only copies the one to the other. par_scan_file_command: the same as `gpufs scan` has it, of files that nobody has registered,
// against the registration, the kernel, and what ends the registration. par_scan_file_call: as par::scan_file has it, to a new
// file. par_sort_file: a sort of 8-byte keys with a quarter of
// their size of GPU memory allowed, files and runs registered, against two such copies. par_sort_file_command: as `gpufs sort` has
// it, with runs in memory if half of what is free has room, against two such registered copies. par_lex: JSON tokens of a file,
// which stay in GPU memory; the ceiling is the bus. par_lex_threads: the same automaton by host threads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "apps/lex/lexer_device.hpp"
#include "apps/par/file_jobs.hpp"
#include "device.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/file_scan.hpp"
#include "written.hpp"

namespace {

using namespace bench;
namespace jobs = gpufs::apps::par;
namespace lex = gpufs::apps::lex;

struct settings {
  machine_facts machine;
  std::uint64_t nbytes, memory_nbytes, text_nbytes, piece_nbytes;
  int repeats;
  std::string folder;
};

std::unique_ptr<jobs::engine> make_engine() {
#if GPUFS_ON_CUDA
  return jobs::make_engine_cuda(0);
#else
  return jobs::make_engine_simt(0);
#endif
}
void finish(jobs::job& of) {
  while (of.next()) {
  }
}

// Host memory that the device reaches; throws where it does not.
std::byte* reached(const written_mapping& of) {
  if (of.device() == nullptr) throw gpufs::error("a file in memory cannot be registered: " + of.why());
  if (of.device() != of.host() && on_gpu) throw gpufs::error("registered memory has another address on the device");
  return of.host();
}

double copy_by_kernel(const settings& set, const std::byte* from, std::byte* to) {
  const auto n = set.nbytes / sizeof(gpufs::simt::vec16);
  const copy_vectors kernel{reinterpret_cast<const gpufs::simt::vec16*>(from), reinterpret_cast<gpufs::simt::vec16*>(to), n};
  return run<8>(on_gpu ? shape{set.machine.nprocessors * 8, 256} : shape{2, 64}, kernel);
}

template <class Work>
double seconds_of(const Work& work) {
  const stopwatch watch;
  work();
  return watch.seconds();
}

// Rates of nbytes in so many seconds each.
std::vector<double> gb_per_second(std::uint64_t nbytes, const std::vector<double>& seconds) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(static_cast<double>(nbytes) / s * 1e-9);
  return rates;
}
measurement against(const char* name, const std::string& label, std::uint64_t nbytes, const std::vector<double>& ours,
                    const std::vector<double>& theirs, const char* ceiling_is, bool right) {
  measurement m{name, label, gb_per_second(nbytes, ours), "GB/s"};
  m.ceiling = spread_of(gb_per_second(nbytes, theirs)).median;
  m.ceiling_is = ceiling_is;
  m.verified = right;
  return m;
}

// --- Scans ------------------------------------------------------------------------------------------------------------------

constexpr jobs::scan_options scan_options{.op = jobs::scan_op::add, .type = jobs::number_type::u32};

std::uint32_t element_at(std::uint64_t i) { return static_cast<std::uint32_t>(word_of(i / 2) >> i % 2 * 32); }

// Each element of the output, against a loop by all host threads.
bool is_scanned(const std::byte* out, std::uint64_t nbytes) {
  const auto* const got = reinterpret_cast<const std::uint32_t*>(out);
  const std::uint64_t n = nbytes / sizeof(std::uint32_t), npieces = 256;
  std::vector<std::uint32_t> sums(npieces + 1);
  const auto begin_of = [&](std::uint64_t p) { return n * p / npieces; };
  sum_in_parallel(npieces, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t p = begin; p < end; ++p) {
      for (std::uint64_t i = begin_of(p); i < begin_of(p + 1); ++i) sums[p + 1] += element_at(i);
    }
    return std::uint64_t{0};
  });
  for (std::uint64_t p = 0; p < npieces; ++p) sums[p + 1] += sums[p];
  return sum_in_parallel(npieces, [&](std::uint64_t begin, std::uint64_t end) {
           std::uint64_t wrong = 0;
           for (std::uint64_t p = begin; p < end; ++p) {
             std::uint32_t sum = sums[p];
             for (std::uint64_t i = begin_of(p); i < begin_of(p + 1); ++i) wrong += got[i] != (sum += element_at(i));
           }
           return wrong;
         }) == 0;
}

void measure_scan(const settings& set, const written_mapping& a, const written_mapping& b, results& out) {
  const auto engine = make_engine();
  const std::byte* const from = reached(a);
  std::byte* const to = reached(b);
  std::vector<double> ours, theirs;
  bool right = true;
  for (int r = 0; r <= set.repeats; ++r) {
    const double copied = copy_by_kernel(set, from, to);
    const double scanned =
        seconds_of([&] { finish(*jobs::make_scan(*engine, {.memory = from}, {.memory = to}, set.nbytes, scan_options)); });
    right = is_scanned(to, set.nbytes) && right;
    if (r == 0) continue;
    ours.push_back(scanned);
    theirs.push_back(copied);
  }
  out.add(against("par_scan_file", "sums of 4-byte elements, both files registered", set.nbytes, ours, theirs,
                  "a kernel that only copies", right));
}

// The files as they are on the disk that memory is.
struct open_ends {
  gpufs::apps::input_file from;
  gpufs::unique_fd made;
  jobs::output_file to;
  open_ends(const settings& set, const char* verb)
      : from(set.folder + "/a", verb), made(open_file(set.folder + "/b", O_RDWR)), to("b", made.get(), set.nbytes) {}
};

// What a program does that copies the one file to the other by a kernel, and registers both.
constexpr const char* registered_copy_is = "registration, a kernel that copies, and the registration's end";
double seconds_of_registered_copy(const settings& set) {
  return seconds_of([&] {
    const written_mapping a(set.folder + "/a", set.nbytes), b(set.folder + "/b", set.nbytes);
    copy_by_kernel(set, reached(a), reached(b));
  });
}

void measure_scan_command(const settings& set, results& out) {
  std::vector<double> ours, theirs;
  bool right = true;
  for (int r = 0; r <= std::min(set.repeats, 2); ++r) {
    const double registered = seconds_of_registered_copy(set);
    const double scanned = seconds_of([&] {
      const auto engine = make_engine();
      const open_ends ends(set, "scanned");
      finish(*jobs::make_scan(*engine, {.file = &ends.from}, {.file = &ends.to}, set.nbytes, scan_options));
    });
    const written_mapping b(set.folder + "/b", set.nbytes);
    right = is_scanned(b.host(), set.nbytes) && right;
    if (r == 0) continue;
    ours.push_back(scanned);
    theirs.push_back(registered);
  }
  out.add(against("par_scan_file_command", "the same, files that nobody has registered", set.nbytes, ours, theirs,
                  registered_copy_is, right));
}

void measure_scan_call(const settings& set, results& out) {
  const std::string made = set.folder + "/c";
  std::vector<double> ours, theirs;
  bool right = true;
  for (int r = 0; r <= std::min(set.repeats, 2); ++r) {
    const double registered = seconds_of_registered_copy(set);
    const double scanned = seconds_of([&] {
      gpufs::mount_options options;
      options.writable = true;
      options.page_nbytes = 64 << 10;
      options.cache_nbytes = on_gpu ? std::uint64_t{1} << 30 : 16 << 20;
      const gpufs::mount fs(set.folder, options);
      gpufs::par::scan_file(fs, "a", "c", gpufs::par::plus<std::uint32_t>{});
    });
    {
      const written_mapping c(made, set.nbytes);
      right = is_scanned(c.host(), set.nbytes) && right;
    }
    ::unlink(made.c_str());
    if (r == 0) continue;
    ours.push_back(scanned);
    theirs.push_back(registered);
  }
  out.add(against("par_scan_file_call", "the same by par::scan_file, to a new file, with its mount", set.nbytes, ours, theirs,
                  registered_copy_is, right));
}

// --- Sorts ------------------------------------------------------------------------------------------------------------------

// Whether the keys are in order, and those of the input.
bool is_sorted(const std::byte* out, std::uint64_t nbytes) {
  const auto* const got = reinterpret_cast<const std::uint64_t*>(out);
  const std::uint64_t n = nbytes / 8;
  const std::uint64_t nwrong = sum_in_parallel(n, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = std::max<std::uint64_t>(begin, 1); i < end; ++i) wrong += got[i - 1] > got[i];
    return wrong;
  });
  const auto sum = [&](auto key) {
    return sum_in_parallel(n, [&](std::uint64_t begin, std::uint64_t end) {
      std::uint64_t all = 0;
      for (std::uint64_t i = begin; i < end; ++i) all += key(i) + word_of(key(i));
      return all;
    });
  };
  return nwrong == 0 && sum([&](std::uint64_t i) { return got[i]; }) == sum(word_of);
}

std::string sort_label(const settings& set) {
  char text[80];
  std::snprintf(text, sizeof text, "8-byte keys of %.3g GiB, %.3g GiB of GPU memory", static_cast<double>(set.nbytes) / (1u << 30),
                static_cast<double>(set.memory_nbytes) / (1u << 30));
  return text;
}

void measure_sort(const settings& set, const written_mapping& a, const written_mapping& b, results& out) {
  make_file(set.folder + "/c", set.nbytes);
  {
    const written_mapping c(set.folder + "/c", set.nbytes);
    const auto engine = make_engine();
    const std::byte* const from = reached(a);
    std::byte *const to = reached(b), *const runs = reached(c);
    std::vector<double> ours, theirs;
    bool right = true;
    const jobs::sort_options options{.memory_nbytes = set.memory_nbytes, .scratch_memory = runs};
    for (int r = 0; r <= set.repeats; ++r) {
      const double copied = copy_by_kernel(set, from, runs) + copy_by_kernel(set, runs, to);
      const double sorted =
          seconds_of([&] { finish(*jobs::make_sort(*engine, {.memory = from}, {.memory = to}, set.nbytes, options)); });
      right = is_sorted(to, set.nbytes) && right;
      if (r == 0) continue;
      ours.push_back(sorted);
      theirs.push_back(copied);
    }
    out.add(against("par_sort_file", sort_label(set) + ", files and runs registered", set.nbytes, ours, theirs,
                    "two copies by a kernel that only copies", right));
  }
  ::unlink((set.folder + "/c").c_str());
}

void measure_sort_command(const settings& set, results& out) {
  const double registered = 2 * seconds_of_registered_copy(set);
  const double sorted = seconds_of([&] {
    const auto engine = make_engine();
    const open_ends ends(set, "sorted");
    const jobs::sort_options options{.memory_nbytes = set.memory_nbytes, .scratch_folder = set.folder, .prefers_memory = true};
    finish(*jobs::make_sort(*engine, {.file = &ends.from}, {.file = &ends.to}, set.nbytes, options));
  });
  const written_mapping b(set.folder + "/b", set.nbytes);
  out.add(against("par_sort_file_command", sort_label(set) + ", files that nobody has registered", set.nbytes, {sorted},
                  {registered}, "twice: registration, a kernel that copies, and the registration's end",
                  is_sorted(b.host(), set.nbytes)));
}

// --- Tokens -----------------------------------------------------------------------------------------------------------------

// Objects of a line each, as logs have them, up to the end, and blanks behind the last one.
void write_objects(std::byte* to, std::uint64_t nbytes, std::uint64_t number) {
  auto* const text = reinterpret_cast<char*>(to);
  std::memset(text, ' ', nbytes);
  char line[256];
  for (std::uint64_t at = 0;; ++number) {
    const std::uint64_t word = word_of(number);
    const int n = std::snprintf(line, sizeof line,
                                "{\"id\": %llu, \"user\": \"u%llx\", \"tags\": [\"a\\\"b\", true, null], \"at\": -%llu.%llue-3}\n",
                                static_cast<unsigned long long>(number), static_cast<unsigned long long>(word),
                                static_cast<unsigned long long>(word % 1000), static_cast<unsigned long long>(word >> 40));
    if (at + static_cast<std::uint64_t>(n) > nbytes) return;
    std::memcpy(text + at, line, static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
}

GPUFS_HOST_DEVICE std::uint64_t token_hash(std::uint64_t offset, std::uint8_t kind) { return word_of(offset * 256 + kind); }
struct found {
  std::uint64_t ntokens = 0, hash = 0;
  friend bool operator==(const found&, const found&) = default;
};
struct hash_tokens {
  const std::uint64_t* offsets;
  const std::uint8_t* kinds;
  std::uint64_t n, *sum;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    std::uint64_t mine = 0;
    for (std::uint64_t i = me; i < n; i += std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size()) {
      mine += token_hash(offsets[i], kinds[i]);
    }
    const auto warp = gpufs::this_warp();
    mine = warp.reduce_add(mine);
    if (warp.leader()) atomic_ref<std::uint64_t>(*sum).add_relaxed(mine);
  }
};

// A text in registered memory, piece by piece: three buffers, of which two are filled while kernels lex the third.
class text_on_device {
  static constexpr unsigned nthreads = on_gpu ? 256 : 64, least_blocks = 2, nbuffers = 3;

 public:
  text_on_device(const std::byte* text, const settings& set, const gpufs::par::lex_table& table)
      : text_(text),
        nbytes_(set.text_nbytes),
        piece_nbytes_(std::min(set.piece_nbytes, nbytes_)),
        table_(table),
        start_(table.start()),
        nblocks_(on_gpu ? gpufs::simt::max_cooperative_grid<nthreads, least_blocks>(config(1), lex::lex_kernel{}) : 2),
        space_(gpufs::par::lex_space::nbytes_for(piece_nbytes_, table.nstates(), nblocks_, nthreads)),
        offsets_(nbytes_ / 2 + 1),
        kinds_(nbytes_ / 2 + 1) {
    for (unsigned i = 0; i < nbuffers; ++i) buffers_.push_back(std::make_unique<buffer>(piece_nbytes_));
  }

  // Throws where there are more tokens than half of the bytes.
  void find() {
    ntokens_ = 0;
    gpufs::par::lex_place at{.state = start_};
    begin_copy(0);
    for (std::uint64_t i = 0; i * piece_nbytes_ < nbytes_; ++i) {
      begin_copy(i + 1);
      const buffer& here = *buffers_[i % nbuffers];
      here.copies.wait();
      const std::uint64_t n = nbytes_of(i);
      gpufs::simt::launch<nthreads, least_blocks>(
          config(nblocks_),
          lex::lex_kernel{table_.view(),
                          at,
                          {here.bytes.get(), n, at.offset + n == nbytes_},
                          {offsets_.get() + ntokens_, kinds_.get() + ntokens_, offsets_.size() - ntokens_},
                          {space_.get(), space_.size()},
                          result_.get()},
          lexes_);
      lexes_.wait();
      const gpufs::par::lex_result got = result_.read_one();
      if (got.error != 0) throw gpufs::error("the kernel that finds tokens: " + std::string(std::strerror(-got.error)));
      ntokens_ += got.ntokens;
      at = got.after;
    }
  }
  found answer(const settings& set) const {
    const device_array<std::uint64_t> sum(1);
    run(on_gpu ? shape{set.machine.nprocessors * 4, 256} : shape{2, 64},
        hash_tokens{offsets_.get(), kinds_.get(), ntokens_, sum.get()});
    return {ntokens_, sum.read_one()};
  }

 private:
  struct buffer {
    device_array<std::uint8_t> bytes;
    gpufs::simt::stream copies;
    explicit buffer(std::uint64_t nbytes) : bytes(nbytes) {}
  };
  static gpufs::simt::launch_config config(unsigned nblocks) {
    return {.grid = nblocks, .block = nthreads, .schedule = {.switch_percent = 0}, .cooperative = true};
  }
  std::uint64_t nbytes_of(std::uint64_t i) const { return std::min(piece_nbytes_, nbytes_ - i * piece_nbytes_); }
  void begin_copy(std::uint64_t i) const {
    if (i * piece_nbytes_ >= nbytes_) return;
    const buffer& to = *buffers_[i % nbuffers];
    to.copies.copy_to_device(to.bytes.get(), text_ + i * piece_nbytes_, nbytes_of(i));
  }

  const std::byte* text_;
  std::uint64_t nbytes_, piece_nbytes_, ntokens_ = 0;
  gpufs::par::device_lex_table table_;
  std::uint32_t start_;
  unsigned nblocks_;
  device_array<std::byte> space_;
  device_array<std::uint64_t> offsets_;
  device_array<std::uint8_t> kinds_;
  device_array<gpufs::par::lex_result> result_{1};
  std::vector<std::unique_ptr<buffer>> buffers_;
  gpufs::simt::stream lexes_;
};

void measure_lex(const settings& set, results& out) {
  const spread bus = measure_copy(out, pinned_memory{});
  const std::string path = set.folder + "/text";
  make_file(path, set.text_nbytes);
  const auto table = gpufs::par::lex_table::named("json");
  {
    const written_mapping text(path, set.text_nbytes);
    const std::byte* const bytes = reached(text);
    constexpr std::uint64_t part_nbytes = 1 << 20;
    sum_in_parallel((set.text_nbytes + part_nbytes - 1) / part_nbytes, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t p = begin; p < end; ++p) {
        write_objects(text.host() + p * part_nbytes, std::min(part_nbytes, set.text_nbytes - p * part_nbytes), p * part_nbytes);
      }
      return std::uint64_t{0};
    });
    text_on_device here(bytes, set, table);
    measurement ours{"par_lex", "JSON, the tokens stay in GPU memory", {}, "GB/s", bus.median, "the pinned copy to the device"};
    for (int r = 0; r <= set.repeats; ++r) {
      const double seconds = seconds_of([&] { here.find(); });
      if (r != 0) ours.samples.push_back(static_cast<double>(set.text_nbytes) / seconds * 1e-9);
    }
    const found by_kernels = here.answer(set);

    measurement threads{"par_lex_threads", "the same automaton by host threads", {}, "GB/s"};
    threads.figure = measurement::kind::itself;
    found by_threads;
    double seconds = 0;
    for (const auto all = lex::make_lexer_cpu(path, table, {}); all->ndone() != all->nbytes();) {
      seconds += seconds_of([&] { all->next(); });
      const auto& tokens = all->found();
      by_threads.ntokens += tokens.offsets.size();
      by_threads.hash += sum_in_parallel(tokens.offsets.size(), [&](std::uint64_t begin, std::uint64_t end) {
        std::uint64_t sum = 0;
        for (std::uint64_t i = begin; i < end; ++i) sum += token_hash(tokens.offsets[i], tokens.kinds[i]);
        return sum;
      });
    }
    threads.samples = {static_cast<double>(set.text_nbytes) / seconds * 1e-9};
    ours.verified = threads.verified = by_kernels == by_threads && by_kernels.ntokens > set.text_nbytes / 16;
    ours.details = {{"M tokens", static_cast<double>(by_kernels.ntokens) * 1e-6}};
    threads.details = {{"threads", static_cast<double>(std::min(16u, host_threads()))}};
    out.add(ours);
    out.add(threads);
  }
  ::unlink(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("par_files", [&] {
    arguments args(argc, argv, "par_files  --dir DIR  --gib N  --memory-gib N  --text-gib N  --piece-gib N", on_gpu);
    const machine_facts machine = this_machine();
    const std::uint64_t nbytes = args.nbytes("gib", {8, 0.5, 1. / 1024}) / 4096 * 4096;
    const work_folder folder(args.path("dir", "/dev/shm"));
    const settings set{machine,
                       nbytes,
                       args.nbytes("memory-gib", {2, 1. / 8, 1. / 4096}),
                       args.nbytes("text-gib", {4, 0.25, 1. / 4096}),
                       args.nbytes("piece-gib", {1. / 16, 1. / 32, 1. / 16384}),
                       repeats_of(args),
                       folder.path()};
    results out("par_files", args, machine);
    if (args.wants_any(
            {"par_scan_file", "par_scan_file_call", "par_scan_file_command", "par_sort_file", "par_sort_file_command"})) {
      for (const char* name : {"/a", "/b"}) make_file(set.folder + name, set.nbytes);
      if (args.wants("par_scan_file_call")) measure_scan_call(set, out);  // before there are files of the sort
      if (args.wants_any({"par_scan_file", "par_sort_file"})) {
        const written_mapping a(set.folder + "/a", set.nbytes), b(set.folder + "/b", set.nbytes);
        if (args.wants("par_scan_file")) measure_scan(set, a, b, out);
        if (args.wants("par_sort_file")) measure_sort(set, a, b, out);
      }
      if (args.wants("par_scan_file_command")) measure_scan_command(set, out);
      if (args.wants("par_sort_file_command")) measure_sort_command(set, out);
      for (const char* name : {"/a", "/b"}) ::unlink((set.folder + name).c_str());
    }
    if (args.wants_any({"par_lex", "par_lex_threads"})) measure_lex(set, out);
    return out.finish();
  });
}
