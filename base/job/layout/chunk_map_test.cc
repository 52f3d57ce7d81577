#include "base/job/layout/chunk_map.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/model_layout.h"
#include "base/job/layout/server_count.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// "3: tensor@row+rows tensor@row+rows; stages 1 2"
std::string Describe(const Chunk& chunk) {
  std::string text = absl::StrCat(chunk.id.value(), ":");
  for (const Segment& s : chunk.segments) {
    absl::StrAppend(&text, " ", s.tensor.value(), "@", s.row, "+", s.rows, "x", s.cols);
  }
  absl::StrAppend(&text, "; stages");
  for (StageId stage : chunk.uses) absl::StrAppend(&text, " ", stage.value());
  return text;
}

std::vector<std::string> DescribeAll(const ChunkMap& map) {
  std::vector<std::string> all;
  for (const Chunk& chunk : map.chunks()) all.push_back(Describe(chunk));
  return all;
}

TEST(ChunkMap, FrozenTensorsHaveTheirOwnChunks) {
  JobSpec spec = TinyGpt2Spec();
  Freeze("ln_1.weight", /*others=*/false, &spec);
  const ChunkMap map = ChunkMap::Build(spec);
  const std::vector<std::string> all = DescribeAll(map);
  const auto& chunks = map.ChunksOfStage(StageId(1));
  ASSERT_EQ(chunks.size(), 11u);
  const Chunk& trained = map.chunk(chunks[9]);
  const Chunk& frozen = map.chunk(chunks[10]);
  EXPECT_EQ(Describe(trained),
            "14: 3@0+1x64 5@0+1x192 7@0+1x64 8@0+1x64 9@0+1x64 11@0+1x256 13@0+1x64; stages 1");
  EXPECT_EQ(Describe(frozen), "15: 2@0+1x64; stages 1");
  EXPECT_FALSE(trained.frozen);
  EXPECT_TRUE(frozen.frozen);
  EXPECT_EQ(StateBytes(spec, trained), 12 * trained.elements);
  EXPECT_EQ(StateBytes(spec, frozen), 4 * frozen.elements);
}

TEST(ChunkMap, EagerServersNeedATrainedChunkEach) {
  JobSpec spec = TinySyntheticSpec();
  Freeze("layer", /*others=*/false, &spec);
  const ChunkMap map = ChunkMap::Build(spec);
  spec.training.mode = Mode::kEager;
  EXPECT_TRUE(CheckServerCount(spec, map, 4).ok()) << "four biases are trained";
  const absl::Status status = CheckServerCount(spec, map, 5);
  EXPECT_TRUE(absl::StrContains(status.message(), "each of 5 servers")) << status;
  spec.training.mode = Mode::kSealed;
  EXPECT_TRUE(CheckServerCount(spec, map, 5).ok());
  std::vector<bool> trains(4);
  const std::vector<ShardId> placement = map.Place(4);
  for (const Chunk& chunk : map.chunks()) {
    if (!chunk.frozen) trains[placement[chunk.id.value()].value()] = true;
  }
  EXPECT_EQ(trains, std::vector<bool>(4, true));
}

TEST(ChunkMap, PlacesFrozenChunksAmongThemselves) {
  JobSpec spec = TinySyntheticSpec();
  Freeze("layer", /*others=*/false, &spec);
  spec.chunk_elements = 2048;
  const ChunkMap map = ChunkMap::Build(spec);
  const std::vector<ShardId> placement = map.Place(2);
  std::vector<uint64_t> trained(2);
  std::vector<uint64_t> frozen(2);
  for (const Chunk& chunk : map.chunks()) {
    (chunk.frozen ? frozen : trained)[placement[chunk.id.value()].value()] += chunk.elements;
  }
  EXPECT_EQ(frozen[0], frozen[1]);
  EXPECT_EQ(trained[0], trained[1]);
}

TEST(ChunkMap, FrozenChunksDoNotUnbalanceTheOthers) {
  JobSpec spec = TinyGpt2Spec();
  spec.chunk_elements = 16384;
  Freeze("mlp.c_fc.weight", /*others=*/false, &spec);
  const ChunkMap map = ChunkMap::Build(spec);
  const std::vector<ShardId> placement = map.Place(2);
  std::vector<uint64_t> trained(2);
  for (const ChunkId id : map.ChunksOfStage(StageId(1))) {
    if (!map.chunk(id).frozen) trained[placement[id.value()].value()] += map.chunk(id).elements;
  }
  EXPECT_LT(std::max(trained[0], trained[1]), 2 * std::min(trained[0], trained[1]));
}

TEST(ChunkMap, CutsASmallGpt2AsItAlwaysDid) {
  const std::vector<std::string> expected = {
      // embedding: 4096 elements are 64 rows of 64
      "0: 0@0+64x64; stages 0 3",
      "1: 0@64+64x64; stages 0 3",
      "2: 0@128+64x64; stages 0 3",
      "3: 0@192+64x64; stages 0 3",
      "4: 1@0+32x64; stages 0",
      // h.0: c_attn is 192 wide, so that 21 rows would fit and 32 are taken
      "5: 4@0+32x192; stages 1",
      "6: 4@32+32x192; stages 1",
      "7: 6@0+64x64; stages 1",
      "8: 10@0+32x256; stages 1",
      "9: 10@32+32x256; stages 1",
      "10: 12@0+64x64; stages 1",
      "11: 12@64+64x64; stages 1",
      "12: 12@128+64x64; stages 1",
      "13: 12@192+64x64; stages 1",
      "14: 2@0+1x64 3@0+1x64 5@0+1x192 7@0+1x64 8@0+1x64 9@0+1x64 11@0+1x256 13@0+1x64; stages 1",
      // h.1
      "15: 16@0+32x192; stages 2",
      "16: 16@32+32x192; stages 2",
      "17: 18@0+64x64; stages 2",
      "18: 22@0+32x256; stages 2",
      "19: 22@32+32x256; stages 2",
      "20: 24@0+64x64; stages 2",
      "21: 24@64+64x64; stages 2",
      "22: 24@128+64x64; stages 2",
      "23: 24@192+64x64; stages 2",
      "24: 14@0+1x64 15@0+1x64 17@0+1x192 19@0+1x64 20@0+1x64 21@0+1x64 23@0+1x256 25@0+1x64; "
      "stages 2",
      // head: wte belongs to the embedding
      "25: 26@0+1x64 27@0+1x64; stages 3",
  };
  EXPECT_EQ(DescribeAll(ChunkMap::Build(TinyGpt2Spec())), expected);
}

TEST(ChunkMap, CoversEveryElementOnceForAnyChunkSize) {
  for (uint64_t chunk_elements : {1u, 100u, 2048u, 2049u, 10'000u, 1u << 20}) {
    JobSpec spec = TinyGpt2Spec();
    spec.tensors[0].rows = 257;  // the last panel is short
    spec.chunk_elements = chunk_elements;
    const ChunkMap map = ChunkMap::Build(spec);
    std::vector<std::vector<int>> covered;
    for (const TensorSpec& t : spec.tensors) covered.emplace_back(t.elements(), 0);
    for (const Chunk& chunk : map.chunks()) {
      uint64_t offset = 0;
      for (const Segment& s : chunk.segments) {
        EXPECT_EQ(s.offset, offset);
        EXPECT_EQ(s.tensor_offset, uint64_t{s.row} * s.cols);
        EXPECT_EQ(s.group, spec.tensors[s.tensor.value()].group);
        EXPECT_TRUE(chunk.segments.size() == 1 || spec.tensors[s.tensor.value()].rank == 1);
        EXPECT_EQ(s.row % kPanelRows, 0u);
        for (uint64_t i = 0; i < s.elements(); ++i) {
          ++covered[s.tensor.value()][s.tensor_offset + i];
        }
        offset += s.elements();
      }
      EXPECT_EQ(chunk.elements, offset);
      EXPECT_TRUE(chunk.segments.size() == 1 || chunk.elements <= chunk_elements);
    }
    for (const std::vector<int>& tensor : covered) {
      EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST(ChunkMap, SplitsPackedVectorsAtTheChunkSize) {
  JobSpec spec = TinyGpt2Spec();
  spec.chunk_elements = 250;
  const std::vector<std::string> all = DescribeAll(ChunkMap::Build(spec));
  const std::vector<std::string> packed = {"2@0+1x64 3@0+1x64", "5@0+1x192",
                                           "7@0+1x64 8@0+1x64 9@0+1x64", "11@0+1x256", "13@0+1x64"};
  for (const std::string& chunk : packed) {
    EXPECT_EQ(std::count_if(all.begin(), all.end(),
                            [&](const std::string& s) {
                              return s.find(": " + chunk + "; stages 1") != std::string::npos;
                            }),
              1)
        << chunk;
  }
}

TEST(ChunkMap, StagesDoNotShareChunksOfVectors) {
  JobSpec spec = TinyGpt2Spec();
  spec.stages[3].uses.push_back({TensorId(5), Axis::kRow, Axis::kRow});  // h.0's c_attn.bias
  ASSERT_TRUE(spec.Validate().ok());
  const std::vector<std::string> all = DescribeAll(ChunkMap::Build(spec));
  EXPECT_EQ(all[14], "14: 2@0+1x64 3@0+1x64; stages 1");
  EXPECT_EQ(all[15], "15: 5@0+1x192; stages 1 3");
  EXPECT_EQ(all[16], "16: 7@0+1x64 8@0+1x64 9@0+1x64 11@0+1x256 13@0+1x64; stages 1");
}

TEST(ChunkMap, StagesListTheirChunksAscending) {
  const JobSpec spec = TinyGpt2Spec();
  const ChunkMap map = ChunkMap::Build(spec);
  const absl::Span<const ChunkId> head = map.ChunksOfStage(StageId(3));
  const std::vector<ChunkId> expected = {ChunkId(0), ChunkId(1), ChunkId(2), ChunkId(3),
                                         ChunkId(25)};
  EXPECT_EQ(std::vector<ChunkId>(head.begin(), head.end()), expected);
  EXPECT_EQ(map.StageElements(StageId(3)), 256u * 64 + 128);
  EXPECT_EQ(map.StageElements(StageId(0)), 256u * 64 + 32 * 64);
}

TEST(ChunkMap, TilesCoverAChunkInGridOrder) {
  JobSpec spec = TinyGpt2Spec();
  spec.chunk_elements = 1 << 20;
  const ChunkMap map = ChunkMap::Build(spec);
  for (const Chunk& chunk : map.chunks()) {
    std::vector<int> covered(chunk.elements, 0);
    ForEachTile(chunk, [&](const Tile& tile) {
      EXPECT_LE(tile.rows, kTileRows);
      EXPECT_LE(tile.cols, kTileCols);
      const Segment& s = chunk.segments[tile.segment];
      for (uint32_t r = 0; r < tile.rows; ++r) {
        for (uint32_t c = 0; c < tile.cols; ++c) {
          ++covered[tile.offset(s) + uint64_t{r} * s.cols + c];
        }
      }
    });
    EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
  }
}

TEST(ChunkMapPlace, StripesEveryStageOverAllServers) {
  JobSpec spec = TinyGpt2Spec();
  spec.chunk_elements = 2048;
  const ChunkMap map = ChunkMap::Build(spec);
  for (uint32_t shards : {1u, 2u, 3u, 5u}) {
    const std::vector<ShardId> shard_of = map.Place(shards);
    ASSERT_EQ(shard_of.size(), map.chunks().size());
    std::vector<uint64_t> of_stage(shards, 0);
    uint64_t largest = 0;
    for (ChunkId id : map.ChunksOfStage(StageId(1))) {
      of_stage[shard_of[id.value()].value()] += map.chunk(id).elements;
      largest = std::max(largest, map.chunk(id).elements);
    }
    const auto [low, high] = std::minmax_element(of_stage.begin(), of_stage.end());
    EXPECT_LE(*high - *low, largest) << shards;
  }
}

TEST(ChunkMapPlace, IsAsItAlwaysWas) {
  const std::vector<uint32_t> expected = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0,
                                          1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1};
  std::vector<uint32_t> found;
  for (ShardId shard : ChunkMap::Build(TinyGpt2Spec()).Place(2)) found.push_back(shard.value());
  EXPECT_EQ(found, expected);
}

TEST(ChunkMap, KnowsTheChunksOfAMatrix) {
  const JobSpec spec = TinyGpt2Spec();
  const ChunkMap map = ChunkMap::Build(spec);
  size_t seen = 0;
  while (seen < map.chunks().size()) {
    const absl::Span<const Chunk> chunks = map.ChunksOfTensor(ChunkId(static_cast<uint32_t>(seen)));
    ASSERT_EQ(chunks.data(), &map.chunks()[seen]);
    const TensorSpec& tensor = spec.tensors[chunks.front().segments.front().tensor.value()];
    uint64_t elements = 0;
    for (const Chunk& chunk : chunks) {
      EXPECT_EQ(map.ChunksOfTensor(chunk.id).data(), chunks.data());
      EXPECT_EQ(map.ChunksOfTensor(chunk.id).size(), chunks.size());
      elements += chunk.elements;
    }
    if (tensor.rank == 1) {
      EXPECT_EQ(chunks.size(), 1u);
    } else {
      EXPECT_EQ(elements, tensor.elements());
    }
    seen += chunks.size();
  }
}

TEST(ChunkMapPlace, CountsWhatAnEarlierStageShares) {
  // The last stage shares a big chunk, so its own goes to the other server although both servers
  // hold equally much of the job.
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.tied = true;
  ASSERT_TRUE(BuildLayout(0.0, &spec).ok());
  const ChunkMap map = ChunkMap::Build(spec);
  // layer.0 (stages 0 and 2), bias.0, layer.1, bias.1, bias.2
  ASSERT_EQ(map.chunks().size(), 5u);
  const std::vector<ShardId> expected = {ShardId(0), ShardId(1), ShardId(1), ShardId(0),
                                         ShardId(1)};
  EXPECT_EQ(map.Place(2), expected);
}

TEST(DefaultChunkElements, IsABoundedSixtyFourthOfTheModel) {
  EXPECT_EQ(DefaultChunkElements(0), 65536u);
  EXPECT_EQ(DefaultChunkElements(124'000'000), 1u << 20);
  EXPECT_EQ(DefaultChunkElements(64u << 17), 1u << 17);
  EXPECT_EQ(DefaultChunkElements((64u << 17) - 1), 1u << 16);
  EXPECT_EQ(DefaultChunkElements(uint64_t{1} << 48), 1u << 20);
}

}  // namespace
}  // namespace eps
