#include "bench/peers/transport_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "bench/peers/transport.grpc.pb.h"
#include "eps/v1/data.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"
#include "wire/payload_message.h"
#include "worker/client/byte_stream.h"

namespace eps {
namespace {

constexpr uint32_t kMaxRequests = 8;  // as in ShardFetcher
constexpr std::chrono::minutes kTimeout{1};
constexpr char kFetchMethod[] = "/eps.v1.Data/Fetch";

std::string Loopback(int port) { return absl::StrCat("127.0.0.1:", port); }

std::unique_ptr<bench::Peers::Stub> NewStub(int port, Settings settings) {
  if (settings == Settings::kProduct) return bench::Peers::NewStub(NewChannel(Loopback(port)));
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a separate connection
  return bench::Peers::NewStub(
      grpc::CreateCustomChannel(Loopback(port), grpc::InsecureChannelCredentials(), args));
}

absl::Status BadSlice(uint64_t chunk, uint64_t offset, size_t size) {
  return absl::DataLossError(
      absl::StrCat("a slice of ", size, " bytes at ", offset, " of chunk ", chunk));
}

// Copies a piece of a chunk to its place; returns an error if the load has no such place.
absl::Status Place(const TransportLoad& load, uint64_t chunk, uint64_t offset, const void* data,
                   size_t size, uint8_t* out) {
  if (chunk >= load.chunks() || offset > load.chunk_bytes || size > load.chunk_bytes - offset ||
      chunk * load.chunk_bytes + offset + size > load.total_bytes) {
    return BadSlice(chunk, offset, size);
  }
  std::memcpy(out + chunk * load.chunk_bytes + offset, data, size);
  return absl::OkStatus();
}

// Fetches over the product's chunk stream.
class ChunkStreamClient final : public TransportClient {
 public:
  ChunkStreamClient(const TransportLoad& load, int port)
      : load_(load), channel_(NewChannel(Loopback(port))) {
    stream_ = ByteStream::Open(
        channel_, kFetchMethod, [this](const grpc::ByteBuffer& message) { OnMessage(message); },
        [this](const grpc::Status& status) { OnDone(status); });
  }
  ~ChunkStreamClient() override {
    stream_->Cancel();
    MutexLock lock(&mu_);
    while (!ended_) changed_.WaitFor(&mu_, std::chrono::seconds(1));
  }

  absl::Status Fetch(uint8_t* out) override {
    MutexLock lock(&mu_);
    out_ = out;
    next_ = 0;
    missing_ = load_.total_bytes;
    while (next_ < std::min(kMaxRequests, load_.chunks())) RequestNext();
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (missing_ > 0 && status_.ok()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat(missing_, " bytes did not arrive"));
      }
      changed_.WaitFor(&mu_, std::chrono::seconds(1));
    }
    return status_;
  }

 private:
  void RequestNext() EPS_REQUIRES(mu_) {
    v1::FetchRequest request;
    request.set_tag(next_);
    request.add_chunks(next_++);
    stream_->Write(JoinPayload(request, Bytes()));
  }

  void OnMessage(const grpc::ByteBuffer& message) EPS_EXCLUDES(mu_) {
    v1::FetchSlice slice;
    std::vector<grpc::Slice> pieces;
    absl::Status status = SplitPayload(message, &slice, &pieces);
    uint8_t* out = nullptr;
    {
      MutexLock lock(&mu_);
      out = out_;
    }
    uint64_t offset = slice.offset();
    for (const grpc::Slice& piece : pieces) {
      if (!status.ok()) break;
      status = Place(load_, slice.chunk(), offset, piece.begin(), piece.size(), out);
      offset += piece.size();
    }
    MutexLock lock(&mu_);
    if (!status.ok()) {
      status_ = status;
    } else {
      missing_ -= std::min<size_t>(missing_, offset - slice.offset());
      if (slice.last() && next_ < load_.chunks()) RequestNext();
    }
    if (missing_ == 0 || !status_.ok()) changed_.NotifyAll();
  }

  void OnDone(const grpc::Status& status) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    ended_ = true;
    if (status_.ok()) {
      status_ =
          absl::UnavailableError(absl::StrCat("the chunk stream ended: ", status.error_message()));
    }
    changed_.NotifyAll();
  }

  const TransportLoad load_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<ByteStream> stream_;

  Mutex mu_;
  CondVar changed_;
  uint8_t* out_ EPS_GUARDED_BY(mu_) = nullptr;
  uint32_t next_ EPS_GUARDED_BY(mu_) = 0;
  size_t missing_ EPS_GUARDED_BY(mu_) = 0;
  absl::Status status_ EPS_GUARDED_BY(mu_);
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

// Fetches over one protobuf stream.
class ProtobufStreamClient final : public TransportClient {
 public:
  ProtobufStreamClient(const TransportLoad& load, int port, Settings settings)
      : load_(load), stub_(NewStub(port, settings)) {}

  absl::Status Fetch(uint8_t* out) override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    v1::FetchRequest request;
    for (uint32_t chunk = 0; chunk < load_.chunks(); ++chunk) request.add_chunks(chunk);
    const auto reader = stub_->Slices(&context, request);
    absl::Status status;
    v1::FetchSlice slice;
    while (reader->Read(&slice)) {
      if (!status.ok()) continue;
      status = Place(load_, slice.chunk(), slice.offset(), slice.data().data(), slice.data().size(),
                     out);
    }
    const grpc::Status end = reader->Finish();
    return status.ok() ? FromGrpc(end, "Slices") : status;
  }

 private:
  const TransportLoad load_;
  const std::unique_ptr<bench::Peers::Stub> stub_;
};

// Fetches with one protobuf call per slice.
class UnaryClient final : public TransportClient {
 public:
  UnaryClient(const TransportLoad& load, int port, Settings settings)
      : load_(load), stub_(NewStub(port, settings)) {}

  absl::Status Fetch(uint8_t* out) override {
    for (size_t done = 0; done < load_.total_bytes;) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kTimeout);
      v1::FetchRequest request;
      request.set_stage(static_cast<uint32_t>(done / kMaxSliceBytes));
      v1::FetchSlice slice;
      const grpc::Status status = stub_->Slice(&context, request, &slice);
      if (!status.ok()) return FromGrpc(status, "Slice");
      if (slice.offset() != done || slice.data().empty() ||
          slice.data().size() > load_.total_bytes - done) {
        return BadSlice(0, slice.offset(), slice.data().size());
      }
      std::memcpy(out + done, slice.data().data(), slice.data().size());
      done += slice.data().size();
    }
    return absl::OkStatus();
  }

 private:
  const TransportLoad load_;
  const std::unique_ptr<bench::Peers::Stub> stub_;
};

// Fetches over a TCP socket.
class TcpClient final : public TransportClient {
 public:
  TcpClient(const TransportLoad& load, int connection, bool in_place)
      : load_(load), connection_(connection), in_place_(in_place), received_(kMaxSliceBytes) {}
  ~TcpClient() override { close(connection_); }

  absl::Status Fetch(uint8_t* out) override {
    const char request = 1;
    if (send(connection_, &request, 1, MSG_NOSIGNAL) != 1) {
      return absl::UnavailableError("the socket is closed");
    }
    for (size_t done = 0; done < load_.total_bytes;) {
      const size_t size = std::min(kMaxSliceBytes, load_.total_bytes - done);
      uint8_t* to = in_place_ ? out + done : received_.data();
      const ssize_t n = recv(connection_, to, size, 0);
      if (n <= 0) return absl::UnavailableError(absl::StrCat("the socket failed after ", done));
      if (!in_place_) std::memcpy(out + done, to, static_cast<size_t>(n));
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const TransportLoad load_;
  const int connection_;
  const bool in_place_;
  std::vector<uint8_t> received_;
};

}  // namespace

std::unique_ptr<TransportClient> NewChunkStreamClient(const TransportLoad& load, int port) {
  return std::make_unique<ChunkStreamClient>(load, port);
}

std::unique_ptr<TransportClient> NewProtobufStreamClient(const TransportLoad& load, int port,
                                                         Settings settings) {
  return std::make_unique<ProtobufStreamClient>(load, port, settings);
}

std::unique_ptr<TransportClient> NewUnaryClient(const TransportLoad& load, int port,
                                                Settings settings) {
  return std::make_unique<UnaryClient>(load, port, settings);
}

absl::StatusOr<std::unique_ptr<TransportClient>> NewTcpClient(const TransportLoad& load, int port,
                                                              bool in_place) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connection < 0 ||
      connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    if (connection >= 0) close(connection);
    return absl::UnavailableError(absl::StrCat("cannot connect to ", Loopback(port)));
  }
  const timeval timeout = {60, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const int one = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return std::unique_ptr<TransportClient>(std::make_unique<TcpClient>(load, connection, in_place));
}

}  // namespace eps
