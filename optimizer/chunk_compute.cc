#include "optimizer/chunk_compute.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/initial_values.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"
#include "optimizer/panel.h"
#include "optimizer/reduction_plan.h"

namespace eps {
namespace {

// Adds a panel of the gradient tile by tile, the order in which the sum is defined.
void AddSquares(const Panel& panel, const float* gradient, float scale, SquareSum* squares) {
  ForEachTileOf(panel, [&](const Tile& tile) {
    squares->Add(gradient + tile.col, tile.rows, tile.cols, panel.cols, scale);
  });
}

// Returns the codec in which a chunk's gradient can be kept, and opened again where its bytes are.
// Null if it has none, or if the sum is smaller.
const Codec* CodecToKeep(const Chunk& chunk, const EncodedChunk& gradient) {
  return gradient.bytes().size() <= chunk.elements * sizeof(float) ? gradient.codec() : nullptr;
}

// Returns the only contribution; null if there are several.
const EncodedChunk* OnlyInput(const UpdateRequest& request) {
  return request.inputs.size() == 1 ? request.inputs.front().data.get() : nullptr;
}

absl::Span<const uint8_t> StoredIn(const ChunkArrays& arrays) {
  if (arrays.room_or_null == nullptr) return {};
  return arrays.room_or_null->memory();
}

// Updates a range of a chunk with its gradient, in one piece or in several.
class UpdateOfRange final : public strip_kernels::PieceSink {
 public:
  // The range begins at the element `first` of each of `count` arrays, and its gradient at `grad`.
  UpdateOfRange(const PreparedUpdate& update, const ChunkArrays& arrays, size_t count,
                uint64_t first, const float* grad)
      : update_(update), fields_(count - 1), grad_(grad) {
    state_.weight = arrays.weights + first;
    for (size_t i = 0; i < fields_; ++i) state_.field[i] = arrays.array(1 + i) + first;
  }

  void Take(size_t offset, size_t n) override {
    TileState state = state_;
    state.weight += offset;
    for (size_t i = 0; i < fields_; ++i) state.field[i] += offset;
    update_.Run(n, grad_ + offset, state);
  }

 private:
  const PreparedUpdate& update_;
  const size_t fields_;
  const float* const grad_;
  TileState state_;
};

// Returns the plan of an update's sum. `stored` are the bytes of a reduced gradient that is not in
// memory. Keep `reduced` as long as the plan.
absl::StatusOr<ReductionPlan> PlanOf(const Chunk& chunk, const UpdateRequest& request,
                                     absl::Span<const uint8_t> stored,
                                     std::shared_ptr<const EncodedChunk>* reduced) {
  if (request.reduced == nullptr) {
    return ReductionPlan::Build(chunk, request.parts, request.inputs);
  }
  EPS_ASSIGN_OR_RETURN(*reduced, request.reduced->Open(chunk, stored));
  return ReductionPlan::Of(chunk, **reduced);
}

absl::Status CheckEncode(const UpdateRequest& request) {
  for (const UpdateRequest::Encode& encode : request.encode) {
    if (encode.codec == nullptr || encode.codec->traits().uses_residual) {
      return absl::InvalidArgumentError(absl::StrCat(
          "update of chunk ", request.chunk.value(), ": weights cannot be encoded with ",
          encode.codec == nullptr ? "no codec" : encode.codec->name()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChunkCompute> ChunkCompute::New(const JobSpec& spec, MemoryAccount* account,
                                               Updates updates) {
  std::unique_ptr<UpdateRule> rule;
  if (updates == Updates::kHere) {
    EPS_ASSIGN_OR_RETURN(rule, NewUpdateRule(spec.optimizer));
  }
  return ChunkCompute(spec, std::move(rule), account);
}

absl::Status ChunkCompute::CheckVersion(const Chunk& chunk, std::optional<Version> present,
                                        Version wanted) {
  if (present == wanted || (chunk.frozen && present.has_value())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("chunk ", chunk.id.value(), ": version ", wanted.value(), " wanted, ",
                   present.has_value() ? absl::StrCat("version ", present->value(), " is here")
                                       : std::string("it has no content yet")));
}

absl::Status ChunkCompute::CheckUpdate(const Chunk& chunk, std::optional<Version> present,
                                       const UpdateRequest& request) {
  if (chunk.frozen) {
    return absl::InvalidArgumentError(
        absl::StrCat("update of chunk ", chunk.id.value(), ": it is frozen"));
  }
  EPS_RETURN_IF_ERROR(CheckVersion(chunk, present, request.from));
  if (!request.trust_ratios.empty() && request.trust_ratios.size() != chunk.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("update of chunk ", chunk.id.value(), ": ", request.trust_ratios.size(),
                     " trust ratios for ", chunk.segments.size(), " segments"));
  }
  if (request.to != request.from.Next()) {
    return absl::InvalidArgumentError(absl::StrCat("update of chunk ", chunk.id.value(),
                                                   " from version ", request.from.value(), " to ",
                                                   request.to.value(), " is not one step"));
  }
  return CheckEncode(request);
}

absl::Status ChunkCompute::CheckState(const Chunk& chunk, Version version,
                                      const Bytes& state) const {
  const size_t array_bytes = chunk.elements * sizeof(float);
  const size_t arrays = ArraysOf(chunk);
  if (state.size() == array_bytes * arrays) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("state of chunk ", chunk.id.value(), " at version ", version.value(),
                   ": expected ", array_bytes * arrays, " bytes (", arrays, " arrays of ",
                   chunk.elements, " FP32 elements), found ", state.size()));
}

Bytes ChunkCompute::Read(const Chunk& chunk, Version version, const Codec& codec, Axis axis,
                         const ChunkArrays& arrays) const {
  const EncodeOptions options = OptionsOfWeights(chunk, version, axis);
  return EncodeChunk(codec, chunk, options, arrays.weights);
}

Bytes ChunkCompute::CopyEncoded(absl::Span<const uint8_t> encoded) const {
  Buffer copy(encoded.size(), MemoryKind::kFetch, account_);
  std::memcpy(copy.data(), encoded.data(), encoded.size());
  return std::move(copy).Freeze();
}

EncodeOptions ChunkCompute::OptionsOfWeights(const Chunk& chunk, Version version, Axis axis) const {
  EncodeOptions options;
  options.axis = axis;
  options.rng.seed = spec_->training.seed;
  options.rng.step = ContentVersion(chunk, version).value();
  options.rng.micro_batch = chunk.id.value();
  options.kind = MemoryKind::kFetch;
  options.account = account_;
  return options;
}

Bytes ChunkCompute::ReadState(const Chunk& chunk, const ChunkArrays& arrays) const {
  const size_t array_bytes = chunk.elements * sizeof(float);
  Buffer state(array_bytes * ArraysOf(chunk), MemoryKind::kImport, account_);
  for (size_t i = 0; i < ArraysOf(chunk); ++i) {
    std::memcpy(state.data() + i * array_bytes, arrays.array(i), array_bytes);
  }
  return std::move(state).Freeze();
}

void ChunkCompute::WriteState(const Chunk& chunk, const Bytes& state,
                              const ChunkArrays& arrays) const {
  const size_t array_bytes = chunk.elements * sizeof(float);
  for (size_t i = 0; i < ArraysOf(chunk); ++i) {
    std::memcpy(arrays.array(i), state.data() + i * array_bytes, array_bytes);
  }
}

void ChunkCompute::Initialize(const Chunk& chunk, const ChunkArrays& arrays) const {
  for (const Segment& s : chunk.segments) {
    FillInitialValues(*spec_, s.tensor, s.tensor_offset,
                      absl::MakeSpan(arrays.weights + s.offset, s.elements()));
  }
  for (size_t i = 1; i < ArraysOf(chunk); ++i) {
    std::memset(arrays.array(i), 0, chunk.elements * sizeof(float));
  }
}

absl::StatusOr<UpdateResult> ChunkCompute::Reduce(const Chunk& chunk, const UpdateRequest& request,
                                                  GradientRoom* room_or_null) const {
  EPS_ASSIGN_OR_RETURN(const ReductionPlan plan,
                       ReductionPlan::Build(chunk, request.parts, request.inputs));
  Buffer tiles(plan.buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  // A single input is kept in its own encoding. A tier has to know that encoding, and take it.
  const EncodedChunk* const only = OnlyInput(request);
  const bool keep_input =
      only != nullptr && (room_or_null == nullptr ||
                          (room_or_null->takes_codecs() && CodecToKeep(chunk, *only) != nullptr));
  const uint64_t sum_bytes = chunk.elements * sizeof(float);
  Buffer sum(keep_input || room_or_null != nullptr ? 0 : sum_bytes, MemoryKind::kContribution,
             account_);
  Buffer dropped(keep_input ? LargestPanel(chunk) * sizeof(float) : 0, MemoryKind::kScratch,
                 account_);
  float* const sums = room_or_null == nullptr
                          ? sum.floats()
                          : reinterpret_cast<float*>(room_or_null->memory().data());
  ScopedFlushDenormals flush;
  SquareSum squares;
  ForEachPanel(chunk, [&](const Panel& panel) {
    float* const out =
        keep_input ? dropped.floats() : sums + panel.offset(chunk.segments[panel.segment]);
    plan.Run(panel, tiles.floats(), out);
    AddSquares(panel, out, request.norm_scale, &squares);
  });
  UpdateResult result;
  result.sum_squares = squares.Fold();
  EPS_ASSIGN_OR_RETURN(const Codec* const fp32, FindCodec("fp32"));
  if (room_or_null != nullptr && keep_input) {
    std::memcpy(room_or_null->memory().data(), only->bytes().data(), only->bytes().size());
    result.reduced = room_or_null->Keep(only->codec(), only->bytes().size());
  } else if (room_or_null != nullptr) {
    result.reduced = room_or_null->Keep(fp32, sum_bytes);
  } else if (keep_input) {
    result.reduced = std::make_shared<GradientInMemory>(request.inputs.front().data);
  } else {
    EPS_ASSIGN_OR_RETURN(std::shared_ptr<const EncodedChunk> opened,
                         fp32->Open(chunk, Axis::kRow, std::move(sum).Freeze(), Content::kWeights));
    result.reduced = std::make_shared<GradientInMemory>(std::move(opened));
  }
  return result;
}

absl::StatusOr<ChunkCompute::Gathered> ChunkCompute::Gather(const Chunk& chunk,
                                                            const UpdateRequest& request,
                                                            bool decodes,
                                                            absl::Span<uint8_t> into) const {
  std::shared_ptr<const EncodedChunk> reduced;  // outlives the plan
  EPS_ASSIGN_OR_RETURN(const ReductionPlan plan, PlanOf(chunk, request, {}, &reduced));
  const EncodedChunk* const only = reduced != nullptr ? reduced.get() : OnlyInput(request);
  if (!decodes && only != nullptr && CodecToKeep(chunk, *only) != nullptr) {
    std::memcpy(into.data(), only->bytes().data(), only->bytes().size());
    return Gathered{only->codec(), only->bytes().size()};
  }
  Buffer tiles(plan.buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  auto* const sums = reinterpret_cast<float*>(into.data());
  ScopedFlushDenormals flush;
  ForEachPanel(chunk, [&](const Panel& panel) {
    plan.Run(panel, tiles.floats(), sums + panel.offset(chunk.segments[panel.segment]));
  });
  EPS_ASSIGN_OR_RETURN(const Codec* const fp32, FindCodec("fp32"));
  return Gathered{fp32, chunk.elements * sizeof(float)};
}

GroupScalars ChunkCompute::ScalarsOf(const Segment& segment) const {
  GroupScalars scalars;
  scalars.weight_decay = spec_->groups[segment.group.value()].weight_decay;
  scalars.lr_multiplier = spec_->groups[segment.group.value()].lr_multiplier;
  return scalars;
}

absl::StatusOr<MeasureResult> ChunkCompute::Measure(const Chunk& chunk,
                                                    const UpdateRequest& request,
                                                    const ChunkArrays& arrays) const {
  std::shared_ptr<const EncodedChunk> reduced;  // outlives the plan
  EPS_ASSIGN_OR_RETURN(const ReductionPlan plan,
                       PlanOf(chunk, request, StoredIn(arrays), &reduced));
  Buffer tiles(plan.buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  const uint64_t largest = LargestPanel(chunk);
  Buffer gradient(largest * sizeof(float), MemoryKind::kScratch, account_);
  Buffer steps(largest * sizeof(float), MemoryKind::kScratch, account_);
  std::vector<SquareSum> of_weights(chunk.segments.size());
  std::vector<SquareSum> of_steps(chunk.segments.size());
  ScopedFlushDenormals flush;
  ForEachPanel(chunk, [&](const Panel& panel) {
    const Segment& s = chunk.segments[panel.segment];
    plan.Run(panel, tiles.floats(), gradient.floats());
    const uint64_t first = panel.offset(s);
    TileState state;
    state.weight = arrays.weights + first;
    for (size_t i = 0; i + 1 < arrays_; ++i) state.field[i] = arrays.array(1 + i) + first;
    rule_->PrepareSteps(request.step, ScalarsOf(s))
        ->Run(panel.elements(), gradient.floats(), state, steps.floats());
    AddSquares(panel, state.weight, 1, &of_weights[panel.segment]);
    AddSquares(panel, steps.floats(), 1, &of_steps[panel.segment]);
  });
  MeasureResult result;
  for (size_t i = 0; i < chunk.segments.size(); ++i) {
    result.segments.push_back({of_weights[i].Fold(), of_steps[i].Fold()});
  }
  return result;
}

absl::StatusOr<UpdateResult> ChunkCompute::Update(const Chunk& chunk, const UpdateRequest& request,
                                                  const ChunkArrays& arrays) const {
  std::shared_ptr<const EncodedChunk> reduced;  // outlives the plan
  EPS_ASSIGN_OR_RETURN(const ReductionPlan plan,
                       PlanOf(chunk, request, StoredIn(arrays), &reduced));
  Encoders encoders;
  for (const UpdateRequest::Encode& encode : request.encode) {
    encoders.push_back(
        encode.codec->NewEncoder(chunk, OptionsOfWeights(chunk, request.to, encode.axis)));
  }
  Buffer tiles(plan.buffers() * ReductionPlan::kBufferElements * sizeof(float),
               MemoryKind::kScratch, account_);
  Buffer gradient(LargestPanel(chunk) * sizeof(float), MemoryKind::kScratch, account_);
  ScopedFlushDenormals flush;
  SquareSum squares;
  ForEachPanel(chunk, [&](const Panel& panel) {
    UpdatePanel(chunk, plan, panel, request, arrays, tiles.floats(), gradient.floats(), encoders);
    AddSquares(panel, gradient.floats(), request.norm_scale, &squares);
  });
  UpdateResult result;
  result.sum_squares = squares.Fold();
  for (const std::unique_ptr<TileEncoder>& encoder : encoders) {
    result.encoded.push_back(encoder->Finish());
  }
  return result;
}

std::unique_ptr<const PreparedUpdate> ChunkCompute::Prepare(const Chunk& chunk,
                                                            const UpdateRequest& request,
                                                            uint32_t segment) const {
  GroupScalars group = ScalarsOf(chunk.segments[segment]);
  if (!request.trust_ratios.empty()) group.trust_ratio = request.trust_ratios[segment];
  return rule_->Prepare(request.step, group);
}

void ChunkCompute::UpdatePanel(const Chunk& chunk, const ReductionPlan& plan, const Panel& panel,
                               const UpdateRequest& request, const ChunkArrays& arrays,
                               float* tiles, float* gradient, const Encoders& encoders) const {
  const Segment& s = chunk.segments[panel.segment];
  const std::unique_ptr<const PreparedUpdate> prepared = Prepare(chunk, request, panel.segment);
  const bool in_place = plan.InPlace(panel);
  if (!in_place) plan.Run(panel, tiles, gradient);
  const auto update = [&](const ElementRange& range) {
    float* const grad = gradient + range.offset;
    UpdateOfRange sink(*prepared, arrays, arrays_, panel.offset(s) + range.offset, grad);
    if (in_place) {
      plan.RunPieces(panel, range, grad, &sink);
    } else {
      sink.Take(0, range.elements);
    }
  };
  std::vector<TileEncoder*> by_rows;
  std::vector<TileEncoder*> by_tiles;
  for (const std::unique_ptr<TileEncoder>& encoder : encoders) {
    (HasLongRows(s) && encoder->takes_rows() ? by_rows : by_tiles).push_back(encoder.get());
  }
  if (by_rows.empty()) {
    update(ElementRange{0, panel.elements()});
  } else {
    ForEachRowPieceOf(panel, [&](const RowPiece& piece, const ElementRange& range) {
      update(range);
      for (TileEncoder* const encoder : by_rows) {
        encoder->WriteRow(piece, arrays.weights + piece.offset(s));
      }
    });
  }
  for (TileEncoder* const encoder : by_tiles) {
    ForEachTileOf(panel, [&](const Tile& tile) {
      encoder->Write(tile, s.cols, arrays.weights + tile.offset(s));
    });
  }
}

}  // namespace eps
