#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/flush_denormals.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "spec/rng.h"
#include "storage/panel.h"
#include "storage/reduction_plan.h"
#include "storage/state_arena.h"
#include "storage/state_backend.h"

namespace eps {
namespace {

// Arrays begin at cache lines, so that a vector never straddles two chunks.
constexpr uint64_t kArrayAlignment = 16;  // in floats

uint64_t Padded(uint64_t elements) {
  return (elements + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

// Adds a panel of the gradient tile by tile, which is the order that the sum is defined in.
void AddSquares(const Panel& panel, const float* gradient, float scale, SquareSum* squares) {
  ForEachTileOf(panel, [&](const Tile& tile) {
    squares->Add(gradient + tile.col, tile.rows, tile.cols, panel.cols, scale);
  });
}

// A chunk's place in the arena. Weights come first, then the state fields, `stride` floats apart.
// Everything after `sequence` is touched by tasks of that sequence only.
struct Slot {
  const Chunk* chunk = nullptr;
  uint64_t offset = 0;  // in floats, from the start of the arena
  uint64_t stride = 0;
  std::unique_ptr<Sequence> sequence;
  std::optional<Version> version;  // nullopt until the first WriteState or Initialize
};

class DramBackend final : public StateBackend {
 public:
  DramBackend(const JobSpec& spec, std::unique_ptr<UpdateRule> rule, Executor* executor,
              MemoryAccount* account, BackendDoneFn done)
      : spec_(spec),
        rule_(std::move(rule)),
        arrays_(1 + rule_->fields().size()),
        executor_(executor),
        account_(account),
        done_(std::move(done)) {}

  ~DramBackend() override {
    WaitUntilIdle();
    if (charged_bytes_ > 0) account_->Release(MemoryKind::kState, charged_bytes_);
  }

  // Reserves the memory of all chunks. To be called once, before any operation.
  absl::Status Reserve(const ChunkMap& chunks, const std::vector<ChunkId>& owned);

  Caps caps() const override { return Caps(); }
  void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) override;
  void ReadState(OpId op, ChunkId chunk, Version version) override;
  void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) override;
  void Initialize(OpId op, ChunkId chunk) override;
  void Stats(OpId op, UpdateRequest request) override;
  void Update(OpId op, UpdateRequest request) override;

 private:
  using Work = std::function<absl::StatusOr<BackendValue>(Slot*)>;

  // Runs `work` in the chunk's sequence and hands its outcome to done_.
  void Start(OpId op, ChunkId chunk, Work work);
  void Complete(OpId op, absl::StatusOr<BackendValue> outcome, double seconds = 0);
  void WaitUntilIdle();

  float* Array(const Slot& slot, size_t index) const {
    return arena_->floats() + slot.offset + index * slot.stride;
  }
  absl::Status CheckVersion(const Slot& slot, Version wanted) const;
  absl::Status CheckEncode(const UpdateRequest& request) const;
  // How the weights of `version` are encoded, whoever asks: a function of (spec, version, chunk).
  EncodeOptions OptionsOfWeights(const Chunk& chunk, Version version, Axis axis) const;
  absl::StatusOr<BackendValue> DoStats(const UpdateRequest& request, const Slot& slot) const;
  absl::StatusOr<BackendValue> DoUpdate(const UpdateRequest& request, Slot* slot) const;
  // Reduces a panel to `gradient` and updates it; `tiles` are the plan's buffers.
  void UpdatePanel(const ReductionPlan& plan, const Panel& panel, const StepScalars& step,
                   const Slot& slot, float* tiles, float* gradient) const;

  const JobSpec& spec_;
  const std::unique_ptr<UpdateRule> rule_;
  const size_t arrays_;  // weights and state fields
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

absl::Status DramBackend::Reserve(const ChunkMap& chunks, const std::vector<ChunkId>& owned) {
  uint64_t elements = 0;
  uint64_t floats = 0;
  for (ChunkId id : owned) {
    auto slot = std::make_unique<Slot>();
    slot->chunk = &chunks.chunk(id);
    slot->offset = floats;
    slot->stride = Padded(slot->chunk->elements);
    slot->sequence = std::make_unique<Sequence>(executor_);
    elements += slot->chunk->elements;
    floats += slot->stride * arrays_;
    EPS_CHECK_MSG(slots_.emplace(id.value(), std::move(slot)).second, "chunk " << id << " twice");
  }
  // Charged are the elements; the padding is less than a cache line for each array of a chunk.
  const uint64_t bytes = elements * sizeof(float) * arrays_;
  const absl::Status charged = account_->TryCharge(MemoryKind::kState, bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "weights and optimizer state of ", elements, " parameters, ", sizeof(float) * arrays_,
        " bytes each, do not fit: ", charged.message(),
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

absl::Status DramBackend::CheckVersion(const Slot& slot, Version wanted) const {
  if (slot.version == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "chunk ", slot.chunk->id.value(), ": version ", wanted.value(), " wanted, ",
      slot.version.has_value() ? absl::StrCat("version ", slot.version->value(), " is here")
                               : std::string("it has no content yet")));
}

void DramBackend::Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) {
  Start(op, chunk, [this, version, codec, axis](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_RETURN_IF_ERROR(CheckVersion(*slot, version));
    const EncodeOptions options = OptionsOfWeights(*slot->chunk, version, axis);
    return BackendValue(EncodeChunk(*codec, *slot->chunk, options, Array(*slot, 0)));
  });
}

EncodeOptions DramBackend::OptionsOfWeights(const Chunk& chunk, Version version, Axis axis) const {
  EncodeOptions options;
  options.axis = axis;
  options.rng.seed = spec_.training.seed;
  options.rng.step = version.value();
  options.rng.micro_batch = chunk.id.value();
  options.kind = MemoryKind::kFetch;
  options.account = account_;
  return options;
}

void DramBackend::ReadState(OpId op, ChunkId chunk, Version version) {
  Start(op, chunk, [this, version](Slot* slot) -> absl::StatusOr<BackendValue> {
    EPS_RETURN_IF_ERROR(CheckVersion(*slot, version));
    const size_t array_bytes = slot->chunk->elements * sizeof(float);
    Buffer state(array_bytes * arrays_, MemoryKind::kImport, account_);
    for (size_t i = 0; i < arrays_; ++i) {
      std::memcpy(state.data() + i * array_bytes, Array(*slot, i), array_bytes);
    }
    return BackendValue(std::move(state).Freeze());
  });
}

void DramBackend::WriteState(OpId op, ChunkId chunk, Version version, Bytes state) {
  Start(op, chunk,
        [this, version, state = std::move(state)](Slot* slot) -> absl::StatusOr<BackendValue> {
          const size_t array_bytes = slot->chunk->elements * sizeof(float);
          if (state.size() != array_bytes * arrays_) {
            return absl::InvalidArgumentError(absl::StrCat(
                "state of chunk ", slot->chunk->id.value(), " at version ", version.value(),
                ": expected ", array_bytes * arrays_, " bytes (", arrays_, " arrays of ",
                slot->chunk->elements, " FP32 elements), found ", state.size()));
          }
          for (size_t i = 0; i < arrays_; ++i) {
            std::memcpy(Array(*slot, i), state.data() + i * array_bytes, array_bytes);
          }
          slot->version = version;
          return BackendValue();
        });
}

void DramBackend::Initialize(OpId op, ChunkId chunk) {
  Start(op, chunk, [this](Slot* slot) -> absl::StatusOr<BackendValue> {
    for (const Segment& s : slot->chunk->segments) {
      FillInitialValues(spec_, s.tensor, s.tensor_offset,
                        absl::MakeSpan(Array(*slot, 0) + s.offset, s.elements()));
    }
    for (size_t i = 1; i < arrays_; ++i) {
      std::memset(Array(*slot, i), 0, slot->chunk->elements * sizeof(float));
    }
    slot->version = Version(0);
    return BackendValue();
  });
}

void DramBackend::Stats(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  Start(op, chunk,
        [this, shared = std::move(shared)](Slot* slot) { return DoStats(*shared, *slot); });
}

absl::StatusOr<BackendValue> DramBackend::DoStats(const UpdateRequest& request,
                                                  const Slot& slot) const {
  const Chunk& chunk = *slot.chunk;
  EPS_ASSIGN_OR_RETURN(const ReductionPlan plan,
                       ReductionPlan::Build(chunk, request.parts, request.inputs));
  Buffer tiles(plan.buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  // One input is kept as it came; it is never larger than its sum.
  const bool keep_input = request.inputs.size() == 1;
  Buffer sum(keep_input ? 0 : chunk.elements * sizeof(float), MemoryKind::kContribution, account_);
  Buffer dropped(keep_input ? LargestPanel(chunk) * sizeof(float) : 0, MemoryKind::kScratch,
                 account_);
  ScopedFlushDenormals flush;
  SquareSum squares;
  ForEachPanel(chunk, [&](const Panel& panel) {
    float* const out =
        keep_input ? dropped.floats() : sum.floats() + panel.offset(chunk.segments[panel.segment]);
    plan.Run(panel, tiles.floats(), out);
    AddSquares(panel, out, request.norm_scale, &squares);
  });
  UpdateResult result;
  result.sum_squares = squares.Fold();
  if (keep_input) {
    result.reduced = request.inputs.front().data;
  } else {
    EPS_ASSIGN_OR_RETURN(const Codec* const fp32, FindCodec("fp32"));
    EPS_ASSIGN_OR_RETURN(result.reduced,
                         fp32->Open(chunk, Axis::kRow, std::move(sum).Freeze(), Content::kWeights));
  }
  return BackendValue(std::move(result));
}

void DramBackend::Update(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  // Moved, so that the work holds the only reference to the contributions.
  Start(op, chunk,
        [this, shared = std::move(shared)](Slot* slot) { return DoUpdate(*shared, slot); });
}

absl::Status DramBackend::CheckEncode(const UpdateRequest& request) const {
  for (const UpdateRequest::Encode& encode : request.encode) {
    if (encode.codec == nullptr || encode.codec->traits().uses_residual) {
      return absl::InvalidArgumentError(absl::StrCat(
          "update of chunk ", request.chunk.value(), ": weights cannot be encoded with ",
          encode.codec == nullptr ? "no codec" : encode.codec->name()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BackendValue> DramBackend::DoUpdate(const UpdateRequest& request, Slot* slot) const {
  EPS_RETURN_IF_ERROR(CheckVersion(*slot, request.from));
  if (request.to != request.from.Next()) {
    return absl::InvalidArgumentError(absl::StrCat("update of chunk ", slot->chunk->id.value(),
                                                   " from version ", request.from.value(), " to ",
                                                   request.to.value(), " is not one step"));
  }
  EPS_RETURN_IF_ERROR(CheckEncode(request));
  const Chunk& chunk = *slot->chunk;
  std::optional<ReductionPlan> plan;
  if (request.reduced != nullptr) {
    plan = ReductionPlan::Of(chunk, *request.reduced);
  } else {
    EPS_ASSIGN_OR_RETURN(plan, ReductionPlan::Build(chunk, request.parts, request.inputs));
  }
  std::vector<std::unique_ptr<TileEncoder>> encoders;
  for (const UpdateRequest::Encode& encode : request.encode) {
    encoders.push_back(
        encode.codec->NewEncoder(chunk, OptionsOfWeights(chunk, request.to, encode.axis)));
  }
  Buffer tiles(plan->buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  Buffer gradient(LargestPanel(chunk) * sizeof(float), MemoryKind::kScratch, account_);
  ScopedFlushDenormals flush;
  SquareSum squares;
  ForEachPanel(chunk, [&](const Panel& panel) {
    const Segment& segment = chunk.segments[panel.segment];
    UpdatePanel(*plan, panel, request.step, *slot, tiles.floats(), gradient.floats());
    AddSquares(panel, gradient.floats(), request.norm_scale, &squares);
    for (const std::unique_ptr<TileEncoder>& encoder : encoders) {
      ForEachTileOf(panel, [&](const Tile& tile) {
        encoder->Write(tile, segment.cols, Array(*slot, 0) + tile.offset(segment));
      });
    }
  });
  slot->version = request.to;
  UpdateResult result;
  result.sum_squares = squares.Fold();
  for (const std::unique_ptr<TileEncoder>& encoder : encoders) {
    result.encoded.push_back(encoder->Finish());
  }
  return BackendValue(std::move(result));
}

void DramBackend::UpdatePanel(const ReductionPlan& plan, const Panel& panel,
                              const StepScalars& step, const Slot& slot, float* tiles,
                              float* gradient) const {
  const Segment& s = slot.chunk->segments[panel.segment];
  TileState state;
  state.ld = s.cols;
  state.weight = Array(slot, 0) + panel.offset(s);
  for (size_t i = 1; i < arrays_; ++i) state.field[i - 1] = Array(slot, i) + panel.offset(s);
  GroupScalars group;
  group.weight_decay = spec_.groups[s.group.value()].weight_decay;
  const absl::optional<AdamWScalars> adamw = rule_->adamw_scalars(step, group);
  if (adamw.has_value() &&
      plan.RunAdamW(panel, gradient, *adamw, {state.weight, state.field[0], state.field[1]})) {
    return;
  }
  plan.Run(panel, tiles, gradient);
  rule_->Run(panel.rows, panel.cols, gradient, panel.cols, step, group, state);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateBackend>> NewDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<UpdateRule> rule, NewUpdateRule(spec.optimizer));
  auto backend =
      std::make_unique<DramBackend>(spec, std::move(rule), executor, account, std::move(done));
  EPS_RETURN_IF_ERROR(backend->Reserve(chunks, owned));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace eps
