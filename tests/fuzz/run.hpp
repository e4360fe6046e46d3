// SPDX-License-Identifier: Apache-2.0
// Runs a program: its kernels, this process beside them, and what is left at the end.
#pragma once
#include <fstream>
#include <thread>

#include "file/faulty_store.hpp"
#include "fuzz/checks.hpp"
#include "fuzz/nvme_files.hpp"
#include "fuzz/peer.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

class program_run {
 public:
  program_run(const program& p, const peer_process& peer)
      : program_(p), peer_(peer), dir_(p.root == root_kind::memory ? memory_directory() : "/var/tmp") {}

  // Runs it once: what went wrong first, or nothing.
  std::string operator()() {
    const std::size_t descriptors = open_descriptors();
    std::string wrong;
    try {
      start();
      for (unsigned r = 0; r < program_.rounds.size() && wrong.empty(); ++r) wrong = run_round(r, program_.rounds[r]);
      if (wrong.empty()) wrong = run_round(static_cast<unsigned>(program_.rounds.size()), all_close());
      if (wrong.empty()) wrong = left_in_mounts();
      if (!wrong.empty()) expect_leftovers("the program failed, and was left there");
      mounts_.clear();
      if (nvme_ && wrong.empty()) wrong = nvme_->wrong();
      nvme_.reset();
      if (wrong.empty()) wrong = left_in_process(descriptors);
    } catch (const std::exception& e) {
      expect_leftovers("as above");
      wrong = e.what();
    }
    return wrong;
  }
  const std::map<unsigned, simt::schedule_trace>& traces() const { return traces_; }
  // How often each verb came out how: by whether it went well.
  void add_to(std::map<verb, std::map<std::int64_t, std::uint64_t>>& tally) const {
    for (const event& e : checks_->events()) ++tally[e.made.what][std::min<std::int64_t>(e.got.value, 0)];
  }
  std::uint64_t reads_past_cache() const { return past_cache_; }
  std::uint64_t searches_given_up() const { return checks_ ? checks_->searches_given_up() : 0; }

 private:
  void start() {
    checks_ = std::make_unique<checks>(program_, dir_.path());
    for (const std::string& d : program_.directories) std::filesystem::create_directory(dir_ / d);
    for (const first_file& f : program_.files) dir_.add(f.path, f.nbytes, f.id);
    for (const first_link& l : program_.links) {
      if (l.hard) {
        std::filesystem::create_hard_link(dir_ / l.target, dir_ / l.path);
      } else {
        std::filesystem::create_symlink(l.target, dir_ / l.path);
      }
    }
    std::ofstream(dir_ / counters_name) << std::string(counters_nbytes, '\0');
    checks_->begin();
    if (program_.is_over_nvme()) {
      nvme_ = std::make_unique<nvme_run>(dir_ / namespace_name, program_.shape, program_.mounts[0].store == store_choice::qemu,
                                         program_.how.schedule.seed);
    }
    std::vector<mount_ref> refs;
    for (const fuzz_mount& m : program_.mounts) {
      mounts_.push_back(std::make_unique<mount>(dir_.path(), options_of(m)));
      refs.push_back(mounts_.back()->ref());
    }
    refs_ = std::make_unique<device_bytes<mount_ref>>(refs);
    group_handles closed{};
    for (std::int32_t& n : closed.numbers) n = -EBADF;
    handles_ = std::make_unique<device_buffer<group_handles>>(std::vector<group_handles>(program_.how.ngroups(), closed));
  }

  mount_options options_of(const fuzz_mount& m) const {
    mount_options o = m.options;
    switch (m.store) {
      case store_choice::automatic:
        o.store = store_kind::automatic;
        break;
      case store_choice::posix:
        o.store = store_kind::posix;
        break;
      case store_choice::direct:
        o.custom_store = std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true, .direct = true});
        break;
      case store_choice::mapped_all:
        o.custom_store = mapping_store(dir_.path());
        break;
      case store_choice::failing: {
        auto failing = std::make_shared<faulty_store>(
            std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
        failing->wrong().fail_every = 4;
        o.custom_store = failing;
        break;
      }
      case store_choice::slow: {
        auto slow = std::make_shared<faulty_store>(
            std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
        slow->wrong().write_delay_ns = 50'000;
        slow->wrong().open_delay_ns = 20'000;
        slow->wrong().short_every = 3;
        o.custom_store = slow;
        break;
      }
      case store_choice::nvme:
      case store_choice::qemu:
        o.custom_store = nvme_->files();
    }
    return o;
  }

  // Memory of the device with objects that have no default constructor.
  template <class T>
  class device_bytes {
   public:
    explicit device_bytes(const std::vector<T>& of) : bytes_(of.size() * sizeof(T)) {
      simt::this_platform().copy_to_device(bytes_.get(), of.data(), of.size() * sizeof(T));
    }
    const T* get() const { return reinterpret_cast<const T*>(bytes_.get()); }

   private:
    device_buffer<std::byte> bytes_;
  };

  round all_close() const {
    round r;
    for (std::size_t g = 0; g < program_.active.size(); ++g) {
      calls& mine = r.groups.emplace_back();
      for (unsigned h = 0; h < handles_per_group; ++h) mine.push_back({.what = verb::close, .handle = h});
    }
    return r;
  }

  struct packed {
    std::vector<device_call> calls;
    std::vector<std::uint32_t> first;
    std::string texts = std::string(1, '\0');
    std::vector<std::byte> in;
    std::uint64_t out_nbytes = 0;
    std::vector<event> events;  // as many as calls
    std::vector<std::uint64_t> rooms;

    std::uint64_t text(const std::string& s) {
      const std::uint64_t at = texts.size();
      texts.append(s).push_back('\0');
      return at;
    }
  };

  packed pack(unsigned r, const round& what) const {
    packed p;
    const std::uint32_t ngroups = program_.how.ngroups();
    for (std::uint32_t g = 0; g < ngroups; ++g) {
      p.first.push_back(static_cast<std::uint32_t>(p.calls.size()));
      const auto at = std::find(program_.active.begin(), program_.active.end(), g);
      if (at == program_.active.end()) continue;
      const auto actor = static_cast<unsigned>(at - program_.active.begin());
      for (const call& c : what.groups[actor]) add(p, c, r, actor);
    }
    p.first.push_back(static_cast<std::uint32_t>(p.calls.size()));
    return p;
  }

  void add(packed& p, const call& c, unsigned r, unsigned actor) const {
    device_call d{};
    d.what = c.what;
    d.mount = c.mount;
    d.handle = c.handle;
    d.count = c.count;
    d.flags = c.flags;
    d.begin = c.begin;
    d.nbytes = c.nbytes;
    d.id = c.id;
    const std::uint64_t given = is_batch(c.what) ? batch_of(c).nbytes() : c.nbytes;
    if (is_batch(c.what)) {
      add_batch(p, c, d);
    } else if (takes_bytes(c.what)) {
      d.in = p.in.size();
      const auto bytes = content(c.id, 0, c.nbytes);
      p.in.insert(p.in.end(), bytes.begin(), bytes.end());
    }
    const std::uint64_t room = gives_bytes(c.what) ? (given + 7) / 8 * 8 : 0;
    d.out = p.out_nbytes;
    p.out_nbytes += room;
    const bool many = c.what == verb::open_all || c.what == verb::close_all;
    std::istringstream names(c.second);
    for (unsigned k = 0; k < (many ? c.count : 1); ++k) {
      event e{.made = c, .round = r, .actor = actor};
      e.made.handle = c.handle + k;
      e.made.count = 1;
      if (c.what == verb::open_all) {  // the directory, and names with a blank between them
        std::string name;
        names >> name;
        d.path = p.text(c.path);
        d.second = p.text(name);
        e.made.path = c.path.empty() ? name : c.path + "/" + name;
        e.made.second.clear();
      } else {
        d.path = p.text((c.spelled ? "./" : "") + c.path);
        d.second = p.text(c.second);
      }
      p.calls.push_back(d);
      p.events.push_back(std::move(e));
      p.rooms.push_back(room);
    }
  }

  static void add_batch(packed& p, const call& c, device_call& d) {
    const batch_of rows(c);
    p.in.resize((p.in.size() + 7) / 8 * 8);
    d.in = p.in.size();
    d.rows = {.row_nbytes = rows.row_nbytes, .nrows = rows.nrows, .begin = c.begin};
    d.nplaces = rows.nplaces();
    for (std::uint64_t place = 0; place < d.nplaces; ++place) {
      const auto number = static_cast<std::uint32_t>(rows.row(place));
      const auto* bytes = reinterpret_cast<const std::byte*>(&number);
      p.in.insert(p.in.end(), bytes, bytes + sizeof number);
    }
    for (std::uint64_t place = 0; place < d.nplaces && takes_bytes(c.what); ++place) {
      const auto bytes = content(c.id, rows.row(place) * rows.row_nbytes, rows.row_nbytes);
      p.in.insert(p.in.end(), bytes.begin(), bytes.end());
    }
  }

  // The calls of the groups, and of the processes beside them.
  std::string run_round(unsigned r, const round& what) {
    packed p = pack(r, what);
    const device_buffer<device_call> all(p.calls);
    const device_buffer<std::uint32_t> first(p.first);
    const device_buffer<char> texts(std::vector<char>(p.texts.begin(), p.texts.end()));
    const device_buffer<std::byte> in(p.in), out(std::vector<std::byte>(p.out_nbytes, untouched));
    const device_buffer<device_result> results(p.calls.size());
    const device_buffer<const char*> names(p.calls.size());
    const device_buffer<file_number> numbers(p.calls.size());
    clock_.write_one(now_);

    std::vector<event> by_processes[2];
    std::string wrong_there[2];
    const auto make_all = [&](const calls& list, unsigned actor, auto make) {
      const unsigned which = actor - host_actor;
      return std::thread([&list, actor, &made = by_processes[which], &wrong = wrong_there[which], make, r] {
        try {
          for (const call& c : list) {
            const posix_result got = make(c);
            event& e = made.emplace_back(event{.made = c, .round = r, .actor = actor});
            e.got.value = got.value;
            e.got.inode = got.inode;
          }
        } catch (const std::exception& e) {
          wrong = e.what();
        }
      });
    };
    std::thread host = make_all(what.host, host_actor, [this](const call& c) { return make_by_posix(dir_.path(), c); });
    std::thread peer = make_all(what.peer, peer_actor, [this](const call& c) { return peer_.make(dir_.path(), c); });
    std::thread trouble([this] {
      if (nvme_) nvme_->trouble();
    });
    simt::cpu_schedule schedule = program_.how.schedule;
    set_schedule(r, schedule);
    std::string wrong;
    try {
      simt::launch({.grid = program_.how.grid, .block = program_.how.block, .schedule = schedule},
                   interpreter{refs_->get(), members_.get(), first.get(), all.get(), texts.get(), in.get(), out.get(),
                               results.get(), handles_->get(), names.get(), numbers.get(), clock_.get()});
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    host.join();
    peer.join();
    trouble.join();
    for (const std::string& there : wrong_there) {
      if (wrong.empty()) wrong = there;
    }
    if (!wrong.empty()) return wrong;

    const auto got = results.read();
    const auto bytes = out.read();
    const std::uint64_t before = now_;
    now_ = clock_.read_one() + 10;
    for (std::vector<event>& list : by_processes) {
      for (event& e : list) {
        e.got.begin = before;
        e.got.end = now_ - 5;
      }
    }
    for (std::size_t i = 0; i < p.events.size(); ++i) {
      event& e = p.events[i];
      e.got = got[i];
      if (p.rooms[i] == 0) continue;
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(p.calls[i].out);
      const std::uint64_t nbytes = is_batch(e.made.what) ? batch_of(e.made).nbytes() : e.made.nbytes;
      e.bytes.assign(from, from + static_cast<std::ptrdiff_t>(nbytes));
    }
    for (const std::vector<event>& list : by_processes) p.events.insert(p.events.end(), list.begin(), list.end());
    if (nvme_) nvme_->bring_back();
    return checks_->after_round(std::move(p.events), now_ - 2, r == program_.rounds.size());
  }

  void set_schedule(unsigned r, simt::cpu_schedule& s) {
    const auto given = program_.schedules.find(r);
    s.seed += r;
    if (on_cuda || (s.policy != simt::schedule_policy::priorities && given == program_.schedules.end())) return;
    simt::schedule_trace& trace = traces_[r];
    if (given != program_.schedules.end()) use(given->second, s, trace);
    s.trace = &trace;
  }

  // Nothing is open or held, and no error was met of which nobody was told.
  std::string left_in_mounts() {
    for (std::size_t m = 0; m < mounts_.size(); ++m) {
      const mount_counters c = mounts_[m]->counters();
      past_cache_ += c.past_cache;
      const std::pair<std::uint64_t, const char*> zero[] = {
          {c.pins, "pins"},
          {c.pinned_frames, "pinned_frames"},
          {c.io_timeouts, "io_timeouts"},
          {c.unpin_errors, "unpin_errors"},
          {c.unwritten_pages, "unwritten_pages"},
          {c.dirty_frames, "dirty_frames"},
          {c.write_errors, "write_errors"},
          {c.host_opens - c.host_closes, "host_opens - host_closes"},
          {mounts_[m]->open_files().size(), "open files"},
          {checks_->accesses_failed() ? 0 : c.fault_errors, "fault_errors"},
          {program_.may_starve || program_.advises_noreuse() ? 0 : c.past_cache, "past_cache"},
      };
      for (const auto& [value, name] : zero) {
        if (value != 0) return numbered("at the end mount ", m) + " has " + name + " " + std::to_string(value);
      }
    }
    return "";
  }

  std::string left_in_process(std::size_t descriptors) const {
    if (const std::size_t now = open_descriptors(); now > descriptors) {
      return std::to_string(now - descriptors) + " descriptors are left open";
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(dir_.path()) != std::string::npos) return "a mapping is left: " + line;
    }
    return "";
  }

  const program& program_;
  const peer_process& peer_;
  const temp_dir dir_;
  std::unique_ptr<nvme_run> nvme_;  // where the program is over one
  std::vector<std::unique_ptr<mount>> mounts_;
  std::unique_ptr<device_bytes<mount_ref>> refs_;
  device_buffer<membership> members_{program_.how.members()};
  std::unique_ptr<device_buffer<group_handles>> handles_;
  device_buffer<std::uint64_t> clock_{1};
  std::uint64_t now_ = 1, past_cache_ = 0;
  std::unique_ptr<checks> checks_;
  std::map<unsigned, simt::schedule_trace> traces_;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
