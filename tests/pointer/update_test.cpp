// SPDX-License-Identifier: Apache-2.0
// Updates of elements that no pointer links: none is lost, of whatever lanes they are, and nothing else of the file changes.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "leftovers.hpp"
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct updates : writing_pointer_fixture {
  template <class T>
  void fill(const std::vector<T>& values) {
    end_mount();
    std::ofstream(std::filesystem::path(dir.path()) / "f", std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
    let_file_times_pass();
  }
};
INSTANTIATE_TEST_SUITE_P(on_disk_and_in_memory, updates, ::testing::Bool(), name_of_place);

// Whole numbers from 0 on, so small that their sums here are exact.
template <class T>
GPUFS_HOST_DEVICE T small(std::uint64_t seed, std::uint64_t i) {
  return static_cast<T>(content_word(seed, i) >> (std::is_same_v<T, float> ? 60 : 44));
}

// Each thread makes so many updates, of elements that `spread` draws from.
template <class T, class Op>
struct update_kernel : pointer_job {
  std::uint32_t ntimes;
  std::int64_t spread;
  T* found;         // what each update gave
  bool apart;       // no two lanes at the same time
  bool by_sectors;  // pages come in part, where they can

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    if (by_sectors) advise(warp, f, 0, 0, advice::random);
    {
      const auto p = map<T>(warp, f);
      for (std::uint32_t i = 0; i < ntimes; ++i) {
        const std::uint32_t n = thread() * ntimes + i;
        const auto one = [&] { found[n] = Op()(p, element(n, spread), value(n)); };
        if (!apart) {
          one();
        } else {
          for (unsigned lane = 0; lane < 32; ++lane) {
            if (simt::lane_id() == lane && thread() % 3 != 0) one();
            warp.sync();
          }
        }
      }
      mine()[0] = p.error();
    }
    mine()[1] = close(warp, f);
  }
  GPUFS_HOST_DEVICE static std::int64_t element(std::uint32_t n, std::int64_t spread) {
    return static_cast<std::int64_t>(content_word(7, n) % static_cast<std::uint64_t>(spread));
  }
  GPUFS_HOST_DEVICE static T value(std::uint32_t n) { return small<T>(8, n); }
};
struct adds {
  template <class T>
  GPUFS_DEVICE T operator()(const ptr<T>& p, std::int64_t i, T value) const {
    return fetch_add_at(p, i, value);
  }
};
struct keeps_least {
  template <class T>
  GPUFS_DEVICE T operator()(const ptr<T>& p, std::int64_t i, T value) const {
    return fetch_min_at(p, i, value);
  }
};
struct keeps_most {
  template <class T>
  GPUFS_DEVICE T operator()(const ptr<T>& p, std::int64_t i, T value) const {
    return fetch_max_at(p, i, value);
  }
};
struct exchanges {
  template <class T>
  GPUFS_DEVICE T operator()(const ptr<T>& p, std::int64_t i, T value) const {
    return exchange_at(p, i, value);
  }
};

template <class T>
std::vector<T> first_values() {
  std::vector<T> values(npages * page / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = small<T>(9, i);
  return values;
}

constexpr unsigned nthreads = 128;

// Calls each(n, element) for each update.
template <class Kernel, class Each>
void for_all(std::uint32_t ntimes, std::int64_t spread, bool apart, Each each) {
  for (std::uint32_t n = 0; n < nthreads * ntimes; ++n) {
    if (!apart || n / ntimes % 3 != 0) each(n, static_cast<std::size_t>(Kernel::element(n, spread)));
  }
}

struct trial {
  std::uint32_t ntimes;
  std::int64_t spread;
  std::uint64_t nframes;
  bool apart, by_sectors;
};
// All over a file that does not fit; a few elements; one; few frames; lanes that are alone; and by sectors.
constexpr trial trials[] = {{24, npages * 500, 16, false, false}, {12, 40, 64, false, false}, {12, 1, 64, false, false},
                            {6, npages * 500, 5, false, false},   {4, 30, 64, true, false},   {24, npages * 500, 16, false, true},
                            {6, npages * 500, 5, false, true}};

TEST_P(updates, adds_are_all_there_and_each_has_its_turn) {
  const auto of = [&]<class T>(T) {
    using kernel = update_kernel<T, adds>;
    for (const trial& t : trials) {
      std::vector<T> wanted = first_values<T>();
      fill(wanted);
      options.cache_nbytes = t.nframes * page;
      const device_buffer<T> given(std::size_t{nthreads} * t.ntimes);
      run<kernel>(2, nthreads / 2, t.ntimes, t.spread, given.get(), t.apart, t.by_sectors);
      for (unsigned i = 0; i < nthreads; ++i) {
        EXPECT_EQ(result(i, 0), 0);
        EXPECT_EQ(result(i, 1), 0);
      }
      EXPECT_EQ(fs().counters().fault_errors, 0u);
      EXPECT_EQ(fs().counters().unwritten_pages, 0u);
      const std::vector<T> found = given.read();
      std::map<std::size_t, std::vector<std::pair<T, T>>> steps;
      for_all<kernel>(t.ntimes, t.spread, t.apart, [&](std::uint32_t n, std::size_t at) {
        steps[at].push_back({found[n], kernel::value(n)});
      });
      // From what an element had at first, each update leads to what another one found, or to the end.
      for (auto& [at, all] : steps) {
        std::sort(all.begin(), all.end());
        for (const auto& [before, value] : all) {
          ASSERT_EQ(before, wanted[at]) << "element " << at << ", of " << all.size() << " updates";
          wanted[at] = static_cast<T>(wanted[at] + value);
        }
      }
      ASSERT_TRUE(in_file<T>() == wanted);
    }
  };
  of(std::uint32_t{});
  of(std::int64_t{});
  of(float{});
  of(double{});
}

TEST_P(updates, least_most_and_exchanged_values_are_as_in_some_order) {
  const auto of = [&]<class T, class Op>(T, Op, bool is_order) {
    using kernel = update_kernel<T, Op>;
    for (const trial& t : trials) {
      std::vector<T> wanted = first_values<T>();
      if (std::is_signed_v<T>) {
        for (std::size_t i = 0; i < wanted.size(); i += 2) wanted[i] = static_cast<T>(-wanted[i]);
      }
      fill(wanted);
      options.cache_nbytes = t.nframes * page;
      const device_buffer<T> given(std::size_t{nthreads} * t.ntimes);
      run<kernel>(2, nthreads / 2, t.ntimes, t.spread, given.get(), t.apart, t.by_sectors);
      const std::vector<T> found = given.read(), now = in_file<T>();
      std::map<std::size_t, std::vector<T>> had, got;  // what was there, and what came, by element
      for_all<kernel>(t.ntimes, t.spread, t.apart, [&](std::uint32_t n, std::size_t at) {
        had[at].push_back(found[n]);
        got[at].push_back(kernel::value(n));
        if (!is_order) return;
        const T value = kernel::value(n);
        if (std::is_same_v<Op, keeps_least> ? value < wanted[at] : wanted[at] < value) wanted[at] = value;
      });
      if (is_order) {
        ASSERT_TRUE(now == wanted);
        for (const auto& [at, all] : had) {  // none found what was not there yet, or no more
          for (const T value : all) ASSERT_TRUE((std::is_same_v<Op, keeps_least> ? now[at] <= value : value <= now[at])) << at;
        }
        continue;
      }
      for (auto& [at, all] : had) {  // each value but the last was found by one
        all.push_back(now[at]);
        got[at].push_back(wanted[at]);
        std::sort(all.begin(), all.end());
        std::sort(got[at].begin(), got[at].end());
        ASSERT_TRUE(all == got[at]) << at;
        wanted[at] = now[at];
      }
      ASSERT_TRUE(now == wanted);
    }
  };
  of(std::uint32_t{}, keeps_least{}, true);
  of(std::int32_t{}, keeps_least{}, true);
  of(std::uint64_t{}, keeps_most{}, true);
  of(std::int64_t{}, keeps_most{}, true);
  of(std::uint32_t{}, exchanges{}, false);
  of(double{}, exchanges{}, false);
}

// Half of the warps update every other word, others store to the words between them by pointers that link the pages, and by pwrite.
struct beside_kernel : pointer_job {
  std::uint32_t* words;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    const std::uint32_t w = thread() / 32, lane = simt::lane_id();
    {
      const auto p = map<std::uint32_t>(warp, f);
      for (std::int64_t i = lane; i < 8 * per_page / 4; i += 32) {
        if (w % 4 == 0) fetch_add_at(p, 4 * i, 1u);
        if (w % 4 == 1) p[4 * i + 1] = static_cast<std::uint32_t>(i);
        if (w % 4 == 2) {
          words[thread()] = static_cast<std::uint32_t>(~i);
          mine()[2] += pwrite(this_thread(), f, words + thread(), 4, 16 * i + 8) != 4;
        }
        if (w % 4 == 3) fetch_add_at(p, 4 * i, 2u);
        if (i % 512 == lane) mine()[3] += fsync(this_thread(), f) != 0;
      }
      mine()[0] = p.error();
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(updates, beside_stores_and_pwrites_to_the_same_pages_lose_nothing) {
  for (std::uint64_t seed = 1; seed <= fewer(6); ++seed) {
    end_mount();
    dir.add("f", npages * page, file_seed);
    let_file_times_pass();
    options.cache_nbytes = 40 * page;
    schedule.seed = seed;
    const device_buffer<std::uint32_t> words(nthreads);
    run<beside_kernel>(2, nthreads / 2, words.get());
    for (unsigned t = 0; t < nthreads; ++t) {
      for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(result(t, i), 0) << i;
    }
    const auto now = in_file<std::uint32_t>();
    for (std::int64_t i = 0; i < nwords; ++i) {
      std::uint32_t wanted = word_at(i);
      const auto group = static_cast<std::uint32_t>(i / 4);
      if (i < 8 * per_page && i % 4 == 0) wanted += 3;
      if (i < 8 * per_page && i % 4 == 1) wanted = group;
      if (i < 8 * per_page && i % 4 == 2) wanted = ~group;
      ASSERT_EQ(now[static_cast<std::size_t>(i)], wanted) << i;
    }
  }
}

// What cannot be updated, and says so.
struct refused : pointer_job {
  GPUFS_DEVICE void operator()() const {
    if (thread() != 0) return;
    const auto me = this_thread();
    std::int64_t* r = mine();
    const file f = open(me, fs, path, O_RDWR), reader = open(me, fs, path);
    {
      const auto p = map<std::uint32_t>(me, f, 8, 16);
      r[0] = fetch_add_at(p, 3, 1u) == word_at(5);
      r[1] = fetch_add_at(p, 16, 1u);  // beyond the mapping
      r[2] = p.error();
      const auto before = map<std::uint32_t>(me, f, 8, 16);
      fetch_add_at(before, -1, 1u);
      r[3] = before.error();
      const ptr<std::uint32_t> null;
      r[4] = fetch_add_at(null, 0, 1u);
      r[5] = null.error();
      const auto constant = map<const std::uint32_t>(me, reader);
      const ptr<std::uint32_t> forged(constant.mapped(), constant.within(), {});
      fetch_add_at(forged, 1, 1u);
      r[6] = forged.error();
      const auto last = map<std::uint32_t>(me, f);
      r[7] = ftruncate(me, f, static_cast<std::int64_t>(page + 8));
      fetch_add_at(last, per_page + 2, 1u);  // in a page of which the file has a part
      r[8] = last.error();
      r[9] = exchange_at(last, 1, 5u) == word_at(1);
    }
    r[10] = close(me, f);
    close(me, reader);
  }
};

TEST_P(updates, what_cannot_be_updated_changes_nothing_and_is_recorded) {
  const auto r = run<refused>(1, 32);
  const std::vector<std::int64_t> expected = {1, 0, -ENXIO, -ENXIO, 0, -EFAULT, -EACCES, 0, -ENXIO, 1, 0};
  EXPECT_EQ(std::vector<std::int64_t>(r.begin(), r.begin() + 11), expected);
  EXPECT_EQ(fs().counters().fault_errors, 4u);  // of the null pointer there is nobody to tell
  const auto now = in_file<std::uint32_t>();
  ASSERT_EQ(now.size(), static_cast<std::size_t>(per_page + 2));
  for (std::int64_t i = 0; i < per_page + 2; ++i) {
    EXPECT_EQ(now[static_cast<std::size_t>(i)], i == 1 ? 5 : word_at(i) + (i == 5 ? 1 : 0)) << i;
  }
}

// In one call of a warp: several kinds of updates of one element, in more files than lanes look for at once, and nulls among them.
struct mixed : pointer_job {
  const char* const* paths;  // seven

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    file files[7];
    for (unsigned i = 0; i < 7; ++i) files[i] = open(warp, fs, paths[i], O_RDWR);
    const unsigned lane = simt::lane_id();
    {
      ptr<std::uint32_t> p;
      for (unsigned i = 0; i < 7; ++i) {
        auto each = map<std::uint32_t>(warp, files[i]);
        if (lane % 8 == i) p = each;
      }
      for (unsigned i = 0; i < 20; ++i) {
        if (lane / 8 % 2 == 0) {
          fetch_add_at(p, i % 3, 1u);
        } else {
          fetch_max_at(p, i % 3, 0u);
        }
      }
      mine()[0] = p.error();
    }
    for (unsigned i = 0; i < 7; ++i) mine()[1] |= close(warp, files[i]);
  }
};

TEST_P(updates, of_several_kinds_and_files_at_once_are_each_done) {
  std::vector<std::unique_ptr<device_buffer<char>>> kept;
  std::vector<const char*> paths;
  for (int i = 0; i < 7; ++i) {
    const std::string name = "g" + std::to_string(i);
    dir.add(name, 2 * page, file_seed);
    kept.push_back(std::make_unique<device_buffer<char>>(std::span<const char>(name.c_str(), name.size() + 1)));
    paths.push_back(kept.back()->get());
  }
  let_file_times_pass();
  for (std::uint64_t seed = 1; seed <= fewer(8); ++seed) {
    schedule.seed = seed;
    const device_buffer<const char*> given{std::span<const char* const>(paths)};
    run<mixed>(2, nthreads / 2, given.get());
    for (unsigned t = 0; t < nthreads; ++t) {
      EXPECT_EQ(result(t, 0), t % 8 == 7 ? -EFAULT : 0);
      EXPECT_EQ(result(t, 1), 0);
    }
    for (int i = 0; i < 7; ++i) {
      const std::vector<std::byte> bytes = dir.read("g" + std::to_string(i));
      for (std::int64_t k = 0; k < 4; ++k) {
        std::uint32_t word = 0;
        std::memcpy(&word, bytes.data() + 4 * k, 4);
        const std::uint32_t each = k == 0 || k == 1 ? 7 : k == 2 ? 6 : 0, lanes = nthreads / 16;
        ASSERT_EQ(word, word_at(k) + static_cast<std::uint32_t>(seed) * each * lanes) << i << " " << k;
      }
    }
  }
}

// One call of a warp touches a page a lane.
struct many_pages : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<std::uint32_t>(warp, f);
      for (std::int64_t i = 0; i < 3; ++i) {
        fetch_add_at(p, (simt::lane_id() + i) * per_page, 1u);
        warp.sync();
        const auto dirty = simt::atomic_ref<std::uint64_t>(fs.get()->words->dirty_pages).load(std::memory_order_relaxed);
        if (static_cast<std::int64_t>(dirty) > mine()[2]) mine()[2] = static_cast<std::int64_t>(dirty);
        warp.sync();
      }
      mine()[3] =
          static_cast<std::int64_t>(simt::atomic_ref<std::uint64_t>(fs.get()->words->write_backs).load(std::memory_order_relaxed));
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(updates, of_many_pages_keep_the_dirty_limit) {
  options.cache_nbytes = 64 * page;
  options.dirty_nbytes = 8 * page;
  run<bring_in>(1, 32);
  run<many_pages>(1, 32);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(result(t, 1), 0);
    EXPECT_LE(result(t, 2), 8);
    EXPECT_GE(result(t, 3), 32 - 8) << "lanes that are apart may each write one back: none need stay";
  }
  const auto now = in_file<std::uint32_t>();
  for (std::int64_t i = 0; i < nwords; ++i) {
    const std::int64_t at = i / per_page;
    const std::uint32_t added = i % per_page != 0 || at > 33 ? 0 : at >= 2 && at < 32 ? 3 : at == 1 || at == 32 ? 2 : 1;
    ASSERT_EQ(now[static_cast<std::size_t>(i)], word_at(i) + added) << i;
  }
}

// In private changes: all see them, and the file does not.
struct in_private : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      for (std::int64_t i = 0; i < 3; ++i) fetch_add_at(p, i * per_page + simt::lane_id() % 4, 1u);
      this_block().sync();
      for (std::int64_t i = 0; i < 3; ++i) mine()[i] = p[i * per_page + simt::lane_id() % 4];
      p.unlink();
      this_block().sync();
      if (simt::thread_rank() / 32 == 0) mine()[3] = discard(warp, p);
    }
    close(warp, f);
  }
};

TEST_P(updates, of_private_changes_are_seen_by_all_and_never_in_the_file) {
  run<in_private>(1, nthreads);
  for (unsigned t = 0; t < nthreads; ++t) {
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(result(t, i), word_at(i * per_page + t % 4) + nthreads / 4);
  }
  EXPECT_EQ(result(0, 3), 0);
  const auto now = in_file<std::uint32_t>();
  for (std::int64_t i = 0; i < nwords; ++i) ASSERT_EQ(now[static_cast<std::size_t>(i)], word_at(i));
}

// While others cut the file and let it grow again: each add that is done is in the file, or was cut.
struct beside_cuts : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path, O_RDWR);
    {
      const auto p = map<std::uint32_t>(warp, f);
      if (thread() / 32 == 0) {
        for (int i = 0; i < 6; ++i) {
          mine()[0] |= ftruncate(warp, f, 4 * static_cast<std::int64_t>(page) + i % 2 * 4096 * 4);
        }
      } else {
        for (std::int64_t i = 0; i < 20; ++i) {
          fetch_add_at(p, (i % 4) * per_page + simt::lane_id(), 1u);      // stays
          fetch_add_at(p, (4 + i % 8) * per_page + simt::lane_id(), 0u);  // may be beyond the end
        }
      }
    }
    mine()[1] = close(warp, f);
  }
};

TEST_P(updates, beside_cuts_of_the_file_are_kept_before_its_end) {
  for (std::uint64_t seed = 1; seed <= fewer(4); ++seed) {
    end_mount();
    dir.add("f", npages * page, file_seed);
    let_file_times_pass();
    schedule.seed = seed;
    run<beside_cuts>(2, nthreads / 2);
    EXPECT_EQ(result(0, 0), 0);
    const auto now = in_file<std::uint32_t>();
    ASSERT_EQ(now.size(), 8u * per_page);
    for (std::int64_t i = 0; i < 4 * per_page; ++i) {
      const std::uint32_t added = i % per_page < 32 ? 5 * (nthreads / 32 - 1) : 0;
      ASSERT_EQ(now[static_cast<std::size_t>(i)], word_at(i) + added) << i;
    }
    for (std::int64_t i = 4 * per_page; i < 8 * per_page; ++i) ASSERT_EQ(now[static_cast<std::size_t>(i)], 0u) << i;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
