// SPDX-License-Identifier: Apache-2.0
// A second process, which makes calls of a program by the operating system alone. It is this program, started anew.
#pragma once
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "fuzz/posix.hpp"

extern char** environ;

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

inline constexpr const char* peer_variable = "GPUFS_TEST_PEER_SOCKET";

// What goes to it, with two paths and the root behind it; and what comes back.
struct peer_request {
  verb what;
  std::uint32_t nbytes_of[3];
  std::uint64_t begin, nbytes, id;
};

class peer_process {
 public:
  peer_process() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail_errno("socketpair");
    ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    socket_ = ends[0];
    set_longest(longest_);
    std::vector<std::string> variables{std::string(peer_variable) + "=" + std::to_string(ends[1])};
    for (char** e = environ; *e != nullptr; ++e) {
      if (!std::string(*e).starts_with("GTEST_")) variables.emplace_back(*e);
    }
    std::vector<char*> environment;
    for (std::string& v : variables) environment.push_back(v.data());
    environment.push_back(nullptr);
    std::string self = "/proc/self/exe", filter = "--gtest_filter=fuzz_peer.DISABLED_serves",
                also = "--gtest_also_run_disabled_tests", brief = "--gtest_brief=1";
    char* arguments[] = {self.data(), filter.data(), also.data(), brief.data(), nullptr};
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    const int error = ::posix_spawn(&child_, "/proc/self/exe", &quiet, nullptr, arguments, environment.data());
    posix_spawn_file_actions_destroy(&quiet);
    ::close(ends[1]);
    if (error != 0) throw std::runtime_error("posix_spawn gave " + std::to_string(error));
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;
  ~peer_process() {
    ::close(socket_);
    if (child_ == 0) return;
    const auto until = std::chrono::steady_clock::now() + longest_;
    while (::waitpid(child_, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) ::kill(child_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  pid_t pid() const { return child_; }
  // How long a call may take it, and its end.
  void set_longest(std::chrono::seconds longest) {
    longest_ = longest;
    const timeval most{.tv_sec = static_cast<time_t>(longest.count()), .tv_usec = 0};
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
      if (::setsockopt(socket_, SOL_SOCKET, option, &most, sizeof most) != 0) fail_errno("setsockopt");
    }
  }

  posix_result make(const std::string& root, const call& c) const {
    const std::string* texts[] = {&c.path, &c.second, &root};
    peer_request r{.what = c.what, .nbytes_of = {}, .begin = c.begin, .nbytes = c.nbytes, .id = c.id};
    std::string all;
    for (int i = 0; i < 3; ++i) {
      r.nbytes_of[i] = static_cast<std::uint32_t>(texts[i]->size());
      all += *texts[i];
    }
    posix_result got{};
    if (!pass(send_quietly, &r, sizeof r) || !pass(send_quietly, all.data(), all.size()) || !pass(::read, &got, sizeof got)) {
      throw std::runtime_error("the second process is gone, or does not answer");
    }
    return got;
  }

  // The second process's life, by the socket that it was given.
  static void serve(int socket) {
    const peer_process other(socket);
    peer_request r{};
    while (other.pass(::read, &r, sizeof r)) {
      std::string texts[3];
      for (int i = 0; i < 3; ++i) {
        texts[i].resize(r.nbytes_of[i]);
        if (!other.pass(::read, texts[i].data(), texts[i].size())) return;
      }
      const posix_result got = make_by_posix(
          texts[2], {.what = r.what, .path = texts[0], .second = texts[1], .begin = r.begin, .nbytes = r.nbytes, .id = r.id});
      if (!other.pass(send_quietly, &got, sizeof got)) return;
    }
  }

 private:
  explicit peer_process(int socket) : socket_(socket) {}  // of the second process itself

  // No SIGPIPE where nobody is there any more.
  static ssize_t send_quietly(int socket, const void* bytes, std::size_t nbytes) {
    return ::send(socket, bytes, nbytes, MSG_NOSIGNAL);
  }
  template <class Transfer, class Bytes>
  bool pass(Transfer transfer, Bytes* bytes, std::size_t nbytes) const {
    for (std::size_t done = 0; done < nbytes;) {
      const ssize_t n = transfer(
          socket_, reinterpret_cast<std::conditional_t<std::is_const_v<Bytes>, const char*, char*>>(bytes) + done, nbytes - done);
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }

  int socket_ = -1;
  pid_t child_ = 0;
  std::chrono::seconds longest_{120};
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
