// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "apps/parallel.hpp"
#include "apps/words/finder.hpp"

namespace gpufs::apps::words {
namespace {

// Folders of one folder, its files, and what failed; all with the path's rest.
struct listing {
  std::vector<std::string> folders;
  std::vector<file_tree::file> files;
  std::vector<file_tree::failure> failures;
};

bool is_gone(int error) { return error == ENOENT || error == ENOTDIR; }

// path: of the folder itself. rest: what its names get in front.
listing list(const std::string& path, const std::string& rest, std::uint32_t argument) {
  listing of;
  const auto fail = [&](const std::string& name, int error) { of.failures.push_back({name, error}); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  DIR* const folder = fd < 0 ? nullptr : ::fdopendir(fd);
  if (folder == nullptr) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (!is_gone(error) && error != ELOOP) fail(rest, error);
    return of;
  }
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(folder);
    if (entry == nullptr) {
      if (errno != 0) fail(rest, errno);
      break;
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (entry->d_type != DT_REG && entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) continue;
    struct stat about {};
    if (entry->d_type == DT_DIR) {
      about.st_mode = S_IFDIR;
    } else if (::fstatat(fd, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
      if (!is_gone(errno)) fail(rest + name, errno);
      continue;
    }
    if (S_ISDIR(about.st_mode)) of.folders.push_back(rest + name + "/");
    if (S_ISREG(about.st_mode)) of.files.push_back({argument, rest + name, static_cast<std::uint64_t>(about.st_size)});
  }
  ::closedir(folder);
  return of;
}

// Both are folders with a '/' at their ends.
std::string common_folder(const std::string& a, const std::string& b) {
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  return a.substr(0, a.rfind('/', same == 0 ? 0 : same - 1) + 1);
}

}  // namespace

file_tree::file_tree(const std::vector<std::string>& paths, unsigned nthreads, const std::function<void()>& look) {
  struct one {
    std::string shown, real;  // real: a folder's has a '/' at its end
    bool is_folder = false;
    std::uint64_t nbytes = 0;
  };
  std::vector<one> all;
  for (const std::string& path : paths) {
    one given{path, {}};
    struct stat about {};
    int error = ::stat(path.c_str(), &about) != 0 ? errno : 0;
    given.is_folder = S_ISDIR(about.st_mode);
    if (error == 0 && !given.is_folder && !S_ISREG(about.st_mode)) error = EINVAL;
    if (error == 0) {
      char* const real = ::realpath(path.c_str(), nullptr);
      if (real == nullptr) {
        error = errno;
      } else {
        given.real = real;
        std::free(real);
      }
    }
    if (error != 0) {
      failures_.push_back({path, error});
      continue;
    }
    given.nbytes = static_cast<std::uint64_t>(about.st_size);
    if (given.is_folder) {
      if (!given.shown.ends_with('/')) given.shown += '/';
      if (given.real != "/") given.real += '/';
    }
    all.push_back(std::move(given));
  }
  for (const one& each : all) {
    const std::string folder = each.real.substr(0, each.real.rfind('/') + 1);
    root_ = root_.empty() ? folder : common_folder(root_, folder);
  }
  for (const one& each : all) {
    const auto number = static_cast<std::uint32_t>(arguments_.size());
    arguments_.push_back({each.shown, each.real.substr(root_.size())});
    if (each.is_folder) {
      walk(number, each.real, nthreads, look);
    } else {
      files_.push_back({number, {}, each.nbytes});
    }
  }
  is_one_file_ = paths.size() == 1 && all.size() == 1 && !all[0].is_folder;
  for (const file& each : files_) nbytes_ += each.nbytes;
}

void file_tree::walk(std::uint32_t number, const std::string& folder, unsigned nthreads, const std::function<void()>& look) {
  const std::thread::id caller = std::this_thread::get_id();
  const std::size_t first = files_.size(), first_failure = failures_.size();
  std::vector<std::string> level{{}};
  while (!level.empty()) {
    std::vector<listing> listings(level.size());
    parallel_for(thread_count(nthreads), level.size(), [&](std::size_t i) {
      listings[i] = list(folder + level[i], level[i], number);
      if (std::this_thread::get_id() == caller) look();
    });
    level.clear();
    for (listing& each : listings) {
      std::ranges::move(each.folders, std::back_inserter(level));
      std::ranges::move(each.files, std::back_inserter(files_));
      for (failure& failed : each.failures) failures_.push_back({arguments_[number].shown + failed.path, failed.error});
    }
  }
  std::sort(files_.begin() + static_cast<std::ptrdiff_t>(first), files_.end(),
            [](const file& a, const file& b) { return a.rest < b.rest; });
  std::sort(failures_.begin() + static_cast<std::ptrdiff_t>(first_failure), failures_.end(),
            [](const failure& a, const failure& b) { return a.path < b.path; });
}

std::vector<piece> pieces_of(const file_tree& tree, std::uint32_t piece_nbytes) {
  const std::vector<file_tree::file>& files = tree.files();
  std::vector<std::uint32_t> by_size(files.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::ranges::stable_sort(by_size, [&](std::uint32_t a, std::uint32_t b) { return files[a].nbytes > files[b].nbytes; });
  std::vector<piece> all;
  all.reserve(files.size());
  for (const std::uint32_t file : by_size) {
    std::uint64_t begin = 0;
    for (; files[file].nbytes - begin > piece_nbytes; begin += piece_nbytes) all.push_back({begin, file, piece_nbytes});
    all.push_back({begin, file, to_the_end});
  }
  return all;
}

}  // namespace gpufs::apps::words
