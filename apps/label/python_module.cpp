// SPDX-License-Identifier: Apache-2.0
// gpufs._label: what `gpufs label` and gpufs.par.label() find regions by. The interpreter's lock is not held while anything waits.
// Memory is named by its address, and Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "apps/label/labeler.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::label;

namespace {

std::uint64_t label_image(const std::string& engine, std::uintptr_t pixels, std::uint64_t height, std::uint64_t width, bool corners,
                          std::optional<std::uint32_t> background, int device, std::uintptr_t labels) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  const unlocked others;
  const image_view image{reinterpret_cast<const std::uint32_t*>(pixels), height, width};
  const label_options options{corners, background, device};
  auto* const to = reinterpret_cast<std::int32_t*>(labels);
  if (engine == "cpu") return label_cpu(image, options, to);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return label_cuda(image, options, to);
#endif
  return label_simt(image, options, to);
}

}  // namespace

NB_MODULE(_label, m) {
  m.doc() = "Regions of images, for gpufs.par.label().";
  translate_errors();
  m.attr("MOST_PIXELS") = most_pixels - 1;
  m.def("label", &label_image, "engine"_a, "pixels"_a, "height"_a, "width"_a, "corners"_a, "background"_a.none(), "device"_a,
        "labels"_a, "Labels height * width uint32 pixels, as int32: how many regions there are.");
}
