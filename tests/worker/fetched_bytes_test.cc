// Trains GPT-2 with a real worker and two real servers. The weights that the worker fetches are, to
// the byte, those that a plan counts, and the servers encode no others.

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/layout/visits.h"
#include "base/testing/test_specs.h"
#include "compression/codec_table.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps_server/server.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/workload.h"
#include "wire/channel.h"
#include "worker/run_worker.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kTimeout{300};
constexpr uint64_t kSteps = 3;
constexpr int kServers = 2;

struct Setting {
  bool tied = true;
  std::string weights = "fp32";
  BackwardWeights backward_weights = BackwardWeights::kRecomputeAxis;
};

std::string Path(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

class FetchedBytesTest : public testing::Test {
 protected:
  FetchedBytesTest() {
    const std::string text = std::string(500, 'a') + std::string(500, 'b');
    std::ofstream(Path("text.txt")) << text;
    std::string ids;
    for (const char c : text) ids += {c, '\0'};
    Sha256 hash;
    hash.Update(ids);
    sha256_ = ToHex(hash.Finish());
    tokens_ = text.size();
  }

  JobSpec SpecOf(const Setting& setting) const {
    JobSpec spec = TinyGpt2Spec();
    spec.model.gpt2.tie_word_embeddings = setting.tied;
    EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
    spec.codecs.weights = spec.codecs.embedding.weights = spec.codecs.head.weights =
        setting.weights;
    spec.codecs.backward_weights = setting.backward_weights;
    spec.training.steps = kSteps;
    spec.data.tokens = tokens_;
    spec.data.sha256 = sha256_;
    EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
    return spec;
  }

  // Starts servers that hold the job.
  void StartServers(const JobSpec& spec) {
    servers_.clear();
    controls_.clear();
    v1::CreateJobRequest request;
    request.set_request_id("create");
    request.set_spec_text(spec.ToText());
    for (int i = 0; i < kServers; ++i) {
      ServerOptions options;
      options.threads = 1;
      options.memory_limit_bytes = uint64_t{1} << 30;
      auto server = Server::Start(options);
      ASSERT_TRUE(server.ok()) << server.status();
      request.add_servers((*server)->address());
      controls_.push_back(v1::Control::NewStub(NewChannel((*server)->address())));
      servers_.push_back(*std::move(server));
    }
    v1::CreateJobReply created;
    ASSERT_TRUE(controls_[0]->CreateJob(Context().get(), request, &created).ok());
    for (const auto& control : controls_) {
      const auto context = Context();
      v1::ImportStateReply reply;
      const auto stream = control->ImportState(context.get(), &reply);
      v1::ImportStateRequest import;
      import.set_job_id(spec.id().value());
      import.set_initialize(true);
      import.set_finish(true);
      stream->Write(import);
      stream->WritesDone();
      ASSERT_TRUE(stream->Finish().ok());
    }
  }

  // Trains to the end; returns the bytes that the worker has fetched, by step.
  std::vector<uint64_t> Train() {
    WorkerOptions options;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    options.config.worker.device = "cpu";
    options.config.worker.threads = 1;
    options.config.data.path = {Path("text.txt")};
    options.report_path = Path("report.jsonl");
    const absl::Status status = RunWorker(options, [] { return false; });
    EXPECT_TRUE(status.ok()) << status;
    std::vector<uint64_t> fetched;
    std::ifstream report(options.report_path);
    for (std::string line; std::getline(report, line);) {
      fetched.push_back(nlohmann::json::parse(line)["fetched_bytes"]);
    }
    return fetched;
  }

  // Returns the sum of a counter over all servers.
  uint64_t Counter(const std::string& name) const {
    uint64_t sum = 0;
    for (const auto& control : controls_) {
      v1::StatusReply reply;
      const auto status = control->Status(Context().get(), v1::StatusRequest(), &reply);
      EXPECT_TRUE(status.ok()) << status.error_message();
      const auto it = reply.counters().find(name);
      if (it != reply.counters().end()) sum += it->second;
    }
    return sum;
  }

 private:
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kTimeout);
    return context;
  }

  uint64_t tokens_ = 0;
  std::string sha256_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<v1::Control::Stub>> controls_;
};

// Returns the copies of chunks, one for each axis, that the visits of a step fetch.
uint64_t CopiesOfStep(const JobSpec& spec) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  const CodecTable codecs = *CodecTable::Build(spec, chunks);
  uint64_t copies = 0;
  for (const Visit& visit : VisitsOfStep(spec)) {
    if (!FetchesWeights(spec, visit)) continue;
    for (const ChunkId chunk : chunks.ChunksOfStage(visit.stage)) {
      copies += codecs.axes(visit.stage, chunk, visit.backward).has_second ? 2 : 1;
    }
  }
  return copies;
}

TEST_F(FetchedBytesTest, EqualThePlanInEverySetting) {
  const Setting settings[] = {
      {/*tied=*/true},
      {/*tied=*/false},
      {true, "mx6"},
      {true, "mx6", BackwardWeights::kBothAxes},
      {false, "mx6", BackwardWeights::kBothAxes},
      {true, "mx6", BackwardWeights::kDecodeOnce},
  };
  for (const Setting& setting : settings) {
    SCOPED_TRACE(absl::StrCat(setting.tied ? "tied " : "untied ", setting.weights, " ",
                              NameOf(setting.backward_weights)));
    const JobSpec spec = SpecOf(setting);
    ASSERT_NO_FATAL_FAILURE(StartServers(spec));
    const std::vector<uint64_t> fetched = Train();
    ASSERT_EQ(fetched.size(), kSteps);
    const double planned = planner::WorkloadOf(spec)->fetched_by_worker().value();
    EXPECT_EQ(static_cast<double>(fetched.back()), kSteps * planned);
    EXPECT_EQ(Counter("fetched_bytes"), fetched.back());
    // A copy may serve two visits, if they meet while it is being encoded.
    EXPECT_LE(Counter("encodes") + Counter("encoded_by_updates"), kSteps * CopiesOfStep(spec));
  }
}

// In FP32 a worker fetches the embedding once, each block twice and the head once.
TEST_F(FetchedBytesTest, FollowTheFormulaOfAStep) {
  const JobSpec spec = SpecOf(Setting());
  ASSERT_NO_FATAL_FAILURE(StartServers(spec));
  const std::vector<uint64_t> fetched = Train();
  ASSERT_EQ(fetched.size(), kSteps);
  const ChunkMap chunks = ChunkMap::Build(spec);
  uint64_t elements = chunks.StageElements(StageId(0)) + chunks.StageElements(StageId(3));
  for (const uint32_t block : {1, 2}) elements += 2 * chunks.StageElements(StageId(block));
  EXPECT_EQ(fetched.back(), kSteps * sizeof(float) * elements);
}

}  // namespace
}  // namespace eps
