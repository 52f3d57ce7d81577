#include "wire/shm/shm_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr int kAcceptPauseMs = 100;

uint64_t RandomNumber() {
  std::random_device random;
  const uint64_t value = uint64_t{random()} << 32 | random();
  return value == 0 ? 1 : value;
}

// Returns a descriptor of the process at the other end of a connection that is still open. Process
// numbers are used again only after their process is gone, which ends the connection: one that is
// open after the descriptor was made is that process's.
absl::StatusOr<Descriptor> ProcessOf(int socket) {
  EPS_ASSIGN_OR_RETURN(const pid_t pid, PeerProcess(socket, geteuid()));
  Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd peer = {socket, POLLRDHUP, 0};
  if (!process.ok() || poll(&peer, 1, 0) < 0 || (peer.revents & (POLLRDHUP | POLLHUP)) != 0) {
    return absl::UnavailableError(absl::StrCat("process ", pid, " is gone"));
  }
  return process;
}

// Returns the path of an open folder, which is valid in every working directory.
std::string PathOf(const Descriptor& folder) {
  char path[4096];
  const std::string link = absl::StrCat("/proc/self/fd/", folder.get());
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  return size <= 0 ? "" : std::string(path, static_cast<size_t>(size));
}

std::string SocketName(uint64_t incarnation) { return absl::StrFormat("%016x.sock", incarnation); }

constexpr uint64_t kPage = 4096;

// Returns the size of a segment: whole pages, at least one.
uint64_t SegmentBytes(uint64_t needed, uint64_t most) {
  return std::max<uint64_t>((std::min(needed, most) + kPage - 1) / kPage, 1) * kPage;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmServer>> ShmServer::Start(ShmOptions options) {
  if (options.folder.empty()) options.folder = DefaultShmFolder();
  std::unique_ptr<ShmServer> server(new ShmServer(std::move(options)));
  EPS_RETURN_IF_ERROR(server->Listen());
  server->options_.account->SetSource(MemoryKind::kFetch, server.get());
  server->thread_ = std::thread([raw = server.get()] { raw->Serve(); });
  return server;
}

absl::Status ShmServer::Listen() {
  EPS_ASSIGN_OR_RETURN(folder_, OpenShmFolder(options_.folder, /*creates=*/true));
  EPS_ASSIGN_OR_RETURN(listener_, ListenInFolder(folder_.get(), SocketName(options_.incarnation)));
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (!stop_.ok()) return absl::ResourceExhaustedError("eventfd failed");
  offer_.set_boot_id(BootId());
  offer_.set_socket(absl::StrCat(PathOf(folder_), "/", SocketName(options_.incarnation)));
  offer_.set_nonce(RandomNumber());
  return absl::OkStatus();
}

ShmServer::~ShmServer() { Stop(); }

void ShmServer::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
  unlinkat(folder_.get(), SocketName(options_.incarnation).c_str(), 0);
  options_.account->SetSource(MemoryKind::kFetch, nullptr);
  for (const Peer& peer : peers_) EndSession(peer.session);
  peers_.clear();
}

void ShmServer::Serve() {
  for (;;) {
    std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      fds.push_back({peer.socket.get(), POLLIN, 0});
      fds.push_back({peer.process.get(), POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), /*timeout=*/-1) <= 0) continue;
    if (fds[0].revents != 0) return;
    size_t i = 2;
    for (auto it = peers_.begin(); it != peers_.end(); i += 2) {
      const bool gone = fds[i + 1].revents != 0 || (fds[i].revents != 0 && !OnReadable(&*it));
      if (gone) EndSession(it->session);
      it = gone ? peers_.erase(it) : std::next(it);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void ShmServer::Accept() {
  Peer peer;
  peer.socket =
      Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer.socket.ok()) {  // for lack of descriptors, perhaps; the connection waits
    pollfd stop = {stop_.get(), POLLIN, 0};
    poll(&stop, 1, kAcceptPauseMs);
    return;
  }
  if (peers_.size() >= kMaxPeers) return;
  absl::StatusOr<Descriptor> process = ProcessOf(peer.socket.get());
  // Another server that looks for dead sockets is gone at once.
  if (absl::IsUnavailable(process.status())) return;
  if (!process.ok()) {
    EPS_LOG_WARN("shared memory: a connection is refused: " << process.status().message());
    return;
  }
  peer.process = *std::move(process);
  peers_.push_back(std::move(peer));
}

bool ShmServer::OnReadable(Peer* peer) {
  // Of both packets of a worker, the hello is the longer one.
  ShmHello packet;
  std::vector<Descriptor> none;
  const absl::StatusOr<size_t> size =
      ReceivePacket(peer->socket.get(), &packet, sizeof(packet), &none);
  const bool valid = size.ok() && packet.magic == ShmHello::kMagic;
  if (peer->session == 0) return valid && *size == sizeof(ShmHello) && Welcome(packet, peer);
  if (valid && *size == sizeof(ShmBye)) return false;
  // The process may still read what it has mapped.
  peer->socket = Descriptor();
  return true;
}

bool ShmServer::Welcome(const ShmHello& hello, Peer* peer) {
  absl::StatusOr<std::shared_ptr<ShmSession>> session =
      hello.nonce == offer_.nonce()
          ? NewSession(hello.purpose)
          : absl::PermissionDeniedError("the nonce is not that of this server");
  ShmWelcome welcome;
  std::vector<int> segments;
  if (session.ok()) {
    peer->session = welcome.session = (*session)->id();
    welcome.own_bytes = (*session)->own().size();
    segments.push_back((*session)->own().fd());
    if (const SharedSegment* const weights = (*session)->weights_or_null()) {
      welcome.weights_bytes = weights->size();
      segments.push_back(weights->fd());
    }
  } else {
    EPS_LOG_WARN("shared memory: a worker is refused: " << session.status().message());
    std::strncpy(welcome.reason, std::string(session.status().message()).c_str(),
                 sizeof(welcome.reason) - 1);
  }
  const absl::Status sent = SendPacket(peer->socket.get(), &welcome, sizeof(welcome), segments);
  return sent.ok() && session.ok();
}

absl::StatusOr<std::shared_ptr<ShmSession>> ShmServer::NewSession(ShmPurpose purpose) {
  const ShmNeeds needs = options_.needs();
  MutexLock lock(&mu_);
  std::shared_ptr<SharedArena> weights;
  if (purpose == ShmPurpose::kWeights) {
    EPS_ASSIGN_OR_RETURN(weights, Weights(needs));
  }
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<SharedSegment> own,
                       weights == nullptr
                           ? NewSegment(MemoryKind::kContribution,
                                        SegmentBytes(needs.gradients, options_.gradients_bytes),
                                        SegmentWriters::kEveryHolder, needs.reserved)
                           : NewSegment(MemoryKind::kFetch, kShmHoldBytes,
                                        SegmentWriters::kEveryHolder, needs.reserved));
  const uint64_t id = RandomNumber();
  auto session = std::make_shared<ShmSession>(id, std::move(own), std::move(weights));
  sessions_.emplace(id, session);
  return session;
}

absl::StatusOr<std::shared_ptr<SharedSegment>> ShmServer::NewSegment(MemoryKind kind,
                                                                     uint64_t bytes,
                                                                     SegmentWriters writers,
                                                                     uint64_t reserved_bytes) {
  MemoryAccount* const account = options_.account;
  const uint64_t reserved = reserved_bytes + segment_bytes_->load();
  if (bytes > account->limit_bytes() || reserved > account->limit_bytes() - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for a shared segment of ", bytes, " bytes: job and segments need ", reserved,
        " of ", account->limit_bytes(), "; raise servers.memory_limit or lower servers.shm_*"));
  }
  EPS_RETURN_IF_ERROR(account->TryCharge(kind, bytes));
  segment_bytes_->fetch_add(bytes);
  const auto end_charge = [account, kind, bytes, all = segment_bytes_](SharedSegment* segment) {
    delete segment;
    all->fetch_sub(bytes);
    account->Release(kind, bytes);
  };
  auto segment = SharedSegment::Create(bytes, writers);
  if (!segment.ok()) {
    end_charge(nullptr);
    return segment.status();
  }
  return std::shared_ptr<SharedSegment>(segment->release(), end_charge);
}

absl::StatusOr<std::shared_ptr<SharedArena>> ShmServer::Weights(const ShmNeeds& needs) {
  if (weights_ != nullptr) return weights_;
  EPS_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedSegment> segment,
      NewSegment(MemoryKind::kFetch, SegmentBytes(needs.weights, options_.weights_bytes),
                 SegmentWriters::kCreator, needs.reserved));
  weights_ = std::make_shared<SharedArena>(std::move(segment));
  return weights_;
}

std::shared_ptr<ShmSession> ShmServer::Find(uint64_t session) {
  MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

std::shared_ptr<uint8_t> ShmServer::Allocate(size_t size) {
  MutexLock lock(&mu_);
  if (weights_ == nullptr) return nullptr;
  std::shared_ptr<uint8_t> memory = weights_->Allocate(size);
  if (memory != nullptr) return memory;
  for (const auto& [id, session] : sessions_) session->Collect();
  return weights_->Allocate(size);
}

void ShmServer::EndSession(uint64_t session) {
  std::shared_ptr<ShmSession> ended;  // freed without the lock
  std::shared_ptr<SharedArena> unused;
  MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  ended = std::move(it->second);
  sessions_.erase(it);
  ended->End();
  // Weights that are made without workers lie in the process's pool.
  for (const auto& [id, other] : sessions_) {
    if (other->weights_or_null() != nullptr) return;
  }
  unused = std::move(weights_);
}

}  // namespace eps
