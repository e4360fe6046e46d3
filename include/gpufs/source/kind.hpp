// SPDX-License-Identifier: Apache-2.0
// The list of sources: where the bytes of open files come from. A source is a line here and a file in detail/, which
// detail/list.hpp includes; what differs by source is decided there, and nowhere else on the device (docs/design/sources.md).
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs {

// The side that brings the pages of a source into the cache.
enum class page_reader : std::uint32_t {
  nobody,  // nothing is read
  device,  // the kernel that misses, at once
  host,    // a thread of the host, by a request: it takes time, and so may be asked for ahead
  either,  // it depends on the page, and on the moment
};

// Each source has a name, a reader of its pages, and a flag. The flag is true if reads give the version of the file that was
// opened, and false if they give the file's present bytes. The sources with false come last, and only these can be written.
#define GPUFS_SOURCES(SOURCE)                                                                                      \
  SOURCE(nil, nobody, true)     /* nothing is brought in: measures the cache alone */                              \
  SOURCE(pull, device, true)    /* the kernel copies from a registered mapping of the host's */                    \
  SOURCE(staged, host, true)    /* a thread of the host fills a pinned staging slot */                             \
  SOURCE(windows, either, true) /* pull where the file's window is registered, staged elsewhere */                 \
  SOURCE(mem, device, true)     /* the file lies in device memory */                                               \
  SOURCE(nvme, device, true)    /* the kernel sends commands to an NVMe controller */                              \
  SOURCE(live, either, false)   /* of files that are open for writing: what the file has when a page is read in */ \
  SOURCE(zero, nobody, false)   /* of files that are open with O_GWRONCE: nothing is read, pages begin as zeros */

// The kind of an open file's source.
enum class source_kind : std::uint32_t {
#define GPUFS_SOURCE(name, reader, of_version) name,
  GPUFS_SOURCES(GPUFS_SOURCE)
#undef GPUFS_SOURCE
};

namespace source {
#define GPUFS_SOURCE(name, reader, of_version) (of_version),
inline constexpr bool have_version[] = {GPUFS_SOURCES(GPUFS_SOURCE)};
#undef GPUFS_SOURCE
inline constexpr std::uint32_t count = sizeof have_version;
inline constexpr std::uint32_t first_without_version = [] {
  std::uint32_t n = 0;
  for (const bool has : have_version) n += has ? 1 : 0;
  return n;
}();
static_assert(
    [] {
      for (std::uint32_t i = 0; i < count; ++i) {
        if (have_version[i] != (i < first_without_version)) return false;
      }
      return true;
    }(),
    "what has no version comes last");
}  // namespace source

GPUFS_HOST_DEVICE constexpr page_reader reader_of(source_kind kind) {
  switch (kind) {  // NOLINTBEGIN(bugprone-branch-clone): two in a row may have the same reader
#define GPUFS_SOURCE(name, reader, of_version) \
  case source_kind::name:                      \
    return page_reader::reader;
    GPUFS_SOURCES(GPUFS_SOURCE)
#undef GPUFS_SOURCE
  }  // NOLINTEND(bugprone-branch-clone)
  return page_reader::nobody;
}

// Whether the bytes of an open file never change.
GPUFS_HOST_DEVICE constexpr bool has_version(source_kind kind) {
  return static_cast<std::uint32_t>(kind) < source::first_without_version;
}
// Whether threads of the host may read pages of it.
GPUFS_HOST_DEVICE constexpr bool may_ask_host(source_kind kind) { return reader_of(kind) >= page_reader::host; }
// Whether the host may be asked for pages before anybody waits for them, because the time of the read does not matter.
GPUFS_HOST_DEVICE constexpr bool may_ask_ahead(source_kind kind) { return has_version(kind) && may_ask_host(kind); }
// Whether the copy engine may bring in pages of it, from where the device reads them itself.
GPUFS_HOST_DEVICE constexpr bool may_be_copied(source_kind kind) {
  return kind == source_kind::pull || kind == source_kind::windows;
}
// Whether pages of it may be read without asking the host.
GPUFS_HOST_DEVICE constexpr bool may_pass_host_by(source_kind kind) {
  return reader_of(kind) == page_reader::device || reader_of(kind) == page_reader::either;
}

}  // namespace gpufs
