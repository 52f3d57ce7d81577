#include "worker/exec/queues/device_queues.h"

#include "c10/util/Exception.h"

namespace eps {
namespace {

constexpr std::chrono::minutes kDeviceTimeout{5};

}  // namespace

void WaitFor(const DeviceEvent& event) {
  TORCH_CHECK(event.WaitUntil(std::chrono::steady_clock::now() + kDeviceTimeout),
              "the device has not done its work for ", kDeviceTimeout.count(), " minutes");
}

}  // namespace eps
