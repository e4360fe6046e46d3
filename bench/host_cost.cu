// SPDX-License-Identifier: Apache-2.0
// What a mount costs the host.
//
// host_cpu_pull: CPU seconds of the whole process (workers, watch, the thread that waits for the kernel) for each second of
// random 4 KiB misses on the pull path. host_cpu_idle: the same while nothing has run for a quarter of a second, without an open
// file and with one. Beside them, bounded by nothing: the time to make a mount, to register all of a large file, and of its first
// open by a kernel after that. The file is real memory (tmpfs), not sparse.
#include <memory>
#include <thread>

#include "access.hpp"

namespace {

using namespace bench;

gpufs::mount_options options_for(std::uint64_t cache_nbytes, std::uint64_t file_nbytes) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = cache_nbytes;
  options.pin_nbytes = file_nbytes + (1u << 30);
  return options;
}

measurement itself(const char* name, std::string label, const char* unit) {
  measurement m{name, std::move(label), {}, unit};
  m.figure = measurement::kind::itself;
  m.verified = true;
  return m;
}

// Workers look around for a moment before they sleep: that is over first.
double idle_share(double seconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  const stopwatch watch;
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return (process_cpu_seconds() - before) / watch.seconds();
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("host_cost", [&] {
    arguments args(argc, argv,
                   "host_cost  --dir DIR  --file-gib N  --cache-gib N  --reads N  --idle-seconds N  --blocks-per-sm N  --warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const shape how = grid_of(machine, args);
    const int repeats = repeats_of(args);
    const std::uint64_t nbytes = args.nbytes("file-gib", {40, 1, 8. / 1024}) / 4096 * 4096;
    const std::uint64_t cache_nbytes = args.nbytes("cache-gib", {1, 1. / 16, 1. / 1024});
    const double reads = args.number("reads", {3e6, 1e5, 256}), idle = args.number("idle-seconds", {1, 0.5, 0.2});
    results out("host_cost", args, machine);
    make_file(folder.path() + "/data", nbytes);
    const gpufs::mount_options options = options_for(cache_nbytes, nbytes);
    const std::string gib = std::to_string(nbytes >> 20) + " MiB";

    measurement mounting = itself("mount", std::to_string(cache_nbytes >> 20) + " MiB of cache", "s");
    measurement preparing = itself("prepare", gib + " in memory", "s");
    measurement opening = itself("first_open", gib + " in memory, by a kernel", "s");
    std::unique_ptr<gpufs::mount> fs;
    std::unique_ptr<host_file> file;
    measurement idling = itself("host_cpu_idle", "nothing open", "CPU s per s");
    for (int r = 0; r < 2; ++r) {  // registering 40 GiB takes a second or two
      file.reset();
      fs.reset();
      const stopwatch watch;
      fs = std::make_unique<gpufs::mount>(folder.path(), options);
      mounting.samples.push_back(watch.seconds());
      idling.samples.push_back(idle_share(idle));
      const stopwatch prepare_watch;
      fs->prepare("data");
      preparing.samples.push_back(prepare_watch.seconds());
      const stopwatch open_watch;
      file = std::make_unique<host_file>(*fs, "data");
      opening.samples.push_back(open_watch.seconds());
    }
    out.add(mounting);
    out.add(preparing);
    out.add(opening);
    if (args.wants("host_cpu_idle")) {
      out.add(idling);
      measurement open = itself("host_cpu_idle", "one pulled file open", "CPU s per s");
      for (int r = 0; r < 2; ++r) open.samples.push_back(idle_share(idle));
      out.add(open);
    }
    if (args.wants("host_cpu_pull")) {
      measurement pulling = itself("host_cpu_pull", "map_page, " + gib + " in memory", "CPU s per s");
      const auto launch = [&](const shape& s, const auto& kernel) {
        const stopwatch watch;
        const double before = process_cpu_seconds(), seconds = run(s, kernel);
        pulling.samples.push_back((process_cpu_seconds() - before) / watch.seconds());
        return seconds;
      };
      const random_reads got = measure_random<way::map_page>(*fs, file->ref().number(), how, nbytes / 4096, reads, repeats, launch);
      pulling.samples.erase(pulling.samples.begin());  // the launch that filled the cache
      pulling.samples.pop_back();                      // and the one that compared every byte
      pulling.verified = got.right;
      pulling.details = {{"gb_per_second_missed", spread_of(got.missed).median * 4096e-9}};
      out.add(pulling);
    }
    file.reset();
    return out.finish();
  });
}
