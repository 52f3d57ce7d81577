#include "bench/peers/shm_peers.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "wire/channel.h"
#include "wire/payload_message.h"
#include "wire/payload_slices.h"
#include "wire/shm/shm_client.h"
#include "wire/shm/shm_server.h"
#include "worker/client/byte_stream.h"

namespace eps {
namespace {

constexpr uint32_t kInFlight = 8;  // as ShardFetcher::kMaxRequests
constexpr int kPoolThreads = 2;
constexpr std::chrono::minutes kTimeout{1};

// A server's weights in its own memory and, once a worker has mapped it, in the shared segment.
struct Store {
  TransportLoad load;
  ShmServer* shm;
  MemoryAccount* account;
  Executor* pool;
  Bytes own;
  Mutex mu;
  Bytes shared EPS_GUARDED_BY(mu);

  Bytes Payload(uint32_t number, bool from_segment) {
    const size_t offset = size_t{number} * load.chunk_bytes;
    if (!from_segment) return own.Sub(offset, load.chunk_bytes);
    MutexLock lock(&mu);
    if (shared.empty()) {
      Buffer segment(own.size(), MemoryKind::kFetch, account);
      std::memcpy(segment.data(), own.data(), own.size());
      shared = std::move(segment).Freeze();
    }
    return shared.Sub(offset, load.chunk_bytes);
  }
  // Returns whether bytes are those of a payload.
  bool IsPayload(uint32_t number, const Bytes& bytes) const {
    return bytes.view() == own.Sub(size_t{number} * load.chunk_bytes, load.chunk_bytes).view();
  }
};

// Answers fetches as FetchCall does; FetchRequest.stage is the number of the payload.
class FetchPeer final : public BidiCall {
 public:
  static FetchPeer* Start(Store* store) {
    std::shared_ptr<FetchPeer> call(new FetchPeer(store));
    call->Adopt(nullptr);
    call->ReadNext();
    return call.get();
  }

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override {
    v1::FetchRequest request;
    if (!ParseMessage(message, &request).ok()) return false;
    work_.Post([self = std::static_pointer_cast<FetchPeer>(shared_from_this()),
                request = std::move(request)] { self->Send(request); });
    return true;
  }
  void OnHalfClose() override { End(absl::OkStatus()); }

 private:
  explicit FetchPeer(Store* store) : store_(store), work_(store->pool) {}

  void Send(const v1::FetchRequest& request) {
    const auto session = store_->shm->Find(request.shared_session());
    const Bytes payload = store_->Payload(request.stage(), session != nullptr);
    v1::FetchSlice slice;
    slice.set_tag(request.tag());
    slice.set_chunk(request.stage());
    slice.set_total_bytes(payload.size());
    const uint32_t crc = Crc32c(payload.view());
    std::vector<grpc::ByteBuffer> messages;
    if (session != nullptr && session->Hold(payload, slice.mutable_range())) {
      slice.set_last(true);
      slice.set_crc32c(crc);
      return Write(JoinPayload(slice, Bytes()));
    }
    slice.clear_range();
    for (const PayloadSlice& part : SlicesOf(payload.size())) {
      slice.set_offset(part.offset);
      slice.set_last(part.last);
      if (part.last) slice.set_crc32c(crc);
      messages.push_back(JoinPayload(slice, payload.Sub(part.offset, part.size)));
    }
    Write(std::move(messages));
  }

  Store* const store_;
  Sequence work_;
};

// Takes payloads as PushCall does, and acknowledges each; the tag is the number of the payload, and
// the header, which needs no credit, comes with the first frame. A header with a step compares.
class PushPeer final : public BidiCall {
 public:
  static PushPeer* Start(Store* store) {
    std::shared_ptr<PushPeer> call(new PushPeer(store));
    call->Adopt(nullptr);
    call->ReadNext();
    return call.get();
  }

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override {
    v1::PushFrame frame;
    std::vector<grpc::Slice> pieces;
    if (!SplitPayload(message, &frame, &pieces).ok()) return false;
    const uint32_t number = static_cast<uint32_t>(frame.tag());
    Receiving& receiving = receiving_[number];
    if (frame.has_header()) {
      receiving.header = frame.header();
      receiving.payload = std::make_shared<PayloadAssembler>(
          frame.header().bytes(), MemoryKind::kContribution, store_->account);
    }
    absl::Span<const uint8_t> shared;
    const auto session = store_->shm->Find(frame.range().session());
    if (session != nullptr) {
      const auto found = session->Gradients(frame.range());
      if (found.ok()) shared = *found;
    } else if (!receiving.payload->Append(frame.offset(), pieces).ok()) {
      return false;
    }
    if (!frame.last()) return true;
    store_->pool->Post([self = std::static_pointer_cast<PushPeer>(shared_from_this()), number,
                        session, shared, receiving] {
      if (session != nullptr) (void)receiving.payload->Append(0, shared);
      self->Acknowledge(number, receiving.header, receiving.payload->Take());
    });
    receiving_.erase(number);
    return true;
  }
  void OnHalfClose() override { End(absl::OkStatus()); }

 private:
  // A payload that is arriving.
  struct Receiving {
    v1::PushHeader header;
    std::shared_ptr<PayloadAssembler> payload;
  };

  explicit PushPeer(Store* store) : store_(store) {}

  void Acknowledge(uint32_t number, const v1::PushHeader& header, const Bytes& bytes) {
    const bool good = bytes.size() == header.bytes() && Crc32c(bytes.view()) == header.crc32c() &&
                      (header.key().step() == 0 || store_->IsPayload(number, bytes));
    v1::PushReply reply;
    reply.set_tag(number);
    reply.mutable_ack()->set_outcome(good ? v1::Ack::ACCEPTED : v1::Ack::CONFLICT);
    Write(JoinPayload(reply, Bytes()));
  }

  Store* const store_;
  std::map<uint32_t, Receiving> receiving_;  // used by OnMessage
};

using PeerBase = v1::Data::WithCallbackMethod_BeginStep<
    v1::Data::WithRawCallbackMethod_Fetch<v1::Data::WithRawCallbackMethod_Push<v1::Data::Service>>>;

// The product's data service, reduced to payloads.
class PeerService final : public PeerBase {
 public:
  explicit PeerService(Store* store) : store_(store) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Fetch(
      grpc::CallbackServerContext*) override {
    return FetchPeer::Start(store_);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Push(
      grpc::CallbackServerContext*) override {
    return PushPeer::Start(store_);
  }

 private:
  Store* const store_;
};

Bytes Pattern(size_t bytes) {
  Buffer buffer(bytes);
  FillPattern(buffer.data(), bytes);
  return std::move(buffer).Freeze();
}

// The worker over two streams, each with a connection of its own.
class ShmWorkerImpl final : public ShmWorker {
 public:
  ShmWorkerImpl(const TransportLoad& load, const std::string& address,
                std::shared_ptr<ShmWeights> weights, std::shared_ptr<ShmGradients> gradients)
      : load_(load),
        pattern_(Pattern(load.total_bytes)),
        weights_(std::move(weights)),
        gradients_(std::move(gradients)),
        pool_(kPoolThreads),
        down_(NewChannel(address)),
        up_(NewChannel(address)) {
    fetch_ = Open(down_, "/eps.v1.Data/Fetch", &ShmWorkerImpl::OnSlice);
    push_ = Open(up_, "/eps.v1.Data/Push", &ShmWorkerImpl::OnReply);
  }
  ~ShmWorkerImpl() override {
    fetch_->Cancel();
    push_->Cancel();
    MutexLock lock(&mu_);
    while (open_ > 0) changed_.WaitFor(&mu_, std::chrono::seconds(1));
  }

  absl::Status Fetch(bool shared, bool compare) override {
    return Run(compare, [this, shared](uint32_t number) {
      v1::FetchRequest request;
      request.set_tag(number);
      request.set_stage(number);
      if (shared) request.set_shared_session(weights_->session());
      fetch_->Write(JoinPayload(request, Bytes()));
    });
  }

  absl::Status Push(bool shared, bool compare) override {
    return Run(compare, [this, shared, compare](uint32_t number) {
      pool_.Post([this, shared, compare, number] { Send(number, shared, compare); });
    });
  }

 private:
  using Receiver = void (ShmWorkerImpl::*)(const grpc::ByteBuffer& message);

  std::shared_ptr<ByteStream> Open(const std::shared_ptr<grpc::Channel>& channel,
                                   const char* method, Receiver receiver) {
    {
      MutexLock lock(&mu_);
      ++open_;
    }
    return ByteStream::Open(
        channel, method,
        [this, receiver](const grpc::ByteBuffer& message) { (this->*receiver)(message); },
        [this](const grpc::Status& status) {
          MutexLock lock(&mu_);
          --open_;
          FailLocked(absl::UnavailableError(status.error_message()));
        });
  }

  // Moves all payloads, kInFlight at a time.
  absl::Status Run(bool compare, const std::function<void(uint32_t)>& start) {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    uint32_t next = 0;
    MutexLock lock(&mu_);
    compare_ = compare;
    done_ = 0;
    while (done_ < load_.chunks() && status_.ok()) {
      while (next < load_.chunks() && next < done_ + kInFlight) {
        mu_.Unlock();
        start(next++);
        mu_.Lock();
      }
      if (done_ == load_.chunks() || !status_.ok()) break;
      if (!changed_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError("too slow");
    }
    return status_;
  }

  void OnSlice(const grpc::ByteBuffer& message) {
    v1::FetchSlice slice;
    std::vector<grpc::Slice> pieces;
    absl::Status status = SplitPayload(message, &slice, &pieces);
    Bytes bytes;
    if (status.ok() && slice.has_range()) {
      absl::StatusOr<Bytes> shared = weights_->Read(slice.range());
      if (!shared.ok()) return Done(shared.status());
      bytes = *std::move(shared);
    } else if (status.ok()) {
      PayloadAssembler& payload = arriving_[slice.tag()];
      if (slice.offset() == 0) {
        payload = PayloadAssembler(slice.total_bytes(), MemoryKind::kStage, nullptr);
      }
      status = payload.Append(slice.offset(), pieces);
      if (status.ok() && !slice.last()) return;
      bytes = payload.Take();
      arriving_.erase(slice.tag());
    }
    if (!status.ok()) return Done(status);
    pool_.Post([this, bytes, number = slice.chunk(), crc = slice.crc32c()] {
      Done(Check(number, bytes, crc));
    });
  }

  absl::Status Check(uint32_t number, const Bytes& bytes, uint32_t crc) {
    bool compare = false;
    {
      MutexLock lock(&mu_);
      compare = compare_;
    }
    const Bytes expected = pattern_.Sub(size_t{number} * load_.chunk_bytes, load_.chunk_bytes);
    if (bytes.size() == expected.size() && Crc32c(bytes.view()) == crc &&
        (!compare || bytes.view() == expected.view())) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("payload ", number, " is damaged"));
  }

  // Sends a payload as PushQueue and ShardPusher do: encode it as FP32, into the segment if that is
  // shared, compute its checksum, and write frames.
  void Send(uint32_t number, bool shared, bool compare) {
    const auto encode = [&](MemoryAccount* account_or_null) {
      Buffer encoded(load_.chunk_bytes, MemoryKind::kStage, account_or_null);
      std::memcpy(encoded.data(), pattern_.data() + size_t{number} * load_.chunk_bytes,
                  load_.chunk_bytes);
      return std::move(encoded).Freeze();
    };
    const Bytes payload = shared ? gradients_->Encode(encode) : encode(nullptr);
    v1::PushFrame frame;
    frame.set_tag(number);
    v1::PushHeader* const header = frame.mutable_header();
    header->set_bytes(payload.size());
    header->set_crc32c(Crc32c(payload.view()));
    header->mutable_key()->set_step(compare ? 1 : 0);
    if (shared && !gradients_->Find(payload, frame.mutable_range())) {
      return Done(absl::ResourceExhaustedError("the segment is full"));
    }
    MutexLock lock(&mu_);
    sent_[number] = payload;  // until it is acknowledged
    if (shared) {
      frame.set_last(true);
      return push_->Write(JoinPayload(frame, Bytes()));
    }
    for (const PayloadSlice& part : SlicesOf(payload.size())) {
      frame.set_offset(part.offset);
      frame.set_last(part.last);
      push_->Write(JoinPayload(frame, payload.Sub(part.offset, part.size)));
      frame.clear_header();
    }
  }

  void OnReply(const grpc::ByteBuffer& message) {
    v1::PushReply reply;
    std::vector<grpc::Slice> none;
    absl::Status status = SplitPayload(message, &reply, &none);
    if (status.ok() && reply.ack().outcome() != v1::Ack::ACCEPTED) {
      status = absl::DataLossError(absl::StrCat("payload ", reply.tag(), " is damaged"));
    }
    {
      MutexLock lock(&mu_);
      sent_.erase(static_cast<uint32_t>(reply.tag()));
    }
    Done(status);
  }

  void Done(const absl::Status& status) {
    MutexLock lock(&mu_);
    ++done_;
    FailLocked(status);
  }
  void FailLocked(const absl::Status& status) EPS_REQUIRES(mu_) {
    if (status_.ok()) status_ = status;
    changed_.NotifyAll();
  }

  const TransportLoad load_;
  const Bytes pattern_;
  const std::shared_ptr<ShmWeights> weights_;
  const std::shared_ptr<ShmGradients> gradients_;
  ThreadPool pool_;
  const std::shared_ptr<grpc::Channel> down_;
  const std::shared_ptr<grpc::Channel> up_;
  std::shared_ptr<ByteStream> fetch_;
  std::shared_ptr<ByteStream> push_;
  std::map<uint64_t, PayloadAssembler> arriving_;  // used by OnSlice

  Mutex mu_;
  CondVar changed_;
  std::map<uint32_t, Bytes> sent_ EPS_GUARDED_BY(mu_);
  absl::Status status_ EPS_GUARDED_BY(mu_);
  uint32_t done_ EPS_GUARDED_BY(mu_) = 0;
  bool compare_ EPS_GUARDED_BY(mu_) = false;
  int open_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace

int ServeShmPeers(const TransportLoad& load, const std::string& folder, int out) {
  KeepGrpcInitialised();
  MemoryAccount account;
  ShmOptions options;
  options.folder = folder;
  options.weights_bytes = load.total_bytes;
  options.gradients_bytes = 2 * kInFlight * load.chunk_bytes;
  options.incarnation = 1;
  options.account = &account;
  options.needs = [&options] {
    return ShmNeeds{0, options.weights_bytes, options.gradients_bytes};
  };
  const auto shm = ShmServer::Start(options);
  if (!shm.ok()) return 70;
  ThreadPool pool(kPoolThreads);
  Store store{load, shm->get(), &account, &pool, Pattern(load.total_bytes), {}, {}};
  PeerService service(&store);
  grpc::ServerBuilder builder;
  SetServerOptions(&builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 70;
  v1::HelloReply hello;
  hello.set_server(absl::StrCat("127.0.0.1:", port));
  *hello.mutable_shared_memory() = (*shm)->offer();
  const std::string text = hello.SerializeAsString();
  if (write(out, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return 70;
  server->Wait();
  return 0;
}

absl::StatusOr<std::unique_ptr<ShmWorker>> ShmWorker::Connect(const TransportLoad& load, int in) {
  char text[4096];
  v1::HelloReply hello;
  const ssize_t size = read(in, text, sizeof(text));
  if (size <= 0 || !hello.ParseFromArray(text, static_cast<int>(size))) {
    return absl::UnavailableError("the server does not start");
  }
  KeepGrpcInitialised();
  EPS_ASSIGN_OR_RETURN(auto weights, ShmWeights::Connect(hello.shared_memory()));
  EPS_ASSIGN_OR_RETURN(auto gradients, ShmGradients::Connect(hello.shared_memory()));
  return std::unique_ptr<ShmWorker>(
      new ShmWorkerImpl(load, hello.server(), std::move(weights), std::move(gradients)));
}

}  // namespace eps
