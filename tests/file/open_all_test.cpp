// SPDX-License-Identifier: Apache-2.0
// Many files opened at once: the right ones, an error for each of the others, and many requests of a warp under way together.
#include <algorithm>
#include <optional>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using std::chrono::milliseconds;

mount_options small(std::uint32_t max_open_files = 256) {
  mount_options o;
  o.store = store_kind::posix;
  o.cache_nbytes = 64 * 4096;
  o.max_open_files = max_open_files;
  o.internals.request_rings = 4;
  return o;
}

// Names in device memory.
class name_list {
 public:
  explicit name_list(const std::vector<std::optional<std::string>>& names) : pointers_(names.size()) {
    std::vector<char> text;
    for (const auto& name : names) {
      if (name) text.insert(text.end(), name->c_str(), name->c_str() + name->size() + 1);
    }
    bytes_ = std::make_unique<device_buffer<char>>(text);
    std::vector<const char*> pointers;
    const char* at = bytes_->get();
    for (const auto& name : names) {
      pointers.push_back(name ? at : nullptr);
      if (name) at += name->size() + 1;
    }
    pointers_.write(pointers);
  }
  const char* const* get() const { return pointers_.get(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(pointers_.size()); }

 private:
  std::unique_ptr<device_buffer<char>> bytes_;
  device_buffer<const char*> pointers_;
};

struct results {
  std::uint32_t all_good;  // groups whose call says so
  std::uint32_t wrong;     // bytes
};

// Every group opens all names, reads the first pages of some, and closes them; each of these if it is to.
struct opener {
  mount_ref fs;
  const char* directory;
  const char* const* names;
  std::uint32_t n;
  int flags;
  bool opens, closes;
  std::uint32_t nread;  // of how many the bytes are looked at
  group_kind kind;
  file_number* numbers;  // n for each group
  int* close_results;    // the same
  results* out;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t thread = simt::block_rank() * simt::block_size() + simt::thread_rank();
    switch (kind) {
      case group_kind::thread:
        return work(this_thread(), thread);
      case group_kind::tile8:
        return work(this_tile<8>(), thread / 8);
      case group_kind::warp:
        return work(this_warp(), thread / 32);
      case group_kind::block:
        return work(this_block(), simt::block_rank());
    }
  }
  template <class Group>
  GPUFS_DEVICE void work(Group group, std::uint32_t me) const {
    file_number* mine = numbers + std::size_t{me} * n;
    bool good = true;
    if (opens) good = open_all(group, fs, directory, names, n, flags, mine);
    for (std::uint32_t i = 0; i < nread && i < n; ++i) {
      mapped_page mapped = map_page(group, file(fs, mine[i]), 0);
      if (mapped.error() != 0) continue;
      // content(i), of which there is at least a byte
      for (std::uint32_t k = group.rank(); k < mapped.nbytes(); k += group.size()) {
        if (mapped.data()[k] != content_byte(i, k)) simt::atomic_ref<std::uint32_t>(out->wrong).add_relaxed(1);
      }
      unmap_page(group, std::move(mapped));
    }
    if (closes)
      good = close_all(group, fs, mine, n, close_results == nullptr ? nullptr : close_results + std::size_t{me} * n) && good;
    if (good && group.leader()) simt::atomic_ref<std::uint32_t>(out->all_good).add_relaxed(1);
  }
};

struct plan {
  const char* directory = nullptr;
  int flags = O_RDONLY;
  bool opens = true, closes = true;
  std::uint32_t nread = ~0u;
  group_kind kind = group_kind::warp;
  unsigned grid = 1, block = 32;
  simt::cpu_schedule schedule = {};

  std::uint32_t ngroups() const {
    return kind == group_kind::block ? grid : grid * block / (kind == group_kind::thread ? 1 : kind == group_kind::tile8 ? 8 : 32);
  }
};

// Groups that keep their files from one run to the next.
class opening {
 public:
  opening(const mount& fs, std::uint32_t ngroups, const std::vector<std::optional<std::string>>& names)
      : fs_(fs), names_(names), numbers_(ngroups * names.size()), closed_(ngroups * names.size()) {}

  results run(const plan& how) {
    const device_buffer<results> out(1);
    std::unique_ptr<device_buffer<char>> directory;
    if (how.directory != nullptr) {
      const std::string text = how.directory;
      directory = std::make_unique<device_buffer<char>>(simt::device_string(text));
    }
    simt::launch({.grid = how.grid, .block = how.block, .schedule = how.schedule},
                 opener{fs_.ref(), directory ? directory->get() : nullptr, names_.get(), names_.size(), how.flags, how.opens,
                        how.closes, how.nread, how.kind, numbers_.get(), closed_.get(), out.get()});
    return out.read_one();
  }
  std::vector<int> numbers() const {
    std::vector<int> all;
    for (const file_number n : numbers_.read()) all.push_back(static_cast<int>(n));
    return all;
  }
  std::vector<int> closed() const { return closed_.read(); }

 private:
  const mount& fs_;
  name_list names_;
  device_buffer<file_number> numbers_;
  device_buffer<int> closed_;
};

std::vector<std::optional<std::string>> numbered_names(unsigned n) {
  std::vector<std::optional<std::string>> names;
  for (unsigned i = 0; i < n; ++i) names.emplace_back(numbered("f", i));
  return names;
}

void expect_all_closed(const mount& m) {
  EXPECT_TRUE(m.open_files().empty());
  EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
  EXPECT_EQ(m.counters().pins, 0u);
}

class open_all_by : public ::testing::TestWithParam<group_kind> {};
std::string kind_name(const testing::TestParamInfo<group_kind>& tested) {
  constexpr const char* names[] = {"thread", "tile8", "warp", "block"};
  return names[static_cast<int>(tested.param)];
}
INSTANTIATE_TEST_SUITE_P(groups, open_all_by,
                         ::testing::Values(group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block), kind_name);

TEST_P(open_all_by, gives_each_file_or_its_error) {
  temp_dir dir;
  constexpr unsigned nfiles = 70;
  for (unsigned i = 0; i < nfiles; ++i) dir.add("d/" + numbered("f", i), 1 + 97 * i, i);
  std::filesystem::create_directory(dir / "d/sub");
  dir.add("d/locked", 10, 1);
  dir.add("outside", 10, 1);
  ASSERT_EQ(chmod((dir / "d/locked").c_str(), 0), 0);
  const bool locked = ::access((dir / "d/locked").c_str(), R_OK) != 0;
  let_file_times_pass();
  auto names = numbered_names(nfiles);
  const std::pair<std::optional<std::string>, int> bad[] = {
      {"none", -ENOENT},  {"sub", -EISDIR},        {"locked", locked ? -EACCES : 0},       {"../../x", -EXDEV},
      {"f0/x", -ENOTDIR}, {std::nullopt, -EFAULT}, {std::string(4095, 'x'), -ENAMETOOLONG}};
  for (const auto& b : bad) names.push_back(b.first);
  names.push_back("f1");  // again
  const unsigned n = static_cast<unsigned>(names.size());
  for (const char* directory : {"d", "d/", "./d", "d//"}) {
    const mount m(dir.path(), small());
    const unsigned block = GetParam() == group_kind::block ? 64 : 32;
    opening groups(m, 32, names);
    plan how{.directory = directory, .closes = false, .nread = nfiles, .kind = GetParam(), .block = block};
    results got = groups.run(how);
    EXPECT_EQ(got.all_good, 0u);
    EXPECT_EQ(got.wrong, 0u);
    const auto numbers = groups.numbers();
    for (std::uint32_t g = 0; g < how.ngroups(); ++g) {
      const int* mine = numbers.data() + std::size_t{g} * n;
      for (unsigned i = 0; i < nfiles; ++i) EXPECT_GE(mine[i], 0) << i;
      for (unsigned i = 0; i < std::size(bad); ++i) {
        if (bad[i].second == 0) {
          EXPECT_GE(mine[nfiles + i], 0);
        } else {
          EXPECT_EQ(mine[nfiles + i], bad[i].second) << names[nfiles + i].value_or("(null)").substr(0, 20);
        }
      }
      EXPECT_EQ(mine[n - 1], mine[1]) << "one path, one number";
      EXPECT_EQ(mine[0], numbers[0]);
    }
    EXPECT_EQ(m.open_files().size(), nfiles + (locked ? 0 : 1));
    if (std::string(directory) == "d") {  // the same spelling as a path of one piece
      players one(m.ref(), {});
      script s;
      s.open(0, "d/f3");
      s.close(0);
      EXPECT_EQ(one.run(s)[0].value, numbers[3]);
    }
    how.opens = false;
    how.nread = 0;
    how.closes = true;
    got = groups.run(how);
    EXPECT_EQ(got.all_good, how.ngroups()) << "what did not open is passed over";
    got = groups.run(how);
    EXPECT_EQ(got.all_good, 0u);
    for (std::uint32_t g = 0; g < how.ngroups(); ++g) EXPECT_EQ(groups.closed()[std::size_t{g} * n], -EBADF) << "closed twice";
    expect_all_closed(m);
  }
}

TEST_P(open_all_by, finds_files_of_the_root) {
  temp_dir dir;
  for (unsigned i = 0; i < 40; ++i) dir.add(numbered("f", i), 100, i);
  for (const char* directory : {static_cast<const char*>(nullptr), "", ".", "/"}) {
    const mount m(dir.path(), small());
    opening groups(m, 32, numbered_names(40));
    const plan how{.directory = directory, .kind = GetParam(), .block = GetParam() == group_kind::block ? 64u : 32u};
    const results got = groups.run(how);
    EXPECT_EQ(got.all_good, how.ngroups());
    EXPECT_EQ(got.wrong, 0u);
    expect_all_closed(m);
  }
}

TEST(open_all, of_more_files_than_may_be_open) {
  temp_dir dir;
  constexpr unsigned nfiles = 100, most = 8;
  for (unsigned i = 0; i < nfiles; ++i) dir.add(numbered("f", i), 100 + i, i);
  const mount m(dir.path(), small(most));
  opening groups(m, 1, numbered_names(nfiles));
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    plan how{.closes = false, .schedule = {.seed = seed}};
    EXPECT_EQ(groups.run(how).wrong, 0u);
    unsigned nopen = 0;
    for (const int number : groups.numbers()) {
      EXPECT_TRUE(number >= 0 || number == -ENFILE) << number;
      nopen += number >= 0;
    }
    EXPECT_EQ(nopen, most);
    how.opens = false;
    how.nread = 0;
    how.closes = true;
    EXPECT_EQ(groups.run(how).all_good, 1u);
    expect_all_closed(m);
  }
}

// All lanes want the same two request slots, the fewest that there may be.
TEST(open_all, with_two_request_slots) {
  temp_dir dir;
  constexpr unsigned nfiles = 64;
  for (unsigned i = 0; i < nfiles; ++i) dir.add(numbered("f", i), 100 + i, i);
  mount_options options = small();
  options.internals.request_rings = 1;
  options.internals.request_slots = 2;
  options.io_timeout = std::chrono::seconds(20);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const mount m(dir.path(), options);
    opening groups(m, 4, numbered_names(nfiles));
    const results got = groups.run({.grid = 2, .block = 64, .schedule = {.seed = seed, .resident_blocks = 2}});
    EXPECT_EQ(got.all_good, 4u);
    EXPECT_EQ(got.wrong, 0u);
    EXPECT_EQ(m.counters().io_timeouts, 0u);
    expect_all_closed(m);
  }
}

TEST(open_all, of_one_directory_by_many_groups) {
  temp_dir dir;
  constexpr unsigned nfiles = 50;
  for (unsigned i = 0; i < nfiles; ++i) dir.add(numbered("d/f", i), 100 + i, i);
  let_file_times_pass();
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 1 : 4); ++seed) {
    for (const group_kind kind : {group_kind::tile8, group_kind::warp, group_kind::block}) {
      const mount m(dir.path(), small(nfiles));  // just as many as there are
      plan how{.directory = "d",
               .closes = false,
               .kind = kind,
               .grid = 3,
               .block = 64,
               .schedule = {.seed = seed, .resident_blocks = 3, .switch_percent = 70}};
      opening groups(m, how.ngroups(), numbered_names(nfiles));
      const results got = groups.run(how);
      EXPECT_EQ(got.all_good, how.ngroups());
      EXPECT_EQ(got.wrong, 0u);
      const auto numbers = groups.numbers();
      for (std::size_t i = nfiles; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], numbers[i % nfiles]);
      EXPECT_EQ(m.counters().host_opens, nfiles) << "each once";
      how.closes = true;
      how.opens = false;
      how.nread = 0;
      EXPECT_EQ(groups.run(how).all_good, how.ngroups());
      expect_all_closed(m);
    }
  }
}

// A store whose opens take long: a warp has as many under way as the host has threads for them.
TEST(open_all, has_many_requests_under_way) {
  temp_dir dir;
  constexpr unsigned nfiles = 64, at_once = 16;
  for (unsigned i = 0; i < nfiles; ++i) dir.add(numbered("f", i), 100, i);
  const auto store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
  mount_options options = small();
  options.custom_store = store;
  options.nworkers = at_once + 1;  // opens leave one alone; in place of those that hang there are more
  const mount m(dir.path(), options);
  opening groups(m, 1, numbered_names(nfiles));
  store->wrong().open_gate.close();
  results got{};
  std::thread kernel([&] { got = groups.run({.nread = 0}); });
  EXPECT_TRUE(wait_until([&] { return store->wrong().open_gate.waiting() >= int{at_once}; })) << store->wrong().open_gate.waiting();
  store->wrong().open_gate.open();
  kernel.join();
  EXPECT_EQ(got.all_good, 1u);
  expect_all_closed(m);
}

TEST(open_all, of_new_files_and_what_closing_them_says) {
  temp_dir dir;
  constexpr unsigned nfiles = 40;
  const auto store =
      std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path(), store::posix_options{.writable = true}));
  mount_options options = small();
  options.custom_store = store;
  options.writable = true;
  const mount m(dir.path(), options);
  opening groups(m, 1, numbered_names(nfiles));
  plan how{.flags = O_RDWR | O_CREAT | O_EXCL, .closes = false, .nread = 0};
  EXPECT_EQ(groups.run(how).all_good, 1u);
  EXPECT_EQ(groups.run(how).all_good, 0u);
  for (const int number : groups.numbers()) EXPECT_EQ(number, -EEXIST);
  how.flags = O_RDWR;
  EXPECT_EQ(groups.run(how).all_good, 1u);
  players writer(m.ref(), {});
  for (unsigned i = 0; i < nfiles; ++i) {
    script s;
    s.use_number(0, groups.numbers()[i]);
    s.pwrite(0, content(i, 0, 100), 0);
    EXPECT_EQ(writer.run(s)[1].value, 100);
  }
  store->wrong().fail_writes_at("f7", 0, 10, ENOSPC);
  how.opens = false;
  how.closes = true;
  EXPECT_EQ(groups.run(how).all_good, 0u);
  for (unsigned i = 0; i < nfiles; ++i) {
    EXPECT_EQ(groups.closed()[i], i == 7 ? -ENOSPC : 0) << i;
    EXPECT_TRUE(i == 7 || dir.read(numbered("f", i)) == content(i, 0, 100)) << i;
  }
  // Each was opened twice.
  store->wrong().heal();
  EXPECT_EQ(groups.run(how).all_good, 1u);
  expect_all_closed(m);
}

// What users do: list a directory, open its files, read them.
struct read_a_directory {
  mount_ref fs;
  const char* directory;
  std::byte* entries;
  const char** names;
  file_number* numbers;
  std::uint64_t* nfiles_and_nbytes;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    directory_part part{};
    std::uint64_t nfiles = 0, nbytes = 0;
    while ((part = read_directory(warp, fs, directory, entries, 4096, part.position)).nbytes > 0) {
      const std::uint32_t here = file_names(warp, entries, part.nbytes, names, 128);
      if (!open_all(warp, fs, directory, names, here, O_RDONLY, numbers)) return;
      for (std::uint32_t i = 0; i < here; ++i) {
        const file_status status = fstat(warp, file(fs, numbers[i]));
        const auto& entry = reinterpret_cast<const directory_entry*>(names[i])[-1];
        if (entry.file_nbytes == status.nbytes && entry.inode == status.inode) nbytes += static_cast<std::uint64_t>(status.nbytes);
        ++nfiles;
      }
      close_all(warp, fs, numbers, here);
    }
    if (warp.leader()) {
      nfiles_and_nbytes[0] = nfiles;
      nfiles_and_nbytes[1] = nbytes;
    }
  }
};
TEST(open_all, of_what_read_directory_lists) {
  temp_dir dir;
  constexpr unsigned nfiles = 200;
  std::uint64_t nbytes = 0;
  for (unsigned i = 0; i < nfiles; ++i) {
    dir.add("d/" + numbered("a feature of ", i), 10 * i, i);
    nbytes += 10 * i;
  }
  std::filesystem::create_directory(dir / "d/not a file");
  const mount m(dir.path(), small());
  const device_buffer<char> directory(std::vector<char>{'d', '\0'});
  const device_buffer<std::byte> entries(4096);
  const device_buffer<const char*> names(128);
  const device_buffer<file_number> numbers(128);
  const device_buffer<std::uint64_t> sums(2);
  simt::launch({.grid = 1, .block = 32},
               read_a_directory{m.ref(), directory.get(), entries.get(), names.get(), numbers.get(), sums.get()});
  EXPECT_EQ(sums.read(), (std::vector<std::uint64_t>{nfiles, nbytes}));
  expect_all_closed(m);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
