#include "checkpoint/checkpoint_residuals.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "compression/codec.h"

namespace eps {
namespace {

constexpr char kPrefix[] = "eps/residual-";

// Residuals always use the codec of the steps after the warm-up, at whatever step they are.
const Codec* ResidualCodec(const JobSpec& spec, const CodecTable& codecs, ChunkId chunk) {
  return codecs.residual_or_null(chunk, Step(spec.codecs.warmup_steps + 1));
}

// Returns the uses whose residuals the job keeps, in the order of UsesOfTensors.
std::vector<TensorUsePlace> UsesWithResiduals(const JobSpec& spec, const ChunkMap& chunks,
                                              const CodecTable& codecs) {
  std::set<TensorId> tensors;
  for (const Chunk& chunk : chunks.chunks()) {
    if (ResidualCodec(spec, codecs, chunk.id) == nullptr) continue;
    for (const Segment& segment : chunk.segments) tensors.insert(segment.tensor);
  }
  std::vector<TensorUsePlace> uses = UsesOfTensors(spec);
  uses.erase(
      std::remove_if(uses.begin(), uses.end(),
                     [&](const TensorUsePlace& use) { return tensors.count(use.tensor) == 0; }),
      uses.end());
  return uses;
}

SafetensorsEntry EntryOf(const JobSpec& spec, const TensorUsePlace& use) {
  const TensorSpec& tensor = spec.tensors[use.tensor.value()];
  SafetensorsEntry entry;
  entry.name = use.name;
  if (tensor.rank == 2) entry.shape.push_back(tensor.rows);
  entry.shape.push_back(tensor.cols);
  return entry;
}

std::string Show(const ResidualPlace& place) {
  return absl::StrCat("residual of chunk ", place.chunk.value(), ", part ", place.part.value(),
                      ", use by stage ", place.use.value());
}

// Returns the first key about residuals in which two jobs differ. `format_only` considers only keys
// that decide whether a job can use another one's residuals at all.
std::string DifferingKey(const JobSpec& theirs, const JobSpec& ours, bool format_only) {
  const auto shown = [](bool value) { return std::string(value ? "true" : "false"); };
  struct Key {
    const char* name;
    bool of_format;
    std::string there, here;
  };
  const CodecSpec& there = theirs.codecs;
  const CodecSpec& here = ours.codecs;
  const Key keys[] = {
      {"training.parts", true, absl::StrCat(theirs.training.parts),
       absl::StrCat(ours.training.parts)},
      {"quantization.residual", true, there.residual, here.residual},
      {"quantization.error_feedback", false, shown(there.error_feedback),
       shown(here.error_feedback)},
      {"quantization.gradients", false, there.gradients, here.gradients},
      {"quantization.embedding_gradients", false, there.embedding.gradients,
       here.embedding.gradients},
      {"quantization.head_gradients", false, there.head.gradients, here.head.gradients},
      {"quantization.norm_gradients", false, there.norm.gradients, here.norm.gradients},
  };
  for (const Key& key : keys) {
    if (key.there == key.here || (format_only && !key.of_format)) continue;
    return absl::StrCat(key.name, ": ", key.there, " there, ", key.here, " here");
  }
  return "";
}

}  // namespace

std::vector<TensorUsePlace> UsesOfTensors(const JobSpec& spec) {
  std::vector<std::vector<StageId>> stages(spec.tensors.size());
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    for (const TensorUse& use : spec.stages[s].uses) {
      stages[use.tensor.value()].push_back(StageId(s));
    }
  }
  std::vector<TensorUsePlace> uses;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    for (const StageId stage : stages[t]) {
      std::string name = spec.tensors[t].name;
      if (stages[t].size() > 1) absl::StrAppend(&name, "@", stage.value());
      uses.push_back({std::move(name), TensorId(t), stage});
    }
  }
  return uses;
}

std::string ResidualFile(uint32_t part) {
  return absl::StrFormat("%s%05d.safetensors", kPrefix, part);
}

absl::StatusOr<uint64_t> ResidualFilesBytes(const JobSpec& spec, const ChunkMap& chunks) {
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  uint64_t elements = 0;
  for (const TensorUsePlace& use : UsesWithResiduals(spec, chunks, codecs)) {
    const TensorSpec& tensor = spec.tensors[use.tensor.value()];
    elements += (tensor.rank == 2 ? uint64_t{tensor.rows} : 1) * tensor.cols;
  }
  return elements * sizeof(float) * spec.training.parts;
}

// ---------------------------------------------------------------- writer

ResidualFilesWriter::ResidualFilesWriter(const JobSpec& spec, const ChunkMap& chunks,
                                         CodecTable codecs)
    : spec_(spec), chunks_(chunks), codecs_(std::move(codecs)) {}

absl::StatusOr<std::unique_ptr<ResidualFilesWriter>> ResidualFilesWriter::Create(
    const std::string& folder, const JobSpec& spec, const ChunkMap& chunks) {
  EPS_ASSIGN_OR_RETURN(CodecTable codecs, CodecTable::Build(spec, chunks));
  std::unique_ptr<ResidualFilesWriter> writer(
      new ResidualFilesWriter(spec, chunks, std::move(codecs)));
  std::vector<SafetensorsEntry> entries;
  for (const TensorUsePlace& use : UsesWithResiduals(spec, chunks, writer->codecs_)) {
    writer->entries_[{use.tensor, use.use}] = entries.size();
    entries.push_back(EntryOf(spec, use));
  }
  if (entries.empty()) return writer;
  for (uint32_t part = 0; part < spec.training.parts; ++part) {
    writer->files_.push_back(ResidualFile(part));
    EPS_ASSIGN_OR_RETURN(auto file, SafetensorsWriter::Create(
                                        absl::StrCat(folder, "/", writer->files_.back()), entries));
    writer->parts_.push_back(std::move(file));
  }
  return writer;
}

uint64_t ResidualFilesWriter::bytes() const {
  uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->file_bytes();
  return bytes;
}

absl::Status ResidualFilesWriter::Write(const ResidualPlace& place, const std::string& encoded) {
  const bool known =
      place.chunk.value() < chunks_.chunks().size() && place.part.value() < parts_.size() &&
      entries_.count({chunks_.chunk(place.chunk).segments.front().tensor, place.use}) != 0;
  if (!known) {
    return absl::DataLossError(absl::StrCat("export: ", Show(place), ": the job keeps none there"));
  }
  if (encoded.empty()) return absl::OkStatus();  // Finish writes zeros
  if (!written_.emplace(place.chunk, place.use, place.part).second) {
    return absl::DataLossError(absl::StrCat("export: ", Show(place), " came twice"));
  }
  const Chunk& chunk = chunks_.chunk(place.chunk);
  const auto opened = ResidualCodec(spec_, codecs_, place.chunk)
                          ->Open(chunk, Axis::kRow, Bytes::CopyOf(encoded), Content::kWeights);
  if (!opened.ok()) {
    return absl::DataLossError(
        absl::StrCat("export: ", Show(place), ": ", std::string(opened.status().message())));
  }
  std::vector<float> elements(chunk.elements);
  DecodeChunk(**opened, chunk, elements.data());
  return WriteFloats(place, elements.data());
}

absl::Status ResidualFilesWriter::WriteFloats(const ResidualPlace& place, const float* elements) {
  for (const Segment& segment : chunks_.chunk(place.chunk).segments) {
    EPS_RETURN_IF_ERROR(parts_[place.part.value()]->Write(
        entries_.at({segment.tensor, place.use}), segment.tensor_offset,
        absl::MakeConstSpan(elements + segment.offset, segment.elements())));
  }
  return absl::OkStatus();
}

absl::Status ResidualFilesWriter::Finish() {
  for (const Chunk& chunk : chunks_.chunks()) {
    if (ResidualCodec(spec_, codecs_, chunk.id) == nullptr) continue;
    const std::vector<float> zeros(chunk.elements);
    for (const StageId use : chunk.uses) {
      for (uint32_t part = 0; part < parts_.size(); ++part) {
        const ResidualPlace place = {chunk.id, use, PartId(part)};
        if (written_.count({place.chunk, place.use, place.part}) != 0) continue;
        EPS_RETURN_IF_ERROR(WriteFloats(place, zeros.data()));
      }
    }
  }
  for (const auto& part : parts_) EPS_RETURN_IF_ERROR(part->Finish());
  return absl::OkStatus();
}

// ---------------------------------------------------------------- reader

absl::StatusOr<std::unique_ptr<ResidualFiles>> ResidualFiles::Open(
    const std::string& folder, const CheckpointManifest& manifest, const JobSpec& spec) {
  const auto listed =
      std::count_if(manifest.files.begin(), manifest.files.end(),
                    [](const auto& f) { return absl::StartsWith(f.first, kPrefix); });
  std::unique_ptr<ResidualFiles> reader;
  if (listed == 0) return reader;
  if (listed != static_cast<int64_t>(spec.training.parts)) {
    return absl::DataLossError(absl::StrCat(folder, ": the manifest lists residuals of ", listed,
                                            " parts, the job has ", spec.training.parts));
  }
  reader.reset(new ResidualFiles());
  for (uint32_t part = 0; part < spec.training.parts; ++part) {
    const std::string name = ResidualFile(part);
    if (manifest.files.count(name) == 0) {
      return absl::DataLossError(absl::StrCat(folder, ": the manifest does not list ", name));
    }
    const std::string path = absl::StrCat(folder, "/", name);
    EPS_ASSIGN_OR_RETURN(auto file, SafetensorsReader::Open(path));
    if (part == 0) {
      for (TensorUsePlace& use : UsesOfTensors(spec)) {
        if (file->Find(use.name).ok()) reader->tensors_.push_back(std::move(use));
      }
    }
    bool same = file->entries().size() == reader->tensors_.size();
    for (const TensorUsePlace& use : reader->tensors_) {
      const absl::StatusOr<const SafetensorsEntry*> found = file->Find(use.name);
      same = same && found.ok() && (*found)->dtype == "F32" &&
             (*found)->shape == EntryOf(spec, use).shape;
    }
    if (!same) {
      return absl::DataLossError(
          absl::StrCat(path, ": names, types and shapes are not those of the job's tensors"));
    }
    reader->parts_.push_back(std::move(file));
  }
  return reader;
}

absl::Status ResidualFiles::Read(uint32_t part, size_t tensor, uint64_t first, size_t count,
                                 float* out) const {
  EPS_CHECK(part < parts_.size() && tensor < tensors_.size());
  EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, parts_[part]->Find(tensors_[tensor].name));
  return parts_[part]->Read(*entry, first, count, out);
}

// ---------------------------------------------------------------- import

ResidualImport::ResidualImport(const ResidualFiles* from_or_null, const JobSpec& spec,
                               const ChunkMap& chunks, CodecTable codecs)
    : from_or_null_(from_or_null), spec_(spec), chunks_(chunks), codecs_(std::move(codecs)) {}

absl::StatusOr<std::unique_ptr<ResidualImport>> ResidualImport::Create(
    const ResidualFiles* from_or_null, const JobSpec& from_spec, const JobSpec& spec,
    const ChunkMap& chunks) {
  EPS_ASSIGN_OR_RETURN(CodecTable codecs, CodecTable::Build(spec, chunks));
  std::unique_ptr<ResidualImport> import(
      new ResidualImport(from_or_null, spec, chunks, std::move(codecs)));
  const std::vector<TensorUsePlace> wanted = UsesWithResiduals(spec, chunks, import->codecs_);
  const size_t there = from_or_null == nullptr ? 0 : from_or_null->tensors().size();
  if (there == 0 && wanted.empty()) return import;
  if (there == 0) {
    const std::string key = DifferingKey(from_spec, spec, /*format_only=*/false);
    import->note_ = absl::StrCat("what sparse gradients leave out starts at zero: ",
                                 key.empty() ? "the checkpoint does not hold it" : key);
    return import;
  }
  const std::string format = DifferingKey(from_spec, spec, /*format_only=*/true);
  if (!wanted.empty() && !format.empty()) {
    import->note_ = absl::StrCat("what sparse gradients leave out starts at zero: ", format);
    return import;
  }
  for (const TensorUsePlace& use : wanted) {
    for (size_t i = 0; i < there; ++i) {
      if (from_or_null->tensors()[i].name == use.name) import->taken_[{use.tensor, use.use}] = i;
    }
  }
  const size_t taken = import->taken_.size();
  if (taken == wanted.size() && taken == there) return import;
  const std::string key = DifferingKey(from_spec, spec, /*format_only=*/false);
  if (wanted.empty()) {
    import->note_ = absl::StrCat("what sparse gradients left out is dropped: ", key);
  } else {
    import->note_ =
        absl::StrCat("what sparse gradients leave out starts at zero for ", wanted.size() - taken,
                     " and is dropped for ", there - taken, " tensors: ", key);
  }
  return import;
}

std::vector<ResidualPlace> ResidualImport::PlacesOf(ChunkId id) const {
  std::vector<ResidualPlace> places;
  const Chunk& chunk = chunks_.chunk(id);
  for (const StageId use : chunk.uses) {
    const bool any =
        std::any_of(chunk.segments.begin(), chunk.segments.end(), [&](const Segment& segment) {
          return taken_.count({segment.tensor, use}) != 0;
        });
    if (!any) continue;
    for (uint32_t part = 0; part < spec_.training.parts; ++part) {
      places.push_back({id, use, PartId(part)});
    }
  }
  return places;
}

absl::StatusOr<std::string> ResidualImport::Read(const ResidualPlace& place) const {
  const Chunk& chunk = chunks_.chunk(place.chunk);
  std::vector<float> elements(chunk.elements);
  for (const Segment& segment : chunk.segments) {
    const auto tensor = taken_.find({segment.tensor, place.use});
    if (tensor == taken_.end()) continue;  // zeros
    EPS_RETURN_IF_ERROR(from_or_null_->Read(place.part.value(), tensor->second,
                                            segment.tensor_offset, segment.elements(),
                                            elements.data() + segment.offset));
  }
  const auto is_zero = [](float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits == 0;
  };
  if (std::all_of(elements.begin(), elements.end(), is_zero)) return std::string();
  const Bytes encoded = EncodeChunk(*ResidualCodec(spec_, codecs_, place.chunk), chunk,
                                    EncodeOptions(), elements.data());
  return std::string(encoded.view());
}

}  // namespace eps
