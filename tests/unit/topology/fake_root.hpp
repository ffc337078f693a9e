// A machine as a folder: /sys, /proc and /dev with files and links as the kernel lays them out.
#pragma once

#include <system_error>

namespace ddp::topology {

class FakeRoot {
 public:
  FakeRoot() {
    std::string name = testing::TempDir() + "fake_root_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder_ = std::filesystem::canonical(name);
    // for tests that become another user
    std::filesystem::permissions(folder_, std::filesystem::perms{0755});
  }
  FakeRoot& operator=(FakeRoot&&) = delete;
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path sys() const { return folder_ / "sys"; }

  /// @param file relative to the root.
  void write(const std::filesystem::path& file, const std::string& text) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream stream(folder_ / file);
    stream << text << '\n';
    if (!stream.flush()) throw std::runtime_error("cannot write " + file.string());
  }
  void folder(const std::filesystem::path& path) const { std::filesystem::create_directories(folder_ / path); }

  /// A relative link as those of the kernel. Both relative to the root.
  void link(const std::filesystem::path& from, const std::filesystem::path& to) const {
    std::filesystem::create_directories((folder_ / from).parent_path());
    std::filesystem::create_symlink(to.lexically_relative(from.parent_path()), folder_ / from);
  }

  /// A PCI function below a bridge; returns its folder. @param driver empty: none is bound.
  std::filesystem::path pci(const std::string& address, const std::string& device_class, const std::string& vendor,
                            const std::string& driver) const {
    const auto device = std::filesystem::path("sys/devices/pci0000:00/0000:00:01.0") / address;
    write(device / "class", device_class);
    write(device / "vendor", vendor);
    link("sys/bus/pci/devices/" + address, device);
    if (!driver.empty()) {
      folder("sys/bus/pci/drivers/" + driver);
      link(device / "driver", "sys/bus/pci/drivers/" + driver);
    }
    return device;
  }

  /// An interface on @p device, or without one; returns its folder. @param type ARPHRD_*
  std::filesystem::path interface(const std::string& name, int index, int type,
                                  const std::filesystem::path& device = {}) const {
    const auto place = (device.empty() ? "sys/devices/virtual" : device) / "net" / name;
    write(place / "type", std::to_string(type));
    write(place / "ifindex", std::to_string(index));
    write(place / "iflink", std::to_string(index));
    write(place / "uevent", "INTERFACE=" + name + "\nIFINDEX=" + std::to_string(index));
    if (!device.empty()) link(place / "device", device);
    link("sys/class/net/" + name, place);
    return place;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace ddp::topology
