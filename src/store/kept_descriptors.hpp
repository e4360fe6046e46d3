// SPDX-License-Identifier: Apache-2.0
// How many descriptors of files this process keeps for gpufs. Any thread calls.
#pragma once

namespace gpufs::store {

// What a descriptor is for. All are among the first three quarters of the limit, so that the rest of the process has a quarter; and
// no more than an eighth are further ones of the same file.
enum class kept_for { file, further_reader };

// Counts one more. False: there are enough, and it is not counted.
bool keep_descriptor(kept_for what);
// The same of a file without a limit but the system's.
void keep_descriptor_anyway();
void give_descriptor_back(kept_for what = kept_for::file);

}  // namespace gpufs::store
