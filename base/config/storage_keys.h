#ifndef EPS_BASE_CONFIG_STORAGE_KEYS_H_
#define EPS_BASE_CONFIG_STORAGE_KEYS_H_

// The keys of the section storage: where servers keep the state, and how they make it durable.

#include "base/config/config.h"
#include "base/config/text_rules.h"
#include "base/job/key_rules.h"

namespace eps {

// Storage devices that update the state (docs/guides/near_storage.md).
template <class V>
void DeviceKeys(V* v, DevicesConfig* d) {
  v->Key("storage.csd.driver", &d->driver, AnyValue(),
         "Updates in the devices of storage.kind=csd: by emulated devices, each in a process of "
         "its own (eps-csd), or by the OpenCL devices of this machine, of which device i takes "
         "number i modulo their number. Those have no codecs: gradients and weights cross their "
         "links in FP32.");
  v->Key("storage.csd.devices", &d->count, AnyValue(),
         "Devices of a server with storage.kind=csd, each with a medium in storage.path, or in the "
         "first so many folders of storage.drives, whose other folders are drives that the server "
         "updates itself; 0 means one in each folder of storage.drives, or one in all.");
  v->Key("storage.csd.dram", &d->dram, SizeText(),
         "Memory of each device, for chunks that it updates. That of emulated devices is memory of "
         "the server's machine, and so is that of a CPU with storage.csd.driver=opencl.");
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
         "its server encodes, as in Smart-Infinity. Devices of storage.csd.driver=opencl send fp32 "
         "in any case.");
  v->Key("storage.csd.rates", &d->rates, AnyValue(),
         "Makes emulated devices as slow as real ones: the storage of a description of machines, a "
         "file or a name as for `eps plan --hardware`. Empty: as fast as this machine.");
  v->Key("storage.csd.rate_scale", &d->rate_scale, kPositive,
         "Divides the rates of storage.csd.rates, so that a machine with slow drives can emulate "
         "fast ones in slow motion.");
  v->Key("storage.csd.command_timeout", &d->command_timeout_ms, DurationText(),
         "A device that needs longer for a command is ended, and its server with it.");
}

template <class V>
void StorageKeys(V* v, StorageConfig* s) {
  v->Key(
      "storage.kind", &s->kind, AnyValue(),
      "Where a server keeps weights and optimizer state: dram; nvme; or csd, storage devices that "
      "update them. They survive its process on nvme and csd, and in dram if storage.path is set. "
      "With auto and no storage.path, eps train keeps them in memory with cuts in "
      "checkpoint.dir/state if that disk has room, and removes the cuts after the last "
      "checkpoint; dram writes no cuts.");
  v->Key("storage.path", &s->path, AnyValue(),
         "Data folder of one server; eps train creates one folder per server in it. If it is "
         "empty, nvme and csd keep the state in checkpoint.dir/state, and dram writes nothing.");
  v->Key("storage.drives", &s->drives, AnyValue(),
         "Folders, one on each drive, over which a server spreads its tensors; the catalogue and "
         "the log stay in storage.path, which has to be set. eps train creates one folder per "
         "server in each. Keep their order: a server refuses drives that were exchanged.");
  v->Key("storage.dram", &s->dram, SizeText(),
         "How much of the state of a server with storage.kind=nvme or csd is in memory, with the "
         "reduced gradients of mode sealed: of each stage the same share. The rest is on its "
         "drives, and so are the cuts of all. 0 keeps none in memory.");
  v->Key("storage.staging", &s->staging, SizeText(),
         "Memory of a server for chunks in transfer from or to its disk.");
  DeviceKeys(v, &s->csd);
  v->Key("storage.cut_steps", &s->cut_steps, AnyValue(),
         "Steps between cuts, from which a job resumes after a crash; auto keeps their cost below "
         "1 % of the time; 0 sets no such interval. The last step ends with a cut, too.");
  v->Key("storage.cut_seconds", &s->cut_seconds, AnyValue(),
         "Most seconds between cuts, besides storage.cut_steps, which bounds the work that a crash "
         "loses: a step that is decided later ends with a cut. A cut that takes longer than a "
         "tenth of this extends it to ten times its duration. 0 disables this.");
  v->Key("storage.log", &s->log, AnyValue(),
         "contributions logs each contribution before it is acknowledged, so that a crashed server "
         "recovers its latest state and the job does not return to a cut; none disables the log.");
  v->Key("storage.reopen", &s->reopen, AnyValue(),
         "Whether a restarted server reopens the job that it last served; servers.addresses must "
         "be unchanged.");
  v->Key("storage.max_restarts", &s->max_restarts, AnyValue(),
         "How often, in total, eps train restarts killed servers and workers if the job can resume "
         "from a cut, and killed workers in mode sealed; 0 ends the run instead. A worker that was "
         "stopped is replaced without counting.");
  v->Key("storage.keep", &s->keep, AnyValue(),
         "Keeps the cuts that storage.kind=auto wrote after the last checkpoint.");
  v->Key("storage.scrub", &s->scrub, SizeText(),
         "Bytes per second that a server rereads from its cuts and checks; 0 disables scrubbing.");
}

}  // namespace eps

#endif  // EPS_BASE_CONFIG_STORAGE_KEYS_H_
