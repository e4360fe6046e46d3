// SPDX-License-Identifier: Apache-2.0
// Runs a program that writes, and compares all results, bytes, files and counters with a plain model.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <span>

#include "file/faulty_store.hpp"
#include "file/write_program.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// Something that changed a file: bytes were written, or all from `begin` on were cut off.
struct change {
  unsigned phase, domain, mount, group;  // group: host_group for this process
  std::size_t at;                        // which of its steps
  std::uint64_t begin, end;
  std::uint64_t origin, id;  // byte x is content_byte(id, x - origin)
  bool cuts;
  bool flushed;  // by the writer's fsync or close
  struct range {
    std::uint64_t begin, end;
  };
  std::vector<range> lost = {};  // pages of which a write has failed before it was flushed

  std::byte byte(std::uint64_t x) const { return cuts ? std::byte{0} : content_byte(id, x - origin); }
  bool may_lack(std::uint64_t x) const {
    return std::any_of(lost.begin(), lost.end(), [x](const range& r) { return x >= r.begin && x < r.end; });
  }
};
constexpr unsigned host_group = ~0u, no_domain = ~0u;

// Who looks at a file, and when.
struct reader {
  unsigned phase, domain, mount, group;
  std::size_t at;
  bool is_host = false;  // looks at the file itself, after the phase
};
enum class sight { cannot_see, may_see, must_see };

sight sees(const reader& who, const change& what) {
  if (who.is_host) return what.flushed ? sight::must_see : sight::may_see;
  if (what.phase > who.phase) return sight::cannot_see;
  if (what.phase == who.phase && what.mount == who.mount && what.group == who.group) {
    if (what.at > who.at) return sight::cannot_see;
    return what.domain == who.domain ? sight::must_see : sight::may_see;
  }
  return what.domain == who.domain && what.phase < who.phase ? sight::must_see : sight::may_see;
}

// What is known of a file since the epoch began. A byte has one owner at a time, so its changes have an order.
class file_model {
 public:
  std::vector<std::byte> base;  // as the epoch began
  std::vector<change> changes;  // each byte's in the order in which they came

  struct size_range {
    std::uint64_t low, high;
  };
  size_range nbytes(const reader& who) const {
    size_range r{base.size(), base.size()};
    for (const change& c : changes) {
      const sight s = sees(who, c);
      if (s == sight::cannot_see) continue;
      if (c.cuts) {
        r = s == sight::must_see ? size_range{c.begin, c.begin} : size_range{std::min(r.low, c.begin), std::max(r.high, c.begin)};
      } else {
        r.high = std::max(r.high, c.end);
        if (s == sight::must_see && !c.may_lack(c.end - 1)) r.low = std::max(r.low, c.end);
      }
    }
    return r;
  }

  // The first of the bytes from `begin` on that cannot be there, or bytes.size().
  std::size_t first_wrong(const reader& who, std::uint64_t begin, std::span<const std::byte> bytes) const {
    std::vector<bool> good(bytes.size());
    const std::uint64_t end = begin + bytes.size();
    for (std::uint64_t x = begin; x < end; ++x) good[x - begin] = bytes[x - begin] == (x < base.size() ? base[x] : std::byte{0});
    for (const change& c : changes) {
      const sight s = sees(who, c);
      if (s == sight::cannot_see) continue;
      const std::uint64_t last = c.cuts ? end : std::min(c.end, end);
      for (std::uint64_t x = std::max(c.begin, begin); x < last; ++x) {
        const bool equal = bytes[x - begin] == c.byte(x);
        good[x - begin] = equal || (good[x - begin] && (s == sight::may_see || c.may_lack(x)));
      }
    }
    return static_cast<std::size_t>(std::find(good.begin(), good.end(), false) - good.begin());
  }

  // Who wrote that byte, for messages.
  std::string history(std::uint64_t x) const {
    std::ostringstream text;
    for (const change& c : changes) {
      if (c.begin > x || (!c.cuts && c.end <= x)) continue;
      text << "\n    kernels " << c.phase << " mount " << c.mount << " group " << static_cast<int>(c.group)
           << (c.cuts ? " cut" : " #") << c.id << " = " << static_cast<int>(c.byte(x)) << (c.flushed ? " flushed" : "")
           << (c.may_lack(x) ? " failed" : "");
    }
    return text.str();
  }
};

// Of a file's writes by one domain, since the program began.
struct write_failures {
  std::uint64_t failed = 0, told = 0;       // writes of the store; syncs and closes
  unsigned last_failed = 0, last_told = 0;  // in which kernels, the first being 1
};

class program_run {
 public:
  explicit program_run(const write_program& p) : program_(p), models_(p.files.size()), written_(p.mounts.size()) {}

  // Runs it once: what went wrong first, or nothing.
  std::string operator()() {
    try {
      start();
      for (unsigned i = 0; i < program_.phases.size() && wrong_.empty(); ++i) run_phase(i);
    } catch (const std::exception& e) {
      fail(e.what());
    }
    return wrong_;
  }

  // What the kernels that ran by priorities did.
  const std::map<std::pair<unsigned, unsigned>, simt::schedule_trace>& traces() const { return traces_; }

 private:
  using outcomes = std::vector<std::vector<outcome>>;

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void require(bool good, const std::string& what) {
    if (!good) fail(what);
  }

  void start() {
    for (std::size_t f = 0; f < program_.files.size(); ++f) {
      const program_file& file = program_.files[f];
      if (!file.exists) continue;
      dir_.add(file.name, file.nbytes, 1'000'000 + f);
      models_[f].base = content(1'000'000 + f, 0, file.nbytes);
    }
    for (const program_mount& m : program_.mounts) {
      mount_options options = m.options;
      stores_.push_back(m.by_calls() ? store_of(m) : nullptr);
      if (m.by_calls()) options.custom_store = stores_.back();
      if (m.maps) options.custom_store = mapping_store(dir_.path());
      mounts_.push_back(std::make_unique<mount>(dir_.path(), options));
      players_.push_back(std::make_unique<players>(mounts_.back()->ref(), m.how));
    }
  }

  std::shared_ptr<faulty_store> store_of(const program_mount& m) const {
    auto store =
        std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
    faults& wrong = store->wrong();
    wrong.write_delay_ns = std::uint64_t{1000} * m.delay_us;
    wrong.short_every = 3;
    wrong.fail_write_every = m.fail_every;
    wrong.tear_every = m.tear_every;
    wrong.write_error = m.write_error;
    wrong.sync_error = m.sync_error;
    return store;
  }

  void host_writes(const steps& what) const {
    for (const step& s : what) {
      const int fd = ::open((dir_ / program_.files[s.file].name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (fd < 0) fail_errno("open");
      const auto bytes = content(s.id, s.begin, s.nbytes);
      if (::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(s.begin)) != static_cast<ssize_t>(s.nbytes)) {
        fail_errno("pwrite");
      }
      ::close(fd);
    }
  }

  script to_script(const steps& what) const {
    script out;
    for (const step& s : what) {
      const auto begin = static_cast<std::int64_t>(s.begin);
      switch (s.kind) {
        case step_kind::open:
        case step_kind::open_exclusive:
        case step_kind::open_to_read:
          out.open(s.handle, program_.files[s.file].name, s.flags);
          break;
        case step_kind::close:
          out.close(s.handle);
          break;
        case step_kind::write:
          out.pwrite(s.handle, content(s.id, s.begin, s.nbytes), begin);
          break;
        case step_kind::append:
          out.append(s.handle, content(s.id, 0, s.nbytes));
          break;
        case step_kind::sync:
          out.fsync(s.handle, static_cast<durability>(s.flags));
          break;
        case step_kind::cut:
          out.ftruncate(s.handle, begin);
          break;
        case step_kind::read:
          out.pread(s.handle, s.nbytes, begin);
          break;
        case step_kind::status:
          out.fstat(s.handle);
          break;
        case step_kind::advise:
          out.advise(s.handle, 0, 0, static_cast<advice>(s.flags));
          break;
      }
    }
    return out;
  }

  void set_schedule(unsigned p, unsigned m) {
    simt::cpu_schedule& s = players_[m]->schedule();
    s = program_.mounts[m].how.schedule;
    const auto given = program_.schedules.find({p, m});
    if (on_cuda || (s.policy != simt::schedule_policy::priorities && given == program_.schedules.end())) return;
    simt::schedule_trace& trace = traces_[{p, m}];
    if (given != program_.schedules.end()) use(given->second, s, trace);
    s.trace = &trace;
  }

  // All mounts' kernels at once, and this process beside them.
  std::vector<outcomes> run_kernels(unsigned p) {
    const program_phase& phase = program_.phases[p];
    std::vector<outcomes> got(mounts_.size());
    std::barrier together(static_cast<std::ptrdiff_t>(mounts_.size()));
    std::mutex mutex;
    std::vector<std::thread> threads;
    const auto guarded = [&](auto work) {
      threads.emplace_back([&, work] {
        try {
          work();
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          fail(e.what());
        }
      });
    };
    for (unsigned m = 0; m < mounts_.size(); ++m) set_schedule(p, m);
    for (unsigned m = 0; m < mounts_.size(); ++m) {
      guarded([&, m] {
        std::vector<script> scripts;
        for (const steps& s : phase.groups[m]) scripts.push_back(to_script(s));
        got[m] = players_[m]->run(scripts, &together);
      });
    }
    if (!phase.host_during.empty()) guarded([&] { host_writes(phase.host_during); });
    for (std::thread& t : threads) t.join();
    return got;
  }

  void run_phase(unsigned p) {
    const program_phase& phase = program_.phases[p];
    host_writes(phase.host_before);
    const std::vector<outcomes> got = run_kernels(p);
    if (!wrong_.empty()) return;
    note_host(p, phase.host_before, 0);
    note_host(p, phase.host_during, phase.host_before.size());
    const auto each_group = [&](auto what) {
      for (unsigned m = 0; m < got.size(); ++m) {
        for (unsigned g = 0; g < got[m].size(); ++g) what(m, g, phase.groups[m][g], got[m][g]);
      }
    };
    each_group([&](auto&&... of) { note_changes(p, of...); });
    note_failures(p);
    each_group([&](auto&&... of) { note_syncs(p, of...); });
    each_group([&](auto&&... of) { check_results(p, of...); });
    if (wrong_.empty()) check_files(p);
    if (wrong_.empty()) check_mounts(phase.ends_epoch);
    if (wrong_.empty() && phase.ends_epoch) end_epoch();
  }

  void note_host(unsigned p, const steps& what, std::size_t first) {
    for (std::size_t i = 0; i < what.size(); ++i) {
      const step& s = what[i];
      models_[s.file].changes.push_back({.phase = p,
                                         .domain = 2 * static_cast<unsigned>(mounts_.size()),
                                         .mount = host_group,
                                         .group = host_group,
                                         .at = first + i,
                                         .begin = s.begin,
                                         .end = s.begin + s.nbytes,
                                         .origin = 0,
                                         .id = s.id,
                                         .cuts = false,
                                         .flushed = true});
    }
  }

  // In which domain the group has the file open.
  unsigned& domain(unsigned m, unsigned g, unsigned f) { return domains_[{m, g, f}]; }

  void note_changes(unsigned p, unsigned m, unsigned g, const steps& what, const std::vector<outcome>& got) {
    for (std::size_t i = 0; i < what.size(); ++i) {
      const step& s = what[i];
      file_model& model = models_[s.file];
      change c{.phase = p,
               .domain = 0,
               .mount = m,
               .group = g,
               .at = i,
               .begin = s.begin,
               .end = s.begin + s.nbytes,
               .origin = 0,
               .id = s.id,
               .cuts = false,
               .flushed = false};
      if (s.kind == step_kind::open) domain(m, g, s.file) = 2 * m + ((s.flags & O_GWRONCE) != 0);
      c.domain = domain(m, g, s.file);
      if (s.kind == step_kind::write || s.kind == step_kind::append) {
        if (s.kind == step_kind::append) {
          if (got[i].value < 0) continue;  // check_results tells
          c.begin = c.origin = static_cast<std::uint64_t>(got[i].value);
          c.end = c.begin + s.nbytes;
        }
        written_[m] += s.nbytes;
        model.changes.push_back(c);
      } else if (s.kind == step_kind::cut || (s.kind == step_kind::open && (s.flags & O_TRUNC) != 0)) {
        c.cuts = c.flushed = true;
        model.changes.push_back(c);
      }
    }
  }

  // What the stores have failed to write: of all that was not flushed before these kernels, as nobody knows which writes came
  // before which syncs.
  void note_failures(unsigned p) {
    for (unsigned m = 0; m < mounts_.size(); ++m) {
      if (stores_[m] == nullptr) continue;
      const std::uint64_t page = mounts_[m]->options().page_nbytes;
      for (const faults::failed_write& w : stores_[m]->wrong().take_failed()) {
        unsigned f = 0;
        while (program_.files[f].name != w.path) ++f;
        const unsigned domain = 2 * m + ((w.flags & O_GWRONCE) != 0);
        write_failures& failures = failures_[{f, domain}];
        ++failures.failed;
        failures.last_failed = p + 1;
        const std::uint64_t begin = static_cast<std::uint64_t>(w.offset) / page * page;
        for (change& c : models_[f].changes) {
          if (c.domain == domain && !c.flushed) c.lost.push_back({begin, begin + page});
        }
      }
    }
  }

  // Whether a sync or close has told that a write had failed.
  bool tells(unsigned m, std::int64_t value) const { return value < 0 && value == -program_.mounts[m].write_error; }

  void note_syncs(unsigned p, unsigned m, unsigned g, const steps& what, const std::vector<outcome>& got) {
    for (std::size_t i = 0; i < what.size(); ++i) {
      const step& s = what[i];
      if (s.kind != step_kind::sync && s.kind != step_kind::close) continue;
      const bool extra = s.handle != s.file;
      const bool told = tells(m, got[i].value);
      if (told) {
        write_failures& failures = failures_[{s.file, extra ? 2 * m : domain(m, g, s.file)}];
        ++failures.told;
        failures.last_told = p + 1;
      }
      if (extra || (got[i].value != 0 && !told)) continue;
      for (change& c : models_[s.file].changes) {
        c.flushed |= c.mount == m && c.group == g && (c.phase < p || c.at < i);
      }
    }
  }

  void check_results(unsigned p, unsigned m, unsigned g, const steps& what, const std::vector<outcome>& got) {
    bool extra_is_open = false, extra_writes = false;
    std::int64_t extra_error = -EBADF;  // of the extra handle's open; what calls on it give
    for (std::size_t i = 0; i < what.size(); ++i) {
      const step& s = what[i];
      const std::int64_t value = got[i].value;
      const bool extra = s.handle != s.file;
      const reader who{.phase = p, .domain = extra ? no_domain : domain(m, g, s.file), .mount = m, .group = g, .at = i};
      const auto where = [&] {
        return numbered("kernels ", p) + numbered(" mount ", m) + numbered(" group ", g) + ": " + to_text(s) + " gave " +
               std::to_string(value);
      };
      bool good = true;
      switch (s.kind) {
        case step_kind::open:
          good = value >= 0;
          break;
        case step_kind::open_exclusive:
          good = value == -EEXIST || (value >= 0 && !exists_[s.file]);
          extra_is_open = extra_writes = value >= 0;
          extra_error = value;
          break;
        case step_kind::open_to_read:
          good = value >= 0 || (value == -ENOENT && !exists_[s.file]);
          extra_is_open = value >= 0;
          extra_error = value;
          extra_writes = false;
          break;
        case step_kind::close:
          good = value == (extra && !extra_is_open ? extra_error : 0) || (tells(m, value) && (!extra || extra_writes));
          break;
        case step_kind::write:
          good = value == static_cast<std::int64_t>(s.nbytes);
          break;
        case step_kind::append:
          good = value >= 0;
          break;
        case step_kind::sync: {
          const bool goes_on = static_cast<durability>(s.flags) != durability::page_cache;
          good = value == (goes_on ? -program_.mounts[m].sync_error : 0) || tells(m, value);
          break;
        }
        case step_kind::cut:
        case step_kind::advise:
          good = value == 0;
          break;
        case step_kind::status: {
          const auto size = models_[s.file].nbytes(who);
          good = value >= static_cast<std::int64_t>(size.low) && value <= static_cast<std::int64_t>(size.high);
          break;
        }
        case step_kind::read:
          if (!extra || extra_is_open) check_read(who, s, got[i], where());
          break;
      }
      require(good, where());
      if (!wrong_.empty()) return;
    }
  }

  static std::int64_t clipped(const step& s, std::uint64_t nbytes) {
    return s.begin >= nbytes ? 0 : static_cast<std::int64_t>(std::min(s.nbytes, nbytes - s.begin));
  }

  void check_read(const reader& who, const step& s, const outcome& got, const std::string& where) {
    const bool extra = who.domain == no_domain;
    if (extra && got.value == -ESTALE) return;  // it may read a version that is gone
    const auto size = models_[s.file].nbytes(who);
    const std::int64_t low = extra ? 0 : clipped(s, size.low), high = clipped(s, size.high);
    require(got.value >= low && got.value <= high, where + ", not " + std::to_string(low) + " to " + std::to_string(high));
    if (!wrong_.empty()) return;
    check_bytes(who, s.file, s.begin, std::span(got.bytes).first(static_cast<std::size_t>(got.value)), where);
  }

  void check_bytes(const reader& who, unsigned file, std::uint64_t begin, std::span<const std::byte> bytes,
                   const std::string& where) {
    const std::size_t at = models_[file].first_wrong(who, begin, bytes);
    if (at == bytes.size()) return;
    std::ostringstream text;
    const std::uint64_t x = begin + at;
    const auto& base = models_[file].base;
    text << where << ": byte " << x << " is " << static_cast<int>(bytes[at]) << "; it was "
         << (x < base.size() ? static_cast<int>(base[x]) : 0) << models_[file].history(x);
    fail(text.str());
  }

  // What is in the files after a phase.
  void check_files(unsigned p) {
    for (unsigned f = 0; f < models_.size(); ++f) {
      const std::string& name = program_.files[f].name;
      if (::access((dir_ / name).c_str(), F_OK) != 0) {
        require(!program_.files[f].exists && models_[f].changes.empty(), name + " is gone");
        continue;
      }
      const auto bytes = dir_.read(name);
      const reader host{.phase = p, .domain = no_domain, .mount = host_group, .group = host_group, .at = 0, .is_host = true};
      const auto size = models_[f].nbytes(host);
      const std::string where = "after kernels " + std::to_string(p) + " " + name;
      require(bytes.size() >= size.low && bytes.size() <= size.high, where + " has " + std::to_string(bytes.size()) +
                                                                         " bytes, not " + std::to_string(size.low) + " to " +
                                                                         std::to_string(size.high));
      check_bytes(host, f, 0, bytes, where);
    }
  }

  void check_mounts(bool all_closed) {
    for (std::size_t m = 0; m < mounts_.size(); ++m) {
      const mount_counters c = mounts_[m]->counters();
      const auto zero = [&](std::uint64_t value, const char* name) {
        require(value == 0, numbered("mount ", m) + ": " + name + " is " + std::to_string(value));
      };
      zero(c.pins, "pins");
      zero(c.pinned_frames, "pinned_frames");
      zero(c.io_timeouts, "io_timeouts");
      zero(c.unpin_errors, "unpin_errors");
      require(c.bytes_written == written_[m], "bytes_written is " + std::to_string(c.bytes_written));
      require(c.bytes_written_back <= c.bytes_written, "bytes_written_back is " + std::to_string(c.bytes_written_back));
      require(c.unwritten_pages == c.dirty_frames,
              std::to_string(c.unwritten_pages) + " unwritten pages, " + std::to_string(c.dirty_frames) + " dirty frames");
      std::uint64_t failed = 0;
      for (unsigned f = 0; f < models_.size(); ++f) failed += check_failures(static_cast<unsigned>(m), f, all_closed);
      require(c.write_errors == failed, numbered("mount ", m) + ": write_errors is " + std::to_string(c.write_errors) + ", and " +
                                            std::to_string(failed) + " writes have failed");
      if (!all_closed) continue;
      zero(c.unwritten_pages, "unwritten_pages");
      zero(mounts_[m]->open_files().size(), "open_files");
      require(c.host_opens == c.host_closes, "host_opens and host_closes differ");
    }
  }

  // What has failed is told to those of its domain, once, and by the mount's log; and nothing else is. How many writes have.
  std::uint64_t check_failures(unsigned m, unsigned f, bool all_closed) {
    const std::string where = numbered("mount ", m) + ", " + program_.files[f].name + ": ";
    std::uint64_t failed = 0;
    for (const unsigned domain : {2 * m, 2 * m + 1}) {
      const write_failures& of = failures_[{f, domain}];
      failed += of.failed;
      require(of.told <= of.failed, where + std::to_string(of.failed) + " writes have failed, " + std::to_string(of.told) +
                                        " syncs and closes have told so");
      if (all_closed) {
        require(of.last_told >= of.last_failed,
                where + "writes failed in kernels " + std::to_string(of.last_failed - 1) + ", and nobody was told then or later");
      }
    }
    const std::vector<std::string> log = mounts_[m]->log();
    const bool logged = std::any_of(log.begin(), log.end(), [&](const std::string& line) {
      return line.find("write '" + program_.files[f].name + "'") != std::string::npos;
    });
    require(logged == (failed != 0), where + (logged ? "the log tells of a write" : "the log tells of no write"));
    return failed;
  }

  void end_epoch() {
    for (unsigned f = 0; f < models_.size(); ++f) {
      file_model& model = models_[f];
      const std::string& name = program_.files[f].name;
      for (const change& c : model.changes) require(c.flushed, name + " was not closed");  // a mistake of the drawer
      if (program_.files[f].is_log) check_appends(model, name);
      exists_[f] = ::access((dir_ / name).c_str(), F_OK) == 0;
      if (exists_[f]) model.base = dir_.read(name);
      model.changes.clear();
    }
  }

  // Where an end was lost and the file opened again, records begin before it.
  void check_appends(const file_model& model, const std::string& name) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> records;
    bool lost = false;
    for (const change& c : model.changes) {
      records.emplace_back(c.begin, c.end);
      lost |= !c.lost.empty();
    }
    std::sort(records.begin(), records.end());
    std::uint64_t end = model.base.size();
    for (const auto& [begin, next] : records) {
      require(begin == end || (lost && begin < end),
              name + ": a record at " + std::to_string(begin) + " after one that ends at " + std::to_string(end));
      end = std::max(end, next);
    }
  }

  const write_program& program_;
  const temp_dir dir_{memory_directory()};
  std::vector<std::shared_ptr<faulty_store>> stores_;  // of mounts whose writes go through calls
  std::vector<std::unique_ptr<mount>> mounts_;
  std::vector<std::unique_ptr<players>> players_;
  std::vector<file_model> models_;
  std::vector<bool> exists_ = [this] {
    std::vector<bool> out;
    for (const program_file& f : program_.files) out.push_back(f.exists);
    return out;
  }();
  std::vector<std::uint64_t> written_;                                // by calls, per mount
  std::map<std::pair<unsigned, unsigned>, write_failures> failures_;  // [file, domain]
  std::map<std::array<unsigned, 3>, unsigned> domains_;
  std::map<std::pair<unsigned, unsigned>, simt::schedule_trace> traces_;
  std::string wrong_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
