#ifndef EPS_STORAGE_CSD_PROCESS_DEVICE_PACE_H_
#define EPS_STORAGE_CSD_PROCESS_DEVICE_PACE_H_

#include "storage/csd/device.h"
#include "storage/csd/kernel_runner.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/csd/rates/paced_link.h"

namespace eps::csd {

// The links and the updater of one device, as slow as its rates. Makes the transfer that goes with
// an operation: wait for its bytes after the operation itself, which then counts as part of it.
// Thread-safe.
class DevicePace {
 public:
  explicit DevicePace(const DeviceRates& rates) : rates_(rates) {}

  PacedTransfer HostWrite(Place to) { return Host(to, rates_.host_write); }
  PacedTransfer HostRead(Place from) { return Host(from, rates_.host_read); }
  PacedTransfer Copy(Place from) {
    const bool reads = from.where == Place::Where::kMedia;
    return PacedTransfer({{&medium_, reads ? rates_.device_read : rates_.device_write},
                          {&internal_, rates_.internal}});
  }
  PacedTransfer Update(bool decompresses) {
    return PacedTransfer({{&updater_, decompresses ? rates_.decompress_update : rates_.update}});
  }

 private:
  PacedTransfer Host(Place place, double of_medium) {
    const bool media = place.where == Place::Where::kMedia;
    return PacedTransfer({{&medium_, media ? of_medium : 0}, {&internal_, rates_.internal}});
  }

  const DeviceRates rates_;
  PacedLink medium_;
  PacedLink internal_;
  PacedLink updater_;
};

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_DEVICE_PACE_H_
