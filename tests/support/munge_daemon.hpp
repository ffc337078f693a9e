// A munged of the test's own: its socket and key lie in a temporary folder.
#pragma once

#include "support/checkout.hpp"

namespace ddp::test {

class MungeDaemon {
 public:
  static bool installed() { return std::system("PATH=$PATH:/usr/sbin command -v munged >/dev/null") == 0; }

  /// @param key_of another whose key it shares; null: its own key
  /// @param clock by how many seconds its clock is wrong
  explicit MungeDaemon(const MungeDaemon* key_of = nullptr, int clock = 0) {
    std::string folder = (std::filesystem::temp_directory_path() / "munge.XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = folder;
    if (key_of != nullptr) {
      std::filesystem::copy_file(key_of->folder_ + "/key", folder_ + "/key");
    } else {
      run("head -c 128 /dev/urandom >key");
    }
    // The loader takes a blank in LD_PRELOAD for a border, and the checkout's path may have one.
    std::filesystem::create_symlink(built_file("lib/libshifted_clock.so"), folder_ + "/clock.so");
    run("chmod 600 key; SHIFTED_CLOCK_SECONDS=" + std::to_string(clock) +
        " LD_PRELOAD=$PWD/clock.so"
        " PATH=$PATH:/usr/sbin munged --force --socket=$PWD/socket --key-file=$PWD/key --pid-file=$PWD/pid "
        "--log-file=$PWD/log --seed-file=$PWD/seed");
    std::ifstream{folder_ + "/pid"} >> pid_;
  }
  MungeDaemon& operator=(MungeDaemon&&) = delete;
  ~MungeDaemon() {
    end();
    std::filesystem::remove_all(folder_);
  }

  std::string socket() const { return folder_ + "/socket"; }
  /// As after a crash: its socket stays.
  void end() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    pid_ = 0;
  }
  void stop() const { ::kill(pid_, SIGSTOP); }
  void go_on() const { ::kill(pid_, SIGCONT); }

 private:
  void run(const std::string& command) const {
    const int status = std::system(("cd " + folder_ + " && " + command).c_str());
    if (status != 0) throw std::runtime_error("cannot run munged: " + command);
  }

  std::string folder_;
  pid_t pid_ = 0;
};

}  // namespace ddp::test
