// SPDX-License-Identifier: Apache-2.0
#include "gpufs/store/nvme_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "../nvme/partitions.hpp"
#include "nvme_volumes.hpp"
#include "pack_entry.hpp"
#include "path.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

nvme::controller_options with_host_queue(nvme::controller_options options) {
  if (options.nhost_queues == 0) options.nhost_queues = 4;
  return options;
}

// A file of the root.
struct known_file {
  known_file(std::string named, std::uint64_t n) : name(std::move(named)), nbytes(static_cast<std::int64_t>(n)) {}

  const std::string name;
  const std::int64_t nbytes;
  std::shared_ptr<nvme_bytes> bytes;  // null: it cannot be used
  int error = 0;
  std::string why;                        // it cannot
  std::vector<known_file*> others;        // that have bytes of it
  std::vector<std::uint64_t> inodes;      // theirs
  std::uint64_t nwriters = 0;             // opens for writing; under the store's mutex
  std::atomic<std::uint64_t> version{1};  // another one before and after each write, and when one of the others opens for writing
};

}  // namespace

// Shared by the store and its files: the last of them gives the controllers back.
struct nvme_store::state {
  state(simt::platform& machine, const controllers& all, const nvme::controller_options& options,
        const std::vector<nvme_volume>& made_of_them)
      : memory(machine), writable(options.writable) {
    if (all.empty()) throw std::invalid_argument("gpufs: an nvme_store has one controller at least");
    for (auto each = all.begin(); each != all.end(); ++each) {
      if (*each == nullptr || std::find(all.begin(), each, *each) != each) {
        throw std::invalid_argument("gpufs: the controllers of an nvme_store are there, and each once");
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string prefix = all.size() == 1 ? "n" : "c" + std::to_string(i) + "n";
      devices.push_back(std::make_unique<nvme_device>(machine, all[i], with_host_queue(options)));
      for (const nvme::namespace_facts& facts : devices[i]->driver.namespaces()) {
        add(namespaces.emplace_back(*devices[i], facts, prefix + std::to_string(facts.nsid)));
      }
    }
    for (const nvme_volume& each : made_of_them) add(each);
    introduce();
  }

  // Files that have bytes in common to each other.
  void introduce() {
    struct piece {
      const nvme_part* part;
      std::size_t file;
    };
    std::map<const nvme_namespace*, std::vector<piece>> of_spaces;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (files[i].bytes == nullptr) continue;
      for (const auto& column : files[i].bytes->columns()) {
        for (std::uint32_t k = 0; k < column->ncopies(); ++k) of_spaces[column->part(k).space].push_back({&column->part(k), i});
      }
    }
    std::set<std::pair<std::size_t, std::size_t>> meet;
    for (auto& [space, pieces] : of_spaces) {
      std::sort(pieces.begin(), pieces.end(), [](const piece& a, const piece& b) { return a.part->begin < b.part->begin; });
      for (auto one = pieces.begin(); one != pieces.end(); ++one) {
        for (auto other = one + 1; other != pieces.end() && one->part->meets(*other->part); ++other) {
          if (one->file != other->file) meet.insert({{one->file, other->file}, {other->file, one->file}});
        }
      }
    }
    for (const auto& [one, other] : meet) {
      files[one].others.push_back(&files[other]);
      files[one].inodes.push_back(other + 1);
    }
  }

  // With its partitions.
  void add(nvme_namespace& space) {
    const std::uint64_t block = space.facts.block_nbytes;
    const bool fits = block == 0 || space.facts.nblocks <= most_file_nbytes / block;
    const std::uint64_t nbytes = fits ? space.facts.nblocks * block : 0;
    known_file& made = add(space.name, nbytes);
    if (!fits) {
      made.error = -EOPNOTSUPP;
      made.why = "the namespace says that it has " + blocks_of(space.facts) + ", which no file can have";
      return;
    }
    try {
      space.layout = space.of.driver.open(space.facts.nsid);
    } catch (const std::system_error& error) {
      if (error.code().value() == ENODEV || error.code().value() == ETIMEDOUT) throw;  // the controller's
      made.error = -error.code().value();
      made.why = error.what();
      return;
    }
    made.bytes = linear({&space, 0, nbytes, space.name});
    nvme::partition_table table =
        nvme::read_partitions(space.facts.nblocks, space.facts.block_nbytes,
                              [&](std::uint64_t lba, std::span<std::byte> to) { return made.bytes->read(lba * block, to); });
    for (const nvme::partition& each : table.all) {
      const std::string name = space.name + "p" + std::to_string(each.number);
      const std::uint64_t n = each.nblocks * block;
      add(name, n).bytes = linear({&space, each.first * block, n, name});
    }
    without_partitions[space.name] = std::move(table.why);
  }
  void add(const nvme_volume& volume) {
    const auto refuse = [&](const std::string& why) {
      throw std::invalid_argument("gpufs: the volume \"" + volume.name + "\": " + why);
    };
    std::string plain;
    if (lexical_path(volume.name, &plain) != 0 || plain != volume.name || plain.find('/') != std::string::npos) {
      refuse("it needs a name that a file of the root can have");
    }
    if (by_name.count(volume.name) != 0) refuse("there is a file of this name: choose another one");
    std::vector<std::shared_ptr<nvme_bytes>> parts;
    for (const std::string& name : volume.parts) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) refuse("there is no \"" + name + "\": " + why_not(name));
      const known_file& part = files[found->second];
      if (part.bytes == nullptr) refuse(name + " cannot be used: " + part.why);
      parts.push_back(part.bytes);
    }
    const std::shared_ptr<nvme_bytes> made = volumes.make(volume, parts, memory);
    add(volume.name, made->nbytes()).bytes = made;
  }
  known_file& add(std::string name, std::uint64_t nbytes) {
    by_name[name] = files.size();
    return files.emplace_back(std::move(name), nbytes);
  }
  std::shared_ptr<nvme_bytes> linear(nvme_part part) {
    const std::vector<nvme_part> copies{std::move(part)};
    return std::make_shared<nvme_bytes>(std::vector{std::make_shared<nvme_column>(copies, memory.machine())}, nvme::no_unit_shift,
                                        copies.front().nbytes, memory);
  }

  // The number of the file that the path names, from 1 on; 0: of the root; or -errno.
  std::int64_t find(std::string_view path) const {
    std::string name;
    const int spelling = lexical_path(path, &name);
    if (spelling == -EISDIR) return 0;
    if (spelling != 0 && spelling != -ENOTDIR) return spelling;
    const auto found = by_name.find(name);
    if (found == by_name.end()) return -ENOENT;
    return spelling != 0 ? spelling : static_cast<std::int64_t>(found->second) + 1;
  }
  // Why there is no file of this name.
  std::string why_not(std::string_view path) const {
    std::string name;
    lexical_path(path, &name);
    const auto found = without_partitions.find(name.substr(0, name.find('p')));
    if (found != without_partitions.end() && !found->second.empty()) return found->first + ": " + found->second;
    std::string all;
    for (auto each = files.begin(); each != files.end() && all.size() < 200; ++each) all += (all.empty() ? "" : ", ") + each->name;
    return "there is no such namespace, partition or volume; there are " + (all.size() < 200 ? all : all.substr(0, 200) + " ...");
  }
  known_file& file(std::int64_t number) { return files[static_cast<std::size_t>(number) - 1]; }
  path_status status(std::int64_t number) {
    const known_file& of = file(number);
    return {of.nbytes, 0, static_cast<std::uint64_t>(number), of.version.load(std::memory_order_acquire),
            S_IFREG | (writable ? 0666u : 0444u)};
  }

  std::vector<std::unique_ptr<nvme_device>> devices;
  simt::device_memory memory;
  std::deque<nvme_namespace> namespaces;
  std::deque<known_file> files;  // no more and no others come
  std::mutex opens;              // of who opens and closes files of which others have bytes
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::map<std::string, std::string, std::less<>> without_partitions;  // what of a namespace's table is not there, and why
  nvme_volumes volumes;
  const bool writable;
  std::atomic<bool> is_mounted{false};  // of a store that is writable
};

namespace {

template <class State>
class nvme_file final : public open_file {
 public:
  nvme_file(std::shared_ptr<State> owner, known_file& of, file_info info)
      : owner_(std::move(owner)), of_(of), info_(std::move(info)) {
    if (info_.live) ++of_.nwriters;
  }
  ~nvme_file() override {
    if (!info_.live) return;
    const std::lock_guard lock(owner_->opens);
    --of_.nwriters;
  }

  const file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(dst.size(), offset, info_.nbytes);
    if (n == 0) return 0;
    const int error = of_.bytes->read(static_cast<std::uint64_t>(offset), dst.first(n));
    return error != 0 ? error : static_cast<std::int64_t>(n);
  }
  // Acquire: meets the releases of pwrite and open, so bytes that were read before are the version's.
  int check_version() const override {
    return info_.live || of_.version.load(std::memory_order_acquire) == info_.mtime_ns ? 0 : -ESTALE;
  }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
    if (!info_.live) return -EBADF;
    if (offset < 0) return -EINVAL;
    const std::size_t n = clip(src.size(), offset, info_.nbytes);
    // Twice: so who has opened it meanwhile has no version either.
    of_.version.fetch_add(1, std::memory_order_release);
    const int error = of_.bytes->write(static_cast<std::uint64_t>(offset), src.first(n));
    of_.version.fetch_add(1, std::memory_order_release);
    return error == 0 && n < src.size() ? -ENOSPC : error;
  }
  int sync(bool) override { return info_.live ? of_.bytes->flush() : -EBADF; }
  std::span<const std::uint64_t> others_with_its_bytes() const override { return of_.inodes; }
  std::string reason() const override {
    std::string all;
    for (const std::string& each : of_.bytes->left_out()) all += " " + each;
    return all.empty() ? info_.reason : info_.reason + "; copies that are not read any more:" + all;
  }
  int truncate(std::int64_t nbytes) override {
    if (!info_.live) return -EBADF;
    return nbytes == info_.nbytes ? 0 : -EINVAL;
  }

 private:
  std::shared_ptr<State> owner_;
  known_file& of_;
  file_info info_;
};

}  // namespace

nvme_store::nvme_store(simt::platform& machine, std::shared_ptr<nvme::controller_access> access,
                       const nvme::controller_options& options, const std::vector<nvme_volume>& volumes)
    : nvme_store(machine, controllers{std::move(access)}, options, volumes) {}
nvme_store::nvme_store(simt::platform& machine, const controllers& all, const nvme::controller_options& options,
                       const std::vector<nvme_volume>& volumes)
    : state_(std::make_shared<state>(machine, all, options, volumes)) {}
nvme_store::~nvme_store() = default;

std::shared_ptr<void> nvme_store::admit_mount() {
  if (!state_->writable) return nullptr;
  // Acquire: meets the release of the mount that has ended.
  if (state_->is_mounted.exchange(true, std::memory_order_acquire)) {
    throw std::system_error(
        EBUSY, std::generic_category(),
        "gpufs: an nvme_store that is writable has one mount at a time, as the kernels of another one would not "
        "be told of what is written: end the first mount, or make the store without "
        "controller_options::writable");
  }
  return {state_.get(), [owner = state_](void*) { owner->is_mounted.store(false, std::memory_order_release); }};
}

std::unique_ptr<open_file> nvme_store::open(std::string_view path, int flags, int* error) {
  std::string why;
  return open_explained(path, flags, error, &why);
}

std::unique_ptr<open_file> nvme_store::open_explained(std::string_view path, int flags, int* error, std::string* why) {
  why->clear();
  const auto refuse = [&](int number, std::string text = {}) {
    *error = number;
    *why = std::move(text);
    return nullptr;
  };
  if (const int wrong = check_flags(flags, state_->writable); wrong != 0) return refuse(wrong);
  const std::int64_t number = state_->find(path);
  if (number == -ENOENT) return refuse(-ENOENT, state_->why_not(path));
  if (number <= 0) return refuse(number == 0 ? -EISDIR : static_cast<int>(number));
  if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) return refuse(-EEXIST);
  known_file& of = state_->file(number);
  if (of.bytes == nullptr) return refuse(of.error, of.why);
  std::string changed;
  if (const int wrong = of.bytes->check(&changed); wrong != 0) return refuse(wrong, changed);
  file_info info;
  info.live = info.fixed_size = writes(flags);
  if (info.live) {
    if (!of.bytes->has_host_queues()) return refuse(-EOPNOTSUPP, "a controller grants one pair of queues, and the host has none");
    if (const std::string mirror = state_->volumes.mirror_with(*of.bytes); !mirror.empty()) {
      return refuse(-EBUSY, "it has bytes of a copy of the mirror in \"" + mirror + "\": write that");
    }
    info.reason = "staged: it is open for writing, which the host does with queues of its own";
  } else {
    info.kind = source_kind::nvme;
    info.pull_base = reinterpret_cast<const std::byte*>(of.bytes->layout());
    info.reason = "nvme: kernels send commands for its blocks";
  }
  // Who comes later than a writer of its bytes by another name is refused. Who came before has no version any more: the service
  // looks for it after this open, and it looks at its version after it has become known to the service.
  const std::lock_guard lock(state_->opens);
  for (const known_file* each : of.others) {
    if (each->nwriters != 0) return refuse(-EBUSY, each->name + ", which has bytes of it, is open for writing");
  }
  for (known_file* each : of.others) {
    if (info.live) each->version.fetch_add(1, std::memory_order_release);
  }
  const path_status now = state_->status(number);
  info.nbytes = now.nbytes;
  info.inode = now.inode;
  info.mtime_ns = info.ctime_ns = now.mtime_ns;
  info.mode = now.mode;
  *error = 0;
  return std::make_unique<nvme_file<state>>(state_, of, std::move(info));
}

int nvme_store::status(std::string_view path, bool, path_status* out) {
  const std::int64_t number = path.empty() ? 0 : state_->find(path);
  if (number < 0) return static_cast<int>(number);
  *out = {};
  if (number == 0) {
    out->mode = S_IFDIR | 0555;
  } else {
    *out = state_->status(number);
  }
  return 0;
}

// A position: the number of the last entry that was given.
std::int64_t nvme_store::read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) {
  const std::int64_t number = path.empty() ? 0 : state_->find(path);
  if (number != 0) return number < 0 ? number : -ENOTDIR;
  if (*position < 0) return -EINVAL;
  std::size_t done = 0;
  while (*position < static_cast<std::int64_t>(state_->files.size())) {
    const std::string& name = state_->file(*position + 1).name;
    const std::size_t nbytes = entry_nbytes_of(name);
    if (nbytes > out.size() - done) return done != 0 ? static_cast<std::int64_t>(done) : -EINVAL;
    const path_status now = state_->status(++*position);
    directory_entry packed{};
    packed.inode = now.inode;
    packed.file_nbytes = now.nbytes;
    packed.mtime_ns = now.mtime_ns;
    packed.mode = now.mode;
    pack_entry(out.data() + done, packed, name);
    done += nbytes;
  }
  return static_cast<std::int64_t>(done);
}

nvme_store::recoveries nvme_store::recovered(std::size_t controller) const {
  const auto done = state_->devices.at(controller)->driver.done();
  return {done.aborts, done.deletions, done.resets, done.dead};
}

std::vector<std::string> nvme_store::left_out() const {
  std::set<std::string> names;  // a mirror's are a stripe's, too
  for (const known_file& each : state_->files) {
    if (each.bytes == nullptr) continue;
    for (std::string& name : each.bytes->left_out()) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

}  // namespace gpufs::store
