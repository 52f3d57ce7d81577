#include "storage/cuts/extents/extents.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/extents/extent_format.h"
#include "storage/cuts/extents/residual_stream.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGolden[] = "storage/cuts/extents/testdata/slot-1.eps";
constexpr char kPath[] = "/state/slot-1.eps";

JobSpec SpecOf(int width, uint64_t chunk_elements) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_embd = width;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = chunk_elements;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.0, &spec).ok());
  return spec;
}

// A shard that owns one chunk of 7 elements, and its files.
class ExtentsTest : public testing::Test {
 protected:
  ExtentsTest()
      : spec_(SpecOf(7, 1024)),
        chunks_(ChunkMap::Build(spec_)),
        layout_(chunks_, {ChunkId(1)}, /*arrays=*/3, /*residual_bytes=*/1000, /*parts=*/2),
        disk_({}),
        buffer_(static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, layout_.area(0).bytes())),
                std::free) {
    identity_.job = JobId(0x0123456789abcdef);
    identity_.digest.fill(0xd1);
    identity_.shard = 2;
    identity_.shards = 3;
    identity_.nonce = 0xfedcba9876543210;
  }

  void Create() {
    ASSERT_TRUE(disk_.CreateFolder("/state").ok());
    ASSERT_TRUE(Extents::Create(&disk_, {"/state"}, layout_, identity_).ok());
    extents_ = *Extents::Open(&disk_, {"/state"}, layout_, identity_);
  }
  // Element e of array a is a * 100 + e.
  void FillArrays() {
    std::memset(buffer_.get(), 0xff, layout_.area(0).bytes());
    for (size_t a = 0; a < 3; ++a) {
      auto* array = reinterpret_cast<float*>(buffer_.get() + a * layout_.area(0).stride_bytes);
      for (size_t e = 0; e < 7; ++e) array[e] = static_cast<float>(a * 100 + e);
    }
  }
  absl::Status Write(uint32_t slot) {
    absl::Status status = absl::UnknownError("not completed");
    extents_->Write(slot, 0, 0, absl::MakeConstSpan(buffer_.get(), layout_.area(0).bytes()),
                    [&](absl::Status s) { status = s; });
    return status;
  }
  absl::StatusOr<ExtentFooter> Read(uint32_t slot, Extents::Part part) {
    absl::Status status = absl::UnknownError("not completed");
    std::memset(buffer_.get(), 0xee, layout_.area(0).bytes());
    extents_->Read(slot, 0, part, buffer_.get(), [&](absl::Status s) { status = s; });
    if (!status.ok()) return status;
    return extents_->Check(slot, 0, part, buffer_.get());
  }

  const JobSpec spec_;
  const ChunkMap chunks_;
  const ExtentLayout layout_;
  ExtentIdentity identity_;
  SimulatedDisk disk_;
  const std::unique_ptr<uint8_t, void (*)(void*)> buffer_;
  std::unique_ptr<Extents> extents_;
};

TEST_F(ExtentsTest, WriteTheGoldenFile) {
  Create();
  FillArrays();
  extents_->Seal(1, 0, Version(17), Term(4), buffer_.get());
  ASSERT_TRUE(Write(1).ok());
  const std::string made = disk_.Contents(kPath);
  std::ifstream file(kGolden, std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (made != golden) {
    const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    if (outputs != nullptr) std::ofstream(std::string(outputs) + "/slot-1.eps") << made;
  }
  ASSERT_TRUE(made == golden) << "the format has changed: raise kVersion, or undo it";
}

TEST_F(ExtentsTest, ReadTheGoldenFile) {
  Create();
  std::ifstream file(kGolden, std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_EQ(golden.size(), layout_.file_bytes(0));
  const std::unique_ptr<uint8_t, void (*)(void*)> all(
      static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, golden.size())), std::free);
  std::memcpy(all.get(), golden.data(), golden.size());
  ASSERT_TRUE(
      WriteBlocking(extents_->residual_file(1), 0, absl::MakeConstSpan(all.get(), golden.size()))
          .ok());
  ASSERT_TRUE(Extents::CheckHeaders(&disk_, {"/state"}, layout_, identity_).ok());
  const auto footer = Read(1, Extents::Part::kAll);
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->version, Version(17));
  EXPECT_EQ(footer->term, Term(4));
  for (size_t a = 0; a < 3; ++a) {
    const auto* array = reinterpret_cast<float*>(buffer_.get() + a * layout_.area(0).stride_bytes);
    for (size_t e = 0; e < 7; ++e) EXPECT_EQ(array[e], static_cast<float>(a * 100 + e));
  }
}

TEST_F(ExtentsTest, FindEveryFlippedBit) {
  Create();
  FillArrays();
  const uint32_t crc = extents_->Seal(1, 0, Version(3), Term(1), buffer_.get()).crc32c;
  ASSERT_TRUE(Write(1).ok());
  const ExtentLayout::Area& area = layout_.area(0);
  for (uint64_t at = 0; at < area.bytes(); ++at) {
    const int bit = static_cast<int>(at % 8);
    const bool in_footer = at >= area.data_bytes;
    disk_.FlipBit(kPath, area.offset + at, bit);
    EXPECT_EQ(Read(1, Extents::Part::kFooter).ok(), !in_footer) << at;
    EXPECT_EQ(Read(1, Extents::Part::kWeights).ok(), !in_footer && at >= area.stride_bytes) << at;
    const absl::Status status = Read(1, Extents::Part::kAll).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at << ": " << status;
    // The last of the three arrays extends to the footer.
    const uint64_t begin = std::min(at / area.stride_bytes, uint64_t{2}) * area.stride_bytes;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(kPath), HasSubstr("chunk 1"), HasSubstr(" expected, "),
              HasSubstr("at offset " +
                        std::to_string(area.offset + (in_footer ? area.data_bytes : begin)))));
    disk_.FlipBit(kPath, area.offset + at, bit);
  }
  EXPECT_EQ(Read(1, Extents::Part::kAll)->crc32c, crc);
}

TEST_F(ExtentsTest, FindMisplacedWrites) {
  Create();
  FillArrays();
  extents_->Seal(0, 0, Version(3), Term(1), buffer_.get());
  ASSERT_TRUE(Write(1).ok());
  EXPECT_THAT(std::string(Read(1, Extents::Part::kAll).status().message()),
              HasSubstr("slot 1 expected, 0 found"));
  EXPECT_THAT(std::string(Read(0, Extents::Part::kAll).status().message()),
              HasSubstr("CRC32C 00000000 expected"));  // zeros
}

TEST_F(ExtentsTest, RefuseAnotherOwner) {
  Create();
  struct Case {
    const char* message;
    void (*change)(ExtentIdentity*);
  };
  const Case cases[] = {
      {"job 5 expected, 81985529216486895 found", [](ExtentIdentity* i) { i->job = JobId(5); }},
      {"shard 1 expected, 2 found", [](ExtentIdentity* i) { i->shard = 1; }},
      {"shards 4 expected, 3 found", [](ExtentIdentity* i) { i->shards = 4; }},
      {"nonce 9 expected, 18364758544493064720 found", [](ExtentIdentity* i) { i->nonce = 9; }},
      {"d1d1d1d1d1d1d1d1 found", [](ExtentIdentity* i) { i->digest[0] = 7; }},
  };
  for (const Case& c : cases) {
    ExtentIdentity other = identity_;
    c.change(&other);
    const absl::Status status = Extents::CheckHeaders(&disk_, {"/state"}, layout_, other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("/state/slot-0.eps"), HasSubstr(c.message)));
  }
  const ExtentLayout two(chunks_, {ChunkId(0), ChunkId(1)}, 3, 1000, 2);
  EXPECT_THAT(std::string(Extents::CheckHeaders(&disk_, {"/state"}, two, identity_).message()),
              HasSubstr("chunks 2 expected, 1 found"));
  for (uint64_t at = 0; at < kDiskBlock; at += 3) {
    disk_.FlipBit(kPath, at, 5);
    const absl::Status status = Extents::CheckHeaders(&disk_, {"/state"}, layout_, identity_);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("slot-1.eps: header at offset 0"));
    disk_.FlipBit(kPath, at, 5);
  }
  EXPECT_TRUE(Extents::CheckHeaders(&disk_, {"/state"}, layout_, identity_).ok());
}

// The area of a chunk with three arrays without gaps.
class ExtentsInPlace {
 public:
  ExtentsInPlace(int width, uint64_t elements)
      : spec_(SpecOf(width, elements)),
        chunks_(ChunkMap::Build(spec_)),
        layout_(chunks_, {ChunkId(0)}, /*arrays=*/3, /*residual_bytes=*/0, /*parts=*/1),
        disk_({}),
        buffer_(static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, area().bytes())), std::free) {
    EPS_CHECK(area().chunk->elements == elements);
    EPS_CHECK(disk_.CreateFolder("/state").ok());
    EPS_CHECK(Extents::Create(&disk_, {"/state"}, layout_, identity_).ok());
    extents_ = *Extents::Open(&disk_, {"/state"}, layout_, identity_);
    Buffer state(12 * elements);
    for (size_t i = 0; i < state.size(); ++i) state.data()[i] = static_cast<uint8_t>(i * i >> 7);
    state_ = std::move(state).Freeze();
  }

  const Extents& extents() const { return *extents_; }
  const Bytes& state() const { return state_; }
  // Writes garbage, then the state through the buffer, and returns what the file holds.
  std::string Copied() {
    Spoil();
    std::memcpy(buffer_.get(), state_.data(), state_.size());
    extents_->Seal(1, 0, Version(17), Term(4), buffer_.get());
    Write(0, buffer_.get(), area().bytes());
    return disk_.Contents(kPath);
  }
  // The same from where the state is.
  std::string InPlace() {
    Spoil();
    const uint64_t in_place = extents_->BytesInPlace(0, state_);
    Write(0, state_.data(), in_place);
    extents_->SealRest(1, 0, Version(17), Term(4), state_, buffer_.get());
    Write(in_place, buffer_.get() + in_place, area().bytes() - in_place);
    return disk_.Contents(kPath);
  }

 private:
  const ExtentLayout::Area& area() const { return layout_.area(0); }
  void Spoil() {
    std::memset(buffer_.get(), 0xee, area().bytes());
    Write(0, buffer_.get(), area().bytes());
  }
  void Write(uint64_t begin, const uint8_t* bytes, uint64_t size) {
    extents_->Write(1, 0, begin, absl::MakeConstSpan(bytes, size),
                    [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  }

  const JobSpec spec_;
  const ChunkMap chunks_;
  const ExtentLayout layout_;
  const ExtentIdentity identity_;
  SimulatedDisk disk_;
  const std::unique_ptr<uint8_t, void (*)(void*)> buffer_;
  std::unique_ptr<Extents> extents_;
  Bytes state_;
};

TEST(ExtentsInPlace, AreaEqualsACopiedOne) {
  struct Case {
    int width;
    uint64_t elements;
    uint64_t rest;  // bytes of the state that are not in whole blocks
  };
  // The padding of the last one begins a piece of its own.
  for (const Case& c : {Case{64, 4096, 0}, Case{40, 1280, 3072}, Case{1023, 65472, 3328}}) {
    SCOPED_TRACE(c.elements);
    ExtentsInPlace area(c.width, c.elements);
    EXPECT_EQ(area.extents().BytesInPlace(0, area.state()), 12 * c.elements - c.rest);
    EXPECT_TRUE(area.Copied() == area.InPlace());
  }
}

TEST(ExtentsInPlace, NeedsAlignedMemoryWithoutGaps) {
  ExtentsInPlace area(40, 1280);
  const Bytes larger = Bytes::CopyOf(std::string(64 + area.state().size(), 'x'));
  EXPECT_EQ(area.extents().BytesInPlace(0, larger.Sub(0, area.state().size())), 3 * kDiskBlock);
  EXPECT_EQ(area.extents().BytesInPlace(0, larger.Sub(64, area.state().size())), 0u);
  EXPECT_EQ(area.extents().BytesInPlace(0, Bytes()), 0u);
  ExtentsInPlace gaps(31, 31 * 31);  // 60 bytes between the arrays
  EXPECT_EQ(gaps.extents().BytesInPlace(0, gaps.state()), 0u);
}

TEST(ExtentLayout, SizesFootersForLargeChunks) {
  const JobSpec spec = SpecOf(8192, kMaxChunkElements);
  const ChunkMap chunks = ChunkMap::Build(spec);
  ASSERT_EQ(chunks.chunk(ChunkId(0)).elements, uint64_t{8192} * 8192);
  const ExtentLayout layout(chunks, {ChunkId(0), ChunkId(1)}, 3, 0, 1);
  const ExtentLayout::Area& area = layout.area(0);
  EXPECT_EQ(area.pieces, 3 * 1024u);
  EXPECT_EQ(area.data_bytes, uint64_t{12} * 8192 * 8192);
  EXPECT_EQ(area.footer_bytes, 4 * kDiskBlock);
  EXPECT_EQ(layout.area(1).offset, kDiskBlock + area.bytes());
  EXPECT_EQ(layout.file_bytes(0), layout.area(1).offset + layout.area(1).bytes());
  EXPECT_EQ(layout.residual_bytes(), 0u);
}

std::vector<CutResidual> Residuals() {
  std::vector<CutResidual> residuals;
  for (uint32_t i = 0; i < 5; ++i) {
    residuals.push_back({ChunkId(i), StageId(i * 2), PartId(i * 3),
                         Bytes::CopyOf(std::string(i * i * 11 % 64, static_cast<char>('a' + i)))});
  }
  return residuals;
}

TEST(ResidualStream, SurvivesPiecesOfAnySize) {
  const std::vector<CutResidual> residuals = Residuals();
  for (size_t piece = 1; piece < 300; ++piece) {
    ResidualWriter writer(residuals);
    MemoryAccount account;
    ResidualReader reader(writer.bytes(), &account);
    std::vector<uint8_t> buffer(piece);
    while (writer.left() > 0) {
      const size_t filled = writer.Fill(absl::MakeSpan(buffer));
      ASSERT_GT(filled, 0u);
      ASSERT_TRUE(reader.Take(absl::MakeConstSpan(buffer.data(), filled)).ok());
    }
    EXPECT_EQ(reader.crc32c(), writer.crc32c());
    const auto back = std::move(reader).Finish();
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->size(), residuals.size());
    for (size_t i = 0; i < residuals.size(); ++i) {
      EXPECT_EQ((*back)[i].chunk, residuals[i].chunk);
      EXPECT_EQ((*back)[i].use, residuals[i].use);
      EXPECT_EQ((*back)[i].part, residuals[i].part);
      EXPECT_TRUE((*back)[i].bytes.view() == residuals[i].bytes.view());
    }
  }
}

TEST(ResidualStream, ChecksEverySize) {
  const std::vector<CutResidual> residuals = Residuals();
  ResidualWriter writer(residuals);
  std::vector<uint8_t> run(writer.bytes());
  ASSERT_EQ(writer.Fill(absl::MakeSpan(run)), run.size());
  for (size_t at = 0; at < run.size(); ++at) {
    run[at] ^= 0x80;
    ResidualReader reader(run.size(), nullptr);
    const absl::Status status = reader.Take(run);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(!status.ok() || reader.crc32c() != writer.crc32c());
    run[at] ^= 0x80;
  }
  ResidualReader early(run.size() - 1, nullptr);
  const absl::Status taken = early.Take(absl::MakeConstSpan(run.data(), run.size() - 1));
  EXPECT_FALSE(taken.ok() && std::move(early).Finish().ok());
}

}  // namespace
}  // namespace eps
