#ifndef EPS_BASE_CONFIG_DEVICE_KEYS_H_
#define EPS_BASE_CONFIG_DEVICE_KEYS_H_

// The keys of storage devices that update the state (docs/guides/near_storage.md).

#include "base/config/config.h"
#include "base/config/text_rules.h"
#include "base/job/key_rules.h"

namespace eps {

template <class V>
void DeviceKeys(V* v, DevicesConfig* d) {
  v->Key("storage.csd.devices", &d->count, AnyValue(),
         "Devices of a server with storage.kind=csd, each an emulated one in a process of its own "
         "(eps-csd) with a medium in storage.path; 0 means one in each folder of storage.drives, "
         "or one in all.");
  v->Key("storage.csd.dram", &d->dram, SizeText(),
         "Memory of each device, for chunks that it updates. As devices are emulated, it is memory "
         "of the server's machine.");
  v->Key(
      "storage.csd.handler", &d->handler, AnyValue(),
      "How a device moves chunks: each in one of storage.csd.sets sets of buffers, so that one is "
      "read while another is updated and a third is written (pipelined); as in Smart-Infinity, "
      "in one set, each of whose buffers the next chunk takes over as soon as it is free "
      "(handover); or one chunk after the other (naive).");
  v->Key(
      "storage.csd.sets", &d->sets, AnyValue(),
      "Sets of buffers of storage.csd.handler=pipelined: chunks that a device loads, updates and "
      "stores at the same time; storage.csd.dram must have room for so many of the largest.");
  v->Key("storage.csd.gradients", &d->gradients, AnyValue(),
         "Where the reduced gradients of mode sealed wait for their update: in the memory of their "
         "device (dram), or on its medium (media), as in Smart-Infinity. They also wait on the "
         "medium if storage.csd.dram has no room for all of them.");
  v->Key("storage.csd.weights_up", &d->weights_up, AnyValue(),
         "How weights leave a device: in the codec that workers fetch (encoded), or in fp32, which "
         "its server encodes, as in Smart-Infinity.");
  v->Key("storage.csd.rates", &d->rates, AnyValue(),
         "Makes emulated devices as slow as real ones: the storage of a description of machines, a "
         "file or a name as for `eps plan --hardware`. Empty: as fast as this machine.");
  v->Key("storage.csd.rate_scale", &d->rate_scale, kPositive,
         "Divides the rates of storage.csd.rates, so that a machine with slow drives can emulate "
         "fast ones in slow motion.");
  v->Key("storage.csd.command_timeout", &d->command_timeout_ms, DurationText(),
         "A device that needs longer for a command is ended, and its server with it.");
}

}  // namespace eps

#endif  // EPS_BASE_CONFIG_DEVICE_KEYS_H_
