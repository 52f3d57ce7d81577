#include "eps_server/core/replay/output_commit.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps_server/core/events.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const absl::Status kOver = absl::AbortedError("term 1 is over");

// Names each effect with its stream, its tag and its status.
std::vector<std::string> Texts(const std::vector<Effect>& effects) {
  std::vector<std::string> texts;
  for (const Effect& effect : effects) {
    if (const auto* fail = std::get_if<effect::FailFetch>(&effect)) {
      texts.push_back("fail " + std::to_string(fail->stream.value()) + ":" +
                      std::to_string(fail->tag) + " " + std::string(fail->status.message()));
    } else if (const auto* close = std::get_if<effect::Close>(&effect)) {
      texts.push_back("close " + std::to_string(close->stream.value()) + " " +
                      std::string(close->status.message()));
    } else {
      texts.push_back("effect " + std::to_string(effect.index()));
    }
  }
  return texts;
}

effect::SendChunk ChunkOf(uint64_t stream, uint64_t tag) {
  effect::SendChunk chunk;
  chunk.stream = StreamId(stream);
  chunk.tag = tag;
  return chunk;
}

TEST(OutputCommit, HoldsAnswersUntilTheLogIsDurable) {
  OutputCommit output;
  std::vector<Effect> out;
  output.OnLogged(OpId(1));
  output.Emit(ChunkOf(5, 1), &out);
  output.Emit(effect::SetTimer{TimerId(1), 10}, &out);
  EXPECT_THAT(out, SizeIs(1)) << "nobody else sees a timer";
  output.OnDurable(OpId(1), &out);
  EXPECT_THAT(out, SizeIs(2));
}

TEST(OutputCommit, EndOfTermAnswersWhateverItHolds) {
  OutputCommit output;
  std::vector<Effect> out;
  output.OnLogged(OpId(1));
  output.Emit(ChunkOf(5, 1), &out);
  output.Emit(ChunkOf(5, 1), &out);  // two chunks of one fetch
  output.Emit(effect::FailFetch{StreamId(5), 2, absl::NotFoundError("gone")}, &out);
  output.Emit(effect::Reply{StreamId(6), v1::BeginStepReply()}, &out);
  output.Emit(effect::Close{StreamId(7), absl::OkStatus()}, &out);
  output.Emit(effect::Reply{StreamId(8), std::make_shared<v1::StepRecord>()}, &out);
  output.Emit(effect::SendAck{StreamId(9), 1, v1::Ack()}, &out);
  EXPECT_THAT(out, IsEmpty());
  output.Drop(kOver, &out);
  EXPECT_THAT(Texts(out), ElementsAre("fail 5:1 term 1 is over", "fail 5:2 term 1 is over",
                                      "close 6 term 1 is over", "close 7 term 1 is over"));
}

TEST(OutputCommit, HoldsNothingAfterTheTerm) {
  OutputCommit output;
  std::vector<Effect> out;
  output.OnLogged(OpId(1));
  output.Emit(ChunkOf(5, 1), &out);
  output.Drop(kOver, &out);
  out.clear();
  output.Emit(ChunkOf(5, 2), &out);
  EXPECT_THAT(out, SizeIs(1));
  output.OnDurable(OpId(1), &out);
  EXPECT_THAT(out, SizeIs(1)) << "the answer of the old term is gone";
}

}  // namespace
}  // namespace eps
