#include "bench/peers/transport_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/executor.h"
#include "base/status_macros.h"
#include "bench/peers/transport.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "wire/channel.h"
#include "wire/payload_message.h"
#include "wire/security/identity.h"

namespace eps {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{16} << 20;  // as in FetchCall
constexpr int kPoolThreads = 2;
constexpr size_t kCompared = 4096;  // compared as a block before searching for the differing byte
constexpr char kAnyPort[] = "127.0.0.1:0";

uint64_t PatternWord(uint64_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  return x * 0xd6e8feb86659fd93u;
}

// The data that the server sends, by chunk.
struct Source {
  TransportLoad load;
  Bytes bytes;

  Bytes Chunk(uint32_t chunk) const {
    const size_t offset = size_t{chunk} * load.chunk_bytes;
    return bytes.Sub(offset, std::min(load.chunk_bytes, load.total_bytes - offset));
  }
};

// Calls visit(offset in the chunk, size, whether it is the last) for each slice.
template <class Visitor>
void ForEachSlice(size_t chunk_bytes, Visitor visit) {
  for (size_t offset = 0; offset < chunk_bytes; offset += kMaxSliceBytes) {
    const size_t size = std::min(kMaxSliceBytes, chunk_bytes - offset);
    visit(offset, size, offset + size == chunk_bytes);
  }
}

// Serves like FetchCall of eps_server/rpc, but without a job: the chunks are already in memory.
class ChunkCall final : public BidiCall {
 public:
  static ChunkCall* Start(const Source* source, Executor* pool) {
    std::shared_ptr<ChunkCall> call(new ChunkCall(source, pool));
    call->Adopt(nullptr);
    call->ReadNext();
    return call.get();
  }

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override {
    v1::FetchRequest request;
    const absl::Status status = ParseMessage(message, &request);
    if (!status.ok()) {
      End(status);
      return false;
    }
    auto self = std::static_pointer_cast<ChunkCall>(shared_from_this());
    work_.Post([self, request = std::move(request)] {
      for (const uint32_t chunk : request.chunks()) self->WriteSlices(request.tag(), chunk);
    });
    return queued_bytes() <= kMaxQueuedBytes;
  }
  void OnHalfClose() override { End(absl::OkStatus()); }
  void OnDrained() override { ReadNext(); }

 private:
  ChunkCall(const Source* source, Executor* pool) : source_(source), work_(pool) {}

  void WriteSlices(uint64_t tag, uint32_t chunk) {
    const Bytes payload = source_->Chunk(chunk);
    v1::FetchSlice slice;
    slice.set_tag(tag);
    slice.set_chunk(chunk);
    slice.set_version(1);
    slice.set_total_bytes(payload.size());
    std::vector<grpc::ByteBuffer> messages;
    ForEachSlice(payload.size(), [&](size_t offset, size_t size, bool last) {
      slice.set_offset(offset);
      slice.set_last(last);
      messages.push_back(JoinPayload(slice, payload.Sub(offset, size)));
    });
    Write(std::move(messages));
  }

  const Source* const source_;
  Sequence work_;
};

// Uses the callback API for all methods, like eps-server: a single synchronous method would add
// polling threads to the server that the product does not have.
using ChunkBase = v1::Data::WithCallbackMethod_BeginStep<
    v1::Data::WithRawCallbackMethod_Fetch<v1::Data::WithRawCallbackMethod_Push<v1::Data::Service>>>;

// The product's data service, reduced to fetches.
class ChunkService final : public ChunkBase {
 public:
  ChunkService(const Source* source, Executor* pool) : source_(source), pool_(pool) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Fetch(
      grpc::CallbackServerContext*) override {
    return ChunkCall::Start(source_, pool_);
  }

 private:
  const Source* const source_;
  Executor* const pool_;
};

// The protobuf peers.
class PeerService final : public bench::Peers::Service {
 public:
  explicit PeerService(const Source* source) : source_(source) {}

  grpc::Status Slices(grpc::ServerContext*, const v1::FetchRequest* request,
                      grpc::ServerWriter<v1::FetchSlice>* writer) override {
    v1::FetchSlice slice;
    bool open = true;
    for (const uint32_t chunk : request->chunks()) {
      const Bytes payload = source_->Chunk(chunk);
      slice.set_chunk(chunk);
      slice.set_total_bytes(payload.size());
      ForEachSlice(payload.size(), [&](size_t offset, size_t size, bool last) {
        slice.set_offset(offset);
        slice.set_last(last);
        slice.set_data(payload.data() + offset, size);
        open = open && writer->Write(slice);
      });
    }
    return grpc::Status::OK;
  }

  grpc::Status Slice(grpc::ServerContext*, const v1::FetchRequest* request,
                     v1::FetchSlice* slice) override {
    const size_t offset = size_t{request->stage()} * kMaxSliceBytes;
    if (offset >= source_->bytes.size()) return {grpc::StatusCode::OUT_OF_RANGE, "no such slice"};
    slice->set_offset(offset);
    slice->set_data(source_->bytes.data() + offset,
                    std::min(kMaxSliceBytes, source_->bytes.size() - offset));
    return grpc::Status::OK;
  }

 private:
  const Source* const source_;
};

// Sends everything once per received byte, with one thread per connection.
class TcpSender {
 public:
  explicit TcpSender(const Source* source) : source_(source) {}
  ~TcpSender() {
    if (acceptor_.joinable()) {
      shutdown(listener_, SHUT_RDWR);
      acceptor_.join();
    }
    for (const int connection : connections_) shutdown(connection, SHUT_RDWR);
    for (std::thread& sender : senders_) sender.join();
    for (const int connection : connections_) close(connection);
    if (listener_ >= 0) close(listener_);
  }

  absl::Status Start() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 4) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return absl::UnavailableError("no TCP port on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
    return absl::OkStatus();
  }
  int port() const { return port_; }

 private:
  void Accept() {
    for (;;) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      const int one = 1;
      setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      connections_.push_back(connection);
      senders_.emplace_back([this, connection] {
        char request;
        while (recv(connection, &request, 1, 0) == 1 && SendAll(connection)) {
        }
        shutdown(connection, SHUT_RDWR);
      });
    }
  }

  bool SendAll(int connection) {
    size_t sent = 0;
    while (sent < source_->bytes.size()) {
      const size_t size = std::min(kMaxSliceBytes, source_->bytes.size() - sent);
      const ssize_t n = send(connection, source_->bytes.data() + sent, size, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  const Source* const source_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  // Used by the acceptor thread, and by the destructor after that thread has ended.
  std::vector<int> connections_;
  std::vector<std::thread> senders_;
};

// Owns the servers of all transports of one process.
class TransportServerImpl final : public TransportServer {
 public:
  explicit TransportServerImpl(Source source)
      : source_(std::move(source)),
        pool_(kPoolThreads),
        chunks_(&source_, &pool_),
        peers_(&source_),
        tcp_(&source_) {}
  ~TransportServerImpl() override {
    for (const auto& server : servers_) server->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(Settings settings) {
    if (settings == Settings::kPlain) return Add(&peers_, settings, &ports_.protobuf);
    KeepGrpcInitialised();
    EPS_RETURN_IF_ERROR(Add(&peers_, settings, &ports_.protobuf));
    EPS_RETURN_IF_ERROR(Add(&chunks_, settings, &ports_.chunks));
    EPS_RETURN_IF_ERROR(tcp_.Start());
    ports_.tcp = tcp_.port();
    return absl::OkStatus();
  }

  Ports ports() const override { return ports_; }

 private:
  // Starts a gRPC server for each service, like a program that has only that service.
  absl::Status Add(grpc::Service* service, Settings settings, int* port) {
    grpc::ServerBuilder builder;
    if (settings == Settings::kProduct) SetServerOptions(&builder);
    builder.AddListeningPort(kAnyPort,
                             UsesTls(kAnyPort) ? ProcessIdentityOrNull()->ForServers()
                                               : grpc::InsecureServerCredentials(),
                             port);
    builder.RegisterService(service);
    auto server = builder.BuildAndStart();
    if (server == nullptr || *port == 0) {
      return absl::UnavailableError("no port for a gRPC server on 127.0.0.1");
    }
    servers_.push_back(std::move(server));
    return absl::OkStatus();
  }

  const Source source_;
  ThreadPool pool_;
  ChunkService chunks_;
  PeerService peers_;
  TcpSender tcp_;
  Ports ports_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
};

}  // namespace

void FillPattern(uint8_t* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(i);
    std::memcpy(data + i, &word, std::min(sizeof(word), bytes - i));
  }
}

size_t FirstDifference(const uint8_t* data, size_t bytes) {
  size_t begin = 0;
  uint64_t differs = 0;
  for (; begin + kCompared <= bytes && differs == 0; begin += kCompared) {
    for (size_t i = begin; i < begin + kCompared; i += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, data + i, sizeof(word));
      differs |= word ^ PatternWord(i);
    }
  }
  if (differs != 0) begin -= kCompared;
  for (size_t i = begin; i < bytes; ++i) {
    const uint64_t word = PatternWord(i / sizeof(uint64_t) * sizeof(uint64_t));
    if (data[i] != reinterpret_cast<const uint8_t*>(&word)[i % sizeof(word)]) return i;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<TransportServer>> TransportServer::Start(const TransportLoad& load,
                                                                        Settings settings) {
  if (load.total_bytes == 0 || load.chunk_bytes == 0) {
    return absl::InvalidArgumentError("the load is empty");
  }
  Buffer buffer(load.total_bytes);
  FillPattern(buffer.data(), buffer.size());
  auto server = std::make_unique<TransportServerImpl>(Source{load, std::move(buffer).Freeze()});
  const absl::Status status = server->Listen(settings);
  if (!status.ok()) return status;
  return std::unique_ptr<TransportServer>(std::move(server));
}

}  // namespace eps
