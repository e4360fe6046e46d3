// SPDX-License-Identifier: Apache-2.0
#include "own_descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

#include "../store/kept_descriptors.hpp"

namespace gpufs::service {
namespace {

// Opens what the descriptor names once more. By /proc, as a descriptor that was duplicated counts in the same place.
unique_fd open_again(int shared) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", shared);
  unique_fd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat ours {
  }, theirs{};
  const bool is_same = fd.get() >= 0 && ::fstat(fd.get(), &ours) == 0 && ::fstat(shared, &theirs) == 0 &&
                       ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  return is_same ? std::move(fd) : unique_fd();
}

}  // namespace

own_descriptors::own_descriptors(std::uint32_t nworkers) : all_(std::min(nworkers, most)) {}

own_descriptors::~own_descriptors() {
  for (const one& some : all_) {
    if (some.fd.get() >= 0) store::give_descriptor_back(store::kept_for::further_reader);
  }
}

int own_descriptors::of(std::uint32_t worker, int shared) {
  if (worker >= all_.size()) return shared;
  one& mine = all_[worker];
  if (!mine.was_opened && mine.ncalls >= often) {
    mine.was_opened = true;
    if (store::keep_descriptor(store::kept_for::further_reader)) {
      mine.fd = open_again(shared);
      if (mine.fd.get() < 0) store::give_descriptor_back(store::kept_for::further_reader);
    }
  }
  return mine.fd.get() >= 0 ? mine.fd.get() : shared;
}

void own_descriptors::note(std::uint32_t worker, std::uint32_t ncalls) {
  if (worker < all_.size() && !all_[worker].was_opened) all_[worker].ncalls += ncalls;
}

}  // namespace gpufs::service
