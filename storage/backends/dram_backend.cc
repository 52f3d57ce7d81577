#include "storage/backends/dram_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace eps {

DramBackend::DramBackend(ChunkCompute compute, Executor* executor, MemoryAccount* account,
                         BackendDoneFn done)
    : compute_(std::move(compute)),
      executor_(executor),
      account_(account),
      done_(std::move(done)) {}

DramBackend::~DramBackend() {
  WaitUntilIdle();
  if (charged_bytes_ > 0) account_->Release(MemoryKind::kState, charged_bytes_);
}

absl::StatusOr<std::unique_ptr<DramBackend>> DramBackend::New(
    ChunkCompute compute, const ChunkMap& chunks, const std::vector<ChunkId>& owned,
    Executor* executor, MemoryAccount* account, BackendDoneFn done) {
  std::unique_ptr<DramBackend> backend(
      new DramBackend(std::move(compute), executor, account, std::move(done)));
  EPS_RETURN_IF_ERROR(backend->Reserve(chunks, owned));
  return backend;
}

absl::Status DramBackend::Reserve(const ChunkMap& chunks, const std::vector<ChunkId>& owned) {
  uint64_t elements = 0;
  uint64_t floats = 0;
  for (ChunkId id : owned) {
    auto slot = std::make_unique<Slot>();
    slot->chunk = &chunks.chunk(id);
    slot->offset = floats;
    slot->stride = ChunkArrays::Stride(slot->chunk->elements);
    slot->sequence = std::make_unique<Sequence>(executor_);
    elements += slot->chunk->elements;
    floats += slot->stride * compute_.arrays();
    EPS_CHECK_MSG(slots_.emplace(id.value(), std::move(slot)).second, "chunk " << id << " twice");
  }
  // Charged are the elements; the padding is less than a cache line for each array of a chunk.
  const uint64_t bytes = elements * sizeof(float) * compute_.arrays();
  const absl::Status charged = account_->TryCharge(MemoryKind::kState, bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "weights and optimizer state of ", elements, " parameters, ",
        sizeof(float) * compute_.arrays(), " bytes each, do not fit: ", charged.message(),
        "; raise servers.memory_limit or spread the job over more servers (servers.addresses)"));
  }
  charged_bytes_ = bytes;
  EPS_ASSIGN_OR_RETURN(arena_, StateArena::New(floats * sizeof(float)));
  return absl::OkStatus();
}

void DramBackend::Start(OpId op, ChunkId chunk, Work work) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  const auto it = slots_.find(chunk.value());
  if (it == slots_.end()) {
    // Not completed on the caller's stack, which may hold locks that the completion needs.
    executor_->Post([this, op, chunk] {
      Complete(op, absl::NotFoundError(absl::StrCat("chunk ", chunk.value(), " is none of the ",
                                                    slots_.size(), " chunks of this shard")));
    });
    return;
  }
  Slot* slot = it->second.get();
  slot->sequence->Post([this, op, slot, work = std::move(work)]() mutable {
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<BackendValue> outcome = work(slot);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    work = nullptr;  // the inputs are dropped, and no longer charged, when the outcome is told
    Complete(op, std::move(outcome), took.count());
  });
}

void DramBackend::Complete(OpId op, absl::StatusOr<BackendValue> outcome, double seconds) {
  if (outcome.ok()) {
    done_(BackendDone{op, absl::OkStatus(), std::move(*outcome), seconds});
  } else {
    done_(BackendDone{op, outcome.status(), BackendValue(), seconds});
  }
  Ended();
}

void DramBackend::Ended() {
  MutexLock lock(&mu_);
  if (--pending_ == 0) idle_.NotifyAll();
}

void DramBackend::WaitUntilIdle() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  MutexLock lock(&mu_);
  while (pending_ > 0) {
    const bool in_time = idle_.WaitUntil(&mu_, deadline);
    EPS_CHECK_MSG(in_time || pending_ == 0, pending_ << " operations never ended");
  }
}

void DramBackend::Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) {
  Start(op, chunk, [this, version, codec, axis](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_RETURN_IF_ERROR(ChunkCompute::CheckVersion(*slot->chunk, slot->version, version));
    return BackendValue(compute_.Read(*slot->chunk, version, *codec, axis, Arrays(*slot)));
  });
}

void DramBackend::ReadState(OpId op, ChunkId chunk, Version version) {
  Start(op, chunk, [this, version](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_RETURN_IF_ERROR(ChunkCompute::CheckVersion(*slot->chunk, slot->version, version));
    return BackendValue(compute_.ReadState(*slot->chunk, Arrays(*slot)));
  });
}

void DramBackend::WriteState(OpId op, ChunkId chunk, Version version, Bytes state) {
  Start(op, chunk,
        [this, version, state = std::move(state)](Slot* slot) -> absl::StatusOr<BackendValue> {
          EPS_RETURN_IF_ERROR(compute_.CheckState(*slot->chunk, version, state));
          compute_.WriteState(*slot->chunk, state, Arrays(*slot));
          slot->version = version;
          return BackendValue();
        });
}

void DramBackend::Initialize(OpId op, ChunkId chunk) {
  Start(op, chunk, [this](Slot* slot) -> absl::StatusOr<BackendValue> {
    compute_.Initialize(*slot->chunk, Arrays(*slot));
    slot->version = Version(0);
    return BackendValue();
  });
}

void DramBackend::Stats(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  Start(op, chunk, [this, shared = std::move(shared)](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_ASSIGN_OR_RETURN(UpdateResult result, compute_.Stats(*slot->chunk, *shared));
    return BackendValue(std::move(result));
  });
}

void DramBackend::Update(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  // Moved, so that the work holds the only reference to the contributions.
  Start(op, chunk, [this, shared = std::move(shared)](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_RETURN_IF_ERROR(ChunkCompute::CheckUpdate(*slot->chunk, slot->version, *shared));
    EPS_ASSIGN_OR_RETURN(UpdateResult result,
                         compute_.Update(*slot->chunk, *shared, Arrays(*slot)));
    slot->version = shared->to;
    return BackendValue(std::move(result));
  });
}

void DramBackend::Visit(ChunkId chunk, Visitor visit) {
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  Slot* const slot = slots_.at(chunk.value()).get();
  slot->sequence->Post([this, slot, visit = std::move(visit)] {
    visit(slot->version, Arrays(*slot));
    Ended();
  });
}

void DramBackend::Set(ChunkId chunk, Version version, const float* arrays) {
  Slot* const slot = slots_.at(chunk.value()).get();
  std::copy_n(arrays, slot->stride * compute_.arrays(), Arrays(*slot).weights);
  slot->version = version;
}

absl::StatusOr<std::unique_ptr<StateBackend>> NewDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account));
  EPS_ASSIGN_OR_RETURN(auto backend, DramBackend::New(std::move(compute), chunks, owned, executor,
                                                      account, std::move(done)));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace eps
