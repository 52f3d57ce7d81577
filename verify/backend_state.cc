#include "verify/backend_state.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "common/check.h"
#include "compression/codec.h"

namespace eps {

BackendState::BackendState(const JobSpec& spec) : spec_(spec), chunks_(ChunkMap::Build(spec)) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks_.chunks()) all.push_back(chunk.id);
  auto backend = NewDramBackend(spec, chunks_, all, &threads_, &account_, completions_.Sink());
  EPS_CHECK_MSG(backend.ok(), backend.status());
  backend_ = *std::move(backend);
  for (const ChunkId chunk : all) {
    const OpId op = completions_.Next();
    backend_->Initialize(op, chunk);
    Wait(op);
  }
}

BackendValue BackendState::Wait(OpId op) {
  BackendDone done = completions_.Take(op);
  EPS_CHECK_MSG(done.status.ok(), done.status);
  return std::move(done.value);
}

Bytes BackendState::Encoded(const Chunk& chunk, StageId stage, const UseGradients& gradient) const {
  const auto& uses = spec_.stages[stage.value()].uses;
  std::vector<float> elements(chunk.elements);
  for (const Segment& s : chunk.segments) {
    size_t use = 0;
    while (uses[use].tensor != s.tensor) ++use;
    const std::vector<float>& values = gradient[stage.value()][use];
    std::memcpy(elements.data() + s.offset, values.data() + s.tensor_offset,
                s.elements() * sizeof(float));
  }
  return Bytes::CopyOf(absl::string_view(reinterpret_cast<const char*>(elements.data()),
                                         elements.size() * sizeof(float)));
}

double BackendState::Update(const std::vector<UseGradients>& parts, const StepScalars& step,
                            float norm_scale) {
  const Codec* const codec = *FindCodec("fp32");
  double sum = 0;
  for (const Chunk& chunk : chunks_.chunks()) {
    UpdateRequest request;
    request.chunk = chunk.id;
    request.from = Version(version_);
    request.to = Version(version_ + 1);
    request.parts = static_cast<uint32_t>(parts.size());
    request.step = step;
    request.norm_scale = norm_scale;
    for (uint32_t part = request.parts; part-- > 0;) {
      for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
        auto data =
            codec->Open(chunk, Encoded(chunk, chunk.uses[use], parts[part]), Content::kGradient);
        EPS_CHECK_MSG(data.ok(), data.status());
        request.inputs.push_back({use, TreeRange{part, 1}, *std::move(data)});
      }
    }
    const OpId op = completions_.Next();
    backend_->Update(op, std::move(request));
    sum += std::get<UpdateResult>(Wait(op)).sum_squares;
  }
  ++version_;
  return std::sqrt(sum);
}

std::vector<TensorValues> BackendState::Read() {
  std::vector<TensorValues> arrays(3);
  for (TensorValues& array : arrays) {
    for (const TensorSpec& tensor : spec_.tensors) array.emplace_back(tensor.elements());
  }
  for (const Chunk& chunk : chunks_.chunks()) {
    const OpId op = completions_.Next();
    backend_->ReadState(op, chunk.id, Version(version_));
    const Bytes state = std::get<Bytes>(Wait(op));
    for (size_t field = 0; field < arrays.size(); ++field) {
      for (const Segment& s : chunk.segments) {
        const uint64_t first = field * chunk.elements + s.offset;
        std::memcpy(arrays[field][s.tensor.value()].data() + s.tensor_offset,
                    state.data() + first * sizeof(float), s.elements() * sizeof(float));
      }
    }
  }
  return arrays;
}

}  // namespace eps
