// Compares the behaviour of shard cores byte for byte: every event that they receive and every
// effect that they emit in 200 runs of the in-process cluster, each from a seed.
// testdata/golden_traces.txt holds one hash of each run. The runs differ in modes, codecs, shards,
// parts, storage and crashes, and in the requests of disorderly clients.
//
// After an intended change of the protocol, write the file again and review the differences:
//
//   EPS_WRITE_GOLDEN=$PWD/eps_server/core/testing/testdata/golden_traces.txt
//       bazel-bin/eps_server/core/testing/golden_traces_test    (on one line)
//
// A run that differs is written to TEST_UNDECLARED_OUTPUTS_DIR, or else TEST_TMPDIR, as SEED.trace.
// EPS_TRACES=DIR writes all of them, so that diff can compare the traces of two builds.

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/core_training.h"
#include "eps_server/core/testing/disorder.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "eps_server/core/testing/event_text.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kSeeds = 200;
constexpr char kGolden[] = "eps_server/core/testing/testdata/golden_traces.txt";

// The kinds of events, effects, calls and trace actions that must occur.
constexpr char kKinds[] =
    "Opened,StreamClosed,Join,Beat,BeginStep,Fetch,FetchDrained,PushOffered,PushReceived,"
    "PushInvalid,ImportInitialize,ImportChunk,ImportResidual,ImportFinish,Export,"
    "ExportDrained,Watch,Gate,Drain,OpDone,FromShard,LinkUp,LinkDown,Timer,Read,ReadState,"
    "WriteState,Initialize,Reduce,Update,Cut,Recycle,Quiesce,Recover,Restore,Promise,"
    "Scrub,StartLog,Log,ReadLog,Reply,Close,SendChunk,FailFetch,Credit,SendAck,"
    "SendState,ToShard,SetTimer,ClearTimer,Drained,Abort,Trace recovered,Trace found,"
    "Trace counted,Trace update-started,Trace updated,Trace step-opened,"
    "Trace step-complete,Trace recorded,Trace promised,Trace restored,Trace resumed,Trace replayed,"
    "Trace cut,Trace durable,Trace failed";

// The first words of the lines of all runs: the events, effects and calls that occurred.
std::set<std::string>* Kinds() {
  static auto* const kinds = new std::set<std::string>();
  return kinds;
}

class Recorder {
 public:
  // Also records what the cores of the cluster receive and emit.
  CoreCluster::Options Listen(CoreCluster::Options options) {
    options.hear = [this](ShardId shard, const Event& event) { Add(shard, "<", ToText(event)); };
    options.watch = [this, watch = std::move(options.watch)](ShardId shard, const Effect& effect) {
      Add(shard, ">", ToText(effect));
      if (watch != nullptr) watch(shard, effect);
    };
    return options;
  }
  void Add(ShardId shard, const char* direction, const std::string& text) {
    const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 2));
    const bool is_numbered = words[0] == "Trace" || words[0] == "Start";
    if (words[0] == "Trace") Kinds()->insert(absl::StrCat("Trace ", words[1]));
    if (words[0] == "Start") Kinds()->insert(std::string(words[2].substr(0, words[2].find(' '))));
    if (!is_numbered) Kinds()->insert(words[0]);
    absl::StrAppend(&text_, shard.value(), direction, " ", text, "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

JobSpec DrawSpec(bool durable, Dice* dice) {
  const auto one_of = [&](const std::vector<std::string>& names) {
    return names[(*dice)(names.size())];
  };
  JobSpec spec;
  spec.name = "golden";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 2 + static_cast<uint32_t>((*dice)(2));
  spec.model.synthetic.n_embd = 16;
  spec.model.synthetic.tied = (*dice)(2) == 0;
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  // Large chunks leave some shards without any.
  spec.chunk_elements = (*dice)(4) == 0 ? 4096 : 256;
  spec.training.steps = 4 + (*dice)(4);
  spec.training.parts = 1 + static_cast<uint32_t>((*dice)(3));
  spec.training.mode = (*dice)(2) == 0 ? Mode::kEager : Mode::kSealed;
  spec.training.clip = (*dice)(3) == 0                       ? Clip::kNone
                       : spec.training.mode == Mode::kSealed ? Clip::kExact
                                                             : Clip::kLagged;
  if (spec.training.mode == Mode::kSealed && (*dice)(4) == 0) spec.training.clip = Clip::kLagged;
  if (spec.training.mode == Mode::kSealed && (*dice)(4) > 0) {
    spec.training.nonfinite = Nonfinite::kSkip;
  }
  if ((*dice)(2) == 0) spec.codecs.backward_weights = BackwardWeights::kBothAxes;
  if ((*dice)(3) == 0) spec.training.determinism = Determinism::kRelaxed;
  spec.training.max_grad_norm = 0.25;
  spec.codecs.weights = one_of({"fp32", "mx6", "mx9"});
  spec.codecs.gradients = one_of({"fp32", "bf16", "topk:0.05"});
  if (spec.codecs.gradients == "topk:0.05") {
    spec.codecs.residual = "bf16";
    spec.codecs.warmup_steps = (*dice)(3) == 0 ? 1 : 0;
    const bool at_worker = durable && (*dice)(2) == 0;
    spec.codecs.residual_home = at_worker ? ResidualHome::kWorker : ResidualHome::kServer;
  }
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  const absl::Status valid = spec.Validate();
  EXPECT_TRUE(valid.ok()) << valid;
  return spec;
}

CoreLimits DrawLimits(Dice* dice) {
  CoreLimits limits;
  limits.jit_depth = static_cast<uint32_t>((*dice)(3));
  limits.max_fetches_per_stream = (*dice)(3) == 0 ? 2 : 8;
  return limits;
}

// Imports the state of the first run into the second, so that imports of chunks and residuals are
// covered too.
void ImportBorder(CoreTraining* training, Dice* dice) {
  CoreCluster& cluster = training->cluster();
  const uint64_t step = (*dice)(cluster.spec().training.steps + 1);
  std::vector<StreamId> streams;
  for (uint32_t s = 0; s < cluster.shards(); ++s) streams.push_back(cluster.NewStream());
  for (const Chunk& chunk : cluster.chunks().chunks()) {
    const ShardId owner = cluster.OwnerOf(chunk.id);
    const StreamId stream = streams[owner.value()];
    // Weights and the two fields of AdamW.
    std::string state(3 * chunk.elements * sizeof(float), '\0');
    cluster.Send(owner, event::ImportChunk{stream, chunk.id, Version(step), Bytes::CopyOf(state)});
  }
  for (uint32_t s = 0; s < cluster.shards(); ++s) {
    cluster.Send(ShardId(s), event::ImportFinish{streams[s], Step(step), Version(step), step, 0.5});
  }
  cluster.RunSome(30);
}

// Runs a job with all state in DRAM; it fails if it loses a shard.
void TellInMemory(uint64_t seed, Dice* dice, Recorder* recorder) {
  const JobSpec spec = DrawSpec(/*durable=*/false, dice);
  CoreCluster::Options options;
  options.shards = 1 + static_cast<uint32_t>((*dice)(4));
  options.seed = seed;
  options.limits = DrawLimits(dice);
  CoreTraining training(spec, recorder->Listen(options), /*fetches=*/true);
  CoreCluster& cluster = training.cluster();
  const auto note = [recorder](ShardId shard, const std::string& text) {
    recorder->Add(shard, "=", text);
  };
  Disorder disorder(&cluster, /*is_durable=*/false, /*asks_for_gone=*/true, note, dice);
  const uint64_t peace = 1 + (*dice)(8);
  if ((*dice)(3) == 0) ImportBorder(&training, dice);
  const bool loses_a_shard = (*dice)(5) == 0;
  const auto between = [&] {
    if ((*dice)(peace) == 0) disorder.Act();
    cluster.RunSome((*dice)(6));
    if (!loses_a_shard || (*dice)(400) > 0) return;
    const ShardId lost(static_cast<uint32_t>((*dice)(options.shards)));
    if (!cluster.IsUp(lost)) return;
    cluster.Crash(lost);
    if ((*dice)(2) == 0) cluster.FireTimers();
    cluster.Restart(lost);
  };
  training.Finish(between, 300).IgnoreError();
  cluster.Run();
}

// Runs a job with state on simulated disks whose power is cut, or whose calls fail.
void TellDurable(uint64_t seed, Dice* dice, Recorder* recorder) {
  const JobSpec spec = DrawSpec(/*durable=*/true, dice);
  DurableDisks::Options options;
  options.shards = 1 + static_cast<uint32_t>((*dice)(3));
  options.seed = seed;
  options.cut_steps = (*dice)(4) == 0 ? kAutoCutSteps : 1 + (*dice)(3);
  options.in_dram = (*dice)(3) == 0;
  if ((*dice)(3) == 0) options.scrub_bytes_per_second = 1 << 20;
  if ((*dice)(2) == 0) options.log_steps.assign(options.shards, 1 + (*dice)(3));
  DurableDisks disks(options);
  CoreCluster::Options cluster_options = recorder->Listen(disks.ForCluster());
  const CoreLimits limits = DrawLimits(dice);
  cluster_options.limits.jit_depth = limits.jit_depth;
  cluster_options.limits.max_fetches_per_stream = limits.max_fetches_per_stream;
  std::set<ShardId> drained;
  cluster_options.watch = [&, watch = cluster_options.watch](ShardId shard, const Effect& effect) {
    if (std::holds_alternative<effect::Drained>(effect)) drained.insert(shard);
    watch(shard, effect);
  };
  CoreTraining training(spec, cluster_options, /*fetches=*/true);
  CoreCluster& cluster = training.cluster();
  const bool goes_back = (*dice)(2) == 0;
  const auto note = [recorder](ShardId shard, const std::string& text) {
    recorder->Add(shard, "=", text);
  };
  Disorder disorder(&cluster, /*is_durable=*/true, goes_back, note, dice);
  const uint64_t peace = 1 + (*dice)(12);
  const uint64_t deaths = (*dice)(8);
  if ((*dice)(6) == 0) {
    disks.disk(ShardId(0))
        .FailCall(SimulatedDisk::Call::kWrite, 20 + (*dice)(200), SimulatedDisk::Fault::kIoError);
  }
  const auto between = [&] {
    for (uint32_t s = 0; s < options.shards; ++s) {
      if (!cluster.IsUp(ShardId(s)) && (*dice)(3) == 0) cluster.Restart(ShardId(s));
    }
    if (disks.cuts() < deaths && (*dice)(60) == 0) {
      const ShardId victim(static_cast<uint32_t>((*dice)(options.shards)));
      if (cluster.IsUp(victim)) cluster.Crash(victim);
    }
    for (const ShardId shard : std::exchange(drained, {})) {
      if (cluster.IsUp(shard)) cluster.Crash(shard);
    }
    if ((*dice)(150) == 0) {
      const ShardId drains(static_cast<uint32_t>((*dice)(options.shards)));
      cluster.Send(drains, event::Drain{});
    }
    if ((*dice)(200) == 0) training.ReplaceWorker();
    if ((*dice)(peace) == 0) disorder.Act();
    cluster.RunSome((*dice)(20));
  };
  training.Finish(between, 400).IgnoreError();
  cluster.Run();
}

std::string Tell(uint64_t seed) {
  Recorder recorder;
  Dice dice(seed);
  if (seed % 2 == 0) {
    TellInMemory(seed, &dice, &recorder);
  } else {
    TellDurable(seed, &dice, &recorder);
  }
  return recorder.text();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string Hash(const std::string& text) {
  Sha256 sha;
  sha.Update(text);
  return ToHex(sha.Finish()).substr(0, 16);
}

std::map<uint64_t, std::string> ReadGolden() {
  std::map<uint64_t, std::string> golden;
  std::ifstream file(kGolden);
  uint64_t seed = 0;
  std::string hash;
  while (file >> seed >> hash) golden[seed] = hash;
  return golden;
}

// Checks that every kind occurs, because the test guards only what its runs do.
void ExpectEveryKind() {
  for (const absl::string_view kind : absl::StrSplit(kKinds, ',')) {
    EXPECT_EQ(Kinds()->count(std::string(kind)), 1u) << kind << " does not occur in any run";
  }
}

TEST(GoldenTraces, AreEqualByteForByte) {
  const char* const write = std::getenv("EPS_WRITE_GOLDEN");
  const char* const traces = std::getenv("EPS_TRACES");
  const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string folder = outputs != nullptr ? outputs : testing::TempDir();
  std::map<uint64_t, std::string> golden = ReadGolden();
  ASSERT_TRUE(write != nullptr || golden.size() == kSeeds) << kGolden;
  std::string text;
  size_t differ = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string trace = Tell(seed);
    const std::string hash = Hash(trace);
    absl::StrAppend(&text, seed, " ", hash, "\n");
    if (traces != nullptr) Write(absl::StrCat(traces, "/", seed, ".trace"), trace);
    if (write != nullptr || hash == golden[seed]) continue;
    if (++differ > 5) continue;  // do not write a file for each
    const std::string path = absl::StrCat(folder, "/", seed, ".trace");
    Write(path, trace);
    ADD_FAILURE() << "the trace of seed " << seed << " differs: " << path;
  }
  EXPECT_EQ(differ, 0u) << "of " << kSeeds << " traces";
  if (write != nullptr) Write(write, text);
  ExpectEveryKind();
}

}  // namespace
}  // namespace eps
