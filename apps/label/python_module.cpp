// SPDX-License-Identifier: Apache-2.0
// gpufs._label: what `gpufs label` and gpufs.par.label() find regions by. The interpreter's lock is not held while anything waits.
// Memory is named by its address, and Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/label/labeler.hpp"
#include "apps/label/strip_regions.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::label;

namespace {

std::unique_ptr<labeler> make_labeler(const std::string& engine, const label_options& options) {
  check_engine(engine);
  const unlocked others;
  return of_a_device([&] {
    if (engine == "cpu") return make_labeler_cpu(options);
#if GPUFS_WITH_CUDA
    if (engine == "gpu") return make_labeler_cuda(options);
#endif
    return make_labeler_simt(options);
  });
}

std::uint64_t usual_memory(const std::string& engine, [[maybe_unused]] int device) {
  check_engine(engine);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return of_a_device([&] { return usual_memory_of_gpu(device); });
#endif
  return usual_memory_of_host();
}

// Labels an image strip by strip.
class regions {
 public:
  regions(const std::string& engine, std::uint64_t npixels, std::uint64_t width, bool corners, int device)
      : labeler_(make_labeler(engine, {npixels, corners, device})), width_(width), strips_(width, corners) {}
  ~regions() {
    const unlocked others;
    labeler_.reset();
  }
  regions(const regions&) = delete;
  regions& operator=(const regions&) = delete;

  void label(std::uintptr_t pixels, std::uint64_t height, std::optional<std::uint32_t> background, std::uintptr_t seam,
             std::uintptr_t labels) {
    const unlocked others;
    auto* const to = reinterpret_cast<std::int32_t*>(labels);
    const std::uint64_t nregions =
        labeler_->label({reinterpret_cast<const std::uint32_t*>(pixels), height, width_}, background, to);
    strips_.add(to, height, nregions, reinterpret_cast<const std::uint32_t*>(seam));
  }
  std::uint64_t number() {
    const unlocked others;
    labeler_.reset();  // gives its memory back
    return strips_.number();
  }
  void renumber(std::uint64_t which, std::uintptr_t labels, std::uint64_t n, bool is_64_bit) const {
    const unlocked others;
    is_64_bit ? strips_.renumber(which, reinterpret_cast<std::int64_t*>(labels), n)
              : strips_.renumber(which, reinterpret_cast<std::int32_t*>(labels), n);
  }

 private:
  std::unique_ptr<labeler> labeler_;
  const std::uint64_t width_;
  strip_regions strips_;
};

}  // namespace

NB_MODULE(_label, m) {
  m.doc() = "Regions of images, for gpufs.par.label().";
  translate_errors();
  m.attr("MOST_PIXELS") = most_pixels;
  m.attr("NBYTES_A_PIXEL") = nbytes_a_pixel;
  m.def("usual_memory", &usual_memory, "engine"_a, "device"_a, "How many bytes labelling takes of its memory if nobody says.");
  nb::class_<regions>(m, "Regions", "Of an image of one column at least that is labelled by strips, from the uppermost on.")
      .def(nb::init<const std::string&, std::uint64_t, std::uint64_t, bool, int>(), "engine"_a, "npixels"_a, "width"_a, "corners"_a,
           "device"_a, "npixels: of a strip, at most.")
      .def("label", &regions::label, "pixels"_a, "height"_a, "background"_a.none(), "seam"_a, "labels"_a,
           "Labels the next strip of height * width uint32 pixels, as int32. seam: the kinds of the row above, then of its first "
           "row.")
      .def("number", &regions::number, "After the last strip: how many regions there are.")
      .def("renumber", &regions::renumber, "which"_a, "labels"_a, "n"_a, "is_64_bit"_a,
           "After number(): n labels of a strip become those of the whole image.");
}
