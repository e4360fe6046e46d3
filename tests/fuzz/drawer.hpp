// SPDX-License-Identifier: Apache-2.0
// Draws a program from its seed. Each takes some of the verbs only, more or less often (swarm testing: Groce and others, ISSTA
// 2012), and few names, so that calls meet.
#pragma once
#include "fuzz/nvme_files.hpp"
#include "fuzz/program.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

class drawer {
 public:
  explicit drawer(std::uint64_t seed) : draw_(seed), advice_(~seed << 1) { out_.seed = seed; }
  // Over one file of controllers, which keeps its size and its name, and which nobody else writes.
  drawer(std::uint64_t seed, store_choice over) : drawer(seed) { over_ = over; }

  program operator()() {
    const std::uint64_t theme = draw_.below(100);
    if (is_over_nvme()) {
      about_ = subject::bytes;
      return draw_rounds();
    }
    about_ = under_tsan || (theme >= 50 && theme < 80) ? subject::names : theme < 50 ? subject::all : subject::bytes;
    out_.may_starve = about_ != subject::names && draw_.percent(15);
    reads_fail_ = about_ != subject::names && !out_.may_starve && draw_.percent(10);
    return draw_rounds();
  }

 private:
  // Names that change beside opens and appends, what is in files whose names stay, or both.
  enum class subject { all, names, bytes };

  bool is_over_nvme() const { return over_ != store_choice::automatic; }

  program draw_rounds() {
    draw_groups();
    draw_mounts();
    draw_names();
    draw_verbs();
    draw_flag_weights();
    make_room();
    open_.assign(out_.active.size(), std::vector<bool>(handles_per_group));
    mount_of_.assign(out_.active.size(), std::vector<unsigned>(handles_per_group));
    const std::uint64_t nrounds = draw_.between(1, 3);
    for (std::uint64_t r = 0; r < nrounds; ++r) draw_round();
    return std::move(out_);
  }

  void draw_groups() {
    formation& how = out_.how;
    how.grid = static_cast<unsigned>(draw_.between(out_.may_starve ? 2 : 1, on_cuda ? 6 : 3));
    const auto warps = static_cast<unsigned>(draw_.between(1, 2));
    how.block = 32 * warps;
    const std::uint64_t kinds = draw_.below(6) | (out_.may_starve ? 1 : 0);  // then no single threads alone
    for (unsigned b = 0; b < how.grid; ++b) {
      const bool as_block = kinds == 3 || (kinds > 3 && draw_.percent(25));
      for (unsigned w = 0; w < warps; ++w) {
        how.warps.push_back(as_block    ? group_kind::block
                            : kinds > 3 ? static_cast<group_kind>(draw_.below(3))
                                        : static_cast<group_kind>(kinds));
      }
    }
    simt::cpu_schedule& s = how.schedule;
    s.seed = out_.seed;
    s.order = static_cast<simt::block_order>(draw_.below(3));
    s.nthreads = static_cast<unsigned>(draw_.between(1, 3));
    s.switch_percent = draw_.pick(std::vector<unsigned>{0, 5, 25, 60, 100});
    draw_policy(draw_, s);
    const std::uint32_t n = how.ngroups();
    std::set<std::uint32_t> chosen;
    for (std::uint64_t i = draw_.between(out_.may_starve ? 5 : 2, 5); i != 0; --i)
      chosen.insert(static_cast<std::uint32_t>(draw_.below(n)));
    out_.active.assign(chosen.begin(), chosen.end());
  }

  void draw_mounts() {
    const std::vector<std::uint32_t> pages = {512, 512, 512, 1024, 4096, 4096, 16384, 65536};
    out_.root = about_ == subject::names || draw_.percent(75) ? root_kind::memory : root_kind::disk;
    const bool one = out_.may_starve || is_over_nvme() || draw_.percent(about_ == subject::names ? 90 : 65);
    for (std::uint64_t n = one ? 1 : draw_.between(2, 3); n != 0; --n) {
      fuzz_mount& m = out_.mounts.emplace_back();
      mount_options& o = m.options;
      o.writable = true;
      o.page_nbytes = draw_.pick(pages);
      // Each warp of a block pins a page, and a page that is mapped for writing takes two frames.
      if (out_.may_starve && draw_.percent(80)) o.page_nbytes = 512;
      o.cache_nbytes = o.page_nbytes * (out_.may_starve     ? draw_.between(2, 4)
                                        : draw_.percent(40) ? draw_.between(2, 6)
                                                            : draw_.between(2, 64));
      o.dirty_nbytes = draw_.percent(30) ? 0 : draw_.between(1, o.cache_nbytes);
      o.max_open_files = 256;
      o.max_mappings = 256;
      o.nworkers = static_cast<std::uint32_t>(draw_.between(1, 3));
      o.internals.nrings = static_cast<std::uint32_t>(draw_.below(4));
      o.internals.request_rings = static_cast<std::uint32_t>(draw_.between(1, 4));
      o.internals.request_slots = draw_.percent(50) ? 2 : 8;
      o.frame_timeout = o.io_timeout = std::chrono::seconds(under_tsan || under_compute_sanitizer() ? 60 : 10);
      if (out_.may_starve) o.frame_timeout = std::chrono::milliseconds(draw_.between(1, 32));
      const std::uint64_t store = draw_.below(100);
      m.store = store < 30   ? store_choice::automatic
                : store < 55 ? store_choice::posix
                : store < 65 ? store_choice::direct
                : store < 90 ? store_choice::mapped_all
                             : store_choice::slow;
      if (reads_fail_) m.store = store_choice::failing;
      if (is_over_nvme()) m.store = over_;
      if (under_memcheck() && m.store == store_choice::mapped_all) m.store = store_choice::posix;
    }
  }

  void draw_names() {
    if (is_over_nvme()) {
      files_.push_back(namespace_name);
      directories_.push_back("d0");  // which is not there
      if (over_ == store_choice::nvme && draw_.percent(75)) out_.shape = draw_shape(draw_);
      most_ = draw_.between(1, 40) * 512;
      if (!out_.shape.is_namespace()) most_ = out_.shape.whole(most_);
      out_.files.push_back({namespace_name, most_, ++id_});
      return;
    }
    const std::vector<std::string> all_directories = {"d0", "d1", "d0/s", "x", "y"};
    const std::vector<std::string> all_files = {"f0", "f1", "d0/f", "d1/f", "d0/s/f"};
    for (const std::string& d : all_directories) {
      const bool there = draw_.percent(about_ == subject::names ? 65 : 85);
      if (there && (d != "d0/s" || has(out_.directories, "d0"))) out_.directories.push_back(d);
      if (draw_.percent(75)) directories_.push_back(d);
    }
    if (directories_.empty()) directories_.push_back("x");
    for (const std::string& f : all_files) {
      if (draw_.percent(about_ == subject::names ? 25 : 50)) files_.push_back(f);
    }
    if (files_.empty()) files_.push_back("f0");
    // More often one of them than all.
    if (out_.may_starve || draw_.percent(50)) hot_ = draw_.pick(files_);
    const std::uint64_t page = draw_.pick(out_.mounts).options.page_nbytes;
    most_ = std::min<std::uint64_t>(draw_.between(out_.may_starve ? 5 : 1, 6) * page, 20'000);
    for (const std::string& f : all_files) {
      const std::size_t slash = f.rfind('/');
      if (slash != std::string::npos && !has(out_.directories, f.substr(0, slash))) continue;
      const bool wanted = has(files_, f) && about_ != subject::names;
      if (!draw_.percent(wanted ? 90 : 40)) continue;
      out_.files.push_back({f, draw_.percent(15) ? 0 : draw_.between(draw_.percent(70) ? most_ / 2 : 0, most_), ++id_});
    }
    draw_links();
  }

  void draw_links() {
    if (out_.files.empty() || !draw_.percent(30)) return;
    const std::string target = draw_.pick(out_.files).path;
    out_.links.push_back({"l", target});
    out_.links.push_back({"h", target, true});
    for (const char* name : {"l", "h"}) {
      if (draw_.percent(70)) files_.push_back(name);
    }
  }

  static bool has(const std::vector<std::string>& of, const std::string& what) {
    return std::find(of.begin(), of.end(), what) != of.end();
  }

  void draw_verbs() {
    if (about_ == subject::names) {
      verbs_ = {verb::open,   verb::open,   verb::open,   verb::append, verb::append, verb::append_each, verb::rename, verb::rename,
                verb::rename, verb::unlink, verb::unlink, verb::mkdir,  verb::stat,   verb::status,      verb::close};
      return;
    }
    if (out_.may_starve || draw_.percent(40)) {
      for (const verb v : {verb::load, verb::poke, verb::add, verb::store_at, verb::scratch}) {
        if (draw_.percent(60)) verbs_.insert(verbs_.end(), draw_.between(1, 3), v);
      }
    }
    const std::vector<verb> verbs = {verb::read,   verb::look,     verb::write, verb::append, verb::append_each,
                                     verb::store,  verb::cut,      verb::sync,  verb::status, verb::stat,
                                     verb::unlink, verb::rmdir,    verb::mkdir, verb::rename, verb::list,
                                     verb::close,  verb::open_all, verb::ahead, verb::gather, verb::scatter};
    for (const verb v : verbs) {
      if (!draw_.percent(50)) continue;
      // On disk a number of a removed file is soon another's, so that files could not be told apart.
      const bool names_stay = out_.root == root_kind::disk || about_ == subject::bytes;
      if (names_stay && (v == verb::unlink || v == verb::rename)) continue;
      if (out_.may_starve && names_paths(v)) continue;
      if (is_over_nvme() && (v == verb::cut || appends(v) || (names_paths(v) && v != verb::stat))) continue;
      for (std::uint64_t n = draw_.between(1, 4); n != 0; --n) verbs_.push_back(v);
    }
    for (std::uint64_t n = draw_.between(2, 5); n != 0; --n) verbs_.push_back(verb::open);
    if (is_over_nvme()) {
      std::erase(verbs_, verb::add);
      // Groups that store to the same bytes at once race by themselves, and not by what gpufs does.
      if (under_tsan) std::erase_if(verbs_, [](verb v) { return v == verb::store || v == verb::poke; });
      return;
    }
    if (draw_.percent(50)) verbs_.push_back(draw_.percent(50) ? verb::append : verb::append_each);
    if (!out_.may_starve && !reads_fail_) return;
    // Of an append that got no page nobody knows where it was to lie.
    std::erase_if(verbs_, appends);
    if (out_.may_starve) verbs_.insert(verbs_.end(), 8, verb::load);
  }

  void draw_flag_weights() {
    creates_ = static_cast<unsigned>(about_ == subject::names ? draw_.between(50, 100) : draw_.below(100));
    once_ = draw_.percent(70) ? 0 : static_cast<unsigned>(draw_.below(60));
    // Who cuts a file that others write in place takes their bytes: they get -EIO.
    may_cut_ = out_.root == root_kind::disk || (out_.mounts.size() == 1 && once_ == 0);
    for (const fuzz_mount& m : out_.mounts)
      may_cut_ |= out_.mounts.size() == 1 && m.store != store_choice::automatic && m.store != store_choice::mapped_all;
    // Pointers into what has been cut fail.
    by_pointer_ = std::any_of(verbs_.begin(), verbs_.end(), by_pointer);
    may_cut_ &= !by_pointer_ && !reads_fail_ && !is_over_nvme();
    if (!may_cut_) std::erase(verbs_, verb::cut);
    // Whether all opens of a program write, some, or most only read.
    reads_ = draw_.pick(about_ == subject::names ? std::vector<unsigned>{0, 0, 20} : std::vector<unsigned>{0, 20, 60});
    odd_ = draw_.percent(60) || is_over_nvme() ? 0 : 30;
    renames_directories_ = static_cast<unsigned>(draw_.below(101));
    parts_ = about_ == subject::names || reads_fail_ ? 0 : advice_.pick(std::vector<unsigned>{0, 0, 50, 90});
  }

  // Who maps a page for writing holds it, and waits for one frame more.
  void make_room() {
    if (out_.may_starve) return;
    const bool stores = std::find(verbs_.begin(), verbs_.end(), verb::store) != verbs_.end();
    if (!stores && !by_pointer_) return;
    for (fuzz_mount& m : out_.mounts) {
      // Lanes of a warp go side by side, so they hold two pages at most.
      const std::uint64_t warps = out_.how.block / 32;
      const std::uint64_t least = out_.active.size() * (by_pointer_ ? 4 * warps + 2 : 2) + 2;
      m.options.cache_nbytes = std::max(m.options.cache_nbytes, least * m.options.page_nbytes);
    }
  }

  void draw_round() {
    round& r = out_.rounds.emplace_back();
    for (unsigned g = 0; g < out_.active.size(); ++g) {
      calls& mine = r.groups.emplace_back();
      const std::uint64_t n = draw_.between(under_tsan ? 1 : 2, under_tsan ? 5 : 9);
      while (mine.size() < n) draw_call(mine, g);
    }
    if (is_over_nvme()) return;
    if (out_.root == root_kind::memory && draw_.percent(about_ == subject::names ? 5 : 20)) {
      for (std::uint64_t n = draw_.between(1, 3); n != 0; --n) r.host.push_back(draw_host_call());
    }
    if (out_.root == root_kind::memory && draw_.percent(about_ == subject::names ? 5 : 20)) {
      for (std::uint64_t n = draw_.between(1, 3); n != 0; --n) r.peer.push_back(draw_host_call());
    }
  }

  const std::string& draw_file() { return !hot_.empty() && draw_.percent(60) ? hot_ : draw_.pick(files_); }

  int draw_flags() {
    if (draw_.percent(odd_ / 5)) return static_cast<int>(draw_.below(4)) | (draw_.percent(50) || !may_cut_ ? O_CREAT : O_TRUNC);
    if (draw_.percent(reads_)) return O_RDONLY | (draw_.percent(odd_) ? O_NOFOLLOW : 0);
    int flags = draw_.percent(85) ? O_RDWR : O_WRONLY;
    if (draw_.percent(once_)) flags = draw_.percent(50) ? O_GWRONCE : flags | O_GWRONCE;
    if (draw_.percent(creates_)) flags |= O_CREAT | (draw_.percent(odd_) ? O_EXCL : 0);
    if (draw_.percent(odd_ / 3) && may_cut_) flags |= O_TRUNC;
    if (draw_.percent(odd_)) flags |= O_APPEND;
    return flags;
  }

  void draw_call(calls& mine, unsigned g) {
    call c{.what = draw_.pick(verbs_)};
    c.mount = static_cast<unsigned>(draw_.below(out_.mounts.size()));
    c.handle = static_cast<unsigned>(draw_.below(handles_per_group));
    if (names_paths(c.what)) {
      draw_path(c);
      if (c.what == verb::open)
        open_one(mine, g, c);
      else if (c.what == verb::open_all)
        open_many(mine, g, c);
      else
        mine.push_back(c);
      return;
    }
    // Of those that are open, if any are.
    std::vector<unsigned> open;
    for (unsigned h = 0; h < handles_per_group; ++h) {
      if (open_[g][h]) open.push_back(h);
    }
    if (open.empty()) {
      call o{.what = verb::open, .mount = c.mount, .handle = c.handle};
      draw_path(o);
      open_one(mine, g, o);
    } else {
      c.handle = draw_.pick(open);
    }
    if (c.what == verb::add) {
      draw_add(mine, g, c.handle);
      return;
    }
    c.mount = mount_of_[g][c.handle];
    draw_bytes(c);
    if (c.what == verb::scratch) c.flags = static_cast<int>(g);
    if ((c.what == verb::load || c.what == verb::poke) && out_.may_starve) c.flags = draw_.percent(70) ? 1 : 0;
    if (is_close(c.what)) open_[g][c.handle] = false;
    mine.push_back(c);
  }

  // By the first mount alone: others would count from what they have.
  void draw_add(calls& mine, unsigned g, unsigned handle) {
    open_one(mine, g, {.what = verb::open, .handle = handle, .flags = O_RDWR, .path = counters_name});
    for (std::uint64_t n = draw_.between(1, 4); n != 0; --n) {
      mine.push_back({.what = verb::add,
                      .handle = handle,
                      .flags = draw_.percent(50) ? 1 : 0,
                      .begin = 8 * draw_.below(draw_.percent(70) ? 2 : counters_nbytes / 8)});
    }
    mine.push_back({.what = verb::close, .handle = handle});
    open_[g][handle] = false;
  }

  void draw_path(call& c) {
    if (is_open(c.what)) c.flags = draw_flags();
    if (c.what == verb::open_all) {
      const std::string& file = draw_file();
      const std::size_t slash = file.rfind('/');
      c.path = slash == std::string::npos ? "" : file.substr(0, slash);
      c.count = static_cast<unsigned>(draw_.between(1, handles_per_group));
      for (unsigned k = 0; k < c.count; ++k)
        c.second += (k == 0 ? "" : " ") + draw_.pick(std::vector<std::string>{"f0", "f1", "f"});
      c.handle = 0;
      return;
    }
    const bool directory = c.what == verb::mkdir || c.what == verb::rmdir || c.what == verb::list ||
                           (c.what == verb::rename && draw_.percent(renames_directories_));
    const bool other = !is_open(c.what) && draw_.percent(5);
    c.path = directory != other ? draw_.pick(directories_) : draw_file();
    c.spelled = (is_open(c.what) || c.what == verb::stat) && !out_.links.empty() && draw_.percent(30);
    if (c.what == verb::rename && directory && draw_.percent(40)) {  // one that nothing lies in, so that it goes well
      const bool back = draw_.percent(50);
      c.path = back ? "y" : "x";
      c.second = back ? "x" : "y";
      return;
    }
    if (c.what == verb::rename) c.second = directory != draw_.percent(5) ? draw_.pick(directories_) : draw_file();
    if (c.what == verb::list) c.nbytes = 8192;
  }

  void open_one(calls& mine, unsigned g, const call& c) {
    if (open_[g][c.handle]) mine.push_back({.what = verb::close, .mount = mount_of_[g][c.handle], .handle = c.handle});
    open_[g][c.handle] = true;
    mount_of_[g][c.handle] = c.mount;
    mine.push_back(c);
    if (!advice_.percent(parts_)) return;
    mine.push_back(
        {.what = verb::ahead, .mount = c.mount, .handle = c.handle, .flags = 2 + static_cast<int>(advice::random), .nbytes = 1});
  }
  void open_many(calls& mine, unsigned g, const call& c) {
    // close_all takes handles of one mount.
    bool one_mount = true;
    for (unsigned h = 0; h < c.count; ++h) one_mount &= !open_[g][h] || mount_of_[g][h] == mount_of_[g][0];
    if (one_mount && open_[g][0]) {
      mine.push_back({.what = verb::close_all, .mount = mount_of_[g][0], .count = c.count});
    } else {
      for (unsigned h = 0; h < c.count; ++h) {
        if (open_[g][h]) mine.push_back({.what = verb::close, .mount = mount_of_[g][h], .handle = h});
      }
    }
    for (unsigned h = 0; h < c.count; ++h) {
      open_[g][h] = true;
      mount_of_[g][h] = c.mount;
    }
    mine.push_back(c);
  }

  void draw_bytes(call& c) {
    if (c.what == verb::sync) c.flags = static_cast<int>(draw_.below(3));
    if (c.what == verb::cut) c.begin = draw_.percent(20) ? 0 : draw_.below(most_);
    if (c.what == verb::ahead) c.flags = static_cast<int>(draw_.below(9));  // 2 + advice
    if (c.what == verb::read || c.what == verb::look || c.what == verb::load || c.what == verb::ahead || c.what == verb::gather ||
        takes_bytes(c.what)) {
      const std::uint64_t longest = draw_.percent(out_.may_starve ? 10 : 50) ? 40 : std::min<std::uint64_t>(most_, 3000);
      c.nbytes = draw_.between(1, longest);
      if (!appends(c.what)) c.begin = draw_.below(most_);
      if (c.what == verb::append_each) c.flags = static_cast<int>(draw_.below(3));
      if (takes_bytes(c.what)) c.id = ++id_;
      if (is_batch(c.what)) {
        const std::vector<std::uint64_t> sizes = {1, 4, 8, 12, 16, 40, 64, 128, 250, 256, 512, 1000, c.nbytes};
        const std::uint64_t row = std::min(draw_.pick(sizes), c.nbytes);
        c.nbytes -= c.nbytes % row;
        c.flags = batch_of::flags(row, draw_.below(256));
      }
      if (c.what == verb::store_at) {
        c.flags = static_cast<int>(draw_.below(3));
        c.begin -= c.begin % 16;
        c.nbytes = (c.nbytes + 15) / 16 * 16;
      }
      // A namespace does not grow.
      if (is_over_nvme() && takes_bytes(c.what) && c.what != verb::scratch && c.begin + c.nbytes > most_) {
        c.begin = most_ - std::min(most_, c.nbytes);
        c.begin -= c.what == verb::store_at ? c.begin % 16 : 0;
        c.nbytes = std::min(c.nbytes, most_ - c.begin);
        if (is_batch(c.what)) c.nbytes -= c.nbytes % batch_of(c).row_nbytes;
      }
      if (c.what == verb::scratch) {  // in one page of each mount, so that it is held from writing to reading
        c.nbytes = std::min<std::uint64_t>(c.nbytes, 512);
        c.begin = std::min(c.begin / 512 * 512 + c.begin % 512, c.begin / 512 * 512 + 512 - c.nbytes);
      }
    }
  }

  call draw_host_call() {
    const std::vector<verb> verbs = {verb::write, verb::write, verb::unlink, verb::rename, verb::mkdir, verb::rmdir};
    call c{.what = draw_.pick(verbs)};
    if (c.what == verb::write) {
      c.path = draw_file();
      c.id = ++id_;
      c.begin = draw_.below(most_);
      c.nbytes = draw_.between(1, 100);
    } else {
      draw_path(c);
    }
    return c;
  }

  random_source draw_, advice_;  // the latter for advice at opens
  program out_;
  subject about_ = subject::all;
  store_choice over_ = store_choice::automatic;  // or of all mounts: a controller's
  std::vector<std::string> directories_, files_;
  std::string hot_;
  std::uint64_t most_ = 0, id_ = 0;
  std::vector<verb> verbs_;
  bool reads_fail_ = false, may_cut_ = false, by_pointer_ = false;
  unsigned creates_ = 0, reads_ = 0, once_ = 0, odd_ = 0, renames_directories_ = 0, parts_ = 0;  // percent
  std::vector<std::vector<bool>> open_;  // [group][handle], if all went well
  std::vector<std::vector<unsigned>> mount_of_;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
