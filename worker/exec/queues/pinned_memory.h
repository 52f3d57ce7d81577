#ifndef EPS_WORKER_EXEC_QUEUES_PINNED_MEMORY_H_
#define EPS_WORKER_EXEC_QUEUES_PINNED_MEMORY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/types/optional.h"
#include "base/machine/range_map.h"
#include "worker/exec/queues/device_queues.h"

namespace eps {

// The host memory of a stash from and to which a device copies: a few blocks, each of which the
// device knows from its start to its end, given out in parts. Use it from one thread; throws what
// LibTorch throws. Must outlive what it returns.
class PinnedMemory {
 public:
  explicit PinnedMemory(DeviceQueues* queues) : queues_(queues) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Makes the blocks large enough for `count` tensors of `bytes` at a time.
  void Reserve(uint64_t count, uint64_t bytes);
  // Returns memory with arbitrary content for copies in the queues kStashOut and kStashIn. After
  // the tensor is destroyed, its memory serves another one as soon as the copies are done that were
  // enqueued by then. Waits for such copies if there is no room, and adds a block if there are
  // none.
  at::Tensor New(at::IntArrayRef shape, at::ScalarType type);

 private:
  // Memory of the device's queues, and its parts.
  struct Block {
    explicit Block(at::Tensor m) : memory(std::move(m)), parts(memory.nbytes()) {}
    const at::Tensor memory;
    RangeMap parts;
  };
  // A place in a block.
  struct Part {
    Block* block = nullptr;
    uint64_t begin = 0;
  };
  // A part that nobody uses any more but perhaps the device.
  struct Leaving {
    Part part;
    std::array<DeviceEventPtr, 2> copied;
  };

  void AddBlock(uint64_t bytes);
  absl::optional<Part> Find(uint64_t bytes);
  void Leave(const Part& part);
  // Takes back what the device no longer uses.
  void Collect();

  DeviceQueues* const queues_;
  std::list<Block> blocks_;
  std::deque<Leaving> leaving_;  // oldest first
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_PINNED_MEMORY_H_
