// SPDX-License-Identifier: Apache-2.0
// Registered mappings: shared between opens, kept within a budget, never given back while a kernel may wait for an open.
#include "gpufs/store/mapped_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <mutex>
#include <thread>

#include "forwarding_platform.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

// The CPU's memory, which counts registrations and refuses them when told to.
class counting_platform final : public forwarding_platform {
 public:
  counting_platform() : forwarding_platform(simt::cpu_platform()) {}
  void deallocate_pinned(void* p) noexcept override {
    ++nfreed;
    real_.deallocate_pinned(p);
  }
  const void* register_readonly(const void* p, std::size_t n, std::string* why) override {
    if (delay.count() != 0) std::this_thread::sleep_for(delay);
    ++nasked;
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (refuse) {
      ++nrefused;
      *why = "the test said no";
      return nullptr;
    }
    const std::scoped_lock hold(lock_);
    EXPECT_EQ(n % 4096, 0u);
    EXPECT_TRUE(live_.emplace(p, n).second);
    ++nregistered;
    registered_.push_back(p);
    return p;
  }
  void* register_writable(void* p, std::size_t n, std::string* why) override {
    return register_readonly(p, n, why) == nullptr ? nullptr : real_.register_writable(p, n, why);
  }
  bool registers_in_place() const override { return in_place; }
  void unregister(const void* p) noexcept override {
    const std::scoped_lock hold(lock_);
    EXPECT_EQ(live_.erase(p), 1u);
    unregistered_.push_back(p);
  }
  std::string_view name() const override { return "counting"; }

  std::size_t nlive() const {
    const std::scoped_lock hold(lock_);
    return live_.size();
  }
  std::vector<const void*> registered() const {
    const std::scoped_lock hold(lock_);
    return registered_;
  }
  std::vector<const void*> unregistered() const {
    const std::scoped_lock hold(lock_);
    return unregistered_;
  }
  std::atomic<bool> refuse{false}, held{false};
  bool in_place = true;
  std::chrono::milliseconds delay{0};
  std::atomic<int> nasked{0}, nregistered{0}, nrefused{0}, nfreed{0};

 private:
  mutable std::mutex lock_;
  std::map<const void*, std::size_t> live_;
  std::vector<const void*> registered_, unregistered_;
};

class mapped_files : public testing::Test {
 protected:
  mapped_files() {
    for (int i = 0; i < 6; ++i) dir_.add("f" + std::to_string(i), 10'000, static_cast<std::uint64_t>(i));  // three pages each
    let_file_times_pass();
  }
  template <class Store>
  std::unique_ptr<store::open_file> open(Store& files, int i, int flags = 0) {
    int error = 0;
    auto file = files.open("f" + std::to_string(i), flags, &error);
    EXPECT_EQ(error, 0);
    return file;
  }
  static constexpr int prepared = static_cast<int>(names::open_prepared);
  static constexpr std::uint64_t file_pinned = 3 * 4096;
  temp_dir dir_;
  counting_platform machine_;
};

TEST_F(mapped_files, opens_of_one_version_share_a_mapping) {
  store::mapped_store files(machine_, dir_.path(), 1 << 20);
  const auto first = open(files, 0), second = open(files, 0), other = open(files, 1);
  EXPECT_EQ(first->info().pull_base, second->info().pull_base);
  EXPECT_NE(first->info().pull_base, other->info().pull_base);
  EXPECT_EQ(machine_.nregistered, 2);
  EXPECT_EQ(files.usage().pinned_nbytes, 2 * file_pinned);
  EXPECT_EQ(files.usage().idle_nbytes, 0u);
  dir_.overwrite("f0", 0, 10, 99);
  let_file_times_pass();
  const auto changed = open(files, 0);
  EXPECT_EQ(machine_.nregistered, 3) << "a new version is mapped anew";
  EXPECT_EQ(first->check_version(), -ESTALE);
  EXPECT_EQ(changed->check_version(), 0);
}

TEST_F(mapped_files, a_large_file_that_was_just_written_is_mapped_once) {
  constexpr std::int64_t large = 64 << 20;
  int error = 0;
  for (const std::int64_t nbytes : {large, large - 1}) {
    const std::string name = numbered("fresh", static_cast<std::uint64_t>(nbytes));
    dir_.add_sparse(name, static_cast<std::uint64_t>(nbytes) - 1, 1, 5);
    store::auto_store files(machine_, dir_.path(), std::uint64_t{1} << 30);
    const auto first = files.open(name, prepared, &error), second = files.open(name, prepared, &error);
    ASSERT_TRUE(first && second);
    const bool shared = first->info().pull_base == second->info().pull_base;
    EXPECT_TRUE(shared || nbytes < large) << "smaller ones are not waited for, and may have settled or not";
    EXPECT_EQ(files.usage().pinned_nbytes, (shared ? 1 : 2) * static_cast<std::uint64_t>(large));
  }
}

TEST_F(mapped_files, closed_files_stay_registered_until_trimmed) {
  store::mapped_store files(machine_, dir_.path(), 1 << 20);
  const auto* base = open(files, 0)->info().pull_base;
  EXPECT_EQ(files.usage().idle_nbytes, file_pinned);
  EXPECT_EQ(files.usage().nidle, 1u);
  EXPECT_EQ(machine_.nlive(), 1u);
  {
    const auto again = open(files, 0);
    EXPECT_EQ(again->info().pull_base, base);
    EXPECT_EQ(machine_.nregistered, 1);
    EXPECT_EQ(files.usage().nidle, 0u);
    files.trim();
    EXPECT_EQ(machine_.nlive(), 1u) << "in use";
  }
  files.trim();
  EXPECT_EQ(machine_.nlive(), 0u);
  EXPECT_EQ(files.usage().pinned_nbytes, 0u);
  EXPECT_EQ(files.usage().nmappings, 0u);
}

TEST_F(mapped_files, trims_the_least_recently_used_first) {
  store::mapped_store files(machine_, dir_.path(), 1 << 20);
  std::vector<const void*> bases;
  for (int i = 0; i < 4; ++i) bases.push_back(open(files, i)->info().pull_base);
  open(files, 0);  // now the most recent
  files.trim(2 * file_pinned);
  EXPECT_EQ(machine_.unregistered(), (std::vector<const void*>{bases[1], bases[2]}));
}

TEST_F(mapped_files, the_budget_holds_and_an_open_never_unregisters) {
  store::mapped_store files(machine_, dir_.path(), 2 * file_pinned + 100);
  open(files, 0);
  const auto held = open(files, 1);
  int error = 0;
  std::string why;
  EXPECT_EQ(files.open_explained("f2", 0, &error, &why), nullptr);
  EXPECT_EQ(error, -EOPNOTSUPP);
  EXPECT_NE(why.find("budget"), std::string::npos) << why;
  EXPECT_NE(why.find("trim()"), std::string::npos) << why;
  EXPECT_TRUE(machine_.unregistered().empty());
  files.trim();
  EXPECT_TRUE(open(files, 2));
  EXPECT_EQ(files.usage().pinned_nbytes, 2 * file_pinned);
}

TEST_F(mapped_files, a_refused_registration_leaves_no_trace) {
  store::mapped_store files(machine_, dir_.path(), 1 << 20);
  machine_.refuse = true;
  int error = 0;
  std::string why;
  EXPECT_EQ(files.open_explained("f0", 0, &error, &why), nullptr);
  EXPECT_EQ(error, -EOPNOTSUPP);
  EXPECT_NE(why.find("the test said no"), std::string::npos) << why;
  EXPECT_EQ(files.usage().pinned_nbytes, 0u);
  EXPECT_EQ(files.usage().nmappings, 0u);
  machine_.refuse = false;
  EXPECT_TRUE(open(files, 0));
}

TEST_F(mapped_files, many_opens_of_one_file_register_it_once) {
  for (const bool refuse : {false, true}) {
    store::mapped_store files(machine_, dir_.path(), 1 << 20);
    machine_.delay = std::chrono::milliseconds(20);
    machine_.refuse = refuse;
    machine_.nregistered = 0;
    std::atomic<int> nopened{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        int error = 0;
        const auto file = files.open("f0", 0, &error);
        nopened += file != nullptr;
        EXPECT_EQ(error, refuse ? -EOPNOTSUPP : 0);
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(nopened, refuse ? 0 : 8);
    EXPECT_EQ(machine_.nregistered, refuse ? 0 : 1);
    EXPECT_EQ(files.usage().nidle, refuse ? 0u : 1u);
  }
  EXPECT_EQ(machine_.nlive(), 0u) << "the destructor unregisters";
}

// As when another thread is in cudaFree, which waits for the kernel that waits for the open.
TEST_F(mapped_files, nobody_waits_for_a_registration_that_takes_too_long) {
  store::auto_store files(machine_, dir_.path(), 0, store::auto_options{.small_file_nbytes = 1});
  machine_.delay = std::chrono::milliseconds(2500);
  for (int i = 0; i < 2; ++i) {  // the second knows
    const auto file = open(files, 0, prepared);
    EXPECT_EQ(file->info().kind, source_kind::staged);
    EXPECT_EQ(file->info().reason,
              "staged: registering its mapping takes too long: some thread may be in a CUDA call that waits for a kernel");
  }
  EXPECT_TRUE(wait_until([&] { return machine_.nregistered == 1 && files.usage().nidle == 1; }));
  EXPECT_EQ(open(files, 0)->info().kind, source_kind::pull);
  EXPECT_EQ(machine_.nregistered, 1);
}

TEST_F(mapped_files, auto_says_which_and_why) {
  using gpufs::source_kind;
  dir_.add("big", 300 << 10, 1);
  dir_.add("big2", 300 << 10, 2);
  dir_.add("empty", 0, 0);
  let_file_times_pass();
  store::auto_store files(machine_, dir_.path(), 400 << 10);
  int error = 0;
  const auto expect = [&](const char* path, int flags, source_kind kind, const char* because) {
    const auto file = files.open(path, flags, &error);
    ASSERT_TRUE(file) << path << error;
    EXPECT_EQ(file->info().kind, kind) << path;
    EXPECT_NE(file->info().reason.find(because), std::string::npos) << file->info().reason;
    EXPECT_EQ(read_all(*file).size(), static_cast<std::size_t>(file->info().nbytes));
  };
  expect("big", 0, source_kind::windows, "windows of 64 MiB");
  expect("big", prepared, source_kind::pull, "registered");
  expect("big", 0, source_kind::pull, "registered");
  expect("big2", prepared, source_kind::staged, "budget");
  expect("big2", 0, source_kind::windows, "windows of 64 MiB");
  expect("f0", 0, source_kind::staged, "fewer than");
  expect("empty", 0, source_kind::staged, "fewer than");
  expect("big", O_DIRECT, source_kind::staged, "O_DIRECT");
  EXPECT_TRUE(machine_.unregistered().empty());
  files.trim();
  expect("big2", prepared, source_kind::pull, "registered");
  machine_.refuse = true;
  files.trim();
  expect("big", prepared, source_kind::staged, "the test said no");
  machine_.in_place = false;  // then nobody knows where the device will see a window
  expect("big", 0, source_kind::staged, "the test said no");
  machine_.refuse = false;
  expect("big", 0, source_kind::pull, "registered");
  EXPECT_EQ(error_of(files, "missing"), -ENOENT);
}

// What is asked of a file is staged until as much was read of a window as it has bytes.
class windows_of_mappings : public mapped_files {
 protected:
  static constexpr std::uint64_t window = 64 << 10, nbytes = 3 * window + 5000;
  static constexpr std::uint64_t last_pinned = 2 * 4096;  // of the fourth window
  windows_of_mappings() {
    dir_.add("by_windows", nbytes, 1);
    let_file_times_pass();
  }
  static store::auto_options options() { return {.small_file_nbytes = 1, .window_nbytes = window}; }
  static std::unique_ptr<store::open_file> open(store::auto_store& files, int flags = 0) {
    int error = 0;
    auto file = files.open("by_windows", flags, &error);
    EXPECT_EQ(error, 0);
    return file;
  }
  // What the file says first, and last.
  static void expect_reason(const store::open_file& file, const std::string& begin, const std::string& end = "") {
    const std::string now = file.reason();
    EXPECT_EQ(now.rfind(begin, 0), 0u) << now;
    EXPECT_TRUE(now.size() >= end.size() && now.compare(now.size() - end.size(), end.size(), end) == 0) << now;
  }
  static bool becomes(const store::open_file& file, std::uint64_t registered) {
    return wait_until([&] { return file.windows().registered == registered; });
  }
};

TEST_F(windows_of_mappings, a_window_is_registered_once_as_much_was_read_of_it_as_it_has) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  const auto file = open(files);
  ASSERT_EQ(file->info().kind, source_kind::windows);
  EXPECT_EQ(file->windows().shift, 16u);
  EXPECT_EQ(files.usage().pinned_nbytes, 0u);
  expect_reason(*file, "windows: 0 of 4 windows of 1 MiB registered", "as it has");
  for (std::uint64_t at = 0; at < window - 4096; at += 4096) file->note_missed(static_cast<std::int64_t>(window), 4096);
  file->note_missed(window, 4095);
  file->note_missed(0, window - 1);
  file->note_missed(nbytes, 1 << 20);      // of the last window, whose pages end behind the file
  file->note_missed(4 * window, 1 << 20);  // of none
  EXPECT_TRUE(becomes(*file, 0b1000));
  EXPECT_EQ(machine_.nregistered, 1) << "each of the others lacks a byte";
  file->note_missed(window + 9, 1);
  EXPECT_TRUE(becomes(*file, 0b1010));
  EXPECT_EQ(files.usage().pinned_nbytes, window + last_pinned);
  expect_reason(*file, "windows: 2 of 4 windows of 1 MiB registered", "as it has");
  EXPECT_EQ(std::memcmp(file->info().pull_base + window, read_all(*file).data() + window, window), 0);
  file->note_missed(2 * window, window);
  file->note_missed(0, 1);
  EXPECT_TRUE(becomes(*file, 0b1111));
  EXPECT_EQ(machine_.nregistered, 4);
  EXPECT_EQ(open(files)->info().kind, source_kind::pull) << "all of it is";
  EXPECT_EQ(file->info().kind, source_kind::windows) << "as it was opened";
  expect_reason(*file, "windows: 4 of 4 windows of 1 MiB registered", "which the device reads itself");
  expect_reason(*open(files), "pull: ");
}

TEST_F(windows_of_mappings, the_one_that_is_missed_most_comes_first) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  const auto file = open(files);
  machine_.held = true;
  file->note_missed(0, window);
  EXPECT_TRUE(wait_until([&] { return machine_.nasked == 1; }));
  file->note_missed(window, window);
  for (int pass = 0; pass < 3; ++pass) file->note_missed(2 * window, window);
  file->note_missed(3 * window, 5000);
  machine_.held = false;
  EXPECT_TRUE(becomes(*file, 0b1111));
  const std::byte* const base = file->info().pull_base;
  EXPECT_EQ(machine_.registered(), (std::vector<const void*>{base, base + 2 * window, base + window, base + 3 * window}));
}

TEST_F(windows_of_mappings, opens_share_them_and_they_stay_until_trimmed) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  {
    const auto first = open(files), second = open(files);
    EXPECT_EQ(first->info().pull_base, second->info().pull_base);
    first->note_missed(0, window / 2);
    second->note_missed(0, window / 2);
    EXPECT_TRUE(becomes(*first, 1));
    EXPECT_EQ(second->windows().registered, 1u);
  }
  EXPECT_EQ(files.usage().idle_nbytes, window);
  {
    const auto again = open(files);
    EXPECT_EQ(again->windows().registered, 1u);
    EXPECT_EQ(files.usage().idle_nbytes, 0u);
    files.trim();
    EXPECT_EQ(machine_.nlive(), 1u) << "in use";
    const auto all = open(files, prepared);
    EXPECT_EQ(all->info().kind, source_kind::pull);
    EXPECT_EQ(machine_.nregistered, 4) << "what was registered already is not again";
    EXPECT_EQ(again->windows().registered, 0b1111u);
  }
  files.trim();
  EXPECT_EQ(machine_.nlive(), 0u);
  EXPECT_EQ(files.usage().pinned_nbytes, 0u);
  EXPECT_EQ(files.usage().nmappings, 0u);
}

TEST_F(windows_of_mappings, a_file_of_which_nothing_was_registered_leaves_nothing) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  open(files)->note_missed(0, 1);
  EXPECT_EQ(files.usage().nmappings, 0u);
}

TEST_F(windows_of_mappings, the_budget_counts_windows_and_trim_gives_what_was_refused_another_try) {
  store::auto_store files(machine_, dir_.path(), window + last_pinned, options());
  int error = 0;
  const auto file = open(files);
  {
    const auto other = files.open("f0", prepared, &error);
    ASSERT_EQ(other->info().kind, source_kind::pull);
    file->note_missed(0, window);  // does not fit beside the other's three pages
    file->note_missed(3 * window, 5000);
    EXPECT_TRUE(becomes(*file, 0b1000)) << "what is smaller does, and comes later";
    EXPECT_EQ(files.usage().pinned_nbytes, file_pinned + last_pinned);
    expect_reason(*file, "windows: 1 of 4 windows", "; 1 refused: its 1 MiB do not fit the pin budget of 1 MiB (1 MiB in use)");
  }
  files.trim();
  expect_reason(*file, "windows: 1 of 4 windows", "as it has");  // none is refused any more
  EXPECT_EQ(files.usage().pinned_nbytes, last_pinned);
  file->note_missed(0, 1);
  EXPECT_TRUE(becomes(*file, 0b1001));
  EXPECT_EQ(files.usage().pinned_nbytes, window + last_pinned);
}

TEST_F(windows_of_mappings, a_window_that_the_platform_refuses_stays_staged) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  const auto file = open(files);
  machine_.refuse = true;
  file->note_missed(0, window);
  EXPECT_TRUE(wait_until([&] { return machine_.nrefused == 1; }));
  machine_.refuse = false;
  EXPECT_TRUE(wait_until([&] { return file->reason().find("refused") != std::string::npos; }));
  expect_reason(*file, "windows: 0 of 4 windows", "; 1 refused: the test said no");
  file->note_missed(0, 10 * window);
  file->note_missed(window, window);
  EXPECT_TRUE(becomes(*file, 0b10));
  EXPECT_EQ(machine_.nregistered, 1);
  EXPECT_EQ(files.usage().pinned_nbytes, window);
  EXPECT_EQ(open(files, prepared)->info().kind, source_kind::pull) << "who asks for all of it has it tried again";
}

TEST_F(windows_of_mappings, nothing_more_of_a_file_is_registered_once_it_is_closed) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  machine_.held = true;
  {
    const auto file = open(files);
    file->note_missed(0, window);
    EXPECT_TRUE(wait_until([&] { return machine_.nasked == 1; }));
    file->note_missed(window, window);
    file->note_missed(2 * window, window);
  }
  machine_.held = false;
  EXPECT_TRUE(wait_until([&] { return files.usage().nidle == 1; }));
  EXPECT_EQ(machine_.nregistered, 1);
  const auto again = open(files);
  const std::byte* const base = again->info().pull_base;
  again->note_missed(window, 1);  // what it was missed before is forgotten
  again->note_missed(2 * window, window);
  EXPECT_TRUE(becomes(*again, 0b101));
  EXPECT_EQ(machine_.registered(), (std::vector<const void*>{base, base + 2 * window}));
  again->note_missed(window, window - 1);
  EXPECT_TRUE(becomes(*again, 0b111));
}

TEST_F(windows_of_mappings, those_that_somebody_waits_for_come_before_those_that_are_missed_more) {
  dir_.add("other", nbytes, 2);
  let_file_times_pass();
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  int error = 0;
  const auto file = open(files), hotter = files.open("other", 0, &error);
  machine_.held = true;
  hotter->note_missed(0, window);
  EXPECT_TRUE(wait_until([&] { return machine_.nasked == 1; }));
  file->note_missed(0, window);
  for (int pass = 0; pass < 9; ++pass) hotter->note_missed(window, window);
  std::thread prepares([&] { EXPECT_EQ(open(files, prepared)->info().kind, source_kind::pull); });
  EXPECT_TRUE(wait_until([&] { return machine_.nasked == 2; }));  // it registers the others itself
  machine_.held = false;
  prepares.join();
  EXPECT_TRUE(wait_until([&] { return machine_.nregistered == 6; }));
  const std::vector<const void*> order = machine_.registered();
  const auto place = [&](const void* base) { return std::find(order.begin(), order.end(), base) - order.begin(); };
  EXPECT_LT(place(file->info().pull_base), place(hotter->info().pull_base + window));
}

TEST_F(windows_of_mappings, files_that_close_while_their_windows_are_registered_leave_none_behind_trim) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  machine_.delay = std::chrono::milliseconds(20);
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t at = 0; at < nbytes; at += window) open(files)->note_missed(static_cast<std::int64_t>(at), window);
  }
  EXPECT_TRUE(wait_until([&] { return files.usage().nmappings == files.usage().nidle; }));
  files.trim();
  EXPECT_EQ(machine_.nlive(), 0u);
  EXPECT_EQ(files.usage().pinned_nbytes, 0u);
}

TEST_F(windows_of_mappings, many_threads_register_each_window_once) {
  store::auto_store files(machine_, dir_.path(), 1 << 20, options());
  machine_.delay = std::chrono::milliseconds(1);
  std::vector<std::thread> threads;
  std::atomic<bool> good{true};
  std::barrier together(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto file = open(files);
      together.arrive_and_wait();  // whoever opens it once all is registered has no file by windows
      for (std::uint64_t i = 0; i < 400; ++i) {
        file->note_missed(static_cast<std::int64_t>(i % 4 * window), 4096);
        if (i % 16 == 0) expect_reason(*file, "windows: ");
      }
      together.arrive_and_wait();  // the rest is registered for all once the first has opened it as prepared
      if (t == 0 && open(files, prepared)->info().kind != source_kind::pull) good = false;
      if (!becomes(*file, 0b1111)) good = false;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(good);
  EXPECT_EQ(machine_.nregistered, 4);
  EXPECT_EQ(files.usage().pinned_nbytes, 3 * window + last_pinned);
}

TEST(windows, of_a_large_file_are_at_most_64) {
  temp_dir dir;
  dir.add_sparse("large", (std::uint64_t{5} << 30) - 1, 1, 5);
  let_file_times_pass();
  store::auto_store files(simt::this_platform(), dir.path(), 1 << 20);
  int error = 0;
  const auto file = files.open("large", 0, &error);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->windows().shift, 27u);  // 40 of 128 MiB; of 64 MiB there would be 80
}

TEST_F(mapped_files, the_default_budget_is_half_of_what_is_available) {
  EXPECT_GT(store::default_pin_nbytes(), 1u << 20);
  EXPECT_LT(store::default_pin_nbytes(), machine_.memory_nbytes());
  EXPECT_EQ(store::mapped_store(machine_, dir_.path()).usage().budget_nbytes >> 30, store::default_pin_nbytes() >> 30);
}

TEST_F(mapped_files, mem_keeps_old_versions_for_whoever_has_them_open) {
  store::mem_store files(machine_);
  files.put("x/y", content(1, 0, 1000));
  int error = 0;
  auto old = files.open("x/y", 0, &error);
  files.put("x/y", content(2, 0, 2000));
  const auto fresh = files.open("x/y", 0, &error);
  EXPECT_EQ(read_all(*old), content(1, 0, 1000));
  EXPECT_EQ(read_all(*fresh), content(2, 0, 2000));
  EXPECT_EQ(old->info().inode, fresh->info().inode);
  EXPECT_NE(old->info().mtime_ns, fresh->info().mtime_ns);
  files.trim();
  EXPECT_EQ(machine_.nfreed, 0);
  old.reset();
  EXPECT_EQ(machine_.nfreed, 0) << "closing frees nothing: it would wait for kernels";
  files.trim();
  EXPECT_EQ(machine_.nfreed, 1);
  EXPECT_THROW(files.put("", {}), std::invalid_argument);
  EXPECT_THROW(files.put("../x", {}), std::invalid_argument);
  EXPECT_THROW(store::mem_store(machine_, source_kind::nil), std::invalid_argument);
}

}  // namespace
}  // namespace gpufs::test
