#include "eps_server/core/testing/core_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"

namespace eps {
namespace {

// Rounds before an import that did not complete is repeated.
constexpr int kPatience = 20;

}  // namespace

CoreTraining::CoreTraining(const JobSpec& spec, const CoreCluster::Options& options, bool fetches)
    : cluster_(spec, options),
      fetches_(fetches),
      codecs_(*CodecTable::Build(cluster_.spec(), cluster_.chunks())) {
  cluster_.Run();
}

std::string CoreTraining::Where() {
  std::string where;
  for (uint32_t s = 0; s < cluster_.shards(); ++s) {
    absl::StrAppend(&where, " shard ", s, ": ",
                    cluster_.IsUp(ShardId(s)) ? cluster_.Status(ShardId(s)).ShortDebugString()
                                              : std::string("down"));
  }
  return where;
}

absl::Status CoreTraining::Finish(const std::function<void()>& between, int rounds) {
  int imported = -kPatience;  // the round of the last import
  for (int round = 0; round < rounds; ++round) {
    between();
    if (!AllUp()) continue;
    const v1::JobState state = cluster_.core(ShardId(0)).state();
    if (state == v1::JOB_STATE_FAILED) return absl::InternalError("failed:" + Where());
    if (state == v1::JOB_STATE_IMPORTING && round - imported >= kPatience) {
      Import();
      imported = round;
    }
    if (state == v1::JOB_STATE_RUNNING) Step(between);
    if (state == v1::JOB_STATE_DONE) {
      const uint64_t steps = cluster_.spec().training.steps;
      if (Join()) {
        const bool lags = begun_.second == 0 && joined_.second <= steps;
        if (lags) {
          Step(between);  // another shard still has the last step open
        } else {
          CatchUp(between);
        }
      }
      if (joined_.second > 0 && Begin(steps + 1)) return absl::OkStatus();
    }
    cluster_.RunSome(3);
  }
  return absl::InternalError("stuck:" + Where());
}

void CoreTraining::Import() {
  for (uint32_t s = 0; s < cluster_.shards(); ++s) {
    const StreamId stream = cluster_.NewStream();
    cluster_.Send(ShardId(s), event::ImportInitialize{stream});
    cluster_.Send(ShardId(s), event::ImportFinish{stream, eps::Step(0), Version(0), 0, 0});
  }
}

bool CoreTraining::Join() {
  cluster_.term = cluster_.Status(ShardId(0)).term();
  if (joined_.second > 0 && joined_.first == cluster_.term) return true;
  const StreamId stream = cluster_.NewStream();
  v1::JoinRequest request;
  request.set_worker_nonce(nonce_ + 1);
  cluster_.Send(ShardId(0), event::Join{stream, request});
  for (int round = 0; round < 1000 && cluster_.answers.replies.count(stream) == 0; ++round) {
    if (cluster_.RunSome(1) == 0) break;
  }
  const auto reply = cluster_.answers.replies.find(stream);
  if (reply == cluster_.answers.replies.end()) return false;
  const auto& joined = std::get<v1::JoinReply>(reply->second.front());
  cluster_.term = joined.term();
  begun_ = fetched_ = {0, 0};
  ++nonce_;
  return Probe();
}

// The worker begins at the lowest step that a shard has open.
bool CoreTraining::Probe() {
  v1::BeginStepRequest request;
  request.set_probe(true);
  const std::vector<StreamId> streams = SendToAll(request);
  if (!Await(streams)) return false;
  open_.clear();
  for (const StreamId stream : streams) {
    const auto reply = cluster_.answers.replies.find(stream);
    if (reply == cluster_.answers.replies.end()) return false;  // refused
    open_.push_back(std::get<v1::BeginStepReply>(reply->second.front()));
  }
  const auto lowest = std::min_element(
      open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.step() < b.step(); });
  joined_ = {cluster_.term, lowest->step()};
  return cluster_.IsUp(ShardId(0));  // it may have died after its answer
}

std::vector<StreamId> CoreTraining::SendToAll(v1::BeginStepRequest request, uint64_t step) {
  request.set_job_id(cluster_.spec().id().value());
  request.set_term(cluster_.term);
  request.set_step(step);
  request.set_worker_nonce(nonce_);
  for (uint32_t p = 0; p < cluster_.spec().training.parts; ++p) request.add_parts(p);
  std::vector<StreamId> streams;
  for (uint32_t s = 0; s < cluster_.shards(); ++s) {
    if (!request.probe() && !request.report_only() && open_[s].step() > step) continue;
    streams.push_back(cluster_.NewStream());
    cluster_.Send(ShardId(s), event::BeginStep{streams.back(), request});
    if (request.report_only()) break;  // only the lead sums
  }
  return streams;
}

bool CoreTraining::Await(const std::vector<StreamId>& streams) {
  for (int round = 0; round < 1000; ++round) {
    const auto answered = [this](StreamId stream) {
      return cluster_.answers.replies.count(stream) + cluster_.answers.closed.count(stream) > 0;
    };
    if (std::all_of(streams.begin(), streams.end(), answered)) return true;
    if (cluster_.RunSome(1) == 0) return false;
  }
  return false;
}

// Asks for weights that a shard which is ahead has replaced, as a worker must that computes the
// step again for the shards which are not.
void CoreTraining::FetchOldWeights(uint64_t step) {
  const bool is_eager = cluster_.spec().training.mode == Mode::kEager;
  for (uint32_t s = 0; s < open_.size() && is_eager; ++s) {
    if (open_[s].step() <= step) continue;
    for (const Chunk& chunk : cluster_.chunks().chunks()) {
      if (chunk.frozen || cluster_.OwnerOf(chunk.id) != ShardId(s)) continue;
      cluster_.Fetch(cluster_.NewStream(), chunk.uses.front(), chunk.id, open_[s].version() - 1);
      break;
    }
  }
}

bool CoreTraining::Begin(uint64_t step) {
  if (open_.empty() && !Probe()) return false;
  const std::pair<uint64_t, uint64_t> worker = joined_;
  const std::vector<StreamId> streams = SendToAll({}, step);
  if (streams.empty()) {
    // Every shard is ahead: the step that the worker was given is complete. It joins again.
    joined_ = {0, 0};
    return false;
  }
  const bool skips = streams.size() < open_.size();
  for (int round = 0; round < 1000; ++round) {
    size_t answered = 0;
    for (const StreamId stream : streams) {
      answered += cluster_.answers.replies.count(stream);
      // Aborted: the step that the worker was given is complete, or the term is over. It joins
      // again.
      const auto closed = cluster_.answers.closed.find(stream);
      if (begun_.second > 0 || closed == cluster_.answers.closed.end()) continue;
      if (absl::IsAborted(closed->second)) joined_ = {0, 0};
    }
    if (joined_ != worker) return false;
    if (answered == streams.size()) {
      begun_ = {cluster_.term, step};
      const auto& reply = cluster_.answers.replies[streams[0]].front();
      version_ = std::get<v1::BeginStepReply>(reply).version();
      loss_scale_log2_[step] = std::get<v1::BeginStepReply>(reply).loss_scale_log2();
      if (skips) FetchOldWeights(step);
      return true;
    }
    if (cluster_.RunSome(1) == 0) return false;
  }
  return false;
}

bool CoreTraining::AllUp() const {
  for (uint32_t s = 0; s < cluster_.shards(); ++s) {
    if (!cluster_.IsUp(ShardId(s))) return false;
  }
  return true;
}

bool CoreTraining::ReportLosses(uint64_t step) {
  v1::BeginStepRequest request;
  request.set_report_only(true);
  for (uint32_t p = 0; p < cluster_.spec().training.parts; ++p) {
    v1::PartLoss* const loss = request.add_losses();
    loss->set_part(p);
    loss->set_step(step);
    loss->set_loss_sum(50.0 + p + static_cast<double>(step));
    loss->set_tokens(kTokens);
  }
  const std::vector<StreamId> streams = SendToAll(std::move(request), step + 1);
  return Await(streams) && cluster_.answers.replies.count(streams[0]) > 0;
}

// A worker repeats contributions until they are acknowledged, also to a shard that restarts.
v1::StatusReply CoreTraining::CatchUp(const std::function<void()>& between) {
  std::vector<std::pair<ShardId, v1::StatusReply>> statuses;
  v1::StatusReply first = cluster_.Status(ShardId(0));
  if (first.term() != joined_.first) return first;
  for (uint32_t s = 0; s < cluster_.shards(); ++s) {
    if (!cluster_.IsUp(ShardId(s))) continue;
    v1::StatusReply status = cluster_.Status(ShardId(s));
    const bool works =
        status.state() == v1::JOB_STATE_RUNNING || status.state() == v1::JOB_STATE_DONE;
    if (!works || status.term() != cluster_.term) continue;
    if (status.step() > first.step()) first = status;
    statuses.emplace_back(ShardId(s), std::move(status));
  }
  for (const auto& [shard, status] : statuses) {
    // A status may be ahead of the durable log. Only a step whose BeginStep was answered has begun.
    if (status.step() >= first.step() || status.step() > begun_.second) continue;
    if (begun_.first != cluster_.term) continue;
    if (!PushAll(status.step(), status.version(), &shard, between)) break;
  }
  return first;
}

void CoreTraining::Step(const std::function<void()>& between) {
  if (!Join()) return;
  const v1::StatusReply status = CatchUp(between);
  const uint64_t step = begun_.second == 0 ? joined_.second : status.step();
  if (!Begin(step)) return;
  // Fetches once: a worker that fetches updated weights again thereby reports that its work is
  // lost.
  if (fetches_ && fetched_ != std::make_pair(cluster_.term, step)) {
    fetched_ = {cluster_.term, step};
    FetchAll(version_);
  }
  if (step > cluster_.spec().training.steps) return;
  if (PushAll(step, version_, nullptr, between)) NoteServed();
}

bool CoreTraining::PushAll(uint64_t step, uint64_t version, const ShardId* only_or_null,
                           const std::function<void()>& between) {
  const StreamId stream = cluster_.NewStream();
  for (size_t s = cluster_.spec().stages.size(); s-- > 0;) {
    const StageId stage(static_cast<uint32_t>(s));
    if (stage == cluster_.spec().LowestTrainableStage() && !ReportLosses(step)) return false;
    for (ChunkId id : cluster_.chunks().ChunksOfStage(stage)) {
      if (only_or_null != nullptr && cluster_.OwnerOf(id) != *only_or_null) continue;
      const Chunk& chunk = cluster_.chunks().chunk(id);
      if (chunk.frozen) continue;
      const Codec* const codec = codecs_.residual_or_null(id, eps::Step(step));
      for (uint32_t p = 0; p < cluster_.spec().training.parts; ++p) {
        std::vector<float> gradient = TellingGradient(chunk, stage, p, step);
        ScaleLoss(step, id, p, &gradient);
        Bytes residual;
        if (codec != nullptr) {
          float scale = 1;
          if (!ReadResidual(stage, p, id, version, &scale)) return false;
          for (float& g : gradient) g *= scale;
          residual = EncodeChunk(*codec, chunk, EncodeOptions(), gradient.data());
        }
        cluster_.Push(stream, step, stage, TreeRange{p, 1}, id, gradient, kTokens, nonce_,
                      residual);
        between();
        if (joined_.second == 0) return false;  // ReplaceWorker was called
      }
    }
  }
  return true;
}

void CoreTraining::ScaleLoss(uint64_t step, ChunkId chunk, uint32_t part,
                             std::vector<float>* gradient) {
  const JobSpec& spec = cluster_.spec();
  if (spec.training.precision != Precision::kCmp) return;
  const int log2 = loss_scale_log2_.at(step);
  for (float& g : *gradient) g = std::ldexp(g, -log2);
  const int highest = 10 + static_cast<int>(step * step % 5);
  const auto chunks = static_cast<uint32_t>(cluster_.chunks().chunks().size());
  const bool is_large = chunk.value() == step % chunks && part == 0;
  const int scale = LossScaleLog2(spec, LossScale()) - log2;
  if (is_large && scale > highest) gradient->back() = std::numeric_limits<float>::infinity();
}

bool CoreTraining::ReadResidual(StageId use, uint32_t part, ChunkId chunk, uint64_t version,
                                float* scale) {
  const uint64_t tag =
      cluster_.FetchResidual(cluster_.NewStream(), use, PartId(part), chunk, version);
  for (int round = 0; round < 1000; ++round) {
    const auto found = cluster_.answers.residuals.find(tag);
    if (found != cluster_.answers.residuals.end()) {
      const Bytes& bytes = found->second.at(chunk.value());
      *scale = 1.0f + static_cast<float>(bytes.empty() ? 0 : Crc32c(bytes.view()) % 97) / 128.0f;
      cluster_.answers.residuals.erase(found);
      return true;
    }
    if (cluster_.answers.failed_fetches.count(tag) > 0 || cluster_.RunSome(1) == 0) return false;
  }
  return false;
}

void CoreTraining::FetchAll(uint64_t version) {
  for (uint32_t s = 0; s < cluster_.spec().stages.size(); ++s) {
    const StreamId stream = cluster_.NewStream();
    for (ChunkId id : cluster_.chunks().ChunksOfStage(StageId(s))) {
      fetching_[cluster_.Fetch(stream, StageId(s), id, version)] = {version, id.value()};
    }
  }
}

void CoreTraining::NoteServed() {
  for (auto it = fetching_.begin(); it != fetching_.end();) {
    const auto found = cluster_.answers.fetched.find(it->first);
    if (found == cluster_.answers.fetched.end()) {
      ++it;
      continue;
    }
    const uint32_t crc = Crc32c(found->second.view());
    const auto noted = outcome_.served.emplace(it->second, crc).first;
    if (noted->second != crc && served_.ok()) {
      served_ = absl::DataLossError(absl::StrCat("chunk ", it->second.second, " at version ",
                                                 it->second.first, " was served in two ways"));
    }
    cluster_.answers.fetched.erase(found);
    it = fetching_.erase(it);
  }
}

absl::Status CoreTraining::CheckServed(const Outcome& expected) const {
  if (!served_.ok()) return served_;
  for (const auto& [what, crc] : outcome_.served) {
    const auto found = expected.served.find(what);
    if (found != expected.served.end() && found->second != crc) {
      return absl::DataLossError(absl::StrCat("chunk ", what.second, " at version ", what.first,
                                              " was not served as in the undisturbed run"));
    }
  }
  return absl::OkStatus();
}

CoreTraining::Outcome CoreTraining::End() {
  cluster_.Run();
  NoteServed();
  Sha256 sha;
  for (const Bytes& state : cluster_.States()) sha.Update(state.view());
  outcome_.digest = ToHex(sha.Finish());
  const StreamId watch = cluster_.NewStream();
  cluster_.Send(ShardId(0), event::Watch{watch, 0});
  for (const effect::ReplyMessage& reply : cluster_.answers.replies[watch]) {
    const v1::StepRecord& record = *std::get<effect::SharedRecord>(reply);
    absl::StrAppendFormat(&outcome_.digest, " %d:%a:%a", record.step(), record.loss(),
                          record.grad_norm());
    if (record.has_loss_scale_log2()) {
      absl::StrAppend(&outcome_.digest, ":", record.loss_scale_log2());
    }
  }
  return outcome_;
}

}  // namespace eps
