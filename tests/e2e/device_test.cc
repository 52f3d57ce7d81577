// A worker with a simulated device, and real servers: what travels through memory that they share
// has the bits of messages, in whatever order the device works.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/ops/from_blob.h"
#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "base/machine/shared_regions.h"
#include "base/mutex.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "tests/e2e/loopback_cluster.h"
#include "worker/client/parameter_client.h"
#include "worker/data/batch_source.h"
#include "worker/exec/testing/queued_runtime.h"
#include "worker/exec/testing/simulated_queues.h"
#include "worker/relay/relay.h"

namespace eps {
namespace {

using at::Tensor;

// A simulated device that several threads may use, and which registers shared memory.
class LockedQueues final : public TestQueues {
 public:
  explicit LockedQueues(uint32_t seed) : queues_(seed) {}

  Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) override {
    MutexLock lock(&mu_);
    return Locked(queues_.New(queue, shape, type));
  }
  void KeepFor(DeviceQueue user, const Tensor& tensor) override {
    MutexLock lock(&mu_);
    queues_.KeepFor(user, tensor);
  }
  Tensor NewPinned(uint64_t bytes) override {
    MutexLock lock(&mu_);
    return Locked(queues_.NewPinned(bytes));
  }
  bool Reaches(absl::Span<const uint8_t> memory) override {
    SharedRegions::User user;
    user.attach = [this](absl::Span<const uint8_t>, SharedRegions::Access) {
      ++attached_;
      return true;
    };
    user.detach = [](absl::Span<const uint8_t>) {};
    return SharedRegions::Get().Attached(memory, user);
  }
  void Copy(DeviceQueue queue, const Tensor& from, const Tensor& to) override {
    MutexLock lock(&mu_);
    queues_.Copy(queue, from, to);
  }
  bool has_codecs() const override { return true; }
  void Decode(DeviceQueue queue, const SegmentCode& code, const Tensor& in,
              const Tensor& out) override {
    MutexLock lock(&mu_);
    queues_.Decode(queue, code, in, out);
  }
  void Encode(DeviceQueue queue, const SegmentCode& code, const Tensor& in,
              const Tensor& out) override {
    MutexLock lock(&mu_);
    queues_.Encode(queue, code, in, out);
  }
  void Checksum(DeviceQueue queue, const Tensor& in, const Tensor& out) override {
    MutexLock lock(&mu_);
    queues_.Checksum(queue, in, out);
  }
  DeviceEventPtr Record(DeviceQueue queue) override {
    MutexLock lock(&mu_);
    return std::make_shared<Event>(&mu_, queues_.Record(queue));
  }
  DeviceEventPtr RecordTime(DeviceQueue queue) override { return Record(queue); }
  void Await(DeviceQueue queue, const DeviceEventPtr& event) override {
    MutexLock lock(&mu_);
    queues_.Await(queue, static_cast<const Event&>(*event).event);
  }
  void Compute(std::function<void()> work, double operations) override {
    MutexLock lock(&mu_);
    queues_.Compute(std::move(work), operations);
  }

  uint64_t pinned_bytes() {
    MutexLock lock(&mu_);
    return queues_.pinned_bytes();
  }
  int attached() const { return attached_; }

 private:
  // An event of the simulation; the mutex is its device's.
  struct Event final : DeviceEvent {
    Event(Mutex* m, DeviceEventPtr e) : mu(m), event(std::move(e)) {}
    bool done() const override {
      MutexLock lock(mu);
      return event->done();
    }
    bool WaitUntil(std::chrono::steady_clock::time_point deadline) const override {
      MutexLock lock(mu);
      return event->WaitUntil(deadline);
    }
    Mutex* const mu;
    const DeviceEventPtr event;
  };

  // Returns the same memory, which goes back with the lock held.
  Tensor Locked(Tensor tensor) {
    void* const data = tensor.mutable_data_ptr();
    const auto sizes = tensor.sizes().vec();
    const auto type = tensor.scalar_type();
    return at::from_blob(
        data, sizes,
        [this, owner = std::move(tensor)](void*) mutable {
          MutexLock lock(&mu_);
          owner = Tensor();
        },
        at::TensorOptions().dtype(type));
  }

  Mutex mu_;
  SimulatedQueues queues_;
  int attached_ = 0;  // regions
};

JobSpec DeviceSpec(const std::string& name) {
  JobSpec spec = TinySyntheticSpec();
  spec.name = name;
  spec.training.steps = 3;
  spec.training.micro_batches = 2;
  spec.training.parts = 2;
  spec.training.clip = Clip::kNone;
  spec.codecs.weights = "mx9";
  spec.codecs.gradients = "bf16";
  return spec;
}

// The outcome of a job, and what its device needed.
struct Trained {
  LoopbackCluster::Outcome outcome;
  uint64_t pinned_bytes = 0;
  int attached = 0;
};

Trained Train(const JobSpec& spec, uint32_t seed, uint64_t shm_bytes) {
  LoopbackCluster cluster(spec, /*servers=*/2, shm_bytes);
  std::thread initialize([&] { cluster.Initialize(); });  // the worker waits for the weights
  ClientOptions options;
  options.servers = cluster.addresses();
  options.rpc_timeout = LoopbackCluster::kTimeout;
  options.transport = shm_bytes > 0 ? Transport::kShm : Transport::kGrpc;
  auto client = ParameterClient::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  JoinOptions join;
  join.count = 1;
  join.compute_profile = "queued";
  const auto job = (*client)->Join(join);
  EXPECT_TRUE(job.ok()) << job.status();
  auto owned = std::make_unique<LockedQueues>(seed);
  LockedQueues* const queues = owned.get();
  QueuedRuntime runtime(job->spec, std::move(owned), QueuedOptions());
  const auto batches = NewEmptyBatchSource(job->spec);
  {
    Relay relay(*job, client->get(), &runtime, batches.get(), RelayOptions{});
    const absl::Status status = relay.Run(nullptr, nullptr);
    EXPECT_TRUE(status.ok()) << status;
  }
  initialize.join();
  Trained trained;
  trained.outcome = cluster.Result();
  trained.pinned_bytes = queues->pinned_bytes();
  trained.attached = queues->attached();
  client->reset();
  return trained;
}

TEST(E2eDeviceTest, SharedMemoryHasTheBitsOfMessages) {
  constexpr uint64_t kEnough = 8 << 20;
  const Trained messages = Train(DeviceSpec("messages"), /*seed=*/1, /*shm_bytes=*/0);
  ASSERT_TRUE(messages.outcome.failure.ok()) << messages.outcome.failure;
  ASSERT_EQ(messages.outcome.losses.size(), 3u);
  EXPECT_EQ(messages.attached, 0);
  for (const uint32_t seed : {2u, 3u, 4u}) {
    const Trained shared = Train(DeviceSpec("shared"), seed, kEnough);
    ASSERT_TRUE(shared.outcome.failure.ok()) << shared.outcome.failure;
    EXPECT_EQ(shared.outcome.losses, messages.outcome.losses) << "seed " << seed;
    EXPECT_EQ(shared.outcome.weights, messages.outcome.weights) << "seed " << seed;
    EXPECT_EQ(shared.attached, 4) << "weights and gradients of two servers";
    EXPECT_LT(shared.pinned_bytes, messages.pinned_bytes) << "something went through a buffer";
  }
}

}  // namespace
}  // namespace eps
