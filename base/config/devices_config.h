#ifndef EPS_BASE_CONFIG_DEVICES_CONFIG_H_
#define EPS_BASE_CONFIG_DEVICES_CONFIG_H_

// The settings of the section storage.csd; storage_keys.h describes them.

#include <array>
#include <cstdint>
#include <string>

#include "base/job/names.h"

namespace eps {

enum class CsdDriver { kEmulated, kOpenCl };
template <>
inline constexpr std::array<const char*, 2> kNames<CsdDriver> = {"emulated", "opencl"};
enum class TransferHandler { kNaive, kHandover, kPipelined };
template <>
inline constexpr std::array<const char*, 3> kNames<TransferHandler> = {"naive", "handover",
                                                                       "pipelined"};
enum class GradientsIn { kDram, kMedia };
template <>
inline constexpr std::array<const char*, 2> kNames<GradientsIn> = {"dram", "media"};
enum class WeightsUp { kEncoded, kFp32 };
template <>
inline constexpr std::array<const char*, 2> kNames<WeightsUp> = {"encoded", "fp32"};

// The storage devices of a server.
struct DevicesConfig {
  CsdDriver driver = CsdDriver::kEmulated;
  uint32_t count = 0;                   // 0 means one on each drive, or one
  uint64_t dram = uint64_t{256} << 20;  // bytes, of each
  TransferHandler handler = TransferHandler::kPipelined;
  GradientsIn gradients = GradientsIn::kDram;
  WeightsUp weights_up = WeightsUp::kEncoded;
  int sets = 3;           // chunks that a device updates at the same time
  std::string rates;      // a description of machines, whose storage is as fast; empty for none
  double rate_scale = 1;  // divides them
  int64_t command_timeout_ms = 30'000;
};

}  // namespace eps

#endif  // EPS_BASE_CONFIG_DEVICES_CONFIG_H_
