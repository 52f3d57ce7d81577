// Updates inside storage devices (Smart-Infinity, sections 4.1 and 7.1): the state is that of
// memory, bit for bit, and the links carry the bytes of the paper.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/job/optimizers.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/csd/link_bytes.h"
#include "storage/csd/process/device_process.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kDramBytes = uint64_t{8} << 20;

JobSpec InMode(Mode mode, JobSpec spec) {
  spec.training.mode = mode;
  return spec;
}

// Returns the layout of a slot of a job with AdamW.
ExtentLayout LayoutOf(const ShardUnderTest& shard) {
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  return ExtentLayout(shard.chunks(), owned, /*arrays=*/3, 0, shard.spec().training.parts);
}

// Where reduced gradients wait for their update.
enum class Waiting { kOnHost, kOnMedium, kInDevice };
// "OnHost"
std::string NameOf(Waiting waiting) {
  return waiting == Waiting::kOnHost     ? "OnHost"
         : waiting == Waiting::kOnMedium ? "OnMedium"
                                         : "InDevice";
}

// How devices move chunks.
enum class Handler { kNaive, kHandover, kPipelined };
std::string NameOf(Handler handler) {
  return handler == Handler::kNaive ? "Naive" : handler == Handler::kHandover ? "Handover" : "Sets";
}
// Sets what storage.csd.handler sets.
void Use(Handler handler, bool encodes, RigOptions* options) {
  if (handler != Handler::kPipelined) options->sets = 1;
  options->hands_buffers_over = handler == Handler::kHandover;
  options->encodes_weights = encodes;
  options->reads_weights_back = handler != Handler::kPipelined && !encodes;
}

// Whether the devices are processes, where gradients wait, and the mode.
using Way = std::tuple<bool, Waiting, Mode>;

class CsdTierTest : public testing::TestWithParam<Way> {
 protected:
  static RigOptions Options() {
    RigOptions options;
    options.processes = std::get<0>(GetParam());
    options.gradients_on_disk = std::get<1>(GetParam()) != Waiting::kOnHost;
    options.gradients_in_memory = std::get<1>(GetParam()) == Waiting::kInDevice;
    options.dram_bytes = kDramBytes;
    return options;
  }
  static JobSpec Spec(JobSpec spec) { return InMode(std::get<2>(GetParam()), std::move(spec)); }
};

TEST_P(CsdTierTest, StateIsThatOfMemory) {
  const JobSpec spec = Spec(RaggedSpec());
  const DeviceRig rig(spec, Options());
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(devices.status().ok()) << devices.status();
  EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
  // The devices did it.
  EXPECT_GT(rig.link_bytes().of(Link::kInternal, Direction::kWritten, Purpose::kState), 0u);
}

// Whether a device or its host encodes them, after an update or for a fetch.
TEST_P(CsdTierTest, EncodedWeightsAreThoseOfMemory) {
  const JobSpec spec = Spec(TinySyntheticSpec());
  for (const bool encodes : {true, false}) {
    RigOptions options = Options();
    options.encodes_weights = encodes;
    const DeviceRig rig(spec, options);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    std::vector<std::string> found[2];
    for (ShardUnderTest* const shard : {&devices, &memory}) {
      ASSERT_TRUE(shard->status().ok()) << shard->status();
      shard->InitializeAll();
      std::vector<std::string>* const texts = &found[shard == &memory ? 1 : 0];
      const Chunk& chunk = shard->chunks().chunks().front();
      const std::vector<UpdateRequest::Encode> encode = {{*FindCodec("bf16"), Axis::kRow},
                                                         {*FindCodec("mx6"), Axis::kColumn},
                                                         {*FindCodec("fp32"), Axis::kRow}};
      const UpdateResult result = TrainChunk(shard, chunk, 1, encode);
      for (const Bytes& bytes : result.encoded) texts->emplace_back(bytes.view());
      for (const UpdateRequest::Encode& each : encode) {
        const BackendDone read =
            shard->Await(ReadRequest{chunk.id, Version(1), each.codec, each.axis});
        ASSERT_TRUE(read.status.ok()) << read.status;
        texts->emplace_back(std::get<Bytes>(read.value).view());
      }
    }
    EXPECT_EQ(found[0].size(), 6u);
    EXPECT_EQ(found[0], found[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, CsdTierTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values(Waiting::kOnHost, Waiting::kOnMedium,
                                                          Waiting::kInDevice),
                                          testing::Values(Mode::kSealed, Mode::kEager)),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::get<0>(info.param) ? "Processes" : "Here",
                               NameOf(std::get<1>(info.param)),
                               std::get<2>(info.param) == Mode::kSealed ? "Sealed" : "Eager");
                         });

// One set in each device: each update waits for the one before it, until its set is free again.
TEST_P(CsdTierTest, UpdatesInFlightShareOneSet) {
  const JobSpec spec = InMode(Mode::kEager, TinySyntheticSpec());
  RigOptions options = Options();
  options.sets = 1;
  const DeviceRig rig(spec, options);
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 2);
  for (ShardUnderTest* const shard : {&memory, &devices}) {
    ASSERT_TRUE(shard->status().ok()) << shard->status();
    shard->InitializeAll();
    std::vector<OpId> updates;
    for (const Chunk& chunk : shard->chunks().chunks()) {
      updates.push_back(
          shard->Submit(RequestOf(shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone)));
    }
    for (const OpId op : updates) EXPECT_TRUE(shard->completions().Take(op).status.ok());
  }
  for (const Chunk& chunk : memory.chunks().chunks()) {
    EXPECT_TRUE(*devices.State(chunk.id, Version(1)) == *memory.State(chunk.id, Version(1)));
  }
}

// The updates of every optimizer inside a device are those of memory.
TEST(CsdTierRulesTest, EveryOptimizerGivesTheBitsOfMemory) {
  for (const OptimizerRow& row : Optimizers()) {
    JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
    static_cast<OptimizerSettings&>(spec.optimizer) = DefaultsOf(row.name);
    RigOptions options;
    options.dram_bytes = kDramBytes;
    const DeviceRig rig(spec, options);
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(devices.status().ok()) << devices.status();
    EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory)) << static_cast<int>(row.name);
  }
}

// How devices move chunks, where gradients wait, and whether devices encode weights.
class CsdTierHandlerTest : public testing::TestWithParam<std::tuple<Handler, Waiting, bool>> {};

TEST_P(CsdTierHandlerTest, StateIsThatOfMemory) {
  const auto [handler, waiting, encodes] = GetParam();
  RigOptions options;
  Use(handler, encodes, &options);
  options.gradients_in_memory = waiting == Waiting::kInDevice;
  options.dram_bytes = kDramBytes;
  // Chunks of many sizes, none of which is whole blocks, and whole blocks.
  for (const JobSpec& model : {RaggedSpec(), TinySyntheticSpec()}) {
    const JobSpec spec = InMode(Mode::kSealed, model);
    const DeviceRig rig(spec, options);
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(devices.status().ok()) << devices.status();
    EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
  }
}

INSTANTIATE_TEST_SUITE_P(Handlers, CsdTierHandlerTest,
                         testing::Combine(testing::Values(Handler::kNaive, Handler::kHandover),
                                          testing::Values(Waiting::kOnMedium, Waiting::kInDevice),
                                          testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(NameOf(std::get<0>(info.param)),
                                               NameOf(std::get<1>(info.param)),
                                               std::get<2>(info.param) ? "Encoded" : "Fp32");
                         });

// The rows SU of docs/guides/near_storage.md. Whether the devices are processes, whether they
// encode weights, whether gradients wait in their memory, and how they move chunks.
class SmartUpdateBytesTest : public testing::TestWithParam<std::tuple<bool, bool, bool, Handler>> {
};

TEST_P(SmartUpdateBytesTest, StepMovesTheBytesOfThePaper) {
  const JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
  RigOptions options;
  const bool encodes = std::get<1>(GetParam());
  options.gradients_in_memory = std::get<2>(GetParam());
  options.processes = std::get<0>(GetParam());
  options.dram_bytes = kDramBytes;
  options.sets = 1;  // one update after the other
  Use(std::get<3>(GetParam()), encodes, &options);
  const DeviceRig rig(spec, options);
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  const ExtentLayout layout = LayoutOf(shard);
  const Codec* const codec = *FindCodec("bf16");
  int compared = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    const Chunk& chunk = *area.chunk;
    const uint64_t n = chunk.elements;
    if (n * 2 % kDiskBlock != 0) continue;  // whole blocks: there is no padding
    ++compared;
    const LinkBytes before = rig.link_bytes();
    TrainChunk(&shard, chunk, 1, {{codec, Axis::kRow}});
    const LinkBytes update = rig.link_bytes().Since(before);
    ASSERT_TRUE(shard.Await(ReadRequest{chunk.id, Version(1), codec, Axis::kRow}).status.ok());
    const LinkBytes fetch = rig.link_bytes().Since(before).Since(update);

    const LinkBytes expected = BytesOfStep(options, n, area.footer_bytes);
    EXPECT_TRUE(update == expected) << "chunk " << chunk.id.value() << " of " << n;
    // Without an update, weights come from the medium, and are checked where they are encoded.
    const uint64_t checked = 4 * n + area.footer_bytes;
    EXPECT_EQ(fetch.of(Link::kHost, Direction::kRead), encodes ? 2 * n : checked);
    EXPECT_EQ(fetch.of(Link::kMedia, Direction::kRead), checked);
    EXPECT_EQ(fetch.of(Link::kInternal, Direction::kRead), encodes ? checked : 0u);
    EXPECT_EQ(fetch.of(Link::kHost, Direction::kWritten), 0u);
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, SmartUpdateBytesTest,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Bool(),
                                          testing::Values(Handler::kNaive, Handler::kHandover,
                                                          Handler::kPipelined)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) ? "Processes" : "Here",
                                               std::get<1>(info.param) ? "Encoded" : "Fp32",
                                               std::get<2>(info.param) ? "InDevice" : "OnMedium",
                                               NameOf(std::get<3>(info.param)));
                         });

// Gradients that find no room in device memory wait on the medium.
TEST(CsdTierMemoryTest, GradientsFallBackToTheMedium) {
  const JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
  const ChunkMap chunks = ChunkMap::Build(spec);
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : chunks.chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(chunks, owned, /*arrays=*/3, 0, spec.training.parts);
  uint64_t of_a_set = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    of_a_set = std::max(of_a_set, area.bytes() + area.gradient_bytes + kDiskBlock);
  }
  for (const bool fits : {true, false}) {
    RigOptions options;
    options.devices = 1;
    options.sets = 1;
    options.gradients_in_memory = true;
    options.dram_bytes = of_a_set + layout.gradient_file_bytes(0) - (fits ? 0 : kDiskBlock);
    const DeviceRig rig(spec, options);
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(devices.status().ok()) << devices.status();
    EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
    const LinkBytes bytes = rig.link_bytes();
    EXPECT_EQ(bytes.of(Link::kInternal, Direction::kRead, Purpose::kGradient) == 0, fits);
  }
}

// The updater has a rate of its own, and another one for compressed gradients.
TEST(CsdTierRatesTest, UpdatesTakeTheTimeOfTheUpdater) {
  JobSpec spec = InMode(Mode::kEager, TinySyntheticSpec());
  spec.training.parts = 1;
  for (const char* const codec : {"fp32", "topk:0.01"}) {
    RigOptions options;
    options.processes = true;
    options.dram_bytes = kDramBytes;
    const Chunk chunk = ChunkMap::Build(spec).chunk(ChunkId(1));
    const double rate = 12.0 * static_cast<double>(chunk.elements) / 0.2;
    (codec == absl::string_view("fp32") ? options.rates.update : options.rates.decompress_update) =
        rate;
    const DeviceRig rig(spec, options);
    ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(shard.status().ok()) << shard.status();
    shard.InitializeAll();
    const Gradients gradients = GradientsOf(chunk, 1, 1);
    UpdateRequest request = RequestOf(&shard, chunk, gradients, 1, Merging::kNone);
    request.inputs.front().data = shard.Encode(chunk, gradients[0][0], codec);
    const BackendDone done = shard.Await(std::move(request));
    ASSERT_TRUE(done.status.ok()) << done.status;
    EXPECT_GE(done.seconds, 0.19) << codec;
  }
}

// A scrub reads every byte of the chunks into the memory of the devices, and none to the host.
TEST(CsdTierScrubTest, ChecksStayInsideDevices) {
  const JobSpec spec = InMode(Mode::kEager, TinySyntheticSpec());
  RigOptions options;
  options.dram_bytes = kDramBytes;
  const DeviceRig rig(spec, options);
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  const ExtentLayout layout = LayoutOf(shard);
  uint64_t expected = 0;
  for (const ExtentLayout::Area& area : layout.areas()) expected += area.bytes();
  CutRequest cut;
  cut.border.id = {Step(1), Term(1)};
  ASSERT_TRUE(shard.Await(PromiseRequest{Term(1)}).status.ok());
  ASSERT_TRUE(shard.Await(cut).status.ok());
  const LinkBytes before = rig.link_bytes();
  bool ends_pass = false;
  for (size_t reads = 0; reads <= layout.areas().size() && !ends_pass; ++reads) {
    const BackendDone done = shard.Await(ScrubRequest{});
    ASSERT_TRUE(done.status.ok()) << done.status;
    const auto& result = std::get<ScrubResult>(done.value);
    EXPECT_TRUE(result.damage.ok()) << result.damage;
    ends_pass = result.ends_pass;
  }
  EXPECT_TRUE(ends_pass);
  const LinkBytes scrub = rig.link_bytes().Since(before);
  EXPECT_EQ(scrub.of(Link::kInternal, Direction::kRead, Purpose::kCheck), expected);
  EXPECT_EQ(scrub.of(Link::kInternal, Direction::kRead), expected);
  EXPECT_EQ(scrub.of(Link::kHost, Direction::kRead), 0u);
  EXPECT_EQ(scrub.of(Link::kHost, Direction::kWritten), 0u);
}

// A failure names its cause, and nothing begins after it.
class CsdTierFailureTest : public testing::Test {
 protected:
  void Open(bool processes) {
    RigOptions options;
    options.processes = processes;
    options.devices = 1;
    options.dram_bytes = kDramBytes;
    rig_ = std::make_unique<DeviceRig>(spec_, options);
    shard_ = std::make_unique<ShardUnderTest>(
        BackendUnderTest{"Devices", &DeviceRig::NewBackendOfLast}, spec_, 1);
    ASSERT_TRUE(shard_->status().ok()) << shard_->status();
    shard_->InitializeAll();
  }
  const Chunk& chunk() const { return shard_->chunks().chunks().front(); }
  absl::Status Update() {
    return shard_
        ->Await(RequestOf(shard_.get(), chunk(), GradientsOf(chunk(), 1, 2), 1, Merging::kNone))
        .status;
  }

  const JobSpec spec_ = InMode(Mode::kEager, TinySyntheticSpec());
  std::unique_ptr<DeviceRig> rig_;
  std::unique_ptr<ShardUnderTest> shard_;
};

TEST_F(CsdTierFailureTest, DamagedMediumNamesFileAndOffset) {
  Open(/*processes=*/false);
  rig_->FlipBitsOfFirstChunk();
  const absl::Status status = Update();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("/csd-0/job/slot-"));
  EXPECT_THAT(status.message(), HasSubstr("chunk 0: "));
  EXPECT_THAT(status.message(), HasSubstr("bytes at offset 4096"));
  EXPECT_EQ(Update().code(), absl::StatusCode::kDataLoss);
}

// The device finds the damage when it encodes the weights for a fetch.
TEST_F(CsdTierFailureTest, DamagedWeightsAreNotServed) {
  Open(/*processes=*/false);
  rig_->FlipBitsOfFirstChunk();
  const absl::Status status =
      shard_->Await(ReadRequest{chunk().id, Version(0), *FindCodec("bf16"), Axis::kRow}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("/csd-0/job/slot-"));
  EXPECT_THAT(status.message(), HasSubstr("chunk 0: "));
}

TEST_F(CsdTierFailureTest, KilledDeviceEndsTheBackend) {
  Open(/*processes=*/true);
  const auto* const device = static_cast<const DeviceProcess*>(rig_->devices().front().get());
  ASSERT_EQ(kill(device->pid(), SIGKILL), 0);
  const absl::Status status = Update();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("device csd-0 ("));
  EXPECT_THAT(status.message(), HasSubstr("was ended by signal 9"));
  EXPECT_EQ(Update().code(), absl::StatusCode::kUnavailable);
}

TEST(CsdTierMemoryTest, TooLittleDeviceMemoryIsRefused) {
  const JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
  RigOptions options;
  options.dram_bytes = kDiskBlock;
  const DeviceRig rig(spec, options);
  const ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  EXPECT_EQ(shard.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(shard.status().message(), HasSubstr("raise storage.csd.dram"));
}

}  // namespace
}  // namespace eps
