#ifndef EPS_WORKER_EXEC_TESTING_TEST_QUEUES_H_
#define EPS_WORKER_EXEC_TESTING_TEST_QUEUES_H_

#include <functional>

#include "worker/exec/queues/device_queues.h"

namespace eps {

// Queues of a device that a CPU stands in for. Their device memory is host memory.
class TestQueues : public DeviceQueues {
 public:
  // Enqueues `work` of `operations` in kCompute. It keeps no tensor alive: it works on pointers.
  virtual void Compute(std::function<void()> work, double operations) = 0;
};

// Decode and encode a segment by our kernels, on a simulated grid. `out` is of `type`: FP32 or
// BF16.
void DecodeOnGrid(const SegmentCode& code, const void* in, at::ScalarType type, void* out);
void EncodeOnGrid(const SegmentCode& code, const float* in, void* out);
// As DeviceQueues::Checksum.
void ChecksumOnGrid(const void* in, uint64_t bytes, void* out);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TESTING_TEST_QUEUES_H_
