// SPDX-License-Identifier: Apache-2.0
// What applications say where they fail.
#pragma once
#include <string>

#include "gpufs/mount.hpp"

namespace gpufs::apps {

// What is said where this fails, or "nothing".
template <class Work>
std::string said(const Work& work) {
  try {
    work();
  } catch (const error& why) {
    return why.what();
  }
  return "nothing";
}

}  // namespace gpufs::apps
