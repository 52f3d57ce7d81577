#include "worker/client/testing/scripted_shard.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/numerics/flush_denormals.h"
#include "grpcpp/server_builder.h"
#include "worker/client/testing/scripted_control.h"

namespace eps {
namespace {

std::string EncodedWeights(const Chunk& chunk, const Codec& codec, Axis axis, uint64_t version) {
  std::vector<float> elements(chunk.elements);
  for (uint64_t i = 0; i < chunk.elements; ++i) {
    elements[i] = ScriptedWeight(chunk.id.value(), i, version);
  }
  EncodeOptions options;
  options.axis = axis;
  const Bytes bytes = EncodeChunk(codec, chunk, options, elements.data());
  return std::string(bytes.view());
}

}  // namespace

float ScriptedWeight(uint32_t chunk, uint64_t element, uint64_t version) {
  return static_cast<float>(chunk * 1000.0 + static_cast<double>(element % 997) +
                            static_cast<double>(version) * 0.5);
}

// One Push call: its own thread reads, any thread writes.
class ScriptedShard::PushStream {
 public:
  using Stream = grpc::ServerReaderWriter<v1::PushReply, v1::PushFrame>;
  PushStream(ScriptedShard* shard, Stream* stream) : s_(shard), stream_(stream) {}

  grpc::Status Run(grpc::ServerContext* context) {
    std::thread credits([this, context] { GiveCredits(context); });
    const grpc::Status status = ReadAll();
    {
      MutexLock lock(&s_->mu_);
      done_ = true;
      s_->changed_.NotifyAll();
    }
    credits.join();
    return status;
  }

 private:
  struct Incoming {
    v1::PushHeader header;
    bool credited = false;
    std::string bytes;
  };

  void Write(const v1::PushReply& reply) {
    MutexLock lock(&write_mu_);
    stream_->Write(reply);
  }

  void GiveCredits(grpc::ServerContext* context) {
    s_->mu_.Lock();
    while (!done_ && !s_->stopping_ && !context->IsCancelled()) {
      std::vector<uint64_t> tags;
      if (!s_->script_.pushes.hold_credits) {
        for (auto& [tag, incoming] : incoming_) {
          if (incoming.credited) continue;
          incoming.credited = true;
          tags.push_back(tag);
        }
      }
      if (tags.empty()) {
        s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
        continue;
      }
      s_->mu_.Unlock();
      for (const uint64_t tag : tags) {
        v1::PushReply reply;
        reply.set_tag(tag);
        reply.mutable_credit();
        Write(reply);
      }
      s_->mu_.Lock();
    }
    s_->mu_.Unlock();
  }

  grpc::Status ReadAll() {
    v1::PushFrame frame;
    while (stream_->Read(&frame)) {
      if (frame.has_header()) {
        OnHeader(frame.header());
        continue;
      }
      const grpc::Status status = OnPayload(frame);
      if (!status.ok()) return status;
    }
    return grpc::Status::OK;
  }

  void OnHeader(const v1::PushHeader& header) {
    v1::PushReply reply;
    {
      MutexLock lock(&s_->mu_);
      s_->seen_.headers.push_back(header);
      s_->changed_.NotifyAll();
      Script& script = s_->script_;
      if (script.pushes.header_replies.empty()) {
        incoming_[header.tag()].header = header;
        return;
      }
      reply = script.pushes.header_replies.front();
      reply.set_tag(reply.tag() + header.tag());
      script.pushes.header_replies.pop_front();
    }
    Write(reply);
  }

  grpc::Status OnPayload(const v1::PushFrame& frame) {
    v1::PushReply reply;
    {
      MutexLock lock(&s_->mu_);
      ++s_->seen_.payload_frames;
      s_->seen_.largest_frame = std::max(s_->seen_.largest_frame, frame.data().size());
      if (s_->script_.pushes.break_after > 0 && --s_->script_.pushes.break_after == 0) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted break");
      }
      const auto it = incoming_.find(frame.tag());
      if (it == incoming_.end() || !it->second.credited ||
          frame.offset() != it->second.bytes.size()) {
        s_->seen_.payload_without_credit = true;
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "payload without credit");
      }
      it->second.bytes += frame.data();
      if (!frame.last()) return grpc::Status::OK;
      reply.set_tag(frame.tag());
      reply.mutable_ack()->set_outcome(Count(it->second));
      incoming_.erase(it);
      s_->changed_.NotifyAll();
    }
    Write(reply);
    return grpc::Status::OK;
  }

  v1::Ack::Outcome Count(const Incoming& incoming) {
    const v1::PushHeader& header = incoming.header;
    const v1::ContributionKey& key = header.key();
    const std::string data = incoming.bytes.substr(0, header.bytes());
    const std::string residual = incoming.bytes.substr(data.size());
    EPS_CHECK(Crc32c(data) == header.crc32c() && residual.size() == header.residual_bytes());
    const Chunk& chunk = s_->chunks_->chunk(ChunkId(key.chunk()));
    const Codec& codec = s_->codecs_.gradient(chunk.id, Step(key.step()));
    EPS_CHECK(header.codec() == static_cast<uint32_t>(codec.traits().id));
    const Seen::Place place{key.use_stage(), key.part_first(), key.chunk()};
    if (header.has_nonfinite_element()) {
      EPS_CHECK(incoming.bytes.empty());
      return ++s_->seen_.times_counted[place] > 1 ? v1::Ack::DUPLICATE : v1::Ack::ACCEPTED;
    }
    auto encoded = codec.Open(chunk, Axis::kRow, Bytes::CopyOf(data), Content::kGradient);
    EPS_CHECK_MSG(encoded.ok(), encoded.status().message());
    std::vector<float>& elements = s_->seen_.counted[place];
    elements.resize(chunk.elements);
    ScopedFlushDenormals flush;
    DecodeChunk(**encoded, chunk, elements.data());
    s_->seen_.tokens[place] = header.tokens();
    return ++s_->seen_.times_counted[place] > 1 ? v1::Ack::DUPLICATE : v1::Ack::ACCEPTED;
  }

  ScriptedShard* const s_;
  Stream* const stream_;
  Mutex write_mu_;
  std::map<uint64_t, Incoming> incoming_;  // guarded by the shard's lock, like done_
  bool done_ = false;
};

// Answers BeginStep, Fetch and Push as the script says.
class ScriptedShard::DataService final : public v1::Data::Service {
 public:
  explicit DataService(ScriptedShard* shard) : s_(shard) {}

  grpc::Status BeginStep(grpc::ServerContext* context, const v1::BeginStepRequest* request,
                         v1::BeginStepReply* reply) override {
    MutexLock lock(&s_->mu_);
    reply->set_term(s_->script_.term);
    if (request->probe()) {
      s_->seen_.probes.push_back(*request);
      if (!s_->script_.begin_steps.empty()) {
        const auto answer = s_->script_.begin_steps.front();
        s_->script_.begin_steps.pop_front();
        return answer(reply);
      }
      reply->set_step(s_->script_.next_step);
      reply->set_done(s_->script_.next_step > s_->spec_->training.steps);
      return grpc::Status::OK;
    }
    (request->report_only() ? s_->seen_.reports : s_->seen_.begins).push_back(*request);
    s_->changed_.NotifyAll();
    while (s_->script_.park_begin_steps && !s_->stopping_ && !context->IsCancelled()) {
      s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
    }
    reply->set_step(request->step());
    reply->set_version(request->step() - 1);
    reply->set_loss_scale_log2(s_->script_.loss_scale_log2);
    reply->set_done(request->step() > s_->spec_->training.steps);
    if (!s_->script_.begin_steps.empty()) {
      const auto answer = s_->script_.begin_steps.front();
      s_->script_.begin_steps.pop_front();
      return answer(reply);
    }
    reply->set_push_residuals(request->leaving());
    for (const v1::Have& have : s_->script_.have) *reply->add_have() = have;
    for (const Chunk& chunk : s_->chunks_->chunks()) {
      v1::ChunkCodecs* codecs = reply->add_codecs();
      codecs->set_chunk(chunk.id.value());
      const auto weights = static_cast<uint32_t>(s_->codecs_.weights(chunk.id).traits().id);
      codecs->set_forward_weights(weights);
      codecs->set_backward_weights(weights);
      const Codec& gradient = s_->codecs_.gradient(chunk.id, Step(request->step()));
      codecs->set_gradient(static_cast<uint32_t>(gradient.traits().id));
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::FetchSlice, v1::FetchRequest>* stream) override {
    {
      MutexLock lock(&s_->mu_);
      if (s_->script_.break_fetch_streams > 0) {
        --s_->script_.break_fetch_streams;
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted break");
      }
    }
    FetchState state;
    grpc::Status status;
    std::thread writer([&] { status = Answer(context, stream, &state); });
    v1::FetchRequest request;
    while (stream->Read(&request)) {
      MutexLock lock(&s_->mu_);
      s_->seen_.fetches.push_back(request);
      state.requests.push_back(request);
      s_->seen_.most_in_flight = std::max(s_->seen_.most_in_flight, state.requests.size());
      s_->changed_.NotifyAll();
    }
    {
      MutexLock lock(&s_->mu_);
      state.reads_done = true;
      s_->changed_.NotifyAll();
    }
    writer.join();
    return status;
  }

  grpc::Status Push(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::PushReply, v1::PushFrame>* stream) override {
    return PushStream(s_, stream).Run(context);
  }

 private:
  using FetchStream = grpc::ServerReaderWriter<v1::FetchSlice, v1::FetchRequest>;
  struct FetchState {
    std::deque<v1::FetchRequest> requests;
    bool reads_done = false;
  };

  bool Parked() const { return s_->script_.park_fetches && s_->script_.answer_parked == 0; }

  grpc::Status Answer(grpc::ServerContext* context, FetchStream* stream, FetchState* state) {
    for (;;) {
      v1::FetchRequest request;
      {
        MutexLock lock(&s_->mu_);
        while ((state->requests.empty() || Parked()) && !state->reads_done && !s_->stopping_) {
          s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
        }
        if (state->requests.empty() || Parked()) return grpc::Status::OK;
        if (s_->script_.answer_parked > 0) --s_->script_.answer_parked;
        request = state->requests.front();
        state->requests.pop_front();
      }
      for (v1::FetchSlice& slice : Slices(request)) {
        {
          MutexLock lock(&s_->mu_);
          if (s_->script_.break_fetch_after > 0 && --s_->script_.break_fetch_after == 0) {
            context->TryCancel();
            return grpc::Status::CANCELLED;
          }
          if (s_->script_.edit_slice != nullptr) s_->script_.edit_slice(&slice);
        }
        stream->Write(slice);
      }
    }
  }

  std::vector<v1::FetchSlice> Slices(const v1::FetchRequest& request) {
    MutexLock lock(&s_->mu_);
    std::vector<std::vector<v1::FetchSlice>> by_chunk;
    const bool backward = request.pass() == v1::PASS_BACKWARD;
    for (const ChunkId id : s_->ChunksOf(request)) {
      if (request.residuals()) {
        by_chunk.push_back({EmptyResidual(request, id)});
        continue;
      }
      by_chunk.push_back(SlicesOf(request, id, 0));
      const WeightAxes axes = s_->codecs_.axes(StageId(request.stage()), id, backward);
      if (axes.has_second) by_chunk.push_back(SlicesOf(request, id, 1));
    }
    std::vector<v1::FetchSlice> all;
    if (!s_->script_.interleave) {
      for (const auto& slices : by_chunk) all.insert(all.end(), slices.begin(), slices.end());
      return all;
    }
    size_t longest = 0;
    for (const auto& slices : by_chunk) longest = std::max(longest, slices.size());
    std::reverse(by_chunk.begin(), by_chunk.end());
    for (size_t i = 0; i < longest; ++i) {
      for (const auto& slices : by_chunk) {
        if (i < slices.size()) all.push_back(slices[i]);
      }
    }
    return all;
  }

  v1::FetchSlice EmptyResidual(const v1::FetchRequest& request, ChunkId id) {
    const Step after_warmup(s_->spec_->codecs.warmup_steps + 1);
    const Codec* const codec = s_->codecs_.residual_or_null(id, after_warmup);
    EPS_CHECK(codec != nullptr);
    v1::FetchSlice slice;
    slice.set_tag(request.tag());
    slice.set_chunk(id.value());
    slice.set_version(request.version());
    slice.set_codec(static_cast<uint32_t>(codec->traits().id));
    slice.set_residual(true);
    slice.set_last(true);
    slice.set_crc32c(Crc32c(""));
    return slice;
  }

  std::vector<v1::FetchSlice> SlicesOf(const v1::FetchRequest& request, ChunkId id, uint32_t view) {
    const Chunk& chunk = s_->chunks_->chunk(id);
    const bool backward = request.pass() == v1::PASS_BACKWARD;
    const WeightAxes axes = s_->codecs_.axes(StageId(request.stage()), id, backward);
    const std::string bytes = EncodedWeights(
        chunk, s_->codecs_.weights(id), view == 0 ? axes.first : axes.second, request.version());
    uint32_t crc = Crc32c(bytes);
    if (s_->script_.damage > 0) {
      --s_->script_.damage;
      crc ^= 1;
    }
    std::vector<v1::FetchSlice> slices;
    for (size_t offset = 0; offset < bytes.size(); offset += s_->script_.slice_bytes) {
      v1::FetchSlice slice;
      slice.set_tag(request.tag());
      slice.set_chunk(id.value());
      slice.set_version(request.version());
      slice.set_codec(static_cast<uint32_t>(s_->codecs_.weights(id).traits().id));
      slice.set_view(view);
      slice.set_total_bytes(bytes.size());
      slice.set_offset(offset);
      slice.set_data(bytes.substr(offset, s_->script_.slice_bytes));
      slice.set_last(offset + slice.data().size() == bytes.size());
      if (slice.last()) slice.set_crc32c(crc);
      slices.push_back(std::move(slice));
    }
    return slices;
  }

  ScriptedShard* const s_;
};

std::vector<ChunkId> ScriptedShard::ChunksOf(const v1::FetchRequest& request) const {
  const std::vector<ShardId> placement = chunks_->Place(static_cast<uint32_t>(servers_.size()));
  const std::set<uint32_t> wanted(request.chunks().begin(), request.chunks().end());
  std::vector<ChunkId> chunks;
  for (const ChunkId id : chunks_->ChunksOfStage(StageId(request.stage()))) {
    if (placement[id.value()].value() != shard_) continue;
    if (wanted.empty() || wanted.count(id.value()) > 0) chunks.push_back(id);
  }
  EPS_CHECK(wanted.empty() || chunks.size() == wanted.size());
  return chunks;
}

ScriptedShard::ScriptedShard(const JobSpec* spec, const ChunkMap* chunks, uint32_t shard)
    : spec_(spec),
      chunks_(chunks),
      codecs_(*CodecTable::Build(*spec, *chunks)),
      shard_(shard),
      address_("127.0.0.1:0") {
  Start();
  servers_ = {address_};
}

ScriptedShard::~ScriptedShard() { Stop(); }

void ScriptedShard::Start() {
  stopping_ = false;
  control_ = std::make_unique<ControlService>(this);
  data_ = std::make_unique<DataService>(this);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(control_.get());
  builder.RegisterService(data_.get());
  builder.SetMaxReceiveMessageSize(4 << 20);
  server_ = builder.BuildAndStart();
  EPS_CHECK_MSG(server_ != nullptr, "cannot listen on " << address_);
  address_ = "127.0.0.1:" + std::to_string(port);
}

void ScriptedShard::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  server_.reset();
}

void ScriptedShard::SetServers(std::vector<std::string> servers) {
  MutexLock lock(&mu_);
  servers_ = std::move(servers);
}

void ScriptedShard::Change(const std::function<void(Script*)>& change) {
  MutexLock lock(&mu_);
  change(&script_);
  changed_.NotifyAll();
}

Seen ScriptedShard::seen() const {
  MutexLock lock(&mu_);
  return seen_;
}

bool ScriptedShard::WaitUntil(const std::function<bool(const Seen&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  MutexLock lock(&mu_);
  while (!condition(seen_)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    changed_.WaitFor(&mu_, kScriptPoll);
  }
  return true;
}

}  // namespace eps
