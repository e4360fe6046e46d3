// SPDX-License-Identifier: Apache-2.0
// Random programs that write, and what must come of them. Several mounts of one directory and this process write the same files at
// once. In each kernel every byte has one owner, so that what the files hold at the end is known to the byte, however the writers
// take turns.
//
// Writers that share what is cached are a domain: the groups of one mount that opened a file in the same mode (O_GWRONCE or not),
// or this process. Between kernels bytes change hands inside a domain; from one domain to another only at the end of an epoch,
// when all files are closed, as what one has cached the other may overwrite.
#pragma once
#include <algorithm>
#include <sstream>
#include <string>

#include "file/schedules.hpp"
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

enum class step_kind { open, open_exclusive, open_to_read, close, write, append, sync, cut, read, status, advise };

struct step {
  step_kind kind;
  unsigned file = 0;    // which of the program's
  unsigned handle = 0;  // which of the group's
  int flags = 0;        // of opens; of sync, how far; of advise, what
  std::uint64_t begin = 0, nbytes = 0;
  std::uint64_t id = 0;  // of writes and appends: makes the bytes
};

// What the group or this process does in one kernel, or before it.
using steps = std::vector<step>;

struct program_mount {
  mount_options options;
  formation how;
  std::uint32_t delay_us = 0;  // of the store's writes, which then go through its calls; 0: the store of `options`
  bool maps = false;           // a store that maps files of every size, where they are in memory
  bool advises = false;        // its groups say of files that they want parts of pages, and other things
  // A store that fails, and goes through its calls, too: every n-th write, having written nothing or half of its bytes, and
  // every sync; with these errnos. 0: it does not.
  std::uint32_t fail_every = 0, tear_every = 0;
  int write_error = 0, sync_error = 0;

  bool by_calls() const { return delay_us != 0 || write_error != 0; }
};

struct program_phase {
  std::vector<std::vector<steps>> groups;  // [mount][group]
  steps host_before, host_during;
  bool ends_epoch = false;  // all files are closed after it
};

struct program_file {
  std::string name;
  std::uint64_t nbytes = 0;  // at first
  std::uint64_t most = 0;    // bytes it may get by writes
  bool exists = true;
  bool is_log = false;  // only appended to
};

struct write_program {
  std::uint64_t seed = 0;
  std::vector<program_mount> mounts;
  std::vector<program_file> files;
  std::vector<program_phase> phases;
  given_schedules schedules;  // of these kernels; the others' are drawn
  std::string left_out;       // what a shrinker took away, for it to do so again
};

inline bool may_read(const step& open) { return (open.flags & (O_WRONLY | O_GWRONCE)) == 0; }

// Draws a program from its seed.
class program_drawer {
 public:
  explicit program_drawer(std::uint64_t seed) : draw_(seed), advice_(~seed << 1) { out_.seed = seed; }

  write_program operator()() {
    draw_mounts();
    draw_failures();
    draw_advice();
    draw_files();
    const auto nphases = static_cast<unsigned>(draw_.between(1, 3));
    bool fresh = true;
    for (unsigned p = 0; p < nphases; ++p) {
      if (fresh) begin_epoch();
      const bool last = p + 1 == nphases || draw_.percent(40);
      out_.phases.push_back(draw_phase(last));
      fresh = last;
    }
    return std::move(out_);
  }

 private:
  static constexpr unsigned nobody = ~0u;
  enum class mode { none, both, write_only, once };
  struct range {
    std::uint64_t begin, end;
    unsigned owner;  // a domain
  };
  struct member {
    unsigned mount, group;
  };
  // How a file is shared in an epoch.
  struct sharing {
    std::vector<range> runs;  // below `floor`
    std::uint64_t floor = 0;  // from here on all bytes, and the size, belong to one domain, and in a kernel to one group
    unsigned cutter = nobody;
    std::vector<std::vector<mode>> modes;      // [mount][group]
    std::vector<std::vector<member>> members;  // [domain]
  };

  unsigned host_domain() const { return 2 * static_cast<unsigned>(out_.mounts.size()); }

  void draw_mounts() {
    const std::vector<std::uint32_t> pages = {512, 512, 512, 1024, 2048, 4096, 4096, 16384, 65536};
    const auto n = static_cast<unsigned>(draw_.percent(50) ? 1 : draw_.between(2, 3));
    for (unsigned i = 0; i < n; ++i) {
      program_mount& m = out_.mounts.emplace_back();
      mount_options& o = m.options;
      o.writable = true;
      o.page_nbytes = draw_.pick(pages);
      o.cache_nbytes = o.page_nbytes * (draw_.percent(40) ? draw_.between(1, 4) : draw_.between(1, 64));
      o.dirty_nbytes = draw_.percent(30) ? 0 : draw_.between(1, o.cache_nbytes);
      o.max_open_files = 256;
      o.store = draw_.percent(80) ? store_kind::posix : store_kind::automatic;
      o.nworkers = static_cast<std::uint32_t>(draw_.between(1, 3));
      o.internals.nrings = static_cast<std::uint32_t>(draw_.below(4));
      o.internals.request_rings = static_cast<std::uint32_t>(draw_.between(1, 4));
      o.internals.request_slots = draw_.percent(50) ? 2 : 8;
      o.frame_timeout = std::chrono::seconds(under_tsan || under_compute_sanitizer() ? 60 : 5);
      if (draw_.percent(20)) m.delay_us = static_cast<std::uint32_t>(draw_.between(1, 200));
      // memcheck takes a mapping that is registered while the kernel runs for out of bounds.
      m.maps = m.delay_us == 0 && draw_.percent(50) && !under_memcheck();

      formation& how = m.how;
      how.grid = static_cast<unsigned>(draw_.between(1, on_cuda ? 16 : n == 1 && !under_tsan ? 3 : 2));
      const auto warps = static_cast<unsigned>(draw_.between(1, under_tsan ? 1 : 2));
      how.block = 32 * warps;
      const std::uint64_t kinds = draw_.below(6);
      for (unsigned b = 0; b < how.grid; ++b) {
        const bool as_block = kinds == 3 || (kinds > 3 && draw_.percent(30));
        for (unsigned w = 0; w < warps; ++w) {
          how.warps.push_back(as_block    ? group_kind::block
                              : kinds > 3 ? static_cast<group_kind>(draw_.below(3))
                                          : static_cast<group_kind>(kinds));
        }
      }
      how.schedule.seed = out_.seed + i;
      how.schedule.order = static_cast<simt::block_order>(draw_.below(3));
      how.schedule.nthreads = static_cast<unsigned>(draw_.between(1, 3));
      how.schedule.switch_percent = draw_.pick(std::vector<unsigned>{0, 5, 25, 60, 100});
      draw_policy(draw_, how.schedule);
    }
  }

  // Of few mounts, so that most programs have none that fails. By draws of its own: else a seed's program would be another.
  void draw_failures() {
    random_source draw(~out_.seed);
    for (program_mount& m : out_.mounts) {
      if (!draw.percent(10)) continue;
      m.maps = false;
      m.fail_every = draw.pick(std::vector<std::uint32_t>{1, 3, 10, 40});
      m.tear_every = draw.pick(std::vector<std::uint32_t>{2, 5, 20, 100});
      m.write_error = draw.pick(std::vector<int>{EIO, ENOSPC, EDQUOT});
      m.sync_error = draw.percent(30) ? EROFS : 0;
    }
  }

  // By draws of its own, too.
  void draw_advice() {
    for (program_mount& m : out_.mounts) m.advises = advice_.percent(50);
  }

  void draw_files() {
    const auto n = static_cast<unsigned>(draw_.between(1, 3));
    for (unsigned i = 0; i < n; ++i) {
      program_file& f = out_.files.emplace_back();
      f.name = numbered("f", i);
      f.is_log = i != 0 && draw_.percent(40);
      const std::uint64_t page = draw_.pick(out_.mounts).options.page_nbytes;
      f.most = std::min<std::uint64_t>(draw_.between(1, draw_.percent(30) ? 3 * page : 12 * page), under_tsan ? 20'000 : 150'000);
      f.exists = draw_.percent(75);
      f.nbytes = !f.exists ? 0 : draw_.percent(30) ? f.most : draw_.below(f.most + 1);
    }
  }

  mode draw_mode() {
    const std::uint64_t n = draw_.below(100);
    return n < 50 ? mode::both : n < 65 ? mode::write_only : n < 85 ? mode::once : mode::none;
  }

  void begin_epoch() {
    shared_.clear();
    for (const program_file& f : out_.files) {
      sharing& s = shared_.emplace_back();
      s.members.resize(host_domain() + 1);
      // Who appends to a log is one domain, as each has a size of its own.
      const auto log_mount = static_cast<unsigned>(draw_.below(out_.mounts.size()));
      const bool log_once = draw_.percent(25);
      const bool mixed = draw_.percent(40);
      for (unsigned m = 0; m < out_.mounts.size(); ++m) {
        std::vector<mode>& modes = s.modes.emplace_back();
        const bool once = draw_.percent(20);
        for (unsigned g = 0; g < out_.mounts[m].how.ngroups(); ++g) {
          mode how = draw_mode();
          if (!mixed && how != mode::none && (how == mode::once) != once) how = once ? mode::once : mode::both;
          if (f.is_log && how != mode::none) {
            how = m != log_mount ? mode::none : log_once ? mode::once : how == mode::once ? mode::both : how;
          }
          modes.push_back(how);
          if (how != mode::none) s.members[2 * m + (how == mode::once)].push_back({m, g});
        }
      }
      if (f.is_log) continue;
      std::vector<unsigned> owners;
      for (unsigned d = 0; d < host_domain(); ++d) {
        if (!s.members[d].empty()) owners.push_back(d);
      }
      s.floor = f.most;
      if (!owners.empty() && draw_.percent(40)) {
        s.cutter = draw_.pick(owners);
        s.floor = draw_.percent(25) ? 0 : draw_.below(f.most);
      }
      if (draw_.percent(40)) owners.push_back(host_domain());
      owners.push_back(nobody);
      s.runs = split(0, s.floor, owners);
    }
  }

  // Runs of a byte to a few pages, with drawn owners.
  std::vector<range> split(std::uint64_t begin, std::uint64_t end, const std::vector<unsigned>& owners) {
    std::vector<range> out;
    const unsigned small = draw_.pick(std::vector<unsigned>{0, 50, 90});
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t most = draw_.percent(small) ? 40 : std::max<std::uint64_t>(40, (end - begin) / draw_.between(1, 6));
      const std::uint64_t n = std::min(draw_.between(1, most), end - at);
      out.push_back({at, at + n, draw_.pick(owners)});
      at += n;
      if (out.size() > 400) {  // enough: the rest is one run
        if (at < end) out.push_back({at, end, draw_.pick(owners)});
        break;
      }
    }
    return out;
  }

  // What a group owns in a kernel.
  struct piece {
    unsigned file;
    std::uint64_t begin, end;
    bool has_end;  // and the size
  };

  program_phase draw_phase(bool last) {
    program_phase phase;
    phase.ends_epoch = last;
    std::vector<std::vector<std::vector<piece>>> owned;
    for (const program_mount& m : out_.mounts) {
      phase.groups.emplace_back(m.how.ngroups());
      owned.emplace_back(m.how.ngroups());
    }
    if (open_.empty()) {
      for (const program_mount& m : out_.mounts) open_.emplace_back(m.how.ngroups(), std::vector<bool>(out_.files.size()));
    }
    for (unsigned f = 0; f < out_.files.size(); ++f) {
      const sharing& s = shared_[f];
      for (const range& run : s.runs) {
        if (run.owner == nobody) continue;
        if (run.owner == host_domain()) {
          host_writes(phase, f, run);
          continue;
        }
        std::vector<unsigned> which(s.members[run.owner].size());
        for (unsigned i = 0; i < which.size(); ++i) which[i] = i;
        const bool whole = draw_.percent(50);
        for (const range& part :
             whole ? std::vector<range>{{run.begin, run.end, draw_.pick(which)}} : split(run.begin, run.end, which)) {
          const member& by = s.members[run.owner][part.owner];
          owned[by.mount][by.group].push_back({f, part.begin, part.end, false});
        }
      }
      if (s.cutter != nobody) {
        const member& by = draw_.pick(s.members[s.cutter]);
        owned[by.mount][by.group].push_back({f, s.floor, out_.files[f].most, true});
      }
    }
    std::size_t ngroups = 0;
    for (const auto& groups : owned) ngroups += groups.size();
    for (unsigned m = 0; m < out_.mounts.size(); ++m) {
      for (unsigned g = 0; g < owned[m].size(); ++g) {
        if (draw_.percent(ngroups > 40 ? 40 : 85) || last) {
          phase.groups[m][g] = draw_group(m, g, owned[m][g], last, ngroups);
        }
      }
    }
    return phase;
  }

  void host_writes(program_phase& phase, unsigned file, const range& run) {
    while (draw_.percent(60)) {
      const std::uint64_t begin = run.begin + draw_.below(run.end - run.begin);
      steps& to = draw_.percent(50) ? phase.host_before : phase.host_during;
      to.push_back(
          {.kind = step_kind::write, .file = file, .begin = begin, .nbytes = draw_.between(1, run.end - begin), .id = ++id_});
    }
  }

  steps draw_group(unsigned m, unsigned g, const std::vector<piece>& owned, bool last, std::size_t ngroups) {
    steps out;
    std::vector<unsigned> mine;
    for (unsigned f = 0; f < out_.files.size(); ++f) {
      if (shared_[f].modes[m][g] != mode::none) mine.push_back(f);
    }
    auto is_open = open_[m][g];
    const std::uint64_t ncalls = ngroups > 40 ? draw_.between(1, 8) : draw_.between(2, under_tsan ? 15 : 30);
    const auto most = std::max<std::uint64_t>(64, (under_tsan ? 300'000u : 3'000'000u) / (ngroups * ncalls));
    for (std::uint64_t i = 0; i < ncalls && !mine.empty(); ++i) {
      const unsigned f = draw_.pick(mine);
      if (draw_.percent(5)) {
        out.push_back({.kind = step_kind::open_exclusive, .file = f, .handle = 3, .flags = O_RDWR | O_CREAT | O_EXCL});
        out.push_back({.kind = step_kind::close, .file = f, .handle = 3});
      }
      if (draw_.percent(5)) {
        out.push_back({.kind = step_kind::open_to_read, .file = f, .handle = 3, .flags = O_RDONLY});
        out.push_back(draw_read(f, 3, owned, most));
        out.push_back({.kind = step_kind::close, .file = f, .handle = 3});
      }
      if (!is_open[f]) {
        out.push_back(draw_open(m, g, f, owned));
        is_open[f] = true;
        if (out_.mounts[m].advises && may_read(out.back())) advise(out, f, 80);
      }
      if (is_open[f] && out_.mounts[m].advises && shared_[f].modes[m][g] == mode::both && advice_.percent(10)) advise(out, f, 60);
      draw_call(out, m, g, f, owned, most);
      if (draw_.percent(5)) {
        out.push_back({.kind = step_kind::close, .file = f, .handle = f});
        is_open[f] = false;
      }
    }
    for (unsigned f = 0; f < out_.files.size(); ++f) {
      if (is_open[f] && (last || draw_.percent(40))) {
        out.push_back({.kind = step_kind::close, .file = f, .handle = f});
        is_open[f] = false;
      }
    }
    open_[m][g] = is_open;
    return out;
  }

  void advise(steps& out, unsigned f, unsigned random_percent) {
    const std::vector<advice> others = {advice::normal, advice::whole, advice::sequential, advice::noreuse, advice::dontneed};
    const advice what = advice_.percent(random_percent) ? advice::random : advice_.pick(others);
    out.push_back({.kind = step_kind::advise, .file = f, .handle = f, .flags = static_cast<int>(what)});
  }

  step draw_open(unsigned m, unsigned g, unsigned f, const std::vector<piece>& owned) {
    const mode how = shared_[f].modes[m][g];
    int flags = how == mode::both ? O_RDWR : how == mode::write_only ? O_WRONLY : O_GWRONCE;
    if (how == mode::once && draw_.percent(50)) flags |= draw_.percent(50) ? O_RDWR : O_WRONLY;
    if (!out_.files[f].exists || draw_.percent(20)) flags |= O_CREAT;
    if (draw_.percent(out_.files[f].is_log ? 60 : 5)) flags |= O_APPEND;
    for (const piece& p : owned) {
      if (p.file == f && p.has_end && p.begin == 0 && draw_.percent(30)) flags |= O_TRUNC;
    }
    return {.kind = step_kind::open, .file = f, .handle = f, .flags = flags};
  }

  step draw_read(unsigned f, unsigned handle, const std::vector<piece>& owned, std::uint64_t most) {
    step s{.kind = step_kind::read, .file = f, .handle = handle};
    if (under_tsan) return s;  // what others write meanwhile is theirs, and looking at it a race
    std::uint64_t begin = 0, end = out_.files[f].most + 100;
    for (const piece& p : owned) {  // more often its own
      if (p.file == f && p.begin < p.end && draw_.percent(30)) begin = p.begin, end = p.end;
    }
    s.begin = begin + draw_.below(end - begin);
    s.nbytes = std::min(draw_.between(1, draw_.percent(60) ? end - s.begin : 2 * (end - s.begin)), most);
    return s;
  }

  void draw_call(steps& out, unsigned m, unsigned g, unsigned f, const std::vector<piece>& owned, std::uint64_t most) {
    std::vector<piece> here;
    for (const piece& p : owned) {
      if (p.file == f) here.push_back(p);
    }
    const mode how = shared_[f].modes[m][g];
    const std::uint64_t what = draw_.below(100);
    if (what < 5) {
      out.push_back({.kind = step_kind::sync, .file = f, .handle = f, .flags = static_cast<int>(draw_.below(3))});
    } else if (what < 10) {
      out.push_back({.kind = step_kind::status, .file = f, .handle = f});
    } else if (what < 30 && how == mode::both) {
      out.push_back(draw_read(f, f, owned, most));
    } else if (out_.files[f].is_log) {
      const std::uint64_t longest = draw_.percent(80) ? 100 : 2 * std::uint64_t{out_.mounts[m].options.page_nbytes};
      out.push_back(
          {.kind = step_kind::append, .file = f, .handle = f, .nbytes = std::min(draw_.between(1, longest), most), .id = ++id_});
    } else if (!here.empty()) {
      const piece& p = draw_.pick(here);
      if (p.has_end && draw_.percent(25)) {
        out.push_back({.kind = step_kind::cut, .file = f, .handle = f, .begin = draw_.between(p.begin, out_.files[f].most + 1000)});
        return;
      }
      step s{.kind = step_kind::write, .file = f, .handle = f, .begin = p.begin, .nbytes = p.end - p.begin, .id = ++id_};
      if (draw_.percent(50)) {
        s.begin += draw_.below(s.nbytes);
        s.nbytes = draw_.between(1, p.end - s.begin);
      }
      s.nbytes = std::min(s.nbytes, most);
      out.push_back(s);
      if (how == mode::both && draw_.percent(30)) {
        out.push_back({.kind = step_kind::read, .file = f, .handle = f, .begin = s.begin, .nbytes = s.nbytes});
      }
    }
  }

  random_source draw_, advice_;
  write_program out_;
  std::vector<sharing> shared_;                       // [file], of the epoch
  std::vector<std::vector<std::vector<bool>>> open_;  // [mount][group][file]
  std::uint64_t id_ = 0;
};

inline std::string flag_names(int flags) {
  std::string text = (flags & O_GWRONCE) != 0          ? "GWRONCE"
                     : (flags & O_ACCMODE) == O_RDWR   ? "RDWR"
                     : (flags & O_ACCMODE) == O_WRONLY ? "WRONLY"
                                                       : "RDONLY";
  if ((flags & O_CREAT) != 0) text += "|CREAT";
  if ((flags & O_EXCL) != 0) text += "|EXCL";
  if ((flags & O_TRUNC) != 0) text += "|TRUNC";
  if ((flags & O_APPEND) != 0) text += "|APPEND";
  return text;
}

inline std::string to_text(const step& s) {
  constexpr const char* names[] = {"open", "open_exclusive", "open_to_read", "close", "write", "append", "sync",
                                   "cut",  "read",           "status",       "advise"};
  std::ostringstream text;
  text << names[static_cast<int>(s.kind)] << " f" << s.file;
  if (s.kind <= step_kind::open_to_read) text << ' ' << flag_names(s.flags);
  if (s.kind == step_kind::write || s.kind == step_kind::read) text << " [" << s.begin << ", " << s.begin + s.nbytes << ')';
  if (s.kind == step_kind::append) text << ' ' << s.nbytes;
  if (s.kind == step_kind::cut) text << ' ' << s.begin;
  if (s.kind == step_kind::sync || s.kind == step_kind::advise) text << ' ' << s.flags;
  if (s.id != 0) text << " #" << s.id;
  return text.str();
}

inline std::string to_text(const write_program& p) {
  constexpr const char* kinds[] = {"thread", "tile8", "warp", "block"};
  std::ostringstream text;
  text << "GPUFS_TEST_SEED=" << p.seed;
  if (!p.left_out.empty()) text << " GPUFS_TEST_LEAVE_OUT='" << p.left_out << '\'';
  if (!p.schedules.empty()) text << " GPUFS_TEST_SCHEDULE='" << to_text(p.schedules) << '\'';
  text << '\n';
  for (const program_file& f : p.files) {
    text << f.name << ": " << (f.exists ? std::to_string(f.nbytes) + " bytes" : std::string("absent"))
         << (f.is_log ? ", a log\n" : "\n");
  }
  for (std::size_t m = 0; m < p.mounts.size(); ++m) {
    const mount_options& o = p.mounts[m].options;
    const formation& how = p.mounts[m].how;
    text << "mount " << m << ": page " << o.page_nbytes << ", " << o.cache_nbytes / o.page_nbytes << " frames, dirty_nbytes "
         << o.dirty_nbytes << ", " << o.nworkers << " workers, " << o.internals.nrings << " rings, " << o.internals.request_rings
         << " x " << o.internals.request_slots << " requests, delay " << p.mounts[m].delay_us << " us, "
         << (p.mounts[m].maps ? "maps, " : "") << (p.mounts[m].advises ? "advises, " : "");
    if (p.mounts[m].write_error != 0) {
      text << "every " << p.mounts[m].fail_every << ". write fails, every " << p.mounts[m].tear_every << ". is torn, errno "
           << p.mounts[m].write_error << ", of syncs " << p.mounts[m].sync_error << ", ";
    }
    text << how.grid << " x " << how.block << " threads, " << describe(how.schedule) << '\n';
  }
  const auto line = [&text](const std::string& who, const steps& what) {
    if (what.empty()) return;
    text << "  " << who << ": ";
    for (std::size_t i = 0; i < what.size(); ++i) text << (i == 0 ? "" : "; ") << to_text(what[i]);
    text << '\n';
  };
  for (std::size_t i = 0; i < p.phases.size(); ++i) {
    const program_phase& phase = p.phases[i];
    text << "kernels " << i << (phase.ends_epoch ? ", then all is closed\n" : "\n");
    line("host, before", phase.host_before);
    line("host, meanwhile", phase.host_during);
    for (std::size_t m = 0; m < phase.groups.size(); ++m) {
      std::uint32_t last = ~0u;
      for (const membership& who : p.mounts[m].how.members()) {
        if (who.group == last) continue;
        last = who.group;
        line(numbered("mount ", m) + numbered(" group ", last) + " (" + kinds[static_cast<int>(who.kind)] + ")",
             phase.groups[m][last]);
      }
    }
  }
  return text.str();
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
