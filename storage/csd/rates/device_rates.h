#ifndef EPS_STORAGE_CSD_RATES_DEVICE_RATES_H_
#define EPS_STORAGE_CSD_RATES_DEVICE_RATES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// The rates of an emulated device, in bytes per second; 0 is as fast as this machine. Plain value.
struct DeviceRates {
  // A medium does one thing at a time: it reads or writes, for the host or for its device.
  double host_read = 0;
  double host_write = 0;
  double device_read = 0;
  double device_write = 0;
  // All bytes between the device's memory and its medium or its host, both directions together.
  double internal = 0;
  // The bytes that the updater reads: state and gradient.
  double update = 0;
  // The same if it decompresses the gradient first: state and compressed gradient.
  double decompress_update = 0;
};

// The rates of the link between a host and all its devices, in bytes per second; 0 is as fast as
// this machine. Plain value.
struct HostRates {
  double up = 0;    // to the host
  double down = 0;  // to the devices
  double both = 0;  // both directions together, as software limits them
};

// One number after another, in the order of the fields, separated by commas.
std::string ToText(const DeviceRates& rates);
// InvalidArgument unless the text has as many numbers, none below 0.
absl::StatusOr<DeviceRates> ParseDeviceRates(absl::string_view text);

}  // namespace eps

#endif  // EPS_STORAGE_CSD_RATES_DEVICE_RATES_H_
