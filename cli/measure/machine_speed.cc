#include "cli/measure/machine_speed.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"
#include "base/machine/machine_limits.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "optimizer/update_rule.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;
using planner::BytesPerSecond;

constexpr int kRounds = 5;
constexpr size_t kChunkElements = size_t{1} << 20;
constexpr uint32_t kChunkCols = 1024;
constexpr size_t kChunks = 24;                       // larger together than the caches
constexpr size_t kCopyBytes = size_t{256} << 20;     // read by all cores together
constexpr size_t kStreamBytes = size_t{256} << 20;   // over loopback
constexpr size_t kMessageBytes = size_t{256} << 10;  // of one send
constexpr int kPings = 2000;
constexpr size_t kDiskBytes = size_t{256} << 20;
constexpr size_t kDiskPiece = size_t{4} << 20;
constexpr int kReceiveTimeoutSeconds = 30;

double SecondsOf(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Returns the median duration of several rounds, without the first.
double MedianSeconds(const std::function<void()>& work) {
  work();
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) seconds.push_back(SecondsOf(work));
  std::sort(seconds.begin(), seconds.end());
  return seconds[kRounds / 2];
}

Chunk MatrixChunk() {
  Chunk chunk;
  Segment segment;
  segment.rows = kChunkElements / kChunkCols;
  segment.cols = kChunkCols;
  chunk.segments = {segment};
  chunk.elements = segment.elements();
  return chunk;
}

// Fills with small values of both signs, so that every codec has work to do.
void Fill(absl::Span<float> values) {
  uint64_t random = 1;
  for (float& value : values) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(random >> 40) * 0x1p-24f - 0.5f;
  }
}

BytesPerSecond RateOf(size_t elements, double seconds) {
  return BytesPerSecond(static_cast<double>(elements * sizeof(float)) / seconds);
}

absl::Status SocketError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("loopback: ", what, ": ", std::strerror(errno)));
}

bool SendAll(const Descriptor& socket, const uint8_t* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket.get(), data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(const Descriptor& socket, uint8_t* data, size_t size) {
  while (size > 0) {
    const ssize_t received = recv(socket.get(), data, size, 0);
    if (received <= 0) return false;
    data += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

struct Connection {
  Descriptor client;
  Descriptor server;
};

absl::StatusOr<Connection> ConnectToSelf() {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (!listener.ok() || bind(listener.get(), plain, length) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), plain, &length) != 0) {
    return SocketError("cannot listen");
  }
  Connection connection;
  connection.client = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.client.ok() || connect(connection.client.get(), plain, length) != 0) {
    return SocketError("cannot connect");
  }
  connection.server = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.server.ok()) return SocketError("cannot accept");
  const int on = 1;
  const timeval timeout{kReceiveTimeoutSeconds, 0};
  for (const Descriptor* side : {&connection.client, &connection.server}) {
    setsockopt(side->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(side->get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  }
  return connection;
}

// Writes or reads the whole file, with all pieces in flight at once.
absl::Status Transfer(AsyncFile* file, absl::Span<uint8_t> memory, bool write) {
  std::atomic<size_t> left{memory.size() / kDiskPiece};
  std::atomic<bool> failed{false};
  for (size_t offset = 0; offset < memory.size(); offset += kDiskPiece) {
    const auto done = [&](const absl::Status& status) {
      if (!status.ok()) failed = true;
      left.fetch_sub(1);
    };
    const absl::Span<uint8_t> piece = memory.subspan(offset, kDiskPiece);
    if (write) {
      file->Write(offset, piece, done);
    } else {
      file->Read(offset, piece, done);
    }
  }
  while (left.load() > 0) std::this_thread::yield();
  if (failed) return absl::InternalError(absl::StrCat(file->path(), ": cannot be measured"));
  return write ? SyncBlocking(file) : absl::OkStatus();
}

absl::StatusOr<DiskSpeed> MeasureFile(Disk* disk, const std::string& path) {
  EPS_RETURN_IF_ERROR(disk->CreateFile(path, kDiskBytes));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(path));
  std::vector<uint8_t> memory(kDiskBytes + kDiskBlock, 1);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory.data());
  const absl::Span<uint8_t> aligned(memory.data() + (kDiskBlock - begin % kDiskBlock) % kDiskBlock,
                                    kDiskBytes);
  absl::Status status;
  const auto rate = [&](bool write) {
    const double seconds = MedianSeconds([&] {
      const absl::Status transferred = Transfer(file.get(), aligned, write);
      if (!transferred.ok()) status = transferred;
    });
    return BytesPerSecond(kDiskBytes / seconds);
  };
  DiskSpeed speed;
  speed.write = rate(/*write=*/true);
  speed.read = rate(/*write=*/false);
  EPS_RETURN_IF_ERROR(status);
  return speed;
}

}  // namespace

BytesPerSecond MeasureMemory() {
  const size_t cores = UsableProcessors();
  const size_t share = kCopyBytes / cores;
  std::vector<uint8_t> from(kCopyBytes, 1);
  std::vector<uint8_t> to(kCopyBytes, 2);
  const double seconds = MedianSeconds([&] {
    std::vector<std::thread> threads;
    for (size_t core = 0; core < cores; ++core) {
      threads.emplace_back(
          [&, core] { std::memcpy(&to[core * share], &from[core * share], share); });
    }
    for (std::thread& thread : threads) thread.join();
  });
  return BytesPerSecond(2 * static_cast<double>(share * cores) / seconds);
}

BytesPerSecond MeasureUpdate() {
  const ScopedFlushDenormals flush;
  const Chunk chunk = MatrixChunk();
  OptimizerSpec optimizer;
  const std::unique_ptr<UpdateRule> rule = *NewUpdateRule(optimizer);
  const size_t arrays = 1 + StateFields(optimizer).size();
  std::vector<std::vector<float>> states(kChunks, std::vector<float>(arrays * kChunkElements));
  std::vector<std::vector<float>> gradients(kChunks, std::vector<float>(kChunkElements));
  for (auto& gradient : gradients) Fill(absl::MakeSpan(gradient));
  StepScalars step;
  step.lr = 1e-3;
  step.update = 1;
  const double seconds = MedianSeconds([&] {
    for (size_t i = 0; i < kChunks; ++i) {
      ForEachTile(chunk, [&](const Tile& tile) {
        const uint64_t offset = tile.offset(chunk.segments[0]);
        TileState state;
        state.ld = kChunkCols;
        state.weight = &states[i][offset];
        for (size_t field = 1; field < arrays; ++field) {
          state.field[field - 1] = &states[i][field * kChunkElements + offset];
        }
        rule->Run(tile.rows, tile.cols, &gradients[i][offset], kChunkCols, step, GroupScalars(),
                  state);
      });
    }
  });
  return RateOf(kChunks * kChunkElements, seconds);
}

absl::StatusOr<planner::CodecRates> MeasureCodec(const std::string& name) {
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(name));
  EPS_RETURN_IF_ERROR(codec->Ready());
  const ScopedFlushDenormals flush;
  const Chunk chunk = MatrixChunk();
  std::vector<std::vector<float>> values(kChunks, std::vector<float>(kChunkElements));
  for (auto& chunk_values : values) Fill(absl::MakeSpan(chunk_values));
  std::vector<Bytes> encoded(kChunks);
  const double encode = MedianSeconds([&] {
    for (size_t i = 0; i < kChunks; ++i) {
      const auto encoder = codec->NewEncoder(chunk, EncodeOptions());
      ForEachTile(chunk, [&](const Tile& tile) {
        encoder->Write(tile, kChunkCols, &values[i][tile.offset(chunk.segments[0])]);
      });
      encoded[i] = encoder->Finish();
    }
  });
  absl::Status status;
  const double decode = MedianSeconds([&] {
    for (size_t i = 0; i < kChunks; ++i) {
      const auto opened = codec->Open(chunk, Axis::kRow, encoded[i], Content::kWeights);
      if (!opened.ok()) {
        status = opened.status();
        return;
      }
      ForEachTile(chunk, [&](const Tile& tile) {
        (*opened)->Read(tile, /*accumulate=*/false, kChunkCols,
                        &values[i][tile.offset(chunk.segments[0])]);
      });
    }
  });
  EPS_RETURN_IF_ERROR(status);
  return planner::CodecRates{name, RateOf(kChunks * kChunkElements, encode),
                             RateOf(kChunks * kChunkElements, decode)};
}

absl::StatusOr<BytesPerSecond> MeasureLoopback() {
  EPS_ASSIGN_OR_RETURN(const Connection connection, ConnectToSelf());
  const std::vector<uint8_t> message(kMessageBytes, 1);
  std::vector<uint8_t> received(kMessageBytes);
  std::vector<uint8_t> place(kStreamBytes);
  bool ok = true;
  const double seconds = MedianSeconds([&] {
    std::thread sender([&] {
      for (size_t sent = 0; sent < kStreamBytes; sent += kMessageBytes) {
        if (!SendAll(connection.client, message.data(), kMessageBytes)) return;
      }
    });
    for (size_t at = 0; ok && at < kStreamBytes; at += kMessageBytes) {
      ok = ReceiveAll(connection.server, received.data(), kMessageBytes);
      std::memcpy(&place[at], received.data(), kMessageBytes);
    }
    sender.join();
  });
  if (!ok) return SocketError("cannot receive");
  return BytesPerSecond(kStreamBytes / seconds);
}

absl::StatusOr<planner::Seconds> MeasureLatency() {
  EPS_ASSIGN_OR_RETURN(const Connection connection, ConnectToSelf());
  uint8_t byte = 1;
  bool ok = true;
  const double seconds = MedianSeconds([&] {
    std::thread answerer([&] {
      uint8_t got = 0;
      for (int i = 0; i < kPings; ++i) {
        if (!ReceiveAll(connection.server, &got, 1) || !SendAll(connection.server, &got, 1)) return;
      }
    });
    for (int i = 0; ok && i < kPings; ++i) {
      ok = SendAll(connection.client, &byte, 1) && ReceiveAll(connection.client, &byte, 1);
    }
    answerer.join();
  });
  if (!ok) return SocketError("cannot receive");
  return planner::Seconds(seconds / kPings);
}

absl::StatusOr<DiskSpeed> MeasureDisk(const std::string& folder) {
  const std::unique_ptr<Disk> disk = NewRealDisk(DiskOptions());
  EPS_RETURN_IF_ERROR(disk->CreateFolder(folder));
  EPS_ASSIGN_OR_RETURN(const uint64_t free, disk->FreeBytes(folder));
  const std::string path = absl::StrCat(folder, "/calibrate.", getpid());
  absl::StatusOr<DiskSpeed> speed = MeasureFile(disk.get(), path);
  const absl::Status removed = disk->Remove(path);
  EPS_RETURN_IF_ERROR(speed.status());
  EPS_RETURN_IF_ERROR(removed);
  speed->free = planner::Bytes(static_cast<double>(free));
  return speed;
}

}  // namespace eps
