// SPDX-License-Identifier: Apache-2.0
// gpufs._native: what the Python command `gpufs collage` runs. The interpreter's lock is not held while work is done; C++
// exceptions become gpufs.errors.GpufsError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "apps/collage/builder.hpp"
#include "apps/collage/library.hpp"
#include "apps/collage/match.hpp"
#include "apps/collage/synth.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::collage;

namespace {

using pixel_array = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using thumbnail_array = nb::ndarray<const std::uint8_t, nb::shape<-1, tile_side, tile_side, 3>, nb::c_contig, nb::device::cpu>;
using origin_array = nb::ndarray<const std::uint32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using id_array = nb::ndarray<const std::uint32_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using match_array = nb::ndarray<nb::numpy, std::uint32_t, nb::shape<-1, 4>, nb::c_contig>;

match_array to_numpy(std::vector<match>&& matches) {
  auto* kept = new std::vector<match>(std::move(matches));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<match>*>(p); });
  return match_array(reinterpret_cast<std::uint32_t*>(kept->data()), {kept->size(), 4}, owner);
}

photo to_photo(const pixel_array& pixels) {
  const std::size_t height = pixels.shape(0);
  const std::size_t width = pixels.shape(1);
  const bool whole = height != 0 && width != 0 && height % tile_side == 0 && width % tile_side == 0;
  if (!whole) throw gpufs::error("the photograph's sides must be multiples of 32 pixels");
  if (height / tile_side * (width / tile_side) >= (1u << 31)) throw gpufs::error("the photograph has too many blocks");
  return {pixels.data(), static_cast<std::uint32_t>(width / tile_side), static_cast<std::uint32_t>(height / tile_side)};
}

nb::dict to_dict(const header& h) {
  nb::dict d;
  d["version"] = h.version;
  d["file_nbytes"] = h.file_nbytes;
  d["nimages"] = h.nimages;
  d["nsources"] = h.nsources;
  d["seed"] = h.seed;
  d["histogram_stride"] = h.histogram_stride;
  d["key_nbits"] = h.key_nbits;
  d["cell_nbits"] = h.cell_nbits;
  d["shortlist_goal"] = h.shortlist_goal;
  d["mean_shortlist"] = h.mean_shortlist / 1000.0;
  d["tiles"] = (h.flags & flag_tiles) != 0;
  return d;
}

gpufs::simt::block_order to_order(const std::string& name) {
  if (name == "in-order") return gpufs::simt::block_order::in_order;
  if (name == "reversed") return gpufs::simt::block_order::reversed;
  if (name == "random") return gpufs::simt::block_order::random;
  throw gpufs::error("block order is '" + name + "'; it can be in-order, reversed or random");
}

gpufs::store_kind to_store(const std::string& name) {
  if (name == "auto") return gpufs::store_kind::automatic;
  if (name == "posix") return gpufs::store_kind::posix;
  if (name == "mapped") return gpufs::store_kind::mapped;
  throw gpufs::error("store is '" + name + "'; it can be auto, posix or mapped");
}

std::unique_ptr<matcher> make_matcher(const library& lib, const std::string& engine, unsigned nthreads, std::uint64_t cache_nbytes,
                                      std::uint32_t page_nbytes, const std::string& store, unsigned block_threads, unsigned grid,
                                      std::uint32_t blocks_per_launch, std::uint64_t seed, const std::string& order,
                                      unsigned resident_blocks) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  engine_options options;
  options.nthreads = nthreads;
  options.cache_nbytes = cache_nbytes;
  options.page_nbytes = page_nbytes;
  options.store = to_store(store);
  options.block_threads = block_threads;
  options.grid = grid;
  options.blocks_per_launch = blocks_per_launch;
  options.schedule.seed = seed;
  options.schedule.order = to_order(order);
  options.schedule.resident_blocks = resident_blocks;
  options.schedule.timeout_ns = 0;  // a large photograph may take long; what waits inside has its own deadline
  const unlocked others;
  if (engine == "cpu") return matcher_cpu(lib, options);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return matcher_cuda(lib, options);
#endif
  return matcher_simt(lib, options);
}

nb::dict find_matches(matcher& engine, const pixel_array& pixels, const nb::object& progress) {
  const photo picture = to_photo(pixels);
  const progress_function report = to_progress(progress);
  match_result result;
  {
    const unlocked others;
    result = engine.find(picture, report);
  }
  nb::dict d;
  d["matches"] = to_numpy(std::move(result.matches));
  d["seconds"] = result.seconds;
  d["machine"] = result.machine;
  d["source"] = result.source;
  d["counters"] = result.counters ? nb::object(counters_of(*result.counters)) : nb::none();
  return d;
}

match_array exhaustive(const library& lib, const pixel_array& pixels, const std::vector<std::uint32_t>& blocks, unsigned nthreads,
                       const nb::object& progress) {
  const progress_function report = to_progress(progress);
  const photo picture = to_photo(pixels);
  std::vector<match> found;
  {
    const unlocked others;
    found = match_exhaustive(lib, picture, blocks, nthreads, report);
  }
  return to_numpy(std::move(found));
}

nb::ndarray<nb::numpy, std::uint8_t, nb::shape<-1, tile_side, tile_side, 3>> thumbnails(const library& lib, const id_array& ids) {
  const std::size_t n = ids.shape(0);
  auto pixels = std::make_unique<std::uint8_t[]>(n * tile_nbytes);
  {
    const unlocked others;
    lib.read_thumbnails(ids.data(), n, pixels.get());
  }
  const nb::capsule owner(pixels.get(), [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  return {pixels.release(), {n, tile_side, tile_side, 3}, owner};
}

std::size_t add_thumbnails(library_builder& builder, const thumbnail_array& pixels, const origin_array& origins) {
  if (pixels.shape(0) != origins.shape(0)) throw gpufs::error("each thumbnail needs one origin");
  const unlocked others;
  return builder.add(pixels.data(), reinterpret_cast<const image_origin*>(origins.data()), pixels.shape(0));
}

void add_photo(synthesizer& images, const pixel_array& pixels, std::uint32_t source, std::uint32_t reduction) {
  if (pixels.shape(0) > UINT32_MAX || pixels.shape(1) > UINT32_MAX) throw gpufs::error("the photograph has too many pixels");
  const unlocked others;
  images.add_photo(pixels.data(), static_cast<std::uint32_t>(pixels.shape(1)), static_cast<std::uint32_t>(pixels.shape(0)), source,
                   reduction);
}

nb::tuple draw(const synthesizer& images, std::uint64_t index, std::uint32_t attempt) {
  if (images.nphotos() == 0) throw gpufs::error("there are no photographs to cut images from");
  auto pixels = std::make_unique<std::uint8_t[]>(tile_nbytes);
  const image_origin o = images.draw(index, attempt, pixels.get());
  const nb::capsule owner(pixels.get(), [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  const nb::ndarray<nb::numpy, std::uint8_t> picture(pixels.release(), {tile_side, tile_side, 3}, owner);
  return nb::make_tuple(picture, nb::make_tuple(o.source, o.x, o.y, o.side));
}

void add_synthetic_images(library_builder& builder, const synthesizer& images, std::uint64_t nimages, unsigned nthreads,
                          const nb::object& progress) {
  const progress_function report = to_progress(progress);
  const unlocked others;
  add_synthetic(builder, images, nimages, nthreads, report);
}

nb::dict finish(library_builder& builder, const nb::object& progress) {
  const progress_function report = to_progress(progress);
  header head;
  {
    const unlocked others;
    head = builder.finish(report);
  }
  return to_dict(head);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The C++ side of gpufs's Python package.";
  translate_errors();

  m.attr("MAGIC") = nb::bytes(magic, sizeof magic);
  m.attr("TILE_SIDE") = tile_side;
  m.attr("DEFAULT_SEED") = default_seed;
  m.attr("DEFAULT_SHORTLIST_GOAL") = default_shortlist_goal;
  m.attr("MAX_NIMAGES") = max_nimages;
  m.attr("MAX_SYNTH_SIDE") = max_synth_side;
  m.def("engine_missing", &why_not, "engine"_a, "Why the engine (cpu, simt, gpu) cannot run here; empty when it can.");

  nb::class_<matcher>(m, "Matcher", "An engine; what it has brought into its page cache is there for the next photograph.")
      .def("find", &find_matches, "pixels"_a, nb::kw_only(), "progress"_a = nb::none(),
           "The most similar image of every 32x32 block of pixels (uint8 [32 h, 32 w, 3]). 'matches' of the result is uint32\n"
           "[h * w, 4]: id, squared distance, images from the block's own buckets, images compared. 'counters' are those since\n"
           "the engine was made. One thread calls at a time.");

  nb::class_<library>(m, "Library", "An open collage library whose header and layout are sound.")
      .def(
          "__init__", [](library* self, const nb::object& path) { new (self) library(to_path(path)); }, "path"_a,
          "Opens a library file. GpufsError says what is wrong with it.")
      .def(
          "info", [](const library& lib) { return to_dict(lib.head()); }, "What the header says.")
      .def(
          "origin",
          [](const library& lib, std::uint32_t id) {
            const image_origin o = lib.origin(id);
            return nb::make_tuple(o.source, o.x, o.y, o.side);
          },
          "id"_a, "Source number and square (x, y, side in pixels) that the image shows.")
      .def(
          "source_name",
          [](const library& lib, std::uint32_t source) {
            const std::string name = lib.source_name(source);
            return nb::bytes(name.data(), name.size());
          },
          "source"_a, "The source's path, as bytes.")
      .def("thumbnails", &thumbnails, "ids"_a, "The 32x32 pictures of the images asked for: uint8 [n, 32, 32, 3].")
      .def(
          "check_sums",
          [](const library& lib, const nb::object& progress) {
            const progress_function report = to_progress(progress);
            const unlocked others;
            lib.check_sums(report);
          },
          "progress"_a = nb::none(), "Compares all checksums. GpufsError names the section that differs.")
      .def(
          "check_contents",
          [](const library& lib, const nb::object& progress) {
            const progress_function report = to_progress(progress);
            const unlocked others;
            lib.check_contents(report);
          },
          "progress"_a = nb::none(), "Checks what checksums cannot tell: histograms, order of tables, names.")
      .def("matcher", &make_matcher, "engine"_a = "cpu", nb::kw_only(), "nthreads"_a = 0, "cache_nbytes"_a = 0,
           "page_nbytes"_a = 4096, "store"_a = "auto", "block_threads"_a = 256, "grid"_a = 0, "blocks_per_launch"_a = 0,
           "seed"_a = 0, "order"_a = "in-order", "resident_blocks"_a = 0, nb::keep_alive<0, 1>(),
           "An engine that is set up for one photograph after the other.")
      .def("match_exhaustive", &exhaustive, "pixels"_a, "blocks"_a, nb::kw_only(), "nthreads"_a = 0, "progress"_a = nb::none(),
           "The truly most similar image of each block asked for, as Matcher.find's 'matches'. Reads the whole library.");

  nb::class_<synthesizer>(m, "Synthesizer", "Draws images from photographs: squares of them, mirrored or not, colours shifted.")
      .def(nb::init<std::uint64_t>(), "seed"_a)
      .def("add_photo", &add_photo, "pixels"_a, "source"_a, "reduction"_a = 1,
           "A photograph (uint8 [height, width, 3]; the shorter side 32 to 4096 pixels) of that source, made `reduction` times\n"
           "smaller. Drawn with a probability proportional to the original's area.")
      .def("draw", &draw, "index"_a, "attempt"_a = 0,
           "Image `index`: its pixels (uint8 [32, 32, 3]) and its origin (source, x, y, side). attempt: counts the images drawn\n"
           "for this index before, all like others.")
      .def_prop_ro("nphotos", &synthesizer::nphotos);

  nb::class_<library_builder>(m, "LibraryBuilder", "Writes a library; nothing stays of one that is not finished.")
      .def(
          "__init__",
          [](library_builder* self, const nb::object& path, bool packed, bool tiles, std::uint64_t seed,
             std::uint32_t shortlist_goal, std::uint32_t key_nbits, unsigned nthreads) {
            new (self) library_builder(to_path(path), {packed, tiles, seed, shortlist_goal, key_nbits, nthreads});
          },
          "path"_a, nb::kw_only(), "packed"_a = false, "tiles"_a = false, "seed"_a = default_seed,
          "shortlist_goal"_a = default_shortlist_goal, "key_nbits"_a = 0, "nthreads"_a = 0)
      .def(
          "add_source",
          [](library_builder& builder, const nb::bytes& name) {
            return builder.add_source(std::string_view(name.c_str(), name.size()));
          },
          "name"_a, "Names a picture file; returns its number, for the origins of its thumbnails.")
      .def("add", &add_thumbnails, "pixels"_a, "origins"_a,
           "Adds thumbnails (uint8 [n, 32, 32, 3]) with their origins (uint32 [n, 4]: source, x, y, side) that equal none\n"
           "before; returns how many.")
      .def("add_synthetic", &add_synthetic_images, "images"_a, "nimages"_a, nb::kw_only(), "nthreads"_a = 0,
           "progress"_a = nb::none(),
           "Adds that many images of a Synthesizer, all different, to a builder that has none. The photographs' sources must have\n"
           "been added.")
      .def_prop_ro("nimages", &library_builder::nimages)
      .def("finish", &finish, "progress"_a = nb::none(),
           "Writes the rest and puts the library in place. Returns what Library.info returns.");
}
