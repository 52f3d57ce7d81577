#include "wire/shm/shm_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/folder.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr char kSuffix[] = ".sock";
constexpr int kBacklog = 64;
constexpr size_t kMaxDescriptors = 2;

std::string Reason() { return std::strerror(errno); }

// Returns the address of a socket in an open folder, which is short however long its path is.
sockaddr_un AddressIn(int folder, const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat("/proc/self/fd/", folder, "/", name);
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

const sockaddr* AsGeneric(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Descriptor NewSocket(int flags = 0) {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

// Removes the sockets of processes that were killed. A socket gets its name when its process
// already listens, so nobody else's is removed.
void RemoveDeadSockets(int folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      opendir(absl::StrCat("/proc/self/fd/", folder).c_str()), &closedir);
  if (entries == nullptr) return;
  while (const dirent* const entry = readdir(entries.get())) {
    if (!absl::EndsWith(entry->d_name, kSuffix)) continue;
    const sockaddr_un address = AddressIn(folder, entry->d_name);
    const Descriptor probe = NewSocket(SOCK_NONBLOCK);  // a stopped server answers nothing
    if (connect(probe.get(), AsGeneric(address), sizeof(address)) != 0 && errno == ECONNREFUSED) {
      unlinkat(folder, entry->d_name, 0);
    }
  }
}

}  // namespace

std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string DefaultShmFolder() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return absl::StrCat(runtime, "/eps");
  return absl::StrCat("/tmp/eps-", geteuid());
}

absl::StatusOr<Descriptor> OpenShmFolder(const std::string& folder, bool creates) {
  if (creates && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::NotFoundError(
        absl::StrCat("the folder of sockets ", folder, " cannot be created: ", Reason()));
  }
  Descriptor opened(open(folder.c_str(), O_DIRECTORY | O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts = {};
  if (!opened.ok() || fstat(opened.get(), &facts) != 0) {
    return absl::NotFoundError(
        absl::StrCat("the folder of sockets ", folder, " cannot be opened: ", Reason()));
  }
  if (facts.st_uid != geteuid() || (facts.st_mode & 0077) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "the folder of sockets %s is of user %d with mode %04o; expected user %d and mode 0700",
        folder, facts.st_uid, facts.st_mode & 07777, geteuid()));
  }
  return opened;
}

absl::StatusOr<Descriptor> ListenInFolder(int folder, const std::string& name) {
  RemoveDeadSockets(folder);
  Descriptor listener = NewSocket();
  const std::string early = absl::StrCat(name, ".new");
  const sockaddr_un address = AddressIn(folder, early);
  unlinkat(folder, early.c_str(), 0);
  if (!listener.ok() || bind(listener.get(), AsGeneric(address), sizeof(address)) != 0 ||
      listen(listener.get(), kBacklog) != 0 ||
      renameat(folder, early.c_str(), folder, name.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on socket ", name, ": ", Reason()));
  }
  return listener;
}

absl::StatusOr<Descriptor> ConnectToShmSocket(const std::string& path,
                                              std::chrono::milliseconds timeout) {
  EPS_ASSIGN_OR_RETURN(const Descriptor folder, OpenShmFolder(FolderOf(path), /*creates=*/false));
  const sockaddr_un address = AddressIn(folder.get(), path.substr(path.rfind('/') + 1));
  Descriptor connection = NewSocket();
  const timeval limit = {timeout.count() / 1000, timeout.count() % 1000 * 1000};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (!connection.ok() || connect(connection.get(), AsGeneric(address), sizeof(address)) != 0) {
    const bool missing = errno == ENOENT;
    const std::string text = absl::StrCat("cannot connect to socket ", path, ": ", Reason());
    return missing ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }
  EPS_RETURN_IF_ERROR(PeerProcess(connection.get(), geteuid()).status());
  return connection;
}

absl::StatusOr<pid_t> PeerProcess(int socket, uid_t user) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("the socket has no peer: ", Reason()));
  }
  if (peer.uid != user) {
    return absl::PermissionDeniedError(absl::StrCat("shared memory is for processes of user ", user,
                                                    "; the peer is of user ", peer.uid));
  }
  if (peer.pid <= 0) {
    return absl::PermissionDeniedError(
        "the peer is a process of another container, whose end this one would not see");
  }
  return peer.pid;
}

absl::Status SendPacket(int socket, const void* packet, size_t bytes,
                        const std::vector<int>& descriptors) {
  iovec content = {const_cast<void*>(packet), bytes};
  msghdr message = {};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), size);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(bytes)) {
    return absl::UnavailableError(absl::StrCat("the socket takes no packet: ", Reason()));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ReceivePacket(int socket, void* packet, size_t bytes,
                                     std::vector<Descriptor>* descriptors) {
  iovec content = {packet, bytes};
  msghdr message = {};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    return absl::UnavailableError(absl::StrCat("the socket brings no packet: ", Reason()));
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(fd);
    }
  }
  return static_cast<size_t>(got);
}

}  // namespace eps
