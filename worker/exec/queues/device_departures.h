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
#include "base/trace/trace_log.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Encodes gradients on a device and copies them to host memory: to that from which the client
// sends, if there is room for a whole stage and the device reaches it, or else to pinned memory.
// Use Start from one thread; throws what LibTorch throws. Must outlive what it returns.
class DeviceDepartures {
 public:
  // Borrows its arguments; `account` may be null.
  DeviceDepartures(const JobChunks* chunks, DeviceCopies* copies, MemoryAccount* account);
  // Waits for the copies.
  ~DeviceDepartures();
  DeviceDepartures(const DeviceDepartures&) = delete;
  DeviceDepartures& operator=(const DeviceDepartures&) = delete;

  // Returns whether the device encodes all gradients of a stage in a step: the servers get what the
  // device finished, so there is no error feedback, and nobody looks for values that are not
  // finite.
  bool Encodes(StageId stage, Step step) const;
  // Enqueues the encoding and the copy of a stage's gradient, by use. The tensors may be destroyed
  // at once; frozen ones may be undefined. At most two results may exist, or gradients that came
  // from them. REQUIRES Encodes(stage, step).
  std::unique_ptr<LeavingGradient> Start(StageId stage, Step step,
                                         const std::vector<at::Tensor>& gradient,
                                         GradientRooms* rooms);

 private:
  // Where a chunk's bytes lie.
  struct Place {
    int64_t on_device = 0;  // first byte
    int64_t bytes = 0;
    int64_t first_crc = 0;  // of its pieces
    uint8_t* host = nullptr;
    std::shared_ptr<uint8_t> room;  // of the client; null if the host memory is pinned
  };
  using Places = std::map<ChunkId, Place>;
  // The memory of one gradient.
  struct Room {
    at::Tensor on_device;
    at::Tensor pinned;             // undefined until a gradient needs it
    at::Tensor crcs, pinned_crcs;  // on the device, and pinned: of the pieces of all chunks
    std::unique_ptr<Charge> charge;
    Places places;
    DeviceEventPtr copied;  // null before the first copy
    bool has_left = false;  // `copied` was waited for
    bool in_use = false;
  };
  class Leaving;
  class Source;

  Room* TakeRoom() EPS_EXCLUDES(mu_);
  // Waits until the device no longer writes to the host memory of a room.
  static void WaitForCopy(const Room& room);
  // Returns where the chunks of a stage lie on the device.
  Places PlacesOnDevice(StageId stage, Step step) const;
  // Adds their host memory. Returns false, with a part of it, unless `rooms` have all of it.
  bool FindRooms(GradientRooms* rooms, Places* places) const;
  // Lets the chunks lie in pinned memory.
  void UsePinned(Room* room);
  // Enqueues the encoding of a stage's gradient to `room`, and returns its end.
  DeviceEventPtr Encode(StageId stage, Step step, const std::vector<at::Tensor>& gradient,
                        const Room& room, const SpanPlace& place);
  void Release(Room* room) EPS_EXCLUDES(mu_);

  const JobChunks& chunks_;
  DeviceCopies& copies_;
  MemoryAccount* const account_;
  const uint64_t room_bytes_;  // of the largest gradient
  const int64_t room_crcs_;    // of its pieces
  Mutex mu_;
  std::list<Room> rooms_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_DEPARTURES_H_
