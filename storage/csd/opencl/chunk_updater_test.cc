// Kernels in OpenCL C against those of the host, bit for bit. EPS_SHORT=1 in the environment takes
// fewer elements.

#include "storage/csd/opencl/chunk_updater.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "base/job/optimizers.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/testing/kernel_checks.h"
#include "storage/csd/kernels/chunk_kernels.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/csd/opencl/session.h"
#include "storage/cuts/extents/extent_seals.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps::opencl {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kNonce = 77;
// Kernels run over memory that begins here.
constexpr uint64_t kBegin = kDiskBlock;

bool IsShort() { return std::getenv("EPS_SHORT") != nullptr; }

// Has a chunk of more than 2^20 elements in ragged tiles.
JobSpec LargeSpec(const OptimizerSpec& optimizer) {
  JobSpec spec = TinySyntheticSpec();
  spec.optimizer = optimizer;
  spec.model.synthetic.n_layer = 1;
  spec.model.synthetic.n_embd = IsShort() ? 130 : 1030;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = uint64_t{2} << 20;
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.02, &spec).ok());
  return spec;
}

ChunkId LargestChunk(const JobSpec& spec) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto& all = chunks.chunks();
  return std::max_element(all.begin(), all.end(),
                          [](const Chunk& a, const Chunk& b) { return a.elements < b.elements; })
      ->id;
}

// A chunk with its gradient in memory of the host and in a device.
class TwoMemories {
 public:
  TwoMemories(const JobSpec& spec, ChunkId id)
      : spec_(spec), chunks_(ChunkMap::Build(spec_)), chunk_(chunks_.chunk(id)) {
    session_ = *Session::Open("csd-0", 0);
    buffer_ = *session_->NewBuffer(CL_MEM_READ_WRITE, kBegin + bytes());
    updater_ = *ChunkUpdater::New(spec_, session_.get(), {buffer_, kBegin, bytes()}, &account_);
    kernel_.from = {0, chunk_.id, kNonce, 1};
    kernel_.gradient_at = area().bytes();
    kernel_.from_version = Version(4);
    kernel_.to_slot = 0;
    kernel_.to = Version(5);
    kernel_.term = Term(3);
    kernel_.step = ScalarsOfUpdate(spec_.optimizer, 5);
    kernel_.norm_scale = 0.37f;
    kernel_.gradient_codec = "fp32";
    kernel_.gradient_bytes = chunk_.elements * sizeof(float);
  }

  const Chunk& chunk() const { return chunk_; }
  csd::UpdateKernel* kernel() { return &kernel_; }
  const ExtentLayout::Area& area() const { return seals_.layout().area(0); }
  uint64_t bytes() const { return area().bytes() + area().gradient_bytes; }
  uint8_t* memory() { return reinterpret_cast<uint8_t*>(arena_->floats()); }
  float* array(size_t i) { return arena_->floats() + i * area().stride_bytes / sizeof(float); }
  float* gradient() { return arena_->floats() + area().bytes() / sizeof(float); }
  absl::Span<uint8_t> all() { return absl::MakeSpan(memory(), bytes()); }

  // Seals the chunk, and copies all to the device.
  void Seal() {
    kernel_.from_crc32c = seals_.Seal(1, 0, Version(4), Term(2), memory()).crc32c;
    kernel_.gradient_crc32c = Crc32c(
        absl::string_view(reinterpret_cast<const char*>(gradient()), kernel_.gradient_bytes));
    Send();
  }
  void Send() { ASSERT_TRUE(session_->Write(buffer_, kBegin, all()).ok()); }
  std::vector<uint8_t> InDevice() {
    std::vector<uint8_t> found(bytes());
    EXPECT_TRUE(session_->Read(buffer_, kBegin, absl::MakeSpan(found)).ok());
    return found;
  }
  absl::StatusOr<std::string> RunInDevice(const csd::Kernel& kernel) {
    return updater_->Run(csd::Encode(kernel), 0, bytes());
  }
  absl::StatusOr<std::string> RunOnHost(const csd::Kernel& kernel) {
    const auto kernels = *csd::ChunkKernels::New(spec_, &account_);
    return kernels->Run(csd::Encode(kernel), all());
  }
  absl::StatusOr<ExtentFooter> CheckOnHost(const std::vector<uint8_t>& bytes) const {
    return seals_.Check(0, 0, ExtentSeals::Part::kAll, bytes.data());
  }

 private:
  const JobSpec spec_;
  const ChunkMap chunks_;
  const Chunk& chunk_;
  const ExtentSeals seals_{
      ExtentLayout(chunks_, {chunk_.id}, 1 + StateFields(spec_.optimizer).size(), 0,
                   spec_.training.parts),
      kNonce,
      {"/here"}};
  const std::unique_ptr<StateArena> arena_ = *StateArena::New(bytes());
  MemoryAccount account_;
  std::unique_ptr<Session> session_;
  cl_mem buffer_ = nullptr;
  std::unique_ptr<ChunkUpdater> updater_;
  csd::UpdateKernel kernel_;
};

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr float kScale = 0.55f;

// Values at the edges of formats and ranges, of either sign: zeros, denormals, the least normal
// numbers and those around them, powers of two, full mantissas, and the largest gradient.
float Edge(Random* random) {
  const uint32_t sign = random->Next() & 0x80000000u;
  const uint32_t mantissa = random->Next() & 0x7fffffu;
  const uint32_t exponent = random->Next() % 176 + 1;  // below 2^50
  switch (random->Next() % 8) {
    case 0:
      return FromBits(sign);
    case 1:
      return FromBits(sign | mantissa);
    case 2:
      return FromBits(sign | (random->Next() % 4 << 23 | mantissa));
    case 3:
      return FromBits(sign | exponent << 23);
    case 4:
      return FromBits(sign | (exponent << 23 | 0x7fffffu));
    case 5:
      // Just below 2^50, and a number whose product with kScale rounds up to the least normal one.
      return FromBits(sign | (random->Next() % 2 == 0 ? 0x587fffffu : 0x00e8ba2eu));
    default:
      return FromBits(sign | (exponent << 23 | mantissa));
  }
}

// Fills the arrays of the chunk. Sums of squares, as some optimizers keep last, are not negative.
void FillWithEdges(const std::vector<float>& edges, size_t fields, TwoMemories* of) {
  const size_t n = of->chunk().elements;
  const auto copy = [&](size_t from, float* to) {
    std::copy(edges.begin() + static_cast<ptrdiff_t>(from),
              edges.begin() + static_cast<ptrdiff_t>(from + n), to);
  };
  copy(0, of->gradient());
  for (size_t i = 0; i <= fields; ++i) copy((i + 1) * n, of->array(i));
  float* const last = of->array(fields);
  if (fields > 0) std::transform(last, last + n, last, [](float x) { return std::fabs(x); });
}

// The defaults of each optimizer, each with one half for every number, and Nesterov's momentum.
std::vector<OptimizerSpec> Specs() {
  std::vector<OptimizerSpec> specs;
  for (const OptimizerRow& row : Optimizers()) {
    OptimizerSpec spec;
    static_cast<OptimizerSettings&>(spec) = row.defaults;
    specs.push_back(spec);
    for (const OptimizerParameter* const parameter : row.parameters) {
      for (const OptimizerNumber& number : parameter->numbers) spec.*number.value = 0.5;
    }
    specs.push_back(spec);
  }
  OptimizerSpec nesterov;
  nesterov.name = OptimizerName::kSgd;
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  specs.push_back(nesterov);
  return specs;
}

TEST(ChunkUpdater, EdgesHaveTheBitsOfTheHost) {
  Random random;
  std::vector<float> edges;
  for (const OptimizerSpec& optimizer : Specs()) {
    SCOPED_TRACE(testing::Message()
                 << NameOf(optimizer.name) << ", momentum " << optimizer.momentum);
    const JobSpec spec = LargeSpec(optimizer);
    TwoMemories of(spec, LargestChunk(spec));
    ASSERT_GE(of.chunk().elements, uint64_t{1} << (IsShort() ? 14 : 20));
    while (edges.size() < (2 + kMaxStateFields) * of.chunk().elements) {
      edges.push_back(Edge(&random));
    }
    const size_t fields = StateFields(optimizer).size();
    for (const uint64_t update : {1, 5}) {
      of.kernel()->step = ScalarsOfUpdate(optimizer, update);
      of.kernel()->step.grad_scale = update == 1 ? kScale : 0x1p-12f;
      if (RowOf(optimizer.name).adapts) {
        of.kernel()->trust_ratios.resize(of.chunk().segments.size(), 1.7);
      }
      FillWithEdges(edges, fields, &of);
      of.Seal();
      const auto in_device = of.RunInDevice(*of.kernel());
      ASSERT_TRUE(in_device.ok()) << in_device.status();
      const auto on_host = of.RunOnHost(*of.kernel());
      ASSERT_TRUE(on_host.ok()) << on_host.status();
      const std::vector<uint8_t> found = of.InDevice();
      for (size_t i = 0; i <= fields; ++i) {
        ExpectSame(of.array(i),
                   reinterpret_cast<const float*>(found.data() + i * of.area().stride_bytes),
                   of.chunk().elements, i == 0 ? "weight" : "field");
      }
      EXPECT_EQ(csd::DecodeUpdateKernelResult(*in_device)->sum_squares,
                csd::DecodeUpdateKernelResult(*on_host)->sum_squares);
      const auto footer = of.CheckOnHost(found);
      ASSERT_TRUE(footer.ok()) << footer.status();
      EXPECT_EQ(footer->crc32c, csd::DecodeUpdateKernelResult(*in_device)->crc32c);
    }
  }
}

// Every chunk of a job, with ragged sizes and many segments: all bytes and results are the host's.
TEST(ChunkUpdater, ChunksHaveTheBytesOfTheHost) {
  for (const OptimizerName name : {OptimizerName::kAdamW, OptimizerName::kLamb}) {
    for (JobSpec spec : {RaggedSpec(), TinySyntheticSpec()}) {
      static_cast<OptimizerSettings&>(spec.optimizer) = DefaultsOf(name);
      const ChunkMap chunks = ChunkMap::Build(spec);
      for (const Chunk& chunk : {chunks.chunks().front(), chunks.chunks().back()}) {
        TwoMemories of(spec, chunk.id);
        Random random;
        for (uint64_t i = 0; i < chunk.elements; ++i) {
          of.gradient()[i] = random.Wide();
          of.array(0)[i] = random.Uniform();
          of.array(1)[i] = random.Wide();
          of.array(2)[i] = std::fabs(random.Wide());
        }
        of.Seal();
        if (name == OptimizerName::kLamb) {
          EXPECT_EQ(*of.RunInDevice(csd::MeasureKernel{*of.kernel()}),
                    *of.RunOnHost(csd::MeasureKernel{*of.kernel()}));
          of.kernel()->trust_ratios.resize(chunk.segments.size(), 1.25);
        }
        EXPECT_EQ(*of.RunInDevice(csd::CheckKernel{of.kernel()->from}),
                  *of.RunOnHost(csd::CheckKernel{of.kernel()->from}));
        EXPECT_EQ(*of.RunInDevice(*of.kernel()), *of.RunOnHost(*of.kernel()));
        EXPECT_EQ(std::memcmp(of.InDevice().data(), of.memory(), of.bytes()), 0);
      }
    }
  }
}

// Refused kernels leave the memory of the device as it was.
class RefusedKernelTest : public testing::Test {
 protected:
  RefusedKernelTest() {
    for (uint64_t i = 0; i < of_.chunk().elements; ++i) {
      of_.gradient()[i] = static_cast<float>(i % 7) - 3;
      for (size_t f = 0; f < 3; ++f) of_.array(f)[i] = 1;
    }
    of_.Seal();
  }
  void ExpectRefused(const csd::Kernel& kernel, absl::StatusCode code, const std::string& what) {
    const std::vector<uint8_t> before = of_.InDevice();
    const absl::Status status = of_.RunInDevice(kernel).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_TRUE(of_.InDevice() == before);
  }

  const JobSpec spec_ = RaggedSpec();
  TwoMemories of_{spec_, ChunkId(1)};
};

TEST_F(RefusedKernelTest, DamageAnywhereIsRefused) {
  const ExtentLayout::Area& area = of_.area();
  const std::vector<std::pair<uint64_t, std::string>> places = {
      {0, "piece 0: CRC32C"},
      {area.stride_bytes + 5, "piece 1: CRC32C"},
      {area.data_bytes - 1, "piece 2: CRC32C"},
      {area.data_bytes + 9, "footer of chunk 1 at offset"},
      {area.bytes() - 2, "footer of chunk 1 at offset"},
      {area.bytes(), "the gradient of chunk 1 in device memory"},
      {area.bytes() + of_.kernel()->gradient_bytes - 1, "the gradient of chunk 1"}};
  for (const auto& [at, what] : places) {
    of_.memory()[at] = static_cast<uint8_t>(of_.memory()[at] ^ 4);
    of_.Send();
    ExpectRefused(*of_.kernel(), absl::StatusCode::kDataLoss, what);
    of_.memory()[at] = static_cast<uint8_t>(of_.memory()[at] ^ 4);
  }
  of_.Send();
  EXPECT_TRUE(of_.RunInDevice(*of_.kernel()).ok());
}

TEST_F(RefusedKernelTest, OtherContentIsRefused) {
  csd::UpdateKernel kernel = *of_.kernel();
  kernel.from.slot = 0;
  ExpectRefused(kernel, absl::StatusCode::kDataLoss, "slot 0 expected, 1 found");
  kernel = *of_.kernel();
  kernel.from.nonce = kNonce + 1;
  ExpectRefused(kernel, absl::StatusCode::kDataLoss, "nonce 78 expected, 77 found");
  kernel = *of_.kernel();
  kernel.from_crc32c ^= 1;
  ExpectRefused(kernel, absl::StatusCode::kDataLoss, "version 4 as written last expected");
  kernel = *of_.kernel();
  kernel.to = Version(6);
  ExpectRefused(kernel, absl::StatusCode::kInvalidArgument, "is not one step");
}

TEST_F(RefusedKernelTest, InfiniteGradientsAreNamed) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    of_.gradient()[1234] = value;
    of_.Seal();
    ExpectRefused(*of_.kernel(), absl::StatusCode::kInvalidArgument, "element 1234 is not finite");
  }
}

TEST_F(RefusedKernelTest, CodecsAreRefused) {
  csd::UpdateKernel kernel = *of_.kernel();
  kernel.gradient_codec = "bf16";
  ExpectRefused(kernel, absl::StatusCode::kInvalidArgument, "has no codecs");
  csd::EncodeKernel encode;
  encode.from = kernel.from;
  encode.codec = "bf16";
  ExpectRefused(encode, absl::StatusCode::kUnimplemented, "cannot encode weights in bf16");
  ExpectRefused(csd::MeasureKernel{kernel}, absl::StatusCode::kInvalidArgument, "does not adapt");
}

TEST_F(RefusedKernelTest, PlacesOutsideAreRefused) {
  for (const uint64_t at : {of_.bytes(), ~uint64_t{0}}) {
    csd::UpdateKernel kernel = *of_.kernel();
    kernel.gradient_at = at;
    ExpectRefused(kernel, absl::StatusCode::kInvalidArgument, "kernel for chunk 1: ");
    kernel = *of_.kernel();
    kernel.from.at = at;
    ExpectRefused(kernel, absl::StatusCode::kInvalidArgument, "kernel for chunk 1: ");
  }
  csd::UpdateKernel kernel = *of_.kernel();
  kernel.from.chunk = ChunkId(1000);
  ExpectRefused(kernel, absl::StatusCode::kInvalidArgument, "kernel for chunk 1000: the job has");
}

}  // namespace
}  // namespace eps::opencl
