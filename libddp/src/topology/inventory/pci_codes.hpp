// Numbers by which PCI functions say what they are: base classes (PCI Code and ID Assignment Specification) and
// vendors.
#pragma once

namespace ddp::topology::pci {

inline constexpr unsigned kNetwork = 0x02;
inline constexpr unsigned kDisplay = 0x03;
inline constexpr unsigned kAccelerator = 0x12;  // AMD MI300X
/// Class and subclass.
inline constexpr unsigned kVga = 0x0300;

inline constexpr unsigned kAmd = 0x1002;
inline constexpr unsigned kNvidia = 0x10de;
inline constexpr unsigned kIntel = 0x8086;

}  // namespace ddp::topology::pci
