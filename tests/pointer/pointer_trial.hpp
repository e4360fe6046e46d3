// SPDX-License-Identifier: Apache-2.0
// One trial: random pointer programs of many lanes on a mount of random dimensions, drawn from a seed and checked against the
// model, with the counters at the end.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "file/random_model.hpp"
#include "pointer/pointer_model.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// How the trial stays clear of running out of frames, if it does.
enum class room {
  fits,       // the file has no more pages than the cache
  few_lanes,  // so few lanes are active that each can hold all its pins
  too_many,   // more pins than frames: -ENOMEM is legal
};

inline const file_set& pointer_files(std::uint64_t page_nbytes) {
  static std::map<std::uint64_t, std::unique_ptr<file_set>> sets;
  auto& set = sets[page_nbytes];
  if (!set) set = std::make_unique<file_set>(page_nbytes);
  return *set;
}

// What a mapping's elements look like afterwards, and that discard() gives the file's bytes back. One thread, so that two frames
// beside the changed ones are enough.
template <class T>
struct verify_private {
  mount_ref fs;
  const char* path;
  std::int64_t offset, count;
  T* changed;       // by a private mapping
  T* plain;         // by a mapping without changes
  std::byte* read;  // by pread
  T* discarded;     // by the private mapping after discard
  int* errors;      // of discard while a pointer is linked; after; after again

  GPUFS_DEVICE_COLD void copy(const ptr<const T>& p, T* to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = p[i];
  }
  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const auto me = this_thread();
    const file f = open(me, fs, path);
    auto p = map<const T>(me, f, offset, count, map_flags::private_changes);
    {
      auto q = map<const T>(me, f, offset, count);
      copy(p, changed);
      p.unlink();
      copy(q, plain);
    }
    const auto nbytes = static_cast<std::size_t>(count) * sizeof(T);
    const bool all = pread(me, f, read, nbytes, offset) == static_cast<std::int64_t>(nbytes);
    errors[0] = all ? 0 : -EIO;
    errors[1] = discard(me, p);
    for (std::int64_t i = 0; i < count; ++i) discarded[i] = *p++;
    errors[2] = discard(me, p);
    close(me, f);
  }
};

struct pointer_trial {
  // walk: pointers are map_sequential's, in caches with room for the file and the runs that they link to. stores: what they write
  // goes to the file.
  pointer_trial(std::uint64_t chosen, const mapped_model& element, unsigned alignment, bool walk, bool stores)
      : seed(chosen), draw(chosen * 2 + element.writable), m(element), walks(walk), to_file(stores) {
    const std::vector<std::uint32_t> pages = {512, 512, 512, 1024, 4096, 4096, 16384, 65536};
    options.page_nbytes = draw.pick(pages);
    m.page_nbytes = options.page_nbytes;
    do {
      from = static_cast<source>(draw.below(6));
    } while (m.writable && (from == source::nil || (to_file && from > source::automatic)));
    in_memory = to_file && draw.percent(50) && memory_directory() == "/dev/shm";
    if (to_file && !in_memory) from = source::posix;  // only files in memory may be mapped for writing
    m.bytes_known = from != source::nil;
    nframes = static_cast<std::uint32_t>(draw.percent(30) ? draw.between(2, 4) : draw.between(2, 64));
    options.store = from == source::posix ? store_kind::posix : from == source::mapped ? store_kind::mapped : store_kind::automatic;
    options.max_open_files = 64;
    options.nworkers = static_cast<std::uint32_t>(draw.between(1, 3));
    options.internals.nrings = static_cast<std::uint32_t>(draw.below(5));
    options.writable = to_file;
    draw_file(alignment);
    draw_lanes();
    options.cache_nbytes = std::uint64_t{nframes} * options.page_nbytes;
    const std::vector<advice> all = {advice::random, advice::random, advice::whole, advice::sequential, advice::noreuse};
    if (!m.writable && draw.percent(60)) said = draw.pick(all);
    options.frame_timeout = kind == room::too_many ? std::chrono::nanoseconds(std::chrono::microseconds(draw.between(1, 100)))
                                                   : std::chrono::nanoseconds(std::chrono::seconds(60));
  }

  // A read links nothing where the cache is to keep nothing; nor where pages come in part, and no frame is at hand: as where there
  // is no frame.
  bool may_link_nothing() const { return kind == room::too_many || said == advice::random || said == advice::noreuse; }

  const char* advised() const {
    constexpr const char* names[] = {"normal", "random", "sequential", "willneed", "dontneed", "noreuse", "whole"};
    return said ? names[static_cast<int>(*said)] : "without advice";
  }
  std::string describe() const {
    constexpr const char* kinds[] = {"the file fits", "few lanes", "too many pins"};
    std::ostringstream text;
    text << "GPUFS_TEST_SEED=" << seed << " (" << name_of(from) << ", elements of " << m.nbytes << " from " << m.begin << ", "
         << m.count << " of them, page " << options.page_nbytes << ", " << nframes << " frames, " << grid << " x " << block
         << " threads, " << nactive << " active, " << npointers << " pointers, " << kinds[static_cast<int>(kind)] << ", "
         << advised() << ")";
    return text.str();
  }

  std::uint64_t seed;
  random_source draw;
  source from;
  std::uint32_t nframes;
  mount_options options;
  unsigned grid = 1, block = 32, nactive = 1, npointers = 1, nrounds = 1;
  simt::cpu_schedule schedule;
  std::size_t file = 0;
  std::int64_t file_nbytes = 0;
  room kind = room::fits;
  std::optional<advice> said;  // of the file
  mapped_model m;
  bool walks, to_file, in_memory = false;
  std::vector<meeting> meetings;
  std::vector<lane_program> programs;     // of the active lanes
  std::vector<std::uint32_t> program_of;  // by thread; none: not active
  static constexpr std::uint32_t none = ~0u;

 private:
  // The file and the part of it that is mapped.
  void draw_file(unsigned alignment) {
    const file_set& files = pointer_files(options.page_nbytes);
    do {
      file = draw.below(files.names.size());
      file_nbytes = files.nbytes(from, file);
    } while (file_nbytes < static_cast<std::int64_t>(m.nbytes));
    const std::uint64_t offsets = static_cast<std::uint64_t>(file_nbytes) / alignment + 1;
    const std::uint64_t near = 2 * m.page_nbytes / alignment;
    m.begin = draw.percent(25) ? 0 : draw.below(std::min(offsets, near)) * alignment;
    const std::int64_t most = (file_nbytes - static_cast<std::int64_t>(m.begin)) / m.nbytes;
    m.count = most;
    if (draw.percent(50)) m.count = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(most) + 1));
    if (m.writable) m.count = std::min<std::int64_t>(m.count, on_cuda ? 20000 : 40000);  // verified element by element
    m.bytes.resize(static_cast<std::size_t>(m.count) * m.nbytes);
    if (m.bytes_known)
      std::copy_n(files.bytes[file].begin() + static_cast<std::ptrdiff_t>(m.begin), m.bytes.size(), m.bytes.begin());
  }

  void draw_lanes() {
    const auto pages = static_cast<std::uint64_t>(file_nbytes) / m.page_nbytes + 1;
    const auto warps = static_cast<unsigned>(draw.between(1, under_tsan ? 2 : 3));
    block = 32 * warps;
    grid = static_cast<unsigned>(on_cuda ? draw.between(1, 16) : draw.between(1, 3));
    npointers = static_cast<unsigned>(draw.between(1, all_pointers));
    nrounds = static_cast<unsigned>(draw.between(1, 5));
    for (unsigned r = 0; r < nrounds; ++r) meetings.push_back(static_cast<meeting>(draw.below(4)));
    const unsigned nthreads = grid * block, nwarps = nthreads / 32;
    const std::uint64_t dice = walks ? 15 : draw.below(100);
    if (dice < 15 && !m.writable) {
      kind = room::too_many;
      nactive = nthreads;
    } else if (dice < 50) {
      // A private mapping's pages are beside those that open and pread bring in.
      nframes = std::max<std::uint32_t>(nframes, static_cast<std::uint32_t>(m.writable ? 2 * pages : pages));
      if (walks) nframes += static_cast<std::uint32_t>(draw.between(16, 64)) * nwarps;
      nactive = static_cast<unsigned>(draw.percent(50) ? nthreads : draw.between(1, nthreads));
    } else {
      kind = room::few_lanes;
      // Each pin that may be held at once, and one frame for a copied pointer's; each warp may read, and be opening.
      std::uint64_t pinned = nwarps;
      if (m.writable) pinned += draw_own(static_cast<unsigned>(draw.between(1, nthreads)), 4);
      const std::uint64_t need = (npointers + 1) * (to_file ? 2 : 1);  // and their twins
      nframes = std::max<std::uint32_t>(nframes, static_cast<std::uint32_t>(pinned + need));
      nactive = std::min<unsigned>(nthreads, static_cast<unsigned>((nframes - pinned) / need));
      if (m.writable) draw_own(nactive, 4);
    }
    if (m.writable && kind == room::fits) draw_own(nactive, 40);
    if (to_file) nframes = 2 * nframes + 2;  // a quarter of them may be dirty

    program_of.assign(nthreads, none);
    for (unsigned i = 0; i < nactive; ++i) {  // the first ones: whole warps; else spread over all
      unsigned t = i;
      if (kind == room::few_lanes || draw.percent(50)) {
        do {
          t = static_cast<unsigned>(draw.below(nthreads));
        } while (program_of[t] != none);
      } else {
        while (program_of[t] != none) ++t, t %= nthreads;
      }
      program_of[t] = i;
    }
    // The lanes of a warp do the same, so that they often stay together.
    if (!m.writable && nactive == nthreads && draw.percent(40)) {
      for (unsigned t = 0; t < nthreads; ++t) program_of[t] = program_of[t - t % 32];
    }
    draw_programs();
    schedule.timeout_ns = 20'000'000'000;
    schedule.seed = seed;
    schedule.order = static_cast<simt::block_order>(draw.below(3));
    schedule.resident_blocks = static_cast<unsigned>(draw.below(4));
    schedule.nthreads = static_cast<unsigned>(draw.between(1, 2));
    schedule.switch_percent = draw.pick(std::vector<unsigned>{0, 5, 25, 60, 100});
  }

  // Shares the mapping's first elements out among `lanes`: how many pages they lie in.
  std::uint64_t draw_own(unsigned lanes, std::int64_t most) {
    own_count_ = std::min<std::int64_t>(most, m.count / 2 / std::max(1u, lanes));
    m.own_end = own_count_ * lanes;
    m.shared_end = m.own_end + std::min<std::int64_t>(3, m.count - m.own_end);
    return m.shared_end == 0 ? 1 : (m.position(m.shared_end) - 1) / m.page_nbytes - m.begin / m.page_nbytes + 1;
  }

  void draw_programs() {
    lane_program::shape shape{.nrounds = nrounds, .npointers = npointers};
    const unsigned most = nactive > 64 ? 6 : nactive > 16 ? 12 : 30;
    shape.nsteps = static_cast<unsigned>(draw.between(1, under_tsan ? most / 2 : most));
    shape.sloppy_percent = draw.percent(30) ? 0 : draw.percent(20) ? 30 : 5;
    shape.adds_shared = true;
    for (unsigned i = 0; i < nactive; ++i) {
      shape.own_first = own_count_ * i;
      shape.own_count = m.writable ? own_count_ : 0;
      programs.emplace_back(draw, m, shape);
    }
  }

  std::int64_t own_count_ = 0;
};

template <class T, class Access, bool ToFile>
class trial_runner {
  using plain = std::remove_const_t<T>;
  static constexpr bool writable = !std::is_const_v<T>;

 public:
  explicit trial_runner(std::uint64_t seed)
      : t_(seed, model_of_element(), alignof(T), std::is_same_v<Access, sequential_access>, ToFile) {}

  const pointer_trial& trial() const { return t_; }

  void run() {
    const file_set& files = pointer_files(t_.options.page_nbytes);
    const std::string& name = files.names[t_.file];
    std::optional<temp_dir> own;
    if constexpr (ToFile) {
      own.emplace(t_.in_memory ? memory_directory() : std::filesystem::temp_directory_path());
      own->add(name, files.bytes[t_.file].size(), t_.file + 1);
    } else {
      t_.options.custom_store = files.custom_store(t_.from);
    }
    const mount fs(own ? own->path() : files.dir.path(), t_.options);
    if (under_memcheck() && (t_.from == source::mapped || t_.from == source::automatic)) fs.prepare(name);
    path_ = std::make_unique<device_buffer<char>>(simt::device_string(name));
    run_programs(fs);
    if (::testing::Test::HasFailure()) return;
    if constexpr (ToFile) {
      verify_file(own->read(name), fs.counters());
    } else if constexpr (writable) {
      verify(fs);
    }
  }

 private:
  void run_programs(const mount& fs) {
    const unsigned nthreads = t_.grid * t_.block;
    std::vector<std::uint32_t> first_step;
    std::vector<pointer_step> steps;
    std::vector<expected_result> expected;
    std::uint64_t nfaults = 0, nreads = 0;
    for (unsigned thread = 0; thread < nthreads; ++thread) {
      const std::uint32_t which = t_.program_of[thread];
      for (unsigned r = 0; r < t_.nrounds; ++r) {
        first_step.push_back(static_cast<std::uint32_t>(steps.size()));
        if (which == pointer_trial::none) continue;
        const lane_program& p = t_.programs[which];
        const auto begin = static_cast<std::ptrdiff_t>(p.round_begin(r)), end = static_cast<std::ptrdiff_t>(p.round_begin(r + 1));
        steps.insert(steps.end(), p.steps().begin() + begin, p.steps().begin() + end);
        expected.insert(expected.end(), p.expected().begin() + begin, p.expected().begin() + end);
      }
      if (which == pointer_trial::none) continue;
      nfaults += t_.programs[which].nfaults();
      nreads += t_.programs[which].nreads();
    }
    first_step.push_back(static_cast<std::uint32_t>(steps.size()));

    const device_buffer<meeting> meetings(t_.meetings);
    const device_buffer<std::uint32_t> first(first_step);
    const device_buffer<pointer_step> step_memory(steps);
    const device_buffer<std::uint64_t> results(steps.size());
    const device_buffer<std::byte> global(std::size_t{nthreads} * global_pointers * sizeof(ptr<T, Access>));
    const device_buffer<std::byte> scratch(std::size_t{nthreads} * 2);
    const device_buffer<std::int64_t> errors(nthreads);
    simt::launch(
        {.grid = t_.grid, .block = t_.block, .schedule = t_.schedule},
        pointer_kernel<T, Access>{fs.ref(), path_->get(), static_cast<std::int64_t>(t_.m.begin), t_.m.count, flags(), ToFile,
                                  t_.said ? static_cast<std::int32_t>(*t_.said) : -1, t_.nrounds, meetings.get(), first.get(),
                                  step_memory.get(), results.get(), global.get(), scratch.get(), errors.get()});
    bool pread_starved = false;
    for (const std::int64_t e : errors.read()) {
      if (e == -ENOMEM && t_.kind == room::too_many) {  // a pread may find no frame
        pread_starved = true;
        continue;
      }
      ASSERT_EQ(e, 0);
    }
    compare(steps, expected, results.read());
    if (!::testing::Test::HasFailure()) check_counters(fs.counters(), nfaults, nreads, pread_starved);
  }

  void compare(const std::vector<pointer_step>& steps, const std::vector<expected_result>& expected,
               const std::vector<std::uint64_t>& got) {
    const bool starves = t_.may_link_nothing();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const expected_result& e = expected[i];
      if (e.kind == result_kind::ignored || got[i] == e.value) continue;
      const bool legal = starves && e.kind != result_kind::exact && got[i] == e.starved;
      ASSERT_TRUE(legal) << "step " << i << ", operation " << static_cast<int>(steps[i].what) << " of pointer " << int{steps[i].p}
                         << " and " << int{steps[i].q} << ", n " << steps[i].n << ": " << got[i] << " instead of " << e.value;
    }
  }

  void check_counters(const mount_counters& c, std::uint64_t nfaults, std::uint64_t nreads, bool pread_starved) {
    EXPECT_EQ(c.pins, 0u);
    EXPECT_EQ(c.pinned_frames, 0u);
    EXPECT_EQ(c.unpin_errors, 0u);
    EXPECT_EQ(c.io_timeouts, 0u);
    EXPECT_EQ(c.bad_file_numbers, 0u);
    EXPECT_EQ(c.host_opens, c.host_closes);
    const bool in_parts = t_.said == advice::random, ahead = t_.said == advice::sequential;
    if (!ToFile) {  // twins are allocated, too
      if (in_parts) {
        EXPECT_LE(c.allocations, c.faults);
      } else if (ahead) {
        EXPECT_GE(c.allocations, c.faults + c.under_way);
      } else {
        EXPECT_EQ(c.allocations, c.faults);
      }
      if (ahead) {  // a fill of pages that are asked for may fail just before the last close
        EXPECT_GE(c.allocations - c.evictions, t_.nframes - c.free_frames);
      } else {
        EXPECT_EQ(c.allocations - c.evictions, t_.nframes - c.free_frames);
      }
    }
    EXPECT_EQ(c.fault_errors, nfaults);
    if (t_.kind != room::too_many || (!writable && !pread_starved)) {  // writes fail for want of a frame, and reads do not
      EXPECT_EQ(c.errors, 0u);
    }
    // Each access looks up one page, or those that its element lies in (the widest: two elements); lanes together do so once.
    const std::uint64_t pages = 2 + 2 * t_.m.nbytes / t_.m.page_nbytes;
    const std::uint64_t others = std::uint64_t{t_.grid} * t_.block / 32 * (t_.nrounds + 1) * 2;
    if (!writable) {
      EXPECT_EQ(c.dirty_frames, 0u);
      if (in_parts) {
        EXPECT_LE(c.bytes_filled, c.faults * t_.options.page_nbytes);
      } else {
        EXPECT_EQ(c.bytes_filled, c.faults * t_.options.page_nbytes);
      }
    }
    if (t_.said == advice::noreuse && t_.from == source::mem_pull) {
      EXPECT_EQ(c.faults, 0u) << "the device can read these bytes itself";
    }
    if (t_.walks || ahead) return;  // a run counts a hit for each of its pages, and pages that are asked for are nobody's access
    EXPECT_LE(c.hits + c.faults + c.waits, nreads * (pages + 1) * (t_.m.writable ? 3 : 1) + others);
  }

  void verify(const mount& fs) {
    const auto n = static_cast<std::size_t>(t_.m.count);
    const device_buffer<plain> changed(n), untouched_elements(n), discarded(n);
    const device_buffer<std::byte> read(n * sizeof(T));
    const device_buffer<int> errors(3);
    simt::launch({.grid = 1, .block = 32, .schedule = t_.schedule},
                 verify_private<plain>{fs.ref(), path_->get(), static_cast<std::int64_t>(t_.m.begin), t_.m.count, changed.get(),
                                       untouched_elements.get(), read.get(), discarded.get(), errors.get()});
    EXPECT_EQ(errors.read(), std::vector<int>(3));
    const file_set& files = pointer_files(t_.options.page_nbytes);
    const auto file_begin = files.bytes[t_.file].begin() + static_cast<std::ptrdiff_t>(t_.m.begin);
    const std::vector<std::byte> original(file_begin, file_begin + static_cast<std::ptrdiff_t>(n * sizeof(T)));
    expect_same(changed, t_.m.bytes, "the private mapping");
    expect_same(untouched_elements, original, "a mapping without changes");
    expect_same(discarded, original, "the private mapping after discard");
    EXPECT_TRUE(read.read() == original) << "pread sees the changes";
    const auto c = fs.counters();
    EXPECT_EQ(c.dirty_frames, 0u);
    EXPECT_EQ(c.pins, 0u);
  }

  // What was written is there, and nothing else has changed.
  void verify_file(const std::vector<std::byte>& got, const mount_counters& c) const {
    std::vector<std::byte> wanted = pointer_files(t_.options.page_nbytes).bytes[t_.file];
    std::copy(t_.m.bytes.begin(), t_.m.bytes.end(), wanted.begin() + static_cast<std::ptrdiff_t>(t_.m.begin));
    ASSERT_EQ(got.size(), wanted.size());
    const auto differ = std::mismatch(got.begin(), got.end(), wanted.begin());
    EXPECT_TRUE(differ.first == got.end()) << "byte " << differ.first - got.begin() << " of the file";
    EXPECT_EQ(c.unwritten_pages, 0u);
    EXPECT_EQ(c.dirty_frames, 0u);
  }

  void expect_same(const device_buffer<plain>& got, const std::vector<std::byte>& expected, const char* what) {
    const std::vector<plain> values = got.read();
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::memcmp(&values[i], expected.data() + i * sizeof(plain), sizeof(plain)), 0)
          << what << " has another element " << i << " (" << t_.m.own_end << " of the lanes, shared up to " << t_.m.shared_end
          << ")";
    }
  }

  static mapped_model model_of_element() {
    mapped_model m{};
    m.nbytes = sizeof(T);
    m.is_integral = std::is_integral_v<plain>;
    m.has_atomics = has_atomics<plain>;
    m.wide_is_16 = std::is_same_v<wide_of<plain>, simt::vec16>;
    m.writable = writable;
    return m;
  }
  static constexpr map_flags flags() { return writable && !ToFile ? map_flags::private_changes : map_flags::none; }

  pointer_trial t_;
  std::unique_ptr<device_buffer<char>> path_;
};

// Runs seeds, each with the element type that it draws from Types. ToFile: files are open for writing, and get what is written.
template <class Access, bool ToFile, class... Types>
void run_pointer_trials(std::uint64_t usual_count) {
  const seed_range seeds = seeds_to_run(usual_count);
  const bool loud = number_from_environment("GPUFS_TEST_VERBOSE", 0) != 0;
  std::map<std::string, int> kinds;
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    std::string what;
    const auto run = [&]<class T>(std::type_identity<T>) {
      trial_runner<T, Access, ToFile> runner(seed);
      what = runner.trial().describe();
      if (loud) std::cout << what << std::endl;
      constexpr const char* names[] = {"where the file fits", "of few lanes", "with more pins than frames"};
      ++kinds[names[static_cast<int>(runner.trial().kind)]];
      if (runner.trial().said) ++kinds[std::string("with advice ") + runner.trial().advised()];
      try {
        runner.run();
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    };
    const std::uint64_t chosen = content_word(seed, 1) % sizeof...(Types);
    std::uint64_t i = 0;
    (static_cast<void>(chosen == i++ ? run(std::type_identity<Types>{}) : void()), ...);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "repeat with " << what;
  }
  for (const auto& [name, n] : kinds) std::cout << n << " trials " << name << '\n';
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
