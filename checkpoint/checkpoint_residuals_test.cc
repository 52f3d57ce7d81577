#include "checkpoint/checkpoint_residuals.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/testing/test_specs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_report.h"
#include "compression/codec.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

JobSpec SpecOf(const std::string& residual = "bf16") {
  JobSpec spec = TinyGpt2Spec();
  spec.training.parts = 3;
  spec.codecs.gradients = "topk:0.1";
  spec.codecs.embedding.gradients = "topk:0.1";  // of which one is tied to the head
  spec.codecs.norm.gradients = "topk:0.1";       // several tensors to a chunk
  spec.codecs.residual = residual;
  spec.codecs.warmup_steps = 2;
  return spec;
}

// By tensor of UsesOfTensors.
using Floats = std::vector<std::vector<float>>;

class CheckpointResidualsTest : public testing::Test {
 protected:
  CheckpointResidualsTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/residuals-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
  }
  ~CheckpointResidualsTest() override { fs::remove_all(root_); }

  // Values of all sizes and signs, some of them zero, that tell part, use and place.
  static Floats ValuesOf(const JobSpec& spec, uint32_t part) {
    Floats values;
    const std::vector<TensorUsePlace> uses = UsesOfTensors(spec);
    for (size_t u = 0; u < uses.size(); ++u) {
      values.emplace_back(spec.tensors[uses[u].tensor.value()].elements());
      for (size_t i = 0; i < values.back().size(); ++i) {
        const uint32_t mixed =
            static_cast<uint32_t>((i + 1) * 2654435761u + u * 40503u + part * 97);
        const int exponent = static_cast<int>(mixed >> 27) - 20;
        const float sign = (mixed & 64) != 0 ? -1.0f : 1.0f;
        values.back()[i] =
            i % 10 == 3 ? 0.0f : sign * std::ldexp(1.0f + (mixed & 63) / 64.0f, exponent);
      }
    }
    return values;
  }

  // A chunk's elements as stage `use` left them out.
  static std::vector<float> ElementsOf(const JobSpec& spec, const Chunk& chunk, StageId use,
                                       const Floats& values) {
    std::vector<float> elements(chunk.elements);
    const std::vector<TensorUsePlace> uses = UsesOfTensors(spec);
    for (const Segment& s : chunk.segments) {
      for (size_t u = 0; u < uses.size(); ++u) {
        if (uses[u].tensor != s.tensor || uses[u].use != use) continue;
        std::memcpy(&elements[s.offset], &values[u][s.tensor_offset], s.elements() * sizeof(float));
      }
    }
    return elements;
  }

  static std::string Encode(const JobSpec& spec, const Chunk& chunk,
                            const std::vector<float>& elements) {
    const Codec* codec = *FindCodec(spec.codecs.residual);
    return std::string(EncodeChunk(*codec, chunk, EncodeOptions(), elements.data()).view());
  }

  // A writer that has the state, of zeros.
  std::unique_ptr<CheckpointWriter> NewWriter(const JobSpec& spec, const ChunkMap& chunks) {
    auto writer = CheckpointWriter::Create(root_, 5, spec, chunks);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const Chunk& chunk : chunks.chunks()) {
      EXPECT_TRUE((*writer)->WriteChunk(chunk.id, ChunkState(StateBytes(spec, chunk), '\0')).ok());
    }
    return *std::move(writer);
  }

  // Writes root_/checkpoint-5 with residuals of all places but those of `left_out`.
  void Write(const JobSpec& spec, const PartId* left_out = nullptr) {
    const ChunkMap chunks = ChunkMap::Build(spec);
    const auto writer = NewWriter(spec, chunks);
    for (uint32_t part = 0; part < spec.training.parts; ++part) {
      if (left_out != nullptr && PartId(part) == *left_out) continue;
      const Floats values = ValuesOf(spec, part);
      for (const Chunk& chunk : chunks.chunks()) {
        const TensorSpec& tensor = spec.tensors[chunk.segments[0].tensor.value()];
        if (tensor.rank == 1 && spec.codecs.norm.gradients == "fp32") continue;
        for (const StageId use : chunk.uses) {
          const absl::Status status =
              writer->WriteResidual({chunk.id, use, PartId(part)},
                                    Encode(spec, chunk, ElementsOf(spec, chunk, use, values)));
          ASSERT_TRUE(status.ok()) << status;
        }
      }
    }
    const absl::Status status = writer->Commit({5, 5, 5, 1, 0}, FilesOfJob(spec));
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string Checkpoint() const { return root_ + "/checkpoint-5"; }

  std::unique_ptr<CheckpointReader> Open() const {
    auto reader = CheckpointReader::Open(Checkpoint());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }

  // Makes the manifest list exactly the files that are there.
  void Relist(const std::vector<std::string>& remove, const std::vector<std::string>& add = {}) {
    CheckpointManifest manifest = *ReadManifest(Checkpoint());
    for (const std::string& name : remove) manifest.files.erase(name);
    for (const std::string& name : add) {
      manifest.files[name] = *SumFile(Checkpoint() + "/" + name);
    }
    std::ofstream(Checkpoint() + "/" + kManifestFile, std::ios::trunc) << ManifestText(manifest);
  }

  static std::string NoteOf(const CheckpointReader& reader, const JobSpec& spec) {
    const ChunkMap chunks = ChunkMap::Build(spec);
    const auto import =
        ResidualImport::Create(reader.residuals_or_null(), reader.spec(), spec, chunks);
    EXPECT_TRUE(import.ok()) << import.status();
    return import.ok() ? (*import)->note() : "";
  }

  std::string root_;
};

TEST_F(CheckpointResidualsTest, NamesTensorsOfSeveralStagesByStage) {
  const JobSpec spec = SpecOf();
  const std::vector<TensorUsePlace> uses = UsesOfTensors(spec);
  ASSERT_EQ(uses.size(), spec.tensors.size() + 1);
  EXPECT_EQ(uses[0].name, "transformer.wte.weight@0");
  EXPECT_EQ(uses[0].use, StageId(0));
  EXPECT_EQ(uses[1].name, "transformer.wte.weight@3");
  EXPECT_EQ(uses[1].use, StageId(3));
  EXPECT_EQ(uses[1].tensor, TensorId(0));
  EXPECT_EQ(uses[2].name, "transformer.wpe.weight");
}

TEST_F(CheckpointResidualsTest, HoldsFloatsPerPartTensorAndUse) {
  const JobSpec spec = SpecOf("fp32");
  Write(spec);
  const std::vector<TensorUsePlace> uses = UsesOfTensors(spec);
  for (uint32_t part = 0; part < 3; ++part) {
    const Floats values = ValuesOf(spec, part);
    const auto file = SafetensorsReader::Open(
        absl::StrCat(Checkpoint(), "/eps/residual-0000", part, ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->entries().size(), uses.size());
    for (size_t u = 0; u < uses.size(); ++u) {
      const SafetensorsEntry& entry = (*file)->entries()[u];
      EXPECT_EQ(entry.name, uses[u].name);
      EXPECT_EQ(entry.dtype, "F32");
      const TensorSpec& tensor = spec.tensors[uses[u].tensor.value()];
      EXPECT_EQ(entry.shape, tensor.rank == 2 ? std::vector<uint64_t>({tensor.rows, tensor.cols})
                                              : std::vector<uint64_t>({tensor.cols}));
      std::vector<float> found(values[u].size());
      ASSERT_TRUE((*file)->Read(entry, 0, found.size(), found.data()).ok());
      EXPECT_EQ(found, values[u]) << entry.name;
    }
  }
  EXPECT_FALSE(fs::exists(Checkpoint() + "/eps/residual-00003.safetensors"));
}

// What a resume gives the servers is, bit for bit, what they had, in every codec that may hold
// residuals and however the chunks are cut.
TEST_F(CheckpointResidualsTest, ReadsTheSameBytesForAnyChunks) {
  int codecs = 0;
  for (const std::string& name : CodecExamples()) {
    if (!(*FindCodec(name))->traits().fixed_size) continue;
    SCOPED_TRACE(name);
    ++codecs;
    const JobSpec spec = SpecOf(name);
    Write(spec);
    const auto reader = Open();
    const std::vector<Floats> values = {ValuesOf(spec, 0), ValuesOf(spec, 1), ValuesOf(spec, 2)};
    for (const uint64_t chunk_elements : {spec.chunk_elements, uint64_t{2048}, uint64_t{1} << 20}) {
      JobSpec other = spec;
      other.chunk_elements = chunk_elements;
      const ChunkMap chunks = ChunkMap::Build(other);
      const auto import =
          ResidualImport::Create(reader->residuals_or_null(), reader->spec(), other, chunks);
      ASSERT_TRUE(import.ok()) << import.status();
      EXPECT_EQ((*import)->note(), "");
      size_t places = 0, equal = 0;
      for (const Chunk& chunk : chunks.chunks()) {
        for (const ResidualPlace& place : (*import)->PlacesOf(chunk.id)) {
          const auto found = (*import)->Read(place);
          ASSERT_TRUE(found.ok()) << found.status();
          ++places;
          const std::vector<float> elements =
              ElementsOf(other, chunk, place.use, values[place.part.value()]);
          equal += *found == Encode(other, chunk, elements) ? 1 : 0;
        }
      }
      EXPECT_EQ(equal, places) << chunk_elements;
      size_t expected = 0;
      for (const Chunk& chunk : chunks.chunks()) expected += 3 * chunk.uses.size();
      EXPECT_EQ(places, expected);
    }
  }
  EXPECT_GE(codecs, 5);
}

TEST_F(CheckpointResidualsTest, WritesZerosAndSendsNothingWithoutResiduals) {
  const JobSpec spec = SpecOf();
  const PartId absent(1);
  Write(spec, &absent);
  const auto reader = Open();
  ASSERT_NE(reader->residuals_or_null(), nullptr);
  std::vector<float> found(64, 1.0f);
  ASSERT_TRUE(reader->residuals_or_null()->Read(1, 0, 0, 64, found.data()).ok());
  EXPECT_EQ(found, std::vector<float>(64, 0.0f));
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto import =
      ResidualImport::Create(reader->residuals_or_null(), reader->spec(), spec, chunks);
  ASSERT_TRUE(import.ok());
  for (uint32_t part = 0; part < 3; ++part) {
    EXPECT_EQ((*import)->Read({ChunkId(0), StageId(0), PartId(part)})->empty(), part == 1);
  }
}

TEST_F(CheckpointResidualsTest, RefusesWhatTheJobDoesNotKeep) {
  JobSpec spec = SpecOf();
  spec.codecs.norm.gradients = "fp32";
  const ChunkMap chunks = ChunkMap::Build(spec);
  const Chunk* matrix = nullptr;
  const Chunk* norm = nullptr;
  for (const Chunk& chunk : chunks.chunks()) {
    const bool rank1 = spec.tensors[chunk.segments[0].tensor.value()].rank == 1;
    (rank1 ? norm : matrix) = &chunk;
  }
  const auto writer = NewWriter(spec, chunks);
  const std::string good = Encode(spec, *matrix, std::vector<float>(matrix->elements, 1.0f));
  struct Case {
    ResidualPlace place;
    std::string encoded;
    const char* says;
  };
  const StageId use = matrix->uses[0];
  for (const Case& c : {Case{{norm->id, norm->uses[0], PartId(0)}, good, "keeps none"},
                        {{matrix->id, StageId(use.value() + 1), PartId(0)}, good, "keeps none"},
                        {{matrix->id, StageId(77), PartId(0)}, good, "keeps none"},
                        {{matrix->id, use, PartId(3)}, good, "keeps none"},
                        {{ChunkId(9999), use, PartId(0)}, good, "keeps none"},
                        {{matrix->id, use, PartId(0)}, good.substr(1), "bytes"},
                        {{matrix->id, use, PartId(1)}, good, ""},
                        {{matrix->id, use, PartId(1)}, good, "came twice"}}) {
    const absl::Status status = writer->WriteResidual(c.place, c.encoded);
    EXPECT_EQ(status.code(), *c.says == '\0' ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << c.says << ": " << status;
  }
}

TEST_F(CheckpointResidualsTest, AJobWithoutResidualsWritesNoFiles) {
  JobSpec spec = SpecOf();
  spec.codecs.error_feedback = false;
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto writer = NewWriter(spec, chunks);
  const ChunkId first = chunks.chunks()[0].id;
  EXPECT_FALSE(writer->WriteResidual({first, StageId(0), PartId(0)}, "x").ok());
  ASSERT_TRUE(writer->Commit({5, 5, 5, 1, 0}, FilesOfJob(spec)).ok());
  EXPECT_FALSE(fs::exists(Checkpoint() + "/eps/residual-00000.safetensors"));
  EXPECT_EQ(Open()->residuals_or_null(), nullptr);
  const auto digest = CheckpointDigest(Checkpoint());
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_FALSE(absl::StrContains(*digest, "residuals")) << *digest;
}

TEST_F(CheckpointResidualsTest, DigestsFloatsPartByPart) {
  JobSpec spec = SpecOf("fp32");
  Write(spec);
  Sha256 sha256;
  for (uint32_t part = 0; part < 3; ++part) {
    for (const std::vector<float>& tensor : ValuesOf(spec, part)) {
      sha256.Update({reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(float)});
    }
  }
  const auto digest = CheckpointDigest(Checkpoint());
  ASSERT_TRUE(digest.ok()) << digest.status();
  const std::string line = absl::StrCat("\nresiduals sha256:", ToHex(sha256.Finish()), "\n");
  EXPECT_TRUE(absl::EndsWith(*digest, line)) << *digest << line;
  spec.chunk_elements /= 2;
  Write(spec);
  EXPECT_EQ(*CheckpointDigest(Checkpoint()), *digest) << "chunks are no part of it";
}

TEST_F(CheckpointResidualsTest, DamageIsFoundAndTheFileNamed) {
  const JobSpec spec = SpecOf();
  Write(spec);
  const std::string name = "eps/residual-00001.safetensors";
  const std::string path = Checkpoint() + "/" + name;
  const auto refuses = [&](const std::string& says) {
    std::string report;
    const absl::Status verified = VerifyCheckpoint(Checkpoint(), &report);
    EXPECT_EQ(verified.code(), absl::StatusCode::kDataLoss) << verified;
    EXPECT_TRUE(absl::StrContains(verified.message(), says)) << says << ": " << verified;
    const absl::Status opened = CheckpointReader::Open(Checkpoint()).status();
    EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
  };
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(path) - 7));
    file.put('\x55');
  }
  refuses(name);
  // Of other tensors than the first part's.
  JobSpec fewer = spec;
  fewer.codecs.norm.gradients = "fp32";
  const std::string root = std::exchange(root_, root_ + "/fewer");
  Write(fewer);
  fs::copy_file(Checkpoint() + "/" + name, path, fs::copy_options::overwrite_existing);
  root_ = root;
  Relist({}, {name});
  refuses(name);
  Relist({name});
  refuses("residuals of 2 parts");
  Relist({}, {"eps/residual-00002.safetensors"});
  fs::copy_file(Checkpoint() + "/eps/residual-00002.safetensors",
                Checkpoint() + "/eps/residual-00009.safetensors");
  Relist({}, {"eps/residual-00009.safetensors"});
  refuses("does not list " + name);
}

TEST_F(CheckpointResidualsTest, SaysWhichResidualsAreDroppedAndWhy) {
  const JobSpec spec = SpecOf();
  Write(spec);
  const auto reader = Open();
  EXPECT_EQ(NoteOf(*reader, spec), "");
  JobSpec same = spec;  // what these decide does not change what was left out
  same.codecs.gradients = "topk:0.2";
  same.codecs.residual_home = ResidualHome::kWorker;
  same.codecs.warmup_steps = 9;
  EXPECT_EQ(NoteOf(*reader, same), "");

  JobSpec other = spec;
  other.training.parts = 2;
  EXPECT_EQ(NoteOf(*reader, other),
            "what sparse gradients leave out starts at zero: training.parts: 3 there, 2 here");
  other = spec;
  other.codecs.residual = "mx9";
  other.codecs.gradients = "topk:0.2";
  EXPECT_EQ(NoteOf(*reader, other),
            "what sparse gradients leave out starts at zero: quantization.residual: bf16 there, "
            "mx9 here");
  const ChunkMap chunks = ChunkMap::Build(other);
  const auto import =
      ResidualImport::Create(reader->residuals_or_null(), reader->spec(), other, chunks);
  for (const Chunk& chunk : chunks.chunks()) EXPECT_TRUE((*import)->PlacesOf(chunk.id).empty());

  other = spec;
  other.codecs.error_feedback = false;
  EXPECT_EQ(NoteOf(*reader, other),
            "what sparse gradients left out is dropped: quantization.error_feedback: true there, "
            "false here");
  other = spec;
  other.codecs.embedding.gradients = "bf16";
  EXPECT_EQ(NoteOf(*reader, other),
            "what sparse gradients leave out starts at zero for 0 and is dropped for 3 tensors: "
            "quantization.embedding_gradients: topk:0.1 there, bf16 here");
}

TEST_F(CheckpointResidualsTest, MissingResidualsStartAtZero) {
  JobSpec spec = SpecOf();
  Write(spec);
  Relist({ResidualFile(0), ResidualFile(1), ResidualFile(2)});  // as of an earlier program
  EXPECT_EQ(NoteOf(*Open(), spec),
            "what sparse gradients leave out starts at zero: the checkpoint does not hold it");
  JobSpec dense = spec;
  dense.codecs = CodecSpec();
  EXPECT_EQ(NoteOf(*Open(), dense), "");

  fs::remove_all(root_);
  const ChunkMap chunks = ChunkMap::Build(dense);
  ASSERT_TRUE(NewWriter(dense, chunks)->Commit({5, 5, 5, 1, 0}, FilesOfJob(dense)).ok());
  EXPECT_EQ(NoteOf(*Open(), spec),
            "what sparse gradients leave out starts at zero: quantization.gradients: fp32 there, "
            "topk:0.1 here");
  EXPECT_EQ(NoteOf(*Open(), dense), "");
}

}  // namespace
}  // namespace eps
