// SPDX-License-Identifier: Apache-2.0
// Would gpufs gain by its own data-parallel operations (gpufs/par) where it has lists? Tried beside what it does; nothing here is
// bounded. The figures are as good as they can be for the operations: nobody changes the words that they look at meanwhile.
//
// par_dirty_list: which frames have a file's dirty pages: n of 2^8 to 2^16, of 2^16 and 2^18 frames; pages side by side, or all
// over the file. By a compaction of all frames' state words, as times as fast as by taking them out of the file's lists, as fsync
// does: by a block each; and by all blocks of a launch against a warp a list. Both must find the frames that the host finds.
// par_dirty_list_share: taking them out of the lists, as a share of an fsync of the same pages by as many threads. 8 bytes of each
// page were written, and go to the file's mapping, which is the least that fsync can do: a compaction saves these threads no more
// than this share.
//
// par_open_all: taking a free slot a file, all at once and without their opens, as a share of open_all by blocks over a store
// without bytes, whose opens cost least. par_take_slots: the same slots from an array, by one addition a block of the number that
// enumerate gives it, as times as fast as from the lists of free slots, lane by lane. No two lanes may have the same slot.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "access.hpp"
#include "gpufs/par/compact.hpp"
#include "gpufs/par/group_scan.hpp"
#include "gpufs/store/nil_store.hpp"

namespace {

using namespace bench;
using gpufs::lists_per_slot;

constexpr std::uint32_t page_nbytes = 4096;
constexpr unsigned threads = on_gpu ? 256 : 64, blocks_per_sm = on_gpu ? 4 : 1;

std::vector<double> per_second(const std::vector<double>& seconds, std::uint64_t n) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(static_cast<double>(n) / s * 1e-6);
  return rates;
}

// So that no answer is one of before.
template <class T>
void clear(const device_array<T>& array) {
  array.device().zero_device(array.get(), array.size() * sizeof(T));
}

struct job {
  gpufs::mount_ref fs;
  std::uint64_t* failed;

  GPUFS_DEVICE void note(bool right) const {
    if (!right) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

// --- Dirty pages -------------------------------------------------------------------------------------------------------------

namespace cache = gpufs::cache;
namespace par = gpufs::par;

struct job_of_file : job {
  gpufs::file_number number;
};

// What the cache and the table of files call the file.
struct inner_names {
  std::uint32_t slot, cache_id;
};
struct find_names : job_of_file {
  inner_names* names;
  GPUFS_DEVICE void operator()() const {
    if (!gpufs::this_warp().leader()) return;
    const gpufs::file_view view = gpufs::file_table(*fs.get()).view_to_write(number);
    note(view.error == 0);
    *names = {view.slot, view.cache_id};
  }
};

// The pages 0, apart, 2 * apart, ...
struct write_some : job_of_file {
  std::uint64_t n, apart;
  const std::uint64_t* word;  // what is written of each
  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file file(fs, number);
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    for (std::uint64_t i = global_warp(); i < n; i += warps) {
      const std::int64_t done = gpufs::pwrite(warp, file, word, sizeof *word, static_cast<std::int64_t>(i * apart * page_nbytes));
      if (warp.leader()) note(done == sizeof *word);
    }
  }
};

struct sync_all : job_of_file {
  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const int error = gpufs::fsync(block, gpufs::file(fs, number), gpufs::durability::page_cache);
    if (block.leader()) note(error == 0);
  }
};

// A file's lists, and what was taken out of them: of list i counts[i] frames, from frames[i * room] on. Each warp of a launch has
// some of the lists, as in write_back_lists.
struct job_of_lists : job {
  std::uint32_t slot;
  std::uint32_t *frames, *counts;
  std::uint64_t room;

  template <class Each>
  GPUFS_DEVICE void each_list(Each each) const {
    const std::uint64_t warps = std::uint64_t{gpufs::simt::grid_size()} * (gpufs::simt::block_size() / 32);
    if (!gpufs::this_warp().leader()) return;
    for (std::uint64_t i = global_warp(); i < lists_per_slot; i += warps)
      each(gpufs::file_table(*fs.get()).list(slot, static_cast<std::uint32_t>(i)), frames + i * room, counts[i]);
  }
};
struct take_out : job_of_lists {
  GPUFS_DEVICE void operator()() const {
    const cache::dirty_pages pages(fs.get()->cache);
    each_list([&](cache::dirty_list& list, std::uint32_t* to, std::uint32_t& count) {
      std::uint32_t n = 0;
      const bool locked = cache::dirty_pages::try_lock(list);
      const auto too_many = [&](cache::frame_index) { return n == room; };
      for (auto left = pages.leave(list, too_many); locked && left.found; left = pages.leave(list, too_many))
        to[n++] = static_cast<std::uint32_t>(left.frame);
      if (locked) cache::dirty_pages::unlock(list);
      note(locked && cache::dirty_pages::is_empty(list));
      count = n;
    });
  }
};
struct put_back : job_of_lists {
  GPUFS_DEVICE void operator()() const {
    const cache::dirty_pages pages(fs.get()->cache);
    each_list([&](cache::dirty_list& list, const std::uint32_t* from, std::uint32_t count) {
      while (count != 0) pages.put_back(list, cache::frame_index{from[--count]});
    });
  }
};

// Frames as a scan has them: 1 for a dirty page of the file, 0 for others.
struct dirty_frames {
  using element = std::uint64_t;
  using value = std::uint64_t;
  static constexpr unsigned n = par::scan_space::items_a_row(sizeof(element)),
                            nrows = par::scan_space::rows_beside(sizeof(element));
  using words = par::detail::array_items<const std::uint64_t, par::detail::memory::global>;
  words states;
  const std::uint64_t* keys;
  std::uint32_t cache_id;

  struct row {
    std::uint32_t counted;  // bit k of element k
    GPUFS_DEVICE value operator[](unsigned k) const { return counted >> k & 1; }
  };

  GPUFS_HOST_DEVICE static bool is_one(std::uint64_t state, const std::uint64_t& key, std::uint32_t cache_id) {
    return (state & cache::frame_state::dirty) != 0 && cache::cache_id_of(cache::page_key{cache::sealed(key, state)}) == cache_id;
  }
  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const { states.prefetch(begin, end); }
  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return states.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    words::row all;
    states.load_row(first, all);
    count(first, all, to);
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, value, row& to) const {
    words::row all;
    states.load_row(first, valid, 0, all);
    count(first, all, to);
  }

 private:
  GPUFS_DEVICE void count(std::uint64_t first, const words::row& all, row& to) const {
    to.counted = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) to.counted |= is_one(all[k], keys[first + k], cache_id) ? 1u << k : 0;
  }
};
struct put_number {
  std::uint32_t* out;
  template <class Row>
  GPUFS_DEVICE void put(std::uint64_t i, const Row& row, unsigned k, std::uint64_t below) const {
    if (row[k] != 0) out[below] = static_cast<std::uint32_t>(i);
  }
};

struct compaction {
  dirty_frames from;
  std::uint64_t nframes;
  std::uint32_t* out;
  std::uint64_t* count;  // ~0: an error

  GPUFS_DEVICE par::detail::put_each<std::uint64_t, put_number> put() const { return {{out}}; }
};
struct compact_by_block : compaction {
  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const std::uint64_t all = par::detail::scan_by_group(block, from, nframes, par::plus<std::uint64_t>{}, put());
    if (block.leader()) *count = all;
  }
};
struct compact_by_grid : compaction {
  par::scan_space space;
  GPUFS_DEVICE void operator()() const {
    const auto grid = gpufs::simt::this_grid();
    std::uint64_t all = 0;
    const int error = par::detail::scan_by_look_back(grid, from, nframes, par::plus<std::uint64_t>{}, space, put(), all);
    if (grid.leader()) *count = error == 0 ? all : ~std::uint64_t{0};
  }
};

class dirty_pages {
 public:
  dirty_pages(const std::string& folder, std::uint64_t nframes, std::uint64_t most, int repeats, results& out)
      : repeats_(repeats), room_(most), out_(out), fs_(folder, options(nframes)) {
    fs_.prepare("data", O_RDWR);
    file_.emplace(fs_, "data", O_RDWR);
    const device_array<inner_names> names(1);
    run({1, 32}, find_names{of_file(), names.get()});
    names_ = names.read_one();
    const compact_by_grid kernel{compaction_of(), {}};
    grid_ = most_together<threads, blocks_per_sm>(kernel);
    space_ = device_array<std::byte>(par::scan_space::nbytes_for<std::uint64_t>(frames().nframes, grid_, threads));
  }

  void measure(std::uint64_t n, std::uint64_t apart) const {
    for (const bool by_block : {true, false}) {
      std::vector<double> listed, compacted, synced;
      bool right = true;
      for (int r = 0; r <= repeats_; ++r) {
        const seconds once = measure_once(n, apart, by_block, right);
        if (r == 0) continue;
        listed.push_back(once.listed);
        compacted.push_back(once.compacted);
        synced.push_back(once.synced);
      }
      const std::string what =
          std::to_string(n) + " of " + std::to_string(frames().nframes) + (apart == 1 ? ", side by side, " : ", all over, ");
      out_.add({"par_dirty_list", what + (by_block ? "by a block" : "by all blocks"), per_second(compacted, n), "M frames/s",
                spread_of(per_second(listed, n)).median, by_block ? "the lists, by a block" : "the lists, a warp each",
                measurement::kind::share_of_ceiling, right});
      out_.add({"par_dirty_list_share", what + (by_block ? "by a block" : "by a warp a list"), times(listed, 1e6), "us",
                spread_of(times(synced, 1e6)).median, "fsync", measurement::kind::share_of_ceiling, right});
    }
  }

 private:
  struct seconds {
    double listed, compacted, synced;
  };

  static gpufs::mount_options options(std::uint64_t nframes) {
    gpufs::mount_options o = short_waits();
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = nframes * page_nbytes;
    o.dirty_nbytes = o.cache_nbytes / 2;
    o.pin_nbytes = o.cache_nbytes + (1u << 30);
    o.writable = true;
    return o;
  }

  seconds measure_once(std::uint64_t n, std::uint64_t apart, bool by_block, bool& right) const {
    const shape how = by_block ? shape{1, threads} : shape{lists_per_slot / (threads / 32), threads};
    const device_array<std::uint64_t> word(1);
    run({lists_per_slot, threads}, write_some{of_file(), n, apart, word.get()});
    const std::vector<std::uint32_t> wanted = found_by_host();
    right = right && wanted.size() == n;
    seconds took{};
    clear(in_lists_);
    clear(out_frames_);
    const job_of_lists lists{{fs_.ref(), failed_.get()}, names_.slot, in_lists_.get(), counts_.get(), room_};
    took.listed = run(how, take_out{lists});
    right = right && taken_out() == wanted;
    run(how, put_back{lists});
    const compaction all = compaction_of();
    took.compacted =
        by_block ? run<blocks_per_sm>(how, compact_by_block{all})
                 : run_together<threads, blocks_per_sm>({grid_, threads}, compact_by_grid{all, {space_.get(), space_.size()}});
    right = right && compacted() == wanted;
    const gpufs::mount_counters before = fs_.counters();
    took.synced = run(how, sync_all{of_file()});
    const gpufs::mount_counters after = fs_.counters();
    right = right && after.write_backs - before.write_backs == n && after.unwritten_pages == 0 && failed_.read_one() == 0;
    return took;
  }

  const cache::frame_storage& frames() const { return gpufs::mount_inside(fs_).layout().cache.frames; }
  job_of_file of_file() const { return {{fs_.ref(), failed_.get()}, file_->ref().number()}; }
  compaction compaction_of() const {
    return {{{frames().states}, frames().keys, names_.cache_id}, frames().nframes, out_frames_.get(), count_.get()};
  }

  // In ascending order, all of them.
  std::vector<std::uint32_t> found_by_host() const {
    std::vector<std::uint64_t> states(frames().nframes), keys(frames().nframes);
    fs_.device().copy_from_device(states.data(), frames().states, states.size() * sizeof(std::uint64_t));
    fs_.device().copy_from_device(keys.data(), frames().keys, keys.size() * sizeof(std::uint64_t));
    std::vector<std::uint32_t> found;
    for (std::uint32_t f = 0; f < frames().nframes; ++f) {
      if (dirty_frames::is_one(states[f], keys[f], names_.cache_id)) found.push_back(f);
    }
    return found;
  }
  std::vector<std::uint32_t> taken_out() const {
    const std::vector<std::uint32_t> all = in_lists_.read(), counts = counts_.read();
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) found.insert(found.end(), &all[i * room_], &all[i * room_] + counts[i]);
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<std::uint32_t> compacted() const {
    std::vector<std::uint32_t> found = out_frames_.read();
    found.resize(std::min<std::uint64_t>(count_.read_one(), found.size()));
    return found;
  }

  int repeats_;
  std::uint64_t room_;
  results& out_;
  gpufs::mount fs_;
  std::optional<host_file> file_;
  inner_names names_{};
  unsigned grid_ = 0;
  device_array<std::byte> space_{1};
  device_array<std::uint64_t> failed_{1}, count_{1};
  device_array<std::uint32_t> in_lists_{lists_per_slot * room_}, counts_{lists_per_slot}, out_frames_{frames().nframes};
};

// --- Open slots --------------------------------------------------------------------------------------------------------------

// Each block has as many of the n files as it has threads.
struct job_of_names : job {
  std::uint32_t n;
  const char* const* names;
  gpufs::file_number* numbers;

  template <class Each>
  GPUFS_DEVICE void each_block(Each each) const {
    const std::uint32_t begin = gpufs::simt::block_rank() * gpufs::simt::block_size(), left = n - begin;
    const bool good = each(gpufs::this_block(), begin, left < gpufs::simt::block_size() ? left : gpufs::simt::block_size());
    if (gpufs::this_block().leader()) note(good);
  }
};
struct open_some : job_of_names {
  GPUFS_DEVICE void operator()() const {
    each_block([&](gpufs::simt::block block, std::uint32_t begin, std::uint32_t count) {
      return gpufs::open_all(block, fs, "", names + begin, count, O_RDONLY, numbers + begin);
    });
  }
};
struct close_some : job_of_names {
  GPUFS_DEVICE void operator()() const {
    each_block([&](gpufs::simt::block block, std::uint32_t begin, std::uint32_t count) {
      return gpufs::close_all(block, fs, numbers + begin, count);
    });
  }
};

struct slots_of_lanes {
  std::uint32_t n;
  std::uint32_t* got;
  GPUFS_DEVICE static std::uint32_t me() {
    return gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
  }
};
struct take_by_lists : slots_of_lanes {
  gpufs::mount_ref fs;
  GPUFS_DEVICE void operator()() const {
    if (me() < n) got[me()] = gpufs::file_slots(*fs.get()).take_slot(gpufs::detail::ring_hint(), false);
  }
};
struct give_to_lists : slots_of_lanes {
  gpufs::mount_ref fs;
  GPUFS_DEVICE void operator()() const {
    if (me() < n && got[me()] != ~0u) gpufs::file_blocks(*fs.get()).push_slots(got[me()], got[me()]);
  }
};
struct first_of_block {
  std::uint64_t place;
};
struct take_by_numbers : slots_of_lanes {
  const std::uint32_t* free;  // n of them
  std::uint64_t* ntaken;
  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const auto numbers = par::enumerate(block, me() < n);
    auto& first = gpufs::simt::shared<first_of_block>().place;
    if (block.leader()) first = atomic_ref<std::uint64_t>(*ntaken).fetch_add(numbers.all, std::memory_order_relaxed);
    block.sync();
    if (me() < n) got[me()] = free[first + numbers.below];
  }
};

class opens {
 public:
  opens(std::uint32_t most, int repeats, results& out)
      : most_(most), repeats_(repeats), out_(out), fs_(".", options(most)), text_(most * std::size_t{name_nbytes}), free_(most) {
    std::vector<char> text(text_.size());
    std::vector<const char*> names(most);
    std::vector<std::uint32_t> slots(most);
    for (std::uint32_t i = 0; i < most; ++i) {
      std::snprintf(&text[i * std::size_t{name_nbytes}], name_nbytes, "file%u", i);
      names[i] = text_.get() + i * std::size_t{name_nbytes};
    }
    std::iota(slots.begin(), slots.end(), 0);
    text_.write(text);
    names_.write(names);
    free_.write(slots);
  }

  void measure(std::uint32_t n) const {
    const shape how{(n + threads - 1) / threads, threads};
    std::vector<double> opened, listed, numbered;
    bool right = true;
    for (int r = 0; r <= repeats_; ++r) {
      const job_of_names files{{fs_.ref(), failed_.get()}, n, names_.get(), numbers_.get()};
      const double open = run(how, open_some{files});
      right = right && are_distinct(numbers_.read(), n, 1u << 31);
      run(how, close_some{files});
      clear(numbers_);
      clear(got_);
      const double lists = run(how, take_by_lists{{n, got_.get()}, fs_.ref()});
      right = right && are_distinct(got_.read(), n, fs_.options().max_open_files);
      run(how, give_to_lists{{n, got_.get()}, fs_.ref()});
      clear(got_);
      const device_array<std::uint64_t> ntaken(1);
      const double numbers = run(how, take_by_numbers{{n, got_.get()}, free_.get(), ntaken.get()});
      right = right && are_distinct(got_.read(), n, n) && ntaken.read_one() == n;
      if (r == 0) continue;
      opened.push_back(open);
      listed.push_back(lists);
      numbered.push_back(numbers);
    }
    right = right && failed_.read_one() == 0;
    const std::string what = std::to_string(n) + " files";
    out_.add({"par_open_all", what, times(listed, 1e6), "us", spread_of(times(opened, 1e6)).median, "open_all",
              measurement::kind::share_of_ceiling, right});
    out_.add({"par_take_slots", what, per_second(numbered, n), "M slots/s", spread_of(per_second(listed, n)).median,
              "the lists of free slots, lane by lane", measurement::kind::share_of_ceiling, right});
  }

 private:
  static constexpr unsigned name_nbytes = 16;

  static gpufs::mount_options options(std::uint32_t most) {
    gpufs::mount_options o = short_waits();
    o.cache_nbytes = 4 << 20;
    o.max_open_files = std::max(most, 1024u);
    o.reserved_open_files = o.max_open_files;  // else the first opens wait for memory
    o.custom_store = std::make_shared<gpufs::store::nil_store>(page_nbytes);
    return o;
  }

  std::uint32_t most_;
  int repeats_;
  results& out_;
  gpufs::mount fs_;
  device_array<char> text_;
  device_array<const char*> names_{most_};
  device_array<std::uint32_t> free_, got_{most_};
  device_array<gpufs::file_number> numbers_{most_};
  device_array<std::uint64_t> failed_{1};
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("own_lists", [&] {
    arguments args(argc, argv, "own_lists  --dir DIR  --frames N  --files N", on_gpu);
    const machine_facts machine = this_machine();
    const auto most_frames = static_cast<std::uint64_t>(args.number("frames", {1u << 18, 1u << 16, 1u << 12}));
    const auto most_files = static_cast<std::uint32_t>(args.number("files", {1u << 14, 1u << 12, 1u << 8}));
    const int repeats = repeats_of(args);
    const work_folder folder(args.path("dir", "/dev/shm"));
    results out("own_lists", args, machine);
    if (args.wants_any({"par_dirty_list", "par_dirty_list_share"})) {
      for (const std::uint64_t nframes : {most_frames / 4, most_frames}) {
        make_file(folder.path() + "/data", nframes * page_nbytes);
        const dirty_pages of(folder.path(), nframes, nframes / 4, repeats, out);
        for (std::uint64_t n = 1u << 8; n <= nframes / 4; n *= 16) {
          of.measure(n, 1);
          of.measure(n, nframes / n);
        }
      }
    }
    if (args.wants_any({"par_open_all", "par_take_slots"})) {
      const opens of(most_files, repeats, out);
      for (const std::uint32_t n : std::set<std::uint32_t>{32, std::min(1024u, most_files), most_files}) of.measure(n);
    }
    return out.finish();
  });
}
