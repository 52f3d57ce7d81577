#include "storage/backends/chunk_ops.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"

namespace eps {
namespace {

using Outcome = absl::StatusOr<BackendValue>;

// Returns the place of work for the step that reads this version.
SpanPlace PlaceOf(const Chunk& chunk, Version version) {
  return {StepThatReads(version.value()), chunk.id.value() + 1};
}

// Builds the operation for one request, with an overload per kind of request.
class Builder {
 public:
  Builder(const ChunkCompute& compute, const Chunk& chunk) : compute_(&compute), chunk_(&chunk) {}

  ChunkOp operator()(const ReadRequest& request) const {
    ChunkOp op;
    op.lane = Lane::kClient;
    op.check = AtVersion(request.version);
    op.reads = Extents::Part::kWeights;
    auto shared = std::make_shared<const ReadRequest>(request);
    op.read = shared.get();
    op.work = [compute = compute_, chunk = chunk_,
               shared = std::move(shared)](const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kEncodeSpan, PlaceOf(*chunk, shared->version));
      return BackendValue(
          compute->Read(*chunk, shared->version, *shared->codec, shared->axis, arrays));
    };
    return op;
  }

  ChunkOp operator()(const ReadStateRequest& request) const {
    ChunkOp op;
    op.lane = Lane::kClient;
    op.check = AtVersion(request.version);
    op.reads = Extents::Part::kAll;
    op.work = [compute = compute_, chunk = chunk_](const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kReadStateSpan, {0, chunk->id.value() + 1});
      return BackendValue(compute->ReadState(*chunk, arrays));
    };
    return op;
  }

  ChunkOp operator()(const WriteStateRequest& request) const {
    ChunkOp op;
    op.lane = Lane::kClient;
    op.check = [compute = compute_, chunk = chunk_, request](std::optional<Version>) {
      return compute->CheckState(*chunk, request.version, request.state);
    };
    op.writes = true;
    op.to = ContentVersion(*chunk_, request.version);
    op.work = [compute = compute_, chunk = chunk_,
               state = request.state](const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kWriteStateSpan, {0, chunk->id.value() + 1});
      compute->WriteState(*chunk, state, arrays);
      return BackendValue();
    };
    op.state = request.state;
    return op;
  }

  ChunkOp operator()(const InitializeRequest&) const {
    ChunkOp op;
    op.writes = true;
    op.work = [compute = compute_, chunk = chunk_](const ChunkArrays& arrays) -> Outcome {
      compute->Initialize(*chunk, arrays);
      return BackendValue();
    };
    return op;
  }

  ChunkOp operator()(ReduceRequest& request) const {
    ChunkOp op;
    op.reduces = true;
    op.work = [compute = compute_, chunk = chunk_,
               shared = std::make_shared<UpdateRequest>(std::move(request.update))](
                  const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kReduceSpan, PlaceOf(*chunk, shared->from));
      EPS_ASSIGN_OR_RETURN(UpdateResult result,
                           compute->Reduce(*chunk, *shared, arrays.room_or_null));
      return BackendValue(std::move(result));
    };
    return op;
  }

  ChunkOp operator()(MeasureRequest& request) const {
    auto shared = std::make_shared<const UpdateRequest>(std::move(request.update));
    ChunkOp op;
    op.check = [chunk = chunk_, request = shared.get()](std::optional<Version> present) {
      return ChunkCompute::CheckUpdate(*chunk, present, *request);
    };
    op.reads = Extents::Part::kAll;
    op.gradient = shared->reduced;
    op.measure = shared.get();
    op.work = [compute = compute_, chunk = chunk_,
               shared = std::move(shared)](const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kMeasureSpan, PlaceOf(*chunk, shared->from));
      EPS_ASSIGN_OR_RETURN(MeasureResult result, compute->Measure(*chunk, *shared, arrays));
      return BackendValue(std::move(result));
    };
    return op;
  }

  ChunkOp operator()(UpdateRequest& request) const {
    auto shared = std::make_shared<UpdateRequest>(std::move(request));
    ChunkOp op;
    op.check = [chunk = chunk_, request = shared.get()](std::optional<Version> present) {
      return ChunkCompute::CheckUpdate(*chunk, present, *request);
    };
    op.reads = Extents::Part::kAll;
    op.writes = true;
    op.to = shared->to;
    op.gradient = shared->reduced;
    op.update = shared.get();
    // Moves the request, so that the work holds the only reference to the contributions.
    op.work = [compute = compute_, chunk = chunk_,
               shared = std::move(shared)](const ChunkArrays& arrays) -> Outcome {
      const TraceSpan span(kUpdateSpan, PlaceOf(*chunk, shared->from));
      EPS_ASSIGN_OR_RETURN(UpdateResult result, compute->Update(*chunk, *shared, arrays));
      return BackendValue(std::move(result));
    };
    return op;
  }

 private:
  std::function<absl::Status(std::optional<Version>)> AtVersion(Version version) const {
    return [chunk = chunk_, version](std::optional<Version> present) {
      return ChunkCompute::CheckVersion(*chunk, present, version);
    };
  }

  const ChunkCompute* compute_;
  const Chunk* chunk_;
};

struct IdOf {
  template <class R>
  ChunkId operator()(const R& request) const {
    return request.chunk;
  }
  ChunkId operator()(const ReduceRequest& request) const { return request.update.chunk; }
  ChunkId operator()(const MeasureRequest& request) const { return request.update.chunk; }
};

}  // namespace

ChunkId ChunkOf(const ChunkRequest& request) { return std::visit(IdOf(), request); }

ChunkOp NewChunkOp(const ChunkCompute& compute, const Chunk& chunk, ChunkRequest request) {
  return std::visit(Builder(compute, chunk), request);
}

}  // namespace eps
