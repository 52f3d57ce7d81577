#include "cli/commands/doctor_checks.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr uint64_t kLittleMemory = uint64_t{2} << 30;
// A server holds three connections per worker, and gRPC some descriptors per connection.
constexpr uint64_t kFewFiles = 1024;
constexpr uint64_t kEnoughFiles = 65'536;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns the socket addresses of "host:port", or null with a reason.
Addresses Resolve(const std::string& address, std::string* why) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) *why = gai_strerror(error);
  return Addresses(error == 0 ? found : nullptr, &freeaddrinfo);
}

// Connects and closes again. Returns 0, or the errno of the failure.
int Connect(const addrinfo& to, std::chrono::milliseconds timeout) {
  const Descriptor socket_fd(
      socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol));
  if (!socket_fd.ok()) return errno;
  if (connect(socket_fd.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd ready = {socket_fd.get(), POLLOUT, 0};
  const int count = poll(&ready, 1, static_cast<int>(timeout.count()));
  if (count < 0) return errno;
  if (count == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

Finding CheckMemoryLimit(uint64_t available_bytes, uint64_t limit_bytes) {
  const std::string available = FormatBytes(static_cast<double>(available_bytes));
  const uint64_t usable =
      limit_bytes == 0 ? available_bytes : std::min(available_bytes, limit_bytes);
  std::string text =
      absl::StrCat("memory: ", available, " available, servers.memory_limit ",
                   limit_bytes == 0 ? "not set" : FormatBytes(static_cast<double>(limit_bytes)),
                   "; AdamW needs 12 bytes per parameter on the servers: at most about ",
                   FormatCount(usable / 12), " parameters");
  if (limit_bytes > available_bytes) {
    return {Level::kWarn, absl::StrCat(text, "; the limit exceeds the available memory: lower it")};
  }
  return {usable < kLittleMemory ? Level::kWarn : Level::kOk, std::move(text)};
}

Finding CheckOpenFiles(uint64_t soft, uint64_t hard) {
  const auto shown = [](uint64_t limit) {
    return limit >= uint64_t{1} << 62 ? std::string("unlimited") : FormatCount(limit);
  };
  const std::string text = absl::StrCat("open files: at most ", shown(soft), " for a process");
  if (soft >= kFewFiles) return {Level::kOk, text};
  return {Level::kWarn,
          absl::StrCat(text, ", too few for a server with many workers; ",
                       hard > soft ? absl::StrCat("ulimit -n ", std::min(hard, kEnoughFiles))
                                   : std::string("raise the hard limit"))};
}

Finding CheckListen(const std::string& address) {
  const std::string name = absl::StrCat("listen: ", address, " (servers.listen)");
  const absl::Status well_formed = CheckAddress(address, /*allow_any_port=*/true);
  if (!well_formed.ok()) {
    return {Level::kFail, absl::StrCat(name, ": ", std::string(well_formed.message()))};
  }
  std::string why;
  const Addresses addresses = Resolve(address, &why);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const Descriptor socket_fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, a->ai_protocol));
    const int on = 1;
    setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(socket_fd.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(socket_fd.get(), 1) == 0) {
      return {Level::kOk, absl::StrCat(name, ": a server can listen there")};
    }
    why = std::strerror(errno);
  }
  return {Level::kFail, absl::StrCat(name, ": ", why, "; choose another address or port")};
}

Finding CheckReach(const std::string& address, std::chrono::milliseconds timeout) {
  const std::string name = absl::StrCat("server: ", address, " (servers.addresses)");
  const absl::Status well_formed = CheckAddress(address, /*allow_any_port=*/false);
  if (!well_formed.ok()) {
    return {Level::kFail, absl::StrCat(name, ": ", std::string(well_formed.message()))};
  }
  std::string why;
  const Addresses addresses = Resolve(address, &why);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int error = Connect(*a, timeout);
    if (error == 0) return {Level::kOk, absl::StrCat(name, ": something listens there")};
    why = std::strerror(error);
  }
  return {Level::kFail, absl::StrCat(name, ": ", why, "; is eps serve running there?")};
}

int CountGpus(const std::string& folder) {
  int count = 0;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (const std::filesystem::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    absl::string_view name = file;
    int number = 0;
    if (absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &number)) ++count;
  }
  return count;
}

Finding CheckGpu(int devices, const std::string& worker_says) {
  if (devices == 0) {
    return {Level::kOk, "gpu: none (no /dev/nvidia*): workers compute on the CPU"};
  }
  const std::string found = absl::StrCat("gpu: ", devices, devices == 1 ? " device" : " devices",
                                         " of the NVIDIA driver; the worker's LibTorch: ",
                                         worker_says.empty() ? "did not report" : worker_says);
  int usable = 0;
  const absl::string_view first = absl::string_view(worker_says).substr(0, worker_says.find(' '));
  if (absl::SimpleAtoi(first, &usable) && usable > 0) return {Level::kOk, found};
  return {Level::kWarn, absl::StrCat(found, "; workers compute on the CPU")};
}

}  // namespace eps
