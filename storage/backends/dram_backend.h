#ifndef EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_
#define EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "optimizer/chunk_compute.h"
#include "storage/disk/state_arena.h"
#include "storage/state_backend.h"

namespace eps {

// What NewDramBackend makes, for the backend that copies its chunks to a disk meanwhile.
class DramBackend final : public StateBackend {
 public:
  // As NewDramBackend.
  static absl::StatusOr<std::unique_ptr<DramBackend>> New(
      ChunkCompute compute, const ChunkMap& chunks, const std::vector<ChunkId>& owned,
      Executor* executor, MemoryAccount* account, BackendDoneFn done);
  ~DramBackend() override;

  Caps caps() const override { return Caps(); }
  void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) override;
  void ReadState(OpId op, ChunkId chunk, Version version) override;
  void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) override;
  void Initialize(OpId op, ChunkId chunk) override;
  void Stats(OpId op, UpdateRequest request) override;
  void Update(OpId op, UpdateRequest request) override;

  // nullopt until the first WriteState, Initialize or Set.
  using Visitor = std::function<void(std::optional<Version>, const ChunkArrays&)>;
  // Shows an owned chunk as the calls before this one leave it; those after it wait until `visit`
  // has returned. Runs on the executor.
  void Visit(ChunkId chunk, Visitor visit);
  // Sets an owned chunk: all arrays, ChunkArrays::Stride apart. REQUIRES that no operation of the
  // chunk is under way.
  void Set(ChunkId chunk, Version version, const float* arrays);

 private:
  // A chunk's place in the arena. What follows `sequence` is touched by tasks of that sequence
  // only.
  struct Slot {
    const Chunk* chunk = nullptr;
    uint64_t offset = 0;  // in floats, from the start of the arena
    uint64_t stride = 0;
    std::unique_ptr<Sequence> sequence;
    std::optional<Version> version;
  };
  using Work = std::function<absl::StatusOr<BackendValue>(Slot*)>;

  DramBackend(ChunkCompute compute, Executor* executor, MemoryAccount* account, BackendDoneFn done);
  // Reserves the memory of all chunks.
  absl::Status Reserve(const ChunkMap& chunks, const std::vector<ChunkId>& owned);
  // Runs `work` in the chunk's sequence and hands its outcome to done_.
  void Start(OpId op, ChunkId chunk, Work work);
  void Complete(OpId op, absl::StatusOr<BackendValue> outcome, double seconds = 0);
  void Ended() EPS_EXCLUDES(mu_);
  void WaitUntilIdle() EPS_EXCLUDES(mu_);

  ChunkArrays Arrays(const Slot& slot) const {
    return ChunkArrays{arena_->floats() + slot.offset, slot.stride};
  }

  const ChunkCompute compute_;
  Executor* const executor_;
  MemoryAccount* const account_;
  const BackendDoneFn done_;

  uint64_t charged_bytes_ = 0;
  std::unique_ptr<StateArena> arena_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Slot>> slots_;  // by chunk id; fixed after Reserve

  Mutex mu_;
  CondVar idle_;
  uint64_t pending_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_
