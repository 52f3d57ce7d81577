#ifndef EPS_WORKER_EXEC_QUEUES_DEVICE_DEPARTURES_H_
#define EPS_WORKER_EXEC_QUEUES_DEVICE_DEPARTURES_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/ids.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Encodes gradients on a device and copies them to pinned memory. Use Start from one thread; throws
// what LibTorch throws. Must outlive what it returns.
class DeviceDepartures {
 public:
  // Borrows its arguments; `account` may be null.
  DeviceDepartures(const JobChunks* chunks, DeviceCopies* copies, MemoryAccount* account);

  // Returns whether the device encodes all gradients of a stage in a step: the servers get what the
  // device finished, so there is no error feedback, and nobody looks for values that are not
  // finite.
  bool Encodes(StageId stage, Step step) const;
  // Enqueues the encoding and the copy of a stage's gradient, by use. The tensors may be destroyed
  // at once; frozen ones may be undefined. At most two results may exist, or gradients that came
  // from them. REQUIRES Encodes(stage, step).
  std::unique_ptr<LeavingGradient> Start(StageId stage, Step step,
                                         const std::vector<at::Tensor>& gradient);

 private:
  // The memory of one gradient.
  struct Room {
    at::Tensor on_device;
    at::Tensor pinned;
    std::unique_ptr<Charge> charge;
    DeviceEventPtr copied;
    std::map<ChunkId, Bytes> place;  // of each chunk, within `pinned`; not owned
    bool in_use = false;
  };
  class Leaving;
  class Source;

  Room* TakeRoom() EPS_EXCLUDES(mu_);
  void Release(Room* room) EPS_EXCLUDES(mu_);

  const JobChunks& chunks_;
  DeviceCopies& copies_;
  MemoryAccount* const account_;
  const uint64_t room_bytes_;  // of the largest gradient
  Mutex mu_;
  std::list<Room> rooms_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_DEPARTURES_H_
